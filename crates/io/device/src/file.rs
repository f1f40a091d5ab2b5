//! A file or block device as a [`Device`].

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::direct::Direct;
use crate::in_use::{ImageUse, mounted_by_kernel, use_of};
use crate::uring::Rings;
use crate::{Device, DeviceFault, FlushMeter, FlushStats, copy_by_parts, total_len, write_zeros};

mod many;

/// Maximum number of buffers of one system call (the kernel's UIO_MAXIOV).
const VECTOR_MAX: usize = 1024;

/// How transfers are passed to the system. It affects nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// The faster choice by measurement (`examples/io.rs`): rings with direct I/O, else calls.
    #[default]
    Auto,
    /// One system call at a time: preadv(2), pwritev(2).
    Calls,
    /// Batches with io_uring(7), if the system permits it; else calls.
    Rings,
}

/// A file or block device, accessed with positional reads and writes.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: AtomicU64,
    sector_bytes: u32,
    is_block_device: bool,
    writable: bool,
    fresh: bool,
    /// It holds the lock of `open_locked` or `open_shared`.
    locked: bool,
    flushes: FlushMeter,
    /// Serializes syncs, and keeps the first error: the system reports lost bytes to one caller, and success
    /// to the concurrent and all later callers.
    syncing: Mutex<Option<Errno>>,
    io: Io,
    rings: Rings,
    /// Direct I/O, if it is used.
    direct: Option<Direct>,
}

impl Drop for FileDevice {
    /// Closing alone does not release the lock: between fork and exec a child process has the same open file.
    fn drop(&mut self) {
        if self.locked {
            // A lock that cannot be released ends when the last process closes the file.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl FileDevice {
    /// Opens an existing file or block device for reading, and with `writable` also for writing.
    ///
    /// # Errors
    /// The system refuses to open it or to return its size.
    pub fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(writable).open(path)?;
        Self::from_file(file, writable, false)
    }

    /// Opens an image for reading: a regular file or a block device. Other files are refused, because opening
    /// a fifo would wait for a writer, and reading a terminal for input.
    ///
    /// # Errors
    /// The system refuses to open it or to return its size. The path is a directory or another file without
    /// an image; the error describes it.
    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        check_kind(path)?;
        Self::open(path, false)
    }

    /// Opens an image for reading and writing, if no other program uses it: a regular file with an exclusive
    /// lock (flock(2)), a block device like [`open_exclusive`](Self::open_exclusive). The lock is released
    /// with the device. It does not keep out programs that only read.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`], with a message that describes the use, if another program holds the
    /// lock, or the image is mounted: by the kernel, through a loop device if it is a file, or by extant, as
    /// far as this process can see the mounts. Else as [`open_read_only`](Self::open_read_only).
    pub fn open_locked(path: &Path) -> io::Result<Self> {
        let kind = check_kind(path)?;
        if kind.is_block_device() {
            return Self::open_exclusive(path).map_err(|error| match error.kind() {
                io::ErrorKind::ResourceBusy => busy(path, use_of(path)),
                _ => error,
            });
        }
        let mut device = Self::open(path, true)?;
        lock_unused(&device.file, path)?;
        device.locked = true;
        Ok(device)
    }

    /// Opens an image for reading like [`open_read_only`](Self::open_read_only), with a lock that keeps out
    /// writers but not readers. If a program already has the image open for writing, or the system has no
    /// locks, the image is opened without a lock.
    ///
    /// # Errors
    /// As [`open_read_only`](Self::open_read_only).
    pub fn open_shared(path: &Path) -> io::Result<Self> {
        let mut device = Self::open_read_only(path)?;
        device.locked = !device.is_block_device
            && rustix::fs::flock(&device.file, FlockOperation::NonBlockingLockShared).is_ok();
        Ok(device)
    }

