//! Inode allocation: directories spread, files stay near their directory.
//!
//! ```text
//! top directory    of the flex groups with at least average space, from the name's hash on, the one with
//!                  the fewest directories
//! directory        the parent's flex group, unless it is crowded; else the next that is not
//! file             the first group with a free inode in the parent's flex group; else any group
//! ```
//!
//! Each thread remembers the group of its last inode for a parent's group, and continues there, so that a
//! million files cost one probe each. A thread that finds a group locked, or alternates with another thread
//! at it at a fast pace, takes the next group of the flex group, and continues there. So threads that create
//! files concurrently end up in different groups.
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use extant_base::sync::thread_number;
use extant_base::{CorruptAt, Group, Ino, Malformed, Pblk};
use extant_buffer::{Edit, ReadFault};
use extant_ondisk::group_desc::INODE_UNINIT;

use crate::group::{DIRTY_INODES, State};
use crate::groups::Groups;
use crate::{Alloc, Fault, INODE_BITMAP, NoSpace, bits};

/// Flex groups to compare for a top directory at most.
const COMPARED_MAX: u32 = 64;

/// A request for an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeRequest {
    /// The directory of the new inode.
    pub parent: Ino,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// A directory in the root, or in a directory that is marked as top of hierarchies.
    pub is_top_dir: bool,
    /// Hash of the name: spreads top directories.
    pub name_hash: u32,
    /// The preferred number, for tools that need one.
    pub goal: Option<Ino>,
}

/// An inode that was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewInode {
    /// Its number.
    pub ino: Ino,
    /// No other inode in its block of the inode table is in use, so the block can be initialized without
    /// reading it.
    pub is_first_in_block: bool,
}

/// A thread's last inode: group of the parent, group of the inode, and kind. Aligned to a cache line of its
/// own.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Cursor(AtomicU64);

const CURSORS: usize = 64;

pub(crate) fn cursors() -> Box<[Cursor]> {
    (0..CURSORS).map(|_| Cursor(AtomicU64::new(u64::MAX))).collect()
}

impl Alloc {
    /// Allocates an inode: sets its bit, and updates the counts of its group. A group that was never used
    /// gets both bitmaps: reserve credits for two blocks, and two for what [`seal`](Self::seal) writes.
    ///
    /// The number may be reused in the transaction that freed it, since the log replays both changes in
    /// order. So a cache of inodes must drop the old inode before its number is freed.
    ///
    /// # Errors
    /// [`NoSpace`]; or a bitmap cannot be read, and no other group had a free inode.
    #[inline]
    pub fn allocate_inode(&self, edit: &dyn Edit, request: &InodeRequest) -> Result<NewInode, Fault> {
        let parent = self.groups.geometry.inode_place(request.parent).map_or(0, |(group, _)| group.0);
        let cursor = &self.cursors[thread_number() % CURSORS].0;
        let key = u64::from(parent) << 32 | u64::from(request.is_dir) << 31;
        let mut search = Search { alloc: self, edit, busy: false, met: None, fault: None };
        if !request.is_top_dir && request.goal.is_none() {
            let last = cursor.load(Ordering::Relaxed);
            let group = last as u32 & 0x7FFF_FFFF;
            if last ^ u64::from(group) == key
                && (!request.is_dir || self.groups.is_fit_for_dir(group))
                && let Some(found) = search.group(group, 0, request.is_dir, false)
            {
                return Ok(found);
            }
            search.met = search.busy.then_some(group);
        }
        let found = self.search(&mut search, request, parent);
        match (found, search.fault) {
            (Some((group, found)), _) => {
                if group < 1 << 31 {
                    cursor.store(key | u64::from(group), Ordering::Relaxed);
                }
                Ok(found)
            }
            (None, Some(fault)) => Err(fault.into()),
            (None, None) => Err(NoSpace { pending: false }.into()),
        }
    }

