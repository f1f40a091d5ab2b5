//! Puts the data of fragmented files into contiguous blocks, and files of a list one after the other.
//!
//! ```text
//! walk: fragments of each file -> candidates, in the order of the list, then of inode numbers
//! each: donor without a name, its blocks reserved -> fewer fragments? -> copy, fsync -> exchange -> release
//! ```
//!
//! Owns: which files are moved, and in which order. Does **not** own: the choice of blocks (the allocator),
//! the exchange (see [`Files::exchange_blocks`](extant_volume::Files::exchange_blocks)).
//!
//! Invariants
//! 1. A file has its data after a power cut at any moment: the exchange is one transaction, and the copy is
//!    durable before.
//! 2. Names, attributes, times, holes and inode numbers stay.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! use extant::optimize::OptimizeOptions;
//!
//! let fs = extant::open_writable(&image)?;
//! let report = fs.optimize(&OptimizeOptions::default(), &|_, _| (), &Default::default())?;
//! assert!(report.fragments_after <= report.fragments_before);
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "mounted")]
mod mounted;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;
use extant_ondisk::filetype::FileType;
use extant_volume::{Allocate, Fault, Inode, New, SetAttr, Volume};

#[cfg(feature = "mounted")]
pub use mounted::{MountedFault, optimize_mounted};

use crate::walk::Problem;
use crate::{Error, FileSystem, Follow};

/// Which files are moved.
///
/// ```
/// use extant::optimize::OptimizeOptions;
///
/// let order = vec![b"/sbin/init".to_vec(), b"/etc/fstab".to_vec()];
/// let options = OptimizeOptions { order, ..OptimizeOptions::default() };
/// assert_eq!((options.fragments_min, options.dry_run), (2, false));
/// ```
#[derive(Debug, Clone)]
pub struct OptimizeOptions {
    /// Files with at least this many fragments are moved.
    pub fragments_min: u64,
    /// Paths of files that are moved in any case, in this order: they follow each other on the device as far
    /// as the free space allows.
    pub order: Vec<Vec<u8>>,
    /// Only report.
    pub dry_run: bool,
}

impl Default for OptimizeOptions {
    fn default() -> Self {
        Self { fragments_min: 2, order: Vec::new(), dry_run: false }
    }
}

/// What was done.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
/// use extant::optimize::{OptimizeOptions, OptimizeReport};
///
/// fs.write("/file", b"hello")?;
/// fs.sync()?;
/// let options = OptimizeOptions { order: vec![b"/file".to_vec()], ..OptimizeOptions::default() };
/// let report: OptimizeReport = fs.optimize(&options, &|_, _| (), &Default::default())?;
/// assert!(report.files == 1 && report.fragments_after <= report.fragments_before);
/// for (path, why) in &report.left {
///     println!("{}: {why}", String::from_utf8_lossy(path));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OptimizeReport {
    /// Regular files with data.
    pub files: u64,
    /// Files with at least two fragments, before.
    pub fragmented: u64,
    /// Fragments of all files before. A fragment is a run of contiguous blocks.
    pub fragments_before: u64,
    /// Fragments of all files after.
    pub fragments_after: u64,
    /// Files that got other blocks.
    pub moved: u64,
    /// Bytes of these files.
    pub moved_bytes: u64,
    /// Files that stay, though they are candidates, and the reasons.
    pub left: Vec<(Vec<u8>, String)>,
}

/// A file that may be moved.
struct Candidate<P> {
    path: P,
    fragments: u64,
    is_listed: bool,
}

/// The files that may be moved: those of a list first, by their places in it, then by inode numbers.
struct Candidates<P> {
    /// Places in the list, by inode number.
    places: HashMap<u64, usize>,
    files: BTreeMap<(usize, u64), Candidate<P>>,
}

impl<P> Candidates<P> {
    /// `listed`: the inode numbers of the files of the list.
    fn new(listed: impl IntoIterator<Item = u64>) -> Self {
        let mut places = HashMap::new();
        for (place, ino) in listed.into_iter().enumerate() {
            places.entry(ino).or_insert(place);
        }
        Self { places, files: BTreeMap::new() }
    }

    fn key(&self, ino: u64) -> (usize, u64) {
        (self.places.get(&ino).copied().unwrap_or(usize::MAX), ino)
    }

    /// Whether a file is known by another name.
    fn has(&self, ino: u64) -> bool {
        self.files.contains_key(&self.key(ino))
    }

    fn add(&mut self, ino: u64, path: P, fragments: u64) {
        let is_listed = self.places.contains_key(&ino);
        self.files.entry(self.key(ino)).or_insert(Candidate { path, fragments, is_listed });
    }

