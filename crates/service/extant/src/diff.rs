//! Compares two trees: images, directories and archives, each with each.
//!
//! ```text
//!  Side A ─┐  pairs of directories -> names -> types, attributes -> hard links ┐
//!          ├─ (several threads)                                                ├─> Diff -> write_layer
//!  Side B ─┘        pairs of files -> maps -> runs of data -> bytes -> ────────┘
//! ```
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! use extant::diff::{DiffOptions, Side, Status, compare};
//!
//! let a = Side::image(extant::open(&image)?)?;
//! # let copy = image.with_extension("copy");
//! # std::fs::copy(&image, &copy).expect("a copy");
//! let fs = extant::open_writable(&copy)?;
//! fs.set_mode("/etc/motd", 0o600)?;
//! fs.close()?;
//! let b = Side::image(extant::open(&copy)?)?;
//!
//! let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
//! assert_eq!(diff.changes.len(), 1);
//! assert_eq!((diff.changes[0].status, &*diff.changes[0].path), (Status::Modified, &b"etc/motd"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Owns: what counts as a difference, the order of the results, the choice of what is read. Does **not** own:
//! reading images (see `volume`), directories and archives (see [`extant_image::build`]), printing.
//!
//! Invariants
//! 1. The results do not depend on the threads. They are in the order of paths, compared by components.
//! 2. A range that is a hole on both sides is not read. Data is skipped only if both sides map it to the same
//!    bytes of the same file.
//! 3. A file or directory that cannot be read is a [`Problem`], not a difference.
//! 4. Memory is bounded by the differences, the names of the largest directories, and the names of files with
//!    several links.

mod content;
mod found;
pub mod layer;
mod links;
mod same;
mod side;
mod sides;
mod walk;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;

pub use side::Side;
pub(crate) use side::{Kind as SideKind, Node};

/// What [`compare`] takes for a difference.
///
/// ```
/// use extant::diff::{DiffOptions, Ignore};
///
/// let ignore = Ignore { times: true, ..Ignore::default() };
/// let options = DiffOptions { ignore, threads: 1, ..DiffOptions::default() };
/// assert!(!options.holes);
/// ```
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// Differences that do not count.
    pub ignore: Ignore,
    /// Whether files differ if their holes are at other places.
    pub holes: bool,
    /// Number of threads, at least 1.
    pub threads: usize,
}

impl Default for DiffOptions {
    /// All differences but those of holes count; as many threads as cores, at most 8.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
        Self { ignore: Ignore::default(), holes: false, threads }
    }
}

/// Differences that do not count.
///
/// ```
/// use extant::diff::Ignore;
///
/// let of_archives = Ignore { nanoseconds: true, ..Ignore::default() };
/// assert!(!of_archives.times && !of_archives.owners);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignore {
    /// Times of the last change of the content.
    pub times: bool,
    /// Fractions of seconds of these times, which many archives lack.
    pub nanoseconds: bool,
    /// Owners and groups.
    pub owners: bool,
    /// Permission bits.
    pub modes: bool,
    /// Which names are hard links of one file.
    pub links: bool,
    /// Extended attributes, and so ACLs.
    pub xattrs: bool,
}

/// Reports the progress of a comparison. Threads call it concurrently.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use extant::diff::{DiffObserver, DiffOptions, Side, compare};
///
/// #[derive(Default)]
/// struct Names(AtomicU64);
/// impl DiffObserver for Names {
///     fn names(&self, count: u64) {
///         self.0.fetch_add(count, Ordering::Relaxed);
///     }
///     fn bytes(&self, _len: u64) {}
/// }
///
/// let (seen, side) = (Names::default(), Side::image(fs)?);
/// let diff = compare(&side, &side, &DiffOptions::default(), &seen, &Default::default());
/// assert!(diff.is_empty() && seen.0.into_inner() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait DiffObserver: Sync {
    /// A directory was compared; it has this many names.
    fn names(&self, count: u64);
    /// This many bytes of contents were compared.
    fn bytes(&self, len: u64);
}

