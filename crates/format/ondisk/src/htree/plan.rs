//! Packed trees: the number of index blocks for a complete list of leaves, their positions, and their bytes.
//!
//! A builder packs the names, sorted by hash, into leaves; this plan computes the smallest index over them.
//! It stores only counts: each index block is computed on its own, in any order, from the first hash of every
//! leaf.
//! leaf.
//!
//! ```text
//! logical block   0       1 ..            .. n        n+1 ..
//!                 root    nodes, level 1  nodes, 2    leaves in hash order
//! ```
//!
//! Invariants
//! 1. Every level has the minimum number of blocks for the level below, and these share their children
//!    evenly: with T children, node i of n begins at child i*T/n. Filling nodes to the limit would take no
//!    fewer blocks, and the first insertion into each full node would have to split it. With even shares all
//!    of the slack is useful.
//! 2. The plan is valid: the depth is within the features, block numbers are within the 28 bits of an index
//!    entry, and without large_dir the directory's size is within 31 bits.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use std::fmt;

use extant_base::Lblk;

use super::{CHILD_MASK, DxEntry, DxFormat, DxKind, RootInfo};

/// The layout of a packed indexed directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPlan {
    format: DxFormat,
    levels: u8,
    /// Blocks of each level: the root (1), nodes of level 1, nodes of level 2, leaves. Missing levels are
    /// omitted, so `counts[levels + 1]` is the number of leaves.
    counts: [u32; 4],
}

/// The names do not fit into an index of this file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// The number of leaves to index.
    pub leaf_count: u64,
    /// Whether large_dir was on. If not, enabling it may help.
    pub large_dir: bool,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = if self.large_dir { "" } else { " without the feature large_dir" };
        write!(f, "a directory of {} leaf blocks is too large for an index{hint}", self.leaf_count)
    }
}

impl std::error::Error for TooLarge {}

impl IndexPlan {
    /// Plans the smallest index over `leaf_count` leaves.
    ///
    /// # Errors
    /// [`TooLarge`] if the features do not allow the depth or the size (invariant 2).
    ///
    /// # Panics
    /// `leaf_count` is 0: an index has a leaf.
    pub fn new(leaf_count: u64, format: &DxFormat) -> Result<Self, TooLarge> {
        assert!(leaf_count > 0, "an index has a leaf");
        let too_large = TooLarge { leaf_count, large_dir: format.large_dir };
        let root_limit = format.limit(DxKind::Root) as u64;
        let node_limit = format.limit(DxKind::Node) as u64;

        let mut upwards = vec![leaf_count];
        let mut top = leaf_count;
        while top > root_limit {
            top = top.div_ceil(node_limit);
            upwards.push(top);
            if upwards.len() > usize::from(format.levels_max()) + 1 {
                return Err(too_large);
            }
        }
        let total = upwards.iter().sum::<u64>() + 1;
        let size = total.checked_mul(format.block_size.bytes()).ok_or(too_large)?;
        // Block numbers have 28 bits and no value for "none": the last block is at most CHILD_MASK.
        if total > u64::from(CHILD_MASK) + 1 || (!format.large_dir && size > i32::MAX as u64) {
            return Err(too_large);
        }
        let mut counts = [0; 4];
        counts[0] = 1;
        for (count, level) in counts[1..].iter_mut().zip(upwards.iter().rev()) {
            *count = *level as u32; // below 2^28
        }
        Ok(Self { format: *format, levels: (upwards.len() - 1) as u8, counts })
    }

    /// Index levels below the root, 0 to 2.
    #[must_use]
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// Number of index blocks, including the root: logical blocks `0..index_blocks()`.
    #[must_use]
    pub fn index_blocks(&self) -> u32 {
        self.counts[..=usize::from(self.levels)].iter().sum()
    }

    /// Number of leaf blocks.
    #[must_use]
    pub fn leaf_count(&self) -> u32 {
        self.counts[usize::from(self.levels) + 1]
    }

    /// Number of blocks of the directory.
    #[must_use]
    pub fn total_blocks(&self) -> u32 {
        self.index_blocks() + self.leaf_count()
    }

