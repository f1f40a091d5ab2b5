//! A sparse device in memory: it allocates only what was written.
//!
//! ```text
//! chunk 7:  [ zero | held | held | held | zero | ... ]      256 pages of 4 KiB
//!                            '--> bytes; if the writer shares them, copied before a change
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use extant_base::salted::Salted;

use crate::{Device, DeviceFault, SharedBytes, SharedParts, total_len};

const PAGE: usize = 4 << 10;
/// Few, so that a sparse device takes little memory; many, so that the table of chunks stays in the CPU
/// caches.
const PAGES: u64 = 256;
/// Number of runs whose pages are prefetched together.
const AHEAD: usize = 16;

/// A sparse device in memory: pages of 4 KiB, allocated on the first write. Readers do not wait for each
/// other. Pages written [shared](Device::write_shared_at) are kept without a copy.
#[derive(Debug)]
pub struct MemDevice {
    size: u64,
    chunks: RwLock<Chunks>,
}

#[derive(Debug)]
struct Chunks(HashMap<u64, Box<[Page; PAGES as usize]>, Salted>);

/// A page; `None` if it was never written.
type Page = Option<SharedBytes>;

/// Copies `bytes` to offset `within` of a page. A page that is overwritten completely is neither zeroed nor
/// copied first.
fn put(page: &mut Page, within: usize, bytes: &[u8]) {
    match page {
        Some(held) if bytes.len() < PAGE || held.holders() == 1 => {
            held.make_mut()[within..within + bytes.len()].copy_from_slice(bytes);
        }
        _ if bytes.len() == PAGE => *page = Some(SharedBytes::copy_of(bytes)),
        _ => {
            let mut held = SharedBytes::zeroed(PAGE);
            held.make_mut()[within..within + bytes.len()].copy_from_slice(bytes);
            *page = Some(held);
        }
    }
}

impl Chunks {
    fn page(&self, page: u64) -> Option<&[u8]> {
        self.0.get(&(page / PAGES)).and_then(|chunk| chunk[(page % PAGES) as usize].as_deref())
    }

    /// Prefetches what the replacement of a page reads: its address, or with `holders` the reference count of
    /// its contents.
    fn prefetch_page(&self, page: u64, holders: bool) {
        let place = self.0.get(&(page / PAGES)).map(|chunk| &chunk[(page % PAGES) as usize]);
        match place {
            Some(Some(held)) if holders => held.prefetch_count(),
            Some(place) if !holders => crate::prefetch_start(place),
            _ => {}
        }
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        let chunk = self.0.entry(page / PAGES).or_insert_with(|| Box::new([const { None }; PAGES as usize]));
        &mut chunk[(page % PAGES) as usize]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, range) in parts(offset, bytes.len()) {
            put(self.page_mut(page), within, &bytes[range]);
        }
    }
}

impl MemDevice {
    /// Creates a device of `size` bytes, all zero.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let salt = Salted::new(RandomState::new().hash_one(size));
        Self { size, chunks: RwLock::new(Chunks(HashMap::with_hasher(salt))) }
    }

    /// Memory in use for contents, in bytes, including shared pages.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        let pages = chunks.0.values().flat_map(|chunk| chunk.iter()).filter(|page| page.is_some());
        (pages.count() * PAGE) as u64
    }

    fn write(&self) -> RwLockWriteGuard<'_, Chunks> {
        self.chunks.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits `len` bytes at `offset` into parts within one page each: (page, offset in it, range of the buffer).
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let part = (PAGE - within).min(len - done);
        let range = done..done + part;
        done += part;
        Some((at / PAGE as u64, within, range))
    })
}

