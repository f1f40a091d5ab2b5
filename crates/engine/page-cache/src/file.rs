//! The folios of one file: lookup, creation, writes and reads.
//!
//! Owns: the loops of [`write`](File::write) and [`read`](File::read), the creation of folios. Does **not**
//! own: the file's size (the caller cuts reads at it), the exclusion of concurrent writers (the caller's
//! inode lock), the map of chunks (see `map`), the changes of a folio (see `locked`), filling folios (see
//! `fill`), writeback (see `writeback`).
//!
//! Invariants
//! 1. Bytes of a block that is not uptodate are never returned.
//! 2. One folio is locked at a time, except by a fill of several folios, which locks them in rising order.

mod blocks;
mod dirty;
mod locked;
mod map;
mod runs;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use self::blocks::Blocks;
use self::dirty::DirtyChunks;
pub(crate) use self::locked::Locked;
use self::map::{ChunkMap, Memo};
use self::runs::Runs;
use crate::backing::{Backing, Extent};
use crate::chunk::{Chunk, Found};
use crate::errors::ErrorLog;
use crate::folio::{Folio, Owner};
use crate::order::{CHUNK_BYTES, CHUNK_SHIFT, PAGE_SHIFT};
use crate::pool::Memory;
use crate::reclaim::Clock;
use crate::{ErrorCursor, Order, Shared, WriteError};

/// References to an idle folio: its chunk, its ring, and the reclaimer.
const HOLDERS: usize = 3;

/// The end of the largest file.
pub(crate) const POS_MAX: u64 = 1 << 63;

/// The cached part of one file. Created by [`PageCache::file`](crate::PageCache::file). Its users keep it
/// alive, and the cache does while any of it is dirty.
pub struct File {
    pub(crate) this: Weak<Self>,
    pub(crate) shared: Arc<Shared>,
    /// Unique in the cache: never reused for another file.
    pub(crate) id: u64,
    key: u64,
    pub(crate) blocks: Blocks,
    pub(crate) chunks: ChunkMap,
    pub(crate) dirty: Mutex<DirtyChunks>,
    /// Fills take it shared, see [`stop_fills`](Self::stop_fills).
    pub(crate) fills: RwLock<()>,
    pub(crate) errors: ErrorLog,
    pub(crate) runs: Runs,
    /// The end of the bytes put here so far; raised under the lock of the folio that has them.
    pub(crate) end: AtomicU64,
}

impl File {
    pub(crate) fn new(
        this: Weak<Self>,
        shared: Arc<Shared>,
        id: u64,
        key: u64,
        block_bytes: u32,
        order_max: Order,
    ) -> Self {
        Self {
            this,
            blocks: Blocks::new(block_bytes, order_max.min(shared.config.order_max)),
            shared,
            id,
            key,
            chunks: ChunkMap::default(),
            dirty: Mutex::default(),
            fills: RwLock::default(),
            errors: ErrorLog::default(),
            runs: Runs::default(),
            end: AtomicU64::new(0),
        }
    }

