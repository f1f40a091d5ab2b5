//! Decoded index blocks in memory.
//!
//! ```text
//! places: block -> number of its node, number of entries
//! chunks: | node 0: key child, key child, .. | node 1: .. | ..    2 MiB each; a node has room for a block
//! root:   key child, key child, ..
//! ```
//!
//! A directory of millions of names has thousands of nodes, which do not fit into the CPU caches. So the
//! nodes are in few pages, a key and its child are in one cache line, and the table of places is small enough
//! to stay cached.
//!
//! Invariant: a node's first key is 0, and every node has entries.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use extant_base::Lblk;
use extant_ondisk::htree::DxEntry;

/// Width of the first search interval next to a guess.
const NEAR: usize = 8;

/// Bytes of one allocation, once there are many nodes.
const CHUNK_BYTES: usize = 2 << 20;

/// A decoded index block.
#[derive(Clone, Copy)]
pub(super) struct CachedNode<'a>(&'a [DxEntry]);

impl<'a> CachedNode<'a> {
    pub(super) fn len(self) -> usize {
        self.0.len()
    }

    pub(super) fn entries(self) -> &'a [DxEntry] {
        self.0
    }

    pub(super) fn key(self, at: usize) -> Option<u32> {
        self.0.get(at).map(|entry| entry.hash)
    }

    pub(super) fn child(self, at: usize) -> Option<Lblk> {
        self.0.get(at).map(|entry| entry.block)
    }

    /// The last entry with a hash not above this one. An interpolation search, fast if the keys are spread
    /// evenly between `low` and `high`, as hashes are: it reads one or two cache lines, while a binary search
    /// reads lines all over the node.
    pub(super) fn position(self, hash: u32, low: u32, high: u32) -> usize {
        let entries = &self.0[1..];
        let guess = self.guess(hash, low, high);
        // Entries before `from` are not above the hash; entries from `to` on are.
        let (mut width, mut from, mut to) = (NEAR, guess, guess);
        while from > 0 && entries[from - 1].hash > hash {
            (to, from) = (from - 1, from.saturating_sub(width));
            width *= 2;
        }
        width = NEAR;
        while to < entries.len() && entries[to].hash <= hash {
            (from, to) = (to + 1, (to + width).min(entries.len()));
            width *= 2;
        }
        from + entries[from..to].partition_point(|entry| entry.hash <= hash)
    }

    /// Prefetches what [`position`](Self::position) will read, and its probable result.
    pub(super) fn prefetch(self, hash: u32, low: u32, high: u32) {
        let guess = self.guess(hash, low, high);
        for near in [guess.saturating_sub(NEAR), guess, (guess + NEAR).min(self.len() - 1)] {
            self.0.get(near).into_iter().for_each(extant_buffer::prefetch_start);
        }
    }

    /// The index at which the search for a hash starts.
    fn guess(self, hash: u32, low: u32, high: u32) -> usize {
        let len = self.0.len() as u64 - 1;
        let (above, span) = (u64::from(hash.saturating_sub(low)), u64::from(high.saturating_sub(low)) + 1);
        (above * len / span).min(len) as usize
    }
}

/// A directory's nodes in memory.
#[derive(Default)]
pub(super) struct Nodes {
    root: Vec<DxEntry>,
    /// Levels of nodes below the root.
    pub(super) levels: u8,
    places: HashMap<u32, NodeSlot, BuildHasherDefault<Spread>>,
    /// Entries per node at most; 0 before the root is loaded.
    room: usize,
    chunks: Vec<Vec<DxEntry>>,
    /// Node numbers that can be reused.
    free: Vec<u32>,
}

/// The place of a node.
#[derive(Clone, Copy)]
struct NodeSlot {
    number: u32,
    len: u32,
}

impl Nodes {
    /// Sets the root of an index with `levels` levels below it, and `room` entries per node at most.
    pub(super) fn begin(&mut self, entries: impl ExactSizeIterator<Item = DxEntry>, levels: u8, room: usize) {
        self.clear();
        (self.levels, self.room) = (levels, room);
        self.put(Lblk(0), entries);
    }

