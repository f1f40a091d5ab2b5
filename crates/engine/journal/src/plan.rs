//! The result of a scan: what a replay would do.

use std::fmt;
use std::ops::Range;

use extant_base::Pblk;
use extant_jbd2_format::{Checksums, LogFormat, LogTid, Superblock};

use crate::fast_commit::FastCommitPlan;
use crate::problem::Problem;

/// Whether the log needs replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The log's superblock says that the log is clean.
    Clean,
    /// The log has a start. It may still hold no transaction.
    NeedsReplay,
}

/// When a transaction was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommitTime {
    /// Seconds since 1970.
    pub seconds: u64,
    /// The rest, in nanoseconds.
    pub nanoseconds: u32,
}

/// A transaction in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its transaction ID.
    pub tid: LogTid,
    /// Its first log block.
    pub first_log_block: u32,
    /// Its log blocks: descriptors, copies, revoke blocks and commit block.
    pub log_blocks: u32,
    /// Descriptor blocks.
    pub descriptors: u32,
    /// Logged blocks.
    pub copies: u32,
    /// Copies with an escaped first word.
    pub escaped: u32,
    /// Copies in the plan: the newest sound ones, not revoked.
    pub replayed: u32,
    /// Revoke records.
    pub revokes: u64,
    /// When it was committed; `None` for an unfinished transaction at the end of the log.
    pub commit: Option<CommitTime>,
}

/// A block that a replay copies home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Home {
    /// The home of the copy.
    pub block: Pblk,
    /// The log block with its newest sound copy.
    pub log_block: u32,
    /// The replay must put the journal's magic number into the copy's first word.
    pub escaped: bool,
    /// The copy's transaction.
    pub tid: LogTid,
}

/// Why the log ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The log is clean; it was not scanned.
    Clean,
    /// Not a journal block: never written, or in the middle of stale data.
    NotAJournalBlock,
    /// A journal block of another transaction: stale data from an older pass over the log.
    OtherTransaction(LogTid),
    /// A superblock, which does not belong there.
    ASuperblock,
    /// A transaction with wrong checksums and an older commit time than its predecessor: stale data with
    /// transaction IDs that happen to fit.
    Stale,
    /// A commit block with a wrong checksum.
    FailedCommit,
    /// A block of the last transaction cannot be read, so its checksum is unknown.
    Unreadable,
    /// The scan visited every block of the log without finding an end.
    WholeLog,
    /// A [`JournalFault`](crate::JournalFault). A plan with this reason is never used for a replay.
    Fault,
}

/// Where the log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogEnd {
    /// The first transaction that the log does not hold.
    pub tid: LogTid,
    /// The log block that ended the scan.
    pub block: u32,
    /// The reason.
    pub reason: EndReason,
}

/// The result of a scan. It keeps no block contents except those of fast commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The log's superblock.
    pub superblock: Superblock,
    /// The layout of its blocks.
    pub format: LogFormat,
    /// Whether the log needs replay.
    pub state: State,
    /// The committed transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// A transaction in the log that was not committed: nothing of it is replayed.
    pub unfinished: Option<Transaction>,
    /// The blocks to copy home, sorted by [`Home::block`], each home once.
    pub homes: Vec<Home>,
    /// Copies that a revoke record excludes.
    pub revoked_copies: u64,
    /// Sound copies replaced by a newer sound copy of the same home.
    pub superseded_copies: u64,
    /// Parts of the log that cannot be replayed.
    pub problems: Vec<Problem>,
    /// Where the log ends.
    pub end: LogEnd,
    /// The ID of the next transaction to write.
    pub next_tid: LogTid,
    /// The log block where the next transaction begins.
    pub head: u32,
    /// Log blocks of the fast-commit area; `None` if it is not in use.
    pub fast_commit_area: Option<Range<u32>>,
    /// The fast commits after the last transaction; `None` if there are none.
    pub fast_commits: Option<FastCommitPlan>,
}

