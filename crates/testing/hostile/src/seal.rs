//! Computes checksums again after a change of bytes.

use extant_base::{BlockSize, Group};
use extant_jbd2_format::Superblock as LogSuperblock;
use extant_ondisk::group_desc::{ChecksumRule, GroupDesc};
use extant_ondisk::inode::inode_seed;
use extant_ondisk::{Geometry, Superblock, bitmap, dirent, extent, htree, superblock, xattr};

use crate::{Region, Sealed};

/// Corrects the checksum of a region. `sb` is the superblock of the sound image.
pub fn seal(image: &mut [u8], sb: &Superblock, region: &Region) {
    let Ok(geometry) = Geometry::new(sb) else { return };
    let csum = sb.features.metadata_csum();
    let range = region.offset..region.offset + region.len;
    if range.end > image.len() {
        return;
    }
    match region.sealed {
        Sealed::Superblock if csum => {
            let covered = &image[range.start..range.end - 4];
            let sum = extant_base::checksum::crc32c(!0, covered);
            image[range.end - 4..range.end].copy_from_slice(&sum.to_le_bytes());
        }
        Sealed::Descriptor(group) => ChecksumRule::of(sb).seal(group.0, &mut image[range]),
        Sealed::BlockBitmap(group) if csum => {
            let sum =
                bitmap::block_bitmap_checksum(sb.fs_seed(), &image[range], geometry.clusters_per_group());
            in_descriptor(image, sb, &geometry, group, |desc| desc.block_bitmap_csum = sum);
        }
        Sealed::InodeBitmap(group) if csum => {
            let sum = bitmap::inode_bitmap_checksum(sb.fs_seed(), &image[range], geometry.inodes_per_group);
            in_descriptor(image, sb, &geometry, group, |desc| desc.inode_bitmap_csum = sum);
        }
        Sealed::Inode(ino) if csum => {
            let bytes = &mut image[range];
            let generation = u32::from_le_bytes([bytes[0x64], bytes[0x65], bytes[0x66], bytes[0x67]]);
            extant_ondisk::inode::seal(bytes, inode_seed(sb.fs_seed(), ino, generation));
        }
        Sealed::ExtentNode(seed) if csum => {
            // The position of the checksum depends on a field that may be damaged.
            let bytes = &mut image[range];
            let max = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
            if 12 + 12 * max + 4 <= bytes.len() {
                extent::seal(bytes, seed);
            }
        }
        // A leaf whose tail is damaged has no place for a checksum.
        Sealed::DirLeaf(seed) if csum && dirent::tail_checksum(&image[range.clone()]).is_some() => {
            dirent::seal_tail(&mut image[range], seed);
        }
        Sealed::DirIndex(seed) if csum => {
            let block_size = BlockSize::from_bytes(region.len as u64).unwrap_or(geometry.block_size);
            let format = htree::DxFormat::new(block_size, &sb.features);
            // A block that is no longer a valid index has no place for a checksum.
            let bytes = &mut image[range];
            let sound = match format.kind_of(bytes) {
                Some(htree::DxKind::Root) => format.decode_root(bytes).is_ok(),
                Some(htree::DxKind::Node) => format.decode_node(bytes).is_ok(),
                None => false,
            };
            if sound {
                format.seal(bytes, seed);
            }
        }
        Sealed::Xattr(place) if csum => xattr::seal_block(&mut image[range], sb.fs_seed(), place),
        Sealed::JournalSuperblock => {
            if let Ok(mut log) = LogSuperblock::decode(&image[range.clone()])
                && log.has_checksum()
            {
                log.seal();
                let bytes = log.encode();
                image[range.start..range.start + bytes.len()].copy_from_slice(&bytes);
            }
        }
        _ => {}
    }
}

fn in_descriptor(
    image: &mut [u8],
    sb: &Superblock,
    geometry: &Geometry,
    group: Group,
    change: impl FnOnce(&mut GroupDesc),
) {
    let (block, at) = geometry.descriptor_place(group);
    let start = block.0 as usize * geometry.block_size.len() + at;
    let Some(bytes) = image.get_mut(start..start + geometry.desc_size) else { return };
    let Ok(mut desc) = GroupDesc::decode(bytes) else { return };
    change(&mut desc);
    desc.encode(bytes);
    ChecksumRule::of(sb).seal(group.0, bytes);
}

/// The superblock of an image.
pub(crate) fn superblock_of(image: &[u8]) -> Option<Superblock> {
    let start = superblock::OFFSET as usize;
    let sb = Superblock::decode(image.get(start..start + superblock::SIZE)?).ok()?;
    Some(sb)
}
