//! Committed blocks that have not been written home.

use std::collections::BTreeMap;
use std::io::IoSlice;

use base::Pblk;
use buffer::{Buffers, Bytes};
use device::Device;

use super::{Failure, Image};

/// The largest write home.
const WRITE_MAX: usize = 256;

/// The newest committed bytes of each block that the device has not got. What a block had before does not matter any more: the
/// log keeps it until everything newer is home.
#[derive(Default)]
pub(super) struct Checkpoint {
    blocks: BTreeMap<Pblk, Newest>,
}

struct Newest {
    bytes: Bytes,
    transaction: u64,
}

impl Checkpoint {
    pub(super) fn add(&mut self, images: Vec<Image>, transaction: u64) {
        for Image { block, bytes } in images {
            self.blocks.insert(block, Newest { bytes, transaction });
        }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The block is metadata no more, and that is durable.
    pub(super) fn forget(&mut self, block: Pblk) {
        self.blocks.remove(&block);
    }

    /// Writes all blocks home, in the order of their places, neighbours together. How many.
    pub(super) fn write_home(&self, home: &dyn Device, buffers: &Buffers) -> Result<u64, Failure> {
        let bs = buffers.block_size();
        let mut run: Vec<IoSlice<'_>> = Vec::with_capacity(WRITE_MAX);
        let mut next = Pblk(0);
        let write = |run: &mut Vec<IoSlice<'_>>, next: Pblk| {
            let first = Pblk(next.0 - run.len() as u64);
            let offset = bs.offset_of(first).ok_or(Failure::TooLarge(first))?;
            home.write_vectored_at(offset, run)?;
            run.clear();
            Ok::<(), Failure>(())
        };
        for (block, newest) in &self.blocks {
            if !run.is_empty() && (*block != next || run.len() == WRITE_MAX) {
                write(&mut run, next)?;
            }
            run.push(IoSlice::new(&newest.bytes));
            next = Pblk(block.0 + 1);
        }
        if !run.is_empty() {
            write(&mut run, next)?;
        }
        Ok(self.blocks.len() as u64)
    }

    /// All are home: the cache may let them go.
    pub(super) fn release(&mut self, buffers: &Buffers) {
        for (block, newest) in std::mem::take(&mut self.blocks) {
            drop(newest.bytes);
            buffers.set_clean(block, newest.transaction);
        }
    }
}
