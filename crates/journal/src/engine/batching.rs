//! A short wait before a requested commit, so that changes of other threads join it.
//!
//! A caller that needs durability waits as long as a commit takes on average, if the running transaction is
//! younger than that and the last request was for another object. Names of one directory are changed by one
//! thread after the other, so for these no other thread is worth waiting for. (Requests carry no thread
//! identity: a server thread may serve many clients, and one client may be served by all threads.)
//!
//! Source: min_batch_time and max_batch_time in kernel Documentation/admin-guide/ext4.rst.

use std::time::Duration;

use extant_base::sync::atomic::{AtomicU64, Ordering};

/// A shorter sleep takes longer to begin and to end than it lasts.
const WORTH_A_SLEEP: Duration = Duration::from_micros(200);

/// How long a request for a commit waits for other threads: the kernel's options `min_batch_time` and
/// `max_batch_time`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// At least so long.
    pub min: Duration,
    /// The longest wait; zero disables waiting.
    pub max: Duration,
}

impl Default for Batching {
    fn default() -> Self {
        Self { min: Duration::ZERO, max: Duration::from_millis(15) }
    }
}

/// Statistics of commits and of the requests for them.
pub(super) struct Batcher {
    batching: Option<Batching>,
    /// The mean of commits' times, where the last one weighs a quarter.
    commit_nanos: AtomicU64,
    /// What was asked for last.
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

    /// A commit took so long.
    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 4);
        let before = self.commit_nanos.load(Ordering::Relaxed);
        let mean = if before == 0 { took } else { (took + 3 * before) / 4 };
        // There is one commit at a time, so there is no other writer.
        self.commit_nanos.store(mean, Ordering::Relaxed);
    }

    /// How long a request for `what` waits before it commits a transaction of this age; `None`: not at all.
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
    fn who_asks_after_another_waits_as_long_as_a_commit_takes() {
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
