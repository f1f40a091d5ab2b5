//! The cache of inodes for reading.
//!
//! Invariants
//! 1. Two callers may load the same inode at the same time; both get the copy that was inserted first.
//! 2. An inode in use stays in the cache, so that it is loaded once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use extant_base::{Corrupt, Ino, Lblk, Malformed, Pblk};
use extant_buffer::{Kind, Owner, ReadFault};
use extant_mapping::MapState;
use extant_memory::Shrinker;
use extant_ondisk::inode::flags;

use crate::live::InodeCache;
use crate::{Fault, Inode, Shared};

const SHARDS: usize = 64;
/// Maximum number of inode table blocks between two needed ones that are read as well, to combine two reads
/// into one.
const GAP_BLOCKS: u64 = 8;
/// Maximum number of inodes that one call of the shrinker visits, including those in use.
const SCAN_MAX: usize = 1 << 16;

/// The inodes of a volume.
pub struct Inodes {
    shared: Arc<Shared>,
    kept: Arc<InodeShards>,
    live: OnceLock<Arc<dyn LiveOwner>>,
}

/// Access to the inodes of a volume that is open for writing; they have a separate cache.
pub trait LiveOwner: Send + Sync {
    /// The cache of inodes that may change.
    fn inodes(&self) -> &InodeCache;
}

struct InodeShards {
    budget: Arc<extant_memory::Budget>,
    shards: Vec<Mutex<HashMap<u32, Arc<Inode>>>>,
    bytes: AtomicUsize,
    /// The shard at which the next call of the shrinker begins.
    turn: AtomicUsize,
}

impl Inodes {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(shared: Shared) -> Self {
        let kept = Arc::new(InodeShards {
            budget: Arc::clone(&shared.budget),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        });
        let shrinker: Arc<dyn Shrinker> = Arc::<InodeShards>::clone(&kept);
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&shrinker);
        shared.budget.register(weak);
        Self { shared: Arc::new(shared), kept, live: OnceLock::new() }
    }

    /// Makes all later lookups use the cache of inodes that may change. Called once.
    pub fn set_live(&self, owner: Arc<dyn LiveOwner>) {
        let was_unset = self.live.set(owner).is_ok();
        debug_assert!(was_unset, "a volume is opened for writing once");
    }

    /// The data that all inodes of the volume share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns an inode that is in use.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get(&self, ino: Ino) -> Result<Arc<Inode>, Fault> {
        if let Some(owner) = self.live.get() {
            let live = owner.inodes();
            return live.snapshot(&*live.get(ino)?);
        }
        if let Some(known) = self.kept.shard(ino).get(&ino.0) {
            return Ok(Arc::clone(known));
        }
        let loaded = Arc::new(self.load(ino)?);
        let bytes = loaded.memory() + ENTRY_BYTES;
        let inode = {
            let mut shard = self.kept.shard(ino);
            if let Some(known) = shard.get(&ino.0) {
                return Ok(Arc::clone(known));
            }
            shard.insert(ino.0, Arc::clone(&loaded));
            loaded
        };
        self.kept.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.budget.charge(bytes);
        Ok(inode)
    }

    /// The bytes of an inode as they are in the inode table.
    ///
    /// # Errors
    /// There is no inode with this number, or the table cannot be read.
    pub fn stored(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        let of = Fault::of(ino);
        let (block, at) = self.shared.inode_place(ino).map_err(&of)?.ok_or(Fault::NoSuchInode(ino))?;
        let owner = Owner { kind: Kind::InodeTable, ino: 0 };
        let buffer = self.shared.buffers.get(block, owner, |_| Ok(())).map_err(&of)?;
        Ok(buffer.get(at..at + self.shared.geometry.inode_size).unwrap_or_default().to_vec())
    }

    /// The inode that follows `ino` on the orphan list; `ino` need not be in use. 0 at the end.
    ///
    /// # Errors
    /// As [`stored`](Self::stored); the inode is malformed.
    pub fn orphan_link(&self, ino: Ino) -> Result<u32, Fault> {
        let raw = self.stored(ino)?;
        let fields = extant_ondisk::inode::Inode::decode(&raw).map_err(|fact| Fault::corrupt(ino, fact))?;
        Ok(fields.dtime)
    }

    fn load(&self, ino: Ino) -> Result<Inode, Fault> {
        let of = Fault::of(ino);
        let (block, at) = self.shared.inode_place(ino).map_err(&of)?.ok_or(Fault::NoSuchInode(ino))?;
        let owner = Owner { kind: Kind::InodeTable, ino: 0 };
        let buffer = self.shared.buffers.get(block, owner, |_| Ok(())).map_err(&of)?;
        let raw = buffer.get(at..at + self.shared.geometry.inode_size).unwrap_or_default();
        Inode::load(&self.shared, ino, raw).map_err(|fault| match fault {
            Fault::Corrupt(mut corrupt) => {
                corrupt.place.block = corrupt.place.block.or(Some(block));
                Fault::Corrupt(corrupt)
            }
            fault => fault,
        })
    }

    /// Prefetches the blocks of inode tables that hold these inodes, in few reads. Best effort.
    pub fn prefetch(&self, inos: &[Ino]) {
        let absent = |ino: &&Ino| !self.kept.shard(**ino).contains_key(&ino.0);
        let mut blocks: Vec<u64> = inos
            .iter()
            .filter(absent)
            .filter_map(|ino| self.shared.inode_place(*ino).ok().flatten())
            .map(|(block, _)| block.0)
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut runs = blocks.into_iter().peekable();
        while let Some(first) = runs.next() {
            let mut end = first + 1;
            while let Some(next) = runs.next_if(|next| *next - end <= GAP_BLOCKS) {
                end = next + 1;
            }
            self.shared.buffers.prefetch(Pblk(first), u32::try_from(end - first).unwrap_or(u32::MAX));
        }
    }
}

