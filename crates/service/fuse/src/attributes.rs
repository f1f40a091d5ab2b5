//! Ioctls: decoding of commands and their input, encoding of their output. Pure functions, without state: the
//! transport executes what [`ioctl`] returns.
//!
//! Inode flags: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_GETVERSION, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR.
//! The file system as a whole: FITRIM, FS_IOC_GETFSLABEL, FS_IOC_SETFSLABEL, FS_IOC_GETFSUUID,
//! EXT4_IOC_GETFSUUID, FS_IOC_GETFSSYSFSPATH, EXT4_IOC_SHUTDOWN.
//!
//! Invariant: commands that change flags are accepted only by the numbers for which the kernel checks the
//! caller's permission.
//!
//! Source: kernel include/uapi/linux/fs.h (numbers, `struct fsxattr`, `struct fstrim_range`, `struct
//! fsuuid2`, `struct fs_sysfs_path`), include/uapi/linux/ext4.h (`struct fsuuid`); kernel
//! Documentation/filesystems/ext4/inodes.rst (inode flags).

use std::ops::Range;

use extant_ondisk::inode::flags;
use extant_volume::{LABEL_MAX, SetAttr, Shutdown, Stat};
use rustix::ioctl::opcode;

use crate::Errno;

/// Low half of a command: type and number, without direction and size, because the size of a `long` differs
/// between 32-bit and 64-bit programs.
const GETFLAGS: u32 = 0x6601;
const GETVERSION: u32 = 0x7601;
const FSGETXATTR: u32 = 0x581F;
const SETVERSION: u32 = 0x7602;

/// Commands that change flags, with direction and size. For exactly these, the kernel checks whether the
/// caller owns the file and may set the flags, and it converts commands of 32-bit programs to these. Other
/// commands reach the server unchecked.
const SETFLAGS: u32 = opcode::write::<std::ffi::c_long>(b'f', 2) as u32;
const FSSETXATTR: u32 = opcode::write::<[u8; 28]>(b'X', 32) as u32;

/// Commands about the file system as a whole, with direction and size.
const FITRIM: u32 = opcode::read_write::<[u64; 3]>(b'X', 121) as u32;
const GETFSLABEL: u32 = opcode::read::<[u8; FS_LABEL_LEN]>(0x94, 49) as u32;
const SETFSLABEL: u32 = opcode::write::<[u8; FS_LABEL_LEN]>(0x94, 50) as u32;
const RESIZE_FS: u32 = opcode::write::<u64>(b'f', 16) as u32;
const GETFSUUID: u32 = opcode::read::<[u8; 17]>(0x15, 0) as u32;
const GETFSSYSFSPATH: u32 = opcode::read::<[u8; 129]>(0x15, 1) as u32;
/// By its direction and size this command has no input, and 8 bytes of output. So through FUSE it can return
/// the length of the UUID, but not the UUID, which would follow these bytes.
const EXT4_GETFSUUID: u32 = opcode::read::<[u32; 2]>(b'f', 44) as u32;
/// Size of a label in FS_IOC_GETFSLABEL and FS_IOC_SETFSLABEL.
const FS_LABEL_LEN: usize = 256;
const UUID_LEN: u8 = 16;

/// EXT4_IOC_SHUTDOWN takes flags, but its number has the direction of output, so FUSE does not pass the
/// flags. `_IOW('X', 125, __u32)` has the right direction, and is accepted, too.
const SHUTDOWN: u32 = 0x587D;

/// EXT4_IOC_MOVE_EXT swaps extents of two files (e4defrag), EXT4_IOC_SWAP_BOOT the blocks of a file and of
/// the boot loader's inode. They are commands of ext4, but not implemented: EOPNOTSUPP, not ENOTTY.
const MOVE_EXT: u32 = 0x660F;
const SWAP_BOOT: u32 = 0x6611;

/// Flags that are returned to users, as by the kernel's ext4. The others are internal.
const USER_VISIBLE: u32 = 0x725B_DFFF;

/// Flags that users may change. Other visible flags in a change are ignored.
const USER_MODIFIABLE: u32 = 0x624B_C0FF;

