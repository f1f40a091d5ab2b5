//! The native part of the Python package `extant_ext4`: the public library's calls as a Python module.
//!
//! Owns: conversions between Python's values and the library's, releasing the interpreter's lock (the GIL),
//! Python's exceptions. Does **not** own: any knowledge of ext4 (the crate `extant`), the interface that
//! Python programs see (the Python sources in `python/extant_ext4`).
//!
//! ```text
//!  extant_ext4/*.py     Path, FileSystem, files, Builder, reports       what programs import
//!  _native              this crate                                      bytes, numbers, handles
//!  extant               the library
//! ```
//!
//! Invariants
//! 1. A thread calls the library only while it does not hold the GIL. A device that is a Python object takes
//!    the GIL for each transfer, from any thread of the library. A thread that held the GIL during a call
//!    would block all these threads.
//! 2. Closing a file system closes its files, listings and scans first, so that the image is left clean.
//! 3. Paths and names are bytes here. In Python they are `str`, UTF-8 with surrogateescape, or `bytes`.

#![forbid(unsafe_code)]

mod build;
mod device;
mod errors;
mod files;
mod fs;
mod handles;
mod scan;
mod stat;
mod text;
mod tools;
mod watch;

use pyo3::prelude::*;

/// The module `extant_ext4._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CorruptError", py.get_type::<errors::CorruptError>())?;
    module.add("OpenError", py.get_type::<errors::OpenError>())?;
    module.add_class::<fs::FileSystem>()?;
    module.add_class::<files::File>()?;
    module.add_class::<files::Listing>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<stat::Stat>()?;
    module.add_function(wrap_pyfunction!(fs::open, module)?)?;
    module.add_function(wrap_pyfunction!(build::build, module)?)?;
    module.add_function(wrap_pyfunction!(tools::mkfs, module)?)?;
    module.add_function(wrap_pyfunction!(tools::check, module)?)?;
    module.add_function(wrap_pyfunction!(tools::resize, module)?)?;
    module.add_function(wrap_pyfunction!(tools::repair, module)?)
}
