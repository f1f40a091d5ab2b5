//! Shrinking: what is after the new end moves to free blocks before it; then the end moves.
//!
//! ```text
//! bitmaps and tables of groups that stay move, if they are after the new end (see `metadata`)
//! inodes of groups that go get numbers in groups that stay (see `inodes`)
//! for each inode with blocks after the new end:
//!     copy blocks | flush | switch: the map's block or the inode, bitmaps, descriptors
//! last switch: superblock, the last group's bitmap, metadata of groups that go, resize inode
//! ```
//!
//! A switch contains as many moves as fit the journal. Each ends with a sound file system of the old size, so
//! the state of a shrink is in the file system itself, and another call continues.
//!
//! With bigalloc, bits of bitmaps are clusters: blocks are allocated and freed in whole clusters, and a block
//! keeps its offset in its cluster (see `clusters`).
//!
//! Owns: which blocks move, and where to. Does **not** own: the order of writes (see
//! [`switch`](crate::switch)).
//!
//! Invariants
//! 1. INV-RZ3: blocks before the new end that become free are free for allocation only after the switch. So a
//!    copy never overwrites a block that the file system on the device still uses.
//!
//! Source: kernel Documentation/filesystems/ext4/ifork.rst, attributes.rst, orphan.rst.

mod clusters;
mod inodes;
mod maps;
mod metadata;
mod order;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use extant_base::le::{put_u16, put_u32, u16_at, u32_at};
use extant_base::{Group, Ino, Pblk};
use extant_ondisk::bitmap::GroupBitmap;
use extant_ondisk::filetype::FileType;
use extant_ondisk::group_desc::INODE_UNINIT;
use extant_ondisk::inode::{self, flags};
use extant_ondisk::superblock::Superblock;
use extant_ondisk::{Features, Geometry, orphan_file, xattr};

use crate::copier::Copier;
use crate::fault::ResizeFault;
use crate::fs::Fs;
use crate::size::keeps_inodes;
use crate::switch::{Blocks, Change, Switcher};
use clusters::Chain;
use maps::Node;

const MODE_AT: usize = 0;
const SIZE_AT: usize = 4;
const BLOCKS_AT: usize = 28;
const FLAGS_AT: usize = 32;
const MAP: Range<usize> = 40..100;
const GENERATION_AT: usize = 100;
const ACL_AT: usize = 104;
const BLOCKS_HIGH_AT: usize = 116;
const ACL_HIGH_AT: usize = 118;

/// An inode while its blocks move.
struct Owner {
    ino: Ino,
    block: u64,
    at: Range<usize>,
    seed: u32,
    is_orphan_file: bool,
    orphan_seed: u32,
}

/// Moves blocks to before a limit.
pub(crate) struct Mover<'f> {
    fs: &'f mut Fs,
    switcher: Switcher,
    copier: Copier,
    /// Fails if the shrink must stop.
    check: &'f dyn Fn() -> Result<(), ResizeFault>,
    /// The new number of blocks.
    limit: u64,
    groups: u32,
    pending: Blocks,
    table: Vec<u8>,
    bitmaps: BTreeMap<u32, GroupBitmap>,
    dirty: BTreeSet<u32>,
    /// Inode bitmaps that have changed.
    inode_bitmaps: BTreeMap<u32, GroupBitmap>,
    /// Groups whose inode bitmap changes with the next switch.
    dirty_inodes: BTreeSet<u32>,
    /// Blocks, in whole clusters, before the limit that become free with the next switch.
    freed: Vec<Range<u64>>,
    /// For each group, no free run is longer.
    longest: Vec<u32>,
    room: usize,
    /// Blocks of the map of the inode that is being moved.
    seen: HashSet<u64>,
    /// The last cluster that moved, if the next extent of the file may have a part of it. No switch may
    /// follow until all of the cluster has moved.
    chain: Option<Chain>,
    /// The chains of the inode that end after the limit, once they are known: first blocks and ends.
    chains: Option<BTreeMap<u64, u64>>,
    /// Blocks of the inode from this one on move, too, although they are before the limit: they share
    /// clusters with blocks after it.
    from: u64,
    /// The journal moves as one.
    is_whole: bool,
    /// A changed node of an extent tree gets a new place: without a journal, a cut could tear it.
    moves_nodes: bool,
    /// The superblock from the next switch on, but for the number of free blocks.
    next_sb: Superblock,
    /// Blocks moved.
    moved: u64,
    /// Of these, the blocks whose switch is made.
    durable: u64,
    /// Inodes that have another number now.
    moved_inodes: u64,
    /// Of these, the inodes whose switch is made.
    durable_inodes: u64,
    /// Switches made.
    pub(crate) switches: u32,
}

