//! A group's bitmap: one bit per cluster or inode of a block group, in one file-system block.
//!
//! ```text
//! bit 0 is the lowest bit of byte 0           | used bits ... | padding: all ones to the end of the block |
//! ```
//!
//! Owns: setting, testing and counting ranges of bits, runs of free bits, the padding, the two checksums.
//! Does **not** own: the meaning of a bit (block, cluster, inode), the descriptor that stores the checksum.
//!
//! Invariants
//! 1. Ranges are filled and searched by whole bytes and 64-bit words, never bit by bit.
//! 2. No range operation changes bits from [`len`](GroupBitmap::len) to the end of the block, and no search
//!    finds them free.
//!
//! Source: kernel Documentation/filesystems/ext4/bitmaps.rst, checksums.rst. The latter says that the
//! checksum includes the group number; it does not.

use std::ops::Range;

use extant_base::{BlockSize, Malformed, checksum::crc32c};

/// Checksum of a group's block bitmap: CRC-32C from the file system's seed over `clusters_per_group` bits.
///
/// The number of bits is the same in every group, including a shorter last one. Descriptors of 32 bytes store
/// only the low half.
#[must_use]
pub fn block_bitmap_checksum(fs_seed: u32, bitmap: &[u8], clusters_per_group: u32) -> u32 {
    checksum(fs_seed, bitmap, clusters_per_group)
}

/// Checksum of a group's inode bitmap: CRC-32C from the file system's seed over `inodes_per_group` bits.
///
/// mke2fs writes 0 in groups that are INODE_UNINIT, so a reader verifies only the other groups.
#[must_use]
pub fn inode_bitmap_checksum(fs_seed: u32, bitmap: &[u8], inodes_per_group: u32) -> u32 {
    checksum(fs_seed, bitmap, inodes_per_group)
}

fn checksum(fs_seed: u32, bitmap: &[u8], bits: u32) -> u32 {
    crc32c(fs_seed, &bitmap[..bitmap.len().min(bits as usize / 8)])
}

/// The bitmap of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupBitmap {
    bytes: Vec<u8>,
    bits: u32,
}

impl GroupBitmap {
    /// Creates a bitmap of one block: the first `bits` bits are clear, the padding is set.
    ///
    /// # Panics
    /// The block has fewer than `bits` bits.
    #[must_use]
    pub fn new(block_size: BlockSize, bits: u32) -> Self {
        let mut bitmap = Self { bytes: vec![0; block_size.len()], bits };
        assert!(bits as usize <= 8 * bitmap.bytes.len(), "{bits} bits do not fit a block of {block_size}");
        let all = 8 * block_size.len() as u32;
        bitmap.fill(bits..all, true);
        bitmap
    }

    /// The bitmap read from a block with `bits` used bits. The padding stays as read; see
    /// [`padding_is_set`](Self::padding_is_set).
    ///
    /// # Errors
    /// The block has fewer than `bits` bits, or is larger than the largest block.
    pub fn from_bytes(bytes: Vec<u8>, bits: u32) -> Result<Self, Malformed> {
        const S: &str = "group bitmap";
        Malformed::unless(
            bytes.len() <= BlockSize::MAX.len(),
            S,
            "must have at most one block",
            bytes.len() as u64,
        )?;
        Malformed::unless(u64::from(bits) <= 8 * bytes.len() as u64, S, "the bits must fit the block", bits)?;
        Ok(Self { bytes, bits })
    }

