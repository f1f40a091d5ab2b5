//! Claimed clusters: one bit per cluster, and a second bit where a cluster was claimed twice.
//!
//! Does **not** own: the owners of a cluster (see [`crate::pass1::shared`]), the validity of a claim (see
//! [`crate::pass1`]).
//! Invariants
//! 1. Memory is allocated per group, at the first claim in it.
//! 2. The final bits do not depend on the order of claims.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::{Group, Pblk};
use extant_ondisk::Geometry;

type Words = Box<[AtomicU64]>;

/// One bit per cluster, allocated per group at the first access.
#[derive(Debug)]
struct Bits {
    groups: Vec<OnceLock<Words>>,
}

impl Bits {
    fn group(&self, group: usize, words: usize) -> Option<&Words> {
        let slot = self.groups.get(group)?;
        Some(slot.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}

/// The clusters in use.
#[derive(Debug)]
pub(crate) struct Claims {
    first_data_block: u64,
    cluster_log: u32,
    clusters_per_group: u32,
    words: usize,
    once: Bits,
    twice: Bits,
    any_twice: AtomicBool,
}

/// The claim overlaps an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken;

impl Claims {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let bits = || Bits { groups: (0..geometry.groups).map(|_| OnceLock::new()).collect() };
        let clusters_per_group = geometry.clusters_per_group();
        Self {
            first_data_block: geometry.first_data_block.into(),
            cluster_log: geometry.cluster_log,
            clusters_per_group,
            words: clusters_per_group.div_ceil(64) as usize,
            once: bits(),
            twice: bits(),
            any_twice: AtomicBool::new(false),
        }
    }

    /// The cluster of a block, counted from the first cluster of the first group.
    pub(crate) fn cluster_of(&self, block: Pblk) -> u64 {
        block.0.saturating_sub(self.first_data_block) >> self.cluster_log
    }

    /// The first block of a cluster.
    pub(crate) fn block_of(&self, cluster: u64) -> Pblk {
        Pblk((cluster << self.cluster_log) + self.first_data_block)
    }

    /// Claims the clusters `first..=last`.
    pub(crate) fn claim(&self, first: u64, last: u64) -> Result<(), Taken> {
        let mut result = Ok(());
        self.each_word(first, last, |group, word, mask| {
            let Some(words) = self.once.group(group, self.words) else { return };
            let before = words[word].fetch_or(mask, Ordering::Relaxed);
            if before & mask != 0 {
                result = Err(Taken);
                self.any_twice.store(true, Ordering::Relaxed);
                if let Some(words) = self.twice.group(group, self.words) {
                    words[word].fetch_or(before & mask, Ordering::Relaxed);
                }
            }
        });
        result
    }

    /// Claims the clusters of fixed metadata; different structures may share a cluster.
    pub(crate) fn claim_fixed(&self, first: u64, last: u64) {
        self.each_word(first, last, |group, word, mask| {
            if let Some(words) = self.once.group(group, self.words) {
                words[word].fetch_or(mask, Ordering::Relaxed);
            }
        });
    }

    /// Was any cluster claimed twice?
    pub(crate) fn any_twice(&self) -> bool {
        self.any_twice.load(Ordering::Relaxed)
    }

    /// The clusters of `first..=last` that were claimed twice.
    pub(crate) fn twice_within(&self, first: u64, last: u64, mut each: impl FnMut(u64)) {
        self.each_word(first, last, |group, word, mask| {
            let Some(words) = self.twice.groups.get(group).and_then(OnceLock::get) else { return };
            let mut found = words[word].load(Ordering::Relaxed) & mask;
            while found != 0 {
                let bit = found.trailing_zeros();
                each(group as u64 * u64::from(self.clusters_per_group) + word as u64 * 64 + u64::from(bit));
                found &= found - 1;
            }
        });
    }

    /// All clusters that were claimed twice, in order.
    pub(crate) fn each_twice(&self, mut each: impl FnMut(u64)) {
        let per_group = u64::from(self.clusters_per_group);
        for (group, words) in self.twice.groups.iter().enumerate() {
            if words.get().is_some() {
                let first = group as u64 * per_group;
                self.twice_within(first, first + per_group - 1, &mut each);
            }
        }
    }

    /// The claims of a group, 64 clusters per word, lowest bit first; `None` if there are none.
    pub(crate) fn group(&self, group: Group) -> Option<&[AtomicU64]> {
        self.once.groups.get(group.0 as usize)?.get().map(AsRef::as_ref)
    }

    fn each_word(&self, first: u64, last: u64, mut each: impl FnMut(usize, usize, u64)) {
        let per_group = u64::from(self.clusters_per_group);
        let mut at = first;
        while at <= last {
            let (group, within) = (at / per_group, at % per_group);
            let (word, bit) = (within / 64, within % 64);
            let count = (64 - bit).min(per_group - within).min(last - at + 1);
            let mask = (u64::MAX >> (64 - count)) << bit;
            each(group as usize, word as usize, mask);
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_ondisk::Superblock;

    fn claims() -> Claims {
        let sb = Superblock {
            blocks_count: 1000,
            blocks_per_group: 104,
            inodes_per_group: 16,
            first_data_block: 1,
            inode_size: 128,
            rev_level: 1,
            ..Superblock::default()
        };
        Claims::new(&Geometry::new(&sb).unwrap())
    }

    #[test]
    fn a_second_claim_is_reported_and_kept() {
        let claims = claims();
        assert_eq!(claims.claim(100, 300), Ok(()));
        assert!(!claims.any_twice());
        assert_eq!(claims.claim(290, 310), Err(Taken));
        assert_eq!(claims.claim(301, 301), Err(Taken));
        let mut twice = Vec::new();
        claims.twice_within(0, 998, |cluster| twice.push(cluster));
        assert_eq!(twice, (290..=301).collect::<Vec<_>>());
        twice.clear();
        claims.each_twice(|cluster| twice.push(cluster));
        assert_eq!(twice, (290..=301).collect::<Vec<_>>());
        let set = |group| {
            claims.group(Group(group)).unwrap().iter().map(|w| w.load(Ordering::Relaxed).count_ones())
        };
        assert_eq!(set(0).sum::<u32>(), 4);
        assert_eq!(set(1).sum::<u32>(), 104);
        assert!(claims.group(Group(5)).is_none());
    }

    #[test]
    fn fixed_claims_may_meet() {
        let claims = claims();
        claims.claim_fixed(0, 10);
        claims.claim_fixed(5, 12);
        assert!(!claims.any_twice());
        assert_eq!(claims.claim(12, 12), Err(Taken));
        assert_eq!(claims.block_of(claims.cluster_of(Pblk(77))), Pblk(77));
    }
}
