//! The working directory of one worker: in a volume in process, or in the system's file tree.

use std::os::fd::OwnedFd;

use extant_base::Ino;
use extant_volume::{Fault, New, SetAttr, Volume};
use rustix::fs::{AtFlags, FileType as SystemType, Mode, OFlags};
use rustix::io::Errno;

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {name}: {says} (errno {errno})")]
pub struct Failed {
    /// The operation.
    pub operation: &'static str,
    /// The name that it was applied to.
    pub name: String,
    /// The errno that a system call would return.
    pub errno: i32,
    /// The error as text.
    pub says: String,
}

/// The working directory of one worker. Names are relative to it, and have one component.
pub trait WorkDir: Send + Sized {
    /// An open file.
    type File: Send;

    /// As open(2) with O_CREAT and O_RDWR, mode 0644.
    ///
    /// # Errors
    /// The operation failed.
    fn open(&mut self, name: &[u8]) -> Result<Self::File, Failed>;

    /// As close(2).
    ///
    /// # Errors
    /// The operation failed.
    fn close(&mut self, file: Self::File) -> Result<(), Failed>;

    /// As mknod(2) of a regular file, mode 0444.
    ///
    /// # Errors
    /// The operation failed.
    fn mknod(&mut self, name: &[u8]) -> Result<(), Failed>;

    /// As mkdir(2), mode 0755.
    ///
    /// # Errors
    /// The operation failed.
    fn mkdir(&mut self, name: &[u8]) -> Result<(), Failed>;

    /// As link(2); both names are in this directory.
    ///
    /// # Errors
    /// The operation failed.
    fn link(&mut self, target: &[u8], name: &[u8]) -> Result<(), Failed>;

    /// As unlink(2).
    ///
    /// # Errors
    /// The operation failed.
    fn unlink(&mut self, name: &[u8]) -> Result<(), Failed>;

    /// As rmdir(2).
    ///
    /// # Errors
    /// The operation failed.
    fn rmdir(&mut self, name: &[u8]) -> Result<(), Failed>;

    /// As ftruncate(2).
    ///
    /// # Errors
    /// The operation failed.
    fn set_size(&mut self, file: &Self::File, size: u64) -> Result<(), Failed>;

    /// Hint: operations on these names come next.
    fn prefetch_names(&self, _names: &[Vec<u8>]) {}

    /// The working directory of another worker: a subdirectory of this one, created if it does not exist.
    ///
    /// # Errors
    /// The operation failed.
    fn below(&mut self, name: &[u8]) -> Result<Self, Failed>;
}

/// A directory of a volume, in process.
pub struct Engine<'a> {
    volume: &'a Volume,
    dir: Ino,
    /// The last link target: createmany gives one file very many names.
    target: Option<(Vec<u8>, Ino)>,
}

impl<'a> Engine<'a> {
    /// The directory with this inode number.
    #[must_use]
    pub fn new(volume: &'a Volume, dir: Ino) -> Self {
        Self { volume, dir, target: None }
    }

    /// The root directory of a volume.
    #[must_use]
    pub fn root(volume: &'a Volume) -> Self {
        Self::new(volume, Ino::ROOT)
    }

    /// The directory's inode number.
    #[must_use]
    pub fn dir(&self) -> Ino {
        self.dir
    }

    fn find(&self, name: &[u8]) -> Result<Ino, Fault> {
        let dir = self.volume.inode(self.dir)?;
        Ok(self.volume.names().lookup(&dir, name)?.ino())
    }
}

fn refused<T>(done: Result<T, Fault>, operation: &'static str, name: &[u8]) -> Result<T, Failed> {
    done.map_err(|fault| Failed {
        operation,
        name: name.escape_ascii().to_string(),
        errno: fault.errno(),
        says: fault.to_string(),
    })
}

