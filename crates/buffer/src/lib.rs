//! Metadata blocks in memory: read once, verified when they enter, shared by all users.
//!
//! Owns: the cache of blocks, its budget, what each block was verified as, changes in memory ([`Edit`]). Does
//! **not** own: what a block means (callers bring the verification), file data, when a changed block goes to
//! the device (see `journal`).
//!
//! Invariants
//! 1. A block is returned for an [`Owner`] only after that owner's verification passed on these bytes
//!    (INV-M3). A block in memory records the last owner that passed, so the verification runs once for a
//!    block with one owner. A block that was changed here belongs to the owner of the change, even if it is
//!    read as something else: it gets that owner's checksum.
//! 2. INV-M4: returned bytes never change: a [`Buffer`] keeps its copy alive, and a change then goes to a
//!    copy of its own.
//! 3. Memory is charged to the budget; on request the cache evicts the oldest untouched blocks. Blocks with
//!    other holders stay: evicting them would free nothing. A device in memory that keeps the blocks
//!    themselves does not count as a holder.
//! 4. No lock is held across device I/O, a verification or a charge.
//! 5. INV-M6: a block in the cache is never replaced by an older version: bytes that were read from the
//!    device while a change came, was written home and left are not kept.
//! 6. A changed block stays until the device has what its transaction changed
//!    ([`Buffers::set_clean_through`]).
//! 7. While a transaction's blocks are [taken](Buffers::begin_taking) the next one may change, drop and make
//!    blocks: what is taken is as the first one left it.
//! 8. A block that is said to end in its checksum does: see [`PendingChange`]. One that came with the
//!    checksum of all its bytes ([`Filled`]) has them as long as that is known.
//! 9. [Pending changes](PendingChange) of a block are applied before its bytes are read.
//!
//! Locks: one per shard; no two are ever held together.
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
//! let verify = |bytes: &[u8]| Malformed::unless(bytes.starts_with(b"node"), "toy", "must be a node", bytes[0]);
//! assert_eq!(&buffers.get(Pblk(3), owner, verify).unwrap()[..4], b"node");
//! let error = buffers.get(Pblk(4), owner, verify).unwrap_err();
//! assert_eq!(error.to_string(), "block 4: toy: is a node (found 0x0)");
//! ```

#![forbid(unsafe_code)]

mod edit;
mod shard;
mod waiting;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSliceMut;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::checksum::Difference;
use extant_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use extant_base::sync::{CachePadded, Mutex, MutexGuard};
use extant_base::{BlockSize, Corrupt, CorruptAt, Ino, Lblk, Malformed, Pblk};
use extant_device::{Device, DeviceFault};
use extant_memory::{Budget, Shrinker};

pub use edit::{Direct, Edit, Filled, Made, PendingChange, Seal, Snapshot, Summed};
pub use extant_device::{
    Copies, make_room, prefetch, prefetch_block, prefetch_ends, prefetch_object, prefetch_start,
};

use crate::shard::{Shard, Slot};

/// Shards of the cache; more than the threads that usually look something up at the same moment.
const SHARDS: usize = 256;
const _: () = assert!(SHARDS.is_power_of_two() && SHARDS <= 1 << u8::BITS, "a shard's number is one byte");

/// The most consecutive blocks that are in one shard. Two threads in two directories, which are far apart,
/// share few shards then, and a lock stays with the CPU that had it last.
const ROW_MAX: usize = 64;

/// Rows in a shard of a full cache, at least: with fewer shards would be of very different sizes, and give up
/// what is in use.
const ROWS_MIN: usize = 8;

/// The largest device read of a [`prefetch`](Buffers::prefetch).
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// The most that one call of [`prefetch`](Buffers::prefetch) brings in, whatever it was asked for.
const PREFETCH_BYTES_MAX: u64 = 8 << 20;

/// What a block takes besides its bytes: its slot, its place in the table, and the count of its holders.
const OVERHEAD: usize = 96;

