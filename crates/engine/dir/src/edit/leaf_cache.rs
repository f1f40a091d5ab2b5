//! The data in memory about the leaves of a directory: where they are, which names they have, their room.
//!
//! ```text
//! slots:    block -> touched?, notes, a hole, location                   64 bytes per block of the directory
//! notes:    hashes and offsets of the names, used bytes, a hole          to find duplicates: see `notes`
//! filters:  Bloom filters of the names                                   the same, without room for notes
//! ```
//!
//! Owns: these data, which leaf gets notes or a filter, their limits. Does **not** own: the leaves' bytes
//! (see [`super::leaves`]), the memory of the index, which counts against the same limit as the notes.
//!
//! A leaf gets notes when it is touched a second time (which hashes all of its names), or when a split
//! creates it (the hashes are known then). Without memory for notes it gets a filter instead, which takes a
//! fifth of the memory. Notes and filters are not created beyond their limits.
//!
//! Invariant: the notes, the filter and the room of a leaf agree with its bytes. Linear blocks and nodes have
//! a location only.

use extant_base::Lblk;
use extant_ondisk::dirent::edit::Hole;
use extant_ondisk::hash::NameHash;

use super::filters::{Filters, Key};
use super::leaf::LeafEntry;
use super::nodes::Nodes;
use super::notes::Notes;
use super::{DirEdit, LeafPrefetch, Location, Stats};

/// Inserts per window, in which distinct leaves are counted.
const WINDOW: u64 = 10_000;
/// A block this far beyond twice the slots in use gets no slot: a damaged index may name any number.
const FAR: usize = 1 << 20;

/// Limits of a directory's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of notes and of the index together.
    pub(super) bytes: usize,
    /// Bytes of filters.
    pub(super) filter_bytes: usize,
    /// The most blocks of a directory whose leaves get notes.
    pub(super) noted_blocks: usize,
}

pub(super) struct LeafCache {
    limits: Limits,
    /// Whether leaves get new notes and filters: see [`set_may_grow`](Self::set_may_grow).
    may_grow: bool,
    slots: Vec<Slot>,
    /// The slot of a block far beyond all others, which only damage leads to. Nothing is kept for it.
    spare: Slot,
    notes: Vec<Notes>,
    free_notes: Vec<u32>,
    /// Memory of the notes in bytes.
    notes_bytes: usize,
    filters: Filters,
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

impl LeafCache {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            may_grow: true,
            slots: Vec::new(),
            spare: Slot::default(),
            notes: Vec::new(),
            free_notes: Vec::new(),
            notes_bytes: 0,
            filters: Filters::new(limits.filter_bytes),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn set_may_grow(&mut self, may_grow: bool) {
        self.may_grow = may_grow;
        self.filters.set_bytes_max(if may_grow { self.limits.filter_bytes } else { 0 });
    }

    pub(super) fn may_grow(&self) -> bool {
        self.may_grow
    }

    /// Drops all data.
    pub(super) fn clear(&mut self) {
        let may_grow = self.may_grow;
        *self = Self::new(self.limits);
        self.set_may_grow(may_grow);
    }

    /// Memory in use, in bytes (approximate).
    pub(super) fn held_bytes(&self) -> usize {
        self.notes_bytes + self.filters.held_bytes() + self.slots.capacity() * size_of::<Slot>()
    }

    /// The number of leaves with notes.
    pub(super) fn noted(&self) -> usize {
        self.notes.len() - self.free_notes.len()
    }

    /// Memory that counts against the limit, in bytes.
    fn limited_bytes(&self, nodes: &Nodes) -> usize {
        self.notes_bytes + nodes.held_bytes()
    }

    fn has_room_for_notes(&self, nodes: &Nodes) -> bool {
        self.may_grow && self.has_few_blocks() && self.limited_bytes(nodes) < self.limits.bytes / 2
    }

    fn has_few_blocks(&self) -> bool {
        self.slots.len() <= self.limits.noted_blocks
    }

