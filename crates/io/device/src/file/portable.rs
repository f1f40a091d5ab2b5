//! A file as a [`Device`] on systems other than Unix, such as WASI: with a position, which a lock protects.
//!
//! Does **not** own: locks against other programs, block devices, direct I/O, batches. The module for Unix
//! has them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::{Backend, BackendDevice, Device, DeviceFault};

/// An image file.
pub struct FileDevice(BackendDevice<Positioned>);

/// A file that is read and written at its position.
struct Positioned {
    file: Mutex<File>,
    size: u64,
    is_writable: bool,
}

impl FileDevice {
    fn open(path: &Path, is_writable: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(is_writable).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self(BackendDevice(Positioned { file: Mutex::new(file), size, is_writable })))
    }

    /// Opens an image for reading.
    ///
    /// # Errors
    /// The system refuses to open it or to return its size.
    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        Self::open(path, false)
    }

    /// Opens an image for reading and writing. There is no lock: the caller ensures that no other program
    /// uses the image.
    ///
    /// # Errors
    /// As [`open_read_only`](Self::open_read_only).
    pub fn open_locked(path: &Path) -> io::Result<Self> {
        Self::open(path, true)
    }
}

impl Positioned {
    fn at(&self, offset: u64, work: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        work(&mut file)
    }
}

impl Backend for Positioned {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.at(offset, |file| file.read_exact(buf))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.at(offset, |file| file.write_all(bytes))
    }

    fn flush(&self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).sync_data()
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.0.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        self.0.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.0.write_at(offset, bytes)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[io::IoSlice<'_>]) -> Result<(), DeviceFault> {
        self.0.write_vectored_at(offset, bufs)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.0.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.0.flush()
    }
}
