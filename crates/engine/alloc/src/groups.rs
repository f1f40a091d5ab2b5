//! Loads groups into memory (descriptors by the block, bitmaps one by one, verified) and evicts them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use extant_base::rank::{self, Mutex};
use extant_base::sync::CachePadded;
use extant_base::{CorruptAt, Group, Malformed, Pblk};
use extant_buffer::{Buffer, Buffers, ReadFault, Seal};
use extant_memory::{Budget, Shrinker};
use extant_ondisk::Geometry;
use extant_ondisk::bitmap::{block_bitmap_checksum, inode_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT, LARGE};

use crate::group::{Cell, GroupGuard, State};
use crate::index::Index;
use crate::space::Space;
use crate::{BLOCK_BITMAP, DESCRIPTORS, INODE_BITMAP, bits};

/// Blocks of descriptors to read ahead when one is needed.
const AHEAD: u32 = 16;
/// Problems kept for [`Alloc::problems`](crate::Alloc::problems) at most.
const PROBLEMS_MAX: usize = 1000;

/// The groups of a file system: their descriptors and maps in memory, the counts of free space, and which of
/// them changed since the last commit.
pub(crate) struct Groups {
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) geometry: Geometry,
    pub(crate) fs_seed: Option<u32>,
    pub(crate) rule: ChecksumRule,
    /// Whether the descriptors' flags and `itable_unused` are valid.
    pub(crate) has_group_flags: bool,
    /// The first inode that is not reserved.
    pub(crate) first_ino: u32,
    /// log2 of the groups per flex group, as used to spread inodes. Larger flex groups count as several.
    pub(crate) flex_log: u32,
    pub(crate) budget: Option<Arc<Budget>>,
    /// The groups of each block of descriptors.
    pub(crate) chunks: Box<[OnceLock<Box<[Cell]>>]>,
    /// Chunks that were not read yet.
    pub(crate) unseen: AtomicU32,
    pub(crate) index: Index,
    pub(crate) space: Space,
    /// Ranges of blocks with bitmaps and inode tables of the groups seen: start to end (exclusive).
    pub(crate) zones: Mutex<BTreeMap<u64, u64>, { rank::ALLOC_SET }>,
    /// Directories in the groups seen.
    pub(crate) dirs: CachePadded<AtomicU64>,
    pub(crate) dirty: CachePadded<Mutex<BTreeSet<u32>, { rank::ALLOC_SET }>>,
    /// The length of `dirty`, readable without its lock.
    pub(crate) dirty_groups: AtomicU32,
    /// The number of dirty groups in which inodes changed.
    pub(crate) dirty_inodes: AtomicU32,
    pub(crate) problems: Mutex<Vec<(Group, Malformed)>, { rank::ALLOC_SET }>,
    pub(crate) held_bytes: AtomicUsize,
    pub(crate) turn: AtomicUsize,
}

impl Groups {
    /// A group; reads its descriptor if necessary.
    #[inline]
    pub(crate) fn cell(&self, group: u32) -> Result<&Cell, ReadFault> {
        let per_block = self.geometry.descs_per_block();
        let (chunk, at) = (group >> per_block.trailing_zeros(), group & (per_block - 1));
        match self.chunks.get(chunk as usize).and_then(|chunk| chunk.get()) {
            Some(cells) => Ok(&cells[at as usize]),
            None => Ok(&self.see(chunk)?[at as usize]),
        }
    }

    /// A group, if its descriptor was read already.
    #[inline]
    pub(crate) fn seen_cell(&self, group: u32) -> Option<&Cell> {
        let per_block = self.geometry.descs_per_block();
        let chunk = self.chunks.get((group >> per_block.trailing_zeros()) as usize)?.get()?;
        chunk.get((group & (per_block - 1)) as usize)
    }

