//! One shard of the cache: a table of blocks and the clock that chooses which go.
//!
//! ```text
//! slots: block -> bytes, verified as, touched, changed by
//! ring:  [ 17 | 4 | 93 | 12 ]      the hand passes: touched -> untouched, untouched -> gone
//!               ^ hand
//! ```
//!
//! Invariant: the ring names each block of the slots once, and nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use base::Pblk;
use base::salted::Salted;

use crate::Bytes;

/// The blocks of one shard, and counts of what happened to them.
pub(crate) struct Shard {
    slots: HashMap<u64, Slot, Salted>,
    ring: Vec<u64>,
    hand: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evicted: u64,
    /// Blocks that left after they were changed here: what was read of them before that is out of date.
    departed: u64,
}

struct Slot {
    bytes: Bytes,
    /// The owner that the bytes were verified as; 0 for nobody yet.
    verified: u64,
    touched: bool,
    /// Its place in the ring.
    at: usize,
    /// The transaction that changed the bytes last, while the device has not got them; else 0.
    changed: u64,
    /// It was changed since it came in, be the device up to date or not.
    is_edited: bool,
    /// The device has these very bytes, not a copy: it holds them too.
    is_at_home: bool,
}

impl Shard {
    pub(crate) fn new(salt: u64) -> Self {
        let slots = HashMap::with_hasher(Salted::new(salt));
        Self { slots, ring: Vec::new(), hand: 0, hits: 0, misses: 0, evicted: 0, departed: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// To be asked before a block is read from the device, and told to [`insert`](Self::insert).
    pub(crate) fn departed(&self) -> u64 {
        self.departed
    }

    pub(crate) fn contains(&self, block: Pblk) -> bool {
        self.slots.contains_key(&block.0)
    }

    /// The bytes and the owner that they were verified as.
    #[inline]
    pub(crate) fn hit(&mut self, block: Pblk) -> Option<(Bytes, u64)> {
        let slot = self.slots.get_mut(&block.0)?;
        slot.touched = true;
        self.hits += 1;
        Some((slot.bytes.clone(), slot.verified))
    }

    /// Keeps what was read of a block since [`departed`](Self::departed) was `since`, unless the block came meanwhile: what is
    /// kept, the owner it was verified as, and is it new? `None`: something that was changed here left meanwhile, maybe this
    /// block, and the bytes are from before its change. Read again.
    pub(crate) fn insert(&mut self, block: Pblk, bytes: Bytes, since: u64) -> Option<(Bytes, u64, bool)> {
        if let Some(slot) = self.slots.get(&block.0) {
            return Some((slot.bytes.clone(), slot.verified, false));
        }
        if self.departed != since {
            return None;
        }
        self.add(block, bytes.clone());
        Some((bytes, 0, true))
    }

    fn add(&mut self, block: Pblk, bytes: Bytes) -> &mut Slot {
        let at = self.ring.len();
        self.ring.push(block.0);
        let slot =
            Slot { bytes, verified: 0, touched: true, at, changed: 0, is_edited: false, is_at_home: false };
        self.slots.entry(block.0).insert_entry(slot).into_mut()
    }

    /// A block that is not here: whatever the device has, this transaction made these bytes.
    pub(crate) fn add_changed(&mut self, block: Pblk, bytes: Bytes, owner: u64, transaction: u64) {
        let slot = self.add(block, bytes);
        (slot.verified, slot.changed, slot.is_edited) = (owner, transaction, true);
    }

    /// Notes that these very bytes passed a verification.
    pub(crate) fn set_verified(&mut self, block: Pblk, bytes: &Bytes, owner: u64) {
        if let Some(slot) = self.slots.get_mut(&block.0).filter(|slot| Arc::ptr_eq(&slot.bytes, bytes)) {
            slot.verified = owner;
        }
    }

    /// Changes the bytes of a block that is here, in place or, when somebody holds them, in a copy. Is this the transaction's
    /// first change of it? `None`: not here.
    #[inline]
    pub(crate) fn edit(
        &mut self,
        block: Pblk,
        owner: u64,
        transaction: u64,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        let slot = self.slots.get_mut(&block.0)?;
        slot.touched = true;
        slot.verified = owner;
        slot.is_edited = true;
        slot.is_at_home = false;
        let bytes = Arc::make_mut(&mut slot.bytes);
        change(bytes);
        Some(std::mem::replace(&mut slot.changed, transaction) != transaction)
    }

    /// Changes bytes that were taken: here too, if nobody changed the block since. They are copied only if somebody else holds
    /// them.
    pub(crate) fn seal(&mut self, block: Pblk, mut taken: Bytes, seal: impl FnOnce(&mut [u8])) -> Bytes {
        match self.slots.get_mut(&block.0).filter(|slot| Arc::ptr_eq(&slot.bytes, &taken)) {
            Some(slot) => {
                // The slot's is the last one then, and under the lock nobody gets another.
                drop(taken);
                let own: &mut Box<[u8]> = Arc::make_mut(&mut slot.bytes);
                seal(own);
                slot.bytes.clone()
            }
            None => {
                let own: &mut Box<[u8]> = Arc::make_mut(&mut taken);
                seal(own);
                taken
            }
        }
    }

    /// The device has what this transaction made of the block; these very bytes if `is_at_home`.
    pub(crate) fn set_clean(&mut self, block: Pblk, transaction: u64, is_at_home: bool) {
        if let Some(slot) = self.slots.get_mut(&block.0).filter(|slot| slot.changed == transaction) {
            (slot.changed, slot.is_at_home) = (0, is_at_home);
        }
    }

    /// Drops a block, changed or not. Was it here?
    pub(crate) fn forget(&mut self, block: Pblk) -> bool {
        let Some(slot) = self.slots.remove(&block.0) else { return false };
        self.departed += u64::from(slot.is_edited);
        self.leave_ring(slot.at);
        true
    }

    /// Moves the hand over at most `looks` blocks and takes out those untouched since it last came by, `wanted` at most,
    /// but none that somebody holds besides the device.
    pub(crate) fn evict(&mut self, wanted: usize, looks: usize) -> Vec<Bytes> {
        let mut evicted = Vec::with_capacity(wanted);
        for _ in 0..looks.min(2 * self.ring.len()) {
            if evicted.len() == wanted || self.ring.is_empty() {
                break;
            }
            self.hand %= self.ring.len();
            let block = self.ring[self.hand];
            let slot = self.slots.get_mut(&block).expect("the ring names slots");
            let holders = 1 + usize::from(slot.is_at_home);
            if slot.touched || slot.changed != 0 || Arc::strong_count(&slot.bytes) > holders {
                slot.touched = false;
                self.hand += 1;
                continue;
            }
            // What moves into the gap is looked at next.
            self.leave_ring(self.hand);
            let Some(slot) = self.slots.remove(&block) else { continue };
            self.departed += u64::from(slot.is_edited);
            evicted.push(slot.bytes);
        }
        self.evicted += evicted.len() as u64;
        evicted
    }

    /// Takes out the place `at`; the last one moves into it.
    fn leave_ring(&mut self, at: usize) {
        self.ring.swap_remove(at);
        if let Some(slot) = self.ring.get(at).and_then(|moved| self.slots.get_mut(moved)) {
            slot.at = at;
        }
    }

    #[cfg(test)]
    pub(crate) fn assert_whole(&self) {
        assert_eq!(self.slots.len(), self.ring.len());
        assert!(self.ring.iter().enumerate().all(|(at, block)| self.slots[block].at == at));
    }
}
