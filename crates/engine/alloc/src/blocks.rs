//! Block allocation: the goal first, then groups by criteria, each weaker than the one before.
//!
//! [`crate::search`] chooses inside a group. Locked groups are skipped as long as others may do; the last
//! criteria wait for the lock.
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst.

use std::ops::{BitOr, Range};
use std::sync::atomic::Ordering;

use extant_base::{Group, Pblk};
use extant_buffer::{Edit, ReadFault};
use extant_ondisk::group_desc::BLOCK_UNINIT;

use crate::group::{Cell, DIRTY_BLOCKS, DIRTY_INODES, State};
use crate::groups::Groups;
use crate::index::{By, ORDERS};
use crate::search::{FoundRun, RunRequest, best};
use crate::stats::Criterion;
use crate::{Alloc, BLOCK_BITMAP, Fault, NoSpace, Privilege, Scan, bits, len};

/// The purpose of a request, and what it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub(crate) u16);

impl Flags {
    /// For metadata: directories, nodes of trees.
    pub const METADATA: Flags = Flags(0);
    /// For file data: a shorter run nearby is acceptable.
    pub const DATA: Flags = Flags(1);
    /// May use root's reserve.
    pub const USE_ROOT: Flags = Flags(2);
    /// May use all reserves: metadata that must not fail.
    pub const USE_RESERVED: Flags = Flags(4);
    /// [`Alloc::claim`] promised the blocks; this allocation settles the promise.
    pub const PROMISED: Flags = Flags(8);
    /// At the goal, a run of `min_len` is enough: it extends what is before it.
    pub const TRY_GOAL: Flags = Flags(16);
    /// Only below block 2^32: for indirect block maps.
    pub const BELOW_2_32: Flags = Flags(32);

    /// Whether all of these flags are set.
    #[must_use]
    pub fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(crate) fn privilege(self) -> Privilege {
        match self {
            _ if self.has(Self::USE_RESERVED) => Privilege::Pool,
            _ if self.has(Self::USE_ROOT) => Privilege::Root,
            _ => Privilege::User,
        }
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A request for blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The preferred first block; a block outside the file system means its first block.
    pub goal: Pblk,
    /// Number of blocks; rounded up to whole clusters, and limited to a group.
    pub len: u32,
    /// The smallest acceptable number of blocks.
    pub min_len: u32,
    /// Purpose and permissions.
    pub flags: Flags,
    /// The stream of the request, usually an inode number. A stream continues in the group of its last
    /// allocation, whatever the goal's group.
    pub stream: Option<u32>,
}

/// A request inside one group, in clusters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Find {
    pub(crate) goal: Option<u32>,
    pub(crate) want: u32,
    pub(crate) min: u32,
    /// Accept a shorter run at the goal.
    pub(crate) try_goal: bool,
    /// Accept the longest run even if it is shorter.
    pub(crate) short: bool,
    pub(crate) aligned: bool,
    /// Wait for the group's lock.
    pub(crate) wait: bool,
}

/// What to do with a range that was found.
struct Use<'a> {
    edit: &'a dyn Edit,
    /// This many clusters from the start are set in the bitmap; the rest becomes a window.
    allocate: u32,
}

/// A group, and a range of its clusters.
pub(crate) type GroupRange = (u32, Range<u32>);

impl Alloc {
    /// Allocates up to `request.len` blocks in one run, at least `min_len`. Returns first block and length.
    ///
    /// Changes one bitmap block: the handle needs a credit for it, and one for the group's descriptor (see
    /// [`seal_credits`](Self::seal_credits)).
    ///
    /// # Errors
    /// [`NoSpace`]; or a bitmap cannot be read, and no other group had space.
    #[inline]
    pub fn allocate(&self, edit: &dyn Edit, request: &Request) -> Result<(Pblk, u32), Fault> {
        self.allocate_as(edit, request, None).map(|place| self.groups.blocks_of(&place))
    }

