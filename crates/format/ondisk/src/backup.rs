//! The search for backup superblocks when the primary is lost: the offsets to try, and the test whether the
//! bytes there are a backup.
//!
//! Does **not** own: reading, and the decision to use a backup.
//!
//! Source: kernel Documentation/filesystems/ext4/blockgroup.rst, super.rst.

use std::collections::HashSet;

use extant_base::{BlockSize, Group};

use crate::{Geometry, Superblock};

/// Groups that have a backup under sparse_super. Of sparse_super2's two backups only the first is here; the
/// second is far away.
const GROUPS: [u64; 8] = [1, 3, 5, 7, 9, 25, 27, 49];
/// Log2 of the largest cluster that is tried, in blocks. Larger clusters have no use.
const CLUSTER_LOG_MAX: u32 = 16;

/// Byte offsets below `device_bytes` where mke2fs places backups, for all block and cluster sizes, most
/// likely ones first.
#[must_use]
pub fn offsets(device_bytes: u64) -> Vec<u64> {
    let mut known = HashSet::new();
    let mut offsets = Vec::new();
    for cluster_log in 0..=CLUSTER_LOG_MAX {
        for group in GROUPS {
            for (log, block_size) in (0..=6).filter_map(|log| Some((log, BlockSize::from_log(log)?))) {
                let bs = block_size.bytes();
                let first_data_block = u64::from(log == 0 && cluster_log == 0);
                let offset = (first_data_block + group * ((8 * bs) << cluster_log)) * bs; // below 2^55
                if offset < device_bytes && known.insert(offset) {
                    offsets.push(offset);
                }
            }
        }
    }
    offsets
}

/// The byte offsets that a block number can mean: the block size is unknown when the superblock is lost.
#[must_use]
pub fn offsets_of_block(block: u64) -> Vec<u64> {
    (0..=6).filter_map(BlockSize::from_log).filter_map(|size| block.checked_mul(size.bytes())).collect()
}

/// The group of the valid backup that was read at this byte offset. `None` for a copy inside a file's data.
#[must_use]
pub fn group_at(sb: &Superblock, offset: u64) -> Option<Group> {
    let geometry = Geometry::new(sb).ok()?;
    let group = Group(u32::from(sb.block_group_nr));
    let stands = group.0 > 0
        && group.0 < geometry.groups
        && geometry.block_size.offset_of(geometry.group_start(group)) == Some(offset);
    (stands && sb.verify() && sb.inodes_count == geometry.inodes()).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets that mke2fs prints for 4 KiB and 1 KiB blocks, and the second cluster of a bigalloc file
    /// system.
    #[test]
    fn the_usual_places_are_among_the_offsets() {
        let all = offsets(1 << 40);
        for (block, block_size) in
            [(32768u64, 4096u64), (98304, 4096), (8193, 1024), (24577, 1024), (16384, 2048)]
        {
            assert!(all.contains(&(block * block_size)), "{block}");
            assert!(offsets_of_block(block).contains(&(block * block_size)));
        }
        assert!(all.contains(&((32768 << 4) * 4096)), "clusters of 16 blocks");
        assert!(offsets(1 << 20).is_empty());
        assert_eq!(all.len(), all.iter().collect::<HashSet<_>>().len());
    }
}
