//! The blocks of a transaction as they leave: with their checksums, their own and the log's.
//!
//! ```text
//! cache: | bytes, the old checksum |  --read once-->  both checksums  --copied-->  | bytes, checksum |  log, and later home
//! ```
//!
//! A block that has a checksum leaves as a copy: the cache's bytes stay the cache's, and who changes them next need not copy them. But one
//! whose changes waited is a copy already, which is the cache's too.

use std::sync::OnceLock;

use base::Pblk;
use base::checksum::Reseed;
use buffer::{Buffer, Bytes, Copies, Hint, Seal};
use jbd2_format::needs_escape;

use super::log_writer::LogChecksums;
use super::{Client, pieces};

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

/// A block of a transaction: as it was when that was sealed, then as it goes to the log and home.
pub(super) struct Image {
    pub(super) block: Pblk,
    pub(super) bytes: Bytes,
    /// Where it was in the cache.
    pub(super) hint: Hint,
    pub(super) seal: Seal,
    /// The cache has bytes of its own.
    pub(super) is_copy: bool,
    /// It ends in the right checksum already.
    pub(super) has_sum: bool,
    /// It leaves as it is, with this checksum in the log.
    pub(super) is_ready: bool,
    /// Of what is logged.
    pub(super) checksum: u32,
    /// For the log, if it begins like a block of the journal: the same, but for that word.
    pub(super) escaped: Option<Bytes>,
}

impl Image {
    /// A block as it was. `checksum`: of what is logged, if that is known: then it is as it leaves.
    pub(super) fn new(buffer: Buffer, seal: Seal, has_sum: bool, checksum: Option<u32>) -> Self {
        let (block, hint) = (buffer.block(), buffer.hint());
        let (is_ready, checksum) = (checksum.is_some(), checksum.unwrap_or(0));
        let (bytes, is_copy, escaped) = (buffer.into_shared(), false, None);
        Self { block, bytes, hint, seal, is_copy, has_sum, is_ready, checksum, escaped }
    }
}

/// Blocks that are copied together.
const TOGETHER: usize = 16;

/// Makes the blocks ready to leave, with their checksums, their own and the log's. `busy`: see [`pieces::each`].
pub(super) fn make_ready(
    client: &dyn Client,
    images: &mut [Image],
    log: Option<LogChecksums>,
    reseed: &OnceLock<Reseed>,
    busy: usize,
) {
    pieces::each(images, busy, |piece| {
        let (mut waiting, mut copies) = (Vec::with_capacity(TOGETHER), Copies::default());
        let mut rest = piece.iter_mut().filter(|image| !image.is_ready);
        loop {
            waiting.extend(rest.by_ref().take(TOGETHER));
            if waiting.is_empty() {
                return;
            }
            // Most are in no cache of the processor any more.
            waiting.iter().for_each(|image: &&mut Image| buffer::ask_for_ends(&image.bytes));
            waiting.retain_mut(|image| {
                image.is_ready = true;
                image.is_copy = client.has_checksum(image.seal);
                let bytes = &image.bytes;
                // Read once, for both checksums, and the copy written past the caches.
                if image.is_copy
                    && !needs_escape(bytes)
                    && let Some(sum) = client.end_sum(image.seal, bytes, image.has_sum)
                {
                    image.checksum = log.map_or(0, |log| log.of_summed(bytes, sum, reseed));
                    copies.push(bytes.len(), |copy| {
                        copy.put(&bytes[..bytes.len() - size_of_val(&sum.value)]);
                        copy.put(&sum.value.to_le_bytes());
                    });
                    return true;
                }
                if image.is_copy {
                    // Who changes the block next need not copy it then: he has no time for that, and it is in the processor's
                    // cache here.
                    image.bytes = Bytes::copy_of(&image.bytes);
                    client.seal(image.block, image.seal, image.bytes.make_mut());
                }
                if let Some(log) = log {
                    (image.escaped, image.checksum) = log.of(&image.bytes);
                }
                false
            });
            waiting.drain(..).zip(copies.finish()).for_each(|(image, copy)| image.bytes = copy);
        }
    });
}
