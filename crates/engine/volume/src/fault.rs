//! Why a volume cannot be opened; why an operation was refused or failed, and its errno.

use std::fmt;

use extant_base::{Corrupt, CorruptAt, Ino, Malformed};
use extant_buffer::ReadFault;
use extant_device::DeviceFault;

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operation was refused; nothing is wrong with the volume.
    #[error("{0}")]
    Refused(Refusal),
    /// The volume breaks a rule of the format there.
    #[error("{0} (run `extant check` on the image)")]
    Corrupt(Corrupt),
    /// The device failed.
    #[error(transparent)]
    Device(DeviceFault),
    /// The device could not make written data durable.
    #[error("what was written is not durable: {0}")]
    NotFlushed(extant_flush::Failed),
    /// File data in memory could not be written to the device. Reported once.
    #[error(
        "bytes that were written to this file before could not be put on the device, and may be lost; write them again"
    )]
    LostWrite,
    /// Nothing is written any more because of an earlier failure.
    #[error(transparent)]
    Aborted(extant_journal::Aborted),
    /// Damage was found, and nothing is read or written any more ([`OnError::Panic`](crate::OnError::Panic)).
    #[error("nothing is done any more, since damage was met (errors=panic): {0}")]
    Stopped(extant_journal::Aborted),
    /// The volume was shut down deliberately: nothing is read or written any more.
    #[error("the file system was shut down")]
    ShutDown,
}

/// Why an operation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No such name.
    NotFound,
    /// A part of the path is not a directory.
    NotDirectory,
    /// A directory where a file is expected.
    IsDirectory,
    /// Not the type that the operation needs.
    WrongType,
    /// More than 40 symbolic links along the path.
    TooManyLinks,
    /// A name is longer than 255 bytes, or a path than 4096.
    NameTooLong,
    /// No such inode, or it was deleted.
    Stale,
    /// No such attribute.
    NoAttribute,
    /// The data is encrypted, and there is no key.
    NeedsKey,
    /// A seek past the end of the file.
    PastEnd,
    /// The volume is open for reading only.
    ReadOnly,
    /// The name exists already.
    Exists,
    /// The directory is not empty.
    NotEmpty,
    /// No block is free.
    NoSpace,
    /// No inode is free: their number was fixed when the file system was created.
    NoInodes,
    /// The file may not be changed: it is immutable or append-only.
    NotPermitted,
    /// More names than an inode can have (65,000).
    TooManyNames,
    /// An invalid argument: "." as a name, a directory into itself, a malformed ACL.
    Invalid,
    /// In use, or a special name (".", "..").
    Busy,
    /// Larger than can be stored.
    TooLarge,
    /// A value that does not fit in its place.
    ValueTooLong,
    /// An attribute's name is empty or too long.
    Range,
    /// Not for files of this type: a default ACL of an inode that is not a directory.
    Denied,
    /// Not possible in this file system, or for this attribute name.
    NotSupported,
    /// The directory passes its project on, and the file has another one.
    OtherProject,
}

impl Refusal {
    /// The errno of system calls.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::PastEnd => 6,
            Self::ValueTooLong => 7,
            Self::Denied => 13,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::OtherProject => 18,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::WrongType | Self::Invalid => 22,
            Self::TooLarge => 27,
            Self::NoSpace | Self::NoInodes => 28,
            Self::ReadOnly => 30,
            Self::TooManyNames => 31,
            Self::Range => 34,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::TooManyLinks => 40,
            Self::NoAttribute => 61,
            Self::NotSupported => 95,
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
            Self::Exists => "the name exists",
            Self::NotEmpty => "the directory is not empty",
            Self::NoSpace => "no space left in the file system",
            Self::NoInodes => {
                "no inode is left: the file system was made for so many files (blocks may be free; see `extant df -i`)"
            }
            Self::NotPermitted => "the file is immutable or append-only",
            Self::TooManyNames => "the file has as many names as it can have",
            Self::Invalid => "an argument makes no sense",
            Self::Busy => "in use, or a name that cannot be changed",
            Self::TooLarge => "larger than the file system can store",
            Self::ValueTooLong => "the attribute's value is too long",
            Self::Range => "the attribute's name is empty or too long",
            Self::Denied => "not for files of this type",
            Self::NotSupported => "not possible here",
            Self::OtherProject => "the directory is of another project",
        })
    }
}

