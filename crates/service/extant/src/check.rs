//! Checks a file system on all cores, and writes nothing.
//!
//! Owns: this interface. Does **not** own: rules and passes, which are in the crate `check`.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! let report = extant::check::check_image(&image)?;
//! for finding in &report.findings {
//!     println!("{} {:?}: {}", finding.rule.code, finding.place, finding.says);
//! }
//! assert!(report.clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::path::{Path, PathBuf};

pub use extant_check::{
    Area, CheckFault, Finding, FindingPlace, Options, PassTime, Progress, Report, Rule, Severity, Stats,
    check, rules,
};
use extant_device::FileDevice;

/// Why the check of an image gives no report.
///
/// ```
/// use extant::check::{CheckImageFault, check_image};
///
/// let failed = check_image("no-such-file.img");
/// assert!(matches!(failed, Err(CheckImageFault::Image { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum CheckImageFault {
    /// The image file cannot be opened.
    #[error("{}: {source}", .image.display())]
    Image {
        /// The file.
        image: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The superblock cannot be read.
    #[error("{}: {source}", .image.display())]
    Check {
        /// The file.
        image: PathBuf,
        /// The reason.
        source: CheckFault,
    },
}

impl CheckImageFault {
    /// Whether the caller ended the work: [`Options::cancel`] was set.
    ///
    /// ```
    /// let failed = extant::check::check_image("no-such-file.img").unwrap_err();
    /// assert!(!failed.is_interrupted());
    /// ```
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Check { source, .. } if source.is_interrupted())
    }
}

/// Checks the file system in an image file or on a block device with default options.
///
/// # Errors
/// The image cannot be opened, or its superblock cannot be read. Damage is not an error: the report has it.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// let report = extant::check::check_image(&image)?;
/// assert!(report.opened && report.clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_image(image: impl AsRef<Path>) -> Result<Report, CheckImageFault> {
    let image = image.as_ref();
    let device = FileDevice::open_read_only(image)
        .and_then(crate::disk_of)
        .map_err(|source| CheckImageFault::Image { image: image.to_owned(), source })?;
    check(&*device, &Options::default())
        .map_err(|source| CheckImageFault::Check { image: image.to_owned(), source })
}
