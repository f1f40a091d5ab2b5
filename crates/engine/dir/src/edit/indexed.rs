//! Operations on names of an indexed directory, as recipes: find the leaf, search it and those that continue
//! it, change one.

use extant_base::{Ino, Lblk};
use extant_buffer::ReadFault;
use extant_ondisk::dirent::edit::Found;
use extant_ondisk::dirent::min_rec_len;
use extant_ondisk::filetype::FileType;

use super::leaves::{HashedName, Room};
use super::shrink::Shrink;
use super::split::Split;
use super::{EditFault, Editor};

impl Editor<'_> {
    /// Starts an operation: evicts the excess over the limit, and loads the root.
    fn begin(&mut self) -> Result<(), ReadFault> {
        if self.leaves.cache.trim(&self.index.nodes) {
            self.index.drop_nodes();
        }
        self.index.load_root(&mut self.blocks)
    }

    /// Finds a name: its leaf, its hash, and the entry.
    pub(super) fn find_indexed(&mut self, name: &[u8]) -> Result<Option<(Lblk, u32, Found)>, EditFault> {
        self.begin()?;
        let (hash, mut span) = self.index.span_of(&mut self.blocks, &self.leaves.cache, name)?;
        let name = HashedName { name, hash };
        let mut path = None;
        loop {
            let looked = self.leaves.look(&mut self.blocks, self.index, span.leaf, name, usize::MAX)?;
            if let (Some(found), _) = looked {
                return Ok(Some((span.leaf, hash.hash, found)));
            }
            match self.index.next_span(&mut self.blocks, span, hash.hash, &mut path)? {
                Some(next) => span = next,
                None => return Ok(None),
            }
        }
    }

    pub(super) fn insert_indexed(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<(), EditFault> {
        self.begin()?;
        let need = min_rec_len(name.len(), false);
        let (hash, first) = self.index.span_of(&mut self.blocks, &self.leaves.cache, name)?;
        let name = HashedName { name, hash };
        let (mut span, mut path, mut chosen) = (first, None, None);
        loop {
            let (found, room) = self.leaves.look(&mut self.blocks, self.index, span.leaf, name, need)?;
            if found.is_some() {
                return Err(EditFault::Exists);
            }
            if chosen.is_none() && room != Room::None {
                chosen = Some((span.leaf, room));
            }
            match self.index.next_span(&mut self.blocks, span, hash.hash, &mut path)? {
                Some(next) => span = next,
                None => break,
            }
        }
        let (lblk, hole) = match chosen {
            Some((lblk, Room::Hole(hole))) => (lblk, hole),
            Some((lblk, _)) => {
                self.blocks.access.mark_packed();
                (lblk, self.leaves.pack(&mut self.blocks, self.index, lblk)?)
            }
            None => {
                let path = self.index.descend(&mut self.blocks, hash.hash)?;
                if path.leaf() != first.leaf {
                    // The leaf had names outside its range when it was split, so this leaf was not searched
                    // for the name.
                    return Err(self.blocks.stale(path.leaf()));
                }
                Split::new(&mut self.blocks, self.index, self.leaves, path).run(hash.hash, need)?
            }
        };
        self.leaves.place(&mut self.blocks, lblk, hole, name, ino, kind)
    }

    pub(super) fn remove_indexed(&mut self, name: &[u8]) -> Result<Ino, EditFault> {
        let (leaf, hash, found) = self.find_indexed(name)?.ok_or(EditFault::Absent)?;
        self.remove_in_leaf(name, hash, leaf, found)
    }

    /// Removes a name with known hash and place.
    pub(super) fn remove_in_leaf(
        &mut self,
        name: &[u8],
        hash: u32,
        lblk: Lblk,
        found: Found,
    ) -> Result<Ino, EditFault> {
        let is_empty = self.leaves.remove(&mut self.blocks, lblk, name, hash, found)?;
        if is_empty {
            match self.index.path_to(&mut self.blocks, name, lblk) {
                Ok(Some(path)) => Shrink::new(&mut self.blocks, self.index, self.leaves).free_leaf(path)?,
                Ok(None) => {}
                // The name is removed; an empty leaf that stays does no harm.
                Err(_) => self.clear_cache(),
            }
        }
        Ok(found.ino)
    }
}
