//! Scans a log by jbd2's rules, and makes the plan from the result.
//!
//! ```text
//! start: expect tid ── descriptor ─> its copies, continue ──┐
//!          ^   └────── revoke ─────> continue ──────────────┤
//!          └── tid + 1 ── commit ──> judge <────────────────┘       anything else: end of the log
//!
//! judge a commit            descriptor or revoke block      checksum of the commit block
//!                           with a wrong checksum           right       wrong
//! older than previous one   end of the log (stale)          whole       end of the log (stale)
//! not older                 fault: nothing is replayed      whole       lost: end of the log, a problem
//!
//! With the feature async_commit a commit block may reach the disk before the blocks that precede it. A wrong
//! checksum on the last transaction then indicates only a crash; it is a loss only if another commit follows.
//!
//! jbd2 makes three passes (scan, revoke, replay). This scan makes one: it records each copy and the place of
//! each revoke block, and drops everything after the end of the log. Then it reads the revoke blocks of
//! committed transactions again, now that the homes are known. It keeps only records that name a logged home,
//! so that no log can make the table large.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use std::collections::HashMap;

use extant_base::{BlockSize, Pblk};
use extant_jbd2_format::{
    BlockType, Checksums, CommitBlock, CommitVerdict, Features, Header, LogFormat, LogTid, Superblock, Tag,
    crc32_be, revokes, tags,
};

use crate::fast_commit::scan_area;
use crate::fault::JournalFault;
use crate::log::{LogView, Sequential};
use crate::plan::{CommitTime, EndReason, Home, LogEnd, ReplayPlan, State, Transaction};
use crate::problem::Problem;

/// The file system that a log is replayed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayTarget {
    /// Its size in blocks: every home lies below.
    pub fs_blocks: u64,
    /// Its block size, which must equal the log's.
    pub block_size: BlockSize,
    /// The UUID that an external log must have; `None` accepts any. Ignored for an internal log.
    pub journal_uuid: Option<[u8; 16]>,
}

impl ReplayTarget {
    /// A target of `fs_blocks` blocks that expects no particular journal UUID.
    #[must_use]
    pub fn new(fs_blocks: u64, block_size: BlockSize) -> Self {
        Self { fs_blocks, block_size, journal_uuid: None }
    }
}

/// Reads and checks a log's superblock.
///
/// # Errors
/// The superblock cannot be read, breaks a rule, has a wrong checksum or unknown features, does not fit log
/// or target, or belongs to another file system.
pub fn read_superblock(log: LogView<'_>, target: &ReplayTarget) -> Result<Superblock, JournalFault> {
    let bytes = log.block(log.map().superblock())?;
    let sb = Superblock::decode(&bytes).map_err(JournalFault::Superblock)?;
    let same_size = BlockSize::from_bytes(sb.block_size.into()) == Some(target.block_size);
    if !same_size || log.block_size() != target.block_size {
        return Err(JournalFault::BlockSize { journal: sb.block_size, target: target.block_size });
    }
    let unsupported = sb.active_features().unsupported();
    if !unsupported.is_empty() {
        return Err(JournalFault::Unsupported(unsupported));
    }
    sb.check().map_err(JournalFault::Superblock)?;
    if !sb.verify() {
        let computed = sb.computed_checksum();
        return Err(JournalFault::SuperblockChecksum { stored: sb.checksum, computed });
    }
    if sb.total_blocks > log.map().blocks() {
        return Err(JournalFault::TooShort { claimed: sb.total_blocks, mapped: log.map().blocks() });
    }
    if log.map().is_external() {
        if let Some(wanted) = target.journal_uuid.filter(|wanted| *wanted != sb.uuid) {
            return Err(JournalFault::WrongJournal { found: sb.uuid, wanted });
        }
        if sb.nr_users != 1 {
            return Err(JournalFault::Shared { users: sb.nr_users });
        }
    }
    Ok(sb)
}

