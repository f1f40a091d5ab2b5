//! Maps files to blocks: extents, or the classic block map of ext2 and ext3.
//!
//! Owns the choice between the two, and the number of node blocks that each needs. [`extant_ondisk::extent`]
//! and [`extant_ondisk::indirect`] encode the bytes.

use extant_base::{BlockSize, Lblk, Pblk};
use extant_ondisk::extent::{self, Extent, MAX_WRITTEN_LEN, ROOT_ENTRIES, TreeShape};
use extant_ondisk::indirect::{self, DataExtent};

use crate::space::BlockRun;

/// The kind of map that the files of a file system have.
#[derive(Debug, Clone, Copy)]
pub struct Mapper {
    /// Block size.
    pub block_size: BlockSize,
    /// Whether files have extents; otherwise they have block maps.
    pub extents: bool,
    /// Whether nodes have checksums.
    pub csum: bool,
}

/// A file's blocks and the blocks of its tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileMap {
    /// Data in logical order; none exceeds the maximum length of an extent.
    pub extents: Vec<Extent>,
    /// Tree nodes or indirect blocks, in the order in which the encoder uses them.
    pub nodes: Vec<Pblk>,
}

impl Mapper {
    /// Pairs logical runs (first block, length) with the physical runs that were allocated for them, in
    /// order.
    ///
    /// # Panics
    /// If the two do not have the same number of blocks.
    #[must_use]
    pub fn zip(logical: &[(u64, u64)], physical: &[BlockRun]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::with_capacity(physical.len().max(logical.len()));
        let mut physical = physical.iter().copied();
        let mut here = BlockRun { start: 0, len: 0 };
        for &(mut lblk, mut left) in logical {
            while left > 0 {
                if here.len == 0 {
                    here = physical.next().expect("as many physical blocks as logical ones");
                }
                let len = left.min(here.len).min(MAX_WRITTEN_LEN.into());
                extents.push(Extent {
                    lblk: lblk as u32,
                    len: len as u32,
                    start: here.start,
                    unwritten: false,
                });
                (lblk, left) = (lblk + len, left - len);
                here = BlockRun { start: here.start + len, len: here.len - len };
            }
        }
        extents
    }

    /// Whether a contiguous file of `blocks` blocks needs no nodes.
    #[must_use]
    pub fn is_simple(&self, blocks: u64) -> bool {
        let most = if self.extents { u64::from(MAX_WRITTEN_LEN) * ROOT_ENTRIES as u64 } else { 12 };
        blocks <= most
    }

    /// Maximum length of a file in blocks. Without `huge_file` an inode counts its blocks, including those of
    /// its map, in 32 bits of 512-byte sectors, and the kernel opens no file that would exceed this if it had
    /// no holes.
    #[must_use]
    pub fn file_blocks_max(&self, huge_file: bool) -> u64 {
        let countable = u64::from(u32::MAX) >> (self.block_size.log2() - 9);
        if self.extents {
            return if huge_file { u64::from(u32::MAX) } else { countable };
        }
        let mappable = indirect::max_blocks(self.block_size);
        let map_len = |blocks: u64| {
            let dense = u32::try_from(blocks).ok().map(|len| (Lblk(0), len));
            indirect::blocks_needed(self.block_size, dense).unwrap_or(0)
        };
        if huge_file || mappable + map_len(mappable) <= countable {
            mappable
        } else {
            countable - map_len(countable.min(mappable))
        }
    }

    /// Number of blocks that the tree of these extents needs besides the inode.
    #[must_use]
    pub fn node_count(&self, extents: &[Extent]) -> u64 {
        if self.extents {
            TreeShape::for_extents(extents.len(), self.block_size).blocks() as u64
        } else {
            let runs = extents.iter().map(|e| (Lblk(e.lblk), e.len));
            indirect::blocks_needed(self.block_size, runs).expect("runs are in order and within the map")
        }
    }

    /// The 60 bytes of `i_block`, and the contents of each node with its block.
    #[must_use]
    pub fn encode(&self, map: &FileMap, inode_seed: u32) -> ([u8; 60], Vec<(Pblk, Vec<u8>)>) {
        if self.extents {
            let seed = self.csum.then_some(inode_seed);
            let (root, nodes) = extent::encode_tree(&map.extents, self.block_size, &map.nodes, seed);
            (root, map.nodes.iter().copied().zip(nodes).collect())
        } else {
            let data = map.extents.iter().map(|e| DataExtent {
                lblk: Lblk(e.lblk),
                pblk: Pblk(e.start),
                len_blocks: e.len,
            });
            let map = indirect::encode(self.block_size, data, map.nodes.iter().copied())
                .expect("runs are in order, and blocks below 2^32 without the 64bit feature");
            (map.i_block, map.blocks)
        }
    }

    /// `i_block` of a file that is contiguous and needs no nodes.
    #[must_use]
    pub fn encode_simple(&self, start: u64, blocks: u64) -> [u8; 60] {
        let extents = if blocks == 0 {
            Vec::new()
        } else {
            Self::zip(&[(0, blocks)], &[BlockRun { start, len: blocks }])
        };
        self.encode(&FileMap { extents, nodes: Vec::new() }, 0).0
    }
}
