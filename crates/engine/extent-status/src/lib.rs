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
//! A known block is *written*, *unwritten* (allocated, reads as zeros), *delayed* (space is reserved, to be
//! allocated at write-back), or a *hole*. The status of a block that is not delayed can be read from the map
//! on disk again, so its entry may be evicted at any time. That a block is delayed is recorded here and
//! nowhere else. The reservation of space for delayed blocks is called a *promise* in the names of functions.
//!
//! Owns: the entries of all inodes, their merging and splitting; which reservations an operation uses up;
//! reclaim, with a choice of seven policies ([`Policy`]); a limit of the number of entries; statistics.
//!
//! Does **not** own: any layout or I/O (the caller reads the map on disk: [`Source`]); the lock that keeps
//! the map on disk and the cache consistent; the sum of all reservations; the budget of memory that several
//! caches share ([`Cache::with_budget`] charges it).
//!
//! Invariants
//! 1. INV-ES1: entries of an inode are in order, disjoint, not empty; adjacent entries that can be merged are
//!    merged, unless [`Options::no_merge`] is set.
//! 2. INV-ES2: a block has one status. A delayed block is not evicted by reclaim or [`Inode::clear`], and not
//!    replaced by [`Inode::cache`].
//! 3. [`Inode::insert`] records a change, and replaces what was known of its blocks. [`Inode::cache`] gets an
//!    entry that was read from disk. If that contradicts what is known, it is rejected and what is known
//!    stays.
//! 4. [`Inode::seq`] changes with every change of a block's status; caching and evicting entries do not
//!    change it.
//! 5. [`Inode::promises`] computes from the entries how many reserved clusters the caller must hold for the
//!    inode. The caller's own count equals it if the caller adds what it reserves, and subtracts what each
//!    operation returns ([`EndedReservation`]).
//! 6. An entry of a large tree takes at most 24 bytes, overhead included. The policies es-ilist and es-gc are
//!    the exception, because they keep a list node for each entry.
//! 7. A scan with the default policy reclaims from one inode. To find it, the scan examines 8 inodes. It
//!    skips an inode whose lock is held, and one that is *precached* (a caller loaded all its extents in
//!    advance, by EXT4_IOC_PRECACHE_EXTENTS). If the eighth inode is precached, the scan examines a ninth,
//!    and takes it even if it is precached, unless its lock is held. So precached inodes cannot block
//!    reclaim. The chunks that a scan visits have at most 128 entries together (two full chunks). A tree
//!    keeps its chunks in pieces of 64 chunks, and no step of a scan moves or frees more than one piece. So
//!    its work is bounded for any size of the cache and of the request.
//! 8. The memory of entries, inodes and lists is charged to the budget. The charge of the whole cache differs
//!    from its memory by a page at most. Charges are made with no lock held; releases may be made under any
//!    lock.
//!
//! Lock order: the caller's mapping lock, an inode's state, the ring (the lists of inodes). A thread that
//! holds the ring's lock only *tries* to lock an inode's state. The policies baseline and es-cache are the
//! exception: they wait for an inode's state while they hold the ring's lock, and they never take the ring's
//! lock while they hold an inode's state.
//!
//! # The default policy
//!
//! The policy es-chunk reclaims by chunks. A chunk holds up to 64 entries of an inode, with three bits for
//! each entry: *found* by a lookup since the last visit of the chunk; *protected*, because an earlier visit
//! saw that it had been found; *new*, because it was added since the last visit. (The chunks of `page-cache`
//! are something else.) A chunk is *cold* if it has a reclaimable entry that is not protected. It is *warm*
//! if it has reclaimable entries and all of them are protected. A chunk without reclaimable entries is in no
//! queue. Each inode has one FIFO queue of cold chunks and one of warm chunks. The cache has two round-robin
//! lists of inodes: those with a cold chunk, and those with warm chunks only.
//!
//! A scan takes an inode from the front of the first list, moves it to the end, and goes on to the next while
//! the inode is locked or precached (the limit of this search: invariant 7). Of the inode found, it visits
//! cold chunks from the front of the queue, until it has reclaimed what was requested, or the next chunk
//! would bring the visited chunks above 128 entries. A visit of a cold chunk:
//! 1. The found entries that are not delayed become protected. Then the bit *found* of all entries is
//!    cleared.
//! 2. If an entry that is not delayed had the bit *found*, the chunk is *spared*: nothing is evicted, and the
//!    bit *new* of all entries is cleared. The chunk goes to the end of the cold queue, or of the warm queue
//!    if all its reclaimable entries are protected now. A chunk is spared three times in a row at most; the
//!    fourth visit goes on to step 3.
//! 3. The entries that are not protected, not delayed and not new are evicted. In the entries that stay, the
//!    bit *new* is cleared. Their chunk goes to the end of the queue to which it belongs now; if few entries
//!    are left, they are merged into a neighbouring chunk with few entries.
//!
//! Three cases lead to visits of warm chunks:
//! - The second list is more than 32 times as long as the first. Then the scan takes its inode from the
//!   second list, and visits warm chunks from the front of its queue.
//! - Lookups often miss. The cache counts the inodes that scans examine, and checks at every 32nd how many
//!   lookups have missed since the previous check. If at least 32 have, the scan takes its inode of the
//!   second list, not of the first, visits one warm chunk of it, and ends.
//! - An inode of the first list has more than 32 times as many warm chunks as cold ones. Then the scan visits
//!   one of its warm chunks before the cold ones.
//!
//! In a visit of a warm chunk, the entries that were not found since the last visit lose their protection.
//! They are evicted, unless they are new. (A warm chunk can have a new entry: if an added entry is merged
//! with a protected one, the result is both new and protected.) If an entry without protection stays, the
//! chunk goes to the end of the cold queue, else to the end of the warm queue.
//!
//! Scans run in two cases:
//! - An insertion leaves more reclaimable entries than the limit. After a scan, another one follows while the
//!   excess is more than [`SCAN_MIN`] (128 entries), up to eight scans in all. The crate `inode` sets the
//!   limit so that entries take 1/16 of the memory budget.
//! - The budget is exceeded. Then a request for n entries runs at most `4 * (n / 128 + 1)` scans. After four
//!   in a row that reclaim nothing, new entries are evicted, too.
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

mod ages;
mod cache;
mod chunk;
mod entry;
mod events;
mod fifo;
mod inode;
mod map;
mod pending;
mod policy;
mod ring;
mod slots;
mod stats;
mod tree;

pub use cache::{Cache, Options, SCAN_MIN};
pub use entry::{END, Entry, Status};
pub use inode::{Allocation, Cached, EndedReservation, Found, Inode};
pub use map::{Answer, Keep, Source};
pub use policy::{Policy, Scan};
pub use stats::{Stats, Times};