    fn search(
        &self,
        search: &mut Search<'_>,
        request: &InodeRequest,
        parent: u32,
    ) -> Option<(u32, NewInode)> {
        if let Some((group, index)) = request.goal.and_then(|goal| self.groups.geometry.inode_place(goal))
            && let Some(found) = search.group(group.0, index, request.is_dir, true)
        {
            return Some((group.0, found));
        }
        let groups = self.groups.geometry.groups;
        let found = match request.is_dir {
            true if request.is_top_dir => {
                let start = request.name_hash % self.groups.flexes();
                self.groups.emptiest_flex(start, search).and_then(|flex| search.flex(flex, true))
            }
            true => self
                .groups
                .roomy_flex(parent >> self.groups.flex_log, search)
                .and_then(|flex| search.flex(flex, true)),
            false if self.groups.flex_log > 0 => search.flex(parent >> self.groups.flex_log, false),
            false => search.near(parent, request.parent.0),
        };
        // Any group, from the parent's on.
        found.or_else(|| search.first_of((parent..groups).chain(0..parent.min(groups)), request.is_dir))
    }

    /// Frees an inode's number. The inode's blocks must be freed before.
    ///
    /// # Errors
    /// The bitmap cannot be read; or the number is reserved, outside the file system, or not in use. Nothing
    /// was changed.
    pub fn free_inode(&self, edit: &dyn Edit, ino: Ino, was_dir: bool) -> Result<(), ReadFault> {
        let refuse = |rule| {
            let fact = Malformed::new("freed inode", rule, ino.0);
            Err(ReadFault::corrupt(CorruptAt::ino(ino), fact))
        };
        let Some((Group(group), index)) = self.groups.geometry.inode_place(ino) else {
            return refuse("its number must be an inode's");
        };
        if ino.0 < self.groups.first_ino {
            return refuse("its number must not be reserved");
        }
        let cell = self.groups.cell(group)?;
        let Some(mut state) = self.groups.lock_inodes(group, cell, true)? else {
            return refuse("its group can be used");
        };
        let is_used = state.inodes.as_deref().is_some_and(|map| bits::test(map, index));
        let knows_dirs = !was_dir || state.desc.used_dirs > 0;
        if !is_used || !knows_dirs || self.groups.is_inode_uninit(&state.desc) {
            let fact =
                Malformed::new("inode bitmap", "freed inodes must be in use (number in the group)", index);
            self.groups.set_bad_inodes(group, cell, &mut state, &fact);
            return Err(ReadFault::corrupt(CorruptAt::ino(ino), fact));
        }
        edit.transaction();
        if let Some(map) = state.inodes.as_deref_mut() {
            bits::clear(map, index..index + 1);
        }
        state.first_inode = state.first_inode.min(index);
        state.desc.free_inodes += 1;
        state.desc.used_dirs -= u32::from(was_dir);
        if was_dir {
            self.groups.dirs.fetch_sub(1, Ordering::Relaxed);
        }
        self.groups.set_dirty(group, &mut state, DIRTY_INODES);
        self.groups.space.add_inodes(1);
        cell.publish(&state);
        Ok(())
    }

    /// The goal for the blocks of a new inode: the first block of its group. In flex groups of at least four
    /// groups, it is in the first group for directories, and in the second for files.
    #[must_use]
    pub fn inode_goal(&self, ino: Ino, is_file: bool) -> Pblk {
        let mut group = self.groups.geometry.inode_place(ino).map_or(0, |(group, _)| group.0);
        if self.groups.flex_log >= 2 {
            let flex = self.groups.flex_groups(group >> self.groups.flex_log);
            group = (flex.start + u32::from(is_file)).min(flex.end - 1);
        }
        self.groups.geometry.group_start(Group(group))
    }
}

impl Groups {
    fn flexes(&self) -> u32 {
        ((self.geometry.groups - 1) >> self.flex_log) + 1
    }

    fn flex_groups(&self, flex: u32) -> std::ops::Range<u32> {
        let first = u64::from(flex) << self.flex_log;
        let end = (first + (1 << self.flex_log)).min(self.geometry.groups.into());
        first.min(end) as u32..end as u32
    }

    /// Free inodes, free clusters and directories of a flex group.
    fn flex_counts(&self, flex: u32) -> Result<(u64, u64, u64), ReadFault> {
        let mut sums = (0, 0, 0);
        for group in self.flex_groups(flex) {
            let cell = self.cell(group)?;
            sums.0 += u64::from(cell.free_inodes.load(Ordering::Relaxed));
            sums.1 += u64::from(cell.free.load(Ordering::Relaxed));
            sums.2 += u64::from(cell.used_dirs.load(Ordering::Relaxed));
        }
        Ok(sums)
    }

    /// Free inodes and free clusters of an average flex group.
    fn average(&self) -> (u64, u64) {
        let flexes = u64::from(self.flexes());
        (self.space.free_inodes() / flexes, self.space.free_and_dirty().0 / flexes)
    }

