//! Devices: bytes that can be read and written at offsets. A device is a file, a block device, memory, a
//! window into another device, or a combination of several devices ([`Linear`], [`Stripe`], [`Mirror`]).
//!
//! Owns: the trait [`Device`] and its implementations; the measurement of flushes ([`FlushStats`]); partition
//! tables, which define windows ([`partition`]); and [`NewFile`], an output file that appears under its name
//! only when it is complete. Does **not** own: the layout of a file system, caches, the order of writes.
//!
//! On Unix, a file is accessed through the system's page cache or with direct I/O
//! ([`FileDevice::with_direct`]). Batches of transfers use system calls or io_uring
//! ([`FileDevice::with_io`]). Only the modules `uring` and `ioctl` have `unsafe` code. On WASI, a file has a
//! position and a lock.
//!
//! Invariants
//! 1. A read or write transfers all of its bytes, or returns an error with operation, offset and reason.
//! 2. On a *fresh* device ([`Device::is_fresh`]), such as a new file, bytes read as zeros until they are
//!    written.
//! 3. Methods take `&self`. Threads may call them concurrently on ranges that do not overlap, and may read
//!    the same range concurrently.
//! 4. A device opened for reading is never written. An attempt returns [`DeviceFault::ReadOnly`].
//! 5. A write is durable after the success of a [`flush`](Device::flush) that began after the write had
//!    returned. A [`write_durable_at`](Device::write_durable_at) is durable when it returns. Other writes may
//!    become durable at any time and in any order. A flush of a combined device flushes all members that are
//!    in use (a [`Mirror`] excludes failed ones).
//! 6. A [discarded](Device::discard_at) range has undefined contents until it is written again. The bytes
//!    around it stay.
//! 7. [`flush_nanos`](Device::flush_nanos) is the average duration of a flush. For a combined device it is
//!    the largest average of its members, computed anew at each call.
//!
//! ```
//! use extant_device::{Device, MemDevice};
//! let device = MemDevice::new(1 << 20);
//! device.write_at(4096, b"hello").unwrap();
//! let mut bytes = [0; 7];
//! device.read_at(4095, &mut bytes).unwrap();
//! assert_eq!(&bytes, b"\0hello\0");
//! ```

#![deny(unsafe_code)]

mod backend;
mod compose;
#[cfg(unix)]
mod direct;
#[cfg(unix)]
mod file;
#[cfg(not(unix))]
#[path = "file/portable.rs"]
mod file;
mod flush;
pub mod foreign;
#[cfg(unix)]
mod in_use;
#[cfg(unix)]
mod ioctl;
mod memory;
mod mirror;
mod model;
#[cfg(unix)]
pub mod mount_table;
#[cfg(unix)]
mod new_file;
pub mod partition;
mod parts;
mod shared;
#[cfg(unix)]
mod uring;
mod window;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::BorrowedFd;

pub use backend::{Backend, BackendDevice};
pub use compose::{ComposeFault, Linear, Stripe};
#[cfg(not(unix))]
pub use file::FileDevice;
#[cfg(unix)]
pub use file::{FileDevice, Io};
pub use flush::{FLUSH_BUCKETS, FlushMeter, FlushStats, Measured};
#[cfg(unix)]
pub use in_use::{ImageUse, use_of};
#[cfg(unix)]
pub use ioctl::{label, move_extents, resize_file_system, set_label, set_uuid, uuid};
pub use memory::MemDevice;
pub use mirror::Mirror;
pub use model::{Clock, Model, Modelled};
#[cfg(unix)]
pub use new_file::NewFile;
pub use parts::SharedParts;
pub use window::Window;

/// An error of a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceFault {
    /// The operating system reported an error.
    #[error("cannot {what} {len} bytes at offset {offset}: {source}")]
    Io {
        /// "read", "write", "zero", ...
        what: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// The range reaches past the end of the device.
    #[error("cannot {what} {len} bytes at offset {offset}: the device ends at {size}")]
    OutOfRange {
        /// "read" or "write".
        what: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The device was opened for reading only.
    #[error(
        "cannot {what} {len} bytes at offset {offset}: the image was opened for reading only; \
         open it for writing, or write to a copy"
    )]
    ReadOnly {
        /// "write", "zero", "discard".
        what: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
    },
}

impl DeviceFault {
    /// The operating system's error number, if there is one.
    #[must_use]
    pub fn os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } => source.raw_os_error(),
            Self::OutOfRange { .. } | Self::ReadOnly { .. } => None,
        }
    }

    fn check_range(what: &'static str, offset: u64, len: usize, size: u64) -> Result<(), Self> {
        Self::check_len(what, offset, len as u64, size)
    }

    /// Checks that a range is inside a device of `size` bytes. For implementations of [`Device`]; `what`
    /// names the operation.
    ///
    /// # Errors
    /// [`OutOfRange`](Self::OutOfRange) if it is not.
    pub fn check_len(what: &'static str, offset: u64, len: u64, size: u64) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Self::OutOfRange { what, offset, len, size }),
        }
    }
}

/// Bytes that can have several owners, and are immutable while they do.
pub use extant_blocks::Block as SharedBytes;
pub use extant_blocks::{
    Copies, make_room, prefetch, prefetch_address, prefetch_block, prefetch_ends, prefetch_for_push,
    prefetch_object, prefetch_start,
};

