//! The devices of the studies of names: memory, and models of disks that really wait.
//!
//! ```text
//! Memory   no latency: the engine's own work
//! Hdd      eight disks of 15,000 revolutions a minute as RAID 10, with the cache of their controller
//! Nvme     one flash drive
//!
//!            fill the directory       measure            close
//! Switched      Memory           ->  Hdd or Nvme   ->   Memory         the bytes are the same
//! ```
//!
//! Owns: which model is in use. Does **not** own: the models' costs (`extant_device::Model`).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use extant_device::{Clock, Device, DeviceFault, FlushStats, Model, Modelled, SharedParts};
use serde::Serialize;

/// The timing of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drive {
    /// No latency.
    Memory,
    /// An array of fast hard disks.
    Hdd,
    /// A flash drive on NVMe.
    Nvme,
}

/// Eight disks of 15,000 revolutions a minute in a RAID 10. A read costs half a revolution and a seek, which
/// is 8 ms across the whole disk; eight reads run concurrently. The controller's cache has a battery, so
/// flushes do not destage it. Destaging sorts the writes: 1 ms per write and disk, and each block has two
/// copies, so the eight disks need 250 us per block.
const RAID10: Model = Model {
    name: "hdd",
    lanes: 8,
    read: Duration::from_millis(2),
    seek_max: Duration::from_millis(8),
    destage: Duration::from_micros(250),
    ..Model::ARRAY
};

impl Drive {
    /// All of them; the number of each is its index.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Hdd, Self::Nvme];

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Hdd => "hdd",
            Self::Nvme => "nvme",
        }
    }

    /// The drive with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|drive| drive.name() == name)
    }

    /// Its costs. `None`: no latency.
    #[must_use]
    pub fn model(self) -> Option<Model> {
        match self {
            Self::Memory => None,
            Self::Hdd => Some(RAID10),
            Self::Nvme => Some(Model::NVME),
        }
    }

    /// The costs in words.
    #[must_use]
    pub fn describe(self) -> String {
        self.model().map_or("no latency".to_owned(), |model| describe(&model))
    }
}

/// The costs of a model in words.
pub(crate) fn describe(model: &Model) -> String {
    let us = |time: Duration| time.as_micros();
    let seek = match model.seek_max.is_zero() {
        true => String::new(),
        false => format!(" and a seek of up to {} us", us(model.seek_max)),
    };
    let write = match model.cache_bytes {
        0 => format!("{} us{seek}, without a cache", us(model.write)),
        _ => format!("{} us, and {} us more on the medium", us(model.write), us(model.destage)),
    };
    let requests = match model.lanes {
        1 => "one request at a time".to_owned(),
        lanes => format!("{lanes} concurrent requests"),
    };
    format!(
        "{requests}; a read takes {} us{seek}; a write takes {write}; a flush takes {} us{}{}",
        us(model.read),
        us(model.flush),
        if model.volatile_cache { " and waits for the medium" } else { "" },
        if model.drains { "; it drains the queue" } else { "" }
    )
}

/// A device whose timing can be changed while it is in use.
pub struct Switched {
    inner: Arc<dyn Device>,
    /// One for each [`Drive`] with latency.
    models: Vec<Modelled<Arc<dyn Device>>>,
    /// Index of the drive in [`Drive::ALL`].
    current: AtomicUsize,
}

impl Switched {
    /// A device with the bytes of `inner`, at first without latency. The drives' write caches are `scale`
    /// times as large as their models': for a load that is a small part of the one that the drive is for.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, scale: f64) -> Self {
        let models = Drive::ALL.into_iter().filter_map(Drive::model).map(|model| {
            let cache_bytes = ((model.cache_bytes as f64 * scale) as u64).max(1 << 20);
            let cache_writes = ((model.cache_writes as f64 * scale) as usize).max(64);
            let model = Model { cache_bytes, cache_writes, ..model };
            Modelled::new(Arc::clone(&inner), model, Clock::Real)
        });
        Self { models: models.collect(), inner, current: AtomicUsize::new(0) }
    }

    /// Changes the timing of the requests that begin from now on.
    pub fn set(&self, drive: Drive) {
        let at = Drive::ALL.iter().position(|&one| one == drive).unwrap_or(0);
        self.current.store(at, Ordering::Relaxed);
    }

    fn now(&self) -> &dyn Device {
        let at = self.current.load(Ordering::Relaxed);
        at.checked_sub(1).and_then(|at| self.models.get(at)).map_or(&self.inner, |model| model)
    }
}

impl std::fmt::Debug for Switched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Switched: {} bytes", self.inner.size_bytes())
    }
}

impl Device for Switched {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.now().read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        self.now().read_vectored_at(offset, bufs)
    }

    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        self.now().read_many_at(parts)
    }

    fn file_at(&self, offset: u64, len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.now().file_at(offset, len)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.now().prefetch(offset, len);
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        self.now().forget_cached(offset, len);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.now().write_at(offset, bytes)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        self.now().write_vectored_at(offset, bufs)
    }

    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        self.now().write_many_at(parts)
    }

    fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
        self.now().write_shared_at(parts)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.now().write_durable_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.now().zero_at(offset, len)
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.now().discard_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.now().flush()
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.now().flush_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.now().flush_stats()
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
    use std::time::Instant;

    use extant_device::MemDevice;

    use super::*;

    #[test]
    fn only_the_drive_in_use_takes_time_and_the_bytes_stay() {
        let device = Switched::new(Arc::new(MemDevice::new(1 << 20)), 1.0);
        let time = |drive: Drive| {
            device.set(drive);
            let (begun, mut found) = (Instant::now(), [0; 3]);
            device.read_at(4096, &mut found).unwrap();
            (begun.elapsed(), found)
        };
        device.write_at(4096, &[1, 2, 3]).unwrap();
        for drive in Drive::ALL {
            let least = drive.model().map_or(Duration::ZERO, |model| model.read);
            let (took, found) = time(drive);
            assert!(took >= least && found == [1, 2, 3], "{drive:?} {took:?}");
            assert_eq!(Drive::by_name(drive.name()), Some(drive));
        }
        assert!(Drive::Hdd.describe().contains("seek of up to 8000 us"), "{}", Drive::Hdd.describe());
    }
}
