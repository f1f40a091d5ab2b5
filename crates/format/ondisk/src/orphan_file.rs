//! The orphan file: inodes to delete or truncate after a crash, one per slot.
//!
//! ```text
//! block:  | inode u32 * ((block size - 8) / 4), 0 = free slot | magic 0B10CA04 | checksum |
//! ```
//!
//! Owns the bytes of its blocks and its default size. Does **not** own: the choice of a slot, recovery, the
//! feature bits ORPHAN_FILE and ORPHAN_PRESENT.
//!
//! Source: kernel Documentation/filesystems/ext4/orphan.rst.

use extant_base::{BlockSize, Ino, Malformed, Pblk, checksum::crc32c};

const STRUCTURE: &str = "orphan file block";
const MAGIC: u32 = 0x0B10_CA04;
const TAIL_LEN: usize = 8;

/// Maximum number of blocks of an orphan file.
pub const MAX_BLOCKS: u64 = 512;

/// Number of orphan-file blocks that mke2fs allocates in a file system of `fs_blocks` blocks with clusters of
/// `blocks_per_cluster` blocks (1 without bigalloc).
#[must_use]
pub fn default_blocks(fs_blocks: u64, blocks_per_cluster: u32) -> u64 {
    let blocks = match fs_blocks {
        0..0x2_0000 => 32,
        0x2_0000..0x20_0000 => fs_blocks / 4096,
        _ => MAX_BLOCKS,
    };
    blocks.next_multiple_of(u64::from(blocks_per_cluster.max(1)))
}

/// Slots in one block.
#[must_use]
pub fn slots_per_block(block_size: BlockSize) -> usize {
    (block_size.len() - TAIL_LEN) / 4
}

/// Seed of an orphan file's checksums. This is its inode's seed: computed from the file system's seed, the
/// inode number and the generation.
#[must_use]
pub fn inode_seed(fs_seed: u32, orphan_file: Ino, generation: u32) -> u32 {
    crc32c(crc32c(fs_seed, &orphan_file.0.to_le_bytes()), &generation.to_le_bytes())
}

/// Checksum of a block: CRC-32C from the orphan file's inode seed over the **physical** block number (64
/// bits, little endian) and the slots. 0 for a block too short for a tail.
#[must_use]
pub fn checksum(inode_seed: u32, place: Pblk, block: &[u8]) -> u32 {
    let Some(slots) = block.len().checked_sub(TAIL_LEN) else { return 0 };
    crc32c(crc32c(inode_seed, &place.0.to_le_bytes()), &block[..slots])
}

/// One decoded block of an orphan file.
#[derive(Debug, Clone, Copy)]
pub struct OrphanBlock<'a> {
    block: &'a [u8],
    stored_checksum: u32,
}

impl<'a> OrphanBlock<'a> {
    /// Decodes a block. It does not check the checksum; see [`verify`](Self::verify).
    ///
    /// # Errors
    /// The length is not a block size, or the magic is another.
    pub fn decode(block: &'a [u8]) -> Result<Self, Malformed> {
        let size = BlockSize::from_bytes(block.len() as u64);
        Malformed::unless(size.is_some(), STRUCTURE, "must be one file-system block", block.len() as u64)?;
        let tail: [u8; TAIL_LEN] = block.last_chunk().copied().unwrap_or_default();
        let [m0, m1, m2, m3, c0, c1, c2, c3] = tail;
        let magic = u32::from_le_bytes([m0, m1, m2, m3]);
        Malformed::unless(magic == MAGIC, STRUCTURE, "magic must be 0x0B10CA04", magic)?;
        Ok(Self { block, stored_checksum: u32::from_le_bytes([c0, c1, c2, c3]) })
    }

    /// Whether the stored checksum is right. For file systems with metadata_csum only; without it the
    /// checksum is 0.
    #[must_use]
    pub fn verify(&self, inode_seed: u32, place: Pblk) -> bool {
        self.stored_checksum == checksum(inode_seed, place, self.block)
    }

    /// The stored checksum.
    #[must_use]
    pub fn stored_checksum(&self) -> u32 {
        self.stored_checksum
    }

    /// The used slots: the slot's number within the block, and the inode.
    pub fn orphans(&self) -> impl Iterator<Item = (usize, Ino)> + 'a {
        let (slots, _) = self.block[..self.block.len() - TAIL_LEN].as_chunks::<4>();
        slots
            .iter()
            .enumerate()
            .map(|(slot, bytes)| (slot, Ino(u32::from_le_bytes(*bytes))))
            .filter(|(_, ino)| *ino != Ino(0))
    }
}

