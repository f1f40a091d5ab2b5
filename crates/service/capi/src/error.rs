//! Errors: a message, the kind of the failure, an errno, and the path.
//!
//! Owns: the mapping of the library's errors to kinds and numbers of errno.h. Does **not** own: messages,
//! which come from the layers below.

use std::any::Any;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use facade::build::{BuildFault, SolveFault, SourceFault, WriteFault};
use facade::check::{CheckFault, CheckImageFault};
use facade::mkfs::{MkfsFault, MkfsImageFault};
use facade::repair::{RepairFault, UndoFault};
use facade::resize::ResizeFault;
use facade::{DeviceFault, Fault, OpenFault, Refusal};

use crate::border::{EINVAL, EIO, quietly};

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
const EUCLEAN: i32 = 117;
const ECANCELED: i32 = 125;

/// The kind of a failure. Later versions may add kinds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum extant_code {
    /// No error.
    None = 0,
    /// A defect of libextant. The handle of the failed call can only be closed.
    Internal = 1,
    /// An argument is NULL or invalid. Nothing was done.
    Argument = 2,
    /// The image file cannot be opened, created or resized.
    Image = 3,
    /// The image is in use: it has another writer, or is mounted.
    InUse = 4,
    /// There is no ext2, ext3 or ext4 file system in the image.
    NotExt4 = 5,
    /// The file system has features that cannot be read, or not be written.
    Unsupported = 6,
    /// The operation was refused, and changed nothing; the errno is that of the system call (ENOENT, EEXIST,
    /// ENOSPC, EROFS, ...).
    Refused = 7,
    /// The file system is damaged.
    Damaged = 8,
    /// The storage failed.
    Device = 9,
    /// Nothing is written any more because of an earlier failure.
    Stopped = 10,
    /// A source of a build cannot be read, or has something that an image cannot store.
    Source = 11,
    /// The size is too small or too large.
    Size = 12,
    /// A callback ended the work.
    Cancelled = 13,
}

/// An error. Freed with extant_error_free().
pub struct extant_error {
    code: extant_code,
    errno: c_int,
    message: CString,
    path: Option<CString>,
}

/// The message: the finding, the place and, where known, the remedy; UTF-8 without a line end. Valid until
/// the error is freed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error_message(error: Option<&extant_error>) -> *const c_char {
    error.map_or(c"no error".as_ptr(), |error| error.message.as_ptr())
}

/// The kind of the failure.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error_code(error: Option<&extant_error>) -> extant_code {
    error.map_or(extant_code::None, |error| error.code)
}

/// The number of errno.h, positive; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error_errno(error: Option<&extant_error>) -> c_int {
    error.map_or(0, |error| error.errno)
}

/// The path that the failure concerns, as the caller passed it; NULL if there is none. Valid until the error
/// is freed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error_path(error: Option<&extant_error>) -> *const c_char {
    error.and_then(|error| error.path.as_ref()).map_or(std::ptr::null(), |path| path.as_ptr())
}

/// Frees an error. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error_free(error: Option<Box<extant_error>>) {
    quietly(|| drop(error));
}

/// A failure on its way to the border.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: extant_code,
    /// Positive.
    pub(crate) errno: i32,
    message: String,
    path: Option<Vec<u8>>,
}

impl Failure {
    pub(crate) fn new(code: extant_code, errno: i32, message: impl Into<String>) -> Self {
        Self { code, errno, message: message.into(), path: None }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(extant_code::Argument, EINVAL, message)
    }

    pub(crate) fn null(name: &str) -> Self {
        Self::argument(format!("{name} is NULL"))
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(extant_code::Cancelled, ECANCELED, "the callback ended the work")
    }

    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("a defect of libextant: {}; please report it", text.unwrap_or("a panic"));
        Self::new(extant_code::Internal, EIO, text)
    }

    pub(crate) fn at(mut self, path: &[u8]) -> Self {
        self.path = Some(path.to_vec());
        self
    }

    /// An error of the system about the image file.
    fn of_image(source: &io::Error, message: String) -> Self {
        let (code, otherwise) = match source.kind() {
            io::ErrorKind::ResourceBusy => (extant_code::InUse, EBUSY),
            io::ErrorKind::AlreadyExists => (extant_code::Image, EEXIST),
            io::ErrorKind::InvalidInput => (extant_code::Image, EINVAL),
            _ => (extant_code::Image, EIO),
        };
        Self::new(code, source.raw_os_error().unwrap_or(otherwise), message)
    }

    pub(crate) fn into_error(self) -> extant_error {
        extant_error {
            code: self.code,
            errno: self.errno.abs().max(1),
            message: terminated(self.message.into_bytes()),
            path: self.path.map(terminated),
        }
    }
}

