//! Writing back: dirty bytes of files get blocks, travel to the device, and become what a crash leaves.
//!
//! ```text
//!   run of dirty bytes -- delayed? handle: allocate unwritten --> write to the device --> handle: written, size --> settled
//!                         written?  -----------------------------^   (no handle at all if the size stays)
//!   without extents, or data=ordered:      one handle around all of it: allocate, write, size
//! ```
//!
//! Owns: the order of these steps, the thread that takes them. Does **not** own: which bytes are dirty (see
//! `page-cache`), the map.
//!
//! Invariants
//! 1. A block is written before a transaction that says so can commit: unwritten blocks are converted after
//!    their write completed; block by block the handle that maps them is open until it has. So previous
//!    content is never visible, except with [`DataPath::Writeback`], which does not promise that.
//! 2. INV-EN44: the size on disk follows the data, in the transaction that converts or maps it: no commit has
//!    a written block behind the size. So what is in the way of the size is written back first
//!    ([`Flusher::behind_the_end`]).
//! 3. A run needs no operation lock, so its holders may wait for it; and no thread waits for a run with a
//!    handle. A run waits for none but the earlier one with the end on disk.
//! 4. After an abort nothing is written.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

#[cfg(test)]
mod tests;

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use extant_alloc::Room;
use extant_base::Lblk;
use extant_extent_status::{Allocation, Entry, Status};
use extant_flush::Coordinator;
use extant_inode::{Change, DataPath, FileCaches, FileData, LiveInode, Shared, Want};
use extant_journal::{Handle, Journal};
use extant_mapping::Holds;
use extant_ondisk::inode::flags;
use extant_page_cache::{Run, WriteError};
use parking_lot::RwLockWriteGuard;

use super::announce::Announced;
use super::truncate::SMALL_MAX;
use super::{CommitClient, end_handle, with_room};
use crate::{Fault, Refusal, Volume};

/// Bytes written back at a time.
const RUN_BYTES_MAX: u64 = 8 << 20;
/// Blocks written back at a time where it goes block by block.
const RUN_BLOCKS_MAX: u64 = 2048;
/// Bytes are dirty so long at most before they are written back, as with the kernel.
pub(super) const EXPIRE_MS: u64 = 30_000;
/// How often the thread looks for those.
const INTERVAL: Duration = Duration::from_secs(5);

/// The caller of write-back.
pub(crate) struct Flusher {
    pub(super) keeper: Arc<CommitClient>,
    pub(super) journal: Arc<Journal>,
    /// The device, with what waits for a flush of it.
    pub(super) device: Arc<Coordinator<Arc<dyn extant_device::Device>>>,
    pub(super) has_log: bool,
    /// A commit flushes the device that the log is on: not this one.
    pub(super) has_external_log: bool,
    pub(super) no_barriers: bool,
    pub(super) has_thread: bool,
    /// Milliseconds that bytes of files stay dirty at most.
    pub(super) expire_ms: u64,
    pub(super) is_closing: AtomicBool,
    pub(super) begun: Instant,
    /// For the crash lab.
    pub(super) sabotage: extant_journal::Sabotage,
}

impl Volume {
    /// Writes back one run of the oldest dirty bytes, of at most `bytes_max` bytes (a block at least), as the
    /// background thread does: for callers without it. Was there one, and did it succeed? The file's next
    /// [`fsync`](Self::fsync) returns the error.
    ///
    /// # Errors
    /// It is open for reading, or shut down.
    pub fn write_back_some(&self, bytes_max: u64) -> Result<bool, Fault> {
        Ok(self.writer()?.flusher.write_some(u64::MAX, bytes_max))
    }
}

