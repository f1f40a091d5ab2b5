//! Bloom filters of the names in leaves without notes.
//!
//! ```text
//! leaf:  | 512 bits | 512 bits | 512 bits | 512 bits |     one CPU cache line for each KiB of a leaf
//! ```
//!
//! A name's key selects a line and four bits in it, which are set: each line is a Bloom filter. If one of its
//! bits is clear, the name is not in the leaf. The key consists of both hashes of the name: of 200 million
//! names, one in ten shares its (major) hash with another, which is in the same leaf. An insert into a
//! directory of millions of names therefore reads one line, at an address that follows from the leaf's
//! number, instead of the leaf. For one in 150 new names the filter reports a possible match, and the leaf is
//! read.
//!
//! Invariant: if [`super::leaf_cache::LeafCache`] records a filter for a leaf, the bits of all its names are
//! set. Removed names keep their bits until the filter is rebuilt.

use extant_base::Lblk;
use extant_ondisk::hash::NameHash;

/// Bits per name.
const BITS: usize = 4;
/// Bytes of a leaf per line.
const LEAF_BYTES: usize = 1024;
/// Bytes of one allocation: a part of the limit, within these bounds.
const CHUNK_BYTES_MIN: usize = 16 << 10;
const CHUNK_BYTES_MAX: usize = 4 << 20;
const CHUNKS: usize = 64;

/// The key of a name: its hash, and 15 bits of its minor hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of(hash: NameHash) -> Self {
        Self(u64::from(hash.hash) << 16 | u64::from(hash.minor as u16 | 1))
    }

    /// The key with this hash and [`tag`](Self::tag). `None` for tag 0.
    pub(super) fn with(hash: u32, tag: u16) -> Option<Self> {
        (tag != 0).then_some(Self(u64::from(hash) << 16 | u64::from(tag)))
    }

    /// The part of the key that is not the hash; never 0.
    pub(super) fn tag(self) -> u16 {
        self.0 as u16
    }
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u64; 8]);

/// The filters of a directory's leaves.
pub(super) struct Filters {
    /// Lines of a leaf; 0 before the first filter.
    lines: usize,
    /// Each holds the lines of as many leaves as fit.
    chunks: Vec<Vec<Line>>,
    chunk_bytes: usize,
    held_bytes: usize,
    bytes_max: usize,
}

/// Selects a name's bits. The bits come from one number that is independent of the ranges of leaves.
#[derive(Clone, Copy)]
struct Spread(u64);

impl Spread {
    fn of(key: Key) -> Self {
        let product = key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self((product ^ product >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9))
    }

    fn line(self, lines: usize) -> usize {
        ((self.0 >> 48) as usize * lines) >> 16
    }

    fn bits(self) -> impl Iterator<Item = (usize, u64)> {
        (0..BITS).map(move |i| {
            let bit = (self.0 >> (i * 9)) as usize % 512;
            (bit / 64, 1 << (bit % 64))
        })
    }
}

