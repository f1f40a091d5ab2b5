//! One memory budget for all caches of a process. When the caches exceed it, the budget makes them free
//! memory.
//!
//! A cache *charges* the bytes that it keeps, and *releases* the bytes that it frees. The budget keeps the
//! sum of all bytes that are charged and not released. A charge that lifts the sum above the limit starts a
//! *round* in the charging thread: the budget calls the registered [`Shrinker`]s one after the other, each
//! with a bounded number of bytes to free. The round ends when the shrinkers have freed the excess and 1/64
//! of the limit more, or when each shrinker was called once. The next round begins with the shrinker after
//! the last one that was called.
//!
//! The sum is split into several counters (*shards*), so that threads on different CPUs seldom write to the
//! same cache line.
//!
//! Owns: the sum, the limit, the list of shrinkers (the *registry*) and their order.
//!
//! Does **not** own: memory, eviction policies, threads. A charge never fails. If the caches cannot free
//! enough, the sum stays above the limit, and [`Budget::charge`] returns the excess.
//!
//! Invariants
//! 1. A shrinker is called only from inside [`Budget::charge`], by the charging thread, and without the
//!    registry's lock. So **charge without holding a lock that a shrinker takes**: insert, unlock, charge.
//!    [`Budget::release`] never calls a shrinker and may be called under any lock.
//! 2. One thread at a time runs a round. Meanwhile, charges of other threads and charges of shrinkers only
//!    add to the sum.
//! 3. A charge runs at most one round. A round calls each shrinker at most once, for at most [`STEP_MIN`]
//!    bytes, or for twice the charge if that is more. The factor of two lets caches shrink faster than they
//!    grow. After a round that freed almost nothing, the next round starts only when the sum has grown by
//!    1/32 of the limit, because what the caches still hold is probably in use.
//! 4. The registry holds weak references, so it does not keep a cache alive.
//! 5. A shard collects changes, and adds them in batches to a common counter. [`Budget::charge`] compares
//!    only the common counter with the limit. [`Budget::used`] adds up the common counter and all shards; it
//!    is exact while no thread charges or releases. The two values differ by at most 1/16 of the limit.
//!
//! Lock order: `turn`, then the registry. A thread holds `turn` during a round; other threads only try to
//! lock `turn`. The registry is unlocked before a shrinker runs.
//!
//! ```
//! use extant_memory::{Budget, Shrinker};
//! use std::sync::{Arc, Mutex, Weak};
//!
//! struct Pages { budget: Arc<Budget>, kept: Mutex<Vec<Vec<u8>>> }
//! impl Shrinker for Pages {
//!     fn name(&self) -> &'static str { "pages" }
//!     fn cached_bytes(&self) -> usize { self.kept.lock().unwrap().len() * 4096 }
//!     fn shrink(&self, bytes: usize) -> usize {
//!         let mut kept = self.kept.lock().unwrap();
//!         let drop_count = bytes.div_ceil(4096).min(kept.len());
//!         kept.drain(..drop_count);
//!         self.budget.release(drop_count * 4096); // the cache releases what it frees
//!         drop_count * 4096
//!     }
//! }
//! let budget = Budget::new(1 << 20);
//! let pages = Arc::new(Pages { budget: budget.clone(), kept: Mutex::default() });
//! let weak = Arc::downgrade(&pages);
//! budget.register(weak as Weak<dyn Shrinker>);
//! for _ in 0..1000 {
//!     pages.kept.lock().unwrap().push(vec![0; 4096]);
//!     budget.charge(4096); // after unlocking
//! }
//! assert!(budget.used() <= (1 << 20) + (1 << 16));
//! ```

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// The minimum request to a shrinker, in bytes: enough to make the call worth its cost.
pub const STEP_MIN: usize = 256 * 1024;

/// Budgets below this are small: freed memory is returned to the system at once, one object at a time,
/// because the memory an allocator retains can be as much as the limit. Larger budgets use huge pages and
/// retain freed memory, which is faster.
pub const SMALL_MAX: usize = 256 << 20;

/// Number of counters; larger than the usual number of concurrent charges.
const SHARDS: usize = 16;

/// The most bytes that a shard keeps back before it adds them to the sum.
const BATCH_MAX: usize = 64 * 1024;

/// A cache that can free memory.
///
/// Called from inside [`Budget::charge`], on any thread.
pub trait Shrinker: Send + Sync {
    /// The kind of contents, for reports: "metadata blocks".
    fn name(&self) -> &'static str;

    /// Bytes held now, including pinned ones. A hint: may be stale on return.
    fn cached_bytes(&self) -> usize;

    /// Evicts about `bytes` bytes and calls [`Budget::release`] for them; returns the number of bytes freed.
    /// It examines a bounded number of entries (in proportion to `bytes`), takes only its own locks, does no
    /// I/O, and returns 0 if it can free nothing.
    fn shrink(&self, bytes: usize) -> usize;
}

