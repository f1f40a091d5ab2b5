//! The bits of a group: 64-bit words in memory, bytes on disk. Bit 0 is the lowest bit of the first byte.
//!
//! Invariant: in words, bits past the end of the group are set, so that no search finds them.

use std::ops::Range;

/// The first `bits` bits of a block; the rest is set.
pub(crate) fn from_bytes(bytes: &[u8], bits: u32) -> Box<[u64]> {
    let mut words = vec![u64::MAX; (bits as usize).div_ceil(64)];
    for (word, eight) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut all = [0xFF; 8];
        all[..eight.len()].copy_from_slice(eight);
        *word = u64::from_le_bytes(all);
    }
    set_tail(&mut words, bits);
    words.into_boxed_slice()
}

/// Clear bits; those past the end are set.
pub(crate) fn clear_words(bits: u32) -> Box<[u64]> {
    let mut words = vec![0; (bits as usize).div_ceil(64)];
    set_tail(&mut words, bits);
    words.into_boxed_slice()
}

fn set_tail(words: &mut [u64], bits: u32) {
    if !bits.is_multiple_of(64)
        && let Some(last) = words.last_mut()
    {
        *last |= u64::MAX << (bits % 64);
    }
}

/// Writes these words into the whole block of a bitmap, with padding set.
pub(crate) fn to_bytes(words: &[u64], bytes: &mut [u8]) {
    bytes.fill(0xFF);
    for (eight, word) in bytes.chunks_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_le_bytes()[..eight.len()]);
    }
}

#[inline]
pub(crate) fn test(words: &[u64], bit: u32) -> bool {
    words.get(bit as usize / 64).is_none_or(|word| word >> (bit % 64) & 1 != 0)
}

/// The first clear bit in `from..end`.
#[inline]
pub(crate) fn next_clear(words: &[u64], from: u32, end: u32) -> Option<u32> {
    search(words, from, end, u64::MAX)
}

/// The first set bit in `from..end`, or `end`.
#[inline]
pub(crate) fn next_set(words: &[u64], from: u32, end: u32) -> u32 {
    search(words, from, end, 0).unwrap_or(end)
}

/// The first bit in `from..end` that is set after `^ flip` of its word.
#[inline]
fn search(words: &[u64], from: u32, end: u32, flip: u64) -> Option<u32> {
    if from >= end {
        return None;
    }
    let first = from as usize / 64;
    let mut wanted = (words.get(first)? ^ flip) & (u64::MAX << (from % 64));
    let mut at = first;
    while wanted == 0 {
        at += 1;
        if at as u64 * 64 >= u64::from(end) {
            return None;
        }
        wanted = words.get(at)? ^ flip;
    }
    let found = at as u32 * 64 + wanted.trailing_zeros();
    (found < end).then_some(found)
}

/// The start of the run of clear bits that ends before `bit`: `bit` itself when the one before is set.
pub(crate) fn run_start(words: &[u64], bit: u32) -> u32 {
    let mut at = bit;
    while at > 0 {
        let word = words[(at - 1) as usize / 64];
        // The bits of this word below `at`, shifted so that the highest one is the bit before `at`.
        let width = (at - 1) % 64 + 1;
        let below = word << (64 - width);
        let clear = below.leading_zeros().min(width);
        at -= clear;
        if clear < width {
            break;
        }
    }
    at
}

pub(crate) fn set(words: &mut [u64], range: Range<u32>) {
    each_word(range, |at, mask| words[at] |= mask);
}

pub(crate) fn clear(words: &mut [u64], range: Range<u32>) {
    each_word(range, |at, mask| words[at] &= !mask);
}

pub(crate) fn all_set(words: &[u64], range: Range<u32>) -> bool {
    range.is_empty() || next_clear(words, range.start, range.end).is_none()
}

pub(crate) fn all_clear(words: &[u64], range: Range<u32>) -> bool {
    next_set(words, range.start, range.end) == range.end
}

