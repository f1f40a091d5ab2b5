//! A file or block device as a [`Device`].

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use crate::{Device, DeviceFault, write_zeros};

/// A file or block device, used by positional reads and writes.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: u64,
    fresh: bool,
}

impl FileDevice {
    /// Opens an existing file or block device for reading, and for writing too when `writable`.
    ///
    /// # Errors
    /// When the system refuses to open it or to tell its size.
    pub fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(writable).open(path)?;
        Self::from_file(file, false)
    }

    /// Opens a block device for reading and writing that nobody else has mounted or claimed.
    ///
    /// # Errors
    /// `EBUSY` when somebody has; else when the system refuses to open it or to tell its size.
    pub fn open_exclusive(path: &Path) -> io::Result<Self> {
        let exclusive = OFlags::EXCL.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path)?;
        Self::from_file(file, false)
    }

    /// Takes a file that was just created and has its final size: bytes not written read as zeros.
    ///
    /// # Errors
    /// When the system refuses to tell its size.
    pub fn fresh(file: File) -> io::Result<Self> {
        Self::from_file(file, true)
    }

    fn from_file(mut file: File, fresh: bool) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let size = if metadata.file_type().is_block_device() {
            file.seek(SeekFrom::End(0))?
        } else {
            metadata.len()
        };
        Ok(Self { file, size, fresh })
    }

    /// The file beneath.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("read", offset, buf.len(), self.size)?;
        let len = buf.len() as u64;
        self.file.read_exact_at(buf, offset).map_err(|source| DeviceFault::Io {
            what: "read",
            offset,
            len,
            source,
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("write", offset, bytes.len(), self.size)?;
        let len = bytes.len() as u64;
        self.file.write_all_at(bytes, offset).map_err(|source| DeviceFault::Io {
            what: "write",
            offset,
            len,
            source,
        })
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        if len == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.file, hole, offset, len).is_ok() {
            return Ok(());
        }
        write_zeros(self, offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.file.sync_data().map_err(|source| DeviceFault::Io {
            what: "flush",
            offset: 0,
            len: self.size,
            source,
        })
    }

    fn is_fresh(&self) -> bool {
        self.fresh
    }
}
