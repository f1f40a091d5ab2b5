//! A part of a disk as a device with its own cache: several devices that lose power together.

use std::sync::{Arc, Mutex, PoisonError};

use extant_device::{Device, DeviceFault};

use crate::SimDisk;

/// A byte range of a [`SimDisk`] that is flushed separately: a flush makes the writes to this part durable,
/// and no others. Events and cuts are those of the whole disk. There such a flush appears as durable writes
/// of what it found in the cache.
#[derive(Debug)]
pub struct Part {
    disk: Arc<SimDisk>,
    start: u64,
    len: u64,
    /// Events below this number that concern this part are on the medium.
    flushed: Mutex<u64>,
}

impl Part {
    /// The `len` bytes of a disk from `start` on; both are multiples of the sector size.
    ///
    /// # Errors
    /// The range ends after the disk.
    pub fn new(disk: Arc<SimDisk>, start: u64, len: u64) -> Result<Self, DeviceFault> {
        DeviceFault::check_len("read", start, len, disk.size_bytes())?;
        Ok(Self { disk, start, len, flushed: Mutex::default() })
    }

    fn place(&self, what: &'static str, offset: u64, len: u64) -> Result<u64, DeviceFault> {
        DeviceFault::check_len(what, offset, len, self.len)?;
        Ok(self.start + offset)
    }
}

impl Device for Part {
    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.disk.read_at(self.place("read", offset, buf.len() as u64)?, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.disk.write_at(self.place("write", offset, bytes.len() as u64)?, bytes)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.disk.write_durable_at(self.place("write", offset, bytes.len() as u64)?, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.disk.zero_at(self.place("zero", offset, len)?, len)
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.disk.discard_at(self.place("discard", offset, len)?, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        *flushed = self.disk.flush_part(self.start..self.start + self.len, *flushed);
        Ok(())
    }

    fn flush_nanos(&self) -> Option<u64> {
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Image;

    #[test]
    fn a_flush_is_of_one_part() {
        let disk = Arc::new(SimDisk::recording(Image::new(8192)));
        let [first, second] = [0, 4096].map(|start| Part::new(Arc::clone(&disk), start, 4096).unwrap());
        first.write_at(0, b"one").unwrap();
        second.write_at(0, b"two").unwrap();
        first.flush().unwrap();
        second.write_at(8, b"more").unwrap();
        first.write_at(512, b"late").unwrap();
        let lost = disk.cut_all_lost();
        let read = |at| {
            let mut bytes = [0; 4];
            lost.read_at(at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!([read(0), read(512), read(4096), read(4104)], [*b"one\0", [0; 4], [0; 4], [0; 4]]);
        second.flush().unwrap();
        first.flush().unwrap();
        let lost = disk.cut_all_lost();
        let mut bytes = [0; 12];
        lost.read_at(4096, &mut bytes).unwrap();
        assert_eq!(&bytes, b"two\0\0\0\0\0more");
        assert!(first.write_at(4090, b"too long").is_err());
    }
}
