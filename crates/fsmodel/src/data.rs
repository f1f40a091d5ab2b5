//! The bytes of files: operations, a model of what they answer, their generator, and the kernel behind the
//! same face.
//!
//! Owns: operations as values ([`Op`]) and their answers ([`Answer`]); files of bytes in memory that answer
//! as Linux does on ext4 ([`Model`]); the kernel behind the same face ([`Kernel`]); random operations near
//! the places where file systems go wrong ([`Generator`]); the comparison and the shrinking of what it found
//! ([`compare`], [`shrink`]).
//!
//! Does **not** own: names, owners, modes and times (the crate's other half); where bytes lie on a disk.
//!
//! ```text
//!                          ┌── expects ── Model
//!   Generator ── Op ───────┼── Kernel ─┐
//!                          └── engine ─┴── as the model expects? both the same map?
//! ```
//!
//! Rules of the game
//! 1. A handful of regular files in one directory, known by their numbers. Operations come one after another,
//!    as root and without a limit on the size of files (`ulimit -f`). Whether a file stays open between two
//!    of them is the subject's choice.
//! 2. The file system has space: `ENOSPC` never occurs. The generator frees space in time.
//! 3. Bytes, sizes and refusals are predicted exactly. What [`Op::Seek`] finds is not: that hangs on delayed
//!    allocation and on what is in memory. It is judged by what must be true of every file system (no byte
//!    but 0 in a hole, the last hole where the size is), see [`Model::judge`].
//! 4. [`Op::Map`] asks for holes where they are no longer a matter of chance: the file is written back and
//!    what was kept of it in memory is forgotten before. Then data is what was written to, whatever the
//!    allocator did, and it is predicted exactly; but for files that may lie in their inodes, and where
//!    [`Limits::fills`].
//! 5. Linux 6.17 or newer: older kernels do not know [`Fallocate::WriteZeroes`] and refuse it before they
//!    look at the range. Blocks of 1 to 4 KiB, feature `huge_file`.
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

/// Modes of `fallocate(2)`, with the flags that each stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fallocate {
    /// No flags: space, and the size where it ends beyond.
    Reserve,
    /// `KEEP_SIZE`: space only.
    Keep,
    /// `PUNCH_HOLE | KEEP_SIZE`
    Punch,
    /// `ZERO_RANGE`
    Zero,
    /// `ZERO_RANGE | KEEP_SIZE`
    ZeroKeep,
    /// `COLLAPSE_RANGE`: the range goes, what follows moves down.
    Collapse,
    /// `INSERT_RANGE`: what follows moves up.
    Insert,
    /// `WRITE_ZEROES`
    WriteZeroes,
    /// `UNSHARE_RANGE`: ext4 shares nothing and refuses.
    Unshare,
}

impl Fallocate {
    /// All of them.
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

/// One operation on the file of a number. Positions and lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are the calls' arguments")]
pub enum Op {
    /// `open(O_CREAT|O_EXCL)`
    Create { file: u8 },
    /// `unlink`
    Unlink { file: u8 },
    /// `pwrite` of the bytes of [`byte_at`] for this seed
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
    /// Written back and dropped from memory; then all ranges of data as `lseek` returns them
    Map { file: u8 },
    /// All files written back and closed, and nothing of them left in memory
    Reopen,
}

impl Op {
    /// The call's name, for statistics.
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

    /// The file; `None` for all of them.
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

/// What an operation answers.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// Create, unlink, truncate, fallocate, fsync, fdatasync, reopen.
    Done,
    /// Write: bytes taken, fewer than given where the largest size ends them.
    Count(u64),
    /// Read: fewer than asked for at the end of the file.
    Bytes(Vec<u8>),
    /// Stat.
    Size(u64),
    /// Seek.
    Place(u64),
    /// Map: ranges of data below the size, in order; touching ones are one.
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

/// Files of bytes that operations can be applied to.
pub trait DataFs {
    /// Applies one operation. A file that is not there is `ENOENT`, whatever else is wrong with the
    /// operation.
    ///
    /// # Errors
    /// The file system's refusal. It has changed nothing then that an operation could see.
    fn apply(&mut self, op: &Op) -> Result<Answer, Errno>;
}

/// The byte that a write of this seed puts at a position; never 0, but for seed 0, which writes zeros.
///
/// It hangs on the position in the file at the time of writing: bytes that come to lie anywhere else are
/// seen.
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

/// What [`Op::Map`] answers, by seeks from 0 on; for subjects, once what they keep in memory is gone.
///
/// # Errors
/// What a seek refuses with, but for the end of data.
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
        // A subject that hangs is reported as hanging, not queried forever.
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
