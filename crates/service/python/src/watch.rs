//! Long work, with progress and cancelling.
//!
//! ```text
//!  the caller's thread    waits, calls the report and looks for signals 10 times a second
//!  a second thread        works, without the GIL
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// Time between two reports.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the answer of a callback lets the work go on: everything but False does.
pub(crate) fn goes_on(answer: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!answer.is_instance_of::<PyBool>() || answer.is_truthy()?)
}

/// Runs `work` in a second thread. `report` is called at the start, meanwhile, and at the end of work that
/// succeeds. If it returns false or raises, or a signal raises, `cancel` is set, and `work` is expected to
/// end. The outer error is what was raised.
pub(crate) fn watched<T: Send, E: Send>(
    py: Python<'_>,
    cancel: &AtomicBool,
    report: &(dyn Fn(Python<'_>) -> PyResult<bool> + Sync),
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<Result<T, E>> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let look = || {
        let answer = Python::try_attach(|py| {
            py.check_signals()?;
            report(py)
        });
        match answer {
            Some(Ok(true)) => {}
            Some(Err(error)) => {
                *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                cancel.store(true, Ordering::Relaxed);
            }
            Some(Ok(false)) | None => cancel.store(true, Ordering::Relaxed),
        }
    };
    let result = py.detach(|| {
        look();
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            scope.spawn(move || {
                let _ = send.send(work());
            });
            loop {
                match receive.recv_timeout(PAUSE) {
                    Ok(result) => {
                        if result.is_ok() {
                            look();
                        }
                        return Some(result);
                    }
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {
                        if !cancel.load(Ordering::Relaxed) {
                            look();
                        }
                    }
                }
            }
        })
    });
    if let Some(error) = raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    result.ok_or_else(|| PyValueError::new_err("the work ended without a result"))
}
