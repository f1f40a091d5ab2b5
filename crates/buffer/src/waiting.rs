//! Changes that stay pending beside their block until it is read, or leaves for the device.
//!
//! ```text
//! slot:     | block | bytes, older | first, last |
//!                                      |      '-----------------.
//! changes:                 | next, seed, bytes |  ...  | none, seed, bytes |
//! bytes:                    at, len, bytes | at, len, bytes | ...
//! ```
//!
//! An insertion into a leaf whose layout is known changes about 30 bytes of a block that is in no CPU cache
//! and that the commit copies soon. So these bytes are left here, and the commit puts them into its copy,
//! which replaces the block: each block is fetched once, with many others, and memory has it once.
//!
//! A commit takes sixteen blocks, releases the shard's lock, makes their copies, and replaces each block by
//! its copy, unless the block was read or changed meanwhile: the changes were applied then.
//!
//! Invariants
//! 1. A slot that has changes waiting was changed last by the transaction that they belong to.
//! 2. Changes of a transaction and of the next one are kept separately. When the transaction after these has
//!    its first, all older ones have been applied or never will be: their block was freed in the same
//!    transaction, and is still in use by another owner only on a damaged file system.
//! 3. A pending change notes the bytes in its place, which are compared when it is applied: if a damaged map
//!    leads to one block as two leaves of a directory, a change could overwrite the other leaf's names. Its
//!    transaction is not committed then.

use std::ops::Range;
use std::sync::OnceLock;

use extant_base::checksum::{Difference, crc32c};
use extant_base::{Pblk, Tid};
use extant_device::Copies;

use crate::{Bytes, PendingChange};

/// No change.
const NONE: u32 = u32::MAX;

/// The most pending bytes of one shard and transaction, in a cache of this size: further changes are made at
/// once.
pub(crate) fn bytes_max(cache: usize) -> usize {
    (cache / (16 * crate::SHARDS)).clamp(1 << 10, 32 << 10)
}

/// Bytes that are moved at a time.
const LINE: usize = 64;
/// Bytes of the checksum that a block ends in.
const SUM: usize = size_of::<u32>();

/// Where a block's changes are, the first and the last one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    first: u32,
    last: u32,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE };

    pub(crate) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// The changes of one transaction that wait in one shard.
#[derive(Default)]
pub(crate) struct Waiting {
    transaction: Tid,
    changes: Vec<Change>,
    bytes: Vec<u8>,
}

/// One of them.
struct Change {
    /// The next one of the same block.
    next: u32,
    /// Its pieces: of each the offset and the length, 16 bits each ([`THERE`] is one of the length's), and
    /// the bytes.
    start: u32,
    end: u32,
    /// See [`Summed`].
    seed: u32,
    summed_len: u32,
}

impl Change {
    fn summed(&self) -> Summed {
        Summed { seed: self.seed, len: self.summed_len as usize }
    }
}

/// What the checksum is of that a block ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summed {
    /// What it begins with.
    pub seed: u32,
    /// Bytes that it is of.
    pub len: usize,
}

