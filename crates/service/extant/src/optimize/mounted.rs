//! Contiguous files on a mount of the kernel's ext4, while it is used.
//!
//! ```text
//! walk: FIEMAP of each file -> candidates, in the order of the list, then of inode numbers
//! each: donor without a name, its blocks reserved -> fewer fragments? -> EXT4_IOC_MOVE_EXT
//! ```
//!
//! The kernel copies the data and exchanges the blocks, under its own locks and in its journal: programs may
//! read and write the files meanwhile.
//!
//! Does **not** own: mounts of extant. FUSE has neither FIEMAP nor this ioctl, so their images are optimized
//! when they are not mounted.
//!
//! Source: kernel Documentation/filesystems/fiemap.rst, Documentation/admin-guide/ext4.rst.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use extant_device::move_extents;
use fiemap::{Fiemap, FiemapExtentFlags as Flags, FiemapFlags};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatfs, open, syncfs};

use super::{Candidate, Candidates, OptimizeOptions, OptimizeReport};

/// The type of ext2, ext3 and ext4 in statfs(2).
const EXT4_MAGIC: u64 = 0xEF53;

/// A run of a file that is allocated without holes, in bytes.
type Run = (u64, u64);

/// Why the files of a mount are not moved.
///
/// ```
/// use extant::optimize::{MountedFault, OptimizeOptions, optimize_mounted};
///
/// let (options, cancel) = (OptimizeOptions::default(), Default::default());
/// let failed = optimize_mounted("/no-such-dir".as_ref(), &options, &|_, _| (), &cancel);
/// assert!(matches!(failed, Err(MountedFault::Io(path, _)) if path.ends_with("no-such-dir")));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum MountedFault {
    /// The directory belongs to another kind of file system.
    #[error("{0}: it is not on a mount of the kernel's ext4")]
    NotExt4(PathBuf),
    /// A directory or a file of the list cannot be read.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Moves the data of fragmented files below `dir` to contiguous blocks. `dir` is on a mount of the kernel's
/// ext4; other file systems below it are left out. The paths in `options.order` count from `dir`. `progress`
/// gets the number of files that were considered, and their number.
///
/// # Errors
/// Another file system; a directory cannot be read; a path of the order does not exist. A file that cannot
/// be moved is no error: see [`OptimizeReport::left`].
///
/// ```
/// use extant::optimize::{MountedFault, OptimizeOptions, optimize_mounted};
///
/// let (options, cancel) = (OptimizeOptions::default(), Default::default());
/// let refused = optimize_mounted("/proc".as_ref(), &options, &|_, _| (), &cancel);
/// assert!(matches!(refused, Err(MountedFault::NotExt4(_))));
/// ```
pub fn optimize_mounted(
    dir: &Path,
    options: &OptimizeOptions,
    progress: &dyn Fn(u64, u64),
    cancel: &AtomicBool,
) -> Result<OptimizeReport, MountedFault> {
    let root = File::open(dir).map_err(|why| MountedFault::Io(dir.to_owned(), why))?;
    let about = fstatfs(&root).map_err(|why| MountedFault::Io(dir.to_owned(), why.into()))?;
    if about.f_type.cast_unsigned() as u64 != EXT4_MAGIC {
        return Err(MountedFault::NotExt4(dir.to_owned()));
    }
    let block_bytes = about.f_bsize as u64;
    let mut listed = Vec::with_capacity(options.order.len());
    for path in &options.order {
        let path = dir.join(relative(path));
        let found = path.symlink_metadata().map_err(|why| MountedFault::Io(path, why))?;
        listed.push(found.ino());
    }
    let mut report = OptimizeReport::default();
    let mut candidates = Candidates::new(listed);
    let device = root.metadata().map_err(|why| MountedFault::Io(dir.to_owned(), why))?.dev();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        let entries = match at.read_dir().and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(why) if at == dir => return Err(MountedFault::Io(at, why)),
            Err(why) => {
                // A directory that was removed meanwhile has no files.
                if !matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                    report.left.push((shown(dir, &at), why.to_string()));
                }
                continue;
            }
        };
        for entry in entries {
            let path = entry.path();
            let Ok(about) = path.symlink_metadata() else { continue };
            if about.dev() != device {
                continue;
            }
            if about.is_dir() {
                left.push(path);
            } else if about.is_file() {
                match fragments_of(&path) {
                    Ok(fragments) => candidates.add(about.ino(), path, fragments),
                    Err(why) => report.left.push((shown(dir, &path), why.to_string())),
                }
            }
        }
    }
    let Ok(()) = candidates.run(
        options,
        &mut report,
        (progress, cancel),
        |path| shown(dir, path),
        |_, file| Ok::<_, std::convert::Infallible>(move_file(file, block_bytes)),
    );
    syncfs(&root).map_err(|why| MountedFault::Io(dir.to_owned(), why.into()))?;
    Ok(report)
}