/// Computes what a replay of `log` to `target` would do. Writes nothing.
///
/// Call it only if the target's superblock requires recovery: otherwise jbd2 ignores the log's contents.
///
/// # Errors
/// Cases in which jbd2 refuses before it writes a block; see [`JournalFault`]. Defects that jbd2 skips are
/// listed in the plan's [`problems`](ReplayPlan::problems).
pub fn scan(log: LogView<'_>, target: &ReplayTarget) -> Result<ReplayPlan, JournalFault> {
    let sb = read_superblock(log, target)?;
    let examined = examine(log, target, sb)?;
    match examined.fault {
        None => Ok(examined.plan),
        Some(fault) => Err(fault),
    }
}

/// The readable part of a log, even if it is damaged.
#[derive(Debug)]
pub struct Examined {
    /// What a replay would do if the log ended at the fault. With a fault, the plan is for inspection only.
    pub plan: ReplayPlan,
    /// Why there is no replay: the error that [`scan`] would return.
    pub fault: Option<JournalFault>,
}

/// As [`scan`], to inspect damaged logs: starts from a superblock that the caller chose to trust, and also
/// returns what precedes a fault.
///
/// # Errors
/// The superblock breaks a rule, so that the log's layout is unknown.
pub fn examine(log: LogView<'_>, target: &ReplayTarget, sb: Superblock) -> Result<Examined, JournalFault> {
    let format = LogFormat::of(&sb).map_err(JournalFault::Superblock)?;
    if format.block_size != log.block_size() {
        return Err(JournalFault::BlockSize { journal: sb.block_size, target: log.block_size() });
    }
    let fast_commit_area = sb.fast_commit_range();
    let mut plan = ReplayPlan {
        format,
        state: State::Clean,
        transactions: Vec::new(),
        unfinished: None,
        homes: Vec::new(),
        revoked_copies: 0,
        superseded_copies: 0,
        problems: Vec::new(),
        end: LogEnd { tid: sb.sequence, block: 0, reason: EndReason::Clean },
        next_tid: sb.sequence.next(),
        head: if (sb.first..sb.log_end()).contains(&sb.head) { sb.head } else { sb.first },
        fast_commit_area,
        fast_commits: None,
        superblock: sb,
    };
    if plan.superblock.is_clean() {
        return Ok(Examined { plan, fault: None });
    }
    plan.state = State::NeedsReplay;
    let mut walk = Walk::new(log, &plan);
    plan.end = walk.run();
    plan.next_tid = plan.end.tid.next();
    plan.head = walk.head;
    let Walk { mut log, copies, transactions, unfinished, revoke_blocks, problems, mut fault, .. } = walk;
    (plan.transactions, plan.unfinished, plan.problems) = (transactions, unfinished, problems);
    let (youngest, revoke_fault) = youngest_revokes(&mut log, format, &copies, &revoke_blocks);
    fault = fault.or(revoke_fault);
    choose(&mut plan, copies, &youngest, log.view(), target);
    if let Some(area) = plan.fast_commit_area.clone()
        && fault.is_none()
    {
        plan.fast_commits = scan_area(&mut log, area, plan.end.tid, &mut plan.problems);
    }
    Ok(Examined { plan, fault })
}

/// The state of a scanned copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Sound,
    WrongChecksum,
    Unreadable,
}

/// A logged block. This is the memory cost of one log block.
#[derive(Clone, Copy)]
struct LoggedCopy {
    home: Pblk,
    log_block: u32,
    /// Index of its transaction.
    transaction: u32,
    escaped: bool,
    verdict: Verdict,
}

/// How the scan of a transaction continues.
enum Step {
    Next,
    Committed,
    End(EndReason),
}

