//! Shared flushes of a device's cache: concurrent requests wait for one flush instead of making one each.
//!
//! ```text
//!          a thread requests        leader: after its wait        the flush ends
//! [idle] ------------------> [collecting] ----------------> [in flight] --------------> the round returns
//!                             requests join:                 new requests form the
//!                             one flush for all              next round; its leader
//!                                                            waits for this flush
//! ```
//!
//! A *round* is the requests that share one flush. The first request of a round is its *leader*, which makes
//! the flush. The leader first waits until no other round's flush is in flight. There are five modes
//! ([`Mode`]):
//! - `merge`: a request joins the round that collects requests, or starts one. The leader does not wait for
//!   others to join.
//! - `epoch`, the default: as `merge`, but a request returns at once if an earlier flush has covered its
//!   writes ([`How::Covered`]).
//! - `seed`: as `merge`, but the leader may wait a little for others to join. If the device flushes fast,
//!   each request makes its own flush.
//! - `none`: each request makes its own flush.
//! - `empty-txn`: where an fsync would make a request, `volume` commits a transaction. Concurrent fsyncs
//!   share the flush of this commit. If there is no journal, or if the journal is on another device, this
//!   mode is the same as `none`.
//!
//! A [`Coordinator`] wraps a device. All writes pass through the coordinator, so it knows what was written.
//! Flushes that are not shared (those of a journal's commits) pass through it, too, so it knows which writes
//! these flushes covered.
//!
//! Owns: rounds, delays, counters, and which writes a flush covers. Does **not** own: the measurement of
//! flush times (see `device`), commits, and the reason for a flush.
//!
//! Invariants
//! 1. INV-EN21: a flush covers the writes that completed before the flush was **issued**. So a request may
//!    join a round until the round's flush is issued, but not while the flush is in flight: a later write may
//!    still be in the device's cache when the flush ends.
//! 2. At most one round is in flight, and at most one more collects requests. A request that joins a round
//!    returns the result of this round's flush.
//! 3. A leader always sets the result of its round, even if its flush panics, because joined requests wait
//!    for the result. A leader that waits holds no lock.
//! 4. A failed flush covers no write. All later flushes fail, too, because the lost writes cannot be
//!    recovered.
//!
//! Source: the linux-ext4 series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010.
//!
//! ```
//! use extant_device::{Device, MemDevice};
//! use extant_flush::{Coordinator, How, Settings, Stream};
//!
//! let coordinator = Coordinator::new(MemDevice::new(1 << 20), Settings::default());
//! coordinator.write_at(0, b"record").unwrap();
//! // A stream is a thread that requests flushes; this one has the number 1.
//! assert_eq!(coordinator.flush_for(Stream(1)).unwrap(), How::Own);
//! // Nothing was written since.
//! assert_eq!(coordinator.flush_for(Stream(1)).unwrap(), How::Covered);
//! ```

#![forbid(unsafe_code)]

mod settings;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use extant_device::{Device, DeviceFault, FlushStats, SharedParts};

pub use settings::{Delay, Mode, Settings};

/// The origin of a request: a thread, or its equivalent where threads serve many clients. A single stream
/// does not wait for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub u64);

/// A point in the sequence of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

/// How a request became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By its own flush.
    Own,
    /// By the flush of a round that it joined.
    Joined,
    /// By an earlier flush.
    Covered,
}

/// The device failed to flush. All requests of the round get the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct Failed(Arc<DeviceFault>);

impl Failed {
    /// The device's error.
    #[must_use]
    pub fn fault(&self) -> &DeviceFault {
        &self.0
    }

    /// A copy of the error.
    fn again(&self) -> DeviceFault {
        let fault = &*self.0;
        match fault {
            DeviceFault::Io { what, offset, len, source } => {
                let source = match source.raw_os_error() {
                    Some(errno) => std::io::Error::from_raw_os_error(errno),
                    None => std::io::Error::new(source.kind(), source.to_string()),
                };
                DeviceFault::Io { what, offset: *offset, len: *len, source }
            }
            DeviceFault::OutOfRange { what, offset, len, size } => {
                DeviceFault::OutOfRange { what, offset: *offset, len: *len, size: *size }
            }
            DeviceFault::ReadOnly { what, offset, len } => {
                DeviceFault::ReadOnly { what, offset: *offset, len: *len }
            }
        }
    }
}

/// Counters since the coordinator was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushCounts {
    /// Flush requests.
    pub requests: u64,
    /// Flushes made for requests.
    pub flushes: u64,
    /// Requests that joined a round.
    pub joined: u64,
    /// Requests that were already covered.
    pub covered: u64,
    /// Requests that bypassed the rounds because the device is fast.
    pub bypassed: u64,
    /// Time that leaders slept, in nanoseconds.
    pub delay_nanos: u64,
    /// Flushes without a request: by commits.
    pub others: u64,
}

