//! What workers pass between two operations.

use std::sync::{Condvar, Mutex, PoisonError};

/// What the workers are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Work.
    Go,
    /// Wait until this changes.
    Rest,
    /// Return.
    Stop,
}

/// A gate, closed at first.
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

    /// Waits as long as it is time to rest. `false`: return.
    pub(super) fn pass(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| *state == State::Rest);
        *state.unwrap_or_else(PoisonError::into_inner) == State::Go
    }
}
