//! What the inodes of a cache share: its options, its limit, the lists of inodes, the counters, the charge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use extant_base::rank;
use extant_memory::Budget;
use parking_lot::Mutex;

use crate::body::{Body, State};
use crate::chunk::Age;
use crate::policy::Policy;
use crate::ring::Ring;
use crate::stats::{Counters, Scans};

/// Changes below this many bytes are not charged to the budget.
const CHARGE_MIN: u64 = 4096;

/// Options of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The reclaim policy.
    pub policy: Policy,
    /// The number of reclaimable entries to keep without a scan; `None`: no limit, only
    /// [`Cache::scan`](crate::Cache::scan) reclaims.
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
    pub(crate) limit: AtomicU64,
    uses: AtomicU64,
    pub(crate) replaying: AtomicBool,
    /// Nanoseconds since an arbitrary start.
    pub(crate) clock: fn() -> u64,
    /// Whether the time of each scan is logged.
    pub(crate) logging: AtomicBool,
    /// The budget that memory is charged to, and the bytes charged.
    budget: Option<Arc<Budget>>,
    charged: AtomicU64,
    /// Bytes of the ring, copied from it.
    ring_bytes: AtomicU64,
}

impl Shared {
    pub(crate) fn new(options: Options, clock: fn() -> u64, budget: Option<Arc<Budget>>) -> Self {
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

    pub(crate) fn list(&self, body: &Arc<Body>) {
        if !body.is_listed() {
            let mut ring = self.ring.lock();
            if !body.is_listed() {
                ring.put(body, 0);
                self.note_ring(&ring);
            }
        }
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

    /// Updates the counters after a change, still under the state's lock.
    pub(crate) fn count(&self, body: &Body, state: &mut State) {
        let (entries, reclaimable) = (state.tree.entries(), state.tree.reclaimable());
        let bytes = state.tree.bytes();
        let entries_before = body.entries.load(Relaxed);
        let reclaimable_before = body.reclaimable.load(Relaxed);
        if (entries, reclaimable) != (entries_before, reclaimable_before) {
            body.entries.store(entries, Relaxed);
            body.reclaimable.store(reclaimable, Relaxed);
        }
        self.counters.add(
            i64::from(entries) - i64::from(entries_before),
            i64::from(reclaimable) - i64::from(reclaimable_before),
            bytes as i64 - state.bytes as i64,
        );
        state.bytes = bytes;
    }

    /// Updates the counters and the list of the inode after a change, still under the state's lock.
    pub(crate) fn sync(&self, body: &Arc<Body>, state: &mut State) {
        self.count(body, state);
        let policy = self.options.policy;
        if policy.lists_inodes_at_first_use() {
            return;
        }
        let should = match (policy, state.tree.reclaimable()) {
            (Policy::EsChunk, _) => state.tree.age(),
            (_, 0) => Age::None,
            _ => Age::Cold,
        };
        if state.listed != should {
            state.listed = should;
            let mut ring = self.ring.lock();
            match should {
                Age::None => ring.take_off(body),
                Age::Cold => ring.put(body, 0),
                Age::Warm => ring.put(body, 1),
            }
            self.note_ring(&ring);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(*self.charged.get_mut() as usize);
        }
    }
}
