//! A commit or a checkpoint, of which one runs at a time.
//!
//! ```text
//! commit:      seal (no handles) --> take the blocks --> checksums --> log --> the transaction is committed
//! checkpoint:  committed blocks --> home --> flush --> the log's tail moves
//! ```
//!
//! Owns: the writer's lock, the order of the steps, what a failure or a panic in them does. Does **not** own:
//! handles (see the parent module), the log (see `log_writer`), which blocks are not home yet (see
//! `checkpoint`).
//!
//! Invariants: 1 to 4 of the parent module.

use std::sync::Arc;
use std::time::Instant;

use extant_base::Pblk;
use extant_base::sync::MutexGuard;
use extant_base::sync::atomic::Ordering;
use extant_buffer::{PatchedBlock, ReadFault, Seal, Snapshot};

use super::checkpoint::{Checkpoint, CheckpointScope};
use super::checksums::LogChecksums;
use super::images::{self, Image, make_ready};
use super::lanes::Started;
use super::log_writer::LogWriter;
use super::transaction::Transaction;
use super::{Aborted, Bug, Failure, Handle, Journal};

/// For so few blocks, taking them at once is cheaper than [`Buffers::begin_taking`]. Schedule tests use a
/// small value so that they cover both paths.
#[cfg(not(feature = "shuttle"))]
const FEW: u32 = 64;
#[cfg(feature = "shuttle")]
const FEW: u32 = 2;

/// State of the one commit or checkpoint that runs at a time.
pub(super) struct Writer {
    pub(super) log: Option<LogWriter>,
    checkpoint: Checkpoint,
    /// The handles started in each lane, as of the last commit.
    started: Started,
}

impl Writer {
    pub(super) fn new(log: Option<LogWriter>) -> Self {
        Self { log, checkpoint: Checkpoint::default(), started: Started::default() }
    }

    fn log_used_blocks(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.used_blocks().into())
    }
}

/// The commit or checkpoint that runs. If it panics, it is half done, and nothing may be written after it:
/// the journal is aborted. The waiting threads wake and find the journal aborted.
pub(super) struct Writing<'j> {
    journal: &'j Journal,
    writer: MutexGuard<'j, Writer>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let cause = "a commit or checkpoint did not end: it panicked, which is a defect".to_owned();
            let _ = self.journal.aborted.set(Aborted { cause });
            self.journal.reopen();
        }
    }
}

impl<'j> Writing<'j> {
    /// Waits for the one that runs.
    pub(super) fn new(journal: &'j Journal) -> Self {
        Self { journal, writer: journal.writer.lock() }
    }

    pub(super) fn log(&mut self) -> Option<&mut LogWriter> {
        self.writer.log.as_mut()
    }

    /// Aborts the journal. The first cause stays.
    pub(super) fn abort(&mut self, cause: Failure) -> Aborted {
        let aborted = self.journal.aborted.get_or_init(|| Aborted { cause: cause.to_string() }).clone();
        // An earlier abort already decided what is left on the device.
        if let (Some(log), false) = (&mut self.writer.log, matches!(cause, Failure::Aborted(_))) {
            log.note_abort();
        }
        self.journal.reopen();
        aborted
    }

