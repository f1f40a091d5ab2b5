//! Blocks without bytes: reserving them, punching holes, zeroing, and moving what is behind.
//!
//! ```text
//!   reserve   holes get unwritten blocks; the size follows, unless it is kept
//!   punch     edges zeroed in memory; whole blocks dropped there, unmapped and freed
//!   zero      whole blocks become unwritten, holes get blocks, edges zeroed
//!   collapse  a punch, and what is behind moves to the front        insert  what is behind moves back
//! ```
//!
//! What changes in several transactions leaves a whole file after each of them, as with the kernel: some of it done.
//!
//! Source: spec 02 section 7; fallocate(2).

use std::ops::Range;
use std::sync::Arc;

use base::{Ino, Lblk};
use extent_status::{Allocation, END, Entry, Status};
use inode::{Change, FileData, Node, Want};
use mapping::Holds;
use ondisk::filetype::FileType;
use ondisk::inode::flags;

use super::Writer;
use super::truncate::SMALL_MAX;
use crate::{Fault, Refusal, Volume};

/// What to do with a range of a file; fallocate(2)'s modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Allocate {
    /// Reserve blocks; the file grows if the range ends behind it. Mode 0.
    Reserve,
    /// Reserve blocks, also behind the end; the size stays. FALLOC_FL_KEEP_SIZE.
    Keep,
    /// Make it a hole. FALLOC_FL_PUNCH_HOLE, which goes with KEEP_SIZE.
    Punch,
    /// Make it zeros, with blocks reserved; the file grows if needed. FALLOC_FL_ZERO_RANGE.
    Zero,
    /// As [`Zero`](Self::Zero); the size stays. With FALLOC_FL_KEEP_SIZE.
    ZeroKeep,
    /// Take it out: what is behind moves to the front. Whole clusters. FALLOC_FL_COLLAPSE_RANGE.
    Collapse,
    /// Make room: what is there and behind moves back. Whole clusters. FALLOC_FL_INSERT_RANGE.
    Insert,
    /// Zeros, and blocks that hold them on the device: what is written there later changes no map. The file grows if the range ends
    /// behind its end. FALLOC_FL_WRITE_ZEROES.
    WriteZeroes,
    /// Own copies of shared blocks: ext4 has none to share. Not supported. FALLOC_FL_UNSHARE_RANGE.
    Unshare,
}

/// What the kernel rounds to.
const PAGE: u64 = 4096;

impl Volume {
    /// Changes which blocks a range of a regular file has.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for an empty range, or one that a mode cannot take; [`Refusal::NotSupported`] for modes and files that
    /// do not go together (a map without extents can only be punched); [`Refusal::TooLarge`], [`Refusal::NoSpace`]: some of it may
    /// be done then; [`Refusal::NotPermitted`], [`Refusal::WrongType`], [`Refusal::IsDirectory`]; the device refused.
    pub fn fallocate(&self, ino: Ino, mode: Allocate, pos: u64, len: u64) -> Result<(), Fault> {
        let writer = self.writer()?;
        self.noted(writer.fallocate(ino, mode, pos, len))
    }
}

