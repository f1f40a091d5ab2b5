//! Invalidation of what the kernel caches: attributes at once, pages by a thread (INV-U11).
//!
//! There are two reasons to invalidate pages before a reply:
//! - Direct I/O made them stale. The kernel invalidates them itself after a synchronous direct write, but not
//!   after one of io_submit(2) or io_uring. If a page was read during such a write, it would return the old
//!   bytes for as long as the kernel caches it.
//! - They are dirty (`writeback_cache`), and the request needs their data: an invalidation writes dirty pages
//!   back first.
//!
//! ```text
//!   server thread:        queue (node, range, reply)
//!   invalidation thread:  take from the queue --> FUSE_NOTIFY_INVAL_INODE --> reply
//! ```
//!
//! Owns: the connection's [`Notifier`], and a channel to one thread, which exists only if the volume is
//! writable. The thread ends when the channel is closed, together with the transport.
//!
//! Invariant: no server thread invalidates pages itself. The kernel waits for pages that are being read or
//! written, and these requests wait for a server thread: a deadlock.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use extant_fuse_lowlevel::Notifier;

/// A queued invalidation, and the function to call after it.
struct Invalidation {
    node: u64,
    range: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

/// The queue of invalidations, and the thread that executes them.
#[derive(Default)]
pub(super) struct Invalidator {
    /// Set once the session exists.
    notifier: OnceLock<Notifier>,
    queue: Mutex<Option<Sender<Invalidation>>>,
}

impl Invalidator {
    /// Makes invalidations of attributes possible.
    pub(super) fn connect(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Invalidates the kernel's cached attributes of an inode.
    pub(super) fn invalidate_attributes(&self, node: u64) {
        if let Some(notifier) = self.notifier.get() {
            // A negative offset keeps the pages. An error means that the kernel does not have the inode.
            let _ = notifier.inval_inode(node, -1, 0);
        }
    }

    /// Queues an invalidation of an inode's attributes and of its pages in a range. The thread calls `then`
    /// afterwards.
    pub(super) fn invalidate_then(&self, node: u64, range: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let invalidation = Invalidation { node, range, then: Box::new(then) };
        let left = match &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(sender) => sender.send(invalidation).err().map(|refused| refused.0),
            None => Some(invalidation),
        };
        // Without the thread nothing is invalidated, but the reply must be sent.
        if let Some(invalidation) = left {
            (invalidation.then)();
        }
    }

    /// Starts the thread. Not to be called by a thread that serves requests: it may be bound to a CPU, and a
    /// new thread inherits that.
    pub(super) fn start(&self) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let (sender, receiver) = channel::<Invalidation>();
        let work = move || {
            for Invalidation { node, range, then } in receiver {
                // A length of 0 means up to the end. (A negative offset means attributes only.)
                let len = i64::try_from(range.end - range.start).unwrap_or(0);
                if let Ok(start) = i64::try_from(range.start) {
                    // An error means that the kernel does not have the inode.
                    let _ = notifier.inval_inode(node, start, len);
                }
                then();
            }
        };
        if std::thread::Builder::new().name("invalidate".to_owned()).spawn(work).is_ok() {
            *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        }
    }
}
