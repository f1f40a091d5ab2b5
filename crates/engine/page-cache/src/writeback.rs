//! Writeback: which dirty bytes are taken, how they reach the backing, and how that ends.
//!
//! ```text
//!            take                    done
//! dirty  ----------->  writing  ------------->  clean
//!   ^                     |  failed: clean, and the error is noted for every open file
//!   +---------------------+
//!     put back (or dropped): dirty since when it was
//! ```
//!
//! A run is a contiguous range of dirty blocks of one file. It has their bytes as they were when it was
//! taken. Readers continue to read the folio. Writers continue to write, into memory of their own if the run
//! holds the folio's. If a run has only a small part of a folio, it copies that part, because otherwise a
//! writer would have to copy the whole folio.
//!
//! Invariants
//! 1. A block is in one run at most: a block that is dirtied again in flight waits until the run is settled.
//!    So two writes of a block are never reordered.
//! 2. A run is settled once: by [`done`](WritebackRun::done), [`failed`](WritebackRun::failed) or
//!    [`put_back`](WritebackRun::put_back); dropping it puts it back.
//! 3. Runs come from the file that has been dirty longest, and in it from the chunk (2 MiB) that has been
//!    dirty longest; within it in rising order, continuing into the following chunks as far as blocks are
//!    dirty.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::chunk::{CLEAN, Chunk, Found};
use crate::file::{File, Locked, POS_MAX};
use crate::folio::Folio;
use crate::order::{CHUNK_BYTES, CHUNK_SHIFT, PAGE_SHIFT};
use crate::pool::Memory;
use crate::{Order, Shared, WriteError};

/// A piece of a folio is copied if the folio is at least this many times larger.
const COPY_FRACTION: usize = 8;

/// Dirty bytes of a file in flight to the backing.
pub struct WritebackRun {
    file: Arc<File>,
    start: u64,
    /// Since when its oldest block is dirty.
    dirtied_ms: u64,
    pieces: Vec<Piece>,
}

struct Piece {
    folio: Arc<Folio>,
    blocks: Range<u32>,
    memory: Arc<Memory>,
    /// The range of its bytes within the memory.
    bytes: Range<usize>,
    /// The end of the bytes put into the file when the run was taken.
    put_end: u64,
}

/// Result of taking a run.
pub enum Take {
    /// The bytes to write.
    Run(WritebackRun),
    /// All dirty blocks are in flight with older bytes: take again when those runs are settled
    /// ([`File::wait_written`]).
    Busy,
    /// No block is dirty.
    Clean,
}

impl File {
    /// Takes the next run of at most `bytes_max` bytes (at least one block), within `range` and dirty since
    /// `until_ms` or before; `u64::MAX` for all.
    #[must_use]
    pub fn take_run(&self, range: Range<u64>, until_ms: u64, bytes_max: u64) -> Take {
        let (mut after, mut is_busy) = (None, false);
        // The list is not locked in the loop.
        let next = |after| self.dirty.lock().next(after).filter(|(ms, _)| *ms <= until_ms);
        while let Some((dirtied_ms, number)) = next(after) {
            after = Some((dirtied_ms, number));
            let (run, is_passed) = self.take_in(number, range.clone(), bytes_max);
            if let Some(run) = run {
                return Take::Run(run);
            }
            is_busy |= is_passed;
        }
        if is_busy { Take::Busy } else { Take::Clean }
    }

    /// The numbers of the chunks of the range that have been dirty since `until_ms` or before, rising.
    #[must_use]
    pub fn dirty_chunks(&self, range: Range<u64>, until_ms: u64) -> Vec<u64> {
        let mut numbers = self.dirty.lock().until(until_ms);
        numbers
            .retain(|number| number << CHUNK_SHIFT < range.end && (number + 1) << CHUNK_SHIFT > range.start);
        numbers.sort_unstable();
        numbers
    }

