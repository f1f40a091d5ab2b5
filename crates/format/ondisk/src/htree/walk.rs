//! Finds the leaf of a name: a walk down the index that does no I/O.
//!
//! The caller runs the loop and reads the blocks; the walk returns the block that it needs next.
//!
//! ```text
//!   start ──> NeedBlock ──feed──> NeedBlock ──feed──> Leaf ──> search it: found
//!                ^                                     │
//!                └──────── next_same_hash / next_leaf ─┴──> End: no leaf left to search
//! ```
//!
//! Does **not** own: checksums (verify a block with [`DxFormat::verify`] before feeding it), and the search
//! in the leaf.
//!
//! Invariants
//! 1. No block is its own ancestor, every child is inside the directory, and the features limit the depth.
//! 2. The walk visits no more leaves than the directory has blocks. So every walk ends, for any bytes.
//! 3. The walk stores a few numbers, but no blocks: to continue with the next leaf it requests the parent's
//!    block again.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use extant_base::{Lblk, Malformed};

use super::{DxEntries, DxFormat};
use crate::hash::{HashVersion, dirhash};

/// The next action or result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Read this index block of the directory and [`feed`](Lookup::feed) it.
    NeedBlock(Lblk),
    /// Search this leaf.
    Leaf(Lblk),
    /// There are no more leaves.
    End,
}

/// A walk down one directory's index.
///
/// ```no_run
/// # use extant_base::{BlockSize, Lblk, Malformed};
/// # use extant_ondisk::htree::*;
/// # fn read(_: Lblk) -> Vec<u8> { vec![] }
/// # fn leaf_has(_: &[u8], _: &[u8]) -> bool { true }
/// # fn demo(format: DxFormat, dir_blocks: u32, seed: [u32; 4]) -> Result<bool, Malformed> {
/// let mut lookup = Lookup::by_name(format, dir_blocks, seed, false, b"name");
/// let mut step = lookup.start();
/// loop {
///     step = match step {
///         Step::NeedBlock(lblk) => lookup.feed(&read(lblk))?,
///         Step::Leaf(lblk) if leaf_has(&read(lblk), b"name") => return Ok(true),
///         Step::Leaf(_) => lookup.next_same_hash(),
///         Step::End => return Ok(false),
///     };
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Lookup<'n> {
    format: DxFormat,
    dir_blocks: u32,
    key: Key<'n>,
    /// The sought hash with its lowest bit clear. For a name it is known after the root, which has the hash
    /// version.
    hash: u32,
    levels: usize,
    path: [Frame; LEVELS_MAX],
    requested: Option<Requested>,
    leaves_seen: u32,
}

/// The root and at most two nodes.
const LEVELS_MAX: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Key<'n> {
    Name { name: &'n [u8], seed: [u32; 4], unsigned: bool },
    Hash,
}

/// One index block on the path: its logical block, and the index of the path's entry in it.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    block: Lblk,
    at: usize,
    next_hash: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Requested {
    level: usize,
    block: Lblk,
    pick: Pick,
}

/// The choice of the path's entry in the requested block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pick {
    ByHash,
    At(usize),
}

impl<'n> Lookup<'n> {
    /// Starts a walk to the leaf of `name` in a directory of `dir_blocks` blocks.
    ///
    /// `seed` is the superblock's hash seed as words, `unsigned` its signedness flag
    /// ([`HashVersion::from_code`]). In a casefolded directory `name` is already folded.
    #[must_use]
    pub fn by_name(
        format: DxFormat,
        dir_blocks: u32,
        seed: [u32; 4],
        unsigned: bool,
        name: &'n [u8],
    ) -> Self {
        Self::new(format, dir_blocks, Key::Name { name, seed, unsigned }, 0)
    }

    /// Starts a walk to the leaf of a hash: for readdir (`hash` 0 is the first leaf), and for hashes that
    /// depend on more than the name.
    #[must_use]
    pub fn by_hash(format: DxFormat, dir_blocks: u32, hash: u32) -> Self {
        Self::new(format, dir_blocks, Key::Hash, hash & !1)
    }

    fn new(format: DxFormat, dir_blocks: u32, key: Key<'n>, hash: u32) -> Self {
        let path = [Frame::default(); LEVELS_MAX];
        Self { format, dir_blocks, key, hash, levels: 0, path, requested: None, leaves_seen: 0 }
    }

    /// Starts, or restarts, by requesting block 0.
    pub fn start(&mut self) -> Step {
        self.leaves_seen = 0;
        self.want(Requested { level: 0, block: Lblk(0), pick: Pick::ByHash })
    }

