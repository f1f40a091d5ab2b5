//! Where images live: bytes in and out at offsets, of files, block devices, memory, and windows into them.
//!
//! Owns the [`Device`] seam, its implementations, the tables of partitions that say where a window should be
//! ([`partition`]), and [`NewFile`]: an output that appears under its name only when it is complete. Does **not** own
//! any layout of a file system, cache or order of writes.
//!
//! Invariants
//! 1. A read or write is whole or an error that says what, where and why; there are no short transfers.
//! 2. Bytes of a fresh device read as zeros until written.
//! 3. Methods take `&self`; threads may call them at the same time on ranges that do not overlap, and read the same range
//!    together.
//! 4. What was opened for reading is never written, and saying so is an error of its own ([`DeviceFault::ReadOnly`]).
//!
//! ```
//! use device::{Device, MemDevice};
//! let device = MemDevice::new(1 << 20);
//! device.write_at(4096, b"hello").unwrap();
//! let mut bytes = [0; 7];
//! device.read_at(4095, &mut bytes).unwrap();
//! assert_eq!(&bytes, b"\0hello\0");
//! ```

#![forbid(unsafe_code)]

mod file;
mod memory;
mod new_file;
pub mod partition;
mod shared;
mod window;

use std::fmt;
use std::io::{self, IoSliceMut};

pub use file::FileDevice;
pub use memory::MemDevice;
pub use new_file::NewFile;
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
        /// "write", "zero".
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

    fn check_len(what: &'static str, offset: u64, len: u64, size: u64) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Self::OutOfRange { what, offset, len, size }),
        }
    }
}

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
        for buf in bufs {
            self.read_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    /// Tells that a range is going to be read soon. A hint: it returns at once, reads nothing by itself, and cannot fail;
    /// a range that reaches past the end is cut there.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// When the range reaches past the end or the system refuses (disk full, I/O error).
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault>;

    /// Makes a range read as zeros, by a hole where the device can.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// When the system reports that a write was lost.
    fn flush(&self) -> Result<(), DeviceFault>;

    /// The unit in which the device itself counts: 512, or 4096 on disks that say so. Partition tables count in it.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// Do bytes that were never written read as zeros? True for new files and memory, false for an old block device.
    fn is_fresh(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn Device + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} bytes)", self.size_bytes())
    }
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
