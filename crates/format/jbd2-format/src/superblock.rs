//! The journal superblock: the first 1024 bytes of the journal's first block.
//!
//! | at | bytes | field | | at | bytes | field |
//! |---|---|---|---|---|---|---|
//! | 00 | 12 | header (type 3 or 4) | | 30 | 16 | uuid |
//! | 0C | 4 | blocksize | | 40 | 4 | nr_users |
//! | 10 | 4 | maxlen | | 44 | 4 | dynsuper |
//! | 14 | 4 | first | | 48 | 4 | max_transaction |
//! | 18 | 4 | sequence | | 4C | 4 | max_trans_data |
//! | 1C | 4 | start | | 50 | 1 | checksum_type |
//! | 20 | 4 | errno | | 54 | 4 | num_fc_blocks |
//! | 24 | 4 | feature_compat | | 58 | 4 | head |
//! | 28 | 4 | feature_incompat | | FC | 4 | checksum |
//! | 2C | 4 | feature_ro_compat | | 100 | 768 | users |
//!
//! A version 1 superblock ends after `errno`; the bytes after it have no meaning, but are preserved.

use std::ops::Range;

use extant_base::{BlockSize, Malformed, checksum::crc32c};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    big_endian::{I32, U32},
};

use crate::{
    features::Features,
    header::{BlockType, Header, LogTid},
    size::MIN_JOURNAL_BLOCKS,
};

const STRUCTURE: &str = "journal superblock";

/// The size of the fast-commit area when the feature is on and the field is 0.
const DEFAULT_FC_BLOCKS: u32 = 256;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    h_magic: U32,
    h_blocktype: U32,
    h_sequence: U32,
    s_blocksize: U32,
    s_maxlen: U32,
    s_first: U32,
    s_sequence: U32,
    s_start: U32,
    s_errno: I32,
    s_feature_compat: U32,
    s_feature_incompat: U32,
    s_feature_ro_compat: U32,
    s_uuid: [u8; 16],
    s_nr_users: U32,
    s_dynsuper: U32,
    s_max_transaction: U32,
    s_max_trans_data: U32,
    s_checksum_type: u8,
    s_padding2: [u8; 3],
    s_num_fc_blks: U32,
    s_head: U32,
    s_padding: [u8; 160],
    s_checksum: U32,
    s_users: [[u8; 16]; 48],
}

/// The version of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Block type 3: no features, no UUID.
    V1,
    /// Block type 4.
    V2,
}

/// The journal superblock, with all its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Version 1 or 2, from the header's block type.
    pub version: Version,
    /// The header's sequence word; without meaning, 0 from mke2fs.
    pub header_tid: LogTid,
    /// Block size in bytes; must equal the file system's.
    pub block_size: u32,
    /// Blocks of the journal, including this one and the fast-commit area.
    pub total_blocks: u32,
    /// Journal block where the log begins: 1 for an internal journal.
    pub first: u32,
    /// The transaction ID that recovery expects first.
    pub sequence: LogTid,
    /// Journal block of the first transaction to replay; 0 if the journal is clean.
    pub start: u32,
    /// The (negative) error number of an aborted journal.
    pub errno: i32,
    /// The feature words as stored; [`active_features`](Self::active_features) handles version 1.
    pub features: Features,
    /// UUID of the journal: seeds its checksums, and identifies an external journal.
    pub uuid: [u8; 16],
    /// Number of file systems that share this journal.
    pub nr_users: u32,
    /// Block of a second superblock copy; unused.
    pub dynsuper: u32,
    /// Limit of blocks per transaction; unused.
    pub max_transaction: u32,
    /// Limit of data blocks per transaction; unused.
    pub max_trans_data: u32,
    /// Checksum algorithm of CSUM_V2 and CSUM_V3: 4 is CRC-32C.
    pub checksum_type: u8,
    /// Blocks of the fast-commit area as stored; 0 means 256 when the feature is on.
    pub num_fc_blocks: u32,
    /// Journal block where the next transaction begins; valid only in a clean journal.
    pub head: u32,
    /// Stored checksum; 0 without CSUM_V2 and CSUM_V3.
    pub checksum: u32,
    /// UUIDs of the file systems that share an external journal.
    pub users: [[u8; 16]; 48],
    /// Bytes 51..54, unused.
    pub reserved_51: [u8; 3],
    /// Bytes 5C..FC, unused.
    pub reserved_5c: [u8; 160],
}

