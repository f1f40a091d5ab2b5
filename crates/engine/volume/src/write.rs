//! Writing: the state that only a volume open for writing has, and how an operation begins.
//!
//! ```text
//!   operation:  name locks -> start(credits) -> Change{inodes, allocator, handle} -> edit in memory -> end
//!   commit:     inodes into table blocks, descriptors with bitmap checksums -> log -> freed space is usable
//! ```
//!
//! A public operation (a method of [`Names`](crate::Names), [`Files`](crate::Files) and so on) checks its
//! arguments and notes failures. Its steps are methods of the views in `views`, by what they change: names
//! (`NameEdits`), the inodes themselves (`InodeLife`), bytes (`DataEdits`), sizes and blocks (`SizeEdits`),
//! attributes (`AttributeEdits`). They change the file system in [`Writer::run`].
//!
//! Invariants
//! 1. INV-EN10: a refused operation leaves no lasting change. If it has allocated something, such as an inode
//!    number, it frees that in the same transaction. If an operation fails after a change that it cannot
//!    undo, this transaction is never committed: the journal aborts (see [`Writer::run`]).
//! 2. INV-EN9 (docs/locks.md): operation locks: a directory before the inodes in it; of two directories,
//!    ancestors first, otherwise by number; then the handle.
//! 3. INV-EN6: an inode without links that is still open is an orphan. An inode that loses its last link
//!    while it is not open is deleted at once, in the same transaction if that has room, unless the caller
//!    holds it ([`Names::unlink_held`](crate::Names::unlink_held)).
//! 4. A new inode's operation lock is held until the inode has its name. A caller with a stale inode number
//!    therefore never sees an inode whose creation may still fail.

mod announce;
mod append;
mod assemble;
mod attributes;
mod close;
mod convert;
mod copy;
mod data;
mod defaults;
mod delete;
mod direct;
mod discard;
mod errors;
mod exchange;
mod fallocate;
mod fast;
mod fsync;
mod known;
mod label;
mod lost;
mod names;
mod new;
mod options;
mod primary;
mod quota;
mod rename;
mod reserve;
mod shutdown;
mod status;
mod threads;
mod truncate;
mod tune;
mod views;
mod writeback;
mod xattrs;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_alloc::Alloc;
use extant_base::rank;
use extant_base::sync::{CachePadded, thread_number};
use extant_base::{Ino, Pblk, Tid};
use extant_buffer::{Kind, ReadFault, Seal};
use extant_inode::{Change, InodeCache, LiveInode, Orphans, Shared, Values};
use extant_jbd2_format::fast_commit::Writer as Records;
use extant_journal::{Bug, CommitReason, Described, Handle, Journal, TailChecksum};
use extant_ondisk::htree::DxFormat;
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;
use extant_ondisk::{dirent, extent, orphan_file, superblock, xattr as xattr_layout};
use parking_lot::Mutex;

use crate::ops::errors::Operation;
use crate::{Counters, Fault, Refusal, Volume};

pub use attributes::{SetAttr, TimesFrom};
pub use data::{WriteAccess, unprivileged};
pub use defaults::DefaultOptions;
pub use discard::DiscardStats;
pub use errors::OnError;
pub use fallocate::Allocate;
pub use fsync::ErrorCursor;
pub use label::LABEL_MAX;
pub use names::HINTED_NAMES_MAX;
pub use new::New;
pub use rename::Rename;
pub use reserve::Acting;
pub use shutdown::Shutdown;
pub use xattrs::SetXattr;

pub use options::WriteOptions;

pub(crate) use assemble::LogKind;
pub(crate) use fast::FastCommits;
pub(crate) use primary::seconds_now;

/// Blocks that an operation on names may change: splits along two directories' index paths, an inode, an
/// attribute block, orphans.
pub(crate) const NAME_CREDITS: u32 = 60;
/// Set-group-ID mode bit.
const SETGID: u16 = 0o2000;
/// Flags of directories with names that are not in blocks, or not stored as plain names.
const SPECIAL: u32 = flags::INLINE_DATA | flags::ENCRYPT | flags::CASEFOLD;
/// Generation counters: about as many as threads that create inodes at the same moment.
const GENERATIONS: usize = 16;
/// Commits that an operation waits for to make freed space usable, before it reports that there is no space.
const SPACE_TRIES: u32 = 3;

