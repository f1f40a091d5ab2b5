//! Writeback: dirty file data gets blocks, goes to the device, and becomes what a crash leaves.
//!
//! ```text
//!   dirty run -- delayed? handle: allocate unwritten -> write to the device -> handle: written, size
//!                written?  ----------------------------^   (no handle if the size stays)
//!   without extents, or data=ordered:      one handle around all of it: allocate, write, size
//! ```
//!
//! Owns: the order of these steps, the thread that takes them. Does **not** own: which data is dirty (see
//! `page-cache`), the map.
//!
//! Invariants
//! 1. A block is written to the device before a transaction that marks it as written can commit. Unwritten
//!    extents are converted after their write completed; block by block the handle that maps a block stays
//!    open until its write completed. A crash therefore never exposes old contents of a block, except with
//!    [`DataPath::Writeback`], which does not promise that.
//! 2. INV-EN44: the size on disk follows the data, in the transaction that converts or maps it: no commit has
//!    a written block past the size. Dirty data before the run that keeps the size from growing is written
//!    back first ([`Flusher::behind_the_end`]).
//! 3. A run needs no operation lock, so the holder of an operation lock may wait for it. The holder of a
//!    handle never waits for a run. A run waits only for the one that contains the end on disk, which lies
//!    before it.
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
use extant_base::rank::{self, RwLockWriteGuard};
use extant_extent_status::{Allocation, Entry, Status};
use extant_flush::Coordinator;
use extant_inode::{Change, DataPath, FileCaches, FileData, LiveInode, NewBlockOptions, Shared};
use extant_journal::{Bug, Handle, Journal};
use extant_mapping::MapState;
use extant_ondisk::inode::flags;
use extant_page_cache::{WriteError, WritebackRun};

use super::announce::Announced;
use super::truncate::SMALL_MAX;
use super::{CommitClient, end_handle, with_room};
use crate::{Fault, Refusal, Volume};

/// Most bytes written back at a time.
const RUN_BYTES_MAX: u64 = 8 << 20;
/// Most blocks written back at a time if allocation is block by block.
const RUN_BLOCKS_MAX: u64 = 2048;
/// The longest time that data stays dirty before writeback, in milliseconds, as in the kernel.
pub(super) const EXPIRE_MS: u64 = 30_000;
/// How often the background thread looks for expired data.
const INTERVAL: Duration = Duration::from_secs(5);

/// The writeback engine.
pub(crate) struct Flusher {
    pub(super) keeper: Arc<CommitClient>,
    pub(super) journal: Arc<Journal>,
    /// The device, with the flushes that threads share.
    pub(super) device: Arc<Coordinator<Arc<dyn extant_device::Device>>>,
    pub(super) has_log: bool,
    /// A commit flushes the log's device, not this one.
    pub(super) has_external_log: bool,
    pub(super) no_barriers: bool,
    pub(super) has_thread: bool,
    /// The longest time that data stays dirty, in milliseconds.
    pub(super) expire_ms: u64,
    pub(super) is_closing: AtomicBool,
    pub(super) begun: Instant,
    /// For the crash lab.
    pub(super) sabotage: extant_journal::Sabotage,
}

impl Volume {
    /// Writes back a run of the data that has been dirty longest: at most `bytes_max` bytes, and at least a
    /// block. The background thread does this by itself; this is for callers that have none. Returns whether
    /// there was a run and it was written. The file's next [`fsync`](crate::Files::fsync) reports a failure.
    ///
    /// # Errors
    /// The volume is open for reading, or shut down.
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

    /// To be called before a write, without any lock: waits while too much data is dirty, or writes some of
    /// it back.
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

