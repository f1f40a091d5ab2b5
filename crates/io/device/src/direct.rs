//! Direct I/O (O_DIRECT): transfers that bypass the system's page cache, for any alignment.
//!
//! ```text
//!   request      |....xxxx|xxxxxxxx|xxxxxxxx|xx......|        units of 512 or 4096 bytes
//!   aligned      ----------directly from the buffer-------     offset, length, memory are aligned
//!   otherwise    [bounce buffer: whole units; the first and last are read before they are written]
//! ```
//!
//! Invariant: a partial write of a unit reads and writes the unit under one lock, so that two threads that
//! write to different bytes of it do not overwrite each other's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of bytes in the bounce buffer.
const BOUNCE: u64 = 1 << 20;
/// Units to try, in this order: the larger one works with every device.
const UNITS: [u64; 2] = [4096, 512];

/// The state of direct I/O on a file.
#[derive(Debug)]
pub(crate) struct Direct {
    unit: u64,
    /// Held during partial writes of units.
    partial: Mutex<()>,
}

/// Memory that begins at a multiple of the unit.
struct Aligned {
    memory: Vec<u8>,
    begin: usize,
}

impl Aligned {
    fn new(len: usize, unit: u64) -> Self {
        let memory = vec![0; len + unit as usize];
        let begin = memory.as_ptr().align_offset(unit as usize).min(unit as usize);
        Self { memory, begin }
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + len]
    }
}

impl Direct {
    /// Sets up direct I/O for a file of `size` bytes that was opened with O_DIRECT.
    ///
    /// # Errors
    /// Reads fail with every unit that divides the file's size.
    pub(crate) fn of(file: &File, size: u64) -> io::Result<Self> {
        let mut refused = io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("its size of {size} bytes is no multiple of 512, as transfers past the page cache need"),
        );
        for unit in UNITS.into_iter().filter(|unit| size.is_multiple_of(*unit)) {
            let mut first = Aligned::new(unit as usize, unit);
            match file.read_at(first.bytes(unit as usize), 0) {
                Ok(_) => return Ok(Self { unit, partial: Mutex::default() }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Whether this transfer is aligned.
    pub(crate) fn fits(&self, offset: u64, buf: &[u8]) -> bool {
        offset.is_multiple_of(self.unit)
            && (buf.len() as u64).is_multiple_of(self.unit)
            && (buf.as_ptr() as u64).is_multiple_of(self.unit)
    }

    /// The units that a range of bytes touches: first byte, and the byte after the last.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        (offset / self.unit * self.unit, (offset + len).next_multiple_of(self.unit))
    }

    /// Reads a range inside the file.
    pub(crate) fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.fits(offset, buf) {
            return file.read_exact_at(buf, offset);
        }
        let (mut at, mut rest) = (offset, buf);
        let mut bounce = None;
        while !rest.is_empty() {
            let len = (rest.len() as u64).min(BOUNCE - at % self.unit);
            let (from, to) = self.around(at, len);
            let bounce = bounce.get_or_insert_with(|| Aligned::new((to - from) as usize, self.unit));
            let units = bounce.bytes((to - from) as usize);
            file.read_exact_at(units, from)?;
            let (part, after) = rest.split_at_mut(len as usize);
            part.copy_from_slice(&units[(at - from) as usize..][..len as usize]);
            (at, rest) = (at + len, after);
        }
        Ok(())
    }

    /// A guard for changes of a range by other means. If the range includes part of a unit, no such unit is
    /// written back while the guard is held.
    pub(crate) fn lock_parts(&self, offset: u64, len: u64) -> Option<MutexGuard<'_, ()>> {
        let is_whole = offset.is_multiple_of(self.unit) && len.is_multiple_of(self.unit);
        (!is_whole).then(|| self.partial.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes to a range inside the file.
    pub(crate) fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.fits(offset, bytes) {
            return file.write_all_at(bytes, offset);
        }
        let (mut at, mut rest) = (offset, bytes);
        let mut bounce = None;
        while !rest.is_empty() {
            let len = (rest.len() as u64).min(BOUNCE - at % self.unit);
            let (from, to) = self.around(at, len);
            let end = at + len;
            let bounce = bounce.get_or_insert_with(|| Aligned::new((to - from) as usize, self.unit));
            let units = bounce.bytes((to - from) as usize);
            let (part, after) = rest.split_at(len as usize);
            let is_partial = at != from || end != to;
            let locked = is_partial.then(|| self.partial.lock().unwrap_or_else(PoisonError::into_inner));
            let unit = self.unit as usize;
            if at != from {
                file.read_exact_at(&mut units[..unit], from)?;
            }
            if end != to && (at == from || to - from > self.unit) {
                let last = units.len() - unit;
                file.read_exact_at(&mut units[last..], to - self.unit)?;
            }
            units[(at - from) as usize..][..len as usize].copy_from_slice(part);
            file.write_all_at(units, from)?;
            drop(locked);
            (at, rest) = (end, after);
        }
        Ok(())
    }
}
