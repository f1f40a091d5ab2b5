//! Prefetching for names before they are looked up, inserted or removed.
//!
//! ```text
//! one name after another  hash  index....  leaf's notes....  leaf's bytes....  change | hash  index....
//! 16 names prefetched     16 hashes, 16 index...., 16 notes...., 16 bytes.... | change change change ..
//!                                      '--- misses overlap ---'
//! with 16 more before     16 hashes, 16 index.... of these, bytes of those    | change change .. of those
//! ```
//!
//! In a directory of millions of names, no memory that an operation reads is in the CPU caches, and each part
//! leads to the next. Cache misses overlap if all lines are prefetched first, and a line that was prefetched
//! long before causes no wait at all. So a call with new names, before the operations on the previous names
//! are done, does the first half of the work for the new names, and the second half for the previous ones.
//!
//! Nothing is read from the device here and nothing is changed: parts that are not in memory are skipped. The
//! results (hashes, and leaves while no other names belong there) are kept for the operations, which come in
//! the same order.

use extant_base::Lblk;
use extant_ondisk::hash::NameHash;

use super::leaf_cache::LeafCache;
use super::nodes::{CachedNode, Nodes};
use super::path::{LeafSpan, Path};
use super::{DirEdit, is_name};
use crate::order::Hasher;

/// Names to prefetch together at most: more would evict the lines of the first ones.
pub const HINTS_MAX: usize = 16;

/// Names kept for operations that have not come yet, at most; older names are dropped.
const REMEMBERED_MAX: usize = 2 * HINTS_MAX;

/// Prefetched names, in the order in which their operations are expected.
#[derive(Default)]
pub(super) struct Hints {
    /// Names from `next` to `len` are pending, in order; the buffers of the others are reused.
    names: Vec<HintedName>,
    next: usize,
    len: usize,
    /// The first name for which leaves are not prefetched yet.
    new: usize,
    /// Memory in use, in bytes.
    pub(super) held_bytes: usize,
}

/// A prefetched name.
#[derive(Default)]
struct HintedName {
    name: Vec<u8>,
    hash: NameHash,
    /// The [`LeafSpan`] to its leaf, while it is valid.
    span: Option<LeafSpan>,
}

/// The data of a prefetched name, when its operation comes.
pub(super) struct Expected {
    pub(super) hash: NameHash,
    /// The [`LeafSpan`] to its leaf, if valid.
    pub(super) span: Option<LeafSpan>,
    /// The whole path and the leaf's data are prefetched.
    pub(super) is_prefetched: bool,
}

/// A partial path to a name's leaf: down to one of the lowest nodes, if all nodes up to there are in memory.
#[derive(Clone, Copy)]
struct PartialPath<'a> {
    path: Path,
    node: Option<CachedNode<'a>>,
}

impl Hints {
    pub(super) fn clear(&mut self) {
        (self.next, self.len, self.new) = (0, 0, 0);
    }

    /// Finds a pending name.
    pub(super) fn find(&mut self, name: &[u8]) -> Option<Expected> {
        let hints = &self.names[self.next..self.len];
        // Names before it are skipped: other threads have handled them.
        let at = self.next + hints.iter().position(|hints| hints.name == name)?;
        self.next = at + 1;
        let found = &self.names[at];
        Some(Expected { hash: found.hash, span: found.span, is_prefetched: at < self.new })
    }

    /// Drops all [`LeafSpan`]s after nodes changed or were loaded.
    pub(super) fn forget_paths(&mut self) {
        self.names[self.next..self.len].iter_mut().for_each(|hints| hints.span = None);
    }

    /// Drops the [`LeafSpan`]s to a leaf of which some names have moved.
    pub(super) fn forget_path_to(&mut self, leaf: Lblk) {
        let there = |hints: &&mut HintedName| hints.span.is_some_and(|span| span.leaf == leaf);
        self.names[self.next..self.len].iter_mut().filter(there).for_each(|hints| hints.span = None);
    }

    /// Drops names that are done, and the oldest pending ones if `more` names would exceed the limit.
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

    /// Prefetches memory for operations on these names, all names together, step by step from the lowest
    /// nodes on: the misses of a step are independent. The root must be loaded.
    pub(super) fn prefetch<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n [u8]>,
        nodes: &Nodes,
        hasher: &Hasher,
        leaves: &LeafCache,
        access: &dyn DirEdit,
    ) {
        self.make_room(HINTS_MAX);
        let before = self.len;
        let mut begun = [PartialPath { path: Path::START, node: None }; HINTS_MAX];
        for (begun, name) in begun.iter_mut().zip(names.into_iter().filter(|name| is_name(name))) {
            let hash = hasher.hash(name);
            self.push(name, hash);
            *begun = PartialPath::begin(nodes, hash.hash);
        }
        // The lines for pending names were prefetched long ago and cause no wait; meanwhile the new ones
        // arrive.
        prefetch_leaves(&self.names[self.new..before], leaves, access);
        let names = &mut self.names[before..self.len];
        for (hints, begun) in names.iter_mut().zip(begun) {
            hints.span = begun.end(hints.hash.hash);
        }
        let spans = || names.iter().filter_map(|hints| Some((hints.span?, hints.hash)));
        spans().for_each(|(span, _)| leaves.prefetch(span.leaf));
        spans().for_each(|(span, hash)| leaves.prefetch_filter(span.leaf, hash));
        self.new = before;
        if before == 0 {
            prefetch_leaves(names, leaves, access);
            self.new = self.len;
        }
        let room = |hints: &HintedName| size_of::<HintedName>() + hints.name.capacity();
        self.held_bytes = self.names.iter().map(room).sum();
    }
}

impl PartialPath<'_> {
    /// Descends to one of the lowest nodes, which are many, and prefetches what will be read there.
    fn begin(nodes: &Nodes, hash: u32) -> PartialPath<'_> {
        let mut path = Path::START;
        let mut node = nodes.get(path.leaf());
        while let Some(above) = node
            && path.len() < usize::from(nodes.levels)
        {
            path.go_on(above, Some(hash));
            // The operation itself detects and reports a damaged index with a cycle.
            node = if path.is_circle() { None } else { nodes.get(path.leaf()) };
        }
        node.into_iter().for_each(|node| path.prefetch(node, hash));
        PartialPath { path, node }
    }

    fn end(mut self, hash: u32) -> Option<LeafSpan> {
        self.path.go_on(self.node?, Some(hash));
        (!self.path.is_circle()).then(|| self.path.span())
    }
}

/// Prefetches the data that the slots of leaves refer to.
fn prefetch_leaves(names: &[HintedName], leaves: &LeafCache, access: &dyn DirEdit) {
    let spans = || names.iter().filter_map(|hints| Some((hints.span?, hints.hash)));
    spans().for_each(|(span, _)| leaves.prefetch_leaf(span.leaf, access));
    spans().for_each(|(span, hash)| leaves.prefetch_bucket(span.leaf, hash.hash));
}