struct Walk<'a> {
    log: Sequential<'a>,
    format: LogFormat,
    async_commit: bool,
    first: u32,
    end: u32,
    /// The next log block, and the number of blocks the scan may still visit.
    at: u32,
    left: u32,
    /// The log block after the last committed transaction.
    head: u32,
    current: Transaction,
    transactions: Vec<Transaction>,
    unfinished: Option<Transaction>,
    copies: Vec<LoggedCopy>,
    revoke_blocks: Vec<(u32, LogTid)>,
    problems: Vec<Problem>,
    /// The first descriptor or revoke block of the current transaction with a wrong checksum.
    suspicious: Option<u32>,
    /// A commit with a wrong checksum in a log with async_commit. The scan continues to see whether another
    /// commit follows.
    failed: Option<(LogTid, u32)>,
    last_commit_seconds: u64,
    /// Version 1 checksum of the current transaction.
    crc: u32,
    /// Why the scan stopped early.
    fault: Option<JournalFault>,
}

impl<'a> Walk<'a> {
    fn new(log: LogView<'a>, plan: &ReplayPlan) -> Self {
        let sb = &plan.superblock;
        Self {
            log: Sequential::new(log),
            format: plan.format,
            async_commit: sb.active_features().has_incompat(Features::ASYNC_COMMIT),
            first: sb.first,
            end: sb.log_end(),
            at: sb.start,
            left: sb.log_end().saturating_sub(sb.first),
            head: sb.start,
            current: begin(sb.sequence, sb.start),
            transactions: Vec::new(),
            unfinished: None,
            copies: Vec::new(),
            revoke_blocks: Vec::new(),
            problems: Vec::new(),
            suspicious: None,
            failed: None,
            last_commit_seconds: 0,
            crc: !0,
            fault: None,
        }
    }

    /// Scans to the end of the log, and drops everything that does not belong to a committed transaction.
    fn run(&mut self) -> LogEnd {
        let reason = loop {
            match self.step() {
                Ok(Step::Next) => {}
                Ok(Step::Committed) => {
                    let next = begin(self.current.tid.next(), self.at);
                    let done = std::mem::replace(&mut self.current, next);
                    self.crc = !0;
                    if self.failed.is_none() {
                        self.transactions.push(done);
                        self.head = self.at;
                    }
                }
                Ok(Step::End(reason)) => break reason,
                Err(fault) => {
                    self.fault = Some(fault);
                    break EndReason::Fault;
                }
            }
        };
        let (tid, reason) = match self.failed {
            Some((tid, _)) => (tid, EndReason::FailedCommit),
            None => (self.current.tid, reason),
        };
        if reason == EndReason::WholeLog {
            self.problems.push(Problem::NoEnd);
        }
        let block = match self.failed {
            Some((_, block)) => block,
            None => self.at,
        };
        let committed = self.transactions.len();
        // Copies of the unfinished transaction have the index that it would have got.
        self.copies.truncate(self.copies.partition_point(|copy| (copy.transaction as usize) < committed));
        self.revoke_blocks.retain(|(_, of)| tid.is_after(*of));
        if self.current.log_blocks > 0 && self.failed.is_none() {
            self.unfinished = Some(self.current.clone());
        }
        LogEnd { tid, block, reason }
    }

