//! Operations as values, and their calls.

use extant_base::Ino;
use extant_fsmodel::{Acl, AclEntry, tag};
use extant_ondisk::time::Timestamp;
use extant_volume::{
    Allocate, Cursor, Fault, FileType, Follow, New, Refusal, Rename, Seek, SetAttr, SetXattr, Volume,
};

/// An operation. Paths start at the root; offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the fields are the calls' arguments")]
pub enum Step {
    Create(&'static str),
    Mkdir(&'static str),
    Symlink(&'static str, usize),
    Mknod(&'static str),
    /// Created without a name, then linked to this name and closed.
    Tmpfile(&'static str),
    /// Created without a name, written to and closed, which deletes it.
    TmpfileDropped,
    Link(&'static str, &'static str),
    Unlink(&'static str),
    /// Unlinked while it is open, then closed.
    UnlinkOpen(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str, Rename),
    Truncate(&'static str, u64),
    Write(&'static str, u64, u64),
    WriteDirect(&'static str, u64, u64),
    Append(&'static str, u64),
    Read(&'static str, u64, u64),
    ReadDirect(&'static str, u64, u64),
    Seek(&'static str, Seek, u64),
    Extents(&'static str),
    Fallocate(&'static str, Allocate, u64, u64),
    Copy(&'static str, u64, &'static str, u64, u64),
    Chmod(&'static str, u16),
    Chown(&'static str, u32, u32),
    Times(&'static str),
    /// Inode flags to set.
    Flags(&'static str, u32),
    Project(&'static str, u32),
    /// A size and a mode in one call.
    SizeAndMode(&'static str, u64, u16),
    SetXattr(&'static str, &'static str, usize),
    RemoveXattr(&'static str, &'static str),
    GetXattrs(&'static str),
    SetAcl(&'static str, &'static str),
    ReadLink(&'static str),
    ReadDir(&'static str),
    Stat(&'static str),
    Statfs,
    Closing(&'static str),
    Fsync(&'static str),
    Fdatasync(&'static str),
    Sync,
    /// A commit without write-back of data.
    Commit,
    Checkpoint,
    WriteBack(u64),
    Trim,
}

/// The bytes that `seed` gives for a range.
pub(super) fn pattern(seed: u32, pos: u64, len: u64) -> Vec<u8> {
    extant_fsmodel::data::bytes_of(seed, pos, len)
}

/// An ACL that the mode cannot express.
pub(super) fn acl(perm: u16) -> Vec<u8> {
    let entry = |tag, perm, id| AclEntry { tag, perm, id };
    let entries = vec![
        entry(tag::USER_OBJ, 6, 0),
        entry(tag::USER, perm, 1000),
        entry(tag::GROUP_OBJ, 4, 0),
        entry(tag::MASK, 6, 0),
        entry(tag::OTHER, 4, 0),
    ];
    Acl { entries }.to_xattr()
}

/// A call whose paths are already resolved, as those of an open file or directory are.
pub(super) type Call = Box<dyn FnOnce(&Volume) -> Result<u64, Fault>>;

impl Step {
    /// The file whose bytes the operation changes.
    #[must_use]
    pub fn file(&self) -> Option<&'static str> {
        match *self {
            Self::Truncate(path, _)
            | Self::SizeAndMode(path, ..)
            | Self::Write(path, ..)
            | Self::WriteDirect(path, ..)
            | Self::Append(path, _)
            | Self::Fallocate(path, ..)
            | Self::Copy(_, _, path, ..) => Some(path),
            _ => None,
        }
    }

    /// Whether it may write fewer bytes than requested.
    pub(super) fn may_be_short(&self) -> bool {
        matches!(self, Self::Write(..) | Self::WriteDirect(..) | Self::Append(..) | Self::Copy(..))
    }

    /// Whether a part of it may be done when it fails.
    pub(super) fn is_in_parts(&self) -> bool {
        matches!(self, Self::Fallocate(..) | Self::WriteDirect(..))
    }

    /// Prepares the call. `number` is the seed of its bytes.
    pub(super) fn call(self, volume: &Volume, number: u32) -> Result<Call, Fault> {
        let ino =
            |path: &str| volume.names().resolve(path.as_bytes(), Follow::NotTheLast).map(|inode| inode.ino());
        let spot = |path: &'static str| -> Result<(Ino, &'static [u8]), Fault> {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            Ok((ino(dir)?, name.as_bytes()))
        };
        let unit = |()| 0;
        let set = |path: &str, set: SetAttr| -> Result<Call, Fault> {
            let ino = ino(path)?;
            Ok(Box::new(move |volume: &Volume| volume.attributes().set_attr(ino, &set).map(|_| 0)))
        };
        let none = SetAttr::default();
        let make = |path: &'static str, new: New<'static>| -> Result<Call, Fault> {
            let (dir, name) = spot(path)?;
            Ok(Box::new(move |volume: &Volume| volume.names().create(dir, name, &new).map(|_| 0)))
        };
        Ok(match self {
            Self::Create(path) => make(path, New::file(0o644))?,
            Self::Mkdir(path) => make(path, New::directory(0o755))?,
            Self::Mknod(path) => {
                make(path, New { kind: FileType::CharDevice, device: (1, 3), ..New::file(0o600) })?
            }
            Self::Symlink(path, len) => {
                let (dir, name) = spot(path)?;
                Box::new(move |volume| {
                    volume.names().create(dir, name, &New::symlink(&vec![b't'; len])).map(|_| 0)
                })
            }
            Self::Tmpfile(path) => {
                let (dir, name) = spot(path)?;
                Box::new(move |volume| {
                    let ino = volume.names().create_unnamed(dir, &New::file(0o600))?.ino();
                    let linked = volume.names().link(ino, dir, name);
                    linked.and(volume.released(ino)).map(unit)
                })
            }
            Self::TmpfileDropped => Box::new(move |volume| {
                let ino = volume.names().create_unnamed(Ino::ROOT, &New::file(0o600))?.ino();
                let written = volume.files().write_at(ino, 0, &pattern(number, 0, 5000));
                written.and(volume.released(ino)).map(unit)
            }),
            Self::Link(old, new) => {
                let ((dir, name), old) = (spot(new)?, ino(old)?);
                Box::new(move |volume| volume.names().link(old, dir, name).map(unit))
            }
            Self::Unlink(path) => {
                let (dir, name) = spot(path)?;
                Box::new(move |volume| volume.names().unlink(dir, name).map(unit))
            }
            Self::UnlinkOpen(path) => {
                let ((dir, name), ino) = (spot(path)?, ino(path)?);
                volume.opened(ino)?;
                Box::new(move |volume| {
                    let unlinked = volume.names().unlink(dir, name);
                    let released = volume.released(ino);
                    unlinked.and(released).map(unit)
                })
            }
            Self::Rmdir(path) => {
                let (dir, name) = spot(path)?;
                Box::new(move |volume| volume.names().rmdir(dir, name).map(unit))
            }
            Self::Rename(old, new, how) => {
                let (old, new) = (spot(old)?, spot(new)?);
                Box::new(move |volume| volume.names().rename(old, new, how).map(unit))
            }
            Self::Truncate(path, size) => set(path, SetAttr { size: Some(size), ..none })?,
            Self::SizeAndMode(path, size, mode) => {
                set(path, SetAttr { size: Some(size), mode: Some(mode), ..none })?
            }
            Self::Chmod(path, mode) => set(path, SetAttr { mode: Some(mode), ..none })?,
            Self::Chown(path, uid, gid) => set(path, SetAttr { uid: Some(uid), gid: Some(gid), ..none })?,
            Self::Project(path, project) => set(path, SetAttr { project: Some(project), ..none })?,
            Self::Times(path) => {
                let time = |seconds| Some(Timestamp { seconds, nanos: 5 });
                set(path, SetAttr { atime: time(1_000), mtime: time(2_000), ..none })?
            }
            Self::Flags(path, more) => {
                let inode = volume.names().resolve(path.as_bytes(), Follow::NotTheLast)?;
                let flags = Some(volume.attributes().stat(&inode).flags | more);
                set(path, SetAttr { flags, ..none })?
            }
            Self::Write(path, pos, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    volume.files().write_at(ino, pos, &pattern(number, pos, len)).map(|count| count as u64)
                })
            }
            Self::WriteDirect(path, pos, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    volume
                        .files()
                        .write_direct(ino, pos, &pattern(number, pos, len))
                        .map(|count| count as u64)
                })
            }
            Self::Append(path, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    volume.files().append(ino, &pattern(number, 0, len)).map(|(_, count)| count as u64)
                })
            }
            Self::Read(path, pos, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    let mut bytes = vec![0; len as usize];
                    volume.files().read_at(ino, pos, &mut bytes).map(|count| sum(&bytes[..count]))
                })
            }
            Self::ReadDirect(path, pos, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    let mut bytes = vec![0; len as usize];
                    volume.files().read_direct(ino, pos, &mut bytes).map(|count| sum(&bytes[..count]))
                })
            }
            Self::Seek(path, what, pos) => {
                let inode = volume.names().resolve(path.as_bytes(), Follow::NotTheLast)?;
                Box::new(move |volume| volume.files().seek(&inode, pos, what))
            }
            Self::Extents(path) => {
                let inode = volume.names().resolve(path.as_bytes(), Follow::NotTheLast)?;
                Box::new(move |volume| {
                    let mut count = 0;
                    volume.files().extents(&inode, 0, u64::MAX, &mut |_| {
                        count += 1;
                        Some(())
                    })?;
                    Ok(count)
                })
            }
            Self::Fallocate(path, mode, pos, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| volume.files().fallocate(ino, mode, pos, len).map(unit))
            }
            Self::Copy(from, pos, to, to_pos, len) => {
                let (from, to) = (ino(from)?, ino(to)?);
                Box::new(move |volume| volume.files().copy_range((from, pos), (to, to_pos), len))
            }
            Self::SetXattr(path, name, len) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    let value = pattern(number, 0, len as u64);
                    volume.attributes().set_xattr(ino, name.as_bytes(), &value, SetXattr::Any).map(unit)
                })
            }
            Self::RemoveXattr(path, name) => {
                let ino = ino(path)?;
                Box::new(move |volume| volume.attributes().remove_xattr(ino, name.as_bytes()).map(unit))
            }
            Self::SetAcl(path, name) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    volume.attributes().set_xattr(ino, name.as_bytes(), &acl(7), SetXattr::Any).map(unit)
                })
            }
            Self::GetXattrs(path) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    let found = volume.attributes().xattrs(&*volume.inode(ino)?)?;
                    Ok(found
                        .iter()
                        .map(|found| sum(&found.name) ^ sum(&found.value))
                        .fold(0, u64::wrapping_add))
                })
            }
            Self::ReadLink(path) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    volume.files().read_link(&*volume.inode(ino)?).map(|target| sum(&target))
                })
            }
            Self::ReadDir(path) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    let names = names(volume, &*volume.inode(ino)?)?;
                    Ok(names.iter().map(|name| sum(name)).fold(0, u64::wrapping_add))
                })
            }
            Self::Stat(path) => {
                let (dir, name) = spot(path)?;
                Box::new(move |volume| {
                    let inode = volume.names().lookup(&*volume.inode(dir)?, name)?;
                    Ok(volume.attributes().stat(&inode).size)
                })
            }
            Self::Statfs => Box::new(|volume| volume.statfs().map(|_| 0)),
            Self::Closing(path) => {
                let ino = ino(path)?;
                Box::new(move |volume| {
                    volume.closing(ino);
                    Ok(0)
                })
            }
            Self::Fsync(path) => {
                let ino = ino(path)?;
                Box::new(move |volume| volume.files().fsync(ino).map(unit))
            }
            Self::Fdatasync(path) => {
                let ino = ino(path)?;
                Box::new(move |volume| volume.files().fdatasync(ino).map(unit))
            }
            Self::Sync => Box::new(|volume| volume.sync().map(|()| 0)),
            Self::Commit => Box::new(|volume| volume.files().fsync(Ino::ROOT).map(|()| 0)),
            Self::Checkpoint => Box::new(|volume| volume.checkpoint().map(|()| 0)),
            Self::WriteBack(bytes) => Box::new(move |volume| volume.write_back_some(bytes).map(|_| 0)),
            Self::Trim => Box::new(|volume| volume.admin().trim(0).map(|_| 0)),
        })
    }
}

/// A hash of bytes.
fn sum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, mix)
}

/// The names of a directory, without "." and "..".
pub(super) fn names(volume: &Volume, dir: &extant_volume::Inode) -> Result<Vec<Vec<u8>>, Fault> {
    let mut names = Vec::new();
    let mut damage = None;
    let mut keep = |entry: extant_volume::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        std::ops::ControlFlow::Continue(())
    };
    volume.names().read_dir(dir, Cursor::START, &mut keep, &mut |fault| damage = Some(fault))?;
    damage.map_or(Ok(names), Err)
}

/// Whether the fault is a refusal, which changes nothing.
pub(super) fn is_refusal(fault: &Fault) -> bool {
    matches!(fault, Fault::Refused(refusal) if !matches!(refusal, Refusal::ReadOnly))
}
