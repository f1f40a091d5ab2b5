//! What a directory's changer remembers: decoded index blocks, and for leaves which names are where.
//!
//! ```text
//! nodes:  block -> keys [0, 0x4000, 0x9002, ..]  children [5, 1, 7, ..]       a probe reads no index block
//! slots:  block -> touched?, notes, a hole                                     16 bytes for each block of the directory
//! notes:  hashes and offsets of the names, used bytes, a hole                  a duplicate is looked for here: see `notes`
//! filters: hashes that no name has                                             or, where there is no room for notes, here
//! ```
//!
//! A leaf gets notes when it is touched a second time (making them hashes all of its names) or when a split made it (the
//! hashes are known then). Where there is no memory for notes, it gets a filter in the same way, a fifth as large. All of it can be
//! made again from the blocks: notes and filters are not made beyond their limits; beyond the limit of all notes are dropped, and then
//! nodes.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;

use base::Lblk;
use ondisk::dirent::edit::Hole;
use ondisk::htree::{DxEntries, DxEntry};

use super::Ahead;
use super::ahead::Told;
use super::filters::Filters;
use super::index::Path;
use super::leaf::Mapped;
use super::notes::Notes;
use crate::order::Hasher;

/// Inserts in which distinct leaves are counted.
const WINDOW: u64 = 10_000;
/// Blocks that a directory may be longer than twice what was seen of it: an index may name any.
const FAR: usize = 1 << 20;

/// Keys that are passed at first by who looks for one near a guess.
const NEAR: usize = 8;

/// Memory that a cache takes by default.
const LIMIT_BYTES: usize = 64 << 20;

/// A directory's memory for its changers: see [`super::Editor::new`].
pub struct DirCache {
    limit_bytes: usize,
    held_bytes: usize,
    /// Of the nodes the one that every operation asks for.
    root: Option<Node>,
    nodes: HashMap<u32, Node, BuildHasherDefault<Spread>>,
    /// Levels of nodes below the root; known with the root.
    pub(super) levels: u8,
    hasher: Hasher,
    slots: Vec<Slot>,
    /// Of a block far behind all that were seen before, which only damage leads to: nothing is remembered of it.
    spare: Slot,
    notes: Vec<Notes>,
    free_notes: Vec<u32>,
    filters: Filters,
    filter_bytes_max: usize,
    /// Used for splits, so that they allocate little.
    pub(super) map: Vec<Mapped>,
    pub(super) source: Vec<u8>,
    /// Names that will be asked for.
    pub(super) told: Told,
    /// Changes of what is here of the index.
    version: u64,
    pub(super) stats: Stats,
}

/// What a leaf's number leads to.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// 0: never touched; 1: touched; else the place of its notes and 2.
    notes: u32,
    /// The window in which an insert touched it last, counted from 1.
    window: u32,
    room: Known,
    /// Its filter has all its names.
    has_filter: bool,
    /// And names that are gone.
    has_gone: bool,
}

/// What a leaf that was looked at gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deserved {
    Nothing,
    Notes,
    Filter,
}

/// What is known of the room in a leaf, in words of 4 bytes. Where there are notes they know better.
#[derive(Clone, Copy, Default)]
struct Known {
    hole_at: u16,
    hole_own: u16,
    hole_len: u16,
    /// Of used entries; 0 when nothing is known.
    live: u16,
}

/// A decoded index block. `keys[0]` is 0.
pub(super) struct Node {
    pub(super) keys: Vec<u32>,
    pub(super) kids: Vec<u32>,
}

