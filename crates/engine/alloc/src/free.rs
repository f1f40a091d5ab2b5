//! Frees blocks, and makes them available at the commit (INV-EN5).

use std::ops::Range;

use extant_base::{CorruptAt, Malformed, Pblk, Tid};
use extant_buffer::{Edit, ReadFault};
use std::sync::atomic::Ordering;

use crate::group::{Cell, DIRTY_BLOCKS, GroupGuard, Pending, State};
use crate::groups::Groups;
use crate::{Alloc, BLOCK_BITMAP, bits, len};

impl Alloc {
    /// Frees blocks: whole clusters that are in use. They may be reused once [`committed`](Self::committed)
    /// reports the transaction. Metadata is revoked, block by block.
    ///
    /// Changes the bitmap of each group touched; a run that was allocated in one piece is in one group.
    ///
    /// # Errors
    /// The bitmap cannot be read; or the range leaves the file system, cuts a cluster, is not in use, or is
    /// the file system's own metadata. Nothing was changed then. A group in which blocks not in use were
    /// freed is set aside.
    pub fn free(
        &self,
        edit: &dyn Edit,
        start: Pblk,
        blocks: u64,
        is_metadata: bool,
    ) -> Result<(), ReadFault> {
        if blocks == 0 {
            return Ok(());
        }
        let ratio = self.groups.geometry.cluster_ratio();
        let rule = |holds, rule| {
            Malformed::unless(holds, "freed blocks", rule, blocks)
                .map_err(|fact| ReadFault::corrupt(CorruptAt::block(start), fact))
        };
        let end = start.checked_add(blocks).filter(|end| end.0 <= self.groups.geometry.blocks);
        let (Some(end), Some((first_group, first_bit))) = (end, self.groups.place_of(start)) else {
            return rule(false, "they must lie inside the file system");
        };
        let base = u64::from(self.groups.geometry.first_data_block);
        let is_cut = |block: u64| !(block - base).is_multiple_of(ratio);
        rule(
            !is_cut(start.0) && (!is_cut(end.0) || end.0 == self.groups.geometry.blocks),
            "they must be whole clusters",
        )?;
        let mut clusters = blocks.div_ceil(ratio);
        let per_group = self.groups.geometry.clusters_per_group();
        let (mut group, mut bit) = (first_group, first_bit);
        if u64::from(first_bit) + clusters > per_group.into() {
            self.groups.check_used(group, bit, clusters)?;
        }
        while clusters > 0 {
            let here = clusters.min(u64::from(per_group - bit)) as u32;
            self.free_in(edit, group, bit..bit + here)?;
            (clusters, group, bit) = (clusters - u64::from(here), group + 1, 0);
        }
        if is_metadata {
            (start.0..end.0).for_each(|block| edit.revoke(Pblk(block)));
        }
        Ok(())
    }

    /// Reads the bitmaps that freeing these blocks changes, so that [`free`](Self::free) is unlikely to fail
    /// to read them.
    ///
    /// # Errors
    /// A bitmap cannot be read. Damage is left to [`free`](Self::free) to report.
    pub fn read_bitmaps(&self, start: Pblk, blocks: u64) -> Result<(), ReadFault> {
        let last = Pblk(start.0.saturating_add(blocks.saturating_sub(1)));
        let (Some((first, _)), Some((last, _))) = (self.groups.place_of(start), self.groups.place_of(last))
        else {
            return Ok(());
        };
        for group in first..=last {
            let state = self.groups.lock_blocks(group, self.groups.cell(group)?, true)?;
            let Some(bitmap) = state.map(|state| Pblk(state.desc.block_bitmap)) else { continue };
            match self.groups.buffers.get(bitmap, BLOCK_BITMAP.owner, |_| Ok(())) {
                Err(ReadFault::Device(fault)) => return Err(ReadFault::Device(fault)),
                Ok(_) | Err(ReadFault::Corrupt(_)) => {}
            }
        }
        Ok(())
    }

    fn free_in(&self, edit: &dyn Edit, group: u32, range: Range<u32>) -> Result<(), ReadFault> {
        let cell = self.groups.cell(group)?;
        let mut state = self.groups.lock_to_free(group, cell)?;
        if self.groups.is_block_uninit(&state.desc) || state.overlaps_system(&range) || !state.is_busy(&range)
        {
            return Err(self.groups.not_used(group, cell, &mut state, &range));
        }
        let mut used = false;
        edit.change(Pblk(state.desc.block_bitmap), BLOCK_BITMAP, &mut |bytes| {
            used = bits::bytes_all_set(bytes, range.clone());
            if used {
                bits::fill_bytes(bytes, range.clone(), false);
            }
        })?;
        if !used {
            return Err(self.groups.not_used(group, cell, &mut state, &range));
        }
        let count = len(&range);
        state.desc.free_clusters += count;
        self.groups.set_dirty(group, &mut state, DIRTY_BLOCKS);
        self.groups.space.add_free(count.into());
        self.hold_back(edit.transaction(), group, &mut state, range);
        Ok(())
    }

