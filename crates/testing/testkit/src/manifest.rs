//! A tree of files as a value: everything that an image must keep, path by path.
//!
//! [`diff`](diff::diff) compares a manifest of a source directory with one of the mounted image.
//!
//! Does **not** own: what may differ (see [`diff::DiffOptions`]).
//!
//! Invariants
//! 1. Paths and names are bytes, relative to the root; the root itself is the empty path.
//! 2. An inode with several names is read once; each of its names has the complete entry.
//! 3. The cost of reading depends on the data of a file, not on its size: `SEEK_DATA` skips holes.

mod content;
pub(crate) mod diff;
pub(crate) mod extents;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

pub use content::Content;
pub use extents::Extent;

/// Number of threads that read contents and attributes.
const READERS: usize = 2;

/// Everything below one directory, by relative path.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// The entries; the root is the empty path.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A time: seconds since 1970 plus nanoseconds (0 to 999,999,999), also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds, added to the seconds.
    pub nanoseconds: u32,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanoseconds)
    }
}

/// A name in the tree and its inode.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Type.
    pub kind: Kind,
    /// The twelve permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes from `stat`; meaningless for directories.
    pub size: u64,
    /// Link count.
    pub nlink: u32,
    /// Major and minor number of a device.
    pub rdev: Option<(u32, u32)>,
    /// Last change of content.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation time, if the file system has it.
    pub btime: Option<Time>,
    /// Identifies the inode: (device, number). Two names with equal values are hard links.
    pub inode: (u64, u64),
    /// All extended attributes visible to this process, including ACLs and security labels.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
    /// Content of a regular file.
    pub content: Option<Content>,
    /// Used space in 512-byte units, from `stat`.
    pub blocks: u64,
    /// Location of the file or directory on the device; `None` if not requested, or if it cannot be opened.
    pub extents: Option<Vec<Extent>>,
}

impl Manifest {
    /// Reads the whole tree below `root`, including `root` and other file systems mounted in it.
    ///
    /// # Panics
    /// Something cannot be read, or vanishes meanwhile. Files without permission do not panic: they have
    /// [`Content::Unreadable`].
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self::read(root, false)
    }

    /// As [`of`](Self::of), with the extents of all files and directories, as FIEMAP returns them.
    ///
    /// # Panics
    /// As [`of`](Self::of), and on a file system without FIEMAP.
    #[must_use]
    pub fn with_extents(root: &Path) -> Self {
        Self::read(root, true)
    }

    fn read(root: &Path, with_extents: bool) -> Self {
        let paths = Self::paths(root);
        let mut entries: Vec<Entry> = read_in_parallel(&paths, |path| Entry::stat(root, path));

        // Each inode is read once: its further names get a copy.
        let mut first_of: HashMap<(u64, u64), usize> = HashMap::new();
        let firsts: Vec<usize> =
            (0..entries.len()).filter(|&i| *first_of.entry(entries[i].inode).or_insert(i) == i).collect();
        let inner =
            read_in_parallel(&firsts, |&i| Inner::read(&full(root, &paths[i]), &entries[i], with_extents));
        for (&i, inner) in firsts.iter().zip(inner) {
            inner.put_into(&mut entries[i]);
        }
        for i in 0..entries.len() {
            let first = first_of[&entries[i].inode];
            if first != i {
                entries[i] = entries[first].clone();
            }
        }
        Self { entries: paths.into_iter().zip(entries).collect() }
    }

    /// The relative paths of `root` and everything below it. A directory comes before its entries; otherwise
    /// there is no order.
    pub(crate) fn paths(root: &Path) -> Vec<Vec<u8>> {
        let mut paths = vec![Vec::new()];
        if Entry::stat(root, b"").kind == Kind::Directory {
            list(root, &mut paths);
        }
        paths
    }

    /// The sets of two or more paths that share an inode.
    #[must_use]
    pub fn hard_links(&self) -> BTreeSet<BTreeSet<&[u8]>> {
        let mut by_inode: HashMap<(u64, u64), BTreeSet<&[u8]>> = HashMap::new();
        for (path, entry) in &self.entries {
            by_inode.entry(entry.inode).or_default().insert(path);
        }
        by_inode.into_values().filter(|paths| paths.len() > 1).collect()
    }

    /// Bytes that regular files hold on disk (without holes), each inode once.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        self.entries.values().filter(|e| seen.insert(e.inode)).filter_map(|e| e.content.as_ref()).fold(
            0,
            |sum, content| match content {
                Content::Read { data, .. } => sum + data.iter().map(|run| run.end - run.start).sum::<u64>(),
                Content::Unreadable(_) => sum,
            },
        )
    }
}

