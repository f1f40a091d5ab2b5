//! The extent status of one inode's blocks.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use extant_base::{Ino, Lblk};

use crate::body::{Body, State};
use crate::chunk::Age;
use crate::entry::{Entry, Status};
use crate::events;
use crate::pending::{Lost, any, blocks_of};
use crate::policy::Policy;
use crate::shared::Shared;
use crate::tree::{Order, Tree};

/// Result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The entry that has the block.
    pub entry: Entry,
    /// The inode's sequence number at that time: see [`Inode::seq`].
    pub seq: u64,
}

/// How blocks over delayed ones were allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// For the delayed blocks: the reservation becomes the allocation.
    Delayed,
    /// For another use (fallocate, direct writes): the allocator has charged for them already.
    Other,
}

/// Reservations of space, in clusters, that the caller must subtract from its count of reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "promises that are not settled are lost space"]
pub enum EndedReservation {
    /// They became allocations: charge them to the owner's quota.
    Claim(u32),
    /// They are no longer needed: release them.
    Release(u32),
}

impl EndedReservation {
    /// Number of clusters, for either variant.
    #[must_use]
    pub fn clusters(self) -> u32 {
        match self {
            Self::Claim(clusters) | Self::Release(clusters) => clusters,
        }
    }
}

/// Result of caching an entry that was read from disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// It was inserted.
    Inserted,
    /// It was known already.
    Known,
    /// It contradicts a cached entry, which stays: the caller's read was stale, or the disk is damaged. A
    /// hole on disk under delayed blocks is no conflict; it is `Known`.
    Conflict,
}

/// The cached extent status of one inode. Threads share it; dropping it drops all entries.
///
/// "The mapping lock" below is the caller's. A change of the map on disk holds it exclusively until the cache
/// is changed as well.
pub struct Inode {
    pub(crate) body: Arc<Body>,
    pub(crate) shared: Arc<Shared>,
}

impl Inode {
    pub(crate) fn new(ino: Ino, shared: Arc<Shared>) -> Self {
        shared.inodes.fetch_add(1, Relaxed);
        shared.counters.add(0, 0, Body::bytes() as i64);
        let body = Body::new(ino, shared.options.policy.order());
        Self { body: Arc::new(body), shared }
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.body.ino
    }

