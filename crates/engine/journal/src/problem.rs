//! Parts of a log that cannot be replayed.

use std::fmt;

use extant_base::{Malformed, Pblk};
use extant_jbd2_format::LogTid;

/// A part of the log that cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A copy does not match its checksum. Its home keeps an older copy, or its present contents.
    CopyChecksum {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Its home.
        home: Pblk,
    },
    /// A copy cannot be read; consequences as above.
    CopyUnreadable {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Its home.
        home: Pblk,
    },
    /// A copy's home lies outside the target: the copy is left out.
    HomeOutside {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Its home.
        home: Pblk,
    },
    /// A copy's home lies in the log itself: the copy is left out.
    HomeInLog {
        /// Its transaction.
        tid: LogTid,
        /// Its log block.
        log_block: u32,
        /// Its home.
        home: Pblk,
    },
    /// A transaction's commit block has a wrong checksum, and it is not stale data: this transaction and all
    /// later ones are lost.
    FailedCommit {
        /// The transaction.
        tid: LogTid,
        /// Log block of the commit block.
        log_block: u32,
    },
    /// Only the first sector of a commit block is intact. The transaction counts as committed: writers
    /// guarantee no more than that sector.
    IncompleteCommit {
        /// The transaction.
        tid: LogTid,
        /// Log block of the commit block.
        log_block: u32,
    },
    /// The scan found no end: the log was crafted to loop.
    NoEnd,
    /// The first fast commit is damaged: no fast commit is applied.
    FastCommit {
        /// The log block with the damage.
        log_block: u32,
        /// The broken rule.
        fault: Malformed,
    },
    /// A block of the fast-commit area cannot be read: fast commits from it on are not applied.
    FastCommitUnreadable {
        /// The log block.
        log_block: u32,
    },
}

impl Problem {
    /// Whether committed changes are lost. jbd2 and e2fsck skip the affected part, replay the rest, and
    /// report that recovery failed: the file system needs a check. The other problems are only worth a note.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        !matches!(self, Self::IncompleteCommit { .. })
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
