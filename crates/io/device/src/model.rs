//! A device with simulated timing: each request takes the time that a disk, a flash drive or an array would
//! need.
//!
//! ```text
//!   request --> inner device --> the lane that is free first --> waits until the lane has finished it
//!   write   --> the cache, which the medium destages in the background
//!   flush   --> one lane, or all lanes if the device drains
//! ```
//!
//! A write into a full cache waits until the oldest writes are on the medium and there is room. Without a
//! cache, a write goes to the medium. A flush takes a fixed time; with a volatile cache it also waits until
//! the cache is destaged. If the device *drains*, a flush waits for the requests of all lanes, and occupies
//! all of them.
//!
//! Owns the costs ([`Model`]) and the queues. Does **not** own: the effect of a power cut on a cache (see the
//! simulated disk). No figure is that of a certain product: the presets have the usual order of magnitude for
//! their kind.
//!
//! Invariants
//! 1. Bytes are the inner device's; only time is added.
//! 2. No lock is held while time passes.
//! 3. Pieces of one call that are adjacent on the device are one request, however many buffers they have.
//!    All requests of a call are queued at the same time, each in the lane that is free first, and each
//!    starts when this lane is free.
//! 4. With [`Clock::Virtual`] nothing sleeps: [`elapsed`](Modelled::elapsed) returns the time that would have
//!    passed.
//! 5. With [`Clock::Real`] a request takes its modelled time, counted from its call: the time of the inner
//!    device is part of it, and a sleep does not last longer than asked ([`wait_until`]).
//!
//! Source: the linux-ext4 series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Device, DeviceFault, FlushMeter, FlushStats, SharedParts, total_len};

/// The costs of requests. Rates are bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// The name on command lines.
    pub name: &'static str,
    /// Number of requests processed concurrently.
    pub lanes: usize,
    /// Time of a read, without the seek and the transfer.
    pub read: Duration,
    /// Time of a write to the cache, or without a cache to the medium, without the transfer.
    pub write: Duration,
    /// Time of a seek across the whole device; a shorter seek costs in proportion to the square root of its
    /// distance. Zero without a head.
    pub seek_max: Duration,
    /// Transfer rate of the medium.
    pub rate: f64,
    /// The cache loses its contents in a power cut, so flushes have to destage it.
    pub volatile_cache: bool,
    /// Capacity of the cache in bytes; 0 means no cache.
    pub cache_bytes: u64,
    /// Capacity of the cache in writes, of any size.
    pub cache_writes: usize,
    /// Time of a flush with an empty cache.
    pub flush: Duration,
    /// A flush waits for all requests that came before it, and later ones wait for it, as with the FLUSH
    /// CACHE of ATA. Otherwise it takes one lane.
    pub drains: bool,
    /// Time that the medium needs to destage a write, without the transfer: in the best possible order.
    pub destage: Duration,
}

const MICROSECOND: u64 = 1000;

