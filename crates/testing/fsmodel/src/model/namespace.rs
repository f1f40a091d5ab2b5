//! Creates, links, removes and moves names.

use super::*;

impl Model {
    /// Creates an object: it inherits from its directory and gets its name.
    pub(super) fn create(&mut self, at: &At, inode: Inode) -> Result<(), Errno> {
        let (dir, name) = self.inodes.vacant(at)?;
        let inode = self.born(dir, inode)?;
        let ino = self.inodes.add(inode);
        self.inodes.enter(dir, name, ino);
        Ok(())
    }

    pub(super) fn symlink(&mut self, at: &At, target: &Bytes) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        // The call reads its strings before it looks up the name.
        if target.0.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.0.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.inodes.vacant(at)?;
        if target.0.len() >= self.limits.block_size as usize {
            return Err(Errno::ENAMETOOLONG);
        }
        let inode =
            Inode { size: target.0.len() as u64, target: target.clone(), ..Inode::new(Kind::Symlink, 0o777) };
        let inode = self.born(dir, inode)?;
        let ino = self.inodes.add(inode);
        self.inodes.enter(dir, at.name(), ino);
        Ok(())
    }

    pub(super) fn tmpfile(&mut self, at: &At, mode: u16, linked: bool) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        let inode = self.born(dir, Inode::new(Kind::File, mode & 0o7777))?;
        if linked {
            let (dir, name) = self.inodes.vacant(at)?;
            let ino = self.inodes.add(inode);
            self.inodes.enter(dir, name, ino);
        }
        Ok(())
    }

    /// Applies what a new object inherits from its directory: the group of a set-group-id directory, and the
    /// default ACL.
    fn born(&self, dir: Ino, mut inode: Inode) -> Result<Inode, Errno> {
        let parent = self.inodes.get(dir);
        if parent.mode & S_ISGID != 0 {
            inode.gid = parent.gid;
            if inode.is_dir() {
                inode.mode |= S_ISGID;
            }
        }
        if inode.is_dir() {
            inode.parent = dir;
        }
        if inode.kind != Kind::Symlink
            && let Some(default) = parent.acl(AclType::Default)
        {
            let access = default.inherited(inode.mode);
            inode.mode = inode.mode & !0o777 | access.mode();
            if inode.is_dir() {
                inode.attributes.set_acl(&self.limits, AclType::Default, Some(&default))?;
            }
            if !access.is_trivial() {
                inode.attributes.set_acl(&self.limits, AclType::Access, Some(&access))?;
            }
        }
        Ok(inode)
    }

    pub(super) fn link(&mut self, old: &At, new: &At) -> Result<(), Errno> {
        let old_dir = self.inodes.directory(old)?;
        self.inodes.directory(new)?;
        let ino = self.inodes.find(old_dir, old.name())?;
        let (dir, name) = self.inodes.vacant(new)?;
        if self.inodes.get(ino).is_dir() {
            return Err(Errno::EPERM);
        }
        self.inodes.enter(dir, name, ino);
        Ok(())
    }

    pub(super) fn unlink(&mut self, at: &At) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        if is_dots(at.name()) {
            return Err(Errno::EISDIR);
        }
        let ino = self.inodes.find(dir, at.name())?;
        if self.inodes.get(ino).is_dir() {
            return Err(Errno::EISDIR);
        }
        self.inodes.remove(dir, at.name());
        Ok(())
    }

    pub(super) fn rmdir(&mut self, at: &At) -> Result<(), Errno> {
        let dir = self.inodes.directory(at)?;
        match at.name() {
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let inode = self.inodes.get(self.inodes.find(dir, at.name())?);
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if !inode.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.inodes.remove(dir, at.name());
        Ok(())
    }

    pub(super) fn rename(&mut self, old: &At, new: &At, mode: RenameMode) -> Result<(), Errno> {
        let (old_dir, new_dir) = (self.inodes.directory(old)?, self.inodes.directory(new)?);
        if is_dots(old.name()) {
            return Err(Errno::EBUSY);
        }
        if is_dots(new.name()) {
            return Err(if mode == RenameMode::NoReplace { Errno::EEXIST } else { Errno::EBUSY });
        }
        let source = self.inodes.find(old_dir, old.name())?;
        let target = match self.inodes.find(new_dir, new.name()) {
            Ok(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
            Ok(target) => Some(target),
            Err(Errno::ENOENT) if mode != RenameMode::Exchange => None,
            Err(other) => return Err(other),
        };
        let is_exchange = mode == RenameMode::Exchange;
        if old_dir != new_dir {
            if self.inodes.is_above(source, new_dir) {
                return Err(Errno::EINVAL);
            }
            if target.is_some_and(|target| self.inodes.is_above(target, old_dir)) {
                return Err(if is_exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
        }
        if target == Some(source) {
            // Two names of one object: the rename does nothing, and both names stay.
            return Ok(());
        }
        if let Some(target) = target
            && is_exchange
        {
            self.inodes.leave(old_dir, old.name());
            self.inodes.leave(new_dir, new.name());
            self.inodes.enter(old_dir, old.name(), target);
            self.inodes.enter(new_dir, new.name(), source);
            return Ok(());
        }
        if let Some(target) = target {
            match (self.inodes.get(source).is_dir(), self.inodes.get(target).is_dir()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.inodes.get(target).entries.is_empty() => {
                    if mode == RenameMode::Whiteout {
                        // The kernel has already created the whiteout, and removes it again.
                        self.inodes.touch(old_dir);
                    }
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
        }
        let whiteout = match mode {
            RenameMode::Whiteout => Some(self.born(old_dir, Inode::new(Kind::Char, 0))?),
            _ => None,
        };
        // No refusal from here on.
        if target.is_some() {
            self.inodes.remove(new_dir, new.name());
        }
        self.inodes.leave(old_dir, old.name());
        self.inodes.enter(new_dir, new.name(), source);
        if let Some(whiteout) = whiteout {
            let ino = self.inodes.add(whiteout);
            self.inodes.enter(old_dir, old.name(), ino);
        }
        Ok(())
    }
}

/// Whether the name exists in every directory and cannot be created.
fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
