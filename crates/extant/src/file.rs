//! An open file: the standard library's `Read` and `Seek`, and reads at offsets.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use volume::{Fault, InodeRef, Stat, Volume};

use crate::error::fault_kind;

/// A regular file that is open for reading.
///
/// Reads are positional underneath, so a clone has a position of its own, and threads may use [`read_at`](Self::read_at)
/// on one file together. There is no buffer: wrap it in a [`std::io::BufReader`] for small reads.
#[derive(Clone)]
pub struct File {
    volume: Arc<Volume>,
    inode: InodeRef,
    position: u64,
}

impl File {
    pub(crate) fn new(volume: Arc<Volume>, inode: InodeRef) -> Self {
        Self { volume, inode, position: 0 }
    }

    /// Reads from byte `offset` on; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// The map is corrupt, the content is encrypted, the device refused.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Fault> {
        self.volume.read(&self.inode, offset, buf)
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inode.size()
    }

    /// Is there no byte in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What stat tells about it.
    #[must_use]
    pub fn metadata(&self) -> Stat {
        self.volume.stat(&self.inode)
    }

    /// The inode behind it.
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got =
            self.read_at(buf, self.position).map_err(|fault| io::Error::new(fault_kind(&fault), fault))?;
        self.position += got as u64;
        Ok(got)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let out_of_range = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the first byte");
        self.position = position.ok_or_else(out_of_range)?;
        Ok(self.position)
    }
}
