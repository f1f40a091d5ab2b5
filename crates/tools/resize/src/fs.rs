//! The parts of a closed file system that a resize changes: superblock, group descriptors, bitmaps, inodes.
//!
//! Owns: reading these and encoding them, with checksums. Does **not** own: when they are written (see
//! [`switch`](crate::switch)).
//!
//! Invariants
//! 1. A descriptor or bitmap with a wrong checksum, or with numbers that contradict each other, is not used.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use extant_base::{Group, Ino, Pblk};
use extant_device::{Device, DeviceFault};
use extant_ondisk::bitmap::{GroupBitmap, block_bitmap_checksum, inode_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::inode::{self, Inode};
use extant_ondisk::superblock::{self, STATE_CLEAN, STATE_ERRORS, Superblock};
use extant_ondisk::{Features, Geometry};

use crate::fault::ResizeFault;
use crate::plan;
use crate::switch::Blocks;

/// A closed file system.
pub(crate) struct Fs {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    /// The descriptors in order of the groups, in whole blocks.
    pub(crate) table: Vec<u8>,
    pub(crate) rule: ChecksumRule,
    /// See [`Switcher`](crate::switch::Switcher).
    pub(crate) is_torn: Rc<Cell<bool>>,
    /// Bitmaps and tables of all groups, in order.
    metadata: OnceCell<Vec<Range<u64>>>,
}

/// Inodes of a group.
pub(crate) struct StoredInodes {
    /// The number of the first inode of the group.
    first: u32,
    /// Bytes of an inode.
    size: usize,
    table: Vec<u8>,
    /// Places in the table of the inodes in use.
    indexes: Vec<u32>,
}

impl StoredInodes {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, &[u8])> {
        let stored = |index: u32| &self.table[index as usize * self.size..][..self.size];
        self.indexes.iter().map(move |index| (Ino(self.first + index), stored(*index)))
    }
}

/// Reads the primary superblock, which must be sound.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Superblock, ResizeFault> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let sb = Superblock::decode(&bytes)?;
    if sb.features.metadata_csum() && !sb.verify() {
        return Err(ResizeFault::Damaged("the superblock's checksum is wrong".to_owned()));
    }
    Ok(sb)
}

impl Fs {
    /// Reads superblock and descriptors.
    pub(crate) fn read(device: Arc<dyn Device>) -> Result<Self, ResizeFault> {
        let sb = read_superblock(&*device)?;
        let geometry = Geometry::new(&sb)?;
        let bs = geometry.block_size;
        // The table is at most as large as the device, whatever the superblock says.
        if geometry.blocks > device.size_bytes() >> bs.log2() {
            let why = format!("it has {} blocks, and the device ends before", geometry.blocks);
            return Err(ResizeFault::Damaged(why));
        }
        if sb.free_blocks_count > sb.blocks_count || sb.free_inodes_count > sb.inodes_count {
            return Err(ResizeFault::Damaged("more is free than there is".to_owned()));
        }
        let mut table = vec![0; geometry.desc_blocks as usize * bs.len()];
        let classic = geometry.classic_desc_blocks() as usize * bs.len();
        let (first, _) = geometry.descriptor_place(Group(0));
        device.read_at(first.0 << bs.log2(), &mut table[..classic])?;
        for index in geometry.classic_desc_blocks()..geometry.desc_blocks {
            let (block, _) = geometry.descriptor_place(Group(index * geometry.descs_per_block()));
            let at = index as usize * bs.len();
            device.read_at(block.0 << bs.log2(), &mut table[at..at + bs.len()])?;
        }
        let rule = ChecksumRule::of(&sb);
        let (is_torn, metadata) = (Rc::default(), OnceCell::new());
        Ok(Self { device, sb, geometry, table, rule, is_torn, metadata })
    }

    /// Refuses a file system whose counts and bitmaps may be wrong.
    pub(crate) fn must_be_clean(&self) -> Result<(), ResizeFault> {
        match self.sb.state {
            state if state & STATE_ERRORS != 0 => Err(ResizeFault::NotClean("has errors")),
            state if state & STATE_CLEAN == 0 => Err(ResizeFault::NotClean("is not marked as clean")),
            _ => Ok(()),
        }
    }

