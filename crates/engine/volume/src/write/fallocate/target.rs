//! The file to change, and its cached state: data and extent status.
//!
//! ```text
//!   most files        folios, reservations: written back, dropped, cleared before the map changes
//!   journaled data    only blocks: their data changes under a handle, and freed blocks are revoked
//! ```
//!
//! Does **not** own: the map on disk, the size on disk, the order of the steps (see the parent module).

use std::ops::Range;
use std::sync::Arc;

use extant_base::Lblk;
use extant_base::rank::{self, RwLockWriteGuard};
use extant_buffer::{Edit, Kind, Owner, Seal};
use extant_extent_status::{Allocation, END, Entry, Status};
use extant_inode::{Change, FileData, LiveInode};
use extant_mapping::MapState;

use super::Writer;
use crate::Fault;

/// Blocks zeroed in one transaction.
const ZEROS_PER_STEP: u64 = 16;

/// A file of which the caller holds the operation lock.
pub(in crate::write) struct FallocateFile<'a> {
    writer: &'a Writer,
    pub(in crate::write) node: &'a Arc<LiveInode>,
    /// `None` if the file's data is journaled.
    data: Option<Arc<FileData>>,
}

impl<'a> FallocateFile<'a> {
    pub(in crate::write) fn new(writer: &'a Writer, node: &'a Arc<LiveInode>) -> Self {
        let is_journaled = node.values().is_journaled(writer.shared());
        let data = (!is_journaled).then(|| writer.inodes().data(node));
        Self { writer, node, data }
    }

    /// The size that reads see.
    pub(super) fn size(&self) -> u64 {
        self.node.values().size()
    }

    /// Sets the size that reads see. The caller sets the size on disk.
    pub(super) fn set_size(&self, size: u64) {
        if let Some(data) = &self.data {
            data.set_size(size);
        }
    }

    /// What the map has for a block and those after it.
    pub(super) fn entry(&self, lblk: Lblk, len: u32) -> Result<Entry, Fault> {
        let shared = self.writer.shared();
        if let Some(data) = &self.data {
            return Ok(data.entry(shared, self.node, lblk, len)?);
        }
        let map = self.node.values().map();
        let found = map.find(&shared.buffers, lblk, len)?;
        // The largest number is not a valid block number.
        let len = found.len.min(END - lblk.0);
        Ok(match found.state {
            MapState::Hole => Entry::hole(lblk.0, len),
            MapState::Written(start) => Entry::mapped(lblk.0, len, start.0, Status::Written),
            MapState::Unwritten(start) => Entry::mapped(lblk.0, len, start.0, Status::Unwritten),
        })
    }

