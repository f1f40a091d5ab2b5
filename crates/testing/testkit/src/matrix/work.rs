//! The workloads that fill the images: they work on a mounted file system, one function each.
//!
//! Invariants
//! 1. A workload skips what a file system without some feature cannot do (fallocate without extents, large
//!    xattrs without `ea_inode`); every other failure panics.
//! 2. Names, bytes, owners and modes are the same in every run.

pub(super) mod attributes;
pub(super) mod crash;
pub(super) mod dirs;
pub(super) mod files;
pub(super) mod special;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags};
use rustix::io::Errno;

use crate::trees::{Limits, Random, adversarial_within};

/// A directory in which files are created, by relative path.
pub(super) struct WorkTree {
    root: PathBuf,
}

impl WorkTree {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Creates a directory in it.
    pub(super) fn dir(&self, name: impl AsRef<[u8]>) -> Self {
        let root = self.path(name);
        std::fs::create_dir(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        Self { root }
    }

    pub(super) fn path(&self, name: impl AsRef<[u8]>) -> PathBuf {
        self.root.join(OsStr::from_bytes(name.as_ref()))
    }

    pub(super) fn block_size(&self) -> u64 {
        rustix::fs::statvfs(&self.root).expect("a mounted file system").f_bsize
    }

    pub(super) fn file(&self, name: impl AsRef<[u8]>, bytes: &[u8]) {
        self.done(&name, std::fs::write(self.path(&name), bytes));
    }

    /// Creates a file with random bytes, which depend on its name and length.
    pub(super) fn filled(&self, name: impl AsRef<[u8]>, len: usize) {
        let seed =
            name.as_ref().iter().fold(len as u64, |seed, &byte| seed.wrapping_mul(31) + u64::from(byte));
        self.file(name, &Random::new(seed).bytes(len));
    }

    /// Opens a file for reading and writing; creates it if it is missing.
    pub(super) fn open(&self, name: impl AsRef<[u8]>) -> File {
        let opened =
            File::options().read(true).write(true).create(true).truncate(false).open(self.path(&name));
        opened.unwrap_or_else(|error| panic!("{}: {error}", self.path(&name).display()))
    }

    /// Writes into a file at an offset. Returns `false` if the file system does not support files that large.
    pub(super) fn write_at(&self, name: impl AsRef<[u8]>, offset: u64, bytes: &[u8]) -> bool {
        let result = self.open(&name).write_all_at(bytes, offset);
        self.unless(&name, result, &[Errno::FBIG])
    }

    /// Sets the size. Returns `false` if the file system does not support files that large.
    pub(super) fn cut(&self, name: impl AsRef<[u8]>, size: u64) -> bool {
        let result = self.open(&name).set_len(size);
        self.unless(&name, result, &[Errno::FBIG])
    }

    pub(super) fn sync(&self, name: impl AsRef<[u8]>) {
        self.done(&name, self.open(&name).sync_all());
    }

    pub(super) fn remove(&self, name: impl AsRef<[u8]>) {
        self.done(&name, std::fs::remove_file(self.path(&name)));
    }

    pub(super) fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.done(&from, std::fs::rename(self.path(&from), self.path(to)));
    }

