//! Extent trees: a root of four entries in `i_block`, nodes of one block each, up to five levels deep.
//!
//! Owns nodes as bytes, both decoded ([`ExtentNode`]) and in place ([`NodeView`], [`splice`]), their
//! checksum, the shape of a packed tree, and a walker that does no I/O. Does **not** own insertion into or
//! removal from a live tree (see `mapping`).
//!
//! Source: kernel Documentation/filesystems/ext4/ifork.rst.

use extant_base::checksum::crc32c;
use extant_base::le::{u16_at, u32_at};
use extant_base::{BlockSize, Malformed, Pblk};

mod raw;

pub use raw::{NodeView, Slot, init_node, set_key, splice};

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// Longest written extent, in blocks.
pub const MAX_WRITTEN_LEN: u32 = 32_768;
/// Longest unwritten extent, in blocks.
pub const MAX_UNWRITTEN_LEN: u32 = 32_767;
/// Maximum depth that the kernel accepts.
pub const MAX_DEPTH: u16 = 5;
/// Entries in the root.
pub const ROOT_ENTRIES: usize = 4;

const HEADER: usize = 12;
const ENTRY: usize = 12;

/// A run of blocks: logical blocks `lblk..lblk+len` are at physical blocks `start..start+len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First logical block.
    pub lblk: u32,
    /// Length in blocks: 1 to 32768, or to 32767 if unwritten.
    pub len: u32,
    /// First physical block, 48 bits.
    pub start: u64,
    /// The blocks are allocated but read as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The logical block after the last one; up to 2^32.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.lblk) + u64::from(self.len)
    }

    /// The maximum length of an extent in this state, in blocks.
    #[must_use]
    pub fn len_max(unwritten: bool) -> u32 {
        if unwritten { MAX_UNWRITTEN_LEN } else { MAX_WRITTEN_LEN }
    }

    /// One extent for this one and `next`. `None` unless `next` follows in the file and on the device, has
    /// the same state, and both together fit the maximum length.
    #[must_use]
    pub fn merged(&self, next: &Self) -> Option<Self> {
        let len = self.len.checked_add(next.len).filter(|len| *len <= Self::len_max(self.unwritten))?;
        let follows = self.unwritten == next.unwritten
            && self.end() == u64::from(next.lblk)
            && self.start.checked_add(self.len.into()) == Some(next.start);
        follows.then_some(Self { len, ..*self })
    }

    /// Encodes the extent as an entry of a leaf.
    #[must_use]
    pub fn slot(&self) -> Slot {
        let mut slot = [0; ENTRY];
        encode_extent(self, &mut slot);
        slot
    }
}

impl Index {
    /// Encodes the index as an entry of an inner node.
    #[must_use]
    pub fn slot(&self) -> Slot {
        let mut slot = [0; ENTRY];
        encode_index(self, &mut slot);
        slot
    }
}

/// An entry of an inner node: the subtree `child` maps the blocks from `lblk` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Index {
    /// First logical block that the subtree may map.
    pub lblk: u32,
    /// Block of the child node, 48 bits.
    pub child: u64,
}

/// A node's entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entries {
    /// Depth 0.
    Leaf(Vec<Extent>),
    /// Depth 1 and more.
    Inner(Vec<Index>),
}

/// A node of an extent tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentNode {
    /// Levels below this node.
    pub depth: u16,
    /// Capacity in entries (`eh_max`).
    pub max: u16,
    /// `eh_generation`, preserved.
    pub generation: u32,
    /// The entries, in order.
    pub entries: Entries,
}

/// Capacity in entries of a node that fills a block.
#[must_use]
pub fn entries_per_block(block_size: BlockSize) -> usize {
    (block_size.len() - HEADER) / ENTRY
}