    /// The whole block, including the padding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole block, including the padding.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of bits, without the padding.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bits
    }

    /// Whether the bitmap has no bits besides the padding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Whether this bit is set. Bits past the end count as set.
    #[must_use]
    pub fn test(&self, bit: u32) -> bool {
        bit >= self.bits || self.bytes[bit as usize / 8] & (1 << (bit % 8)) != 0
    }

    /// Marks a range as used.
    ///
    /// # Panics
    /// The range ends past [`len`](Self::len).
    pub fn set(&mut self, range: Range<u32>) {
        assert!(range.end <= self.bits, "{range:?} of {} bits", self.bits);
        self.fill(range, true);
    }

    /// Marks a range as free.
    ///
    /// # Panics
    /// The range ends past [`len`](Self::len).
    pub fn clear(&mut self, range: Range<u32>) {
        assert!(range.end <= self.bits, "{range:?} of {} bits", self.bits);
        self.fill(range, false);
    }

    /// Whether all bits of the range are set. True for an empty range; bits past the end count as set.
    #[must_use]
    pub fn all_set(&self, range: Range<u32>) -> bool {
        self.next(range.start, range.end, false).is_none()
    }

    /// Whether all bits of the range are clear. True for an empty range; bits past the end count as set.
    #[must_use]
    pub fn all_clear(&self, range: Range<u32>) -> bool {
        range.is_empty() || (range.end <= self.bits && self.next(range.start, range.end, true).is_none())
    }

    /// Number of set bits, without the padding.
    #[must_use]
    pub fn count_set(&self) -> u32 {
        let (whole, rest) = self.bytes.split_at(self.bits as usize / 8);
        let (words, tail) = whole.as_chunks::<8>();
        let words: u32 = words.iter().map(|word| u64::from_le_bytes(*word).count_ones()).sum();
        let tail: u32 = tail.iter().map(|byte| byte.count_ones()).sum();
        let last = rest.first().map_or(0, |byte| (byte & ((1u8 << (self.bits % 8)) - 1)).count_ones());
        words + tail + last
    }

    /// Number of clear bits, without the padding.
    #[must_use]
    pub fn count_clear(&self) -> u32 {
        self.bits - self.count_set()
    }

    /// The first clear bit at or after `from`.
    #[must_use]
    pub fn next_clear(&self, from: u32) -> Option<u32> {
        self.next(from, self.bits, false)
    }

    /// The first set bit at or after `from`, without the padding.
    #[must_use]
    pub fn next_set(&self, from: u32) -> Option<u32> {
        self.next(from, self.bits, true)
    }

    /// The maximal runs of clear bits at or after `from`, in order.
    pub fn free_runs(&self, from: u32) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let start = self.next_clear(at)?;
            at = self.next_set(start).unwrap_or(self.bits);
            Some(start..at)
        })
    }

    /// Whether all padding bits are set, as all tools write them. No checksum covers them.
    #[must_use]
    pub fn padding_is_set(&self) -> bool {
        let all = 8 * self.bytes.len() as u32;
        self.search(self.bits, all, false).is_none()
    }

    /// The first bit equal to `set` in `from..end`; `end` is limited to the used bits.
    fn next(&self, from: u32, end: u32, set: bool) -> Option<u32> {
        self.search(from, end.min(self.bits), set)
    }

    /// The first bit equal to `set` in `from..end`; `end` is within the block.
    fn search(&self, from: u32, end: u32, set: bool) -> Option<u32> {
        let mut at = from;
        while at < end {
            // The word that starts at the byte of `at`, with a one for each wanted bit. Bytes past the block
            // hold no wanted bit.
            let start = at as usize / 8;
            let mut word = [if set { 0 } else { 0xFF }; 8];
            let have = (self.bytes.len() - start).min(8);
            word[..have].copy_from_slice(&self.bytes[start..start + have]);
            let word = u64::from_le_bytes(word);
            let wanted = (if set { word } else { !word }) >> (at % 8);
            if wanted != 0 {
                let found = at + wanted.trailing_zeros();
                return (found < end).then_some(found);
            }
            at += 64 - at % 8;
        }
        None
    }

    fn fill(&mut self, range: Range<u32>, set: bool) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start as usize / 8, (range.end - 1) as usize / 8);
        let head = 0xFFu8 << (range.start % 8);
        let tail = 0xFFu8 >> (7 - (range.end - 1) % 8);
        let mut apply = |at: usize, mask: u8| {
            let byte = &mut self.bytes[at];
            *byte = if set { *byte | mask } else { *byte & !mask };
        };
        if first == last {
            apply(first, head & tail);
            return;
        }
        apply(first, head);
        apply(last, tail);
        self.bytes[first + 1..last].fill(if set { 0xFF } else { 0 });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mmp::real_image::{RealImage, le};

    #[test]
    fn padding_is_ones_and_stays_out_of_everything() {
        let mut bitmap = GroupBitmap::new(BlockSize::MIN, 8003);
        assert!(bitmap.padding_is_set());
        assert_eq!((bitmap.count_set(), bitmap.count_clear()), (0, 8003));
        assert!(bitmap.free_runs(0).eq(std::iter::once(0..8003)));
        bitmap.set(0..8003);
        assert_eq!(bitmap.next_clear(0), None);
        assert!(bitmap.as_bytes().iter().all(|byte| *byte == 0xFF));
        bitmap.clear(8000..8003);
        assert_eq!(bitmap.as_bytes()[1000], 0b1111_1000);
        assert!(bitmap.test(8003) && bitmap.test(u32::MAX));
        assert!(bitmap.all_set(8003..9000) && !bitmap.all_clear(8002..8004));
    }

    #[test]
    fn a_full_block_has_no_padding() {
        let bitmap = GroupBitmap::new(BlockSize::KIB4, 32_768);
        assert_eq!((bitmap.count_clear(), bitmap.padding_is_set()), (32_768, true));
        assert!(GroupBitmap::from_bytes(vec![0; 1024], 8193).is_err());
        assert!(GroupBitmap::from_bytes(Vec::new(), 0).unwrap().is_empty());
    }

    #[test]
    fn checksums_padding_and_counts_are_those_of_mke2fs() {
        // 20,000 blocks of 1 KiB: two full groups and a short one; 64-byte descriptors.
        let image = RealImage::mke2fs(20_000 << 10, &["-b", "1024", "-O", "64bit,metadata_csum,^flex_bg"]);
        let sb = image.read(1024, 1024);
        let (clusters_per_group, inodes_per_group) = (le(&sb, 0x24, 4) as u32, le(&sb, 0x28, 4) as u32);
        for group in 0..3u64 {
            let desc = image.read(2048 + 64 * group, 64);
            let bits = if group == 2 { 20_000 - 1 - 2 * 8192 } else { 8192 };
            let (uninit, free) = (desc[0x12], le(&desc, 0x0C, 2));
            if uninit & 2 == 0 {
                let block = GroupBitmap::from_bytes(image.read(le(&desc, 0, 4) << 10, 1024), bits).unwrap();
                let stored = le(&desc, 0x18, 2) | le(&desc, 0x38, 2) << 16;
                let computed = block_bitmap_checksum(image.fs_seed(), block.as_bytes(), clusters_per_group);
                assert_eq!(u64::from(computed), stored, "group {group}");
                assert_eq!(u64::from(block.count_clear()), free);
                assert!(block.padding_is_set());
            }
            if uninit & 1 == 0 {
                let bytes = image.read(le(&desc, 4, 4) << 10, 1024);
                let inodes = GroupBitmap::from_bytes(bytes, inodes_per_group).unwrap();
                let stored = le(&desc, 0x1A, 2) | le(&desc, 0x3A, 2) << 16;
                let computed = inode_bitmap_checksum(image.fs_seed(), inodes.as_bytes(), inodes_per_group);
                assert_eq!(u64::from(computed), stored, "group {group}");
                assert_eq!(u64::from(inodes.count_clear()), le(&desc, 0x0E, 2));
                assert!(inodes.padding_is_set());
            }
        }
        assert_eq!(image.read(2048, 64)[0x12] & 3, 0, "group 0 was looked at");
    }

    proptest! {
        /// Compares with a plain vector of booleans.
        #[test]
        fn ranges_do_what_single_bits_would(
            bits in 1u32..8192,
            edits in prop::collection::vec((any::<u16>(), any::<u16>(), any::<bool>()), 0..30),
            from in 0u32..8300,
        ) {
            let mut bitmap = GroupBitmap::new(BlockSize::MIN, bits);
            let mut model = vec![false; bits as usize];
            for (a, b, set) in edits {
                let (a, b) = (u32::from(a) % (bits + 1), u32::from(b) % (bits + 1));
                let range = a.min(b)..a.max(b);
                model[range.start as usize..range.end as usize].fill(set);
                if set { bitmap.set(range.clone()) } else { bitmap.clear(range.clone()) }
                let done = if set { bitmap.all_set(range) } else { bitmap.all_clear(range) };
                prop_assert!(done);
            }
            for bit in 0..bits {
                prop_assert_eq!(bitmap.test(bit), model[bit as usize]);
            }
            prop_assert_eq!(bitmap.count_set() as usize, model.iter().filter(|set| **set).count());
            prop_assert!(bitmap.padding_is_set());
            let mut free: Vec<Range<u32>> = Vec::new();
            for bit in (from..bits).filter(|bit| !model[*bit as usize]) {
                match free.last_mut() {
                    Some(run) if run.end == bit => run.end += 1,
                    _ => free.push(bit..bit + 1),
                }
            }
            prop_assert_eq!(bitmap.free_runs(from).collect::<Vec<_>>(), free);
        }

        #[test]
        fn any_bytes_can_be_looked_at(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            bits in 0u32..2600,
            range in any::<(u32, u32)>(),
        ) {
            let _ = block_bitmap_checksum(1, &bytes, bits);
            if let Ok(bitmap) = GroupBitmap::from_bytes(bytes, bits) {
                prop_assert_eq!(bitmap.free_runs(0).map(|run| run.end - run.start).sum::<u32>(), bitmap.count_clear());
                let _ = (bitmap.all_set(range.0..range.1), bitmap.all_clear(range.0..range.1));
                let _ = (bitmap.padding_is_set(), bitmap.next_set(range.0), bitmap.test(range.0));
            }
        }
    }
}
