//! Values of the volume in the spelling of the FUSE protocol.

use std::time::{Duration, SystemTime};

use extant_base::Ino;
use extant_ondisk::time::Timestamp;
use extant_volume::{FileType, Stat, TimesFrom};
use fuser::{FileAttr, INodeNo, OpenAccMode, OpenFlags, TimeOrNow};
use rustix::fs::OFlags;

use crate::{Access, Errno};

/// The protocol's number of the root; ext4's is 2, and its number 1, the list of bad blocks, is never shown.
const ROOT_NODE: INodeNo = INodeNo(1);

/// The inode that the kernel asks about.
///
/// # Errors
/// A number that was never handed out: beyond 32 bits, or ext4's number of the root.
pub(super) fn ino_of(node: INodeNo) -> Result<Ino, Errno> {
    match u32::try_from(node.0) {
        Ok(1) => Ok(Ino::ROOT),
        Ok(0) | Err(_) => Err(Errno::STALE),
        Ok(ino) if Ino(ino) == Ino::ROOT => Err(Errno::STALE),
        Ok(ino) => Ok(Ino(ino)),
    }
}

/// May an ordinary name lead to this inode? The root would become a directory with two parents, and number 1
/// the root.
pub(super) fn can_be_named(ino: Ino) -> bool {
    !matches!(ino, Ino(0) | Ino::BAD_BLOCKS | Ino::ROOT)
}

/// The result of stat, under ext4's own number.
pub(super) fn attributes(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino.0.into()),
        size: stat.size,
        blocks: stat.blocks_512,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: time(stat.crtime.unwrap_or_default()),
        kind: kind(stat.kind),
        perm: stat.mode & 0o7777,
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: device_number(stat.device),
        blksize: stat.block_size,
        flags: 0,
    }
}

/// The root as the parent in a listing: an entry's number is also what the kernel requests by.
pub(super) fn root_attributes(stat: &Stat) -> FileAttr {
    FileAttr { ino: ROOT_NODE, ..attributes(stat) }
}

/// Attributes of nothing: with number 0 the answer is "no such name, and you may remember that".
pub(super) fn no_attributes(ino: u64, kind: fuser::FileType) -> FileAttr {
    let zero = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        crtime: zero,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The protocol has no word for an unknown type; asking the inode is the caller's business.
pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Regular | FileType::Unknown => fuser::FileType::RegularFile,
    }
}

/// Whole seconds may be before 1970; nanoseconds are added to them, and a damaged inode may hold too many.
fn time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let nanos = Duration::from_nanos(time.nanos.min(999_999_999).into());
    let whole = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The kernel's 32-bit form: 12 bits of major between 8 low and 12 high bits of minor.
fn device_number((major, minor): (u32, u32)) -> u32 {
    (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12
}

/// The type in a mode, as mknod(2) has it; no bits stand for a regular file.
///
/// # Errors
/// A type that cannot be made so.
pub(super) fn kind_of_mode(mode: u32) -> Result<FileType, Errno> {
    match mode & 0o170_000 {
        0 | 0o100_000 => Ok(FileType::Regular),
        0o010_000 => Ok(FileType::Fifo),
        0o020_000 => Ok(FileType::CharDevice),
        0o060_000 => Ok(FileType::BlockDevice),
        0o140_000 => Ok(FileType::Socket),
        _ => Err(Errno::INVAL),
    }
}

/// Major and minor number from the kernel's 32-bit form.
pub(super) fn device_parts(device: u32) -> (u32, u32) {
    (device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xF_FF00)
}

/// Where the times that are to be set come from. `writes_back`: the kernel keeps what is written, and the
/// times of that.
///
/// It reports the latter by a change of mtime and ctime, as nothing else does; and then sends only that atime
/// is to be now.
pub(super) fn times_from(
    (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
    ctime: Option<SystemTime>,
    writes_back: bool,
) -> TimesFrom {
    match (atime, mtime, ctime) {
        (Some(TimeOrNow::Now), Some(TimeOrNow::Now), _) => TimesFrom::Touch,
        (Some(TimeOrNow::Now), Some(TimeOrNow::SpecificTime(mtime)), Some(ctime)) if mtime == ctime => {
            TimesFrom::Touch
        }
        (None, Some(_), Some(_)) if writes_back => TimesFrom::Cache,
        _ => TimesFrom::Caller,
    }
}

/// How the kernel asks to open a file.
pub(super) fn access(flags: OpenFlags) -> Access {
    let append = flags.0 as u32 & OFlags::APPEND.bits() != 0;
    Access { write: flags.acc_mode() != OpenAccMode::O_RDONLY, append }
}

/// A time to be set.
pub(super) fn time_to_set(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::SpecificTime(time) => timestamp(time),
        // The clock that every other change takes its time from.
        TimeOrNow::Now => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            Timestamp { seconds: now.tv_sec, nanos: now.tv_nsec as u32 }
        }
    }
}

/// A time from the kernel. For one before 1970 `fuser` subtracts the nanoseconds instead of adding them to
/// the whole seconds: -2 s and 0.8 s arrive as 2.8 s before.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => {
            let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            Timestamp { seconds, nanos: since.subsec_nanos() }
        }
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            Timestamp { seconds, nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_two_numbers_and_no_other_inode_has() {
        assert_eq!(ino_of(INodeNo(1)), Ok(Ino(2)));
        assert_eq!(ino_of(INodeNo(11)), Ok(Ino(11)));
        assert_eq!(ino_of(INodeNo(u64::from(u32::MAX))), Ok(Ino(u32::MAX)));
        for never in [0, 2, 1 << 32, u64::MAX] {
            assert_eq!(ino_of(INodeNo(never)), Err(Errno::STALE), "{never}");
        }
        assert_eq!([0, 1, 2, 3, 11].map(|ino| can_be_named(Ino(ino))), [false, false, false, true, true]);
    }

    #[test]
    fn device_numbers_are_packed_as_the_kernel_does() {
        // makedev of glibc and new_encode_dev agree below 12 and 20 bits.
        assert_eq!(device_number((1, 3)), 0x103);
        assert_eq!(device_number((0xFFF, 0xF_FFFF)), 0xFFFF_FFFF);
        assert_eq!(device_number((8, 0x12345)), 0x1230_0845);
        for parts in [(1, 3), (0xFFF, 0xF_FFFF), (8, 0x12345)] {
            assert_eq!(device_parts(device_number(parts)), parts);
        }
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let before = time(Timestamp { seconds: -2, nanos: 800_000_000 });
        assert_eq!(SystemTime::UNIX_EPOCH.duration_since(before).unwrap(), Duration::from_millis(1200));
        let far = time(Timestamp { seconds: Timestamp::MAX_SECONDS, nanos: 1 });
        let since = far.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!((since.as_secs(), since.subsec_nanos()), (Timestamp::MAX_SECONDS as u64, 1));
        let damaged = time(Timestamp { seconds: 5, nanos: (1 << 30) - 1 });
        assert_eq!(damaged.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 5);
    }
}
