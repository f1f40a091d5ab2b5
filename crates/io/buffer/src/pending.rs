//! Pending changes: kept beside their block until it is read, or until a commit takes it.
//!
//! ```text
//! slot:     | block | bytes, older | first, last |
//!                                      |      '-----------------.
//! changes:                 | next, seed, bytes |  ...  | none, seed, bytes |
//! bytes:                    at, len, bytes | at, len, bytes | ...
//! ```
//!
//! An operation that inserts a name into a leaf, without reading it, changes some 30 bytes of a block that is
//! in no CPU cache and that the commit soon copies. The operation leaves these bytes here. The commit applies
//! them to its copy, which then replaces the block in the cache: each block is fetched once, together with
//! many others, and there is one copy in memory.
//!
//! A block that is not in memory becomes *absent*: it gets a slot with changes and without bytes. So an
//! insert into a leaf that does not fit into memory reads nothing, if the directory's notes or filters know
//! the leaf. The commit reads its absent blocks first, in order of their numbers, many at a time; a reader
//! reads one.
//!
//! A commit takes sixteen blocks, releases the shard's lock, makes their copies, and puts each in the place
//! of its block. If a block was read or changed in the meantime, its pending changes were applied then, and
//! the copy is not used.
//!
//! Invariants
//! 1. A slot with pending changes was last changed by the transaction of these changes.
//! 2. The changes of two successive transactions are stored apart. When the transaction after the next stores
//!    its first change, the oldest changes were all applied, or they never will be: on a damaged file system
//!    their block was freed earlier in the same transaction but is still in use elsewhere.
//! 3. An absent block was verified earlier, and left the cache as it is on the device. Its checksum is
//!    compared before its changes are applied. If it is wrong, the transaction is not committed.
//! 4. A pending change carries the bytes that it expects, which are compared when it is applied. On a file
//!    system that maps one block as two leaves of a directory, the change would otherwise hit the other
//!    leaf's names. After a mismatch the transaction is not committed.

use std::ops::Range;
use std::sync::OnceLock;

use extant_base::checksum::{Difference, crc32c};
use extant_base::{Pblk, Tid};
use extant_device::Copies;

use crate::Bytes;

/// A pending change of a few bytes in a block that ends in a checksum, by a caller that knows the block's
/// contents without reading it. It is applied when the block is read, or when a commit takes it. The commit
/// applies it to the copy that it makes anyway, and updates the checksum incrementally.
///
/// The checksum is the CRC-32C by value of the block's first bytes; it is the last four bytes, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct PendingChange<'a> {
    /// What the checksum covers: nothing in the last four bytes of a block.
    pub span: ChecksumSpan,
    /// An offset, and the bytes expected there. If other bytes are there (on a damaged file system), nothing
    /// is changed and the commit is refused.
    pub expected: (usize, &'a [u8]),
    /// Offsets, and the new bytes.
    pub pieces: &'a [(usize, &'a [u8])],
}

/// No change.
const NONE: u32 = u32::MAX;

/// The most bytes of pending changes in one shard for one transaction, in a cache of `cache` bytes. Further
/// changes are applied at once.
pub(crate) fn bytes_max(cache: usize) -> usize {
    (cache / (16 * crate::SHARDS)).clamp(1 << 10, 32 << 10)
}

/// Size of a cache line: the unit in which bytes are moved.
const LINE: usize = 64;
/// Size of the checksum at the end of a block.
const SUM: usize = size_of::<u32>();

/// The first and the last pending change of a block.
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

/// The pending changes of one transaction in one shard.
#[derive(Default)]
pub(crate) struct PendingChanges {
    transaction: Tid,
    changes: Vec<Change>,
    bytes: Vec<u8>,
}

/// One pending change.
struct Change {
    /// The next change of the same block.
    next: u32,
    /// Its pieces: for each the offset and the length, 16 bits each (with the flag [`EXPECTED`] in the
    /// length), and the bytes.
    start: u32,
    end: u32,
    /// See [`ChecksumSpan`].
    seed: u32,
    span_len: u32,
}

impl Change {
    fn span(&self) -> ChecksumSpan {
        ChecksumSpan { seed: self.seed, len: self.span_len as usize }
    }
}

/// What a block's checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChecksumSpan {
    /// Seed of the checksum.
    pub seed: u32,
    /// Number of bytes covered.
    pub len: usize,
}

