//! The entries of one inode, in chunks.
//!
//! Owns: the order of entries, merging, splitting, memory per entry. Does **not** own: the search for a chunk
//! ([`Chunks`]), locks, reservations, statistics, the choice of what to reclaim (see `policy`).
//!
//! Invariants
//! 1. Entries are in order, disjoint, not empty; adjacent entries that can be merged are merged, unless
//!    merging is off.
//! 2. A chunk has the blocks from its key to the next chunk's key: an entry is in the chunk of its first
//!    block. The first chunk also has the blocks below its key.
//! 3. A chunk that lost entries is merged with a neighbor if both together have at most [`FEW`] entries. So
//!    chunks that took part in removals are not small on average, which bounds the memory per entry.

mod ages;
mod chunks;

pub(crate) use self::ages::{Ages, whose_turn};
pub(crate) use self::chunks::Chunks;
use crate::chunk::{Chunk, ENTRIES_MAX, Item, NONE, allocated};
use crate::entry::{Entry, Packed};
use crate::fifo::Fifo;

/// Two adjacent chunks with at most this many entries together are merged.
const FEW: usize = 58;
/// A full chunk is split at the new entry if that is this near to an end: so sequential writes leave full
/// chunks.
const NEAR: usize = 8;

/// The order of reclaim that the tree keeps with its entries.
pub(crate) enum Order {
    /// None: reclaim walks the tree.
    Plain,
    /// Lists of entries: es-ilist, es-gc.
    Lists(Box<Fifo>),
    /// Lists of chunks: es-chunk.
    Ages(Ages),
}

/// What to do with an entry during a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep,
    /// Keep it, but clear the referenced bit.
    Clear,
    Erase,
    /// Stop before it.
    Stop,
}

/// A place of an entry; valid until the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) slot: usize,
    pub(crate) at: usize,
}

pub(crate) struct Tree {
    pub(crate) chunks: Chunks,
    entries: u32,
    reclaimable: u32,
    pub(crate) order: Order,
}

impl Tree {
    pub(crate) fn new(order: Order) -> Self {
        Self { chunks: Chunks::new(), entries: 0, reclaimable: 0, order }
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Number of reclaimable entries.
    pub(crate) fn reclaimable(&self) -> u32 {
        self.reclaimable
    }

    /// Bytes on the heap, with allocator overhead.
    pub(crate) fn bytes(&self) -> usize {
        let lists = match &self.order {
            Order::Lists(fifo) => allocated(size_of::<Fifo>()) + fifo.bytes(),
            _ => 0,
        };
        self.chunks.bytes() + lists
    }

    // ---- finding ----

    /// The first entry that ends after `lblk`: the one that has it, or the next.
    pub(crate) fn seek(&self, lblk: u32) -> Option<At> {
        if self.chunks.is_empty() {
            return None;
        }
        let slot = self.chunks.slot_of(lblk);
        let chunk = &self.chunks[slot];
        let at = chunk.first_after(lblk);
        if at > 0 && chunk.entries[at - 1].end() > lblk {
            return Some(At { slot, at: at - 1 });
        }
        // The last entry of the previous chunk may reach past this chunk's key.
        if at == 0
            && let Some(before) = self.chunks.slot_before(chunk.key)
            && self.chunks[before].entries.last().is_some_and(|last| last.end() > lblk)
        {
            return Some(At { slot: before, at: self.chunks[before].len() - 1 });
        }
        self.skip_chunk_end(At { slot, at })
    }

    /// Returns the place itself, or the first one of the next chunk if it is past the last entry of its
    /// chunk.
    fn skip_chunk_end(&self, place: At) -> Option<At> {
        if place.at < self.chunks[place.slot].len() {
            return Some(place);
        }
        self.chunks.slot_after(self.chunks[place.slot].key).map(|slot| At { slot, at: 0 })
    }

    pub(crate) fn next(&self, place: At) -> Option<At> {
        self.skip_chunk_end(At { at: place.at + 1, ..place })
    }

    pub(crate) fn get(&self, place: At) -> Packed {
        self.chunks[place.slot].entries[place.at]
    }

    /// Marks an entry as found.
    pub(crate) fn refer(&self, place: At) {
        self.chunks[place.slot].refer(place.at);
    }

    /// All entries from the first one that ends after `lblk`.
    pub(crate) fn iter_from(&self, lblk: u32) -> impl Iterator<Item = Entry> + '_ {
        let mut place = self.seek(lblk);
        std::iter::from_fn(move || {
            let here = place?;
            place = self.next(here);
            Some(self.get(here).entry())
        })
    }

    // ---- changing ----

