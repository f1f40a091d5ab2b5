//! Changing what inodes hold: blocks of directories, and cutting files.
//!
//! ```text
//!   Change { live, alloc, handle } -- with_dir(node) --> extant_dir::edit::Editor over this inode's blocks
//!                                  -- cut(node, from) -> blocks from there on freed, a bounded number per call
//!                                  -- shift_left / shift_right -> blocks moved to other places of the file, likewise
//! ```
//!
//! Source: kernel Documentation/filesystems/ext4/inodes.rst, ifork.rst; i_blocks counts whole clusters.

mod blocks;
mod ranges;
mod remap;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use extant_alloc::{Alloc, Flags, Prealloc, Request};
use extant_base::{CorruptAt, Lblk, Malformed, Pblk, Tid};
use extant_buffer::{Buffer, Edit, Kind, Owner, PendingChange, ReadFault, Seal, Summed};
use extant_dir::DirBlocks;
use extant_dir::edit::{Ahead, DirEdit, Location, NoSpace};
use extant_mapping::{EditFault, FileMap, Holds, Mapped, TreeSpace};
use extant_ondisk::inode::flags;
use extant_ondisk::{Features, dirent};

use crate::clusters::{self, Gone};
use crate::dir_state::DirState;
use crate::live::{Editing, InodeCache, LiveInode, Values};
use crate::{Fault, Shared};

pub use blocks::Want;

/// Extents that one step of a cut removes: their groups' bitmaps are what a transaction needs room for.
const EXTENTS_PER_STEP: u32 = 8;

/// And of each of them at most so many blocks, where each takes a record in the log.
const REVOKED_PER_EXTENT: u32 = 512;

/// An open handle for changing inodes.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// The inodes.
    pub live: &'a InodeCache,
    /// Where blocks come from.
    pub alloc: &'a Alloc,
    /// The handle.
    pub edit: &'a dyn Edit,
    /// Receives the directory whose names changed, and the transaction if the directory demands durability
    /// before the call returns (`chattr +D`, `+S`): the operation waits for its commit. `None`: it does not
    /// wait.
    pub awaited: Option<&'a Cell<Option<(extant_base::Ino, extant_base::Tid)>>>,
    /// Blocks of directories may come out of what is kept for metadata: something is removed.
    pub is_removal: bool,
}

