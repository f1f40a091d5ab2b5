//! The interface between a volume and a transport: requests in, values out, independent of any protocol.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use extant_base::Ino;
use extant_volume::{
    Allocate, Cursor, FileType, New, Permit, Rename, Seek, SetAttr, SetXattr, Shutdown, Stat, StatFs,
};

use crate::Opener;

/// Why a request was refused: the number that system calls return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// For root and the mounting user only.
    pub const PERM: Errno = Errno(1);
    /// No such file or directory.
    pub const NOENT: Errno = Errno(2);
    /// I/O error.
    pub const IO: Errno = Errno(5);
    /// No such device or address; for SEEK_DATA and SEEK_HOLE past the end.
    pub const NXIO: Errno = Errno(6);
    /// Invalid argument.
    pub const INVAL: Errno = Errno(22);
    /// Not an ioctl of this file.
    pub const NOTTY: Errno = Errno(25);
    /// No space left.
    pub const NOSPC: Errno = Errno(28);
    /// Read-only file system.
    pub const ROFS: Errno = Errno(30);
    /// The buffer is too small for the answer.
    pub const RANGE: Errno = Errno(34);
    /// Not implemented, and there is no need to ask again.
    pub const NOSYS: Errno = Errno(38);
    /// Not possible here.
    pub const OPNOTSUPP: Errno = Errno(95);
    /// No such attribute.
    pub const NODATA: Errno = Errno(61);
    /// No inode with this number any more.
    pub const STALE: Errno = Errno(116);
    /// The structure needs cleaning: the image is damaged there.
    pub const UCLEAN: Errno = Errno(117);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// One name of a directory, "." and ".." among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The inode it leads to.
    pub ino: Ino,
    /// Type in the directory entry; `None` if it has none.
    pub kind: Option<FileType>,
    /// 1 to 255 bytes.
    pub name: &'a [u8],
    /// The position behind this name.
    pub next: Cursor,
}

/// The caller, as far as an answer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id; root may see names of trusted attributes.
    pub uid: u32,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Bytes are going to be written.
    pub write: bool,
    /// Each write goes to the end (O_APPEND).
    pub append: bool,
}

/// A file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// For [`Serve::closed`]; other than 0 if it counts.
    pub handle: u64,
    /// The file may only be appended to, and is open for that: no page of it may be mapped for writing.
    pub appends_only: bool,
}