/// What has moved: the moves whose switch is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moved {
    /// Blocks.
    pub(crate) blocks: u64,
    /// Inodes.
    pub(crate) inodes: u64,
    /// Switches made.
    pub(crate) switches: u32,
}

impl Fs {
    /// Moves everything in use from `geometry`'s end on to free blocks before it.
    pub(crate) fn evacuate(
        &mut self,
        switcher: Switcher,
        geometry: &Geometry,
        reopen: &dyn Fn(&Fs) -> Result<Switcher, ResizeFault>,
        check: &dyn Fn() -> Result<(), ResizeFault>,
        progress: &mut dyn FnMut(u64),
    ) -> (Moved, Result<Switcher, ResizeFault>) {
        let mut mover = match Mover::new(self, switcher, geometry, check) {
            Ok(mover) => mover,
            Err(fault) => return (Moved::default(), Err(fault)),
        };
        let mut done = mover.run(reopen, progress);
        let is_out_of_space = matches!(
            done,
            Err(ResizeFault::TooFragmented { .. } | ResizeFault::NoSpace | ResizeFault::NoRun { .. })
        );
        if is_out_of_space && !mover.is_whole && mover.chain.is_none() {
            // What has moved is whole; another attempt continues from there.
            done = mover.commit().and(done);
        }
        let moved = Moved { blocks: mover.durable, inodes: mover.durable_inodes, switches: mover.switches };
        (moved, done.map(|()| mover.switcher))
    }
}

/// Inodes of a group.
struct StoredInodes {
    /// The number of the first inode of the group.
    first: u32,
    /// Bytes of an inode.
    size: usize,
    table: Vec<u8>,
    /// Places in the table of the inodes in use.
    indexes: Vec<u32>,
}

impl StoredInodes {
    fn iter(&self) -> impl Iterator<Item = (Ino, &[u8])> {
        let stored = |index: u32| &self.table[index as usize * self.size..][..self.size];
        self.indexes.iter().map(move |index| (Ino(self.first + index), stored(*index)))
    }
}

/// What the map field of an inode has.
struct Root {
    /// The root of an extent tree.
    is_tree: bool,
    is_block_map: bool,
}

impl Root {
    fn of(inode: &[u8]) -> Self {
        let has = |flag: u32| u32_at(inode, FLAGS_AT) & flag != 0;
        let kind = FileType::from_mode(u16_at(inode, MODE_AT));
        let is_fast_link = kind == FileType::Symlink && u32_at(inode, SIZE_AT) < 60;
        let maps = matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
            && !has(flags::INLINE_DATA);
        let is_tree = maps && has(flags::EXTENTS);
        Self { is_tree, is_block_map: maps && !is_tree && !is_fast_link }
    }
}

impl<'f> Mover<'f> {
    /// Moves to places within `geometry`.
    fn new(
        fs: &'f mut Fs,
        switcher: Switcher,
        geometry: &Geometry,
        check: &'f dyn Fn() -> Result<(), ResizeFault>,
    ) -> Result<Self, ResizeFault> {
        Ok(Self {
            limit: geometry.blocks,
            groups: geometry.groups,
            pending: Blocks::new(),
            table: fs.table.clone(),
            bitmaps: BTreeMap::new(),
            dirty: BTreeSet::new(),
            freed: Vec::new(),
            longest: vec![u32::MAX; geometry.groups as usize],
            room: switcher.room()?,
            seen: HashSet::new(),
            chain: None,
            chains: None,
            from: u64::MAX,
            is_whole: false,
            moves_nodes: !switcher.has_log(),
            inode_bitmaps: BTreeMap::new(),
            dirty_inodes: BTreeSet::new(),
            next_sb: fs.sb.clone(),
            moved: 0,
            durable: 0,
            moved_inodes: 0,
            durable_inodes: 0,
            switches: 0,
            switcher,
            copier: Copier::new(&fs.device),
            check,
            fs,
        })
    }

