//! Two lists of an inode's chunks, cold and warm: the order in which es-chunk reclaims.
//!
//! ```text
//!            a cold entry is added                     nothing cold left
//!   none -----------------------> cold (FIFO) -----------------------> warm (FIFO)
//!     ^                            |  ^  |                                |
//!     |  nothing reclaimable left  |  |  | found again: another round     | too many are warm: entries
//!     +----------------------------+  +--+                                | not found again lose protection
//!                                  ^--------------------------------------+
//! ```
//!
//! A visit examines the words of the chunk, not its entries. Entries found since the last visit become
//! protected; the others are reclaimed, all at once, except those added since the last visit, which had no
//! whole round to be found in. If anything in a chunk was found, the chunk is spared as a whole, a few times:
//! a file that is read again is often read again nearby, a stream never is. So new entries get more time
//! where others were found.
//!
//! Invariants
//! 1. A chunk is on `cold` iff it has a reclaimable entry that is not protected; on `warm` iff it has
//!    reclaimable entries and all of them are protected; else on none.
//! 2. A visit costs O(1), or a pass over the 64 entries of the chunk.

use super::{Order, Tree};
use crate::chunk::{Age, NONE};
use crate::scan::Need;

/// Maximum number of visits in a row that spare a chunk with cold entries.
const SPARED_MAX: u8 = 3;

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

pub(crate) struct Ages {
    lists: [List; 2],
}

impl Default for Ages {
    fn default() -> Self {
        Self { lists: [List { head: NONE, tail: NONE, len: 0 }; 2] }
    }
}

fn list_of(age: Age) -> Option<usize> {
    match age {
        Age::None => None,
        Age::Cold => Some(0),
        Age::Warm => Some(1),
    }
}

/// Cold chunks come before warm ones, unless there are more than this many times as many warm ones.
const WARM_PER_COLD: usize = 32;

/// The list to reclaim from, by the lengths of the two.
pub(crate) fn whose_turn(cold: usize, warm: usize) -> Age {
    match (cold, warm) {
        (0, 0) => Age::None,
        (cold, warm) if cold * WARM_PER_COLD < warm => Age::Warm,
        _ => Age::Cold,
    }
}

/// Result of a visit of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visit {
    /// Entries reclaimed.
    pub(crate) reclaimed: u32,
    /// Entries examined one by one.
    pub(crate) moved: u32,
    /// Whether the rest of the chunk was merged with another chunk.
    pub(crate) joined: bool,
}

impl Tree {
    /// The list with reclaimable entries: cold before warm.
    pub(crate) fn age(&self) -> Age {
        match &self.order {
            Order::Ages(ages) if ages.lists[0].head != NONE => Age::Cold,
            Order::Ages(ages) if ages.lists[1].head != NONE => Age::Warm,
            _ => Age::None,
        }
    }

    /// The list to reclaim from: warm only if it is far longer, so that new entries have time to be found.
    pub(crate) fn turn(&self) -> Age {
        match &self.order {
            Order::Ages(ages) => whose_turn(ages.lists[0].len as usize, ages.lists[1].len as usize),
            _ => Age::None,
        }
    }

    /// Number of listed chunks.
    pub(crate) fn listed(&self) -> u32 {
        match &self.order {
            Order::Ages(ages) => ages.lists[0].len + ages.lists[1].len,
            _ => 0,
        }
    }

    /// Moves a chunk to the list where it belongs after a change.
    pub(crate) fn refile(&mut self, slot: usize) {
        if !matches!(self.order, Order::Ages(_)) {
            return;
        }
        let chunk = &self.chunks[slot];
        let should = match (chunk.reclaimable(), chunk.cold()) {
            (0, _) => Age::None,
            (_, 0) => Age::Warm,
            _ => Age::Cold,
        };
        if chunk.age != should {
            self.unlink(slot);
            self.link(slot, should);
        }
    }

    fn link(&mut self, slot: usize, age: Age) {
        let (Order::Ages(ages), Some(list)) = (&mut self.order, list_of(age)) else { return };
        ages.lists[list].len += 1;
        let tail = std::mem::replace(&mut ages.lists[list].tail, slot as u32);
        match tail {
            NONE => ages.lists[list].head = slot as u32,
            tail => self.chunks[tail as usize].after = slot as u32,
        }
        let chunk = &mut self.chunks[slot];
        (chunk.before, chunk.after, chunk.age) = (tail, NONE, age);
    }

