//! Extended attributes.

use std::ffi::c_int;

use facade::{Follow, SetXattr};

use crate::border::{Array, ErrorOut, Text, call, fill};
use crate::error::Failure;
use crate::fs::{FsHandle, OutText, SizeOut};

pub type InBytes = Array<u8>;
pub type OutBytes = Array<u8>;

/// For extant_fs_set_xattr(): EEXIST if the attribute exists.
pub const EXTANT_XATTR_CREATE: u32 = 1;
/// For extant_fs_set_xattr(): ENODATA if the attribute does not exist.
pub const EXTANT_XATTR_REPLACE: u32 = 2;

/// The value of an extended attribute by its full name ("user.comment"), of a file or of a symbolic link
/// itself. `len`, which may be NULL, receives its length. With a capacity of 0 nothing else is done; ERANGE
/// if the value does not fit. ACLs have the format of getxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_get_xattr(
    fs: FsHandle,
    path: Text,
    name: Text,
    mut value: OutBytes,
    capacity: usize,
    len: SizeOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let (fs, name) = (fs.fs()?, name.bytes("name")?);
        let inode = fs.resolve(path.path()?, Follow::NotTheLast)?;
        let at = |fault| facade::Error::At { path: path.get().unwrap_or_default().to_vec(), fault };
        let found = fs.volume().attributes().xattr(&inode, name).map_err(at)?;
        // SAFETY: `value` and `capacity` belong together.
        fill(&found, unsafe { value.slice_mut(capacity, "value") }?, &len, false)
    })
}

/// The full names of all extended attributes of a file or of a symbolic link itself, each with a NUL after
/// it. `len`, which may be NULL, receives the length of all. With a capacity of 0 nothing else is done;
/// ERANGE if the names do not fit.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_list_xattrs(
    fs: FsHandle,
    path: Text,
    mut names: OutText,
    capacity: usize,
    len: SizeOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let mut list = Vec::new();
        for attribute in fs.fs()?.xattrs(path.path()?)? {
            list.extend_from_slice(&attribute.name);
            list.push(0);
        }
        // SAFETY: `names` and `capacity` belong together.
        fill(&list, unsafe { names.slice_mut(capacity, "names") }?, &len, false)
    })
}

/// Sets an extended attribute of a file or of a symbolic link itself. `flags` is 0, EXTANT_XATTR_CREATE or
/// EXTANT_XATTR_REPLACE.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_set_xattr(
    fs: FsHandle,
    path: Text,
    name: Text,
    value: InBytes,
    len: usize,
    flags: u32,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let how = match flags {
            0 => SetXattr::Any,
            EXTANT_XATTR_CREATE => SetXattr::Create,
            EXTANT_XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Failure::argument(format!("unknown flags {flags:#x}"))),
        };
        // SAFETY: `value` and `len` belong together.
        let value = unsafe { value.slice(len, "value") }?;
        Ok(fs.fs()?.set_xattr_with(path.path()?, name.bytes("name")?, value, how)?)
    })
}

/// Removes an extended attribute of a file or of a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_remove_xattr(fs: FsHandle, path: Text, name: Text, error: ErrorOut) -> c_int {
    call(&error, || Ok(fs.fs()?.remove_xattr(path.path()?, name.bytes("name")?)?))
}
