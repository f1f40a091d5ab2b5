//! The file whose blocks change, and what has to follow of what is in memory of it: its bytes, and what is
//! known of its blocks.
//!
//! ```text
//!   most files        bytes in folios, promises: written back, dropped, forgotten before the map changes
//!   through the log   nothing but blocks: their bytes change under a handle, and are revoked when they are freed
//! ```
//!
//! Does **not** own: the map on disk, sizes on disk, the order of the steps (see the module above).

use std::ops::Range;
use std::sync::Arc;

use extant_base::Lblk;
use extant_buffer::{Edit, Kind, Owner, Seal};
use extant_extent_status::{Allocation, END, Entry, Status};
use extant_inode::{Change, FileData, LiveInode};
use extant_mapping::Holds;
use parking_lot::RwLockWriteGuard;

use super::Writer;
use crate::Fault;

/// Blocks of zeros that one transaction takes.
const ZEROS_PER_STEP: u64 = 16;

/// A file that the caller has locked for its operation.
pub(super) struct Target<'a> {
    writer: &'a Writer,
    pub(super) node: &'a Arc<LiveInode>,
    /// `None` where bytes go through the journal.
    data: Option<Arc<FileData>>,
}

impl<'a> Target<'a> {
    pub(super) fn new(writer: &'a Writer, node: &'a Arc<LiveInode>) -> Self {
        let is_journaled = node.values().is_journaled(writer.shared());
        let data = (!is_journaled).then(|| writer.inodes().data(node));
        Self { writer, node, data }
    }

    /// Its size, as reads see it.
    pub(super) fn size(&self) -> u64 {
        self.node.values().size()
    }

    /// Changes what reads see. On disk it is the caller's.
    pub(super) fn set_size(&self, size: u64) {
        if let Some(data) = &self.data {
            data.set_size(size);
        }
    }

    /// What its map says of a block and what follows.
    pub(super) fn entry(&self, lblk: Lblk, len: u32) -> Result<Entry, Fault> {
        let shared = self.writer.shared();
        if let Some(data) = &self.data {
            return Ok(data.entry(shared, self.node, lblk, len)?);
        }
        let map = self.node.values().map();
        let found = map.find(&shared.buffers, lblk, len)?;
        // The last of all numbers is no block's.
        let len = found.len.min(END - lblk.0);
        Ok(match found.holds {
            Holds::Hole => Entry::hole(lblk.0, len),
            Holds::Written(start) => Entry::mapped(lblk.0, len, start.0, Status::Written),
            Holds::Unwritten(start) => Entry::mapped(lblk.0, len, start.0, Status::Unwritten),
        })
    }

    /// To be held where the map changes.
    pub(super) fn lock_map(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.data.as_ref().map(|data| data.mapping.write())
    }

    /// The map says this now. The caller has it locked.
    pub(super) fn learn(&self, entry: Entry) {
        if let Some(data) = &self.data {
            data.learn(self.writer.shared(), &self.writer.keeper.alloc, entry, Allocation::Other);
        }
    }

    /// These blocks are unmapped, unless another thread came in between.
    pub(super) fn learn_hole(&self, blocks: &Range<u64>) {
        if let Some(data) = &self.data {
            let (from, end) = (blocks.start as u32, blocks.end.min(END.into()) as u32);
            // The last page of the largest file has blocks behind the last number.
            if from >= end {
                return;
            }
            let _mapping = data.mapping.write();
            let _ = data.known.cache(Entry::hole(from, end - from));
        }
    }

    /// Of these blocks nothing is known any more. The caller has the map locked.
    pub(super) fn forget(&self, blocks: &Range<u64>) {
        if let Some(data) = &self.data {
            let (from, len) = (blocks.start as u32, (blocks.end.min(END.into()) - blocks.start) as u32);
            data.forget(self.writer.shared(), &self.writer.keeper.alloc, Lblk(from), len);
        }
    }

    /// This transaction changed its size or map.
    pub(super) fn note_mapped(&self, change: &Change<'_>) {
        if let Some(data) = &self.data {
            data.note_mapped(Edit::transaction(change.edit));
        }
    }

    /// Writes back what is dirty in a range of bytes.
    pub(super) fn write_back(&self, range: Range<u64>) -> Result<(), Fault> {
        self.data.as_ref().map_or(Ok(()), |data| self.writer.flusher.flush_file(self.node, data, range))
    }

    /// No read-ahead while this is held.
    pub(super) fn stop_fills(&self) -> Option<impl Sized + '_> {
        self.data.as_ref().map(|data| data.pages.stop_fills())
    }

    /// Is something of these blocks in memory that the device has not?
    pub(super) fn is_held(&self, blocks: &Range<u64>) -> bool {
        let log = self.writer.shared().geometry.block_size.log2();
        self.data.as_ref().is_some_and(|data| data.pages.is_held(blocks.start << log..blocks.end << log))
    }

    /// Drops what is in memory of these blocks.
    pub(super) fn discard(&self, blocks: &Range<u64>) {
        if let Some(data) = &self.data {
            let log = self.writer.shared().geometry.block_size.log2();
            data.pages.discard(blocks.start << log..blocks.end << log);
            self.writer.inodes().files().settle(data);
        }
    }

    /// Drops what is in memory from `pos` on, all of which was written back.
    pub(super) fn drop_from(&self, pos: u64) {
        if let Some(data) = &self.data {
            data.pages.truncate(pos);
            let _mapping = data.mapping.write();
            self.forget(&(pos >> self.writer.shared().geometry.block_size.log2()..END.into()));
        }
    }

    /// Before the file grows to `end` without bytes: what is behind its end in its last block is zeros, also
    /// after a crash.
    pub(super) fn end_in_zeros(&self, end: u64) -> Result<(), Fault> {
        if let Some(data) = &self.data {
            return self.writer.end_in_zeros(self.node, data, end);
        }
        let size = self.size();
        if end <= size {
            return Ok(());
        }
        self.writer.run(1, |change| self.writer.zero_behind(change, self.node, size))
    }

    /// Zeros in the blocks that a range has only a part of.
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
        files.settle(data);
        Ok(())
    }

    /// Zeros in one block, through the journal.
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
            // What fsync asks for.
            change.live.edit(self.node, Edit::transaction(change.edit));
            Ok(())
        })
    }

    /// Puts zeros into unwritten blocks, and says that they are written.
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
                    // With the map, or what the blocks held before would be seen after a crash.
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
