//! The inodes in memory, by number, and their eviction.
//!
//! A thread that works in one directory looks up the same inode again and again, and directories that were
//! created together are in the same row. So each thread caches its last inode, and finds it without the lock
//! of the shard.
//!
//! ```text
//! shard 0..63:  row 5 -> inodes [80 | 81 | -- | 83 | ...]     16 neighbours in one row: a thread with many
//!                                                             files goes from one to the next
//!              order of creation of rows:  [.. 5 ..]          evicts from the front: the oldest inodes are
//!                                                             written first
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use extant_base::rank::{self, Mutex, MutexGuard};
use extant_base::salted::Salted;
use extant_base::sync::{CachePadded, thread_number};
use extant_base::{Ino, Tid};
use extant_memory::{Budget, Shrinker};

use crate::Inode;
use crate::file_data::FILE_BYTES;
use crate::node::{LiveInode, OrphanState};

const SHARDS: usize = 64;
/// Number of per-thread hot entries.
const RECENT: usize = 16;
/// Inodes per row.
const ROW: u32 = 16;
/// Consecutive rows in the same shard.
const NEIGHBOURS: u32 = 16;
/// Maximum number of rows that one call of the shrinker visits.
const SCAN_MAX: usize = 1 << 10;
/// Number of consecutive rows with unwritten inodes after which the shrinker continues with the next shard:
/// later rows are unwritten as well.
const UNWRITTEN_MAX: usize = 4;
/// Number of inodes that a shard charges at once.
const CHARGED: usize = 16;
/// Approximate memory of an inode: values, body, its slot in the table, and the snapshot that nearly every
/// inode has.
const NODE_BYTES: usize = size_of::<LiveInode>() + 64 + size_of::<Inode>() + 112;

type Row = [Option<Arc<LiveInode>>; ROW as usize];

/// The inodes of a shard.
struct Rows {
    rows: HashMap<u32, Box<Row>, Salted>,
    /// The number of each row, once, in the order in which the shrinker visits them.
    order: VecDeque<u32>,
    /// Inodes added since the last charge.
    uncharged: usize,
    /// Number of evicted inodes.
    evictions: u64,
}

pub(super) struct Table {
    budget: Arc<Budget>,
    shards: Vec<CachePadded<Mutex<Rows, { rank::INODE_TABLE }>>>,
    /// The last inode that each thread looked up with [`get_hot`](Self::get_hot). It is not evicted while it
    /// is here.
    recent: [CachePadded<Mutex<Option<Arc<LiveInode>>, { rank::INODE_RECENT }>>; RECENT],
    bytes: CachePadded<AtomicUsize>,
    turn: AtomicUsize,
    /// The last transaction whose inodes are all in their table blocks.
    written: CachePadded<AtomicU64>,
}