    /// Takes the first run of at most `bytes_max` bytes (at least one block) that begins in this chunk and
    /// lies within `range`. The flag says whether dirty blocks before it, or all dirty blocks if no run is
    /// returned, are in flight with older bytes.
    #[must_use]
    pub fn take_in(&self, number: u64, range: Range<u64>, bytes_max: u64) -> (Option<WritebackRun>, bool) {
        let start = (number << CHUNK_SHIFT).max(range.start);
        let end = ((number + 1) << CHUNK_SHIFT).min(range.end);
        let Some(chunk) = self.chunks.get(number).filter(|_| start < end) else { return (None, false) };
        // A block that becomes dirty concurrently may be older or younger: assume the oldest.
        let dirtied_ms =
            Some(chunk.dirtied_ms.load(Ordering::Relaxed)).filter(|ms| *ms != CLEAN).unwrap_or(0);
        // The first folio may begin before the range does.
        let Some(mut page) = chunk.next(start >> PAGE_SHIFT).map(|folio| folio.page) else {
            return (None, false);
        };
        let mut is_busy = false;
        while let Some(dirty) = chunk.next_dirty(page).filter(|dirty| dirty << PAGE_SHIFT < end) {
            page = dirty + 1;
            let Found::Folio(folio) = chunk.find(dirty) else { continue };
            let blocks = self.blocks.within(&folio, &(start..end));
            let (piece, is_passed) = self.take_piece(&chunk, &folio, blocks, bytes_max, false);
            is_busy |= is_passed;
            if let Some(piece) = piece {
                return (Some(self.take_more(range, dirtied_ms, piece, bytes_max)), is_busy);
            }
        }
        (None, is_busy)
    }

    /// Continues a run after its first piece.
    fn take_more(&self, range: Range<u64>, dirtied_ms: u64, piece: Piece, bytes_max: u64) -> WritebackRun {
        let start = piece.pos(self);
        let mut at = start + piece.len();
        let block = self.block_bytes();
        let end = range.end.min(start.saturating_add(bytes_max.max(block) & !(block - 1)));
        let mut pieces = vec![piece];
        let mut chunk = None;
        while at < end {
            let number = at >> CHUNK_SHIFT;
            if chunk.as_ref().is_none_or(|chunk: &Arc<Chunk>| chunk.number != number) {
                chunk = self.chunks.get(number);
            }
            let Some(chunk) = &chunk else { break };
            let Some(folio) = chunk.next(at >> PAGE_SHIFT).filter(|folio| folio.pos() <= at) else { break };
            let blocks = self.blocks.within(&folio, &(at..end));
            let (Some(piece), _) = self.take_piece(chunk, &folio, blocks, end - at, true) else { break };
            at += piece.len();
            pieces.push(piece);
        }
        let file = self.this.upgrade().expect("a file is in use while a handle exists");
        WritebackRun { file, start, dirtied_ms, pieces }
    }

    /// Takes the first contiguous dirty blocks of `blocks` that are not in flight. The flag says whether
    /// dirty blocks before them are in flight. With `is_next`, takes them only if they begin at the start of
    /// `blocks`.
    fn take_piece(
        &self,
        chunk: &Chunk,
        folio: &Arc<Folio>,
        blocks: Range<u32>,
        bytes_max: u64,
        is_next: bool,
    ) -> (Option<Piece>, bool) {
        let mut locked = Locked::new(self, chunk, folio);
        let state = &locked.state;
        let mut start = state.dirty.next_set(blocks.start, blocks.end);
        let mut is_busy = false;
        // Skip blocks in flight with older bytes.
        while start < blocks.end && state.writing.any(start..start + 1) {
            is_busy = true;
            let written_end = state.writing.next_clear(start, blocks.end);
            start = state.dirty.next_set(written_end, blocks.end);
        }
        if start >= blocks.end || is_next && start != blocks.start {
            return (None, is_busy);
        }
        let count_max = (bytes_max >> self.blocks.shift).clamp(1, u64::from(blocks.end)) as u32;
        let end = state.dirty.next_clear(start, blocks.end.min(start.saturating_add(count_max)));
        let end = state.writing.next_set(start, end);
        let (blocks, mut bytes) = (start..end, self.blocks.bytes_of(&(start..end)));
        let Some(all) = state.bytes.clone() else { return (None, is_busy) };
        let put_end = self.end.load(Ordering::Acquire);
        let memory = if bytes.len() * COPY_FRACTION <= all.len() {
            let mut copy = self.shared.take_memory(Order::holding(bytes.len() as u64));
            copy[..bytes.len()].copy_from_slice(&all[bytes.clone()]);
            bytes = 0..bytes.len();
            Arc::new(copy)
        } else {
            all
        };
        locked.start_writing(blocks.clone());
        (Some(Piece { folio: folio.clone(), blocks, memory, bytes, put_end }), is_busy)
    }
}

