//! Names that are told before they are looked up, made or removed.
//!
//! ```text
//! one name after the other     hash  index....  leaf's notes....  leaf's bytes....  change | hash  index....
//! 16 told before               16 hashes, 16 index...., 16 notes...., 16 bytes....  | change change change change ..
//!                                         '--- waited for together ---'
//! ```
//!
//! In a directory of millions of names none of what an operation looks at is in the processor's caches, and each of it says where the
//! next is. A processor waits for many lines of memory as long as for one, if it is asked for all of them first.
//!
//! Nothing is read from the device here and nothing is changed: what is not in memory is passed over. What was found on the way (hashes,
//! and leaves as long as no index block changes) is remembered for the operations, which ask in the same order.

use base::Lblk;
use ondisk::hash::NameHash;

use super::index::Path;
use super::{Editor, is_name};

/// Names that are asked for together: more would push out what the first ones need.
pub const AHEAD_MAX: usize = 16;

/// Names that were told, in the order in which they will be asked for.
#[derive(Default)]
pub(super) struct Told {
    names: Vec<ToldName>,
    /// Those that are told now, and the one that is expected next.
    len: usize,
    next: usize,
    /// The index that their ways lead through: see [`super::DirCache::version`].
    version: u64,
    /// Memory that they take.
    pub(super) held_bytes: usize,
}

/// One of them.
#[derive(Default)]
struct ToldName {
    name: Vec<u8>,
    hash: NameHash,
    /// The way to its leaf.
    path: Path,
    /// The lowest key there may be below the end of the way.
    low: u32,
}

impl Told {
    pub(super) fn clear(&mut self) {
        (self.len, self.next) = (0, 0);
    }

    /// The hash of a name, if it is one of these, and its way, if that is as it was.
    pub(super) fn find(&mut self, name: &[u8], version: u64) -> Option<(NameHash, Option<Path>)> {
        let told = &self.names[self.next..self.len];
        // Operations that others did on some of them in between are passed over.
        let at = told.iter().position(|told| told.name == name)?;
        self.next += at + 1;
        let found = &self.names[self.next - 1];
        Some((found.hash, (self.version == version).then_some(found.path)))
    }
}

impl Editor<'_> {
    /// Asks the processor for what operations on these names will look at: those that come next, [`AHEAD_MAX`] at most (more are left
    /// out). Best effort, and of no use in small directories.
    pub fn ask_ahead_of<'n>(&mut self, names: impl IntoIterator<Item = &'n [u8]>) {
        let mut told = std::mem::take(&mut self.cache.told);
        told.clear();
        if self.is_indexed && self.cache.node(Lblk(0)).is_some() {
            self.tell(&mut told, names);
        }
        self.cache.told = told;
    }

    /// Step by step for all of them together: what one waits for in a step has nothing to do with the others.
    fn tell<'n>(&self, told: &mut Told, names: impl IntoIterator<Item = &'n [u8]>) {
        told.version = self.cache.version();
        for name in names.into_iter().filter(|name| is_name(name)).take(AHEAD_MAX) {
            if told.len == told.names.len() {
                told.names.push(ToldName::default());
            }
            let next = &mut told.names[told.len];
            next.name.clear();
            next.name.extend_from_slice(name);
            next.hash = self.hasher().hash(name);
            (next.path, next.low) = (Path::START, 0);
            told.len += 1;
        }
        let room = |told: &ToldName| size_of::<ToldName>() + told.name.capacity();
        told.held_bytes = told.names.iter().map(room).sum();
        for level in 0..=self.cache.levels {
            self.go_down(told, level == self.cache.levels);
        }
        let names = &told.names[..told.len];
        names.iter().for_each(|ToldName { path, .. }| self.cache.ask_for(path.leaf));
        names.iter().for_each(|ToldName { path, hash, .. }| self.cache.ask_for_filter(path.leaf, *hash));
        for ToldName { path, .. } in names {
            if let Some((at, what)) = self.cache.ask_for_notes(path.leaf) {
                self.blocks.ask_ahead(at, what);
            }
        }
        for ToldName { hash, path, .. } in names {
            self.cache.ask_for_noted(path.leaf, hash.hash);
        }
        // A damaged index that goes in circles is met, and told, by who follows it.
        if names.iter().any(|told| told.path.is_circle()) {
            told.clear();
        }
    }

    /// Goes one level down on all ways, to the leaves if it is the last: its nodes are many. Ways end before the first node that is not
    /// in memory.
    fn go_down(&self, told: &mut Told, is_last: bool) {
        let mut nodes = [None; AHEAD_MAX];
        let names = nodes.iter_mut().zip(&told.names[..told.len]);
        names.for_each(|(node, told)| *node = self.cache.node(told.path.leaf));
        told.len = nodes.iter().take_while(|node| node.is_some()).count();
        let names = &mut told.names[..told.len];
        if is_last {
            let asked = names.iter().zip(nodes.iter().flatten());
            asked.for_each(|(told, node)| told.path.ask_for(*node, told.hash.hash, told.low));
        }
        for (ToldName { hash, path, low, .. }, node) in names.iter_mut().zip(nodes.iter().flatten()) {
            path.go_on(*node, Some(hash.hash), low);
        }
    }
}
