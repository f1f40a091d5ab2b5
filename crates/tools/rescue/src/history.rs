//! The copies of metadata blocks in the journal: those that a replay would write, and older ones.
//!
//! Owns: which committed copies of which blocks the log's area still holds. Does **not** own: the replay of
//! an image (see `volume`); nothing here is written.
//!
//! Invariants
//! 1. A copy counts only if its transaction has a commit block. With checksums, it must also match its tag.
//! 2. The copies of a block are in the order of their transactions.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use std::collections::{BTreeMap, BTreeSet};

use extant_base::Pblk;
use extant_jbd2_format::{
    BlockType, Checksums, Header, LogFormat, LogTid, Superblock as JournalSuperblock, revokes, tags, unescape,
};

/// A copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Its transaction, counted so that a later one has a larger number.
    pub(crate) age: i64,
    /// The file system's block that holds the copy.
    pub(crate) at: u64,
    escaped: bool,
}

/// All copies that the log's area holds.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Block to its copies, the oldest first.
    pub(crate) copies: BTreeMap<u64, Vec<Copy>>,
    /// Blocks whose copies before a transaction are revoked.
    revoked: BTreeMap<u64, i64>,
    /// The first transaction that a replay would write; `None`: the journal is clean.
    replay_from: Option<i64>,
    /// The oldest transaction with a copy.
    pub(crate) oldest: Option<i64>,
}

impl History {
    /// Reads the log. `blocks`: the file system's blocks of the journal, in order.
    pub(crate) fn read(blocks: &[u64], read: &dyn Fn(u64) -> Option<Vec<u8>>) -> Result<Self, String> {
        let first = blocks.first().and_then(|block| read(*block));
        let first = first.ok_or("the journal's superblock cannot be read")?;
        let sb = JournalSuperblock::decode(&first).map_err(|fault| fault.to_string())?;
        let format = LogFormat::of(&sb).map_err(|fault| fault.to_string())?;
        let end = (sb.log_end() as usize).min(blocks.len());
        let start = sb.first as usize;
        if start >= end {
            return Err("the journal has no log".to_owned());
        }
        // Ages count from the superblock's transaction, so they survive the wrap of the numbers.
        let age = |tid: LogTid| i64::from(tid.0.wrapping_sub(sb.sequence.0).cast_signed());
        let mut found: Vec<(i64, u64, usize, bool, bool)> = Vec::new();
        let mut committed = BTreeSet::new();
        let mut revoked: Vec<(i64, u64)> = Vec::new();
        for at in start..end {
            let Some(block) = read(blocks[at]) else { continue };
            let Ok(header) = Header::decode(&block) else { continue };
            let tail = || !format.has_block_checksums() || format.verify_tail(&block);
            match header.kind {
                BlockType::Descriptor if tail() => {
                    for (index, tag) in tags(format, &block).enumerate() {
                        let mut place = at + 1 + index;
                        let wraps = place >= end;
                        if wraps {
                            place = start + (place - end);
                        }
                        let is_sound = place < end
                            && read(blocks[place])
                                .is_some_and(|copy| format.verify_tag(header.tid, &tag, &copy));
                        if is_sound {
                            found.push((age(header.tid), tag.block.0, place, tag.escaped, wraps));
                        }
                    }
                }
                BlockType::Commit => {
                    committed.insert(age(header.tid));
                }
                BlockType::Revoke if tail() => {
                    let list = revokes(format, &block);
                    revoked.extend(list.into_iter().flatten().map(|Pblk(block)| (age(header.tid), block)));
                }
                _ => {}
            }
        }
        let mut history = Self { replay_from: (!sb.is_clean()).then_some(0), ..Self::default() };
        let has_sums = !matches!(format.checksums, Checksums::None | Checksums::V1);
        for (age, block, place, escaped, wraps) in found {
            // Without checksums, what follows the log's end may be a newer transaction's.
            let is_certain = has_sums || !wraps || age >= 0;
            if committed.contains(&age) && is_certain {
                history.oldest = Some(history.oldest.map_or(age, |oldest| oldest.min(age)));
                history.copies.entry(block).or_default().push(Copy { age, at: blocks[place], escaped });
            }
        }
        for (age, block) in revoked.into_iter().filter(|(age, _)| committed.contains(age)) {
            let until = history.revoked.entry(block).or_insert(age);
            *until = (*until).max(age);
        }
        for copies in history.copies.values_mut() {
            copies.sort_by_key(|copy| copy.age);
        }
        Ok(history)
    }

    /// The copy that a replay would write home.
    pub(crate) fn to_replay(&self, block: u64) -> Option<Copy> {
        let from = self.replay_from?;
        let newest = self.copies.get(&block)?.last().copied()?;
        let is_revoked = self.revoked.get(&block).is_some_and(|until| *until > newest.age);
        (newest.age >= from && !is_revoked).then_some(newest)
    }

    /// The newest copy that is not newer than a transaction.
    pub(crate) fn as_of(&self, block: u64, age: i64) -> Option<Copy> {
        self.copies.get(&block)?.iter().rev().find(|copy| copy.age <= age).copied()
    }
}

impl Copy {
    /// The bytes of the copy.
    pub(crate) fn read(self, read: &dyn Fn(u64) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let mut bytes = read(self.at)?;
        if self.escaped {
            unescape(&mut bytes);
        }
        Some(bytes)
    }
}
