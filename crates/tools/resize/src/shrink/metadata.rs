//! Bitmaps and inode tables of groups that stay move to before the new end.
//!
//! They are after it where the last group loses blocks and has its bitmaps further behind (`mke2fs -E
//! stride`), or where a flex group has the tables of groups before it.
//!
//! Owns: where they go. Does **not** own: bitmaps' contents, the order of writes (see
//! [`switch`](crate::switch)).
//!
//! Invariants
//! 1. Without `flex_bg`, bitmaps and table of a group stay in their group.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_base::Group;
use extant_ondisk::Features;
use extant_ondisk::group_desc::INODE_UNINIT;

use super::Mover;
use crate::fault::ResizeFault;
use crate::plan;

impl Mover<'_> {
    /// Moves all of them, one group with each switch.
    pub(super) fn metadata(&mut self) -> Result<(), ResizeFault> {
        let before = self.switches;
        for group in 0..self.groups {
            let mut desc = self.fs.desc(group)?;
            let old = self.fs.metadata_of(&desc);
            if old.iter().all(|run| run.end <= self.limit) {
                continue;
            }
            // Read before the change: where the group has no bitmap yet, it follows from the places.
            self.bitmap(group)?;
            self.dirty.insert(group);
            let [block_bitmap, inode_bitmap, table] = self.places_for(group, &old)?;
            if let Some(place) = block_bitmap {
                desc.block_bitmap = place;
            }
            if let Some(place) = inode_bitmap {
                desc.inode_bitmap = place;
                if !desc.has_flag(INODE_UNINIT) {
                    let bytes = self.fs.block(old[1].start)?;
                    self.pending.insert(place, bytes);
                }
            }
            if let Some(place) = table {
                desc.inode_table = place;
                let len = old[2].end - old[2].start;
                self.copy(old[2].start, place, len, None)?;
                self.moved += len;
            }
            self.fs.put_desc(&mut self.table, &self.fs.geometry, group, &desc);
            self.free_places(&old)?;
            self.commit()?;
            self.fs.metadata_has_moved();
        }
        // Their old places become free. Backups of the descriptors must not lead there.
        if self.switches > before {
            self.fs.write_backups()?;
        }
        Ok(())
    }

    /// Frees the old places of those runs of a group's metadata that have moved. With bigalloc, other
    /// metadata may have blocks in the same clusters: these stay in use.
    fn free_places(&mut self, old: &[Range<u64>; 3]) -> Result<(), ResizeFault> {
        let limit = self.limit;
        let moved = old.iter().filter(|run| run.end > limit);
        if self.ratio() == 1 {
            return moved.cloned().try_for_each(|run| self.free(run));
        }
        let mut clusters: BTreeSet<u64> =
            moved.flat_map(|run| self.whole_clusters(run).step_by(self.ratio() as usize)).collect();
        for group in 0..self.fs.geometry.groups {
            let desc = self.fs.desc_in(&self.table, &self.fs.geometry, group)?;
            let mut runs = self.fs.metadata_of(&desc).to_vec();
            runs.push(plan::head(&self.fs.geometry, Group(group)));
            for run in runs.iter().filter(|run| !run.is_empty()) {
                let run = self.whole_clusters(run);
                let still: Vec<u64> = clusters.range(run).copied().collect();
                still.iter().for_each(|cluster| {
                    clusters.remove(cluster);
                });
            }
        }
        clusters.into_iter().try_for_each(|cluster| self.free(cluster..cluster + 1))
    }

    /// Allocates places for those runs of a group's metadata that must move: for all of them, or for none.
    fn places_for(&mut self, group: u32, old: &[Range<u64>; 3]) -> Result<[Option<u64>; 3], ResizeFault> {
        let (mut places, limit) = ([None; 3], self.limit);
        for (number, run) in old.iter().enumerate().filter(|(_, run)| run.end > limit) {
            match self.place_for(group, run.end - run.start) {
                Ok(place) => places[number] = Some(place),
                Err(fault) => {
                    for (place, run) in places.into_iter().zip(old) {
                        if let Some(place) = place {
                            self.clear(place..place + (run.end - run.start))?;
                        }
                    }
                    return Err(fault);
                }
            }
        }
        Ok(places)
    }

    /// Allocates `len` blocks in a row for the metadata of a group.
    fn place_for(&mut self, group: u32, len: u64) -> Result<u64, ResizeFault> {
        let log2 = self.fs.geometry.cluster_log;
        let clusters = len.div_ceil(self.ratio());
        let is_free_to_go = self.fs.sb.features.has_incompat(Features::FLEX_BG);
        let others = if is_free_to_go { 0..self.groups } else { 0..0 };
        for place in std::iter::once(group).chain(others) {
            let start = self.fs.geometry.group_start(Group(place)).0;
            let cut =
                self.limit.saturating_sub(start).min(u64::from(self.fs.geometry.blocks_per_group)) >> log2;
            let cut = cut as u32;
            let bitmap = self.bitmap(place)?;
            let within = |run: Range<u32>| run.start..run.end.min(cut);
            let mut runs = bitmap.free_runs(0).map(within);
            if let Some(run) = runs.find(|run| u64::from(run.end.saturating_sub(run.start)) >= clusters) {
                drop(runs);
                bitmap.set(run.start..run.start + clusters as u32);
                self.dirty.insert(place);
                return Ok(start + (u64::from(run.start) << log2));
            }
        }
        Err(ResizeFault::NoRun { blocks: len, group })
    }
}
