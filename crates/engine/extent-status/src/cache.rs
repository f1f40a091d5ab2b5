//! The cache of a file system: its policy, its limit, the inodes that reclaim looks at, its counters.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use extant_base::Ino;
use extant_base::rank;
use extant_memory::{Budget, Shrinker};
use parking_lot::Mutex;

use crate::events;
use crate::inode::{Body, Inode};
use crate::policy::{Need, Policy, Scan};
use crate::ring::Ring;
use crate::stats::{Counters, Scans, Stats};

/// Minimum entries to request from a scan.
pub const SCAN_MIN: u32 = 128;
/// Typical bytes of an entry, overhead included.
const ENTRY_BYTES: usize = 24;
/// After this many scans in a row without a result, new entries are reclaimed too.
const IDLE_MAX: u32 = 4;
/// Changes below this many bytes are not charged to the budget.
const CHARGE_MIN: u64 = 4096;

/// Options of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The reclaim policy.
    pub policy: Policy,
    /// The number of reclaimable entries to keep without a scan; `None`: no limit, only [`Cache::scan`]
    /// reclaims.
    pub limit: Option<u64>,
    /// Never merge adjacent entries: for fragmented trees in tests and studies.
    pub no_merge: bool,
    /// log2 of the blocks of a cluster; 0 without bigalloc.
    pub cluster_bits: u32,
    /// The device number in events.
    pub device: u64,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) scans: Mutex<Scans>,
    pub(crate) ring: rank::Mutex<Ring, { rank::EXTENT_RING }>,
    /// Coarse time: one step for every 1024 uses.
    pub(crate) tick: AtomicU64,
    pub(crate) inodes: AtomicUsize,
    /// `u64::MAX` for no limit.
    limit: AtomicU64,
    uses: AtomicU64,
    replaying: AtomicBool,
    /// Nanoseconds since an arbitrary start.
    clock: fn() -> u64,
    /// Whether the time of each scan is logged.
    logging: AtomicBool,
    /// The budget that memory is charged to, and the bytes charged.
    budget: Option<Arc<Budget>>,
    charged: AtomicU64,
    /// Bytes of the ring, copied from it.
    ring_bytes: AtomicU64,
}

