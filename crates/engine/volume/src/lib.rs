//! A volume: an ext4 file system that is open for reading or for writing, and every operation on it.
//!
//! Owns: opening (probe, feature policy, recovery), and the order of an operation's steps across the lower
//! layers. Operations are grouped by what they are about: [`Volume::names`], [`Volume::files`],
//! [`Volume::attributes`], [`Volume::admin`]. Those that read are in [`ops`], those that change in the module
//! `write`. Does **not** own: any layout, cache or tree.
//!
//! ```text
//!  device -- mount: probe, scan the log, replay, fast commits, orphans --> Volume -- ops, write
//!    to read    recovery writes to an overlay in memory
//!    to write   recovery writes to the device; a committer and a write-back thread start
//! ```
//!
//! Invariants
//! 1. INV-R7: opening for reading never writes to the device. An overlay of the device keeps in memory what a
//!    recovery writes. The volume shows the tree that opening for writing would leave. (It does not if
//!    [`OpenOptions::no_recovery`] is set, or if a step of the recovery failed: see [`Recovery::problems`].)
//! 2. The open is refused if a feature is set that extant cannot read. Unknown incompat bits count as
//!    features of this kind. An open for writing is also refused if a feature is set that extant cannot
//!    maintain. Unknown ro_compat bits count as features of this kind. The error names the features (see
//!    [`policy`]).
//! 3. Many threads can use a volume at the same time. Locks of shared tables (ranks 90 to 120 of
//!    docs/locks.md) are not held during device I/O. The exception is the lock of a group of the allocator
//!    (the first page of `alloc` lists the two cases). Locks of a single file or directory may be held during
//!    device I/O.
//! 4. Operations end in bounded time and memory, whatever bytes the image holds.

#![forbid(unsafe_code)]

mod fault;
mod mmp;
mod mount;
pub mod ops;
pub mod policy;
mod stat;
pub mod status;
mod views;
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
pub use extant_journal::{Batching, Bug, Sabotage};
pub use extant_ondisk::filetype::FileType;
pub use extant_xattr::Attribute;
pub use fault::{Fault, OpenFault, Refusal};
pub use mmp::{MountGuard, OnWait, Waiting};
pub use mount::probe::BySuperblock;
pub use mount::{OpenOptions, Recovery, log_on};
pub use ops::{Follow, Seek};
pub use stat::{Stat, StatFs};
pub use status::Status;
pub use views::{Admin, Attributes, Counters, Files, Names};
pub use write::{
    Acting, Allocate, DefaultOptions, DiscardStats, ErrorCursor, HINTED_NAMES_MAX, LABEL_MAX, New, OnError,
    Rename, SetAttr, SetXattr, Shutdown, TimesFrom, WriteAccess, WriteOptions, unprivileged,
};

/// An inode in memory; cheap to clone.
pub type InodeRef = Arc<Inode>;

/// An open file system.
pub struct Volume {
    inodes: Arc<Inodes>,
    dir_format: extant_dir::Format,
    recovery: Recovery,
    /// Names the backup superblock in use, if the caller asked for one.
    note: Option<String>,
    /// Damage of the volume as a whole found on opening for reading, as text.
    damage: Vec<String>,
    statfs: OnceLock<StatFs>,
    /// `Some` if the volume is open for writing.
    writer: Option<write::Writer>,
}

impl Volume {
    /// Opens for reading. Nothing is written; the volume shows the state after the journal's replay.
    ///
    /// # Errors
    /// The device holds no ext4 file system, a feature cannot be read, the layout is impossible, or the
    /// device failed.
    pub fn open_read_only(
        device: Arc<dyn extant_device::Device>,
        options: &OpenOptions,
    ) -> Result<Self, OpenFault> {
        mount::read_only(device, options)
    }

    /// Opens for reading and writing: replays a pending log first, and cleans up orphans.
    ///
    /// # Errors
    /// The device holds no ext4 file system, a feature cannot be written (it may be readable), the log cannot
    /// be replayed, or the device failed.
    pub fn open(device: Arc<dyn extant_device::Device>, options: &OpenOptions) -> Result<Self, OpenFault> {
        mount::read_write(device, options)
    }

    /// Stops writing when this guard is lost. The caller holds the guard (see [`WriteOptions::is_guarded`]).
    /// A guard notifies only the last volume that registered.
    pub fn guard_with(&self, guard: &MountGuard) {
        if let Some(writer) = &self.writer {
            writer.guard_with(guard);
        }
    }

    /// The superblock after recovery.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.inodes.shared().sb
    }

    /// The layout of the file system.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.inodes.shared().geometry
    }

    /// What recovery found in the journal.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Names the backup superblock in use, if the caller asked for one.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Damage that opening for reading found and worked around, one line each: a lost superblock, a truncated
    /// image. Opening for writing refuses instead.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Damage worked around while reading, one line each: group descriptors replaced so far.
    #[must_use]
    pub fn salvaged(&self) -> Vec<String> {
        self.inodes.shared().salvage.as_ref().map_or_else(Vec::new, extant_inode::Salvage::lines)
    }

    /// An inode by number.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if no inode in use has this number; the inode is corrupt; the device failed.
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

    /// Prefetches the inode table blocks of these inodes (in any order) in few transfers. Best effort.
    pub fn prefetch_inodes(&self, inos: &[Ino]) {
        self.inodes.prefetch(inos);
    }
}
