//! An open file: the standard library's `Read`, `Write` and `Seek`, and reads and writes at offsets.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use volume::{Allocate, ErrorsTold, Fault, InodeRef, SetAttr, Stat, Volume};

use crate::error::fault_kind;

/// A regular file that is open: for reading, and for writing where the file system is.
///
/// Reads and writes are positional underneath, so a clone has a position of its own, and threads may use
/// [`read_at`](Self::read_at) and [`write_at`](Self::write_at) on one file together. What is written is in memory until
/// [`sync_all`](Self::sync_all) or [`sync_data`](Self::sync_data), or until it was there for half a minute; with
/// [`set_durable`](Self::set_durable) each write is durable when it returns. What could not be written later is told by the next sync,
/// once to each file that was opened before (clones count as one).
///
/// Of a file system that is open for writing it shows the file as it is at each call, and keeps it alive when its last name
/// is removed.
#[derive(Clone)]
pub struct File {
    held: Arc<Held>,
    position: u64,
    durable: Durable,
}

/// What is durable when a write returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durable {
    /// Nothing: see [`File::sync_all`].
    #[default]
    Later,
    /// The bytes, and what it takes to read them again, as with O_DSYNC.
    Data,
    /// The times as well, as with O_SYNC.
    All,
}

/// An inode that stays while it is held.
struct Held {
    volume: Arc<Volume>,
    inode: InodeRef,
    told: ErrorsTold,
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
        let mut held = Held { volume, inode, told: ErrorsTold::default() };
        held.told = held.volume.errors_told(held.inode.ino())?;
        Ok(Self { held: Arc::new(held), position: 0, durable: Durable::Later })
    }

    /// Chooses what is durable when a write returns; clones that are made later begin with the same.
    pub fn set_durable(&mut self, durable: Durable) {
        self.durable = durable;
    }

    fn write_some(&self, bytes: &[u8], offset: u64) -> Result<usize, Fault> {
        let Held { volume, inode, told } = &*self.held;
        let done = volume.write_at(inode.ino(), offset, bytes)?;
        if self.durable != Durable::Later {
            let range = offset..offset + done as u64;
            volume.fsync_range(inode.ino(), range, Some(told), self.durable == Durable::Data)?;
        }
        Ok(done)
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

    /// Writes all of `bytes` from byte `offset` on, which may lie behind the end.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`](crate::Refusal::NoSpace): what fits is written; [`Refusal::TooLarge`](crate::Refusal::TooLarge),
    /// [`Refusal::NotPermitted`](crate::Refusal::NotPermitted), [`Refusal::ReadOnly`](crate::Refusal::ReadOnly) when the file
    /// system is not open for writing; the device refused.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.write_some(&bytes[done..], offset + done as u64)?;
        }
        Ok(())
    }

    /// Cuts the file, or extends it by a hole.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn set_len(&self, len: u64) -> Result<(), Fault> {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.held.volume.set_attr(self.held.inode.ino(), &set).map(drop)
    }

    /// Reserves blocks for a range, punches holes, and so on: see [`Allocate`].
    ///
    /// # Errors
    /// See [`Volume::fallocate`].
    pub fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> Result<(), Fault> {
        self.held.volume.fallocate(self.held.inode.ino(), mode, offset, len)
    }

    /// Makes durable what was written, and all else that was done to the file.
    ///
    /// # Errors
    /// The device refused, now or when bytes were written back before.
    pub fn sync_all(&self) -> Result<(), Fault> {
        self.held.volume.fsync_as(self.held.inode.ino(), &self.held.told, false)
    }

    /// Makes durable what was written, and what it takes to read it again.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Result<(), Fault> {
        self.held.volume.fsync_as(self.held.inode.ino(), &self.held.told, true)
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

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.write_some(bytes, self.position);
        let done = done.map_err(|fault| io::Error::new(fault_kind(&fault), fault))?;
        self.position += done as u64;
        Ok(done)
    }

    /// Nothing waits here; see [`sync_all`](File::sync_all).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
