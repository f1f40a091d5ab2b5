//! File data: operations, a model of their answers, a generator, and the kernel behind the same interface.
//!
//! Owns: operations as values ([`Op`]) and their answers ([`Answer`]); files in memory that answer as Linux
//! does on ext4 ([`Model`]); the kernel behind the same interface ([`Kernel`]); random operations near
//! offsets where file systems often fail ([`Generator`]); the comparison, and the shrinking of a difference
//! ([`compare`], [`shrink`]).
//!
//! Does **not** own: names, owners, modes and times (the rest of this crate); where bytes lie on a disk.
//!
//! ```text
//!                          ┌── expects ── Model
//!   Generator ── Op ───────┼── Kernel ─┐
//!                          └── engine ─┴── as the model expects? both the same map?
//! ```
//!
//! Rules
//! 1. There are a few regular files in one directory, identified by number. Operations run one after another,
//!    as root and without a limit on file sizes (`ulimit -f`). The subject chooses whether a file stays open
//!    between two operations.
//! 2. The file system has space: `ENOSPC` never occurs. The generator frees space in time.
//! 3. The model predicts bytes, sizes and refusals exactly. It does not predict the results of [`Op::Seek`],
//!    which depend on delayed allocation and on what is in memory. [`Model::judge`] checks what must hold for
//!    every file system: a hole contains only zeros, and the last hole is at the size.
//! 4. [`Op::Map`] reports holes independently of chance: the subject first writes the file back and drops it
//!    from memory. Then data is exactly what was written to, whatever the allocator did, and the model
//!    predicts it exactly. Exceptions are files that may lie in their inodes, and [`Limits::fills`].
//! 5. Linux 6.17 or newer: older kernels do not know [`Fallocate::WriteZeroes`] and refuse it before they
//!    check the range. Blocks of 1 to 4 KiB, feature `huge_file`.
//!
//! ```
//! use extant_fsmodel::Errno;
//! use extant_fsmodel::data::{Answer, DataFs, Model, Op};
//!
//! let mut model = Model::default();
//! model.apply(&Op::Create { file: 0 }).unwrap();
//! assert_eq!(model.apply(&Op::Write { file: 0, pos: 5000, len: 10, seed: 1 }), Ok(Answer::Count(10)));
//! assert_eq!(model.apply(&Op::Stat { file: 0 }), Ok(Answer::Size(5010)));
//! assert_eq!(model.apply(&Op::Truncate { file: 0, size: u64::MAX }), Err(Errno::EINVAL));
//! ```

use std::fmt;
use std::ops::Range;

use crate::errno::Errno;

mod compare;
mod generator;
mod kernel;
mod model;

pub use compare::{Difference, Report, Rules, compare, replay, shrink};
pub use generator::{Generator, Options};
pub use kernel::Kernel;
pub use model::{Expected, Limits, Model};

/// Modes of `fallocate(2)`, with their flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fallocate {
    /// No flags: reserves space, and extends the size if the range ends after it.
    Reserve,
    /// `KEEP_SIZE`: reserves space only.
    Keep,
    /// `PUNCH_HOLE | KEEP_SIZE`
    Punch,
    /// `ZERO_RANGE`
    Zero,
    /// `ZERO_RANGE | KEEP_SIZE`
    ZeroKeep,
    /// `COLLAPSE_RANGE`: removes the range and moves the following bytes down.
    Collapse,
    /// `INSERT_RANGE`: moves the following bytes up.
    Insert,
    /// `WRITE_ZEROES`
    WriteZeroes,
    /// `UNSHARE_RANGE`: ext4 has no shared blocks and refuses.
    Unshare,
}

impl Fallocate {
    /// All modes.
    pub const ALL: [Self; 9] = [
        Self::Reserve,
        Self::Keep,
        Self::Punch,
        Self::Zero,
        Self::ZeroKeep,
        Self::Collapse,
        Self::Insert,
        Self::WriteZeroes,
        Self::Unshare,
    ];
}

/// What a seek looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whence {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// An operation on a numbered file. Offsets and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are the calls' arguments")]
pub enum Op {
    /// `open(O_CREAT|O_EXCL)`
    Create { file: u8 },
    /// `unlink`
    Unlink { file: u8 },
    /// `pwrite` of the bytes that [`byte_at`] gives for this seed
    Write { file: u8, pos: u64, len: u64, seed: u32 },
    /// `pread`
    Read { file: u8, pos: u64, len: u64 },
    /// `ftruncate`
    Truncate { file: u8, size: u64 },
    /// `fallocate`
    Fallocate { file: u8, mode: Fallocate, pos: u64, len: u64 },
    /// `lseek`
    Seek { file: u8, whence: Whence, pos: u64 },
    /// `fstat`: the size
    Stat { file: u8 },
    /// `fsync`
    Fsync { file: u8 },
    /// `fdatasync`
    Fdatasync { file: u8 },
    /// Writes the file back and drops it from memory; then lists all data ranges by `lseek`
    Map { file: u8 },
    /// Writes all files back, closes them and drops them from memory
    Reopen,
}