impl Node {
    pub(super) fn of(entries: DxEntries<'_>) -> Self {
        let (keys, kids) = entries.iter().map(|entry| (entry.hash, entry.block.0)).unzip();
        Self { keys, kids }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The last entry whose hash is not above this one. Found soon where the keys are spread evenly between `low` and `high`, as hashes
    /// are: what is looked at lies in one or two lines of the processor's cache, where halves of halves lie all over the node.
    pub(super) fn position(&self, hash: u32, low: u32, high: u32) -> usize {
        let keys = &self.keys[1..];
        let guess = self.guess(hash, low, high);
        // All before `from` are not above the hash, all from `to` on are.
        let (mut width, mut from, mut to) = (NEAR, guess, guess);
        while from > 0 && keys[from - 1] > hash {
            (to, from) = (from - 1, from.saturating_sub(width));
            width *= 2;
        }
        width = NEAR;
        while to < keys.len() && keys[to] <= hash {
            (from, to) = (to + 1, (to + width).min(keys.len()));
            width *= 2;
        }
        from + keys[from..to].partition_point(|key| *key <= hash)
    }

    /// Asks the processor for what [`position`](Self::position) will look at, and for what it finds there.
    pub(super) fn ask_for(&self, hash: u32, low: u32, high: u32) {
        let guess = self.guess(hash, low, high);
        for near in [guess.saturating_sub(NEAR), (guess + NEAR).min(self.len() - 1)] {
            self.keys.get(near).into_iter().for_each(buffer::ask_for_start);
            self.kids.get(near).into_iter().for_each(buffer::ask_for_start);
        }
    }

    /// Where the key of a hash is looked for first.
    fn guess(&self, hash: u32, low: u32, high: u32) -> usize {
        let len = self.keys.len() as u64 - 1;
        let (above, span) = (u64::from(hash.saturating_sub(low)), u64::from(high.saturating_sub(low)) + 1);
        (above * len / span).min(len) as usize
    }

    pub(super) fn entries(&self, from: usize) -> impl Iterator<Item = DxEntry> + '_ {
        let pairs = self.keys.iter().zip(&self.kids).skip(from);
        pairs.map(|(hash, block)| DxEntry { hash: *hash, block: Lblk(*block) })
    }

    pub(super) fn insert(&mut self, at: usize, key: u32, kid: u32) {
        self.keys.insert(at, key);
        self.kids.insert(at, kid);
    }

    /// Takes an entry out. The one behind it no more continues the hash, if the one taken out had begun it.
    pub(super) fn remove(&mut self, at: usize) {
        let key = self.keys.remove(at);
        self.kids.remove(at);
        if let Some(next) = self.keys.get_mut(at) {
            if at == 0 {
                *next = 0;
            } else if *next == key | 1 {
                *next = key;
            }
        }
    }

    /// Cuts the entries from `at` on off, as a node of their own, and its first key.
    pub(super) fn split_off(&mut self, at: usize) -> (u32, Node) {
        let mut upper = Node { keys: self.keys.split_off(at), kids: self.kids.split_off(at) };
        (std::mem::take(&mut upper.keys[0]), upper)
    }

    fn bytes(&self) -> usize {
        64 + 4 * (self.keys.capacity() + self.kids.capacity())
    }
}

impl Default for DirCache {
    fn default() -> Self {
        Self::new(LIMIT_BYTES)
    }
}

