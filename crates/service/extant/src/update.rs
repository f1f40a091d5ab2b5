//! Makes the tree of an image equal to that of its sources, and leaves everything else as it is.
//!
//! [`update_image`] changes an image in place, through its journal. [`build_like`] makes a new image that
//! differs from an old one only where the sources do. In both, a file that did not change keeps its blocks
//! and its inode number, a name that did not change keeps its place in its directory, and the file system
//! keeps UUID, hash seed and layout.
//!
//! ```text
//!  image ----> Side A ─┐
//!                      ├─ diff::compare -> Diff -> apply: remove -> hard links -> make, change -> times
//!  sources --> Side B ─┘
//! ```
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (kept, image) = example::example_image();
//! use extant::build::{BuildOptions, Source};
//! use extant::update::update_image;
//!
//! # let tree = kept.path().join("new tree");
//! # std::fs::create_dir_all(tree.join("etc"))?;
//! std::fs::write(tree.join("etc/motd"), "welcome\n")?;
//! let report = update_image(&image, &BuildOptions::default(), vec![Source::Dir(tree)])?;
//! assert!(report.modified > 0 && report.deleted > 0);
//! assert_eq!(extant::open(&image)?.read("/etc/motd")?, b"welcome\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Owns: the order of the changes, which inode a file with several names keeps, the growth of an image that
//! is too small. Does **not** own: reading and comparing (see [`crate::diff`]), operations (see `volume`),
//! growing (see `resize`).
//!
//! Invariants
//! 1. [`build_like`] makes the same bytes of the same old image, sources and options, and publishes the new
//!    image only when it is complete.
//! 2. [`update_image`] changes nothing before the sources are read and the comparison is complete. A power
//!    cut leaves a consistent file system, in which each file has its old content, its new content, or a part
//!    of the new one; the same call then completes the update.
//! 3. `lost+found` stays, even if the sources have none.

mod apply;
mod grow;
mod links;

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_device::{Device, FileDevice, NewFile};
use extant_image::build::{Gathered, read_sources};
use extant_image::tree::InsertFault;
use extant_ondisk::time::Timestamp;
use extant_volume::{OpenFault, OpenOptions, WriteOptions};

use crate::build::{BuildFault, BuildOptions, Source};
use crate::diff::{self, Diff, DiffObserver, DiffOptions, Side, Status};
use crate::resize::ResizeFault;
use crate::{Error, FileSystem};
use grow::Growth;

/// Bytes per read and write of copies.
const PIECE: usize = 1 << 20;

/// The result of an update.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let tree = tempfile::tempdir()?;
/// use extant::build::{BuildOptions, Source};
/// use extant::update::{UpdateReport, update_image};
///
/// let options = BuildOptions { dry_run: true, ..BuildOptions::default() };
/// let report: UpdateReport = update_image(&image, &options, vec![Source::Dir(tree.path().to_owned())])?;
/// assert_eq!((report.added, report.written_bytes), (0, 0));
/// assert_eq!(report.bytes_before, report.bytes_after);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// Paths that were added.
    pub added: u64,
    /// Paths that were deleted.
    pub deleted: u64,
    /// Paths whose metadata or content was changed, or whose type.
    pub modified: u64,
    /// Number of names on either side, with the root.
    pub names: u64,
    /// Bytes of file contents that were written.
    pub written_bytes: u64,
    /// Length of the file system before the update, in bytes.
    pub bytes_before: u64,
    /// Length of the file system after the update, in bytes.
    pub bytes_after: u64,
    /// Findings about the sources that the user should see.
    pub warnings: Vec<String>,
}

