//! [`Serve`], implemented on a [`Volume`].
//!
//! ```text
//!  Open(volume) -- close(), after all requests in progress --> Closed(result): further requests get EIO
//!       ^ |
//!       | '-- resize(): close, resize the image, open; other requests wait
//!       '----'
//! ```
//!
//! State: the volume, or the result of its close; the inodes without names that are still in use; the open
//! files, if opens are tracked (see `openers`).
//!
//! Does **not** own: when an inode is no longer in use (see `transport::lookups`).
//!
//! Invariants
//! 1. An inode whose last name is removed through this server is open in the volume, so it lives, until the
//!    transport releases it ([`Serve::forget`]) or the server is closed.
//! 2. A panic in an operation becomes EIO, is reported, and aborts the journal.
//! 3. Names in encrypted directories are ciphertext, which may contain bytes that no file name can have. They
//!    are encoded when they are returned, and decoded when they are looked up (see [`extant::spelled`]).
//!    Without the key, names can be removed, but not created.

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use extant::spelled::{self, Meaning};
use extant_base::Ino;
use extant_ondisk::Features;
use extant_ondisk::inode::flags;
use extant_volume::{
    Allocate, Cursor, Fault, FileType, Inode, InodeRef, New, Refusal, Rename, Seek, SetAttr, SetXattr,
    Shutdown, Stat, StatFs, Volume, WriteAccess,
};

use crate::openers::Openers;
use crate::status::{Faults, ServerStatus};
use crate::{Access, Caller, Errno, Name, Opened, Opener, Serve};

/// Called with a description of damage, from any thread.
pub type Report = Box<dyn Fn(&str) + Send + Sync>;

/// How often, and how long each time, an operation that finds no space waits for the release of removed
/// inodes. After the reply to an unlink, another thread gets the kernel's FORGET and releases the inode.
const SPACE_TRIES: u32 = 20;
const SPACE_WAIT: Duration = Duration::from_millis(1);

/// Gives the image of a closed volume this number of blocks, and opens the volume again, with its old size if
/// the resize failed.
pub type Resizer = Box<dyn Fn(u64) -> Resized + Send + Sync>;

/// The result of a [`Resizer`].
pub struct Resized {
    /// Whether the size changed.
    pub done: Result<(), Errno>,
    /// The volume, or why it cannot be opened.
    pub volume: Result<Volume, String>,
}

/// Serves a [`Volume`].
pub struct Server {
    state: RwLock<State>,
    /// Inodes without names that are in use.
    unlinked: Mutex<HashMap<Ino, u32>>,
    /// Number of inodes that are being deleted, and are not in `unlinked` any more.
    deleting: AtomicU32,
    is_writable: bool,
    has_encrypted: bool,
    tracks_opens: bool,
    tracks_closes: bool,
    /// The kernel keeps the times of writes; also of a volume that is opened again.
    leaves_times: AtomicBool,
    openers: Openers,
    faults: Faults,
    report: Report,
    collect: Option<Box<dyn Fn() + Send + Sync>>,
    resizer: Option<Resizer>,
}

/// A thread calls the function of [`Server::with_collect`] after this number of evictions.
const EVICTIONS_PER_COLLECT: u32 = 4096;

thread_local! {
    static EVICTED: Cell<u32> = const { Cell::new(0) };
}

#[expect(clippy::large_enum_variant, reason = "there is one value, and it is nearly always open")]
enum State {
    Open(Volume),
    Closed(Result<(), String>),
}

impl Server {
    /// Serves this volume. Damage and device errors are passed to `report`, because callers get an errno
    /// only.
    #[must_use]
    pub fn new(volume: Volume, report: Report) -> Self {
        Self {
            is_writable: volume.is_writable(),
            tracks_closes: false,
            has_encrypted: volume.superblock().features.has_incompat(Features::ENCRYPT),
            state: RwLock::new(State::Open(volume)),
            unlinked: Mutex::default(),
            deleting: AtomicU32::new(0),
            tracks_opens: false,
            leaves_times: AtomicBool::new(false),
            openers: Openers::default(),
            faults: Faults::default(),
            report,
            collect: None,
            resizer: None,
        }
    }

