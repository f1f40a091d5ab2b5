//! A shared cache of metadata blocks. Each block is verified before its first use.
//!
//! Owns: the cached blocks, their charges to the memory budget (see `memory`), the recorded owner of each
//! block (invariant 1), changes of blocks in memory ([`Edit`]). Does **not** own: the meaning of a block (the
//! caller passes the verification), file data, the write-back of changed blocks (see `journal`).
//!
//! A block's *home* is its address in the file system. (The journal also writes blocks to its log.)
//!
//! Invariants
//! 1. INV-M3: an [`Owner`] is a kind of block and an inode, for example "leaf of directory 12". A block is
//!    returned for an owner only after its bytes have passed the verification for that owner. The cache
//!    records one owner of each block, and returns the block for this owner without verifying it again.
//!    - If the block did not change since it was read, the recorded owner is that of the last verification.
//!    - If the block changed since it was read, the recorded owner is that of the last change, because the
//!      commit computes the checksum for this owner. A read for another owner verifies the block every time,
//!      and the recorded owner stays.
//! 2. INV-M4: returned bytes never change. A [`Buffer`] holds a reference to its bytes, and a later change of
//!    the block goes to a copy.
//! 3. The cache charges its memory to the budget. When the budget is exceeded, the cache evicts blocks by
//!    second chance (the CLOCK algorithm): it evicts blocks that were not used since the clock hand's last
//!    pass. If the cache has more than half of the budget and finds too few blocks of this kind, it evicts
//!    used blocks, too. A block whose bytes are referenced outside the cache is not evicted, because that
//!    would free no memory. (A device in memory keeps references to the bytes that were written to it. They
//!    do not count: otherwise a block that was written to such a device would never be evicted.)
//! 4. No lock is held during device I/O, a caller's verification or a charge.
//! 5. INV-M6: the cache never replaces bytes of a block by older ones. While one thread reads a block from
//!    the device, other threads may change the block, write it home and evict it. In this case, the cache
//!    drops the bytes that the first thread has read.
//! 6. A changed block stays in the cache until its changes are at home ([`Buffers::set_clean_through`]),
//!    unless it is dropped ([`Buffers::forget`]).
//! 7. A commit [takes](Buffers::begin_taking) references to the blocks of a closed transaction. Meanwhile the
//!    next transaction may change, drop and create blocks. The commit gets each block as the closed
//!    transaction left it.
//! 8. A caller can change a few bytes of a block without reading the block. The cache keeps this [pending
//!    change](PendingChange) beside the block, and applies the change before the block is read or committed.
//!    The block need not be in memory (module `absent`).
//! 9. The cache records two facts about a block, so that a commit need not compute a checksum over the whole
//!    block:
//!    - (a) The last four bytes of the block are its correct checksum. A commit that applies pending changes
//!      updates the checksum and records this fact. The next commit that applies pending changes derives the
//!      new checksum from the old one and the changed bytes. Any other change of the block clears the record.
//!    - (b) The CRC-32C of the whole block, if the creator of the block passed it ([`BlockContents`]). Any
//!      change of the block clears the record.
//!
//! Locks: the cache is divided into shards, each with one lock. No thread holds two of them.
//!
//! ```
//! use extant_base::{BlockSize, Malformed, Pblk};
//! use extant_buffer::{Buffers, Kind, Owner};
//! use extant_device::{Device, MemDevice};
//! use std::sync::Arc;
//!
//! let device = Arc::new(MemDevice::new(64 << 10));
//! device.write_at(3 * 1024, b"node").unwrap();
//! let buffers = Buffers::new(device, BlockSize::MIN, 64, &extant_memory::Budget::new(1 << 20));
//! let owner = Owner { kind: Kind::Other, ino: 0 };
//! let verify =
//!     |bytes: &[u8]| Malformed::unless(bytes.starts_with(b"node"), "toy", "must be a node", bytes[0]);
//! assert_eq!(&buffers.get(Pblk(3), owner, verify).unwrap()[..4], b"node");
//! let error = buffers.get(Pblk(4), owner, verify).unwrap_err();
//! assert_eq!(error.to_string(), "block 4: toy: must be a node, found 0x0");
//! ```

