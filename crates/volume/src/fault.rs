//! Why an operation is refused or failed, and the errno that says so.

use std::fmt;

use base::{Corrupt, Ino, Malformed, Place};
use buffer::ReadFault;
use device::DeviceFault;

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operation was refused at the door; nothing is wrong with the volume.
    #[error("{0}")]
    Refused(Refusal),
    /// The volume breaks a rule of the format there.
    #[error("{0} (run `extant check` on the image)")]
    Corrupt(Corrupt),
    /// The device refused.
    #[error(transparent)]
    Device(DeviceFault),
}

/// Why an operation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No such name.
    NotFound,
    /// A part of the path that should be a directory is none.
    NotDirectory,
    /// A directory where a file is wanted.
    IsDirectory,
    /// Not of the type that the operation is for.
    WrongType,
    /// More than 40 symbolic links on the way.
    TooManyLinks,
    /// A name is longer than 255 bytes, or a path than 4096.
    NameTooLong,
    /// No such inode (any more).
    Stale,
    /// No such attribute.
    NoAttribute,
    /// The content is encrypted, and there is no key.
    NeedsKey,
    /// Past the end of the file, for seeking.
    PastEnd,
    /// The volume is open for reading only.
    ReadOnly,
}

impl Refusal {
    /// The number that system calls return.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::PastEnd => 6,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::WrongType => 22,
            Self::ReadOnly => 30,
            Self::NameTooLong => 36,
            Self::TooManyLinks => 40,
            Self::NoAttribute => 61,
            Self::Stale => 116,
            Self::NeedsKey => 126,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "no such file or directory",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::WrongType => "not possible for a file of this type",
            Self::TooManyLinks => "too many symbolic links on the way",
            Self::NameTooLong => "name too long",
            Self::Stale => "no such inode",
            Self::NoAttribute => "no such attribute",
            Self::NeedsKey => {
                "the content is encrypted, and reading it needs a key, which extant cannot take"
            }
            Self::PastEnd => "past the end of the file",
            Self::ReadOnly => "the volume is open for reading only",
        })
    }
}

impl Fault {
    /// The number that system calls return: of a refusal its own, 117 (EUCLEAN) for corruption, the system's for I/O.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => refusal.errno(),
            Self::Corrupt(_) => 117,
            Self::Device(fault) => fault.os_error().unwrap_or(5),
        }
    }

    /// Was it refused for this reason?
    #[must_use]
    pub fn is(&self, refusal: Refusal) -> bool {
        matches!(self, Self::Refused(found) if *found == refusal)
    }

    pub(crate) fn corrupt(ino: Ino, fact: Malformed) -> Self {
        Self::Corrupt(Corrupt::at(Place::ino(ino), fact))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ReadFault> for Fault {
    fn from(fault: ReadFault) -> Self {
        match fault {
            ReadFault::Device(fault) => Self::Device(fault),
            ReadFault::Corrupt(fault) => Self::Corrupt(fault),
        }
    }
}

impl From<inode::Fault> for Fault {
    fn from(fault: inode::Fault) -> Self {
        match fault {
            inode::Fault::Device(fault) => Self::Device(fault),
            inode::Fault::Corrupt(fault) => Self::Corrupt(fault),
            inode::Fault::NoSuchInode(_) => Self::Refused(Refusal::Stale),
            inode::Fault::NeedsKey(_) => Self::Refused(Refusal::NeedsKey),
        }
    }
}
