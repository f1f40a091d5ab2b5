//! How many requests of each operation were answered, and how long that took.
//!
//! ```text
//!  thread 1 --> shard 1: lookup [count, errors, histogram], mknod [...], ...  --+
//!  thread 2 --> shard 2: ...                                                    +--> merged for a reader
//! ```
//!
//! Owns: counts, errors and latencies from the first request on. Does **not** own: rates, which are
//! differences of two readings.
//!
//! All requests are counted, and not all are timed: two readings of the clock and an entry in a histogram,
//! all of it cold in the CPU's caches, take some hundredths of the time of a create. While an operation is
//! fast, one in [`SAMPLE`] of its requests is timed, and stands for those that were not: where most requests
//! are slow, each is.
//!
//! Invariants
//! 1. A thread records into its own shard, so no cache line is shared between threads unless there are more
//!    of them than shards. A reader holds the lock of one shard at a time, for a copy of it.
//! 2. A histogram is allocated when its operation is first recorded in its shard.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use extant_base::sync::thread_number;
use hdrhistogram::Histogram;

use crate::operation::{TABLE, index_of};

/// More than the usual number of threads.
const SHARDS: usize = 16;
/// Shorter latencies count as one value, longer ones as this long: nanoseconds. Values in between are
/// exact to two significant digits.
const LATENCY_MIN: u64 = 128;
const LATENCY_MAX: u64 = (1 << 37) - 1;
const DIGITS: u8 = 2;

/// Of a fast operation, one in this many requests is timed, after the first ones of each thread.
const SAMPLE: u64 = 16;
const FIRST: u64 = 64;
/// An operation is fast if its last timed request took less: nanoseconds. Timing costs a small part of this.
const FAST: u64 = 50_000;

/// Number of counts in [`OperationStatistics::buckets`].
pub const BUCKETS: usize = 104;

/// The latency, in nanoseconds, below which the latencies of a bucket are: four bounds for each power of two,
/// from 1.024 µs to 60 s. The last bucket has all longer latencies too.
#[must_use]
pub fn bucket_bound(bucket: usize) -> u64 {
    let bucket = bucket.min(BUCKETS - 1);
    (4 + bucket as u64 % 4) << (8 + bucket / 4)
}

fn bucket_of(nanos: u64) -> usize {
    let octave = (u64::BITS - 1 - nanos.max(1).leading_zeros()) as usize;
    if octave < 10 {
        return 0;
    }
    // The two bits after the first one; bucket 0 ends where octave 10 begins.
    let quarter = (nanos >> (octave - 2) & 3) as usize;
    ((octave - 10) * 4 + quarter + 1).min(BUCKETS - 1)
}

/// The statistics of one operation.
#[derive(Debug, Clone)]
pub struct OperationStatistics {
    /// Its name in the protocol's table, or "other" for operations that the table lacks.
    pub name: &'static str,
    /// Requests that were answered with an error, such as ENOENT.
    pub errors: u64,
    /// Requests that were answered, or are being answered.
    pub count: u64,
    /// Time of all requests together, from reading the request to the end of sending the reply.
    pub total: Duration,
    latencies: Histogram<u64>,
}

impl OperationStatistics {
    /// The latency that this share of the requests (0.5 for the median) did not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.latencies.value_at_quantile(share))
    }

    /// The longest latency that was measured.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.latencies.max())
    }

    /// Requests by latency; see [`bucket_bound`].
    #[must_use]
    pub fn buckets(&self) -> [u64; BUCKETS] {
        let mut buckets = [0; BUCKETS];
        for value in self.latencies.iter_recorded() {
            let nanos = self.latencies.lowest_equivalent(value.value_iterated_to());
            buckets[bucket_of(nanos)] += value.count_at_value();
        }
        buckets
    }
}

/// The operation of a request, and when it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    index: u16,
    /// `None` if it is not timed.
    at: Option<Instant>,
    /// How many requests it stands for.
    weight: u32,
}

/// Counters of an operation in a shard.
#[derive(Default)]
struct Counter {
    count: AtomicU64,
    errors: AtomicU64,
    /// Requests up to the last one that was timed.
    stood_for: AtomicU64,
    is_slow: AtomicBool,
}

