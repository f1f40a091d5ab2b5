//! The runs of a file that are not settled: their bytes, and waiting for them.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// The runs of a file in flight.
#[derive(Default)]
pub(crate) struct Runs {
    bytes: AtomicU64,
    /// Counts settled runs, for callers that wait for one.
    settled: Mutex<u64>,
    changed: Condvar,
}

impl Runs {
    /// Whether bytes are in flight.
    pub(crate) fn are_any(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) != 0
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// A run of so many bytes is settled.
    pub(crate) fn settle(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        *self.settled.lock() += 1;
        self.changed.notify_all();
    }

    /// Calls `ask` until it returns `Some`, again after each run that settles. The lock of the count is not
    /// held during the call.
    pub(crate) fn retry<T>(&self, mut ask: impl FnMut() -> Option<T>) -> T {
        loop {
            let before = *self.settled.lock();
            if let Some(answer) = ask() {
                return answer;
            }
            let mut settled = self.settled.lock();
            while *settled == before {
                self.changed.wait(&mut settled);
            }
        }
    }
}