/// A decoded ioctl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ioctl {
    /// Return these bytes; the transport cuts them to the size of the caller's buffer.
    Answer(Vec<u8>),
    /// Change attributes.
    Change(SetAttr),
    /// Shut down the file system.
    Shutdown(Shutdown),
    /// Discard free blocks in this range of bytes, in runs of at least this many bytes. The output is that of
    /// [`trimmed`].
    Trim(Range<u64>, u64),
    /// Return the label, by [`label_answer`].
    GetLabel,
    /// Set the label.
    SetLabel(Vec<u8>),
    /// Give the file system this number of blocks.
    Resize(u64),
    /// Return the UUID, by [`uuid_answer`].
    GetUuid,
    /// Return the path below /sys/fs, by [`sysfs_answer`].
    GetSysfsPath,
}

/// The output of FITRIM, `struct fstrim_range`: `bytes` is the number of discarded bytes, in the field `len`.
#[must_use]
pub fn trimmed(range: &Range<u64>, min_bytes: u64, bytes: u64) -> Vec<u8> {
    [range.start, bytes, min_bytes].iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// The output of FS_IOC_GETFSLABEL: the label, padded with zeros.
#[must_use]
pub fn label_answer(label: &[u8]) -> Vec<u8> {
    let mut bytes = label.to_vec();
    bytes.resize(FS_LABEL_LEN, 0);
    bytes
}

/// The output of FS_IOC_GETFSUUID, `struct fsuuid2`: the length, then the UUID.
#[must_use]
pub fn uuid_answer(uuid: &[u8; 16]) -> Vec<u8> {
    [&[UUID_LEN][..], uuid].concat()
}

/// The output of FS_IOC_GETFSSYSFSPATH, `struct fs_sysfs_path`: the length, then the path, padded with zeros.
#[must_use]
pub fn sysfs_answer(path: &str) -> Vec<u8> {
    let mut bytes = [&[path.len() as u8][..], path.as_bytes()].concat();
    bytes.resize(129, 0);
    bytes
}

/// Decodes an ioctl on the inode with these attributes.
///
/// # Errors
/// [`Errno::NOTTY`] for unknown commands, [`Errno::OPNOTSUPP`] for flags that users may not set and for
/// known commands that are not implemented, [`Errno::INVAL`] for invalid input.
pub fn ioctl(stat: &Stat, command: u32, input: &[u8]) -> Result<Ioctl, Errno> {
    let word = |at: usize| {
        let four = input.get(at..at + 4).and_then(|four| four.try_into().ok());
        four.map(u32::from_ne_bytes).ok_or(Errno::INVAL)
    };
    let with_flags = |given: u32, modifiable: u32| stat.flags & !modifiable | given & modifiable;
    match command {
        SETFLAGS => {
            return match word(0)? {
                given if given & !USER_VISIBLE != 0 => Err(Errno::OPNOTSUPP),
                given => {
                    let flags = Some(with_flags(given, USER_MODIFIABLE));
                    Ok(Ioctl::Change(SetAttr { flags, ..SetAttr::default() }))
                }
            };
        }
        FSSETXATTR => {
            // The kernel has refused unknown flags. Flags that ext4 does not store are ignored, as by the
            // kernel's ext4.
            let (given, project) = (word(0)?, word(12)?);
            let modifiable = inode_flags(u32::MAX) & USER_MODIFIABLE;
            let flags = Some(with_flags(inode_flags(given), modifiable));
            // An unchanged project ID is no change: without the feature `project` it could not be set.
            let project = (project != stat.project).then_some(project);
            return Ok(Ioctl::Change(SetAttr { flags, project, ..SetAttr::default() }));
        }
        FITRIM => return trim_of(input),
        GETFSLABEL => return Ok(Ioctl::GetLabel),
        SETFSLABEL => {
            let label = input.split(|byte| *byte == 0).next().unwrap_or_default();
            return if label.len() > LABEL_MAX {
                Err(Errno::INVAL)
            } else {
                Ok(Ioctl::SetLabel(label.to_vec()))
            };
        }
        RESIZE_FS => {
            let blocks = input.try_into().map_err(|_| Errno::INVAL)?;
            return Ok(Ioctl::Resize(u64::from_ne_bytes(blocks)));
        }
        GETFSUUID => return Ok(Ioctl::GetUuid),
        GETFSSYSFSPATH => return Ok(Ioctl::GetSysfsPath),
        // fsu_len, fsu_flags
        EXT4_GETFSUUID => {
            let answer = [u32::from(UUID_LEN), 0];
            return Ok(Ioctl::Answer(answer.iter().flat_map(|word| word.to_ne_bytes()).collect()));
        }
        _ => {}
    }
    match command & 0xFFFF {
        GETFLAGS => Ok(Ioctl::Answer((stat.flags & USER_VISIBLE).to_ne_bytes().to_vec())),
        GETVERSION => Ok(Ioctl::Answer(stat.generation.to_ne_bytes().to_vec())),
        // fsx_xflags, fsx_extsize, fsx_nextents, fsx_projid, fsx_cowextsize, 8 bytes of padding.
        FSGETXATTR => {
            let mut bytes = vec![0; 28];
            bytes[..4].copy_from_slice(&extended_flags(stat.flags).to_ne_bytes());
            bytes[12..16].copy_from_slice(&stat.project.to_ne_bytes());
            Ok(Ioctl::Answer(bytes))
        }
        // Without flags: the mode that loses nothing.
        SHUTDOWN if input.is_empty() => Ok(Ioctl::Shutdown(Shutdown::Flush)),
        SHUTDOWN => match word(0)? {
            0 => Ok(Ioctl::Shutdown(Shutdown::Flush)),
            1 => Ok(Ioctl::Shutdown(Shutdown::Journal)),
            2 => Ok(Ioctl::Shutdown(Shutdown::Nothing)),
            _ => Err(Errno::INVAL),
        },
        // NFS file handles rely on the generation to distinguish uses of an inode number.
        SETVERSION => Err(Errno::OPNOTSUPP),
        MOVE_EXT | SWAP_BOOT => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::NOTTY),
    }
}