/// Why an update failed.
///
/// ```
/// use extant::build::BuildOptions;
/// use extant::update::{UpdateFault, update_image};
///
/// let failed = update_image("no-such-file.img", &BuildOptions::default(), Vec::new());
/// assert!(matches!(failed, Err(UpdateFault::Image { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum UpdateFault {
    /// The sources cannot be read, or the target cannot be written.
    #[error(transparent)]
    Build(#[from] BuildFault),
    /// The image cannot be opened.
    #[error("{}: {source}", .image.display())]
    Image {
        /// The image.
        image: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The image holds no file system that can be changed.
    #[error(transparent)]
    Open(#[from] OpenFault),
    /// Files that cannot be compared.
    #[error("{} files could not be compared", .0.len())]
    Unreadable(Vec<diff::Problem>),
    /// A file of the sources cannot be read, or changed meanwhile. The text names it.
    #[error("{0}")]
    Source(String),
    /// A path cannot be changed.
    #[error(transparent)]
    Change(#[from] Error),
    /// A path cannot be changed, because no block or no inode is free.
    #[error("{0}")]
    Full(Error),
    /// The size asked for is smaller than that of the old image.
    #[error(
        "a new image cannot be smaller than the old one that it is made from: {asked} and {old} bytes; \
         `extant resize` makes it smaller"
    )]
    Smaller {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the old image.
        old: u64,
    },
    /// The image cannot be made larger.
    #[error(transparent)]
    Resize(#[from] ResizeFault),
    /// `cancel` became true.
    #[error("interrupted")]
    Interrupted,
}

impl UpdateFault {
    /// Whether the caller ended the work: `cancel` became true.
    ///
    /// ```
    /// use extant::build::BuildOptions;
    /// use extant::update::update_image;
    ///
    /// let failed = update_image("no-such-file.img", &BuildOptions::default(), Vec::new());
    /// assert!(!failed.unwrap_err().is_interrupted());
    /// ```
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Interrupted => true,
            Self::Build(fault) => fault.is_interrupted(),
            Self::Resize(fault) => fault.is_interrupted(),
            _ => false,
        }
    }
}

impl From<extant_device::DeviceFault> for UpdateFault {
    fn from(fault: extant_device::DeviceFault) -> Self {
        Self::Open(fault.into())
    }
}

/// Reports the progress of an update. Threads call it concurrently.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// # let tree = tempfile::tempdir()?;
/// use std::sync::Mutex;
/// use extant::build::{BuildOptions, Source};
/// use extant::diff::DiffObserver;
/// use extant::update::{UpdateObserver, update};
///
/// #[derive(Default)]
/// struct Steps(Mutex<Vec<&'static str>>);
/// impl DiffObserver for Steps {
///     fn names(&self, _count: u64) {}
///     fn bytes(&self, _len: u64) {}
/// }
/// impl UpdateObserver for Steps {
///     fn step(&self, name: &'static str) {
///         self.0.lock().unwrap().push(name);
///     }
///     fn read(&self, _entries: u64) {}
///     fn changed(&self, _paths: u64) {}
/// }
///
/// let (options, steps) = (BuildOptions::default(), Steps::default());
/// let sources = vec![Source::Dir(tree.path().to_owned())];
/// update(memory, &options, sources, &std::env::temp_dir(), &steps, &Default::default())?;
/// assert!(steps.0.into_inner()?.contains(&"comparing"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait UpdateObserver: DiffObserver {
    /// A new step begins: "reading", "comparing", "copying", "changing".
    fn step(&self, name: &'static str);
    /// This many more entries of sources were read.
    fn read(&self, entries: u64);
    /// This many more paths were changed.
    fn changed(&self, paths: u64);
}

/// Ignores the reports.
impl UpdateObserver for () {
    fn step(&self, _name: &'static str) {}
    fn read(&self, _entries: u64) {}
    fn changed(&self, _paths: u64) {}
}

/// The parameters of an update besides the image.
struct Job<'u> {
    options: &'u BuildOptions,
    observer: &'u dyn UpdateObserver,
    cancel: &'u AtomicBool,
    /// The images, which are no part of a source.
    images: &'u [&'u Path],
}