    /// The number of nodes, including the root.
    pub(super) fn len(&self) -> usize {
        self.places.len() + usize::from(!self.root.is_empty())
    }

    /// The root is block 0.
    #[inline]
    pub(super) fn get(&self, lblk: Lblk) -> Option<CachedNode<'_>> {
        let entries = match lblk.0 {
            0 => &self.root[..],
            _ => {
                let place = self.places.get(&lblk.0)?;
                let (chunk, at) = self.at(place.number);
                &self.chunks[chunk][at..at + place.len as usize]
            }
        };
        (!entries.is_empty()).then_some(CachedNode(entries))
    }

    /// Sets a node, replacing an existing one. Entries beyond `room` are dropped.
    pub(super) fn put(&mut self, lblk: Lblk, entries: impl ExactSizeIterator<Item = DxEntry>) {
        if lblk.0 == 0 {
            self.root.clear();
            return self.root.extend(entries);
        }
        let len = entries.len().min(self.room);
        debug_assert!(len == entries.len() && len > 0, "a node has entries, and room for them");
        let number = match self.places.get(&lblk.0) {
            Some(place) => place.number,
            None => self.free.pop().unwrap_or_else(|| self.make_room()),
        };
        self.places.insert(lblk.0, NodeSlot { number, len: len as u32 });
        let (chunk, at) = self.at(number);
        self.chunks[chunk][at..at + len].iter_mut().zip(entries).for_each(|(place, entry)| *place = entry);
    }

    /// Removes a node. Returns its entries.
    pub(super) fn take(&mut self, lblk: Lblk) -> Option<Vec<DxEntry>> {
        let entries = self.get(lblk)?.0.to_vec();
        if lblk.0 == 0 {
            self.root.clear();
        } else if let Some(NodeSlot { number, .. }) = self.places.remove(&lblk.0) {
            self.free.push(number);
        }
        Some(entries)
    }

    /// Drops all nodes except the root.
    pub(super) fn clear(&mut self) {
        let Self { levels, room, .. } = *self;
        *self = Self { root: std::mem::take(&mut self.root), levels, room, ..Self::default() };
    }

    pub(super) fn insert(&mut self, lblk: Lblk, at: usize, entry: DxEntry) {
        if lblk.0 == 0 {
            return self.root.insert(at, entry);
        }
        if let Some((all, len)) = self.whole(lblk) {
            all.copy_within(at..*len as usize, at + 1);
            all[at] = entry;
            *len += 1;
        }
    }

    /// Removes an entry. If the next entry continues its hash, that entry becomes the first one of the hash.
    pub(super) fn remove(&mut self, lblk: Lblk, at: usize) {
        let key = match lblk.0 {
            0 => self.root.remove(at).hash,
            _ => {
                let Some((all, len)) = self.whole(lblk) else { return };
                let key = all[at].hash;
                all.copy_within(at + 1..*len as usize, at);
                *len -= 1;
                key
            }
        };
        let is_first = at == 0;
        if let Some(next) = self.entries_mut(lblk).get_mut(at) {
            if is_first {
                next.hash = 0;
            } else if next.hash == key | 1 {
                next.hash = key;
            }
        }
    }

    /// Changes the child of an entry.
    pub(super) fn set_child(&mut self, lblk: Lblk, at: usize, child: Lblk) {
        if let Some(entry) = self.entries_mut(lblk).get_mut(at) {
            entry.block = child;
        }
    }

    /// Moves a node's entries from `at` on to a new node. Returns its first key.
    pub(super) fn split(&mut self, lblk: Lblk, at: usize, new: Lblk) -> u32 {
        let mut upper = self.entries_mut(lblk)[at..].to_vec();
        match self.places.get_mut(&lblk.0) {
            Some(place) if lblk.0 != 0 => place.len = at as u32,
            _ => self.root.truncate(at),
        }
        let key = std::mem::take(&mut upper[0].hash);
        self.put(new, upper.into_iter());
        key
    }

    /// Memory in use, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        let chunks: usize = self.chunks.first().map_or(0, Vec::capacity)
            + self.chunks.len().saturating_sub(1) * self.per_chunk() * self.room;
        let places = self.places.capacity() * size_of::<(u32, NodeSlot)>();
        (chunks + self.root.capacity()) * size_of::<DxEntry>() + places
    }

    fn entries_mut(&mut self, lblk: Lblk) -> &mut [DxEntry] {
        if lblk.0 == 0 {
            return &mut self.root;
        }
        self.whole(lblk).map_or(&mut [], |(all, len)| &mut all[..*len as usize])
    }

    /// A node below the root, with its spare room, and its number of entries.
    fn whole(&mut self, lblk: Lblk) -> Option<(&mut [DxEntry], &mut u32)> {
        let number = self.places.get(&lblk.0)?.number;
        let (chunk, at) = self.at(number);
        let NodeSlot { len, .. } = self.places.get_mut(&lblk.0)?;
        Some((&mut self.chunks[chunk][at..at + self.room], len))
    }

    /// The chunk of a node, and its offset there.
    #[inline]
    fn at(&self, number: u32) -> (usize, usize) {
        let per_chunk = self.per_chunk();
        (number as usize / per_chunk, number as usize % per_chunk * self.room)
    }

    fn per_chunk(&self) -> usize {
        (CHUNK_BYTES / size_of::<DxEntry>() / self.room.max(1)).max(1)
    }

    /// Allocates a node. Returns its number.
    fn make_room(&mut self) -> u32 {
        let per_chunk = self.per_chunk();
        if self.chunks.last().is_none_or(|last| last.len() == per_chunk * self.room) {
            let mut chunk = Vec::new();
            // With a single chunk, the directory may have few nodes in it.
            if !self.chunks.is_empty() {
                extant_buffer::make_room(&mut chunk, per_chunk * self.room);
            }
            self.chunks.push(chunk);
        }
        let (before, room) = (self.chunks.len() - 1, self.room);
        let last = &mut self.chunks[before];
        if last.capacity() - last.len() < room {
            // Doubles the size, up to a chunk.
            let more = last.len().clamp(room, (per_chunk * room - last.len()).max(room));
            let mut larger = Vec::new();
            extant_buffer::make_room(&mut larger, last.len() + more);
            larger.append(last);
            *last = larger;
        }
        last.resize(last.len() + self.room, DxEntry::default());
        (before * per_chunk + last.len() / self.room - 1) as u32
    }
}