impl Model {
    /// A disk of 7,200 revolutions a minute with a volatile cache.
    pub const HDD: Self = Self {
        name: "hdd",
        lanes: 1,
        read: Duration::from_millis(4),
        write: Duration::from_nanos(150 * MICROSECOND),
        seek_max: Duration::from_millis(14),
        rate: 160e6,
        volatile_cache: true,
        cache_bytes: 64 << 20,
        cache_writes: 256,
        flush: Duration::from_millis(4),
        drains: true,
        destage: Duration::from_millis(1),
    };
    /// A flash drive on SATA that loses its cache with the power.
    pub const SATA_SSD: Self = Self {
        name: "sata-ssd",
        lanes: 4,
        read: Duration::from_nanos(90 * MICROSECOND),
        write: Duration::from_nanos(40 * MICROSECOND),
        seek_max: Duration::ZERO,
        rate: 500e6,
        volatile_cache: true,
        cache_bytes: 256 << 20,
        cache_writes: 4096,
        flush: Duration::from_millis(3),
        drains: true,
        destage: Duration::from_nanos(20 * MICROSECOND),
    };
    /// A flash drive on SATA whose capacitors write its cache out when the power fails.
    pub const SATA_SSD_PLP: Self = Self {
        name: "sata-ssd-plp",
        volatile_cache: false,
        flush: Duration::from_nanos(60 * MICROSECOND),
        ..Self::SATA_SSD
    };
    /// A flash drive on NVMe, as in workstations.
    pub const NVME: Self = Self {
        name: "nvme",
        lanes: 16,
        read: Duration::from_nanos(60 * MICROSECOND),
        write: Duration::from_nanos(15 * MICROSECOND),
        rate: 3e9,
        flush: Duration::from_nanos(600 * MICROSECOND),
        drains: false,
        destage: Duration::from_nanos(5 * MICROSECOND),
        ..Self::SATA_SSD
    };
    /// An array of disks behind a cache with a battery.
    pub const ARRAY: Self = Self {
        name: "array",
        lanes: 8,
        read: Duration::from_millis(2),
        write: Duration::from_nanos(100 * MICROSECOND),
        seek_max: Duration::from_millis(10),
        rate: 600e6,
        volatile_cache: false,
        cache_bytes: 1 << 30,
        cache_writes: 1 << 18,
        flush: Duration::from_nanos(50 * MICROSECOND),
        drains: false,
        destage: Duration::from_nanos(100 * MICROSECOND),
    };
    /// A slow disk of 5,400 revolutions a minute, without command queueing, with a volatile cache.
    pub const IDE: Self = Self {
        name: "ide",
        read: Duration::from_nanos(5600 * MICROSECOND),
        write: Duration::from_nanos(300 * MICROSECOND),
        seek_max: Duration::from_millis(20),
        rate: 40e6,
        cache_bytes: 8 << 20,
        cache_writes: 128,
        flush: Duration::from_millis(8),
        destage: Duration::from_millis(3),
        ..Self::HDD
    };
    /// The disk [`HDD`](Self::HDD) with its cache switched off: a write takes as long as a read, and a flush
    /// has nothing to do.
    pub const HDD_NOWC: Self = Self {
        name: "hdd-nowc",
        write: Duration::from_millis(4),
        volatile_cache: false,
        cache_bytes: 0,
        cache_writes: 0,
        flush: Duration::from_nanos(100 * MICROSECOND),
        destage: Duration::ZERO,
        ..Self::HDD
    };
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::IDE, Self::HDD, Self::HDD_NOWC, Self::SATA_SSD, Self::SATA_SSD_PLP, Self::NVME, Self::ARRAY];

    /// A device with this flush time; all other requests take no time.
    #[must_use]
    pub fn flush_of(flush: Duration) -> Self {
        Self {
            name: "flush",
            lanes: 64,
            read: Duration::ZERO,
            write: Duration::ZERO,
            seek_max: Duration::ZERO,
            rate: f64::INFINITY,
            volatile_cache: true,
            cache_bytes: u64::MAX,
            cache_writes: usize::MAX,
            flush,
            drains: true,
            destage: Duration::ZERO,
        }
    }

    /// The same device `factor` times faster. Loads that mostly wait show the same ratios in less time.
    #[must_use]
    pub fn faster(self, factor: u32) -> Self {
        let factor = factor.max(1);
        Self {
            read: self.read / factor,
            write: self.write / factor,
            seek_max: self.seek_max / factor,
            rate: self.rate * f64::from(factor),
            flush: self.flush / factor,
            destage: self.destage / factor,
            ..self
        }
    }

    /// The preset with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name == name)
    }

    fn bytes(&self, len: u64) -> Duration {
        Duration::from_secs_f64(len as f64 / self.rate)
    }
}

/// How time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// Requests sleep.
    #[default]
    Real,
    /// Time is only counted.
    Virtual,
}

