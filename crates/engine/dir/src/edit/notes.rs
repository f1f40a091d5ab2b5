//! Notes: the hashes and offsets of a leaf's names, and its room.
//!
//! ```text
//! bucket:  | 10 hashes | 10 offsets | len | spilled |     64 bytes: a cache line
//!
//! A hash selects the bucket. If it is full, the name goes to the next bucket with room, and the full buckets
//! before that are marked as "spilled": a search continues after them.
//! ```
//!
//! The notes of a directory of a million names exceed the CPU caches, and names come in random order. So
//! lookup, insert and removal of a name each touch one cache line, and all of them the same.
//!
//! Invariants
//! 1. A name is in the first bucket from its own on that had room, and all buckets before have `has_spilled`
//!    set. The mark is cleared only when the notes are rebuilt.
//! 2. At least one bucket in ten has room: the table grows otherwise.

use extant_ondisk::dirent::edit::Hole;

use super::leaf::LeafEntry;

/// Names per bucket.
const BUCKET: usize = 10;
/// Names per bucket, for which room is reserved.
const USUAL: usize = 8;
/// Names per bucket on average, beyond which the table grows.
const MOST: usize = 9;

/// The used entries of a leaf, in no order.
#[derive(Default)]
pub(super) struct Notes {
    buckets: Vec<Bucket>,
    len: u32,
    /// Bytes that the used entries need.
    pub(super) live_bytes: u32,
    hole_at: u32,
    hole_own: u32,
    hole_len: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    hashes: [u32; BUCKET],
    /// Offsets in words of 4 bytes.
    words: [u16; BUCKET],
    len: u8,
    has_spilled: bool,
}

impl Bucket {
    /// The positions of this hash, as a bit mask.
    fn places(&self, hash: u32) -> u32 {
        // Without branches, so that it can be vectorized.
        let equal = (0..BUCKET).fold(0, |equal, i| equal | u32::from(self.hashes[i] == hash) << i);
        equal & ((1 << self.len) - 1)
    }

    fn entries(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        self.hashes.iter().zip(&self.words).take(self.len.into()).map(|(hash, word)| (*hash, offset(*word)))
    }
}

/// The result of a search for a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HashMatches {
    /// No name has this hash.
    None,
    /// One name has it, at this offset.
    One(usize),
    /// One or more names have it.
    Several,
}

fn offset(word: u16) -> usize {
    usize::from(word) * 4
}

impl Notes {
    /// Reserves room for about `names` names, and clears the notes.
    pub(super) fn reserve(&mut self, names: usize) {
        let buckets = names.div_ceil(USUAL).max(1);
        self.buckets.clear();
        self.buckets.reserve_exact(buckets);
        self.buckets.resize(buckets, Bucket::default());
        self.len = 0;
    }

    /// Whether room is reserved.
    pub(super) fn is_reserved(&self) -> bool {
        !self.buckets.is_empty()
    }

    /// Sets the entries, their size, and the largest hole of a leaf.
    pub(super) fn set(&mut self, entries: impl Iterator<Item = (u32, usize)>, live_bytes: usize, hole: Hole) {
        self.buckets.fill(Bucket::default());
        self.len = 0;
        for (hash, at) in entries {
            self.push(hash, at);
        }
        self.live_bytes = live_bytes as u32;
        self.set_hole(hole);
    }

    pub(super) fn push(&mut self, hash: u32, at: usize) {
        if self.len as usize >= self.buckets.len() * MOST {
            self.grow();
        }
        self.put(hash, (at / 4) as u16);
        self.len += 1;
    }

    fn put(&mut self, hash: u32, word: u16) {
        let mut at = self.bucket(hash);
        while usize::from(self.buckets[at].len) == BUCKET {
            self.buckets[at].has_spilled = true;
            at = self.behind(at);
        }
        let bucket = &mut self.buckets[at];
        let i = usize::from(bucket.len);
        (bucket.hashes[i], bucket.words[i]) = (hash, word);
        bucket.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let twice = vec![Bucket::default(); (self.buckets.len() * 2).max(1)];
        for bucket in std::mem::replace(&mut self.buckets, twice) {
            for (hash, at) in bucket.entries() {
                self.put(hash, (at / 4) as u16);
            }
        }
    }

