//! Changes of directories: names are added, removed and replaced; blocks are split, filled and freed. A
//! damaged directory is an error, never a panic (INV-EN12).
//!
//! Owns: the block that a name belongs to, when a block is split, packed or freed, growth and shrinking of
//! the index, the content of a directory's [`DirCache`]. Does **not** own: the mapping of blocks, their
//! allocation and checksums, and the directory's inode ([`DirEdit`] provides them); the place of inline
//! directories in their inode ([`inline`] changes the bytes).
//!
//! ```text
//! Editor       operations on names, as recipes; those of indexed directories are in `indexed`
//!   Linear     directories without an index
//!   Index      the nodes in memory, paths to leaves  \   Split, Shrink: changes of both, when a leaf is full
//!   Leaves     search and change of one leaf         /   or empty
//!   Blocks     reads single blocks, appends and frees them
//! ```
//!
//! ```text
//!   1 block, linear  --full-->  root, 2 leaves  --leaf full-->  one leaf more  --node full-->  one node more
//!        ^                                                                     --root full--> one level more
//!        '---------- the last name is removed ---- empty leaves are freed, with nodes that become empty;
//!                                                  a root above one half-empty node takes its entries
//! ```
//!
//! Invariants
//! 1. An operation that is refused for lack of space, or because a name exists (or does not), has changed
//!    nothing: all blocks are read and appended before the first change of an existing block.
//! 2. The names of a leaf have hashes from its entry's hash up to the next entry's. The latter is included
//!    only if the next entry has the continuation bit.
//! 3. A name is inserted only after all leaves that could hold it were searched.
//! 4. No block is a hole, and every block has a place in the index: a freed leaf is replaced by the
//!    directory's last block. (Names stay in the order of their hashes, so listings in progress stay
//!    correct.) Blocks of linear directories never move: only empty blocks at the end are freed.
//! 5. The cache agrees with the blocks after every operation, or is empty (after every fault).
//!
//! The caller holds the directory's lock exclusively, and reserves [`Needs`] first.
//!
//! Encrypted and casefolded directories are read-only.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

mod blocks;
mod cache;
mod filters;
mod hints;
mod index;
mod indexed;
pub mod inline;
mod leaf;
mod leaf_cache;
mod leaves;
mod linear;
mod nodes;
mod notes;
mod path;
mod shrink;
mod split;
mod stats;

use extant_base::{Ino, Lblk, Pblk};
use extant_buffer::{Buffer, Hint, ReadFault};
use extant_ondisk::dirent::edit::Found;
use extant_ondisk::dirent::{DirBlockWriter, DirFormat, NAME_LEN_MAX};
use extant_ondisk::filetype::FileType;

use crate::edit::blocks::Blocks;
use crate::edit::index::Index;
use crate::edit::leaves::Leaves;
use crate::edit::linear::{Inserted, Linear};
use crate::{DirBlocks, Format};

pub use cache::DirCache;
pub use hints::HINTS_MAX;
pub use stats::Stats;