    /// Locks the map for a change.
    pub(in crate::write) fn lock_map(&self) -> Option<RwLockWriteGuard<'_, (), { rank::MAPPING }>> {
        self.data.as_ref().map(|data| data.mapping.write())
    }

    /// Caches an entry of the map. The caller holds the map's lock.
    pub(super) fn learn(&self, entry: Entry) {
        if let Some(data) = &self.data {
            data.learn(self.writer.shared(), &self.writer.keeper.alloc, entry, Allocation::Other);
        }
    }

    /// Caches that these blocks are a hole, unless another thread has changed them meanwhile.
    pub(super) fn learn_hole(&self, blocks: &Range<u64>) {
        if let Some(data) = &self.data {
            let (from, end) = (blocks.start as u32, blocks.end.min(END.into()) as u32);
            // The last page of the largest file has blocks past the largest number.
            if from >= end {
                return;
            }
            let _mapping = data.mapping.write();
            let _ = data.known.cache(Entry::hole(from, end - from));
        }
    }

    /// Drops the cached extent status of these blocks. The caller holds the map's lock.
    pub(super) fn forget(&self, blocks: &Range<u64>) {
        if let Some(data) = &self.data {
            let (from, len) = (blocks.start as u32, (blocks.end.min(END.into()) - blocks.start) as u32);
            data.forget(self.writer.shared(), &self.writer.keeper.alloc, Lblk(from), len);
        }
    }

    /// Drops the cached extent status of all blocks. The caller holds the map's lock.
    pub(in crate::write) fn forget_all(&self) {
        self.forget(&(0..END.into()));
    }

    /// Notes that this transaction changed the file's size or map.
    pub(in crate::write) fn note_mapped(&self, change: &Change<'_>) {
        if let Some(data) = &self.data {
            data.note_mapped(Edit::transaction(change.edit));
        }
    }

    /// Writes back dirty data in a range of bytes.
    pub(in crate::write) fn write_back(&self, range: Range<u64>) -> Result<(), Fault> {
        self.data.as_ref().map_or(Ok(()), |data| self.writer.flusher.flush_file(self.node, data, range))
    }

    /// Stops readahead while the guard is held.
    pub(super) fn stop_fills(&self) -> Option<impl Sized + '_> {
        self.data.as_ref().map(|data| data.pages.stop_fills())
    }

    /// Returns whether memory has data of these blocks that is not on the device.
    pub(super) fn is_held(&self, blocks: &Range<u64>) -> bool {
        let log = self.writer.shared().geometry.block_size.log2();
        self.data.as_ref().is_some_and(|data| data.pages.is_held(blocks.start << log..blocks.end << log))
    }

    /// Drops cached data of these blocks.
    pub(super) fn discard(&self, blocks: &Range<u64>) {
        if let Some(data) = &self.data {
            let log = self.writer.shared().geometry.block_size.log2();
            data.pages.discard(blocks.start << log..blocks.end << log);
            self.writer.inodes().files().release_if_clean(data);
        }
    }

    /// Drops cached data from `pos` to the end. All of it was written back.
    pub(super) fn drop_from(&self, pos: u64) {
        if let Some(data) = &self.data {
            data.pages.truncate(pos);
            let _mapping = data.mapping.write();
            self.forget(&(pos >> self.writer.shared().geometry.block_size.log2()..END.into()));
        }
    }

    /// Before the file grows to `end` without data: makes the rest of its last block zeros that also survive
    /// a crash.
    pub(super) fn end_in_zeros(&self, end: u64) -> Result<(), Fault> {
        if let Some(data) = &self.data {
            return self.writer.sizes().end_in_zeros(self.node, data, end);
        }
        let size = self.size();
        if end <= size {
            return Ok(());
        }
        self.writer.run(1, |change| self.writer.sizes().zero_behind(change, self.node, size))
    }

    /// Zeros the parts of a range that are not whole blocks.
    pub(super) fn zero_edges(&self, range: &Range<u64>) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size.bytes();
        let first = range.start..range.end.min(range.start.next_multiple_of(bs));
        let last = range.start.max(range.end & !(bs - 1))..range.end;
        let is_edge = |edge: &Range<u64>| edge.start < edge.end && edge.end - edge.start < bs;
        let is_one = first == last;
        let edges = [first, last];
        let edges = edges.iter().take(if is_one { 1 } else { 2 }).filter(|edge| is_edge(edge));
        let Some(data) = &self.data else {
            return edges.into_iter().try_for_each(|edge| self.zero_logged(edge));
        };
        let files = self.writer.inodes().files();
        let stored = data.stored(self.writer.shared(), self.node);
        let now_ms = self.writer.flusher.now_ms();
        files.note_dirty(self.node, data);
        for edge in edges {
            data.pages.zero_edge(edge.clone(), now_ms, &stored)?;
        }
        files.note_dirty(self.node, data);
        files.release_if_clean(data);
        Ok(())
    }

    /// Zeros a part of one block through the journal.
    fn zero_logged(&self, part: &Range<u64>) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size;
        let Some(lblk) = u32::try_from(part.start >> bs.log2()).ok().filter(|lblk| *lblk < END) else {
            return Ok(());
        };
        let entry = self.entry(Lblk(lblk), 1)?;
        if entry.status != Status::Written {
            return Ok(());
        }
        let from = (part.start & (bs.bytes() - 1)) as usize;
        let to = from + (part.end - part.start) as usize;
        self.writer.run(1, |change| {
            change.edit.change(entry.pblk, self.seal(), &mut |block| block[from..to].fill(0))?;
            // Records the transaction for fsync.
            change.live.edit(self.node, Edit::transaction(change.edit));
            Ok(())
        })
    }

    /// Writes zeros to unwritten blocks, and marks them as written.
    pub(super) fn zero_blocks(&self, entry: &Entry) -> Result<(), Fault> {
        let writer = self.writer;
        let shared = writer.shared();
        let end = u64::from(entry.end());
        if self.data.is_some() {
            let bytes = u64::from(entry.len) << shared.geometry.block_size.log2();
            writer.flusher.write_zeros(entry.pblk, bytes)?;
        }
        let per_step = if self.data.is_some() { u64::MAX } else { ZEROS_PER_STEP };
        let mut at = u64::from(entry.lblk.0);
        while at < end {
            let upto = end.min(at.saturating_add(per_step));
            at = writer.run(Change::state_credits(shared) + ZEROS_PER_STEP as u32, |change| {
                let _mapping = self.lock_map();
                self.note_mapped(change);
                let next = change.set_state(self.node, at..upto, false)?.unwrap_or(upto);
                let part = entry.part(at as u32, next as u32);
                self.learn(Entry { status: Status::Written, ..part });
                if self.data.is_none() {
                    // In the same handle as the map; otherwise a crash would expose the blocks' old contents.
                    let blocks = part.pblk.0..part.pblk.0 + u64::from(part.len);
                    blocks.for_each(|block| {
                        change.edit.fresh(extant_base::Pblk(block), self.seal(), &mut |_| {})
                    });
                }
                Ok(next)
            })?;
        }
        Ok(())
    }

    fn seal(&self) -> Seal {
        Seal { owner: Owner { kind: Kind::Other, ino: self.node.ino().0 }, seed: None }
    }
}
