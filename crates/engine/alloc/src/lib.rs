//! Allocation of blocks and inodes, with their bitmaps and group descriptors.
//!
//! Owns: the bitmaps of all groups; the counts and flags in group descriptors; the counts of free space, of
//! space that is reserved for delayed allocation, and of the blocks that only root may use; the choice of
//! blocks and inodes. Does **not** own: the log (a transaction is only a number here; the caller reports when
//! it is [`committed`](Alloc::committed)), the use of a block, the fields of an inode, the bytes of the
//! superblock.
//!
//! The unit of allocation is a *cluster*: one block, or with the feature bigalloc 2^n blocks. Calls count in
//! blocks. The length of an allocation is rounded up to whole clusters; only whole clusters can be freed.
//!
//! ```text
//!            allocate              free                       its transaction is committed
//!   free ───────────────▶ used ──────────────▶ freed, busy ──────────────▶ free
//!     │                    ▲
//!     └──▶ window ─────────┘
//! ```
//!
//! A *window* is a run of free clusters that is kept for the next allocations of one owner, usually a growing
//! directory. The clusters of a window are free in the bitmap, so a crash leaks nothing.
//!
//! A cluster is *busy* if one of these holds:
//! - its bit is set in the bitmap block;
//! - a transaction that is not yet committed has freed it;
//! - it is in a window;
//! - it holds the file system's own metadata.
//!
//! Invariants
//! 1. Only clusters that are not busy are allocated; the owner of a window also gets the clusters of the
//!    window. So a freed block is not reused before its freeing is durable. (If it were, a power failure
//!    could bring back the old file, with the new file's bytes in the block.)
//! 2. A change of a block bitmap is one [`Edit::change`](extant_buffer::Edit::change) in the caller's
//!    transaction. Inode bitmaps and descriptors change in memory only, and stay there until the next commit.
//!    Once per commit, [`seal`](Alloc::seal) writes the changed ones to their blocks, and the current
//!    checksums of the bitmaps into the descriptors.
//! 3. An allocation or freeing that is refused changes nothing.
//! 4. If the bitmap or descriptor of a group breaks a rule of the format, nothing is allocated in the group,
//!    and [`problems`](Alloc::problems) has the reason.
//! 5. [`open`](Alloc::open) reads nothing. Descriptors are read block by block, and bitmaps one by one, when
//!    they are needed. When the memory budget is exceeded, bitmaps that were not used recently are evicted.
//!
//! Locks, in order:
//! 1. one group (two groups are never locked together);
//! 2. one of these:
//!    - one set of the module `index` (there are two kinds of set, each for a range of lengths: a set of the
//!      first kind has the groups whose longest free run is in its range, a set of the second kind those
//!      whose average free run is);
//!    - the list of groups with changes to write;
//!    - the list of groups with freed clusters that are not yet committed;
//!    - the list of groups with windows;
//!    - the list of areas of metadata (zones);
//!    - the list of problems.
//!
//! A bitmap is read into the block cache before its group is locked. The group stays locked during I/O in two
//! cases:
//! - The cache has evicted the bitmap before the group was locked, or the first read failed. The bitmap is
//!   read again.
//! - A free run of the group is discarded on the device ([`Alloc::each_free`]).
//!
//! No other lock is held during I/O.
//!
//! ```
//! use extant_alloc::{Flags, Options, Request};
//! # use {extant_base::*, std::sync::Arc, extant_device::Device};
//! # use extant_ondisk::{Features, Geometry, Superblock, group_desc::GroupDesc};
//! # let mut sb = Superblock {
//! #     blocks_count: 8192, free_blocks_count: 8000, log_block_size: 2, log_cluster_size: 2, rev_level: 1,
//! #     inode_size: 256, blocks_per_group: 32768, clusters_per_group: 32768, inodes_per_group: 1024,
//! #     ..Superblock::default()
//! # };
//! # sb.features.incompat = Features::EXTENTS;
//! # let geometry = Geometry::new(&sb).unwrap();
//! # let device = Arc::new(extant_device::MemDevice::new(32 << 20));
//! # let desc = GroupDesc {
//! #     block_bitmap: 10, inode_bitmap: 11, inode_table: 12, free_clusters: 8112, ..Default::default()
//! # };
//! # let mut bytes = [0; 32];
//! # desc.encode(&mut bytes);
//! # device.write_at(4096, &bytes).unwrap();
//! # device.write_at(10 * 4096, &[0xFF; 10]).unwrap();
//! # let budget = extant_memory::Budget::new(1 << 20);
//! # let buffers = extant_buffer::Buffers::new(device, BlockSize::KIB4, 8192, &budget);
//! let alloc = extant_alloc::Alloc::open(buffers.clone(), &sb, &geometry, Options::default()).unwrap();
//! let edit = extant_buffer::Direct(&buffers); // in the engine: a handle of the journal
//! let request = Request { goal: Pblk(200), len: 8, min_len: 1, flags: Flags::DATA, stream: None };
//! let (start, len) = alloc.allocate(&edit, &request).unwrap();
//! assert_eq!((start, len), (Pblk(200), 8));
//! alloc.free(&edit, start, len.into(), false).unwrap();
//! assert_eq!(alloc.committed(Tid(1)), 8); // only now may the blocks be reused
//! ```