#![forbid(unsafe_code)]

mod absent;
mod edit;
mod pending;
mod shard;
mod shards;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSliceMut;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::checksum::Difference;
use extant_base::sync::CachePadded;
use extant_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use extant_base::{BlockSize, Corrupt, CorruptAt, Ino, Lblk, Malformed, Pblk};
use extant_device::{Device, DeviceFault};
use extant_memory::{Budget, Shrinker};

pub use edit::{BlockContents, Direct, Edit, Seal, Snapshot};
pub use extant_device::{
    Copies, make_room, prefetch, prefetch_block, prefetch_ends, prefetch_object, prefetch_start,
};
pub use pending::{ChecksumSpan, PatchedBlock, PendingChange};

use crate::shard::Shard;
use crate::shards::Shards;

/// Number of shards; larger than the usual number of concurrent lookups.
const SHARDS: usize = 256;
const _: () = assert!(SHARDS.is_power_of_two() && SHARDS <= 1 << u8::BITS, "a shard's number is one byte");

/// The largest device read of a [`prefetch`](Buffers::prefetch).
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// The most bytes that one call of [`prefetch`](Buffers::prefetch) reads.
const PREFETCH_BYTES_MAX: u64 = 8 << 20;

/// Memory of a block besides its bytes: slot, table entry, and reference count.
const OVERHEAD: usize = 96;

/// A block's bytes, shared.
pub type Bytes = extant_device::SharedBytes;

/// Why a structure cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFault {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The bytes violate a rule of the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl ReadFault {
    /// `fact` was found at `place`.
    #[must_use]
    pub fn corrupt(place: CorruptAt, fact: Malformed) -> Self {
        Self::Corrupt(Corrupt::at(place, fact))
    }

    /// The same error with an inode number; a device error is unchanged.
    #[must_use]
    pub fn of_ino(self, ino: Ino) -> Self {
        match self {
            Self::Corrupt(corrupt) => Self::Corrupt(corrupt.of_ino(ino)),
            device @ Self::Device(_) => device,
        }
    }

    /// The same error with a logical block; a device error is unchanged.
    #[must_use]
    pub fn at_lblk(self, lblk: Lblk) -> Self {
        match self {
            Self::Corrupt(Corrupt { place, fact }) => Self::corrupt(place.at_lblk(lblk), fact),
            device @ Self::Device(_) => device,
        }
    }
}

/// What a block is verified as: its kind, and the inode it belongs to (0 for none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The kind of block.
    pub kind: Kind,
    /// Inode number that seeds the checksum, or 0.
    pub ino: u32,
}

impl Owner {
    /// A nonzero word; 0 means "not verified".
    fn word(self) -> u64 {
        (self.kind as u64 + 1) << 32 | u64::from(self.ino)
    }

    fn from_word(word: u64) -> Option<Self> {
        let kind = *Kind::ALL.get(usize::try_from((word >> 32).checked_sub(1)?).ok()?)?;
        Some(Self { kind, ino: word as u32 })
    }
}

/// Kinds of metadata blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Group descriptors.
    Descriptors,
    /// Inode table.
    InodeTable,
    /// Node of an extent tree.
    Extents,
    /// Indirect block.
    Indirect,
    /// Leaf of a directory.
    DirLeaf,
    /// Index node of a directory.
    DirIndex,
    /// Extended attributes.
    Xattr,
    /// Block bitmap.
    BlockBitmap,
    /// Inode bitmap.
    InodeBitmap,
    /// Block of the orphan file.
    Orphans,
    /// The block with the superblock.
    Superblock,
    /// Anything else.
    Other,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    const ALL: [Self; 12] = [
        Self::Descriptors,
        Self::InodeTable,
        Self::Extents,
        Self::Indirect,
        Self::DirLeaf,
        Self::DirIndex,
        Self::Xattr,
        Self::BlockBitmap,
        Self::InodeBitmap,
        Self::Orphans,
        Self::Superblock,
        Self::Other,
    ];
}

