//! A file system in memory that gives the right answers.
//!
//! Owns: the steps of each operation, and what it refuses ([`Model`]). Does **not** own: the tree of inodes
//! (`model/inodes.rs`), the room of attributes (`model/attributes.rs`).
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

use crate::Subject;
use crate::acl::Acl;
use crate::errno::Errno;
use crate::op::{AclType, At, Bytes, Op, Rdev, RenameMode, SetTime, Special, Time, XattrMode};
use crate::tree::{Kind, Tree};

mod attributes;
mod inodes;
mod namespace;
mod setattr;

use inodes::{Ino, Inode, Inodes, NAME_MAX};

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o010;
/// Maximum bytes of a path, and of a symlink's target, with the final 0.
const PATH_MAX: usize = 4096;
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

/// A file system without data; see the crate's rules.
#[derive(Debug, Clone)]
pub struct Model {
    limits: Limits,
    pub(crate) inodes: Inodes,
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
        Self { limits, inodes: Inodes::new() }
    }

    /// The limits that the answers depend on.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Number of inodes in use, including the root.
    #[must_use]
    pub fn n_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// The whole tree. A time is included if an operation set it and no later one changed it.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.inodes.tree()
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
            Op::Stat { at } => self.inodes.object(at).map(|_| ()),
            Op::Readdir { at } => match self.inodes.get(self.inodes.object(at)?).kind {
                Kind::Dir => Ok(()),
                _ => Err(Errno::ENOTDIR),
            },
            Op::Readlink { at } => match self.inodes.get(self.inodes.object(at)?).kind {
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