impl Device for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("read", offset, buf.len(), self.size)?;
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        for (page, within, range) in parts(offset, buf.len()) {
            let len = range.len();
            match chunks.page(page) {
                Some(bytes) => buf[range].copy_from_slice(&bytes[within..within + len]),
                None => buf[range].fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("write", offset, bytes.len(), self.size)?;
        self.write().write(offset, bytes);
        Ok(())
    }

    fn write_vectored_at(&self, mut offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, total_len(bufs), self.size)?;
        let mut chunks = self.write();
        for buf in bufs {
            chunks.write(offset, buf);
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn write_shared_at(&self, parts: &mut SharedParts) -> Result<bool, DeviceFault> {
        for (offset, len) in parts.lens() {
            DeviceFault::check_len("write", offset, len, self.size)?;
        }
        let (runs, blocks) = parts.split();
        let mut all_are_pages = true;
        let mut chunks = self.write();
        let mut rest = &mut blocks[..];
        for (at, (mut offset, n)) in runs.iter().copied().enumerate() {
            // Runs are short and scattered, and the replaced pages are in no CPU cache. Prefetching overlaps
            // the cache misses.
            if at % AHEAD == 0 {
                let next = || runs[at..].iter().take(AHEAD).map(|(offset, _)| offset / PAGE as u64);
                next().for_each(|page| chunks.prefetch_page(page, false));
                next().for_each(|page| chunks.prefetch_page(page, true));
            }
            let (run, left) = rest.split_at_mut(n);
            rest = left;
            let are_pages = offset.is_multiple_of(PAGE as u64) && run.iter().all(|block| block.len() == PAGE);
            all_are_pages &= are_pages;
            for block in run {
                let len = block.len() as u64;
                if are_pages {
                    // The replaced page moves to `parts`, and is freed after the lock is released.
                    let page = chunks.page_mut(offset / PAGE as u64);
                    *block = page.replace(std::mem::take(block)).unwrap_or_default();
                } else {
                    chunks.write(offset, block);
                }
                offset += len;
            }
        }
        drop(chunks);
        parts.clear();
        Ok(all_are_pages)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        DeviceFault::check_range("zero", offset, len, self.size)?;
        let mut chunks = self.write();
        for (page, within, range) in parts(offset, len) {
            let Some(chunk) = chunks.0.get_mut(&(page / PAGES)) else { continue };
            let page = &mut chunk[(page % PAGES) as usize];
            match page {
                _ if range.len() == PAGE => *page = None,
                None => {}
                Some(_) => put(page, within, &[0; PAGE][..range.len()]),
            }
        }
        Ok(())
    }

    /// Frees the pages that are completely in the range.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        DeviceFault::check_len("discard", offset, len, self.size)?;
        let (first, end) = (offset.div_ceil(PAGE as u64), (offset + len) / PAGE as u64);
        let mut chunks = self.write();
        let mut at = first;
        while at < end {
            let next = ((at / PAGES + 1) * PAGES).min(end);
            if next - at == PAGES {
                chunks.0.remove(&(at / PAGES));
            } else if let Some(chunk) = chunks.0.get_mut(&(at / PAGES)) {
                let from = (at % PAGES) as usize;
                chunk[from..from + (next - at) as usize].fill_with(Page::default);
            }
            at = next;
        }
        Ok(true)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }

    /// Memory has no volatile cache.
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

    fn parts(all: &[(u64, &[SharedBytes])]) -> SharedParts {
        let mut parts = SharedParts::default();
        for (offset, blocks) in all {
            parts.begin(*offset);
            blocks.iter().for_each(|block| parts.push(block.clone()));
        }
        parts
    }

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
    fn shared_pages_are_kept_and_copied_when_the_device_or_the_writer_changes_them() {
        let device = MemDevice::new(1 << 20);
        let mut mine: Vec<SharedBytes> = (1..4u8).map(|byte| vec![byte; PAGE].into()).collect();
        assert!(device.write_shared_at(&mut parts(&[(15 * 4096, &mine)])).unwrap());
        assert_eq!((mine[0].holders(), device.resident_bytes()), (2, 3 * 4096));
        // A change by the writer does not affect the device, nor the other way round.
        mine[0].make_mut()[0] = 9;
        device.write_at(17 * 4096 + 5, &[7]).unwrap();
        device.zero_at(16 * 4096 + 4000, 96).unwrap();
        assert_eq!((mine[1][4095], mine[2][5]), (2, 3));
        let mut back = vec![0; 3 * PAGE];
        device.read_at(15 * 4096, &mut back).unwrap();
        let at = |page: usize, within: usize| back[page * PAGE + within];
        assert_eq!((at(0, 0), at(1, 3999), at(1, 4000), at(2, 4), at(2, 5), at(2, 6)), (1, 2, 0, 3, 7, 3));
        device.zero_at(15 * 4096, 3 * 4096).unwrap();
        assert_eq!(device.resident_bytes(), 0);
        // A block that is not a page, or not at the offset of one, is copied.
        assert!(!device.write_shared_at(&mut parts(&[(512, &mine)])).unwrap());
        let small: SharedBytes = vec![5; 1024].into();
        assert!(!device.write_shared_at(&mut parts(&[(1024, &[small])])).unwrap());
        device.read_at(1024, &mut back).unwrap();
        assert_eq!((back[1023], back[1024]), (5, 1));
        assert!(device.write_shared_at(&mut parts(&[((1 << 20) - 4096, &mine)])).is_err());
    }

    #[test]
    fn nothing_is_written_when_a_part_lies_outside() {
        let device = MemDevice::new(1 << 20);
        let page = |byte: u8| SharedBytes::from(vec![byte; PAGE]);
        let held = page(2);
        let write = |all: &[(u64, &[SharedBytes])]| device.write_shared_at(&mut parts(all));
        assert!(write(&[(0, &[page(3)]), (4096, std::slice::from_ref(&held))]).unwrap());
        // A block that cannot be kept is copied.
        assert!(!write(&[(0, &[page(5)]), (8192 + 512, &[page(6)])]).unwrap());
        assert!(write(&[(0, &[page(7)]), (1 << 20, &[page(8)])]).is_err());
        let mut back = [0; 2];
        device.read_at(4095, &mut back).unwrap();
        assert_eq!((back, held.holders()), ([5, 2], 2));
    }

    #[test]
    fn what_is_discarded_gives_its_memory_back() {
        let device = MemDevice::new(1 << 20);
        device.write_at(0, &vec![3; 200_000]).unwrap();
        assert!(device.discard_at(5000, 150_000).unwrap());
        // Pages 2 to 36 of 49 are freed.
        assert_eq!(device.resident_bytes(), (49 - 35) * 4096);
        let mut back = vec![9; 200_000];
        device.read_at(0, &mut back).unwrap();
        assert!(back[..8192].iter().chain(&back[37 * 4096 + 8192..]).all(|byte| *byte == 3));
        assert!(device.discard_at(0, (1 << 20) + 1).is_err());
        assert!(device.discard_at(0, 1 << 20).unwrap());
        assert_eq!((device.resident_bytes(), device.chunks.read().unwrap().0.len()), (0, 0));
    }

    #[test]
    fn ranges_past_the_end_are_refused() {
        let device = MemDevice::new(4096);
        assert!(matches!(device.write_at(4090, &[0; 7]), Err(DeviceFault::OutOfRange { size: 4096, .. })));
        assert!(device.read_at(u64::MAX, &mut [0]).is_err());
    }
}
