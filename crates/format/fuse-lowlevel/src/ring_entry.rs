//! Entries of the rings: their memory, and the reply to the request in one.
//!
//! An entry is a header and a payload in our memory, which the kernel fills with a request and reads a reply
//! from.
//!
//! Invariants
//! 1. The memory of an entry belongs to the kernel from its registration or commit to the next completion,
//!    and to the one [`Slot`] that answers its request from there to the commit. It is freed after the ring.
//!
//! Source: Linux, include/uapi/linux/fuse.h (`fuse_uring_req_header`).

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue};
use rustix::event::{EventfdFlags, eventfd};
use zerocopy::IntoBytes;

use crate::connection::Connection;
use crate::protocol::OutHeader;
use crate::ring_policy::ServingThread;
use crate::statistics::Begun;

/// Entries of a queue.
pub(crate) const DEPTH: usize = 8;
/// Offset of `fuse_uring_ent_in_out` in an entry's header, and the header's size.
pub(crate) const ENT: usize = 256;
pub(crate) const HEADER_LEN: usize = 288;
/// In `fuse_uring_ent_in_out`: the payload's length.
pub(crate) const PAYLOAD_LEN: usize = ENT + 16;

/// Returns whether this process can create a ring of the kind that FUSE needs.
pub(crate) fn is_possible() -> bool {
    IoUring::<Entry128, cqueue::Entry>::builder().setup_single_issuer().build(2).is_ok()
}

/// Memory of one entry.
pub(crate) struct Memory {
    pub(crate) header: Box<[UnsafeCell<u8>]>,
    pub(crate) payload: Box<[UnsafeCell<u8>]>,
    /// Header and payload, as the kernel gets them.
    pub(crate) iovecs: [libc::iovec; 2],
}

impl Memory {
    fn new(payload_len: usize) -> Self {
        let zeroed = |len: usize| {
            let bytes = vec![0_u8; len].into_boxed_slice();
            // SAFETY: UnsafeCell<u8> has the layout of u8, so the allocation is the same.
            unsafe { Box::from_raw(Box::into_raw(bytes) as *mut [UnsafeCell<u8>]) }
        };
        let (header, payload) = (zeroed(HEADER_LEN), zeroed(payload_len));
        let part = |bytes: &[UnsafeCell<u8>]| libc::iovec {
            iov_base: UnsafeCell::raw_get(bytes.as_ptr()).cast(),
            iov_len: bytes.len(),
        };
        let iovecs = [part(&header), part(&payload)];
        Self { header, payload, iovecs }
    }
}

/// A queue's state, shared by its thread and the replies to its requests.
pub(crate) struct Queue {
    pub(crate) connection: Arc<Connection>,
    pub(crate) entries: Vec<Memory>,
    pub(crate) bell: OwnedFd,
    /// Entries with complete replies, to be committed by the queue's thread.
    pub(crate) ready: Mutex<Vec<usize>>,
    /// The thread that serves it.
    pub(crate) thread: OnceLock<ThreadId>,
    pub(crate) serving: Arc<ServingThread>,
}

impl Queue {
    pub(crate) fn new(connection: &Arc<Connection>, payload_len: usize) -> io::Result<Self> {
        Ok(Self {
            connection: Arc::clone(connection),
            entries: (0..DEPTH).map(|_| Memory::new(payload_len)).collect(),
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
            ready: Mutex::default(),
            thread: OnceLock::new(),
            serving: Arc::default(),
        })
    }
}

// SAFETY: an entry's memory is accessed by the one owner that invariant 1 names; the pointers in `iovecs` are
// to memory that the same value owns, and are read by the kernel only.
unsafe impl Send for Queue {}
// SAFETY: as for Send.
unsafe impl Sync for Queue {}

/// An entry with a request that is to be answered. The one owner of the entry's memory until it is committed.
pub(crate) struct Slot {
    pub(crate) queue: Arc<Queue>,
    pub(crate) index: usize,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({})", self.index)
    }
}

impl Slot {
    pub(crate) fn connection(&self) -> &Connection {
        &self.queue.connection
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.queue.entries[self.index]
    }

    #[expect(clippy::mut_from_ref, reason = "the slot owns the memory of its entry, and is not cloned")]
    pub(crate) fn header(&self) -> &mut [u8] {
        let header = &self.memory().header;
        // SAFETY: the memory is live and this long, and by invariant 1 nothing else accesses it meanwhile.
        // The callers, here and in `uring`, keep one reference at a time.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(header.as_ptr()), header.len()) }
    }

    #[expect(clippy::mut_from_ref, reason = "the slot owns the memory of its entry, and is not cloned")]
    pub(crate) fn payload(&self) -> &mut [u8] {
        let payload = &self.memory().payload;
        // SAFETY: as in `header`.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(payload.as_ptr()), payload.len()) }
    }

    /// Writes a reply into the entry. `error` is 0 or negative.
    pub(crate) fn send(self, unique: u64, begun: Begun, error: i32, parts: &[&[u8]]) {
        let mut at = 0;
        let payload = self.payload();
        for part in parts {
            let end = at + part.len();
            let Some(into) = payload.get_mut(at..end) else {
                // Longer than the largest reply that a request allows.
                return self.finish(unique, begun, -5, 0);
            };
            into.copy_from_slice(part);
            at = end;
        }
        self.finish(unique, begun, error, at);
    }

    /// Has `fill` write the reply into place; at most `size` bytes.
    pub(crate) fn fill(
        self,
        unique: u64,
        begun: Begun,
        size: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>,
    ) {
        let payload = self.payload();
        let size = size.min(payload.len());
        match fill(&mut payload[..size]) {
            Ok(len) => self.finish(unique, begun, 0, len.min(size)),
            Err(errno) => self.finish(unique, begun, -errno, 0),
        }
    }

    fn finish(self, unique: u64, begun: Begun, error: i32, len: usize) {
        let header = self.header();
        let out = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        header[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header[PAYLOAD_LEN..PAYLOAD_LEN + 4].copy_from_slice(&(len as u32).to_ne_bytes());
        let ready = &self.queue.ready;
        ready.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
        if self.queue.thread.get() != Some(&std::thread::current().id()) {
            let _ = rustix::io::write(&self.queue.bell, &1_u64.to_ne_bytes());
        }
        self.connection().statistics().end(begun, error != 0);
    }
}