impl<'a> Change<'a> {
    fn shared(&self) -> &'a Arc<Shared> {
        self.live.shared()
    }

    /// Gives `with` an editor of a directory that is kept in blocks. The caller holds its operation lock
    /// alone.
    ///
    /// # Errors
    /// What the editor says, or why there is none.
    pub fn with_dir<R>(
        &self,
        node: &Arc<LiveInode>,
        format: &extant_dir::Format,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
    ) -> Result<R, extant_dir::edit::EditFault> {
        let mut values = self.hand_over(node);
        let done = self.in_dir(node, &mut values, format, with)?;
        self.await_names(node, &values);
        Ok(done)
    }

    /// As [`with_dir`](Self::with_dir), and then a change of the directory's values that goes with it, unless
    /// `with` failed.
    ///
    /// # Errors
    /// As [`with_dir`](Self::with_dir).
    pub fn with_dir_then<R>(
        &self,
        node: &Arc<LiveInode>,
        format: &extant_dir::Format,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
        then: impl FnOnce(&mut Values),
    ) -> Result<R, extant_dir::edit::EditFault> {
        let mut values = self.hand_over(node);
        let done = self.in_dir(node, &mut values, format, with)?;
        values.changed_in = self.edit.transaction();
        then(&mut values);
        self.await_names(node, &values);
        Ok(done)
    }

    /// Names of this directory changed.
    fn await_names(&self, node: &LiveInode, dir: &Values) {
        if let Some(awaited) = self.awaited.filter(|_| dir.has_flag(flags::DIRSYNC | flags::SYNC)) {
            // It is changed in this transaction, by the holder of the handle.
            awaited.set(Some((node.ino(), dir.changed_in)));
        }
    }

    /// The values, for a caller that changes them only along with blocks: access alone is not a change yet.
    fn hand_over<'n>(&self, node: &'n Arc<LiveInode>) -> Editing<'n> {
        let before = self.edit.changes();
        let values = self.live.edit(node, self.edit.transaction());
        self.edit.settle(before);
        values
    }

    fn in_dir<R>(
        &self,
        node: &Arc<LiveInode>,
        values: &mut Values,
        format: &extant_dir::Format,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
    ) -> Result<R, extant_dir::edit::EditFault> {
        let mut state = values.dir.take().unwrap_or_else(|| self.live.dirs().state());
        let target = extant_dir::edit::DirTarget {
            ino: node.ino(),
            indexed: values.has_flag(flags::INDEX)
                && self.shared().sb.features.has_compat(Features::DIR_INDEX),
            casefold: values.has_flag(flags::CASEFOLD),
            encrypted: values.has_flag(flags::ENCRYPT),
        };
        let DirState { cache, window, .. } = &mut *state;
        let done = {
            let blocks = DirBlocksEdit {
                change: *self,
                node,
                values: RefCell::new(values),
                window: RefCell::new(window),
                index: &format.index,
            };
            extant_dir::edit::Editor::new(target, format, &blocks, cache)
                .and_then(|mut editor| with(&mut editor))
        };
        self.live.dirs().count(node, &mut state);
        values.dir = Some(state);
        done
    }

    /// Unmaps and frees what the inode has from logical block `from` on: a bounded part, from the end
    /// backwards. `true` when all is done; else call again, with another handle: the inode is an orphan
    /// meanwhile. Needs [`cut_credits`](Self::cut_credits).
    ///
    /// # Errors
    /// A block cannot be read: what was done so far is whole, unless some of the tree was changed. Or a block
    /// is free already, or its bitmap cannot be read: then it is unmapped all the same, and lost at worst.
    pub fn cut(&self, node: &Arc<LiveInode>, from: u64) -> Result<bool, Fault> {
        self.punch(node, from..1 << 32).map(|left| left.is_none())
    }

    /// Gives a new directory its first block.
    ///
    /// # Errors
    /// No space; or a block cannot be read.
    pub fn make_dir(
        &self,
        node: &Arc<LiveInode>,
        parent: extant_base::Ino,
        format: &extant_dir::Format,
    ) -> Result<(), extant_dir::edit::EditFault> {
        let fill =
            &mut |bytes: &mut [u8]| extant_dir::edit::first_block(&format.entries, node.ino(), parent, bytes);
        self.fill_dir(node, format, fill)
    }

    /// Gives a directory without blocks its first one: `fill` gets zeros, and puts "." and ".." there and
    /// what else it holds.
    ///
    /// # Errors
    /// No space; or a block cannot be read. Nothing was changed.
    pub fn fill_dir(
        &self,
        node: &Arc<LiveInode>,
        format: &extant_dir::Format,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), extant_dir::edit::EditFault> {
        let mut values = self.live.edit(node, self.edit.transaction());
        let mut window = Prealloc::new();
        let blocks = DirBlocksEdit {
            change: *self,
            node,
            values: RefCell::new(&mut values),
            window: RefCell::new(&mut window),
            index: &format.index,
        };
        blocks.append(false, fill).map(drop)
    }

    /// Reads a directory that is not being changed: no handle is needed.
    ///
    /// # Errors
    /// What the editor says, or why there is none; `Absent` for a directory that was removed.
    pub fn look<R>(
        live: &InodeCache,
        alloc: &Alloc,
        node: &Arc<LiveInode>,
        format: &extant_dir::Format,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
    ) -> Result<R, extant_dir::edit::EditFault> {
        let change = Change { live, alloc, edit: &NoChanges, awaited: None, is_removal: false };
        let mut values = node.values();
        // Its blocks belong to another owner by now.
        if values.fields.links == 0 {
            return Err(extant_dir::edit::EditFault::Absent);
        }
        change.in_dir(node, &mut values, format, with)
    }

    /// Blocks that one step of [`cut`](Self::cut) may change.
    #[must_use]
    pub fn cut_credits(shared: &Shared) -> u32 {
        // A bitmap for each extent and, as large extents reach over groups, some more; and the tree.
        extant_mapping::credits_remove(5, EXTENTS_PER_STEP, shared.geometry.block_size)
            + 2 * EXTENTS_PER_STEP
            + 8
    }

    /// Frees blocks that `map` has no more, in the order in which they were unmapped. What can be freed is,
    /// also after a fault.
    fn free(&self, space: &Space<'_>, map: &FileMap, gone: &[Gone], is_meta: bool) -> Result<(), ReadFault> {
        let geometry = &self.shared().geometry;
        let mut freed = Ok(());
        let told = clusters::unused(geometry, &self.shared().buffers, map, gone, &mut |blocks| {
            let len = blocks.end - blocks.start;
            // Not what stays the inode's with its cluster: that may be logged again by the same transaction,
            // which would drop it. All of the cluster then, what was unmapped before too.
            if is_meta {
                blocks.clone().for_each(|block| self.edit.revoke(Pblk(block)));
            }
            space.count(-(len.div_ceil(geometry.cluster_ratio()) as i64));
            let done = self.alloc.free(self.edit, Pblk(blocks.start), len, false);
            freed = std::mem::replace(&mut freed, Ok(())).and(done);
        });
        told.and(freed)
    }

    /// Frees the cluster that a block of its own (an attribute block, a node of a map) is in.
    ///
    /// # Errors
    /// See [`Alloc::free`].
    pub fn free_cluster(&self, block: Pblk) -> Result<(), ReadFault> {
        let blocks = clusters::whole(&self.shared().geometry, block, 1);
        self.alloc.free(self.edit, Pblk(blocks.start), blocks.end - blocks.start, false)
    }

    /// One block for data of `values` that is kept as metadata (a symbolic link's target, an attribute's
    /// value, a quota file), mapped at `lblk`.
    ///
    /// # Errors
    /// No space; or a block cannot be read.
    pub fn append_block(&self, values: &mut Values, lblk: Lblk, goal: Pblk) -> Result<Pblk, EditFault> {
        let space = Space::new(*self, values);
        // Within a cluster the blocks of the file follow each other.
        let is_first = lblk.0.is_multiple_of(self.shared().geometry.cluster_ratio() as u32);
        let before = if is_first {
            Holds::Hole
        } else {
            values.map().find(&self.shared().buffers, Lblk(lblk.0 - 1), 1)?.holds
        };
        let (start, is_taken) = match before {
            Holds::Written(before) => (Pblk(before.0 + 1), false),
            Holds::Hole | Holds::Unwritten(_) => (space.take(goal, Flags::METADATA)?, true),
        };
        let editor =
            extant_mapping::Editor { buffers: &self.shared().buffers, edit: self.edit, space: &space };
        let mapped = Mapped { lblk, len: 1, holds: Holds::Written(start) };
        let mut map = values.map();
        let inserted = map.insert(&editor, mapped);
        values.set_map(&map);
        if let Err(fault) = inserted {
            if is_taken {
                space.give(start);
            }
            return Err(fault);
        }
        space.settle(values);
        Ok(start)
    }
}

