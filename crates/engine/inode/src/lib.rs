//! Inodes in memory, and all reads and changes of them and of their contents.
//!
//! Owns: finding an inode in its table, verifying and caching it ([`Inodes`] for reading, [`InodeCache`] for
//! writing); reading and writing the bytes of a file, which may be in its inode or in blocks; changing its
//! map; adding and removing blocks of directories ([`Change`]); the record of inodes to be deleted or
//! truncated after a crash ([`Orphans`]). Does **not** own: names (see `dir`; `volume` combines names and
//! inodes), the form of a map (see `mapping`), the order of an operation's steps (see `volume`).
//!
//! ```text
//!  Inodes::get(ino) -> Arc<Inode> -- read_at ----> bytes: inline | by extents | by indirect blocks | holes
//!                                 -- map --------> one mapped range
//!                                 -- dir_blocks -> a directory's blocks, as `dir` reads them (DirBlocks)
//!                                 -- places -----> where attributes are stored, for `xattr`
//! ```
//!
//! Invariants
//! 1. When an [`Inode`] is loaded, its mode and size are verified (the size of a regular file is not larger
//!    than its map can reach). Its checksum is verified, too.
//! 2. [`Inode::read_at`] returns zeros for holes and unwritten extents, and stored bytes for all else. It
//!    ends at i_size. It does not see dirty folios, which only [`FileData`] has.
//! 3. The lock of a table of inodes, or of another structure that all inodes share, is not held during device
//!    I/O. Locks of a single inode may be.

#![forbid(unsafe_code)]

mod cache;
mod change;
mod clusters;
mod count;
mod data;
mod dir_state;
mod fault;
mod file;
mod inode;
mod live;
mod orphans;
mod quota;
mod salvage;
mod shared;
mod unconverted;

pub use cache::{Inodes, LiveOwner};
pub use change::{Change, NewBlockOptions, edit_fault};
pub use data::{DataPath, FileCaches, FileData, Stored};
pub use dir_state::DirState;
pub use fault::Fault;
pub use file::{Blocks, Extent};
pub use inode::Inode;
pub use live::{Editing, INHERITED, InodeCache, LiveInode, OrphanState, Values};
pub use orphans::{LockStats, OrphanFile, OrphanMode, Orphans, Slot};
pub use quota::{Owners, Quota, ValuesInInodes};
pub use salvage::Salvage;
pub use shared::Shared;
pub use unconverted::{ConversionMark, Unconverted, WritesStopped};
