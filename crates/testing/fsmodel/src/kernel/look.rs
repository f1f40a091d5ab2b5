//! Reads the tree from the kernel.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno as Refused;

use crate::op::{Bytes, Rdev, Time};
use crate::tree::{Kind, ModelNode, Tree};

/// Maximum length of a value and of a list of names.
const XATTR_LEN_MAX: usize = 65_536;

/// Reads everything below `root`. The error has the path that cannot be read, and the reason.
pub(super) fn tree(root: &OwnedFd) -> Result<Tree, (Vec<u8>, Refused)> {
    let mut looker = Looker { tree: Tree::default(), buffer: vec![0; XATTR_LEN_MAX] };
    let root = open_dir(root, b".").map_err(|errno| (Vec::new(), errno))?;
    looker.node(&root, b".", Vec::new()).map_err(|errno| (Vec::new(), errno))?;
    looker.dir(root, Vec::new())?;
    Ok(looker.tree)
}

fn open_dir(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Refused> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

struct Looker {
    tree: Tree,
    buffer: Vec<u8>,
}

impl Looker {
    /// Reads everything below a directory.
    fn dir(&mut self, dir: OwnedFd, path: Vec<u8>) -> Result<(), (Vec<u8>, Refused)> {
        let entries = Dir::read_from(&dir).map_err(|errno| (path.clone(), errno))?;
        for entry in entries {
            let entry = entry.map_err(|errno| (path.clone(), errno))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let mut child = path.clone();
            if !child.is_empty() {
                child.push(b'/');
            }
            child.extend_from_slice(name);
            let kind = self.node(&dir, name, child.clone()).map_err(|errno| (child.clone(), errno))?;
            if kind == Kind::Dir {
                let opened = open_dir(&dir, name).map_err(|errno| (child.clone(), errno))?;
                self.dir(opened, child)?;
            }
        }
        Ok(())
    }

    /// Reads one object.
    fn node(&mut self, dir: &OwnedFd, name: &[u8], path: Vec<u8>) -> Result<Kind, Refused> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = kind_of(&stat)?;
        let target = match kind {
            Kind::Symlink => rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes(),
            _ => Vec::new(),
        };
        let rdev = match kind {
            Kind::Char | Kind::Block => {
                Rdev { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) }
            }
            _ => Rdev::default(),
        };
        let node = ModelNode {
            ino: stat.st_ino,
            kind,
            mode: Mode::from_raw_mode(stat.st_mode).bits() as u16 & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: u32::try_from(stat.st_nlink).map_err(|_| Refused::OVERFLOW)?,
            size: match kind {
                Kind::File | Kind::Symlink => u64::try_from(stat.st_size).map_err(|_| Refused::OVERFLOW)?,
                _ => 0,
            },
            rdev,
            target: Bytes(target),
            xattrs: self.xattrs(dir, name)?,
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        };
        self.tree.nodes.insert(path, node);
        Ok(kind)
    }

    fn xattrs(&mut self, dir: &OwnedFd, name: &[u8]) -> Result<BTreeMap<Bytes, Bytes>, Refused> {
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        let len = rustix::fs::llistxattr(path.as_slice(), self.buffer.as_mut_slice())?;
        let names = self.buffer[..len].to_vec();
        let mut xattrs = BTreeMap::new();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let len = rustix::fs::lgetxattr(path.as_slice(), name, self.buffer.as_mut_slice())?;
            xattrs.insert(Bytes::from(name), Bytes::from(&self.buffer[..len]));
        }
        Ok(xattrs)
    }
}

fn kind_of(stat: &Stat) -> Result<Kind, Refused> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Kind::File),
        FileType::Directory => Ok(Kind::Dir),
        FileType::Symlink => Ok(Kind::Symlink),
        FileType::Fifo => Ok(Kind::Fifo),
        FileType::Socket => Ok(Kind::Socket),
        FileType::CharacterDevice => Ok(Kind::Char),
        FileType::BlockDevice => Ok(Kind::Block),
        FileType::Unknown => Err(Refused::INVAL),
    }
}

fn time(secs: i64, nanos: i64) -> Option<Time> {
    Some(Time { secs, nanos: u32::try_from(nanos).ok()? })
}
