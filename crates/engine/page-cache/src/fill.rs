//! Filling folios: many at a time, with as few reads of the backing as the file's map allows.
//!
//! A fill holds the folios' locks while it reads. Readers of these folios wait for that and nothing else. If
//! two threads want the same blocks, the blocks are read once.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::Order;
use crate::backing::{Backing, Extent};
use crate::file::{File, check_range, checked_extent};
use crate::folio::{Folio, State};
use crate::order::{CHUNK_BYTES, CHUNK_SHIFT, PAGE_SHIFT};
use crate::readahead::Window;

/// Blocks fills while it lives; see [`File::stop_fills`].
pub struct FillsStopped<'a> {
    _fills: RwLockWriteGuard<'a, ()>,
}

/// A fill of a file. While it lives, [`File::stop_fills`] waits.
pub(crate) struct Filling<'a, B: ?Sized> {
    file: &'a File,
    order_max: Order,
    backing: &'a B,
    _fills: RwLockReadGuard<'a, ()>,
}

impl File {
    /// Waits for running fills and blocks new ones. Hold it from before blocks are dropped
    /// ([`truncate`](Self::truncate), [`discard`](Self::discard)) until the map is changed too: a fill that
    /// finds the old map in between would bring back the dropped bytes. Reads of cached bytes continue. The
    /// holder must not read this file.
    #[must_use]
    pub fn stop_fills(&self) -> FillsStopped<'_> {
        FillsStopped { _fills: self.fills.write() }
    }

    /// Reads in the blocks of a window that are not cached. Call it with the window that
    /// [`Handle::read`](crate::Handle::read) recommends, possibly on another thread. Skips holes. Returns the
    /// number of bytes read.
    ///
    /// # Errors
    /// Those of the backing; what was read before the error stays.
    pub fn fill<B: Backing + ?Sized>(&self, window: Window, backing: &B) -> Result<u64, B::Error> {
        check_range(window.start, window.len_bytes);
        let block = self.block_bytes();
        let mut at = window.start & !(block - 1);
        let end = (window.start + window.len_bytes).next_multiple_of(block);
        let mut filled = 0;
        while at < end {
            let filling = Filling::new(self, window.order, backing);
            let Some(gap) = self.gap(at, end - at) else {
                at = filling.cached_until(at, end);
                continue;
            };
            match backing.extent_at(at, gap)? {
                Extent::Hole { len_bytes } => at += checked_extent(len_bytes, gap, block),
                Extent::Data { len_bytes } => {
                    let len = checked_extent(len_bytes, gap, block);
                    filled += filling.data(at..at + len)?;
                    at += len;
                }
            }
        }
        self.shared.counts.readahead_bytes.add(filled);
        Ok(filled)
    }

    /// Copies the bytes at `pos`, in a block that was not cached, and those that follow. Returns their
    /// number.
    pub(crate) fn read_missing<B: Backing + ?Sized>(
        &self,
        pos: u64,
        buf: &mut [u8],
        backing: &B,
    ) -> Result<usize, B::Error> {
        let filling = Filling::new(self, self.blocks.order_max, backing);
        let first = pos & !(self.block_bytes() - 1);
        let wanted = (pos + buf.len() as u64).next_multiple_of(self.block_bytes()) - first;
        // The backing reports a block of delayed allocation as a hole, but the cache has it: cached blocks
        // end the gap.
        let Some(gap) = self.gap(first, wanted) else { return Ok(self.read_cached(&mut None, pos, buf)) };
        let (is_hole, len) = match backing.extent_at(first, gap)? {
            Extent::Hole { len_bytes } => (true, len_bytes),
            Extent::Data { len_bytes } => (false, len_bytes),
        };
        let len = checked_extent(len, gap, self.block_bytes());
        let count = ((first + len - pos) as usize).min(buf.len());
        let buf = &mut buf[..count];
        if is_hole {
            buf.fill(0);
            self.shared.counts.hole_bytes.add(count as u64);
            return Ok(count);
        }
        filling.data(first..first + len)?;
        self.shared.counts.miss_bytes.add(count as u64);
        let found = self.read_cached(&mut None, pos, buf);
        if found == 0 {
            // Already evicted again: memory is short. Read past the cache.
            let mut block = self.shared.take_memory(self.blocks.order_min);
            let block = &mut block[..1 << self.blocks.shift];
            backing.read_at(first, &mut [IoSliceMut::new(block)])?;
            let start = (pos - first) as usize;
            let count = count.min(block.len() - start);
            buf[..count].copy_from_slice(&block[start..start + count]);
            return Ok(count);
        }
        Ok(found)
    }
}