    /// Inserts an entry where there is none. With `merge`, merges it with adjacent entries if possible.
    pub(crate) fn insert(&mut self, entry: &Entry, merge: bool) {
        debug_assert!(entry.is_sound());
        debug_assert!(self.seek(entry.lblk.0).is_none_or(|at| self.get(at).lblk >= entry.end()));
        let left = (merge && entry.lblk.0 > 0).then(|| self.seek(entry.lblk.0 - 1)).flatten();
        let left = left.filter(|at| self.get(*at).entry().can_merge(entry));
        let right = merge.then(|| self.seek(entry.lblk.0)).flatten();
        let right = right.filter(|at| entry.can_merge(&self.get(*at).entry()));
        match (left, right) {
            (None, None) => self.put(Item::new(Packed::of(entry))),
            (Some(left), None) => {
                let whole = self.get(left).entry();
                self.change(left, &Entry { len: whole.len + entry.len, ..whole });
            }
            (None, Some(right)) => {
                let whole = self.get(right).entry();
                self.change(right, &Entry { len: whole.len + entry.len, ..*entry });
            }
            (Some(left), Some(right)) => {
                let (first, last) = (self.get(left).entry(), self.get(right).entry());
                let gone = self.erase(right.slot, right.at);
                self.change(left, &Entry { len: first.len + entry.len + last.len, ..first });
                let chunk = &mut self.chunks[left.slot];
                if gone.referenced {
                    chunk.refer(left.at);
                }
                chunk.protected |= u64::from(gone.protected) << left.at;
                self.refile(left.slot);
                self.merge_or_trim(right.slot, true);
            }
        }
    }

    /// Removes `from..to`. Calls `lost` for every run of delayed blocks in it, in order.
    pub(crate) fn remove(&mut self, from: u32, to: u32, lost: &mut dyn FnMut(u32, u32)) {
        while let Some(place) = self.seek(from) {
            let packed = self.get(place);
            if packed.lblk >= to {
                break;
            }
            let mut gone = |from: u32, to: u32| {
                if packed.is_delayed() {
                    lost(from, to);
                }
            };
            let entry = packed.entry();
            match (packed.lblk < from, packed.end() > to) {
                (true, true) => {
                    gone(from, to);
                    let mut item = self.chunks[place.slot].item(place.at);
                    self.change(place, &entry.part(packed.lblk, from));
                    // The larger part keeps the bits: a write into a hole leaves the smaller part of it.
                    if packed.end() - to < from - packed.lblk {
                        item = Item::new(packed);
                    } else {
                        self.make_new(place);
                    }
                    self.put(Item { packed: Packed::of(&entry.part(to, packed.end())), ..item });
                    break;
                }
                (true, false) => {
                    gone(from, packed.end());
                    self.change(place, &entry.part(packed.lblk, from));
                }
                (false, true) => {
                    gone(packed.lblk, to);
                    self.change(place, &entry.part(to, packed.end()));
                    break;
                }
                (false, false) => {
                    let chunk = &self.chunks[place.slot];
                    let whole = chunk.entries[place.at..].iter().take_while(|entry| entry.end() <= to);
                    let mut mask = 0;
                    for (ahead, entry) in whole.enumerate() {
                        mask |= 1 << (place.at + ahead);
                        if entry.is_delayed() {
                            lost(entry.lblk, entry.end());
                        }
                    }
                    self.erase_all(place.slot, mask);
                    self.merge_or_trim(place.slot, true);
                }
            }
        }
    }

    /// Removes all reclaimable entries. Returns the number of entries.
    pub(crate) fn clear_reclaimable(&mut self) -> u32 {
        let before = self.entries;
        let mut slot = self.chunks.get(0).map(|_| self.chunks.slot_of(0));
        while let Some(at) = slot {
            let key = self.chunks[at].key;
            self.erase_all(at, self.chunks[at].reclaimable());
            self.merge_or_trim(at, false);
            slot = self.chunks.slot_after(key);
        }
        before - self.entries
    }

    /// Visits the entries that begin at or after `from`, one by one, until `each` returns [`Verdict::Stop`].
    /// Returns the block of the entry before which it stopped; `None` if there are no more.
    pub(crate) fn walk(&mut self, from: u32, mut each: impl FnMut(&Packed, bool) -> Verdict) -> Option<u32> {
        let mut slot = self.chunks.get(0).map(|_| self.chunks.slot_of(from));
        let mut stopped = None;
        while let Some(slot_now) = slot {
            let chunk = &mut self.chunks[slot_now];
            let key = chunk.key;
            let mut at = chunk.entries.partition_point(|entry| entry.lblk < from);
            let mut changed = false;
            while let Some(packed) = self.chunks[slot_now].entries.get(at) {
                let referenced = self.chunks[slot_now].referenced() >> at & 1 == 1;
                match each(packed, referenced) {
                    Verdict::Keep => at += 1,
                    Verdict::Clear => {
                        self.chunks[slot_now].forget_references(1 << at);
                        at += 1;
                    }
                    Verdict::Erase => {
                        self.erase(slot_now, at);
                        changed = true;
                    }
                    Verdict::Stop => {
                        stopped = Some(packed.lblk);
                        break;
                    }
                }
            }
            if changed {
                // Merges only with the previous chunk: entries not yet visited must not move into a visited
                // chunk.
                self.merge_or_trim(slot_now, false);
            }
            if stopped.is_some() {
                break;
            }
            slot = self.chunks.slot_after(key);
        }
        stopped
    }

