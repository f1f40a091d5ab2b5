//! Changes of block maps: the part common to all kinds of maps.

use std::ops::Range;

use extant_base::BlockSize;
use extant_ondisk::extent::{Extent, MAX_DEPTH, ROOT_ENTRIES, entries_per_block};

use crate::editor::{EditFault, Editor, Freed};
use crate::{FileMap, MapState, Mapped, indirect, tree};

impl FileMap {
    /// Maps a hole to blocks that belong to the file from now on: as much from the front of `mapped` as one
    /// change can do. Returns the number of blocks, at least 1; call again for the rest.
    ///
    /// One change maps at most 32768 written or 32767 unwritten blocks; without extents, at most the blocks
    /// with slots in one indirect block. Needs [`credits_insert`] blocks. `i_block` may change: the caller
    /// writes the inode.
    ///
    /// # Errors
    /// Nothing was changed then: the range is mapped already, the tree needs a block and cannot allocate it,
    /// or a block cannot be read.
    ///
    /// # Panics
    /// If `mapped` is a hole, is empty, or is unwritten in a file without extents, which have no such state.
    pub fn insert(&mut self, editor: &Editor<'_>, mapped: Mapped) -> Result<u32, EditFault> {
        let (start, unwritten) = match mapped.state {
            MapState::Written(start) => (start, false),
            MapState::Unwritten(start) => (start, true),
            MapState::Hole => panic!("a hole is made by removing"),
        };
        assert!(mapped.len > 0, "no block to map");
        if !self.extents {
            assert!(!unwritten, "a map without extents has no unwritten blocks");
            let inserted = indirect::insert(self, editor, mapped.lblk, start, mapped.len);
            return inserted.map_err(|fault| self.own(fault));
        }
        let len = mapped.len.min(Extent::len_max(unwritten));
        let new = Extent { lblk: mapped.lblk.0, len, start: start.0, unwritten };
        // The last block number stands for "no block" in a file's size: it is never mapped.
        if new.end() >= 1 << 32 || start.checked_add(len.into()).is_none_or(|end| end.0 > 1 << 48) {
            return Err(EditFault::TooLarge);
        }
        tree::insert(self, editor, new).map_err(|fault| self.own(fault))?;
        Ok(len)
    }

    /// Gives all mapped blocks in `range` the state `unwritten` (or written), for example after their data
    /// was written. Holes stay holes. At most `extents_max` extents change state. Returns where to continue,
    /// or `None` when all is done.
    ///
    /// Needs [`credits_set_state`] blocks. `i_block` may change: the caller writes the inode. A map without
    /// extents has only written blocks: there is nothing to do.
    ///
    /// Cost in the tree: each end of the range that lies inside an extent of the other state adds an entry to
    /// a leaf, unless the piece merges with a neighbor. A written extent of 32768 blocks that becomes
    /// unwritten also adds one, because it is split in two. If the leaf is full, it is split, with at most
    /// [`nodes_of_split`] blocks.
    ///
    /// So an unwritten extent that is converted from its front on adds one entry, once: with the first piece,
    /// or, if that piece merges with written blocks before it, where the merged extent exceeds the maximum
    /// length. From then on the leaf has the written part and the rest. In any other order each piece may
    /// need a block at either end. A caller that must not fail then (the data is written, and space was
    /// reserved) keeps that many blocks in reserve, or converts such ranges again once there is space: until
    /// then they read as zeros.
    ///
    /// # Errors
    /// Like [`insert`](Self::insert), also if an extent must be split. If the first change fails for lack of
    /// space, no state was changed; if a later one does, the call ends early and returns where to continue.
    /// If a block cannot be read, extents before it have the new state.
    ///
    /// # Panics
    /// If blocks of a map without extents are to become unwritten.
    pub fn set_state(
        &mut self,
        editor: &Editor<'_>,
        range: Range<u64>,
        unwritten: bool,
        extents_max: u32,
    ) -> Result<Option<u64>, EditFault> {
        if !self.extents {
            assert!(!unwritten, "a map without extents has no unwritten blocks");
            return Ok(None);
        }
        let range = range.start..range.end.min(1 << 32);
        tree::set_state(self, editor, range, unwritten, extents_max.max(1)).map_err(|fault| self.own(fault))
    }

