//! Rates and percentiles between two readings of a mount, or since the mount.

use extant_fuse::MountStatus;
use extant_fuse::status::{Buckets, RequestStatus, bucket_bound};

/// The time between two readings.
pub(super) struct Window {
    pub(super) seconds: f64,
    /// In the order of the later reading's requests.
    pub(super) requests: Vec<Rates>,
}

/// The requests of one operation in that time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) per_second: f64,
    pub(super) p50_ns: u64,
    pub(super) p90_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p999_ns: u64,
    pub(super) max_ns: u64,
}

impl Window {
    /// Without an earlier reading of the same server: since the mount.
    pub(super) fn new(before: Option<&MountStatus>, now: &MountStatus) -> Self {
        let is_same = |before: &&MountStatus| before.process == now.process && before.age_ms < now.age_ms;
        let Some(before) = before.filter(is_same) else {
            let seconds = now.age_ms.max(1) as f64 / 1e3;
            let requests = now.requests.iter().map(|request| Rates::since_mount(request, seconds)).collect();
            return Self { seconds, requests };
        };
        let seconds = (now.age_ms - before.age_ms) as f64 / 1e3;
        let rates = |now: &RequestStatus| {
            let before = before.requests.iter().find(|before| before.operation == now.operation);
            Rates::between(before, now, seconds)
        };
        Self { seconds, requests: now.requests.iter().map(rates).collect() }
    }

    /// All requests per second.
    pub(super) fn per_second(&self) -> f64 {
        self.requests.iter().map(|rates| rates.per_second).sum()
    }
}

impl Rates {
    fn since_mount(now: &RequestStatus, seconds: f64) -> Self {
        Self {
            per_second: now.count as f64 / seconds,
            p50_ns: now.p50_ns,
            p90_ns: now.p90_ns,
            p99_ns: now.p99_ns,
            p999_ns: now.p999_ns,
            max_ns: now.max_ns,
        }
    }

    fn between(before: Option<&RequestStatus>, now: &RequestStatus, seconds: f64) -> Self {
        let count = now.count.saturating_sub(before.map_or(0, |before| before.count));
        let Some(now_buckets) = &now.buckets else {
            return Self { per_second: count as f64 / seconds, ..Self::since_mount(now, seconds) };
        };
        let before = before.and_then(|before| before.buckets.as_ref());
        let counts = difference(before, now_buckets);
        let quantile = |share| quantile(&counts, share).min(now.max_ns);
        Self {
            per_second: count as f64 / seconds,
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: quantile(1.0),
        }
    }
}

/// Buckets with the requests of each.
fn difference(before: Option<&Buckets>, now: &Buckets) -> Vec<(usize, u64)> {
    let count_before = |bucket: usize| {
        let before = before?;
        before.counts.get(bucket.checked_sub(before.first)?)
    };
    let of_bucket = |(bucket, count): (usize, &u64)| {
        (bucket, count.saturating_sub(count_before(bucket).copied().unwrap_or(0)))
    };
    (now.first..).zip(&now.counts).map(of_bucket).filter(|(_, count)| *count > 0).collect()
}

/// The latency that a share of the requests did not exceed, as if those of a bucket were spread evenly.
fn quantile(counts: &[(usize, u64)], share: f64) -> u64 {
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let rank = (all as f64 * share).ceil().max(1.0);
    let mut below = 0;
    for (bucket, count) in counts {
        if (below + count) as f64 >= rank {
            let low = bucket.checked_sub(1).map_or(0, bucket_bound);
            let part = (rank - below as f64) / *count as f64;
            return low + ((bucket_bound(*bucket) - low) as f64 * part) as u64;
        }
        below += count;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(age_ms: u64, requests: Vec<RequestStatus>) -> MountStatus {
        MountStatus {
            version: 1,
            process: 7,
            read_write: true,
            transport: "dev".to_owned(),
            age_ms,
            requests,
            server: None,
        }
    }

    fn request(operation: &str, count: u64, first: usize, counts: &[u64]) -> RequestStatus {
        RequestStatus {
            operation: operation.to_owned(),
            count,
            errors: 0,
            time_ns: 0,
            p50_ns: 11,
            p90_ns: 12,
            p99_ns: 13,
            p999_ns: 14,
            max_ns: 1 << 40,
            buckets: Some(Buckets { first, counts: counts.to_vec() }),
        }
    }

    #[test]
    fn without_an_earlier_reading_the_window_is_the_life_of_the_mount() {
        let now = status(2000, vec![request("lookup", 100, 4, &[100])]);
        for before in
            [None, Some(status(3000, Vec::new())), Some(MountStatus { process: 8, ..status(1, Vec::new()) })]
        {
            let window = Window::new(before.as_ref(), &now);
            assert_eq!((window.seconds, window.per_second()), (2.0, 50.0));
            assert_eq!(window.requests[0].p50_ns, 11);
        }
    }

    #[test]
    fn rates_and_percentiles_are_those_of_the_difference() {
        let before = status(1000, vec![request("lookup", 1000, 8, &[1000])]);
        // In the meantime: 90 in bucket 4 (below 2.048 µs), 10 in bucket 20, and the first writes.
        let mut counts = vec![90, 0, 0, 0, 1000];
        counts.extend([0; 11]);
        counts.push(10);
        let now = status(3000, vec![request("lookup", 1100, 4, &counts), request("write", 4, 40, &[4])]);
        let window = Window::new(Some(&before), &now);
        let lookup = window.requests[0];
        assert_eq!((window.seconds, lookup.per_second, window.requests[1].per_second), (2.0, 50.0, 2.0));
        assert!((bucket_bound(3)..=bucket_bound(4)).contains(&lookup.p50_ns), "{lookup:?}");
        assert!((bucket_bound(3)..=bucket_bound(4)).contains(&lookup.p90_ns), "{lookup:?}");
        assert!((bucket_bound(19)..=bucket_bound(20)).contains(&lookup.p99_ns), "{lookup:?}");
        assert!(lookup.p99_ns <= lookup.p999_ns && lookup.p999_ns <= lookup.max_ns);
    }

    #[test]
    fn nothing_in_between_is_nothing() {
        let before = status(1000, vec![request("lookup", 5, 8, &[5])]);
        let now = status(2000, vec![request("lookup", 5, 8, &[5])]);
        let lookup = Window::new(Some(&before), &now).requests[0];
        assert_eq!((lookup.per_second, lookup.p50_ns, lookup.max_ns), (0.0, 0, 0));
    }
}
