//! Folio memory: allocated from the system once, then recycled.
//!
//! Fresh memory of 2 MiB costs 512 page faults, about as much as copying into it; recycled memory costs
//! nothing. So the memory of an evicted folio stays in the pool for the next folio of the same order. The
//! last one freed is used first, because its cache lines are the warmest. If another order needs the room,
//! recycled memory returns to the system.
//!
//! Invariants
//! 1. `held_bytes` is all memory from the system: in use and in the pool. All of it is charged to the budget.
//! 2. Memory from the pool has arbitrary content. Code must not read a byte of it before filling that byte.
//! 3. [`Memory`] returns to the pool when its last holder drops it.
//! 4. With a small budget each folio is a mapping of its own, so that memory freed by [`Pool::trim`] returns
//!    to the system at once. A general allocator packs folios with other blocks of their size, which live
//!    longer: one metadata block in use keeps 16 freed folios, and no budget counts them. Large budgets use
//!    the allocator: there huge pages matter more.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_memory::Budget;
use memmap2::MmapMut;
use parking_lot::Mutex;

use crate::Order;

/// Maximum number of mappings for folios: half of what Linux allows a process by default
/// (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 32_768;

/// Zeroed memory from the system.
enum Bytes {
    Heap(Box<[u8]>),
    Mapped(MmapMut),
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Heap(Box::default())
    }
}

impl Bytes {
    fn new(order: Order, is_mapped: bool) -> Self {
        let len = order.bytes() as usize;
        // Falls back to the heap if the process has as many mappings as the system allows.
        match is_mapped.then(|| MmapMut::map_anon(len)) {
            Some(Ok(mapping)) => Self::Mapped(mapping),
            // The allocator returns large blocks as zeros that take no memory until they are touched.
            Some(Err(_)) | None => Self::Heap(vec![0; len].into_boxed_slice()),
        }
    }
}

/// Bytes of a folio, or of a copy made for writeback.
pub(crate) struct Memory {
    bytes: Bytes,
    order: Order,
    pool: Arc<Pool>,
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Heap(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Heap(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.bytes), self.order);
    }
}

/// The pool of recycled folio memory.
pub(crate) struct Pool {
    bytes_max: u64,
    budget: Arc<Budget>,
    waiting: [Mutex<Vec<Bytes>>; Order::COUNT],
    waiting_bytes: AtomicU64,
    held_bytes: AtomicU64,
}

impl Pool {
    pub(crate) fn new(bytes_max: u64, budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            budget,
            waiting: Default::default(),
            waiting_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
        })
    }

    /// Bytes in use and in the pool.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in the pool.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// By how many bytes the limit would be exceeded with `more` bytes.
    pub(crate) fn over_by(&self, more: u64) -> u64 {
        (self.held_bytes() + more).saturating_sub(self.bytes_max)
    }

    /// Recycled memory of this order, if there is any.
    pub(crate) fn recycled(self: &Arc<Self>, order: Order) -> Option<Memory> {
        let bytes = self.waiting[order.index()].lock().pop()?;
        self.waiting_bytes.fetch_sub(order.bytes(), Ordering::Relaxed);
        Some(Memory { bytes, order, pool: self.clone() })
    }

    /// Fresh memory from the system, whatever the limit. May call shrinkers: see
    /// `extant_memory::Budget::charge`.
    pub(crate) fn fresh(self: &Arc<Self>, order: Order) -> Memory {
        self.held_bytes.fetch_add(order.bytes(), Ordering::Relaxed);
        self.budget.charge(order.bytes() as usize);
        let has_mappings = self.budget.limit() / order.bytes() as usize <= MAPPINGS_MAX;
        let is_mapped = self.budget.is_small() && has_mappings;
        let bytes = Bytes::new(order, is_mapped);
        Memory { bytes, order, pool: self.clone() }
    }

    /// Returns recycled memory to the system, the largest first, until that is `bytes` or the pool is empty.
    /// Returns the number of bytes freed.
    pub(crate) fn trim(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        for (order, waiting) in self.waiting.iter().enumerate().rev() {
            let size = Order::new(order as u8).bytes();
            while freed < bytes {
                // Freed outside of the lock: it may be a system call.
                let Some(memory) = waiting.lock().pop() else { break };
                drop(memory);
                freed += size;
                self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
                self.held_bytes.fetch_sub(size, Ordering::Relaxed);
            }
        }
        self.budget.release(freed as usize);
        freed
    }

    fn put(&self, bytes: Bytes, order: Order) {
        if self.held_bytes() > self.bytes_max {
            self.held_bytes.fetch_sub(order.bytes(), Ordering::Relaxed);
            self.budget.release(order.bytes() as usize);
            return;
        }
        self.waiting_bytes.fetch_add(order.bytes(), Ordering::Relaxed);
        self.waiting[order.index()].lock().push(bytes);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_recycled_within_its_order_and_charged_while_it_waits() {
        for limit in [64 << 20, extant_memory::SMALL_MAX] {
            recycles(&Budget::new(limit));
        }
    }

    fn recycles(budget: &Arc<Budget>) {
        let pool = Pool::new(4 << 20, Arc::clone(budget));
        drop(pool.fresh(Order::MAX));
        assert_eq!((pool.held_bytes(), pool.waiting_bytes(), budget.used()), (2 << 20, 2 << 20, 2 << 20));
        assert!(pool.recycled(Order::MIN).is_none());
        let again = pool.recycled(Order::MAX).unwrap();
        assert_eq!((again.len(), pool.waiting_bytes()), (2 << 20, 0));
        let others = [pool.fresh(Order::MAX), pool.fresh(Order::MAX)];
        assert_eq!(pool.over_by(0), 2 << 20);
        drop(others);
        assert_eq!(
            (pool.held_bytes(), pool.waiting_bytes()),
            (4 << 20, 2 << 20),
            "beyond the limit nothing waits"
        );
        assert_eq!(pool.trim(1), 2 << 20);
        drop(again);
        drop(pool);
        assert_eq!(budget.used(), 0);
    }

    /// A folio of a small budget takes whole pages that it does not share; a large budget uses the allocator.
    #[test]
    fn folios_of_small_budgets_are_mappings() {
        let is_mapped = |limit, order| {
            let pool = Pool::new(u64::MAX, Budget::new(limit));
            let mut memory = pool.fresh(order);
            assert!(memory.len() as u64 == order.bytes() && memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
            matches!(memory.bytes, Bytes::Mapped(_))
        };
        for order in (0..Order::COUNT as u8).map(Order::new) {
            assert!(is_mapped(8 << 20, order) && is_mapped(128 << 20, order));
            assert_eq!(
                is_mapped(extant_memory::SMALL_MAX - 1, order),
                order > Order::MIN,
                "at most {MAPPINGS_MAX} mappings"
            );
            assert!(!is_mapped(extant_memory::SMALL_MAX, order));
        }
    }
}
