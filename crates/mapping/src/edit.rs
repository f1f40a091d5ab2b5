//! Changing where a file's blocks are: what all kinds of maps have in common.

use std::ops::Range;

use extant_base::{BlockSize, Lblk, Pblk};
use extant_buffer::{Buffers, Edit, ReadFault};
use extant_ondisk::extent::{Extent, MAX_DEPTH, ROOT_ENTRIES, entries_per_block};

use crate::{FileMap, Holds, Mapped, indirect, tree};

/// Where blocks of the tree itself come from and go to.
pub trait TreeSpace {
    /// A block for a node, best near `near` (block 0: no wish). What it holds does not matter.
    ///
    /// # Errors
    /// There is none, or where they are noted cannot be read.
    fn allocate(&self, near: Pblk) -> Result<Pblk, EditFault>;

    /// Frees a block: one that [`allocate`](Self::allocate) returned, or one that was read from the tree and
    /// has left it. It is no longer metadata, so its next owner also revokes it. A damaged map without
    /// extents may name a block twice, and then frees it twice.
    fn free(&self, block: Pblk);
}

/// Receives data blocks that were unmapped: the first block in the file, the block on disk, and how many. The
/// caller frees them; only the caller can know whether a damaged map named blocks of another file.
pub type Freed<'a> = &'a mut dyn FnMut(Lblk, Pblk, u32);

/// Why a map was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditFault {
    /// A block of the tree cannot be read, or breaks a rule.
    #[error(transparent)]
    Read(#[from] ReadFault),
    /// No block for the tree (ENOSPC).
    #[error("no space for the file's block map")]
    NoSpace,
    /// No block for the tree: its owner's quota is used up (EDQUOT).
    #[error("no quota for the file's block map")]
    Quota,
    /// The map cannot say it: a tree deeper than five levels, or, without extents, a logical block behind the
    /// reach of three levels or a physical block of more than 32 bits (EFBIG).
    #[error("the file is too large for its block map")]
    TooLarge,
    /// What was to be mapped is mapped already.
    #[error("logical block {0} or one behind it is mapped already")]
    Occupied(Lblk),
}

/// What a change of a map needs.
#[derive(Clone, Copy)]
pub struct Editor<'a> {
    /// The blocks.
    pub buffers: &'a Buffers,
    /// The transaction.
    pub edit: &'a dyn Edit,
    /// Blocks for the tree.
    pub space: &'a dyn TreeSpace,
}

impl FileMap {
    /// Maps a hole to blocks that are its own from now on: as much from the front of `mapped` as one change
    /// can do. How many blocks that were, at least 1; call again for the rest.
    ///
    /// One change maps at most 32768 written or 32767 unwritten blocks; without extents, those whose numbers
    /// stand in one indirect block. Needs [`credits_insert`] blocks. `i_block` may change: the caller writes
    /// the inode.
    ///
    /// # Errors
    /// Nothing was changed then: the range is mapped already, the tree needs a block and gets none, or a
    /// block cannot be read.
    ///
    /// # Panics
    /// When `mapped` holds nothing, is empty, or is unwritten in a file without extents, which cannot say so.
    pub fn insert(&mut self, editor: &Editor<'_>, mapped: Mapped) -> Result<u32, EditFault> {
        let (start, unwritten) = match mapped.holds {
            Holds::Written(start) => (start, false),
            Holds::Unwritten(start) => (start, true),
            Holds::Hole => panic!("a hole is made by removing"),
        };
        assert!(mapped.len > 0, "no block to map");
        if !self.extents {
            assert!(!unwritten, "a map without extents has no unwritten blocks");
            let inserted = indirect::insert(self, editor, mapped.lblk, start, mapped.len);
            return inserted.map_err(|fault| self.own(fault));
        }
        let len = mapped.len.min(Extent::len_max(unwritten));
        let new = Extent { lblk: mapped.lblk.0, len, start: start.0, unwritten };
        // The last of all numbers stands for "no block" in a file's size: none is mapped there.
        if new.end() >= 1 << 32 || start.checked_add(len.into()).is_none_or(|end| end.0 > 1 << 48) {
            return Err(EditFault::TooLarge);
        }
        tree::insert(self, editor, new).map_err(|fault| self.own(fault))?;
        Ok(len)
    }

    /// Gives everything that is mapped in `range` the state `unwritten` (or written), as after its data was
    /// written. Holes stay holes. At most `extents_max` extents change state; where to go on, or `None` when
    /// all is done.
    ///
    /// Needs [`credits_set_state`] blocks. `i_block` may change: the caller writes the inode. A map without
    /// extents knows only written blocks: there is nothing to do.
    ///
    /// What it takes of the tree: each end of the range that lies inside an extent of the other state adds an
    /// entry to a leaf, unless the piece joins a neighbour that it continues; so does a written extent of
    /// 32768 blocks that becomes unwritten, which is two then. A leaf that is full is split for that, with
    /// [`nodes_of_split`] blocks at most.
    ///
    /// So an unwritten extent that is converted from its front adds one entry, once: with the first piece,
    /// or, if that one merges with the written extent before it, when this reaches the largest length of an
    /// extent. From then on the leaf holds the written part and the rest. In any other order each piece may
    /// need a block at either end. A caller that must not fail then (the data is written, and was reserved)
    /// keeps that many blocks back, or converts such ranges later when there is space: until then they read
    /// as zeros.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), also where an extent has to be split. Refused for want of space, nothing
    /// has its new state: what was done before ends the call as if it were all that it may do. If a block
    /// cannot be read, extents before that one have theirs.
    ///
    /// # Panics
    /// When blocks of a map without extents are to become unwritten.
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

