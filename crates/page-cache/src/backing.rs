//! The interface through which the cache asks where a file's bytes are.

use std::io::IoSliceMut;

/// What a file has from some byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Reads as zeros and takes no folio: a hole, unwritten blocks, blocks that are only promised.
    Hole {
        /// Bytes of it: whole blocks, at least one.
        len_bytes: u64,
    },
    /// Bytes that [`Backing::read_at`] gets.
    Data {
        /// Bytes of it: whole blocks, at least one.
        len_bytes: u64,
    },
}

/// The bytes of one file that are not in the cache.
///
/// Called with locks held, so it must not come back into the cache for the same file: `extent_at` and
/// `read_at` under the locks of the folios that are filled. What it takes itself comes after these.
pub trait Backing {
    /// Why it cannot answer.
    type Error;

    /// What begins at byte `pos`, a block's first; no more than `len` bytes of it are used. Also asked behind
    /// the end of the file.
    ///
    /// # Errors
    /// When the map cannot be read.
    fn extent_at(&self, pos_bytes: u64, len_bytes: u64) -> Result<Extent, Self::Error>;

    /// Fills `bufs`, whole blocks, one after the other from byte `pos` on: all of it inside [`Extent::Data`].
    /// Bytes behind the end of the file, in its last block, are to be zeros.
    ///
    /// # Errors
    /// When the device refuses. What the buffers hold then is not used.
    fn read_at(&self, pos_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Self::Error>;
}
