//! A device in memory that takes room only for what was written.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::{PoisonError, RwLock};

use crate::{Device, DeviceFault, total_len};

const CHUNK: usize = 64 << 10;

/// A sparse device in memory: 64 KiB chunks, made when first written. Readers do not wait for each other.
#[derive(Debug)]
pub struct MemDevice {
    size: u64,
    chunks: RwLock<HashMap<u64, Box<[u8]>>>,
}

impl MemDevice {
    /// A device of `size` bytes, all zero.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size, chunks: RwLock::new(HashMap::new()) }
    }

    /// Memory in use for content, in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        (self.chunks.read().unwrap_or_else(PoisonError::into_inner).len() * CHUNK) as u64
    }
}

fn write_parts(chunks: &mut HashMap<u64, Box<[u8]>>, offset: u64, bytes: &[u8]) {
    for (chunk, within, range) in parts(offset, bytes.len()) {
        let len = range.len();
        let target = chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
        target[within..within + len].copy_from_slice(&bytes[range]);
    }
}

/// Cuts `len` bytes at `offset` into parts that each lie in one chunk: (chunk, offset in it, range of the buffer).
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let part = (CHUNK - within).min(len - done);
        let range = done..done + part;
        done += part;
        Some((at / CHUNK as u64, within, range))
    })
}

impl Device for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("read", offset, buf.len(), self.size)?;
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        for (chunk, within, range) in parts(offset, buf.len()) {
            let len = range.len();
            match chunks.get(&chunk) {
                Some(bytes) => buf[range].copy_from_slice(&bytes[within..within + len]),
                None => buf[range].fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("write", offset, bytes.len(), self.size)?;
        write_parts(&mut self.chunks.write().unwrap_or_else(PoisonError::into_inner), offset, bytes);
        Ok(())
    }

    fn write_vectored_at(&self, mut offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, total_len(bufs), self.size)?;
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        for buf in bufs {
            write_parts(&mut chunks, offset, buf);
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        DeviceFault::check_range("zero", offset, len, self.size)?;
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        for (chunk, within, range) in parts(offset, len) {
            if let Some(bytes) = chunks.get_mut(&chunk) {
                bytes[within..within + range.len()].fill(0);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }

    /// No volatile cache: memory is as durable as it gets.
    fn flush_nanos(&self) -> Option<u64> {
        Some(0)
    }

    fn is_fresh(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_across_chunks_read_back_and_the_rest_is_zero() {
        let device = MemDevice::new(1 << 40);
        let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        device.write_at((1 << 39) - 1000, &data).unwrap();
        let mut back = vec![1; data.len() + 2];
        device.read_at((1 << 39) - 1001, &mut back).unwrap();
        assert_eq!(back[1..=data.len()], data);
        assert_eq!((back[0], back[data.len() + 1]), (0, 0));
        device.zero_at((1 << 39) - 1000, 500).unwrap();
        device.read_at((1 << 39) - 1000, &mut back[..501]).unwrap();
        assert!(back[..500].iter().all(|&b| b == 0));
        assert_eq!(back[500], data[500]);
        assert!(device.resident_bytes() < 1 << 20);
    }

    #[test]
    fn ranges_past_the_end_are_refused() {
        let device = MemDevice::new(4096);
        assert!(matches!(device.write_at(4090, &[0; 7]), Err(DeviceFault::OutOfRange { size: 4096, .. })));
        assert!(device.read_at(u64::MAX, &mut [0]).is_err());
    }
}
