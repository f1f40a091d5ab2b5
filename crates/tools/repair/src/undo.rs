//! The undo file: the bytes that a repair overwrites, written and synced before the first of them changes.
//!
//! ```text
//! 0   magic "EXTUNDO1"      8  bytes of the image      16 UUID of the file system
//! 32  records              40  bytes of all records    48 CRC-32C of all records
//! 52  state                56  CRC-32C of bytes 0..56
//! 64  records, one for each changed piece of 4 KiB:
//!     offset (8), bytes of the ranges (4), CRC-32C of the whole new piece (4)
//!     ranges: start in the piece (2), length (2), the old bytes
//! ```
//!
//! Invariants
//! 1. The image is changed only while the state is *begun*, except for the block of multiple-mount
//!    protection. So a file in this state belongs to a repair or an undo that was cut, and undoing it
//!    restores the image whatever part was written.
//! 2. The block of multiple-mount protection is recorded as a whole: the claim that a repair holds while it
//!    writes overwrites all of it.
//! 3. A finished repair is undone only if the image still has the bytes that the repair wrote. The piece with
//!    the block of the protection is not compared: each claim changes it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::checksum::crc32c;
use extant_base::le::{put_u32, u16_at, u32_at};
use extant_device::{Device, DeviceFault};
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_ondisk::{Superblock, superblock};
use extant_volume::{MountGuard, OpenFault};

use crate::guard::{self, Guarded, around};
use crate::{Repair, overlay};

const MAGIC: &[u8; 8] = b"EXTUNDO1";
const HEADER: usize = 64;
const RECORD_HEADER: usize = 16;
/// Bytes per read and write of the file.
const BUFFER: usize = 1 << 20;

/// How far a repair and its undo file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoState {
    /// The repair was begun; if it does not run any more, it was cut.
    Begun,
    /// The repair is complete.
    Finished,
    /// The image has its old bytes again.
    Undone,
}

/// Why an undo file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UndoFault {
    /// The file cannot be read or written.
    #[error("the undo file {path}: {source}")]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is no undo file, or it is damaged.
    #[error("{0} is no undo file, or it is damaged: its checksums do not match")]
    Damaged(PathBuf),
    /// It belongs to another image.
    #[error("the undo file is of an image of {undo} bytes, this one has {image}")]
    OtherImage {
        /// Bytes of its image.
        undo: u64,
        /// Bytes of this image.
        image: u64,
    },
    /// It belongs to another file system of the same size.
    #[error(
        "the undo file {0} is of another file system: neither its UUID nor its superblock \
         is that of the image"
    )]
    OtherFileSystem(PathBuf),
    /// The image was changed after the repair.
    #[error("the image changed after the repair, at byte {offset}: undoing would mix old and new")]
    Changed {
        /// The first byte of the piece that changed.
        offset: u64,
    },
    /// Another machine uses the file system.
    #[error("the file system is in use: its multiple-mount protection block changes")]
    InUse,
    /// Another machine has opened the file system while it was written.
    #[error("{0}; a part of the old bytes is written, and another undo writes the rest")]
    Lost(String),
    /// The image has its old bytes already.
    #[error("this repair was undone already")]
    Already,
    /// The image cannot be read or written.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl UndoFault {
    /// Whether [`UndoFile::undo`] with `force` undoes all the same.
    #[must_use]
    pub fn can_be_forced(&self) -> bool {
        matches!(self, Self::OtherFileSystem(_) | Self::Changed { .. })
    }
}

/// Pieces are compared, and recorded, in units of this many bytes. Ranges that are closer become one.
const UNIT: usize = 16;
const RANGE_HEADER: usize = 4;

/// Gets the offset and the new bytes of a piece.
type EachPiece<'e> = &'e mut dyn FnMut(u64, &[u8]) -> Result<(), UndoFault>;

/// What a repair writes. Test code implements it, too.
pub(crate) trait NewBytes {
    /// Calls `each` for each piece, in order.
    fn each_piece(&self, each: EachPiece<'_>) -> Result<(), UndoFault>;

    /// Ranges of the image that are recorded even if the new bytes are equal.
    fn whole(&self) -> &[Range<u64>] {
        &[]
    }
}

/// A repair as it is written: with a claim on the file system.
pub(crate) struct Written<'r> {
    pub(crate) repair: &'r Repair,
    /// The blocks that a claim overwrites: that of the image, and that of the repaired image, which an undo
    /// claims.
    pub(crate) claimed: Vec<Range<u64>>,
}

