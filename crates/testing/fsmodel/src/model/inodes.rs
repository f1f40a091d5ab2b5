//! The inodes of the model and their names.
//!
//! Owns: the table of inodes, the names in directories, the link counts and parents that follow from them.
//! Does **not** own: which operations are refused (see `namespace.rs`), what an attribute takes (see
//! `attributes.rs`).
//!
//! Invariants
//! 1. Each name leads to an inode in the table. Between operations, each inode except the root has a name.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::attributes::Attributes;
use crate::acl::Acl;
use crate::errno::Errno;
use crate::op::{AclType, At, Bytes, Rdev, Time};
use crate::tree::{Kind, ModelNode, Tree};

/// Maximum bytes of a name.
pub(super) const NAME_MAX: usize = 255;
/// Shorter targets lie in the inode, longer ones in a block.
const SHORT_TARGET_END: usize = 60;

/// Number of an inode in the model.
pub(super) type Ino = usize;

const ROOT: Ino = 0;

#[derive(Debug, Clone)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    pub(super) size: u64,
    pub(super) rdev: Rdev,
    pub(super) target: Bytes,
    /// The names in a directory.
    pub(super) entries: BTreeMap<Box<[u8]>, Ino>,
    /// `..` of a directory; for the root, the root itself.
    pub(super) parent: Ino,
    pub(super) attributes: Attributes,
    pub(super) atime: Option<Time>,
    pub(super) mtime: Option<Time>,
}