/// The fault of a change of this inode's map.
#[must_use]
pub fn edit_fault(ino: extant_base::Ino, fault: EditFault) -> Fault {
    match fault {
        EditFault::Read(fault) => Fault::of(ino)(fault),
        EditFault::NoSpace | EditFault::Quota => Fault::NoSpace,
        EditFault::TooLarge => Fault::TooLarge,
        EditFault::Occupied(lblk) => {
            let fact = Malformed::new("block map", "the block past the end must be a hole", lblk.0);
            Fault::Corrupt(extant_base::Corrupt::at(CorruptAt::ino(ino).at_lblk(lblk), fact))
        }
    }
}

/// Blocks for one inode, and how many clusters it got and gave.
struct Space<'a> {
    change: Change<'a>,
    goal: Pblk,
    clusters: Cell<i64>,
    /// Clusters that i_blocks has room for: more are not taken.
    room: i64,
    /// Why a block of the map could not be given back, the first time.
    unfreed: RefCell<Option<ReadFault>>,
    /// What blocks of the map are, and may use.
    tree_flags: Flags,
}

impl<'a> Space<'a> {
    fn new(change: Change<'a>, values: &Values) -> Self {
        let geometry = &change.shared().geometry;
        let group = geometry.inode_place(values.ino()).map(|(group, _)| group);
        let goal = group.map_or(Pblk(0), |group| geometry.group_start(group));
        let room = values.room(change.shared()) / geometry.cluster_ratio();
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        let (clusters, unfreed) = (Cell::new(0), RefCell::new(None));
        Self { change, goal, clusters, room, unfreed, tree_flags: Flags::METADATA }
    }

