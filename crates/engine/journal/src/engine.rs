//! The live journal: many threads change blocks, and many operations share one commit.
//!
//! ```text
//!          start         closed: no new handles    all blocks taken      commit block is durable
//! (none) --------> RUNNING -------------> SEALING ------------> COMMITTING ----------> CHECKPOINT ----> gone
//!                  handles change blocks    |  client encodes   checksums, log,        blocks are written
//!                                           |  its values       flush, commit block    home, by number
//!                                           '--> the next one is RUNNING
//! ```
//! The *values* of the [`Client`] are what it keeps decoded in memory: inodes, inode bitmaps, descriptors.
//!
//! New handles wait at the beginning of SEALING, until the open handles have ended and
//! [`Client::before_commit`] has separated the values of the closed transaction from those of the next. Then
//! the next transaction starts, and the committer *takes* the blocks of the closed one: it gets references to
//! their bytes in the cache. (If the closed transaction has at most `FEW` blocks, the committer takes them
//! before the next transaction starts, which is faster.)
//!
//! An operation never waits for a block that is being committed. If it changes a block that is not taken yet,
//! the cache keeps the old version for the committer. If it changes a taken block, the change goes to a copy
//! while the committer still has the reference. If the block contains a checksum of its own, the committer
//! soon copies the block for the log, in order to fill in the checksum, and drops the reference: from then on
//! changes need no copy.
//!
//! Some operations do not change a block's bytes, but leave the change beside the block
//! ([`PendingChange`](extant_buffer::PendingChange)), so that the block need not be fetched. When the block
//! is taken, the cache makes a copy of it with these changes, and the copy replaces the block in the cache.
//! (If the block is read or changed earlier, the changes are applied then.)
//!
//! Invariants
//! 1. INV-EN2: a home is written only with bytes of a committed transaction.
//! 2. INV-EN3: a log block is reused only after every block of its transaction is safe: written home,
//!    replaced at home by a newer committed copy, or present in a later transaction of the log. Before the
//!    reuse the home device is flushed, and the log's superblock records the new tail durably.
//! 3. A transaction's log blocks are durable before its commit block is written; the commit block is durable
//!    before [`Journal::committed`] reports the transaction (with barriers on).
//! 4. INV-EN7: after the first failure nothing is written except a note of it: [`Aborted`] is latched with
//!    its cause.
//! 5. A thread holds at most one handle, and starts a commit only while it holds none.
//!
//! Most handles start and end without a lock: in *lanes*, which are per-thread slots (module `lanes`). The
//! lanes are open while the running transaction has plenty of room.
//!
//! Lock order: `writer` (one commit or checkpoint at a time), `running`, a transaction's list, the cache's
//! shards.

mod batching;
mod checkpoint;
mod checksums;
mod commit;
mod fast;
mod handle;
mod images;
mod lanes;
mod log_writer;
mod options;
mod pieces;
mod stats;
mod transaction;

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Instant;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{CachePadded, Condvar, Mutex};
use extant_base::{Pblk, Tid};
use extant_buffer::{Buffers, ReadFault, Seal};
use extant_device::{Device, DeviceFault};

pub use self::batching::Batching;
pub use self::checksums::TailChecksum;
pub use self::fast::{Described, FastCommit};
pub use self::handle::Handle;
pub use self::log_writer::OpenLogFault;
pub use self::options::{Bug, Options, Sabotage, Supersede};
pub use self::stats::{CommitReason, Stats};

use self::batching::Batcher;
use self::checksums::Reseeds;
use self::commit::{Writer, Writing};
use self::fast::FastState;
use self::lanes::Lanes;
use self::log_writer::LogWriter;
use self::transaction::Transaction;

/// Work for the committer thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// [`Journal::commit`] this transaction: a caller waits for it, or it is full.
    Commit(Tid),
    /// [`Journal::commit_all`]: the commit interval has passed.
    CommitAll,
    /// [`Journal::make_room`].
    Checkpoint,
}

