//! Announced features (INV-EN50): no structure is written that needs a feature which the superblock does not
//! have.
//!
//! Before a structure is written, its features are checked against the superblock. The behaviour is the
//! kernel's (6.18, tried on loop mounts of images that lack one feature each): two features are set with the
//! first structure that needs them, in the same transaction. If any other is missing, the older form is
//! written, or the operation is refused.
//!
//! | structure | needs | if missing |
//! |---|---|---|
//! | an attribute, an ACL, in the inode or in a block | `ext_attr` | it is set; revision 0 becomes 1 |
//! | a file of 2 GiB and more | `large_file` | it is set; revision 0 becomes 1 |
//! | an extent map | `extent` | block maps: files, directories, long symbolic links, attribute values |
//! | unwritten blocks (`fallocate`) | `extent` | refused, EOPNOTSUPP |
//! | a directory's index | `dir_index` | linear; a flag INDEX is cleared when a name is added |
//! | more than 64,998 subdirectories | `dir_nlink`, and an index | refused, EMLINK |
//! | an index of three levels, a directory of 2 GiB | `large_dir` | refused, ENOSPC |
//! | the file type in an entry | `filetype` | 0, and read as unknown |
//! | 2^32 units of 512 bytes in i_blocks | `huge_file` | refused, EFBIG |
//! | a value in an inode of its own | `ea_inode` | refused, ENOSPC |
//! | data inside of the inode | `inline_data` | blocks |
//! | a project | `project` | refused, EOPNOTSUPP; nothing is inherited |
//! | nanoseconds, years past 2038, birth | 256-byte inodes | seconds up to 2038; see [`fit`] |
//! | more newer fields than 32 bytes in new inodes | `extra_isize` | 32 bytes |
//! | checksums of metadata | `metadata_csum` | none |
//! | flags and checksums of groups | `metadata_csum` or `uninit_bg` | none |
//! | orphans in a file | `orphan_file` | the list |
//! | wide block numbers, log checksums | `64bit`, `metadata_csum` | a plain log; see `extant_journal::Options` |
//!
//! Owns: the two features that are set. Does **not** own: the older forms; the code that writes a structure
//! chooses its form.
//!
//! `tests/features.rs` has a test for each line.
//!
//! [`fit`]: ondisk::inode::Inode::fit

use extant_inode::Change;
use extant_ondisk::Features;
use extant_ondisk::inode::BASE_SIZE;

use super::{CommitClient, Writer};
use crate::Fault;

/// A feature that is set with the first structure that needs it.
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
    /// Sets the feature in the superblock with `change`, unless it is set already.
    pub(super) fn announce(&self, change: &Change<'_>, what: Announced) -> Result<(), Fault> {
        let sb = &self.shared().sb;
        if sb.rev_level > 0 && what.is_in(&sb.features) {
            return Ok(());
        }
        self.edit_superblock(change, &|sb| {
            if sb.rev_level == 0 {
                // Revision 0 has no features. The fields that revision 1 adds get the values that revision 0
                // implies.
                (sb.rev_level, sb.first_ino, sb.inode_size) = (1, 11, BASE_SIZE as u16);
            }
            what.put(&mut sb.features);
        })
    }
}

impl Writer {
    /// Returns whether this directory may have more subdirectories than its link count can express.
    pub(super) fn has_uncounted_links(&self, flags: u32) -> bool {
        let features = &self.shared().sb.features;
        features.has_ro_compat(Features::DIR_NLINK)
            && features.has_compat(Features::DIR_INDEX)
            && flags & extant_ondisk::inode::flags::INDEX != 0
    }

    /// Size in bytes of the newer fields in new inodes: the superblock's wish if it has one, but at least
    /// what is in use today.
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
        // As the kernel: a size that does not fit is ignored.
        let fits = wanted > least && usize::from(wanted) <= room && wanted.is_multiple_of(4);
        if fits { wanted } else { least }
    }
}