/// The number of clear bits; bits past the end are set.
pub(crate) fn count_clear(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_zeros()).sum()
}

#[inline]
fn each_word(range: Range<u32>, mut apply: impl FnMut(usize, u64)) {
    if range.is_empty() {
        return;
    }
    let (first, last) = (range.start as usize / 64, (range.end - 1) as usize / 64);
    let head = u64::MAX << (range.start % 64);
    let tail = u64::MAX >> (63 - (range.end - 1) % 64);
    if first == last {
        apply(first, head & tail);
        return;
    }
    apply(first, head);
    for at in first + 1..last {
        apply(at, u64::MAX);
    }
    apply(last, tail);
}

/// Sets or clears bits of a bitmap block.
#[inline]
pub(crate) fn fill_bytes(bytes: &mut [u8], range: Range<u32>, set: bool) {
    each_byte(range, |at, mask| {
        let byte = &mut bytes[at];
        *byte = if set { *byte | mask } else { *byte & !mask };
    });
}

/// Whether all these bits of a bitmap block are set.
#[inline]
pub(crate) fn bytes_all_set(bytes: &[u8], range: Range<u32>) -> bool {
    let mut all = true;
    each_byte(range, |at, mask| all &= bytes[at] & mask == mask);
    all
}

/// Whether all these bits of a bitmap block are clear.
#[inline]
pub(crate) fn bytes_all_clear(bytes: &[u8], range: Range<u32>) -> bool {
    let mut all = true;
    each_byte(range, |at, mask| all &= bytes[at] & mask == 0);
    all
}

#[inline]
fn each_byte(range: Range<u32>, mut apply: impl FnMut(usize, u8)) {
    if range.is_empty() {
        return;
    }
    let (first, last) = (range.start as usize / 8, (range.end - 1) as usize / 8);
    let head = 0xFFu8 << (range.start % 8);
    let tail = 0xFFu8 >> (7 - (range.end - 1) % 8);
    if first == last {
        apply(first, head & tail);
        return;
    }
    apply(first, head);
    for at in first + 1..last {
        apply(at, 0xFF);
    }
    apply(last, tail);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain vector of booleans.
        #[test]
        fn words_and_bytes_do_what_single_bits_would(
            bits in 1u32..2000,
            edits in prop::collection::vec((any::<u16>(), any::<u16>(), any::<bool>()), 0..30),
            from in 0u32..2000,
        ) {
            let mut words = clear_words(bits);
            let mut bytes = vec![0; 256];
            fill_bytes(&mut bytes, bits..2048, true);
            let mut model = vec![false; bits as usize];
            for (a, b, on) in edits {
                let (a, b) = (u32::from(a) % (bits + 1), u32::from(b) % (bits + 1));
                let range = a.min(b)..a.max(b);
                model[range.start as usize..range.end as usize].fill(on);
                if on { set(&mut words, range.clone()) } else { clear(&mut words, range.clone()) }
                fill_bytes(&mut bytes, range.clone(), on);
                let in_words = if on { all_set(&words, range.clone()) } else { all_clear(&words, range.clone()) };
                let in_bytes = if on { bytes_all_set(&bytes, range) } else { bytes_all_clear(&bytes, range) };
                prop_assert!(in_words && in_bytes);
            }
            prop_assert_eq!(&from_bytes(&bytes, bits), &words);
            let mut back = vec![0; 256];
            to_bytes(&words, &mut back);
            prop_assert_eq!(back, bytes);
            prop_assert_eq!(count_clear(&words) as usize, model.iter().filter(|on| !**on).count());
            let from = from % bits;
            let find = |on: bool| (from..bits).find(|bit| model[*bit as usize] == on);
            prop_assert_eq!(next_clear(&words, from, bits), find(false));
            prop_assert_eq!(next_set(&words, from, bits), find(true).unwrap_or(bits));
            let start = (0..from).rev().take_while(|bit| !model[*bit as usize]).last().unwrap_or(from);
            prop_assert_eq!(run_start(&words, from), start);
        }
    }
}
