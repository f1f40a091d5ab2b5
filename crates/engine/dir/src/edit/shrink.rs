//! Removal from indexed directories, and the blocks that it frees.
//!
//! ```text
//! Leaf 3 is empty: its entry is removed. Leaf 9 is the last block: its names move, and its parent's entry
//! changes:
//!
//!   [.. 3 | 7 ..]  [.. 9 ..]   ->   [.. 7 ..]  [.. 3 ..]      and block 9 is popped
//! ```

use extant_base::{Ino, Lblk};
use extant_buffer::ReadFault;
use extant_ondisk::dirent::edit::Found;
use extant_ondisk::dirent::min_rec_len;
use extant_ondisk::htree::{DxEntry, DxKind};

use super::path::{Path, Step};
use super::{EditFault, Editor, first_block};

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
}

/// The index entry of a block.
#[derive(Clone, Copy)]
struct Parent {
    step: Step,
    /// The block is a node.
    is_index: bool,
}

impl Editor<'_> {
    pub(super) fn remove_indexed(&mut self, name: &[u8]) -> Result<Ino, EditFault> {
        let (leaf, hash, found) = self.find_indexed(name)?.ok_or(EditFault::Absent)?;
        self.remove_in_leaf(name, hash, leaf, found)
    }

    /// Removes a name with known hash and place.
    ///
    /// In a leaf with notes only the name's own entry is touched. An entry has no link to its predecessor,
    /// and a search for it from the first entry on would touch half of the block. So the entry stays, unused,
    /// and the notes count the used bytes to find out when the leaf is empty.
    pub(super) fn remove_in_leaf(
        &mut self,
        name: &[u8],
        hash: u32,
        lblk: Lblk,
        found: Found,
    ) -> Result<Ino, EditFault> {
        let format = self.format.entries;
        let is_noted = self.cache.notes(lblk).is_some();
        let (mut room, mut is_empty) = (None, false);
        self.blocks.change_leaf(lblk, self.cache.at(lblk), &mut |bytes| {
            if !format.is_at(bytes, found, name) {
                return;
            }
            if is_noted {
                room = format.unuse_at(bytes, found.at);
            } else {
                room = format.remove_at(bytes, 0, found.at);
                is_empty = room.is_some() && format.is_unused(bytes);
            }
        })?;
        let room = room.ok_or_else(|| self.stale(lblk))?;
        self.cache.forget_room(lblk);
        if let Some(notes) = self.cache.notes(lblk) {
            notes.remove(hash, found.at, min_rec_len(name.len(), false), room);
            is_empty = notes.live_bytes == 0;
        }
        if is_empty {
            match self.path_to(name, lblk) {
                Ok(Some(path)) => self.free_leaf(path)?,
                Ok(None) => {}
                // The name is removed; an empty leaf that stays does no harm.
                Err(_) => self.cache.clear(),
            }
        }
        Ok(found.ino)
    }

    /// The path to a leaf in which a name was found.
    fn path_to(&mut self, name: &[u8], leaf: Lblk) -> Result<Option<Path>, ReadFault> {
        self.load_root()?;
        let hash = self.hasher().hash(name).hash;
        let mut path = Some(self.descend(hash)?);
        while let Some(at) = path.filter(|at| at.leaf() != leaf) {
            path = self.continued(&at, hash)?;
        }
        Ok(path)
    }

    /// Frees a leaf without names, and nodes that become useless. The empty leaf stays if that is not
    /// possible.
    fn free_leaf(&mut self, path: Path) -> Result<(), EditFault> {
        let mut freed = Freed::default();
        freed.push(path.leaf());
        // From the bottom up: a node that loses its only entry is freed, too.
        let steps = path.steps();
        let Some(kept) = steps.iter().rposition(|step| self.node(step.lblk).len() > 1) else {
            return self.become_linear(path.steps().len());
        };
        for step in &steps[kept + 1..] {
            freed.push(step.lblk);
        }
        // All of these must be readable before the first change.
        let len = self.blocks.len();
        for back in 1..=(freed.len as u32 + u32::from(self.cache.levels)).min(len.saturating_sub(1)) {
            let last = Lblk(len - back);
            if freed.blocks[..freed.len].contains(&last) {
                continue;
            }
            let read = match self.parent_of(last) {
                Ok(Some(Parent { is_index: true, .. })) => self.index_block(last),
                Ok(Some(_)) => self.leaf_block(last),
                Ok(None) | Err(_) => return Ok(()),
            };
            if read.is_err() {
                return Ok(());
            }
        }

        let Step { lblk, at } = steps[kept];
        self.cache.nodes_mut().remove(lblk, at);
        self.write_node(lblk, at.min(self.node(lblk).len() - 1))?;
        while self.collapse(&mut freed)? {}
        let blocks = &mut freed.blocks[..freed.len];
        for lblk in blocks.iter() {
            self.cache.nodes_mut().take(*lblk);
            self.cache.drop_notes(*lblk);
        }
        // In descending order, so that no freed block is moved.
        blocks.sort_unstable();
        for lblk in blocks.iter().rev() {
            self.fill_gap(*lblk)?;
        }
        Ok(())
    }

    /// If the root has a single node below it, and the node's entries fill at most half of the root, moves
    /// them to the root. (At most half, so that the next split does not undo it.) Returns whether it did.
    fn collapse(&mut self, freed: &mut Freed) -> Result<bool, EditFault> {
        if self.cache.levels == 0 || self.node(Lblk(0)).len() > 1 || freed.len == FREED_MAX {
            return Ok(false);
        }
        let Some(child) = self.node(Lblk(0)).child(0) else { return Ok(false) };
        if self.load_node(child).is_err() {
            return Ok(false);
        }
        if self.node(child).len() > self.format.index.limit(DxKind::Root) / 2 {
            return Ok(false);
        }
        if freed.blocks[..freed.len].contains(&child) {
            // It is also a leaf.
            return Err(self.stale(child));
        }
        let nodes = self.cache.nodes_mut();
        let Some(node) = nodes.take(child) else { return Ok(false) };
        nodes.put(Lblk(0), node.into_iter());
        self.cache.levels -= 1;
        self.cache.stats.levels_removed += 1;
        let (index, levels) = (self.format.index, self.cache.levels);
        self.blocks.change_index(Lblk(0), &mut |bytes| index.put_levels(bytes, levels))?;
        self.write_node(Lblk(0), 0)?;
        freed.push(child);
        Ok(true)
    }

    /// Moves the last block to a freed one, and pops it.
    fn fill_gap(&mut self, gap: Lblk) -> Result<(), EditFault> {
        let Some(last) = self.blocks.len().checked_sub(1).map(Lblk) else { return Ok(()) };
        if gap.0 > last.0 {
            return Err(self.stale(gap));
        }
        if gap != last {
            let parent = self.parent_of(last)?.ok_or_else(|| self.stale(last))?;
            if parent.is_index {
                let block = self.index_block(last)?;
                self.blocks.change_index(gap, &mut |bytes| bytes.copy_from_slice(&block))?;
                let nodes = self.cache.nodes_mut();
                if let Some(node) = nodes.take(last) {
                    nodes.put(gap, node.into_iter());
                }
            } else {
                let block = self.leaf_block(last)?;
                // The gap may have been a node, of which the bytes are not in memory.
                self.blocks.refill_leaf(gap, &mut |bytes| bytes.copy_from_slice(&block))?;
                self.cache.move_notes(last, gap);
            }
            let Step { lblk, at } = parent.step;
            self.cache.nodes_mut().set_child(lblk, at, gap);
            let (index, node) = (self.format.index, self.node(lblk));
            let kind = if lblk.0 == 0 { DxKind::Root } else { DxKind::Node };
            self.blocks.change_index(lblk, &mut |bytes| {
                index.put_entries(kind, bytes, at, node.len(), node.entries()[at..].iter().copied());
            })?;
        }
        self.pop()?;
        self.cache.stats.blocks_freed += 1;
        Ok(())
    }

    /// After removal of the last name: makes the directory one block with "." and "..".
    fn become_linear(&mut self, index_levels: usize) -> Result<(), EditFault> {
        // The path must contain all blocks: the index does not know any others.
        if self.blocks.len() as usize != index_levels + 1 {
            return Ok(());
        }
        let block = self.index_block(Lblk(0))?;
        let root = self.format.index.decode_root(&block);
        let parent = root.map_err(|fact| self.corrupt(&block, Lblk(0), fact))?.parent;
        drop(block);
        if parent.0 == 0 {
            // Damage: an entry with inode 0 is free space, which ".." cannot be. The index stays; the
            // directory can be removed.
            return Ok(());
        }
        let (format, ino) = (self.format.entries, self.ino);
        self.blocks.refill_leaf(Lblk(0), &mut |bytes| first_block(&format, ino, parent, bytes))?;
        for _ in 0..index_levels {
            self.pop()?;
            self.cache.stats.blocks_freed += 1;
        }
        self.blocks.set_indexed(false);
        self.is_indexed = false;
        self.cache.stats.unindexed += 1;
        self.cache.clear();
        Ok(())
    }

    /// The index entry that refers to a block; `None` if there is none.
    fn parent_of(&mut self, lblk: Lblk) -> Result<Option<Parent>, ReadFault> {
        let levels = usize::from(self.cache.levels);
        let format = self.format.entries;
        let mut index_hash =
            self.cache.node(lblk).and_then(|node| middle_hash(node.entries().iter().copied()));
        if index_hash.is_none() {
            // A leaf is found by the hash of any of its names.
            let noted = self.cache.notes(lblk).and_then(|notes| notes.entries().next());
            if let Ok(block) = self.leaf_block(lblk) {
                let mut names = format.entries(&block).map_while(Result::ok);
                let hash = noted.map(|entry| entry.hash()).or_else(|| {
                    names.find(|entry| entry.is_used()).map(|entry| self.hasher().hash(entry.name).hash)
                });
                drop(block);
                if let Some(hash) = hash {
                    let mut path = Some(self.descend(hash)?);
                    while let Some(at) = path {
                        if at.leaf() == lblk {
                            return Ok(Some(Parent { step: at.bottom(), is_index: false }));
                        }
                        path = self.continued(&at, hash)?;
                    }
                }
            }
            if levels > 0
                && let Ok(block) = self.index_block(lblk)
            {
                let entries = self.format.index.decode_node(&block).ok();
                index_hash = entries.and_then(|entries| middle_hash(entries.iter()));
            }
        }
        if let Some(hash) = index_hash {
            let path = self.descend(hash)?;
            let above = path.steps().windows(2).find(|pair| pair[1].lblk == lblk);
            if let Some(pair) = above {
                return Ok(Some(Parent { step: pair[0], is_index: true }));
            }
        }
        // An empty leaf, or hashes that start in another node: search the whole index.
        self.search_all(lblk)
    }

    /// Searches the whole index for the parent of a block.
    fn search_all(&mut self, target: Lblk) -> Result<Option<Parent>, ReadFault> {
        let mut level = vec![Lblk(0)];
        for depth in 0..=self.cache.levels {
            let mut below = Vec::new();
            for &lblk in &level {
                self.load_node(lblk)?;
                let node = self.node(lblk);
                if let Some(at) = node.entries().iter().position(|entry| entry.block == target) {
                    let is_index = depth < self.cache.levels;
                    return Ok(Some(Parent { step: Step { lblk, at }, is_index }));
                }
                if depth < self.cache.levels {
                    below.extend(node.entries().iter().map(|entry| entry.block));
                }
                if below.len() > self.blocks.len() as usize {
                    return Ok(None);
                }
            }
            level = below;
        }
        Ok(None)
    }
}

/// A hash that leads to the node of these entries, or to an earlier node that ends with the same hash.
fn middle_hash(mut entries: impl ExactSizeIterator<Item = DxEntry>) -> Option<u32> {
    entries.nth(entries.len() / 2).map(|entry| entry.hash | 1)
}
