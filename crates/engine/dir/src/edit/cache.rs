//! In-memory data for changes of a directory: decoded index blocks, and the names of leaves.
//!
//! ```text
//! nodes:    block -> keys and children [0 5, 0x4000 1, 0x9002 7, ..]     a lookup reads no index block
//! slots:    block -> touched?, notes, a hole, location                   64 bytes per block of the directory
//! notes:    hashes and offsets of the names, used bytes, a hole          to find duplicates: see `notes`
//! filters:  Bloom filters of the names                                   the same, without room for notes
//! ```
//!
//! A leaf gets notes when it is touched a second time (which hashes all of its names), or when a split
//! creates it (the hashes are known then). Without memory for notes it gets a filter instead, which takes a
//! fifth of the memory. All data can be rebuilt from the blocks. Notes and filters are not created beyond
//! their limits. If the total exceeds its limit, all notes are dropped, and then the nodes.

use std::fmt;

use extant_base::Lblk;
use extant_ondisk::dirent::edit::Hole;
use extant_ondisk::hash::NameHash;
use extant_ondisk::htree::DxEntry;

use super::filters::{Filters, Key};
use super::hints::{Expected, Hints};
use super::leaf::LeafEntry;
use super::nodes::{CachedNode, Nodes};
use super::notes::Notes;
use super::{LeafPrefetch, Location};
use crate::order::Hasher;

/// Inserts per window, in which distinct leaves are counted.
const WINDOW: u64 = 10_000;
/// A block this far beyond twice the slots in use gets no slot: a damaged index may name any number.
const FAR: usize = 1 << 20;

/// Default memory limit in bytes.
const LIMIT_BYTES: usize = 64 << 20;

/// A directory's memory for changes: see [`super::Editor::new`].
pub struct DirCache {
    limit_bytes: usize,
    /// Whether leaves get new notes and filters: see [`set_may_grow`](Self::set_may_grow).
    may_grow: bool,
    /// Memory of the notes in bytes.
    notes_bytes: usize,
    nodes: Nodes,
    /// Levels of nodes below the root; valid if the root is loaded.
    pub(super) levels: u8,
    hasher: Hasher,
    slots: Vec<Slot>,
    /// The slot of a block far beyond all others, which only damage leads to. Nothing is kept for it.
    spare: Slot,
    notes: Vec<Notes>,
    free_notes: Vec<u32>,
    filters: Filters,
    filter_bytes_max: usize,
    /// The most blocks of a directory whose leaves get notes.
    noted_blocks_max: usize,
    /// Buffers for splits, kept to save allocations.
    pub(super) map: Vec<LeafEntry>,
    pub(super) source: Vec<u8>,
    /// Prefetched names.
    pub(super) hints: Hints,
    pub(super) stats: Stats,
}

/// The data of a block of the directory, in one CPU cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Slot {
    /// Kept for the [`DirEdit`](super::DirEdit) implementation.
    at: Location,
    /// 0: never touched; 1: touched; else the index of its notes + 2.
    notes: u32,
    /// The window of the last insert into the leaf, counted from 1.
    window: u32,
    room: FreeSpace,
    /// Its filter contains all its names.
    has_filter: bool,
    /// The filter also contains removed names.
    has_gone: bool,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// What a leaf gets after it was searched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LeafSummary {
    Nothing,
    Notes,
    Filter,
}

/// The room in a leaf, in words of 4 bytes. Notes, if any, are more precise.
#[derive(Clone, Copy, Default)]
struct FreeSpace {
    hole_at: u16,
    hole_own: u16,
    hole_len: u16,
    /// Words of used entries; 0 if unknown.
    live: u16,
}

impl Default for DirCache {
    fn default() -> Self {
        Self::new(LIMIT_BYTES)
    }
}

