//! The blocks that a removal from an indexed directory frees: an empty leaf, and nodes that become useless.
//!
//! ```text
//! Leaf 3 is empty: its entry is removed. Leaf 9 is the last block: its names move, and its parent's entry
//! changes:
//!
//!   [.. 3 | 7 ..]  [.. 9 ..]   ->   [.. 7 ..]  [.. 3 ..]      and block 9 is popped
//! ```
//!
//! Owns: the list of blocks to free, which block moves to the place of a freed one. Does **not** own: the
//! entries of the index, which it changes; the removal of names.
//!
//! Invariant: before the first change, all blocks that may move are read. If that fails, the empty leaf
//! stays, which does no harm.

use extant_base::Lblk;
use extant_buffer::ReadFault;
use extant_ondisk::htree::{DxEntry, DxKind};

use super::blocks::Blocks;
use super::index::{Index, Parent};
use super::leaves::Leaves;
use super::path::{Path, Step};
use super::{EditFault, first_block};

/// Blocks that one removal frees at most: a leaf, the two nodes above it, two nodes that the root takes in.
const FREED_MAX: usize = 5;

/// Blocks to free.
#[derive(Default)]
struct Freed {
    blocks: [Lblk; FREED_MAX],
    len: usize,
}

impl Freed {
    fn push(&mut self, lblk: Lblk) {
        self.blocks[self.len] = lblk;
        self.len += 1;
    }

    fn list(&self) -> &[Lblk] {
        &self.blocks[..self.len]
    }
}

/// The removal of a leaf without names from the index.
pub(super) struct Shrink<'e, 'a> {
    blocks: &'e mut Blocks<'a>,
    index: &'e mut Index,
    leaves: &'e mut Leaves,
    freed: Freed,
}

impl<'e, 'a> Shrink<'e, 'a> {
    pub(super) fn new(blocks: &'e mut Blocks<'a>, index: &'e mut Index, leaves: &'e mut Leaves) -> Self {
        Self { blocks, index, leaves, freed: Freed::default() }
    }

    /// Frees a leaf without names, and nodes that become useless. The empty leaf stays if that is not
    /// possible.
    pub(super) fn free_leaf(&mut self, path: Path) -> Result<(), EditFault> {
        self.freed.push(path.leaf());
        // From the bottom up: a node that loses its only entry is freed, too.
        let steps = path.steps();
        let Some(kept) = steps.iter().rposition(|step| self.index.node(step.lblk).len() > 1) else {
            return self.become_linear(path.steps().len());
        };
        for step in &steps[kept + 1..] {
            self.freed.push(step.lblk);
        }
        // All of these must be readable before the first change.
        let len = self.blocks.len();
        for back in 1..=(self.freed.len as u32 + u32::from(self.index.levels())).min(len.saturating_sub(1)) {
            let last = Lblk(len - back);
            if self.freed.list().contains(&last) {
                continue;
            }
            let read = match self.parent_of(last) {
                Ok(Some(Parent { is_index: true, .. })) => self.blocks.index(last),
                Ok(Some(_)) => self.leaves.read(self.blocks, last),
                Ok(None) | Err(_) => return Ok(()),
            };
            if read.is_err() {
                return Ok(());
            }
        }

        let Step { lblk, at } = steps[kept];
        self.index.nodes_mut().remove(lblk, at);
        self.index.write_node(self.blocks, lblk, at.min(self.index.node(lblk).len() - 1))?;
        while self.collapse()? {}
        for lblk in self.freed.list() {
            self.index.nodes_mut().take(*lblk);
            self.leaves.cache.drop_notes(*lblk);
        }
        // In descending order, so that no freed block is moved.
        self.freed.blocks[..self.freed.len].sort_unstable();
        for at in (0..self.freed.len).rev() {
            self.fill_gap(self.freed.blocks[at])?;
        }
        Ok(())
    }

    /// If the root has a single node below it, and the node's entries fill at most half of the root, moves
    /// them to the root. (At most half, so that the next split does not undo it.) Returns whether it did.
    fn collapse(&mut self) -> Result<bool, EditFault> {
        if self.index.levels() == 0 || self.index.node(Lblk(0)).len() > 1 || self.freed.len == FREED_MAX {
            return Ok(false);
        }
        let Some(child) = self.index.node(Lblk(0)).child(0) else { return Ok(false) };
        if self.index.load_node(self.blocks, child).is_err() {
            return Ok(false);
        }
        if self.index.node(child).len() > self.blocks.format.index.limit(DxKind::Root) / 2 {
            return Ok(false);
        }
        if self.freed.list().contains(&child) {
            // It is also a leaf.
            return Err(self.blocks.stale(child));
        }
        let nodes = self.index.nodes_mut();
        let Some(node) = nodes.take(child) else { return Ok(false) };
        nodes.put(Lblk(0), node.into_iter());
        nodes.levels -= 1;
        self.blocks.stats.levels_removed += 1;
        self.index.write_root(self.blocks)?;
        self.freed.push(child);
        Ok(true)
    }

