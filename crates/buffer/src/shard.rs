//! One shard of the cache: a table of blocks and the clock that chooses which go.
//!
//! ```text
//! places: block -> its slot
//! slots:  [ 17 | 4 | 93 | 12 ]     each: bytes, verified as, touched, changed by
//!                ^ hand            it passes: touched -> untouched, untouched -> gone
//! ```
//!
//! Frequent users keep the slot ([`Hint`]) and find the block without a search.
//!
//! Invariant: each slot's block has its place in the table, and nothing else has one.

use std::collections::HashMap;

use extant_base::salted::Salted;
use extant_base::{Pblk, Tid};

use crate::waiting::{Batch, Chain, Making, Waiting, Zeros};
use crate::{Bytes, Hint, PendingChange};

/// The blocks of one shard, and counts of what happened to them.
pub(crate) struct Shard {
    places: HashMap<u64, u32, Salted>,
    slots: Vec<Slot>,
    hand: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evicted: u64,
    /// The device has what transactions changed up to this one.
    clean_through: Tid,
    /// And keeps the very bytes that it was given, as a rule.
    are_kept: bool,
    /// Blocks that left after they were changed here: what was read of them before that is out of date.
    evictions: u64,
    /// The transaction whose blocks are being taken, while the next one changes blocks already; else 0.
    taking: Tid,
    /// Of its blocks those that were changed again, or dropped, before they were taken: as they were.
    early: HashMap<u64, Taken, Salted>,
    /// Changes that wait, of the last transaction and the one before, by the last bit of their numbers.
    waiting: [Waiting; 2],
    /// Bytes of them at most.
    waiting_max: usize,
    /// A block that differs from the bytes noted with a pending change.
    damaged: Option<Pblk>,
}

/// A block as a transaction left it.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(crate) bytes: Bytes,
    /// The owner that it was changed as.
    pub(crate) owner: u64,
    /// It ends in the right checksum: see [`PendingChange`].
    pub(crate) has_sum: bool,
    /// See [`Snapshot`](crate::Snapshot).
    pub(crate) whole_sum: Option<u32>,
}

#[repr(align(64))] // Each access waits for one cache line.
pub(crate) struct Slot {
    block: u64,
    bytes: Bytes,
    /// The owner that the bytes were verified for; 0 for none yet.
    verified: u64,
    touched: bool,
    /// The transaction that changed the bytes last since the block came in; 0 for none. See
    /// [`Shard::clean_through`].
    changed: Tid,
    /// Changes that its bytes do not have yet.
    waiting: Chain,
    /// Known of its bytes, since they got changes that waited.
    zeros: Zeros,
    /// It ends in the right checksum: see [`PendingChange`].
    has_sum: bool,
    /// The checksum of all its bytes, which nothing changed since they were put.
    whole_sum: Option<u32>,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    fn take(&self) -> Taken {
        let Self { verified: owner, has_sum, whole_sum, .. } = *self;
        Taken { bytes: self.bytes.clone(), owner, has_sum, whole_sum }
    }

    /// A change invalidates all notes on the bytes.
    #[inline]
    fn forget_bytes(&mut self) {
        (self.has_sum, self.zeros, self.whole_sum) = (false, Zeros::default(), None);
    }

    /// Its bytes, to be changed by this transaction for this owner; is that the transaction's first change?
    #[inline]
    fn change_for(&mut self, owner: u64, transaction: Tid) -> (&mut [u8], bool) {
        self.touched = true;
        self.verified = owner;
        let is_first = std::mem::replace(&mut self.changed, transaction) != transaction;
        self.forget_bytes();
        (self.bytes.make_mut(), is_first)
    }
}

