//! The engine as a subject of comparison.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::Device;
use extant_fsmodel::{
    AclType, At, Bytes, Errno, ModelNode, Op, Rdev, RenameMode, Rng, SetTime, Special, Subject, Time, Tree,
    XattrMode,
};
use extant_ondisk::time::Timestamp;
use extant_volume::{
    Fault, FileType, Inode, New, OpenOptions, Refusal, Rename, SetAttr, SetXattr, Volume, WriteOptions,
};

/// A volume open for writing, behind the model's interface. Its tree is the directory [`TOP`].
pub struct Engine {
    volume: Volume,
    top: Ino,
}

/// The name of the directory that holds the tree.
pub const TOP: &[u8] = b"tree";

impl Engine {
    /// Opens the device for writing.
    ///
    /// # Errors
    /// The volume's error.
    pub fn open(device: Arc<dyn Device>, write: WriteOptions) -> Result<Self, String> {
        Self::open_with(device, OpenOptions { write, ..OpenOptions::default() })
    }

    /// As [`open`](Self::open), with all options.
    ///
    /// # Errors
    /// The volume's error.
    pub fn open_with(device: Arc<dyn Device>, options: OpenOptions) -> Result<Self, String> {
        let volume = Volume::open(device, &options).map_err(|fault| fault.to_string())?;
        let text = |fault: Fault| fault.to_string();
        let root = volume.root().map_err(text)?;
        let top = match volume.names().lookup(&root, TOP) {
            Ok(top) => top.ino(),
            Err(fault) if fault.is(Refusal::NotFound) => {
                volume.names().create(root.ino(), TOP, &New::directory(0o755)).map_err(text)?.ino()
            }
            Err(fault) => return Err(text(fault)),
        };
        Ok(Self { volume, top })
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// The volume's error.
    pub fn close(self) -> Result<(), String> {
        self.volume.close().map_err(|fault| fault.to_string())
    }

    /// A random file of the tree that is no directory, at most three levels deep.
    pub(crate) fn any_file(&self, random: &mut Rng) -> Option<Ino> {
        let mut here = self.volume.inode(self.top).ok()?;
        for _ in 0..3 {
            let names = names(&self.volume, &here).ok()?;
            if names.is_empty() {
                return None;
            }
            here = self.volume.names().lookup(&here, &names[random.index(names.len())]).ok()?;
            if here.kind() != FileType::Directory {
                return Some(here.ino());
            }
        }
        None
    }

    /// As [`apply`](Subject::apply), but with a shared reference. With `held`, an inode that loses its last
    /// name counts as opened and is added to it, as a mount does.
    pub(crate) fn make(&self, op: &Op, held: Option<&mut Vec<Ino>>) -> Result<(), Errno> {
        let done = match held {
            Some(held) => self.remove_held(op).map(|ino| held.extend(ino)),
            None => self.call(op),
        };
        done.map_err(|fault| {
            if matches!(fault, Fault::Corrupt(_) | Fault::Device(_) | Fault::Aborted(_)) {
                eprintln!("{op:?}: {fault}");
            }
            Errno(fault.errno())
        })
    }

    /// The inode at a path.
    pub(crate) fn ino(&self, at: &At) -> Result<Ino, String> {
        self.find(at).map(|inode| inode.ino()).map_err(|fault| fault.to_string())
    }

    fn dir(&self, at: &At) -> Result<Ino, Fault> {
        let mut here = self.volume.inode(self.top)?;
        for name in at.dirs() {
            here = self.volume.names().lookup(&here, name)?;
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
            name => self.volume.names().lookup(&dir, name),
        }
    }

    fn create(&self, at: &At, new: &New<'_>) -> Result<(), Fault> {
        let dir = self.dir(at)?;
        self.volume.names().create(dir, at.name(), new).map(drop)
    }

    fn set(&self, at: &At, set: &SetAttr) -> Result<(), Fault> {
        let ino = self.find(at)?.ino();
        self.volume.attributes().set_attr(ino, set).map(drop)
    }

    /// Makes an operation; removals hold the inode that loses its last name.
    fn remove_held(&self, op: &Op) -> Result<Option<Ino>, Fault> {
        match op {
            Op::Unlink { at } => self.volume.names().unlink_held(self.dir(at)?, at.name()),
            Op::Rmdir { at } => self.volume.names().rmdir_held(self.dir(at)?, at.name()),
            Op::Rename { old, new, mode } => {
                let (from, to) = (self.dir(old)?, self.dir(new)?);
                self.volume.names().rename_held((from, old.name()), (to, new.name()), how(*mode))
            }
            _ => self.call(op).map(|()| None),
        }
    }

    fn call(&self, op: &Op) -> Result<(), Fault> {
        let volume = &self.volume;
        // The system calls for attributes check their arguments before they look up the name.
        if let Op::SetXattr { at, name, .. } | Op::RemoveXattr { at, name } | Op::GetXattr { at, name } = op {
            self.dir(at)?;
            if !(1..=255).contains(&name.0.len()) {
                return Err(Refusal::Range.into());
            }
        }
        if let Op::SetXattr { value, .. } = op
            && value.0.len() > 65536
        {
            return Err(Refusal::ValueTooLong.into());
        }
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
                self.dir(old)?;
                let dir = self.dir(new)?;
                let ino = self.find(old)?.ino();
                volume.names().link(ino, dir, new.name())
            }
            Op::Unlink { at } => volume.names().unlink(self.dir(at)?, at.name()),
            Op::Rmdir { at } => volume.names().rmdir(self.dir(at)?, at.name()),
            Op::Rename { old, new, mode } => {
                let how = how(*mode);
                let (from, to) = (self.dir(old)?, self.dir(new)?);
                volume.names().rename((from, old.name()), (to, new.name()), how)
            }
            Op::Chmod { at, mode } => self.set(at, &SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Op::Chown { at, uid: None, gid: None } => {
                // A chown that changes nothing still clears mode bits.
                let uid = Some(volume.attributes().stat(&*self.find(at)?).uid);
                self.set(at, &SetAttr { uid, ..SetAttr::default() })
            }
            Op::Chown { at, uid, gid } => {
                self.set(at, &SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() })
            }
            // The system call does not look up the file in this case.
            Op::Utimens { at, atime: SetTime::Keep, mtime: SetTime::Keep } => self.dir(at).map(drop),
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
                volume.attributes().set_xattr(self.find(at)?.ino(), &name.0, &value.0, how)
            }
            Op::RemoveXattr { at, name } => volume.attributes().remove_xattr(self.find(at)?.ino(), &name.0),
            Op::SetAcl { at, acl_type, acl } => {
                let name = AclType::xattr_name(*acl_type).as_bytes();
                volume.attributes().set_xattr(self.find(at)?.ino(), name, &acl.to_xattr(), SetXattr::Any)
            }
            Op::Tmpfile { at, mode, linked } => {
                let dir = self.dir(at)?;
                let ino = volume.names().create_unnamed(dir, &New::file(*mode))?.ino();
                let done = if *linked { volume.names().link(ino, dir, at.name()) } else { Ok(()) };
                volume.released(ino)?;
                done
            }
            Op::Stat { at } => self.find(at).map(drop),
            Op::Readdir { at } => {
                let dir = self.find(at)?;
                self.names(&dir).map(drop)
            }
            Op::Readlink { at } => self.volume.files().read_link(&*self.find(at)?).map(drop),
            Op::GetXattr { at, name } => self.volume.attributes().xattr(&*self.find(at)?, &name.0).map(drop),
        }
    }

    fn names(&self, dir: &Inode) -> Result<Vec<Vec<u8>>, Fault> {
        names(&self.volume, dir)
    }
}

