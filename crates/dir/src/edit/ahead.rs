//! Hints: names that are looked up, created or removed next.
//!
//! ```text
//! one name after the other     hash  index....  leaf's notes....  leaf's bytes....  change | hash  index....
//! 16 hinted before             16 hashes, 16 index...., 16 notes...., 16 bytes....  | change change change change ..
//!                                         '--- waited for together ---'
//! and 16 more before those     16 hashes, 16 index.... of these, bytes of those     | change change change change .. of those
//! ```
//!
//! In a directory of millions of names nothing that an operation reads is in the CPU caches, and each address
//! depends on the one before. Cache misses overlap if they are all issued first, and cost nothing if they
//! were issued long before. So a caller that hints names while earlier hinted ones are pending gets the first
//! half of the prefetches for the new ones done, and the second half for the earlier ones.
//!
//! Nothing is read from the device here and nothing is changed: what is not in memory is passed over. What
//! was found on the way (hashes, and leaves as long as no other names belong there) is remembered for the
//! operations, which ask in the same order.

use extant_base::Lblk;
use extant_ondisk::hash::NameHash;

use super::nodes::Node;
use super::way::{Path, Way};
use super::{Editor, is_name};

/// The most names of one hint: more would evict what the first ones need.
pub const AHEAD_MAX: usize = 16;

/// The most pending names that are remembered: of more, the latest.
const REMEMBERED_MAX: usize = 2 * AHEAD_MAX;

/// Hinted names, in the order in which they will be used.
#[derive(Default)]
pub(super) struct Told {
    /// Those from `next` to `len` are expected, this one first; the room of the others is used again.
    names: Vec<ToldName>,
    next: usize,
    len: usize,
    /// Where those begin whose leaves were not prefetched.
    new: usize,
    /// Memory that they take.
    pub(super) held_bytes: usize,
}

/// One of them.
#[derive(Default)]
struct ToldName {
    name: Vec<u8>,
    hash: NameHash,
    /// The way to its leaf, as long as it is right.
    way: Option<Way>,
}

/// What is known of a name whose operation comes now.
pub(super) struct Expected {
    pub(super) hash: NameHash,
    /// The way to its leaf, if that is right.
    pub(super) way: Option<Way>,
    /// Everything on the lookup path and in the leaf was prefetched.
    pub(super) is_asked_for: bool,
}

/// On the way to a name's leaf: in one of the lowest nodes, if all up to there are in memory.
#[derive(Clone, Copy)]
struct OnTheWay<'a> {
    path: Path,
    node: Option<Node<'a>>,
}

impl Told {
    pub(super) fn clear(&mut self) {
        (self.next, self.len, self.new) = (0, 0, 0);
    }

    /// A name, if it is one of these.
    pub(super) fn find(&mut self, name: &[u8]) -> Option<Expected> {
        let told = &self.names[self.next..self.len];
        // Operations that others did on some of them in between are passed over.
        let at = self.next + told.iter().position(|told| told.name == name)?;
        self.next = at + 1;
        let found = &self.names[at];
        Some(Expected { hash: found.hash, way: found.way, is_asked_for: at < self.new })
    }

    /// Nodes changed, or came: names may belong elsewhere.
    pub(super) fn forget_ways(&mut self) {
        self.names[self.next..self.len].iter_mut().for_each(|told| told.way = None);
    }

    /// Some names of this leaf belong elsewhere.
    pub(super) fn forget_way_to(&mut self, leaf: Lblk) {
        let there = |told: &&mut ToldName| told.way.is_some_and(|way| way.leaf == leaf);
        self.names[self.next..self.len].iter_mut().filter(there).for_each(|told| told.way = None);
    }

    /// Forgets those that are done, and of the others the first ones if there are too many for so many more.
    fn make_room(&mut self, more: usize) {
        let done = self.next.max((self.len + more).saturating_sub(REMEMBERED_MAX)).min(self.len);
        self.names[..self.len].rotate_left(done);
        (self.next, self.len, self.new) = (0, self.len - done, self.new.saturating_sub(done));
    }

