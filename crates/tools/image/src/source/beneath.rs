//! Opening paths below a directory without leaving it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::pretend::sees_openat2;

/// Maximum length of a path in one system call, below the system's own limit of 4095 bytes.
const PATH_MAX: usize = 4000;

/// Opens a path below a directory and follows no symlink on the way. The entry may have been replaced since
/// the scan, and a link out of the source must not add files from outside.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut path = if path.is_empty() { b"." } else { path };
    let mut reached: Option<OwnedFd> = None;
    while path.len() > PATH_MAX {
        let cut = path[..PATH_MAX].iter().rposition(|&b| b == b'/').ok_or(Errno::NAMETOOLONG)?;
        let from = reached.as_ref().map_or(root, |fd| fd.as_fd());
        reached = Some(open_short(from, &path[..cut], step)?);
        path = &path[cut + 1..];
    }
    open_short(reached.as_ref().map_or(root, |fd| fd.as_fd()), path, flags)
}

fn open_short(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = match sees_openat2() {
        true => rustix::fs::openat2(root, path, flags, Mode::empty(), resolve),
        false => Err(Errno::NOSYS),
    };
    match opened {
        // Old kernels and strict sandboxes have no openat2: open one component at a time.
        Err(Errno::NOSYS | Errno::PERM)
            if !flags.contains(OFlags::NOATIME) || !sees_openat2() || !has_openat2(root) =>
        {
            let mut parts = path.split(|&b| b == b'/').peekable();
            let mut reached: Option<OwnedFd> = None;
            while let Some(part) = parts.next() {
                let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let flags = if parts.peek().is_some() { step } else { flags };
                let from = reached.as_ref().map_or(root, |fd| fd.as_fd());
                reached = Some(rustix::fs::openat(from, part, flags | OFlags::NOFOLLOW, Mode::empty())?);
            }
            reached.ok_or(Errno::NOENT)
        }
        other => other,
    }
}

/// Whether openat2 works at all here.
fn has_openat2(root: BorrowedFd<'_>) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(root, ".", flags, Mode::empty(), ResolveFlags::BENEATH).is_ok()
}
