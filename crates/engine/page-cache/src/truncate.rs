//! Dropping bytes: past the end of a file, or in a punched hole.
//!
//! Whole blocks are dropped, dirty or not. The remaining part of a block at the edge is zeroed first by
//! [`zero_edge`](File::zero_edge), which may need the backing and so may fail.
//!
//! ```text
//! discard 1500..9000, blocks of 1024:   0 [1024 . . . . . . 8192) 9216
//!                                  zero 1500..2048     zero 8192..9000
//!                                            drop 2048..8192
//! ```
//!
//! These functions wait for runs in flight that have blocks of the range: when they return, no write to the
//! blocks is under way, and their place on the device may be reused.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::chunk::Chunk;
use crate::file::{File, Locked, POS_MAX, check_range};
use crate::folio::Folio;
use crate::order::{CHUNK_SHIFT, PAGE_SHIFT};

impl File {
    /// Cuts the file at `size` bytes: drops the blocks past it, and zeroes the rest of the block with the
    /// end, if it is cached. The caller holds [`stop_fills`](Self::stop_fills) and a lock that excludes
    /// writers until the map is cut too. Waits for runs in that part.
    ///
    /// It does not change the rest of the last block on the device: call [`zero_edge`](Self::zero_edge)
    /// before.
    pub fn truncate(&self, size: u64) {
        check_range(size, 0);
        let block = self.block_bytes();
        let first = size.next_multiple_of(block);
        self.drop_blocks(first..POS_MAX);
        if first != size {
            self.zero_cached(size..first);
        }
    }

    /// Drops the blocks that are wholly inside the range, dirty or not. The caller holds the same locks as
    /// for [`truncate`](Self::truncate).
    pub fn discard(&self, range: Range<u64>) {
        check_range(range.start, range.end.saturating_sub(range.start));
        let block = self.block_bytes();
        let inner = range.start.next_multiple_of(block)..range.end & !(block - 1);
        if inner.start < inner.end {
            self.drop_blocks(inner);
        }
    }

    /// Waits until no run in flight has blocks of the range.
    pub fn wait_written(&self, range: Range<u64>) {
        for chunk in self.chunks.all_from(range.start >> CHUNK_SHIFT) {
            if (chunk.number << CHUNK_SHIFT) >= range.end {
                break;
            }
            if chunk.writing_blocks.load(Ordering::SeqCst) == 0 {
                continue;
            }
            for folio in chunk.folios() {
                let blocks = self.blocks.within(&folio, &range);
                if !blocks.is_empty() {
                    self.runs.retry(|| (!folio.state.read().writing.any(blocks.clone())).then_some(()));
                }
            }
        }
    }

    fn drop_blocks(&self, range: Range<u64>) {
        for chunk in self.chunks.all_from(range.start >> CHUNK_SHIFT) {
            if (chunk.number << CHUNK_SHIFT) >= range.end {
                break;
            }
            for folio in chunk.folios() {
                let blocks = self.blocks.within(&folio, &range);
                if !blocks.is_empty() {
                    self.drop_folio_blocks(&chunk, &folio, blocks);
                }
            }
            if chunk.slots.read().is_empty() {
                self.chunks.try_detach(&chunk);
            }
        }
    }

    fn drop_folio_blocks(&self, chunk: &Arc<Chunk>, folio: &Arc<Folio>, blocks: Range<u32>) {
        let is_empty = self.runs.retry(|| {
            let mut locked = Locked::new(self, chunk, folio);
            if locked.state.is_gone() {
                return Some(false);
            }
            if locked.state.writing.any(blocks.clone()) {
                return None;
            }
            locked.drop_blocks(blocks.clone());
            let state = &locked.state;
            Some(state.uptodate.is_empty() && state.writing.is_empty())
        });
        if is_empty {
            let mut slots = chunk.slots.write();
            let mut state = folio.state.write();
            // A concurrent fill may have read another part of it in again.
            if !state.is_gone() && state.uptodate.is_empty() && slots.remove(folio, chunk.number) {
                let memory = state.take();
                drop((state, slots));
                drop(memory);
                self.shared.forget(folio);
            }
        }
    }

    /// Zeroes bytes of a cached block; a clean block stays clean, a dirty one dirty.
    fn zero_cached(&self, range: Range<u64>) {
        let folio = self
            .chunks
            .get(range.start >> CHUNK_SHIFT)
            .and_then(|chunk| chunk.next(range.start >> PAGE_SHIFT));
        let Some(folio) = folio.filter(|folio| folio.pos() <= range.start) else { return };
        let mut state = folio.state.write();
        let part = (range.start - folio.pos()) as usize..(range.end - folio.pos()) as usize;
        if !state.is_gone() && state.uptodate.all(self.blocks.around(&part)) {
            state.own_bytes(&self.shared, folio.order, part.clone())[part].fill(0);
        }
    }
}
