//! The pending change of a shrink: all that takes effect with the next switch.
//!
//! ```text
//! metadata, inodes, files ... -> Pending: blocks, descriptors, bitmaps, superblock -> commit: one switch
//! ```
//!
//! Owns: the changed blocks, the descriptors and the superblock after the next switch, the free space
//! ([`Space`]), the copies of data, the counts of what has moved. Does **not** own: what changes, the order
//! of writes (see [`switch`](crate::switch)).
//!
//! Invariants
//! 1. After [`Pending::commit`] nothing is pending, and [`Fs`] is as on the device.
//! 2. All copies are written before a switch refers to them.
//! 3. While [`is_in_part`](Pending::is_in_part), only [`Pending::commit_with_last`] makes a switch.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_base::Ino;
use extant_device::DeviceFault;
use extant_ondisk::Geometry;
use extant_ondisk::bitmap::GroupBitmap;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::Superblock;

use super::Moved;
use super::space::Space;
use crate::copier::Copier;
use crate::fault::ResizeFault;
use crate::fs::Fs;
use crate::plan::PlanFault;
use crate::switch::{Blocks, Change, Switcher};

/// Changes of a file system that take effect together.
pub(super) struct Pending<'f> {
    /// As it is on the device.
    pub(super) fs: &'f mut Fs,
    pub(super) switcher: Switcher,
    copier: Copier,
    /// Fails if the work must stop.
    check: &'f dyn Fn() -> Result<(), ResizeFault>,
    /// The largest number of blocks of a switch.
    pub(super) room: usize,
    pub(super) space: Space,
    /// Changed blocks, except for block bitmaps and descriptors.
    pub(super) blocks: Blocks,
    /// The descriptors from the next switch on, except for block bitmaps.
    table: Vec<u8>,
    /// Groups whose descriptor changes although their block bitmap may not.
    described: BTreeSet<u32>,
    /// The superblock from the next switch on, except for the number of free blocks.
    pub(super) sb: Superblock,
    /// The change lacks something, and a switch would damage the file system.
    pub(super) is_in_part: bool,
    pub(super) moved: Moved,
    /// Of what has moved, that whose switch is made.
    pub(super) durable: Moved,
}

impl<'f> Pending<'f> {
    /// Nothing is pending. The end will be that of `geometry`.
    pub(super) fn new(
        fs: &'f mut Fs,
        switcher: Switcher,
        geometry: &Geometry,
        check: &'f dyn Fn() -> Result<(), ResizeFault>,
    ) -> Result<Self, ResizeFault> {
        Ok(Self {
            room: switcher.room()?,
            space: Space::new(geometry),
            blocks: Blocks::new(),
            table: fs.table.clone(),
            described: BTreeSet::new(),
            sb: fs.sb.clone(),
            is_in_part: false,
            moved: Moved::default(),
            durable: Moved::default(),
            switcher,
            copier: Copier::new(&fs.device),
            check,
            fs,
        })
    }

    /// Fails if the work must stop.
    pub(super) fn check(&self) -> Result<(), ResizeFault> {
        (self.check)()
    }

    /// A block that a map names, as it will be after the switch.
    pub(super) fn current(&self, block: u64) -> Result<Vec<u8>, ResizeFault> {
        if block >= self.fs.geometry.blocks || block == 0 {
            return Err(ResizeFault::Damaged(format!("a map has block {block}, which does not exist")));
        }
        match self.blocks.get(&block) {
            Some(bytes) => Ok(bytes.clone()),
            None => Ok(self.fs.block(block)?),
        }
    }

    /// A block, to be changed.
    pub(super) fn block_mut(&mut self, block: u64) -> Result<&mut Vec<u8>, DeviceFault> {
        self.fs.block_in(&mut self.blocks, block)
    }

    /// The bytes of an inode, to be changed.
    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut [u8], ResizeFault> {
        let (block, at) = self.fs.inode_place(ino)?;
        Ok(&mut self.block_mut(block)?[at])
    }

    /// A group's descriptor, as it will be after the switch, except for the block bitmap.
    pub(super) fn desc(&self, group: u32) -> Result<GroupDesc, ResizeFault> {
        self.fs.desc_in(&self.table, &self.fs.geometry, group)
    }

    pub(super) fn put_desc(&mut self, group: u32, desc: &GroupDesc) {
        self.fs.put_desc(&mut self.table, &self.fs.geometry, group, desc);
        self.described.insert(group);
    }

