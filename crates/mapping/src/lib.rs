//! Where a file's blocks are: extent trees of any depth, and indirect blocks.
//!
//! Owns: finding and listing; mapping holes, changing states, unmapping, moving to other logical blocks
//! ([`Editor`]). Does **not** own: inodes (it gets the root's bytes, which the caller writes back after a
//! change), data and its blocks, the allocation of the tree's own blocks ([`TreeSpace`]), transactions (each
//! change states how many blocks it may need).
//!
//! Invariants
//! 1. Every walk is bounded (INV-E1). Extent trees: depth falls by one a level, keys rise, a node keeps to
//!    its parent's range; a violation is [`Corrupt`](extant_base::Corrupt). Indirect blocks have nothing to
//!    check, and one may be referenced many times: walks end with the logical blocks of their three levels,
//!    or at the given end.
//! 2. A block that is handed out lies inside the file system, and is not block 0.
//! 3. Holes are returned with their whole length as far as the node on the path shows it.
//! 4. A node is verified whole once, when it enters the cache; after that its raw bytes are searched and
//!    changed.
//! 5. A change that is refused has changed nothing: blocks that the tree needs are taken first, nodes that
//!    change are made to stay in memory, then they are changed. Each step of a longer change leaves a whole
//!    map, and can be the last one of a transaction.
//! 6. Extents that follow each other are merged with their neighbours in the leaf, up to the lengths that the
//!    format has. A node's key in its parent is the first one of its own. No node is empty but the root.
//! 7. A block of the tree that is not needed any more is given back once, after nothing refers to it.
//!
//! Source: kernel Documentation/filesystems/ext4/ifork.rst and blockmap.rst.

#![forbid(unsafe_code)]

mod edit;
mod indirect;
mod tree;

use extant_base::{CorruptAt, Ino, Lblk, Malformed, Pblk};
use extant_buffer::{Buffers, ReadFault};

pub use edit::{
    EditFault, Editor, Freed, TreeSpace, credits_insert, credits_remove, credits_set_state, credits_shift,
    nodes_of_split,
};

/// What holds for a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Nothing: reads as zeros.
    Hole,
    /// Data that was written, from this block on.
    Written(Pblk),
    /// Blocks that were allocated but not written: reads as zeros.
    Unwritten(Pblk),
}

/// A range of a file for which the same thing holds, with contiguous physical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// First logical block.
    pub lblk: Lblk,
    /// Length in blocks, at least 1.
    pub len: u32,
    /// What holds.
    pub holds: Holds,
}

impl Mapped {
    /// The logical block behind the last one; up to 2^32.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.lblk.0) + u64::from(self.len)
    }
}

/// What lies around a logical block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Around {
    /// The extent that has it, whole; or the hole around it, as far as the node on the path knows it.
    pub here: Mapped,
    /// All extents of the leaf, in order, if that was read from the device just now: its neighbours are soon
    /// asked for too.
    pub leaf: Vec<Mapped>,
}

/// The map of one file: its root and what is needed to verify the rest.
#[derive(Debug, Clone)]
pub struct FileMap {
    /// The inode, for places in errors and as owner of blocks.
    pub ino: Ino,
    /// The 60 bytes of `i_block`.
    pub i_block: [u8; 60],
    /// EXTENTS flag: an extent tree; else indirect blocks.
    pub extents: bool,
    /// Seed of the inode's checksums; `None` without metadata_csum.
    pub seed: Option<u32>,
}

/// The longest piece that [`FileMap::walk`] returns.
const PIECE_MAX: u32 = extant_ondisk::extent::MAX_WRITTEN_LEN;

impl FileMap {
    /// The 60 bytes of a map of extents that maps nothing.
    pub const EMPTY: [u8; 60] = {
        let mut bytes = [0; 60];
        // The node's header: magic, no entries of four, depth 0.
        (bytes[0], bytes[1], bytes[4]) = (0x0A, 0xF3, 4);
        bytes
    };

    /// The state at `lblk`, and for how many blocks, at most `len_max` (0 counts as 1). Neighbouring extents
    /// that are contiguous are merged if they are in the same node.
    ///
    /// # Errors
    /// A block of the tree cannot be read or breaks a rule, or the answer lies outside the file system.
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

    /// The extent or hole around `lblk`. For a map without extents the result of [`find`](Self::find).
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn around(&self, buffers: &Buffers, lblk: Lblk) -> Result<Around, ReadFault> {
        if !self.extents {
            let here = self.find(buffers, lblk, u32::MAX)?;
            return Ok(Around { here, leaf: Vec::new() });
        }
        tree::around(self, buffers, lblk).map_err(|fault| fault.of_ino(self.ino))
    }

    /// Visits all mapped extents from `from` on in order, without holes: an extent tree's as the tree has
    /// them (FIEMAP's view: contiguous ones are not merged), an indirect file's in contiguous pieces of at
    /// most 32768 blocks. The first begins at `from` even if its extent begins before. Ends when `each`
    /// returns `None`.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn walk(
        &self,
        buffers: &Buffers,
        from: Lblk,
        each: &mut dyn FnMut(Mapped) -> Option<()>,
    ) -> Result<(), ReadFault> {
        self.walk_until(buffers, from, 1 << 32, each)
    }

    /// As [`walk`](Self::walk), but only pieces that begin before logical block `end`; such pieces are
    /// returned whole.
    ///
    /// # Errors
    /// As [`find`](Self::find).
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

    /// Visits every block of the tree itself (nodes, indirect blocks), parents before children. The lowest
    /// ones are returned without being read. Ends when `each` returns `None`.
    ///
    /// # Errors
    /// As [`find`](Self::find).
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

/// Do `len` blocks from `start` on lie inside the file system, apart from block 0, which no file owns?
fn lies_inside(buffers: &Buffers, start: Pblk, len: u32) -> bool {
    start.0 != 0 && start.checked_add(len.into()).is_some_and(|end| end.0 <= buffers.blocks())
}

/// The fact that logical block `lblk` is mapped to `start`, outside the file system.
fn outside(lblk: u32, start: Pblk) -> ReadFault {
    let fact = Malformed::new("block map", "blocks must lie inside the file system", start.0);
    ReadFault::corrupt(CorruptAt::default().at_lblk(Lblk(lblk)), fact)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_edit;
