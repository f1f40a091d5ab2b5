//! Copying data from one file to another, or within a file.
//!
//! ```text
//!   a piece:   both operation locks, by number -> what begins here in the source?
//!     data     read, and written to the target like any data
//!     a hole   skipped if the target has a hole there, too; otherwise zeros are written
//!     the target grows at the end of the requested range
//! ```
//!
//! Does **not** own: reading and writing (see `data`), sizes (see `truncate`).
//!
//! Invariants
//! 1. The target's data is the same as after a read and a write.
//! 2. A hole of the source takes no block of the target, unless one of the files has inline or journaled
//!    data: then it is written.
//! 3. A piece is copied atomically, the whole copy is not, as with the kernel.
//!
//! Source: copy_file_range(2).

use std::ops::Range;
use std::sync::Arc;

use extant_base::Ino;
use extant_inode::LiveInode;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::WriteAccess;
use super::views::DataEdits;
use crate::ops::errors::Operation;
use crate::{Fault, Files, Refusal, Seek};

/// Bytes copied under the locks at a time.
const PIECE: u64 = 1 << 20;

/// A copy from a place in one file to a place in another.
struct Copy<'a> {
    source: &'a Arc<LiveInode>,
    target: &'a Arc<LiveInode>,
    from: u64,
    to: u64,
    left: u64,
    access: WriteAccess,
}

impl Files<'_> {
    /// Copies `len` bytes from one regular file to another, or to another place in the same file. Returns the
    /// number of bytes, which is smaller at the end of the source or if space runs out. Holes stay holes
    /// where the target has no data. The data is in memory then, as after [`write_at`](Self::write_at).
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for two overlapping ranges of one file; as [`write_at`](Self::write_at) of the
    /// target and [`read_at`](Self::read_at) of the source.
    pub fn copy_range(self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, Fault> {
        self.copy_range_by(WriteAccess::Flags, from, to, len)
    }

    /// As [`copy_range`](Self::copy_range), for a caller that was permitted to write to the target before.
    ///
    /// # Errors
    /// As [`copy_range`](Self::copy_range).
    pub fn copy_range_by(
        self,
        access: WriteAccess,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, Fault> {
        let writer = self.volume.writer()?;
        let (done, is_sync) =
            self.volume.noted(Operation::CopyRange, writer.data().copy_range(access, from, to, len))?;
        if is_sync {
            self.fsync_range(to.0, to.1..to.1 + done, None, false)?;
        }
        Ok(done)
    }
}

impl DataEdits<'_> {
    /// Copies. Returns the number of bytes, and whether they must be durable at once (`chattr +S`).
    fn copy_range(
        self,
        access: WriteAccess,
        (from_ino, from): (Ino, u64),
        (to_ino, to): (Ino, u64),
        len: u64,
    ) -> Result<(u64, bool), Fault> {
        let (source, target) = (self.writer.inode_to_change(from_ino)?, self.writer.inode_to_change(to_ino)?);
        check_regular(&source)?;
        // An encrypted source is refused, even where it has a hole.
        if source.values().has_flag(flags::ENCRYPT) {
            return Err(Refusal::NeedsKey.into());
        }
        let len = len.min(source.values().size().saturating_sub(from));
        let fits = usize::try_from(len).unwrap_or(usize::MAX);
        let fits = self.check_writable(access, &target, to, fits)? as u64;
        if from_ino == to_ino && from < to.saturating_add(len) && to < from + len {
            return Err(Refusal::Invalid.into());
        }
        let (len, mut done) = (len.min(fits), 0);
        let mut buffer = Vec::new();
        while done < len {
            let (from, to) = (from + done, to + done);
            let copy = Copy { source: &source, target: &target, from, to, left: len - done, access };
            self.writer.flusher.throttle();
            match self.copy_piece(&copy, &mut buffer) {
                Ok(0) => break,
                Ok(copied) => done += copied,
                // The copied part counts. The error is reported when the caller requests the rest.
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        let is_sync = target.values().has_flag(flags::SYNC);
        Ok((done, is_sync))
    }

    /// Copies a piece. Returns the number of bytes; 0 at the end of the source.
    fn copy_piece(self, copy: &Copy<'_>, buffer: &mut Vec<u8>) -> Result<u64, Fault> {
        let Copy { source, target, from, to, access, .. } = *copy;
        // In the order of inode numbers; a single lock if both are the same inode.
        let before = (source.ino() < target.ino()).then(|| source.operation.read());
        let _target = self.writer.names().lock_node(target)?;
        let _source = before.or_else(|| (source.ino() > target.ino()).then(|| source.operation.read()));
        let left = copy.left.min(source.values().size().saturating_sub(from));
        if left == 0 {
            return Ok(0);
        }
        let may_skip = self.keeps_holes(source) && self.keeps_holes(target);
        let hole = if may_skip { self.empty_run(source, from, left)? } else { 0 };
        let old = target.values().size();
        if hole > 0 && to < old {
            let end = left.min(hole).min(old - to);
            return match self.empty_run(target, to, end)? {
                // The target's data there becomes zeros.
                0 => {
                    buffer.clear();
                    let end = self.data_run(target, to..to + end.min(PIECE))?;
                    buffer.resize(end as usize, 0);
                    Ok(self.write_locked(access, target, to, buffer)? as u64)
                }
                skipped => {
                    self.check_writable(access, target, to, skipped as usize)?;
                    self.note_write(target, true)?;
                    Ok(skipped)
                }
            };
        }
        if hole == left {
            self.check_writable(access, target, to, hole as usize)?;
            self.note_write(target, true)?;
            self.writer.sizes().set_size(target, to + hole)?;
            return Ok(hole);
        }
        // A write past the target's end leaves a hole before it. The target does not grow over the hole
        // before this write succeeds.
        let (from, to) = (from + hole, to + hole);
        let end = (left - hole).min(PIECE);
        let end = if may_skip { self.data_run(source, from..from + end)? } else { end };
        buffer.resize(end as usize, 0);
        let got = self.read_locked(source, from, buffer)?;
        let written = self.write_locked(access, target, to, &buffer[..got])? as u64;
        Ok(hole + written)
    }

    /// Returns whether a range of the file can be left out.
    fn keeps_holes(self, node: &LiveInode) -> bool {
        let values = node.values();
        // An append-only file cannot be written past its end.
        !values.has_flag(flags::INLINE_DATA | flags::APPEND) && !values.is_journaled(self.writer.shared())
    }

    /// The number of bytes from `pos`, at most `len`, that are a hole or unwritten. The caller holds the
    /// operation lock.
    fn empty_run(self, node: &Arc<LiveInode>, pos: u64, len: u64) -> Result<u64, Fault> {
        // Brings the file's data state into memory, like a write.
        let data = self.writer.inodes().data(node);
        match self.seek_locked(node, &data, pos..pos + len, Seek::Data) {
            Ok(data) => Ok(len.min(data - pos)),
            Err(fault) if fault.is(Refusal::PastEnd) => Ok(len),
            Err(fault) => Err(fault),
        }
    }

    /// The number of bytes from the start of a range, which is before the end of the file, to the next hole.
    /// The caller holds the operation lock.
    fn data_run(self, node: &Arc<LiveInode>, range: Range<u64>) -> Result<u64, Fault> {
        let from = range.start;
        Ok(self.seek_locked(node, &self.writer.inodes().data(node), range, Seek::Hole)? - from)
    }
}

fn check_regular(node: &LiveInode) -> Result<(), Fault> {
    match node.values().kind() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Refusal::IsDirectory.into()),
        _ => Err(Refusal::WrongType.into()),
    }
}
