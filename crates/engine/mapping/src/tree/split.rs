//! Room for one more entry: a full node gives half of its entries to a new neighbor, a full root moves one
//! level down.
//!
//! ```text
//! root [ a b c d ]  full            root [ x ]
//!       |                    ->            x [ a n b c d ]       n: the new half of a
//!       a [ full ]                           a [ half ]  n [ half ]
//! ```

use extant_base::Pblk;
use extant_ondisk::extent::{Extent, Index, MAX_DEPTH, NodeView, Slot, init_node, splice};

use super::WHOLE;
use super::edit::{LEVELS, Path};
use crate::{EditFault, Editor, FileMap, TreeSpace};

/// Blocks allocated for new nodes; freed unless the split succeeds.
struct NewNodes<'a> {
    space: &'a dyn TreeSpace,
    blocks: [Pblk; LEVELS + 1],
    len: usize,
}

impl<'a> NewNodes<'a> {
    fn take(space: &'a dyn TreeSpace, near: Pblk, count: usize) -> Result<Self, EditFault> {
        let mut new_nodes = Self { space, blocks: [Pblk(0); LEVELS + 1], len: 0 };
        for _ in 0..count {
            new_nodes.blocks[new_nodes.len] = space.allocate(near)?;
            new_nodes.len += 1;
        }
        Ok(new_nodes)
    }

    /// The next block, which belongs to the tree from now on.
    fn next(&mut self) -> Pblk {
        self.len -= 1;
        self.blocks[self.len]
    }
}

impl Drop for NewNodes<'_> {
    fn drop(&mut self) {
        for block in &self.blocks[..self.len] {
            self.space.free(*block);
        }
    }
}

impl FileMap {
    /// Makes room in the full leaf of a path; the mapping stays the same. An extent to `append` after all
    /// others goes into a new leaf of its own, so that sequentially written files have full leaves; if the
    /// root is the leaf, it only gets room.
    ///
    /// New nodes are allocated first; an error leaves everything unchanged.
    pub(super) fn split(
        &mut self,
        editor: &Editor<'_>,
        path: &Path,
        append: Option<Extent>,
    ) -> Result<(), EditFault> {
        let depth = path.depth;
        let has_room = |level: &usize| path.steps[*level].len < self.capacity(editor, *level);
        let parent = (0..depth).rev().find(has_room);
        // The levels from here to the leaf's are split; the level above gets one more entry.
        let top = parent.map_or(1, |parent| parent + 1);
        let grows = parent.is_none();
        if grows && depth == usize::from(MAX_DEPTH) {
            return Err(EditFault::TooLarge);
        }
        let near = match (path.last().block, append) {
            (Pblk(0), _) => self.root()?.extent(0).map_or(Pblk(0), |extent| Pblk(extent.start)),
            (leaf, _) => leaf,
        };
        let mut new_nodes = NewNodes::take(editor.space, near, depth + 1 - top + usize::from(grows))?;
        for step in &path.steps[top - 1..=depth] {
            self.pin(editor, step.block)?;
        }

        // Nothing can fail from here on.
        let mut carry: Option<Slot> = append.map(|extent| extent.slot());
        for level in (top..=depth).rev() {
            let is_leaf = level == depth;
            let place = if is_leaf { path.steps[level].len } else { path.steps[level].at + 1 };
            let block = new_nodes.next();
            let key = self.split_node(editor, path, level, block, carry.map(|slot| (place, slot)))?;
            carry = Some(Index { lblk: key, child: block.0 }.slot());
        }
        let at = path.steps[top - 1].at + 1;
        if let Some(parent) = parent {
            let slot = carry.unwrap_or_default();
            return self.change_node(editor, path.steps[parent].block, |bytes| splice(bytes, at, 0, &[slot]));
        }
        let block = new_nodes.next();
        let root = NodeView::new(&self.i_block);
        let key = root.key(0).unwrap_or(0);
        let added = carry.filter(|_| depth > 0);
        editor.edit.fresh(block, self.seal(), &mut |bytes| {
            init_node(bytes, depth as u16, root.slots());
            // Four entries and one more: a block has room.
            let _ = added.is_none_or(|slot| splice(bytes, at, 0, &[slot]));
        });
        init_node(&mut self.i_block, depth as u16 + 1, &[Index { lblk: key, child: block.0 }.slot()]);
        Ok(())
    }

    /// Moves the upper half of a full node to `block` and puts the new entry into the half that it belongs
    /// to. An entry after all others gets the new node for itself. Returns the new node's first key.
    fn split_node(
        &mut self,
        editor: &Editor<'_>,
        path: &Path,
        level: usize,
        block: Pblk,
        new: Option<(usize, Slot)>,
    ) -> Result<u32, EditFault> {
        let step = path.steps[level];
        let held = editor.buffers.get(step.block, self.seal().owner, |_| Ok(()))?;
        let slots = NodeView::new(&held).slots();
        let len = slots.len();
        // Except at the end of the tree, halves are better: the place of the next entry is unknown.
        let is_append = path.range.end == WHOLE.end && new.is_some_and(|(at, _)| at == len);
        let half = if is_append { len } else { len / 2 };
        let (stays, goes) = match new {
            Some((at, slot)) if at <= half && !is_append => (Some((at, slot)), None),
            Some((at, slot)) => (None, Some((at - half, slot))),
            None => (None, None),
        };
        let depth = (path.depth - level) as u16;
        let mut key = 0;
        editor.edit.fresh(block, self.seal(), &mut |bytes| {
            init_node(bytes, depth, &slots[half..]);
            let _ = goes.is_none_or(|(at, slot)| splice(bytes, at, 0, &[slot]));
            key = NodeView::new(bytes).key(0).unwrap_or(0);
        });
        if !is_append {
            self.change_node(editor, step.block, |bytes| {
                splice(bytes, half, len - half, &[])
                    && stays.is_none_or(|(at, slot)| splice(bytes, at, 0, &[slot]))
            })?;
        }
        Ok(key)
    }
}
