//! Extent trees: lookup from the root in `i_block` through cached nodes, in their raw bytes.
//!
//! ```text
//! i_block:  | header | 0 -> 9001 | 700 -> 9002 |                   range of the left child: 0 .. 700
//! 9001:     | header | 0, 10 blocks at 500 | 12, 3 at 600 | ...    blocks 10 and 11: a hole
//! ```

mod edit;
mod shift;
mod split;

use std::cell::Cell;
use std::ops::{ControlFlow, Range};

use extant_base::{CorruptAt, Lblk, Malformed, Pblk};
use extant_buffer::{Buffer, Buffers, Kind, Owner, ReadFault};
use extant_ondisk::extent::{self, Extent, NodeView};

use crate::{FileMap, MapLookup, MapState, Mapped, lies_inside, outside};

const STRUCTURE: &str = "extent node";

/// Maximum number of leaves for one readahead of a walk, if they are contiguous on the device.
const AHEAD_MAX: usize = 32;

/// The last entry with a key of at most `lblk`.
fn position(node: NodeView<'_>, lblk: u32) -> Option<usize> {
    node.place_of(lblk).checked_sub(1)
}

fn child(node: NodeView<'_>, at: usize) -> Option<Pblk> {
    node.index(at).map(|index| Pblk(index.child))
}

/// The part of a node's `range` that its entry `at` may map.
fn child_range(node: NodeView<'_>, at: usize, range: &Range<u64>) -> Range<u64> {
    let key_of = |at| node.key(at).map_or(range.end, u64::from);
    key_of(at)..key_of(at + 1)
}

/// The checks that need the path to a node: it is one level below its parent, and within its range.
fn check(node: NodeView<'_>, depth: u16, range: &Range<u64>) -> Result<(), Malformed> {
    let rule = |holds, rule, found| Malformed::unless(holds, STRUCTURE, rule, found);
    rule(node.depth() == depth, "must be one level below its parent", node.depth().into())?;
    let Some(last_at) = node.len().checked_sub(1) else { return Ok(()) };
    let (first, last) = (node.key(0).map_or(0, u64::from), node.key(last_at).map_or(0, u64::from));
    rule(first >= range.start, "must begin at or after its key in the parent", first)?;
    let end = match node.extent(last_at) {
        Some(extent) if depth == 0 => extent.end(),
        _ => last + 1,
    };
    rule(end <= range.end, "must end before the parent's next key", end)
}

/// All logical blocks that a file can have.
pub(crate) const WHOLE: Range<u64> = 0..1 << 32;

impl FileMap {
    pub(crate) fn root(&self) -> Result<NodeView<'_>, ReadFault> {
        NodeView::verified(&self.i_block).map_err(|fact| ReadFault::corrupt(CorruptAt::ino(self.ino), fact))
    }

    /// The child node of entry `at` of `parent`, with its range. `None` past the last entry.
    pub(crate) fn node(
        &self,
        buffers: &Buffers,
        parent: NodeView<'_>,
        range: &Range<u64>,
        at: usize,
    ) -> Result<Option<(Buffer, Range<u64>)>, ReadFault> {
        self.node_or_read(buffers, parent, range, at, &Cell::new(false))
    }

    /// Like [`inode_to_change`](Self::inode_to_change); sets `was_read` if it read the node from the device.
    fn node_or_read(
        &self,
        buffers: &Buffers,
        parent: NodeView<'_>,
        range: &Range<u64>,
        at: usize,
        was_read: &Cell<bool>,
    ) -> Result<Option<(Buffer, Range<u64>)>, ReadFault> {
        let (Some(block), Some(depth)) = (child(parent, at), parent.depth().checked_sub(1)) else {
            return Ok(None);
        };
        // No file owns block 0, and `change_node` takes it for the root. The cache rejects other blocks
        // outside the file system.
        if block.0 == 0 {
            return Err(outside(parent.key(at).unwrap_or(0), block));
        }
        let buffer = buffers.get(block, Owner { kind: Kind::Extents, ino: self.ino.0 }, |bytes| {
            was_read.set(true);
            if let Some(seed) = self.seed {
                let stored = bytes.last_chunk().map_or(0, |last| u32::from_le_bytes(*last));
                Malformed::unless(extent::verify(bytes, seed), STRUCTURE, "checksum must match", stored)?;
            }
            NodeView::verified(bytes).map(drop)
        })?;
        let range = child_range(parent, at, range);
        let checked = check(NodeView::new(&buffer), depth, &range);
        checked.map_err(|fact| ReadFault::corrupt(CorruptAt::block(block), fact))?;
        Ok(Some((buffer, range)))
    }
}