/// Keeps a file system's values in memory, and computes the checksums of its blocks.
pub trait Client: Send + Sync {
    /// Separates the values of this transaction from those of the next. No handle is open, and none starts
    /// until this returns. Small values (group descriptors) are written into blocks here.
    ///
    /// # Errors
    /// A block could not be read; the journal aborts.
    fn before_commit(&self, handle: &Handle<'_>) -> Result<(), ReadFault>;

    /// Writes the other values of this transaction (inodes) into blocks, while the next transaction runs. It
    /// may change only blocks that nothing else changes.
    ///
    /// # Errors
    /// As [`before_commit`](Self::before_commit).
    fn write_values(&self, handle: &Handle<'_>) -> Result<(), ReadFault>;

    /// Upper bound on the blocks that these two calls add to those the transaction already has.
    fn blocks_to_come(&self) -> u32;

    /// Puts a block's checksum in place.
    fn seal(&self, block: Pblk, seal: Seal, bytes: &mut [u8]);

    /// The checksum of a block that keeps it in its last four bytes and computes it over a prefix of the
    /// block: the value that [`seal`](Self::seal) would store. `has_sum`: the block already ends in it (see
    /// [`extant_buffer::PendingChange`]). `None` if the checksum is stored elsewhere or computed differently.
    fn tail_checksum(&self, _seal: Seal, _bytes: &[u8], _has_sum: bool) -> Option<TailChecksum> {
        None
    }

    /// Whether a block of this kind contains a checksum. If not, it is logged without a copy.
    fn has_checksum(&self, seal: Seal) -> bool;

    /// This transaction, and all before it, are durable. Called in order, without the handles' lock.
    fn committed(&self, transaction: Tid);

    /// Describes what the described handles of this transaction have changed since the last call. No handle
    /// is open, and none starts until this returns. Called only with [`Options::fast_commits`].
    ///
    /// # Errors
    /// A block could not be read: the transaction gets a full commit.
    fn describe(
        &self,
        _transaction: Tid,
        _records: &mut extant_jbd2_format::fast_commit::Writer,
    ) -> Result<Described, ReadFault> {
        Ok(Described::No)
    }
}

/// The journal was aborted and writes nothing any more.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the journal was aborted: {cause}; nothing is written any more; unmount, and check the image")]
pub struct Aborted {
    /// The first failure.
    pub cause: String,
}

/// Why a handle could not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartFault {
    /// The journal was aborted.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// The log is too small for the operation. Nothing is damaged.
    #[error(
        "the operation may change {wanted} blocks, and a transaction of this journal has room for {max}; make a larger journal"
    )]
    TooLarge {
        /// Blocks requested.
        wanted: u32,
        /// Blocks a handle may have at most.
        max: u32,
    },
}

/// A journal open for writing. Without a log it keeps the same order, and writes homes at each commit.
pub struct Journal {
    buffers: Arc<Buffers>,
    home: Arc<dyn Device>,
    client: OnceLock<Arc<dyn Client>>,
    options: Options,
    transaction_max: u32,
    running: CachePadded<Mutex<Running>>,
    lanes: Lanes,
    /// Block counts of the running transaction and the one before, indexed by the last bit of their numbers.
    lens: [Arc<CachePadded<AtomicU32>>; 2],
    /// Notified when the running transaction changes, handles end, or a commit ends.
    changed: CachePadded<Condvar>,
    writer: CachePadded<Mutex<Writer>>,
    committed: AtomicU64,
    requested: AtomicU64,
    fast: FastState,
    /// The committer should write homes: many blocks are pinned, or half the log is used.
    is_checkpoint_due: AtomicBool,
    is_closing: AtomicBool,
    aborted: OnceLock<Aborted>,
    batcher: Batcher,
    reseeds: Reseeds,
    stats: Mutex<Stats>,
}

struct Running {
    transaction: Arc<Transaction>,
    /// Handles started under the lock. `waits`: how often one waited.
    started: u64,
    waits: u64,
    /// Open handles, except those in lanes.
    handles: u32,
    is_locked: bool,
}

