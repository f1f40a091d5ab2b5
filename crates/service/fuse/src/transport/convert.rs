//! Conversions between values of the volume and structures of the FUSE protocol. Pure functions, without
//! state.
//!
//! Invariant: node ids of the protocol are inode numbers of ext4, except that the root is 1 instead of 2.
//! Inode 1 of ext4 (the list of bad blocks) has no node id.

use extant_base::Ino;
use extant_fuse_lowlevel::protocol::{Attr, EntryOut, ROOT_ID, SetattrIn, Statx, SxTime, fattr};
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;
use extant_volume::{FileType, Stat, TimesFrom};
use rustix::fs::OFlags;

use super::CACHE_TIMEOUT;
use crate::{Access, Errno};

/// The inode number of a node id.
///
/// # Errors
/// [`Errno::STALE`] for a node id that is never returned to the kernel: 0, 2, or more than 32 bits.
pub(super) fn ino_of(node: u64) -> Result<Ino, Errno> {
    match u32::try_from(node) {
        Ok(1) => Ok(Ino::ROOT),
        Ok(0) | Err(_) => Err(Errno::STALE),
        Ok(ino) if Ino(ino) == Ino::ROOT => Err(Errno::STALE),
        Ok(ino) => Ok(Ino(ino)),
    }
}

/// May a directory entry (other than "." and "..") refer to this inode? In a damaged image it may refer to 2,
/// and the root would have two parents; or to 1, which is the root's node id.
pub(super) fn can_be_named(ino: Ino) -> bool {
    !matches!(ino, Ino(0) | Ino::BAD_BLOCKS | Ino::ROOT)
}

/// The result of stat(2), with ext4's inode number.
pub(super) fn attributes(stat: &Stat) -> Attr {
    let (atime, mtime, ctime) = (time(stat.atime), time(stat.mtime), time(stat.ctime));
    Attr {
        ino: stat.ino.0.into(),
        size: stat.size,
        blocks: stat.blocks_512,
        atime: atime.0 as u64,
        mtime: mtime.0 as u64,
        ctime: ctime.0 as u64,
        atimensec: atime.1,
        mtimensec: mtime.1,
        ctimensec: ctime.1,
        mode: mode(stat),
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: device_number(stat.device),
        blksize: stat.block_size,
        flags: 0,
    }
}

/// st_mode: type and permissions.
fn mode(stat: &Stat) -> u32 {
    dirent_kind(stat.kind) << 12 | u32::from(stat.mode & 0o7777)
}

/// The result of statx(2), with the inode flags that it has attributes for.
pub(super) fn statx(stat: &Stat) -> Statx {
    let sx = |at: Timestamp| {
        let (sec, nsec) = time(at);
        SxTime { sec, nsec, spare: 0 }
    };
    let attributes = [
        (flags::IMMUTABLE, STATX_ATTR_IMMUTABLE),
        (flags::APPEND, STATX_ATTR_APPEND),
        (flags::NODUMP, STATX_ATTR_NODUMP),
        (flags::ENCRYPT, STATX_ATTR_ENCRYPTED),
        (flags::VERITY, STATX_ATTR_VERITY),
    ];
    let set = attributes.iter().filter(|(flag, _)| stat.flags & flag != 0).map(|(_, attribute)| attribute);
    Statx {
        mask: STATX_BASIC | if stat.crtime.is_some() { STATX_BTIME } else { 0 },
        blksize: stat.block_size,
        attributes: set.fold(0, |all, one| all | one),
        attributes_mask: attributes.iter().fold(0, |all, (_, one)| all | one),
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        mode: mode(stat) as u16,
        ino: stat.ino.0.into(),
        size: stat.size,
        blocks: stat.blocks_512,
        atime: sx(stat.atime),
        btime: sx(stat.crtime.unwrap_or_default()),
        ctime: sx(stat.ctime),
        mtime: sx(stat.mtime),
        rdev_major: stat.device.0,
        rdev_minor: stat.device.1,
        ..Statx::default()
    }
}

/// Masks of statx(2): the fields of stat(2), and the birth time.
const STATX_BASIC: u32 = 0x7FF;
const STATX_BTIME: u32 = 0x800;
const STATX_ATTR_IMMUTABLE: u64 = 0x10;
const STATX_ATTR_APPEND: u64 = 0x20;
const STATX_ATTR_NODUMP: u64 = 0x40;
const STATX_ATTR_ENCRYPTED: u64 = 0x800;
const STATX_ATTR_VERITY: u64 = 0x10_0000;

/// A directory entry and its attributes, with the time for which the kernel may cache the attributes.
pub(super) fn entry(stat: &Stat) -> EntryOut {
    EntryOut {
        nodeid: stat.ino.0.into(),
        generation: stat.generation.into(),
        entry_valid: CACHE_TIMEOUT.as_secs(),
        attr_valid: CACHE_TIMEOUT.as_secs(),
        attr: attributes(stat),
        ..EntryOut::default()
    }
}

