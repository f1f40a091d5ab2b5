//! The library's errors as Python's exceptions: `OSError` and its subclasses, with errno, message and file
//! name.
//!
//! `OSError(errno, ..)` makes the subclass of the number itself: `FileNotFoundError` and so on.

use std::io;

use extant::build::{BuildFault, SolveFault, SourceFault};
use extant::check::CheckImageFault;
use extant::mkfs::MkfsImageFault;
use extant::repair::{RepairFault, UndoFault};
use extant::resize::ResizeFault;
use extant::walk::{Problem, WalkFault};
use extant::{Corrupt, DeviceFault, Error, Fault, OpenFault};
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::text::text_of;

create_exception!(extant_ext4, CorruptError, PyOSError, "The image breaks a rule of the format.");
create_exception!(extant_ext4, OpenError, PyOSError, "The image holds no file system that can be opened so.");

/// Numbers of Linux.
const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;
const ELOOP: i32 = 40;
const EUCLEAN: i32 = 117;

/// Something is used after it was closed.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("operation on a closed {what}"))
}

/// `OSError` with a path in the image.
fn at(py: Python<'_>, errno: i32, message: String, path: &[u8]) -> PyErr {
    match text_of(py, path) {
        Ok(path) => PyOSError::new_err((errno, message, path.unbind())),
        Err(error) => error,
    }
}

/// `OSError` with a file of the host.
pub(crate) fn on_host(errno: i32, message: String, file: &str) -> PyErr {
    PyOSError::new_err((errno, message, file.to_owned()))
}

/// An error of a system call on a file of the host.
pub(crate) fn of_io(error: &io::Error, file: &str) -> PyErr {
    let errno = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::ResourceBusy => EBUSY,
        io::ErrorKind::AlreadyExists => EEXIST,
        io::ErrorKind::NotFound => 2,
        io::ErrorKind::PermissionDenied => 13,
        io::ErrorKind::InvalidInput => EINVAL,
        io::ErrorKind::OutOfMemory => ENOMEM,
        _ => EIO,
    });
    on_host(errno, said(error), file)
}

