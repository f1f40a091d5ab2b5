//! Dirty data of the kernel's write-back cache
//! ([`MountOptions::writeback_cache`](crate::MountOptions::writeback_cache)): what to do when space is low,
//! and which requests wait until it is written back.
//!
//! The kernel does not report how much dirty data it has, so the server cannot reserve space for it, and its
//! writeback may fail for lack of space. But the amount is bounded (`dirty_max`). While twice this bound is
//! free, all dirty data has space. With less free space:
//!
//! - Files are opened for direct I/O. So each write reaches the server at once, and fails if there is no
//!   space.
//! - For files that were opened earlier, attributes get a timeout of 0. So the kernel sends GETATTR before
//!   each write(2), and the server delays the reply until the file's dirty data is written back (see
//!   `invalidator`). If that failed, the reply is ENOSPC. So per file, the data of at most one write(2) is
//!   accepted without space, and the next write(2), fsync(2) or close(2) returns the error.
//!
//! ```text
//!   [enough space] -- free < 2 * bound: write back all files that are open for writing --> [low]
//!         ^---------------------- free >= 2 * bound --------------------------------------- |
//! ```
//!
//! Files with `chattr +S` are opened for direct I/O, too: the kernel does not know this flag.
//!
//! Three requests need data that the kernel still has. They wait for the writeback of files that are open for
//! buffered writing; close(2) has written back all others:
//!
//! - a rename that replaces a file, for the data of the new file, so that a crash never leaves an empty one;
//! - FSYNC of the root and SYNCFS, for all files;
//! - the end by a signal, for all files ([`KernelCache`]).
//!
//! State: the bound, whether space is low, the files that are open for buffered writing with a count each,
//! and the files whose writeback failed without a report to a writer.
//!
//! Does **not** own: the invalidations (see `invalidator`), the bits of file handles (see `content`).
//!
//! Source: kernel fs/fuse/file.c (a write to the cache updates the attributes first),
//! Documentation/ABI/testing/sysfs-class-bdi.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use extant_base::Ino;
use extant_fuse_lowlevel::protocol::{AttrOut, LseekOut, OpenOut, ROOT_ID, fopen};
use extant_fuse_lowlevel::{Reply, Request};
use extant_volume::{FileType, Seek, Stat};

use super::invalidator::Invalidator;
use super::reserve::Requester;
use super::{CACHE_TIMEOUT, Transport, content, convert, fail};
use crate::{Access, Errno, Opened, Opener, Serve};

/// The limits of dirty data that are set for a mount, in bytes: with much free space and with little.
const DIRTY_LIMITS: (u64, u64) = (32 << 20, 2 << 20);
/// In between, the limit is this part of the space that is free when the mount begins.
const FREE_DIVISOR: u64 = 16;
/// Without that limit, dirty data is at most this part of all memory (4 %): the default of vm.dirty_ratio is
/// 20 %, and one FUSE mount gets at most a fifth of that.
const MEMORY_DIVISOR: u64 = 25;

/// What is known about the kernel's dirty data.
#[derive(Default)]
pub(super) struct Writeback {
    /// Bound of the dirty data, in bytes.
    dirty_max: AtomicU64,
    /// Space was low at the last check.
    is_space_low: AtomicBool,
    /// Files that are open for buffered writing, with the number of opens.
    writers: Mutex<HashMap<Ino, u32>>,
    /// Files whose writeback failed, until a writer gets the error.
    failed: Mutex<HashSet<Ino>>,
}

impl Writeback {
    /// Limits the kernel's dirty data of the mount with this device number, of which `free` bytes are free.
    /// That needs root and Linux 6.2; otherwise the kernel's defaults bound it.
    pub(super) fn limit_dirty(&self, (major, minor): (u32, u32), free: u64) {
        let (most, least) = DIRTY_LIMITS;
        let limit = (free / FREE_DIVISOR).clamp(least, most);
        let knobs = format!("/sys/class/bdi/{major}:{minor}");
        let set = |name: &str, value: u64| std::fs::write(Path::new(&knobs).join(name), value.to_string());
        let is_set = set("max_bytes", limit).and_then(|()| set("strict_limit", 1)).is_ok();
        let dirty_max = if is_set { limit } else { (memory_bytes() / MEMORY_DIVISOR).max(most) };
        self.dirty_max.store(dirty_max, Ordering::Relaxed);
    }

    /// Is the file open for buffered writing?
    fn has_writer(&self, ino: Ino) -> bool {
        locked(&self.writers).contains_key(&ino)
    }

    fn written(&self) -> Vec<Ino> {
        locked(&self.writers).keys().copied().collect()
    }

    fn opened(&self, ino: Ino) {
        *locked(&self.writers).entry(ino).or_default() += 1;
    }

    fn closed(&self, ino: Ino) {
        let mut writers = locked(&self.writers);
        if let Some(count) = writers.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                writers.remove(&ino);
            }
        }
    }
}

/// What the kernel holds of a mount that this process serves.
pub struct KernelCache {
    pub(super) writeback: Arc<Writeback>,
    pub(super) invalidator: Arc<Invalidator>,
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

impl<S: Serve> Transport<S> {
    /// FSYNC of the root and SYNCFS: makes everything durable, also the data that the kernel still has.
    pub(super) fn sync_all(&self, opener: Opener, reply: Reply) {
        if !self.has_writeback_cache {
            return self.fsync(ROOT_ID, opener, false, reply);
        }
        let serve = Arc::clone(&self.serve);
        let sync = move || super::changes::done(serve.sync(Ino::ROOT, opener, false), reply);
        write_back_then(&self.invalidator, &self.writeback.written(), sync);
    }