    /// A group's descriptor.
    pub(crate) fn desc(&self, group: u32) -> Result<GroupDesc, ResizeFault> {
        self.desc_in(&self.table, &self.geometry, group)
    }

    /// A group's descriptor in a table of a geometry.
    pub(crate) fn desc_in(
        &self,
        table: &[u8],
        geometry: &Geometry,
        group: u32,
    ) -> Result<GroupDesc, ResizeFault> {
        let damaged =
            |what: &str| Err(ResizeFault::Damaged(format!("the descriptor of group {group} has {what}")));
        let bytes = &table[desc_range(geometry, group)];
        if !self.rule.verify(group, bytes) {
            return damaged("a wrong checksum");
        }
        let mut desc = GroupDesc::decode(bytes)?;
        let features = &self.sb.features;
        if !features.metadata_csum() && !features.has_ro_compat(Features::GDT_CSUM) {
            // Without these features the kernel and e2fsck do not look at them.
            desc.flags &= !(BLOCK_UNINIT | INODE_UNINIT);
            desc.itable_unused = 0;
        }
        if desc.free_clusters > geometry.group_clusters(Group(group)) {
            return damaged("more free blocks than the group has");
        }
        if desc.free_inodes > geometry.inodes_per_group || desc.itable_unused > geometry.inodes_per_group {
            return damaged("more free inodes than the group has");
        }
        let is_flex = features.has_incompat(Features::FLEX_BG);
        for run in self.metadata_of(&desc) {
            let of_last = geometry.group_of(Pblk(run.end - 1));
            let is_own =
                geometry.group_of(Pblk(run.start)) == Some(Group(group)) && of_last == Some(Group(group));
            if !is_inside(geometry, &run) || !is_flex && !is_own {
                return damaged("a bitmap or a table in an impossible place");
            }
        }
        Ok(desc)
    }

    /// Bitmaps or tables are in other places now.
    pub(crate) fn metadata_has_moved(&mut self) {
        self.metadata.take();
    }

    /// The bitmaps and tables that have blocks in a group, of all groups.
    fn metadata_within(&self, group: u32) -> Result<Vec<Range<u64>>, ResizeFault> {
        let geometry = &self.geometry;
        let all = match self.metadata.get() {
            Some(all) => all,
            None => {
                let all = self.all_metadata()?;
                self.metadata.get_or_init(|| all)
            }
        };
        let start = geometry.group_start(Group(group)).0;
        let end = start + u64::from(geometry.group_blocks(Group(group)));
        // They do not overlap, so their ends are in order, too.
        let first = all.partition_point(|run| run.end <= start);
        Ok(all[first..].iter().take_while(|run| run.start < end).cloned().collect())
    }

    fn all_metadata(&self) -> Result<Vec<Range<u64>>, ResizeFault> {
        let geometry = &self.geometry;
        let mut all = Vec::with_capacity(3 * geometry.groups as usize);
        for group in 0..geometry.groups {
            all.extend(self.metadata_of(&self.desc(group)?));
        }
        all.sort_by_key(|run| run.start);
        if let Some(pair) = all.windows(2).find(|pair| pair[0].end > pair[1].start) {
            let why = format!("block {} is in two bitmaps or tables of groups", pair[1].start);
            return Err(ResizeFault::Damaged(why));
        }
        let group = |block: u64| geometry.group_of(Pblk(block)).map_or(0, |group| group.0);
        for run in &all {
            for group in group(run.start)..=group(run.end - 1) {
                let head = plan::head(geometry, Group(group));
                // A group without a copy has an empty head, which no run overlaps.
                if !head.is_empty() && head.start < run.end && run.start < head.end {
                    let why =
                        format!("a bitmap or a table is in the copy of the descriptors of group {group}");
                    return Err(ResizeFault::Damaged(why));
                }
            }
        }
        Ok(all)
    }

    /// Another layout takes effect.
    pub(crate) fn become_like(&mut self, sb: Superblock, geometry: Geometry, table: Vec<u8>) {
        (self.sb, self.geometry, self.table) = (sb, geometry, table);
        self.metadata = OnceCell::new();
    }