/// The owner of the values that a commit writes.
pub(crate) struct CommitClient {
    pub(crate) live: InodeCache,
    pub(crate) alloc: Arc<Alloc>,
    pub(crate) orphans: Orphans,
    errors: errors::Errors,
    index: DxFormat,
    superblock_at: usize,
    discards: discard::Discards,
    fast: fast::FastCommits,
}

impl CommitClient {
    fn shared(&self) -> &Arc<Shared> {
        self.live.shared()
    }
}

impl extant_inode::LiveOwner for CommitClient {
    fn inodes(&self) -> &InodeCache {
        &self.live
    }
}

impl extant_journal::Client for CommitClient {
    fn before_commit(&self, handle: &Handle<'_>) -> Result<(), ReadFault> {
        self.live.freeze(handle)?;
        self.orphans.write(&self.live, handle)?;
        self.errors.write(handle, &self.shared().geometry)?;
        self.alloc.seal(handle)
    }

    fn write_values(&self, handle: &Handle<'_>) -> Result<(), ReadFault> {
        self.live.write_frozen(handle)
    }

    fn blocks_to_come(&self) -> u32 {
        let blocks = self.live.dirty_blocks() + self.alloc.seal_credits();
        blocks + self.orphans.blocks_to_come() + self.errors.blocks_to_come()
    }

    fn seal(&self, block: Pblk, seal: Seal, bytes: &mut [u8]) {
        let Some(seed) = seal.seed else { return };
        match seal.owner.kind {
            Kind::Extents => extent::seal(bytes, seed),
            Kind::DirLeaf => dirent::seal_tail(bytes, seed),
            Kind::DirIndex => self.index.seal(bytes, seed),
            Kind::Xattr => xattr_layout::seal_block(bytes, seed, block),
            Kind::Orphans => orphan_file::seal(seed, block, bytes),
            Kind::Superblock => {
                if let Some(place) = bytes.get_mut(self.superblock_at..self.superblock_at + superblock::SIZE)
                {
                    superblock::seal(place);
                }
            }
            // Sealed where they are written, or without a checksum.
            Kind::Descriptors
            | Kind::InodeTable
            | Kind::Indirect
            | Kind::BlockBitmap
            | Kind::InodeBitmap
            | Kind::Other => {}
        }
    }

    fn tail_checksum(&self, seal: Seal, bytes: &[u8], has_sum: bool) -> Option<TailChecksum> {
        let seed = seal.seed.filter(|_| seal.owner.kind == Kind::DirLeaf)?;
        let sum = if has_sum { dirent::stored_tail_sum(bytes) } else { dirent::tail_sum(bytes, seed) };
        sum.map(|(value, len)| TailChecksum { value, seed, len })
    }

    fn has_checksum(&self, seal: Seal) -> bool {
        seal.seed.is_some() && self.shared().fs_seed.is_some()
    }

    fn committed(&self, transaction: Tid) {
        self.discard_freed(transaction);
        self.alloc.committed(transaction);
    }

    fn describe(&self, transaction: Tid, records: &mut Records) -> Result<Described, ReadFault> {
        if self.errors.blocks_to_come() > 0 {
            return Ok(Described::No);
        }
        self.fast.describe(&self.live, transaction, records)
    }
}

