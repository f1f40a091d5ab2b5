//! One group in memory: its descriptor, its busy clusters, and what it freed in transactions that are not yet
//! committed.
//!
//! ```text
//! busy = set in the bitmap block | freed, not committed yet | windows of directories | system blocks
//! ```
//!
//! Invariants
//! 1. `free` is the number of clear bits of `map`, and `fragments` the number of their runs. No run is longer
//!    than `longest`, an upper bound that a failed search makes exact.
//! 2. No bit below `first_free`, and no bit in `full`, is clear.
//! 3. `at_longest` and `at_average` are the group's orders in the index.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use extant_base::rank::{self, Mutex, MutexGuard};
use extant_base::{Malformed, Tid};
use extant_ondisk::group_desc::GroupDesc;

use crate::bits;
use crate::index::{By, Index};

/// The block bitmap changed since the last seal.
pub(crate) const DIRTY_BLOCKS: u8 = 1;
/// The inode bitmap changed since the last seal.
pub(crate) const DIRTY_INODES: u8 = 2;

/// A locked group.
pub(crate) type GroupGuard<'a> = MutexGuard<'a, State, { rank::GROUP }>;

/// A group, with copies of some counts that are readable without its lock. Aligned, so that neighbouring
/// groups share no cache line.
#[repr(align(128))]
pub(crate) struct Cell {
    pub(crate) state: Mutex<State, { rank::GROUP }>,
    /// Clusters that can be allocated now.
    pub(crate) free: AtomicU32,
    /// Free inodes; 0 if they cannot be used.
    pub(crate) free_inodes: AtomicU32,
    pub(crate) used_dirs: AtomicU32,
}

/// The state of a group, protected by its lock.
pub(crate) struct State {
    pub(crate) desc: GroupDesc,
    /// Why no clusters are allocated or freed here.
    pub(crate) bad: Option<Malformed>,
    /// Why no inodes are allocated or freed here.
    pub(crate) bad_inodes: Option<Malformed>,
    /// Used since the shrinker's last visit.
    pub(crate) touched: bool,
    /// Clusters of the group.
    pub(crate) clusters: u32,
    /// Busy clusters; `None` if not in memory.
    pub(crate) map: Option<Box<[u64]>>,
    /// The file system's own clusters, sorted; valid if the map is in memory.
    pub(crate) system: Box<[Range<u32>]>,
    pub(crate) free: u32,
    pub(crate) fragments: u32,
    pub(crate) longest: u32,
    pub(crate) first_free: u32,
    pub(crate) full: Range<u32>,
    at_longest: Option<u8>,
    at_average: Option<u8>,
    /// Ranges freed by transactions that are not committed.
    pub(crate) pending: Vec<Pending>,
    pub(crate) windows: Vec<Window>,
    /// Used inodes; `None` if not in memory.
    pub(crate) inodes: Option<Box<[u64]>>,
    /// No inode below this index is free.
    pub(crate) first_inode: u32,
    pub(crate) sharing: SharingDetector,
    /// [`DIRTY_BLOCKS`], [`DIRTY_INODES`]: changed since the last seal.
    pub(crate) dirty: u8,
    pub(crate) counts: Counts,
}

/// A range that was freed, busy until its transaction is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) transaction: Tid,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A range reserved for an owner; the slot of a window of length 0 can be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) id: u64,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// Statistics of a group; plain numbers, protected by its lock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) success: u64,
    pub(crate) goal_hits: u64,
    pub(crate) clusters: u64,
    pub(crate) inodes: u64,
}

/// Detects that several threads alternate at a group.
///
/// Two threads at the same pace may never contend for the lock, and yet all cache lines of the group bounce
/// between their CPUs. Threads that alternate slowly, as those that serve single requests do, may share a
/// group.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SharingDetector {
    /// The last thread, counted from 1.
    thread: usize,
    at: Option<Instant>,
    /// Consecutive changes of thread, each soon after the one before.
    soon: u32,
}

impl SharingDetector {
    /// Changes in a row after which a thread is sent to another group.
    const MAX: u32 = 16;
    /// The threshold for "soon": the time of a few operations, and less than it takes to wake a thread.
    const SOON: Duration = Duration::from_micros(10);

