//! Moving extents towards the front or the back: the keys of a leaf in one change, and from there the nodes
//! above.
//!
//! ```text
//! left, from 20 by 10    | 0..10 | 20..30 | 35..40 |   ->   | 0..20 | 25..30 |           merged at the seam
//! right, from 20 by 10   | 0..30 | 35..40 |            ->   | 0..20 | 30..40 | 45..50 |  split at the start
//! ```
//!
//! A left shift goes from front to back, a right shift from back to front. So there is always a hole of `by`
//! blocks for a leaf to move into, and no node ever reaches into its neighbor's range. No leaf loses its last
//! entry. The only leaf that needs room for another entry gets it before anything is moved, so a shift that
//! has begun needs no more blocks.

use std::ops::Range;

use extant_base::{CorruptAt, Lblk, Malformed, Pblk};
use extant_buffer::ReadFault;
use extant_ondisk::extent::{Extent, NodeView, set_key, splice};

use super::edit::{Path, part};
use super::{STRUCTURE, WHOLE, walk};
use crate::{EditFault, Editor, FileMap};

/// Maximum number of leaves that one step changes.
pub(crate) const LEAVES_MAX: u32 = 16;

/// What one step may still change.
struct StepBudget {
    extents: u32,
    leaves: u32,
    has_moved: bool,
}

impl StepBudget {
    fn new(extents_max: u32) -> Self {
        Self { extents: extents_max, leaves: LEAVES_MAX, has_moved: false }
    }

    fn is_none(&self) -> bool {
        self.extents == 0 || self.leaves == 0
    }

