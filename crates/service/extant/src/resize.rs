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
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use extant::resize::{Size, resize_image};
///
/// let report = resize_image(&image, Size::Min)?;
/// assert_eq!(std::fs::metadata(&image)?.len(), report.after.bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resize_image(image: impl AsRef<Path>, size: Size) -> Result<ResizeReport, ResizeFault> {
    resize_image_with(image, size, &ResizeOptions::default(), &(), &AtomicBool::new(false))
}

/// As [`resize_image`], with options, and reports progress. The work ends between two steps when `cancel`
/// becomes true; the file system is valid then, and another call continues.
///
/// # Errors
/// As [`resize_image`]; [`ResizeFault::Interrupted`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use extant::resize::{ResizeObserver, ResizeOptions, Size, resize_image_with};
///
/// /// Ends the work at its first report.
/// struct Stop<'a>(&'a AtomicBool);
/// impl ResizeObserver for Stop<'_> {
///     fn progress(&self, what: &'static str, done: u64, of: u64) {
///         println!("{what}: {done} of {of}");
///         self.0.store(true, Ordering::Relaxed);
///     }
/// }
/// let (cancel, options) = (AtomicBool::new(false), ResizeOptions::default());
/// let failed = resize_image_with(&image, Size::More(8 << 30), &options, &Stop(&cancel), &cancel);
/// assert!(failed.unwrap_err().is_interrupted());
/// assert!(extant::check::check_image(&image)?.clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resize_image_with(
    image: impl AsRef<Path>,
    size: Size,
    options: &ResizeOptions,
    observer: &dyn ResizeObserver,
    cancel: &AtomicBool,
) -> Result<ResizeReport, ResizeFault> {
    let file = FileDevice::open_locked(image.as_ref()).map_err(ResizeFault::Image)?;
    let mut storage = ImageFile::new(Arc::new(file), 0);
    resize(&mut storage, size, options, observer, cancel)
}