/// A hash function for block numbers. It need not resist attacks: there is only one index block for hundreds
/// of leaves.
#[derive(Default)]
pub(super) struct Spread(u64);

impl std::hash::Hasher for Spread {
    fn write_u32(&mut self, number: u32) {
        let product = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte) ^ self.0 as u32);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn random() -> impl FnMut() -> u32 {
        let mut random = 7u64;
        move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 32) as u32
        }
    }

    /// Keys spread evenly, clustered, or all equal; with correct or arbitrary bounds.
    #[test]
    fn a_position_is_right_wherever_it_is_looked_for_first() {
        let mut next = random();
        for round in 0..3000u32 {
            let shift = [0, 12, 20, 31][(round % 4) as usize];
            let mut keys: Vec<u32> = (0..next() % 520).map(|_| next() >> shift).collect();
            if round % 5 == 0 {
                let heap = next();
                keys.iter_mut().step_by(2).for_each(|key| *key = heap | (*key & 0xFF));
            }
            keys.push(0);
            keys.sort_unstable();
            let entries: Vec<_> = keys.iter().map(|key| DxEntry { hash: *key, block: Lblk(0) }).collect();
            let node = CachedNode(&entries);
            for hash in [next(), next() >> shift, 0, u32::MAX, keys[keys.len() / 2]] {
                let expected = keys[1..].partition_point(|key| *key <= hash);
                for (low, high) in [(0, u32::MAX), (keys[0], hash), (hash, keys[0]), (next(), next())] {
                    assert_eq!(node.position(hash, low, high), expected, "{hash:x} in {keys:x?}");
                }
            }
        }
    }

    /// Nodes that are added, grow, are split, removed and moved; with few entries per block, and many.
    #[test]
    fn nodes_are_what_was_made_of_them() {
        for room in [3usize, 127, 1 << 17] {
            let mut next = random();
            let mut nodes = Nodes { room, ..Nodes::default() };
            let mut model: BTreeMap<u32, Vec<DxEntry>> = BTreeMap::new();
            for step in 0..3000u32 {
                let to = |number: u32| DxEntry { hash: 0, block: Lblk(number) };
                let lblk = next() % 20;
                let new = 20 + step;
                match (model.get_mut(&lblk), next() % 8) {
                    (None, _) => {
                        model.insert(lblk, vec![to(step)]);
                        nodes.put(Lblk(lblk), std::iter::once(to(step)));
                    }
                    (Some(entries), 0..=3) if entries.len() < room => {
                        let at = 1 + next() as usize % entries.len();
                        let entry = DxEntry { hash: next() & !1 | 2, block: Lblk(step) };
                        entries.insert(at, entry);
                        nodes.insert(Lblk(lblk), at, entry);
                    }
                    (Some(entries), 4) if entries.len() > 1 => {
                        let at = next() as usize % entries.len();
                        entries.remove(at);
                        entries[0].hash = 0;
                        nodes.remove(Lblk(lblk), at);
                    }
                    (Some(entries), 5) if entries.len() > 1 => {
                        let at = 1 + next() as usize % (entries.len() - 1);
                        let mut upper = entries.split_off(at);
                        assert_eq!(nodes.split(Lblk(lblk), at, Lblk(new)), upper[0].hash);
                        upper[0].hash = 0;
                        model.insert(new, upper);
                    }
                    (Some(entries), 6) => {
                        entries[0].block = Lblk(step);
                        nodes.set_child(Lblk(lblk), 0, Lblk(step));
                    }
                    (Some(_), _) => {
                        let taken = nodes.take(Lblk(lblk)).unwrap();
                        assert_eq!(model.remove(&lblk).as_ref(), Some(&taken));
                        if step % 2 == 0 {
                            nodes.put(Lblk(new), taken.iter().copied());
                            model.insert(new, taken);
                        }
                    }
                }
                assert_eq!(nodes.len(), model.len());
                for (lblk, entries) in &model {
                    assert_eq!(nodes.get(Lblk(*lblk)).unwrap().entries(), entries);
                }
                assert!(nodes.get(Lblk(lblk)).is_some() == model.contains_key(&lblk));
                if model.len() > 60 {
                    nodes.clear();
                    model.retain(|lblk, _| *lblk == 0);
                }
            }
            assert!(nodes.held_bytes() > 0);
        }
    }

    /// An entry that continues the hash of a removed entry becomes the first of that hash.
    #[test]
    fn an_entry_after_a_removed_one_continues_nothing() {
        for lblk in [Lblk(0), Lblk(4)] {
            let mut nodes = Nodes { room: 9, ..Nodes::default() };
            let keys = [0, 16, 17, 30];
            nodes.put(lblk, keys.map(|key| DxEntry { hash: key, block: Lblk(key) }).into_iter());
            nodes.remove(lblk, 1);
            let now = |nodes: &Nodes| -> Vec<u32> {
                nodes.get(lblk).unwrap().entries().iter().map(|entry| entry.hash).collect()
            };
            assert_eq!(now(&nodes), [0, 16, 30]);
            nodes.remove(lblk, 0);
            assert_eq!(now(&nodes), [0, 30]);
        }
    }
}