    /// Accounts, finds, and marks. The search is for `extra` clusters more than requested, which become a
    /// window.
    pub(crate) fn allocate_as(
        &self,
        edit: &dyn Edit,
        request: &Request,
        extra: Option<u32>,
    ) -> Result<GroupRange, Fault> {
        let log = self.groups.geometry.cluster_log;
        let in_clusters = |blocks: u32| (u64::from(blocks).div_ceil(1 << log) as u32).max(1);
        let want = in_clusters(request.len).min(self.groups.geometry.clusters_per_group());
        let min = in_clusters(request.min_len).min(want);
        let promised = request.flags.has(Flags::PROMISED);
        let taken = match promised {
            true => want,
            false => {
                let privilege = request.flags.privilege().max(self.acting());
                self.groups.space.take(want, min, privilege).ok_or(NoSpace { pending: false })?
            }
        };
        let looked_for = extra.map_or(taken, |extra| taken.saturating_add(extra));
        let how = &Use { edit, allocate: taken };
        let found = self.find(request, how, looked_for, min).and_then(|found| match found {
            // Reclaim the clusters of windows before failing.
            None if self.window_clusters.load(Ordering::Relaxed) > 0 => {
                self.discard_windows();
                self.find(request, how, looked_for, min)
            }
            found => Ok(found),
        });
        let got = match &found {
            Ok(Some((_, range))) => len(range).min(taken),
            _ => 0,
        };
        match promised {
            true if got > 0 => self.groups.space.end_promise(got.into(), false),
            true => {}
            false if got < taken => self.groups.space.add_free(i64::from(taken - got)),
            false => {}
        }
        let place =
            found?.ok_or_else(|| NoSpace { pending: self.pending_clusters.load(Ordering::Relaxed) > 0 })?;
        Ok((place.0, place.1.start..place.1.start + got))
    }

    fn find(
        &self,
        request: &Request,
        how: &Use<'_>,
        want: u32,
        min: u32,
    ) -> Result<Option<GroupRange>, ReadFault> {
        let want = want.min(self.groups.geometry.clusters_per_group());
        let low =
            self.groups.geometry.group_of(Pblk(1 << 32)).filter(|_| request.flags.has(Flags::BELOW_2_32));
        let groups = low.map_or(self.groups.geometry.groups, |group| group.0);
        let (mut group, bit) =
            self.groups.place_of(request.goal).filter(|place| place.0 < groups).unwrap_or((0, 0));
        let mut goal = Some(bit);
        let stream = request.stream.map(|stream| &self.streams[stream as usize % self.streams.len()]);
        if let Some(last) = stream.map(|stream| stream.load(Ordering::Relaxed)).filter(|last| *last < groups)
            && last != group
        {
            (group, goal) = (last, None);
        }
        let near = Find {
            goal,
            want,
            min,
            try_goal: request.flags.has(Flags::TRY_GOAL),
            short: false,
            aligned: false,
            wait: true,
        };
        let mut search = Search { alloc: self, how, group, groups, fault: None };
        let found = search.group(group, near, None).or_else(|| search.by_criteria(request, want, min));
        if let (Some(stream), Some((group, _))) = (stream, &found) {
            stream.store(*group, Ordering::Relaxed);
        }
        match (found, search.fault) {
            (None, Some(fault)) => Err(fault),
            (found, _) => Ok(found),
        }
    }

    /// Searches one group, and marks what it finds.
    #[inline]
    fn try_group(
        &self,
        group: u32,
        find: Find,
        how: &Use<'_>,
        extents: &mut u64,
    ) -> Result<Option<Range<u32>>, ReadFault> {
        let cell = self.groups.cell(group)?;
        let least = if find.short || find.try_goal { find.min } else { find.want };
        if cell.free.load(Ordering::Relaxed) < least {
            return Ok(None);
        }
        let Some(mut state) = self.groups.lock_blocks(group, cell, find.wait)? else { return Ok(None) };
        let Some((range, searched_from, is_goal)) = choose(&mut state, find, extents) else {
            state.reindex(group, &self.groups.index);
            return Ok(None);
        };
        let mark = range.start..range.end.min(range.start + how.allocate);
        self.groups.set_on_disk(how.edit, group, &mut state, mark.clone())?;
        state.take(range.clone(), searched_from);
        if mark.end < range.end {
            self.add_window(group, &mut state, mark.end..range.end);
        }
        state.counts.success += 1;
        state.counts.goal_hits += u64::from(is_goal);
        state.counts.clusters += u64::from(len(&mark));
        state.reindex(group, &self.groups.index);
        cell.publish(&state);
        Ok(Some(range))
    }
}

