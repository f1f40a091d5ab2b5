//! The cache of a file system: its policy, its limit, the inodes that reclaim looks at, what was counted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use extant_base::Ino;
use extant_memory::{Budget, Shrinker};
use parking_lot::Mutex;

use crate::events;
use crate::inode::{Body, Inode};
use crate::policy::{Need, Policy, Scan};
use crate::ring::Ring;
use crate::stats::{Counters, Scans, Stats};

/// Entries that a scan is asked for at least.
pub const SCAN_MIN: u32 = 128;
/// Bytes of an entry, all included, as a rule.
const ENTRY_BYTES: usize = 24;
/// Scans in a row that gave nothing, after which what is new is not spared.
const IDLE_MAX: u32 = 4;
/// Changes below this many bytes are not reported to the budget.
const CHARGE_MIN: u64 = 4096;

/// What is chosen when a cache is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// What is forgotten first.
    pub policy: Policy,
    /// The most reclaimable entries that are kept without a scan; `None`: no limit, until [`Cache::scan`] is
    /// called.
    pub limit: Option<u64>,
    /// Never make neighbours one: for fragmented trees in tests and studies.
    pub no_merge: bool,
    /// log2 of the blocks of a cluster; 0 without bigalloc.
    pub cluster_bits: u32,
    /// The device name in events.
    pub device: u64,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) scans: Mutex<Scans>,
    pub(crate) ring: Mutex<Ring>,
    /// Coarse time: of each 1024 uses one step.
    pub(crate) tick: AtomicU64,
    pub(crate) inodes: AtomicUsize,
    /// `u64::MAX` without one.
    limit: AtomicU64,
    uses: AtomicU64,
    replaying: AtomicBool,
    /// Nanoseconds since whenever.
    clock: fn() -> u64,
    /// Whether the time of each scan is noted.
    logging: AtomicBool,
    /// What memory is charged to, and how much of it is.
    budget: Option<Arc<Budget>>,
    charged: AtomicU64,
    /// Bytes of the ring; it knows.
    ring_bytes: AtomicU64,
}

/// Nanoseconds of the wall.
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
            ring: Mutex::default(),
            // The list was never sorted: what is used now is younger than that.
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

    /// Called before an inode is used: some policies list inodes in the order of use.
    pub(crate) fn touch(&self, body: &Arc<Body>) {
        if !self.options.policy.lists_whoever_is_used() {
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

    /// After something was added, with no lock held: a scan if there is more than the limit. Where scans are
    /// bounded, several, or what comes by leaves would outrun them.
    pub(crate) fn relieve(&self, own: &Arc<Body>) {
        if self.options.policy.lists_whoever_is_used() {
            // A scan may have taken it off before there was something new in it.
            self.list(own);
        }
        self.settle();
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
            // A clock that was not read for a while takes microseconds, which are not the scan's.
            (self.clock)();
        }
        let begun = (self.clock)();
        let scan = self.options.policy.scan(self, nr, own, need);
        let ns = (self.clock)().saturating_sub(begun);
        self.scans.lock().add(&scan, ns);
        events::scan_exit(self, &scan, ns);
        scan
    }

    /// Bytes that entries, inodes and lists take.
    pub(crate) fn bytes(&self) -> u64 {
        self.counters.bytes() + self.ring_bytes.load(Relaxed)
    }

    /// After a step on the ring, still under its lock.
    pub(crate) fn note_ring(&self, ring: &Ring) {
        self.ring_bytes.store(ring.bytes() as u64, Relaxed);
    }

    /// Reports the change to the budget, if it is large enough. No lock that a shrinker takes is held.
    pub(crate) fn settle(&self) {
        let Some(budget) = &self.budget else { return };
        let (bytes, charged) = (self.bytes(), self.charged.load(Relaxed));
        if bytes.abs_diff(charged) < CHARGE_MIN {
            return;
        }
        // The exchanging thread gets the difference to the last report; all differences add up.
        let charged = self.charged.swap(bytes, Relaxed);
        if bytes > charged {
            budget.charge((bytes - charged) as usize);
        } else {
            budget.release((charged - bytes) as usize);
        }
    }

    /// The same, but only to give back: under any lock. Returns how much that was.
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
        // Entries of so many bytes, in scans of the usual size; some times as many, since one may give a part
        // of that, or nothing.
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

/// What is known of the files of one file system. Cloning shares it.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Panics
    /// `cluster_bits` is more than 16.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self::with_clock(options, wall_ns)
    }

    /// The same, with scans timed by another clock: one of nanoseconds that does not go back on a thread.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn with_clock(options: Options, clock: fn() -> u64) -> Self {
        Self { shared: Arc::new(Shared::new(options, clock, None)) }
    }

    /// The same, with memory that counts for a budget: what is known is charged to it, and some of it is
    /// forgotten when it runs short. Charges come after changes of inodes, so those are to be made without a
    /// lock that a shrinker of the budget takes.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn with_budget(options: Options, budget: &Arc<Budget>) -> Self {
        let shared = Arc::new(Shared::new(options, wall_ns, Some(Arc::clone(budget))));
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        budget.register(weak);
        Self { shared }
    }

    /// What was chosen.
    #[must_use]
    pub fn options(&self) -> Options {
        self.shared.options
    }

    /// An inode of which nothing is known. Dropping it drops what is known.
    #[must_use]
    pub fn inode(&self, ino: Ino) -> Inode {
        Inode::new(ino, Arc::clone(&self.shared))
    }

    /// Entries that may be forgotten.
    #[must_use]
    pub fn count(&self) -> u64 {
        let count = self.shared.counters.reclaimable();
        events::shrink_count(&self.shared, count);
        count
    }

    /// Forgets about `nr` entries, by the policy; es-chunk at most [`SCAN_MIN`] at a time. Blocks for no
    /// inode, except with the LRU policies. Call it with no lock held that is held around a change of an
    /// inode.
    pub fn scan(&self, nr: u32) -> Scan {
        self.shared.scan(nr, None)
    }

    /// Changes the limit; what is above it goes when something is added next, with es-chunk bit by bit.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.shared.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
    }

    /// While the journal's fast commits are replayed nothing is known and nothing is kept.
    pub fn set_replaying(&self, replaying: bool) {
        self.shared.replaying.store(replaying, Relaxed);
    }

    /// Bytes that entries, inodes and lists of them take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// What was counted so far.
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

    /// Forgets what scans and lookups counted; entries stay.
    pub fn reset_stats(&self) {
        self.shared.counters.reset_lookups();
        self.shared.scans.lock().reset();
    }

    /// From now on the time of each scan is noted, by a clock that is read once before: for studies, which
    /// compare a scan with the same one of another run.
    pub fn log_scans(&self) {
        self.shared.scans.lock().log = Some(Vec::new());
        self.shared.logging.store(true, Relaxed);
    }

    /// Scans that were counted, and how many entries and inodes they looked at: cheaper than
    /// [`stats`](Self::stats).
    #[must_use]
    pub fn scans_and_work(&self) -> (u64, u64) {
        let scans = self.shared.scans.lock();
        (scans.times.count(), scans.scanned + scans.inodes)
    }

    /// The times of scans that were noted, in nanoseconds, with what each did, in order; and forgets them.
    #[must_use]
    pub fn take_scan_log(&self) -> Vec<(u64, Scan)> {
        self.shared.scans.lock().log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
