//! Changes the contents of inodes: adds blocks to directories, and truncates files.
//!
//! ```text
//!   Change { live, alloc, handle } -- with_dir(node) ---> extant_dir::edit::Editor over this inode's blocks
//!                                  -- cut(node, from) --> frees blocks, a bounded number per call
//!                                  -- shift_left, shift_right -> moves blocks in the file, likewise
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
use extant_buffer::{Buffer, ChecksumSpan, Edit, Kind, Owner, PendingChange, ReadFault, Seal};
use extant_dir::DirBlocks;
use extant_dir::edit::{DirEdit, LeafPrefetch, Location, NoSpace};
use extant_mapping::{EditFault, FileMap, MapState, Mapped, TreeSpace};
use extant_ondisk::inode::flags;
use extant_ondisk::{Features, dirent};

use crate::clusters::{self, UnmappedRun};
use crate::dir_state::DirState;
use crate::live::{Editing, InodeCache};
use crate::node::{LiveInode, Values};
use crate::{Fault, Shared};

pub use blocks::NewBlockOptions;

/// Maximum number of extents that one step of a cut removes. The transaction needs space for the bitmaps of
/// their groups.
const EXTENTS_PER_STEP: u32 = 8;

/// Maximum number of blocks that one step removes of each extent if each block needs a revoke record.
const REVOKED_PER_EXTENT: u32 = 512;

/// An open handle for changing inodes.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// The cache of inodes.
    pub live: &'a InodeCache,
    /// The allocator of blocks.
    pub alloc: &'a Alloc,
    /// The handle.
    pub edit: &'a dyn Edit,
    /// Receives the directory whose names changed, and the transaction, if the directory requires durability
    /// before the call returns (`chattr +D`, `+S`): the operation then waits for its commit. `None`: the
    /// operation does not wait.
    pub awaited: Option<&'a Cell<Option<(extant_base::Ino, extant_base::Tid)>>>,
    /// The operation removes something, so blocks of directories may come from the reserve for metadata.
    pub is_removal: bool,
}

