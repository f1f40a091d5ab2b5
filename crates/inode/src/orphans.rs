//! Inodes that must be deleted, or cut at their size, if a crash comes before that is done.
//!
//! ```text
//! list   superblock.s_last_orphan -> inode -> (its dtime) -> inode -> 0      one lock: the disk list is one
//! file   block: | ino | 0 | 0 | ino | ...   a free slot is claimed without a lock
//! ```
//!
//! Modes: `ListV0` and `ListV3` differ in what they do under the lock: version 0 asks "is it tracked?" there, which half of the
//! calls end with. `File` takes slots by compare-and-exchange, and falls back to the list when it is full. `None` tracks nothing: for
//! measuring what tracking costs; a crash then leaks.
//!
//! Invariants
//! 1. Added and removed only by who holds the inode's operation lock exclusively, or made it: "is it tracked?" needs no lock.
//! 2. An inode is never in both.
//! 3. Locks: the list's, then inodes' values. Callers hold no inode's values.
//!
//! Source: spec 03; kernel Documentation/filesystems/ext4/orphan.rst.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::sync::atomic::{AtomicI32, AtomicU32};
use base::{Ino, Pblk};
use buffer::{Edit, Kind, Owner, ReadFault, Seal};
use parking_lot::{Mutex, MutexGuard};

use crate::live::{Live, Node, OrphanState};

/// `s_last_orphan` within the superblock.
const LAST_ORPHAN_AT: usize = 0xE8;
/// Looks over a block before a claim on one of its free slots is given up.
const PASSES_MAX: u32 = 3;

/// How orphans are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OrphanMode {
    /// The list, as before 2014: every question under its lock.
    ListV0,
    /// The list, with what can be done outside of its lock done there.
    ListV3,
    /// The orphan file where the file system has one, else as `ListV3`.
    #[default]
    File,
    /// Not at all: for measuring.
    None,
}

/// What the list's lock saw, in the terms of lockstat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockStats {
    /// Times that it was taken.
    pub acquisitions: u64,
    /// Times that it was not free.
    pub contentions: u64,
    /// Nanoseconds waited for it, in all.
    pub wait_total_ns: u64,
    /// The longest wait.
    pub wait_max_ns: u64,
    /// Nanoseconds held, in all.
    pub hold_total_ns: u64,
    /// Held longest.
    pub hold_max_ns: u64,
}

/// The orphans of a volume.
pub struct Orphans {
    mode: OrphanMode,
    list: Mutex<List>,
    stats: Counters,
    file: Option<OrphanFile>,
    /// The superblock's block, and where in it the superblock begins.
    superblock: (Pblk, usize),
    salt: RandomState,
}

/// The list as it is on disk, doubly linked so that who leaves knows who is before.
#[derive(Default)]
struct List {
    head: u32,
    members: HashMap<u32, Links>,
}

struct Links {
    node: Arc<Node>,
    before: u32,
    after: u32,
}

#[derive(Default)]
struct Counters {
    acquisitions: AtomicU64,
    contentions: AtomicU64,
    wait_total: AtomicU64,
    wait_max: AtomicU64,
    hold_total: AtomicU64,
    hold_max: AtomicU64,
}

/// The orphan file's blocks, pinned in memory.
pub struct OrphanFile {
    blocks: Vec<Slots>,
    seal: Seal,
}

struct Slots {
    place: Pblk,
    free: AtomicI32,
    /// Where the next search begins.
    hint: AtomicU32,
    slots: Box<[AtomicU32]>,
}

impl OrphanFile {
    /// From the file's blocks: their places, and what their slots hold.
    #[must_use]
    pub fn new(ino: Ino, seed: Option<u32>, blocks: Vec<(Pblk, Vec<u32>)>) -> Self {
        let blocks = blocks.into_iter().map(|(place, slots)| Slots {
            place,
            free: AtomicI32::new(slots.iter().filter(|slot| **slot == 0).count() as i32),
            hint: AtomicU32::new(0),
            slots: slots.into_iter().map(AtomicU32::new).collect(),
        });
        Self {
            blocks: blocks.collect(),
            seal: Seal { owner: Owner { kind: Kind::Orphans, ino: ino.0 }, seed },
        }
    }

    fn slots_per_block(&self) -> u32 {
        self.blocks.first().map_or(1, |block| block.slots.len() as u32)
    }

