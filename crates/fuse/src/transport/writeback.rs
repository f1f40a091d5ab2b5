//! Dirty data of the kernel's write-back cache
//! ([`MountOptions::writeback_cache`](crate::MountOptions::writeback_cache)), and what to do when space is
//! low.
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
use extant_fuse_lowlevel::Reply;
use extant_fuse_lowlevel::protocol::{AttrOut, LseekOut, OpenOut, fopen};
use extant_volume::{FileType, Seek, Stat};

use super::{CACHE_TIMEOUT, Transport, content, convert, fail};
use crate::{Access, Errno, Opened, Serve};

/// The limit of dirty data that is set for the mount, in bytes.
const DIRTY_MAX: u64 = 32 << 20;
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
    /// Limits the kernel's dirty data of the mount with this device number. That needs root and Linux 6.2;
    /// otherwise the kernel's defaults bound it.
    pub(super) fn limit_dirty(&self, (major, minor): (u32, u32)) {
        let knobs = format!("/sys/class/bdi/{major}:{minor}");
        let set = |name: &str, value: u64| std::fs::write(Path::new(&knobs).join(name), value.to_string());
        let is_set = set("max_bytes", DIRTY_MAX).and_then(|()| set("strict_limit", 1)).is_ok();
        let dirty_max = if is_set { DIRTY_MAX } else { (memory_bytes() / MEMORY_DIVISOR).max(DIRTY_MAX) };
        self.dirty_max.store(dirty_max, Ordering::Relaxed);
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

impl<S: Serve> Transport<S> {
    /// Returns whether dirty data might not find space. When that becomes true, starts the writeback of all
    /// files that are open for writing; attributes get a timeout of 0 from then on.
    fn is_space_low(&self) -> bool {
        if !self.has_writeback_cache {
            return false;
        }
        let free = self.serve.stat_fs().map_or(0, |all| all.blocks_available * u64::from(all.block_size));
        let is_space_low = free < 2 * self.writeback.dirty_max.load(Ordering::Relaxed);
        if is_space_low && !self.writeback.is_space_low.swap(true, Ordering::AcqRel) {
            let writers: Vec<Ino> = locked(&self.writeback.writers).keys().copied().collect();
            for ino in writers {
                self.invalidator.invalidate_then(ino.0.into(), 0..u64::MAX, || ());
            }
        } else if !is_space_low {
            self.writeback.is_space_low.store(false, Ordering::Release);
        }
        is_space_low
    }

    /// How long the kernel may cache the attributes of an inode.
    pub(super) fn attr_timeout(&self, stat: &Stat) -> Duration {
        let asks = self.writeback.is_space_low.load(Ordering::Acquire) && stat.kind == FileType::Regular;
        if asks { Duration::ZERO } else { CACHE_TIMEOUT }
    }

    /// The reply for a file that was opened.
    pub(super) fn open_reply(&self, ino: Ino, access: Access, opened: Opened) -> OpenOut {
        let is_direct_io = opened.appends_only || access.write && self.is_space_low();
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
