//! Where images live: bytes in and out at offsets, of files, block devices, memory, windows into them, and
//! several devices put together ([`Linear`], [`Stripe`], [`Mirror`]).
//!
//! Owns the [`Device`] seam, its implementations, the measuring of flushes ([`FlushStats`]), the tables of
//! partitions that say where a window should be ([`partition`]), and [`NewFile`]: an output that appears
//! under its name only when it is complete. Does **not** own any layout of a file system, cache or order of
//! writes.
//!
//! A file is used through the system's page cache or past it ([`FileDevice::with_direct`]), and batches of
//! transfers go to it by calls or by io_uring ([`FileDevice::with_io`]). `unsafe` stands in `uring` and
//! `ioctl`, and in the crate `blocks`.
//!
//! Invariants
//! 1. A read or write is whole or an error that says what, where and why; there are no short transfers.
//! 2. Bytes of a fresh device read as zeros until written.
//! 3. Methods take `&self`; threads may call them at the same time on ranges that do not overlap, and read
//!    the same range together.
//! 4. What was opened for reading is never written, and saying so is an error of its own
//!    ([`DeviceFault::ReadOnly`]).
//! 5. A write is durable when a [`flush`](Device::flush) that began after the write had returned has
//!    succeeded, or when it was a [`write_durable_at`](Device::write_durable_at); not before. A device of
//!    several flushes them all.
//! 6. What was [discarded](Device::discard_at) is anything until it is written again; what lies beside it
//!    stays.
//! 7. [`flush_nanos`](Device::flush_nanos) of a device of several is that of the slowest that a flush waits
//!    for; it is asked at the moment of the question, so that it follows what the parts learn.
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

mod compose;
mod direct;
mod file;
mod flush;
pub mod foreign;
mod in_use;
mod ioctl;
mod memory;
mod mirror;
mod model;
pub mod mount_table;
mod new_file;
pub mod partition;
mod parts;
mod shared;
mod uring;
mod window;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::BorrowedFd;

pub use compose::{ComposeFault, Linear, Stripe};
pub use file::{FileDevice, Io};
pub use flush::{FLUSH_BUCKETS, FlushMeter, FlushStats, Measured};
pub use in_use::{ImageUse, use_of};
pub use memory::MemDevice;
pub use mirror::Mirror;
pub use model::{Clock, Model, Modelled};
pub use new_file::NewFile;
pub use parts::SharedParts;
pub use window::Window;

/// What went wrong at a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceFault {
    /// The operating system refused.
    #[error("cannot {what} {len} bytes at offset {offset}: {source}")]
    Io {
        /// "read", "write", "zero", ...
        what: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// Length of the transfer in bytes.
        len: u64,
        /// The operating system's reason.
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
    /// The operating system's error number, where it gave one.
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

    /// Does the range lie inside a device of `size` bytes? For implementations of [`Device`]; `what` says
    /// what was tried.
    ///
    /// # Errors
    /// [`OutOfRange`](Self::OutOfRange) when it does not.
    pub fn check_len(what: &'static str, offset: u64, len: u64, size: u64) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Self::OutOfRange { what, offset, len, size }),
        }
    }
}

/// Bytes that may have several holders, and are immutable meanwhile.
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
    /// When the range reaches past the end or the system refuses.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault>;

    /// Fills `bufs` one after the other from byte `offset` on, in as few transfers as the device can.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at). What the buffers hold then is not defined.
    fn read_vectored_at(&self, mut offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("read", offset, total_len(bufs), self.size_bytes())?;
        for buf in bufs {
            self.read_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    /// Fills the buffers of each part from its byte offset on, as
    /// [`read_vectored_at`](Self::read_vectored_at): all of them together where the device can do that.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at). What any of the buffers hold then is not defined.
    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        parts.iter_mut().try_for_each(|(offset, bufs)| self.read_vectored_at(*offset, bufs))
    }

    /// A hint that a range is going to be read soon. It returns at once, reads nothing by itself, and cannot
    /// fail; a range that reaches past the end is cut there.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// The open file that holds a range, and the range's offset there, if one file holds all of it unchanged:
    /// for moving bytes in the kernel. `None` when they have to be read.
    fn file_at(&self, _offset: u64, _len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }

    /// Asks the system to forget what it keeps of a range in memory, so that the next read sees what another
    /// machine wrote to the device. A hint: what cannot be forgotten stays.
    fn forget_cached(&self, _offset: u64, _len: u64) {}

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// When the range reaches past the end or the system refuses (disk full, I/O error).
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault>;

    /// Writes all of `bufs` one after the other from byte `offset` on, in as few transfers as the device can.
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

    /// Writes the buffers of each part from its byte offset on, as
    /// [`write_vectored_at`](Self::write_vectored_at): all of them together where the device can do that.
    /// Parts do not overlap, and become durable in any order.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at): any of the parts may have been written then.
    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        parts.iter().try_for_each(|(offset, bufs)| self.write_vectored_at(*offset, bufs))
    }

    /// Writes blocks that do not change any more, all runs of them together where the device can do that. A
    /// device in memory may take them out of `parts` and keep them instead of copies; returns whether it
    /// keeps all of them: then they exist as long as the device has these bytes. The contents of `parts` are
    /// undefined afterwards; the caller clears it.
    ///
    /// # Errors
    /// As [`write_many_at`](Self::write_many_at).
    fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
        parts.with_slices(|parts| self.write_many_at(parts)).map(|()| false)
    }

    /// Writes all of `bytes` at byte `offset`, and returns when they are durable (a disk's "forced unit
    /// access"). Other writes need not become durable with them; for that call [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`flush`](Self::flush).
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.write_at(offset, bytes)?;
        self.flush()
    }

    /// Makes a range read as zeros, by a hole where the device can.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault>;

    /// Discards a range, so that its space may be released. Until it is written again the range has any
    /// content: the old bytes, zeros, or others; a power cut may also bring the old bytes back. Like a write
    /// it must not run beside another access to its range. Returns whether the device supports it; one that
    /// does not leaves the range unchanged.
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
    /// When the system reports that a write was lost.
    fn flush(&self) -> Result<(), DeviceFault>;

    /// How long a flush takes here, in nanoseconds: the moving average of those measured, 0 where there is no
    /// volatile cache. `None` before the first: then expect it to be slow. Of several devices put together:
    /// the slowest's.
    fn flush_nanos(&self) -> Option<u64> {
        self.flush_stats().map(|stats| stats.average_nanos)
    }

    /// What was measured of flushes; of several devices put together, those of the one with the largest
    /// average. `None` where nothing is measured.
    fn flush_stats(&self) -> Option<FlushStats> {
        None
    }

    /// The unit in which the device itself counts: 512, or 4096 on disks that say so. Partition tables count
    /// in it.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// Do bytes that were never written read as zeros? True for new files and memory, false for an old block
    /// device.
    fn is_fresh(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn Device + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} bytes)", self.size_bytes())
    }
}

/// Length of all buffers together; more than an address space holds counts as the largest number, which no
/// device has.
fn total_len<B: Deref<Target = [u8]>>(bufs: &[B]) -> u64 {
    bufs.iter().fold(0, |sum: u64, buf| sum.saturating_add(buf.len() as u64))
}

/// Writes zeros the plain way.
fn write_zeros(device: &dyn Device, mut offset: u64, mut len: u64) -> Result<(), DeviceFault> {
    let zeros = vec![0; len.min(1 << 20) as usize];
    while len > 0 {
        let part = len.min(zeros.len() as u64);
        device.write_at(offset, &zeros[..part as usize])?;
        (offset, len) = (offset + part, len - part);
    }
    Ok(())
}