impl Groups {
    /// First block and number of blocks of a range; the file system may end inside the last cluster.
    pub(crate) fn blocks_of(&self, (group, range): &GroupRange) -> (Pblk, u32) {
        let log = self.geometry.cluster_log;
        let start = self.geometry.group_start(Group(*group)).0 + (u64::from(range.start) << log);
        let blocks = u64::from(len(range)) << log;
        (Pblk(start), blocks.min(self.geometry.blocks - start) as u32)
    }

    /// Group of a block, and its cluster in the group.
    pub(crate) fn place_of(&self, block: Pblk) -> Option<(u32, u32)> {
        let group = self.geometry.group_of(block)?;
        let within = block.0 - self.geometry.group_start(group).0;
        Some((group.0, (within >> self.geometry.cluster_log) as u32))
    }

    /// Sets bits in a group's bitmap block, which is initialized if it never was; the descriptor's count
    /// follows.
    pub(crate) fn set_on_disk(
        &self,
        edit: &dyn Edit,
        group: u32,
        state: &mut State,
        range: Range<u32>,
    ) -> Result<(), ReadFault> {
        self.init_block_bitmap(edit, group, state);
        let count = len(&range);
        edit.change(Pblk(state.desc.block_bitmap), BLOCK_BITMAP, &mut |bytes| {
            debug_assert!(
                bits::bytes_all_clear(bytes, range.clone()),
                "{range:?} of group {group} is in use"
            );
            bits::fill_bytes(bytes, range.clone(), true);
        })?;
        state.desc.free_clusters -= count;
        self.set_dirty(group, state, DIRTY_BLOCKS);
        Ok(())
    }

    /// Initializes the bitmap block of a group that never had one. Its map, or at least its system ranges,
    /// must be known.
    pub(crate) fn init_block_bitmap(&self, edit: &dyn Edit, group: u32, state: &mut State) {
        if !self.is_block_uninit(&state.desc) {
            return;
        }
        let words = state.initial_map();
        edit.fresh(Pblk(state.desc.block_bitmap), BLOCK_BITMAP, &mut |bytes| bits::to_bytes(&words, bytes));
        state.desc.flags &= !BLOCK_UNINIT;
        let free = bits::count_clear(&words);
        self.space.add_free(i64::from(free) - i64::from(state.desc.free_clusters));
        state.desc.free_clusters = free;
        self.set_dirty(group, state, DIRTY_BLOCKS);
    }
}

/// Chooses inside a group. Returns the range, the cluster from which nothing before the range is free, and
/// whether it is at the goal.
#[inline]
fn choose(state: &mut State, find: Find, extents: &mut u64) -> Option<(Range<u32>, u32, bool)> {
    let (clusters, first_free) = (state.clusters, state.first_free);
    let map = state.map.as_deref()?;
    if let Some(goal) = find.goal.filter(|goal| state.is_free(*goal)) {
        let end = bits::next_set(map, goal, clusters.min(goal.saturating_add(find.want)));
        let len = end - goal;
        if len == find.want || (find.try_goal && len >= find.min) {
            return Some((goal..end, goal, true));
        }
    }
    if find.want == 1 {
        let from = state.skip_full(find.goal.unwrap_or(0));
        let (bit, from) = match bits::next_clear(map, from, clusters) {
            Some(bit) => (bit, from),
            None => (bits::next_clear(map, first_free, from)?, first_free),
        };
        return Some((bit..bit + 1, from, false));
    }
    if state.longest < find.want && !find.short {
        return None;
    }
    let request =
        RunRequest { from: find.goal.unwrap_or(first_free), want: find.want, aligned: find.aligned };
    match best(map, clusters, first_free, request, extents) {
        FoundRun::Fits(range) => Some((range.clone(), range.start, false)),
        FoundRun::Longest(run) => {
            // The whole group was searched, so this is exact.
            state.longest = len(&run);
            let range = run.start..run.end.min(run.start + find.want);
            (find.short && len(&range) >= find.min && !range.is_empty()).then_some((
                range.clone(),
                range.start,
                false,
            ))
        }
    }
}

/// A search over groups.
struct Search<'a> {
    alloc: &'a Alloc,
    how: &'a Use<'a>,
    /// The group to start with.
    group: u32,
    /// Groups below this number may be used.
    groups: u32,
    /// The first group's fault; reported if no other group has space.
    fault: Option<ReadFault>,
}