/// A device with the timing of a [`Model`].
#[derive(Debug)]
pub struct Modelled<D> {
    inner: D,
    model: Model,
    began: Instant,
    state: Mutex<State>,
    flushes: FlushMeter,
}

/// Times are relative to the creation of the device.
#[derive(Debug)]
struct State {
    clock: Clock,
    /// The time at which each lane has finished its requests.
    lanes: Vec<Duration>,
    /// The current time, if it is virtual.
    now: Duration,
    /// Position of the head: byte offset on the device.
    head: u64,
    /// The writes in the cache: the time at which each is on the medium, and its bytes. In order of time.
    cached: VecDeque<(Duration, u64)>,
    cached_bytes: u64,
    /// The time at which the medium has finished its writes.
    medium: Duration,
    /// Bytes of all writes.
    written_bytes: u64,
}

impl State {
    /// Removes the writes from the cache that are on the medium by now.
    fn destage(&mut self, now: Duration) {
        while let Some((_, len)) = self.cached.front().filter(|(done, _)| *done <= now) {
            self.cached_bytes -= len;
            self.cached.pop_front();
        }
    }

    /// Queues a request in one lane, or in all of them. Returns the time at which it is finished.
    fn occupy(
        &mut self,
        now: Duration,
        whole: bool,
        cost: impl FnOnce(&mut State, Duration) -> Duration,
    ) -> Duration {
        let lane = match whole {
            true => (0..self.lanes.len()).max_by_key(|lane| self.lanes[*lane]),
            false => (0..self.lanes.len()).min_by_key(|lane| self.lanes[*lane]),
        };
        let lane = lane.unwrap_or(0);
        let start = self.lanes[lane].max(now);
        let done = start + cost(self, start);
        match whole {
            true => self.lanes.fill(done),
            false => self.lanes[lane] = done,
        }
        done
    }
}

/// A request: byte offset and length.
type Request = (u64, u64);

/// Converts ranges to requests, in order of their offsets; adjacent ranges become one request.
fn runs(ranges: impl Iterator<Item = Request>) -> Vec<Request> {
    let mut sorted: Vec<Request> = ranges.filter(|(_, len)| *len > 0).collect();
    sorted.sort_unstable();
    let mut runs: Vec<Request> = Vec::with_capacity(sorted.len());
    for (offset, len) in sorted {
        match runs.last_mut() {
            Some((start, before)) if *start + *before == offset => *before += len,
            _ => runs.push((offset, len)),
        }
    }
    runs
}

impl<D: Device> Modelled<D> {
    /// Adds the timing of `model` to `inner`.
    pub fn new(inner: D, model: Model, clock: Clock) -> Self {
        let lanes = vec![Duration::ZERO; model.lanes.max(1)];
        let state = State {
            clock,
            lanes,
            now: Duration::ZERO,
            head: 0,
            cached: VecDeque::new(),
            cached_bytes: 0,
            medium: Duration::ZERO,
            written_bytes: 0,
        };
        Self { inner, model, began: Instant::now(), state: Mutex::new(state), flushes: FlushMeter::default() }
    }

