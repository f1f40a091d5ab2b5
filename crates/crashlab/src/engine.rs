//! The engine as a subject of comparison.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Ino;
use device::Device;
use fsmodel::{AclType, At, Bytes, Errno, Node, Op, Rdev, RenameMode, SetTime, Special, Subject, Time, Tree, XattrMode};
use ondisk::time::Timestamp;
use volume::{
    Fault, FileType, Inode, New, OpenOptions, Refusal, Rename, SetAttr, SetXattr, Volume, WriteOptions,
};

/// A volume that is open for writing, behind the face of the model.
pub struct Engine {
    volume: Volume,
}

impl Engine {
    /// Opens the device for writing.
    ///
    /// # Errors
    /// What the volume says.
    pub fn open(device: Arc<dyn Device>, write: WriteOptions) -> Result<Self, String> {
        let options = OpenOptions { write, ..OpenOptions::default() };
        let volume = Volume::open(device, &options).map_err(|fault| fault.to_string())?;
        Ok(Self { volume })
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Closes it.
    ///
    /// # Errors
    /// What the volume says.
    pub fn close(self) -> Result<(), String> {
        self.volume.close().map_err(|fault| fault.to_string())
    }

    fn dir(&self, at: &At) -> Result<Ino, Fault> {
        let mut here = self.volume.root()?;
        for name in at.dirs() {
            here = self.volume.lookup(&here, name)?;
            if here.kind() != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
        }
        Ok(here.ino())
    }

    fn find(&self, at: &At) -> Result<Arc<Inode>, Fault> {
        let dir = self.volume.inode(self.dir(at)?)?;
        match at.name() {
            b"" | b"." => Ok(dir),
            name => self.volume.lookup(&dir, name),
        }
    }

    fn create(&self, at: &At, new: &New<'_>) -> Result<(), Fault> {
        let dir = self.dir(at)?;
        self.volume.create(dir, at.name(), new).map(drop)
    }

    fn set(&self, at: &At, set: &SetAttr) -> Result<(), Fault> {
        let ino = self.find(at)?.ino();
        self.volume.set_attr(ino, set).map(drop)
    }

    fn call(&self, op: &Op) -> Result<(), Fault> {
        let volume = &self.volume;
        match op {
            Op::Create { at, mode } => self.create(at, &New::file(*mode)),
            Op::Mkdir { at, mode } => self.create(at, &New::directory(*mode)),
            Op::Symlink { at, target } => self.create(at, &New::symlink(&target.0)),
            Op::Mknod { at, mode, special } => {
                let (kind, rdev) = match special {
                    Special::Fifo => (FileType::Fifo, Rdev::default()),
                    Special::Socket => (FileType::Socket, Rdev::default()),
                    Special::Char(rdev) => (FileType::CharDevice, *rdev),
                    Special::Block(rdev) => (FileType::BlockDevice, *rdev),
                };
                self.create(at, &New { kind, device: (rdev.major, rdev.minor), ..New::file(*mode) })
            }
            Op::Link { old, new } => {
                let ino = self.find(old)?.ino();
                let dir = self.dir(new)?;
                volume.link(ino, dir, new.name())
            }
            Op::Unlink { at } => volume.unlink(self.dir(at)?, at.name()),
            Op::Rmdir { at } => volume.rmdir(self.dir(at)?, at.name()),
            Op::Rename { old, new, mode } => {
                let how = match mode {
                    RenameMode::Replace => Rename::Replace,
                    RenameMode::NoReplace => Rename::NoReplace,
                    RenameMode::Exchange => Rename::Exchange,
                    RenameMode::Whiteout => Rename::Whiteout,
                };
                let (from, to) = (self.dir(old)?, self.dir(new)?);
                volume.rename((from, old.name()), (to, new.name()), how)
            }
            Op::Chmod { at, mode } => self.set(at, &SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Op::Chown { at, uid, gid } => self.set(at, &SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() }),
            Op::Utimens { at, atime, mtime } => {
                let (atime, mtime) = (time_of(atime), time_of(mtime));
                self.set(at, &SetAttr { atime, mtime, ..SetAttr::default() })
            }
            Op::Truncate { at, size } => self.set(at, &SetAttr { size: Some(*size), ..SetAttr::default() }),
            Op::SetXattr { at, name, value, mode } => {
                let how = match mode {
                    XattrMode::Any => SetXattr::Any,
                    XattrMode::Create => SetXattr::Create,
                    XattrMode::Replace => SetXattr::Replace,
                };
                volume.set_xattr(self.find(at)?.ino(), &name.0, &value.0, how)
            }
            Op::RemoveXattr { at, name } => volume.remove_xattr(self.find(at)?.ino(), &name.0),
            Op::SetAcl { at, acl_type, acl } => {
                let name = AclType::xattr_name(*acl_type).as_bytes();
                volume.set_xattr(self.find(at)?.ino(), name, &acl.to_xattr(), SetXattr::Any)
            }
            Op::Tmpfile { at, mode, linked } => {
                let dir = self.dir(at)?;
                let ino = volume.create_unnamed(dir, &New::file(*mode))?.ino();
                let done = if *linked { volume.link(ino, dir, at.name()) } else { Ok(()) };
                volume.released(ino)?;
                done
            }
            Op::Stat { at } => self.find(at).map(drop),
            Op::Readdir { at } => {
                let dir = self.find(at)?;
                self.names(&dir).map(drop)
            }
            Op::Readlink { at } => self.volume.read_link(&*self.find(at)?).map(drop),
            Op::GetXattr { at, name } => self.volume.xattr(&*self.find(at)?, &name.0).map(drop),
        }
    }

    fn names(&self, dir: &Inode) -> Result<Vec<Vec<u8>>, Fault> {
        names(&self.volume, dir)
    }
}

fn names(volume: &Volume, dir: &Inode) -> Result<Vec<Vec<u8>>, Fault> {
    let mut names = Vec::new();
    let mut damage = None;
    let mut keep = |entry: volume::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        std::ops::ControlFlow::Continue(())
    };
    volume.read_dir(dir, volume::Cursor::START, &mut keep, &mut |fault| damage = Some(fault))?;
    damage.map_or(Ok(names), Err)
}

