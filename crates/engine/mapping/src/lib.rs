//! Block maps of files: from logical blocks to physical ones, by extent trees of any depth or by indirect
//! blocks.
//!
//! Owns: lookup and listing; the changes of a map ([`Editor`]): mapping holes, converting between unwritten
//! and written, unmapping, moving extents to other logical blocks. Does **not** own: inodes (the caller
//! passes the root's bytes and writes them back after a change), data blocks and their contents, the
//! allocation of the tree's own blocks ([`TreeSpace`]), transactions (functions such as [`credits_insert`]
//! say how many blocks a change may need).
//!
//! Invariants
//! 1. INV-E1: every walk is bounded.
//!    - In an extent tree the depth falls by one per level, keys rise, and a node stays within the range that
//!      its parent gives it. A tree that violates this is [`Corrupt`](extant_base::Corrupt).
//!    - Indirect blocks have neither header nor checksum, and a damaged map may refer to one indirect block
//!      many times. A walk goes through rising logical block numbers. It ends at the last number that three
//!      levels can map, or at an end that the caller gives.
//! 2. A returned block lies inside the file system, and is not block 0.
//! 3. A lookup reads one path of the tree. In a hole, it returns the hole only as far as the last node on the
//!    path covers it. So a hole that continues in the next leaf is returned in parts. The result of
//!    [`find`](FileMap::find) begins at the given block. The result of [`around`](FileMap::around) may begin
//!    before the given block.
//! 4. After a node was read from the device, all of it is verified before its first use. A verified node is
//!    searched and changed in its raw form, without decoding it.
//! 5. A change within one leaf either succeeds or leaves the map as it was. First, blocks for the tree are
//!    allocated, and the nodes that will change join the transaction. So these nodes stay in memory, and
//!    changing them cannot fail. A change of several leaves is made in steps. Each step leaves a complete
//!    map, so a transaction can end after any step. If such a change fails, the leaves before the failure may
//!    already be changed.
//! 6. A change merges contiguous extents in its leaf, up to the lengths that the format allows. It sets a
//!    node's key in the parent to the node's first key, and leaves no node empty except the root. Trees that
//!    other programs wrote may differ.
//! 7. A tree block is freed after the reference to it was removed. (A damaged block map may refer to one
//!    block twice: then [`TreeSpace::free`] is called twice for this block.)
//!
//! Source: kernel Documentation/filesystems/ext4/ifork.rst and blockmap.rst.

#![forbid(unsafe_code)]

mod edit;
mod editor;
mod indirect;
mod tree;

use extant_base::{CorruptAt, Ino, Lblk, Malformed, Pblk};
use extant_buffer::{Buffers, ReadFault};

pub use edit::{credits_insert, credits_remove, credits_set_state, credits_shift, nodes_of_split};
pub use editor::{EditFault, Editor, Freed, TreeSpace};

/// The state of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapState {
    /// Not mapped: reads as zeros.
    Hole,
    /// Written data, from this block on.
    Written(Pblk),
    /// Blocks that were allocated but not written, from this block on: reads as zeros.
    Unwritten(Pblk),
}

/// A range of a file in one state, with contiguous physical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// First logical block.
    pub lblk: Lblk,
    /// Length in blocks, at least 1.
    pub len: u32,
    /// The state.
    pub state: MapState,
}

impl Mapped {
    /// The logical block after the last one; up to 2^32.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.lblk.0) + u64::from(self.len)
    }
}

/// The mapping around a logical block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapLookup {
    /// The whole extent that has the block, or the hole around it, as far as the node on the path knows it.
    pub here: Mapped,
    /// All extents of the leaf, in order, if this lookup read the leaf from the device: they are likely to be
    /// needed soon.
    pub leaf: Vec<Mapped>,
}

/// The map of one file: its root and what is needed to verify the rest.
#[derive(Debug, Clone)]
pub struct FileMap {
    /// The inode: for positions in errors and as the owner of blocks.
    pub ino: Ino,
    /// The 60 bytes of `i_block`.
    pub i_block: [u8; 60],
    /// The EXTENTS flag: an extent tree; otherwise indirect blocks.
    pub extents: bool,
    /// Seed of the inode's checksums; `None` without metadata_csum.
    pub seed: Option<u32>,
}

/// The longest piece that [`FileMap::walk`] returns.
const PIECE_MAX: u32 = extant_ondisk::extent::MAX_WRITTEN_LEN;