impl Filters {
    /// Without filters, and limited to `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let chunk_bytes = (bytes_max / CHUNKS).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).next_power_of_two();
        Self { lines: 0, chunks: Vec::new(), chunk_bytes, held_bytes: 0, bytes_max }
    }

    fn leaves_per_chunk(&self) -> usize {
        self.chunk_bytes / size_of::<Line>() / self.lines.max(1)
    }

    fn leaf(&self, leaf: Lblk) -> Option<&[Line]> {
        let (chunk, at) = self.place(leaf);
        self.chunks.get(chunk)?.get(at..at + self.lines)
    }

    fn leaf_mut(&mut self, leaf: Lblk) -> Option<&mut [Line]> {
        let (chunk, at) = self.place(leaf);
        self.chunks.get_mut(chunk)?.get_mut(at..at + self.lines)
    }

    fn place(&self, leaf: Lblk) -> (usize, usize) {
        let leaves = self.leaves_per_chunk();
        (leaf.0 as usize / leaves, leaf.0 as usize % leaves * self.lines)
    }

    /// Limits the memory for filters from now on. Existing filters stay.
    pub(super) fn set_bytes_max(&mut self, bytes: usize) {
        self.bytes_max = bytes;
    }

    /// Whether there is room for the filter of this leaf.
    pub(super) fn has_room(&self, leaf: Lblk) -> bool {
        let (chunk, _) = self.place(leaf);
        self.chunks.get(chunk).is_some_and(|lines| !lines.is_empty())
            || self.held_bytes + self.chunk_bytes <= self.bytes_max
    }

    /// Builds the filter of a leaf of `leaf_bytes` bytes from the keys of its names. `false` if there is no
    /// room.
    pub(super) fn fill(&mut self, leaf: Lblk, leaf_bytes: usize, keys: impl Iterator<Item = Key>) -> bool {
        self.lines = leaf_bytes.div_ceil(LEAF_BYTES);
        if !self.has_room(leaf) {
            return false;
        }
        let (chunk, _) = self.place(leaf);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, Vec::new);
        }
        let lines = &mut self.chunks[chunk];
        if lines.is_empty() {
            let len = self.chunk_bytes / size_of::<Line>();
            extant_buffer::make_room(lines, len);
            lines.resize(len, Line::default());
            self.held_bytes += self.chunk_bytes;
        }
        if let Some(lines) = self.leaf_mut(leaf) {
            lines.fill(Line::default());
        }
        keys.for_each(|key| self.add(leaf, key));
        true
    }

    /// Adds a name to a leaf's filter.
    pub(super) fn add(&mut self, leaf: Lblk, key: Key) {
        if let Some(lines) = self.leaf_mut(leaf) {
            let spread = Spread::of(key);
            let line = &mut lines[spread.line(lines.len())];
            spread.bits().for_each(|(word, bit)| line.0[word] |= bit);
        }
    }

    /// Whether a leaf with a filter may contain a name with this key.
    pub(super) fn may_hold(&self, leaf: Lblk, key: Key) -> bool {
        let Some(lines) = self.leaf(leaf) else { return true };
        let spread = Spread::of(key);
        let line = &lines[spread.line(lines.len())];
        spread.bits().fold(true, |all, (word, bit)| all & (line.0[word] & bit != 0))
    }

    /// Prefetches the line that [`may_hold`](Self::may_hold) reads.
    pub(super) fn prefetch(&self, leaf: Lblk, key: Key) {
        if let Some(lines) = self.leaf(leaf) {
            extant_buffer::prefetch_start(&lines[Spread::of(key).line(lines.len())]);
        }
    }

    /// Memory in use, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that agree in the high bits of the hash, as in a leaf.
    fn keys(seed: u32) -> impl Iterator<Item = Key> {
        let mut random = seed;
        std::iter::from_fn(move || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some(Key::of(NameHash { hash: 0x1234_0000 | (random >> 12 & 0xFFFE), minor: 0 }))
        })
    }

    #[test]
    fn what_is_in_a_leaf_is_never_denied_and_what_is_not_is_rarely_believed() {
        for leaf_bytes in [1024, 4096, 65536] {
            let mut filters = Filters::new(64 << 20);
            let names = leaf_bytes / 26;
            for leaf in [1, 2, 40_000] {
                let there: Vec<Key> = keys(leaf).take(names).collect();
                let (first, later) = there.split_at(names / 2);
                assert!(filters.fill(Lblk(leaf), leaf_bytes, first.iter().copied()));
                later.iter().for_each(|key| filters.add(Lblk(leaf), *key));
                assert!(there.iter().all(|key| filters.may_hold(Lblk(leaf), *key)));
                let strange = keys(leaf + 77).filter(|key| !there.contains(key)).take(10_000);
                let believed = strange.filter(|key| filters.may_hold(Lblk(leaf), *key)).count();
                assert!(believed < 200, "{believed} of 10,000, blocks of {leaf_bytes}");
            }
        }
    }

    /// The minor hash distinguishes names of equal hash.
    #[test]
    fn what_has_the_hash_of_another_is_rarely_believed_to_be_there() {
        let mut filters = Filters::new(64 << 20);
        let with = |minor: u32| Key::of(NameHash { hash: 0x1234_5678, minor: minor << 1 });
        assert!(filters.fill(Lblk(1), 4096, (0..40).map(with)));
        let believed = (40..10_000).filter(|minor| filters.may_hold(Lblk(1), with(*minor))).count();
        assert!(believed < 200, "{believed}");
        let key = with(9);
        assert_eq!(Key::with(0x1234_5678, key.tag()), Some(key));
        assert_eq!(Key::with(0x1234_5678, 0), None);
    }

    #[test]
    fn there_are_not_more_than_fit() {
        let mut filters = Filters::new(CHUNK_BYTES_MIN);
        assert!(filters.fill(Lblk(5), 4096, std::iter::empty()));
        assert!(!filters.fill(Lblk(1 << 20), 4096, std::iter::empty()));
        let key = Key::of(NameHash { hash: 4, minor: 3 });
        assert!(filters.may_hold(Lblk(1 << 20), key), "nothing is known");
        assert_eq!(filters.held_bytes(), CHUNK_BYTES_MIN);
    }
}