impl Shard {
    pub(crate) fn new(salt: u64, waiting_max: usize) -> Self {
        let places = HashMap::with_hasher(Salted::new(salt));
        let early = HashMap::with_hasher(Salted::new(salt));
        let (slots, hand) = (Vec::new(), 0);
        Self {
            places,
            slots,
            hand,
            hits: 0,
            misses: 0,
            evicted: 0,
            clean_through: Tid::NONE,
            are_kept: false,
            evictions: 0,
            taking: Tid::NONE,
            early,
            waiting: Default::default(),
            waiting_max,
            damaged: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Taken before a block is read from the device, and passed to [`insert`](Self::insert).
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    pub(crate) fn contains(&self, block: Pblk) -> bool {
        self.places.contains_key(&block.0)
    }

    /// The place of a block that is here; the hint is right then.
    #[inline]
    fn place(&self, block: Pblk, hint: &mut Hint) -> Option<usize> {
        let hinted = hint.0 as usize;
        if self.slots.get(hinted).is_some_and(|slot| slot.block == block.0) {
            return Some(hinted);
        }
        hint.0 = *self.places.get(&block.0)?;
        Some(hint.0 as usize)
    }

    /// Applies the pending changes of a cached block before it is read.
    #[inline]
    fn make_whole(&mut self, at: usize) {
        if !self.slots[at].waiting.is_empty() {
            self.make_changes(at);
        }
    }

    #[cold]
    fn make_changes(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        let chain = std::mem::replace(&mut slot.waiting, Chain::EMPTY);
        let waiting = &self.waiting[slot.changed.parity()];
        // Of a block that was freed and changed again in one transaction, which only damage leads to, no
        // commit takes the changes: they are lost with the transaction, and what is in their place by now is
        // another's.
        if waiting.is_of(slot.changed) {
            slot.forget_bytes();
            if !waiting.make(chain, slot.bytes.make_mut()) {
                self.damaged = Some(Pblk(slot.block));
            }
        }
    }

    /// A block whose changes could not be made: the transaction must not be committed.
    pub(crate) fn damaged(&self) -> Option<Pblk> {
        self.damaged
    }

    fn slot_at(&mut self, block: Pblk, mut hint: Hint) -> Option<&mut Slot> {
        let at = self.place(block, &mut hint)?;
        self.slots.get_mut(at)
    }

    /// The bytes and the owner that they were verified as.
    #[inline]
    pub(crate) fn hit(&mut self, block: Pblk, hint: &mut Hint) -> Option<(Bytes, u64)> {
        let at = self.place(block, hint)?;
        self.make_whole(at);
        self.hits += 1;
        let slot = &mut self.slots[at];
        slot.touched = true;
        Some((slot.bytes.clone(), slot.verified))
    }

    /// Shows the bytes of a block that is here and was verified as this owner's. `false`: it is not, or was
    /// not.
    #[inline]
    pub(crate) fn look(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        look: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let Some(at) = self.place(block, hint) else { return false };
        if self.slots[at].verified != owner {
            return false;
        }
        self.make_whole(at);
        self.hits += 1;
        let slot = &mut self.slots[at];
        slot.touched = true;
        slot.bytes.prefetch_count();
        look(&slot.bytes);
        true
    }

    /// Prefetches the entries of blocks that are used soon, all together: a block's count of holders can be
    /// changed only when it is in the CPU cache, and each miss would be waited for before the next one
    /// starts.
    pub(crate) fn look_ahead<T>(&self, blocks: &[(Pblk, Hint, T)]) {
        let there = blocks.iter().filter_map(|(block, hint, _)| {
            self.slots.get(hint.0 as usize).filter(|slot| slot.block == block.0)
        });
        let holders = there.map(|slot| {
            // Read all of, soon: where it is is looked up meanwhile.
            if !slot.waiting.is_empty() {
                extant_device::prefetch_ends(&slot.bytes);
            }
            slot.bytes.holders()
        });
        std::hint::black_box(holders.sum::<usize>());
    }

    /// Is the block cached, and were its bytes verified for this owner, or changed by a user that had
    /// verified them?
    #[inline]
    pub(crate) fn is_trusted(&self, block: Pblk, hint: &mut Hint, owner: u64) -> bool {
        self.place(block, hint).is_some_and(|at| self.slots[at].verified == owner)
    }

    /// Prefetches the slot of a block with a known hint.
    pub(crate) fn prefetch_slot(&self, hint: Hint) {
        self.slots.get(hint.0 as usize).into_iter().for_each(extant_device::prefetch_start);
    }

    /// Prefetches the pending changes of this transaction: they were left some time ago.
    pub(crate) fn prefetch_pending(&self, transaction: Tid) {
        self.waiting[transaction.parity()].prefetch(transaction);
    }

    /// Where the slots are: for prefetching one only.
    pub(crate) fn slots_at(&self) -> usize {
        self.slots.as_ptr().addr()
    }

    /// Keeps what was read of a block since [`evictions`](Self::evictions) was `since`, unless the block came
    /// meanwhile: what is kept, the owner it was verified as, and is it new? `None`: something that was
    /// changed here left meanwhile, maybe this block, and the bytes are from before its change. Read again.
    pub(crate) fn insert(&mut self, block: Pblk, bytes: Bytes, since: u64) -> Option<(Bytes, u64, bool)> {
        let mut hint = Hint::NONE;
        if let Some(at) = self.place(block, &mut hint) {
            self.make_whole(at);
            let slot = &self.slots[at];
            return Some((slot.bytes.clone(), slot.verified, false));
        }
        if self.evictions != since {
            return None;
        }
        self.add(block, bytes.clone());
        Some((bytes, 0, true))
    }

    fn add(&mut self, block: Pblk, bytes: Bytes) -> &mut Slot {
        let at = self.slots.len();
        extant_device::make_room(&mut self.slots, 1);
        self.slots.push(Slot {
            block: block.0,
            bytes,
            verified: 0,
            touched: true,
            changed: Tid::NONE,
            waiting: Chain::EMPTY,
            zeros: Zeros::default(),
            has_sum: false,
            whole_sum: None,
        });
        self.places.insert(block.0, at as u32);
        &mut self.slots[at]
    }

    /// A block that is not here: whatever the device has, this transaction made these bytes; with the
    /// checksum of all of them, if that is known.
    pub(crate) fn add_changed(
        &mut self,
        block: Pblk,
        (bytes, whole_sum): (Bytes, Option<u32>),
        owner: u64,
        transaction: Tid,
    ) {
        let slot = self.add(block, bytes);
        (slot.verified, slot.changed) = (owner, transaction);
        slot.whole_sum = whole_sum;
    }

    /// Notes that these very bytes passed a verification. Not of a block that was changed here: it is whose
    /// change that was, and another would have it sealed as something else.
    pub(crate) fn set_verified(&mut self, block: Pblk, bytes: &Bytes, owner: u64) {
        let mut slot = self.slot_at(block, Hint::NONE).filter(|slot| slot.bytes.is(bytes));
        if let Some(slot) = slot.as_mut().filter(|slot| slot.changed == Tid::NONE) {
            slot.verified = owner;
        }
    }

    /// Changes the bytes of a cached block, in place or, if they have other holders, in a copy. Is this the
    /// transaction's first change of it? `None`: not cached.
    #[inline]
    pub(crate) fn edit(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        let at = self.place(block, hint)?;
        self.keep_early(at, transaction);
        self.make_whole(at);
        let (bytes, is_first) = self.slots[at].change_for(owner, transaction);
        change(bytes);
        Some(is_first)
    }

    /// As [`edit`](Self::edit), if the block is this owner's: else `None` too.
    #[inline]
    pub(crate) fn edit_trusted(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        let at = self.place(block, hint)?;
        if self.slots[at].verified != owner {
            return None;
        }
        self.edit(block, hint, owner, transaction, change)
    }

    /// As [`edit_trusted`](Self::edit_trusted), without reading the bytes: the change stays pending. `None`
    /// also if there is no room for more of them.
    #[inline]
    pub(crate) fn patch(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        transaction: Tid,
        patch: &PendingChange<'_>,
    ) -> Option<bool> {
        let at = self.place(block, hint)?;
        if self.slots[at].verified != owner {
            return None;
        }
        self.keep_early(at, transaction);
        if self.slots[at].changed != transaction {
            // Usually there are none: they were made when they were taken.
            self.make_whole(at);
        }
        let slot = &mut self.slots[at];
        let waiting = &mut self.waiting[transaction.parity()];
        if !waiting.push(&mut slot.waiting, transaction, patch, (slot.bytes.len(), self.waiting_max)) {
            return None;
        }
        slot.touched = true;
        Some(std::mem::replace(&mut slot.changed, transaction) != transaction)
    }

    /// Another transaction begins to change blocks, and this one's are taken from here on.
    pub(crate) fn begin_taking(&mut self, transaction: Tid) {
        self.taking = transaction;
    }

    /// All of that transaction's blocks were taken.
    pub(crate) fn end_taking(&mut self) {
        self.taking = Tid::NONE;
        self.early.clear();
    }

    /// Keeps a block as it is, if it is still to be taken and `transaction` is another.
    #[inline]
    fn keep_early(&mut self, at: usize, transaction: Tid) {
        if self.taking != Tid::NONE && self.slots[at].changed == self.taking && transaction != self.taking {
            self.make_whole(at);
            let slot = &self.slots[at];
            self.early.insert(slot.block, slot.take());
        }
    }

    /// Takes of these blocks those that have changes waiting, and which this transaction changed last: to get
    /// them in copies.
    pub(crate) fn begin_making<T: Copy>(
        &mut self,
        blocks: &[(Pblk, Hint, T)],
        transaction: Tid,
        batch: &mut Batch,
    ) {
        for (number, &(block, mut hint, _)) in blocks.iter().enumerate() {
            let Some(at) = self.place(block, &mut hint) else { continue };
            let slot = &self.slots[at];
            if !slot.waiting.is_empty() && slot.changed == transaction {
                let waiting = (&self.waiting[transaction.parity()], slot.waiting);
                batch.take((number, block), &slot.bytes, (slot.has_sum, slot.zeros), waiting);
            }
        }
    }

    /// Replaces the block by its copy, if it is unchanged. Returns the notes on it.
    pub(crate) fn end_making(&mut self, making: &mut Making, transaction: Tid, hint: Hint) -> Option<u32> {
        let slot = self.slot_at(making.block, hint)?;
        let is_same =
            slot.changed == transaction && slot.waiting == making.chain && slot.bytes.is(&making.older);
        if !is_same {
            return None;
        }
        (slot.bytes, slot.waiting) = (std::mem::take(&mut making.copy), Chain::EMPTY);
        (slot.has_sum, slot.zeros, slot.whole_sum) = (true, making.zeros, None);
        making.told
    }

    /// A block as this transaction left it, if that is still to be had.
    pub(crate) fn take(&mut self, block: Pblk, hint: &mut Hint, transaction: Tid) -> Option<Taken> {
        if let Some(at) = self.place(block, hint)
            && self.slots[at].changed == transaction
        {
            self.make_whole(at);
            return Some(self.slots[at].take());
        }
        // Kept: a caller that passes one block twice finds it twice.
        if self.taking == transaction { self.early.get(&block.0).cloned() } else { None }
    }

    /// The device has what transactions changed up to this one; `are_kept`: these very bytes, where they were
    /// not copied.
    pub(crate) fn set_clean_through(&mut self, transaction: Tid, are_kept: bool) {
        (self.clean_through, self.are_kept) = (transaction, are_kept);
    }

    /// Drops a block, changed or not. Was it here?
    pub(crate) fn forget(&mut self, block: Pblk) -> bool {
        let Some(at) = self.places.get(&block.0) else { return false };
        let at = *at as usize;
        self.keep_early(at, Tid::NONE);
        self.leave(at);
        true
    }

    /// Moves the clock hand over at most `looks` blocks and evicts those untouched since its last visit, at
    /// most `wanted`, but none with holders other than the device. (For bytes that the device may have but
    /// does not, one or two holders are missed.)
    pub(crate) fn evict(&mut self, wanted: usize, looks: usize) -> Vec<Bytes> {
        let mut evicted = Vec::with_capacity(wanted);
        for _ in 0..looks.min(2 * self.slots.len()) {
            if evicted.len() == wanted || self.slots.is_empty() {
                break;
            }
            self.hand %= self.slots.len();
            let slot = &mut self.slots[self.hand];
            let is_dirty = slot.changed > self.clean_through;
            // The device may hold them twice: at home, and in the log.
            let holders = if self.are_kept && slot.changed != Tid::NONE { 3 } else { 1 };
            if slot.touched || is_dirty || slot.bytes.holders() > holders {
                slot.touched = false;
                self.hand += 1;
                continue;
            }
            // What moves into the gap is looked at next.
            evicted.push(self.leave(self.hand).bytes);
        }
        self.evicted += evicted.len() as u64;
        evicted
    }

    /// Takes out the slot `at`; the last one moves into its place.
    fn leave(&mut self, at: usize) -> Slot {
        let slot = self.slots.swap_remove(at);
        self.places.remove(&slot.block);
        self.evictions += u64::from(slot.changed != Tid::NONE);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(moved.block, at as u32);
        }
        slot
    }

    #[cfg(test)]
    pub(crate) fn assert_whole(&self) {
        assert_eq!(self.slots.len(), self.places.len());
        assert!(self.slots.iter().enumerate().all(|(at, slot)| self.places[&slot.block] as usize == at));
    }
}
