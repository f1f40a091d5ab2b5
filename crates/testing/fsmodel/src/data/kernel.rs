//! The kernel's files behind the interface [`DataFs`].
//!
//! Owns: the system calls for each operation. Does **not** own: the mount. Files are called `f0`, `f1`, … and
//! stay open between operations, until [`Op::Reopen`].
//!
//! Some answers of the kernel (6.18) are wrong. This module corrects or avoids them:
//! * In a file without extents, and in one that outgrows its inode, the kernel reports data without blocks as
//!   a hole, or refuses with `ENOENT`. Such files are written back before each seek ([`Kernel::with`]).
//! * In a file whose bytes lie in its inode, the kernel refuses seeks after these bytes with `ENOENT`. The
//!   answer here is a hole.
//! * Fallocate moves such bytes into a block through the journal, and reads that block from the disk before
//!   the journal has written it home: bytes are lost. Before a fallocate, this module makes the file leave
//!   its inode and writes everything home ([`Kernel::with`]).
//! * The kernel reports the end of the file as data where unwritten blocks after the end share a page with it
//!   and the page was read.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno as Refused;

use super::{Answer, DataFs, Fallocate, Limits, Op, Whence, bytes_of, map_by_seeks};
use crate::errno::Errno;

/// `FALLOC_FL_WRITE_ZEROES` of Linux 6.17.
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// A directory of a mounted file system, and the files in it.
#[derive(Debug)]
pub struct Kernel {
    dir: PathBuf,
    open: BTreeMap<u8, OwnedFd>,
    /// Whether to write files back before each seek.
    writes_back: bool,
    /// Whether to make files leave their inodes before each fallocate.
    leaves_inode: bool,
}

impl Kernel {
    /// The files of an existing directory, unchanged.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), open: BTreeMap::new(), writes_back: false, leaves_inode: false }
    }

    /// Creates a directory below `parent`; `number` is part of its name.
    ///
    /// # Errors
    /// The directory exists or cannot be created.
    pub fn fresh(parent: &Path, number: u64) -> Result<Self, Errno> {
        let dir = parent.join(format!("files-{number}"));
        rustix::fs::mkdirat(CWD, &dir, Mode::from_raw_mode(0o755))?;
        Ok(Self::new(&dir))
    }

    /// Turns on the workarounds that this kind of file system needs.
    #[must_use]
    pub fn with(self, limits: Limits) -> Self {
        let writes_back = !limits.extents || limits.inline_data;
        Self { writes_back, leaves_inode: limits.inline_data, ..self }
    }

    /// The directory of the files.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    fn path_of(&self, file: u8) -> PathBuf {
        self.dir.join(format!("f{file}"))
    }

    fn opened(&mut self, file: u8) -> Result<&OwnedFd, Refused> {
        if !self.open.contains_key(&file) {
            let fd = rustix::fs::open(self.path_of(file), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            self.open.insert(file, fd);
        }
        Ok(&self.open[&file])
    }

    /// Writes a file back and drops its pages.
    fn forget(fd: &OwnedFd) -> Result<(), Refused> {
        rustix::fs::fsync(fd)?;
        rustix::fs::fadvise(fd, 0, None, Advice::DontNeed)
    }

    fn call(&mut self, op: &Op) -> Result<Answer, Refused> {
        match *op {
            Op::Create { file } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let fd = rustix::fs::open(self.path_of(file), flags, Mode::from_raw_mode(0o644))?;
                self.open.insert(file, fd);
            }
            Op::Unlink { file } => {
                rustix::fs::unlinkat(CWD, self.path_of(file), AtFlags::empty())?;
                self.open.remove(&file);
            }
            Op::Write { file, pos, len, seed } => {
                let fd = self.opened(file)?;
                let n = rustix::io::pwrite(fd, &bytes_of(seed, pos, len), pos)?;
                return Ok(Answer::Count(n as u64));
            }
            Op::Read { file, pos, len } => {
                let mut bytes = vec![0xee; usize::try_from(len).map_err(|_| Refused::INVAL)?];
                let n = rustix::io::pread(self.opened(file)?, &mut bytes[..], pos)?;
                bytes.truncate(n);
                return Ok(Answer::Bytes(bytes));
            }
            // The type of the C library cannot carry it. The kernel refuses a negative size with `EINVAL`.
            Op::Truncate { size, .. } if size > i64::MAX as u64 => return Err(Refused::INVAL),
            Op::Truncate { file, size } => rustix::fs::ftruncate(self.opened(file)?, size)?,
            Op::Fallocate { file, mode, pos, len } => {
                let leaves_inode = self.leaves_inode;
                let fd = self.opened(file)?;
                if leaves_inode {
                    rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, 0, 1)?;
                    rustix::fs::syncfs(fd)?;
                    rustix::fs::fadvise(fd, 0, None, Advice::DontNeed)?;
                }
                rustix::fs::fallocate(fd, flags_of(mode), pos, len)?;
            }
            Op::Seek { file, whence, pos } => {
                let writes_back = self.writes_back;
                let fd = self.opened(file)?;
                if writes_back {
                    rustix::fs::fsync(fd)?;
                }
                return seek(fd, whence, pos).map(Answer::Place);
            }
            Op::Stat { file } => {
                let stat = rustix::fs::fstat(self.opened(file)?)?;
                return Ok(Answer::Size(stat.st_size.cast_unsigned()));
            }
            Op::Fsync { file } => rustix::fs::fsync(self.opened(file)?)?,
            Op::Fdatasync { file } => rustix::fs::fdatasync(self.opened(file)?)?,
            Op::Map { file } => {
                let fd = self.opened(file)?;
                Self::forget(fd)?;
                let ranges = map_by_seeks(|whence, pos| Ok(seek(fd, whence, pos)?));
                return ranges.map(Answer::Ranges).map_err(|errno| Refused::from_raw_os_error(errno.0));
            }
            Op::Reopen => {
                for fd in std::mem::take(&mut self.open).into_values() {
                    Self::forget(&fd)?;
                }
            }
        }
        Ok(Answer::Done)
    }
}

fn seek(fd: &OwnedFd, whence: Whence, pos: u64) -> Result<u64, Refused> {
    let to = match whence {
        Whence::Data => SeekFrom::Data(pos),
        Whence::Hole => SeekFrom::Hole(pos),
    };
    match (whence, rustix::fs::seek(fd, to)) {
        (Whence::Data, Ok(place)) if place >= rustix::fs::fstat(fd)?.st_size.cast_unsigned() => {
            Err(Refused::NXIO)
        }
        (Whence::Data, Err(Refused::NOENT)) => Err(Refused::NXIO),
        (Whence::Hole, Err(Refused::NOENT)) => Ok(pos),
        (_, answer) => answer,
    }
}

fn flags_of(mode: Fallocate) -> FallocateFlags {
    match mode {
        Fallocate::Reserve => FallocateFlags::empty(),
        Fallocate::Keep => FallocateFlags::KEEP_SIZE,
        Fallocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::Zero => FallocateFlags::ZERO_RANGE,
        Fallocate::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        Fallocate::Collapse => FallocateFlags::COLLAPSE_RANGE,
        Fallocate::Insert => FallocateFlags::INSERT_RANGE,
        Fallocate::WriteZeroes => WRITE_ZEROES,
        Fallocate::Unshare => FallocateFlags::UNSHARE_RANGE,
    }
}

impl DataFs for Kernel {
    fn apply(&mut self, op: &Op) -> Result<Answer, Errno> {
        Ok(self.call(op)?)
    }
}
