//! Creates one entry of a tree at a time, and records what could not be created.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::manifest::{full, show};
use crate::{Entry, Manifest, Time};

/// What could not be created, and why.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One line each; empty if the tree is complete.
    pub skipped: Vec<String>,
}

/// Creates files and directories below a root. Paths are relative, as bytes.
///
/// A failure to create a file or directory panics (a test cannot continue). A failure that depends on
/// privileges or the file system is recorded in the report.
pub(super) struct Maker<'a> {
    root: &'a Path,
    /// Requested times; all others are derived from the path at the end.
    times: BTreeMap<Vec<u8>, Time>,
    report: Report,
}

impl<'a> Maker<'a> {
    pub(super) fn new(root: &'a Path) -> Self {
        Self { root, times: BTreeMap::new(), report: Report::default() }
    }

    pub(super) fn full(&self, path: impl AsRef<[u8]>) -> PathBuf {
        full(self.root, path.as_ref())
    }

    pub(super) fn skip(&mut self, what: impl Into<String>) {
        self.report.skipped.push(what.into());
    }

    /// Records `what` in the report if `result` is an error.
    pub(super) fn attempt(&mut self, path: &[u8], what: &str, result: Result<(), impl std::fmt::Display>) {
        if let Err(error) = result {
            self.skip(format!("{}: {what}: {error}", show(path)));
        }
    }

    pub(super) fn dir(&self, path: impl AsRef<[u8]>) {
        let full = self.full(path);
        std::fs::create_dir(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        plain_mode(&full, 0o755);
    }

    pub(super) fn file(&self, path: impl AsRef<[u8]>, content: &[u8]) {
        let full = self.full(path);
        std::fs::write(&full, content).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        plain_mode(&full, 0o644);
    }

    /// A file of `size` bytes that has data only in the given runs.
    pub(super) fn sparse(&mut self, path: &str, size: u64, runs: &[(u64, &[u8])]) {
        let full = self.full(path);
        let make = || {
            let file = File::create_new(&full)?;
            file.set_len(size)?;
            runs.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))
        };
        let result = make();
        match &result {
            Ok(()) => plain_mode(&full, 0o644),
            Err(_) => drop(std::fs::remove_file(&full)),
        }
        self.attempt(path.as_bytes(), "sparse file", result);
    }

    pub(super) fn symlink(&self, path: impl AsRef<[u8]>, target: &[u8]) {
        let full = self.full(path);
        std::os::unix::fs::symlink(OsStr::from_bytes(target), &full)
            .unwrap_or_else(|error| panic!("{}: {error}", full.display()));
    }

    pub(super) fn link(&self, existing: &str, path: &str) {
        let (existing, full) = (self.full(existing), self.full(path));
        std::fs::hard_link(existing, &full).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
    }

    pub(super) fn node(&mut self, path: &str, kind: rustix::fs::FileType, major: u32, minor: u32) {
        let device = rustix::fs::makedev(major, minor);
        let full = self.full(path);
        let made = rustix::fs::mknodat(CWD, &full, kind, Mode::from_raw_mode(0o640), device);
        if made.is_ok() {
            plain_mode(&full, 0o640);
        }
        self.attempt(path.as_bytes(), "mknod", made);
    }

    pub(super) fn mode(&mut self, path: impl AsRef<[u8]>, mode: u32) {
        let path = path.as_ref();
        let changed = rustix::fs::chmod(self.full(path), Mode::from_raw_mode(mode));
        self.attempt(path, &format!("mode {mode:04o}"), changed);
    }

    pub(super) fn owner(&mut self, path: impl AsRef<[u8]>, uid: u32, gid: u32) {
        let path = path.as_ref();
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let changed =
            rustix::fs::chownat(CWD, self.full(path), Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW);
        self.attempt(path, &format!("owner {uid}:{gid}"), changed);
    }

    pub(super) fn xattr(&mut self, path: impl AsRef<[u8]>, name: &str, value: &[u8]) {
        let path = path.as_ref();
        let set = rustix::fs::lsetxattr(self.full(path), name, value, XattrFlags::empty());
        self.attempt(path, name, set);
    }

    /// Sets the mtime that this path gets at the end; its atime is a second later.
    pub(super) fn time(&mut self, path: &str, seconds: i64, nanoseconds: u32) {
        self.times.insert(path.as_bytes().to_vec(), Time { seconds, nanoseconds });
    }

    /// Sets the times of all entries, and checks that the file system keeps them. The order does not matter:
    /// setting a time does not change the parent.
    pub(super) fn finish(mut self) -> Report {
        let wanted: Vec<(Vec<u8>, Time)> = Manifest::paths(self.root)
            .into_iter()
            .map(|path| {
                let time = self.times.get(&path).copied().unwrap_or_else(|| usual_time(&path));
                (path, time)
            })
            .collect();
        for (path, time) in &wanted {
            let mtime = Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
            let atime = Timespec { tv_sec: time.seconds + 1, ..mtime };
            let times = Timestamps { last_access: atime, last_modification: mtime };
            let set = rustix::fs::utimensat(CWD, self.full(path), &times, AtFlags::SYMLINK_NOFOLLOW);
            self.attempt(path, "times", set);
        }
        for (path, time) in &wanted {
            // Only `stat` from here on: reading a symlink would change its access time.
            let entry = Entry::stat(self.root, path);
            if entry.mtime != *time && entry.nlink == 1 {
                self.skip(format!("{}: mtime {time} became {}", show(path), entry.mtime));
            }
        }
        self.report
    }
}

/// Sets the mode of a new file, independently of the umask.
fn plain_mode(path: &Path, mode: u32) {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// A time between 2001 and 2033 with nanoseconds, derived from the path's bytes (FNV-1a).
fn usual_time(path: &[u8]) -> Time {
    let hash = path
        .iter()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    Time {
        seconds: 1_000_000_000 + (hash % 1_000_000_000) as i64,
        nanoseconds: (hash >> 32) as u32 % 1_000_000_000,
    }
}
