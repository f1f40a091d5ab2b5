//! The result of a scan: what a replay would do.

use std::fmt;
use std::ops::Range;

use extant_base::{Malformed, Pblk};
use extant_jbd2_format::{Checksums, LogFormat, LogTid, Superblock};

use crate::fast_commit::FastCommitPlan;

/// Does anything wait in the log?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// No: the log's superblock says so.
    Clean,
    /// The log begins somewhere; it may still turn out to hold no transaction.
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
    /// Its id.
    pub tid: LogTid,
    /// Its first log block.
    pub first_log_block: u32,
    /// Log blocks that it takes: descriptors, copies, revokes and commit.
    pub log_blocks: u32,
    /// Descriptor blocks among them.
    pub descriptors: u32,
    /// Logged blocks among them.
    pub copies: u32,
    /// Copies whose first word is escaped.
    pub escaped: u32,
    /// Copies that are in the plan: the newest sound ones, not revoked.
    pub replayed: u32,
    /// Revoke records.
    pub revokes: u64,
    /// When it was committed; `None` for the unfinished one at the end.
    pub commit: Option<CommitTime>,
}

/// One block that a replay copies home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Home {
    /// Where it belongs.
    pub block: Pblk,
    /// The log block with its newest sound copy.
    pub log_block: u32,
    /// The copy's first word is to be replaced by the journal's magic.
    pub escaped: bool,
    /// The transaction of that copy.
    pub tid: LogTid,
}

/// Why the log ends where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The log is clean; nothing was walked.
    Clean,
    /// No journal block: never written, or the middle of an older round.
    NotAJournalBlock,
    /// A journal block of another transaction: the rest of an older round.
    OtherTransaction(LogTid),
    /// A superblock, of all things.
    ASuperblock,
    /// A transaction with wrong checksums that was committed before the one in front of it: left from an
    /// older use of these blocks, whose ids happen to fit.
    Stale,
    /// A commit block with a wrong checksum.
    FailedCommit,
    /// A block of the last transaction cannot be read, so that its checksum is unknown.
    Unreadable,
    /// Every block of the log was walked, and there was always another.
    WholeLog,
    /// A [`JournalFault`](crate::JournalFault); never in a plan that is to be used.
    Fault,
}

/// Where the log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogEnd {
    /// The first transaction that the log does not hold.
    pub tid: LogTid,
    /// The log block that ended the walk.
    pub block: u32,
    /// Why there.
    pub reason: EndReason,
}

/// Something in the log that cannot be replayed as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A copy does not match its checksum: its home keeps what an older copy, or the target itself, holds.
    CopyChecksum {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Where it belongs.
        home: Pblk,
    },
    /// A copy cannot be read: as above.
    CopyUnreadable {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Where it belongs.
        home: Pblk,
    },
    /// A copy belongs outside of the target: left out.
    HomeOutside {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Where it should belong.
        home: Pblk,
    },
    /// A copy belongs into the log itself: left out.
    HomeInLog {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Where it should belong.
        home: Pblk,
    },
    /// A transaction's commit block has a wrong checksum, though it is no remnant: this transaction and all
    /// behind it are lost.
    FailedCommit {
        /// The transaction.
        tid: LogTid,
        /// Log block of the commit block.
        log_block: u32,
    },
    /// Only the first sector of a commit block is right. It is taken as committed: that sector is all a
    /// writer promises.
    IncompleteCommit {
        /// The transaction.
        tid: LogTid,
        /// Log block of the commit block.
        log_block: u32,
    },
    /// The walk met no end: the log was made to go round in circles.
    NoEnd,
    /// The first fast commit is damaged: none is applied.
    FastCommit {
        /// The log block where that showed.
        log_block: u32,
        /// The rule that it breaks.
        fault: Malformed,
    },
    /// A block of the fast-commit area cannot be read: what it and the blocks behind it hold is not applied.
    FastCommitUnreadable {
        /// The log block.
        log_block: u32,
    },
}

impl Problem {
    /// Does it lose something that was committed? jbd2 and e2fsck replay around it, and then report that
    /// recovery failed: the file system needs a check. The others are worth a note only.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        !matches!(self, Self::IncompleteCommit { .. })
    }
}

/// What a replay would do. Plain numbers: it keeps no block but those of fast commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The log's superblock.
    pub superblock: Superblock,
    /// How its blocks are laid out.
    pub format: LogFormat,
    /// Does anything wait?
    pub state: State,
    /// The committed transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// The blocks of a transaction that was begun in the log and not committed: nothing of it is replayed.
    pub unfinished: Option<Transaction>,
    /// What is copied home, by [`Home::block`]; each home once.
    pub homes: Vec<Home>,
    /// Copies that a revoke record forbids.
    pub revoked_copies: u64,
    /// Sound copies with a newer sound one of the same home.
    pub superseded_copies: u64,
    /// What cannot be replayed as it should be.
    pub problems: Vec<Problem>,
    /// Where the log ends.
    pub end: LogEnd,
    /// The id of the next transaction that is written.
    pub next_tid: LogTid,
    /// The log block where it goes.
    pub head: u32,
    /// Log blocks of the fast-commit area; `None` when it is not in use.
    pub fast_commit_area: Option<Range<u32>>,
    /// The fast commits on top of the last transaction; `None` when there are none.
    pub fast_commits: Option<FastCommitPlan>,
}

impl ReplayPlan {
    /// Would a replay change nothing?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.homes.is_empty() && self.fast_commits.is_none()
    }

    /// Is everything that was committed in the plan? See [`Problem::is_loss`].
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.problems.iter().any(Problem::is_loss)
    }

    /// The copy of a home, if the plan has one.
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CopyChecksum { tid, log_block, home } => write!(
                f,
                "log block {log_block}: copy of block {home} in transaction {tid}: checksum WRONG; it is not replayed"
            ),
            Self::CopyUnreadable { tid, log_block, home } => write!(
                f,
                "log block {log_block}: copy of block {home} in transaction {tid} cannot be read; it is not replayed"
            ),
            Self::HomeOutside { tid, log_block, home } => write!(
                f,
                "log block {log_block}: copy of block {home} in transaction {tid} belongs outside of the file \
                 system; it is not replayed"
            ),
            Self::HomeInLog { tid, log_block, home } => write!(
                f,
                "log block {log_block}: copy of block {home} in transaction {tid} belongs into the journal; it is \
                 not replayed"
            ),
            Self::FailedCommit { tid, log_block } => write!(
                f,
                "log block {log_block}: commit of transaction {tid}: checksum WRONG; it and all behind it is lost"
            ),
            Self::IncompleteCommit { tid, log_block } => write!(
                f,
                "log block {log_block}: commit of transaction {tid}: only its first sector is right, which is enough"
            ),
            Self::NoEnd => f.write_str("the log has no end: it was made to go round in circles"),
            Self::FastCommit { log_block, fault } => {
                write!(f, "log block {log_block}: {fault}; no fast commit is applied")
            }
            Self::FastCommitUnreadable { log_block } => {
                write!(f, "log block {log_block} cannot be read; fast commits from it on are not applied")
            }
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

/// The dump: stable, one fact per line, homes that follow each other in log and target joined.
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
