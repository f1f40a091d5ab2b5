//! Changes of extent trees: each change affects one leaf, and from there the nodes above.
//!
//! ```text
//! insert        | 0..10 |    | 20..30 |   + 10..20   ->   | 0..30 |            merged with both neighbors
//! set_state     | 0..30 unwritten |       10..20     ->   | 0..10 u | 10..20 w | 20..30 u |
//! remove        | 0..30 |                 10..20     ->   | 0..10 | 20..30 |
//! ```
//!
//! A node's key in its parent is kept equal to its own first key, as the kernel and e2fsck require.

use std::ops::Range;

use extant_base::{CorruptAt, Lblk, Malformed, Pblk};
use extant_buffer::{Buffer, Buffers, Kind, Owner, ReadFault, Seal};
use extant_ondisk::extent::{
    self, Extent, MAX_DEPTH, NodeView, ROOT_ENTRIES, Slot, init_node, set_key, splice,
};

use super::{STRUCTURE, WHOLE, position};
use crate::{EditFault, Editor, FileMap, Freed};

/// Maximum number of levels of a tree, with the root.
pub(super) const LEVELS: usize = MAX_DEPTH as usize + 1;

/// One node of a path.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    /// The node's block; 0 for the root.
    pub(super) block: Pblk,
    /// In an inner node the entry that was followed; in the leaf the number of entries that begin at or
    /// before the block looked up.
    pub(super) at: usize,
    /// Number of entries in the node.
    pub(super) len: usize,
}

/// The path from the root (level 0) to a leaf.
pub(super) struct Path {
    pub(super) steps: [Step; LEVELS],
    /// The leaf's level.
    pub(super) depth: usize,
    /// The range that the leaf may map.
    pub(super) range: Range<u64>,
    /// Blocks from here to the block looked up belong in this leaf.
    pub(super) floor: u64,
    /// The leaf's bytes; `None` if it is the root.
    pub(super) leaf: Option<Buffer>,
}

impl Path {
    pub(super) fn last(&self) -> Step {
        self.steps[self.depth]
    }
}

impl FileMap {
    pub(super) fn path(&self, buffers: &Buffers, lblk: u32) -> Result<Path, ReadFault> {
        let mut path =
            Path { steps: [Step::default(); LEVELS], depth: 0, range: WHOLE, floor: 0, leaf: None };
        let mut held;
        let mut node = self.root()?;
        while node.depth() > 0 {
            let position = position(node, lblk);
            let at = position.unwrap_or(0);
            let Some((buffer, range)) = self.node(buffers, node, &path.range, at)? else { break };
            path.steps[path.depth].at = at;
            path.steps[path.depth].len = node.len();
            path.depth += 1;
            path.steps[path.depth].block = buffer.block();
            path.floor = if position.is_some() { range.start } else { path.floor };
            path.range = range;
            path.leaf = Some(buffer.clone());
            held = buffer;
            node = NodeView::new(&held);
        }
        path.steps[path.depth].at = node.place_of(lblk);
        path.steps[path.depth].len = node.len();
        Ok(path)
    }

    pub(super) fn view<'a>(&'a self, leaf: Option<&'a Buffer>) -> NodeView<'a> {
        NodeView::new(leaf.map_or(&self.i_block[..], |leaf| leaf))
    }

    pub(super) fn seal(&self) -> Seal {
        Seal { owner: Owner { kind: Kind::Extents, ino: self.ino.0 }, seed: self.seed }
    }

    /// Changes the node of a step. `change` returns whether the node was as expected; a node in memory always
    /// is.
    pub(super) fn change_node(
        &mut self,
        editor: &Editor<'_>,
        block: Pblk,
        change: impl Fn(&mut [u8]) -> bool,
    ) -> Result<(), EditFault> {
        let mut is_good = true;
        if block.0 == 0 {
            is_good = change(&mut self.i_block);
        } else {
            editor.edit.change(block, self.seal(), &mut |bytes| is_good = change(bytes))?;
        }
        let fact = || Malformed::new(STRUCTURE, "must stay as it was verified", block.0);
        if is_good { Ok(()) } else { Err(ReadFault::corrupt(CorruptAt::block(block), fact()).into()) }
    }

