//! Group commit: a caller of a commit waits a little, so that concurrent changes share the commit.
//!
//! A caller that needs durability waits for the average duration of a commit, if the running transaction is
//! younger than that and if the object it changed is not the same as in the last commit request. Names of one
//! directory are changed one after the other, so a wait for other changes of the same directory would be in
//! vain. (Thread identity does not help: a server with many threads may serve a single client from all of
//! them.)
//!
//! Source: min_batch_time and max_batch_time in kernel Documentation/admin-guide/ext4.rst.

use std::time::Duration;

use extant_base::sync::atomic::{AtomicU64, Ordering};

/// A shorter sleep costs more than it lasts.
const WORTH_A_SLEEP: Duration = Duration::from_micros(200);

/// How long a commit request waits for concurrent changes: the kernel's options `min_batch_time` and
/// `max_batch_time`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// The minimum wait.
    pub min: Duration,
    /// The maximum wait; zero disables batching.
    pub max: Duration,
}

impl Default for Batching {
    fn default() -> Self {
        Self { min: Duration::ZERO, max: Duration::from_millis(15) }
    }
}

/// State of commits and of the requests for them.
pub(super) struct Batcher {
    batching: Option<Batching>,
    /// Running mean of commit durations; the last one has a weight of one quarter.
    commit_nanos: AtomicU64,
    /// The `what` of the last request.
    last: AtomicU64,
}

impl Batcher {
    pub(super) fn new(batching: Option<Batching>) -> Self {
        Self {
            batching: batching.filter(|batching| !batching.max.is_zero()),
            commit_nanos: AtomicU64::new(0),
            last: AtomicU64::new(u64::MAX),
        }
    }

    /// Records the duration of a commit.
    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 4);
        let before = self.commit_nanos.load(Ordering::Relaxed);
        let mean = if before == 0 { took } else { (took + 3 * before) / 4 };
        // Only one commit runs at a time, so there is no other writer.
        self.commit_nanos.store(mean, Ordering::Relaxed);
    }

    /// How long a request for `what` waits before it commits a transaction of this age. `None` if it does not
    /// wait.
    pub(super) fn wait(&self, what: u64, age: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        let Batching { min, max } = self.batching?;
        if self.last.swap(what, Ordering::Relaxed) == what {
            return None;
        }
        let commit = Duration::from_nanos(self.commit_nanos.load(Ordering::Relaxed)).max(min).min(max);
        (commit >= WORTH_A_SLEEP && age()? < commit).then_some(commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_later_request_waits_as_long_as_a_commit_takes() {
        let batcher = Batcher::new(Some(Batching::default()));
        batcher.note(ms(8));
        batcher.note(ms(4));
        let young = || Some(ms(1));
        assert_eq!(batcher.wait(1, young), Some(ms(7)), "(4 + 3 * 8) / 4");
        assert_eq!(batcher.wait(1, young), None, "no other thread requests");
        assert_eq!(batcher.wait(2, young), Some(ms(7)));
        assert_eq!(batcher.wait(1, || Some(ms(7))), None, "it waited long enough for others");
        assert_eq!(batcher.wait(2, || None), None, "it does not run any more");
        (0..20).for_each(|_| batcher.note(ms(400)));
        assert_eq!(batcher.wait(1, young), Some(ms(15)), "never longer than the maximum");
        (0..60).for_each(|_| batcher.note(Duration::from_micros(20)));
        assert_eq!(batcher.wait(2, || Some(Duration::ZERO)), None, "not worth a sleep");
    }

    #[test]
    fn limits_are_kept() {
        let at_least = Batcher::new(Some(Batching { min: ms(3), max: ms(15) }));
        assert_eq!(at_least.wait(1, || Some(ms(0))), Some(ms(3)));
        for off in [None, Some(Batching { min: ms(3), max: Duration::ZERO })] {
            assert_eq!(Batcher::new(off).wait(1, || Some(ms(0))), None);
        }
    }
}