    /// Moves the last block to a freed one, and pops it.
    fn fill_gap(&mut self, gap: Lblk) -> Result<(), EditFault> {
        let Some(last) = self.blocks.len().checked_sub(1).map(Lblk) else { return Ok(()) };
        if gap.0 > last.0 {
            return Err(self.blocks.stale(gap));
        }
        if gap != last {
            let parent = self.parent_of(last)?.ok_or_else(|| self.blocks.stale(last))?;
            if parent.is_index {
                let block = self.blocks.index(last)?;
                self.blocks.access.change_index(gap, &mut |bytes| bytes.copy_from_slice(&block))?;
                let nodes = self.index.nodes_mut();
                if let Some(node) = nodes.take(last) {
                    nodes.put(gap, node.into_iter());
                }
            } else {
                let block = self.leaves.read(self.blocks, last)?;
                // The gap may have been a node, of which the bytes are not in memory.
                self.blocks.access.refill_leaf(gap, &mut |bytes| bytes.copy_from_slice(&block))?;
                self.leaves.cache.move_notes(last, gap);
            }
            let Step { lblk, at } = parent.step;
            self.index.nodes_mut().set_child(lblk, at, gap);
            self.index.write_node(self.blocks, lblk, at)?;
        }
        self.blocks.pop(&mut self.leaves.cache)?;
        self.blocks.stats.blocks_freed += 1;
        Ok(())
    }

    /// After removal of the last name: makes the directory one block with "." and "..".
    fn become_linear(&mut self, index_levels: usize) -> Result<(), EditFault> {
        // The path must contain all blocks: the index does not know any others.
        if self.blocks.len() as usize != index_levels + 1 {
            return Ok(());
        }
        let block = self.blocks.index(Lblk(0))?;
        let root = self.blocks.format.index.decode_root(&block);
        let parent = root.map_err(|fact| self.blocks.corrupt(&block, Lblk(0), fact))?.parent;
        drop(block);
        if parent.0 == 0 {
            // Damage: an entry with inode 0 is free space, which ".." cannot be. The index stays; the
            // directory can be removed.
            return Ok(());
        }
        let (format, ino) = (self.blocks.format.entries, self.blocks.ino);
        self.blocks.access.refill_leaf(Lblk(0), &mut |bytes| first_block(&format, ino, parent, bytes))?;
        for _ in 0..index_levels {
            self.blocks.pop(&mut self.leaves.cache)?;
            self.blocks.stats.blocks_freed += 1;
        }
        self.blocks.set_indexed(false);
        self.blocks.stats.unindexed += 1;
        self.index.clear();
        self.leaves.clear();
        Ok(())
    }

    /// The index entry that refers to a block; `None` if there is none.
    fn parent_of(&mut self, lblk: Lblk) -> Result<Option<Parent>, ReadFault> {
        let Self { blocks, index, leaves, .. } = self;
        let mut index_hash = index.cached(lblk).and_then(|node| middle_hash(node.entries().iter().copied()));
        if index_hash.is_none() {
            // A leaf is found by the hash of any of its names.
            let noted = leaves.cache.notes(lblk).and_then(|notes| notes.entries().next());
            if let Ok(block) = leaves.read(blocks, lblk) {
                let mut names = blocks.format.entries.entries(&block).map_while(Result::ok);
                let hash = noted.map(|entry| entry.hash()).or_else(|| {
                    names.find(|entry| entry.is_used()).map(|entry| index.hasher.hash(entry.name).hash)
                });
                drop(block);
                if let Some(hash) = hash
                    && let Some(path) = index.path_by_hash(blocks, hash, lblk)?
                {
                    return Ok(Some(Parent { step: path.bottom(), is_index: false }));
                }
            }
            if index.levels() > 0
                && let Ok(block) = blocks.index(lblk)
            {
                let entries = blocks.format.index.decode_node(&block).ok();
                index_hash = entries.and_then(|entries| middle_hash(entries.iter()));
            }
        }
        if let Some(hash) = index_hash {
            let path = index.descend(blocks, hash)?;
            let above = path.steps().windows(2).find(|pair| pair[1].lblk == lblk);
            if let Some(pair) = above {
                return Ok(Some(Parent { step: pair[0], is_index: true }));
            }
        }
        // An empty leaf, or hashes that start in another node: search the whole index.
        index.search_all(blocks, lblk)
    }
}

/// A hash that leads to the node of these entries, or to an earlier node that ends with the same hash.
fn middle_hash(mut entries: impl ExactSizeIterator<Item = DxEntry>) -> Option<u32> {
    entries.nth(entries.len() / 2).map(|entry| entry.hash | 1)
}