    /// Pins a block in memory, so that later changes of it cannot fail: a changed block stays in memory.
    pub(super) fn pin(&self, editor: &Editor<'_>, block: Pblk) -> Result<(), EditFault> {
        if block.0 != 0 {
            editor.edit.change(block, self.seal(), &mut |_| ())?;
        }
        Ok(())
    }

    /// The nodes above `level` with a key that changes with the first key of the node at `level`.
    pub(super) fn keys_above(path: &Path, level: usize) -> impl Iterator<Item = Step> + '_ {
        let is_last = move |above: &usize| *above + 1 == level || path.steps[above + 1].at == 0;
        (0..level).rev().take_while(is_last).map(|above| path.steps[above])
    }

    /// Sets the keys above, after the node at `level` got the first key `key`. The nodes above are pinned.
    pub(super) fn set_keys(
        &mut self,
        editor: &Editor<'_>,
        path: &Path,
        level: usize,
        key: u32,
    ) -> Result<(), EditFault> {
        for step in Self::keys_above(path, level) {
            self.change_node(editor, step.block, |bytes| set_key(bytes, step.at, key))?;
        }
        Ok(())
    }

    /// Replaces `removed` entries of the leaf from `at` on by `run`, and calls `on_success` once nothing can
    /// fail anymore. Returns `false` if there was no room and the leaf was split: look up again. `append` is
    /// the extent if it alone is new, after all others of the tree: a split puts it into a leaf of its own,
    /// and the replacement is done.
    fn replace(
        &mut self,
        editor: &Editor<'_>,
        mut path: Path,
        (at, removed): (usize, usize),
        run: &MergedExtents,
        append: Option<Extent>,
        on_success: &mut dyn FnMut(),
    ) -> Result<bool, EditFault> {
        let step = path.last();
        if step.len - removed + run.len > self.capacity(editor, path.depth) {
            self.split(editor, &path, append)?;
            return Ok(append.is_some() && path.depth > 0);
        }
        let leaf = self.view(path.leaf.as_ref());
        let first = if run.len > 0 { Some(run.list[0].lblk) } else { leaf.key(removed) };
        let key = first.filter(|key| at == 0 && path.depth > 0 && leaf.key(0) != Some(*key));
        path.leaf = None; // the bytes have no other holder: they are changed in place
        if key.is_some() {
            self.pin(editor, step.block)?;
            for above in Self::keys_above(&path, path.depth) {
                self.pin(editor, above.block)?;
            }
        }
        let (slots, len) = run.slots();
        self.change_node(editor, step.block, |bytes| splice(bytes, at, removed, &slots[..len]))?;
        on_success();
        match key {
            Some(key) => self.set_keys(editor, &path, path.depth, key).map(|()| true),
            None => Ok(true),
        }
    }

    /// Maximum number of entries of a node at this level.
    pub(super) fn capacity(&self, editor: &Editor<'_>, level: usize) -> usize {
        if level == 0 { ROOT_ENTRIES } else { extent::entries_per_block(editor.buffers.block_size()) }
    }

    /// Removes the leaf from the tree, with the nodes above that lose their only entry; `on_success` as in
    /// [`replace`](Self::replace).
    fn remove_leaf(
        &mut self,
        editor: &Editor<'_>,
        path: &Path,
        on_success: &mut dyn FnMut(),
    ) -> Result<(), EditFault> {
        let keeps = (0..path.depth).rev().find(|level| path.steps[*level].len > 1);
        let Some(level) = keeps else {
            on_success();
            init_node(&mut self.i_block, 0, &[]);
            for step in &path.steps[1..=path.depth] {
                editor.space.free(step.block);
            }
            return Ok(());
        };
        let step = path.steps[level];
        let mut key = None;
        if step.at == 0 && level > 0 {
            let node = editor.buffers.get(step.block, self.seal().owner, |_| Ok(()))?;
            key = NodeView::new(&node).key(1);
            for above in Self::keys_above(path, level) {
                self.pin(editor, above.block)?;
            }
        }
        self.change_node(editor, step.block, |bytes| splice(bytes, step.at, 1, &[]))?;
        on_success();
        if let Some(key) = key {
            self.set_keys(editor, path, level, key)?;
        }
        for step in &path.steps[level + 1..=path.depth] {
            editor.space.free(step.block);
        }
        Ok(())
    }

    /// Pulls the root's only child up into the root while it fits there. A child that cannot be read stays
    /// where it is.
    pub(super) fn shrink(&mut self, editor: &Editor<'_>) {
        loop {
            let Ok(root) = self.root() else { return };
            if root.depth() == 0 || root.len() != 1 {
                return;
            }
            let Ok(Some((child, _))) = self.node(editor.buffers, root, &WHOLE, 0) else { return };
            let node = NodeView::new(&child);
            if node.len() > ROOT_ENTRIES {
                return;
            }
            init_node(&mut self.i_block, node.depth(), node.slots());
            editor.space.free(child.block());
        }
    }
}

