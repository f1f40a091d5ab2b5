//! One budget of memory for all caches of a process, and the shrinkers that keep it.
//!
//! A cache *charges* what it keeps and *releases* what it drops. While the sum stays under the limit that is
//! all: one atomic addition on a counter of the thread's own shard. When a charge takes the sum over the
//! limit, the caches that registered a [`Shrinker`] are asked in turn, each for a bounded amount, until the
//! sum is under the limit again or every one was asked once.
//!
//! Owns: the sum, the limit, whose turn it is.
//!
//! Does **not** own: any memory, any policy of what a cache drops first, any thread. A budget never refuses:
//! what is pinned may exceed the limit, and [`Budget::charge`] returns by how much.
//!
//! Invariants
//! 1. A shrinker is called with no lock of the budget's registry held and only from inside a
//!    [`Budget::charge`], by the thread that charges. So **charge without holding a lock that a shrinker
//!    takes**: insert, unlock, charge. `release` never calls a shrinker and may be called under any lock.
//! 2. One thread shrinks at a time; a charge that comes meanwhile (also one from inside a shrinker) only
//!    adds.
//! 3. The work of one charge is bounded: each shrinker is asked at most once, for at most [`STEP_MIN`] bytes
//!    or twice what is being charged, whichever is more. Twice, so that freeing outruns growing. After a
//!    round that freed next to nothing there is no other until the sum has grown by a 32nd of the limit: what
//!    is left is in use.
//! 4. A cache that is gone is forgotten: the registry holds weak references.
//! 5. [`Budget::used`] is exact while no charge is in progress; the hot path's own view of it is off by less
//!    than 1/16 of the limit (each shard holds back less than a small batch).
//!
//! Locks, in order: the turn (tried, never waited for), then the registry, which is let go before a shrinker
//! runs.
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

/// The least that a shrinker is asked for at a time, in bytes: enough to make a call worth its cost.
pub const STEP_MIN: usize = 256 * 1024;

/// Budgets below this are small: freed memory goes back to the system at once, one object at a time, since
/// what an allocator retains can be as much as the limit. Larger ones use huge pages and retain freed memory,
/// which is faster.
pub const SMALL_MAX: usize = 256 << 20;

/// Counters that threads spread over; more than the threads that usually charge at the same moment.
const SHARDS: usize = 16;

/// A shard keeps back at most this many bytes before it adds them to the sum.
const BATCH_MAX: usize = 64 * 1024;

/// A cache that can give memory back.
///
/// Called inside of another caller's [`Budget::charge`], on any thread.
pub trait Shrinker: Send + Sync {
    /// What it caches, for reports: "metadata blocks".
    fn name(&self) -> &'static str;

    /// How many bytes it holds now, pinned ones included. A hint: may be stale by the time it returns.
    fn cached_bytes(&self) -> usize;

    /// Drops about `bytes` bytes, of what it can spare, and calls [`Budget::release`] for them; returns how
    /// many it dropped. Looks at a bounded number of entries (in proportion to `bytes`), takes only locks of
    /// its own, does no I/O and returns 0 when nothing can go.
    fn shrink(&self, bytes: usize) -> usize;
}

/// A limit in bytes shared by caches, and the sum of what they hold. See the crate's first page.
pub struct Budget {
    limit: usize,
    batch: isize,
    sum: AtomicIsize,
    shards: [Shard; SHARDS],
    registry: Mutex<Vec<Weak<dyn Shrinker>>>,
    /// The cache to ask first next time. Held for the length of a round: this is invariant 2.
    turn: Mutex<usize>,
    /// After a round that freed next to nothing: the sum below which there is no other.
    patience: AtomicIsize,
}

/// A counter on a cache line of its own (two, for CPUs that fetch lines in pairs).
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

    /// Adds `bytes` to what is held. Over the limit, asks the shrinkers first (invariants 1 to 3), so: **call
    /// it without holding a lock that a shrinker takes**.
    ///
    /// Returns by how many bytes the limit is exceeded afterwards, 0 as a rule. More means that what is left
    /// is pinned, or that another thread is shrinking already; a caller that can do with less may take it as
    /// advice.
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

    /// Takes `bytes` off what is held. Never calls a shrinker; may be called under any lock.
    pub fn release(&self, bytes: usize) {
        self.add((bytes as isize).wrapping_neg());
    }

    /// Bytes charged and not released, over all caches.
    #[must_use]
    pub fn used(&self) -> usize {
        let kept_back: isize = self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum();
        // A release may be seen before the charge it belongs to, on another shard.
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

    /// Adds a cache to those that are asked when memory runs short. It is forgotten when it is dropped.
    pub fn register(&self, shrinker: Weak<dyn Shrinker>) {
        let mut registry = lock(&self.registry);
        registry.retain(|known| known.strong_count() > 0);
        registry.push(shrinker);
    }

    /// The caches that are alive, in the order in which they registered.
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

    /// By how many bytes the sum reported by the shards exceeds the limit.
    fn over(&self) -> usize {
        usize::try_from(self.sum.load(Ordering::Relaxed)).unwrap_or(0).saturating_sub(self.limit)
    }

    /// One round: asks each shrinker at most once, from the one whose turn it is.
    #[cold]
    fn shrink(&self, over: usize, charged: usize) {
        let mut turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let shrinkers = self.shrinkers();
        let step = STEP_MIN.max(charged.saturating_mul(2));
        // A little more than needed, or the very next charge would have to come here again.
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
        // What is left is in use. To look through it again for each charge would cost more than what it
        // holds.
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

/// The registry stays usable after a panic elsewhere: every change to it is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
