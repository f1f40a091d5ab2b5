//! Dirty bytes: which they are, since when, and when writers must wait for writeback.
//!
//! ```text
//! cache   (5, file 2)  (9, file 1)          files by the time of their oldest dirty chunk
//! file 1  (9, chunk 0) (12, chunk 7)        chunks by the time they became dirty
//! ```
//!
//! Times are milliseconds that the callers pass in; the cache reads no clock.
//!
//! Invariants
//! 1. A chunk is on its file's list while it has dirty blocks. Each change of its count from or to 0 rereads
//!    the count under the list's lock, so the last change leaves the list correct.
//! 2. A file is on the cache's list, under its oldest chunk's time, while its own list is not empty; the list
//!    keeps it alive.
//! 3. `dirty_bytes` and `writing_bytes` are sums over the folios' bits.
//! 4. A writer waits only in [`Shared::throttle`], with no lock held, and never longer than its `wait_max`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::chunk::{CLEAN, Chunk};
use crate::file::File;
use crate::{Config, Shared};

/// The dirty chunks of a file.
#[derive(Default)]
pub(crate) struct DirtyChunks {
    by_time: BTreeSet<(u64, u64)>,
    /// The time under which the cache's list has the file.
    listed_ms: Option<u64>,
}

impl DirtyChunks {
    /// The numbers of the chunks that have been dirty since `until_ms` or before.
    pub(crate) fn until(&self, until_ms: u64) -> Vec<u64> {
        self.by_time.range(..=(until_ms, u64::MAX)).map(|(_, number)| *number).collect()
    }
}

/// The dirty state of all files.
#[derive(Default)]
pub(crate) struct Dirty {
    files: Mutex<BTreeMap<(u64, u64), Arc<File>>>,
    dirty_bytes: AtomicU64,
    writing_bytes: AtomicU64,
    waiting: AtomicUsize,
    lock: Mutex<()>,
    /// Signaled when bytes were written back.
    progress: Condvar,
    /// Signaled when the dirty bytes exceed the background limit.
    work: Condvar,
}

/// Result of [`throttle`](crate::PageCache::throttle).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttled {
    /// There is room for more dirty bytes.
    Go {
        /// How long the call waited.
        waited: Duration,
    },
    /// Still over the limit after `wait_max`.
    Over {
        /// How long the call waited.
        waited: Duration,
    },
}

impl Dirty {
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn writing_bytes(&self) -> u64 {
        self.writing_bytes.load(Ordering::SeqCst)
    }

    /// Bytes dirty or in flight, which cannot be reclaimed.
    fn unreclaimable_bytes(&self) -> u64 {
        self.dirty_bytes() + self.writing_bytes()
    }

    /// The first file after `after` in the order of the oldest dirty block, and its place.
    pub(crate) fn next_file(&self, after: Option<(u64, u64)>) -> Option<((u64, u64), Arc<File>)> {
        let files = self.files.lock();
        let from = after.map_or(Unbounded, Excluded);
        files.range((from, Unbounded)).next().map(|(place, file)| (*place, file.clone()))
    }

    pub(crate) fn forget_files(&self) {
        drop(std::mem::take(&mut *self.files.lock()));
    }

    fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            drop(self.lock.lock());
            self.progress.notify_all();
        }
    }
}

impl Shared {
    pub(crate) fn add_dirty(&self, bytes: u64) {
        let before = self.dirty.dirty_bytes.fetch_add(bytes, Ordering::SeqCst);
        let background = self.config.dirty_background_bytes;
        if before <= background && before + bytes > background {
            drop(self.dirty.lock.lock());
            self.dirty.work.notify_all();
        }
    }

    /// Removes dirty bytes that were dropped from the cache.
    pub(crate) fn drop_dirty(&self, bytes: u64) {
        self.dirty.dirty_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.dirty.notify();
    }