    /// Reads a block of descriptors.
    #[cold]
    fn see(&self, chunk: u32) -> Result<&[Cell], ReadFault> {
        let outside = || {
            let fact = Malformed::new("group", "must lie inside the file system", chunk);
            ReadFault::corrupt(CorruptAt::default(), fact)
        };
        let slot = self.chunks.get(chunk as usize).ok_or_else(outside)?;
        let first = chunk * self.geometry.descs_per_block();
        let (block, _) = self.geometry.descriptor_place(Group(first));
        let buffer = self.buffers.get(block, DESCRIPTORS.owner, |_| Ok(()))?;
        let count = self.geometry.descs_per_block().min(self.geometry.groups - first);
        let mut cells = Vec::with_capacity(count as usize);
        let mut dirs = 0;
        for (group, bytes) in (first..).zip(buffer.chunks_exact(self.geometry.desc_size)).take(count as usize)
        {
            let clusters = self.geometry.group_clusters(Group(group));
            cells.push(match self.judge(group, bytes) {
                Ok(desc) => {
                    self.add_zones(&desc);
                    dirs += u64::from(desc.used_dirs);
                    Cell::new(desc, clusters, None)
                }
                Err(fact) => {
                    self.note_problem(group, &fact);
                    Cell::new(GroupDesc::default(), clusters, Some(fact))
                }
            });
        }
        if slot.set(cells.into_boxed_slice()).is_ok() {
            self.unseen.fetch_sub(1, Ordering::Relaxed);
            self.dirs.fetch_add(dirs, Ordering::Relaxed);
            for (group, cell) in (first..).zip(slot.get().into_iter().flatten()) {
                cell.state.lock().reindex(group, &self.index);
            }
        }
        slot.get().map(|cells| &**cells).ok_or_else(outside)
    }

    /// Reads one more block of descriptors, the next one from the group's on. Returns whether there was one.
    pub(crate) fn see_more(&self, group: u32) -> Result<bool, ReadFault> {
        if self.unseen.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        let start = (group / self.geometry.descs_per_block()) as usize;
        let mut order = (start..self.chunks.len()).chain(0..start.min(self.chunks.len()));
        let Some(chunk) = order.find(|chunk| self.chunks[*chunk].get().is_none()) else { return Ok(false) };
        let (block, _) =
            self.geometry.descriptor_place(Group(chunk as u32 * self.geometry.descs_per_block()));
        if !self.geometry.meta_bg() {
            self.buffers.prefetch(block, AHEAD);
        }
        self.see(chunk as u32).map(|_| true)
    }

    /// Decodes and verifies a descriptor.
    pub(crate) fn judge(&self, group: u32, bytes: &[u8]) -> Result<GroupDesc, Malformed> {
        let geometry = &self.geometry;
        let desc = GroupDesc::decode(bytes)?;
        let rule = |holds, rule, found: u64| Malformed::unless(holds, "group descriptor", rule, found);
        rule(self.rule.verify(group, bytes), "its checksum must match (number of the group)", group.into())?;
        let inside = |block: u64, len: u32| {
            let end = block.checked_add(len.into());
            block > u64::from(geometry.first_data_block) && end.is_some_and(|end| end <= geometry.blocks)
        };
        rule(
            inside(desc.block_bitmap, 1),
            "the block bitmap must lie inside the file system",
            desc.block_bitmap,
        )?;
        rule(
            inside(desc.inode_bitmap, 1),
            "the inode bitmap must lie inside the file system",
            desc.inode_bitmap,
        )?;
        let table = inside(desc.inode_table, geometry.itable_blocks());
        rule(table, "the inode table must lie inside the file system", desc.inode_table)?;
        let clusters = geometry.group_clusters(Group(group));
        rule(
            desc.free_clusters <= clusters,
            "free clusters must be in the group",
            desc.free_clusters.into(),
        )?;
        let inodes = geometry.inodes_per_group;
        rule(desc.free_inodes <= inodes, "free inodes must be in the group", desc.free_inodes.into())?;
        rule(desc.used_dirs <= inodes, "directories must be inodes of the group", desc.used_dirs.into())?;
        let unused = if self.has_group_flags { desc.itable_unused } else { 0 };
        rule(unused <= inodes, "unused inodes must be in the group", desc.itable_unused.into())?;
        Ok(desc)
    }