/// Everything that can be asked of a file system. Inode numbers are ext4's: the root is 2.
///
/// Implementations answer many threads at the same time, and an answer depends on no earlier request: a
/// transport may call in any order, twice, or never. One exception: an inode that lost its last name stays
/// for its users, until the transport reports the end of use ([`forget`](Self::forget)).
///
/// Changes are refused with [`Errno::ROFS`] by default.
pub trait Serve: Send + Sync + 'static {
    /// What `name` in the directory `dir` leads to; `None` if there is no such name.
    ///
    /// # Errors
    /// Not a directory, damage, or the device refused.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>, Errno>;

    /// The result of stat(2).
    ///
    /// # Errors
    /// No such inode, damage, or the device refused.
    fn stat(&self, ino: Ino) -> Result<Stat, Errno>;

    /// The smallest difference of two times that is kept: a power of ten nanoseconds, a second at most.
    fn time_granularity(&self) -> Duration {
        Duration::from_nanos(1)
    }

    /// A hint that these inodes (any order, any number) will be requested.
    fn prefetch(&self, _inos: &[Ino]) {}

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Not a symbolic link; as [`stat`](Self::stat).
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, Errno>;

    /// Opens a file, if it may be opened so. Asked only if [`asks_to_open`](Self::asks_to_open).
    ///
    /// # Errors
    /// No key for encrypted content; [`Errno::PERM`] for writing to what is immutable, or elsewhere than to
    /// the end of what is append-only; as [`stat`](Self::stat).
    fn open(&self, _ino: Ino, _access: Access) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    /// An open file was released.
    fn closed(&self, _ino: Ino, _handle: u64) {}

    /// A file is closed and may stay open: a process has two descriptors of it. Called for each close, with
    /// or without reported opens, if [`asks_to_close`](Self::asks_to_close).
    fn closing(&self, _ino: Ino) {}

    /// Is anything done at [`closing`](Self::closing)? If not, a transport can spare itself a request for
    /// each.
    fn asks_to_close(&self) -> bool {
        false
    }

    /// Are there files that cannot be opened, or do opens matter? If not, a transport can save two requests
    /// per file.
    fn asks_to_open(&self) -> bool {
        false
    }

    /// Reads from byte `offset` on; fewer bytes than `buf` holds only at the end of the file.
    ///
    /// # Errors
    /// A directory, no key for encrypted content; as [`stat`](Self::stat).
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Errno>;

    /// Zero-copy read of `len` bytes of content from `offset` on: `take` gets an open file and the offset of
    /// the bytes. False if they have to be [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn file_range(
        &self,
        _ino: Ino,
        _offset: u64,
        _len: u64,
        _take: &mut dyn FnMut(BorrowedFd<'_>, u64),
    ) -> Result<bool, Errno> {
        Ok(false)
    }

    /// Returns the names of a directory from `from` on until `each` breaks.
    ///
    /// # Errors
    /// Not a directory, nothing of it can be read.
    fn list(
        &self,
        dir: Ino,
        from: Cursor,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno>;

    /// The result of statfs(2).
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    fn stat_fs(&self) -> Result<StatFs, Errno>;

    /// What is known in memory of files' blocks, as the lines of the kernel's `es_shrinker_info`; `None`
    /// where nothing of it is kept.
    fn extents_told(&self) -> Option<String> {
        None
    }

    /// What was done to find free space, as the lines of the kernel's `mb_stats`; `None` where nothing is
    /// allocated.
    fn allocations_told(&self) -> Option<String> {
        None
    }

    /// The value of an extended attribute by its full name.
    ///
    /// # Errors
    /// [`Errno::NODATA`]; as [`stat`](Self::stat).
    fn xattr(&self, _ino: Ino, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::NODATA)
    }

    /// The full names of the extended attributes that `caller` may see.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    fn xattr_names(&self, _ino: Ino, _caller: Caller) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(Vec::new())
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Errno::NXIO`] past the end or when there is no more data; as [`stat`](Self::stat).
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno>;

    /// Can anything be changed? The answer is always the same.
    fn is_writable(&self) -> bool {
        false
    }

    /// Makes an inode with a name.
    ///
    /// # Errors
    /// The name exists or is too long, there is no space, the directory is full, immutable or gone.
    fn create(&self, _dir: Ino, _name: &[u8], _new: &New<'_>) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a regular file without a name, as O_TMPFILE does. It stays until it is [let go](Self::forget),
    /// or gets a name.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn create_unnamed(&self, _dir: Ino, _new: &New<'_>) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Writes into a regular file from byte `offset` on, which may lie behind its end; how many bytes: fewer
    /// only when there is no space for more. They need not be durable.
    ///
    /// # Errors
    /// No space, too large, immutable, no key for encrypted content; as [`stat`](Self::stat).
    fn write(&self, _permit: Permit, _ino: Ino, _offset: u64, _bytes: &[u8]) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    /// Copies bytes from one regular file to another, or inside of one, where the ranges are apart; how many:
    /// fewer at the end of the source, and when there is no space for more.
    ///
    /// # Errors
    /// Ranges that overlap; as [`read`](Self::read) and [`write`](Self::write).
    fn copy(&self, _permit: Permit, _from: (Ino, u64), _to: (Ino, u64), _len: u64) -> Result<u64, Errno> {
        Err(Errno::ROFS)
    }

    /// Changes which blocks a range of a regular file has.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Errno::OPNOTSUPP`] for what cannot be done to this file.
    fn allocate(&self, _ino: Ino, _how: Allocate, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// As [`create`](Self::create); a directory; too many names.
    fn link(&self, _ino: Ino, _dir: Ino, _name: &[u8]) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes a name. Returns the inode if it has none any more: it stays until it is [let
    /// go](Self::forget).
    ///
    /// # Errors
    /// No such name, a directory, immutable.
    fn unlink(&self, _dir: Ino, _name: &[u8]) -> Result<Option<Ino>, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes an empty directory. Returns and keeps it as [`unlink`](Self::unlink) does.
    ///
    /// # Errors
    /// No such name, not a directory, names in it, immutable.
    fn rmdir(&self, _dir: Ino, _name: &[u8]) -> Result<Option<Ino>, Errno> {
        Err(Errno::ROFS)
    }

    /// Moves a name. Returns the replaced inode if it has no name any more, and keeps it, as
    /// [`unlink`](Self::unlink) does.
    ///
    /// # Errors
    /// As rename(2).
    fn rename(&self, _from: (Ino, &[u8]), _to: (Ino, &[u8]), _how: Rename) -> Result<Option<Ino>, Errno> {
        Err(Errno::ROFS)
    }

    /// Changes attributes; returns all of them afterwards.
    ///
    /// # Errors
    /// A size of what has none, or too large; immutable.
    fn set_attr(&self, _ino: Ino, _set: &SetAttr) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Sets an extended attribute by its full name; ACLs as the system call has them.
    ///
    /// # Errors
    /// There already, or not there, as `how` asks; no space; not for this inode; not an ACL.
    fn set_xattr(&self, _ino: Ino, _name: &[u8], _value: &[u8], _how: SetXattr) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Removes an extended attribute by its full name. An ACL that is not there counts as removed.
    ///
    /// # Errors
    /// [`Errno::NODATA`]; immutable.
    fn remove_xattr(&self, _ino: Ino, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// The inode, which lost its last name, is no longer in use.
    fn forget(&self, _ino: Ino) {}

    /// The kernel dropped its last lookup of this inode: what is cached of it is unlikely to be needed soon.
    fn evict(&self, _ino: Ino) {}

    /// Makes what was done to an inode durable; for the root, all that was done. `data_only`: of the inode
    /// itself only what it takes to read its bytes.
    ///
    /// # Errors
    /// The device failed, now or before; or there was no space for earlier writes. An earlier error is
    /// returned once per opener.
    fn sync(&self, _ino: Ino, _opener: Opener, _data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Ends reading and writing for good: what is asked from now on is refused with [`Errno::IO`].
    ///
    /// # Errors
    /// What was to be made durable before could not be.
    fn shut_down(&self, _how: Shutdown) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// May this user take reserved blocks? `is_in_group` checks the user's groups; the transport knows
    /// capabilities.
    fn may_use_reserve(&self, _uid: u32, _is_in_group: &dyn Fn(u32) -> bool) -> bool {
        false
    }

    /// Was it [shut down](Self::shut_down)?
    fn is_shut_down(&self) -> bool {
        false
    }

    /// The label.
    ///
    /// # Errors
    /// There is none to be had.
    fn label(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::NOTTY)
    }

    /// The UUID.
    ///
    /// # Errors
    /// There is none to be had.
    fn uuid(&self) -> Result<[u8; 16], Errno> {
        Err(Errno::NOTTY)
    }

    /// Changes the label; it is durable then.
    ///
    /// # Errors
    /// Too long; the device refused.
    fn set_label(&self, _label: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Reports to the device which blocks in a range of its bytes are free, in runs of at least `min_bytes`:
    /// how many bytes that were.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for a range past the end, or shorter than a block; [`Errno::OPNOTSUPP`] where the
    /// device has no use for it.
    fn trim(&self, _range: Range<u64>, _min_bytes: u64) -> Result<u64, Errno> {
        Err(Errno::ROFS)
    }

    /// May this user shut it down, trim it and change its label?
    fn may_administer(&self, caller: Caller) -> bool {
        caller.uid == 0
    }
}
