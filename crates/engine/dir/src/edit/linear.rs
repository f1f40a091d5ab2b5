//! Directories without an index: blocks of entries. When the only block is full, the directory gets an index
//! if the file system supports it.
//!
//! Does **not** own: what is kept of the blocks ([`Leaves`]: only their locations), the insert that follows
//! when the directory has got an index.

use extant_base::{Ino, Lblk};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::Features;
use extant_ondisk::dirent::edit::Found;
use extant_ondisk::dirent::min_rec_len;
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::HashVersion;
use extant_ondisk::htree::{DxEntry, RootInfo};

use super::blocks::Blocks;
use super::leaves::Leaves;
use super::{EditFault, leaf};
use crate::lookup::Readahead;

/// Empty blocks that one removal frees at most; the caller reserves credits for them.
pub(super) const LINEAR_POPS_MAX: u32 = 8;

/// A directory without an index.
pub(super) struct Linear<'e, 'a> {
    pub(super) blocks: &'e mut Blocks<'a>,
    pub(super) leaves: &'e mut Leaves,
}

/// The result of an insert.
pub(super) enum Inserted {
    Done,
    /// Nothing was changed: the only block is full, and the directory can get an index with this hash.
    NeedsIndex(HashVersion),
}

impl Linear<'_, '_> {
    fn read(&mut self, lblk: Lblk) -> Result<Buffer, ReadFault> {
        self.leaves.read(self.blocks, lblk)
    }

    /// Searches all blocks for a name.
    pub(super) fn find(&mut self, name: &[u8]) -> Result<Option<(Lblk, Found)>, EditFault> {
        let format = self.blocks.format.entries;
        let mut readahead = Readahead::default();
        for lblk in (0..self.blocks.len()).map(Lblk) {
            readahead.at(self.blocks.access, lblk);
            let block = self.read(lblk)?;
            let found = format.find(&block, name).map_err(|fact| self.blocks.corrupt(&block, lblk, fact))?;
            if let Some(entry) = found {
                return Ok(Some((lblk, Found { at: entry.offset, ino: entry.ino })));
            }
        }
        Ok(None)
    }

