//! Windows: clusters reserved in memory for an owner that will need the next ones, usually a growing
//! directory.
//!
//! ```text
//! | allocated here | window: busy in memory, free in the bitmap | other blocks ...
//!                  ^ the next request takes from here
//! ```
//!
//! Invariants
//! 1. A window is in one group, which holds its state; a [`Prealloc`] is only a reference. When space runs
//!    out, the allocator reclaims windows, and their owners find them empty.
//! 2. Clusters in windows count as free: allocating one needs space in the counters like any other
//!    allocation.
//! 3. A window ends with its owner, or with the process; a crash leaves nothing to clean up.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use extant_base::Pblk;
use extant_buffer::Edit;

use crate::group::{State, Window};
use crate::{Alloc, Fault, Flags, NoSpace, Request};

/// Blocks of an owner's first window, and of the longest.
const FIRST: u32 = 16;
const LONGEST: u32 = 64;

/// An owner's window: empty at first, filled and used by [`Alloc::allocate_in`], released when dropped.
#[derive(Default)]
pub struct Prealloc {
    alloc: Weak<Alloc>,
    at: Option<At>,
    /// Size of the next window in blocks.
    next: u32,
}

/// The place of a window.
#[derive(Debug, Clone, Copy)]
struct At {
    group: u32,
    slot: usize,
    id: u64,
}

impl Alloc {
    /// As [`allocate`](Self::allocate), from the owner's window unless that is empty. Otherwise the owner
    /// gets a new window after the allocated blocks, of 16 blocks at first and at most 64 later.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_in(
        &self,
        edit: &dyn Edit,
        window: &mut Prealloc,
        request: &Request,
    ) -> Result<(Pblk, u32), Fault> {
        if let Some(at) = window.at {
            if let Some(taken) = self.take_from(edit, at, request)? {
                return Ok(taken);
            }
            window.at = None;
        }
        let blocks = window.next.clamp(FIRST, LONGEST);
        let extra = blocks.div_ceil(1 << self.groups.geometry.cluster_log);
        let id = self.window_id.load(Ordering::Relaxed);
        let wide = Request { flags: request.flags | Flags::DATA, ..*request };
        let place = self.allocate_as(edit, &wide, Some(extra))?;
        window.next = blocks * 2;
        // The new window, if any, starts at the end of the range.
        if let Some(cell) = self.groups.seen_cell(place.0) {
            let state = cell.state.lock();
            let mine = |kept: &Window| kept.len > 0 && kept.start == place.1.end && kept.id >= id;
            if let Some(slot) = state.windows.iter().position(mine) {
                window.at = Some(At { group: place.0, slot, id: state.windows[slot].id });
                window.alloc = Weak::clone(&self.me);
            }
        }
        Ok(self.groups.blocks_of(&place))
    }

    /// Makes a window of a range that was just taken in a group.
    pub(crate) fn add_window(&self, group: u32, state: &mut State, range: Range<u32>) {
        let len = range.end - range.start;
        let window = Window { id: self.window_id.fetch_add(1, Ordering::Relaxed), start: range.start, len };
        if state.windows.iter().all(|window| window.len == 0) {
            self.window_groups.lock().insert(group);
        }
        match state.windows.iter_mut().find(|window| window.len == 0) {
            Some(empty) => *empty = window,
            None => state.windows.push(window),
        }
        self.window_clusters.fetch_add(len.into(), Ordering::Relaxed);
        self.tally.preallocated.fetch_add(len.into(), Ordering::Relaxed);
    }

    /// Allocates from the front of a window; `None` if it is empty.
    fn take_from(&self, edit: &dyn Edit, at: At, request: &Request) -> Result<Option<(Pblk, u32)>, Fault> {
        let Some(cell) = self.groups.seen_cell(at.group) else { return Ok(None) };
        let Some(mut state) = self.groups.lock_blocks(at.group, cell, true)? else { return Ok(None) };
        let Some(kept) = state.windows.get(at.slot).copied().filter(|kept| kept.id == at.id && kept.len > 0)
        else {
            return Ok(None);
        };
        let in_clusters = |blocks: u32| blocks.div_ceil(1 << self.groups.geometry.cluster_log).max(1);
        let want = in_clusters(request.len).min(kept.len);
        let min = in_clusters(request.min_len);
        if want < min {
            drop(state);
            self.release_at(at);
            return Ok(None);
        }
        let promised = request.flags.has(Flags::PROMISED);
        let taken = match promised {
            true => want,
            false => {
                let privilege = request.flags.privilege().max(self.acting());
                self.groups.space.take(want, min, privilege).ok_or(NoSpace { pending: false })?
            }
        };
        let range = kept.start..kept.start + taken;
        if let Err(fault) = self.groups.set_on_disk(edit, at.group, &mut state, range.clone()) {
            if !promised {
                self.groups.space.add_free(taken.into());
            }
            return Err(fault.into());
        }
        if promised {
            self.groups.space.end_promise(taken.into(), false);
        }
        state.windows[at.slot] = Window { start: range.end, len: kept.len - taken, ..kept };
        state.counts.success += 1;
        state.counts.goal_hits += 1;
        state.counts.clusters += u64::from(taken);
        self.window_clusters.fetch_sub(taken.into(), Ordering::Relaxed);
        Ok(Some(self.groups.blocks_of(&(at.group, range))))
    }

    /// Reclaims all windows.
    pub(crate) fn discard_windows(&self) {
        let groups = std::mem::take(&mut *self.window_groups.lock());
        for group in groups {
            let Some(cell) = self.groups.seen_cell(group) else { continue };
            let mut state = cell.state.lock();
            for slot in 0..state.windows.len() {
                self.empty(group, cell, &mut state, slot);
            }
            state.windows.clear();
        }
    }

    fn empty(&self, group: u32, cell: &crate::group::Cell, state: &mut State, slot: usize) {
        let kept = state.windows[slot];
        if kept.len > 0 {
            state.windows[slot].len = 0;
            self.groups.release_range(group, cell, state, kept.start..kept.start + kept.len);
            self.window_clusters.fetch_sub(kept.len.into(), Ordering::Relaxed);
            self.tally.discarded.fetch_add(kept.len.into(), Ordering::Relaxed);
        }
    }

    fn release_at(&self, at: At) {
        let Some(cell) = self.groups.seen_cell(at.group) else { return };
        let mut state = cell.state.lock();
        if state.windows.get(at.slot).is_some_and(|kept| kept.id == at.id) {
            self.empty(at.group, cell, &mut state, at.slot);
        }
    }
}

impl Prealloc {
    /// An owner without a window.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Releases the unused rest.
    pub fn release(&mut self) {
        if let (Some(at), Some(alloc)) = (self.at.take(), self.alloc.upgrade()) {
            let alloc: Arc<Alloc> = alloc;
            alloc.release_at(at);
        }
    }
}

impl Drop for Prealloc {
    /// Releases the unused rest, unless the group is locked. The lock's holder may be this very thread, if it
    /// drops this value to reclaim memory. The window then stays until space is short.
    fn drop(&mut self) {
        if let (Some(at), Some(alloc)) = (self.at.take(), self.alloc.upgrade())
            && let Some(cell) = alloc.groups.seen_cell(at.group)
            && let Some(mut state) = cell.state.try_lock()
            && state.windows.get(at.slot).is_some_and(|kept| kept.id == at.id)
        {
            alloc.empty(at.group, cell, &mut state, at.slot);
        }
    }
}

impl fmt::Debug for Prealloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "window {} in group {}", at.id, at.group),
            None => f.write_str("no window"),
        }
    }
}
