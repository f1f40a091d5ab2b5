//! The blocks of a transaction as they are written: with their own checksum and the log's.
//!
//! ```text
//! cache: | bytes, old checksum | --read once--> both checksums --copied--> | bytes, checksum |  log, home
//! ```
//!
//! A block with a checksum is copied for the log. The cache's bytes are then not shared, and the next change
//! needs no copy. A block with pending changes was already copied when it was taken; the cache shares that
//! copy.

use extant_base::Pblk;
use extant_buffer::{Bytes, Copies, Seal, Snapshot};
use extant_jbd2_format::needs_escape;

use super::checksums::{LogChecksums, Reseeds};
use super::{Client, pieces};

/// A block of a transaction: first as it was when the transaction was sealed, then as it goes to the log and
/// home.
pub(super) struct Image {
    pub(super) block: Pblk,
    pub(super) bytes: Bytes,
    pub(super) seal: Seal,
    /// The block already ends in the right checksum.
    pub(super) has_sum: bool,
    /// The block is written unchanged, with `checksum` in the log.
    pub(super) is_ready: bool,
    /// The bytes for the log, if there is one. Their reference count is raised early, while its cache line is
    /// present; it is evicted by the time of the write.
    pub(super) logged: Bytes,
    /// The checksum of `logged`.
    pub(super) checksum: u32,
    /// `logged` differs in the first word: the block begins like one of the journal's own.
    pub(super) is_escaped: bool,
}

impl Image {
    /// An image of a block as it was taken. If the snapshot has the checksum of the logged bytes, the image
    /// is ready.
    pub(super) fn new(snapshot: Snapshot, seal: Seal, has_log: bool) -> Self {
        let Snapshot { buffer, owner, has_sum, log_sum, .. } = snapshot;
        // A directory leaf may have become an index node since it joined.
        let seal = Seal { owner: owner.unwrap_or(seal.owner), ..seal };
        let block = buffer.block();
        let (is_ready, checksum) = (log_sum.is_some(), log_sum.unwrap_or(0));
        let bytes = buffer.into_shared();
        let logged = if is_ready && has_log { bytes.clone() } else { Bytes::default() };
        Self { block, bytes, seal, has_sum, is_ready, logged, checksum, is_escaped: false }
    }
}

/// Sorts blocks by number, the order in which the checkpoint writes them. If a block was taken twice, the
/// later image wins. On a damaged file system an inode table block may also belong to a directory: the later
/// image has the inode.
pub(super) fn in_order(mut parts: [Vec<Image>; 2]) -> Vec<Image> {
    let before = parts[0].len();
    let place = |at: u32| (at as usize).checked_sub(before).map_or((0, at as usize), |at| (1, at));
    // Images are large: only their indices are sorted.
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

/// Images prefetched while others are moved.
const SOON: usize = 8;

/// Blocks copied together.
const TOGETHER: usize = 16;

/// Prepares blocks for writing, with their own checksum and the log's. `busy`: see [`pieces::each`].
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
            // Most blocks have left the CPU caches.
            waiting.iter().for_each(|image: &&mut Image| extant_buffer::prefetch_ends(&image.bytes));
            waiting.retain_mut(|image| {
                image.is_ready = true;
                let is_copy = client.has_checksum(image.seal);
                let bytes = &image.bytes;
                // One read for both checksums; the copy bypasses the CPU caches.
                if is_copy
                    && !needs_escape(bytes)
                    && let Some(sum) = client.tail_checksum(image.seal, bytes, image.has_sum)
                {
                    image.checksum = log.map_or(0, |log| log.of_tail(bytes, sum, reseeds));
                    copies.push(bytes.len(), |copy| {
                        copy.put(&bytes[..bytes.len() - size_of_val(&sum.value)]);
                        copy.put(&sum.value.to_le_bytes());
                    });
                    return true;
                }
                if is_copy {
                    // With this copy the next change of the block needs none. The committer has more time for
                    // it than the operation, and the block is in the CPU's cache here.
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
            Image::new(Snapshot { buffer, owner, has_sum: false, log_sum: None, whole_sum: None }, seal, true)
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