/// A path of the list without the slashes at its beginning.
fn relative(path: &[u8]) -> &Path {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    Path::new(std::ffi::OsStr::from_bytes(&path[start..]))
}

/// A path as it counts from the directory.
fn shown(dir: &Path, path: &Path) -> Vec<u8> {
    path.strip_prefix(dir).unwrap_or(path).as_os_str().as_bytes().to_vec()
}

fn fragments_of(path: &Path) -> io::Result<u64> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    Ok(map_of(&file)?.0)
}

/// The fragments of a file, and its runs without holes.
fn map_of(file: &File) -> io::Result<(u64, Vec<Run>)> {
    let (mut count, mut next, mut runs) = (0, None, Vec::<Run>::new());
    for extent in Fiemap::with_flags(file, FiemapFlags::SYNC) {
        let extent = extent?;
        if extent.fe_flags.intersects(Flags::DATA_INLINE | Flags::DELALLOC | Flags::UNKNOWN) {
            continue;
        }
        let (at, place, len) = (extent.fe_logical, extent.fe_physical, extent.fe_length);
        count += u64::from(next != Some((at, place)));
        next = Some((at + len, place + len));
        match runs.last_mut() {
            Some((start, run)) if *start + *run == at => *run += len,
            _ => runs.push((at, len)),
        }
    }
    Ok((count, runs))
}

/// Moves a file. Returns its fragments afterwards and its bytes, or why it stays.
fn move_file(candidate: &Candidate<PathBuf>, block_bytes: u64) -> Result<(u64, u64), String> {
    let why = |why: io::Error| why.to_string();
    // Another program may have put something else there meanwhile.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file =
        File::options().read(true).write(true).custom_flags(flags).open(&candidate.path).map_err(why)?;
    let about: Metadata = file.metadata().map_err(why)?;
    if !about.is_file() {
        return Err("it is no regular file any more".to_owned());
    }
    let parent = candidate.path.parent().unwrap_or(Path::new("/"));
    let donor = open(parent, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let donor = File::from(donor.map_err(|fault| why(fault.into()))?);
    let (_, mut runs) = map_of(&file).map_err(why)?;
    // Blocks that are reserved after the end of the file stay.
    let end = about.len().next_multiple_of(block_bytes);
    runs.retain_mut(|(start, len)| {
        *len = (*len).min(end.saturating_sub(*start));
        *len > 0
    });
    let needed: u64 = runs.iter().map(|(_, len)| len).sum();
    let space = rustix::fs::fstatvfs(&file).map_err(|fault| why(fault.into()))?;
    if needed > space.f_bavail * space.f_frsize {
        return Err("there is no better free space".to_owned());
    }
    for (start, len) in &runs {
        fallocate(&donor, FallocateFlags::empty(), *start, *len).map_err(|fault| why(fault.into()))?;
    }
    let (fragments, _) = map_of(&donor).map_err(why)?;
    if fragments > candidate.fragments || fragments == candidate.fragments && !candidate.is_listed {
        return Err("there is no better free space".to_owned());
    }
    for (start, len) in runs {
        let (mut at, end) = (start / block_bytes, (start + len).div_ceil(block_bytes));
        while at < end {
            match move_extents(&file, donor.as_fd(), at, end - at) {
                Ok(0) => break,
                Ok(moved) => at += moved,
                // The rest of the run is after the end of the file.
                Err(fault) if at > start / block_bytes && fault.raw_os_error() == Some(22) => break,
                Err(fault) => return Err(why(fault)),
            }
        }
    }
    let (fragments, _) = map_of(&file).map_err(why)?;
    Ok((fragments, about.len()))
}
