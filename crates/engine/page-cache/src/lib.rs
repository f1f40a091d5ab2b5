//! The page cache: which bytes of files are in memory, which of them are valid, and which are dirty.
//!
//! Bytes are kept in *folios* of 4 KiB to 2 MiB. The size of a folio is a power of two and at least a
//! file-system block, and the folio lies at a multiple of its size in the file. A read or write that needs a
//! new folio creates the largest allowed folio that is not longer than the rest of the read or write. If even
//! the smallest allowed folio is longer, it creates the smallest. A small write that continues the last write
//! may create a larger folio, because more writes of this kind are expected. The length of this folio is at
//! most the number of bytes that were written in sequence so far, and at most 256 KiB. The write then fills
//! only the beginning of the folio.
//!
//! A *chunk* is 2 MiB of a file, at a multiple of 2 MiB; each chunk has a list of its folios. (The chunks of
//! `extent-status` are something else.)
//!
//! A file's *backing* ([`Backing`]) supplies the bytes that are not in the cache. A *fill* reads them into
//! folios. A folio has bits for each of its file-system blocks. A block is *uptodate* if its bytes in the
//! folio are valid, and *dirty* if they are newer than the backing. Operations change ranges of bits, not
//! single ones.
//!
//! *Write-back* writes dirty bytes to the backing. The caller takes a *run* ([`WritebackRun`]), which is a
//! contiguous range of dirty bytes of one file, and writes it. Then the caller *settles* the run: it reports
//! that the bytes were written, that the write failed, or that the bytes are dirty again.
//!
//! ```text
//!            write                  take_run            done
//!   caller --------->  folio, dirty ---------->  Run  ---------> clean
//!   caller <---------  folio  <--------- Backing                   |  reclaim
//!            read               fill                               v
//!                                                                 evicted, its memory recycled
//! ```
//!
//! Owns: folios and their memory; which blocks are uptodate, dirty or in a run; the order of write-back; the
//! limits of dirty bytes; readahead; which write-back errors each open file has reported.
//!
//! Does **not** own: where bytes are stored (a [`Backing`] maps and reads ranges, and the caller writes
//! runs), file sizes, allocation, threads, clocks (callers pass the time). Nothing here depends on the kind
//! of file system.
//!
//! Invariants
//! 1. INV-PC1: a read returns the bytes of the last write. Where nothing was written, it returns the bytes of
//!    the backing. Holes of the backing read as zeros.
//! 2. Bytes of a block that is not uptodate are never returned, because recycled memory holds bytes of other
//!    files.
//! 3. A dirty block stays in the cache until a run with it is settled as written or failed, or the caller
//!    drops it with [`truncate`](File::truncate) or [`discard`](File::discard). Only clean folios are
//!    reclaimed.
//! 4. INV-PC3: a block is in at most one run, and the bytes of a run do not change. A write into a folio
//!    whose memory a run uses does not wait for the run: it first copies the folio to new memory, and the run
//!    keeps the old memory. A folio is copied at most once for each run. The bytes of a run count against the
//!    limit of dirty bytes until the run is settled.
//! 5. Reads of cached bytes take these locks, shared: the file's map of chunks, the chunk's list, the folio.
//!    A read through a [`Handle`] also takes the lock of the handle's readahead state.
//! 6. Each open file ([`Handle`]) reports a failure of write-back once, at its next check
//!    ([`Handle::take_error`]). If there were several failures since its last check, it reports the latest. A
//!    failure that no handle of the file has reported yet is also reported by a handle that is opened later.
//! 7. The work of one reclaim is bounded by the number of bytes to free. Folios are reclaimed by second
//!    chance (the CLOCK algorithm).
//!
//! Lock order:
//! 1. the caller's inode lock;
//! 2. a file's reader-writer lock of fills: each fill holds it shared, [`File::stop_fills`] exclusively;
//! 3. a file's map of chunks;
//! 4. a chunk's list of folios;
//! 5. a folio (only a fill locks several folios, in rising order), then locks of the backing;
//! 6. a file's list of dirty chunks;
//! 7. the cache's list of files with dirty chunks;
//! 8. one of: the pool of free memory, a ring of folios that reclaim goes through, the counts of settled
//!    runs, the lock of throttled writers.
//!
//! While a fill reads from the backing, this crate holds only the locks of the folios that are being filled,
//! and lock 2 of the file, shared. The caller may hold its inode lock.
//!
//! ```
//! use extant_page_cache::{Backing, Config, Extent, PageCache, Take};
//! use std::io::IoSliceMut;
//!
//! /// A new file: one hole.
//! struct Hole;
//! impl Backing for Hole {
//!     type Error = std::convert::Infallible;
//!     fn extent_at(&self, _: u64, len_bytes: u64) -> Result<Extent, Self::Error> {
//!         Ok(Extent::Hole { len_bytes })
//!     }
//!     fn read_at(&self, _: u64, _: &mut [IoSliceMut<'_>]) -> Result<(), Self::Error> {
//!         unreachable!("a hole is not read")
//!     }
//! }
//!
//! let cache = PageCache::new(Config::of_bytes(64 << 20), &extant_memory::Budget::new(64 << 20));
//! let file = cache.file(12, 4096).open();
//! file.write(5000, b"folio", 0, &Hole).unwrap();
//! let mut buf = [0; 7];
//! file.read(4999, &mut buf, &Hole).unwrap();
//! assert_eq!(&buf, b"\0folio\0");
//!
//! let Take::Run(run) = file.take_run(0..u64::MAX, u64::MAX, 8 << 20) else { panic!("a block is dirty") };
//! assert_eq!((run.start(), run.len_bytes()), (4096, 4096));
//! // ... a device writes run.slices() ...
//! run.done();
//! assert_eq!(cache.stats().dirty_bytes, 0);
//! ```

