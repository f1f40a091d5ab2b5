//! Replaces the whole map of an inode, for recovery from fast commits. Recovery first exchanges the data
//! blocks of all inodes, and then builds the trees; their nodes come from the old tree, and then from the
//! blocks that are still free.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use extant_base::Pblk;
use extant_mapping::{EditFault, MapState, Mapped, TreeSpace};

use super::{Change, Space, edit_fault};
use crate::Fault;
use crate::node::LiveInode;

/// Gives a new tree the blocks of the old one first.
struct Reusing<'a> {
    space: &'a Space<'a>,
    old: RefCell<Vec<Pblk>>,
}

impl TreeSpace for Reusing<'_> {
    fn allocate(&self, near: Pblk) -> Result<Pblk, EditFault> {
        let old = self.old.borrow_mut().pop();
        old.map_or_else(|| self.space.allocate(near), Ok)
    }

    fn free(&self, block: Pblk) {
        self.space.free(block);
    }
}

impl Change<'_> {
    /// Frees the blocks that `old` maps and `new` does not, allocates those that `new` maps and `old` does
    /// not, and counts both in i_blocks.
    ///
    /// # Errors
    /// A block to be freed is not in use, or a block to be allocated is in use; or a bitmap cannot be read.
    pub fn exchange_blocks(
        &self,
        node: &Arc<LiveInode>,
        old: &[Mapped],
        new: &[Mapped],
    ) -> Result<(), Fault> {
        let of = Fault::of(node.ino());
        let mut values = self.live.edit(node, self.edit.transaction());
        let space = Space::new(*self, &values);
        let (old, new) = (self.clusters(old), self.clusters(new));
        let is_meta = values.kind() != extant_ondisk::filetype::FileType::Regular;
        for range in minus(&old, &new) {
            let (start, len) = self.blocks(&range);
            space.count(-((range.end - range.start) as i64));
            self.alloc.free(self.edit, start, len, is_meta).map_err(&of)?;
        }
        for range in minus(&new, &old) {
            let (start, len) = self.blocks(&range);
            space.count((range.end - range.start) as i64);
            self.alloc.take_these(self.edit, start, len).map_err(&of)?;
        }
        space.update_i_blocks(&mut values);
        Ok(())
    }

    /// Builds the extent tree of an inode again, with `pieces` and nothing else. Calls `has_room` before it
    /// inserts a piece.
    ///
    /// # Errors
    /// No space for the tree; [`Fault::NoSpace`] also if `has_room` returns false; or a block of the old tree
    /// cannot be read.
    pub fn rebuild_map(
        &self,
        node: &Arc<LiveInode>,
        pieces: &[Mapped],
        has_room: &dyn Fn(u32) -> bool,
    ) -> Result<(), Fault> {
        let of = Fault::of(node.ino());
        let mut values = self.live.edit(node, self.edit.transaction());
        let space = Space::new(*self, &values);
        let buffers = &self.shared().buffers;
        // The blocks of the old tree come first: there may be no free block.
        let space = Reusing { space: &space, old: RefCell::default() };
        let mut map = values.map();
        map.walk_tree_blocks(buffers, &mut |block| {
            space.old.borrow_mut().push(block);
            Some(())
        })
        .map_err(&of)?;
        map.i_block = extant_mapping::FileMap::EMPTY;
        let editor = extant_mapping::Editor { buffers, edit: self.edit, space: &space };
        for piece in pieces.iter().filter(|piece| piece.state != MapState::Hole) {
            let mut left = *piece;
            while left.len > 0 {
                if !has_room(extant_mapping::credits_insert(map.depth())) {
                    return Err(Fault::NoSpace);
                }
                let done =
                    map.insert(&editor, left).map_err(|fault: EditFault| edit_fault(node.ino(), fault))?;
                left = behind(left, done);
            }
        }
        let Reusing { space, old } = space;
        old.into_inner().into_iter().for_each(|block| space.free(block));
        values.set_map(&map);
        space.update_i_blocks(&mut values);
        Ok(())
    }

    /// Gives a file the blocks `theirs`, which another file has, in the place of its own, `own`. The caller
    /// does the same for the other file, in the same handle.
    ///
    /// # Errors
    /// As [`rebuild_map`](Self::rebuild_map).
    pub fn take_blocks(&self, node: &Arc<LiveInode>, own: &[Mapped], theirs: &[Mapped]) -> Result<(), Fault> {
        let count = |pieces: &[Mapped]| -> i64 {
            self.clusters(pieces).iter().map(|range| (range.end - range.start) as i64).sum()
        };
        {
            let mut values = self.live.edit(node, self.edit.transaction());
            let space = Space::new(*self, &values);
            space.count(count(theirs) - count(own));
            space.update_i_blocks(&mut values);
        }
        self.rebuild_map(node, theirs, &|_| true)
    }

    /// The clusters of all pieces, each once, in order.
    fn clusters(&self, pieces: &[Mapped]) -> Vec<Range<u64>> {
        let geometry = &self.shared().geometry;
        let of = |block: u64| block.saturating_sub(geometry.first_data_block.into()) >> geometry.cluster_log;
        let mut ranges: Vec<Range<u64>> = pieces
            .iter()
            .filter_map(|piece| match piece.state {
                MapState::Written(start) | MapState::Unwritten(start) => {
                    Some(of(start.0)..of(start.0 + u64::from(piece.len) - 1) + 1)
                }
                MapState::Hole => None,
            })
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }

    /// First block and number of blocks of a range of clusters; the file system may end inside its last
    /// cluster.
    fn blocks(&self, clusters: &Range<u64>) -> (Pblk, u64) {
        let geometry = &self.shared().geometry;
        let block = |cluster: u64| {
            let block = (cluster << geometry.cluster_log) + u64::from(geometry.first_data_block);
            block.min(geometry.blocks)
        };
        let start = block(clusters.start);
        (Pblk(start), block(clusters.end) - start)
    }
}