impl Entry {
    /// Calls `statx` for one path. Attributes, target and content are read later.
    pub(crate) fn stat(root: &Path, relative: &[u8]) -> Self {
        let path = full(root, relative);
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, wanted)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => Kind::Regular,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::Unknown => panic!("{}: unknown file type, mode {:o}", path.display(), stat.stx_mode),
        };
        let time = |t: rustix::fs::StatxTimestamp| Time { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
        let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        Self {
            kind,
            mode: stat.stx_mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            nlink: stat.stx_nlink,
            rdev: is_device.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)),
            mtime: time(stat.stx_mtime),
            atime: time(stat.stx_atime),
            ctime: time(stat.stx_ctime),
            btime: StatxFlags::from_bits_retain(stat.stx_mask)
                .contains(StatxFlags::BTIME)
                .then(|| time(stat.stx_btime)),
            inode: (u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor), stat.stx_ino),
            xattrs: BTreeMap::new(),
            target: None,
            content: None,
            blocks: stat.stx_blocks,
            extents: None,
        }
    }
}

/// Formats a path: quoted, with escapes for unprintable bytes.
pub(crate) fn show(path: &[u8]) -> String {
    if path.is_empty() { "the root".to_owned() } else { format!("\"{}\"", path.escape_ascii()) }
}

/// The path below `root`; `root` itself for the empty path.
pub(crate) fn full(root: &Path, relative: &[u8]) -> PathBuf {
    if relative.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(relative)) }
}

/// Appends the paths of everything below `root`.
fn list(root: &Path, paths: &mut Vec<Vec<u8>>) {
    let mut pending: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(parent) = pending.pop() {
        let place = full(root, &parent);
        let fd = match open_quietly(&place, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::ACCESS) => continue,
            Err(error) => panic!("{}: {error}", place.display()),
        };
        let dir = rustix::fs::Dir::read_from(&fd).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
        for item in dir {
            let item = item.unwrap_or_else(|error| panic!("{}: {error}", place.display()));
            let name = item.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let mut path = parent.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            let is_dir = match item.file_type() {
                FileType::Directory => true,
                FileType::Unknown => Entry::stat(root, &path).kind == Kind::Directory,
                _ => false,
            };
            if is_dir {
                pending.push(path.clone());
            }
            paths.push(path);
        }
    }
}

/// Opens for reading, without following a last symlink and, where allowed, without updating the access time.
fn open_quietly(path: &Path, flags: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(path, flags, Mode::empty()),
        result => result,
    }
}

/// The fields that are read later, once per inode.
struct Inner {
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Option<Vec<u8>>,
    content: Option<Content>,
    extents: Option<Vec<Extent>>,
}

impl Inner {
    fn read(path: &Path, entry: &Entry, with_extents: bool) -> Self {
        let target = (entry.kind == Kind::Symlink).then(|| {
            let target = rustix::fs::readlink(path, Vec::new());
            target.unwrap_or_else(|error| panic!("{}: {error}", path.display())).into_bytes()
        });
        let content = (entry.kind == Kind::Regular).then(|| Content::read(path));
        let is_open_to_us = match &content {
            Some(content) => matches!(content, Content::Read { .. }),
            None => entry.kind == Kind::Directory,
        };
        let extents = (with_extents && is_open_to_us).then(|| extents::read(path));
        Self { xattrs: xattrs(path), target, content, extents }
    }

    fn put_into(self, entry: &mut Entry) {
        entry.xattrs = self.xattrs;
        entry.target = self.target;
        entry.content = self.content;
        entry.extents = self.extents;
    }
}

/// All extended attributes of a path, without following a symlink; empty if the file system has none.
fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    // XATTR_LIST_MAX and XATTR_SIZE_MAX of Linux.
    const MAX: usize = 65536;
    let fail = |what: &dyn fmt::Display, error| -> ! { panic!("{}: {what}: {error}", path.display()) };
    // Starts with the largest buffer: with an empty one rustix returns 0 instead of the size.
    let mut names = vec![0u8; MAX];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP | Errno::ACCESS) => return BTreeMap::new(),
        Ok(len) => len,
        Err(error) => fail(&"listxattr", error),
    };
    let mut found = BTreeMap::new();
    for name in names[..len].split_inclusive(|&byte| byte == 0) {
        let name = CStr::from_bytes_with_nul(name).expect("split at its zero");
        let mut value = vec![0u8; MAX];
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                value.shrink_to_fit();
                found.insert(name.to_bytes().to_vec(), value);
            }
            Err(error) => fail(&name.to_string_lossy(), error),
        }
    }
    found
}

/// Maps items in `READERS` threads; the results are in the order of the items.
fn read_in_parallel<T: Sync, R: Send>(items: &[T], read: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const BATCH: usize = 64;
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<R>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(BATCH, Ordering::Relaxed);
                    let Some(batch) = items.get(start..items.len().min(start + BATCH)) else { return };
                    if batch.is_empty() {
                        return;
                    }
                    let results = batch.iter().map(&read).collect();
                    done.lock().expect("no reader panics while it holds this").push((start, results));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("a panic of a reader has ended the scope");
    done.sort_unstable_by_key(|(start, _)| *start);
    done.into_iter().flat_map(|(_, results)| results).collect()
}