impl DirCache {
    /// An empty cache, limited to about `limit_bytes` and 64 bytes for each block of the directory.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            may_grow: true,
            notes_bytes: 0,
            nodes: Nodes::default(),
            levels: 0,
            hasher: Hasher::none(),
            slots: Vec::new(),
            spare: Slot::default(),
            notes: Vec::new(),
            free_notes: Vec::new(),
            filters: Filters::new(0),
            filter_bytes_max: 0,
            noted_blocks_max: usize::MAX,
            map: Vec::new(),
            source: Vec::new(),
            hints: Hints::default(),
            stats: Stats::default(),
        }
    }

    /// Adds `bytes` bytes of memory for filters.
    #[must_use]
    pub fn with_filters(mut self, bytes: usize) -> Self {
        self.filter_bytes_max = bytes;
        self.filters = Filters::new(bytes);
        self
    }

    /// Limits notes to directories of at most so many blocks. Notes take twice the memory of filters, and are
    /// of little use while a leaf itself is not in memory.
    #[must_use]
    pub fn with_notes_up_to(mut self, blocks: usize) -> Self {
        self.noted_blocks_max = blocks;
        self
    }

    /// Whether leaves without notes or filters may get them. When memory is short, it is better to keep the
    /// data of some leaves of each directory than to replace it constantly.
    pub fn set_may_grow(&mut self, may_grow: bool) {
        self.may_grow = may_grow;
        self.filters.set_bytes_max(if may_grow { self.filter_bytes_max } else { 0 });
    }

    /// The last value of [`set_may_grow`](Self::set_may_grow).
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.may_grow
    }

    /// Drops all data except statistics. Always correct; required after blocks were changed by other means.
    pub fn clear(&mut self) {
        let empty = Self::new(self.limit_bytes).with_filters(self.filter_bytes_max);
        let empty = empty.with_notes_up_to(self.noted_blocks_max);
        let may_grow = self.may_grow;
        *self = Self { stats: self.stats, ..empty };
        self.set_may_grow(may_grow);
    }

    /// Statistics since the cache was created.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Memory in use, in bytes (approximate).
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<Slot>();
        let others = self.source.capacity() + self.hints.held_bytes;
        self.limited_bytes() + self.filters.held_bytes() + slots + others
    }

    /// Memory that counts against the limit, in bytes.
    fn limited_bytes(&self) -> usize {
        self.notes_bytes + self.nodes.held_bytes()
    }

    fn has_room_for_notes(&self) -> bool {
        self.may_grow && self.has_few_blocks() && self.limited_bytes() < self.limit_bytes / 2
    }

    fn has_few_blocks(&self) -> bool {
        self.slots.len() <= self.noted_blocks_max
    }

    #[inline]
    pub(super) fn node(&self, lblk: Lblk) -> Option<CachedNode<'_>> {
        self.nodes.get(lblk)
    }

    /// The hasher of this directory; loaded with the root.
    pub(super) fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    pub(super) fn set_hasher(&mut self, hasher: Hasher) {
        self.hints.clear();
        self.hasher = hasher;
    }

    /// The data of a prefetched name.
    pub(super) fn hints(&mut self, name: &[u8]) -> Option<Expected> {
        self.hints.find(name)
    }

    /// The nodes, for a change.
    pub(super) fn nodes_mut(&mut self) -> &mut Nodes {
        self.hints.forget_paths();
        &mut self.nodes
    }

    /// The nodes, for a split of this leaf: the [`LeafSpan`](super::span::LeafSpan)s to other leaves stay
    /// valid.
    pub(super) fn nodes_for_split(&mut self, leaf: Lblk) -> &mut Nodes {
        self.hints.forget_path_to(leaf);
        &mut self.nodes
    }

    /// Sets the root of the index, with `room` entries per index block at most.
    pub(super) fn set_root(&mut self, entries: impl ExactSizeIterator<Item = DxEntry>, room: usize) {
        self.nodes_mut().begin(entries, room);
    }

    /// Evicts the excess over the limit; called between operations.
    pub(super) fn trim(&mut self) {
        let has_useless = !self.notes.is_empty() && !self.has_few_blocks();
        if self.limited_bytes() > self.limit_bytes || has_useless {
            self.drop_some();
        }
    }

    /// Evicts all notes, or all nodes below the root if there are no notes. Notes stop growing at half of the
    /// limit, so the excess is due to nodes. But every leaf is found through nodes, and notes are optional,
    /// so the notes go first. Filters have their own limit.
    #[cold]
    fn drop_some(&mut self) {
        if self.notes.is_empty() {
            return self.nodes_mut().clear();
        }
        for slot in &mut self.slots {
            slot.notes = slot.notes.min(1);
        }
        self.notes_bytes = 0;
        (self.notes, self.free_notes) = (Vec::new(), Vec::new());
    }

    /// Counts an insert into a leaf.
    pub(super) fn touch(&mut self, lblk: Lblk) {
        let window = (self.stats.inserts / WINDOW + 1) as u32;
        let slot = self.slot(lblk);
        if std::mem::replace(&mut slot.window, window) == window {
            return;
        }
        if self.stats.window != window {
            self.stats.window = window;
            self.stats.leaves_in_last_window = std::mem::take(&mut self.stats.leaves_in_window);
        }
        self.stats.leaves_in_window += 1;
    }

    fn slot(&mut self, lblk: Lblk) -> &mut Slot {
        let at = lblk.0 as usize;
        if at >= self.slots.len() {
            if at > 2 * self.slots.len() + FAR {
                self.spare = Slot::default();
                return &mut self.spare;
            }
            let more = at + 1 - self.slots.len();
            extant_buffer::make_room(&mut self.slots, more);
            self.slots.resize(at + 1, Slot::default());
        }
        &mut self.slots[at]
    }

    /// The location of a leaf or a linear block.
    pub(super) fn at(&mut self, lblk: Lblk) -> &mut Location {
        &mut self.slot(lblk).at
    }

    /// Drops the location of a block that was freed or is new.
    pub(super) fn forget_at(&mut self, lblk: Lblk) {
        self.slots.get_mut(lblk.0 as usize).into_iter().for_each(|slot| slot.at = Location::default());
    }

    /// The notes of a leaf, if any.
    pub(super) fn notes(&mut self, lblk: Lblk) -> Option<&mut Notes> {
        let place = self.slots.get(lblk.0 as usize)?.notes.checked_sub(2)?;
        self.notes.get_mut(place as usize)
    }

    /// Prefetches a leaf's slot.
    pub(super) fn prefetch(&self, lblk: Lblk) {
        self.slots.get(lblk.0 as usize).into_iter().for_each(extant_buffer::prefetch_start);
    }

    /// Prefetches the line of a leaf's filter, if any, for a name with these hashes.
    pub(super) fn prefetch_filter(&self, lblk: Lblk, hash: NameHash) {
        self.filters.prefetch(lblk, Key::of(hash));
    }

    /// Follows [`prefetch`](Self::prefetch) after a moment: prefetches the leaf's notes. Returns the leaf's
    /// location and what else to prefetch for an insert, if known.
    pub(super) fn prefetch_notes(&self, lblk: Lblk) -> Option<(&Location, LeafPrefetch)> {
        let slot = self.slots.get(lblk.0 as usize)?;
        let notes = slot.notes.checked_sub(2).and_then(|place| self.notes.get(place as usize));
        notes.into_iter().for_each(extant_buffer::prefetch_start);
        let is_known = slot.room.live != 0 && (notes.is_some() || slot.has_filter);
        let what = match notes {
            Some(_) => LeafPrefetch::Bytes(usize::from(slot.room.hole_at) * 4),
            None => LeafPrefetch::Slot,
        };
        (is_known && slot.at.block.0 != 0).then_some((&slot.at, what))
    }

    /// The last step after [`ask_for_notes`](Self::ask_for_notes): prefetches the bucket of this hash in the
    /// notes.
    pub(super) fn prefetch_bucket(&self, lblk: Lblk, hash: u32) {
        let slot = self.slots.get(lblk.0 as usize);
        let notes = slot.and_then(|slot| self.notes.get(slot.notes.checked_sub(2)? as usize));
        notes.into_iter().for_each(|notes| notes.prefetch(hash));
    }

    /// What a leaf without notes should get. Records that the leaf was touched.
    pub(super) fn deserved(&mut self, lblk: Lblk) -> LeafSummary {
        let has_room = self.has_room_for_notes();
        let slot = self.slot(lblk);
        match () {
            // If notes for all leaves fit into memory, this leaf will soon be looked up again. If they do
            // not, it may have left memory by then.
            () if slot.notes == 0 && has_room => {
                slot.notes = 1;
                LeafSummary::Nothing
            }
            () if has_room => LeafSummary::Notes,
            () if slot.has_filter || !self.filters.has_room(lblk) => LeafSummary::Nothing,
            () => LeafSummary::Filter,
        }
    }

    /// Whether a leaf without notes may hold a name with these hashes, without reading the leaf.
    pub(super) fn may_hold(&self, lblk: Lblk, hash: NameHash) -> bool {
        let has_filter = self.slots.get(lblk.0 as usize).is_some_and(|slot| slot.has_filter);
        !has_filter || self.filters.may_hold(lblk, Key::of(hash))
    }

    /// Builds the filter of a leaf of `leaf_bytes` bytes if there is room and the keys of all its names are
    /// known.
    pub(super) fn make_filter(
        &mut self,
        lblk: Lblk,
        leaf_bytes: usize,
        names: impl Iterator<Item = LeafEntry> + Clone,
    ) {
        self.slot(lblk);
        // Of a block without a slot nothing is kept: see `FAR`.
        let are_known =
            (lblk.0 as usize) < self.slots.len() && names.clone().all(|name| name.key().is_some());
        let has_filter = are_known && self.filters.fill(lblk, leaf_bytes, names.filter_map(LeafEntry::key));
        let slot = self.slot(lblk);
        (slot.has_filter, slot.has_gone) = (has_filter, false);
    }

    /// Records a false positive of a leaf's filter. If the filter contains removed names, the leaf gets a new
    /// one. Otherwise it was coincidence.
    pub(super) fn filter_failed(&mut self, lblk: Lblk) {
        let slot = self.slot(lblk);
        slot.has_filter &= !slot.has_gone;
    }

    /// Gives a leaf notes for `names` names, and fills them. `false` if there is no room.
    pub(super) fn make_notes(&mut self, lblk: Lblk, names: usize, fill: impl FnOnce(&mut Notes)) -> bool {
        let place = match self.slot(lblk).notes.checked_sub(2) {
            Some(place) => place,
            None if !self.has_room_for_notes() => return false,
            None => match self.free_notes.pop() {
                Some(place) => place,
                None => {
                    self.notes.push(Notes::default());
                    self.notes.len() as u32 - 1
                }
            },
        };
        let slot = self.slot(lblk);
        (slot.notes, slot.has_filter) = (place + 2, false);
        let notes = &mut self.notes[place as usize];
        let before = notes.bytes();
        if !notes.is_reserved() {
            // A leaf that was split has half of its names, and will get as many again.
            notes.reserve(names * 2);
        }
        fill(notes);
        self.notes_bytes = (self.notes_bytes + notes.bytes()).saturating_sub(before);
        true
    }

    /// The hole in a leaf and the bytes used by its entries, if known.
    pub(super) fn room(&self, lblk: Lblk) -> Option<(Hole, usize)> {
        let FreeSpace { hole_at, hole_own, hole_len, live } = self.slots.get(lblk.0 as usize)?.room;
        let [at, own, len, live] = [hole_at, hole_own, hole_len, live].map(|words| usize::from(words) * 4);
        (live != 0).then_some((Hole { at, own, len }, live))
    }

    pub(super) fn set_room(&mut self, lblk: Lblk, hole: Hole, live_bytes: usize) {
        // A block of 64 KiB has 16,384 words.
        let word = |bytes: usize| (bytes / 4) as u16;
        let Hole { at, own, len } = hole;
        self.slot(lblk).room =
            FreeSpace { hole_at: word(at), hole_own: word(own), hole_len: word(len), live: word(live_bytes) };
    }

    /// Drops the room of a leaf from which an entry was removed.
    pub(super) fn forget_room(&mut self, lblk: Lblk) {
        if let Some(slot) = self.slots.get_mut(lblk.0 as usize) {
            (slot.room, slot.has_gone) = (FreeSpace::default(), true);
        }
    }

    /// Records that a name was inserted into the room of a leaf, and the room that is left.
    pub(super) fn note_insert(&mut self, lblk: Lblk, hash: NameHash, len: usize, room: Hole) {
        if let Some((_, live)) = self.room(lblk) {
            self.set_room(lblk, room, live + len);
        }
        let Some(notes) = self.notes(lblk) else {
            if self.slot(lblk).has_filter {
                self.filters.add(lblk, Key::of(hash));
            }
            return;
        };
        let before = notes.bytes();
        notes.push(hash.hash, room.at);
        notes.live_bytes += len as u32;
        notes.set_hole(room);
        let more = notes.bytes() - before;
        self.notes_bytes += more;
    }

    /// Drops the slot and notes of a block that is no longer a leaf.
    pub(super) fn drop_notes(&mut self, lblk: Lblk) {
        let Some(slot) = self.slots.get_mut(lblk.0 as usize) else { return };
        if let Some(place) = std::mem::take(slot).notes.checked_sub(2) {
            let bytes = self.notes[place as usize].bytes();
            self.notes[place as usize] = Notes::default();
            self.notes_bytes = self.notes_bytes.saturating_sub(bytes);
            self.free_notes.push(place);
        }
    }

    /// Moves the notes of a leaf that has a new number.
    pub(super) fn move_notes(&mut self, from: Lblk, to: Lblk) {
        self.drop_notes(to);
        let slot = self.slots.get_mut(from.0 as usize).map(std::mem::take).unwrap_or_default();
        *self.slot(to) = Slot { has_filter: false, at: Location::default(), ..slot };
    }
}

