//! Committed blocks that have not been written home.

use std::collections::BTreeMap;

use base::Pblk;
use buffer::{Buffers, Bytes, Clean, Hint};
use device::Device;

use super::Failure;
use super::images::Image;

/// The largest write home.
const WRITE_MAX: usize = 256;
/// Writes home that are handed to the device together.
const BATCH_MAX: usize = 64;
/// Blocks that memory is asked for at a time.
const AHEAD: usize = 16;
/// Blocks that the cache is told of together.
const RELEASE_MAX: usize = 4096;

/// The newest committed bytes of each block that the device has not got. What a block had before does not matter any more: the
/// log keeps it until everything newer is home.
#[derive(Default)]
pub(super) struct Checkpoint {
    blocks: BTreeMap<Pblk, Newest>,
}

struct Newest {
    bytes: Bytes,
    transaction: u64,
    /// Where it was in the cache.
    hint: Hint,
    /// The cache has bytes of its own.
    is_copy: bool,
    /// The device keeps the cache's very bytes.
    is_at_home: bool,
}

impl Checkpoint {
    pub(super) fn add(&mut self, images: Vec<Image>, transaction: u64) {
        for Image { block, bytes, hint, is_copy, .. } in images {
            self.blocks.insert(block, Newest { bytes, transaction, hint, is_copy, is_at_home: false });
        }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The blocks, in the order of their places.
    pub(super) fn blocks(&self) -> Vec<Pblk> {
        self.blocks.keys().copied().collect()
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
            in_runs.into_iter().for_each(|newest| newest.is_at_home = is_kept && !newest.is_copy);
        }
        Ok(self.blocks.len() as u64)
    }

    /// All are home: the cache may let them go.
    pub(super) fn release(&mut self, buffers: &Buffers) {
        let mut blocks = std::mem::take(&mut self.blocks).into_iter().peekable();
        let (mut clean, mut bytes) = (Vec::new(), Vec::new());
        while blocks.peek().is_some() {
            for (block, Newest { bytes: held, transaction, hint, is_at_home, .. }) in
                blocks.by_ref().take(RELEASE_MAX)
            {
                clean.push(Clean { block, hint, transaction, is_at_home });
                bytes.push(held);
            }
            while let Some(last) = bytes.len().checked_sub(1) {
                // Their counts change one after the other, and are waited for together.
                let from = last / AHEAD * AHEAD;
                std::hint::black_box(bytes[from..].iter().map(Bytes::holders).sum::<usize>());
                bytes.truncate(from);
            }
            buffers.set_clean_many(&clean);
            clean.clear();
        }
    }
}
