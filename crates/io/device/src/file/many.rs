//! Batches: transfers of several ranges, with io_uring if it is available.

use std::io::{IoSlice, IoSliceMut};

use super::{FileDevice, VECTOR_MAX};
use crate::{Device, DeviceFault, Io, total_len};

impl FileDevice {
    /// Selects how transfers are passed to the system. If the system has no rings, or no more of them,
    /// transfers use system calls.
    #[must_use]
    pub fn with_io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Whether batches use a ring.
    #[must_use]
    pub fn uses_rings(&self) -> bool {
        self.wants_rings() && self.rings.can()
    }

    fn wants_rings(&self) -> bool {
        match self.io {
            Io::Auto => self.direct.is_some(),
            Io::Calls => false,
            Io::Rings => true,
        }
    }

    /// Whether the ring can take this part: it has no more buffers than a system call takes, and needs no
    /// bounce buffer.
    fn fits_ring<B: std::ops::Deref<Target = [u8]>>(&self, offset: u64, bufs: &[B]) -> bool {
        bufs.len() <= VECTOR_MAX && self.fits_direct(offset, bufs)
    }

    pub(super) fn read_batch(&self, parts: &mut [(u64, &mut [IoSliceMut<'_>])]) -> Result<(), DeviceFault> {
        let mut lens = Vec::with_capacity(parts.len());
        for (offset, bufs) in parts.iter() {
            lens.push(total_len(bufs));
            DeviceFault::check_len("read", *offset, total_len(bufs), self.size_bytes())?;
        }
        let fits = parts.len() > 1 && parts.iter().all(|(offset, bufs)| self.fits_ring(*offset, bufs));
        let done = if fits && self.wants_rings() { self.rings.read(&self.file, parts) } else { None };
        for (at, (offset, bufs)) in parts.iter_mut().enumerate() {
            // Short, interrupted and failed transfers are repeated by system calls, which return the error.
            let is_whole =
                |done: &Vec<std::io::Result<usize>>| matches!(&done[at], Ok(got) if *got as u64 == lens[at]);
            if !done.as_ref().is_some_and(is_whole) {
                self.read_vectored_at(*offset, bufs)?;
            }
        }
        Ok(())
    }

    pub(super) fn write_batch(&self, parts: &[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault> {
        for (offset, bufs) in parts {
            self.check_write("write", *offset, total_len(bufs))?;
        }
        let fits = parts.len() > 1 && parts.iter().all(|(offset, bufs)| self.fits_ring(*offset, bufs));
        let done = if fits && self.wants_rings() { self.rings.write(&self.file, parts) } else { None };
        for (at, (offset, bufs)) in parts.iter().enumerate() {
            let len = total_len(bufs);
            let is_whole =
                |done: &Vec<std::io::Result<usize>>| matches!(&done[at], Ok(got) if *got as u64 == len);
            if !done.as_ref().is_some_and(is_whole) {
                self.write_vectored_at(*offset, bufs)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn open(path: &Path, io: Io, direct: bool) -> Option<FileDevice> {
        let device = FileDevice::open(path, true).unwrap().with_io(io);
        if direct { device.with_direct().ok() } else { Some(device) }
    }

    /// Devices with all combinations of options that the system supports.
    fn devices(path: &Path) -> Vec<FileDevice> {
        let all = [Io::Calls, Io::Rings].into_iter().flat_map(|io| [(io, false), (io, true)]);
        all.filter_map(|(io, direct)| open(path, io, direct)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// For all options and alignments, a read returns what was written at its offset.
        #[test]
        fn every_way_writes_and_reads_the_same(
            parts in prop::collection::vec((0u64..60_000, prop::collection::vec(0usize..5000, 1..5), any::<bool>()), 1..8),
            seed in any::<u8>(),
        ) {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), vec![seed; 128 << 10]).unwrap();
            let mut expected = vec![seed; 128 << 10];
            // Contiguous or with gaps, so that they do not overlap; some aligned.
            let mut at = 0;
            let mut placed = Vec::new();
            for (gap, lens, is_aligned) in &parts {
                let lens: Vec<usize> =
                    lens.iter().map(|len| if *is_aligned { len / 512 * 512 } else { *len }).collect();
                let len = lens.iter().sum::<usize>() as u64;
                let offset = at + gap % 5000;
                let offset = if *is_aligned { offset.next_multiple_of(512) } else { offset };
                if offset + len > expected.len() as u64 {
                    break;
                }
                placed.push((offset, lens));
                at = offset + len;
            }
            for (round, device) in devices(file.path()).into_iter().enumerate() {
                let bytes: Vec<Vec<Vec<u8>>> = placed.iter().enumerate().map(|(part, (_, lens))| {
                    lens.iter().map(|len| vec![(round * 50 + part * 7) as u8 ^ seed; *len]).collect()
                }).collect();
                let slices: Vec<Vec<IoSlice<'_>>> =
                    bytes.iter().map(|bufs| bufs.iter().map(|buf| IoSlice::new(buf)).collect()).collect();
                let batch: Vec<(u64, &[IoSlice<'_>])> =
                    placed.iter().zip(&slices).map(|((offset, _), bufs)| (*offset, &bufs[..])).collect();
                device.write_many_at(&batch).unwrap();
                for ((offset, _), bufs) in placed.iter().zip(&bytes) {
                    let bytes = bufs.concat();
                    expected[*offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                let mut back: Vec<Vec<Vec<u8>>> =
                    bytes.iter().map(|bufs| bufs.iter().map(|buf| vec![0; buf.len()]).collect()).collect();
                let mut slices: Vec<Vec<IoSliceMut<'_>>> =
                    back.iter_mut().map(|bufs| bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect()).collect();
                let mut batch: Vec<(u64, &mut [IoSliceMut<'_>])> =
                    placed.iter().zip(&mut slices).map(|((offset, _), bufs)| (*offset, &mut bufs[..])).collect();
                device.read_many_at(&mut batch).unwrap();
                prop_assert_eq!(&back, &bytes);
                let mut all = vec![0; expected.len()];
                device.read_at(0, &mut all).unwrap();
                prop_assert!(all == expected);
            }
        }
    }

    #[test]
    fn more_than_a_ring_holds_goes_in_turns() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 << 20).unwrap();
        let device = open(file.path(), Io::Rings, false).unwrap();
        let blocks: Vec<Vec<u8>> = (0..500).map(|block| vec![block as u8; 4096]).collect();
        let slices: Vec<[IoSlice<'_>; 1]> = blocks.iter().map(|block| [IoSlice::new(block)]).collect();
        let parts: Vec<(u64, &[IoSlice<'_>])> =
            (0..).zip(&slices).map(|(block, slices)| (block * 8192, &slices[..])).collect();
        device.write_many_at(&parts).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        for (block, expected) in (0..).step_by(8192).zip(&blocks) {
            assert!(
                bytes[block..block + 4096] == expected[..] && bytes[block + 4096..block + 8192] == [0; 4096]
            );
        }
        // If one part of a batch is out of range, no part is written.
        let outside = [(0, &slices[1][..]), ((4 << 20) - 100, &slices[1][..])];
        assert!(matches!(device.write_many_at(&outside), Err(DeviceFault::OutOfRange { .. })));
        assert_eq!(bytes, std::fs::read(file.path()).unwrap());
        device.write_many_at(&[]).unwrap();
    }

    #[test]
    fn threads_have_batches_of_their_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let device = open(file.path(), Io::Rings, false).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..20 {
                        let byte = (thread * 20 + round) as u8;
                        let block = vec![byte; 4096];
                        let slices = [IoSlice::new(&block)];
                        let place = |at: u64| (thread << 21) + at * 16384;
                        let parts: Vec<(u64, &[IoSlice<'_>])> =
                            (0..100).map(|at| (place(at), &slices[..])).collect();
                        device.write_many_at(&parts).unwrap();
                        let mut back = vec![vec![0; 4096]; 100];
                        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                            back.iter_mut().map(|buf| [IoSliceMut::new(buf)]).collect();
                        let mut parts: Vec<(u64, &mut [IoSliceMut<'_>])> =
                            (0..).zip(&mut slices).map(|(at, bufs)| (place(at), &mut bufs[..])).collect();
                        device.read_many_at(&mut parts).unwrap();
                        assert!(back.iter().all(|buf| *buf == block));
                    }
                });
            }
        });
    }

    #[test]
    fn threads_write_parts_of_one_unit_past_the_page_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 10).unwrap();
        let Some(device) = open(file.path(), Io::Auto, true) else { return };
        assert!(device.file_at(0, 4096).is_none());
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for at in (thread * 100..64 << 10).step_by(400) {
                        let len = 100.min((64 << 10) - at);
                        device.write_at(at, &vec![thread as u8 + 1; len as usize]).unwrap();
                    }
                });
            }
        });
        let bytes = std::fs::read(file.path()).unwrap();
        let right = |(at, byte): (usize, &u8)| *byte == (at / 100 % 4) as u8 + 1;
        assert!(bytes.iter().enumerate().all(right));
        device.write_durable_at(5, b"durable").unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap()[4..13], *b"\x01durable\x01");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 1000]).unwrap();
        let error = FileDevice::open(file.path(), true).unwrap().with_direct().unwrap_err();
        assert!(error.to_string().contains("multiple of 512"), "{error}");
        // The file stays usable for its owner.
        assert!(rustix::fs::fcntl_getfl(file.as_file().as_fd()).is_ok());
    }
}
