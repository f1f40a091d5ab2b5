//! Listings of directories, and walks of whole trees.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use facade::ReadDir;
use facade::walk::{Entry, Order, WalkFault};

use crate::border::{Context, ErrorOut, Handle, Out, Text, call, call_with, quietly};
use crate::error::{Failure, terminated};
use crate::fs::FsHandle;
use crate::stat::{extant_stat, type_bits};

/// An open listing of a directory. Closed with extant_dir_close(). It stays usable after extant_fs_close().
pub struct extant_dir {
    listing: Mutex<Listing>,
}

struct Listing {
    names: ReadDir,
    /// The name that the last call returned.
    name: CString,
}

/// A name in a directory.
#[repr(C)]
pub struct extant_dirent {
    /// The name, with a NUL after it. Valid until the next call of extant_dir_next() or extant_dir_close().
    pub name: *const c_char,
    /// Its length in bytes without the NUL, 1 to 255.
    pub name_len: usize,
    /// Inode number.
    pub ino: u64,
    /// The type bits of st_mode (S_IFREG, S_IFDIR, ...); 0 on old file systems without types.
    pub r#type: u32,
    /// Zero.
    pub reserved: u32,
}

pub type DirHandle = Handle<extant_dir>;
pub type DirOut = Out<*mut extant_dir>;
pub type DirentOut = Out<extant_dirent>;

/// Starts to list a directory. Symbolic links are followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_dir_open(fs: FsHandle, path: Text, dir: DirOut, error: ErrorOut) -> c_int {
    call(&error, || {
        dir.clear("dir")?;
        let names = fs.fs()?.read_dir(path.path()?)?;
        dir.give(extant_dir { listing: Mutex::new(Listing { names, name: CString::default() }) });
        Ok(())
    })
}

/// The next name, in the order in which they are stored, without "." and "..". Returns 1 if there is one,
/// 0 at the end. After an error, the next call continues after the damage.
#[unsafe(no_mangle)]
pub extern "C" fn extant_dir_next(dir: DirHandle, entry: DirentOut, error: ErrorOut) -> c_int {
    call_with(&error, || {
        entry.require("entry")?;
        let mut listing = dir.get("dir")?.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = listing.names.next() else { return Ok(0) };
        let found = found?;
        listing.name = terminated(found.name().to_vec());
        entry.set(extant_dirent {
            name: listing.name.as_ptr(),
            name_len: found.name().len(),
            ino: found.ino().0.into(),
            r#type: type_bits(found.kind()),
            reserved: 0,
        });
        Ok(1)
    })
}

/// Ends a listing. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_dir_close(dir: Option<Box<extant_dir>>) {
    quietly(|| drop(dir));
}

/// For extant_fs_walk(): the names of each directory in the order of their bytes, not as they are stored.
pub const EXTANT_WALK_SORTED: u32 = 1;

/// What a walk found. Valid during the callback.
#[repr(C)]
pub struct extant_entry {
    /// The path from the root of the walk, without a slash at its beginning and with a NUL after it; empty
    /// for the root.
    pub path: *const c_char,
    /// Its length in bytes without the NUL.
    pub path_len: usize,
    /// The last component of the path.
    pub name: *const c_char,
    /// Its length in bytes without the NUL.
    pub name_len: usize,
    /// Components of the path: 0 for the root.
    pub depth: usize,
    /// NULL, or why the name or the directory at this path cannot be read; the walk continues after it.
    pub problem: *const c_char,
    /// The attributes; all zero if there is a problem.
    pub stat: extant_stat,
}

/// Called for each entry of a walk, by the thread that called extant_fs_walk(). Any result but 0 ends the
/// walk.
pub type extant_walk_fn = Option<extern "C" fn(user: Context, entry: *const extant_entry) -> c_int>;

/// Walks everything below a path, a directory before its entries, and reads ahead with several threads.
/// `flags` is 0 or EXTANT_WALK_SORTED. Returns 0 also if the callback ended the walk. A symbolic link at the
/// end of the path is not followed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_fs_walk(
    fs: FsHandle,
    path: Text,
    flags: u32,
    callback: extant_walk_fn,
    user: Context,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let callback = callback.ok_or_else(|| Failure::null("callback"))?;
        let order = match flags {
            0 => Order::Stored,
            EXTANT_WALK_SORTED => Order::Names,
            _ => return Err(Failure::argument(format!("unknown flags {flags:#x}"))),
        };
        for found in fs.fs()?.walk(path.path()?)?.order(order) {
            if !visit(found, |entry| callback(user, entry) == 0) {
                break;
            }
        }
        Ok(())
    })
}

/// Passes one result of a walk on. Returns what `callback` returns.
fn visit(found: Result<Entry, WalkFault>, callback: impl FnOnce(&extant_entry) -> bool) -> bool {
    let (path, name_len, depth, stat) = match found {
        Ok(entry) => {
            let stat = entry.metadata().map_err(|fault| fault.to_string());
            (entry.path().to_vec(), entry.name().len(), entry.depth(), stat)
        }
        Err(fault) => {
            let name_len = fault.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().len();
            let depth =
                if fault.path.is_empty() { 0 } else { fault.path.split(|byte| *byte == b'/').count() };
            (fault.path, name_len, depth, Err(fault.problem.to_string()))
        }
    };
    let path_len = path.len();
    let path = terminated(path);
    let (stat, problem) = match stat {
        Ok(stat) => ((&stat).into(), None),
        Err(problem) => (extant_stat::default(), Some(terminated(problem.into_bytes()))),
    };
    let entry = extant_entry {
        path: path.as_ptr(),
        path_len,
        name: path.as_bytes_with_nul()[path_len - name_len..].as_ptr().cast(),
        name_len,
        depth,
        problem: problem.as_ref().map_or(std::ptr::null(), |problem| problem.as_ptr()),
        stat,
    };
    callback(&entry)
}
