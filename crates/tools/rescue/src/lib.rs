//! Gets files out of damaged or emptied images, finds deleted files, and dumps metadata.
//!
//! The *ground* is what must be read before anything else: the superblock, the group descriptors, and the
//! journal with its older copies of blocks.
//!
//! ```text
//! ground:  superblock or a backup -> descriptors, backups, or by the layout -> older copies in the journal
//!    |-> live:     names from the root; then inodes that no name leads to, under lost+found/
//!    |-> deleted:  inodes in older copies of inode tables; names in older copies of directories
//!    |      '--> sink: a directory or a tar archive
//!    '-> dump:     metadata blocks only, names scrambled on request
//! ```
//!
//! Owns: finding what is left of a file system, and how certain the content of each file is. Does **not**
//! own: changing an image, layouts (see `ondisk`, `jbd2-format`), the command line.
//!
//! Invariants
//! 1. The image is only read.
//! 2. INV-RS1: a damaged block hides at most what is stored in it, and what is found only through it. Every
//!    walk is bounded, whatever the bytes are.
//! 3. INV-RS2: a deleted file of high [`Confidence`] has the bytes that it had when it was deleted. One of
//!    these holds:
//!    - The bytes are in the inode of the file.
//!    - All blocks of the file are free, and nothing was allocated or freed in their groups since the
//!      deletion. The journal shows this: of the bitmap of each group, its newest copy is the one that the
//!      deletion left.
//! 4. In paths of the output no name is `.` or `..`, and no name contains `/`. No two files have the same
//!    path.
//!
//! Source: kernel Documentation/filesystems/ext4/.

#![forbid(unsafe_code)]

mod content;
mod deleted;
mod dump;
mod ground;
mod history;
mod live;
mod maps;
mod names;
mod scramble;
mod sink;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;
use extant_device::{Device, DeviceFault};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::Inode;
use extant_ondisk::superblock::Superblock;

pub use dump::DumpReport;
use ground::Ground;
pub use sink::{DirectorySink, RescueSink, TarSink};

/// Why nothing can be rescued.
#[derive(Debug, thiserror::Error)]
pub enum RescueFault {
    /// Neither the primary superblock nor a backup is valid.
    #[error("no superblock: neither the one at byte 1024 nor a backup is valid")]
    NoSuperblock,
    /// The given block has no backup superblock.
    #[error("block {0} has no superblock")]
    NoBackup(u64),
    /// The image cannot be read.
    #[error("the image cannot be read: {0}")]
    Device(#[from] DeviceFault),
    /// The output cannot be written.
    #[error("{0}: {1}")]
    Output(String, std::io::Error),
    /// The device of a dump cannot be written.
    #[error(transparent)]
    Written(DeviceFault),
    /// The caller stopped the work.
    #[error("interrupted")]
    Interrupted,
}

impl RescueFault {
    /// Whether the caller ended the work: [`RescueObserver::stop`] was set.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted)
    }
}

/// How certain it is that a file has the bytes that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Some of its blocks are known to be lost or used again.
    Low,
    /// Nothing speaks against it, but not everything can be verified.
    Medium,
    /// All that it consists of is verified.
    High,
}

impl Confidence {
    /// `high`, `medium` or `low`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A file that was found.
#[derive(Debug, Clone)]
pub struct FoundFile {
    /// Its path from the root, one name after the other; empty for the root.
    pub path: Vec<Vec<u8>>,
    /// Its inode number.
    pub ino: Ino,
    /// Its type.
    pub kind: FileType,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last changed, in seconds since 1970.
    pub mtime: i64,
    /// When it was deleted, in seconds since 1970; `None`: it was not, or the time is lost.
    pub deleted: Option<u32>,
    /// How certain its content is.
    pub confidence: Confidence,
    /// Why.
    pub reason: String,
}

impl FoundFile {
    /// The path with `/` between the names; `.` for the root.
    #[must_use]
    pub fn shown(&self) -> Vec<u8> {
        if self.path.is_empty() { b".".to_vec() } else { self.path.join(&b'/') }
    }
}

/// What is to be rescued.
#[derive(Debug, Clone, Copy, Default)]
pub struct RescueScope {
    /// Deleted files only, instead of the files that are there.
    pub deleted: bool,
    /// Only files that were deleted at this time or later, in seconds since 1970. Files whose deletion time
    /// is lost are included.
    pub since: Option<u32>,
}

/// What is called during the work.
pub trait RescueObserver: Sync {
    /// Whether a file is wanted.
    fn wants(&self, _found: &FoundFile) -> bool {
        true
    }