impl<'a> Change<'a> {
    fn shared(&self) -> &'a Arc<Shared> {
        self.live.shared()
    }

    /// Calls `with` with an editor of a directory that is stored in blocks. The caller holds the directory's
    /// operation lock exclusively.
    ///
    /// # Errors
    /// The error of `with`, or the reason why the editor cannot be created.
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

    /// Same as [`with_dir`](Self::with_dir), and then changes the directory's values with `then`, unless
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

    /// Reports a change of this directory's names to the operation, if it must wait for the commit.
    fn await_names(&self, node: &LiveInode, dir: &Values) {
        if let Some(awaited) = self.awaited.filter(|_| dir.has_flag(flags::DIRSYNC | flags::SYNC)) {
            // The holder of the handle changed the directory in this transaction.
            awaited.set(Some((node.ino(), dir.changed_in)));
        }
    }

    /// Returns the values for a caller that changes them only together with blocks. The access alone does not
    /// count as a change of the handle.
    fn hand_over<'n>(&self, node: &'n Arc<LiveInode>) -> Editing<'n> {
        let before = self.edit.changes();
        let values = self.live.edit(node, self.edit.transaction());
        self.edit.mark_complete(before);
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

    /// Unmaps and frees the blocks of the inode from logical block `from` on: a bounded number per call, from
    /// the end backwards. Returns `true` if all are freed. Otherwise call it again with another handle; the
    /// inode must be an orphan until then. Needs [`cut_credits`](Self::cut_credits).
    ///
    /// # Errors
    /// A block of the map cannot be read: the changes made so far are complete, unless part of the tree was
    /// changed. Or a block is already free, or its bitmap cannot be read: it is unmapped anyway, and at worst
    /// leaked.
    pub fn cut(&self, node: &Arc<LiveInode>, from: u64) -> Result<bool, Fault> {
        self.punch(node, from..1 << 32).map(|left| left.is_none())
    }

    /// Adds the first block of a new directory.
    ///
    /// # Errors
    /// No space, or a block cannot be read.
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

    /// Adds the first block of a directory without blocks. `fill` gets a block of zeros, and writes ".", ".."
    /// and any other entries into it.
    ///
    /// # Errors
    /// No space, or a block cannot be read. Nothing was changed.
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

    /// Reads a directory with `with`, which must not change it. Needs no handle.
    ///
    /// # Errors
    /// The error of `with`, or the reason why the editor cannot be created; `Absent` for a directory that was
    /// removed.
    pub fn look<R>(
        live: &InodeCache,
        alloc: &Alloc,
        node: &Arc<LiveInode>,
        format: &extant_dir::Format,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
    ) -> Result<R, extant_dir::edit::EditFault> {
        let change = Change { live, alloc, edit: &NoChanges, awaited: None, is_removal: false };
        let mut values = node.values();
        // The blocks of a removed directory may already belong to another owner.
        if values.fields.links == 0 {
            return Err(extant_dir::edit::EditFault::Absent);
        }
        change.in_dir(node, &mut values, format, with)
    }

    /// Number of blocks that one step of [`cut`](Self::cut) may change.
    #[must_use]
    pub fn cut_credits(shared: &Shared) -> u32 {
        // The tree, a bitmap for each extent, and some more because large extents span groups.
        extant_mapping::credits_remove(5, EXTENTS_PER_STEP, shared.geometry.block_size)
            + 2 * EXTENTS_PER_STEP
            + 8
    }

    /// Frees the blocks of clusters that `map` no longer uses, in the order in which they were unmapped.
    /// After a fault it continues with the remaining blocks.
    fn free(
        &self,
        space: &Space<'_>,
        map: &FileMap,
        unmapped: &[UnmappedRun],
        is_meta: bool,
    ) -> Result<(), ReadFault> {
        let geometry = &self.shared().geometry;
        let mut freed = Ok(());
        let unused = clusters::unused(geometry, &self.shared().buffers, map, unmapped, &mut |blocks| {
            let len = blocks.end - blocks.start;
            // Revoke only blocks of clusters that become free. A block that stays with the inode because of
            // its cluster may be logged again by the same transaction, and a revoke record would drop that
            // copy. When the cluster becomes free, all its blocks are revoked, including those unmapped
            // earlier.
            if is_meta {
                blocks.clone().for_each(|block| self.edit.revoke(Pblk(block)));
            }
            space.count(-(len.div_ceil(geometry.cluster_ratio()) as i64));
            let done = self.alloc.free(self.edit, Pblk(blocks.start), len, false);
            freed = std::mem::replace(&mut freed, Ok(())).and(done);
        });
        unused.and(freed)
    }

    /// Frees the cluster of a block that is not file data (an attribute block, a node of a map).
    ///
    /// # Errors
    /// See [`Alloc::free`].
    pub fn free_cluster(&self, block: Pblk) -> Result<(), ReadFault> {
        let blocks = clusters::whole(&self.shared().geometry, block, 1);
        self.alloc.free(self.edit, Pblk(blocks.start), blocks.end - blocks.start, false)
    }

    /// Allocates one block for data of `values` that is handled as metadata (a symbolic link's target, an
    /// attribute's value, a quota file), and maps it at `lblk`.
    ///
    /// # Errors
    /// No space, or a block cannot be read.
    pub fn append_block(&self, values: &mut Values, lblk: Lblk, goal: Pblk) -> Result<Pblk, EditFault> {
        let space = Space::new(*self, values);
        // Within a cluster the blocks of the file are consecutive.
        let is_first = lblk.0.is_multiple_of(self.shared().geometry.cluster_ratio() as u32);
        let before = if is_first {
            MapState::Hole
        } else {
            values.map().find(&self.shared().buffers, Lblk(lblk.0 - 1), 1)?.state
        };
        let (start, is_taken) = match before {
            MapState::Written(before) => (Pblk(before.0 + 1), false),
            MapState::Hole | MapState::Unwritten(_) => (space.take(goal, Flags::METADATA)?, true),
        };
        let editor =
            extant_mapping::Editor { buffers: &self.shared().buffers, edit: self.edit, space: &space };
        let mapped = Mapped { lblk, len: 1, state: MapState::Written(start) };
        let mut map = values.map();
        let inserted = map.insert(&editor, mapped);
        values.set_map(&map);
        if let Err(fault) = inserted {
            if is_taken {
                space.release(start);
            }
            return Err(fault);
        }
        space.update_i_blocks(values);
        Ok(start)
    }
}

