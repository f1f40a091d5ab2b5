//! Checks whether an image is in use: mounted by the kernel (directly or through a loop device), mounted by
//! extant, or locked by another program.
//!
//! Owns: the check, and the description of the use. Does **not** own: taking locks (see
//! [`FileDevice`](crate::FileDevice)), the table of mounts (see [`crate::mount_table`]).
//!
//! Information that cannot be read (no sysfs, another mount namespace, another PID namespace) counts as not
//! in use. Locks keep programs apart; this module only explains a failed lock, and detects the kernel's
//! mounts, which do not take our locks.
//!
//! Source: `Documentation/ABI/testing/sysfs-block` (dev), proc(5) (mountinfo, locks); `loop/backing_file` is
//! shown by losetup.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::mount_table::{self, MountEntry, TYPE};

/// How an image is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageUse {
    /// The mount point, if it is mounted.
    pub on: Option<PathBuf>,
    /// The block device in between: `/dev/loop3`, or a partition of it.
    pub through: Option<PathBuf>,
    /// The program that uses it, by process ID and name.
    pub process: Option<(u32, String)>,
    /// Whether this use writes, or may write at any time.
    pub writes: bool,
}

impl fmt::Display for ImageUse {
    /// "mounted on /mnt through /dev/loop3", "open for writing in process 12 (extant)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.on {
            Some(on) if self.writes => write!(f, "mounted on {}", on.display())?,
            Some(on) => write!(f, "mounted read-only on {}", on.display())?,
            None if self.writes => f.write_str("open for writing")?,
            None => f.write_str("open for reading only, and locked")?,
        }
        if let Some(device) = &self.through {
            write!(f, " through {}", device.display())?;
        }
        match &self.process {
            Some((number, name)) if self.on.is_some() => write!(f, " by process {number} ({name})"),
            Some((number, name)) => write!(f, " in process {number} ({name})"),
            None if self.on.is_none() => f.write_str(" in another program"),
            None => Ok(()),
        }
    }
}

/// How this file or block device is used. A use that writes takes precedence over one that reads. Uses by
/// this process do not count.
#[must_use]
pub fn use_of(path: &Path) -> Option<ImageUse> {
    let file = fs::metadata(path).ok()?;
    let mounts = mount_table::mounts().unwrap_or_default();
    let locked = lock_of(&file);
    // A server that was killed leaves its mount behind, but no lock.
    let by_extant = mounted_by_extant(&file, &mounts).filter(|_| locked.is_some() || is_locked(path));
    let by_extant = by_extant.map(|on| ImageUse {
        on: Some(on.dir.clone()),
        through: None,
        process: locked.as_ref().and_then(|lock| lock.process.clone()),
        writes: on.is_writable,
    });
    let found = [by_extant, kernel_mount(&file, &mounts), locked];
    let writer = found.iter().flatten().find(|found| found.writes);
    writer.or_else(|| found.iter().flatten().next()).cloned()
}

/// The kernel's own mount of this file or block device.
pub(crate) fn mounted_by_kernel(path: &Path) -> Option<ImageUse> {
    kernel_mount(&fs::metadata(path).ok()?, &mount_table::mounts().ok()?)
}

/// The mount of a block device, or of a loop device with this backing file.
fn kernel_mount(file: &fs::Metadata, mounts: &[MountEntry]) -> Option<ImageUse> {
    if file.file_type().is_block_device() {
        let block = PathBuf::from(format!("/sys/dev/block/{}", number_of(file.rdev())));
        let (on, _) = mount_of(&block.canonicalize().ok()?, mounts)?;
        return Some(ImageUse { on: Some(on.dir.clone()), writes: on.is_writable, ..ImageUse::default() });
    }
    let loops = fs::read_dir("/sys/block").ok()?.flatten();
    let loops = loops.filter(|block| block.file_name().as_bytes().starts_with(b"loop"));
    let mut found = loops.filter(|block| stores_in(&block.path(), file)).filter_map(|block| {
        let (on, through) = mount_of(&block.path(), mounts)?;
        let (on, writes) = (Some(on.dir.clone()), on.is_writable);
        Some(ImageUse { on, through: Some(through), process: None, writes })
    });
    found.next()
}

fn stores_in(block: &Path, file: &fs::Metadata) -> bool {
    // Only loop devices have this attribute.
    let Ok(text) = fs::read(block.join("loop/backing_file")) else { return false };
    let path = text.strip_suffix(b"\n").unwrap_or(&text);
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    fs::metadata(path).is_ok_and(|found| is_same(&found, file))
}

