//! Writes that the kernel keeps, with
//! [`MountOptions::writeback_cache`](crate::MountOptions::writeback_cache), where space is short.
//!
//! The kernel does not report how much it keeps, so what it took may find no space later. It keeps a bounded
//! amount, though: while more than that is free, all of it has a place. Below that
//!
//! - files are opened past the cache: a write comes at once, and is refused if there is no space;
//! - of files that were opened before, the kernel is made to ask for attributes before each write(2). Then
//!   what it keeps of the file is written first, and the writer gets an error if that failed. So at most one
//!   write(2) of each of these files is taken without a place for it, and the next write(2), fsync(2) and
//!   close(2) report it.
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

use super::{REMEMBER, Transport, content, convert, fail};
use crate::{Access, Errno, Opened, Serve};

/// What the kernel is asked to keep at most.
const KEPT_MAX: u64 = 32 << 20;
/// What it keeps by its defaults at most, as a part of all memory: 20 % of what is free, in a fifth of it.
const MEMORY_PART: u64 = 25;

/// What is known of the kernel's writes to come.
#[derive(Default)]
pub(super) struct Late {
    /// Bytes that the kernel keeps at most.
    kept_max: AtomicU64,
    is_short: AtomicBool,
    /// Files that are open for writing through the kernel's cache, and how often.
    writers: Mutex<HashMap<Ino, u32>>,
    /// Files of which the kernel kept bytes that could not be written, unknown to any writer.
    failed: Mutex<HashSet<Ino>>,
}

impl Late {
    /// Bounds what the kernel keeps of the mount on this device, where it lets us.
    pub(super) fn bound(&self, (major, minor): (u32, u32)) {
        let knobs = format!("/sys/class/bdi/{major}:{minor}");
        let set = |name: &str, value: u64| std::fs::write(Path::new(&knobs).join(name), value.to_string());
        let is_set = set("max_bytes", KEPT_MAX).and_then(|()| set("strict_limit", 1)).is_ok();
        let kept_max = if is_set { KEPT_MAX } else { (memory_bytes() / MEMORY_PART).max(KEPT_MAX) };
        self.kept_max.store(kept_max, Ordering::Relaxed);
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
    /// Is there so little space that the kernel may have taken more? Once it is so, the kernel writes what it
    /// keeps, and asks from then on.
    fn is_short(&self) -> bool {
        if !self.writes_back {
            return false;
        }
        let free = self.serve.stat_fs().map_or(0, |all| all.blocks_available * u64::from(all.block_size));
        let is_short = free < 2 * self.late.kept_max.load(Ordering::Relaxed);
        if is_short && !self.late.is_short.swap(true, Ordering::AcqRel) {
            let writers: Vec<Ino> = locked(&self.late.writers).keys().copied().collect();
            for ino in writers {
                self.drops.after(ino.0.into(), 0..u64::MAX, || ());
            }
        } else if !is_short {
            self.late.is_short.store(false, Ordering::Release);
        }
        is_short
    }

    /// How long the kernel may remember attributes.
    pub(super) fn attributes_live(&self, stat: &Stat) -> Duration {
        let asks = self.late.is_short.load(Ordering::Acquire) && stat.kind == FileType::Regular;
        if asks { Duration::ZERO } else { REMEMBER }
    }

    /// The reply about a file that was opened.
    pub(super) fn handle_of(&self, ino: Ino, access: Access, opened: Opened) -> OpenOut {
        let is_past_cache = opened.appends_only || access.write && self.is_short();
        let is_late = self.writes_back && access.write && !is_past_cache;
        if is_late {
            self.late.opened(ino);
        }
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        OpenOut {
            fh: content::handle(opened.handle, is_past_cache, is_late),
            open_flags: fopen::KEEP_CACHE
                | flag(is_past_cache, fopen::DIRECT_IO)
                | flag(!self.serve.asks_to_close(), fopen::NOFLUSH),
            backing_id: 0,
        }
    }

    pub(super) fn note_closed(&self, ino: Ino, handle: u64) {
        if content::is_late(handle) {
            self.late.closed(ino);
        }
    }

    /// The kernel wrote what it kept of a file.
    pub(super) fn note_late_write(&self, node: u64, ino: Ino, is_refused: bool) {
        if !self.writes_back {
            return;
        }
        self.is_short();
        if is_refused {
            locked(&self.late.failed).insert(ino);
            // Readers get what there is.
            self.drops.after(node, 0..u64::MAX, || ());
        }
    }

    /// Returns attributes to an opener that may write, after all that the kernel keeps of the file is
    /// written. `reply` comes back if there is no reason to wait.
    pub(super) fn tell_writer(&self, node: u64, handle: u64, reply: Reply) -> Option<Reply> {
        if !content::is_late(handle) || !self.is_short() {
            return Some(reply);
        }
        let (serve, late) = (Arc::clone(&self.serve), Arc::clone(&self.late));
        self.drops.after(node, 0..u64::MAX, move || {
            let told = convert::ino_of(node).and_then(|ino| match locked(&late.failed).remove(&ino) {
                true => Err(Errno::NOSPC),
                false => serve.stat(ino),
            });
            match told {
                Ok(stat) => {
                    reply.structure(&AttrOut { attr: convert::attributes(&stat), ..AttrOut::default() })
                }
                Err(errno) => fail(reply, errno),
            }
        });
        None
    }

    /// Where data and holes are, with what the kernel keeps of the file.
    pub(super) fn seek(&self, node: u64, offset: u64, what: Seek, reply: Reply) {
        let serve = Arc::clone(&self.serve);
        let answer = move || {
            let place = convert::ino_of(node).and_then(|ino| {
                // A negative one.
                let offset = i64::try_from(offset).map_err(|_| Errno::NXIO)?;
                serve.seek(ino, offset as u64, what)
            });
            match place {
                Ok(offset) => reply.structure(&LseekOut { offset }),
                Err(errno) => fail(reply, errno),
            }
        };
        if self.writes_back { self.drops.after(node, 0..u64::MAX, answer) } else { answer() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of memory that the machine has.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(1 << 40, |kib| kib << 10)
}
