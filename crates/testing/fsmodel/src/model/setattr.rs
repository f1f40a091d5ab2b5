//! Changes owner, mode, times, size and attributes of an object.

use super::*;

/// The range of times in an inode with extra fields: 34 bits of seconds since 1901.
const SECS_MIN: i64 = -(1 << 31);
const SECS_MAX: i64 = (1 << 34) - (1 << 31) - 1;
const VALUE_MAX: usize = 65_536;

impl Model {
    pub(super) fn chmod(&mut self, at: &At, mode: u16) -> Result<(), Errno> {
        let ino = self.inodes.object(at)?;
        if self.inodes.get(ino).kind == Kind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let inode = self.inodes.edit(ino);
        inode.mode = mode & 0o7777;
        if let Some(mut acl) = inode.acl(AclType::Access) {
            acl.chmod(mode);
            // It has the same length as before: it fits.
            inode.attributes.set_acl(&self.limits, AclType::Access, Some(&acl))?;
        }
        Ok(())
    }

    pub(super) fn chown(&mut self, at: &At, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let ino = self.inodes.object(at)?;
        let inode = self.inodes.edit(ino);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        // Also if no id changes. Set-group-id without execute permission once meant mandatory locking: root
        // keeps it.
        if !inode.is_dir() {
            inode.mode &= !S_ISUID;
            if inode.mode & S_IXGRP != 0 {
                inode.mode &= !S_ISGID;
            }
            inode.attributes.remove(CAPABILITY);
        }
        Ok(())
    }

    pub(super) fn utimens(&mut self, at: &At, atime: SetTime, mtime: SetTime) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        // The kernel does not look up the name when there is nothing to do.
        if (atime, mtime) == (SetTime::Keep, SetTime::Keep) {
            return Ok(());
        }
        let ino = self.inodes.find(dir, at.name())?;
        let is_bad = |time| matches!(time, SetTime::To(time) if time.nanos >= 1_000_000_000);
        if is_bad(atime) || is_bad(mtime) {
            return Err(Errno::EINVAL);
        }
        let inode = self.inodes.edit(ino);
        for (place, time) in [(&mut inode.atime, atime), (&mut inode.mtime, mtime)] {
            match time {
                SetTime::Keep => {}
                SetTime::Now => *place = None,
                SetTime::To(time) => *place = Some(stored(time)),
            }
        }
        Ok(())
    }

    /// Root keeps the set-id bits of a file that it truncates; capabilities are dropped.
    pub(super) fn truncate(&mut self, at: &At, size: u64) -> Result<(), Errno> {
        let ino = self.inodes.object(at)?;
        match self.inodes.get(ino).kind {
            Kind::File => {}
            Kind::Dir => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if i64::try_from(size).is_err() {
            return Err(Errno::EINVAL);
        }
        if size > self.limits.max_size() {
            return Err(Errno::EFBIG);
        }
        let inode = self.inodes.edit(ino);
        inode.attributes.remove(CAPABILITY);
        inode.size = size;
        inode.mtime = None;
        Ok(())
    }

    pub(super) fn set_xattr(
        &mut self,
        at: &At,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        check_name_len(name)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        let ino = self.inodes.find(dir, at.name())?;
        if let Some(acl_type) = AclType::of_xattr_name(name) {
            return self.set_acl(ino, acl_type, Acl::from_xattr(value)?);
        }
        if name == CAPABILITY && !value.is_empty() && !is_capability(value) {
            return Err(Errno::EINVAL);
        }
        self.inodes.get(ino).may_have(name, Errno::EPERM)?;
        self.inodes.edit(ino).attributes.set(&self.limits, name, value, mode)
    }

    /// Whether this operation would give a symlink whose target lies in the inode a value in an EA inode.
    pub(crate) fn adds_ea_inode_to_short_symlink(&self, op: &Op) -> bool {
        let Op::SetXattr { at, name, value, mode } = op else { return false };
        let Ok(ino) = self.inodes.object(at) else { return false };
        if !self.limits.ea_inode || self.inodes.get(ino).kind != Kind::Symlink {
            return false;
        }
        let mut inode = self.inodes.get(ino).clone();
        inode.attributes.set(&self.limits, &name.0, &value.0, *mode).is_ok()
            && inode.is_short_symlink_with_ea_inode()
    }

    pub(super) fn remove_xattr(&mut self, at: &At, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        check_name_len(name)?;
        let ino = self.inodes.find(dir, at.name())?;
        if let Some(acl_type) = AclType::of_xattr_name(name) {
            return self.set_acl(ino, acl_type, None);
        }
        self.inodes.get(ino).may_have(name, Errno::EPERM)?;
        if self.inodes.edit(ino).attributes.remove(name) { Ok(()) } else { Err(Errno::ENODATA) }
    }

    pub(super) fn get_xattr(&self, at: &At, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        check_name_len(name)?;
        let ino = self.inodes.find(dir, at.name())?;
        match AclType::of_xattr_name(name) {
            None => self.inodes.get(ino).may_have(name, Errno::ENODATA)?,
            Some(_) if self.inodes.get(ino).kind == Kind::Symlink => return Err(Errno::EOPNOTSUPP),
            Some(_) => {}
        }
        self.inodes.get(ino).attributes.get(name).map(|_| ()).ok_or(Errno::ENODATA)
    }

    /// Sets an ACL. An access ACL changes the mode, and is not stored if the mode expresses it completely.
    fn set_acl(&mut self, ino: Ino, acl_type: AclType, acl: Option<Acl>) -> Result<(), Errno> {
        let inode = self.inodes.get(ino);
        if inode.kind == Kind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        if acl_type == AclType::Default && !inode.is_dir() {
            return if acl.is_some() { Err(Errno::EACCES) } else { Ok(()) };
        }
        if acl.as_ref().is_some_and(|acl| !acl.is_valid()) {
            return Err(Errno::EINVAL);
        }
        let inode = self.inodes.edit(ino);
        let mode = match (&acl, acl_type) {
            (Some(acl), AclType::Access) => inode.mode & !0o777 | acl.mode(),
            _ => inode.mode,
        };
        let stored = acl.filter(|acl| acl_type == AclType::Default || !acl.is_trivial());
        inode.attributes.set_acl(&self.limits, acl_type, stored.as_ref())?;
        inode.mode = mode;
        Ok(())
    }
}

/// The time as an inode stores it.
fn stored(time: Time) -> Time {
    let secs = time.secs.clamp(SECS_MIN, SECS_MAX);
    let is_at_end = secs == SECS_MIN || secs == SECS_MAX;
    Time { secs, nanos: if is_at_end { 0 } else { time.nanos } }
}

/// The calls refuse an empty name, or one of more than 255 bytes, before they look up the object.
fn check_name_len(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_MAX { Err(Errno::ERANGE) } else { Ok(()) }
}

/// Whether the value has the format of file capabilities, version 2 or 3.
fn is_capability(value: &[u8]) -> bool {
    let version = value.first_chunk().map(|magic| u32::from_le_bytes(*magic) >> 24);
    matches!((version, value.len()), (Some(2), 20) | (Some(3), 24))
}
