//! The metadata regions of a sound image, and the checksum that covers each.

use std::sync::Arc;

use extant_base::{Group, Ino, Lblk, Pblk};
use extant_buffer::Buffers;
use extant_device::MemDevice;
use extant_mapping::{FileMap, MapState};
use extant_memory::Budget;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{flags, inode_seed};
use extant_ondisk::{Features, superblock};
use extant_volume::{OpenOptions, Volume};

/// The kind of a region, with the parameters of its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sealed {
    /// The superblock at byte 1024.
    Superblock,
    /// A group's descriptor.
    Descriptor(Group),
    /// A group's block bitmap, with its checksum in the group's descriptor.
    BlockBitmap(Group),
    /// A group's inode bitmap, with its checksum in the group's descriptor.
    InodeBitmap(Group),
    /// An inode.
    Inode(Ino),
    /// A node of an extent tree, with the seed of its inode.
    ExtentNode(u32),
    /// A leaf of a directory.
    DirLeaf(u32),
    /// A root or node of a directory's index.
    DirIndex(u32),
    /// A block of attributes.
    Xattr(Pblk),
    /// The journal's superblock.
    JournalSuperblock,
    /// No checksum covers it: indirect blocks, log blocks.
    Nothing,
}

/// A range of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte in the image.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
    /// Its kind, and the checksum that covers it.
    pub sealed: Sealed,
}

/// Lists the metadata of a sound image, ordered by kind, with at most `log_blocks` blocks of the log.
///
/// # Panics
/// If the image is not sound.
#[must_use]
pub fn map(image: &[u8], log_blocks: u32) -> Vec<Region> {
    let device = MemDevice::new(image.len() as u64);
    extant_device::Device::write_at(&device, 0, image).expect("the image fits the memory made for it");
    let device: Arc<dyn extant_device::Device> = Arc::new(device);
    let options = OpenOptions { no_recovery: true, ..OpenOptions::default() };
    let volume = Volume::open_read_only(Arc::clone(&device), &options).expect("a sound image opens");
    let (sb, geometry) = (volume.superblock(), volume.geometry());
    let bs = geometry.block_size;
    let buffers = Buffers::new(device, bs, geometry.blocks, &Budget::new(64 << 20));
    let block = |block: Pblk, sealed| Region { offset: block.0 as usize * bs.len(), len: bs.len(), sealed };
    let offset = superblock::OFFSET as usize;
    let mut found = vec![Region { offset, len: superblock::SIZE, sealed: Sealed::Superblock }];
    for group in (0..geometry.groups).map(Group) {
        let (place, at) = geometry.descriptor_place(group);
        let offset = place.0 as usize * bs.len() + at;
        found.push(Region { offset, len: geometry.desc_size, sealed: Sealed::Descriptor(group) });
        let desc = extant_ondisk::group_desc::GroupDesc::decode(&image[offset..offset + geometry.desc_size]);
        let desc = desc.expect("a sound image has sound descriptors");
        found.push(block(Pblk(desc.block_bitmap), Sealed::BlockBitmap(group)));
        found.push(block(Pblk(desc.inode_bitmap), Sealed::InodeBitmap(group)));
        for index in 0..geometry.inodes_per_group {
            let ino = Ino(group.0 * geometry.inodes_per_group + index + 1);
            let Ok(inode) = volume.inode(ino) else { continue };
            let offset = desc.inode_table as usize * bs.len() + index as usize * geometry.inode_size;
            found.push(Region { offset, len: geometry.inode_size, sealed: Sealed::Inode(ino) });
            if inode.fields().file_acl != 0 {
                let place = Pblk(inode.fields().file_acl);
                found.push(block(place, Sealed::Xattr(place)));
            }
            let mapped = matches!(inode.kind(), FileType::Regular | FileType::Directory);
            if !mapped || inode.is_inline() {
                continue;
            }
            let seed = inode_seed(sb.fs_seed(), ino, inode.fields().generation);
            let extents = inode.has_flag(flags::EXTENTS);
            let csum = sb.features.metadata_csum().then_some(seed);
            let tree = FileMap { ino, i_block: inode.fields().block, extents, seed: csum };
            let covered = if extents { Sealed::ExtentNode(seed) } else { Sealed::Nothing };
            let nodes = tree.walk_tree_blocks(&buffers, &mut |node| {
                found.push(block(node, covered));
                Some(())
            });
            nodes.expect("a sound image has sound maps");
            let is_dir = inode.kind() == FileType::Directory;
            let is_log = ino == Ino::JOURNAL && sb.features.has_compat(Features::HAS_JOURNAL);
            if !is_dir && !is_log {
                continue;
            }
            let index = extant_ondisk::htree::DxFormat::new(bs, &sb.features);
            let data = tree.walk(&buffers, Lblk(0), &mut |piece| {
                let MapState::Written(first) = piece.state else { return Some(()) };
                for at in 0..piece.len {
                    let place = Pblk(first.0 + u64::from(at));
                    let start = place.0 as usize * bs.len();
                    let bytes = &image[start..start + bs.len()];
                    let sealed = match (is_dir, piece.lblk.0 + at) {
                        (true, _) if inode.has_flag(flags::INDEX) && index.kind_of(bytes).is_some() => {
                            Sealed::DirIndex(seed)
                        }
                        (true, _) => Sealed::DirLeaf(seed),
                        (false, 0) => Sealed::JournalSuperblock,
                        (false, lblk) if lblk < log_blocks => Sealed::Nothing,
                        (false, _) => return None,
                    };
                    found.push(block(place, sealed));
                }
                Some(())
            });
            data.expect("a sound image has sound maps");
        }
    }
    found.sort_by_key(|region| (region.sealed, region.offset));
    found.dedup();
    found
}