/// Ignores the reports.
impl DiffObserver for () {
    fn names(&self, _count: u64) {}
    fn bytes(&self, _len: u64) {}
}

/// The result of [`compare`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, compare};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// for change in &diff.changes {
///     println!("{} {}", change.status.letter(), String::from_utf8_lossy(&change.path));
/// }
/// assert!(diff.problems.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Diff {
    /// The paths that differ, in order.
    pub changes: Vec<Change>,
    /// What could not be compared, in order of the paths.
    pub problems: Vec<Problem>,
    /// Number of names on either side, with the root; a name on both sides counts once.
    pub names: u64,
    /// Bytes of contents that were compared.
    pub bytes: u64,
    /// Hard links of side B: the names of each file with several, in order.
    groups: Vec<links::Group>,
    /// Directories on both sides that have no name in common, and had some on side A.
    emptied: Vec<Arc<[u8]>>,
}

impl Diff {
    /// Whether the sides are equal, as far as they could be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::diff::{DiffOptions, Side, compare};
    ///
    /// let etc = fs.resolve("/etc", extant::Follow::Links)?;
    /// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
    /// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
    /// assert!(!diff.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of changes with this status.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::diff::{DiffOptions, Side, Status, compare};
    ///
    /// let below = fs.resolve("/etc", extant::Follow::Links)?;
    /// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, below)?);
    /// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
    /// assert_eq!(diff.count(Status::Added), 3); // motd, network and interfaces
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn count(&self, status: Status) -> u64 {
        self.changes.iter().filter(|change| change.status == status).count() as u64
    }
}

/// How a path differs.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, Status, compare};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let etc = diff.changes.iter().find(|change| *change.path == *b"etc").unwrap();
/// assert_eq!(etc.status, Status::Deleted);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Only side B has it.
    Added,
    /// Only side A has it.
    Deleted,
    /// Both have it, with other metadata or content.
    Modified,
    /// Both have it, as files of different types.
    TypeChanged,
}

impl Status {
    /// The letter of `git diff --name-status`.
    ///
    /// ```
    /// assert_eq!(extant::diff::Status::Added.letter(), 'A');
    /// ```
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Deleted => 'D',
            Self::Modified => 'M',
            Self::TypeChanged => 'T',
        }
    }
}

/// A path that differs.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{Change, DiffOptions, Side, compare};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let change: &Change = diff.changes.iter().find(|change| *change.path == *b"motd").unwrap();
/// assert!(change.a.is_none() && change.b.is_some() && change.differences.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Change {
    /// The path from the root of the sides, without a slash at its beginning; empty for the root.
    pub path: Arc<[u8]>,
    /// How it differs.
    pub status: Status,
    /// The file on side A; `None` if it was added.
    pub a: Option<Meta>,
    /// The file on side B; `None` if it was deleted.
    pub b: Option<Meta>,
    /// What differs; empty unless the status is [`Status::Modified`].
    pub differences: Vec<Difference>,
    /// The file on side B, for a layer or an update.
    pub(crate) node: Option<side::Node>,
}

/// The metadata of a file, as far as it is compared.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Meta, Side, compare};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let change = diff.changes.iter().find(|change| *change.path == *b"motd").unwrap();
/// let motd: &Meta = change.b.as_ref().unwrap();
/// assert_eq!((motd.kind, motd.size, motd.links), (extant::FileType::Regular, 6, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Type.
    pub kind: FileType,
    /// Permission bits, 0 to 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of a regular file in bytes, or length of the target of a symbolic link; 0 for other types.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Number of links; for directories as the side counts them.
    pub links: u32,
    /// Major and minor number of a device, otherwise (0, 0).
    pub device: (u32, u32),
}