    /// RENAME. If it replaces a file, the kernel's data of the new file is written back before.
    pub(super) fn rename_after_writeback(
        &self,
        request: &Request<'_>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        reply: Reply,
    ) {
        let names = Arc::clone(&self.names);
        let requester = Requester::of(request);
        let Some(ino) = self.written_replacement(from, to) else {
            return super::changes::done(names.rename(requester, from, to, flags), reply);
        };
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        self.invalidator.invalidate_then(ino.0.into(), 0..u64::MAX, move || {
            let renamed = names.rename(requester, (from.0, &from.1), (to.0, &to.1), flags);
            super::changes::done(renamed, reply);
        });
    }

    /// The file that a rename moves, if it is open for buffered writing and replaces another one.
    fn written_replacement(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Option<Ino> {
        if !self.has_writeback_cache || locked(&self.writeback.writers).is_empty() {
            return None;
        }
        let look = |(dir, name): (u64, &[u8])| self.serve.lookup(convert::ino_of(dir).ok()?, name).ok()?;
        let file = look(from).filter(|stat| self.writeback.has_writer(stat.ino))?;
        look(to).map(|_| file.ino)
    }

    /// Returns whether dirty data might not find space. When that becomes true, starts the writeback of all
    /// files that are open for writing; attributes get a timeout of 0 from then on.
    fn is_space_low(&self) -> bool {
        if !self.has_writeback_cache {
            return false;
        }
        let is_space_low = self.free_bytes() < 2 * self.writeback.dirty_max.load(Ordering::Relaxed);
        if is_space_low && !self.writeback.is_space_low.swap(true, Ordering::AcqRel) {
            write_back_then(&self.invalidator, &self.writeback.written(), || ());
        } else if !is_space_low {
            self.writeback.is_space_low.store(false, Ordering::Release);
        }
        is_space_low
    }

    /// Free space for ordinary users, in bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        self.serve.stat_fs().map_or(0, |all| all.blocks_available * u64::from(all.block_size))
    }

    /// How long the kernel may cache the attributes of an inode.
    pub(super) fn attr_timeout(&self, stat: &Stat) -> Duration {
        let asks = self.writeback.is_space_low.load(Ordering::Acquire) && stat.kind == FileType::Regular;
        if asks { Duration::ZERO } else { CACHE_TIMEOUT }
    }

    /// The reply for a file that was opened.
    pub(super) fn open_reply(&self, ino: Ino, access: Access, opened: Opened) -> OpenOut {
        let is_direct_io = opened.appends_only
            || self.has_writeback_cache && opened.is_sync
            || access.write && self.is_space_low();
        let is_buffered = self.has_writeback_cache && access.write && !is_direct_io;
        if is_buffered {
            self.writeback.opened(ino);
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

    /// Notes that the kernel wrote back dirty data of a file, and whether that failed.
    pub(super) fn note_writeback(&self, node: u64, ino: Ino, is_refused: bool) {
        if !self.has_writeback_cache {
            return;
        }
        self.is_space_low();
        if is_refused {
            locked(&self.writeback.failed).insert(ino);
            // So that reads return what is stored.
            self.invalidator.invalidate_then(node, 0..u64::MAX, || ());
        }
    }

    /// Replies to a GETATTR that the kernel may have sent before a buffered write: after the file's dirty
    /// data is written back, with an error if that failed. Returns the reply if there is no reason to wait.
    pub(super) fn getattr_after_writeback(&self, node: u64, handle: u64, reply: Reply) -> Option<Reply> {
        if !content::is_buffered(handle) || !self.is_space_low() {
            return Some(reply);
        }
        let (serve, writeback, shown) = (Arc::clone(&self.serve), Arc::clone(&self.writeback), self.shown);
        self.invalidator.invalidate_then(node, 0..u64::MAX, move || {
            let stat = convert::ino_of(node).and_then(|ino| match locked(&writeback.failed).remove(&ino) {
                true => Err(Errno::NOSPC),
                false => serve.stat(ino),
            });
            match stat {
                Ok(stat) => reply.structure(&AttrOut {
                    attr: convert::attributes(&shown.of(&stat)),
                    ..AttrOut::default()
                }),
                Err(errno) => fail(reply, errno),
            }
        });
        None
    }

    /// SEEK_DATA and SEEK_HOLE, after the writeback of the file's dirty data.
    pub(super) fn seek(&self, node: u64, offset: u64, what: Seek, reply: Reply) {
        let serve = Arc::clone(&self.serve);
        let answer = move || {
            let place = convert::ino_of(node).and_then(|ino| {
                // A negative offset.
                let offset = i64::try_from(offset).map_err(|_| Errno::NXIO)?;
                serve.seek(ino, offset as u64, what)
            });
            match place {
                Ok(offset) => reply.structure(&LseekOut { offset }),
                Err(errno) => fail(reply, errno),
            }
        };
        if self.has_writeback_cache {
            self.invalidator.invalidate_then(node, 0..u64::MAX, answer)
        } else {
            answer()
        }
    }
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