/// Coordinates the flushes of one device. Shared between threads.
#[derive(Debug)]
pub struct Coordinator<D> {
    device: D,
    settings: Settings,
    /// Number of completed writes.
    written: AtomicU64,
    /// The value of `written` that the last flush covered.
    flushed: AtomicU64,
    /// The first failed flush: its lost writes cannot be recovered by a later one.
    failed: OnceLock<Failed>,
    rounds: Mutex<Rounds>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Rounds {
    /// The flush of a round is in flight.
    in_flight: bool,
    /// The round that collects requests.
    next: Option<Arc<Round>>,
    /// Leader of the last round, and whether other requests joined it or arrived meanwhile.
    last: Option<(Stream, bool)>,
    /// When the last round ended.
    ended: Option<Instant>,
}

#[derive(Debug, Default)]
struct Round {
    result: OnceLock<Result<(), Failed>>,
    /// Changed only with the lock of [`Rounds`] held.
    joined: AtomicU64,
    /// Notified when the result is set.
    over: Condvar,
    /// Notifies the leader that the previous round ended.
    turn: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    flushes: AtomicU64,
    joined: AtomicU64,
    covered: AtomicU64,
    bypassed: AtomicU64,
    delay_nanos: AtomicU64,
    others: AtomicU64,
}

fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl<D: Device> Coordinator<D> {
    /// Coordinates the flushes of `device`.
    pub fn new(device: D, settings: Settings) -> Self {
        Self {
            device,
            settings,
            // Earlier writes are unknown, so the first flush is never skipped.
            written: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            failed: OnceLock::new(),
            rounds: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether all completed writes are covered by a flush.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.flushed.load(Ordering::Acquire) >= self.written.load(Ordering::Acquire)
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> FlushCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FlushCounts {
            requests: get(&self.counts.requests),
            flushes: get(&self.counts.flushes),
            joined: get(&self.counts.joined),
            covered: get(&self.counts.covered),
            bypassed: get(&self.counts.bypassed),
            delay_nanos: get(&self.counts.delay_nanos),
            others: get(&self.counts.others),
        }
    }

    /// Makes durable all writes that completed before the call, for `stream`.
    ///
    /// # Errors
    /// The device failed; the state of its cache is unknown.
    pub fn flush_for(&self, stream: Stream) -> Result<How, Failed> {
        self.flush_since(self.mark(), stream)
    }

    /// The present point in the sequence of writes, for a later [`flush_since`](Self::flush_since).
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.written.load(Ordering::Acquire))
    }

    /// Makes durable all writes that completed before `mark` was taken, for `stream`. In mode `epoch` this
    /// costs nothing if any flush was issued since, including a commit's.
    ///
    /// # Errors
    /// As [`flush_for`](Self::flush_for).
    pub fn flush_since(&self, mark: Mark, stream: Stream) -> Result<How, Failed> {
        add(&self.counts.requests, 1);
        let epoch = self.settings.mode == Mode::Epoch;
        if epoch && self.flushed.load(Ordering::Acquire) >= mark.0 {
            add(&self.counts.covered, 1);
            return Ok(How::Covered);
        }
        if matches!(self.settings.mode, Mode::None | Mode::EmptyTxn) {
            return self.make().map(|()| How::Own);
        }
        if self.settings.mode == Mode::Seed && self.is_fast() {
            add(&self.counts.bypassed, 1);
            return self.make().map(|()| How::Own);
        }
        let mut rounds = self.rounds();
        if let Some(round) = rounds.next.clone() {
            add(&self.counts.joined, 1);
            round.joined.fetch_add(1, Ordering::Relaxed);
            while round.result.get().is_none() {
                rounds = round.over.wait(rounds).unwrap_or_else(PoisonError::into_inner);
            }
            drop(rounds);
            return result(&round).map(|()| How::Joined);
        }
        self.lead(rounds, stream)
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device flushes faster than a wait for other requests would take.
    fn is_fast(&self) -> bool {
        let average = self.device.flush_nanos().map(Duration::from_nanos);
        average.is_some_and(|average| average < self.settings.bypass_below)
    }

    fn lead<'a>(&'a self, mut rounds: MutexGuard<'a, Rounds>, stream: Stream) -> Result<How, Failed> {
        let round = Arc::new(Round::default());
        rounds.next = Some(Arc::clone(&round));
        let is_alone =
            !rounds.in_flight && rounds.last.is_none_or(|(last, is_shared)| last == stream && !is_shared);
        let has_waited = rounds.in_flight;
        while rounds.in_flight {
            rounds = round.turn.wait(rounds).unwrap_or_else(PoisonError::into_inner);
        }
        if has_waited {
            // The threads of the previous round are awake now, and may be about to write and request a flush.
            // Without this yield two groups would alternate, each with half of the threads.
            drop(rounds);
            std::thread::yield_now();
            rounds = self.rounds();
        }
        let delay = if is_alone { Duration::ZERO } else { self.delay(rounds.ended) };
        if !delay.is_zero() {
            drop(rounds);
            std::thread::sleep(delay);
            add(&self.counts.delay_nanos, delay.as_nanos() as u64);
            rounds = self.rounds();
        }
        // No request joins from here on: a later one may have written after the flush was issued.
        if !self.settings.join_in_flight {
            rounds.next = None;
        }
        rounds.in_flight = true;
        drop(rounds);
        // Other requests wait for the result: it must be set even after a panic, or they wait forever.
        let flushed = catch_unwind(AssertUnwindSafe(|| self.make()));
        let made = flushed.as_ref().map_or_else(|_| self.record_outcome(Err(panicked())), Clone::clone);
        let mut rounds = self.rounds();
        if self.settings.join_in_flight {
            rounds.next = None;
        }
        rounds.in_flight = false;
        rounds.ended = Some(Instant::now());
        let others = round.joined.load(Ordering::Relaxed) > 0 || rounds.next.is_some();
        rounds.last = Some((stream, others));
        let _ = round.result.set(made);
        round.over.notify_all();
        if let Some(next) = &rounds.next {
            next.turn.notify_one();
        }
        drop(rounds);
        if let Err(panic) = flushed {
            resume_unwind(panic);
        }
        result(&round).map(|()| How::Own)
    }