impl Superblock {
    /// Length in bytes.
    pub const LEN: usize = 1024;

    /// The only [`checksum_type`](Self::checksum_type) in use: CRC-32C.
    pub const CRC32C: u8 = 4;

    /// The superblock that mke2fs writes into a new internal journal of `blocks` blocks: clean, without
    /// features and checksum. A mount adds 64BIT and CSUM_V3 if the file system has the corresponding
    /// features.
    ///
    /// `uuid` is the file system's.
    #[must_use]
    pub fn fresh(block_size: BlockSize, blocks: u32, uuid: [u8; 16]) -> Self {
        Self {
            version: Version::V2,
            header_tid: LogTid(0),
            block_size: block_size.bytes() as u32,
            total_blocks: blocks,
            first: 1,
            sequence: LogTid(1),
            start: 0,
            errno: 0,
            features: Features::default(),
            uuid,
            nr_users: 1,
            dynsuper: 0,
            max_transaction: 0,
            max_trans_data: 0,
            checksum_type: 0,
            num_fc_blocks: 0,
            head: 0,
            checksum: 0,
            users: [[0; 16]; 48],
            reserved_51: [0; 3],
            reserved_5c: [0; 160],
        }
    }

    /// Extends the journal by a fast-commit area of `blocks` blocks, as mke2fs does for `-O fast_commit`.
    ///
    /// The journal's own FAST_COMMIT bit stays clear: a mount sets it while it uses the area.
    #[must_use]
    pub fn with_fast_commit_area(mut self, blocks: u32) -> Self {
        self.total_blocks = self.total_blocks.saturating_add(blocks);
        self.num_fc_blocks = blocks;
        self
    }

    /// Reads a superblock from the first 1024 bytes of `block`. Checks only the magic number and the type;
    /// see [`check`](Self::check).
    ///
    /// # Errors
    /// Too short, no journal magic, or a block type other than 3 and 4.
    pub fn decode(block: &[u8]) -> Result<Self, Malformed> {
        let (raw, _) = Raw::read_from_prefix(block)
            .map_err(|_| Malformed::new(STRUCTURE, "must have at least 1024 bytes", block.len() as u64))?;
        let header = Header::decode(block)?;
        let version = match header.kind {
            BlockType::SuperblockV1 => Version::V1,
            BlockType::SuperblockV2 => Version::V2,
            other => return Err(Malformed::new(STRUCTURE, "block type must be 3 or 4", other.code())),
        };
        Ok(Self {
            version,
            header_tid: header.tid,
            block_size: raw.s_blocksize.get(),
            total_blocks: raw.s_maxlen.get(),
            first: raw.s_first.get(),
            sequence: LogTid(raw.s_sequence.get()),
            start: raw.s_start.get(),
            errno: raw.s_errno.get(),
            features: Features {
                compat: raw.s_feature_compat.get(),
                incompat: raw.s_feature_incompat.get(),
                ro_compat: raw.s_feature_ro_compat.get(),
            },
            uuid: raw.s_uuid,
            nr_users: raw.s_nr_users.get(),
            dynsuper: raw.s_dynsuper.get(),
            max_transaction: raw.s_max_transaction.get(),
            max_trans_data: raw.s_max_trans_data.get(),
            checksum_type: raw.s_checksum_type,
            num_fc_blocks: raw.s_num_fc_blks.get(),
            head: raw.s_head.get(),
            checksum: raw.s_checksum.get(),
            users: raw.s_users,
            reserved_51: raw.s_padding2,
            reserved_5c: raw.s_padding,
        })
    }

