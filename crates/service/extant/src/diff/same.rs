//! Finds what two images of one layout have in common without decoding it: equal blocks of the inode tables,
//! and directories with equal blocks at equal addresses.
//!
//! An image that was copied and changed a little has the same layout. There most inodes are in equal blocks,
//! so they are loaded from one side only.
//!
//! Does **not** own: contents of files, which are compared in any case.

use std::os::fd::BorrowedFd;

use extant_base::{BlockSize, Ino};
use extant_device::Device;
use extant_ondisk::Features;
use extant_ondisk::inode::flags;

use super::side::{ImageSide, Node, Side};
use super::sides::Sides;

/// Bytes per read.
const PIECE: usize = 256 << 10;
/// Directories up to this size are compared by their blocks.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;
/// Blocks of inode tables that are compared at most: those of an image of some 8 TiB.
const TABLE_BLOCKS_MAX: u64 = 1 << 25;

/// Which blocks of the inode tables are equal.
pub(super) struct SameTables {
    /// One bit for each block of the inode tables, group by group.
    equal: Vec<u64>,
    blocks_per_table: u64,
    inodes_per_group: u32,
    inodes_per_block: u32,
}

/// Whether both sides are the same bytes of the same open file.
pub(super) fn is_one_file(a: &Side, b: &Side) -> bool {
    let place = |side: &Side| -> Option<(u64, u64, u64)> {
        let device = side.as_image().and_then(|image| image.fs.plain_device())?;
        let (file, at): (BorrowedFd<'_>, u64) = device.file_at(0, device.size_bytes())?;
        let file = std::fs::File::from(file.try_clone_to_owned().ok()?);
        let metadata = file.metadata().ok()?;
        use std::os::unix::fs::MetadataExt;
        metadata.is_file().then(|| (metadata.dev(), metadata.ino(), at))
    };
    place(a).is_some_and(|found| place(b) == Some(found))
}

impl SameTables {
    /// Compares the inode tables; `None` if the sides are not images of one layout.
    pub(super) fn of(a: &Side, b: &Side) -> Option<Self> {
        let (a, b) = (plain(a)?, plain(b)?);
        let (volume_a, volume_b) = (a.fs.volume(), b.fs.volume());
        let (sb_a, sb_b) = (volume_a.superblock(), volume_b.superblock());
        let has_one_layout = volume_a.geometry() == volume_b.geometry()
            && sb_a.features == sb_b.features
            && sb_a.uuid == sb_b.uuid
            && sb_a.fs_seed() == sb_b.fs_seed()
            && sb_a.hash_seed == sb_b.hash_seed;
        // Values of attributes may have inodes of their own, which a block of the table does not show.
        if !has_one_layout || sb_a.features.has_incompat(Features::EA_INODE) {
            return None;
        }
        let geometry = volume_a.geometry();
        let blocks_per_table = u64::from(geometry.itable_blocks());
        let blocks = blocks_per_table.checked_mul(u64::from(geometry.groups))?;
        if blocks > TABLE_BLOCKS_MAX {
            return None;
        }
        let bs = geometry.block_size;
        let mut same = Self {
            equal: vec![0; usize::try_from(blocks.div_ceil(64)).ok()?],
            blocks_per_table,
            inodes_per_group: geometry.inodes_per_group,
            inodes_per_block: (bs.bytes() / geometry.inode_size as u64) as u32,
        };
        let mut buffers = Buffers::default();
        for group in 0..geometry.groups {
            let first = Ino(group.checked_mul(geometry.inodes_per_group)?.checked_add(1)?);
            let (Some(at), Some(other)) =
                (volume_a.inode_table_place(first), volume_b.inode_table_place(first))
            else {
                continue;
            };
            if at == other {
                same.compare_table(a, b, bs, u64::from(group), at, &mut buffers);
            }
        }
        Some(same)
    }

    /// Compares the table of a group, which begins at byte `at` of both devices. What cannot be read counts
    /// as different.
    fn compare_table(
        &mut self,
        a: &ImageSide,
        b: &ImageSide,
        bs: BlockSize,
        group: u64,
        at: u64,
        buffers: &mut Buffers,
    ) {
        let len = self.blocks_per_table * bs.bytes();
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE as u64);
            if let Some((a, b)) = buffers.read(a, b, at + done, piece as usize) {
                let first = group * self.blocks_per_table + done / bs.bytes();
                let blocks = a.chunks(bs.bytes() as usize).zip(b.chunks(bs.bytes() as usize));
                for (number, (one, other)) in (first..).zip(blocks) {
                    if one == other {
                        self.equal[(number / 64) as usize] |= 1 << (number % 64);
                    }
                }
            }
            done += piece;
        }
    }

    /// Whether an inode, its attributes and its map have the same bytes in both images.
    pub(super) fn has_equal_inode(&self, sides: &Sides<'_>, ino: Ino) -> bool {
        let Some(index) = ino.0.checked_sub(1) else { return false };
        let (group, index) = (index / self.inodes_per_group, index % self.inodes_per_group);
        let block = u64::from(group) * self.blocks_per_table + u64::from(index / self.inodes_per_block);
        let word = self.equal.get((block / 64) as usize).copied().unwrap_or(0);
        if word >> (block % 64) & 1 == 0 {
            return false;
        }
        // Parts outside of the inode are compared in the ordinary way.
        let Some(image) = sides.a.as_image() else { return false };
        let Ok(inode) = image.fs.volume().inode(ino) else { return false };
        let fields = inode.fields();
        let has_flat_map = fields.flags & flags::EXTENTS != 0 && extent_depth(&fields.block) == 0;
        let is_inside = match inode.kind() {
            extant_volume::FileType::Regular | extant_volume::FileType::Directory => {
                has_flat_map || inode.is_inline()
            }
            extant_volume::FileType::Symlink => inode.size() < 60 && !has_flat_map,
            _ => true,
        };
        is_inside && fields.file_acl == 0
    }

    /// Whether two directories have the same bytes: equal inodes, and equal blocks at equal addresses.
    pub(super) fn has_equal_directory(&self, sides: &Sides<'_>, a: &Node, b: &Node) -> bool {
        let (Node::Image(inode), Node::Image(other)) = (a, b) else { return false };
        if inode.ino() != other.ino()
            || inode.size() > DIRECTORY_BYTES_MAX
            || !self.has_equal_inode(sides, inode.ino())
        {
            return false;
        }
        if inode.is_inline() {
            return true;
        }
        let (Some(a), Some(b)) = (sides.a.as_image(), sides.b.as_image()) else { return false };
        let mut buffers = Buffers::default();
        let mut is_equal = true;
        let walked = a.fs.volume().files().extents(inode, 0, inode.size(), &mut |extent| {
            let mut done = 0;
            while is_equal && done < extent.len {
                let piece = (extent.len - done).min(PIECE as u64);
                let read = buffers.read(a, b, extent.physical + done, piece as usize);
                is_equal = read.is_some_and(|(one, other)| one == other);
                done += piece;
            }
            is_equal.then_some(())
        });
        walked.is_ok() && is_equal
    }
}

/// The depth of the extent tree whose root is in i_block (eh_depth, le16 at byte 6).
fn extent_depth(block: &[u8; 60]) -> u16 {
    u16::from_le_bytes([block[6], block[7]])
}

/// An image whose device shows the current state.
fn plain(side: &Side) -> Option<&ImageSide> {
    side.as_image().filter(|image| image.is_plain && image.fs.plain_device().is_some())
}

/// Equal ranges of both devices.
#[derive(Default)]
struct Buffers {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Buffers {
    /// Reads the same range of both devices; `None` if that fails.
    fn read(&mut self, a: &ImageSide, b: &ImageSide, at: u64, len: usize) -> Option<(&[u8], &[u8])> {
        self.a.resize(len, 0);
        self.b.resize(len, 0);
        a.fs.plain_device()?.read_at(at, &mut self.a).ok()?;
        b.fs.plain_device()?.read_at(at, &mut self.b).ok()?;
        Some((&self.a, &self.b))
    }
}
