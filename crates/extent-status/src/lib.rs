//! The extent status cache: the block map of a file as far as it is known in memory, and its reclaim.
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
//! allocated at writeback), or a *hole*. A block that is not delayed can be read from the disk again, so its
//! entry may be evicted at any time. A delayed block is recorded here and nowhere else. A reservation of
//! space for delayed blocks is called a *promise* in names.
//!
//! Owns: the entries of all inodes, their merging and splitting, which reservations an operation uses up, the
//! order of reclaim, seven policies of that ([`Policy`]), statistics.
//!
//! Does **not** own: any layout or I/O (the caller reads the map on disk: [`Source`]), the lock that keeps
//! map and cache consistent, the count of reservations, memory beyond a limit of entries and what it charges
//! to a budget ([`Cache::with_budget`]).
//!
//! Invariants
//! 1. INV-ES1: entries of an inode are in order, disjoint, not empty; adjacent entries that can be merged are
//!    merged (unless `no_merge`).
//! 2. INV-ES2: a block has one status. A delayed one is never evicted by reclaim, `clear` or a weak insert.
//! 3. If two sources differ, an inserted entry stays and an entry read from disk is rejected
//!    ([`Inode::cache`]).
//! 4. [`Inode::seq`] changes with every change of a block's status; caching and evicting entries do not
//!    change it.
//! 5. Reservations held by the caller = [`Inode::promises`], if the caller settles what each operation
//!    returns.
//! 6. With every policy except those with lists of entries, an entry of a large tree takes at most 24 bytes,
//!    overhead included.
//! 7. A scan with the default policy reclaims from one inode. It examines no more than a few inodes and
//!    [`SCAN_MIN`] entries, whatever the size of the cache and of the request. It moves and frees only memory
//!    of those and of a piece of the tree.
//! 8. The budget is charged for the memory of entries, inodes and lists, up to a page. Charges are made with
//!    no lock held; releases may be made under any lock.
//!
//! Lock order: the caller's mapping lock, an inode's state, the ring. With the ring's lock held, an inode's
//! state is only *tried*. The LRU policies are the exception: they wait for an inode under the ring's lock,
//! and never take the ring's lock under an inode's lock.
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014, and what Linux
//! merged later.
//!
//! ```
//! use extant_base::{Ino, Lblk};
//! use extant_extent_status::{Allocation, Answer, Cache, END, Entry, Options, Settled, Source, Status};
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
//! // Writeback allocated blocks for them: the reservation of four becomes the allocation.
//! let written = Entry::mapped(0, 4, 1000, Status::Written);
//! assert_eq!(file.insert(written, Allocation::Delayed), Settled::Claim(4));
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
