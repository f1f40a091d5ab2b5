//! The orphan file: slots that are claimed without a lock, and written into blocks once per commit.
//!
//! ```text
//!            claim: one compare-and-exchange           give_back: two stores
//!  slots   | 0 | 17 | 0 | 23 | KEPT | ...      next -> where the search begins, or FULL
//!              |               '-- a lane's: the next claim in the same lane takes it with plain stores
//!              '-- the commit writes it into the block, if anything changed, and seals the block
//! ```
//!
//! A slot holds the number of an inode, 0 if it is free, or `KEPT` if a lane keeps it for its next claim. (A
//! *lane* is a place in the journal where the handles of one thread start and end without a lock.)
//!
//! Owns: the owner of each slot. Does **not** own: whether an inode is tracked
//! ([`LiveInode`](crate::LiveInode) has its slot), the blocks.
//!
//! Invariants
//! 1. A slot with an inode's number belongs to that inode until the inode gives it back.
//! 2. Slots change under an open handle only. [`write`](OrphanFile::write) runs in a commit, while no other
//!    handle is open, so it finds the transaction's final state. A slot that was claimed and given back in
//!    one transaction is unchanged, and no block is written for it.
//! 3. `FULL` is a mark of a block, not a count. A search that finds no free slot sets it, and the next slot
//!    that is freed for all threads clears it. A stale mark only sends a search to the next block, or to the
//!    list.
//! 4. A lane ([`Edit::lane`]) keeps at most one slot. Only its handle uses the slot, with stores as its only
//!    atomic operations. On disk the slot is free. For other threads it is taken: if all other slots are in
//!    use, they use the list.
//!
//! Source: kernel Documentation/filesystems/ext4/orphan.rst.

use extant_base::sync::CachePadded;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::{Ino, Pblk};
use extant_buffer::{Buffers, Edit, Kind, Owner, ReadFault, Seal};

/// A search found no free slot.
const FULL: u32 = u32::MAX;

/// Free, but kept for the next handle of a lane. No inode has this number: the largest one is a multiple of
/// 8. A block with this value on disk is damaged; lanes keep none of its slots.
const KEPT: u32 = u32::MAX;

/// The lane keeps no slot. No slot has this word, because a file has far fewer blocks.
const NO_SLOT: u32 = u32::MAX;

/// Number of lanes that keep a slot; handles in other lanes search all slots.
const LANES: usize = 16;

/// Multiplying consecutive numbers by this in 32 bits spreads them evenly.
const GOLDEN: u32 = 0x9E37_79B9;

/// The orphan file's slots, in memory.
pub struct OrphanFile {
    blocks: Vec<Slots>,
    seal: Seal,
    /// Blocks with slots that changed since the last commit began.
    changed: AtomicU32,
    /// The word of the slot that each lane keeps.
    kept: [CachePadded<AtomicU32>; LANES],
}

/// A slot: the number of its block in the file, and its index in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    pub(crate) block: u16,
    pub(crate) at: u16,
}

impl Slot {
    /// Encodes the slot as one word, far below [`u32::MAX`].
    #[inline]
    pub(crate) fn word(self) -> u32 {
        u32::from(self.block) << 16 | u32::from(self.at)
    }

    #[inline]
    pub(crate) fn of_word(word: u32) -> Self {
        Self { block: (word >> 16) as u16, at: word as u16 }
    }
}

/// The slots of one block, on separate cache lines because many threads write to them.
#[repr(align(64))]
struct Slots {
    place: Pblk,
    slots: Box<[AtomicU32]>,
    /// The index at which the next search begins: the slot that was last freed for all threads, or the one
    /// after the last claim. Or [`FULL`].
    next: AtomicU32,
    is_changed: AtomicBool,
    /// Whether no slot was [`KEPT`] on disk.
    may_keep: bool,
}

impl OrphanFile {
    /// Creates the slots from the file's blocks: their addresses, and the values of their slots.
    #[must_use]
    pub fn new(ino: Ino, seed: Option<u32>, blocks: Vec<(Pblk, Vec<u32>)>) -> Self {
        let blocks = blocks.into_iter().map(|(place, slots)| Slots {
            place,
            may_keep: !slots.contains(&KEPT),
            slots: slots.into_iter().map(AtomicU32::new).collect(),
            next: AtomicU32::new(0),
            is_changed: AtomicBool::new(false),
        });
        let seal = Seal { owner: Owner { kind: Kind::Orphans, ino: ino.0 }, seed };
        let kept = std::array::from_fn(|_| CachePadded(AtomicU32::new(NO_SLOT)));
        Self { blocks: blocks.collect(), seal, changed: AtomicU32::new(0), kept }
    }

    /// Claims the slot that a lane keeps, for the lane's handle. `None` if it keeps no slot.
    #[inline]
    pub(crate) fn claim_kept(&self, ino: Ino, lane: Option<usize>) -> Option<Slot> {
        let kept = self.kept.get(lane?)?;
        // The previous handle of the lane has ended, and its writes are visible here as if one thread had
        // made all of them.
        let slot = Slot::of_word(kept.load(Ordering::Relaxed));
        let block = self.blocks.get(usize::from(slot.block))?;
        block.slots.get(usize::from(slot.at))?.store(ino.0, Ordering::Release);
        kept.store(NO_SLOT, Ordering::Relaxed);
        self.note(block);
        Some(slot)
    }