impl ChecksumSpan {
    fn is_sound(self, block: &[u8]) -> bool {
        let (Some(covered), Some(sum)) = (block.get(..self.len), block.last_chunk::<SUM>()) else {
            return false;
        };
        crc32c(self.seed, covered) == u32::from_le_bytes(*sum)
    }
}

impl PendingChanges {
    /// Adds a change of a block of `block_len` bytes. `false` if there is no room, or if it reaches outside
    /// the bytes that the checksum covers.
    pub(crate) fn push(
        &mut self,
        chain: &mut Chain,
        transaction: Tid,
        patch: &PendingChange<'_>,
        (block_len, bytes_max): (usize, usize),
    ) -> bool {
        let PendingChange { span: ChecksumSpan { seed, len }, expected, pieces } = patch;
        let is_within = |(at, bytes): &(usize, &[u8])| {
            bytes.len() < EXPECTED.into() && at.checked_add(bytes.len()).is_some_and(|end| end <= *len)
        };
        let are_within = pieces.iter().chain([expected]).all(is_within)
            && pieces.iter().any(|(_, bytes)| !bytes.is_empty());
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
        let parts = || [(expected, EXPECTED)].into_iter().chain(pieces.iter().map(|piece| (piece, 0)));
        let more: usize = parts().map(|((_, bytes), _)| 4 + bytes.len()).sum();
        let held = self.bytes.len() + size_of_val(&self.changes[..]);
        if held + more > bytes_max {
            return false;
        }
        let start = self.bytes.len() as u32;
        for ((at, bytes), flag) in parts().filter(|((_, bytes), _)| !bytes.is_empty()) {
            self.bytes.extend_from_slice(&(*at as u16).to_le_bytes());
            self.bytes.extend_from_slice(&(bytes.len() as u16 | flag).to_le_bytes());
            self.bytes.extend_from_slice(bytes);
        }
        let number = self.changes.len() as u32;
        let end = self.bytes.len() as u32;
        self.changes.push(Change { next: NONE, start, end, seed: *seed, span_len: *len as u32 });
        match self.changes.get_mut(chain.last as usize) {
            Some(last) => last.next = number,
            None => chain.first = number,
        }
        chain.last = number;
        self.prefetch_next();
        true
    }

    /// Prefetches the place of the next change. The committer's CPU had that cache line last, and many other
    /// shards get changes before this one gets its next.
    fn prefetch_next(&self) {
        extant_device::prefetch_for_push(&self.bytes, 2 * LINE);
        extant_device::prefetch_for_push(&self.changes, size_of::<Change>());
    }

    /// Prefetches all changes, if they are this transaction's.
    pub(crate) fn prefetch(&self, transaction: Tid) {
        if self.is_of(transaction) {
            self.changes.chunks(2).for_each(|changes| extant_device::prefetch_start(&changes[0]));
            extant_device::prefetch(&self.bytes);
        }
    }

    /// Whether these are this transaction's changes.
    pub(crate) fn is_of(&self, transaction: Tid) -> bool {
        self.transaction == transaction
    }

    /// Whether a block that was just read ends in the right checksum.
    pub(crate) fn is_sound(&self, chain: Chain, block: &[u8]) -> bool {
        let mut changes = self.of(chain);
        changes.next().is_some_and(|change| change.span().is_sound(block))
    }

    /// Applies a block's changes in order; does not update the checksum. `false` if the block does not have
    /// the expected bytes.
    pub(crate) fn apply(&self, chain: Chain, block: &mut [u8]) -> bool {
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

/// Flag in the length of a piece: these bytes are expected, not written.
const EXPECTED: u16 = 1 << 15;

/// Bytes to write at an offset, or expected there.
#[derive(Clone, Copy)]
struct Piece<'a> {
    at: usize,
    bytes: &'a [u8],
    are_expected: bool,
}

impl Piece<'_> {
    fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }

    /// Writes the bytes, or compares them; `false` if others are there.
    fn put(&self, place: &mut [u8]) -> bool {
        if self.are_expected {
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
        let (bytes, left) = behind.split_at((len & !EXPECTED).into());
        rest = left;
        Some(Piece { at: at.into(), bytes, are_expected: len & EXPECTED != 0 })
    })
}

