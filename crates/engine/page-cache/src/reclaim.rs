//! Reclaim: evicts clean folios that were not touched since the clock's hand passed.
//!
//! ```text
//! ring: [ f17 | f4 | f93 | f12 ]    the hand passes: touched -> untouched; untouched and clean -> evicted;
//!               ^ hand                               dirty -> stays
//! ```
//!
//! A new folio is untouched; its second use touches it. So the folios of a file that is read once are evicted
//! before folios that are used again.
//!
//! Invariants
//! 1. A ring has each folio that is in its file's map once, at `ring_at`, and no other; a folio that is being
//!    removed from the map leaves the ring afterwards.
//! 2. Reclaim only tries locks of chunks and folios, so it may run under any of them (a writer needs memory
//!    under its folio's lock). It takes a ring's lock only to look or to remove.
//! 3. A folio with other references is not evicted.
//! 4. The work of one call is bounded: it looks at two folios for each 4 KiB wanted, plus 64.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::Shared;
use crate::folio::Folio;
use crate::stats::thread_number;

const RINGS: usize = 8;

/// Folios examined under one lock of a ring.
const BATCH: usize = 16;

#[derive(Default)]
pub(crate) struct Clock {
    rings: [Mutex<Ring>; RINGS],
}

#[derive(Default)]
struct Ring {
    folios: Vec<Arc<Folio>>,
    hand: usize,
}

impl Clock {
    /// The ring for a folio of this thread.
    pub(crate) fn ring_of_this_thread() -> usize {
        thread_number() % RINGS
    }

    pub(crate) fn insert(&self, folio: &Arc<Folio>) {
        let mut ring = self.rings[folio.ring].lock();
        folio.ring_at.store(ring.folios.len(), Ordering::Relaxed);
        ring.folios.push(folio.clone());
    }

    pub(crate) fn remove(&self, folio: &Arc<Folio>) {
        let mut ring = self.rings[folio.ring].lock();
        let at = folio.ring_at.swap(usize::MAX, Ordering::Relaxed);
        if at == usize::MAX {
            return;
        }
        let out = ring.folios.swap_remove(at);
        debug_assert!(Arc::ptr_eq(&out, folio));
        if let Some(moved) = ring.folios.get(at) {
            moved.ring_at.store(at, Ordering::Relaxed);
        }
    }

    /// Collects the next untouched folios of a ring; returns how many were examined.
    fn candidates(&self, ring: usize, into: &mut Vec<Arc<Folio>>) -> usize {
        let mut ring = self.rings[ring].lock();
        let looks = BATCH.min(ring.folios.len());
        for _ in 0..looks {
            let at = if ring.hand < ring.folios.len() { ring.hand } else { 0 };
            ring.hand = at + 1;
            let folio = &ring.folios[at];
            if !folio.is_referenced.swap(false, Ordering::Relaxed) {
                into.push(folio.clone());
            }
        }
        looks
    }
}

impl Shared {
    /// Evicts clean folios of about `bytes` from their files; their memory goes to the pool. Returns the
    /// number of bytes.
    pub(crate) fn reclaim(&self, bytes: u64) -> u64 {
        let looks_max = 64 + 2 * (bytes / 4096) as usize;
        let (mut freed, mut looks, mut idle) = (0, 0, 0);
        let mut ring = Clock::ring_of_this_thread();
        let mut candidates = Vec::with_capacity(BATCH);
        while freed < bytes && looks < looks_max && idle < RINGS {
            let looked = self.clock.candidates(ring, &mut candidates);
            looks += looked;
            idle = if looked == 0 { idle + 1 } else { 0 };
            for folio in candidates.drain(..) {
                if freed < bytes && self.evict(&folio) {
                    freed += folio.order.bytes();
                }
            }
            ring = (ring + 1) % RINGS;
        }
        freed
    }

    /// Evicts one folio from its file if it is clean and idle.
    fn evict(&self, folio: &Arc<Folio>) -> bool {
        let Some(memory) = folio.owner.upgrade().and_then(|owner| owner.evict(folio)) else { return false };
        drop(memory);
        self.counts.evicted.add(1);
        self.forget(folio);
        true
    }

    /// Counts a folio that was added to its file's map.
    pub(crate) fn remember(&self, folio: &Arc<Folio>) {
        self.counts.folios[folio.order.index()].fetch_add(1, Ordering::Relaxed);
        self.clock.insert(folio);
    }

    /// Uncounts a folio that was removed from its file's map.
    pub(crate) fn forget(&self, folio: &Arc<Folio>) {
        self.counts.folios[folio.order.index()].fetch_sub(1, Ordering::Relaxed);
        self.clock.remove(folio);
    }
}
