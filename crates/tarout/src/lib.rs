//! Tar archives out: a streaming writer of POSIX pax archives that lose nothing of what a file system holds.
//!
//! ```text
//! entry ─> [x header: pax records] header ─┐
//! data, data, ... ─────────────────────────┴─> one buffer of headers and small files ──┬─> one vectored write
//!                                              large data, straight from the caller ───┘
//! ```
//!
//! Owns: ustar headers, pax records, sparse maps, the text form of ACLs, batching of writes. Does **not**
//! own: walking a tree, reading data, the choice of what goes into the archive, compression.
//!
//! | of the entry | stands in |
//! |---|---|
//! | long names and targets, and those that are UTF-8 but not ASCII | `path`, `linkpath` |
//! | names that are not UTF-8 | the header's own fields if they fit (readers do not translate those), else `hdrcharset=BINARY` and `path` |
//! | sizes from 8 GiB, owners from 2^21 | `size`, `uid`, `gid` |
//! | times with nanoseconds, before 1970, after 2242 | `mtime`; `atime`, `ctime` wherever given |
//! | extended attributes | `SCHILY.xattr.NAME`, any bytes; `=` and `%` in NAME as GNU tar writes them |
//! | POSIX ACLs | `SCHILY.acl.*` as text with numbers, for readers that restore ACLs, and `SCHILY.xattr.system.posix_acl_*`, for readers that restore attributes only |
//! | holes, where leaving them out saves room | GNU's PAX sparse format 1.0 |
//!
//! Invariants
//! 1. The same entries give the same bytes: no time, process id, name of a user or order of a map gets in.
//! 2. A member is whole: exactly the bytes that its header announces, or an error before the next header.
//! 3. Paths are relative and hold no `.`, `..` or empty component, so that no reader can be led outside.
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

/// Unit of everything in an archive.
pub const BLOCK_BYTES: usize = 512;

/// Why an archive cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TarFault {
    /// The output refuses.
    #[error("cannot write the archive: {0}")]
    Io(#[from] io::Error),
    /// A path that no archive should hold.
    #[error("\"{path}\" cannot be the name of a member: {rule}")]
    Path {
        /// The path, made printable.
        path: String,
        /// What a name must not be.
        rule: &'static str,
    },
    /// The runs of a sparse file overlap, go backwards, or reach past its end.
    #[error(
        "\"{path}\": the run of {len_bytes} bytes at byte {offset_bytes} overlaps the one before it or the file's end"
    )]
    Runs {
        /// The path, made printable.
        path: String,
        /// Where the run begins in the file.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// More or less data came than the entry announced.
    #[error("the member's header announced {announced_bytes} bytes, and {came} came")]
    Data {
        /// What [`TarWriter::entry`] returned.
        announced_bytes: u64,
        /// "more", or how many.
        came: String,
    },
}

/// A time as file systems keep it: `nanos` (below 10^9) count forward from `seconds`, also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that.
    pub nanos: u32,
}

/// A run of data in a sparse file. A file is stored without its holes only if the lengths of all runs but the
/// last are multiples of 512, as those of blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRun {
    /// Where it begins in the file.
    pub offset_bytes: u64,
    /// Its length; not 0.
    pub len_bytes: u64,
}

/// An extended attribute as the kernel shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// Name with its prefix: `user.comment`.
    pub name: &'a [u8],
    /// Any bytes. Of `system.posix_acl_access` and `..._default`: the kernel's form, version 2.
    pub value: &'a [u8],
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A regular file.
    File {
        /// Its size with its holes.
        size_bytes: u64,
        /// Where its data is, in order, if there may be holes; `None`: everywhere.
        runs: Option<&'a [DataRun]>,
    },
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(&'a [u8]),
    /// A further name of a member that came before: its path.
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
    /// A socket: tar has no such thing, so it is skipped.
    Socket,
}

/// One member without its data.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Path from the archive's root, with no `/` at either end; empty for the root directory itself.
    pub path: &'a [u8],
    /// What it is.
    pub kind: Kind<'a>,
    /// Permission bits, 0 to 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Time,
    /// Last access, if it is to be kept.
    pub atime: Option<Time>,
    /// Last change of the inode, if it is to be kept; no tool restores it.
    pub ctime: Option<Time>,
    /// Birth, if it is to be kept: bsdtar and `extant build` know it, GNU tar warns that it does not.
    pub crtime: Option<Time>,
    /// Extended attributes, written in this order.
    pub xattrs: &'a [Xattr<'a>],
}

impl<'a> Entry<'a> {
    /// An entry of root's with mode 0o755, one time and no attributes.
    #[must_use]
    pub fn new(path: &'a [u8], kind: Kind<'a>, mtime: Time) -> Self {
        let (atime, ctime, crtime) = (None, None, None);
        Self { path, kind, mode: 0o755, uid: 0, gid: 0, mtime, atime, ctime, crtime, xattrs: &[] }
    }
}

/// What must follow an entry's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// This many bytes of data: the whole file, zeros for its holes. 0 for all that is no file.
    Whole(u64),
    /// This many bytes of data: the runs of the sparse file, one after the other.
    Runs(u64),
    /// Nothing: the entry is a socket and was left out.
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

/// Zeros that fill the last block of `len` bytes.
#[must_use]
pub fn padding_bytes(len: u64) -> usize {
    (len.wrapping_neg() % BLOCK_BYTES as u64) as usize
}
