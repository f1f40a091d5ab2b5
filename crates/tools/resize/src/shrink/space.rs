//! Block bitmaps during a shrink: which blocks are free, and which of them get what moves.
//!
//! Owns: the bitmaps with pending changes, the blocks that become free with the next switch, the choice of
//! free blocks. Does **not** own: what blocks are for, descriptors, when changes take effect (see
//! [`pending`](super::pending)).
//!
//! Invariants
//! 1. INV-RZ3: blocks before the limit that become free are not allocated before [`Space::settle`].
//! 2. An allocation is whole clusters, all before the limit.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use extant_base::{Group, Pblk};
use extant_ondisk::Geometry;
use extant_ondisk::bitmap::GroupBitmap;

use crate::fault::ResizeFault;
use crate::fs::Fs;

/// The free blocks of a file system whose end will move.
pub(super) struct Space {
    /// The new number of blocks.
    pub(super) limit: u64,
    /// The new number of groups.
    pub(super) groups: u32,
    /// Blocks of a cluster.
    pub(super) ratio: u64,
    bitmaps: BTreeMap<u32, GroupBitmap>,
    /// Groups whose bitmap changes with the next switch.
    dirty: BTreeSet<u32>,
    /// Blocks, in whole clusters, before the limit that become free with the next switch.
    freed: Vec<Range<u64>>,
    /// For each group, no free run is longer.
    longest: Vec<u32>,
}