    /// Claims a free slot. `None`: full, or too many want one.
    fn claim(&self, ino: Ino, start: usize) -> Option<u32> {
        let n = self.blocks.len();
        for at in (0..n).map(|k| (start + k) % n) {
            let block = &self.blocks[at];
            let take = |free: i32| (free > 0).then(|| free - 1);
            if block.free.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_err() {
                continue;
            }
            let len = block.slots.len() as u32;
            let first = block.hint.load(Ordering::Relaxed);
            for k in 0..len * PASSES_MAX {
                let j = (first + k) % len;
                let slot = &block.slots[j as usize];
                if slot.load(Ordering::Relaxed) == 0
                    && slot.compare_exchange(0, ino.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    block.hint.store((j + 1) % len, Ordering::Relaxed);
                    return Some(at as u32 * len + j);
                }
            }
            block.free.fetch_add(1, Ordering::AcqRel);
            return None;
        }
        None
    }

    fn set(&self, slot: u32, value: u32, edit: &dyn Edit) -> Result<(), ReadFault> {
        let per_block = self.slots_per_block();
        let Some(block) = self.blocks.get((slot / per_block) as usize) else { return Ok(()) };
        let at = (slot % per_block) as usize * 4;
        edit.change(block.place, self.seal, &mut |bytes| {
            if let Some(stored) = bytes.get_mut(at..at + 4) {
                stored.copy_from_slice(&value.to_le_bytes());
            }
        })
    }

    fn give_back(&self, slot: u32) {
        let per_block = self.slots_per_block();
        if let Some(block) = self.blocks.get((slot / per_block) as usize) {
            block.slots[(slot % per_block) as usize].store(0, Ordering::Release);
            block.hint.store(slot % per_block, Ordering::Relaxed);
            block.free.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// All slots in use: their numbers and inodes.
    #[must_use]
    pub fn used(&self) -> Vec<(u32, Ino)> {
        let per_block = self.slots_per_block();
        let blocks = self.blocks.iter().zip(0u32..);
        let all = blocks.flat_map(|(block, at)| {
            block
                .slots
                .iter()
                .zip(0u32..)
                .map(move |(slot, j)| (at * per_block + j, slot.load(Ordering::Acquire)))
        });
        all.filter(|(_, ino)| *ino != 0).map(|(slot, ino)| (slot, Ino(ino))).collect()
    }
}

impl Orphans {
    /// Nobody is tracked yet but who is in `file`. `superblock`: its block, and where in that it begins.
    #[must_use]
    pub fn new(mode: OrphanMode, file: Option<OrphanFile>, superblock: (Pblk, usize)) -> Self {
        let salt = RandomState::new();
        Self { mode, list: Mutex::default(), stats: Counters::default(), file, superblock, salt }
    }

    /// How orphans are tracked.
    #[must_use]
    pub fn mode(&self) -> OrphanMode {
        self.mode
    }

    /// The orphan file, where there is one.
    #[must_use]
    pub fn file(&self) -> Option<&OrphanFile> {
        self.file.as_ref()
    }

    /// Blocks that [`add`](Self::add) or [`remove`](Self::remove) change, without inodes.
    pub const CREDITS: u32 = 2;

    /// Is nobody tracked?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.lock().members.is_empty() && self.file.as_ref().is_none_or(|file| file.used().is_empty())
    }

    /// What the list's lock saw.
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LockStats {
            acquisitions: get(&self.stats.acquisitions),
            contentions: get(&self.stats.contentions),
            wait_total_ns: get(&self.stats.wait_total),
            wait_max_ns: get(&self.stats.wait_max),
            hold_total_ns: get(&self.stats.hold_total),
            hold_max_ns: get(&self.stats.hold_max),
        }
    }