    // ---- below ----

    /// Puts an entry into its chunk; makes room first.
    fn put(&mut self, mut item: Item) {
        let lblk = item.packed.lblk;
        if let Order::Lists(fifo) = &mut self.order
            && !item.packed.is_delayed()
        {
            match item.id {
                NONE => item.id = fifo.push(lblk),
                id => fifo.moved(id, lblk),
            }
        }
        self.entries += 1;
        self.reclaimable += u32::from(!item.packed.is_delayed());
        if self.chunks.is_empty() {
            self.add_chunk(Chunk::new(0, matches!(self.order, Order::Lists(_))));
        }
        let slot = self.chunks.slot_of(lblk);
        if self.chunks[slot].key > lblk {
            self.chunks.rekey(slot, 0);
        }
        let at = self.chunks[slot].first_after(lblk);
        if self.chunks[slot].len() < ENTRIES_MAX {
            self.put_at(slot, at, &item);
            return;
        }
        let key = self.chunks[slot].key;
        if at == ENTRIES_MAX
            && let Some(next) = self.chunks.slot_after(key)
            && self.chunks[next].len() < ENTRIES_MAX
        {
            self.chunks.rekey(next, lblk);
            self.put_at(next, 0, &item);
        } else if at == 0
            && let Some(before) = self.chunks.slot_before(key)
            && self.chunks[before].len() < ENTRIES_MAX
        {
            self.chunks.rekey(slot, self.chunks[slot].entries[0].lblk);
            let end = self.chunks[before].len();
            self.put_at(before, end, &item);
        } else {
            let near_an_end = !(NEAR..=ENTRIES_MAX - NEAR).contains(&at);
            let cut = if near_an_end { at } else { ENTRIES_MAX / 2 };
            let to_the_right = at > cut || (at == cut && cut > ENTRIES_MAX / 2);
            let right_key = match self.chunks[slot].entries.get(cut) {
                Some(first) if !(to_the_right && at == cut) => first.lblk,
                _ => lblk,
            };
            let mut right = Chunk::new(NONE, false);
            self.chunks.resize(slot, |chunk| {
                right = chunk.split(cut, right_key);
                chunk.trim();
            });
            self.refile(slot);
            let new = self.add_chunk(right);
            match to_the_right {
                true => self.put_at(new, at - cut, &item),
                false => self.put_at(slot, at, &item),
            }
        }
    }

    fn put_at(&mut self, slot: usize, at: usize, item: &Item) {
        self.chunks.resize(slot, |chunk| chunk.insert(at, item));
        self.refile(slot);
    }

    /// Changes the ends of an entry; its status and its neighbors stay.
    fn change(&mut self, place: At, to: &Entry) {
        let chunk = &mut self.chunks[place.slot];
        let old = std::mem::replace(&mut chunk.entries[place.at], Packed::of(to));
        debug_assert_eq!(old.status(), to.status);
        if let Order::Lists(fifo) = &mut self.order {
            fifo.moved(chunk.id(place.at), to.lblk.0);
        }
        let (key, last) = (chunk.key, place.at + 1 == chunk.len());
        if to.lblk.0 < key {
            self.chunks.rekey(place.slot, to.lblk.0);
        } else if last
            && old.lblk < to.lblk.0
            && let Some(next) = self.chunks.slot_after(key)
            && self.chunks[next].key <= to.lblk.0
        {
            // The entry reached past the next chunk's key and now begins there: move the key up.
            self.chunks.rekey(next, self.chunks[next].entries[0].lblk);
        }
    }

    /// Resets an entry to never found, with a new node: another entry has taken over its bits and its node.
    fn make_new(&mut self, place: At) {
        let chunk = &mut self.chunks[place.slot];
        chunk.forget_references(1 << place.at);
        chunk.protected &= !(1 << place.at);
        let lblk = chunk.entries[place.at].lblk;
        if let (Order::Lists(fifo), Some(ids)) = (&mut self.order, &mut chunk.ids)
            && ids[place.at] != NONE
        {
            ids[place.at] = fifo.push(lblk);
        }
        self.refile(place.slot);
    }