    /// The main loop of the writeback thread.
    pub(super) fn run(&self) {
        while !self.is_closing.load(Ordering::Acquire) {
            let is_much =
                self.files().pages.wait_for_work(INTERVAL.min(Duration::from_millis(self.expire_ms)));
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            if is_much {
                let pages = &self.files().pages;
                while pages.is_over_half_background() && self.write_some(u64::MAX, RUN_BYTES_MAX) {}
            }
            while self.keeper.alloc.room() != Room::Plenty && self.write_some(u64::MAX, RUN_BYTES_MAX) {}
            // For files that are never closed, or closed without notification.
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

    /// Writes back the run that has been dirty longest, if it became dirty at or before `until_ms`. Returns
    /// whether there was a run and it was written.
    fn write_some(&self, until_ms: u64, bytes_max: u64) -> bool {
        let bytes_max = bytes_max.min(self.run_bytes_max(self.files().path()));
        let Some(run) = self.files().pages.take_run(until_ms, bytes_max) else { return false };
        let Some(node) = self.files().node(run.file().key()) else { return false };
        // The open files of this inode get the error.
        let is_done = self.write_back(&node, run).is_ok();
        if let Some(data) = node.data() {
            self.files().release_if_clean(&data);
        }
        is_done
    }

    /// Writes back everything dirty in a byte range of a file, and waits for writes in flight. Data that
    /// becomes dirty meanwhile may stay dirty.
    ///
    /// # Errors
    /// The error of the device or of the block allocation. The other data is written in any case.
    pub(super) fn flush_file(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        range: std::ops::Range<u64>,
    ) -> Result<(), Fault> {
        let (until, bytes_max) = (self.now_ms(), self.run_bytes_max(data.path()));
        let mut first = Ok(());
        // In order of position, so that it ends even if another thread keeps writing past it. Twice, because
        // a write in flight may have older data: the second pass writes data at least as new as at the time
        // of the call.
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
        self.files().release_if_clean(data);
        first
    }

    /// Writes back a file that was truncated to nothing before. `is_whole`: the new contents are complete, as
    /// far as is known. A single closed descriptor does not imply that: a shell closes some before the first
    /// byte. fsync reports failures.
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

    /// Most bytes of a run: block by block as many blocks as the kernel takes.
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

    /// Writes back all of a run, even if a part fails. The blocks of a failed part become clean, and their
    /// reservations are released.
    fn write_back(&self, node: &Arc<LiveInode>, mut run: WritebackRun) -> Result<(), Fault> {
        let Some(data) = node.data() else { return Ok(()) };
        let mut first = Ok(());
        loop {
            let mut rest = None;
            let bytes = run.start()..run.start() + run.len_bytes();
            let written = self.write_piece(node, &data, &mut run, &mut rest);
            let bytes = bytes.start..rest.as_ref().map_or(bytes.end, WritebackRun::start);
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

    /// Releases the reservations of blocks that are not dirty. A block that becomes dirty meanwhile is a hole
    /// at its writeback.
    fn forget_promises(&self, data: &FileData, bytes: std::ops::Range<u64>) {
        let log = self.shared().geometry.block_size.log2();
        let mut at = bytes.start;
        while at < bytes.end {
            // Checked before `mapping` is locked, because folios come first in the lock order, and again if
            // the lock is contended.
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

    /// Writes back the part of a run that lies in one extent. `rest` gets the rest of the run, if any.
    fn write_piece(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        run: &mut WritebackRun,
        rest: &mut Option<WritebackRun>,
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
            Status::Delayed => self.allocate(
                node,
                data,
                &entry,
                blocks,
                NewBlockOptions { unwritten: true, promised: true },
            )?,
            Status::Hole => {
                let part = Entry { len: entry.len.min(blocks), ..entry };
                self.allocate(
                    node,
                    data,
                    &part,
                    blocks,
                    NewBlockOptions { unwritten: true, promised: false },
                )?
            }
            Status::Written | Status::Unwritten => entry,
        };
        *rest = self.cut_off(run, &entry);
        let to_convert = (entry.status == Status::Unwritten).then_some(entry);
        if self.sabotage.has(Bug::ConvertEarly) {
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

    /// Shortens a run to the part that lies in this extent. Returns the rest, if any.
    fn cut_off(&self, run: &mut WritebackRun, entry: &Entry) -> Option<WritebackRun> {
        let bytes = u64::from(entry.len) << self.shared().geometry.block_size.log2();
        (bytes < run.len_bytes()).then(|| run.split_off(bytes))
    }

    /// Writes a run's data to the device. All of it lies in this extent.
    fn submit(&self, run: &WritebackRun, entry: &Entry) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size;
        let start = bs.offset_of(entry.pblk).ok_or(Fault::Refused(Refusal::TooLarge))?;
        let slices: Vec<IoSlice<'_>> = run.slices().map(IoSlice::new).collect();
        self.shared().device.write_vectored_at(start, &slices).map_err(Fault::Device)?;
        self.flush_for_log()
    }

    /// Writes zeros to the device from a block on.
    pub(super) fn write_zeros(&self, block: extant_base::Pblk, len_bytes: u64) -> Result<(), Fault> {
        if let Some(aborted) = self.journal.aborted() {
            return Err(aborted.clone().into());
        }
        let start = self.shared().geometry.block_size.offset_of(block).ok_or(Refusal::TooLarge)?;
        self.shared().device.zero_at(start, len_bytes).map_err(Fault::Device)?;
        self.flush_for_log()
    }

    /// Flushes this device if the log is on another one, because a commit flushes only the log's device.
    fn flush_for_log(&self) -> Result<(), Fault> {
        if self.has_external_log && !self.no_barriers && !self.sabotage.has(Bug::TrustLogFlush) {
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

    /// Allocates blocks for a delayed extent or a hole, as many as are contiguous. `own` is the number of
    /// blocks that are written now.
    fn allocate(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        delayed: &Entry,
        own: u32,
        want: NewBlockOptions,
    ) -> Result<Entry, Fault> {
        with_room(
            &self.journal,
            || true,
            || {
                let handle = self.start(Change::map_credits())?;
                let mapping = data.mapping.write();
                let done = self.map(&handle, node, data, (delayed, own), want);
                drop(mapping);
                if let Ok(entry) = &done {
                    let blocks = u64::from(entry.lblk.0)..entry.end().into();
                    self.keeper.fast.mapped(&self.change(&handle), node, blocks);
                }
                end_handle(handle, &done);
                done
            },
        )
    }

    /// The caller holds the map's lock.
    fn map(
        &self,
        handle: &Handle<'_>,
        node: &Arc<LiveInode>,
        data: &FileData,
        (hole, own): (&Entry, u32),
        want: NewBlockOptions,
    ) -> Result<Entry, Fault> {
        let change = self.change(handle);
        // Since the query, another run of the same delayed extent may have got blocks for all of it, and what
        // follows this run may have been truncated. Other threads do not map this run's own blocks. What is
        // not cached any more is read from the map.
        let now = data.entry_now(self.shared(), node, hole.lblk, u32::MAX)?;
        let (len, promised) = match now.status {
            Status::Written | Status::Unwritten => return Ok(now),
            Status::Delayed => (hole.len.min(now.len), true),
            // The reservation was released. Another run may have mapped what follows this run.
            Status::Hole => (hole.len.min(own).min(now.len), false),
        };
        let want = NewBlockOptions { promised, ..want };
        let mapped = change.map_hole(node, hole.lblk, len, want)?;
        let entry = match mapped.state {
            MapState::Written(start) => Entry::mapped(mapped.lblk.0, mapped.len, start.0, Status::Written),
            MapState::Unwritten(start) => {
                Entry::mapped(mapped.lblk.0, mapped.len, start.0, Status::Unwritten)
            }
            MapState::Hole => unreachable!("a hole was given blocks"),
        };
        let how = if want.promised { Allocation::Delayed } else { Allocation::Other };
        data.learn(self.shared(), change.alloc, entry, how);
        data.note_mapped(extant_buffer::Edit::transaction(handle));
        if self.sabotage.has(Bug::SizeEarly) {
            let mut values = change.live.edit(node, extant_buffer::Edit::transaction(handle));
            values.fields.size = values.fields.size.max(data.size());
        }
        Ok(entry)
    }

    /// For maps without unwritten extents: allocates and maps, with the size, in one transaction, so that no
    /// block is past the end. With `is_ordered` the data is written under the same handle, which therefore
    /// cannot commit before the data is on the device. Otherwise the data is written afterwards, and a crash
    /// may expose old contents.
    fn write_mapping(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        run: &mut WritebackRun,
        rest: &mut Option<WritebackRun>,
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
                    let want = NewBlockOptions { unwritten: false, promised: hole.status == Status::Delayed };
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

    /// Runs `step` in a handle in which the size on disk may grow past a run of data, and its blocks may
    /// become written.
    ///
    /// If the file ends on disk inside a dirty block, that block is written back first. If that block is in
    /// flight, this waits for it without a handle. Otherwise the map could have the run's blocks as written
    /// while the size could not grow, and after a power failure the file would have blocks past its end.
    /// `step` gets a function that locks the map and returns `None` if the end on disk moved meanwhile.
    /// `step` then returns `None` without any change, and runs again.
    pub(super) fn behind_the_end<'d, R>(
        &self,
        node: &Arc<LiveInode>,
        data: &'d FileData,
        run: &Range<u64>,
        credits: u32,
        mut step: impl FnMut(
            &Handle<'_>,
            &dyn Fn() -> Option<RwLockWriteGuard<'d, (), { rank::MAPPING }>>,
        ) -> Result<Option<R>, Fault>,
    ) -> Result<R, Fault> {
        let bs = self.shared().geometry.block_size.bytes();
        let lock = || {
            loop {
                // Checked before `mapping` is locked, because folios come first in the lock order. Data that
                // becomes dirty after the check does no harm.
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
                // After a failed write the block is clean and delays no other. The next fsync reports the
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

    /// Raises the size on disk to `end`, but at most to the file's size. Returns whether the file now needs
    /// the feature `large_file`. The caller holds the map's lock.
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

/// The byte range of a run's blocks, and the end of the file's data in it.
pub(super) fn reach(run: &WritebackRun) -> (Range<u64>, u64) {
    (run.start()..run.start() + run.len_bytes(), run.end())
}

/// Without the writeback thread, dirty data is not written in time, and writers would wait for it.
struct AbortOnPanic<'a>(&'a extant_journal::Journal);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("writing back panicked, which is a defect".to_owned());
        }
    }
}

/// Starts the writeback thread.
pub(super) fn spawn(flusher: &Arc<Flusher>) -> std::thread::JoinHandle<()> {
    let flusher = Arc::clone(flusher);
    let life = move || {
        let _ended = AbortOnPanic(&flusher.journal);
        flusher.run();
    };
    std::thread::Builder::new().name("extant-writeback".to_owned()).spawn(life).expect("a thread can be made")
}