    /// Unmaps the mapped blocks in `range` from its end backwards, at most so many extents (without extents:
    /// runs of blocks), of at most so many blocks each. Returns the end of the rest (call again with that
    /// end, possibly in another transaction), or `None` when all is done. `freed` is called for the data
    /// blocks; empty nodes are freed through the [`TreeSpace`](crate::TreeSpace).
    ///
    /// Needs [`credits_remove`] blocks, plus those that freeing needs. `i_block` may change: the caller
    /// writes the inode, in the same transaction. An inode that is truncated in several transactions must be
    /// on the orphan list.
    ///
    /// # Errors
    /// A block cannot be read; or the middle of an extent was to be unmapped, the leaf is full, and no block
    /// is free to split it. Blocks already passed to `freed` are unmapped, the rest is unchanged.
    pub fn remove_step(
        &mut self,
        editor: &Editor<'_>,
        range: Range<u64>,
        (extents_max, blocks_max): (u32, u32),
        freed: Freed<'_>,
    ) -> Result<Option<u64>, EditFault> {
        let range = range.start..range.end.min(1 << 32);
        if range.is_empty() {
            return Ok(None);
        }
        let left = if self.extents {
            tree::remove_step(self, editor, range, (extents_max, blocks_max.max(1)), freed)
        } else {
            indirect::remove_step(self, editor, range, extents_max, freed)
        };
        left.map_err(|fault| self.own(fault))
    }

    /// Unmaps all mapped blocks in `range` in one call.
    ///
    /// # Errors
    /// Like [`remove_step`](Self::remove_step).
    pub fn remove(
        &mut self,
        editor: &Editor<'_>,
        range: Range<u64>,
        freed: Freed<'_>,
    ) -> Result<(), EditFault> {
        let mut end = Some(range.end);
        while let Some(left) = end {
            end = self.remove_step(editor, range.start..left, (u32::MAX, u32::MAX), freed)?;
        }
        Ok(())
    }

    /// Moves all extents from logical block `from` on by `by` blocks towards the front, into the hole at
    /// `from - by..from`: in order, at most `extents_max` extents. Returns where to continue (call again from
    /// there, possibly in another transaction), or `None` when all is done.
    ///
    /// Allocates no block. Needs [`credits_shift`] blocks. `i_block` may change: the caller writes the inode,
    /// in the same transaction. Between two steps the part before the returned block is moved and the rest is
    /// not.
    ///
    /// # Errors
    /// This step has changed nothing: `from - by..from` is not a hole, or a block cannot be read. If a step
    /// has moved extents before it meets a block that cannot be read, these stay moved: the step returns
    /// where to continue, and the next step fails.
    ///
    /// # Panics
    /// If the map has no extents, `by` is 0, or there are less than `by` blocks before `from`.
    pub fn shift_left_step(
        &mut self,
        editor: &Editor<'_>,
        from: u64,
        by: u32,
        extents_max: u32,
    ) -> Result<Option<u64>, EditFault> {
        assert!(self.extents, "only extents are moved");
        assert!(by > 0 && from >= u64::from(by), "{by} blocks before block {from}");
        tree::shift_left_step(self, editor, from, by, extents_max.max(1)).map_err(|fault| self.own(fault))
    }