    /// The logical block of leaf `i`.
    ///
    /// # Panics
    /// There is no leaf `i`.
    #[must_use]
    pub fn leaf_lblk(&self, i: u32) -> Lblk {
        assert!(i < self.leaf_count(), "leaf {i} of {}", self.leaf_count());
        Lblk(self.index_blocks() + i)
    }

    /// Encodes index block `i` (its logical block number) to `block`, with its checksum.
    ///
    /// `leaf_first_hashes[j]` is the hash of leaf j's first name, with the lowest bit set if the last name of
    /// leaf j - 1 has the same hash; the value for leaf 0 is not used. `inode_seed` is the checksum seed of
    /// the directory's inode (unused without metadata_csum).
    ///
    /// # Panics
    /// `i` is not an index block, `leaf_first_hashes` does not have one hash per leaf, or `block` is not one
    /// block long.
    pub fn encode_index_block(
        &self,
        i: u32,
        leaf_first_hashes: &[u32],
        root: &RootInfo,
        inode_seed: u32,
        block: &mut [u8],
    ) {
        assert_eq!(leaf_first_hashes.len() as u64, u64::from(self.leaf_count()), "one hash per leaf");
        let (level, node) = self.place(i);
        let first_child = self.first_child(level, node);
        let end_child = self.first_child(level, node + 1);
        let children_at: u32 = self.counts[..=level].iter().sum();
        let entries = (first_child..end_child).map(|child| {
            let first_leaf = self.first_leaf(level + 1, child);
            // Entry 0 has no own hash: it covers all hashes below entry 1's.
            let hash = if child == first_child { 0 } else { leaf_first_hashes[first_leaf as usize] };
            DxEntry { hash, block: Lblk(children_at + child) }
        });
        if level == 0 {
            self.format.encode_root(root, self.levels, entries, block);
        } else {
            self.format.encode_node(entries, block);
        }
        self.format.seal(block, inode_seed);
    }

    /// The level of index block `i`, and its index within the level.
    fn place(&self, i: u32) -> (usize, u32) {
        let mut node = i;
        for level in 0..=usize::from(self.levels) {
            if node < self.counts[level] {
                return (level, node);
            }
            node -= self.counts[level];
        }
        panic!("block {i} is not one of {} index blocks", self.index_blocks())
    }

    /// The first block of the next level below block `node` of `level`.
    fn first_child(&self, level: usize, node: u32) -> u32 {
        let children = u64::from(self.counts[level + 1]);
        (u64::from(node) * children / u64::from(self.counts[level])) as u32
    }

