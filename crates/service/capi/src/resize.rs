//! Changes of the size of a file system.

use std::ffi::c_int;

use facade::resize::{Size, resize_image};

use crate::border::{ErrorOut, Out, Text, call};

/// For extant_resize(): the smallest size to which the file system can shrink.
pub const EXTANT_RESIZE_SMALLEST: u64 = 0xffff_ffff_ffff_ffff;

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
    /// Zero.
    pub reserved: [u64; 4],
}

pub type ResizeReportOut = Out<extant_resize_report>;

/// Grows or shrinks the file system in an image file or on a block device to `bytes` bytes, or to
/// EXTANT_RESIZE_SMALLEST. An image file gets the length of its file system. With a journal, a power cut at
/// any moment is harmless, and the same call continues. `report` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_resize(image: Text, bytes: u64, report: ResizeReportOut, error: ErrorOut) -> c_int {
    call(&error, || {
        let size = if bytes == EXTANT_RESIZE_SMALLEST { Size::Min } else { Size::Bytes(bytes) };
        let done = resize_image(image.path()?, size)?;
        report.set(extant_resize_report {
            before_bytes: done.before.bytes(),
            after_bytes: done.after.bytes(),
            moved_blocks: done.moved,
            reserved: [0; 4],
        });
        Ok(())
    })
}
