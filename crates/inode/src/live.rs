//! Inodes that change: the table of them, and how they get into their table blocks.
//!
//! ```text
//!   Live::get(ino) -> Node -- operation lock --> handle --> edit(): fields, map, body change in memory
//!                                                              '--> on the list of the running transaction
//!   write_dirty(handle), at the commit: each listed inode into its table block, checksum and all, once
//! ```
//!
//! Invariants
//! 1. An inode's values are changed under an open handle only, so that the commit finds them whole.
//! 2. An inode on the list, or held by somebody, stays in memory. So does one that was deleted, until the commit: the table has
//!    it alive until then.
//! 3. Locks, in order: the operation locks of inodes (by number, see `volume`), then a handle, then an inode's values, then the
//!    list. Values are not locked across the start of a handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::{Ino, Pblk};
use buffer::{Edit, Kind, Owner, ReadFault, Seal};
use mapping::FileMap;
use memory::Shrinker;
use ondisk::filetype::FileType;
use ondisk::inode::{self as layout, flags};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{Fault, Inode, Shared};

const SHARDS: usize = 64;
/// Inodes looked at per call of the shrinker.
const SCAN_MAX: usize = 1 << 14;
/// The seal of table blocks: inodes are sealed one by one as they are written.
const TABLE: Seal = Seal { owner: Owner { kind: Kind::InodeTable, ino: 0 }, seed: None };

/// How an inode is remembered to be deleted, or cut, after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OrphanState {
    /// It is not.
    #[default]
    None,
    /// On the list that begins in the superblock.
    Listed,
    /// In this slot of the orphan file.
    Slot(u32),
}

/// The values of an inode that may change.
pub struct Values {
    /// The fixed fields; their `block` counts only while this is being encoded: see `map`.
    pub fields: layout::Inode,
    /// The bytes behind the fixed fields; those that are not there are zeros.
    pub body: Vec<u8>,
    /// Where its blocks are; `i_block` is here whatever it holds.
    pub map: FileMap,
    /// What makes changes of a directory fast.
    pub dir: Option<Box<crate::DirState>>,
    /// Is it tracked as an orphan?
    pub orphan: OrphanState,
    /// The last transaction that changed it; 0 for none.
    pub changed_in: u64,
    is_listed: bool,
    snapshot: Option<Arc<Inode>>,
}

impl Values {
    /// The values of a new inode.
    #[must_use]
    pub fn new(fields: layout::Inode, body: Vec<u8>, map: FileMap) -> Self {
        Self {
            fields,
            body,
            map,
            dir: None,
            orphan: OrphanState::None,
            changed_in: 0,
            is_listed: false,
            snapshot: None,
        }
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_mode(self.fields.mode)
    }

    /// Is this flag of `ondisk::inode::flags` set?
    #[must_use]
    pub fn has_flag(&self, flag: u32) -> bool {
        self.fields.has_flag(flag)
    }
}

/// An inode that may change.
pub struct Node {
    ino: Ino,
    /// Block of the inode table, and the byte offset in it.
    place: (Pblk, usize),
    /// Held exclusively by operations that change the inode, shared by those that need its blocks to stay: before any handle.
    pub operation: RwLock<()>,
    values: Mutex<Values>,
    /// How many have it open: it is deleted when its last link is gone and nobody has.
    pub opens: AtomicU32,
}

impl Node {
    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Block of the inode table, and the byte offset in it.
    #[must_use]
    pub fn place(&self) -> (Pblk, usize) {
        self.place
    }

    /// Its values. To change them, see [`Live::edit`].
    pub fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock()
    }
}

/// All inodes of a volume that is open for writing, as far as they are in memory.
pub struct Live {
    shared: Arc<Shared>,
    table: Arc<Table>,
    dirty: Mutex<Dirty>,
    /// Upper bound of the table blocks that the listed inodes are in.
    dirty_blocks: AtomicU32,
    /// A mistake on purpose, for the crash lab: inodes without links are written a transaction late.
    forget_orphans: bool,
}

#[derive(Default)]
struct Dirty {
    nodes: Vec<Arc<Node>>,
    last_block: Pblk,
}

struct Table {
    budget: Arc<memory::Budget>,
    shards: Vec<Mutex<HashMap<u32, Arc<Node>>>>,
    bytes: AtomicUsize,
    turn: AtomicUsize,
}

/// Memory that an inode takes, roughly: values, body, place in the table.
const NODE_BYTES: usize = size_of::<Node>() + 256;

/// An inode's values, for changing them: on the list of the running transaction.
pub struct Editing<'a> {
    values: MutexGuard<'a, Values>,
}

impl std::ops::Deref for Editing<'_> {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

