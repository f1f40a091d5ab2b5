//! A folio that is locked for changing.
//!
//! Owns: the changes of a folio's bits together with what is counted of them elsewhere. Does **not** own: the
//! lookup of the folio (see [`File`]), which blocks are taken for a run (see `writeback`) or dropped (see
//! `truncate`).
//!
//! Invariants
//! 1. When the lock is released, the chunk counts the dirty blocks of its folios and those in flight, and
//!    notes which folios have dirty blocks; the file counts its bytes in flight; the cache counts the bytes
//!    of both kinds.
//! 2. A write that changes a part of a block takes the rest of it from the backing, or zeros where that has a
//!    hole.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;

use super::File;
use crate::backing::{Backing, Extent};
use crate::chunk::Chunk;
use crate::folio::{Folio, State};

/// A folio of a file, locked.
pub(crate) struct Locked<'a> {
    file: &'a File,
    chunk: &'a Chunk,
    folio: &'a Arc<Folio>,
    pub(crate) state: RwLockWriteGuard<'a, State>,
}

impl<'a> Locked<'a> {
    pub(crate) fn new(file: &'a File, chunk: &'a Chunk, folio: &'a Arc<Folio>) -> Self {
        Self { file, chunk, folio, state: folio.state.write() }
    }

    /// Copies `bytes` into the folio from byte `start` on.
    pub(super) fn write<B: Backing + ?Sized>(
        &mut self,
        start: usize,
        bytes: &[u8],
        now_ms: u64,
        backing: &B,
    ) -> Result<(), B::Error> {
        let part = start..start + bytes.len();
        let blocks = self.file.blocks.around(&part);
        self.load_edges(&part, backing)?;
        self.own_bytes(part.clone())[part].copy_from_slice(bytes);
        self.state.uptodate.set(blocks.clone());
        self.set_dirty(blocks, now_ms);
        Ok(())
    }

    /// The bytes, for changing: see [`State::own_bytes`].
    pub(super) fn own_bytes(&mut self, replaced: Range<usize>) -> &mut [u8] {
        self.state.own_bytes(&self.file.shared, self.folio.order, replaced)
    }

    /// Reads in the blocks that `part` covers only partly and that are not cached. The write that follows
    /// marks them uptodate.
    fn load_edges<B: Backing + ?Sized>(&mut self, part: &Range<usize>, backing: &B) -> Result<(), B::Error> {
        let blocks = self.file.blocks.around(part);
        let is_cut = |at: usize| at & ((1 << self.file.blocks.shift) - 1) != 0;
        let first = is_cut(part.start).then_some(blocks.start);
        let last = is_cut(part.end).then_some(blocks.end - 1).filter(|last| Some(*last) != first);
        for block in [first, last].into_iter().flatten() {
            if !self.state.uptodate.all(block..block + 1) {
                self.load_block(block, backing)?;
            }
        }
        Ok(())
    }

    /// Sets the bytes of one block to those of the backing. Returns `true` for data, `false` for a hole.
    pub(super) fn load_block<B: Backing + ?Sized>(
        &mut self,
        block: u32,
        backing: &B,
    ) -> Result<bool, B::Error> {
        let part = self.file.blocks.bytes_of(&(block..block + 1));
        let pos = self.folio.pos() + part.start as u64;
        let is_data = matches!(backing.extent_at(pos, self.file.block_bytes())?, Extent::Data { .. });
        let bytes = &mut self.own_bytes(0..0)[part];
        if is_data {
            backing.read_at(pos, &mut [IoSliceMut::new(bytes)])?;
            let count = bytes.len() as u64;
            self.file.shared.counts.miss_bytes.add(count);
        } else {
            bytes.fill(0);
        }
        Ok(is_data)
    }

    /// Marks uptodate blocks as newer than the backing.
    pub(crate) fn set_dirty(&mut self, blocks: Range<u32>, now_ms: u64) {
        let was_dirty = !self.state.dirty.is_empty();
        let new = self.state.dirty.set(blocks);
        if new != 0 {
            if !was_dirty {
                self.chunk.note_dirty(self.folio, true);
            }
            if self.chunk.dirty_blocks.fetch_add(new, Ordering::SeqCst) == 0 {
                self.file.list_chunk(self.chunk, now_ms);
            }
            self.file.shared.add_dirty(self.file.blocks.to_bytes(new));
        }
    }

    /// Moves dirty blocks that are not in flight to a run.
    pub(crate) fn start_writing(&mut self, blocks: Range<u32>) {
        let count = self.clear_dirty(blocks.clone());
        self.state.writing.set(blocks);
        let bytes = self.file.blocks.to_bytes(count);
        // Before the blocks are no longer dirty: see `is_clean`.
        self.file.runs.add(bytes);
        self.file.shared.start_writing(bytes);
        self.chunk.writing_blocks.fetch_add(count, Ordering::SeqCst);
        self.uncount_dirty(count);
    }

    /// The run with these blocks is being settled; see [`Runs::settle`](super::runs::Runs::settle).
    pub(crate) fn end_writing(&mut self, blocks: Range<u32>) {
        let count = self.state.writing.clear(blocks);
        self.chunk.writing_blocks.fetch_sub(count, Ordering::SeqCst);
    }

    /// Drops blocks that are not in flight, dirty or not.
    pub(crate) fn drop_blocks(&mut self, blocks: Range<u32>) {
        let dropped = self.clear_dirty(blocks.clone());
        self.uncount_dirty(dropped);
        self.file.shared.drop_dirty(self.file.blocks.to_bytes(dropped));
        self.state.uptodate.clear(blocks);
    }

    /// Returns the number of blocks that were dirty.
    fn clear_dirty(&mut self, blocks: Range<u32>) -> u32 {
        let count = self.state.dirty.clear(blocks);
        if count != 0 && self.state.dirty.is_empty() {
            self.chunk.note_dirty(self.folio, false);
        }
        count
    }

    /// Subtracts blocks of the chunk that are no longer dirty.
    fn uncount_dirty(&self, blocks: u32) {
        if blocks != 0 && self.chunk.dirty_blocks.fetch_sub(blocks, Ordering::SeqCst) == blocks {
            self.file.list_chunk(self.chunk, 0);
        }
    }
}
