//! The shards of the cache: which one has a block.
//!
//! Owns: the shards with their locks, and the addresses of their slots. Does **not** own: the blocks of a
//! shard (see [`crate::shard`]).

use std::ops::Range;

use extant_base::Pblk;
use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{CachePadded, Mutex, MutexGuard};

use crate::shard::{Shard, Slot};
use crate::{Hint, SHARDS};

/// Maximum length of a row: consecutive blocks that share a shard. Two threads in two directories, which are
/// apart on disk, then share few shards, and a lock tends to stay on the CPU that held it last.
const ROW_MAX: usize = 64;

/// The least number of rows in a shard of a full cache. With fewer rows, shard sizes would differ a lot, and
/// a shard would evict blocks in use.
const ROWS_MIN: usize = 8;

pub(crate) struct Shards {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Address of each shard's slots, so that a slot can be prefetched without the lock.
    slots_at: [AtomicUsize; SHARDS],
    /// Random, so that an image cannot be crafted to put many blocks into one shard or bucket.
    salt: u64,
    /// Binary logarithm of the length of a row.
    row_log: u32,
}

impl Shards {
    /// Empty shards for a cache of at most `blocks_max` blocks.
    pub(crate) fn new(salt: u64, blocks_max: usize, shard: impl Fn() -> Shard) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded(Mutex::new(shard()))).collect(),
            slots_at: std::array::from_fn(|_| AtomicUsize::new(0)),
            salt,
            row_log: (blocks_max / (SHARDS * ROWS_MIN)).clamp(1, ROW_MAX).ilog2(),
        }
    }

    /// The number of a block's shard.
    fn number_of(&self, block: Pblk) -> usize {
        // The top bits: the buckets inside a shard use other bits.
        (extant_base::salted::spread(block.0 >> self.row_log ^ self.salt) >> (u64::BITS - SHARDS.ilog2()))
            as usize
    }

    /// The shard of a block.
    pub(crate) fn of(&self, block: Pblk) -> MutexGuard<'_, Shard> {
        self.shards[self.number_of(block)].lock()
    }

    /// The shard with this number.
    pub(crate) fn at(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.shards[number].lock()
    }

    /// Each shard in turn.
    pub(crate) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.lock())
    }

    /// Records the address of the shard's slots, which may have moved. `block`: one of the shard.
    pub(crate) fn note_slots(&self, block: Pblk, shard: &Shard) {
        self.slots_at[self.number_of(block)].store(shard.slots.address(), Ordering::Relaxed);
    }

    /// Prefetches the slot of a block into the CPU's cache if the hint is known, without waiting.
    pub(crate) fn prefetch_slot(&self, block: Pblk, hint: Hint) {
        let slots_at = self.slots_at[self.number_of(block)].load(Ordering::Relaxed);
        extant_device::prefetch_address(
            slots_at.wrapping_add((hint.0 as usize).wrapping_mul(size_of::<Slot>())),
        );
    }

    /// Sorts items by the shards of their blocks. Returns the items, and for each nonempty shard its range.
    pub(crate) fn sorted<T: Copy>(
        &self,
        all: impl ExactSizeIterator<Item = (Pblk, T)> + Clone,
    ) -> (Vec<T>, impl Iterator<Item = (usize, Range<usize>)>) {
        let shards: Vec<u8> = all.clone().map(|(block, _)| self.number_of(block) as u8).collect();
        // Counting sort: there are few shards, and often many blocks.
        let mut ends = [0; SHARDS];
        shards.iter().for_each(|shard| ends[usize::from(*shard)] += 1);
        let mut begin = 0;
        for end in &mut ends {
            begin += std::mem::replace(end, begin);
        }
        let mut sorted: Vec<T> = all.clone().next().map_or_else(Vec::new, |(_, any)| vec![any; shards.len()]);
        for (shard, (_, one)) in shards.into_iter().zip(all) {
            let end = &mut ends[usize::from(shard)];
            sorted[*end] = one;
            *end += 1;
        }
        let begins = std::iter::once(0).chain(ends);
        let groups = begins.zip(ends).map(|(begin, end)| begin..end).enumerate();
        (sorted, groups.filter(|(_, group)| !group.is_empty()))
    }
}
