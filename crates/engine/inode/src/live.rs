//! The cache of inodes that may change, and how their changes get into the inode table.
//!
//! ```text
//!   InodeCache::get(ino) -> LiveInode -- operation lock --> handle --> edit(): changes values in memory,
//!                                                                      lists it in the running transaction
//!   freeze()          while no handle is open: gives the list to the commit, starts a new list
//!   write_frozen()    while the next transaction runs: encodes and seals each inode of the list into
//!                     its table block, once; creators of inodes encode new table blocks, see `changed`
//! ```
//!
//! Invariants
//! 1. An inode's values change under an open handle only, so a frozen list has complete values. If an inode
//!    changes before the commit has written it, the change encodes the frozen state first; it does not wait.
//! 2. An inode stays in memory while it is on the list or in use. A deleted inode stays until the commit,
//!    because until then the table on disk has it as live.
//! 3. Only a commit changes table blocks, one commit at a time.
//! 4. The quota usage of an inode is counted when the list is frozen: see [`Quota`].
//! 5. Locks, in order: the operation locks of inodes (by number, see `volume`), then a handle, then an
//!    inode's values, then the lists and blocks. A directory's values come before those of its entries.
//!    Values are not locked across the start of a handle.

mod changed;
mod room;
mod table;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use extant_base::rank::{self, Mutex};
use extant_base::sync::CachePadded;
use extant_base::{Ino, Pblk};
use extant_ondisk::inode::{self as layout, flags};

pub use self::changed::Editing;
use self::changed::{DIRTY_PARTS, Dirty, Frozen, TABLE};
use self::table::Table;
use crate::data::FileCaches;
use crate::dir_state::DirMemory;
use crate::file_data::{DataPath, FileData};
use crate::node::{LiveInode, Values};
use crate::quota::{self, Quota};
use crate::{Fault, Inode, Shared};

/// The inodes in memory of a volume that is open for writing.
pub struct InodeCache {
    shared: Arc<Shared>,
    files: FileCaches,
    table: Arc<Table>,
    dirs: Arc<DirMemory>,
    /// Inodes that the running transaction changed, in parts by table block, so that threads that work in
    /// different groups of inodes do not contend.
    dirty: Box<[CachePadded<Mutex<Dirty, { rank::CHANGED_INODES }>>]>,
    /// Inodes that the current commit must write.
    frozen: CachePadded<Mutex<Frozen, { rank::FROZEN }>>,
    /// Upper bound of the number of table blocks with listed inodes.
    dirty_blocks: CachePadded<AtomicU32>,
    quota: OnceLock<Quota>,
    /// A deliberate mistake, for the crash lab: inodes without links are written one transaction late.
    forget_orphans: bool,
}

