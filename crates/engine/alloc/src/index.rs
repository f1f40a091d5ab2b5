//! The ordered index: the groups that may satisfy a length, in the order of their numbers.
//!
//! ```text
//! by longest run:  order 0 {}  order 1 {7}  ...  order 12 {3, 9}    2^order <= longest run < 2^(order + 1)
//! by average run:  order 0 {7}  ...  order 5 {3}  order 6 {9}       the same of free / runs
//! ```
//!
//! Invariants
//! 1. A group with free clusters is in one set of each kind; a group that is full or set aside is in none.
//! 2. By longest run, a group is at its true order or above; a failed search of the group corrects it.
//!
//! Locks: one per set, never two together; ordered after a group's lock.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_base::rank::{self, Mutex};

/// A group has at most 2^19 clusters (with blocks of 64 KiB).
pub(crate) const ORDERS: u32 = 20;

/// The key by which groups are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Longest run of free clusters.
    Longest,
    /// Average run of free clusters.
    Average,
}

#[derive(Default)]
struct Set {
    len: AtomicUsize,
    groups: Mutex<BTreeSet<u32>, { rank::ALLOC_SET }>,
}

/// The sets of both kinds, by order.
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

    /// Whether no group is at this order. Not exact: another thread may be adding one.
    #[inline]
    pub(crate) fn is_empty(&self, by: By, order: u32) -> bool {
        self.sets(by).get(order as usize).is_none_or(|set| set.len.load(Ordering::Relaxed) == 0)
    }

    /// The first group of `from..to` at this order.
    pub(crate) fn next(&self, by: By, order: u32, from: u32, to: u32) -> Option<u32> {
        let set = self.sets(by).get(order as usize)?;
        if from >= to {
            return None;
        }
        set.groups.lock().range(from..to).next().copied()
    }

    /// Moves a group from one order to another; `None` means in no set.
    pub(crate) fn move_group(&self, by: By, group: u32, from: Option<u8>, to: Option<u8>) {
        // Insert before remove: a concurrent search must not miss the group.
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
