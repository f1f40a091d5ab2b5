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

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{Config, Shared};

/// The dirty state of all files, which are of type `F`.
pub(crate) struct Dirty<F> {
    /// By the time of the oldest dirty chunk, and the file's number.
    pub(crate) files: Mutex<BTreeMap<(u64, u64), Arc<F>>>,
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

impl<F> Default for Dirty<F> {
    fn default() -> Self {
        Self {
            files: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            writing_bytes: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            lock: Mutex::default(),
            progress: Condvar::new(),
            work: Condvar::new(),
        }
    }
}

impl<F> Dirty<F> {
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
    pub(crate) fn next_file(&self, after: Option<(u64, u64)>) -> Option<((u64, u64), Arc<F>)> {
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