/// Nanoseconds of monotonic time.
fn wall_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Shared {
    fn new(options: Options, clock: fn() -> u64, budget: Option<Arc<Budget>>) -> Self {
        assert!(options.cluster_bits <= 16, "a cluster has at most 65536 blocks");
        Self {
            options,
            counters: Counters::default(),
            scans: Mutex::default(),
            ring: rank::Mutex::default(),
            // The list was never sorted: inodes used from now on are younger than that.
            tick: AtomicU64::new(0),
            inodes: AtomicUsize::new(0),
            limit: AtomicU64::new(options.limit.unwrap_or(u64::MAX)),
            uses: AtomicU64::new(0),
            replaying: AtomicBool::new(false),
            clock,
            logging: AtomicBool::new(false),
            budget,
            charged: AtomicU64::new(0),
            ring_bytes: AtomicU64::new(0),
        }
    }

    /// Notes that an inode is about to be used, and lists it with the policies that list every used inode.
    pub(crate) fn touch(&self, body: &Arc<Body>) {
        if !self.options.policy.lists_inodes_at_first_use() {
            return;
        }
        let uses = self.uses.fetch_add(1, Relaxed);
        if uses % 1024 == 1023 {
            self.tick.fetch_add(1, Relaxed);
        }
        body.touched.store(self.tick.load(Relaxed) + 1, Relaxed);
        self.list(body);
    }

    fn list(&self, body: &Arc<Body>) {
        if !body.is_listed() {
            let mut ring = self.ring.lock();
            if !body.is_listed() {
                ring.put(body, 0);
                self.note_ring(&ring);
            }
        }
    }

    /// Runs after entries were added, with no lock held: scans if the limit is exceeded. Policies with
    /// bounded scans run several, because otherwise caching whole leaves would outrun them.
    pub(crate) fn relieve(&self, own: &Arc<Body>) {
        if self.options.policy.lists_inodes_at_first_use() {
            // A scan may have removed it from the list before the new entries came.
            self.list(own);
        }
        self.charge_budget();
        let mut left = self.options.policy.scans_in_a_row();
        loop {
            let excess = self.counters.reclaimable().saturating_sub(self.limit.load(Relaxed));
            if excess == 0 || left == 0 {
                break;
            }
            left -= if excess > u64::from(SCAN_MIN) { 1 } else { left };
            self.scan(u32::try_from(excess).unwrap_or(u32::MAX).max(SCAN_MIN), Some(own));
        }
    }

    pub(crate) fn scan(&self, nr: u32, own: Option<&Arc<Body>>) -> Scan {
        self.scan_as(nr, own, Need::Usual)
    }

    fn scan_as(&self, nr: u32, own: Option<&Arc<Body>>, need: Need) -> Scan {
        events::scan_enter(self, nr);
        if self.logging.load(Relaxed) {
            // The first read of an idle clock takes microseconds, which must not count for the scan.
            (self.clock)();
        }
        let begun = (self.clock)();
        let scan = self.options.policy.scan(self, nr, own, need);
        let ns = (self.clock)().saturating_sub(begun);
        self.scans.lock().add(&scan, ns);
        events::scan_exit(self, &scan, ns);
        scan
    }

    /// Bytes of entries, inodes and lists.
    pub(crate) fn bytes(&self) -> u64 {
        self.counters.bytes() + self.ring_bytes.load(Relaxed)
    }

    /// Called after a change of the ring, still under its lock.
    pub(crate) fn note_ring(&self, ring: &Ring) {
        self.ring_bytes.store(ring.bytes() as u64, Relaxed);
    }

    /// Charges the change to the budget, if it is large enough. Called without any lock that a shrinker
    /// takes.
    pub(crate) fn charge_budget(&self) {
        let Some(budget) = &self.budget else { return };
        let (bytes, charged) = (self.bytes(), self.charged.load(Relaxed));
        if bytes.abs_diff(charged) < CHARGE_MIN {
            return;
        }
        // The swap returns the value charged before, so concurrent differences add up.
        let charged = self.charged.swap(bytes, Relaxed);
        if bytes > charged {
            budget.charge((bytes - charged) as usize);
        } else {
            budget.release((charged - bytes) as usize);
        }
    }

    /// Releases a decrease only, so it may be called under any lock. Returns the bytes released.
    pub(crate) fn give_back(&self) -> u64 {
        let Some(budget) = &self.budget else { return 0 };
        let bytes = self.bytes();
        let charged = self.charged.fetch_min(bytes, Relaxed);
        let less = charged.saturating_sub(bytes);
        budget.release(less as usize);
        less
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(Relaxed)
    }
}

impl Shrinker for Shared {
    fn name(&self) -> &'static str {
        "extents"
    }

    fn cached_bytes(&self) -> usize {
        self.bytes() as usize
    }

    fn shrink(&self, bytes: usize) -> usize {
        // The number of scans of the usual size for these bytes, times four, because a scan may reclaim less
        // or nothing.
        let scans = 4 * (bytes / ENTRY_BYTES / SCAN_MIN as usize + 1);
        let mut given = self.give_back() as usize;
        let (mut need, mut idle) = (Need::Usual, 0);
        for _ in 0..scans {
            if given >= bytes || self.counters.reclaimable() == 0 {
                break;
            }
            idle = if self.scan_as(SCAN_MIN, None, need).reclaimed == 0 { idle + 1 } else { 0 };
            if idle == IDLE_MAX {
                need = Need::Urgent;
            }
            given += self.give_back() as usize;
        }
        given
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(*self.charged.get_mut() as usize);
        }
    }
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

    /// Reclaims about `nr` entries by the policy; es-chunk reclaims at most [`SCAN_MIN`] at a time. Waits for
    /// no inode's lock, except with the LRU policies. Call it without any lock that is held around a change
    /// of an inode.
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
                while place != crate::chunk::NONE {
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