impl ExtentNode {
    /// Decodes a node from `i_block` (60 bytes) or a whole block. It checks the rules that concern a single
    /// node: entries sorted and not overlapping, lengths not zero, within 2^32 logical blocks.
    ///
    /// # Errors
    /// The broken rule.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let view = NodeView::verified(bytes)?;
        let entries = if view.depth() == 0 {
            Entries::Leaf((0..view.len()).filter_map(|at| view.extent(at)).collect())
        } else {
            Entries::Inner((0..view.len()).filter_map(|at| view.index(at)).collect())
        };
        Ok(Self { depth: view.depth(), max: u16_at(bytes, 4), generation: u32_at(bytes, 8), entries })
    }

    /// Encodes the node to `out` (60 bytes or a block), without a checksum. Space after the entries becomes
    /// zero.
    ///
    /// # Panics
    /// The entries do not fit `out`: a bug of the caller, which chose the shape.
    pub fn encode(&self, out: &mut [u8]) {
        out.fill(0);
        let count = match &self.entries {
            Entries::Leaf(extents) => extents.len(),
            Entries::Inner(indexes) => indexes.len(),
        };
        put_header(out, count, self.max, self.depth, self.generation);
        let slots = out[HEADER..].chunks_exact_mut(ENTRY);
        match &self.entries {
            Entries::Leaf(extents) => slots.zip(extents).for_each(|(slot, e)| encode_extent(e, slot)),
            Entries::Inner(indexes) => slots.zip(indexes).for_each(|(slot, i)| encode_index(i, slot)),
        }
    }
}

fn put_header(out: &mut [u8], count: usize, max: u16, depth: u16, generation: u32) {
    assert!(HEADER + count * ENTRY <= out.len(), "{count} entries do not fit {} bytes", out.len());
    out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
    out[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    out[4..6].copy_from_slice(&max.to_le_bytes());
    out[6..8].copy_from_slice(&depth.to_le_bytes());
    out[8..12].copy_from_slice(&generation.to_le_bytes());
}

fn decode_extent(slot: &[u8]) -> Extent {
    let raw_len = u32::from(u16_at(slot, 4));
    let unwritten = raw_len > MAX_WRITTEN_LEN;
    Extent {
        lblk: u32_at(slot, 0),
        len: if unwritten { raw_len - MAX_WRITTEN_LEN } else { raw_len },
        start: u64::from(u16_at(slot, 6)) << 32 | u64::from(u32_at(slot, 8)),
        unwritten,
    }
}

fn encode_extent(extent: &Extent, slot: &mut [u8]) {
    let raw_len = if extent.unwritten { extent.len + MAX_WRITTEN_LEN } else { extent.len };
    slot[0..4].copy_from_slice(&extent.lblk.to_le_bytes());
    slot[4..6].copy_from_slice(&(raw_len as u16).to_le_bytes());
    slot[6..8].copy_from_slice(&((extent.start >> 32) as u16).to_le_bytes());
    slot[8..12].copy_from_slice(&(extent.start as u32).to_le_bytes());
}

fn decode_index(slot: &[u8]) -> Index {
    Index { lblk: u32_at(slot, 0), child: u64::from(u32_at(slot, 4)) | u64::from(u16_at(slot, 8)) << 32 }
}

fn encode_index(index: &Index, slot: &mut [u8]) {
    slot[0..4].copy_from_slice(&index.lblk.to_le_bytes());
    slot[4..8].copy_from_slice(&(index.child as u32).to_le_bytes());
    slot[8..10].copy_from_slice(&((index.child >> 32) as u16).to_le_bytes());
    slot[10..12].fill(0);
}

/// Offset of a block node's checksum: after the space for `eh_max` entries. `None` if it does not fit the
/// block.
fn checksum_at(block: &[u8]) -> Option<usize> {
    let at = HEADER + ENTRY * usize::from(u16_at(block.get(..HEADER)?, 4));
    (at + 4 <= block.len()).then_some(at)
}

/// Stores the checksum of a block node. Never of the root, which the inode's checksum covers.
///
/// # Panics
/// `eh_max` leaves no space for it: a bug of the caller, which encoded the node.
pub fn seal(block: &mut [u8], inode_seed: u32) {
    let at = checksum_at(block).expect("an encoded node has room for its checksum");
    let sum = crc32c(inode_seed, &block[..at]);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Whether a block node's checksum is right. False if `eh_max` leaves no space for one.
#[must_use]
pub fn verify(block: &[u8], inode_seed: u32) -> bool {
    checksum_at(block).is_some_and(|at| crc32c(inode_seed, &block[..at]).to_le_bytes() == block[at..at + 4])
}

/// The shape of a packed tree over a number of extents: the number of nodes of each level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeShape {
    /// Nodes per level in their own blocks, from the level below the root down to the leaves. Empty if the
    /// extents fit the root.
    pub levels: Vec<usize>,
}

impl TreeShape {
    /// The shape for `extents` extents: all nodes of a level are full, except the last.
    #[must_use]
    pub fn for_extents(extents: usize, block_size: BlockSize) -> Self {
        let per_node = entries_per_block(block_size);
        let mut levels = Vec::new();
        let mut entries = extents;
        while entries > ROOT_ENTRIES {
            entries = entries.div_ceil(per_node);
            levels.insert(0, entries);
        }
        Self { levels }
    }

    /// Blocks that the tree needs outside the inode.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.levels.iter().sum()
    }
}

