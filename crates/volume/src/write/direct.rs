//! Past the cache of bytes, and by pages of it: what O_DIRECT and mmap(2) need.
//!
//! ```text
//!   direct read:    what is dirty there goes to the device -> from the device
//!   direct write:   the same, and out of the cache -> blocks that are written: straight to the device
//!                                                     others, and what is no whole block: through the cache, and to the device
//!   fault, read:    a page, with zeros behind the end
//!   fault, write:   the page's blocks are promised, and the page is dirty: what is written to it later cannot fail for want of space
//! ```
//!
//! Invariants
//! 1. After a direct write the device has the bytes (its own cache may), and the cache has none older.
//! 2. Nothing here changes a size but a direct write behind the end, which goes through the cache.

use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_extent_status::{END, Status};
use extant_inode::{FileData, LiveInode};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::{Permit, Writer};
use crate::{Fault, Refusal, Volume};

/// Bytes of a page, for [`Volume::read_page`] and [`Volume::make_writable`].
pub const PAGE_BYTES: usize = 4096;

impl Volume {
    /// As [`read_at`](Self::read_at), from the device, not from memory.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read_direct(&self, ino: Ino, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        match &self.writer {
            Some(writer) => {
                self.check_going()?;
                self.noted(writer.read_direct(ino, pos, buf))
            }
            None => self.read_at(ino, pos, buf),
        }
    }

    /// As [`write_at`](Self::write_at), to the device, not to memory: fast where whole blocks are written
    /// that were written before. Durable it is after [`fdatasync`](Self::fdatasync).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_direct(&self, ino: Ino, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let writer = self.writer()?;
        writer.flusher.throttle();
        let done = self.noted(writer.write_direct(ino, pos, bytes))?;
        if writer.inode_to_change(ino)?.values().has_flag(flags::SYNC) {
            self.fsync_range(ino, pos..pos + done as u64, None, false)?;
        }
        Ok(done)
    }

    /// The page of a regular file with this number, as a mapping of it shows it: behind the end there are
    /// zeros.
    ///
    /// # Errors
    /// [`Refusal::PastEnd`] for a page that is wholly behind the end; as [`read_at`](Self::read_at).
    pub fn read_page(&self, ino: Ino, page: u64, buf: &mut [u8; PAGE_BYTES]) -> Result<(), Fault> {
        let pos = page.checked_mul(PAGE_BYTES as u64).ok_or(Refusal::PastEnd)?;
        let done = self.read_at(ino, pos, buf)?;
        if done == 0 {
            return Err(Refusal::PastEnd.into());
        }
        buf[done..].fill(0);
        Ok(())
    }

    /// Makes sure that a page of a regular file can be written to its end without running out of space: its
    /// blocks are reserved, and its bytes, which do not change, are dirty. For mapped files, at the first
    /// write to a page.
    ///
    /// # Errors
    /// [`Refusal::PastEnd`] for a page that is wholly behind the end; [`Refusal::NoSpace`]; as
    /// [`write_at`](Self::write_at).
    pub fn make_writable(&self, ino: Ino, page: u64) -> Result<(), Fault> {
        let writer = self.writer()?;
        writer.flusher.throttle();
        self.noted(writer.make_writable(ino, page))
    }
}

impl Writer {
    fn read_direct(&self, ino: Ino, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let node = self.inodes().get(ino)?;
        if node.values().kind() != FileType::Regular {
            // It says what is wrong.
            return self.read(ino, pos, buf);
        }
        let _operation = node.operation.read();
        if let Some(data) = node.data() {
            let end = pos.saturating_add(buf.len() as u64);
            // From the beginning: the size on disk follows the first that is dirty.
            self.flusher.flush_file(&node, &data, 0..end)?;
        }
        let data = node.data();
        // Or what is written back elsewhere in the file might move a part of the map meanwhile.
        let _mapping = data.as_ref().map(|data| data.mapping.read());
        Ok(self.inodes().snapshot(&node)?.read_at(self.shared(), pos, buf)?)
    }

