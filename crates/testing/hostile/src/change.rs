//! Changes a damaged image, like `extant edit -k` and a mount do. Every operation must succeed or fail,
//! whatever the bytes.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use extant_base::Ino;
use extant_device::{Device, DeviceFault, MemDevice};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;
use extant_volume::{
    Allocate, Cursor, Fault, New, OpenOptions, Rename, SetAttr, SetXattr, Volume, WriteOptions,
};

use crate::Rng;

/// Operations of one round.
const OPERATIONS: usize = 40;
/// Maximum number of names to use: a damaged directory may have very many.
const NAMES_MAX: usize = 2_000;
/// Maximum number of bytes to write or reserve at a time.
const LEN_MAX: usize = 40_000;

/// Result of the changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whether the image opened for writing.
    pub opened: bool,
    /// Operations that succeeded.
    pub done: usize,
    /// Operations that were rejected or met damage.
    pub errors: usize,
}

/// Opens the image for writing, changes it according to `seed`, and closes it.
pub fn change(device: Arc<dyn Device>, seed: u64) -> Changed {
    let mut changed = Changed::default();
    let write = WriteOptions {
        no_committer: true,
        errors: Some(extant_volume::OnError::Continue),
        ..WriteOptions::default()
    };
    let options = OpenOptions { cache_bytes: 8 << 20, write, ..OpenOptions::default() };
    let Ok(volume) = Volume::open(device, &options) else { return changed };
    changed.opened = true;
    let mut rng = Rng::new(seed ^ 0x5EED);
    let names = names(&volume);
    for step in 0..OPERATIONS {
        match operation(&volume, &names, step, &mut rng) {
            Ok(()) => changed.done += 1,
            Err(_) => changed.errors += 1,
        }
    }
    changed.errors += usize::from(volume.close().is_err());
    changed
}

/// A name, its directory, and the inode that it refers to.
struct Named {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
}

fn list(volume: &Volume, dir: Ino) -> Vec<Named> {
    let mut found = Vec::new();
    let Ok(inode) = volume.inode(dir) else { return found };
    if inode.kind() != FileType::Directory {
        return found;
    }
    let mut each = |entry: extant_volume::DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            found.push(Named { dir, name: entry.name.to_vec(), ino: entry.ino });
        }
        if found.len() < NAMES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let _ = volume.names().read_dir(&inode, Cursor::START, &mut each, &mut |_| {});
    found
}

fn names(volume: &Volume) -> Vec<Named> {
    let (mut found, mut dirs, mut seen) = (Vec::new(), vec![Ino::ROOT], HashSet::from([Ino::ROOT]));
    while let Some(dir) = dirs.pop() {
        for named in list(volume, dir) {
            if seen.insert(named.ino) {
                dirs.push(named.ino);
            }
            found.push(named);
        }
        if found.len() >= NAMES_MAX {
            break;
        }
    }
    found
}

/// Removes everything below a directory, then the directory, as far as possible.
fn remove_all(volume: &Volume, dir: Ino, name: &[u8], ino: Ino, depth: u32) -> Result<(), Fault> {
    for inside in list(volume, ino) {
        if depth < 8 && volume.inode(inside.ino).is_ok_and(|inode| inode.kind() == FileType::Directory) {
            let _ = remove_all(volume, inside.dir, &inside.name, inside.ino, depth + 1);
        } else {
            let _ = volume.names().unlink(inside.dir, &inside.name);
        }
    }
    volume.names().rmdir(dir, name)
}

