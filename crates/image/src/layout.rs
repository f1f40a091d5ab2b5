//! Where group metadata lies: superblock copies, descriptor tables, bitmaps, inode tables.
//!
//! The order is mke2fs's: with flex_bg, the bitmaps of a flex group stand in a row, then its inode bitmaps,
//! then its inode tables, from the flex group's first free block on; without, each group keeps its own.
//!
//! Invariants
//! 1. Everything placed here is taken in [`Layout::space`], and nothing is taken twice.
//! 2. The layout depends on the geometry alone.
//!
//! Source: kernel Documentation/filesystems/ext4/group_descr.rst, blockgroup.rst.

use extant_base::{BlockSize, Group};
use extant_ondisk::Geometry;

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

/// What the layout depends on besides the geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Habits {
    /// A flex group of a single group gets as much room for bitmaps as a whole one would, as mke2fs does it.
    pub lonely_rows: bool,
    /// `-E stride`, in blocks, or 0. Without flex groups, the bitmaps of each group stand so much further
    /// behind its start than those of the group before: else they would all lie on the same disk of a stripe.
    pub stride: u64,
    /// `-E packed_meta_blocks`: the bitmaps and tables of all groups stand at the beginning, whatever the
    /// size of a flex group.
    pub packed: bool,
}

impl Layout {
    /// Lays out all groups.
    ///
    /// # Errors
    /// When the device is too small for its own metadata.
    pub fn new(geometry: Geometry, habits: Habits) -> Result<Self, NoRoom> {
        // Searching for room that cannot be there takes long on large devices: judge by the sum first.
        let each = 2 + u64::from(geometry.itable_blocks());
        if each * u64::from(geometry.groups) > geometry.blocks {
            return Err(NoRoom { group: geometry.groups - 1, len: each });
        }
        // Metadata is packed by blocks, also where files are allocated by clusters.
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
        // The first group of a flex group leaves room for rows of bitmaps; each other one follows its
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

    /// Where a group without neighbours in a flex group should keep its bitmaps: behind the place of its
    /// table, and further by the stride in each group.
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

    /// Finds and takes `len` blocks for `group`: with flex_bg at `wish` if they are free there.
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

    /// The first free blocks of a group, from `wish` on if there are any.
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
        // Room for all that are still to come, so that they stand in a row; but not more than a part of a
        // group.
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
