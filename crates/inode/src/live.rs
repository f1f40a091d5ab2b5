//! Inodes that change: the table of them, and how they get into their table blocks.
//!
//! ```text
//!   InodeCache::get(ino) -> LiveInode -- operation lock --> handle --> edit(): fields, map, body change in memory
//!                                                              '--> on the list of the running transaction
//!   freeze(), while no handle is open: the list is the commit's, the next transaction has an empty one
//!   write_frozen(handle), while the next one runs: each inode of the list into its table block, checksum and all, once;
//!                                                   new table blocks encoded by their creators: see `changed`
//! ```
//!
//! Invariants
//! 1. An inode's values change under an open handle only, so a frozen list has them whole. A change of an
//!    inode that the commit has not written yet encodes its sealed state first; it does not wait.
//! 2. An inode on the list, or in use, stays in memory. So does a deleted one until the commit: until then
//!    the table on disk has it live.
//! 3. Only a commit changes table blocks, one commit at a time.
//! 4. What an inode costs its owners is counted when the list is frozen: see [`Quota`].
//! 5. Locks, in order: the operation locks of inodes (by number, see `volume`), then a handle, then an
//!    inode's values, then the lists and blocks. A directory's values come before those of what it holds.
//!    Values are not locked across the start of a handle.

mod changed;
mod room;
mod table;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use extant_base::sync::CachePadded;
use extant_base::{Ino, Pblk, Tid};
use extant_mapping::FileMap;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};
use parking_lot::{Mutex, MutexGuard, RwLock};

pub use self::changed::Editing;
use self::changed::{DIRTY_PARTS, Dirty, Frozen, TABLE};
use self::table::Table;
use crate::dir_state::DirMemory;
use crate::quota::{self, Charge};
use crate::{DataPath, Fault, FileCaches, FileData, Inode, Quota, Shared, Slot};

/// How an inode is remembered to be deleted, or cut, after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OrphanState {
    /// It is not.
    #[default]
    None,
    /// On the list that begins in the superblock.
    Listed,
    /// In this slot of the orphan file.
    Slot(Slot),
}

impl OrphanState {
    /// As one word: 0, 1, or 2 and more for a slot.
    #[inline]
    fn word(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Listed => 1,
            Self::Slot(slot) => slot.word() + 2,
        }
    }

    #[inline]
    fn of_word(word: u32) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Listed,
            slot => Self::Slot(Slot::of_word(slot - 2)),
        }
    }
}

/// The values of an inode that may change.
pub struct Values {
    /// The fixed fields. Where its blocks are, is in `block`: see [`map`](Self::map).
    pub fields: layout::Inode,
    ino: Ino,
    /// Seed of its checksums; `None` without metadata_csum.
    seed: Option<u32>,
    /// What most inodes do not have.
    extras: Option<Box<Extras>>,
    /// What makes changes of a directory fast.
    pub dir: Option<Box<crate::DirState>>,
    /// The last transaction that changed it; 0 for none.
    pub changed_in: Tid,
    /// The transaction on whose list it is, to be written by its commit; 0 for none.
    listed_in: Tid,
    /// The last one made, for the next reader. The table charges for it with the node.
    // INV-M8: charged with the inode, and evicted with it.
    snapshot: Option<Arc<Inode>>,
    /// Its bytes in memory, of a regular file that was written or read through them.
    data: Option<Arc<FileData>>,
    /// All that the file held was cut off: what is written to it stands in for that, and is not to be kept in
    /// memory for long.
    pub is_rewritten: bool,
}

/// What most inodes do not have, apart: a million of them in memory are as slow as they are large.
#[derive(Default)]
struct Extras {
    /// The bytes behind the fixed fields; those that are not there are zeros.
    body: Vec<u8>,
    /// Its attributes' values that have inodes of their own, where quotas are counted: they count as its own.
    value_inodes: u32,
    /// What the quota files have for it.
    charged: Option<Charge>,
}

impl Values {
    /// The values of a new inode. Of `map` counts what the fields do not contain: their EXTENTS flag decides
    /// the kind of map.
    #[must_use]
    pub fn new(fields: layout::Inode, body: Vec<u8>, map: FileMap) -> Self {
        let FileMap { ino, i_block, seed, .. } = map;
        let mut values = Self {
            fields: layout::Inode { block: i_block, ..fields },
            ino,
            seed,
            extras: None,
            dir: None,
            changed_in: Tid::NONE,
            listed_in: Tid::NONE,
            snapshot: None,
            data: None,
            is_rewritten: false,
        };
        values.set_body(body);
        values
    }

    /// Where its blocks are, for reading; a change [puts it back](Self::set_map).
    #[must_use]
    pub fn map(&self) -> FileMap {
        let extents = self.fields.has_flag(flags::EXTENTS);
        FileMap { ino: self.ino, i_block: self.fields.block, extents, seed: self.seed }
    }

    /// Its map was changed.
    pub fn set_map(&mut self, map: &FileMap) {
        self.fields.block = map.i_block;
        // Absent while its own editor changes it, which keeps it right.
        if let Some(dir) = &mut self.dir {
            dir.forget_places();
        }
    }

