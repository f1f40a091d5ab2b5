//! What every source hands over: one entry of a tree, whole, in plain words.

use std::sync::Arc;

/// A point in time as sources know it: any seconds, nanoseconds below 10^9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds within the second, always counted forwards.
    pub nanos: u32,
}

/// One extended attribute as `getxattr` would show it: full name ("user.comment"), value bytes.
///
/// POSIX ACLs use the kernel's xattr form (`system.posix_acl_access`: le32 version 2, then 8-byte entries),
/// whatever form the source had.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Name with its prefix: `user.comment`, `security.capability`.
    pub name: Vec<u8>,
    /// Value, at most 64 KiB.
    pub value: Vec<u8>,
}

/// Everything about an inode but its type-specific part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits with setuid, setgid and sticky: `0o7777` at most; the type is in [`Kind`].
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Last access, where the source has it.
    pub atime: Option<Time>,
    /// Last change of the inode, where the source has it.
    pub ctime: Option<Time>,
    /// Birth, where the source has it.
    pub crtime: Option<Time>,
    /// Extended attributes, in the source's order.
    pub xattrs: Vec<Xattr>,
}

/// A run of bytes in a file that holds data; everything outside such runs is a hole that reads as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRun {
    /// First byte within the file.
    pub file_offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Where the bytes stand in the payload's backing file.
    pub backing_offset: u64,
}

/// The content of a regular file that came out of an archive: runs of bytes in a backing file that can be
/// read at any offset, by several threads.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The archive itself, or the unlinked spool file that holds what was unpacked from it.
    pub backing: Arc<std::fs::File>,
    /// Data runs in ascending order, not overlapping.
    pub runs: Vec<DataRun>,
}

/// The type-specific part of an entry.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A directory. If one is there already, it keeps its children and takes the new metadata.
    Directory,
    /// A regular file of `size` bytes.
    File {
        /// Size in bytes, holes counted.
        size: u64,
        /// Where its bytes are.
        payload: Payload,
    },
    /// A symbolic link with its target's bytes.
    Symlink(Vec<u8>),
    /// One more name for an entry that came earlier in the same source, or is there from an earlier one: its
    /// path, normalised like [`Entry::path`].
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
    /// Not an inode: removes `path` as it came from earlier sources (an OCI whiteout). Removing what is not
    /// there is no error.
    Whiteout,
    /// Not an inode: removes all children that the directory `path` has from earlier sources (an OCI opaque
    /// marker); what this source itself adds to it stays, whether it came before or after the marker.
    Opaque,
}

/// One entry of a source.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path below the image's root: components joined by `/`, no leading or trailing slash, no empty
    /// component, no `.` or `..`; empty for the root itself. Each component is 1 to 255 bytes of anything but
    /// NUL and `/`.
    pub path: Vec<u8>,
    /// Everything but the type-specific part (meaningless for hard links, whiteouts and opaque markers).
    pub metadata: Metadata,
    /// The rest.
    pub kind: Kind,
}
