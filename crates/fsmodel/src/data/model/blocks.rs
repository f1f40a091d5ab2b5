//! Which blocks of a file hold data once everything is written back.
//!
//! Owns: for each block of a file whether it is written, reserved without being written, or a hole. Does
//! **not** own: bytes, sizes, refusals, where a block lies.
//!
//! A block that was written to is written once it is on the disk, whatever it was before. What is only
//! reserved reads as zeros and counts as a hole. The kernel keeps to that whatever the state of its
//! allocator, with two exceptions: mount options by which it writes in place (`nodelalloc`, `dioread_lock`,
//! `data=journal`), where small reserved extents are filled with zeros instead of being split
//! (`extent_max_zeroout_kb`); and what is in memory only.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks by their number in the file; missing ones are holes.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    /// Is it written?
    blocks: BTreeMap<u64, bool>,
}

/// Pages are what punching at the end of the file goes by.
const PAGE: u64 = 4096;

/// The blocks that a range of bytes touches.
fn touched(range: &Range<u64>, size: u64) -> Range<u64> {
    range.start / size..range.end.div_ceil(size)
}

/// The blocks that lie in a range of bytes as a whole.
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

    /// Blocks at the ends are only reserved: they keep what they hold outside of the range.
    pub(super) fn zero(&mut self, range: Range<u64>, block_size: u64) {
        self.reserve(range.clone(), block_size);
        self.blocks.extend(whole(&range, block_size).map(|block| (block, false)));
    }

    /// Beyond the end of the file only the rest of its page goes.
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

    /// Bytes of written blocks below the size, touching ones as one.
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
