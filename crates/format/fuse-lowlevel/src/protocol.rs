//! The structures and numbers of the FUSE protocol, in native byte order.
//!
//! Names are those of the header without their prefix: [`AttrOut`] is `struct fuse_attr_out`. Fields that the
//! protocol leaves unused are named `pad` or `spare`.
//!
//! Source: Linux, include/uapi/linux/fuse.h, version 7.45.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the protocol that this crate implements. The kernel adapts to a server with a smaller minor
/// version.
pub const MAJOR: u32 = 7;
/// See [`MAJOR`].
pub const MINOR: u32 = 42;
/// The oldest version of a kernel that is accepted: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// A read from /dev/fuse with a smaller buffer fails.
pub const READ_BUFFER_MIN: usize = 8192;
/// Number of the root directory.
pub const ROOT_ID: u64 = 1;
/// User or group id of a request that has none: with [`init::ALLOW_IDMAP`], every request that creates no
/// inode.
pub const INVALID_ID: u32 = u32::MAX;

/// Flags of INIT, in the request (what the kernel offers) and in the reply (what the server takes).
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of an open file, in the reply to OPEN, CREATE and OPENDIR.
#[allow(missing_docs)]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of [`SetattrIn::valid`].
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Other flags of requests.
#[allow(missing_docs)]
pub mod flag {
    /// [`GetattrIn::flags`](super::GetattrIn): the file handle is valid.
    pub const GETATTR_FH: u32 = 1;
    /// [`WriteIn::write_flags`](super::WriteIn): from the page cache; the file handle is guessed.
    pub const WRITE_CACHE: u32 = 1;
    /// [`WriteIn::write_flags`](super::WriteIn): set-id bits are to be cleared.
    pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    /// [`FsyncIn::flags`](super::FsyncIn): fdatasync(2).
    pub const FSYNC_FDATASYNC: u32 = 1;
    /// [`SetxattrIn::setxattr_flags`](super::SetxattrIn): set-group-id is to be cleared.
    pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
    /// [`OpenIn::open_flags`](super::OpenIn): set-id bits are to be cleared.
    pub const OPEN_KILL_SUIDGID: u32 = 1;
}

/// Codes of notifications, which are messages without a request. They are in the field of the error.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
}

macro_rules! structures {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs)]
            pub struct $name { $(pub $field: $type,)* }
        )*
    };
}

structures! {
    /// Head of each request.
    struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, pad: u16,
    }
    /// Head of each reply.
    struct OutHeader { len: u32, error: i32, unique: u64, }
    struct Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    struct ForgetIn { nlookup: u64, }
    struct ForgetOne { nodeid: u64, nlookup: u64, }
    struct BatchForgetIn { count: u32, pad: u32, }
    struct GetattrIn { flags: u32, pad: u32, fh: u64, }
    struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, pad: u32, attr: Attr, }
    struct SxTime { sec: i64, nsec: u32, spare: i32, }
    struct Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxIn { getattr_flags: u32, spare: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    struct StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, pad: u32, }
    struct MkdirIn { mode: u32, umask: u32, }
    struct RenameIn { newdir: u64, }
    struct Rename2In { newdir: u64, flags: u32, pad: u32, }
    struct LinkIn { oldnodeid: u64, }
    struct SetattrIn {
        valid: u32, pad: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, spare: u32, uid: u32, gid: u32,
        spare2: u32,
    }
    struct OpenIn { flags: u32, open_flags: u32, }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    struct OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    struct CreateOut { entry: EntryOut, open: OpenOut, }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    struct FlushIn { fh: u64, spare: u32, pad: u32, lock_owner: u64, }
    /// Of READ, READDIR and READDIRPLUS.
    struct ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, pad: u32, }
    struct WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64,
        flags: u32, pad: u32, }
    struct WriteOut { size: u32, pad: u32, }
    struct StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        pad: u32, spare: [u32; 6],
    }
    struct FsyncIn { fh: u64, flags: u32, pad: u32, }
    struct SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, pad: u32, }
    /// Of GETXATTR and LISTXATTR.
    struct GetxattrIn { size: u32, pad: u32, }
    struct GetxattrOut { size: u32, pad: u32, }
    struct LkIn { fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, pad: u32, }
    struct AccessIn { mask: u32, pad: u32, }
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, spare: [u32; 11], }
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, spare: [u16; 11],
    }
    struct InterruptIn { unique: u64, }
    struct BmapIn { block: u64, blocksize: u32, pad: u32, }
    struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    struct PollIn { fh: u64, kh: u64, flags: u32, events: u32, }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, pad: u32, }
    struct LseekIn { fh: u64, offset: u64, whence: u32, pad: u32, }
    struct LseekOut { offset: u64, }
    struct CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    struct SyncfsIn { pad: u64, }
    struct InvalInodeOut { ino: u64, off: i64, len: i64, }
    /// Head of each name in a listing.
    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    /// Sizes that the header states, or that follow from it on 64-bit machines.
    #[test]
    fn structures_have_the_sizes_of_the_header() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<Statx>(), 256),
            (size_of::<StatxOut>(), 288),
            (size_of::<SetattrIn>(), 88),
            (size_of::<WriteIn>(), 40),
            (size_of::<StatfsOut>(), 80),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<LkIn>(), 48),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<Dirent>(), 24),
        ];
        for (index, (found, expected)) in sizes.into_iter().enumerate() {
            assert_eq!(found, expected, "structure {index} of the list");
        }
    }
}