/// The mount of a block device (a sysfs path) or of one of its partitions, and the name of the mounted one.
fn mount_of<'a>(block: &Path, mounts: &'a [MountEntry]) -> Option<(&'a MountEntry, PathBuf)> {
    let mut candidates = vec![block.to_owned()];
    let below = fs::read_dir(block).into_iter().flatten().flatten().map(|entry| entry.path());
    candidates.extend(below.filter(|path| path.join("partition").exists()));
    candidates.into_iter().find_map(|candidate| {
        let text = fs::read_to_string(candidate.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        let number = (major.parse().ok()?, minor.parse().ok()?);
        let on = mounts.iter().find(|entry| entry.device == number)?;
        Some((on, Path::new("/dev").join(candidate.file_name().unwrap_or_default())))
    })
}

/// A mount of extant whose source is this file; a writable one takes precedence.
fn mounted_by_extant<'a>(file: &fs::Metadata, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    let ours = mounts.iter().filter(|entry| entry.fs_type == TYPE);
    let ours = ours.filter(|entry| {
        let source = entry.source.as_bytes();
        // IMG#N and IMG@OFFSET denote parts of IMG.
        let part = source.iter().rposition(|byte| matches!(byte, b'#' | b'@'));
        let names = [Some(source), part.map(|at| &source[..at])];
        names
            .into_iter()
            .flatten()
            .filter(|name| name.starts_with(b"/"))
            .any(|name| fs::metadata(OsStr::from_bytes(name)).is_ok_and(|found| is_same(&found, file)))
    });
    ours.max_by_key(|entry| entry.is_writable)
}

/// Whether both are the same file, or nodes of the same block device.
fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    let is_block = |file: &fs::Metadata| file.file_type().is_block_device();
    match (is_block(one), is_block(other)) {
        (true, true) => one.rdev() == other.rdev(),
        (false, false) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Whether another program holds the exclusive lock. Needed where /proc/locks does not show it.
fn is_locked(path: &Path) -> bool {
    let Ok(file) = fs::File::open(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// The flock(2) lock of another process on this file.
fn lock_of(file: &fs::Metadata) -> Option<ImageUse> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut found: Vec<_> = locks.lines().filter_map(parse_lock).filter(|lock| lock.is_on(file)).collect();
    found.retain(|lock| lock.process != std::process::id());
    let lock = found.iter().find(|lock| lock.writes).or(found.first())?;
    let name = fs::read_to_string(format!("/proc/{}/comm", lock.process)).unwrap_or_default();
    let process = Some((lock.process, name.trim_end().to_owned()));
    Some(ImageUse { process, writes: lock.writes, ..ImageUse::default() })
}

#[derive(Debug, PartialEq, Eq)]
struct Lock {
    writes: bool,
    process: u32,
    device: (u32, u32),
    ino: u64,
}

impl Lock {
    fn is_on(&self, file: &fs::Metadata) -> bool {
        let (dev, ino) = (file.dev(), file.ino());
        self.ino == ino && self.device == (rustix::fs::major(dev), rustix::fs::minor(dev))
    }
}

/// A line like `1: FLOCK  ADVISORY  WRITE 1327 08:02:4325 0 EOF`; the device is in hexadecimal digits.
fn parse_lock(line: &str) -> Option<Lock> {
    let mut words = line.split_ascii_whitespace().skip(1);
    if (words.next()?, words.next()?) != ("FLOCK", "ADVISORY") {
        return None;
    }
    let writes = words.next()? == "WRITE";
    let process = words.next()?.parse().ok()?;
    let mut parts = words.next()?.split(':');
    let mut hex = || u32::from_str_radix(parts.next()?, 16).ok();
    let device = (hex()?, hex()?);
    Some(Lock { writes, process, device, ino: parts.next()?.parse().ok()? })
}

fn number_of(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_locks_are_understood() {
        let lock = parse_lock("1: FLOCK  ADVISORY  WRITE 1327 08:1f:4325 0 EOF").unwrap();
        assert_eq!(lock, Lock { writes: true, process: 1327, device: (8, 31), ino: 4325 });
        assert!(!parse_lock("2: FLOCK  ADVISORY  READ 1 00:2d:7 0 EOF").unwrap().writes);
        for other in
            ["1: -> FLOCK  ADVISORY  WRITE 9 08:02:1 0 EOF", "1: POSIX  ADVISORY  WRITE 9 08:02:1 0 EOF", ""]
        {
            assert_eq!(parse_lock(other), None, "{other}");
        }
    }

    #[test]
    fn uses_are_said_in_words() {
        let used = |on: Option<&str>, through: Option<&str>, process: bool, writes| {
            let process = process.then(|| (12, "extant".to_owned()));
            ImageUse { on: on.map(Into::into), through: through.map(Into::into), process, writes }.to_string()
        };
        assert_eq!(used(Some("/a"), Some("/dev/loop3"), false, true), "mounted on /a through /dev/loop3");
        assert_eq!(used(Some("/a"), None, true, false), "mounted read-only on /a by process 12 (extant)");
        assert_eq!(used(None, None, true, true), "open for writing in process 12 (extant)");
    }

    #[test]
    fn a_file_that_nothing_uses_is_not_in_use_and_one_that_another_process_locks_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(use_of(file.path()), None);
        // flock(1) of util-linux; it holds its lock until its standard input ends.
        let mut command = std::process::Command::new("flock");
        command.arg("-x").arg(file.path()).args(["sh", "-c", "echo locked; read line"]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let Ok(mut child) = command.spawn() else { return };
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 7]).unwrap();
        let used = use_of(file.path());
        drop(child.stdin.take());
        child.wait().unwrap();
        // On stacked file systems /proc/locks shows other numbers than stat(2).
        let is_stacked = rustix::fs::statfs(file.path()).unwrap().f_type == 0x794c_7630;
        assert!(is_stacked || used.is_some_and(|used| used.writes && used.process.is_some()));
    }
}