impl ReplayPlan {
    /// Whether a replay would change nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.homes.is_empty() && self.fast_commits.is_none()
    }

    /// Whether the plan contains everything that was committed. See [`Problem::is_loss`].
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.problems.iter().any(Problem::is_loss)
    }

    /// The planned copy of a home.
    #[must_use]
    pub fn home(&self, block: Pblk) -> Option<&Home> {
        self.homes.binary_search_by_key(&block, |home| home.block).ok().map(|at| &self.homes[at])
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => f.write_str("the journal is clean"),
            Self::NotAJournalBlock => f.write_str("no journal block"),
            Self::OtherTransaction(tid) => write!(f, "a block of transaction {tid}"),
            Self::ASuperblock => f.write_str("a superblock"),
            Self::Stale => f.write_str("a transaction from an older use of the log"),
            Self::FailedCommit => f.write_str("a commit block with a wrong checksum"),
            Self::Unreadable => f.write_str("a block that cannot be read"),
            Self::WholeLog => f.write_str("the whole log was walked"),
            Self::Fault => f.write_str("a damaged block"),
        }
    }
}

impl fmt::Display for CommitTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanoseconds)
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "transaction {}: from log block {}, {} blocks, {} copies ({} escaped, {} replayed), {} revokes, ",
            self.tid,
            self.first_log_block,
            self.log_blocks,
            self.copies,
            self.escaped,
            self.replayed,
            self.revokes
        )?;
        match self.commit {
            Some(time) => write!(f, "committed {time}"),
            None => f.write_str("NOT committed"),
        }
    }
}

/// The dump. Its format is stable: one fact per line; homes that are contiguous in log and target are joined.
impl fmt::Display for ReplayPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = &self.superblock;
        let checksums = match self.format.checksums {
            Checksums::None => "no checksums",
            Checksums::V1 => "checksums version 1",
            Checksums::V2 => "checksums version 2",
            Checksums::V3 => "checksums version 3",
        };
        writeln!(
            f,
            "journal: {} blocks of {}, log in {}..{}, {checksums}, {} bits",
            sb.total_blocks,
            sb.block_size,
            sb.first,
            sb.log_end(),
            if self.format.wide { 64 } else { 32 }
        )?;
        match self.state {
            State::Clean => writeln!(f, "clean")?,
            State::NeedsReplay => {
                writeln!(f, "begins with transaction {} at log block {}", sb.sequence, sb.start)?;
            }
        }
        for transaction in self.transactions.iter().chain(&self.unfinished) {
            writeln!(f, "{transaction}")?;
        }
        writeln!(
            f,
            "{} homes, {} copies superseded, {} revoked",
            self.homes.len(),
            self.superseded_copies,
            self.revoked_copies
        )?;
        let mut rest = self.homes.as_slice();
        while let Some(first) = rest.first() {
            let follows = |n: usize, home: &Home| {
                home.block.0 - first.block.0 == n as u64
                    && u64::from(home.log_block) == u64::from(first.log_block) + n as u64
                    && (home.escaped, home.tid) == (first.escaped, first.tid)
            };
            let len = rest.iter().enumerate().take_while(|(n, home)| follows(*n, home)).count();
            let escaped = if first.escaped { ", escaped" } else { "" };
            match len {
                1 => write!(f, "  {} from log block {}", first.block, first.log_block)?,
                _ => {
                    let last = &rest[len - 1];
                    write!(f, "  {}..{} from log block {}", first.block, last.block, first.log_block)?;
                    write!(f, "..{}", last.log_block)?;
                }
            }
            writeln!(f, ", transaction {}{escaped}", first.tid)?;
            rest = &rest[len..];
        }
        writeln!(
            f,
            "ends at log block {} instead of transaction {}: {}",
            self.end.block, self.end.tid, self.end.reason
        )?;
        writeln!(f, "next is transaction {} at log block {}", self.next_tid, self.head)?;
        if let Some(area) = &self.fast_commit_area {
            writeln!(f, "fast-commit area in {}..{}", area.start, area.end)?;
        }
        if let Some(fast_commits) = &self.fast_commits {
            writeln!(f, "{fast_commits}")?;
        }
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        Ok(())
    }
}
