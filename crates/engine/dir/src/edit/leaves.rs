//! Searches and changes of one leaf.
//!
//! Owns: the data about leaves that are kept ([`LeafCache`]), the buffers for packing and splitting a leaf.
//! Does **not** own: the leaf that a name belongs to ([`Index`]), when a leaf is split or freed
//! ([`super::split`], [`super::shrink`]).
//!
//! Invariant: every change of a leaf's bytes is recorded in `cache`, or is followed by a fault, which clears
//! the cache.

use std::ops::Range;

use extant_base::{Ino, Lblk};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::dirent::edit::{Found, Hole};
use extant_ondisk::dirent::{DirFormat, min_rec_len};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::NameHash;

use super::blocks::Blocks;
use super::index::Index;
use super::leaf::LeafEntry;
use super::leaf_cache::{LeafCache, LeafSummary, Limits};
use super::notes::HashMatches;
use super::{EditFault, leaf};
use crate::order::Hasher;

pub(super) struct Leaves {
    pub(super) cache: LeafCache,
    /// The mapped leaf: its entries in the order of their hashes, and its bytes. The buffers are kept to save
    /// allocations.
    map: Vec<LeafEntry>,
    source: Vec<u8>,
}

/// A name with its hashes.
#[derive(Clone, Copy)]
pub(super) struct HashedName<'n> {
    pub(super) name: &'n [u8],
    pub(super) hash: NameHash,
}

/// The room for a name in a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// At an entry.
    Hole(Hole),
    /// After moving all entries together.
    Scattered,
    /// Only in another leaf.
    None,
}

/// The entry at this offset, if it has this name.
fn named(block: &[u8], at: usize, name: &[u8]) -> Option<Found> {
    let entry = block.get(at..at + 8 + name.len())?;
    let ino = u32::from_le_bytes(*entry.first_chunk()?);
    let is_it = usize::from(entry[6]) == name.len() && entry[8..] == *name;
    (is_it && ino != 0).then_some(Found { at, ino: Ino(ino) })
}

impl Leaves {
    pub(super) fn new(limits: Limits) -> Self {
        Self { cache: LeafCache::new(limits), map: Vec::new(), source: Vec::new() }
    }

    /// Drops all data.
    pub(super) fn clear(&mut self) {
        self.cache.clear();
        (self.map, self.source) = (Vec::new(), Vec::new());
    }

    /// Memory in use, in bytes (approximate).
    pub(super) fn held_bytes(&self) -> usize {
        self.cache.held_bytes() + self.source.capacity()
    }

    /// Reads a leaf or a linear block.
    pub(super) fn read(&mut self, blocks: &mut Blocks<'_>, lblk: Lblk) -> Result<Buffer, ReadFault> {
        blocks.leaf(lblk, self.cache.at(lblk))
    }

    /// Searches a leaf for the name, and for room of `need` bytes.
    pub(super) fn look(
        &mut self,
        blocks: &mut Blocks<'_>,
        index: &Index,
        lblk: Lblk,
        HashedName { name, hash }: HashedName<'_>,
        need: usize,
    ) -> Result<(Option<Found>, Room), ReadFault> {
        let format = blocks.format.entries;
        let room = |hole: Hole, live_bytes: usize| match hole.len {
            len if len >= need => Room::Hole(hole),
            _ if need <= format.usable_len().saturating_sub(live_bytes) => Room::Scattered,
            _ => Room::None,
        };
        let is_noted = self.cache.notes(lblk).is_some();
        if !is_noted {
            let deserved = self.cache.deserved(lblk, &index.nodes);
            if deserved == LeafSummary::Nothing
                && let Some((hole, live_bytes)) = self.cache.room(lblk)
                && !self.may_hold(blocks, lblk, HashedName { name, hash })?
            {
                return Ok((None, room(hole, live_bytes)));
            }
            let block = self.read(blocks, lblk)?;
            let scan = format.scan(&block, name, need).map_err(|fact| blocks.corrupt(&block, lblk, fact))?;
            if deserved != LeafSummary::Nothing {
                let mapped = leaf::map(&format, &index.hasher, &block, 0, &mut self.map);
                mapped.map_err(|fact| blocks.corrupt(&block, lblk, fact))?;
                let entries = self.map.iter().copied();
                self.cache.remember(lblk, &index.nodes, block.len(), entries, (scan.hole, scan.live_bytes));
            } else {
                self.cache.set_room(lblk, scan.hole, scan.live_bytes);
            }
            return Ok((scan.found, room(scan.hole, scan.live_bytes)));
        }
        let Some(notes) = self.cache.notes(lblk) else { return Ok((None, Room::None)) };
        let noted = notes.look(hash.hash);
        let room = room(notes.hole(), notes.live_bytes as usize);
        let found = match noted {
            HashMatches::None => None,
            HashMatches::One(at) => {
                let mut found = None;
                let look = &mut |bytes: &[u8]| found = named(bytes, at, name);
                blocks.look_leaf(lblk, self.cache.at(lblk), look)?;
                found
            }
            HashMatches::Several => self.compare(blocks, lblk, hash.hash, name)?,
        };
        Ok((found, room))
    }

