//! Why a resize fails.

use extant_base::Malformed;
use extant_device::DeviceFault;
use extant_journal::{JournalFault, ReplayFault};
use extant_volume::OpenFault;

use crate::plan::PlanFault;

/// Why a file system cannot be resized.
#[derive(Debug, thiserror::Error)]
pub enum ResizeFault {
    /// The size is impossible.
    #[error(transparent)]
    Plan(#[from] PlanFault),
    /// The file system cannot be opened for writing.
    #[error(transparent)]
    Open(#[from] OpenFault),
    /// A structure that the resize changes is damaged, or does not match the others.
    #[error("the file system is damaged: {0}; run `extant check --repair` first")]
    Damaged(String),
    /// The file system was not unmounted and has no journal, or errors were found in it.
    #[error("the file system {0}; run `extant check --repair -f` first, which marks it as clean")]
    NotClean(&'static str),
    /// The device is smaller than the size asked for, and cannot grow.
    #[error("the device has {available} bytes, and the size asked for needs {needed}")]
    DeviceTooSmall {
        /// Bytes of the device.
        available: u64,
        /// Bytes of the file system after the resize.
        needed: u64,
    },
    /// What is in use does not fit the size asked for.
    #[error("{bytes} bytes are too small: {why}; the smallest size is {least} bytes")]
    TooSmall {
        /// Bytes asked for.
        bytes: u64,
        /// What does not fit.
        why: &'static str,
        /// The smallest number of bytes.
        least: u64,
    },
    /// The file system has something that cannot move.
    #[error("this file system cannot shrink to this size: {0}; use `resize2fs`")]
    CannotShrink(&'static str),
    /// Inodes cannot get other numbers.
    #[error("the inodes keep their numbers: {0}")]
    FixedInodes(&'static str),
    /// Ordered inodes get free numbers, and there are not enough.
    #[error("there are fewer than {wanted} free inodes for the inodes of the list")]
    FewInodes {
        /// Inodes of the list.
        wanted: usize,
    },
    /// The free space is in too many pieces. What was moved is sound, and the size is as before.
    #[error(
        "the free space before the new end is in too many pieces for inode {ino}: choose a larger size; \
         the file system has its old size and is sound"
    )]
    TooFragmented {
        /// The inode whose map has no room for more pieces.
        ino: u32,
    },
    /// There is no free block before the new end.
    #[error(
        "there is no free block left before the new end: choose a larger size; the file system has its old \
         size and is sound"
    )]
    NoSpace,
    /// A bitmap or an inode table of a group has no place before the new end.
    #[error(
        "there are no {blocks} free blocks in a row for the bitmap or the inode table of group {group}: \
         choose a larger size; the file system has its old size and is sound"
    )]
    NoRun {
        /// Blocks that are needed.
        blocks: u64,
        /// The group.
        group: u32,
    },
    /// Some inodes of a list have their new numbers, and the others do not.
    #[error("{source}; {moved_inodes} inodes have other numbers already")]
    InPart {
        /// Inodes that have another number.
        moved_inodes: u64,
        /// Why the others keep theirs.
        source: Box<ResizeFault>,
    },
    /// Interrupted between two steps. The file system is sound; another resize continues.
    #[error("interrupted; the file system is sound, and the same command continues")]
    Interrupted,
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalFault),
    /// A transaction cannot be copied home; the next open does that.
    #[error(transparent)]
    Replay(#[from] ReplayFault),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// Recovery stopped: a write failed. The next open does it again.
    #[error("recovery stopped: {0}")]
    Recovery(String),
    /// The image cannot be opened for writing, or is in use.
    #[error("the image {0}")]
    Image(std::io::Error),
    /// The image file cannot change its length.
    #[error("the image file cannot be given {bytes} bytes: {source}")]
    Length {
        /// The length.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
}

impl ResizeFault {
    /// Whether the caller ended the work: `cancel` became true.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Interrupted => true,
            Self::InPart { source, .. } => source.is_interrupted(),
            _ => false,
        }
    }
}

impl From<Malformed> for ResizeFault {
    fn from(fact: Malformed) -> Self {
        Self::Damaged(fact.to_string())
    }
}