    fn count(&self, clusters: i64) {
        self.clusters.set(self.clusters.get() + clusters);
    }

    /// May one cluster more be taken?
    fn check_room(&self) -> Result<(), EditFault> {
        if self.clusters.get() < self.room { Ok(()) } else { Err(EditFault::TooLarge) }
    }

    fn take(&self, goal: Pblk, flags: Flags) -> Result<Pblk, EditFault> {
        let goal = if goal.0 == 0 { self.goal } else { goal };
        let request = Request { goal, len: 1, min_len: 1, flags, stream: None };
        self.check_room()?;
        match self.change.alloc.allocate(self.change.edit, &request) {
            Ok((start, _)) => {
                self.count(1);
                Ok(start)
            }
            Err(extant_alloc::Fault::NoSpace(_)) => Err(EditFault::NoSpace),
            Err(extant_alloc::Fault::Read(fault)) => Err(EditFault::Read(fault)),
        }
    }

    /// Takes back what [`take`](Self::take) gave, or what the map had.
    fn give(&self, start: Pblk) {
        self.count(-1);
        if let Err(fault) = self.change.free_cluster(start) {
            self.unfreed.borrow_mut().get_or_insert(fault);
        }
    }

    /// Was all that was given back freed? A block whose bitmap cannot be read would stay in use without an
    /// owner.
    fn freed(&self) -> Result<(), ReadFault> {
        self.unfreed.take().map_or(Ok(()), Err)
    }

    /// Adds the clusters to i_blocks.
    fn settle(&self, values: &mut Values) {
        let shared = self.change.shared();
        values.add_blocks(shared, self.clusters.replace(0) * shared.geometry.cluster_ratio() as i64);
    }
}

impl TreeSpace for Space<'_> {
    fn allocate(&self, near: Pblk) -> Result<Pblk, EditFault> {
        self.take(near, self.tree_flags)
    }

    fn free(&self, block: Pblk) {
        self.change.edit.revoke(block);
        self.give(block);
    }
}

/// A directory's blocks, to be changed.
struct DirBlocksEdit<'a> {
    change: Change<'a>,
    node: &'a Arc<LiveInode>,
    values: RefCell<&'a mut Values>,
    window: RefCell<&'a mut Prealloc>,
    index: &'a extant_ondisk::htree::DxFormat,
}

