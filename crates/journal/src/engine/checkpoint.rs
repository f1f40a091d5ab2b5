//! Committed blocks that have not been written home.

use std::collections::BTreeMap;

use base::Pblk;
use buffer::{Buffers, Bytes};
use device::Device;

use super::{Failure, Image};

/// The largest write home.
const WRITE_MAX: usize = 256;
/// Writes home that are handed to the device together.
const BATCH_MAX: usize = 64;

/// The newest committed bytes of each block that the device has not got. What a block had before does not matter any more: the
/// log keeps it until everything newer is home.
#[derive(Default)]
pub(super) struct Checkpoint {
    blocks: BTreeMap<Pblk, Newest>,
}

struct Newest {
    bytes: Bytes,
    transaction: u64,
    /// The device keeps these very bytes.
    is_at_home: bool,
}

impl Checkpoint {
    pub(super) fn add(&mut self, images: Vec<Image>, transaction: u64) {
        for Image { block, bytes, .. } in images {
            self.blocks.insert(block, Newest { bytes, transaction, is_at_home: false });
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
    pub(super) fn write_home(&mut self, home: &dyn Device, buffers: &Buffers) -> Result<u64, Failure> {
        let bs = buffers.block_size();
        let mut blocks = self.blocks.iter_mut().peekable();
        while blocks.peek().is_some() {
            let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
            let mut in_runs = Vec::new();
            while runs.len() < BATCH_MAX
                && let Some((&first, newest)) = blocks.next()
            {
                let mut run = vec![Bytes::clone(&newest.bytes)];
                in_runs.push(newest);
                while let Some((_, newest)) = blocks
                    .next_if(|(block, _)| run.len() < WRITE_MAX && block.0 == first.0 + run.len() as u64)
                {
                    run.push(Bytes::clone(&newest.bytes));
                    in_runs.push(newest);
                }
                runs.push((bs.offset_of(first).ok_or(Failure::TooLarge(first))?, run));
            }
            let batch: Vec<(u64, &[Bytes])> = runs.iter().map(|(offset, run)| (*offset, &run[..])).collect();
            let is_kept = home.write_shared_many_at(&batch)?;
            in_runs.into_iter().for_each(|newest| newest.is_at_home = is_kept);
        }
        Ok(self.blocks.len() as u64)
    }

    /// All are home: the cache may let them go.
    pub(super) fn release(&mut self, buffers: &Buffers) {
        for (block, newest) in std::mem::take(&mut self.blocks) {
            drop(newest.bytes);
            buffers.set_clean(block, newest.transaction, newest.is_at_home);
        }
    }
}