/// The slot of a block in the cache. Callers that access the same block repeatedly keep it to skip the
/// lookup. A wrong or stale hint costs a lookup, which corrects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint(u32);

impl Hint {
    /// No slot is known.
    pub const NONE: Self = Self(u32::MAX);
}

/// A block in memory; cheap to clone.
#[derive(Debug, Clone)]
pub struct Buffer {
    block: Pblk,
    bytes: Bytes,
    hint: Hint,
}

impl Buffer {
    /// The block's number.
    #[must_use]
    pub fn block(&self) -> Pblk {
        self.block
    }

    /// The block's slot in the cache.
    #[must_use]
    pub fn hint(&self) -> Hint {
        self.hint
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The cache of metadata blocks of one file system.
pub struct Buffers {
    device: Arc<dyn Device>,
    block_size: BlockSize,
    blocks: u64,
    budget: Arc<Budget>,
    shards: Shards,
    held_bytes: CachePadded<AtomicUsize>,
    /// The shard where the next shrink begins.
    turn: AtomicUsize,
    prefetched: AtomicU64,
    absent: absent::Absent,
    /// See [`Stats::deferred_reads`].
    deferred_reads: AtomicU64,
    /// Updates checksums incrementally: see [`PendingChange`].
    difference: OnceLock<Difference>,
}

impl Buffers {
    /// An empty cache over a device with a file system of `blocks` blocks.
    #[must_use]
    pub fn new(
        device: Arc<dyn Device>,
        block_size: BlockSize,
        blocks: u64,
        budget: &Arc<Budget>,
    ) -> Arc<Self> {
        let salt = RandomState::new().hash_one(blocks);
        let pending_max = pending::bytes_max(budget.limit());
        let buffers = Arc::new(Self {
            device,
            block_size,
            blocks,
            budget: budget.clone(),
            shards: Shards::new(salt, budget.limit() / block_size.len(), || {
                Shard::new(salt, pending_max, block_size.len())
            }),
            held_bytes: CachePadded::default(),
            turn: AtomicUsize::new(0),
            prefetched: AtomicU64::new(0),
            absent: absent::Absent::default(),
            deferred_reads: AtomicU64::new(0),
            difference: OnceLock::new(),
        });
        let weak: Weak<Self> = Arc::downgrade(&buffers);
        budget.register(weak);
        buffers
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Blocks of the file system; all smaller numbers are valid.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The block, verified for `owner`.
    ///
    /// # Errors
    /// The block lies outside the file system, the device failed, or `verify` did; the error then has the
    /// block number, and the owner's inode if there is one.
    pub fn get(
        &self,
        block: Pblk,
        owner: Owner,
        verify: impl FnOnce(&[u8]) -> Result<(), Malformed>,
    ) -> Result<Buffer, ReadFault> {
        let mut hint = Hint::NONE;
        self.get_at(block, &mut hint, owner, verify)
    }

    /// As [`get`](Self::get), with a hint.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        verify: impl FnOnce(&[u8]) -> Result<(), Malformed>,
    ) -> Result<Buffer, ReadFault> {
        let word = owner.word();
        let hit = self.shards.of(block).hit(block, hint);
        let (bytes, verified) = match hit {
            Some(hit) => hit,
            None => self.bring_in(block).map_err(|fault| of_owner(fault, owner))?,
        };
        if verified != word {
            // A block that fails verification stays in memory: verifying it again costs no read.
            verify(&bytes)
                .map_err(|fact| of_owner(ReadFault::corrupt(CorruptAt::block(block), fact), owner))?;
            self.shards.of(block).set_verified(block, &bytes, word);
        }
        Ok(Buffer { block, bytes, hint: *hint })
    }

    /// Calls `look` with the block's bytes, verified for `owner`. For callers that read only a few of them:
    /// the reference count does not change, which is more than half of the cost of [`get_at`](Self::get_at)
    /// for a block that is in no CPU cache.
    ///
    /// `look` runs under a lock of the cache: it must be short and must not access the cache.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn look_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        verify: impl FnOnce(&[u8]) -> Result<(), Malformed>,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), ReadFault> {
        if !self.shards.of(block).look(block, hint, owner.word(), look) {
            look(&self.get_at(block, hint, owner, verify)?);
        }
        Ok(())
    }

    /// Verifies a block before a change that does not read it. If the block was read again, it may be
    /// damaged, and the change would then give it a correct checksum. Cheap if the block stayed in the cache.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn verify_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        owner: Owner,
        verify: impl FnOnce(&[u8]) -> Result<(), Malformed>,
    ) -> Result<(), ReadFault> {
        if self.shards.of(block).is_trusted(block, hint, owner.word()) {
            return Ok(());
        }
        self.get_at(block, hint, owner, verify).map(drop)
    }