impl Waiting {
    /// Adds a change of a block of so many bytes, of so many that may wait. `false`: there is no room, or it
    /// is none of what its checksum is of.
    pub(crate) fn push(
        &mut self,
        chain: &mut Chain,
        transaction: Tid,
        patch: &PendingChange<'_>,
        (block_len, bytes_max): (usize, usize),
    ) -> bool {
        let PendingChange { summed: Summed { seed, len }, there, pieces } = patch;
        let is_within = |(at, bytes): &(usize, &[u8])| {
            bytes.len() < THERE.into() && at.checked_add(bytes.len()).is_some_and(|end| end <= *len)
        };
        let are_within =
            pieces.iter().chain([there]).all(is_within) && pieces.iter().any(|(_, bytes)| !bytes.is_empty());
        if !are_within || !len.is_multiple_of(4) || !(block_len.saturating_sub(LINE)..block_len).contains(len)
        {
            return false;
        }
        if self.transaction != transaction {
            debug_assert!(chain.is_empty(), "changes that wait are the last transaction's");
            self.transaction = transaction;
            self.changes.clear();
            self.bytes.clear();
        }
        let told = || [(there, THERE)].into_iter().chain(pieces.iter().map(|piece| (piece, 0)));
        let more: usize = told().map(|((_, bytes), _)| 4 + bytes.len()).sum();
        let held = self.bytes.len() + size_of_val(&self.changes[..]);
        if held + more > bytes_max {
            return false;
        }
        let start = self.bytes.len() as u32;
        for ((at, bytes), flag) in told().filter(|((_, bytes), _)| !bytes.is_empty()) {
            self.bytes.extend_from_slice(&(*at as u16).to_le_bytes());
            self.bytes.extend_from_slice(&(bytes.len() as u16 | flag).to_le_bytes());
            self.bytes.extend_from_slice(bytes);
        }
        let number = self.changes.len() as u32;
        let end = self.bytes.len() as u32;
        self.changes.push(Change { next: NONE, start, end, seed: *seed, summed_len: *len as u32 });
        match self.changes.get_mut(chain.last as usize) {
            Some(last) => last.next = number,
            None => chain.first = number,
        }
        chain.last = number;
        self.prefetch_next();
        true
    }

    /// Prefetches the slot of the next change: the committing thread used it last, and many other shards get
    /// changes before this one does.
    fn prefetch_next(&self) {
        extant_device::prefetch_for_push(&self.bytes, 2 * LINE);
        extant_device::prefetch_for_push(&self.changes, size_of::<Change>());
    }

    /// Prefetches all of them, if they are this transaction's.
    pub(crate) fn prefetch(&self, transaction: Tid) {
        if self.is_of(transaction) {
            self.changes.chunks(2).for_each(|changes| extant_device::prefetch_start(&changes[0]));
            extant_device::prefetch(&self.bytes);
        }
    }

    /// Are these this transaction's?
    pub(crate) fn is_of(&self, transaction: Tid) -> bool {
        self.transaction == transaction
    }

    /// Makes the changes of a block, in their order. Its checksum is not right then. `false`: it was not as
    /// it was said to be.
    pub(crate) fn make(&self, chain: Chain, block: &mut [u8]) -> bool {
        let mut pieces = self.of(chain).flat_map(|change| pieces(self.bytes_of(change)));
        pieces.all(|piece| block.get_mut(piece.range()).is_some_and(|place| piece.put(place)))
    }

    fn of(&self, chain: Chain) -> impl Iterator<Item = &Change> {
        let mut next = chain.first;
        std::iter::from_fn(move || {
            let change = self.changes.get(next as usize)?;
            next = change.next;
            Some(change)
        })
    }

    fn bytes_of(&self, change: &Change) -> &[u8] {
        &self.bytes[change.start as usize..change.end as usize]
    }
}

/// In the length of a piece: these bytes are there before.
const THERE: u16 = 1 << 15;

/// Bytes that belong at an offset, or that are there before.
#[derive(Clone, Copy)]
struct Piece<'a> {
    at: usize,
    bytes: &'a [u8],
    are_there: bool,
}

impl Piece<'_> {
    fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }

    /// Puts the bytes into their place, or compares: `false`, if others are there.
    fn put(&self, place: &mut [u8]) -> bool {
        if self.are_there {
            return place == self.bytes;
        }
        place.copy_from_slice(self.bytes);
        true
    }
}

fn pieces(mut rest: &[u8]) -> impl Iterator<Item = Piece<'_>> + Clone {
    std::iter::from_fn(move || {
        let (head, behind) = rest.split_first_chunk::<4>()?;
        let [at, len] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
        let (bytes, left) = behind.split_at((len & !THERE).into());
        rest = left;
        Some(Piece { at: at.into(), bytes, are_there: len & THERE != 0 })
    })
}

/// A block as it leaves, with the changes that waited and the right checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// How many bytes it has.
    pub block_len: usize,
    /// Its first bytes.
    pub start: [u8; 4],
    /// Its last ones.
    pub end: [u8; LINE],
    /// What the checksum is of that these end in.
    pub summed: Summed,
}