/// Changes an image file or block device in place, so that its tree is that of the sources.
/// [`BuildOptions::dry_run`] only counts. Options of the file system, of its size, and
/// [`BuildOptions::tolerate_changes`] have no effect. The image is no part of a source.
///
/// # Errors
/// See [`UpdateFault`]. If a path cannot be changed, or a source changes meanwhile, those before it are
/// changed.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let tree = tempfile::tempdir()?;
/// use extant::build::{BuildOptions, Source};
/// use extant::update::update_image;
///
/// let options = BuildOptions { dry_run: true, ..BuildOptions::default() };
/// let report = update_image(&image, &options, vec![Source::Dir(tree.path().to_owned())])?;
/// assert!(report.deleted > 0, "all of the image, if this were no dry run");
/// assert!(extant::open(&image)?.exists("/etc/motd")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn update_image(
    image: impl AsRef<Path>,
    options: &BuildOptions,
    sources: Vec<Source>,
) -> Result<UpdateReport, UpdateFault> {
    let image = image.as_ref();
    let opened = if options.dry_run { FileDevice::open_read_only } else { FileDevice::open_locked };
    let device = opened(image).map_err(|source| UpdateFault::Image { image: image.to_owned(), source })?;
    let (spool_dir, cancel) = (directory_of(image), AtomicBool::new(false));
    let job = Job { options, observer: &(), cancel: &cancel, images: &[image] };
    job.update(Arc::new(device), sources, &spool_dir)
}

/// As [`update_image`], on any device that has no other writer. `spool_dir`: where a temporary file for
/// unpacked contents is made, which has no name. The update ends when `cancel` becomes true.
///
/// # Errors
/// As [`update_image`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// # let tree = tempfile::tempdir()?;
/// use std::sync::atomic::AtomicBool;
/// use extant::build::{BuildOptions, Source};
/// use extant::update::update;
///
/// std::fs::write(tree.path().join("motd"), "hello\n")?;
/// let (options, cancel) = (BuildOptions::default(), AtomicBool::new(false));
/// let sources = vec![Source::Dir(tree.path().to_owned())];
/// let report = update(memory, &options, sources, &std::env::temp_dir(), &(), &cancel)?;
/// assert_eq!(report.added, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn update(
    device: Arc<dyn Device>,
    options: &BuildOptions,
    sources: Vec<Source>,
    spool_dir: &Path,
    observer: &dyn UpdateObserver,
    cancel: &AtomicBool,
) -> Result<UpdateReport, UpdateFault> {
    Job { options, observer, cancel, images: &[] }.update(device, sources, spool_dir)
}

/// Makes a new image of the sources that differs as little as possible from an old one. It has the size of
/// the old one, or more if the sources need it; [`SizeChoice::Bytes`](crate::build::SizeChoice::Bytes) makes
/// it larger. Other options of the file system have no effect.
///
/// # Errors
/// See [`UpdateFault`]. The target does not appear then, or stays as it was.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let tree = tempfile::tempdir()?;
/// use extant::build::{BuildOptions, Source};
/// use extant::update::build_like;
///
/// # let new = tree.path().join("../new.img");
/// # let new = image.with_extension("new");
/// std::fs::write(tree.path().join("motd"), "hello\n")?;
/// let sources = vec![Source::Dir(tree.path().to_owned())];
/// build_like(&image, &BuildOptions::default(), sources, &new)?;
/// assert_eq!(extant::open(&new)?.read("/motd")?, b"hello\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build_like(
    old: impl AsRef<Path>,
    options: &BuildOptions,
    sources: Vec<Source>,
    target: impl AsRef<Path>,
) -> Result<UpdateReport, UpdateFault> {
    let old = old.as_ref();
    let opened = FileDevice::open_read_only(old).and_then(crate::disk_of);
    let opened = opened.map_err(|source| UpdateFault::Image { image: old.to_owned(), source })?;
    let (target, cancel) = (target.as_ref(), AtomicBool::new(false));
    let job = Job { options, observer: &(), cancel: &cancel, images: &[old, target] };
    job.build_like(&opened, sources, target)
}

