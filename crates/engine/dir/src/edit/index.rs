//! The index of a directory in memory: its nodes are read when they are needed, and stay.
//!
//! Owns: the decoded nodes and their levels, the directory's hash function, prefetched names (see
//! [`hints`](super::hints)), paths to leaves, the search for the parent of a block. Does **not** own: the
//! leaves, when a node is split or freed ([`super::split`], [`super::shrink`]).
//!
//! Invariants
//! 1. Nodes are dropped only between operations, so all nodes of a [`Path`] are loaded.
//! 2. A change of nodes invalidates the [`LeafSpan`]s of prefetched names: all of them after
//!    [`nodes_mut`](Index::nodes_mut), those of one leaf after [`nodes_for_split`](Index::nodes_for_split).
//! 3. `hasher` and the number of levels are valid if the root is loaded.

use extant_base::{Lblk, Malformed};
use extant_buffer::ReadFault;
use extant_ondisk::hash::{HashVersion, NameHash};
use extant_ondisk::htree::{DxEntries, DxKind};

use super::DirEdit;
use super::blocks::Blocks;
use super::hints::{Expected, Hints};
use super::leaf_cache::LeafCache;
use super::nodes::{CachedNode, Nodes};
use super::path::{LeafSpan, Path, Step};
use crate::order::Hasher;

pub(super) struct Index {
    pub(super) nodes: Nodes,
    pub(super) hasher: Hasher,
    /// Prefetched names.
    pub(super) hints: Hints,
}

/// The index entry of a block.
#[derive(Clone, Copy)]
pub(super) struct Parent {
    pub(super) step: Step,
    /// The block is a node.
    pub(super) is_index: bool,
}

impl Default for Index {
    fn default() -> Self {
        Self { nodes: Nodes::default(), hasher: Hasher::none(), hints: Hints::default() }
    }
}

/// The rule of the order: hashes rise, and are equal only if a child continues the one before.
fn check_rising(entries: DxEntries<'_>) -> Result<(), Malformed> {
    let mut before = 0;
    for entry in entries.iter().skip(1) {
        let hash = entry.hash & !1;
        let holds = hash > before || (hash == before && entry.hash & 1 == 1) || before == 0;
        Malformed::unless(holds, "index block", "hashes must rise", entry.hash)?;
        before = hash;
    }
    Ok(())
}

/// Checks the entries of an index block of a directory of `len` blocks.
fn check_entries(entries: DxEntries<'_>, len: u32) -> Result<(), Malformed> {
    for entry in entries.iter() {
        let holds = entry.block.0 > 0 && entry.block.0 < len;
        Malformed::unless(holds, "index block", "child must lie inside the directory", entry.block.0)?;
    }
    check_rising(entries)
}

pub(super) fn kind_of(lblk: Lblk) -> DxKind {
    if lblk.0 == 0 { DxKind::Root } else { DxKind::Node }
}

impl Index {
    /// Drops all data.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Drops all nodes except the root.
    #[cold]
    pub(super) fn drop_nodes(&mut self) {
        self.nodes_mut().clear();
    }

