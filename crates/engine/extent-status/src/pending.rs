//! Which reservations of space an operation uses up, if a cluster has several blocks.
//!
//! A reservation is made per cluster. A cluster with a delayed block needs one, unless it has a block on disk
//! already: then the delayed block will be allocated in that cluster, the cluster is *pending*, and it has no
//! reservation. So:
//!
//! ```text
//! reservations held = clusters with delayed blocks - pending clusters
//! ```
//!
//! Invariant: a pending cluster has a delayed block and a block on disk. Only the caller knows when the last
//! block on disk is freed: see [`Inode::promise_again`](crate::Inode::promise_again).
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014.

use std::collections::BTreeSet;

use crate::body::State;
use crate::tree::Tree;

/// Removed runs of delayed blocks, counted in clusters; added in order.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    pub(crate) clusters: u32,
    first: Option<u32>,
    last: Option<u32>,
}

impl Lost {
    pub(crate) fn add(&mut self, from: u32, to: u32, bits: u32) {
        let (first, last) = (from >> bits, (to - 1) >> bits);
        self.clusters += last - first + u32::from(self.last != Some(first));
        self.first.get_or_insert(first);
        self.last = Some(last);
    }

    fn has_edge(&self, cluster: u32) -> bool {
        self.first == Some(cluster) || self.last == Some(cluster)
    }
}

/// The clusters at both ends of `from..to`, only once if they are the same.
fn edges(from: u32, to: u32, bits: u32) -> impl Iterator<Item = u32> {
    let (first, last) = (from >> bits, (to - 1) >> bits);
    [Some(first), (first != last).then_some(last)].into_iter().flatten()
}

/// Whether any entry in `from..to` satisfies `want`.
pub(crate) fn any(tree: &Tree, from: u32, to: u32, want: impl Fn(&crate::Entry) -> bool) -> bool {
    tree.iter_from(from).take_while(|entry| entry.lblk.0 < to).any(|entry| want(&entry))
}

/// The blocks of a cluster.
pub(crate) fn blocks_of(cluster: u32, bits: u32) -> (u32, u32) {
    let from = cluster << bits;
    (from, from.saturating_add(1 << bits))
}

fn has_delayed(tree: &Tree, cluster: u32, bits: u32) -> bool {
    let (from, to) = blocks_of(cluster, bits);
    any(tree, from, to, |entry| entry.status == crate::Status::Delayed)
}

impl State {
    /// `from..to` was removed, with the delayed blocks in `lost`. Returns the number of reservations no
    /// longer needed.
    pub(crate) fn promises_lost(&mut self, from: u32, to: u32, lost: &Lost, bits: u32) -> u32 {
        let (Some(first), Some(last)) = (lost.first, lost.last) else { return 0 };
        if bits == 0 {
            return lost.clusters;
        }
        let mut count = lost.clusters;
        let stay: Vec<u32> =
            edges(from, to, bits).filter(|edge| has_delayed(&self.tree, *edge, bits)).collect();
        count -= stay.iter().filter(|edge| lost.has_edge(**edge)).count() as u32;
        let Some(pending) = &mut self.pending else { return count };
        let gone: Vec<u32> = pending.range(first..=last).copied().filter(|at| !stay.contains(at)).collect();
        for cluster in gone {
            pending.remove(&cluster);
            count -= 1;
        }
        self.forget_empty();
        count
    }

    /// `from..to` was allocated, over the delayed blocks in `lost`. Returns the number of reservations used
    /// up.
    pub(crate) fn promises_used(&mut self, from: u32, to: u32, lost: &Lost, bits: u32) -> u32 {
        if bits == 0 {
            return lost.clusters;
        }
        let mut count = lost.clusters;
        let stay: Vec<u32> =
            edges(from, to, bits).filter(|edge| has_delayed(&self.tree, *edge, bits)).collect();
        count += stay.iter().filter(|edge| !lost.has_edge(**edge)).count() as u32;
        if let Some(pending) = &mut self.pending {
            let were: Vec<u32> = pending.range(from >> bits..=(to - 1) >> bits).copied().collect();
            count -= were.len() as u32;
            for cluster in were {
                pending.remove(&cluster);
            }
        }
        stay.into_iter().for_each(|cluster| self.add_pending(cluster));
        self.forget_empty();
        count
    }

    pub(crate) fn add_pending(&mut self, cluster: u32) {
        self.pending.get_or_insert_with(Box::<BTreeSet<u32>>::default).insert(cluster);
    }

    pub(crate) fn forget_empty(&mut self) {
        if self.pending.as_ref().is_some_and(|pending| pending.is_empty()) {
            self.pending = None;
        }
    }

    /// Number of reservations that the delayed blocks need.
    pub(crate) fn promises(&self, bits: u32) -> u32 {
        let mut lost = Lost::default();
        for entry in self.tree.iter_from(0).filter(|entry| entry.status == crate::Status::Delayed) {
            lost.add(entry.lblk.0, entry.end(), bits);
        }
        lost.clusters - self.pending.as_ref().map_or(0, |pending| pending.len() as u32)
    }
}
