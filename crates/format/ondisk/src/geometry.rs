//! Geometry: everything that can be computed from the superblock alone.
//!
//! Owns the arithmetic of groups, inodes, backup superblocks and the addresses of group descriptors, with and
//! without meta_bg. The value is small, immutable, and passed by reference. Does **not** own the descriptors'
//! content.
//!
//! Invariants
//! 1. [`Geometry::new`] checks all numbers: the methods cannot overflow or divide by zero.
//! 2. `groups * blocks_per_group` covers all blocks from `first_data_block` on; only the last group may be
//!    short.
//!
//! Source: kernel Documentation/filesystems/ext4/blockgroup.rst.

use extant_base::{BlockSize, Group, Ino, Malformed, Pblk};

use crate::{Features, Superblock};

/// The groups that have copies of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backups {
    All,
    Sparse,
    Named([u32; 2]),
}

/// The numbers of a file system's layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Block size.
    pub block_size: BlockSize,
    /// Blocks per cluster is 1 << this value; 0 without bigalloc.
    pub cluster_log: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Block of the first superblock.
    pub first_data_block: u32,
    /// Blocks per group.
    pub blocks_per_group: u32,
    /// Inodes per group.
    pub inodes_per_group: u32,
    /// Bytes per inode.
    pub inode_size: usize,
    /// Bytes per group descriptor.
    pub desc_size: usize,
    /// Number of groups.
    pub groups: u32,
    /// Blocks of the whole group-descriptor table.
    pub desc_blocks: u32,
    /// Reserved blocks after each classic copy of the table.
    pub reserved_gdt_blocks: u32,
    /// Groups per flex group is 1 << this value; 0 without flex_bg.
    pub flex_log: u32,
    /// The first meta block group that stores its descriptors in its own groups; `None` without meta_bg.
    first_meta_bg: Option<u32>,
    backups: Backups,
}

/// The addresses of one group's copy of the superblock and of group descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupHead {
    /// Block of the superblock or its copy.
    pub superblock: Option<Pblk>,
    /// First block and number of blocks with descriptors.
    pub descriptors: (Pblk, u32),
    /// Index of the first of these blocks within the table.
    pub first_descriptor_block: u32,
    /// First block and number of reserved descriptor blocks.
    pub reserved: (Pblk, u32),
}