impl Flusher {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        self.keeper.shared()
    }

    pub(super) fn files(&self) -> &FileCaches {
        self.keeper.live.files()
    }

    /// Milliseconds since the volume was opened.
    pub(super) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// To be called before a write, with no lock held: waits while too much is dirty, or writes some of it
    /// back.
    pub(super) fn throttle(&self) {
        let pages = &self.files().pages;
        if self.has_thread {
            while self.journal.aborted().is_none()
                && !matches!(pages.throttle(Duration::from_secs(1)), extant_page_cache::Throttled::Go { .. })
            {
            }
            return;
        }
        while pages.is_over_background() && self.write_some(u64::MAX, RUN_BYTES_MAX) {}
    }

    /// The thread's life.
    pub(super) fn run(&self) {
        while !self.is_closing.load(Ordering::Acquire) {
            let is_much =
                self.files().pages.wait_for_work(INTERVAL.min(Duration::from_millis(self.expire_ms)));
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            if is_much {
                while self.files().pages.is_over_background() && self.write_some(u64::MAX, RUN_BYTES_MAX) {}
            }
            while self.keeper.alloc.room() != Room::Plenty && self.write_some(u64::MAX, RUN_BYTES_MAX) {}
            // Files that are never closed, or whose closing is not reported.
            if self.files().take_rewritten() {
                self.files().dirty_nodes().iter().for_each(|node| self.flush_rewritten(node, false));
            }
            let until = self.now_ms().saturating_sub(self.expire_ms);
            let mut is_more = until > 0;
            while is_more && !self.is_closing.load(Ordering::Acquire) {
                is_more = self.write_some(until, RUN_BYTES_MAX);
            }
        }
    }

    /// Ends [`run`](Self::run).
    pub(super) fn dismiss(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.files().pages.wake_flusher();
    }

    /// Writes back the run that has been dirty longest, if since then. Was there one, and did it go?
    fn write_some(&self, until_ms: u64, bytes_max: u64) -> bool {
        let bytes_max = bytes_max.min(self.run_bytes_max(self.files().path()));
        let Some(run) = self.files().pages.take_run(until_ms, bytes_max) else { return false };
        let Some(node) = self.files().node(run.file().key()) else { return false };
        // The open files get the error.
        let is_done = self.write_back(&node, run).is_ok();
        if let Some(data) = node.data() {
            self.files().settle(&data);
        }
        is_done
    }

    /// Writes back all that is dirty in a byte range of a file, and waits for what is on its way already.
    /// What becomes dirty meanwhile may stay so.
    ///
    /// # Errors
    /// What the device or the allocation of its blocks said. The other bytes are written all the same.
    pub(super) fn flush_file(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        range: std::ops::Range<u64>,
    ) -> Result<(), Fault> {
        let (until, bytes_max) = (self.now_ms(), self.run_bytes_max(data.path()));
        let mut first = Ok(());
        // By position, so that it ends however fast another thread writes after it; and twice: a run in
        // flight may have older bytes, the second one has at least those of the time of the call.
        for _ in 0..2 {
            let (mut at, mut is_busy) = (range.start, false);
            for chunk in data.pages.dirty_chunks(range.clone(), until) {
                loop {
                    let (run, is_passed) = data.pages.take_in(chunk, at..range.end, bytes_max);
                    is_busy |= is_passed;
                    let Some(run) = run else { break };
                    at = run.start() + run.len_bytes();
                    first = first.and(self.write_back(node, run));
                }
            }
            if !is_busy {
                break;
            }
            data.pages.wait_written(range.clone());
        }
        data.pages.wait_written(range);
        self.files().settle(data);
        first
    }

    /// Writes back a file that was truncated to nothing before. `is_whole`: its new content is complete, as
    /// far as is known; closing one of several descriptors does not show that, a shell closes some before the
    /// first byte. fsync returns the errors.
    pub(super) fn flush_rewritten(&self, node: &Arc<LiveInode>, is_whole: bool) {
        let data = {
            let mut values = node.values();
            let is_rewritten = values.is_rewritten;
            values.is_rewritten &= !is_whole;
            values.data().filter(|_| is_rewritten)
        };
        if let Some(data) = data {
            let _ = self.flush_file(node, &data, 0..u64::MAX);
        }
    }

    /// Bytes of a run at most: block by block as many blocks as the kernel takes.
    fn run_bytes_max(&self, path: DataPath) -> u64 {
        match path {
            DataPath::Iomap => RUN_BYTES_MAX,
            DataPath::Ordered | DataPath::Writeback | DataPath::Journal => {
                RUN_BLOCKS_MAX << self.shared().geometry.block_size.log2()
            }
        }
    }

    /// Writes back all files.
    pub(super) fn flush_all(&self) -> Result<(), Fault> {
        let mut first = Ok(());
        for node in self.files().dirty_nodes() {
            if let Some(data) = node.data() {
                first = first.and(self.flush_file(&node, &data, 0..u64::MAX));
            }
        }
        first
    }

    /// Writes one run back: all of it, whatever fails. Where something does, its blocks are not dirty any
    /// more, and nothing is promised to them.
    fn write_back(&self, node: &Arc<LiveInode>, mut run: Run) -> Result<(), Fault> {
        let Some(data) = node.data() else { return Ok(()) };
        let mut first = Ok(());
        loop {
            let mut rest = None;
            let bytes = run.start()..run.start() + run.len_bytes();
            let written = self.write_piece(node, &data, &mut run, &mut rest);
            let bytes = bytes.start..rest.as_ref().map_or(bytes.end, Run::start);
            match &written {
                Ok(()) => run.done(),
                Err(fault) => {
                    run.failed(if fault.is(Refusal::NoSpace) { WriteError::NoSpace } else { WriteError::Io });
                    self.forget_promises(&data, bytes.clone());
                    self.files().note_lost(node, &data, bytes.clone());
                }
            }
            first = first.and(written);
            match rest {
                Some(next) => run = next,
                None => return first,
            }
        }
    }

    /// Takes promises back of blocks that are not dirty. If one becomes dirty just now, it is a hole when it
    /// is written back.
    fn forget_promises(&self, data: &FileData, bytes: std::ops::Range<u64>) {
        let log = self.shared().geometry.block_size.log2();
        let mut at = bytes.start;
        while at < bytes.end {
            // Asked before `mapping` is locked, which comes after folios; and again, where that has to be
            // waited for.
            let (is_held, end) = data.pages.held_run(at..bytes.end);
            let (from, to) = (Lblk((at >> log) as u32), Lblk((end >> log) as u32));
            if is_held {
                at = end;
                continue;
            }
            let Some(_mapping) = data.mapping.try_write() else {
                drop(data.mapping.write());
                continue;
            };
            at = end;
            let is_delayed = |entry: &Entry| entry.status == Status::Delayed;
            while let Some(entry) = data.known.find(from, to, is_delayed) {
                let part = entry.part(entry.lblk.0.max(from.0), entry.end().min(to.0));
                data.forget(self.shared(), &self.keeper.alloc, part.lblk, part.len);
            }
        }
    }

    /// Writes back what of a run lies in one extent, and keeps it there; `rest`: the rest of the run, if
    /// there is any.
    fn write_piece(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        run: &mut Run,
        rest: &mut Option<Run>,
    ) -> Result<(), Fault> {
        if let Some(aborted) = self.journal.aborted() {
            return Err(aborted.clone().into());
        }
        let log = self.shared().geometry.block_size.log2();
        let lblk = Lblk((run.start() >> log) as u32);
        let blocks = (run.len_bytes() >> log) as u32;
        let entry = data.entry_to_change(self.shared(), node, lblk, u32::MAX)?;
        let path = data.path();
        let is_by_range = path == DataPath::Iomap && node.values().has_flag(flags::EXTENTS);
        if !is_by_range && !entry.status.is_mapped() {
            return self.write_mapping(node, data, run, rest, path != DataPath::Writeback);
        }
        let entry = match entry.status {
            Status::Delayed => {
                self.allocate(node, data, &entry, blocks, Want { unwritten: true, promised: true })?
            }
            Status::Hole => {
                let part = Entry { len: entry.len.min(blocks), ..entry };
                self.allocate(node, data, &part, blocks, Want { unwritten: true, promised: false })?
            }
            Status::Written | Status::Unwritten => entry,
        };
        *rest = self.cut_off(run, &entry);
        let to_convert = (entry.status == Status::Unwritten).then_some(entry);
        if self.sabotage.convert_early {
            self.conclude_run(node, data, run, to_convert)?;
            return self.submit(run, &entry);
        }
        let first = u64::from(lblk.0);
        let _noted = match to_convert {
            Some(_) => {
                let blocks = first..first + u64::from(entry.len.min(blocks));
                Some(data.unconverted.write(blocks, || self.submit(run, &entry))?)
            }
            None => {
                self.submit(run, &entry)?;
                None
            }
        };
        self.conclude_run(node, data, run, to_convert)
    }

    /// Keeps of a run what lies in this extent; the rest, if there is any.
    fn cut_off(&self, run: &mut Run, entry: &Entry) -> Option<Run> {
        let bytes = u64::from(entry.len) << self.shared().geometry.block_size.log2();
        (bytes < run.len_bytes()).then(|| run.split_off(bytes))
    }

    /// Hands a run's bytes to the device: all of it lies in this extent.
    fn submit(&self, run: &Run, entry: &Entry) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size;
        let start = bs.offset_of(entry.pblk).ok_or(Fault::Refused(Refusal::TooLarge))?;
        let slices: Vec<IoSlice<'_>> = run.slices().map(IoSlice::new).collect();
        self.shared().device.write_vectored_at(start, &slices).map_err(Fault::Device)?;
        self.flush_for_log()
    }

    /// Has the device write zeros from a block on.
    pub(super) fn write_zeros(&self, block: extant_base::Pblk, len_bytes: u64) -> Result<(), Fault> {
        if let Some(aborted) = self.journal.aborted() {
            return Err(aborted.clone().into());
        }
        let start = self.shared().geometry.block_size.offset_of(block).ok_or(Refusal::TooLarge)?;
        self.shared().device.zero_at(start, len_bytes).map_err(Fault::Device)?;
        self.flush_for_log()
    }

    /// A commit flushes the device that its log is on: with a log elsewhere, not this one.
    fn flush_for_log(&self) -> Result<(), Fault> {
        if self.has_external_log && !self.no_barriers && !self.sabotage.trust_log_flush {
            self.shared().device.flush().map_err(Fault::Device)?;
        }
        Ok(())
    }

    /// Joins the running transaction.
    pub(super) fn start(&self, credits: u32) -> Result<Handle<'_>, Fault> {
        let in_quotas = self.keeper.live.quota().map_or(0, |_| extant_inode::Quota::CREDITS);
        Ok(self.journal.start(credits + in_quotas)?)
    }

    pub(super) fn change<'a>(&'a self, handle: &'a Handle<'_>) -> Change<'a> {
        Change {
            live: &self.keeper.live,
            alloc: &self.keeper.alloc,
            edit: handle,
            awaited: None,
            is_removal: false,
        }
    }

    /// Gives blocks to what was delayed, as many as lie in one run; `own`: the blocks that are written now.
    fn allocate(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        delayed: &Entry,
        own: u32,
        want: Want,
    ) -> Result<Entry, Fault> {
        with_room(
            &self.journal,
            || true,
            || {
                let handle = self.start(Change::map_credits())?;
                let mapping = data.mapping.write();
                let done = self.map(&handle, node, data, (delayed, own), want);
                drop(mapping);
                end_handle(handle, &done);
                done
            },
        )
    }

    /// The caller has the map locked.
    fn map(
        &self,
        handle: &Handle<'_>,
        node: &Arc<LiveInode>,
        data: &FileData,
        (hole, own): (&Entry, u32),
        want: Want,
    ) -> Result<Entry, Fault> {
        let change = self.change(handle);
        // Since the request another run of the same delayed extent may have allocated blocks for all of it,
        // and blocks after this run may have been truncated. The run's own blocks belong to it. The map has
        // what is not in memory any more.
        let now = data.entry_now(self.shared(), node, hole.lblk, u32::MAX)?;
        let (len, promised) = match now.status {
            Status::Written | Status::Unwritten => return Ok(now),
            Status::Delayed => (hole.len.min(now.len), true),
            // The promise was taken back. What lies behind this run may have got blocks by another one.
            Status::Hole => (hole.len.min(own).min(now.len), false),
        };
        let want = Want { promised, ..want };
        let mapped = change.map_hole(node, hole.lblk, len, want)?;
        let entry = match mapped.holds {
            Holds::Written(start) => Entry::mapped(mapped.lblk.0, mapped.len, start.0, Status::Written),
            Holds::Unwritten(start) => Entry::mapped(mapped.lblk.0, mapped.len, start.0, Status::Unwritten),
            Holds::Hole => unreachable!("a hole was given blocks"),
        };
        let how = if want.promised { Allocation::Delayed } else { Allocation::Other };
        data.learn(self.shared(), change.alloc, entry, how);
        data.note_mapped(extant_buffer::Edit::transaction(handle));
        if self.sabotage.size_early {
            let mut values = change.live.edit(node, extant_buffer::Edit::transaction(handle));
            values.fields.size = values.fields.size.max(data.size());
        }
        Ok(entry)
    }

    /// For maps without unwritten blocks: allocates and maps, with the size, in one transaction, so that no
    /// block is past the end. `is_ordered`: writes under the same handle, so that it cannot commit before the
    /// data is on the device; otherwise afterwards, without a promise about crashes.
    fn write_mapping(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        run: &mut Run,
        rest: &mut Option<Run>,
        is_ordered: bool,
    ) -> Result<(), Fault> {
        let log = self.shared().geometry.block_size.log2();
        let lblk = Lblk((run.start() >> log) as u32);
        let bytes = reach(run).0;
        let blocks = (run.len_bytes() >> log) as u32;
        let entry = with_room(
            &self.journal,
            || true,
            || {
                self.behind_the_end(node, data, &bytes, Change::map_credits() + 1, |handle, lock| {
                    let hole = data.entry_to_change(self.shared(), node, lblk, blocks)?;
                    let Some(mapping) = lock() else { return Ok(None) };
                    let want = Want { unwritten: false, promised: hole.status == Status::Delayed };
                    let entry = self.map(handle, node, data, (&hole, blocks), want)?;
                    *rest = self.cut_off(run, &entry);
                    let is_large = self.raise_size(handle, node, data, reach(run).1);
                    drop(mapping);
                    if is_large {
                        self.keeper.announce(&self.change(handle), Announced::LargeFiles)?;
                    }
                    if is_ordered {
                        self.submit(run, &entry)?;
                    }
                    Ok(Some(entry))
                })
            },
        )?;
        if is_ordered { Ok(()) } else { self.submit(run, &entry) }
    }

    /// Runs `step` in a handle in which the size on disk may go past a run of bytes, and its blocks may count
    /// as written.
    ///
    /// The block that the file ends in on disk, in its middle, is written back before, if it is dirty; if it
    /// is on its way, that is waited for, with no handle. If the map had the run's blocks as written and the
    /// size stayed behind, and power failed, the file would have blocks behind its end. `step` gets what
    /// locks the map, or finds that the end moved into the way: it answers `None` then, has changed nothing,
    /// and runs again.
    pub(super) fn behind_the_end<'d, R>(
        &self,
        node: &Arc<LiveInode>,
        data: &'d FileData,
        run: &Range<u64>,
        credits: u32,
        mut step: impl FnMut(
            &Handle<'_>,
            &dyn Fn() -> Option<RwLockWriteGuard<'d, ()>>,
        ) -> Result<Option<R>, Fault>,
    ) -> Result<R, Fault> {
        let bs = self.shared().geometry.block_size.bytes();
        let lock = || {
            loop {
                // Asked before `mapping` is locked, which comes after folios. What becomes dirty after it was
                // as it should be.
                let on_disk = node.values().fields.size;
                if data.end_in_front_of(on_disk, run, bs).is_some() {
                    return None;
                }
                let mapping = data.mapping.write();
                if node.values().fields.size == on_disk {
                    return Some(mapping);
                }
            }
        };
        loop {
            let on_disk = node.values().fields.size;
            if let Some(end) = data.end_in_front_of(on_disk, run, bs) {
                // A failed run is not dirty any more, and blocks no other run. The next fsync returns the
                // error.
                let _ = self.flush_file(node, data, end);
            }
            let handle = self.start(credits)?;
            let done = step(&handle, &lock);
            end_handle(handle, &done);
            if let Some(done) = done.transpose() {
                return done;
            }
        }
    }

    /// Raises the size on disk to `end`, as far as the file goes. Is it a large one now? The caller has the
    /// map locked.
    pub(super) fn raise_size(
        &self,
        handle: &Handle<'_>,
        node: &Arc<LiveInode>,
        data: &FileData,
        end: u64,
    ) -> bool {
        let size = end.min(data.size());
        if size <= node.values().fields.size {
            return false;
        }
        let transaction = extant_buffer::Edit::transaction(handle);
        self.keeper.live.edit(node, transaction).fields.size = size;
        data.note_mapped(transaction);
        size > SMALL_MAX
    }
}

/// The bytes of a run's blocks, and up to where they are the file's.
pub(super) fn reach(run: &Run) -> (Range<u64>, u64) {
    (run.start()..run.start() + run.len_bytes(), run.end())
}

/// Without the thread nothing that is dirty is written in time, and writers would wait for it.
struct AbortOnPanic<'a>(&'a extant_journal::Journal);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("writing back panicked, which is a defect".to_owned());
        }
    }
}

/// Starts the thread that writes back.
pub(super) fn spawn(flusher: &Arc<Flusher>) -> std::thread::JoinHandle<()> {
    let flusher = Arc::clone(flusher);
    let life = move || {
        let _ended = AbortOnPanic(&flusher.journal);
        flusher.run();
    };
    std::thread::Builder::new().name("extant-writeback".to_owned()).spawn(life).expect("a thread can be made")
}
