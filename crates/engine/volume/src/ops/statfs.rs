//! Space and inodes, as for df.

use extant_base::{Group, Ino};
use extant_ondisk::Features;

use crate::{Fault, StatFs, Volume};

/// Blocks that the kernel reserves on file systems with extents: 2 %, and at most this many clusters. A
/// volume open for writing reserves them in any case and reports that; one open for reading reports what the
/// kernel would.
const RESERVED_CLUSTERS_MAX: u64 = 4096;

impl Volume {
    /// The values of statfs(2). The first call reads every group's descriptor.
    ///
    /// # Errors
    /// A descriptor cannot be read or is corrupt.
    pub fn statfs(&self) -> Result<StatFs, Fault> {
        if let Some(writer) = &self.writer {
            let usage = writer.keeper.alloc.usage();
            // Space reserved by delayed allocation counts as used, so that the result does not depend on
            // writeback.
            let unpromised = usage.blocks_free.saturating_sub(usage.blocks_dirty);
            let fixed = self.statfs_of(unpromised, usage.inodes_free);
            return Ok(StatFs { blocks_available: usage.blocks_available, ..fixed });
        }
        if let Some(known) = self.statfs.get() {
            return Ok(*known);
        }
        let shared = self.inodes.shared();
        let geometry = &shared.geometry;
        let (mut free_clusters, mut inodes_free) = (0u64, 0u64);
        for group in 0..geometry.groups {
            let desc = shared.descriptor(Group(group))?;
            free_clusters += u64::from(desc.free_clusters);
            inodes_free += u64::from(desc.free_inodes);
        }
        let answer = self.statfs_of(free_clusters << geometry.cluster_log, inodes_free);
        Ok(*self.statfs.get_or_init(|| answer))
    }

    fn statfs_of(&self, blocks_free: u64, inodes_free: u64) -> StatFs {
        let shared = self.inodes.shared();
        let (sb, geometry) = (&shared.sb, &shared.geometry);
        let cluster_log = geometry.cluster_log;
        let blocks = geometry.blocks.saturating_sub(self.overhead_blocks());
        let blocks_free = blocks_free.min(geometry.blocks);
        let kept = match sb.features.has_incompat(Features::EXTENTS) {
            true => ((geometry.blocks >> cluster_log) / 50).min(RESERVED_CLUSTERS_MAX) << cluster_log,
            false => 0,
        };
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| sb.uuid[at + i]));
        StatFs {
            block_size: geometry.block_size.bytes() as u32,
            blocks,
            blocks_free,
            blocks_available: blocks_free.saturating_sub(sb.reserved_blocks_count.saturating_add(kept)),
            inodes: sb.inodes_count,
            inodes_free: u32::try_from(inodes_free).unwrap_or(u32::MAX).min(sb.inodes_count),
            name_max: 255,
            fsid: half(0) ^ half(8),
        }
    }

    /// Blocks of the file system itself: superblocks, descriptors, bitmaps, tables, journal. The stored
    /// number if it is present and possible, otherwise a count.
    fn overhead_blocks(&self) -> u64 {
        let shared = self.inodes.shared();
        let geometry = &shared.geometry;
        let stored = u64::from(shared.sb.overhead_clusters) << geometry.cluster_log;
        if stored > 0 && stored < geometry.blocks {
            return stored;
        }
        let of_group = |group| {
            let head = geometry.group_head(Group(group));
            u64::from(head.superblock.is_some())
                + u64::from(head.descriptors.1)
                + u64::from(head.reserved.1)
                + 2
                + u64::from(geometry.itable_blocks())
        };
        let groups: u64 = (0..geometry.groups).map(of_group).sum();
        let journal = match shared.sb.journal_inum {
            0 => 0,
            ino => self.inode(Ino(ino)).map_or(0, |log| log.size() >> geometry.block_size.log2()),
        };
        u64::from(geometry.first_data_block) + groups + journal
    }
}