#![forbid(unsafe_code)]

mod backing;
mod bits;
mod chunk;
mod dirty;
mod errors;
mod file;
mod fill;
mod folio;
mod handle;
mod order;
mod pool;
mod readahead;
mod reclaim;
mod stats;
mod truncate;
mod writeback;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_memory::{Budget, Shrinker};
use parking_lot::Mutex;

pub use backing::{Backing, Extent};
pub use dirty::Throttled;
pub use errors::{ErrorCursor, WriteError};
pub use file::File;
pub use fill::FillsStopped;
pub use handle::Handle;
pub use order::{Order, PAGE_BYTES};
pub use readahead::Window;
pub use stats::Stats;
pub use writeback::{Take, WritebackRun};

use crate::dirty::Dirty;
use crate::pool::{Memory, Pool};
use crate::reclaim::Clock;
use crate::stats::Counts;

/// Limits and settings of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Limit of the memory of folios and of the recycle pool, in bytes. Exceeded only if no folio is clean.
    pub bytes_max: u64,
    /// Above this many dirty bytes, background writeback is woken ([`PageCache::wait_for_work`]).
    pub dirty_background_bytes: u64,
    /// At this many bytes dirty or in writeback, writers wait ([`PageCache::throttle`]).
    pub dirty_bytes_max: u64,
    /// The largest readahead window; 0 disables readahead.
    pub readahead_bytes_max: u64,
    /// The largest folio. [`Order::MIN`] means one page at a time, for comparisons.
    pub order_max: Order,
}

impl Config {
    /// The default limits for a cache of `bytes_max` bytes: background writeback starts at a tenth dirty,
    /// writers wait at a fifth; windows of up to 1 MiB; all folio sizes.
    #[must_use]
    pub fn of_bytes(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            dirty_background_bytes: bytes_max / 10,
            dirty_bytes_max: bytes_max / 5,
            readahead_bytes_max: 1 << 20,
            order_max: Order::MAX,
        }
    }
}

