//! The cache of a file system, as its users see it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use extant_base::Ino;
use extant_memory::Budget;

use crate::chunk::NONE;
use crate::events;
use crate::inode::Inode;
use crate::scan::Scan;
use crate::shared::{Options, Shared};
use crate::stats::Stats;

/// Nanoseconds of monotonic time.
fn wall_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The extent status cache of one file system. Clones share it.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Panics
    /// If `cluster_bits` is more than 16.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self::with_clock(options, wall_ns)
    }

    /// Like [`new`](Self::new), with scans timed by `clock`: in nanoseconds, monotonic on a thread.
    ///
    /// # Panics
    /// Like [`new`](Self::new).
    #[must_use]
    pub fn with_clock(options: Options, clock: fn() -> u64) -> Self {
        Self { shared: Arc::new(Shared::new(options, clock, None)) }
    }

    /// Like [`new`](Self::new), with memory charged to a budget, which reclaims entries when it runs short.
    /// Charges are made after changes of inodes, so make those without a lock that a shrinker of the budget
    /// takes.
    ///
    /// # Panics
    /// Like [`new`](Self::new).
    #[must_use]
    pub fn with_budget(options: Options, budget: &Arc<Budget>) -> Self {
        let shared = Arc::new(Shared::new(options, wall_ns, Some(Arc::clone(budget))));
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        budget.register(weak);
        Self { shared }
    }

    /// The options of the cache.
    #[must_use]
    pub fn options(&self) -> Options {
        self.shared.options
    }

    /// A new inode without entries. Dropping it drops its entries.
    #[must_use]
    pub fn inode(&self, ino: Ino) -> Inode {
        Inode::new(ino, Arc::clone(&self.shared))
    }

    /// Number of reclaimable entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        let count = self.shared.counters.reclaimable();
        events::shrink_count(&self.shared, count);
        count
    }

    /// Reclaims about `nr` entries by the policy; es-chunk reclaims at most [`SCAN_MIN`](crate::SCAN_MIN) at
    /// a time. Waits for no inode's lock, except with the LRU policies. Call it without any lock that is held
    /// around a change of an inode.
    pub fn scan(&self, nr: u32) -> Scan {
        self.shared.scan(nr, None)
    }

    /// Changes the limit. The next insert evicts the excess, with es-chunk step by step.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.shared.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
    }

    /// While fast commits of the journal are replayed, lookups find nothing and nothing is kept.
    pub fn set_replaying(&self, replaying: bool) {
        self.shared.replaying.store(replaying, Relaxed);
    }

    /// Bytes of entries, inodes and lists of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let (hits, misses) = shared.counters.hits_and_misses();
        let (inodes_listed, largest) = {
            let ring = shared.ring.lock();
            let mut largest = None::<(Ino, u32, u32)>;
            for list in 0..2 {
                let mut place = ring.first(list);
                while place != NONE {
                    let body = ring.body(place);
                    let entries = body.entries.load(Relaxed);
                    if largest.is_none_or(|(_, most, _)| most < entries) {
                        largest = Some((body.ino, entries, body.reclaimable.load(Relaxed)));
                    }
                    place = ring.after(place);
                }
            }
            (ring.total() as u64, largest)
        };
        let scans = shared.scans.lock();
        Stats {
            entries: shared.counters.entries(),
            reclaimable: shared.counters.reclaimable(),
            bytes: shared.bytes(),
            hits,
            misses,
            inodes_listed,
            largest,
            scan_times: scans.times.clone(),
            scan_mean_ns: scans.scan_mean_ns,
            shrunk_mean: scans.shrunk_mean,
            reclaimed: scans.reclaimed,
            scanned: scans.scanned,
            inodes_scanned: scans.inodes,
            work_max: scans.work_max,
            retried: scans.retried,
        }
    }

    /// Resets the counters of scans and lookups; entries stay.
    pub fn reset_stats(&self) {
        self.shared.counters.reset_lookups();
        self.shared.scans.lock().reset();
    }

    /// Logs the time of each scan from now on. The clock is read once before each scan. For studies that
    /// compare a scan with the same one of another run.
    pub fn log_scans(&self) {
        self.shared.scans.lock().log = Some(Vec::new());
        self.shared.logging.store(true, Relaxed);
    }

    /// The number of scans, and of the entries and inodes they examined: cheaper than [`stats`](Self::stats).
    #[must_use]
    pub fn scans_and_work(&self) -> (u64, u64) {
        let scans = self.shared.scans.lock();
        (scans.times.count(), scans.scanned + scans.inodes)
    }

    /// Returns and clears the log of scans: time in nanoseconds and result of each, in order.
    #[must_use]
    pub fn take_scan_log(&self) -> Vec<(u64, Scan)> {
        self.shared.scans.lock().log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