    /// Processes the block that the last [`Step::NeedBlock`] requested.
    ///
    /// # Errors
    /// The first broken rule. Also if a name's hash cannot be computed, because the directory uses SipHash.
    ///
    /// # Panics
    /// No block was requested.
    pub fn feed(&mut self, block: &[u8]) -> Result<Step, Malformed> {
        let Requested { level, block: lblk, pick } =
            self.requested.take().expect("feed() answers a NeedBlock");
        let entries =
            if level == 0 { self.enter_root(block, pick)? } else { self.format.decode_node(block)? };
        let at = match pick {
            Pick::ByHash => entries.position(self.hash),
            Pick::At(at) => at,
        };
        let Some(entry) = entries.get(at) else {
            return Err(Malformed::new("index block", "must keep its entries during a walk", at as u64));
        };
        self.path[level] = Frame { block: lblk, at, next_hash: entries.get(at + 1).map(|next| next.hash) };

        let child = entry.block;
        let rule = |holds, rule| Malformed::unless(holds, "index block", rule, child.0);
        rule(child.0 < self.dir_blocks, "child must lie inside the directory")?;
        rule(self.path[..=level].iter().all(|frame| frame.block != child), "child must not be an ancestor")?;
        if level < self.levels {
            let pick = if pick == Pick::ByHash { Pick::ByHash } else { Pick::At(0) };
            return Ok(self.want(Requested { level: level + 1, block: child, pick }));
        }
        self.leaves_seen += 1;
        rule(self.leaves_seen <= self.dir_blocks, "leaves must not be repeated")?;
        Ok(Step::Leaf(child))
    }

    /// After a [`Step::Leaf`] without the name: continues with the next leaf if it has names of the same
    /// hash.
    pub fn next_same_hash(&mut self) -> Step {
        match self.next_hash() {
            Some(next) if next == self.hash | 1 => self.next_leaf(),
            _ => Step::End,
        }
    }

    /// After a [`Step::Leaf`]: continues with the next leaf in hash order, for any hash.
    pub fn next_leaf(&mut self) -> Step {
        match self.turning_level() {
            Some(level) => {
                let Frame { block, at, .. } = self.path[level];
                self.want(Requested { level, block, pick: Pick::At(at + 1) })
            }
            None => Step::End,
        }
    }

    /// After a [`Step::Leaf`]: the lowest hash of the next leaf, with the continuation flag; `None` at the
    /// last leaf.
    #[must_use]
    pub fn next_hash(&self) -> Option<u32> {
        self.turning_level().and_then(|level| self.path[level].next_hash)
    }

    /// The hash that the walk looks for. For a name it is known after the root was fed.
    #[must_use]
    pub fn hash(&self) -> u32 {
        self.hash
    }

    /// The lowest index block of the path that has an entry after the path's.
    fn turning_level(&self) -> Option<usize> {
        (0..=self.levels).rev().find(|&level| self.path[level].next_hash.is_some())
    }

    fn want(&mut self, requested: Requested) -> Step {
        self.requested = Some(requested);
        Step::NeedBlock(requested.block)
    }