/// The cached bytes of all files. See the crate documentation.
pub struct PageCache {
    shared: Arc<Shared>,
}

/// State that files, runs and the cache share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counts: Counts,
    pub(crate) dirty: Dirty<File>,
    pub(crate) clock: Clock,
    pool: Arc<Pool>,
    files: Mutex<HashMap<u64, (u64, Weak<File>)>>,
    next_id: AtomicU64,
}

impl PageCache {
    /// Creates an empty cache. It charges its memory to `budget` and evicts clean folios when the budget
    /// shrinks it.
    ///
    /// # Panics
    /// If the limits are not in rising order: background, dirty, total.
    #[must_use]
    pub fn new(config: Config, budget: &Arc<Budget>) -> Self {
        let Config { bytes_max, dirty_background_bytes, dirty_bytes_max, .. } = config;
        assert!(dirty_background_bytes <= dirty_bytes_max && dirty_bytes_max <= bytes_max, "{config:?}");
        let shared = Arc::new(Shared {
            config,
            counts: Counts::default(),
            dirty: Dirty::default(),
            clock: Clock::default(),
            pool: Pool::new(bytes_max, budget.clone()),
            files: Mutex::default(),
            next_id: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&shared);
        budget.register(weak as Weak<dyn Shrinker>);
        Self { shared }
    }

    /// Returns the file with the caller's key `key` and blocks of `block_bytes`: the existing one if it is in
    /// use or dirty, else a new, empty one.
    ///
    /// # Panics
    /// If the block size is not a power of two from 1 KiB to 64 KiB, or differs from the size that this file
    /// has.
    #[must_use]
    pub fn file(&self, key: u64, block_bytes: u32) -> Arc<File> {
        self.file_of(key, block_bytes, Order::MAX)
    }

    /// Like [`file`](Self::file), but a new file gets folios of at most `order_max`, for callers that write
    /// back in small pieces.
    ///
    /// # Panics
    /// Like [`file`](Self::file).
    #[must_use]
    pub fn file_of(&self, key: u64, block_bytes: u32, order_max: Order) -> Arc<File> {
        let mut files = self.shared.files.lock();
        if let Some(file) = files.get(&key).and_then(|(_, file)| file.upgrade()) {
            assert_eq!(file.block_bytes(), u64::from(block_bytes), "a file's block size does not change");
            return file;
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let file = Arc::new_cyclic(|this| {
            File::new(this.clone(), self.shared.clone(), id, key, block_bytes, order_max)
        });
        files.insert(key, (id, Arc::downgrade(&file)));
        file
    }

    /// Takes the run that has been dirty longest, of at most `bytes_max` bytes (at least one block), if it
    /// has been dirty since `until_ms` or before. A block that is dirty and also in flight is not returned
    /// until its older run is settled.
    #[must_use]
    pub fn take_run(&self, until_ms: u64, bytes_max: u64) -> Option<WritebackRun> {
        self.shared.take_run(until_ms, bytes_max)
    }

    /// Since when the oldest dirty block is dirty.
    #[must_use]
    pub fn oldest_dirty_ms(&self) -> Option<u64> {
        self.shared.dirty.next_file(None).map(|((ms, _), _)| ms)
    }

    /// Writers call this before or after each write, **without any lock** that writeback needs. If the bytes
    /// dirty or in writeback reach the limit, it waits until they are at most half way between the two
    /// limits, but no longer than `wait_max`.
    pub fn throttle(&self, wait_max: Duration) -> Throttled {
        self.shared.throttle(wait_max)
    }

    /// For the writeback thread: waits until the dirty bytes exceed the background limit, a writer waits, or
    /// [`wake_flusher`](Self::wake_flusher) is called; at most `wait_max`. Returns whether they exceed the
    /// limit.
    pub fn wait_for_work(&self, wait_max: Duration) -> bool {
        self.shared.wait_for_work(wait_max)
    }

    /// Whether the dirty bytes exceed the background limit.
    #[must_use]
    pub fn is_over_background(&self) -> bool {
        self.shared.dirty.dirty_bytes() > self.shared.config.dirty_background_bytes
    }

    /// Whether the dirty bytes exceed half of the background limit. Writeback that was started by
    /// [`wait_for_work`](Self::wait_for_work) goes on until then: if it stopped at the limit, the next few
    /// writes would wake its thread again.
    #[must_use]
    pub fn is_over_half_background(&self) -> bool {
        self.shared.dirty.dirty_bytes() > self.shared.config.dirty_background_bytes / 2
    }

    /// Ends [`wait_for_work`](Self::wait_for_work) early.
    pub fn wake_flusher(&self) {
        self.shared.wake_flusher();
    }

    /// Evicts clean folios of about `bytes` bytes, by second chance, with bounded work, and returns
    /// their memory to the system. Returns the number of bytes freed.
    pub fn shrink(&self, bytes: u64) -> u64 {
        self.shared.shrink_by(bytes)
    }

    /// Contents and counters of the cache.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Shared { counts, dirty, pool, .. } = &*self.shared;
        Stats {
            folios: std::array::from_fn(|order| counts.folios[order].load(Ordering::Relaxed)),
            held_bytes: pool.held_bytes(),
            recycled_bytes: pool.waiting_bytes(),
            dirty_bytes: dirty.dirty_bytes(),
            writing_bytes: dirty.writing_bytes(),
            hit_bytes: counts.hit_bytes.get(),
            miss_bytes: counts.miss_bytes.get(),
            hole_bytes: counts.hole_bytes.get(),
            written_bytes: counts.written_bytes.get(),
            readahead_bytes: counts.readahead_bytes.get(),
            copies_for_writers: counts.copies_for_writers.get(),
            evicted: counts.evicted.get(),
            throttled: counts.throttled.get(),
            throttled_time: Duration::from_nanos(counts.throttled_ns.get()),
        }
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        // The list of dirty files keeps the files alive, and each file keeps this list alive.
        self.shared.dirty.forget_files();
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stats())
    }
}