fn operation(volume: &Volume, names: &[Named], step: usize, rng: &mut Rng) -> Result<(), Fault> {
    // A damaged root may have no entries: then use inode 11 under its usual name.
    let fallback = Named { dir: Ino::ROOT, name: b"lost+found".to_vec(), ino: Ino(11) };
    let one = names.get(rng.below(names.len())).unwrap_or(&fallback);
    let other = names.get(rng.below(names.len())).unwrap_or(&fallback);
    // The parent of a new name: a directory, or an inode that is not a directory.
    let dir = if rng.below(3) == 0 { other.dir } else { other.ino };
    let new_name = match rng.below(3) {
        0 => format!("n{step}").into_bytes(),
        1 => vec![b'a' + (step % 26) as u8; 200],
        _ => other.name.clone(),
    };
    let offset = rng.below(2 * LEN_MAX) as u64 * if rng.below(8) == 0 { 4096 } else { 1 };
    let len = 1 + rng.below(LEN_MAX);
    let bytes = |len: usize| vec![step as u8; len];
    let set = |set: SetAttr| volume.attributes().set_attr(one.ino, &set).map(drop);
    match rng.below(25) {
        0 => volume.names().create(dir, &new_name, &New::file(0o644)).map(drop),
        1 => volume.names().create(dir, &new_name, &New::directory(0o2755)).map(drop),
        2 => volume.names().create(dir, &new_name, &New::symlink(&bytes(1 + rng.below(300)))).map(drop),
        3 | 4 => volume.names().unlink(one.dir, &one.name),
        5 => volume.names().rmdir(one.dir, &one.name),
        6 | 7 => remove_all(volume, one.dir, &one.name, one.ino, 0),
        8 => volume.names().link(one.ino, dir, &new_name),
        9 | 10 => {
            let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange, Rename::Whiteout][rng.below(4)];
            volume.names().rename(
                (one.dir, &one.name),
                (other.dir, if rng.below(2) == 0 { &other.name } else { &new_name }),
                how,
            )
        }
        11 | 12 => volume.files().write_at(one.ino, offset, &bytes(len)).map(drop),
        13 => volume.files().append(one.ino, &bytes(len)).map(drop),
        14 => set(SetAttr { size: Some(offset), ..SetAttr::default() }),
        15 => set(SetAttr { size: Some(0), ..SetAttr::default() }),
        16 | 17 => {
            let modes = [
                Allocate::Reserve,
                Allocate::Keep,
                Allocate::Punch,
                Allocate::Zero,
                Allocate::ZeroKeep,
                Allocate::Collapse,
                Allocate::Insert,
                Allocate::WriteZeroes,
            ];
            let (offset, len) = if rng.below(2) == 0 {
                (offset, len as u64)
            } else {
                (offset & !4095, 4096 + (len as u64 & !4095))
            };
            volume.files().fallocate(one.ino, modes[rng.below(modes.len())], offset, len)
        }
        18 | 19 => {
            let len = [0, 8, 100, 900, 3000, 20_000][rng.below(6)];
            let name: &[u8] =
                [&b"user.a"[..], b"trusted.b", b"security.capability", b"user.no"][rng.below(4)];
            volume.attributes().set_xattr(one.ino, name, &bytes(len), SetXattr::Any)
        }
        20 => {
            let inode = volume.inode(one.ino)?;
            for name in volume.attributes().xattr_names(&inode)? {
                volume.attributes().remove_xattr(one.ino, &name)?;
            }
            Ok(())
        }
        21 => set(SetAttr { mode: Some(0o4711), uid: Some(70_000), gid: Some(5), ..SetAttr::default() }),
        22 => {
            let time = Timestamp { seconds: 1 << 33, nanos: 999_999_999 };
            set(SetAttr {
                flags: Some(flags::NODUMP | flags::NOATIME),
                mtime: Some(time),
                ..SetAttr::default()
            })
        }
        23 => volume.files().copy_range((one.ino, 0), (other.ino, offset), len as u64).map(drop),
        _ => {
            volume.files().fsync(one.ino)?;
            volume.sync()
        }
    }
}

/// A device in memory that records the ranges written, so that the sound image can be restored after each
/// round.
#[derive(Debug)]
pub(crate) struct Restorable {
    device: Arc<MemDevice>,
    written: Mutex<Vec<(u64, u64)>>,
}

impl Restorable {
    pub(crate) fn over(device: &Arc<MemDevice>) -> Self {
        Self { device: Arc::clone(device), written: Mutex::default() }
    }

    fn note(&self, offset: u64, len: u64) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push((offset, len));
    }

    /// Restores the bytes of `image` in the ranges written.
    pub(crate) fn restore(&self, image: &[u8]) {
        for (offset, len) in std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner))
        {
            let bytes = &image[offset as usize..(offset + len) as usize];
            self.device.write_at(offset, bytes).expect("it was written there before");
        }
    }
}

impl Device for Restorable {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.device.write_at(offset, bytes)?;
        self.note(offset, bytes.len() as u64);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)?;
        self.note(offset, len);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.device.flush()
    }
}
