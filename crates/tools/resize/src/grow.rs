//! One step of growing: completes the last group and adds groups.
//!
//! ```text
//!         old end                                        new end
//! ... | last group |  head  bitmaps  tables  free ... | ... |
//!      ^ bitmap, descriptor: in the switch   ^ written before the switch
//! ```
//!
//! Owns: the content of new groups and of the changed blocks. Does **not** own: where they are (see
//! [`plan`](crate::plan)), the order of writes (see [`switch`](crate::switch)).
//!
//! Invariants
//! 1. Before the switch only blocks after the old end are written.
//!
//! Source: kernel Documentation/filesystems/ext4/group_descr.rst, blockgroup.rst.

use std::ops::Range;

use extant_base::le::{put_u32, u32_at};
use extant_base::{Group, Ino};
use extant_ondisk::bitmap::{GroupBitmap, block_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED};
use extant_ondisk::superblock::Superblock;
use extant_ondisk::{Features, Geometry};

use crate::fault::ResizeFault;
use crate::fs::{Fs, bitmap_of, is_inside};
use crate::plan::{self, Grow, Place};
use crate::switch::{Change, Switcher};

/// Number of 32-bit block numbers of the inode before the double indirect block.
const DOUBLE_INDIRECT: usize = 13;
/// The resize inode's blocks are counted in sectors.
const SECTOR_BYTES: u64 = 512;

