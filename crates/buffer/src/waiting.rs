//! Changes that wait beside their block until somebody looks at it, or it leaves for the device.
//!
//! ```text
//! slot:     | block | bytes, older | first, last |
//!                                      |      '-----------------.
//! changes:                 | next, seed, bytes |  ...  | none, seed, bytes |
//! bytes:                    at, len, bytes | at, len, bytes | ...
//! ```
//!
//! Whoever puts a name into a leaf that he knows without a look at it changes some 30 bytes of a block that is in no cache of the
//! processor, and that the commit copies soon after. So he leaves these bytes here, and the commit puts them into its copy, which
//! takes the place of the block: each block is fetched once, with many others, and memory has it once.
//!
//! A commit takes sixteen blocks, gives back the shard's lock, makes their copies, and puts each where its block was, unless somebody
//! looked at that or changed it meanwhile: he made the changes then.
//!
//! Invariants
//! 1. A slot that has changes waiting was changed last by the transaction that they belong to.
//! 2. Those of a transaction and of the next one are apart. When that one's successor has its first, the older ones were all made.

use std::ops::Range;
use std::sync::OnceLock;

use base::Pblk;
use base::checksum::{Difference, crc32c};
use device::Copies;

use crate::{Bytes, Patch};

/// No change.
const NONE: u32 = u32::MAX;

/// Bytes that wait in one shard at most, for one transaction: who has more makes his changes at once.
const BYTES_MAX: usize = 128 << 10;

/// Bytes that are moved at a time.
const LINE: usize = 64;

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
    transaction: u64,
    changes: Vec<Change>,
    bytes: Vec<u8>,
}

