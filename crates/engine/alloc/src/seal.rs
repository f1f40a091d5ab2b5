//! Writes inode bitmaps and descriptors to their blocks, once per commit, and counts what is free.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use extant_base::{Group, Pblk};
use extant_buffer::{Edit, ReadFault};

use crate::group::{DIRTY_BLOCKS, DIRTY_INODES, State};
use crate::groups::Groups;
use crate::{Alloc, BLOCK_BITMAP, DESCRIPTORS, INODE_BITMAP, bits};

impl Alloc {
    /// Writes the inode bitmaps and the descriptors of all groups that changed since the last call to their
    /// blocks, with the current checksums of the bitmaps. The committer calls it while no handle is open, so
    /// that there are no concurrent changes.
    ///
    /// # Errors
    /// A block of descriptors, or a bitmap, cannot be read. Groups that were not written stay dirty for the
    /// next call.
    pub fn seal(&self, edit: &dyn Edit) -> Result<(), ReadFault> {
        let per_block = self.groups.geometry.descs_per_block();
        let mut groups = self.groups.take_dirty().into_iter().peekable();
        let mut sealed: Vec<(u32, usize, extant_ondisk::group_desc::GroupDesc)> = Vec::new();
        while let Some(&first) = groups.peek() {
            let (block, _) = self.groups.geometry.descriptor_place(Group(first));
            sealed.clear();
            let mut result = self.groups.buffers.get(block, DESCRIPTORS.owner, |_| Ok(())).map(drop);
            let mut taken = Vec::new();
            while let Some(group) = groups.next_if(|group| group / per_block == first / per_block) {
                taken.push(group);
                if result.is_ok() {
                    let at = self.groups.geometry.descriptor_place(Group(group)).1;
                    result = self
                        .groups
                        .sealed_desc(edit, group)
                        .map(|desc| sealed.extend(desc.map(|desc| (group, at, desc))));
                }
            }
            if result.is_ok() {
                result = edit.change(block, DESCRIPTORS, &mut |bytes| {
                    for (group, at, desc) in &sealed {
                        let bytes = &mut bytes[*at..*at + self.groups.geometry.desc_size];
                        desc.encode(bytes);
                        self.groups.rule.seal(*group, bytes);
                    }
                });
            }
            if let Err(fault) = result {
                let mut dirty = self.groups.dirty.lock();
                dirty.extend(taken.into_iter().chain(groups));
                self.groups.dirty_groups.store(dirty.len() as u32, Ordering::Relaxed);
                self.groups.dirty_inodes.store(dirty.len() as u32, Ordering::Relaxed);
                return Err(fault);
            }
            for group in taken {
                if let Some(cell) = self.groups.seen_cell(group) {
                    cell.state.lock().dirty = 0;
                }
            }
        }
        Ok(())
    }

    /// The number of blocks that a [`seal`](Self::seal) would change now, at most.
    ///
    /// A handle adds one for each group that it may change: 1 for an allocation, or a freeing in one group; 2
    /// for an inode.
    #[must_use]
    pub fn seal_credits(&self) -> u32 {
        let descriptors = u64::from(self.groups.dirty_groups.load(Ordering::Relaxed))
            .min(self.groups.chunks.len() as u64) as u32;
        descriptors + self.groups.dirty_inodes.load(Ordering::Relaxed)
    }

    /// Counts free blocks and inodes from the descriptors: a superblock that was not written at unmount has
    /// old counts.
    ///
    /// # Errors
    /// A block of descriptors cannot be read.
    pub fn recount(&self) -> Result<(), ReadFault> {
        let (mut clusters, mut inodes) = (0u64, 0u64);
        let per_block = self.groups.geometry.descs_per_block();
        for chunk in 0..self.groups.chunks.len() as u32 {
            let first = chunk * per_block;
            if let Some(cells) = self.groups.chunks[chunk as usize].get() {
                for cell in cells {
                    let state = cell.state.lock();
                    clusters += state.bad.as_ref().map_or(u64::from(state.desc.free_clusters), |_| 0);
                    inodes += state.bad_inodes.as_ref().map_or(u64::from(state.desc.free_inodes), |_| 0);
                }
                continue;
            }
            let (block, _) = self.groups.geometry.descriptor_place(Group(first));
            if chunk % 64 == 0 && !self.groups.geometry.meta_bg() {
                self.groups.buffers.prefetch(block, (self.groups.chunks.len() as u32 - chunk).min(64));
            }
            let buffer = self.groups.buffers.get(block, DESCRIPTORS.owner, |_| Ok(()))?;
            let count = per_block.min(self.groups.geometry.groups - first) as usize;
            for (group, bytes) in
                (first..).zip(buffer.chunks_exact(self.groups.geometry.desc_size)).take(count)
            {
                if let Ok(desc) = self.groups.judge(group, bytes) {
                    clusters += u64::from(desc.free_clusters);
                    inodes += u64::from(desc.free_inodes);
                }
            }
        }
        self.groups.space.recount(clusters, inodes);
        self.tally.recounts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Groups {
    fn take_dirty(&self) -> BTreeSet<u32> {
        let mut dirty = self.dirty.lock();
        self.dirty_groups.store(0, Ordering::Relaxed);
        self.dirty_inodes.store(0, Ordering::Relaxed);
        std::mem::take(&mut *dirty)
    }

    /// Writes a group's inode bitmap if it is dirty. Returns the descriptor with its bitmaps' checksums.
    fn sealed_desc(
        &self,
        edit: &dyn Edit,
        group: u32,
    ) -> Result<Option<extant_ondisk::group_desc::GroupDesc>, ReadFault> {
        let Some(cell) = self.seen_cell(group) else { return Ok(None) };
        let mut state = cell.state.lock();
        if self.fs_seed.is_some() && state.dirty & DIRTY_BLOCKS != 0 {
            let bytes = self.buffers.get(Pblk(state.desc.block_bitmap), BLOCK_BITMAP.owner, |_| Ok(()))?;
            state.desc.block_bitmap_csum = self.bitmap_checksum(&bytes, true).unwrap_or_default();
        }
        let State { desc, inodes, dirty, .. } = &mut *state;
        if *dirty & DIRTY_INODES != 0
            && let Some(inodes) = inodes.as_deref()
        {
            let len = self.geometry.inodes_per_group.div_ceil(8) as usize;
            edit.change(Pblk(desc.inode_bitmap), INODE_BITMAP, &mut |bytes| {
                // Bits past the last inode keep their values.
                bits::to_bytes(inodes, &mut bytes[..len]);
                if let Some(sum) = self.bitmap_checksum(bytes, false) {
                    desc.inode_bitmap_csum = sum;
                }
            })?;
        }
        Ok(Some(state.desc))
    }
}