impl Fs {
    /// Does one step. `zeros_from` is the byte offset from which on the device is known to have zeros.
    pub(crate) fn grow(
        &mut self,
        switcher: &Switcher,
        step: &Grow,
        zeros_from: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ResizeFault> {
        let geometry = &step.geometry;
        let mut to = step.to.clone();
        let mut table = self.table.clone();
        table.resize(geometry.desc_blocks as usize * geometry.block_size.len(), 0);
        let mut change = Change::default();

        let mut free_clusters = 0u64;
        for (chunk, places) in chunks(geometry, step) {
            let added = self.write_groups(geometry, &mut table, chunk.clone(), places, zeros_from)?;
            free_clusters += added.free_clusters;
            if to.overhead_clusters != 0 {
                let overhead = u64::from(to.overhead_clusters) + added.used_clusters;
                to.overhead_clusters = u32::try_from(overhead).unwrap_or(0);
            }
            progress(geometry.group_start(Group(chunk.end - 1)).0);
        }
        to.free_inodes_count += step.groups.len() as u32 * geometry.inodes_per_group;
        if self.sb.features.has_compat(Features::RESIZE_INODE) {
            self.change_resize_inode(&to, geometry, &mut change)?;
        }
        self.changed_descriptors(&table, geometry, &mut change.early);

        // The completed group: its new blocks become free.
        let last = self.geometry.groups - 1;
        let (old, new) = (self.geometry.group_clusters(Group(last)), geometry.group_clusters(Group(last)));
        // A group that was last has a bitmap on disk: its own end is not implied.
        let mut desc = self.desc(last)?;
        if new > old {
            let mut bitmap = self.block_bitmap(last, &desc)?;
            bitmap.clear(old..new);
            self.put_block_bitmap(&mut change.late, &mut desc, &bitmap);
            free_clusters += u64::from(new - old);
            self.put_desc(&mut table, geometry, last, &desc);
            self.changed_descriptors(&table, geometry, &mut change.late);
        }
        to.free_blocks_count += free_clusters << geometry.cluster_log;
        for group in step.groups.clone() {
            self.write_head(&to, geometry, &table, group, true)?;
        }
        switcher.switch(change, &to)?;
        self.become_like(to, geometry.clone(), table);
        Ok(())
    }

    /// Writes bitmaps and tables of some new groups, and fills in their descriptors.
    fn write_groups(
        &self,
        geometry: &Geometry,
        table: &mut [u8],
        groups: Range<u32>,
        places: &[Place],
        zeros_from: u64,
    ) -> Result<Added, ResizeFault> {
        let bs = geometry.block_size;
        let itable = u64::from(geometry.itable_blocks());
        let mut runs: Vec<Range<u64>> =
            groups.clone().map(|group| plan::head(geometry, Group(group))).collect();
        for place in places {
            runs.push(place.block_bitmap..place.block_bitmap + 1);
            runs.push(place.inode_bitmap..place.inode_bitmap + 1);
            runs.push(place.inode_table..place.inode_table + itable);
        }
        let has_checksums = self.sb.features.metadata_csum();
        let lazy = has_checksums || self.sb.features.has_ro_compat(Features::GDT_CSUM);
        let seed = self.sb.fs_seed();
        let inode_bitmap = GroupBitmap::new(bs, geometry.inodes_per_group);
        let mut added = Added::default();
        for (group, place) in groups.zip(places) {
            let start = geometry.group_start(Group(group)).0;
            let end = start + u64::from(geometry.group_blocks(Group(group)));
            let bitmap = bitmap_of(geometry, group, &runs);
            let mut desc = GroupDesc {
                block_bitmap: place.block_bitmap,
                inode_bitmap: place.inode_bitmap,
                inode_table: place.inode_table,
                free_clusters: bitmap.count_clear(),
                free_inodes: geometry.inodes_per_group,
                ..GroupDesc::default()
            };
            let offset = place.inode_table << bs.log2();
            let is_zero = offset >= zeros_from || self.device.is_fresh();
            if lazy {
                desc.itable_unused = geometry.inodes_per_group;
                desc.flags = INODE_UNINIT;
                if is_zero {
                    desc.flags |= INODE_ZEROED;
                }
                // With flex_bg, only a group without bitmaps and tables is fully implied.
                let implied = match geometry.flex_log {
                    0 => true,
                    _ => !runs_within(&runs[groups_len(&runs)..], start, end),
                };
                if implied && group + 1 < geometry.groups {
                    desc.flags |= BLOCK_UNINIT;
                }
            } else {
                if !is_zero {
                    self.device.zero_at(offset, itable << bs.log2())?;
                }
                self.device.write_at(place.inode_bitmap << bs.log2(), inode_bitmap.as_bytes())?;
            }
            if !desc.has_flag(BLOCK_UNINIT) {
                if has_checksums {
                    let bits = geometry.clusters_per_group();
                    desc.block_bitmap_csum = block_bitmap_checksum(seed, bitmap.as_bytes(), bits);
                }
                self.device.write_at(place.block_bitmap << bs.log2(), bitmap.as_bytes())?;
            }
            self.put_desc(table, geometry, group, &desc);
            let clusters = geometry.group_clusters(Group(group));
            added.free_clusters += u64::from(desc.free_clusters);
            added.used_clusters += u64::from(clusters - desc.free_clusters);
        }
        Ok(added)
    }

    /// Keeps the resize inode in step with the table: reserved blocks that become descriptor blocks leave it,
    /// and new backup groups have reserved blocks, too.
    fn change_resize_inode(
        &self,
        to: &Superblock,
        geometry: &Geometry,
        change: &mut Change,
    ) -> Result<(), ResizeFault> {
        let old = &self.geometry;
        // The distances of the backups from the primary block. With 1 KiB blocks in clusters, group 0 begins
        // with a boot block, and mke2fs writes a list that is one block off. New entries follow the old ones.
        let backups = |geometry: &Geometry, groups: Range<u32>| -> Vec<u64> {
            groups
                .filter(|group| *group > 0 && geometry.has_super(Group(*group)))
                .map(|group| geometry.group_start(Group(group)).0 - geometry.group_start(Group(0)).0)
                .collect()
        };
        let known = backups(old, 0..old.groups);
        let kept = known.len();
        let added = backups(geometry, old.groups..geometry.groups);
        let used = old.desc_blocks..geometry.desc_blocks;
        if used.is_empty() && added.is_empty() {
            return Ok(());
        }
        let per_block = geometry.block_size.len() / 4;
        let (block, range) = self.inode_place(Ino::RESIZE)?;
        let bytes = &mut self.block_in(&mut change.early, block)?[range];
        let mut inode = self.inode(Ino::RESIZE, bytes)?;
        let count = |reserved: u16, backups: usize| u64::from(reserved) * (1 + backups as u64);
        let unit = geometry.cluster_ratio() * (geometry.block_size.bytes() / SECTOR_BYTES);
        let before = count(self.sb.reserved_gdt_blocks, kept) * unit;
        let after = count(to.reserved_gdt_blocks, kept + added.len()) * unit;
        let lacks = || ResizeFault::Damaged("the resize inode has too few blocks".to_owned());
        inode.blocks = (inode.blocks + after).checked_sub(before).ok_or_else(lacks)?;
        self.put_inode(Ino::RESIZE, &inode, bytes);

        let map = double_indirect(&inode.block);
        if !is_inside(old, &(map..map + 1)) {
            return Err(ResizeFault::Damaged("the resize inode has no double indirect block".to_owned()));
        }
        let (first, _) = old.group_head(Group(0)).descriptors;
        let slots = self.block_in(&mut change.early, map)?;
        for index in old.desc_blocks..geometry.desc_blocks + u32::from(to.reserved_gdt_blocks) {
            let at = index as usize % per_block * 4;
            if u32_at(slots, at) != (first.0 + u64::from(index)) as u32 {
                let why = format!("the resize inode does not have the reserved descriptor block {index}");
                return Err(ResizeFault::Damaged(why));
            }
            if used.contains(&index) {
                put_u32(slots, at, 0);
            }
        }
        if added.is_empty() {
            return Ok(());
        }
        if kept + added.len() > per_block {
            return Err(ResizeFault::Damaged("the resize inode has too many backup groups".to_owned()));
        }
        for index in geometry.desc_blocks..geometry.desc_blocks + u32::from(to.reserved_gdt_blocks) {
            let list = self.block_in(&mut change.early, first.0 + u64::from(index))?;
            let origin = match known.first() {
                Some(distance) => u64::from(u32_at(list, 0)).saturating_sub(*distance),
                None => first.0 + u64::from(index),
            };
            for (slot, distance) in (kept..).zip(&added) {
                put_u32(list, slot * 4, (origin + distance) as u32);
            }
        }
        Ok(())
    }

    /// Frees the reserved descriptor blocks and the resize inode's own block.
    pub(crate) fn release(&mut self, switcher: &Switcher, to: &Superblock) -> Result<(), ResizeFault> {
        let geometry = Geometry::new(to)?;
        let mut change = Change::default();
        let (block, range) = self.inode_place(Ino::RESIZE)?;
        let bytes = &mut self.block_in(&mut change.early, block)?[range];
        let inode = self.inode(Ino::RESIZE, bytes)?;
        bytes.fill(0);
        let map = double_indirect(&inode.block);
        let mut freed: Vec<Range<u64>> = Vec::new();
        if is_inside(&geometry, &(map..map + 1)) {
            freed.push(map..map + 1);
        }
        for group in (0..geometry.groups).filter(|group| self.geometry.has_super(Group(*group))) {
            let (first, len) = self.geometry.group_head(Group(group)).reserved;
            if len > 0 {
                freed.push(first.0..first.0 + u64::from(len));
            }
        }
        let mut table = self.table.clone();
        let ratio = geometry.cluster_ratio();
        let mut to = to.clone();
        // Clusters that other metadata uses, too, stay.
        let mut kept: Vec<Range<u64>> = Vec::new();
        for group in 0..geometry.groups {
            kept.push(plan::head(&geometry, Group(group)));
            if ratio > 1 {
                kept.extend(self.metadata_of(&self.desc(group)?));
            }
        }
        let is_kept = |cluster: u64| runs_within(&kept, cluster * ratio, (cluster + 1) * ratio);
        for run in freed {
            let (mut at, end) = (run.start / ratio, run.end.div_ceil(ratio));
            let group = geometry.group_of(extant_base::Pblk(run.start));
            let group = group.ok_or_else(|| ResizeFault::Damaged("the reserve is outside".to_owned()))?.0;
            let mut desc = self.desc_in(&table, &geometry, group)?;
            let mut bitmap = match change.late.get(&desc.block_bitmap) {
                Some(bytes) => GroupBitmap::from_bytes(bytes.clone(), geometry.clusters_per_group())?,
                None => self.block_bitmap(group, &desc)?,
            };
            let start = geometry.group_start(Group(group)).0 / ratio;
            while at < end {
                let bit = (at - start) as u32;
                if !is_kept(at) && bitmap.test(bit) {
                    bitmap.clear(bit..bit + 1);
                    to.free_blocks_count += ratio;
                    to.overhead_clusters = to.overhead_clusters.saturating_sub(1);
                }
                at += 1;
            }
            self.put_block_bitmap(&mut change.late, &mut desc, &bitmap);
            self.put_desc(&mut table, &geometry, group, &desc);
        }
        self.changed_descriptors(&table, &geometry, &mut change.late);
        switcher.switch(change, &to)?;
        self.become_like(to, geometry, table);
        Ok(())
    }
}

/// What some new groups add.
#[derive(Default)]
struct Added {
    free_clusters: u64,
    used_clusters: u64,
}

/// The new groups of each flex group, with their places.
fn chunks<'a>(
    geometry: &'a Geometry,
    step: &'a Grow,
) -> impl Iterator<Item = (Range<u32>, &'a [Place])> + 'a {
    let per_flex = geometry.groups_per_flex();
    let mut first = step.groups.start;
    std::iter::from_fn(move || {
        let end = first.saturating_add(per_flex - first % per_flex).min(step.groups.end);
        let from = (first - step.groups.start) as usize;
        let chunk = first..end;
        first = end;
        (!chunk.is_empty()).then(|| (chunk.clone(), &step.places[from..from + chunk.len()]))
    })
}

/// Whether one of the runs has a block in a range.
fn runs_within(runs: &[Range<u64>], start: u64, end: u64) -> bool {
    runs.iter().any(|run| run.start < end && start < run.end)
}

/// The number of heads at the beginning of a list of heads followed by three runs for each group.
fn groups_len(runs: &[Range<u64>]) -> usize {
    runs.len() / 4
}

fn double_indirect(block: &[u8; 60]) -> u64 {
    u32_at(block, DOUBLE_INDIRECT * 4).into()
}
