//! `mount -o remount`: changes of the flags of an existing mount.
//!
//! The kernel changes these flags without a request to the server. So a volume that was opened for reading
//! stays read-only, whatever the flags. Conversely, the server of a mount that became read-only keeps the
//! image open for writing, and locked; such a mount can become read-write again.
//!
//! Invariant: when [`remount`] has made a mount read-only, all changes are durable.
//!
//! Source: mount(2), "Remounting an existing mount". The kernel's FUSE accepts no changes of its own options.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use extant_device::mount_table::mounted_at;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::{MODE_ATTRIBUTE, SERVER_ATTRIBUTE};

/// The flags to change; `None` leaves a flag as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remount {
    /// Read-only.
    pub read_only: Option<bool>,
    /// Device nodes can be opened (no MS_NODEV).
    pub dev: Option<bool>,
    /// Set-id bits have an effect (no MS_NOSUID).
    pub suid: Option<bool>,
    /// Programs can be executed (no MS_NOEXEC).
    pub exec: Option<bool>,
}

/// Why a remount failed.
#[derive(Debug, thiserror::Error)]
pub enum RemountFault {
    /// Not a mount point, or of another file system.
    #[error("{} is not a mount of extant", .0.display())]
    NotOurs(PathBuf),
    /// The image was opened for reading.
    #[error(
        "the image of {} was opened for reading only; unmount it, and mount it with -o rw", .0.display()
    )]
    OpenForReading(PathBuf),
    /// Files are open for writing.
    #[error(
        "files of {dir} are open for writing, so it stays read-write; `fuser -vm {dir}` shows the processes",
        dir = .0.display()
    )]
    Busy(PathBuf),
    /// The caller is not root.
    #[error("only root can remount; unmount it, and mount it with the new options")]
    Forbidden,
    /// Changes could not be made durable.
    #[error("changes could not be made durable: {0}")]
    NotSynced(io::Error),
    /// The kernel refused.
    #[error("the kernel refuses the remount: {0}")]
    Kernel(io::Error),
}

/// Changes the flags of the mount of extant on `dir` (an absolute path without symbolic links). If it becomes
/// read-only, all changes are durable afterwards.
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
    // mount(2) clears the flags that are not passed.
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
    // Changes between the first sync and the remount.
    if becomes_read_only { sync(dir) } else { Ok(()) }
}

/// Makes everything durable: the server treats fsync(2) of the root as syncfs(2).
fn sync(dir: &Path) -> Result<(), RemountFault> {
    File::open(dir).and_then(|root| root.sync_all()).map_err(RemountFault::NotSynced)
}
