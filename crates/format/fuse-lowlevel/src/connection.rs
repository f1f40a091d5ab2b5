//! One connection to the kernel: requests are read from it, replies and invalidations are written to it.
//!
//! The descriptor must preserve message boundaries: /dev/fuse, or a SOCK_SEQPACKET socket to a fake kernel.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::protocol::{InvalInodeOut, OutHeader, notify};
use crate::statistics::Statistics;

/// A descriptor of /dev/fuse that is mounted.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
    has_ended: AtomicBool,
    /// Number of replies that were sent, or are being sent.
    replies: AtomicU64,
    statistics: Statistics,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            has_ended: AtomicBool::new(false),
            replies: AtomicU64::new(0),
            statistics: Statistics::new(),
        }
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns whether the file system was unmounted.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Counts a reply that is about to be sent: from then on the client may run.
    pub(crate) fn count_reply(&self) {
        self.replies.fetch_add(1, Ordering::AcqRel);
    }

    /// The reply could not be sent.
    pub(crate) fn uncount_reply(&self) {
        self.replies.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Acquire)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Waits for a request and reads it. Returns its length in bytes; `None` if the file system was
    /// unmounted.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                // 0: a socket whose other end is closed.
                Ok(0) | Err(Errno::NODEV) => {
                    self.has_ended.store(true, Ordering::Release);
                    return Ok(None);
                }
                Ok(len) => return Ok(Some(len)),
                // ENOENT: the request was interrupted before it could be read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns whether a read would return at once: there is a request, or the connection has ended.
    pub(crate) fn has_request(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the connection or `bell` is readable.
    pub(crate) fn wait(&self, bell: BorrowedFd<'_>) {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
        let _ = poll(&mut fds, None);
    }

    /// Writes one message.
    pub(crate) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match rustix::io::writev(&self.fd, parts) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Invalidates cached state in the kernel.
///
/// A thread that serves requests must not invalidate pages: the kernel waits for pages that are being read or
/// written, and these requests wait for a server thread, which is a deadlock.
#[derive(Debug, Clone)]
pub struct Notifier {
    connection: Arc<Connection>,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// Invalidates the attributes of an inode, and its pages from byte `offset` on: `len` bytes, or all if
    /// `len` is 0. With a negative offset the pages stay valid.
    ///
    /// # Errors
    /// The kernel does not have the inode (ENOENT), or the connection has ended.
    pub fn inval_inode(&self, ino: u64, offset: i64, len: i64) -> io::Result<()> {
        let body = InvalInodeOut { ino, off: offset, len };
        self.send(notify::INVAL_INODE, &[body.as_bytes()])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error: code, unique: 0 };
        let all: Vec<IoSlice<'_>> =
            std::iter::once(header.as_bytes()).chain(parts.iter().copied()).map(IoSlice::new).collect();
        self.connection.write(&all)
    }
}
