//! The inodes in memory, by number, and which of them go when memory is short.
//!
//! ```text
//! shard 0..63:  row 5 -> inodes [80 | 81 | -- | 83 | ...]     16 neighbours together: who makes or removes many files
//!                                                             goes from one to the next
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::Ino;
use base::salted::Salted;
use base::sync::Apart;
use memory::{Budget, Shrinker};
use parking_lot::{Mutex, MutexGuard};

use super::{Node, OrphanState};

const SHARDS: usize = 64;
/// Inodes in a row.
const ROW: u32 = 16;
/// Inodes looked at per call of the shrinker.
const SCAN_MAX: usize = 1 << 14;
/// Inodes that a shard charges for together.
const CHARGED: usize = 16;
/// Memory that an inode takes, roughly: values, body, place in the table.
const NODE_BYTES: usize = size_of::<Node>() + 64;

type Row = [Option<Arc<Node>>; ROW as usize];

/// The inodes of a shard.
struct Rows {
    rows: HashMap<u32, Box<Row>, Salted>,
    /// Inodes that came since it last charged.
    uncharged: usize,
    /// Inodes that were let go.
    departed: u64,
}

pub(super) struct Table {
    budget: Arc<Budget>,
    shards: Vec<Apart<Mutex<Rows>>>,
    bytes: Apart<AtomicUsize>,
    turn: AtomicUsize,
}

impl Table {
    pub(super) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let salt = Salted::new(RandomState::new().hash_one(0));
        let table = Arc::new(Self {
            budget: Arc::clone(budget),
            shards: (0..SHARDS)
                .map(|_| {
                    Apart(Mutex::new(Rows { rows: HashMap::with_hasher(salt), uncharged: 0, departed: 0 }))
                })
                .collect(),
            bytes: Apart::default(),
            turn: AtomicUsize::new(0),
        });
        let shrinker: Arc<dyn Shrinker> = Arc::<Self>::clone(&table);
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&shrinker);
        budget.register(weak);
        table
    }

    /// The inode, if it is here; else what [`keep`](Self::keep) wants to know.
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Node>, u64> {
        let shard = self.shard(ino);
        let row = shard.rows.get(&(ino.0 / ROW));
        row.and_then(|row| row[(ino.0 % ROW) as usize].clone()).ok_or(shard.departed)
    }

    /// Keeps what was loaded, unless somebody else was first: what is kept. `None`: inodes left since, maybe this one, changed
    /// by others and written meanwhile. Load it again.
    pub(super) fn keep(&self, loaded: Arc<Node>, since: u64) -> Option<Arc<Node>> {
        let charge = {
            let mut shard = self.shard(loaded.ino);
            let departed = shard.departed;
            let place = shard.place(loaded.ino);
            if let Some(known) = place {
                return Some(Arc::clone(known));
            }
            if departed != since {
                return None;
            }
            *place = Some(Arc::clone(&loaded));
            shard.came()
        };
        self.charge(charge);
        Some(loaded)
    }

    /// Keeps a new inode, in the place of what had its number.
    pub(super) fn put(&self, node: Arc<Node>) {
        let ino = node.ino;
        let mut shard = self.shard(ino);
        let old = shard.place(ino).replace(node);
        let charge = if old.is_none() { shard.came() } else { 0 };
        drop(shard);
        self.charge(charge);
    }

    /// Accounts for so many inodes more; with no lock held.
    fn charge(&self, inodes: usize) {
        if inodes > 0 {
            self.bytes.fetch_add(inodes * NODE_BYTES, Ordering::Relaxed);
            self.budget.charge(inodes * NODE_BYTES);
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Rows> {
        self.shards[(ino.0 / ROW) as usize % SHARDS].lock()
    }
}

impl Rows {
    /// An inode came: how many are to be charged for now.
    fn came(&mut self) -> usize {
        self.uncharged += 1;
        if self.uncharged < CHARGED { 0 } else { std::mem::take(&mut self.uncharged) }
    }

    fn place(&mut self, ino: Ino) -> &mut Option<Arc<Node>> {
        let row = self.rows.entry(ino.0 / ROW).or_default();
        &mut row[(ino.0 % ROW) as usize]
    }
}

fn is_idle(node: &Arc<Node>) -> bool {
    Arc::strong_count(node) == 1
        && node.opens.load(Ordering::Relaxed) == 0
        && node.orphan() == OrphanState::None
        && node.values.try_lock().is_some_and(|values| {
            // What could not be written is told to who asks next, whenever that is.
            let has_errors = values.data.as_ref().is_some_and(|data| data.pages.had_errors());
            values.listed_in == 0 && !has_errors
        })
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
            let Rows { rows, departed, uncharged } = &mut *shard;
            rows.retain(|_, row| {
                if freed >= bytes || scanned >= SCAN_MAX {
                    return true;
                }
                scanned += row.len();
                for place in row.iter_mut() {
                    if place.as_ref().is_some_and(is_idle) {
                        *place = None;
                        *departed += 1;
                        // Those that were not charged for give nothing back.
                        match uncharged.checked_sub(1) {
                            Some(fewer) => *uncharged = fewer,
                            None => freed += NODE_BYTES,
                        }
                    }
                }
                row.iter().any(Option::is_some)
            });
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
