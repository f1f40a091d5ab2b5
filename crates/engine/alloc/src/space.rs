//! Counters of free, promised and reserved clusters, and of free inodes.
//!
//! ```text
//! free on disk = available + dirty          dirty: promised to delayed writes, not allocated yet
//! ordinary users stop at   available = root reserve + pool
//! root stops at            available = pool
//! metadata that must not fail (conversions, splits) stops at 0
//! ```
//!
//! Invariant: a claim lowers `available` only down to the limit of its privilege.
//!
//! Block maps need space that claims do not count. The kernel keeps a pool for extent maps only: on a file
//! system without extents, a file that takes the last block may lose delayed data. Here all file systems have
//! the pool.
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use extant_base::sync::Sum;
use extant_ondisk::{Geometry, Superblock};

/// The pool for the block maps of promised data: one in `POOL_PART` clusters of the file system, `POOL_MAX`
/// clusters at most.
const POOL_PART: u64 = 50;
const POOL_MAX: u64 = 4096;

/// A counter on a cache line of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Counter(AtomicI64);

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct Space {
    available: Counter,
    dirty: Counter,
    free_inodes: Sum,
    root_reserve: AtomicU64,
    pool: AtomicU64,
}

/// Which reserves an allocation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Privilege {
    /// Ordinary users: neither root's reserve nor the pool.
    #[default]
    User,
    /// Root, or the user and group named in the superblock: not the pool.
    Root,
    /// Metadata that must not fail: all reserves.
    Pool,
}

/// The amount of free space in proportion to what is promised to delayed writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// At least twice what is promised, or nothing is promised.
    Plenty,
    /// Less than twice: delayed writes should be allocated soon.
    Short,
    /// Less than one and a half times: writes should not be delayed.
    Scarce,
}

impl Space {
    pub(crate) fn new(sb: &Superblock, geometry: &Geometry) -> Self {
        let clusters = geometry.blocks >> geometry.cluster_log;
        let pool = (clusters / POOL_PART).min(POOL_MAX);
        let free = (sb.free_blocks_count >> geometry.cluster_log).min(clusters);
        let space = Self {
            root_reserve: AtomicU64::new((sb.reserved_blocks_count >> geometry.cluster_log).min(clusters)),
            pool: AtomicU64::new(pool),
            ..Self::default()
        };
        space.available.0.store(free as i64, Ordering::Relaxed);
        space.free_inodes.set(sb.free_inodes_count.min(geometry.inodes()).into());
        space
    }

    /// Sets the free space on disk; promises stay.
    pub(crate) fn recount(&self, free: u64, free_inodes: u64) {
        let dirty = self.dirty.0.load(Ordering::Relaxed);
        self.available.0.store(free as i64 - dirty, Ordering::Relaxed);
        self.free_inodes.set(free_inodes as i64);
    }

    fn floor(&self, privilege: Privilege) -> i64 {
        let (reserve, pool) = (self.root_reserve.load(Ordering::Relaxed), self.pool.load(Ordering::Relaxed));
        match privilege {
            Privilege::User => (reserve + pool) as i64,
            Privilege::Root => pool as i64,
            Privilege::Pool => 0,
        }
    }

    /// Takes up to `want` clusters, at least `min`, as far as available.
    #[inline]
    pub(crate) fn take(&self, want: u32, min: u32, privilege: Privilege) -> Option<u32> {
        let floor = self.floor(privilege);
        let mut taken = 0;
        let update = |available: i64| {
            let room = available.saturating_sub(floor).max(0);
            taken = room.min(want.into()) as u32;
            (taken >= min && taken > 0).then(|| available - i64::from(taken))
        };
        self.available.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok().map(|_| taken)
    }

    /// Promises all of `clusters`. Returns whether there was enough space.
    pub(crate) fn promise(&self, clusters: u64, privilege: Privilege) -> bool {
        let floor = self.floor(privilege);
        let Ok(wanted) = i64::try_from(clusters) else { return false };
        let update = |available: i64| (available.saturating_sub(floor) >= wanted).then(|| available - wanted);
        let taken = self.available.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).is_ok();
        if taken {
            self.dirty.0.fetch_add(wanted, Ordering::Relaxed);
        }
        taken
    }

    /// Promises clusters that are not free yet, but will be.
    pub(crate) fn owe(&self, clusters: u64) {
        self.available.0.fetch_sub(clusters as i64, Ordering::Relaxed);
        self.dirty.0.fetch_add(clusters as i64, Ordering::Relaxed);
    }

    /// Ends a promise: an allocation used it, or, if `back`, the space returns to the available.
    pub(crate) fn end_promise(&self, clusters: u64, back: bool) {
        let before = self.dirty.0.fetch_sub(clusters as i64, Ordering::Relaxed);
        debug_assert!(before >= clusters as i64, "{clusters} clusters settled of {before} promised");
        if back {
            self.available.0.fetch_add(clusters as i64, Ordering::Relaxed);
        }
    }

    /// Adjusts the free space on disk; may be negative.
    #[inline]
    pub(crate) fn add_free(&self, clusters: i64) {
        self.available.0.fetch_add(clusters, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add_inodes(&self, inodes: i64) {
        self.free_inodes.add(inodes);
    }

    pub(crate) fn set_reserves(&self, root_clusters: u64, pool_clusters: u64) {
        self.root_reserve.store(root_clusters, Ordering::Relaxed);
        self.pool.store(pool_clusters, Ordering::Relaxed);
    }

    /// Clusters free on disk, and how many of them are promised.
    pub(crate) fn free_and_dirty(&self) -> (u64, u64) {
        let dirty = self.dirty.0.load(Ordering::Relaxed).max(0);
        let free = self.available.0.load(Ordering::Relaxed) + dirty;
        (free.max(0) as u64, dirty as u64)
    }

    pub(crate) fn room(&self) -> Room {
        let (free, dirty) = self.free_and_dirty();
        match dirty {
            0 => Room::Plenty,
            _ if 2 * free < 3 * dirty => Room::Scarce,
            _ if free < 2 * dirty => Room::Short,
            _ => Room::Plenty,
        }
    }

    pub(crate) fn available_to(&self, privilege: Privilege) -> u64 {
        (self.available.0.load(Ordering::Relaxed) - self.floor(privilege)).max(0) as u64
    }

    pub(crate) fn free_inodes(&self) -> u64 {
        self.free_inodes.get().max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claimant_leaves_what_is_not_his() {
        let space = Space::default();
        space.recount(100, 0);
        space.set_reserves(10, 5);
        assert_eq!(space.take(90, 90, Privilege::User), None);
        assert!(space.promise(50, Privilege::User));
        assert_eq!(space.free_and_dirty(), (100, 50));
        assert_eq!(space.room(), Room::Plenty);
        assert_eq!(space.take(90, 1, Privilege::User), Some(35));
        assert_eq!(space.take(1, 1, Privilege::User), None);
        assert_eq!(space.take(90, 1, Privilege::Root), Some(10));
        assert_eq!(space.take(90, 1, Privilege::Pool), Some(5));
        assert_eq!((space.free_and_dirty().0, space.room()), (50, Room::Scarce));
        assert!(!space.promise(u64::MAX, Privilege::Pool) && !space.promise(1, Privilege::Pool));
        space.end_promise(20, false);
        space.end_promise(30, true);
        assert_eq!(space.free_and_dirty(), (30, 0));
        assert_eq!(space.available_to(Privilege::User), 15);
    }
}