    /// Opens a block device for reading and writing that is neither mounted nor claimed.
    ///
    /// # Errors
    /// `EBUSY` if it is in use; [`io::ErrorKind::ReadOnlyFilesystem`] if it is write-protected; else the
    /// system refuses to open it or to return its size.
    pub fn open_exclusive(path: &Path) -> io::Result<Self> {
        let exclusive = OFlags::EXCL.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path)?;
        // Linux opens a write-protected device, and refuses the first write.
        if is_write_protected(&file.metadata()?) {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is write-protected"));
        }
        Self::from_file(file, true, false)
    }

    /// Uses a file that was just created and has its final size: bytes not written read as zeros.
    ///
    /// # Errors
    /// The system refuses to return its size.
    pub fn fresh(file: File) -> io::Result<Self> {
        Self::from_file(file, true, true)
    }

    /// Uses a file that is open for reading and writing, and that no other program uses.
    ///
    /// # Errors
    /// The system refuses to return its size.
    pub fn of(file: File) -> io::Result<Self> {
        Self::from_file(file, true, false)
    }

    fn from_file(mut file: File, writable: bool, fresh: bool) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let is_block_device = metadata.file_type().is_block_device();
        let (size, sector_bytes) = if is_block_device {
            // stat returns 0 for a block device; its size is the offset of its end.
            (file.seek(SeekFrom::End(0))?, rustix::fs::ioctl_blksszget(&file).unwrap_or(512))
        } else {
            (metadata.len(), 512)
        };
        Ok(Self {
            file,
            size: AtomicU64::new(size),
            sector_bytes,
            is_block_device,
            writable,
            fresh,
            locked: false,
            flushes: FlushMeter::default(),
            syncing: Mutex::default(),
            io: Io::default(),
            rings: Rings::default(),
            direct: None,
        })
    }

    /// Switches to direct I/O (O_DIRECT). Transfers whose offset, length or memory address is not aligned use
    /// a bounce buffer.
    ///
    /// # Errors
    /// The file system or device does not support it, or the size is not a multiple of 512. The caller can
    /// open the file again without it.
    pub fn with_direct(mut self) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags | OFlags::DIRECT)?;
        self.direct = Some(Direct::of(&self.file, self.size_bytes())?);
        Ok(self)
    }

    /// Whether the file accepts these buffers without a bounce buffer.
    fn fits_direct<B: std::ops::Deref<Target = [u8]>>(&self, offset: u64, bufs: &[B]) -> bool {
        let Some(direct) = &self.direct else { return true };
        // If all lengths are aligned, all offsets are aligned if the first one is.
        bufs.iter().all(|buf| direct.fits(offset, buf))
    }

    fn check_write(&self, what: &'static str, offset: u64, len: u64) -> Result<(), DeviceFault> {
        if !self.writable {
            return Err(DeviceFault::ReadOnly { what, offset, len });
        }
        DeviceFault::check_len(what, offset, len, self.size_bytes())
    }

    /// Writes all of `bufs` with one kind of system call, and continues after short writes.
    fn write_all_vectored(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        write: impl Fn(&[IoSlice<'_>], u64) -> rustix::io::Result<usize>,
    ) -> Result<(), Errno> {
        let (mut at, mut left) = (offset, bufs);
        let mut within = 0; // bytes of left[0] that are written
        while let Some(first) = left.first() {
            if within == first.len() {
                (left, within) = (&left[1..], 0);
                continue;
            }
            // The rest of a partly written buffer is written alone: the caller's buffers cannot be advanced.
            let got = if within > 0 {
                write(&[IoSlice::new(&first[within..])], at)
            } else {
                write(&left[..left.len().min(VECTOR_MAX)], at)
            };
            match got {
                Ok(0) => return Err(Errno::IO), // the file accepts no bytes
                Ok(got) => {
                    at += got as u64;
                    within += got;
                    while let Some(first) = left.first().filter(|first| within >= first.len()) {
                        within -= first.len();
                        left = &left[1..];
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives a regular file another length, and the device this size. New bytes read as zeros. No other
    /// thread may use the bytes that go.
    ///
    /// # Errors
    /// It is a block device, it was opened for reading only, or for direct I/O with a length that is no
    /// multiple of 4096 bytes; or the system refuses.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        if self.is_block_device {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a block device has a fixed length"));
        }
        // Direct I/O transfers whole sectors.
        if !self.writable || self.direct.is_some() && !bytes.is_multiple_of(4096) {
            let why = "it is open for reading only, or for direct I/O and no multiple of 4096 bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.file.set_len(bytes)?;
        self.size.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Whether it is a block device, which has a fixed length.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// The underlying file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Takes the exclusive lock of a regular file that is open as `file` and not mounted.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`], with a message that describes the use.
pub(crate) fn lock_unused(file: &File, path: &Path) -> io::Result<()> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(busy(path, use_of(path))),
        Err(errno) => return Err(errno.into()),
    }
    // Mounts of extant hold locks; the kernel's do not.
    match mounted_by_kernel(path) {
        Some(used) => Err(busy(path, Some(used))),
        None => Ok(()),
    }
}

/// An error "is in use: ...", with the remedy.
fn busy(path: &Path, used: Option<ImageUse>) -> io::Error {
    let is_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let why = match used {
        Some(used) if used.on.is_some() => format!("is in use: it is {used}; unmount it first"),
        Some(used) => format!("is in use: it is {used}; wait until that has ended"),
        None if is_device => {
            "is in use: it is mounted, or another program writes to it; unmount it first".to_owned()
        }
        None => "is in use: another program has it open for writing; wait until that has ended".to_owned(),
    };
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// Whether it is a block device that is set read-only (`blockdev --setro`, the switch of a card). Source:
/// Documentation/ABI/stable/sysfs-block.
fn is_write_protected(device: &std::fs::Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev()));
    let says = std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro"));
    device.file_type().is_block_device() && says.is_ok_and(|says| says.starts_with(b"1"))
}

/// Checks that the file can contain an image. Other files are not opened: opening a fifo would wait for a
/// writer, and reading a terminal for input.
fn check_kind(path: &Path) -> io::Result<std::fs::FileType> {
    let kind = std::fs::metadata(path)?.file_type();
    let what = match () {
        () if kind.is_file() || kind.is_block_device() => return Ok(kind),
        () if kind.is_dir() => "is a directory, no image",
        () if kind.is_char_device() => "is a character device, no image",
        () if kind.is_fifo() => {
            "is a fifo, no image: an image is read at many places, so put it into a file first"
        }
        () => "is neither a regular file nor a block device, so it holds no image",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("read", offset, buf.len(), self.size_bytes())?;
        let len = buf.len() as u64;
        let read = match &self.direct {
            Some(direct) => direct.read(&self.file, offset, buf),
            None => self.file.read_exact_at(buf, offset),
        };
        read.map_err(|source| DeviceFault::Io { what: "read", offset, len, source })
    }

    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        self.read_batch(parts)
    }

    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        self.write_batch(parts)
    }

    fn file_at(&self, offset: u64, len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        DeviceFault::check_len("read", offset, len, self.size_bytes()).ok()?;
        self.direct.is_none().then(|| (self.file.as_fd(), offset))
    }

    fn read_vectored_at(&self, offset: u64, mut bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = total_len(bufs);
        DeviceFault::check_len("read", offset, len, self.size_bytes())?;
        let fault = |source: io::Error| DeviceFault::Io { what: "read", offset, len, source };
        let mut at = offset;
        if !self.fits_direct(offset, bufs) {
            for buf in bufs {
                self.read_at(at, buf)?;
                at += buf.len() as u64;
            }
            return Ok(());
        }
        IoSliceMut::advance_slices(&mut bufs, 0); // drops empty buffers, which would look like the file's end
        while !bufs.is_empty() {
            let batch = bufs.len().min(VECTOR_MAX);
            match rustix::io::preadv(&self.file, &mut bufs[..batch], at) {
                Ok(0) => return Err(fault(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => {
                    at += got as u64;
                    IoSliceMut::advance_slices(&mut bufs, got);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(fault(errno.into())),
            }
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let len = len.min(self.size_bytes().saturating_sub(offset));
        // Direct I/O does not use the page cache.
        if let Some(len) = NonZeroU64::new(len).filter(|_| self.direct.is_none()) {
            // If the system refuses the hint, nothing changes.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let len = bytes.len() as u64;
        self.check_write("write", offset, len)?;
        let written = match &self.direct {
            Some(direct) => direct.write(&self.file, offset, bytes),
            None => self.file.write_all_at(bytes, offset),
        };
        written.map_err(|source| DeviceFault::Io { what: "write", offset, len, source })
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        let len = total_len(bufs);
        self.check_write("write", offset, len)?;
        if !self.fits_direct(offset, bufs) {
            let mut at = offset;
            for buf in bufs {
                self.write_at(at, buf)?;
                at += buf.len() as u64;
            }
            return Ok(());
        }
        self.write_all_vectored(offset, bufs, |bufs, at| rustix::io::pwritev(&self.file, bufs, at))
            .map_err(|errno| DeviceFault::Io { what: "write", offset, len, source: errno.into() })
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let len = bytes.len() as u64;
        self.check_write("write", offset, len)?;
        if !self.fits_direct(offset, &[bytes]) {
            self.write_at(offset, bytes)?;
            return self.flush();
        }
        // The write is made even after an earlier error: it may be the record of that error.
        let mut lost = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.write_all_vectored(offset, &[IoSlice::new(bytes)], |bufs, at| {
            rustix::io::pwritev2(&self.file, bufs, at, ReadWriteFlags::DSYNC)
        });
        let fault = |errno: Errno| DeviceFault::Io { what: "write", offset, len, source: errno.into() };
        match written {
            Ok(()) => lost.map_or(Ok(()), |errno| Err(fault(errno))),
            // Kernels and file systems without the flag. Bytes written before the error are written again.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                drop(lost);
                self.write_at(offset, bytes)?;
                self.flush()
            }
            Err(errno) => Err(fault(*lost.get_or_insert(errno))),
        }
    }

    fn copy_at(&self, from: u64, to: u64, len: u64) -> Result<(), DeviceFault> {
        DeviceFault::check_len("read", from, len, self.size_bytes())?;
        self.check_write("write", to, len)?;
        let mut done = 0;
        // Block devices refuse it, and direct I/O does not use the page cache.
        while done < len && !self.is_block_device && self.direct.is_none() {
            let (mut from, mut to) = (from + done, to + done);
            let part = (len - done).min(1 << 30) as usize;
            match rustix::fs::copy_file_range(&self.file, Some(&mut from), &self.file, Some(&mut to), part) {
                Err(Errno::INTR) => {}
                Ok(copied @ 1..) => done += copied as u64,
                // The rest is written the other way, which finds the fault if there is one.
                _ => break,
            }
        }
        copy_by_parts(self, from + done, to + done, len - done)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.check_write("zero", offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = {
            let _neighbours = self.direct.as_ref().and_then(|direct| direct.lock_parts(offset, len));
            rustix::fs::fallocate(&self.file, hole, offset, len)
        };
        if punched.is_ok() {
            return Ok(());
        }
        write_zeros(self, offset, len)
    }

    /// Punches a hole in a file; on a block device, discards the sectors that are completely in the range.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.check_write("discard", offset, len)?;
        if len == 0 {
            return Ok(true);
        }
        let done = if self.is_block_device {
            let sector = u64::from(self.sector_bytes);
            let (from, to) = (offset.next_multiple_of(sector), (offset + len) / sector * sector);
            if from < to { crate::ioctl::discard(&self.file, from, to - from) } else { Ok(()) }
        } else {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, hole, offset, len)
        };
        match done {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::NODEV) => Ok(false),
            Err(errno) => Err(DeviceFault::Io { what: "discard", offset, len, source: errno.into() }),
        }
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        if !self.writable {
            return Ok(());
        }
        let mut lost = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = match *lost {
            Some(errno) => Err(errno),
            None => self.flushes.measure(|| rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file))),
        };
        synced.map_err(|errno| {
            lost.get_or_insert(errno);
            DeviceFault::Io { what: "flush", offset: 0, len: self.size_bytes(), source: errno.into() }
        })
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.flushes.average_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.flushes.stats()
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
    fn bytes_are_copied_within_a_file_with_system_calls_of_both_kinds() {
        let bytes: Vec<u8> = (0..600_000u32).map(|at| (at / 100) as u8).collect();
        let file = file_of(&bytes);
        let device = FileDevice::open_locked(file.path()).unwrap();
        let mut expected = bytes.clone();
        device.copy_at(3, 290_001, 280_000).unwrap();
        expected.copy_within(3..280_003, 290_001);
        // The kernel copies nothing within what it would copy to.
        device.copy_at(1000, 2000, 5000).unwrap();
        expected.copy_within(1000..6000, 2000);
        device.copy_at(0, 600_000, 0).unwrap();
        assert!(std::fs::read(file.path()).unwrap() == expected);
        assert!(matches!(device.copy_at(599_999, 0, 2), Err(DeviceFault::OutOfRange { what: "read", .. })));
        assert!(matches!(device.copy_at(0, 599_999, 2), Err(DeviceFault::OutOfRange { what: "write", .. })));
        let window = crate::Window::owned(std::sync::Arc::new(device), 1000, 3000).unwrap();
        window.copy_at(0, 2000, 1000).unwrap();
        expected.copy_within(1000..2000, 3000);
        assert!(window.copy_at(0, 2001, 1000).is_err());
        assert!(std::fs::read(file.path()).unwrap() == expected);
        let read_only = FileDevice::open_read_only(file.path()).unwrap();
        assert!(matches!(read_only.copy_at(0, 10, 5), Err(DeviceFault::ReadOnly { what: "write", .. })));
    }

    #[test]
    fn a_file_can_be_given_another_length() {
        let file = file_of(b"content");
        let device = FileDevice::open_locked(file.path()).unwrap();
        device.set_len(10).unwrap();
        let mut bytes = [1; 10];
        device.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"content\0\0\0");
        device.set_len(3).unwrap();
        assert!(matches!(device.read_at(0, &mut bytes[..4]), Err(DeviceFault::OutOfRange { size: 3, .. })));
        drop(device);
        assert!(FileDevice::open_read_only(file.path()).unwrap().set_len(1).is_err());
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
    fn one_process_writes_at_a_time_and_any_number_read() {
        let file = file_of(b"content");
        let device = FileDevice::open_locked(file.path()).unwrap();
        let error = FileDevice::open_locked(file.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("in use"), "{error}");
        FileDevice::open_read_only(file.path()).unwrap();
        device.write_at(0, b"C").unwrap();
        drop(device);
        // Two readers that keep out writers.
        let shared = [(); 2].map(|()| FileDevice::open_shared(file.path()).unwrap());
        assert!(FileDevice::open_locked(file.path()).is_err());
        drop(shared);
        let device = FileDevice::open_locked(file.path()).unwrap();
        // A reader without a lock: closing it does not release the writer's lock.
        drop(FileDevice::open_shared(file.path()).unwrap());
        assert!(FileDevice::open_locked(file.path()).is_err());
        // Like the file of a child process between fork and exec.
        let inherited = device.file.try_clone().unwrap();
        drop(device);
        FileDevice::open_locked(file.path()).unwrap();
        drop(inherited);
        let error = FileDevice::open_locked(Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("character device"), "{error}");
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
    fn a_vectored_write_puts_many_buffers_in_order() {
        let file = file_of(&[9; 10_000]);
        let device = FileDevice::open(file.path(), true).unwrap();
        let mut parts: Vec<Vec<u8>> = (0..3000u32).map(|i| vec![(i % 251) as u8; 3]).collect();
        parts[0].clear();
        parts[1500].clear();
        let bufs: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        device.write_vectored_at(5, &bufs).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes[5..5 + 3 * 2998], parts.concat());
        assert_eq!((bytes[4], bytes[5 + 3 * 2998]), (9, 9));
        assert!(matches!(device.write_vectored_at(9_998, &bufs[..3]), Err(DeviceFault::OutOfRange { .. })));
        device.write_vectored_at(0, &[]).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
    }

    #[test]
    fn a_short_vectored_write_goes_on_where_it_stopped() {
        let file = file_of(&[0; 64]);
        let device = FileDevice::open(file.path(), true).unwrap();
        let bufs = [b"ab".as_slice(), b"", b"cdefg", b"h", b"ij"].map(IoSlice::new);
        for most in 1..11 {
            let stutter = |bufs: &[IoSlice<'_>], at: u64| {
                let joined: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                rustix::io::pwrite(&device.file, &joined[..joined.len().min(most)], at)
            };
            device.write_all_vectored(3, &bufs, stutter).unwrap();
            let bytes = std::fs::read(file.path()).unwrap();
            assert_eq!(&bytes[..14], b"\0\0\0abcdefghij\0", "{most} at a time");
            device.zero_at(0, 64).unwrap();
        }
    }

    #[test]
    fn a_durable_write_is_written_and_a_flush_is_measured() {
        let file = file_of(&[0; 100]);
        let device = FileDevice::open(file.path(), true).unwrap();
        device.write_durable_at(90, b"0123456789").unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap()[88..], *b"\0\x000123456789");
        assert!(matches!(device.write_durable_at(91, b"0123456789"), Err(DeviceFault::OutOfRange { .. })));
        assert_eq!(device.flush_nanos(), None);
        device.flush().unwrap();
        assert!(device.flush_nanos().is_some());
        assert_eq!(device.flush_stats().unwrap().count, 1);
        let device = FileDevice::open_read_only(file.path()).unwrap();
        assert!(matches!(device.write_durable_at(0, b"0"), Err(DeviceFault::ReadOnly { .. })));
        assert!(matches!(device.write_vectored_at(0, &[]), Err(DeviceFault::ReadOnly { .. })));
    }

    #[test]
    fn a_hint_beyond_the_end_is_harmless() {
        let file = file_of(&[0; 100]);
        let device = FileDevice::open_read_only(file.path()).unwrap();
        device.prefetch(0, u64::MAX);
        device.prefetch(u64::MAX, u64::MAX);
    }

    #[test]
    fn what_is_discarded_takes_no_room() {
        use std::os::unix::fs::MetadataExt;
        let file = file_of(&[1; 256 << 10]);
        let device = FileDevice::open(file.path(), true).unwrap();
        let before = file.as_file().metadata().unwrap().blocks();
        assert!(matches!(device.discard_at(1, 256 << 10), Err(DeviceFault::OutOfRange { .. })));
        if device.discard_at(64 << 10, 128 << 10).unwrap() {
            assert_eq!(before - file.as_file().metadata().unwrap().blocks(), 256);
        }
        let mut around = [0; 2];
        device.read_at((64 << 10) - 1, &mut around[..1]).unwrap();
        device.read_at(192 << 10, &mut around[1..]).unwrap();
        assert_eq!(around, [1, 1]);
        let device = FileDevice::open_read_only(file.path()).unwrap();
        assert!(matches!(device.discard_at(0, 1), Err(DeviceFault::ReadOnly { what: "discard", .. })));
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