#![forbid(unsafe_code)]

mod acting;
mod bits;
mod blocks;
mod exact;
mod free;
mod group;
mod groups;
mod index;
mod inodes;
mod seal;
mod search;
mod space;
mod stats;
mod trim;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, Weak};

use extant_base::rank::{self, Mutex};
use extant_base::sync::CachePadded;
use extant_base::{Group, Malformed};
use extant_buffer::{Buffers, Kind, Owner, ReadFault, Seal};
use extant_memory::{Budget, Shrinker};
use extant_ondisk::group_desc::ChecksumRule;
use extant_ondisk::{Features, Geometry, Superblock};

pub use acting::Acting;
pub use blocks::{Flags, Request};
pub use inodes::{InodeRequest, NewInode};
pub use space::{Privilege, Room};
pub use stats::{Criterion, Stats, Usage};
pub use window::Prealloc;

use crate::groups::Groups;
use crate::index::Index;
use crate::space::Space;
use crate::stats::Tally;

/// The order in which groups are searched. The default is the best; the other is for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scan {
    /// Through the ordered index.
    #[default]
    Ordered,
    /// Linearly from the goal on, as file systems did before there was an index.
    Linear,
}

/// Options of the allocator.
#[derive(Clone, Default)]
pub struct Options {
    /// Accounts for maps in memory, and has them evicted; `None` keeps all of them.
    pub budget: Option<Arc<Budget>>,
    /// The order in which groups are searched.
    pub scan: Scan,
    /// Number of goals shared by all streams of data; 0 for one per CPU, limited to one per four groups.
    pub stream_goals: u32,
    /// The privilege of threads that have none of their own; see [`Acting`].
    pub privilege: Privilege,
}

/// There is no space to allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no space left{}", if *.pending { ", until the transaction that frees some is committed" } else { "" })]
pub struct NoSpace {
    /// A commit makes freed space usable: commit, and try again.
    pub pending: bool,
}

/// An allocation or a freeing was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// There is no space.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// A bitmap or descriptor cannot be read, or breaks a rule.
    #[error(transparent)]
    Read(#[from] ReadFault),
}

/// The allocator of one file system; see the crate documentation.
pub struct Alloc {
    groups: Arc<Groups>,
    scan: Scan,
    privilege: Privilege,
    /// By transaction, the groups in which it freed something.
    pending: Mutex<BTreeMap<extant_base::Tid, Vec<u32>>, { rank::ALLOC_SET }>,
    pending_clusters: AtomicU64,
    window_groups: Mutex<BTreeSet<u32>, { rank::ALLOC_SET }>,
    window_clusters: AtomicU64,
    window_id: AtomicU64,
    /// The current group of each stream.
    streams: Box<[AtomicU32]>,
    /// The group of each thread's last inode.
    cursors: Box<[inodes::Cursor]>,
    tally: CachePadded<Tally>,
    me: Weak<Alloc>,
}

/// Blocks of descriptors, limited so that `chunks` fits into memory: enough for 32 TiB with blocks of 1 KiB,
/// 32 EiB with blocks of 4 KiB.
const CHUNKS_MAX: u32 = 1 << 22;
/// log2 of the groups of a flex group at most; larger flex groups count as several.
const FLEX_LOG_MAX: u32 = 10;

const BLOCK_BITMAP: Seal = Seal { owner: Owner { kind: Kind::BlockBitmap, ino: 0 }, seed: None };
const INODE_BITMAP: Seal = Seal { owner: Owner { kind: Kind::InodeBitmap, ino: 0 }, seed: None };
const DESCRIPTORS: Seal = Seal { owner: Owner { kind: Kind::Descriptors, ino: 0 }, seed: None };