/// One difference of a path that both sides have with the same type.
///
/// ```
/// use extant::build::{BuildOptions, Source};
/// use extant::diff::{DiffOptions, Difference, Ignore, Side, compare};
///
/// let side = |content: &str| {
///     let tree = tempfile::tempdir().unwrap();
///     std::fs::write(tree.path().join("file"), content).unwrap();
///     let sources = vec![Source::Dir(tree.path().to_owned())];
///     let options = BuildOptions::default();
///     let side = Side::sources(&options, sources, tree.path(), &Default::default(), &|_| ());
///     (side, tree)
/// };
/// let ((a, _a), (b, _b)) = (side("old"), side("new"));
/// let ignore = Ignore { times: true, ..Ignore::default() };
/// let options = DiffOptions { ignore, ..DiffOptions::default() };
/// let diff = compare(&a?, &b?, &options, &(), &Default::default());
/// assert_eq!(diff.changes[0].differences, [Difference::Content { first: 0 }]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The permission bits.
    Mode,
    /// The owner or the group.
    Owner,
    /// The time of the last change of the content.
    Mtime,
    /// The size of a regular file. The bytes are not compared then.
    Size,
    /// The bytes of a regular file.
    Content {
        /// Offset of the first byte that differs.
        first: u64,
    },
    /// The places of holes.
    Holes,
    /// The target of a symbolic link.
    Target {
        /// The target on side A.
        a: Vec<u8>,
        /// The target on side B.
        b: Vec<u8>,
    },
    /// The numbers of a device.
    Device,
    /// An extended attribute.
    Xattr {
        /// Its full name.
        name: Vec<u8>,
        /// Whether side A has it.
        in_a: bool,
        /// Whether side B has it; both: with other values.
        in_b: bool,
    },
    /// The names that are hard links of this file.
    Links {
        /// The number of names on side A.
        a: u64,
        /// The number of names on side B.
        b: u64,
        /// Whether the removal of names makes B of A.
        only_fewer: bool,
    },
}

impl Difference {
    /// The order in which a change lists its differences.
    fn rank(&self) -> u8 {
        match self {
            Self::Mode => 0,
            Self::Owner => 1,
            Self::Mtime => 2,
            Self::Size => 3,
            Self::Content { .. } => 4,
            Self::Holes => 5,
            Self::Target { .. } => 6,
            Self::Device => 7,
            Self::Xattr { .. } => 8,
            Self::Links { .. } => 9,
        }
    }
}

/// One of the two sides.
///
/// ```
/// use extant::diff::Which;
///
/// assert!(Which::A < Which::B);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Which {
    /// The first.
    A,
    /// The second.
    B,
}

/// Something that could not be compared.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Problem, Side, Which, compare};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let of_b = diff.problems.iter().filter(|problem: &&Problem| problem.side == Which::B);
/// assert_eq!(of_b.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Problem {
    /// The side that could not be read.
    pub side: Which,
    /// The path, as in [`Change::path`].
    pub path: Vec<u8>,
    /// The reason.
    pub cause: Cause,
}

/// Why something could not be compared.
///
/// ```
/// use extant::diff::Cause;
///
/// let cause = Cause::Source("motd: Permission denied".to_owned());
/// assert_eq!(cause.to_string(), "motd: Permission denied");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A part of an image cannot be read.
    #[error(transparent)]
    Image(#[from] crate::walk::Problem),
    /// A file of a directory or an archive cannot be read. The text names the file.
    #[error("{0}")]
    Source(String),
}

/// Compares two sides. Ends early, with a part of the results, when `cancel` becomes true.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, compare};
///
/// let (a, b) = (Side::image(fs.clone())?, Side::image(fs)?);
/// assert!(compare(&a, &b, &DiffOptions::default(), &(), &Default::default()).is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn compare(
    a: &Side,
    b: &Side,
    options: &DiffOptions,
    observer: &dyn DiffObserver,
    cancel: &AtomicBool,
) -> Diff {
    walk::compare(a, b, options, observer, cancel)
}

/// The order of paths by components: a slash sorts before every other byte.
pub(crate) fn path_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    a.iter().map(rank).cmp(b.iter().map(rank))
}
