//! Reading and writing the data of regular files.
//!
//! ```text
//!   write:  is there room? -> operation lock -> permitted? -> times -> reserve blocks -> size -> copy
//!   read:   operation lock, shared -> memory; what is not there from the device
//!   inline or journaled data:  in one handle, at once
//! ```
//!
//! Invariants
//! 1. A refused write has changed no data. If space suffices only for a part of a write, the part before is
//!    written.
//! 2. Space is reserved before data is copied, so that writeback cannot run out of space.
//! 3. If the file ends inside a block, the rest of that block is zeroed in memory and marked dirty before the
//!    size grows: on disk it may hold leftover data.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_alloc::Room;
use extant_base::{Ino, Lblk};
use extant_extent_status::{END, Status};
use extant_inode::{DataPath, FileData, LiveInode};
use extant_journal::Bug;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::announce::Announced;
use super::views::DataEdits;
use super::{NAME_CREDITS, SETGID};
use crate::ops::errors::Operation;
use crate::ops::seek_by;
use crate::{Fault, Files, Refusal, Seek};

const SETUID: u16 = 0o4000;
const GROUP_EXEC: u16 = 0o0010;

/// How write access to an append-only or immutable file is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAccess {
    /// The current flags: an immutable file is not written, an append-only file is not overwritten.
    Flags,
    /// The file was opened for writing [when its flags permitted it](crate::Files::check_open). The
    /// append-only flag is only checked on opening.
    Opened,
    /// Not at all: a cache of the caller accepted the data when that was permitted, and now writes it back.
    Writeback,
}

impl WriteAccess {
    /// Returns whether a file with these flags may be written, at its end or elsewhere.
    fn allows(self, file_flags: u32, is_at_end: bool) -> bool {
        let immutable = file_flags & flags::IMMUTABLE != 0;
        match self {
            Self::Flags => !immutable && (file_flags & flags::APPEND == 0 || is_at_end),
            Self::Opened => !immutable,
            Self::Writeback => true,
        }
    }
}

impl Files<'_> {
    /// Checks that a regular file may be opened. `append`: every write goes to its end (O_APPEND).
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] for writing to an immutable file, or elsewhere than to the end of an
    /// append-only file; no such inode.
    pub fn check_open(self, ino: Ino, write: bool, append: bool) -> Result<(), Fault> {
        match &self.volume.writer {
            Some(writer) if write => {
                let file_flags = writer.inode_to_change(ino)?.values().fields.flags;
                let may = WriteAccess::Flags.allows(file_flags, append);
                if may { Ok(()) } else { Err(Refusal::NotPermitted.into()) }
            }
            _ => Ok(()),
        }
    }

    /// Writes `bytes` into a regular file at byte `pos`, which may be past its end. Returns the number of
    /// bytes written, which is less than requested only if space ran out. The data is in memory then;
    /// [`fsync`](Self::fsync) makes it durable.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`], [`Refusal::TooLarge`], [`Refusal::NotPermitted`]; [`Refusal::WrongType`] or
    /// [`Refusal::IsDirectory`] if it is not a regular file; the map is corrupt; the device failed.
    pub fn write_at(self, ino: Ino, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        self.write_at_by(WriteAccess::Flags, ino, pos, bytes)
    }

    /// As [`write_at`](Self::write_at), for a caller that was permitted to write before.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_at_by(self, access: WriteAccess, ino: Ino, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let writer = self.volume.writer()?;
        writer.flusher.throttle();
        let (done, is_sync) =
            self.volume.noted(Operation::Write, writer.data().write(access, ino, pos, bytes))?;
        if is_sync {
            self.fsync_range(ino, pos..pos + done as u64, None, false)?;
        }
        Ok(done)
    }

    /// Reads a regular file by inode number, from byte `pos`. Returns fewer bytes than requested only at its
    /// end. On a volume that is open for reading, [`read`](Self::read) of an [`InodeRef`](crate::InodeRef) is
    /// faster.
    ///
    /// # Errors
    /// As [`read`](Self::read); no such inode.
    pub fn read_at(self, ino: Ino, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        match &self.volume.writer {
            Some(writer) => {
                self.volume.check_going()?;
                self.volume.noted(Operation::Read, writer.data().read(ino, pos, buf))
            }
            None => self.read(&*self.volume.inode(ino)?, pos, buf),
        }
    }

    /// Compares the cached state of a file with its map on disk. For tests, while no other operation runs.
    ///
    /// # Errors
    /// The mismatch, as text.
    pub fn check_file(self, ino: Ino) -> Result<(), String> {
        let Some(writer) = &self.volume.writer else { return Ok(()) };
        let node = writer.inodes().get_unlinked(ino).map_err(|fault| fault.to_string())?;
        node.data().map_or(Ok(()), |data| data.check(writer.shared(), &node))
    }
}

