//! Changes by paths. Each but extant_fs_remove_tree() is atomic: it is done completely, or returns an error
//! and changes nothing.

use std::ffi::c_int;

use facade::{FileType, Follow, New, Rename, SetAttr, Timestamp};

use crate::border::{Array, ErrorOut, Text, call};
use crate::error::Failure;
use crate::fs::FsHandle;
use crate::stat::extant_time;

pub type TimeIn = Array<extant_time>;

/// For extant_fs_chown() and extant_fs_lchown(): leaves the owner or the group as it is.
pub const EXTANT_KEEP_ID: u32 = 0xffff_ffff;
/// For extant_fs_rename(): EEXIST if the new name exists.
pub const EXTANT_RENAME_NO_REPLACE: u32 = 1;
/// For extant_fs_rename(): the two names swap their inodes.
pub const EXTANT_RENAME_EXCHANGE: u32 = 2;

/// Checks permission bits.
fn permissions(mode: u32) -> Result<u16, Failure> {
    u16::try_from(mode)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| Failure::argument(format!("mode {mode:o} has more than the twelve permission bits")))
}

/// Creates an empty regular file, owned by root, with these permission bits (0 to 07777). EEXIST if the name
/// exists.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_create(fs: FsHandle, path: Text, mode: u32, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.fs()?.create(path.path()?, permissions(mode)?)?;
        Ok(())
    })
}

/// Creates an empty directory, owned by root, with these permission bits.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_mkdir(fs: FsHandle, path: Text, mode: u32, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.fs()?.create_dir(path.path()?, permissions(mode)?)?;
        Ok(())
    })
}

/// Creates a file, device, named pipe or socket, owned by root. `mode` has type and permissions, as for
/// mknod(2).
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_mknod(
    fs: FsHandle,
    path: Text,
    mode: u32,
    major: u32,
    minor: u32,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let kind = match u16::try_from(mode).map(FileType::from_mode) {
            Ok(FileType::Unknown | FileType::Directory | FileType::Symlink) | Err(_) => {
                return Err(Failure::argument(format!("mode {mode:o} is not a type that mknod makes")));
            }
            Ok(kind) => kind,
        };
        let new = New { kind, device: (major, minor), ..New::file(permissions(mode & 0o7777)?) };
        fs.fs()?.create_node(path.path()?, &new)?;
        Ok(())
    })
}

/// Creates a symbolic link to `target`, which need not exist.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_symlink(fs: FsHandle, target: Text, path: Text, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.fs()?.symlink(target.path()?, path.path()?)?;
        Ok(())
    })
}

/// Gives the file at `original` a second name. A symbolic link is not followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_link(fs: FsHandle, original: Text, link: Text, error: ErrorOut) -> c_int {
    call(&error, || Ok(fs.fs()?.hard_link(original.path()?, link.path()?)?))
}

/// Removes a name of a file, link or device. The file is deleted with its last name, after it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_unlink(fs: FsHandle, path: Text, error: ErrorOut) -> c_int {
    call(&error, || Ok(fs.fs()?.remove_file(path.path()?)?))
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_rmdir(fs: FsHandle, path: Text, error: ErrorOut) -> c_int {
    call(&error, || Ok(fs.fs()?.remove_dir(path.path()?)?))
}

/// Removes a directory and everything in it. Symbolic links are removed, not followed. This takes many
/// operations: after an error, the names that were not removed yet remain.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_remove_tree(fs: FsHandle, path: Text, error: ErrorOut) -> c_int {
    call(&error, || Ok(fs.fs()?.remove_dir_all(path.path()?)?))
}

/// Moves a name. `flags` is 0, which replaces a file or an empty directory that has the new name,
/// EXTANT_RENAME_NO_REPLACE or EXTANT_RENAME_EXCHANGE.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_rename(fs: FsHandle, from: Text, to: Text, flags: u32, error: ErrorOut) -> c_int {
    call(&error, || {
        let how = match flags {
            0 => Rename::Replace,
            EXTANT_RENAME_NO_REPLACE => Rename::NoReplace,
            EXTANT_RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(Failure::argument(format!("unknown flags {flags:#x}"))),
        };
        Ok(fs.fs()?.rename_with(from.path()?, to.path()?, how)?)
    })
}

/// Sets the permission bits (0 to 07777). Symbolic links are followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_chmod(fs: FsHandle, path: Text, mode: u32, error: ErrorOut) -> c_int {
    call(&error, || {
        fs.fs()?.set_mode(path.path()?, permissions(mode)?)?;
        Ok(())
    })
}

fn chown(fs: &FsHandle, path: &Text, follow: Follow, uid: u32, gid: u32) -> Result<(), Failure> {
    let given = |id: u32| (id != EXTANT_KEEP_ID).then_some(id);
    let set = SetAttr { uid: given(uid), gid: given(gid), ..SetAttr::default() };
    fs.fs()?.set_attr(path.path()?, follow, &set)?;
    Ok(())
}

/// Sets owner and group; EXTANT_KEEP_ID leaves one as it is. Symbolic links are followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_chown(fs: FsHandle, path: Text, uid: u32, gid: u32, error: ErrorOut) -> c_int {
    call(&error, || chown(&fs, &path, Follow::Links, uid, gid))
}

/// The same for a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_lchown(fs: FsHandle, path: Text, uid: u32, gid: u32, error: ErrorOut) -> c_int {
    call(&error, || chown(&fs, &path, Follow::NotTheLast, uid, gid))
}

fn utimes(
    fs: &FsHandle,
    path: &Text,
    follow: Follow,
    (atime, mtime): (&TimeIn, &TimeIn),
) -> Result<(), Failure> {
    let given = |time: &TimeIn| {
        // SAFETY: a time is one element.
        let Some([extant_time { seconds, nanos, .. }]) = (unsafe { time.first::<1>() }) else {
            return Ok(None);
        };
        match nanos < 1_000_000_000 {
            true => Ok(Some(Timestamp { seconds, nanos })),
            false => Err(Failure::argument(format!("a time has {nanos} nanoseconds, not fewer than 10^9"))),
        }
    };
    let set = SetAttr { atime: given(atime)?, mtime: given(mtime)?, ..SetAttr::default() };
    fs.fs()?.set_attr(path.path()?, follow, &set)?;
    Ok(())
}

/// Sets the times of last access and of last change; NULL leaves one as it is. A time out of range is stored
/// as the nearest possible one. Symbolic links are followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_utimes(
    fs: FsHandle,
    path: Text,
    atime: TimeIn,
    mtime: TimeIn,
    error: ErrorOut,
) -> c_int {
    call(&error, || utimes(&fs, &path, Follow::Links, (&atime, &mtime)))
}

/// The same for a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_lutimes(
    fs: FsHandle,
    path: Text,
    atime: TimeIn,
    mtime: TimeIn,
    error: ErrorOut,
) -> c_int {
    call(&error, || utimes(&fs, &path, Follow::NotTheLast, (&atime, &mtime)))
}