/// Converts an error of a change of this inode's map.
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

/// Allocates blocks for one inode, and counts the clusters allocated and freed.
struct Space<'a> {
    change: Change<'a>,
    goal: Pblk,
    clusters: Cell<i64>,
    /// Maximum number of clusters that may be allocated, because of the limit of i_blocks.
    room: i64,
    /// The first error of freeing a block of the map.
    unfreed: RefCell<Option<ReadFault>>,
    /// Allocation flags for blocks of the map.
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

    /// Returns an error if i_blocks cannot count one more cluster.
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

    /// Frees a block that [`take`](Self::take) allocated, or a block of the map.
    fn release(&self, start: Pblk) {
        self.count(-1);
        if let Err(fault) = self.change.free_cluster(start) {
            self.unfreed.borrow_mut().get_or_insert(fault);
        }
    }

    /// Returns the first error of freeing. A block whose bitmap cannot be read would stay in use without an
    /// owner.
    fn freed(&self) -> Result<(), ReadFault> {
        self.unfreed.take().map_or(Ok(()), Err)
    }

    /// Adds the counted clusters to i_blocks.
    fn update_i_blocks(&self, values: &mut Values) {
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
        self.release(block);
    }
}

/// The blocks of a directory, for reading and changing.
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

    /// Looks up the address of a block unless it is known. Returns `false` for a hole.
    #[inline]
    fn find(&self, lblk: Lblk, at: &mut Location) -> Result<bool, ReadFault> {
        if at.block.0 == 0 {
            let Some(block) = self.block(lblk)? else { return Ok(false) };
            *at = Location::of(block);
        }
        Ok(true)
    }

    /// The address of a block in the map; `None` for a hole.
    fn block(&self, lblk: Lblk) -> Result<Option<Pblk>, ReadFault> {
        match self.place(lblk)?.state {
            MapState::Written(block) => Ok(Some(block)),
            MapState::Hole | MapState::Unwritten(_) => Ok(None),
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

    /// Changes a block whose address is known, if it is in memory and verified. `false` if it is not; then
    /// nothing was changed.
    fn change_in_memory(&self, at: &mut Location, kind: Kind, change: &mut dyn FnMut(&mut [u8])) -> bool {
        let Location { block, hint, bytes_at } = at;
        self.change.edit.change_trusted_at(*block, hint, self.seal(kind), &mut |bytes| {
            *bytes_at = bytes.as_ptr().addr();
            change(bytes);
        })
    }

    fn seal(&self, kind: Kind) -> Seal {
        Seal { owner: self.owner(kind), seed: self.values.borrow().seed() }
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
        if self.change_in_memory(at, kind, change) {
            return Ok(());
        }
        let Location { block, hint, bytes_at } = at;
        let seal = self.seal(kind);
        // An index block was read, and so verified, before it is changed. A leaf may be changed without a
        // read, by cached notes alone, so verify it here.
        if kind == Kind::DirLeaf {
            let verify = |bytes: &[u8]| seal.seed.map_or(Ok(()), |seed| dirent::verify_tail(bytes, seed));
            let verified = self.change.shared().buffers.verify_at(*block, hint, seal.owner, verify);
            verified.map_err(|fault| fault.of_ino(self.node.ino()).at_lblk(lblk))?;
        }
        self.change.edit.change_at(*block, hint, seal, &mut |bytes| {
            *bytes_at = bytes.as_ptr().addr();
            change(bytes);
        })
    }

    fn changed_hole(&self, lblk: Lblk) -> ReadFault {
        let fact = Malformed::new("directory", "a changed block must not be a hole", lblk.0);
        ReadFault::corrupt(CorruptAt::ino(self.node.ino()).at_lblk(lblk), fact)
    }

    /// The block for `lblk`, which follows the last one: the next block of the same cluster or of the window,
    /// or a new one.
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
        // A directory with two blocks is likely to grow.
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
            Ok(Mapped { state: MapState::Hole | MapState::Unwritten(_), len, .. }) => len.max(1),
            _ => 1,
        }
    }

    fn prefetch(&self, first: Lblk, len: u32) {
        let shared = self.change.shared();
        let found = self.values.borrow().map().find(&shared.buffers, first, len);
        if let Ok(Mapped { state: MapState::Written(block), len, .. }) = found {
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

    fn change_leaf_in_memory(
        &self,
        lblk: Lblk,
        at: &mut Location,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        matches!(self.find(lblk, at), Ok(true)) && self.change_in_memory(at, Kind::DirLeaf, change)
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
        expected: (usize, &[u8]),
        pieces: &[(usize, &[u8])],
    ) -> Result<bool, ReadFault> {
        let seal = Seal { owner: self.owner(Kind::DirLeaf), seed: self.values.borrow().seed() };
        let Some(seed) = seal.seed else { return Ok(false) };
        if !self.find(lblk, at)? {
            return Ok(false);
        }
        let len = self.change.shared().geometry.block_size.len() - dirent::TAIL_LEN;
        let patch = PendingChange { span: ChecksumSpan { seed, len }, expected, pieces };
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

    fn prefetch_leaf(&self, at: &Location, what: LeafPrefetch) {
        let buffers = &self.change.shared().buffers;
        if let LeafPrefetch::Bytes(within) = what {
            extant_buffer::prefetch_block(at.bytes_at, buffers.block_size().len(), within);
        }
        buffers.prefetch_slot(at.block, at.hint);
    }

    fn mark_packed(&self) {
        self.change.edit.mark_undescribed();
    }

    fn append(
        &self,
        as_index: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Lblk, extant_dir::edit::EditFault> {
        // After a replay of fast commits by the kernel, a directory that grew has a wrong i_blocks.
        self.mark_packed();
        let shared = self.change.shared();
        let lblk = Lblk(self.len());
        let space = Space::new(self.change, &self.values.borrow());
        let block = self.next_block(lblk, &space).map_err(dir_fault)?;
        let mut values = self.values.borrow_mut();
        let editor =
            extant_mapping::Editor { buffers: &shared.buffers, edit: self.change.edit, space: &space };
        let mapped = Mapped { lblk, len: 1, state: MapState::Written(block) };
        let mut map = values.map();
        let inserted = map.insert(&editor, mapped);
        values.set_map(&map);
        if let Err(fault) = inserted {
            if lblk.0.is_multiple_of(shared.geometry.cluster_ratio() as u32) {
                space.release(block);
            }
            return Err(dir_fault(fault));
        }
        let kind = if as_index { Kind::DirIndex } else { Kind::DirLeaf };
        let seal = Seal { owner: self.owner(kind), seed: values.seed() };
        self.change.edit.fresh(block, seal, fill);
        values.fields.size += shared.geometry.block_size.bytes();
        space.update_i_blocks(&mut values);
        Ok(lblk)
    }

    fn pop(&self) -> Result<(), extant_dir::edit::EditFault> {
        let shared = self.change.shared();
        let last = self.len().saturating_sub(1);
        let mut values = self.values.borrow_mut();
        let space = Space::new(self.change, &values);
        let editor =
            extant_mapping::Editor { buffers: &shared.buffers, edit: self.change.edit, space: &space };
        let mut unmapped: Vec<UnmappedRun> = Vec::new();
        let mut map = values.map();
        let removed = map.remove(&editor, u64::from(last)..1 << 32, &mut |lblk, start, len| {
            unmapped.push((lblk, start, len))
        });
        values.set_map(&map);
        removed.map_err(dir_fault)?;
        self.change.free(&space, &map, &unmapped, true).and(space.freed())?;
        values.fields.size -= shared.geometry.block_size.bytes();
        space.update_i_blocks(&mut values);
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

/// A handle for reading, which refuses all changes.
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