/// The state of a volume that is open for writing.
pub(crate) struct Writer {
    pub(crate) keeper: Arc<CommitClient>,
    pub(crate) journal: Arc<Journal>,
    /// Reads attribute values that are in inodes of their own.
    inodes: Arc<extant_inode::Inodes>,
    pub(crate) xattrs: xattrs::SharedXattrs,
    /// Serializes moves of directories: the tree above a directory does not change during the check for
    /// cycles.
    renames: rank::Mutex<(), { rank::RENAMES }>,
    /// Each thread uses one, by its number.
    generations: [CachePadded<AtomicU64>; GENERATIONS],
    pub(crate) dir_format: extant_dir::Format,
    pub(crate) flusher: Arc<writeback::Flusher>,
    writeback: Mutex<Option<std::thread::JoinHandle<()>>>,
    committer: Mutex<Option<std::thread::JoinHandle<()>>>,
    reader: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Deletions that fit one transaction skip the orphan list.
    skip_short_orphans: bool,
    /// Writing does not clear set-ID bits.
    keeps_set_id: bool,
    /// Changes of a file's data do not update times.
    keeps_times: bool,
    /// Those of a cache above do not: it keeps the times.
    is_cache_timed: AtomicBool,
    /// New inodes get their directory's group.
    dir_groups: bool,
    /// Replaced file contents get no early writeback.
    no_auto_da_alloc: bool,
    /// The time of all changes, instead of the clock's.
    fixed_time: Option<Timestamp>,
    names: label::NewNames,
    /// Held until the volume is dropped; must be the last field dropped. Dropping it lets other hosts mount.
    guard: Option<crate::mmp::MountGuard>,
}

impl Writer {
    pub(crate) fn inodes(&self) -> &InodeCache {
        &self.keeper.live
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.keeper.shared()
    }

    /// Joins the running transaction.
    pub(crate) fn start(&self, credits: u32) -> Result<Handle<'_>, Fault> {
        self.flusher.start(credits)
    }

    pub(crate) fn change<'a>(&'a self, handle: &'a Handle<'_>) -> Change<'a> {
        self.flusher.change(handle)
    }

    /// Runs an operation in a handle. If there is no space but a commit would free some, waits for the commit
    /// and runs the operation again.
    ///
    /// The operation must refuse before its first change, or undo its changes. Any other failure (damage, the
    /// device) may leave it half done. If it then has changes that it did not settle (see
    /// [`extant_buffer::Edit::mark_complete`]), the journal is aborted before they can be committed.
    fn run<R>(
        &self,
        credits: u32,
        mut operation: impl FnMut(&Change<'_>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let awaited = Cell::new(None);
        let done = with_room(
            &self.journal,
            || self.keeper.alloc.pending_blocks() > 0,
            || {
                let handle = self.start(credits)?;
                let done = operation(&Change { awaited: Some(&awaited), ..self.change(&handle) });
                end_handle(handle, &done);
                if self.flusher.sabotage.has(Bug::DiscardEarly) {
                    self.keeper.discard_freed(self.journal.running());
                }
                if self.flusher.sabotage.has(Bug::ReuseFreed) {
                    self.keeper.alloc.committed(self.journal.running());
                }
                done
            },
        )?;
        // Names in a directory with synchronous updates must be durable before the caller gets its answer.
        if let Some((dir, transaction)) = awaited.get() {
            self.journal.commit_with_others(transaction, dir.0.into())?;
        }
        Ok(done)
    }

    /// A number that distinguishes successive uses of an inode number.
    fn generation(&self) -> u32 {
        let thread = if self.fixed_time.is_some() { 0 } else { thread_number() % GENERATIONS };
        let mine = &self.generations[thread];
        let number = mine.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        (number ^ number >> 32) as u32
    }

    /// An inode that the caller names, to be changed. Refuses the file system's own inodes.
    fn inode_to_change(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        if self.shared().is_special(ino) {
            return Err(Refusal::NotPermitted.into());
        }
        Self::check_owner(self.inodes().get(ino)?)
    }

    /// As [`inode_to_change`](Self::inode_to_change), also for an inode without links.
    fn unlinked_to_change(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        if self.shared().is_special(ino) {
            return Err(Refusal::NotPermitted.into());
        }
        Self::check_owner(self.inodes().get_unlinked(ino)?)
    }

    /// Refuses an inode that belongs to others.
    fn check_owner(node: Arc<LiveInode>) -> Result<Arc<LiveInode>, Fault> {
        // It holds an attribute value, and belongs to the inodes with that attribute.
        if node.values().has_flag(flags::EA_INODE) { Err(Refusal::Stale.into()) } else { Ok(node) }
    }

    /// As [`inode_to_change`](Self::inode_to_change), for a caller that checks
    /// [`check_live`](Self::check_live) once it holds the inode's lock: for changes of a directory's names.
    fn inode_maybe_freed(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        if self.shared().is_special(ino) {
            return Err(Refusal::NotPermitted.into());
        }
        Ok(self.inodes().get_hot(ino)?)
    }

    /// Refuses an inode that no longer exists.
    fn check_live(node: &LiveInode, values: &Values) -> Result<(), Fault> {
        if node.is_gone(values) { Err(Refusal::Stale.into()) } else { Ok(()) }
    }

    /// An inode that a directory entry leads to. If it may not be changed, that is damage.
    fn linked_inode(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        let node = self.linked_maybe_freed(ino)?;
        Self::check_linked(&node, &node.values())?;
        Ok(node)
    }

    /// As [`linked_inode`](Self::linked_inode), for a caller that checks [`check_linked`](Self::check_linked)
    /// once it holds the inode's lock.
    fn linked_maybe_freed(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        if self.shared().is_special(ino) {
            let fact =
                extant_base::Malformed::new("inode", "must not be one of the file system's own", ino.0);
            return Err(Fault::corrupt(ino, fact));
        }
        self.inodes().get_maybe_freed(ino).map_err(|fault| match fault {
            extant_inode::Fault::NoSuchInode(_) => not_in_use(ino),
            fault => fault.into(),
        })
    }

    /// Reports damage if an inode that a name leads to no longer exists. The name's directory is locked, so
    /// it cannot have been deleted meanwhile.
    fn check_linked(node: &LiveInode, values: &Values) -> Result<(), Fault> {
        if node.is_gone(values) { Err(not_in_use(node.ino())) } else { Ok(()) }
    }

    fn now(&self) -> Timestamp {
        let extra = self.shared().geometry.inode_size > extant_ondisk::inode::BASE_SIZE;
        if let Some(time) = self.fixed_time {
            return time.clamped(extra);
        }
        clock().clamped(extra)
    }
}