pub(crate) use edit::{insert, remove_step, set_state};
pub(crate) use shift::{LEAVES_MAX, shift_left_step, shift_right_step};

pub(crate) fn find(map: &FileMap, buffers: &Buffers, lblk: Lblk, len_max: u32) -> Result<Mapped, ReadFault> {
    let mut held;
    let mut node = map.root()?;
    let mut range = WHOLE;
    while node.depth() > 0 {
        let Some(at) = position(node, lblk.0) else {
            return Ok(hole(lblk, child_range(node, 0, &range).start, len_max));
        };
        let Some((buffer, child_range)) = map.node(buffers, node, &range, at)? else { break };
        (held, range) = (buffer, child_range);
        node = NodeView::new(&held);
    }
    let at = position(node, lblk.0);
    let next = at.map_or(0, |at| at + 1);
    let found = at.and_then(|at| node.extent(at)).filter(|extent| u64::from(lblk.0) < extent.end());
    let Some(extent) = found else {
        let end = node.extent(next).map_or(range.end, |extent| extent.lblk.into());
        return Ok(hole(lblk, end, len_max));
    };
    if !lies_inside(buffers, Pblk(extent.start), extent.len) {
        return Err(outside(extent.lblk, Pblk(extent.start)));
    }
    let skip = lblk.0 - extent.lblk;
    let mut len = extent.len - skip;
    for at in next.. {
        let Some(more) = node.extent(at).filter(|_| len < len_max) else { break };
        let follows = more.unwritten == extent.unwritten
            && u64::from(more.lblk) == u64::from(lblk.0) + u64::from(len)
            && more.start == extent.start + u64::from(skip) + u64::from(len);
        if !follows || !lies_inside(buffers, Pblk(more.start), more.len) {
            break;
        }
        len = len.saturating_add(more.len);
    }
    Ok(mapped(lblk, len.min(len_max), extent.start + u64::from(skip), extent.unwritten))
}

pub(crate) fn around(map: &FileMap, buffers: &Buffers, lblk: Lblk) -> Result<MapLookup, ReadFault> {
    let mut held;
    let mut node = map.root()?;
    let (mut range, was_read) = (WHOLE, Cell::new(false));
    while node.depth() > 0 {
        let Some(at) = position(node, lblk.0) else {
            let end = child_range(node, 0, &range).start;
            return Ok(MapLookup { here: hole_of(range.start..end), leaf: Vec::new() });
        };
        was_read.set(false);
        let Some((buffer, child_range)) = map.node_or_read(buffers, node, &range, at, &was_read)? else {
            break;
        };
        (held, range) = (buffer, child_range);
        node = NodeView::new(&held);
    }
    let piece = |extent: Extent| mapped(Lblk(extent.lblk), extent.len, extent.start, extent.unwritten);
    let is_inside = |extent: &Extent| lies_inside(buffers, Pblk(extent.start), extent.len);
    let leaf = match was_read.get() {
        true => (0..).map_while(|at| node.extent(at)).filter(is_inside).map(piece).collect(),
        false => Vec::new(),
    };
    let at = position(node, lblk.0);
    let before = at.and_then(|at| node.extent(at));
    if let Some(extent) = before.filter(|extent| u64::from(lblk.0) < extent.end()) {
        return match is_inside(&extent) {
            true => Ok(MapLookup { here: piece(extent), leaf }),
            false => Err(outside(extent.lblk, Pblk(extent.start))),
        };
    }
    let start = before.map_or(range.start, |before| before.end());
    let end = node.extent(at.map_or(0, |at| at + 1)).map_or(range.end, |extent| extent.lblk.into());
    Ok(MapLookup { here: hole_of(start..end), leaf })
}

fn hole_of(range: Range<u64>) -> Mapped {
    let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
    Mapped { lblk: Lblk(range.start as u32), len, state: MapState::Hole }
}

fn hole(lblk: Lblk, end: u64, len_max: u32) -> Mapped {
    let len = end.saturating_sub(lblk.0.into()).clamp(1, len_max.into());
    Mapped { lblk, len: len as u32, state: MapState::Hole }
}

