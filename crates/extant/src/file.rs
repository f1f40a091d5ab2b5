//! An open file: the standard library's `Read` and `Seek`, and reads at offsets.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use volume::{Fault, InodeRef, Stat, Volume};

use crate::error::fault_kind;

/// A regular file that is open for reading.
///
/// Reads are positional underneath, so a clone has a position of its own, and threads may use [`read_at`](Self::read_at)
/// on one file together. There is no buffer: wrap it in a [`std::io::BufReader`] for small reads.
///
/// Of a file system that is open for writing it shows the file as it is at each call, and keeps it alive when its last name
/// is removed.
#[derive(Clone)]
pub struct File {
    held: Arc<Held>,
    position: u64,
}

/// An inode that stays while it is held.
struct Held {
    volume: Arc<Volume>,
    inode: InodeRef,
}

impl Drop for Held {
    fn drop(&mut self) {
        // What cannot be deleted now stays an orphan, which the next opening for writing deletes.
        let _ = self.volume.released(self.inode.ino());
    }
}

impl File {
    pub(crate) fn new(volume: Arc<Volume>, inode: InodeRef) -> Result<Self, Fault> {
        volume.opened(inode.ino())?;
        Ok(Self { held: Arc::new(Held { volume, inode }), position: 0 })
    }

    /// The inode as it is now; as it was when opened, should it not be had.
    fn now(&self) -> InodeRef {
        let held = &self.held;
        match held.volume.is_writable() {
            true => held.volume.inode(held.inode.ino()).unwrap_or_else(|_| Arc::clone(&held.inode)),
            false => Arc::clone(&held.inode),
        }
    }

    /// Reads from byte `offset` on; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// The map is corrupt, the content is encrypted, the device refused.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Fault> {
        self.held.volume.read(&self.now(), offset, buf)
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.now().size()
    }

    /// Is there no byte in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What stat tells about it.
    #[must_use]
    pub fn metadata(&self) -> Stat {
        self.held.volume.stat(&self.now())
    }

    /// The inode behind it, as it was when the file was opened.
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        &self.held.inode
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
