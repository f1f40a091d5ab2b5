//! The extent status cache: entries in memory that say how ranges of file blocks are mapped, and their
//! reclaim.
//!
//! ```text
//!            Cache  one per file system: policy, limit, ring of inodes, counters
//!              |
//!            Inode  one per open inode: a lock, a tree, a sequence number
//!              |
//!            Tree   entries in order, in chunks of up to 64
//!
//!   0      100     101                      900      END
//!   | written | delayed | hole ............. |  not known
//! ```
//!
//! A known block is *written*, *unwritten* (allocated, reads as zeros), *delayed* (space is reserved, and
//! write-back will allocate it), or a *hole*. The map on disk has the status of all but delayed blocks. So
//! entries that are not delayed are *reclaimable*: they may be evicted at any time, and read from disk again.
//! That a block is delayed is recorded here and nowhere else. The reservation of space for delayed blocks is
//! called a *promise* in the names of functions.
//!
//! Owns: the entries of all inodes; how many reserved clusters an operation uses or releases; reclaim, with a
//! choice of seven policies ([`Policy`]); the limit of the number of reclaimable entries; statistics.
//!
//! Does **not** own: the map on disk (the caller reads it: [`Source`]); the *mapping lock*, with which the
//! caller keeps the map on disk and the cache consistent; the sum of all reservations; the memory budget that
//! several caches share (a cache made by [`Cache::with_budget`] charges its memory to the budget).
//!
//! Invariants
//! 1. INV-ES1: entries of an inode are in order, disjoint, not empty. Adjacent entries that can be merged are
//!    merged, unless [`Options::no_merge`] is set.
//! 2. INV-ES2: a block has one status. Reclaim and [`Inode::clear`] do not evict delayed blocks, and
//!    [`Inode::cache`] does not replace them.
//! 3. [`Inode::insert`] records a change of the map on disk, and replaces what was known of the changed
//!    blocks. [`Inode::cache`] adds an entry that was read from disk. It rejects an entry that contradicts
//!    what is known.
//! 4. [`Inode::seq`] changes with every change of a block's status. Caching and evicting entries do not
//!    change it.
//! 5. [`Inode::promises`] computes from the entries how many reserved clusters the caller must hold for the
//!    inode. A caller can also count them itself: it adds what it reserves, and subtracts what each operation
//!    returns ([`EndedReservation`]). Both ways give the same number.
//! 6. In a large tree, an entry takes at most 24 bytes, overhead included. With the policies es-ilist and
//!    es-gc it takes more, because they keep a list node for each entry.
//! 7. The work of one scan with the default policy is bounded, for any size of the cache and of the request:
//!    it examines at most nine inodes, and visits chunks with at most 128 entries together. A tree keeps its
//!    chunks in pieces of 64 chunks, and no step of a scan moves or frees more than one piece.
//! 8. The memory of entries, inodes and lists is charged to the budget. The charge of the whole cache differs
//!    from its memory by a page at most. Charges are made with no lock held; releases may be made under any
//!    lock.
//!
//! Lock order: the caller's mapping lock, an inode's state, the ring (the lists of inodes). A thread that
//! holds the ring's lock only *tries* to lock an inode's state. The policies baseline and es-cache have the
//! reverse order of the last two: they wait for an inode's state while they hold the ring's lock, and they
//! never take the ring's lock while they hold an inode's state.
//!
//! # The default policy
//!
//! The policy es-chunk reclaims by chunks. A chunk holds up to 64 entries of an inode. (The chunks of
//! `page-cache` are something else.) Reclaim runs in *scans*. A scan *visits* some chunks of one inode, and
//! evicts entries of these chunks. Each entry has three bits:
//! - *found*: a lookup has found it since the last visit of the chunk;
//! - *protected*: an earlier visit saw that it had been found;
//! - *new*: it was added since the last visit.
//!
//! A chunk is *cold* if it has a reclaimable entry that is not protected. It is *warm* if it has reclaimable
//! entries and all of them are protected. Each inode has one FIFO queue of cold chunks and one of warm
//! chunks. A chunk without reclaimable entries is in no queue. The cache has two round-robin lists of inodes:
//! the *cold list* of inodes with a cold chunk, and the *warm list* of inodes with warm chunks only.
//!
//! A visit of a cold chunk:
//! 1. The found entries that are not delayed become protected, or stay protected; no entry loses its
//!    protection. Then the bit *found* of all entries is cleared.
//! 2. If step 1 had at least one found entry that is not delayed, the chunk is *spared*: nothing is evicted,
//!    and the bit *new* of all entries is cleared. The chunk goes to the end of the cold queue, or of the
//!    warm queue if all its reclaimable entries are protected now. The visit ends. (A chunk is spared at most
//!    three times in a row: the fourth visit goes on to step 3 in any case.)
//! 3. The entries that are not protected, not delayed and not new are evicted. In the entries that stay, the
//!    bit *new* is cleared. The chunk goes to the end of the queue to which it belongs now. If few entries
//!    are left, and a neighbouring chunk has few entries, too, the two chunks are *merged*.
//!
//! A visit of a warm chunk: the entries that were not found since the last visit lose their protection. They
//! are evicted, except new ones. (A warm chunk can have a new entry: if an added entry is merged with a
//! protected one, the result is both new and protected.) Then the bits *found* and *new* of all entries are
//! cleared. The chunk goes to the end of the queue to which it belongs now: the cold queue if a new entry has
//! stayed without protection, the warm queue if all reclaimable entries are protected, no queue if no entry
//! is reclaimable. It may be merged, as in step 3.
//!
//! A scan reclaims from one inode:
//! 1. It takes the first inode of the cold list and moves it to the end of the list. If the inode's lock is
//!    held, or the inode is *precached* (a caller loaded all its extents in advance, by
//!    EXT4_IOC_PRECACHE_EXTENTS), the scan skips it and takes the next one. A scan examines at most eight
//!    inodes. If the eighth is skipped because it is precached, the scan examines one more, and reclaims from
//!    it even if it is precached (but not if its lock is held). So reclaim also makes progress if all inodes
//!    are precached.
//! 2. It visits cold chunks from the front of the inode's queue. It stops when it has reclaimed what was
//!    requested, when the next chunk would bring the visited chunks above 128 entries (two full chunks),
//!    when a visit has merged two chunks, or when it has made as many visits as the inode had chunks (cold
//!    and warm together) at the beginning of the scan.
//!
//! Scans visit warm chunks in three cases:
//! - The warm list is more than 32 times as long as the cold list. In this case, the scan takes its inode
//!   from the warm list, and visits warm chunks from the front of the inode's queue.
//! - Lookups often miss. The cache counts the inodes that all scans examine. If the next inode is number
//!   32, 64, ... of this count, and the warm list is not empty, the scan checks how many lookups have missed
//!   since the previous check. If at least 32 have missed, the scan takes its next inode from the warm list
//!   and not from the cold list. It visits one chunk of that inode, and ends.
//! - An inode of the cold list has more than 32 times as many warm chunks as cold ones. In this case, the
//!   scan visits one warm chunk of the inode before the cold ones.
//!
//! Scans run in two cases:
//! - After a change, there are more reclaimable entries than the limit. Scans run until there is no excess,
//!   but at most eight. A scan that begins with an excess of at most [`SCAN_MIN`] (128 entries) is the last
//!   one, even if it leaves an excess; the next change scans again. The crate `inode` sets the limit so that
//!   entries take 1/16 of the memory budget, but not below 4096 entries.
//! - The budget is exceeded. A request for the memory of n entries runs at most `4 * (n / 128 + 1)` scans.
//!   After four scans in a row that reclaim nothing, new entries are evicted, too.
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014, and what Linux
//! merged later.
//!
//! ```
//! use extant_base::{Ino, Lblk};
//! use extant_extent_status::{
//!     Allocation, Answer, Cache, END, EndedReservation, Entry, Options, Source, Status,
//! };
//!
//! struct Empty; // a file without blocks on disk
//! impl Source for Empty {
//!     type Error = std::convert::Infallible;
//!     fn extent_at(&mut self, _: Lblk) -> Result<Answer, Self::Error> {
//!         Ok(Answer::Gap { from: 0, to: END })
//!     }
//! }
//! let cache = Cache::new(Options::default());
//! let file = cache.inode(Ino(12));
//! let delayed = file.delay(Lblk(0), 4, &mut Empty).unwrap();
//! assert_eq!((delayed.status, delayed.len), (Status::Delayed, 4));
//! // Write-back allocated blocks for them: the reservation of four becomes the allocation.
//! let written = Entry::mapped(0, 4, 1000, Status::Written);
//! assert_eq!(file.insert(written, Allocation::Delayed), EndedReservation::Claim(4));
//! assert_eq!(file.lookup(Lblk(3)).unwrap().entry, written);
//! assert_eq!(file.lookup(Lblk(4)).unwrap().entry.status, Status::Hole);
//! ```

#![forbid(unsafe_code)]

mod body;
mod cache;
mod chunk;
mod entry;
mod events;
mod fifo;
mod inode;
mod map;
mod pending;
mod policy;
mod reclaim;
mod ring;
mod scan;
mod shared;
mod slots;
mod stats;
mod tree;

pub use cache::Cache;
pub use entry::{END, Entry, Status};
pub use inode::{Allocation, Cached, EndedReservation, Found, Inode};
pub use map::{Answer, Keep, Source};
pub use policy::Policy;
pub use reclaim::SCAN_MIN;
pub use scan::Scan;
pub use shared::Options;
pub use stats::{Stats, Times};