impl Table {
    pub(super) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let salt = Salted::new(RandomState::new().hash_one(0));
        let table = Arc::new(Self {
            budget: Arc::clone(budget),
            shards: (0..SHARDS)
                .map(|_| {
                    let rows = HashMap::with_hasher(salt);
                    CachePadded(Mutex::new(Rows { rows, order: VecDeque::new(), uncharged: 0, evictions: 0 }))
                })
                .collect(),
            recent: Default::default(),
            bytes: CachePadded::default(),
            turn: AtomicUsize::new(0),
            written: CachePadded::default(),
        });
        let shrinker: Arc<dyn Shrinker> = Arc::<Self>::clone(&table);
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&shrinker);
        budget.register(weak);
        table
    }

    /// Records that all inodes changed by this transaction are in their table blocks, so they may be evicted.
    pub(super) fn written(&self, transaction: Tid) {
        self.written.store(transaction.0, Ordering::Release);
    }

    /// Returns the inode if it is in the table, else the eviction count of the shard for
    /// [`keep`](Self::keep).
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<LiveInode>, u64> {
        let shard = self.shard(ino);
        let row = shard.rows.get(&(ino.0 / ROW));
        row.and_then(|row| row[(ino.0 % ROW) as usize].clone()).ok_or(shard.evictions)
    }

    /// Same as [`get`](Self::get), with a per-thread hot entry. An inode without links is not returned from
    /// the hot entry: its number may belong to another inode now.
    pub(super) fn get_hot(&self, ino: Ino) -> Result<Arc<LiveInode>, u64> {
        let recent = &self.recent[thread_number() % RECENT];
        let known = recent.lock().as_ref().filter(|node| node.ino == ino).map(Arc::clone);
        // Only try_lock: the caller may hold these values, or values that come later in the lock order.
        let has_links =
            |node: &Arc<LiveInode>| node.values.try_lock().is_some_and(|values| values.fields.links > 0);
        if let Some(node) = known.filter(has_links) {
            return Ok(node);
        }
        let node = self.get(ino)?;
        let before = recent.lock().replace(Arc::clone(&node));
        drop(before);
        Ok(node)
    }

    /// Inserts a loaded inode, unless another thread inserted it first; returns the one in the table. `None`
    /// if inodes were evicted since `since`: other threads may have changed, written and evicted this one.
    /// Load it again.
    pub(super) fn keep(&self, loaded: Arc<LiveInode>, since: u64) -> Option<Arc<LiveInode>> {
        let charge = {
            let mut shard = self.shard(loaded.ino);
            let evictions = shard.evictions;
            let place = shard.place(loaded.ino);
            if let Some(known) = place {
                return Some(Arc::clone(known));
            }
            if evictions != since {
                return None;
            }
            *place = Some(Arc::clone(&loaded));
            shard.came()
        };
        self.charge(charge);
        Some(loaded)
    }

    /// Inserts a new inode; replaces the previous inode with its number.
    pub(super) fn put(&self, node: Arc<LiveInode>) {
        let ino = node.ino;
        let mut shard = self.shard(ino);
        let old = shard.place(ino).replace(node);
        let charge = if old.is_none() { shard.came() } else { 0 };
        drop(shard);
        self.charge(charge);
    }

    /// Charges this number of inodes. Called without locks.
    fn charge(&self, inodes: usize) {
        if inodes > 0 {
            self.bytes.fetch_add(inodes * NODE_BYTES, Ordering::Relaxed);
            self.budget.charge(inodes * NODE_BYTES);
        }
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.release(bytes);
    }

    /// Evicts one inode if it is idle. Its row keeps its position in the order.
    pub(super) fn evict(&self, ino: Ino) {
        let written = Tid(self.written.load(Ordering::Acquire));
        let mut evicted = Evicted::default();
        {
            let mut shard = self.shard(ino);
            let Rows { rows, uncharged, evictions, .. } = &mut *shard;
            let Some(row) = rows.get_mut(&(ino.0 / ROW)) else { return };
            evicted.add(&mut row[(ino.0 % ROW) as usize], written, (uncharged, evictions));
        }
        self.release(evicted.inodes);
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Rows, { rank::INODE_TABLE }> {
        // The hash spreads rows: threads that create inodes in lockstep, each in a separate group, would
        // otherwise use the same shard all the time. Neighbouring rows share a shard: a thread that goes from
        // one inode to the next finds the shard in its CPU cache.
        self.shards[extant_base::salted::spread(u64::from(ino.0 / ROW / NEIGHBOURS)) as usize % SHARDS].lock()
    }
}

impl Rows {
    /// Counts an added inode. Returns the number of inodes to charge now.
    fn came(&mut self) -> usize {
        self.uncharged += 1;
        if self.uncharged < CHARGED { 0 } else { std::mem::take(&mut self.uncharged) }
    }

    fn place(&mut self, ino: Ino) -> &mut Option<Arc<LiveInode>> {
        let number = ino.0 / ROW;
        let row = self.rows.entry(number).or_insert_with(|| {
            self.order.push_back(number);
            Box::default()
        });
        &mut row[(ino.0 % ROW) as usize]
    }