    pub(super) fn insert(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<Inserted, EditFault> {
        // If the feature dir_index was removed: the index will not contain the new name, so it must not be
        // used again.
        self.blocks.set_indexed(false);
        let format = self.blocks.format.entries;
        let need = min_rec_len(name.len(), false);
        let mut readahead = Readahead::default();
        let mut room = None;
        let mut is_scattered = false;
        for lblk in (0..self.blocks.len()).map(Lblk) {
            readahead.at(self.blocks.access, lblk);
            let block = self.read(lblk)?;
            let scan =
                format.scan(&block, name, need).map_err(|fact| self.blocks.corrupt(&block, lblk, fact))?;
            if scan.found.is_some() {
                return Err(EditFault::Exists);
            }
            if room.is_none() && scan.hole.len >= need {
                room = Some((lblk, scan.hole.at));
            }
            is_scattered = scan.live_bytes + need <= format.usable_len();
        }
        if let Some((lblk, at)) = room {
            return self.put_into(lblk, at, name, ino, kind).map(|()| Inserted::Done);
        }
        if self.blocks.len() == 1 && is_scattered {
            // The holes together are large enough.
            self.blocks.access.mark_packed();
            let at = self.pack()?;
            return self.put_into(Lblk(0), at, name, ino, kind).map(|()| Inserted::Done);
        }
        match self.blocks.format.default_hash.filter(|version| *version != HashVersion::SipHash) {
            Some(version)
                if self.blocks.len() == 1 && self.blocks.format.features.has_compat(Features::DIR_INDEX) =>
            {
                Ok(Inserted::NeedsIndex(version))
            }
            _ => {
                self.blocks.append(&mut self.leaves.cache, false, &mut |block| {
                    format.lay_empty(block);
                    let placed = format.insert_at(block, 0, ino, kind, name);
                    debug_assert!(placed.is_some(), "every name fits into an empty block");
                })?;
                Ok(Inserted::Done)
            }
        }
    }

    /// Inserts at a hole that is large enough.
    fn put_into(
        &mut self,
        lblk: Lblk,
        at: usize,
        name: &[u8],
        ino: Ino,
        kind: FileType,
    ) -> Result<(), EditFault> {
        let format = self.blocks.format.entries;
        let mut placed = None;
        let at_leaf = self.leaves.cache.at(lblk);
        self.blocks
            .access
            .change_leaf(lblk, at_leaf, &mut |bytes| placed = format.insert_at(bytes, at, ino, kind, name))?;
        placed.map(drop).ok_or_else(|| self.blocks.stale(lblk))
    }

    /// Moves the entries of the only block together, in their order. Returns the entry with the room after
    /// it.
    fn pack(&mut self) -> Result<usize, EditFault> {
        let format = self.blocks.format.entries;
        let lblk = Lblk(0);
        let block = self.read(lblk)?;
        leaf::dots(&format, &block).map_err(|fact| self.blocks.corrupt(&block, lblk, fact))?;
        let mut offsets = Vec::new();
        for entry in format.entries(&block) {
            let entry = entry.map_err(|fact| self.blocks.corrupt(&block, lblk, fact))?;
            if entry.is_used() {
                offsets.push(entry.offset);
            }
        }
        let source = block.to_vec();
        drop(block);
        let mut at = 0;
        self.blocks.access.change_leaf(lblk, self.leaves.cache.at(lblk), &mut |bytes| {
            at = format.repack(&source, offsets.iter().copied(), bytes, 0, |_| ()).at;
        })?;
        self.blocks.stats.packed += 1;
        Ok(at)
    }

    /// Turns the full block into a root above two leaves, each with half of the names. The caller clears the
    /// cache.
    pub(super) fn make_indexed(&mut self, version: HashVersion) -> Result<(), EditFault> {
        let Self { blocks, leaves } = self;
        let format = blocks.format.entries;
        let lblk = Lblk(0);
        blocks.check_size(2)?;
        let block = leaves.read(blocks, lblk)?;
        let (_, dotdot) = leaf::dots(&format, &block).map_err(|fact| blocks.corrupt(&block, lblk, fact))?;
        let parent = format.entries(&block).nth(1).and_then(Result::ok).map(|entry| entry.ino);
        let parent = parent.ok_or_else(|| blocks.stale(lblk))?;
        leaves.map_block(blocks, &blocks.hasher(version), (lblk, &block), dotdot + 1)?;
        drop(block);

        let (cut, len) = (leaves.cut(), leaves.mapped().len());
        let mut entries = [DxEntry { hash: 0, block: lblk }; 2];
        let mut count = 0;
        for (i, half) in [0..cut, cut..len].into_iter().enumerate() {
            if i > 0 && half.is_empty() {
                break;
            }
            let block = match leaves.append(blocks, half.clone()) {
                Ok((block, _)) => block,
                Err(fault) => {
                    if i > 0 {
                        blocks.pop(&mut leaves.cache)?;
                    }
                    return Err(fault);
                }
            };
            // No refusal is possible from here on.
            let (before, from) = leaves.mapped().split_at(half.start);
            let hash = if half.is_empty() { 0 } else { from[0].hash() };
            let is_continued = before.last().is_some_and(|last| last.hash() == hash);
            entries[i] = DxEntry { hash: hash | u32::from(is_continued), block };
            count = i + 1;
        }
        let root = RootInfo { ino: blocks.ino, parent, hash_code: version.code(), filetype: format.filetype };
        let index = blocks.format.index;
        blocks.access.change_index(lblk, &mut |bytes| {
            index.encode_root(&root, 0, entries[..count].iter().copied(), bytes);
        })?;
        blocks.set_indexed(true);
        blocks.stats.indexed += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Result<Ino, EditFault> {
        let format = self.blocks.format.entries;
        let (lblk, found) = self.find(name)?.ok_or(EditFault::Absent)?;
        let mut room = None;
        let at = self.leaves.cache.at(lblk);
        self.blocks.access.change_leaf(lblk, at, &mut |bytes| room = format.remove_at(bytes, 0, found.at))?;
        let room = room.ok_or_else(|| self.blocks.stale(lblk))?;
        if room.len == format.usable_len() {
            self.pop_empty_blocks()?;
        }
        Ok(found.ino)
    }

    /// Frees empty blocks at the end. Empty blocks in the middle stay: positions in linear directories are
    /// offsets, so a listing in progress would miss names that move.
    fn pop_empty_blocks(&mut self) -> Result<(), EditFault> {
        for _ in 0..LINEAR_POPS_MAX {
            let Some(last) = self.blocks.len().checked_sub(1).filter(|last| *last > 0) else { return Ok(()) };
            // An unreadable block stays: the name is removed whatever the last block holds.
            let Ok(block) = self.read(Lblk(last)) else { return Ok(()) };
            let is_empty = matches!(leaf::holds_names(&self.blocks.format.entries, &block, false), Ok(false));
            drop(block);
            if !is_empty {
                return Ok(());
            }
            self.blocks.pop(&mut self.leaves.cache)?;
            self.blocks.stats.blocks_freed += 1;
        }
        Ok(())
    }
}
