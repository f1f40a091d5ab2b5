//! FUSE over io_uring: one queue and one thread for each CPU.
//!
//! The kernel puts a request into a fetched entry of the queue of the CPU on which its caller runs, and the
//! queue's thread, which runs on that CPU, is woken there. The thread commits a reply and fetches the next
//! request with one system call. Forgets and interrupts still come through /dev/fuse.
//!
//! ```text
//!  register --> [with the kernel] --completion: request--> [with us] --reply--> commit and fetch
//!                     ^                                                              |
//!                     +--------------------------------------------------------------+
//! ```
//!
//! The memory of the entries and its owners: see [`ring_entry`](crate::ring_entry).
//!
//! Invariants
//! 1. See invariant 1 there.
//! 2. Only the queue's thread submits to its ring. A reply from another thread is handed to it by an eventfd.
//! 3. Every request is committed exactly once.
//!
//! Source: Linux, include/uapi/linux/fuse.h (`fuse_uring_req_header`, `fuse_uring_cmd_req`),
//! Documentation/filesystems/fuse/fuse-io-uring.rst.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use zerocopy::FromBytes;

use crate::connection::Connection;
use crate::operation::{FIXED_MAX, Request};
use crate::protocol::InHeader;
use crate::reply::Reply;
use crate::ring_entry::{DEPTH, ENT, PAYLOAD_LEN, Queue, Slot};
use crate::ring_policy::PolicyWatcher;
use crate::session::{Handler, Session};

/// Commands of `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Offset of the operation's structure in an entry's header.
const OP_IN: usize = 128;
/// In `fuse_uring_ent_in_out`: the number that a commit names.
const COMMIT_ID: usize = ENT + 8;
/// `user_data` of the completions of the eventfd.
const BELL: u64 = u64::MAX;