    /// The 1024 bytes of this superblock, with the checksum field unchanged.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let kind = match self.version {
            Version::V1 => BlockType::SuperblockV1,
            Version::V2 => BlockType::SuperblockV2,
        };
        let raw = Raw {
            h_magic: crate::MAGIC.into(),
            h_blocktype: kind.code().into(),
            h_sequence: self.header_tid.0.into(),
            s_blocksize: self.block_size.into(),
            s_maxlen: self.total_blocks.into(),
            s_first: self.first.into(),
            s_sequence: self.sequence.0.into(),
            s_start: self.start.into(),
            s_errno: self.errno.into(),
            s_feature_compat: self.features.compat.into(),
            s_feature_incompat: self.features.incompat.into(),
            s_feature_ro_compat: self.features.ro_compat.into(),
            s_uuid: self.uuid,
            s_nr_users: self.nr_users.into(),
            s_dynsuper: self.dynsuper.into(),
            s_max_transaction: self.max_transaction.into(),
            s_max_trans_data: self.max_trans_data.into(),
            s_checksum_type: self.checksum_type,
            s_padding2: self.reserved_51,
            s_num_fc_blks: self.num_fc_blocks.into(),
            s_head: self.head.into(),
            s_padding: self.reserved_5c,
            s_checksum: self.checksum.into(),
            s_users: self.users,
        };
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The feature words in force: none in version 1, where these fields do not exist.
    #[must_use]
    pub fn active_features(&self) -> Features {
        match self.version {
            Version::V1 => Features::default(),
            Version::V2 => self.features,
        }
    }

    /// Whether this superblock has a checksum (CSUM_V2 or CSUM_V3).
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        self.active_features().has_incompat(Features::CSUM_V2 | Features::CSUM_V3)
    }

    /// The right checksum of these fields: CRC-32C from all ones over the 1024 bytes, with the checksum field
    /// as zero.
    #[must_use]
    pub fn computed_checksum(&self) -> u32 {
        let mut bytes = self.encode();
        bytes[0xFC..0x100].fill(0);
        crc32c(!0, &bytes)
    }

    /// Updates the checksum, or sets it to 0 if the features require none. Needed after every change.
    pub fn seal(&mut self) {
        self.checksum = if self.has_checksum() { self.computed_checksum() } else { 0 };
    }

    /// Whether the stored checksum is right. True if the features require none.
    #[must_use]
    pub fn verify(&self) -> bool {
        !self.has_checksum() || self.checksum == self.computed_checksum()
    }

    /// Checks everything that jbd2 checks before it trusts a journal, except unknown features (see
    /// [`Features::unsupported`]) and the checksum (see [`verify`](Self::verify)).
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self) -> Result<(), Malformed> {
        let rule = |holds, rule, found: u32| Malformed::unless(holds, STRUCTURE, rule, found);
        let features = self.active_features();
        let v2 = features.has_incompat(Features::CSUM_V2);
        let v3 = features.has_incompat(Features::CSUM_V3);
        let block_size = BlockSize::from_bytes(u64::from(self.block_size));
        rule(block_size.is_some(), "block size is a power of two, 1 KiB to 64 KiB", self.block_size)?;
        rule(!(v2 && v3), "checksum versions 2 and 3 exclude each other", features.incompat)?;
        rule(
            !((v2 || v3) && features.has_compat(Features::CHECKSUM)),
            "checksum version 1 excludes versions 2 and 3",
            features.compat,
        )?;
        rule(
            !(v2 || v3) || self.checksum_type == Self::CRC32C,
            "checksum type is 4 (CRC-32C)",
            u32::from(self.checksum_type),
        )?;
        let end = self.log_end();
        rule(end >= MIN_JOURNAL_BLOCKS, "the log has at least 1024 blocks", end)?;
        rule(self.first != 0 && self.first < end, "the log begins inside the journal", self.first)?;
        rule(
            self.start == 0 || (self.first..end).contains(&self.start),
            "the first transaction starts inside the log",
            self.start,
        )
    }

    /// Blocks of the fast-commit area in use: 0 while the journal's FAST_COMMIT bit is clear.
    #[must_use]
    pub fn fast_commit_blocks(&self) -> u32 {
        match (self.active_features().has_incompat(Features::FAST_COMMIT), self.num_fc_blocks) {
            (false, _) => 0,
            (true, 0) => DEFAULT_FC_BLOCKS,
            (true, blocks) => blocks,
        }
    }

    /// The journal block after the log's last one; after block `log_end() - 1` the log continues at `first`.
    #[must_use]
    pub fn log_end(&self) -> u32 {
        self.total_blocks.saturating_sub(self.fast_commit_blocks())
    }

    /// Journal blocks used by fast commits; `None` while the journal's FAST_COMMIT bit is clear.
    ///
    /// One block fewer than the area has: jbd2 skips the first one.
    #[must_use]
    pub fn fast_commit_range(&self) -> Option<Range<u32>> {
        (self.fast_commit_blocks() != 0).then(|| self.log_end().saturating_add(1)..self.total_blocks)
    }

    /// Whether there is nothing to replay.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.start == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checksummed() -> Superblock {
        let mut sb = Superblock::fresh(BlockSize::KIB4, 2048, [3; 16]);
        sb.features.incompat = Features::CSUM_V3 | Features::BIT64;
        sb.checksum_type = Superblock::CRC32C;
        sb.seal();
        sb
    }

    #[test]
    fn a_sealed_superblock_notices_any_changed_bit() {
        let sealed = checksummed().encode();
        assert!(Superblock::decode(&sealed).unwrap().verify());
        for at in (12..1024).filter(|at| !(0x24..0x30).contains(at)) {
            let mut bytes = sealed;
            bytes[at] ^= 0x10;
            assert!(!Superblock::decode(&bytes).unwrap().verify(), "byte {at:#x}");
        }
    }

    #[test]
    fn version_1_has_no_features_whatever_stands_there() {
        let mut sb = checksummed();
        sb.version = Version::V1;
        assert!(sb.active_features().is_empty());
        assert!(sb.verify());
        assert_eq!(Superblock::decode(&sb.encode()).unwrap().features, sb.features);
    }

    #[test]
    fn check_names_the_broken_rule() {
        assert_eq!(checksummed().check(), Ok(()));
        type Break = fn(&mut Superblock);
        let cases: [(&str, Break); 7] = [
            ("power of two", |sb| sb.block_size = 3000),
            ("at least 1024", |sb| sb.total_blocks = 1023),
            ("begins inside", |sb| sb.first = 0),
            ("starts inside", |sb| sb.start = 2048),
            ("exclude each other", |sb| sb.features.incompat |= Features::CSUM_V2),
            ("excludes versions", |sb| sb.features.compat |= Features::CHECKSUM),
            ("CRC-32C", |sb| sb.checksum_type = 1),
        ];
        for (words, breaks) in cases {
            let mut sb = checksummed();
            breaks(&mut sb);
            assert!(sb.check().unwrap_err().rule.contains(words), "{words}");
        }
    }

    #[test]
    fn the_fast_commit_area_is_taken_from_the_end_while_in_use() {
        let mut sb = Superblock::fresh(BlockSize::KIB4, 4096, [0; 16]).with_fast_commit_area(64);
        assert_eq!((sb.log_end(), sb.fast_commit_range()), (4160, None));
        sb.features.incompat = Features::FAST_COMMIT;
        assert_eq!((sb.log_end(), sb.fast_commit_range()), (4096, Some(4097..4160)));
        sb.num_fc_blocks = 0;
        assert_eq!(sb.log_end(), 4160 - 256);
        sb.num_fc_blocks = u32::MAX;
        assert!(sb.check().is_err());
    }

    proptest! {
        #[test]
        fn every_byte_is_kept(mut bytes in prop::collection::vec(any::<u8>(), 1024), v2: bool) {
            let kind = if v2 { BlockType::SuperblockV2 } else { BlockType::SuperblockV1 };
            bytes[..8].copy_from_slice(&Header { kind, tid: LogTid(0) }.encode()[..8]);
            let sb = Superblock::decode(&bytes).unwrap();
            prop_assert_eq!(&sb.encode()[..], &bytes[..]);
            let _ = (sb.check(), sb.verify(), sb.log_end(), sb.fast_commit_range());
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            let _ = Superblock::decode(&bytes);
        }
    }
}