impl FileMap {
    /// The 60 bytes of an empty extent tree.
    pub const EMPTY: [u8; 60] = {
        let mut bytes = [0; 60];
        // The node's header: magic, 0 of 4 entries, depth 0.
        (bytes[0], bytes[1], bytes[4]) = (0x0A, 0xF3, 4);
        bytes
    };

    /// Returns the state at `lblk`, and for how many blocks it holds, at most `len_max` (0 counts as 1).
    /// Contiguous extents are returned as one if they are in the same node.
    ///
    /// # Errors
    /// If a block of the tree cannot be read or violates a rule, or the result lies outside the file system.
    pub fn find(&self, buffers: &Buffers, lblk: Lblk, len_max: u32) -> Result<Mapped, ReadFault> {
        let left = (1u64 << 32) - u64::from(lblk.0);
        let len_max = len_max.max(1).min(u32::try_from(left).unwrap_or(u32::MAX));
        let found = if self.extents {
            tree::find(self, buffers, lblk, len_max)
        } else {
            indirect::find(self, buffers, lblk, len_max)
        };
        found.map_err(|fault| fault.of_ino(self.ino))
    }

    /// Returns the mapping around `lblk`. For a map without extents, the result of [`find`](Self::find).
    ///
    /// # Errors
    /// Like [`find`](Self::find).
    pub fn around(&self, buffers: &Buffers, lblk: Lblk) -> Result<MapLookup, ReadFault> {
        if !self.extents {
            let here = self.find(buffers, lblk, u32::MAX)?;
            return Ok(MapLookup { here, leaf: Vec::new() });
        }
        tree::around(self, buffers, lblk).map_err(|fault| fault.of_ino(self.ino))
    }

    /// Calls `each` for all mapped extents from `from` on in order, without holes. An extent tree's extents
    /// are passed as stored (as in FIEMAP: contiguous ones are not merged), an indirect file's as contiguous
    /// pieces of at most 32768 blocks. The first piece begins at `from` even if its extent begins before.
    /// Ends when `each` returns `None`.
    ///
    /// # Errors
    /// Like [`find`](Self::find).
    pub fn walk(
        &self,
        buffers: &Buffers,
        from: Lblk,
        each: &mut dyn FnMut(Mapped) -> Option<()>,
    ) -> Result<(), ReadFault> {
        self.walk_until(buffers, from, 1 << 32, each)
    }

    /// Like [`walk`](Self::walk), but only for pieces that begin before logical block `end`; these are passed
    /// whole.
    ///
    /// # Errors
    /// Like [`find`](Self::find).
    pub fn walk_until(
        &self,
        buffers: &Buffers,
        from: Lblk,
        end: u64,
        each: &mut dyn FnMut(Mapped) -> Option<()>,
    ) -> Result<(), ReadFault> {
        let walked = if self.extents {
            tree::walk(self, buffers, from, end, each)
        } else {
            indirect::walk(self, buffers, from, end, each)
        };
        walked.map_err(|fault| fault.of_ino(self.ino))
    }

    /// Calls `each` for every block of the tree itself (nodes, indirect blocks), parents before children.
    /// Blocks of the lowest level are not read. Ends when `each` returns `None`.
    ///
    /// # Errors
    /// Like [`find`](Self::find).
    pub fn walk_tree_blocks(
        &self,
        buffers: &Buffers,
        each: &mut dyn FnMut(Pblk) -> Option<()>,
    ) -> Result<(), ReadFault> {
        let walked = if self.extents {
            tree::walk_nodes(self, buffers, each)
        } else {
            indirect::walk_nodes(self, buffers, each)
        };
        walked.map_err(|fault| fault.of_ino(self.ino))
    }
}

/// Whether `len` blocks from `start` on lie inside the file system, without block 0, which no file owns.
fn lies_inside(buffers: &Buffers, start: Pblk, len: u32) -> bool {
    start.0 != 0 && start.checked_add(len.into()).is_some_and(|end| end.0 <= buffers.blocks())
}

/// The error that logical block `lblk` is mapped to `start`, outside the file system.
fn outside(lblk: u32, start: Pblk) -> ReadFault {
    let fact = Malformed::new("block map", "blocks must lie inside the file system", start.0);
    ReadFault::corrupt(CorruptAt::default().at_lblk(Lblk(lblk)), fact)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_edit;
