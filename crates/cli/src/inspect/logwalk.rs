//! The transactions that wait in a journal's log, one after the other, without replaying them.
//!
//! ```text
//! start: expect tid ── descriptor ─> its logged blocks, go on ──┐
//!          ^   └────── revoke ─────> its records, go on ────────┤
//!          └── tid + 1 ── commit ──> the transaction is whole <─┘       anything else: the log ends here
//! ```
//!
//! Does **not** own: where the journal's blocks are (the caller reads them), printing.
//!
//! Invariants
//! 1. A walk takes each block of the log at most once, and no more blocks than the caller allows.
//! 2. Lists of blocks are cut at [`LIST_MAX`]; counts are not.
//!
//! Source: spec 06 section 4.

use std::ops::ControlFlow;
use std::rc::Rc;

use base::Pblk;
use jbd2_format::{
    BlockType, Checksums, CommitBlock, CommitVerdict, Header, LogFormat, Superblock, Tid, crc32_be, revokes,
    tags,
};

/// Blocks of one transaction that are listed.
pub(super) const LIST_MAX: usize = 1 << 20;

/// Reads a block of the journal.
pub(super) type ReadBlock<'r> = dyn Fn(u32) -> Result<Rc<[u8]>, String> + 'r;

/// A transaction in the log.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) tid: Tid,
    /// First journal block, and how many it takes, descriptors, revokes and commit included.
    pub(super) start: u32,
    pub(super) log_blocks: u64,
    pub(super) descriptors: u64,
    /// Logged blocks, and their homes.
    pub(super) logged: u64,
    pub(super) homes: Vec<Pblk>,
    pub(super) escaped: u64,
    pub(super) revoked: u64,
    pub(super) revokes: Vec<Pblk>,
    /// Whole: its commit block is there.
    pub(super) commit: Option<CommitBlock>,
}

/// How a log ended.
#[derive(Debug)]
pub(super) struct End {
    /// The transaction that was expected.
    pub(super) tid: Tid,
    /// The journal block where the log ends.
    pub(super) at: u32,
    /// Why there.
    pub(super) reason: String,
}

struct Walk<'r> {
    format: LogFormat,
    first: u32,
    end: u32,
    at: u32,
    left: u64,
    read: &'r ReadBlock<'r>,
    damage: &'r dyn Fn(String),
}

/// Tells all transactions of a log that is not clean, the last one perhaps without a commit, until `each` breaks.
///
/// `blocks_max` bounds how many journal blocks are looked at.
pub(super) fn walk<'r>(
    format: LogFormat,
    sb: &Superblock,
    blocks_max: u64,
    read: &'r ReadBlock<'r>,
    damage: &'r dyn Fn(String),
    each: &mut dyn FnMut(Transaction) -> ControlFlow<()>,
) -> End {
    let (first, end) = (sb.first, sb.log_end());
    let left = u64::from(end.saturating_sub(first)).min(blocks_max);
    let mut walk = Walk { format, first, end, at: sb.start, left, read, damage };
    let mut tid = sb.sequence;
    loop {
        let at = walk.at;
        let (transaction, reason) = walk.transaction(tid);
        let whole = transaction.commit.is_some();
        // What follows a whole transaction is mostly the rest of an older round of the log.
        let begun = transaction.log_blocks > 0;
        let flow = if begun { each(transaction) } else { ControlFlow::Continue(()) };
        if !whole || flow.is_break() {
            let at = if begun { walk.at } else { at };
            return End { tid, at, reason };
        }
        tid = tid.next();
    }
}

impl Walk<'_> {
    /// One transaction, and where it is not whole, why.
    fn transaction(&mut self, tid: Tid) -> (Transaction, String) {
        let mut found = Transaction { tid, start: self.at, ..Transaction::default() };
        // Checksum of version 1: over descriptors and logged blocks.
        let mut crc = !0;
        loop {
            if self.left == 0 {
                return (found, "the whole log was looked at".to_owned());
            }
            let block = match (self.read)(self.at) {
                Ok(block) => block,
                Err(why) => {
                    (self.damage)(format!("block {}: {why}", self.at));
                    return (found, format!("block {} cannot be read", self.at));
                }
            };
            let header = match Header::decode(&block) {
                Ok(header) if header.tid == tid => header,
                Ok(header) => {
                    return (found, format!("block {} belongs to transaction {}", self.at, header.tid));
                }
                Err(_) => return (found, format!("block {} is no journal block", self.at)),
            };
            match header.kind {
                BlockType::Descriptor => {
                    found.descriptors += 1;
                    self.check_tail(&block, "descriptor");
                    crc = crc32_be(crc, &block);
                    self.step(&mut found);
                    if let Err(reason) = self.logged(&block, &mut found, &mut crc) {
                        return (found, reason);
                    }
                }
                BlockType::Revoke => {
                    self.check_tail(&block, "revoke block");
                    match revokes(self.format, &block) {
                        Ok(records) => {
                            for record in records {
                                found.revoked += 1;
                                if found.revokes.len() < LIST_MAX {
                                    found.revokes.push(record);
                                }
                            }
                        }
                        Err(fault) => (self.damage)(format!("block {}: {fault}", self.at)),
                    }
                    self.step(&mut found);
                }
                BlockType::Commit => {
                    let commit = CommitBlock::decode(&block);
                    let wrong = match &commit {
                        Ok(commit) if self.format.checksums == Checksums::V1 => !commit.matches_v1(crc),
                        _ => CommitBlock::verify(self.format, &block) == CommitVerdict::Mismatch,
                    };
                    if wrong {
                        (self.damage)(format!(
                            "block {}: commit of transaction {tid}: checksum WRONG",
                            self.at
                        ));
                    }
                    self.step(&mut found);
                    let commit = commit.map_err(|fault| (self.damage)(fault.to_string())).ok();
                    found.commit = commit;
                    return (found, String::new());
                }
                BlockType::SuperblockV1 | BlockType::SuperblockV2 => {
                    return (found, format!("block {} is a superblock", self.at));
                }
            }
        }
    }

    /// The logged blocks behind a descriptor.
    fn logged(&mut self, descriptor: &[u8], found: &mut Transaction, crc: &mut u32) -> Result<(), String> {
        for tag in tags(self.format, descriptor) {
            if self.left == 0 {
                return Err("the whole log was looked at".to_owned());
            }
            found.logged += 1;
            found.escaped += u64::from(tag.escaped);
            if found.homes.len() < LIST_MAX {
                found.homes.push(tag.block);
            }
            match (self.read)(self.at) {
                Ok(block) => {
                    *crc = crc32_be(*crc, &block);
                    if !self.format.verify_tag(found.tid, &tag, &block) {
                        (self.damage)(format!(
                            "block {}: copy of block {} in transaction {}: checksum WRONG",
                            self.at, tag.block, found.tid
                        ));
                    }
                }
                Err(why) => (self.damage)(format!("block {}: {why}", self.at)),
            }
            self.step(found);
        }
        Ok(())
    }

    fn check_tail(&self, block: &[u8], what: &str) {
        if !self.format.verify_tail(block) {
            (self.damage)(format!("block {}: {what}: checksum WRONG", self.at));
        }
    }

    /// On to the next block of the log, round its end.
    fn step(&mut self, found: &mut Transaction) {
        found.log_blocks += 1;
        self.left -= 1;
        self.at = self.at.saturating_add(1);
        if self.at >= self.end {
            self.at = self.first;
        }
    }
}