fn names(volume: &Volume, dir: &Inode) -> Result<Vec<Vec<u8>>, Fault> {
    let mut names = Vec::new();
    let mut damage = None;
    let mut keep = |entry: extant_volume::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        std::ops::ControlFlow::Continue(())
    };
    volume
        .names()
        .read_dir(dir, extant_volume::Cursor::START, &mut keep, &mut |fault| damage = Some(fault))?;
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
        self.make(op, None)
    }

    fn tree(&mut self) -> Tree {
        tree(&self.volume).unwrap_or_else(|fault| panic!("the tree cannot be read: {fault}"))
    }
}

/// The content of a volume's directory [`TOP`], in the model's form.
///
/// # Errors
/// Something cannot be read.
pub fn tree(volume: &Volume) -> Result<Tree, String> {
    let mut tree = Tree::default();
    let text = |fault: Fault| fault.to_string();
    let top = volume.root().and_then(|root| volume.names().lookup(&root, TOP)).map_err(text)?;
    let mut left = vec![(Vec::new(), top)];
    while let Some((path, inode)) = left.pop() {
        if inode.kind() == FileType::Directory {
            for name in names(volume, &inode).map_err(text)? {
                let below = volume
                    .names()
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

fn node(volume: &Volume, inode: &Inode) -> Result<ModelNode, Fault> {
    let stat = volume.attributes().stat(inode);
    let kind = match stat.kind {
        FileType::Directory => extant_fsmodel::Kind::Dir,
        FileType::Symlink => extant_fsmodel::Kind::Symlink,
        FileType::Fifo => extant_fsmodel::Kind::Fifo,
        FileType::Socket => extant_fsmodel::Kind::Socket,
        FileType::CharDevice => extant_fsmodel::Kind::Char,
        FileType::BlockDevice => extant_fsmodel::Kind::Block,
        FileType::Regular | FileType::Unknown => extant_fsmodel::Kind::File,
    };
    let xattrs: BTreeMap<Bytes, Bytes> = volume
        .attributes()
        .xattrs(inode)?
        .into_iter()
        .map(|attribute| (Bytes(attribute.name), Bytes(attribute.value)))
        .collect();
    let time = |time: Timestamp| Some(Time { secs: time.seconds, nanos: time.nanos });
    let (major, minor) = stat.device;
    Ok(ModelNode {
        ino: stat.ino.0.into(),
        kind,
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.links,
        size: if matches!(kind, extant_fsmodel::Kind::File | extant_fsmodel::Kind::Symlink) {
            stat.size
        } else {
            0
        },
        rdev: Rdev { major, minor },
        target: if kind == extant_fsmodel::Kind::Symlink {
            Bytes(volume.files().read_link(inode)?)
        } else {
            Bytes::default()
        },
        xattrs,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
    })
}

fn how(mode: RenameMode) -> Rename {
    match mode {
        RenameMode::Replace => Rename::Replace,
        RenameMode::NoReplace => Rename::NoReplace,
        RenameMode::Exchange => Rename::Exchange,
        RenameMode::Whiteout => Rename::Whiteout,
    }
}
