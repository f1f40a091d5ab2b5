//! Builds images: merges the sources, plans and writes the image in one step, without mounting and without
//! root.
//!
//! ```
//! use extant::build::{BuildOptions, SizeChoice, Source, build};
//!
//! # let kept = tempfile::tempdir()?;
//! # let tree = kept.path().join("tree");
//! # std::fs::create_dir(&tree)?;
//! # std::fs::write(tree.join("motd"), "hello\n")?;
//! # let image = kept.path().join("root.img");
//! // 20 percent of room for files to come; all else by default.
//! let size = SizeChoice::Smallest { headroom_percent: 20.0, more_bytes: 0 };
//! let options = BuildOptions { size, ..BuildOptions::default() };
//! let report = build(&options, vec![Source::Dir(tree)], &image)?;
//! assert_eq!(report.files, 1);
//!
//! let fs = extant::open(&image)?;
//! assert_eq!(fs.read("/motd")?, b"hello\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same sources and options produce the same bytes. The image appears under its name when it is complete.

use std::path::Path;
use std::sync::atomic::AtomicBool;

pub use extant_image::build::{BuildFault, BuildOptions, BuildReport, BuildTarget, Observer, Source};
pub use extant_image::exclude::Excludes;
pub use extant_image::idmap::{IdMap, Owner};
pub use extant_image::options::FormatOptions;
pub use extant_image::plan::PlanFault;
pub use extant_image::sizing::SizingFault;
pub use extant_image::solve::{SizeChoice, SolveFault};
pub use extant_image::source::dir::XattrChoice;
pub use extant_image::source::fault::SourceFault;
pub use extant_image::source::tar::TarInput;
pub use extant_image::write::{Meter, Problem, WriteFault};

/// An observer that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Meter for Silent {
    fn wrote(&self, _bytes: u64, _files: u64) {}
}

impl Observer for Silent {
    fn step(&self, _name: &'static str) {}
    fn read(&self, _entries: u64) {}
    fn writing(&self, _total_bytes: u64, _total_files: u64) {}
}

/// Builds an image file from the sources; later sources override earlier ones. An existing file is replaced
/// only with [`BuildOptions::replace`].
///
/// # Errors
/// See [`BuildFault`]. On an error no file is left behind, and an existing image stays unchanged.
pub fn build(
    options: &BuildOptions,
    sources: Vec<Source>,
    image: impl AsRef<Path>,
) -> Result<BuildReport, BuildFault> {
    build_to(options, sources, BuildTarget::File(image.as_ref()), &Silent, &AtomicBool::new(false))
}

/// Same as [`build`], but writes to any target and reports progress. The build ends when `cancel` becomes
/// true.
///
/// # Errors
/// See [`BuildFault`].
pub fn build_to(
    options: &BuildOptions,
    sources: Vec<Source>,
    target: BuildTarget<'_>,
    observer: &(impl Observer + Sync),
    cancel: &AtomicBool,
) -> Result<BuildReport, BuildFault> {
    extant_image::build::build(options, sources, target, observer, cancel)
}