/// Blocks that get their changes together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) blocks: Vec<Making>,
    changes: Vec<u8>,
    /// Lines that the changes lie in, as they become.
    windows: Vec<u8>,
    /// For one at a time.
    differ: Vec<u8>,
    copies: Copies,
}

/// One of them, in three steps: taken, made, and put back.
pub(crate) struct Making {
    /// Its index among the requested blocks.
    pub(crate) number: usize,
    pub(crate) block: Pblk,
    /// The changes that it gets.
    pub(crate) chain: Chain,
    changes: Range<usize>,
    summed: Summed,
    /// It ends in the right checksum.
    has_sum: bool,
    /// When it is patched: it was not as it was said to be.
    pub(crate) is_damaged: bool,
    /// As it was.
    pub(crate) older: Bytes,
    /// Where that has nothing but zeros, as far as is known; then where the copy has.
    pub(crate) zeros: Zeros,
    /// When it is patched: the lines that are others, where they are among all windows, and the last one.
    window: Range<usize>,
    window_at: usize,
    end: [u8; LINE],
    pub(crate) told: Option<u32>,
    /// When it is made.
    pub(crate) copy: Bytes,
}

/// Bytes of a block that are known to be zeros and are copied without reading them. As word numbers, from the
/// first to one past the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Zeros(u16, u16);

impl Zeros {
    fn new(bytes: Range<usize>) -> Self {
        // Of a block of 64 KiB the last word is left out.
        let word = |at: usize| (at / 4).min(usize::from(u16::MAX)) as u16;
        let first = word(bytes.start.next_multiple_of(4));
        Self(first, word(bytes.end).max(first))
    }

    fn bytes(self) -> Range<usize> {
        usize::from(self.0) * 4..usize::from(self.1) * 4
    }

    /// What is left of them when these bytes are changed: those behind, or before if there are none.
    fn without(self, changed: Range<usize>) -> Self {
        let Range { start, end } = self.bytes();
        if changed.end < end {
            Self::new(start.max(changed.end)..end)
        } else {
            Self::new(start..end.min(changed.start))
        }
    }
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Takes a block whose bytes are these, with the changes of this chain.
    pub(crate) fn take(
        &mut self,
        (number, block): (usize, Pblk),
        older: &Bytes,
        (has_sum, zeros): (bool, Zeros),
        (waiting, chain): (&Waiting, Chain),
    ) {
        let from = self.changes.len();
        let mut summed = Summed::default();
        for change in waiting.of(chain) {
            self.changes.extend_from_slice(waiting.bytes_of(change));
            summed = change.summed();
        }
        let changes = from..self.changes.len();
        // Looked at first, and all at the same time.
        if let Some(Piece { at, .. }) = pieces(&self.changes[changes.clone()]).next() {
            let line = older.get(at / LINE * LINE..).unwrap_or_default();
            extant_device::prefetch(&line[..line.len().min(2 * LINE)]);
        }
        self.blocks.push(Making {
            number,
            block,
            chain,
            changes,
            summed,
            has_sum,
            is_damaged: false,
            older: older.clone(),
            zeros,
            window: 0..0,
            window_at: 0,
            end: [0; LINE],
            told: None,
            copy: Bytes::default(),
        });
    }

    /// Makes all that were taken. Then they are put back, and [cleared](Self::clear).
    pub(crate) fn make(&mut self, difference: &OnceLock<Difference>, tell: &dyn Fn(&Made) -> Option<u32>) {
        let Self { blocks, changes, windows, differ, copies } = self;
        for making in &mut blocks[..] {
            let difference = difference.get_or_init(|| Difference::new(making.summed.len));
            let made = making.patch(pieces(&changes[making.changes.clone()]), windows, differ, difference);
            making.told = tell(&made);
        }
        let mut rest = &mut blocks[..];
        while let [making, behind @ ..] = rest {
            // Where the hardware prefetcher does not see the next address.
            if let Some(next) = behind.first() {
                extant_device::prefetch(&next.older[..next.older.len().min(NEXT)]);
            }
            making.copy(windows, copies);
            rest = behind;
        }
        blocks.iter_mut().zip(copies.finish()).for_each(|(making, copy)| making.copy = copy);
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.changes.clear();
        self.windows.clear();
    }
}

