//! A disk on which something else happens while it is written to: what other threads do, one thread does at
//! chosen moments.
//!
//! The writer may hold locks: interrupting operations wait for none of them.

use std::collections::HashSet;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extant_device::{Device, DeviceFault, FlushStats};

/// A call of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Bytes go into its cache.
    Write,
    /// Bytes become durable.
    WriteDurable,
    Flush,
}

/// What happens before a call of the disk, and after it. Its own calls are not interrupted.
pub(crate) trait Between: Send {
    fn before(&mut self, call: Call);
    fn after(&mut self, call: Call);
}

/// The disk, with what happens meanwhile.
pub(crate) struct Interrupted {
    disk: Arc<dyn Device>,
    armed: Mutex<Option<Box<dyn Between>>>,
    /// Where reads were interrupted, and how often at a place read before.
    read: Mutex<HashSet<u64>>,
    read_again: AtomicU64,
}

impl Interrupted {
    pub(crate) fn new(disk: Arc<dyn Device>) -> Self {
        Self { disk, armed: Mutex::default(), read: Mutex::default(), read_again: AtomicU64::new(0) }
    }

    /// From now on this happens, or nothing. What happened until now.
    pub(crate) fn arm(&self, between: Option<Box<dyn Between>>) -> Option<Box<dyn Between>> {
        std::mem::replace(&mut *self.armed(), between)
    }

    /// Reads that began where another one had.
    pub(crate) fn read_again(&self) -> u64 {
        self.read_again.load(Ordering::Relaxed)
    }

    fn armed(&self) -> MutexGuard<'_, Option<Box<dyn Between>>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn during(&self, call: Call, make: impl FnOnce() -> Result<(), DeviceFault>) -> Result<(), DeviceFault> {
        let Some(mut between) = self.arm(None) else { return make() };
        between.before(call);
        let made = make();
        between.after(call);
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
