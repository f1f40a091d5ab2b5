//! Walks a tree with several threads, in an order that does not depend on the threads.
//!
//! Owns: the order of results, readahead, the detection of cycles. Does **not** own: reading directories (see
//! `volume`), what the caller does with an entry.
//!
//! ```text
//!  workers:  take the pending directory nearest to the caller -> list it, load inodes in order of number
//!            -> finished listings
//!  caller:   next() takes the next listing in pre-order; if no worker has started it, the caller makes it
//! ```
//!
//! Invariants
//! 1. Results come in pre-order, a directory before its entries, in the same order with any number of
//!    threads.
//! 2. The listings ahead of the caller are bounded in directories and in names; a larger directory is listed
//!    in pieces.
//! 3. A directory is entered once. A second path to it, which only a damaged image has, is reported and not
//!    followed. So the walk ends on every image.

mod contents;
mod schedule;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_volume::{Fault, FileType, InodeRef, Stat, Volume};

pub use contents::{Bytes, Contents, Data, Loaded};
use schedule::{Crew, Found, Key};

use crate::{Error, FileSystem, Follow};

/// Maximum depth of directories to enter. The format has no limit; no path that a system call accepts has as
/// many components.
const DEPTH_MAX: usize = 4096;
/// Maximum length of the path of a directory to enter, in bytes from the walk's root. Every entry contains
/// its path, so without a limit a deep image with long names would need memory in proportion to the square of
/// its depth.
const PATH_MAX: usize = 32 << 10;

/// The order of the entries of one directory.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Order;
///
/// assert_eq!(Order::default(), Order::Stored);
/// let sorted = fs.walk("/etc")?.order(Order::Names);
/// assert_eq!(sorted.into_iter().last().unwrap()?.name(), b"interfaces");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// In the order in which they are stored: the kernel's order of readdir, and the fastest.
    #[default]
    Stored,
    /// By the bytes of the names. Needs memory for all names of a directory.
    Names,
}

/// Decides by its path whether to enter a directory.
pub(crate) type Enter = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Options of a walk; created by [`FileSystem::walk`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Order;
///
/// let mut paths = Vec::new();
/// for entry in fs.walk("/etc")?.order(Order::Names) {
///     let entry = entry?;
///     paths.push(String::from_utf8_lossy(entry.path()).into_owned());
/// }
/// assert_eq!(paths, ["", "motd", "network", "network/interfaces"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Walk {
    fs: FileSystem,
    root: InodeRef,
    order: Order,
    threads: usize,
    depth_max: usize,
    inodes: bool,
    enter: Option<Box<Enter>>,
}

impl Walk {
    pub(crate) fn new(fs: FileSystem, root: InodeRef) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
        Self { fs, root, order: Order::Stored, threads, depth_max: DEPTH_MAX, inodes: true, enter: None }
    }

    /// Sets the order of the entries of each directory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let names = fs.walk("/")?.order(Order::Names).depth_max(1);
    /// let names: Vec<_> = names.into_iter().map(|entry| entry.unwrap().name().to_vec()).collect();
    /// assert_eq!(names[1..3], [b"etc".to_vec(), b"lib".to_vec()]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the number of threads that read, including the caller's; 1 starts no other thread. Default: the
    /// number of cores, at most 8.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entries = fs.walk("/etc")?.threads(1).into_iter();
    /// assert_eq!(entries.count(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the maximum depth: 0 for the root only, 1 for its entries as well.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert_eq!(fs.walk("/etc")?.depth_max(0).into_iter().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn depth_max(mut self, depth: usize) -> Self {
        self.depth_max = depth.min(DEPTH_MAX);
        self
    }

    /// Sets whether to load every inode (the default) or only those of directories. The latter is faster if
    /// names and types suffice.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// for entry in fs.walk("/etc")?.inodes(false) {
    ///     println!("{:?}", entry?); // type, path and inode number
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn inodes(mut self, all: bool) -> Self {
        self.inodes = all;
        self
    }

    /// Enters only directories for whose path (see [`Entry::path`]) `enter` returns true. The walk returns
    /// the entry of a directory in any case.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let walk = fs.walk("/etc")?.enter_if(|path| path != b"network");
    /// assert_eq!(walk.into_iter().count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn enter_if(mut self, enter: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        self.enter = Some(Box::new(enter));
        self
    }

    /// The same walk by directories: each listing has all entries of one directory, before the directories in
    /// it.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let first = fs.walk("/etc")?.listings().next().unwrap();
    /// assert_eq!((&*first.path, first.entries.len(), first.faults.len()), (&b""[..], 2, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn listings(self) -> Listings {
        let root = Arc::clone(&self.root);
        let entries = self.into_iter();
        let mut waiting = Vec::new();
        if root.kind() == FileType::Directory && entries.crew.add_root(&Key::root(), Arc::clone(&root)) {
            waiting.push(Waiting {
                key: Key::root(),
                path: Arc::from(Vec::new()),
                ino: root.ino(),
                depth: 0,
            });
        }
        Listings { entries, waiting }
    }

    /// The same walk with the contents of the files, for archives and copies: targets of symbolic links,
    /// attributes, and the data of small files. Readahead combines files that are neighbours on the device
    /// into large reads.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Data;
    ///
    /// let motd = fs.walk("/etc/motd")?.contents().next().unwrap()?;
    /// assert!(matches!(motd.data, Data::Ready(bytes) if *bytes == *b"hello\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn contents(self) -> Contents {
        let fs = self.fs.clone();
        Contents::start(fs, self.into_iter())
    }
}