/// Bytes of the next block that are asked for while one is copied.
const NEXT: usize = 8 * LINE;

impl Making {
    /// Puts the pieces into the lines that they lie in, which is all that is looked at, and finds the
    /// checksum.
    fn patch<'p>(
        &mut self,
        mut pieces: impl Iterator<Item = Piece<'p>> + Clone,
        windows: &mut Vec<u8>,
        differ: &mut Vec<u8>,
        difference: &Difference,
    ) -> Made {
        let Self { older, summed, .. } = self;
        let (first, last) = pieces.clone().fold((older.len(), 0), |(first, last), piece| {
            (first.min(piece.at), last.max(piece.range().end))
        });
        let (from, to) = (first / LINE * LINE, last.next_multiple_of(LINE));
        self.window_at = windows.len();
        windows.extend_from_slice(&older[from..to]);
        let window = &mut windows[self.window_at..];
        let words = first / 4 * 4..last.next_multiple_of(4);
        differ.clear();
        differ.extend_from_slice(&window[words.start - from..words.end - from]);
        self.is_damaged = !pieces.all(|piece| piece.put(&mut window[piece.at - from..][..piece.bytes.len()]));
        self.has_sum &= difference.len() == summed.len;
        let before = older.last_chunk().filter(|_| self.has_sum);
        let anew = |window: &[u8]| {
            let mut left = summed.len;
            [&older[..from], window, &older[to..]].into_iter().fold(summed.seed, |sum, part| {
                let part = &part[..part.len().min(left)];
                left -= part.len();
                crc32c(sum, part)
            })
        };
        let sum = match before {
            Some(before) => {
                differ
                    .iter_mut()
                    .zip(&window[words.start - from..])
                    .for_each(|(differs, byte)| *differs ^= byte);
                let sum = u32::from_le_bytes(*before) ^ difference.of(words.start, differ);
                debug_assert_eq!(sum, anew(window), "the block ended in the right checksum");
                sum
            }
            // All of it is looked at, so it is asked what else it has.
            None => {
                let sum = anew(window);
                let within = run_of_zeros(&window[last - from..]);
                let all_are = last + within == to && to < summed.len;
                let behind = if all_are { run_of_zeros(&older[to..summed.len]) } else { 0 };
                self.zeros = Zeros::new(last..last + within + behind);
                sum
            }
        };
        self.zeros = self.zeros.without(first..last);
        let end_at = older.len() - LINE;
        self.end.copy_from_slice(if to > end_at { &window[end_at - from..] } else { &older[end_at..] });
        self.end[LINE - SUM..].copy_from_slice(&sum.to_le_bytes());
        self.window = from..to.min(end_at);
        let start = if from > 0 { &older[..] } else { window };
        let start = start.first_chunk().copied().unwrap_or_default();
        Made { block_len: older.len(), start, end: self.end, summed: *summed }
    }

    /// Copies the block, with these lines. It reads from the beginning to the end, so that the hardware
    /// prefetcher works. Known zeros are not read.
    fn copy(&self, windows: &[u8], copies: &mut Copies) {
        let Self { older, window, zeros, .. } = self;
        let end_at = older.len() - LINE;
        let Range { start, end } = zeros.bytes();
        let zeros = start.max(window.end).next_multiple_of(LINE)..(end / LINE * LINE).min(end_at);
        let zeros = if zeros.is_empty() { end_at..end_at } else { zeros };
        copies.push(older.len(), |copy| {
            copy.put(&older[..window.start]);
            copy.put(&windows[self.window_at..][..window.len()]);
            copy.put(&older[window.end..zeros.start]);
            copy.put_zeros(zeros.len());
            copy.put(&older[zeros.end..end_at]);
            copy.put(&self.end);
        });
    }
}

