//! The common output of all sources: one complete entry of a tree, independent of the source's format.

use std::sync::Arc;

/// A point in time, as sources record it: any number of seconds, and nanoseconds below 10^9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds within the second, always counted forward.
    pub nanos: u32,
}

/// One extended attribute as `getxattr` returns it: full name ("user.comment") and value.
///
/// POSIX ACLs are in the kernel's xattr form (`system.posix_acl_access`: le32 version 2, then 8-byte
/// entries), whatever the form in the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Name with its prefix: `user.comment`, `security.capability`.
    pub name: Vec<u8>,
    /// Value, at most 64 KiB.
    pub value: Vec<u8>,
}

/// The attributes of an inode that do not depend on its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits including setuid, setgid and sticky: at most `0o7777`. The type is in [`Kind`].
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Last access, if the source records it.
    pub atime: Option<Time>,
    /// Last change of the inode, if the source records it.
    pub ctime: Option<Time>,
    /// Birth, if the source records it.
    pub crtime: Option<Time>,
    /// Extended attributes, in the source's order.
    pub xattrs: Vec<Xattr>,
}

/// A run of data bytes in a file. Everything outside such runs is a hole and reads as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRun {
    /// First byte within the file.
    pub file_offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Byte offset of the run in the payload's backing file.
    pub backing_offset: u64,
}

/// The content of a regular file from an archive: runs of bytes in a backing file, which several threads can
/// read at any offset.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The archive itself, or the unlinked spool file with the unpacked bytes.
    pub backing: Arc<std::fs::File>,
    /// Data runs in ascending order, not overlapping.
    pub runs: Vec<DataRun>,
}

/// The type-specific part of an entry.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A directory. An existing directory at the path keeps its children and takes the new metadata.
    Directory,
    /// A regular file of `size` bytes.
    File {
        /// Size in bytes, including holes.
        size: u64,
        /// The location of its bytes.
        payload: Payload,
    },
    /// A symbolic link and the bytes of its target.
    Symlink(Vec<u8>),
    /// An additional name for an entry that came earlier in this source, or from an earlier source. The value
    /// is the path of that entry, normalised like [`Entry::path`].
    HardLink(Vec<u8>),
    /// A character device.
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// Not an inode: removes `path` as earlier sources left it (an OCI whiteout). A missing path is no error.
    Whiteout,
    /// Not an inode: removes all children of the directory `path` that came from earlier sources (an OCI
    /// opaque marker). Children from this source stay, whether they came before the marker or after it.
    Opaque,
}

/// One entry of a source.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path below the image's root: components joined by `/`, with no leading or trailing slash, no empty
    /// component, no `.` or `..`. Empty for the root itself. Each component is 1 to 255 bytes without NUL and
    /// `/`.
    pub path: Vec<u8>,
    /// The attributes common to all types. Meaningless for hard links, whiteouts and opaque markers.
    pub metadata: Metadata,
    /// The type, and what only this type has.
    pub kind: Kind,
}