    /// Prefetches the slot of a block into the CPU's cache if the hint is known, without waiting.
    pub fn prefetch_slot(&self, block: Pblk, hint: Hint) {
        self.shards.prefetch_slot(block, hint);
    }

    /// Reads missing blocks that will be needed soon: one transfer of at most 1 MiB for each contiguous run,
    /// and at most 8 MiB (or an eighth of the budget) per call. Best effort: an error shows when the block is
    /// read for use.
    pub fn prefetch(&self, first: Pblk, len: u32) {
        let bytes_max = PREFETCH_BYTES_MAX.min(self.budget.limit() as u64 / 8);
        let len = u64::from(len).min(bytes_max >> self.block_size.log2());
        let end = first.0.saturating_add(len).min(self.blocks);
        let piece_max = PIECE_BYTES_MAX >> self.block_size.log2();
        let missing = |block: u64| {
            let shard = self.shards.of(Pblk(block));
            (!shard.slots.contains(Pblk(block))).then(|| shard.evictions())
        };
        let mut at = first.0;
        let mut since = Vec::new();
        while at < end {
            let start = at;
            since.clear();
            while at < end
                && at - start < piece_max
                && let Some(evictions) = missing(at)
            {
                since.push(evictions);
                at += 1;
            }
            if at == start {
                at += 1;
            } else if self.read_piece(start, &since).is_err() {
                return;
            }
        }
    }

