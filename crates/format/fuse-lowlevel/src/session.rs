//! A session on a connection: INIT, then requests until the file system is unmounted.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::connection::{Connection, Notifier};
use crate::operation::{Layout, Operation, Request, forgets};
use crate::protocol::{InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, READ_BUFFER_MIN, init};
use crate::reply::Reply;
use crate::ring_entry;
use crate::statistics::Begun;

const ENOSYS: i32 = 38;
const EIO: i32 = 5;
const EPROTO: i32 = 71;

/// A file system that answers requests.
pub trait Handler: Send + Sync {
    /// Chooses among what the kernel offers. Called once, before any request.
    fn init(&mut self, offered: &Offered) -> Taken;

    /// Answers a request, now or later. Many threads call this at the same time.
    fn handle(&self, request: &Request<'_>, reply: Reply);

    /// The kernel dropped `count` lookups of an inode. No reply is expected.
    fn forget(&self, node: u64, count: u64);
}

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offered {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Flags of [`init`](crate::protocol::init).
    pub flags: u64,
    /// The largest readahead, in bytes.
    pub max_readahead: u32,
}

/// What the server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Flags of [`init`](crate::protocol::init). Those that the kernel did not offer are left out.
    pub flags: u64,
    /// The largest readahead, in bytes; at most what was offered.
    pub max_readahead: u32,
    /// The largest write, in bytes.
    pub max_write: u32,
    /// Background requests (readahead, writeback) that the kernel has in flight at the same time.
    pub max_background: u16,
    /// The granularity of stored times, in nanoseconds: a power of ten.
    pub time_gran: u32,
}

/// How a session is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Threads that answer, at least 1.
    pub threads: usize,
}

/// A connection with its file system.
#[derive(Debug)]
pub struct Session<H> {
    connection: Arc<Connection>,
    handler: H,
    layout: Layout,
    buffer_len: usize,
    payload_len: usize,
    has_ring: bool,
}

impl<H: Handler> Session<H> {
    /// Waits for the kernel's INIT and answers it. `connection`: a descriptor of /dev/fuse that is mounted;
    /// `rings`: whether requests come over io_uring, if the kernel offers that and a ring can be made here.
    ///
    /// # Errors
    /// The kernel speaks an older version of the protocol; the connection failed or ended.
    pub fn new(connection: OwnedFd, mut handler: H, rings: bool) -> io::Result<Self> {
        let connection = Arc::new(Connection::new(connection));
        let taken = negotiate(&connection, &mut handler, rings && ring_entry::is_possible())?;
        let layout = Layout { setxattr_ext: taken.flags & init::SETXATTR_EXT != 0 };
        // A write, its header and its structure.
        let buffer_len = (taken.max_write as usize + 4096).max(READ_BUFFER_MIN);
        let has_ring = taken.flags & init::OVER_IO_URING != 0;
        let payload_len = (taken.max_write as usize).max(READ_BUFFER_MIN);
        Ok(Self { connection, handler, layout, buffer_len, payload_len, has_ring })
    }

    /// The file system.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Sends invalidations to the kernel.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.connection))
    }

    /// Do requests come over io_uring?
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.has_ring
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.payload_len
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Counts a request that was read just now.
    pub(crate) fn begin(&self, bytes: &[u8]) -> Begun {
        let opcode =
            bytes.get(4..8).and_then(|four| four.try_into().ok()).map_or(u32::MAX, u32::from_ne_bytes);
        self.connection.statistics().begin(opcode)
    }

    /// Answers a request in one piece.
    pub(crate) fn answer(&self, bytes: &[u8], begun: Begun) {
        match Request::parse(bytes, self.layout) {
            Ok(request) => {
                let reply = Reply::to_device(Arc::clone(&self.connection), request.unique(), begun);
                self.dispatch(&request, reply);
            }
            // A reply needs only the request's number.
            Err(_) => {
                let unique = bytes.get(8..16).and_then(|eight| eight.try_into().ok());
                if let Some(unique) = unique.map(u64::from_ne_bytes) {
                    Reply::to_device(Arc::clone(&self.connection), unique, begun).error(EIO);
                }
            }
        }
    }

    /// Serves operations of the protocol itself, and passes all others to the handler.
    pub(crate) fn dispatch(&self, request: &Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Forget(forget, ()) => {
                self.handler.forget(request.node(), forget.nlookup);
                reply.never();
            }
            Operation::BatchForget(batch, bytes) => {
                for one in forgets(batch, bytes.0) {
                    self.handler.forget(one.nodeid, one.nlookup);
                }
                reply.never();
            }
            Operation::NotifyReply(..) => reply.never(),
            // Requests in progress cannot be interrupted. After ENOSYS the kernel sends no more INTERRUPTs.
            Operation::Interrupt(..) | Operation::Unknown => reply.error(ENOSYS),
            Operation::Init(..) => reply.error(EIO),
            Operation::Destroy(..) => reply.ok(),
            _ => self.handler.handle(request, reply),
        }
    }
}

/// Answers INIT.
fn negotiate(connection: &Connection, handler: &mut impl Handler, rings: bool) -> io::Result<Taken> {
    let mut buffer = vec![0; READ_BUFFER_MIN];
    loop {
        let ended = || io::Error::new(io::ErrorKind::ConnectionAborted, "unmounted before the first request");
        let len = connection.read(&mut buffer)?.ok_or_else(ended)?;
        let parsed = Request::parse(&buffer[..len], Layout::default());
        let Ok((Operation::Init(asked, ()), unique)) = parsed.map(|it| (it.operation, it.unique())) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first request is not INIT"));
        };
        let send = |error: i32, body: &[u8]| Reply::raw(connection, unique, error, body);
        if asked.major > MAJOR {
            // The kernel sends INIT again, with this version.
            send(0, InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() }.as_bytes())?;
            continue;
        }
        if asked.major < MAJOR || asked.minor < MINOR_MIN {
            send(-EPROTO, &[])?;
            let text = format!(
                "the kernel speaks FUSE {}.{}; {MAJOR}.{MINOR_MIN} (Linux 5.4) or later is needed",
                asked.major, asked.minor
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let offered = offered(&asked);
        let mut taken = handler.init(&offered);
        if rings {
            taken.flags |= init::OVER_IO_URING;
        }
        let always = init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT | init::SETXATTR_EXT;
        taken.flags = (taken.flags | always) & offered.flags;
        taken.max_readahead = taken.max_readahead.min(offered.max_readahead);
        let pages = (taken.max_write as usize).div_ceil(rustix::param::page_size());
        let reply = InitOut {
            major: MAJOR,
            minor: MINOR.min(asked.minor),
            max_readahead: taken.max_readahead,
            flags: taken.flags as u32,
            flags2: (taken.flags >> 32) as u32,
            max_background: taken.max_background,
            congestion_threshold: taken.max_background / 4 * 3,
            max_write: taken.max_write,
            time_gran: taken.time_gran,
            max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
            ..InitOut::default()
        };
        send(0, reply.as_bytes())?;
        return Ok(taken);
    }
}

fn offered(asked: &InitIn) -> Offered {
    let high = if u64::from(asked.flags) & init::INIT_EXT != 0 { u64::from(asked.flags2) << 32 } else { 0 };
    Offered { minor: asked.minor, flags: u64::from(asked.flags) | high, max_readahead: asked.max_readahead }
}
