//! Changing the switches of a mount that stands.
//!
//! The kernel changes them by itself without a request to the server. So read-write is limited by the server:
//! the volume of one that was opened for reading stays read-only. The other way round a mount that became
//! read-only still holds its image, locked, and can be made read-write again.
//!
//! Source: mount(2), "Remounting an existing mount"; kernel fs/fuse (it takes no other changes of its
//! options).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use extant_device::mount_table::mounted_at;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::{MODE_ATTRIBUTE, SERVER_ATTRIBUTE};

/// What is to change; `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remount {
    /// Nothing can be changed, or again can.
    pub read_only: Option<bool>,
    /// Device nodes can be opened.
    pub dev: Option<bool>,
    /// Set-id bits count.
    pub suid: Option<bool>,
    /// Programs can be started.
    pub exec: Option<bool>,
}

/// Why a mount stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum RemountFault {
    /// Nothing, or another mount.
    #[error("{} is no mount of extant", .0.display())]
    NotOurs(PathBuf),
    /// The server has the image for reading.
    #[error(
        "{} is served from an image that was opened for reading only; unmount it, and mount it with -o rw", .0.display()
    )]
    OpenForReading(PathBuf),
    /// Files are open for writing.
    #[error(
        "files of {} are open for writing (`fuser -vm DIR` shows the processes), it stays read-write", .0.display()
    )]
    Busy(PathBuf),
    /// Only root may.
    #[error("only root can remount; unmount it, and mount it with the other options")]
    Forbidden,
    /// Changes could not be made durable.
    #[error("changes could not be written, it stays as it is: {0}")]
    NotSynced(io::Error),
    /// The kernel refused.
    #[error("the kernel refuses: {0}")]
    Kernel(io::Error),
}

/// Changes a mount of extant on `dir` (absolute, no symbolic links in it). One that becomes read-only is
/// durable then.
///
/// # Errors
/// See [`RemountFault`].
pub fn remount(dir: &Path, change: Remount) -> Result<(), RemountFault> {
    let entry = mounted_at(dir).map_err(RemountFault::Kernel)?;
    let attribute = |name: &str| {
        let mut text = [0; 20];
        let len = rustix::fs::getxattr(dir, name, &mut text[..]).ok()?;
        text.get(..len).map(<[u8]>::to_vec)
    };
    if entry.is_none() || attribute(SERVER_ATTRIBUTE).is_none() {
        return Err(RemountFault::NotOurs(dir.to_owned()));
    }
    if change.read_only == Some(false) && attribute(MODE_ATTRIBUTE).as_deref() != Some(b"rw") {
        return Err(RemountFault::OpenForReading(dir.to_owned()));
    }
    let now = rustix::fs::statvfs(dir).map_err(|error| RemountFault::Kernel(error.into()))?.f_flag;
    let mut flags = MountFlags::empty();
    // What is not named would be switched off.
    for (held, flag, to) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY, change.read_only),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV, change.dev.map(|may| !may)),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID, change.suid.map(|may| !may)),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC, change.exec.map(|may| !may)),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME, None),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME, None),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME, None),
    ] {
        flags.set(flag, to.unwrap_or(now.contains(held)));
    }
    let becomes_read_only = flags.contains(MountFlags::RDONLY) && !now.contains(StatVfsMountFlags::RDONLY);
    if becomes_read_only {
        sync(dir)?;
    }
    rustix::mount::mount_remount(dir, flags, c"").map_err(|error| match error {
        Errno::BUSY => RemountFault::Busy(dir.to_owned()),
        Errno::PERM => RemountFault::Forbidden,
        error => RemountFault::Kernel(error.into()),
    })?;
    // What came between.
    if becomes_read_only { sync(dir) } else { Ok(()) }
}

/// Extant takes an fsync of the root for one of everything.
fn sync(dir: &Path) -> Result<(), RemountFault> {
    File::open(dir).and_then(|root| root.sync_all()).map_err(RemountFault::NotSynced)
}