impl File {
    /// Whether no block of the file is dirty or in flight.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_dirty = || self.dirty.lock().next(None).is_some();
        // Checked twice: a block that was in flight may be dirty again in between.
        !is_dirty() && !self.runs.are_any() && !is_dirty()
    }

    /// Whether a block that overlaps the range is dirty or in flight.
    #[must_use]
    pub fn is_held(&self, range: Range<u64>) -> bool {
        let chunks = self.chunks.all_from(range.start >> CHUNK_SHIFT);
        chunks.iter().take_while(|chunk| (chunk.number << CHUNK_SHIFT) < range.end).any(|chunk| {
            chunk.folios().iter().any(|folio| {
                let blocks = self.blocks.within(folio, &range);
                let state = folio.state.read();
                !blocks.is_empty() && (state.dirty.any(blocks.clone()) || state.writing.any(blocks))
            })
        })
    }

    /// Returns whether the block at the start of the range is dirty or in flight, and the end of the
    /// following blocks that have the same state. The end is at most that of the range, and past its start
    /// unless the range is empty.
    #[must_use]
    pub fn held_run(&self, range: Range<u64>) -> (bool, u64) {
        let (is_held, mut end) = self.held_in_folio(&range);
        while end < range.end {
            let (is_next, next_end) = self.held_in_folio(&(end..range.end));
            if is_next != is_held {
                break;
            }
            end = next_end;
        }
        (is_held, end)
    }

    /// Like [`held_run`](Self::held_run), but the end is at most that of a folio, or of a gap between two.
    fn held_in_folio(&self, range: &Range<u64>) -> (bool, u64) {
        let Some(chunk) = self.chunks.next(range.start >> CHUNK_SHIFT) else { return (false, range.end) };
        let chunk_pos = chunk.number << CHUNK_SHIFT;
        let folio = chunk.next(range.start.max(chunk_pos) >> PAGE_SHIFT);
        let Some(folio) = folio else { return (false, range.end.min(chunk_pos + CHUNK_BYTES)) };
        if folio.pos() > range.start {
            return (false, range.end.min(folio.pos()));
        }
        let blocks = self.blocks.within(&folio, range);
        let state = folio.state.read();
        let is_set = |block: u32| state.dirty.any(block..block + 1) || state.writing.any(block..block + 1);
        let is_held = is_set(blocks.start);
        let mut to = blocks.start;
        while to < blocks.end && is_set(to) == is_held {
            to = match is_held {
                true => {
                    let dirty = state.dirty.next_clear(to, blocks.end);
                    dirty.max(state.writing.next_clear(to, blocks.end))
                }
                false => {
                    let dirty = state.dirty.next_set(to, blocks.end);
                    dirty.min(state.writing.next_set(to, blocks.end))
                }
            };
        }
        (is_held, range.end.min(folio.pos() + (u64::from(to) << self.blocks.shift)))
    }
}