impl Fault {
    /// The errno of system calls: a refusal's own, 117 (EUCLEAN) for corruption, the system's for I/O.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => refusal.errno(),
            Self::Corrupt(_) => 117,
            Self::Device(fault) => fault.os_error().unwrap_or(5),
            Self::NotFlushed(failed) => failed.fault().os_error().unwrap_or(5),
            Self::LostWrite => 5,
            // As the kernel for mounts that became read-only because of an error.
            Self::Aborted(_) => 30,
            Self::Stopped(_) | Self::ShutDown => 5,
        }
    }

    /// Returns whether the operation was refused for this reason.
    #[must_use]
    pub fn is(&self, refusal: Refusal) -> bool {
        matches!(self, Self::Refused(found) if *found == refusal)
    }

    /// Returns whether it was refused because no block or inode is free. Freed space that waits for a commit
    /// may help.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.is(Refusal::NoSpace) || self.is(Refusal::NoInodes)
    }

    /// Returns whether this is a refusal that operations return before their first change, or after undoing
    /// it. `NotFound` and `Stale` inside an operation are damage.
    pub(crate) fn is_clean_refusal(&self) -> bool {
        matches!(self, Self::Refused(refusal) if !matches!(refusal, Refusal::NotFound | Refusal::Stale))
    }

    pub(crate) fn corrupt(ino: Ino, fact: Malformed) -> Self {
        Self::Corrupt(Corrupt::at(CorruptAt::ino(ino), fact))
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

impl From<extant_inode::Fault> for Fault {
    fn from(fault: extant_inode::Fault) -> Self {
        match fault {
            extant_inode::Fault::Device(fault) => Self::Device(fault),
            extant_inode::Fault::Corrupt(fault) => Self::Corrupt(fault),
            extant_inode::Fault::NoSuchInode(_) => Self::Refused(Refusal::Stale),
            extant_inode::Fault::NeedsKey(_) => Self::Refused(Refusal::NeedsKey),
            extant_inode::Fault::NoSpace => Self::Refused(Refusal::NoSpace),
            extant_inode::Fault::TooLarge => Self::Refused(Refusal::TooLarge),
        }
    }
}

impl From<extant_journal::Aborted> for Fault {
    fn from(aborted: extant_journal::Aborted) -> Self {
        Self::Aborted(aborted)
    }
}

impl From<extant_dir::edit::EditFault> for Fault {
    fn from(fault: extant_dir::edit::EditFault) -> Self {
        match fault {
            extant_dir::edit::EditFault::NoSpace(_) => Refusal::NoSpace.into(),
            extant_dir::edit::EditFault::Exists => Refusal::Exists.into(),
            extant_dir::edit::EditFault::Absent => Refusal::NotFound.into(),
            extant_dir::edit::EditFault::Read(fault) => fault.into(),
            extant_dir::edit::EditFault::Unsupported(_) => Refusal::NotSupported.into(),
        }
    }
}

impl From<extant_alloc::Fault> for Fault {
    fn from(fault: extant_alloc::Fault) -> Self {
        match fault {
            extant_alloc::Fault::NoSpace(_) => Refusal::NoSpace.into(),
            extant_alloc::Fault::Read(fault) => fault.into(),
        }
    }
}

impl From<extant_journal::StartFault> for Fault {
    fn from(fault: extant_journal::StartFault) -> Self {
        match fault {
            extant_journal::StartFault::Aborted(aborted) => Self::Aborted(aborted),
            // As the kernel.
            extant_journal::StartFault::TooLarge { .. } => Refusal::NoSpace.into(),
        }
    }
}

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenFault {
    /// No superblock of ext2, ext3 or ext4.
    #[error("no ext2, ext3 or ext4 file system here: {0}")]
    NotExt4(String),
    /// Another format, written over an ext file system of which a backup superblock is left
    /// (`BySuperblock::AnyBackup` reads by it).
    #[error("no ext2, ext3 or ext4 file system here: {0}; a backup superblock of an earlier one is left")]
    Overwritten(String),
    /// Features that cannot be read.
    #[error("the file system has features that extant cannot read: {0}")]
    Unsupported(String),
    /// Features that cannot be maintained while writing.
    #[error("the file system has features that extant cannot write: {0}; it can be opened for reading")]
    Unwritable(String),
    /// Another process or host has it open for writing.
    #[error("the file system is in use: {0}")]
    InUse(String),
    /// An impossible layout or other damage.
    #[error("the file system is damaged: {0}")]
    Damaged(String),
    /// The journal cannot be used.
    #[error("{0} (the state before the journal's replay can be read by opening without recovery)")]
    Journal(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl OpenFault {
    /// An errno for the failure: 22 (EINVAL) without a file system, 95 (EOPNOTSUPP) for features that cannot
    /// be read, 30 (EROFS) if it can only be read, 16 (EBUSY), 117 (EUCLEAN) for damage, the system's for
    /// I/O.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotExt4(_) | Self::Overwritten(_) => 22,
            Self::Unsupported(_) => 95,
            Self::Unwritable(_) => 30,
            Self::InUse(_) => 16,
            Self::Damaged(_) | Self::Journal(_) => 117,
            Self::Device(fault) => fault.os_error().unwrap_or(5),
        }
    }

    /// A failure of the journal.
    pub(crate) fn journal(fault: impl std::fmt::Display) -> Self {
        Self::Journal(fault.to_string())
    }

    /// Damage of the file system.
    pub(crate) fn damaged(fault: impl std::fmt::Display) -> Self {
        Self::Damaged(fault.to_string())
    }
}
