//! Changing a file's size.
//!
//! ```text
//!   shrink: zeros after the new end, in its block -> size, orphan -> blocks freed in steps -> no orphan
//!   grow:   zeros after the old end, in its block -> size: a hole
//!   inline: truncated or extended in the inode; data that no longer fits moves out into a block first
//! ```
//!
//! Invariants
//! 1. INV-EN18: zeros past the end are on the device before the transaction with the size commits; otherwise
//!    truncated data could come back when the file grows. They are written to the device under the handle,
//!    and the commit flushes them. If the block cannot be read or written, nothing has changed: the old data
//!    is written again, and if that fails, too, the journal is aborted. If power fails before the commit, the
//!    file has its old size, and zeros instead of the data that was being truncated.
//! 2. Journaled data is zeroed through the journal.
//! 3. After an abort nothing is written.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024; kernel
//! Documentation/filesystems/ext4/orphan.rst; sizes: kernel Documentation/filesystems/ext4/blockgroup.rst.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{Lblk, Pblk};
use extant_buffer::{Kind, Owner, Seal};
use extant_extent_status::{END, Status};
use extant_inode::{Change, DataPath, FileData, LiveInode, Orphans};
use extant_journal::Bug;
use extant_mapping::{FileMap, MapState};
use extant_ondisk::Features;
use extant_ondisk::inode::flags;
use extant_ondisk::xattr::INDEX_SYSTEM;
use extant_xattr::Places;

use super::NAME_CREDITS;
use super::announce::Announced;
use super::views::SizeEdits;
use crate::Fault;

/// The largest file size that needs no feature.
pub(super) const SMALL_MAX: u64 = 0x7FFF_FFFF;
/// Bytes of inline data before those among the attributes.
const IN_BLOCK: usize = 60;

