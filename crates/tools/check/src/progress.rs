//! Progress reports of a running check.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Receives progress reports of a check.
pub trait Progress: Sync {
    /// `done` of `total` steps of `pass` are complete. Called from any thread, at most a few times a second,
    /// and once at the end of each pass with `done == total`.
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
    /// Begins a pass of `total` steps.
    pub(crate) fn new(to: Option<&'p dyn Progress>, pass: &'static str, total: u64) -> Self {
        Self { to, pass, total, done: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }

    /// Adds `steps` completed steps.
    pub(crate) fn add(&self, steps: u64) {
        let Some(to) = self.to else { return };
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        // If another thread holds the clock, that thread reports.
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.elapsed() >= PAUSE {
            *last = Instant::now();
            to.step(self.pass, done.min(self.total), self.total);
        }
    }

    /// Ends the pass.
    pub(crate) fn finish(&self) {
        if let Some(to) = self.to {
            to.step(self.pass, self.total, self.total);
        }
    }
}
