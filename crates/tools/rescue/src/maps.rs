//! Maps of files, read as far as they are sound.

use std::collections::HashSet;

use extant_base::Pblk;
use extant_ondisk::Geometry;
use extant_ondisk::extent::{Step, Walker};
use extant_ondisk::inode::{Inode, flags};

/// Blocks of a file that are contiguous in the file and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) lblk: u64,
    pub(crate) pblk: u64,
    pub(crate) len: u64,
    pub(crate) unwritten: bool,
}

/// What is left of a map.
#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    /// In the order of the file.
    pub(crate) runs: Vec<Run>,
    /// Blocks of the map itself.
    pub(crate) nodes: Vec<u64>,
    /// What was wrong.
    pub(crate) faults: Vec<String>,
}

/// Reads a map. `seed`: the inode's, if nodes have checksums.
pub(crate) fn map(
    geometry: &Geometry,
    inode: &Inode,
    seed: Option<u32>,
    read: &dyn Fn(u64) -> Option<Vec<u8>>,
) -> Map {
    let mut map = Map::default();
    if inode.has_flag(flags::EXTENTS) {
        extents(geometry, inode, seed, read, &mut map);
    } else {
        indirect(geometry, inode, read, &mut map);
    }
    map
}

fn is_inside(geometry: &Geometry, pblk: u64, len: u64) -> bool {
    pblk >= u64::from(geometry.first_data_block)
        && pblk > 0
        && pblk.checked_add(len).is_some_and(|end| end <= geometry.blocks)
}

fn extents(
    geometry: &Geometry,
    inode: &Inode,
    seed: Option<u32>,
    read: &dyn Fn(u64) -> Option<Vec<u8>>,
    map: &mut Map,
) {
    let mut walker = Walker::new(&inode.block, seed);
    loop {
        match walker.step() {
            Step::NeedBlock(Pblk(block)) => {
                let bytes = if is_inside(geometry, block, 1) { read(block) } else { None };
                if bytes.is_none() {
                    map.faults.push(format!("extent node in block {block} cannot be read"));
                }
                map.nodes.push(block);
                walker.supply(bytes.as_deref());
            }
            Step::Extent(extent) => {
                let len = u64::from(extent.len);
                if is_inside(geometry, extent.start, len) {
                    let (lblk, pblk) = (u64::from(extent.lblk), extent.start);
                    map.runs.push(Run { lblk, pblk, len, unwritten: extent.unwritten });
                } else {
                    map.faults.push(format!("extent at block {} leads outside", extent.lblk));
                }
            }
            Step::Damaged { fault, .. } => map.faults.push(fault.to_string()),
            Step::Done => return,
        }
    }
}

fn indirect(geometry: &Geometry, inode: &Inode, read: &dyn Fn(u64) -> Option<Vec<u8>>, map: &mut Map) {
    let per_block = geometry.block_size.bytes() / 4;
    let mut seen = HashSet::new();
    for slot in 0..12 {
        push(geometry, map, slot, pointer(&inode.block, slot as usize));
    }
    let mut lblk = 12;
    for levels in 1..=3u32 {
        let root = pointer(&inode.block, 11 + levels as usize);
        tree(geometry, map, &mut seen, read, (root, levels, lblk));
        lblk += per_block.pow(levels);
    }
}

fn pointer(bytes: &[u8], slot: usize) -> u64 {
    bytes
        .get(slot * 4..slot * 4 + 4)
        .map_or(0, |word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
}

/// Walks an indirect block with its levels, and the file's block that its first pointer maps.
fn tree(
    geometry: &Geometry,
    map: &mut Map,
    seen: &mut HashSet<u64>,
    read: &dyn Fn(u64) -> Option<Vec<u8>>,
    (block, levels, lblk): (u64, u32, u64),
) {
    if block == 0 {
        return;
    }
    // A block that is in the tree twice would make the walk unbounded.
    if !is_inside(geometry, block, 1) || !seen.insert(block) {
        map.faults.push(format!("indirect block {block} is outside, or twice in the map"));
        return;
    }
    map.nodes.push(block);
    let Some(bytes) = read(block) else {
        map.faults.push(format!("indirect block {block} cannot be read"));
        return;
    };
    let per_block = geometry.block_size.bytes() / 4;
    for slot in 0..per_block {
        let to = pointer(&bytes, slot as usize);
        match levels {
            1 => push(geometry, map, lblk + slot, to),
            _ => tree(geometry, map, seen, read, (to, levels - 1, lblk + slot * per_block.pow(levels - 1))),
        }
    }
}

fn push(geometry: &Geometry, map: &mut Map, lblk: u64, pblk: u64) {
    if pblk == 0 {
        return;
    }
    if !is_inside(geometry, pblk, 1) {
        map.faults.push(format!("block {lblk} of the file leads outside"));
        return;
    }
    if let Some(last) = map.runs.last_mut()
        && last.lblk + last.len == lblk
        && last.pblk + last.len == pblk
    {
        last.len += 1;
        return;
    }
    map.runs.push(Run { lblk, pblk, len: 1, unwritten: false });
}
