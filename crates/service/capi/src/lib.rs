//! The C library: `libextant.so`, `libextant.a` and `include/extant.h`.
//!
//! Owns: the C interface of the crate `extant`, and nothing else: no knowledge of ext4. Does **not** own: any
//! operation. docs/c.md is the page for users.
//!
//! The types and functions have their C names. The doc comments of what is exported are those of the header,
//! which the test `header` generates with cbindgen.
//!
//! Invariants
//! 1. A caller's pointer is read and written by [`border`] only. Other modules have `unsafe` only where a
//!    pointer and a length are separate arguments.
//! 2. No panic crosses the border: [`border::call`] turns it into an error of the kind `Internal`.
//! 3. A structure that C programs allocate grows only at its end, where it has a size, or within `reserved`.

#![allow(non_camel_case_types, reason = "the types have their C names")]
#![allow(unreachable_pub, reason = "cbindgen exports what is `pub`")]

// The header has the functions in this order.
mod border;
mod error;

mod fs;
mod stat;

mod dir;
mod xattr;

mod file;

mod change;

mod storage;

mod step;

mod build;
mod mkfs;

mod check;
mod found;
mod repair;
mod resize;

use std::ffi::{CStr, c_char};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("the version has a NUL"),
};

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn extant_version() -> *const c_char {
    VERSION.as_ptr()
}
