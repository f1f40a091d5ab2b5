//! Which blocks of a file hold data once everything is written back.
//!
//! Owns: for each block of a file whether it is written, unwritten, or a hole. Does **not** own: bytes,
//! sizes, refusals, where a block lies.
//!
//! A block with written bytes becomes a written block at write-back, whatever it was before. An unwritten
//! block reads as zeros and counts as a hole. The kernel follows this whatever the state of its allocator,
//! with two exceptions: mount options with which it writes in place (`nodelalloc`, `dioread_lock`,
//! `data=journal`), where it zeroes small unwritten extents instead of splitting them
//! (`extent_max_zeroout_kb`); and what is only in memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks by their number in the file; missing ones are holes.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    /// Whether the block is written; otherwise it is unwritten.
    blocks: BTreeMap<u64, bool>,
}

/// Bytes of a page: the unit of a punch at the end of the file.
const PAGE: u64 = 4096;

/// The blocks that a range of bytes touches.
fn touched(range: &Range<u64>, size: u64) -> Range<u64> {
    range.start / size..range.end.div_ceil(size)
}

/// The blocks that lie completely in a range of bytes.
fn whole(range: &Range<u64>, size: u64) -> Range<u64> {
    let start = range.start.div_ceil(size);
    start..(range.end / size).max(start)
}

impl Blocks {
    pub(super) fn write(&mut self, range: Range<u64>, block_size: u64) {
        self.blocks.extend(touched(&range, block_size).map(|block| (block, true)));
    }

    pub(super) fn reserve(&mut self, range: Range<u64>, block_size: u64) {
        touched(&range, block_size).for_each(|block| {
            self.blocks.entry(block).or_insert(false);
        });
    }

    /// Blocks at the ends of the range are only reserved: they keep their bytes outside of the range.
    pub(super) fn zero(&mut self, range: Range<u64>, block_size: u64) {
        self.reserve(range.clone(), block_size);
        self.blocks.extend(whole(&range, block_size).map(|block| (block, false)));
    }

    /// After the end of the file, a punch removes only the rest of the last page.
    pub(super) fn punch(&mut self, range: Range<u64>, size: u64, block_size: u64) {
        if range.start < size {
            let end = if range.end > size { size.next_multiple_of(PAGE) } else { range.end };
            self.remove(whole(&(range.start..end), block_size));
        }
    }

    pub(super) fn truncate(&mut self, size: u64, block_size: u64) {
        self.blocks.split_off(&size.div_ceil(block_size));
    }

    pub(super) fn collapse(&mut self, range: Range<u64>, block_size: u64) {
        let gone = whole(&range, block_size);
        self.remove(gone.clone());
        let moved = self.blocks.split_off(&gone.start);
        self.blocks.extend(moved.into_iter().map(|(block, state)| (block - (gone.end - gone.start), state)));
    }

    pub(super) fn insert(&mut self, range: Range<u64>, block_size: u64) {
        let new = whole(&range, block_size);
        let moved = self.blocks.split_off(&new.start);
        self.blocks.extend(moved.into_iter().map(|(block, state)| (block + (new.end - new.start), state)));
    }

    fn remove(&mut self, range: Range<u64>) {
        let mut tail = self.blocks.split_off(&range.start);
        self.blocks.append(&mut tail.split_off(&range.end));
    }

    /// Byte ranges of written blocks below the size. Adjacent ranges are merged.
    pub(super) fn data(&self, size: u64, block_size: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (block, _) in self.blocks.iter().filter(|(_, is_written)| **is_written) {
            let (start, end) = (block * block_size, ((block + 1) * block_size).min(size));
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if start < end => ranges.push(start..end),
                _ => {}
            }
        }
        ranges
    }
}
