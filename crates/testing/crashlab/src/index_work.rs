//! Counters of changes to directory indexes.

use std::fmt;
use std::ops::AddAssign;

use extant_base::Ino;
use extant_volume::Volume;

/// Counters of changes to directory indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexWork {
    /// Directories that got an index.
    pub indexed: u64,
    /// Leaves that were split.
    pub leaf_splits: u64,
    /// Nodes that were split.
    pub node_splits: u64,
    /// Levels that were added.
    pub levels_added: u64,
    /// Levels that were removed.
    pub levels_removed: u64,
    /// Directories that lost their index.
    pub unindexed: u64,
}

impl IndexWork {
    /// The counters of a directory since it was loaded into memory.
    pub(crate) fn of(volume: &Volume, dir: Ino) -> Self {
        let Some(stats) = volume.counters().dir_stats(dir) else { return Self::default() };
        Self {
            indexed: stats.indexed,
            leaf_splits: stats.splits,
            node_splits: stats.index_splits,
            levels_added: stats.levels_added,
            levels_removed: stats.levels_removed,
            unindexed: stats.unindexed,
        }
    }

    /// The changes since `before`. The counters of a directory that was evicted meanwhile start at zero.
    pub(crate) fn since(self, before: Self) -> Self {
        let less = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self {
            indexed: less(self.indexed, before.indexed),
            leaf_splits: less(self.leaf_splits, before.leaf_splits),
            node_splits: less(self.node_splits, before.node_splits),
            levels_added: less(self.levels_added, before.levels_added),
            levels_removed: less(self.levels_removed, before.levels_removed),
            unindexed: less(self.unindexed, before.unindexed),
        }
    }
}

impl AddAssign for IndexWork {
    fn add_assign(&mut self, more: Self) {
        self.indexed += more.indexed;
        self.leaf_splits += more.leaf_splits;
        self.node_splits += more.node_splits;
        self.levels_added += more.levels_added;
        self.levels_removed += more.levels_removed;
        self.unindexed += more.unindexed;
    }
}

impl fmt::Display for IndexWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} made, {} leaves and {} nodes split, {} levels added, {} removed, {} gone",
            self.indexed,
            self.leaf_splits,
            self.node_splits,
            self.levels_added,
            self.levels_removed,
            self.unindexed
        )
    }
}