impl DirCache {
    /// An empty cache that takes about `limit_bytes` at most, and 16 bytes for each block of the directory.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            held_bytes: 0,
            root: None,
            nodes: HashMap::default(),
            levels: 0,
            hasher: Hasher::none(),
            slots: Vec::new(),
            spare: Slot::default(),
            notes: Vec::new(),
            free_notes: Vec::new(),
            filters: Filters::default(),
            filter_bytes_max: 0,
            map: Vec::new(),
            source: Vec::new(),
            told: Told::default(),
            version: 0,
            stats: Stats::default(),
        }
    }

    /// With so many bytes more, for filters of leaves.
    #[must_use]
    pub fn with_filters(mut self, bytes: usize) -> Self {
        self.filter_bytes_max = bytes;
        self.filters = Filters::new(bytes);
        self
    }

    /// Forgets the directory, but not the counts. Always right, and to be called when blocks changed by another way.
    pub fn clear(&mut self) {
        let empty = Self::new(self.limit_bytes).with_filters(self.filter_bytes_max);
        *self = Self { stats: self.stats, version: self.version + 1, ..empty };
    }

    /// What was done since the cache was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes in use, about.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<Slot>();
        let others = self.source.capacity() + self.told.held_bytes;
        self.held_bytes + self.filters.held_bytes() + slots + others
    }

    fn n_nodes(&self) -> usize {
        self.nodes.len() + usize::from(self.root.is_some())
    }

    pub(super) fn node(&self, lblk: Lblk) -> Option<&Node> {
        if lblk.0 == 0 { self.root.as_ref() } else { self.nodes.get(&lblk.0) }
    }

    /// Makes the hashes of this directory's names; loaded with the root.
    pub(super) fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    pub(super) fn set_hasher(&mut self, hasher: Hasher) {
        self.told.clear();
        self.hasher = hasher;
    }

    /// Another number after each change of what is here of the index: nodes that come, go, or may have changed.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The hash of a name that was told, and the way to its leaf, if the index is as it was.
    pub(super) fn told(&mut self, name: &[u8]) -> Option<(u32, Option<Path>)> {
        self.told.find(name, self.version)
    }

    pub(super) fn node_mut(&mut self, lblk: Lblk) -> Option<&mut Node> {
        self.version += 1;
        if lblk.0 == 0 { self.root.as_mut() } else { self.nodes.get_mut(&lblk.0) }
    }

    pub(super) fn set_node(&mut self, lblk: Lblk, node: Node) {
        self.version += 1;
        self.held_bytes += node.bytes();
        let before = if lblk.0 == 0 { self.root.replace(node) } else { self.nodes.insert(lblk.0, node) };
        if let Some(before) = before {
            self.held_bytes = self.held_bytes.saturating_sub(before.bytes());
        }
    }

    pub(super) fn take_node(&mut self, lblk: Lblk) -> Option<Node> {
        self.version += 1;
        let node = if lblk.0 == 0 { self.root.take() } else { self.nodes.remove(&lblk.0) }?;
        self.held_bytes = self.held_bytes.saturating_sub(node.bytes());
        Some(node)
    }

    /// Drops what is above the limit: called between operations.
    pub(super) fn trim(&mut self) {
        if self.held_bytes > self.limit_bytes {
            self.drop_some();
        }
    }

    /// Notes stop at half of the limit, so the nodes are too much. They lead to all leaves, and a leaf may do without notes: those go
    /// first, and nodes only when there is nothing else. Filters have memory of their own.
    #[cold]
    fn drop_some(&mut self) {
        if self.notes.is_empty() {
            self.version += 1;
            self.nodes.clear();
            self.held_bytes = self.root.as_ref().map_or(0, Node::bytes);
            return;
        }
        for slot in &mut self.slots {
            slot.notes = slot.notes.min(1);
        }
        self.held_bytes = self.root.iter().chain(self.nodes.values()).map(Node::bytes).sum();
        (self.notes, self.free_notes) = (Vec::new(), Vec::new());
    }

    /// Notes an insert into a leaf.
    pub(super) fn touch(&mut self, lblk: Lblk) {
        let window = (self.stats.inserts / WINDOW + 1) as u32;
        let slot = self.slot(lblk);
        if std::mem::replace(&mut slot.window, window) == window {
            return;
        }
        if self.stats.window != window {
            self.stats.window = window;
            self.stats.leaves_in_last_window = std::mem::take(&mut self.stats.leaves_in_window);
        }
        self.stats.leaves_in_window += 1;
    }

    fn slot(&mut self, lblk: Lblk) -> &mut Slot {
        let at = lblk.0 as usize;
        if at >= self.slots.len() {
            if at > 2 * self.slots.len() + FAR {
                self.spare = Slot::default();
                return &mut self.spare;
            }
            let more = at + 1 - self.slots.len();
            buffer::make_room(&mut self.slots, more);
            self.slots.resize(at + 1, Slot::default());
        }
        &mut self.slots[at]
    }

    /// The notes of a leaf, where there are any.
    pub(super) fn notes(&mut self, lblk: Lblk) -> Option<&mut Notes> {
        let place = self.slots.get(lblk.0 as usize)?.notes.checked_sub(2)?;
        self.notes.get_mut(place as usize)
    }

    /// Asks the processor for what a leaf's number leads to.
    pub(super) fn ask_for(&self, lblk: Lblk) {
        self.slots.get(lblk.0 as usize).into_iter().for_each(buffer::ask_for_start);
    }

    /// And for the part of its filter, if it has one, that says whether it has names of this hash.
    pub(super) fn ask_for_filter(&self, lblk: Lblk, hash: u32) {
        self.filters.ask_for(lblk, hash);
    }

    /// As [`ask_for`](Self::ask_for), a moment later, for the leaf's notes. What else it takes to put a name there, if that is known.
    pub(super) fn ask_for_notes(&self, lblk: Lblk) -> Option<Ahead> {
        let slot = self.slots.get(lblk.0 as usize)?;
        let notes = slot.notes.checked_sub(2).and_then(|place| self.notes.get(place as usize));
        notes.into_iter().for_each(buffer::ask_for_start);
        let is_known = slot.room.live != 0 && (notes.is_some() || slot.has_filter);
        is_known.then(|| match notes {
            Some(_) => Ahead::Bytes(usize::from(slot.room.hole_at) * 4),
            None => Ahead::Slot,
        })
    }

    /// The last step after [`ask_for_notes`](Self::ask_for_notes): where the notes have this hash.
    pub(super) fn ask_for_noted(&self, lblk: Lblk, hash: u32) {
        let slot = self.slots.get(lblk.0 as usize);
        let notes = slot.and_then(|slot| self.notes.get(slot.notes.checked_sub(2)? as usize));
        notes.into_iter().for_each(|notes| notes.ask_for(hash));
    }

    /// What should this leaf without notes get? Remembers that it was asked.
    pub(super) fn deserved(&mut self, lblk: Lblk) -> Deserved {
        let has_room = self.held_bytes < self.limit_bytes / 2;
        let slot = self.slot(lblk);
        match () {
            () if slot.notes == 0 => {
                slot.notes = 1;
                Deserved::Nothing
            }
            () if has_room => Deserved::Notes,
            () if slot.has_filter || !self.filters.has_room(lblk) => Deserved::Nothing,
            () => Deserved::Filter,
        }
    }

    /// May a leaf without notes have a name of this hash, as far as is known without a look at it?
    pub(super) fn may_hold(&self, lblk: Lblk, hash: u32) -> bool {
        let has_filter = self.slots.get(lblk.0 as usize).is_some_and(|slot| slot.has_filter);
        !has_filter || self.filters.may_hold(lblk, hash)
    }

    /// Makes the filter of a leaf of so many bytes, if there is room: of the hashes of all its names.
    pub(super) fn make_filter(&mut self, lblk: Lblk, leaf_bytes: usize, hashes: impl Iterator<Item = u32>) {
        let has_filter = self.filters.fill(lblk, leaf_bytes, hashes);
        let slot = self.slot(lblk);
        (slot.has_filter, slot.has_gone) = (has_filter, false);
    }

    /// The filter of a leaf believed in a name that is not there. If it still has names that are gone the leaf gets another; else it
    /// was chance.
    pub(super) fn filter_failed(&mut self, lblk: Lblk) {
        let slot = self.slot(lblk);
        slot.has_filter &= !slot.has_gone;
    }

    /// Gives a leaf notes, if there is room for any: to be filled at once. `names`: how many they will be.
    /// `false`: there is none.
    pub(super) fn make_notes(&mut self, lblk: Lblk, names: usize, fill: impl FnOnce(&mut Notes)) -> bool {
        let place = match self.slot(lblk).notes.checked_sub(2) {
            Some(place) => place,
            None if self.held_bytes >= self.limit_bytes / 2 => return false,
            None => match self.free_notes.pop() {
                Some(place) => place,
                None => {
                    self.notes.push(Notes::default());
                    self.notes.len() as u32 - 1
                }
            },
        };
        let slot = self.slot(lblk);
        (slot.notes, slot.has_filter) = (place + 2, false);
        let notes = &mut self.notes[place as usize];
        let before = notes.bytes();
        if !notes.is_reserved() {
            // A leaf that was cut has half of its names, and gets as many again.
            notes.reserve(names * 2);
        }
        fill(notes);
        self.held_bytes = (self.held_bytes + notes.bytes()).saturating_sub(before);
        true
    }

    /// The hole in a leaf and the bytes that its entries need, if that is known.
    pub(super) fn room(&self, lblk: Lblk) -> Option<(Hole, usize)> {
        let Known { hole_at, hole_own, hole_len, live } = self.slots.get(lblk.0 as usize)?.room;
        let [at, own, len, live] = [hole_at, hole_own, hole_len, live].map(|words| usize::from(words) * 4);
        (live != 0).then_some((Hole { at, own, len }, live))
    }

    pub(super) fn set_room(&mut self, lblk: Lblk, hole: Hole, live_bytes: usize) {
        // A block of 64 KiB has 16,384 words.
        let word = |bytes: usize| (bytes / 4) as u16;
        let Hole { at, own, len } = hole;
        self.slot(lblk).room =
            Known { hole_at: word(at), hole_own: word(own), hole_len: word(len), live: word(live_bytes) };
    }

    /// Something was taken out of a leaf: its room is elsewhere.
    pub(super) fn forget_room(&mut self, lblk: Lblk) {
        if let Some(slot) = self.slots.get_mut(lblk.0 as usize) {
            (slot.room, slot.has_gone) = (Known::default(), true);
        }
    }

    /// Notes that a name was put into the room of a leaf, and the room that is left.
    pub(super) fn note_insert(&mut self, lblk: Lblk, hash: u32, len: usize, room: Hole) {
        if let Some((_, live)) = self.room(lblk) {
            self.set_room(lblk, room, live + len);
        }
        let Some(notes) = self.notes(lblk) else {
            if self.slot(lblk).has_filter {
                self.filters.add(lblk, hash);
            }
            return;
        };
        let before = notes.bytes();
        notes.push(hash, room.at);
        notes.live_bytes += len as u32;
        notes.set_hole(room);
        let more = notes.bytes() - before;
        self.held_bytes += more;
    }

    /// The block is a leaf no more.
    pub(super) fn drop_notes(&mut self, lblk: Lblk) {
        let Some(slot) = self.slots.get_mut(lblk.0 as usize) else { return };
        if let Some(place) = std::mem::take(slot).notes.checked_sub(2) {
            let bytes = self.notes[place as usize].bytes();
            self.notes[place as usize] = Notes::default();
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
            self.free_notes.push(place);
        }
    }

    /// The leaf has another number now.
    pub(super) fn move_notes(&mut self, from: Lblk, to: Lblk) {
        self.drop_notes(to);
        let slot = self.slots.get_mut(from.0 as usize).map(std::mem::take).unwrap_or_default();
        *self.slot(to) = Slot { has_filter: false, ..slot };
    }
}