    fn add_zones(&self, desc: &GroupDesc) {
        let mut zones = self.zones.lock();
        for (start, len) in [
            (desc.block_bitmap, 1),
            (desc.inode_bitmap, 1),
            (desc.inode_table, self.geometry.itable_blocks()),
        ] {
            let (mut start, mut end) = (start, start + u64::from(len));
            while let Some((&first, &behind)) =
                zones.range(..=end).next_back().filter(|(_, behind)| **behind >= start)
            {
                zones.remove(&first);
                (start, end) = (start.min(first), end.max(behind));
            }
            zones.insert(start, end);
        }
    }

    /// The file system's own clusters of a group: copies of superblock and descriptors, and the bitmaps and
    /// inode tables here of other groups of its flex group, or of any group seen.
    fn system_ranges(&self, group: u32) -> Box<[Range<u32>]> {
        let start = self.geometry.group_start(Group(group)).0;
        let end = start + u64::from(self.geometry.group_blocks(Group(group)));
        let head = self.geometry.group_head(Group(group));
        let mut own: Vec<(u64, u64)> = Vec::new();
        own.extend(head.superblock.map(|block| (block.0, block.0 + 1)));
        for (first, len) in [head.descriptors, head.reserved] {
            own.push((first.0, first.0 + u64::from(len)));
        }
        let zones = self.zones.lock();
        own.extend(zones.range(..start).next_back().map(|(first, behind)| (*first, *behind)));
        own.extend(zones.range(start..end).map(|(first, behind)| (*first, *behind)));
        drop(zones);
        let log = self.geometry.cluster_log;
        let in_group = |(first, behind): (u64, u64)| {
            let (first, behind) = (first.max(start), behind.min(end));
            (first < behind)
                .then(|| ((first - start) >> log) as u32..((behind - 1 - start) >> log) as u32 + 1)
        };
        let mut ranges: Vec<Range<u32>> = own.into_iter().filter_map(in_group).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.into_boxed_slice()
    }

    pub(crate) fn is_block_uninit(&self, desc: &GroupDesc) -> bool {
        self.has_group_flags && desc.has_flag(BLOCK_UNINIT)
    }

    pub(crate) fn is_inode_uninit(&self, desc: &GroupDesc) -> bool {
        self.has_group_flags && desc.has_flag(INODE_UNINIT)
    }

