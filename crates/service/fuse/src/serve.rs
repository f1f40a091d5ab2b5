//! The trait [`Serve`]: the operations of a file system, by inode number, independent of any protocol. The
//! transport calls it; [`Server`](crate::Server) implements it on a volume, and tests and benchmarks
//! implement it without one.
//!
//! Invariant: nothing here refers to FUSE.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use extant_base::Ino;
use extant_volume::{
    Allocate, Cursor, FileType, New, Rename, Seek, SetAttr, SetXattr, Shutdown, Stat, StatFs, WriteAccess,
};

use crate::Opener;
use crate::status::ServerStatus;

/// The errno of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const PERM: Errno = Errno(1);
    /// No such file or directory.
    pub const NOENT: Errno = Errno(2);
    /// I/O error.
    pub const IO: Errno = Errno(5);
    /// No such device or address; of SEEK_DATA and SEEK_HOLE: the offset is past the end.
    pub const NXIO: Errno = Errno(6);
    /// In use.
    pub const BUSY: Errno = Errno(16);
    /// Invalid argument.
    pub const INVAL: Errno = Errno(22);
    /// Not an ioctl of this file system.
    pub const NOTTY: Errno = Errno(25);
    /// No space left.
    pub const NOSPC: Errno = Errno(28);
    /// Read-only file system.
    pub const ROFS: Errno = Errno(30);
    /// The buffer is too small for the result.
    pub const RANGE: Errno = Errno(34);
    /// Not implemented. The kernel sends no more requests of this kind.
    pub const NOSYS: Errno = Errno(38);
    /// Operation not supported.
    pub const OPNOTSUPP: Errno = Errno(95);
    /// No such attribute.
    pub const NODATA: Errno = Errno(61);
    /// Stale file handle: there is no inode with this number.
    pub const STALE: Errno = Errno(116);
    /// Structure needs cleaning: the image is damaged.
    pub const UCLEAN: Errno = Errno(117);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// A name in a directory listing, which includes "." and "..".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// Its inode.
    pub ino: Ino,
    /// The type in the directory entry; `None` without the feature `filetype`.
    pub kind: Option<FileType>,
    /// 1 to 255 bytes.
    pub name: &'a [u8],
    /// The position after this name.
    pub next: Cursor,
}

/// The caller of an operation whose result depends on the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// For writing.
    pub write: bool,
    /// Each write appends (O_APPEND).
    pub append: bool,
}

/// The result of [`Serve::open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// A number for [`Serve::release`] and [`Serve::sync`], below 2^62; 0 if opens are not tracked.
    pub handle: u64,
    /// An append-only file is open for writing, so the kernel must not map it for writing.
    pub appends_only: bool,
    /// A file whose writes are durable when they return (`chattr +S`) is open for writing, so the kernel must
    /// not buffer them.
    pub is_sync: bool,
}

