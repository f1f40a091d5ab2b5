//! Changing blocks in memory.

use std::ops::Range;

use extant_base::checksum::crc32c;
use extant_base::sync::atomic::Ordering;
use extant_base::{CorruptAt, Malformed, Pblk, Tid};

use crate::shard::Taken;
use crate::waiting::Batch;
pub use crate::waiting::{Made, Summed};
use crate::{Buffer, Buffers, Bytes, Hint, Owner, ReadFault, SHARDS, unshared};

/// How a block gets its checksum when it leaves for the device: computed once per commit, not per change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// What the block is, and whose.
    pub owner: Owner,
    /// Seed of the checksum: the inode's for its own blocks, else the file system's. `None` without
    /// metadata_csum.
    pub seed: Option<u32>,
}

/// A small change of a block that ends in a checksum, made without reading the block. It is applied by the
/// next reader, or by the commit that takes the block: then in a copy, which becomes the block, with the
/// checksum updated.
///
/// The checksum is the CRC-32C by value of the block's first bytes; it is the last four bytes, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct PendingChange<'a> {
    /// What the checksum is of. Nothing of it lies in a block's last four bytes.
    pub summed: Summed,
    /// An offset, and the bytes that are there before. When they are not, on a damaged file system, nothing
    /// is changed, and the commit is refused.
    pub there: (usize, &'a [u8]),
    /// Offsets, and the bytes that are there then.
    pub pieces: &'a [(usize, &'a [u8])],
}

/// All bytes of a block, with the checksum that the log needs, from the thread that made them and has them in
/// its CPU cache.
pub struct Filled {
    bytes: Bytes,
    start: [u8; 4],
    /// CRC-32C from 0 by value.
    sum: Option<u32>,
}