    /// Evicts all notes if they exceed the limit together with the nodes of the index, or if the directory
    /// has too many blocks for them. Returns `true` if there is an excess but no notes: it is due to nodes.
    ///
    /// Notes stop growing at half of the limit, so any excess is due to nodes. But every leaf is found
    /// through nodes, and notes are optional, so the notes go first. Filters have their own limit.
    pub(super) fn trim(&mut self, nodes: &Nodes) -> bool {
        let has_useless = !self.notes.is_empty() && !self.has_few_blocks();
        let has_excess = self.limited_bytes(nodes) > self.limits.bytes;
        if !self.notes.is_empty() && (has_excess || has_useless) {
            self.drop_all_notes();
            return false;
        }
        has_excess
    }

    #[cold]
    fn drop_all_notes(&mut self) {
        for slot in &mut self.slots {
            slot.notes = slot.notes.min(1);
        }
        self.notes_bytes = 0;
        (self.notes, self.free_notes) = (Vec::new(), Vec::new());
    }

    /// Counts an insert into a leaf.
    pub(super) fn touch(&mut self, lblk: Lblk, stats: &mut Stats) {
        let window = (stats.inserts / WINDOW + 1) as u32;
        let slot = self.slot(lblk);
        if std::mem::replace(&mut slot.window, window) == window {
            return;
        }
        if stats.window != window {
            stats.window = window;
            stats.leaves_in_last_window = std::mem::take(&mut stats.leaves_in_window);
        }
        stats.leaves_in_window += 1;
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

    /// Follows [`prefetch`](Self::prefetch) after a moment: prefetches the leaf's notes, and the part of the
    /// leaf that an insert will read, if it is known.
    pub(super) fn prefetch_leaf(&self, lblk: Lblk, access: &dyn DirEdit) {
        let Some(slot) = self.slots.get(lblk.0 as usize) else { return };
        let notes = slot.notes.checked_sub(2).and_then(|place| self.notes.get(place as usize));
        notes.into_iter().for_each(extant_buffer::prefetch_start);
        let is_known = slot.room.live != 0 && (notes.is_some() || slot.has_filter);
        let what = match notes {
            Some(_) => LeafPrefetch::Bytes(usize::from(slot.room.hole_at) * 4),
            None => LeafPrefetch::Slot,
        };
        if is_known && slot.at.block.0 != 0 {
            access.prefetch_leaf(&slot.at, what);
        }
    }

    /// The last step after [`prefetch_leaf`](Self::prefetch_leaf): prefetches the bucket of this hash in the
    /// notes.
    pub(super) fn prefetch_bucket(&self, lblk: Lblk, hash: u32) {
        let slot = self.slots.get(lblk.0 as usize);
        let notes = slot.and_then(|slot| self.notes.get(slot.notes.checked_sub(2)? as usize));
        notes.into_iter().for_each(|notes| notes.prefetch(hash));
    }

    /// What a leaf without notes should get. Records that the leaf was touched.
    pub(super) fn deserved(&mut self, lblk: Lblk, nodes: &Nodes) -> LeafSummary {
        let has_room = self.has_room_for_notes(nodes);
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

    /// Stores the entries of a leaf of `leaf_bytes` bytes (hashes and offsets), and its room.
    pub(super) fn remember(
        &mut self,
        lblk: Lblk,
        nodes: &Nodes,
        leaf_bytes: usize,
        entries: impl ExactSizeIterator<Item = LeafEntry> + Clone,
        (hole, live_bytes): (Hole, usize),
    ) {
        let is_noted = self.make_notes(lblk, nodes, entries.len(), |notes| {
            notes.set(entries.clone().map(|entry| (entry.hash(), entry.at())), live_bytes, hole);
        });
        if !is_noted {
            self.make_filter(lblk, leaf_bytes, entries);
        }
        self.set_room(lblk, hole, live_bytes);
    }

    /// Builds the filter of a leaf of `leaf_bytes` bytes if there is room and the keys of all its names are
    /// known.
    fn make_filter(&mut self, lblk: Lblk, leaf_bytes: usize, names: impl Iterator<Item = LeafEntry> + Clone) {
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
    fn make_notes(&mut self, lblk: Lblk, nodes: &Nodes, names: usize, fill: impl FnOnce(&mut Notes)) -> bool {
        let place = match self.slot(lblk).notes.checked_sub(2) {
            Some(place) => place,
            None if !self.has_room_for_notes(nodes) => return false,
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