impl SizeEdits<'_> {
    /// The largest size of a file in bytes, as in the kernel: limited by its map and by what i_blocks can
    /// count.
    pub(super) fn size_max(self, extents: bool) -> u64 {
        let shared = self.writer.shared();
        let bs = shared.geometry.block_size;
        let is_wide = shared.sb.features.has_ro_compat(Features::HUGE_FILE);
        let counted = if is_wide { (1 << 48) - 1 } else { u64::from(u32::MAX) } >> (bs.log2() - 9);
        let mut blocks = u64::from(u32::MAX);
        if !is_wide {
            // With extents the map's own blocks are few, and are ignored.
            blocks = blocks.min(counted);
        }
        if !extents {
            blocks = blocks.min(indirect_max(bs.bytes() / 4, counted));
        }
        (blocks << bs.log2()).min(i64::MAX as u64)
    }

    /// Sets a regular file's size. Blocks past the new end are freed. While that takes several transactions
    /// the inode is an orphan, so that a crash does not leave it half done.
    pub(super) fn set_size(self, node: &Arc<LiveInode>, size: u64) -> Result<(), Fault> {
        if let Some(aborted) = self.writer.journal.aborted() {
            return Err(aborted.clone().into());
        }
        if node.values().has_flag(flags::INLINE_DATA) {
            if self.resize_inside(node, size)? {
                return Ok(());
            }
            self.move_data_out(node)?;
        }
        if size == 0 && !self.writer.no_auto_da_alloc {
            let mut values = node.values();
            values.is_rewritten |= values.size() > 0 && !values.is_journaled(self.writer.shared());
        }
        let bs = self.writer.shared().geometry.block_size;
        let keep = bs.blocks_for(size);
        let data = node.data();
        if let Some(data) = &data {
            self.ready_to_resize(node, data, size)?;
        }
        // Read now, so that no read fails after the first change.
        Change::read_for_punch(self.writer.inodes(), &self.writer.keeper.alloc, node, keep..1 << 32)?;
        let cut = data.as_ref().map(|data| self.cut_in_memory(data, size));
        let is_less = cut.as_ref().is_some_and(|cut| cut.is_less);
        let old = node.values().fields.size;
        let is_cut = size < old || is_less || size == old && self.may_have_blocks_behind(node, size);
        let is_short = is_cut && self.writer.skip_short_orphans && is_short_cut(node);
        let credits = Change::cut_credits(self.writer.shared()) + Orphans::CREDITS + 2;
        let done = self.writer.run(credits, |change| {
            // The step that can find damage comes first. The rest is in the same transaction.
            self.zero_behind(change, node, size.min(old))?;
            let is_done = match (is_cut, is_short) {
                (false, _) => true,
                (true, true) => self.cut_short(change, node, keep)?,
                (true, false) => self.cut_sized(change, node, keep)?,
            };
            if size > SMALL_MAX {
                self.writer.keeper.announce(change, Announced::LargeFiles)?;
            }
            self.put_size(change, node, size);
            if let Some(data) = node.data() {
                data.note_mapped(extant_buffer::Edit::transaction(change.edit));
            }
            if is_cut && !is_short && is_done {
                self.untrack(change, node)?;
            }
            if !is_cut {
                self.writer.keeper.fast.touched(change, node, true);
            }
            Ok(is_done)
        });
        match (done, &data) {
            (Ok(is_done), _) => {
                if let Some(data) = &data {
                    data.set_size(size);
                }
                if is_done { Ok(()) } else { self.or_abort(self.finish_resize(node, keep)) }
            }
            (Err(fault), None) => Err(fault),
            (Err(fault), Some(data)) => self.take_back_cut(data, size, &cut.unwrap_or_default(), fault),
        }
    }

    /// The steps of a truncation after the first one.
    fn finish_resize(self, node: &Arc<LiveInode>, keep: u64) -> Result<(), Fault> {
        self.writer.life().cut_from(node, keep)?;
        self.writer.run(NAME_CREDITS, |change| self.untrack(change, node))
    }

    /// Aborts the journal if an operation failed half done. Not for lack of space, which leaves a consistent
    /// part.
    pub(super) fn or_abort<R>(self, done: Result<R, Fault>) -> Result<R, Fault> {
        if let Err(fault) = &done
            && !fault.is_clean_refusal()
        {
            self.writer.journal.abort(fault.to_string());
        }
        done
    }

    /// Everything in a change of the size that may fail before the first change: the necessary writeback, and
    /// the reads of the map for it.
    fn ready_to_resize(self, node: &Arc<LiveInode>, data: &FileData, size: u64) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size;
        let on_disk = node.values().fields.size;
        if size > on_disk && data.size() > on_disk {
            // Some data that stays is still dirty: the size on disk only grows with its writeback.
            self.writer.flusher.flush_file(node, data, 0..u64::MAX)?;
        }
        if size > data.size() {
            return self.end_in_zeros(node, data, size);
        }
        let in_edge = size & !(bs.bytes() - 1)..bs.blocks_for(size) << bs.log2();
        if !in_edge.is_empty() && self.is_mapped_first(node, data, &in_edge)? {
            // The zeros past the end are written to the device with the rest of their block, so no newer data
            // may be dirty or in flight.
            self.writer.flusher.flush_file(node, data, in_edge)?;
        }
        Ok(())
    }

    /// Drops cached data past a new size. The rest of the truncation on disk is the same as for a file
    /// without cached data: its old size there is the one on disk, or a smaller one if all of that is cut
    /// off.
    fn cut_in_memory(self, data: &FileData, size: u64) -> CutInMemory {
        let bs = self.writer.shared().geometry.block_size;
        let before = data.size();
        if size > before {
            return CutInMemory { before, ..CutInMemory::default() };
        }
        let keep = bs.blocks_for(size);
        let _fills = data.pages.stop_fills();
        // Data in flight cannot be dropped, so wait for it.
        data.pages.wait_written(size..u64::MAX);
        let is_final = data.pages.is_held(size & !(bs.bytes() - 1)..u64::MAX) || data.promised() > 0;
        data.pages.truncate(size);
        data.pages.wait_written(size & !(bs.bytes() - 1)..keep << bs.log2());
        {
            let _mapping = data.mapping.write();
            if let (Ok(from), true) = (u32::try_from(keep), keep < u64::from(END)) {
                data.forget(self.writer.shared(), &self.writer.keeper.alloc, Lblk(from), END - from);
            }
            data.set_size(size);
        }
        self.writer.inodes().files().release_if_clean(data);
        CutInMemory { before, is_less: size < before, is_final }
    }

    /// Undoes the changes in memory after a change of the size failed: restores the size; dropped data is
    /// read again. If that data was nowhere else the journal is aborted.
    fn take_back_cut(self, data: &FileData, size: u64, cut: &CutInMemory, fault: Fault) -> Result<(), Fault> {
        if cut.is_final {
            self.writer.journal.abort(fault.to_string());
            return Err(fault);
        }
        let bs = self.writer.shared().geometry.block_size;
        // The block with the end has zeros past it in memory.
        data.pages.discard(size & !(bs.bytes() - 1)..u64::from(END) << bs.log2());
        let _mapping = data.mapping.write();
        data.set_size(cut.before);
        Err(fault)
    }

    /// Returns whether a commit could expose this block before its dirty data is on the device. Not if the
    /// block is still unwritten and is converted after its write: that takes one run, which includes the
    /// zeros past the end.
    fn is_mapped_first(self, node: &LiveInode, data: &FileData, block: &Range<u64>) -> Result<bool, Fault> {
        if data.path() != DataPath::Iomap {
            return Ok(true);
        }
        // Data in flight may be dirty again.
        data.pages.wait_written(block.clone());
        let Ok(lblk) = u32::try_from(block.start >> self.writer.shared().geometry.block_size.log2()) else {
            return Ok(false);
        };
        let entry = data.entry_to_change(self.writer.shared(), node, Lblk(lblk), 1)?;
        Ok(entry.status == Status::Written)
    }

    /// Before the file grows to `end` without data: writes zeros past its end in its last block to the
    /// device, and updates the size there to the size in memory.
    pub(super) fn end_in_zeros(self, node: &Arc<LiveInode>, data: &FileData, end: u64) -> Result<(), Fault> {
        let size = data.size();
        if end <= size {
            return Ok(());
        }
        self.writer.inodes().files().note_dirty(node, data);
        self.writer.data().zero_to(node, data, end)?;
        self.writer.inodes().files().note_dirty(node, data);
        self.writer.flusher.flush_file(node, data, 0..u64::MAX)
    }

    /// Drops all cached data of a file that is to be deleted.
    pub(super) fn drop_data(self, node: &Arc<LiveInode>) {
        let Some(data) = node.data() else { return };
        let _fills = data.pages.stop_fills();
        data.pages.truncate(0);
        {
            let _mapping = data.mapping.write();
            data.forget(self.writer.shared(), &self.writer.keeper.alloc, Lblk(0), END);
            data.set_size(0);
        }
        drop(self.writer.inodes().files().take_lost(&data));
        self.writer.inodes().files().release_if_clean(&data);
    }

    /// The first step of a truncation that is probably its last: the inode becomes an orphan only if it is
    /// not. Returns whether the truncation is done.
    fn cut_short(self, change: &Change<'_>, node: &Arc<LiveInode>, keep: u64) -> Result<bool, Fault> {
        let is_done = node.values().maps_nothing() || change.cut(node, keep)?;
        if !is_done {
            self.writer.keeper.orphans.add(change.live, node, change.edit)?;
        }
        Ok(is_done)
    }

    /// The first step of a truncation. The caller sets the new size in the same transaction. The inode is an
    /// orphan until both are done; the caller removes it. Returns whether the truncation is done.
    ///
    /// As in the kernel, the size and the blocks are two layers that each track the orphan: one truncation
    /// makes two additions and two removals, and the second of each finds nothing to do. Version 3 of the
    /// list answers these without the lock.
    fn cut_sized(self, change: &Change<'_>, node: &Arc<LiveInode>, keep: u64) -> Result<bool, Fault> {
        let before = change.edit.changes();
        self.writer.keeper.orphans.add(change.live, node, change.edit)?;
        let added = change.edit.changes();
        let cut = self.cut_tracked(change, node, keep);
        // An inode that was an orphan before stays one.
        if cut.is_err() && change.edit.changes() == added && added != before {
            self.writer.keeper.orphans.remove(change.live, node, change.edit)?;
            change.edit.mark_complete(before);
        }
        cut
    }

    /// One step of a truncation: the inode is an orphan from before the first block is freed until after the
    /// last. Returns whether the truncation is done.
    fn cut_tracked(self, change: &Change<'_>, node: &Arc<LiveInode>, keep: u64) -> Result<bool, Fault> {
        self.writer.keeper.orphans.add(change.live, node, change.edit)?;
        let is_done = change.cut(node, keep)?;
        if is_done {
            self.untrack(change, node)?;
        }
        Ok(is_done)
    }

    /// Ends the tracking of a completed truncation. An inode without a name stays an orphan until it is
    /// deleted.
    fn untrack(self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        if node.values().fields.links > 0 {
            self.writer.keeper.orphans.remove(change.live, node, change.edit)?;
        }
        Ok(())
    }

    /// Completes a truncation after a crash: the size is the new one already.
    pub(crate) fn finish_cut(self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let (size, is_inside) = {
            let values = node.values();
            (values.fields.size, values.has_flag(flags::INLINE_DATA))
        };
        if is_inside {
            self.resize_inside(node, size)?;
        } else {
            // Without the key the bytes past the end in an encrypted block are unknown.
            if !node.values().has_flag(flags::ENCRYPT) {
                self.writer.run(1, |change| self.zero_behind(change, node, size))?;
            }
            self.writer.life().cut_from(node, self.writer.shared().geometry.block_size.blocks_for(size))?;
        }
        self.writer.run(NAME_CREDITS, |change| self.untrack(change, node))
    }

    fn put_size(self, change: &Change<'_>, node: &Arc<LiveInode>, size: u64) {
        let now = self.writer.now();
        let mut values = change.live.edit(node, change.edit.transaction());
        let fields = &mut values.fields;
        fields.size = size;
        (fields.mtime, fields.ctime) = (now, now);
    }

    fn may_have_blocks_behind(self, node: &LiveInode, size: u64) -> bool {
        let bs = self.writer.shared().geometry.block_size;
        let held = self.writer.shared().sectors(&node.values().fields) >> (bs.log2() - 9);
        held > bs.blocks_for(size)
    }

    /// Zeros the rest of the block in which the file ends, because it becomes visible when the file grows.
    pub(super) fn zero_behind(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        end: u64,
    ) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let bs = shared.geometry.block_size;
        let within = (end & (bs.bytes() - 1)) as usize;
        let Ok(lblk) = u32::try_from(end >> bs.log2()) else { return Ok(()) };
        let (state, is_journaled) = {
            let values = node.values();
            let is_nothing = within == 0 || values.maps_nothing() || !values.has_map(shared);
            if is_nothing || self.writer.flusher.sabotage.has(Bug::KeepTails) {
                return Ok(());
            }
            // Under the lock of the values: concurrent writeback may move a part of the map.
            (values.map().find(&shared.buffers, Lblk(lblk), 1)?.state, values.is_journaled(shared))
        };
        let MapState::Written(block) = state else { return Ok(()) };
        let mut bytes = vec![0; bs.len()];
        if is_journaled {
            let owner = Owner { kind: Kind::Other, ino: node.ino().0 };
            bytes.copy_from_slice(&shared.buffers.get(block, owner, |_| Ok(()))?);
        } else if let Some(start) = bs.offset_of(block) {
            shared.device.read_at(start, &mut bytes).map_err(Fault::Device)?;
        }
        if bytes[within..].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let before = bytes.clone();
        bytes[within..].fill(0);
        match self.write_data(change, node, block, is_journaled, &bytes) {
            Err(fault @ Fault::Device(_)) => {
                // The block's contents are unknown now: restore the old data, or stop all writing.
                self.or_abort(self.write_data(change, node, block, is_journaled, &before))?;
                Err(fault)
            }
            done => done,
        }
    }

    /// Writes a block of a file's data under a handle: to the device before the handle commits, or into the
    /// journal.
    fn write_data(
        self,
        change: &Change<'_>,
        node: &LiveInode,
        block: Pblk,
        is_journaled: bool,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let shared = self.writer.shared();
        if is_journaled {
            let seal = Seal { owner: Owner { kind: Kind::Other, ino: node.ino().0 }, seed: None };
            change.edit.fresh(block, seal, &mut |there| there.copy_from_slice(bytes));
            return Ok(());
        }
        if let Some(aborted) = self.writer.journal.aborted() {
            return Err(aborted.clone().into());
        }
        if let Some(start) = shared.geometry.block_size.offset_of(block) {
            shared.device.write_at(start, bytes).map_err(Fault::Device)?;
        }
        // A commit flushes only the log's device. With an external log that is not this one.
        if shared.sb.features.has_compat(Features::HAS_JOURNAL) && shared.sb.journal_inum == 0 {
            shared.device.flush().map_err(Fault::Device)?;
        }
        Ok(())
    }

    /// Returns whether a file that is not inline yet could store its data in the inode. It has at most zeros.
    pub(super) fn may_go_inside(self, node: &LiveInode) -> bool {
        if !self.writer.shared().sb.features.has_incompat(Features::INLINE_DATA) {
            return false;
        }
        let values = node.values();
        let elsewhere = flags::INLINE_DATA | flags::EA_INODE | flags::ENCRYPT | flags::VERITY;
        !values.has_flag(elsewhere) && values.data().is_none() && values.maps_nothing()
    }

    /// Writes into a file that is inline, or [may become so](Self::may_go_inside). Returns `false` if there
    /// is no room; nothing was changed then.
    pub(super) fn write_inside(self, node: &Arc<LiveInode>, pos: u64, bytes: &[u8]) -> Result<bool, Fault> {
        let inode = self.writer.inodes().snapshot(node)?;
        let mut content = match inode.is_inline() {
            true => inode.inline_content(self.writer.shared())?,
            false => vec![0; IN_BLOCK],
        };
        let end = pos + bytes.len() as u64;
        let size = inode.size().max(end);
        if end > content.len() as u64 || !inode.is_inline() {
            let (body, block) = self.writer.attributes().parts(node);
            let places =
                Places { ino: node.ino(), body: &body, block, fs_seed: self.writer.shared().fs_seed };
            let room = places.body_room(INDEX_SYSTEM, b"data")?.map(|room| IN_BLOCK + room);
            let Some(end) = usize::try_from(size).ok().filter(|size| room.is_some_and(|room| *size <= room))
            else {
                return Ok(false);
            };
            content.resize(content.len().max(end), 0);
        }
        // Data past the end is leftover. A damaged inode may have a size larger than its contents.
        let old = usize::try_from(inode.size()).unwrap_or(usize::MAX).min(content.len());
        content[old..].fill(0);
        content[pos as usize..end as usize].copy_from_slice(bytes);
        self.put_inside(node, &content, size)?;
        Ok(true)
    }

    /// Changes the size of an inline file. Returns `false` if there is no room; nothing was changed then.
    fn resize_inside(self, node: &Arc<LiveInode>, size: u64) -> Result<bool, Fault> {
        let inode = self.writer.inodes().snapshot(node)?;
        let mut bytes = inode.inline_content(self.writer.shared())?;
        let Some(end) = usize::try_from(size).ok().filter(|end| *end <= bytes.len()) else {
            return Ok(false);
        };
        bytes[end.min(inode.size() as usize)..].fill(0);
        // As the kernel: truncated data among the attributes frees its room.
        if size <= inode.size() {
            bytes.truncate(end.max(IN_BLOCK));
        }
        self.put_inside(node, &bytes, size)?;
        Ok(true)
    }

    /// Stores a file's data in its inode.
    fn put_inside(self, node: &Arc<LiveInode>, bytes: &[u8], size: u64) -> Result<(), Fault> {
        self.writer.run(NAME_CREDITS, |change| {
            let value = Some(&bytes[IN_BLOCK..]);
            let planned = extant_xattr::Change {
                index: INDEX_SYSTEM,
                name: b"data",
                value,
                mode: extant_xattr::Mode::Any,
            };
            self.writer.attributes().apply_xattr(change, node, &planned)?;
            let mut values = change.live.edit(node, change.edit.transaction());
            let fields = &mut values.fields;
            fields.block.copy_from_slice(&bytes[..IN_BLOCK]);
            fields.flags = fields.flags & !flags::EXTENTS | flags::INLINE_DATA;
            drop(values);
            self.put_size(change, node, size);
            Ok(())
        })
    }

    /// Moves a file's inline data into a block. The size stays.
    pub(super) fn move_data_out(self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let inode = self.writer.inodes().snapshot(node)?;
        let mut bytes = inode.inline_content(shared)?;
        bytes.truncate(usize::try_from(inode.size()).unwrap_or(usize::MAX));
        bytes.resize(shared.geometry.block_size.len(), 0);
        let has_data = bytes.iter().any(|byte| *byte != 0);
        let extents = shared.sb.features.has_incompat(Features::EXTENTS);
        self.writer.run(NAME_CREDITS, |change| {
            let mut values = change.live.edit(node, change.edit.transaction());
            let before = (values.fields.flags, values.fields.block);
            values.fields.flags &= !(flags::INLINE_DATA | flags::EXTENTS);
            values.fields.flags |= if extents { flags::EXTENTS } else { 0 };
            values.fields.block = if extents { FileMap::EMPTY } else { [0; 60] };
            let is_journaled = values.is_journaled(shared);
            let placed = match has_data {
                true => change.append_block(&mut values, Lblk(0), Pblk(0)).map(Some),
                false => Ok(None),
            };
            drop(values);
            let placed = placed.map_err(|fault| extant_inode::edit_fault(node.ino(), fault).into());
            let moved = placed.and_then(|block| match block {
                Some(block) => {
                    let written = self.write_data(change, node, block, is_journaled, &bytes);
                    written.or_else(|fault| change.cut(node, 0).map_err(Fault::from).and(Err(fault)))
                }
                None => Ok(()),
            });
            if let Err(fault) = moved {
                let mut values = change.live.edit(node, change.edit.transaction());
                (values.fields.flags, values.fields.block) = before;
                return Err(fault);
            }
            self.writer.attributes().drop_inline_data(change, node)
        })
    }
}

/// The changes in memory for a change of the size.
#[derive(Debug, Clone, Copy, Default)]
struct CutInMemory {
    /// The size before.
    before: u64,
    is_less: bool,
    /// Data was dropped that was nowhere else.
    is_final: bool,
}

/// Returns whether the file can be truncated in one transaction.
fn is_short_cut(node: &LiveInode) -> bool {
    let values = node.values();
    let map = values.map();
    map.extents && map.depth() == 0
}

/// Blocks of the longest file without extents and without holes: what three levels of blocks with `per_block`
/// numbers each can map, limited so that data and map together take at most `counted` blocks.
fn indirect_max(per_block: u64, counted: u64) -> u64 {
    let (single, double) = (per_block, per_block * per_block);
    let reach = 12 + single + double + double * per_block;
    if reach + 3 + 2 * per_block + double <= counted {
        return reach;
    }
    let behind_single = counted - 12 - single;
    let map = if behind_single < double {
        2 + behind_single.div_ceil(per_block)
    } else {
        let behind = behind_single - double;
        3 + per_block + behind.div_ceil(per_block) + behind.div_ceil(double)
    };
    counted - map
}
