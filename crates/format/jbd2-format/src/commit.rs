//! Commit blocks. A transaction is committed once its commit block is on disk.
//!
//! ```text
//! 00 header   0C type u8   0D size u8   10 checksum u32 * 8   30 seconds u64   38 nanoseconds u32   3C zeros
//! ```
//!
//! In versions 2 and 3 type and size are 0, and `checksum[0]` is the CRC-32C of the whole block, seeded by
//! the journal, with this word as zero. In version 1 the type is 1, the size is 4, and `checksum[0]` is the
//! CRC-32 of the transaction's descriptors and logged blocks.

use extant_base::{Malformed, checksum::crc32c};

use crate::{
    bytes::{be32, be64, put},
    format::LogFormat,
    header::{BlockType, Header, LogTid},
};

const STRUCTURE: &str = "commit block";
const CHECKSUM_AT: usize = 0x10;
/// The commit header, including the padding that C adds; the rest of the block is zero.
const HEADER_LEN: usize = 64;

/// The contents of a commit block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommitBlock {
    /// The transaction.
    pub tid: LogTid,
    /// Algorithm of a version 1 checksum: 1 is CRC-32. 0 in other versions.
    pub checksum_type: u8,
    /// Bytes of a version 1 checksum: 4. 0 in other versions.
    pub checksum_size: u8,
    /// The checksum words; only the first is used.
    pub checksums: [u32; 8],
    /// Time of the commit: seconds since 1970.
    pub seconds: u64,
    /// Time of the commit: nanoseconds.
    pub nanoseconds: u32,
}

/// The result of checking a commit block's own checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitVerdict {
    /// Commit blocks have no checksum (no checksums, or version 1).
    Unchecked,
    /// The checksum is right.
    Match,
    /// The checksum is right if everything after the commit header is taken as zero: the header's sector
    /// reached the disk, the rest of the block did not. jbd2 accepts such a commit.
    MatchHeaderOnly,
    /// The checksum is wrong.
    Mismatch,
}

impl CommitBlock {
    /// A commit of `tid` at this time, without a version 1 checksum.
    #[must_use]
    pub fn new(tid: LogTid, seconds: u64, nanoseconds: u32) -> Self {
        Self { tid, checksum_type: 0, checksum_size: 0, checksums: [0; 8], seconds, nanoseconds }
    }

    /// The same commit with the version 1 checksum of its transaction (see [`crc32_be`](crate::crc32_be)).
    #[must_use]
    pub fn with_v1_checksum(mut self, crc: u32) -> Self {
        (self.checksum_type, self.checksum_size, self.checksums[0]) = (1, 4, crc);
        self
    }

    /// Whether `crc` is the version 1 checksum of this transaction. A commit without a checksum (type, size
    /// and word are zero) was written before the feature was enabled, and matches any value.
    #[must_use]
    pub fn matches_v1(&self, crc: u32) -> bool {
        match (self.checksum_type, self.checksum_size, self.checksums[0]) {
            (1, 4, found) => found == crc,
            (0, 0, found) => found == 0,
            _ => false,
        }
    }

    /// Reads a commit block. Does not check its checksum: see [`verify`](Self::verify).
    ///
    /// # Errors
    /// Too short, or not a commit block.
    pub fn decode(block: &[u8]) -> Result<Self, Malformed> {
        let tid = Header::expect(block, BlockType::Commit, STRUCTURE, "block type is 2")?;
        Malformed::unless(
            block.len() >= HEADER_LEN,
            STRUCTURE,
            "must have at least 64 bytes",
            block.len() as u64,
        )?;
        Ok(Self {
            tid,
            checksum_type: block[0x0C],
            checksum_size: block[0x0D],
            checksums: std::array::from_fn(|i| be32(block, CHECKSUM_AT + 4 * i)),
            seconds: be64(block, 0x30),
            nanoseconds: be32(block, 0x38),
        })
    }