impl Geometry {
    /// Computes the geometry of a superblock.
    ///
    /// # Errors
    /// The first number that breaks a rule of the format.
    pub fn new(sb: &Superblock) -> Result<Self, Malformed> {
        let rule =
            |holds: bool, rule: &'static str, found: u64| Malformed::unless(holds, "superblock", rule, found);
        let block_size = sb.block_size()?;
        let bs = block_size.bytes();
        let bigalloc = sb.features.has_ro_compat(Features::BIGALLOC);
        let cluster_log = sb.log_cluster_size.wrapping_sub(sb.log_block_size);
        if bigalloc {
            rule(
                cluster_log <= 16,
                "cluster size must be from the block size to 65536 blocks",
                sb.log_cluster_size.into(),
            )?;
        }
        let cluster_log = if bigalloc { cluster_log } else { 0 };
        let bpg = sb.blocks_per_group;
        rule(
            bpg >= 8 && bpg.is_multiple_of(8),
            "blocks_per_group must be a multiple of 8 above 0",
            bpg.into(),
        )?;
        let clusters = bpg >> cluster_log;
        let whole = u64::from(clusters) << cluster_log == u64::from(bpg);
        rule(
            whole && clusters > 0 && u64::from(clusters) <= 8 * bs,
            "a group's clusters must fit one bitmap block",
            bpg.into(),
        )?;
        let first_data_block = sb.first_data_block;
        rule(first_data_block <= 1, "first_data_block must be 0 or 1", first_data_block.into())?;
        let blocks = sb.blocks_count;
        rule(blocks > u64::from(first_data_block), "blocks_count must be above first_data_block", blocks)?;
        rule(blocks <= 1 << 48, "blocks_count must be at most 2^48", blocks)?;
        let groups = (blocks - u64::from(first_data_block)).div_ceil(u64::from(bpg));
        let groups = u32::try_from(groups)
            .map_err(|_| Malformed::new("superblock", "there must be fewer than 2^32 groups", groups))?;
        let inode_size = sb.inode_bytes();
        let sound = inode_size.is_power_of_two() && inode_size >= 128 && inode_size as u64 <= bs;
        rule(sound, "inode_size must be a power of two from 128 to the block size", inode_size as u64)?;
        let ipg = sb.inodes_per_group;
        rule(ipg > 0 && u64::from(ipg) <= 8 * bs, "a group's inodes must fit one bitmap block", ipg.into())?;
        let desc_size = sb.group_desc_size();
        let sound = desc_size == 32 || (desc_size.is_power_of_two() && (64..=1024).contains(&desc_size));
        rule(sound, "desc_size must be 32, or a power of two from 64 to 1024", desc_size as u64)?;
        let reserved = u32::from(sb.reserved_gdt_blocks);
        rule(
            u64::from(reserved) <= bs / 4,
            "reserved_gdt_blocks must be at most block size / 4",
            reserved.into(),
        )?;
        let flex = sb.features.has_incompat(Features::FLEX_BG);
        rule(
            !flex || sb.log_groups_per_flex < 32,
            "log_groups_per_flex must be below 32",
            sb.log_groups_per_flex.into(),
        )?;
        let meta_bg = sb.features.has_incompat(Features::META_BG);
        let desc_blocks = (u64::from(groups) * desc_size as u64).div_ceil(bs) as u32;
        Ok(Self {
            block_size,
            cluster_log,
            blocks,
            first_data_block,
            blocks_per_group: bpg,
            inodes_per_group: ipg,
            inode_size,
            desc_size,
            groups,
            desc_blocks,
            reserved_gdt_blocks: reserved,
            flex_log: if flex { sb.log_groups_per_flex.into() } else { 0 },
            first_meta_bg: meta_bg.then_some(sb.first_meta_bg),
            backups: if sb.features.has_compat(Features::SPARSE_SUPER2) {
                Backups::Named(sb.backup_bgs)
            } else if sb.features.has_ro_compat(Features::SPARSE_SUPER) {
                Backups::Sparse
            } else {
                Backups::All
            },
        })
    }

    /// Blocks per cluster.
    #[must_use]
    pub fn cluster_ratio(&self) -> u64 {
        1 << self.cluster_log
    }