    /// Evicts the idle inodes of the next row, and the file data of other inodes. `None` if there are no
    /// rows.
    fn evict_row(&mut self, written: Tid) -> Option<Evicted> {
        let number = self.order.pop_front()?;
        let Self { rows, order, uncharged, evictions } = self;
        let row = rows.get_mut(&number)?;
        let mut evicted = Evicted::default();
        // The inodes are not in the CPU cache: prefetch all of them in parallel.
        row.iter().flatten().for_each(|node| extant_buffer::prefetch_object(&**node));
        for place in row.iter_mut() {
            evicted.add(place, written, (uncharged, evictions));
        }
        match row.iter().any(Option::is_some) {
            true => order.push_back(number),
            false => drop(rows.remove(&number)),
        }
        debug_assert_eq!(order.len(), rows.len(), "each row stands once in the order");
        Some(evicted)
    }
}

/// Result of an eviction.
#[derive(Default)]
struct Evicted {
    /// Bytes that the evicted inodes had charged.
    inodes: usize,
    /// Bytes of file data, which releases its own charge.
    files: usize,
    /// Whether some inodes are not written yet.
    are_unwritten: bool,
}

impl Evicted {
    /// Evicts the file data of the inode in this slot unless the inode is held, and the inode too if it is
    /// idle.
    fn add(
        &mut self,
        place: &mut Option<Arc<LiveInode>>,
        written: Tid,
        (uncharged, evictions): (&mut usize, &mut u64),
    ) {
        let Some(node) = place else { return };
        let needed = Use::of(node, written);
        if !matches!(needed, Use::Held) {
            self.files += if node.evict_data() { FILE_BYTES } else { 0 };
        }
        match needed {
            Use::Held => {}
            Use::Unwritten => self.are_unwritten = true,
            Use::Idle => {
                *place = None;
                *evictions += 1;
                // Inodes that were not charged yet release no memory.
                match uncharged.checked_sub(1) {
                    Some(fewer) => *uncharged = fewer,
                    None => self.inodes += NODE_BYTES,
                }
            }
        }
    }
}

/// Why an inode must stay in memory.
enum Use {
    /// No reason: evict it.
    Idle,
    /// It changed after the last transaction whose inodes are all in their table blocks.
    Unwritten,
    /// It is in use, or has data that must stay.
    Held,
}

impl Use {
    fn of(node: &Arc<LiveInode>, written: Tid) -> Self {
        let is_held = Arc::strong_count(node) > 1
            || node.opens.load(Ordering::Relaxed) > 0
            || node.orphan() != OrphanState::None;
        if is_held {
            return Self::Held;
        }
        let Some(values) = node.values.try_lock() else { return Self::Held };
        // A write error stays until the next check reports it.
        let has_errors = values.data.as_ref().is_some_and(|data| data.pages.had_errors());
        let is_in_use = values.dir.as_ref().is_some_and(|state| state.is_in_use());
        match () {
            () if has_errors || is_in_use => Self::Held,
            () if values.listed_in != Tid::NONE || values.changed_in > written => Self::Unwritten,
            () => Self::Idle,
        }
    }
}

impl Shrinker for Table {
    fn name(&self) -> &'static str {
        "live inodes"
    }

    fn cached_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: usize) -> usize {
        let (mut freed, mut inodes, mut scanned) = (0, 0, 0);
        let written = Tid(self.written.load(Ordering::Acquire));
        let first = self.turn.load(Ordering::Relaxed);
        for at in (first..first + SHARDS).map(|at| at % SHARDS) {
            if freed >= bytes || scanned >= SCAN_MAX {
                break;
            }
            self.turn.store((at + 1) % SHARDS, Ordering::Relaxed);
            // A thread that charges memory may hold a shard: skip it.
            let Some(mut shard) = self.shards[at].try_lock() else { continue };
            let mut unwritten = 0;
            for _ in 0..shard.order.len() {
                if freed >= bytes || scanned >= SCAN_MAX || unwritten >= UNWRITTEN_MAX {
                    break;
                }
                let Some(evicted) = shard.evict_row(written) else { break };
                (freed, scanned) = (freed + evicted.inodes + evicted.files, scanned + 1);
                inodes += evicted.inodes;
                unwritten = if evicted.are_unwritten { unwritten + 1 } else { 0 };
            }
        }
        self.release(inodes);
        freed
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.budget.release(self.cached_bytes());
    }
}
