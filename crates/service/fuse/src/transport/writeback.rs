//! Dirty data of the kernel's write-back cache ([`WritebackCache`](crate::WritebackCache)): whether there is
//! one, what to do when space is low, and which requests wait until data is written back.
//!
//! The kernel does not report how much dirty data it has, so the server cannot reserve space for it, and its
//! writeback may fail for lack of space. But the amount is bounded (`dirty_max`): a mount of root sets the
//! bound itself, and adjusts it to the free space. While twice this bound is free, all dirty data has
//! space. An operation that may take much of the space at once writes dirty data back before. With less free
//! space:
//!
//! - Files are opened for direct I/O. So each write reaches the server at once, and fails if there is no
//!   space.
//! - For files that were opened earlier, the kernel sends GETATTR before each write(2), and the server delays
//!   the reply until the file's dirty data is written back (see `invalidator`). The reply is ENOSPC if that
//!   failed, or if the last write(2) took more new space than is left: the server does not know the size of
//!   the next one. So only a write(2) that takes more new space than the one before it can be accepted
//!   without space. Then the next write(2), fsync(2) or close(2) of the file returns the error.
//!
//! ```text
//!   [enough space] -- free < 2 * bound: the kernel shall send GETATTR for all files that are open for
//!         ^           writing; write all of them back ------------------------------------------> [low]
//!         +-------- free >= 2 * bound -----------------------------------------------------------  |
//! ```
//!
//! The request that finds space low gets its reply only after the kernel's copies of the attributes are
//! invalid, and so does each request that finds it meanwhile. Until a WRITE has its reply, its pages count
//! against the bound. So what writers add before they ask for the first time is at most the bound, and the
//! rest of one write(2).
//!
//! Files with `chattr +S` are opened for direct I/O, too: the kernel does not know this flag.
//!
//! A file that becomes immutable while it is open for buffered writing refuses the next write(2), as with the
//! kernel's ext4: here, the reply to GETATTR is EPERM.
//!
//! The kernel sends this GETATTR with a file handle, and only for a write, if its copy of the mode is not
//! valid. So while one of these conditions holds, this copy stays invalid: the server invalidates it with
//! each reply that contains the file's attributes (`keep_asking`). The timeout of the attributes would not
//! do: after it, the kernel sends the same request for reads.
//!
//! Three requests need data that the kernel still has. They wait for the writeback of files that are open for
//! buffered writing; close(2) has written back all others:
//!
//! - a rename that replaces a file, for the data of the new file, so that a crash never leaves an empty one;
//! - FSYNC of the root and SYNCFS, for all files;
//! - the end by a signal, for all files ([`KernelCache`]).
//!
//! State: whether the kernel buffers writes; and, shared with operations that run after a writeback
//! ([`Writeback`]): the bound, whether space is low, and the files that are open for buffered writing, each
//! with a count of opens, a failure that no writer was notified of, and what its writes took.
//!
//! Does **not** own: requests and replies (see the parent module), the invalidations (see `invalidator`), the
//! bits of file handles (see `content`).
//!
//! Source: kernel fs/fuse/file.c (a write to the cache updates the attributes first),
//! Documentation/ABI/testing/sysfs-class-bdi.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_fuse_lowlevel::protocol::{OpenOut, fopen, init};
use extant_ondisk::inode::flags;
use extant_volume::Stat;

use super::invalidator::Invalidator;
use super::reserve::Requester;
use super::{CACHE_TIMEOUT, content, convert};
use crate::{Access, Errno, Opened, Serve, WritebackCache};

/// The limits of dirty data that are set for a mount, in bytes: with much free space and with little.
const DIRTY_LIMITS: (u64, u64) = (32 << 20, 2 << 20);
/// In between, the limit is this part of the free space.
const FREE_DIVISOR: u64 = 16;
/// Where the limit cannot be set, and the kernel's own limit for FUSE mounts is not strict, dirty data is at
/// most this part of all memory: the default of vm.dirty_ratio is 20 %.
const MEMORY_DIVISOR: u64 = 5;
/// The kernel's own strict limit depends on the memory that is available at the moment. It may double.
const STRICT_FACTOR: u64 = 2;
/// [`WritebackCache::Auto`] buffers if this many times the bound is free when the mount begins.
const AUTO_FACTOR: u64 = 8;

