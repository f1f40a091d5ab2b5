//! Statistics of the allocator, and of the layout of free space.
//!
//! The counters have the names of the kernel's `mb_stats` and `mb_groups` where those have them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Alloc, Privilege};

/// The criteria to choose a group, from the strictest to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criterion {
    /// A run that holds an aligned power of two.
    PowerOfTwo,
    /// Groups with an average run that is long enough.
    GoalFast,
    /// As [`GoalFast`](Self::GoalFast), for shorter runs; data only.
    BestAvailable,
    /// Groups with a longest run that is long enough; waits for locks.
    GoalSlow,
    /// The longest run there is.
    Any,
}

impl Criterion {
    /// All of them, in order.
    pub const ALL: [Criterion; 5] =
        [Self::PowerOfTwo, Self::GoalFast, Self::BestAvailable, Self::GoalSlow, Self::Any];

    fn name(self) -> &'static str {
        match self {
            Self::PowerOfTwo => "cr_p2_aligned",
            Self::GoalFast => "cr_goal_fast",
            Self::BestAvailable => "cr_best_avail",
            Self::GoalSlow => "cr_goal_slow",
            Self::Any => "cr_any_free",
        }
    }
}

#[derive(Debug, Default)]
struct CriterionTally {
    hits: AtomicU64,
    groups_considered: AtomicU64,
    extents_scanned: AtomicU64,
    useless_loops: AtomicU64,
}

/// Counters of the slow path; those of the fast path are in the groups, under their locks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    criteria: [CriterionTally; 5],
    pub(crate) preallocated: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) recounts: AtomicU64,
}

impl Tally {
    pub(crate) fn considered(&self, criterion: Criterion, is_hit: bool, extents: u64) {
        let tally = &self.criteria[criterion as usize];
        tally.groups_considered.fetch_add(1, Ordering::Relaxed);
        tally.hits.fetch_add(is_hit.into(), Ordering::Relaxed);
        tally.extents_scanned.fetch_add(extents, Ordering::Relaxed);
    }

    pub(crate) fn useless(&self, criterion: Criterion) {
        self.criteria[criterion as usize].useless_loops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Statistics of one criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CriterionStats {
    /// Successful allocations.
    pub hits: u64,
    /// Groups searched.
    pub groups_considered: u64,
    /// Free runs visited.
    pub extents_scanned: u64,
    /// Searches of all groups of an order without a result.
    pub useless_loops: u64,
}

/// Statistics since the allocator was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Successful allocations of blocks.
    pub success: u64,
    /// Clusters allocated.
    pub clusters: u64,
    /// Allocations right at the goal, or from a window.
    pub goal_hits: u64,
    /// Inodes allocated.
    pub inodes: u64,
    /// By criterion, in the order of [`Criterion::ALL`].
    pub criteria: [CriterionStats; 5],
    /// Clusters that went into windows.
    pub preallocated: u64,
    /// Clusters of windows that were returned unused.
    pub discarded: u64,
    /// Groups of which the descriptor was read.
    pub groups_loaded: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mballoc:")?;
        writeln!(f, "  success: {}", self.success)?;
        writeln!(f, "  clusters: {}", self.clusters)?;
        writeln!(
            f,
            "  groups_scanned: {}",
            self.criteria.iter().map(|one| one.groups_considered).sum::<u64>()
        )?;
        for (criterion, stats) in Criterion::ALL.into_iter().zip(&self.criteria) {
            writeln!(f, "  {}:", criterion.name())?;
            writeln!(f, "    hits: {}", stats.hits)?;
            writeln!(f, "    groups_considered: {}", stats.groups_considered)?;
            writeln!(f, "    extents_scanned: {}", stats.extents_scanned)?;
            writeln!(f, "    useless_loops: {}", stats.useless_loops)?;
        }
        writeln!(f, "  goal_hits: {}", self.goal_hits)?;
        writeln!(f, "  preallocated: {}", self.preallocated)?;
        writeln!(f, "  discarded: {}", self.discarded)?;
        writeln!(f, "  inodes: {}", self.inodes)
    }
}

/// Free space, as statfs(2) and the superblock need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Blocks free on disk, including promised ones: the superblock's count.
    pub blocks_free: u64,
    /// Blocks promised to delayed writes; statfs subtracts them.
    pub blocks_dirty: u64,
    /// Blocks available to ordinary users.
    pub blocks_available: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Alloc {
    /// The free space of the file system.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let log = self.groups.geometry.cluster_log;
        // Read together: the difference does not change while promises are used.
        let (free, dirty) = self.groups.space.free_and_dirty();
        Usage {
            blocks_free: free << log,
            blocks_dirty: dirty << log,
            blocks_available: self.groups.space.available_to(Privilege::User) << log,
            inodes_free: self.groups.space.free_inodes(),
        }
    }

    /// Blocks that this thread may take, by its [`acting`](Self::acting) privilege.
    #[must_use]
    pub fn available_blocks(&self) -> u64 {
        self.groups.space.available_to(self.acting()) << self.groups.geometry.cluster_log
    }

    /// The statistics. Visits every group that was read.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = Stats {
            preallocated: get(&self.tally.preallocated),
            discarded: get(&self.tally.discarded),
            ..Stats::default()
        };
        for (stats, tally) in stats.criteria.iter_mut().zip(&self.tally.criteria) {
            *stats = CriterionStats {
                hits: get(&tally.hits),
                groups_considered: get(&tally.groups_considered),
                extents_scanned: get(&tally.extents_scanned),
                useless_loops: get(&tally.useless_loops),
            };
        }
        for cell in self.groups.chunks.iter().filter_map(|chunk| chunk.get()).flatten() {
            let counts = cell.state.lock().counts;
            stats.success += counts.success;
            stats.clusters += counts.clusters;
            stats.goal_hits += counts.goal_hits;
            stats.inodes += counts.inodes;
            stats.groups_loaded += 1;
        }
        stats
    }
}
