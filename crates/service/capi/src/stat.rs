//! Attributes of inodes and of the file system as C structures.

use facade::{FileType, Stat, StatFs, Timestamp};

use crate::border::Out;

/// A time.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct extant_time {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
    /// Zero.
    pub reserved: u32,
}

impl From<Timestamp> for extant_time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanos: time.nanos, reserved: 0 }
    }
}

/// The attributes of an inode, as stat(2) and statx(2) return them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct extant_stat {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Type and permissions, as st_mode.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Block size of the file system in bytes.
    pub block_size: u32,
    /// Major number of a device node.
    pub dev_major: u32,
    /// Minor number of a device node.
    pub dev_minor: u32,
    /// Inode flags, as FS_IOC_GETFLAGS returns them.
    pub flags: u32,
    /// Generation, which distinguishes successive uses of an inode number.
    pub generation: u32,
    /// Project ID.
    pub project: u32,
    /// Last access.
    pub atime: extant_time,
    /// Last change of the data.
    pub mtime: extant_time,
    /// Last change of the inode.
    pub ctime: extant_time,
    /// Birth; zero if the inode has no room for it.
    pub crtime: extant_time,
    /// Zero.
    pub reserved: [u64; 4],
}

impl From<&Stat> for extant_stat {
    fn from(stat: &Stat) -> Self {
        Self {
            ino: stat.ino.0.into(),
            size: stat.size,
            blocks: stat.blocks_512,
            mode: stat.mode.into(),
            links: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            block_size: stat.block_size,
            dev_major: stat.device.0,
            dev_minor: stat.device.1,
            flags: stat.flags,
            generation: stat.generation,
            project: stat.project,
            atime: stat.atime.into(),
            mtime: stat.mtime.into(),
            ctime: stat.ctime.into(),
            crtime: stat.crtime.map(Into::into).unwrap_or_default(),
            reserved: [0; 4],
        }
    }
}

/// Space and inodes of a file system, as statfs(2) returns them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct extant_statfs {
    /// Blocks available for files: without those of the file system itself.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks without root's reserve.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

impl From<StatFs> for extant_statfs {
    fn from(space: StatFs) -> Self {
        Self {
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            inodes: space.inodes.into(),
            inodes_free: space.inodes_free.into(),
            block_size: space.block_size,
            name_max: space.name_max,
            reserved: [0; 4],
        }
    }
}

/// The type bits of st_mode; 0 if the type is not known.
pub(crate) fn type_bits(kind: Option<FileType>) -> u32 {
    kind.map_or(0, |kind| kind.mode_bits().into())
}

pub type StatOut = Out<extant_stat>;
pub type StatfsOut = Out<extant_statfs>;