impl Alloc {
    /// Opens the allocator of the file system with this superblock. Reads nothing. The counts of free blocks
    /// and inodes come from the superblock, and are wrong after a crash: see [`recount`](Self::recount).
    ///
    /// # Errors
    /// The descriptor table is implausibly large.
    pub fn open(
        buffers: Arc<Buffers>,
        sb: &Superblock,
        geometry: &Geometry,
        options: Options,
    ) -> Result<Arc<Self>, ReadFault> {
        let chunks = geometry.groups.div_ceil(geometry.descs_per_block());
        Malformed::unless(
            chunks <= CHUNKS_MAX,
            "superblock",
            "there must be at most 2^22 blocks of descriptors",
            chunks,
        )
        .map_err(|fact| ReadFault::corrupt(extant_base::CorruptAt::default(), fact))?;
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let streams = match options.stream_goals {
            0 => processors.min(geometry.groups / 4),
            goals => goals.min(1024),
        };
        let has_group_flags = sb.features.metadata_csum() || sb.features.has_ro_compat(Features::GDT_CSUM);
        let groups = Arc::new(Groups {
            buffers,
            geometry: geometry.clone(),
            fs_seed: sb.features.metadata_csum().then(|| sb.fs_seed()),
            rule: ChecksumRule::of(sb),
            has_group_flags,
            first_ino: if sb.rev_level == 0 { 11 } else { sb.first_ino.max(1) },
            flex_log: geometry.flex_log.min(FLEX_LOG_MAX),
            budget: options.budget,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            unseen: AtomicU32::new(chunks),
            index: Index::default(),
            space: Space::new(sb, geometry),
            zones: Mutex::default(),
            dirs: CachePadded::default(),
            dirty: CachePadded::default(),
            dirty_groups: AtomicU32::new(0),
            dirty_inodes: AtomicU32::new(0),
            problems: Mutex::default(),
            held_bytes: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        });
        if let Some(budget) = &groups.budget {
            let shrinker: Arc<dyn Shrinker> = Arc::<Groups>::clone(&groups);
            budget.register(Arc::downgrade(&shrinker));
        }
        Ok(Arc::new_cyclic(|me| Self {
            groups,
            scan: options.scan,
            privilege: options.privilege,
            pending: Mutex::default(),
            pending_clusters: AtomicU64::new(0),
            window_groups: Mutex::default(),
            window_clusters: AtomicU64::new(0),
            window_id: AtomicU64::new(1),
            streams: (0..streams.max(1)).map(|_| AtomicU32::new(u32::MAX)).collect(),
            cursors: inodes::cursors(),
            tally: CachePadded::default(),
            me: Weak::clone(me),
        }))
    }

    /// Groups that were set aside since the last call, each with the reason.
    pub fn problems(&self) -> Vec<(Group, Malformed)> {
        std::mem::take(&mut *self.groups.problems.lock())
    }

    /// Promises blocks to a delayed write: an allocation with [`Flags::PROMISED`] does not run out of space.
    /// In blocks, rounded up to whole clusters.
    ///
    /// # Errors
    /// There is not enough space.
    pub fn claim(&self, blocks: u64, privilege: Privilege) -> Result<(), NoSpace> {
        let clusters = blocks.div_ceil(self.groups.geometry.cluster_ratio());
        if self.groups.space.promise(clusters, privilege) { Ok(()) } else { Err(NoSpace { pending: false }) }
    }

    /// As [`claim`](Self::claim), for blocks that the caller has just freed: their commit makes the room.
    pub fn claim_freed(&self, blocks: u64) {
        self.groups.space.owe(blocks.div_ceil(self.groups.geometry.cluster_ratio()));
    }

    /// Returns a promise of as many blocks as were claimed and not allocated.
    pub fn unclaim(&self, blocks: u64) {
        self.groups.space.end_promise(blocks.div_ceil(self.groups.geometry.cluster_ratio()), true);
    }

    /// The amount of free space in proportion to what is promised.
    #[must_use]
    pub fn room(&self) -> Room {
        self.groups.space.room()
    }

    /// Sets the reserves in blocks: for root, and for metadata that must not fail.
    pub fn set_reserves(&self, root_blocks: u64, pool_blocks: u64) {
        let log = self.groups.geometry.cluster_log;
        self.groups.space.set_reserves(root_blocks >> log, pool_blocks >> log);
    }
}

impl fmt::Debug for Alloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alloc: {} groups; {:?}", self.groups.geometry.groups, self.usage())
    }
}

/// The length of a range of bits.
fn len(range: &std::ops::Range<u32>) -> u32 {
    range.end - range.start
}

#[cfg(test)]
mod tests;