impl WorkDir for Engine<'_> {
    type File = Ino;

    fn open(&mut self, name: &[u8]) -> Result<Self::File, Failed> {
        let open = || {
            let ino = match self.volume.names().create(self.dir, name, &New::file(0o644)) {
                Ok(inode) => inode.ino(),
                Err(fault) if fault.is(extant_volume::Refusal::Exists) => self.find(name)?,
                Err(fault) => return Err(fault),
            };
            self.volume.opened(ino)?;
            Ok(ino)
        };
        refused(open(), "open", name)
    }

    fn close(&mut self, file: Self::File) -> Result<(), Failed> {
        refused(self.volume.released(file), "close", b"")
    }

    fn mknod(&mut self, name: &[u8]) -> Result<(), Failed> {
        refused(self.volume.names().create_number(self.dir, name, &New::file(0o444)).map(drop), "mknod", name)
    }

    fn mkdir(&mut self, name: &[u8]) -> Result<(), Failed> {
        refused(
            self.volume.names().create_number(self.dir, name, &New::directory(0o755)).map(drop),
            "mkdir",
            name,
        )
    }

    fn link(&mut self, target: &[u8], name: &[u8]) -> Result<(), Failed> {
        let ino = match &self.target {
            Some((known, ino)) if known == target => *ino,
            _ => {
                let ino = refused(self.find(target), "link", target)?;
                self.target = Some((target.to_vec(), ino));
                ino
            }
        };
        refused(self.volume.names().link(ino, self.dir, name), "link", name)
    }

    fn unlink(&mut self, name: &[u8]) -> Result<(), Failed> {
        if self.target.as_ref().is_some_and(|(target, _)| target == name) {
            self.target = None;
        }
        refused(self.volume.names().unlink(self.dir, name), "unlink", name)
    }

    fn rmdir(&mut self, name: &[u8]) -> Result<(), Failed> {
        refused(self.volume.names().rmdir(self.dir, name), "rmdir", name)
    }

    fn set_size(&mut self, file: &Self::File, size: u64) -> Result<(), Failed> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        refused(self.volume.attributes().set_attr(*file, &set).map(drop), "ftruncate", b"")
    }

    fn prefetch_names(&self, names: &[Vec<u8>]) {
        self.volume.names().prefetch_names(self.dir, names.iter().map(Vec::as_slice));
    }

    fn below(&mut self, name: &[u8]) -> Result<Self, Failed> {
        let dir = match self.volume.names().create(self.dir, name, &New::directory(0o755)) {
            Ok(inode) => Ok(inode.ino()),
            Err(fault) if fault.is(extant_volume::Refusal::Exists) => self.find(name),
            Err(fault) => Err(fault),
        };
        Ok(Self::new(self.volume, refused(dir, "mkdir", name)?))
    }
}

/// A directory in the system's file tree.
#[derive(Debug)]
pub struct Kernel {
    dir: OwnedFd,
}

impl Kernel {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// The directory does not exist, or cannot be opened.
    pub fn at(path: &std::path::Path) -> Result<Self, Failed> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self { dir: with_context(dir, "open", path.to_string_lossy().as_bytes())? })
    }
}

fn with_context<T>(done: Result<T, Errno>, operation: &'static str, name: &[u8]) -> Result<T, Failed> {
    done.map_err(|errno| Failed {
        operation,
        name: name.escape_ascii().to_string(),
        errno: errno.raw_os_error(),
        says: std::io::Error::from(errno).to_string(),
    })
}

impl WorkDir for Kernel {
    type File = OwnedFd;

    fn open(&mut self, name: &[u8]) -> Result<Self::File, Failed> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.dir, name, flags, Mode::from(0o644));
        with_context(opened, "open", name)
    }

    fn close(&mut self, file: Self::File) -> Result<(), Failed> {
        drop(file);
        Ok(())
    }

    fn mknod(&mut self, name: &[u8]) -> Result<(), Failed> {
        let mode = Mode::from(0o444);
        with_context(rustix::fs::mknodat(&self.dir, name, SystemType::RegularFile, mode, 0), "mknod", name)
    }

    fn mkdir(&mut self, name: &[u8]) -> Result<(), Failed> {
        with_context(rustix::fs::mkdirat(&self.dir, name, Mode::from(0o755)), "mkdir", name)
    }

    fn link(&mut self, target: &[u8], name: &[u8]) -> Result<(), Failed> {
        with_context(rustix::fs::linkat(&self.dir, target, &self.dir, name, AtFlags::empty()), "link", name)
    }

    fn unlink(&mut self, name: &[u8]) -> Result<(), Failed> {
        with_context(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()), "unlink", name)
    }

    fn rmdir(&mut self, name: &[u8]) -> Result<(), Failed> {
        with_context(rustix::fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR), "rmdir", name)
    }

    fn set_size(&mut self, file: &Self::File, size: u64) -> Result<(), Failed> {
        with_context(rustix::fs::ftruncate(file, size), "ftruncate", b"")
    }

    fn below(&mut self, name: &[u8]) -> Result<Self, Failed> {
        let made = rustix::fs::mkdirat(&self.dir, name, Mode::from(0o755));
        if made != Err(Errno::EXIST) {
            with_context(made, "mkdir", name)?;
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = with_context(rustix::fs::openat(&self.dir, name, flags, Mode::empty()), "open", name)?;
        Ok(Self { dir })
    }
}
