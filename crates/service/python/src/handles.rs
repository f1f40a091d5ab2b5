//! Values that can be closed while Python objects still refer to them.
//!
//! Invariant: a value is used and dropped only by threads that do not hold the GIL (invariant 1 of the
//! crate): dropping one may wait for the library's threads.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use pyo3::prelude::*;

use crate::device::in_object;

/// A value until it is closed.
pub(crate) struct Slot<T>(RwLock<Option<T>>);

impl<T> Slot<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RwLock::new(Some(value)))
    }

    /// Runs `work` with the value; `None` if it is closed. Closing waits for `work`.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(work)
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl<T: Send + Sync + 'static> Slot<T> {
    /// Closes the value for the destructor of a Python object, which holds the GIL. If the interpreter is
    /// shutting down, the value is leaked: its threads may never get the GIL again, so nothing may wait for
    /// them. A thread that is in a call of an object that is a device may not wait either.
    pub(crate) fn close_in_destructor(&self) {
        if in_object() {
            let value = self.take();
            std::thread::spawn(move || drop(value));
        } else if Python::try_attach(|py| py.detach(|| drop(self.take()))).is_none() {
            std::mem::forget(self.take());
        }
    }
}

/// What can be closed.
pub(crate) trait Close: Send + Sync {
    fn close(&self);
}

impl<T: Send + Sync> Close for Slot<T> {
    fn close(&self) {
        drop(self.take());
    }
}

/// What was opened in a file system and may still be open.
#[derive(Default)]
pub(crate) struct Opened(Mutex<Tracked>);

#[derive(Default)]
struct Tracked {
    all: Vec<Weak<dyn Close>>,
    /// The number at which those that are gone are removed.
    limit: usize,
}

impl Opened {
    pub(crate) fn add<T: Send + Sync + 'static>(&self, slot: &Arc<Slot<T>>) {
        let mut tracked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tracked.all.len() >= tracked.limit {
            tracked.all.retain(|slot| slot.strong_count() > 0);
            tracked.limit = (2 * tracked.all.len()).max(64);
        }
        let slot: Arc<dyn Close> = Arc::<Slot<T>>::clone(slot);
        tracked.all.push(Arc::downgrade(&slot));
    }

    pub(crate) fn close_all(&self) {
        let all = std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).all);
        all.iter().filter_map(Weak::upgrade).for_each(|slot| slot.close());
    }
}
