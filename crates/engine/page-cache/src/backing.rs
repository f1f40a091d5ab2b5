//! The interface through which the cache reads a file's bytes.

use std::io::IoSliceMut;

/// What a file has from some byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Reads as zeros and takes no folio: a hole, unwritten blocks, blocks of delayed allocation.
    Hole {
        /// Length in bytes: whole blocks, at least one.
        len_bytes: u64,
    },
    /// Bytes that [`Backing::read_at`] reads.
    Data {
        /// Length in bytes: whole blocks, at least one.
        len_bytes: u64,
    },
}

/// The bytes of one file outside of the cache.
///
/// The cache calls these functions with locks held, so they must not call back into the cache for the same
/// file: `extent_at` and `read_at` run under the locks of the folios that are filled. Locks that an
/// implementation takes come after these in the lock order.
pub trait Backing {
    /// The error of a failed map lookup or read.
    type Error;

    /// Returns what begins at byte `pos_bytes`, the first of a block. The cache uses no more than `len_bytes`
    /// bytes of it. Also called for positions past the end of the file.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn extent_at(&self, pos_bytes: u64, len_bytes: u64) -> Result<Extent, Self::Error>;

    /// Fills `bufs`, whole blocks, one after the other from byte `pos_bytes` on: all of it inside
    /// [`Extent::Data`]. Bytes past the end of the file in its last block must be zeros.
    ///
    /// # Errors
    /// If the device fails. The cache does not use the contents of the buffers then.
    fn read_at(&self, pos_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Self::Error>;
}