/// A block's bytes, shared.
pub type Bytes = extant_device::SharedBytes;

/// Why a structure cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFault {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The bytes break a rule of the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl ReadFault {
    /// `fact` was found at `place`.
    #[must_use]
    pub fn corrupt(place: CorruptAt, fact: Malformed) -> Self {
        Self::Corrupt(Corrupt::at(place, fact))
    }

    /// The same, known to belong to this inode; a device's fault stays as it is.
    #[must_use]
    pub fn of_ino(self, ino: Ino) -> Self {
        match self {
            Self::Corrupt(corrupt) => Self::Corrupt(corrupt.of_ino(ino)),
            device @ Self::Device(_) => device,
        }
    }

    /// The same, known to be this logical block; a device's fault stays as it is.
    #[must_use]
    pub fn at_lblk(self, lblk: Lblk) -> Self {
        match self {
            Self::Corrupt(Corrupt { place, fact }) => Self::corrupt(place.at_lblk(lblk), fact),
            device @ Self::Device(_) => device,
        }
    }
}

/// What a block is verified as: its kind, and the inode that it belongs to (0 for none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Distinguishes kinds of blocks; any number that the kinds' owners agree on.
    pub kind: Kind,
    /// Inode number that seeds the checksum, or 0.
    pub ino: u32,
}

impl Owner {
    /// As one word that is never 0, which says "not verified".
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
    /// Allocation of blocks.
    BlockBitmap,
    /// Allocation of inodes.
    InodeBitmap,
    /// Slots of the orphan file.
    Orphans,
    /// The superblock's block.
    Superblock,
    /// Anything else.
    Other,
}

impl Kind {
    /// By their numbers.
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

/// Where a block was in the cache, so that the same user finds it again without a search. A wrong hint, or
/// one of another block, costs the search and is corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint(u32);

impl Hint {
    /// Nowhere yet.
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
    /// Where it lives.
    #[must_use]
    pub fn block(&self) -> Pblk {
        self.block
    }

    /// Where it was in the cache.
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
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Where each shard's slots are, for prefetching one without a lock.
    slots_at: [AtomicUsize; SHARDS],
    /// Makes the spread of blocks over shards and buckets unpredictable for the author of an image.
    salt: u64,
    /// Binary logarithm of the blocks in a row.
    row_log: u32,
    held_bytes: CachePadded<AtomicUsize>,
    /// The shard that is asked first at the next shrink.
    turn: AtomicUsize,
    prefetched: AtomicU64,
    /// For checksums that are kept right with changes: see [`PendingChange`].
    difference: OnceLock<Difference>,
}

impl Buffers {
    /// An empty cache over a device whose file system has `blocks` blocks.
    #[must_use]
    pub fn new(
        device: Arc<dyn Device>,
        block_size: BlockSize,
        blocks: u64,
        budget: &Arc<Budget>,
    ) -> Arc<Self> {
        let salt = RandomState::new().hash_one(blocks);
        let waiting_max = waiting::bytes_max(budget.limit());
        let buffers = Arc::new(Self {
            device,
            block_size,
            blocks,
            budget: budget.clone(),
            shards: (0..SHARDS).map(|_| CachePadded(Mutex::new(Shard::new(salt, waiting_max)))).collect(),
            slots_at: std::array::from_fn(|_| AtomicUsize::new(0)),
            salt,
            row_log: (budget.limit() / (block_size.len() * SHARDS * ROWS_MIN)).clamp(1, ROW_MAX).ilog2(),
            held_bytes: CachePadded::default(),
            turn: AtomicUsize::new(0),
            prefetched: AtomicU64::new(0),
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

    /// Blocks of the file system: every number below is a block.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The block, verified as `owner`'s.
    ///
    /// # Errors
    /// The block lies outside the file system, the device refused, or `verify` did (its fact gets the block
    /// as place, and the owner's inode where it has one).
    pub fn get(
        &self,
        block: Pblk,
        owner: Owner,
        verify: impl FnOnce(&[u8]) -> Result<(), Malformed>,
    ) -> Result<Buffer, ReadFault> {
        let mut hint = Hint::NONE;
        self.get_at(block, &mut hint, owner, verify)
    }

    /// As [`get`](Self::get), with a hint of the block's slot.
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
        let hit = self.shard(block).hit(block, hint);
        let (bytes, verified) = match hit {
            Some(hit) => hit,
            None => self.bring_in(block).map_err(|fault| of_owner(fault, owner))?,
        };
        if verified != word {
            // Again and again for a block that fails: it stays in memory, so that this costs no read.
            verify(&bytes)
                .map_err(|fact| of_owner(ReadFault::corrupt(CorruptAt::block(block), fact), owner))?;
            self.shard(block).set_verified(block, &bytes, word);
        }
        Ok(Buffer { block, bytes, hint: *hint })
    }

    /// Passes the block's bytes, verified for `owner`, to a reader of few of them. It does not count as a
    /// holder, which is more than half of the cost of [`get_at`](Self::get_at) for a block that was not used
    /// lately.
    ///
    /// `look` runs under a lock of the cache: it is short, and asks nothing of the cache.
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
        if !self.shard(block).look(block, hint, owner.word(), look) {
            look(&self.get_at(block, hint, owner, verify)?);
        }
        Ok(())
    }

    /// Verifies a block that the caller will change without reading it: if it was read again meanwhile, it
    /// may have been damaged, and the change would give it a valid checksum. Costs little if the block stayed
    /// in memory.
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
        if self.shard(block).is_trusted(block, hint, owner.word()) {
            return Ok(());
        }
        self.get_at(block, hint, owner, verify).map(drop)
    }

