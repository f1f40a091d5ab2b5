//! A volume: an ext4 file system that is open, for reading or for writing, and every operation on it.
//!
//! Owns: opening (probe, feature policy, recovery) and the order of things across the floors below;
//! operations in [`ops`]. Does **not** own: any layout, cache or tree of its own.
//!
//! ```text
//!  device -> probe -> policy -> locate log -> scan -> overlay -> reload -> fast commits -> Volume
//!            (superblock)       (journal)     (ReplayPlan)  (nothing is written)
//! for writing:                              -> replay home -> allocator, inodes, journal -> orphans -> Volume
//! ```
//!
//! Invariants
//! 1. Opening for reading never writes a byte; a log that waits for replay is laid over the device.
//! 2. Feature bits that are not understood refuse the open, by name (see [`policy`]).
//! 3. A volume can be used by many threads at the same time; operations hold no lock across device I/O.
//! 4. Whatever the bytes of the image, operations end in bounded time and memory.

#![forbid(unsafe_code)]

mod fast_commit;
mod fault;
mod mmp;
mod open;
pub mod ops;
mod orphans;
pub mod policy;
mod probe;
mod problems;
mod rebuild;
mod stat;
mod write;

use std::sync::{Arc, OnceLock};

use extant_base::Ino;
use extant_inode::Inodes;
use extant_ondisk::{Geometry, Superblock};

pub use extant_alloc::Stats as AllocStats;
pub use extant_dir::{Cursor, DirEntry};
pub use extant_extent_status::{
    Entry as KnownExtent, Policy as ExtentPolicy, Stats as ExtentStats, Status as ExtentStatus,
};
pub use extant_flush::{Delay as FlushDelay, FlushCounts, Mode as FlushMode, Settings as FlushSettings};
pub use extant_inode::{DataPath, Extent, Inode, LockStats, OrphanMode};
pub use extant_journal::{Batching, Sabotage};
pub use extant_ondisk::filetype::FileType;
pub use extant_xattr::Attribute;
pub use fault::{Fault, Refusal};
pub use mmp::{MountGuard, OnWait, Waiting};
pub use open::{OpenFault, OpenOptions, Recovery};
pub use ops::{Follow, Seek};
pub use probe::BySuperblock;
pub use stat::{Stat, StatFs};
pub use write::{
    Acting, Allocate, DefaultOptions, DiscardStats, ErrorCursor, HINTED_NAMES_MAX, LABEL_MAX, New, OnError,
    PAGE_BYTES, Permit, Rename, SetAttr, SetXattr, Shutdown, TimesFrom, WriteOptions, unprivileged,
};

/// An inode that is in memory; cheap to clone.
pub type InodeRef = Arc<Inode>;

/// A file system that is open.
pub struct Volume {
    inodes: Arc<Inodes>,
    dir_format: extant_dir::Format,
    name_changes: fast_commit::NameChanges,
    recovery: Recovery,
    /// That it is read by a backup superblock, where that was asked for.
    note: Option<String>,
    /// What was damaged of the whole volume when it was opened for reading, in words.
    damage: Vec<String>,
    statfs: OnceLock<StatFs>,
    /// When open for writing.
    writer: Option<write::Writer>,
}

impl Volume {
    /// Opens for reading. Nothing is written; the state after the journal's replay is shown.
    ///
    /// # Errors
    /// Not an ext4 file system, a feature that cannot be read, impossible numbers, or the device refused.
    pub fn open_read_only(
        device: Arc<dyn extant_device::Device>,
        options: &OpenOptions,
    ) -> Result<Self, OpenFault> {
        open::read_only(device, options)
    }

    /// The superblock as it is after recovery.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.inodes.shared().sb
    }

    /// The numbers of the layout.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.inodes.shared().geometry
    }

    /// What recovery found in the journal.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// By which backup superblock it is read, in words, where that was asked for.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// What was found damaged, a line each, when it was opened for reading, and got over: a lost superblock,
    /// an image that ends early. Opening for writing refuses instead.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// The same of what is found while reading: group descriptors that were replaced so far.
    #[must_use]
    pub fn salvaged(&self) -> Vec<String> {
        self.inodes.shared().salvage.as_ref().map_or_else(Vec::new, extant_inode::Salvage::lines)
    }

    /// An inode by number.
    ///
    /// # Errors
    /// [`Refusal::Stale`] when there is none in use with this number; it is corrupt; the device refused.
    pub fn inode(&self, ino: Ino) -> Result<InodeRef, Fault> {
        self.check_going()?;
        Ok(self.inodes.get(ino)?)
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`inode`](Self::inode).
    pub fn root(&self) -> Result<InodeRef, Fault> {
        self.inode(Ino::ROOT)
    }

    /// Reads the inode tables' blocks of these inodes (any order) ahead, in few transfers. Best effort.
    pub fn prefetch_inodes(&self, inos: &[Ino]) {
        self.inodes.prefetch(inos);
    }
}
