//! Changes the size of a file system that is not mounted.
//!
//! A file system grows in steps that a power cut cannot tear: after a cut, the same call continues.
//!
//! Owns: this interface. Does **not** own: any of the work, which is in the crate `resize`.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! use extant::resize::{Size, resize_image};
//!
//! let before = extant::open(&image)?.statfs()?.blocks;
//! let report = resize_image(&image, Size::More(8 << 20))?;
//! assert_eq!(report.after.bytes() - report.before.bytes(), 8 << 20);
//! assert!(extant::open(&image)?.statfs()?.blocks > before);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_device::FileDevice;
pub use extant_resize::{
    Fixed, ImageFile, Layout, ResizeFault, ResizeObserver, ResizeOptions, ResizeReport, Size, Storage, plan,
    preview, resize,
};

/// Resizes the file system in an image file or on a block device, with default options. An image file gets
/// the length of its file system.
///
/// # Errors
/// The image cannot be opened or is in use; as [`resize`].
pub fn resize_image(image: impl AsRef<Path>, size: Size) -> Result<ResizeReport, ResizeFault> {
    let file = FileDevice::open_locked(image.as_ref()).map_err(ResizeFault::Image)?;
    let mut storage = ImageFile::new(Arc::new(file), 0);
    resize(&mut storage, size, &ResizeOptions::default(), &(), &AtomicBool::new(false))
}