impl Piece {
    fn pos(&self, file: &File) -> u64 {
        self.folio.pos() + (u64::from(self.blocks.start) << file.blocks.shift)
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl WritebackRun {
    /// The file that the bytes belong to.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The position in the file, in bytes.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Length in bytes: whole blocks. The last block may reach past the end of the file, with zeros.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::len).sum()
    }

    /// The end of the bytes put into the file when the run was taken: the end of its last block, or a
    /// position inside it. Bytes appended there later make the block dirty again.
    #[must_use]
    pub fn end(&self) -> u64 {
        let put_end = self.pieces.last().map_or(self.start, |piece| piece.put_end);
        (self.start + self.len_bytes()).min(put_end)
    }

    /// Since when its oldest block is dirty, as the writer passed it.
    #[must_use]
    pub fn dirtied_ms(&self) -> u64 {
        self.dirtied_ms
    }

    /// The bytes, in order, for one vectored write.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &piece.memory[piece.bytes.clone()])
    }

    /// Keeps the first `bytes` bytes, whole blocks, and returns the rest as a run of its own: for a run that
    /// crosses the end of an extent on the device.
    #[must_use]
    pub fn split_off(&mut self, bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(self.file.block_bytes()), "a run splits between blocks, not at {bytes}");
        let mut rest = Self {
            file: self.file.clone(),
            start: self.start + bytes.min(self.len_bytes()),
            dirtied_ms: self.dirtied_ms,
            pieces: Vec::new(),
        };
        let mut left = bytes;
        let cut = self.pieces.iter().position(|piece| {
            let is_cut = left < piece.len();
            left = if is_cut { left } else { left - piece.len() };
            is_cut
        });
        if let Some(at) = cut {
            rest.pieces = self.pieces.split_off(at);
            if left != 0 {
                let piece = &mut rest.pieces[0];
                let blocks = (left >> self.file.blocks.shift) as u32;
                let (block, byte) = (piece.blocks.start + blocks, piece.bytes.start + left as usize);
                self.pieces.push(Piece {
                    folio: piece.folio.clone(),
                    blocks: piece.blocks.start..block,
                    memory: piece.memory.clone(),
                    bytes: piece.bytes.start..byte,
                    put_end: piece.put_end,
                });
                (piece.blocks.start, piece.bytes.start) = (block, byte);
            }
        }
        rest
    }

    /// Settles the run: the backing has the bytes.
    pub fn done(mut self) {
        self.finish(false);
    }

    /// Settles the run: the backing permanently rejected the bytes. Every open file gets the error. The
    /// blocks become clean, and readers find the bytes until they are reclaimed, as in the Linux kernel.
    pub fn failed(mut self, error: WriteError) {
        // Before the waiters for this run wake up and check for errors.
        self.file.errors.note(error);
        self.finish(false);
    }

    /// Settles the run: the bytes are dirty again, since the same time as before, and are retried later.
    pub fn put_back(mut self) {
        self.finish(true);
    }

    fn finish(&mut self, is_dirty: bool) {
        if self.pieces.is_empty() {
            return;
        }
        let len = self.len_bytes();
        for Piece { folio, blocks, memory, .. } in self.pieces.drain(..) {
            // Before the lock: a writer that gets it need not copy.
            drop(memory);
            let file = &self.file;
            // The chunk has this folio, so it exists.
            let Some(chunk) = file.chunks.get(folio.page >> (CHUNK_SHIFT - PAGE_SHIFT)) else { continue };
            let mut locked = Locked::new(file, &chunk, &folio);
            locked.end_writing(blocks.clone());
            if is_dirty {
                locked.set_dirty(blocks, self.dirtied_ms);
                file.backdate_chunk(&chunk, self.dirtied_ms);
            }
        }
        self.file.runs.settle(len);
        self.file.shared.end_writing(len);
    }
}

impl Drop for WritebackRun {
    fn drop(&mut self) {
        self.finish(true);
    }
}

impl Shared {
    /// The next run of all files; see [`PageCache::take_run`](crate::PageCache::take_run).
    pub(crate) fn take_run(&self, until_ms: u64, bytes_max: u64) -> Option<WritebackRun> {
        let mut after = None;
        while let Some((place, file)) = self.dirty.next_file(after).filter(|((ms, _), _)| *ms <= until_ms) {
            if let Take::Run(run) = file.take_run(0..POS_MAX, until_ms, bytes_max) {
                return Some(run);
            }
            after = Some(place);
        }
        None
    }
}