    /// Commits the running transaction.
    pub(super) fn commit(&mut self) -> Result<(), Failure> {
        let journal = self.journal;
        let checksums = self.writer.log.as_ref().map(LogWriter::checksums);
        let (transaction, mut images) = self.seal(checksums)?;
        let sabotage = journal.options.sabotage;
        let mut logged = 0;
        let mut late: Vec<(Pblk, Seal)> = Vec::new();
        if sabotage.has(Bug::LateHomes) {
            late.extend(images.iter().map(|image| (image.block, image.seal)));
        }
        // Operations continue meanwhile. Threads that make changes keep their CPUs, if there are enough.
        let busy = journal.lanes.busy(&mut self.writer.started);
        make_ready(journal.client(), &mut images, checksums, &journal.reseeds, busy);
        let n_images = images.len() as u64;
        let revokes = transaction.revokes();
        if self.writer.log.is_some() {
            self.ensure_room(images.len(), revokes.len())?;
            let writer = &mut *self.writer;
            let log = writer.log.as_mut().expect("checked above");
            let revokes: &[Pblk] = if sabotage.has(Bug::SkipRevokes) { &[] } else { &revokes };
            logged = log.write(&mut images, revokes, journal.options.commit_time())?;
            // A freed block must not be written home over its next use.
            for block in revokes {
                writer.checkpoint.mark_stale(*block);
            }
            if sabotage.has(Bug::LateHomes) {
                images = self.images_now(&late)?;
            }
            self.writer.checkpoint.add(images, transaction.number);
        } else {
            self.writer.checkpoint.add(images, transaction.number);
            self.empty_log()?;
        }
        {
            let mut stats = journal.stats.lock();
            stats.commits += 1;
            stats.logged_blocks += n_images;
            stats.logged_blocks_last = n_images;
            stats.log_used_blocks = self.writer.log_used_blocks();
            stats.log_blocks += u64::from(logged);
            stats.revokes += revokes.len() as u64;
            stats.pinned_blocks = self.writer.checkpoint.len() as u64;
            stats.pinned_blocks_max = stats.pinned_blocks_max.max(stats.pinned_blocks);
        }
        // Notify the client first: a thread that sees the transaction committed must find the freed space
        // usable.
        journal.client().committed(transaction.number);
        journal.committed.store(transaction.number.0, Ordering::Release);
        let is_due = self.is_due();
        if is_due && !journal.options.has_committer {
            self.empty_log()?;
        }
        let _running = journal.running.lock();
        journal.is_checkpoint_due.store(is_due && journal.options.has_committer, Ordering::Release);
        journal.changed.notify_all();
        Ok(())
    }

    /// Makes sure that the log has room for a commit.
    fn ensure_room(&mut self, images: usize, revokes: usize) -> Result<(), Failure> {
        let lacks_room = |log: &Option<LogWriter>| {
            log.as_ref().is_some_and(|log| log.free_blocks() < log.blocks_for(images, revokes))
        };
        if lacks_room(&self.writer.log) {
            self.journal.stats.lock().full_log_waits += 1;
            if self.writer.log.as_ref().is_some_and(LogWriter::has_room_behind_last) {
                self.write_home(CheckpointScope::BeforeLast)?;
            }
            if lacks_room(&self.writer.log) {
                self.empty_log()?;
            }
        }
        Ok(())
    }

    /// For the crash lab: the current bytes of blocks, including changes of the running transaction.
    fn images_now(&self, blocks: &[(Pblk, Seal)]) -> Result<Vec<Image>, ReadFault> {
        let now = |&(block, seal): &(Pblk, Seal)| {
            let (buffer, _) = self.journal.buffers.snapshot(block)?;
            Ok(Image::new(
                Snapshot { buffer, owner: None, has_sum: false, log_sum: None, whole_sum: None },
                seal,
                false,
            ))
        };
        let mut images = blocks.iter().map(now).collect::<Result<Vec<Image>, ReadFault>>()?;
        make_ready(self.journal.client(), &mut images, None, &self.journal.reseeds, 0);
        Ok(images)
    }

    /// Whether a checkpoint is due. It is due early enough that the next commit finds room in the log, and
    /// that pinned blocks leave memory for other caches.
    fn is_due(&self) -> bool {
        self.is_much()
            || self.journal.options.has_committer
                && self.writer.log.as_ref().is_some_and(LogWriter::is_nearly_full)
    }

    /// Whether pinned blocks exceed their memory limit.
    fn is_much(&self) -> bool {
        let pinned = self.writer.checkpoint.len() * self.journal.buffers.block_size().len();
        let pinned_max = self.journal.options.pinned_bytes_max;
        pinned_max > 0 && pinned > pinned_max
    }