/// Encodes a packed tree: the 60 bytes of `i_block`, and the bytes of the nodes in the order of
/// `node_blocks`, level by level from the top. With `inode_seed` the checksums are stored, too.
///
/// # Panics
/// The length of `node_blocks` differs from [`TreeShape::blocks`].
pub fn encode_tree(
    extents: &[Extent],
    block_size: BlockSize,
    node_blocks: &[Pblk],
    inode_seed: Option<u32>,
) -> ([u8; 60], Vec<Vec<u8>>) {
    let shape = TreeShape::for_extents(extents.len(), block_size);
    assert_eq!(node_blocks.len(), shape.blocks(), "one block per node");
    let per_node = entries_per_block(block_size);
    let mut nodes_from_bottom: Vec<Vec<u8>> = Vec::with_capacity(shape.blocks());
    let mut blocks_left = node_blocks;
    let mut below: Vec<Index> = Vec::new();
    for (height, &count) in shape.levels.iter().rev().enumerate() {
        let (rest, own) = blocks_left.split_at(blocks_left.len() - count);
        blocks_left = rest;
        let mut here = Vec::with_capacity(count);
        let mut nodes = Vec::with_capacity(count);
        for (i, block) in own.iter().enumerate() {
            let part = i * per_node..;
            let entries = if height == 0 {
                Entries::Leaf(extents[part].iter().take(per_node).copied().collect())
            } else {
                Entries::Inner(below[part].iter().take(per_node).copied().collect())
            };
            let first = match &entries {
                Entries::Leaf(e) => e[0].lblk,
                Entries::Inner(e) => e[0].lblk,
            };
            here.push(Index { lblk: first, child: block.0 });
            let mut bytes = vec![0; block_size.len()];
            ExtentNode { depth: height as u16, max: per_node as u16, generation: 0, entries }
                .encode(&mut bytes);
            if let Some(seed) = inode_seed {
                seal(&mut bytes, seed);
            }
            nodes.push(bytes);
        }
        below = here;
        nodes.append(&mut nodes_from_bottom);
        nodes_from_bottom = nodes;
    }
    let root_entries =
        if shape.levels.is_empty() { Entries::Leaf(extents.to_vec()) } else { Entries::Inner(below) };
    let mut root = [0u8; 60];
    let depth = shape.levels.len() as u16;
    ExtentNode { depth, max: ROOT_ENTRIES as u16, generation: 0, entries: root_entries }.encode(&mut root);
    (root, nodes_from_bottom)
}

/// The next action or result of a [`Walker`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read this block and pass it to [`Walker::supply`].
    NeedBlock(Pblk),
    /// The next extent, in logical order.
    Extent(Extent),
    /// A node is damaged; the walk continues after it.
    Damaged {
        /// The node's block; `None` for the root.
        block: Option<Pblk>,
        /// What is wrong.
        fault: Malformed,
    },
    /// No more extents.
    Done,
}

/// Walks a whole extent tree in logical order, without I/O, in bounded time for any bytes.
///
/// A child must be exactly one level below its parent, and within the range of logical blocks of its parent's
/// entry. The ranges of one level are disjoint. Therefore the walk enters no node twice on a level, whatever
/// the pointers are, and reads at most one block per index entry of the blocks it entered.
#[derive(Debug, Clone)]
pub struct Walker {
    inode_seed: Option<u32>,
    /// Nodes on the path, each with its remaining entries in reverse order.
    path: Vec<Frame>,
    requested: Option<Requested>,
    next_lblk: u64,
    pending_fault: Option<(Option<Pblk>, Malformed)>,
}