    /// Counters, and the cache's present contents.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            prefetched: self.prefetched.load(Ordering::Relaxed),
            deferred_reads: self.deferred_reads.load(Ordering::Relaxed),
            bytes: self.held_bytes.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for shard in self.shards.all() {
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.evicted += shard.evicted;
            stats.blocks += shard.slots.len();
        }
        stats
    }

    /// The byte offset of a block of the file system.
    fn offset_of(&self, block: Pblk) -> Result<u64, ReadFault> {
        let offset = self.block_size.offset_of(block).filter(|_| block.0 < self.blocks);
        offset.ok_or_else(|| {
            let fact = Malformed::new("block number", "block must lie inside the file system", block.0);
            ReadFault::corrupt(CorruptAt::block(block), fact)
        })
    }

    fn read(&self, block: Pblk) -> Result<Bytes, ReadFault> {
        let offset = self.offset_of(block)?;
        let mut bytes = Bytes::zeroed(self.block_size.len());
        self.device.read_at(offset, unshared(&mut bytes))?;
        Ok(bytes)
    }

    /// Reads a run of blocks. `since`: the values of [`Shard::evictions`] before the read. Blocks that were
    /// inserted, or possibly inserted and evicted, in the meantime are skipped.
    fn read_piece(&self, start: u64, since: &[u64]) -> Result<(), DeviceFault> {
        let Some(offset) = self.block_size.offset_of(Pblk(start)) else { return Ok(()) };
        let mut blocks: Vec<Bytes> = since.iter().map(|_| Bytes::zeroed(self.block_size.len())).collect();
        let mut slices: Vec<_> = blocks.iter_mut().map(|bytes| IoSliceMut::new(unshared(bytes))).collect();
        self.device.read_vectored_at(offset, &mut slices)?;
        for ((block, bytes), since) in (start..).zip(blocks).zip(since) {
            self.insert(Pblk(block), bytes, *since);
        }
        self.prefetched.fetch_add(since.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a missing block; returns its cached bytes and the owner it is verified for.
    ///
    /// Between the read and the insertion another thread may create the block, commit it, write it home and
    /// evict it. Then the bytes are stale, and the block is read again.
    fn bring_in(&self, block: Pblk) -> Result<(Bytes, u64), ReadFault> {
        loop {
            let since = {
                let mut shard = self.shards.of(block);
                shard.misses += 1;
                shard.evictions()
            };
            let bytes = self.read(block)?;
            if let Some(kept) = self.insert(block, bytes, since) {
                return Ok(kept);
            }
        }
    }

    /// Caches the bytes. If another thread inserted the block first, returns that thread's bytes. Also
    /// returns the owner that they are verified for. `None`: see [`Shard::insert`].
    fn insert(&self, block: Pblk, bytes: Bytes, since: u64) -> Option<(Bytes, u64)> {
        let (kept, verified, is_new) = {
            let mut shard = self.shards.of(block);
            let inserted = shard.insert(block, bytes, since)?;
            self.shards.note_slots(block, &shard);
            inserted
        };
        if is_new {
            self.charge();
        }
        Some((kept, verified))
    }

    /// Charges one more block. The caller holds no lock.
    fn charge(&self) {
        let charge = self.charge_per_block();
        self.held_bytes.fetch_add(charge, Ordering::Relaxed);
        self.budget.charge(charge);
    }

    fn charge_per_block(&self) -> usize {
        self.block_size.len() + OVERHEAD
    }
}

impl Shrinker for Buffers {
    fn name(&self) -> &'static str {
        "metadata blocks"
    }

    fn cached_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Evicts a part of each shard in turn, so that no shard loses all its blocks. If all blocks were touched
    /// recently, one call may free nothing: it clears the touched flags, and the next call finds blocks to
    /// evict. But if these blocks take more than half of the budget, it evicts touched ones: a load that
    /// touches all blocks more often than the shrinker visits them would exceed the budget.
    fn shrink(&self, bytes: usize) -> usize {
        let wanted = bytes.div_ceil(self.charge_per_block());
        let per_shard = wanted.div_ceil(SHARDS / 4);
        let mut freed = 0;
        let is_forced = self.cached_bytes() > self.budget.limit() / 2;
        for _ in 0..SHARDS {
            if freed >= wanted {
                break;
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % SHARDS;
            // Dropped here, after the lock is released: freeing memory takes long.
            let evicted = self.shards.at(turn).evict(per_shard.min(wanted - freed), 4 * per_shard, is_forced);
            freed += evicted.len();
        }
        let freed_bytes = freed * self.charge_per_block();
        self.held_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        self.budget.release(freed_bytes);
        freed_bytes
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.budget.release(*self.held_bytes.get_mut());
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers: {} blocks of {} bytes; {:?}", self.blocks, self.block_size, self.stats())
    }
}

/// Counters of a metadata cache since its creation, and its present contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Lookups that found the block.
    pub hits: u64,
    /// Lookups that had to read the block.
    pub misses: u64,
    /// Blocks prefetched.
    pub prefetched: u64,
    /// Blocks that were changed without being read, and read later, many together: see [`PendingChange`].
    pub deferred_reads: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Blocks held now.
    pub blocks: usize,
    /// Bytes charged to the budget.
    pub bytes: usize,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "metadata blocks")?;
        writeln!(f, "  hits        {:>12}", self.hits)?;
        writeln!(f, "  misses      {:>12}", self.misses)?;
        writeln!(f, "  prefetched  {:>12}", self.prefetched)?;
        writeln!(f, "  deferred    {:>12}", self.deferred_reads)?;
        writeln!(f, "  evicted     {:>12}", self.evicted)?;
        writeln!(f, "  held        {:>12} blocks, {} bytes", self.blocks, self.bytes)
    }
}

fn of_owner(fault: ReadFault, owner: Owner) -> ReadFault {
    if owner.ino == 0 { fault } else { fault.of_ino(Ino(owner.ino)) }
}

/// The bytes of a block that is not shared yet.
fn unshared(bytes: &mut Bytes) -> &mut [u8] {
    bytes.get_mut().expect("just made, not shared")
}

#[cfg(test)]
mod tests;