    /// The caller's name for the file, for example an inode number.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        1 << self.blocks.shift
    }

    /// For callers that open the file without a [`Handle`](crate::Handle): the position after which errors
    /// are new to them.
    #[must_use]
    pub fn sample_errors(&self) -> ErrorCursor {
        self.errors.sample()
    }

    /// Like [`Handle::take_error`](crate::Handle::take_error).
    #[must_use]
    pub fn take_error_of(&self, cursor: &ErrorCursor) -> Option<WriteError> {
        self.errors.check_and_advance(cursor)
    }

    /// Whether any writeback of this file ever failed.
    #[must_use]
    pub fn had_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Copies `bytes` into the file from byte `pos` on and marks them dirty since `now_ms`. Returns the
    /// number of bytes copied: all, or those before the first error. Where the write begins or ends inside a
    /// block that is not cached, that block is read from the backing. The caller serializes overlapping
    /// writes, and writes with truncation.
    ///
    /// # Errors
    /// Those of the backing, if nothing was copied.
    pub fn write<B: Backing + ?Sized>(
        &self,
        pos: u64,
        bytes: &[u8],
        now_ms: u64,
        backing: &B,
    ) -> Result<usize, B::Error> {
        self.write_expecting(pos, bytes, bytes.len() as u64, now_ms, backing)
    }

    /// Like [`write`](Self::write), with folios as large as for a write of `expected` bytes.
    pub(crate) fn write_expecting<B: Backing + ?Sized>(
        &self,
        pos: u64,
        bytes: &[u8],
        expected: u64,
        now_ms: u64,
        backing: &B,
    ) -> Result<usize, B::Error> {
        check_range(pos, bytes.len() as u64);
        let (mut memo, mut done) = (None, 0);
        while done < bytes.len() {
            let at = pos + done as u64;
            let wanted = (bytes.len() - done) as u64;
            let (chunk, folio, is_new) = self.folio(&mut memo, at >> PAGE_SHIFT, wanted.max(expected));
            let mut locked = Locked::new(self, &chunk, &folio);
            if locked.state.is_gone() {
                continue;
            }
            let count = wanted.min(folio.end() - at) as usize;
            let start = (at - folio.pos()) as usize;
            if let Err(error) = locked.write(start, &bytes[done..done + count], now_ms, backing) {
                self.shared.counts.written_bytes.add(done as u64);
                return if done == 0 { Err(error) } else { Ok(done) };
            }
            self.raise_end(at + count as u64);
            drop(locked);
            if !is_new {
                folio.touch();
            }
            done += count;
        }
        self.shared.counts.written_bytes.add(done as u64);
        Ok(done)
    }

    /// Copies the file's bytes from `pos` on into all of `buf`. Cached blocks are copied under their folio's
    /// lock, shared with other readers; holes of the backing become zeros, without a folio; other blocks are
    /// read in first. Returns whether all bytes were cached. The caller cuts `buf` at the end of the file.
    ///
    /// # Errors
    /// Those of the backing; the contents of `buf` are undefined then.
    pub fn read<B: Backing + ?Sized>(&self, pos: u64, buf: &mut [u8], backing: &B) -> Result<bool, B::Error> {
        check_range(pos, buf.len() as u64);
        let (mut memo, mut done, mut missed) = (None, 0, 0);
        while done < buf.len() {
            let count = self.read_cached(&mut memo, pos + done as u64, &mut buf[done..]);
            done += count;
            if done < buf.len() {
                memo = None;
                let count = self.read_missing(pos + done as u64, &mut buf[done..], backing)?;
                done += count;
                missed += count;
            }
        }
        self.shared.counts.hit_bytes.add((done - missed) as u64);
        Ok(missed == 0)
    }

    /// Copies cached bytes from `pos` on, up to the first block that is not cached. Returns the number of
    /// bytes.
    pub(crate) fn read_cached(&self, memo: &mut Memo, pos: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = pos + done as u64;
            let Some(folio) = self.chunks.find(memo, at >> PAGE_SHIFT) else { break };
            let state = folio.state.read();
            if state.is_gone() {
                continue;
            }
            let start = (at - folio.pos()) as usize;
            let mut end = start + (buf.len() - done).min((folio.end() - at) as usize);
            let blocks = self.blocks.around(&(start..end));
            let missing = state.uptodate.next_clear(blocks.start, blocks.end);
            if missing < blocks.end {
                end = (missing as usize) << self.blocks.shift;
            }
            if end <= start {
                break;
            }
            buf[done..done + end - start].copy_from_slice(&state.bytes()[start..end]);
            drop(state);
            folio.touch();
            done += end - start;
        }
        done
    }

    /// How many bytes from the block at `first` on, up to `len` and within a chunk, are not cached; `None` if
    /// that block is cached.
    pub(crate) fn gap(&self, first: u64, len: u64) -> Option<u64> {
        let len = len.min(CHUNK_BYTES - first % CHUNK_BYTES);
        let Some(chunk) = self.chunks.get(first >> CHUNK_SHIFT) else { return Some(len) };
        let (mut at, end) = (first, first + len);
        // Folios on the path may be empty, whole or in part.
        while at < end {
            let Some(folio) = chunk.next(at >> PAGE_SHIFT) else { return Some(len) };
            let start = at.max(folio.pos());
            if start >= end {
                return Some(len);
            }
            let state = folio.state.read();
            let blocks = self.blocks.around(&((start - folio.pos()) as usize..folio.order.bytes() as usize));
            let here = state.uptodate.next_set(blocks.start, blocks.end);
            if here < blocks.end {
                let here = folio.pos() + self.blocks.to_bytes(here);
                return (here > first).then(|| here.min(end) - first);
            }
            at = folio.end();
        }
        Some(len)
    }

    /// Zeroes bytes inside one block in the cache, to be written back. Call it before bytes past the end of a
    /// file become visible, or before a hole is punched. A hole of the backing stays a hole, and a clean
    /// cached block over a hole stays clean. Returns whether the block is dirty now: then it must reach the
    /// backing before the changed map does.
    ///
    /// # Errors
    /// Those of the backing; nothing was changed then.
    pub fn zero_edge<B: Backing + ?Sized>(
        &self,
        range: Range<u64>,
        now_ms: u64,
        backing: &B,
    ) -> Result<bool, B::Error> {
        if range.is_empty() {
            return Ok(false);
        }
        check_range(range.start, range.end - range.start);
        let block = range.start >> self.blocks.shift;
        assert!((range.end - 1) >> self.blocks.shift == block, "{range:?} is inside of one block");
        let pos = block << self.blocks.shift;
        loop {
            // A hole reads as zeros and needs no folio.
            if self.gap(pos, self.block_bytes()).is_some()
                && matches!(backing.extent_at(pos, self.block_bytes())?, Extent::Hole { .. })
            {
                return Ok(false);
            }
            let (chunk, folio, _) = self.folio(&mut None, pos >> PAGE_SHIFT, self.block_bytes());
            let mut locked = Locked::new(self, &chunk, &folio);
            let state = &locked.state;
            if state.is_gone() {
                continue;
            }
            let start = (range.start - folio.pos()) as usize;
            let part = start..start + (range.end - range.start) as usize;
            let blocks = self.blocks.around(&part);
            let is_data = if !state.uptodate.all(blocks.clone()) {
                locked.load_block(blocks.start, backing)?
            } else if state.dirty.any(blocks.clone()) || state.writing.any(blocks.clone()) {
                // The run in flight has the old bytes, whatever the backing reports now.
                true
            } else {
                matches!(backing.extent_at(pos, self.block_bytes())?, Extent::Data { .. })
            };
            locked.state.uptodate.set(blocks.clone());
            locked.own_bytes(part.clone())[part].fill(0);
            if is_data {
                locked.set_dirty(blocks, now_ms);
            }
            return Ok(is_data);
        }
    }

    /// Notes that the cache or the backing has bytes up to `end`. A [`WritebackRun`](crate::WritebackRun)
    /// reports its end from this.
    pub fn raise_end(&self, end: u64) {
        if self.end.load(Ordering::Acquire) < end {
            self.end.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Notes that the file ends at `end` or before.
    pub fn cut_end(&self, end: u64) {
        self.end.fetch_min(end, Ordering::AcqRel);
    }

    /// Whether nothing of the file is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the folio with this page, and its chunk. If there is none, creates one of a size for `wanted`
    /// bytes from that page on. The flag says whether it is new.
    pub(crate) fn folio(&self, memo: &mut Memo, page: u64, wanted: u64) -> (Arc<Chunk>, Arc<Folio>, bool) {
        self.folio_up_to(memo, page, wanted, self.blocks.order_max)
    }

    /// Like [`folio`](Self::folio), with a largest order; a block fits in any case.
    pub(crate) fn folio_up_to(
        &self,
        memo: &mut Memo,
        page: u64,
        wanted: u64,
        order_max: Order,
    ) -> (Arc<Chunk>, Arc<Folio>, bool) {
        let number = page >> (CHUNK_SHIFT - PAGE_SHIFT);
        loop {
            let chunk = match memo.take().filter(|chunk| chunk.number == number) {
                Some(chunk) => chunk,
                None => self.chunks.get_or_new(number),
            };
            let gap_end = match chunk.find(page) {
                Found::Folio(folio) => {
                    *memo = Some(chunk.clone());
                    return (chunk, folio, false);
                }
                Found::GapUntil(end) => end,
                Found::Detached => continue,
            };
            let (start, order) = Order::choose(page, wanted, self.blocks.order_min, order_max);
            let order = order.min(Order::within((gap_end - start) << PAGE_SHIFT));
            // Before the lock: this may have to reclaim.
            let memory = self.shared.take_memory(order);
            let ring = Clock::ring_of_this_thread();
            let folio =
                Arc::new(Folio::new(start, memory, order, self.blocks.shift, self.this.clone(), ring));
            let mut slots = chunk.slots.write();
            if slots.is_detached || !slots.insert(&folio, number) {
                drop(slots);
                continue;
            }
            // Under the lock: a caller that removes the folio from the chunk removes it from the clock
            // afterwards.
            self.shared.remember(&folio);
            drop(slots);
            *memo = Some(chunk.clone());
            return (chunk, folio, true);
        }
    }
}

impl Owner for File {
    fn evict(&self, folio: &Arc<Folio>) -> Option<Arc<Memory>> {
        let chunk = self.chunks.try_get(folio.page >> (CHUNK_SHIFT - PAGE_SHIFT))?;
        let mut slots = chunk.slots.try_write()?;
        let mut state = folio.state.try_write()?;
        // Another holder is about to use it: a fill of many folios must not lose the first one to the last
        // one's reclaim.
        let is_pinned = state.bytes.as_ref().is_some_and(|bytes| Arc::strong_count(bytes) > 1);
        let is_held = is_pinned || Arc::strong_count(folio) > HOLDERS;
        let is_idle = state.dirty.is_empty() && state.writing.is_empty() && !state.is_gone() && !is_held;
        if !is_idle || !slots.remove(folio, chunk.number) {
            return None;
        }
        let is_last = slots.is_empty();
        let memory = state.take();
        drop((state, slots));
        if is_last {
            self.chunks.try_detach(&chunk);
        }
        memory
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // No run and no reader has it. Only the drop of the whole cache drops a file with dirty blocks.
        for chunk in self.chunks.take() {
            for folio in chunk.folios() {
                let mut state = folio.state.write();
                let blocks = (folio.order.bytes() >> self.blocks.shift) as u32;
                if !state.is_gone() {
                    let dirty = state.dirty.clear(0..blocks);
                    self.shared.drop_dirty(self.blocks.to_bytes(dirty));
                    drop(state.take());
                    drop(state);
                    self.shared.forget(&folio);
                }
            }
        }
        self.shared.forget_file(self.key, self.id);
    }
}

/// Checks the length of an extent that the backing reported: whole blocks, not empty. Cuts it to what was
/// asked.
pub(crate) fn checked_extent(len: u64, asked: u64, block: u64) -> u64 {
    assert!(len >= block && len.is_multiple_of(block), "an extent of {len} bytes, with blocks of {block}");
    len.min(asked)
}

pub(crate) fn check_range(pos: u64, len: u64) {
    assert!(len <= POS_MAX && pos <= POS_MAX - len, "bytes {pos} and {len} more are within a file");
}
