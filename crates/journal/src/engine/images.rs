//! The blocks of a transaction as they leave: with their checksums, their own and the log's.
//!
//! ```text
//! cache: | bytes, the old checksum |  --read once-->  both checksums  --copied-->  | bytes, checksum |  log, and later home
//! ```
//!
//! A block that has a checksum leaves as a copy: the cache's bytes stay the cache's, and who changes them next need not copy them.

use std::sync::OnceLock;

use base::Pblk;
use buffer::{Buffer, Bytes, Hint, Seal};
use jbd2_format::needs_escape;

use super::log_writer::LogChecksums;
use super::{Client, pieces};

/// A block's bytes as they were when its transaction was sealed.
pub(super) struct Taken {
    pub(super) buffer: Buffer,
    pub(super) seal: Seal,
    /// It ends in the right checksum already.
    pub(super) has_sum: bool,
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
    busy: usize,
) -> Vec<Image> {
    let reseed = OnceLock::new();
    pieces::map(taken, busy, |piece| {
        let mut images = Vec::with_capacity(piece.len());
        let (mut sources, mut copies) = (Vec::with_capacity(TOGETHER), Vec::with_capacity(TOGETHER));
        let mut piece = piece.into_iter();
        while !piece.as_slice().is_empty() {
            let first = images.len();
            // Most are in no cache of the processor any more.
            piece.as_slice().iter().take(TOGETHER).for_each(|taken| buffer::ask_for_ends(&taken.buffer));
            for Taken { buffer, seal, has_sum } in piece.by_ref().take(TOGETHER) {
                let (block, hint) = (buffer.block(), buffer.hint());
                let is_copy = client.has_checksum(seal);
                // Most blocks of most transactions: read once, for both checksums, and the copy written past the caches.
                if is_copy
                    && !needs_escape(&buffer)
                    && let Some(sum) = client.end_sum(seal, &buffer, has_sum)
                {
                    let checksum = log.map_or(0, |log| log.of_summed(&buffer, sum, &reseed));
                    sources.push((buffer.into_shared(), sum.value.to_le_bytes()));
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
            Bytes::copies_with_ends(&sources, &mut copies);
            sources.clear();
            let without = images[first..].iter_mut().filter(|image| image.bytes.is_empty());
            for (image, copy) in without.zip(copies.drain(..)) {
                if log.is_some() {
                    image.logged = copy.clone();
                }
                image.bytes = copy;
            }
        }
        images
    })
}