    /// Keeps freed clusters busy until the commit.
    fn hold_back(&self, transaction: Tid, group: u32, state: &mut State, range: Range<u32>) {
        if state.pending.last().is_none_or(|last| last.transaction != transaction) {
            self.pending.lock().entry(transaction).or_default().push(group);
        }
        self.pending_clusters.fetch_add(len(&range).into(), Ordering::Relaxed);
        if let Some(last) = state.pending.last_mut().filter(|last| last.transaction == transaction) {
            if last.start + last.len == range.start {
                last.len += len(&range);
                return;
            }
            if range.end == last.start {
                (last.start, last.len) = (range.start, last.len + len(&range));
                return;
            }
        }
        state.pending.push(Pending { transaction, start: range.start, len: len(&range) });
    }

    /// Blocks that were freed by transactions that are not yet committed.
    #[must_use]
    pub fn pending_blocks(&self) -> u64 {
        self.pending_clusters.load(Ordering::Relaxed) << self.groups.geometry.cluster_log
    }

    /// What transactions up to this one freed, before they are [`committed`](Self::committed): first blocks
    /// and lengths, in order, with adjoining ranges of a group merged. These blocks are not reused before
    /// that call. So a caller can discard them on the device once the transaction is durable, and then report
    /// the commit.
    #[must_use]
    pub fn freed_until(&self, transaction: Tid) -> Vec<(Pblk, u32)> {
        let mut groups: Vec<u32> =
            self.pending.lock().range(..=transaction).flat_map(|(_, groups)| groups).copied().collect();
        groups.sort_unstable();
        groups.dedup();
        let mut freed = Vec::new();
        for group in groups {
            let Some(cell) = self.groups.seen_cell(group) else { continue };
            let state = cell.state.lock();
            let mine = state.pending.iter().filter(|one| one.transaction <= transaction);
            let mut ranges: Vec<Range<u32>> = mine.map(|one| one.start..one.start + one.len).collect();
            drop(state);
            ranges.sort_unstable_by_key(|range| range.start);
            ranges.dedup_by(|next, before| {
                let adjoins = next.start == before.end;
                before.end = if adjoins { next.end } else { before.end };
                adjoins
            });
            freed.extend(ranges.into_iter().map(|range| self.groups.blocks_of(&(group, range))));
        }
        freed
    }

    /// Reports that transactions up to this one are durable: what they freed may be reused. Returns the
    /// number of blocks.
    ///
    /// Without a journal, the caller reports it once the freeing is written to the device.
    pub fn committed(&self, transaction: Tid) -> u64 {
        let done = {
            let mut pending = self.pending.lock();
            let later = match transaction.0.checked_add(1) {
                Some(next) => pending.split_off(&Tid(next)),
                None => Default::default(),
            };
            std::mem::replace(&mut *pending, later)
        };
        let mut groups: Vec<u32> = done.into_values().flatten().collect();
        groups.sort_unstable();
        groups.dedup();
        let mut freed = 0;
        for group in groups {
            let Some(cell) = self.groups.seen_cell(group) else { continue };
            let mut state = cell.state.lock();
            let mut all = std::mem::take(&mut state.pending);
            all.retain(|one| {
                let is_durable = one.transaction <= transaction;
                if is_durable {
                    state.release(one.start..one.start + one.len);
                    freed += u64::from(one.len);
                }
                !is_durable
            });
            state.pending = all;
            state.reindex(group, &self.groups.index);
            cell.publish(&state);
        }
        self.pending_clusters.fetch_sub(freed, Ordering::Relaxed);
        freed << self.groups.geometry.cluster_log
    }
}

impl Groups {
    /// Verifies that a range over several groups is in use, so that a refusal in the last group leaves the
    /// first unchanged.
    fn check_used(&self, mut group: u32, mut bit: u32, mut clusters: u64) -> Result<(), ReadFault> {
        while clusters > 0 {
            let here = clusters.min(u64::from(self.geometry.clusters_per_group() - bit)) as u32;
            let cell = self.cell(group)?;
            let mut state = self.lock_to_free(group, cell)?;
            let block = Pblk(state.desc.block_bitmap);
            let range = bit..bit + here;
            let used = !self.is_block_uninit(&state.desc) && {
                let buffer = self.buffers.get(block, BLOCK_BITMAP.owner, |_| Ok(()))?;
                bits::bytes_all_set(&buffer, range.clone()) && state.is_busy(&range)
            };
            if !used || state.overlaps_system(&range) {
                return Err(self.not_used(group, cell, &mut state, &range));
            }
            (clusters, group, bit) = (clusters - u64::from(here), group + 1, 0);
        }
        Ok(())
    }

    fn lock_to_free<'a>(&self, group: u32, cell: &'a Cell) -> Result<GroupGuard<'a>, ReadFault> {
        match self.lock_blocks(group, cell, true)? {
            Some(state) => Ok(state),
            None => {
                let fact = cell.state.lock().bad.clone();
                let fact = fact.unwrap_or_else(|| Malformed::new("group", "must be usable", group));
                Err(ReadFault::corrupt(CorruptAt::default(), fact))
            }
        }
    }

    fn not_used(&self, group: u32, cell: &Cell, state: &mut State, range: &Range<u32>) -> ReadFault {
        let fact = Malformed::new(
            "block bitmap",
            "freed clusters must be in use (first one in the group)",
            range.start,
        );
        self.set_bad(group, cell, state, &fact);
        ReadFault::corrupt(CorruptAt::block(self.blocks_of(&(group, range.clone())).0), fact)
    }
}
