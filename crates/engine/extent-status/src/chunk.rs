//! Up to 64 entries in one allocation, with a few bits of state for each.
//!
//! ```text
//! entries   | 10+1 W | 11+1 D | 12+1 D | 13+9 H | room for fewer than four more |
//! kept           0        1        1        0        delayed: must not be evicted
//! referenced     0        0        0        1        found since the last visit; set by readers
//! protected      0        0        0        1        found before that; only the policy es-chunk
//! young          1        0        0        0        added since the last visit; only the policy es-chunk
//! ```
//!
//! Invariants
//! 1. Entries are in order and disjoint; never more than [`ENTRIES_MAX`].
//! 2. Bit i of a mask is about entry i; bits after the last entry are 0.
//! 3. `key` is at most the first entry's block.
//! 4. Spare capacity is less than [`GRAIN`] entries, except between two steps of one operation.
//! 5. `ids` has one number per entry if the policy keeps lists of entries, else none.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::entry::Packed;

/// Maximum number of entries of a chunk: one for each bit of a word.
pub(crate) const ENTRIES_MAX: usize = 64;
/// Capacity grows by this many entries at a time.
pub(crate) const GRAIN: usize = 4;
/// No chunk.
pub(crate) const NONE: u32 = u32::MAX;

/// The list of its inode that a chunk is on; see `ages`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// On none: no entry is reclaimable.
    None,
    /// Some entry is reclaimable and not protected.
    Cold,
    /// All reclaimable entries are protected.
    Warm,
}

pub(crate) struct Chunk {
    /// The chunk has the blocks from here on, up to the next chunk's key.
    pub(crate) key: u32,
    /// Neighbors on the list `age`.
    pub(crate) before: u32,
    pub(crate) after: u32,
    pub(crate) age: Age,
    /// Number of visits that spared it although it had cold entries.
    pub(crate) spared: u8,
    pub(crate) kept: u64,
    pub(crate) protected: u64,
    pub(crate) young: u64,
    referenced: AtomicU64,
    pub(crate) entries: Vec<Packed>,
    #[expect(clippy::box_collection, reason = "one word where there are none")]
    pub(crate) ids: Option<Box<Vec<u32>>>,
}

/// An entry with its bits and its node.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) packed: Packed,
    pub(crate) referenced: bool,
    pub(crate) protected: bool,
    pub(crate) young: bool,
    pub(crate) id: u32,
}

impl Item {
    pub(crate) fn new(packed: Packed) -> Self {
        Self { packed, referenced: false, protected: false, young: true, id: NONE }
    }
}

/// The bits below `at`.
fn below(at: usize) -> u64 {
    if at >= 64 { u64::MAX } else { (1 << at) - 1 }
}

fn open(mask: u64, at: usize, bit: bool) -> u64 {
    let low = mask & below(at);
    low | (mask & !below(at)) << 1 | u64::from(bit) << at
}

fn close(mask: u64, at: usize) -> u64 {
    let high = if at >= 63 { 0 } else { (mask >> (at + 1)) << at };
    mask & below(at) | high
}

