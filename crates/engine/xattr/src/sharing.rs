//! An index of attribute blocks, so that inodes with equal attributes share a block.

use std::collections::{HashMap, VecDeque};

use extant_base::Pblk;

/// Blocks kept per hash: the newest. Older ones are usually shared by 1024 inodes already, which is the
/// limit.
const PER_HASH_MAX: usize = 4;

/// Attribute blocks by the hash of their entries. A hint: blocks may be missing, and a block is verified
/// before use. A block is removed before it is changed or freed.
#[derive(Debug)]
pub struct BlockIndex {
    by_hash: HashMap<u32, [Pblk; PER_HASH_MAX]>,
    /// Inserted blocks, oldest first; some may have been removed.
    order: VecDeque<(u32, Pblk)>,
    hashes_max: usize,
}

impl BlockIndex {
    /// An index of blocks with at most `hashes_max` different hashes.
    #[must_use]
    pub fn new(hashes_max: usize) -> Self {
        Self { by_hash: HashMap::new(), order: VecDeque::new(), hashes_max: hashes_max.max(1) }
    }

    /// Adds a block with this hash. Hash 0 means unknown, and is ignored.
    pub fn insert(&mut self, hash: u32, block: Pblk) {
        if hash == 0 || block.0 == 0 {
            return;
        }
        let blocks = self.by_hash.entry(hash).or_insert([Pblk(0); PER_HASH_MAX]);
        if blocks.contains(&block) {
            return;
        }
        blocks.rotate_right(1);
        blocks[0] = block;
        self.order.push_back((hash, block));
        while self.by_hash.len() > self.hashes_max || self.order.len() > PER_HASH_MAX * self.hashes_max {
            let Some((hash, block)) = self.order.pop_front() else { break };
            self.remove_from_hash(hash, block);
        }
    }

    /// Removes a block.
    pub fn remove(&mut self, hash: u32, block: Pblk) {
        self.remove_from_hash(hash, block);
    }

    /// The blocks that may have this hash, newest first; at most 4.
    pub fn candidates(&self, hash: u32) -> impl Iterator<Item = Pblk> + '_ {
        self.by_hash.get(&hash).into_iter().flatten().copied().filter(|block| block.0 != 0)
    }

    fn remove_from_hash(&mut self, hash: u32, block: Pblk) {
        let Some(blocks) = self.by_hash.get_mut(&hash) else { return };
        if let Some(at) = blocks.iter().position(|known| *known == block) {
            blocks[at..].rotate_left(1);
            blocks[PER_HASH_MAX - 1] = Pblk(0);
        }
        if blocks.iter().all(|block| block.0 == 0) {
            self.by_hash.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_blocks_are_remembered() {
        let mut index = BlockIndex::new(10);
        for block in 1..=6 {
            index.insert(7, Pblk(block));
            index.insert(7, Pblk(block));
        }
        index.insert(0, Pblk(9));
        let of = |index: &BlockIndex, hash| index.candidates(hash).map(|block| block.0).collect::<Vec<_>>();
        assert_eq!(of(&index, 7), [6, 5, 4, 3]);
        index.remove(7, Pblk(5));
        assert_eq!((of(&index, 7), of(&index, 0)), (vec![6, 4, 3], vec![]));
        for hash in 100..200 {
            index.insert(hash, Pblk(hash.into()));
        }
        assert!(of(&index, 7).is_empty());
        assert_eq!(of(&index, 199), [199]);
        assert!(index.by_hash.len() <= 10 && index.order.len() <= 40);
        for block in 0..1000 {
            index.insert(5, Pblk(block));
            index.remove(5, Pblk(block));
        }
        assert!(index.order.len() <= 40);
    }
}
