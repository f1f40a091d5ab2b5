//! Part of a device as a device: a partition, or an image after a header.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Device, DeviceFault, FlushStats, total_len};

/// The bytes `offset..offset+len` of another device.
#[derive(Debug)]
pub struct Window<D> {
    inner: D,
    offset: u64,
    len: u64,
}

impl<D: Device> Window<D> {
    /// A window from byte `offset` to the end of `inner`.
    ///
    /// # Errors
    /// `offset` is past the end.
    pub fn from_offset(inner: D, offset: u64) -> Result<Self, DeviceFault> {
        let size = inner.size_bytes();
        let len =
            size.checked_sub(offset).ok_or(DeviceFault::OutOfRange { what: "read", offset, len: 0, size })?;
        Ok(Self { inner, offset, len })
    }

    fn translate(&self, what: &'static str, offset: u64, len: u64) -> Result<u64, DeviceFault> {
        DeviceFault::check_len(what, offset, len, self.len)?;
        // It is below the inner device's end, which the constructor checked.
        Ok(self.offset + offset)
    }
}

impl Window<Arc<dyn Device>> {
    /// A window of `len` bytes from byte `start` on, which owns a handle of its device.
    ///
    /// # Errors
    /// The window would reach past the end of `inner`.
    pub fn owned(inner: Arc<dyn Device>, start: u64, len: u64) -> Result<Self, DeviceFault> {
        DeviceFault::check_len("read", start, len, inner.size_bytes())?;
        Ok(Self { inner, offset: start, len })
    }
}

impl<D: Device> Device for Window<D> {
    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.inner.read_at(self.translate("read", offset, buf.len() as u64)?, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = total_len(bufs);
        self.inner.read_vectored_at(self.translate("read", offset, len)?, bufs)
    }

    fn file_at(&self, offset: u64, len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.inner.file_at(self.translate("read", offset, len).ok()?, len)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let len = len.min(self.len.saturating_sub(offset));
        if len > 0 {
            self.inner.prefetch(self.offset + offset, len);
        }
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        let len = len.min(self.len.saturating_sub(offset));
        if len > 0 {
            self.inner.forget_cached(self.offset + offset, len);
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write_at(self.translate("write", offset, bytes.len() as u64)?, bytes)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        self.inner.write_vectored_at(self.translate("write", offset, total_len(bufs))?, bufs)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write_durable_at(self.translate("write", offset, bytes.len() as u64)?, bytes)
    }

    fn copy_at(&self, from: u64, to: u64, len: u64) -> Result<(), DeviceFault> {
        self.inner.copy_at(self.translate("read", from, len)?, self.translate("write", to, len)?, len)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.inner.zero_at(self.translate("zero", offset, len)?, len)
    }

    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        let translated = parts.iter_mut().map(|(offset, bufs)| {
            let offset = self.translate("read", *offset, total_len(bufs))?;
            Ok((offset, &mut **bufs))
        });
        self.inner.read_many_at(&mut translated.collect::<Result<Vec<_>, DeviceFault>>()?)
    }

    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        let translated = parts
            .iter()
            .map(|(offset, bufs)| Ok((self.translate("write", *offset, total_len(bufs))?, *bufs)));
        self.inner.write_many_at(&translated.collect::<Result<Vec<_>, DeviceFault>>()?)
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.inner.discard_at(self.translate("discard", offset, len)?, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.inner.flush()
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.inner.flush_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.inner.flush_stats()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }

    fn is_fresh(&self) -> bool {
        self.inner.is_fresh()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn a_window_shows_its_bytes_and_no_others() {
        let whole: Arc<dyn Device> = Arc::new(MemDevice::new(8192));
        let window = Window::owned(Arc::clone(&whole), 1000, 100).unwrap();
        window.write_at(0, b"first").unwrap();
        window.write_at(96, b"last").unwrap();
        assert!(window.write_at(97, b"last").is_err());
        assert!(window.read_at(u64::MAX, &mut [0]).is_err());
        assert!(window.zero_at(0, u64::MAX).is_err());
        window.prefetch(u64::MAX, 1);
        let mut bytes = [0; 5];
        whole.read_at(1000, &mut bytes).unwrap();
        assert_eq!(&bytes, b"first");
        let (mut one, mut two) = ([0; 2], [0; 2]);
        window.read_vectored_at(96, &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).unwrap();
        assert_eq!((&one, &two), (b"la", b"st"));
        window.write_vectored_at(97, &[IoSlice::new(b"o"), IoSlice::new(b""), IoSlice::new(b"ud")]).unwrap();
        assert!(window.write_vectored_at(97, &[IoSlice::new(b"xx"), IoSlice::new(b"xx")]).is_err());
        window.write_durable_at(96, b"l").unwrap();
        assert!(window.write_durable_at(100, b"l").is_err());
        whole.read_at(1096, &mut bytes).unwrap();
        assert_eq!(&bytes, b"loud\0");
    }

    #[test]
    fn a_window_lies_inside_its_device() {
        let whole: Arc<dyn Device> = Arc::new(MemDevice::new(8192));
        assert!(Window::owned(Arc::clone(&whole), 8000, 193).is_err());
        assert!(Window::owned(Arc::clone(&whole), u64::MAX, 2).is_err());
        assert_eq!(Window::owned(whole, 8192, 0).unwrap().size_bytes(), 0);
    }
}
