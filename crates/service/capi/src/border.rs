//! What crosses the border to C: pointers, options that may grow, errors and panics.
//!
//! Owns: the types that the arguments of exported functions have, the only places where a caller's pointer
//! is read or written, and [`call`], through which every function that can fail runs. Does **not** own: any
//! exported function.
//!
//! Invariants
//! 1. A value of [`Text`], [`Out`], [`Handle`], [`Options`] or [`Array`] that is not null comes from a C
//!    caller: they have private fields and no constructors, and cannot be copied. So their methods
//!    may rely on what the header demands of the argument: it points to a live value of its type, or is NULL.
//! 2. No panic leaves [`call`] or [`quietly`].

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::{Failure, extant_code, extant_error};

/// A NUL-terminated string of the caller, or NULL.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The bytes without the NUL; `None` for NULL.
    pub(crate) fn get(&self) -> Option<&[u8]> {
        // SAFETY: invariant 1; the header demands a terminated string that lives during the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The bytes of an argument that must not be NULL.
    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8], Failure> {
        self.get().ok_or_else(|| Failure::null(name))
    }

    /// A path that must not be NULL.
    pub(crate) fn path(&self) -> Result<&Path, Failure> {
        Ok(Path::new(OsStr::from_bytes(self.bytes("the path")?)))
    }

    /// UTF-8 that may be missing.
    pub(crate) fn utf8(&self, name: &str) -> Result<Option<&str>, Failure> {
        let bytes = self.get();
        bytes
            .map(std::str::from_utf8)
            .transpose()
            .map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
    }
}

/// Where a result goes, or NULL.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses NULL.
    pub(crate) fn require(&self, name: &str) -> Result<(), Failure> {
        if self.0.is_null() { Err(Failure::null(name)) } else { Ok(()) }
    }

    /// Writes the result, unless the caller passed NULL.
    pub(crate) fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: invariant 1; the place may be uninitialised, so it is written without a drop.
            unsafe { self.0.write(value) }
        }
    }
}

impl<T> Out<*mut T> {
    /// Refuses NULL, and clears the place, so that it is NULL after an error.
    pub(crate) fn clear(&self, name: &str) -> Result<(), Failure> {
        self.require(name)?;
        self.set(std::ptr::null_mut());
        Ok(())
    }

    /// Passes the ownership of a handle to the caller; drops it if the caller passed NULL.
    pub(crate) fn give(&self, value: T) {
        if !self.0.is_null() {
            self.set(Box::into_raw(Box::new(value)));
        }
    }
}

/// A handle that an exported function returned, or NULL.
#[repr(transparent)]
pub struct Handle<T>(*const T);

impl<T: Sync> Handle<T> {
    pub(crate) fn get(&self, name: &str) -> Result<&T, Failure> {
        // SAFETY: invariant 1; the header forbids closing a handle during a call that uses it.
        unsafe { self.0.as_ref() }.ok_or_else(|| Failure::null(name))
    }

    /// What `of` returns; `absent` for NULL.
    pub(crate) fn map_or<V>(&self, absent: V, of: impl FnOnce(&T) -> V) -> V {
        self.get("").map_or(absent, of)
    }
}

/// A structure whose first field is its size as the caller's header declares it, or NULL.
#[repr(transparent)]
pub struct Options<T>(*const T);

/// Structures behind [`Options`].
///
/// # Safety
/// The type is `repr(C)`, its first field is a `usize`, all bytes that a C program may store in it are valid
/// (integers, floating-point numbers, pointers, nullable functions), and so are all zeros.
pub(crate) unsafe trait Growing: Sized {
    /// The size of the first version of the structure in bytes.
    const SIZE_MIN: usize = size_of::<Self>();
}

impl<T: Growing> Options<T> {
    /// A copy of the structure, zeros where the caller's version has fewer fields; `None` for NULL.
    pub(crate) fn get(&self, name: &str) -> Result<Option<T>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: invariant 1; the first field is the size (`Growing`).
        let size = unsafe { self.0.cast::<usize>().read() };
        if size < T::SIZE_MIN {
            let needed = T::SIZE_MIN;
            return Err(Failure::argument(format!(
                "{name}: size is {size}, not the sizeof of at least {needed}"
            )));
        }
        let from = self.0.cast::<u8>();
        let known = size.min(size_of::<T>());
        // SAFETY: the caller's structure has `size` bytes.
        let unknown = unsafe { std::slice::from_raw_parts(from.add(known), size - known) };
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Failure::argument(format!("{name} has fields that this version of libextant lacks")));
        }
        let mut copy = MaybeUninit::<T>::zeroed();
        // SAFETY: both have `known` bytes; what is left of `copy` is zero, which `Growing` allows.
        unsafe {
            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr().cast::<u8>(), known);
            Ok(Some(copy.assume_init()))
        }
    }

    /// The same, with all fields zero for NULL.
    pub(crate) fn get_or_zeros(&self, name: &str) -> Result<T, Failure> {
        // SAFETY: `Growing` allows zeros.
        Ok(self.get(name)?.unwrap_or_else(|| unsafe { MaybeUninit::zeroed().assume_init() }))
    }
}