    /// Waits for the running transaction's handles and takes the bytes of all its blocks. Then the next
    /// transaction runs, and the client writes the values of this one.
    fn seal(&self, log: Option<LogChecksums>) -> Result<(Arc<Transaction>, Vec<Image>), Failure> {
        let journal = self.journal;
        let running = Arc::clone(&journal.running.lock().transaction);
        if running.len() <= FEW {
            // These blocks are taken while handles wait; they need not wait for reads as well.
            journal.buffers.read_ahead(|| running.blocks(), running.number);
        }
        let mut running = journal.running.lock();
        running.is_locked = true;
        journal.lanes.shut();
        let begun = Instant::now();
        while running.handles > 0 || journal.lanes.open() > 0 {
            journal.changed.wait(&mut running);
        }
        if let Some(aborted) = journal.aborted.get() {
            return Err(Failure::Aborted(aborted.cause.clone()));
        }
        let transaction = Arc::clone(&running.transaction);
        drop(running);
        let handle = Handle::sealing(journal, Arc::clone(&transaction));
        journal.client().before_commit(&handle)?;
        // With many blocks, handles do not wait until all are taken: the cache keeps the old version of a
        // block that changes before.
        let few = if transaction.len() <= FEW { Some(self.take(&transaction, log)?) } else { None };
        if few.is_none() {
            journal.buffers.begin_taking(transaction.number);
        }
        let next = transaction.number.next();
        // The previous transaction is committed, so its counter is free. The next transaction is usually as
        // large as this one.
        let len = &journal.lens[next.parity()];
        let begins = Arc::new(Transaction::new(next, len, transaction.len()));
        let mut running = journal.running.lock();
        running.transaction = begins;
        running.is_locked = false;
        journal.lanes.reopen(next);
        journal.changed.notify_all();
        drop(running);
        journal.stats.lock().sealing_nanos += begun.elapsed().as_nanos() as u64;
        let taken = match few {
            Some(taken) => taken,
            None => {
                // After a failure, reads still need the old versions that the cache keeps.
                let taken = self.take(&transaction, log)?;
                journal.buffers.end_taking();
                taken
            }
        };
        journal.client().write_values(&handle)?;
        let values = self.take(&transaction, log)?;
        Ok((transaction, images::in_order([taken, values])))
    }

    /// The bytes of the blocks that joined since the last call, in any order.
    fn take(&self, transaction: &Transaction, log: Option<LogChecksums>) -> Result<Vec<Image>, ReadFault> {
        let journal = self.journal;
        let joined = transaction.take_blocks();
        let mut taken = Vec::with_capacity(joined.len());
        let of_patched =
            |patched: &PatchedBlock| log.map_or(Some(0), |log| log.of_patched(patched, &journal.reseeds));
        let of_whole_sum = |sum| log.map_or(0, |log| log.of_whole_sum(sum, &journal.reseeds));
        journal.buffers.take(&joined, transaction.number, &of_patched, |seal, mut snapshot| {
            snapshot.log_sum = snapshot.log_sum.or_else(|| snapshot.whole_sum.map(of_whole_sum));
            taken.push(Image::new(snapshot, seal, log.is_some()));
        })?;
        Ok(taken)
    }

    /// Writes all committed blocks home and empties the log.
    pub(super) fn empty_log(&mut self) -> Result<(), Failure> {
        self.write_home(CheckpointScope::All)
    }

    /// See [`Journal::make_room`].
    pub(super) fn make_room(&mut self) -> Result<(), Failure> {
        let has_room = self.writer.log.as_ref().is_some_and(LogWriter::has_room_behind_last);
        let is_enough = has_room && !self.is_much();
        self.write_home(if is_enough { CheckpointScope::BeforeLast } else { CheckpointScope::All })
    }

    /// Empties the log and marks it clean.
    pub(super) fn close(&mut self) -> Result<(), Failure> {
        self.empty_log()?;
        self.writer.log.as_mut().map_or(Ok(()), LogWriter::mark_clean)
    }

    /// Writes home what the log holds, and moves the log's tail.
    fn write_home(&mut self, scope: CheckpointScope) -> Result<(), Failure> {
        let (journal, writer) = (self.journal, &mut *self.writer);
        let homes = writer.checkpoint.write_home(scope, &*journal.home, &journal.buffers)?;
        let flush = !journal.options.no_barriers && !journal.options.sabotage.has(Bug::SkipCheckpointFlush);
        if homes > 0 && flush {
            journal.home.flush()?;
        }
        if let Some(log) = &mut writer.log {
            match scope {
                CheckpointScope::All => log.move_tail_to_head()?,
                CheckpointScope::BeforeLast => log.move_tail_to_last()?,
            }
        }
        // Only now: a block that may leave the cache must be on the device.
        writer.checkpoint.release(scope, &journal.buffers);
        if journal.options.sabotage.has(Bug::CleanEarly) {
            journal.buffers.set_clean_through(journal.running(), false);
        }
        journal.is_checkpoint_due.store(false, Ordering::Release);
        let mut stats = journal.stats.lock();
        stats.home_blocks += homes;
        stats.checkpoints += 1;
        stats.log_used_blocks = writer.log_used_blocks();
        stats.pinned_blocks = writer.checkpoint.len() as u64;
        Ok(())
    }
}