    /// Calls `collect`, in threads that handle requests, each time that thousands of inodes were evicted: for
    /// memory allocators that return memory to the system on demand.
    #[must_use]
    pub fn with_collect(self, collect: impl Fn() + Send + Sync + 'static) -> Self {
        Self { collect: Some(Box::new(collect)), ..self }
    }

    /// Allows changes of the size.
    #[must_use]
    pub fn with_resizer(self, resizer: Resizer) -> Self {
        Self { resizer: Some(resizer), ..self }
    }

    /// Tracks opens, at the cost of two requests per open file: writeback errors are then returned once per
    /// open file, and a file whose whole content was replaced is written back at the last close.
    #[must_use]
    pub fn with_opens(self) -> Self {
        Self { tracks_opens: true, ..self }
    }

    /// Tracks closes, at the cost of a request per close: a file whose whole content was replaced is written
    /// back then. Has no effect if the volume does not write back such files early (`noauto_da_alloc`).
    #[must_use]
    pub fn with_closes(self) -> Self {
        let has_use = self.with_volume(|volume| Ok(volume.asks_for_closing()));
        Self { tracks_closes: has_use == Ok(true), ..self }
    }

    /// Waits for requests in progress, deletes inodes without names, checkpoints the journal and closes the
    /// volume. All further requests fail. A second call returns the result of the first.
    ///
    /// # Errors
    /// A message: why changes may be lost.
    pub fn close(&self) -> Result<(), String> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let volume = match &mut *state {
            State::Closed(outcome) => return outcome.clone(),
            // The state in case that the close panics.
            open @ State::Open(_) => {
                let failed = State::Closed(Err("the volume could not be closed".to_owned()));
                match std::mem::replace(open, failed) {
                    State::Open(volume) => volume,
                    State::Closed(outcome) => return outcome,
                }
            }
        };
        let unlinked = std::mem::take(&mut *self.unlinked());
        // Files without names that are still open are deleted, too: after a lazy unmount by a signal,
        // processes may have them open.
        let unlinked = unlinked.into_iter().flat_map(|(ino, opens)| (0..opens).map(move |_| ino));
        for ino in unlinked.chain(self.openers.close_all()) {
            if let Err(fault) = volume.released(ino) {
                (self.report)(&fault.to_string());
            }
        }
        let outcome = volume.close().map_err(|fault| fault.to_string());
        *state = State::Closed(outcome.clone());
        outcome
    }

    /// Waits until no removed file is in use, for as long as an operation without space waits.
    fn wait_for_releases(&self) -> Result<(), Errno> {
        for _ in 0..SPACE_TRIES {
            if self.unlinked().is_empty() && self.deleting.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            std::thread::sleep(SPACE_WAIT);
        }
        Err(Errno::BUSY)
    }

    /// Closes the volume and opens it again with another size. On an error the volume is as before.
    fn resize_closed(&self, resizer: &Resizer, blocks: u64) -> Result<(), Errno> {
        self.wait_for_releases()?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // A removal between the wait and the lock.
        if !self.unlinked().is_empty() {
            return Err(Errno::BUSY);
        }
        let failed = || State::Closed(Err("the volume could not be opened again after a resize".to_owned()));
        let volume = match std::mem::replace(&mut *state, failed()) {
            State::Open(volume) => volume,
            closed @ State::Closed(_) => {
                *state = closed;
                return Err(Errno::IO);
            }
        };
        // What fails here would be lost by the close.
        if let Err(fault) = volume.sync() {
            *state = State::Open(volume);
            return Err(self.refuse(&fault));
        }
        let open = self.openers.all();
        // Errors that an open file has not returned yet would be forgotten.
        if open.iter().any(|(_, ino)| volume.files().had_errors(*ino)) {
            *state = State::Open(volume);
            return Err(Errno::IO);
        }
        self.openers.forget_processes();
        for (_, ino) in &open {
            if let Err(fault) = volume.released(*ino) {
                (self.report)(&fault.to_string());
            }
        }
        if let Err(fault) = volume.close() {
            (self.report)(&fault.to_string());
            return Err(Errno::IO);
        }
        let Resized { done, volume } = resizer(blocks);
        let volume = volume.map_err(|why| {
            (self.report)(&why);
            Errno::IO
        })?;
        if self.leaves_times.load(Ordering::Relaxed) {
            volume.leave_times();
        }
        for (handle, ino) in open {
            let renewed = volume.opened(ino).and_then(|()| volume.files().sample_errors(ino));
            match renewed {
                Ok(cursor) => self.openers.renew(handle, cursor),
                Err(fault) => (self.report)(&fault.to_string()),
            }
        }
        *state = State::Open(volume);
        done
    }

    /// Runs an operation on the volume. Faults become errnos.
    fn with_volume<R>(&self, operation: impl FnOnce(&Volume) -> Result<R, Fault>) -> Result<R, Errno> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            // A panic must not end the server thread, or its caller would wait forever. The volume writes
            // nothing afterwards, because its state in memory may be inconsistent.
            State::Open(volume) => match catch_unwind(AssertUnwindSafe(|| operation(volume))) {
                Ok(done) => done.map_err(|fault| self.refuse(&fault)),
                Err(panic) => {
                    let cause = format!("internal error, which is a defect of extant: {}", message(&*panic));
                    self.faults.note_internal(&cause);
                    (self.report)(&cause);
                    volume.abort(&cause);
                    Err(Errno::IO)
                }
            },
            State::Closed(_) => Err(Errno::IO),
        }
    }

    /// As [`with_volume`](Self::with_volume), for operations that allocate. If there is no space, but removed
    /// inodes are about to be released, waits for that and tries again.
    fn with_space_retries<R>(
        &self,
        mut operation: impl FnMut(&Volume) -> Result<R, Fault>,
    ) -> Result<R, Errno> {
        self.with_volume(|volume| {
            let mut tries = 0;
            loop {
                // Read before the operation: the release may happen between its failure and here.
                let is_deleting = !self.unlinked().is_empty() || self.deleting.load(Ordering::Acquire) > 0;
                match operation(volume) {
                    Err(fault) if fault.wants_room() && is_deleting && tries < SPACE_TRIES => {
                        tries += 1;
                        std::thread::sleep(SPACE_WAIT);
                    }
                    done => return done,
                }
            }
        })
    }

    fn unlinked(&self) -> MutexGuard<'_, HashMap<Ino, u32>> {
        self.unlinked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name as it is stored in the directory; `None` if the directory cannot contain it.
    fn stored<'a>(volume: &Volume, dir: &Inode, name: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, Fault> {
        if !dir.has_flag(flags::ENCRYPT) || matches!(name, b"." | b"..") {
            return Ok(Some(name.into()));
        }
        match spelled::meaning(name) {
            Meaning::Name(name) => Ok(Some(name.into())),
            Meaning::Nothing => Ok(None),
            Meaning::Listed => {
                let mut found = None;
                let mut each = |entry: extant_volume::DirEntry<'_>| {
                    if *spelled::spell(entry.name) == *name {
                        found = Some(entry.name.to_vec().into());
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                };
                // Damage is not reported here: the listing that returned this name has reported it.
                volume.names().read_dir(dir, Cursor::START, &mut each, &mut |_| ())?;
                Ok(found)
            }
        }
    }

    fn find(volume: &Volume, dir: &Inode, name: &[u8]) -> Result<InodeRef, Fault> {
        let name = Self::stored(volume, dir, name)?.ok_or(Refusal::NotFound)?;
        volume.names().lookup(dir, &name)
    }

    /// Fails in encrypted directories, where names cannot be created or moved without the key.
    fn check_key(&self, volume: &Volume, dir: Ino) -> Result<(), Fault> {
        if self.has_encrypted && volume.inode(dir)?.has_flag(flags::ENCRYPT) {
            return Err(Refusal::NeedsKey.into());
        }
        Ok(())
    }

    /// A name to remove, as the directory has it.
    fn existing<'a>(&self, volume: &Volume, dir: Ino, name: &'a [u8]) -> Result<Cow<'a, [u8]>, Fault> {
        if !self.has_encrypted {
            return Ok(name.into());
        }
        Ok(Self::stored(volume, &*volume.inode(dir)?, name)?.ok_or(Refusal::NotFound)?)
    }

    /// Remembers an inode that a removal held.
    fn keep(&self, held: Option<Ino>) -> Option<Ino> {
        if let Some(ino) = held {
            *self.unlinked().entry(ino).or_default() += 1;
        }
        held
    }

    /// Converts a fault to an errno. Reports it unless it is an ordinary refusal, such as EEXIST.
    fn refuse(&self, fault: &Fault) -> Errno {
        self.faults.note(fault);
        if !matches!(fault, Fault::Refused(_)) {
            (self.report)(&fault.to_string());
        }
        Errno(fault.errno())
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

impl Serve for Server {
    fn leave_times(&self) {
        self.leaves_times.store(true, Ordering::Relaxed);
        let _ = self.with_volume(|volume| {
            volume.leave_times();
            Ok(())
        });
    }

    fn time_granularity(&self) -> Duration {
        self.with_volume(|volume| Ok(volume.attributes().time_granularity()))
            .unwrap_or(Duration::from_nanos(1))
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>, Errno> {
        self.with_volume(|volume| {
            let found = volume.inode(dir).and_then(|dir| Self::find(volume, &dir, name));
            match found {
                Ok(inode) => Ok(Some(volume.attributes().stat(&inode))),
                Err(fault) if fault.is(Refusal::NotFound) => Ok(None),
                Err(fault) => Err(fault),
            }
        })
    }

    fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        self.with_volume(|volume| Ok(volume.attributes().stat(&*volume.inode(ino)?)))
    }

    fn status(&self) -> Option<ServerStatus> {
        let volume = self.with_volume(|volume| Ok(volume.status())).ok()?;
        Some(ServerStatus { errors_met: self.faults.status(), volume })
    }

    fn extent_cache_stats(&self) -> Option<String> {
        self.with_volume(|volume| Ok(volume.counters().extent_stats()))
            .ok()?
            .map(|stats| stats.es_shrinker_info())
    }

    fn allocator_stats(&self) -> Option<String> {
        self.with_volume(|volume| Ok(volume.counters().alloc_stats())).ok()?.map(|stats| stats.to_string())
    }

    fn prefetch(&self, inos: &[Ino]) {
        if let State::Open(volume) = &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            volume.prefetch_inodes(inos);
        }
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.with_volume(|volume| volume.files().read_link(&*volume.inode(ino)?))
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Opened, Errno> {
        self.with_volume(|volume| {
            let file = volume.inode(ino)?;
            volume.files().check_open(ino, access.write, access.append)?;
            if file.kind() == FileType::Regular {
                // A read of 0 bytes fails if reads of this file fail.
                volume.files().read(&file, 0, &mut [])?;
            }
            volume.opened(ino)?;
            let handle = self.openers.open(ino, volume.files().sample_errors(ino)?);
            let has = |flag| access.write && file.has_flag(flag);
            Ok(Opened { handle, appends_only: has(flags::APPEND), is_sync: has(flags::SYNC) })
        })
    }

    fn release(&self, _: Ino, handle: u64) {
        // RELEASE has no reply that could carry an error; `with_volume` reports it.
        // Under the lock of the volume: it may be closed and opened again meanwhile, with the open files.
        let _ = self.with_volume(|volume| match self.openers.close(handle) {
            Some(ino) => volume.released(ino),
            None => Ok(()),
        });
    }

    fn flush(&self, ino: Ino) {
        // fsync returns write-back errors.
        let _ = self.with_volume(|volume| {
            volume.closing(ino);
            Ok(())
        });
    }

    fn tracks_closes(&self) -> bool {
        self.tracks_closes
    }

    fn tracks_opens(&self) -> bool {
        self.has_encrypted || self.tracks_opens
    }

    fn file_range(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        take: &mut dyn FnMut(BorrowedFd<'_>, u64),
    ) -> Result<bool, Errno> {
        self.with_volume(|volume| volume.files().file_range(&*volume.inode(ino)?, offset, len, take))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.with_volume(|volume| volume.files().read(&*volume.inode(ino)?, offset, buf))
    }

    fn list(
        &self,
        dir: Ino,
        from: Cursor,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        self.with_volume(|volume| {
            let dir = volume.inode(dir)?;
            let encrypted = dir.has_flag(flags::ENCRYPT);
            let mut pass_on = |entry: extant_volume::DirEntry<'_>| {
                let name = if encrypted { spelled::spell(entry.name) } else { entry.name.into() };
                each(Name { ino: entry.ino, kind: entry.kind, name: &name, next: entry.next })
            };
            // As in the kernel's ext4, damaged blocks are skipped and reported.
            let mut damage = |fault: Fault| {
                self.faults.note(&fault);
                (self.report)(&fault.to_string());
            };
            volume.names().read_dir(&dir, from, &mut pass_on, &mut damage)
        })
    }

    fn stat_fs(&self) -> Result<StatFs, Errno> {
        self.with_volume(Volume::statfs)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.with_volume(|volume| volume.attributes().xattr(&*volume.inode(ino)?, name))
    }

    fn xattr_names(&self, ino: Ino, is_root: &dyn Fn() -> bool) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names = self.with_volume(|volume| volume.attributes().xattr_names(&*volume.inode(ino)?))?;
        // The kernel requires CAP_SYS_ADMIN, but a request does not contain capabilities. The kernel itself
        // protects the values.
        let is_trusted = |name: &Vec<u8>| name.starts_with(b"trusted.");
        if names.iter().any(is_trusted) && !is_root() {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.with_volume(|volume| volume.files().seek(&*volume.inode(ino)?, offset, what))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn create(&self, dir: Ino, name: &[u8], new: &New<'_>) -> Result<Stat, Errno> {
        self.with_space_retries(|volume| {
            self.check_key(volume, dir)?;
            Ok(volume.attributes().stat(&*volume.names().create(dir, name, new)?))
        })
    }

    fn create_unnamed(&self, dir: Ino, new: &New<'_>) -> Result<Stat, Errno> {
        self.with_space_retries(|volume| {
            self.check_key(volume, dir)?;
            let made = volume.names().create_unnamed(dir, new)?;
            *self.unlinked().entry(made.ino()).or_default() += 1;
            Ok(volume.attributes().stat(&made))
        })
    }

    fn write(&self, access: WriteAccess, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.with_space_retries(|volume| volume.files().write_at_by(access, ino, offset, bytes))
    }

    fn copy(&self, access: WriteAccess, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, Errno> {
        self.with_space_retries(|volume| volume.files().copy_range_by(access, from, to, len))
    }

    fn allocate(&self, ino: Ino, how: Allocate, offset: u64, len: u64) -> Result<(), Errno> {
        self.with_space_retries(|volume| volume.files().fallocate(ino, how, offset, len))
    }

    fn has_space(&self, bytes: u64) -> Result<bool, Errno> {
        self.with_space_retries(|volume| match volume.has_space(bytes)? {
            true => Ok(()),
            false => Err(Refusal::NoSpace.into()),
        })
        .map_or_else(|errno| if errno == Errno::NOSPC { Ok(false) } else { Err(errno) }, |()| Ok(true))
    }

    fn may_use_reserve(&self, uid: u32, is_in_group: &dyn Fn(u32) -> bool) -> bool {
        self.with_volume(|volume| Ok(volume.may_use_reserve(uid, is_in_group))) == Ok(true)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat, Errno> {
        self.with_space_retries(|volume| {
            self.check_key(volume, dir)?;
            volume.names().link(ino, dir, name)?;
            Ok(volume.attributes().stat(&*volume.inode(ino)?))
        })
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Errno> {
        self.with_volume(|volume| {
            Ok(self.keep(volume.names().unlink_held(dir, &self.existing(volume, dir, name)?)?))
        })
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Errno> {
        self.with_volume(|volume| {
            Ok(self.keep(volume.names().rmdir_held(dir, &self.existing(volume, dir, name)?)?))
        })
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename) -> Result<Option<Ino>, Errno> {
        self.with_space_retries(|volume| {
            self.check_key(volume, from.0)?;
            self.check_key(volume, to.0)?;
            Ok(self.keep(volume.names().rename_held(from, to, how)?))
        })
    }

    fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Stat, Errno> {
        self.with_volume(|volume| Ok(volume.attributes().stat(&*volume.attributes().set_attr(ino, set)?)))
    }

    fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        self.with_space_retries(|volume| volume.attributes().set_xattr(ino, name, value, how))
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        let is_acl = matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default");
        self.with_volume(|volume| match volume.attributes().remove_xattr(ino, name) {
            Err(fault) if is_acl && fault.is(Refusal::NoAttribute) => Ok(()),
            done => done,
        })
    }

    fn forget(&self, ino: Ino) {
        // FORGET has no reply; `with_volume` reports errors.
        let _ = self.with_volume(|volume| {
            self.deleting.fetch_add(1, Ordering::AcqRel);
            let opens = self.unlinked().remove(&ino).unwrap_or(0);
            let released = (0..opens).try_for_each(|_| volume.released(ino));
            self.deleting.fetch_sub(1, Ordering::AcqRel);
            released
        });
    }

    fn evict(&self, ino: Ino) {
        let _ = self.with_volume(|volume| {
            volume.evict(ino);
            Ok(())
        });
        let evicted = EVICTED.get() + 1;
        EVICTED.set(evicted % EVICTIONS_PER_COLLECT);
        if evicted == EVICTIONS_PER_COLLECT
            && let Some(collect) = &self.collect
        {
            collect();
        }
    }

    fn sync(&self, ino: Ino, opener: Opener, data_only: bool) -> Result<(), Errno> {
        self.with_volume(|volume| match ino {
            Ino::ROOT => volume.sync(),
            _ => self.openers.fsync(volume, ino, opener, data_only),
        })
    }

    fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        self.with_volume(|volume| volume.admin().shut_down(how))
    }

    fn is_shut_down(&self) -> bool {
        self.with_volume(|volume| Ok(volume.admin().is_shut_down())) == Ok(true)
    }

    fn label(&self) -> Result<Vec<u8>, Errno> {
        self.with_volume(|volume| Ok(volume.admin().label()))
    }

    fn uuid(&self) -> Result<[u8; 16], Errno> {
        self.with_volume(|volume| Ok(volume.admin().uuid()))
    }

    fn set_label(&self, label: &[u8]) -> Result<(), Errno> {
        self.with_volume(|volume| volume.admin().set_label(label))
    }

    fn set_uuid(&self, uuid: [u8; 16]) -> Result<(), Errno> {
        self.with_volume(|volume| volume.admin().set_uuid(uuid))
    }

    fn resize(&self, blocks: u64) -> Result<(), Errno> {
        let resizer = self.resizer.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let resized = catch_unwind(AssertUnwindSafe(|| self.resize_closed(resizer, blocks)));
        resized.unwrap_or_else(|panic| {
            let cause = format!("internal error, which is a defect of extant: {}", message(&*panic));
            self.faults.note_internal(&cause);
            (self.report)(&cause);
            Err(Errno::IO)
        })
    }

    fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64, Errno> {
        self.with_volume(|volume| {
            let geometry = volume.geometry();
            let bs = geometry.block_size;
            let (len, end) = (range.end - range.start, geometry.blocks << bs.log2());
            let group = u64::from(geometry.blocks_per_group) << bs.log2();
            if len < bs.bytes() || range.start >= end || min_bytes > group {
                return Err(Refusal::Invalid.into());
            }
            volume.admin().trim_range(range.clone(), min_bytes)?.ok_or_else(|| Refusal::NotSupported.into())
        })
    }

    fn may_administer(&self, caller: Caller) -> bool {
        caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant_device::FileDevice;
    use extant_volume::OpenOptions;

    use super::*;

    /// Serves an image with an encrypted directory `enc`, which contains the name `cipher` instead of
    /// `plain`.
    fn server(scratch: &std::path::Path, plain: &str, cipher: &[u8]) -> Server {
        let (tree, image) = (scratch.join("tree"), scratch.join("a.img"));
        std::fs::create_dir_all(tree.join("enc")).unwrap();
        std::fs::write(tree.join("enc").join(plain), "secret").unwrap();
        std::fs::write(tree.join("enc/b~"), "secret").unwrap();
        let features = ["-q", "-t", "ext4", "-O", "encrypt,^metadata_csum", "-d"];
        let mut command = extant_testkit::command("mke2fs");
        let made = command.args(features).arg(&tree).arg(&image).arg("8M").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut command = extant_testkit::command("debugfs");
        let flagged = command.args(["-w", "-R", "sif /enc flags 0x80800"]).arg(&image).output().unwrap();
        assert!(flagged.status.success(), "{flagged:?}");
        let mut bytes = std::fs::read(&image).unwrap();
        let offsets: Vec<usize> = bytes
            .windows(plain.len())
            .enumerate()
            .filter(|(_, at)| *at == plain.as_bytes())
            .map(|(at, _)| at)
            .collect();
        assert!(!offsets.is_empty());
        for at in offsets {
            bytes[at..at + plain.len()].copy_from_slice(cipher);
        }
        std::fs::write(&image, bytes).unwrap();
        let device = Arc::new(FileDevice::open_read_only(&image).unwrap());
        let volume = Volume::open_read_only(device, &OpenOptions::default()).unwrap();
        Server::new(volume, Box::new(|damage| panic!("{damage}")))
    }

    #[test]
    fn names_in_encrypted_directories_can_be_listed_and_looked_up() {
        let every: Vec<u8> = (0..=254).collect();
        for cipher in [&b"a/b\0%"[..], &every[1..=100], &every[..189], &every] {
            let scratch = extant_testkit::scratch();
            let plain = "N".repeat(cipher.len());
            let server = server(scratch.path(), &plain, cipher);
            let enc = server.lookup(Ino::ROOT, b"enc").unwrap().unwrap().ino;
            let mut names = Vec::new();
            let mut each = |name: Name<'_>| {
                names.push((name.name.to_vec(), name.ino));
                ControlFlow::Continue(())
            };
            server.list(enc, Cursor::START, &mut each).unwrap();
            assert_eq!(names.len(), 4, "{names:?}");
            for (name, ino) in names {
                assert!(name.len() <= 255 && !name.contains(&b'/') && !name.contains(&0));
                assert_eq!(server.lookup(enc, &name).unwrap().unwrap().ino, ino);
            }
            assert_eq!(server.lookup(enc, b"~nothing.12345678"), Ok(None));
            assert_eq!(server.lookup(enc, b"%62~"), Ok(None), "spelled otherwise");
        }
    }
}
