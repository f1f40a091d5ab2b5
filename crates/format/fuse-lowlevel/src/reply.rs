//! Replies. Each request gets exactly one, sent by any thread at any time.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::{Immutable, IntoBytes};

use crate::connection::Connection;
use crate::protocol::{Dirent, EntryOut, GetxattrOut, IoctlOut, OutHeader};
use crate::ring_entry::Slot;
use crate::spliced;
use crate::statistics::{Begun, OperationStatistics};

/// EIO, the error of a reply that was dropped unsent.
const EIO: i32 = 5;
/// ENOENT, the kernel's answer to a reply to an interrupted request.
const ENOENT: i32 = 2;
/// ENODEV, the kernel's answer after the unmount.
const ENODEV: i32 = 19;
/// ERANGE, the error of an attribute that is larger than the caller's buffer.
const ERANGE: i32 = 34;
/// Parts of a reply after its header.
const PARTS_MAX: usize = 3;

thread_local! {
    /// Buffer for the data of reads.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where a reply goes.
#[derive(Debug)]
enum Sink {
    Device(Arc<Connection>),
    Ring(Slot),
    Sent,
}

/// The reply to one request. If it is dropped unsent, it sends EIO.
#[derive(Debug)]
pub struct Reply {
    unique: u64,
    begun: Begun,
    sink: Sink,
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-EIO, &[]);
    }
}

impl Reply {
    pub(crate) fn to_device(connection: Arc<Connection>, unique: u64, begun: Begun) -> Self {
        Self { unique, begun, sink: Sink::Device(connection) }
    }

    pub(crate) fn to_ring(slot: Slot, unique: u64, begun: Begun) -> Self {
        Self { unique, begun, sink: Sink::Ring(slot) }
    }

    fn connection(&self) -> Option<&Connection> {
        match &self.sink {
            Sink::Device(connection) => Some(connection),
            Sink::Ring(slot) => Some(slot.connection()),
            Sink::Sent => None,
        }
    }

    /// The statistics of the requests that were answered on this connection, in the order of the protocol's
    /// table.
    #[must_use]
    pub fn statistics(&self) -> Vec<OperationStatistics> {
        self.connection().map_or_else(Vec::new, |connection| connection.statistics().read())
    }

    /// Time since this connection was made.
    #[must_use]
    pub fn connection_age(&self) -> Duration {
        self.connection().map_or(Duration::ZERO, |connection| connection.statistics().age())
    }

    /// Did the request come over io_uring?
    #[must_use]
    pub fn is_over_ring(&self) -> bool {
        matches!(self.sink, Sink::Ring(_))
    }

    /// The kernel refuses a reply if the request was interrupted or the connection has ended. If it fails to
    /// take one for another reason, such as a lack of memory, the caller gets EIO instead of waiting forever.
    fn send(&mut self, error: i32, parts: &[&[u8]]) {
        let connection = match std::mem::replace(&mut self.sink, Sink::Sent) {
            Sink::Device(connection) => connection,
            Sink::Ring(slot) => return slot.send(self.unique, self.begun, error, parts),
            Sink::Sent => return,
        };
        connection.count_reply();
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique: self.unique };
        let mut slices = [IoSlice::new(&[]); PARTS_MAX + 1];
        slices[0] = IoSlice::new(header.as_bytes());
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let sent = connection.write(&slices[..=parts.len().min(PARTS_MAX)]);
        let is_lost = sent.is_err_and(|fault| !matches!(fault.raw_os_error(), Some(ENOENT | ENODEV)));
        if is_lost && !parts.is_empty() {
            let _ = Self::raw(&connection, self.unique, -EIO, &[]);
        }
        connection.statistics().end(self.begun, error != 0);
    }

    /// The request expects no reply.
    pub(crate) fn never(mut self) {
        if let Some(connection) = self.connection() {
            connection.statistics().end(self.begun, false);
        }
        self.sink = Sink::Sent;
    }

    /// Sends a reply, and returns an error of the write.
    pub(crate) fn raw(connection: &Connection, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let header = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
        connection.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body)])
    }

    /// The operation failed with this errno, such as 2 for ENOENT.
    pub fn error(mut self, errno: i32) {
        self.send(-errno, &[]);
    }

    /// The operation is done, and there is nothing to return.
    pub fn ok(mut self) {
        self.send(0, &[]);
    }

    /// Bytes: the target of a link, a listing, content.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.send(0, &[bytes]);
    }

    /// A structure of [`protocol`](crate::protocol).
    pub fn structure(mut self, structure: &(impl IntoBytes + Immutable)) {
        self.send(0, &[structure.as_bytes()]);
    }

    /// An attribute's value or the list of names, by the rules of getxattr(2): a request of size 0 gets the
    /// size alone.
    pub fn xattr(self, size: u32, value: &[u8]) {
        match size {
            0 => self.structure(&GetxattrOut { size: value.len() as u32, pad: 0 }),
            size if value.len() > size as usize => self.error(ERANGE),
            _ => self.bytes(value),
        }
    }

    /// The result of an ioctl(2) that succeeded, and the bytes for its caller.
    pub fn ioctl(mut self, bytes: &[u8]) {
        self.send(0, &[IoctlOut::default().as_bytes(), bytes]);
    }

    /// Sends data: `fill` writes at most `size` bytes, and returns how many, or an errno.
    pub fn read(mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>) {
        if let Sink::Ring(_) = &self.sink
            && let Sink::Ring(slot) = std::mem::replace(&mut self.sink, Sink::Sent)
        {
            return slot.fill(self.unique, self.begun, size, fill);
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buffer = &mut buffer[..size];
            match fill(buffer) {
                Ok(len) => self.send(0, &[&buffer[..len.min(size)]]),
                Err(errno) => self.send(-errno, &[]),
            }
        });
    }

    /// Sends `len` bytes of `file` from byte `at` on without a copy in this process. Returns the reply when
    /// that is not possible; nothing was sent then.
    #[must_use = "the reply is still to be sent"]
    pub fn splice(mut self, file: BorrowedFd<'_>, at: u64, len: usize) -> Option<Self> {
        let is_sent = match &self.sink {
            Sink::Device(connection) => {
                connection.count_reply();
                let is_sent = spliced::send(connection.fd(), self.unique, file, at, len);
                if is_sent {
                    connection.statistics().end(self.begun, false);
                }
                is_sent
            }
            // With a ring, the kernel copies from the entry's memory only.
            Sink::Ring(_) | Sink::Sent => false,
        };
        if is_sent {
            self.sink = Sink::Sent;
            return None;
        }
        if let Sink::Device(connection) = &self.sink {
            connection.uncount_reply();
        }
        Some(self)
    }
}

/// Names of a directory, for READDIR and READDIRPLUS.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    size: usize,
}

impl Listing {
    /// A listing of at most `size` bytes.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::new(), size: size as usize }
    }

    /// Adds a name. `offset` is where a listing goes on after it, `kind` its type as in `d_type` of
    /// readdir(3); `entry` is the inode, for READDIRPLUS. Returns false if there is no room for it.
    pub fn add(&mut self, ino: u64, offset: u64, kind: u32, name: &[u8], entry: Option<&EntryOut>) -> bool {
        let head = entry.map_or(0, |_| size_of::<EntryOut>());
        let len = (head + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.size {
            return false;
        }
        let end = self.bytes.len() + len;
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = Dirent { ino, off: offset, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// Sends the names.
    pub fn send(self, reply: Reply) {
        reply.bytes(&self.bytes);
    }
}