    /// The bucket of a hash. The bits are mixed, since leaves are split by the high bits.
    fn bucket(&self, hash: u32) -> usize {
        let mixed = hash.wrapping_mul(0x9E37_79B1);
        ((u64::from(mixed) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Prefetches the bucket that [`look`](Self::look) reads.
    pub(super) fn prefetch(&self, hash: u32) {
        if !self.buckets.is_empty() {
            extant_buffer::prefetch_start(&self.buckets[self.bucket(hash)]);
        }
    }

    fn behind(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// The buckets that may have names of this hash.
    fn buckets(&self, hash: u32) -> impl Iterator<Item = usize> + '_ {
        let mut next = (!self.buckets.is_empty()).then(|| self.bucket(hash));
        let mut left = self.buckets.len();
        std::iter::from_fn(move || {
            let at = next?;
            left -= 1;
            next = (self.buckets[at].has_spilled && left > 0).then(|| self.behind(at));
            Some(at)
        })
    }

    pub(super) fn hole(&self) -> Hole {
        Hole { at: self.hole_at as usize, own: self.hole_own as usize, len: self.hole_len as usize }
    }

    pub(super) fn set_hole(&mut self, hole: Hole) {
        (self.hole_at, self.hole_own, self.hole_len) = (hole.at as u32, hole.own as u32, hole.len as u32);
    }

    /// Searches for a hash. Reads one bucket, unless it has spilled.
    pub(super) fn look(&self, hash: u32) -> HashMatches {
        if self.buckets.is_empty() {
            return HashMatches::None;
        }
        let bucket = &self.buckets[self.bucket(hash)];
        let places = bucket.places(hash);
        match places.count_ones() {
            0 if !bucket.has_spilled => HashMatches::None,
            1 if !bucket.has_spilled => {
                HashMatches::One(offset(bucket.words[places.trailing_zeros() as usize]))
            }
            _ if self.has(hash) => HashMatches::Several,
            _ => HashMatches::None,
        }
    }

    /// Whether there is a name of this hash.
    pub(super) fn has(&self, hash: u32) -> bool {
        self.buckets(hash).any(|at| self.buckets[at].places(hash) != 0)
    }

    /// The offsets of the names of this hash.
    pub(super) fn offsets(&self, hash: u32) -> impl Iterator<Item = usize> + '_ {
        self.buckets(hash).flat_map(move |at| {
            let bucket = &self.buckets[at];
            let mut places = bucket.places(hash);
            std::iter::from_fn(move || {
                let i = (places != 0).then(|| places.trailing_zeros())?;
                places &= places - 1;
                Some(offset(bucket.words[i as usize]))
            })
        })
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = LeafEntry> + '_ {
        self.buckets.iter().flat_map(Bucket::entries).map(|(hash, at)| LeafEntry::noted(hash, at))
    }

    /// Removes the entry of this hash at this offset; `room` is the resulting room.
    pub(super) fn remove(&mut self, hash: u32, at: usize, live_bytes: usize, room: Hole) {
        let word = (at / 4) as u16;
        let place = self.buckets(hash).find_map(|b| {
            let bucket = &self.buckets[b];
            let mut places = (0..BUCKET).filter(|i| bucket.places(hash) >> i & 1 == 1);
            places.find(|i| bucket.words[*i] == word).map(|i| (b, i))
        });
        if let Some((b, i)) = place {
            let bucket = &mut self.buckets[b];
            bucket.len -= 1;
            let last = usize::from(bucket.len);
            (bucket.hashes[i], bucket.words[i]) = (bucket.hashes[last], bucket.words[last]);
            self.len -= 1;
        }
        self.live_bytes = self.live_bytes.saturating_sub(live_bytes as u32);
        let hole = self.hole();
        let is_within = (room.at..room.at + room.len).contains(&hole.at);
        if is_within || room.len > hole.len {
            self.set_hole(room);
        }
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Bucket>() * self.buckets.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of few hashes spill from bucket to bucket; after any inserts and removals, exactly the existing
    /// names are found.
    #[test]
    fn what_is_noted_is_found_where_it_is() {
        for n_hashes in [1, 3, 50, 1 << 20] {
            let mut notes = Notes::default();
            notes.reserve(100);
            let mut model: Vec<(u32, usize)> = Vec::new();
            let mut random = 1u32;
            for step in 0..4000 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let hash = (random >> 12) % n_hashes * 2;
                if model.len() > 400 || step % 3 == 2 {
                    let (hash, at) = model.swap_remove(random as usize % model.len());
                    notes.remove(hash, at, 12, Hole { at, own: 0, len: 12 });
                } else {
                    model.push((hash, step * 4));
                    notes.push(hash, step * 4);
                }
                let of_hash: Vec<_> = model.iter().filter(|(other, _)| *other == hash).collect();
                assert_eq!(notes.has(hash), !of_hash.is_empty());
                match notes.look(hash) {
                    HashMatches::None => assert!(of_hash.is_empty()),
                    HashMatches::One(at) => assert_eq!(of_hash, [&(hash, at)]),
                    HashMatches::Several => assert!(!of_hash.is_empty()),
                }
            }
            for &(hash, _) in &model {
                let mut found: Vec<_> = notes.offsets(hash).collect();
                let mut known: Vec<_> =
                    model.iter().filter(|(other, _)| *other == hash).map(|(_, at)| *at).collect();
                found.sort_unstable();
                known.sort_unstable();
                assert_eq!(found, known);
            }
            assert_eq!(notes.entries().count(), model.len());
            notes.set([(2, 0), (4, 12)].into_iter(), 24, Hole::default());
            assert_eq!(notes.entries().count(), 2);
        }
    }

    /// A hole inside the new room becomes that room; a larger one elsewhere stays.
    #[test]
    fn the_hole_follows_what_is_taken_out() {
        let mut notes = Notes::default();
        notes.reserve(3);
        notes.set([(2, 0), (4, 12), (6, 24)].into_iter(), 36, Hole { at: 24, own: 0, len: 40 });
        notes.remove(4, 12, 12, Hole { at: 12, own: 0, len: 12 });
        assert_eq!(notes.hole(), Hole { at: 24, own: 0, len: 40 });
        notes.remove(6, 24, 12, Hole { at: 24, own: 0, len: 52 });
        assert_eq!((notes.hole(), notes.live_bytes), (Hole { at: 24, own: 0, len: 52 }, 12));
        notes.remove(2, 0, 12, Hole { at: 0, own: 0, len: 76 });
        assert_eq!((notes.hole(), notes.live_bytes), (Hole { at: 0, own: 0, len: 76 }, 0));
    }
}