/// Timed requests of an operation.
struct Record {
    latencies: Histogram<u64>,
    total_nanos: u64,
}

impl Record {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(LATENCY_MIN, LATENCY_MAX, DIGITS);
        Self { latencies: latencies.expect("the bounds are in order"), total_nanos: 0 }
    }

    fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies).expect("all histograms have the same bounds");
        self.total_nanos += other.total_nanos;
    }
}

/// The operations of [`TABLE`], and one for those that it lacks.
const OPERATIONS: usize = TABLE.len() + 1;

type Records = [Option<Box<Record>>; OPERATIONS];

fn no_records() -> Records {
    [const { None }; OPERATIONS]
}

/// Cache-padded: two lines, for CPUs that fetch lines in pairs.
#[repr(align(128))]
struct Shard {
    counters: [Counter; OPERATIONS],
    records: Mutex<Records>,
}

/// The statistics of a connection.
pub(crate) struct Statistics {
    begun: Instant,
    shards: Box<[Shard]>,
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Statistics since {:?}", self.begun)
    }
}

impl Statistics {
    pub(crate) fn new() -> Self {
        let shard = |_| Shard {
            counters: std::array::from_fn(|_| Counter::default()),
            records: Mutex::new(no_records()),
        };
        Self { begun: Instant::now(), shards: (0..SHARDS).map(shard).collect() }
    }

    /// Time since the connection was made.
    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    fn shard(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }

    /// A request was read just now.
    pub(crate) fn begin(&self, opcode: u32) -> Begun {
        let index = index_of(opcode).unwrap_or(OPERATIONS - 1);
        let counter = &self.shard().counters[index];
        let before = counter.count.fetch_add(1, Ordering::Relaxed);
        let is_timed =
            before < FIRST || before.is_multiple_of(SAMPLE) || counter.is_slow.load(Ordering::Relaxed);
        if !is_timed {
            return Begun { index: index as u16, at: None, weight: 0 };
        }
        let stood_for = counter.stood_for.swap(before + 1, Ordering::Relaxed);
        let weight = (before + 1).saturating_sub(stood_for) as u32;
        Begun { index: index as u16, at: Some(Instant::now()), weight }
    }

    /// The request was answered just now.
    pub(crate) fn end(&self, begun: Begun, is_error: bool) {
        let Begun { index, at, weight } = begun;
        if is_error {
            self.shard().counters[usize::from(index)].errors.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(at) = at {
            self.record(index.into(), at.elapsed(), weight.into());
        }
    }

    fn record(&self, index: usize, latency: Duration, weight: u64) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let Shard { counters, records } = self.shard();
        counters[index].is_slow.store(nanos >= FAST, Ordering::Relaxed);
        let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records[index].get_or_insert_with(|| Box::new(Record::new()));
        record.latencies.saturating_record_n(nanos, weight);
        record.total_nanos = record.total_nanos.saturating_add(nanos.saturating_mul(weight));
    }

