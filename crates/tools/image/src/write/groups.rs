//! The last writes: bitmaps, group descriptors and superblocks.

use extant_base::Group;
use extant_device::DeviceFault;
use extant_ondisk::bitmap::{GroupBitmap, block_bitmap_checksum, inode_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT, INODE_ZEROED};
use extant_ondisk::{Features, superblock};

use super::{Batch, Writer};

impl Writer<'_, '_> {
    /// Writes bitmaps and all copies of the descriptor table, and zeroes the unused parts of inode tables if
    /// the plan requires it.
    pub(super) fn write_groups(&self) -> Result<(), DeviceFault> {
        let plan = self.plan;
        let geometry = plan.geometry();
        let rule = ChecksumRule::of(&plan.superblock);
        let directories = plan.directories_per_group();
        let mut table = vec![0; geometry.desc_blocks as usize * self.bs()];
        // Bitmaps of one type are contiguous in a flex group: one batch per type keeps the writes large.
        let (mut block_maps, mut inode_maps) = (Batch::new(self), Batch::new(self));
        for group in 0..geometry.groups {
            let desc =
                self.write_bitmaps(group, directories[group as usize], &mut block_maps, &mut inode_maps)?;
            let at = group as usize * geometry.desc_size;
            let bytes = &mut table[at..at + geometry.desc_size];
            desc.encode(bytes);
            rule.seal(group, bytes);
        }
        block_maps.flush()?;
        inode_maps.flush()?;
        for group in 0..geometry.groups {
            let head = geometry.group_head(Group(group));
            let from = head.first_descriptor_block as usize * self.bs();
            let len = head.descriptors.1 as usize * self.bs();
            if len > 0 {
                self.put(head.descriptors.0.0, &table[from..from + len])?;
            }
        }
        Ok(())
    }

    /// Writes the bitmaps of a group that must be on disk, and returns its descriptor.
    fn write_bitmaps(
        &self,
        group: u32,
        directories: u32,
        block_maps: &mut Batch<'_, '_, '_>,
        inode_maps: &mut Batch<'_, '_, '_>,
    ) -> Result<GroupDesc, DeviceFault> {
        let plan = self.plan;
        let geometry = plan.geometry();
        let features = &plan.superblock.features;
        let place = plan.layout.places[group as usize];
        let used_inodes = self.inodes_in_use(group);
        let checksums = features.metadata_csum();
        let lazy = checksums || features.has_ro_compat(Features::GDT_CSUM);
        let mut desc = GroupDesc {
            block_bitmap: place.block_bitmap,
            inode_bitmap: place.inode_bitmap,
            inode_table: place.inode_table,
            free_clusters: plan.layout.free_clusters(group),
            free_inodes: geometry.inodes_per_group - used_inodes,
            used_dirs: directories,
            ..GroupDesc::default()
        };
        if lazy {
            desc.itable_unused = geometry.inodes_per_group - used_inodes;
            if used_inodes == 0 {
                desc.flags |= INODE_UNINIT;
            }
            if self.has_only_implied_blocks(group) {
                desc.flags |= BLOCK_UNINIT;
            }
        }
        if plan.fresh_device || !plan.lazy_tables {
            desc.flags |= INODE_ZEROED;
        }
        let fs_seed = plan.superblock.fs_seed();
        if !desc.has_flag(BLOCK_UNINIT) {
            let bitmap = self.block_bitmap(group);
            if checksums {
                desc.block_bitmap_csum =
                    block_bitmap_checksum(fs_seed, bitmap.as_bytes(), geometry.clusters_per_group());
            }
            block_maps.push(place.block_bitmap, bitmap.as_bytes())?;
        }
        if !desc.has_flag(INODE_UNINIT) {
            let mut bitmap = GroupBitmap::new(geometry.block_size, geometry.inodes_per_group);
            bitmap.set(0..used_inodes);
            if checksums {
                desc.inode_bitmap_csum =
                    inode_bitmap_checksum(fs_seed, bitmap.as_bytes(), geometry.inodes_per_group);
            }
            inode_maps.push(place.inode_bitmap, bitmap.as_bytes())?;
        }
        if !plan.fresh_device && !plan.lazy_tables {
            let per_block = geometry.inodes_per_block();
            let written = u64::from(used_inodes.div_ceil(per_block));
            let left = u64::from(geometry.itable_blocks()) - written;
            let log2 = geometry.block_size.log2();
            self.device.zero_at((place.inode_table + written) << log2, left << log2)?;
        }
        Ok(desc)
    }

    fn block_bitmap(&self, group: u32) -> GroupBitmap {
        let geometry = self.plan.geometry();
        let ratio = geometry.cluster_ratio();
        let start = geometry.group_start(Group(group)).0;
        let end = start + u64::from(geometry.group_blocks(Group(group)));
        // Clusters past the end of the last group do not exist. They are marked as taken, like the padding.
        let clusters = geometry.group_clusters(Group(group));
        let mut bitmap = GroupBitmap::new(geometry.block_size, geometry.clusters_per_group());
        for run in self.plan.layout.space.taken_within(start, end) {
            let first = (run.start - start) / ratio;
            let last = (run.end() - start).div_ceil(ratio);
            bitmap.set(first as u32..last as u32);
        }
        bitmap.set(clusters..geometry.clusters_per_group());
        bitmap
    }

    /// Whether the descriptor and the superblock imply all used blocks of the group. Its bitmap is then not
    /// needed on disk.
    fn has_only_implied_blocks(&self, group: u32) -> bool {
        let geometry = self.plan.geometry();
        if group + 1 == geometry.groups {
            return false; // the end of the device is not implied
        }
        let start = geometry.group_start(Group(group)).0;
        let end = start + u64::from(geometry.group_blocks(Group(group)));
        let head = geometry.group_head(Group(group));
        let mut implied = crate::space::Space::new(geometry.cluster_ratio());
        if let Some(block) = head.superblock {
            implied.take(block.0, 1);
        }
        implied.take(head.descriptors.0.0, head.descriptors.1.into());
        implied.take(head.reserved.0.0, head.reserved.1.into());
        if geometry.flex_log == 0 {
            let place = &self.plan.layout.places[group as usize];
            implied.take(place.block_bitmap, 1);
            implied.take(place.inode_bitmap, 1);
            implied.take(place.inode_table, geometry.itable_blocks().into());
        }
        implied.taken_within(start, end).eq(self.plan.layout.space.taken_within(start, end))
    }

    /// Writes all copies of the superblock, the primary one last. After that the device holds a file system.
    pub(super) fn write_superblock(&self) -> Result<(), DeviceFault> {
        let geometry = self.plan.geometry();
        for group in (0..geometry.groups).rev() {
            let Some(block) = geometry.group_head(Group(group)).superblock else { continue };
            let mut copy = self.plan.superblock.clone();
            copy.block_group_nr = group as u16;
            if group != 0 {
                // If a copy is read, the primary is lost, and the file system must be checked for other
                // losses.
                copy.state &= !superblock::STATE_CLEAN;
            }
            let bytes = copy.sealed();
            let offset = if group == 0 { superblock::OFFSET } else { block.0 << geometry.block_size.log2() };
            self.bytes.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
            self.device.write_at(offset, &bytes)?;
        }
        Ok(())
    }
}
