//! Progress and cancelling of checks, repairs, resizes and mkfs.

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use facade::check::Progress;
use facade::mkfs::Meter;
use facade::resize::ResizeObserver;

use crate::border::Context;

/// The state of a check, repair, resize or mkfs. Valid during the callback.
#[repr(C)]
pub struct extant_step {
    /// The name of the step, such as "pass 1: inodes", "moving" or "zeroing".
    pub name: *const c_char,
    /// Units of the step that are done: groups, directories, blocks.
    pub done: u64,
    /// All units of the step.
    pub total: u64,
}

/// A function of the caller that gets the state, and ends the work by any result but 0.
type StepFunction = extern "C" fn(user: Context, step: *const extant_step) -> c_int;

/// Passes progress on to a function of the caller.
pub(crate) struct Steps {
    progress: Option<StepFunction>,
    user: Context,
    /// Held during the callback, so that threads call it one at a time.
    turn: Mutex<()>,
    /// Set when the function ends the work.
    pub(crate) cancel: Arc<AtomicBool>,
}

impl Steps {
    pub(crate) fn new(progress: Option<StepFunction>, user: Context) -> Self {
        Self { progress, user, turn: Mutex::new(()), cancel: Arc::default() }
    }

    fn report(&self, name: &str, done: u64, total: u64) {
        let Some(progress) = self.progress else { return };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.cancel.load(Ordering::Relaxed) {
            return;
        }
        let name = CString::new(name).unwrap_or_default();
        if progress(self.user, &extant_step { name: name.as_ptr(), done, total }) != 0 {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
}

impl Progress for Steps {
    fn step(&self, pass: &'static str, done: u64, total: u64) {
        self.report(pass, done, total);
    }
}

impl ResizeObserver for Steps {
    fn progress(&self, what: &'static str, done: u64, of: u64) {
        self.report(what, done, of);
    }
}

impl Meter for Steps {
    fn wrote(&self, _bytes: u64, _files: u64) {}

    fn advanced(&self, name: &'static str, done: u64, total: u64) {
        self.report(name, done, total);
    }
}