/// Access to a directory's blocks for changes, in a transaction with credits for [`Needs`].
///
/// A change also sets the kind of a block: a leaf's number may become an index block's. Bytes are complete
/// except for checksums.
pub trait DirEdit: DirBlocks {
    /// Changes a block that is already a leaf or a linear block.
    ///
    /// # Errors
    /// The block must be read again and cannot be: nothing was changed.
    fn change_leaf(
        &self,
        lblk: Lblk,
        at: &mut Location,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault>;

    /// As [`change_leaf`](Self::change_leaf), if the block is in memory, and verified. `false` if it is not;
    /// then nothing was changed.
    fn change_leaf_in_memory(
        &self,
        _lblk: Lblk,
        _at: &mut Location,
        _change: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        false
    }

    /// As [`leaf`](DirBlocks::leaf), with what is known of the block's location.
    ///
    /// # Errors
    /// As [`leaf`](DirBlocks::leaf).
    fn leaf_at(&self, lblk: Lblk, _at: &mut Location) -> Result<Option<Buffer>, ReadFault> {
        self.leaf(lblk)
    }

    /// As [`look_leaf`](DirBlocks::look_leaf), with what is known of the block's location.
    ///
    /// # Errors
    /// As [`leaf`](DirBlocks::leaf).
    fn look_leaf_at(
        &self,
        lblk: Lblk,
        _at: &mut Location,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, ReadFault> {
        self.look_leaf(lblk, look)
    }

    /// As [`change_leaf`](Self::change_leaf), without reading the leaf, which may not even be in memory: it
    /// is read by the commit, if nothing reads it before. Overwrites it with the bytes of `pieces`, each at
    /// its offset. `expected` is an offset, and the bytes there before the change; if they differ, the change
    /// is not committed. `false` if nothing was changed: the caller must read the leaf.
    ///
    /// # Errors
    /// As [`change_leaf`](Self::change_leaf).
    fn patch_leaf(
        &self,
        _lblk: Lblk,
        _at: &mut Location,
        _expected: (usize, &[u8]),
        _pieces: &[(usize, &[u8])],
    ) -> Result<bool, ReadFault> {
        Ok(false)
    }

    /// Changes a root or node of the index.
    ///
    /// # Errors
    /// As [`change_leaf`](Self::change_leaf).
    fn change_index(&self, lblk: Lblk, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault>;

    /// Makes a leaf or a linear block of an existing block, without reading it or regard to its kind. `fill`
    /// gets zeros.
    ///
    /// # Errors
    /// The block's mapping cannot be read: nothing was changed.
    fn refill_leaf(&self, lblk: Lblk, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault>;

    /// Appends a block after the last one, a node of the index or a leaf, and increases the directory's size.
    /// `fill` gets zeros. Returns the block's number.
    ///
    /// # Errors
    /// [`NoSpace::Device`] and other refusals of allocation: nothing was changed.
    fn append(&self, as_index: bool, fill: &mut dyn FnMut(&mut [u8])) -> Result<Lblk, EditFault>;

    /// An entry got space by a change that others do not make: where the same names are added to the same
    /// blocks by the kernel, as its replay of fast commits does, the directory may grow.
    fn mark_packed(&self) {}

    /// Frees the last block, and reduces the directory's size.
    ///
    /// # Errors
    /// The block's mapping cannot be read.
    fn pop(&self) -> Result<(), EditFault>;

    /// Sets or clears the directory's INDEX flag.
    fn set_indexed(&self, indexed: bool);

    /// Prefetches memory for a change of a leaf that follows. Best effort: it avoids cache misses on memory
    /// that was not prefetched before.
    fn prefetch_leaf(&self, _at: &Location, _what: LeafPrefetch) {}
}

/// The location of a leaf or linear block, as far as the [`DirEdit`] implementation has found it. The cache
/// keeps it for the implementation while the block belongs to the directory.
#[derive(Debug, Clone, Copy)]
pub struct Location {
    /// Its number; 0 if unknown.
    pub block: Pblk,
    /// Its last position in the block cache.
    pub hint: Hint,
    /// Address of its bytes in memory at the last change: for prefetches only.
    pub bytes_at: usize,
}

impl Location {
    /// A location with a number only; 0 if unknown.
    #[must_use]
    pub fn of(block: Pblk) -> Self {
        Self { block, hint: Hint::NONE, bytes_at: 0 }
    }
}

impl Default for Location {
    fn default() -> Self {
        Self::of(Pblk(0))
    }
}

/// The memory of a leaf to prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafPrefetch {
    /// Its slot in the block cache: sufficient for a [patch](DirEdit::patch_leaf).
    Slot,
    /// Its slot, and its bytes from this offset on.
    Bytes(usize),
}

/// The resource that is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSpace {
    /// No block is free.
    #[error("no block is free")]
    Device,
    /// The index is full at its maximum number of levels.
    #[error("the directory's index is full{}", if *.large_dir { "" } else { " (the feature large_dir would give it another level)" })]
    IndexFull {
        /// Whether the file system has the feature large_dir: with it the index has three levels, without it
        /// two.
        large_dir: bool,
    },
    /// The directory has reached its maximum size.
    #[error("the directory is as large as can be{}", if *.large_dir { "" } else { " without the feature large_dir" })]
    Size {
        /// Whether the file system has the feature large_dir.
        large_dir: bool,
    },
    /// The inode has no room: the directory must be moved to a block.
    #[error("the inode has no room for another entry")]
    Inline,
}

/// A directory was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditFault {
    /// There is no space.
    #[error("{0}")]
    NoSpace(#[from] NoSpace),
    /// The name exists already.
    #[error("the name exists")]
    Exists,
    /// The name does not exist.
    #[error("no such name")]
    Absent,
    /// A block cannot be read, or breaks a rule.
    #[error(transparent)]
    Read(#[from] ReadFault),
    /// Directories of this kind are read-only.
    #[error("{0} directories are read only")]
    Unsupported(&'static str),
}

/// Blocks that an operation touches at most, for the caller's reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Existing blocks of the directory that may change.
    pub changes: u32,
    /// Blocks that may be appended; each needs an allocation.
    pub appends: u32,
    /// Blocks that may be freed.
    pub pops: u32,
}

impl Needs {
    /// For an insert. `levels`: see [`Editor::levels`]; `None` for a linear directory.
    #[must_use]
    pub fn insert(levels: Option<u8>) -> Self {
        match levels {
            // One block changes, or one is appended, or the only one becomes a root above two leaves.
            None => Self { changes: 1, appends: 2, pops: 0 },
            // The leaf and its path change; each of them may be split.
            Some(levels) => {
                let path = u32::from(levels) + 2;
                Self { changes: path, appends: path, pops: 0 }
            }
        }
    }

    /// For a removal.
    #[must_use]
    pub fn remove(levels: Option<u8>) -> Self {
        match levels {
            None => Self { changes: 1, appends: 0, pops: linear::LINEAR_POPS_MAX },
            // The leaf, all nodes above it except the root, and nodes that the root takes in may be freed.
            // Each is replaced by another block, of which the parent changes. In addition change the node
            // that lost an entry, and the root.
            Some(levels) => {
                let gone = 2 * u32::from(levels) + 1;
                Self { changes: 2 + 2 * gone, appends: 0, pops: gone }
            }
        }
    }

    /// For a [`replace`](Editor::replace) or [`set_parent`](Editor::set_parent).
    pub const REPLACE: Self = Self { changes: 1, appends: 0, pops: 0 };
}

/// Fills a new directory's first block: "." and "..".
///
/// # Panics
/// If `block` is not one block long.
pub fn first_block(format: &DirFormat, ino: Ino, parent: Ino, block: &mut [u8]) {
    let mut writer = DirBlockWriter::new(format, block);
    writer.push_dots(ino, parent);
    writer.finish();
}

/// The properties of a directory that an inode stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirTarget {
    /// Its number.
    pub ino: Ino,
    /// INDEX flag.
    pub indexed: bool,
    /// CASEFOLD flag.
    pub casefold: bool,
    /// ENCRYPT flag.
    pub encrypted: bool,
}

impl DirTarget {
    /// Whether directories of this kind can be changed.
    ///
    /// # Errors
    /// [`EditFault::Unsupported`]: encrypted and casefolded directories are read-only.
    pub fn check(&self) -> Result<(), EditFault> {
        match self {
            Self { encrypted: true, .. } => Err(EditFault::Unsupported("encrypted")),
            Self { casefold: true, .. } => Err(EditFault::Unsupported("casefolded")),
            _ => Ok(()),
        }
    }
}

/// The place of a name; valid until its directory changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameLocation {
    /// The inode of the name.
    pub ino: Ino,
    /// In an indexed directory: the leaf, the offset in it, and the name's hash.
    place: Option<(Lblk, usize, u32)>,
}

impl NameLocation {
    /// An unknown place.
    #[must_use]
    pub fn anywhere(ino: Ino) -> Self {
        Self { ino, place: None }
    }
}

/// A directory that is being changed.
pub struct Editor<'a> {
    blocks: Blocks<'a>,
    index: &'a mut Index,
    leaves: &'a mut Leaves,
}

