//! Changes of blocks in memory.

use extant_base::checksum::crc32c;
use extant_base::sync::atomic::Ordering;
use extant_base::{CorruptAt, Malformed, Pblk, Tid};

use crate::pending::{Batch, PatchedBlock, PendingChange};
use crate::shard::Taken;
use crate::{Buffer, Buffers, Bytes, Hint, Owner, ReadFault, unshared};

/// How the commit computes a block's checksum: once per commit, not per change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// The block's kind, and the inode it belongs to.
    pub owner: Owner,
    /// Seed of the checksum: the inode's seed for its own blocks, otherwise the file system's. `None` without
    /// metadata_csum.
    pub seed: Option<u32>,
}

/// All bytes of a block, with the data that the log needs: computed by their creator, while they are in its
/// CPU's cache.
pub struct BlockContents {
    bytes: Bytes,
    start: [u8; 4],
    /// CRC-32C of the bytes, with seed 0.
    sum: Option<u32>,
}

impl BlockContents {
    /// Wraps bytes that are not shared.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let start = bytes.first_chunk().copied().unwrap_or_default();
        let sum = Some(crc32c(0, &bytes));
        Self { bytes, start, sum }
    }

    /// The first bytes, kept here so that the block's memory need not be fetched.
    #[must_use]
    pub fn start(&self) -> [u8; 4] {
        self.start
    }

    /// Drops the checksum: for blocks that are logged with other bytes than these.
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

/// One of the blocks taken by a commit.
pub struct Snapshot {
    /// The block's bytes.
    pub buffer: Buffer,
    /// The owner of the last change.
    pub owner: Option<Owner>,
    /// The block ends in the right checksum: see [`PendingChange`].
    pub has_sum: bool,
    /// The result of `log_sum` in [`take`](Buffers::take), for a block with [pending changes](PendingChange):
    /// the log needs no other copy of it.
    pub log_sum: Option<u32>,
    /// CRC-32C (seed 0) of all bytes, if the block was [stored](Buffers::put) with it and not changed since.
    pub whole_sum: Option<u32>,
}

fn not_as_noted(block: Pblk) -> ReadFault {
    let rule = "its checksum and bytes must be as when it was last read";
    let fact = Malformed::new("block with pending changes", rule, block.0);
    ReadFault::corrupt(CorruptAt::block(block), fact)
}

/// Blocks prefetched into the CPU's cache at a time.
const PREFETCH_BLOCKS: usize = 16;

/// An editor of blocks: a journal's handle, or [`Direct`] in tests.
///
/// The caller has verified a block ([`Buffers::get`]) before it changes it, and has reserved room for it: a
/// change is not refused half-way.
pub trait Edit {
    /// The transaction of the changes; never 0. The caller is about to change a value that is written into a
    /// block later, so the call counts as a change.
    fn transaction(&self) -> Tid;

    /// A small number that no other open editor has, if this one has any. Data kept for that number needs no
    /// lock: an editor sees all writes of its predecessors with the same number.
    #[inline]
    fn lane(&self) -> Option<usize> {
        None
    }

    /// Number of changes so far that belong to an unfinished operation. Editors for which a failure does not
    /// matter need not count.
    fn changes(&self) -> u64 {
        0
    }

    /// The changes after the first `before` ones were undone, or are complete: a later failure does not leave
    /// them half done.
    fn mark_complete(&self, _before: u64) {}

    /// All changes are described as records of a fast commit, or need none. Called as the last step of an
    /// operation. Without this call a fast commit cannot make the transaction durable.
    fn mark_described(&self) {}

    /// A change has no record, whatever the operation [says](Self::mark_described) later.
    fn mark_undescribed(&self) {}

    /// Changes a block's bytes. `change` runs under a lock of the cache: it must be short and must not access
    /// the cache.
    ///
    /// # Errors
    /// The block had to be read again and cannot be read. Nothing was changed.
    fn change(&self, block: Pblk, seal: Seal, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault>;

    /// As [`change`](Self::change), with a hint.
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
    /// owner. `false` if it is not, or if that is unknown; then nothing was changed.
    fn change_trusted_at(
        &self,
        _block: Pblk,
        _hint: &mut Hint,
        _seal: Seal,
        _change: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        false
    }

    /// As [`change_trusted_at`](Self::change_trusted_at), without reading the block: see [`PendingChange`].
    fn patch_at(&self, _block: Pblk, _hint: &mut Hint, _seal: Seal, _patch: &PendingChange<'_>) -> bool {
        false
    }

    /// Creates a block and ignores the device's contents: `fill` gets zeros.
    fn fresh(&self, block: Pblk, seal: Seal, fill: &mut dyn FnMut(&mut [u8]));

    /// As [`fresh`](Self::fresh), with all bytes of a block that contains no checksum.
    fn put(&self, block: Pblk, seal: Seal, contents: BlockContents) {
        self.fresh(block, seal, &mut |place| place.copy_from_slice(&contents.bytes));
    }

    /// The block is no longer metadata: older copies in the log must not be replayed, and changes to it are
    /// dropped.
    fn revoke(&self, block: Pblk);
}

impl Buffers {
    /// Changes a block for a transaction. Returns whether it is the transaction's first change of it.
    ///
    /// # Errors
    /// The block is not in memory and cannot be read.
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

