//! The orphan list as it is on disk: one head, one lock.
//!
//! ```text
//! superblock.s_last_orphan -> inode -> (its dtime) -> inode -> 0
//! ```
//!
//! Owns: the links, in memory and on disk, and statistics of the lock. Does **not** own: when the lock is
//! taken (see [`Orphans`](super::Orphans)).
//!
//! Invariant: the list in memory equals the list on disk as the running transaction leaves it. It is doubly
//! linked, so that a removal knows the predecessor.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use extant_base::Pblk;
use extant_base::rank::{self, Mutex, MutexGuard};
use extant_buffer::{Edit, Kind, Owner, ReadFault, Seal};

use crate::live::InodeCache;
use crate::node::{LiveInode, OrphanState};

/// `s_last_orphan` within the superblock.
const LAST_ORPHAN_AT: usize = 0xE8;

/// Statistics of the list's lock, in the terms of lockstat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockStats {
    /// Number of times that the lock was taken.
    pub acquisitions: u64,
    /// Acquisitions on another CPU than the acquisition before.
    pub acquisition_bounces: u64,
    /// Number of times that the lock was not free.
    pub contentions: u64,
    /// Contentions on another CPU than the acquisition before.
    pub contention_bounces: u64,
    /// Total wait time in nanoseconds.
    pub wait_total_ns: u64,
    /// Shortest wait in nanoseconds; 0 without contentions.
    pub wait_min_ns: u64,
    /// Longest wait in nanoseconds.
    pub wait_max_ns: u64,
    /// Total hold time in nanoseconds.
    pub hold_total_ns: u64,
    /// Shortest hold in nanoseconds; 0 without acquisitions.
    pub hold_min_ns: u64,
    /// Longest hold in nanoseconds.
    pub hold_max_ns: u64,
}

/// The list and its lock.
pub(super) struct OrphanList {
    list: Mutex<List, { rank::ORPHANS }>,
    stats: Counters,
    /// The superblock's block, and the byte offset of the superblock in it.
    superblock: (Pblk, usize),
}

#[derive(Default)]
struct List {
    head: u32,
    members: HashMap<u32, Links>,
}

struct Links {
    node: Arc<LiveInode>,
    before: u32,
    after: u32,
}

#[derive(Default)]
struct Counters {
    acquisitions: AtomicU64,
    acquisition_bounces: AtomicU64,
    contentions: AtomicU64,
    contention_bounces: AtomicU64,
    /// The CPU of the last acquisition, plus 1; 0 before the first one.
    last_cpu: AtomicU32,
    wait: Times,
    hold: Times,
}

/// Statistics of durations in nanoseconds.
struct Times {
    total: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self { total: AtomicU64::new(0), min: AtomicU64::new(u64::MAX), max: AtomicU64::new(0) }
    }
}

impl Times {
    fn add(&self, since: Instant) {
        let nanos = since.elapsed().as_nanos() as u64;
        self.total.fetch_add(nanos, Ordering::Relaxed);
        // Most durations change neither of them, and a load is cheaper than a read-modify-write.
        if nanos < self.min.load(Ordering::Relaxed) {
            self.min.fetch_min(nanos, Ordering::Relaxed);
        }
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }
}

/// The calling thread's CPU, in the form of [`Counters::last_cpu`].
#[cfg(unix)]
fn this_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32 + 1
}

/// The only CPU that the system shows.
#[cfg(not(unix))]
fn this_cpu() -> u32 {
    1
}

impl OrphanList {
    pub(super) fn new(superblock: (Pblk, usize)) -> Self {
        Self { list: Mutex::default(), stats: Counters::default(), superblock }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.lock().members.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.lock().members.len()
    }

