//! A file that appears under its name only when it is complete.
//!
//! The bytes go to a file without a name in the target's directory (`O_TMPFILE`), or, where the file system has no such
//! thing, to one with a random name. [`NewFile::publish`] gives it the name in one step. A crash, an error or a kill
//! before that leaves nothing under the name, and with `O_TMPFILE` nothing at all.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// A file being written that has not got its name yet.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    target: PathBuf,
    /// The random name, where there is one; removed on drop.
    named: Option<tempfile::TempPath>,
}

impl NewFile {
    /// Starts a file that is to be called `target`.
    ///
    /// # Errors
    /// When the directory does not exist or may not be written, or the target exists and is no regular file.
    pub fn create(target: &Path) -> io::Result<Self> {
        // A symlink stands for what it points to; anything but a regular file must not be replaced by one.
        let target = &std::fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        if std::fs::symlink_metadata(target).is_ok_and(|metadata| !metadata.is_file()) {
            let why = "there is something else than a regular file under this name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let dir = match target.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let mode = Mode::from_raw_mode(0o644);
        match rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
            Ok(fd) => Ok(Self { file: fd.into(), target: target.to_owned(), named: None }),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {
                let (file, named) = temporary_beside(target)?.into_parts();
                Ok(Self { file, target: target.to_owned(), named: Some(named) })
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name. With `replace`, an existing file of that name is replaced in one step; with `durable`,
    /// the name itself survives a power cut.
    ///
    /// # Errors
    /// `AlreadyExists` when there is one and `replace` is false; else the system's reason. Nothing is left behind.
    pub fn publish(self, replace: bool, durable: bool) -> io::Result<()> {
        let dir = self.target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = if durable { Some(File::open(dir)?) } else { None };
        self.give_name(replace)?;
        dir.map_or(Ok(()), |dir| dir.sync_all())
    }

    fn give_name(self, replace: bool) -> io::Result<()> {
        let Self { file, target, named } = self;
        if let Some(named) = named {
            return if replace {
                named.persist(&target).map_err(|e| e.error)
            } else {
                named.persist_noclobber(&target).map_err(|e| e.error)
            };
        }
        let unnamed = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let link = |to: &Path| rustix::fs::linkat(CWD, unnamed.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&target) {
            Err(rustix::io::Errno::EXIST) if replace => {
                // A link cannot replace: link under a random name, then rename over the target.
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

fn temporary_beside(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    let mut prefix = OsString::from(".");
    prefix.push(target.file_name().unwrap_or_default());
    prefix.push(".");
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".partial")
        .permissions(std::fs::Permissions::from_mode(0o644))
        .tempfile_in(dir)
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
}
