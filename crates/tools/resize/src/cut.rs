//! The last switch of a shrink: the end of the file system moves.
//!
//! Owns: what becomes of the metadata of groups that go, and the resize inode. Does **not** own: moving what
//! is in use (see [`shrink`](crate::shrink)).

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::le::{put_u32, u32_at};
use extant_base::{Group, Ino};
use extant_ondisk::bitmap::GroupBitmap;
use extant_ondisk::group_desc::BLOCK_UNINIT;
use extant_ondisk::superblock::Superblock;
use extant_ondisk::{Features, Geometry};

use crate::fault::ResizeFault;
use crate::fs::{Fs, bitmap_of, has_all, is_inside};
use crate::plan;
use crate::switch::{Change, Switcher};

impl Fs {
    /// The last switch: the file system gets `geometry`, whose end has nothing in use after it.
    pub(crate) fn cut(&mut self, switcher: &Switcher, mut to: Superblock) -> Result<(), ResizeFault> {
        let old = self.geometry.clone();
        let geometry = Geometry::new(&to)?;
        let mut change = Change::default();
        let mut freed: Vec<Range<u64>> = Vec::new();
        for group in geometry.groups..old.groups {
            self.must_be_empty(group)?;
            freed.extend(self.metadata_of(&self.desc(group)?));
        }
        if self.sb.features.has_compat(Features::RESIZE_INODE) {
            self.shrink_resize_inode(&to, &geometry, &mut change)?;
        }
        for group in 0..geometry.groups {
            let (now, then) = (plan::head(&old, Group(group)), plan::head(&geometry, Group(group)));
            if then.end < now.end {
                freed.push(then.end..now.end);
            }
        }
        let mut bitmaps: BTreeMap<u32, GroupBitmap> = BTreeMap::new();
        let last = geometry.groups - 1;
        bitmaps.insert(last, self.block_bitmap(last, &self.desc(last)?)?);
        let end = old.group_start(Group(last)).0 + u64::from(old.group_blocks(Group(last)));
        for run in freed {
            for block in run.start..run.end.min(end) {
                let group = (block - u64::from(old.first_data_block)) / u64::from(old.blocks_per_group);
                let group = group as u32;
                if let std::collections::btree_map::Entry::Vacant(missing) = bitmaps.entry(group) {
                    missing.insert(self.block_bitmap(group, &self.desc(group)?)?);
                }
                let bit = ((block - old.group_start(Group(group)).0) >> old.cluster_log) as u32;
                if let Some(bitmap) = bitmaps.get_mut(&group) {
                    bitmap.clear(bit..bit + 1);
                }
            }
        }
        if old.cluster_ratio() > 1 {
            // Metadata that stays may share a cluster with metadata that goes.
            let mut kept: Vec<Range<u64>> = Vec::new();
            for group in 0..geometry.groups {
                kept.extend(self.metadata_of(&self.desc(group)?));
                kept.push(plan::head(&geometry, Group(group)));
            }
            for (group, bitmap) in &mut bitmaps {
                let kept = bitmap_of(&geometry, *group, &kept);
                let runs = (0..geometry.group_clusters(Group(*group))).filter(|bit| kept.test(*bit));
                runs.for_each(|bit| bitmap.set(bit..bit + 1));
            }
        }
        let cut = geometry.group_clusters(Group(last));
        if let Some(bitmap) = bitmaps.get_mut(&last) {
            let end = old.group_clusters(Group(last));
            if !bitmap.all_clear(cut..end) {
                return Err(ResizeFault::Damaged(
                    "blocks after the new end are in use, but no file has them".into(),
                ));
            }
            bitmap.set(cut..geometry.clusters_per_group());
        }
        let mut table = self.table.clone();
        table.truncate(geometry.desc_blocks as usize * geometry.block_size.len());
        for (group, bitmap) in &bitmaps {
            let mut desc = self.desc(*group)?;
            desc.flags &= !BLOCK_UNINIT;
            self.put_block_bitmap(&mut change.late, &mut desc, bitmap);
            self.put_desc(&mut table, &geometry, *group, &desc);
        }
        // Descriptors of groups that go become zero.
        let kept = geometry.groups as usize * geometry.desc_size;
        table[kept..].fill(0);
        self.changed_descriptors(&table, &geometry, &mut change.late);
        let mut free = 0u64;
        let mut free_inodes = 0u32;
        for group in 0..geometry.groups {
            let desc = self.desc_in(&table, &geometry, group)?;
            free += u64::from(desc.free_clusters) << geometry.cluster_log;
            free_inodes += desc.free_inodes;
        }
        let used_before = self.sb.blocks_count.saturating_sub(self.sb.free_blocks_count);
        let used_after = to.blocks_count.saturating_sub(free);
        if to.overhead_clusters != 0 {
            let less = used_before.saturating_sub(used_after) >> geometry.cluster_log;
            to.overhead_clusters = to.overhead_clusters.saturating_sub(less as u32);
        }
        to.free_blocks_count = free;
        to.free_inodes_count = free_inodes;
        switcher.switch(change, &to)?;
        self.become_like(to, geometry, table);
        Ok(())
    }