/// A block with its pending changes applied, and the right checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchedBlock {
    /// The block's size in bytes.
    pub block_len: usize,
    /// The block's first bytes.
    pub start: [u8; 4],
    /// The block's last bytes.
    pub end: [u8; LINE],
    /// What the checksum in the last bytes covers.
    pub span: ChecksumSpan,
}

/// Blocks that get their changes together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) blocks: Vec<Patching>,
    changes: Vec<u8>,
    /// The cache lines with the changes, after they are applied.
    windows: Vec<u8>,
    /// Scratch space for one block.
    differ: Vec<u8>,
    copies: Copies,
}

/// A block of the batch; it is taken, made, and put back.
pub(crate) struct Patching {
    /// Its index in the caller's list.
    pub(crate) number: usize,
    pub(crate) block: Pblk,
    /// Its pending changes.
    pub(crate) chain: Chain,
    changes: Range<usize>,
    span: ChecksumSpan,
    /// The old bytes end in the right checksum.
    has_sum: bool,
    /// Set when it is patched: the old bytes were not as the changes expect.
    pub(crate) is_damaged: bool,
    /// The bytes before the changes.
    pub(crate) older: Bytes,
    /// Known zeros, first of the old bytes, then of the copy.
    pub(crate) zeros: Zeros,
    /// Set when it is patched: the changed lines, their place in `windows`, and the last line.
    window: Range<usize>,
    window_at: usize,
    end: [u8; LINE],
    pub(crate) log_sum: Option<u32>,
    /// Set when it is made.
    pub(crate) copy: Bytes,
}

/// A range of a block known to be zero, which need not be read to be copied. In units of words: the first
/// one, and the one after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Zeros(u16, u16);

impl Zeros {
    fn new(bytes: Range<usize>) -> Self {
        // In a block of 64 KiB the last word is left out.
        let word = |at: usize| (at / 4).min(usize::from(u16::MAX)) as u16;
        let first = word(bytes.start.next_multiple_of(4));
        Self(first, word(bytes.end).max(first))
    }

    fn bytes(self) -> Range<usize> {
        usize::from(self.0) * 4..usize::from(self.1) * 4
    }

    /// The part that stays zero when these bytes are changed: the part after them, or the part before if
    /// there is none after.
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

    /// Adds a block with these bytes and the changes of this chain.
    pub(crate) fn take(
        &mut self,
        (number, block): (usize, Pblk),
        older: &Bytes,
        (has_sum, zeros): (bool, Zeros),
        (pending, chain): (&PendingChanges, Chain),
    ) {
        let from = self.changes.len();
        let mut span = ChecksumSpan::default();
        for change in pending.of(chain) {
            self.changes.extend_from_slice(pending.bytes_of(change));
            span = change.span();
        }
        let changes = from..self.changes.len();
        // These lines are read first; prefetch them for all blocks at once.
        if let Some(Piece { at, .. }) = pieces(&self.changes[changes.clone()]).next() {
            let line = older.get(at / LINE * LINE..).unwrap_or_default();
            extant_device::prefetch(&line[..line.len().min(2 * LINE)]);
        }
        self.blocks.push(Patching {
            number,
            block,
            chain,
            changes,
            span,
            has_sum,
            is_damaged: false,
            older: older.clone(),
            zeros,
            window: 0..0,
            window_at: 0,
            end: [0; LINE],
            log_sum: None,
            copy: Bytes::default(),
        });
    }

    /// Makes the copies of all blocks. Then they are put back, and the batch is [cleared](Self::clear).
    pub(crate) fn patch(
        &mut self,
        difference: &OnceLock<Difference>,
        log_sum: &dyn Fn(&PatchedBlock) -> Option<u32>,
    ) {
        let Self { blocks, changes, windows, differ, copies } = self;
        for patching in &mut blocks[..] {
            let difference = difference.get_or_init(|| Difference::new(patching.span.len));
            let patched =
                patching.patch(pieces(&changes[patching.changes.clone()]), windows, differ, difference);
            patching.log_sum = log_sum(&patched);
        }
        let mut rest = &mut blocks[..];
        while let [patching, behind @ ..] = rest {
            // The CPU's own prefetcher cannot predict the next block yet.
            if let Some(next) = behind.first() {
                extant_device::prefetch(&next.older[..next.older.len().min(NEXT)]);
            }
            patching.copy(windows, copies);
            rest = behind;
        }
        blocks.iter_mut().zip(copies.finish()).for_each(|(patching, copy)| patching.copy = copy);
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.changes.clear();
        self.windows.clear();
    }
}