thread_local! {
    /// A copy of a request's payload, because the reply overwrites the payload in the entry.
    static PAYLOAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Number of possible CPUs. The kernel has a queue for each of them.
fn possible_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

/// The queues of a session. The kernel sends requests only while all of them are served, so one that fails
/// ends the others.
pub(crate) struct Queues {
    queues: Vec<Arc<Queue>>,
    /// Readable once a queue has failed.
    alarm: OwnedFd,
    failed: Mutex<Option<io::Error>>,
    policies: PolicyWatcher,
}

impl Queues {
    pub(crate) fn new<H: Handler>(session: &Session<H>) -> io::Result<Self> {
        let new_queue = |_| Queue::new(session.connection(), session.payload_len()).map(Arc::new);
        let queues = (0..possible_cpus()).map(new_queue);
        let alarm = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self {
            queues: queues.collect::<io::Result<_>>()?,
            alarm,
            failed: Mutex::default(),
            policies: PolicyWatcher::default(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    fn failed(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn have_failed(&self) -> bool {
        self.failed().is_some()
    }

    /// Ends all queues.
    pub(crate) fn fail(&self, error: io::Error) {
        self.failed().get_or_insert(error);
        for bell in self.queues.iter().map(|queue| &queue.bell).chain([&self.alarm]) {
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn into_result(self) -> io::Result<()> {
        self.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Sets the policies of the queues' threads, until they have ended.
    pub(crate) fn watch(&self) {
        let threads: Vec<_> = self.queues.iter().map(|queue| Arc::clone(&queue.serving)).collect();
        self.policies.run(&threads);
    }

    /// Ends [`watch`](Self::watch).
    pub(crate) fn end_watch(&self) {
        self.policies.end();
    }

    /// Serves one queue until the connection ends, or a queue fails.
    pub(crate) fn serve<H: Handler>(&self, session: &Session<H>, number: usize) {
        if let Err(error) = serve(session, self, number) {
            self.fail(error);
        }
    }
}

fn serve<H: Handler>(session: &Session<H>, queues: &Queues, queue_id: usize) -> io::Result<()> {
    let mut one = CpuSet::new();
    if queue_id < CpuSet::MAX_CPU {
        one.set(queue_id);
        // This fails for a CPU that is offline or not permitted; then the thread runs on another CPU.
        let _ = sched_setaffinity(None, &one);
    }
    let queue = &queues.queues[queue_id];
    let _ = queue.thread.set(std::thread::current().id());
    queue.serving.start();
    // Buffer for reads of the eventfd. Like the entries' memory it outlives the ring.
    let mut rung = [0; 8];
    let mut ring: IoUring<Entry128, cqueue::Entry> =
        IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(2 * DEPTH as u32)?;
    Ring { ring: &mut ring, queue, queue_id: queue_id as u16, rung: &mut rung }.run(session, queues)
}

struct Ring<'a> {
    ring: &'a mut IoUring<Entry128, cqueue::Entry>,
    queue: &'a Arc<Queue>,
    queue_id: u16,
    /// Buffer for reads of the eventfd.
    rung: &'a mut [u8; 8],
}

impl Ring<'_> {
    fn run<H: Handler>(&mut self, session: &Session<H>, queues: &Queues) -> io::Result<()> {
        for index in 0..DEPTH {
            self.push(session.connection(), REGISTER, index)?;
        }
        self.listen()?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => return Err(error),
            }
            let done: Vec<(u64, i32)> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (number, result) in done {
                match (number, result) {
                    (BELL, _) if queues.have_failed() => return Ok(()),
                    (BELL, _) => self.listen()?,
                    (index, 0) => {
                        self.answer(session, index as usize);
                        self.queue.serving.note_request(&queues.policies);
                    }
                    // The connection has ended: the kernel does not use the entry any more.
                    (_, result) if [libc::ENOTCONN, libc::ENODEV, libc::ECANCELED].contains(&-result) => {
                        return Ok(());
                    }
                    (_, result) if session.connection().has_ended() || result == -libc::EINTR => {
                        return Ok(());
                    }
                    (_, result) => return Err(io::Error::from_raw_os_error(-result)),
                }
                self.commit(session.connection())?;
            }
            self.commit(session.connection())?;
        }
    }

    /// Commits the entries that have replies.
    fn commit(&mut self, connection: &Connection) -> io::Result<()> {
        let ready = std::mem::take(&mut *self.queue.ready.lock().unwrap_or_else(PoisonError::into_inner));
        for index in ready {
            self.push(connection, COMMIT_AND_FETCH, index)?;
        }
        Ok(())
    }

    fn answer<H: Handler>(&mut self, session: &Session<H>, index: usize) {
        let slot = Slot { queue: Arc::clone(self.queue), index };
        // Copied, because the reply overwrites the request's header.
        let mut header = [0; ENT];
        header.copy_from_slice(&slot.header()[..ENT]);
        let len = slot.header()[PAYLOAD_LEN..PAYLOAD_LEN + 4].try_into().map_or(0, u32::from_ne_bytes);
        let begun = session.begin(&header);
        let unique = InHeader::read_from_prefix(&header).map_or(0, |(header, _)| header.unique);
        PAYLOAD.with_borrow_mut(|tail| {
            let payload = slot.payload();
            let len = (len as usize).min(payload.len());
            tail.clear();
            tail.extend_from_slice(&payload[..len]);
            let fixed = &header[OP_IN..OP_IN + FIXED_MAX];
            let request =
                Request::parse_parts(&header[..size_of::<InHeader>()], fixed, tail, session.layout());
            let reply = Reply::to_ring(slot, unique, begun);
            match request {
                Ok(request) => session.dispatch(&request, reply),
                Err(_) => reply.error(libc::EIO),
            }
        });
    }

    /// Submits a read of the eventfd, so that a write by another thread wakes this one.
    fn listen(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.queue.bell.as_raw_fd());
        let read = opcode::Read::new(bell, self.rung.as_mut_ptr(), 8).build().user_data(BELL);
        self.submit(read.into())
    }

    fn push(&mut self, connection: &Connection, command: u32, index: usize) -> io::Result<()> {
        let memory = &self.queue.entries[index];
        let commit_id: u64 = {
            let slot = Slot { queue: Arc::clone(self.queue), index };
            slot.header()[COMMIT_ID..COMMIT_ID + 8].try_into().map_or(0, u64::from_ne_bytes)
        };
        let mut cmd = [0; 80];
        if command == COMMIT_AND_FETCH {
            cmd[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        }
        cmd[16..18].copy_from_slice(&self.queue_id.to_ne_bytes());
        let fd = types::Fd(connection.fd().as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command)
            .cmd(cmd)
            .addr((command == REGISTER).then_some(memory.iovecs.as_ptr() as u64))
            .build()
            .user_data(index as u64);
        // The crate has no field for `len`, which is the number of iovecs.
        // SAFETY: an entry of 128 bytes is plain data; `len` is the 32-bit word at offset 24.
        let entry: Entry128 = unsafe {
            let mut bytes: [u8; 128] = std::mem::transmute(entry);
            if command == REGISTER {
                bytes[24..28].copy_from_slice(&2_u32.to_ne_bytes());
            }
            std::mem::transmute(bytes)
        };
        self.submit(entry)
    }

    fn submit(&mut self, entry: Entry128) -> io::Result<()> {
        loop {
            // SAFETY: the memory that an entry names lives as long as the ring: iovecs and their parts in the
            // queue, `rung` here.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }
}