/// A limit in bytes shared by caches, and the sum of what they hold. See the crate's documentation.
pub struct Budget {
    limit: usize,
    batch: isize,
    sum: AtomicIsize,
    shards: [Shard; SHARDS],
    registry: Mutex<Vec<Weak<dyn Shrinker>>>,
    /// The shrinker that the next round begins with. Locked during a round, which ensures invariant 2.
    turn: Mutex<usize>,
    /// After a round that freed almost nothing: no round starts below this sum.
    patience: AtomicIsize,
}

/// A cache-padded counter (two lines, for CPUs that fetch lines in pairs).
#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicIsize);

impl Budget {
    /// A budget of `limit_bytes`, with nothing charged.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        let limit = limit_bytes.min(isize::MAX as usize / 2);
        Arc::new(Self {
            limit,
            batch: (limit / (SHARDS * 16)).min(BATCH_MAX) as isize,
            sum: AtomicIsize::new(0),
            shards: Default::default(),
            registry: Mutex::default(),
            turn: Mutex::default(),
            patience: AtomicIsize::new(0),
        })
    }

    /// Charges `bytes`. Above the limit, calls the shrinkers first (invariants 1 to 3), so **call it without
    /// holding a lock that a shrinker takes**.
    ///
    /// Returns the excess over the limit afterwards, usually 0. Otherwise the rest is pinned, or another
    /// thread is shrinking; a caller may use the value as a hint to hold less.
    pub fn charge(&self, bytes: usize) -> usize {
        self.add(bytes as isize);
        let over = self.over();
        if over == 0 {
            return 0;
        }
        if self.sum.load(Ordering::Relaxed) >= self.patience.load(Ordering::Relaxed) {
            self.shrink(over, bytes);
        }
        self.over()
    }

    /// Releases `bytes`. Never calls a shrinker; may be called under any lock.
    pub fn release(&self, bytes: usize) {
        self.add((bytes as isize).wrapping_neg());
    }

    /// Bytes charged and not released, by all caches.
    #[must_use]
    pub fn used(&self) -> usize {
        let kept_back: isize = self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum();
        // A release may become visible before its charge, on another shard.
        usize::try_from(self.sum.load(Ordering::Relaxed) + kept_back).unwrap_or(0)
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether the limit is below [`SMALL_MAX`].
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.limit < SMALL_MAX
    }

    /// Registers a cache to be shrunk when memory runs short. The registry holds a weak reference.
    pub fn register(&self, shrinker: Weak<dyn Shrinker>) {
        let mut registry = lock(&self.registry);
        registry.retain(|known| known.strong_count() > 0);
        registry.push(shrinker);
    }

    /// The live caches, in the order of registration.
    #[must_use]
    pub fn shrinkers(&self) -> Vec<Arc<dyn Shrinker>> {
        lock(&self.registry).iter().filter_map(Weak::upgrade).collect()
    }

    fn add(&self, bytes: isize) {
        let shard = &self.shards[shard_of_this_thread()].0;
        let kept_back = shard.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        if kept_back.unsigned_abs() > self.batch.unsigned_abs() {
            self.sum.fetch_add(shard.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The excess of the sum over the limit, without what shards keep back.
    fn over(&self) -> usize {
        usize::try_from(self.sum.load(Ordering::Relaxed)).unwrap_or(0).saturating_sub(self.limit)
    }

    /// One round: calls each shrinker at most once, in turn.
    #[cold]
    fn shrink(&self, over: usize, charged: usize) {
        let mut turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let shrinkers = self.shrinkers();
        let step = STEP_MIN.max(charged.saturating_mul(2));
        // A little more than needed; otherwise the next charge would start a round again.
        let all = over.saturating_add(self.limit / 64);
        let mut wanted = all;
        for _ in 0..shrinkers.len() {
            *turn = turn.wrapping_add(1);
            let freed = shrinkers[*turn % shrinkers.len()].shrink(wanted.min(step));
            wanted = wanted.saturating_sub(freed);
            if wanted == 0 {
                break;
            }
        }
        // The rest is in use. To examine it for each charge would cost more than it is worth.
        let freed = all - wanted;
        let sum = self.sum.load(Ordering::Relaxed);
        let rest = if freed < step / 4 { (self.limit / 32) as isize } else { 0 };
        self.patience.store(if rest == 0 { 0 } else { sum.saturating_add(rest) }, Ordering::Relaxed);
    }
}

impl fmt::Debug for Budget {
    /// `Budget: 1048576 of 4194304 bytes; metadata blocks 1040384`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget: {} of {} bytes", self.used(), self.limit)?;
        for shrinker in self.shrinkers() {
            write!(f, "; {} {}", shrinker.name(), shrinker.cached_bytes())?;
        }
        Ok(())
    }
}

fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        mine.get()
    })
}

/// A panic elsewhere leaves the registry usable: each change to it is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