/// As [`build_like`], of an old image on any device, and reports progress. The build ends when `cancel`
/// becomes true.
///
/// # Errors
/// As [`build_like`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let tree = tempfile::tempdir()?;
/// use std::sync::Arc;
/// use std::sync::atomic::AtomicBool;
/// use extant::build::{BuildOptions, Source};
/// use extant::{FileDevice, update::build_like_with};
///
/// # let new = image.with_extension("new");
/// let old = Arc::new(FileDevice::open_read_only(&image)?);
/// let (options, cancel) = (BuildOptions::default(), AtomicBool::new(true));
/// let sources = vec![Source::Dir(tree.path().to_owned())];
/// let failed = build_like_with(old, &options, sources, &new, &(), &cancel);
/// assert!(failed.unwrap_err().is_interrupted() && !new.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build_like_with(
    old: Arc<dyn Device>,
    options: &BuildOptions,
    sources: Vec<Source>,
    target: impl AsRef<Path>,
    observer: &dyn UpdateObserver,
    cancel: &AtomicBool,
) -> Result<UpdateReport, UpdateFault> {
    let target = target.as_ref();
    Job { options, observer, cancel, images: &[target] }.build_like(&old, sources, target)
}

impl Job<'_> {
    /// Changes the file system on the device.
    fn update(
        &self,
        device: Arc<dyn Device>,
        sources: Vec<Source>,
        spool_dir: &Path,
    ) -> Result<UpdateReport, UpdateFault> {
        let (side, diff) = self.compare(&device, sources, spool_dir)?;
        let mut report = counted(&diff, &side, device.size_bytes());
        if self.options.dry_run {
            return Ok(report);
        }
        let write = WriteOptions {
            is_no_mount: true,
            keeps_set_id: true,
            keeps_times: true,
            ..WriteOptions::default()
        };
        let open = OpenOptions { write, ..OpenOptions::default() };
        self.apply(device, &open, &side, &diff, &mut report)?;
        Ok(report)
    }

    /// Makes a new image of the sources and the old image.
    fn build_like(
        &self,
        old: &Arc<dyn Device>,
        sources: Vec<Source>,
        target: &Path,
    ) -> Result<UpdateReport, UpdateFault> {
        let Self { options, observer, cancel, .. } = self;
        let shown = || target.display().to_string();
        let refused = |source| BuildFault::Target { path: shown(), source };
        if !options.replace && !options.dry_run && target.symlink_metadata().is_ok() {
            return Err(BuildFault::TargetExists(shown()).into());
        }
        let (side, diff) = self.compare(old, sources, &directory_of(target))?;
        let mut report = counted(&diff, &side, old.size_bytes());
        let mut growth = Growth::new(old, &side, &diff, options.size)?;
        if options.dry_run {
            report.bytes_after += growth.more;
            return Ok(report);
        }
        let time = Timestamp { seconds: i64::try_from(side.time()).unwrap_or(0), nanos: 0 };
        let write = WriteOptions {
            is_no_mount: true,
            keeps_set_id: true,
            keeps_times: true,
            no_journal: true,
            no_barriers: true,
            no_committer: true,
            // The copy has no other user.
            is_guarded: true,
            fixed_time: Some(time),
            ..WriteOptions::default()
        };
        let open = OpenOptions { write, ..OpenOptions::default() };
        loop {
            let new = NewFile::create(target).map_err(refused)?;
            observer.step("copying");
            copy(&**old, new.file(), cancel)?;
            let file = FileDevice::of(new.file().try_clone().map_err(refused)?).map_err(refused)?;
            let file = growth.apply(Arc::new(file), time, cancel)?;
            report.bytes_after = file.size_bytes();
            match self.apply(file, &open, &side, &diff, &mut report) {
                Err(UpdateFault::Full(_)) if growth.increase() => continue,
                done => done?,
            }
            new.publish(options.replace, options.sync).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => BuildFault::TargetExists(shown()),
                _ => refused(error),
            })?;
            return Ok(report);
        }
    }

    /// Reads the sources, and compares them with the file system on the device.
    fn compare(
        &self,
        device: &Arc<dyn Device>,
        sources: Vec<Source>,
        spool_dir: &Path,
    ) -> Result<(Side, Diff), UpdateFault> {
        let fs = FileSystem::from_device(Arc::clone(device), &OpenOptions::default())?;
        let old = Side::image(fs).map_err(Error::at(b"/"))?;
        self.observer.step("reading");
        let read = |entries| self.observer.read(entries);
        let mut gathered = read_sources(self.options, sources, spool_dir, self.images, self.cancel, &read)?;
        self.check_cancel()?;
        if !gathered.problems.is_empty() {
            gathered.problems.sort_by(|a, b| a.path.cmp(&b.path));
            return Err(BuildFault::Problems(gathered.problems).into());
        }
        let tree = &gathered.tree;
        let taken =
            tree.lookup(tree.nodes[0].content, b"lost+found").map(|at| tree.records[at as usize].node);
        if taken.is_some_and(|node| !tree.nodes[node as usize].is_dir()) {
            let (path, fault) = ("/lost+found".to_owned(), InsertFault::LostFoundTaken);
            return Err(BuildFault::Insert { path, fault }.into());
        }
        let new = Side::gathered(gathered);
        self.observer.step("comparing");
        let options = DiffOptions { threads: self.options.threads, ..DiffOptions::default() };
        let diff = diff::compare(&old, &new, &options, self.observer, self.cancel);
        self.check_cancel()?;
        if !diff.problems.is_empty() {
            return Err(UpdateFault::Unreadable(diff.problems));
        }
        Ok((new, diff))
    }

    /// Applies the differences to the file system on the device.
    fn apply(
        &self,
        device: Arc<dyn Device>,
        open: &OpenOptions,
        side: &Side,
        diff: &Diff,
        report: &mut UpdateReport,
    ) -> Result<(), UpdateFault> {
        self.check_cancel()?;
        self.observer.step("changing");
        let fs = FileSystem::from_device_writable(device, open)?;
        let written = apply::apply(&fs, side, diff, self.observer, self.cancel);
        let written = written.map_err(|fault| match fault {
            UpdateFault::Change(fault) if grow::is_full(&fs, &fault) => UpdateFault::Full(fault),
            other => other,
        });
        // Also after a failure: what was changed until then is committed, and the image is left clean.
        let closed = fs.close();
        report.written_bytes = written?;
        Ok(closed?)
    }

    fn check_cancel(&self) -> Result<(), UpdateFault> {
        if self.cancel.load(Ordering::Relaxed) { Err(UpdateFault::Interrupted) } else { Ok(()) }
    }
}