    /// As [`change`](Self::change), with a hint.
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
            if let Some(is_first) = self.shards.of(block).edit(block, hint, owner.word(), transaction, change)
            {
                return Ok(is_first);
            }
            self.bring_in(block)?;
        }
    }

    /// Changes a block that is in memory and verified for this owner. Returns whether it is the transaction's
    /// first change of it. `None` if the block is not there or not verified; then nothing was changed.
    pub fn change_trusted_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        transaction: Tid,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Option<bool> {
        self.shards.of(block).edit_trusted(block, hint, owner.word(), transaction, change)
    }

    /// As [`change_trusted_at`](Self::change_trusted_at), without reading the block: see [`PendingChange`].
    /// `None` also if too many changes are pending. If the block is not in memory, the owner must have
    /// verified it since it was last changed elsewhere; the commit will read it.
    pub fn patch_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        transaction: Tid,
        patch: &PendingChange<'_>,
    ) -> Option<bool> {
        let patched = {
            let mut shard = self.shards.of(block);
            if self.absent.is_off.load(Ordering::Relaxed) && !shard.slots.contains(block) {
                return None;
            }
            let patched = shard.patch(block, hint, owner.word(), transaction, patch)?;
            if patched.is_new {
                self.shards.note_slots(block, &shard);
            }
            patched
        };
        if patched.is_new {
            self.charge();
            self.absent.add(block, transaction);
        }
        Some(patched.is_first)
    }

    /// Creates a block for a transaction and ignores its old contents. Returns whether it is the
    /// transaction's first change of it.
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
        let refilled = self.shards.of(block).edit(block, &mut hint, owner.word(), transaction, &mut refill);
        if let Some(is_first) = refilled {
            return is_first;
        }
        // Filled before it is shared, and zeroed only once: zeroing is most of the cost of a new directory.
        let mut bytes = Bytes::zeroed(self.block_size().len());
        fill(unshared(&mut bytes));
        self.put_with_sum(block, owner, transaction, (bytes, None))
    }

    /// As [`fresh`](Self::fresh), with all bytes.
    pub fn put(&self, block: Pblk, owner: Owner, transaction: Tid, contents: BlockContents) -> bool {
        self.put_with_sum(block, owner, transaction, (contents.bytes, contents.sum))
    }

    fn put_with_sum(
        &self,
        block: Pblk,
        owner: Owner,
        transaction: Tid,
        (bytes, whole_sum): (Bytes, Option<u32>),
    ) -> bool {
        let changed = {
            let mut shard = self.shards.of(block);
            let mut put = |place: &mut [u8]| place.copy_from_slice(&bytes);
            let mut hint = Hint::NONE;
            if let Some(is_first) = shard.edit(block, &mut hint, owner.word(), transaction, &mut put) {
                return is_first;
            }
            let changed = shard.add_changed(block, (bytes, whole_sum), owner.word(), transaction);
            self.shards.note_slots(block, &shard);
            changed
        };
        if changed.is_new {
            self.charge();
        }
        changed.is_first
    }

    /// The current bytes of a changed block, and the owner of the last change.
    ///
    /// # Errors
    /// As [`change`](Self::change). (A changed block is always in memory.)
    pub fn snapshot(&self, block: Pblk) -> Result<(Buffer, Option<Owner>), ReadFault> {
        let mut hint = Hint::NONE;
        let hit = self.shards.of(block).hit(block, &mut hint);
        let (bytes, owner) = match hit {
            Some(hit) => hit,
            None => self.bring_in(block)?,
        };
        Ok((Buffer { block, bytes, hint }, Owner::from_word(owner)))
    }

    /// This transaction makes no more changes, and the next one may start. Until
    /// [`end_taking`](Self::end_taking), the cache keeps the old version of blocks that change, so that no
    /// operation waits while the commit takes them (INV-EN35).
    pub fn begin_taking(&self, transaction: Tid) {
        self.shards.all().for_each(|mut shard| shard.begin_taking(transaction));
    }

    /// All blocks of the transaction were taken, or never will be.
    pub fn end_taking(&self) {
        self.shards.all().for_each(|mut shard| shard.end_taking());
    }

    /// Calls `each` with blocks as this transaction left them, in any order, together with the caller's value
    /// for each block. The transaction must be the last one that changed the block, or its blocks must be
    /// [being taken](Self::begin_taking). Prefetches blocks in groups, because most of many blocks are in no
    /// CPU cache. Calls `log_sum` for copies made of blocks with [pending changes](PendingChange). Neither
    /// callback may access the cache.
    ///
    /// # Errors
    /// As [`change`](Self::change), for a block that meets neither condition and is not in memory.
    pub fn take<T: Copy>(
        &self,
        blocks: &[(Pblk, Hint, T)],
        transaction: Tid,
        log_sum: &dyn Fn(&PatchedBlock) -> Option<u32>,
        mut each: impl FnMut(T, Snapshot),
    ) -> Result<(), ReadFault> {
        let mut missing = Vec::new();
        let mut batch = Batch::default();
        let (wanted, shards) = self.shards.sorted(blocks.iter().map(|all| (all.0, *all)));
        let shards: Vec<_> = shards.collect();
        self.read_absent(shards.iter().map(|(shard, group)| (*shard, &wanted[group.clone()])), transaction)?;
        for (shard_at, group) in shards {
            let mut rest = &wanted[group];
            if rest.len() > PREFETCH_BLOCKS {
                self.shards.at(shard_at).prefetch_pending(transaction);
            }
            while !rest.is_empty() {
                let (piece, next) = rest.split_at(rest.len().min(PREFETCH_BLOCKS));
                rest = next;
                let mut log_sums = [None; PREFETCH_BLOCKS];
                let mut shard = self.shards.at(shard_at);
                shard.slots.prefetch_counts(piece);
                shard.begin_patching(piece, transaction, &mut batch);
                // They arrive in the CPU's cache while these are copied.
                next.iter().take(PREFETCH_BLOCKS).for_each(|(_, hint, _)| shard.slots.prefetch(*hint));
                if !batch.is_empty() {
                    // Other threads need not wait for the copies.
                    drop(shard);
                    batch.patch(&self.difference, log_sum);
                    shard = self.shards.at(shard_at);
                    for patching in &mut batch.blocks {
                        if patching.is_damaged {
                            return Err(not_as_noted(patching.block));
                        }
                        let (number, (_, hint, _)) = (patching.number, piece[patching.number]);
                        log_sums[number] = shard.end_patching(patching, transaction, hint);
                    }
                    batch.clear();
                }
                if let Some(block) = shard.damaged() {
                    return Err(not_as_noted(block));
                }
                for (log_sum, &(block, mut hint, with)) in log_sums.into_iter().zip(piece) {
                    match shard.take(block, &mut hint, transaction) {
                        Some(Taken { bytes, owner, has_sum, whole_sum, .. }) => {
                            let (buffer, owner) = (Buffer { block, bytes, hint }, Owner::from_word(owner));
                            each(with, Snapshot { buffer, owner, has_sum, log_sum, whole_sum });
                        }
                        None => missing.push((block, with)),
                    }
                }
            }
        }
        for (block, with) in missing {
            let (buffer, owner) = self.snapshot(block)?;
            each(with, Snapshot { buffer, owner, has_sum: false, log_sum: None, whole_sum: None });
        }
        Ok(())
    }

    /// The device has all changes up to this transaction: these blocks may be evicted. `are_kept`: it holds
    /// references to the same bytes (see
    /// [`Device::write_shared_at`](extant_device::Device::write_shared_at)), which must not keep a block in
    /// the cache.
    pub fn set_clean_through(&self, transaction: Tid, are_kept: bool) {
        self.shards.all().for_each(|mut shard| shard.set_clean_through(transaction, are_kept));
    }

    /// Drops the block, even if it was changed.
    pub fn forget(&self, block: Pblk) {
        if self.shards.of(block).forget(block) {
            self.held_bytes.fetch_sub(self.charge_per_block(), Ordering::Relaxed);
            self.budget.release(self.charge_per_block());
        }
    }
}

impl Buffer {
    /// The shared bytes.
    #[must_use]
    pub fn into_shared(self) -> Bytes {
        self.bytes
    }
}

/// An editor of one endless transaction: its changes stay in memory. For tests of code that uses [`Edit`].
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