    /// Bytes of its content, as reads and stat see it: more than the inode on disk says, while some of it is
    /// not written back.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.data.as_ref().map_or(self.fields.size, |data| data.size())
    }

    /// Its bytes in memory, of a regular file that was written or read through them.
    #[must_use]
    pub fn data(&self) -> Option<Arc<FileData>> {
        self.data.clone()
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Seed of the checksums of what is its own; `None` without metadata_csum.
    #[must_use]
    pub fn seed(&self) -> Option<u32> {
        self.seed
    }

    /// The bytes behind the fixed fields; those that are not there are zeros.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.extras.as_ref().map_or(&[], |extras| &extras.body)
    }

    /// Changes [`body`](Self::body).
    pub fn set_body(&mut self, body: Vec<u8>) {
        if !body.is_empty() || self.extras.is_some() {
            self.extras().body = body;
        }
    }

    /// Its attributes' values that have inodes of their own, where quotas are counted: they count as its own.
    #[must_use]
    pub fn value_inodes(&self) -> u32 {
        self.extras.as_ref().map_or(0, |extras| extras.value_inodes)
    }

    /// Changes [`value_inodes`](Self::value_inodes).
    pub fn set_value_inodes(&mut self, count: u32) {
        if count != self.value_inodes() {
            self.extras().value_inodes = count;
        }
    }

    /// What the quota files have for it.
    pub(crate) fn charged(&self) -> Option<Charge> {
        self.extras.as_ref().and_then(|extras| extras.charged)
    }

    pub(crate) fn set_charged(&mut self, charge: Option<Charge>) {
        if charge.is_some() || self.extras.is_some() {
            self.extras().charged = charge;
        }
    }

    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Has it nothing besides its fixed fields: no blocks, no attributes, no bytes in memory?
    #[must_use]
    pub fn is_bare(&self) -> bool {
        let fields = &self.fields;
        fields.blocks == 0 && fields.file_acl == 0 && self.body().is_empty() && self.data.is_none()
    }

    /// Forgets what is in memory of its bytes: none of it is dirty.
    pub fn drop_data(&mut self) {
        self.data = None;
    }

    /// Is its map empty? What i_blocks counts may be wrong: the map decides.
    #[must_use]
    pub fn maps_nothing(&self) -> bool {
        let block = &self.fields.block;
        match self.has_flag(flags::EXTENTS) {
            true => block[2..4] == [0, 0],
            false => block.iter().all(|byte| *byte == 0),
        }
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_mode(self.fields.mode)
    }

    /// Is this flag of `extant_ondisk::inode::flags` set?
    #[must_use]
    pub fn has_flag(&self, flag: u32) -> bool {
        self.fields.has_flag(flag)
    }
}

/// An inode that may change.
pub struct LiveInode {
    ino: Ino,
    /// Byte offset in its block of the inode table.
    place_at: u32,
    table_block: Pblk,
    /// Held exclusively by operations that change the inode, shared by those that need its blocks to stay:
    /// before any handle.
    pub operation: RwLock<()>,
    values: Mutex<Values>,
    /// The number of opens: the inode is deleted when its last link is gone and this is zero.
    pub opens: AtomicU32,
    /// [`OrphanState`] as a word: changed under the exclusive operation lock.
    orphan: AtomicU32,
}

impl LiveInode {
    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Block of the inode table, and the byte offset in it.
    #[must_use]
    pub fn place(&self) -> (Pblk, usize) {
        (self.table_block, self.place_at as usize)
    }

    /// Is it tracked as an orphan?
    #[inline]
    #[must_use]
    pub fn orphan(&self) -> OrphanState {
        OrphanState::of_word(self.orphan.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn set_orphan(&self, state: OrphanState) {
        self.orphan.store(state.word(), Ordering::Release);
    }

    /// What it has in memory of its bytes, if anything.
    #[must_use]
    pub fn data(&self) -> Option<Arc<FileData>> {
        self.values.lock().data.clone()
    }

    /// Has it lost its last link, and is it not open? `values`: its own.
    #[must_use]
    pub fn is_gone(&self, values: &Values) -> bool {
        values.fields.links == 0 && self.opens.load(Ordering::Relaxed) == 0
    }

    /// Evicts the file data, if all of it is on the device and nothing else holds it. Returns whether it did.
    fn evict_data(&self) -> bool {
        let Some(mut values) = self.values.try_lock() else { return false };
        let on_disk = values.fields.size;
        let is_idle = |data: &mut Arc<FileData>| Arc::get_mut(data).is_some_and(|data| data.is_idle(on_disk));
        if !values.data.as_mut().is_some_and(is_idle) {
            return false;
        }
        let data = values.data.take();
        drop(values);
        data.is_some()
    }

    /// Its values, if they are not locked.
    pub(crate) fn try_values(&self) -> Option<MutexGuard<'_, Values>> {
        self.values.try_lock()
    }

    /// Its values. To change them, see [`InodeCache::edit`].
    pub fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock()
    }
}