impl Chunk {
    pub(crate) fn new(key: u32, with_ids: bool) -> Self {
        Self {
            key,
            before: NONE,
            after: NONE,
            age: Age::None,
            spared: 0,
            kept: 0,
            protected: 0,
            young: 0,
            referenced: AtomicU64::new(0),
            entries: Vec::new(),
            ids: with_ids.then(Box::default),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// One bit for each entry.
    pub(crate) fn all(&self) -> u64 {
        below(self.len())
    }

    /// Reclaimable entries.
    pub(crate) fn reclaimable(&self) -> u64 {
        self.all() & !self.kept
    }

    /// Reclaimable entries that are not protected.
    pub(crate) fn cold(&self) -> u64 {
        self.reclaimable() & !self.protected
    }

    pub(crate) fn referenced(&self) -> u64 {
        self.referenced.load(Relaxed)
    }

    /// Marks entry `at` as found. Readers call this concurrently.
    pub(crate) fn refer(&self, at: usize) {
        // Stores only a change: otherwise the word stays in all CPUs' caches.
        if self.referenced() & (1 << at) == 0 {
            self.referenced.fetch_or(1 << at, Relaxed);
        }
    }

    pub(crate) fn forget_references(&mut self, which: u64) {
        *self.referenced.get_mut() &= !which;
    }

    pub(crate) fn id(&self, at: usize) -> u32 {
        self.ids.as_ref().map_or(NONE, |ids| ids[at])
    }

    pub(crate) fn item(&self, at: usize) -> Item {
        let bit = |mask: u64| mask >> at & 1 == 1;
        Item {
            packed: self.entries[at],
            referenced: bit(self.referenced()),
            protected: bit(self.protected),
            young: bit(self.young),
            id: self.id(at),
        }
    }

    /// The index of the first entry that begins after `lblk`.
    pub(crate) fn first_after(&self, lblk: u32) -> usize {
        self.entries.partition_point(|entry| entry.lblk <= lblk)
    }

    pub(crate) fn insert(&mut self, at: usize, item: &Item) {
        debug_assert!(self.len() < ENTRIES_MAX);
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(GRAIN);
        }
        self.entries.insert(at, item.packed);
        self.kept = open(self.kept, at, item.packed.is_delayed());
        self.protected = open(self.protected, at, item.protected);
        self.young = open(self.young, at, item.young);
        *self.referenced.get_mut() = open(self.referenced(), at, item.referenced);
        if let Some(ids) = &mut self.ids {
            if ids.len() == ids.capacity() {
                ids.reserve_exact(GRAIN);
            }
            ids.insert(at, item.id);
        }
    }

    pub(crate) fn remove(&mut self, at: usize) -> Item {
        let item = self.item(at);
        self.entries.remove(at);
        self.kept = close(self.kept, at);
        self.protected = close(self.protected, at);
        self.young = close(self.young, at);
        *self.referenced.get_mut() = close(self.referenced(), at);
        if let Some(ids) = &mut self.ids {
            ids.remove(at);
        }
        item
    }

    /// Removes the entries of `victims` in one pass.
    pub(crate) fn remove_all(&mut self, victims: u64) {
        let stay = self.all() & !victims;
        let mut left = stay;
        let mut stays = || {
            let bit = left & 1 == 1;
            left >>= 1;
            bit
        };
        self.entries.retain(|_| stays());
        if let Some(ids) = &mut self.ids {
            let mut left = stay;
            ids.retain(|_| {
                let bit = left & 1 == 1;
                left >>= 1;
                bit
            });
        }
        self.kept = squeeze(self.kept, stay);
        self.protected = squeeze(self.protected, stay);
        self.young = squeeze(self.young, stay);
        *self.referenced.get_mut() = squeeze(self.referenced(), stay);
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        if let Some(ids) = &mut self.ids {
            ids.clear();
        }
        self.kept = 0;
        self.protected = 0;
        self.young = 0;
        *self.referenced.get_mut() = 0;
    }

    /// Frees spare capacity of `GRAIN` entries and more.
    pub(crate) fn trim(&mut self) {
        if self.entries.capacity() >= self.len() + GRAIN {
            self.entries.shrink_to(self.len().next_multiple_of(GRAIN));
            if let Some(ids) = &mut self.ids {
                let len = ids.len().next_multiple_of(GRAIN);
                ids.shrink_to(len);
            }
        }
    }

    /// Moves the entries from `at` on into a new chunk with the key `key`.
    pub(crate) fn split(&mut self, at: usize, key: u32) -> Self {
        let mut right = Self::new(key, self.ids.is_some());
        right.entries.reserve_exact((self.len() - at).next_multiple_of(GRAIN));
        right.entries.extend(self.entries.drain(at..));
        if let (Some(mine), Some(its)) = (&mut self.ids, &mut right.ids) {
            its.reserve_exact((mine.len() - at).next_multiple_of(GRAIN));
            its.extend(mine.drain(at..));
        }
        let cut = |mask: u64| if at >= 64 { 0 } else { mask >> at };
        right.kept = cut(self.kept);
        right.protected = cut(self.protected);
        right.young = cut(self.young);
        *right.referenced.get_mut() = cut(self.referenced());
        self.kept &= below(at);
        self.protected &= below(at);
        self.young &= below(at);
        *self.referenced.get_mut() &= below(at);
        right
    }

    /// Appends the entries of the chunk that follows it.
    pub(crate) fn append(&mut self, mut right: Self) {
        let at = self.len();
        debug_assert!(at + right.len() <= ENTRIES_MAX);
        if self.entries.capacity() < at + right.len() {
            let more = (at + right.len()).next_multiple_of(GRAIN) - at;
            self.entries.reserve_exact(more);
            if let Some(ids) = &mut self.ids {
                ids.reserve_exact(more);
            }
        }
        let put = |mask: u64| if at >= 64 { 0 } else { mask << at };
        self.kept |= put(right.kept);
        self.protected |= put(right.protected);
        self.young |= put(right.young);
        let referenced = self.referenced() | put(right.referenced());
        *self.referenced.get_mut() = referenced;
        self.entries.append(&mut right.entries);
        if let (Some(mine), Some(its)) = (&mut self.ids, &mut right.ids) {
            mine.append(its);
        }
    }

    /// Bytes on the heap, with allocator overhead.
    pub(crate) fn bytes(&self) -> usize {
        let ids = self.ids.as_ref().map_or(0, |ids| allocated(24) + allocated(ids.capacity() * 4));
        allocated(self.entries.capacity() * size_of::<Packed>()) + ids
    }
}

/// Bytes that an allocation of `bytes` takes: one word more, in steps of 16, at least 32.
pub(crate) fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// Keeps the bits of `mask` where `stay` has one, and closes the gaps.
fn squeeze(mask: u64, mut stay: u64) -> u64 {
    if mask & stay == 0 {
        return 0;
    }
    let (mut out, mut at) = (0, 0);
    while stay != 0 {
        let bit = stay.trailing_zeros();
        out |= (mask >> bit & 1) << at;
        at += 1;
        stay &= stay - 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, Status};

    fn item(lblk: u32, status: Status) -> Item {
        Item::new(Packed::of(&Entry { status, ..Entry::hole(lblk, 1) }))
    }

    #[test]
    fn masks_follow_the_entries() {
        let mut chunk = Chunk::new(0, false);
        for lblk in 0..64u32 {
            let status = if lblk % 3 == 0 { Status::Delayed } else { Status::Hole };
            // From both ends towards the middle.
            let lblk = if lblk % 2 == 0 { lblk / 2 } else { 63 - lblk / 2 };
            let status = if lblk % 3 == 0 { Status::Delayed } else { status };
            let at = chunk.first_after(lblk);
            let status = if lblk % 3 == 0 { status } else { Status::Hole };
            chunk.insert(at, &Item { referenced: lblk % 5 == 0, ..item(lblk, status) });
        }
        let check = |chunk: &Chunk| {
            for (at, entry) in chunk.entries.iter().enumerate() {
                assert_eq!(chunk.kept >> at & 1 == 1, entry.lblk.is_multiple_of(3), "{}", entry.lblk);
                assert_eq!(chunk.item(at).referenced, entry.lblk.is_multiple_of(5), "{}", entry.lblk);
            }
            assert_eq!((chunk.kept | chunk.referenced()) & !chunk.all(), 0);
            assert!(chunk.entries.is_sorted_by_key(|entry| entry.lblk));
        };
        check(&chunk);
        let right = chunk.split(40, 40);
        check(&chunk);
        check(&right);
        chunk.append(right);
        check(&chunk);
        chunk.remove(63);
        chunk.remove(0);
        check(&chunk);
        chunk.remove_all(0x00ff_0000_1234_5671 & chunk.all());
        check(&chunk);
        chunk.trim();
        assert!(chunk.entries.capacity() < chunk.len() + GRAIN);
        chunk.remove_all(chunk.all());
        assert_eq!((chunk.len(), chunk.kept, chunk.referenced()), (0, 0, 0));
    }
}
