//! An inode in memory that may change: its values and its locks. Does **not** own: the table of all inodes
//! and the lists of changed ones (see `live`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::rank::{self, Mutex, MutexGuard, RwLock};
use extant_base::{Ino, Pblk, Tid};
use extant_mapping::FileMap;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};

use crate::dir_state::{DirHolder, DirState};
use crate::file_data::FileData;
use crate::{Inode, Slot};

/// A user, a group and a project.
pub type Owners = [u32; 3];

/// An inode's owners, and its cost for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) owners: Owners,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

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
    pub dir: Option<Box<DirState>>,
    /// The last transaction that changed the inode; 0 for none.
    pub changed_in: Tid,
    /// The transaction whose list contains the inode, for its commit to write it; 0 for none.
    pub(crate) listed_in: Tid,
    /// The last snapshot, for the next reader. The table charges its memory together with the inode.
    // INV-M8: charged with the inode, and evicted with it.
    pub(crate) snapshot: Option<Arc<Inode>>,
    /// The cached data of a regular file that was written or read through the cache.
    pub(crate) data: Option<Arc<FileData>>,
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
    pub(crate) ino: Ino,
    /// Byte offset in its block of the inode table.
    pub(crate) place_at: u32,
    pub(crate) table_block: Pblk,
    /// Held exclusively by operations that change the inode, shared by operations that need its blocks to
    /// stay. Taken before any handle.
    pub operation: RwLock<(), { rank::OPERATION }>,
    pub(crate) values: Mutex<Values, { rank::VALUES }>,
    /// Number of opens: the inode is deleted when it has no links and no opens.
    pub opens: AtomicU32,
    /// [`OrphanState`] as a word; changed only with the operation lock held exclusively.
    orphan: AtomicU32,
}

impl LiveInode {
    pub(crate) fn new(ino: Ino, place: (Pblk, usize), values: Values) -> Self {
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
    pub(crate) fn evict_data(&self) -> bool {
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

    /// Locks its values. To change them, use [`InodeCache::edit`](crate::InodeCache::edit).
    pub fn values(&self) -> MutexGuard<'_, Values, { rank::VALUES }> {
        self.values.lock()
    }
}

impl DirHolder for LiveInode {
    fn try_dir(&self, with: &mut dyn FnMut(Option<&mut DirState>)) -> bool {
        let Some(mut values) = self.values.try_lock() else { return false };
        with(values.dir.as_deref_mut());
        true
    }
}

/// With the counters of its `Arc` at most 320 bytes. The memory of a million inodes limits how fast they are
/// created and evicted.
const _: () = assert!(size_of::<LiveInode>() <= 304);