/// A few extents in order, with contiguous ones merged.
struct MergedExtents {
    list: [Extent; 6],
    len: usize,
    /// Whether the newest extent was merged with the one before it.
    was_merged: bool,
}

impl MergedExtents {
    fn new() -> Self {
        let none = Extent { lblk: 0, len: 0, start: 0, unwritten: false };
        Self { list: [none; 6], len: 0, was_merged: false }
    }

    fn push(&mut self, extent: Extent) {
        if extent.len == 0 {
            return;
        }
        if let Some(last) = self.list[..self.len].last_mut()
            && let Some(merged) = last.merged(&extent)
        {
            *last = merged;
            self.was_merged = true;
            return;
        }
        self.list[self.len] = extent;
        self.len += 1;
        self.was_merged = false;
    }

    fn slots(&self) -> ([Slot; 6], usize) {
        (self.list.map(|extent| extent.slot()), self.len)
    }
}

/// The part of an extent from logical block `from` to `to`; its length is 0 if there is none.
pub(super) fn part(extent: Extent, from: u64, to: u64) -> Extent {
    let (from, to) = (from.max(extent.lblk.into()), to.min(extent.end()));
    let len = to.saturating_sub(from) as u32;
    let skip = if len == 0 { 0 } else { from - u64::from(extent.lblk) };
    Extent { lblk: extent.lblk + skip as u32, len, start: extent.start + skip, ..extent }
}

/// Maps a hole.
pub(crate) fn insert(map: &mut FileMap, editor: &Editor<'_>, new: Extent) -> Result<(), EditFault> {
    loop {
        let path = map.path(editor.buffers, new.lblk)?;
        let (leaf, at) = (map.view(path.leaf.as_ref()), path.last().at);
        let before = at.checked_sub(1).and_then(|at| leaf.extent(at));
        let after = leaf.extent(at);
        let hole_end = after.map_or(path.range.end, |after| after.lblk.into());
        if before.is_some_and(|before| before.end() > new.lblk.into()) || new.end() > hole_end {
            return Err(EditFault::Occupied(Lblk(new.lblk)));
        }
        let mut run = MergedExtents::new();
        before.into_iter().for_each(|before| run.push(before));
        run.push(new);
        let is_last = after.is_none() && path.range.end == WHOLE.end;
        let append = (is_last && !run.was_merged).then_some(new);
        after.into_iter().for_each(|after| run.push(after));
        let place = (at - usize::from(before.is_some()), before.iter().count() + after.iter().count());
        if map.replace(editor, path, place, &run, append, &mut || ())? {
            return Ok(());
        }
    }
}

/// Sets the state of all mapped blocks in `range`; returns where to continue.
pub(crate) fn set_state(
    map: &mut FileMap,
    editor: &Editor<'_>,
    range: Range<u64>,
    unwritten: bool,
    extents_max: u32,
) -> Result<Option<u64>, EditFault> {
    let (mut from, mut left) = (range.start, extents_max);
    while from < range.end {
        let path = map.path(editor.buffers, from as u32)?;
        let (leaf, place) = (map.view(path.leaf.as_ref()), path.last().at);
        let ends_after = |at: &usize| leaf.extent(*at).is_some_and(|extent| extent.end() > from);
        let at = place.checked_sub(1).filter(ends_after).unwrap_or(place);
        let Some(extent) = leaf.extent(at) else {
            from = path.range.end;
            continue;
        };
        if u64::from(extent.lblk) >= range.end {
            break;
        }
        if extent.unwritten == unwritten {
            from = extent.end();
            continue;
        }
        if left == 0 {
            return Ok(Some(from));
        }
        let (before, after) = (at.checked_sub(1).and_then(|at| leaf.extent(at)), leaf.extent(at + 1));
        let mut run = MergedExtents::new();
        before.into_iter().for_each(|before| run.push(before));
        run.push(part(extent, 0, from));
        let mut changed = Extent { unwritten, ..part(extent, from, range.end) };
        let end = changed.end();
        while changed.len > 0 {
            // Only a written extent of the maximum length is too long for an unwritten one.
            let piece = Extent { len: changed.len.min(Extent::len_max(unwritten)), ..changed };
            run.push(piece);
            changed = part(changed, piece.end(), end);
        }
        run.push(part(extent, end, WHOLE.end));
        after.into_iter().for_each(|after| run.push(after));
        let place = (at - usize::from(before.is_some()), 1 + before.iter().count() + after.iter().count());
        match map.replace(editor, path, place, &run, None, &mut || ()) {
            // Report what was done; the next call fails instead.
            Err(EditFault::NoSpace) if left < extents_max => return Ok(Some(from)),
            replaced => {
                if replaced? {
                    from = end;
                    left -= 1;
                }
            }
        }
    }
    Ok(None)
}

