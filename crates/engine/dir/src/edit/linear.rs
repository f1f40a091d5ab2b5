//! Directories without an index: blocks of entries. When the only block is full, the directory gets an index
//! if the file system supports it.

use extant_base::{Ino, Lblk};
use extant_ondisk::Features;
use extant_ondisk::dirent::edit::Found;
use extant_ondisk::dirent::min_rec_len;
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::HashVersion;
use extant_ondisk::htree::{DxEntry, RootInfo};

use super::{EditFault, Editor, leaf};
use crate::lookup::Readahead;

/// Empty blocks that one removal frees at most; the caller reserves credits for them.
pub(super) const LINEAR_POPS_MAX: u32 = 8;

impl Editor<'_> {
    /// Searches all blocks for a name.
    pub(super) fn find_linear(&mut self, name: &[u8]) -> Result<Option<(Lblk, Found)>, EditFault> {
        let format = self.format.entries;
        let mut readahead = Readahead::default();
        for lblk in (0..self.blocks.len()).map(Lblk) {
            readahead.at(self.blocks, lblk);
            let block = self.leaf_block(lblk)?;
            let found = format.find(&block, name).map_err(|fact| self.corrupt(&block, lblk, fact))?;
            if let Some(entry) = found {
                return Ok(Some((lblk, Found { at: entry.offset, ino: entry.ino })));
            }
        }
        Ok(None)
    }

    pub(super) fn insert_linear(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<(), EditFault> {
        // If the feature dir_index was removed: the index will not contain the new name, so it must not be
        // used again.
        self.blocks.set_indexed(false);
        let format = self.format.entries;
        let need = min_rec_len(name.len(), false);
        let mut readahead = Readahead::default();
        let mut room = None;
        let mut is_scattered = false;
        for lblk in (0..self.blocks.len()).map(Lblk) {
            readahead.at(self.blocks, lblk);
            let block = self.leaf_block(lblk)?;
            let scan = format.scan(&block, name, need).map_err(|fact| self.corrupt(&block, lblk, fact))?;
            if scan.found.is_some() {
                return Err(EditFault::Exists);
            }
            if room.is_none() && scan.hole.len >= need {
                room = Some((lblk, scan.hole.at));
            }
            is_scattered = scan.live_bytes + need <= format.usable_len();
        }
        if let Some((lblk, at)) = room {
            return self.put_into(lblk, at, name, ino, kind);
        }
        if self.blocks.len() == 1 && is_scattered {
            // The holes together are large enough.
            self.blocks.mark_packed();
            let at = self.pack_linear()?;
            return self.put_into(Lblk(0), at, name, ino, kind);
        }
        match self.format.default_hash.filter(|version| *version != HashVersion::SipHash) {
            Some(version)
                if self.blocks.len() == 1 && self.format.features.has_compat(Features::DIR_INDEX) =>
            {
                self.make_indexed(version)?;
                self.insert_indexed(name, ino, kind)
            }
            _ => {
                self.append(false, &mut |block| {
                    format.lay_empty(block);
                    let placed = format.insert_at(block, 0, ino, kind, name);
                    debug_assert!(placed.is_some(), "every name fits into an empty block");
                })?;
                Ok(())
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
        let format = self.format.entries;
        let mut placed = None;
        let at_leaf = self.cache.at(lblk);
        self.blocks
            .change_leaf(lblk, at_leaf, &mut |bytes| placed = format.insert_at(bytes, at, ino, kind, name))?;
        placed.map(drop).ok_or_else(|| self.stale(lblk))
    }

    /// Moves the entries of the only block together, in their order. Returns the entry with the room after
    /// it.
    fn pack_linear(&mut self) -> Result<usize, EditFault> {
        let format = self.format.entries;
        let lblk = Lblk(0);
        let block = self.leaf_block(lblk)?;
        leaf::dots(&format, &block).map_err(|fact| self.corrupt(&block, lblk, fact))?;
        let mut offsets = Vec::new();
        for entry in format.entries(&block) {
            let entry = entry.map_err(|fact| self.corrupt(&block, lblk, fact))?;
            if entry.is_used() {
                offsets.push(entry.offset);
            }
        }
        let source = block.to_vec();
        drop(block);
        let mut at = 0;
        self.blocks.change_leaf(lblk, self.cache.at(lblk), &mut |bytes| {
            at = format.repack(&source, offsets.iter().copied(), bytes, 0, |_| ()).at;
        })?;
        self.cache.stats.packed += 1;
        Ok(at)
    }

    /// Turns the full block into a root above two leaves, each with half of the names.
    fn make_indexed(&mut self, version: HashVersion) -> Result<(), EditFault> {
        let format = self.format.entries;
        let lblk = Lblk(0);
        self.check_size(2)?;
        let block = self.leaf_block(lblk)?;
        let (_, dotdot) = leaf::dots(&format, &block).map_err(|fact| self.corrupt(&block, lblk, fact))?;
        let parent = format.entries(&block).nth(1).and_then(Result::ok).map(|entry| entry.ino);
        let parent = parent.ok_or_else(|| self.stale(lblk))?;
        self.cache.set_hasher(self.dir().hasher(self.format, version));
        let mut sorted = std::mem::take(&mut self.cache.map);
        let mapped = leaf::map(&format, self.hasher(), &block, dotdot + 1, &mut sorted);
        mapped.map_err(|fact| self.corrupt(&block, lblk, fact))?;
        sorted.sort_unstable();
        let source = block.to_vec();
        drop(block);

        let (lower, upper) = sorted.split_at(leaf::cut(&source, &sorted));
        let mut entries = [DxEntry { hash: 0, block: lblk }; 2];
        let mut count = 0;
        for (i, half) in [lower, upper].into_iter().enumerate() {
            if i > 0 && half.is_empty() {
                break;
            }
            let filled = self.append(false, &mut |bytes| {
                format.repack(&source, half.iter().map(|entry| entry.at()), bytes, 0, |_| ());
            });
            let block = match filled {
                Ok(block) => block,
                Err(fault) => {
                    if i > 0 {
                        self.pop()?;
                    }
                    return Err(fault);
                }
            };
            // No refusal is possible from here on.
            let hash = half.first().map_or(0, |first| first.hash());
            let is_continued = i > 0 && lower.last().is_some_and(|last| last.hash() == hash);
            entries[i] = DxEntry { hash: hash | u32::from(is_continued), block };
            count = i + 1;
        }
        self.cache.map = sorted;
        let root = RootInfo { ino: self.ino, parent, hash_code: version.code(), filetype: format.filetype };
        let index = self.format.index;
        self.blocks.change_index(lblk, &mut |bytes| {
            index.encode_root(&root, 0, entries[..count].iter().copied(), bytes);
        })?;
        self.blocks.set_indexed(true);
        self.is_indexed = true;
        self.cache.clear();
        self.cache.stats.indexed += 1;
        Ok(())
    }

    pub(super) fn remove_linear(&mut self, name: &[u8]) -> Result<Ino, EditFault> {
        let format = self.format.entries;
        let (lblk, found) = self.find_linear(name)?.ok_or(EditFault::Absent)?;
        let mut room = None;
        let at = self.cache.at(lblk);
        self.blocks.change_leaf(lblk, at, &mut |bytes| room = format.remove_at(bytes, 0, found.at))?;
        let room = room.ok_or_else(|| self.stale(lblk))?;
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
            let Ok(block) = self.leaf_block(Lblk(last)) else { return Ok(()) };
            let is_empty = matches!(leaf::holds_names(&self.format.entries, &block, false), Ok(false));
            drop(block);
            if !is_empty {
                return Ok(());
            }
            self.pop()?;
            self.cache.stats.blocks_freed += 1;
        }
        Ok(())
    }
}