    /// Whether a leaf without notes may hold this name.
    fn may_hold(
        &mut self,
        blocks: &mut Blocks<'_>,
        lblk: Lblk,
        HashedName { name, hash }: HashedName<'_>,
    ) -> Result<bool, ReadFault> {
        if !self.cache.may_hold(lblk, hash) {
            return Ok(false);
        }
        let mut may_hold = true;
        blocks.look_leaf(lblk, self.cache.at(lblk), &mut |bytes| {
            extant_buffer::prefetch(bytes);
            may_hold = DirFormat::may_hold(bytes, name);
        })?;
        if !may_hold {
            self.cache.filter_failed(lblk);
        }
        Ok(may_hold)
    }

    /// Compares a name with those of its hash, in a leaf with notes.
    fn compare(
        &mut self,
        blocks: &mut Blocks<'_>,
        lblk: Lblk,
        hash: u32,
        name: &[u8],
    ) -> Result<Option<Found>, ReadFault> {
        let block = self.read(blocks, lblk)?;
        let Some(notes) = self.cache.notes(lblk) else { return Ok(None) };
        Ok(notes.offsets(hash).find_map(|at| named(&block, at, name)))
    }

    /// Inserts at an entry with room.
    pub(super) fn place(
        &mut self,
        blocks: &mut Blocks<'_>,
        lblk: Lblk,
        hole: Hole,
        HashedName { name, hash }: HashedName<'_>,
        ino: Ino,
        kind: FileType,
    ) -> Result<(), EditFault> {
        let format = blocks.format.entries;
        let mut placed = None;
        let mut insert = |bytes: &mut [u8]| placed = format.insert_at(bytes, hole.at, ino, kind, name);
        // If memory does not suffice for the notes of all leaves, there are more leaves than blocks in a
        // transaction. Most leaves then change once per transaction, and a patch saves fetching them: from
        // memory, and from the device if memory does not suffice for the leaves.
        let is_noted = self.cache.notes(lblk).is_some();
        let at = self.cache.at(lblk);
        if is_noted && blocks.access.change_leaf_in_memory(lblk, at, &mut insert) {
        } else if let Some(insertion) = format.insertion(hole, ino, kind, name)
            && blocks.access.patch_leaf(lblk, at, insertion.expected(), &insertion.pieces())?
        {
            placed = Some(insertion.left());
        } else {
            blocks.access.change_leaf(lblk, at, &mut insert)?;
        }
        let room = placed.ok_or_else(|| blocks.stale(lblk))?;
        self.cache.note_insert(lblk, hash, min_rec_len(name.len(), false), room);
        self.cache.touch(lblk, blocks.stats);
        Ok(())
    }

    /// Removes a name with known hash and place. Returns whether the leaf has no names any more.
    ///
    /// In a leaf with notes only the name's own entry is touched. An entry has no link to its predecessor,
    /// and a search for it from the first entry on would touch half of the block. So the entry stays, unused,
    /// and the notes count the used bytes to find out when the leaf is empty.
    pub(super) fn remove(
        &mut self,
        blocks: &mut Blocks<'_>,
        lblk: Lblk,
        name: &[u8],
        hash: u32,
        found: Found,
    ) -> Result<bool, EditFault> {
        let format = blocks.format.entries;
        let is_noted = self.cache.notes(lblk).is_some();
        let (mut room, mut is_empty) = (None, false);
        blocks.access.change_leaf(lblk, self.cache.at(lblk), &mut |bytes| {
            if !format.is_at(bytes, found, name) {
                return;
            }
            if is_noted {
                room = format.unuse_at(bytes, found.at);
            } else {
                room = format.remove_at(bytes, 0, found.at);
                is_empty = room.is_some() && format.is_unused(bytes);
            }
        })?;
        let room = room.ok_or_else(|| blocks.stale(lblk))?;
        self.cache.forget_room(lblk);
        if let Some(notes) = self.cache.notes(lblk) {
            notes.remove(hash, found.at, min_rec_len(name.len(), false), room);
            is_empty = notes.live_bytes == 0;
        }
        Ok(is_empty)
    }

