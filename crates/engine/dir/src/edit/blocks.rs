//! The blocks of a directory that is being changed.
//!
//! Owns: the check that a block is no hole and that the directory may grow, the place in each fault, the
//! count of reads, whether the directory has an index. Does **not** own: the meaning of a block ([`Index`],
//! [`Leaves`]), its mapping and its checksum ([`DirEdit`]).
//!
//! Invariant: a block that was appended or freed has no [`Location`](super::Location) in the [`LeafCache`].
//!
//! [`Index`]: super::index::Index
//! [`Leaves`]: super::leaves::Leaves

use extant_base::{CorruptAt, Ino, Lblk, Malformed};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::hash::HashVersion;

use super::leaf_cache::LeafCache;
use super::{DirEdit, EditFault, Location, NoSpace, Stats};
use crate::order::Hasher;
use crate::{Dir, DirBlocks, Format, Storage};

pub(super) struct Blocks<'a> {
    pub(super) ino: Ino,
    pub(super) format: &'a Format,
    /// Reads and changes single blocks.
    pub(super) access: &'a dyn DirEdit,
    pub(super) stats: &'a mut Stats,
    pub(super) is_indexed: bool,
}

impl<'a> Blocks<'a> {
    pub(super) fn len(&self) -> u32 {
        self.access.len()
    }

    /// The directory, to be read.
    pub(super) fn dir(&self) -> Dir<'a> {
        let blocks: &'a dyn DirBlocks = self.access;
        let storage = if self.is_indexed { Storage::Indexed(blocks) } else { Storage::Linear(blocks) };
        Dir { ino: self.ino, storage, casefold: false, encrypted: false }
    }

    pub(super) fn hasher(&self, version: HashVersion) -> Hasher {
        self.dir().hasher(self.format, version)
    }

    /// Sets or clears the directory's INDEX flag.
    pub(super) fn set_indexed(&mut self, indexed: bool) {
        self.access.set_indexed(indexed);
        self.is_indexed = indexed;
    }

    /// Reads a leaf or a linear block.
    pub(super) fn leaf(&mut self, lblk: Lblk, at: &mut Location) -> Result<Buffer, ReadFault> {
        self.stats.leaf_reads += 1;
        let dir = self.dir();
        let block = self.access.leaf_at(lblk, at).map_err(|fault| dir.placed(fault, lblk))?;
        block.ok_or_else(|| dir.hole(lblk))
    }

    /// Calls `look` with the bytes of a leaf, for callers that read few of them.
    pub(super) fn look_leaf(
        &mut self,
        lblk: Lblk,
        at: &mut Location,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), ReadFault> {
        self.stats.leaf_reads += 1;
        let dir = self.dir();
        let looked = self.access.look_leaf_at(lblk, at, look);
        let is_there = looked.map_err(|fault| dir.placed(fault, lblk))?;
        if is_there { Ok(()) } else { Err(dir.hole(lblk)) }
    }

    /// Reads a root or node of the index.
    pub(super) fn index(&mut self, lblk: Lblk) -> Result<Buffer, ReadFault> {
        self.stats.index_reads += 1;
        let dir = self.dir();
        let block = self.access.index(lblk).map_err(|fault| dir.placed(fault, lblk))?;
        block.ok_or_else(|| dir.hole(lblk))
    }

    /// Checks that the directory can grow by `more` blocks.
    pub(super) fn check_size(&self, more: u32) -> Result<(), NoSpace> {
        let large_dir = self.format.index.large_dir;
        let len = u64::from(self.len()) + u64::from(more);
        // Child numbers in the index have 28 bits; without large_dir the size has 32.
        let fits_index = len <= 0x0FFF_FFFF;
        let fits_size = large_dir || len << self.format.entries.block_size.log2() <= u64::from(u32::MAX);
        if fits_index && fits_size { Ok(()) } else { Err(NoSpace::Size { large_dir }) }
    }

    /// Appends a block after the last one.
    pub(super) fn append(
        &mut self,
        cache: &mut LeafCache,
        as_index: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Lblk, EditFault> {
        self.check_size(1)?;
        let lblk = self.access.append(as_index, fill)?;
        cache.forget_at(lblk);
        Ok(lblk)
    }

    /// Frees the last block.
    pub(super) fn pop(&mut self, cache: &mut LeafCache) -> Result<(), EditFault> {
        let last = self.len().checked_sub(1);
        last.into_iter().for_each(|last| cache.forget_at(Lblk(last)));
        self.access.pop()
    }

    /// A block breaks a rule.
    pub(super) fn corrupt(&self, block: &Buffer, lblk: Lblk, fact: Malformed) -> ReadFault {
        self.dir().corrupt(block, lblk, fact)
    }

    /// As [`corrupt`](Self::corrupt), for a block that is known by its number only.
    pub(super) fn corrupt_at(&self, lblk: Lblk, fact: Malformed) -> ReadFault {
        self.dir().placed(ReadFault::corrupt(CorruptAt::default(), fact), lblk)
    }

    /// The block has changed since it was read: damage, since the caller has the directory's lock.
    pub(super) fn stale(&self, lblk: Lblk) -> EditFault {
        let fact = Malformed::new("directory block", "entries must be where they were", lblk.0);
        self.corrupt_at(lblk, fact).into()
    }
}