impl<'a, B: Backing + ?Sized> Filling<'a, B> {
    /// Waits while fills are stopped. The fill creates folios of up to `order_max`.
    pub(crate) fn new(file: &'a File, order_max: Order, backing: &'a B) -> Self {
        Self { file, order_max, backing, _fills: file.fills.read() }
    }

    /// The end of the cached blocks from `at` on, within one folio.
    fn cached_until(&self, at: u64, end: u64) -> u64 {
        let block = self.file.block_bytes();
        let folio = self.file.chunks.get(at >> CHUNK_SHIFT).and_then(|chunk| chunk.next(at >> PAGE_SHIFT));
        let Some(folio) = folio.filter(|folio| folio.pos() <= at) else { return at + block };
        let state = folio.state.read();
        let blocks = self.file.blocks.around(&((at - folio.pos()) as usize..folio.order.bytes() as usize));
        let clear =
            if state.is_gone() { blocks.start } else { state.uptodate.next_clear(blocks.start, blocks.end) };
        (folio.pos() + (u64::from(clear) << self.file.blocks.shift)).clamp(at + block, end.max(at + block))
    }

    /// Reads the blocks of a data range that are not cached. Returns the number of bytes read.
    pub(crate) fn data(&self, range: Range<u64>) -> Result<u64, B::Error> {
        let (mut at, mut filled) = (range.start, 0);
        while at < range.end {
            let end = range.end.min((at / CHUNK_BYTES + 1) * CHUNK_BYTES);
            filled += self.chunk(at..end)?;
            at = end;
        }
        Ok(filled)
    }

    /// As [`data`](Self::data), for a range in one chunk.
    fn chunk(&self, range: Range<u64>) -> Result<u64, B::Error> {
        let mut memo = None;
        loop {
            let mut folios: Vec<Arc<Folio>> = Vec::new();
            let mut at = range.start;
            while at < range.end {
                let (_, folio, _) =
                    self.file.folio_up_to(&mut memo, at >> PAGE_SHIFT, range.end - at, self.order_max);
                at = folio.end();
                folios.push(folio);
            }
            // In rising order, and only fills hold more than one.
            let mut states: Vec<_> = folios.iter().map(|folio| folio.state.write()).collect();
            if states.iter().all(|state| !state.is_gone()) {
                return self.folios(&range, &folios, &mut states);
            }
            memo = None;
        }
    }

    fn folios(
        &self,
        range: &Range<u64>,
        folios: &[Arc<Folio>],
        states: &mut [RwLockWriteGuard<'_, State>],
    ) -> Result<u64, B::Error> {
        // Missing blocks: position in the file, index of the folio, blocks, and the memory for them.
        let mut missing: Vec<(u64, usize, Range<u32>)> = Vec::new();
        let mut bufs: Vec<IoSliceMut<'_>> = Vec::new();
        for (index, (folio, state)) in folios.iter().zip(states.iter_mut()).enumerate() {
            let start = range.start.max(folio.pos()) - folio.pos();
            let end = range.end.min(folio.end()) - folio.pos();
            let blocks = self.file.blocks.around(&(start as usize..end as usize));
            let first = missing.len();
            let mut at = state.uptodate.next_clear(blocks.start, blocks.end);
            while at < blocks.end {
                let end = state.uptodate.next_set(at, blocks.end);
                missing.push((folio.pos() + (u64::from(at) << self.file.blocks.shift), index, at..end));
                at = state.uptodate.next_clear(end, blocks.end);
            }
            if first == missing.len() {
                continue;
            }
            let (mut rest, mut cut) = (state.own_bytes(&self.file.shared, folio.order, 0..0), 0);
            for (_, _, blocks) in &missing[first..] {
                let Range { start, end } = self.file.blocks.bytes_of(blocks);
                let (part, behind) = rest[start - cut..].split_at_mut(end - start);
                bufs.push(IoSliceMut::new(part));
                (rest, cut) = (behind, end);
            }
        }
        // One read for blocks that are contiguous in the file.
        let (mut done, mut result) = (0, Ok(()));
        while done < missing.len() {
            let pos = missing[done].0;
            let (mut end, mut next) = (done, pos);
            while end < missing.len() && missing[end].0 == next {
                next += bufs[end].len() as u64;
                end += 1;
            }
            result = self.backing.read_at(pos, &mut bufs[done..end]);
            if result.is_err() {
                break;
            }
            done = end;
        }
        drop(bufs);
        let mut filled = 0;
        for (_, index, blocks) in missing.drain(..done) {
            filled += self.file.blocks.to_bytes(states[index].uptodate.set(blocks));
        }
        result.map(|()| filled)
    }
}