impl Shared {
    /// Returns memory for a folio: recycled, or fresh while within the limit, or reclaimed from unused
    /// folios. May be called under a folio's lock: see `reclaim`.
    pub(crate) fn take_memory(&self, order: Order) -> Memory {
        if let Some(memory) = self.pool.recycled(order) {
            return memory;
        }
        let bytes = order.bytes();
        let over = self.pool.over_by(bytes);
        if over > 0 && self.pool.trim(over) < over {
            // Reclaims more than needed, so that the next caller finds recycled memory.
            self.reclaim(bytes.max(RECLAIM_BYTES_MIN));
            if let Some(memory) = self.pool.recycled(order) {
                return memory;
            }
            self.pool.trim(self.pool.over_by(bytes));
        }
        self.pool.fresh(order)
    }

    fn shrink_by(&self, bytes: u64) -> u64 {
        let freed = self.pool.trim(bytes);
        if freed >= bytes {
            return freed;
        }
        self.reclaim(bytes - freed);
        freed + self.pool.trim(bytes - freed)
    }

    /// Removes a file that was dropped; its key may already belong to a newer file.
    pub(crate) fn forget_file(&self, key: u64, id: u64) {
        let mut files = self.files.lock();
        if files.get(&key).is_some_and(|(known, _)| *known == id) {
            files.remove(&key);
        }
    }
}

/// Minimum bytes of one reclaim.
const RECLAIM_BYTES_MIN: u64 = 128 << 10;

impl Shrinker for Shared {
    fn name(&self) -> &'static str {
        "file data"
    }

    fn cached_bytes(&self) -> usize {
        self.pool.held_bytes() as usize
    }

    fn shrink(&self, bytes: usize) -> usize {
        self.shrink_by(bytes as u64) as usize
    }
}