    /// A group's inode bitmap. It is empty if it was never written.
    pub(crate) fn inode_bitmap(&self, group: u32, desc: &GroupDesc) -> Result<GroupBitmap, ResizeFault> {
        let bits = self.geometry.inodes_per_group;
        if desc.has_flag(INODE_UNINIT) {
            return Ok(GroupBitmap::new(self.geometry.block_size, bits));
        }
        let bytes = self.block(desc.inode_bitmap)?;
        if self.sb.features.metadata_csum() {
            let sum = self.stored(inode_bitmap_checksum(self.sb.fs_seed(), &bytes, bits));
            if sum != desc.inode_bitmap_csum {
                let why = format!("the inode bitmap of group {group} has a wrong checksum");
                return Err(ResizeFault::Damaged(why));
            }
        }
        let bitmap = GroupBitmap::from_bytes(bytes, bits)?;
        if bitmap.count_clear() != desc.free_inodes {
            let why = format!("the number of free inodes of group {group} is not that of its bitmap");
            return Err(ResizeFault::Damaged(why));
        }
        Ok(bitmap)
    }

    /// As much of a bitmap's checksum as a descriptor holds.
    fn stored(&self, sum: u32) -> u32 {
        if self.geometry.desc_size < 64 { sum & 0xFFFF } else { sum }
    }

    /// Changes a group's descriptor in a table.
    pub(crate) fn put_desc(&self, table: &mut [u8], geometry: &Geometry, group: u32, desc: &GroupDesc) {
        let bytes = &mut table[desc_range(geometry, group)];
        desc.encode(bytes);
        self.rule.seal(group, bytes);
    }

    /// One block.
    pub(crate) fn block(&self, number: u64) -> Result<Vec<u8>, DeviceFault> {
        let mut bytes = vec![0; self.geometry.block_size.len()];
        self.device.read_at(number << self.geometry.block_size.log2(), &mut bytes)?;
        Ok(bytes)
    }