/// Unmaps from the end of `range` backwards; returns the end of the rest.
pub(crate) fn remove_step(
    map: &mut FileMap,
    editor: &Editor<'_>,
    range: Range<u64>,
    (extents_max, blocks_max): (u32, u32),
    freed: Freed<'_>,
) -> Result<Option<u64>, EditFault> {
    let (mut end, mut left) = (range.end, extents_max.max(1));
    while range.start < end {
        if left == 0 {
            map.shrink(editor);
            return Ok(Some(end));
        }
        let (count, next) = remove_in_leaf(map, editor, range.start..end, (left, blocks_max), freed)?;
        (left, end) = (left - count, next);
    }
    map.shrink(editor);
    Ok(None)
}

/// Unmaps at most `extents_max` extents of the last leaf that reaches into `range`, or the last `blocks_max`
/// blocks of the last extent if it is longer. Returns the number of extents, and the end of the rest.
fn remove_in_leaf(
    map: &mut FileMap,
    editor: &Editor<'_>,
    mut range: Range<u64>,
    (extents_max, blocks_max): (u32, u32),
    freed: Freed<'_>,
) -> Result<(u32, u64), EditFault> {
    let path = map.path(editor.buffers, (range.end - 1) as u32)?;
    let (leaf, upto) = (map.view(path.leaf.as_ref()), path.last().at);
    if upto == 0 {
        return Ok((0, path.floor)); // an empty leaf, or one that begins behind the range: go on before it
    }
    let in_range =
        |extent: &Extent| extent.end().min(range.end).saturating_sub(range.start.max(extent.lblk.into()));
    let is_long = |at: &usize| leaf.extent(*at).is_some_and(|extent| in_range(&extent) > blocks_max.into());
    let extents_max = match (0..upto).rev().take(extents_max as usize).position(|at| is_long(&at)) {
        Some(0) => {
            let end = leaf.extent(upto - 1).map_or(range.end, |last| last.end().min(range.end));
            range.start = end - u64::from(blocks_max);
            1
        }
        Some(before) => extents_max.min(before as u32),
        None => extents_max,
    };
    let reaches = |at: &usize| leaf.extent(*at).is_some_and(|extent| extent.end() > range.start);
    let count = (0..upto).rev().take_while(reaches).take(extents_max as usize).count();
    let first = upto - count;
    let (Some(low), Some(high), 1..) = (leaf.extent(first), leaf.extent(upto - 1), count) else {
        return Ok((0, range.start));
    };
    let mut run = MergedExtents::new();
    run.push(part(low, 0, range.start));
    run.push(part(high, range.end, WHOLE.end));
    let held = path.leaf.clone();
    let root = map.i_block;
    let mut on_success = || {
        let leaf = NodeView::new(held.as_ref().map_or(&root[..], |held| held));
        for extent in (first..upto).rev().filter_map(|at| leaf.extent(at)) {
            let gone = part(extent, range.start, range.end);
            freed(Lblk(gone.lblk), Pblk(gone.start), gone.len);
        }
    };
    let next = range.start.max(low.lblk.into());
    if path.depth > 0 && run.len == 0 && count == path.last().len {
        map.remove_leaf(editor, &path, &mut on_success)?;
    } else if !map.replace(editor, path, (first, count), &run, None, &mut on_success)? {
        return Ok((0, range.end));
    }
    Ok((count as u32, next))
}
