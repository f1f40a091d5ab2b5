//! The kernel's file system behind the interface [`Subject`].
//!
//! Owns: the system calls for each operation. Does **not** own: the mount (mount it with `noatime`, rule 5 of
//! the crate).
//!
//! Each directory of a path is opened separately with `O_NOFOLLOW`, so that a symlink in the path counts as
//! no directory. Two operations have no system call, and this module answers them itself: `truncate` of a
//! symlink, and of a device (which must not be opened).
//!
//! It needs `/proc`: attributes and modes are accessed through `/proc/self/fd`, without following symlinks.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid, XattrFlags,
};
use rustix::io::Errno as Refused;

use crate::Subject;
use crate::errno::Errno;
use crate::op::{At, Op, Rdev, RenameMode, SetTime, Special, XattrMode};
use crate::tree::Tree;

mod look;

/// A directory of a mounted file system; it is the root of the tree.
#[derive(Debug)]
pub struct Kernel {
    path: PathBuf,
    root: OwnedFd,
}

/// The directory that contains a place.
enum Parent<'a> {
    Root(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(fd) => *fd,
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Kernel {
    /// Operates below an existing, empty directory. It gets the attributes of the model's root: 0755, owned
    /// by root.
    ///
    /// Sets the umask of this process to 0, permanently.
    ///
    /// # Errors
    /// The directory cannot be opened or changed.
    pub fn new(dir: &Path) -> Result<Self, Errno> {
        let kernel = Self::open(dir)?;
        rustix::fs::chownat(&kernel.root, ".", Some(Uid::ROOT), Some(Gid::ROOT), AtFlags::empty())?;
        rustix::fs::chmodat(&kernel.root, ".", Mode::from_raw_mode(0o755), AtFlags::empty())?;
        Ok(kernel)
    }

    /// Operates below a directory as it is: to read it, or to continue.
    ///
    /// Sets the umask of this process to 0, permanently.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn open(dir: &Path) -> Result<Self, Errno> {
        rustix::process::umask(Mode::empty());
        let root = rustix::fs::openat(CWD, dir, DIRECTORY, Mode::empty())?;
        Ok(Self { path: dir.to_owned(), root })
    }

    /// Operates in a new directory below `parent`, with `number` in its name: one mount serves many fresh
    /// subjects.
    ///
    /// # Errors
    /// The directory exists or cannot be created.
    pub fn fresh(parent: &Path, number: u64) -> Result<Self, Errno> {
        let dir = parent.join(format!("subject-{number}"));
        rustix::fs::mkdirat(CWD, &dir, Mode::from_raw_mode(0o755))?;
        Self::new(&dir)
    }

    /// The path of the tree's root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn parent(&self, at: &At) -> Result<Parent<'_>, Refused> {
        let mut parent = Parent::Root(self.root.as_fd());
        for name in at.dirs() {
            parent = Parent::Opened(rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty())?);
        }
        Ok(parent)
    }

    /// A path for calls that take no directory and do not follow the last name.
    fn path_of(parent: &Parent<'_>, name: &[u8]) -> PathBuf {
        let mut path = PathBuf::from(format!("/proc/self/fd/{}", parent.as_fd().as_raw_fd()));
        path.push(OsStr::from_bytes(name));
        path
    }

    fn rename(&self, old: &At, new: &At, mode: RenameMode) -> Result<(), Refused> {
        let (old_dir, new_dir) = (self.parent(old)?, self.parent(new)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
        };
        rustix::fs::renameat_with(&old_dir, old.name(), &new_dir, new.name(), flags)
    }

    fn chmod(&self, at: &At, mode: u16) -> Result<(), Refused> {
        let dir = self.parent(at)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let object = rustix::fs::openat(&dir, at.name(), flags, Mode::empty())?;
        // A link in /proc leads to the object itself, also to a symlink.
        rustix::fs::chmod(format!("/proc/self/fd/{}", object.as_raw_fd()), Mode::from_raw_mode(mode.into()))
    }

    fn truncate(&self, at: &At, size: u64) -> Result<(), Refused> {
        let dir = self.parent(at)?;
        let stat = rustix::fs::statat(&dir, at.name(), AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Refused::ISDIR),
            _ => return Err(Refused::INVAL),
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, at.name(), flags, Mode::empty())?;
        // The type of the C library cannot carry it. The kernel refuses a negative size with `EINVAL`.
        if size > i64::MAX as u64 {
            return Err(Refused::INVAL);
        }
        rustix::fs::ftruncate(&file, size)
    }

    fn tmpfile(&self, at: &At, mode: u16, linked: bool) -> Result<(), Refused> {
        let dir = self.parent(at)?;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, ".", flags, Mode::from_raw_mode(mode.into()))?;
        if linked {
            rustix::fs::linkat(&file, "", &dir, at.name(), AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn readdir(&self, at: &At) -> Result<(), Refused> {
        let dir = self.parent(at)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&dir, at.name(), flags, Mode::empty())?;
        Dir::new(dir)?.try_for_each(|entry| entry.map(|_| ()))
    }

    fn call(&self, op: &Op) -> Result<(), Refused> {
        match op {
            Op::Create { at, mode } => {
                let flags =
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(u32::from(*mode) & 0o7777);
                rustix::fs::openat(self.parent(at)?, at.name(), flags, mode).map(drop)
            }
            Op::Mknod { at, mode, special } => {
                let (file_type, rdev) = match *special {
                    Special::Fifo => (FileType::Fifo, Rdev::default()),
                    Special::Socket => (FileType::Socket, Rdev::default()),
                    Special::Char(rdev) => (FileType::CharacterDevice, rdev),
                    Special::Block(rdev) => (FileType::BlockDevice, rdev),
                };
                let mode = Mode::from_raw_mode(u32::from(*mode) & 0o7777);
                let device = rustix::fs::makedev(rdev.major, rdev.minor);
                rustix::fs::mknodat(self.parent(at)?, at.name(), file_type, mode, device)
            }
            Op::Mkdir { at, mode } => {
                rustix::fs::mkdirat(self.parent(at)?, at.name(), Mode::from_raw_mode((*mode).into()))
            }
            Op::Symlink { at, target } => {
                rustix::fs::symlinkat(target.0.as_slice(), self.parent(at)?, at.name())
            }
            Op::Link { old, new } => {
                let (old_dir, new_dir) = (self.parent(old)?, self.parent(new)?);
                rustix::fs::linkat(&old_dir, old.name(), &new_dir, new.name(), AtFlags::empty())
            }
            Op::Unlink { at } => rustix::fs::unlinkat(self.parent(at)?, at.name(), AtFlags::empty()),
            Op::Rmdir { at } => rustix::fs::unlinkat(self.parent(at)?, at.name(), AtFlags::REMOVEDIR),
            Op::Rename { old, new, mode } => self.rename(old, new, *mode),
            Op::Chmod { at, mode } => self.chmod(at, *mode),
            Op::Chown { at, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(self.parent(at)?, at.name(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Utimens { at, atime, mtime } => {
                let times = Timestamps { last_access: timespec(*atime), last_modification: timespec(*mtime) };
                rustix::fs::utimensat(self.parent(at)?, at.name(), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Truncate { at, size } => self.truncate(at, *size),
            Op::SetXattr { at, name, value, mode } => self.set_xattr(at, &name.0, &value.0, *mode),
            Op::SetAcl { at, acl_type, acl } => {
                self.set_xattr(at, acl_type.xattr_name().as_bytes(), &acl.to_xattr(), XattrMode::Any)
            }
            Op::RemoveXattr { at, name } => {
                let dir = self.parent(at)?;
                rustix::fs::lremovexattr(Self::path_of(&dir, at.name()), name.0.as_slice())
            }
            Op::Tmpfile { at, mode, linked } => self.tmpfile(at, *mode, *linked),
            Op::Stat { at } => {
                rustix::fs::statat(self.parent(at)?, at.name(), AtFlags::SYMLINK_NOFOLLOW).map(drop)
            }
            Op::Readdir { at } => self.readdir(at),
            Op::Readlink { at } => rustix::fs::readlinkat(self.parent(at)?, at.name(), Vec::new()).map(drop),
            Op::GetXattr { at, name } => {
                let dir = self.parent(at)?;
                // With no room for the value it returns the length.
                let nothing: &mut [u8] = &mut [];
                rustix::fs::lgetxattr(Self::path_of(&dir, at.name()), name.0.as_slice(), nothing).map(drop)
            }
        }
    }

    fn set_xattr(&self, at: &At, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Refused> {
        let dir = self.parent(at)?;
        let flags = match mode {
            XattrMode::Any => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        rustix::fs::lsetxattr(Self::path_of(&dir, at.name()), name, value, flags)
    }
}

fn timespec(time: SetTime) -> Timespec {
    match time {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::To(time) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
    }
}

impl Subject for Kernel {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        Ok(self.call(op)?)
    }

    fn tree(&mut self) -> Tree {
        match look::tree(&self.root) {
            Ok(tree) => tree,
            Err((path, errno)) => {
                let place: Cow<'_, str> = String::from_utf8_lossy(&path);
                panic!("{}/{place}: {}", self.path.display(), Errno::from(errno));
            }
        }
    }
}