    /// Records that a thread uses the group now. Returns whether it should use another group.
    #[inline]
    pub(crate) fn is_crowded(&mut self, thread: usize, now: impl FnOnce() -> Instant) -> bool {
        if self.thread == thread + 1 {
            return false;
        }
        self.thread = thread + 1;
        let now = now();
        let is_soon =
            self.at.replace(now).is_some_and(|before| now.saturating_duration_since(before) < Self::SOON);
        self.soon = if is_soon { self.soon + 1 } else { 0 };
        let is_crowded = self.soon > Self::MAX;
        if is_crowded {
            self.soon = 0;
        }
        is_crowded
    }
}

impl Cell {
    /// A group with its descriptor, but without bitmaps. Until they are read, its free clusters count as one
    /// run.
    pub(crate) fn new(desc: GroupDesc, clusters: u32, bad: Option<Malformed>) -> Self {
        let free = if bad.is_some() { 0 } else { desc.free_clusters };
        let state = State {
            desc,
            clusters,
            map: None,
            system: Box::default(),
            free,
            fragments: u32::from(free > 0),
            longest: free,
            first_free: 0,
            full: 0..0,
            at_longest: None,
            at_average: None,
            pending: Vec::new(),
            windows: Vec::new(),
            inodes: None,
            first_inode: 0,
            sharing: SharingDetector::default(),
            dirty: 0,
            counts: Counts::default(),
            bad_inodes: bad.clone(),
            bad,
            touched: false,
        };
        let cell = Self {
            free: AtomicU32::new(0),
            free_inodes: AtomicU32::new(0),
            used_dirs: AtomicU32::new(0),
            state: Mutex::new(state),
        };
        cell.publish(&cell.state.lock());
        cell
    }

    /// Updates the counts that are readable without the lock.
    #[inline]
    pub(crate) fn publish(&self, state: &State) {
        let usable = |bad: &Option<Malformed>, count: u32| if bad.is_some() { 0 } else { count };
        self.free.store(usable(&state.bad, state.free), Ordering::Relaxed);
        self.free_inodes.store(usable(&state.bad_inodes, state.desc.free_inodes), Ordering::Relaxed);
        self.used_dirs.store(state.desc.used_dirs, Ordering::Relaxed);
    }
}

impl State {
    /// Sets a map that was just built from the bitmap and the other busy clusters.
    pub(crate) fn set_map(&mut self, words: Box<[u64]>) {
        self.free = bits::count_clear(&words);
        (self.fragments, self.longest) = (0, 0);
        self.first_free = bits::next_clear(&words, 0, self.clusters).unwrap_or(self.clusters);
        self.full = 0..self.first_free;
        let mut at = self.first_free;
        while let Some(start) = bits::next_clear(&words, at, self.clusters) {
            at = bits::next_set(&words, start, self.clusters);
            self.fragments += 1;
            self.longest = self.longest.max(at - start);
        }
        self.map = Some(words);
    }

    /// Whether this cluster can be allocated; false if the map is not in memory.
    #[inline]
    pub(crate) fn is_free(&self, bit: u32) -> bool {
        bit < self.clusters && self.map.as_deref().is_some_and(|map| !bits::test(map, bit))
    }

    /// Makes free clusters busy; no cluster in `searched_from..range.start` is free.
    pub(crate) fn take(&mut self, range: Range<u32>, searched_from: u32) {
        let (free_before, free_behind) =
            (range.start > 0 && self.is_free(range.start - 1), self.is_free(range.end));
        let Some(map) = self.map.as_deref_mut() else { return };
        debug_assert!(bits::all_clear(map, range.clone()), "{range:?} is taken twice");
        bits::set(map, range.clone());
        self.free -= range.end - range.start;
        match (free_before, free_behind) {
            (true, true) => self.fragments += 1,
            (false, false) => self.fragments -= 1,
            _ => {}
        }
        self.longest = self.longest.min(self.free);
        let known = searched_from.min(range.start)..range.end;
        if known.start <= self.first_free {
            self.first_free = self.first_free.max(known.end);
        }
        self.full = match known.start <= self.full.end && self.full.start <= known.end {
            true => known.start.min(self.full.start)..known.end.max(self.full.end),
            false => known,
        };
    }

    /// Whether all of these are busy in the map in memory. It differs from the block on disk if two groups
    /// name the same bitmap block.
    pub(crate) fn is_busy(&self, range: &Range<u32>) -> bool {
        self.map.as_deref().is_none_or(|map| bits::all_set(map, range.clone()))
    }