    /// Returns where to continue after a leaf. `None` if an error ends the step: what was moved before stays
    /// moved, and the next step, which meets the error again, changes nothing.
    fn after(&mut self, leaf: Result<(u32, u64), EditFault>) -> Result<Option<u64>, EditFault> {
        match leaf {
            Ok((0, next)) => Ok(Some(next)),
            Ok((extents, next)) => {
                (self.extents, self.leaves, self.has_moved) = (self.extents - extents, self.leaves - 1, true);
                Ok(Some(next))
            }
            Err(_) if self.has_moved => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

/// Moves the extents from `from` on towards the front, in order; returns where to continue.
pub(crate) fn shift_left_step(
    map: &mut FileMap,
    editor: &Editor<'_>,
    mut from: u64,
    by: u32,
    extents_max: u32,
) -> Result<Option<u64>, EditFault> {
    must_be_hole(map, editor, from - u64::from(by)..from)?;
    let mut budget = StepBudget::new(extents_max);
    while from < WHOLE.end && !budget.is_none() {
        let moved = left_in_leaf(map, editor, from, by, budget.extents);
        let Some(next) = budget.after(moved)? else { break };
        from = next;
    }
    map.shrink(editor);
    Ok(Some(from).filter(|from| *from < WHOLE.end))
}

/// Moves the extents in `range` towards the back, from its end; returns the end of the rest.
pub(crate) fn shift_right_step(
    map: &mut FileMap,
    editor: &Editor<'_>,
    range: Range<u64>,
    by: u32,
    extents_max: u32,
) -> Result<Option<u64>, EditFault> {
    must_be_hole(map, editor, range.end..range.end + u64::from(by))?;
    must_fit(map, editor, &range, by)?;
    make_room(map, editor, range.start)?;
    let (mut end, mut budget) = (range.end, StepBudget::new(extents_max));
    while range.start < end && !budget.is_none() {
        let moved = right_in_leaf(map, editor, range.start..end, by, budget.extents);
        let Some(next) = budget.after(moved)? else { break };
        end = next;
    }
    Ok(Some(end).filter(|end| range.start < *end))
}

/// Moves at most `extents_max` extents of the first leaf that has some from `from` on. Returns their number,
/// and where to continue.
fn left_in_leaf(
    map: &mut FileMap,
    editor: &Editor<'_>,
    from: u64,
    by: u32,
    extents_max: u32,
) -> Result<(u32, u64), EditFault> {
    let path = map.path(editor.buffers, from as u32)?;
    let (leaf, place) = (map.view(path.leaf.as_ref()), path.last().at);
    let begins_there = |at: &usize| leaf.key(*at).is_some_and(|key| u64::from(key) >= from);
    let at = place.checked_sub(1).filter(begins_there).unwrap_or(place);
    let count = (leaf.len() - at).min(extents_max as usize);
    let (Some(first), Some(last), 1..) = (leaf.extent(at), leaf.extent((at + count).wrapping_sub(1)), count)
    else {
        return Ok((0, path.range.end));
    };
    let first = Extent { lblk: first.lblk - by, ..first };
    let before = at.checked_sub(1).and_then(|at| leaf.extent(at));
    let merged = before.and_then(|before| before.merged(&first));
    let key = (at == 0).then_some(first.lblk);
    if let Some(key) = key {
        must_follow(map, editor, &path, key)?;
    }
    let change = |bytes: &mut [u8]| {
        let is_moved = move_keys(bytes, at..at + count, |key| key.wrapping_sub(by));
        is_moved && merged.is_none_or(|merged| splice(bytes, at - 1, 2, &[merged.slot()]))
    };
    change_leaf(map, editor, path, key, change)?;
    Ok((count as u32, last.end()))
}

/// Moves at most `extents_max` extents of the last leaf that reaches into `range`. Returns their number, and
/// the end of the rest.
fn right_in_leaf(
    map: &mut FileMap,
    editor: &Editor<'_>,
    range: Range<u64>,
    by: u32,
    extents_max: u32,
) -> Result<(u32, u64), EditFault> {
    let path = map.path(editor.buffers, (range.end - 1) as u32)?;
    let (leaf, upto) = (map.view(path.leaf.as_ref()), path.last().at);
    if upto == 0 {
        return Ok((0, path.floor)); // an empty leaf, or one that begins behind the range: go on before it
    }
    let reaches = |at: &usize| leaf.extent(*at).is_some_and(|extent| extent.end() > range.start);
    let count = (0..upto).rev().take_while(reaches).take(extents_max as usize).count();
    let first = upto - count;
    let (Some(low), Some(high), 1..) = (leaf.extent(first), leaf.extent(upto - 1), count) else {
        return Ok((0, range.start));
    };
    let end = high.end() + u64::from(by);
    let fact =
        Malformed::unless(end <= path.range.end, STRUCTURE, "must end before the parent's next key", end);
    fact.map_err(|fact| corrupt(&path, fact))?;
    let (stays, goes) = (part(low, 0, range.start), part(low, range.start, WHOLE.end));
    let goes = Extent { lblk: goes.lblk + by, ..goes };
    let key = (first == 0 && stays.len == 0).then_some(goes.lblk);
    let change = |bytes: &mut [u8]| {
        let moved = |key: u32| key.wrapping_add(by);
        if stays.len == 0 {
            return move_keys(bytes, first..upto, moved);
        }
        splice(bytes, first, 1, &[stays.slot(), goes.slot()]) && move_keys(bytes, first + 2..upto + 1, moved)
    };
    change_leaf(map, editor, path, key, change)?;
    Ok((count as u32, range.start.max(low.lblk.into())))
}

/// Changes the leaf of a path, as a whole or not at all. `key` is its new first key, if that changes.
fn change_leaf(
    map: &mut FileMap,
    editor: &Editor<'_>,
    mut path: Path,
    key: Option<u32>,
    change: impl Fn(&mut [u8]) -> bool,
) -> Result<(), EditFault> {
    path.leaf = None; // the bytes have no other holder: they are changed in place
    let block = path.last().block;
    if key.is_some() {
        map.pin(editor, block)?;
        for above in FileMap::keys_above(&path, path.depth) {
            map.pin(editor, above.block)?;
        }
    }
    map.change_node(editor, block, change)?;
    key.map_or(Ok(()), |key| map.set_keys(editor, &path, path.depth, key))
}

/// Changes the first blocks of these entries.
fn move_keys(bytes: &mut [u8], entries: Range<usize>, moved: impl Fn(u32) -> u32) -> bool {
    entries.into_iter().all(|at| {
        let key = NodeView::new(bytes).key(at);
        key.is_some_and(|key| set_key(bytes, at, moved(key)))
    })
}

/// Checks that nothing is mapped in `range`, within the logical blocks of a file.
fn must_be_hole(map: &FileMap, editor: &Editor<'_>, range: Range<u64>) -> Result<(), EditFault> {
    let mut found = None;
    if let Ok(from) = u32::try_from(range.start) {
        walk(map, editor.buffers, Lblk(from), range.end, &mut |mapped| {
            found = Some(mapped.lblk);
            None
        })?;
    }
    found.map_or(Ok(()), |lblk| Err(EditFault::Occupied(lblk)))
}

/// Checks that the last mapped block in `range` stays a valid block number when moved by `by`.
fn must_fit(map: &FileMap, editor: &Editor<'_>, range: &Range<u64>, by: u32) -> Result<(), EditFault> {
    let mut end = range.end;
    while range.start < end {
        let path = map.path(editor.buffers, (end - 1) as u32)?;
        let last = path.last().at.checked_sub(1).and_then(|at| map.view(path.leaf.as_ref()).extent(at));
        let Some(last) = last else {
            end = path.floor;
            continue;
        };
        // As in `FileMap::insert`: the last block number stands for "no block".
        let fits = last.end() <= range.start || last.end() + u64::from(by) < WHOLE.end;
        return if fits { Ok(()) } else { Err(EditFault::TooLarge) };
    }
    Ok(())
}

/// If an extent has `from` in its middle, makes room for one more entry in its leaf.
fn make_room(map: &mut FileMap, editor: &Editor<'_>, from: u64) -> Result<(), EditFault> {
    let Ok(lblk) = u32::try_from(from) else { return Ok(()) };
    let path = map.path(editor.buffers, lblk)?;
    let step = path.last();
    let extent = step.at.checked_sub(1).and_then(|at| map.view(path.leaf.as_ref()).extent(at));
    let is_inside = extent.is_some_and(|extent| extent.lblk < lblk && extent.end() > from);
    if is_inside && step.len >= map.capacity(editor, path.depth) {
        map.split(editor, &path, None)?;
    }
    Ok(())
}

/// Checks that a leaf with the new first key `key` begins after the key of the one before. Only a damaged
/// tree violates it, with an empty leaf in the hole.
fn must_follow(map: &FileMap, editor: &Editor<'_>, path: &Path, key: u32) -> Result<(), EditFault> {
    let Some(level) = (0..path.depth).rev().find(|level| path.steps[*level].at > 0) else { return Ok(()) };
    let step = path.steps[level];
    let held = match step.block {
        Pblk(0) => None,
        block => Some(editor.buffers.get(block, map.seal().owner, |_| Ok(()))?),
    };
    let before = map.view(held.as_ref()).key(step.at - 1);
    let rule = Malformed::unless(before < Some(key), STRUCTURE, "must begin after the one before", key);
    rule.map_err(|fact| corrupt(path, fact))
}

fn corrupt(path: &Path, fact: Malformed) -> EditFault {
    ReadFault::corrupt(CorruptAt::block(path.last().block), fact).into()
}
