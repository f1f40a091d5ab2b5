//! Tar output: a streaming writer of POSIX pax archives that keep everything a file system stores.
//!
//! ```text
//! entry ─> [x header: pax records] header ┐
//! data, data, ... ────────────────────────┴─> one buffer of headers and small files ┬─> one vectored write
//!                                             large data, zero-copy from the caller ┘
//! ```
//!
//! Owns: ustar headers, pax records, sparse maps, the text form of ACLs, batching of writes. Does **not**
//! own: walking a tree, reading data, the selection of archive members, compression.
//!
//! | part of the entry | stored in |
//! |---|---|
//! | names and targets that are long, or UTF-8 but not ASCII | `path`, `linkpath` |
//! | names that are not UTF-8 | header fields if they fit (1), else `hdrcharset=BINARY` and `path` |
//! | sizes from 8 GiB, owners from 2^21 | `size`, `uid`, `gid` |
//! | times with nanoseconds, before 1970, after 2242 | `mtime`; `atime`, `ctime` if given |
//! | extended attributes | `SCHILY.xattr.NAME`, any bytes; `=` and `%` in NAME as GNU tar writes them |
//! | POSIX ACLs | `SCHILY.acl.*` and `SCHILY.xattr.system.posix_acl_*` (2) |
//! | holes, if leaving them out saves space | GNU's PAX sparse format 1.0 |
//!
//! (1) Readers do not translate header fields. (2) `SCHILY.acl.*` has text with numeric ids, for readers that
//! restore ACLs. `SCHILY.xattr.*` is for readers that restore only attributes.
//!
//! Invariants
//! 1. The same entries give the same bytes: the output depends on no current time, process id, user name or
//!    map order.
//! 2. A member has exactly the bytes that its header announces. If not, there is an error before the next
//!    header.
//! 3. Paths are relative and contain no `.`, `..` or empty component, so that no reader writes outside its
//!    target.
//!
//! Source: POSIX.1-2017 pax, "pax Interchange Format"; GNU tar manual, "Sparse Formats"; star(5). Verified by
//! extracting with GNU tar and bsdtar.
//!
//! ```
//! use extant_tarout::{Entry, Kind, TarWriter, Time};
//! let mut tar = TarWriter::new(Vec::new());
//! let time = Time { seconds: 1_700_000_000, nanos: 5 };
//! let kind = Kind::File { size_bytes: 5, runs: None };
//! tar.entry(&Entry { mode: 0o644, ..Entry::new(b"etc/motd", kind, time) })?;
//! tar.data(b"hello")?;
//! let archive = tar.finish()?;
//! assert_eq!(archive.len() % 512, 0);
//! # Ok::<(), extant_tarout::TarFault>(())
//! ```

#![forbid(unsafe_code)]

mod acl;
mod header;
mod sparse;
mod writer;

use std::io;

pub use header::encode;
pub use writer::TarWriter;

/// Block size of an archive.
pub const BLOCK_BYTES: usize = 512;

/// Why an archive cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TarFault {
    /// The output failed.
    #[error("cannot write the archive: {0}")]
    Io(#[from] io::Error),
    /// A path that is not valid in an archive.
    #[error("\"{path}\" cannot be the name of a member: {rule}")]
    Path {
        /// The path, made printable.
        path: String,
        /// The rule that it violates.
        rule: &'static str,
    },
    /// The runs of a sparse file overlap, go backwards, or reach past its end.
    #[error(
        "\"{path}\": the run of {len_bytes} bytes at byte {offset_bytes} overlaps the one before it or the file's end"
    )]
    Runs {
        /// The path, made printable.
        path: String,
        /// Offset of the run in the file.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// More or less data was written than the entry announced.
    #[error("the member's header announced {announced_bytes} bytes, and {came} came")]
    Data {
        /// The size that [`TarWriter::entry`] returned.
        announced_bytes: u64,
        /// "more", or the number of bytes.
        came: String,
    },
}

/// A time as file systems store it: `nanos` (below 10^9) count forward from `seconds`, also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that.
    pub nanos: u32,
}

/// A run of data in a sparse file. A file is stored without its holes only if the lengths of all runs but the
/// last are multiples of 512, like those of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRun {
    /// Offset in the file.
    pub offset_bytes: u64,
    /// Its length; not 0.
    pub len_bytes: u64,
}

/// An extended attribute as the kernel returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// Name with its prefix: `user.comment`.
    pub name: &'a [u8],
    /// Any bytes. For `system.posix_acl_access` and `..._default`: the kernel's format, version 2.
    pub value: &'a [u8],
}

/// The type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A regular file.
    File {
        /// Its size with its holes.
        size_bytes: u64,
        /// The runs of data, in order, if there may be holes; `None` if there are none.
        runs: Option<&'a [DataRun]>,
    },
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(&'a [u8]),
    /// A hard link to an earlier member: its path.
    HardLink(&'a [u8]),
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
    /// A socket: tar cannot store one, so it is skipped.
    Socket,
}

/// One member without its data.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Path from the archive's root, with no `/` at either end; empty for the root directory itself.
    pub path: &'a [u8],
    /// Its type.
    pub kind: Kind<'a>,
    /// Permission bits, 0 to 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Last access, if it should be stored.
    pub atime: Option<Time>,
    /// Last change of the inode, if it should be stored; no tool restores it.
    pub ctime: Option<Time>,
    /// Creation time, if it should be stored: bsdtar and `extant build` restore it, GNU tar warns that it
    /// does not.
    pub crtime: Option<Time>,
    /// Extended attributes, written in this order.
    pub xattrs: &'a [Xattr<'a>],
}

impl<'a> Entry<'a> {
    /// An entry owned by root with mode 0o755, one time and no attributes.
    #[must_use]
    pub fn new(path: &'a [u8], kind: Kind<'a>, mtime: Time) -> Self {
        let (atime, ctime, crtime) = (None, None, None);
        Self { path, kind, mode: 0o755, uid: 0, gid: 0, mtime, atime, ctime, crtime, xattrs: &[] }
    }
}

/// What must follow an entry's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// This many bytes of data: the whole file, with zeros for its holes. 0 for members that are not files.
    Whole(u64),
    /// This many bytes of data: the runs of the sparse file, one after the other.
    Runs(u64),
    /// Nothing: the entry is a socket and was skipped.
    Skipped,
}

impl Begun {
    /// Bytes of data that must follow.
    #[must_use]
    pub fn data_bytes(self) -> u64 {
        match self {
            Self::Whole(bytes) | Self::Runs(bytes) => bytes,
            Self::Skipped => 0,
        }
    }
}

/// Number of zeros that fill the last block of `len` bytes.
#[must_use]
pub fn padding_bytes(len: u64) -> usize {
    (len.wrapping_neg() % BLOCK_BYTES as u64) as usize
}
