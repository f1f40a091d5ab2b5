//! Moves the blocks of one inode that are after the new end.
//!
//! Owns: what is known about the inode while its blocks move, and changes of its bytes. Does **not** own: the
//! two forms of maps (see `maps`), clusters (see `clusters`), allocation and switches (see
//! [`Pending`]).
//!
//! Invariants
//! 1. An inode is moved once: its stored bytes are those of now, except for pending changes.
//! 2. Each block of a map is visited once.

mod clusters;
mod maps;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use extant_base::le::{u16_at, u32_at};
use extant_base::{Ino, Pblk};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self, flags};
use extant_ondisk::{Features, orphan_file};

use super::pending::Pending;
use super::{ACL_AT, ACL_HIGH_AT, FLAGS_AT, GENERATION_AT, MAP, MODE_AT, SIZE_AT};
use crate::fault::ResizeFault;
use clusters::Chain;
use maps::Node;

/// Moves the blocks of one inode.
struct Mover<'c, 'f> {
    change: &'c mut Pending<'f>,
    ino: Ino,
    /// For the checksums of the inode and of its map.
    seed: u32,
    /// For the checksums of the blocks of the orphan file, if this is it.
    orphan_seed: Option<u32>,
    /// The inode is the journal, which moves as one.
    is_journal: bool,
    /// Blocks of the map.
    seen: HashSet<u64>,
    /// The last cluster that moved, if the next extent of the file may have a part of it. No switch may
    /// follow until all of the cluster has moved.
    chain: Option<Chain>,
    /// The chains of the inode that end after the limit, once they are known: first blocks and ends.
    chains: Option<BTreeMap<u64, u64>>,
    /// Blocks of the inode from this one on move, too, although they are before the limit: they share
    /// clusters with blocks after it.
    from: u64,
}

/// What the map field of an inode has.
pub(super) struct Root {
    /// The root of an extent tree.
    is_tree: bool,
    pub(super) is_block_map: bool,
}

impl Root {
    pub(super) fn of(inode: &[u8]) -> Self {
        let has = |flag: u32| u32_at(inode, FLAGS_AT) & flag != 0;
        let kind = FileType::from_mode(u16_at(inode, MODE_AT));
        let is_fast_link = kind == FileType::Symlink && u32_at(inode, SIZE_AT) < 60;
        let maps = matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
            && !has(flags::INLINE_DATA);
        let is_tree = maps && has(flags::EXTENTS);
        Self { is_tree, is_block_map: maps && !is_tree && !is_fast_link }
    }
}

/// Moves the blocks of an inode with these stored bytes. Returns its attribute block if that must move.
pub(super) fn move_inode(
    change: &mut Pending<'_>,
    ino: Ino,
    stored: &[u8],
) -> Result<Option<u64>, ResizeFault> {
    let (block, at) = change.fs.inode_place(ino)?;
    let bytes = match change.blocks.get(&block) {
        Some(bytes) => bytes[at].to_vec(),
        None => stored.to_vec(),
    };
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let fs = &*change.fs;
    let generation = u32_at(&bytes, GENERATION_AT);
    let seed = inode::inode_seed(fs.sb.fs_seed(), ino, generation);
    if fs.sb.verifies_inodes() && !inode::verify(&bytes, seed) {
        return Err(ResizeFault::Damaged(format!("inode {} has a wrong checksum", ino.0)));
    }
    let acl = u64::from(u32_at(&bytes, ACL_AT)) | u64::from(u16_at(&bytes, ACL_HIGH_AT)) << 32;
    if acl >= fs.geometry.blocks && !fs.sb.is_hurd() {
        let why = format!("the attribute block of inode {} does not exist", ino.0);
        return Err(ResizeFault::Damaged(why));
    }
    let acl = (acl >= change.space.limit && !fs.sb.is_hurd()).then_some(acl);
    let map: [u8; 60] = bytes[MAP].try_into().unwrap_or([0; 60]);
    if ino == Ino::BAD_BLOCKS {
        return match map.iter().any(|byte| *byte != 0) {
            true => Err(ResizeFault::CannotShrink("it has a list of bad blocks")),
            false => Ok(None),
        };
    }
    let is_orphan_file = fs.sb.features.has_compat(Features::ORPHAN_FILE) && ino.0 == fs.sb.orphan_file_inum;
    let mut mover = Mover {
        ino,
        seed,
        orphan_seed: is_orphan_file.then(|| orphan_file::inode_seed(fs.sb.fs_seed(), ino, generation)),
        is_journal: ino.0 == fs.sb.journal_inum,
        seen: HashSet::new(),
        chain: None,
        chains: None,
        from: u64::MAX,
        change,
    };
    let root = Root::of(&bytes);
    if ino == Ino::RESIZE {
        mover.resize_inode(&map)?;
    } else if root.is_tree {
        mover.extent_node(&map, Node::Root)?;
        mover.close_chain()?;
    } else if root.is_block_map {
        // With bigalloc there is none: the evacuation has refused it.
        mover.block_map(&map)?;
    }
    Ok(acl)
}

impl Mover<'_, '_> {
    /// Changes the bytes of the inode.
    fn change_inode(&mut self, with: impl FnOnce(&mut [u8])) -> Result<(), ResizeFault> {
        let is_sealed = self.change.fs.sb.seals_inodes();
        let bytes = self.change.inode_mut(self.ino)?;
        with(bytes);
        if is_sealed {
            inode::seal(bytes, self.seed);
        }
        Ok(())
    }

    /// Allocates up to `len` blocks in a row before the limit, near the inode.
    fn allocate(&mut self, len: u64) -> Result<Range<u64>, ResizeFault> {
        let group = self.change.fs.geometry.inode_place(self.ino).map_or(0, |(group, _)| group.0);
        self.change.allocate(len, group)
    }

    /// Copies blocks of data, at the latest before the next switch. The orphan file's blocks have checksums
    /// that depend on their places.
    fn copy(&mut self, from: u64, to: u64, len: u64) -> Result<(), ResizeFault> {
        let Some(seed) = self.orphan_seed else {
            self.change.copy(from, to, len);
            return Ok(());
        };
        for n in 0..len {
            let mut bytes = self.change.fs.block(from + n)?;
            if self.change.fs.sb.features.metadata_csum() {
                orphan_file::seal(seed, Pblk(to + n), &mut bytes);
            }
            self.change.write(to + n, &bytes)?;
        }
        Ok(())
    }
}
