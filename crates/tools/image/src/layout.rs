//! Layout of group metadata: superblock copies, descriptor tables, bitmaps, inode tables.
//!
//! The order is that of mke2fs. With flex_bg, the block bitmaps of a flex group are contiguous, followed by
//! its inode bitmaps and its inode tables, from the flex group's first free block on. Without flex_bg, each
//! group contains its own.
//!
//! Invariants
//! 1. All blocks placed here are taken in [`Layout::space`], each exactly once.
//! 2. The layout depends only on the geometry and the [`Habits`].
//!
//! Source: kernel Documentation/filesystems/ext4/group_descr.rst, blockgroup.rst.

use extant_base::{BlockSize, Group};
use extant_ondisk::Geometry;

use crate::space::Space;

/// Block addresses of a group's bitmaps and inode table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupPlace {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
}

/// The addresses of all group metadata, and the blocks that are taken.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The geometry.
    pub geometry: Geometry,
    /// One per group.
    pub places: Vec<GroupPlace>,
    /// Taken blocks: at first the metadata, later everything.
    pub space: Space,
}

/// No room for the bitmaps and tables: group `group` needs `len` contiguous free blocks, and there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for the metadata of group {group}: {len} blocks in a row are not free")]
pub struct NoRoom {
    /// The group.
    pub group: u32,
    /// Number of contiguous blocks needed.
    pub len: u64,
}

/// The options that the layout depends on besides the geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Habits {
    /// Whether a flex group with a single group reserves as much room for bitmaps as a full one, as mke2fs
    /// does.
    pub lonely_rows: bool,
    /// `-E stride`, in blocks, or 0. Without flex groups, the bitmaps of each group are this much further
    /// from its start than those of the group before. Otherwise all bitmaps would be on the same disk of a
    /// stripe.
    pub stride: u64,
    /// `-E packed_meta_blocks`: the bitmaps and tables of all groups are at the beginning, regardless of the
    /// size of a flex group.
    pub packed: bool,
}

impl Layout {
    /// Lays out all groups.
    ///
    /// # Errors
    /// The device is too small for its own metadata.
    pub fn new(geometry: Geometry, habits: Habits) -> Result<Self, NoRoom> {
        // On large devices a search without success takes long, so compare the sum first.
        let each = 2 + u64::from(geometry.itable_blocks());
        if each * u64::from(geometry.groups) > geometry.blocks {
            return Err(NoRoom { group: geometry.groups - 1, len: each });
        }
        // Metadata is allocated by blocks, even if files are allocated by clusters.
        let mut space = Space::new(1);
        space.take(0, geometry.first_data_block.into());
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
        if habits.packed && layout.geometry.flex_log > 0 {
            layout.place_packed()?;
        } else {
            for group in 0..layout.geometry.groups {
                layout.place_group(group, habits)?;
            }
        }
        layout.space = layout.space.in_units(layout.geometry.cluster_ratio());
        Ok(layout)
    }

    /// All block bitmaps, then all inode bitmaps, then all tables, from the first free block on.
    fn place_packed(&mut self) -> Result<(), NoRoom> {
        let table_len = u64::from(self.geometry.itable_blocks());
        type Field = fn(&mut GroupPlace) -> &mut u64;
        let kinds: [(u64, Field); 3] = [
            (1, |place| &mut place.block_bitmap),
            (1, |place| &mut place.inode_bitmap),
            (table_len, |place| &mut place.inode_table),
        ];
        let mut at = self.geometry.first_data_block.into();
        for (len, field) in kinds {
            for group in 0..self.geometry.groups {
                let found = self.space.find(at, self.geometry.blocks, len).ok_or(NoRoom { group, len })?;
                self.space.take(found, len);
                *field(&mut self.places[group as usize]) = found;
                at = found + len;
            }
        }
        Ok(())
    }