/// A string for C. A NUL inside, which only a damaged image can have in a name, becomes a question mark.
pub(crate) fn terminated(mut bytes: Vec<u8>) -> CString {
    for byte in bytes.iter_mut().filter(|byte| **byte == 0) {
        *byte = b'?';
    }
    CString::new(bytes).unwrap_or_default()
}

fn of_path(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Kind and errno of a fault of an operation.
fn of_fault(fault: &Fault) -> (extant_code, i32) {
    let code = match fault {
        Fault::Refused(_) => extant_code::Refused,
        Fault::Corrupt(_) => extant_code::Damaged,
        Fault::Device(_) | Fault::NotFlushed(_) | Fault::LostWrite => extant_code::Device,
        Fault::Aborted(_) | Fault::Stopped(_) | Fault::ShutDown => extant_code::Stopped,
    };
    (code, fault.errno())
}

fn of_open(fault: &OpenFault) -> (extant_code, i32) {
    let code = match fault {
        OpenFault::NotExt4(_) | OpenFault::Overwritten(_) => extant_code::NotExt4,
        OpenFault::Unsupported(_) | OpenFault::Unwritable(_) => extant_code::Unsupported,
        OpenFault::InUse(_) => extant_code::InUse,
        OpenFault::Damaged(_) | OpenFault::Journal(_) => extant_code::Damaged,
        OpenFault::Device(_) => extant_code::Device,
    };
    (code, fault.errno())
}

fn of_device(fault: &DeviceFault) -> (extant_code, i32) {
    (extant_code::Device, fault.os_error().unwrap_or(EIO))
}

fn of_write(fault: &WriteFault) -> (extant_code, i32) {
    match fault {
        WriteFault::Device(fault) => of_device(fault),
        WriteFault::Problems(_) => (extant_code::Source, EIO),
        WriteFault::Interrupted => (extant_code::Cancelled, ECANCELED),
    }
}

impl From<facade::Error> for Failure {
    fn from(error: facade::Error) -> Self {
        let message = error.to_string();
        match error {
            facade::Error::Image { image, source } => Self::of_image(&source, message).at(&of_path(&image)),
            facade::Error::Open { image, source } => {
                let (code, errno) = of_open(&source);
                Self::new(code, errno, message).at(&of_path(&image))
            }
            facade::Error::At { path, fault } | facade::Error::Between { from: path, fault, .. } => {
                let (code, errno) = of_fault(&fault);
                Self::new(code, errno, message).at(&path)
            }
            facade::Error::TooLarge { path, .. } => Self::new(extant_code::Refused, EFBIG, message).at(&path),
        }
    }
}

impl From<OpenFault> for Failure {
    fn from(fault: OpenFault) -> Self {
        let (code, errno) = of_open(&fault);
        Self::new(code, errno, fault.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(extant_code::Refused, refusal.errno(), refusal.to_string())
    }
}

impl From<BuildFault> for Failure {
    fn from(fault: BuildFault) -> Self {
        let mut message = fault.to_string();
        match &fault {
            fault if fault.is_interrupted() => Self::cancelled(),
            BuildFault::TargetExists(path) => {
                message = format!("{path} exists already; set EXTANT_BUILD_REPLACE to replace it");
                Self::new(extant_code::Image, EEXIST, message).at(path.as_bytes())
            }
            BuildFault::Target { path, source } => Self::of_image(source, message).at(path.as_bytes()),
            BuildFault::Source(SourceFault::Io { path, source, .. }) => {
                let errno = source.raw_os_error().unwrap_or(EIO);
                Self::new(extant_code::Source, errno, message).at(&of_path(path))
            }
            BuildFault::Source(_) | BuildFault::Unseen(_) | BuildFault::Insert { .. } => {
                Self::new(extant_code::Source, EINVAL, message)
            }
            BuildFault::Problems(problems) => {
                if let Some(first) = problems.first() {
                    message = format!("{message}; the first is {}: {}", first.path, first.why);
                }
                Self::new(extant_code::Source, EIO, message)
            }
            BuildFault::Rule(_) | BuildFault::Ids(_) => Self::argument(message),
            BuildFault::Solve(SolveFault::TooSmall { .. }) => Self::new(extant_code::Size, ENOSPC, message),
            BuildFault::Solve(SolveFault::Sizing(_) | SolveFault::Plan(_) | SolveFault::Interrupted) => {
                Self::argument(message)
            }
            BuildFault::Write(fault) => {
                let (code, errno) = of_write(fault);
                Self::new(code, errno, message)
            }
        }
    }
}

impl From<MkfsFault> for Failure {
    fn from(fault: MkfsFault) -> Self {
        let message = fault.to_string();
        match fault {
            // Not ARGUMENT, after which the caller still has to close its storage.
            MkfsFault::Sizing(_) | MkfsFault::Plan(_) => Self::new(extant_code::Size, EINVAL, message),
            MkfsFault::Write(WriteFault::Interrupted) => Self::cancelled(),
            MkfsFault::Write(fault) => {
                let (code, errno) = of_write(&fault);
                Self::new(code, errno, message)
            }
        }
    }
}

impl From<MkfsImageFault> for Failure {
    fn from(fault: MkfsImageFault) -> Self {
        let message = fault.to_string();
        match fault {
            MkfsImageFault::Image { image, source } => Self::of_image(&source, message).at(&of_path(&image)),
            MkfsImageFault::Mkfs(fault) => fault.into(),
        }
    }
}

impl From<CheckFault> for Failure {
    fn from(fault: CheckFault) -> Self {
        let message = fault.to_string();
        match fault {
            CheckFault::Device(fault) => {
                let (code, errno) = of_device(&fault);
                Self::new(code, errno, message)
            }
            CheckFault::Cancelled => Self::cancelled(),
        }
    }
}

impl From<CheckImageFault> for Failure {
    fn from(fault: CheckImageFault) -> Self {
        let message = fault.to_string();
        match fault {
            CheckImageFault::Image { image, source } => Self::of_image(&source, message).at(&of_path(&image)),
            CheckImageFault::Check { image, source } => {
                Self { message, ..Self::from(source) }.at(&of_path(&image))
            }
        }
    }
}

impl From<ResizeFault> for Failure {
    fn from(fault: ResizeFault) -> Self {
        let message = fault.to_string();
        match &fault {
            ResizeFault::Open(fault) => {
                let (code, errno) = of_open(fault);
                Self::new(code, errno, message)
            }
            ResizeFault::Damaged(_) | ResizeFault::NotClean(_) | ResizeFault::Journal(_) => {
                Self::new(extant_code::Damaged, EUCLEAN, message)
            }
            ResizeFault::Device(fault) => {
                let (code, errno) = of_device(fault);
                Self::new(code, errno, message)
            }
            ResizeFault::Replay(_) | ResizeFault::Recovery(_) => Self::new(extant_code::Device, EIO, message),
            ResizeFault::Image(source) | ResizeFault::Length { source, .. } => {
                Self::of_image(source, message)
            }
            ResizeFault::Interrupted => Self::cancelled(),
            ResizeFault::Plan(_) => Self::new(extant_code::Size, EINVAL, message),
            ResizeFault::CannotShrink(_) => Self::new(extant_code::Unsupported, EOPNOTSUPP, message),
            _ => Self::new(extant_code::Size, ENOSPC, message),
        }
    }
}

impl From<UndoFault> for Failure {
    fn from(fault: UndoFault) -> Self {
        let remedy = if fault.can_be_forced() { "; EXTANT_UNDO_FORCE undoes all the same" } else { "" };
        let message = format!("{fault}{remedy}");
        match &fault {
            UndoFault::File { path, source } => Self::of_image(source, message).at(&of_path(path)),
            UndoFault::Device(fault) => {
                let (code, errno) = of_device(fault);
                Self::new(code, errno, message)
            }
            UndoFault::Damaged(path) | UndoFault::OtherFileSystem(path) => {
                Self::new(extant_code::Refused, EINVAL, message).at(&of_path(path))
            }
            UndoFault::InUse | UndoFault::Lost(_) => Self::new(extant_code::InUse, EBUSY, message),
            UndoFault::OtherImage { .. } | UndoFault::Changed { .. } | UndoFault::Already => {
                Self::new(extant_code::Refused, EINVAL, message)
            }
        }
    }
}

impl From<RepairFault> for Failure {
    fn from(fault: RepairFault) -> Self {
        let message = fault.to_string();
        match fault {
            RepairFault::Device(fault) => {
                let (code, errno) = of_device(&fault);
                Self::new(code, errno, message)
            }
            RepairFault::Image(source) => Self::of_image(&source, message),
            RepairFault::InUse | RepairFault::Lost(_) => Self::new(extant_code::InUse, EBUSY, message),
            RepairFault::Protection(_) => Self::new(extant_code::Damaged, EUCLEAN, message),
            RepairFault::NoSuperblock(_) => Self::new(extant_code::NotExt4, EUCLEAN, message),
            RepairFault::Undo(fault) => fault.into(),
            RepairFault::Cancelled => Self::cancelled(),
        }
    }
}