impl Op {
    /// The name of the call, for statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Unlink { .. } => "unlink",
            Self::Write { .. } => "write",
            Self::Read { .. } => "read",
            Self::Truncate { .. } => "truncate",
            Self::Fallocate { mode, .. } => match mode {
                Fallocate::Reserve => "reserve",
                Fallocate::Keep => "reserve-keep",
                Fallocate::Punch => "punch",
                Fallocate::Zero => "zero",
                Fallocate::ZeroKeep => "zero-keep",
                Fallocate::Collapse => "collapse",
                Fallocate::Insert => "insert",
                Fallocate::WriteZeroes => "write-zeroes",
                Fallocate::Unshare => "unshare",
            },
            Self::Seek { whence: Whence::Data, .. } => "seek-data",
            Self::Seek { whence: Whence::Hole, .. } => "seek-hole",
            Self::Stat { .. } => "stat",
            Self::Fsync { .. } => "fsync",
            Self::Fdatasync { .. } => "fdatasync",
            Self::Map { .. } => "map",
            Self::Reopen => "reopen",
        }
    }

    /// The file; `None` for all files.
    #[must_use]
    pub fn file(&self) -> Option<u8> {
        match *self {
            Self::Create { file }
            | Self::Unlink { file }
            | Self::Write { file, .. }
            | Self::Read { file, .. }
            | Self::Truncate { file, .. }
            | Self::Fallocate { file, .. }
            | Self::Seek { file, .. }
            | Self::Stat { file }
            | Self::Fsync { file }
            | Self::Fdatasync { file }
            | Self::Map { file } => Some(file),
            Self::Reopen => None,
        }
    }
}

/// The answer of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// Create, unlink, truncate, fallocate, fsync, fdatasync, reopen.
    Done,
    /// Write: bytes accepted, fewer than requested at the maximum size.
    Count(u64),
    /// Read: fewer bytes than requested at the end of the file.
    Bytes(Vec<u8>),
    /// Stat.
    Size(u64),
    /// Seek.
    Place(u64),
    /// Map: data ranges below the size, in order. Adjacent ranges are merged.
    Ranges(Vec<Range<u64>>),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Count(n) => write!(f, "{n} bytes taken"),
            Self::Bytes(bytes) => write!(f, "{} bytes read", bytes.len()),
            Self::Size(size) => write!(f, "size {size}"),
            Self::Place(pos) => write!(f, "at {pos}"),
            Self::Ranges(ranges) => write!(f, "data {ranges:?}"),
        }
    }
}

/// A file system whose file data can be changed and read.
pub trait DataFs {
    /// Applies one operation. The answer is `ENOENT` if the file does not exist, whatever else is wrong with
    /// the operation.
    ///
    /// # Errors
    /// The file system's refusal. It has then changed nothing that an operation could see.
    fn apply(&mut self, op: &Op) -> Result<Answer, Errno>;
}

/// The byte that a write of this seed puts at a position. It is never 0, except that seed 0 writes zeros.
///
/// It depends on the position in the file at the time of the write, so that bytes at any other position are
/// detected.
#[must_use]
pub fn byte_at(seed: u32, pos: u64) -> u8 {
    if seed == 0 {
        return 0;
    }
    let mixed = (pos ^ (u64::from(seed) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 32) % 255) as u8 + 1
}

/// The bytes of a write.
#[must_use]
pub fn bytes_of(seed: u32, pos: u64, len: u64) -> Vec<u8> {
    (0..len).map(|n| byte_at(seed, pos.wrapping_add(n))).collect()
}

/// Answers [`Op::Map`] by seeks from 0. The caller has dropped the file from memory before.
///
/// # Errors
/// The refusal of a seek, except for the end of data.
pub fn map_by_seeks(
    mut seek: impl FnMut(Whence, u64) -> Result<u64, Errno>,
) -> Result<Vec<Range<u64>>, Errno> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut pos = 0;
    loop {
        let start = match seek(Whence::Data, pos) {
            Ok(start) => start,
            Err(Errno::ENXIO) => return Ok(ranges),
            Err(other) => return Err(other),
        };
        let end = seek(Whence::Hole, start)?;
        // Ends for a subject whose seeks make no progress, and reports its range.
        if start < pos || end <= start {
            ranges.push(start..end);
            return Ok(ranges);
        }
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
        pos = end;
    }
}
