//! Counters of the cache.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

use extant_base::Ino;

use crate::scan::Scan;

/// Number of shards of a counter, which spread contention between threads.
const SHARDS: usize = 16;
/// Buckets for each doubling of a time.
const PER_OCTAVE: usize = 8;

#[repr(align(128))]
#[derive(Default)]
struct Shard {
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    entries: AtomicI64,
    reclaimable: AtomicI64,
    bytes: AtomicI64,
}

impl Counters {
    pub(crate) fn hit(&self) {
        self.shards[shard_of_this_thread()].hits.fetch_add(1, Relaxed);
    }

    pub(crate) fn miss(&self) {
        self.shards[shard_of_this_thread()].misses.fetch_add(1, Relaxed);
    }

    pub(crate) fn add(&self, entries: i64, reclaimable: i64, bytes: i64) {
        for (counter, change) in
            [(&self.entries, entries), (&self.reclaimable, reclaimable), (&self.bytes, bytes)]
        {
            if change != 0 {
                counter.fetch_add(change, Relaxed);
            }
        }
    }

    pub(crate) fn reset_lookups(&self) {
        for shard in &self.shards {
            shard.hits.store(0, Relaxed);
            shard.misses.store(0, Relaxed);
        }
    }

    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(hits, misses), shard| {
            (hits + shard.hits.load(Relaxed), misses + shard.misses.load(Relaxed))
        })
    }

    pub(crate) fn entries(&self) -> u64 {
        u64::try_from(self.entries.load(Relaxed)).unwrap_or(0)
    }

    pub(crate) fn reclaimable(&self) -> u64 {
        u64::try_from(self.reclaimable.load(Relaxed)).unwrap_or(0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes.load(Relaxed)).unwrap_or(0)
    }
}

fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        mine.get()
    })
}

/// A histogram of times. Each doubling has eight buckets, so a quantile is exact to 9 %.
#[derive(Clone, PartialEq, Eq)]
pub struct Times {
    buckets: Vec<u64>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: vec![0; 64 * PER_OCTAVE], count: 0, total_ns: 0, max_ns: 0 }
    }
}

impl Times {
    /// Records a time.
    pub fn add(&mut self, ns: u64) {
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.total_ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all times of another histogram.
    pub fn add_all(&mut self, others: &Self) {
        self.buckets.iter_mut().zip(&others.buckets).for_each(|(mine, other)| *mine += other);
        self.count += others.count;
        self.total_ns += others.total_ns;
        self.max_ns = self.max_ns.max(others.max_ns);
    }

    /// Number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the times, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The mean, in nanoseconds; 0 if there is none.
    #[must_use]
    pub fn avg_ns(&self) -> f64 {
        self.total_ns as f64 / self.count.max(1) as f64
    }

    /// The maximum, in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The time in nanoseconds that a `share` (0 to 1) of them did not exceed.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return upper_end(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times, {:.0} ns on average, {} ns at most", self.count, self.avg_ns(), self.max_ns)
    }
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(PER_OCTAVE as u64);
    let octave = ns.ilog2() as usize;
    let within = (ns >> (octave - 3)) as usize & (PER_OCTAVE - 1);
    octave * PER_OCTAVE + within
}

fn upper_end(bucket: usize) -> u64 {
    let (octave, within) = (bucket / PER_OCTAVE, (bucket % PER_OCTAVE) as u64);
    if octave < 3 {
        return PER_OCTAVE as u64;
    }
    ((PER_OCTAVE as u64 + within + 1) << (octave - 3)).wrapping_sub(1)
}

/// Statistics of scans; under one lock, taken once a scan.
#[derive(Default)]
pub(crate) struct Scans {
    pub(crate) times: Times,
    /// Weighted mean: a quarter of the new value, three quarters of the old.
    pub(crate) scan_mean_ns: u64,
    pub(crate) shrunk_mean: u64,
    pub(crate) reclaimed: u64,
    pub(crate) scanned: u64,
    pub(crate) inodes: u64,
    pub(crate) work_max: u64,
    pub(crate) retried: u64,
    /// The log of all scans in order, if logging is on.
    pub(crate) log: Option<Vec<(u64, Scan)>>,
}