    /// Creates a hard link.
    pub(super) fn link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.done(&from, std::fs::hard_link(self.path(&from), self.path(to)));
    }

    pub(super) fn symlink(&self, target: impl AsRef<[u8]>, name: impl AsRef<[u8]>) {
        self.done(&name, std::os::unix::fs::symlink(OsStr::from_bytes(target.as_ref()), self.path(&name)));
    }

    pub(super) fn node(&self, name: &str, kind: FileType, major: u32, minor: u32) {
        let device = rustix::fs::makedev(major, minor);
        let made = rustix::fs::mknodat(CWD, self.path(name), kind, Mode::from_raw_mode(0o640), device);
        self.done(name, made.map_err(Into::into));
    }

    /// Sets an attribute. Returns `false` if it is not supported, or has no room.
    pub(super) fn xattr(&self, name: impl AsRef<[u8]>, attribute: &str, value: &[u8]) -> bool {
        let set = rustix::fs::lsetxattr(self.path(&name), attribute, value, XattrFlags::empty());
        self.unless(&name, set.map_err(Into::into), &[Errno::OPNOTSUPP, Errno::NOSPC, Errno::RANGE])
    }

    /// Changes the allocation of a file. Returns `false` without extents, or for parts of bigalloc's
    /// clusters.
    pub(super) fn allocate(&self, name: &str, flags: FallocateFlags, offset: u64, len: u64) -> bool {
        let result = rustix::fs::fallocate(self.open(name), flags, offset, len);
        self.unless(name, result.map_err(Into::into), &[Errno::OPNOTSUPP, Errno::INVAL])
    }

    pub(super) fn own(&self, name: impl AsRef<[u8]>, uid: u32, gid: u32) {
        self.done(&name, std::os::unix::fs::lchown(self.path(&name), Some(uid), Some(gid)));
    }

    fn done(&self, name: impl AsRef<[u8]>, result: std::io::Result<()>) {
        result.unwrap_or_else(|error| panic!("{}: {error}", self.path(name).display()));
    }

    fn unless(&self, name: impl AsRef<[u8]>, result: std::io::Result<()>, expected: &[Errno]) -> bool {
        match result {
            Ok(()) => true,
            Err(error) if Errno::from_io_error(&error).is_some_and(|errno| expected.contains(&errno)) => {
                false
            }
            Err(error) => panic!("{}: {error}", self.path(name).display()),
        }
    }
}

/// Writes everything to disk and commits all transactions.
pub(super) fn sync_all(root: &Path) {
    let dir = File::open(root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    rustix::fs::syncfs(&dir).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
}

/// The tree of [`trees::adversarial`](crate::trees::adversarial), about 6,000 inodes: for the plain shapes.
pub(super) fn everything(root: &Path) {
    // What cannot be created here is in the report, and is missing in every other image, too.
    let _ = adversarial_within(root, &Limits::for_block_size(WorkTree::new(root).block_size()));
}

/// As [`everything`], for `mke2fs -d` and debugfs, which read every hole.
pub(super) fn everything_small(root: &Path) {
    let _ = adversarial_within(root, &Limits { sparse_bytes: 4 << 20, ..Limits::default() });
}

/// A little of everything: for features that change the layout and not the content.
pub(super) fn mixed(root: &Path) {
    let place = WorkTree::new(root);
    let block = place.block_size() as usize;
    let sizes = [0, 1, 59, 60, 61, 200, block - 1, block, block + 1, 12 * block, 13 * block + 7, 40 * block];
    let files = place.dir("files");
    for size in sizes {
        files.filled(format!("of-{size}"), size);
    }
    let many = place.dir("many");
    for i in 0..200 {
        many.filled(format!("file number {i:05} of the directory with many"), i % 7);
    }
    let mut deep = place.dir("deep");
    for i in 0..12 {
        deep.file("here", format!("level {i}\n").as_bytes());
        deep = deep.dir(format!("level-{i}"));
    }
    special::nodes(&place.dir("special"));
    special::symlinks(&place.dir("symlinks"));
    place.link("files/of-61", "hard link");
    place.write_at("sparse", 300 * block as u64, b"after a hole");
    place.write_at("sparse", 10, b"before it");
    place.xattr("files", "user.kind", b"directory");
    place.xattr("sparse", "user.small", b"in the inode, with room");
    place.xattr("files/of-1", "user.large", &Random::new(1).bytes(block * 2 / 3));
    place.own("files/of-200", 70_000, 80_000);
    // Removed files leave holes in directories, and inodes for reuse.
    for i in (0..200).step_by(3) {
        many.remove(format!("file number {i:05} of the directory with many"));
    }
    for i in 0..20 {
        place.filled(format!("again-{i}"), 3000);
    }
}