    /// The number of nodes, including the root.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Memory in use, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.nodes.held_bytes() + self.hints.held_bytes
    }

    /// Levels of nodes below the root.
    pub(super) fn levels(&self) -> u8 {
        self.nodes.levels
    }

    /// A node, if it is loaded.
    #[inline]
    pub(super) fn cached(&self, lblk: Lblk) -> Option<CachedNode<'_>> {
        self.nodes.get(lblk)
    }

    /// A loaded node.
    pub(super) fn node(&self, lblk: Lblk) -> CachedNode<'_> {
        self.cached(lblk).expect("nodes of a path are loaded, and dropped only between operations")
    }

    /// The nodes, for a change.
    pub(super) fn nodes_mut(&mut self) -> &mut Nodes {
        self.hints.forget_paths();
        &mut self.nodes
    }

    /// The nodes, for a split of this leaf: the [`LeafSpan`]s to other leaves stay valid.
    pub(super) fn nodes_for_split(&mut self, leaf: Lblk) -> &mut Nodes {
        self.hints.forget_path_to(leaf);
        &mut self.nodes
    }

    /// Prefetches memory for operations on these names: see [`Hints::prefetch`].
    pub(super) fn prefetch_names<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n [u8]>,
        leaves: &LeafCache,
        access: &dyn DirEdit,
    ) {
        self.hints.prefetch(names, &self.nodes, &self.hasher, leaves, access);
    }

    pub(super) fn load_root(&mut self, blocks: &mut Blocks<'_>) -> Result<(), ReadFault> {
        let lblk = Lblk(0);
        if self.cached(lblk).is_some() {
            return Ok(());
        }
        let block = blocks.index(lblk)?;
        let fact = |fact| blocks.corrupt(&block, lblk, fact);
        let root = blocks.format.index.decode_root(&block).map_err(fact)?;
        check_entries(root.entries, blocks.len()).map_err(fact)?;
        let version = HashVersion::from_code(root.hash_code, blocks.format.unsigned_hash);
        let version = version.filter(|version| *version != HashVersion::SipHash);
        let version = version
            .ok_or(Malformed::new("index root", "the hash must need no key", root.hash_code))
            .map_err(fact)?;
        self.hints.clear();
        self.hasher = blocks.hasher(version);
        let room = blocks.format.index.limit(DxKind::Node);
        self.nodes.begin(root.entries.iter(), root.levels, room);
        Ok(())
    }

    pub(super) fn load_node(&mut self, blocks: &mut Blocks<'_>, lblk: Lblk) -> Result<(), ReadFault> {
        if self.cached(lblk).is_some() {
            return Ok(());
        }
        let block = blocks.index(lblk)?;
        let fact = |fact| blocks.corrupt(&block, lblk, fact);
        let entries = blocks.format.index.decode_node(&block).map_err(fact)?;
        check_entries(entries, blocks.len()).map_err(fact)?;
        self.nodes_mut().put(lblk, entries.iter());
        Ok(())
    }

    /// The path to the first leaf that may hold names of a hash. The root must be loaded.
    pub(super) fn descend(&mut self, blocks: &mut Blocks<'_>, hash: u32) -> Result<Path, ReadFault> {
        self.descend_from(blocks, Path::START, Some(hash))
    }

    /// Continues a path that ends at an index block: to this hash, or to the first leaf.
    fn descend_from(
        &mut self,
        blocks: &mut Blocks<'_>,
        mut path: Path,
        hash: Option<u32>,
    ) -> Result<Path, ReadFault> {
        while path.len() <= usize::from(self.nodes.levels) {
            let lblk = path.leaf();
            let node = match self.cached(lblk) {
                Some(node) => node,
                None => {
                    self.load_node(blocks, lblk)?;
                    self.node(lblk)
                }
            };
            hash.into_iter().for_each(|hash| path.prefetch(node, hash));
            path.go_on(node, hash);
            if path.is_circle() {
                let fact = Malformed::new("index block", "child must not be an ancestor", path.leaf().0);
                return Err(blocks.corrupt_at(lblk, fact));
            }
        }
        Ok(path)
    }

    /// The key after these steps.
    fn next_key(&self, path: &Path) -> Option<u32> {
        path.steps().iter().rev().find_map(|step| self.node(step.lblk).key(step.at + 1))
    }

    /// The path to the next leaf.
    fn next_leaf(&mut self, blocks: &mut Blocks<'_>, mut path: Path) -> Result<Option<Path>, ReadFault> {
        while let Some(next) = path.back_to_next() {
            let node = self.node(next.lblk);
            if let Some(child) = node.child(next.at) {
                let next_key = node.key(next.at + 1).or_else(|| self.next_key(&path));
                path.go_to(next, child, next_key);
                return self.descend_from(blocks, path, None).map(Some);
            }
        }
        Ok(None)
    }

    /// The path to the next leaf, if it may hold names of the same hash.
    pub(super) fn continued(
        &mut self,
        blocks: &mut Blocks<'_>,
        path: &Path,
        hash: u32,
    ) -> Result<Option<Path>, ReadFault> {
        if path.span().is_continued(hash) { self.next_leaf(blocks, *path) } else { Ok(None) }
    }

    /// As [`continued`](Self::continued), for callers with only the [`LeafSpan`] to the first leaf of this
    /// hash. `path` is `None` at first, and then the result of the previous call.
    pub(super) fn next_span(
        &mut self,
        blocks: &mut Blocks<'_>,
        span: LeafSpan,
        hash: u32,
        path: &mut Option<Path>,
    ) -> Result<Option<LeafSpan>, ReadFault> {
        if !span.is_continued(hash) {
            return Ok(None);
        }
        let at = match path.take() {
            Some(at) => at,
            None => self.descend(blocks, hash)?,
        };
        *path = self.next_leaf(blocks, at)?;
        Ok(path.map(|path| path.span()))
    }

    /// A name's hashes, and the [`LeafSpan`] to its first possible leaf. The root must be loaded.
    ///
    /// Prefetches all memory needed to search and change the leaf. In a large directory none of it is in the
    /// CPU caches, and some of it is found through other parts. The cache's data about the leaf and the
    /// leaf's slot are loaded in parallel.
    pub(super) fn span_of(
        &mut self,
        blocks: &mut Blocks<'_>,
        leaves: &LeafCache,
        name: &[u8],
    ) -> Result<(NameHash, LeafSpan), ReadFault> {
        let (hash, span) = match self.hints.find(name) {
            Some(Expected { hash, span: Some(span), is_prefetched: true }) => return Ok((hash, span)),
            Some(Expected { hash, span, .. }) => (hash, span),
            None => (self.hasher.hash(name), None),
        };
        let span = match span {
            Some(span) => span,
            None => self.descend(blocks, hash.hash)?.span(),
        };
        leaves.prefetch(span.leaf);
        leaves.prefetch_filter(span.leaf, hash);
        leaves.prefetch_leaf(span.leaf, blocks.access);
        Ok((hash, span))
    }

    /// The path to a leaf in which a name was found.
    pub(super) fn path_to(
        &mut self,
        blocks: &mut Blocks<'_>,
        name: &[u8],
        leaf: Lblk,
    ) -> Result<Option<Path>, ReadFault> {
        self.load_root(blocks)?;
        self.path_by_hash(blocks, self.hasher.hash(name).hash, leaf)
    }

    /// The path to a leaf with a name of this hash; `None` if the hash does not lead there.
    pub(super) fn path_by_hash(
        &mut self,
        blocks: &mut Blocks<'_>,
        hash: u32,
        leaf: Lblk,
    ) -> Result<Option<Path>, ReadFault> {
        let mut path = Some(self.descend(blocks, hash)?);
        while let Some(at) = path.filter(|at| at.leaf() != leaf) {
            path = self.continued(blocks, &at, hash)?;
        }
        Ok(path)
    }

    /// Searches the whole index for the entry that refers to a block.
    pub(super) fn search_all(
        &mut self,
        blocks: &mut Blocks<'_>,
        target: Lblk,
    ) -> Result<Option<Parent>, ReadFault> {
        let mut level = vec![Lblk(0)];
        for depth in 0..=self.nodes.levels {
            let mut below = Vec::new();
            for &lblk in &level {
                self.load_node(blocks, lblk)?;
                let node = self.node(lblk);
                if let Some(at) = node.entries().iter().position(|entry| entry.block == target) {
                    let is_index = depth < self.nodes.levels;
                    return Ok(Some(Parent { step: Step { lblk, at }, is_index }));
                }
                if depth < self.nodes.levels {
                    below.extend(node.entries().iter().map(|entry| entry.block));
                }
                if below.len() > blocks.len() as usize {
                    return Ok(None);
                }
            }
            level = below;
        }
        Ok(None)
    }

    /// Writes an index block's entries from `from` on, and their count.
    pub(super) fn write_node(&self, blocks: &Blocks<'_>, lblk: Lblk, from: usize) -> Result<(), ReadFault> {
        let (index, node) = (blocks.format.index, self.node(lblk));
        blocks.access.change_index(lblk, &mut |bytes| {
            index.put_entries(kind_of(lblk), bytes, from, node.len(), node.entries()[from..].iter().copied());
        })
    }

    /// Writes a block as a node, whatever its kind was.
    pub(super) fn write_new_node(&self, blocks: &Blocks<'_>, lblk: Lblk) -> Result<(), ReadFault> {
        let (index, node) = (blocks.format.index, self.node(lblk));
        let entries = || node.entries().iter().copied();
        blocks.access.change_index(lblk, &mut |bytes| index.encode_node(entries(), bytes))
    }

    /// Writes the number of levels into the root, and all its entries.
    pub(super) fn write_root(&self, blocks: &Blocks<'_>) -> Result<(), ReadFault> {
        let (index, levels) = (blocks.format.index, self.levels());
        blocks.access.change_index(Lblk(0), &mut |bytes| index.put_levels(bytes, levels))?;
        self.write_node(blocks, Lblk(0), 0)
    }
}
