//! The cache of a file system: its policy, its limit, the inodes that reclaim looks at, what was counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use base::Ino;
use parking_lot::Mutex;

use crate::events;
use crate::inode::{Body, Inode};
use crate::policy::{Policy, Scan};
use crate::ring::Ring;
use crate::stats::{Counters, Scans, Stats};

/// Entries that a scan is asked for at least.
pub const SCAN_MIN: u32 = 128;

/// What is chosen when a cache is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// What is forgotten first.
    pub policy: Policy,
    /// Entries that may be forgotten which are kept without a scan; `None`: all, until somebody calls [`Cache::scan`].
    pub limit: Option<u64>,
    /// Never make neighbours one: for fragmented trees in tests and studies.
    pub no_merge: bool,
    /// log2 of the blocks of a cluster; 0 without bigalloc.
    pub cluster_bits: u32,
    /// What events tell as the device.
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
}

impl Shared {
    /// An inode is about to be used: the policies that list whoever is used do so.
    pub(crate) fn touch(&self, body: &Arc<Body>) {
        if !self.options.policy.lists_whoever_is_used() {
            return;
        }
        let uses = self.uses.fetch_add(1, Relaxed);
        if uses % 1024 == 1023 {
            self.tick.fetch_add(1, Relaxed);
        }
        body.touched.store(self.tick.load(Relaxed) + 1, Relaxed);
        if !body.is_listed() {
            let mut ring = self.ring.lock();
            if !body.is_listed() {
                ring.put(body, 0);
            }
        }
    }

    /// After something was added, with no lock held: a scan if there is more than the limit.
    pub(crate) fn relieve(&self, own: &Arc<Body>) {
        let excess = self.counters.reclaimable().saturating_sub(self.limit.load(Relaxed));
        if excess > 0 {
            self.scan(u32::try_from(excess).unwrap_or(u32::MAX).max(SCAN_MIN), Some(own));
        }
    }

    pub(crate) fn scan(&self, nr: u32, own: Option<&Arc<Body>>) -> Scan {
        events::scan_enter(self, nr);
        let begun = Instant::now();
        let scan = self.options.policy.scan(self, nr, own);
        let ns = begun.elapsed().as_nanos() as u64;
        self.scans.lock().add(&scan, ns);
        events::scan_exit(self, &scan, ns);
        scan
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(Relaxed)
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
        assert!(options.cluster_bits <= 16, "a cluster has at most 65536 blocks");
        Self {
            shared: Arc::new(Shared {
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
            }),
        }
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

    /// Forgets about `nr` entries, by the policy. Blocks for no inode, except with the LRU policies. Call it with no lock held that
    /// is held around a change of an inode.
    pub fn scan(&self, nr: u32) -> Scan {
        self.shared.scan(nr, None)
    }

    /// Changes the limit; what is above it goes when something is added next.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.shared.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
    }

    /// While the journal's fast commits are replayed nothing is known and nothing is kept.
    pub fn set_replaying(&self, replaying: bool) {
        self.shared.replaying.store(replaying, Relaxed);
    }

    /// Bytes that entries and inodes take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.counters.bytes()
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
            bytes: shared.counters.bytes(),
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
        *self.shared.scans.lock() = Scans::default();
    }
}
