//! Locks and atomics of the structures that threads share, in two implementations.
//!
//! By default these are `parking_lot`'s locks and the standard library's atomics. With the feature `shuttle`
//! they are those of [shuttle](https://docs.rs/shuttle), which runs the threads of a test one at a time and
//! chooses the next one at every lock and atomic: thousands of schedules, each repeatable by its seed. That
//! implementation is for `cargo xtask ci schedules` only; outside of such a test its locks panic. It treats
//! every atomic as sequentially consistent: it does not detect orderings that are too weak.
//!
//! Small shared structures use this module: the journal's handles, the cache's shards, the slots of orphans.
//! Other code takes its locks directly from their crates. A lock that is not from this module must not be
//! held while a lock of this module is taken.

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic;

#[cfg(feature = "shuttle")]
pub use self::scheduled::{Condvar, Mutex, MutexGuard, WaitTimeoutResult};
#[cfg(feature = "shuttle")]
pub use shuttle;
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic;

/// A value on cache lines of its own (two, for CPUs that fetch them in pairs). Frequent writes by one thread
/// then do not evict neighbouring read-only data from other CPUs' caches.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// The number of the calling thread, in the order of first use. Callers use it to give threads separate data.
#[cfg(feature = "shuttle")]
#[must_use]
pub fn thread_number() -> usize {
    shuttle::current::me().into()
}

/// The number of the calling thread, in the order of first use. Callers use it to give threads separate data.
#[cfg(not(feature = "shuttle"))]
#[inline]
#[must_use]
pub fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Parts of a [`Sum`]: about as many as threads that add at the same time.
const PARTS: usize = 16;

/// A counter without contention: each thread adds to one of several parts. A read sums all parts, and returns
/// the sum at some moment during the read.
#[derive(Debug, Default)]
pub struct Sum([CachePadded<atomic::AtomicI64>; PARTS]);

impl Sum {
    /// Adds `more`.
    #[inline]
    pub fn add(&self, more: i64) {
        self.0[thread_number() % PARTS].fetch_add(more, atomic::Ordering::Relaxed);
    }

    /// Returns the sum.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.iter().fold(0, |sum, part| sum.wrapping_add(part.load(atomic::Ordering::Relaxed)))
    }

    /// Sets the sum. No thread may add at the same time.
    pub fn set(&self, value: i64) {
        for (at, part) in self.0.iter().enumerate() {
            part.store(if at == 0 { value } else { 0 }, atomic::Ordering::Relaxed);
        }
    }
}

/// The part of `parking_lot`'s interface that extant uses, implemented with shuttle's locks.
#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::sync as with;

    /// A mutual-exclusion lock.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(with::Mutex<T>);

    /// Holds a lock. Empty only during a wait on a [`Condvar`].
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<with::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        /// Creates an unlocked lock.
        pub fn new(value: T) -> Self {
            Self(with::Mutex::new(value))
        }

        /// Takes the lock; blocks until it is free.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            // A panic of a thread that holds the lock fails the whole test.
            MutexGuard(Some(self.0.lock().expect("no thread panicked")))
        }

        /// Takes the lock unless another thread holds it.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_deref().expect("no thread looks while it waits")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().expect("no thread looks while it waits")
        }
    }

    /// A condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(with::Condvar);

    /// The result of a wait with a timeout.
    #[derive(Debug, Clone, Copy)]
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        /// Always false: no time passes in a schedule.
        #[must_use]
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        /// Creates a condition variable without waiters.
        #[must_use]
        pub fn new() -> Self {
            Self::default()
        }

        /// Releases the lock until a notification, then takes it again.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = Some(self.0.wait(held).expect("no thread panicked"));
            }
        }

        /// Same as [`wait`](Self::wait): the timeout never expires, because no time passes.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
            self.wait(guard);
            WaitTimeoutResult
        }

        /// Wakes all waiters.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// Runs a test under many schedules: as many as the variable `EXTANT_SCHEDULES` says (default `usual`), from
/// the seed in `EXTANT_SEED` (default 1). A failure prints the seed, and how to repeat the schedule.
#[cfg(feature = "shuttle")]
pub fn schedules(name: &str, usual: usize, test: impl Fn() + Send + Sync + 'static) {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let seed = number("EXTANT_SEED").unwrap_or(1);
    let count = number("EXTANT_SCHEDULES").map_or(usual, |count| count as usize);
    println!("{name}: {count} schedules, EXTANT_SEED={seed}");
    let mut config = shuttle::Config::default();
    config.stack_size = 1 << 20;
    let random = shuttle::scheduler::RandomScheduler::new_from_seed(seed, count);
    let runs = shuttle::Runner::new(random, config).run(test);
    assert_eq!(runs, count, "{name}: all schedules ran");
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_what_all_threads_added() {
        let sum = Sum::default();
        sum.set(-5);
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1000).for_each(|_| sum.add(3)));
            }
        });
        assert_eq!(sum.get(), 60_000 - 5);
        sum.set(7);
        assert_eq!(sum.get(), 7);
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let mine = thread_number();
        assert_eq!(mine, thread_number());
        assert_ne!(std::thread::spawn(thread_number).join().unwrap(), mine);
    }
}
