//! Allocation without data: reserving blocks, punching holes, zeroing, and shifting what follows.
//!
//! ```text
//!   reserve   holes get unwritten blocks; the size grows, unless it is kept
//!   punch     edges zeroed in memory; whole blocks dropped from memory, unmapped and freed
//!   zero      whole blocks become unwritten, holes get blocks, edges zeroed
//!   collapse  a punch, and what follows shifts left        insert  what follows shifts right
//! ```
//!
//! A change that takes several transactions leaves a consistent file after each, as in the kernel, with a
//! part of it done.
//!
//! A file with journaled data has only its blocks, no cached data: zeroing changes the blocks through the
//! log. For other files data must be on the device first; here the same log orders it.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024; fallocate(2).

mod target;

use std::ops::Range;
use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_extent_status::{Entry, Status};
use extant_inode::{Change, LiveInode, NewBlockOptions};
use extant_mapping::MapState;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

pub(super) use self::target::FallocateFile;
use super::Writer;
use super::announce::Announced;
use super::truncate::SMALL_MAX;
use super::views::SizeEdits;
use crate::ops::errors::Operation;
use crate::{Fault, Files, Refusal};

/// What to do with a range of a file: fallocate(2)'s modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Allocate {
    /// Reserve blocks; the file grows if the range ends past its end. Mode 0.
    Reserve,
    /// Reserve blocks, also past the end; the size stays. FALLOC_FL_KEEP_SIZE.
    Keep,
    /// Make it a hole. FALLOC_FL_PUNCH_HOLE, always with KEEP_SIZE.
    Punch,
    /// Make it zeros, with blocks reserved; the file grows if necessary. FALLOC_FL_ZERO_RANGE.
    Zero,
    /// As [`Zero`](Self::Zero), but the size stays. With FALLOC_FL_KEEP_SIZE.
    ZeroKeep,
    /// Remove the range: what follows shifts left. Whole clusters only. FALLOC_FL_COLLAPSE_RANGE.
    Collapse,
    /// Insert a hole: the range and what follows shift right. Whole clusters only. FALLOC_FL_INSERT_RANGE.
    Insert,
    /// Zeros, with written blocks on the device: later writes there change no map. The file grows if the
    /// range ends past its end. FALLOC_FL_WRITE_ZEROES.
    WriteZeroes,
    /// Unshare blocks. Not supported: ext4 has no shared blocks. FALLOC_FL_UNSHARE_RANGE.
    Unshare,
}

/// The kernel's unit of rounding.
const PAGE: u64 = 4096;

impl Files<'_> {
    /// Changes the blocks of a range of a regular file.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for an empty range, or one that the mode does not permit;
    /// [`Refusal::NotSupported`] if the mode does not fit the file (a map without extents can only be
    /// punched); [`Refusal::TooLarge`], [`Refusal::NoSpace`]: a part may be done then;
    /// [`Refusal::NotPermitted`], [`Refusal::WrongType`], [`Refusal::IsDirectory`]; the device failed.
    pub fn fallocate(self, ino: Ino, mode: Allocate, pos: u64, len: u64) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        self.volume.noted(Operation::Fallocate, writer.sizes().fallocate(ino, mode, pos, len))
    }
}

