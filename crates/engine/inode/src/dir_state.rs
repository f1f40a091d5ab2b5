//! Caches that make changes of a directory fast, and their memory. The memory is charged to the budget, and
//! reclaimed when the budget is short.
//!
//! Owns: each directory's cache and its window of blocks; the memory of each. Does **not** own: the content
//! of a cache (see `dir`).
//!
//! Invariants
//! 1. A cache may be dropped between two operations at any time; it is built again from the blocks.
//! 2. The block addresses in a cache agree with the directory's map: a change of the map that bypasses the
//!    directory's editor drops the whole cache.
//! 3. The shrinker waits for no lock: a thread that charges memory may hold a directory's values.
//! 4. A directory is in use if less than half of the budget was requested from the shrinker since its last
//!    operation. It keeps its memory while all directories together have less than half of the budget:
//!    rebuilding the notes on each leaf makes an insertion several times as slow. If memory is short and the
//!    directories have more than seven sixteenths, they add no notes on further leaves, so that directories
//!    in use rarely reach the half; unused ones are evicted first.
//! 5. The filters of a directory's leaves take up to five sixteenths of the budget: enough for a directory
//!    whose leaves take four times the budget. With them, an insertion need not read its leaf. A directory
//!    that is larger than half of the budget has filters only.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use extant_alloc::Prealloc;
use extant_base::BlockSize;
use extant_base::rank::{self, Mutex};
use extant_base::sync::CachePadded;
use extant_dir::edit::{DirCache, Stats};
use extant_memory::{Budget, Shrinker};

/// Minimum change in bytes that is counted.
const STEP: usize = 4096;
/// Maximum memory of one directory's cache in bytes, excluding filters of leaves and the data for each block.
const ONE_MAX: usize = 64 << 20;
/// Maximum number of directories that one call of the shrinker visits.
const SCAN_MAX: usize = 1 << 12;
/// Number of directories in use after which the shrinker stops.
const SPARED_MAX: usize = 32;
/// Number of operations after which a directory that may not grow checks again.
const ASK_AGAIN: u8 = 32;

/// Caches of one directory; dropping them is harmless.
pub struct DirState {
    pub(crate) cache: DirCache,
    pub(crate) window: Prealloc,
    charged: Charged,
}

/// The charged memory of one directory.
struct Charged {
    memory: Arc<DirMemory>,
    bytes: usize,
    /// The directory is in the list of directories with charged memory.
    is_known: bool,
    /// The value of `asked` at the last operation.
    used_at: u64,
    /// Operations since the last check whether it may grow.
    since_asked: u8,
}

impl DirState {
    /// Statistics of changes of the directory.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Whether it has memory that the shrinker does not evict.
    pub(crate) fn is_in_use(&self) -> bool {
        self.charged.is_known && self.charged.memory.is_recent(self.charged.used_at)
    }

    /// Drops block addresses, because the directory's map was changed without its editor.
    pub(crate) fn forget_places(&mut self) {
        self.cache.clear();
    }
}

/// What has the caches of a directory: its inode.
pub(crate) trait DirHolder: Send + Sync {
    /// Calls `with` with the caches, if there are any. Returns `false`, and does not call it, if they are
    /// locked.
    fn try_dir(&self, with: &mut dyn FnMut(Option<&mut DirState>)) -> bool;
}

/// The memory of all directories' caches.
pub(crate) struct DirMemory {
    budget: Arc<Budget>,
    block_size: BlockSize,
    bytes: AtomicUsize,
    /// Bytes ever requested from the shrinker; used as a clock.
    asked: CachePadded<AtomicU64>,
    /// Directories with charged memory, each once, in the order in which the shrinker visits them.
    known: Mutex<VecDeque<Weak<dyn DirHolder>>, { rank::DIRECTORIES }>,
}