impl IntoIterator for Walk {
    type Item = Result<Entry, WalkFault>;
    type IntoIter = Entries;

    fn into_iter(self) -> Entries {
        let volume = Arc::clone(self.fs.volume());
        let plan = schedule::Plan {
            volume: Arc::clone(&volume),
            order: self.order,
            inodes: self.inodes,
            depth_max: self.depth_max,
            enter: self.enter,
        };
        Entries {
            crew: Crew::start(plan, self.threads - 1),
            volume,
            root: Some(self.root),
            frames: Vec::new(),
            seen: HashSet::new(),
        }
    }
}

/// An iterator over the entries of a walk. Dropping it ends the threads.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Entries;
///
/// let mut entries: Entries = fs.walk("/etc")?.into_iter();
/// assert_eq!(entries.next().unwrap()?.path(), b""); // the root of the walk
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Entries {
    crew: Crew,
    volume: Arc<Volume>,
    root: Option<InodeRef>,
    frames: Vec<Frame>,
    seen: HashSet<Ino>,
}

/// A directory between the root and the current position of the walk.
struct Frame {
    path: Arc<[u8]>,
    key: Key,
    found: std::vec::IntoIter<Found>,
    /// The last part of the key of the next entry.
    next: u64,
}

impl Entries {
    fn enter(&mut self, key: Key, path: Arc<[u8]>) {
        let found = self.crew.take(&key).into_iter();
        self.frames.push(Frame { path, key, found, next: 0 });
    }

    fn begin(&mut self, root: InodeRef) -> Entry {
        let kind = root.kind();
        let entry = Entry {
            volume: Arc::clone(&self.volume),
            path: Arc::from(Vec::new()),
            name_at: 0,
            depth: 0,
            kind,
            ino: root.ino(),
            inode: Some(Arc::clone(&root)),
            is_last: true,
        };
        if kind == FileType::Directory {
            self.seen.insert(root.ino());
            let key = Key::root();
            if self.crew.add_root(&key, root) {
                self.enter(key, Arc::clone(&entry.path));
            }
        }
        entry
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, WalkFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(root) = self.root.take() {
            return Some(Ok(self.begin(root)));
        }
        loop {
            let depth = self.frames.len();
            let frame = self.frames.last_mut()?;
            let Some(found) = frame.found.next() else {
                self.frames.pop();
                continue;
            };
            let place = frame.next;
            frame.next += 1;
            match found {
                Found::Damage(fault) => {
                    return Some(Err(WalkFault {
                        path: frame.path.to_vec(),
                        problem: Problem::Fault(fault),
                    }));
                }
                Found::Bad { name, fault } => {
                    let path = joined(&frame.path, &name).0;
                    return Some(Err(WalkFault { path, problem: Problem::Fault(fault) }));
                }
                Found::More => {
                    frame.found = self.crew.take(&frame.key.child(place)).into_iter();
                }
                Found::Name { name, ino, kind, inode, enters } => {
                    let is_last = frame.found.as_slice().is_empty();
                    let (path, name_at) = joined(&frame.path, &name);
                    let path: Arc<[u8]> = path.into();
                    if enters {
                        let key = frame.key.child(place);
                        if !self.seen.insert(ino) {
                            self.crew.cancel(&key);
                            return Some(Err(WalkFault {
                                path: path.to_vec(),
                                problem: Problem::SecondWay(ino),
                            }));
                        }
                        self.enter(key, Arc::clone(&path));
                    } else if kind == FileType::Directory && (depth >= DEPTH_MAX || path.len() > PATH_MAX) {
                        return Some(Err(WalkFault { path: path.to_vec(), problem: Problem::TooDeep }));
                    }
                    let volume = Arc::clone(&self.volume);
                    return Some(Ok(Entry { volume, path, name_at, depth, kind, ino, inode, is_last }));
                }
            }
        }
    }
}

