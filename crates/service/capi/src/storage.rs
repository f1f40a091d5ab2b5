//! The caller's own storage as a device.

use std::ffi::{c_int, c_void};
use std::io;

use facade::{Backend, BackendDevice};

use crate::border::{Context, EIO, Growing, Options};
use crate::error::Failure;

/// For extant_storage.flags: bytes that were never written read as zeros.
pub const EXTANT_STORAGE_ZEROED: u32 = 1;

/// Storage of the caller: memory, a part of a file, a network. The functions return 0 or a negative errno,
/// and any thread may call them, also several at a time and also after the call that got this structure,
/// until `close`. The structure itself is copied.
#[repr(C)]
pub struct extant_storage {
    /// sizeof(extant_storage).
    pub size: usize,
    /// Passed to each function.
    pub user: Context,
    /// The number of bytes. It must not change while the storage is in use.
    pub bytes: u64,
    /// 0 or EXTANT_STORAGE_ZEROED.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Fills the buffer completely from byte `offset` on. The range is inside the storage.
    pub read_at: Option<extern "C" fn(user: Context, offset: u64, buffer: *mut c_void, len: usize) -> c_int>,
    /// Writes all bytes at byte `offset`. NULL if the storage is only read.
    pub write_at:
        Option<extern "C" fn(user: Context, offset: u64, bytes: *const c_void, len: usize) -> c_int>,
    /// Makes all earlier writes durable. NULL if the storage is only read, or if each write is durable
    /// when it returns.
    pub flush: Option<extern "C" fn(user: Context) -> c_int>,
    /// Called once, when the storage is not used any more; also after a failure, unless its kind is
    /// EXTANT_CODE_ARGUMENT. May be NULL.
    pub close: Option<extern "C" fn(user: Context)>,
}

// SAFETY: `repr(C)`, the size first, and only integers, a pointer and nullable functions.
unsafe impl Growing for extant_storage {}

pub type Storage = Options<extant_storage>;

type ReadAt = extern "C" fn(Context, u64, *mut c_void, usize) -> c_int;

/// An [`extant_storage`] in use.
pub(crate) struct CallerStorage {
    storage: extant_storage,
    read_at: ReadAt,
    is_writable: bool,
}

/// The device for a structure of the caller.
pub(crate) fn as_device(
    storage: &Storage,
    is_writable: bool,
) -> Result<BackendDevice<CallerStorage>, Failure> {
    let storage = storage.get("storage")?.ok_or_else(|| Failure::null("storage"))?;
    let read_at = storage.read_at.ok_or_else(|| Failure::null("storage.read_at"))?;
    if is_writable && storage.write_at.is_none() {
        return Err(Failure::null("storage.write_at"));
    }
    if storage.flags & !EXTANT_STORAGE_ZEROED != 0 {
        return Err(Failure::argument(format!("storage has unknown flags {:#x}", storage.flags)));
    }
    Ok(BackendDevice(CallerStorage { storage, read_at, is_writable }))
}

impl Drop for CallerStorage {
    fn drop(&mut self) {
        if let Some(close) = self.storage.close {
            close(self.storage.user);
        }
    }
}

/// Turns the result of a function of the caller into an error.
fn judged(result: c_int) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    let errno = result.checked_abs().filter(|errno| *errno < 4096).unwrap_or(EIO);
    Err(io::Error::from_raw_os_error(errno))
}

impl Backend for CallerStorage {
    fn size_bytes(&self) -> u64 {
        self.storage.bytes
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        judged((self.read_at)(self.storage.user, offset, buf.as_mut_ptr().cast(), buf.len()))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(write_at) = self.storage.write_at else { return Err(io::ErrorKind::Unsupported.into()) };
        judged(write_at(self.storage.user, offset, bytes.as_ptr().cast(), bytes.len()))
    }

    fn flush(&self) -> io::Result<()> {
        self.storage.flush.map_or(Ok(()), |flush| judged(flush(self.storage.user)))
    }

    fn is_fresh(&self) -> bool {
        self.storage.flags & EXTANT_STORAGE_ZEROED != 0
    }
}
