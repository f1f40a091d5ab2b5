//! Options of a journal, set when it is opened.

use super::Batching;
#[cfg(doc)]
use super::Journal;

/// Mistakes on purpose, for the crash lab: each must be found by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// Revoke records are not written.
    pub skip_revokes: bool,
    /// No flush before the commit block.
    pub skip_barrier: bool,
    /// The tail moves before homes were flushed.
    pub skip_checkpoint_flush: bool,
    /// The commit block goes to the log before what it commits.
    pub commit_block_first: bool,
    /// What goes home is taken from the cache when the log was written, not when the transaction was sealed.
    pub late_homes: bool,
    /// What the running transaction changed counts as written, once what was committed before is.
    pub clean_early: bool,
    /// Planted bug: freed blocks are used again before the commit. (Read by the journal's client.)
    pub reuse_freed: bool,
    /// Planted bug: freed blocks are discarded at the end of the operation, before the commit. (Read by the
    /// journal's client.)
    pub discard_early: bool,
    /// Planted bug: inodes without links are not written with the transaction that makes them orphans. (Read
    /// by the journal's client.)
    pub forget_orphans: bool,
    /// Planted bug: blocks count as written before their bytes are on the device. (Read by the journal's
    /// client, like all that follow.)
    pub convert_early: bool,
    /// The size on disk is that of the file in memory as soon as blocks are allocated.
    pub size_early: bool,
    /// A commit of a file counts as the flush of its bytes, whenever it was.
    pub trust_any_commit: bool,
    /// What stands behind the end in its block is not zeroed, when a file is cut, nor when it grows.
    pub keep_tails: bool,
    /// The flush of a log that is elsewhere counts as one of the device that has the bytes.
    pub trust_log_flush: bool,
}

/// How a journal works.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Do not flush at commits and checkpoints: for measurements, and devices whose writes are durable.
    pub no_barriers: bool,
    /// Blocks of a transaction at most; 0 for half of the log.
    pub transaction_max: u32,
    /// Bytes of committed blocks that may wait in memory to be written home, before a checkpoint is due; 0
    /// for as many as the log holds.
    pub pinned_bytes_max: usize,
    /// A thread calls [`Journal::commit`] when [`Journal::wait_for_work`] returns; without one, the operation
    /// that fills a transaction commits it.
    pub has_committer: bool,
    /// Whether, and how long, [`Journal::commit_with_others`] waits for them.
    pub batching: Option<Batching>,
    /// The file system's block numbers have 64 bits (its feature `64bit`): the log's get the feature, too.
    pub is_wide: bool,
    /// The file system's blocks carry checksums (`metadata_csum`): the log's do, too. Else none of them does.
    pub has_checksums: bool,
    /// Everything in the log is home but its fast commits: see [`Supersede`].
    pub supersede: Option<Supersede>,
    /// For the crash lab.
    pub sabotage: Sabotage,
}

/// The first transaction takes the place of the fast commits that wait in a log: it gets the number that they
/// stand for. Until its commit block is durable they count, from then on it does, so that they can be written
/// back in one step. It may fill the log, which holds nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supersede {
    /// The transaction that the fast commits stand for.
    pub tid: extant_jbd2_format::LogTid,
    /// The log block where it goes: behind the last one.
    pub head: u32,
}
