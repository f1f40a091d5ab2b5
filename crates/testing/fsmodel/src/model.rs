//! A file system in memory that gives the right answers.
//!
//! Owns: the tree of inodes ([`Model`]) and the steps of each operation. Does **not** own: the room of
//! attributes (`model/attributes.rs`).
//!
//! Invariants
//! 1. A refused operation has changed nothing, with one exception that the kernel has: a rename with a
//!    whiteout whose target is a non-empty directory is refused after it has changed the old directory's
//!    times. The times are then unknown, and not compared.
//! 2. A copy of a model takes one pointer per inode: copies share inodes until one of them changes. Crash
//!    tests keep a copy after each operation.
//! 3. An inode without names is freed: no file is open between two operations.
//!
//! Source: POSIX.1-2024; the manual pages of the calls, path_resolution(7), inode(7), xattr(7), acl(5).
//! `tests/kernel.rs` compares all of it with the kernel.

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
/// Maximum bytes of a path, and of a symlink's target, with the final 0.
const PATH_MAX: usize = 4096;
/// Shorter targets lie in the inode, longer ones in a block.
const SHORT_TARGET_END: usize = 60;
/// File capabilities: dropped when the owner or the size changes.
const CAPABILITY: &[u8] = b"security.capability";

/// The properties of a file system on which the answers depend. Inodes have 256 bytes or more, with 32 bytes
/// of fixed extra fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of an inode in its table.
    pub inode_size: u32,
    /// Feature `ea_inode`: values that do not fit go to EA inodes.
    pub ea_inode: bool,
}

impl Default for Limits {
    /// The defaults of mke2fs for disks that are not small.
    fn default() -> Self {
        Self { block_size: 4096, inode_size: 256, ea_inode: false }
    }
}

impl Limits {
    /// The maximum size of a file with extents, in bytes: 2^32 - 1 blocks.
    #[must_use]
    pub fn max_size(&self) -> u64 {
        u64::from(u32::MAX) * u64::from(self.block_size)
    }
}

/// Number of an inode in the model.
type Ino = usize;

const ROOT: Ino = 0;

/// A file system without data; see the crate's rules.
#[derive(Debug, Clone)]
pub struct Model {
    limits: Limits,
    /// By number; `None` if the inode was freed.
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
    /// The names in a directory.
    entries: BTreeMap<Box<[u8]>, Ino>,
    /// `..` of a directory; for the root, the root itself.
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

    /// Whether this is a symlink whose target lies in the inode, with the value of an attribute in an EA
    /// inode.
    fn is_short_symlink_with_ea_inode(&self) -> bool {
        self.kind == Kind::Symlink && self.target.0.len() < SHORT_TARGET_END && self.attributes.use_ea_inode()
    }

    fn acl(&self, acl_type: AclType) -> Option<Acl> {
        let value = self.attributes.get(acl_type.xattr_name().as_bytes())?;
        // Only valid ACLs were stored.
        Acl::from_xattr(value).ok().flatten()
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Model {
    /// An empty file system. Its root has mode 0755 and belongs to root.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let mut root = Inode::new(Kind::Dir, 0o755);
        root.nlink = 2;
        Self { limits, inodes: vec![Some(Arc::new(root))], free: Vec::new() }
    }

    /// The limits that the answers depend on.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Number of inodes in use, including the root.
    #[must_use]
    pub fn n_inodes(&self) -> usize {
        self.inodes.len() - self.free.len()
    }

    /// The whole tree. A time is included if an operation set it and no later one changed it.
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

    /// The inode for changing; copies of this model keep the old one.
    fn edit(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.inodes[ino].as_mut().expect("names lead to inodes that are there"))
    }

    /// The directory that contains the last name of `at`.
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

    /// The object with this name; also for `.` and `..`.
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino, Errno> {
        match name {
            b"." => Ok(dir),
            b".." => Ok(self.inode(dir).parent),
            _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
            _ => self.inode(dir).entries.get(name).copied().ok_or(Errno::ENOENT),
        }
    }

    /// The object at a place.
    fn object(&self, at: &At) -> Result<Ino, Errno> {
        self.find(self.directory(at)?, at.name())
    }

    /// The directory and the name of a free place.
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
            // mkdir accepts the sticky bit, but not the other two.
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