/// A directory with all its entries.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Listing;
///
/// for Listing { path, entries, faults } in fs.walk("/")?.listings() {
///     println!("{}: {} names", String::from_utf8_lossy(&path), entries.len());
///     assert!(faults.is_empty());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Listing {
    /// Its path from the root of the walk; see [`Entry::path`].
    pub path: Arc<[u8]>,
    /// Its entries, in the walk's order.
    pub entries: Vec<Entry>,
    /// Parts of it that cannot be read.
    pub faults: Vec<WalkFault>,
}

/// An iterator over the directories of a walk; created by [`Walk::listings`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Listings;
///
/// let dirs: Listings = fs.walk("/etc")?.listings();
/// assert_eq!(dirs.count(), 2); // /etc and /etc/network
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Listings {
    entries: Entries,
    /// Pending directories; the last one is next.
    waiting: Vec<Waiting>,
}

/// A pending directory.
struct Waiting {
    key: Key,
    path: Arc<[u8]>,
    ino: Ino,
    depth: usize,
}

impl Iterator for Listings {
    type Item = Listing;

    fn next(&mut self) -> Option<Listing> {
        let Waiting { key, path, ino, depth } = self.waiting.pop()?;
        let mut listing = Listing { path: Arc::clone(&path), entries: Vec::new(), faults: Vec::new() };
        if !self.entries.seen.insert(ino) {
            self.entries.crew.cancel(&key);
            listing.faults.push(WalkFault { path: path.to_vec(), problem: Problem::SecondWay(ino) });
            return Some(listing);
        }
        let below = self.waiting.len();
        let mut found = self.entries.crew.take(&key).into_iter();
        let mut place = 0;
        while let Some(next) = found.next() {
            let at = |name: &[u8]| joined(&path, name).0;
            match next {
                Found::Damage(fault) => {
                    listing.faults.push(WalkFault { path: path.to_vec(), problem: Problem::Fault(fault) });
                }
                Found::Bad { name, fault } => {
                    listing.faults.push(WalkFault { path: at(&name), problem: Problem::Fault(fault) });
                }
                Found::More => found = self.entries.crew.take(&key.child(place)).into_iter(),
                Found::Name { name, ino, kind, inode, enters } => {
                    let (path, name_at) = joined(&path, &name);
                    let path: Arc<[u8]> = path.into();
                    if enters {
                        let (key, path) = (key.child(place), Arc::clone(&path));
                        self.waiting.push(Waiting { key, path, ino, depth: depth + 1 });
                    } else if kind == FileType::Directory && (depth + 1 >= DEPTH_MAX || path.len() > PATH_MAX)
                    {
                        listing.faults.push(WalkFault { path: path.to_vec(), problem: Problem::TooDeep });
                    }
                    let volume = Arc::clone(&self.entries.volume);
                    let is_last = found.as_slice().is_empty();
                    let depth = depth + 1;
                    listing.entries.push(Entry { volume, path, name_at, depth, kind, ino, inode, is_last });
                }
            }
            place += 1;
        }
        self.waiting[below..].reverse();
        Some(listing)
    }
}

/// Returns `dir/name`, and the offset of the name.
fn joined(dir: &[u8], name: &[u8]) -> (Vec<u8>, usize) {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    let name_at = path.len();
    path.extend_from_slice(name);
    (path, name_at)
}

