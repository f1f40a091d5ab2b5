//! The file system in memory that knows the right answers.
//!
//! Owns: the tree of inodes ([`Model`]) and the recipe of each operation. Does **not** own: the room of
//! attributes (`model/attributes.rs`).
//!
//! Invariants
//! 1. An operation that refuses has changed nothing, but for one rule of the kernel: a rename with a whiteout
//!    that meets a directory with names refuses after it has moved the old directory's times. They are not
//!    known then, and not compared.
//! 2. A copy of a model costs one pointer per inode: inodes are shared until one side changes them. Crash
//!    tests keep a copy after each operation.
//! 3. An inode without names is gone: nothing is open between two operations.
//!
//! Source: POSIX.1-2024; the manual pages of the calls, path_resolution(7), inode(7), xattr(7), acl(5); all
//! judged against the kernel by `tests/kernel.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Subject;
use crate::acl::Acl;
use crate::errno::Errno;
use crate::op::{AclType, At, Bytes, Op, Rdev, RenameMode, SetTime, Special, Time, XattrMode};
use crate::tree::{Kind, ModelNode, Tree};

mod attributes;
mod namespace;
mod setattr;

use attributes::Attributes;

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o010;
const NAME_MAX: usize = 255;
/// Bytes of a path, and so of a symlink's target, with its final 0.
const PATH_MAX: usize = 4096;
/// File capabilities: dropped where an owner or a size changes.
const CAPABILITY: &[u8] = b"security.capability";

/// What the answers depend on besides the tree. Inodes have 256 bytes or more, with 32 bytes of fixed extra
/// fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of an inode in its table.
    pub inode_size: u32,
    /// Feature `ea_inode`: values that do not fit get inodes of their own.
    pub ea_inode: bool,
}

impl Default for Limits {
    /// What mke2fs makes of anything but a small disk.
    fn default() -> Self {
        Self { block_size: 4096, inode_size: 256, ea_inode: false }
    }
}

impl Limits {
    /// The largest size of a file with extents, bytes: 2^32 - 1 blocks.
    #[must_use]
    pub fn max_size(&self) -> u64 {
        u64::from(u32::MAX) * u64::from(self.block_size)
    }
}

/// An inode's number in the model.
type Ino = usize;

const ROOT: Ino = 0;

/// A file system of metadata; see the crate's rules.
#[derive(Debug, Clone)]
pub struct Model {
    limits: Limits,
    /// By number; `None` where one was freed.
    inodes: Vec<Option<Arc<Inode>>>,
    free: Vec<Ino>,
}

#[derive(Debug, Clone)]
struct Inode {
    kind: Kind,
    mode: u16,
    uid: u32,
    gid: u32,
    nlink: u32,
    size: u64,
    rdev: Rdev,
    target: Bytes,
    /// Names of a directory.
    entries: BTreeMap<Box<[u8]>, Ino>,
    /// `..` of a directory; the root's own for the root.
    parent: Ino,
    attributes: Attributes,
    atime: Option<Time>,
    mtime: Option<Time>,
}

