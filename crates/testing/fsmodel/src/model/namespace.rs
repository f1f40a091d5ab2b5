//! Creates, links, removes and moves names.

use std::ops::Bound;

use super::*;

impl Model {
    /// Creates an object: it inherits from its directory and gets its name.
    pub(super) fn create(&mut self, at: &At, inode: Inode) -> Result<(), Errno> {
        let (dir, name) = self.vacant(at)?;
        let inode = self.born(dir, inode)?;
        let ino = self.assign_ino(inode);
        self.enter(dir, name, ino);
        Ok(())
    }

    pub(super) fn symlink(&mut self, at: &At, target: &Bytes) -> Result<(), Errno> {
        let dir = self.directory(at)?;
        // The call reads its strings before it looks up the name.
        if target.0.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.0.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.vacant(at)?;
        if target.0.len() >= self.limits.block_size as usize {
            return Err(Errno::ENAMETOOLONG);
        }
        let inode =
            Inode { size: target.0.len() as u64, target: target.clone(), ..Inode::new(Kind::Symlink, 0o777) };
        let inode = self.born(dir, inode)?;
        let ino = self.assign_ino(inode);
        self.enter(dir, at.name(), ino);
        Ok(())
    }

    pub(super) fn tmpfile(&mut self, at: &At, mode: u16, linked: bool) -> Result<(), Errno> {
        let dir = self.directory(at)?;
        let inode = self.born(dir, Inode::new(Kind::File, mode & 0o7777))?;
        if linked {
            let (dir, name) = self.vacant(at)?;
            let ino = self.assign_ino(inode);
            self.enter(dir, name, ino);
        }
        Ok(())
    }

    /// Applies what a new object inherits from its directory: the group of a set-group-id directory, and the
    /// default ACL.
    fn born(&self, dir: Ino, mut inode: Inode) -> Result<Inode, Errno> {
        let parent = self.inode(dir);
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

    /// Gives the inode a number.
    fn assign_ino(&mut self, inode: Inode) -> Ino {
        let ino = self.free.pop().unwrap_or_else(|| {
            self.inodes.push(None);
            self.inodes.len() - 1
        });
        self.inodes[ino] = Some(Arc::new(inode));
        ino
    }

    /// Marks a directory's modification time as unknown, because its names change.
    fn touch(&mut self, dir: Ino) {
        self.edit(dir).mtime = None;
    }

    /// Adds a name and updates the link counts.
    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let inode = self.edit(ino);
        let is_dir = inode.is_dir();
        inode.nlink += 1;
        if is_dir {
            // The directory's own dot counts; a directory has only one name.
            inode.nlink = inode.nlink.max(2);
            inode.parent = dir;
            self.edit(dir).nlink += 1;
        }
        self.edit(dir).entries.insert(name.into(), ino);
        self.touch(dir);
    }

    /// Removes a name but keeps the object, which then gets another name or is freed.
    fn leave(&mut self, dir: Ino, name: &[u8]) -> Ino {
        let ino = self.edit(dir).entries.remove(name).expect("the name was found before");
        if self.inode(ino).is_dir() {
            self.edit(dir).nlink -= 1;
            // The links of its own dot and of its subdirectories remain.
            self.edit(ino).nlink -= 1;
        } else {
            self.edit(ino).nlink -= 1;
        }
        self.touch(dir);
        ino
    }

    /// Removes a name, and the object with its last name.
    fn remove(&mut self, dir: Ino, name: &[u8]) {
        let ino = self.leave(dir, name);
        let inode = self.inode(ino);
        if inode.nlink == 0 || inode.is_dir() {
            self.inodes[ino] = None;
            self.free.push(ino);
        }
    }

    pub(super) fn link(&mut self, old: &At, new: &At) -> Result<(), Errno> {
        let old_dir = self.directory(old)?;
        self.directory(new)?;
        let ino = self.find(old_dir, old.name())?;
        let (dir, name) = self.vacant(new)?;
        if self.inode(ino).is_dir() {
            return Err(Errno::EPERM);
        }
        self.enter(dir, name, ino);
        Ok(())
    }

