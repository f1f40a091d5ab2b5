//! Flushes of a device's cache that threads share: concurrent requests wait for one flush instead of issuing
//! their own.
//!
//! ```text
//!             a thread asks                  the leader comes first         the flush is over
//!   [idle] ------------------> [collecting] ---------------------> [in flight] --------------> result to all of the round
//!                               others join:      (after a delay)      others begin the next round, whose leader
//!                               one flush for all                      waits until this one is over
//! ```
//!
//! A [`Coordinator`] wraps the device: all writes go through it, so it knows what was written. Flushes that
//! do not ask for sharing, a journal's commits, go through it too, so it knows what they covered.
//!
//! Owns: rounds, delays, counts, and which writes a flush covers. Does **not** own: the device's time of a
//! flush (it measures that itself, see `device`), commits, what is to be flushed for.
//!
//! Invariants
//! 1. INV-EN21: a flush covers the writes that had completed before it was **issued**. So a round can be
//!    joined until it is issued, never while it is in flight: what was written since then may still be in the
//!    cache when it ends.
//! 2. At most one round is in flight, and one collects. Every member is released by exactly one round, with
//!    its result.
//! 3. A leader flushes, whatever happens to the members; it sleeps without a lock.
//! 4. A failed flush covers nothing, and no later flush succeeds: the lost writes cannot be recovered.
//!
//! Source: the linux-ext4 series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010.
//!
//! ```
//! use extant_device::{Device, MemDevice};
//! use extant_flush::{Coordinator, How, Settings, Stream};
//!
//! let coordinator = Coordinator::new(MemDevice::new(1 << 20), Settings::default());
//! coordinator.write_at(0, b"record").unwrap();
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

/// Whose writes a flush is for: a thread, or what takes its place where threads serve many. One stream alone
/// is not made to wait for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub u64);

/// What had been written at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

/// How a request became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By a flush that was made for it.
    Own,
    /// By the flush of a round that it joined.
    Joined,
    /// By a flush that had been made already.
    Covered,
}

/// The device failed to flush; every member of the round gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct Failed(Arc<DeviceFault>);

impl Failed {
    /// What the device said.
    #[must_use]
    pub fn fault(&self) -> &DeviceFault {
        &self.0
    }

    /// The same, for another thread.
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

/// Counts since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushCounts {
    /// Requests.
    pub requests: u64,
    /// Flushes that were made for them.
    pub flushes: u64,
    /// Requests that joined a round.
    pub joined: u64,
    /// Requests for which nothing had to be flushed.
    pub covered: u64,
    /// Requests that went past the rounds: the device is fast.
    pub bypassed: u64,
    /// What leaders slept, in nanoseconds.
    pub delay_nanos: u64,
    /// Flushes that were made without a request: by commits.
    pub others: u64,
}

/// Coordinates the flushes of one device. Shared by threads.
#[derive(Debug)]
pub struct Coordinator<D> {
    device: D,
    settings: Settings,
    /// Writes that have completed.
    written: AtomicU64,
    /// What of them the last flush covered.
    flushed: AtomicU64,
    /// The first flush that failed: what was lost then, no later one brings back.
    failed: OnceLock<Failed>,
    rounds: Mutex<Rounds>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Rounds {
    /// A round's flush runs.
    in_flight: bool,
    /// The round that collects.
    next: Option<Arc<Round>>,
    /// The stream that led the last round, and whether others joined it or arrived meanwhile.
    last: Option<(Stream, bool)>,
    /// When the last one ended.
    ended: Option<Instant>,
}

#[derive(Debug, Default)]
struct Round {
    result: OnceLock<Result<(), Failed>>,
    /// Changed with the lock of [`Rounds`] held.
    joined: AtomicU64,
    /// The result is there.
    over: Condvar,
    /// The round before is over: for the leader.
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
            // Knows what was written before.
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

    /// Has everything that was written been covered?
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.flushed.load(Ordering::Acquire) >= self.written.load(Ordering::Acquire)
    }

    /// What was counted.
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

    /// Makes durable what had been written when it is called; for `stream`.
    ///
    /// # Errors
    /// The device refused; the state of its cache is not known then.
    pub fn flush_for(&self, stream: Stream) -> Result<How, Failed> {
        self.flush_since(self.mark(), stream)
    }

    /// What has been written up to now, for a later check whether it was covered.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.written.load(Ordering::Acquire))
    }

    /// Makes durable what had been written when `mark` was taken, for `stream`. In the mode `epoch` this
    /// costs nothing if another thread or a commit has issued a flush since.
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

    /// Is the device so fast that waiting for others takes longer than a flush?
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
            // Those of the round before are awake, and may be about to write and to come again: without them
            // there would be two parties that take turns, each with half of the threads.
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
        // From here on the round is closed: a new request may have written after the flush was issued.
        if !self.settings.join_in_flight {
            rounds.next = None;
        }
        rounds.in_flight = true;
        drop(rounds);
        // The members of the round wait for its result: a panic must leave one, or they wait forever.
        let flushed = catch_unwind(AssertUnwindSafe(|| self.make()));
        let made = flushed.as_ref().map_or_else(|_| self.settle(Err(panicked())), Clone::clone);
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

    /// A flush, and what it covers.
    fn flush_covering(&self) -> Result<(), Failed> {
        let issued = self.written.load(Ordering::Acquire);
        self.check()?;
        self.settle(self.device.flush())?;
        self.flushed.fetch_max(issued, Ordering::AcqRel);
        Ok(())
    }

    /// Has nothing failed that was to be made durable?
    fn check(&self) -> Result<(), Failed> {
        self.failed.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }

    /// The result of a request for durability, including earlier failures and concurrent ones of other
    /// threads. The system reports an error once, drops what it could not write, and lets the next flush
    /// succeed.
    fn settle(&self, made: Result<(), DeviceFault>) -> Result<(), Failed> {
        match made {
            Ok(()) => self.check(),
            Err(fault) => Err(self.failed.get_or_init(|| Failed(Arc::new(fault))).clone()),
        }
    }

    /// A write, which waits for a flush when it has completed; one that failed may have written something.
    fn count(&self, written: Result<(), DeviceFault>) -> Result<(), DeviceFault> {
        self.written.fetch_add(1, Ordering::AcqRel);
        written
    }
}

/// The result of a flush that did not return.
fn panicked() -> DeviceFault {
    let source = std::io::Error::other("the device panicked, which is a defect of it");
    DeviceFault::Io { what: "flush", offset: 0, len: 0, source }
}

fn result(round: &Round) -> Result<(), Failed> {
    // Set before the members are notified that the round is over.
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

    /// Nothing waits for a flush by it, if it succeeds.
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        // Made in any case: it may be the note that something failed.
        match self.settle(self.device.write_durable_at(offset, bytes)) {
            Ok(()) => Ok(()),
            Err(failed) => self.count(Err(failed.again())),
        }
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.count(self.device.zero_at(offset, len))
    }

    /// Nothing waits for a flush by it: what is discarded need not be gone after a power cut.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.device.discard_at(offset, len)
    }

    /// A flush outside of any round.
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
