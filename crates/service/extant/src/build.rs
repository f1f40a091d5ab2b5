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
//!
//! [`BuildOptions`] can also change owners, leave out files, set SELinux labels, and make devices without
//! root:
//!
//! ```
//! use extant::build::{
//!     BuildOptions, Excludes, FileContexts, IdMap, Platform, Source, build, parse_device_table,
//! };
//!
//! # let kept = tempfile::tempdir()?;
//! # let tree = kept.path().join("tree");
//! # std::fs::create_dir_all(tree.join("dev"))?;
//! # std::fs::write(tree.join("motd"), "hello\n")?;
//! # std::fs::write(tree.join("motd.orig"), "hi\n")?;
//! # let image = kept.path().join("root.img");
//! let options = BuildOptions {
//!     uid_map: IdMap::parse(["0:0:100000"])?,
//!     excludes: Excludes::new(["*.orig"])?,
//!     file_contexts: Some(FileContexts::parse(b"/.* system_u:object_r:etc_t:s0\n")?),
//!     rules: parse_device_table("devices.txt", b"/dev/null c 666 0 0 1 3 - - -\n")?,
//!     platform: Platform::linux("arm64"), // of container images
//!     ..BuildOptions::default()
//! };
//! build(&options, vec![Source::Dir(tree)], &image)?;
//!
//! let fs = extant::open(&image)?;
//! assert_eq!(fs.metadata("/dev/null")?.mode, 0o020_666);
//! assert_eq!(fs.xattr("/motd", "security.selinux")?, b"system_u:object_r:etc_t:s0\0");
//! assert!(!fs.exists("/motd.orig")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;
use std::sync::atomic::AtomicBool;

pub use extant_image::build::{BuildFault, BuildOptions, BuildReport, BuildTarget, Observer, Source};
pub use extant_image::exclude::{ExcludeFault, Excludes};
pub use extant_image::idmap::{IdMap, IdMapFault, IdRange, Owner, Unmapped};
pub use extant_image::labels::{FileContexts, LabelFault};
pub use extant_image::options::{FeatureFault, FormatOptions};
pub use extant_image::plan::PlanFault;
pub use extant_image::rules::{Make, Mode, Paths, Rule, RuleFault, parse_device_table, parse_mtree};
pub use extant_image::sizing::SizingFault;
pub use extant_image::solve::{SizeChoice, SolveFault};
pub use extant_image::source::dir::XattrChoice;
pub use extant_image::source::entry::Time;
pub use extant_image::source::fault::SourceFault;
pub use extant_image::source::oci::Platform;
pub use extant_image::source::pretend::{Pretender, Unseen};
pub use extant_image::source::tar::{TarInput, Unpacking};
pub use extant_image::tree::InsertFault;
pub use extant_image::write::{Meter, Problem, WriteFault};

/// Builds an image file from the sources; later sources override earlier ones. An existing file is replaced
/// only with [`BuildOptions::replace`].
///
/// # Errors
/// See [`BuildFault`]. On an error no file is left behind, and an existing image stays unchanged.
///
/// ```
/// use extant::build::{BuildOptions, Source, TarInput, build};
///
/// # let kept = tempfile::tempdir()?;
/// # let image = kept.path().join("root.img");
/// // An archive of no files: two blocks of zeros.
/// let archive = TarInput::Reader { name: "empty".into(), reader: Box::new(&[0; 1024][..]) };
/// let report = build(&BuildOptions::default(), vec![Source::Tar(archive)], &image)?;
/// assert_eq!(report.files, 0);
///
/// let again = build(&BuildOptions::default(), vec![Source::Dir("absent".into())], &image);
/// assert_eq!(again.unwrap_err().to_string(), format!("{} exists already", image.display()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build(
    options: &BuildOptions,
    sources: Vec<Source>,
    image: impl AsRef<Path>,
) -> Result<BuildReport, BuildFault> {
    build_to(options, sources, BuildTarget::File(image.as_ref()), &(), &AtomicBool::new(false))
}

/// Same as [`build`], but writes to any target and reports progress. The build ends when `cancel` becomes
/// true.
///
/// # Errors
/// See [`BuildFault`].
///
/// ```
/// use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
/// use extant::build::{BuildOptions, BuildTarget, Meter, Observer, Source, build_to};
///
/// /// Counts the files.
/// #[derive(Default)]
/// struct Files(AtomicU64);
/// impl Meter for Files {
///     fn wrote(&self, _bytes: u64, files: u64) {
///         self.0.fetch_add(files, Ordering::Relaxed);
///     }
/// }
/// impl Observer for Files {
///     fn step(&self, name: &'static str) {
///         println!("{name}");
///     }
///     fn read(&self, _entries: u64) {}
///     fn writing(&self, _total_bytes: u64, _total_files: u64) {}
/// }
/// # let kept = tempfile::tempdir()?;
/// # let tree = kept.path().join("tree");
/// # std::fs::create_dir(&tree)?;
/// # std::fs::write(tree.join("motd"), "hello\n")?;
/// # let image = kept.path().join("root.img");
/// let (files, cancel, options) = (Files::default(), AtomicBool::new(false), BuildOptions::default());
/// let target = BuildTarget::File(&image);
/// build_to(&options, vec![Source::Dir(tree.clone())], target, &files, &cancel)?;
/// assert_eq!(files.0.into_inner(), 1);
///
/// // Another thread, or the observer, sets `cancel` to end a build.
/// let (cancel, other) = (AtomicBool::new(true), kept.path().join("other.img"));
/// let target = BuildTarget::File(&other);
/// let failed = build_to(&options, vec![Source::Dir(tree)], target, &Files::default(), &cancel);
/// assert!(failed.unwrap_err().is_interrupted());
/// assert!(!other.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build_to(
    options: &BuildOptions,
    sources: Vec<Source>,
    target: BuildTarget<'_>,
    observer: &(impl Observer + Sync),
    cancel: &AtomicBool,
) -> Result<BuildReport, BuildFault> {
    extant_image::build::build(options, sources, target, observer, cancel)
}