    /// Processes one block; for a descriptor also the copies that follow it.
    fn step(&mut self) -> Result<Step, JournalFault> {
        if self.left == 0 {
            return Ok(Step::End(EndReason::WholeLog));
        }
        let (at, tid) = (self.at, self.current.tid);
        let block = self.log.block(at)?;
        let header = match Header::decode(block) {
            Ok(header) if header.tid == tid => header,
            Ok(header) => return Ok(Step::End(EndReason::OtherTransaction(header.tid))),
            Err(_) => return Ok(Step::End(EndReason::NotAJournalBlock)),
        };
        match header.kind {
            BlockType::Descriptor => {
                if !self.format.verify_tail(block) {
                    self.suspicious.get_or_insert(at);
                }
                if self.format.checksums == Checksums::V1 {
                    self.crc = crc32_be(self.crc, block);
                }
                let tags: Vec<Tag> = tags(self.format, block).collect();
                self.current.descriptors += 1;
                self.advance();
                self.copies_of(&tags)
            }
            BlockType::Revoke => {
                if !self.format.verify_tail(block) {
                    self.suspicious.get_or_insert(at);
                }
                // An impossible count is a fault only if the transaction turns out to be committed.
                let records = revokes(self.format, block).map_or(0, Iterator::count);
                self.current.revokes += records as u64;
                self.revoke_blocks.push((at, tid));
                self.advance();
                Ok(Step::Next)
            }
            BlockType::Commit => {
                let verdict = CommitBlock::verify(self.format, block);
                let Ok(commit) = CommitBlock::decode(block) else {
                    return Ok(Step::End(EndReason::NotAJournalBlock));
                };
                self.advance();
                self.judge(at, &commit, verdict)
            }
            BlockType::SuperblockV1 | BlockType::SuperblockV2 => Ok(Step::End(EndReason::ASuperblock)),
        }
    }

    fn copies_of(&mut self, tags: &[Tag]) -> Result<Step, JournalFault> {
        let tid = self.current.tid;
        for tag in tags {
            if self.left == 0 {
                return Ok(Step::End(EndReason::WholeLog));
            }
            let at = self.at;
            let mut verdict = Verdict::Sound;
            // Without checksums a copy is not read before it is needed.
            if self.format.checksums != Checksums::None {
                match self.log.block(at) {
                    Ok(block) => {
                        if self.format.checksums == Checksums::V1 {
                            self.crc = crc32_be(self.crc, block);
                        }
                        if !self.format.verify_tag(tid, tag, block) {
                            verdict = Verdict::WrongChecksum;
                        }
                    }
                    // The transaction's only checksum is unknown, so it cannot count as committed.
                    Err(_) if self.format.checksums == Checksums::V1 => {
                        self.problems.push(Problem::CopyUnreadable { tid, log_block: at, home: tag.block });
                        return Ok(Step::End(EndReason::Unreadable));
                    }
                    Err(_) => verdict = Verdict::Unreadable,
                }
            }
            self.copies.push(LoggedCopy {
                home: tag.block,
                log_block: at,
                transaction: self.transactions.len() as u32, // fewer than log blocks
                escaped: tag.escaped,
                verdict,
            });
            self.current.copies += 1;
            self.current.escaped += u32::from(tag.escaped);
            self.advance();
        }
        Ok(Step::Next)
    }

    /// Judges the transaction that ends with `commit` at log block `at`.
    fn judge(&mut self, at: u32, commit: &CommitBlock, verdict: CommitVerdict) -> Result<Step, JournalFault> {
        let tid = self.current.tid;
        let older = commit.seconds < self.last_commit_seconds;
        if let Some(block) = self.suspicious {
            // If its commit time is older than the previous one, these blocks are stale.
            return if older {
                Ok(Step::End(EndReason::Stale))
            } else {
                Err(JournalFault::Corrupt { tid, block })
            };
        }
        let is_right = match self.format.checksums {
            Checksums::V1 => commit.matches_v1(self.crc),
            _ => verdict != CommitVerdict::Mismatch,
        };
        if let Some((failed, log_block)) = self.failed {
            // The log continues after the wrong commit: that was no crash.
            if is_right || self.format.checksums == Checksums::V1 {
                self.problems.push(Problem::FailedCommit { tid: failed, log_block });
                return Ok(Step::End(EndReason::FailedCommit));
            }
        } else if !is_right {
            if older {
                return Ok(Step::End(EndReason::Stale));
            }
            self.failed = Some((tid, at));
            if !self.async_commit {
                self.problems.push(Problem::FailedCommit { tid, log_block: at });
                return Ok(Step::End(EndReason::FailedCommit));
            }
        } else if verdict == CommitVerdict::MatchHeaderOnly {
            self.problems.push(Problem::IncompleteCommit { tid, log_block: at });
        }
        self.last_commit_seconds = commit.seconds;
        self.current.commit = Some(CommitTime { seconds: commit.seconds, nanoseconds: commit.nanoseconds });
        Ok(Step::Committed)
    }

