//! Converting unwritten extents to written, and updating the size: the end of each run that went to unwritten
//! blocks.
//!
//! ```text
//!   | unwritten ............ |   run in the middle -> | unwritten | written | unwritten | map grows by two
//!   no block for the map's growth, not even in the pool:
//!   | zeros ... run ... zeros |                    -> | written .................... |  map does not grow
//! ```
//!
//! Zeros may be written around a run only in extents that end before the end of the file on disk, because no
//! block past that end may be written.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

use std::ops::Range;
use std::sync::Arc;

use extant_base::Lblk;
use extant_extent_status::{Allocation, Entry, Status};
use extant_inode::{Change, FileData, LiveInode};
use extant_mapping::{MapState, Mapped};
use extant_page_cache::WritebackRun;

use super::announce::Announced;
use super::with_room;
use super::writeback::{Flusher, reach};
use crate::{Fault, Refusal};

impl Flusher {
    /// Called when a run's data is on the device: converts the unwritten extent in the map, and updates the
    /// size.
    pub(super) fn conclude_run(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        run: &WritebackRun,
        unwritten: Option<Entry>,
    ) -> Result<(), Fault> {
        let log = self.shared().geometry.block_size.log2();
        let (from, end) = (run.start() >> log, (run.start() + run.len_bytes()) >> log);
        let Some(entry) = unwritten else {
            if node.values().fields.size >= data.size().min(run.end()) {
                return Ok(());
            }
            let (bytes, end) = reach(run);
            return self.behind_the_end(node, data, &bytes, 1, |handle, lock| {
                let Some(mapping) = lock() else { return Ok(None) };
                let is_large = self.raise_size(handle, node, data, end);
                drop(mapping);
                let change = self.change(handle);
                if is_large {
                    self.keeper.announce(&change, Announced::LargeFiles)?;
                }
                self.keeper.fast.touched(&change, node, true);
                Ok(Some(()))
            });
        };
        let mut from = Some(from);
        while let Some(at) = from {
            let may_help = || self.keeper.alloc.pending_blocks() > 0;
            let converted = with_room(&self.journal, may_help, || {
                self.convert_some(node, data, run, at..end, Some(entry))
            });
            from = match converted {
                Err(fault) if fault.is(Refusal::NoSpace) => {
                    self.convert_some(node, data, run, at..end, None)?
                }
                converted => converted?,
            };
        }
        Ok(())
    }

    /// Converts a few extents, and raises the size on disk to their end. Returns where to continue. `within`
    /// is the extent that has all the blocks; `None` converts whole extents, with zeros around the blocks.
    fn convert_some(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        run: &WritebackRun,
        blocks: Range<u64>,
        within: Option<Entry>,
    ) -> Result<Option<u64>, Fault> {
        let log = self.shared().geometry.block_size.log2();
        let (bytes, end) = reach(run);
        let credits = Change::state_credits(self.shared()) + 1;
        self.behind_the_end(node, data, &bytes, credits, |handle, lock| {
            let change = self.change(handle);
            let Some(mapping) = lock() else { return Ok(None) };
            let range = match within {
                Some(_) => blocks.clone(),
                None => self.zero_around(node, data, &blocks)?,
            };
            let converted = change.set_state(node, range.clone(), false);
            data.note_mapped(extant_buffer::Edit::transaction(handle));
            if converted.is_err() {
                // After a device error a part of it may be converted.
                let len = (range.end - range.start) as u32;
                data.forget(self.shared(), change.alloc, Lblk(range.start as u32), len);
            }
            let next = converted?;
            let done = range.start..next.unwrap_or(range.end);
            let size = end.min(done.end << log);
            match within {
                Some(entry) => {
                    let part = entry.part(done.start as u32, done.end as u32);
                    let written = Entry { status: Status::Written, ..part };
                    data.learn(self.shared(), change.alloc, written, Allocation::Other);
                }
                None => self.learn_written(node, data, &change, done)?,
            }
            let is_large = self.raise_size(handle, node, data, size);
            drop(mapping);
            if is_large {
                self.keeper.announce(&change, Announced::LargeFiles)?;
            }
            self.keeper.fast.mapped(&change, node, range.start..next.unwrap_or(range.end));
            Ok(Some(next.filter(|next| *next < blocks.end)))
        })
    }

    /// Caches what the map says of blocks that were converted.
    fn learn_written(
        &self,
        node: &LiveInode,
        data: &FileData,
        change: &Change<'_>,
        blocks: Range<u64>,
    ) -> Result<(), Fault> {
        for piece in self.pieces(node, &blocks)? {
            if let MapState::Written(start) = piece.state {
                let entry = Entry::mapped(piece.lblk.0, piece.len, start.0, Status::Written);
                let (from, to) = (blocks.start.max(piece.lblk.0.into()), blocks.end.min(piece.end()));
                let part = entry.part(from as u32, to as u32);
                data.learn(self.shared(), change.alloc, part, Allocation::Other);
            }
        }
        Ok(())
    }

    /// The whole extents that overlap a range of blocks.
    fn pieces(&self, node: &LiveInode, blocks: &Range<u64>) -> Result<Vec<Mapped>, Fault> {
        let (shared, map) = (self.shared(), node.values().map());
        let first = map.around(&shared.buffers, Lblk(blocks.start as u32))?.here.lblk;
        let mut pieces = Vec::new();
        map.walk_until(&shared.buffers, first, blocks.end, &mut |piece| {
            pieces.push(piece);
            Some(())
        })?;
        Ok(pieces)
    }

    /// Writes zeros to the unwritten parts of the extents in a range of blocks, except where data was
    /// written. Returns the blocks that can be converted then without growing the map. The caller holds the
    /// map's lock, and converts them in the same handle.
    fn zero_around(
        &self,
        node: &LiveInode,
        data: &FileData,
        blocks: &Range<u64>,
    ) -> Result<Range<u64>, Fault> {
        let log = self.shared().geometry.block_size.log2();
        let pieces = self.pieces(node, blocks)?;
        let unwritten = || {
            pieces
                .iter()
                .filter(|piece| matches!(piece.state, MapState::Unwritten(_)) && piece.end() > blocks.start)
        };
        let start =
            unwritten().map(|piece| piece.lblk.0.into()).min().unwrap_or(blocks.start).min(blocks.start);
        let end = unwritten().map(Mapped::end).max().unwrap_or(blocks.end).max(blocks.end);
        let size_blocks = node.values().fields.size.div_ceil(1 << log);
        if end > blocks.end.max(size_blocks) {
            return Err(Refusal::NoSpace.into());
        }
        let stopped = data.unconverted.stop();
        for piece in unwritten() {
            let MapState::Unwritten(first) = piece.state else { continue };
            for gap in stopped.gaps(&(piece.lblk.0.into()..piece.end())) {
                let at = extant_base::Pblk(first.0 + gap.start - u64::from(piece.lblk.0));
                self.write_zeros(at, (gap.end - gap.start) << log)?;
            }
        }
        Ok(start..end)
    }
}
