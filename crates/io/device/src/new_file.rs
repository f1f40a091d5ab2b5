//! A file that appears under its name only when it is complete (INV-D4).
//!
//! The bytes are written to a file without a name in the target's directory (`O_TMPFILE`), or, if the file
//! system does not support that or /proc is not mounted, to one with a random name. [`NewFile::publish`]
//! gives the file its name in one step. A crash, an error or a kill before that leaves nothing under the
//! name, and with `O_TMPFILE` nothing at all.
//!
//! An existing file of this name is not replaced while it is mounted or another program writes to it; it is
//! locked until the new file has its name. The new file gets its mode, owner and ACL. A symbolic link stays,
//! and its target is replaced, or created if missing. Another user's link in a world-writable directory is
//! not followed (the rule of the sysctl `fs.protected_symlinks`).

use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags};

use crate::file::lock_unused;

/// Maximum number of chained symbolic links, as in the kernel.
const LINKS_MAX: usize = 40;
/// The directory that shows the open files of this process, by which a file without a name gets one.
const OPEN_FILES: &str = "/proc/self/fd";
/// The attribute that stores a POSIX ACL.
const ACL: &str = "system.posix_acl_access";

/// A file being written that does not have its name yet.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    target: PathBuf,
    /// The random name, if there is one; removed on drop.
    named: Option<tempfile::TempPath>,
    /// The existing file of that name, locked.
    replaced: Option<File>,
}

impl NewFile {
    /// Starts a file with the future name `target`.
    ///
    /// # Errors
    /// The directory does not exist or is not writable, or the target exists and is not a regular file.
    /// [`io::ErrorKind::ResourceBusy`] if the target is mounted or another program writes to it.
    pub fn create(target: &Path) -> io::Result<Self> {
        Self::create_with(target, OPEN_FILES)
    }

    fn create_with(target: &Path, open_files: &str) -> io::Result<Self> {
        let target = &resolved(target)?;
        let old = match std::fs::symlink_metadata(target) {
            Ok(metadata) if !metadata.is_file() => {
                let why = "there is something else than a regular file under this name";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            found => found.ok(),
        };
        let replaced = match old.as_ref().map(|_| File::open(target)) {
            Some(Ok(file)) => match lock_unused(&file, target) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Err(error),
                // Also if the file system has no locks.
                _ => Some(file),
            },
            // An unreadable file may be replaced; whether it is in use cannot be checked.
            Some(Err(_)) | None => None,
        };
        let (file, named) = match rustix::fs::open(
            parent_of(target),
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o644),
        ) {
            Ok(fd) if std::fs::symlink_metadata(shown_in(open_files, &fd)).is_ok() => (fd.into(), None),
            Ok(_)
            | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {
                let (file, named) = temporary_beside(target)?.into_parts();
                (file, Some(named))
            }
            Err(errno) => return Err(errno.into()),
        };
        if let Some(old) = &old {
            become_like(&file, old, replaced.as_ref())?;
        }
        Ok(Self { file, target: target.clone(), named, replaced })
    }

    /// The file, for writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name. With `replace`, an existing file of that name is replaced in one step. With
    /// `durable`, the name survives a power cut.
    ///
    /// # Errors
    /// `AlreadyExists` if there is such a file and `replace` is false; else the system's error. No temporary
    /// file remains.
    pub fn publish(self, replace: bool, durable: bool) -> io::Result<()> {
        let dir = if durable { Some(File::open(parent_of(&self.target))?) } else { None };
        self.give_name(replace)?;
        dir.map_or(Ok(()), |dir| dir.sync_all())
    }

    fn give_name(self, replace: bool) -> io::Result<()> {
        // The lock of the replaced file is released when the new file has its name.
        let Self { file, target, named, replaced: _locked } = self;
        if let Some(named) = named {
            return if replace {
                named.persist(&target).map_err(|e| e.error)
            } else {
                named.persist_noclobber(&target).map_err(|e| e.error)
            };
        }
        let unnamed = shown_in(OPEN_FILES, &file);
        let link = |to: &Path| rustix::fs::linkat(CWD, unnamed.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&target) {
            Err(rustix::io::Errno::EXIST) if replace => {
                // A link cannot replace a file: link under a random name, then rename over the target.
                let beside = temporary_beside(&target)?.into_temp_path();
                let spare = beside.to_path_buf();
                beside.close()?;
                link(&spare)?;
                std::fs::rename(&spare, &target).inspect_err(|_| {
                    let _ = std::fs::remove_file(&spare);
                })
            }
            other => Ok(other?),
        }
    }
}