impl std::ops::DerefMut for Editing<'_> {
    fn deref_mut(&mut self) -> &mut Values {
        &mut self.values
    }
}

impl Live {
    /// No inode in memory yet. `forget_orphans`: see `journal::Sabotage`.
    #[must_use]
    pub fn new(shared: Arc<Shared>, forget_orphans: bool) -> Self {
        let table = Arc::new(Table {
            budget: Arc::clone(&shared.budget),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        });
        let shrinker: Arc<dyn Shrinker> = Arc::<Table>::clone(&table);
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&shrinker);
        shared.budget.register(weak);
        Self { shared, table, dirty: Mutex::default(), dirty_blocks: AtomicU32::new(0), forget_orphans }
    }

    /// What all inodes share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// An inode that is in use.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get(&self, ino: Ino) -> Result<Arc<Node>, Fault> {
        self.find(ino, false)
    }

    /// An inode that may have no links left: for orphans, and inodes of the file system's own.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn get_orphan(&self, ino: Ino) -> Result<Arc<Node>, Fault> {
        self.find(ino, true)
    }

    fn find(&self, ino: Ino, is_orphan: bool) -> Result<Arc<Node>, Fault> {
        let known = self.table.shard(ino).get(&ino.0).cloned();
        if let Some(node) = known {
            if !is_orphan && node.values.lock().fields.links == 0 && node.opens.load(Ordering::Relaxed) == 0 {
                return Err(Fault::NoSuchInode(ino));
            }
            return Ok(node);
        }
        let loaded = Arc::new(self.load(ino, is_orphan)?);
        Ok(self.keep(loaded))
    }

    /// A new inode; what was known of its number is forgotten.
    ///
    /// # Errors
    /// Its group's descriptor is damaged.
    pub fn add(&self, ino: Ino, values: Values) -> Result<Arc<Node>, Fault> {
        let place = self.shared.inode_place(ino).map_err(Fault::of(ino))?.ok_or(Fault::NoSuchInode(ino))?;
        let node = Arc::new(Node::new(ino, place, values));
        // Somebody with an old number in hand may have brought the old inode back into memory: it gives way.
        let old = self.table.shard(ino).insert(ino.0, Arc::clone(&node));
        if old.is_none() {
            self.table.bytes.fetch_add(NODE_BYTES, Ordering::Relaxed);
            self.shared.budget.charge(NODE_BYTES);
        }
        Ok(node)
    }

    /// Makes the table block of an inode anew, when no other inode in it is in use: it need not be read.
    pub fn fresh_block(&self, node: &Node, edit: &dyn Edit) {
        edit.fresh(node.place.0, TABLE, &mut |_| {});
    }

    /// The values of an inode, to be changed by `transaction`, of which the caller has a handle.
    pub fn edit<'a>(&self, node: &'a Arc<Node>, transaction: u64) -> Editing<'a> {
        let mut values = node.values.lock();
        values.changed_in = transaction;
        values.snapshot = None;
        if !values.is_listed {
            values.is_listed = true;
            let mut dirty = self.dirty.lock();
            // Inodes that are made one after the other share blocks; counting some blocks twice does no harm.
            if dirty.last_block != node.place.0 {
                dirty.last_block = node.place.0;
                self.dirty_blocks.fetch_add(1, Ordering::Relaxed);
            }
            dirty.nodes.push(Arc::clone(node));
        }
        Editing { values }
    }

    /// Table blocks that [`write_dirty`](Self::write_dirty) would touch, at most.
    #[must_use]
    pub fn dirty_blocks(&self) -> u32 {
        self.dirty_blocks.load(Ordering::Relaxed)
    }

    /// Writes the inodes that the running transaction changed into their table blocks. No other handle is open.
    ///
    /// # Errors
    /// A table block cannot be read.
    pub fn write_dirty(&self, edit: &dyn Edit) -> Result<(), ReadFault> {
        let Dirty { nodes, .. } = std::mem::take(&mut *self.dirty.lock());
        self.dirty_blocks.store(0, Ordering::Relaxed);
        for node in &nodes {
            let mut values = node.values.lock();
            values.is_listed = false;
            if self.forget_orphans && values.fields.links == 0 && values.orphan != OrphanState::None {
                continue;
            }
            self.write(node, &mut values, edit)?;
        }
        Ok(())
    }

    fn write(&self, node: &Node, values: &mut Values, edit: &dyn Edit) -> Result<(), ReadFault> {
        let Values { fields, body, map, .. } = values;
        fields.block = map.i_block;
        let seed = self.shared.inode_seed(node.ino, fields.generation);
        let size = self.shared.geometry.inode_size;
        let (block, at) = node.place;
        edit.change(block, TABLE, &mut |bytes| {
            let Some(raw) = bytes.get_mut(at..at + size) else { return };
            fields.encode(raw);
            let from = if size > layout::BASE_SIZE { fields.xattr_offset().min(size) } else { size };
            let behind = &mut raw[from..];
            let len = body.len().min(behind.len());
            behind[..len].copy_from_slice(&body[..len]);
            behind[len..].fill(0);
            if let Some(seed) = seed {
                layout::seal(raw, seed);
            }
        })
    }

    fn keep(&self, loaded: Arc<Node>) -> Arc<Node> {
        {
            let mut shard = self.table.shard(loaded.ino);
            if let Some(known) = shard.get(&loaded.ino.0) {
                return Arc::clone(known);
            }
            shard.insert(loaded.ino.0, Arc::clone(&loaded));
        }
        self.table.bytes.fetch_add(NODE_BYTES, Ordering::Relaxed);
        self.shared.budget.charge(NODE_BYTES);
        loaded
    }

    fn load(&self, ino: Ino, is_orphan: bool) -> Result<Node, Fault> {
        let of = Fault::of(ino);
        let place = self.shared.inode_place(ino).map_err(&of)?.ok_or(Fault::NoSuchInode(ino))?;
        let buffer = self.shared.buffers.get(place.0, TABLE.owner, |_| Ok(())).map_err(&of)?;
        let raw = buffer.get(place.1..place.1 + self.shared.geometry.inode_size).unwrap_or_default();
        let inode = match is_orphan {
            false => Inode::load(&self.shared, ino, raw, None)?,
            true => Inode::load_orphan(&self.shared, ino, raw)?,
        };
        let values = Values::new(inode.fields().clone(), trimmed(inode.body()), inode.map.clone());
        Ok(Node::new(ino, place, values))
    }

    /// The inode as it is at this moment.
    ///
    /// # Errors
    /// Its values break a rule, which they did not when they were loaded: never seen.
    pub fn snapshot(&self, node: &Node) -> Result<Arc<Inode>, Fault> {
        let mut values = node.values.lock();
        if let Some(known) = &values.snapshot {
            return Ok(Arc::clone(known));
        }
        let mut fields = values.fields.clone();
        fields.block = values.map.i_block;
        let mut body = values.body.clone();
        if let Some(len) = self.shared.geometry.inode_size.checked_sub(fields.xattr_offset()) {
            body.resize(len, 0);
        }
        let made = Arc::new(Inode::of_parts(&self.shared, node.ino, fields, body.into())?);
        values.snapshot = Some(Arc::clone(&made));
        Ok(made)
    }
}