/// The root, found through "." or "..": with its node id also as inode number, and timeouts of 0 for the
/// attributes.
pub(super) fn root_entry(stat: &Stat) -> EntryOut {
    EntryOut {
        nodeid: ROOT_ID,
        generation: 0,
        attr_valid: 0,
        attr: Attr { ino: ROOT_ID, ..attributes(stat) },
        ..entry(stat)
    }
}

/// A negative entry, which the kernel may cache.
pub(super) fn negative_entry() -> EntryOut {
    EntryOut { entry_valid: CACHE_TIMEOUT.as_secs(), ..EntryOut::default() }
}

/// An inode that cannot be read: its number and type, with timeouts of 0.
pub(super) fn unreadable_entry(ino: u64, kind: FileType) -> EntryOut {
    let attr = Attr { ino, mode: dirent_kind(kind) << 12, nlink: 1, blksize: 4096, ..Attr::default() };
    EntryOut { nodeid: ino, attr, ..EntryOut::default() }
}

/// `d_type` of a directory entry: the type bits of st_mode, shifted. An unknown type is returned as that of a
/// regular file.
pub(super) fn dirent_kind(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 1,
        FileType::CharDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::Regular | FileType::Unknown => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}

/// Seconds since 1970 and nanoseconds, which may be too large in a damaged inode.
fn time(time: Timestamp) -> (i64, u32) {
    (time.seconds, time.nanos.min(999_999_999))
}

/// The kernel's 32-bit device number, from the high bits: 12 bits of minor, 12 bits of major, 8 bits of
/// minor.
fn device_number((major, minor): (u32, u32)) -> u32 {
    (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12
}

/// The type in a mode of mknod(2), where 0 is a regular file.
///
/// # Errors
/// [`Errno::INVAL`] for types that mknod(2) does not create.
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

/// The new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeToSet {
    Now,
    At(Timestamp),
}

/// The times that SETATTR sets: atime, mtime, ctime.
pub(super) fn times_of(set: &SetattrIn) -> [Option<TimeToSet>; 3] {
    let at = |valid: u32, now: u32, seconds: u64, nanos: u32| match set.valid {
        bits if bits & now != 0 => Some(TimeToSet::Now),
        bits if bits & valid != 0 => Some(TimeToSet::At(Timestamp { seconds: seconds as i64, nanos })),
        _ => None,
    };
    [
        at(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec),
        at(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec),
        at(fattr::CTIME, 0, set.ctime, set.ctimensec),
    ]
}

/// Where the times of a SETATTR come from. `has_writeback_cache`: the kernel has a write-back cache, and with
/// it its own mtime and ctime of each regular file.
///
/// The kernel writes back its mtime and ctime by a SETATTR of these two without atime; no other SETATTR has
/// this form. For utimensat(2) with the current time, such a kernel sends atime as "now", with its own mtime
/// and ctime, which are equal.
pub(super) fn times_from(times: [Option<TimeToSet>; 3], has_writeback_cache: bool) -> TimesFrom {
    match times {
        [Some(TimeToSet::Now), Some(TimeToSet::Now), _] => TimesFrom::Touch,
        [Some(TimeToSet::Now), Some(TimeToSet::At(mtime)), Some(TimeToSet::At(ctime))] if mtime == ctime => {
            TimesFrom::Touch
        }
        [None, Some(_), Some(_)] if has_writeback_cache => TimesFrom::Cache,
        _ => TimesFrom::Caller,
    }
}

/// Decodes flags of open(2).
pub(super) fn access(flags: u32) -> Access {
    let append = flags & OFlags::APPEND.bits() != 0;
    Access { write: flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits(), append }
}

/// The timestamp to store.
pub(super) fn timestamp(time: TimeToSet) -> Timestamp {
    match time {
        TimeToSet::At(time) => time,
        // The clock of the timestamps of all other changes.
        TimeToSet::Now => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            Timestamp { seconds: now.tv_sec, nanos: now.tv_nsec as u32 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_two_numbers_and_no_other_inode_has() {
        assert_eq!(ino_of(1), Ok(Ino(2)));
        assert_eq!(ino_of(11), Ok(Ino(11)));
        assert_eq!(ino_of(u32::MAX.into()), Ok(Ino(u32::MAX)));
        for never in [0, 2, 1 << 32, u64::MAX] {
            assert_eq!(ino_of(never), Err(Errno::STALE), "{never}");
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
    fn times_keep_their_seconds_and_at_most_a_second_of_nanoseconds() {
        assert_eq!(time(Timestamp { seconds: -2, nanos: 800_000_000 }), (-2, 800_000_000));
        assert_eq!(time(Timestamp { seconds: 5, nanos: (1 << 30) - 1 }), (5, 999_999_999));
        let set =
            SetattrIn { valid: fattr::ATIME, atime: (-2_i64) as u64, atimensec: 5, ..SetattrIn::default() };
        let before = Timestamp { seconds: -2, nanos: 5 };
        assert_eq!(times_of(&set), [Some(TimeToSet::At(before)), None, None]);
    }
}