impl Journal {
    /// A journal over `home`; `buffers` caches the blocks of `home`. The log must have been replayed.
    ///
    /// # Errors
    /// The log's superblock cannot be read, or it says that the log needs replay.
    pub fn open(
        buffers: Arc<Buffers>,
        home: Arc<dyn Device>,
        log: Option<crate::Log>,
        options: Options,
    ) -> Result<Self, OpenLogFault> {
        let log = log.map(|log| LogWriter::open(log, &options)).transpose()?;
        // Without a log only memory bounds a transaction.
        let log_max = log.as_ref().map_or(1 << 16, LogWriter::transaction_max);
        let transaction_max = match options.transaction_max {
            0 => log_max,
            max => max.min(log_max),
        };
        let batcher = Batcher::new(options.batching);
        let log_size_blocks = log.as_ref().map_or(0, |log| log.size_blocks().into());
        let lens: [Arc<CachePadded<AtomicU32>>; 2] = Default::default();
        let running = Running {
            transaction: Arc::new(Transaction::new(Tid(1), &lens[1], 0)),
            started: 0,
            waits: 0,
            handles: 0,
            is_locked: false,
        };
        Ok(Self {
            buffers,
            home,
            client: OnceLock::new(),
            options,
            transaction_max,
            running: CachePadded(Mutex::new(running)),
            lanes: Lanes::new(Tid(1)),
            lens,
            changed: CachePadded(Condvar::new()),
            writer: CachePadded(Mutex::new(Writer::new(log))),
            committed: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            fast: FastState::default(),
            is_checkpoint_due: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            aborted: OnceLock::new(),
            batcher,
            reseeds: Reseeds::default(),
            stats: Mutex::new(Stats { log_size_blocks, ..Stats::default() }),
        })
    }

    /// Sets the client. Called once, before the first handle.
    pub fn set_client(&self, client: Arc<dyn Client>) {
        let was_unset = self.client.set(client).is_ok();
        debug_assert!(was_unset, "a journal has one client");
    }