    /// Moves those that `options` choose. `move_one` returns the fragments and bytes of a file that has
    /// moved, or why it stays; its error ends the work. `shown` is the path in the report.
    fn run<E>(
        self,
        options: &OptimizeOptions,
        report: &mut OptimizeReport,
        (progress, cancel): (&dyn Fn(u64, u64), &AtomicBool),
        shown: impl Fn(&P) -> Vec<u8>,
        mut move_one: impl FnMut(u64, &Candidate<P>) -> Result<Result<(u64, u64), String>, E>,
    ) -> Result<(), E> {
        let of = self.files.len() as u64;
        for (done, ((_, ino), file)) in self.files.into_iter().enumerate() {
            if cancel.load(Ordering::Relaxed) {
                break;
            }
            progress(done as u64, of);
            report.files += u64::from(file.fragments > 0);
            report.fragmented += u64::from(file.fragments > 1);
            report.fragments_before += file.fragments;
            let is_wanted = file.fragments > 0 && (file.is_listed || file.fragments >= options.fragments_min);
            let moved = match is_wanted && !options.dry_run {
                true => Some(move_one(ino, &file)?),
                false => None,
            };
            report.fragments_after += match moved {
                Some(Ok((fragments, bytes))) => {
                    report.moved += 1;
                    report.moved_bytes += bytes;
                    fragments
                }
                Some(Err(why)) => {
                    report.left.push((shown(&file.path), why));
                    file.fragments
                }
                None => file.fragments,
            };
        }
        Ok(())
    }
}

/// Why inodes keep their numbers.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use std::sync::Arc;
/// use extant::optimize::{OrderFault, order_inodes};
///
/// let device: Arc<dyn extant::Device> = Arc::new(extant::FileDevice::open(&image, true)?);
/// let result = order_inodes(&device, ["/missing"], &Default::default(), &Default::default());
/// assert!(matches!(result, Err(OrderFault::Path(_))));
/// # Ok::<(), std::io::Error>(())
/// ```
#[cfg(feature = "repair")]
#[derive(Debug, thiserror::Error)]
pub enum OrderFault {
    /// A path of the list does not exist, or cannot be read.
    #[error(transparent)]
    Path(Error),
    /// The numbers cannot change.
    #[error(transparent)]
    Change(#[from] crate::resize::ResizeFault),
    /// The change cannot be written through the undo file.
    #[error(transparent)]
    Write(#[from] crate::repair::RepairFault),
    /// The undo file cannot be removed.
    #[error("the undo file {0}: {1}")]
    Undo(std::path::PathBuf, std::io::Error),
}

/// Gives the inodes of the files and directories of a list free numbers that ascend in this order, so that a
/// program that reads them in this order reads few blocks of the inode tables. The numbers follow each other
/// if so many free numbers do. Returns how many inodes have
/// another number. The image must not be in use. If the file system has a journal, after a power cut each
/// inode has its old number or its new one, and the same call continues. Otherwise the change goes through
/// the undo file, if there is one.
///
/// # Errors
/// A path does not exist; the file system has the feature `stable_inodes`
/// ([`FixedInodes`](crate::resize::ResizeFault::FixedInodes)) or too few free inodes; the image or the undo
/// file cannot be read or written.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use std::sync::Arc;
/// use extant::optimize::order_inodes;
///
/// let device: Arc<dyn extant::Device> = Arc::new(extant::FileDevice::open(&image, true)?);
/// let list = ["/usr/lib/large", "/etc/motd"];
/// assert_eq!(order_inodes(&device, list, &Default::default(), &Default::default())?, 2);
/// let fs = extant::FileSystem::from_device(device, &Default::default())?;
/// let [first, second] = list.map(|path| fs.metadata(path).map(|stat| stat.ino));
/// assert!(first? < second?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "repair")]
pub fn order_inodes<P: AsRef<[u8]>>(
    device: &Arc<dyn crate::Device>,
    paths: impl IntoIterator<Item = P>,
    options: &crate::tune::OfflineOptions,
    cancel: &AtomicBool,
) -> Result<u64, OrderFault> {
    let journal_device = options.journal_device.clone();
    let open = crate::OpenOptions { journal_device: journal_device.clone(), ..Default::default() };
    let volume =
        Volume::open_read_only(Arc::clone(device), &open).map_err(extant_resize::ResizeFault::Open)?;
    let mut order = Vec::new();
    for path in paths {
        let inode = volume.names().resolve(path.as_ref(), Follow::NotTheLast);
        order.push(inode.map_err(|fault| OrderFault::Path(Error::at(path.as_ref())(fault)))?.ino());
    }
    let has_journal = volume.superblock().features.has_compat(crate::Features::HAS_JOURNAL);
    drop(volume);
    let options_of_change = crate::resize::ResizeOptions {
        journal_device,
        waiting: options.waiting.clone(),
        ..Default::default()
    };
    let Some(undo) = options.undo.as_ref().filter(|_| !has_journal) else {
        return Ok(extant_resize::order_inodes(device, &order, &options_of_change, cancel)?);
    };
    let mut moved = 0;
    let planned = extant_repair::plan_writes(Arc::clone(device), |overlay| {
        let ordered = extant_resize::order_inodes(overlay, &order, &options_of_change, cancel);
        moved = ordered.map_err(|fault| match fault {
            // Nothing of the plan is written.
            extant_resize::ResizeFault::InPart { source, .. } => *source,
            fault => fault,
        })?;
        Ok::<(), OrderFault>(())
    })?;
    planned.write(&**device, Some(undo))?;
    if !planned.is_empty() {
        std::fs::remove_file(undo).map_err(|why| OrderFault::Undo(undo.clone(), why))?;
    }
    Ok(moved)
}

/// The number of runs of contiguous blocks of a file.
fn fragments(volume: &Volume, file: &Inode) -> Result<u64, Fault> {
    let (mut count, mut next) = (0, None);
    volume.files().extents(file, 0, i64::MAX as u64, &mut |extent| {
        if !extent.inline {
            count += u64::from(next != Some((extent.offset, extent.physical)));
            next = Some((extent.offset + extent.len, extent.physical + extent.len));
        }
        Some(())
    })?;
    Ok(count)
}

impl FileSystem {
    /// Moves the data of fragmented files to contiguous blocks. `progress` gets the number of files that were
    /// considered, and their number. The changes are durable at the close, or after a sync.
    ///
    /// # Errors
    /// A path of the order does not exist; the file system cannot be read or written. A file that cannot be
    /// moved is no error: see [`OptimizeReport::left`].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::optimize::OptimizeOptions;
    ///
    /// fs.write("/file", b"hello")?;
    /// fs.sync()?;
    /// let options = OptimizeOptions { dry_run: true, ..OptimizeOptions::default() };
    /// let report = fs.optimize(&options, &|done, of| println!("{done} of {of}"), &Default::default())?;
    /// assert_eq!((report.files, report.fragmented), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn optimize(
        &self,
        options: &OptimizeOptions,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<OptimizeReport, Error> {
        let volume = self.volume();
        let mut report = OptimizeReport::default();
        let mut listed = Vec::with_capacity(options.order.len());
        for path in &options.order {
            let inode = volume.names().resolve(path, Follow::NotTheLast).map_err(Error::at(path))?;
            listed.push(inode.ino().0.into());
        }
        let mut candidates = Candidates::new(listed);
        for entry in self.walk("/")? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(fault) => match fault.problem {
                    Problem::Fault(why) => return Err(Error::at(&fault.path)(why)),
                    other => {
                        report.left.push((fault.path, other.to_string()));
                        continue;
                    }
                },
            };
            let ino = entry.ino().0.into();
            if entry.kind() != FileType::Regular || candidates.has(ino) {
                continue;
            }
            let inode = entry.inode().map_err(Error::at(entry.path()))?;
            let fragments = fragments(volume, &inode).map_err(Error::at(entry.path()))?;
            candidates.add(ino, entry.path().to_vec(), fragments);
        }
        candidates.run(options, &mut report, (progress, cancel), Vec::clone, |ino, file| {
            match self.move_data(Ino(ino as u32), file) {
                Ok(Some(moved)) => Ok(Ok(moved)),
                Ok(None) => Ok(Err("there is no better free space".to_owned())),
                Err(fault @ Fault::Refused(_)) => Ok(Err(fault.to_string())),
                Err(fault) => Err(Error::at(&file.path)(fault)),
            }
        })?;
        volume.sync().map_err(Error::at(b"/"))?;
        Ok(report)
    }