    /// Changes whenever the status of a block may have changed, but not when an entry is only cached or
    /// evicted. A caller that looks up a mapping and then takes a lock compares it to check that the mapping
    /// is still valid.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.body.state.read().seq
    }

    // ---- reading ----

    /// Looks up a block; counts a hit or a miss. `None` means "not known", never "a hole".
    #[must_use]
    pub fn lookup(&self, lblk: Lblk) -> Option<Found> {
        events::lookup_enter(&self.shared, &self.body, lblk.0);
        let found = self.peek(lblk, true);
        match found {
            Some(_) => self.shared.counters.hit(),
            None => self.shared.counters.miss(),
        }
        let (entry, seq) = found.map_or((None, 0), |found| (Some(found.entry), found.seq));
        events::lookup_exit(&self.shared, &self.body, entry.as_ref(), seq);
        found
    }

    /// Looks up a block without counting; `refer` marks the entry as used.
    pub(crate) fn peek(&self, lblk: Lblk, refer: bool) -> Option<Found> {
        if self.shared.is_replaying() {
            return None;
        }
        let state = self.body.state.read();
        let place = state.tree.seek(lblk.0)?;
        let entry = state.tree.get(place).entry();
        if !entry.contains(lblk.0) {
            return None;
        }
        if refer {
            state.tree.refer(place);
        }
        Some(Found { entry, seq: state.seq })
    }

    /// The first entry that satisfies `want` and has a block in `from..to`.
    #[must_use]
    pub fn find(&self, from: Lblk, to: Lblk, want: impl Fn(&Entry) -> bool) -> Option<Entry> {
        events::find_enter(&self.shared, &self.body, from.0);
        let state = self.body.state.read();
        let found = match self.shared.is_replaying() {
            true => None,
            false => state.tree.iter_from(from.0).take_while(|entry| entry.lblk < to).find(want),
        };
        events::find_exit(&self.shared, &self.body, found.as_ref());
        found
    }

    /// Whether an entry that satisfies `want` has a block in `from..to`.
    #[must_use]
    pub fn any(&self, from: Lblk, to: Lblk, want: impl Fn(&Entry) -> bool) -> bool {
        !self.shared.is_replaying() && any(&self.body.state.read().tree, from.0, to.0, want)
    }

    /// Whether an entry that satisfies `want` has a block in the cluster of `lblk`.
    #[must_use]
    pub fn any_in_cluster(&self, lblk: Lblk, want: impl Fn(&Entry) -> bool) -> bool {
        let bits = self.shared.options.cluster_bits;
        let (from, to) = blocks_of(lblk.0 >> bits, bits);
        self.any(Lblk(from), Lblk(to), want)
    }

    /// All entries in order: for dumps and for listings of the cache.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.body.state.read().tree.iter_from(0).collect()
    }

    /// Number of clusters reserved for delayed blocks. Examines every entry.
    #[must_use]
    pub fn promises(&self) -> u32 {
        self.body.state.read().promises(self.shared.options.cluster_bits)
    }

    /// Clusters that have delayed blocks and a block on disk.
    #[must_use]
    pub fn pending(&self) -> Vec<u32> {
        self.body.state.read().pending.iter().flat_map(|pending| pending.iter().copied()).collect()
    }

    // ---- writing ----

    fn change<T>(&self, how: impl FnOnce(&mut State) -> T) -> T {
        self.shared.touch(&self.body);
        let done = {
            let mut state = self.body.state.write();
            let done = how(&mut state);
            self.shared.sync(&self.body, &mut state);
            done
        };
        self.shared.relieve(&self.body);
        done
    }

    /// Records a change of the map on disk: `entry` replaces what was cached. Not for delayed blocks. The
    /// caller holds the mapping lock exclusively, and settles the reservations afterwards.
    ///
    /// # Panics
    /// If the entry is empty, exceeds the last block, or is delayed.
    pub fn insert(&self, entry: Entry, allocation: Allocation) -> EndedReservation {
        assert!(entry.is_sound() && entry.status != Status::Delayed, "{entry:?} cannot be inserted");
        if self.shared.is_replaying() {
            return EndedReservation::Release(0);
        }
        let (bits, merge) = (self.shared.options.cluster_bits, !self.shared.options.no_merge);
        let (from, to) = (entry.lblk.0, entry.end());
        self.change(|state| {
            state.seq += 1;
            events::insert(&self.shared, &self.body, &entry, state.seq);
            let mut lost = Lost::default();
            state.tree.remove(from, to, &mut |from, to| lost.add(from, to, bits));
            state.tree.insert(&entry, merge);
            match (entry.status.is_mapped(), allocation) {
                (true, Allocation::Delayed) => {
                    EndedReservation::Claim(state.promises_used(from, to, &lost, bits))
                }
                (true, Allocation::Other) => {
                    EndedReservation::Release(state.promises_used(from, to, &lost, bits))
                }
                (false, _) => EndedReservation::Release(state.promises_lost(from, to, &lost, bits)),
            }
        })
    }

    /// Caches an entry that was read from the map on disk, which did not change. The caller excludes changes
    /// of the map meanwhile.
    ///
    /// # Panics
    /// Like [`insert`](Self::insert).
    pub fn cache(&self, entry: Entry) -> Cached {
        assert!(entry.is_sound() && entry.status != Status::Delayed, "{entry:?} cannot be cached");
        if self.shared.is_replaying() {
            return Cached::Known;
        }
        self.change(|state| self.cache_in(state, &entry))
    }

    pub(crate) fn cache_in(&self, state: &mut State, entry: &Entry) -> Cached {
        let (from, to) = (entry.lblk.0, entry.end());
        let (mut conflict, mut promised, mut whole, mut referenced) = (false, false, false, false);
        let mut place = state.tree.seek(from);
        while let Some(at) = place {
            let known = state.tree.get(at).entry();
            if known.lblk.0 >= to {
                break;
            }
            whole |= known.lblk.0 <= from && to <= known.end();
            if !known.agrees_with(entry) {
                let legal = known.status == Status::Delayed && entry.status == Status::Hole;
                promised |= legal;
                conflict |= !legal;
            }
            referenced |= state.tree.chunks[at.slot].referenced() >> at.at & 1 == 1;
            place = state.tree.next(at);
        }
        let done = match (conflict, whole || promised) {
            (true, _) => Cached::Conflict,
            (_, true) => Cached::Known,
            _ => Cached::Inserted,
        };
        if done == Cached::Inserted {
            // The range has no delayed blocks.
            state.tree.remove(from, to, &mut |_, _| {});
            state.tree.insert(entry, !self.shared.options.no_merge);
            if referenced && let Some(at) = state.tree.seek(from) {
                state.tree.refer(at);
            }
        }
        events::cache(&self.shared, &self.body, entry, state.seq, done == Cached::Inserted);
        done
    }

    /// Caches a leaf of the map on disk: its extents, in order, and the holes between them.
    pub fn cache_leaf(&self, extents: &[Entry]) {
        if self.shared.is_replaying() {
            return;
        }
        self.change(|state| {
            let mut end = None;
            for extent in extents.iter().filter(|extent| extent.is_sound()) {
                if let Some(end) = end
                    && end < extent.lblk.0
                {
                    self.cache_in(state, &Entry::hole(end, extent.lblk.0 - end));
                }
                self.cache_in(state, extent);
                end = Some(extent.end());
            }
        });
    }

    /// Records blocks to be allocated at writeback. The caller holds the mapping lock exclusively. It has
    /// reserved space for their clusters, except for the first and the last one if these have a block on disk
    /// already (`allocated`).
    ///
    /// # Panics
    /// If the range is empty or exceeds the last block.
    pub fn insert_delayed(&self, lblk: Lblk, len: u32, allocated: (bool, bool)) {
        let entry = Entry { status: Status::Delayed, ..Entry::hole(lblk.0, len) };
        assert!(entry.is_sound(), "{entry:?} cannot be inserted");
        if self.shared.is_replaying() {
            return;
        }
        self.change(|state| self.delay_in(state, &entry, allocated));
    }

    pub(crate) fn delay_in(&self, state: &mut State, entry: &Entry, allocated: (bool, bool)) {
        state.seq += 1;
        events::insert_delayed(&self.shared, &self.body, entry, state.seq, allocated);
        let bits = self.shared.options.cluster_bits;
        let (from, to) = (entry.lblk.0, entry.end());
        state.tree.remove(from, to, &mut |_, _| {});
        state.tree.insert(entry, !self.shared.options.no_merge);
        if bits > 0 {
            for cluster in [allocated.0.then_some(from >> bits), allocated.1.then_some((to - 1) >> bits)] {
                cluster.into_iter().for_each(|cluster| state.add_pending(cluster));
            }
        }
    }

    /// Removes all entries for blocks that were cut, punched or moved. Returns the reservations that are no
    /// longer needed. The caller holds the mapping lock exclusively.
    pub fn remove(&self, lblk: Lblk, len: u32) -> EndedReservation {
        if self.shared.is_replaying() || len == 0 {
            return EndedReservation::Release(0);
        }
        let bits = self.shared.options.cluster_bits;
        let (from, to) = (lblk.0, lblk.0.saturating_add(len));
        self.change(|state| {
            state.seq += 1;
            events::remove(&self.shared, &self.body, from, len, state.seq);
            let mut lost = Lost::default();
            state.tree.remove(from, to, &mut |from, to| lost.add(from, to, bits));
            EndedReservation::Release(state.promises_lost(from, to, &lost, bits))
        })
    }

    /// Call it when the last block on disk of a cluster was freed. Returns whether delayed blocks are left in
    /// the cluster; then the caller must reserve the cluster again.
    #[must_use]
    pub fn promise_again(&self, cluster: u32) -> bool {
        let mut state = self.body.state.write();
        let was = state.pending.as_mut().is_some_and(|pending| pending.remove(&cluster));
        state.forget_empty();
        was
    }

    // ---- as a whole ----

    /// Evicts all reclaimable entries, and resets the precached flag. Returns the number of entries.
    pub fn clear(&self) -> u32 {
        self.body.precached.store(false, Relaxed);
        self.change(|state| state.tree.clear_reclaimable())
    }

    /// Caches the whole map: `extents` in order, of all leaves. Reclaim takes this inode last, until
    /// [`clear`](Self::clear).
    pub fn precache(&self, extents: impl IntoIterator<Item = Entry>) {
        let mut piece: Vec<Entry> = Vec::with_capacity(256);
        for extent in extents {
            piece.push(extent);
            if piece.len() == 256 {
                self.cache_leaf(&piece);
                // The next piece begins with the last extent, so that the gap after it is cached, too.
                piece.drain(..255);
            }
        }
        self.cache_leaf(&piece);
        self.body.precached.store(true, Relaxed);
    }

    /// Whether the whole map was cached, and not cleared since.
    #[must_use]
    pub fn is_precached(&self) -> bool {
        self.body.precached.load(Relaxed)
    }

    /// A text dump for tests and debugging: a header, then a line for each entry, with `*` if it was found
    /// since the last visit of reclaim.
    #[must_use]
    pub fn dump(&self) -> String {
        let state = self.body.state.read();
        let mut text = format!(
            "inode {}: {} entries, {} reclaimable, seq {}\n",
            self.body.ino,
            state.tree.entries(),
            state.tree.reclaimable(),
            state.seq
        );
        let mut place = state.tree.seek(0);
        while let Some(at) = place {
            let item = state.tree.chunks[at.slot].item(at.at);
            let _ = writeln!(text, "  {:?}{}", item.packed.entry(), if item.referenced { " *" } else { "" });
            place = state.tree.next(at);
        }
        text
    }

    /// Checks all invariants: for tests.
    ///
    /// # Panics
    /// If one is violated.
    pub fn check(&self) {
        let state = self.body.state.read();
        state.tree.check(!self.shared.options.no_merge);
        assert_eq!(self.body.entries.load(Relaxed), state.tree.entries(), "entries as mirrored");
        assert_eq!(self.body.reclaimable.load(Relaxed), state.tree.reclaimable(), "reclaimable as mirrored");
        if !self.shared.options.policy.lists_inodes_at_first_use() {
            let listed = self.shared.ring.lock().list_of(&self.body);
            let should = match (self.shared.options.policy, state.tree.reclaimable()) {
                (Policy::EsChunk, _) => match state.tree.age() {
                    Age::None => None,
                    Age::Cold => Some(0),
                    Age::Warm => Some(1),
                },
                (_, 0) => None,
                _ => Some(0),
            };
            assert_eq!(listed, should, "the list that inode {} is on", self.body.ino);
        }
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let mut state = self.body.state.write();
        let old = std::mem::replace(&mut state.tree, Tree::new(Order::Plain));
        self.shared.sync(&self.body, &mut state);
        drop(state);
        drop(old);
        {
            let mut ring = self.shared.ring.lock();
            ring.take_off(&self.body);
            ring.forget_empty();
            self.shared.note_ring(&ring);
        }
        self.shared.inodes.fetch_sub(1, Relaxed);
        self.shared.counters.add(0, 0, -(Body::bytes() as i64));
        // Possibly under a lock: releases memory only. The next change charges the rest.
        self.shared.give_back();
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.dump())
    }
}
