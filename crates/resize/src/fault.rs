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
    #[error("the file system is damaged: {0}; run `e2fsck -f` first")]
    Damaged(String),
    /// The file system was not unmounted and has no journal, or errors were found in it.
    #[error("the file system {0}; run `e2fsck -f` first, which marks it as clean")]
    NotClean(&'static str),
    /// The device is smaller than the size asked for, and cannot grow.
    #[error("the device has {available} bytes, and the size asked for needs {needed}")]
    DeviceTooSmall {
        /// Bytes of the device.
        available: u64,
        /// Bytes of the file system after the resize.
        needed: u64,
    },
    /// The file system is larger than the size asked for.
    #[error(
        "the file system has {from} blocks, more than the {to} asked for: extant cannot shrink yet; use \
         `resize2fs`"
    )]
    Shrink {
        /// Blocks of the file system.
        from: u64,
        /// Blocks asked for.
        to: u64,
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

impl From<Malformed> for ResizeFault {
    fn from(fact: Malformed) -> Self {
        Self::Damaged(fact.to_string())
    }
}