    /// Claims a free slot; threads with different numbers begin in different blocks. `None` if each slot was
    /// in use at the moment when the search looked at it.
    #[inline]
    pub(crate) fn claim(&self, ino: Ino, thread: u32) -> Option<Slot> {
        // The product spreads consecutive numbers; its upper half is below the number of blocks.
        let spread = u64::from(thread.wrapping_mul(GOLDEN));
        let first = ((spread * self.blocks.len() as u64) >> 32) as usize;
        let block = self.blocks.get(first)?;
        // Often the slot that this thread gave back.
        let at = block.next.load(Ordering::Acquire);
        let is_free = block.slots.get(at as usize).is_some_and(|slot| take(slot, ino.0));
        if !is_free {
            return self.search(ino, first);
        }
        self.note(block);
        Some(Slot { block: first as u16, at: at as u16 })
    }

    #[cold]
    fn search(&self, ino: Ino, first: usize) -> Option<Slot> {
        let (before, from) = self.blocks.split_at_checked(first)?;
        let blocks = from.iter().zip(first as u16..).chain(before.iter().zip(0..));
        let (block, slot) = { blocks }.find_map(|(block, number)| {
            let at = block.claim(ino.0)?;
            Some((block, Slot { block: number, at }))
        })?;
        self.note(block);
        Some(slot)
    }

    /// Frees a slot that was claimed, or in use from the beginning. The caller is in `lane`, which may keep
    /// the slot.
    #[inline]
    pub(crate) fn give_back(&self, slot: Slot, lane: Option<usize>) {
        let Some(block) = self.blocks.get(usize::from(slot.block)) else { return };
        let Some(word) = block.slots.get(usize::from(slot.at)) else { return };
        match lane.and_then(|lane| self.kept.get(lane)) {
            Some(kept) if block.may_keep && kept.load(Ordering::Relaxed) == NO_SLOT => {
                word.store(KEPT, Ordering::Release);
                kept.store(slot.word(), Ordering::Relaxed);
            }
            _ => {
                word.store(0, Ordering::Release);
                // Stored after the slot: a search that finds the block marked full after this store also
                // finds the slot.
                block.next.store(u32::from(slot.at), Ordering::Release);
            }
        }
        self.note(block);
    }

    #[inline]
    fn note(&self, block: &Slots) {
        if !block.is_changed.load(Ordering::Relaxed) && !block.is_changed.swap(true, Ordering::Relaxed) {
            self.changed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Upper bound of the number of blocks that [`write`](Self::write) changes.
    pub(crate) fn blocks_to_come(&self) -> u32 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Writes changed slots into their blocks, as part of the transaction that ends now. Only the handle
    /// `edit` is open.
    ///
    /// # Errors
    /// A block had to be read again, and the read failed.
    pub(crate) fn write(&self, buffers: &Buffers, edit: &dyn Edit) -> Result<(), ReadFault> {
        if self.changed.swap(0, Ordering::Relaxed) == 0 {
            return Ok(());
        }
        for block in self.blocks.iter().filter(|block| block.is_changed.swap(false, Ordering::Relaxed)) {
            let is_same = {
                let (there, _) = buffers.snapshot(block.place)?;
                let mut words = there.as_chunks::<4>().0.iter();
                block.values().all(|value| words.next() == Some(&value.to_le_bytes()))
            };
            if !is_same {
                edit.change(block.place, self.seal, &mut |bytes| {
                    for (word, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(block.values()) {
                        *word = value.to_le_bytes();
                    }
                })?;
            }
        }
        Ok(())
    }

    /// All slots in use, with their inodes.
    #[must_use]
    pub fn used(&self) -> Vec<(Slot, Ino)> {
        let of_block = |(block, number): (&Slots, u16)| {
            let slots = block.values().zip(0u16..);
            let used = slots.filter(|(value, _)| *value != 0);
            used.map(|(value, at)| (Slot { block: number, at }, Ino(value))).collect::<Vec<_>>()
        };
        self.blocks.iter().zip(0u16..).flat_map(of_block).collect()
    }
}

/// Takes a slot if it is free.
#[inline]
fn take(slot: &AtomicU32, ino: u32) -> bool {
    slot.load(Ordering::Relaxed) == 0
        && slot.compare_exchange(0, ino, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

impl Slots {
    /// The values on disk: inode numbers, or 0.
    fn values(&self) -> impl Iterator<Item = u32> {
        let on_disk = |value| if value == KEPT && self.may_keep { 0 } else { value };
        self.slots.iter().map(move |slot| on_disk(slot.load(Ordering::Acquire)))
    }

    fn claim(&self, ino: u32) -> Option<u16> {
        let first = self.next.load(Ordering::Acquire);
        if first == FULL {
            return None;
        }
        self.search(first as usize, ino).or_else(|| {
            // A slot after the search position may have been freed meanwhile. A slot that is freed from now
            // on clears the mark; a slot that was freed before is found by this search.
            self.next.swap(FULL, Ordering::AcqRel);
            self.search(0, ino)
        })
    }

    /// Tries each slot once, from `first` on.
    fn search(&self, first: usize, ino: u32) -> Option<u16> {
        let (before, from) = self.slots.split_at_checked(first).unwrap_or((&[], &self.slots));
        let at = match from.iter().position(|slot| take(slot, ino)) {
            Some(at) => at + self.slots.len() - from.len(),
            None => before.iter().position(|slot| take(slot, ino))?,
        };
        let next = if at + 1 < self.slots.len() { at as u32 + 1 } else { 0 };
        self.next.store(next, Ordering::Relaxed);
        Some(at as u16)
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