    /// The flex group with the fewest directories among those with at least average free inodes and clusters.
    /// Compares the first 64 from `start` on that qualify, and stops at one without directories, since none
    /// has fewer.
    fn emptiest_flex(&self, start: u32, search: &mut Search<'_>) -> Option<u32> {
        let (inodes, clusters) = self.average();
        let (mut best, mut compared) = (None, 0);
        for flex in (start..self.flexes()).chain(0..start) {
            let Some(counts) = search.keep_fault(self.flex_counts(flex)) else { continue };
            if counts.0 == 0 || counts.0 < inodes || counts.1 < clusters {
                continue;
            }
            if best.is_none_or(|(dirs, _)| counts.2 < dirs) {
                best = Some((counts.2, flex));
            }
            compared += 1;
            if counts.2 == 0 || compared == COMPARED_MAX {
                break;
            }
        }
        best.map(|(_, flex)| flex)
    }

    /// Whether a flex group is not crowded, for a directory with its parent there.
    fn is_roomy(&self, flex: u32) -> Result<bool, ReadFault> {
        let counts = self.flex_counts(flex)?;
        let groups = 1u64 << self.flex_log;
        let per_group = u64::from(self.geometry.inodes_per_group);
        let (inodes, clusters) = self.average();
        let inodes_min = inodes.saturating_sub(per_group * groups / 4).max(1);
        let clusters_min =
            clusters.saturating_sub(u64::from(self.geometry.clusters_per_group()) * groups / 4);
        // Counts only the groups seen. That is too low, so directories spread slightly earlier.
        let dirs = self.dirs.load(Ordering::Relaxed) / u64::from(self.flexes());
        let dirs_max = dirs + per_group * groups / 16;
        Ok(counts.2 < dirs_max && counts.0 >= inodes_min && counts.1 >= clusters_min)
    }

    /// The first flex group from `start` on that is not crowded.
    fn roomy_flex(&self, start: u32, search: &mut Search<'_>) -> Option<u32> {
        let flexes = self.flexes();
        (start..flexes)
            .chain(0..start.min(flexes))
            .find(|flex| search.keep_fault(self.is_roomy(*flex)).unwrap_or(false))
    }

    /// Whether the next directory may be in the group of the last one.
    fn is_fit_for_dir(&self, group: u32) -> bool {
        self.is_roomy(group >> self.flex_log).unwrap_or(false)
    }

    /// Sets the bit of a free inode.
    pub(crate) fn take_inode(
        &self,
        edit: &dyn Edit,
        group: u32,
        state: &mut State,
        index: u32,
        is_dir: bool,
    ) -> Result<NewInode, ReadFault> {
        if self.is_inode_uninit(&state.desc) {
            let inodes = self.geometry.inodes_per_group;
            // A group in use has its block bitmap too: other implementations read an uninitialized one as
            // "nothing in use".
            self.init_block_bitmap(edit, group, state);
            edit.fresh(Pblk(state.desc.inode_bitmap), INODE_BITMAP, &mut |bytes| {
                bits::to_bytes(&bits::clear_words(inodes), bytes);
            });
            state.desc.flags &= !INODE_UNINIT;
            state.desc.itable_unused = inodes;
            self.set_dirty(group, state, DIRTY_INODES);
        }
        edit.transaction();
        let per_block = self.geometry.inodes_per_block();
        let block = index - index % per_block;
        let mut is_first = false;
        if let Some(map) = state.inodes.as_deref_mut() {
            is_first = bits::all_clear(map, block..(block + per_block).min(self.geometry.inodes_per_group));
            bits::set(map, index..index + 1);
        }
        if self.has_group_flags {
            let unused = self.geometry.inodes_per_group - index - 1;
            state.desc.itable_unused = state.desc.itable_unused.min(unused);
        }
        state.desc.free_inodes -= 1;
        state.desc.used_dirs += u32::from(is_dir);
        if is_dir {
            self.dirs.fetch_add(1, Ordering::Relaxed);
        }
        state.counts.inodes += 1;
        self.set_dirty(group, state, DIRTY_INODES);
        self.space.add_inodes(-1);
        Ok(NewInode {
            ino: Ino(group * self.geometry.inodes_per_group + index + 1),
            is_first_in_block: is_first,
        })
    }
}

