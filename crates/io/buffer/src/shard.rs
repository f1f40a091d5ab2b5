//! One shard of the cache: its blocks and their changes, and a clock that chooses blocks to evict.
//!
//! ```text
//! slots:  [ 17 | 4 | 93 | 12 ]     each: bytes, verified as, touched, changed by
//!                ^ hand            as it passes: touched -> untouched, untouched -> evicted
//! ```
//!
//! A caller that accesses a block repeatedly keeps its slot ([`Hint`]) and skips the lookup.
//!
//! Owns: which changes of a block are pending, taken or at home; how many blocks are absent. Does **not**
//! own: the lookup of a slot (see `slots`), the storage of pending changes (see [`crate::pending`]), reading.

mod slots;

use std::collections::HashMap;

use extant_base::salted::Salted;
use extant_base::{Pblk, Tid};

use self::slots::Slots;
use crate::pending::{Batch, Chain, Patching, PendingChanges, Zeros};
use crate::{Bytes, Hint, PendingChange};

/// Absent blocks may have so many times the pending changes of others: each would cost a read.
const ABSENT_PARTS: usize = 8;

/// The result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    /// It is the transaction's first change of the block.
    pub(crate) is_first: bool,
    /// The block is new in the cache.
    pub(crate) is_new: bool,
}

/// The blocks of one shard, and its counters.
pub(crate) struct Shard {
    pub(crate) slots: Slots,
    hand: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evicted: u64,
    /// The device has the changes of transactions up to this one.
    clean_through: Tid,
    /// The device usually holds references to the same bytes.
    are_kept: bool,
    /// Blocks that left after they were changed here: what was read of them before that is out of date.
    evictions: u64,
    /// The transaction that is being taken while the next one already changes blocks; otherwise 0.
    taking: Tid,
    /// Blocks of that transaction that were changed again or dropped before they were taken: their old
    /// version.
    early: HashMap<u64, Taken, Salted>,
    /// Pending changes of the last transaction and the one before, indexed by the last bit of their numbers.
    pending: [PendingChanges; 2],
    /// The most bytes of pending changes.
    pending_max: usize,
    /// Size of a block in bytes.
    block_len: usize,
    /// Absent blocks, and versions of absent blocks that are still to be taken.
    n_absent: usize,
    /// A block that did not have the checksum, or the bytes, that a pending change expected.
    damaged: Option<Pblk>,
}

/// A block as a transaction left it.
#[derive(Clone)]
pub(crate) struct Taken {
    /// Empty while the block is absent.
    pub(crate) bytes: Bytes,
    /// Changes of an absent block that are applied when it is read.
    absent: Chain,
    /// The owner of the change.
    pub(crate) owner: u64,
    /// The block ends in the right checksum: see [`PendingChange`].
    pub(crate) has_sum: bool,
    /// See [`Snapshot`](crate::Snapshot).
    pub(crate) whole_sum: Option<u32>,
}

#[repr(align(64))] // Each access waits for one cache line.
pub(crate) struct Slot {
    block: u64,
    /// Empty if the block is *absent*: it has pending changes, but was not read since it was evicted.
    bytes: Bytes,
    /// The owner that the bytes are verified for; 0 for none.
    verified: u64,
    touched: bool,
    /// The transaction of the last change since the block was read; 0 for none. See [`Shard::clean_through`].
    changed: Tid,
    /// Changes not applied to the bytes yet.
    pending: Chain,
    /// Known zeros in the bytes, since pending changes were last applied.
    zeros: Zeros,
    /// The block ends in the right checksum: see [`PendingChange`].
    has_sum: bool,
    /// The checksum of all bytes, if they did not change since they were stored.
    whole_sum: Option<u32>,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    fn take(&self) -> Taken {
        let Self { verified: owner, has_sum, whole_sum, .. } = *self;
        Taken { bytes: self.bytes.clone(), absent: Chain::EMPTY, owner, has_sum, whole_sum }
    }