impl Writer {
    fn fallocate(&self, ino: Ino, mode: Allocate, pos: u64, len: u64) -> Result<(), Fault> {
        if len == 0 || pos.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(if len == 0 { Refusal::Invalid } else { Refusal::TooLarge }.into());
        }
        let node = self.node(ino)?;
        let _operation = self.lock_node(&node)?;
        self.check_allocatable(&node, mode, pos..pos + len)?;
        if node.values().has_flag(flags::INLINE_DATA) {
            self.move_data_out(&node)?;
        }
        let is_mapped_by_extents = node.values().has_flag(flags::EXTENTS);
        if !is_mapped_by_extents && mode != Allocate::Punch || node.values().is_journaled(self.shared()) {
            return Err(Refusal::NotSupported.into());
        }
        let data = self.live().data(&node);
        let range = pos..pos + len;
        match mode {
            Allocate::Reserve | Allocate::Keep => {
                self.reserve(&node, &data, &range, mode == Allocate::Keep)?;
            }
            Allocate::Punch => self.punch(&node, &data, &range)?,
            Allocate::Zero | Allocate::ZeroKeep => {
                self.zero_range(&node, &data, &range, mode == Allocate::ZeroKeep)?;
            }
            Allocate::Collapse => self.collapse(&node, &data, &range)?,
            Allocate::Insert => self.insert(&node, &data, &range)?,
            Allocate::WriteZeroes => {
                self.zero_range(&node, &data, &range, false)?;
                self.write_zeroes(&node, &data, &range)?;
            }
            Allocate::Unshare => return Err(Refusal::NotSupported.into()),
        }
        self.note_write(&node)
    }

    fn check_allocatable(&self, node: &Node, mode: Allocate, range: Range<u64>) -> Result<(), Fault> {
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
    fn blocks_around(&self, range: &Range<u64>) -> Range<u64> {
        let bs = self.shared().geometry.block_size;
        range.start >> bs.log2()..bs.blocks_for(range.end)
    }

    /// The blocks that lie in a byte range whole.
    fn blocks_inside(&self, range: &Range<u64>) -> Range<u64> {
        let bs = self.shared().geometry.block_size;
        bs.blocks_for(range.start)..range.end >> bs.log2()
    }

    fn reserve(
        &self,
        node: &Arc<Node>,
        data: &FileData,
        range: &Range<u64>,
        keep_size: bool,
    ) -> Result<(), Fault> {
        // What is delayed gets its blocks by this.
        self.flusher.flush_file(node, data, 0..u64::MAX)?;
        if !keep_size {
            self.end_in_zeros(node, data, range.end)?;
        }
        let blocks = self.blocks_around(range);
        let bs = self.shared().geometry.block_size;
        let mut at = blocks.start;
        while at < blocks.end {
            let len = u32::try_from(blocks.end - at).unwrap_or(u32::MAX);
            let entry = data.entry(self.shared(), node, Lblk(at as u32), len)?;
            let mut next = u64::from(entry.end());
            if entry.status == Status::Hole {
                let grows_to = |end: u64| (!keep_size).then(|| (end << bs.log2()).min(range.end));
                next = self.run(Change::map_credits() + 1, |change| {
                    let entry = self.map_unwritten(change, node, data, &entry)?;
                    let end = u64::from(entry.end());
                    if let Some(size) = grows_to(end) {
                        self.grow_to(change, node, data, size)?;
                    }
                    Ok(end)
                })?;
            }
            at = next;
        }
        if !keep_size && range.end > data.size() {
            self.run(1, |change| self.grow_to(change, node, data, range.end))?;
        }
        Ok(())
    }

    fn map_unwritten(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        data: &FileData,
        hole: &Entry,
    ) -> Result<Entry, Fault> {
        let _mapping = data.mapping.write();
        let want = Want { unwritten: true, promised: false };
        let mapped = change.map_hole(node, hole.lblk, hole.len, want)?;
        let (Holds::Unwritten(start) | Holds::Written(start)) = mapped.holds else {
            unreachable!("a hole was given blocks")
        };
        let entry = Entry::mapped(mapped.lblk.0, mapped.len, start.0, Status::Unwritten);
        data.learn(self.shared(), change.alloc, entry, Allocation::Other);
        data.note_mapped(buffer::Edit::transaction(change.edit));
        Ok(entry)
    }

    /// The size, here and on disk, if it is less.
    fn grow_to(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        data: &FileData,
        size: u64,
    ) -> Result<(), Fault> {
        if size <= data.size() {
            return Ok(());
        }
        if size > SMALL_MAX {
            self.keeper.note_large_file(change)?;
        }
        change.live.edit(node, buffer::Edit::transaction(change.edit)).fields.size = size;
        data.note_mapped(buffer::Edit::transaction(change.edit));
        data.set_size(size);
        Ok(())
    }

    /// Before the file grows to `end` without bytes: what is behind its end in its last block is zeros on the device, too, and its
    /// size there is its size.
    pub(super) fn end_in_zeros(&self, node: &Arc<Node>, data: &FileData, end: u64) -> Result<(), Fault> {
        let size = data.size();
        if end <= size {
            return Ok(());
        }
        self.live().files().note_dirty(node, data);
        self.zero_to(node, data, end)?;
        self.live().files().note_dirty(node, data);
        self.flusher.flush_file(node, data, 0..u64::MAX)
    }

    fn punch(&self, node: &Arc<Node>, data: &FileData, range: &Range<u64>) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size;
        let size = data.size();
        if range.start >= size {
            return Ok(());
        }
        // As the kernel: what reaches past the end takes the last page with it.
        let end = if range.end > size { size.next_multiple_of(bs.bytes().max(PAGE)) } else { range.end };
        let range = range.start..end;
        self.zero_edges(node, data, &range)?;
        let blocks = self.blocks_inside(&range);
        if blocks.start < blocks.end {
            let on_disk = node.values().fields.size;
            if on_disk < size && blocks.end << bs.log2() > on_disk {
                // Some of what goes would raise the size on disk, when it is written back: else it would stay what it is.
                self.flusher.flush_file(node, data, 0..u64::MAX)?;
            }
            let _fills = data.pages.stop_fills();
            data.pages.discard(blocks.start << bs.log2()..blocks.end << bs.log2());
            self.files_settle(data);
            self.unmap(node, data, &blocks)?;
        }
        Ok(())
    }

    fn files_settle(&self, data: &FileData) {
        self.live().files().settle(data);
    }

    /// Unmaps blocks of which nothing is in memory.
    fn unmap(&self, node: &Arc<Node>, data: &FileData, blocks: &Range<u64>) -> Result<(), Fault> {
        {
            let _mapping = data.mapping.write();
            let (from, len) = (blocks.start as u32, (blocks.end.min(END.into()) - blocks.start) as u32);
            data.forget(self.shared(), &self.keeper.alloc, Lblk(from), len);
        }
        let mut end = Some(blocks.end);
        while let Some(left) = end {
            end = self.run(Change::cut_credits(self.shared()), |change| {
                data.note_mapped(buffer::Edit::transaction(change.edit));
                Ok(change.punch(node, blocks.start..left)?)
            })?;
        }
        Ok(())
    }

    /// Zeros in the blocks that a range has only a part of.
    fn zero_edges(&self, node: &Arc<Node>, data: &FileData, range: &Range<u64>) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size.bytes();
        let stored = data.stored(self.shared(), node);
        let now_ms = self.flusher.now_ms();
        let first = range.start..range.end.min(range.start.next_multiple_of(bs));
        let last = range.start.max(range.end & !(bs - 1))..range.end;
        self.live().files().note_dirty(node, data);
        for edge in [&first, &last] {
            if edge.start < edge.end && edge.end - edge.start < bs && (edge == &first || first != last) {
                data.pages.zero_edge(edge.clone(), now_ms, &stored)?;
            }
        }
        self.live().files().note_dirty(node, data);
        self.files_settle(data);
        Ok(())
    }

    /// Is it whole clusters?
    fn check_clusters(&self, range: &Range<u64>) -> Result<(), Fault> {
        let geometry = &self.shared().geometry;
        let cluster = geometry.cluster_ratio() << geometry.block_size.log2();
        let is_whole = range.start.is_multiple_of(cluster) && range.end.is_multiple_of(cluster);
        if is_whole { Ok(()) } else { Err(Refusal::Invalid.into()) }
    }

    /// Drops what is in memory of a file from `pos` on, all of which was written back.
    fn forget_from(&self, data: &FileData, pos: u64) {
        let lblk = (pos >> self.shared().geometry.block_size.log2()) as u32;
        data.pages.truncate(pos);
        let _mapping = data.mapping.write();
        data.forget(self.shared(), &self.keeper.alloc, Lblk(lblk), END - lblk);
    }

    fn collapse(&self, node: &Arc<Node>, data: &FileData, range: &Range<u64>) -> Result<(), Fault> {
        self.check_clusters(range)?;
        let size = data.size();
        if range.end >= size {
            return Err(Refusal::Invalid.into());
        }
        self.flusher.flush_file(node, data, 0..u64::MAX)?;
        let _fills = data.pages.stop_fills();
        self.forget_from(data, range.start);
        let blocks = self.blocks_inside(range);
        self.unmap(node, data, &blocks)?;
        let by = (blocks.end - blocks.start) as u32;
        let mut next = Some(blocks.end);
        while let Some(from) = next {
            next = self.run(Change::shift_credits(self.shared()), |change| {
                let _mapping = data.mapping.write();
                data.note_mapped(buffer::Edit::transaction(change.edit));
                let next = change.shift_left(node, from, by)?;
                if next.is_none() {
                    let mut values = change.live.edit(node, buffer::Edit::transaction(change.edit));
                    values.fields.size = size - (range.end - range.start);
                }
                Ok(next)
            })?;
        }
        data.set_size(size - (range.end - range.start));
        Ok(())
    }

    fn insert(&self, node: &Arc<Node>, data: &FileData, range: &Range<u64>) -> Result<(), Fault> {
        self.check_clusters(range)?;
        let len = range.end - range.start;
        let size = data.size();
        if size.checked_add(len).is_none_or(|size| size > self.size_max(true)) {
            return Err(Refusal::TooLarge.into());
        }
        if range.start >= size {
            return Err(Refusal::Invalid.into());
        }
        self.flusher.flush_file(node, data, 0..u64::MAX)?;
        let _fills = data.pages.stop_fills();
        self.forget_from(data, range.start);
        let blocks = self.blocks_inside(range);
        let by = (blocks.end - blocks.start) as u32;
        let mut end = Some(1 << 32);
        while let Some(to) = end {
            end = self.run(Change::shift_credits(self.shared()) + 1, |change| {
                let _mapping = data.mapping.write();
                data.note_mapped(buffer::Edit::transaction(change.edit));
                let end = change.shift_right(node, blocks.start..to, by)?;
                // With the first step, which is the last that may be refused: what moves behind the end would be cut off.
                if to == 1 << 32 {
                    if size + len > SMALL_MAX {
                        self.keeper.note_large_file(change)?;
                    }
                    let mut values = change.live.edit(node, buffer::Edit::transaction(change.edit));
                    values.fields.size = size + len;
                }
                Ok(end)
            })?;
        }
        data.set_size(size + len);
        Ok(())
    }

    fn zero_range(
        &self,
        node: &Arc<Node>,
        data: &FileData,
        range: &Range<u64>,
        keep_size: bool,
    ) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size;
        self.flusher.flush_file(node, data, 0..u64::MAX)?;
        if !keep_size {
            self.end_in_zeros(node, data, range.end)?;
        }
        self.zero_edges(node, data, range)?;
        let blocks = self.blocks_inside(range);
        if blocks.start < blocks.end {
            let _fills = data.pages.stop_fills();
            data.pages.discard(blocks.start << bs.log2()..blocks.end << bs.log2());
            self.files_settle(data);
            let mut at = Some(blocks.start);
            while let Some(from) = at {
                at = self.run(Change::state_credits(self.shared()), |change| {
                    let _mapping = data.mapping.write();
                    let (lblk, len) = (from as u32, (blocks.end.min(END.into()) - from) as u32);
                    data.forget(self.shared(), change.alloc, Lblk(lblk), len);
                    data.note_mapped(buffer::Edit::transaction(change.edit));
                    Ok(change.set_state(node, from..blocks.end, true)?)
                })?;
            }
        }
        // Holes of it, and the size.
        self.reserve(node, data, range, keep_size)
    }

    /// Has the device write zeros to the blocks of a range that read as zeros, and says that they are written.
    fn write_zeroes(&self, node: &Arc<Node>, data: &FileData, range: &Range<u64>) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size;
        // The edges, which were zeroed in memory.
        self.flusher.flush_file(node, data, 0..u64::MAX)?;
        let blocks = self.blocks_around(range);
        let mut at = blocks.start;
        while at < blocks.end {
            let entry = data.entry(self.shared(), node, Lblk(at as u32), (blocks.end - at) as u32)?;
            let end = u64::from(entry.end());
            if entry.status == Status::Unwritten {
                self.flusher.write_zeros(entry.pblk, u64::from(entry.len) << bs.log2())?;
                let mut from = Some(at);
                while let Some(lblk) = from {
                    from = self.run(Change::state_credits(self.shared()), |change| {
                        let _mapping = data.mapping.write();
                        data.note_mapped(buffer::Edit::transaction(change.edit));
                        let next = change.set_state(node, lblk..end, false)?;
                        let part = entry.part(lblk as u32, next.unwrap_or(end) as u32);
                        let written = Entry { status: Status::Written, ..part };
                        data.learn(self.shared(), change.alloc, written, Allocation::Other);
                        Ok(next)
                    })?;
                }
            }
            at = end;
        }
        Ok(())
    }
}
