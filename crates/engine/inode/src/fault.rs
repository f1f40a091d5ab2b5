//! Errors of loading an inode and of reading its content.

use extant_base::{Corrupt, CorruptAt, Ino, Malformed};
use extant_buffer::ReadFault;
use extant_device::DeviceFault;

/// Why an operation on an inode failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The inode or one of its structures breaks a rule of the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The file system has no such inode, or it is free.
    #[error("inode {0}: there is no such inode in use")]
    NoSuchInode(Ino),
    /// The content is encrypted, and there is no key.
    #[error("inode {0}: its content is encrypted; reading it needs the key, which extant cannot take")]
    NeedsKey(Ino),
    /// No block is free.
    #[error("no space left in the file system")]
    NoSpace,
    /// The map of the inode cannot address the block.
    #[error("the file would be too large for its block map")]
    TooLarge,
}

impl Fault {
    /// Creates the error that inode `ino` breaks a rule.
    pub(crate) fn corrupt(ino: Ino, fact: Malformed) -> Self {
        Self::Corrupt(Corrupt::at(CorruptAt::ino(ino), fact))
    }

    /// Converts a failed read of a structure of inode `ino`.
    pub(crate) fn of(ino: Ino) -> impl Fn(ReadFault) -> Self {
        move |fault| match fault {
            ReadFault::Device(fault) => Self::Device(fault),
            ReadFault::Corrupt(fault) => Self::Corrupt(fault.of_ino(ino)),
        }
    }
}
