//! Counters of a journal.

#[cfg(doc)]
use super::Batching;

/// Why a transaction was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitReason {
    /// The commit interval had passed.
    Interval,
    /// A caller waits until its changes are durable: fsync, sync, O_SYNC.
    Sync,
    /// The transaction was full.
    Full,
    /// A caller needs space that the transaction has freed.
    NoSpace,
    /// The journal is closed.
    Close,
}

impl CommitReason {
    /// All reasons, in the order of [`Stats::commits_for`].
    pub const ALL: [Self; 5] = [Self::Interval, Self::Sync, Self::Full, Self::NoSpace, Self::Close];
}

/// Counters since the journal was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Handles started.
    pub handles: u64,
    /// Transactions committed.
    pub commits: u64,
    /// The same by reason, in the order of [`CommitReason::ALL`].
    pub commits_for: [u64; CommitReason::ALL.len()],
    /// Nanoseconds that the commits took, from the wait for open handles to the durable commit block.
    pub commit_nanos: u64,
    /// The longest of them.
    pub commit_nanos_max: u64,
    /// The last of them.
    pub commit_nanos_last: u64,
    /// Blocks logged by these commits.
    pub logged_blocks: u64,
    /// Blocks logged by the last commit.
    pub logged_blocks_last: u64,
    /// Log blocks written, including descriptors, revoke blocks and commit blocks.
    pub log_blocks: u64,
    /// Revoke records written.
    pub revokes: u64,
    /// Fast commits.
    pub fast_commits: u64,
    /// Blocks written by fast commits.
    pub fast_blocks: u64,
    /// Blocks written home.
    pub home_blocks: u64,
    /// Checkpoints: the log was emptied, or left with its last transaction only.
    pub checkpoints: u64,
    /// Commits that found the log full and had to wait for one or two checkpoints.
    pub full_log_waits: u64,
    /// Committed blocks now held in memory until they are written home.
    pub pinned_blocks: u64,
    /// The maximum of `pinned_blocks` so far.
    pub pinned_blocks_max: u64,
    /// Times a handle waited because the running transaction was full or being sealed.
    pub start_waits: u64,
    /// Nanoseconds during which no handle could start because a transaction was being sealed.
    pub sealing_nanos: u64,
    /// Times a commit waited for changes of other callers: see [`Batching`].
    pub batch_waits: u64,
    /// Size of the log in blocks; 0 without a log.
    pub log_size_blocks: u64,
    /// Blocks of the log in use now: by transactions that are not written home.
    pub log_used_blocks: u64,
    /// Blocks of the running transaction.
    pub running_blocks: u64,
    /// Milliseconds since the first block of the running transaction was changed.
    pub running_age_ms: u64,
}