/// A name that the walk found.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Order;
///
/// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
/// assert_eq!((entry.path(), entry.name()), (&b"network/interfaces"[..], &b"interfaces"[..]));
/// assert_eq!((entry.depth(), entry.kind(), entry.is_last()), (2, extant::FileType::Regular, true));
/// assert_eq!((entry.ino(), entry.metadata()?.size), (entry.inode()?.ino(), 8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Entry {
    volume: Arc<Volume>,
    path: Arc<[u8]>,
    name_at: usize,
    depth: usize,
    kind: FileType,
    ino: Ino,
    inode: Option<InodeRef>,
    is_last: bool,
}

impl Entry {
    /// The path from the root of the walk, without a leading slash; empty for the root.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.path(), b"network/interfaces");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The name, which is the last component of the path; empty for the root.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.name(), b"interfaces");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }

    /// The number of path components from the root of the walk: 0 for the root, 1 for its entries.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.depth(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The type.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.kind(), extant::FileType::Regular);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// The inode number.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.ino(), fs.metadata("/etc/network/interfaces")?.ino);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Whether it is the last entry of its directory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert!(entry.is_last());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// The inode; already in memory unless [`Walk::inodes`] excluded it.
    ///
    /// # Errors
    /// The inode is not in use or is corrupt; the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.inode()?.size(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inode(&self) -> Result<InodeRef, Fault> {
        match &self.inode {
            Some(inode) => Ok(Arc::clone(inode)),
            None => self.volume.inode(self.ino),
        }
    }

    /// The result of lstat(2).
    ///
    /// # Errors
    /// As [`inode`](Self::inode).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::walk::Order;
    ///
    /// let entry = fs.walk("/etc")?.order(Order::Names).into_iter().last().unwrap()?;
    /// assert_eq!(entry.metadata()?.size, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metadata(&self) -> Result<Stat, Fault> {
        Ok(self.volume.attributes().stat(&*self.inode()?))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (inode {})", self.kind, String::from_utf8_lossy(&self.path), self.ino)
    }
}

/// A name or directory that the walk could not read; the walk continues after it.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::WalkFault;
///
/// for entry in fs.walk("/")? {
///     match entry {
///         Ok(entry) => println!("{entry:?}"),
///         Err(WalkFault { path, problem }) => {
///             eprintln!("{}: {problem}", String::from_utf8_lossy(&path));
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WalkFault {
    /// Path from the root of the walk; see [`Entry::path`].
    pub path: Vec<u8>,
    /// The problem there.
    pub problem: Problem,
}

/// The problem with a name or a directory.
///
/// ```
/// use extant::walk::{Problem, WalkFault};
///
/// let fault = WalkFault { path: b"a/b".to_vec(), problem: Problem::SecondWay(extant::Ino(12)) };
/// assert!(fault.to_string().starts_with("a/b: directory 12 has two names"), "{fault}");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A directory that the walk has already entered.
    #[error(
        "directory {0} has two names, or contains itself; it is entered once (run `extant check` on the image)"
    )]
    SecondWay(Ino),
    /// A directory below 4096 others, or with a path of more than 32 KiB.
    #[error(
        "nested deeper than {DEPTH_MAX} directories, or by a path of more than {PATH_MAX} bytes: not entered"
    )]
    TooDeep,
}

impl std::error::Error for WalkFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

impl fmt::Display for WalkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", crate::error::Shown(&self.path), self.problem)
    }
}
impl FileSystem {
    /// Walks everything below a directory with several threads; see [`Walk`]. If the path is not a directory,
    /// the walk returns only that inode.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve). A symbolic link at the end of the path is not followed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let mut bytes = 0;
    /// for entry in fs.walk("/usr")? {
    ///     bytes += entry?.metadata()?.size;
    /// }
    /// assert!(bytes > 3 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk, Error> {
        Ok(self.walk_inode(self.resolve(path, Follow::NotTheLast)?))
    }

    /// Same as [`walk`](Self::walk), from an inode.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let etc = fs.resolve("/etc", extant::Follow::Links)?;
    /// assert_eq!(fs.walk_inode(etc).into_iter().count(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn walk_inode(&self, root: InodeRef) -> Walk {
        Walk::new(self.clone(), root)
    }
}