    fn run(
        &mut self,
        reopen: &dyn Fn(&Fs) -> Result<Switcher, ResizeFault>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ResizeFault> {
        if self.fs.sb.features.has_incompat(Features::MMP) && self.fs.sb.mmp_block >= self.limit {
            return Err(ResizeFault::CannotShrink("its multiple-mount protection block would have to move"));
        }
        if self.ratio() > 1 && self.has_block_map()? {
            return Err(ResizeFault::CannotShrink("it has bigalloc and a file with a block map"));
        }
        self.metadata()?;
        let numbers = self.new_numbers()?;
        if let Some(why) = keeps_inodes(self.fs, false).filter(|_| !numbers.is_empty()) {
            return Err(ResizeFault::CannotShrink(why));
        }
        self.renumber(&numbers)?;
        self.journal(reopen)?;
        let mut shared: BTreeMap<u64, Vec<Ino>> = BTreeMap::new();
        let journal = self.fs.sb.journal_inum;
        for group in 0..self.groups {
            // An inode changes only when its turn comes, so its stored bytes are those of now.
            for (ino, stored) in self.stored_inodes(group)?.iter() {
                if ino.0 == journal {
                    continue;
                }
                if let Some(block) = self.inode(ino, stored)? {
                    shared.entry(block).or_default().push(ino);
                }
            }
            progress(u64::from(group));
        }
        for (block, owners) in shared {
            self.attribute_block(block, &owners)?;
        }
        self.commit()?;
        Ok(())
    }

    /// The inodes of a group that are in use, as they are stored.
    fn stored_inodes(&self, group: u32) -> Result<StoredInodes, ResizeFault> {
        let (per_group, size) = (self.fs.geometry.inodes_per_group, self.fs.geometry.inode_size);
        let first = group * per_group + 1;
        let desc = self.fs.desc(group)?;
        if desc.has_flag(INODE_UNINIT) {
            return Ok(StoredInodes { first, size, table: Vec::new(), indexes: Vec::new() });
        }
        let used = per_group.saturating_sub(desc.itable_unused.min(per_group));
        let bitmap = self.fs.inode_bitmap(group, &desc)?;
        let mut table = vec![0; used as usize * size];
        self.fs.device.read_at(desc.inode_table << self.fs.geometry.block_size.log2(), &mut table)?;
        let indexes = (0..used).filter(|index| bitmap.test(*index)).collect();
        Ok(StoredInodes { first, size, table, indexes })
    }

    /// Whether an inode has a block map that names blocks. The inodes that describe the file system do not
    /// count.
    fn has_block_map(&self) -> Result<bool, ResizeFault> {
        for group in 0..self.fs.geometry.groups {
            let inodes = self.stored_inodes(group)?;
            if inodes.iter().any(|(ino, stored)| {
                let has_map = Root::of(stored).is_block_map && stored[MAP].iter().any(|byte| *byte != 0);
                has_map && ino != Ino::BAD_BLOCKS && ino != Ino::RESIZE
            }) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves the journal, while there are long runs of free blocks: its map changes as a whole.
    fn journal(&mut self, reopen: &dyn Fn(&Fs) -> Result<Switcher, ResizeFault>) -> Result<(), ResizeFault> {
        let journal = self.fs.sb.journal_inum;
        if journal != 0 {
            self.is_whole = true;
            let (block, at) = self.fs.inode_place(Ino(journal))?;
            let stored = self.fs.block(block)?[at].to_vec();
            self.inode(Ino(journal), &stored)?;
            let has_moved = !self.pending.is_empty();
            if has_moved && self.fs.sb.jnl_backup_type == 1 {
                let (block, at) = self.fs.inode_place(Ino(journal))?;
                let bytes = self.fs.block_in(&mut self.pending, block)?[at].to_vec();
                let words = &mut self.next_sb.jnl_blocks;
                for (word, value) in words.iter_mut().zip(bytes[MAP].chunks_exact(4)) {
                    *word = u32_at(value, 0);
                }
            }
            self.commit()?;
            self.is_whole = false;
            if has_moved {
                self.switcher = reopen(self.fs)?;
            }
        }
        Ok(())
    }

    /// Moves the blocks of an inode with these bytes. Returns its attribute block if that must move.
    fn inode(&mut self, ino: Ino, stored: &[u8]) -> Result<Option<u64>, ResizeFault> {
        self.seen.clear();
        (self.from, self.chains) = (u64::MAX, None);
        let (block, at) = self.fs.inode_place(ino)?;
        let bytes = match self.pending.get(&block) {
            Some(bytes) => bytes[at.clone()].to_vec(),
            None => stored.to_vec(),
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let generation = u32_at(&bytes, GENERATION_AT);
        let fs_seed = self.fs.sb.fs_seed();
        let seed = inode::inode_seed(fs_seed, ino, generation);
        if self.fs.sb.verifies_inodes() && !inode::verify(&bytes, seed) {
            return Err(ResizeFault::Damaged(format!("inode {} has a wrong checksum", ino.0)));
        }
        let has_orphan_file = self.fs.sb.features.has_compat(Features::ORPHAN_FILE);
        let owner = Owner {
            ino,
            block,
            at,
            seed,
            is_orphan_file: has_orphan_file && ino.0 == self.fs.sb.orphan_file_inum,
            orphan_seed: orphan_file::inode_seed(fs_seed, ino, generation),
        };
        let acl = u64::from(u32_at(&bytes, ACL_AT)) | u64::from(u16_at(&bytes, ACL_HIGH_AT)) << 32;
        if acl >= self.fs.geometry.blocks && !self.fs.sb.is_hurd() {
            let why = format!("the attribute block of inode {} does not exist", ino.0);
            return Err(ResizeFault::Damaged(why));
        }
        let acl = (acl >= self.limit && !self.fs.sb.is_hurd()).then_some(acl);
        let root = Root::of(&bytes);
        let map: [u8; 60] = bytes[MAP].try_into().unwrap_or([0; 60]);
        if ino == Ino::BAD_BLOCKS {
            return match map.iter().any(|byte| *byte != 0) {
                true => Err(ResizeFault::CannotShrink("it has a list of bad blocks")),
                false => Ok(None),
            };
        }
        if ino == Ino::RESIZE {
            self.resize_inode(&owner, &map)?;
        } else if root.is_tree {
            self.extent_node(&owner, &map, Node::Root)?;
            self.close_chain()?;
        } else if root.is_block_map {
            // With bigalloc there is none: `run` has refused it.
            self.block_map(&owner, &map)?;
        }
        Ok(acl)
    }

    /// Changes the bytes of an inode.
    fn change_inode(&mut self, owner: &Owner, with: impl FnOnce(&mut [u8])) -> Result<(), ResizeFault> {
        let bytes = &mut self.fs.block_in(&mut self.pending, owner.block)?[owner.at.clone()];
        with(bytes);
        if self.fs.sb.seals_inodes() {
            inode::seal(bytes, owner.seed);
        }
        Ok(())
    }

    /// Moves an attribute block with all its owners.
    fn attribute_block(&mut self, block: u64, owners: &[Ino]) -> Result<(), ResizeFault> {
        if self.pending.len() + owners.len() + 4 > self.room / 2 {
            self.commit()?;
        }
        if owners.len() + 8 > self.room / 2 {
            return Err(ResizeFault::CannotShrink(
                "more files share an attribute block than the journal holds",
            ));
        }
        let mut bytes = self.fs.block(block)?;
        let seed = self.fs.sb.fs_seed();
        let has_checksums = self.fs.sb.features.metadata_csum();
        if has_checksums {
            xattr::verify_block(&bytes, seed, Pblk(block))?;
        }
        let place = self.allocate_in(1, 0)?.start;
        if has_checksums {
            xattr::seal_block(&mut bytes, seed, Pblk(place));
        }
        self.fs.device.write_at(place << self.fs.geometry.block_size.log2(), &bytes)?;
        self.free(block..block + 1)?;
        self.moved += 1;
        for ino in owners {
            let (number, at) = self.fs.inode_place(*ino)?;
            let bytes = &mut self.fs.block_in(&mut self.pending, number)?[at];
            put_u32(bytes, ACL_AT, place as u32);
            put_u16(bytes, ACL_HIGH_AT, (place >> 32) as u16);
            if self.fs.sb.seals_inodes() {
                inode::seal(bytes, inode::inode_seed(seed, *ino, u32_at(bytes, GENERATION_AT)));
            }
        }
        self.commit_if_full()
    }

    /// A block as it will be after the pending switch.
    fn current(&self, block: u64) -> Result<Vec<u8>, ResizeFault> {
        if block >= self.fs.geometry.blocks || block == 0 {
            return Err(ResizeFault::Damaged(format!("a map has block {block}, which does not exist")));
        }
        match self.pending.get(&block) {
            Some(bytes) => Ok(bytes.clone()),
            None => Ok(self.fs.block(block)?),
        }
    }

    /// Moves a block of a map, with its pending change.
    fn move_tree_block(&mut self, block: u64) -> Result<u64, ResizeFault> {
        let bytes = self.current(block)?;
        let place = self.allocate_in(1, 0)?.start;
        self.pending.remove(&block);
        self.fs.device.write_at(place << self.fs.geometry.block_size.log2(), &bytes)?;
        self.free(block..block + 1)?;
        self.moved += 1;
        Ok(place)
    }

    fn move_one(&mut self, block: u64) -> Result<u64, ResizeFault> {
        self.move_tree_block(block)
    }

    /// Copies blocks, at the latest before the next switch. The orphan file's blocks have checksums that
    /// depend on their places.
    fn copy(&mut self, from: u64, to: u64, len: u64, owner: Option<&Owner>) -> Result<(), ResizeFault> {
        let log2 = self.fs.geometry.block_size.log2();
        if let Some(owner) = owner.filter(|owner| owner.is_orphan_file) {
            for n in 0..len {
                let mut bytes = self.fs.block(from + n)?;
                if self.fs.sb.features.metadata_csum() {
                    orphan_file::seal(owner.orphan_seed, Pblk(to + n), &mut bytes);
                }
                self.fs.device.write_at((to + n) << log2, &bytes)?;
            }
            return Ok(());
        }
        self.copier.copy(from << log2, to << log2, len << log2);
        Ok(())
    }

    fn bitmap(&mut self, group: u32) -> Result<&mut GroupBitmap, ResizeFault> {
        if !self.bitmaps.contains_key(&group) {
            let bitmap = self.fs.block_bitmap(group, &self.fs.desc(group)?)?;
            self.bitmaps.insert(group, bitmap);
        }
        self.bitmaps.get_mut(&group).ok_or_else(|| ResizeFault::Damaged(format!("group {group}")))
    }

    /// Allocates up to `len` blocks in a row before the limit, near the owner's inode: whole clusters, of
    /// which the last may have blocks after `len`.
    fn allocate(&mut self, len: u64, owner: &Owner) -> Result<Range<u64>, ResizeFault> {
        let group = self.fs.geometry.inode_place(owner.ino).map_or(0, |(group, _)| group.0);
        self.allocate_in(len, group)
    }

    fn allocate_in(&mut self, len: u64, goal: u32) -> Result<Range<u64>, ResizeFault> {
        let log2 = self.fs.geometry.cluster_log;
        let len = len.div_ceil(self.ratio());
        let mut best: Option<(u32, Range<u32>)> = None;
        for group in (goal..self.groups).chain(0..goal.min(self.groups)) {
            let known = self.longest[group as usize];
            let best_len = best.as_ref().map_or(0, |(_, run)| run.end - run.start);
            if known <= best_len {
                continue;
            }
            let start = self.fs.geometry.group_start(Group(group)).0;
            let cut = (self.limit - start).min(u64::from(self.fs.geometry.blocks_per_group)) >> log2;
            let cut = cut as u32;
            let mut longest = 0;
            let mut found = None;
            for run in self.bitmap(group)?.free_runs(0) {
                let run = run.start..run.end.min(cut);
                let run_len = run.end.saturating_sub(run.start);
                if u64::from(run_len) >= len {
                    found = Some(run.start..run.start + len as u32);
                    break;
                }
                if run_len > longest {
                    longest = run_len;
                    if run_len > best.as_ref().map_or(0, |(_, run)| run.end - run.start) {
                        best = Some((group, run));
                    }
                }
            }
            if let Some(run) = found {
                best = Some((group, run));
                break;
            }
            self.longest[group as usize] = longest;
        }
        let Some((group, run)) = best.filter(|(_, run)| !run.is_empty()) else {
            return Err(ResizeFault::NoSpace);
        };
        self.bitmap(group)?.set(run.clone());
        self.dirty.insert(group);
        let start = self.fs.geometry.group_start(Group(group)).0;
        Ok(start + (u64::from(run.start) << log2)..start + (u64::from(run.end) << log2))
    }

    /// Frees the clusters that have blocks of a run. They are not used again before the next switch.
    fn free(&mut self, run: Range<u64>) -> Result<(), ResizeFault> {
        let run = self.whole_clusters(&run);
        let before = run.start..run.end.min(self.limit);
        if !before.is_empty() {
            self.freed.push(before);
        }
        let after = run.start.max(self.limit)..run.end;
        if after.is_empty() { Ok(()) } else { self.clear(after) }
    }

    fn clear(&mut self, run: Range<u64>) -> Result<(), ResizeFault> {
        let run = self.whole_clusters(&run);
        let log2 = self.fs.geometry.cluster_log;
        // The last cluster may extend beyond the end of the file system, but does not begin there.
        let (mut at, blocks) = (run.start, self.fs.geometry.blocks);
        let run_end = if run.start < blocks { run.end.min(blocks) } else { run.end };
        while at < run_end {
            let outside = || ResizeFault::Damaged(format!("block {at} is outside of the file system"));
            let group = self.fs.geometry.group_of(Pblk(at)).ok_or_else(outside)?;
            let start = self.fs.geometry.group_start(group).0;
            let end = run_end.min(start + u64::from(self.fs.geometry.group_blocks(group)));
            let bits = ((at - start) >> log2) as u32..(end - start).div_ceil(1 << log2) as u32;
            let bitmap = self.bitmap(group.0)?;
            if !bitmap.all_set(bits.clone()) {
                let why = format!("one of the blocks {at} to {} is in two files, or marked as free", end - 1);
                return Err(ResizeFault::Damaged(why));
            }
            bitmap.clear(bits);
            self.dirty.insert(group.0);
            if let Some(longest) = self.longest.get_mut(group.0 as usize) {
                *longest = u32::MAX;
            }
            at = end;
        }
        Ok(())
    }

    fn commit_if_full(&mut self) -> Result<(), ResizeFault> {
        let may_commit = !self.is_whole && self.chain.is_none();
        if may_commit && self.waiting() > self.room / 2 { self.commit() } else { Ok(()) }
    }

    /// An upper bound of the blocks of the next switch.
    fn waiting(&self) -> usize {
        self.pending.len() + 2 * self.dirty.len() + self.dirty_inodes.len() + 2
    }

    /// Makes all pending moves take effect.
    fn commit(&mut self) -> Result<(), ResizeFault> {
        for run in std::mem::take(&mut self.freed) {
            self.clear(run)?;
        }
        if self.pending.is_empty() && self.dirty.is_empty() {
            return Ok(());
        }
        self.dirty_inodes.clear();
        self.copier.wait()?;
        (self.check)()?;
        let mut change = Change { early: std::mem::take(&mut self.pending), late: Blocks::new() };
        let mut sb = self.next_sb.clone();
        let mut free = i64::try_from(sb.free_blocks_count).unwrap_or(i64::MAX);
        for group in std::mem::take(&mut self.dirty) {
            let mut desc = self.fs.desc_in(&self.table, &self.fs.geometry, group)?;
            let before = desc.free_clusters;
            let Some(bitmap) = self.bitmaps.get(&group) else { continue };
            self.fs.put_block_bitmap(&mut change.early, &mut desc, bitmap);
            free += (i64::from(desc.free_clusters) - i64::from(before)) << self.fs.geometry.cluster_log;
            self.fs.put_desc(&mut self.table, &self.fs.geometry, group, &desc);
        }
        sb.free_blocks_count = free.max(0) as u64;
        self.fs.changed_descriptors(&self.table, &self.fs.geometry, &mut change.early);
        let last = match self.is_whole {
            true => Some(self.fs.inode_place(Ino(sb.journal_inum))?.0),
            false => None,
        };
        self.switcher.switch_with_last(change, &sb, last)?;
        self.fs.sb.clone_from(&sb);
        self.next_sb = sb;
        self.fs.table.clone_from(&self.table);
        self.durable = self.moved;
        self.durable_inodes = self.moved_inodes;
        self.switches += 1;
        Ok(())
    }
}