/// The node requested last, and the constraints from its parent.
#[derive(Debug, Clone)]
struct Requested {
    block: Pblk,
    depth: u16,
    /// First logical block it may map, and the block after its last.
    range: (u64, u64),
}

#[derive(Debug, Clone)]
struct Frame {
    depth: u16,
    block: Option<Pblk>,
    /// The logical block after the last that this node may map.
    range_end: u64,
    extents: Vec<Extent>,
    indexes: Vec<Index>,
}

impl Walker {
    /// Starts a walk over the tree with the root `i_block`. With `inode_seed` it verifies the checksums of
    /// nodes.
    #[must_use]
    pub fn new(i_block: &[u8; 60], inode_seed: Option<u32>) -> Self {
        let mut walker =
            Self { inode_seed, path: Vec::new(), requested: None, next_lblk: 0, pending_fault: None };
        match ExtentNode::decode(i_block) {
            Ok(node) => walker.push(node, None, 1 << 32),
            Err(fault) => walker.pending_fault = Some((None, fault)),
        }
        walker
    }

    fn push(&mut self, node: ExtentNode, block: Option<Pblk>, range_end: u64) {
        let (mut extents, mut indexes) = (Vec::new(), Vec::new());
        match node.entries {
            Entries::Leaf(list) => extents = list,
            Entries::Inner(list) => indexes = list,
        }
        extents.reverse();
        indexes.reverse();
        self.path.push(Frame { depth: node.depth, block, range_end, extents, indexes });
    }

    /// Levels of the tree below the current node; those of the root if nothing was supplied yet.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.path.last().map_or(0, |frame| frame.depth)
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        loop {
            if let Some((block, fault)) = self.pending_fault.take() {
                return Step::Damaged { block, fault };
            }
            if let Some(requested) = &self.requested {
                return Step::NeedBlock(requested.block);
            }
            let Some(frame) = self.path.last_mut() else { return Step::Done };
            if let Some(extent) = frame.extents.pop() {
                if u64::from(extent.lblk) < self.next_lblk {
                    let rule = "extents of later leaves follow those of earlier ones";
                    let fault = Malformed::new("extent tree", rule, extent.lblk);
                    return Step::Damaged { block: frame.block, fault };
                }
                self.next_lblk = extent.end();
                return Step::Extent(extent);
            }
            if let Some(index) = frame.indexes.pop() {
                let end = frame.indexes.last().map_or(frame.range_end, |next| u64::from(next.lblk));
                let (block, depth) = (Pblk(index.child), frame.depth - 1);
                self.requested = Some(Requested { block, depth, range: (u64::from(index.lblk), end) });
                continue;
            }
            self.path.pop();
        }
    }

    /// Supplies the block that [`Step::NeedBlock`] requested. `None`: the block is unreadable, and the walk
    /// skips it.
    pub fn supply(&mut self, bytes: Option<&[u8]>) {
        let Some(Requested { block, depth, range }) = self.requested.take() else { return };
        let Some(bytes) = bytes else { return };
        if let Some(seed) = self.inode_seed
            && !verify(bytes, seed)
        {
            self.pending_fault =
                Some((Some(block), Malformed::new("extent node", "checksum must match", block.0)));
        }
        match accept(bytes, depth, range) {
            Ok(node) => self.push(node, Some(block), range.1),
            Err(fault) => self.pending_fault = Some((Some(block), fault)),
        }
    }
}

