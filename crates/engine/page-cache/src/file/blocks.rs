//! The blocks of a file: their size, and which of them a range of bytes touches.

use std::ops::Range;

use crate::Order;
use crate::folio::Folio;

/// The sizes of a file's blocks and folios.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks {
    /// A block has `1 << shift` bytes.
    pub(crate) shift: u32,
    /// The smallest folio: at least one block.
    pub(crate) order_min: Order,
    /// The largest folio, but a block fits in any case.
    pub(crate) order_max: Order,
}

impl Blocks {
    /// Blocks of a power of two of bytes.
    pub(super) fn new(block_bytes: u32, order_max: Order) -> Self {
        assert!(
            block_bytes.is_power_of_two() && (1024..=65536).contains(&block_bytes),
            "blocks of {block_bytes} bytes"
        );
        let order_min = Order::holding(u64::from(block_bytes));
        Self { shift: block_bytes.trailing_zeros(), order_min, order_max }
    }

    /// Bytes of a number of blocks.
    pub(crate) fn to_bytes(self, blocks: u32) -> u64 {
        u64::from(blocks) << self.shift
    }

    /// The bytes of blocks of a folio, from the start of the folio.
    pub(crate) fn bytes_of(self, blocks: &Range<u32>) -> Range<usize> {
        (blocks.start as usize) << self.shift..(blocks.end as usize) << self.shift
    }

    /// The blocks of a folio that these bytes of it touch.
    pub(crate) fn around(self, part: &Range<usize>) -> Range<u32> {
        let start = (part.start >> self.shift) as u32;
        let end = part.end.next_multiple_of(1 << self.shift) >> self.shift;
        start..end as u32
    }

    /// The blocks of a folio that are in a range of the file; empty if none.
    pub(crate) fn within(self, folio: &Folio, range: &Range<u64>) -> Range<u32> {
        let (start, end) = (range.start.max(folio.pos()), range.end.min(folio.end()));
        if start >= end {
            return 0..0;
        }
        self.around(&((start - folio.pos()) as usize..(end - folio.pos()) as usize))
    }
}