    /// Clusters per group.
    #[must_use]
    pub fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group >> self.cluster_log
    }

    /// Descriptors per block.
    #[must_use]
    pub fn descs_per_block(&self) -> u32 {
        (self.block_size.len() / self.desc_size) as u32
    }

    /// Blocks of one group's inode table.
    #[must_use]
    pub fn itable_blocks(&self) -> u32 {
        self.block_size.blocks_for(u64::from(self.inodes_per_group) * self.inode_size as u64) as u32
    }

    /// Inodes in one block of the table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        (self.block_size.len() / self.inode_size) as u32
    }

    /// Inodes in the file system; saturates at 2^32 - 1, like `s_inodes_count`.
    #[must_use]
    pub fn inodes(&self) -> u32 {
        self.inodes_per_group.saturating_mul(self.groups)
    }

    /// First block of a group.
    #[must_use]
    pub fn group_start(&self, group: Group) -> Pblk {
        Pblk(u64::from(self.first_data_block) + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Number of blocks of a group; only the last group may be short.
    #[must_use]
    pub fn group_blocks(&self, group: Group) -> u32 {
        let left = self.blocks.saturating_sub(self.group_start(group).0);
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Number of clusters of a group, including a partial last one.
    #[must_use]
    pub fn group_clusters(&self, group: Group) -> u32 {
        u64::from(self.group_blocks(group)).div_ceil(self.cluster_ratio()) as u32
    }

    /// The group of a block; `None` outside the file system.
    #[must_use]
    pub fn group_of(&self, block: Pblk) -> Option<Group> {
        let within = block.0.checked_sub(self.first_data_block.into())?;
        (block.0 < self.blocks).then(|| Group((within / u64::from(self.blocks_per_group)) as u32))
    }

    /// Group of an inode and its index within the group; `None` for 0 and past the last inode.
    #[must_use]
    pub fn inode_place(&self, ino: Ino) -> Option<(Group, u32)> {
        let index = ino.0.checked_sub(1)?;
        let group = index / self.inodes_per_group;
        (group < self.groups).then_some((Group(group), index % self.inodes_per_group))
    }

    /// Whether this group has a copy of the superblock.
    #[must_use]
    pub fn has_super(&self, group: Group) -> bool {
        let g = group.0;
        match self.backups {
            _ if g == 0 => true,
            Backups::All => true,
            Backups::Named(groups) => groups.contains(&g),
            Backups::Sparse => g == 1 || [3, 5, 7].into_iter().any(|base| is_power_of(g, base)),
        }
    }

    /// Number of descriptor blocks that are stored in the classic table. Blocks from this index on are in
    /// meta block groups.
    #[must_use]
    pub fn classic_desc_blocks(&self) -> u32 {
        self.first_meta_bg.map_or(self.desc_blocks, |first| first.min(self.desc_blocks))
    }

    /// Whether the meta_bg feature is on.
    #[must_use]
    pub fn meta_bg(&self) -> bool {
        self.first_meta_bg.is_some()
    }

    /// The contents of a group's first blocks: copies of superblock and descriptors, reserved descriptor
    /// blocks.
    #[must_use]
    pub fn group_head(&self, group: Group) -> GroupHead {
        let start = self.group_start(group);
        let has_super = self.has_super(group);
        // With 1 KiB blocks in larger clusters, group 0 starts at block 0, but byte 1024 is in block 1.
        let shift =
            u64::from(group.0 == 0 && self.block_size == BlockSize::MIN && self.first_data_block == 0);
        let superblock = has_super.then_some(Pblk(start.0 + shift));
        let after = Pblk(start.0 + shift + u64::from(has_super));
        let per_block = self.descs_per_block();
        let meta_group = group.0 / per_block;
        let mut head = GroupHead { superblock, ..GroupHead::default() };
        if meta_group < self.classic_desc_blocks() {
            if has_super {
                let classic = self.classic_desc_blocks();
                head.descriptors = (after, classic);
                let reserved = if self.meta_bg() { 0 } else { self.reserved_gdt_blocks };
                head.reserved = (Pblk(after.0 + u64::from(classic)), reserved);
            }
        } else {
            let within = group.0 % per_block;
            if within == 0 || within == 1 || within == per_block - 1 {
                head.descriptors = (after, 1);
                head.first_descriptor_block = meta_group;
            }
        }
        head
    }

    /// Block and byte offset of a group's primary descriptor.
    #[must_use]
    pub fn descriptor_place(&self, group: Group) -> (Pblk, usize) {
        let per_block = self.descs_per_block();
        let index = group.0 / per_block;
        let at = (group.0 % per_block) as usize * self.desc_size;
        if index < self.classic_desc_blocks() {
            let head = self.group_head(Group(0));
            (Pblk(head.descriptors.0.0 + u64::from(index)), at)
        } else {
            (self.group_head(Group(index * per_block)).descriptors.0, at)
        }
    }

    /// The addresses of the first few backups of a group's descriptor; the byte offset in them is that of the
    /// primary.
    #[must_use]
    pub fn descriptor_backups(&self, group: Group) -> Vec<Pblk> {
        let per_block = self.descs_per_block();
        let index = group.0 / per_block;
        let groups: Vec<u32> = if index >= self.classic_desc_blocks() {
            let first = index * per_block;
            vec![first.saturating_add(1), first.saturating_add(per_block - 1)]
        } else {
            match self.backups {
                Backups::Named(groups) => groups.to_vec(),
                // The first eight groups with a backup are below 50.
                _ => (1..self.groups.min(50)).filter(|group| self.has_super(Group(*group))).take(8).collect(),
            }
        };
        let inside = groups.into_iter().filter(|backup| *backup > 0 && *backup < self.groups);
        let place = |backup| {
            let head = self.group_head(Group(backup));
            let at = index.checked_sub(head.first_descriptor_block).filter(|at| *at < head.descriptors.1)?;
            Some(Pblk(head.descriptors.0.0 + u64::from(at)))
        };
        inside.filter_map(place).collect()
    }

    /// Groups per flex group; 1 without flex_bg.
    #[must_use]
    pub fn groups_per_flex(&self) -> u32 {
        1u32.checked_shl(self.flex_log).unwrap_or(u32::MAX)
    }
}

fn is_power_of(mut n: u32, base: u32) -> bool {
    while n > 1 && n.is_multiple_of(base) {
        n /= base;
    }
    n == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Superblock {
        let mut sb = Superblock {
            inodes_count: 8192 * 200,
            blocks_count: 32768 * 200,
            log_block_size: 2,
            log_cluster_size: 2,
            blocks_per_group: 32768,
            clusters_per_group: 32768,
            inodes_per_group: 8192,
            inode_size: 256,
            desc_size: 64,
            rev_level: 1,
            ..Superblock::default()
        };
        sb.features = Features { compat: 0, incompat: Features::BIT64, ro_compat: Features::SPARSE_SUPER };
        sb
    }

    #[test]
    fn sparse_backups_stand_in_powers_of_3_5_and_7() {
        let geometry = Geometry::new(&sample()).unwrap();
        let with: Vec<u32> = (0..200).filter(|&g| geometry.has_super(Group(g))).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    }

    #[test]
    fn meta_bg_keeps_descriptors_in_first_second_and_last_group() {
        let mut sb = sample();
        sb.features.incompat |= Features::META_BG;
        let geometry = Geometry::new(&sb).unwrap(); // 64 descriptors a block
        for (group, block_in_group) in [(0, 1), (1, 1), (63, 0), (64, 0), (65, 0), (127, 0), (128, 0)] {
            let head = geometry.group_head(Group(group));
            assert_eq!(head.descriptors.1, 1, "group {group}");
            assert_eq!(head.descriptors.0.0, u64::from(group) * 32768 + block_in_group, "group {group}");
        }
        assert_eq!(geometry.group_head(Group(3)).descriptors.1, 0);
        assert_eq!(geometry.descriptor_place(Group(130)), (Pblk(128 * 32768), 128));
    }

    #[test]
    fn the_first_block_of_1k_file_systems_is_1() {
        let mut sb = sample();
        (sb.log_block_size, sb.log_cluster_size, sb.first_data_block) = (0, 0, 1);
        (sb.blocks_per_group, sb.inodes_per_group, sb.blocks_count) = (8192, 2048, 8193);
        let geometry = Geometry::new(&sb).unwrap();
        assert_eq!(geometry.groups, 1);
        assert_eq!(geometry.group_head(Group(0)).superblock, Some(Pblk(1)));
        assert_eq!(geometry.descriptor_place(Group(0)).0, Pblk(2));
    }

    proptest! {
        #[test]
        fn any_superblock_gives_a_geometry_or_a_reason(bytes in proptest::collection::vec(any::<u8>(), 1024)) {
            let mut bytes = bytes;
            bytes[0x38..0x3A].copy_from_slice(&0xEF53u16.to_le_bytes());
            bytes[0x18..0x20].fill(0); // a valid block size; others are refused first
            let sb = Superblock::decode(&bytes).unwrap();
            if let Ok(geometry) = Geometry::new(&sb) {
                for group in [0, 1, geometry.groups - 1] {
                    let _ = geometry.group_head(Group(group));
                    let _ = geometry.descriptor_place(Group(group));
                    let _ = geometry.group_blocks(Group(group));
                }
            }
        }
    }
}