    /// Prefetches the slot of a block that is changed or read next, if its hint is known; does not wait for
    /// the block.
    pub fn prefetch_slot(&self, block: Pblk, hint: Hint) {
        let slots_at = self.slots_at[self.shard_of(block)].load(Ordering::Relaxed);
        extant_device::prefetch_address(
            slots_at.wrapping_add((hint.0 as usize).wrapping_mul(size_of::<Slot>())),
        );
    }

    /// Reads blocks that will be asked for soon, those that are not there yet: one transfer for each run of
    /// such blocks, of at most 1 MiB, and at most 8 MiB (or an eighth of the budget) for a call. Best effort:
    /// errors show when the block is asked for.
    pub fn prefetch(&self, first: Pblk, len: u32) {
        let bytes_max = PREFETCH_BYTES_MAX.min(self.budget.limit() as u64 / 8);
        let len = u64::from(len).min(bytes_max >> self.block_size.log2());
        let end = first.0.saturating_add(len).min(self.blocks);
        let piece_max = PIECE_BYTES_MAX >> self.block_size.log2();
        let missing = |block: u64| {
            let shard = self.shard(Pblk(block));
            (!shard.contains(Pblk(block))).then(|| shard.evictions())
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

    /// What the cache did and holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            prefetched: self.prefetched.load(Ordering::Relaxed),
            bytes: self.held_bytes.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.evicted += shard.evicted;
            stats.blocks += shard.len();
        }
        stats
    }

    fn shard(&self, block: Pblk) -> MutexGuard<'_, Shard> {
        self.shards[self.shard_of(block)].lock()
    }

    fn shard_of(&self, block: Pblk) -> usize {
        // Top bits: the buckets inside a shard go by others.
        (extant_base::salted::spread(block.0 >> self.row_log ^ self.salt) >> (u64::BITS - SHARDS.ilog2()))
            as usize
    }

