//! The bytes of files in memory: what is valid of them, what waits to be written, and for how long.
//!
//! A file's bytes are kept in *folios* of 4 KiB to 2 MiB, as large as the reads and writes that make them. A
//! folio has a bit for each block of the file that says whether the block is here, and one that says whether
//! it is newer than what the file's *backing* has. All work goes by ranges: a write of 1 MiB is one or two
//! folios to find and lock, one copy, two ranges of bits.
//!
//! ```text
//!            write                  take_run            done
//!   caller --------->  folio, dirty ---------->  WritebackRun  ---------> clean
//!   caller <---------  folio  <--------- Backing                   |  memory is wanted
//!            read               fill                               v
//!                                                                 gone, its memory recycled
//! ```
//!
//! Owns: folios and their memory; which blocks are uptodate, dirty, in flight; the order of write-back;
//! limits of dirty bytes; readahead; which write-back errors were reported to which open file.
//!
//! Does **not** own: where bytes are kept (a [`Backing`] says what a range is and reads it; the taker of a
//! [`WritebackRun`] writes it), sizes of files, allocation, threads, a clock. Nothing here knows what kind of file
//! system it serves.
//!
//! Invariants
//! 1. INV-PC1: a read gives the bytes that the last write of them gave, or the backing's; zeros where that
//!    has a hole.
//! 2. Bytes of a block that is not uptodate are never handed out: recycled memory holds what other files had.
//! 3. A block that is dirty stays until a run took it to the backing, or the caller dropped it by
//!    [`truncate`](File::truncate) or [`discard`](File::discard). Memory that is wanted comes from clean
//!    folios only.
//! 4. INV-PC3: a block is in one [`WritebackRun`] at a time. The run's bytes do not change: **a writer does not wait
//!    for the device, it copies**. The first write into a folio that a run holds moves the folio to memory of
//!    its own. (The other choice, to wait, would cost a device's write each time; a copy costs 0.2 ms at
//!    most, once for each run and folio, and memory within the limit of dirty bytes, since what is being
//!    written counts as dirty there.)
//! 5. Reads of what is here take locks shared with other readers only: the file's map, the chunk's list, the
//!    folio.
//! 6. Every write-back failure is reported once per open file: see [`Handle::take_error`].
//! 7. Bytes that are [pinned](File::pin) do not change either: what holds for a run's holds for them.
//! 8. Reclaim on behalf of another allocation does bounded work.
//!
//! Locks, in this order: [`File::stop_fills`]; a file's map of chunks; a chunk's list; a folio (several only
//! by a fill, in rising order); a file's list of dirty chunks; the cache's list of files; and last, one at a
//! time: the pool, a ring of the clock, counts of settled runs, the waiters' lock. Only a folio's own lock,
//! and the shared side of `stop_fills`, are held while the backing reads. The caller's lock of the inode
//! comes before all, locks of its backing after a folio.
//!
//! ```
//! use extant_page_cache::{Backing, Config, Extent, PageCache, Take};
//! use std::io::IoSliceMut;
//!
//! /// A new file: nothing but a hole.
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
//! let Take::WritebackRun(run) = file.take_run(0..u64::MAX, u64::MAX, 8 << 20) else { panic!("a block is dirty") };
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
mod pin;
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
pub use pin::Pins;
pub use readahead::Window;
pub use stats::Stats;
pub use writeback::{Take, WritebackRun};

use crate::dirty::Dirty;
use crate::pool::{Memory, Pool};
use crate::reclaim::Clock;
use crate::stats::Counts;

/// How much a cache may hold, and how it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Memory of folios and of what waits to be recycled. Exceeded only where nothing of it is clean.
    pub bytes_max: u64,
    /// Above this many dirty bytes the write-back thread is woken ([`PageCache::wait_for_work`]).
    pub dirty_background_bytes: u64,
    /// At so many dirty bytes, with those being written, writers wait ([`PageCache::throttle`]).
    pub dirty_bytes_max: u64,
    /// The largest window that is read ahead; 0 for none.
    pub readahead_bytes_max: u64,
    /// The largest folio. [`Order::MIN`] is one page at a time: the old way, to be compared with.
    pub order_max: Order,
}

