//! Measures the duration of flushes, for the callers of devices.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Device, DeviceFault};

/// Number of counts in [`FlushStats::histogram`].
pub const FLUSH_BUCKETS: usize = 28;

/// Below this duration, in nanoseconds, a flush does not get its own thread: starting a thread takes some
/// tens of µs.
const WORTH_A_THREAD_NANOS: u64 = 200_000;

/// The measurements of a device's flushes. Failed flushes are not included: their duration is meaningless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushStats {
    /// Number of measured flushes.
    pub count: u64,
    /// Moving average in nanoseconds. Each new value has a weight of a quarter; the first is used as it is
    /// (the weights of jbd2's average of commit times).
    pub average_nanos: u64,
    /// Minimum, in nanoseconds.
    pub min_nanos: u64,
    /// Maximum, in nanoseconds.
    pub max_nanos: u64,
    /// Sum, in nanoseconds.
    pub total_nanos: u64,
    /// Number of flushes by duration: `[0]` below 1 µs, `[i]` from 2^(i-1) to below 2^i µs; the last element
    /// also counts all longer ones.
    pub histogram: [u64; FLUSH_BUCKETS],
}

impl FlushStats {
    /// Adds one measurement, in nanoseconds.
    pub fn add(&mut self, nanos: u64) {
        let first = self.count == 0;
        // (3 * average + new) / 4 without an intermediate overflow; the remainders are below 4.
        let parts = self.average_nanos % 4 * 3 + nanos % 4;
        let average = self.average_nanos / 4 * 3 + nanos / 4 + parts / 4;
        self.average_nanos = if first { nanos } else { average };
        self.min_nanos = if first { nanos } else { self.min_nanos.min(nanos) };
        self.max_nanos = self.max_nanos.max(nanos);
        self.total_nanos = self.total_nanos.saturating_add(nanos);
        self.count += 1;
        let micros = nanos / 1000;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.histogram[bucket.min(FLUSH_BUCKETS - 1)] += 1;
    }
}

/// Measures flushes; shared by the threads that make them.
#[derive(Debug, Default)]
pub struct FlushMeter(Mutex<FlushStats>);

impl FlushMeter {
    /// Runs a flush, and adds its duration if it succeeds.
    ///
    /// # Errors
    /// Those of `flush`, unchanged.
    pub fn measure<E>(&self, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let start = Instant::now();
        flush()?;
        self.add(start.elapsed());
        Ok(())
    }

    /// Adds one flush that was measured elsewhere.
    pub fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(nanos);
    }

    /// The measurements; `None` before the first.
    #[must_use]
    pub fn stats(&self) -> Option<FlushStats> {
        let stats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (stats.count > 0).then_some(*stats)
    }

    /// The moving average in nanoseconds; `None` before the first measurement.
    #[must_use]
    pub fn average_nanos(&self) -> Option<u64> {
        let stats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (stats.count > 0).then_some(stats.average_nanos)
    }
}

/// A device that measures the flushes of `inner`: for a device that does not measure them itself, or to
/// include a layer above it (a simulated delay).
#[derive(Debug)]
pub struct Measured<D> {
    inner: D,
    flushes: FlushMeter,
}

impl<D: Device> Measured<D> {
    /// Measures `inner` from now on.
    pub fn new(inner: D) -> Self {
        Self { inner, flushes: FlushMeter::default() }
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D: Device> Device for Measured<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.inner.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        self.inner.read_vectored_at(offset, bufs)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        self.inner.forget_cached(offset, len);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write_at(offset, bytes)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        self.inner.write_vectored_at(offset, bufs)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write_durable_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.inner.zero_at(offset, len)
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.inner.discard_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.flushes.measure(|| self.inner.flush())
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.flushes.average_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.flushes.stats()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }

    fn is_fresh(&self) -> bool {
        self.inner.is_fresh()
    }
}

/// Flushes every one of `members`, even if one fails, and returns their results in order. If two or more are
/// slow or of unknown speed, all run concurrently.
pub(crate) fn flush_each(members: &[&dyn Device]) -> Vec<Result<(), DeviceFault>> {
    let slow = |member: &dyn Device| member.flush_nanos().is_none_or(|nanos| nanos >= WORTH_A_THREAD_NANOS);
    if members.iter().filter(|member| slow(**member)).count() < 2 {
        return members.iter().map(|member| member.flush()).collect();
    }
    std::thread::scope(|scope| {
        let (here, others) = members.split_first().expect("at least the two slow ones");
        let others: Vec<_> = others
            .iter()
            .map(|member| {
                // If the system cannot start a thread, this thread makes the flush later.
                (member, std::thread::Builder::new().spawn_scoped(scope, || member.flush()))
            })
            .collect();
        let mut results = vec![here.flush()];
        results.extend(others.into_iter().map(|(member, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => member.flush(),
        }));
        results
    })
}

/// [`Device::flush_nanos`] of several devices that a flush waits for: the maximum, or unknown if any is
/// unknown.
pub(crate) fn slowest_nanos<'a>(members: impl Iterator<Item = &'a dyn Device>) -> Option<u64> {
    members.map(Device::flush_nanos).try_fold(0, |max: u64, nanos| Some(max.max(nanos?)))
}

/// [`Device::flush_stats`] of several devices: those with the largest average.
pub(crate) fn slowest_stats<'a>(members: impl Iterator<Item = &'a dyn Device>) -> Option<FlushStats> {
    members.filter_map(Device::flush_stats).max_by_key(|stats| stats.average_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn the_average_follows_with_a_quarter_of_each_new_one() {
        let mut stats = FlushStats::default();
        for nanos in [8_000, 4_000, 1, 0] {
            stats.add(nanos);
        }
        // 8000, (24000 + 4000) / 4 = 7000, 21001 / 4 = 5250, 15750 / 4 = 3937
        assert_eq!((stats.count, stats.average_nanos, stats.total_nanos), (4, 3_937, 12_001));
        assert_eq!((stats.min_nanos, stats.max_nanos), (0, 8_000));
        assert_eq!(stats.histogram[..6], [2, 0, 0, 1, 1, 0]); // below 1 µs, 4..8 µs, 8..16 µs
        stats.add(u64::MAX);
        stats.add(u64::MAX);
        assert_eq!(stats.histogram[FLUSH_BUCKETS - 1], 2);
    }

    #[test]
    fn nothing_is_known_before_the_first_flush_and_failures_teach_nothing() {
        let meter = FlushMeter::default();
        assert_eq!((meter.average_nanos(), meter.stats()), (None, None));
        meter.measure(|| Err(())).unwrap_err();
        assert_eq!(meter.average_nanos(), None);
        let device = Measured::new(MemDevice::new(512));
        assert_eq!(device.flush_nanos(), None);
        assert_eq!(device.inner().flush_nanos(), Some(0));
        device.flush().unwrap();
        assert_eq!(device.flush_stats().unwrap().count, 1);
    }
}
