//! A FUSE server that keeps names and sizes in hash maps and discards data. It measures the cost of the
//! kernel and of the transport alone.
//!
//! ```text
//! null_server DIR SIZE_BYTES [THREADS [uring]]
//!     DIR/zeros is a file of this size; SIGTERM or an unmount ends the server
//! ```
//!
//! Transport, options and threads are those of `extant mount -o rw`, so the difference between the two is the
//! cost of the volume.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use extant_base::Ino;
use extant_fuse::{Access, Channel, Errno, MountOptions, Mounted, Name, Opened, Opener, Serve, Threads};
use extant_volume::{Cursor, FileType, New, Rename, Seek, SetAttr, Stat, StatFs, WriteAccess};

const ZEROS: Ino = Ino(11);
const EXIST: Errno = Errno(17);
const NOTEMPTY: Errno = Errno(39);
/// Shards of the tables, with a lock each.
const SHARDS: usize = 64;

/// A directory's names. Each has a number, which is its position in listings.
#[derive(Default)]
struct Dir {
    names: HashMap<Vec<u8>, (u64, Ino)>,
    order: BTreeMap<u64, Vec<u8>>,
}

struct Null {
    inodes: Vec<Mutex<HashMap<u32, Stat>>>,
    dirs: Vec<Mutex<HashMap<u32, Dir>>>,
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
        blocks_512: 8,
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

impl Null {
    fn new(size: u64) -> Self {
        let null = Self {
            inodes: (0..SHARDS).map(|_| Mutex::default()).collect(),
            dirs: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next: AtomicU32::new(ZEROS.0 + 1),
        };
        null.inodes(Ino::ROOT).insert(2, new_stat(Ino::ROOT, FileType::Directory, 0o755, 4096));
        null.dirs(Ino::ROOT).insert(2, Dir::default());
        null.inodes(ZEROS).insert(ZEROS.0, new_stat(ZEROS, FileType::Regular, 0o644, size));
        null.add(Ino::ROOT, b"zeros", ZEROS).unwrap_or_default();
        null
    }

    fn inodes(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, Stat>> {
        locked(&self.inodes[ino.0 as usize % SHARDS])
    }

    fn dirs(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, Dir>> {
        locked(&self.dirs[ino.0 as usize % SHARDS])
    }

    fn add(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<(), Errno> {
        let mut dirs = self.dirs(dir);
        let dir = dirs.get_mut(&dir.0).ok_or(Errno::STALE)?;
        if dir.names.contains_key(name) {
            return Err(EXIST);
        }
        let number = dir.order.last_key_value().map_or(3, |(last, _)| last + 1);
        dir.order.insert(number, name.to_vec());
        dir.names.insert(name.to_vec(), (number, ino));
        Ok(())
    }

    fn take(&self, dir: Ino, name: &[u8]) -> Result<Ino, Errno> {
        let mut dirs = self.dirs(dir);
        let dir = dirs.get_mut(&dir.0).ok_or(Errno::STALE)?;
        let (number, ino) = dir.names.remove(name).ok_or(Errno::NOENT)?;
        dir.order.remove(&number);
        Ok(ino)
    }

    /// Removes a link. Returns the inode if it was the last one.
    fn unlinked(&self, ino: Ino) -> Option<Ino> {
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0)?;
        stat.links = stat.links.saturating_sub(1);
        (stat.links == 0).then_some(ino)
    }
}

impl Serve for Null {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>, Errno> {
        let found = match self.dirs(dir).get(&dir.0) {
            Some(dir) => dir.names.get(name).map(|(_, ino)| *ino),
            None => return Err(Errno::STALE),
        };
        found.map(|ino| self.stat(ino)).transpose()
    }

    fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        self.inodes(ino).get(&ino.0).cloned().ok_or(Errno::STALE)
    }

    fn read_link(&self, _: Ino) -> Result<Vec<u8>, Errno> {
        Ok(b"target".to_vec())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn tracks_opens(&self) -> bool {
        true
    }

    fn open(&self, _: Ino, _: Access) -> Result<Opened, Errno> {
        Ok(Opened { handle: 1, appends_only: false })
    }

    /// Does not fill the buffer, which contains zeros.
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
            let ino = of_dir.names.get(name).map_or(ZEROS, |(_, ino)| *ino);
            if each(Name { ino, kind: None, name, next: Cursor(*number) }).is_break() {
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
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        let stat = Stat { uid: new.uid, gid: new.gid, ..new_stat(ino, new.kind, new.mode, 0) };
        self.inodes(ino).insert(ino.0, stat.clone());
        if new.kind == FileType::Directory {
            self.dirs(ino).insert(ino.0, Dir::default());
        }
        self.add(dir, name, ino).map(|()| stat)
    }

    fn write(&self, _: WriteAccess, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        stat.size = stat.size.max(offset + bytes.len() as u64);
        Ok(bytes.len())
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat, Errno> {
        self.add(dir, name, ino)?;
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        stat.links += 1;
        Ok(stat.clone())
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Errno> {
        Ok(self.unlinked(self.take(dir, name)?))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Errno> {
        let found = self.lookup(dir, name)?.ok_or(Errno::NOENT)?.ino;
        if self.dirs(found).get(&found.0).is_some_and(|dir| !dir.names.is_empty()) {
            return Err(NOTEMPTY);
        }
        self.dirs(found).remove(&found.0);
        self.take(dir, name)?;
        Ok(Some(found))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), _: Rename) -> Result<Option<Ino>, Errno> {
        let ino = self.take(from.0, from.1)?;
        let replaced = self.take(to.0, to.1).ok().and_then(|ino| self.unlinked(ino));
        self.add(to.0, to.1, ino)?;
        Ok(replaced)
    }

    fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Stat, Errno> {
        let mut inodes = self.inodes(ino);
        let stat = inodes.get_mut(&ino.0).ok_or(Errno::STALE)?;
        stat.mode = set.mode.unwrap_or(stat.mode);
        stat.size = set.size.unwrap_or(stat.size);
        stat.uid = set.uid.unwrap_or(stat.uid);
        stat.gid = set.gid.unwrap_or(stat.gid);
        stat.mtime = set.mtime.unwrap_or(stat.mtime);
        stat.atime = set.atime.unwrap_or(stat.atime);
        Ok(stat.clone())
    }

    fn forget(&self, ino: Ino) {
        self.inodes(ino).remove(&ino.0);
    }

    fn sync(&self, _: Ino, _: Opener, _: bool) -> Result<(), Errno> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(size)) = (args.next(), args.next()) else {
        return Err("usage: null_server DIR SIZE_BYTES [THREADS [uring]]".into());
    };
    let size = size.to_string_lossy().parse()?;
    let mut threads = Threads::default();
    if let Some(count) = args.next() {
        threads.count = count.to_string_lossy().parse()?;
    }
    let mut options = MountOptions::new("null");
    if args.next().is_some_and(|transport| transport == "uring") {
        options.transport = Channel::Rings;
    }
    options.subtype = "extant-null".to_owned();
    options.read_only = false;
    let null = std::sync::Arc::new(Null::new(size));
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