/// The message of an error without Rust's suffix "(os error N)".
fn said(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// The number of the first error of the operating system in a chain of errors.
fn errno_in(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && let Some(errno) = error.raw_os_error()
        {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

/// A fault at a path.
pub(crate) fn of_fault(py: Python<'_>, fault: &Fault, path: &[u8]) -> PyErr {
    match fault {
        Fault::Corrupt(corrupt) => of_corrupt(py, corrupt, fault.to_string(), path),
        _ => at(py, fault.errno(), fault.to_string(), path),
    }
}

fn of_corrupt(py: Python<'_>, corrupt: &Corrupt, message: String, path: &[u8]) -> PyErr {
    corrupt_at(py, message, path, corrupt.place.ino.map(|ino| ino.0), corrupt.place.block.map(|b| b.0))
}

fn corrupt_at(py: Python<'_>, message: String, path: &[u8], ino: Option<u32>, block: Option<u64>) -> PyErr {
    let make = || {
        let error = CorruptError::new_err((EUCLEAN, message, text_of(py, path)?.unbind()));
        error.value(py).setattr("ino", ino)?;
        error.value(py).setattr("block", block)?;
        Ok(error)
    };
    make().unwrap_or_else(|error| error)
}

/// An error of an operation on a file system.
pub(crate) fn of(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Image { image, source } => of_io(source, &image.to_string_lossy()),
        Error::Open { image, source } => of_open(source, &image.to_string_lossy()),
        Error::At { path, fault } => of_fault(py, fault, path),
        Error::Between { from, to, fault } => {
            let make = || {
                let (from, to) = (text_of(py, from)?.unbind(), text_of(py, to)?.unbind());
                Ok(match fault {
                    Fault::Corrupt(_) => CorruptError::new_err((EUCLEAN, fault.to_string(), from)),
                    _ => PyOSError::new_err((fault.errno(), fault.to_string(), from, py.None(), to)),
                })
            };
            make().unwrap_or_else(|error| error)
        }
        Error::TooLarge { path, len } => {
            at(py, ENOMEM, format!("{len} bytes do not fit into memory; read the file in pieces"), path)
        }
    }
}

/// A file system that cannot be opened.
pub(crate) fn of_open(fault: &OpenFault, image: &str) -> PyErr {
    OpenError::new_err((fault.errno(), fault.to_string(), image.to_owned()))
}

/// An error of the device under an image.
pub(crate) fn of_device(fault: &DeviceFault, image: &str) -> PyErr {
    on_host(fault.os_error().unwrap_or(EINVAL), fault.to_string(), image)
}

/// What a walk could not read.
pub(crate) fn of_walk(py: Python<'_>, fault: &WalkFault, path: &[u8]) -> PyErr {
    match &fault.problem {
        Problem::Fault(fault) => of_fault(py, fault, path),
        Problem::SecondWay(ino) => corrupt_at(py, fault.problem.to_string(), path, Some(ino.0), None),
        Problem::TooDeep => at(py, ELOOP, fault.problem.to_string(), path),
    }
}

/// Work that the caller ended.
fn cancelled(image: &str) -> PyErr {
    on_host(EINTR, "cancelled".to_owned(), image)
}

/// A build that failed.
pub(crate) fn of_build(fault: &BuildFault, image: &str) -> PyErr {
    match fault {
        fault if fault.is_interrupted() => cancelled(image),
        BuildFault::TargetExists(_) => {
            on_host(EEXIST, "the image exists already; write(.., replace=True) replaces it".to_owned(), image)
        }
        BuildFault::Target { source, .. } => of_io(source, image),
        BuildFault::Source(SourceFault::Io { what, path, source }) => {
            let message = format!("cannot {what} it: {}", said(source));
            on_host(source.raw_os_error().unwrap_or(EIO), message, &path.to_string_lossy())
        }
        BuildFault::Problems(problems) => match problems.as_slice() {
            [] => on_host(EIO, fault.to_string(), image),
            [first, ..] => on_host(EIO, format!("{fault}; the first: {}", first.why), &first.path),
        },
        BuildFault::Solve(SolveFault::TooSmall { .. }) => on_host(ENOSPC, fault.to_string(), image),
        _ => on_host(errno_in(fault).unwrap_or(EINVAL), fault.to_string(), image),
    }
}

/// A file system that was not made.
pub(crate) fn of_mkfs(fault: &MkfsImageFault, image: &str) -> PyErr {
    match fault {
        fault if fault.is_interrupted() => cancelled(image),
        MkfsImageFault::Image { source, .. } => of_io(source, image),
        MkfsImageFault::Mkfs(fault) => on_host(errno_in(fault).unwrap_or(EINVAL), fault.to_string(), image),
    }
}

/// A check that gave no report.
pub(crate) fn of_check(fault: &CheckImageFault, image: &str) -> PyErr {
    match fault {
        fault if fault.is_interrupted() => cancelled(image),
        CheckImageFault::Image { source, .. } => of_io(source, image),
        CheckImageFault::Check { source, .. } => {
            on_host(errno_in(source).unwrap_or(EIO), source.to_string(), image)
        }
    }
}

/// A resize that failed.
pub(crate) fn of_resize(fault: &ResizeFault, image: &str) -> PyErr {
    match fault {
        fault if fault.is_interrupted() => cancelled(image),
        ResizeFault::Image(source) => of_io(source, image),
        ResizeFault::Open(fault) => of_open(fault, image),
        ResizeFault::Damaged(_) => CorruptError::new_err((EUCLEAN, fault.to_string(), image.to_owned())),
        ResizeFault::TooSmall { .. } | ResizeFault::NoSpace | ResizeFault::DeviceTooSmall { .. } => {
            on_host(ENOSPC, fault.to_string(), image)
        }
        _ => on_host(errno_in(fault).unwrap_or(EINVAL), fault.to_string(), image),
    }
}

/// A repair that failed.
pub(crate) fn of_repair(fault: &RepairFault, image: &str) -> PyErr {
    match fault {
        fault if fault.is_interrupted() => cancelled(image),
        RepairFault::Image(source) => of_io(source, image),
        RepairFault::InUse
        | RepairFault::Lost(_)
        | RepairFault::Undo(UndoFault::InUse | UndoFault::Lost(_)) => {
            on_host(EBUSY, fault.to_string(), image)
        }
        RepairFault::NoSuperblock(_) | RepairFault::Protection(_) => {
            CorruptError::new_err((EUCLEAN, fault.to_string(), image.to_owned()))
        }
        _ => on_host(errno_in(fault).unwrap_or(EIO), fault.to_string(), image),
    }
}