/// The write-back cache of a mount, on or off.
pub(super) struct WriteCache<S> {
    serve: Arc<S>,
    invalidator: Arc<Invalidator>,
    writeback: Arc<Writeback>,
    wanted: WritebackCache,
    /// The kernel buffers writes (FUSE_WRITEBACK_CACHE). Decided by INIT.
    is_on: bool,
}

/// What is known about the kernel's dirty data.
#[derive(Default)]
struct Writeback {
    /// Bound of the dirty data, in bytes; 0 as long as it is unknown.
    dirty_max: AtomicU64,
    /// The kernel's limit of this mount, if this process may change it. It stays open because a confined
    /// process opens no files.
    knob: OnceLock<File>,
    /// The limit is being changed.
    changes_limit: AtomicBool,
    /// Operations of [`WriteCache::run_with_space`] that are not done. The limit does not rise meanwhile.
    takers: AtomicUsize,
    /// When the limit was read back last.
    checked: Mutex<Option<Instant>>,
    /// Space was low at the last check.
    is_space_low: AtomicBool,
    /// Locked while attributes are invalidated because space has become low.
    becomes_low: Mutex<()>,
    /// Files that are open for buffered writing.
    files: Mutex<HashMap<Ino, WrittenFile>>,
}

/// A file that is open for buffered writing.
#[derive(Default)]
struct WrittenFile {
    opens: u32,
    /// The error of its last writeback, until a writer gets it.
    failure: Option<Errno>,
    /// What its writes take, if space was low during one.
    growth: Option<Growth>,
}

/// What writes of a file take.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// The process that called the last write(2), whose data may use the reserve if this process may.
    writer: Requester,
    /// Units of 512 bytes that the file had before the last write(2).
    blocks_512: u64,
    /// Size of the file in bytes, before the last write(2).
    size: u64,
    /// Data was written back since then.
    is_written: bool,
    /// Bytes that the last write(2) took. Appends that fit into the last block leave it.
    last_bytes: u64,
}