    /// Maps a leaf: copies it to the buffers.
    pub(super) fn map(
        &mut self,
        blocks: &mut Blocks<'_>,
        hasher: &Hasher,
        lblk: Lblk,
    ) -> Result<(), ReadFault> {
        let block = self.read(blocks, lblk)?;
        let Some(notes) = self.cache.notes(lblk) else {
            return self.map_block(blocks, hasher, (lblk, &block), 0);
        };
        self.map.clear();
        self.map.extend(notes.entries());
        let checked = leaf::check(&blocks.format.entries, &block, &self.map);
        checked.map_err(|fact| blocks.corrupt(&block, lblk, fact))?;
        self.keep_mapped(&block);
        Ok(())
    }

    /// Maps the entries of a block from byte `start` on.
    pub(super) fn map_block(
        &mut self,
        blocks: &Blocks<'_>,
        hasher: &Hasher,
        (lblk, block): (Lblk, &Buffer),
        start: usize,
    ) -> Result<(), ReadFault> {
        let mapped = leaf::map(&blocks.format.entries, hasher, block, start, &mut self.map);
        mapped.map_err(|fact| blocks.corrupt(block, lblk, fact))?;
        self.keep_mapped(block);
        Ok(())
    }

    fn keep_mapped(&mut self, block: &[u8]) {
        self.map.sort_unstable();
        self.source.clear();
        self.source.extend_from_slice(block);
    }

    /// The entries of the mapped leaf.
    pub(super) fn mapped(&self) -> &[LeafEntry] {
        &self.map
    }

    /// The index at which the mapped leaf is cut by a split: see [`leaf::cut`].
    pub(super) fn cut(&self) -> usize {
        leaf::cut(&self.source, &self.map)
    }

    /// Moves a leaf's entries together. Returns the room after them.
    pub(super) fn pack(
        &mut self,
        blocks: &mut Blocks<'_>,
        index: &Index,
        lblk: Lblk,
    ) -> Result<Hole, EditFault> {
        self.map(blocks, &index.hasher, lblk)?;
        blocks.stats.packed += 1;
        Ok(self.fill(blocks, index, lblk, 0..self.map.len())?)
    }

    /// Fills an existing leaf with these entries of the mapped leaf, and records them. Returns its room.
    pub(super) fn fill(
        &mut self,
        blocks: &mut Blocks<'_>,
        index: &Index,
        lblk: Lblk,
        entries: Range<usize>,
    ) -> Result<Hole, ReadFault> {
        let format = blocks.format.entries;
        let offsets = self.map[entries.clone()].iter().map(|entry| entry.at());
        let mut hole = Hole::default();
        blocks.access.change_leaf(lblk, self.cache.at(lblk), &mut |bytes| {
            hole = format.repack(&self.source, offsets.clone(), bytes, 0, |_| ());
        })?;
        self.remember_packed(index, lblk, entries, hole);
        Ok(hole)
    }

    /// Appends a leaf with these entries of the mapped leaf. Returns its number and its room, which the
    /// caller [records](Self::remember_packed).
    pub(super) fn append(
        &mut self,
        blocks: &mut Blocks<'_>,
        entries: Range<usize>,
    ) -> Result<(Lblk, Hole), EditFault> {
        let format = blocks.format.entries;
        let offsets = self.map[entries].iter().map(|entry| entry.at());
        let mut hole = Hole::default();
        let lblk = blocks.append(&mut self.cache, false, &mut |bytes| {
            hole = format.repack(&self.source, offsets.clone(), bytes, 0, |_| ());
        })?;
        Ok((lblk, hole))
    }

    /// Records a leaf that was just filled with these entries of the mapped leaf, without gaps.
    pub(super) fn remember_packed(&mut self, index: &Index, lblk: Lblk, entries: Range<usize>, hole: Hole) {
        let Self { cache, map, source } = self;
        let entries = &map[entries];
        let len = |entry: &LeafEntry| min_rec_len(usize::from(source[entry.at() + 6]), false);
        let mut next = 0;
        let placed = entries.iter().map(move |entry| {
            let at = next;
            next += len(entry);
            entry.moved_to(at)
        });
        cache.remember(lblk, &index.nodes, source.len(), placed, (hole, entries.iter().map(len).sum()));
    }
}
