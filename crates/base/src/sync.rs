//! Locks and atomics of the structures that threads share, in two editions.
//!
//! By default these are `parking_lot`'s locks and the standard library's atomics. With the feature `shuttle`
//! each of them is [shuttle](https://docs.rs/shuttle)'s, which runs the threads of a test one at a time and
//! chooses the next one at every lock and atomic: thousands of schedules, each repeatable by its seed. That
//! edition is for `cargo xtask ci schedules` only; outside of such a test its locks panic. It treats every
//! atomic as sequentially consistent: it does not detect orderings that are too weak.
//!
//! Used by what is small and shared: the journal's handles, the cache's shards, the slots of orphans. Others
//! take their locks where they come from; a lock that is no lock of this module must not be held across one
//! that is.

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

/// A value on cache lines of its own (two, for CPUs that fetch them in pairs): frequent writes by one thread
/// do not evict neighbouring read-only data from other CPUs' caches.
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

/// A number per thread, in the order of first use: for keeping threads apart.
#[cfg(feature = "shuttle")]
#[must_use]
pub fn thread_number() -> usize {
    shuttle::current::me().into()
}

/// A number per thread, in the order of first use: for keeping threads apart.
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

/// Parts of a [`Sum`]: about as many as threads that add at the same moment.
const PARTS: usize = 16;

/// A counter without contention: each thread adds to a part of its own. A read sums all parts, and returns
/// the sum at some moment during the read.
#[derive(Debug, Default)]
pub struct Sum([CachePadded<atomic::AtomicI64>; PARTS]);

impl Sum {
    /// Adds to it.
    #[inline]
    pub fn add(&self, more: i64) {
        self.0[thread_number() % PARTS].fetch_add(more, atomic::Ordering::Relaxed);
    }

    /// All of it.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.iter().fold(0, |sum, part| sum.wrapping_add(part.load(atomic::Ordering::Relaxed)))
    }

    /// Sets it, while no thread adds.
    pub fn set(&self, value: i64) {
        for (at, part) in self.0.iter().enumerate() {
            part.store(if at == 0 { value } else { 0 }, atomic::Ordering::Relaxed);
        }
    }
}

/// `parking_lot`'s face, as far as it is used, over shuttle's locks.
#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::sync as with;

    /// A lock.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(with::Mutex<T>);

    /// Holds a lock. Empty only while it waits.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<with::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        /// A lock of its own.
        pub fn new(value: T) -> Self {
            Self(with::Mutex::new(value))
        }

        /// Waits for it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            // A thread that panicked with it fails the whole test.
            MutexGuard(Some(self.0.lock().expect("no thread panicked")))
        }

        /// Takes it, unless it is held.
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

    /// Waits for another thread.
    #[derive(Debug, Default)]
    pub struct Condvar(with::Condvar);

    /// How a wait ended.
    #[derive(Debug, Clone, Copy)]
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        /// Never: there is no time in a schedule.
        #[must_use]
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        /// There is no waiter.
        #[must_use]
        pub fn new() -> Self {
            Self::default()
        }

        /// Lets go of the lock until it is notified.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = Some(self.0.wait(held).expect("no thread panicked"));
            }
        }

        /// As [`wait`](Self::wait): time does not pass.
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

/// Runs a test under many schedules: `EXTANT_SCHEDULES` of them, else `usual`, from the seed `EXTANT_SEED`,
/// else 1. What fails says the seed, and how to see that schedule again.
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
