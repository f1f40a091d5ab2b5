//! The life of a mount: it is made, served by threads, and ended by an unmount.
//!
//! Does **not** own: how one gets a connection (see [`crate::mounting`]), any request (see the parent
//! module).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_device::mount_table::mounted_at;

use extant_fuse_lowlevel::{Config, Session, splice_len_max};

use super::Transport;
use crate::Serve;
use crate::mounting::{self, MountFault, MountOptions};

/// The kernel's readahead for sequential readers on a mount made by root; its default is 128 KiB. This many
/// requests of the largest size keep all CPUs busy: with a third of it, a reader and the server wait for each
/// other in turns (3.1 against 3.7 GB/s); with more the pages are cold when the reader gets to them.
const READ_AHEAD_KIB: u32 = 24 << 10;

/// How requests come from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Channel {
    /// /dev/fuse, which is faster for a single client: see `fuse-lowlevel`'s placement.
    #[default]
    Auto,
    /// /dev/fuse.
    Device,
    /// io_uring where the kernel offers it, which needs its fuse module's parameter `enable_uring`, and
    /// /dev/fuse where it does not.
    Rings,
}

/// How a mount is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// How many threads answer, at least 1.
    pub count: usize,
}

impl Default for Threads {
    /// One per core, from 2 (one computes while the other waits for the device) to 8.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { count: cores.clamp(2, 8) }
    }
}

/// A directory on which something is mounted that waits to be served.
pub struct Mounted<S: Serve> {
    session: Session<Transport<S>>,
    dir: PathBuf,
    config: Config,
}

impl<S: Serve> Mounted<S> {
    /// Mounts on `dir`. Users of the directory wait until [`serve`](Self::serve) runs.
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
        let number = Arc::clone(&transport.connection);
        let late = transport.writes_back.then(|| Arc::clone(&transport.late));
        match Session::new(connection, transport, options.transport == Channel::Rings) {
            Ok(session) => {
                // Nothing is asked before `serve`.
                session.handler().connect(session.notifier());
                if let Ok(Some(entry)) = mounted_at(&dir) {
                    let _ = number.set(entry.device.1);
                    if let Some(late) = late {
                        late.bound(entry.device);
                    }
                }
                read_further_ahead(&dir);
                let config = Config { threads: threads.count.max(1) };
                Ok(Self { session, dir, config })
            }
            Err(error) => {
                let _ = mounting::unmount(&dir, true);
                Err(MountFault::Connection(error))
            }
        }
    }

    /// Where it is mounted: absolute, no symbolic links in it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Do requests come over io_uring?
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.session.has_rings()
    }

    /// Serves until it is unmounted, by whomever.
    ///
    /// # Errors
    /// The connection failed; it was unmounted then, if that was possible.
    pub fn serve(self) -> io::Result<()> {
        let ended = self.session.run(self.config);
        if ended.is_err() {
            abort(&self.dir);
            let _ = mounting::unmount(&self.dir, true);
        }
        ended
    }
}

/// Serves a connection that is not mounted by this process, until its other end is closed: of a virtual
/// machine, of another mount namespace, of a test's fake kernel.
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

/// Gives an error to all waiting callers, where the system lets the owner of a connection do that.
fn abort(dir: &Path) {
    if let Ok(Some(entry)) = mounted_at(dir) {
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", entry.device.1), "1");
    }
}

/// Lets the kernel request larger pieces. Only root may; other users keep the default.
fn read_further_ahead(dir: &Path) {
    if let Ok(Some(entry)) = mounted_at(dir) {
        let (major, minor) = entry.device;
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let _ = std::fs::write(knob, READ_AHEAD_KIB.to_string());
    }
}