/// Bytes that can be read and written at offsets.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// The range reaches past the end, or the system reports an error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault>;

    /// Fills `bufs` in order from byte `offset` on, in as few transfers as the device can.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at). The contents of the buffers are then undefined.
    fn read_vectored_at(&self, mut offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("read", offset, total_len(bufs), self.size_bytes())?;
        for buf in bufs {
            self.read_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    /// Fills the buffers of each part from its byte offset on, like
    /// [`read_vectored_at`](Self::read_vectored_at). The device transfers all parts concurrently if it can.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at). The contents of all buffers are then undefined.
    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        parts.iter_mut().try_for_each(|(offset, bufs)| self.read_vectored_at(*offset, bufs))
    }

    /// A hint that a range will be read soon. It returns at once, reads nothing itself, and cannot fail. A
    /// range that reaches past the end is truncated there.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// The open file that contains a range, and the range's offset in it, to transfer bytes within the
    /// kernel. `None` if no single file contains the whole range unchanged; it must be read instead.
    fn file_at(&self, _offset: u64, _len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }

    /// A hint to drop the system's cached copy of a range, so that the next read returns what another machine
    /// wrote to the device. What cannot be dropped stays cached.
    fn forget_cached(&self, _offset: u64, _len: u64) {}

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// The range reaches past the end, or the system reports an error (disk full, I/O error).
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault>;

    /// Writes all of `bufs` in order from byte `offset` on, in as few transfers as the device can.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at); after [`DeviceFault::OutOfRange`] nothing was written.
    fn write_vectored_at(&self, mut offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, total_len(bufs), self.size_bytes())?;
        for buf in bufs {
            self.write_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    /// Writes the buffers of each part from its byte offset on, like
    /// [`write_vectored_at`](Self::write_vectored_at). The device transfers all parts concurrently if it can.
    /// Parts do not overlap, and become durable in any order.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at): any of the parts may have been written.
    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        parts.iter().try_for_each(|(offset, bufs)| self.write_vectored_at(*offset, bufs))
    }

    /// Writes immutable blocks. The device transfers all runs concurrently if it can. A device in memory may
    /// take the blocks out of `parts` and keep them instead of copying. Returns whether it keeps all of them:
    /// they then exist as long as the device contains these bytes. The contents of `parts` are undefined
    /// afterwards; the caller clears it.
    ///
    /// # Errors
    /// As [`write_many_at`](Self::write_many_at).
    fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
        parts.with_slices(|parts| self.write_many_at(parts)).map(|()| false)
    }

    /// Writes all of `bytes` at byte `offset`, and returns when they are durable (a disk's "forced unit
    /// access"). It does not make other writes durable; [`flush`](Self::flush) does.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`flush`](Self::flush).
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.write_at(offset, bytes)?;
        self.flush()
    }

    /// Copies a range to another place of the device, without a way through this process if the device can.
    /// The two do not overlap.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at) and [`write_at`](Self::write_at).
    fn copy_at(&self, from: u64, to: u64, len: u64) -> Result<(), DeviceFault> {
        copy_by_parts(self, from, to, len)
    }

    /// Makes a range read as zeros, with a hole if the device supports it.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault>;

    /// Discards a range, so that its space can be released. Until it is written again its contents are
    /// undefined: the old bytes, zeros, or others; a power cut may also restore the old bytes. Like a write
    /// it must not run concurrently with another access to its range. Returns whether the device supports it;
    /// a device that does not leaves the range unchanged.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        DeviceFault::check_len("discard", offset, len, self.size_bytes())?;
        Ok(false)
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The system reports that a write was lost.
    fn flush(&self) -> Result<(), DeviceFault>;

    /// Duration of a flush in nanoseconds: the moving average of the measurements, 0 without a volatile
    /// cache. `None` before the first measurement: callers then assume that a flush is slow. For combined
    /// devices: that of the slowest.
    fn flush_nanos(&self) -> Option<u64> {
        self.flush_stats().map(|stats| stats.average_nanos)
    }

    /// The measurements of flushes; for combined devices, those of the member with the largest average.
    /// `None` if nothing is measured.
    fn flush_stats(&self) -> Option<FlushStats> {
        None
    }

    /// The sector size in bytes: 512, or 4096 on disks that report it. Partition tables count in sectors.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// Whether bytes that were never written read as zeros. True for new files and memory, false for an
    /// existing block device.
    fn is_fresh(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn Device + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} bytes)", self.size_bytes())
    }
}

/// Total length of all buffers; saturates at the largest number, which exceeds the size of any device.
fn total_len<B: Deref<Target = [u8]>>(bufs: &[B]) -> u64 {
    bufs.iter().fold(0, |sum: u64, buf| sum.saturating_add(buf.len() as u64))
}

/// Reads and writes part after part: a [`Device::copy_at`] for devices that have no faster way.
///
/// # Errors
/// As [`Device::copy_at`]; the bytes before the fault are copied.
fn copy_by_parts<D: Device + ?Sized>(
    device: &D,
    mut from: u64,
    mut to: u64,
    mut len: u64,
) -> Result<(), DeviceFault> {
    // Such a part is still in the CPU's cache when it is written.
    let mut bytes = vec![0; len.min(256 << 10) as usize];
    while len > 0 {
        let part = len.min(bytes.len() as u64);
        device.read_at(from, &mut bytes[..part as usize])?;
        device.write_at(to, &bytes[..part as usize])?;
        (from, to, len) = (from + part, to + part, len - part);
    }
    Ok(())
}

/// Writes zeros with ordinary writes: a [`Device::zero_at`] for devices that have no faster way.
///
/// # Errors
/// As [`Device::write_at`]; the bytes before the failed write are zeros.
pub fn write_zeros(device: &dyn Device, mut offset: u64, mut len: u64) -> Result<(), DeviceFault> {
    let zeros = vec![0; len.min(1 << 20) as usize];
    while len > 0 {
        let part = len.min(zeros.len() as u64);
        device.write_at(offset, &zeros[..part as usize])?;
        (offset, len) = (offset + part, len - part);
    }
    Ok(())
}
