//! Open regular files.

use std::ffi::c_int;

use facade::{Fault, File};

use crate::border::{ErrorOut, Handle, Out, Text, call, quietly};
use crate::error::Failure;
use crate::fs::{FsHandle, SizeOut};
use crate::stat::StatOut;
use crate::xattr::{InBytes, OutBytes};

/// An open regular file. Closed with extant_file_close(). It stays usable after extant_fs_close().
pub struct extant_file {
    file: File,
    /// For messages.
    path: Vec<u8>,
}

pub type FileHandle = Handle<extant_file>;
pub type FileOut = Out<*mut extant_file>;
pub type OffsetOut = Out<u64>;

impl FileHandle {
    /// Uses the file, and adds its path to an error.
    fn with<T>(&self, body: impl FnOnce(&File) -> Result<T, Fault>) -> Result<T, Failure> {
        let open = self.get("file")?;
        Ok(body(&open.file).map_err(|fault| facade::Error::At { path: open.path.clone(), fault })?)
    }
}

/// Opens a regular file, for writing as well if the file system is. Symbolic links are followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_open(fs: FsHandle, path: Text, file: FileOut, error: ErrorOut) -> c_int {
    call(&error, || {
        file.clear("file")?;
        let opened = fs.fs()?.file(path.path()?)?;
        file.give(extant_file { file: opened, path: path.bytes("the path")?.to_vec() });
        Ok(())
    })
}

/// Closes a file. NULL is allowed. What was written is durable after extant_file_sync(), extant_fs_sync() or
/// extant_fs_close().
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_close(file: Option<Box<extant_file>>) {
    quietly(|| drop(file));
}

/// Reads up to `len` bytes from byte `offset` on. `done` receives their number, which is smaller than `len`
/// only at the end of the file.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_pread(
    file: FileHandle,
    mut buffer: OutBytes,
    len: usize,
    offset: u64,
    done: SizeOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        done.require("done")?;
        // SAFETY: `buffer` and `len` belong together.
        let buffer = unsafe { buffer.slice_mut(len, "buffer") }?;
        done.set(file.with(|file| file.read_at(buffer, offset))?);
        Ok(())
    })
}

/// Writes all `len` bytes from byte `offset` on, which may lie past the end. After ENOSPC, those that fit are
/// written.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_pwrite(
    file: FileHandle,
    bytes: InBytes,
    len: usize,
    offset: u64,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        // SAFETY: `bytes` and `len` belong together.
        let bytes = unsafe { bytes.slice(len, "bytes") }?;
        if offset.checked_add(len as u64).is_none() {
            return Err(facade::Refusal::TooLarge.into());
        }
        file.with(|file| file.write_at(bytes, offset))
    })
}

/// Writes all `len` bytes at the end of the file. `offset`, which may be NULL, receives the place where they
/// begin. Appends of several threads do not overlap.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_append(
    file: FileHandle,
    bytes: InBytes,
    len: usize,
    offset: OffsetOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        // SAFETY: `bytes` and `len` belong together.
        let bytes = unsafe { bytes.slice(len, "bytes") }?;
        offset.set(file.with(|file| file.append(bytes))?);
        Ok(())
    })
}

/// Sets the size in bytes: frees what is past it, or extends the file by a hole.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_truncate(file: FileHandle, size: u64, error: ErrorOut) -> c_int {
    call(&error, || file.with(|file| file.set_len(size)))
}

/// Makes all written bytes and all other changes of the file durable.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_sync(file: FileHandle, error: ErrorOut) -> c_int {
    call(&error, || file.with(File::sync_all))
}

/// The size in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_size(file: FileHandle, size: OffsetOut, error: ErrorOut) -> c_int {
    call(&error, || {
        size.require("size")?;
        size.set(file.with(|file| Ok(file.len()))?);
        Ok(())
    })
}

/// The attributes of the file.
#[unsafe(no_mangle)]
pub extern "C" fn extant_file_stat(file: FileHandle, stat: StatOut, error: ErrorOut) -> c_int {
    call(&error, || {
        stat.require("stat")?;
        stat.set((&file.with(|file| Ok(file.metadata()))?).into());
        Ok(())
    })
}
