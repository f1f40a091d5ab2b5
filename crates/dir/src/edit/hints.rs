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
//! was found on the span (hashes, and leaves as long as no other names belong there) is remembered for the
//! operations, which ask in the same order.

use extant_base::Lblk;
use extant_ondisk::hash::NameHash;

use super::nodes::Node;
use super::path::{LeafSpan, Path};
use super::{Editor, is_name};

/// The most names of one hint: more would evict what the first ones need.
pub const HINTS_MAX: usize = 16;

/// The most pending names that are remembered: of more, the latest.
const REMEMBERED_MAX: usize = 2 * HINTS_MAX;

/// Hinted names, in the order in which they will be used.
#[derive(Default)]
pub(super) struct Hints {
    /// Those from `next` to `len` are expected, this one first; the room of the others is used again.
    names: Vec<HintedName>,
    next: usize,
    len: usize,
    /// Where those begin whose leaves were not prefetched.
    new: usize,
    /// Memory that they take.
    pub(super) held_bytes: usize,
}

/// One of them.
#[derive(Default)]
struct HintedName {
    name: Vec<u8>,
    hash: NameHash,
    /// The span to its leaf, as long as it is right.
    span: Option<LeafSpan>,
}

/// What is known of a name whose operation comes now.
pub(super) struct Expected {
    pub(super) hash: NameHash,
    /// The span to its leaf, if that is right.
    pub(super) span: Option<LeafSpan>,
    /// Everything on the lookup path and in the leaf was prefetched.
    pub(super) is_prefetched: bool,
}

/// On the span to a name's leaf: in one of the lowest nodes, if all up to there are in memory.
#[derive(Clone, Copy)]
struct OnTheWay<'a> {
    path: Path,
    node: Option<Node<'a>>,
}

impl Hints {
    pub(super) fn clear(&mut self) {
        (self.next, self.len, self.new) = (0, 0, 0);
    }

    /// A name, if it is one of these.
    pub(super) fn find(&mut self, name: &[u8]) -> Option<Expected> {
        let hints = &self.names[self.next..self.len];
        // Operations that others did on some of them in between are passed over.
        let at = self.next + hints.iter().position(|hints| hints.name == name)?;
        self.next = at + 1;
        let found = &self.names[at];
        Some(Expected { hash: found.hash, span: found.span, is_prefetched: at < self.new })
    }

    /// Nodes changed, or came: names may belong elsewhere.
    pub(super) fn forget_ways(&mut self) {
        self.names[self.next..self.len].iter_mut().for_each(|hints| hints.span = None);
    }

    /// Some names of this leaf belong elsewhere.
    pub(super) fn forget_way_to(&mut self, leaf: Lblk) {
        let there = |hints: &&mut HintedName| hints.span.is_some_and(|span| span.leaf == leaf);
        self.names[self.next..self.len].iter_mut().filter(there).for_each(|hints| hints.span = None);
    }

    /// Forgets those that are done, and of the others the first ones if there are too many for so many more.
    fn make_room(&mut self, more: usize) {
        let done = self.next.max((self.len + more).saturating_sub(REMEMBERED_MAX)).min(self.len);
        self.names[..self.len].rotate_left(done);
        (self.next, self.len, self.new) = (0, self.len - done, self.new.saturating_sub(done));
    }

    fn push(&mut self, name: &[u8], hash: NameHash) {
        if self.len == self.names.len() {
            self.names.push(HintedName::default());
        }
        let next = &mut self.names[self.len];
        next.name.clear();
        next.name.extend_from_slice(name);
        (next.hash, next.span) = (hash, None);
        self.len += 1;
    }
}

impl Editor<'_> {
    /// Prefetches what operations on these names will read: at most [`HINTS_MAX`] (more are left out), which
    /// come next, or after the names hinted before, if these are pending. Best effort, and of no use in small
    /// directories.
    pub fn prefetch_names<'n>(&mut self, names: impl IntoIterator<Item = &'n [u8]>) {
        let mut hints = std::mem::take(&mut self.cache.hints);
        if self.is_indexed && self.cache.node(Lblk(0)).is_some() {
            self.tell(&mut hints, names);
        } else {
            hints.clear();
        }
        self.cache.hints = hints;
    }

    /// From the lowest nodes on step by step for all of them together: what one waits for in a step has
    /// nothing to do with the others.
    fn tell<'n>(&self, hints: &mut Hints, names: impl IntoIterator<Item = &'n [u8]>) {
        hints.make_room(HINTS_MAX);
        let before = hints.len;
        let mut begun = [OnTheWay { path: Path::START, node: None }; HINTS_MAX];
        for (begun, name) in begun.iter_mut().zip(names.into_iter().filter(|name| is_name(name))) {
            let hash = self.hasher().hash(name);
            hints.push(name, hash);
            *begun = self.begin_way(hash.hash);
        }
        // The lines of earlier hints have arrived, so there is no wait; meanwhile those of this one are
        // fetched.
        self.prefetch_leaves(&hints.names[hints.new..before]);
        let names = &mut hints.names[before..hints.len];
        for (hints, begun) in names.iter_mut().zip(begun) {
            hints.span = Self::end_span(begun, hints.hash.hash);
        }
        let spans = || names.iter().filter_map(|hints| Some((hints.span?, hints.hash)));
        spans().for_each(|(span, _)| self.cache.prefetch(span.leaf));
        spans().for_each(|(span, hash)| self.cache.prefetch_filter(span.leaf, hash));
        hints.new = before;
        if before == 0 {
            self.prefetch_leaves(names);
            hints.new = hints.len;
        }
        let room = |hints: &HintedName| size_of::<HintedName>() + hints.name.capacity();
        hints.held_bytes = hints.names.iter().map(room).sum();
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

    fn end_span(OnTheWay { mut path, node }: OnTheWay<'_>, hash: u32) -> Option<LeafSpan> {
        path.go_on(node?, Some(hash));
        (!path.is_circle()).then(|| path.span())
    }

    /// Asks for what the memory of leaves leads to.
    fn prefetch_leaves(&self, names: &[HintedName]) {
        let spans = || names.iter().filter_map(|hints| Some((hints.span?, hints.hash)));
        for (span, _) in spans() {
            if let Some((at, what)) = self.cache.prefetch_notes(span.leaf) {
                self.blocks.prefetch_leaf(at, what);
            }
        }
        spans().for_each(|(span, hash)| self.cache.prefetch_bucket(span.leaf, hash.hash));
    }
}