/// The beginning of an array of the caller, whose length is a separate argument; or NULL.
#[repr(transparent)]
pub struct Array<T>(*mut T);

impl<T> Array<T> {
    /// The elements. NULL is allowed for a length of 0.
    ///
    /// # Safety
    /// The header demands that the array has `len` elements.
    pub(crate) unsafe fn slice(&self, len: usize, name: &str) -> Result<&[T], Failure> {
        self.check(len, name)?;
        // SAFETY: the caller's promise, and `check`.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.0, len) } })
    }

    /// The elements, to be overwritten.
    ///
    /// # Safety
    /// The header demands that the array has `len` elements, and that no other thread uses them.
    pub(crate) unsafe fn slice_mut(&mut self, len: usize, name: &str) -> Result<&mut [T], Failure> {
        self.check(len, name)?;
        // SAFETY: the caller's promise, and `check`.
        Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(self.0, len) } })
    }

    /// The first `N` elements; `None` for NULL.
    ///
    /// # Safety
    /// The header demands that the array has `N` elements.
    pub(crate) unsafe fn first<const N: usize>(&self) -> Option<[T; N]>
    where
        T: Copy,
    {
        // SAFETY: the caller's promise.
        (!self.0.is_null()).then(|| unsafe { self.0.cast::<[T; N]>().read_unaligned() })
    }

    fn check(&self, len: usize, name: &str) -> Result<(), Failure> {
        match len {
            0 => Ok(()),
            _ if self.0.is_null() => Err(Failure::null(name)),
            _ if len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) => {
                Err(Failure::argument(format!("the length of {name} is {len}")))
            }
            _ => Ok(()),
        }
    }
}

/// Copies a result of variable length, as getxattr(2) does: `len` receives its length in any case, and
/// `buffer` its bytes if they fit. A capacity of 0 only asks for the length.
pub(crate) fn fill(
    result: &[u8],
    buffer: &mut [u8],
    len: &Out<usize>,
    ends_in_nul: bool,
) -> Result<(), Failure> {
    len.set(result.len());
    let needed = result.len() + usize::from(ends_in_nul);
    if buffer.is_empty() {
        return Ok(());
    }
    if buffer.len() < needed {
        let text = format!("the result needs a buffer of {needed} bytes, and it has {}", buffer.len());
        return Err(Failure::new(extant_code::Refused, ERANGE, text));
    }
    buffer[..result.len()].copy_from_slice(result);
    if ends_in_nul {
        buffer[result.len()] = 0;
    }
    Ok(())
}

/// A pointer that only the caller's functions use.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Context(*mut c_void);

// SAFETY: this library never reads what it points to; the header demands that the functions that get it may
// be called by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Numbers of errno.h that more than one module uses.
pub(crate) const EIO: i32 = 5;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ERANGE: i32 = 34;

/// Where the error of a call goes.
pub type ErrorOut = Out<*mut extant_error>;

/// Runs the body of an exported function. Returns 0 or a positive number of the body, or the negative
/// errno of its error; stores the error for the caller.
pub(crate) fn call_with(error: &ErrorOut, body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(number)) => {
            error.set(std::ptr::null_mut());
            return number;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::of_panic(&*panic),
    };
    let code = -failure.errno.abs().max(1);
    error.give(failure.into_error());
    code
}

/// The same for a body that returns nothing.
pub(crate) fn call(error: &ErrorOut, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    call_with(error, || body().map(|()| 0))
}

/// Runs the body of an exported function that reports no errors.
pub(crate) fn quietly(body: impl FnOnce()) {
    // The panic was printed already, and there is no way to report it.
    let _ = catch_unwind(AssertUnwindSafe(body));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{extant_error_code, extant_error_free};

    /// Unwinding into C would be undefined behaviour.
    #[test]
    fn a_panic_becomes_an_error() {
        let mut error = std::ptr::null_mut();
        let result = call(&Out(&raw mut error), || panic!("on purpose"));
        assert_eq!(result, -EIO);
        // SAFETY: `call` stored a box.
        let error = unsafe { Box::from_raw(error) };
        assert_eq!(extant_error_code(Some(&error)), extant_code::Internal);
        extant_error_free(Some(error));
        assert_eq!(call(&Out(std::ptr::null_mut()), || panic!("on purpose")), -EIO);
        quietly(|| panic!("on purpose"));
    }

    /// A program that was compiled with an older header passes a smaller structure.
    #[test]
    fn options_may_be_shorter_and_have_zeros_at_the_end() {
        #[repr(C)]
        struct Two {
            size: usize,
            first: u64,
            second: u64,
        }
        // SAFETY: `repr(C)`, the size first, and only integers.
        unsafe impl Growing for Two {
            const SIZE_MIN: usize = 16;
        }
        let read = |fields: &[u64]| {
            Options(fields.as_ptr().cast::<Two>()).get("options").map(|options| options.unwrap().second)
        };
        assert_eq!(read(&[16, 1, 2]).unwrap(), 0);
        assert_eq!(read(&[24, 1, 2]).unwrap(), 2);
        assert_eq!(read(&[32, 1, 2, 0]).unwrap(), 2);
        assert!(read(&[32, 1, 2, 3]).is_err());
        assert!(read(&[8, 1, 2]).is_err());
    }
}
