//! Reclaim: when scans run, and what starts them. How a scan chooses is the policy's: see [`Policy`].

mod chunks;
mod lru;
mod round;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use extant_memory::Shrinker;

use crate::body::Body;
use crate::events;
use crate::policy::Policy;
use crate::scan::{Need, Scan};
use crate::shared::Shared;

/// Minimum entries to request from a scan.
pub const SCAN_MIN: u32 = 128;
/// Typical bytes of an entry, overhead included.
const ENTRY_BYTES: usize = 24;
/// After this many scans in a row without a result, new entries are reclaimed too.
const IDLE_MAX: u32 = 4;

impl Shared {
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
        let scan = self.run_scan(nr, own, need);
        let ns = (self.clock)().saturating_sub(begun);
        self.scans.lock().add(&scan, ns);
        events::scan_exit(self, &scan, ns);
        scan
    }

    /// Runs one scan.
    fn run_scan(&self, nr: u32, own: Option<&Arc<Body>>, need: Need) -> Scan {
        match self.options.policy {
            Policy::Baseline | Policy::EsCache => lru::scan(self, nr, own),
            Policy::EsSlist | Policy::EsIlist | Policy::EsGc | Policy::Upstream => round::scan(self, nr, own),
            Policy::EsChunk => chunks::scan(self, nr, need),
        }
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
