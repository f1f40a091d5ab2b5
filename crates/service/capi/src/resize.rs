//! Changes of the size of a file system.

use std::ffi::c_int;
use std::sync::Arc;

use facade::resize::{Fixed, ResizeOptions as How, ResizeReport, Size, resize, resize_image_with};

use crate::border::{Context, ErrorOut, Growing, Options, Out, Text, call};
use crate::error::Failure;
use crate::step::{Steps, extant_step};
use crate::storage::{Storage, as_device};

/// For extant_resize(): the smallest size to which the file system can shrink.
pub const EXTANT_RESIZE_SMALLEST: u64 = 0xffff_ffff_ffff_ffff;

/// Options of a resize.
#[repr(C)]
pub struct extant_resize_options {
    /// sizeof(extant_resize_options).
    pub size: usize,
    /// Passed to the function below.
    pub user: Context,
    /// Called with the state of the resize. Any result but 0 ends the resize before its next step, with the
    /// error EXTANT_CODE_CANCELLED: then the file system is valid, it does not have the new size yet, and the
    /// same call continues. If there is no next step, the resize is complete, and the call returns 0. May be
    /// NULL.
    pub progress: Option<extern "C" fn(user: Context, step: *const extant_step) -> c_int>,
}

// SAFETY: `repr(C)`, the size first, and only integers, a pointer and a nullable function.
unsafe impl Growing for extant_resize_options {}

/// A resize that is done.
#[repr(C)]
#[derive(Default)]
pub struct extant_resize_report {
    /// Bytes of the file system before.
    pub before_bytes: u64,
    /// Bytes of the file system after.
    pub after_bytes: u64,
    /// Blocks that moved.
    pub moved_blocks: u64,
    /// Inodes that have another number.
    pub moved_inodes: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

impl From<ResizeReport> for extant_resize_report {
    fn from(report: ResizeReport) -> Self {
        Self {
            before_bytes: report.before.bytes(),
            after_bytes: report.after.bytes(),
            moved_blocks: report.moved,
            moved_inodes: report.moved_inodes,
            reserved: [0; 4],
        }
    }
}

pub type ResizeOptions = Options<extant_resize_options>;
pub type ResizeReportOut = Out<extant_resize_report>;

fn read(bytes: u64, options: &ResizeOptions) -> Result<(Size, Steps), Failure> {
    let size = if bytes == EXTANT_RESIZE_SMALLEST { Size::Min } else { Size::Bytes(bytes) };
    let options = options.get_or_zeros("options")?;
    Ok((size, Steps::new(options.progress, options.user)))
}

/// Grows or shrinks the file system in an image file or on a block device to `bytes` bytes, or to
/// EXTANT_RESIZE_SMALLEST. An image file gets the length of its file system. With a journal, a power cut at
/// any moment is harmless, and the same call continues. `options` and `report` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_resize(
    image: Text,
    bytes: u64,
    options: ResizeOptions,
    report: ResizeReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let (size, steps) = read(bytes, &options)?;
        let done = resize_image_with(image.path()?, size, &How::default(), &steps, &steps.cancel)?;
        report.set(done.into());
        Ok(())
    })
}

/// Resizes the file system on the caller's storage, whose length stays.
#[unsafe(no_mangle)]
pub extern "C" fn extant_resize_storage(
    storage: Storage,
    bytes: u64,
    options: ResizeOptions,
    report: ResizeReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let (size, steps) = read(bytes, &options)?;
        let mut storage = Fixed(Arc::new(as_device(&storage, true)?));
        report.set(resize(&mut storage, size, &How::default(), &steps, &steps.cancel)?.into());
        Ok(())
    })
}