    /// Stores a changed inode bitmap with its descriptor.
    pub(super) fn put_inode_bitmap(&mut self, group: u32, desc: &mut GroupDesc, bitmap: &GroupBitmap) {
        self.fs.put_inode_bitmap(&mut self.blocks, desc, bitmap);
        self.put_desc(group, desc);
    }

    /// Allocates up to `len` blocks in a row, see [`Space::allocate`].
    pub(super) fn allocate(&mut self, len: u64, goal: u32) -> Result<Range<u64>, ResizeFault> {
        self.space.allocate(self.fs, len, goal)
    }

    /// Frees blocks with the next switch.
    pub(super) fn free(&mut self, run: Range<u64>) -> Result<(), ResizeFault> {
        self.space.free(self.fs, run)
    }

    /// Frees blocks that were allocated and are not needed.
    pub(super) fn clear(&mut self, run: Range<u64>) -> Result<(), ResizeFault> {
        self.space.clear(self.fs, run)
    }

    /// Writes a block that nothing refers to before the switch.
    pub(super) fn write(&self, block: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.fs.device.write_at(block << self.fs.geometry.block_size.log2(), bytes)
    }

    /// Copies blocks, at the latest before the next switch.
    pub(super) fn copy(&mut self, from: u64, to: u64, len: u64) {
        let log2 = self.fs.geometry.block_size.log2();
        self.copier.copy(from << log2, to << log2, len << log2);
    }

    /// Moves a block of a map, with its pending change. Returns its place.
    pub(super) fn move_block(&mut self, block: u64) -> Result<u64, ResizeFault> {
        let bytes = self.current(block)?;
        let place = self.allocate(1, 0)?.start;
        self.blocks.remove(&block);
        self.write(place, &bytes)?;
        self.free(block..block + 1)?;
        self.moved.blocks += 1;
        Ok(place)
    }

    /// An upper bound of the blocks of the next switch.
    fn len(&self) -> usize {
        self.blocks.len() + 2 * self.space.dirty_len() + self.described.len() + 2
    }

    /// Makes room for `blocks` blocks more in the next switch.
    pub(super) fn reserve(&mut self, blocks: usize) -> Result<(), ResizeFault> {
        let room = self.room;
        if blocks + self.len() > room {
            self.commit()?;
            if blocks > room {
                return Err(PlanFault::JournalTooSmall { needed: blocks, room }.into());
            }
        }
        Ok(())
    }

    /// Makes a switch if the change is whole, and half of the room is used.
    pub(super) fn commit_if_full(&mut self) -> Result<(), ResizeFault> {
        if !self.is_in_part && self.len() > self.room / 2 { self.commit() } else { Ok(()) }
    }

    /// Makes the change take effect.
    pub(super) fn commit(&mut self) -> Result<(), ResizeFault> {
        self.commit_with_last(None)
    }

    /// As [`commit`](Self::commit); the block `last` goes home last, see [`Switcher::switch_with_last`].
    pub(super) fn commit_with_last(&mut self, last: Option<u64>) -> Result<(), ResizeFault> {
        self.space.settle(self.fs)?;
        if self.blocks.is_empty() && self.space.dirty_len() == 0 {
            return Ok(());
        }
        self.described.clear();
        self.copier.wait()?;
        self.check()?;
        let mut change = Change { early: std::mem::take(&mut self.blocks), late: Blocks::new() };
        let mut sb = self.sb.clone();
        let mut free = i64::try_from(sb.free_blocks_count).unwrap_or(i64::MAX);
        for (group, bitmap) in self.space.take_dirty() {
            let mut desc = self.fs.desc_in(&self.table, &self.fs.geometry, group)?;
            let before = desc.free_clusters;
            self.fs.put_block_bitmap(&mut change.early, &mut desc, bitmap);
            free += (i64::from(desc.free_clusters) - i64::from(before)) << self.fs.geometry.cluster_log;
            self.fs.put_desc(&mut self.table, &self.fs.geometry, group, &desc);
        }
        sb.free_blocks_count = free.max(0) as u64;
        self.fs.changed_descriptors(&self.table, &self.fs.geometry, &mut change.early);
        self.switcher.switch_with_last(change, &sb, last)?;
        self.fs.sb.clone_from(&sb);
        self.sb = sb;
        self.fs.table.clone_from(&self.table);
        self.moved.switches += 1;
        self.durable = self.moved;
        Ok(())
    }
}
