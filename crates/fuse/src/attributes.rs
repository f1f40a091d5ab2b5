//! What the ioctls about inode flags answer: FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_FSGETXATTR.
//!
//! Source: kernel include/uapi/linux/fs.h (numbers, `struct fsxattr`); spec 07 (inode flags).

use ondisk::inode::flags;
use volume::Stat;

/// The low half of a command's number: what is asked, without the size of the answer, which differs between 32 and 64 bit.
const GETFLAGS: u32 = 0x6601;
const GETVERSION: u32 = 0x7601;
const FSGETXATTR: u32 = 0x581F;
/// The same, asked with the numbers that change something.
const SETFLAGS: u32 = 0x6602;
const SETVERSION: u32 = 0x7602;
const FSSETXATTR: u32 = 0x5820;

/// Flags that users see; the rest (the kernel's own bookkeeping) stays hidden, as with the kernel's ext4.
const USER_VISIBLE: u32 = 0x725B_DFFF;

/// An answer to an ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ioctl {
    /// These bytes, at most as many as were asked for.
    Answer([u8; 28], usize),
    /// It would change something.
    Changes,
    /// Not one of those known here.
    Unknown,
}

/// Answers an ioctl about an inode: `command` as ioctl(2) has it.
#[must_use]
pub fn ioctl(stat: &Stat, command: u32) -> Ioctl {
    let mut bytes = [0; 28];
    match command & 0xFFFF {
        GETFLAGS => {
            bytes[..4].copy_from_slice(&(stat.flags & USER_VISIBLE).to_ne_bytes());
            Ioctl::Answer(bytes, 4)
        }
        GETVERSION => {
            bytes[..4].copy_from_slice(&stat.generation.to_ne_bytes());
            Ioctl::Answer(bytes, 4)
        }
        // fsx_xflags, fsx_extsize, fsx_nextents, fsx_projid, fsx_cowextsize, 8 bytes of padding.
        FSGETXATTR => {
            bytes[..4].copy_from_slice(&extended_flags(stat.flags).to_ne_bytes());
            bytes[12..16].copy_from_slice(&stat.project.to_ne_bytes());
            Ioctl::Answer(bytes, 28)
        }
        SETFLAGS | SETVERSION | FSSETXATTR => Ioctl::Changes,
        _ => Ioctl::Unknown,
    }
}

/// Inode flags in the spelling of `fsx_xflags`.
fn extended_flags(inode_flags: u32) -> u32 {
    [
        (flags::IMMUTABLE, 0x8),
        (flags::APPEND, 0x10),
        (flags::SYNC, 0x20),
        (flags::NOATIME, 0x40),
        (flags::NODUMP, 0x80),
        (flags::PROJINHERIT, 0x200),
        (flags::DAX, 0x8000),
        (flags::VERITY, 0x2_0000),
    ]
    .iter()
    .filter(|(flag, _)| inode_flags & flag != 0)
    .fold(0, |sum, (_, extended)| sum | extended)
}

#[cfg(test)]
mod tests {
    use base::Ino;
    use volume::FileType;

    use super::*;

    fn stat() -> Stat {
        Stat {
            ino: Ino(12),
            kind: FileType::Regular,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            blocks_512: 0,
            block_size: 4096,
            device: (0, 0),
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            crtime: None,
            generation: 0x1234_5678,
            flags: flags::IMMUTABLE | flags::NODUMP | flags::EXTENTS | flags::HUGE_FILE | flags::VERITY,
            project: 77,
        }
    }

    fn answer(command: u32) -> Vec<u8> {
        match ioctl(&stat(), command) {
            Ioctl::Answer(bytes, len) => bytes[..len].to_vec(),
            other => panic!("{command:#x}: {other:?}"),
        }
    }

    #[test]
    fn flags_are_told_in_both_spellings() {
        // _IOR('f', 1, long) of 64 and 32 bit.
        let told = (flags::IMMUTABLE | flags::NODUMP | flags::EXTENTS | flags::VERITY).to_ne_bytes();
        assert_eq!(answer(0x8008_6601), told);
        assert_eq!(answer(0x8004_6601), told);
        // _IOR('X', 31, struct fsxattr)
        let extended = answer(0x801C_581F);
        assert_eq!(extended[..4], (0x2_0000u32 | 0x80 | 0x8).to_ne_bytes());
        assert_eq!(extended[12..16], 77u32.to_ne_bytes());
        // _IOR('v', 1, long)
        assert_eq!(answer(0x8008_7601), 0x1234_5678u32.to_ne_bytes());
    }

    #[test]
    fn changes_and_strangers_are_refused() {
        for change in [0x4008_6602, 0x4008_7602, 0x401C_5820] {
            assert_eq!(ioctl(&stat(), change), Ioctl::Changes);
        }
        // FITRIM and a terminal's.
        for unknown in [0xC018_5879, 0x5401] {
            assert_eq!(ioctl(&stat(), unknown), Ioctl::Unknown);
        }
    }
}