    /// A file was written, or listed if there is no sink.
    fn found(&self, found: &FoundFile);

    /// Set to stop.
    fn stop(&self) -> Option<&AtomicBool> {
        None
    }
}

/// Wants all files, and ignores the reports.
impl RescueObserver for () {
    fn found(&self, _found: &FoundFile) {}
}

/// Fails if the caller wants to stop.
fn check_stop(watch: &dyn RescueObserver) -> Result<(), RescueFault> {
    match watch.stop() {
        Some(stop) if stop.load(Ordering::Relaxed) => Err(RescueFault::Interrupted),
        _ => Ok(()),
    }
}

/// What is left of a file system.
pub struct Rescue {
    ground: Ground,
}

impl Rescue {
    /// Finds superblock, descriptors and journal. `backup`: the block of a backup superblock to use.
    ///
    /// # Errors
    /// [`RescueFault::NoSuperblock`], [`RescueFault::NoBackup`].
    pub fn open(device: Arc<dyn Device>, backup: Option<u64>) -> Result<Self, RescueFault> {
        Ok(Self { ground: Ground::open(device, backup)? })
    }

    /// What was wrong with superblock, descriptors and journal, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.ground.notes
    }

    /// Finds the wanted files, and writes them to the sink.
    ///
    /// # Errors
    /// The output cannot be written, or the caller stopped. A part of the image that cannot be read is no
    /// error: files in it have a low confidence, or are not found.
    pub fn run(
        &self,
        wanted: RescueScope,
        sink: &mut dyn RescueSink,
        watch: &dyn RescueObserver,
    ) -> Result<(), RescueFault> {
        match wanted.deleted {
            true => deleted::run(&self.ground, wanted, sink, watch),
            false => live::run(&self.ground, sink, watch),
        }
    }

    /// Size of the file system in bytes, which is that of a dump.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.ground.geometry.blocks * self.block_bytes()
    }

    /// Size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.ground.geometry.block_size.bytes()
    }

    /// The superblock, or the backup that is used instead.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.ground.sb
    }

    /// Writes all metadata, and no file contents, to a device of at least [`size_bytes`](Self::size_bytes).
    /// On a [fresh](Device::is_fresh) device, blocks of zeros stay holes. `scramble`: names, targets of
    /// symbolic links, attributes' values and contents of inline files are replaced by others of the same
    /// lengths, and the label by `extant scrambled`.
    ///
    /// # Errors
    /// The output cannot be written, or the caller stopped.
    pub fn dump(
        &self,
        output: &dyn Device,
        scramble: bool,
        watch: &dyn RescueObserver,
    ) -> Result<DumpReport, RescueFault> {
        dump::run(&self.ground, output, scramble, watch)
    }

    /// Whether the names are replacements that [`dump`](Self::dump) has made: whether the label is that of a
    /// scrambled dump, or most names in the root are those that their positions give.
    #[must_use]
    pub fn is_scrambled(&self) -> bool {
        dump::is_scrambled(&self.ground)
    }
}

/// The fields of an inode that a [`FoundFile`] shows.
fn found_of(path: Vec<Vec<u8>>, ino: Ino, inode: &Inode) -> FoundFile {
    FoundFile {
        path,
        ino,
        kind: FileType::from_mode(inode.mode),
        size: inode.size,
        mtime: inode.mtime.seconds,
        deleted: None,
        confidence: Confidence::High,
        reason: String::new(),
    }
}
