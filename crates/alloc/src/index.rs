//! The ordered index: which groups are worth a look for a length, in the order of their numbers.
//!
//! ```text
//! by longest run:   order 0 {}  order 1 {7}  ...  order 12 {3, 9}      2^order <= longest run < 2^(order + 1)
//! by average run:   order 0 {7} ...  order 5 {3}  order 6 {9}          the same of free / runs
//! ```
//!
//! Invariants
//! 1. A group that can give something is in one set of each kind; a group that is full or damaged is in none.
//! 2. By longest run, a group stands at its true order or above: a search that failed there corrects it.
//!
//! Locks: one per set, no two held together; taken below a group's.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// A group has at most 2^19 clusters (blocks of 64 KiB).
pub(crate) const ORDERS: u32 = 20;

/// What groups are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Longest run of free clusters.
    Longest,
    /// Average run.
    Average,
}

#[derive(Default)]
struct Set {
    len: AtomicUsize,
    groups: Mutex<BTreeSet<u32>>,
}

/// The sets.
#[derive(Default)]
pub(crate) struct Index {
    longest: [Set; ORDERS as usize],
    average: [Set; ORDERS as usize],
}

impl Index {
    fn sets(&self, by: By) -> &[Set; ORDERS as usize] {
        match by {
            By::Longest => &self.longest,
            By::Average => &self.average,
        }
    }

    /// Is no group at this order? A glance: another thread may be putting one there.
    #[inline]
    pub(crate) fn is_empty(&self, by: By, order: u32) -> bool {
        self.sets(by).get(order as usize).is_none_or(|set| set.len.load(Ordering::Relaxed) == 0)
    }

    /// The first group of `from..to` that stands at this order.
    pub(crate) fn next(&self, by: By, order: u32, from: u32, to: u32) -> Option<u32> {
        let set = self.sets(by).get(order as usize)?;
        if from >= to {
            return None;
        }
        set.groups.lock().range(from..to).next().copied()
    }

    /// Moves a group from one order to another; `None` is not there.
    pub(crate) fn move_group(&self, by: By, group: u32, from: Option<u8>, to: Option<u8>) {
        // Insert before remove: a reader must not miss it.
        if let Some(set) = to.and_then(|order| self.sets(by).get(usize::from(order))) {
            let mut groups = set.groups.lock();
            groups.insert(group);
            set.len.store(groups.len(), Ordering::Relaxed);
        }
        if let Some(set) = from.and_then(|order| self.sets(by).get(usize::from(order))) {
            let mut groups = set.groups.lock();
            groups.remove(&group);
            set.len.store(groups.len(), Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(crate) fn orders_of(&self, by: By, group: u32) -> Vec<u8> {
        let sets = self.sets(by).iter().enumerate();
        sets.filter(|(_, set)| set.groups.lock().contains(&group)).map(|(order, _)| order as u8).collect()
    }
}