fn time_of(set: &SetTime) -> Option<Timestamp> {
    match set {
        SetTime::Keep => None,
        SetTime::Now => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Some(Timestamp { seconds: now.as_secs() as i64, nanos: now.subsec_nanos() })
        }
        SetTime::To(time) => Some(Timestamp { seconds: time.secs, nanos: time.nanos }),
    }
}

impl Subject for Engine {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        self.call(op).map_err(|fault| Errno(fault.errno()))
    }

    fn tree(&mut self) -> Tree {
        tree(&self.volume).unwrap_or_else(|fault| panic!("the tree cannot be read: {fault}"))
    }
}

/// Everything that a volume shows, as the model tells it; "lost+found" is left out.
///
/// # Errors
/// Something cannot be read.
pub fn tree(volume: &Volume) -> Result<Tree, String> {
    let mut tree = Tree::default();
    let text = |fault: Fault| fault.to_string();
    let mut left = vec![(Vec::new(), volume.root().map_err(text)?)];
    while let Some((path, inode)) = left.pop() {
        if inode.kind() == FileType::Directory {
            for name in names(volume, &inode).map_err(text)? {
                if path.is_empty() && name == b"lost+found" {
                    continue;
                }
                let below = volume
                    .lookup(&inode, &name)
                    .map_err(|fault| format!("{}/{}: {fault}", path.escape_ascii(), name.escape_ascii()))?;
                let full = if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
                left.push((full, below));
            }
        }
        tree.nodes.insert(path, node(volume, &inode).map_err(text)?);
    }
    Ok(tree)
}

fn node(volume: &Volume, inode: &Inode) -> Result<Node, Fault> {
    let stat = volume.stat(inode);
    let kind = match stat.kind {
        FileType::Directory => fsmodel::Kind::Dir,
        FileType::Symlink => fsmodel::Kind::Symlink,
        FileType::Fifo => fsmodel::Kind::Fifo,
        FileType::Socket => fsmodel::Kind::Socket,
        FileType::CharDevice => fsmodel::Kind::Char,
        FileType::BlockDevice => fsmodel::Kind::Block,
        FileType::Regular | FileType::Unknown => fsmodel::Kind::File,
    };
    let xattrs: BTreeMap<Bytes, Bytes> = volume
        .xattrs(inode)?
        .into_iter()
        .map(|attribute| (Bytes(attribute.name), Bytes(attribute.value)))
        .collect();
    let time = |time: Timestamp| Some(Time { secs: time.seconds, nanos: time.nanos });
    let (major, minor) = stat.device;
    Ok(Node {
        ino: stat.ino.0.into(),
        kind,
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.links,
        size: if matches!(kind, fsmodel::Kind::File | fsmodel::Kind::Symlink) { stat.size } else { 0 },
        rdev: Rdev { major, minor },
        target: if kind == fsmodel::Kind::Symlink { Bytes(volume.read_link(inode)?) } else { Bytes::default() },
        xattrs,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
    })
}