    /// The operations that were requested.
    pub(crate) fn read(&self) -> Vec<OperationStatistics> {
        let mut sums = no_records();
        for Shard { records, .. } in &self.shards {
            let records = records.lock().unwrap_or_else(PoisonError::into_inner);
            for (sum, record) in sums.iter_mut().zip(&*records) {
                if let Some(record) = record {
                    sum.get_or_insert_with(|| Box::new(Record::new())).add(record);
                }
            }
        }
        let names = TABLE.iter().map(|row| row.name).chain(["other"]);
        let of_operation = |(index, (name, sum)): (usize, (&'static str, Option<Box<Record>>))| {
            let Record { latencies, total_nanos } = *sum?;
            let sum = |get: fn(&Counter) -> &AtomicU64| {
                self.shards.iter().map(|shard| get(&shard.counters[index]).load(Ordering::Relaxed)).sum()
            };
            let (count, errors) = (sum(|counter| &counter.count), sum(|counter| &counter.errors));
            let total = Duration::from_nanos(total_nanos);
            Some(OperationStatistics { name, errors, count, total, latencies })
        };
        names.zip(sums).enumerate().filter_map(of_operation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: u32 = 1;
    const WRITE: u32 = 16;

    /// A request that took this long.
    fn took(statistics: &Statistics, opcode: u32, micros: u64, is_error: bool) {
        let mut begun = statistics.begin(opcode);
        begun.at = begun.at.and_then(|at| at.checked_sub(Duration::from_micros(micros)));
        statistics.end(begun, is_error);
    }

    #[test]
    fn buckets_are_quarters_of_powers_of_two() {
        assert_eq!((bucket_bound(0), bucket_bound(1), bucket_bound(4)), (1024, 1280, 2048));
        assert_eq!((bucket_of(0), bucket_of(1023), bucket_of(1024), bucket_of(1279)), (0, 0, 1, 1));
        for bucket in 0..BUCKETS - 1 {
            let bound = bucket_bound(bucket);
            assert!(bound < bucket_bound(bucket + 1));
            assert_eq!((bucket_of(bound - 1), bucket_of(bound)), (bucket, bucket + 1), "{bound}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert!(bucket_bound(BUCKETS - 1) < LATENCY_MAX);
    }

    #[test]
    fn threads_record_apart_and_are_read_together() {
        let statistics = Statistics::new();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let statistics = &statistics;
                scope.spawn(move || {
                    for micros in 1..=250 {
                        took(statistics, LOOKUP, 100 * ((thread - 1) * 250 + micros), micros % 10 == 0);
                    }
                    took(statistics, WRITE, 5_000_000, false);
                });
            }
        });
        let read = statistics.read();
        let [lookup, write] = &read[..] else { panic!("{read:?}") };
        assert_eq!((lookup.name, lookup.count, lookup.errors), ("lookup", 1000, 100));
        assert_eq!((write.name, write.count, write.errors), ("write", 4, 0));
        // 0.1 to 100 ms, and the time of the test itself.
        for (share, millis) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0)] {
            let measured = lookup.quantile(share).as_secs_f64() * 1e3;
            assert!((0.98..1.2).contains(&(measured / millis)), "{share}: {measured}");
        }
        assert!(lookup.quantile(0.5) <= lookup.quantile(0.99) && lookup.quantile(0.99) <= lookup.max());
        assert!(lookup.total >= Duration::from_micros(50_050_000), "{:?}", lookup.total);
        for one in [lookup, write] {
            assert_eq!(one.buckets().iter().sum::<u64>(), one.count);
        }
        assert!(write.buckets()[bucket_of(5_000_000_000)..].iter().sum::<u64>() == 4);
    }

    #[test]
    fn a_timed_request_stands_for_those_before_it_that_were_not() {
        let statistics = Statistics::new();
        let mut n_timed = 0;
        for _ in 0..FIRST + 100 * SAMPLE {
            let begun = statistics.begin(LOOKUP);
            n_timed += u64::from(begun.at.is_some());
            statistics.record(begun.index.into(), Duration::from_micros(3), begun.weight.into());
        }
        assert_eq!(n_timed, FIRST + 100);
        let read = statistics.read();
        let lookup = &read[0];
        assert_eq!(lookup.count, FIRST + 100 * SAMPLE);
        let timed: u64 = lookup.buckets().iter().sum();
        assert!(timed <= lookup.count && lookup.count - timed < SAMPLE, "{timed}");
        assert_eq!(lookup.total, Duration::from_micros(3) * u32::try_from(timed).unwrap());
        // Slow ones are timed each.
        statistics.record(0, Duration::from_millis(1), 1);
        assert!((0..20).all(|_| statistics.begin(LOOKUP).at.is_some()));
    }

    #[test]
    fn what_takes_forever_and_what_has_no_name_are_counted() {
        let statistics = Statistics::new();
        took(&statistics, 4095, 3_600_000_000, true);
        let read = statistics.read();
        assert_eq!((read[0].name, read[0].count, read[0].errors), ("other", 1, 1));
        assert_eq!(read[0].buckets()[BUCKETS - 1], 1);
        assert!(read[0].total >= Duration::from_secs(3600));
    }
}
