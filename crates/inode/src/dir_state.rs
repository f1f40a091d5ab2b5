//! What makes changes of a directory fast, and the memory that it takes: charged to the budget, and given back when that is short.
//!
//! Owns: each directory's cache and its window of blocks; who has how much. Does **not** own: what a cache remembers (see `dir`).
//!
//! Invariants
//! 1. What is remembered may be forgotten between two operations at any time: it is made again from the blocks.
//! 2. Where a cache has a block is what the directory's map says: who changes the map otherwise than through the directory's editor has
//!    all forgotten.
//! 3. The shrinker waits for no lock: whoever charges may hold a directory's values.
//! 4. A directory that changed since the shrinker last came by keeps its memory while all together have less than half of the budget:
//!    who has to find out again what is in each leaf needs several times as long for a name. While they have more than three eighths
//!    none remembers more leaves, so that directories in use rarely come to the half; what is not in use goes first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use dir::edit::{DirCache, Stats};
use memory::{Budget, Shrinker};
use parking_lot::Mutex;
use space::Prealloc;

use crate::Node;

/// Less than this is not worth counting.
const STEP: usize = 4096;
/// What one directory remembers at most, in bytes, besides filters of leaves and what it has for each block.
const ONE_MAX: usize = 64 << 20;
/// Directories looked at per call of the shrinker.
const SCAN_MAX: usize = 1 << 12;

/// What makes changes of a directory fast; lost without harm.
pub struct DirState {
    pub(crate) cache: DirCache,
    pub(crate) window: Prealloc,
    charged: Charged,
}

/// Memory of one directory that is charged.
struct Charged {
    memory: Arc<DirMemory>,
    bytes: usize,
    /// It is in the list of those that have something.
    is_known: bool,
    /// An operation was here since the shrinker last came by.
    is_used: bool,
}

impl DirState {
    /// What the directory's changes did.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// The directory's map was changed by another way.
    pub(crate) fn forget_places(&mut self) {
        self.cache.clear();
    }
}

/// The memory of all directories' changers.
pub(crate) struct DirMemory {
    budget: Arc<Budget>,
    bytes: AtomicUsize,
    /// Those that have something charged, each once, in the order in which the shrinker comes by.
    known: Mutex<VecDeque<Weak<Node>>>,
}

impl DirMemory {
    pub(crate) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let made = Arc::new(Self {
            budget: Arc::clone(budget),
            bytes: AtomicUsize::new(0),
            known: Mutex::default(),
        });
        let shrinker: Arc<dyn Shrinker> = Arc::<Self>::clone(&made);
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&shrinker);
        budget.register(weak);
        made
    }

    /// Nothing is remembered yet.
    pub(crate) fn state(self: &Arc<Self>) -> Box<DirState> {
        let limit = self.budget.limit();
        let cache = DirCache::new(ONE_MAX.min(limit / 4)).with_filters(limit / 8);
        Box::new(DirState {
            cache,
            window: Prealloc::new(),
            charged: Charged { memory: Arc::clone(self), bytes: 0, is_known: false, is_used: false },
        })
    }

    /// Counts what the directory's cache takes now, after an operation.
    pub(crate) fn count(&self, node: &Arc<Node>, state: &mut DirState) {
        let held = state.cache.held_bytes();
        let before = state.charged.bytes;
        state.charged.is_used = true;
        let is_much = held.abs_diff(before) >= STEP;
        if is_much || !state.cache.may_grow() {
            state.cache.set_may_grow(self.bytes.load(Ordering::Relaxed) < self.budget.limit() / 8 * 3);
        }
        if !is_much {
            return;
        }
        state.charged.bytes = held;
        if !std::mem::replace(&mut state.charged.is_known, true) {
            self.known.lock().push_back(Arc::downgrade(node));
        }
        if held < before {
            self.release(before - held);
        } else {
            self.bytes.fetch_add(held - before, Ordering::Relaxed);
            self.budget.charge(held - before);
        }
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
        "what changers of directories remember"
    }

    fn cached_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: usize) -> usize {
        let mut freed = 0;
        let scan_max = self.known.lock().len().min(SCAN_MAX);
        for _ in 0..scan_max {
            if freed >= bytes {
                break;
            }
            let Some(weak) = self.known.lock().pop_front() else { break };
            let Some(node) = weak.upgrade() else { continue };
            let are_many = self.bytes.load(Ordering::Relaxed).saturating_sub(freed) > self.budget.limit() / 2;
            match node.try_values() {
                Some(mut values) => {
                    let Some(state) = &mut values.dir else { continue };
                    if std::mem::take(&mut state.charged.is_used) && !are_many {
                        self.known.lock().push_back(weak);
                        continue;
                    }
                    state.cache.clear();
                    freed += std::mem::take(&mut state.charged.bytes);
                    state.charged.is_known = false;
                }
                // In use at this moment.
                None => self.known.lock().push_back(weak),
            }
        }
        self.release(freed);
        freed
    }
}
