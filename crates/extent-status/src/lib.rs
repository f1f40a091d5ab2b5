//! Where a file's blocks are, as far as it is known in memory; and what of it is forgotten when memory is
//! short.
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
//! Of a block is known that it is *written*, *unwritten* (allocated, reads as zeros), *delayed* (space is
//! promised, to be allocated at writeback), or a *hole*; or nothing. What is not delayed can be read from the
//! disk again: it may be forgotten at any moment. What is delayed is known here and nowhere else.
//!
//! Owns: the entries of all inodes, merging and splitting them, which promises of space an operation uses up,
//! the order in which entries are forgotten, seven policies of that ([`Policy`]), statistics.
//!
//! Does **not** own: any layout or I/O (the caller knows the map on disk: [`Source`]), the lock that keeps
//! map and cache consistent, the count of reservations, memory beyond a limit of entries and what it charges
//! to a budget ([`Cache::with_budget`]).
//!
//! Invariants
//! 1. INV-ES1: entries of an inode are in order, disjoint, not empty; neighbours that say the same of one run
//!    are one (unless `no_merge`).
//! 2. INV-ES2: a block has one status. A delayed one is never forgotten by reclaim, `clear` or a weak insert.
//! 3. Where two sources differ, what was inserted stays and what was read loses ([`Inode::cache`]).
//! 4. [`Inode::seq`] changes with every change of what a block is; learning and forgetting leave it.
//! 5. Promises that the caller holds = [`Inode::promises`], if it settles what each operation returns.
//! 6. With every policy but those that keep lists of entries, an entry of a large tree takes at most 24
//!    bytes, all included.
//! 7. A scan with the default policy takes from one inode, and looks at no more than a few inodes and
//!    [`SCAN_MIN`] entries, whatever there is and it is asked for. It moves and gives back no memory but of
//!    those and of a piece of the tree.
//! 8. What is charged to a budget is what entries, inodes and lists take, up to a page. Charges come with no
//!    lock held; what drops gives back under any.
//!
//! Locks, in order: the caller's mapping lock, an inode's state, the ring. The ring's lock is held while an
//! inode's state is *tried*; only the LRU policies wait for an inode with it, and they never take it under an
//! inode's lock.
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
//! // Writeback found blocks for them: the promise of four becomes the allocation.
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
pub use inode::{Allocation, Cached, Found, Inode, Settled};
pub use map::{Answer, Keep, Source};
pub use policy::{Policy, Scan};
pub use stats::{Stats, Times};