impl DirBlocksEdit<'_> {
    fn place(&self, lblk: Lblk) -> Result<Mapped, ReadFault> {
        let shared = self.change.shared();
        self.values.borrow().map().find(&shared.buffers, lblk, 1)
    }

    /// Finds out where a block is, if that is not known. `false`: it is a hole.
    #[inline]
    fn find(&self, lblk: Lblk, at: &mut Location) -> Result<bool, ReadFault> {
        if at.block.0 == 0 {
            let Some(block) = self.block(lblk)? else { return Ok(false) };
            *at = Location::of(block);
        }
        Ok(true)
    }

    /// Where the map has a block; `None` for a hole.
    fn block(&self, lblk: Lblk) -> Result<Option<Pblk>, ReadFault> {
        match self.place(lblk)?.holds {
            Holds::Written(block) => Ok(Some(block)),
            Holds::Hole | Holds::Unwritten(_) => Ok(None),
        }
    }

    fn owner(&self, kind: Kind) -> Owner {
        Owner { kind, ino: self.node.ino().0 }
    }

    fn get(
        &self,
        lblk: Lblk,
        at: &mut Location,
        kind: Kind,
        verify: impl FnOnce(&[u8], u32) -> Result<(), Malformed>,
    ) -> Result<Option<Buffer>, ReadFault> {
        if !self.find(lblk, at)? {
            return Ok(None);
        }
        let seed = self.values.borrow().seed();
        let verify = |bytes: &[u8]| seed.map_or(Ok(()), |seed| verify(bytes, seed));
        let got = self.change.shared().buffers.get_at(at.block, &mut at.hint, self.owner(kind), verify);
        got.map(Some).map_err(|fault| fault.of_ino(self.node.ino()).at_lblk(lblk))
    }

    fn change(
        &self,
        lblk: Lblk,
        at: &mut Location,
        kind: Kind,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        if !self.find(lblk, at)? {
            return Err(self.changed_hole(lblk));
        }
        let Location { block, hint, bytes_at } = at;
        let seal = Seal { owner: self.owner(kind), seed: self.values.borrow().seed() };
        let mut change = |bytes: &mut [u8]| {
            *bytes_at = bytes.as_ptr().addr();
            change(bytes);
        };
        if self.change.edit.change_trusted_at(*block, hint, seal, &mut change) {
            return Ok(());
        }
        // An index block is read before it is changed; a leaf may be changed by its notes alone.
        if kind == Kind::DirLeaf {
            let verify = |bytes: &[u8]| seal.seed.map_or(Ok(()), |seed| dirent::verify_tail(bytes, seed));
            let verified = self.change.shared().buffers.verify_at(*block, hint, seal.owner, verify);
            verified.map_err(|fault| fault.of_ino(self.node.ino()).at_lblk(lblk))?;
        }
        self.change.edit.change_at(*block, hint, seal, &mut change)
    }

    fn changed_hole(&self, lblk: Lblk) -> ReadFault {
        let fact = Malformed::new("directory", "a changed block must not be a hole", lblk.0);
        ReadFault::corrupt(CorruptAt::ino(self.node.ino()).at_lblk(lblk), fact)
    }

    /// A block behind the last one: the next of the last one's cluster, or of the window, or a new one.
    fn next_block(&self, lblk: Lblk, space: &Space<'_>) -> Result<Pblk, EditFault> {
        let ratio = self.change.shared().geometry.cluster_ratio() as u32;
        let before = match lblk.0.checked_sub(1) {
            Some(before) => self.block(Lblk(before))?,
            None => None,
        };
        if let Some(before) = before.filter(|_| !lblk.0.is_multiple_of(ratio)) {
            return Ok(Pblk(before.0 + 1));
        }
        let flags = match self.change.is_removal {
            true => Flags::METADATA | Flags::USE_RESERVED,
            false => Flags::METADATA,
        };
        let Some(before) = before else { return space.take(Pblk(0), flags) };
        space.check_room()?;
        // A directory that has a second block will have more.
        let request = Request { goal: Pblk(before.0 + 1), len: 1, min_len: 1, flags, stream: None };
        match self.change.alloc.allocate_in(self.change.edit, &mut self.window.borrow_mut(), &request) {
            Ok((start, _)) => {
                space.count(1);
                Ok(start)
            }
            Err(extant_alloc::Fault::NoSpace(_)) => Err(EditFault::NoSpace),
            Err(extant_alloc::Fault::Read(fault)) => Err(EditFault::Read(fault)),
        }
    }
}

