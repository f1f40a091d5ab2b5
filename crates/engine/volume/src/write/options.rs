//! Options for writing.

use std::time::Duration;

use extant_inode::{DataPath, OrphanMode};
use extant_ondisk::time::Timestamp;

use super::OnError;

/// Options for writing.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// How orphans are tracked.
    pub orphans: OrphanMode,
    /// Also track what is deleted or truncated in one transaction: for comparing the modes.
    pub track_all_orphans: bool,
    /// Do not flush at commits: for measurements, and for devices that make writes durable at once.
    pub no_barriers: bool,
    /// Most blocks in a transaction. 0 stands for the smaller of the log's limit and an eighth of the budget,
    /// which counts as at least 512 blocks.
    pub transaction_max: u32,
    /// How file data gets from memory to the device.
    pub data: DataPath,
    /// File data stays in folios of one page on every path: for measuring what large folios save.
    pub small_folios: bool,
    /// How threads share flushes of the device's cache.
    pub flush: extant_flush::Settings,
    /// How long a synchronous change waits for others to share its commit.
    pub batching: extant_journal::Batching,
    /// The longest time between two commits, and before file data is written back; `None` stands for 5 and 30
    /// seconds.
    pub commit_interval: Option<Duration>,
    /// How cached extent status is evicted when memory is short.
    pub extents: extant_extent_status::Policy,
    /// Nothing runs in the background. A commit happens on request or when a transaction is full, in the
    /// thread that caused it. Writeback happens on request or when much is dirty, in the writing thread.
    pub no_committer: bool,
    /// Keep no journal even if the file system has one. A crash loses what is not synced, and the image may
    /// need a check.
    pub no_journal: bool,
    /// Write no fast commits, though the file system has the feature `fast_commit`.
    pub no_fast_commits: bool,
    /// Read a leaf of a directory before a name is inserted into it. By default, a leaf that is not in memory
    /// is changed without being read, and read later, with many others: see [`extant_buffer::PendingChange`].
    pub read_leaves_first: bool,
    /// Discard freed blocks on the device once the freeing is durable.
    pub discard: bool,
    /// What to do on damage; `None` uses the superblock's setting.
    pub errors: Option<OnError>,
    /// The caller clears set-ID bits where necessary, as the kernel does before it sends a write to a FUSE
    /// server, and writing leaves them. Otherwise every write clears them, regardless of the user.
    pub keeps_set_id: bool,
    /// Changes of file data leave times alone: the caller keeps the times and sets them.
    pub keeps_times: bool,
    /// Give replaced file contents no early writeback (the kernel's `noauto_da_alloc`). Otherwise they are
    /// written back when the file is renamed over another, and when a file that was truncated to nothing is
    /// closed. A crash then leaves old contents or new ones, even for programs that do not sync.
    pub no_auto_da_alloc: bool,
    /// New inodes get their directory's group, and directories do not inherit the set-group-ID bit (the
    /// kernel's `grpid`). Otherwise only a directory with that bit passes on its group.
    pub dir_groups: bool,
    /// This is not a mount: the superblock's mount count and last mount time stay. A file system that was
    /// changed by a hundred commands does not become due for a check because of that.
    pub is_no_mount: bool,
    /// Leave reserved blocks (mke2fs -m) to privileged operations: those that run while their thread holds an
    /// [`Acting::as_root`](crate::Acting::as_root). Otherwise all operations act as root.
    pub keep_reserve: bool,
    /// Times and generation numbers come from this time, not from the clock and from random numbers. The same
    /// operations of one thread then make the same bytes, if nothing runs in the background
    /// ([`no_committer`](Self::no_committer)).
    pub fixed_time: Option<Timestamp>,
    /// The caller holds its own [`MountGuard`](crate::MountGuard), on the device beneath the one given, which
    /// delays writes; see [`Volume::guard_with`](crate::Volume::guard_with).
    pub is_guarded: bool,
    /// For the crash lab.
    pub sabotage: extant_journal::Sabotage,
}
