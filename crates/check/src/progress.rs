//! Telling somebody how far a check is, without slowing it down.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Wants to know how far a check is.
pub trait Progress: Sync {
    /// `done` of `total` steps of `pass` are over. Called from any thread, a few times a second at most, and once at
    /// the end of each pass with `done == total`.
    fn step(&self, pass: &'static str, done: u64, total: u64);
}

const PAUSE: Duration = Duration::from_millis(50);

/// Counts the steps of one pass, from several threads.
pub(crate) struct Meter<'p> {
    to: Option<&'p dyn Progress>,
    pass: &'static str,
    total: u64,
    done: AtomicU64,
    last: Mutex<Instant>,
}

impl<'p> Meter<'p> {
    /// A pass of `total` steps begins.
    pub(crate) fn new(to: Option<&'p dyn Progress>, pass: &'static str, total: u64) -> Self {
        Self { to, pass, total, done: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }

    /// `steps` more are over.
    pub(crate) fn add(&self, steps: u64) {
        let Some(to) = self.to else { return };
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        // Whoever finds the clock taken leaves the telling to its holder.
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.elapsed() >= PAUSE {
            *last = Instant::now();
            to.step(self.pass, done.min(self.total), self.total);
        }
    }

    /// The pass is over.
    pub(crate) fn finish(&self) {
        if let Some(to) = self.to {
            to.step(self.pass, self.total, self.total);
        }
    }
}
