//! Replies to reads by splice(2): the kernel moves the bytes from the image's page cache to the reader,
//! without a copy in this process.
//!
//! ```text
//!  header ---write---+
//!                    +--> pipe (of the thread) ---splice---> /dev/fuse: one reply
//!  image ----splice--+
//! ```
//!
//! Invariants
//! 1. A pipe is empty between replies: after a failure it is closed.
//! 2. A reply is sent as a whole or not at all. If it is not sent, the caller sends it in another way.
//!
//! Source: splice(2), pipe(7) ("pipe capacity"), kernel include/uapi/linux/fuse.h (`fuse_out_header`).

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, write};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use zerocopy::IntoBytes;

use crate::protocol::OutHeader;

/// The default limit of a pipe's size, unless the administrator lowered it.
const CAPACITY: usize = 1 << 20;

thread_local! {
    static PIPE: RefCell<Option<Pipe>> = const { RefCell::new(None) };
}

/// The longest read that fits into a pipe with its header, for any offset within a page.
#[must_use]
pub fn len_max() -> usize {
    CAPACITY - 2 * rustix::param::page_size()
}

/// Replies to request `unique` with `len` bytes of `file` from byte `at` on. Returns false if that failed;
/// then nothing was sent.
pub(crate) fn send(
    connection: BorrowedFd<'_>,
    unique: u64,
    file: BorrowedFd<'_>,
    at: u64,
    len: usize,
) -> bool {
    PIPE.with_borrow_mut(|kept| {
        let Some(pipe) = kept.take().or_else(|| Pipe::new().ok()) else { return false };
        let page = rustix::param::page_size() as u64;
        let pages = (at + len as u64).div_ceil(page) - at / page;
        if pages + 1 > pipe.pages {
            *kept = Some(pipe);
            return false;
        }
        let is_sent = pipe.send(connection, unique, file, at, len).is_ok();
        if is_sent {
            *kept = Some(pipe);
        }
        is_sent
    })
}

struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    /// Its capacity.
    pages: u64,
}

impl Pipe {
    fn new() -> Result<Self, Errno> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let capacity = fcntl_setpipe_size(&into, CAPACITY)?;
        Ok(Self { out, into, pages: (capacity / rustix::param::page_size()) as u64 })
    }

    fn send(
        &self,
        connection: BorrowedFd<'_>,
        unique: u64,
        file: BorrowedFd<'_>,
        at: u64,
        len: usize,
    ) -> Result<(), Errno> {
        let whole = u32::try_from(size_of::<OutHeader>() + len).map_err(|_| Errno::OVERFLOW)?;
        let header = OutHeader { len: whole, error: 0, unique };
        if write(&self.into, header.as_bytes())? != size_of::<OutHeader>() {
            return Err(Errno::AGAIN);
        }
        let (mut at, mut left) = (at, len);
        while left > 0 {
            match splice(file, Some(&mut at), &self.into, None, left, SpliceFlags::MOVE) {
                Ok(0) => return Err(Errno::IO), // the file ends
                Ok(got) => left -= got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        match splice(&self.out, None, connection, None, whole as usize, SpliceFlags::empty())? {
            sent if sent == whole as usize => Ok(()),
            _ => Err(Errno::IO),
        }
    }
}