/// With the counts of its `Arc` no more than 320 bytes: a million inodes come and go as fast as their memory
/// does.
const _: () = assert!(size_of::<LiveInode>() <= 304);

/// All inodes of a volume that is open for writing, as far as they are in memory.
pub struct InodeCache {
    shared: Arc<Shared>,
    files: FileCaches,
    table: Arc<Table>,
    dirs: Arc<DirMemory>,
    /// What the running transaction changed, in parts by the inodes' numbers: threads that work in different
    /// groups of inodes do not meet.
    dirty: Box<[CachePadded<Mutex<Dirty>>]>,
    /// What the commit under way has to write.
    frozen: CachePadded<Mutex<Frozen>>,
    /// Upper bound of the table blocks that the listed inodes are in.
    dirty_blocks: CachePadded<AtomicU32>,
    quota: OnceLock<Quota>,
    /// A mistake on purpose, for the crash lab: inodes without links are written a transaction late.
    forget_orphans: bool,
}

impl InodeCache {
    /// No inode in memory yet. Of files: how bytes get to the device, and how what is known of their blocks
    /// is forgotten. `forget_orphans`: see `extant_journal::Sabotage`.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        (path, policy): (DataPath, extant_extent_status::Policy),
        forget_orphans: bool,
    ) -> Self {
        let table = Table::new(&shared.budget);
        let dirs = DirMemory::new(&shared.budget);
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

    /// What all inodes share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The caches of files' bytes.
    #[must_use]
    pub fn files(&self) -> &FileCaches {
        &self.files
    }

    /// What a regular file has in memory of its bytes, from now on. The caller holds its operation lock.
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

    /// Evicts this inode if nothing uses it and it has no unwritten changes.
    pub fn evict(&self, ino: Ino) {
        self.table.evict(ino);
    }

    pub(crate) fn dirs(&self) -> &Arc<DirMemory> {
        &self.dirs
    }

    /// Counts what inodes cost their owners from now on, where the file system has quota files. Before any
    /// inode is changed.
    ///
    /// # Errors
    /// A quota file is damaged: writing would make it worse.
    pub fn count_quotas(&self) -> Result<(), Fault> {
        if let Some(quota) = Quota::open(self)? {
            let was_unset = self.quota.set(quota).is_ok();
            debug_assert!(was_unset, "quotas are opened once");
        }
        Ok(())
    }

    /// The quota files, where there are any.
    #[must_use]
    pub fn quota(&self) -> Option<&Quota> {
        self.quota.get()
    }

    /// An inode that is in use.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        let node = self.find(ino, false)?;
        let is_gone = node.is_gone(&node.values());
        if is_gone { Err(Fault::NoSuchInode(ino)) } else { Ok(node) }
    }

    /// As [`get`](Self::get), for a caller that checks [`LiveInode::is_gone`] itself, because it will lock
    /// the values anyway.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get_maybe_freed(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        self.find(ino, false)
    }

    /// As [`get_maybe_freed`](Self::get_maybe_freed), with a per-thread hot entry: for the directory that a
    /// thread works in.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn get_hot(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        self.table.get_hot(ino).or_else(|_| self.find(ino, false))
    }

    /// An inode that may have no links left: for orphans, and inodes of the file system's own.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get_unlinked(&self, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        self.find(ino, true)
    }

    /// An inode that is in memory, in use or not: one with something dirty is.
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

    /// A new inode, invisible to other threads before it is [`put`](Self::put) into the table.
    ///
    /// # Errors
    /// Its group's descriptor is damaged.
    pub fn make(&self, ino: Ino, values: Values) -> Result<Arc<LiveInode>, Fault> {
        let place = self.shared.inode_place(ino).map_err(Fault::of(ino))?.ok_or(Fault::NoSuchInode(ino))?;
        Ok(Arc::new(LiveInode::new(ino, place, values)))
    }

    /// Makes a new inode visible by its number; earlier notes on the number are dropped. A thread with an old
    /// number may use it at once: a creator that could still free the inode holds its operation lock.
    pub fn put(&self, node: Arc<LiveInode>) {
        // The same may have brought the old inode back into memory: it gives way.
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
            false => Inode::load(&self.shared, ino, raw, None)?,
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

    /// The inode as it is at this moment.
    ///
    /// # Errors
    /// Its values break a rule, which they did not when they were loaded: never seen.
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

impl LiveInode {
    fn new(ino: Ino, place: (Pblk, usize), values: Values) -> Self {
        Self {
            ino,
            place_at: place.1 as u32,
            table_block: place.0,
            operation: RwLock::new(()),
            values: Mutex::new(values),
            opens: AtomicU32::new(0),
            orphan: AtomicU32::new(0),
        }
    }
}

/// Without the zeros at the end.
fn trimmed(body: &[u8]) -> Vec<u8> {
    let len = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    body[..len].to_vec()
}

/// Flags that a new inode takes from its directory.
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