    fn read(&self, block: Pblk) -> Result<Bytes, ReadFault> {
        let outside = || {
            let fact = Malformed::new("block number", "block must lie inside the file system", block.0);
            ReadFault::corrupt(CorruptAt::block(block), fact)
        };
        if block.0 >= self.blocks {
            return Err(outside());
        }
        let offset = self.block_size.offset_of(block).ok_or_else(outside)?;
        let mut bytes = Bytes::zeroed(self.block_size.len());
        self.device.read_at(offset, unshared(&mut bytes))?;
        Ok(bytes)
    }

    /// Reads a run of blocks; `since`: what [`Shard::evictions`] was for each of them before. Those that
    /// came, or may have come and gone, meanwhile are left out.
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

    /// Reads a block that is not here; what is kept of it, and the owner that it is verified as.
    ///
    /// Between the read and the insertion others may make the block anew, commit it, write it home and let it
    /// go: what was read is out of date then, and is read again.
    fn bring_in(&self, block: Pblk) -> Result<(Bytes, u64), ReadFault> {
        loop {
            let since = {
                let mut shard = self.shard(block);
                shard.misses += 1;
                shard.evictions()
            };
            let bytes = self.read(block)?;
            if let Some(kept) = self.insert(block, bytes, since) {
                return Ok(kept);
            }
        }
    }

    /// Keeps what was read, or, when another thread was first, takes what that one keeps. With the owner that
    /// it is verified as. `None`: see [`Shard::insert`].
    fn insert(&self, block: Pblk, bytes: Bytes, since: u64) -> Option<(Bytes, u64)> {
        let (kept, verified, is_new) = {
            let mut shard = self.shard(block);
            let inserted = shard.insert(block, bytes, since)?;
            self.note_slots(block, &shard);
            inserted
        };
        if is_new {
            self.charge();
        }
        Some((kept, verified))
    }

    /// The slots of this block's shard may lie elsewhere now.
    fn note_slots(&self, block: Pblk, shard: &Shard) {
        self.slots_at[self.shard_of(block)].store(shard.slots_at(), Ordering::Relaxed);
    }

    /// Accounts for one block more; with no lock held.
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

    /// Takes from one shard after the other, a part from each, so that no shard loses all it has. When all
    /// blocks were touched lately, one call may free nothing: it only takes the touches off, and the next
    /// call finds some.
    fn shrink(&self, bytes: usize) -> usize {
        let wanted = bytes.div_ceil(self.charge_per_block());
        let per_shard = wanted.div_ceil(SHARDS / 4);
        let mut freed = 0;
        for _ in 0..SHARDS {
            if freed >= wanted {
                break;
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % SHARDS;
            // Dropped here, behind the lock: freeing memory takes long.
            let evicted = self.shards[turn].lock().evict(per_shard.min(wanted - freed), 4 * per_shard);
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

/// What a cache of metadata blocks did since it began, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Blocks asked for that were there.
    pub hits: u64,
    /// Blocks asked for that had to be read.
    pub misses: u64,
    /// Blocks read ahead.
    pub prefetched: u64,
    /// Blocks given back to the budget.
    pub evicted: u64,
    /// Blocks held now.
    pub blocks: usize,
    /// Bytes charged for them.
    pub bytes: usize,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "metadata blocks")?;
        writeln!(f, "  hits        {:>12}", self.hits)?;
        writeln!(f, "  misses      {:>12}", self.misses)?;
        writeln!(f, "  prefetched  {:>12}", self.prefetched)?;
        writeln!(f, "  evicted     {:>12}", self.evicted)?;
        writeln!(f, "  held        {:>12} blocks, {} bytes", self.blocks, self.bytes)
    }
}

fn of_owner(fault: ReadFault, owner: Owner) -> ReadFault {
    if owner.ino == 0 { fault } else { fault.of_ino(Ino(owner.ino)) }
}

/// The bytes of a block that no other thread has seen yet.
fn unshared(bytes: &mut Bytes) -> &mut [u8] {
    bytes.get_mut().expect("just made, not shared")
}

#[cfg(test)]
mod tests;
