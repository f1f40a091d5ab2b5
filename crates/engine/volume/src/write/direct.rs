//! I/O that bypasses the page cache, for O_DIRECT.
//!
//! ```text
//!   direct read:    dirty data in the range goes to the device -> read from the device
//!   direct write:   the same, and the range leaves the cache -> written blocks: straight to the device
//!                                     other blocks and partial blocks: through the cache, then to the device
//! ```
//!
//! Invariants
//! 1. After a direct write the device has the data (perhaps in its own cache), and the page cache has no
//!    older data.
//! 2. Only a direct write past the end of the file changes the size; it goes through the page cache.

use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_extent_status::{END, Status};
use extant_inode::{FileData, LiveInode};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::WriteAccess;
use super::views::DataEdits;
use crate::ops::errors::Operation;
use crate::{Fault, Files};

impl Files<'_> {
    /// As [`read_at`](Self::read_at), but from the device instead of memory.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read_direct(self, ino: Ino, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        match &self.volume.writer {
            Some(writer) => {
                self.volume.check_going()?;
                self.volume.noted(Operation::Read, writer.data().read_direct(ino, pos, buf))
            }
            None => self.read_at(ino, pos, buf),
        }
    }

    /// As [`write_at`](Self::write_at), but to the device instead of memory. Fast for whole blocks that are
    /// already written. The data is durable after [`fdatasync`](Self::fdatasync).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_direct(self, ino: Ino, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let writer = self.volume.writer()?;
        writer.flusher.throttle();
        let done = self.volume.noted(Operation::Write, writer.data().write_direct(ino, pos, bytes))?;
        if writer.inode_to_change(ino)?.values().has_flag(flags::SYNC) {
            self.fsync_range(ino, pos..pos + done as u64, None, false)?;
        }
        Ok(done)
    }
}

impl DataEdits<'_> {
    fn read_direct(self, ino: Ino, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let node = self.writer.inodes().get(ino)?;
        if node.values().kind() != FileType::Regular {
            // It returns the right error.
            return self.read(ino, pos, buf);
        }
        let _operation = node.operation.read();
        if let Some(data) = node.data() {
            let end = pos.saturating_add(buf.len() as u64);
            // From the beginning of the file, because the size on disk follows the first dirty block.
            self.writer.flusher.flush_file(&node, &data, 0..end)?;
        }
        let data = node.data();
        // Locked against writeback elsewhere in the file, which may move a part of the map.
        let _mapping = data.as_ref().map(|data| data.mapping.read());
        Ok(self.writer.inodes().snapshot(&node)?.read_at(self.writer.shared(), pos, buf)?)
    }

    fn write_direct(self, ino: Ino, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let node = self.writer.inode_to_change(ino)?;
        let bs = self.writer.shared().geometry.block_size.bytes();
        let is_whole = pos.is_multiple_of(bs) && (bytes.len() as u64).is_multiple_of(bs);
        let may = is_whole && !bytes.is_empty() && {
            let values = node.values();
            let is_plain = values.has_flag(flags::EXTENTS) && !values.is_journaled(self.writer.shared());
            is_plain && values.kind() == FileType::Regular
        };
        let mut done = 0;
        if may {
            done = self.write_in_place(&node, pos, bytes)?;
        }
        if done == bytes.len() {
            return Ok(done);
        }
        let written = self.write(WriteAccess::Flags, ino, pos + done as u64, &bytes[done..]);
        let written = match written {
            Err(_) if done > 0 => return Ok(done),
            written => written?.0,
        };
        let end = pos + (done + written) as u64;
        if let Some(data) = node.data() {
            let written_back = {
                let _operation = node.operation.read();
                self.writer.flusher.flush_file(&node, &data, pos..end)
            };
            self.lock_and_drop_lost(&node);
            written_back?;
        }
        Ok(done + written)
    }

    /// Overwrites written blocks from `pos` up to the first block that is not written or the end of the file.
    /// Returns the number of bytes.
    fn write_in_place(self, node: &Arc<LiveInode>, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let _operation = self.writer.names().lock_node(node)?;
        let len = self.check_writable(WriteAccess::Flags, node, pos, bytes.len())? as u64;
        let bs = self.writer.shared().geometry.block_size;
        let data = self.writer.inodes().data(node);
        let end = (pos + len).min(data.size() & !(bs.bytes() - 1));
        if pos >= end {
            return Ok(0);
        }
        self.note_write(node, false)?;
        self.drop_clean(node, &data, pos..end)?;
        let mut at = pos;
        while at < end {
            let Some(lblk) = u32::try_from(at >> bs.log2()).ok().filter(|lblk| *lblk < END) else { break };
            let entry =
                data.entry(self.writer.shared(), node, Lblk(lblk), ((end - at) >> bs.log2()) as u32)?;
            let Some(start) = bs.offset_of(entry.pblk).filter(|_| entry.status == Status::Written) else {
                break;
            };
            if let Some(aborted) = self.writer.journal.aborted() {
                return Err(aborted.clone().into());
            }
            let part_end = (u64::from(entry.end()) << bs.log2()).min(end);
            let part = &bytes[(at - pos) as usize..(part_end - pos) as usize];
            self.writer.shared().device.write_at(start, part).map_err(Fault::Device)?;
            at = part_end;
        }
        Ok((at - pos) as usize)
    }

    /// Writes back what is dirty in a range of whole blocks and drops the range from the cache. The caller
    /// holds the operation lock.
    fn drop_clean(
        self,
        node: &Arc<LiveInode>,
        data: &FileData,
        range: std::ops::Range<u64>,
    ) -> Result<(), Fault> {
        self.writer.flusher.flush_file(node, data, range.clone())?;
        let _fills = data.pages.stop_fills();
        data.pages.discard(range);
        Ok(())
    }
}
