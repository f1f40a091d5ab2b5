//! i_blocks, the number of blocks of an inode in the units that its flags select, and the kind of its
//! content. Only this module changes i_blocks.
//!
//! i_blocks counts data, nodes of the map, the attribute block and attribute values in separate inodes, each
//! in whole clusters.
//!
//! ```text
//!   without the feature huge_file     32 bits of 512 bytes; the high half is ignored
//!   with it                           48 bits of 512 bytes
//!   with it and the flag HUGE_FILE    48 bits of file-system blocks
//! ```
//!
//! Like the kernel, it sets the flag only if 48 bits of 512 bytes do not suffice, and clears it again if they
//! do.
//!
//! Source: kernel Documentation/filesystems/ext4/inodes.rst.

use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};

use crate::{Shared, Values};

/// The maximum of 48 bits.
const WIDE_MAX: u64 = (1 << 48) - 1;
/// `i_block` holds the target of a symbolic link that is shorter than this many bytes.
const FAST_LINK_MAX: u64 = 60;

impl Shared {
    /// Whether the content of this inode goes through the journal, like metadata.
    #[must_use]
    pub fn is_journaled(&self, fields: &layout::Inode) -> bool {
        match FileType::from_mode(fields.mode) {
            FileType::Regular => self.journals_data || fields.has_flag(flags::EA_INODE | flags::JOURNAL_DATA),
            _ => true,
        }
    }

    fn has_huge_files(&self) -> bool {
        self.sb.features.has_ro_compat(Features::HUGE_FILE)
    }

    /// The number of 512-byte units in a block, as a shift.
    fn sector_shift(&self) -> u32 {
        self.geometry.block_size.log2() - 9
    }

    /// Size of an inode's blocks in units of 512 bytes, as in stat(2).
    #[must_use]
    pub fn sectors(&self, fields: &layout::Inode) -> u64 {
        match (self.has_huge_files(), fields.has_flag(flags::HUGE_FILE)) {
            (false, _) => fields.blocks & u64::from(u32::MAX),
            (true, false) => fields.blocks,
            (true, true) => fields.blocks << self.sector_shift(),
        }
    }

    /// Maximum count of an inode, in units of 512 bytes.
    #[must_use]
    pub fn sectors_max(&self) -> u64 {
        match self.has_huge_files() {
            false => u64::from(u32::MAX),
            true => WIDE_MAX << self.sector_shift(),
        }
    }

    /// Sets the count to `sectors` units of 512 bytes, or to the maximum.
    pub(crate) fn set_sectors(&self, fields: &mut layout::Inode, sectors: u64) {
        let sectors = sectors.min(self.sectors_max());
        if sectors <= WIDE_MAX {
            fields.flags &= !flags::HUGE_FILE;
            fields.blocks = sectors;
        } else {
            fields.flags |= flags::HUGE_FILE;
            fields.blocks = sectors >> self.sector_shift();
        }
    }

    /// Whether `i_block` holds the target of this symbolic link.
    pub(crate) fn is_fast_link(&self, fields: &layout::Inode, size: u64) -> bool {
        let attributes = match fields.file_acl {
            0 => 0,
            _ => self.geometry.cluster_ratio() << self.sector_shift(),
        };
        FileType::from_mode(fields.mode) == FileType::Symlink
            && !fields.has_flag(flags::EXTENTS | flags::INLINE_DATA)
            && size < FAST_LINK_MAX
            // i_blocks also counts attribute values in separate inodes.
            && (self.sectors(fields) <= attributes || self.sb.features.has_incompat(Features::EA_INODE))
    }

    /// Whether the content of the inode is in blocks of a map.
    pub(crate) fn has_map(&self, fields: &layout::Inode, size: u64) -> bool {
        let kind = FileType::from_mode(fields.mode);
        matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
            && !fields.has_flag(flags::INLINE_DATA)
            && !self.is_fast_link(fields, size)
    }
}

impl Values {
    /// Adds a number of file-system blocks to the count; negative to subtract. The caller checked
    /// [`room`](Self::room) before it allocated blocks.
    pub fn add_blocks(&mut self, shared: &Shared, blocks: i64) {
        if blocks == 0 {
            return;
        }
        let sectors = shared.sectors(&self.fields);
        let by = blocks.unsigned_abs() << shared.sector_shift();
        // A damaged count may be too small: it stops at 0.
        let sectors = if blocks < 0 { sectors.saturating_sub(by) } else { sectors.saturating_add(by) };
        shared.set_sectors(&mut self.fields, sectors);
    }

    /// Number of file-system blocks that the count can still grow by.
    #[must_use]
    pub fn room(&self, shared: &Shared) -> u64 {
        shared.sectors_max().saturating_sub(shared.sectors(&self.fields)) >> shared.sector_shift()
    }

    /// Whether the content of the inode is in blocks of a map.
    #[must_use]
    pub fn has_map(&self, shared: &Shared) -> bool {
        shared.has_map(&self.fields, self.fields.size)
    }

    /// Whether the content goes through the journal.
    #[must_use]
    pub fn is_journaled(&self, shared: &Shared) -> bool {
        shared.is_journaled(&self.fields)
    }
}