/// One of them.
struct Change {
    /// The next one of the same block.
    next: u32,
    /// Its pieces: of each the offset and the length, 16 bits each, and the bytes.
    start: u32,
    end: u32,
    summed: Summed,
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
    /// Adds a change of a block. `false`: there is no room.
    pub(crate) fn push(&mut self, chain: &mut Chain, transaction: u64, patch: &Patch<'_>) -> bool {
        if self.transaction != transaction {
            debug_assert!(chain.is_empty(), "changes that wait are the last transaction's");
            self.transaction = transaction;
            self.changes.clear();
            self.bytes.clear();
        }
        let more: usize = patch.pieces.iter().map(|(_, bytes)| 4 + bytes.len()).sum();
        if self.bytes.len() + more > BYTES_MAX {
            return false;
        }
        let start = self.bytes.len() as u32;
        for (at, bytes) in patch.pieces.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            self.bytes.extend_from_slice(&(*at as u16).to_le_bytes());
            self.bytes.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(bytes);
        }
        let number = self.changes.len() as u32;
        self.changes.push(Change { next: NONE, start, end: self.bytes.len() as u32, summed: patch.summed });
        match self.changes.get_mut(chain.last as usize) {
            Some(last) => last.next = number,
            None => chain.first = number,
        }
        chain.last = number;
        true
    }

    /// Makes the changes of a block of this transaction, in their order. Its checksum is not right then.
    pub(crate) fn make(&self, chain: Chain, transaction: u64, block: &mut [u8]) {
        debug_assert_eq!(self.transaction, transaction, "changes are their transaction's");
        for change in self.of(chain) {
            for (at, bytes) in pieces(self.bytes_of(change)) {
                // What lies outside is left out: who told it had another block in mind.
                block
                    .get_mut(at..at + bytes.len())
                    .into_iter()
                    .for_each(|place| place.copy_from_slice(bytes));
            }
        }
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

/// Offsets, and the bytes that belong there.
fn pieces(mut rest: &[u8]) -> impl Iterator<Item = (usize, &[u8])> + Clone {
    std::iter::from_fn(move || {
        let (head, behind) = rest.split_first_chunk::<4>()?;
        let [at, len] =
            [[head[0], head[1]], [head[2], head[3]]].map(|word| usize::from(u16::from_le_bytes(word)));
        let (bytes, left) = behind.split_at(len);
        rest = left;
        Some((at, bytes))
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
    blocks: Vec<Making>,
    changes: Vec<u8>,
    window: Vec<u8>,
    copies: Copies,
}

/// One of them, in three steps: taken, made, and put back.
pub(crate) struct Making {
    /// Its place among those who are wanted.
    pub(crate) number: usize,
    pub(crate) block: Pblk,
    /// The changes that it gets.
    pub(crate) chain: Chain,
    changes: Range<usize>,
    summed: Summed,
    /// It ends in the right checksum.
    has_sum: bool,
    /// As it was.
    pub(crate) older: Bytes,
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
        has_sum: bool,
        (waiting, chain): (&Waiting, Chain),
    ) {
        let from = self.changes.len();
        let mut summed = Summed::default();
        for change in waiting.of(chain) {
            self.changes.extend_from_slice(waiting.bytes_of(change));
            summed = change.summed;
        }
        let changes = from..self.changes.len();
        self.blocks.push(Making { number, block, chain, changes, summed, has_sum, older: older.clone() });
    }

    /// Makes all that were taken, and gives them out with their copies.
    pub(crate) fn make(
        &mut self,
        difference: &OnceLock<Difference>,
    ) -> impl Iterator<Item = (Making, Made, Bytes)> {
        let Self { blocks, changes, window, copies } = self;
        let made = blocks.iter().map(|making| {
            let difference = difference.get_or_init(|| Difference::new(making.summed.len));
            making.copy(pieces(&changes[making.changes.clone()]), window, copies, difference)
        });
        let made: Vec<Made> = made.collect();
        changes.clear();
        blocks.drain(..).zip(made).zip(copies.finish()).map(|((making, made), copy)| (making, made, copy))
    }
}

impl Making {
    /// Copies the block, with these pieces. It is gone over once, from its beginning to its end: the processor sees that, and asks for what
    /// comes. Besides, only the part that they lie in is looked at, which is small as a rule.
    fn copy<'p>(
        &self,
        pieces: impl Iterator<Item = (usize, &'p [u8])> + Clone,
        window: &mut Vec<u8>,
        copies: &mut Copies,
        difference: &Difference,
    ) -> Made {
        let Self { older, summed, has_sum, .. } = self;
        let Summed { seed, len } = *summed;
        let pieces = pieces.filter(|(at, bytes)| at + bytes.len() <= older.len());
        let bounds = pieces
            .clone()
            .fold((older.len(), 0), |(from, to), (at, bytes)| (from.min(at), to.max(at + bytes.len())));
        let from = bounds.0 / LINE * LINE;
        let to = bounds.1.max(from).next_multiple_of(LINE).min(older.len());
        let end_at = older.len() - size_of::<u32>();
        copies.push(older.len(), |copy| {
            copy.put(&older[..from]);
            window.clear();
            window.extend_from_slice(&older[from..to]);
            let before = older.last_chunk().map(|sum| u32::from_le_bytes(*sum));
            let mut sum = before.filter(|_| *has_sum);
            for (at, bytes) in pieces {
                let place = &mut window[at - from..][..bytes.len()];
                sum = sum.and_then(|sum| Some(sum ^ differs(place, at, bytes, difference, len)?));
                place.copy_from_slice(bytes);
            }
            let behind = older.get(to..end_at).unwrap_or_default();
            window.truncate(end_at.saturating_sub(from));
            let sum = sum.unwrap_or_else(|| {
                let mut left = len;
                [&older[..from], window, behind].into_iter().fold(seed, |sum, part| {
                    let part = &part[..part.len().min(left)];
                    left -= part.len();
                    crc32c(sum, part)
                })
            });
            let sum = sum.to_le_bytes();
            [&window[..], behind, &sum].into_iter().for_each(|part| copy.put(part));
            Made::of([&older[..from], window, behind, &sum], *summed)
        })
    }
}

impl Made {
    /// A block that consists of these.
    fn of(parts: [&[u8]; 4], summed: Summed) -> Self {
        let (mut start, mut end) = ([0; 4], [0; LINE]);
        let first = parts.iter().copied().flatten();
        start.iter_mut().zip(first).for_each(|(to, byte)| *to = *byte);
        let mut left = LINE;
        for part in parts.into_iter().rev() {
            let part = &part[part.len() - part.len().min(left)..];
            end[left - part.len()..left].copy_from_slice(part);
            left -= part.len();
        }
        Self { block_len: parts.iter().map(|part| part.len()).sum(), start, end, summed }
    }
}

/// Bytes of a piece beyond which a checksum is computed anew.
const PIECE_MAX: usize = 512;

/// What it does to the checksum of the first `len` bytes that these at `at` take the place of `before`. `None`: to be computed anew.
fn differs(before: &[u8], at: usize, bytes: &[u8], difference: &Difference, len: usize) -> Option<u32> {
    let (start, end) = (at / 4 * 4, (at + bytes.len()).next_multiple_of(4));
    if end > len || difference.len() != len || end - start > PIECE_MAX {
        return None;
    }
    let mut differ = [0; PIECE_MAX];
    let changed = differ[at - start..].iter_mut().zip(before.iter().zip(bytes));
    changed.for_each(|(differ, (before, byte))| *differ = before ^ byte);
    Some(difference.of(start, &differ[..end - start]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes of several blocks that lie one over the other and everywhere; with a sum that is known and one that is not.
    #[test]
    fn what_waits_is_made_in_its_order_and_the_checksum_is_right() {
        let (difference, summed) = (OnceLock::new(), Summed { seed: 77, len: 1012 });
        let mut waiting = Waiting::default();
        let mut batch = Batch::default();
        let mut blocks: [Bytes; 3] = std::array::from_fn(|_| Bytes::zeroed(1024));
        for transaction in 1..=8u64 {
            let mut chains = [Chain::EMPTY; 3];
            for step in 0..transaction as usize * 5 {
                let data: Vec<u8> = (0..step * 7 % 400).map(|i| (i * 5 + step) as u8).collect();
                let far = (step * 11 * transaction as usize) % (1013 - data.len());
                let pieces = [(far, &data[..]), (step * 4, &data[..data.len().min(2)])];
                let patch = Patch { summed, pieces: &pieces[..1 + step % 2] };
                assert!(waiting.push(&mut chains[step % 3], transaction, &patch));
            }
            let mut plain = blocks.clone();
            for (number, (chain, plain)) in chains.into_iter().zip(&mut plain).enumerate() {
                let has_sum = transaction > 1 && number > 0;
                batch.take((number, Pblk(9)), &blocks[number], has_sum, (&waiting, chain));
                waiting.make(chain, transaction, plain.make_mut());
            }
            let made: Vec<_> = batch.make(&difference).collect();
            for (making, Made { block_len, start, end, summed: of }, copy) in made {
                assert_eq!(copy[..1020], plain[making.number][..1020], "{transaction}");
                assert_eq!(copy[1020..], crc32c(77, &copy[..1012]).to_le_bytes());
                assert_eq!((block_len, &start[..], &end[..], of), (1024, &copy[..4], &copy[960..], summed));
                blocks[making.number] = copy;
            }
            assert!(batch.is_empty());
        }
        let many = [0; 60_000];
        let patch = Patch { summed, pieces: &[(0, &many)] };
        let mut chain = Chain::EMPTY;
        let added = (0..10).filter(|_| waiting.push(&mut chain, 9, &patch)).count();
        assert_eq!(added, 2, "there is an end to what waits");
    }
}
