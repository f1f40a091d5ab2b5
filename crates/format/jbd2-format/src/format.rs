//! The layout and the checksums of this journal's blocks: a small value derived from the superblock's
//! features.
//!
//! ```text
//! tag, CSUM_V3            16 bytes  block_lo flags32 block_hi csum32
//! tag, CSUM_V2 + 64BIT    14 bytes  block_lo csum16 flags16 block_hi unused16
//! tag, CSUM_V2            10 bytes  block_lo csum16 flags16 unused16
//! tag, 64BIT              12 bytes  block_lo csum16 flags16 block_hi
//! tag                      8 bytes  block_lo csum16 flags16
//! tail, CSUM_V2/V3         4 bytes  csum32, at the end of descriptor and revoke blocks
//! ```
//!
//! Source: the kernel's own sizes; those in Documentation/filesystems/ext4/journal.rst are wrong.

use extant_base::{BlockSize, Malformed, checksum::crc32c};

use crate::{
    bytes::{be32, put},
    features::Features,
    header::{Header, LogTid},
    superblock::Superblock,
};

/// The checksums in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checksums {
    /// None.
    None,
    /// A CRC-32 of the whole transaction in its commit block.
    V1,
    /// CRC-32C of every block; tags keep 16 bits of it.
    V2,
    /// CRC-32C of every block.
    V3,
}

/// The layout of log blocks, from the superblock's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogFormat {
    /// Size of a journal block.
    pub block_size: BlockSize,
    /// The checksums in the log.
    pub checksums: Checksums,
    /// 64BIT: block numbers have 64 bits.
    pub wide: bool,
    /// Seed of all version 2 and 3 checksums: CRC-32C (from all ones) of the journal's UUID.
    pub seed: u32,
}

impl LogFormat {
    /// The format that `sb` describes.
    ///
    /// # Errors
    /// Any violation that [`Superblock::check`] finds.
    pub fn of(sb: &Superblock) -> Result<Self, Malformed> {
        sb.check()?;
        let block_size = BlockSize::from_bytes(u64::from(sb.block_size)).unwrap_or(BlockSize::KIB4); // checked above
        let features = sb.active_features();
        let checksums = if features.has_incompat(Features::CSUM_V3) {
            Checksums::V3
        } else if features.has_incompat(Features::CSUM_V2) {
            Checksums::V2
        } else if features.has_compat(Features::CHECKSUM) {
            Checksums::V1
        } else {
            Checksums::None
        };
        let wide = features.has_incompat(Features::BIT64);
        Ok(Self { block_size, checksums, wide, seed: crc32c(!0, &sb.uuid) })
    }

