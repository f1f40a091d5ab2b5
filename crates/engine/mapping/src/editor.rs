//! What a change of a map needs, and how it fails.

use extant_base::{Lblk, Pblk};
use extant_buffer::{Buffers, Edit, ReadFault};

/// Allocates and frees blocks of the tree itself.
pub trait TreeSpace {
    /// Allocates a block for a node, preferably near `near` (block 0: no preference). Its content is
    /// arbitrary.
    ///
    /// # Errors
    /// If no block is free, or an allocation bitmap cannot be read.
    fn allocate(&self, near: Pblk) -> Result<Pblk, EditFault>;

    /// Frees a block: one from [`allocate`](Self::allocate), or one that was read from the tree and is no
    /// longer part of it. The block is no longer metadata: the implementation also revokes it. A damaged map
    /// without extents may refer to a block twice, and then frees it twice.
    fn free(&self, block: Pblk);
}

/// Called for unmapped data blocks: the first logical block, the first physical block, and the length. The
/// caller frees them; only the caller can detect that a damaged map referred to blocks of another file.
pub type Freed<'a> = &'a mut dyn FnMut(Lblk, Pblk, u32);

/// Why a map was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditFault {
    /// A block of the tree cannot be read, or violates a rule.
    #[error(transparent)]
    Read(#[from] ReadFault),
    /// No block for the tree (ENOSPC).
    #[error("no space for the file's block map")]
    NoSpace,
    /// No block for the tree: its owner's quota is exhausted (EDQUOT).
    #[error("no quota for the file's block map")]
    Quota,
    /// The format cannot store it: a tree deeper than five levels, or, without extents, a logical block past
    /// the reach of three levels or a physical block of more than 32 bits (EFBIG).
    #[error("the file is too large for its block map")]
    TooLarge,
    /// A block in the range is mapped already.
    #[error("logical block {0} or one behind it is mapped already")]
    Occupied(Lblk),
}

/// The context of a change of a map.
#[derive(Clone, Copy)]
pub struct Editor<'a> {
    /// The buffer cache.
    pub buffers: &'a Buffers,
    /// The transaction.
    pub edit: &'a dyn Edit,
    /// Allocator for blocks of the tree.
    pub space: &'a dyn TreeSpace,
}
