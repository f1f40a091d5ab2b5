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

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use extant_base::rank::{self, Mutex, MutexGuard, RwLock};
use extant_base::sync::CachePadded;
use extant_base::{Ino, Pblk, Tid};
use extant_mapping::FileMap;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};

pub use self::changed::Editing;
use self::changed::{DIRTY_PARTS, Dirty, Frozen, TABLE};
use self::table::Table;
use crate::dir_state::DirMemory;
use crate::quota::{self, Charge};
use crate::{DataPath, Fault, FileCaches, FileData, Inode, Quota, Shared, Slot};

/// How an inode is tracked so that it is deleted, or truncated, after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OrphanState {
    /// Not tracked.
    #[default]
    None,
    /// On the list that begins in the superblock.
    Listed,
    /// In this slot of the orphan file.
    Slot(Slot),
}

impl OrphanState {
    /// Encodes the state as one word: 0, 1, or 2 and more for a slot.
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
    /// The fixed fields. Their `block` contains the map: see [`map`](Self::map).
    pub fields: layout::Inode,
    ino: Ino,
    /// Seed of its checksums; `None` without metadata_csum.
    seed: Option<u32>,
    /// Values that most inodes do not have.
    extras: Option<Box<Extras>>,
    /// Caches that make changes of a directory fast.
    pub dir: Option<Box<crate::DirState>>,
    /// The last transaction that changed the inode; 0 for none.
    pub changed_in: Tid,
    /// The transaction whose list contains the inode, for its commit to write it; 0 for none.
    listed_in: Tid,
    /// The last snapshot, for the next reader. The table charges its memory together with the inode.
    // INV-M8: charged with the inode, and evicted with it.
    snapshot: Option<Arc<Inode>>,
    /// The cached data of a regular file that was written or read through the cache.
    data: Option<Arc<FileData>>,
    /// The file was truncated to zero: new data replaces its old content, and must not stay in memory for
    /// long.
    pub is_rewritten: bool,
}

/// Values that most inodes do not have, in a separate allocation: larger values would make a million inodes
/// in memory slower.
#[derive(Default)]
struct Extras {
    /// The bytes after the fixed fields; missing bytes are zeros.
    body: Vec<u8>,
    /// Number of its attribute values in separate inodes, if quotas are counted: they count as its own.
    value_inodes: u32,
    /// The usage that the quota files contain for it.
    charged: Option<Charge>,
}

impl Values {
    /// The values of a new inode. `map` provides only the number, the map's root and the seed; the EXTENTS
    /// flag of the fields decides the kind of map.
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

    /// The map of its blocks, for reading; after a change call [`set_map`](Self::set_map).
    #[must_use]
    pub fn map(&self) -> FileMap {
        let extents = self.fields.has_flag(flags::EXTENTS);
        FileMap { ino: self.ino, i_block: self.fields.block, extents, seed: self.seed }
    }

    /// Stores a changed map.
    pub fn set_map(&mut self, map: &FileMap) {
        self.fields.block = map.i_block;
        // While the directory's editor changes the map, `dir` is taken out; the editor keeps it correct.
        if let Some(dir) = &mut self.dir {
            dir.forget_places();
        }
    }

    /// The size in bytes, as reads and stat return it. It is larger than the size on disk while data is not
    /// written back.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.data.as_ref().map_or(self.fields.size, |data| data.size())
    }

    /// The cached data of a regular file that was written or read through the cache.
    #[must_use]
    pub fn data(&self) -> Option<Arc<FileData>> {
        self.data.clone()
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Seed of the checksums of its structures; `None` without metadata_csum.
    #[must_use]
    pub fn seed(&self) -> Option<u32> {
        self.seed
    }

    /// The bytes after the fixed fields; missing bytes are zeros.
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

    /// Number of its attribute values in separate inodes, if quotas are counted: they count as its own.
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

    /// The usage that the quota files contain for it.
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

    /// Whether it has only fixed fields: no blocks, no attributes, no cached data.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        let fields = &self.fields;
        fields.blocks == 0 && fields.file_acl == 0 && self.body().is_empty() && self.data.is_none()
    }

    /// Drops the cached data, which must be clean.
    pub fn drop_data(&mut self) {
        self.data = None;
    }

    /// Whether its map is empty. This checks the map, because i_blocks may be wrong.
    #[must_use]
    pub fn maps_nothing(&self) -> bool {
        let block = &self.fields.block;
        match self.has_flag(flags::EXTENTS) {
            true => block[2..4] == [0, 0],
            false => block.iter().all(|byte| *byte == 0),
        }
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_mode(self.fields.mode)
    }

    /// Whether this flag of `extant_ondisk::inode::flags` is set.
    #[must_use]
    pub fn has_flag(&self, flag: u32) -> bool {
        self.fields.has_flag(flag)
    }
}

/// An inode in memory that may change.
pub struct LiveInode {
    ino: Ino,
    /// Byte offset in its block of the inode table.
    place_at: u32,
    table_block: Pblk,
    /// Held exclusively by operations that change the inode, shared by operations that need its blocks to
    /// stay. Taken before any handle.
    pub operation: RwLock<(), { rank::OPERATION }>,
    values: Mutex<Values, { rank::VALUES }>,
    /// Number of opens: the inode is deleted when it has no links and no opens.
    pub opens: AtomicU32,
    /// [`OrphanState`] as a word; changed only with the operation lock held exclusively.
    orphan: AtomicU32,
}

impl LiveInode {
    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Block of the inode table, and the byte offset in it.
    #[must_use]
    pub fn place(&self) -> (Pblk, usize) {
        (self.table_block, self.place_at as usize)
    }

    /// Whether and how it is tracked as an orphan.
    #[inline]
    #[must_use]
    pub fn orphan(&self) -> OrphanState {
        OrphanState::of_word(self.orphan.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn set_orphan(&self, state: OrphanState) {
        self.orphan.store(state.word(), Ordering::Release);
    }

    /// Its cached data, if any.
    #[must_use]
    pub fn data(&self) -> Option<Arc<FileData>> {
        self.values.lock().data.clone()
    }

    /// Whether it has no links and is not open. `values` are the inode's own.
    #[must_use]
    pub fn is_gone(&self, values: &Values) -> bool {
        values.fields.links == 0 && self.opens.load(Ordering::Relaxed) == 0
    }

    /// Evicts the file data if all of it is on the device and nothing else uses it. Returns whether it did.
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

    /// Its values, unless they are locked.
    pub(crate) fn try_values(&self) -> Option<MutexGuard<'_, Values, { rank::VALUES }>> {
        self.values.try_lock()
    }

    /// Locks its values. To change them, use [`InodeCache::edit`].
    pub fn values(&self) -> MutexGuard<'_, Values, { rank::VALUES }> {
        self.values.lock()
    }
}

/// With the counters of its `Arc` at most 320 bytes. The memory of a million inodes limits how fast they are
/// created and evicted.
const _: () = assert!(size_of::<LiveInode>() <= 304);

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
        if let Some(quota) = Quota::open(self)? {
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