    fn write_direct(&self, ino: Ino, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let node = self.inode_to_change(ino)?;
        let bs = self.shared().geometry.block_size.bytes();
        let is_whole = pos.is_multiple_of(bs) && (bytes.len() as u64).is_multiple_of(bs);
        let may = is_whole && !bytes.is_empty() && {
            let values = node.values();
            let is_plain = values.has_flag(flags::EXTENTS) && !values.is_journaled(self.shared());
            is_plain && values.kind() == FileType::Regular
        };
        let mut done = 0;
        if may {
            done = self.write_in_place(&node, pos, bytes)?;
        }
        if done == bytes.len() {
            return Ok(done);
        }
        let written = self.write(Permit::Flags, ino, pos + done as u64, &bytes[done..]);
        let written = match written {
            Err(_) if done > 0 => return Ok(done),
            written => written?.0,
        };
        let end = pos + (done + written) as u64;
        if let Some(data) = node.data() {
            let written_back = {
                let _operation = node.operation.read();
                self.flusher.flush_file(&node, &data, pos..end)
            };
            self.lock_and_drop_lost(&node);
            written_back?;
        }
        Ok(done + written)
    }

    /// Writes to blocks that are written, as far as they go, in front of the end of the file: how many bytes.
    fn write_in_place(&self, node: &Arc<LiveInode>, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let _operation = self.lock_node(node)?;
        let len = self.check_writable(Permit::Flags, node, pos, bytes.len())? as u64;
        let bs = self.shared().geometry.block_size;
        let data = self.inodes().data(node);
        let end = (pos + len).min(data.size() & !(bs.bytes() - 1));
        if pos >= end {
            return Ok(0);
        }
        self.note_write(node)?;
        self.drop_clean(node, &data, pos..end)?;
        let mut at = pos;
        while at < end {
            let Some(lblk) = u32::try_from(at >> bs.log2()).ok().filter(|lblk| *lblk < END) else { break };
            let entry = data.entry(self.shared(), node, Lblk(lblk), ((end - at) >> bs.log2()) as u32)?;
            let Some(start) = bs.offset_of(entry.pblk).filter(|_| entry.status == Status::Written) else {
                break;
            };
            if let Some(aborted) = self.journal.aborted() {
                return Err(aborted.clone().into());
            }
            let part_end = (u64::from(entry.end()) << bs.log2()).min(end);
            let part = &bytes[(at - pos) as usize..(part_end - pos) as usize];
            self.shared().device.write_at(start, part).map_err(Fault::Device)?;
            at = part_end;
        }
        Ok((at - pos) as usize)
    }

    /// Takes a range of whole blocks out of the cache, once what is dirty in it is on the device. The caller
    /// holds the operation lock.
    fn drop_clean(
        &self,
        node: &Arc<LiveInode>,
        data: &FileData,
        range: std::ops::Range<u64>,
    ) -> Result<(), Fault> {
        self.flusher.flush_file(node, data, range.clone())?;
        let _fills = data.pages.stop_fills();
        data.pages.discard(range);
        Ok(())
    }

    fn make_writable(&self, ino: Ino, page: u64) -> Result<(), Fault> {
        let node = self.inodes().get(ino)?;
        let pos = page.checked_mul(PAGE_BYTES as u64).ok_or(Refusal::PastEnd)?;
        let _operation = self.lock_node(&node)?;
        let size = node.values().size();
        if pos >= size {
            return Err(Refusal::PastEnd.into());
        }
        let mut bytes = vec![0; (size - pos).min(PAGE_BYTES as u64) as usize];
        self.read_locked(&node, pos, &mut bytes)?;
        let written = self.write_locked(Permit::Flags, &node, pos, &bytes)?;
        if written == bytes.len() { Ok(()) } else { Err(Refusal::NoSpace.into()) }
    }
}