impl SizeEdits<'_> {
    fn fallocate(self, ino: Ino, mode: Allocate, pos: u64, len: u64) -> Result<(), Fault> {
        if len == 0 || pos.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(if len == 0 { Refusal::Invalid } else { Refusal::TooLarge }.into());
        }
        let node = self.writer.inode_to_change(ino)?;
        let _operation = self.writer.names().lock_node(&node)?;
        self.check_allocatable(&node, mode, pos..pos + len)?;
        if node.values().has_flag(flags::INLINE_DATA) {
            self.move_data_out(&node)?;
        }
        let is_mapped_by_extents = node.values().has_flag(flags::EXTENTS);
        if !is_mapped_by_extents && mode != Allocate::Punch {
            return Err(Refusal::NotSupported.into());
        }
        let file = FallocateFile::new(self.writer, &node);
        let range = pos..pos + len;
        match mode {
            Allocate::Reserve | Allocate::Keep => self.reserve(&file, &range, mode == Allocate::Keep)?,
            Allocate::Punch => self.punch(&file, &range)?,
            Allocate::Zero | Allocate::ZeroKeep => {
                self.zero_range(&file, &range, mode == Allocate::ZeroKeep)?;
            }
            Allocate::Collapse => self.collapse(&file, &range)?,
            Allocate::Insert => self.insert(&file, &range)?,
            Allocate::WriteZeroes => {
                self.zero_range(&file, &range, false)?;
                self.write_zeroes(&file, &range)?;
            }
            Allocate::Unshare => return Err(Refusal::NotSupported.into()),
        }
        self.writer.data().note_write(&node, true)
    }

    fn check_allocatable(self, node: &LiveInode, mode: Allocate, range: Range<u64>) -> Result<(), Fault> {
        let values = node.values();
        match values.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Refusal::IsDirectory.into()),
            _ => return Err(Refusal::WrongType.into()),
        }
        let adds_only = matches!(mode, Allocate::Reserve | Allocate::Keep);
        if values.has_flag(flags::IMMUTABLE | flags::VERITY) || values.has_flag(flags::APPEND) && !adds_only {
            return Err(Refusal::NotPermitted.into());
        }
        if values.has_flag(flags::ENCRYPT) {
            return Err(Refusal::NeedsKey.into());
        }
        if range.end > self.size_max(true) {
            return Err(Refusal::TooLarge.into());
        }
        Ok(())
    }

    /// The blocks that a byte range touches.
    fn blocks_around(self, range: &Range<u64>) -> Range<u64> {
        let bs = self.writer.shared().geometry.block_size;
        range.start >> bs.log2()..bs.blocks_for(range.end)
    }

    /// The blocks that lie completely in a byte range.
    fn blocks_inside(self, range: &Range<u64>) -> Range<u64> {
        let bs = self.writer.shared().geometry.block_size;
        bs.blocks_for(range.start)..range.end >> bs.log2()
    }

    fn reserve(self, file: &FallocateFile<'_>, range: &Range<u64>, keep_size: bool) -> Result<(), Fault> {
        // Delayed extents get their blocks by this.
        file.write_back(0..u64::MAX)?;
        if !keep_size {
            file.end_in_zeros(range.end)?;
        }
        let blocks = self.blocks_around(range);
        let bs = self.writer.shared().geometry.block_size;
        let mut at = blocks.start;
        while at < blocks.end {
            let len = u32::try_from(blocks.end - at).unwrap_or(u32::MAX);
            let entry = file.entry(Lblk(at as u32), len)?;
            let mut next = u64::from(entry.end());
            if entry.status == Status::Hole {
                let grows_to = |end: u64| (!keep_size).then(|| (end << bs.log2()).min(range.end));
                next = self.writer.run(Change::map_credits() + 1, |change| {
                    let entry = map_unwritten(change, file, &entry)?;
                    let end = u64::from(entry.end());
                    if let Some(size) = grows_to(end) {
                        self.grow_to(change, file, size)?;
                    }
                    self.writer.keeper.fast.mapped(change, file.node, entry.lblk.0.into()..end);
                    Ok(end)
                })?;
            }
            at = next;
        }
        if !keep_size && range.end > file.size() {
            self.writer.run(1, |change| {
                self.grow_to(change, file, range.end)?;
                self.writer.keeper.fast.touched(change, file.node, true);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Raises the size in memory and on disk, if it is smaller.
    fn grow_to(self, change: &Change<'_>, file: &FallocateFile<'_>, size: u64) -> Result<(), Fault> {
        if size <= file.size() {
            return Ok(());
        }
        if size > SMALL_MAX {
            self.writer.keeper.announce(change, Announced::LargeFiles)?;
        }
        put_size(change, file.node, size);
        file.note_mapped(change);
        file.set_size(size);
        Ok(())
    }

    fn punch(self, file: &FallocateFile<'_>, range: &Range<u64>) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size;
        let size = file.size();
        if range.start >= size {
            return Ok(());
        }
        // As the kernel: a range past the end includes the rest of the last page.
        let end = if range.end > size { size.next_multiple_of(bs.bytes().max(PAGE)) } else { range.end };
        let range = range.start..end;
        file.zero_edges(&range)?;
        let blocks = self.blocks_inside(&range);
        if blocks.start < blocks.end {
            let on_disk = file.node.values().fields.size;
            if on_disk < size && blocks.end << bs.log2() > on_disk {
                // Part of the punched data is dirty, and only its writeback raises the size on disk. Without
                // it the size on disk would stay too small.
                file.write_back(0..u64::MAX)?;
            }
            // Read now, so that no read fails after data was dropped that is nowhere else.
            Change::read_for_punch(
                self.writer.inodes(),
                &self.writer.keeper.alloc,
                file.node,
                blocks.clone(),
            )?;
            let _fills = file.stop_fills();
            let is_final = file.is_held(&blocks);
            file.discard(&blocks);
            let unmapped = self.unmap(file, &blocks);
            if is_final {
                self.or_abort(unmapped)?
            } else {
                unmapped?
            }
            file.learn_hole(&blocks);
        }
        Ok(())
    }

    /// Unmaps blocks without cached data.
    fn unmap(self, file: &FallocateFile<'_>, blocks: &Range<u64>) -> Result<(), Fault> {
        {
            let _mapping = file.lock_map();
            file.forget(blocks);
        }
        let mut end = Some(blocks.end);
        while let Some(left) = end {
            end = self.writer.run(Change::cut_credits(self.writer.shared()), |change| {
                file.note_mapped(change);
                Ok(change.punch(file.node, blocks.start..left)?)
            })?;
        }
        Ok(())
    }

    /// Refuses a range that is not whole clusters.
    fn check_clusters(self, range: &Range<u64>) -> Result<(), Fault> {
        let geometry = &self.writer.shared().geometry;
        let cluster = geometry.cluster_ratio() << geometry.block_size.log2();
        let is_whole = range.start.is_multiple_of(cluster) && range.end.is_multiple_of(cluster);
        if is_whole { Ok(()) } else { Err(Refusal::Invalid.into()) }
    }

    fn collapse(self, file: &FallocateFile<'_>, range: &Range<u64>) -> Result<(), Fault> {
        self.check_clusters(range)?;
        let size = file.size();
        if range.end >= size {
            return Err(Refusal::Invalid.into());
        }
        file.write_back(0..u64::MAX)?;
        let _fills = file.stop_fills();
        file.drop_from(range.start);
        let blocks = self.blocks_inside(range);
        self.unmap(file, &blocks)?;
        let by = (blocks.end - blocks.start) as u32;
        let mut next = Some(blocks.end);
        while let Some(from) = next {
            next = self.writer.run(Change::shift_credits(self.writer.shared()), |change| {
                let _mapping = file.lock_map();
                file.note_mapped(change);
                let next = change.shift_left(file.node, from, by)?;
                if next.is_none() {
                    put_size(change, file.node, size - (range.end - range.start));
                }
                Ok(next)
            })?;
        }
        file.set_size(size - (range.end - range.start));
        Ok(())
    }

    fn insert(self, file: &FallocateFile<'_>, range: &Range<u64>) -> Result<(), Fault> {
        self.check_clusters(range)?;
        let len = range.end - range.start;
        let size = file.size();
        if size.checked_add(len).is_none_or(|size| size > self.size_max(true)) {
            return Err(Refusal::TooLarge.into());
        }
        if range.start >= size {
            return Err(Refusal::Invalid.into());
        }
        file.write_back(0..u64::MAX)?;
        let _fills = file.stop_fills();
        file.drop_from(range.start);
        let blocks = self.blocks_inside(range);
        let by = (blocks.end - blocks.start) as u32;
        let mut end = Some(1 << 32);
        while let Some(to) = end {
            end = self.writer.run(Change::shift_credits(self.writer.shared()) + 1, |change| {
                let _mapping = file.lock_map();
                file.note_mapped(change);
                let end = change.shift_right(file.node, blocks.start..to, by)?;
                // In the first step, the last one that may be refused: otherwise blocks shifted past the end
                // would be cut off.
                if to == 1 << 32 {
                    if size + len > SMALL_MAX {
                        self.writer.keeper.announce(change, Announced::LargeFiles)?;
                    }
                    put_size(change, file.node, size + len);
                }
                Ok(end)
            })?;
            // The size on disk has changed, even if a later step fails.
            file.set_size(size + len);
        }
        Ok(())
    }

    fn zero_range(self, file: &FallocateFile<'_>, range: &Range<u64>, keep_size: bool) -> Result<(), Fault> {
        file.write_back(0..u64::MAX)?;
        if !keep_size {
            file.end_in_zeros(range.end)?;
        }
        file.zero_edges(range)?;
        let blocks = self.blocks_inside(range);
        if blocks.start < blocks.end {
            let _fills = file.stop_fills();
            file.discard(&blocks);
            let mut at = Some(blocks.start);
            while let Some(from) = at {
                at = self.writer.run(Change::state_credits(self.writer.shared()), |change| {
                    let _mapping = file.lock_map();
                    file.forget(&(from..blocks.end));
                    file.note_mapped(change);
                    Ok(change.set_state(file.node, from..blocks.end, true)?)
                })?;
            }
        }
        // Holes in the range, and the size.
        self.reserve(file, range, keep_size)
    }

    /// Writes zeros on the device to the blocks of a range that read as zeros, and marks them as written.
    fn write_zeroes(self, file: &FallocateFile<'_>, range: &Range<u64>) -> Result<(), Fault> {
        // The edges, which were zeroed in memory.
        file.write_back(0..u64::MAX)?;
        let blocks = self.blocks_around(range);
        let mut at = blocks.start;
        while at < blocks.end {
            let entry = file.entry(Lblk(at as u32), (blocks.end - at) as u32)?;
            let end = u64::from(entry.end());
            if entry.status == Status::Unwritten {
                file.zero_blocks(&entry)?;
            }
            at = end;
        }
        Ok(())
    }
}

fn put_size(change: &Change<'_>, node: &Arc<LiveInode>, size: u64) {
    change.live.edit(node, extant_buffer::Edit::transaction(change.edit)).fields.size = size;
}

fn map_unwritten(change: &Change<'_>, file: &FallocateFile<'_>, hole: &Entry) -> Result<Entry, Fault> {
    let _mapping = file.lock_map();
    let want = NewBlockOptions { unwritten: true, promised: false };
    let mapped = change.map_hole(file.node, hole.lblk, hole.len, want)?;
    let (MapState::Unwritten(start) | MapState::Written(start)) = mapped.state else {
        unreachable!("a hole was given blocks")
    };
    let entry = Entry::mapped(mapped.lblk.0, mapped.len, start.0, Status::Unwritten);
    file.learn(entry);
    file.note_mapped(change);
    Ok(entry)
}
