//! The undo file: the bytes that a repair overwrites, written and synced before the first of them changes.
//!
//! ```text
//! 0   magic "EXTUNDO1"      8  bytes of the image      16 UUID of the file system
//! 32  records              40  bytes of all records    48 CRC-32C of all records
//! 52  state                56  CRC-32C of bytes 0..56
//! 64  records: offset (8), length (4), CRC-32C of the new bytes (4), the old bytes
//! ```
//!
//! Invariants
//! 1. The image is changed only while the state is *begun*. So a file in this state belongs to a repair that
//!    was cut, and undoing it restores the image whatever part of the repair was written.
//! 2. A finished repair is undone only if the image still has the bytes that the repair wrote.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use extant_base::checksum::crc32c;
use extant_device::{Device, DeviceFault};
use extant_ondisk::{Superblock, superblock};

use crate::overlay::Changed;

const MAGIC: &[u8; 8] = b"EXTUNDO1";
const HEADER: usize = 64;
const RECORD_HEADER: usize = 16;

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
         is that of the image; move it away, or undo with --force"
    )]
    OtherFileSystem(PathBuf),
    /// The image was changed after the repair.
    #[error(
        "the image changed after the repair, at byte {offset}: undoing would mix old and new; \
         --force undoes all the same"
    )]
    Changed {
        /// The first byte of the piece that changed.
        offset: u64,
    },
    /// The image has its old bytes already.
    #[error("this repair was undone already")]
    Already,
    /// The image cannot be read or written.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

/// One overwritten range.
struct Record {
    offset: u64,
    new_crc: u32,
    old: Vec<u8>,
}

/// An open undo file.
pub struct UndoFile {
    path: PathBuf,
    file: File,
    state: UndoState,
    image_bytes: u64,
    uuid: [u8; 16],
    records: Vec<Record>,
}

impl UndoFile {
    /// Opens and verifies an undo file.
    ///
    /// # Errors
    /// It cannot be read, or is no undo file.
    pub fn open(path: &Path) -> Result<Self, UndoFault> {
        let failed = |source| UndoFault::File { path: path.to_owned(), source };
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let damaged = || UndoFault::Damaged(path.to_owned());
        let header: &[u8; HEADER] = bytes.first_chunk().ok_or_else(damaged)?;
        let u32_at =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if &header[..8] != MAGIC || u32_at(56) != crc32c(!0, &header[..56]) {
            return Err(damaged());
        }
        let state = match u32_at(52) {
            1 => UndoState::Begun,
            2 => UndoState::Finished,
            3 => UndoState::Undone,
            _ => return Err(damaged()),
        };
        let body = &bytes[HEADER..];
        if body.len() as u64 != u64_at(40) || u32_at(48) != crc32c(!0, body) {
            return Err(damaged());
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&header[16..32]);
        let (image_bytes, count) = (u64_at(8), u64_at(32));
        let mut records = Vec::new();
        let mut rest = body;
        while let Some((head, tail)) = rest.split_first_chunk::<RECORD_HEADER>() {
            let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let len = word(8) as usize;
            let old = tail.get(..len).ok_or_else(damaged)?.to_vec();
            let offset = u64::from(word(0)) | u64::from(word(4)) << 32;
            records.push(Record { offset, new_crc: word(12), old });
            rest = &tail[len..];
        }
        if records.len() as u64 != count {
            return Err(damaged());
        }
        Ok(Self { path: path.to_owned(), file, state, image_bytes, uuid, records })
    }

    /// Writes the old bytes of a repair, and syncs them. The state is *begun* from now on.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub(crate) fn create(path: &Path, device: &dyn Device, changed: &[Changed]) -> Result<Self, UndoFault> {
        let failed = |source| UndoFault::File { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        let uuid = uuid_of(device);
        let records: Vec<Record> = changed
            .iter()
            .map(|piece| Record {
                offset: piece.offset,
                new_crc: crc32c(!0, &piece.new),
                old: piece.old.to_vec(),
            })
            .collect();
        let (mut crc, mut len) = (!0, 0u64);
        file.seek(SeekFrom::Start(HEADER as u64)).map_err(failed)?;
        let mut out = io::BufWriter::with_capacity(1 << 20, &file);
        for record in &records {
            let mut head = [0; RECORD_HEADER];
            head[..8].copy_from_slice(&record.offset.to_le_bytes());
            head[8..12].copy_from_slice(&(record.old.len() as u32).to_le_bytes());
            head[12..].copy_from_slice(&record.new_crc.to_le_bytes());
            for bytes in [&head[..], &record.old] {
                out.write_all(bytes).map_err(failed)?;
                crc = crc32c(crc, bytes);
                len += bytes.len() as u64;
            }
        }
        out.flush().map_err(failed)?;
        drop(out);
        file.sync_all().map_err(failed)?;
        let mut undo = Self {
            path: path.to_owned(),
            file,
            state: UndoState::Begun,
            image_bytes: device.size_bytes(),
            uuid,
            records,
        };
        undo.put_header(UndoState::Begun, len, crc)?;
        if let Some(dir) = path.parent() {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        Ok(undo)
    }

    fn put_header(&mut self, state: UndoState, len: u64, crc: u32) -> Result<(), UndoFault> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&self.image_bytes.to_le_bytes());
        header[16..32].copy_from_slice(&self.uuid);
        header[32..40].copy_from_slice(&(self.records.len() as u64).to_le_bytes());
        header[40..48].copy_from_slice(&len.to_le_bytes());
        header[48..52].copy_from_slice(&crc.to_le_bytes());
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

