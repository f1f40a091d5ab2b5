//! Folio sizes, and how a size is chosen.
//!
//! A folio of order k has 2^k pages of 4 KiB and begins at a multiple of its size. A *chunk* is 2 MiB of a
//! file, the size of the largest folio; no folio crosses a chunk boundary.
//!
//! ```text
//! write of 64 KiB at page 4:   4..8   8..16   16..20      orders 2 3 2: alignment first, then what is left
//! write of 64 KiB at page 16:  16..32                     order 4
//! ```

/// Bytes of a page, the smallest folio.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
pub(crate) const PAGE_SHIFT: u32 = 12;
pub(crate) const CHUNK_SHIFT: u32 = PAGE_SHIFT + Order::MAX.0 as u32;
pub(crate) const CHUNK_BYTES: u64 = 1 << CHUNK_SHIFT;
pub(crate) const CHUNK_PAGES: u64 = 1 << Order::MAX.0;

/// The size of a folio: 4 KiB times 2 to the power of 0..=9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// 4 KiB: one page at a time.
    pub const MIN: Self = Self(0);
    /// 2 MiB.
    pub const MAX: Self = Self(9);
    /// Number of orders.
    pub const COUNT: usize = Self::MAX.0 as usize + 1;

    /// `exponent`, or [`MAX`](Self::MAX) if that is less.
    #[must_use]
    pub const fn new(exponent: u8) -> Self {
        if exponent > Self::MAX.0 { Self::MAX } else { Self(exponent) }
    }

    /// The largest order whose folios are at most `bytes` long, but at least one page.
    #[must_use]
    pub const fn within(bytes: u64) -> Self {
        let pages = bytes >> PAGE_SHIFT;
        if pages == 0 { Self::MIN } else { Self::new(pages.ilog2() as u8) }
    }

    /// The smallest order whose folios hold `bytes` bytes, at most 2 MiB.
    #[must_use]
    pub const fn holding(bytes: u64) -> Self {
        Self::within(bytes.next_power_of_two())
    }

    /// The exponent, 0..=9.
    #[must_use]
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Bytes of a folio of this order.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        PAGE_BYTES << self.0
    }

    /// Pages of a folio of this order.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << self.0
    }

    /// The order increased by `by`, up to [`MAX`](Self::MAX).
    #[must_use]
    pub const fn grown(self, by: u8) -> Self {
        Self::new(self.0.saturating_add(by))
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the first page and the order of the folio for `page`, when `wanted_bytes` are used from there
    /// on. It is as large as the use, the alignment and `max` allow, and at least `min`, which a block needs.
    pub(crate) fn choose(page: u64, wanted_bytes: u64, min: Self, max: Self) -> (u64, Self) {
        let start = page & !(min.pages() - 1);
        let wanted = wanted_bytes.saturating_add((page - start) << PAGE_SHIFT);
        let aligned = Self::new(start.trailing_zeros().min(u32::from(Self::MAX.0)) as u8);
        (start, Self::within(wanted).min(aligned).min(max).max(min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_length_and_alignment() {
        let chosen = |page, bytes| Order::choose(page, bytes, Order::MIN, Order::MAX).1.exponent();
        assert_eq!(chosen(16, 64 << 10), 4);
        assert_eq!(chosen(4, 64 << 10), 2, "aligned to four pages only");
        assert_eq!(chosen(0, 1 << 20), 8);
        assert_eq!(chosen(512, 64 << 20), 9);
        assert_eq!(chosen(0, 1), 0);
        assert_eq!(chosen(0, 12 << 10), 1, "never more than is used");
        assert_eq!(Order::choose(0, 1 << 20, Order::MIN, Order::MIN).1, Order::MIN);
    }

    #[test]
    fn a_block_larger_than_a_page_is_in_one_folio() {
        let block = Order::holding(64 << 10);
        assert_eq!(block.exponent(), 4);
        assert_eq!(Order::choose(17, 4096, block, Order::MIN), (16, block));
        assert_eq!(Order::choose(35, 4096, block, Order::MAX), (32, block));
        assert_eq!(Order::choose(0, 1 << 20, block, Order::MAX), (0, Order::new(8)));
    }

    #[test]
    fn the_smallest_that_holds() {
        for (bytes, order) in
            [(0, 0), (1, 0), (4096, 0), (4097, 1), (8192, 1), (8193, 2), (2 << 20, 9), (9 << 20, 9)]
        {
            assert_eq!(Order::holding(bytes).exponent(), order, "{bytes}");
        }
    }
}