/// The clock of the last tick, as in the kernel's file systems.
#[cfg(unix)]
fn clock() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { seconds: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or_default() }
}

/// The system's clock.
#[cfg(not(unix))]
fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs().cast_signed(), nanos: since.subsec_nanos() }
}

impl Volume {
    pub(crate) fn writer(&self) -> Result<&Writer, Fault> {
        self.check_going()?;
        self.writer.as_ref().ok_or(Fault::Refused(Refusal::ReadOnly))
    }

    /// Checkpoints: writes home all that is durable in the log, so that the log is empty.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn checkpoint(&self) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.noted(Operation::Sync, writer.journal.checkpoint().map_err(Fault::from))
    }

    /// As [`checkpoint`](Self::checkpoint), but the last transaction stays in the log if a large one has room
    /// beside it. The committer thread does this by itself; calling it is only useful without a committer.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn make_room(&self) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.noted(Operation::Sync, writer.journal.make_room().map_err(Fault::from))
    }

    /// Counts one more opener of the inode: it stays until [`released`](Self::released), whatever happens to
    /// its names.
    ///
    /// # Errors
    /// No such inode.
    pub fn opened(&self, ino: Ino) -> Result<(), Fault> {
        if let Some(writer) = &self.writer {
            let node = writer.inode_to_change(ino)?;
            let _operation = node.operation.read();
            // Its last name may have been removed before the lock was taken.
            if node.values().fields.links == 0 && node.opens.load(Ordering::Acquire) == 0 {
                return Err(Refusal::Stale.into());
            }
            node.opens.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Counts one opener less. An inode without links is deleted when its last opener releases it.
    ///
    /// # Errors
    /// The deletion failed.
    pub fn released(&self, ino: Ino) -> Result<(), Fault> {
        self.noted(Operation::Release, self.release(ino))
    }

    /// Notes that one descriptor of an open file is being closed. If the file's whole contents were replaced,
    /// starts their writeback now. For callers that are not notified when a file is opened;
    /// [`released`](Self::released) includes this. [`fsync`](crate::Files::fsync) reports failures.
    pub fn closing(&self, ino: Ino) {
        let Some(writer) = self.writer.as_ref().filter(|_| self.check_going().is_ok()) else { return };
        // An inode that is not in memory has nothing to write back.
        if let Some(node) = writer.inodes().cached(ino) {
            writer.flusher.flush_rewritten(&node, false);
        }
    }

    /// Evicts this inode from memory if it is not in use and has no changes that are not on the device. For
    /// callers that do not expect to use it soon.
    pub fn evict(&self, ino: Ino) {
        if let Some(writer) = &self.writer {
            writer.inodes().evict(ino);
        }
    }

    /// Returns whether [`closing`](Self::closing) does anything.
    #[must_use]
    pub fn asks_for_closing(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.no_auto_da_alloc)
    }

    fn release(&self, ino: Ino) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let node = writer.inodes().get_unlinked(ino)?;
        if node.values().fields.links > 0 {
            writer.flusher.flush_rewritten(&node, true);
        }
        let _operation = node.operation.write();
        let less = |opens: u32| opens.checked_sub(1);
        let before = node.opens.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        debug_assert!(before.is_ok(), "inode {ino} is released more often than it was opened");
        if before == Ok(1) && node.values().fields.links == 0 {
            writer.life().delete_unnamed(&node)?;
        }
        Ok(())
    }

    /// From now on, a cache above keeps the times of files that it holds: [`WriteAccess::Writeback`],
    /// fallocate and copies leave times alone.
    pub fn leave_times(&self) {
        if let Some(writer) = &self.writer {
            writer.is_cache_timed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the volume is open for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writer.is_some()
    }
}

