//! Counts of changes of a directory, and of what they read.

use std::fmt;

/// Statistics of changes since the directory's cache was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Names inserted.
    pub inserts: u64,
    /// Names removed.
    pub removes: u64,
    /// Leaves and linear blocks read.
    pub leaf_reads: u64,
    /// Index blocks read.
    pub index_reads: u64,
    /// Leaves split.
    pub splits: u64,
    /// Leaves packed because their room was scattered.
    pub packed: u64,
    /// Nodes of the index split.
    pub index_splits: u64,
    /// Levels added to the index.
    pub levels_added: u64,
    /// Levels removed from the index.
    pub levels_removed: u64,
    /// Times that the directory got an index.
    pub indexed: u64,
    /// Times that the index was removed, with the last name.
    pub unindexed: u64,
    /// Blocks freed.
    pub blocks_freed: u64,
    /// Leaves that inserts touched in the current window of 10,000 inserts.
    pub leaves_in_window: u64,
    /// Leaves that inserts touched in the last complete window.
    pub leaves_in_last_window: u64,
    pub(super) window: u32,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("inserts", self.inserts),
            ("removes", self.removes),
            ("leaf reads", self.leaf_reads),
            ("index reads", self.index_reads),
            ("leaf splits", self.splits),
            ("leaves packed", self.packed),
            ("index splits", self.index_splits),
            ("levels added", self.levels_added),
            ("levels removed", self.levels_removed),
            ("blocks freed", self.blocks_freed),
            ("leaves touched by 10,000 inserts", self.leaves_in_last_window.max(self.leaves_in_window)),
        ];
        writeln!(f, "directory changes")?;
        rows.into_iter().try_for_each(|(what, count)| writeln!(f, "  {what:<33} {count:>12}"))
    }
}