impl NewBytes for Written<'_> {
    fn each_piece(&self, each: EachPiece<'_>) -> Result<(), UndoFault> {
        let overlay = &self.repair.overlay;
        let claimed = self.claimed.iter().map(|range| range.start / overlay::PIECE * overlay::PIECE);
        let offsets: BTreeSet<u64> = self.repair.changed.iter().copied().chain(claimed).collect();
        for offset in offsets {
            if let Some(piece) = overlay.piece(offset) {
                each(offset, &piece)?;
            } else {
                let len = overlay::PIECE.min(overlay.size_bytes().saturating_sub(offset));
                let mut piece = vec![0; len as usize];
                overlay.read_base_at(offset, &mut piece)?;
                each(offset, &piece)?;
            }
        }
        Ok(())
    }

    fn whole(&self) -> &[Range<u64>] {
        &self.claimed
    }
}

/// The ranges of a piece that differ or are in `whole`.
fn differing(old: &[u8], new: &[u8], whole: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let units = old.chunks(UNIT).zip(new.chunks(UNIT)).enumerate();
    for (number, (old_unit, new_unit)) in units {
        let (start, end) = (number * UNIT, (number * UNIT + UNIT).min(old.len()));
        if old_unit == new_unit && whole.iter().all(|whole| end <= whole.start || whole.end <= start) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if start - last.end <= UNIT => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// An open undo file.
pub struct UndoFile {
    path: PathBuf,
    file: File,
    state: UndoState,
    image_bytes: u64,
    uuid: [u8; 16],
    /// Number of records.
    records: u64,
    /// Bytes of all records, and their checksum.
    body: (u64, u32),
    /// Bytes that the repair overwrites.
    old_bytes: u64,
}

impl UndoFile {
    /// Opens and verifies an undo file.
    ///
    /// # Errors
    /// It cannot be read, or is no undo file.
    pub fn open(path: &Path) -> Result<Self, UndoFault> {
        let failed = |source| UndoFault::File { path: path.to_owned(), source };
        let damaged = || UndoFault::Damaged(path.to_owned());
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut header = [0; HEADER];
        match file.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(damaged()),
            read => read.map_err(failed)?,
        }
        let u64_at = |at: usize| u64::from(u32_at(&header, at)) | u64::from(u32_at(&header, at + 4)) << 32;
        if &header[..8] != MAGIC || u32_at(&header, 56) != crc32c(!0, &header[..56]) {
            return Err(damaged());
        }
        let state = match u32_at(&header, 52) {
            1 => UndoState::Begun,
            2 => UndoState::Finished,
            3 => UndoState::Undone,
            _ => return Err(damaged()),
        };
        let body = (u64_at(40), u32_at(&header, 48));
        if len - HEADER as u64 != body.0 {
            return Err(damaged());
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&header[16..32]);
        let (image_bytes, records) = (u64_at(8), u64_at(32));
        let mut undo =
            Self { path: path.to_owned(), file, state, image_bytes, uuid, records, body, old_bytes: 0 };
        let (mut old_bytes, mut count, mut crc) = (0, 0, !0);
        undo.each(|record| {
            old_bytes += record.ranges().map(|(_, old)| old.len() as u64).sum::<u64>();
            count += 1;
            crc = crc32c(crc32c(crc, record.head), record.body);
            Ok(true)
        })?;
        if count != records || crc != body.1 {
            return Err(damaged());
        }
        undo.old_bytes = old_bytes;
        Ok(undo)
    }

    /// Reads the records in order, until `each` returns false.
    fn each(&mut self, mut each: impl FnMut(Record<'_>) -> Result<bool, UndoFault>) -> Result<(), UndoFault> {
        let (path, image_bytes) = (&self.path, self.image_bytes);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => UndoFault::Damaged(path.clone()),
            _ => UndoFault::File { path: path.clone(), source },
        };
        self.file.seek(SeekFrom::Start(HEADER as u64)).map_err(failed)?;
        let mut input = BufReader::with_capacity(BUFFER, &self.file);
        let (mut done, mut body) = (0, Vec::new());
        while done < self.body.0 {
            let mut head = [0; RECORD_HEADER];
            input.read_exact(&mut head).map_err(failed)?;
            let (offset, len) =
                (u64::from(u32_at(&head, 0)) | u64::from(u32_at(&head, 4)) << 32, u32_at(&head, 8));
            let piece_len = image_bytes.saturating_sub(offset).min(overlay::PIECE) as usize;
            if u64::from(len) > (self.body.0 - done).min(2 * overlay::PIECE) || piece_len == 0 {
                return Err(UndoFault::Damaged(path.clone()));
            }
            body.resize(len as usize, 0);
            input.read_exact(&mut body).map_err(failed)?;
            done += RECORD_HEADER as u64 + u64::from(len);
            let record = Record { head: &head, offset, piece_len, new_crc: u32_at(&head, 12), body: &body };
            if record.ranges().any(|(start, old)| start + old.len() > piece_len) {
                return Err(UndoFault::Damaged(path.clone()));
            }
            if !each(record)? {
                break;
            }
        }
        Ok(())
    }

    /// Writes the old bytes of a repair, and syncs them. The state is *begun* from now on.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub(crate) fn create(path: &Path, device: &dyn Device, repair: &dyn NewBytes) -> Result<Self, UndoFault> {
        let failed = |source| UndoFault::File { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        // A file that stays would be taken for that of a cut repair, and undone.
        Self::fill(file, path, device, repair).inspect_err(|_| drop(std::fs::remove_file(path)))
    }

    /// Removes the file: the image has not changed.
    pub(crate) fn remove(self) {
        drop(std::fs::remove_file(self.path));
    }

    fn fill(
        mut file: File,
        path: &Path,
        device: &dyn Device,
        repair: &dyn NewBytes,
    ) -> Result<Self, UndoFault> {
        let failed = |source| UndoFault::File { path: path.to_owned(), source };
        file.seek(SeekFrom::Start(HEADER as u64)).map_err(failed)?;
        let mut out = BufWriter::with_capacity(BUFFER, &file);
        let (mut body, mut records, mut old_bytes) = ((0, !0), 0, 0);
        let (mut piece, mut ranges) = (Vec::new(), Vec::new());
        repair.each_piece(&mut |offset, new| {
            piece.resize(new.len(), 0);
            device.read_at(offset, &mut piece)?;
            ranges.clear();
            let in_piece = |at: u64| at.saturating_sub(offset).min(new.len() as u64) as usize;
            let whole = repair.whole().iter().map(|range| in_piece(range.start)..in_piece(range.end));
            for range in differing(&piece, new, &whole.collect::<Vec<_>>()) {
                ranges.extend_from_slice(&(range.start as u16).to_le_bytes());
                ranges.extend_from_slice(&(range.len() as u16).to_le_bytes());
                ranges.extend_from_slice(&piece[range.clone()]);
                old_bytes += range.len() as u64;
            }
            let mut head = [0; RECORD_HEADER];
            head[..8].copy_from_slice(&offset.to_le_bytes());
            put_u32(&mut head, 8, ranges.len() as u32);
            put_u32(&mut head, 12, crc32c(!0, new));
            for bytes in [&head[..], &ranges] {
                out.write_all(bytes).map_err(failed)?;
                body = (body.0 + bytes.len() as u64, crc32c(body.1, bytes));
            }
            records += 1;
            Ok(())
        })?;
        out.flush().map_err(failed)?;
        drop(out);
        file.sync_all().map_err(failed)?;
        let mut undo = Self {
            path: path.to_owned(),
            file,
            state: UndoState::Begun,
            image_bytes: device.size_bytes(),
            uuid: uuid_of(device),
            records,
            body,
            old_bytes,
        };
        undo.set_state(UndoState::Begun)?;
        if let Some(dir) = path.parent() {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        Ok(undo)
    }

    /// Writes the header with this state, and syncs it.
    pub(crate) fn set_state(&mut self, state: UndoState) -> Result<(), UndoFault> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&self.image_bytes.to_le_bytes());
        header[16..32].copy_from_slice(&self.uuid);
        header[32..40].copy_from_slice(&self.records.to_le_bytes());
        header[40..48].copy_from_slice(&self.body.0.to_le_bytes());
        header[48..52].copy_from_slice(&self.body.1.to_le_bytes());
        let code: u32 = match state {
            UndoState::Begun => 1,
            UndoState::Finished => 2,
            UndoState::Undone => 3,
        };
        header[52..56].copy_from_slice(&code.to_le_bytes());
        let own = crc32c(!0, &header[..56]);
        header[56..60].copy_from_slice(&own.to_le_bytes());
        let failed = |source| UndoFault::File { path: self.path.clone(), source };
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.file.write_all(&header).map_err(failed)?;
        self.file.sync_all().map_err(failed)?;
        self.state = state;
        Ok(())
    }

    /// How far the repair is.
    #[must_use]
    pub fn state(&self) -> UndoState {
        self.state
    }

    /// Bytes that the repair overwrites.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.old_bytes
    }

    /// Whether the image has the file system that was repaired: its UUID before the repair, or the superblock
    /// with another UUID that the repair wrote.
    fn is_of(&mut self, device: &dyn Device) -> Result<bool, UndoFault> {
        if uuid_of(device) == self.uuid {
            return Ok(true);
        }
        let (mut is_written, mut now) = (false, Vec::new());
        self.each(|record| {
            let holds =
                (record.offset..record.offset + record.piece_len as u64).contains(&superblock::OFFSET);
            if holds {
                record.read(device, &mut now)?;
                is_written = crc32c(!0, &now) == record.new_crc;
            }
            Ok(!holds)
        })?;
        Ok(is_written)
    }

    /// Writes the old bytes back. With `force` also over bytes that changed after the repair.
    ///
    /// # Errors
    /// Another machine uses the file system: also with `force`. The file is of another image, the image
    /// changed after the repair, or it cannot be written.
    pub fn undo(&mut self, device: &Arc<dyn Device>, force: bool) -> Result<(), UndoFault> {
        if device.size_bytes() != self.image_bytes {
            return Err(UndoFault::OtherImage { undo: self.image_bytes, image: device.size_bytes() });
        }
        if !force && !self.is_of(&**device)? {
            return Err(UndoFault::OtherFileSystem(self.path.clone()));
        }
        if self.state == UndoState::Undone && !force {
            return Err(UndoFault::Already);
        }
        if self.state == UndoState::Finished && !force {
            let mut now = Vec::new();
            let claimed = guard::mmp_range(&**device)?.unwrap_or_default();
            self.each(|record| {
                if record.offset < claimed.end && claimed.start < record.offset + record.piece_len as u64 {
                    return Ok(true);
                }
                record.read(&**device, &mut now)?;
                let is_old = record.ranges().all(|(start, old)| now[start..start + old.len()] == *old);
                match is_old || crc32c(!0, &now) == record.new_crc {
                    true => Ok(true),
                    false => Err(UndoFault::Changed { offset: record.offset }),
                }
            })?;
        }
        // While this waits for another machine, nothing is undone yet.
        let guarded = self.claim(device)?;
        // A piece may now be cut between two of its ranges: the next undo does not compare them.
        self.set_state(UndoState::Begun)?;
        self.each(|record| {
            for (start, old) in record.ranges() {
                if let Some(why) = guarded.as_ref().and_then(Guarded::lost) {
                    return Err(UndoFault::Lost(why));
                }
                let start = record.offset + start as u64;
                let end = start + old.len() as u64;
                let kept = guarded.as_ref().map_or(end..end, Guarded::range);
                for part in around(&(start..end), &kept) {
                    let old = &old[(part.start - start) as usize..(part.end - start) as usize];
                    device.write_at(part.start, old)?;
                }
            }
            Ok(true)
        })?;
        device.flush()?;
        if let Some(guarded) = guarded {
            guarded.release().map_err(UndoFault::Lost)?;
        }
        self.set_state(UndoState::Undone)
    }

    /// Claims the file system. `None`: it has no multiple-mount protection now, or its block is damaged: an
    /// undo restores it all the same.
    ///
    /// The block is released with its old bytes, even if these are those of a machine that died: the state
    /// before the repair had them, and the next claim waits. If the file has only a part of them, the block
    /// is released clean: earlier versions recorded only what the repair changed.
    fn claim(&mut self, device: &Arc<dyn Device>) -> Result<Option<Guarded>, UndoFault> {
        let Some(range) = guard::mmp_range(&**device)? else { return Ok(None) };
        let mut after = [0; Mmp::LEN];
        device.read_at(range.start, &mut after)?;
        let is_recorded = match self.recorded(range, &mut after)? {
            // The repair did not change it.
            0 => guard::is_clean(&after),
            recorded => recorded == Mmp::LEN,
        };
        // If the repair has replaced the block of an e2fsck, the image may still have it.
        let is_over_check =
            is_recorded && Mmp::decode(&after).is_ok_and(|mmp| mmp.state() == MmpState::Checking);
        match MountGuard::claim_to_repair(device, &**device, is_over_check, &|_| {}) {
            Ok(claim) => Ok(claim.map(|claim| Guarded::new(claim, is_recorded.then_some(after)))),
            Err(OpenFault::InUse(_)) => Err(UndoFault::InUse),
            Err(OpenFault::Device(fault)) => Err(fault.into()),
            Err(_) if guard::is_in_use(&**device) => Err(UndoFault::InUse),
            Err(_) => Ok(None),
        }
    }

    /// Copies the old bytes of a range of the image that the file has. Returns their number.
    fn recorded(&mut self, range: Range<u64>, bytes: &mut [u8]) -> Result<usize, UndoFault> {
        let mut count = 0;
        self.each(|record| {
            for (start, old) in record.ranges() {
                let start = record.offset + start as u64;
                let (from, to) = (start.max(range.start), (start + old.len() as u64).min(range.end));
                if from < to {
                    count += (to - from) as usize;
                    bytes[(from - range.start) as usize..(to - range.start) as usize]
                        .copy_from_slice(&old[(from - start) as usize..(to - start) as usize]);
                }
            }
            Ok(true)
        })?;
        Ok(count)
    }
}