/// Memory of a cache entry, excluding the inode.
const ENTRY_BYTES: usize = 48;

impl InodeShards {
    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, Arc<Inode>>> {
        self.shards[ino.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shrinker for InodeShards {
    fn name(&self) -> &'static str {
        "inodes"
    }

    fn cached_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: usize) -> usize {
        let (mut freed, mut scanned) = (0, 0);
        let first = self.turn.load(Ordering::Relaxed);
        for at in (first..first + SHARDS).map(|at| at % SHARDS) {
            if freed >= bytes || scanned >= SCAN_MAX {
                break;
            }
            // Do not begin with the same shard each time: its inodes would never get old.
            self.turn.store((at + 1) % SHARDS, Ordering::Relaxed);
            let mut shard = self.shards[at].lock().unwrap_or_else(PoisonError::into_inner);
            let mut idle = Vec::new();
            for (ino, inode) in shard.iter() {
                if freed >= bytes || scanned >= SCAN_MAX {
                    break;
                }
                scanned += 1;
                if Arc::strong_count(inode) == 1 {
                    freed += inode.memory() + ENTRY_BYTES;
                    idle.push(*ino);
                }
            }
            for ino in idle {
                shard.remove(&ino);
            }
        }
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
        self.budget.release(freed);
        freed
    }
}

impl Drop for InodeShards {
    fn drop(&mut self) {
        self.budget.release(self.cached_bytes());
    }
}

impl extant_xattr::ValueInodes for Inodes {
    fn value(&self, ino: Ino, len: u32) -> Result<Vec<u8>, ReadFault> {
        let corrupt = |rule, found: u64| {
            let fact = Malformed::new("attribute value in an inode of its own", rule, found);
            ReadFault::Corrupt(Corrupt::at(extant_base::CorruptAt::ino(ino), fact))
        };
        let read_fault = |fault: Fault| match fault {
            Fault::Device(fault) => ReadFault::Device(fault),
            Fault::Corrupt(corrupt) => ReadFault::Corrupt(corrupt),
            // A read fails for no other reason.
            _ => corrupt("the inode must be in use", ino.0.into()),
        };
        let inode = self.get(ino).map_err(read_fault)?;
        if !inode.has_flag(flags::EA_INODE) {
            return Err(corrupt("the inode must have the flag EA_INODE", inode.fields().flags.into()));
        }
        if inode.size() != u64::from(len) || len > extant_ondisk::xattr::STORED_VALUE_LEN_MAX {
            return Err(corrupt("the inode's size must be the value's", inode.size()));
        }
        // Values have no holes: check that the whole length was written before memory is allocated for it.
        let held = if inode.has_map(&self.shared) {
            let blocks = self.shared.geometry.block_size.blocks_for(len.into()) as u32;
            let mut mapped = 0;
            while mapped < blocks {
                let piece = inode.map(&self.shared, Lblk(mapped), blocks - mapped).map_err(read_fault)?;
                if piece.state == MapState::Hole {
                    break;
                }
                mapped += piece.len;
            }
            u64::from(mapped) << self.shared.geometry.block_size.log2()
        } else {
            inode.inline_len(&self.shared).map_err(read_fault)?
        };
        if held < u64::from(len) {
            return Err(corrupt("the value must have no holes", held));
        }
        let mut value = vec![0; len as usize];
        inode.read_at(&self.shared, 0, &mut value).map_err(read_fault)?;
        Ok(value)
    }
}