/// `struct fstrim_range`: start, len, minlen.
fn trim_of(input: &[u8]) -> Result<Ioctl, Errno> {
    let numbers: Vec<u64> =
        input.chunks_exact(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap_or_default())).collect();
    match numbers[..] {
        [start, len, min_len] => Ok(Ioctl::Trim(start..start.saturating_add(len), min_len)),
        _ => Err(Errno::INVAL),
    }
}

/// Inode flags, and the same flags in `fsx_xflags`.
const EXTENDED: [(u32, u32); 8] = [
    (flags::IMMUTABLE, 0x8),
    (flags::APPEND, 0x10),
    (flags::SYNC, 0x20),
    (flags::NOATIME, 0x40),
    (flags::NODUMP, 0x80),
    (flags::PROJINHERIT, 0x200),
    (flags::DAX, 0x8000),
    (flags::VERITY, 0x2_0000),
];

fn extended_flags(inode_flags: u32) -> u32 {
    EXTENDED.iter().filter(|(flag, _)| inode_flags & flag != 0).fold(0, |sum, (_, extended)| sum | extended)
}

fn inode_flags(extended_flags: u32) -> u32 {
    EXTENDED
        .iter()
        .filter(|(_, extended)| extended_flags & extended != 0)
        .fold(0, |sum, (flag, _)| sum | flag)
}