    /// The first leaf below block `node` of `level`; for a leaf, the leaf itself.
    fn first_leaf(&self, level: usize, node: u32) -> u32 {
        (level..=usize::from(self.levels)).fold(node, |node, level| self.first_child(level, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::htree::{Lookup, Step};
    use extant_base::{BlockSize, Ino};
    use proptest::prelude::*;

    const ROOT: RootInfo = RootInfo { ino: Ino(12), parent: Ino(2), hash_code: 1, filetype: true };

    fn format(block_size: u64, csum: bool, large_dir: bool) -> DxFormat {
        DxFormat { block_size: BlockSize::from_bytes(block_size).unwrap(), csum, large_dir }
    }

    /// Levels and number of index blocks; `None` if the plan is refused.
    fn plan(leaves: u64, format: &DxFormat) -> Option<(u8, u32)> {
        IndexPlan::new(leaves, format).ok().map(|plan| (plan.levels(), plan.index_blocks()))
    }

    #[test]
    fn capacity_at_4_kib_with_checksums() {
        let (small, large) = (format(4096, true, false), format(4096, true, true));
        assert_eq!(plan(1, &small), Some((0, 1)));
        assert_eq!(plan(507, &small), Some((0, 1)));
        assert_eq!(plan(508, &small), Some((1, 2)));
        assert_eq!(plan(511, &small), Some((1, 3)));
        assert_eq!(plan(258_570, &small), Some((1, 508)));
        assert_eq!(plan(258_571, &small), None);
        assert_eq!(plan(258_571, &large), Some((2, 1 + 1 + 508)));
        assert_eq!(plan(131_870_700, &large), Some((2, 1 + 507 + 258_570)));
        assert_eq!(plan(131_870_701, &large), None);
        assert_eq!(plan(u64::MAX, &large), None);
    }

    #[test]
    fn size_limits_bind_where_blocks_are_large() {
        // 32,767 blocks of 64 KiB are below 2 GiB. The 28 bits of a block number are exhausted before three
        // full levels.
        let small = format(65536, false, false);
        assert_eq!(plan(32_767 - 5, &small), Some((1, 5)));
        assert_eq!(plan(32_767 - 4, &small), None);
        let large = format(65536, false, true);
        assert!(plan((1 << 28) - 40_000, &large).is_some());
        assert_eq!(plan(1 << 28, &large), None);
        assert!(TooLarge { leaf_count: 9, large_dir: false }.to_string().contains("large_dir"));
    }

    /// Encodes the whole index over leaves that begin at hashes 0, 4, 8, ..., and looks names up in it.
    fn every_leaf_is_found(leaves: u32, format: &DxFormat) {
        let plan = IndexPlan::new(leaves.into(), format).unwrap();
        let hashes: Vec<u32> = (0..leaves).map(|i| i * 4).collect();
        let blocks: Vec<Vec<u8>> = (0..plan.index_blocks())
            .map(|i| {
                let mut block = vec![0xEE; format.block_size.len()];
                plan.encode_index_block(i, &hashes, &ROOT, 7, &mut block);
                format.verify(&block, 7).unwrap();
                block
            })
            .collect();
        let find = |hash| {
            let mut lookup = Lookup::by_hash(*format, plan.total_blocks(), hash);
            let mut step = lookup.start();
            while let Step::NeedBlock(lblk) = step {
                step = lookup.feed(&blocks[lblk.0 as usize]).unwrap();
            }
            step
        };
        for i in (0..leaves).step_by((leaves / 1000).max(1) as usize).chain([leaves - 1]) {
            assert_eq!(find(i * 4), Step::Leaf(plan.leaf_lblk(i)));
            assert_eq!(find(i * 4 + 2), Step::Leaf(plan.leaf_lblk(i)));
        }
        // A walk over all leaves visits each once, in order.
        let mut lookup = Lookup::by_hash(*format, plan.total_blocks(), 0);
        let mut step = lookup.start();
        let mut expected = 0;
        loop {
            step = match step {
                Step::NeedBlock(lblk) => lookup.feed(&blocks[lblk.0 as usize]).unwrap(),
                Step::Leaf(lblk) => {
                    assert_eq!(lblk, plan.leaf_lblk(expected));
                    expected += 1;
                    lookup.next_leaf()
                }
                Step::End => break,
            }
        }
        assert_eq!(expected, leaves);
    }

    #[test]
    fn full_trees_of_one_two_and_three_levels_find_every_leaf() {
        let format = format(1024, true, true);
        for leaves in [1, 123, 124, 126, 127, 15_498, 15_499, 40_000] {
            every_leaf_is_found(leaves, &format);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_number_of_leaves_is_found(leaves in 1u32..30_000, csum: bool) {
            every_leaf_is_found(leaves, &format(1024, csum, true));
        }

        #[test]
        fn plans_have_the_fewest_blocks_and_share_them_evenly(leaves in 1u64..140_000_000) {
            let format = format(4096, true, true);
            if let Ok(plan) = IndexPlan::new(leaves, &format) {
                prop_assert_eq!(u64::from(plan.leaf_count()), leaves);
                for level in 0..=usize::from(plan.levels()) {
                    let kind = if level == 0 { DxKind::Root } else { DxKind::Node };
                    let n = plan.counts[level];
                    for node in [0, n / 3, n / 2, n - 1] {
                        let children = plan.first_child(level, node + 1) - plan.first_child(level, node);
                        prop_assert!(children >= 1 && children as usize <= format.limit(kind));
                        prop_assert!(children.abs_diff(plan.counts[level + 1] / n) <= 1);
                    }
                }
            }
        }
    }
}