impl Scans {
    /// Resets the statistics; the log stays if it is on.
    pub(crate) fn reset(&mut self) {
        *self = Self { log: self.log.as_ref().map(|_| Vec::new()), ..Self::default() };
    }

    pub(crate) fn add(&mut self, scan: &Scan, ns: u64) {
        let first = self.times.count() == 0;
        let mean = |old: u64, new: u64| if first { new } else { (new + 3 * old) / 4 };
        self.scan_mean_ns = mean(self.scan_mean_ns, ns);
        self.shrunk_mean = mean(self.shrunk_mean, u64::from(scan.reclaimed));
        self.times.add(ns);
        self.log.iter_mut().for_each(|log| log.push((ns, *scan)));
        self.reclaimed += u64::from(scan.reclaimed);
        self.scanned += u64::from(scan.scanned);
        self.inodes += u64::from(scan.inodes);
        self.work_max = self.work_max.max(u64::from(scan.scanned) + u64::from(scan.inodes));
        self.retried += u64::from(scan.retried);
    }
}

/// Counters of the cache. Counts of entries are a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Entries of all inodes.
    pub entries: u64,
    /// Reclaimable entries.
    pub reclaimable: u64,
    /// Bytes of the entries, trees and inodes included.
    pub bytes: u64,
    /// Lookups that found an entry.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Inodes on the lists of the policy.
    pub inodes_listed: u64,
    /// The listed inode with the most entries: its number, entries, reclaimable entries.
    pub largest: Option<(Ino, u32, u32)>,
    /// Times of scans.
    pub scan_times: Times,
    /// Weighted mean of scan times, as in the kernel's file: new = (x + 3 old) / 4.
    pub scan_mean_ns: u64,
    /// Weighted mean of the entries reclaimed by a scan.
    pub shrunk_mean: u64,
    /// Entries reclaimed.
    pub reclaimed: u64,
    /// Entries examined by scans.
    pub scanned: u64,
    /// Inodes examined by scans.
    pub inodes_scanned: u64,
    /// The most that one scan examined, entries plus inodes.
    pub work_max: u64,
    /// Scans that needed a second round.
    pub retried: u64,
}

impl Stats {
    /// Share of lookups that were hits; 0 without any lookup.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// The statistics in the form of the kernel's `es_shrinker_info`.
    #[must_use]
    pub fn es_shrinker_info(&self) -> String {
        let mut text = format!(
            "stats:\n  {} objects\n  {} reclaimable objects\n  {}/{} cache hits/misses\n  {} inodes on list\n",
            self.entries, self.reclaimable, self.hits, self.misses, self.inodes_listed
        );
        text += &format!(
            "average:\n  {} us scan time\n  {} shrunk objects\n",
            self.scan_mean_ns / 1000,
            self.shrunk_mean
        );
        if let Some((ino, entries, reclaimable)) = self.largest {
            text += &format!(
                "maximum:\n  {ino} inode ({entries} objects, {reclaimable} reclaimable)\n  {} us max scan time\n",
                self.scan_times.max_ns() / 1000
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_an_eighth_of_a_doubling() {
        let mut times = Times::default();
        (1..=1000u64).for_each(|us| times.add(us * 1000));
        for (share, ns) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
            let measured = times.quantile_ns(share) as f64;
            assert!((0.99..1.13).contains(&(measured / ns)), "{share}: {measured}");
        }
        assert_eq!((times.count(), times.max_ns(), times.avg_ns()), (1000, 1_000_000, 500_500.0));
        assert!((0..62).all(|log| upper_end(bucket_of(1 << log)) >= 1 << log));
        assert_eq!(Times::default().quantile_ns(0.5), 0);
    }

    #[test]
    fn means_weigh_the_new_by_a_quarter() {
        let mut scans = Scans::default();
        scans.add(&Scan { reclaimed: 100, ..Scan::default() }, 4000);
        scans.add(&Scan { reclaimed: 20, scanned: 7, ..Scan::default() }, 8000);
        assert_eq!((scans.scan_mean_ns, scans.shrunk_mean), (5000, 80));
        assert_eq!((scans.reclaimed, scans.scanned, scans.times.max_ns()), (120, 7, 8000));
    }
}