impl DirMemory {
    pub(crate) fn new(budget: &Arc<Budget>, block_size: BlockSize) -> Arc<Self> {
        let made = Arc::new(Self {
            budget: Arc::clone(budget),
            block_size,
            bytes: AtomicUsize::new(0),
            asked: CachePadded::default(),
            known: Mutex::default(),
        });
        let shrinker: Arc<dyn Shrinker> = Arc::<Self>::clone(&made);
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&shrinker);
        budget.register(weak);
        made
    }

    /// Creates empty caches for a directory.
    pub(crate) fn state(self: &Arc<Self>) -> Box<DirState> {
        let limit = self.budget.limit();
        let cache = DirCache::new(ONE_MAX.min(limit / 4))
            .with_filters(limit / 16 * 5)
            .with_notes_up_to(limit / 2 / self.block_size.len());
        Box::new(DirState {
            cache,
            window: Prealloc::new(),
            charged: Charged {
                memory: Arc::clone(self),
                bytes: 0,
                is_known: false,
                used_at: 0,
                since_asked: 0,
            },
        })
    }

    /// Charges the memory of the directory's cache after an operation.
    pub(crate) fn count<H: DirHolder + 'static>(&self, holder: &Arc<H>, state: &mut DirState) {
        let held = state.cache.held_bytes();
        let before = state.charged.bytes;
        state.charged.used_at = self.asked.load(Ordering::Relaxed);
        let is_much = held.abs_diff(before) >= STEP;
        state.charged.since_asked += u8::from(!state.cache.may_grow());
        if is_much || state.charged.since_asked >= ASK_AGAIN {
            state.charged.since_asked = 0;
            state.cache.set_may_grow(self.has_room());
        }
        if !is_much {
            return;
        }
        state.charged.bytes = held;
        if !std::mem::replace(&mut state.charged.is_known, true) {
            let weak = Arc::downgrade(holder);
            self.known.lock().push_back(weak);
        }
        if held < before {
            self.release(before - held);
        } else {
            self.bytes.fetch_add(held - before, Ordering::Relaxed);
            self.budget.charge(held - before);
        }
    }

    /// Whether the caches of directories may grow.
    fn has_room(&self) -> bool {
        let limit = self.budget.limit();
        self.bytes.load(Ordering::Relaxed) < limit / 16 * 7 || self.budget.used() < limit / 8 * 7
    }

    /// Whether little memory was requested since `asked` had this value.
    fn is_recent(&self, used_at: u64) -> bool {
        let since = self.asked.load(Ordering::Relaxed).saturating_sub(used_at);
        since < (self.budget.limit() / 2) as u64
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.release(bytes);
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.memory.release(self.bytes);
    }
}

impl Shrinker for DirMemory {
    fn name(&self) -> &'static str {
        "directory caches"
    }

    fn cached_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: usize) -> usize {
        let (mut freed, mut spared) = (0, 0);
        let scan_max = self.known.lock().len().min(SCAN_MAX);
        for _ in 0..scan_max {
            if freed >= bytes || spared >= SPARED_MAX {
                break;
            }
            let Some(weak) = self.known.lock().pop_front() else { break };
            let Some(holder) = weak.upgrade() else { continue };
            let are_many = self.bytes.load(Ordering::Relaxed).saturating_sub(freed) > self.budget.limit() / 2;
            let mut stays = false;
            let was_free = holder.try_dir(&mut |state| {
                let Some(state) = state else { return };
                if self.is_recent(state.charged.used_at) && !are_many {
                    spared += 1;
                    stays = true;
                    return;
                }
                state.cache.clear();
                freed += std::mem::take(&mut state.charged.bytes);
                state.charged.is_known = false;
            });
            // Locked, so in use now.
            if stays || !was_free {
                self.known.lock().push_back(weak);
            }
        }
        self.asked.fetch_add(bytes.min(self.budget.limit()) as u64, Ordering::Relaxed);
        self.release(freed);
        freed
    }
}