impl InodeCache {
    /// Creates an empty cache. `path` and `policy` are for file data: the path to the device, and the
    /// eviction of cached extent status. `forget_orphans`: see `extant_journal::Sabotage`.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        (path, policy): (DataPath, extant_extent_status::Policy),
        forget_orphans: bool,
    ) -> Self {
        let table = Table::new(&shared.budget);
        let dirs = DirMemory::new(&shared.budget, shared.geometry.block_size);
        let files = FileCaches::new(&shared, path, policy);
        Self {
            shared,
            files,
            table,
            dirs,
            dirty: (0..DIRTY_PARTS).map(|_| CachePadded::default()).collect(),
            frozen: CachePadded::default(),
            dirty_blocks: CachePadded::default(),
            quota: OnceLock::new(),
            forget_orphans,
        }
    }

    /// The data that all inodes of the volume share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The caches of file data.
    #[must_use]
    pub fn files(&self) -> &FileCaches {
        &self.files
    }

    /// The cached data of a regular file; created if it has none. The caller holds its operation lock.
    #[must_use]
    pub fn data(&self, node: &LiveInode) -> Arc<FileData> {
        let mut values = node.values.lock();
        if let Some(data) = &values.data {
            return Arc::clone(data);
        }
        let data = Arc::new(self.files.file(&self.shared, node.ino, &values));
        values.data = Some(Arc::clone(&data));
        drop(values);
        data.charge();
        data
    }

    /// Evicts this inode if nothing uses it and all its changes are written.
    pub fn evict(&self, ino: Ino) {
        self.table.evict(ino);
    }

    pub(crate) fn dirs(&self) -> &Arc<DirMemory> {
        &self.dirs
    }

    /// Starts to count quotas, if the file system has quota files. Called before any inode is changed.
    ///
    /// # Errors
    /// A quota file is damaged: writing to it would add to the damage.
    pub fn count_quotas(&self) -> Result<(), Fault> {
        if let Some(quota) = Quota::open(&self.shared, &|ino| self.get(ino))? {
            let was_unset = self.quota.set(quota).is_ok();
            debug_assert!(was_unset, "quotas are opened once");
        }
        Ok(())
    }

    /// The quota files, if quotas are counted.
    #[must_use]
    pub fn quota(&self) -> Option<&Quota> {
        self.quota.get()
    }

    /// Returns an inode that is in use.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        let node = self.find(ino, false)?;
        let is_gone = node.is_gone(&node.values());
        if is_gone { Err(Fault::NoSuchInode(ino)) } else { Ok(node) }
    }

    /// Same as [`get`](Self::get), for a caller that checks [`LiveInode::is_gone`] itself, because it locks
    /// the values anyway.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get_maybe_freed(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        self.find(ino, false)
    }

    /// Same as [`get_maybe_freed`](Self::get_maybe_freed), with a per-thread hot entry: for the directory
    /// that a thread works in.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn get_hot(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        self.table.get_hot(ino).or_else(|_| self.find(ino, false))
    }

    /// Returns an inode that may have no links: for orphans, and for the file system's own inodes.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get_unlinked(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        self.find(ino, true)
    }

    /// Returns an inode that is in memory, whether or not it has links. Inodes with dirty data always are.
    #[must_use]
    pub fn cached(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        self.table.get(ino).ok()
    }

    fn find(&self, ino: Ino, is_orphan: bool) -> Result<Arc<LiveInode>, Fault> {
        loop {
            let since = match self.table.get(ino) {
                Ok(node) => return Ok(node),
                Err(since) => since,
            };
            if let Some(node) = self.table.keep(Arc::new(self.load(ino, is_orphan)?), since) {
                return Ok(node);
            }
        }
    }

    /// Creates an inode in memory, invisible to other threads until [`put`](Self::put) adds it to the table.
    ///
    /// # Errors
    /// The descriptor of its group is damaged.
    pub fn make(&self, ino: Ino, values: Values) -> Result<Arc<LiveInode>, Fault> {
        let place = self.shared.inode_place(ino).map_err(Fault::of(ino))?.ok_or(Fault::NoSuchInode(ino))?;
        Ok(Arc::new(LiveInode::new(ino, place, values)))
    }

    /// Adds a new inode to the table, which makes it visible by its number. Other threads that know the
    /// number from before may use it at once, so a creator that could still free the inode holds its
    /// operation lock.
    pub fn put(&self, node: Arc<LiveInode>) {
        // Such a thread may have loaded the old inode again: the new one replaces it.
        self.table.put(node);
    }

    /// [`make`](Self::make) and [`put`](Self::put).
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn add(&self, ino: Ino, values: Values) -> Result<Arc<LiveInode>, Fault> {
        let node = self.make(ino, values)?;
        self.put(Arc::clone(&node));
        Ok(node)
    }

    fn load(&self, ino: Ino, is_orphan: bool) -> Result<LiveInode, Fault> {
        let of = Fault::of(ino);
        let place = self.shared.inode_place(ino).map_err(&of)?.ok_or(Fault::NoSuchInode(ino))?;
        let buffer = self.shared.buffers.get(place.0, TABLE.owner, |_| Ok(())).map_err(&of)?;
        let raw = buffer.get(place.1..place.1 + self.shared.geometry.inode_size).unwrap_or_default();
        let inode = match is_orphan {
            false => Inode::load(&self.shared, ino, raw)?,
            true => Inode::load_orphan(&self.shared, ino, raw)?,
        };
        let mut fields = inode.fields().clone();
        let body = match room::made(&self.shared, &fields, inode.body()) {
            Some(body) => {
                fields.extra_isize = layout::EXTRA_SIZE as u16;
                trimmed(&body)
            }
            None => trimmed(inode.body()),
        };
        let mut values = Values::new(fields, body, inode.map.clone());
        if self.quota().is_some() {
            let file_acl = Pblk(values.fields.file_acl);
            values.set_value_inodes(self.shared.values_in_inodes(inode.body(), file_acl).map_err(&of)?.count);
            values.set_charged(quota::charge_in_use(&self.shared, ino, &values));
        }
        Ok(LiveInode::new(ino, place, values))
    }

    /// The current state of the inode.
    ///
    /// # Errors
    /// A value breaks a rule that held when the inode was loaded; this has never been seen.
    pub fn snapshot(&self, node: &LiveInode) -> Result<Arc<Inode>, Fault> {
        let mut values = node.values.lock();
        let size = values.size();
        let promised = values.data.as_ref().map_or(0, |data| data.promised());
        if let Some(known) = values.snapshot.as_ref().filter(|known| known.is_at(size, promised)) {
            return Ok(Arc::clone(known));
        }
        let mut fields = values.fields.clone();
        fields.size = size;
        let mut body = values.body().to_vec();
        if let Some(len) = self.shared.geometry.inode_size.checked_sub(fields.xattr_offset()) {
            body.resize(len, 0);
        }
        let made = Inode::of_parts(&self.shared, node.ino, fields, body.into())?;
        let made = Arc::new(made.with_promised(promised));
        values.snapshot = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// Removes the zeros at the end.
fn trimmed(body: &[u8]) -> Vec<u8> {
    let len = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    body[..len].to_vec()
}

/// Flags that a new inode inherits from its directory.
pub const INHERITED: u32 = flags::SECRM
    | flags::UNRM
    | flags::COMPR
    | flags::SYNC
    | flags::NODUMP
    | flags::NOATIME
    | flags::JOURNAL_DATA
    | flags::NOTAIL
    | flags::DIRSYNC
    | flags::PROJINHERIT
    | flags::CASEFOLD
    | flags::DAX;