    /// The block of `blocks`, or as it is on the device.
    pub(crate) fn block_in<'a>(
        &self,
        blocks: &'a mut Blocks,
        number: u64,
    ) -> Result<&'a mut Vec<u8>, DeviceFault> {
        use std::collections::btree_map::Entry;
        match blocks.entry(number) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(missing) => Ok(missing.insert(self.block(number)?)),
        }
    }

    /// A group's block bitmap. It is computed if it was never written.
    pub(crate) fn block_bitmap(&self, group: u32, desc: &GroupDesc) -> Result<GroupBitmap, ResizeFault> {
        let geometry = &self.geometry;
        let bits = geometry.clusters_per_group();
        let implied = self.metadata_bitmap(group)?;
        if desc.has_flag(BLOCK_UNINIT) {
            return Ok(implied);
        }
        let bytes = self.block(desc.block_bitmap)?;
        if self.sb.features.metadata_csum() {
            let sum = self.stored(block_bitmap_checksum(self.sb.fs_seed(), &bytes, bits));
            if sum != desc.block_bitmap_csum {
                let why = format!("the block bitmap of group {group} has a wrong checksum");
                return Err(ResizeFault::Damaged(why));
            }
        }
        let bitmap = GroupBitmap::from_bytes(bytes, bits)?;
        if bitmap.count_clear() != desc.free_clusters {
            let why = format!("the number of free blocks of group {group} is not that of its bitmap");
            return Err(ResizeFault::Damaged(why));
        }
        if !has_all(&bitmap, &implied) {
            let why = format!("the block bitmap of group {group} has metadata as free");
            return Err(ResizeFault::Damaged(why));
        }
        Ok(bitmap)
    }

    /// The bitmap that a group has if only metadata of groups is in it.
    pub(crate) fn metadata_bitmap(&self, group: u32) -> Result<GroupBitmap, ResizeFault> {
        let mut runs = self.metadata_within(group)?;
        runs.push(plan::head(&self.geometry, Group(group)));
        Ok(bitmap_of(&self.geometry, group, &runs))
    }

    /// Stores a changed block bitmap and its consequences in the descriptor.
    pub(crate) fn put_block_bitmap(&self, blocks: &mut Blocks, desc: &mut GroupDesc, bitmap: &GroupBitmap) {
        desc.flags &= !BLOCK_UNINIT;
        desc.free_clusters = bitmap.count_clear();
        if self.sb.features.metadata_csum() {
            let bits = self.geometry.clusters_per_group();
            desc.block_bitmap_csum = block_bitmap_checksum(self.sb.fs_seed(), bitmap.as_bytes(), bits);
        }
        blocks.insert(desc.block_bitmap, bitmap.as_bytes().to_vec());
    }

    /// Stores a changed inode bitmap and its consequences in the descriptor, except for the unused part of
    /// the table.
    pub(crate) fn put_inode_bitmap(&self, blocks: &mut Blocks, desc: &mut GroupDesc, bitmap: &GroupBitmap) {
        desc.flags &= !INODE_UNINIT;
        desc.free_inodes = bitmap.count_clear();
        if self.sb.features.metadata_csum() {
            let bits = self.geometry.inodes_per_group;
            desc.inode_bitmap_csum = inode_bitmap_checksum(self.sb.fs_seed(), bitmap.as_bytes(), bits);
        }
        blocks.insert(desc.inode_bitmap, bitmap.as_bytes().to_vec());
    }

    /// The runs of a group's bitmaps and table.
    pub(crate) fn metadata_of(&self, desc: &GroupDesc) -> [Range<u64>; 3] {
        let table = desc.inode_table..desc.inode_table.saturating_add(self.geometry.itable_blocks().into());
        let one = |block: u64| block..block.saturating_add(1);
        [one(desc.block_bitmap), one(desc.inode_bitmap), table]
    }

    /// Block of an inode's bytes, and their range in it.
    pub(crate) fn inode_place(&self, ino: Ino) -> Result<(u64, Range<usize>), ResizeFault> {
        let outside = || ResizeFault::Damaged(format!("there is no inode {}", ino.0));
        let (group, index) = self.geometry.inode_place(ino).ok_or_else(outside)?;
        let per_block = self.geometry.inodes_per_block();
        let block = self.desc(group.0)?.inode_table + u64::from(index / per_block);
        let at = (index % per_block) as usize * self.geometry.inode_size;
        Ok((block, at..at + self.geometry.inode_size))
    }

    /// The inodes of a group that are in use, as they are stored.
    pub(crate) fn stored_inodes(&self, group: u32) -> Result<StoredInodes, ResizeFault> {
        let (per_group, size) = (self.geometry.inodes_per_group, self.geometry.inode_size);
        let first = group * per_group + 1;
        let desc = self.desc(group)?;
        if desc.has_flag(INODE_UNINIT) {
            return Ok(StoredInodes { first, size, table: Vec::new(), indexes: Vec::new() });
        }
        let used = per_group.saturating_sub(desc.itable_unused.min(per_group));
        let bitmap = self.inode_bitmap(group, &desc)?;
        let mut table = vec![0; used as usize * size];
        self.device.read_at(desc.inode_table << self.geometry.block_size.log2(), &mut table)?;
        let indexes = (0..used).filter(|index| bitmap.test(*index)).collect();
        Ok(StoredInodes { first, size, table, indexes })
    }

    /// Decodes an inode and checks its checksum.
    pub(crate) fn inode(&self, ino: Ino, bytes: &[u8]) -> Result<Inode, ResizeFault> {
        let inode = Inode::decode_of(&self.sb, bytes)?;
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        let seed = inode::inode_seed(self.sb.fs_seed(), ino, inode.generation);
        if self.sb.verifies_inodes() && !is_zero && !inode::verify(bytes, seed) {
            return Err(ResizeFault::Damaged(format!("inode {} has a wrong checksum", ino.0)));
        }
        Ok(inode)
    }

    /// Encodes an inode over its old bytes.
    pub(crate) fn put_inode(&self, ino: Ino, inode: &Inode, bytes: &mut [u8]) {
        inode.encode(bytes);
        if self.sb.seals_inodes() {
            inode::seal(bytes, inode::inode_seed(self.sb.fs_seed(), ino, inode.generation));
        }
    }

    /// Puts the blocks of `table` that differ from the present one, and have a place within the old size,
    /// into `blocks`.
    pub(crate) fn changed_descriptors(&self, table: &[u8], geometry: &Geometry, blocks: &mut Blocks) {
        let bs = geometry.block_size.len();
        for (index, bytes) in (0..).zip(table.chunks_exact(bs)) {
            let at = index as usize * bs;
            if self.table.get(at..at + bs) == Some(bytes) {
                continue;
            }
            let (block, _) = geometry.descriptor_place(Group(index * geometry.descs_per_block()));
            if block.0 < self.geometry.blocks {
                blocks.insert(block.0, bytes.to_vec());
            }
        }
    }

    /// Writes all copies of superblock and descriptors except the primary ones. No reader depends on them
    /// while the primary ones are sound.
    pub(crate) fn write_backups(&self) -> Result<(), ResizeFault> {
        for group in 0..self.geometry.groups {
            self.write_head(&self.sb, &self.geometry, &self.table, group, false)?;
        }
        Ok(self.device.flush()?)
    }

    /// Writes the copies of superblock and descriptors at a group's start; the primary descriptors only if
    /// `with_primary`.
    pub(crate) fn write_head(
        &self,
        sb: &Superblock,
        geometry: &Geometry,
        table: &[u8],
        group: u32,
        with_primary: bool,
    ) -> Result<(), ResizeFault> {
        let bs = geometry.block_size;
        let head = geometry.group_head(Group(group));
        if let Some(block) = head.superblock.filter(|_| group > 0) {
            let mut copy = sb.clone();
            copy.block_group_nr = group as u16;
            // If a copy is read, the primary is lost, and the file system must be checked.
            copy.state &= !STATE_CLEAN;
            copy.features.incompat &= !Features::RECOVER;
            let mut bytes = vec![0; bs.len()];
            bytes[..superblock::SIZE].copy_from_slice(&copy.sealed());
            self.device.write_at(block.0 << bs.log2(), &bytes)?;
        }
        let (first, len) = head.descriptors;
        let is_primary = geometry.descriptor_place(Group(group)).0 == first;
        if len > 0 && (!is_primary || with_primary) && group > 0 {
            let at = head.first_descriptor_block as usize * bs.len();
            let end = (at + len as usize * bs.len()).min(table.len());
            self.device.write_at(first.0 << bs.log2(), &table[at..end])?;
        }
        Ok(())
    }
}

