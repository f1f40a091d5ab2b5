//! A file or block device as a [`Device`].

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, OFlags};

use crate::{Device, DeviceFault, write_zeros};

/// Most buffers that one system call fills (the kernel's UIO_MAXIOV).
const VECTOR_MAX: usize = 1024;

/// A file or block device, used by positional reads and writes.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: u64,
    sector_bytes: u32,
    writable: bool,
    fresh: bool,
}

impl FileDevice {
    /// Opens an existing file or block device for reading, and for writing too when `writable`.
    ///
    /// # Errors
    /// When the system refuses to open it or to tell its size.
    pub fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(writable).open(path)?;
        Self::from_file(file, writable, false)
    }

    /// Opens an image for reading: a regular file or a block device. Nothing else is opened, since a fifo would wait for
    /// a writer, and a terminal for a person.
    ///
    /// # Errors
    /// When the system refuses to open it or to tell its size; when it is a directory or something else that holds no
    /// image, with words that say what it is.
    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        let kind = std::fs::metadata(path)?.file_type();
        let what = match () {
            () if kind.is_file() || kind.is_block_device() => return Self::open(path, false),
            () if kind.is_dir() => "is a directory, no image",
            () if kind.is_char_device() => "is a character device, no image",
            () if kind.is_fifo() => {
                "is a fifo, no image: an image is read at many places, so put it into a file first"
            }
            () => "is neither a regular file nor a block device, so it holds no image",
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    /// Opens a block device for reading and writing that nobody else has mounted or claimed.
    ///
    /// # Errors
    /// `EBUSY` when somebody has; else when the system refuses to open it or to tell its size.
    pub fn open_exclusive(path: &Path) -> io::Result<Self> {
        let exclusive = OFlags::EXCL.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path)?;
        Self::from_file(file, true, false)
    }

    /// Takes a file that was just created and has its final size: bytes not written read as zeros.
    ///
    /// # Errors
    /// When the system refuses to tell its size.
    pub fn fresh(file: File) -> io::Result<Self> {
        Self::from_file(file, true, true)
    }

    fn from_file(mut file: File, writable: bool, fresh: bool) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (size, sector_bytes) = if metadata.file_type().is_block_device() {
            // stat says 0 for a block device; its end says how large it is.
            (file.seek(SeekFrom::End(0))?, rustix::fs::ioctl_blksszget(&file).unwrap_or(512))
        } else {
            (metadata.len(), 512)
        };
        Ok(Self { file, size, sector_bytes, writable, fresh })
    }

    fn check_write(&self, what: &'static str, offset: u64, len: u64) -> Result<(), DeviceFault> {
        if !self.writable {
            return Err(DeviceFault::ReadOnly { what, offset, len });
        }
        DeviceFault::check_len(what, offset, len, self.size)
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

    fn read_vectored_at(&self, offset: u64, mut bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        DeviceFault::check_len("read", offset, len, self.size)?;
        let fault = |source: io::Error| DeviceFault::Io { what: "read", offset, len, source };
        let mut at = offset;
        IoSliceMut::advance_slices(&mut bufs, 0); // drops empty buffers, which would look like the file's end
        while !bufs.is_empty() {
            let batch = bufs.len().min(VECTOR_MAX);
            match rustix::io::preadv(&self.file, &mut bufs[..batch], at) {
                Ok(0) => return Err(fault(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => {
                    at += got as u64;
                    IoSliceMut::advance_slices(&mut bufs, got);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(fault(errno.into())),
            }
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let len = len.min(self.size.saturating_sub(offset));
        if let Some(len) = NonZeroU64::new(len) {
            // A hint that the system does not take changes nothing.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let len = bytes.len() as u64;
        self.check_write("write", offset, len)?;
        self.file.write_all_at(bytes, offset).map_err(|source| DeviceFault::Io {
            what: "write",
            offset,
            len,
            source,
        })
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.check_write("zero", offset, len)?;
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
        if !self.writable {
            return Ok(());
        }
        self.file.sync_data().map_err(|source| DeviceFault::Io {
            what: "flush",
            offset: 0,
            len: self.size,
            source,
        })
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    fn is_fresh(&self) -> bool {
        self.fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn what_was_opened_for_reading_refuses_writes_and_says_what_to_do() {
        let file = file_of(b"content");
        let device = FileDevice::open_read_only(file.path()).unwrap();
        let fault = device.write_at(0, b"C").unwrap_err();
        assert!(fault.to_string().contains("open it for writing"), "{fault}");
        assert!(matches!(device.zero_at(0, 1), Err(DeviceFault::ReadOnly { what: "zero", .. })));
        device.flush().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"content");
    }

    #[test]
    fn only_files_and_block_devices_hold_images() {
        let dir = tempfile::tempdir().unwrap();
        let error = FileDevice::open_read_only(dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "is a directory, no image");
        let error = FileDevice::open_read_only(Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("character device"), "{error}");
        assert!(FileDevice::open_read_only(&dir.path().join("none")).is_err());
    }

    #[test]
    fn a_vectored_read_fills_many_buffers_in_order() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        let file = file_of(&bytes);
        let device = FileDevice::open_read_only(file.path()).unwrap();
        let mut parts = vec![vec![0; 3]; 3000]; // more than one system call takes
        parts[7].clear();
        parts[0].clear();
        let mut bufs: Vec<IoSliceMut<'_>> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
        device.read_vectored_at(5, &mut bufs).unwrap();
        assert_eq!(parts.concat(), bytes[5..5 + 3 * 2998]);
        let mut bufs = [IoSliceMut::new(&mut parts[1])];
        assert!(matches!(device.read_vectored_at(9_998, &mut bufs), Err(DeviceFault::OutOfRange { .. })));
        device.read_vectored_at(0, &mut []).unwrap();
    }

    #[test]
    fn a_hint_beyond_the_end_is_harmless() {
        let file = file_of(&[0; 100]);
        let device = FileDevice::open_read_only(file.path()).unwrap();
        device.prefetch(0, u64::MAX);
        device.prefetch(u64::MAX, u64::MAX);
    }

    #[test]
    fn zeroing_past_the_end_is_refused() {
        let file = file_of(&[1; 100]);
        let device = FileDevice::open(file.path(), true).unwrap();
        assert!(matches!(device.zero_at(90, 11), Err(DeviceFault::OutOfRange { .. })));
        device.zero_at(90, 10).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap()[89..92], [1, 0, 0]);
    }
}
