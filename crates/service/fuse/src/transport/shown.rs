//! Owners and permissions that a mount shows in place of those on disk, for media of other machines.
//!
//! Nothing changes on disk by it: chown and chmod are refused unless they ask for what is shown already, as
//! by the kernel's vfat. New inodes have the owner and the permissions that they have on any mount.

use extant_volume::{FileType, SetAttr, Stat};

use crate::Errno;

/// What is shown. By default what is on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// The owner of every inode.
    pub uid: Option<u32>,
    /// The group of every inode.
    pub gid: Option<u32>,
    /// Permissions that no directory has.
    pub dir_mask: u16,
    /// Permissions that nothing else has.
    pub file_mask: u16,
}

impl Shown {
    /// Is anything shown that is not on disk?
    pub(super) fn differs(&self) -> bool {
        *self != Self::default()
    }

    /// The inode as it is shown. A set-id bit would give the rights of an owner that the file does not have.
    pub(super) fn of(&self, stat: &Stat) -> Stat {
        let mask = if stat.kind == FileType::Directory { self.dir_mask } else { self.file_mask };
        let hides = |bit: u16, is_other: bool| match stat.kind {
            FileType::Directory => 0,
            _ => bit * u16::from(is_other),
        };
        let set_id = hides(0o4000, self.uid.is_some()) | hides(0o2000, self.gid.is_some());
        Stat {
            uid: self.uid.unwrap_or(stat.uid),
            gid: self.gid.unwrap_or(stat.gid),
            mode: stat.mode & !(mask | set_id),
            ..stat.clone()
        }
    }

    /// Leaves out of a change what is shown already.
    ///
    /// # Errors
    /// `EPERM`: the change would not be shown.
    pub(super) fn change(&self, stat: &Stat, set: &mut SetAttr) -> Result<(), Errno> {
        let shown = self.of(stat);
        let is_other = |asked: Option<u32>, shown: u32| asked.is_some_and(|asked| asked != shown);
        let is_other_mode = set.mode.is_some_and(|mode| mode != shown.mode & 0o7777);
        if is_other(set.uid, shown.uid) || is_other(set.gid, shown.gid) || is_other_mode {
            return Err(Errno::PERM);
        }
        (set.uid, set.gid, set.mode) = (None, None, None);
        Ok(())
    }
}
