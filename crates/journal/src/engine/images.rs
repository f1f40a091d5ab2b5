//! The blocks of a transaction as they leave: with their checksums, their own and the log's.
//!
//! ```text
//! cache: | bytes, the old checksum |  --read once-->  both checksums  --copied-->  | bytes, checksum |  log, and later home
//! ```
//!
//! A block that has a checksum leaves as a copy: the cache's bytes stay the cache's, and who changes them next need not copy them.

use std::sync::OnceLock;

use base::Pblk;
use base::checksum::Reseed;
use buffer::{Buffer, Bytes, Copies, Hint, Seal};
use jbd2_format::needs_escape;

use super::log_writer::LogChecksums;
use super::{Client, pieces};

/// A block's bytes as they were when its transaction was sealed.
pub(super) struct Taken {
    pub(super) buffer: Buffer,
    pub(super) seal: Seal,
    /// It ends in the right checksum already.
    pub(super) has_sum: bool,
    /// It was made for the log when it was taken, and needs no escape: the log's checksum of it.
    pub(super) logged: Option<u32>,
}

/// A checksum that a block ends in, little-endian: CRC-32C by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndSum {
    /// The checksum.
    pub value: u32,
    /// What it began with.
    pub seed: u32,
    /// Bytes that it is of.
    pub len: usize,
}

/// A block of a transaction as it goes to the log and home.
pub(super) struct Image {
    pub(super) block: Pblk,
    pub(super) bytes: Bytes,
    /// Where it was in the cache.
    pub(super) hint: Hint,
    /// The cache has bytes of its own.
    pub(super) is_copy: bool,
    /// For the log: the same, but for the word that is escaped. Nothing without a log.
    pub(super) logged: Bytes,
    pub(super) is_escaped: bool,
    /// Of what is logged.
    pub(super) checksum: u32,
}

/// Blocks that are copied together.
const TOGETHER: usize = 16;

/// The blocks with their checksums, their own and the log's. `busy`: see [`pieces::map`].
pub(super) fn images(
    client: &dyn Client,
    taken: Vec<Taken>,
    log: Option<LogChecksums>,
    reseed: &OnceLock<Reseed>,
    busy: usize,
) -> Vec<Image> {
    pieces::map(taken, busy, |piece| {
        let mut images = Vec::with_capacity(piece.len());
        let (mut without, mut copies) = (Vec::with_capacity(TOGETHER), Copies::default());
        let mut piece = piece.into_iter();
        while !piece.as_slice().is_empty() {
            // Most are in no cache of the processor any more.
            let cold = piece.as_slice().iter().take(TOGETHER).filter(|taken| taken.logged.is_none());
            cold.for_each(|taken| buffer::ask_for_ends(&taken.buffer));
            for Taken { buffer, seal, has_sum, logged } in piece.by_ref().take(TOGETHER) {
                let (block, hint) = (buffer.block(), buffer.hint());
                if let Some(checksum) = logged {
                    let bytes = buffer.into_shared();
                    let logged = if log.is_some() { bytes.clone() } else { Bytes::default() };
                    images.push(Image {
                        block,
                        bytes,
                        hint,
                        is_copy: false,
                        logged,
                        is_escaped: false,
                        checksum,
                    });
                    continue;
                }
                let is_copy = client.has_checksum(seal);
                // Read once, for both checksums, and the copy written past the caches.
                if is_copy
                    && !needs_escape(&buffer)
                    && let Some(sum) = client.end_sum(seal, &buffer, has_sum)
                {
                    let checksum = log.map_or(0, |log| log.of_summed(&buffer, sum, reseed));
                    copies.push(buffer.len(), |copy| {
                        copy.put(&buffer[..buffer.len() - size_of_val(&sum.value)]);
                        copy.put(&sum.value.to_le_bytes());
                    });
                    without.push(images.len());
                    // Its bytes come below.
                    let (bytes, logged) = Default::default();
                    images.push(Image { block, bytes, hint, is_copy, logged, is_escaped: false, checksum });
                    continue;
                }
                let bytes = match is_copy {
                    // Who changes the block next need not copy it then: he has no time for that, and it is in the processor's
                    // cache here.
                    true => {
                        let mut copy = Bytes::copy_of(&buffer);
                        drop(buffer);
                        client.seal(block, seal, copy.make_mut());
                        copy
                    }
                    false => buffer.into_shared(),
                };
                let (escaped, checksum) = log.map_or((None, 0), |log| log.of(&bytes));
                let is_escaped = escaped.is_some();
                let logged = match log {
                    Some(_) => escaped.unwrap_or_else(|| bytes.clone()),
                    None => Bytes::default(),
                };
                images.push(Image { block, bytes, hint, is_copy, logged, is_escaped, checksum });
            }
            for (at, copy) in without.drain(..).zip(copies.finish()) {
                let image: &mut Image = &mut images[at];
                if log.is_some() {
                    image.logged = copy.clone();
                }
                image.bytes = copy;
            }
        }
        images
    })
}