    fn enter_root<'a>(&mut self, block: &'a [u8], pick: Pick) -> Result<DxEntries<'a>, Malformed> {
        let root = self.format.decode_root(block)?;
        let levels = usize::from(root.levels);
        if pick != Pick::ByHash {
            // The rest of the path has the old depth.
            let same = levels == self.levels;
            Malformed::unless(
                same,
                "index root",
                "must keep its depth during a walk",
                u32::from(root.levels),
            )?;
        }
        self.levels = levels;
        if let Key::Name { name, seed, unsigned } = self.key {
            let hash = HashVersion::from_code(root.hash_code, unsigned).and_then(|v| dirhash(v, &seed, name));
            let Some(hash) = hash else {
                return Err(Malformed::new(
                    "index root",
                    "hash version must need no key",
                    u32::from(root.hash_code),
                ));
            };
            self.hash = hash.hash;
        }
        Ok(root.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::htree::{DxEntry, RootInfo};
    use extant_base::{BlockSize, Ino};
    use proptest::prelude::*;

    const FORMAT: DxFormat = DxFormat { block_size: BlockSize::MIN, csum: false, large_dir: true };
    const ROOT: RootInfo = RootInfo { ino: Ino(12), parent: Ino(2), hash_code: 1, filetype: true };

    fn index(levels: Option<u8>, entries: &[(u32, u32)]) -> Vec<u8> {
        let mut block = vec![0; 1024];
        let entries = entries.iter().map(|&(hash, block)| DxEntry { hash, block: Lblk(block) });
        match levels {
            Some(levels) => FORMAT.encode_root(&ROOT, levels, entries, &mut block),
            None => FORMAT.encode_node(entries, &mut block),
        }
        block
    }

    /// All leaves that a lookup of `hash` visits.
    fn leaves_for(dir: &[Vec<u8>], hash: u32, all: bool) -> Result<Vec<u32>, &'static str> {
        let mut lookup = Lookup::by_hash(FORMAT, dir.len() as u32, hash);
        let mut step = lookup.start();
        let mut leaves = Vec::new();
        loop {
            step = match step {
                Step::NeedBlock(lblk) => lookup.feed(&dir[lblk.0 as usize]).map_err(|e| e.rule)?,
                Step::Leaf(lblk) => {
                    leaves.push(lblk.0);
                    if all { lookup.next_leaf() } else { lookup.next_same_hash() }
                }
                Step::End => return Ok(leaves),
            }
        }
    }

    /// Root over nodes 1 and 2, leaves 3 to 6. The names of hash 0x40 are at the end of leaf 4, in all of
    /// leaf 5 and at the start of leaf 6.
    fn two_level_dir() -> Vec<Vec<u8>> {
        vec![
            index(Some(1), &[(0, 1), (0x41, 2)]),
            index(None, &[(0, 3), (0x20, 4)]),
            index(None, &[(0, 5), (0x41, 6)]),
            vec![],
            vec![],
            vec![],
            vec![],
        ]
    }

    #[test]
    fn a_hash_finds_its_leaf_and_the_leaves_that_continue_it() {
        let dir = two_level_dir();
        assert_eq!(leaves_for(&dir, 0x10, false), Ok(vec![3]));
        assert_eq!(leaves_for(&dir, 0x20, false), Ok(vec![4]));
        assert_eq!(leaves_for(&dir, 0x40, false), Ok(vec![4, 5, 6]), "continued over a node boundary");
        assert_eq!(leaves_for(&dir, 0x42, false), Ok(vec![6]));
        assert_eq!(leaves_for(&dir, 0, true), Ok(vec![3, 4, 5, 6]));
    }

    #[test]
    fn a_leaf_returns_where_the_next_begins() {
        let dir = two_level_dir();
        let mut lookup = Lookup::by_hash(FORMAT, 7, 0x30);
        let Step::NeedBlock(root) = lookup.start() else { panic!() };
        assert_eq!(lookup.feed(&dir[root.0 as usize]), Ok(Step::NeedBlock(Lblk(1))));
        assert_eq!(lookup.feed(&dir[1]), Ok(Step::Leaf(Lblk(4))));
        assert_eq!(lookup.next_hash(), Some(0x41));
    }

    #[test]
    fn cycles_and_children_outside_are_refused() {
        let outside = [index(Some(0), &[(0, 9)])];
        assert_eq!(leaves_for(&outside, 0, false), Err("child must lie inside the directory"));
        let own_child = [index(Some(0), &[(0, 0)])];
        assert_eq!(leaves_for(&own_child, 0, false), Err("child must not be an ancestor"));
        let cycle = [index(Some(2), &[(0, 1)]), index(None, &[(0, 1)])];
        assert_eq!(leaves_for(&cycle, 0, false), Err("child must not be an ancestor"));
        let repeated = [index(Some(0), &[(0, 1), (2, 1), (4, 1), (6, 1)]), vec![], vec![]];
        assert_eq!(leaves_for(&repeated, 0, true), Err("leaves must not be repeated"));
    }

    #[test]
    fn a_name_cannot_be_hashed_without_the_key() {
        let mut root = index(Some(0), &[(0, 1)]);
        root[0x1C] = 6;
        let mut lookup = Lookup::by_name(FORMAT, 2, [0; 4], false, b"x");
        let _ = lookup.start();
        assert_eq!(lookup.feed(&root).unwrap_err().rule, "hash version must need no key");
    }

    proptest! {
        #[test]
        fn every_walk_ends(
            children in prop::collection::vec(prop::collection::vec((0u32..8, 0u32..9), 1..9), 8),
            levels in 0u8..=2, hash in 0u32..10, all: bool,
        ) {
            let dir: Vec<_> = children.iter().enumerate()
                .map(|(i, entries)| index((i == 0).then_some(levels), entries))
                .collect();
            if let Ok(leaves) = leaves_for(&dir, hash, all) {
                prop_assert!(leaves.len() <= dir.len());
            }
        }
    }
}