    fn push(&mut self, name: &[u8], hash: NameHash) {
        if self.len == self.names.len() {
            self.names.push(ToldName::default());
        }
        let next = &mut self.names[self.len];
        next.name.clear();
        next.name.extend_from_slice(name);
        (next.hash, next.way) = (hash, None);
        self.len += 1;
    }
}

impl Editor<'_> {
    /// Prefetches what operations on these names will read: at most [`AHEAD_MAX`] (more are left out), which
    /// come next, or after the names hinted before, if these are pending. Best effort, and of no use in small
    /// directories.
    pub fn ask_ahead_of<'n>(&mut self, names: impl IntoIterator<Item = &'n [u8]>) {
        let mut told = std::mem::take(&mut self.cache.told);
        if self.is_indexed && self.cache.node(Lblk(0)).is_some() {
            self.tell(&mut told, names);
        } else {
            told.clear();
        }
        self.cache.told = told;
    }

    /// From the lowest nodes on step by step for all of them together: what one waits for in a step has
    /// nothing to do with the others.
    fn tell<'n>(&self, told: &mut Told, names: impl IntoIterator<Item = &'n [u8]>) {
        told.make_room(AHEAD_MAX);
        let before = told.len;
        let mut begun = [OnTheWay { path: Path::START, node: None }; AHEAD_MAX];
        for (begun, name) in begun.iter_mut().zip(names.into_iter().filter(|name| is_name(name))) {
            let hash = self.hasher().hash(name);
            told.push(name, hash);
            *begun = self.begin_way(hash.hash);
        }
        // The lines of earlier hints have arrived, so there is no wait; meanwhile those of this one are
        // fetched.
        self.ask_for_leaves(&told.names[told.new..before]);
        let names = &mut told.names[before..told.len];
        for (told, begun) in names.iter_mut().zip(begun) {
            told.way = Self::end_way(begun, told.hash.hash);
        }
        let ways = || names.iter().filter_map(|told| Some((told.way?, told.hash)));
        ways().for_each(|(way, _)| self.cache.prefetch(way.leaf));
        ways().for_each(|(way, hash)| self.cache.ask_for_filter(way.leaf, hash));
        told.new = before;
        if before == 0 {
            self.ask_for_leaves(names);
            told.new = told.len;
        }
        let room = |told: &ToldName| size_of::<ToldName>() + told.name.capacity();
        told.held_bytes = told.names.iter().map(room).sum();
    }

    /// Goes down to one of the lowest nodes, which are many, and asks for what is looked at there.
    fn begin_way(&self, hash: u32) -> OnTheWay<'_> {
        let mut path = Path::START;
        let mut node = self.cache.node(path.leaf());
        while let Some(above) = node
            && path.len() < usize::from(self.cache.levels)
        {
            path.go_on(above, Some(hash));
            // A damaged index with a cycle is found, and reported, by the operation that follows it.
            node = if path.is_circle() { None } else { self.cache.node(path.leaf()) };
        }
        node.into_iter().for_each(|node| path.prefetch(node, hash));
        OnTheWay { path, node }
    }

    fn end_way(OnTheWay { mut path, node }: OnTheWay<'_>, hash: u32) -> Option<Way> {
        path.go_on(node?, Some(hash));
        (!path.is_circle()).then(|| path.way())
    }

    /// Asks for what the memory of leaves leads to.
    fn ask_for_leaves(&self, names: &[ToldName]) {
        let ways = || names.iter().filter_map(|told| Some((told.way?, told.hash)));
        for (way, _) in ways() {
            if let Some((at, what)) = self.cache.prefetch_notes(way.leaf) {
                self.blocks.ask_ahead(at, what);
            }
        }
        ways().for_each(|(way, hash)| self.cache.ask_for_noted(way.leaf, hash.hash));
    }
}
