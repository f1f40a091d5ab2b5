//! A device that records which writes a flush made durable. Each successful request is checked against that
//! record.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use extant_device::{Clock, Device, DeviceFault, MemDevice, Model, Modelled};

use super::*;

/// A write is in the cache until a flush that began after it completed has ended. Each write is a record: its
/// offset.
#[derive(Default)]
struct Cached {
    cache: Mutex<HashSet<u64>>,
    durable: Mutex<HashSet<u64>>,
    flush: Duration,
    fails: AtomicBool,
    panics: AtomicBool,
    flushes: AtomicU64,
}

impl Device for Cached {
    fn size_bytes(&self) -> u64 {
        u64::MAX
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceFault> {
        unreachable!("no thread reads")
    }

    fn write_at(&self, offset: u64, _: &[u8]) -> Result<(), DeviceFault> {
        self.cache.lock().unwrap().insert(offset);
        Ok(())
    }

    fn zero_at(&self, _: u64, _: u64) -> Result<(), DeviceFault> {
        unreachable!("no thread zeroes")
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let covered = self.cache.lock().unwrap().clone();
        std::thread::sleep(self.flush);
        assert!(!self.panics.load(Ordering::Relaxed), "a defect of a device");
        if self.fails.load(Ordering::Relaxed) {
            let source = io::Error::other("no");
            return Err(DeviceFault::Io { what: "flush", offset: 0, len: 0, source });
        }
        self.durable.lock().unwrap().extend(&covered);
        self.cache.lock().unwrap().retain(|record| !covered.contains(record));
        Ok(())
    }

    fn flush_nanos(&self) -> Option<u64> {
        Some(self.flush.as_nanos() as u64)
    }
}

fn of(mode: Mode, delay: Delay, flush: Duration) -> Coordinator<Cached> {
    let settings = Settings { mode, delay, ..Settings::default() };
    Coordinator::new(Cached { flush, ..Cached::default() }, settings)
}

/// `threads` threads write and flush `rounds` records each; all records reported durable must be durable.
fn run(coordinator: &Coordinator<Cached>, threads: u64, rounds: u64) {
    let begin = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for round in 0..rounds {
                    let record = thread << 32 | round;
                    coordinator.write_at(record, b"").unwrap();
                    coordinator.flush_for(Stream(thread)).unwrap();
                    assert!(coordinator.device().durable.lock().unwrap().contains(&record));
                }
            });
        }
    });
    let counts = coordinator.counts();
    assert_eq!(counts.requests, threads * rounds);
    assert_eq!(counts.flushes, coordinator.device().flushes.load(Ordering::Relaxed));
    assert_eq!(counts.requests, counts.flushes + counts.joined + counts.covered);
}

#[test]
fn what_is_reported_durable_is() {
    for mode in Mode::ALL {
        for delay in Delay::ALL {
            for flush in [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(3)] {
                run(&of(mode, delay, flush), 8, 30);
            }
        }
    }
}

#[test]
fn sixteen_threads_share_flushes_of_a_slow_disk() {
    for (mode, per_request) in
        [(Mode::None, 1.0), (Mode::Seed, 1.0 / 16.0), (Mode::Merge, 0.125), (Mode::Epoch, 0.125)]
    {
        let settings = Settings { mode, ..Settings::default() };
        let model = Model::flush_of(Duration::from_millis(5));
        let coordinator =
            Coordinator::new(Modelled::new(MemDevice::new(1 << 20), model, Clock::Real), settings);
        coordinator.device().flush().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let coordinator = &coordinator;
                scope.spawn(move || {
                    for _ in 0..if mode == Mode::None { 4 } else { 40 } {
                        coordinator.write_at(thread * 4096, &[1; 512]).unwrap();
                        coordinator.flush_for(Stream(thread)).unwrap();
                    }
                });
            }
        });
        let counts = coordinator.counts();
        let found = counts.flushes as f64 / counts.requests as f64;
        // At the beginning and at the end threads do not run concurrently.
        assert!(found <= per_request * 1.3, "{}: {found} flushes a request: {counts:?}", mode.name());
    }
}

/// The requests that joined its round wait for its result, and the next leader for its end.
#[test]
fn a_flush_that_panics_ends_its_round_and_is_reported_to_all() {
    let coordinator = of(Mode::Merge, Delay::None, Duration::from_millis(20));
    coordinator.device().panics.store(true, Ordering::Relaxed);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (coordinator, refused) = (&coordinator, &refused);
            scope.spawn(move || {
                coordinator.write_at(thread, b"").unwrap();
                let flush = || coordinator.flush_for(Stream(thread)).is_err();
                let is_refused =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(flush)).unwrap_or(true);
                refused.fetch_add(is_refused.into(), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(refused.into_inner(), 4);
    coordinator.device().panics.store(false, Ordering::Relaxed);
    assert!(coordinator.flush_for(Stream(0)).is_err(), "a flush after a lost one proves nothing");
}

#[test]
fn one_thread_alone_does_not_wait_for_others() {
    let coordinator = of(Mode::Seed, Delay::Full, Duration::from_millis(3));
    run(&coordinator, 1, 10);
    assert_eq!(coordinator.counts().delay_nanos, 0);
}

#[test]
fn on_a_fast_device_each_thread_flushes() {
    let coordinator = of(Mode::Seed, Delay::Full, Duration::from_micros(50));
    run(&coordinator, 4, 20);
    let counts = coordinator.counts();
    assert_eq!((counts.bypassed, counts.flushes, counts.delay_nanos), (80, 80, 0));
}

#[test]
fn nothing_is_flushed_twice_by_epoch() {
    let coordinator = of(Mode::Epoch, Delay::None, Duration::ZERO);
    coordinator.write_at(1, b"").unwrap();
    coordinator.flush().unwrap();
    // A commit has flushed: repeated requests have nothing to do.
    for _ in 0..3 {
        assert_eq!(coordinator.flush_for(Stream(0)).unwrap(), How::Covered);
    }
    coordinator.write_at(2, b"").unwrap();
    assert_eq!(coordinator.flush_for(Stream(0)).unwrap(), How::Own);
}

#[test]
fn a_failed_flush_covers_nothing_and_is_reported_to_all() {
    let coordinator = of(Mode::Epoch, Delay::None, Duration::from_millis(20));
    coordinator.device().fails.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let coordinator = &coordinator;
            scope.spawn(move || {
                coordinator.write_at(thread, b"").unwrap();
                assert!(coordinator.flush_for(Stream(thread)).is_err());
            });
        }
    });
    assert!(!coordinator.is_covered());
    // Writes that the device lost do not come back when it succeeds again.
    coordinator.device().fails.store(false, Ordering::Relaxed);
    assert!(coordinator.flush_for(Stream(0)).is_err() && coordinator.flush().is_err());
    assert!(coordinator.write_durable_at(0, b"").is_err());
    assert!(!coordinator.is_covered());
}
