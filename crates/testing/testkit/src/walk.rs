//! The tree of an image as another program reads it: the kernel ([`KernelView`]) or debugfs ([`by_debugfs`]).
//!
//! To compare another reader with it, fill a [`Manifest`] from the reader's answers, and
//! [`diff`](crate::diff()) the two with [`DiffOptions::exact`](crate::DiffOptions::exact).
//!
//! ```text
//! let theirs = KernelView::open(&image, None)?.manifest();
//! let mut ours = Manifest::default();
//! ours.entries.insert(path, Entry { .. });          // one per name; the root is the empty path
//! let lines = diff(&theirs, &ours, &DiffOptions::exact(block_size));
//! ```
//!
//! All fields of an [`Entry`](crate::Entry) are public. The values that the kernel gives, and that another
//! reader must give:
//! - `inode`: (any constant, inode number); names of one inode have equal entries.
//! - `size`, `blocks`, `nlink`: as in `statx`. `blocks` is in units of 512 bytes for every block size. Inline
//!   data and xattrs in the inode do not count, an xattr block counts, an EA inode does not.
//! - `nlink`: as stored, 1 for a directory with more subdirectories than ext4 counts.
//! - `btime`: only for inodes with room for it (`i_extra_isize` of at least 24).
//! - `xattrs`: full names (`user.a`); ACLs in the format of the system call (version 2: `02 00 00 00`, then 8
//!   bytes per entry), not in that of the disk (version 1, entries of 4 or 8 bytes); without `system.data` of
//!   inline data.
//! - `content` of regular files: [`Content::from_reader`](crate::Content::from_reader) makes the digest; its
//!   `data` is the result of `SEEK_DATA` and `SEEK_HOLE`: unwritten extents are holes, inline data is one
//!   run.
//! - `extents` of regular files and directories: [`Extent::join`](crate::Extent::join)ed.
//! - without a key, an encrypted file is [`Content::Unreadable`](crate::Content::Unreadable) with `ENOKEY`;
//!   its name and a symlink's target are the kernel's encoding of the ciphertext.
//!
//! Does **not** own: the set of images ([`matrix`](crate::matrix)).
//!
//! Invariants
//! 1. The image does not change: the kernel gets a copy, and may write to that to replay a journal.

mod debugfs;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tempfile::TempDir;

pub use debugfs::by_debugfs;

use crate::{LoopDevice, LoopMount, Manifest, MountError, parse_dumpe2fs, run, scratch};

/// A copy of an image, mounted by the kernel read-only and without access times. If necessary, the journal
/// was replayed.
#[derive(Debug)]
pub struct KernelView {
    // Dropped in this order: unmount, detach, delete.
    mount: LoopMount,
    _devices: Vec<LoopDevice>,
    copy: TempDir,
}

impl KernelView {
    /// Copies `image`, and its external `journal` if any, and mounts the copy.
    ///
    /// # Errors
    /// The output of `losetup` or `mount`: not root, a feature that this kernel does not know, an image
    /// beyond repair.
    ///
    /// # Panics
    /// The copy cannot be made.
    pub fn open(image: &Path, journal: Option<&Path>) -> Result<Self, MountError> {
        let copy = scratch();
        let mut options = "noatime".to_owned();
        let mut devices = Vec::new();
        if let Some(journal) = journal {
            let path = copy.path().join("journal");
            copy_sparse(journal, &path);
            let device = LoopDevice::attach(&path)?;
            options = format!("{options},journal_path={}", device.path().display());
            devices.push(device);
        }
        let path = copy.path().join("image");
        copy_sparse(image, &path);
        let needs_recovery = needs_recovery(&path);
        let device = LoopDevice::attach(&path)?;
        if needs_recovery {
            // A read-only mount also replays a journal, but not everything that a fast commit may contain:
            // Linux 6.18 refuses to make the links of one ("error loading journal"). So the copy is mounted
            // for writing, unmounted without changes, and mounted again.
            drop(LoopMount::device(&device, &format!("rw,{options}"))?);
        }
        let mount = LoopMount::device(&device, &format!("ro,{options}"))?;
        devices.push(device);
        Ok(Self { mount, _devices: devices, copy })
    }

    /// The root directory of the file system.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// The complete tree: [`Manifest::with_extents`].
    ///
    /// # Panics
    /// Something cannot be read.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        Manifest::with_extents(self.path())
    }

    /// Unmounts, and returns the copy as the kernel left it, with its directory. After a replay the image is
    /// clean.
    #[must_use]
    pub fn close(self) -> (PathBuf, TempDir) {
        let Self { mount, _devices: devices, copy } = self;
        drop(mount);
        drop(devices);
        (copy.path().join("image"), copy)
    }
}

/// Whether the image's journal needs a replay.
///
/// # Panics
/// dumpe2fs cannot read the superblock.
#[must_use]
pub fn needs_recovery(image: &Path) -> bool {
    let header = run("dumpe2fs", [Path::new("-h"), image]);
    let header = parse_dumpe2fs(&String::from_utf8_lossy(&header.stdout));
    header.features().contains(&"needs_recovery")
}

/// Copies a file; holes stay holes.
///
/// # Panics
/// It cannot be read or written.
pub fn copy_sparse(from: &Path, to: &Path) {
    let fail = |error: &dyn std::fmt::Display| -> ! {
        panic!("copying {} to {}: {error}", from.display(), to.display())
    };
    let copy = || -> std::io::Result<()> {
        let (source, target) = (File::open(from)?, File::create(to)?);
        target.set_len(source.metadata()?.len())?;
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        loop {
            let start = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(&source, SeekFrom::Hole(start))?;
            at = start;
            while at < end {
                let len = (end - at).min(buffer.len() as u64) as usize;
                source.read_exact_at(&mut buffer[..len], at)?;
                target.write_all_at(&buffer[..len], at)?;
                at += len as u64;
            }
        }
    };
    copy().unwrap_or_else(|error| fail(&error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_bytes_and_the_holes() {
        let dir = scratch();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"middle", 32 << 20).unwrap();
        copy_sparse(&from, &to);
        let manifest = Manifest::of(dir.path());
        assert_eq!(manifest.entries[&b"from"[..]].content, manifest.entries[&b"to"[..]].content);
        assert_eq!(manifest.entries[&b"to"[..]].size, 64 << 20);
    }
}
