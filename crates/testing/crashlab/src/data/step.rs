//! Steps: what a run does to files.

use extant_volume::Allocate;

use super::{DataKind, Space};

/// Number of file names.
pub(super) const NAMES: usize = 4;
/// Bytes of a unit, which identifies its writer. Offsets and sizes are multiples of it.
pub(super) const UNIT: u64 = 8;

/// One step. Names are numbers; offsets and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Creates a file with this unused name.
    Create(usize),
    /// Writes at an offset, for a length.
    Write(usize, u64, u64),
    /// Sets the size.
    Resize(usize, u64),
    /// Changes the map at an offset, for a length.
    Allocate(usize, Allocate, u64, u64),
    /// As [`Allocate`](Self::Allocate), when there was space for a part only.
    Partly(usize, Allocate, u64, u64),
    /// A step for which there was no space.
    Nothing,
    /// Removes the name and its file.
    Unlink(usize),
    /// Renames the first name to the second; the second's previous file is deleted.
    Rename(usize, usize),
    /// Fsync of a file.
    Fsync(usize),
    /// Fdatasync of a file.
    Fdatasync(usize),
    /// Sync of the volume.
    Sync,
    /// Writes back at most this many dirty bytes. The flags: whether a commit comes before each write of data
    /// to the device, and after it.
    WriteBack(u64, [bool; 2]),
    /// A commit without write-back of data.
    Commit,
    /// A checkpoint.
    Checkpoint,
}

impl Step {
    /// The name of the file that the step changes or makes durable.
    pub(super) fn name(self) -> Option<usize> {
        match self {
            Self::Create(name)
            | Self::Write(name, ..)
            | Self::Resize(name, _)
            | Self::Allocate(name, ..)
            | Self::Partly(name, ..)
            | Self::Unlink(name)
            | Self::Rename(name, _)
            | Self::Fsync(name)
            | Self::Fdatasync(name) => Some(name),
            Self::Nothing | Self::Sync | Self::WriteBack(..) | Self::Commit | Self::Checkpoint => None,
        }
    }

    /// The step to record instead of one for which there was no space.
    pub(super) fn refused(self) -> Self {
        match self {
            Self::Write(name, pos, _) => Self::Write(name, pos, 0),
            Self::Allocate(name, mode, pos, len) => Self::Partly(name, mode, pos, len),
            _ => Self::Nothing,
        }
    }

    /// Whether the step may be refused for lack of space, completely or in part. Fsync may not: a write that
    /// succeeded has reserved its space.
    pub(super) fn may_be_refused(self, (kind, space): (DataKind, Space)) -> bool {
        space == Space::Short
            && match self {
                Self::Write(..) | Self::Allocate(..) => true,
                // A file that no longer fits into its inode needs a block.
                Self::Resize(..) => kind == DataKind::Inline,
                _ => false,
            }
    }
}