    /// The cache that holds the changed blocks.
    #[must_use]
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// The most blocks a handle may request.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        // The client adds blocks at the commit; half of the transaction is reserved for them.
        self.transaction_max / 2
    }

    /// The last durable transaction; all before it are durable, too. 0 if none is.
    #[must_use]
    pub fn committed(&self) -> Tid {
        Tid(self.committed.load(Ordering::Acquire))
    }

    /// The transaction that new handles join.
    #[must_use]
    pub fn running(&self) -> Tid {
        self.running.lock().transaction.number
    }

    /// The first failure, if there was one.
    #[must_use]
    pub fn aborted(&self) -> Option<&Aborted> {
        self.aborted.get()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = *self.stats.lock();
        let running = self.running.lock();
        (stats.handles, stats.start_waits) = (running.started + self.lanes.started(), running.waits);
        stats.running_blocks = running.transaction.len().into();
        stats.running_age_ms = running.transaction.age().as_millis() as u64;
        stats
    }

    /// Joins the running transaction, with room for changes to `credits` blocks.
    ///
    /// # Errors
    /// The journal was aborted, or the request exceeds the maximum size of a transaction.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>, StartFault> {
        if credits > self.credits_max() {
            return Err(StartFault::TooLarge { wanted: credits, max: self.credits_max() });
        }
        // The commit starts as late as possible: a block that many operations change is then logged once for
        // all of them. It starts before the transaction is full, so that handles need not wait while the rest
        // fills up.
        let soon = self.transaction_max - self.transaction_max / 8;
        let has_much_room = |number: Tid, in_lanes: u32| {
            // This may miss blocks that joined concurrently; the remaining eighth covers them.
            let len = self.lens[number.parity()].load(Ordering::Relaxed);
            let blocks = len + self.lanes.granted() + self.client().blocks_to_come();
            blocks + in_lanes <= soon && self.aborted.get().is_none()
        };
        if credits <= lanes::CREDITS
            && let Some((lane, number)) = self.lanes.enter(has_much_room)
        {
            return Ok(Handle::in_lane(self, number, credits, lane));
        }
        let mut running = self.running.lock();
        if running.is_locked {
            // The committer may have counted this thread's lane for a moment.
            self.changed.notify_all();
        }
        let blocks = loop {
            if let Some(aborted) = self.aborted.get() {
                return Err(aborted.clone().into());
            }
            if running.is_locked {
                running.waits += 1;
                self.changed.wait(&mut running);
                continue;
            }
            let to_come = self.client().blocks_to_come();
            // Reserve first. A thread that entered a lane before is counted here; a thread that enters later
            // sees the reservation.
            self.lanes.grant(credits);
            let reserved = self.lanes.reserved();
            let blocks = running.transaction.len() + reserved + to_come;
            let is_empty = to_come == 0 && running.transaction.is_untouched(reserved - credits);
            if blocks <= self.transaction_max || is_empty {
                break blocks;
            }
            self.lanes.take_back(credits);
            let full = running.transaction.number;
            if self.options.has_committer && !self.is_closing.load(Ordering::Acquire) {
                running.waits += 1;
                self.request_commit(full);
                self.changed.wait(&mut running);
            } else {
                drop(running);
                self.commit_for(full, CommitReason::Full)?;
                running = self.running.lock();
            }
        };
        running.handles += 1;
        running.started += 1;
        if self.options.has_committer && blocks > soon {
            self.request_commit(running.transaction.number);
        }
        Ok(Handle::new(self, running.transaction.number, credits))
    }

    /// Makes a transaction, and all before it, durable. Returns at once if it is durable already.
    ///
    /// # Errors
    /// The journal is aborted, or this commit aborts it.
    pub fn commit(&self, transaction: Tid) -> Result<(), Aborted> {
        self.commit_for(transaction, CommitReason::Sync)
    }

    /// As [`commit`](Self::commit), for a reason that [`stats`](Self::stats) counts.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_for(&self, transaction: Tid, reason: CommitReason) -> Result<(), Aborted> {
        if self.committed() >= transaction {
            return self.check();
        }
        let mut writing = self.begin_writing()?;
        if self.committed() >= transaction {
            return Ok(());
        }
        let begun = Instant::now();
        let committed = writing.commit();
        let took = begun.elapsed();
        self.batcher.note(took);
        if committed.is_ok() {
            self.note_commit(reason, took.as_nanos() as u64);
        }
        committed.map_err(|cause| writing.abort(cause))
    }

    /// As [`commit`](Self::commit), for a caller that needs durability before it returns and may wait a
    /// little, so that concurrent callers share the commit. `what` identifies the changed object: if it is
    /// the same as in the last call, no other caller is expected and there is no wait.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_with_others(&self, transaction: Tid, what: u64) -> Result<(), Aborted> {
        let age = || {
            let running = self.running.lock();
            (running.transaction.number == transaction && !running.is_locked)
                .then(|| running.transaction.age())
        };
        if self.committed() < transaction
            && let Some(wait) = self.batcher.wait(what, age)
        {
            self.stats.lock().batch_waits += 1;
            std::thread::sleep(wait);
        }
        self.commit(transaction)
    }

    /// Commits the running transaction, if it has changes.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_all(&self) -> Result<(), Aborted> {
        self.commit_all_for(CommitReason::Sync)
    }

    /// As [`commit_all`](Self::commit_all), for a reason that [`stats`](Self::stats) counts.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_all_for(&self, reason: CommitReason) -> Result<(), Aborted> {
        let running = self.running.lock();
        let number = running.transaction.number;
        // All conditions are read under one lock: a transaction that is being sealed has no blocks to come,
        // but is not durable yet.
        let is_idle = !running.is_locked
            && running.handles == 0
            && running.transaction.is_untouched(self.lanes.open())
            && self.client().blocks_to_come() == 0;
        drop(running);
        self.commit_for(if is_idle { number.before() } else { number }, reason)
    }

    /// Writes all committed blocks home and empties the log.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn checkpoint(&self) -> Result<(), Aborted> {
        let mut writing = self.begin_writing()?;
        writing.empty_log().map_err(|cause| writing.abort(cause))
    }

    /// Makes room in the log and in memory for later transactions. It [checkpoints](Self::checkpoint) only
    /// what was committed before the last transaction, if that is enough.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn make_room(&self) -> Result<(), Aborted> {
        let mut writing = self.begin_writing()?;
        writing.make_room().map_err(|cause| writing.abort(cause))
    }

    /// Commits, checkpoints, and marks the log clean. No handle is open, and none may start later.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn close(&self) -> Result<(), Aborted> {
        self.commit_all_for(CommitReason::Close)?;
        let mut writing = self.begin_writing()?;
        writing.close().map_err(|cause| writing.abort(cause))
    }

    /// For the committer thread: waits for work. After `timeout` it returns [`Work::CommitAll`]. `None` ends
    /// the thread.
    pub fn wait_for_work(&self, timeout: std::time::Duration) -> Option<Work> {
        let begun = Instant::now();
        let mut running = self.running.lock();
        loop {
            if self.is_closing.load(Ordering::Acquire) {
                return None;
            }
            if self.aborted.get().is_none() {
                // The checkpoint comes before a wanted commit: otherwise that commit may have to wait for
                // room, with all callers waiting for it.
                if self.is_checkpoint_due.load(Ordering::Acquire) {
                    return Some(Work::Checkpoint);
                }
                let requested = Tid(self.requested.load(Ordering::Acquire));
                if requested > self.committed() {
                    return Some(Work::Commit(requested));
                }
            }
            // Fast commits notify, too, and must not put it off.
            let left = timeout.saturating_sub(begun.elapsed());
            if self.changed.wait_for(&mut running, left).timed_out() {
                return Some(Work::CommitAll);
            }
        }
    }

    /// Ends [`wait_for_work`](Self::wait_for_work).
    pub fn dismiss_committer(&self) {
        self.is_closing.store(true, Ordering::Release);
        let _running = self.running.lock();
        self.changed.notify_all();
    }

    fn note_commit(&self, reason: CommitReason, nanos: u64) {
        let mut stats = self.stats.lock();
        stats.commits_for[reason as usize] += 1;
        stats.commit_nanos += nanos;
        stats.commit_nanos_max = stats.commit_nanos_max.max(nanos);
        stats.commit_nanos_last = nanos;
    }

    fn request_commit(&self, transaction: Tid) {
        if self.requested.fetch_max(transaction.0, Ordering::AcqRel) < transaction.0 {
            self.changed.notify_all();
        }
    }

    fn client(&self) -> &dyn Client {
        &**self.client.get().expect("the client is set before the first handle")
    }

    /// Waits for the commit or checkpoint that runs, and begins the next one.
    fn begin_writing(&self) -> Result<Writing<'_>, Aborted> {
        let writing = Writing::new(self);
        self.check()?;
        Ok(writing)
    }

    fn check(&self) -> Result<(), Aborted> {
        self.aborted.get().map_or(Ok(()), |aborted| Err(aborted.clone()))
    }

    /// After an abort: wakes a commit that waits for handles, and the threads that wait for a commit.
    fn reopen(&self) {
        let mut running = self.running.lock();
        running.is_locked = false;
        self.lanes.reopen(running.transaction.number);
        self.changed.notify_all();
    }

    /// Stops all further commits: for failures outside the journal, or when another machine has taken the
    /// file system. The first cause stays.
    pub fn abort(&self, cause: String) {
        let _ = self.aborted.set(Aborted { cause });
        let _running = self.running.lock();
        self.changed.notify_all();
    }

    /// After an abort: waits for writes in flight. The caller has no handle.
    pub fn wait_aborted(&self) {
        debug_assert!(self.aborted.get().is_some(), "the journal is not aborted");
        drop(self.writer.lock());
    }

    /// After an abort: waits for writes in flight, then lets `with` write a note; nothing else writes any
    /// more. If `with` returns true, a note goes into the log too, for the next open. The caller has no
    /// handle.
    pub fn after_abort(&self, with: impl FnOnce() -> bool) {
        let mut writer = self.writer.lock();
        debug_assert!(self.aborted.get().is_some(), "the journal is not aborted");
        if let (true, Some(log)) = (with(), &mut writer.log) {
            log.note_abort();
        }
    }
}

/// Why a commit or checkpoint failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceFault),
    #[error(transparent)]
    Read(#[from] ReadFault),
    #[error("the log has {have} blocks free, a commit needs {need}")]
    LogFull { have: u32, need: u32 },
    #[error("{0}")]
    Aborted(String),
    #[error("block {0} needs 64-bit numbers, which this log does not have")]
    TooLarge(Pblk),
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal: {} blocks a transaction; {:?}", self.transaction_max, self.stats())
    }
}

#[cfg(test)]
mod tests;