    pub(super) fn unlink(&mut self, at: &At) -> Result<(), Errno> {
        let dir = self.directory(at)?;
        if is_dots(at.name()) {
            return Err(Errno::EISDIR);
        }
        let ino = self.find(dir, at.name())?;
        if self.inode(ino).is_dir() {
            return Err(Errno::EISDIR);
        }
        self.remove(dir, at.name());
        Ok(())
    }

    pub(super) fn rmdir(&mut self, at: &At) -> Result<(), Errno> {
        let dir = self.directory(at)?;
        match at.name() {
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let inode = self.inode(self.find(dir, at.name())?);
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if !inode.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove(dir, at.name());
        Ok(())
    }

    pub(super) fn rename(&mut self, old: &At, new: &At, mode: RenameMode) -> Result<(), Errno> {
        let (old_dir, new_dir) = (self.directory(old)?, self.directory(new)?);
        if is_dots(old.name()) {
            return Err(Errno::EBUSY);
        }
        if is_dots(new.name()) {
            return Err(if mode == RenameMode::NoReplace { Errno::EEXIST } else { Errno::EBUSY });
        }
        let source = self.find(old_dir, old.name())?;
        let target = match self.find(new_dir, new.name()) {
            Ok(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
            Ok(target) => Some(target),
            Err(Errno::ENOENT) if mode != RenameMode::Exchange => None,
            Err(other) => return Err(other),
        };
        let is_exchange = mode == RenameMode::Exchange;
        if old_dir != new_dir {
            if self.is_above(source, new_dir) {
                return Err(Errno::EINVAL);
            }
            if target.is_some_and(|target| self.is_above(target, old_dir)) {
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
            self.leave(old_dir, old.name());
            self.leave(new_dir, new.name());
            self.enter(old_dir, old.name(), target);
            self.enter(new_dir, new.name(), source);
            return Ok(());
        }
        if let Some(target) = target {
            match (self.inode(source).is_dir(), self.inode(target).is_dir()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.inode(target).entries.is_empty() => {
                    if mode == RenameMode::Whiteout {
                        // The kernel has already created the whiteout, and removes it again.
                        self.touch(old_dir);
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
            self.remove(new_dir, new.name());
        }
        self.leave(old_dir, old.name());
        self.enter(new_dir, new.name(), source);
        if let Some(whiteout) = whiteout {
            let ino = self.assign_ino(whiteout);
            self.enter(old_dir, old.name(), ino);
        }
        Ok(())
    }

    /// Whether the directory `upper` is `lower` or contains it at any depth.
    fn is_above(&self, upper: Ino, lower: Ino) -> bool {
        let mut at = lower;
        loop {
            if at == upper {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.inode(at).parent;
        }
    }

    /// The height of the tree below a directory, including it, counted up to `max`; 0 for other objects.
    pub(crate) fn height(&self, at: &At, max: usize) -> usize {
        let Ok(top) = self.object(at) else { return 0 };
        let mut floor: Vec<Ino> = vec![top];
        for height in 0..max {
            floor.retain(|&ino| self.inode(ino).is_dir());
            if floor.is_empty() {
                return height;
            }
            floor = floor.iter().flat_map(|&ino| self.inode(ino).entries.values().copied()).collect();
        }
        max
    }

    /// The first name of a directory at or after `from`, and whether it names a directory. Wraps around at
    /// the end.
    pub(crate) fn next_name(&self, dir: &At, from: &[u8]) -> Option<(&[u8], bool)> {
        let entries = &self.inode(self.object(dir).ok()?).entries;
        let rest = entries.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        let (name, &ino) = rest.chain(entries.iter()).next()?;
        Some((name, self.inode(ino).is_dir()))
    }
}

/// Whether the name exists in every directory and cannot be created.
fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