impl<'a> Editor<'a> {
    /// Starts changes of a directory that is stored in blocks. `cache` must not have been used for another
    /// directory, and must have seen all changes of this one since it was created or
    /// [cleared](DirCache::clear).
    ///
    /// # Errors
    /// Encrypted and casefolded directories are read-only.
    pub fn new(
        target: DirTarget,
        format: &'a Format,
        blocks: &'a dyn DirEdit,
        cache: &'a mut DirCache,
    ) -> Result<Self, EditFault> {
        target.check()?;
        let DirCache { index, leaves, stats } = cache;
        let is_indexed = target.indexed;
        let blocks = Blocks { ino: target.ino, format, access: blocks, stats, is_indexed };
        Ok(Self { blocks, index, leaves })
    }

    /// Whether the directory has an index now.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.blocks.is_indexed
    }

    /// Levels of nodes below the root of the index, 0 to 2, for [`Needs`]; `None` for a linear directory.
    ///
    /// # Errors
    /// The root cannot be read or breaks a rule.
    pub fn levels(&mut self) -> Result<Option<u8>, EditFault> {
        if !self.blocks.is_indexed {
            return Ok(None);
        }
        self.index.load_root(&mut self.blocks)?;
        Ok(Some(self.index.levels()))
    }

    /// The inode of `name`; "." and ".." are names, too.
    ///
    /// # Errors
    /// A block cannot be read or breaks a rule.
    pub fn lookup(&mut self, name: &[u8]) -> Result<Option<Ino>, EditFault> {
        Ok(self.find(name)?.map(|location| location.ino))
    }

    /// As [`lookup`](Self::lookup), for a subsequent [`remove_found`](Self::remove_found).
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub fn find(&mut self, name: &[u8]) -> Result<Option<NameLocation>, EditFault> {
        if !self.blocks.is_indexed || is_dots(name) || !is_name(name) {
            let ino = self.blocks.dir().lookup(self.blocks.format, name)?;
            return Ok(ino.map(NameLocation::anywhere));
        }
        let looked = self.find_indexed(name);
        let found = self.clear_cache_on_fault(looked)?;
        Ok(found
            .map(|(leaf, hash, found)| NameLocation { ino: found.ino, place: Some((leaf, found.at, hash)) }))
    }

    /// Inserts a name.
    ///
    /// # Errors
    /// The name exists (also for "." and ".."), there is no space, or a block cannot be read.
    ///
    /// # Panics
    /// If the name is empty or longer than 255 bytes, or `ino` is 0.
    pub fn insert(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<(), EditFault> {
        assert!(is_name(name) && ino.0 != 0, "names have 1 to 255 bytes and lead to an inode");
        if is_dots(name) {
            return Err(EditFault::Exists);
        }
        let inserted = match self.blocks.is_indexed {
            true => self.insert_indexed(name, ino, kind),
            false => self.insert_linear(name, ino, kind),
        };
        self.clear_cache_on_fault(inserted)?;
        self.blocks.stats.inserts += 1;
        Ok(())
    }

    /// Removes a name. Returns its inode. Blocks that become empty are freed.
    ///
    /// # Errors
    /// The name does not exist, or a block cannot be read.
    pub fn remove(&mut self, name: &[u8]) -> Result<Ino, EditFault> {
        self.remove_at(name, None)
    }

    /// Removes a name that [`find`](Self::find) found, if the directory has not changed since.
    ///
    /// # Errors
    /// As [`remove`](Self::remove); the name has moved, which the caller must rule out.
    pub fn remove_found(&mut self, name: &[u8], location: NameLocation) -> Result<Ino, EditFault> {
        self.remove_at(name, Some(location))
    }

    /// Removes a name if `may` permits it for the inode.
    ///
    /// # Errors
    /// As [`remove`](Self::remove). [`Absent`](EditFault::Absent) also if `may` does not permit it: nothing
    /// was changed.
    pub fn remove_if(&mut self, name: &[u8], may: &mut dyn FnMut(Ino) -> bool) -> Result<Ino, EditFault> {
        let location = self.find(name)?.ok_or(EditFault::Absent)?;
        if may(location.ino) { self.remove_at(name, Some(location)) } else { Err(EditFault::Absent) }
    }

    fn remove_at(&mut self, name: &[u8], location: Option<NameLocation>) -> Result<Ino, EditFault> {
        if is_dots(name) || !is_name(name) {
            return Err(EditFault::Absent);
        }
        let removed = match (self.blocks.is_indexed, location) {
            (true, Some(NameLocation { ino, place: Some((lblk, at, hash)) })) => {
                self.remove_in_leaf(name, hash, lblk, Found { at, ino })
            }
            (true, _) => self.remove_indexed(name),
            (false, _) => self.linear().remove(name),
        };
        let ino = self.clear_cache_on_fault(removed)?;
        self.blocks.stats.removes += 1;
        Ok(ino)
    }

    /// Changes the inode of a name (rename over a name). Returns the previous inode.
    ///
    /// # Errors
    /// The name does not exist, or a block cannot be read.
    pub fn replace(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<Ino, EditFault> {
        if is_dots(name) || !is_name(name) {
            return Err(EditFault::Absent);
        }
        let found = match self.blocks.is_indexed {
            true => self.find_indexed(name).map(|found| found.map(|(leaf, _, found)| (leaf, found))),
            false => self.linear().find(name),
        };
        let (lblk, found) = self.clear_cache_on_fault(found)?.ok_or(EditFault::Absent)?;
        let format = self.blocks.format.entries;
        let mut is_done = false;
        let changed = self.blocks.access.change_leaf(lblk, self.leaves.cache.at(lblk), &mut |bytes| {
            is_done = format.replace_at(bytes, found.at, ino, kind)
        });
        self.clear_cache_on_fault(changed.map_err(EditFault::from))?;
        let stale = if is_done { Ok(()) } else { Err(self.blocks.stale(lblk)) };
        self.clear_cache_on_fault(stale)?;
        Ok(found.ino)
    }

    /// Sets ".." after the directory was moved.
    ///
    /// # Errors
    /// Block 0 cannot be read or does not begin with "." and "..".
    pub fn set_parent(&mut self, parent: Ino) -> Result<(), EditFault> {
        let Self { blocks, leaves, .. } = self;
        let first = Lblk(0);
        if blocks.is_indexed {
            let index = blocks.format.index;
            let block = blocks.index(first)?;
            index.decode_root(&block).map_err(|fact| blocks.corrupt(&block, first, fact))?;
            drop(block);
            return Ok(blocks.access.change_index(first, &mut |bytes| index.put_parent(bytes, parent))?);
        }
        let entries = blocks.format.entries;
        let block = leaves.read(blocks, first)?;
        let (_, dotdot) = leaf::dots(&entries, &block).map_err(|fact| blocks.corrupt(&block, first, fact))?;
        drop(block);
        let mut set = |bytes: &mut [u8]| {
            entries.replace_at(bytes, dotdot, parent, FileType::Directory);
        };
        Ok(blocks.access.change_leaf(first, leaves.cache.at(first), &mut set)?)
    }

    /// Whether "." and ".." are the only names. May read every block.
    ///
    /// # Errors
    /// A block cannot be read or breaks a rule, or block 0 does not begin with "." and "..".
    pub fn is_empty(&self) -> Result<bool, EditFault> {
        let blocks = &self.blocks;
        let dir = blocks.dir();
        let mut next = 0;
        while next < blocks.len() {
            let lblk = Lblk(next);
            next += 1;
            let Some(block) = dir.block_of_entries(blocks.access, lblk)? else {
                if lblk.0 == 0 {
                    return Err(dir.hole(lblk).into());
                }
                next = lblk.0.saturating_add(blocks.access.hole_len(lblk).max(1));
                continue;
            };
            let checked = leaf::holds_names(&blocks.format.entries, &block, lblk.0 == 0);
            if checked.map_err(|fact| blocks.corrupt(&block, lblk, fact))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prefetches memory for operations on these names, in their order: [`HINTS_MAX`] at most (the rest is
    /// ignored). They come next, or after pending names of earlier calls. Best effort, and useless in small
    /// directories.
    pub fn prefetch_names<'n>(&mut self, names: impl IntoIterator<Item = &'n [u8]>) {
        if self.blocks.is_indexed && self.index.cached(Lblk(0)).is_some() {
            self.index.prefetch_names(names, &self.leaves.cache, self.blocks.access);
        } else {
            self.index.hints.clear();
        }
    }

    fn linear(&mut self) -> Linear<'_, 'a> {
        Linear { blocks: &mut self.blocks, leaves: self.leaves }
    }

    fn insert_linear(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<(), EditFault> {
        match self.linear().insert(name, ino, kind)? {
            Inserted::Done => Ok(()),
            Inserted::NeedsIndex(version) => {
                self.linear().make_indexed(version)?;
                self.clear_cache();
                self.insert_indexed(name, ino, kind)
            }
        }
    }

    fn clear_cache(&mut self) {
        self.index.clear();
        self.leaves.clear();
    }

    /// A fault may come between a change of the cache and that of the block, so the cache is cleared.
    fn clear_cache_on_fault<T>(&mut self, done: Result<T, EditFault>) -> Result<T, EditFault> {
        if matches!(done, Err(EditFault::Read(_))) {
            self.clear_cache();
        }
        done
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn is_name(name: &[u8]) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len())
}

#[cfg(test)]
mod tests;