    /// Locks a group with its map in memory. `None` if the group is set aside or, unless `wait`, if its lock
    /// is taken.
    #[inline]
    pub(crate) fn lock_blocks<'a>(
        &self,
        group: u32,
        cell: &'a Cell,
        wait: bool,
    ) -> Result<Option<GroupGuard<'a>>, ReadFault> {
        loop {
            let state = if wait { Some(cell.state.lock()) } else { cell.state.try_lock() };
            let Some(mut state) = state.filter(|state| state.bad.is_none()) else { return Ok(None) };
            if state.map.is_some() {
                state.touched = true;
                return Ok(Some(state));
            }
            drop(state);
            self.load_blocks(group, cell)?;
        }
    }

    #[cold]
    fn load_blocks(&self, group: u32, cell: &Cell) -> Result<(), ReadFault> {
        let flex = 1 << self.flex_log;
        let first = group & !(flex - 1);
        let step = self.geometry.descs_per_block().min(flex);
        for member in (first..self.geometry.groups.min(first + flex)).step_by(step as usize) {
            self.cell(member)?;
        }
        let desc = cell.state.lock().desc;
        let uninit = self.is_block_uninit(&desc);
        if !uninit {
            self.buffers.prefetch(Pblk(desc.block_bitmap), 1);
        }
        let mut state = cell.state.lock();
        if state.map.is_some() || state.bad.is_some() {
            return Ok(());
        }
        state.system = self.system_ranges(group);
        let words = match self.is_block_uninit(&state.desc) {
            true => state.initial_map(),
            false => match self.verified(&state.desc, BLOCK_BITMAP, state.clusters) {
                Ok(words) => words,
                Err(ReadFault::Corrupt(corrupt)) => {
                    self.set_bad(group, cell, &mut state, &corrupt.fact);
                    return Ok(());
                }
                Err(fault) => return Err(fault),
            },
        };
        let has_own = |own: &Range<u32>| bits::all_set(&words, own.clone());
        let free = bits::count_clear(&words);
        let rule = |holds, rule, found: u64| Malformed::unless(holds, "block bitmap", rule, found);
        let sound = rule(
            uninit || free == state.desc.free_clusters,
            "as many clusters must be free as the descriptor says",
            free.into(),
        )
        .and(rule(
            state.system.iter().all(has_own),
            "the file system's own blocks must be in use (number of the group)",
            group.into(),
        ));
        if let Err(fact) = sound {
            self.set_bad(group, cell, &mut state, &fact);
            return Ok(());
        }
        let bytes = words.len() * 8;
        state.set_map(words);
        state.touched = true;
        state.reindex(group, &self.index);
        cell.publish(&state);
        drop(state);
        self.charge(bytes);
        Ok(())
    }

    /// As [`lock_blocks`](Self::lock_blocks), for the inode map.
    #[inline]
    pub(crate) fn lock_inodes<'a>(
        &self,
        group: u32,
        cell: &'a Cell,
        wait: bool,
    ) -> Result<Option<GroupGuard<'a>>, ReadFault> {
        loop {
            let state = if wait { Some(cell.state.lock()) } else { cell.state.try_lock() };
            let Some(mut state) = state.filter(|state| state.bad_inodes.is_none()) else { return Ok(None) };
            if state.inodes.is_some() {
                state.touched = true;
                return Ok(Some(state));
            }
            drop(state);
            self.load_inodes(group, cell)?;
        }
    }

    #[cold]
    fn load_inodes(&self, group: u32, cell: &Cell) -> Result<(), ReadFault> {
        let desc = cell.state.lock().desc;
        if !self.is_inode_uninit(&desc) {
            self.buffers.prefetch(Pblk(desc.inode_bitmap), 1);
        }
        let mut state = cell.state.lock();
        if state.inodes.is_some() || state.bad_inodes.is_some() {
            return Ok(());
        }
        let inodes = self.geometry.inodes_per_group;
        let words = match self.is_inode_uninit(&state.desc) {
            true => bits::clear_words(inodes),
            false => match self.verified(&state.desc, INODE_BITMAP, inodes) {
                Ok(words) => words,
                Err(ReadFault::Corrupt(corrupt)) => {
                    self.set_bad_inodes(group, cell, &mut state, &corrupt.fact);
                    return Ok(());
                }
                Err(fault) => return Err(fault),
            },
        };
        let free = bits::count_clear(&words);
        let reserved = (self.first_ino - 1).saturating_sub(group.saturating_mul(inodes)).min(inodes);
        let rule = |holds, rule, found: u64| Malformed::unless(holds, "inode bitmap", rule, found);
        let sound = rule(
            free == state.desc.free_inodes,
            "as many inodes must be free as the descriptor says",
            free.into(),
        )
        .and(rule(
            bits::all_set(&words, 0..reserved),
            "reserved inodes must be in use",
            reserved.into(),
        ));
        if let Err(fact) = sound {
            self.set_bad_inodes(group, cell, &mut state, &fact);
            return Ok(());
        }
        state.first_inode = bits::next_clear(&words, 0, inodes).unwrap_or(inodes);
        let bytes = words.len() * 8;
        state.inodes = Some(words);
        state.touched = true;
        drop(state);
        self.charge(bytes);
        Ok(())
    }

    /// The words of a bitmap that matches its checksum.
    fn verified(&self, desc: &GroupDesc, what: Seal, bits: u32) -> Result<Box<[u64]>, ReadFault> {
        let is_blocks = what == BLOCK_BITMAP;
        let (block, stored) = match is_blocks {
            true => (desc.block_bitmap, desc.block_bitmap_csum),
            false => (desc.inode_bitmap, desc.inode_bitmap_csum),
        };
        let structure = if is_blocks { "block bitmap" } else { "inode bitmap" };
        let buffer: Buffer = self.buffers.get(Pblk(block), what.owner, |bytes| {
            let Some(computed) = self.bitmap_checksum(bytes, is_blocks) else { return Ok(()) };
            Malformed::unless(computed == stored, structure, "its checksum must be the descriptor's", stored)
        })?;
        Ok(bits::from_bytes(&buffer, bits))
    }

    /// A bitmap's checksum as the descriptor stores it; `None` without metadata_csum.
    pub(crate) fn bitmap_checksum(&self, bytes: &[u8], is_blocks: bool) -> Option<u32> {
        let seed = self.fs_seed?;
        let sum = match is_blocks {
            true => block_bitmap_checksum(seed, bytes, self.geometry.clusters_per_group()),
            false => inode_bitmap_checksum(seed, bytes, self.geometry.inodes_per_group),
        };
        // Small descriptors store the low half.
        Some(if self.geometry.desc_size >= LARGE { sum } else { sum & 0xFFFF })
    }

    /// Sets a group aside: its free clusters no longer count.
    pub(crate) fn set_bad(&self, group: u32, cell: &Cell, state: &mut State, fact: &Malformed) {
        if state.bad.is_none() {
            state.bad = Some(fact.clone());
            self.space.add_free(-i64::from(state.desc.free_clusters));
            state.reindex(group, &self.index);
            cell.publish(state);
            self.note_problem(group, fact);
        }
    }

    /// Sets the inodes of a group aside.
    pub(crate) fn set_bad_inodes(&self, group: u32, cell: &Cell, state: &mut State, fact: &Malformed) {
        if state.bad_inodes.is_none() {
            state.bad_inodes = Some(fact.clone());
            self.space.add_inodes(-i64::from(state.desc.free_inodes));
            cell.publish(state);
            self.note_problem(group, fact);
        }
    }

    fn note_problem(&self, group: u32, fact: &Malformed) {
        let mut problems = self.problems.lock();
        if problems.len() < PROBLEMS_MAX {
            problems.push((Group(group), fact.clone()));
        }
    }

    fn charge(&self, bytes: usize) {
        if let Some(budget) = &self.budget {
            self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
            budget.charge(bytes);
        }
    }
}

/// Evicts maps that were not used since the last visit, and skips locked groups.
impl Shrinker for Groups {
    fn name(&self) -> &'static str {
        "group maps"
    }

    fn cached_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: usize) -> usize {
        let mut freed = 0;
        for _ in 0..self.chunks.len().min(64 + bytes / 4096) {
            if freed >= bytes {
                break;
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.chunks.len();
            for cell in self.chunks[turn].get().into_iter().flatten() {
                let Some(mut state) = cell.state.try_lock() else { continue };
                if std::mem::take(&mut state.touched) {
                    continue;
                }
                let map = if state.can_drop_map() { state.map.take() } else { None };
                let inodes = if state.can_drop_inodes() { state.inodes.take() } else { None };
                for words in [map, inodes].into_iter().flatten() {
                    freed += words.len() * 8;
                }
            }
        }
        self.held_bytes.fetch_sub(freed, Ordering::Relaxed);
        if let Some(budget) = &self.budget {
            budget.release(freed);
        }
        freed
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(*self.held_bytes.get_mut());
        }
    }
}