impl Writeback {
    /// Limits the kernel's dirty data of the mount with this device number, of which `free` bytes are free.
    /// That needs root and Linux 6.2; otherwise the kernel's own limit bounds it.
    fn limit_dirty(&self, (major, minor): (u32, u32), free: u64) {
        let knobs = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}"));
        let limit = limit_for(free);
        let set = || -> std::io::Result<File> {
            let knob = OpenOptions::new().read(true).write(true).open(knobs.join("max_bytes"))?;
            knob.write_all_at(limit.to_string().as_bytes(), 0)?;
            std::fs::write(knobs.join("strict_limit"), "1")?;
            Ok(knob)
        };
        let read = |name: &str| std::fs::read_to_string(knobs.join(name)).ok()?.trim().parse::<u64>().ok();
        let dirty_max = match (set(), read("strict_limit"), read("max_bytes")) {
            (Ok(knob), ..) => {
                let _ = self.knob.set(knob);
                limit
            }
            (Err(_), Some(1), Some(limit)) => STRICT_FACTOR * limit,
            _ => (memory_bytes() / MEMORY_DIVISOR).max(DIRTY_LIMITS.0),
        };
        self.dirty_max.store(dirty_max, Ordering::Relaxed);
    }

    /// Reads the limit back, at most once a second. The kernel keeps it as a part of the memory that may be
    /// dirty, so it becomes more when memory is freed. Then it is the bound until it is lowered.
    fn read_limit_back(&self) {
        let Some(knob) = self.knob.get() else { return };
        {
            let mut checked = locked(&self.checked);
            if checked.is_some_and(|at| at.elapsed() < Duration::from_secs(1)) {
                return;
            }
            *checked = Some(Instant::now());
        }
        let mut text = [0; 32];
        let len = knob.read_at(&mut text, 0).unwrap_or(0);
        let limit = std::str::from_utf8(&text[..len]).ok().and_then(|text| text.trim().parse::<u64>().ok());
        // The kernel rounds.
        if let Some(limit) = limit.filter(|limit| *limit / 5 * 4 > self.dirty_max.load(Ordering::Relaxed)) {
            self.dirty_max.store(limit, Ordering::Relaxed);
        }
    }

    fn has_writers(&self) -> bool {
        !locked(&self.files).is_empty()
    }

    /// Is the file open for buffered writing?
    fn has_writer(&self, ino: Ino) -> bool {
        locked(&self.files).contains_key(&ino)
    }

    /// The files that are open for buffered writing.
    fn written(&self) -> Vec<Ino> {
        locked(&self.files).keys().copied().collect()
    }

    fn opened(&self, ino: Ino) {
        locked(&self.files).entry(ino).or_default().opens += 1;
    }

    /// Forgets the file at its last close: close(2) or fsync(2) has returned the error of its writeback.
    fn closed(&self, ino: Ino) {
        let mut files = locked(&self.files);
        if let Some(file) = files.get_mut(&ino) {
            file.opens -= 1;
            if file.opens == 0 {
                files.remove(&ino);
            }
        }
    }

    /// Returns the error of the file's last writeback, once.
    fn failure(&self, ino: Ino) -> Result<(), Errno> {
        let failure = locked(&self.files).get_mut(&ino).and_then(|file| file.failure.take());
        failure.map_or(Ok(()), Err)
    }

    /// What was written while there was enough space says nothing about the size of one write(2).
    fn forget_growth(&self) {
        locked(&self.files).values_mut().for_each(|file| file.growth = None);
    }

    /// Notes what a file has once it has no dirty data. Returns the bytes that the last write(2) took.
    fn note_growth(&self, writer: Requester, stat: &Stat) -> u64 {
        let (blocks_512, size) = (stat.blocks_512, stat.size);
        let mut files = locked(&self.files);
        let Some(file) = files.get_mut(&stat.ino) else { return 0 };
        let new = Growth { writer, blocks_512, size, is_written: false, last_bytes: 0 };
        let growth = file.growth.get_or_insert(new);
        let taken = blocks_512.saturating_sub(growth.blocks_512) * 512;
        if growth.is_written && (taken > 0 || size <= growth.size) {
            growth.last_bytes = taken;
        }
        *growth = Growth { last_bytes: growth.last_bytes, ..new };
        growth.last_bytes
    }
}

/// Counts an operation that takes much space at once.
struct Taker(Arc<Writeback>);

impl Taker {
    fn of(writeback: &Arc<Writeback>) -> Self {
        writeback.takers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(writeback))
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.0.takers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the kernel holds of a mount that this process serves.
pub struct KernelCache {
    writeback: Arc<Writeback>,
    invalidator: Arc<Invalidator>,
}

impl KernelCache {
    /// Has the kernel write back the dirty data of all open files, and waits for that, but not longer than
    /// `timeout`. Not to be called by a thread that serves requests. Returns whether it is done.
    #[must_use]
    pub fn write_back(&self, timeout: Duration) -> bool {
        let (sender, receiver) = std::sync::mpsc::channel();
        write_back_then(&self.invalidator, &self.writeback.written(), move || {
            let _ = sender.send(());
        });
        receiver.recv_timeout(timeout).is_ok()
    }
}

/// The limit of dirty data where `free` bytes are free.
fn limit_for(free: u64) -> u64 {
    let (most, least) = DIRTY_LIMITS;
    (free / FREE_DIVISOR).clamp(least, most)
}

/// Calls `then` after the writeback of all these files.
fn write_back_then(invalidator: &Invalidator, files: &[Ino], then: impl FnOnce() + Send + 'static) {
    match files.split_last() {
        None => then(),
        Some((last, others)) => {
            for ino in others {
                invalidator.invalidate_then(ino.0.into(), 0..u64::MAX, || ());
            }
            invalidator.invalidate_then(last.0.into(), 0..u64::MAX, then);
        }
    }
}

impl<S: Serve> WriteCache<S> {
    pub(super) fn new(serve: Arc<S>, invalidator: Arc<Invalidator>, wanted: WritebackCache) -> Self {
        Self { serve, invalidator, writeback: Arc::default(), wanted, is_on: false }
    }