    /// Removes a chunk from its list.
    pub(crate) fn unlink(&mut self, slot: usize) {
        let (before, after, age) = {
            let chunk = &self.chunks[slot];
            (chunk.before, chunk.after, chunk.age)
        };
        let (Order::Ages(ages), Some(list)) = (&mut self.order, list_of(age)) else { return };
        ages.lists[list].len -= 1;
        match before {
            NONE => ages.lists[list].head = after,
            before => self.chunks[before as usize].after = after,
        }
        match after {
            NONE => ages.lists[list].tail = before,
            after => self.chunks[after as usize].before = before,
        }
        self.chunks[slot].age = Age::None;
    }

    /// Updates the links after a chunk moved from slot `from` to slot `to`.
    pub(crate) fn moved(&mut self, from: usize, to: usize) {
        let (before, after, age) = {
            let chunk = &self.chunks[to];
            (chunk.before, chunk.after, chunk.age)
        };
        let (Order::Ages(ages), Some(list)) = (&mut self.order, list_of(age)) else { return };
        debug_assert_ne!(from, to);
        match before {
            NONE => ages.lists[list].head = to as u32,
            before => self.chunks[before as usize].after = to as u32,
        }
        match after {
            NONE => ages.lists[list].tail = to as u32,
            after => self.chunks[after as usize].before = to as u32,
        }
    }

    /// Number of entries in the first chunk of the list of `age`. `None` if the list is empty.
    pub(crate) fn first_of(&self, age: Age) -> Option<u32> {
        let (Order::Ages(ages), Some(list)) = (&self.order, list_of(age)) else { return None };
        self.chunks.get(ages.lists[list].head as usize).map(|chunk| chunk.len() as u32)
    }

    /// Visits the first chunk of the list of `age`. `None` if the list is empty.
    pub(crate) fn visit(&mut self, age: Age, need: Need) -> Option<Visit> {
        let (Order::Ages(ages), Some(list)) = (&self.order, list_of(age)) else { return None };
        let slot = ages.lists[list].head;
        if slot == NONE {
            return None;
        }
        let slot = slot as usize;
        let chunk = &mut self.chunks[slot];
        let found = chunk.referenced() & chunk.reclaimable();
        chunk.forget_references(u64::MAX);
        if age == Age::Warm {
            // Too many chunks are warm: entries not found since the last visit lose their protection.
            chunk.protected = found;
        } else {
            chunk.protected |= found;
            if found != 0 && chunk.spared < SPARED_MAX {
                chunk.spared += 1;
                chunk.young = 0;
                self.unlink(slot);
                let age = if self.chunks[slot].cold() == 0 { Age::Warm } else { Age::Cold };
                self.link(slot, age);
                return Some(Visit { reclaimed: 0, moved: 0, joined: false });
            }
        }
        chunk.spared = 0;
        // Entries added since the last visit had no whole round to be found in.
        let young = std::mem::take(&mut chunk.young);
        let victims = chunk.cold() & if need == Need::Urgent { u64::MAX } else { !young };
        let moved = if victims == chunk.all() || victims == 0 { 0 } else { chunk.len() as u32 };
        let mut joined = false;
        if victims == 0 {
            // To the end of its list, or of the other one.
            self.unlink(slot);
            self.refile(slot);
        } else {
            self.erase_all(slot, victims);
            // It may be merged with another chunk, which then decides the list.
            self.unlink(slot);
            joined = self.merge_or_trim(slot, true);
        }
        Some(Visit { reclaimed: victims.count_ones(), moved, joined })
    }

    /// Checks the lists against the chunks.
    ///
    /// # Panics
    /// If they differ.
    pub(crate) fn check_ages(&self) {
        let Order::Ages(ages) = &self.order else { return };
        let mut listed = 0;
        for (age, list) in [Age::Cold, Age::Warm].into_iter().zip(ages.lists) {
            let (mut slot, mut before) = (list.head, NONE);
            while slot != NONE {
                let chunk = &self.chunks[slot as usize];
                assert_eq!((chunk.age, chunk.before), (age, before), "links of chunk {}", chunk.key);
                listed += 1;
                (before, slot) = (slot, chunk.after);
            }
            assert_eq!(list.tail, before, "the tail");
        }
        assert_eq!(listed, (ages.lists[0].len + ages.lists[1].len) as i32, "lengths");
        for chunk in self.chunks.iter() {
            let should = match (chunk.reclaimable(), chunk.cold()) {
                (0, _) => Age::None,
                (_, 0) => Age::Warm,
                _ => Age::Cold,
            };
            assert_eq!(chunk.age, should, "chunk {}", chunk.key);
            listed -= i32::from(chunk.age != Age::None);
        }
        assert_eq!(listed, 0, "chunks on lists");
    }
}