impl Filled {
    /// These bytes, which are not shared.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let start = bytes.first_chunk().copied().unwrap_or_default();
        let sum = Some(crc32c(0, &bytes));
        Self { bytes, start, sum }
    }

    /// The first of them, which need not be fetched for that.
    #[must_use]
    pub fn start(&self) -> [u8; 4] {
        self.start
    }

    /// The same, for bytes that the log does not take as they are.
    #[must_use]
    pub fn without_sum(self) -> Self {
        Self { sum: None, ..self }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// One of many blocks that were taken.
pub struct Snapshot {
    /// Its bytes.
    pub buffer: Buffer,
    /// Whose it is as of the last change.
    pub owner: Option<Owner>,
    /// It ends in the right checksum: see [`PendingChange`].
    pub has_sum: bool,
    /// The result of [`take`](Buffers::take) for a block with [pending changes](PendingChange): no copy of it
    /// is needed.
    pub told: Option<u32>,
    /// The CRC-32C by value, from 0, of all its bytes, if the block is still as a caller [put](Buffers::put)
    /// it with its checksum.
    pub whole_sum: Option<u32>,
}

fn not_as_noted(block: Pblk) -> ReadFault {
    let fact =
        Malformed::new("block with changes that wait", "its bytes must be as noted with the change", block.0);
    ReadFault::corrupt(CorruptAt::block(block), fact)
}

/// Blocks that memory is asked for at a time.
const AHEAD: usize = 16;

/// The right to change blocks: in the engine a journal's handle, in tests [`Direct`].
///
/// The caller has verified the block ([`Buffers::get`]) before it changes it, and has reserved room for it:
/// changes are not refused half-way.
pub trait Edit {
    /// The transaction that the changes belong to; never 0. A caller asks before it changes a value that
    /// enters a block later, so this counts as a change.
    fn transaction(&self) -> Tid;

    /// A small number that no other open editor has, if there is one. Data that belongs to the number needs
    /// no lock: the next owner of the number sees all writes of the previous one.
    #[inline]
    fn lane(&self) -> Option<usize> {
        None
    }

    /// Changes so far that belong to something unfinished. An editor without rollback need not count.
    fn changes(&self) -> u64 {
        0
    }

    /// What was changed since there were `before` changes was taken back, or is whole by itself: a later
    /// failure does not leave it half done.
    fn settle(&self, _before: u64) {}

    /// Changes a block's bytes. `change` runs under a lock of the cache: it is short, and asks nothing of the
    /// cache.
    ///
    /// # Errors
    /// The block had to be read again, and cannot be. Nothing was changed then.
    fn change(&self, block: Pblk, seal: Seal, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault>;

    /// As [`change`](Self::change), for a caller with a hint of the block's slot in the cache.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    fn change_at(
        &self,
        block: Pblk,
        _hint: &mut Hint,
        seal: Seal,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        self.change(block, seal, change)
    }

    /// As [`change_at`](Self::change_at), for a block that is expected to be in memory and verified for the
    /// owner. `false`: it is not, or that is unknown; nothing was changed.
    fn change_trusted_at(
        &self,
        _block: Pblk,
        _hint: &mut Hint,
        _seal: Seal,
        _change: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        false
    }

    /// As [`change_trusted_at`](Self::change_trusted_at), without reading the block.
    fn patch_at(&self, _block: Pblk, _hint: &mut Hint, _seal: Seal, _patch: &PendingChange<'_>) -> bool {
        false
    }

    /// Makes a new block, whatever the device has there: `fill` gets zeros.
    fn fresh(&self, block: Pblk, seal: Seal, fill: &mut dyn FnMut(&mut [u8]));

    /// As [`fresh`](Self::fresh), with all its bytes: of a block without a checksum inside.
    fn put(&self, block: Pblk, seal: Seal, filled: Filled) {
        self.fresh(block, seal, &mut |place| place.copy_from_slice(&filled.bytes));
    }

    /// The block is metadata no more: an older copy in the log must not come back, and changes to it are
    /// dropped.
    fn revoke(&self, block: Pblk);
}

impl Buffers {
    /// Changes a block for a transaction. Is it the transaction's first change of it?
    ///
    /// # Errors
    /// The block is not in memory, and cannot be read.
    pub fn change(
        &self,
        block: Pblk,
        owner: Owner,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, ReadFault> {
        let mut hint = Hint::NONE;
        self.change_at(block, &mut hint, owner, transaction, change)
    }

    /// As [`change`](Self::change), with a hint of the block's slot.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn change_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, ReadFault> {
        loop {
            if let Some(is_first) = self.shard(block).edit(block, hint, owner.word(), transaction, change) {
                return Ok(is_first);
            }
            self.bring_in(block)?;
        }
    }

    /// Changes a block that is in memory, verified as this owner's, for a transaction. Is it the
    /// transaction's first change of it? `None`: it is not, and was not changed.
    pub fn change_trusted_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        self.shard(block).edit_trusted(block, hint, owner.word(), transaction, change)
    }

    /// As [`change_trusted_at`](Self::change_trusted_at), without a look at the block: see [`PendingChange`].
    /// `None` also if too much waits already.
    pub fn patch_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        transaction: Tid,
        patch: &PendingChange<'_>,
    ) -> Option<bool> {
        self.shard(block).patch(block, hint, owner.word(), transaction, patch)
    }

    /// A new block for a transaction, whatever was there. Is it the transaction's first change of it?
    pub fn fresh(
        &self,
        block: Pblk,
        owner: Owner,
        transaction: Tid,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let mut refill = |bytes: &mut [u8]| {
            bytes.fill(0);
            fill(bytes);
        };
        let mut hint = Hint::NONE;
        let refilled = self.shard(block).edit(block, &mut hint, owner.word(), transaction, &mut refill);
        if let Some(is_first) = refilled {
            return is_first;
        }
        // Filled before it becomes visible, and zeroed only once: that is most of the cost of a new
        // directory.
        let mut bytes = Bytes::zeroed(self.block_size().len());
        fill(unshared(&mut bytes));
        self.put_summed(block, owner, transaction, (bytes, None))
    }

    /// As [`fresh`](Self::fresh), with all its bytes.
    pub fn put(&self, block: Pblk, owner: Owner, transaction: Tid, filled: Filled) -> bool {
        self.put_summed(block, owner, transaction, (filled.bytes, filled.sum))
    }

    fn put_summed(
        &self,
        block: Pblk,
        owner: Owner,
        transaction: Tid,
        (bytes, whole_sum): (Bytes, Option<u32>),
    ) -> bool {
        {
            let mut shard = self.shard(block);
            let mut put = |place: &mut [u8]| place.copy_from_slice(&bytes);
            let mut hint = Hint::NONE;
            if let Some(is_first) = shard.edit(block, &mut hint, owner.word(), transaction, &mut put) {
                return is_first;
            }
            shard.add_changed(block, (bytes, whole_sum), owner.word(), transaction);
            self.note_slots(block, &shard);
        }
        self.charge();
        true
    }

    /// The bytes of a changed block as they are now, and whose they are since the last change.
    ///
    /// # Errors
    /// As [`change`](Self::change); a changed block is in memory.
    pub fn snapshot(&self, block: Pblk) -> Result<(Buffer, Option<Owner>), ReadFault> {
        let mut hint = Hint::NONE;
        let hit = self.shard(block).hit(block, &mut hint);
        let (bytes, owner) = match hit {
            Some(hit) => hit,
            None => self.bring_in(block)?,
        };
        Ok((Buffer { block, bytes, hint }, Owner::from_word(owner)))
    }

    /// This transaction changes no block any more, and the next one may start: changed blocks are saved until
    /// [`end_taking`](Self::end_taking), so that no operation waits while they are taken (INV-EN35).
    pub fn begin_taking(&self, transaction: Tid) {
        self.shards.iter().for_each(|shard| shard.lock().begin_taking(transaction));
    }

    /// All blocks of the transaction were taken, or never will be.
    pub fn end_taking(&self) {
        self.shards.iter().for_each(|shard| shard.lock().end_taking());
    }

    /// Passes blocks as this transaction left them to `each`, in any order, with the data given with them.
    /// The transaction changed each of them and is the last that did, or its blocks are [being
    /// taken](Self::begin_taking). Overlaps cache misses: most of many blocks are in no CPU cache. `tell` is
    /// asked about blocks with [pending changes](PendingChange) that are part of one. Neither callback may
    /// call the cache.
    ///
    /// # Errors
    /// As [`change`](Self::change): for a block that is none of these, and not in memory.
    pub fn take<T: Copy>(
        &self,
        blocks: &[(Pblk, Hint, T)],
        transaction: Tid,
        tell: &dyn Fn(&Made) -> Option<u32>,
        mut each: impl FnMut(T, Snapshot),
    ) -> Result<(), ReadFault> {
        let mut missing = Vec::new();
        let mut batch = Batch::default();
        let (wanted, shards) = self.by_shard(blocks.iter().map(|all| (all.0, *all)));
        for (shard_at, group) in shards {
            let mut rest = &wanted[group];
            if rest.len() > AHEAD {
                self.shards[shard_at].lock().prefetch_pending(transaction);
            }
            while !rest.is_empty() {
                let (piece, next) = rest.split_at(rest.len().min(AHEAD));
                rest = next;
                let mut told = [None; AHEAD];
                let mut shard = self.shards[shard_at].lock();
                shard.look_ahead(piece);
                shard.begin_making(piece, transaction, &mut batch);
                // They come while these are copied.
                next.iter().take(AHEAD).for_each(|(_, hint, _)| shard.prefetch_slot(*hint));
                if !batch.is_empty() {
                    // Others need not wait for the copies.
                    drop(shard);
                    batch.make(&self.difference, tell);
                    shard = self.shards[shard_at].lock();
                    for making in &mut batch.blocks {
                        if making.is_damaged {
                            return Err(not_as_noted(making.block));
                        }
                        let (number, (_, hint, _)) = (making.number, piece[making.number]);
                        told[number] = shard.end_making(making, transaction, hint);
                    }
                    batch.clear();
                }
                if let Some(block) = shard.damaged() {
                    return Err(not_as_noted(block));
                }
                for (told, &(block, mut hint, with)) in told.into_iter().zip(piece) {
                    match shard.take(block, &mut hint, transaction) {
                        Some(Taken { bytes, owner, has_sum, whole_sum }) => {
                            let (buffer, owner) = (Buffer { block, bytes, hint }, Owner::from_word(owner));
                            each(with, Snapshot { buffer, owner, has_sum, told, whole_sum });
                        }
                        None => missing.push((block, with)),
                    }
                }
            }
        }
        for (block, with) in missing {
            let (buffer, owner) = self.snapshot(block)?;
            each(with, Snapshot { buffer, owner, has_sum: false, told: None, whole_sum: None });
        }
        Ok(())
    }

    /// Sorts what belongs to blocks by their shards: all of it, and for each shard that has some where.
    fn by_shard<T: Copy>(
        &self,
        all: impl ExactSizeIterator<Item = (Pblk, T)> + Clone,
    ) -> (Vec<T>, impl Iterator<Item = (usize, Range<usize>)>) {
        let shards: Vec<u8> = all.clone().map(|(block, _)| self.shard_of(block) as u8).collect();
        // Where each shard's begin: there are few shards, and often many blocks.
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

    /// The device has what transactions changed up to this one: those blocks may leave the cache. `are_kept`:
    /// it has these very bytes (see [`Device::write_shared_at`](extant_device::Device::write_shared_at)),
    /// which are no reason to keep a block in the cache.
    pub fn set_clean_through(&self, transaction: Tid, are_kept: bool) {
        self.shards.iter().for_each(|shard| shard.lock().set_clean_through(transaction, are_kept));
    }

    /// Drops the block, changed or not.
    pub fn forget(&self, block: Pblk) {
        if self.shard(block).forget(block) {
            self.held_bytes.fetch_sub(self.charge_per_block(), Ordering::Relaxed);
            self.budget.release(self.charge_per_block());
        }
    }
}

impl Buffer {
    /// The bytes, shared.
    #[must_use]
    pub fn into_shared(self) -> Bytes {
        self.bytes
    }
}

/// Changes that stay in memory, of one transaction that never ends: for tests of what stands on [`Edit`].
pub struct Direct<'a>(pub &'a Buffers);

impl Edit for Direct<'_> {
    fn transaction(&self) -> Tid {
        extant_base::Tid(1)
    }

    fn change(&self, block: Pblk, seal: Seal, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        self.0.change(block, seal.owner, extant_base::Tid(1), change).map(drop)
    }

    fn fresh(&self, block: Pblk, seal: Seal, fill: &mut dyn FnMut(&mut [u8])) {
        self.0.fresh(block, seal.owner, extant_base::Tid(1), fill);
    }

    fn revoke(&self, block: Pblk) {
        self.0.forget(block);
    }
}