    /// A group that goes must have nothing but metadata of groups that go.
    fn must_be_empty(&self, group: u32) -> Result<(), ResizeFault> {
        let desc = self.desc(group)?;
        let bitmap = self.block_bitmap(group, &desc)?;
        if !has_all(&self.metadata_bitmap(group)?, &bitmap) {
            let why = format!("blocks of group {group} are in use, but no file has them");
            return Err(ResizeFault::Damaged(why));
        }
        if !self.inode_bitmap(group, &desc)?.all_clear(0..self.geometry.inodes_per_group) {
            return Err(ResizeFault::Damaged(format!("an inode of group {group} is in use")));
        }
        Ok(())
    }

    /// Descriptor blocks that are not needed any more are reserved again, and backups that go leave the
    /// lists.
    fn shrink_resize_inode(
        &self,
        to: &Superblock,
        geometry: &Geometry,
        change: &mut Change,
    ) -> Result<(), ResizeFault> {
        let old = &self.geometry;
        let per_block = geometry.block_size.len() / 4;
        let distances = |geometry: &Geometry| -> Vec<u64> {
            (1..geometry.groups)
                .filter(|group| geometry.has_super(Group(*group)))
                .map(|group| geometry.group_start(Group(group)).0 - geometry.group_start(Group(0)).0)
                .collect()
        };
        let (before, after) = (distances(old), distances(geometry));
        let reserved = geometry.desc_blocks..geometry.desc_blocks + u32::from(to.reserved_gdt_blocks);
        let back = geometry.desc_blocks..old.desc_blocks;
        if before == after && back.is_empty() {
            return Ok(());
        }
        let (block, range) = self.inode_place(Ino::RESIZE)?;
        let bytes = &mut self.block_in(&mut change.early, block)?[range];
        let mut inode = self.inode(Ino::RESIZE, bytes)?;
        let unit = geometry.cluster_ratio() * (geometry.block_size.bytes() / 512);
        let count = |reserved: u16, backups: usize| u64::from(reserved) * (1 + backups as u64) * unit;
        let old_count = count(self.sb.reserved_gdt_blocks, before.len());
        let new_count = count(to.reserved_gdt_blocks, after.len());
        inode.blocks = (inode.blocks + new_count).saturating_sub(old_count);
        let map = u64::from(u32_at(&inode.block, 13 * 4));
        if !is_inside(geometry, &(map..map + 1)) {
            return Err(ResizeFault::Damaged("the resize inode has no double indirect block".to_owned()));
        }
        self.put_inode(Ino::RESIZE, &inode, bytes);
        let (first, _) = geometry.group_head(Group(0)).descriptors;
        let slots = self.block_in(&mut change.early, map)?;
        for index in old.desc_blocks..old.desc_blocks + u32::from(self.sb.reserved_gdt_blocks) {
            if u32_at(slots, index as usize % per_block * 4) != (first.0 + u64::from(index)) as u32 {
                let why = format!("the resize inode does not have the reserved descriptor block {index}");
                return Err(ResizeFault::Damaged(why));
            }
        }
        if !back.is_empty() {
            let slots = self.block_in(&mut change.early, map)?;
            for index in back.clone() {
                put_u32(slots, index as usize % per_block * 4, (first.0 + u64::from(index)) as u32);
            }
        }
        for index in reserved {
            let primary = first.0 + u64::from(index);
            let mut list = match back.contains(&index) {
                true => vec![0; geometry.block_size.len()],
                false => self.block(primary)?,
            };
            if !back.contains(&index) && before == after {
                continue;
            }
            if !back.contains(&index) && before.starts_with(&after) {
                list[after.len() * 4..].fill(0);
            } else {
                list.fill(0);
                for (slot, distance) in after.iter().enumerate() {
                    put_u32(&mut list, slot * 4, (primary + distance) as u32);
                }
            }
            change.late.insert(primary, list);
        }
        Ok(())
    }
}