    /// Moves dirty bytes to writeback.
    pub(crate) fn start_writing(&self, bytes: u64) {
        // First up, then down: the sum never appears smaller than it is.
        self.dirty.writing_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.dirty.dirty_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    pub(crate) fn end_writing(&self, bytes: u64) {
        self.dirty.writing_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.dirty.notify();
    }

    /// If the bytes dirty or in writeback reach the hard limit: waits until they are at most half way between
    /// the limits.
    pub(crate) fn throttle(&self, wait_max: Duration) -> Throttled {
        let Config { dirty_background_bytes, dirty_bytes_max, .. } = self.config;
        if self.dirty.unreclaimable_bytes() < dirty_bytes_max {
            return Throttled::Go { waited: Duration::ZERO };
        }
        self.counts.throttled.add(1);
        let start = Instant::now();
        let enough = dirty_background_bytes.midpoint(dirty_bytes_max);
        let mut guard = self.dirty.lock.lock();
        self.dirty.waiting.fetch_add(1, Ordering::SeqCst);
        self.dirty.work.notify_all();
        let is_over = loop {
            if self.dirty.unreclaimable_bytes() <= enough {
                break false;
            }
            let left = wait_max.saturating_sub(start.elapsed());
            if left.is_zero() {
                break self.dirty.unreclaimable_bytes() >= dirty_bytes_max;
            }
            self.dirty.progress.wait_for(&mut guard, left);
        };
        self.dirty.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        let waited = start.elapsed();
        self.counts.throttled_ns.add(waited.as_nanos() as u64);
        if is_over { Throttled::Over { waited } } else { Throttled::Go { waited } }
    }

    /// Waits until the dirty bytes exceed the background limit, or for `wait_max`. Returns whether they
    /// exceed it.
    pub(crate) fn wait_for_work(&self, wait_max: Duration) -> bool {
        let is_much = || self.dirty.dirty_bytes() > self.config.dirty_background_bytes;
        let mut guard = self.dirty.lock.lock();
        if !is_much() {
            self.dirty.work.wait_for(&mut guard, wait_max);
        }
        is_much()
    }

    pub(crate) fn wake_flusher(&self) {
        drop(self.dirty.lock.lock());
        self.dirty.work.notify_all();
    }
}

impl File {
    /// Counts blocks of a chunk that became dirty. Called under the lock of their folio.
    pub(crate) fn add_dirty_blocks(&self, chunk: &Chunk, blocks: u32, now_ms: u64) {
        if blocks != 0 && chunk.dirty_blocks.fetch_add(blocks, Ordering::SeqCst) == 0 {
            self.list_chunk(chunk, now_ms);
        }
    }

    /// Counts blocks of a chunk that are no longer dirty. Called under the lock of their folio.
    pub(crate) fn sub_dirty_blocks(&self, chunk: &Chunk, blocks: u32) {
        if blocks != 0 && chunk.dirty_blocks.fetch_sub(blocks, Ordering::SeqCst) == blocks {
            self.list_chunk(chunk, 0);
        }
    }

    /// The chunk's count changed from or to 0: inserts the chunk into the list or removes it (invariant 1).
    fn list_chunk(&self, chunk: &Chunk, now_ms: u64) {
        let mut list = self.dirty.lock();
        let listed_ms = chunk.dirtied_ms.load(Ordering::Relaxed);
        let is_dirty = chunk.dirty_blocks.load(Ordering::SeqCst) != 0;
        if is_dirty && listed_ms == CLEAN {
            let now_ms = now_ms.min(CLEAN - 1);
            chunk.dirtied_ms.store(now_ms, Ordering::Relaxed);
            list.by_time.insert((now_ms, chunk.number));
        } else if !is_dirty && listed_ms != CLEAN {
            chunk.dirtied_ms.store(CLEAN, Ordering::Relaxed);
            list.by_time.remove(&(listed_ms, chunk.number));
        }
        self.list_file(&mut list);
    }

    /// Notes that the chunk has been dirty since `ms` at least.
    pub(crate) fn backdate_chunk(&self, chunk: &Chunk, ms: u64) {
        let mut list = self.dirty.lock();
        let listed_ms = chunk.dirtied_ms.load(Ordering::Relaxed);
        if listed_ms != CLEAN && ms < listed_ms {
            list.by_time.remove(&(listed_ms, chunk.number));
            list.by_time.insert((ms, chunk.number));
            chunk.dirtied_ms.store(ms, Ordering::Relaxed);
            self.list_file(&mut list);
        }
    }

    /// Upholds invariant 2.
    fn list_file(&self, list: &mut DirtyChunks) {
        let oldest_ms = list.by_time.first().map(|(ms, _)| *ms);
        if oldest_ms == list.listed_ms {
            return;
        }
        // Dropped after the lock is released: this may be the last reference to a file, and its drop takes
        // locks.
        let mut files = self.shared.dirty.files.lock();
        let out = list.listed_ms.and_then(|ms| files.remove(&(ms, self.id)));
        if let (Some(ms), Some(this)) = (oldest_ms, self.this.upgrade()) {
            files.insert((ms, self.id), this);
        }
        list.listed_ms = oldest_ms;
        drop(files);
        drop(out);
    }

    /// The dirty chunk after `after`, oldest first: when it became dirty, and its number.
    pub(crate) fn next_dirty_chunk(&self, after: Option<(u64, u64)>) -> Option<(u64, u64)> {
        let list = self.dirty.lock();
        list.by_time.range((after.map_or(Unbounded, Excluded), Unbounded)).next().copied()
    }
}
