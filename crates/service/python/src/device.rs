//! Where the bytes of an image come from: a file by its path, or a Python object with `seek` and `read`.
//!
//! Invariants
//! 1. One thread at a time uses a Python object: `seek` and `read` are two calls. Its lock is taken before
//!    the GIL, never while holding it.
//! 2. An image that is opened for reading is never written.
//! 3. Code of an object that is called here may delete other objects (the garbage collector runs anywhere).
//!    So it may not wait for threads of the library, which may wait for the object: see [`in_object`]. An
//!    object that uses its own image gets an error instead of a deadlock.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use extant::{Backend, BackendDevice, Device, DeviceFault, FileDevice, Window};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors;

/// Most bytes of one `read` or `write` of a Python object.
const TRANSFER_MAX: usize = 8 << 20;

thread_local! {
    /// How many calls of Python objects this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The number of the thread that waits for this one, or 0.
    static WORKS_FOR: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is in a call of an object that is a device.
pub(crate) fn in_object() -> bool {
    DEPTH.get() > 0
}

/// A number of this thread, or of the one that it works for; not 0.
fn this_thread() -> usize {
    match WORKS_FOR.get() {
        0 => DEPTH.with(|depth| std::ptr::from_ref(depth).addr()),
        other => other,
    }
}

/// A call of an object by this thread.
struct InCall<'a>(&'a AtomicUsize);

impl<'a> InCall<'a> {
    fn begin(user: &'a AtomicUsize) -> Self {
        user.store(this_thread(), Ordering::Relaxed);
        DEPTH.set(DEPTH.get() + 1);
        Self(user)
    }
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Runs `work` without the GIL. A thread that is in a call of an object is inside an operation of the file
/// system on that object, and `work` is of another one: for an image in an image. It runs in a thread of its
/// own, because the library checks the order of the locks of each thread, and knows of one file system only.
pub(crate) fn unlocked<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    if !in_object() {
        return py.detach(work);
    }
    let works_for = this_thread();
    let nested = move || {
        WORKS_FOR.set(works_for);
        DEPTH.set(1);
        work()
    };
    let done = py.detach(|| std::thread::scope(|scope| scope.spawn(nested).join()));
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A place of an image, and its name for messages.
pub(crate) enum Place {
    File(PathBuf),
    Object(PyFile),
}

impl Place {
    /// `str` is a path, anything else an object. The Python sources convert all other kinds of paths.
    pub(crate) fn of(image: &Bound<'_, PyAny>, writable: bool) -> PyResult<(Self, String)> {
        if image.is_instance_of::<PyString>() {
            let path: PathBuf = image.extract()?;
            let name = path.to_string_lossy().into_owned();
            return Ok((Self::File(path), name));
        }
        let name = match image.getattr("name").and_then(|name| name.extract::<String>()) {
            Ok(name) => name,
            Err(_) => format!("<{}>", image.get_type().name()?),
        };
        Ok((Self::Object(PyFile::new(image, &name, writable)?), name))
    }

