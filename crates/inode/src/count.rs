//! i_blocks: how many blocks an inode has, in the units that its flags name; and what kind of content it has.
//! The one place that adds to it.
//!
//! It counts data, nodes of the map, the attribute block and the values in inodes of their own, whole
//! clusters each.
//!
//! ```text
//!   without the feature huge_file     32 bits of 512 bytes; the high half means nothing
//!   with it                           48 bits of 512 bytes
//!   with it and the flag HUGE_FILE    48 bits of file-system blocks
//! ```
//!
//! As the kernel writes it: the flag only where 48 bits of 512 bytes do not suffice, taken off again where
//! they do.
//!
//! Source: kernel Documentation/filesystems/ext4/inodes.rst.

use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};

use crate::{Shared, Values};

/// What 48 bits hold.
const WIDE_MAX: u64 = (1 << 48) - 1;
/// `i_block` holds the target of a symbolic link that is shorter than this.
const FAST_LINK_MAX: u64 = 60;

impl Shared {
    /// Does the content of this inode go through the journal, as metadata does?
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

    /// Units of 512 bytes in a block, as a shift.
    fn sector_shift(&self) -> u32 {
        self.geometry.block_size.log2() - 9
    }

    /// Blocks of an inode, in units of 512 bytes, as in stat(2).
    #[must_use]
    pub fn sectors(&self, fields: &layout::Inode) -> u64 {
        match (self.has_huge_files(), fields.has_flag(flags::HUGE_FILE)) {
            (false, _) => fields.blocks & u64::from(u32::MAX),
            (true, false) => fields.blocks,
            (true, true) => fields.blocks << self.sector_shift(),
        }
    }

    /// Units of 512 bytes that an inode's count can hold.
    #[must_use]
    pub fn sectors_max(&self) -> u64 {
        match self.has_huge_files() {
            false => u64::from(u32::MAX),
            true => WIDE_MAX << self.sector_shift(),
        }
    }

    /// Makes the count `sectors` units of 512 bytes, or as many as it can hold.
    pub fn set_sectors(&self, fields: &mut layout::Inode, sectors: u64) {
        let sectors = sectors.min(self.sectors_max());
        if sectors <= WIDE_MAX {
            fields.flags &= !flags::HUGE_FILE;
            fields.blocks = sectors;
        } else {
            fields.flags |= flags::HUGE_FILE;
            fields.blocks = sectors >> self.sector_shift();
        }
    }

    /// Does `i_block` hold the target of this symbolic link?
    pub(crate) fn is_fast_link(&self, fields: &layout::Inode, size: u64) -> bool {
        let attributes = match fields.file_acl {
            0 => 0,
            _ => self.geometry.cluster_ratio() << self.sector_shift(),
        };
        FileType::from_mode(fields.mode) == FileType::Symlink
            && !fields.has_flag(flags::EXTENTS | flags::INLINE_DATA)
            && size < FAST_LINK_MAX
            // Values in inodes of their own are counted in i_blocks too.
            && (self.sectors(fields) <= attributes || self.sb.features.has_incompat(Features::EA_INODE))
    }

    /// Has the inode blocks that hold its content?
    pub(crate) fn has_map(&self, fields: &layout::Inode, size: u64) -> bool {
        let kind = FileType::from_mode(fields.mode);
        matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
            && !fields.has_flag(flags::INLINE_DATA)
            && !self.is_fast_link(fields, size)
    }
}

impl Values {
    /// Counts `blocks` blocks of the file system more, or fewer. The caller checked [`room`](Self::room)
    /// before it took blocks.
    pub fn add_blocks(&mut self, shared: &Shared, blocks: i64) {
        if blocks == 0 {
            return;
        }
        let sectors = shared.sectors(&self.fields);
        let by = blocks.unsigned_abs() << shared.sector_shift();
        // A damaged count may be less than what is there: it ends at 0.
        let sectors = if blocks < 0 { sectors.saturating_sub(by) } else { sectors.saturating_add(by) };
        shared.set_sectors(&mut self.fields, sectors);
    }

    /// Blocks of the file system that its count has room for.
    #[must_use]
    pub fn room(&self, shared: &Shared) -> u64 {
        shared.sectors_max().saturating_sub(shared.sectors(&self.fields)) >> shared.sector_shift()
    }

    /// Has it blocks that hold its content?
    #[must_use]
    pub fn has_map(&self, shared: &Shared) -> bool {
        shared.has_map(&self.fields, self.fields.size)
    }

    /// Does its content go through the journal?
    #[must_use]
    pub fn is_journaled(&self, shared: &Shared) -> bool {
        shared.is_journaled(&self.fields)
    }
}