impl Inode {
    pub(super) fn new(kind: Kind, mode: u16) -> Self {
        Self {
            kind,
            mode,
            uid: 0,
            gid: 0,
            nlink: 0,
            size: 0,
            rdev: Rdev::default(),
            target: Bytes::default(),
            entries: BTreeMap::new(),
            parent: ROOT,
            attributes: Attributes::default(),
            atime: None,
            mtime: None,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    /// Whether this is a symlink whose target lies in the inode, with the value of an attribute in an EA
    /// inode.
    pub(super) fn is_short_symlink_with_ea_inode(&self) -> bool {
        self.kind == Kind::Symlink && self.target.0.len() < SHORT_TARGET_END && self.attributes.use_ea_inode()
    }

    pub(super) fn acl(&self, acl_type: AclType) -> Option<Acl> {
        let value = self.attributes.get(acl_type.xattr_name().as_bytes())?;
        // Only valid ACLs were stored.
        Acl::from_xattr(value).ok().flatten()
    }

    /// Refuses "user." attributes on objects where permission bits do not apply to content, and unknown
    /// prefixes.
    pub(super) fn may_have(&self, name: &[u8], refusal: Errno) -> Result<(), Errno> {
        let is_user = name.starts_with(b"user.");
        if is_user && !matches!(self.kind, Kind::File | Kind::Dir) {
            return Err(refusal);
        }
        let suffix =
            [b"user.".as_slice(), b"trusted.", b"security."].iter().find_map(|p| name.strip_prefix(*p));
        match suffix {
            None => Err(Errno::EOPNOTSUPP),
            Some([]) => Err(Errno::EINVAL),
            Some(_) => Ok(()),
        }
    }

    fn node(&self, ino: Ino) -> ModelNode {
        ModelNode {
            ino: ino as u64,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            rdev: self.rdev,
            target: self.target.clone(),
            xattrs: self.attributes.all(),
            atime: self.atime,
            mtime: self.mtime,
        }
    }
}

/// All inodes.
#[derive(Debug, Clone)]
pub(crate) struct Inodes {
    /// By number; `None` if the inode was freed.
    pub(super) table: Vec<Option<Arc<Inode>>>,
    free: Vec<Ino>,
}

impl Inodes {
    /// The root only, with mode 0755.
    pub(super) fn new() -> Self {
        let mut root = Inode::new(Kind::Dir, 0o755);
        root.nlink = 2;
        Self { table: vec![Some(Arc::new(root))], free: Vec::new() }
    }

    /// Number of inodes in use, including the root.
    pub(super) fn len(&self) -> usize {
        self.table.len() - self.free.len()
    }

    pub(super) fn get(&self, ino: Ino) -> &Inode {
        self.table[ino].as_deref().expect("names lead to inodes that are there")
    }

    /// The inode for changing; copies of this model keep the old one.
    pub(super) fn edit(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.table[ino].as_mut().expect("names lead to inodes that are there"))
    }

    /// The directory that contains the last name of `at`.
    pub(super) fn directory(&self, at: &At) -> Result<Ino, Errno> {
        let mut ino = ROOT;
        for name in at.dirs() {
            ino = self.find(ino, name)?;
            if !self.get(ino).is_dir() {
                return Err(Errno::ENOTDIR);
            }
        }
        Ok(ino)
    }

    /// The object with this name; also for `.` and `..`.
    pub(super) fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino, Errno> {
        match name {
            b"." => Ok(dir),
            b".." => Ok(self.get(dir).parent),
            _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
            _ => self.get(dir).entries.get(name).copied().ok_or(Errno::ENOENT),
        }
    }

    /// The object at a place.
    pub(super) fn object(&self, at: &At) -> Result<Ino, Errno> {
        self.find(self.directory(at)?, at.name())
    }

    /// The directory and the name of a free place.
    pub(super) fn vacant<'a>(&self, at: &'a At) -> Result<(Ino, &'a [u8]), Errno> {
        let dir = self.directory(at)?;
        match self.find(dir, at.name()) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok((dir, at.name())),
            Err(other) => Err(other),
        }
    }

    /// Gives the inode a number.
    pub(super) fn add(&mut self, inode: Inode) -> Ino {
        let ino = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ino] = Some(Arc::new(inode));
        ino
    }

    /// Marks a directory's modification time as unknown, because its names change.
    pub(super) fn touch(&mut self, dir: Ino) {
        self.edit(dir).mtime = None;
    }

    /// Adds a name and updates the link counts.
    pub(super) fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino) {
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
    pub(super) fn leave(&mut self, dir: Ino, name: &[u8]) -> Ino {
        let ino = self.edit(dir).entries.remove(name).expect("the name was found before");
        if self.get(ino).is_dir() {
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
    pub(super) fn remove(&mut self, dir: Ino, name: &[u8]) {
        let ino = self.leave(dir, name);
        let inode = self.get(ino);
        if inode.nlink == 0 || inode.is_dir() {
            self.table[ino] = None;
            self.free.push(ino);
        }
    }

    /// Whether the directory `upper` is `lower` or contains it at any depth.
    pub(super) fn is_above(&self, upper: Ino, lower: Ino) -> bool {
        let mut at = lower;
        loop {
            if at == upper {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.get(at).parent;
        }
    }

    /// The height of the tree below a directory, including it, counted up to `max`; 0 for other objects.
    pub(crate) fn height(&self, at: &At, max: usize) -> usize {
        let Ok(top) = self.object(at) else { return 0 };
        let mut floor: Vec<Ino> = vec![top];
        for height in 0..max {
            floor.retain(|&ino| self.get(ino).is_dir());
            if floor.is_empty() {
                return height;
            }
            floor = floor.iter().flat_map(|&ino| self.get(ino).entries.values().copied()).collect();
        }
        max
    }

    /// The first name of a directory at or after `from`, and whether it names a directory. Wraps around at
    /// the end.
    pub(crate) fn next_name(&self, dir: &At, from: &[u8]) -> Option<(&[u8], bool)> {
        let entries = &self.get(self.object(dir).ok()?).entries;
        let rest = entries.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        let (name, &ino) = rest.chain(entries.iter()).next()?;
        Some((name, self.get(ino).is_dir()))
    }

    /// The whole tree.
    pub(super) fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let mut pending = vec![(Vec::new(), ROOT)];
        while let Some((path, ino)) = pending.pop() {
            let inode = self.get(ino);
            for (name, &child) in &inode.entries {
                let mut path = path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                pending.push((path, child));
            }
            tree.nodes.insert(path, inode.node(ino));
        }
        tree
    }
}