    /// Makes busy clusters free.
    pub(crate) fn release(&mut self, range: Range<u32>) {
        let clusters = self.clusters;
        let Some(map) = self.map.as_deref_mut() else { return };
        debug_assert!(bits::all_set(map, range.clone()), "{range:?} is given twice");
        bits::clear(map, range.clone());
        let run = bits::run_start(map, range.start)..bits::next_set(map, range.end, clusters);
        self.free += range.end - range.start;
        match (run.start < range.start, run.end > range.end) {
            (true, true) => self.fragments -= 1,
            (false, false) => self.fragments += 1,
            _ => {}
        }
        self.longest = self.longest.max(run.end - run.start);
        self.first_free = self.first_free.min(range.start);
        if range.start < self.full.end && self.full.start < range.end {
            self.full.end = range.start.max(self.full.start);
        }
    }

    /// Where a search from `bit` on starts: after what is known to be full.
    #[inline]
    pub(crate) fn skip_full(&self, bit: u32) -> u32 {
        let bit = bit.max(self.first_free);
        if self.full.contains(&bit) { self.full.end } else { bit }
    }

    /// Moves the group to its current orders in the index.
    #[inline]
    pub(crate) fn reindex(&mut self, group: u32, index: &Index) {
        let usable = self.bad.is_none() && self.free > 0;
        let order = |len: u32| usable.then(|| len.max(1).ilog2() as u8);
        let (longest, average) = (order(self.longest), order(self.free / self.fragments.max(1)));
        if longest != self.at_longest {
            index.move_group(By::Longest, group, self.at_longest, longest);
            self.at_longest = longest;
        }
        if average != self.at_average {
            index.move_group(By::Average, group, self.at_average, average);
            self.at_average = average;
        }
    }

    /// Whether any of these clusters holds the file system's own metadata.
    pub(crate) fn overlaps_system(&self, range: &Range<u32>) -> bool {
        self.system.iter().any(|own| own.start < range.end && range.start < own.end)
    }

    /// The bitmap of a group in which only the file system's own clusters are in use.
    pub(crate) fn initial_map(&self) -> Box<[u64]> {
        let mut words = bits::clear_words(self.clusters);
        for own in &self.system {
            bits::set(&mut words, own.clone());
        }
        words
    }

    /// Whether the inode map can be dropped and rebuilt from the bitmap block.
    pub(crate) fn can_drop_inodes(&self) -> bool {
        self.dirty & DIRTY_INODES == 0
    }

    /// Whether the map can be dropped and rebuilt from the bitmap block.
    pub(crate) fn can_drop_map(&self) -> bool {
        self.pending.is_empty() && self.windows.iter().all(|window| window.len == 0)
    }

    /// Checks the invariants that depend on the state alone.
    #[cfg(test)]
    pub(crate) fn assert_whole(&self, group: u32, index: &Index) {
        let Some(map) = self.map.as_deref() else { return };
        let (mut fragments, mut longest, mut at) = (0, 0, 0);
        while let Some(start) = bits::next_clear(map, at, self.clusters) {
            at = bits::next_set(map, start, self.clusters);
            fragments += 1;
            longest = longest.max(at - start);
        }
        assert_eq!((self.free, self.fragments), (bits::count_clear(map), fragments), "group {group}");
        assert!(self.longest >= longest && self.longest <= self.free, "group {group}");
        assert!(
            bits::all_set(map, 0..self.first_free) && bits::all_set(map, self.full.clone()),
            "group {group}"
        );
        assert_eq!(index.orders_of(By::Longest, group), Vec::from_iter(self.at_longest), "group {group}");
        assert_eq!(index.orders_of(By::Average, group), Vec::from_iter(self.at_average), "group {group}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_sharers_leave_and_occasional_ones_stay() {
        let begun = Instant::now();
        let turns = |threads: usize, micros: u64| {
            let mut sharing = SharingDetector::default();
            let crowded = |n: u64| {
                sharing.is_crowded(n as usize % threads, || begun + Duration::from_micros(n * micros))
            };
            (0..100).map(crowded).filter(|is_crowded| *is_crowded).count()
        };
        assert_eq!([turns(1, 1), turns(2, 20), turns(3, 10)], [0; 3]);
        // Each 17th change of thread that came soon.
        assert_eq!([turns(2, 1), turns(3, 9)], [5; 2]);
    }
}