impl Counters<'_> {
    /// The journal's counters; `None` if open for reading.
    #[must_use]
    pub fn journal_stats(self) -> Option<extant_journal::Stats> {
        self.volume.writer.as_ref().map(|writer| writer.journal.stats())
    }

    /// Counters and contents of the cache of metadata blocks.
    #[must_use]
    pub fn metadata_stats(self) -> extant_buffer::Stats {
        self.volume.inodes.shared().buffers.stats()
    }

    /// The allocator's counters since the volume was opened; they print in the form of the kernel's
    /// `mb_stats`. `None` if open for reading.
    #[must_use]
    pub fn alloc_stats(self) -> Option<extant_alloc::Stats> {
        self.volume.writer.as_ref().map(|writer| writer.keeper.alloc.stats())
    }

    /// Statistics of the orphan list's lock; `None` if open for reading.
    #[must_use]
    pub fn orphan_lock_stats(self) -> Option<extant_inode::LockStats> {
        self.volume.writer.as_ref().map(|writer| writer.keeper.orphans.lock_stats())
    }

    /// Counters of changes of a directory since it came into memory; `None` if it was not changed, or if the
    /// volume is open for reading.
    #[must_use]
    pub fn dir_stats(self, ino: Ino) -> Option<extant_dir::edit::Stats> {
        let node = self.volume.writer.as_ref()?.inodes().get(ino).ok()?;
        let values = node.values();
        values.dir.as_ref().map(|state| state.stats())
    }
}

/// Runs `attempt`, and repeats it after a commit if there was no space: a commit makes freed space usable.
/// `may_help` returns whether any freed space is pending.
fn with_room<R>(
    journal: &Journal,
    may_help: impl Fn() -> bool,
    mut attempt: impl FnMut() -> Result<R, Fault>,
) -> Result<R, Fault> {
    let mut tries = 0;
    loop {
        match attempt() {
            Err(fault) if fault.wants_room() && tries < SPACE_TRIES && may_help() => {
                tries += 1;
                journal.commit_all_for(CommitReason::NoSpace)?;
            }
            done => return done,
        }
    }
}

/// Ends the handle of an operation. A half-done operation is never committed.
fn end_handle<R>(handle: Handle<'_>, done: &Result<R, Fault>) {
    if let Err(fault) = done
        && !fault.is_clean_refusal()
    {
        handle.fail(fault);
    }
}

/// Checks a name that is to be created or removed.
fn check_name(name: &[u8]) -> Result<(), Fault> {
    match name {
        b"" => Err(Refusal::NotFound.into()),
        name if name.len() > dirent::NAME_LEN_MAX => Err(Refusal::NameTooLong.into()),
        name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Refusal::Invalid.into()),
        _ => Ok(()),
    }
}

/// The error for a name that leads to an unused inode.
fn not_in_use(ino: Ino) -> Fault {
    Fault::corrupt(ino, extant_base::Malformed::new("directory entry", "must lead to an inode in use", ino.0))
}

#[cfg(test)]
mod tests;
