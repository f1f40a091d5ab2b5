//! The chunks of a tree by their keys.
//!
//! ```text
//! index    0 -> 2    640 -> 0    9000 -> 1        key of a chunk -> its slot; none while chunks are few
//! slots    [640.. ] [9000.. ] [0.. ]              dense: the last chunk moves into a freed slot
//! ```
//!
//! Owns: the search for the chunk of a block, the memory of chunks. Does **not** own: the entries in the
//! chunks and the choice of keys ([`super::Tree`]), the lists of chunks ([`super::Ages`]).
//!
//! Invariants
//! 1. Keys differ. `index`, if any, has the key of every chunk; more than [`INDEXED`] chunks have an index.
//! 2. `hint` may be wrong in any way; it is checked before use.
//! 3. A change of a chunk's entries that may change their capacity is made by [`Chunks::resize`], so that
//!    `entry_bytes` is correct.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::chunk::{Chunk, allocated};
use crate::slots::Slots;

/// Up to this many chunks are searched without an index.
const INDEXED: usize = 8;

pub(crate) struct Chunks {
    slots: Slots,
    #[expect(clippy::box_collection, reason = "one word where there are few chunks")]
    index: Option<Box<BTreeMap<u32, u32>>>,
    hint: AtomicU32,
    /// Bytes of the entries on the heap.
    entry_bytes: usize,
}

impl Chunks {
    pub(crate) fn new() -> Self {
        Self { slots: Slots::None, index: None, hint: AtomicU32::new(0), entry_bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Chunk> {
        self.slots.get(slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.slots.iter()
    }

    /// Bytes on the heap, with allocator overhead; those of the index are estimated from a typical node fill.
    pub(crate) fn bytes(&self) -> usize {
        // A node has eleven keys and slots, two thirds of them in use; at least one node.
        let of_index =
            |index: &BTreeMap<u32, u32>| allocated(size_of_val(index)) + (index.len() * 16).max(112);
        self.slots.bytes() + self.index.as_deref().map_or(0, of_index) + self.entry_bytes
    }

    /// The slot of the chunk that has `lblk`. Requires at least one chunk.
    pub(crate) fn slot_of(&self, lblk: u32) -> usize {
        if self.slots.len() == 1 {
            return 0;
        }
        let hint = self.hint.load(Relaxed) as usize;
        if let Some(chunk) = self.slots.get(hint)
            && chunk.key <= lblk
            && chunk.entries.last().is_some_and(|last| lblk <= last.lblk)
        {
            return hint;
        }
        let slot = match &self.index {
            Some(index) => {
                let found = index.range(..=lblk).next_back().or_else(|| index.first_key_value());
                found.map_or(0, |(_, slot)| *slot)
            }
            None => match self.last_key(|key| key <= lblk) {
                Some(slot) => slot as u32,
                None => self.first_key(|_| true).unwrap_or(0) as u32,
            },
        };
        self.hint.store(slot, Relaxed);
        slot as usize
    }

    /// The slot of the first chunk with a larger key.
    pub(crate) fn slot_after(&self, key: u32) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.first_key(|of_chunk| of_chunk > key);
        };
        index.range((Excluded(key), Unbounded)).next().map(|(_, slot)| *slot as usize)
    }

    /// The slot of the last chunk with a smaller key.
    pub(crate) fn slot_before(&self, key: u32) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.last_key(|of_chunk| of_chunk < key);
        };
        index.range(..key).next_back().map(|(_, slot)| *slot as usize)
    }

    /// The slot of the chunk with the smallest key that satisfies `want`; for few chunks.
    fn first_key(&self, want: impl Fn(u32) -> bool) -> Option<usize> {
        let chunks = self.slots.iter().enumerate().filter(|(_, chunk)| want(chunk.key));
        chunks.min_by_key(|(_, chunk)| chunk.key).map(|(slot, _)| slot)
    }

    /// The slot of the chunk with the largest key that satisfies `want`; for few chunks.
    fn last_key(&self, want: impl Fn(u32) -> bool) -> Option<usize> {
        let chunks = self.slots.iter().enumerate().filter(|(_, chunk)| want(chunk.key));
        chunks.max_by_key(|(_, chunk)| chunk.key).map(|(slot, _)| slot)
    }

    /// Adds a chunk with a new key. Returns its slot, which is the last one.
    pub(crate) fn push(&mut self, chunk: Chunk) -> usize {
        let (slot, key) = (self.slots.len(), chunk.key);
        if slot >= INDEXED || self.index.is_some() {
            let chunks = &self.slots;
            let keys = || chunks.iter().enumerate().map(|(slot, chunk)| (chunk.key, slot as u32)).collect();
            let taken = self.index.get_or_insert_with(|| Box::new(keys())).insert(key, slot as u32);
            debug_assert!(taken.is_none(), "two chunks with the key {key}");
        }
        self.entry_bytes += chunk.bytes();
        self.slots.push(chunk);
        slot
    }

    /// Removes a chunk. The last chunk moves into its slot.
    pub(crate) fn swap_remove(&mut self, slot: usize) -> Chunk {
        let gone = self.slots.swap_remove(slot);
        self.entry_bytes -= gone.bytes();
        if self.slots.len() <= INDEXED / 2 {
            self.index = None;
        }
        if let Some(index) = &mut self.index {
            index.remove(&gone.key);
            if let Some(place) = self.slots.get(slot).and_then(|moved| index.get_mut(&moved.key)) {
                *place = slot as u32;
            }
        }
        gone
    }

    /// Changes a chunk's entries, and with them its memory.
    pub(crate) fn resize(&mut self, slot: usize, how: impl FnOnce(&mut Chunk)) {
        let chunk = &mut self.slots[slot];
        let before = chunk.bytes();
        how(chunk);
        self.entry_bytes = self.entry_bytes + chunk.bytes() - before;
    }

    /// Changes the key of a chunk. Its order among the others must stay.
    pub(crate) fn rekey(&mut self, slot: usize, key: u32) {
        let old = std::mem::replace(&mut self.slots[slot].key, key);
        if let Some(index) = &mut self.index {
            index.remove(&old);
            index.insert(key, slot as u32);
        }
    }

    /// Checks the index and the memory. Returns all keys with their slots, in order.
    ///
    /// # Panics
    /// If an invariant is violated; the message says which.
    pub(crate) fn check(&self) -> Vec<(u32, usize)> {
        let mut keys: Vec<_> = self.slots.iter().enumerate().map(|(slot, chunk)| (chunk.key, slot)).collect();
        keys.sort_unstable();
        let index = self.index.as_deref().map(|index| index.iter().map(|(key, slot)| (*key, *slot as usize)));
        let index = index.map(Iterator::collect::<Vec<_>>);
        assert!(index.is_some() || keys.len() <= INDEXED, "{} chunks without an index", keys.len());
        assert!(index.is_none_or(|index| index == keys), "the index names every chunk by its key");
        assert_eq!(self.entry_bytes, self.slots.iter().map(Chunk::bytes).sum::<usize>(), "bytes");
        keys
    }
}

impl Index<usize> for Chunks {
    type Output = Chunk;

    fn index(&self, slot: usize) -> &Chunk {
        &self.slots[slot]
    }
}

impl IndexMut<usize> for Chunks {
    fn index_mut(&mut self, slot: usize) -> &mut Chunk {
        &mut self.slots[slot]
    }
}