impl Node {
    fn new(ino: Ino, place: (Pblk, usize), values: Values) -> Self {
        Self { ino, place, operation: RwLock::new(()), values: Mutex::new(values), opens: AtomicU32::new(0) }
    }
}

impl Table {
    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, Arc<Node>>> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }
}

impl Shrinker for Table {
    fn name(&self) -> &'static str {
        "inodes that may change"
    }

    fn cached_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: usize) -> usize {
        let (mut freed, mut scanned) = (0, 0);
        let first = self.turn.load(Ordering::Relaxed);
        for at in (first..first + SHARDS).map(|at| at % SHARDS) {
            if freed >= bytes || scanned >= SCAN_MAX {
                break;
            }
            self.turn.store((at + 1) % SHARDS, Ordering::Relaxed);
            // Whoever charges may hold a shard: then that one is left out.
            let Some(mut shard) = self.shards[at].try_lock() else { continue };
            let is_idle = |node: &Arc<Node>| {
                Arc::strong_count(node) == 1
                    && node.opens.load(Ordering::Relaxed) == 0
                    && node
                        .values
                        .try_lock()
                        .is_some_and(|values| !values.is_listed && values.orphan == OrphanState::None)
            };
            let mut idle = Vec::new();
            for (ino, node) in shard.iter() {
                if freed >= bytes || scanned >= SCAN_MAX {
                    break;
                }
                scanned += 1;
                if is_idle(node) {
                    freed += NODE_BYTES;
                    idle.push(*ino);
                }
            }
            for ino in idle {
                shard.remove(&ino);
            }
        }
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
        self.budget.release(freed);
        freed
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.budget.release(self.cached_bytes());
    }
}

/// Without the zeros at the end.
fn trimmed(body: &[u8]) -> Vec<u8> {
    let len = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    body[..len].to_vec()
}

/// Flags that a new inode takes from its directory.
pub const INHERITED: u32 = flags::SYNC
    | flags::IMMUTABLE
    | flags::APPEND
    | flags::NODUMP
    | flags::NOATIME
    | flags::JOURNAL_DATA
    | flags::NOTAIL
    | flags::DIRSYNC
    | flags::PROJINHERIT
    | flags::CASEFOLD
    | flags::DAX;