    /// Opens the device. Called without the GIL.
    pub(crate) fn open(
        self,
        writable: bool,
        offset: u64,
        size: Option<u64>,
    ) -> Result<Arc<dyn Device>, Refused> {
        let device: Arc<dyn Device> = match self {
            Self::File(path) if writable => Arc::new(FileDevice::open_locked(&path)?),
            Self::File(path) => Arc::new(FileDevice::open_read_only(&path)?),
            Self::Object(file) => Arc::new(BackendDevice(file)),
        };
        Ok(match size {
            Some(size) => Arc::new(Window::owned(device, offset, size)?),
            None if offset > 0 => {
                let size = device.size_bytes().saturating_sub(offset);
                Arc::new(Window::owned(device, offset, size)?)
            }
            None => device,
        })
    }
}

/// Why a device cannot be opened.
pub(crate) enum Refused {
    Io(io::Error),
    Device(DeviceFault),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<DeviceFault> for Refused {
    fn from(fault: DeviceFault) -> Self {
        Self::Device(fault)
    }
}

impl Refused {
    pub(crate) fn to_python(&self, image: &str) -> PyErr {
        match self {
            Self::Io(error) => errors::of_io(error, image),
            Self::Device(fault) => errors::of_device(fault, image),
        }
    }
}

/// A seekable binary file object.
pub(crate) struct PyFile {
    object: Py<PyAny>,
    size: u64,
    writable: bool,
    turn: Mutex<()>,
    /// The thread that has the turn, or 0.
    user: AtomicUsize,
}

impl PyFile {
    fn new(object: &Bound<'_, PyAny>, name: &str, writable: bool) -> PyResult<Self> {
        let needs: &[&str] = if writable { &["seek", "read", "write"] } else { &["seek", "read"] };
        for method in needs {
            if !object.hasattr(*method)? {
                let kind = object.get_type().name()?;
                let what =
                    format!("an image is a path or a seekable binary file, and {kind} has no {method}()");
                return Err(PyTypeError::new_err(what));
            }
        }
        if writable && object.hasattr("writable")? && !object.call_method0("writable")?.is_truthy()? {
            let what = "the file object is not open for writing".to_owned();
            return Err(errors::on_host(errors::EROFS, what, name));
        }
        let size = object.py().import("extant_ext4._types")?.call_method1("end_of", (object,))?.extract()?;
        Ok(Self {
            object: object.clone().unbind(),
            size,
            writable,
            turn: Mutex::new(()),
            user: AtomicUsize::new(0),
        })
    }

    /// Calls the object at an offset.
    fn at(&self, offset: u64, work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) -> io::Result<()> {
        if self.user.load(Ordering::Relaxed) == this_thread() {
            return Err(io::Error::other("the file object of the image uses the image"));
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _in_call = InCall::begin(&self.user);
        let done = Python::try_attach(|py| {
            let object = self.object.bind(py);
            object
                .call_method1("seek", (offset,))
                .and_then(|_| work(object))
                .map_err(|error| io_of(py, error))
        });
        done.unwrap_or_else(|| Err(io::Error::other("the interpreter is shutting down")))
    }
}

/// The error of a Python object as one of a system call, with its number if it has one.
fn io_of(py: Python<'_>, error: PyErr) -> io::Error {
    let errno = error.value(py).getattr("errno").and_then(|errno| errno.extract::<i32>());
    match errno {
        Ok(errno) => io::Error::from_raw_os_error(errno),
        Err(_) => io::Error::other(error.to_string()),
    }
}

/// Fills a buffer by as many reads as the object needs.
fn fill(object: &Bound<'_, PyAny>, mut buf: &mut [u8]) -> PyResult<()> {
    while !buf.is_empty() {
        let read = object.call_method1("read", (buf.len().min(TRANSFER_MAX),))?;
        let bytes: &[u8] = read.extract()?;
        if bytes.is_empty() || bytes.len() > buf.len() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "read() returned too little or too much",
            )
            .into());
        }
        let (now, later) = buf.split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        buf = later;
    }
    Ok(())
}

/// Writes all bytes by as many writes as the object needs.
fn put(object: &Bound<'_, PyAny>, mut bytes: &[u8]) -> PyResult<()> {
    while !bytes.is_empty() {
        let part = &bytes[..bytes.len().min(TRANSFER_MAX)];
        let written = object.call_method1("write", (PyBytes::new(object.py(), part),))?;
        // Some objects return nothing from write(), having written all.
        let done = if written.is_none() { part.len() } else { written.extract::<usize>()? };
        if done == 0 || done > part.len() {
            return Err(
                io::Error::new(io::ErrorKind::WriteZero, "write() wrote too little or too much").into()
            );
        }
        bytes = &bytes[done..];
    }
    Ok(())
}

impl Backend for PyFile {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.at(offset, |object| fill(object, buf))
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.at(offset, |object| put(object, bytes))
    }

    /// Calls the object's `flush`, and fsync(2) if it has a descriptor.
    fn flush(&self) -> io::Result<()> {
        self.at(0, |object| {
            if object.hasattr("flush")? {
                object.call_method0("flush")?;
            }
            if let Ok(fd) = object.call_method0("fileno") {
                object.py().import("os")?.call_method1("fsync", (fd,))?;
            }
            Ok(())
        })
    }
}