#[cfg(test)]
mod tests {
    use extant_base::Ino;
    use extant_volume::FileType;

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
        match ioctl(&stat(), command, &[]) {
            Ok(Ioctl::Answer(bytes)) => bytes,
            other => panic!("{command:#x}: {other:?}"),
        }
    }

    #[test]
    fn flags_are_returned_in_both_forms() {
        // _IOR('f', 1, long) of 64 and 32 bit.
        let expected = (flags::IMMUTABLE | flags::NODUMP | flags::EXTENTS | flags::VERITY).to_ne_bytes();
        assert_eq!(answer(0x8008_6601), expected);
        assert_eq!(answer(0x8004_6601), expected);
        // _IOR('X', 31, struct fsxattr)
        let extended = answer(0x801C_581F);
        assert_eq!(extended[..4], (0x2_0000u32 | 0x80 | 0x8).to_ne_bytes());
        assert_eq!(extended[12..16], 77u32.to_ne_bytes());
        // _IOR('v', 1, long)
        assert_eq!(answer(0x8008_7601), 0x1234_5678u32.to_ne_bytes());
    }

    fn change(command: u32, input: &[u8]) -> Result<SetAttr, Errno> {
        match ioctl(&stat(), command, input)? {
            Ioctl::Change(set) => Ok(set),
            other => panic!("{command:#x}: {other:?}"),
        }
    }

    #[test]
    fn changes_keep_flags_that_users_may_not_change() {
        // chattr -i +a, with the flags that it read.
        let given = stat().flags & USER_VISIBLE & !flags::IMMUTABLE | flags::APPEND;
        let changed = stat().flags & !flags::IMMUTABLE | flags::APPEND;
        assert_eq!(change(0x4008_6602, &given.to_ne_bytes()).unwrap().flags, Some(changed));
        let mut extended = [0; 28];
        extended[0] = 0x10;
        extended[12] = 78;
        let set = change(0x401C_5820, &extended).unwrap();
        let kept = flags::EXTENTS | flags::HUGE_FILE | flags::VERITY;
        assert_eq!((set.flags, set.project), (Some(kept | flags::APPEND), Some(78)));
    }

    #[test]
    fn shutdown_has_three_modes() {
        let asked = |flags: &[u8]| ioctl(&stat(), 0x4004_587D, flags);
        let ways = [Shutdown::Flush, Shutdown::Journal, Shutdown::Nothing];
        for (flags, how) in (0u32..).zip(ways) {
            assert_eq!(asked(&flags.to_ne_bytes()), Ok(Ioctl::Shutdown(how)));
        }
        assert_eq!(asked(&3u32.to_ne_bytes()), Err(Errno::INVAL));
        assert_eq!(ioctl(&stat(), 0x8004_587D, &[]), Ok(Ioctl::Shutdown(Shutdown::Flush)));
    }

    #[test]
    fn unknown_commands_and_flags_are_refused() {
        assert_eq!(change(0x4008_6602, &[0xFF; 4]), Err(Errno::OPNOTSUPP));
        assert_eq!(change(0x4008_6602, &[]), Err(Errno::INVAL));
        // The kernel passes these on without a check of the caller.
        for (number, len) in
            [(0x4004_6602, 4), (0x6602, 4), (0x8004_6602, 4), (0x4020_5820, 32), (0x5820, 28)]
        {
            assert_eq!(change(number, &[0x10; 32][..len]), Err(Errno::NOTTY), "{number:x}");
        }
        assert_eq!(change(0x4008_7602, &[0; 8]), Err(Errno::OPNOTSUPP));
        // EXT4_IOC_MOVE_EXT with its `struct move_extent`, and EXT4_IOC_SWAP_BOOT.
        assert_eq!(ioctl(&stat(), 0xC028_660F, &[0; 40]), Err(Errno::OPNOTSUPP));
        assert_eq!(ioctl(&stat(), 0x6611, &[]), Err(Errno::OPNOTSUPP));
        // FIFREEZE and TCGETS.
        for unknown in [0xC004_5877, 0x5401] {
            assert_eq!(ioctl(&stat(), unknown, &[]), Err(Errno::NOTTY));
        }
    }

    #[test]
    fn commands_about_the_file_system_are_decoded() {
        let numbers: Vec<u8> = [4096u64, u64::MAX, 512].iter().flat_map(|n| n.to_ne_bytes()).collect();
        assert_eq!(ioctl(&stat(), 0xC018_5879, &numbers), Ok(Ioctl::Trim(4096..u64::MAX, 512)));
        assert_eq!(ioctl(&stat(), 0xC018_5879, &numbers[..16]), Err(Errno::INVAL));
        assert_eq!(ioctl(&stat(), 0x8100_9431, &[]), Ok(Ioctl::GetLabel));
        let mut label = [0; 256];
        label[..16].fill(b'x');
        assert_eq!(ioctl(&stat(), 0x4100_9432, &label), Ok(Ioctl::SetLabel(vec![b'x'; 16])));
        label[16] = b'x';
        assert_eq!(ioctl(&stat(), 0x4100_9432, &label), Err(Errno::INVAL));
        assert_eq!(ioctl(&stat(), 0x4008_6610, &5u64.to_ne_bytes()), Ok(Ioctl::Resize(5)));
        assert_eq!(ioctl(&stat(), 0x4008_6610, &[0; 4]), Err(Errno::INVAL));
        assert_eq!(ioctl(&stat(), 0x8011_1500, &[]), Ok(Ioctl::GetUuid));
        assert_eq!(ioctl(&stat(), 0x8081_1501, &[]), Ok(Ioctl::GetSysfsPath));
        assert_eq!(answer(0x8008_662C), [[16, 0, 0, 0], [0; 4]].concat());
        assert_eq!(sysfs_answer("fuse/connections/41")[..5], [19, b'f', b'u', b's', b'e']);
        assert_eq!((label_answer(b"ab").len(), uuid_answer(&[7; 16])[..2].to_vec()), (256, vec![16, 7]));
        assert_eq!(trimmed(&(1..9), 3, 2)[8], 2);
    }
}
