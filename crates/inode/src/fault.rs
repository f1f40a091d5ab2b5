//! Why an inode cannot be had, or its content not be read.

use extant_base::{Corrupt, CorruptAt, Ino, Malformed};
use extant_buffer::ReadFault;
use extant_device::DeviceFault;

/// What went wrong with an inode.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The inode or something that belongs to it breaks a rule of the format.
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
    /// The map of the inode's blocks cannot say it.
    #[error("the file would be too large for its block map")]
    TooLarge,
}

impl Fault {
    /// `fact` is broken by inode `ino`.
    pub(crate) fn corrupt(ino: Ino, fact: Malformed) -> Self {
        Self::Corrupt(Corrupt::at(CorruptAt::ino(ino), fact))
    }

    /// A read that belongs to inode `ino` failed.
    pub(crate) fn of(ino: Ino) -> impl Fn(ReadFault) -> Self {
        move |fault| match fault {
            ReadFault::Device(fault) => Self::Device(fault),
            ReadFault::Corrupt(fault) => Self::Corrupt(fault.of_ino(ino)),
        }
    }
}