impl fmt::Debug for DirCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notes = self.notes.len() - self.free_notes.len();
        write!(f, "DirCache: {} nodes, {notes} leaves, {} bytes", self.nodes.len(), self.held_bytes())
    }
}

/// Statistics of changes since the directory's cache was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Names inserted.
    pub inserts: u64,
    /// Names removed.
    pub removes: u64,
    /// Leaves and linear blocks read.
    pub leaf_reads: u64,
    /// Index blocks read.
    pub index_reads: u64,
    /// Leaves split.
    pub splits: u64,
    /// Leaves packed because their room was scattered.
    pub packed: u64,
    /// Nodes of the index split.
    pub index_splits: u64,
    /// Levels added to the index.
    pub levels_added: u64,
    /// Levels removed from the index.
    pub levels_removed: u64,
    /// Times that the directory got an index.
    pub indexed: u64,
    /// Times that the index was removed, with the last name.
    pub unindexed: u64,
    /// Blocks freed.
    pub blocks_freed: u64,
    /// Leaves that inserts touched in the current window of 10,000 inserts.
    pub leaves_in_window: u64,
    /// Leaves that inserts touched in the last complete window.
    pub leaves_in_last_window: u64,
    window: u32,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("inserts", self.inserts),
            ("removes", self.removes),
            ("leaf reads", self.leaf_reads),
            ("index reads", self.index_reads),
            ("leaf splits", self.splits),
            ("leaves packed", self.packed),
            ("index splits", self.index_splits),
            ("levels added", self.levels_added),
            ("levels removed", self.levels_removed),
            ("blocks freed", self.blocks_freed),
            ("leaves touched by 10,000 inserts", self.leaves_in_last_window.max(self.leaves_in_window)),
        ];
        writeln!(f, "directory changes")?;
        rows.into_iter().try_for_each(|(what, count)| writeln!(f, "  {what:<33} {count:>12}"))
    }
}
