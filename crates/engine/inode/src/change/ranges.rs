//! Moves blocks within a file, to collapse and insert ranges; a bounded number per call.
//!
//! Does **not** own: sizes, cached data and cached extent status of the file, the hole that the blocks move
//! into. With clusters, the caller ensures that positions and distances are multiples of the cluster size,
//! because a logical cluster has one physical cluster.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{CorruptAt, Ino, Malformed};
use extant_mapping::{EditFault, Editor, FileMap};

use super::{Change, Space, edit_fault};
use crate::node::LiveInode;
use crate::{Fault, Shared};

impl Change<'_> {
    /// Moves everything from logical block `from` on by `by` blocks towards the front, into the hole there: a
    /// bounded number of extents per call, from the front on. Returns the block to continue at, with another
    /// handle, or `None` if all are moved. Needs [`shift_credits`](Self::shift_credits).
    ///
    /// # Errors
    /// A block of the map cannot be read, or there is no hole before `from`. This step moved nothing.
    ///
    /// # Panics
    /// If the inode has no extents, `by` is 0, or there are fewer than `by` blocks before `from`.
    pub fn shift_left(&self, node: &Arc<LiveInode>, from: u64, by: u32) -> Result<Option<u64>, Fault> {
        self.shift(node, |map, editor| map.shift_left_step(editor, from, by, u32::MAX))
    }

    /// Moves everything in `range` by `by` blocks towards the end: a bounded number of extents per call, from
    /// the end backwards. In the first call, `range` ends at 2^32. Returns the end of the remaining range for
    /// the next call, with another handle, or `None` if all are moved. Needs
    /// [`shift_credits`](Self::shift_credits).
    ///
    /// # Errors
    /// The last block would exceed the maximum block number ([`Fault::TooLarge`]), or there is no space to
    /// split an extent; only the first step returns these two. A block of the map cannot be read, or there is
    /// no hole after `range`. This step moved nothing.
    ///
    /// # Panics
    /// If the inode has no extents, or `by` is 0.
    pub fn shift_right(
        &self,
        node: &Arc<LiveInode>,
        range: Range<u64>,
        by: u32,
    ) -> Result<Option<u64>, Fault> {
        self.shift(node, |map, editor| map.shift_right_step(editor, range, by, u32::MAX))
    }

    /// Number of blocks that one step of [`shift_left`](Self::shift_left) or
    /// [`shift_right`](Self::shift_right) may change.
    #[must_use]
    pub fn shift_credits(shared: &Shared) -> u32 {
        // The tree, and a bitmap for each node that is allocated or freed.
        extant_mapping::credits_shift(5, u32::MAX, shared.geometry.block_size)
            + extant_mapping::credits_insert(5)
    }

    fn shift(
        &self,
        node: &Arc<LiveInode>,
        step: impl FnOnce(&mut FileMap, &Editor<'_>) -> Result<Option<u64>, EditFault>,
    ) -> Result<Option<u64>, Fault> {
        let ino = node.ino();
        let before = self.edit.changes();
        let mut values = self.hand_over(node);
        let space = Space::new(*self, &values);
        let editor = Editor { buffers: &self.shared().buffers, edit: self.edit, space: &space };
        let mut map = values.map();
        let left = step(&mut map, &editor);
        values.set_map(&map);
        space.update_i_blocks(&mut values);
        match left {
            Ok(left) => {
                values.changed_in = self.edit.transaction();
                space.freed().map_err(Fault::of(ino))?;
                Ok(left)
            }
            Err(EditFault::Read(fault)) => Err(edit_fault(ino, EditFault::Read(fault))),
            Err(refused) => {
                // The change was undone, or refused before anything changed.
                self.edit.mark_complete(before);
                Err(shift_fault(ino, refused))
            }
        }
    }
}

/// Converts the reason why nothing was moved.
fn shift_fault(ino: Ino, fault: EditFault) -> Fault {
    let EditFault::Occupied(lblk) = fault else { return edit_fault(ino, fault) };
    let fact = Malformed::new("block map", "the target of a move must be a hole", lblk.0);
    Fault::Corrupt(extant_base::Corrupt::at(CorruptAt::ino(ino).at_lblk(lblk), fact))
}
