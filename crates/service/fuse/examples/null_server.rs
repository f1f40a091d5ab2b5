//! A FUSE server that keeps names and attributes in hash maps and throws bytes away: what the kernel and the
//! transport cost by themselves.
//!
//! ```text
//! null_server DIR SIZE_BYTES [THREADS [dev|uring [TREE]]]
//!     DIR/zeros is a file of that size; SIGTERM or umount ends it
//!     THREADS  how many threads; 0, the default, for as many as `extant mount` has
//!     TREE     a directory whose names and attributes the root has, too
//! ```
//!
//! Files read as zeros. There are no extended attributes, and no fallocate.
//!
//! The same transport, options and threads as `extant mount -o rw`: the difference between the two is the
//! volume.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use extant_base::Ino;
use extant_fuse::{Access, Channel, Errno, MountOptions, Mounted, Name, Opened, Opener, Serve, Threads};
use extant_volume::{
    Allocate, Cursor, FileType, New, Rename, Seek, SetAttr, SetXattr, Stat, StatFs, WriteAccess,
};

const ZEROS: Ino = Ino(11);
const EXIST: Errno = Errno(17);
const NOTEMPTY: Errno = Errno(39);
/// Parts of the tables, each with a lock.
const SHARDS: usize = 64;

/// Where a name leads to.
#[derive(Clone, Copy)]
struct Target {
    ino: Ino,
    kind: FileType,
}

/// A directory's names, with a number for each by which a listing goes on.
#[derive(Default)]
struct Dir {
    names: HashMap<Vec<u8>, (u64, Target)>,
    order: BTreeMap<u64, Vec<u8>>,
}

struct Null {
    inodes: Vec<Mutex<HashMap<u32, Stat>>>,
    dirs: Vec<Mutex<HashMap<u32, Dir>>>,
    /// Targets of symbolic links.
    links: Mutex<HashMap<u32, Vec<u8>>>,
    next: AtomicU32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_stat(ino: Ino, kind: FileType, mode: u16, size: u64) -> Stat {
    Stat {
        ino,
        kind,
        mode,
        uid: 0,
        gid: 0,
        links: if kind == FileType::Directory { 2 } else { 1 },
        size,
        blocks_512: blocks_512(size),
        block_size: 4096,
        device: (0, 0),
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        crtime: None,
        generation: 0,
        flags: 0,
        project: 0,
    }
}

/// No file has holes: programs that copy files would look for them.
fn blocks_512(size: u64) -> u64 {
    size.div_ceil(4096) * 8
}

impl Null {
    fn new(size: u64) -> Self {
        let null = Self {
            inodes: (0..SHARDS).map(|_| Mutex::default()).collect(),
            dirs: (0..SHARDS).map(|_| Mutex::default()).collect(),
            links: Mutex::default(),
            next: AtomicU32::new(ZEROS.0 + 1),
        };
        null.inodes(Ino::ROOT).insert(2, new_stat(Ino::ROOT, FileType::Directory, 0o755, 4096));
        null.dirs(Ino::ROOT).insert(2, Dir::default());
        null.inodes(ZEROS).insert(ZEROS.0, new_stat(ZEROS, FileType::Regular, 0o644, size));
        let zeros = Target { ino: ZEROS, kind: FileType::Regular };
        null.add(Ino::ROOT, b"zeros", zeros).unwrap_or_default();
        null
    }