    /// Encodes the whole block. In versions 2 and 3 it computes `checksums[0]`, ignoring the present value.
    #[must_use]
    pub fn encode(&self, format: LogFormat) -> Vec<u8> {
        let mut block = vec![0; format.block_size.len()];
        put(&mut block, 0, &Header { kind: BlockType::Commit, tid: self.tid }.encode());
        block[0x0C] = self.checksum_type;
        block[0x0D] = self.checksum_size;
        for (i, word) in self.checksums.iter().enumerate() {
            put(&mut block, CHECKSUM_AT + 4 * i, &word.to_be_bytes());
        }
        put(&mut block, 0x30, &self.seconds.to_be_bytes());
        put(&mut block, 0x38, &self.nanoseconds.to_be_bytes());
        if format.has_block_checksums() {
            let checksum = block_checksum(format.seed, &block);
            put(&mut block, CHECKSUM_AT, &checksum.to_be_bytes());
        }
        block
    }

    /// Checks the version 2 or 3 checksum of the commit block `block`.
    #[must_use]
    pub fn verify(format: LogFormat, block: &[u8]) -> CommitVerdict {
        if !format.has_block_checksums() {
            return CommitVerdict::Unchecked;
        }
        if block.len() < HEADER_LEN {
            return CommitVerdict::Mismatch;
        }
        let found = be32(block, CHECKSUM_AT);
        if found == block_checksum(format.seed, block) {
            return CommitVerdict::Match;
        }
        let mut header_only = vec![0; block.len()];
        header_only[..HEADER_LEN].copy_from_slice(&block[..HEADER_LEN]);
        if found == block_checksum(format.seed, &header_only) {
            return CommitVerdict::MatchHeaderOnly;
        }
        CommitVerdict::Mismatch
    }
}

/// CRC-32C of a commit block, with its first checksum word as zero. `block` has at least 64 bytes.
fn block_checksum(seed: u32, block: &[u8]) -> u32 {
    let crc = crc32c(crc32c(seed, &block[..CHECKSUM_AT]), &[0; 4]);
    crc32c(crc, &block[CHECKSUM_AT + 4..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::{Checksums, tests::all_formats};

    #[test]
    fn a_commit_reads_back_and_its_checksum_sees_every_bit() {
        for format in all_formats() {
            let commit = CommitBlock::new(LogTid(4), 1_700_000_000, 999_999_999);
            let mut block = commit.encode(format);
            let read = CommitBlock::decode(&block).unwrap();
            assert_eq!(CommitBlock { checksums: [0; 8], ..read }, commit);
            if !format.has_block_checksums() {
                assert_eq!(CommitBlock::verify(format, &block), CommitVerdict::Unchecked);
                continue;
            }
            assert_eq!(CommitBlock::verify(format, &block), CommitVerdict::Match);
            block[0x3F] ^= 1;
            assert_eq!(CommitBlock::verify(format, &block), CommitVerdict::Mismatch);
            block[0x3F] ^= 1;
            block[700] = 0xFF; // an older block's bytes behind the first sector
            assert_eq!(CommitBlock::verify(format, &block), CommitVerdict::MatchHeaderOnly);
        }
    }

    #[test]
    fn a_version_1_checksum_is_compared_unless_there_is_none() {
        let commit = CommitBlock::new(LogTid(4), 0, 0);
        assert!(commit.matches_v1(123));
        let commit = commit.with_v1_checksum(123);
        assert!(commit.matches_v1(123) && !commit.matches_v1(124));
        assert!(!CommitBlock { checksum_type: 2, ..commit }.matches_v1(123));
        let format = all_formats().into_iter().find(|format| format.checksums == Checksums::V1).unwrap();
        assert_eq!(CommitBlock::decode(&commit.encode(format)), Ok(commit));
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            which in 0usize..16,
        ) {
            if bytes.len() >= 12 {
                bytes[..12].copy_from_slice(&Header { kind: BlockType::Commit, tid: LogTid(0) }.encode());
            }
            let _ = (CommitBlock::decode(&bytes), CommitBlock::verify(all_formats()[which], &bytes));
        }
    }
}