/// A search over groups.
struct Search<'a> {
    alloc: &'a Alloc,
    edit: &'a dyn Edit,
    /// A group was skipped because it was locked, or shared with another thread.
    busy: bool,
    /// The thread's last group, if it was busy. It is skipped: a moment later it would be free again, and
    /// both threads would contend there as long as it has inodes.
    met: Option<u32>,
    fault: Option<ReadFault>,
}

impl Search<'_> {
    fn keep_fault<T>(&mut self, result: Result<T, ReadFault>) -> Option<T> {
        result.map_err(|fault| self.fault.get_or_insert(fault)).ok()
    }

    /// A free inode of the group, at `from` or later.
    #[inline]
    fn group(&mut self, group: u32, from: u32, is_dir: bool, wait: bool) -> Option<NewInode> {
        let result = self.try_group(group, from, is_dir, wait);
        self.keep_fault(result).flatten()
    }

    #[inline]
    fn try_group(
        &mut self,
        group: u32,
        from: u32,
        is_dir: bool,
        wait: bool,
    ) -> Result<Option<NewInode>, ReadFault> {
        let alloc = self.alloc;
        let cell = alloc.groups.cell(group)?;
        if cell.free_inodes.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        if !wait && cell.state.is_locked() {
            self.busy = true;
            return Ok(None);
        }
        let Some(mut state) = alloc.groups.lock_inodes(group, cell, wait)? else {
            self.busy |= !wait;
            return Ok(None);
        };
        if !wait && state.sharing.is_crowded(thread_number(), Instant::now) {
            self.busy = true;
            return Ok(None);
        }
        let is_new = alloc.groups.is_inode_uninit(&state.desc) && alloc.groups.is_block_uninit(&state.desc);
        if is_new && state.map.is_none() {
            // The group gets its block bitmap too, which needs the group's system ranges.
            drop(state);
            if alloc.groups.lock_blocks(group, cell, true)?.is_none() {
                return Ok(None);
            }
            let Some(again) = alloc.groups.lock_inodes(group, cell, true)? else { return Ok(None) };
            state = again;
        }
        let inodes = alloc.groups.geometry.inodes_per_group;
        let first = state.first_inode;
        let map = state.inodes.as_deref();
        let Some(index) = map.and_then(|map| bits::next_clear(map, from.max(first), inodes)) else {
            return Ok(None);
        };
        let found = alloc.groups.take_inode(self.edit, group, &mut state, index, is_dir)?;
        if from <= first {
            state.first_inode = index + 1;
        }
        cell.publish(&state);
        Ok(Some(found))
    }

    /// Searches a flex group.
    fn flex(&mut self, flex: u32, is_dir: bool) -> Option<(u32, NewInode)> {
        self.first_of(self.alloc.groups.flex_groups(flex), is_dir)
    }

    /// An inode in the first of these groups that has one and is not locked; else in one that has to be
    /// waited for.
    fn first_of(
        &mut self,
        groups: impl Iterator<Item = u32> + Clone,
        is_dir: bool,
    ) -> Option<(u32, NewInode)> {
        for wait in [false, true] {
            self.busy = !wait && self.met.is_some();
            for group in groups.clone() {
                if !wait && self.met == Some(group) {
                    continue;
                }
                if let Some(found) = self.group(group, 0, is_dir, wait) {
                    return Some((group, found));
                }
            }
            if !self.busy {
                break;
            }
        }
        None
    }

    /// Without flex groups: searches the parent's group, then groups with free blocks at growing distances.
    fn near(&mut self, parent: u32, ino: u32) -> Option<(u32, NewInode)> {
        let groups = self.alloc.groups.geometry.groups;
        let has_blocks = |search: &mut Self, group: u32| {
            let cell = search.keep_fault(search.alloc.groups.cell(group));
            cell.is_some_and(|cell| cell.free.load(Ordering::Relaxed) > 0)
        };
        if has_blocks(self, parent)
            && let Some(found) = self.group(parent, 0, false, true)
        {
            return Some((parent, found));
        }
        let mut group = (u64::from(parent) + u64::from(ino)) % u64::from(groups);
        let mut step = 1u64;
        while step < groups.into() {
            group = (group + step) % u64::from(groups);
            step *= 2;
            if has_blocks(self, group as u32)
                && let Some(found) = self.group(group as u32, 0, false, true)
            {
                return Some((group as u32, found));
            }
        }
        None
    }
}