    /// The real or virtual time since the device was created.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let state = self.state();
        match state.clock {
            Clock::Real => self.began.elapsed(),
            Clock::Virtual => state.now,
        }
    }

    /// Bytes written since the device was created.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state().written_bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches the clock, with all lanes idle and an empty cache. With [`Clock::Virtual`] a load is prepared
    /// in little time.
    pub fn set_clock(&self, clock: Clock) {
        let mut state = self.state();
        let lanes = state.lanes.len();
        *state = State {
            clock,
            lanes: vec![Duration::ZERO; lanes],
            now: Duration::ZERO,
            head: state.head,
            cached: VecDeque::new(),
            cached_bytes: 0,
            medium: Duration::ZERO,
            written_bytes: state.written_bytes,
        };
    }

    /// Runs requests of a call that began at `called`. `put` queues them in lanes, given the current time,
    /// and returns the time at which the last one is finished; `spend` waits until then.
    fn spend(&self, called: Instant, put: impl FnOnce(&mut State, Duration) -> Duration) {
        let mut state = self.state();
        let clock = state.clock;
        let now = match clock {
            Clock::Real => called.saturating_duration_since(self.began),
            Clock::Virtual => state.now,
        };
        let done = put(&mut state, now);
        state.now = state.now.max(done);
        drop(state);
        if clock == Clock::Real {
            wait_until(self.began + done);
        }
    }

    /// Runs these requests, all started together; the cost of each depends on the state and its start.
    fn spend_runs(
        &self,
        called: Instant,
        runs: &[Request],
        cost: impl Fn(&mut State, Duration, Request) -> Duration,
    ) {
        self.spend(called, |state, now| {
            let done =
                runs.iter().map(|run| state.occupy(now, false, |state, start| cost(state, start, *run)));
            done.max().unwrap_or(now)
        });
    }

    fn read(&self, called: Instant, runs: &[Request]) {
        let model = &self.model;
        self.spend_runs(called, runs, |state, _, (offset, len)| {
            let seek = seek(model, state, self.inner.size_bytes(), offset, len);
            let cost = model.read + seek + model.bytes(len);
            // With one head, destaging stops during a read.
            if model.lanes == 1 {
                state.medium += cost;
            }
            cost
        });
    }

    fn write(&self, called: Instant, runs: &[Request]) {
        let model = &self.model;
        self.spend_runs(called, runs, |state, start, (offset, len)| {
            state.written_bytes += len;
            if model.cache_bytes == 0 {
                let seek = seek(model, state, self.inner.size_bytes(), offset, len);
                return model.write + seek + model.bytes(len);
            }
            // Waits until the oldest writes are on the medium and there is enough space.
            let mut begin = start;
            state.destage(begin);
            while state.cached.len() >= model.cache_writes
                || !state.cached.is_empty() && state.cached_bytes.saturating_add(len) > model.cache_bytes
            {
                begin = state.cached.front().map_or(begin, |(done, _)| *done);
                state.destage(begin);
            }
            let end = begin + model.write;
            state.medium = state.medium.max(end) + model.destage + model.bytes(len);
            state.cached.push_back((state.medium, len));
            state.cached_bytes += len;
            end - start
        });
    }
}

/// A thread that sleeps wakes up this much too late at most, on an idle machine.
const WAKE_UP_LATE: Duration = Duration::from_micros(25);