/// A changed piece.
struct Record<'r> {
    head: &'r [u8],
    offset: u64,
    piece_len: usize,
    /// Checksum of the whole new piece.
    new_crc: u32,
    body: &'r [u8],
}

impl Record<'_> {
    /// The changed ranges: start in the piece, and the old bytes. Ends where the record is malformed.
    fn ranges(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut rest = self.body;
        std::iter::from_fn(move || {
            let (head, tail) = rest.split_at_checked(RANGE_HEADER)?;
            let (start, len) = (usize::from(u16_at(head, 0)), usize::from(u16_at(head, 2)));
            let old = tail.get(..len)?;
            rest = &tail[len..];
            Some((start, old))
        })
    }

    /// Reads the piece as the device has it now.
    fn read(&self, device: &dyn Device, into: &mut Vec<u8>) -> Result<(), DeviceFault> {
        into.resize(self.piece_len, 0);
        device.read_at(self.offset, into)
    }
}

/// The UUID in the primary superblock; zeros if there is none.
fn uuid_of(device: &dyn Device) -> [u8; 16] {
    let mut sb = [0; superblock::SIZE];
    let read = device.read_at(superblock::OFFSET, &mut sb).ok();
    read.and_then(|()| Superblock::decode(&sb).ok()).map_or([0; 16], |sb| sb.uuid)
}

