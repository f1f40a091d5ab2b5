//! Inodes in memory, and reading what they hold.
//!
//! Owns: finding an inode in its table, verifying it, keeping it ([`Inodes`]); the bytes of files, whatever holds them; where
//! a file's blocks are, for those who ask. Does **not** own: names (see `dir`, which volume brings together with inodes),
//! changes (which come with the journal).
//!
//! ```text
//!  Inodes::get(ino) -> Arc<Inode> -- read_at --> inline | extents | indirect | hole
//!                                 -- map ------> one range
//!                                 -- blocks ---> DirBlocks for `dir`
//!                                 -- places ---> attributes for `xattr`
//! ```
//!
//! Invariants
//! 1. An [`Inode`] was verified when it entered: checksum, mode, size within what its map can hold.
//! 2. A read fills holes, unwritten extents and nothing else with zeros; it never passes i_size.
//! 3. No lock is held across device I/O.
//! 4. What a fast commit changed ([`Overrides`]) hides what stands in the tables.

#![forbid(unsafe_code)]

mod cache;
mod fault;
mod file;
mod inode;
mod overrides;
mod shared;

pub use cache::Inodes;
pub use fault::Fault;
pub use file::{Blocks, Extent};
pub use inode::Inode;
pub use overrides::{Override, Overrides};
pub use shared::Shared;
