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
//! Invariants
//! 1. A slot that has changes waiting was changed last by the transaction that they belong to.
//! 2. Those of a transaction and of the next one are apart. When that one's successor has its first, the older ones were all made.

use base::checksum::Difference;

use crate::Patch;

/// No change.
pub(crate) const NONE: u32 = u32::MAX;

/// Bytes that wait in one shard at most, for one transaction: who has more makes his changes at once.
const BYTES_MAX: usize = 128 << 10;

/// Where a block's changes are, the first and the last one.
#[derive(Clone, Copy)]
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
    /// Of the checksum that the block ends in, and how many bytes that is of.
    seed: u32,
    len: u32,
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
        let end = self.bytes.len() as u32;
        self.changes.push(Change { next: NONE, start, end, seed: patch.seed, len: patch.len as u32 });
        match self.changes.get_mut(chain.last as usize) {
            Some(last) => last.next = number,
            None => chain.first = number,
        }
        chain.last = number;
        true
    }

    /// Makes the changes of a block of this transaction, in their order.
    pub(crate) fn make(&self, chain: Chain, transaction: u64, bytes: &mut [u8]) {
        debug_assert!(chain.is_empty() || self.transaction == transaction, "changes are their transaction's");
        self.of(chain).for_each(|change| self.pieces(change).for_each(|piece| put(bytes, piece)));
    }

    /// As [`make`](Self::make), and the block ends in the right checksum then; `has_sum`: it does already. What that is of.
    pub(crate) fn make_summed(
        &self,
        chain: Chain,
        transaction: u64,
        bytes: &mut [u8],
        has_sum: bool,
        difference: &Difference,
    ) -> Summed {
        debug_assert!(self.transaction == transaction, "changes are their transaction's");
        let end_at = bytes.len() - size_of::<u32>();
        let before = bytes.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
        let mut sum = has_sum.then_some(before);
        let mut summed = Summed::default();
        for change in self.of(chain) {
            summed = Summed { seed: change.seed, len: change.len as usize };
            let is_known = difference.len() == summed.len;
            for piece in self.pieces(change) {
                sum = sum.filter(|_| is_known).and_then(|sum| Some(sum ^ differs(bytes, piece, difference)?));
                put(bytes, piece);
            }
        }
        let sum = sum.unwrap_or_else(|| base::checksum::crc32c(summed.seed, &bytes[..summed.len]));
        debug_assert_eq!(sum, base::checksum::crc32c(summed.seed, &bytes[..summed.len]), "kept right");
        bytes[end_at..].copy_from_slice(&sum.to_le_bytes());
        summed
    }

    /// Bytes that the checksum of a block is of that these changes are of.
    pub(crate) fn len_of(&self, chain: Chain) -> usize {
        self.of(chain).next().map_or(0, |change| change.len as usize)
    }

    fn of(&self, chain: Chain) -> impl Iterator<Item = &Change> {
        let mut next = chain.first;
        std::iter::from_fn(move || {
            let change = self.changes.get(next as usize)?;
            next = change.next;
            Some(change)
        })
    }

    /// A change's offsets, and the bytes that belong there.
    fn pieces(&self, change: &Change) -> impl Iterator<Item = (usize, &[u8])> {
        let mut rest = &self.bytes[change.start as usize..change.end as usize];
        std::iter::from_fn(move || {
            let (head, behind) = rest.split_first_chunk::<4>()?;
            let [at, len] =
                [[head[0], head[1]], [head[2], head[3]]].map(|word| usize::from(u16::from_le_bytes(word)));
            let (bytes, left) = behind.split_at(len);
            rest = left;
            Some((at, bytes))
        })
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

/// Pieces that lie outside of a block are left out: who told them looked at another one.
fn put(block: &mut [u8], (at, bytes): (usize, &[u8])) {
    if let Some(place) = block.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Bytes of a piece beyond which a checksum is computed anew.
const PIECE_MAX: usize = 512;

/// What a piece does to the checksum of a block. `None`: to be computed anew.
fn differs(block: &[u8], (at, bytes): (usize, &[u8]), difference: &Difference) -> Option<u32> {
    let (start, end) = (at / 4 * 4, (at + bytes.len()).next_multiple_of(4));
    let before =
        block.get(start..end).filter(|before| end <= difference.len() && before.len() <= PIECE_MAX)?;
    let mut differ = [0; PIECE_MAX];
    let differ = &mut differ[..end - start];
    let changed = &mut differ[at - start..][..bytes.len()];
    changed.copy_from_slice(bytes);
    changed.iter_mut().zip(&before[at - start..]).for_each(|(byte, before)| *byte ^= before);
    Some(difference.of(start, differ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes of several blocks that lie one over the other, in one run of them and in two, with a sum that is known and one that is not.
    #[test]
    fn what_waits_is_made_in_its_order_and_the_checksum_is_right() {
        let difference = Difference::new(1012);
        let mut waiting = Waiting::default();
        let mut chains = [Chain::EMPTY; 3];
        let mut blocks = [[0u8; 1024]; 3];
        for transaction in [1, 3, 4] {
            for step in 0..60usize {
                let which = step % 3;
                let data: Vec<u8> = (0..step * 7 % 400).map(|i| (i * 5 + step) as u8).collect();
                let pieces = [(step * 11 % 600, &data[..]), (step * 4, &data[..data.len().min(2)])];
                let patch = Patch { seed: 77, len: 1012, pieces: &pieces };
                assert!(waiting.push(&mut chains[which], transaction, &patch));
            }
            for (which, (chain, block)) in chains.iter_mut().zip(&mut blocks).enumerate() {
                let mut plain = *block;
                waiting.make(*chain, transaction, &mut plain);
                let summed = waiting.make_summed(
                    *chain,
                    transaction,
                    block,
                    transaction > 1 && which > 0,
                    &difference,
                );
                assert_eq!(summed, Summed { seed: 77, len: 1012 });
                assert_eq!(plain[..1020], block[..1020]);
                assert_eq!(block[1020..], base::checksum::crc32c(77, &block[..1012]).to_le_bytes());
                *chain = Chain::EMPTY;
            }
        }
        let many = [0; 60_000];
        let patch = Patch { seed: 77, len: 1012, pieces: &[(0, &many)] };
        let added = (0..10).filter(|_| waiting.push(&mut chains[0], 5, &patch)).count();
        assert_eq!(added, 2, "there is an end to what waits");
    }
}