    /// Removes one entry. The caller merges or trims the chunk afterwards.
    pub(crate) fn erase(&mut self, slot: usize, at: usize) -> Item {
        let item = self.chunks[slot].remove(at);
        self.entries -= 1;
        self.reclaimable -= u32::from(!item.packed.is_delayed());
        if let Order::Lists(fifo) = &mut self.order {
            fifo.unlink(item.id);
        }
        item
    }

    /// Removes several entries of a chunk. The caller merges or trims the chunk afterwards.
    pub(crate) fn erase_all(&mut self, slot: usize, mask: u64) {
        let chunk = &mut self.chunks[slot];
        self.entries -= mask.count_ones();
        self.reclaimable -= (mask & !chunk.kept).count_ones();
        if let Order::Lists(fifo) = &mut self.order {
            let mut left = mask;
            while left != 0 {
                fifo.unlink(chunk.id(left.trailing_zeros() as usize));
                left &= left - 1;
            }
        }
        // A chunk that loses all entries is cleared without moving an entry.
        if mask != chunk.all() {
            chunk.remove_all(mask);
        } else {
            chunk.clear();
        }
    }

    /// Frees memory after a removal and keeps invariant 3: merges the chunk with the previous one or, with
    /// `forward`, with the next one. Returns whether it was merged.
    pub(crate) fn merge_or_trim(&mut self, slot: usize, forward: bool) -> bool {
        let (len, key) = (self.chunks[slot].len(), self.chunks[slot].key);
        if len == 0 {
            self.drop_chunk(slot);
            return false;
        }
        if len < FEW {
            if let Some(before) = self.chunks.slot_before(key)
                && self.chunks[before].len() + len <= FEW
            {
                self.join(before, slot);
                return true;
            }
            if forward
                && let Some(behind) = self.chunks.slot_after(key)
                && self.chunks[behind].len() + len <= FEW
            {
                self.join(slot, behind);
                return true;
            }
        }
        self.chunks.resize(slot, Chunk::trim);
        self.refile(slot);
        false
    }

    fn join(&mut self, left: usize, right: usize) {
        let taken = self.drop_chunk(right);
        // The last chunk has moved to the slot of the right one.
        let left = if left == self.chunks.len() { right } else { left };
        self.chunks.resize(left, |chunk| {
            chunk.append(taken);
            chunk.trim();
        });
        self.refile(left);
    }

    fn add_chunk(&mut self, chunk: Chunk) -> usize {
        let slot = self.chunks.push(chunk);
        self.refile(slot);
        slot
    }

    /// Removes a chunk. The last chunk moves into its slot.
    pub(crate) fn drop_chunk(&mut self, slot: usize) -> Chunk {
        self.unlink(slot);
        let gone = self.chunks.swap_remove(slot);
        if slot < self.chunks.len() {
            self.moved(self.chunks.len(), slot);
        }
        gone
    }

    /// Checks the tree against its invariants.
    ///
    /// # Panics
    /// If one is violated; the message says which.
    pub(crate) fn check(&self, merge: bool) {
        let keys = self.chunks.check();
        let (mut entries, mut reclaimable, mut last) = (0, 0, None::<Entry>);
        for (at, (key, slot)) in keys.iter().enumerate() {
            let chunk = &self.chunks[*slot];
            assert!((1..=ENTRIES_MAX).contains(&chunk.len()), "{} entries", chunk.len());
            assert!(chunk.entries.capacity() < chunk.len() + GRAIN_MAX, "room for too many");
            assert!(chunk.entries[0].lblk >= *key, "key {key} is behind {}", chunk.entries[0].lblk);
            for (bit, packed) in chunk.entries.iter().enumerate() {
                let entry = packed.entry();
                assert!(entry.is_sound(), "{entry:?}");
                assert!(last.is_none_or(|last| last.end() <= entry.lblk.0), "{last:?} before {entry:?}");
                assert!(!merge || last.is_none_or(|last| !last.can_merge(&entry)), "{last:?} and {entry:?}");
                assert!(
                    keys.get(at + 1).is_none_or(|(next, _)| packed.lblk < *next),
                    "{entry:?} belongs behind"
                );
                assert_eq!(chunk.kept >> bit & 1 == 1, packed.is_delayed(), "{entry:?}");
                last = Some(entry);
            }
            assert_eq!(
                (chunk.kept | chunk.protected | chunk.young | chunk.referenced()) & !chunk.all(),
                0,
                "bits without an owner"
            );
            entries += chunk.len() as u32;
            reclaimable += chunk.reclaimable().count_ones();
        }
        assert_eq!((self.entries, self.reclaimable), (entries, reclaimable), "counts");
        match &self.order {
            Order::Plain => {}
            Order::Lists(fifo) => fifo.check(&self.chunks),
            Order::Ages(_) => self.check_ages(),
        }
    }
}

/// Spare capacity of a chunk that `check` rejects.
const GRAIN_MAX: usize = crate::chunk::GRAIN + 1;
