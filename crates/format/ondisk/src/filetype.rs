//! File types, in the two encodings on disk: the type byte of a directory entry, and the `S_IFMT` bits of a
//! mode.
//!
//! Does **not** own: the permission and set-id bits of the mode (see the inode).
//!
//! Invariant: [`FileType::from_dirent_code`] undoes [`FileType::dirent_code`], and [`FileType::from_mode`]
//! undoes [`FileType::mode_bits`].
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst and inodes.rst.
//!
//! | type | entry byte | mode bits |
//! |---|---|---|
//! | unknown | 0 | 0 |
//! | regular file | 1 | 0x8000 |
//! | directory | 2 | 0x4000 |
//! | character device | 3 | 0x2000 |
//! | block device | 4 | 0x6000 |
//! | fifo | 5 | 0x1000 |
//! | socket | 6 | 0xC000 |
//! | symbolic link | 7 | 0xA000 |

use std::fmt;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum FileType {
    /// The type is not stored: the file system lacks the filetype feature, or the entry is unused.
    #[default]
    Unknown,
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

impl FileType {
    /// All types, in the order of the entry bytes 0 to 7.
    pub const ALL: [FileType; 8] = [
        Self::Unknown,
        Self::Regular,
        Self::Directory,
        Self::CharDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
    ];

    /// The bits of a mode that store the type.
    pub const MODE_MASK: u16 = 0xF000;

    /// The type for the type byte of a directory entry; `None` above 7.
    #[must_use]
    pub fn from_dirent_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The type byte of a directory entry.
    #[must_use]
    pub fn dirent_code(self) -> u8 {
        self as u8
    }

    /// The type for an inode's mode; the permission bits are ignored. `Unknown` for bits that encode no type.
    #[must_use]
    pub fn from_mode(mode: u16) -> Self {
        let bits = mode & Self::MODE_MASK;
        Self::ALL.into_iter().find(|t| t.mode_bits() == bits).unwrap_or(Self::Unknown)
    }

    /// The `S_IFMT` bits of a mode; 0 for `Unknown`.
    #[must_use]
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Unknown => 0,
            Self::Regular => 0x8000,
            Self::Directory => 0x4000,
            Self::CharDevice => 0x2000,
            Self::BlockDevice => 0x6000,
            Self::Fifo => 0x1000,
            Self::Socket => 0xC000,
            Self::Symlink => 0xA000,
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "unknown",
            Self::Regular => "regular",
            Self::Directory => "directory",
            Self::CharDevice => "char-device",
            Self::BlockDevice => "block-device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Symlink => "symlink",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_round_trip() {
        for t in FileType::ALL {
            assert_eq!(FileType::from_dirent_code(t.dirent_code()), Some(t));
            assert_eq!(FileType::from_mode(t.mode_bits() | 0o7777), t);
        }
        assert_eq!(FileType::from_dirent_code(8), None);
        assert_eq!(FileType::from_dirent_code(0xDE), None);
        assert_eq!(FileType::from_mode(0xF000), FileType::Unknown);
        assert_eq!(FileType::from_mode(0o100_644), FileType::Regular);
    }
}