/// Bytes of the next block to prefetch while one is copied.
const NEXT: usize = 8 * LINE;

impl Patching {
    /// Applies the pieces to a copy of their lines, reading nothing else, and computes the checksum.
    fn patch<'p>(
        &mut self,
        mut pieces: impl Iterator<Item = Piece<'p>> + Clone,
        windows: &mut Vec<u8>,
        differ: &mut Vec<u8>,
        difference: &Difference,
    ) -> PatchedBlock {
        let Self { older, span, .. } = self;
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
        self.has_sum &= difference.len() == span.len;
        let before = older.last_chunk().filter(|_| self.has_sum);
        let recompute = |window: &[u8]| {
            let mut left = span.len;
            [&older[..from], window, &older[to..]].into_iter().fold(span.seed, |sum, part| {
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
                debug_assert_eq!(sum, recompute(window), "the block ended in the right checksum");
                sum
            }
            // All bytes are read here anyway, so look for zeros, too.
            None => {
                let sum = recompute(window);
                let within = run_of_zeros(&window[last - from..]);
                let all_are = last + within == to && to < span.len;
                let behind = if all_are { run_of_zeros(&older[to..span.len]) } else { 0 };
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
        PatchedBlock { block_len: older.len(), start, end: self.end, span: *span }
    }

    /// Copies the block with the changed lines, in one pass from beginning to end, so that the CPU's
    /// prefetcher recognizes the pattern. Known zeros are not read.
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

/// The length of the run of zeros at the beginning, or slightly less.
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

    /// Overlapping and scattered changes of several blocks, with a known and an unknown checksum.
    #[test]
    fn what_waits_is_made_in_its_order_and_the_checksum_is_right() {
        let (difference, span) = (OnceLock::new(), ChecksumSpan { seed: 77, len: 1012 });
        let mut pending = PendingChanges::default();
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
                let patch = PendingChange { span, expected: (0, &[]), pieces: &pieces[..1 + step % 2] };
                assert!(
                    pending.push(
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
                batch.take((number, Pblk(9)), &blocks[number], (has_sum, zeros[number]), (&pending, chain));
                assert!(pending.apply(chain, plain.make_mut()));
            }
            let patched = RefCell::new(Vec::new());
            let log_sum = |it: &PatchedBlock| {
                patched.borrow_mut().push(*it);
                Some(7)
            };
            batch.patch(&difference, &log_sum);
            for (patching, patched) in batch.blocks.iter().zip(patched.take()) {
                let PatchedBlock { block_len, start, end, span: of } = patched;
                let copy = patching.copy.clone();
                assert_eq!(copy[..1020], plain[patching.number][..1020], "{transaction}");
                assert_eq!(copy[1020..], crc32c(77, &copy[..1012]).to_le_bytes());
                assert_eq!((block_len, &start[..], &end[..], of), (1024, &copy[..4], &copy[960..], span));
                assert_eq!(patching.log_sum, Some(7));
                let known = patching.zeros.bytes();
                assert!(copy[known.clone()].iter().all(|byte| *byte == 0) && known.end <= 1020);
                n_zeros += known.len();
                zeros[patching.number] = patching.zeros;
                blocks[patching.number] = copy;
            }
            batch.clear();
            assert!(batch.is_empty());
        }
        assert!(n_zeros > 1000, "most of the blocks' second half, most of the time");
        for (at, len) in [(1012, 1), (1010, 3), (usize::MAX, 1), (0, 0)] {
            let patch = PendingChange { span, expected: (0, &[]), pieces: &[(at, &[1; 3][..len])] };
            let mut chain = Chain::EMPTY;
            assert!(
                !pending.push(&mut chain, extant_base::Tid(9), &patch, (1024, 128 << 10)) && chain.is_empty()
            );
        }
        let many = [0; 14_000];
        let patch = PendingChange {
            span: ChecksumSpan { seed: 77, len: 65524 },
            expected: (0, &[]),
            pieces: &[(0, &many[..7000]), (7000, &many[..7000])],
        };
        let mut chain = Chain::EMPTY;
        let added = (0..10)
            .filter(|_| pending.push(&mut chain, extant_base::Tid(9), &patch, (65536, bytes_max(1 << 30))))
            .count();
        assert_eq!(added, 2, "there is an end to what waits");
    }
}
