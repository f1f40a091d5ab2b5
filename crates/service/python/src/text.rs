//! Paths and names between Python and ext4, where they are bytes.
//!
//! `str` is UTF-8, and a byte that is not UTF-8 is a lone surrogate (surrogateescape), as in `os.fsdecode`.
//! The encoding is always UTF-8 for what is in an image, whatever the locale is.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// The bytes of a path or name: `str` or `bytes`.
pub(crate) fn bytes_of(name: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let bytes = if let Ok(bytes) = name.cast::<PyBytes>() {
        bytes.as_bytes().to_vec()
    } else if let Ok(text) = name.cast::<PyString>() {
        match text.to_cow() {
            Ok(text) => text.into_owned().into_bytes(),
            Err(_) => text.call_method1("encode", ("utf-8", "surrogateescape"))?.extract()?,
        }
    } else {
        return Err(PyTypeError::new_err(format!("a path is str or bytes, not {}", name.get_type().name()?)));
    };
    if bytes.contains(&0) {
        return Err(PyValueError::new_err("embedded null byte"));
    }
    Ok(bytes)
}

/// A `str` of bytes.
pub(crate) fn text_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => {
            let text = PyBytes::new(py, bytes).call_method1("decode", ("utf-8", "surrogateescape"))?;
            Ok(text.cast_into::<PyString>()?)
        }
    }
}