    /// Unmaps the extents (without extents: runs of blocks) in `range` from its end backwards, at most this
    /// many of at most this many blocks each. Returns the end of the remaining range (call again with that
    /// end, maybe in another transaction), or `None` when all is done. `freed` receives the data's blocks;
    /// nodes that became empty go back to the [`TreeSpace`].
    ///
    /// Needs [`credits_remove`] blocks, besides what freeing takes. `i_block` may change: the caller writes
    /// the inode, in the same transaction. An inode that is being cut in several transactions is an orphan.
    ///
    /// # Errors
    /// A block cannot be read; or the middle of an extent was to be unmapped, the leaf is full, and there is
    /// no block to split it. What `freed` received before is unmapped, the rest is unchanged.
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

    /// Unmaps all that is mapped in `range`, in one go.
    ///
    /// # Errors
    /// As [`remove_step`](Self::remove_step).
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

    /// Moves everything that is mapped from logical block `from` on by `by` blocks towards the front, into
    /// the hole that `from - by..from` is: in order, at most `extents_max` extents. Where to go on (call
    /// again from there, maybe in another transaction), or `None` when all is done.
    ///
    /// Takes no block. Needs [`credits_shift`] blocks. `i_block` may change: the caller writes the inode, in
    /// the same transaction. Between two steps the part before that place is moved and the rest is not.
    ///
    /// # Errors
    /// This step has changed nothing: `from - by..from` is not a hole, or a block cannot be read. If a step
    /// meets an unreadable block after it moved something, that stays moved: the step returns where to
    /// continue, and the next one is refused.
    ///
    /// # Panics
    /// When the map has no extents, `by` is 0, or there are no `by` blocks before `from`.
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

    /// Moves everything that is mapped in `range` by `by` blocks towards the back, from its end backwards, at
    /// most `extents_max` extents. An extent that holds the range's first block in its middle is split there.
    /// Behind the range there is a hole of `by` blocks: it ends at 2^32 first, and then where the step before
    /// says, which is where what is left to do ends (call again with that end, maybe in another transaction);
    /// `None` when all is done.
    ///
    /// Only the first step takes blocks for the tree, as long as the map does not change between steps. Needs
    /// [`credits_shift`] blocks. `i_block` may change: the caller writes the inode, in the same transaction.
    /// Between two steps the part from that end on is moved and the rest is not.
    ///
    /// # Errors
    /// What is mapped is as it was before this step: the last extent would pass logical block 2^32 - 2
    /// ([`TooLarge`](EditFault::TooLarge)), the tree needs a block and gets none, behind the range there is
    /// no hole, or a block cannot be read; of such a block see [`shift_left_step`](Self::shift_left_step).
    ///
    /// # Panics
    /// When the map has no extents, or `by` is 0.
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

    /// Levels of nodes below the root; of a map without extents the most that it may have.
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

/// Blocks of the tree that one [`insert`](FileMap::insert) changes or makes at most, in a map of this
/// [`depth`](FileMap::depth). The inode comes on top.
#[must_use]
pub fn credits_insert(depth: u32) -> u32 {
    // Every node on the path and its other half, and the old root's entries.
    2 * depth.min(MAX_DEPTH.into()) + 1
}

/// Blocks that room for one more entry in a full leaf takes at most, in a map of this
/// [`depth`](FileMap::depth).
#[must_use]
pub fn nodes_of_split(depth: u32) -> u32 {
    // One for each level below the root, and the old root's entries.
    depth.min(MAX_DEPTH.into()) + 1
}

/// Blocks of the tree that one [`set_state`](FileMap::set_state) of at most `extents_max` extents changes or
/// makes at most. The inode comes on top.
#[must_use]
pub fn credits_set_state(depth: u32, extents_max: u32, block_size: BlockSize) -> u32 {
    // At the range's ends leaves may have to be split.
    nodes_of(depth + 1, extents_max, block_size).saturating_add(2 * credits_insert(depth + 1))
}

/// Blocks of the tree that one [`remove_step`](FileMap::remove_step) of at most `extents_max` extents
/// changes, makes or gives back at most. The inode, and what freeing takes, come on top.
#[must_use]
pub fn credits_remove(depth: u32, extents_max: u32, block_size: BlockSize) -> u32 {
    // Only a hole in the middle of one extent splits a leaf. Children pulled up into the root are given back.
    nodes_of(depth, extents_max, block_size).saturating_add(credits_insert(depth))
}

/// Blocks of the tree that one [`shift_left_step`](FileMap::shift_left_step) or
/// [`shift_right_step`](FileMap::shift_right_step) of at most `extents_max` extents changes, makes or gives
/// back at most: a step ends after 16 leaves, however few extents they hold. The inode comes on top.
#[must_use]
pub fn credits_shift(depth: u32, extents_max: u32, block_size: BlockSize) -> u32 {
    // Only the extent that the range begins in the middle of may split a leaf.
    let leaves = extents_max.min(tree::LEAVES_MAX);
    nodes_of(depth + 1, leaves, block_size).saturating_add(credits_insert(depth))
}

/// The most nodes on the paths to so many neighbouring extents.
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
