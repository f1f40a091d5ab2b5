//! Fast commits: the running transaction becomes durable as a few records, and goes on running.
//!
//! ```text
//!   handles end --> client: names, inodes, ranges since the last one --> handles start again
//!                                  | records                              (no waiting for the device)
//!                                  v
//!   fast-commit area:  HEAD ... TAIL | ... TAIL | ... TAIL      valid until the transaction is in the log
//! ```
//!
//! A fast commit contains the changes of *all* operations since the last one, so it is as good as a commit of
//! the transaction. If an operation has changed something that no record describes, the transaction needs a
//! full commit: each [`Handle`] says at its end whether its changes are described.
//!
//! Invariants
//! 1. A fast commit is written only while all changes of the running transaction are described, and all
//!    transactions before it are durable in the log.
//! 2. The data that ADD_RANGE records refer to is durable before the TAIL.
//! 3. Nothing that a fast commit frees is used again before the full commit: only that one is reported to
//!    [`Client::committed`].
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst, "Fast commits".

use extant_base::Tid;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_jbd2_format::fast_commit::Writer as Records;

use super::{Aborted, Bug, Failure, Journal};
#[cfg(doc)]
use super::{Client, Handle};

/// What a client described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Described {
    /// Nothing has changed since the last fast commit.
    Nothing,
    /// The records are complete. `has_data`: they refer to data that was written to the device.
    All {
        /// Whether the device must be flushed before the records count.
        has_data: bool,
    },
    /// A full commit is needed.
    No,
}

/// The result of [`Journal::commit_fast`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastCommit {
    /// The transaction is durable so far. The number is that of the last flush that ended before the return
    /// and that this call knows of, 0 for none: see [`Journal::fast_flushes`].
    Durable(u64),
    /// Not written: a full commit is needed.
    Refused,
}

/// What is known of fast commits.
pub(super) struct FastState {
    /// The last transaction that has changes without records.
    undescribed: AtomicU64,
    /// The number of the next flush for a fast commit.
    flushes: AtomicU64,
}

impl Default for FastState {
    fn default() -> Self {
        Self { undescribed: AtomicU64::new(0), flushes: AtomicU64::new(1) }
    }
}

impl FastState {
    /// The transaction needs a full commit.
    pub(super) fn note_undescribed(&self, transaction: Tid) {
        if self.undescribed.load(Ordering::Relaxed) < transaction.0 {
            self.undescribed.fetch_max(transaction.0, Ordering::AcqRel);
        }
    }

    fn is_undescribed(&self, transaction: Tid) -> bool {
        self.undescribed.load(Ordering::Acquire) >= transaction.0
    }
}

impl Journal {
    /// The number of the next flush for a fast commit. If it is read before a fast commit that returns a
    /// number as large or larger, that flush has covered everything written before.
    #[must_use]
    pub fn fast_flushes(&self) -> u64 {
        self.fast.flushes.load(Ordering::Acquire)
    }

    /// Makes the changes of a transaction durable so far, without ending it, if it is the running one and if
    /// all its changes can be described as records. `has_data`: the caller has written data that must be
    /// durable, too.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_fast(&self, transaction: Tid, has_data: bool) -> Result<FastCommit, Aborted> {
        if !self.options.fast_commits || self.committed() >= transaction || self.is_undescribed(transaction) {
            return Ok(FastCommit::Refused);
        }
        let mut writing = self.begin_writing()?;
        if self.committed() >= transaction {
            return Ok(FastCommit::Refused);
        }
        let Some(mut records) = writing.log().and_then(|log| log.begin_fast()) else {
            return Ok(FastCommit::Refused);
        };
        let described = match self.describe(transaction, &mut records) {
            Ok(described) => described,
            Err(cause) => return Err(writing.abort(cause)),
        };
        let needs_flush = match described {
            Described::Nothing => {
                let last = self.fast.flushes.load(Ordering::Acquire).saturating_sub(1);
                return Ok(FastCommit::Durable(last));
            }
            Described::All { has_data: of_records } => has_data || of_records,
            Described::No => {
                self.fast.note_undescribed(transaction);
                return Ok(FastCommit::Refused);
            }
        };
        let log = writing.log().expect("records were begun for it");
        let Some(commit) = log.finish_fast(records) else {
            // The area is full.
            self.fast.note_undescribed(transaction);
            return Ok(FastCommit::Refused);
        };
        // Only a flush gets a number. The lock is held, so the flush ends before the next one begins.
        let number = match needs_flush {
            true => self.fast.flushes.fetch_add(1, Ordering::AcqRel),
            false => 0,
        };
        match log.write_fast(&commit, needs_flush) {
            Ok(blocks) => {
                let mut stats = self.stats.lock();
                stats.fast_commits += 1;
                stats.fast_blocks += u64::from(blocks);
                Ok(FastCommit::Durable(number))
            }
            Err(cause) => Err(writing.abort(cause)),
        }
    }

    /// Lets the client describe the transaction while no handle is open.
    fn describe(&self, transaction: Tid, records: &mut Records) -> Result<Described, Failure> {
        let mut running = self.running.lock();
        // Recovery makes the changes in one transaction, and estimates them less closely.
        let blocks = running.transaction.len() + self.client().blocks_to_come();
        if running.transaction.number != transaction || blocks > self.transaction_max / 4 {
            return Ok(Described::No);
        }
        running.is_locked = true;
        self.lanes.shut();
        while running.handles > 0 || self.lanes.open() > 0 {
            self.changed.wait(&mut running);
        }
        if let Some(aborted) = self.aborted.get() {
            return Err(Failure::Aborted(aborted.cause.clone()));
        }
        drop(running);
        let described = match self.is_undescribed(transaction) {
            true => Described::No,
            // What cannot be read now is left to the full commit.
            false => self.client().describe(transaction, records).unwrap_or(Described::No),
        };
        let mut running = self.running.lock();
        running.is_locked = false;
        self.lanes.reopen(transaction);
        self.changed.notify_all();
        Ok(described)
    }

    fn is_undescribed(&self, transaction: Tid) -> bool {
        self.fast.is_undescribed(transaction) && !self.options.sabotage.has(Bug::FastHidesOthers)
    }
}