impl DirBlocks for DirBlocksEdit<'_> {
    fn len(&self) -> u32 {
        let size = self.values.borrow().fields.size;
        u32::try_from(size >> self.change.shared().geometry.block_size.log2()).unwrap_or(u32::MAX)
    }

    fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.leaf_at(lblk, &mut Location::default())
    }

    fn look_leaf(&self, lblk: Lblk, look: &mut dyn FnMut(&[u8])) -> Result<bool, ReadFault> {
        self.look_leaf_at(lblk, &mut Location::default(), look)
    }

    fn index(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.get(lblk, &mut Location::default(), Kind::DirIndex, |bytes, seed| self.index.verify(bytes, seed))
    }

    fn hole_len(&self, lblk: Lblk) -> u32 {
        let shared = self.change.shared();
        let left = self.len().saturating_sub(lblk.0);
        match self.values.borrow().map().find(&shared.buffers, lblk, left) {
            Ok(Mapped { holds: Holds::Hole | Holds::Unwritten(_), len, .. }) => len.max(1),
            _ => 1,
        }
    }

    fn prefetch(&self, first: Lblk, len: u32) {
        let shared = self.change.shared();
        let found = self.values.borrow().map().find(&shared.buffers, first, len);
        if let Ok(Mapped { holds: Holds::Written(block), len, .. }) = found {
            shared.buffers.prefetch(block, len);
        }
    }
}