impl Inode {
    fn new(kind: Kind, mode: u16) -> Self {
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

    fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    fn acl(&self, acl_type: AclType) -> Option<Acl> {
        let value = self.attributes.get(acl_type.xattr_name().as_bytes())?;
        // Only valid ones were stored.
        Acl::from_xattr(value).ok().flatten()
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Model {
    /// An empty file system: a root of mode 0755 that belongs to root.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let mut root = Inode::new(Kind::Dir, 0o755);
        root.nlink = 2;
        Self { limits, inodes: vec![Some(Arc::new(root))], free: Vec::new() }
    }

    /// What the answers depend on.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Inodes in use, the root among them.
    #[must_use]
    pub fn n_inodes(&self) -> usize {
        self.inodes.len() - self.free.len()
    }

    /// The whole tree. Times are included where an operation set them and no later one moved them.
    #[must_use]
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let mut pending = vec![(Vec::new(), ROOT)];
        while let Some((path, ino)) = pending.pop() {
            let inode = self.inode(ino);
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

    fn inode(&self, ino: Ino) -> &Inode {
        self.inodes[ino].as_deref().expect("names lead to inodes that are there")
    }

    /// The inode, to be changed; the copies of this model keep the old one.
    fn edit(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.inodes[ino].as_mut().expect("names lead to inodes that are there"))
    }

    /// The directory that a place's name is in.
    fn directory(&self, at: &At) -> Result<Ino, Errno> {
        let mut ino = ROOT;
        for name in at.dirs() {
            ino = self.find(ino, name)?;
            if !self.inode(ino).is_dir() {
                return Err(Errno::ENOTDIR);
            }
        }
        Ok(ino)
    }

    /// The object of a name, also of `.` and `..`.
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino, Errno> {
        match name {
            b"." => Ok(dir),
            b".." => Ok(self.inode(dir).parent),
            _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
            _ => self.inode(dir).entries.get(name).copied().ok_or(Errno::ENOENT),
        }
    }

    /// The object of a place.
    fn object(&self, at: &At) -> Result<Ino, Errno> {
        self.find(self.directory(at)?, at.name())
    }

    /// The directory and the name of a place that is free.
    fn vacant<'a>(&self, at: &'a At) -> Result<(Ino, &'a [u8]), Errno> {
        let dir = self.directory(at)?;
        match self.find(dir, at.name()) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok((dir, at.name())),
            Err(other) => Err(other),
        }
    }
}

impl Inode {
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

impl Subject for Model {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Create { at, mode } => self.create(at, Inode::new(Kind::File, mode & 0o7777)),
            Op::Mknod { at, mode, special } => {
                let (kind, rdev) = match *special {
                    Special::Fifo => (Kind::Fifo, Rdev::default()),
                    Special::Socket => (Kind::Socket, Rdev::default()),
                    Special::Char(rdev) => (Kind::Char, rdev),
                    Special::Block(rdev) => (Kind::Block, rdev),
                };
                self.create(at, Inode { rdev, ..Inode::new(kind, mode & 0o7777) })
            }
            // mkdir takes the sticky bit, but not the other two.
            Op::Mkdir { at, mode } => self.create(at, Inode::new(Kind::Dir, mode & 0o1777)),
            Op::Symlink { at, target } => self.symlink(at, target),
            Op::Link { old, new } => self.link(old, new),
            Op::Unlink { at } => self.unlink(at),
            Op::Rmdir { at } => self.rmdir(at),
            Op::Rename { old, new, mode } => self.rename(old, new, *mode),
            Op::Chmod { at, mode } => self.chmod(at, *mode),
            Op::Chown { at, uid, gid } => self.chown(at, *uid, *gid),
            Op::Utimens { at, atime, mtime } => self.utimens(at, *atime, *mtime),
            Op::Truncate { at, size } => self.truncate(at, *size),
            Op::SetXattr { at, name, value, mode } => self.set_xattr(at, &name.0, &value.0, *mode),
            Op::RemoveXattr { at, name } => self.remove_xattr(at, &name.0),
            Op::SetAcl { at, acl_type, acl } => {
                self.set_xattr(at, acl_type.xattr_name().as_bytes(), &acl.to_xattr(), XattrMode::Any)
            }
            Op::Tmpfile { at, mode, linked } => self.tmpfile(at, *mode, *linked),
            Op::Stat { at } => self.object(at).map(|_| ()),
            Op::Readdir { at } => match self.inode(self.object(at)?).kind {
                Kind::Dir => Ok(()),
                _ => Err(Errno::ENOTDIR),
            },
            Op::Readlink { at } => match self.inode(self.object(at)?).kind {
                Kind::Symlink => Ok(()),
                _ => Err(Errno::EINVAL),
            },
            Op::GetXattr { at, name } => self.get_xattr(at, &name.0),
        }
    }

    fn tree(&mut self) -> Tree {
        Model::tree(self)
    }
}

#[cfg(test)]
mod tests;
