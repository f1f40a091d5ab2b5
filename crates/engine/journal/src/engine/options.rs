//! Options of a journal, set when it is opened.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Batching;
#[cfg(doc)]
use super::Journal;

/// A deliberate bug for the crash lab, which must find each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Revoke records are not written.
    SkipRevokes,
    /// No flush before the commit block.
    SkipBarrier,
    /// The tail moves before homes are flushed.
    SkipCheckpointFlush,
    /// The commit block is written before the blocks that it commits.
    CommitBlockFirst,
    /// Homes get the bytes that the cache has after the log write, not those of the sealed transaction.
    LateHomes,
    /// Changes of the running transaction count as written once the committed ones are.
    CleanEarly,
    /// Freed blocks are reused before the commit. (Done by the journal's user.)
    ReuseFreed,
    /// Freed blocks are discarded at the end of the operation, before the commit. (Done by the journal's
    /// user.)
    DiscardEarly,
    /// Inodes without links are not written in the transaction that makes them orphans. (Done by the
    /// journal's user.)
    ForgetOrphans,
    /// Blocks count as written before their bytes are on the device. (Done by the journal's user, like all
    /// that follow.)
    ConvertEarly,
    /// The size on disk becomes the size in memory as soon as blocks are allocated.
    SizeEarly,
    /// Any commit of a file counts as the flush of its bytes, even an earlier one.
    TrustAnyCommit,
    /// The rest of the last block after the end of the file is not zeroed when a file is truncated or grows.
    KeepTails,
    /// A flush of an external log counts as a flush of the device that has the bytes.
    TrustLogFlush,
    /// A fast commit is written without a flush of the data that its records refer to.
    FastTailFirst,
    /// The records of names are left out of fast commits.
    FastLosesNames,
    /// Changes that have no records are left out of fast commits.
    FastHidesOthers,
    /// A fast commit continues after those of an earlier transaction, with which a scan ends.
    FastAfterStale,
}

/// The deliberate bug of a run of the crash lab. Without the feature `sabotage` there is none, and the code
/// of the bugs is not compiled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    #[cfg(feature = "sabotage")]
    bug: Option<Bug>,
}

impl Sabotage {
    /// This bug.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn with(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether this is the bug.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// False.
    #[cfg(not(feature = "sabotage"))]
    #[must_use]
    pub const fn has(self, _bug: Bug) -> bool {
        false
    }
}

/// Options of a journal.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Do not flush at commits and checkpoints: for measurements, and for devices with durable writes.
    pub no_barriers: bool,
    /// The most blocks of a transaction; 0 for half of the log.
    pub transaction_max: u32,
    /// The most bytes of committed blocks held in memory before a checkpoint is due; 0 for as many as the log
    /// holds.
    pub pinned_bytes_max: usize,
    /// A thread calls [`Journal::commit`] when [`Journal::wait_for_work`] returns it. Otherwise the thread
    /// that finds a transaction full commits it.
    pub has_committer: bool,
    /// Whether, and how long, [`Journal::commit_with_others`] waits.
    pub batching: Option<Batching>,
    /// The file system has 64-bit block numbers (feature `64bit`): the log gets the feature, too.
    pub is_wide: bool,
    /// The file system's metadata has checksums (`metadata_csum`): the log gets them, too. Otherwise it has
    /// none.
    pub has_checksums: bool,
    /// Everything in the log is home except its fast commits: see [`Supersede`].
    pub supersede: Option<Supersede>,
    /// Fast commits may be written: the file system has the feature `fast_commit`, and the
    /// [client](super::Client) describes changes as records.
    pub fast_commits: bool,
    /// The time in commit blocks, in seconds since 1970, instead of the clock's.
    pub fixed_time: Option<u64>,
    /// For the crash lab.
    pub sabotage: Sabotage,
}

impl Options {
    /// The time of a commit block now, in seconds and nanoseconds since 1970.
    pub(super) fn commit_time(&self) -> (u64, u32) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.fixed_time.map_or((now.as_secs(), now.subsec_nanos()), |seconds| (seconds, 0))
    }
}

/// The first transaction replaces the fast commits in a log, under the transaction number that they stand
/// for. The fast commits count until the commit block is durable, the transaction counts afterwards: the
/// switch is atomic. The transaction may fill the log, which holds nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supersede {
    /// The transaction that the fast commits stand for.
    pub tid: extant_jbd2_format::LogTid,
    /// The log block where it is written: after the last transaction.
    pub head: u32,
}
