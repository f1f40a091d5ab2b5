//! The on-disk format of jbd2's journal: decodes and encodes log blocks, without I/O.
//!
//! ```text
//! log of one transaction:   revoke*   (descriptor, logged block*)+   commit
//! journal:  | superblock | log: first .. log_end, wraps round | fast-commit area |
//! ```
//!
//! Owns: the journal superblock ([`Superblock`], [`Features`]); the header of all other journal blocks
//! ([`Header`]); descriptor blocks with every tag layout ([`DescriptorWriter`], [`tags`]); revoke blocks;
//! commit blocks; fast-commit records ([`fast_commit`]); the checksums of all of them ([`LogFormat`]); the
//! size of a new journal ([`default_journal_blocks`]).
//!
//! Does **not** own: reading or writing blocks, the order of recovery passes, the meaning of a logged block
//! or of the inode in a fast-commit record, the place of the journal.
//!
//! Invariants
//! 1. Decoding never panics, for any bytes, and allocates nothing: iterators borrow the block.
//! 2. `encode(decode(bytes)) == bytes` for the superblock; `decode(encode(value)) == value` for all
//!    structures.
//! 3. All numbers are big-endian, except in fast-commit records, which are little-endian.
//! 4. Only [`LogFormat`] decides how a block is laid out and sealed, based on the superblock's features.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst, corrected where the kernel's bytes differ (tag
//! sizes).
//!
//! ```
//! use extant_base::{BlockSize, Pblk};
//! use extant_jbd2_format::{DescriptorWriter, Features, LogFormat, Superblock, LogTid, tags};
//!
//! let mut sb = Superblock::fresh(BlockSize::KIB4, 1024, [7; 16]);
//! sb.features.incompat = Features::BIT64 | Features::CSUM_V3;
//! sb.checksum_type = Superblock::CRC32C;
//! let format = LogFormat::of(&sb).unwrap();
//!
//! let image = vec![0x5A; 4096]; // the block as it will be logged
//! let mut descriptor = DescriptorWriter::new(format, LogTid(1), sb.uuid);
//! descriptor.push(Pblk(1234), false, format.tag_checksum(LogTid(1), &image)).unwrap();
//! let bytes = descriptor.finish();
//!
//! let tag = tags(format, &bytes).next().unwrap();
//! assert_eq!(tag.block, Pblk(1234));
//! assert!(format.verify_tag(LogTid(1), &tag, &image));
//! ```

#![forbid(unsafe_code)]

mod bytes;
mod commit;
mod descriptor;
pub mod fast_commit;
mod features;
mod format;
mod header;
mod revoke;
mod size;
mod superblock;

pub use commit::{CommitBlock, CommitVerdict};
pub use descriptor::{DescriptorWriter, PushError, Tag, Tags, escape, needs_escape, tags, unescape};
pub use features::Features;
pub use format::{Checksums, LogFormat, crc32_be};
pub use header::{BlockType, Header, LogTid, MAGIC};
pub use revoke::{RevokeWriter, Revokes, revokes};
pub use size::{MAX_JOURNAL_BLOCKS, MIN_JOURNAL_BLOCKS, default_fast_commit_blocks, default_journal_blocks};
pub use superblock::{Superblock, Version};
