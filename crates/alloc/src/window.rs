//! Windows: clusters reserved for one user that will need the next ones, usually a growing directory.
//!
//! ```text
//! | allocated here | window: busy in memory, free in the bitmap | another owner's ...
//!                  ^ the next request takes from here
//! ```
//!
//! Invariants
//! 1. A window lies in one group, whose state holds it; a [`Prealloc`] is only the right to it. When space
//!    runs out the allocator takes windows back, and their owners find them empty.
//! 2. Clusters in windows count as free: their user has to reserve space like any other.
//! 3. A window ends with its owner, or with the process: a crash leaves nothing to clean up.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use extant_base::Pblk;
use extant_buffer::Edit;

use crate::group::{State, Window};
use crate::{Alloc, Fault, Flags, NoSpace, Request};

/// Blocks of the first window of an owner, and of the longest.
const FIRST: u32 = 16;
const LONGEST: u32 = 64;

/// An owner's window: empty at first, filled and used by [`Alloc::allocate_in`], given back when dropped.
#[derive(Default)]
pub struct Prealloc {
    alloc: Weak<Alloc>,
    at: Option<At>,
    /// Blocks of the next window.
    next: u32,
}

/// Where a window is.
#[derive(Debug, Clone, Copy)]
struct At {
    group: u32,
    slot: usize,
    id: u64,
}

impl Alloc {
    /// Allocates as [`allocate`](Self::allocate) does, from the owner's window where that has any; else makes
    /// the owner a window behind what is allocated, of 16 blocks first and at most 64 later.
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
        let extra = blocks.div_ceil(1 << self.geometry.cluster_log);
        let id = self.window_id.load(Ordering::Relaxed);
        let wide = Request { flags: request.flags | Flags::DATA, ..*request };
        let place = self.allocate_as(edit, &wide, Some(extra))?;
        window.next = blocks * 2;
        // It begins where the range ends, if there is one.
        if let Some(cell) = self.seen_cell(place.0) {
            let state = cell.state.lock();
            let mine = |kept: &Window| kept.len > 0 && kept.start == place.1.end && kept.id >= id;
            if let Some(slot) = state.windows.iter().position(mine) {
                window.at = Some(At { group: place.0, slot, id: state.windows[slot].id });
                window.alloc = Weak::clone(&self.me);
            }
        }
        Ok(self.blocks_of(&place))
    }

    /// Keeps a range that was just taken in a group as a window.
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

    /// The front of a window; `None` when it is empty.
    fn take_from(&self, edit: &dyn Edit, at: At, request: &Request) -> Result<Option<(Pblk, u32)>, Fault> {
        let Some(cell) = self.seen_cell(at.group) else { return Ok(None) };
        let Some(mut state) = self.lock_blocks(at.group, cell, true)? else { return Ok(None) };
        let Some(kept) = state.windows.get(at.slot).copied().filter(|kept| kept.id == at.id && kept.len > 0)
        else {
            return Ok(None);
        };
        let in_clusters = |blocks: u32| blocks.div_ceil(1 << self.geometry.cluster_log).max(1);
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
                self.space.take(want, min, privilege).ok_or(NoSpace { pending: false })?
            }
        };
        let range = kept.start..kept.start + taken;
        if let Err(fault) = self.set_on_disk(edit, at.group, &mut state, range.clone()) {
            if !promised {
                self.space.add_free(taken.into());
            }
            return Err(fault.into());
        }
        if promised {
            self.space.settle(taken.into(), false);
        }
        state.windows[at.slot] = Window { start: range.end, len: kept.len - taken, ..kept };
        state.counts.success += 1;
        state.counts.goal_hits += 1;
        state.counts.clusters += u64::from(taken);
        self.window_clusters.fetch_sub(taken.into(), Ordering::Relaxed);
        Ok(Some(self.blocks_of(&(at.group, range))))
    }

    /// Takes all windows back.
    pub(crate) fn discard_windows(&self) {
        let groups = std::mem::take(&mut *self.window_groups.lock());
        for group in groups {
            let Some(cell) = self.seen_cell(group) else { continue };
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
            self.give_back(group, cell, state, kept.start..kept.start + kept.len);
            self.window_clusters.fetch_sub(kept.len.into(), Ordering::Relaxed);
            self.tally.discarded.fetch_add(kept.len.into(), Ordering::Relaxed);
        }
    }

    fn release_at(&self, at: At) {
        let Some(cell) = self.seen_cell(at.group) else { return };
        let mut state = cell.state.lock();
        if state.windows.get(at.slot).is_some_and(|kept| kept.id == at.id) {
            self.empty(at.group, cell, &mut state, at.slot);
        }
    }
}

impl Prealloc {
    /// An owner without a window yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives back what was not used.
    pub fn release(&mut self) {
        if let (Some(at), Some(alloc)) = (self.at.take(), self.alloc.upgrade()) {
            let alloc: Arc<Alloc> = alloc;
            alloc.release_at(at);
        }
    }
}

impl Drop for Prealloc {
    /// Frees the unused rest. If the group is locked, perhaps by the thread that drops this to free memory,
    /// the window stays until space is short.
    fn drop(&mut self) {
        if let (Some(at), Some(alloc)) = (self.at.take(), self.alloc.upgrade())
            && let Some(cell) = alloc.seen_cell(at.group)
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