    /// Moves all extents in `range` by `by` blocks towards the back, from the end of the range backwards, at
    /// most `extents_max` extents. An extent with the first block of the range in its middle is split there.
    /// After the range there must be a hole of `by` blocks. The end of the range is 2^32 in the first call,
    /// and then what the previous step returned: the end of the rest (call again with that end, possibly in
    /// another transaction). `None` when all is done.
    ///
    /// Only the first step allocates blocks for the tree, if the map does not change between steps. Needs
    /// [`credits_shift`] blocks. `i_block` may change: the caller writes the inode, in the same transaction.
    /// Between two steps the part from the returned end on is moved and the rest is not.
    ///
    /// # Errors
    /// The mapping is as before this step: the last extent would exceed logical block 2^32 - 2
    /// ([`TooLarge`](EditFault::TooLarge)), the tree needs a block and cannot allocate it, there is no hole
    /// after the range, or a block cannot be read; for the latter see
    /// [`shift_left_step`](Self::shift_left_step).
    ///
    /// # Panics
    /// If the map has no extents, or `by` is 0.
    pub fn shift_right_step(
        &mut self,
        editor: &Editor<'_>,
        range: Range<u64>,
        by: u32,
        extents_max: u32,
    ) -> Result<Option<u64>, EditFault> {
        assert!(self.extents, "only extents are moved");
        assert!(by > 0, "moved by no block");
        let range = range.start..range.end.min(1 << 32);
        if range.is_empty() {
            return Ok(None);
        }
        tree::shift_right_step(self, editor, range, by, extents_max.max(1)).map_err(|fault| self.own(fault))
    }

    /// Levels of nodes below the root; for a map without extents the maximum.
    #[must_use]
    pub fn depth(&self) -> u32 {
        match self.root() {
            Ok(root) if self.extents => root.depth().into(),
            _ => 3,
        }
    }

    fn own(&self, fault: EditFault) -> EditFault {
        match fault {
            EditFault::Read(fault) => EditFault::Read(fault.of_ino(self.ino)),
            other => other,
        }
    }
}

/// Maximum number of tree blocks that one [`insert`](FileMap::insert) changes or creates, in a map of this
/// [`depth`](FileMap::depth). The inode is not included.
#[must_use]
pub fn credits_insert(depth: u32) -> u32 {
    // Every node on the path and its other half, and the old root's entries.
    2 * depth.min(MAX_DEPTH.into()) + 1
}

/// Maximum number of blocks needed to make room for one more entry in a full leaf, in a map of this
/// [`depth`](FileMap::depth).
#[must_use]
pub fn nodes_of_split(depth: u32) -> u32 {
    // One for each level below the root, and one for the old root's entries.
    depth.min(MAX_DEPTH.into()) + 1
}

/// Maximum number of tree blocks that one [`set_state`](FileMap::set_state) of at most `extents_max` extents
/// changes or creates. The inode is not included.
#[must_use]
pub fn credits_set_state(depth: u32, extents_max: u32, block_size: BlockSize) -> u32 {
    // At both ends of the range a leaf may have to be split.
    nodes_of(depth + 1, extents_max, block_size).saturating_add(2 * credits_insert(depth + 1))
}

/// Maximum number of tree blocks that one [`remove_step`](FileMap::remove_step) of at most `extents_max`
/// extents changes, creates or frees. The inode, and what freeing needs, are not included.
#[must_use]
pub fn credits_remove(depth: u32, extents_max: u32, block_size: BlockSize) -> u32 {
    // Only a hole in the middle of one extent splits a leaf. A child that is pulled up into the root is
    // freed.
    nodes_of(depth, extents_max, block_size).saturating_add(credits_insert(depth))
}

/// Maximum number of tree blocks that one [`shift_left_step`](FileMap::shift_left_step) or
/// [`shift_right_step`](FileMap::shift_right_step) of at most `extents_max` extents changes, creates or
/// frees. A step ends after 16 leaves, however few extents they have. The inode is not included.
#[must_use]
pub fn credits_shift(depth: u32, extents_max: u32, block_size: BlockSize) -> u32 {
    // Only an extent with the start of the range in its middle may split a leaf.
    let leaves = extents_max.min(tree::LEAVES_MAX);
    nodes_of(depth + 1, leaves, block_size).saturating_add(credits_insert(depth))
}

/// Maximum number of nodes on the paths to `extents` adjacent extents.
fn nodes_of(depth: u32, extents: u32, block_size: BlockSize) -> u32 {
    let paths = u64::from(extents) + 1;
    let mut level_max = ROOT_ENTRIES as u64;
    let mut nodes = 0;
    for _ in 0..depth.min(MAX_DEPTH.into()) {
        nodes += paths.min(level_max);
        level_max = level_max.saturating_mul(entries_per_block(block_size) as u64);
    }
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
