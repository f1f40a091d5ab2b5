//! What makes changes of a directory fast, and the memory that it takes: charged to the budget, and given back when that is short.
//!
//! Owns: each directory's cache, the places of its blocks, its window of blocks; who has how much. Does **not** own: what a cache
//! remembers (see `dir`).
//!
//! Invariants
//! 1. What is remembered may be forgotten between two operations at any time: it is made again from the blocks.
//! 2. A block's place is what the directory's map says: who changes the map otherwise than through [`Places`] forgets them all.
//! 3. The shrinker waits for no lock: whoever charges may hold a directory's values.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::{Lblk, Pblk};
use buffer::Hint;
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
    pub(crate) places: Places,
    pub(crate) window: Prealloc,
    charged: Charged,
}

/// Where a directory's blocks are, by their logical numbers, as far as somebody asked: no map is searched, nor the cache of blocks.
#[derive(Default)]
pub(crate) struct Places {
    known: Vec<Known>,
    /// Of a block far behind all that were asked for before, which only damage leads to: nothing is remembered of it.
    spare: Known,
}

/// Blocks that a directory may be longer than twice what was asked for: an index may name any.
const FAR: usize = 1 << 20;

/// A block's place.
#[derive(Clone, Copy)]
#[repr(align(32))] // Not in two lines of the processor's cache.
pub(crate) struct Known {
    /// Its number; 0 when nobody asked yet.
    pub(crate) block: Pblk,
    pub(crate) hint: Hint,
    /// Where its bytes were in memory when they were changed last: good for asking the processor for them, and for nothing else.
    pub(crate) bytes_at: usize,
}

impl Default for Known {
    fn default() -> Self {
        Self::new(Pblk(0))
    }
}

impl Known {
    fn new(block: Pblk) -> Self {
        Self { block, hint: Hint::NONE, bytes_at: 0 }
    }
}

impl Places {
    pub(crate) fn get(&mut self, lblk: Lblk) -> Option<&mut Known> {
        self.known.get_mut(lblk.0 as usize).filter(|known| known.block.0 != 0)
    }

    /// Asks the processor for what is known of a block's place.
    pub(crate) fn ask_for(&self, lblk: Lblk) {
        self.known.get(lblk.0 as usize).into_iter().for_each(buffer::ask_for_start);
    }

    /// Notes what the map says of a block.
    pub(crate) fn set(&mut self, lblk: Lblk, block: Pblk) -> &mut Known {
        let at = lblk.0 as usize;
        if at >= self.known.len() {
            if at > 2 * self.known.len() + FAR {
                self.spare = Known::new(block);
                return &mut self.spare;
            }
            let more = at + 1 - self.known.len();
            buffer::make_room(&mut self.known, more);
            self.known.resize(at + 1, Known::new(Pblk(0)));
        }
        let known = &mut self.known[at];
        *known = Known::new(block);
        known
    }

    /// Blocks from this one on are the directory's no more.
    pub(crate) fn cut(&mut self, lblk: Lblk) {
        self.known.truncate(lblk.0 as usize);
    }

    fn held_bytes(&self) -> usize {
        self.known.capacity() * size_of::<Known>()
    }
}

/// Memory of one directory that is charged.
struct Charged {
    memory: Arc<DirMemory>,
    bytes: usize,
    /// It is in the list of those that have something.
    is_known: bool,
}

impl DirState {
    /// What the directory's changes did.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// The directory's map was changed by another way.
    pub(crate) fn forget_places(&mut self) {
        self.places = Places::default();
    }
}

/// The memory of all directories' changers.
pub(crate) struct DirMemory {
    budget: Arc<Budget>,
    bytes: AtomicUsize,
    /// Those that have something charged, each once; those that do longest first.
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
            places: Places::default(),
            window: Prealloc::new(),
            charged: Charged { memory: Arc::clone(self), bytes: 0, is_known: false },
        })
    }

    /// Counts what the directory's cache takes now, after an operation.
    pub(crate) fn count(&self, node: &Arc<Node>, state: &mut DirState) {
        let held = state.cache.held_bytes() + state.places.held_bytes();
        let before = state.charged.bytes;
        if held.abs_diff(before) < STEP {
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
            match node.try_values() {
                Some(mut values) => {
                    if let Some(state) = &mut values.dir {
                        state.cache.clear();
                        state.forget_places();
                        freed += std::mem::take(&mut state.charged.bytes);
                        state.charged.is_known = false;
                    }
                }
                // In use at this moment.
                None => self.known.lock().push_back(weak),
            }
        }
        self.release(freed);
        freed
    }
}
