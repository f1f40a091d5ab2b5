//! Concurrent transfers of one file: a batch is submitted to the kernel's ring, and waited for, as a whole.
//!
//! ```text
//!   parts --> submission queue --(one system call)--> kernel --> completion queue --> bytes of each
//! ```
//!
//! Owns: rings, kept for later batches. Does **not** own: the handling of short transfers and errors (the
//! caller's part), and the fallback for systems without rings (old kernels, seccomp,
//! `kernel.io_uring_disabled`).
//!
//! Invariants
//! 1. A batch returns after the kernel has completed every transfer that it received, even after an error:
//!    until then the kernel may write into the caller's buffers.
//! 2. A ring is used by one batch at a time. A ring that failed itself is not used again.
//!
//! Source: io_uring(7), io_uring_enter(2).

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

/// Maximum number of transfers in flight per batch.
const DEPTH: u32 = 64;
/// Maximum number of idle rings that are kept: with as many threads, batches need no new ring.
const KEPT_MAX: usize = 8;

/// The result of one transfer: bytes, or the system's error.
pub(crate) type Done = io::Result<usize>;

/// The rings of one device.
#[derive(Default)]
pub(crate) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    /// The system does not permit rings.
    is_refused: AtomicBool,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rings({} idle)", self.idle().len())
    }
}

/// One transfer, in the kernel's form.
struct Entry {
    offset: u64,
    bufs: *const IoSlice<'static>,
    count: u32,
}

impl Rings {
    /// Whether the system permits rings.
    pub(crate) fn can(&self) -> bool {
        match self.take() {
            Some(ring) => {
                self.put(ring);
                true
            }
            None => false,
        }
    }

    /// Reads into the buffers of each part, from its offset on. `None`: there are no rings; nothing was read.
    pub(crate) fn read(&self, file: &File, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Option<Vec<Done>> {
        let entries = parts.iter_mut().map(|(offset, bufs)| Entry {
            offset: *offset,
            // Both types have the layout of the kernel's iovec.
            bufs: bufs.as_mut_ptr().cast_const().cast(),
            count: bufs.len() as u32,
        });
        let entries: Vec<Entry> = entries.collect();
        // SAFETY: `parts` is borrowed mutably for as long as the batch runs: nothing else uses the buffers.
        unsafe { self.run(file, &entries, true) }
    }

    /// Writes the buffers of each part, from its offset on. `None`: there are no rings; nothing was written.
    pub(crate) fn write(&self, file: &File, parts: &[(u64, &[IoSlice<'_>])]) -> Option<Vec<Done>> {
        let entries = parts.iter().map(|(offset, bufs)| Entry {
            offset: *offset,
            bufs: bufs.as_ptr().cast(),
            count: bufs.len() as u32,
        });
        let entries: Vec<Entry> = entries.collect();
        // SAFETY: `parts` is borrowed for as long as the batch runs: the buffers do not change.
        unsafe { self.run(file, &entries, false) }
    }

    /// # Safety
    /// Buffers and lists of buffers of all entries are valid until it returns. For reads they are writable,
    /// and nothing else uses them.
    unsafe fn run(&self, file: &File, entries: &[Entry], is_read: bool) -> Option<Vec<Done>> {
        let mut ring = self.take()?;
        let mut done: Vec<Done> = entries.iter().map(|_| Err(io::ErrorKind::Interrupted.into())).collect();
        let fd = types::Fd(file.as_raw_fd());
        let (mut next, mut in_flight, mut is_sound) = (0, 0, true);
        while in_flight > 0 || (is_sound && next < entries.len()) {
            while is_sound && next < entries.len() && in_flight < DEPTH {
                let Entry { offset, bufs, count } = entries[next];
                let entry = match is_read {
                    true => opcode::Readv::new(fd, bufs.cast(), count).offset(offset).build(),
                    false => opcode::Writev::new(fd, bufs.cast(), count).offset(offset).build(),
                };
                // SAFETY: the caller keeps what the entry points to; this function does not return before its
                // completion.
                if unsafe { ring.submission().push(&entry.user_data(next as u64)) }.is_err() {
                    break;
                }
                (next, in_flight) = (next + 1, in_flight + 1);
            }
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The completion queue is full, or memory is short for a moment: transfers in flight will
                // make space.
                Err(error) if matches!(error.raw_os_error(), Some(EAGAIN | EBUSY)) => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(_) => {
                    // This ring gets no more entries. Those that it accepted will complete; the others never
                    // will.
                    is_sound = false;
                    let untaken = ring.submission().len() as u32;
                    if in_flight <= untaken {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            for completion in ring.completion() {
                in_flight -= 1;
                let result = completion.result();
                let number = completion.user_data() as usize;
                done[number] = match usize::try_from(result) {
                    Ok(bytes) => Ok(bytes),
                    Err(_) => Err(io::Error::from_raw_os_error(-result)),
                };
            }
        }
        if is_sound {
            self.put(ring);
        }
        Some(done)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<IoUring>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<IoUring> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let kept = self.idle().pop();
        kept.or_else(|| {
            let made = IoUring::builder().build(DEPTH);
            if let Err(error) = &made
                && !matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM | EAGAIN))
            {
                self.is_refused.store(true, Ordering::Relaxed);
            }
            made.ok()
        })
    }

    fn put(&self, ring: IoUring) {
        let mut idle = self.idle();
        if idle.len() < KEPT_MAX {
            idle.push(ring);
        }
    }
}

const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();
const ENFILE: i32 = rustix::io::Errno::NFILE.raw_os_error();
const ENOMEM: i32 = rustix::io::Errno::NOMEM.raw_os_error();