    /// Whether every block has a CRC-32C (version 2 or 3).
    #[must_use]
    pub fn has_block_checksums(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// Bytes of one tag, without the UUID after the first.
    #[must_use]
    pub fn tag_len(&self) -> usize {
        match (self.checksums, self.wide) {
            (Checksums::V3, _) => 16,
            (Checksums::V2, true) => 14,
            (Checksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Bytes of the checksum at the end of descriptor and revoke blocks: 4 or 0.
    #[must_use]
    pub fn tail_len(&self) -> usize {
        if self.has_block_checksums() { 4 } else { 0 }
    }

    /// Bytes of one revoke record: 4 or 8.
    #[must_use]
    pub fn revoke_record_len(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Tags that fit into one descriptor block, with the UUID after the first.
    ///
    /// jbd2's writer stops one or two tags earlier (when a tag *and a UUID* no longer fit). Readers,
    /// including the kernel, accept as many as fit, and debugfs writes as many.
    #[must_use]
    pub fn tags_per_descriptor(&self) -> usize {
        (self.block_size.len() - Header::LEN - 16 - self.tail_len()) / self.tag_len()
    }

    /// Records that fit into one revoke block.
    #[must_use]
    pub fn revokes_per_block(&self) -> usize {
        (self.block_size.len() - Header::REVOKE_LEN - self.tail_len()) / self.revoke_record_len()
    }

    /// The checksum of a block for its tag: CRC-32C from the seed over the big-endian transaction ID and the
    /// block as logged (escaped). All 32 bits; a version 2 tag keeps the low 16. 0 if tags have no checksum.
    #[must_use]
    pub fn tag_checksum(&self, tid: LogTid, logged: &[u8]) -> u32 {
        self.tag_seed(tid).map_or(0, |seed| crc32c(seed, logged))
    }

    /// Seed of the block checksums of a transaction; `None` if tags have no checksum.
    #[must_use]
    pub fn tag_seed(&self, tid: LogTid) -> Option<u32> {
        self.has_block_checksums().then(|| crc32c(self.seed, &tid.0.to_be_bytes()))
    }

    /// Writes the checksum of a descriptor or revoke block into its last four bytes. Does nothing without
    /// versions 2 and 3.
    pub fn seal_tail(&self, block: &mut [u8]) {
        if let (true, Some(at)) = (self.has_block_checksums(), block.len().checked_sub(4)) {
            block[at..].fill(0);
            let checksum = crc32c(self.seed, block);
            put(block, at, &checksum.to_be_bytes());
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right. True without versions 2 and
    /// 3.
    #[must_use]
    pub fn verify_tail(&self, block: &[u8]) -> bool {
        if !self.has_block_checksums() {
            return true;
        }
        let Some(at) = block.len().checked_sub(4) else { return false };
        crc32c(crc32c(self.seed, &block[..at]), &[0; 4]) == be32(block, at)
    }
}

/// CRC-32 with polynomial 0x04C11DB7, most significant bit first, no final inversion: the version 1 checksum.
///
/// A transaction's checksum starts at all ones and covers each descriptor block and its logged blocks in log
/// order.
#[must_use]
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| (crc << 8) ^ CRC32_BE[usize::from((crc >> 24) as u8 ^ byte)])
}

const CRC32_BE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 != 0 { (crc << 1) ^ 0x04C1_1DB7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All combinations of checksum version and block number width, with 1 KiB and 4 KiB blocks.
    pub(crate) fn all_formats() -> Vec<LogFormat> {
        let mut formats = Vec::new();
        for block_size in [BlockSize::MIN, BlockSize::KIB4] {
            for checksums in [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3] {
                for wide in [false, true] {
                    formats.push(LogFormat { block_size, checksums, wide, seed: 0x1234_5678 });
                }
            }
        }
        formats
    }

    #[test]
    fn tag_sizes_are_the_kernels() {
        let len =
            |checksums, wide| LogFormat { block_size: BlockSize::KIB4, checksums, wide, seed: 0 }.tag_len();
        assert_eq!([len(Checksums::None, false), len(Checksums::V1, true)], [8, 12]);
        assert_eq!([len(Checksums::V2, false), len(Checksums::V2, true)], [10, 14]);
        assert_eq!([len(Checksums::V3, false), len(Checksums::V3, true)], [16, 16]);
    }

    #[test]
    fn the_format_follows_the_features() {
        let mut sb = Superblock::fresh(BlockSize::KIB4, 4096, [9; 16]);
        assert_eq!(LogFormat::of(&sb).unwrap().checksums, Checksums::None);
        sb.features.compat = Features::CHECKSUM;
        assert_eq!(LogFormat::of(&sb).unwrap().checksums, Checksums::V1);
        sb.features = Features { incompat: Features::CSUM_V2 | Features::BIT64, ..Features::default() };
        assert!(LogFormat::of(&sb).is_err());
        sb.checksum_type = Superblock::CRC32C;
        let format = LogFormat::of(&sb).unwrap();
        assert_eq!((format.checksums, format.wide), (Checksums::V2, true));
        assert_eq!(format.seed, crc32c(!0, &[9; 16]));
    }

    #[test]
    fn crc32_be_matches_the_published_check_value() {
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_E6E7); // CRC-32/MPEG-2
    }
}