/// The bytes of a group's descriptor in the table.
pub(crate) fn desc_range(geometry: &Geometry, group: u32) -> Range<usize> {
    let at = group as usize * geometry.desc_size;
    at..at + geometry.desc_size
}

/// The bitmap of a group in which these runs of blocks are used, and all that is not in the file system.
pub(crate) fn bitmap_of(geometry: &Geometry, group: u32, runs: &[Range<u64>]) -> GroupBitmap {
    let mut bitmap = GroupBitmap::new(geometry.block_size, geometry.clusters_per_group());
    let ratio = geometry.cluster_ratio();
    let start = geometry.group_start(Group(group)).0;
    let end = start + u64::from(geometry.group_blocks(Group(group)));
    for run in runs {
        let (from, to) = (run.start.max(start), run.end.min(end));
        if from < to {
            let first = (from - start) / ratio;
            let last = (to - start).div_ceil(ratio);
            bitmap.set(first as u32..last as u32);
        }
    }
    bitmap.set(geometry.group_clusters(Group(group))..geometry.clusters_per_group());
    bitmap
}

/// Whether a bitmap has all bits that another one has.
pub(crate) fn has_all(bitmap: &GroupBitmap, of: &GroupBitmap) -> bool {
    let mut at = 0;
    while let Some(first) = of.next_set(at) {
        let end = of.next_clear(first).unwrap_or(of.len());
        if !bitmap.all_set(first..end) {
            return false;
        }
        at = end;
    }
    true
}

/// Whether a run of blocks is within the file system.
pub(crate) fn is_inside(geometry: &Geometry, run: &Range<u64>) -> bool {
    run.start > u64::from(geometry.first_data_block)
        && run.start < run.end
        && geometry.group_of(Pblk(run.end - 1)).is_some()
}
