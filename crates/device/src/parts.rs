//! Blocks on their way to a device, with their places.

use std::io::IoSlice;

use crate::{DeviceFault, SharedBytes, total_len};

/// Runs of blocks that do not change any more, each with the byte offset of its destination. Ownership is
/// passed on, so that a device that keeps them need not count one more holder: a cache miss saved.
///
/// ```
/// use extant_device::{Device, MemDevice, SharedBytes, SharedParts};
/// let mut parts = SharedParts::default();
/// parts.begin(8192);
/// parts.push(SharedBytes::copy_of(&[7; 4096]));
/// let device = MemDevice::new(1 << 20);
/// assert!(device.write_shared_at(&mut parts).unwrap(), "pages in memory are kept");
/// ```
#[derive(Debug, Default)]
pub struct SharedParts {
    /// Offset, and how many blocks.
    runs: Vec<(u64, usize)>,
    blocks: Vec<SharedBytes>,
}

impl SharedParts {
    /// What is pushed from now on goes behind each other, from this byte offset on.
    pub fn begin(&mut self, offset: u64) {
        self.runs.push((offset, 0));
    }

    /// One block more for the run that was begun last.
    ///
    /// # Panics
    /// If none was.
    pub fn push(&mut self, block: SharedBytes) {
        self.runs.last_mut().expect("a run has begun").1 += 1;
        self.blocks.push(block);
    }

    /// Of no use any more: for the next ones.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.blocks.clear();
    }

    /// How many runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Each run's offset and length in bytes.
    pub(crate) fn lens(&self) -> impl Iterator<Item = (u64, u64)> {
        self.slices().map(|(offset, blocks)| (offset, total_len(blocks)))
    }

    /// Each run's offset and blocks.
    pub(crate) fn slices(&self) -> impl Iterator<Item = (u64, &[SharedBytes])> {
        let mut rest = &self.blocks[..];
        self.runs.iter().map(move |(offset, n)| {
            let (run, left) = rest.split_at(*n);
            rest = left;
            (*offset, run)
        })
    }

    /// Runs, and all their blocks one behind the other, to be taken out.
    pub(crate) fn split(&mut self) -> (&[(u64, usize)], &mut Vec<SharedBytes>) {
        (&self.runs, &mut self.blocks)
    }

    /// Has them written as parts of buffers.
    pub(crate) fn with_slices(
        &self,
        write: impl FnOnce(&[(u64, &[IoSlice<'_>])]) -> Result<(), DeviceFault>,
    ) -> Result<(), DeviceFault> {
        let slices: Vec<IoSlice<'_>> = self.blocks.iter().map(|block| IoSlice::new(block)).collect();
        let mut rest = &slices[..];
        let batch = self.runs.iter().map(|(offset, n)| {
            let (run, left) = rest.split_at(*n);
            rest = left;
            (*offset, run)
        });
        write(&batch.collect::<Vec<_>>())
    }
}