#[cfg(test)]
mod tests {
    use extant_device::MemDevice;

    use super::*;

    /// One piece.
    struct Piece(u64, Vec<u8>);

    impl NewBytes for Piece {
        fn each_piece(&self, each: EachPiece<'_>) -> Result<(), UndoFault> {
            each(self.0, &self.1)
        }
    }

    #[test]
    fn only_what_differs_is_recorded() {
        let old = vec![0; 4096];
        let mut new = old.clone();
        (new[5], new[40], new[4095]) = (1, 1, 1);
        assert_eq!(differing(&old, &new, &[]), [0..48, 4080..4096]);
        assert!(differing(&old, &old, &[]).is_empty());
        assert_eq!(differing(&old[..10], &new[..10], &[]), std::slice::from_ref(&(0..10)));
        assert_eq!(
            differing(&old, &new, std::slice::from_ref(&(1024..2048))),
            [0..48, 1024..2048, 4080..4096]
        );
    }

    fn image(uuid: u8) -> Arc<dyn Device> {
        let device = MemDevice::new(64 << 10);
        let sb = Superblock { uuid: [uuid; 16], ..Superblock::default() };
        device.write_at(superblock::OFFSET, &sb.sealed()).unwrap();
        Arc::new(device)
    }

    /// A repair was cut, and another image of the same size has its name now: it keeps its bytes.
    #[test]
    fn another_file_system_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let before = image(7);
        before.write_at(8192, &[1; 4096]).unwrap();
        let mut undo = UndoFile::create(&path, &*before, &Piece(8192, vec![2; 4096])).unwrap();
        let other = image(8);
        assert!(matches!(undo.undo(&other, false), Err(UndoFault::OtherFileSystem(_))));
        let mut bytes = [9; 4096];
        other.read_at(8192, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
        let same = image(7);
        undo.undo(&same, false).unwrap();
        same.read_at(8192, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 4096]);
    }

    /// The repair replaces a superblock with a damaged UUID: its own superblock identifies the image, too.
    #[test]
    fn the_superblock_of_the_repair_identifies_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let (damaged, repaired) = (image(7), image(8));
        let piece = |of: &Arc<dyn Device>| {
            let mut bytes = vec![0; 4096];
            of.read_at(0, &mut bytes).unwrap();
            bytes
        };
        let mut undo =
            UndoFile::create(&dir.path().join("undo"), &*damaged, &Piece(0, piece(&repaired))).unwrap();
        undo.undo(&repaired, false).unwrap();
        assert_eq!(piece(&repaired), piece(&damaged));
    }
}