    /// Adds the names below `from`, each with an inode of its own.
    fn add_tree(&self, dir: Ino, from: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let found = entry.metadata()?;
            let kind = FileType::from_mode(found.mode() as u16);
            let target = if found.is_symlink() { std::fs::read_link(entry.path())? } else { PathBuf::new() };
            let new = New {
                kind,
                mode: found.mode() as u16 & 0o7777,
                uid: found.uid(),
                gid: found.gid(),
                target: target.as_os_str().as_bytes(),
                ..New::file(0)
            };
            let name = entry.file_name().into_vec();
            let ino = self
                .create(dir, &name, &new)
                .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?
                .ino;
            if let Some(stat) = self.inodes(ino).get_mut(&ino.0) {
                stat.size = found.size();
                stat.blocks_512 = blocks_512(stat.size);
                stat.mtime.seconds = found.mtime();
            }
            if found.is_dir() {
                self.add_tree(ino, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes an inode that has no name yet.
    fn new_inode(&self, new: &New<'_>, links: u32) -> Stat {
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        let mut stat = new_stat(ino, new.kind, new.mode & !new.umask, 0);
        stat.uid = new.uid;
        stat.gid = new.gid;
        stat.device = new.device;
        match new.kind {
            FileType::Directory => {
                self.dirs(ino).insert(ino.0, Dir::default());
            }
            FileType::Symlink => {
                // The kernel cuts a target that it caches to the size of the link.
                stat.size = new.target.len() as u64;
                locked(&self.links).insert(ino.0, new.target.to_vec());
            }
            _ => stat.links = links,
        }
        self.inodes(ino).insert(ino.0, stat.clone());
        stat
    }

    fn inodes(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, Stat>> {
        locked(&self.inodes[ino.0 as usize % SHARDS])
    }

    fn dirs(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, Dir>> {
        locked(&self.dirs[ino.0 as usize % SHARDS])
    }

    fn found(&self, dir: Ino, name: &[u8]) -> Result<Option<Target>, Errno> {
        let dirs = self.dirs(dir);
        let dir = dirs.get(&dir.0).ok_or(Errno::STALE)?;
        Ok(dir.names.get(name).map(|(_, target)| *target))
    }

    fn add(&self, dir: Ino, name: &[u8], target: Target) -> Result<(), Errno> {
        {
            let mut dirs = self.dirs(dir);
            let dir = dirs.get_mut(&dir.0).ok_or(Errno::STALE)?;
            if dir.names.contains_key(name) {
                return Err(EXIST);
            }
            let number = dir.order.last_key_value().map_or(3, |(last, _)| last + 1);
            dir.order.insert(number, name.to_vec());
            dir.names.insert(name.to_vec(), (number, target));
        }
        self.count_directory(dir, target, 1);
        Ok(())
    }

    fn take(&self, dir: Ino, name: &[u8]) -> Result<Target, Errno> {
        let target = {
            let mut dirs = self.dirs(dir);
            let dir = dirs.get_mut(&dir.0).ok_or(Errno::STALE)?;
            let (number, target) = dir.names.remove(name).ok_or(Errno::NOENT)?;
            dir.order.remove(&number);
            target
        };
        self.count_directory(dir, target, -1);
        Ok(target)
    }

    /// A directory's ".." is a link of its parent: find(1) learns from the number of links where it is done.
    fn count_directory(&self, parent: Ino, target: Target, by: i32) {
        if target.kind == FileType::Directory
            && let Some(stat) = self.inodes(parent).get_mut(&parent.0)
        {
            stat.links = stat.links.saturating_add_signed(by);
        }
    }

    /// Drops a link. Returns the inode once it has none.
    fn unlinked(&self, target: Target) -> Option<Ino> {
        let ino = target.ino;
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0)?;
        let own = if target.kind == FileType::Directory { stat.links } else { 1 };
        stat.links = stat.links.saturating_sub(own);
        (stat.links == 0).then_some(ino)
    }

    fn is_empty(&self, dir: Ino) -> bool {
        self.dirs(dir).get(&dir.0).is_none_or(|dir| dir.names.is_empty())
    }
}

impl Serve for Null {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>, Errno> {
        self.found(dir, name)?.map(|target| self.stat(target.ino)).transpose()
    }

    fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        self.inodes(ino).get(&ino.0).cloned().ok_or(Errno::STALE)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        locked(&self.links).get(&ino.0).cloned().ok_or(Errno::INVAL)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn tracks_opens(&self) -> bool {
        true
    }

    fn open(&self, _: Ino, _: Access) -> Result<Opened, Errno> {
        Ok(Opened { handle: 1, ..Opened::default() })
    }

    /// Leaves the buffer as it is: it contains zeros.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        Ok(self.stat(ino)?.size.saturating_sub(offset).min(buf.len() as u64) as usize)
    }

    fn list(
        &self,
        dir: Ino,
        from: Cursor,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let dirs = self.dirs(dir);
        let of_dir = dirs.get(&dir.0).ok_or(Errno::STALE)?;
        for (number, name) in [(1, b".".as_slice()), (2, b"..".as_slice())] {
            let kind = Some(FileType::Directory);
            if from.0 < number && each(Name { ino: dir, kind, name, next: Cursor(number) }).is_break() {
                return Ok(());
            }
        }
        for (number, name) in of_dir.order.range((Bound::Excluded(from.0.max(2)), Bound::Unbounded)) {
            let Some((_, target)) = of_dir.names.get(name) else { continue };
            let (ino, kind) = (target.ino, Some(target.kind));
            if each(Name { ino, kind, name, next: Cursor(*number) }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn stat_fs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs {
            block_size: 4096,
            blocks: 1 << 30,
            blocks_free: 1 << 30,
            blocks_available: 1 << 30,
            inodes: u32::MAX,
            inodes_free: u32::MAX,
            name_max: 255,
            fsid: 0,
        })
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let size = self.stat(ino)?.size;
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn create(&self, dir: Ino, name: &[u8], new: &New<'_>) -> Result<Stat, Errno> {
        let stat = self.new_inode(new, 1);
        let added = self.add(dir, name, Target { ino: stat.ino, kind: stat.kind });
        if added.is_err() {
            self.forget(stat.ino);
        }
        added.map(|()| stat)
    }

    fn create_unnamed(&self, _: Ino, new: &New<'_>) -> Result<Stat, Errno> {
        Ok(self.new_inode(new, 0))
    }

    fn write(&self, _: WriteAccess, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        stat.size = stat.size.max(offset + bytes.len() as u64);
        stat.blocks_512 = blocks_512(stat.size);
        Ok(bytes.len())
    }

    fn copy(&self, _: WriteAccess, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, Errno> {
        let len = len.min(self.stat(from.0)?.size.saturating_sub(from.1));
        let mut inodes = self.inodes(to.0);
        let stat = inodes.get_mut(&to.0.0).ok_or(Errno::STALE)?;
        stat.size = stat.size.max(to.1 + len);
        stat.blocks_512 = blocks_512(stat.size);
        Ok(len)
    }

    fn allocate(&self, _: Ino, _: Allocate, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn set_xattr(&self, _: Ino, _: &[u8], _: &[u8], _: SetXattr) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat, Errno> {
        let kind = self.stat(ino)?.kind;
        self.add(dir, name, Target { ino, kind })?;
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        stat.links += 1;
        Ok(stat.clone())
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Errno> {
        Ok(self.unlinked(self.take(dir, name)?))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Errno> {
        let target = self.found(dir, name)?.ok_or(Errno::NOENT)?;
        if !self.is_empty(target.ino) {
            return Err(NOTEMPTY);
        }
        Ok(self.unlinked(self.take(dir, name)?))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename) -> Result<Option<Ino>, Errno> {
        let moved = self.found(from.0, from.1)?.ok_or(Errno::NOENT)?;
        let there = self.found(to.0, to.1)?;
        match (how, there) {
            (Rename::Exchange | Rename::Whiteout, _) => return Err(Errno::INVAL),
            (Rename::NoReplace, Some(_)) => return Err(EXIST),
            (_, Some(there)) if there.ino == moved.ino => return Ok(None),
            (_, Some(there)) if !self.is_empty(there.ino) => return Err(NOTEMPTY),
            _ => {}
        }
        let replaced = match there {
            Some(_) => self.unlinked(self.take(to.0, to.1)?),
            None => None,
        };
        self.add(to.0, to.1, self.take(from.0, from.1)?)?;
        Ok(replaced)
    }

    fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Stat, Errno> {
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        stat.mode = set.mode.unwrap_or(stat.mode);
        if let Some(size) = set.size {
            stat.size = size;
            stat.blocks_512 = blocks_512(size);
        }
        stat.uid = set.uid.unwrap_or(stat.uid);
        stat.gid = set.gid.unwrap_or(stat.gid);
        stat.mtime = set.mtime.unwrap_or(stat.mtime);
        stat.atime = set.atime.unwrap_or(stat.atime);
        Ok(stat.clone())
    }

    fn forget(&self, ino: Ino) {
        let kind = self.inodes(ino).remove(&ino.0).map(|stat| stat.kind);
        match kind {
            Some(FileType::Directory) => drop(self.dirs(ino).remove(&ino.0)),
            Some(FileType::Symlink) => drop(locked(&self.links).remove(&ino.0)),
            _ => {}
        }
    }

    fn sync(&self, _: Ino, _: Opener, _: bool) -> Result<(), Errno> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(size)) = (args.next(), args.next()) else {
        return Err("usage: null_server DIR SIZE_BYTES [THREADS [dev|uring [TREE]]]".into());
    };
    let size = size.to_string_lossy().parse()?;
    let mut threads = Threads::default();
    if let Some(count) = args.next() {
        match count.to_string_lossy().parse()? {
            0 => {}
            count => threads.count = count,
        }
    }
    let mut options = MountOptions::new("null");
    if args.next().is_some_and(|transport| transport == "uring") {
        options.transport = Channel::Rings;
    }
    let tree = args.next();
    options.subtype = "extant-null".to_owned();
    options.read_only = false;
    let null = std::sync::Arc::new(Null::new(size));
    if let Some(tree) = tree {
        null.add_tree(Ino::ROOT, Path::new(&tree))?;
    }
    let mounted = Mounted::new(null, &PathBuf::from(dir), &options, threads)?;
    let dir = mounted.dir().to_owned();
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
    ])?;
    let handle = signals.handle();
    let watcher = std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _ = extant_fuse::unmount(&dir, true);
        }
    });
    mounted.serve()?;
    handle.close();
    let _ = watcher.join();
    Ok(())
}
