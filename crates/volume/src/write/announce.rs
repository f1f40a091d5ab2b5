//! Features in the superblock: no structure is written that needs a missing one (INV-EN50).
//!
//! Before a structure is written, what it needs is held against the superblock. As the kernel (6.18, tried on
//! loop mounts of images that lack one feature each): two features come with the first structure that needs
//! them, in the same transaction; for want of any other the older form is written, or the operation is
//! refused.
//!
//! | structure | needs | where it is missing |
//! |---|---|---|
//! | an attribute, an ACL, in the inode or in a block | `ext_attr` | it is set; revision 0 becomes 1 |
//! | a file of 2 GiB and more | `large_file` | it is set; revision 0 becomes 1 |
//! | a map of extents | `extent` | block maps: files, directories, long symbolic links, values of attributes |
//! | unwritten blocks (`fallocate`) | `extent` | refused, EOPNOTSUPP |
//! | a directory's index | `dir_index` | linear; a flag INDEX goes when a name is put in |
//! | more than 64,998 subdirectories | `dir_nlink`, and an index | refused, EMLINK |
//! | an index of three levels, a directory of 2 GiB | `large_dir` | refused, ENOSPC |
//! | the type of file in an entry | `filetype` | 0, and read as unknown |
//! | 2^32 units of 512 bytes in i_blocks | `huge_file` | refused, EFBIG |
//! | a value in an inode of its own | `ea_inode` | refused, ENOSPC |
//! | bytes inside of the inode | `inline_data` | blocks |
//! | a project | `project` | refused, EOPNOTSUPP; nothing is inherited |
//! | nanoseconds, years past 2038, birth | inodes of 256 bytes | whole seconds up to 2038, none; see [`fit`](extant_ondisk::inode::Inode::fit) |
//! | more newer fields than 32 bytes in new inodes | `extra_isize` | 32 bytes |
//! | checksums of metadata | `metadata_csum` | none |
//! | flags and checksums of groups | `metadata_csum` or `uninit_bg` | none |
//! | orphans in a file | `orphan_file` | the list |
//! | wide block numbers, checksums in the log | `64bit`, `metadata_csum` | a plain log; see `extant_journal::Options` |
//!
//! Owns: the two that are set. Does **not** own: the older forms, each of which is where the structure is
//! written.
//!
//! `tests/features.rs` has a test for each line.

use extant_inode::Change;
use extant_ondisk::Features;
use extant_ondisk::inode::BASE_SIZE;

use super::{CommitClient, Writer};
use crate::Fault;

/// A feature that comes with the first structure that needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    /// `ext_attr`.
    Attributes,
    /// `large_file`.
    LargeFiles,
}

impl Announced {
    fn is_in(self, features: &Features) -> bool {
        match self {
            Self::Attributes => features.has_compat(Features::EXT_ATTR),
            Self::LargeFiles => features.has_ro_compat(Features::LARGE_FILE),
        }
    }

    fn put(self, features: &mut Features) {
        match self {
            Self::Attributes => features.compat |= Features::EXT_ATTR,
            Self::LargeFiles => features.ro_compat |= Features::LARGE_FILE,
        }
    }
}

impl CommitClient {
    /// The superblock has the feature, in the transaction of `change` or before.
    pub(super) fn announce(&self, change: &Change<'_>, what: Announced) -> Result<(), Fault> {
        let sb = &self.shared().sb;
        if sb.rev_level > 0 && what.is_in(&sb.features) {
            return Ok(());
        }
        self.edit_superblock(change, &|sb| {
            if sb.rev_level == 0 {
                // The first revision has no features; the second one's fields get the values that the first
                // one stands for.
                (sb.rev_level, sb.first_ino, sb.inode_size) = (1, 11, BASE_SIZE as u16);
            }
            what.put(&mut sb.features);
        })
    }
}

impl Writer {
    /// May this directory have more subdirectories than its links can count?
    pub(super) fn has_uncounted_links(&self, flags: u32) -> bool {
        let features = &self.shared().sb.features;
        features.has_ro_compat(Features::DIR_NLINK)
            && features.has_compat(Features::DIR_INDEX)
            && flags & extant_ondisk::inode::flags::INDEX != 0
    }

    /// Bytes of newer fields in new inodes: what the superblock wants, if it says so, but at least what is in
    /// use today.
    pub(super) fn new_extra_isize(&self) -> u16 {
        let shared = self.shared();
        let least = extant_ondisk::inode::EXTRA_SIZE as u16;
        let Some(room) = shared.geometry.inode_size.checked_sub(BASE_SIZE).filter(|room| *room > 0) else {
            return 0;
        };
        let sb = &shared.sb;
        let wanted = match sb.features.has_ro_compat(Features::EXTRA_ISIZE) {
            true => sb.want_extra_isize.max(sb.min_extra_isize),
            false => 0,
        };
        // As the kernel: what does not fit is not wanted.
        let fits = wanted > least && usize::from(wanted) <= room && wanted.is_multiple_of(4);
        if fits { wanted } else { least }
    }
}
