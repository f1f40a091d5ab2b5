//! Copying bytes from one file to another, or inside of one.
//!
//! ```text
//!   a piece:   both operation locks, by number -> what of the source begins there?
//!     data     read, and written to the target as any bytes
//!     a hole   nothing, where the target has nothing either; where it has something, zeros
//!     and at the end of what is asked for the target grows by it
//! ```
//!
//! Does **not** own: reading and writing (see `data`), sizes (see `truncate`).
//!
//! Invariants
//! 1. The target's bytes are those of a read and a write.
//! 2. A hole of the source takes no block of the target, but where its file is not one of plain extents or
//!    blocks: bytes inside the inode, or through the journal, are written.
//! 3. A piece is seen as a whole by others, the copy is not: as with the kernel.
//!
//! Source: copy_file_range(2).

use std::ops::Range;
use std::sync::Arc;

use extant_base::Ino;
use extant_inode::LiveInode;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::{Permit, Writer};
use crate::{Fault, Refusal, Seek, Volume};

/// Bytes that are copied under the locks at a time.
const PIECE: u64 = 1 << 20;

/// From a place in one file to a place in another.
struct Copy<'a> {
    source: &'a Arc<LiveInode>,
    target: &'a Arc<LiveInode>,
    from: u64,
    to: u64,
    left: u64,
    permit: Permit,
}

impl Volume {
    /// Copies `len` bytes from one regular file, from a byte on, to another or to a place in the same file;
    /// how many bytes: fewer at the end of the source, and when there is no space for more. Holes stay holes
    /// where the target has nothing. The bytes are in memory then, as [`write_at`](Self::write_at) leaves
    /// them.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for two ranges of one file that overlap; as [`write_at`](Self::write_at) of the
    /// target and [`read_at`](Self::read_at) of the source.
    pub fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, Fault> {
        self.copy_range_by(Permit::Flags, from, to, len)
    }

    /// As [`copy_range`](Self::copy_range), for a caller that was permitted to write to the target before.
    ///
    /// # Errors
    /// As [`copy_range`](Self::copy_range).
    pub fn copy_range_by(
        &self,
        permit: Permit,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, Fault> {
        let writer = self.writer()?;
        let (done, is_sync) = self.noted(writer.copy_range(permit, from, to, len))?;
        if is_sync {
            self.fsync_range(to.0, to.1..to.1 + done, None, false)?;
        }
        Ok(done)
    }
}

impl Writer {
    /// Copies: how many bytes, and are they to be durable at once (`chattr +S`)?
    fn copy_range(
        &self,
        permit: Permit,
        (from_ino, from): (Ino, u64),
        (to_ino, to): (Ino, u64),
        len: u64,
    ) -> Result<(u64, bool), Fault> {
        let (source, target) = (self.inode_to_change(from_ino)?, self.inode_to_change(to_ino)?);
        check_regular(&source)?;
        // Nothing is read of what needs a key, also where it is a hole.
        if source.values().has_flag(flags::ENCRYPT) {
            return Err(Refusal::NeedsKey.into());
        }
        let len = len.min(source.values().size().saturating_sub(from));
        let fits = usize::try_from(len).unwrap_or(usize::MAX);
        let fits = self.check_writable(permit, &target, to, fits)? as u64;
        if from_ino == to_ino && from < to.saturating_add(len) && to < from + len {
            return Err(Refusal::Invalid.into());
        }
        let (len, mut done) = (len.min(fits), 0);
        let mut buffer = Vec::new();
        while done < len {
            let (from, to) = (from + done, to + done);
            let copy = Copy { source: &source, target: &target, from, to, left: len - done, permit };
            self.flusher.throttle();
            match self.copy_piece(&copy, &mut buffer) {
                Ok(0) => break,
                Ok(copied) => done += copied,
                // A partial copy counts; the call for the rest returns the error.
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        let is_sync = target.values().has_flag(flags::SYNC);
        Ok((done, is_sync))
    }

    /// Copies a piece: how many bytes; 0 at the end of the source.
    fn copy_piece(&self, copy: &Copy<'_>, buffer: &mut Vec<u8>) -> Result<u64, Fault> {
        let Copy { source, target, from, to, permit, .. } = *copy;
        // By number; one lock where both are the same.
        let before = (source.ino() < target.ino()).then(|| source.operation.read());
        let _target = self.lock_node(target)?;
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
                // What stands there becomes zeros.
                0 => {
                    buffer.clear();
                    let end = self.data_run(target, to..to + end.min(PIECE))?;
                    buffer.resize(end as usize, 0);
                    Ok(self.write_locked(permit, target, to, buffer)? as u64)
                }
                skipped => {
                    self.check_writable(permit, target, to, skipped as usize)?;
                    self.note_write(target)?;
                    Ok(skipped)
                }
            };
        }
        if hole == left {
            self.check_writable(permit, target, to, hole as usize)?;
            self.note_write(target)?;
            self.set_size(target, to + hole)?;
            return Ok(hole);
        }
        // What is written behind the target's end leaves a hole in front of it: only then has it grown by
        // that.
        let (from, to) = (from + hole, to + hole);
        let end = (left - hole).min(PIECE);
        let end = if may_skip { self.data_run(source, from..from + end)? } else { end };
        buffer.resize(end as usize, 0);
        let got = self.read_locked(source, from, buffer)?;
        let written = self.write_locked(permit, target, to, &buffer[..got])? as u64;
        Ok(hole + written)
    }

    /// Can a range of the file be left out?
    fn keeps_holes(&self, node: &LiveInode) -> bool {
        let values = node.values();
        // What may only be appended to has no place behind its end.
        !values.has_flag(flags::INLINE_DATA | flags::APPEND) && !values.is_journaled(self.shared())
    }

    /// Bytes from `pos` on, `len` at most, that are a hole or reserved. The caller holds the operation lock.
    fn empty_run(&self, node: &Arc<LiveInode>, pos: u64, len: u64) -> Result<u64, Fault> {
        // It comes into memory, as with a write.
        let data = self.inodes().data(node);
        match self.seek_locked(node, &data, pos..pos + len, Seek::Data) {
            Ok(data) => Ok(len.min(data - pos)),
            Err(fault) if fault.is(Refusal::PastEnd) => Ok(len),
            Err(fault) => Err(fault),
        }
    }

    /// Bytes from the start of a range on, which is before the file's end, until a hole. The caller holds the
    /// operation lock.
    fn data_run(&self, node: &Arc<LiveInode>, range: Range<u64>) -> Result<u64, Fault> {
        let from = range.start;
        Ok(self.seek_locked(node, &self.inodes().data(node), range, Seek::Hole)? - from)
    }
}

fn check_regular(node: &LiveInode) -> Result<(), Fault> {
    match node.values().kind() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Refusal::IsDirectory.into()),
        _ => Err(Refusal::WrongType.into()),
    }
}
