//! One bit for each block of a folio, set and tested by ranges, 64 blocks at a time. If all blocks are alike,
//! no words are scanned.
//!
//! Invariant: `ones` is the number of set bits; bits from `len` on are clear.

use std::ops::Range;

/// Up to 2048 bits; up to 64 of them without an allocation.
#[derive(Debug, Clone)]
pub(crate) struct Bits {
    len: u32,
    ones: u32,
    words: Words,
}

#[derive(Debug, Clone)]
enum Words {
    One(u64),
    Many(Box<[u64]>),
}

impl Bits {
    /// Creates `len` clear bits.
    pub(crate) fn new(len: u32) -> Self {
        let words = match len.div_ceil(64) {
            0 | 1 => Words::One(0),
            many => Words::Many(vec![0; many as usize].into_boxed_slice()),
        };
        Self { len, ones: 0, words }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ones == 0
    }

    /// Number of set bits.
    #[cfg(test)]
    pub(crate) fn ones(&self) -> u32 {
        self.ones
    }

    /// Whether all bits of the range are set.
    pub(crate) fn all(&self, range: Range<u32>) -> bool {
        self.ones == self.len || self.next_clear(range.start, range.end) == range.end
    }

    /// Whether any bit of the range is set.
    pub(crate) fn any(&self, range: Range<u32>) -> bool {
        self.ones != 0 && self.next_set(range.start, range.end) != range.end
    }

    /// The first set bit from `from` on, else `end`.
    pub(crate) fn next_set(&self, from: u32, end: u32) -> u32 {
        if self.ones == 0 { end } else { self.find(from, end, 0) }
    }

    /// The first clear bit from `from` on, else `end`.
    pub(crate) fn next_clear(&self, from: u32, end: u32) -> u32 {
        if self.ones == self.len { end } else { self.find(from, end, u64::MAX) }
    }

    /// Sets the bits; returns how many were clear.
    pub(crate) fn set(&mut self, range: Range<u32>) -> u32 {
        let changed = self.change(range, |word, mask| {
            let new = mask & !*word;
            *word |= mask;
            new.count_ones()
        });
        self.ones += changed;
        changed
    }

    /// Clears the bits; returns how many were set.
    pub(crate) fn clear(&mut self, range: Range<u32>) -> u32 {
        if self.ones == 0 {
            return 0;
        }
        let changed = self.change(range, |word, mask| {
            let old = mask & *word;
            *word &= !mask;
            old.count_ones()
        });
        self.ones -= changed;
        changed
    }

    fn words(&self) -> &[u64] {
        match &self.words {
            Words::One(word) => std::slice::from_ref(word),
            Words::Many(words) => words,
        }
    }

    fn change(&mut self, range: Range<u32>, change: impl Fn(&mut u64, u64) -> u32) -> u32 {
        debug_assert!(range.end <= self.len, "{range:?} of {}", self.len);
        let words = match &mut self.words {
            Words::One(word) => std::slice::from_mut(word),
            Words::Many(words) => words,
        };
        let (mut at, mut changed) = (range.start, 0);
        while at < range.end {
            let (low, count) = (at % 64, (64 - at % 64).min(range.end - at));
            changed += change(&mut words[(at / 64) as usize], (u64::MAX >> (64 - count)) << low);
            at += count;
        }
        changed
    }

    /// The first bit that is set after flipping with `flip`.
    fn find(&self, mut from: u32, end: u32, flip: u64) -> u32 {
        let words = self.words();
        while from < end {
            let rest = (words[(from / 64) as usize] ^ flip) >> (from % 64);
            if rest != 0 {
                return (from + rest.trailing_zeros()).min(end);
            }
            from = (from / 64 + 1) * 64;
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_of_bits_are_those_of_a_list_of_bools(
            len in 1u32..=2048,
            ops in prop::collection::vec((any::<bool>(), 0u32..2048, 0u32..2048), 1..40),
        ) {
            let mut bits = Bits::new(len);
            let mut model = vec![false; len as usize];
            for (set, a, b) in ops {
                let (a, b) = (a % (len + 1), b % (len + 1));
                let range = a.min(b)..a.max(b);
                let part = &mut model[range.start as usize..range.end as usize];
                let expected = part.iter().filter(|bit| **bit != set).count() as u32;
                part.fill(set);
                let changed = if set { bits.set(range.clone()) } else { bits.clear(range.clone()) };
                prop_assert_eq!(changed, expected);
                prop_assert_eq!(bits.ones(), model.iter().filter(|bit| **bit).count() as u32);
                for from in [0, a.min(len), b.min(len)] {
                    let tail = &model[from as usize..];
                    let find = |what| tail.iter().position(|bit| *bit == what).map_or(len, |at| from + at as u32);
                    prop_assert_eq!(bits.next_set(from, len), find(true));
                    prop_assert_eq!(bits.next_clear(from, len), find(false));
                    prop_assert_eq!(bits.all(from..len), !tail.contains(&false));
                    prop_assert_eq!(bits.any(from..len), tail.contains(&true));
                }
            }
        }
    }
}