    /// How long a leader waits for others to join.
    fn delay(&self, ended: Option<Instant>) -> Duration {
        if self.settings.mode != Mode::Seed {
            return Duration::ZERO;
        }
        let average = self.device.flush_nanos().map_or(Duration::ZERO, Duration::from_nanos);
        let target = average.clamp(self.settings.delay_min, self.settings.delay_max);
        match self.settings.delay {
            Delay::None => Duration::ZERO,
            Delay::Full => target,
            Delay::Aged => ended.map_or(Duration::ZERO, |ended| target.saturating_sub(ended.elapsed())),
        }
    }

    fn make(&self) -> Result<(), Failed> {
        add(&self.counts.flushes, 1);
        self.flush_covering()
    }

    /// Flushes, and records what the flush covers.
    fn flush_covering(&self) -> Result<(), Failed> {
        let issued = self.written.load(Ordering::Acquire);
        self.check()?;
        self.record_outcome(self.device.flush())?;
        self.flushed.fetch_max(issued, Ordering::AcqRel);
        Ok(())
    }

    /// Fails if any earlier flush failed.
    fn check(&self) -> Result<(), Failed> {
        self.failed.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }

    /// The outcome of a flush or durable write, including earlier and concurrent failures. The operating
    /// system reports a failed write only once and drops it; the next flush then succeeds.
    fn record_outcome(&self, outcome: Result<(), DeviceFault>) -> Result<(), Failed> {
        match outcome {
            Ok(()) => self.check(),
            Err(fault) => Err(self.failed.get_or_init(|| Failed(Arc::new(fault))).clone()),
        }
    }

    /// Counts a completed write. A failed one may have written something, so it counts, too.
    fn count(&self, written: Result<(), DeviceFault>) -> Result<(), DeviceFault> {
        self.written.fetch_add(1, Ordering::AcqRel);
        written
    }
}

/// The result of a flush that panicked.
fn panicked() -> DeviceFault {
    let source = std::io::Error::other("the device panicked, which is a defect of it");
    DeviceFault::Io { what: "flush", offset: 0, len: 0, source }
}

fn result(round: &Round) -> Result<(), Failed> {
    // The result is set before the waiters are notified.
    round.result.get().cloned().unwrap_or(Ok(()))
}

impl<D: Device> Device for Coordinator<D> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.device.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        self.device.read_vectored_at(offset, bufs)
    }

    fn file_at(&self, offset: u64, len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.device.file_at(offset, len)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.device.prefetch(offset, len);
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        self.device.forget_cached(offset, len);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.count(self.device.write_at(offset, bytes))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        self.count(self.device.write_vectored_at(offset, bufs))
    }

    fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
        let written = self.device.write_shared_at(parts);
        self.written.fetch_add(1, Ordering::AcqRel);
        written
    }

    fn read_many_at(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        self.device.read_many_at(parts)
    }

    fn write_many_at(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        self.count(self.device.write_many_at(parts))
    }

    /// A successful durable write needs no flush.
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        // The write is made in any case: it may be the record of the failure.
        match self.record_outcome(self.device.write_durable_at(offset, bytes)) {
            Ok(()) => Ok(()),
            Err(failed) => self.count(Err(failed.again())),
        }
    }

    fn copy_at(&self, from: u64, to: u64, len: u64) -> Result<(), DeviceFault> {
        self.count(self.device.copy_at(from, to, len))
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.count(self.device.zero_at(offset, len))
    }

    /// Needs no flush: discarded blocks may still have their contents after a power cut.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.device.discard_at(offset, len)
    }

    /// A flush that is not shared.
    fn flush(&self) -> Result<(), DeviceFault> {
        add(&self.counts.others, 1);
        self.flush_covering().map_err(|failed| failed.again())
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.device.flush_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.device.flush_stats()
    }

    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }

    fn is_fresh(&self) -> bool {
        self.device.is_fresh()
    }
}
