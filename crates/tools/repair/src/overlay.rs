//! The image as the repair makes it: changes are kept in memory, in front of a device that is only read.
//!
//! Invariants
//! 1. The device below is never written.
//! 2. A piece is kept only if a write changed a byte of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use extant_device::{Device, DeviceFault};

/// Bytes of a piece.
pub(crate) const PIECE: u64 = 4096;

/// Changed pieces, by number. A snapshot shares them until they change again.
pub(crate) type Pieces = HashMap<u64, Arc<Vec<u8>>>;

/// A device with changes in memory.
pub(crate) struct Overlay {
    base: Arc<dyn Device>,
    pieces: RwLock<Pieces>,
    /// Writes that changed something.
    changes: AtomicU64,
}

impl Overlay {
    pub(crate) fn new(base: Arc<dyn Device>) -> Self {
        Self { base, pieces: RwLock::default(), changes: AtomicU64::new(0) }
    }

    /// The device below.
    pub(crate) fn base(&self) -> &Arc<dyn Device> {
        &self.base
    }

    /// The number of writes so far that changed something.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The changes so far.
    pub(crate) fn snapshot(&self) -> Pieces {
        self.read().clone()
    }

    /// Goes back to a snapshot.
    pub(crate) fn restore(&self, pieces: Pieces) {
        *self.write() = pieces;
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> RwLockReadGuard<'_, Pieces> {
        self.pieces.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Pieces> {
        self.pieces.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of a piece; the last one may be short.
    fn piece_len(&self, piece: u64) -> usize {
        PIECE.min(self.base.size_bytes().saturating_sub(piece * PIECE)) as usize
    }

    /// The offsets of the pieces that differ from the device, in order.
    pub(crate) fn changed(&self) -> Result<Vec<u64>, DeviceFault> {
        let pieces = self.read();
        let mut numbers: Vec<u64> = pieces.keys().copied().collect();
        numbers.sort_unstable();
        let mut old = vec![0; PIECE as usize];
        let mut changed = Vec::with_capacity(numbers.len());
        for number in numbers {
            let Some(new) = pieces.get(&number) else { continue };
            let old = &mut old[..new.len()];
            self.base.read_at(number * PIECE, old)?;
            if old != new.as_slice() {
                changed.push(number * PIECE);
            }
        }
        Ok(changed)
    }

    /// Reads the device below, without the changes.
    pub(crate) fn read_base_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.base.read_at(offset, buf)
    }

    /// The bytes of the piece at this offset, if a write changed it.
    pub(crate) fn piece(&self, offset: u64) -> Option<Arc<Vec<u8>>> {
        self.read().get(&(offset / PIECE)).cloned()
    }
}

impl Device for Overlay {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.base.read_at(offset, buf)?;
        let pieces = self.read();
        if pieces.is_empty() || buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64; // the device has read so far
        for number in offset / PIECE..=(end - 1) / PIECE {
            let Some(piece) = pieces.get(&number) else { continue };
            let start = number * PIECE;
            let (from, to) = (start.max(offset), (start + piece.len() as u64).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, bytes.len() as u64, self.size_bytes())?;
        let end = offset + bytes.len() as u64;
        let mut pieces = self.write();
        let mut at = offset;
        while at < end {
            let number = at / PIECE;
            let start = number * PIECE;
            let to = (start + PIECE).min(end);
            let new = &bytes[(at - offset) as usize..(to - offset) as usize];
            let range = (at - start) as usize..(to - start) as usize;
            if let Some(piece) = pieces.get_mut(&number) {
                if piece[range.clone()] != *new {
                    Arc::make_mut(piece)[range].copy_from_slice(new);
                    self.changes.fetch_add(1, Ordering::Relaxed);
                }
            } else {
                let mut piece = vec![0; self.piece_len(number)];
                self.base.read_at(start, &mut piece)?;
                if piece[range.clone()] != *new {
                    piece[range].copy_from_slice(new);
                    pieces.insert(number, Arc::new(piece));
                    self.changes.fetch_add(1, Ordering::Relaxed);
                }
            }
            at = to;
        }
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        DeviceFault::check_len("zero", offset, len, self.size_bytes())?;
        let zeros = vec![0; (1 << 20).min(len as usize)];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(zeros.len() as u64);
            self.write_at(offset + done, &zeros[..part as usize])?;
            done += part;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_device::MemDevice;

    #[test]
    fn changes_are_seen_and_the_device_stays() {
        let base = Arc::new(MemDevice::new(3 * PIECE + 100));
        base.write_at(10, b"sound").unwrap();
        let overlay = Overlay::new(base.clone());
        overlay.write_at(10, b"sound").unwrap();
        assert_eq!(overlay.changes(), 0);
        overlay.write_at(PIECE - 2, b"abcd").unwrap();
        overlay.write_at(3 * PIECE + 98, b"xy").unwrap();
        let mut bytes = [0; 6];
        overlay.read_at(PIECE - 3, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0abcd\0");
        let changed = overlay.changed().unwrap();
        assert_eq!(changed, [0, PIECE, 3 * PIECE]);
        assert_eq!(overlay.piece(3 * PIECE).unwrap().len(), 100);
        let before = overlay.snapshot();
        overlay.write_at(0, b"other").unwrap();
        overlay.restore(before);
        assert_eq!(overlay.piece(0).unwrap()[..15], *b"\0\0\0\0\0\0\0\0\0\0sound");
        base.read_at(PIECE - 3, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 6]);
        assert!(overlay.write_at(3 * PIECE + 99, b"zz").is_err());
        overlay.write_at(PIECE - 2, &[0; 4]).unwrap();
        assert_eq!(overlay.changed().unwrap().len(), 1, "bytes as before are no change");
    }
}