    /// Changes the state in the file, and syncs it.
    pub(crate) fn set_state(&mut self, state: UndoState) -> Result<(), UndoFault> {
        let failed = |source| UndoFault::File { path: self.path.clone(), source };
        let mut header = [0; HEADER];
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.file.read_exact(&mut header).map_err(failed)?;
        let mut len = [0; 8];
        len.copy_from_slice(&header[40..48]);
        let crc = u32::from_le_bytes([header[48], header[49], header[50], header[51]]);
        self.put_header(state, u64::from_le_bytes(len), crc)
    }

    /// How far the repair is.
    #[must_use]
    pub fn state(&self) -> UndoState {
        self.state
    }

    /// Bytes that the repair overwrites.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.records.iter().map(|record| record.old.len() as u64).sum()
    }

    /// Whether the image has the file system that was repaired: its UUID before the repair, or the superblock
    /// that the repair wrote.
    fn is_of(&self, device: &dyn Device) -> Result<bool, DeviceFault> {
        if uuid_of(device) == self.uuid {
            return Ok(true);
        }
        let has_superblock = |record: &&Record| {
            let end = record.offset + record.old.len() as u64;
            (record.offset..end).contains(&superblock::OFFSET)
        };
        let Some(record) = self.records.iter().find(has_superblock) else { return Ok(false) };
        let mut now = vec![0; record.old.len()];
        device.read_at(record.offset, &mut now)?;
        Ok(crc32c(!0, &now) == record.new_crc)
    }

    /// Writes the old bytes back. With `force` also over bytes that changed after the repair.
    ///
    /// # Errors
    /// The file is of another image, the image changed after the repair, or it cannot be written.
    pub fn undo(&mut self, device: &dyn Device, force: bool) -> Result<(), UndoFault> {
        if device.size_bytes() != self.image_bytes {
            return Err(UndoFault::OtherImage { undo: self.image_bytes, image: device.size_bytes() });
        }
        if !force && !self.is_of(device)? {
            return Err(UndoFault::OtherFileSystem(self.path.clone()));
        }
        if self.state == UndoState::Undone && !force {
            return Err(UndoFault::Already);
        }
        if self.state == UndoState::Finished && !force {
            for record in &self.records {
                let mut now = vec![0; record.old.len()];
                device.read_at(record.offset, &mut now)?;
                if now != record.old && crc32c(!0, &now) != record.new_crc {
                    return Err(UndoFault::Changed { offset: record.offset });
                }
            }
        }
        for record in &self.records {
            device.write_at(record.offset, &record.old)?;
        }
        device.flush()?;
        self.set_state(UndoState::Undone)
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

    fn image(uuid: u8) -> MemDevice {
        let device = MemDevice::new(64 << 10);
        let sb = Superblock { uuid: [uuid; 16], ..Superblock::default() };
        device.write_at(superblock::OFFSET, &sb.sealed()).unwrap();
        device
    }

    /// A repair was cut, and another image of the same size has its name now: it keeps its bytes.
    #[test]
    fn another_file_system_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let changed = Changed { offset: 8192, old: vec![1; 4096].into(), new: vec![2; 4096].into() };
        let mut undo = UndoFile::create(&path, &image(7), &[changed]).unwrap();
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
        let piece = |of: &MemDevice| {
            let mut bytes = vec![0; 4096];
            of.read_at(0, &mut bytes).unwrap();
            bytes.into_boxed_slice()
        };
        let changed = Changed { offset: 0, old: piece(&damaged), new: piece(&repaired) };
        let mut undo = UndoFile::create(&dir.path().join("undo"), &damaged, &[changed]).unwrap();
        undo.undo(&repaired, false).unwrap();
        assert_eq!(piece(&repaired), piece(&damaged));
    }
}
