//! Quotas and projects in operations: owners get quota entries before they get an inode, and an inode does
//! not enter a directory that requires another project.
//!
//! Does **not** own: counting (see `extant_inode::Quota`).

use extant_inode::{LiveInode, Owners, Quota};
use extant_ondisk::Features;
use extant_ondisk::inode::flags;

use super::new::New;
use super::{SETGID, Writer};
use crate::{Fault, Refusal};

impl Writer {
    /// Owners of an inode created in a directory: user, group, project.
    pub(super) fn owners_of_new(&self, parent: &LiveInode, new: &New<'_>) -> Owners {
        let values = parent.values();
        let sb = &self.shared().sb;
        let is_dirs = self.dir_groups || values.fields.mode & SETGID != 0;
        let gid = if is_dirs { values.fields.gid } else { sb.storable_id(new.gid) };
        let has_projects = sb.features.has_ro_compat(Features::PROJECT);
        let inherits = has_projects && values.has_flag(flags::PROJINHERIT);
        [sb.storable_id(new.uid), gid, if inherits { values.fields.projid } else { 0 }]
    }

    /// Creates missing entries for owners in the quota files. Called without a handle, before an operation
    /// gives them an inode. If the operation is refused after that, entries without usage remain, which are
    /// as good as none.
    pub(super) fn admit(&self, owners: impl FnOnce() -> Owners) -> Result<(), Fault> {
        let Some(quota) = self.inodes().quota() else { return Ok(()) };
        let owners = owners();
        if quota.knows(self.inodes().shared(), owners)? {
            return Ok(());
        }
        while !self.run(Quota::ADMIT_CREDITS, |change| Ok(quota.admit(change, owners)?))? {}
        Ok(())
    }

    /// A directory that passes on its project refuses inodes of another project.
    pub(super) fn check_project(&self, dir: &LiveInode, moved: &LiveInode) -> Result<(), Fault> {
        let wanted = {
            let values = dir.values();
            values.has_flag(flags::PROJINHERIT).then_some(values.fields.projid)
        };
        match wanted {
            Some(project) if project != moved.values().fields.projid => Err(Refusal::OtherProject.into()),
            _ => Ok(()),
        }
    }
}
