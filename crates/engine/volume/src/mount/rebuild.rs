//! Reconstructs a superblock from the blocks after it, for volumes without any copy of it: a file system of
//! one group has none.
//!
//! ```text
//! for each block size: descriptors after the superblock's block -> inode bitmap -> inodes per group
//!                      for each inode size: root in the inode table, with "." and ".." in its first block
//! ```
//!
//! Owns: the guess, and the proof that it is right. Does **not** own: the decision to do without a superblock
//! (see [`probe`](super::probe)).
//!
//! Invariant: a guess is returned only if the root directory is where the guess puts it. What cannot be known
//! is left out: checksums (their seed is lost), hash indexes (read as plain blocks), group sizes other than
//! the default.

use extant_base::{BlockSize, Ino};
use extant_device::Device;
use extant_ondisk::extent::{Entries, ExtentNode, MAX_DEPTH};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::superblock::{STATE_CLEAN, Superblock};
use extant_ondisk::{Features, Geometry};

/// Inode sizes, likely ones first.
const INODE_SIZES: [usize; 6] = [256, 128, 512, 1024, 2048, 4096];
/// Descriptor sizes, with and without `64bit`.
const DESC_SIZES: [usize; 2] = [64, 32];
/// Features that each inode shows by its own flags, so that setting them does no harm.
const INCOMPAT: u32 =
    Features::FILETYPE | Features::EXTENTS | Features::FLEX_BG | Features::LARGEDIR | Features::INLINE_DATA;
const RO_COMPAT: u32 = Features::SPARSE_SUPER
    | Features::LARGE_FILE
    | Features::HUGE_FILE
    | Features::DIR_NLINK
    | Features::EXTRA_ISIZE;

/// Reconstructs a superblock by which the volume can be read, if possible.
pub(crate) fn rebuild(device: &dyn Device) -> Option<(Superblock, Geometry)> {
    (0..=6).filter_map(BlockSize::from_log).find_map(|block_size| {
        DESC_SIZES.into_iter().find_map(|desc_size| with_descriptors(device, block_size, desc_size))
    })
}

fn read(device: &dyn Device, offset: u64, len: usize) -> Option<Vec<u8>> {
    let end = offset.checked_add(len as u64)?;
    let mut bytes = vec![0; len];
    (end <= device.size_bytes()).then(|| device.read_at(offset, &mut bytes).ok())??;
    Some(bytes)
}

fn with_descriptors(
    device: &dyn Device,
    block_size: BlockSize,
    desc_size: usize,
) -> Option<(Superblock, Geometry)> {
    let bs = block_size.bytes();
    let first = u64::from(block_size == BlockSize::MIN);
    let blocks = device.size_bytes() / bs;
    let bytes = read(device, (first + 1) * bs, desc_size)?;
    let desc = GroupDesc::decode(&bytes).ok()?;
    let places = [desc.block_bitmap, desc.inode_bitmap, desc.inode_table];
    let is_likely = places.iter().all(|place| (first + 2..blocks).contains(place))
        && places[0] != places[1]
        && places[1] != places[2]
        && places[0] != places[2];
    if !is_likely {
        return None;
    }
    // The bitmap is filled with ones after the last inode.
    let bitmap = read(device, desc.inode_bitmap.checked_mul(bs)?, block_size.len())?;
    let last_free = (0..bitmap.len() * 8).rev().find(|bit| bitmap[bit / 8] & 1 << (bit % 8) == 0)? as u32;
    INODE_SIZES.into_iter().filter(|size| *size <= block_size.len()).find_map(|inode_size| {
        let per_block = (block_size.len() / inode_size) as u32;
        let inodes = (last_free + 1).next_multiple_of(per_block.max(8)).min(8 * bs as u32);
        let inode =
            read(device, desc.inode_table.checked_mul(bs)?.checked_add(inode_size as u64)?, inode_size)?;
        is_root(device, block_size, &Inode::decode(&inode).ok()?).then_some(())?;
        let mut sb = Superblock {
            blocks_count: blocks,
            first_data_block: first as u32,
            log_block_size: block_size.log2() - 10,
            log_cluster_size: block_size.log2() - 10,
            blocks_per_group: 8 * bs as u32,
            clusters_per_group: 8 * bs as u32,
            inodes_per_group: inodes,
            rev_level: 1,
            first_ino: Ino::FIRST.0,
            inode_size: inode_size as u16,
            desc_size: if desc_size > 32 { desc_size as u16 } else { 0 },
            state: STATE_CLEAN,
            journal_inum: Ino::JOURNAL.0,
            ..Superblock::default()
        };
        let bit64 = if desc_size > 32 { Features::BIT64 } else { 0 };
        sb.features =
            Features { compat: Features::HAS_JOURNAL, incompat: INCOMPAT | bit64, ro_compat: RO_COMPAT };
        sb.inodes_count = inodes.checked_mul(Geometry::new(&sb).ok()?.groups)?;
        let geometry = Geometry::new(&sb).ok()?;
        Some((sb, geometry))
    })
}

/// Returns whether this is the root directory: its first block begins with "." and "..", and both lead to
/// inode 2.
fn is_root(device: &dyn Device, block_size: BlockSize, inode: &Inode) -> bool {
    let is_dir = inode.mode & 0xF000 == 0x4000 && inode.links >= 2 && inode.size > 0;
    let parent = [inode.block[0], inode.block[1], inode.block[2], inode.block[3]];
    if is_dir && inode.has_flag(flags::INLINE_DATA) {
        return u32::from_le_bytes(parent) == Ino::ROOT.0;
    }
    let first = || {
        if !inode.has_flag(flags::EXTENTS) {
            return Some(u64::from(u32::from_le_bytes(parent)));
        }
        let mut node = ExtentNode::decode(&inode.block).ok()?;
        for _ in 0..=MAX_DEPTH {
            match node.entries {
                Entries::Leaf(extents) => {
                    return extents.first().filter(|extent| extent.lblk == 0).map(|extent| extent.start);
                }
                Entries::Inner(children) => {
                    let offset = children.first()?.child.checked_mul(block_size.bytes())?;
                    node = ExtentNode::decode(&read(device, offset, block_size.len())?).ok()?;
                }
            }
        }
        None
    };
    let starts = |block: u64| {
        let bytes = read(device, block.checked_mul(block_size.bytes())?, 24)?;
        let dots = bytes[..4] == [2, 0, 0, 0]
            && bytes[4..7] == [12, 0, 1]
            && bytes[8] == b'.'
            && bytes[12..16] == [2, 0, 0, 0]
            && bytes[18] == 2
            && bytes[20..22] == *b"..";
        Some(dots)
    };
    is_dir && first().and_then(starts).unwrap_or(false)
}
