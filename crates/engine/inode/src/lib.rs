//! Inodes in memory, and all reads and changes of them and of their contents.
//!
//! Owns: finding an inode in its table, verifying and caching it ([`Inodes`] for reading, [`InodeCache`] for
//! writing); reading and writing the bytes of a file, which are stored in its inode or in blocks; changing
//! the block map of a file; adding and removing blocks of directories ([`Change`]); the record of inodes that
//! must be deleted or truncated after a crash ([`Orphans`]). Does **not** own: names (see `dir`; `volume`
//! combines names and inodes), the layout of a block map (see `mapping`), the order of an operation's steps
//! (see `volume`).
//!
//! ```text
//!  Inodes::get(ino) -> Arc<Inode> -- read_at ----> bytes: inline | by extents | by indirect blocks | holes
//!                                 -- map --------> one mapped range
//!                                 -- dir_blocks -> a directory's blocks, as `dir` reads them (DirBlocks)
//!                                 -- places -----> where attributes are stored, for `xattr`
//! ```
//!
//! Invariants
//! 1. When an [`Inode`] is loaded, its checksum, mode and size are verified. The size of a regular file must
//!    not be larger than its block map can reach.
//! 2. [`Inode::read_at`] returns the bytes on disk, up to i_size, and zeros for holes and unwritten extents.
//!    It does not return bytes that were written to memory only; [`FileData`] has these bytes.
//! 3. Locks of this crate with a rank of 90 or above (docs/locks.md) are not held during device I/O: for
//!    example the locks of the inode table and of the list of changed inodes. Locks of lower ranks may be
//!    held during device I/O: those of a single inode, of the orphan list and of a quota file.

#![forbid(unsafe_code)]

mod cache;
mod change;
mod clusters;
mod count;
mod data;
mod dir_state;
mod fault;
mod file;
mod file_data;
mod inode;
mod live;
mod node;
mod orphans;
mod quota;
mod salvage;
mod shared;
mod unconverted;

pub use cache::{Inodes, LiveOwner};
pub use change::{Change, NewBlockOptions, edit_fault};
pub use data::{FileCaches, Stored};
pub use dir_state::DirState;
pub use fault::Fault;
pub use file::{Blocks, Extent};
pub use file_data::{DataPath, FileData};
pub use inode::Inode;
pub use live::{Editing, INHERITED, InodeCache};
pub use node::{LiveInode, OrphanState, Owners, Values};
pub use orphans::{LockStats, OrphanFile, OrphanMode, Orphans, Slot};
pub use quota::{Quota, ValuesInInodes};
pub use salvage::Salvage;
pub use shared::Shared;
pub use unconverted::{ConversionMark, Unconverted, WritesStopped};