/// How many bytes are zeros before one that is not, or a few less.
fn run_of_zeros(bytes: &[u8]) -> usize {
    let (bytes_before, words) = bytes.split_at(bytes.len() % 8);
    let is_zero = |byte: &u8| *byte == 0;
    if !bytes_before.iter().all(is_zero) {
        return bytes_before.iter().take_while(|byte| is_zero(byte)).count();
    }
    let n = words.as_chunks::<8>().0.iter().take_while(|word| **word == [0; 8]).count();
    bytes_before.len() + n * 8
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Changes of several blocks that lie one over the other and everywhere; with a sum that is known and one
    /// that is not.
    #[test]
    fn what_waits_is_made_in_its_order_and_the_checksum_is_right() {
        let (difference, summed) = (OnceLock::new(), Summed { seed: 77, len: 1012 });
        let mut waiting = Waiting::default();
        let mut batch = Batch::default();
        let mut blocks: [Bytes; 3] = std::array::from_fn(|_| Bytes::zeroed(1024));
        let mut zeros = [Zeros::default(); 3];
        let mut n_zeros = 0;
        for transaction in 1..=8u64 {
            let mut chains = [Chain::EMPTY; 3];
            for step in 0..transaction as usize * 5 {
                let data: Vec<u8> = (0..step * 7 % 400).map(|i| (i * 5 + step) as u8).collect();
                let far = (step * 11 * transaction as usize) % (1013 - data.len()) / 2;
                let pieces = [(far, &data[..]), (step * 4, &data[..data.len().min(2)])];
                let patch = PendingChange { summed, there: (0, &[]), pieces: &pieces[..1 + step % 2] };
                assert!(
                    waiting.push(
                        &mut chains[step % 3],
                        extant_base::Tid(transaction),
                        &patch,
                        (1024, 128 << 10)
                    ) || pieces[0].1.is_empty()
                );
            }
            let mut plain = blocks.clone();
            for (number, (chain, plain)) in chains.into_iter().zip(&mut plain).enumerate() {
                let has_sum = transaction > 1 && number > 0;
                batch.take((number, Pblk(9)), &blocks[number], (has_sum, zeros[number]), (&waiting, chain));
                assert!(waiting.make(chain, plain.make_mut()));
            }
            let made = RefCell::new(Vec::new());
            let tell = |it: &Made| {
                made.borrow_mut().push(*it);
                Some(7)
            };
            batch.make(&difference, &tell);
            for (making, made) in batch.blocks.iter().zip(made.take()) {
                let Made { block_len, start, end, summed: of } = made;
                let copy = making.copy.clone();
                assert_eq!(copy[..1020], plain[making.number][..1020], "{transaction}");
                assert_eq!(copy[1020..], crc32c(77, &copy[..1012]).to_le_bytes());
                assert_eq!((block_len, &start[..], &end[..], of), (1024, &copy[..4], &copy[960..], summed));
                assert_eq!(making.told, Some(7));
                let known = making.zeros.bytes();
                assert!(copy[known.clone()].iter().all(|byte| *byte == 0) && known.end <= 1020);
                n_zeros += known.len();
                zeros[making.number] = making.zeros;
                blocks[making.number] = copy;
            }
            batch.clear();
            assert!(batch.is_empty());
        }
        assert!(n_zeros > 1000, "most of the blocks' second half, most of the time");
        for (at, len) in [(1012, 1), (1010, 3), (usize::MAX, 1), (0, 0)] {
            let patch = PendingChange { summed, there: (0, &[]), pieces: &[(at, &[1; 3][..len])] };
            let mut chain = Chain::EMPTY;
            assert!(
                !waiting.push(&mut chain, extant_base::Tid(9), &patch, (1024, 128 << 10)) && chain.is_empty()
            );
        }
        let many = [0; 14_000];
        let patch = PendingChange {
            summed: Summed { seed: 77, len: 65524 },
            there: (0, &[]),
            pieces: &[(0, &many[..7000]), (7000, &many[..7000])],
        };
        let mut chain = Chain::EMPTY;
        let added = (0..10)
            .filter(|_| waiting.push(&mut chain, extant_base::Tid(9), &patch, (65536, bytes_max(1 << 30))))
            .count();
        assert_eq!(added, 2, "there is an end to what waits");
    }
}
