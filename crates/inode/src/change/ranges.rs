//! Moving what a file has to other places in it, as collapsing and inserting ranges do: a bounded part per
//! call.
//!
//! Does **not** own: sizes, what is known of the file in memory (its bytes, its extents' status), the hole
//! that is moved into. With clusters the caller sees to it that places and distances are whole clusters, as a
//! logical cluster has one physical one.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{CorruptAt, Ino, Malformed};
use extant_mapping::{EditFault, Editor, FileMap};

use super::{Change, Space, edit_fault};
use crate::live::LiveInode;
use crate::{Fault, Shared};

impl Change<'_> {
    /// Moves everything from logical block `from` on by `by` blocks towards the front, into the hole there: a
    /// bounded part, from the front on. Where to go on, with another handle, or `None` when all is done.
    /// Needs [`shift_credits`](Self::shift_credits).
    ///
    /// # Errors
    /// Nothing was moved by this step: a block of the map cannot be read, or there is no hole before `from`.
    ///
    /// # Panics
    /// When the inode has no extents, `by` is 0, or there are no `by` blocks before `from`.
    pub fn shift_left(&self, node: &Arc<LiveInode>, from: u64, by: u32) -> Result<Option<u64>, Fault> {
        self.shift(node, |map, editor| map.shift_left_step(editor, from, by, u32::MAX))
    }

    /// Moves everything in `range`, which ends at 2^32 first, by `by` blocks towards the back: a bounded
    /// part, from the end backwards. Where what is left to do ends (call again with that end and another
    /// handle), or `None` when all is done. Needs [`shift_credits`](Self::shift_credits).
    ///
    /// # Errors
    /// Nothing was moved by this step: the last block would be one that no file has ([`Fault::TooLarge`]) or
    /// there is no space to split an extent, either of which only the first step says; a block of the map
    /// cannot be read, or there is no hole behind `range`.
    ///
    /// # Panics
    /// When the inode has no extents, or `by` is 0.
    pub fn shift_right(
        &self,
        node: &Arc<LiveInode>,
        range: Range<u64>,
        by: u32,
    ) -> Result<Option<u64>, Fault> {
        self.shift(node, |map, editor| map.shift_right_step(editor, range, by, u32::MAX))
    }

    /// Blocks that one step of [`shift_left`](Self::shift_left) or [`shift_right`](Self::shift_right) may
    /// change.
    #[must_use]
    pub fn shift_credits(shared: &Shared) -> u32 {
        // The tree; and a bitmap for each node that is made or given back.
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
        space.settle(&mut values);
        match left {
            Ok(left) => {
                values.changed_in = self.edit.transaction();
                space.freed().map_err(Fault::of(ino))?;
                Ok(left)
            }
            Err(EditFault::Read(fault)) => Err(edit_fault(ino, EditFault::Read(fault))),
            Err(refused) => {
                // Taken back, or refused before anything was changed.
                self.edit.settle(before);
                Err(shift_fault(ino, refused))
            }
        }
    }
}

/// Why nothing was moved.
fn shift_fault(ino: Ino, fault: EditFault) -> Fault {
    let EditFault::Occupied(lblk) = fault else { return edit_fault(ino, fault) };
    let fact = Malformed::new("block map", "the target of a move must be a hole", lblk.0);
    Fault::Corrupt(extant_base::Corrupt::at(CorruptAt::ino(ino).at_lblk(lblk), fact))
}