/// The operations of a file system. Inode numbers are ext4's: the root is 2.
///
/// Many threads call an implementation at the same time. It keeps no state between calls, except for:
///
/// - inodes that lost their last name: they live until [`forget`](Self::forget);
/// - open files, if [`tracks_opens`](Self::tracks_opens): they are open until [`release`](Self::release).
///
/// By default, changes fail with [`Errno::ROFS`].
pub trait Serve: Send + Sync + 'static {
    /// The inode with this name in the directory `dir`; `None` if there is no such name.
    ///
    /// # Errors
    /// Not a directory, damage, a device error.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>, Errno>;

    /// The result of stat(2).
    ///
    /// # Errors
    /// No such inode, damage, a device error.
    fn stat(&self, ino: Ino) -> Result<Stat, Errno>;

    /// The granularity of stored times: a power of ten, from a nanosecond to a second.
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

    /// Opens a file. Called only if [`tracks_opens`](Self::tracks_opens).
    ///
    /// # Errors
    /// No key for encrypted content; [`Errno::PERM`] for writing to an immutable file, or for writing without
    /// O_APPEND to an append-only file; as [`stat`](Self::stat).
    fn open(&self, _ino: Ino, _access: Access) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    /// The last descriptor of an open file was closed.
    fn release(&self, _ino: Ino, _handle: u64) {}

    /// A descriptor of a file is being closed; others may remain. Called for each close(2) if
    /// [`tracks_closes`](Self::tracks_closes), whether opens are tracked or not.
    fn flush(&self, _ino: Ino) {}

    /// Returns whether [`flush`](Self::flush) does anything. If not, the transport saves one request per
    /// close.
    fn tracks_closes(&self) -> bool {
        false
    }

    /// Returns whether [`open`](Self::open) and [`release`](Self::release) must be called. If not, the
    /// transport saves two requests per open file.
    fn tracks_opens(&self) -> bool {
        false
    }

    /// From now on, the kernel keeps the times of files that it buffers, and sets them: writes from its
    /// cache, fallocate and copies leave times alone. Called before the first request.
    fn leave_times(&self) {}

    /// Reads from byte `offset` on. Returns fewer bytes than `buf` has only at the end of the file.
    ///
    /// # Errors
    /// A directory, no key for encrypted content; as [`stat`](Self::stat).
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Errno>;

    /// Zero-copy read: passes to `take` a descriptor and an offset at which it has `len` bytes of the content
    /// from `offset` on. Returns false if these bytes have to be [`read`](Self::read).
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

    /// Passes the names of a directory from the position `from` on to `each`, until `each` breaks.
    ///
    /// # Errors
    /// Not a directory; the directory cannot be read at all.
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

    /// Counters and the state of the volume; `None` if there are none.
    fn status(&self) -> Option<ServerStatus> {
        None
    }

    /// Statistics of the extent-status cache, in the form of the kernel's `es_shrinker_info`; `None` if there
    /// is no such cache.
    fn extent_cache_stats(&self) -> Option<String> {
        None
    }

    /// Statistics of the block allocator, in the form of the kernel's `mb_stats`; `None` if there is no
    /// allocator.
    fn allocator_stats(&self) -> Option<String> {
        None
    }

    /// The value of an extended attribute by its full name.
    ///
    /// # Errors
    /// [`Errno::NODATA`]; as [`stat`](Self::stat).
    fn xattr(&self, _ino: Ino, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::NODATA)
    }

    /// The full names of the extended attributes that the caller may see: `trusted.*` only if `is_root`.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    fn xattr_names(&self, _ino: Ino, _is_root: &dyn Fn() -> bool) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(Vec::new())
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Errno::NXIO`] past the end or when there is no more data; as [`stat`](Self::stat).
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno>;

    /// Returns whether the file system can be changed. The result never changes.
    fn is_writable(&self) -> bool {
        false
    }

    /// Creates an inode with a name.
    ///
    /// # Errors
    /// The name exists or is too long; no space; the directory is full, immutable or deleted.
    fn create(&self, _dir: Ino, _name: &[u8], _new: &New<'_>) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Creates a regular file without a name (O_TMPFILE). It lives until [`forget`](Self::forget), unless it
    /// gets a name.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn create_unnamed(&self, _dir: Ino, _new: &New<'_>) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Writes to a regular file from byte `offset` on, which may be after its end. Returns how many bytes
    /// were written: fewer than given only if there is no space for more. They are not durable yet.
    ///
    /// # Errors
    /// No space; the file would be too large; immutable; no key for encrypted content; as
    /// [`stat`](Self::stat).
    fn write(&self, _permit: WriteAccess, _ino: Ino, _offset: u64, _bytes: &[u8]) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    /// Copies bytes between regular files, or between ranges of a file that do not overlap. Returns how many
    /// bytes were copied: fewer than given at the end of the source, and if there is no space for more.
    ///
    /// # Errors
    /// The ranges overlap; as [`read`](Self::read) and [`write`](Self::write).
    fn copy(
        &self,
        _permit: WriteAccess,
        _from: (Ino, u64),
        _to: (Ino, u64),
        _len: u64,
    ) -> Result<u64, Errno> {
        Err(Errno::ROFS)
    }

    /// fallocate(2): changes the allocation of a range of a regular file.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Errno::OPNOTSUPP`] if this file does not support the mode.
    fn allocate(&self, _ino: Ino, _how: Allocate, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// As [`create`](Self::create); the inode is a directory, or has too many links.
    fn link(&self, _ino: Ino, _dir: Ino, _name: &[u8]) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes a name. If it was the last name of its inode, returns the inode, which lives until
    /// [`forget`](Self::forget).
    ///
    /// # Errors
    /// No such name; a directory; immutable.
    fn unlink(&self, _dir: Ino, _name: &[u8]) -> Result<Option<Ino>, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes an empty directory. Returns its inode, as [`unlink`](Self::unlink) does.
    ///
    /// # Errors
    /// No such name; not a directory; not empty; immutable.
    fn rmdir(&self, _dir: Ino, _name: &[u8]) -> Result<Option<Ino>, Errno> {
        Err(Errno::ROFS)
    }

    /// Moves a name. If this removed the last name of a replaced inode, returns that inode, as
    /// [`unlink`](Self::unlink) does.
    ///
    /// # Errors
    /// As rename(2).
    fn rename(&self, _from: (Ino, &[u8]), _to: (Ino, &[u8]), _how: Rename) -> Result<Option<Ino>, Errno> {
        Err(Errno::ROFS)
    }

    /// Changes attributes. Returns all attributes after the change.
    ///
    /// # Errors
    /// A new size for an inode that is not a regular file, or a size that is too large; immutable.
    fn set_attr(&self, _ino: Ino, _set: &SetAttr) -> Result<Stat, Errno> {
        Err(Errno::ROFS)
    }

    /// Sets an extended attribute by its full name. An ACL has the format of setxattr(2).
    ///
    /// # Errors
    /// The attribute exists or does not exist, contrary to `how`; no space; not permitted for this type of
    /// inode; an invalid ACL.
    fn set_xattr(&self, _ino: Ino, _name: &[u8], _value: &[u8], _how: SetXattr) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Removes an extended attribute by its full name.
    ///
    /// # Errors
    /// [`Errno::NODATA`] if there is none, except for ACLs; immutable.
    fn remove_xattr(&self, _ino: Ino, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// An inode without names is no longer in use: releases it.
    fn forget(&self, _ino: Ino) {}

    /// A hint that the kernel has forgotten this inode, so its cached state is not likely to be needed soon.
    fn evict(&self, _ino: Ino) {}

    /// Makes the changes of an inode durable; for the root, all changes. `data_only`: fdatasync(2), of the
    /// inode only what is needed to read the data.
    ///
    /// # Errors
    /// The device failed, now or in earlier writeback; no space for earlier writes. An earlier error is
    /// returned once per opener.
    fn sync(&self, _ino: Ino, _opener: Opener, _data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Shuts the file system down: all further operations fail with [`Errno::IO`].
    ///
    /// # Errors
    /// Changes could not be made durable before.
    fn shut_down(&self, _how: Shutdown) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Returns whether there is space for `bytes` of new data, for an operation of this thread
    /// ([`Acting`](extant_volume::Acting)).
    ///
    /// # Errors
    /// A device error.
    fn has_space(&self, _bytes: u64) -> Result<bool, Errno> {
        Ok(true)
    }

    /// Returns whether this user may use reserved blocks. `is_in_group` checks the user's groups. The
    /// transport checks capabilities itself.
    fn may_use_reserve(&self, _uid: u32, _is_in_group: &dyn Fn(u32) -> bool) -> bool {
        false
    }

    /// Returns whether the file system was [shut down](Self::shut_down).
    fn is_shut_down(&self) -> bool {
        false
    }

    /// The label of the file system.
    ///
    /// # Errors
    /// [`Errno::NOTTY`] if the file system has no labels.
    fn label(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::NOTTY)
    }

    /// The UUID of the file system.
    ///
    /// # Errors
    /// [`Errno::NOTTY`] if the file system has none.
    fn uuid(&self) -> Result<[u8; 16], Errno> {
        Err(Errno::NOTTY)
    }

    /// Changes the label, and makes the change durable.
    ///
    /// # Errors
    /// The label is too long; the device failed.
    fn set_label(&self, _label: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Changes the UUID, and makes the change durable.
    ///
    /// # Errors
    /// [`Errno::OPNOTSUPP`] if other things depend on the UUID; the device failed.
    fn set_uuid(&self, _uuid: [u8; 16]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// EXT4_IOC_RESIZE_FS: gives the file system this number of blocks. Other operations wait meanwhile.
    ///
    /// # Errors
    /// [`Errno::OPNOTSUPP`] if it cannot change its size; [`Errno::BUSY`] while removed files are in use;
    /// [`Errno::INVAL`] for an impossible size; [`Errno::NOSPC`] if the device cannot be so large, or what is
    /// in use does not fit.
    fn resize(&self, _blocks: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// FITRIM: discards the free blocks in a range of bytes of the device, in runs of at least `min_bytes`.
    /// Returns the number of discarded bytes.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for a range past the end or shorter than a block, or if `min_bytes` is more than a
    /// group; [`Errno::OPNOTSUPP`] if the device does not support discards.
    fn trim(&self, _range: Range<u64>, _min_bytes: u64) -> Result<u64, Errno> {
        Err(Errno::ROFS)
    }

    /// May this user shut down, trim, resize and label the file system, and read its [status](Self::status)?
    fn may_administer(&self, caller: Caller) -> bool {
        caller.uid == 0
    }
}