impl fmt::Debug for DirCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notes = self.notes.len() - self.free_notes.len();
        write!(f, "DirCache: {} nodes, {notes} leaves, {} bytes", self.n_nodes(), self.held_bytes())
    }
}

/// What changers of a directory did since its cache was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Names inserted.
    pub inserts: u64,
    /// Names removed.
    pub removes: u64,
    /// Leaves and linear blocks asked for, to be looked at.
    pub leaf_reads: u64,
    /// Index blocks asked for.
    pub index_reads: u64,
    /// Leaves split.
    pub splits: u64,
    /// Leaves packed: their room lay scattered.
    pub packed: u64,
    /// Nodes of the index split.
    pub index_splits: u64,
    /// Levels added to the index.
    pub levels_added: u64,
    /// Levels taken away again.
    pub levels_removed: u64,
    /// Times that the directory got an index.
    pub indexed: u64,
    /// Times that the index went, with the last name.
    pub unindexed: u64,
    /// Blocks given back.
    pub blocks_freed: u64,
    /// Leaves that inserts touched since the window of 10,000 inserts began.
    pub leaves_in_window: u64,
    /// Leaves that the inserts of the last whole window touched.
    pub leaves_in_last_window: u64,
    window: u32,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("inserts", self.inserts),
            ("removes", self.removes),
            ("leaf reads", self.leaf_reads),
            ("index reads", self.index_reads),
            ("leaf splits", self.splits),
            ("leaves packed", self.packed),
            ("index splits", self.index_splits),
            ("levels added", self.levels_added),
            ("levels removed", self.levels_removed),
            ("blocks freed", self.blocks_freed),
            ("leaves touched by 10,000 inserts", self.leaves_in_last_window.max(self.leaves_in_window)),
        ];
        writeln!(f, "directory changes")?;
        rows.into_iter().try_for_each(|(what, count)| writeln!(f, "  {what:<33} {count:>12}"))
    }
}

