//! Implements `Device` for references and shared handles of devices.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Device, DeviceFault, FlushStats, SharedParts};

macro_rules! forward {
    ($($holder:ty),*) => {$(
        impl<D: Device + ?Sized> Device for $holder {
            fn size_bytes(&self) -> u64 {
                (**self).size_bytes()
            }

            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
                (**self).read_at(offset, buf)
            }

            fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
                (**self).read_vectored_at(offset, bufs)
            }

            fn file_at(&self, offset: u64, len: u64) -> Option<(BorrowedFd<'_>, u64)> {
                (**self).file_at(offset, len)
            }

            fn prefetch(&self, offset: u64, len: u64) {
                (**self).prefetch(offset, len);
            }

            fn forget_cached(&self, offset: u64, len: u64) {
                (**self).forget_cached(offset, len);
            }

            fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
                (**self).write_at(offset, bytes)
            }

            fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
                (**self).write_vectored_at(offset, bufs)
            }

            fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
                (**self).write_shared_at(parts)
            }

            fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
                (**self).write_durable_at(offset, bytes)
            }

            fn copy_at(&self, from: u64, to: u64, len: u64) -> Result<(), DeviceFault> {
                (**self).copy_at(from, to, len)
            }

            fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
                (**self).zero_at(offset, len)
            }

            fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
                (**self).read_many_at(parts)
            }

            fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
                (**self).write_many_at(parts)
            }

            fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
                (**self).discard_at(offset, len)
            }

            fn flush(&self) -> Result<(), DeviceFault> {
                (**self).flush()
            }

            fn flush_nanos(&self) -> Option<u64> {
                (**self).flush_nanos()
            }

            fn flush_stats(&self) -> Option<FlushStats> {
                (**self).flush_stats()
            }

            fn sector_bytes(&self) -> u32 {
                (**self).sector_bytes()
            }

            fn is_fresh(&self) -> bool {
                (**self).is_fresh()
            }
        }
    )*};
}
forward!(&D, Box<D>, Arc<D>);
