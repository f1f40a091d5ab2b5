//! A disk that runs other operations while it is written to. One thread does at chosen moments what other
//! threads would do concurrently.
//!
//! The writer may hold locks: the interrupting operations must not wait for them.

use std::collections::HashSet;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extant_base::rank;
use extant_device::{Device, DeviceFault, FlushStats};

/// A kind of call of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Bytes go into the disk's cache.
    Write,
    /// Bytes become durable.
    WriteDurable,
    Flush,
}

/// Operations before and after a call of the disk. The calls that they make are not interrupted.
pub(crate) trait Between: Send {
    fn before(&mut self, call: Call);
    fn after(&mut self, call: Call);
}

/// The disk, and the operations that interrupt its calls.
pub(crate) struct Interrupted {
    disk: Arc<dyn Device>,
    armed: Mutex<Option<Box<dyn Between>>>,
    /// Offsets that were read, and the number of reads at an offset that was read before.
    read: Mutex<HashSet<u64>>,
    read_again: AtomicU64,
}

impl Interrupted {
    pub(crate) fn new(disk: Arc<dyn Device>) -> Self {
        Self { disk, armed: Mutex::default(), read: Mutex::default(), read_again: AtomicU64::new(0) }
    }

    /// Sets the interrupting operations, or removes them with `None`. Returns the previous ones.
    pub(crate) fn arm(&self, between: Option<Box<dyn Between>>) -> Option<Box<dyn Between>> {
        std::mem::replace(&mut *self.armed(), between)
    }

    /// Number of reads that began at an offset where an earlier one began.
    pub(crate) fn read_again(&self) -> u64 {
        self.read_again.load(Ordering::Relaxed)
    }

    fn armed(&self) -> MutexGuard<'_, Option<Box<dyn Between>>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn during(&self, call: Call, make: impl FnOnce() -> Result<(), DeviceFault>) -> Result<(), DeviceFault> {
        let Some(mut between) = self.arm(None) else { return make() };
        rank::as_another_thread(|| between.before(call));
        let made = make();
        rank::as_another_thread(|| between.after(call));
        self.arm(Some(between));
        made
    }
}

impl Device for Interrupted {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let is_new = self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(offset);
        self.read_again.fetch_add(u64::from(!is_new), Ordering::Relaxed);
        self.disk.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.during(Call::Write, || self.disk.write_at(offset, bytes))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        self.during(Call::Write, || self.disk.write_vectored_at(offset, bufs))
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.during(Call::WriteDurable, || self.disk.write_durable_at(offset, bytes))
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.disk.zero_at(offset, len)
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.disk.discard_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.during(Call::Flush, || self.disk.flush())
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.disk.flush_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.disk.flush_stats()
    }

    fn is_fresh(&self) -> bool {
        self.disk.is_fresh()
    }
}