impl Search<'_> {
    /// Searches one group, counted for `criterion`.
    #[inline]
    fn group(&mut self, group: u32, find: Find, criterion: Option<Criterion>) -> Option<GroupRange> {
        let mut extents = 0;
        let found = self.alloc.try_group(group, find, self.how, &mut extents).unwrap_or_else(|fault| {
            self.fault.get_or_insert(fault);
            None
        });
        if let Some(criterion) = criterion {
            self.alloc.tally.considered(criterion, found.is_some(), extents);
        }
        found.map(|range| (group, range))
    }

    fn by_criteria(&mut self, request: &Request, want: u32, min: u32) -> Option<GroupRange> {
        let find = Find { goal: None, want, min, try_goal: false, short: false, aligned: false, wait: false };
        let order = want.ilog2();
        if want.is_power_of_two() && order >= 2 {
            let aligned = Find { aligned: true, ..find };
            if let Some(found) = self.upward(By::Longest, order, aligned, Criterion::PowerOfTwo) {
                return Some(found);
            }
        }
        loop {
            if let Some(found) = self.upward(By::Average, order, find, Criterion::GoalFast) {
                return Some(found);
            }
            match self.alloc.groups.see_more(self.group) {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    self.fault.get_or_insert(fault);
                    break;
                }
            }
        }
        if request.flags.has(Flags::DATA) {
            let least = min.max(want >> 3).max(1);
            let mut trimmed = if want.is_power_of_two() { want / 2 } else { 1 << order };
            while trimmed >= least {
                let find = Find { want: trimmed, ..find };
                if let Some(found) = self.upward(By::Average, trimmed.ilog2(), find, Criterion::BestAvailable)
                {
                    return Some(found);
                }
                trimmed /= 2;
            }
        }
        let patient = Find { wait: true, ..find };
        if let Some(found) = self.upward(By::Longest, order, patient, Criterion::GoalSlow) {
            return Some(found);
        }
        self.any(Find { short: true, ..patient }, min.ilog2())
    }

    /// Searches groups at this order and above; each order starts at the first group and wraps around.
    fn upward(&mut self, by: By, order: u32, find: Find, criterion: Criterion) -> Option<GroupRange> {
        if self.alloc.scan == Scan::Linear {
            return self.linear(find, criterion);
        }
        (order..ORDERS).find_map(|order| self.at_order(by, order, find, criterion))
    }

    fn at_order(&mut self, by: By, order: u32, find: Find, criterion: Criterion) -> Option<GroupRange> {
        if self.alloc.groups.index.is_empty(by, order) {
            return None;
        }
        for (mut from, to) in [(self.group, self.groups), (0, self.group)] {
            while let Some(group) = self.alloc.groups.index.next(by, order, from, to) {
                if let Some(found) = self.group(group, find, Some(criterion)) {
                    return Some(found);
                }
                from = group + 1;
            }
        }
        self.alloc.tally.useless(criterion);
        None
    }

    fn linear(&mut self, find: Find, criterion: Criterion) -> Option<GroupRange> {
        (self.group..self.groups)
            .chain(0..self.group)
            .find_map(|group| self.group(group, find, Some(criterion)))
    }

    /// The longest run there is, with an order of at least `order`.
    fn any(&mut self, find: Find, order: u32) -> Option<GroupRange> {
        if self.alloc.scan == Scan::Linear {
            return self.linear(find, Criterion::Any);
        }
        (order..ORDERS).rev().find_map(|order| self.at_order(By::Longest, order, find, Criterion::Any))
    }
}

impl Groups {
    /// Marks a group's descriptor as dirty, to be written by the next seal.
    #[inline]
    pub(crate) fn set_dirty(&self, group: u32, state: &mut State, what: u8) {
        if state.dirty == 0 {
            let mut dirty = self.dirty.lock();
            dirty.insert(group);
            self.dirty_groups.store(dirty.len() as u32, Ordering::Relaxed);
        }
        if what & !state.dirty & DIRTY_INODES != 0 {
            self.dirty_inodes.fetch_add(1, Ordering::Relaxed);
        }
        state.dirty |= what;
    }

    /// Makes clusters of a group available again.
    pub(crate) fn release_range(&self, group: u32, cell: &Cell, state: &mut State, range: Range<u32>) {
        state.release(range);
        state.reindex(group, &self.index);
        cell.publish(state);
    }
}