impl DirEdit for DirBlocksEdit<'_> {
    fn change_leaf(
        &self,
        lblk: Lblk,
        at: &mut Location,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        self.change(lblk, at, Kind::DirLeaf, change)
    }

    fn leaf_at(&self, lblk: Lblk, at: &mut Location) -> Result<Option<Buffer>, ReadFault> {
        self.get(lblk, at, Kind::DirLeaf, dirent::verify_tail)
    }

    fn look_leaf_at(
        &self,
        lblk: Lblk,
        at: &mut Location,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, ReadFault> {
        if !self.find(lblk, at)? {
            return Ok(false);
        }
        let seed = self.values.borrow().seed();
        let verify = |bytes: &[u8]| seed.map_or(Ok(()), |seed| dirent::verify_tail(bytes, seed));
        let owner = self.owner(Kind::DirLeaf);
        let looked = self.change.shared().buffers.look_at(at.block, &mut at.hint, owner, verify, look);
        looked.map_err(|fault| fault.of_ino(self.node.ino()).at_lblk(lblk))?;
        Ok(true)
    }

    fn patch_leaf(
        &self,
        lblk: Lblk,
        at: &mut Location,
        there: (usize, &[u8]),
        pieces: &[(usize, &[u8])],
    ) -> Result<bool, ReadFault> {
        let seal = Seal { owner: self.owner(Kind::DirLeaf), seed: self.values.borrow().seed() };
        let Some(seed) = seal.seed else { return Ok(false) };
        if !self.find(lblk, at)? {
            return Ok(false);
        }
        let len = self.change.shared().geometry.block_size.len() - dirent::TAIL_LEN;
        let patch = PendingChange { summed: Summed { seed, len }, there, pieces };
        Ok(self.change.edit.patch_at(at.block, &mut at.hint, seal, &patch))
    }

    fn change_index(&self, lblk: Lblk, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        self.change(lblk, &mut Location::default(), Kind::DirIndex, change)
    }

    fn refill_leaf(&self, lblk: Lblk, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        let block = self.block(lblk)?.ok_or_else(|| self.changed_hole(lblk))?;
        let seal = Seal { owner: self.owner(Kind::DirLeaf), seed: self.values.borrow().seed() };
        self.change.edit.fresh(block, seal, fill);
        Ok(())
    }

    fn prefetch_leaf(&self, at: &Location, what: Ahead) {
        let buffers = &self.change.shared().buffers;
        if let Ahead::Bytes(within) = what {
            extant_buffer::prefetch_block(at.bytes_at, buffers.block_size().len(), within);
        }
        buffers.prefetch_slot(at.block, at.hint);
    }

    fn append(
        &self,
        as_index: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Lblk, extant_dir::edit::EditFault> {
        let shared = self.change.shared();
        let lblk = Lblk(self.len());
        let space = Space::new(self.change, &self.values.borrow());
        let block = self.next_block(lblk, &space).map_err(dir_fault)?;
        let mut values = self.values.borrow_mut();
        let editor =
            extant_mapping::Editor { buffers: &shared.buffers, edit: self.change.edit, space: &space };
        let mapped = Mapped { lblk, len: 1, holds: Holds::Written(block) };
        let mut map = values.map();
        let inserted = map.insert(&editor, mapped);
        values.set_map(&map);
        if let Err(fault) = inserted {
            if lblk.0.is_multiple_of(shared.geometry.cluster_ratio() as u32) {
                space.give(block);
            }
            return Err(dir_fault(fault));
        }
        let kind = if as_index { Kind::DirIndex } else { Kind::DirLeaf };
        let seal = Seal { owner: self.owner(kind), seed: values.seed() };
        self.change.edit.fresh(block, seal, fill);
        values.fields.size += shared.geometry.block_size.bytes();
        space.settle(&mut values);
        Ok(lblk)
    }

    fn pop(&self) -> Result<(), extant_dir::edit::EditFault> {
        let shared = self.change.shared();
        let last = self.len().saturating_sub(1);
        let mut values = self.values.borrow_mut();
        let space = Space::new(self.change, &values);
        let editor =
            extant_mapping::Editor { buffers: &shared.buffers, edit: self.change.edit, space: &space };
        let mut gone: Vec<Gone> = Vec::new();
        let mut map = values.map();
        let removed = map
            .remove(&editor, u64::from(last)..1 << 32, &mut |lblk, start, len| gone.push((lblk, start, len)));
        values.set_map(&map);
        removed.map_err(dir_fault)?;
        self.change.free(&space, &map, &gone, true).and(space.freed())?;
        values.fields.size -= shared.geometry.block_size.bytes();
        space.settle(&mut values);
        Ok(())
    }

    fn set_indexed(&self, indexed: bool) {
        let fields = &mut self.values.borrow_mut().fields;
        fields.flags = if indexed { fields.flags | flags::INDEX } else { fields.flags & !flags::INDEX };
    }
}

fn dir_fault(fault: EditFault) -> extant_dir::edit::EditFault {
    match fault {
        EditFault::Read(fault) => extant_dir::edit::EditFault::Read(fault),
        EditFault::NoSpace | EditFault::Quota => extant_dir::edit::EditFault::NoSpace(NoSpace::Device),
        EditFault::TooLarge => extant_dir::edit::EditFault::NoSpace(NoSpace::Size { large_dir: true }),
        EditFault::Occupied(lblk) => {
            let fact = Malformed::new("directory", "the block past its end must be a hole", lblk.0);
            extant_dir::edit::EditFault::Read(ReadFault::corrupt(CorruptAt::default().at_lblk(lblk), fact))
        }
    }
}

/// The right to change nothing, for looking.
struct NoChanges;

impl Edit for NoChanges {
    fn transaction(&self) -> Tid {
        unreachable!("looking changes nothing")
    }

    fn change(&self, block: Pblk, _: Seal, _: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        unreachable!("looking does not change block {block}")
    }

    fn fresh(&self, block: Pblk, _: Seal, _: &mut dyn FnMut(&mut [u8])) {
        unreachable!("looking does not make block {block}")
    }

    fn revoke(&self, block: Pblk) {
        unreachable!("looking does not revoke block {block}")
    }
}