impl Side {
    /// The tree of sources.
    fn gathered(gathered: Gathered) -> Self {
        Self { kind: diff::SideKind::Tree(Box::new(gathered)) }
    }

    fn as_gathered(&self) -> Option<&Gathered> {
        match &self.kind {
            diff::SideKind::Tree(gathered) => Some(gathered),
            diff::SideKind::Image(_) => None,
        }
    }

    /// The time stamp of an image of the sources.
    fn time(&self) -> u64 {
        self.as_gathered().map_or(0, |gathered| gathered.time)
    }
}

fn counted(diff: &Diff, side: &Side, bytes: u64) -> UpdateReport {
    UpdateReport {
        added: diff.count(Status::Added),
        deleted: diff.count(Status::Deleted),
        modified: diff.count(Status::Modified) + diff.count(Status::TypeChanged),
        names: diff.names,
        written_bytes: 0,
        bytes_before: bytes,
        bytes_after: bytes,
        warnings: side.warnings().to_vec(),
    }
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Copies a device to an empty file. Blocks of zeros become holes.
fn copy(from: &dyn Device, to: &std::fs::File, cancel: &AtomicBool) -> Result<(), UpdateFault> {
    let refused = |source| BuildFault::Target { path: "the new image".to_owned(), source };
    to.set_len(from.size_bytes()).map_err(refused)?;
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < from.size_bytes() {
        if cancel.load(Ordering::Relaxed) {
            return Err(UpdateFault::Interrupted);
        }
        let len = usize::try_from(from.size_bytes() - at).unwrap_or(PIECE).min(PIECE);
        from.read_at(at, &mut buffer[..len])?;
        if buffer[..len].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buffer[..len], at).map_err(refused)?;
        }
        at += len as u64;
    }
    Ok(())
}
