//! A device over storage that a program brings along: functions of a C program, a file object of Python, a
//! network.
//!
//! Owns: what every such device does in the same way: it checks ranges, refuses writes, writes zeros, and
//! collects buffers into one transfer. Does **not** own: the storage, which is a [`Backend`].
//!
//! Invariants
//! 1. A backend gets only ranges that are inside of it and not empty, and writes and flushes only if it is
//!    writable.
//! 2. Several buffers are one call: a call may cost more than a copy.

use std::io::{self, IoSlice, IoSliceMut};

use crate::{Device, DeviceFault, total_len, write_zeros};

/// Storage that a program brings along. A [`BackendDevice`] makes a [`Device`] of it.
pub trait Backend: Send + Sync {
    /// Size in bytes. It does not change.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` completely from byte `offset` on.
    ///
    /// # Errors
    /// Any error of the storage.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Whether the storage can be written.
    fn is_writable(&self) -> bool {
        false
    }

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// Any error of the storage.
    fn write(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// Any error of the storage: earlier writes may be lost.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Whether bytes that were never written read as zeros.
    fn is_fresh(&self) -> bool {
        false
    }
}

/// The device of a [`Backend`].
///
/// ```
/// use std::io;
/// use std::sync::Mutex;
/// use extant_device::{Backend, BackendDevice, Device};
///
/// struct Memory(Mutex<Vec<u8>>);
/// impl Backend for Memory {
///     fn size_bytes(&self) -> u64 {
///         1 << 20
///     }
///     fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
///         buf.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..buf.len()]);
///         Ok(())
///     }
///     fn is_writable(&self) -> bool {
///         true
///     }
///     fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
///         self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
///         Ok(())
///     }
/// }
/// let device = BackendDevice(Memory(Mutex::new(vec![0; 1 << 20])));
/// device.write_at(4096, b"hello")?;
/// let mut bytes = [0; 5];
/// device.read_at(4096, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// assert!(device.read_at(1 << 20, &mut bytes).is_err());
/// # Ok::<(), extant_device::DeviceFault>(())
/// ```
pub struct BackendDevice<B>(pub B);

impl<B: Backend> BackendDevice<B> {
    fn checked(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
        work: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), DeviceFault> {
        DeviceFault::check_len(what, offset, len, self.0.size_bytes())?;
        if what != "read" && !self.0.is_writable() {
            return Err(DeviceFault::ReadOnly { what, offset, len });
        }
        if len == 0 {
            return Ok(());
        }
        work().map_err(|source| DeviceFault::Io { what, offset, len, source })
    }
}

impl<B: Backend> Device for BackendDevice<B> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.checked("read", offset, buf.len() as u64, || self.0.read(offset, buf))
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        if let [buf] = bufs {
            return self.read_at(offset, buf);
        }
        // The range is inside the storage before its length decides how much memory is taken.
        DeviceFault::check_len("read", offset, total_len(bufs), self.0.size_bytes())?;
        let mut whole = vec![0; bufs.iter().map(|buf| buf.len()).sum()];
        self.read_at(offset, &mut whole)?;
        let mut rest = whole.as_slice();
        for buf in bufs {
            let (now, later) = rest.split_at(buf.len());
            buf.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.checked("write", offset, bytes.len() as u64, || self.0.write(offset, bytes))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        match bufs {
            [buf] => self.write_at(offset, buf),
            _ => self.checked("write", offset, total_len(bufs), || {
                let slices: Vec<&[u8]> = bufs.iter().map(|buf| &**buf).collect();
                self.0.write(offset, &slices.concat())
            }),
        }
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.checked("zero", offset, len, || Ok(()))?;
        write_zeros(self, offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        if !self.0.is_writable() {
            return Ok(());
        }
        self.0.flush().map_err(|source| DeviceFault::Io { what: "flush", offset: 0, len: 0, source })
    }

    fn is_fresh(&self) -> bool {
        self.0.is_fresh()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Bytes, and the calls that it got.
    struct Recorded {
        bytes: Mutex<Vec<u8>>,
        calls: Mutex<Vec<(&'static str, u64, usize)>>,
        is_writable: bool,
    }

    impl Recorded {
        fn new(is_writable: bool) -> BackendDevice<Self> {
            let (bytes, calls) = (Mutex::new(vec![1; 64]), Mutex::default());
            BackendDevice(Self { bytes, calls, is_writable })
        }

        fn take_calls(&self) -> Vec<(&'static str, u64, usize)> {
            std::mem::take(&mut self.calls.lock().unwrap())
        }
    }

    impl Backend for Recorded {
        fn size_bytes(&self) -> u64 {
            64
        }

        fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.calls.lock().unwrap().push(("read", offset, buf.len()));
            buf.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..buf.len()]);
            Ok(())
        }

        fn is_writable(&self) -> bool {
            self.is_writable
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.calls.lock().unwrap().push(("write", offset, bytes.len()));
            self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            self.calls.lock().unwrap().push(("flush", 0, 0));
            Err(io::Error::from_raw_os_error(28))
        }
    }

    #[test]
    fn several_buffers_are_one_call() {
        let device = Recorded::new(true);
        device.write_vectored_at(8, &[IoSlice::new(b"abc"), IoSlice::new(b"de")]).unwrap();
        let (mut first, mut second) = ([0; 2], [0; 4]);
        device.read_vectored_at(8, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
        assert_eq!((&first, &second), (b"ab", b"cde\x01"));
        assert_eq!(device.0.take_calls(), [("write", 8, 5), ("read", 8, 6)]);
        device.zero_at(0, 64).unwrap();
        assert!(device.0.bytes.lock().unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(device.flush().unwrap_err().os_error(), Some(28));
    }

    #[test]
    fn a_backend_gets_no_call_that_is_outside_or_empty_or_a_write_of_readers() {
        let device = Recorded::new(false);
        let outside = |done| matches!(done, Err(DeviceFault::OutOfRange { .. }));
        let refused = |done| matches!(done, Err(DeviceFault::ReadOnly { .. }));
        assert!(outside(device.read_at(60, &mut [0; 5])) && outside(device.write_at(u64::MAX, b"x")));
        assert!(outside(device.read_vectored_at(65, &mut [])) && outside(device.zero_at(1, 64)));
        assert!(refused(device.write_at(0, b"x")) && refused(device.zero_at(0, 1)));
        assert!(refused(device.write_vectored_at(0, &[IoSlice::new(b"x"), IoSlice::new(b"y")])));
        device.read_at(64, &mut []).unwrap();
        device.flush().unwrap();
        assert_eq!(device.0.take_calls(), []);
        let writable = Recorded::new(true);
        writable.write_at(64, b"").unwrap();
        assert_eq!(writable.0.take_calls(), []);
    }
}