    pub(super) fn lock_stats(&self) -> LockStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let min = |times: &Times| if get(&times.min) == u64::MAX { 0 } else { get(&times.min) };
        let stats = &self.stats;
        LockStats {
            acquisitions: get(&stats.acquisitions),
            acquisition_bounces: get(&stats.acquisition_bounces),
            contentions: get(&stats.contentions),
            contention_bounces: get(&stats.contention_bounces),
            wait_total_ns: get(&stats.wait.total),
            wait_min_ns: min(&stats.wait),
            wait_max_ns: get(&stats.wait.max),
            hold_total_ns: get(&stats.hold.total),
            hold_min_ns: min(&stats.hold),
            hold_max_ns: get(&stats.hold.max),
        }
    }

    /// See [`Orphans::adopt_listed`](super::Orphans::adopt_listed).
    pub(super) fn adopt(&self, chain: &[Arc<LiveInode>]) {
        let mut list = self.list.lock();
        let ino_at = |at: Option<usize>| at.and_then(|at| chain.get(at)).map_or(0, |node| node.ino().0);
        list.head = ino_at(Some(0));
        for (at, node) in chain.iter().enumerate() {
            node.set_orphan(OrphanState::Listed);
            let (before, after) = (ino_at(at.checked_sub(1)), ino_at(Some(at + 1)));
            list.members.insert(node.ino().0, Links { node: Arc::clone(node), before, after });
        }
    }

    /// The head; 0 if the list is empty.
    pub(super) fn head(&self) -> u32 {
        self.list.lock().head
    }

    pub(super) fn lock(&self) -> Held<'_> {
        let stats = &self.stats;
        let guard = self.list.try_lock().unwrap_or_else(|| {
            stats.contentions.fetch_add(1, Ordering::Relaxed);
            if stats.last_cpu.load(Ordering::Relaxed) != this_cpu() {
                stats.contention_bounces.fetch_add(1, Ordering::Relaxed);
            }
            let begun = Instant::now();
            let guard = self.list.lock();
            stats.wait.add(begun);
            guard
        });
        // Under the lock, so that a load and a store do for an exchange.
        let (cpu, last) = (this_cpu(), stats.last_cpu.load(Ordering::Relaxed));
        stats.acquisitions.fetch_add(1, Ordering::Relaxed);
        if last != cpu {
            stats.last_cpu.store(cpu, Ordering::Relaxed);
            if last != 0 {
                stats.acquisition_bounces.fetch_add(1, Ordering::Relaxed);
            }
        }
        Held { guard, stats, superblock: self.superblock, since: Instant::now() }
    }
}

/// The locked list; measures the hold time.
pub(super) struct Held<'a> {
    guard: MutexGuard<'a, List, { rank::ORPHANS }>,
    stats: &'a Counters,
    superblock: (Pblk, usize),
    since: Instant,
}

impl Held<'_> {
    /// Inserts an inode that is on no list at the head.
    pub(super) fn join(
        &mut self,
        live: &InodeCache,
        node: &Arc<LiveInode>,
        edit: &dyn Edit,
    ) -> Result<(), ReadFault> {
        let (ino, head) = (node.ino().0, self.guard.head);
        self.set_head(ino, edit)?;
        live.edit(node, edit.transaction()).fields.dtime = head;
        node.set_orphan(OrphanState::Listed);
        if let Some(next) = self.guard.members.get_mut(&head) {
            next.before = ino;
        }
        self.guard.head = ino;
        self.guard.members.insert(ino, Links { node: Arc::clone(node), before: 0, after: head });
        Ok(())
    }

    /// Removes an inode from the list. Its own link is kept until [`end`].
    pub(super) fn leave(
        &mut self,
        live: &InodeCache,
        node: &Arc<LiveInode>,
        edit: &dyn Edit,
    ) -> Result<(), ReadFault> {
        let Some(links) = self.guard.members.remove(&node.ino().0) else { return Ok(()) };
        if links.before == 0 {
            self.set_head(links.after, edit)?;
            self.guard.head = links.after;
        } else if let Some(before) = self.guard.members.get_mut(&links.before) {
            before.after = links.after;
            // Under the lock: otherwise the predecessor could be freed meanwhile.
            live.edit(&before.node, edit.transaction()).fields.dtime = links.after;
        }
        if let Some(after) = self.guard.members.get_mut(&links.after) {
            after.before = links.before;
        }
        Ok(())
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
}

/// Clears the link of a removed inode, after the list no longer contains it.
pub(super) fn end(live: &InodeCache, node: &Arc<LiveInode>, edit: &dyn Edit) {
    live.edit(node, edit.transaction()).fields.dtime = 0;
    node.set_orphan(OrphanState::None);
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.stats.hold.add(self.since);
    }
}
