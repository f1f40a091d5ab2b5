//! Pages of the kernel's cache that are dropped before a request is answered (INV-U11).
//!
//! - A write past the cache made them old. The kernel drops them by itself after a write that it waits for.
//!   After one of io_submit(2) or io_uring it does not, and a reader that filled a page while the write was
//!   under way would see the old bytes for as long as the kernel keeps the page.
//! - They hold bytes that the kernel was given and did not pass on yet: dropping a page writes it first.
//!
//! ```text
//!   server's thread:  queue
//!   this thread:      queue --> pages dropped --> answer
//! ```
//!
//! Invariant: no server's thread drops pages itself. The kernel waits for pages that are being read or
//! written, and these requests wait for a server's thread.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use extant_fuse_lowlevel::Notifier;

/// What is to be dropped, and what comes then.
struct Drop {
    node: u64,
    range: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

/// The queue, and its thread.
pub(super) struct Drops {
    notifier: Arc<OnceLock<Notifier>>,
    queue: Mutex<Option<Sender<Drop>>>,
}

impl Drops {
    pub(super) fn new(notifier: Arc<OnceLock<Notifier>>) -> Self {
        Self { notifier, queue: Mutex::default() }
    }

    /// Has the kernel drop its pages of a range, and its attributes; then does the rest. Not in this thread.
    pub(super) fn after(&self, node: u64, range: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let drop = Drop { node, range, then: Box::new(then) };
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let left = match &*queue {
            Some(sender) => sender.send(drop).err().map(|refused| refused.0),
            None => Some(drop),
        };
        // Without the thread the answer comes all the same.
        if let Some(drop) = left {
            (drop.then)();
        }
    }

    /// Starts the thread. Not from a thread that serves requests: that one may be bound to a CPU, and what it
    /// starts would be as well.
    pub(super) fn start(&self) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let (sender, receiver) = channel::<Drop>();
        let work = move || {
            for Drop { node, range, then } in receiver {
                // A length of 0 stands for all that follows; a negative offset would stand for attributes
                // alone.
                let len = i64::try_from(range.end - range.start).unwrap_or(0);
                if let Ok(start) = i64::try_from(range.start) {
                    // An error says that the kernel has nothing of it.
                    let _ = notifier.inval_inode(node, start, len);
                }
                then();
            }
        };
        if std::thread::Builder::new().name("drops".to_owned()).spawn(work).is_ok() {
            *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        }
    }
}
