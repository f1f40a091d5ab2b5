//! Inodes with a fixed role: bad blocks, root, quota, boot loader, resize, journal, orphan file.

use extant_base::Ino;
use extant_ondisk::Features;
use extant_ondisk::Superblock;
use extant_ondisk::filetype::FileType;

use crate::FindingPlace;
use crate::pass1::subject::{Subject, first_ino};
use crate::rules::inode as rules;

/// The role of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An ordinary file, which directory entries may name.
    File,
    /// The root directory.
    Root,
    /// The list of bad blocks.
    BadBlocks,
    /// The boot loader inode, which may hold a file.
    Boot,
    /// The resize inode, with the feature resize_inode.
    Resize,
    /// The journal inode that the superblock names.
    Journal,
    /// A quota file, with the feature quota.
    Quota,
    /// The orphan file, with the feature orphan_file.
    OrphanFile,
    /// An inode number of one of these roles, while its feature is off.
    Idle,
    /// Reserved, without a role.
    Reserved,
}

impl Role {
    /// Do neither the kernel nor e2fsck read its mode and attributes?
    pub(super) fn is_unread(self) -> bool {
        matches!(self, Self::BadBlocks | Self::Idle)
    }

    /// Is a directory entry that names this inode an error?
    pub(super) fn hides(self) -> bool {
        !matches!(self, Self::File | Self::Root)
    }
}

pub(super) fn role(sb: &Superblock, ino: Ino) -> Role {
    let f = &sb.features;
    let quota = f.has_ro_compat(Features::QUOTA);
    let is = |number: u32| number == ino.0;
    if ino == Ino::ROOT {
        Role::Root
    } else if ino == Ino::BAD_BLOCKS {
        Role::BadBlocks
    } else if sb.journal_inum != 0 && is(sb.journal_inum) {
        // Even without has_journal: the feature may have been cleared while the journal stayed, and the
        // kernel finds it.
        Role::Journal
    } else if quota && (is(sb.usr_quota_inum) || is(sb.grp_quota_inum) || is(sb.prj_quota_inum)) {
        Role::Quota
    } else if f.has_compat(Features::ORPHAN_FILE) && is(sb.orphan_file_inum) {
        Role::OrphanFile
    } else if ino == Ino::RESIZE {
        let reserved = f.has_compat(Features::RESIZE_INODE) || sb.reserved_gdt_blocks != 0;
        if reserved { Role::Resize } else { Role::Idle }
    } else if [Ino::JOURNAL, Ino::USER_QUOTA, Ino::GROUP_QUOTA].contains(&ino) {
        Role::Idle
    } else if ino == Ino(5) {
        Role::Boot
    } else if ino.0 < first_ino(sb) {
        Role::Reserved
    } else {
        Role::File
    }
}

/// Checks the inode against its role; returns `false` if its content must not be checked.
pub(super) fn check(subject: &Subject<'_, '_>, role: Role) -> bool {
    let inode = subject.inode;
    let broken = |rule, says: String| {
        subject.state.findings.broken(rule, FindingPlace::ino(subject.ino), says);
        false
    };
    let kind = FileType::from_mode(inode.mode);
    match role {
        Role::File => true,
        Role::Root if kind != FileType::Directory => {
            broken(&rules::ROOT, format!("the root's mode is {:#o}", inode.mode))
        }
        Role::Root => true,
        Role::BadBlocks => {
            let (uid, gid, acl) = (inode.uid as u16, inode.gid as u16, inode.file_acl as u32);
            let idle = inode.mode == 0 && uid == 0 && gid == 0 && inode.links == 0 && acl == 0;
            idle || broken(
                &rules::RESERVED,
                "the list of bad blocks has a mode, an owner, links or attributes".into(),
            )
        }
        Role::Boot if kind == FileType::Directory => {
            broken(&rules::RESERVED, "the boot loader's inode is a directory".into())
        }
        Role::Boot | Role::Resize => true,
        Role::Journal if kind != FileType::Regular || inode.links == 0 => {
            broken(
                &rules::JOURNAL,
                format!("the journal's mode is {:#o}, its links {}", inode.mode, inode.links),
            );
            kind == FileType::Regular
        }
        Role::Quota | Role::OrphanFile if kind != FileType::Regular => {
            broken(&rules::RESERVED, format!("the mode is {:#o}, should be a regular file's", inode.mode))
        }
        Role::Journal | Role::Quota | Role::OrphanFile => true,
        Role::Idle => {
            let first = inode.block[..4] != [0; 4];
            // When the kernel grows a file system past its reserved descriptors, it turns resize_inode off
            // and takes the inode's blocks; mode, size and link count stay.
            let linked = inode.links != 0 && subject.ino != Ino::RESIZE;
            let used = linked || inode.blocks as u32 != 0 || first;
            !used || broken(&rules::RESERVED, "the inode is not in use, but holds data".into())
        }
        Role::Reserved => {
            inode.mode == 0
                || broken(&rules::RESERVED, format!("a reserved inode's mode is {:#o}", inode.mode))
        }
    }
}