/// Waits until `end`, as exactly as the machine allows. Linux ends a sleep up to 50 µs late in order to
/// join timers (`PR_SET_TIMERSLACK`), which is three times a write of the model [`NVME`](Model::NVME). So
/// this thread gives that up, and the last part of the wait yields the CPU instead of sleeping.
fn wait_until(end: Instant) {
    thread_local! {
        static EXACT: () = {
            // Where this is refused, waits are only less exact.
            #[cfg(target_os = "linux")]
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        };
    }
    let rest = end.saturating_duration_since(Instant::now());
    if rest > WAKE_UP_LATE {
        EXACT.with(|()| std::thread::sleep(rest - WAKE_UP_LATE));
    }
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

fn seek(model: &Model, state: &mut State, size: u64, offset: u64, len: u64) -> Duration {
    let distance = state.head.abs_diff(offset) as f64 / size.max(1) as f64;
    state.head = offset.saturating_add(len);
    model.seek_max.mul_f64(distance.min(1.0).sqrt())
}

impl<D: Device> Device for Modelled<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.read_at(offset, buf)?;
        self.read(called, &[(offset, buf.len() as u64)]);
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        let len = total_len(bufs);
        self.inner.read_vectored_at(offset, bufs)?;
        self.read(called, &[(offset, len)]);
        Ok(())
    }

    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        let runs = runs(parts.iter().map(|(offset, bufs)| (*offset, total_len(bufs))));
        self.inner.read_many_at(parts)?;
        self.read(called, &runs);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.write_at(offset, bytes)?;
        self.write(called, &[(offset, bytes.len() as u64)]);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.write_vectored_at(offset, bufs)?;
        self.write(called, &[(offset, total_len(bufs))]);
        Ok(())
    }

    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.write_many_at(parts)?;
        self.write(called, &runs(parts.iter().map(|(offset, bufs)| (*offset, total_len(bufs)))));
        Ok(())
    }

    fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
        let called = Instant::now();
        // Computed before the write: a device that keeps the blocks takes them out of `parts`.
        let runs = runs(parts.lens());
        let keeps = self.inner.write_shared_at(parts)?;
        self.write(called, &runs);
        Ok(keeps)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.write_durable_at(offset, bytes)?;
        let model = &self.model;
        self.spend_runs(called, &[(offset, bytes.len() as u64)], |state, _, (offset, len)| {
            state.written_bytes += len;
            let to_medium = match model.volatile_cache {
                true => seek(model, state, self.inner.size_bytes(), offset, len) + model.flush,
                false => Duration::ZERO,
            };
            model.write + to_medium + model.bytes(len)
        });
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.zero_at(offset, len)?;
        self.write(called, &[(offset, len)]);
        Ok(())
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.inner.discard_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        let called = Instant::now();
        self.inner.flush()?;
        let model = &self.model;
        // Measured from its start in the lanes, without the wait for other flushes.
        let mut took = Duration::ZERO;
        self.spend(called, |state, now| {
            state.occupy(now, model.drains, |state, start| {
                took = model.flush;
                if model.volatile_cache {
                    state.cached.clear();
                    state.cached_bytes = 0;
                    took += state.medium.saturating_sub(start);
                }
                took
            })
        });
        self.flushes.add(took);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    const PAGE: [u8; 4096] = [7; 4096];

    fn of(model: Model) -> Modelled<MemDevice> {
        Modelled::new(MemDevice::new(1 << 20), model, Clock::Virtual)
    }

    #[test]
    fn a_disk_writes_into_its_cache_and_pays_at_the_flush() {
        let disk = of(Model::HDD);
        for block in 0..10 {
            disk.write_at(block * 8192, &PAGE).unwrap();
        }
        let written = disk.elapsed();
        assert_eq!(written, Model::HDD.write * 10);
        disk.flush().unwrap();
        // The medium began with the first write.
        assert!(disk.elapsed() >= Model::HDD.flush + Model::HDD.destage * 10 + Model::HDD.write);
        let flushed = disk.elapsed();
        disk.flush().unwrap();
        assert_eq!(disk.elapsed() - flushed, Model::HDD.flush);
        assert_eq!(disk.flush_stats().unwrap().count, 2);
        let mut found = [0; 4096];
        disk.read_at(8192, &mut found).unwrap();
        assert_eq!(found, PAGE);
    }

    #[test]
    fn a_full_cache_takes_writes_as_fast_as_the_medium_does() {
        let disk = of(Model::HDD);
        let writes = Model::HDD.cache_writes as u32 * 3;
        for block in 0..writes {
            disk.write_at(u64::from(block % 200) * 4096, &PAGE).unwrap();
        }
        let medium = Model::HDD.destage + Model::HDD.bytes(4096);
        assert!(disk.elapsed() >= medium * (writes - Model::HDD.cache_writes as u32));
        disk.flush().unwrap();
        assert!(disk.elapsed() >= medium * writes + Model::HDD.flush);
    }

    #[test]
    fn far_reads_take_longer_than_near_ones() {
        let disk = of(Model::HDD);
        let mut buf = [0; 4096];
        let mut took = |offset| {
            let before = disk.elapsed();
            disk.read_at(offset, &mut buf).unwrap();
            disk.elapsed() - before
        };
        took(0);
        let next = took(4096);
        assert!(took((1 << 20) - 4096) > next * 2);
    }

    #[test]
    fn pieces_that_adjoin_are_one_request() {
        let took = |device: &Modelled<MemDevice>, request: &dyn Fn()| {
            let before = device.elapsed();
            request();
            device.elapsed() - before
        };
        let disk = of(Model::HDD);
        let four = [IoSlice::new(&PAGE); 4];
        assert_eq!(took(&disk, &|| disk.write_vectored_at(0, &four).unwrap()), Model::HDD.write);
        // Two of three parts are adjacent, in any order: two requests in one lane.
        let parts: [(u64, &[IoSlice<'_>]); 3] = [(65_536, &four), (1 << 19, &four), (65_536 - 16_384, &four)];
        assert_eq!(took(&disk, &|| disk.write_many_at(&parts).unwrap()), Model::HDD.write * 2);
        // The medium, too, has three requests instead of sixteen.
        let bytes = Model::HDD.bytes(16_384) + Model::HDD.bytes(32_768) + Model::HDD.bytes(16_384);
        let medium = Model::HDD.write + Model::HDD.destage * 3 + bytes + Model::HDD.flush;
        assert!(
            disk.flush().is_ok() && disk.elapsed() <= medium + Model::HDD.write * 3,
            "{:?}",
            disk.elapsed()
        );

        // The requests of one call use all lanes.
        let flash = of(Model::SATA_SSD);
        let mut pages = [PAGE; 4];
        let mut bufs: Vec<IoSliceMut<'_>> = pages.iter_mut().map(|page| IoSliceMut::new(page)).collect();
        flash.read_vectored_at(0, &mut bufs).unwrap();
        let run = Model::SATA_SSD.read + Model::SATA_SSD.bytes(16_384);
        assert_eq!(flash.elapsed(), run);
        let (near, far) = bufs.split_at_mut(2);
        flash.read_many_at(&mut [(0, near), (1 << 19, far)]).unwrap();
        assert_eq!(flash.elapsed(), run + Model::SATA_SSD.read + Model::SATA_SSD.bytes(8192));

        let write = Model::SATA_SSD.write;
        for runs in [&[(0, 4)][..], &[(0, 2), (8192, 2)]] {
            let mut parts = SharedParts::default();
            for (offset, n) in runs {
                parts.begin(*offset);
                (0..*n).for_each(|_| parts.push(PAGE.to_vec().into()));
            }
            let parts = std::sync::Mutex::new(parts);
            assert_eq!(
                took(&flash, &|| assert!(flash.write_shared_at(&mut parts.lock().unwrap()).is_ok())),
                write
            );
        }
    }

    #[test]
    fn a_battery_makes_flushes_cheap() {
        let (array, disk) = (of(Model::ARRAY), of(Model::HDD));
        for device in [&array, &disk] {
            device.write_at(0, &PAGE).unwrap();
            device.flush().unwrap();
        }
        assert!(array.flush_nanos().unwrap() * 20 < disk.flush_nanos().unwrap());
    }

    #[test]
    fn time_passes_when_it_is_real() {
        let device =
            Modelled::new(MemDevice::new(4096), Model::flush_of(Duration::from_millis(5)), Clock::Real);
        let began = Instant::now();
        device.flush().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(5));
    }

    /// With the timer slack of Linux it would be 70 µs late.
    #[test]
    fn a_short_request_does_not_take_much_longer_than_modelled() {
        let device = Modelled::new(MemDevice::new(4096), Model::NVME, Clock::Real);
        let mut late: Vec<Duration> = (0..200)
            .map(|_| {
                let began = Instant::now();
                device.write_at(0, &PAGE).unwrap();
                let took = began.elapsed();
                assert!(took >= Model::NVME.write, "{took:?}");
                took - Model::NVME.write
            })
            .collect();
        late.sort_unstable();
        // Of a busy machine only the best requests count.
        assert!(late[20] < Duration::from_micros(30), "{:?} late", late[20]);
    }
}
