//! Open file systems: opening, closing, and reading by paths.

use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use facade::{FileSystem, OpenOptions};

use crate::border::{Array, ErrorOut, Handle, Out, Text, call, fill};
use crate::error::Failure;
use crate::stat::{StatOut, StatfsOut};
use crate::storage::{Storage, as_device};

/// An open file system. Closed with extant_fs_close().
pub struct extant_fs {
    pub(crate) fs: FileSystem,
}

pub type FsHandle = Handle<extant_fs>;
pub type FsOut = Out<*mut extant_fs>;
pub type BoolOut = Out<bool>;
pub type SizeOut = Out<usize>;
pub type OutText = Array<u8>;

impl FsHandle {
    pub(crate) fn fs(&self) -> Result<&FileSystem, Failure> {
        Ok(&self.get("fs")?.fs)
    }
}

/// For extant_fs_open_storage(): open for reading and writing.
pub const EXTANT_OPEN_WRITABLE: u32 = 1;

/// Opens an image file or block device for reading. It is never written: a journal that needs replay is
/// replayed in memory.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_open(image: Text, fs: FsOut, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.clear("fs")?;
        fs.give(extant_fs { fs: FileSystem::open(image.path()?)? });
        Ok(())
    })
}

/// Opens an image file or block device for reading and writing. Replays a journal that needs it first. There
/// is one writer at a time: a second one gets EBUSY.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_open_writable(image: Text, fs: FsOut, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.clear("fs")?;
        fs.give(extant_fs { fs: FileSystem::open_writable(image.path()?)? });
        Ok(())
    })
}

/// Opens a file system on the caller's storage. `flags` is 0 or EXTANT_OPEN_WRITABLE. The caller ensures that
/// there is one writer.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_open_storage(storage: Storage, flags: u32, fs: FsOut, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.clear("fs")?;
        let is_writable = match flags {
            0 => false,
            EXTANT_OPEN_WRITABLE => true,
            _ => return Err(Failure::argument(format!("unknown flags {flags:#x}"))),
        };
        let device = Arc::new(as_device(&storage, is_writable)?);
        let options = OpenOptions::default();
        let opened = match is_writable {
            true => FileSystem::from_device_writable(device, &options)?,
            false => FileSystem::from_device(device, &options)?,
        };
        fs.give(extant_fs { fs: opened });
        Ok(())
    })
}

/// Makes all changes durable, and closes the file system. The handle is freed even if an error is returned;
/// NULL is allowed. The image is left clean if all its files and directories are closed already. Otherwise
/// they stay usable, and the next writer replays the journal.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_close(fs: Option<Box<extant_fs>>, error: ErrorOut) -> c_int {
    call(&error, || match fs {
        Some(fs) => Ok(fs.fs.close()?),
        None => Ok(()),
    })
}

/// Makes all changes so far durable. Does nothing if the file system is open for reading.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_sync(fs: FsHandle, error: ErrorOut) -> c_int {
    call(&error, || Ok(fs.fs()?.sync()?))
}

/// The attributes of the inode at a path. Symbolic links are followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_stat(fs: FsHandle, path: Text, stat: StatOut, error: ErrorOut) -> c_int {
    call(&error, || {
        stat.require("stat")?;
        stat.set((&fs.fs()?.metadata(path.path()?)?).into());
        Ok(())
    })
}

/// The attributes of the inode at a path. A symbolic link at its end is not followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_lstat(fs: FsHandle, path: Text, stat: StatOut, error: ErrorOut) -> c_int {
    call(&error, || {
        stat.require("stat")?;
        stat.set((&fs.fs()?.symlink_metadata(path.path()?)?).into());
        Ok(())
    })
}

/// Whether a path exists. Symbolic links are followed, so a dangling one does not exist.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_exists(fs: FsHandle, path: Text, exists: BoolOut, error: ErrorOut) -> c_int {
    call(&error, || {
        exists.require("exists")?;
        exists.set(fs.fs()?.exists(path.path()?)?);
        Ok(())
    })
}

/// The target of a symbolic link, with a NUL after it. `len`, which may be NULL, receives its length without
/// the NUL. With a capacity of 0 nothing else is done; ERANGE if the target does not fit.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_read_link(
    fs: FsHandle,
    path: Text,
    mut target: OutText,
    capacity: usize,
    len: SizeOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let found = fs.fs()?.read_link(path.path()?)?;
        // SAFETY: `target` and `capacity` belong together.
        let buffer = unsafe { target.slice_mut(capacity, "target") }?;
        fill(found.as_os_str().as_bytes(), buffer, &len, true)
    })
}

/// Space and inodes of the file system.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_statfs(fs: FsHandle, statfs: StatfsOut, error: ErrorOut) -> c_int {
    call(&error, || {
        statfs.require("statfs")?;
        statfs.set(fs.fs()?.statfs()?.into());
        Ok(())
    })
}