/// Spreads block numbers over a table. Who chooses numbers of index blocks gains nothing: there is one for hundreds of leaves.
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
    use super::Node;

    /// Keys spread evenly, in heaps, or all alike; between bounds that are right, or any.
    #[test]
    fn a_position_is_right_wherever_it_is_looked_for_first() {
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 32) as u32
        };
        for round in 0..3000u32 {
            let shift = [0, 12, 20, 31][(round % 4) as usize];
            let mut keys: Vec<u32> = (0..next() % 520).map(|_| next() >> shift).collect();
            if round % 5 == 0 {
                let heap = next();
                keys.iter_mut().step_by(2).for_each(|key| *key = heap | (*key & 0xFF));
            }
            keys.push(0);
            keys.sort_unstable();
            let node = Node { kids: vec![0; keys.len()], keys };
            for hash in [next(), next() >> shift, 0, u32::MAX, node.keys[node.keys.len() / 2]] {
                let expected = node.keys[1..].partition_point(|key| *key <= hash);
                for (low, high) in
                    [(0, u32::MAX), (node.keys[0], hash), (hash, node.keys[0]), (next(), next())]
                {
                    assert_eq!(node.position(hash, low, high), expected, "{hash:x} in {:x?}", node.keys);
                }
            }
        }
    }
}