impl Config {
    /// The usual shares of so many bytes: a tenth dirty before writing back begins, a fifth before writers
    /// wait; windows of up to 1 MiB; all folio sizes.
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

/// All files' bytes in memory. See the crate's first page.
pub struct PageCache {
    shared: Arc<Shared>,
}

/// What files, runs and the cache share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counts: Counts,
    pub(crate) dirty: Dirty,
    pub(crate) clock: Clock,
    pool: Arc<Pool>,
    files: Mutex<HashMap<u64, (u64, Weak<File>)>>,
    next_id: AtomicU64,
}

impl PageCache {
    /// An empty cache, which charges its memory to `budget` and gives clean folios back when that asks.
    ///
    /// # Panics
    /// If the limits do not rise: background, dirty, all.
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

    /// The file with the caller's `key` and blocks of `block_bytes`: the existing one if it has users or
    /// dirty bytes, otherwise a new, empty one.
    ///
    /// # Panics
    /// If blocks are not 1 KiB to 64 KiB, a power of two; or not what they were for this file.
    #[must_use]
    pub fn file(&self, key: u64, block_bytes: u32) -> Arc<File> {
        self.file_of(key, block_bytes, Order::MAX)
    }

    /// As [`file`](Self::file); a new file has folios of at most this order, for write-back in small pieces.
    ///
    /// # Panics
    /// As [`file`](Self::file).
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

    /// The run that has been dirty longest, of at most `bytes_max` bytes (a block at least), if since
    /// `until_ms` or before. Blocks that are dirty and in flight are skipped until they are settled.
    #[must_use]
    pub fn take_run(&self, until_ms: u64, bytes_max: u64) -> Option<WritebackRun> {
        self.shared.take_run(until_ms, bytes_max)
    }

    /// Since when the oldest block is dirty.
    #[must_use]
    pub fn oldest_dirty_ms(&self) -> Option<u64> {
        self.shared.dirty.next_file(None).map(|((ms, _), _)| ms)
    }

    /// To be called by a writer before or after each write, **without any lock** that writing back needs. If
    /// dirty bytes and those being written reach the limit, waits until they are less than half way between
    /// the two limits, `wait_max` at most.
    pub fn throttle(&self, wait_max: Duration) -> Throttled {
        self.shared.throttle(wait_max)
    }

    /// For the write-back thread: waits until dirty bytes are above the background limit, a writer waits, or
    /// a thread [woke](Self::wake_flusher) it; at most `wait_max`. Are they above?
    pub fn wait_for_work(&self, wait_max: Duration) -> bool {
        self.shared.wait_for_work(wait_max)
    }

    /// Are more bytes dirty than may be in the background?
    #[must_use]
    pub fn is_over_background(&self) -> bool {
        self.shared.dirty.dirty_bytes() > self.shared.config.dirty_background_bytes
    }

    /// Ends [`wait_for_work`](Self::wait_for_work) early.
    pub fn wake_flusher(&self) {
        self.shared.wake_flusher();
    }

    /// Evicts clean folios of about `bytes` bytes, the least recently used first, with bounded work, and
    /// returns their memory to the system. Returns how much it was.
    pub fn shrink(&self, bytes: u64) -> u64 {
        self.shared.shrink_by(bytes)
    }

    /// What it holds and did.
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
        // The list of dirty files keeps them alive, and they this list.
        self.shared.dirty.forget_files();
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stats())
    }
}

impl Shared {
    /// Memory for a folio: recycled, or fresh while the limit allows, or of folios that are not used. May be
    /// called under a folio's lock: see `reclaim`.
    pub(crate) fn take_memory(&self, order: Order) -> Memory {
        if let Some(memory) = self.pool.recycled(order) {
            return memory;
        }
        let bytes = order.bytes();
        let over = self.pool.over_by(bytes);
        if over > 0 && self.pool.trim(over) < over {
            // Some more than needed: the next one finds it waiting.
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

    /// A file is gone; its key may have another already.
    pub(crate) fn forget_file(&self, key: u64, id: u64) {
        let mut files = self.files.lock();
        if files.get(&key).is_some_and(|(known, _)| *known == id) {
            files.remove(&key);
        }
    }
}

/// What is reclaimed at a time, at least.
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