    /// Tracks an inode, if it is not yet.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn add(&self, live: &Live, node: &Arc<Node>, edit: &dyn Edit) -> Result<(), ReadFault> {
        if self.mode == OrphanMode::None {
            return Ok(());
        }
        let is_tracked = || node.values().orphan != OrphanState::None;
        if self.mode != OrphanMode::ListV0 && is_tracked() {
            return Ok(());
        }
        if self.mode == OrphanMode::File
            && let Some(file) = &self.file
            && let Some(slot) = file.claim(node.ino(), self.spread(file.blocks.len()))
        {
            if let Err(fault) = file.set(slot, node.ino().0, edit) {
                file.give_back(slot);
                return Err(fault);
            }
            live.edit(node, edit.transaction()).orphan = OrphanState::Slot(slot);
            return Ok(());
        }
        let mut list = self.lock();
        if self.mode == OrphanMode::ListV0 && is_tracked() {
            return Ok(());
        }
        let (ino, head) = (node.ino().0, list.guard.head);
        self.set_head(ino, edit)?;
        {
            let mut values = live.edit(node, edit.transaction());
            values.fields.dtime = head;
            values.orphan = OrphanState::Listed;
        }
        if let Some(next) = list.guard.members.get_mut(&head) {
            next.before = ino;
        }
        list.guard.head = ino;
        list.guard.members.insert(ino, Links { node: Arc::clone(node), before: 0, after: head });
        Ok(())
    }

    /// Tracks an inode no more, if it is.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn remove(&self, live: &Live, node: &Arc<Node>, edit: &dyn Edit) -> Result<(), ReadFault> {
        if self.mode == OrphanMode::ListV0 {
            // Version 0 finds out under the lock that most have nothing to do.
            drop(self.lock());
        }
        let state = node.values().orphan;
        match (state, &self.file) {
            (OrphanState::None, _) | (OrphanState::Slot(_), None) => Ok(()),
            (OrphanState::Slot(slot), Some(file)) => {
                file.set(slot, 0, edit)?;
                live.edit(node, edit.transaction()).orphan = OrphanState::None;
                file.give_back(slot);
                Ok(())
            }
            (OrphanState::Listed, _) => self.leave_list(live, node, edit),
        }
    }

    fn leave_list(&self, live: &Live, node: &Arc<Node>, edit: &dyn Edit) -> Result<(), ReadFault> {
        let ino = node.ino().0;
        let mut list = self.lock();
        let Some(links) = list.guard.members.remove(&ino) else { return Ok(()) };
        if links.before == 0 {
            self.set_head(links.after, edit)?;
            list.guard.head = links.after;
        } else if let Some(before) = list.guard.members.get_mut(&links.before) {
            before.after = links.after;
            // Under the lock: the one before could be freed else.
            live.edit(&before.node, edit.transaction()).fields.dtime = links.after;
        }
        if let Some(after) = list.guard.members.get_mut(&links.after) {
            after.before = links.before;
        }
        drop(list);
        let mut values = live.edit(node, edit.transaction());
        values.fields.dtime = 0;
        values.orphan = OrphanState::None;
        Ok(())
    }

    /// Takes a member of the list that was found on disk into memory, behind those found before it; `before` is 0 for the first.
    pub fn adopt_listed(&self, node: &Arc<Node>, before: Ino) {
        let mut list = self.list.lock();
        let after = node.values().fields.dtime;
        node.values().orphan = OrphanState::Listed;
        if before.0 == 0 {
            list.head = node.ino().0;
        }
        list.members.insert(node.ino().0, Links { node: Arc::clone(node), before: before.0, after });
    }

    fn set_head(&self, ino: u32, edit: &dyn Edit) -> Result<(), ReadFault> {
        let (block, at) = self.superblock;
        let seal = Seal { owner: Owner { kind: Kind::Superblock, ino: 0 }, seed: Some(0) };
        edit.change(block, seal, &mut |bytes| {
            if let Some(head) = bytes.get_mut(at + LAST_ORPHAN_AT..at + LAST_ORPHAN_AT + 4) {
                head.copy_from_slice(&ino.to_le_bytes());
            }
        })
    }

    fn spread(&self, blocks: usize) -> usize {
        thread_local!(static NUMBER: std::thread::ThreadId = std::thread::current().id());
        let hash = NUMBER.with(|number| self.salt.hash_one(number));
        (hash % blocks.max(1) as u64) as usize
    }

    fn lock(&self) -> Held<'_> {
        let stats = &self.stats;
        stats.acquisitions.fetch_add(1, Ordering::Relaxed);
        let guard = self.list.try_lock().unwrap_or_else(|| {
            stats.contentions.fetch_add(1, Ordering::Relaxed);
            let begun = Instant::now();
            let guard = self.list.lock();
            let waited = begun.elapsed().as_nanos() as u64;
            stats.wait_total.fetch_add(waited, Ordering::Relaxed);
            stats.wait_max.fetch_max(waited, Ordering::Relaxed);
            guard
        });
        Held { guard, stats, since: Instant::now() }
    }
}

/// The list, locked; measures how long.
struct Held<'a> {
    guard: MutexGuard<'a, List>,
    stats: &'a Counters,
    since: Instant,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let held = self.since.elapsed().as_nanos() as u64;
        self.stats.hold_total.fetch_add(held, Ordering::Relaxed);
        self.stats.hold_max.fetch_max(held, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