    /// Limits the dirty data of the mount with this device number. Before INIT, which decides by the limit.
    pub(super) fn limit_dirty(&self, device: (u32, u32)) {
        if self.wanted != WritebackCache::Never {
            self.writeback.limit_dirty(device, self.free_bytes());
        }
    }

    /// Whether the kernel shall buffer writes, if it offers the features `offered` of INIT.
    pub(super) fn may_buffer(&self, offered: u64) -> bool {
        match self.wanted {
            WritebackCache::Never => false,
            WritebackCache::Always => true,
            WritebackCache::Auto => {
                let dirty_max = self.writeback.dirty_max.load(Ordering::Relaxed);
                // Without direct I/O of mapped files, programs that map a file would fail while space is low.
                offered & init::DIRECT_IO_ALLOW_MMAP != 0
                    && self.serve.tracks_opens()
                    && dirty_max > 0
                    && self.free_bytes() >= AUTO_FACTOR * dirty_max
            }
        }
    }

    /// INIT agreed that the kernel buffers writes.
    pub(super) fn turn_on(&mut self) {
        self.is_on = true;
        self.serve.leave_times();
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn kernel_cache(&self) -> KernelCache {
        KernelCache { writeback: Arc::clone(&self.writeback), invalidator: Arc::clone(&self.invalidator) }
    }

    /// The files that are open for buffered writing.
    pub(super) fn written(&self) -> Vec<Ino> {
        self.writeback.written()
    }

    /// Is the file open for buffered writing?
    pub(super) fn has_writer(&self, ino: Ino) -> bool {
        self.writeback.has_writer(ino)
    }

    /// Calls `then` after the writeback of all files that are open for writing.
    pub(super) fn write_back_then(&self, then: impl FnOnce() + Send + 'static) {
        write_back_then(&self.invalidator, &self.writeback.written(), then);
    }

    /// Calls `then` after the writeback of a file.
    pub(super) fn write_file_back_then(&self, node: u64, then: impl FnOnce() + Send + 'static) {
        match self.is_on {
            true => self.invalidator.invalidate_then(node, 0..u64::MAX, then),
            false => then(),
        }
    }

    /// The file that a rename moves, if it is open for buffered writing and replaces another one.
    pub(super) fn written_replacement(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Option<Ino> {
        if !self.is_on || !self.writeback.has_writers() {
            return None;
        }
        let look = |(dir, name): (u64, &[u8])| self.serve.lookup(convert::ino_of(dir).ok()?, name).ok()?;
        let file = look(from).filter(|stat| self.writeback.has_writer(stat.ino))?;
        look(to).map(|_| file.ino)
    }

    /// Returns whether dirty data might not find space. When that becomes true, makes the kernel send GETATTR
    /// before the next write, and starts the writeback of all files that are open for writing.
    pub(super) fn is_space_low(&self) -> bool {
        if !self.is_on {
            return false;
        }
        let free = self.free_bytes();
        self.writeback.read_limit_back();
        self.adjust_limit(free);
        let is_space_low = free < 2 * self.writeback.dirty_max.load(Ordering::Relaxed);
        if !is_space_low {
            self.writeback.is_space_low.store(false, Ordering::Release);
        } else if self.set_space_low() {
            self.write_back_then(|| ());
        }
        is_space_low
    }

    /// Space is low: from the return on, the kernel sends GETATTR before each buffered write. Returns whether
    /// it was not low before.
    fn set_space_low(&self) -> bool {
        let _lock = locked(&self.writeback.becomes_low);
        let is_new = !self.writeback.is_space_low.swap(true, Ordering::AcqRel);
        if is_new {
            self.writeback.forget_growth();
            for ino in self.writeback.written() {
                self.invalidator.invalidate_attributes(ino.0.into());
            }
        }
        is_new
    }

    /// Notes that a request has taken a little space: less than the least limit of dirty data.
    pub(super) fn note_taken(&self) {
        if self.is_on && self.writeback.has_writers() {
            self.is_space_low();
        }
    }

    /// Runs an operation that takes up to `bytes` of space, after the writeback of dirty data if that might
    /// not find space afterwards.
    pub(super) fn run_with_space(&self, bytes: u64, operation: impl FnOnce() + Send + 'static) {
        // Before the bound is read: see `raise_limit`.
        let taker = Taker::of(&self.writeback);
        let operation = move || {
            operation();
            drop(taker);
        };
        let written = self.writeback.written();
        let dirty_max = self.writeback.dirty_max.load(Ordering::SeqCst);
        if written.is_empty() || self.free_bytes() >= bytes.saturating_add(2 * dirty_max) {
            return operation();
        }
        self.set_space_low();
        write_back_then(&self.invalidator, &written, operation);
    }

    /// Adjusts the kernel's limit of dirty data to the free space, in steps of a factor of two at least, so
    /// that this happens a few times in the life of a mount.
    fn adjust_limit(&self, free: u64) {
        let Some(knob) = self.writeback.knob.get() else { return };
        let (limit, old) = (limit_for(free), self.writeback.dirty_max.load(Ordering::Relaxed));
        let (is_less, is_more) = (limit <= old / 2, limit / 2 >= old);
        if !is_less && !is_more || self.writeback.changes_limit.swap(true, Ordering::AcqRel) {
            return;
        }
        if is_less {
            self.lower_limit(knob, limit);
        } else {
            self.raise_limit(knob, limit, old);
        }
    }

    /// A lower limit is the bound once everything is written back that the old one admitted.
    fn lower_limit(&self, knob: &File, limit: u64) {
        let lowered = Arc::clone(&self.writeback);
        match knob.write_all_at(limit.to_string().as_bytes(), 0) {
            Ok(()) => self.write_back_then(move || {
                lowered.dirty_max.store(limit, Ordering::Relaxed);
                lowered.changes_limit.store(false, Ordering::Release);
            }),
            Err(_) => lowered.changes_limit.store(false, Ordering::Release),
        }
    }

    /// A higher limit is the bound before the kernel has it. An operation that was admitted with the old
    /// bound is not done, or the free space that is read here is that after it.
    fn raise_limit(&self, knob: &File, limit: u64, old: u64) {
        let writeback = &self.writeback;
        writeback.dirty_max.store(limit, Ordering::SeqCst);
        let may_rise = writeback.takers.load(Ordering::SeqCst) == 0 && limit_for(self.free_bytes()) >= limit;
        if !may_rise || knob.write_all_at(limit.to_string().as_bytes(), 0).is_err() {
            writeback.dirty_max.store(old, Ordering::Relaxed);
        }
        writeback.changes_limit.store(false, Ordering::Release);
    }

    /// Free space for ordinary users, in bytes.
    fn free_bytes(&self) -> u64 {
        self.serve.stat_fs().map_or(0, |all| all.blocks_available * u64::from(all.block_size))
    }

    /// The reply for a file that was opened.
    pub(super) fn open_reply(&self, ino: Ino, access: Access, opened: Opened) -> OpenOut {
        let may_buffer = self.is_on && access.write;
        // Before the check: when space becomes low, the writeback of all files of this table starts.
        if may_buffer {
            self.writeback.opened(ino);
        }
        let is_direct_io =
            opened.appends_only || self.is_on && opened.is_sync || may_buffer && self.is_space_low();
        let is_buffered = may_buffer && !is_direct_io;
        if may_buffer && is_direct_io {
            self.writeback.closed(ino);
        }
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        OpenOut {
            fh: content::handle(opened.handle, is_direct_io, is_buffered),
            open_flags: fopen::KEEP_CACHE
                | flag(is_direct_io, fopen::DIRECT_IO)
                | flag(!self.serve.tracks_closes(), fopen::NOFLUSH),
            backing_id: 0,
        }
    }

    /// Counts a release of a handle.
    pub(super) fn note_release(&self, ino: Ino, handle: u64) {
        if content::is_buffered(handle) {
            self.writeback.closed(ino);
        }
    }

    /// Runs a write of data that the kernel buffered, with the reserve if the writer may use it. As in
    /// [`Requester::with_reserve`], `write` may be called twice.
    pub(super) fn for_writer(
        &self,
        ino: Ino,
        mut write: impl FnMut() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let writer = match self.is_on {
            true => locked(&self.writeback.files)
                .get(&ino)
                .and_then(|file| file.growth)
                .map(|growth| growth.writer),
            // Data of shared mappings only: its writer is unknown.
            false => None,
        };
        match writer {
            Some(writer) => writer.with_reserve(&*self.serve, write),
            None => write(),
        }
    }

    /// Notes that the kernel wrote back `len` bytes of a file, and the error if that failed.
    pub(super) fn note_writeback(&self, node: u64, ino: Ino, len: usize, refused: Option<Errno>) {
        if !self.is_on {
            return;
        }
        let is_space_low = self.is_space_low();
        if !is_space_low && refused.is_none() {
            return;
        }
        if let Some(file) = locked(&self.writeback.files).get_mut(&ino) {
            file.failure = refused.or(file.failure);
            if let Some(growth) = file.growth.as_mut().filter(|_| is_space_low) {
                match refused {
                    None => growth.is_written = true,
                    // The next write is likely to need as much.
                    Some(_) => growth.last_bytes = growth.last_bytes.max(len as u64),
                }
            }
        }
        if refused.is_some() {
            // So that reads return what is stored.
            self.invalidator.invalidate_then(node, 0..u64::MAX, || ());
        }
    }

    /// Whether a write of a file is refused whatever it writes: the file is immutable, or its last writeback
    /// failed.
    pub(super) fn check_writer(&self, ino: Ino) -> Result<(), Errno> {
        match is_immutable(&self.serve.stat(ino)?) {
            true => Err(Errno::PERM),
            false => self.writeback.failure(ino),
        }
    }

    /// Calls `then` with the attributes of a file after its dirty data is written back, or with an error if
    /// that failed or if the next write is likely to find no space.
    pub(super) fn stat_after_writeback(
        &self,
        writer: Requester,
        node: u64,
        then: impl FnOnce(Result<Stat, Errno>) + Send + 'static,
    ) {
        let (serve, writeback) = (Arc::clone(&self.serve), Arc::clone(&self.writeback));
        self.invalidator.invalidate_then(node, 0..u64::MAX, move || {
            then(convert::ino_of(node).and_then(|ino| {
                writeback.failure(ino)?;
                let stat = serve.stat(ino)?;
                let bytes = writeback.note_growth(writer, &stat);
                writer.with_reserve(&*serve, || match serve.has_space(bytes)? {
                    true => Ok(()),
                    false => Err(Errno::NOSPC),
                })?;
                Ok(stat)
            }));
        });
    }

    /// For each reply with attributes: if the kernel has to send GETATTR before a buffered write of this
    /// file, invalidates its copy of the attributes. The kernel does not take those of a request that it sent
    /// before an invalidation.
    pub(super) fn keep_asking(&self, stat: &Stat) {
        if self.must_ask(stat) {
            self.invalidator.invalidate_attributes(stat.ino.0.into());
        }
    }

    /// Whether the kernel has to send GETATTR before a buffered write of this file.
    fn must_ask(&self, stat: &Stat) -> bool {
        let has_cause = || is_immutable(stat) || self.writeback.is_space_low.load(Ordering::Acquire);
        self.is_on && has_cause() && self.writeback.has_writer(stat.ino)
    }

    /// How long attributes in the reply to SETATTR and LINK are valid, in seconds. The kernel takes these
    /// attributes in any case. So if it must ask, they are valid for no time; the next GETATTR may then come
    /// from a read, and is treated as that of a write.
    pub(super) fn attr_valid_after_change(&self, stat: &Stat) -> u64 {
        if self.must_ask(stat) { 0 } else { CACHE_TIMEOUT.as_secs() }
    }
}

fn is_immutable(stat: &Stat) -> bool {
    stat.flags & flags::IMMUTABLE != 0
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Size of the machine's memory, in bytes.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(1 << 40, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use extant_device::FileDevice;
    use extant_fuse_lowlevel::Session;
    use extant_fuse_lowlevel::protocol::{InHeader, InitIn, InvalInodeOut, OutHeader};
    use extant_volume::{OpenOptions, Volume};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::transport::Transport;
    use crate::{MountOptions, Server};

    /// A message to the kernel, without its header.
    fn message(socket: &OwnedFd) -> (OutHeader, Vec<u8>) {
        let mut bytes = vec![0; 4096];
        let len = rustix::io::read(socket, &mut bytes).unwrap();
        let (header, body) = OutHeader::read_from_prefix(&bytes[..len]).unwrap();
        (header, body.to_vec())
    }

    /// If the kernel had valid attributes after the reply, the writer could go on without a limit.
    #[test]
    fn attributes_are_invalid_before_the_reply_to_the_write_that_finds_space_low() {
        let (kernel, server) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let len = (size_of::<InHeader>() + size_of::<InitIn>()) as u32;
        let header = InHeader { len, opcode: 26, unique: 1, ..InHeader::default() };
        let init = InitIn { major: 7, minor: 45, flags: u32::MAX, ..InitIn::default() };
        rustix::io::write(&kernel, &[header.as_bytes(), init.as_bytes()].concat()).unwrap();

        let scratch = extant_testkit::scratch();
        let image = scratch.path().join("image");
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "8M"]);
        let device = Arc::new(FileDevice::open_locked(&image).unwrap());
        let volume = Volume::open(device, &OpenOptions::default()).unwrap();
        let options = MountOptions {
            read_only: false,
            writeback_cache: WritebackCache::Always,
            ..MountOptions::new("test")
        };
        let serve = Arc::new(Server::new(volume, Box::new(|_: &str| ())).with_opens());
        let session = Session::new(server, Transport::new(serve, &options), false).unwrap();
        assert_eq!(message(&kernel).0.unique, 1);
        // Without its thread: what is in the socket was sent by the caller.
        let cache = &session.handler().write_cache;
        cache.invalidator.connect(session.notifier());
        let (file, other) = (Ino(12), Ino(13));
        cache.writeback.opened(file);
        cache.writeback.opened(other);

        cache.writeback.dirty_max.store(1 << 20, Ordering::Relaxed);
        cache.note_writeback(12, file, 4096, None);
        assert!(rustix::io::read(&kernel, &mut [0; 64]).is_err(), "there is enough space");

        cache.writeback.dirty_max.store(4 << 20, Ordering::Relaxed);
        cache.note_writeback(12, file, 4096, None);
        let mut nodes = [(); 2].map(|()| {
            let (header, body) = message(&kernel);
            assert_eq!(header.unique, 0, "a notification");
            let body = InvalInodeOut::read_from_bytes(&body).unwrap();
            assert!(body.off < 0, "attributes only: {body:?}");
            body.ino
        });
        nodes.sort_unstable();
        assert_eq!(nodes, [12, 13]);

        cache.note_writeback(12, file, 4096, None);
        assert!(rustix::io::read(&kernel, &mut [0; 64]).is_err(), "once is enough");
    }
}
