//! A set of taken runs of blocks. It represents the layout of a whole file system without a bitmap in memory.
//!
//! A 16 TiB image has four billion blocks, but only a few thousand runs of metadata; this set stores the
//! runs.
//!
//! Invariant: runs are sorted, and neither overlap nor touch (touching runs are merged).

use std::collections::BTreeMap;

/// A run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRun {
    /// First block.
    pub start: u64,
    /// Length in blocks.
    pub len: u64,
}

impl BlockRun {
    /// The block after the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The taken blocks of a device.
#[derive(Debug, Clone, Default)]
pub struct Space {
    /// Start and end of each taken run.
    taken: BTreeMap<u64, u64>,
    /// Allocation unit in blocks, a power of two: allocations start at multiples of it.
    unit: u64,
}

impl Space {
    /// An empty set. Allocations are in units of `unit` blocks (the cluster ratio).
    #[must_use]
    pub fn new(unit: u64) -> Self {
        Self { taken: BTreeMap::new(), unit: unit.max(1) }
    }

    /// The same set in units of `unit` blocks. A unit with any taken block is completely taken.
    #[must_use]
    pub fn in_units(&self, unit: u64) -> Self {
        let mut coarse = Self::new(unit);
        for (&start, &end) in &self.taken {
            let (start, end) = coarse.widen(start, end);
            coarse.take(start, end - start);
        }
        coarse
    }

    /// Takes a run. Parts of it may already be taken.
    pub fn take(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + len);
        // Merge with the run before, if it touches, and with all runs that begin inside or directly after
        // this run.
        if let Some((&before, &before_end)) = self.taken.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.taken.range(start..=end).next() {
            end = end.max(next_end);
            self.taken.remove(&next);
        }
        self.taken.insert(start, end);
    }

    /// Whether all units that overlap `start..start+len` are free.
    #[must_use]
    pub fn is_free(&self, start: u64, len: u64) -> bool {
        let (start, end) = self.widen(start, start + len);
        match self.taken.range(..end).next_back() {
            Some((_, &taken_end)) => taken_end <= start,
            None => true,
        }
    }

    /// The first `len` contiguous free blocks within `from..to`, aligned to the unit.
    #[must_use]
    pub fn find(&self, from: u64, to: u64, len: u64) -> Option<u64> {
        let mut at = self.round_up(from);
        loop {
            let gap = self.gap_at(at, to)?;
            if gap.len >= len {
                return Some(gap.start);
            }
            at = self.round_up(gap.end() + 1);
        }
    }

    /// The first free gap at or after `from`, cut off at `to`. Its ends are aligned to the unit, except at
    /// `to`.
    #[must_use]
    pub fn gap_at(&self, from: u64, to: u64) -> Option<BlockRun> {
        let mut start = self.round_up(from);
        loop {
            if start >= to {
                return None;
            }
            if let Some((_, &end)) = self.taken.range(..=start).next_back()
                && end > start
            {
                start = self.round_up(end);
                continue;
            }
            let end = self.taken.range(start..).next().map_or(to, |(&next, _)| next.min(to));
            let end = if end == to { to } else { end & !(self.unit - 1) };
            if end > start {
                return Some(BlockRun { start, len: end - start });
            }
            start = self.round_up(end + 1);
        }
    }

    /// Takes `len` blocks from the free gaps at or after `from`, in order. Returns the runs, or the number of
    /// missing blocks.
    pub fn allocate(&mut self, from: u64, to: u64, len: u64) -> Result<Vec<BlockRun>, u64> {
        let mut runs = Vec::new();
        let (mut at, mut left) = (from, len);
        while left > 0 {
            let Some(gap) = self.gap_at(at, to) else { return Err(left) };
            let run = BlockRun { start: gap.start, len: gap.len.min(left) };
            runs.push(run);
            left -= run.len;
            at = gap.end();
        }
        for run in &runs {
            self.take(run.start, run.len);
        }
        Ok(runs)
    }

    /// Taken runs that overlap `from..to`, widened to whole units and cut to that range.
    pub fn taken_within(&self, from: u64, to: u64) -> impl Iterator<Item = BlockRun> {
        let first = self.taken.range(..=from).next_back().map_or(from, |(&start, _)| start);
        self.taken.range(first..to).filter_map(move |(&start, &end)| {
            let (start, end) = self.widen(start, end);
            let (start, end) = (start.max(from), end.min(to));
            (end > start).then(|| BlockRun { start, len: end - start })
        })
    }

    fn widen(&self, start: u64, end: u64) -> (u64, u64) {
        (start & !(self.unit - 1), self.round_up(end))
    }

    fn round_up(&self, block: u64) -> u64 {
        (block + self.unit - 1) & !(self.unit - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_runs_merge() {
        let mut space = Space::new(1);
        space.take(10, 5);
        space.take(20, 5);
        space.take(15, 5);
        assert_eq!(space.taken_within(0, 100).collect::<Vec<_>>(), [BlockRun { start: 10, len: 15 }]);
        space.take(5, 100);
        assert_eq!(space.taken.len(), 1);
        assert!(space.is_free(105, 1) && !space.is_free(104, 1) && space.is_free(0, 5));
    }

    #[test]
    fn allocation_fills_gaps_in_order_and_returns_what_is_missing() {
        let mut space = Space::new(1);
        space.take(0, 10);
        space.take(15, 5);
        assert_eq!(space.find(0, 100, 6), Some(20));
        assert_eq!(
            space.allocate(0, 30, 8).unwrap(),
            [BlockRun { start: 10, len: 5 }, BlockRun { start: 20, len: 3 }]
        );
        assert_eq!(space.allocate(0, 30, 8), Err(1));
    }

    #[test]
    fn units_are_never_shared() {
        let mut space = Space::new(16);
        space.take(0, 17);
        assert_eq!(space.find(0, 160, 1), Some(32));
        assert!(!space.is_free(31, 1));
        assert_eq!(space.taken_within(0, 160).next(), Some(BlockRun { start: 0, len: 32 }));
    }
}
