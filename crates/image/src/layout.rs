//! Where group metadata lies: superblock copies, descriptor tables, bitmaps, inode tables.
//!
//! The order is mke2fs's: with flex_bg, the bitmaps of a flex group stand in a row, then its inode bitmaps, then its inode
//! tables, from the flex group's first free block on; without, each group keeps its own.
//!
//! Invariants
//! 1. Everything placed here is taken in [`Layout::space`], and nothing is taken twice.
//! 2. The layout depends on the geometry alone.
//!
//! Source: spec 07 sections 5 and 6.

use base::{BlockSize, Group};
use ondisk::Geometry;

use crate::space::Space;

/// Where one group keeps its bitmaps and its inode table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupPlace {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
}

/// The places of all group metadata, and what is taken so far.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The numbers.
    pub geometry: Geometry,
    /// One per group.
    pub places: Vec<GroupPlace>,
    /// What is taken: at first the metadata, later everything.
    pub space: Space,
}

/// The bitmaps and tables do not fit: this many blocks in a row were not found for group `group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for the metadata of group {group}: {len} blocks in a row are not free")]
pub struct NoRoom {
    /// The group.
    pub group: u32,
    /// Blocks wanted in a row.
    pub len: u64,
}

impl Layout {
    /// Lays out all groups.
    ///
    /// # Errors
    /// When the device is too small for its own metadata.
    pub fn new(geometry: Geometry) -> Result<Self, NoRoom> {
        let mut space = Space::new(geometry.cluster_ratio());
        if geometry.block_size == BlockSize::MIN && geometry.first_data_block == 0 {
            space.take(0, 1); // the boot block, inside the first cluster
        }
        for group in 0..geometry.groups {
            let head = geometry.group_head(Group(group));
            if let Some(block) = head.superblock {
                space.take(block.0, 1);
            }
            space.take(head.descriptors.0.0, head.descriptors.1.into());
            space.take(head.reserved.0.0, head.reserved.1.into());
        }
        let places = vec![GroupPlace::default(); geometry.groups as usize];
        let mut layout = Self { geometry, places, space };
        for group in 0..layout.geometry.groups {
            layout.place_group(group)?;
        }
        Ok(layout)
    }

    fn place_group(&mut self, group: u32) -> Result<(), NoRoom> {
        let table_len = u64::from(self.geometry.itable_blocks());
        let before = |pick: fn(&GroupPlace) -> u64, places: &[GroupPlace]| {
            (group > 0).then(|| pick(&places[group as usize - 1]))
        };
        let block_bitmap = before(|p| p.block_bitmap, &self.places);
        let block_bitmap = self.place(group, block_bitmap.map(|b| b + 1), 1)?;
        let inode_bitmap = before(|p| p.inode_bitmap, &self.places);
        let inode_bitmap = self.place(group, inode_bitmap.map(|b| b + 1), 1)?;
        let inode_table = before(|p| p.inode_table, &self.places);
        let inode_table = self.place(group, inode_table.map(|b| b + table_len), table_len)?;
        self.places[group as usize] = GroupPlace { block_bitmap, inode_bitmap, inode_table };
        Ok(())
    }

    /// Finds and takes `len` blocks for `group`, right behind its neighbour's of the same kind where it can.
    fn place(&mut self, group: u32, neighbour_end: Option<u64>, len: u64) -> Result<u64, NoRoom> {
        let found = if self.geometry.flex_log > 0 {
            self.find_in_flex(group, neighbour_end, len)
        } else {
            self.find_in_group(group, len)
        };
        let start = found.ok_or(NoRoom { group, len })?;
        self.space.take(start, len);
        Ok(start)
    }

    fn find_in_group(&self, group: u32, len: u64) -> Option<u64> {
        let start = self.geometry.group_start(Group(group)).0;
        let end = start + u64::from(self.geometry.group_blocks(Group(group)));
        self.space.find(start, end, len)
    }

    fn find_in_flex(&self, group: u32, neighbour_end: Option<u64>, len: u64) -> Option<u64> {
        let geometry = &self.geometry;
        let per_flex = geometry.groups_per_flex();
        let first = group - group % per_flex;
        if group != first
            && let Some(at) = neighbour_end
            && self.space.is_free(at, len)
            && at + len <= geometry.blocks
        {
            return Some(at);
        }
        let last = (u64::from(first) + u64::from(per_flex)).min(geometry.groups.into()) as u32 - 1;
        let flex_start = geometry.group_start(Group(first)).0;
        let flex_end = geometry.group_start(Group(last)).0 + u64::from(geometry.group_blocks(Group(last)));
        // Room for all that are still to come, so that they stand in a row; but not more than a part of a group.
        let row = (len * u64::from(last - group + 1)).min(u64::from(geometry.blocks_per_group) / 8);
        self.space
            .find(flex_start, flex_end, row.max(len))
            .or_else(|| self.space.find(flex_start, flex_end, len))
            .or_else(|| self.space.find(geometry.first_data_block.into(), flex_end, len))
            .or_else(|| self.space.find(flex_start, geometry.blocks, len))
    }

    /// Free blocks of a group, in whole clusters' worth.
    #[must_use]
    pub fn free_clusters(&self, group: u32) -> u32 {
        let geometry = &self.geometry;
        let start = geometry.group_start(Group(group)).0;
        let end = start + u64::from(geometry.group_blocks(Group(group)));
        let taken: u64 = self
            .space
            .taken_within(start, end)
            .map(|run| run.end().div_ceil(geometry.cluster_ratio()) - run.start / geometry.cluster_ratio())
            .sum();
        geometry.group_clusters(Group(group)) - taken as u32
    }
}