fn mapped(lblk: Lblk, len: u32, start: u64, unwritten: bool) -> Mapped {
    let state = if unwritten { MapState::Unwritten(Pblk(start)) } else { MapState::Written(Pblk(start)) };
    Mapped { lblk, len, state }
}

/// A walk in progress: the map, the cache, and the callback.
struct Walk<'a, T> {
    map: &'a FileMap,
    buffers: &'a Buffers,
    each: &'a mut dyn FnMut(T) -> Option<()>,
}

pub(crate) fn walk(
    map: &FileMap,
    buffers: &Buffers,
    from: Lblk,
    end: u64,
    each: &mut dyn FnMut(Mapped) -> Option<()>,
) -> Result<(), ReadFault> {
    let mut walk = Walk { map, buffers, each };
    walk.extents_below(map.root()?, &WHOLE, from, end).map(drop)
}

impl Walk<'_, Mapped> {
    /// The recursion depth is at most the root's depth, 5: each level is checked to be one lower.
    fn extents_below(
        &mut self,
        node: NodeView<'_>,
        range: &Range<u64>,
        from: Lblk,
        end: u64,
    ) -> Result<ControlFlow<()>, ReadFault> {
        let mut ahead_until = 0;
        for at in position(node, from.0).unwrap_or(0)..node.len() {
            if node.key(at).is_some_and(|key| u64::from(key) >= end) {
                return Ok(ControlFlow::Break(()));
            }
            if node.depth() == 0 {
                if self.emit(node, at, from)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                continue;
            }
            if node.depth() == 1 && at >= ahead_until {
                ahead_until = at + self.read_ahead(node, at);
            }
            let Some((buffer, range)) = self.map.node(self.buffers, node, range, at)? else { break };
            if self.extents_below(NodeView::new(&buffer), &range, from, end)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn emit(&mut self, leaf: NodeView<'_>, at: usize, from: Lblk) -> Result<ControlFlow<()>, ReadFault> {
        let Some(extent) = leaf.extent(at).filter(|extent| extent.end() > u64::from(from.0)) else {
            return Ok(ControlFlow::Continue(()));
        };
        if !lies_inside(self.buffers, Pblk(extent.start), extent.len) {
            return Err(outside(extent.lblk, Pblk(extent.start)));
        }
        let skip = from.0.saturating_sub(extent.lblk);
        let start = extent.start + u64::from(skip);
        let piece = mapped(Lblk(extent.lblk + skip), extent.len - skip, start, extent.unwritten);
        Ok((self.each)(piece).map_or(ControlFlow::Break(()), ControlFlow::Continue))
    }

    /// Prefetches the leaves from entry `at` on that are contiguous on the device. Returns the number of
    /// their entries.
    fn read_ahead(&self, node: NodeView<'_>, at: usize) -> usize {
        let Some(first) = child(node, at) else { return 1 };
        let alike =
            |i: &usize| child(node, at + i).is_some_and(|child| Some(child) == first.checked_add(*i as u64));
        let run = 1 + (1..AHEAD_MAX).take_while(alike).count();
        if run > 1 {
            self.buffers.prefetch(first, run as u32);
        }
        run
    }
}

pub(crate) fn walk_nodes(
    map: &FileMap,
    buffers: &Buffers,
    each: &mut dyn FnMut(Pblk) -> Option<()>,
) -> Result<(), ReadFault> {
    Walk { map, buffers, each }.nodes_below(map.root()?, &WHOLE).map(drop)
}

impl Walk<'_, Pblk> {
    fn nodes_below(&mut self, node: NodeView<'_>, range: &Range<u64>) -> Result<ControlFlow<()>, ReadFault> {
        let children = if node.depth() == 0 { 0 } else { node.len() };
        for at in 0..children {
            let Some(child) = child(node, at) else { break };
            if !lies_inside(self.buffers, child, 1) {
                return Err(outside(node.key(at).unwrap_or(0), child));
            }
            if (self.each)(child).is_none() {
                return Ok(ControlFlow::Break(()));
            }
            if node.depth() > 1
                && let Some((buffer, range)) = self.map.node(self.buffers, node, range, at)?
                && self.nodes_below(NodeView::new(&buffer), &range)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
