//! A mount from its start to its end: mount, INIT, settings in /sys, serving until the unmount.
//!
//! ```text
//!  Mounted::new: mount --> limits in /sys/class/bdi --> INIT      serve(): requests --> ENODEV (unmounted)
//! ```
//!
//! Does **not** own: mount(2) and fusermount3 (see [`crate::mounting`]), the threads (see
//! [`extant_fuse_lowlevel`]), requests (see the parent module).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_device::mount_table::mounted_at;
use rustix::mount::UnmountFlags;

use extant_fuse_lowlevel::{Config, Session, splice_len_max};

use super::Transport;
use super::writeback::KernelCache;
use crate::Serve;
use crate::mounting::{self, Channel, MountFault, MountOptions};

/// Readahead of a mount made by root; the kernel's default is 128 KiB. With 24 requests of 1 MiB in flight
/// the reader and the server seldom wait for each other: 3.7 GB/s, against 3.1 GB/s with a third of this.
/// With more, the pages have left the CPU's caches when the reader gets to them.
const READ_AHEAD_KIB: u32 = 24 << 10;

/// The threads that serve a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// Their number, at least 1.
    pub count: usize,
}

impl Default for Threads {
    /// One per core, but at least 2 (one computes while the other waits for the device), and at most 8.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { count: cores.clamp(2, 8) }
    }
}

/// A mounted FUSE file system, ready to be served.
pub struct Mounted<S: Serve> {
    session: Session<Transport<S>>,
    dir: PathBuf,
    config: Config,
}

impl<S: Serve> Mounted<S> {
    /// Mounts on `dir`. Processes that access the directory wait until [`serve`](Self::serve) runs.
    ///
    /// # Errors
    /// See [`MountFault`].
    pub fn new(
        serve: Arc<S>,
        dir: &Path,
        options: &MountOptions,
        threads: Threads,
    ) -> Result<Self, MountFault> {
        let wrong_dir = |reason| MountFault::Directory { dir: dir.to_owned(), reason };
        let dir = dir.canonicalize().map_err(wrong_dir)?;
        let connection = mounting::mount(&dir, options, splice_len_max())?;
        let transport = Transport::new(serve, options);
        if let Ok(Some(entry)) = mounted_at(&dir) {
            let _ = transport.connection.set(entry.device.1);
            transport.write_cache.limit_dirty(entry.device);
        }
        let rings = match options.transport {
            Channel::Auto => !options.read_only,
            transport => transport == Channel::Rings,
        };
        match Session::new(connection, transport, rings) {
            Ok(session) => {
                // Requests are read from `serve` on only, so this comes before all of them.
                session.handler().connect(session.notifier());
                set_readahead(&dir);
                let config = Config { threads: threads.count.max(1) };
                Ok(Self { session, dir, config })
            }
            Err(error) => {
                let _ = mounting::unmount(&dir, true);
                Err(MountFault::Connection(error))
            }
        }
    }

    /// The mount point, as an absolute path without symbolic links.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the kernel holds of this mount.
    #[must_use]
    pub fn kernel_cache(&self) -> KernelCache {
        self.session.handler().write_cache.kernel_cache()
    }

    /// Do requests come over io_uring?
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.session.has_rings()
    }

    /// Serves until the file system is unmounted, by any process.
    ///
    /// # Errors
    /// The connection failed. Then this unmounts the file system, if possible.
    pub fn serve(self) -> io::Result<()> {
        let dir = self.dir.clone();
        let ended = self.serve_only();
        if ended.is_err() && !abort(&dir) {
            let _ = mounting::unmount(&dir, true);
        }
        ended
    }

    /// As [`serve`](Self::serve), for a process that may not unmount.
    ///
    /// # Errors
    /// The connection failed, and is still mounted: see [`abort`] and [`unmount`](crate::unmount).
    pub fn serve_only(self) -> io::Result<()> {
        self.session.run(self.config)
    }
}

/// Serves a connection that was not mounted by this process (in another mount namespace, a virtual machine, a
/// fake kernel in a test), until the other end is closed.
///
/// # Errors
/// The connection failed, or its first request is not INIT.
pub fn serve_connection<S: Serve>(
    serve: Arc<S>,
    connection: OwnedFd,
    options: &MountOptions,
    threads: Threads,
) -> io::Result<()> {
    let session = Session::new(connection, Transport::new(serve, options), false)?;
    session.handler().connect(session.notifier());
    session.run(Config { threads: threads.count.max(1) })
}

/// Aborts the connection of the mount on `dir`: all pending requests fail. Uses /sys/fs/fuse; without that,
/// or if it may not, umount(2) by force, which also unmounts if nothing uses the mount. Returns whether it
/// did.
pub fn abort(dir: &Path) -> bool {
    let Ok(Some(entry)) = mounted_at(dir) else { return false };
    let control = format!("/sys/fs/fuse/connections/{}/abort", entry.device.1);
    std::fs::write(control, "1").is_err()
        && rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW).is_ok()
}

/// Sets the kernel's readahead. Only root may do this; for others the default stays.
fn set_readahead(dir: &Path) {
    if let Ok(Some(entry)) = mounted_at(dir) {
        let (major, minor) = entry.device;
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let _ = std::fs::write(knob, READ_AHEAD_KIB.to_string());
    }
}