/// Decodes a child node and checks the constraints from its parent.
fn accept(bytes: &[u8], depth: u16, range: (u64, u64)) -> Result<ExtentNode, Malformed> {
    let node = ExtentNode::decode(bytes)?;
    Malformed::unless(
        node.depth == depth,
        "extent node",
        "depth must be one less than its parent's",
        node.depth,
    )?;
    let (first, end) = match &node.entries {
        Entries::Leaf(e) => (e.first().map(|e| e.lblk), e.last().map(Extent::end)),
        Entries::Inner(e) => (e.first().map(|e| e.lblk), e.last().map(|e| u64::from(e.lblk) + 1)),
    };
    if let (Some(first), Some(end)) = (first, end) {
        let within = u64::from(first) >= range.0 && end <= range.1;
        Malformed::unless(
            within,
            "extent node",
            "must keep to the range its parent's entry gives it",
            first,
        )?;
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents(count: u32) -> Vec<Extent> {
        (0..count)
            .map(|i| Extent { lblk: i * 3, len: 2, start: 1000 + u64::from(i) * 5, unwritten: i % 7 == 0 })
            .collect()
    }

    fn walk(root: &[u8; 60], blocks: &[Pblk], nodes: &[Vec<u8>], seed: u32) -> Vec<Extent> {
        let mut walker = Walker::new(root, Some(seed));
        let mut found = Vec::new();
        loop {
            match walker.step() {
                Step::NeedBlock(block) => {
                    let i = blocks.iter().position(|&b| b == block).unwrap();
                    walker.supply(Some(&nodes[i]));
                }
                Step::Extent(extent) => found.push(extent),
                Step::Damaged { fault, .. } => panic!("{fault}"),
                Step::Done => return found,
            }
        }
    }

    #[test]
    fn packed_trees_of_every_depth_read_back() {
        let bs = BlockSize::MIN; // 84 entries a node
        for count in [0, 1, 4, 5, 84, 85, 336, 337, 30_000] {
            let wanted = extents(count);
            let shape = TreeShape::for_extents(wanted.len(), bs);
            let blocks: Vec<Pblk> = (0..shape.blocks() as u64).map(|b| Pblk(7 + b)).collect();
            let (root, nodes) = encode_tree(&wanted, bs, &blocks, Some(99));
            assert_eq!(walk(&root, &blocks, &nodes, 99), wanted);
        }
    }

    #[test]
    fn unwritten_and_longest_extents_keep_their_length() {
        for (len, unwritten) in [(1, false), (32_768, false), (1, true), (32_767, true)] {
            let extent = Extent { lblk: 9, len, start: 0x1234_5678_9ABC, unwritten };
            let mut slot = [0; ENTRY];
            encode_extent(&extent, &mut slot);
            assert_eq!(decode_extent(&slot), extent);
        }
    }

    #[test]
    fn a_node_that_points_to_itself_ends_the_walk() {
        let mut block = vec![0; 1024];
        let entries = Entries::Inner(vec![Index { lblk: 0, child: 5 }]);
        ExtentNode { depth: 1, max: 84, generation: 0, entries }.encode(&mut block);
        let mut root = [0; 60];
        let entries = Entries::Inner(vec![Index { lblk: 0, child: 5 }]);
        ExtentNode { depth: 2, max: 4, generation: 0, entries }.encode(&mut root);
        let mut walker = Walker::new(&root, None);
        let mut reads = 0;
        let mut damaged = 0;
        loop {
            match walker.step() {
                Step::NeedBlock(_) => {
                    reads += 1;
                    walker.supply(Some(&block));
                }
                Step::Damaged { .. } => damaged += 1,
                Step::Extent(_) => panic!("no extents here"),
                Step::Done => break,
            }
        }
        assert_eq!((reads, damaged), (2, 1));
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_panic(
            mut root in proptest::array::uniform32(any::<u8>()),
            mut block in proptest::collection::vec(any::<u8>(), 1024),
            depth in 0u8..6,
        ) {
            root[..8].copy_from_slice(&[0x0A, 0xF3, 2, 0, 4, 0, depth, 0]);
            let depth_below = depth.saturating_sub(1);
            block[..8].copy_from_slice(&[0x0A, 0xF3, 9, 0, 80, 0, depth_below, 0]);
            let mut i_block = [0; 60];
            i_block[..32].copy_from_slice(&root);
            let mut walker = Walker::new(&i_block, None);
            loop {
                match walker.step() {
                    Step::NeedBlock(_) => walker.supply(Some(&block)),
                    Step::Done => break,
                    _ => {}
                }
            }
        }

        #[test]
        fn node_decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ExtentNode::decode(&bytes);
            let _ = verify(&bytes, 0);
        }
    }
}
