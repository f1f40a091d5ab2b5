//! The header: the first twelve bytes of every journal block except logged ones, with the transaction ID.
//!
//! ```text
//! 0 magic C03B3998   4 block type   8 sequence (transaction id)
//! ```

use std::fmt;

use extant_base::Malformed;

use crate::bytes::{be32, put};

/// The first word of every journal block that is not a logged block.
pub const MAGIC: u32 = 0xC03B_3998;

/// A transaction ID. It wraps at 2^32, so IDs have no total order: compare with [`LogTid::is_after`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LogTid(pub u32);

impl LogTid {
    /// The ID of the next transaction.
    #[must_use]
    pub fn next(self) -> LogTid {
        LogTid(self.0.wrapping_add(1))
    }

    /// Whether this transaction is newer than `other`. Compares the signed difference, as jbd2 does:
    /// `LogTid(0)` is after `LogTid(u32::MAX)`.
    #[must_use]
    pub fn is_after(self, other: LogTid) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }
}

impl fmt::Display for LogTid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The type of a journal block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// Lists the homes of the logged blocks that follow.
    Descriptor,
    /// Ends a transaction: it is committed once this block is on disk.
    Commit,
    /// The journal superblock, first version: nothing after the error number.
    SuperblockV1,
    /// The journal superblock.
    SuperblockV2,
    /// Lists blocks; their older log copies must not be replayed.
    Revoke,
}

impl BlockType {
    /// The number on disk, 1 to 5.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }

    /// The type with this number on disk.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Descriptor, Self::Commit, Self::SuperblockV1, Self::SuperblockV2, Self::Revoke]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// The header of a journal block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// The type of the block.
    pub kind: BlockType,
    /// The transaction of the block; 0 in the superblock.
    pub tid: LogTid,
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = 12;
    /// Length of the header of a revoke block, with the number of its bytes in use.
    pub(crate) const REVOKE_LEN: usize = Self::LEN + 4;

    /// Reads the header of `block`.
    ///
    /// A scan treats an error as the end of the log, not as damage: the block may be older than the journal.
    ///
    /// # Errors
    /// Too short, wrong magic number, or a type other than 1 to 5.
    pub fn decode(block: &[u8]) -> Result<Self, Malformed> {
        const S: &str = "journal block header";
        Malformed::unless(block.len() >= Self::LEN, S, "must have at least 12 bytes", block.len() as u64)?;
        let magic = be32(block, 0);
        Malformed::unless(magic == MAGIC, S, "magic must be 0xC03B3998", magic)?;
        let code = be32(block, 4);
        let kind = BlockType::from_code(code).ok_or(Malformed::new(
            S,
            "block type must be between 1 and 5",
            code,
        ))?;
        Ok(Self { kind, tid: LogTid(be32(block, 8)) })
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, &MAGIC.to_be_bytes());
        put(&mut bytes, 4, &self.kind.code().to_be_bytes());
        put(&mut bytes, 8, &self.tid.0.to_be_bytes());
        bytes
    }

    /// Reads the header of a block, and checks that its type is `kind`.
    pub(crate) fn expect(
        block: &[u8],
        kind: BlockType,
        structure: &'static str,
        rule: &'static str,
    ) -> Result<LogTid, Malformed> {
        let header = Self::decode(block)?;
        Malformed::unless(header.kind == kind, structure, rule, header.kind.code())?;
        Ok(header.tid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_compare_across_the_wrap() {
        assert!(LogTid(0).is_after(LogTid(u32::MAX)));
        assert!(!LogTid(u32::MAX).is_after(LogTid(0)));
        assert!(!LogTid(5).is_after(LogTid(5)));
        assert_eq!(LogTid(u32::MAX).next(), LogTid(0));
    }

    #[test]
    fn a_header_survives_its_bytes() {
        for code in 1..=5 {
            let header = Header { kind: BlockType::from_code(code).unwrap(), tid: LogTid(0x0102_0304) };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        assert_eq!(BlockType::from_code(0), None);
        assert_eq!(BlockType::from_code(6), None);
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Header::decode(&bytes);
        }
    }
}