/// The path of an open file.
fn shown_in(open_files: &str, file: &impl AsRawFd) -> String {
    format!("{open_files}/{}", file.as_raw_fd())
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The final target of a path after symbolic links, even if it does not exist.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = std::fs::symlink_metadata(&path) else { return Ok(path) };
        if !link.is_symlink() {
            return Ok(path);
        }
        let dir = std::fs::metadata(parent_of(&path))?;
        let is_open_to_all = dir.mode() & 0o1002 == 0o1002;
        if is_open_to_all && link.uid() != rustix::process::geteuid().as_raw() && link.uid() != dir.uid() {
            let why = format!(
                "{} is a symbolic link of another user in a world-writable directory: \
                 name the file that is meant",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        path = parent_of(&path).join(std::fs::read_link(&path)?);
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Copies owner, mode and ACL of the old file to the new one, because its users rely on them. If the owner
/// cannot be set, the rights meant for that owner are omitted, too.
fn become_like(new: &File, old: &Metadata, open: Option<&File>) -> io::Result<()> {
    let made = new.metadata()?;
    let mut mode = old.mode() & 0o7777;
    if (made.uid(), made.gid()) != (old.uid(), old.gid())
        && fchown(new, Some(old.uid()), Some(old.gid())).is_err()
    {
        mode &= 0o777;
        if made.gid() != old.gid() && fchown(new, None, Some(old.gid())).is_err() {
            // The group gets at most the rights of others.
            mode &= !0o070 | (mode & 0o007) << 3;
        }
    }
    new.set_permissions(Permissions::from_mode(mode))?;
    let mut acl = vec![0; 1 << 16];
    if let Some(Ok(len)) = open.map(|open| rustix::fs::fgetxattr(open, ACL, &mut acl[..])) {
        rustix::fs::fsetxattr(new, ACL, &acl[..len], XattrFlags::empty())?;
    }
    Ok(())
}

fn temporary_beside(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut prefix = OsString::from(".");
    prefix.push(target.file_name().unwrap_or_default());
    prefix.push(".");
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(parent_of(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &Path) -> Vec<OsString> {
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect()
    }

    #[test]
    fn the_name_appears_only_on_publish() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("image");
        let new = NewFile::create(&target).unwrap();
        new.file().write_all(b"whole").unwrap();
        assert!(!target.exists());
        new.publish(false, true).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"whole");
        drop(NewFile::create(&target).unwrap());
        assert_eq!(names(dir.path()), ["image"]);
    }

    #[test]
    fn an_existing_file_is_replaced_only_on_demand() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("image");
        std::fs::write(&target, b"old").unwrap();
        let refused = NewFile::create(&target).unwrap().publish(false, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        let new = NewFile::create(&target).unwrap();
        new.file().write_all(b"new").unwrap();
        new.publish(true, true).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["image"]);
    }

    /// In a container or a chroot without /proc, a build failed at its end: the file got no name.
    #[test]
    fn a_file_gets_its_name_without_proc() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("image");
        let new = NewFile::create_with(&target, "/no/such/directory").unwrap();
        new.file().write_all(b"whole").unwrap();
        assert!(!target.exists());
        assert_eq!(names(dir.path()).len(), 1);
        new.publish(false, false).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"whole");
        drop(NewFile::create_with(&target, "/no/such/directory").unwrap());
        assert_eq!(names(dir.path()), ["image"]);
    }

    #[test]
    fn the_new_file_has_mode_and_owner_of_the_one_it_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("image");
        std::fs::write(&target, b"old").unwrap();
        std::fs::set_permissions(&target, Permissions::from_mode(0o640)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(&target, Some(65534), Some(65533)).unwrap();
        }
        NewFile::create(&target).unwrap().publish(true, false).unwrap();
        let made = std::fs::metadata(&target).unwrap();
        assert_eq!((made.mode() & 0o7777, made.len()), (0o640, 0));
        assert!(!is_root || (made.uid(), made.gid()) == (65534, 65533));
    }

    #[test]
    fn a_file_that_another_program_writes_to_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("image");
        std::fs::write(&target, b"old").unwrap();
        let writer = crate::FileDevice::open_locked(&target).unwrap();
        let refused = NewFile::create(&target).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy, "{refused}");
        drop(writer);
        // No other program writes to it before the new file has its name.
        let new = NewFile::create(&target).unwrap();
        assert!(crate::FileDevice::open_locked(&target).is_err());
        new.publish(true, false).unwrap();
        crate::FileDevice::open_locked(&target).unwrap();
    }

    #[test]
    fn links_stay_and_what_they_lead_to_is_made_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("there/image"));
        std::os::unix::fs::symlink("there/image", &link).unwrap();
        for _ in 0..2 {
            NewFile::create(&link).unwrap().publish(true, false).unwrap();
            assert!(link.is_symlink() && target.is_file() && !target.is_symlink());
        }
        std::os::unix::fs::symlink("round", dir.path().join("round")).unwrap();
        assert!(NewFile::create(&dir.path().join("round")).is_err());

        if rustix::process::geteuid().is_root() {
            let shared = dir.path().join("shared");
            std::fs::create_dir(&shared).unwrap();
            std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
            std::os::unix::fs::symlink("../there/image", shared.join("trap")).unwrap();
            std::os::unix::fs::lchown(shared.join("trap"), Some(65534), Some(65534)).unwrap();
            let refused = NewFile::create(&shared.join("trap")).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        }
    }
}