    fn is_absent(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops what is known of the bytes before they are changed.
    #[inline]
    fn forget_bytes(&mut self) {
        (self.has_sum, self.zeros, self.whole_sum) = (false, Zeros::default(), None);
    }

    /// The bytes, to be changed by this transaction for this owner. Returns whether it is the transaction's
    /// first change.
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
    pub(crate) fn new(salt: u64, pending_max: usize, block_len: usize) -> Self {
        Self {
            slots: Slots::new(salt),
            hand: 0,
            hits: 0,
            misses: 0,
            evicted: 0,
            clean_through: Tid::NONE,
            are_kept: false,
            evictions: 0,
            taking: Tid::NONE,
            early: HashMap::with_hasher(Salted::new(salt)),
            pending: Default::default(),
            pending_max,
            block_len,
            n_absent: 0,
            damaged: None,
        }
    }

    /// Read this before a block is read from the device, and pass it to [`insert`](Self::insert).
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Applies the pending changes of a block before it is read.
    #[inline]
    fn apply_pending(&mut self, at: usize) {
        if !self.slots[at].pending.is_empty() {
            self.make_changes(at);
        }
    }

    #[cold]
    fn make_changes(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        debug_assert!(!slot.is_absent(), "an absent block is read before its changes are applied");
        let chain = std::mem::replace(&mut slot.pending, Chain::EMPTY);
        let pending = &self.pending[slot.changed.parity()];
        // If a block was freed and changed again in one transaction, which only damage causes, no commit
        // takes its changes. They are dropped with the transaction; the storage may hold changes of another
        // transaction by now.
        if pending.is_of(slot.changed) {
            slot.forget_bytes();
            if !pending.apply(chain, slot.bytes.make_mut()) {
                self.damaged = Some(Pblk(slot.block));
            }
        }
    }

    /// A block with changes that could not be applied: the transaction must not be committed.
    pub(crate) fn damaged(&self) -> Option<Pblk> {
        self.damaged
    }

    /// The bytes, and the owner that they are verified for.
    #[inline]
    pub(crate) fn hit(&mut self, block: Pblk, hint: &mut Hint) -> Option<(Bytes, u64)> {
        let at = self.slots.present(block, hint)?;
        self.apply_pending(at);
        self.hits += 1;
        let slot = &mut self.slots[at];
        slot.touched = true;
        Some((slot.bytes.clone(), slot.verified))
    }

    /// Calls `look` with the bytes of a block. `false` if it is not here or not verified for this owner.
    #[inline]
    pub(crate) fn look(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        look: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let Some(at) = self.slots.present(block, hint) else { return false };
        if self.slots[at].verified != owner {
            return false;
        }
        self.apply_pending(at);
        self.hits += 1;
        let slot = &mut self.slots[at];
        slot.touched = true;
        slot.bytes.prefetch_count();
        look(&slot.bytes);
        true
    }

    /// Whether the block is here, and its bytes were verified for this owner, or changed by an editor that
    /// had verified them.
    #[inline]
    pub(crate) fn is_trusted(&self, block: Pblk, hint: &mut Hint, owner: u64) -> bool {
        self.slots.present(block, hint).is_some_and(|at| self.slots[at].verified == owner)
    }

    /// Prefetches the pending changes of this transaction: they were written some time ago.
    pub(crate) fn prefetch_pending(&self, transaction: Tid) {
        self.pending[transaction.parity()].prefetch(transaction);
    }

    /// Caches bytes that were read since [`evictions`](Self::evictions) was `since`, unless the block is here
    /// by now. Returns the cached bytes, the owner that they are verified for, and whether they are new.
    /// `None`: a changed block left the shard in the meantime, possibly this one, and the bytes may be older
    /// than its change. The caller must read again.
    pub(crate) fn insert(&mut self, block: Pblk, bytes: Bytes, since: u64) -> Option<(Bytes, u64, bool)> {
        let mut hint = Hint::NONE;
        let place = self.slots.place(block, &mut hint);
        if let Some(at) = place.filter(|at| !self.slots[*at].is_absent()) {
            self.apply_pending(at);
            let slot = &self.slots[at];
            return Some((slot.bytes.clone(), slot.verified, false));
        }
        if self.evictions != since {
            return None;
        }
        if let Some(at) = place {
            self.fill_absent(at, bytes);
            self.apply_pending(at);
            let slot = &self.slots[at];
            return Some((slot.bytes.clone(), slot.verified, false));
        }
        self.add(block, bytes.clone());
        Some((bytes, 0, true))
    }

    /// An absent block was read. Its last changes stay pending; those of the transaction that is being taken
    /// are applied, if they are others.
    fn fill_absent(&mut self, at: usize, mut bytes: Bytes) {
        let slot = &self.slots[at];
        let (block, last) = (Pblk(slot.block), slot.pending);
        let early = self.fill_early(block, &mut bytes);
        self.n_absent -= 1;
        let slot = &mut self.slots[at];
        slot.bytes = bytes;
        slot.forget_bytes();
        let pending = &self.pending[slot.changed.parity()];
        // Changes of a block that was freed and changed again in one transaction are dropped with it, as in
        // `make_changes`.
        let is_lost = !last.is_empty() && !pending.is_of(slot.changed);
        let is_sound = match early {
            Some(is_sound) => is_sound,
            None => pending.is_sound(last, &slot.bytes),
        };
        slot.has_sum = is_sound && early.is_none();
        if is_lost || !is_sound {
            // With the changes, a damaged block would get a correct checksum.
            (slot.pending, slot.verified) = (Chain::EMPTY, 0);
        }
        if !is_lost && !is_sound && !last.is_empty() {
            self.damaged = Some(block);
        }
    }

    /// An absent block was read. It may have been read by others in the meantime, or dropped, or made anew.
    pub(crate) fn fill(&mut self, block: Pblk, mut bytes: Bytes) {
        match self.slots.find(block).filter(|at| self.slots[*at].is_absent()) {
            Some(at) => self.fill_absent(at, bytes),
            None => _ = self.fill_early(block, &mut bytes),
        }
    }

    /// Whether the block is absent, with a last change by this transaction.
    pub(crate) fn is_absent_by(&self, block: Pblk, transaction: Tid) -> bool {
        let slot = self.slots.find(block).map(|at| &self.slots[at]);
        slot.is_some_and(|slot| slot.is_absent() && slot.changed == transaction)
    }

    /// Completes the version of an absent block that is still to be taken. `None` if there is none to
    /// complete. Otherwise `bytes` become that version, and the result is whether they were as expected.
    fn fill_early(&mut self, block: Pblk, bytes: &mut Bytes) -> Option<bool> {
        let early = self.early.get_mut(&block.0).filter(|early| early.bytes.is_empty())?;
        let pending = &self.pending[self.taking.parity()];
        let is_sound = pending.is_of(self.taking)
            && pending.is_sound(early.absent, bytes)
            && pending.apply(early.absent, bytes.make_mut());
        if !is_sound {
            self.damaged = Some(block);
        }
        early.bytes = bytes.clone();
        self.n_absent -= 1;
        Some(is_sound)
    }

    /// Whether some blocks are absent.
    pub(crate) fn has_absent(&self) -> bool {
        self.n_absent > 0
    }

    /// Whether the block is to be read before it is [taken](Self::take).
    pub(crate) fn is_to_read(&self, block: Pblk, mut hint: Hint, transaction: Tid) -> bool {
        let is_absent = self
            .slots
            .place(block, &mut hint)
            .is_some_and(|at| self.slots[at].is_absent() && self.slots[at].changed == transaction);
        is_absent || self.taking == transaction && self.is_early_absent(block)
    }

    fn is_early_absent(&self, block: Pblk) -> bool {
        self.early.get(&block.0).is_some_and(|early| early.bytes.is_empty())
    }

    fn add(&mut self, block: Pblk, bytes: Bytes) -> &mut Slot {
        self.slots.push(Slot {
            block: block.0,
            bytes,
            verified: 0,
            touched: true,
            changed: Tid::NONE,
            pending: Chain::EMPTY,
            zeros: Zeros::default(),
            has_sum: false,
            whole_sum: None,
        })
    }

    /// Adds a block that is not here or absent, with bytes made by this transaction, whatever the device has;
    /// with the checksum of all bytes if it is known.
    pub(crate) fn add_changed(
        &mut self,
        block: Pblk,
        (bytes, whole_sum): (Bytes, Option<u32>),
        owner: u64,
        transaction: Tid,
    ) -> Changed {
        let mut hint = Hint::NONE;
        let Some(at) = self.slots.place(block, &mut hint) else {
            let slot = self.add(block, bytes);
            (slot.verified, slot.changed, slot.whole_sum) = (owner, transaction, whole_sum);
            return Changed { is_first: true, is_new: true };
        };
        self.keep_early(at, transaction);
        self.n_absent -= usize::from(self.slots[at].is_absent());
        let slot = &mut self.slots[at];
        (slot.bytes, slot.pending) = (bytes, Chain::EMPTY);
        let (_, is_first) = slot.change_for(owner, transaction);
        slot.whole_sum = whole_sum;
        Changed { is_first, is_new: false }
    }

    /// Records that these bytes passed a verification. Not for a changed block: it belongs to the owner of
    /// the change; with another owner the commit would compute the wrong checksum.
    pub(crate) fn set_verified(&mut self, block: Pblk, bytes: &Bytes, owner: u64) {
        let Some(at) = self.slots.find(block) else { return };
        let slot = &mut self.slots[at];
        if slot.bytes.is(bytes) && slot.changed == Tid::NONE {
            slot.verified = owner;
        }
    }

    /// Changes the bytes of a block: in place, or in a copy if they are shared. Returns whether it is the
    /// transaction's first change of it. `None` if the block is not here.
    #[inline]
    pub(crate) fn edit(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        let at = self.slots.present(block, hint)?;
        self.keep_early(at, transaction);
        self.apply_pending(at);
        let (bytes, is_first) = self.slots[at].change_for(owner, transaction);
        change(bytes);
        Some(is_first)
    }

    /// As [`edit`](Self::edit); `None` also if the block is not verified for this owner.
    #[inline]
    pub(crate) fn edit_trusted(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        let at = self.slots.present(block, hint)?;
        if self.slots[at].verified != owner {
            return None;
        }
        self.edit(block, hint, owner, transaction, change)
    }

    /// As [`edit_trusted`](Self::edit_trusted), but the change is deferred and the bytes are not read. If the
    /// block is not here, it becomes absent; the owner must have verified it earlier. `None` also if there is
    /// no room for more pending changes.
    #[inline]
    pub(crate) fn patch(
        &mut self,
        block: Pblk,
        hint: &mut Hint,
        owner: u64,
        transaction: Tid,
        patch: &PendingChange<'_>,
    ) -> Option<Changed> {
        let Some(at) = self.slots.place(block, hint) else {
            let mut chain = Chain::EMPTY;
            let pending = &mut self.pending[transaction.parity()];
            if !pending.push(
                &mut chain,
                transaction,
                patch,
                (self.block_len, ABSENT_PARTS * self.pending_max),
            ) {
                return None;
            }
            hint.0 = self.slots.len() as u32;
            let slot = self.add(block, Bytes::default());
            (slot.verified, slot.changed, slot.pending) = (owner, transaction, chain);
            self.n_absent += 1;
            return Some(Changed { is_first: true, is_new: true });
        };
        if self.slots[at].verified != owner {
            return None;
        }
        self.keep_early(at, transaction);
        let is_absent = self.slots[at].is_absent();
        if self.slots[at].changed != transaction && !is_absent {
            // Usually there are none: the commit applied them when it took the block.
            self.apply_pending(at);
        }
        let slot = &mut self.slots[at];
        if slot.changed != transaction && !slot.pending.is_empty() {
            return None;
        }
        let pending = &mut self.pending[transaction.parity()];
        let parts = if is_absent { ABSENT_PARTS } else { 1 };
        if !pending.push(&mut slot.pending, transaction, patch, (self.block_len, parts * self.pending_max)) {
            return None;
        }
        slot.touched = true;
        let is_first = std::mem::replace(&mut slot.changed, transaction) != transaction;
        Some(Changed { is_first, is_new: false })
    }

    /// The next transaction starts to change blocks, and this one's are taken from here on.
    pub(crate) fn begin_taking(&mut self, transaction: Tid) {
        self.taking = transaction;
    }

    /// All blocks of that transaction were taken.
    pub(crate) fn end_taking(&mut self) {
        self.taking = Tid::NONE;
        let early = self.early.drain().filter(|(_, early)| early.bytes.is_empty());
        self.n_absent -= early.count();
    }

    /// Keeps the present version of a block if it is still to be taken and `transaction` is another.
    #[inline]
    fn keep_early(&mut self, at: usize, transaction: Tid) {
        if self.taking != Tid::NONE && self.slots[at].changed == self.taking && transaction != self.taking {
            let is_absent = self.slots[at].is_absent();
            if !is_absent {
                self.apply_pending(at);
            } else if self.early.contains_key(&self.slots[at].block) {
                // A change for which there was no room came before.
                return;
            }
            let slot = &mut self.slots[at];
            let absent = std::mem::replace(&mut slot.pending, Chain::EMPTY);
            self.early.insert(slot.block, Taken { absent, ..slot.take() });
            self.n_absent += usize::from(is_absent);
        }
    }

    /// Adds to `batch` the blocks with pending changes of this transaction: they are applied in copies.
    pub(crate) fn begin_patching<T: Copy>(
        &mut self,
        blocks: &[(Pblk, Hint, T)],
        transaction: Tid,
        batch: &mut Batch,
    ) {
        for (number, &(block, mut hint, _)) in blocks.iter().enumerate() {
            let Some(at) = self.slots.place(block, &mut hint) else { continue };
            let slot = &self.slots[at];
            if !slot.pending.is_empty() && slot.changed == transaction && !slot.is_absent() {
                let pending = (&self.pending[transaction.parity()], slot.pending);
                batch.take((number, block), &slot.bytes, (slot.has_sum, slot.zeros), pending);
            }
        }
    }

    /// Puts a copy in the place of its block, if the block has not changed since. Returns the result of
    /// `log_sum` for it.
    pub(crate) fn end_patching(
        &mut self,
        patching: &mut Patching,
        transaction: Tid,
        mut hint: Hint,
    ) -> Option<u32> {
        let at = self.slots.place(patching.block, &mut hint)?;
        let slot = &mut self.slots[at];
        let is_same =
            slot.changed == transaction && slot.pending == patching.chain && slot.bytes.is(&patching.older);
        if !is_same {
            return None;
        }
        (slot.bytes, slot.pending) = (std::mem::take(&mut patching.copy), Chain::EMPTY);
        (slot.has_sum, slot.zeros, slot.whole_sum) = (true, patching.zeros, None);
        patching.log_sum
    }

    /// A block as this transaction left it, if that version is still available.
    pub(crate) fn take(&mut self, block: Pblk, hint: &mut Hint, transaction: Tid) -> Option<Taken> {
        if let Some(at) = self.slots.present(block, hint)
            && self.slots[at].changed == transaction
        {
            self.apply_pending(at);
            return Some(self.slots[at].take());
        }
        // Stays in the map: the caller may list a block twice.
        let early = self.early.get(&block.0).filter(|early| !early.bytes.is_empty());
        if self.taking == transaction { early.cloned() } else { None }
    }

    /// The device has all changes up to this transaction. `are_kept`: it holds references to the same bytes,
    /// unless they were copied.
    pub(crate) fn set_clean_through(&mut self, transaction: Tid, are_kept: bool) {
        (self.clean_through, self.are_kept) = (transaction, are_kept);
    }

    /// Drops a block, even if it was changed. Returns whether it was here.
    pub(crate) fn forget(&mut self, block: Pblk) -> bool {
        let Some(at) = self.slots.find(block) else { return false };
        self.keep_early(at, Tid::NONE);
        self.leave(at);
        true
    }

    /// Moves the hand over at most `looks` slots, and evicts at most `wanted` blocks that were not touched
    /// since its last pass; with `is_forced`, touched ones too if there are too few. Blocks referenced
    /// outside the cache and the device are skipped. (If the device could hold references to the bytes but
    /// does not, one or two other references go unnoticed.)
    pub(crate) fn evict(&mut self, wanted: usize, looks: usize, is_forced: bool) -> Vec<Bytes> {
        let mut evicted = Vec::with_capacity(wanted);
        let begin = self.hand;
        self.pass(wanted, looks, &mut evicted);
        if is_forced && evicted.len() < wanted {
            self.hand = begin;
            self.pass(wanted, looks, &mut evicted);
        }
        self.evicted += evicted.len() as u64;
        evicted
    }

    fn pass(&mut self, wanted: usize, looks: usize, evicted: &mut Vec<Bytes>) {
        for _ in 0..looks.min(2 * self.slots.len()) {
            if evicted.len() == wanted || self.slots.len() == 0 {
                break;
            }
            self.hand %= self.slots.len();
            let slot = &mut self.slots[self.hand];
            let is_dirty = slot.changed > self.clean_through;
            // The device may hold two references: at home and in the log.
            let holders = if self.are_kept && slot.changed != Tid::NONE { 3 } else { 1 };
            if slot.touched || is_dirty || slot.bytes.holders() > holders {
                slot.touched = false;
                self.hand += 1;
                continue;
            }
            // The slot that moves into the gap is examined next.
            evicted.push(self.leave(self.hand).bytes);
        }
    }

    /// Removes the slot `at`; the last one moves into its place.
    fn leave(&mut self, at: usize) -> Slot {
        let slot = self.slots.remove(at);
        self.n_absent -= usize::from(slot.is_absent());
        self.evictions += u64::from(slot.changed != Tid::NONE);
        slot
    }

    #[cfg(test)]
    pub(crate) fn set_pending_max(&mut self, bytes: usize) {
        self.pending_max = bytes;
    }
}