impl DataEdits<'_> {
    /// Writes. Returns the number of bytes, and whether they must be durable at once (`chattr +S`).
    pub(super) fn write(
        self,
        access: WriteAccess,
        ino: Ino,
        pos: u64,
        bytes: &[u8],
    ) -> Result<(usize, bool), Fault> {
        let node = self.writer.inode_to_change(ino)?;
        let _operation = self.writer.names().lock_node(&node)?;
        let done = self.write_locked(access, &node, pos, bytes)?;
        let is_sync = node.values().has_flag(flags::SYNC);
        Ok((done, is_sync))
    }

    /// Writes. The caller holds the operation lock exclusively.
    pub(super) fn write_locked(
        self,
        access: WriteAccess,
        node: &Arc<LiveInode>,
        pos: u64,
        bytes: &[u8],
    ) -> Result<usize, Fault> {
        let len = self.check_writable(access, node, pos, bytes.len())?;
        if len == 0 {
            return Ok(0);
        }
        let bytes = &bytes[..len];
        self.note_write(node, access == WriteAccess::Writeback)?;
        let (is_inside, is_rewritten) = {
            let values = node.values();
            (values.has_flag(flags::INLINE_DATA), values.is_rewritten)
        };
        if (is_inside || self.writer.sizes().may_go_inside(node))
            && self.writer.sizes().write_inside(node, pos, bytes)?
        {
            return Ok(len);
        }
        if is_inside {
            self.writer.sizes().move_data_out(node)?;
        }
        if node.values().is_journaled(self.writer.shared()) {
            return self.write_journaled(node, pos, bytes);
        }
        let data = self.writer.inodes().data(node);
        let done = self.write_cached(node, &data, pos, bytes)?;
        if is_rewritten {
            self.writer.inodes().files().note_rewritten();
        }
        match self.writer.keeper.alloc.room() {
            Room::Plenty => {}
            Room::Short => self.writer.inodes().files().pages.wake_flusher(),
            // The next fsync reports a failure.
            Room::Scarce => drop(self.writer.flusher.flush_file(node, &data, pos..pos + done as u64)),
        }
        Ok(done)
    }

    /// Checks a write. Returns how many of its bytes fit below the maximum size.
    pub(super) fn check_writable(
        self,
        access: WriteAccess,
        node: &LiveInode,
        pos: u64,
        len: usize,
    ) -> Result<usize, Fault> {
        let values = node.values();
        match values.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Refusal::IsDirectory.into()),
            _ => return Err(Refusal::WrongType.into()),
        }
        if values.has_flag(flags::ENCRYPT) {
            return Err(Refusal::NeedsKey.into());
        }
        let is_allowed = access.allows(values.fields.flags, pos == values.size());
        if values.has_flag(flags::VERITY) || !is_allowed {
            return Err(Refusal::NotPermitted.into());
        }
        let max = self
            .writer
            .sizes()
            .size_max(values.has_flag(flags::EXTENTS) || self.becomes_extents(values.fields.flags));
        if len > 0 && pos >= max {
            return Err(Refusal::TooLarge.into());
        }
        Ok(len.min(usize::try_from(max.saturating_sub(pos)).unwrap_or(usize::MAX)))
    }

    /// Returns whether the file's map will use extents once the file needs a map.
    fn becomes_extents(self, file_flags: u32) -> bool {
        file_flags & flags::INLINE_DATA != 0
            && self.writer.shared().sb.features.has_incompat(extant_ondisk::Features::EXTENTS)
    }

    /// Updates the times, and clears the set-ID bits that a write clears. `is_cached`: a cache above may keep
    /// the times.
    pub(super) fn note_write(self, node: &Arc<LiveInode>, is_cached: bool) -> Result<(), Fault> {
        let now = self.writer.now();
        let keeps_times =
            self.writer.keeps_times || is_cached && self.writer.is_cache_timed.load(Ordering::Relaxed);
        let times = |fields: &extant_ondisk::inode::Inode| {
            if keeps_times { (fields.mtime, fields.ctime) } else { (now, now) }
        };
        let mode_after = |mode: u16| if self.writer.keeps_set_id { mode } else { unprivileged(mode) };
        {
            let values = node.values();
            let fields = &values.fields;
            if (fields.mtime, fields.ctime) == times(fields) && mode_after(fields.mode) == fields.mode {
                return Ok(());
            }
        }
        self.writer.run(1, |change| {
            let mut values = change.live.edit(node, extant_buffer::Edit::transaction(change.edit));
            let fields = &mut values.fields;
            (fields.mtime, fields.ctime) = times(fields);
            fields.mode = mode_after(fields.mode);
            drop(values);
            self.writer.keeper.fast.touched(change, node, false);
            Ok(())
        })
    }

    /// Writes into memory; block by block if the volume's data path requires it.
    fn write_cached(
        self,
        node: &Arc<LiveInode>,
        data: &FileData,
        pos: u64,
        bytes: &[u8],
    ) -> Result<usize, Fault> {
        if data.path() == DataPath::Iomap {
            return self.write_range(node, data, pos, bytes);
        }
        let block = self.writer.shared().geometry.block_size.bytes();
        let mut done = 0;
        while done < bytes.len() {
            let at = pos + done as u64;
            let len = ((block - (at & (block - 1))) as usize).min(bytes.len() - done);
            match self.write_range(node, data, at, &bytes[done..done + len]) {
                Ok(written) => done += written,
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn write_range(
        self,
        node: &Arc<LiveInode>,
        data: &FileData,
        pos: u64,
        bytes: &[u8],
    ) -> Result<usize, Fault> {
        let bs = self.writer.shared().geometry.block_size;
        let old = data.size();
        let now_ms = self.writer.flusher.now_ms();
        let stored = data.stored(self.writer.shared(), node);
        self.writer.inodes().files().note_dirty(node, data);
        self.zero_to(node, data, pos)?;
        let first = (pos >> bs.log2()) as u32;
        let last = ((pos + bytes.len() as u64 - 1) >> bs.log2()) as u32;
        let mut promised: Vec<(u32, u32)> = Vec::new();
        let mut at = u64::from(first);
        let mut refused = None;
        while at <= u64::from(last) {
            let len = (u64::from(last) - at + 1) as u32;
            match self.promise(node, data, at as u32, len) {
                Ok((len, is_new)) => {
                    if is_new {
                        promised.push((at as u32, len));
                    }
                    at += u64::from(len);
                }
                Err(fault) => {
                    refused = Some(fault);
                    break;
                }
            }
        }
        let room = (at << bs.log2()).saturating_sub(pos).min(bytes.len() as u64) as usize;
        if let (0, Some(fault)) = (room, refused) {
            // The zeros past the end are not part of the file.
            data.set_size(old);
            return Err(fault);
        }
        // Set before the copy, so that concurrent writeback treats the data as part of the file.
        let end = pos + room as u64;
        if end > old {
            data.set_size(end);
        }
        let copied = data.pages.write(pos, &bytes[..room], now_ms, &stored);
        let done = *copied.as_ref().unwrap_or(&0);
        if done < room {
            self.take_back(node, data, (old, pos + done as u64), &promised)?;
        }
        self.writer.inodes().files().note_dirty(node, data);
        match copied {
            Ok(done) => Ok(done),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Reserves space for blocks. If there is none but a commit would free some, waits for the commit.
    fn promise(self, node: &LiveInode, data: &FileData, lblk: u32, len: u32) -> Result<(u32, bool), Fault> {
        let alloc = &self.writer.keeper.alloc;
        let mut want = len;
        loop {
            match data.delay((self.writer.shared(), alloc), node, Lblk(lblk), want) {
                Err(extant_inode::Fault::NoSpace) if alloc.pending_blocks() > 0 => {
                    self.writer.journal.commit_all_for(extant_journal::CommitReason::NoSpace)?
                }
                // A part of it may fit.
                Err(extant_inode::Fault::NoSpace) if want > 1 => want /= 2,
                done => return Ok(done?),
            }
        }
    }

    /// A write ended early, at `end.1`: releases the reservations past that and restores the size from
    /// before.
    fn take_back(
        self,
        node: &Arc<LiveInode>,
        data: &FileData,
        (old, end): (u64, u64),
        promised: &[(u32, u32)],
    ) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size;
        // Checked before `mapping` is locked, because folios come first in the lock order. No other thread
        // dirties the file here.
        let is_held = |from: u64, to: u64| data.pages.is_held(from << bs.log2()..to << bs.log2());
        let edge = end >> bs.log2();
        let kept = if is_held(edge, edge + 1) { edge + 1 } else { edge };
        let unused = promised.iter().filter_map(|&(lblk, len)| {
            let (from, to) = (u64::from(lblk).max(kept), u64::from(lblk) + u64::from(len));
            (from < to && !is_held(from, to)).then(|| (Lblk(from as u32), (to - from) as u32))
        });
        let unused: Vec<_> = unused.collect();
        {
            let _mapping = data.mapping.write();
            for (from, len) in unused {
                data.forget(self.writer.shared(), &self.writer.keeper.alloc, from, len);
            }
        }
        let size = old.max(end);
        data.set_size(size);
        if node.values().fields.size <= size {
            return Ok(());
        }
        self.writer.run(1, |change| {
            change.live.edit(node, extant_buffer::Edit::transaction(change.edit)).fields.size = size;
            self.writer.keeper.fast.touched(change, node, true);
            Ok(())
        })
    }

    /// Zeros from the end of the file to `pos`, but only within the block in which the file ends.
    pub(super) fn zero_to(self, node: &Arc<LiveInode>, data: &FileData, pos: u64) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size;
        let old = data.size();
        let end = pos.min(old.next_multiple_of(bs.bytes()));
        if old >= end || self.writer.flusher.sabotage.has(Bug::KeepTails) {
            return Ok(());
        }
        let stored = data.stored(self.writer.shared(), node);
        // Memory past the end is zeros already. They must get to the device, too.
        data.pages.zero_edge(old..end, self.writer.flusher.now_ms(), &stored)?;
        Ok(())
    }

    /// Writes through the journal, for files with journaled data.
    fn write_journaled(self, node: &Arc<LiveInode>, pos: u64, bytes: &[u8]) -> Result<usize, Fault> {
        let bs = self.writer.shared().geometry.block_size;
        let mut done = 0;
        while done < bytes.len() {
            let at = pos + done as u64;
            let within = (at & (bs.bytes() - 1)) as usize;
            let len = (bs.len() - within).min(bytes.len() - done);
            let part = &bytes[done..done + len];
            let lblk = Lblk((at >> bs.log2()) as u32);
            let written =
                self.writer.run(NAME_CREDITS, |change| self.write_logged(change, node, (lblk, within), part));
            match written {
                Ok(()) => done += len,
                // The written part counts. A write of the rest reports the failure.
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes part of a block, and the size, through the journal.
    fn write_logged(
        self,
        change: &extant_inode::Change<'_>,
        node: &Arc<LiveInode>,
        (lblk, within): (Lblk, usize),
        part: &[u8],
    ) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let bs = shared.geometry.block_size;
        let end = (u64::from(lblk.0) << bs.log2()) + (within + part.len()) as u64;
        let old = node.values().fields.size;
        if end > old {
            self.writer.sizes().zero_behind(change, node, old)?;
        }
        let map = node.values().map();
        let seal = extant_buffer::Seal {
            owner: extant_buffer::Owner { kind: extant_buffer::Kind::Other, ino: node.ino().0 },
            seed: None,
        };
        let put = &mut |block: &mut [u8]| block[within..within + part.len()].copy_from_slice(part);
        match map.find(&shared.buffers, lblk, 1)?.state {
            extant_mapping::MapState::Written(block) => change.edit.change(block, seal, put)?,
            extant_mapping::MapState::Unwritten(block) => {
                change.edit.fresh(block, seal, put);
                change.set_state(node, u64::from(lblk.0)..u64::from(lblk.0) + 1, false)?;
            }
            extant_mapping::MapState::Hole => {
                let want = extant_inode::NewBlockOptions { unwritten: false, promised: false };
                let mapped = change.map_hole(node, lblk, 1, want)?;
                if let extant_mapping::MapState::Written(block) = mapped.state {
                    change.edit.fresh(block, seal, put);
                }
            }
        }
        if end > super::truncate::SMALL_MAX && end > old {
            self.writer.keeper.announce(change, Announced::LargeFiles)?;
        }
        // Edited even if nothing in the inode changes: fsync asks the inode for the last transaction with its
        // data.
        let mut values = change.live.edit(node, extant_buffer::Edit::transaction(change.edit));
        values.fields.size = old.max(end);
        values.changed_in = extant_buffer::Edit::transaction(change.edit);
        Ok(())
    }

    /// The file after all its dirty data was written back.
    pub(crate) fn written_back(self, ino: Ino) -> Result<Arc<extant_inode::Inode>, Fault> {
        let node = self.writer.inodes().get(ino)?;
        let _operation = node.operation.read();
        if let Some(data) = node.data() {
            self.writer.flusher.flush_file(&node, &data, 0..u64::MAX)?;
        }
        Ok(self.writer.inodes().snapshot(&node)?)
    }

    /// As [`Files::seek`](crate::Files::seek), by the cached data and the cached map; `None` if the file has
    /// no data state in memory. Dirty data counts as data even in a hole.
    pub(crate) fn seek(self, ino: Ino, offset: u64, what: Seek) -> Result<Option<u64>, Fault> {
        let node = self.writer.inodes().get(ino)?;
        let _operation = node.operation.read();
        node.data().map(|data| self.seek_locked(&node, &data, offset..u64::MAX, what)).transpose()
    }

    /// As [`seek`](Self::seek), in a range: the file ends with it. The caller holds the operation lock.
    pub(super) fn seek_locked(
        self,
        node: &Arc<LiveInode>,
        data: &FileData,
        range: std::ops::Range<u64>,
        what: Seek,
    ) -> Result<u64, Fault> {
        let size = data.size().min(range.end);
        let log = self.writer.shared().geometry.block_size.log2();
        seek_by(size, range.start, what, |at| {
            // Checked first: a run in flight stays dirty until after its blocks are cached as written, so no
            // data is missed.
            let (is_held, end) = data.pages.held_run(at..size);
            if is_held {
                return Ok(Some((true, end)));
            }
            let Some(lblk) = u32::try_from(at >> log).ok().filter(|lblk| *lblk < END) else {
                return Ok(None);
            };
            let entry = data.entry(self.writer.shared(), node, Lblk(lblk), u32::MAX)?;
            let is_data = matches!(entry.status, Status::Written | Status::Delayed);
            Ok(Some((is_data, end.min(u64::from(entry.end()) << log))))
        })
    }

    /// Reads, through the page cache if the file has cached data.
    pub(crate) fn read(self, ino: Ino, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let node = self.writer.inodes().get(ino)?;
        let _operation = node.operation.read();
        self.read_locked(&node, pos, buf)
    }

    /// Reads. The caller holds the operation lock.
    pub(super) fn read_locked(self, node: &Arc<LiveInode>, pos: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let data = {
            let values = node.values();
            match values.kind() {
                FileType::Regular => {}
                FileType::Directory => return Err(Refusal::IsDirectory.into()),
                _ => return Err(Refusal::WrongType.into()),
            }
            let data = values.data();
            let kept_elsewhere = flags::INLINE_DATA | flags::ENCRYPT;
            // The file is one hole: reserved blocks would have cached data.
            let is_nothing_here = data.as_ref().is_none_or(|data| data.pages.is_empty());
            if is_nothing_here && !values.has_flag(kept_elsewhere) && values.maps_nothing() {
                let left = values.size().saturating_sub(pos);
                let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
                drop(values);
                buf[..len].fill(0);
                return Ok(len);
            }
            data
        };
        let Some(data) = data else {
            return Ok(self.writer.inodes().snapshot(node)?.read_at(self.writer.shared(), pos, buf)?);
        };
        let left = data.size().saturating_sub(pos);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        if len == 0 {
            return Ok(0);
        }
        let stored = data.stored(self.writer.shared(), node);
        let window = data.pages.read(pos, &mut buf[..len], &stored)?;
        if let Some(window) = window {
            // Best effort: a later read of the data reports a failure.
            let _ = data.pages.fill(window, &stored);
        }
        Ok(len)
    }
}

/// A mode after a write by a user without the right to keep set-ID bits: without set-user-ID, and without
/// set-group-ID if the group may execute the file.
#[must_use]
pub fn unprivileged(mode: u16) -> u16 {
    let kept = mode & !SETUID;
    if kept & GROUP_EXEC != 0 { kept & !SETGID } else { kept }
}
