//! Blocks to write to a device, with their addresses.

use std::io::IoSlice;

use crate::{DeviceFault, SharedBytes, total_len};

/// Runs of immutable blocks, each with the byte offset of its destination. The blocks are moved to a device
/// that keeps them, so that it does not increment a reference count: this saves a cache miss.
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
    /// Byte offset, and number of blocks.
    runs: Vec<(u64, usize)>,
    blocks: Vec<SharedBytes>,
}

impl SharedParts {
    /// Starts a run at this byte offset: the blocks pushed next are contiguous from there.
    pub fn begin(&mut self, offset: u64) {
        self.runs.push((offset, 0));
    }

    /// Adds one block to the last run.
    ///
    /// # Panics
    /// There is no run.
    pub fn push(&mut self, block: SharedBytes) {
        self.runs.last_mut().expect("a run has begun").1 += 1;
        self.blocks.push(block);
    }

    /// Removes all runs; the allocations are reused.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.blocks.clear();
    }

    /// Number of runs.
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

    /// The runs, and their blocks in order, which the caller may take out.
    pub(crate) fn split(&mut self) -> (&[(u64, usize)], &mut Vec<SharedBytes>) {
        (&self.runs, &mut self.blocks)
    }

    /// Calls `write` with the runs as parts of buffers.
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