/// A piece without its first `len` blocks.
fn behind(piece: Mapped, len: u32) -> Mapped {
    let moved = |block: Pblk| Pblk(block.0 + u64::from(len));
    let state = match piece.state {
        MapState::Hole => MapState::Hole,
        MapState::Written(block) => MapState::Written(moved(block)),
        MapState::Unwritten(block) => MapState::Unwritten(moved(block)),
    };
    // After the last block of a map there is none; then nothing is left of the piece either.
    let lblk = extant_base::Lblk(piece.lblk.0.saturating_add(len));
    Mapped { lblk, len: piece.len - len, state }
}

/// The numbers that are in `a` and not in `b`; both are sorted, without overlaps.
fn minus(a: &[Range<u64>], b: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut others = b.iter().peekable();
    for range in a {
        let mut start = range.start;
        while let Some(other) = others.peek() {
            if other.end <= start {
                others.next();
                continue;
            }
            if other.start >= range.end {
                break;
            }
            if other.start > start {
                left.push(start..other.start);
            }
            start = other.end;
            if start >= range.end {
                break;
            }
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_is_what_sets_of_numbers_say() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let mut ranges = || {
                let (mut at, mut ranges) = (random(5), Vec::new());
                for _ in 0..random(6) {
                    let end = at + 1 + random(6);
                    ranges.push(at..end);
                    at = end + 1 + random(4);
                }
                ranges
            };
            let (a, b) = (ranges(), ranges());
            let has = |ranges: &[Range<u64>], n: u64| ranges.iter().any(|range| range.contains(&n));
            let left = minus(&a, &b);
            assert!(
                (0..100).all(|n| has(&left, n) == (has(&a, n) && !has(&b, n))),
                "{a:?} - {b:?} = {left:?}"
            );
        }
    }
}