impl Space {
    /// The end will be that of `geometry`.
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            limit: geometry.blocks,
            groups: geometry.groups,
            ratio: geometry.cluster_ratio(),
            bitmaps: BTreeMap::new(),
            dirty: BTreeSet::new(),
            freed: Vec::new(),
            longest: vec![u32::MAX; geometry.groups as usize],
        }
    }

    /// The clusters that have blocks of a run, as a run of blocks.
    pub(super) fn whole_clusters(&self, run: &Range<u64>) -> Range<u64> {
        match self.ratio {
            1 => run.clone(),
            // Clusters begin at block 0: `size::cannot_shrink`.
            ratio => run.start / ratio * ratio..run.end.div_ceil(ratio) * ratio,
        }
    }

    fn bitmap(&mut self, fs: &Fs, group: u32) -> Result<&mut GroupBitmap, ResizeFault> {
        match self.bitmaps.entry(group) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(missing) => Ok(missing.insert(fs.block_bitmap(group, &fs.desc(group)?)?)),
        }
    }

    /// The next switch writes a group's bitmap, as it follows now from the descriptors on the device.
    pub(super) fn touch(&mut self, fs: &Fs, group: u32) -> Result<(), ResizeFault> {
        self.bitmap(fs, group)?;
        self.dirty.insert(group);
        Ok(())
    }

    /// The end of a group's clusters that are before the limit.
    fn cut(&self, fs: &Fs, group: u32) -> u32 {
        let start = fs.geometry.group_start(Group(group)).0;
        let blocks = self.limit.saturating_sub(start).min(u64::from(fs.geometry.blocks_per_group));
        (blocks >> fs.geometry.cluster_log) as u32
    }

    /// Marks clusters of a group as used. Returns their blocks.
    fn take(&mut self, fs: &Fs, group: u32, run: Range<u32>) -> Result<Range<u64>, ResizeFault> {
        self.bitmap(fs, group)?.set(run.clone());
        self.dirty.insert(group);
        let (start, log2) = (fs.geometry.group_start(Group(group)).0, fs.geometry.cluster_log);
        Ok(start + (u64::from(run.start) << log2)..start + (u64::from(run.end) << log2))
    }

    /// Allocates up to `len` blocks in a row, in the group `goal` or after it: whole clusters, of which the
    /// last may have blocks after `len`.
    pub(super) fn allocate(&mut self, fs: &Fs, len: u64, goal: u32) -> Result<Range<u64>, ResizeFault> {
        let len = len.div_ceil(self.ratio);
        let mut best: Option<(u32, Range<u32>)> = None;
        for group in (goal..self.groups).chain(0..goal.min(self.groups)) {
            let known = self.longest[group as usize];
            let best_len = best.as_ref().map_or(0, |(_, run)| run.end - run.start);
            if known <= best_len {
                continue;
            }
            let cut = self.cut(fs, group);
            let mut longest = 0;
            let mut found = None;
            for run in self.bitmap(fs, group)?.free_runs(0) {
                let run = run.start..run.end.min(cut);
                let run_len = run.end.saturating_sub(run.start);
                if u64::from(run_len) >= len {
                    found = Some(run.start..run.start + len as u32);
                    break;
                }
                if run_len > longest {
                    longest = run_len;
                    if run_len > best.as_ref().map_or(0, |(_, run)| run.end - run.start) {
                        best = Some((group, run));
                    }
                }
            }
            if let Some(run) = found {
                best = Some((group, run));
                break;
            }
            self.longest[group as usize] = longest;
        }
        let Some((group, run)) = best.filter(|(_, run)| !run.is_empty()) else {
            return Err(ResizeFault::NoSpace);
        };
        self.take(fs, group, run)
    }

    /// Allocates `len` blocks in a row in the first of some groups that has them. Returns the first block.
    pub(super) fn allocate_run(
        &mut self,
        fs: &Fs,
        len: u64,
        groups: impl Iterator<Item = u32>,
    ) -> Result<Option<u64>, ResizeFault> {
        let clusters = len.div_ceil(self.ratio);
        for group in groups {
            let cut = self.cut(fs, group);
            let mut runs = self.bitmap(fs, group)?.free_runs(0).map(|run| run.start..run.end.min(cut));
            let found = runs.find(|run| u64::from(run.end.saturating_sub(run.start)) >= clusters);
            drop(runs);
            if let Some(run) = found {
                let taken = self.take(fs, group, run.start..run.start + clusters as u32)?;
                return Ok(Some(taken.start));
            }
        }
        Ok(None)
    }

    /// Allocates up to `wanted` blocks, in whole clusters, from the block `at` on. Returns how many.
    pub(super) fn allocate_at(&mut self, fs: &Fs, at: u64, wanted: u64) -> Result<u64, ResizeFault> {
        let mut done = 0;
        while done < wanted && at + done < self.limit {
            let Some(group) = fs.geometry.group_of(Pblk(at + done)) else { break };
            let bit = ((at + done - fs.geometry.group_start(group).0) / self.ratio) as u32;
            if self.bitmap(fs, group.0)?.test(bit) {
                break;
            }
            self.take(fs, group.0, bit..bit + 1)?;
            done += self.ratio;
        }
        Ok(done)
    }

    /// Frees the clusters that have blocks of a run. They are not used again before the next switch.
    pub(super) fn free(&mut self, fs: &Fs, run: Range<u64>) -> Result<(), ResizeFault> {
        let run = self.whole_clusters(&run);
        let before = run.start..run.end.min(self.limit);
        if !before.is_empty() {
            self.freed.push(before);
        }
        let after = run.start.max(self.limit)..run.end;
        if after.is_empty() { Ok(()) } else { self.clear(fs, after) }
    }

    /// Marks the clusters that have blocks of a run as free: blocks after the limit, or blocks that were
    /// allocated and are not needed.
    pub(super) fn clear(&mut self, fs: &Fs, run: Range<u64>) -> Result<(), ResizeFault> {
        let run = self.whole_clusters(&run);
        let log2 = fs.geometry.cluster_log;
        // The last cluster may extend beyond the end of the file system, but does not begin there.
        let (mut at, blocks) = (run.start, fs.geometry.blocks);
        let run_end = if run.start < blocks { run.end.min(blocks) } else { run.end };
        while at < run_end {
            let outside = || ResizeFault::Damaged(format!("block {at} is outside of the file system"));
            let group = fs.geometry.group_of(Pblk(at)).ok_or_else(outside)?;
            let start = fs.geometry.group_start(group).0;
            let end = run_end.min(start + u64::from(fs.geometry.group_blocks(group)));
            let bits = ((at - start) >> log2) as u32..(end - start).div_ceil(1 << log2) as u32;
            let bitmap = self.bitmap(fs, group.0)?;
            if !bitmap.all_set(bits.clone()) {
                let why = format!("one of the blocks {at} to {} is in two files, or marked as free", end - 1);
                return Err(ResizeFault::Damaged(why));
            }
            bitmap.clear(bits);
            self.dirty.insert(group.0);
            if let Some(longest) = self.longest.get_mut(group.0 as usize) {
                *longest = u32::MAX;
            }
            at = end;
        }
        Ok(())
    }

    /// What becomes free with a switch is free in it.
    pub(super) fn settle(&mut self, fs: &Fs) -> Result<(), ResizeFault> {
        std::mem::take(&mut self.freed).into_iter().try_for_each(|run| self.clear(fs, run))
    }

    /// The number of bitmaps that the next switch writes.
    pub(super) fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    /// The bitmaps that a switch writes, with their groups; the next switch begins without any.
    pub(super) fn take_dirty(&mut self) -> impl Iterator<Item = (u32, &GroupBitmap)> {
        let (dirty, bitmaps) = (std::mem::take(&mut self.dirty), &self.bitmaps);
        dirty.into_iter().filter_map(|group| Some((group, bitmaps.get(&group)?)))
    }
}