    fn place_group(&mut self, group: u32, habits: Habits) -> Result<(), NoRoom> {
        let table_len = u64::from(self.geometry.itable_blocks());
        let per_flex = self.geometry.groups_per_flex();
        // The first group of a flex group leaves room for contiguous bitmaps; each other group follows its
        // neighbour.
        let neighbour = (!group.is_multiple_of(per_flex)).then(|| self.places[group as usize - 1]);
        let row = match self.geometry.groups - group {
            1 if habits.lonely_rows => per_flex,
            left => left.min(per_flex),
        };
        let row = u64::from(row);
        let wish = if per_flex == 1 {
            self.striped(group, table_len, habits.stride)
        } else {
            neighbour.map(|n| n.block_bitmap + 1)
        };
        let block_bitmap = self.place(group, wish, 1)?;
        let wish = neighbour.map_or(block_bitmap + row, |n| n.inode_bitmap + 1);
        let inode_bitmap = self.place(group, Some(wish), 1)?;
        let wish = neighbour.map_or(inode_bitmap + row, |n| n.inode_table + table_len);
        let inode_table = self.place(group, (per_flex > 1).then_some(wish), table_len)?;
        self.places[group as usize] = GroupPlace { block_bitmap, inode_bitmap, inode_table };
        Ok(())
    }

    /// The preferred address of the bitmaps of a group without flex group neighbours: after the room for its
    /// table, shifted by the stride times the group number.
    fn striped(&self, group: u32, table_len: u64, stride: u64) -> Option<u64> {
        if stride == 0 {
            return None;
        }
        let start = self.geometry.group_start(Group(group)).0;
        let last = start + u64::from(self.geometry.group_blocks(Group(group))) - 1;
        let behind = self.space.find(start, last + 1, 1)? + table_len;
        let shift = (stride * u64::from(group)).checked_rem((last + 1).checked_sub(behind)?)?;
        (behind + shift < last).then_some(behind + shift)
    }

    /// Finds and takes `len` blocks for `group`: with flex_bg at `wish` if they are free, without it at or
    /// after `wish` if possible.
    fn place(&mut self, group: u32, wish: Option<u64>, len: u64) -> Result<u64, NoRoom> {
        let found = if self.geometry.flex_log > 0 {
            self.find_in_flex(group, wish, len)
        } else {
            self.find_in_group(group, wish, len)
        };
        let start = found.ok_or(NoRoom { group, len })?;
        self.space.take(start, len);
        Ok(start)
    }

    /// The first free blocks of a group, at or after `wish` if possible.
    fn find_in_group(&self, group: u32, wish: Option<u64>, len: u64) -> Option<u64> {
        let start = self.geometry.group_start(Group(group)).0;
        let end = start + u64::from(self.geometry.group_blocks(Group(group)));
        wish.and_then(|from| self.space.find(from, end, len)).or_else(|| self.space.find(start, end, len))
    }

    fn find_in_flex(&self, group: u32, wish: Option<u64>, len: u64) -> Option<u64> {
        let geometry = &self.geometry;
        let per_flex = geometry.groups_per_flex();
        let first = group - group % per_flex;
        if let Some(at) = wish
            && self.space.is_free(at, len)
            && at + len <= geometry.blocks
        {
            return Some(at);
        }
        let last = (u64::from(first) + u64::from(per_flex)).min(geometry.groups.into()) as u32 - 1;
        let flex_start = geometry.group_start(Group(first)).0;
        let flex_end = geometry.group_start(Group(last)).0 + u64::from(geometry.group_blocks(Group(last)));
        // Look for room for all remaining groups, so that their metadata is contiguous, but for no more than
        // an eighth of a group.
        let row = (len * u64::from(last - group + 1)).min(u64::from(geometry.blocks_per_group) / 8);
        self.space
            .find(flex_start, flex_end, row.max(len))
            .or_else(|| self.space.find(flex_start, flex_end, len))
            .or_else(|| self.space.find(geometry.first_data_block.into(), flex_end, len))
            .or_else(|| self.space.find(flex_start, geometry.blocks, len))
    }

    /// Number of free clusters of a group.
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
