//! Part of a device as a device of its own: a partition, an image behind a header.

use crate::{Device, DeviceFault};

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
    /// When `offset` is past the end.
    pub fn from_offset(inner: D, offset: u64) -> Result<Self, DeviceFault> {
        let size = inner.size_bytes();
        let len =
            size.checked_sub(offset).ok_or(DeviceFault::OutOfRange { what: "read", offset, len: 0, size })?;
        Ok(Self { inner, offset, len })
    }

    fn translate(&self, what: &'static str, offset: u64, len: usize) -> Result<u64, DeviceFault> {
        DeviceFault::check_range(what, offset, len, self.len)?;
        Ok(self.offset + offset)
    }
}

impl<D: Device> Device for Window<D> {
    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.inner.read_at(self.translate("read", offset, buf.len())?, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write_at(self.translate("write", offset, bytes.len())?, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        let checked = usize::try_from(len).unwrap_or(usize::MAX);
        self.inner.zero_at(self.translate("zero", offset, checked)?, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.inner.flush()
    }

    fn is_fresh(&self) -> bool {
        self.inner.is_fresh()
    }
}
