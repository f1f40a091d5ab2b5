//! The blocks of a transaction as they leave: with their checksums, their own and the log's.
//!
//! ```text
//! cache: | bytes, the old checksum |  --read once-->  both checksums  --copied-->  | bytes, checksum |  log, and later home
//! ```
//!
//! A block with a checksum goes to the log as a copy, so the cache keeps its bytes unshared and the next
//! change need not copy them. A block with pending changes is a copy already, which the cache shares.

use extant_base::Pblk;
use extant_buffer::{Bytes, Copies, Seal, Snapshot};
use extant_jbd2_format::needs_escape;

use super::log_writer::{LogChecksums, Reseeds};
use super::{Client, pieces};

/// A checksum that a block ends in, little-endian: CRC-32C by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailChecksum {
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
    pub(super) seal: Seal,
    /// It ends in the right checksum already.
    pub(super) has_sum: bool,
    /// It leaves as it is, with this checksum in the log.
    pub(super) is_ready: bool,
    /// What the log gets, if there is one: held from where the bytes' count was at hand, since that is far
    /// away when it is written.
    pub(super) logged: Bytes,
    /// Of that.
    pub(super) checksum: u32,
    /// It is the same but for the first word: the block begins like one of the journal's own.
    pub(super) is_escaped: bool,
}

impl Image {
    /// A block without a later change. The noted checksum is that of the logged bytes, so it goes out as it
    /// is.
    pub(super) fn new(snapshot: Snapshot, seal: Seal, has_log: bool) -> Self {
        let Snapshot { buffer, owner, has_sum, told, .. } = snapshot;
        // A leaf of a directory may have become an index node since it joined.
        let seal = Seal { owner: owner.unwrap_or(seal.owner), ..seal };
        let block = buffer.block();
        let (is_ready, checksum) = (told.is_some(), told.unwrap_or(0));
        let bytes = buffer.into_shared();
        let logged = if is_ready && has_log { bytes.clone() } else { Bytes::default() };
        Self { block, bytes, seal, has_sum, is_ready, logged, checksum, is_escaped: false }
    }
}

/// Blocks in the order of their places, which is how the checkpoint writes them, each once: of one that was
/// taken twice the later. On a damaged file system an inode's block may be a directory's, too: the later one
/// has the inode.
pub(super) fn in_order(mut parts: [Vec<Image>; 2]) -> Vec<Image> {
    let before = parts[0].len();
    let place = |at: u32| (at as usize).checked_sub(before).map_or((0, at as usize), |at| (1, at));
    // Images are large: only their numbers are sorted.
    let mut order: Vec<(Pblk, u32)> = parts.iter().flatten().map(|image| image.block).zip(0..).collect();
    order.sort_unstable();
    let mut sorted = Vec::with_capacity(order.len());
    for (n, &(block, at)) in order.iter().enumerate() {
        if let Some((_, soon)) = order.get(n + SOON) {
            let (part, at) = place(*soon);
            extant_buffer::prefetch_start(&parts[part][at]);
        }
        if order.get(n + 1).is_some_and(|(next, _)| *next == block) {
            continue;
        }
        let (part, at) = place(at);
        let image = &mut parts[part][at];
        let (bytes, logged) = (std::mem::take(&mut image.bytes), std::mem::take(&mut image.logged));
        sorted.push(Image { bytes, logged, ..*image });
    }
    sorted
}

/// Images that are prefetched while others are copied.
const SOON: usize = 8;

/// Blocks that are copied together.
const TOGETHER: usize = 16;

/// Makes the blocks ready to leave, with their checksums, their own and the log's. `busy`: see
/// [`pieces::each`].
pub(super) fn make_ready(
    client: &dyn Client,
    images: &mut [Image],
    log: Option<LogChecksums>,
    reseeds: &Reseeds,
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
            // Most are in no CPU cache any more.
            waiting.iter().for_each(|image: &&mut Image| extant_buffer::prefetch_ends(&image.bytes));
            waiting.retain_mut(|image| {
                image.is_ready = true;
                let is_copy = client.has_checksum(image.seal);
                let bytes = &image.bytes;
                // Read once, for both checksums, and the copy written past the caches.
                if is_copy
                    && !needs_escape(bytes)
                    && let Some(sum) = client.tail_checksum(image.seal, bytes, image.has_sum)
                {
                    image.checksum = log.map_or(0, |log| log.of_summed(bytes, sum, reseeds));
                    copies.push(bytes.len(), |copy| {
                        copy.put(&bytes[..bytes.len() - size_of_val(&sum.value)]);
                        copy.put(&sum.value.to_le_bytes());
                    });
                    return true;
                }
                if is_copy {
                    // The next writer need not copy the block then: here it is in the CPU cache already.
                    image.bytes = Bytes::copy_of(&image.bytes);
                    client.seal(image.block, image.seal, image.bytes.make_mut());
                }
                if let Some(log) = log {
                    let (escaped, checksum) = log.of(&image.bytes);
                    (image.is_escaped, image.checksum) = (escaped.is_some(), checksum);
                    image.logged = escaped.unwrap_or_else(|| image.bytes.clone());
                }
                false
            });
            for (image, copy) in waiting.drain(..).zip(copies.finish()) {
                if log.is_some() {
                    image.logged = copy.clone();
                }
                image.bytes = copy;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use extant_base::BlockSize;
    use extant_buffer::{Buffers, Kind, Owner};
    use extant_device::MemDevice;
    use extant_memory::Budget;

    use super::*;

    #[test]
    fn blocks_are_in_order_and_each_is_there_once_the_later_of_two() {
        let device = std::sync::Arc::new(MemDevice::new(1 << 20));
        let buffers = Buffers::new(device, BlockSize::KIB4, 256, &Budget::new(1 << 20));
        let seal = Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: None };
        let image = |block: u64, byte: u8| {
            buffers
                .change(Pblk(block), seal.owner, extant_base::Tid(1), &mut |bytes| bytes[0] = byte)
                .unwrap();
            let (buffer, owner) = buffers.snapshot(Pblk(block)).unwrap();
            Image::new(Snapshot { buffer, owner, has_sum: false, told: None, whole_sum: None }, seal, true)
        };
        let first: Vec<Image> = (0..100).map(|n| image(n * 37 % 101, 1)).collect();
        let values = vec![image(50, 2), image(7, 2), image(200, 2), image(7, 3)];
        let sorted = in_order([first, values]);
        assert!(sorted.is_sorted_by(|before, image| before.block < image.block));
        let bytes =
            |block: u64| sorted.iter().find(|image| image.block.0 == block).map(|image| image.bytes[0]);
        assert_eq!(
            (sorted.len(), bytes(50), bytes(7), bytes(200), bytes(3)),
            (101, Some(2), Some(3), Some(2), Some(1))
        );
        assert!(in_order([Vec::new(), Vec::new()]).is_empty());
    }
}