/// Encodes a block with `orphans` in its first slots and a checksum of 0; see [`seal`].
///
/// # Panics
/// There are more orphans than [`slots_per_block`].
#[must_use]
pub fn encode(block_size: BlockSize, orphans: &[Ino]) -> Vec<u8> {
    assert!(orphans.len() <= slots_per_block(block_size), "{} orphans in one block", orphans.len());
    let mut block = vec![0; block_size.len()];
    for (slot, ino) in block.chunks_exact_mut(4).zip(orphans) {
        slot.copy_from_slice(&ino.0.to_le_bytes());
    }
    let magic_at = block.len() - TAIL_LEN;
    block[magic_at..magic_at + 4].copy_from_slice(&MAGIC.to_le_bytes());
    block
}

/// Stores the checksum of a block whose address is `place`. For file systems with metadata_csum only.
pub fn seal(inode_seed: u32, place: Pblk, block: &mut [u8]) {
    let checksum = checksum(inode_seed, place, block);
    if let Some(field) = block.last_chunk_mut::<4>() {
        *field = checksum.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mmp::real_image::{RealImage, le};

    #[test]
    fn the_file_of_mke2fs_is_rewritten_byte_for_byte() {
        for (bytes, options) in [
            (32 << 20, vec!["-b", "1024"]),
            (64 << 20, vec!["-b", "4096"]),
            (3 << 30, vec!["-b", "4096"]),
            (9 << 30, vec!["-b", "4096"]),
            (1 << 30, vec!["-b", "4096", "-C", "65536", "-O", "bigalloc"]),
            (64 << 20, vec!["-b", "4096", "-O", "^metadata_csum"]),
        ] {
            let fixed = ["-O", "orphan_file", "-E", "lazy_itable_init=1,lazy_journal_init=1"];
            let image = RealImage::mke2fs(bytes, &[&fixed, &options[..]].concat());
            let block_size = BlockSize::from_bytes(options[1].parse().unwrap()).unwrap();
            let ino = Ino(le(&image.read(1024 + 0x280, 4), 0, 4) as u32);
            let places = image.blocks(&format!("<{ino}>"));
            let per_cluster = if options.contains(&"bigalloc") { 16 } else { 1 };
            assert_eq!(
                places.len() as u64,
                default_blocks(bytes / block_size.bytes(), per_cluster),
                "{options:?}"
            );

            let seed = inode_seed(image.fs_seed(), ino, 0);
            let checksums = !options.contains(&"^metadata_csum");
            for place in [places[0], places[places.len() - 1]] {
                let found = image.read(place * block_size.bytes(), block_size.len());
                let block = OrphanBlock::decode(&found).unwrap();
                assert_eq!(block.orphans().count(), 0);
                assert_eq!(block.verify(seed, Pblk(place)), checksums);
                let mut again = encode(block_size, &[]);
                if checksums {
                    seal(seed, Pblk(place), &mut again);
                }
                assert!(again == found, "{options:?}, block {place}");
            }
        }
    }

    #[test]
    fn the_size_follows_the_file_system_and_the_cluster() {
        assert_eq!(default_blocks(131_071, 1), 32);
        assert_eq!(default_blocks(131_072, 1), 32);
        assert_eq!(default_blocks(200_000, 1), 48);
        assert_eq!(default_blocks(200_000, 32), 64);
        assert_eq!(default_blocks(2 << 20, 1), 512);
        assert_eq!(default_blocks(u64::MAX, 16), 512);
    }

    #[test]
    fn the_checksum_knows_its_place() {
        let mut block = encode(BlockSize::MIN, &[Ino(12), Ino(13)]);
        seal(99, Pblk(1000), &mut block);
        let read = OrphanBlock::decode(&block).unwrap();
        assert_eq!(read.orphans().collect::<Vec<_>>(), [(0, Ino(12)), (1, Ino(13))]);
        assert!(read.verify(99, Pblk(1000)));
        assert!(!read.verify(99, Pblk(1001)) && !read.verify(98, Pblk(1000)));
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 1024),
            cut in 0usize..1100,
        ) {
            bytes[1016..1020].copy_from_slice(&MAGIC.to_le_bytes());
            let read = OrphanBlock::decode(&bytes).unwrap();
            prop_assert!(read.orphans().count() <= slots_per_block(BlockSize::MIN));
            let _ = (read.verify(1, Pblk(u64::MAX)), OrphanBlock::decode(&bytes[..cut.min(1024)]));
            seal(1, Pblk(2), &mut bytes[..cut.min(1024)]);
        }
    }
}
