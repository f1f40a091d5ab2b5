//! A gate that workers pass between two operations.

use std::sync::{Condvar, Mutex, PoisonError};

/// What the workers should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Work.
    Go,
    /// Wait until the state changes.
    Rest,
    /// Return.
    Stop,
}

/// A gate, initially closed.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self { state: Mutex::new(State::Rest), changed: Condvar::new() }
    }
}

impl Gate {
    pub(super) fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits while the state is `Rest`. Returns `false` if the worker should return.
    pub(super) fn pass(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| *state == State::Rest);
        *state.unwrap_or_else(PoisonError::into_inner) == State::Go
    }
}