    /// Moves to the next block of the log, wrapping at its end.
    fn advance(&mut self) {
        self.current.log_blocks += 1;
        self.left -= 1;
        self.at += 1;
        if self.at >= self.end {
            self.at = self.first;
        }
    }
}

fn begin(tid: LogTid, first_log_block: u32) -> Transaction {
    Transaction {
        tid,
        first_log_block,
        log_blocks: 0,
        descriptors: 0,
        copies: 0,
        escaped: 0,
        replayed: 0,
        revokes: 0,
        commit: None,
    }
}

/// For each logged home the newest transaction that revokes it, `None` if none does. Also returns the first
/// fault.
fn youngest_revokes(
    log: &mut Sequential<'_>,
    format: LogFormat,
    copies: &[LoggedCopy],
    revoke_blocks: &[(u32, LogTid)],
) -> (HashMap<Pblk, Option<LogTid>>, Option<JournalFault>) {
    let mut fault = None;
    if revoke_blocks.is_empty() {
        return (HashMap::new(), fault);
    }
    let mut youngest: HashMap<Pblk, Option<LogTid>> = copies.iter().map(|copy| (copy.home, None)).collect();
    for &(at, tid) in revoke_blocks {
        let records = log.block(at).and_then(|block| {
            revokes(format, block).map_err(|fault| JournalFault::Revoke { tid, block: at, fault })
        });
        let records = match records {
            Ok(records) => records,
            Err(found) => {
                fault.get_or_insert(found);
                continue;
            }
        };
        for record in records {
            if let Some(known) = youngest.get_mut(&record)
                && known.is_none_or(|known| tid.is_after(known))
            {
                *known = Some(tid);
            }
        }
    }
    (youngest, fault)
}

/// Chooses the copy to replay for each home, and fills the plan.
fn choose(
    plan: &mut ReplayPlan,
    mut copies: Vec<LoggedCopy>,
    youngest: &HashMap<Pblk, Option<LogTid>>,
    log: LogView<'_>,
    target: &ReplayTarget,
) {
    copies.retain(|copy| {
        let (tid, log_block, home) =
            (plan.transactions[copy.transaction as usize].tid, copy.log_block, copy.home);
        // As in jbd2, an unreadable copy is a loss even if it is revoked; a copy with a wrong checksum is
        // not.
        if copy.verdict == Verdict::Unreadable {
            plan.problems.push(Problem::CopyUnreadable { tid, log_block, home });
            return false;
        }
        if youngest.get(&home).copied().flatten().is_some_and(|revoked| !tid.is_after(revoked)) {
            plan.revoked_copies += 1;
            return false;
        }
        let problem = if copy.verdict == Verdict::WrongChecksum {
            Problem::CopyChecksum { tid, log_block, home }
        } else if home.0 >= target.fs_blocks {
            Problem::HomeOutside { tid, log_block, home }
        } else if log.map().occupies(home) {
            Problem::HomeInLog { tid, log_block, home }
        } else {
            return true;
        };
        plan.problems.push(problem);
        false
    });
    copies.sort_by_key(|copy| copy.home); // stable: of one home, the oldest first
    let sound = copies.len();
    copies.dedup_by(|newer, kept| {
        let same = newer.home == kept.home;
        if same {
            *kept = *newer;
        }
        same
    });
    plan.superseded_copies = (sound - copies.len()) as u64;
    plan.homes = copies
        .iter()
        .map(|copy| {
            let transaction = &mut plan.transactions[copy.transaction as usize];
            transaction.replayed += 1;
            Home { block: copy.home, log_block: copy.log_block, escaped: copy.escaped, tid: transaction.tid }
        })
        .collect();
}

#[cfg(test)]
mod tests;
