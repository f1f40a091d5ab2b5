//! The table of a shard: which blocks are here, and in which slots.
//!
//! Owns: the slots, and the map from blocks to them. Does **not** own: what a slot says of its block, and
//! which block leaves (see the parent module).
//!
//! Invariant: the map has each slot's block, with the number of that slot, and nothing else.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use extant_base::Pblk;
use extant_base::salted::Salted;

use super::Slot;
use crate::Hint;

pub(crate) struct Slots {
    places: HashMap<u64, u32, Salted>,
    slots: Vec<Slot>,
}

impl Slots {
    pub(super) fn new(salt: u64) -> Self {
        Self { places: HashMap::with_hasher(Salted::new(salt)), slots: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot of a block, without a hint.
    pub(super) fn find(&self, block: Pblk) -> Option<usize> {
        self.places.get(&block.0).map(|at| *at as usize)
    }

    /// The slot of a block; updates the hint. `None` if the block is not here.
    #[inline]
    pub(super) fn place(&self, block: Pblk, hint: &mut Hint) -> Option<usize> {
        let hinted = hint.0 as usize;
        if self.slots.get(hinted).is_some_and(|slot| slot.block == block.0) {
            return Some(hinted);
        }
        hint.0 = *self.places.get(&block.0)?;
        Some(hint.0 as usize)
    }

    /// As [`place`](Self::place), but `None` also for an absent block.
    #[inline]
    pub(super) fn present(&self, block: Pblk, hint: &mut Hint) -> Option<usize> {
        self.place(block, hint).filter(|at| !self.slots[*at].is_absent())
    }

    /// Whether the block's bytes are here.
    pub(crate) fn contains(&self, block: Pblk) -> bool {
        let mut hint = Hint::NONE;
        self.present(block, &mut hint).is_some()
    }

    pub(super) fn push(&mut self, slot: Slot) -> &mut Slot {
        let at = self.slots.len();
        extant_device::make_room(&mut self.slots, 1);
        self.places.insert(slot.block, at as u32);
        self.slots.push(slot);
        &mut self.slots[at]
    }

    /// Removes the slot `at`; the last one moves into its place.
    pub(super) fn remove(&mut self, at: usize) -> Slot {
        let slot = self.slots.swap_remove(at);
        self.places.remove(&slot.block);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(moved.block, at as u32);
        }
        slot
    }

    /// Prefetches the slot into the CPU's cache, if the hint is known.
    pub(crate) fn prefetch(&self, hint: Hint) {
        self.slots.get(hint.0 as usize).into_iter().for_each(extant_device::prefetch_start);
    }

    /// Prefetches the reference counts of blocks that are needed soon, all together. A count can be changed
    /// only once its cache line has arrived; changing them one by one would wait for each line in turn.
    pub(crate) fn prefetch_counts<T>(&self, blocks: &[(Pblk, Hint, T)]) {
        let present = blocks.iter().filter_map(|(block, hint, _)| {
            self.slots.get(hint.0 as usize).filter(|slot| slot.block == block.0)
        });
        let holders = present.map(|slot| {
            // All bytes are read soon. Meanwhile their addresses are looked up.
            if !slot.pending.is_empty() {
                extant_device::prefetch_ends(&slot.bytes);
            }
            slot.bytes.holders()
        });
        std::hint::black_box(holders.sum::<usize>());
    }

    /// The address of the slots; only for prefetching one.
    pub(crate) fn address(&self) -> usize {
        self.slots.as_ptr().addr()
    }

    #[cfg(test)]
    pub(crate) fn assert_whole(&self) {
        assert_eq!(self.slots.len(), self.places.len());
        assert!(self.slots.iter().enumerate().all(|(at, slot)| self.places[&slot.block] as usize == at));
    }
}

impl Index<usize> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, at: usize) -> &Slot {
        &self.slots[at]
    }
}

impl IndexMut<usize> for Slots {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.slots[at]
    }
}