    /// Moves a file. Returns its fragments afterwards and its bytes; `None` if the free space is no better.
    fn move_data(&self, ino: Ino, file: &Candidate<Vec<u8>>) -> Result<Option<(u64, u64)>, Fault> {
        let volume = self.volume();
        let donor = volume.names().create_unnamed(Ino::ROOT, &New::file(0o600))?.ino();
        let moved = move_to(volume, ino, donor, file);
        let released = volume.released(donor);
        let moved = moved?;
        released?;
        Ok(moved)
    }
}

fn move_to(
    volume: &Arc<Volume>,
    ino: Ino,
    donor: Ino,
    file: &Candidate<Vec<u8>>,
) -> Result<Option<(u64, u64)>, Fault> {
    let inode = volume.inode(ino)?;
    let size = inode.size();
    // Ranges without holes between them are reserved at once.
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    volume.files().extents(&inode, 0, i64::MAX as u64, &mut |extent| {
        match ranges.last_mut() {
            Some((offset, len)) if *offset + *len == extent.offset => *len += extent.len,
            _ => ranges.push((extent.offset, extent.len)),
        }
        Some(())
    })?;
    for (offset, len) in ranges {
        volume.files().fallocate(donor, Allocate::Keep, offset, len)?;
    }
    let fragments = fragments(volume, &*volume.inode(donor)?)?;
    if fragments >= file.fragments && !file.is_listed {
        return Ok(None);
    }
    let mut at = 0;
    while at < size {
        match volume.files().copy_range((ino, at), (donor, at), size - at)? {
            0 => break,
            copied => at += copied,
        }
    }
    if volume.inode(donor)?.size() != size {
        volume.attributes().set_attr(donor, &SetAttr { size: Some(size), ..SetAttr::default() })?;
    }
    volume.files().fsync(donor)?;
    volume.files().exchange_blocks(ino, donor)?;
    Ok(Some((fragments, size)))
}
