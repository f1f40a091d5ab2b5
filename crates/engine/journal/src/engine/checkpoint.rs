//! Committed blocks that have not been written home.
//!
//! ```text
//! runs:  [ 3 7 8 12 19 .. ] [ 7 20 21 ] [ 8 ]     each sorted by block number, the oldest first
//!                            '---- a run that is not much shorter than the previous one is merged into it;
//!                                  the newer bytes win
//! ```
//!
//! A commit delivers its blocks sorted. Adding them appends a run; writing them home merges the runs. With a
//! few large transactions no block moves twice; with many small ones each block moves a few times. The last
//! transaction is kept apart: the older ones can go home alone, so that each large transaction is followed by
//! about as much writing, and none by twice as much ([`CheckpointScope::BeforeLast`]).
//!
//! Invariants
//! 1. A run has each block once, sorted by block number, and is more than twice as long as the next one.
//! 2. INV-EN37: if a block is in several runs, the last run counts; the last transaction counts before all of
//!    them.

use std::cmp::Ordering;

use extant_base::{Pblk, Tid};
use extant_buffer::{Buffers, Bytes};
use extant_device::{Device, SharedParts};

use super::Failure;
use super::images::Image;

/// The most blocks in one write home.
const WRITE_MAX: usize = 256;
/// Writes home that are submitted to the device together.
const BATCH_MAX: usize = 64;

/// The newest committed bytes of each block that is not home yet. Older bytes of a block are not needed: the
/// newer ones are in the log until they are home.
#[derive(Default)]
pub(super) struct Checkpoint {
    /// Runs of transactions before the last one.
    runs: Vec<Vec<NewestCopy>>,
    /// Entries in the runs to skip.
    n_stale: usize,
    /// Blocks of the last transaction. `transaction` is its number.
    last: Vec<NewestCopy>,
    transaction: Tid,
    /// The device keeps the very bytes (without a copy) that were last written home.
    are_kept: bool,
}

/// The part of the committed blocks that a checkpoint covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckpointScope {
    /// Everything committed before the last transaction.
    BeforeLast,
    All,
}

struct NewestCopy {
    block: Pblk,
    /// Empty once they were written home.
    bytes: Bytes,
    /// The block is no longer metadata: skip it, here and in older runs.
    is_stale: bool,
}

impl Checkpoint {
    /// Adds the blocks of a transaction, sorted by block number.
    pub(super) fn add(&mut self, images: Vec<Image>, transaction: Tid) {
        debug_assert!(
            images.is_sorted_by(|before, image| before.block < image.block),
            "a transaction has each block once, in the order of places"
        );
        self.move_last();
        self.transaction = transaction;
        let newest = |Image { block, bytes, .. }: Image| NewestCopy { block, bytes, is_stale: false };
        self.last = images.into_iter().map(newest).collect();
    }

    /// Moves the last transaction into the runs.
    fn move_last(&mut self) {
        let last = std::mem::take(&mut self.last);
        if last.is_empty() {
            return;
        }
        self.n_stale += last.iter().filter(|newest| newest.is_stale).count();
        self.runs.push(last);
        while let [.., before, last] = &self.runs[..]
            && before.len() <= 2 * last.len()
        {
            self.merge_last();
        }
    }

    /// Number of blocks. A block that several transactions changed counts more than once until the runs are
    /// merged.
    pub(super) fn len(&self) -> usize {
        self.runs.iter().map(Vec::len).sum::<usize>() - self.n_stale + self.last.len()
    }

    /// The block is no longer metadata, and that is durable.
    pub(super) fn mark_stale(&mut self, block: Pblk) {
        let mut mark_stale = |run: &mut Vec<NewestCopy>| {
            let at = run.binary_search_by_key(&block, |newest| newest.block).ok()?;
            run[at].bytes = Bytes::default();
            Some(usize::from(!std::mem::replace(&mut run[at].is_stale, true)))
        };
        self.n_stale += self.runs.iter_mut().filter_map(&mut mark_stale).sum::<usize>();
        mark_stale(&mut self.last);
    }

    /// Writes blocks home, sorted by block number, adjacent blocks in one write. Returns their number. The
    /// bytes are moved to the device; after a failure they are not needed any more.
    pub(super) fn write_home(
        &mut self,
        scope: CheckpointScope,
        home: &dyn Device,
        buffers: &Buffers,
    ) -> Result<u64, Failure> {
        let bs = buffers.block_size();
        let all = self.merge_runs(scope);
        let n_blocks = all.len();
        let mut are_kept = true;
        let mut parts = SharedParts::default();
        let mut rest = all;
        while !rest.is_empty() {
            let mut n = 0;
            while parts.runs() < BATCH_MAX
                && let Some(NewestCopy { block: first, .. }) = rest.get(n)
            {
                let first = *first;
                parts.begin(bs.offset_of(first).ok_or(Failure::TooLarge(first))?);
                let run = rest[n..].iter_mut().zip(first.0..).take(WRITE_MAX);
                for (newest, _) in run.take_while(|(newest, place)| newest.block.0 == *place) {
                    parts.push(std::mem::take(&mut newest.bytes));
                    n += 1;
                }
            }
            are_kept &= home.write_shared_at(&mut parts)?;
            parts.clear();
            rest = &mut rest[n..];
        }
        // An empty checkpoint says nothing about the device.
        if n_blocks > 0 {
            self.are_kept = are_kept;
        }
        Ok(n_blocks as u64)
    }

    /// The blocks are home: the cache may evict them.
    pub(super) fn release(&mut self, scope: CheckpointScope, buffers: &Buffers) {
        self.runs.clear();
        self.n_stale = 0;
        let through = match scope {
            CheckpointScope::All => self.transaction,
            CheckpointScope::BeforeLast => self.transaction.before(),
        };
        buffers.set_clean_through(through, self.are_kept);
    }

    /// Merges everything to be written home into one run.
    fn merge_runs(&mut self, scope: CheckpointScope) -> &mut [NewestCopy] {
        if scope == CheckpointScope::All {
            self.move_last();
        }
        while self.runs.len() > 1 {
            self.merge_last();
        }
        let Some(all) = self.runs.first_mut() else { return &mut [] };
        if std::mem::take(&mut self.n_stale) > 0 {
            all.retain(|newest| !newest.is_stale);
        }
        // Blocks that the last transaction has again are not written: its copy counts, or its note that the
        // block is gone.
        let mut last = self.last.iter().map(|newest| newest.block).peekable();
        all.retain(|newest| {
            while last.next_if(|block| *block < newest.block).is_some() {}
            last.peek() != Some(&newest.block)
        });
        all
    }

    /// Merges the last run into the previous one.
    fn merge_last(&mut self) {
        let (Some(newer), Some(older)) = (self.runs.pop(), self.runs.pop()) else { return };
        let mut merged = Vec::with_capacity(older.len() + newer.len());
        let (mut older, mut newer) = (older.into_iter().peekable(), newer.into_iter().peekable());
        while let (Some(old), Some(new)) = (older.peek(), newer.peek()) {
            let order = old.block.cmp(&new.block);
            let next = if order == Ordering::Less { older.next() } else { newer.next() };
            merged.extend(next);
            if order == Ordering::Equal {
                self.n_stale -= older.next().map_or(0, |old| usize::from(old.is_stale));
            }
        }
        merged.extend(older);
        merged.extend(newer);
        self.runs.push(merged);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use extant_base::BlockSize;
    use extant_buffer::{Kind, Owner, Seal};
    use extant_device::MemDevice;
    use extant_memory::Budget;

    use super::*;

    /// Transactions of any size, some with freed blocks: the newest bytes of each block go home, once.
    #[test]
    fn the_newest_bytes_of_each_block_go_home() {
        let mut random = 5u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % below
        };
        for _ in 0..60 {
            let device = Arc::new(MemDevice::new(1 << 20));
            let buffers = Buffers::new(device.clone(), BlockSize::MIN, 1024, &Budget::new(1 << 20));
            let mut checkpoint = Checkpoint::default();
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            // Blocks that are not home yet: of the last transaction, and of earlier ones.
            let (mut last, mut before): (BTreeSet<u64>, BTreeSet<u64>) = Default::default();
            for transaction in 1..=u64::from(next(20)) {
                let most = [3, 30, 300][next(3) as usize];
                let mut blocks: Vec<u64> = (0..next(most)).map(|_| next(1000).into()).collect();
                blocks.sort_unstable();
                blocks.dedup();
                // Freed blocks usually belong to an earlier transaction.
                for block in (0..next(8)).map(|_| u64::from(next(1000))) {
                    checkpoint.mark_stale(Pblk(block));
                    // Home keeps the bytes that it has now.
                    let mut byte = [0];
                    device.read_at(block * 1024, &mut byte).unwrap();
                    model.insert(block, byte[0]);
                    last.remove(&block);
                    before.remove(&block);
                }
                before.append(&mut last);
                last.extend(&blocks);
                model.extend(blocks.iter().map(|block| (*block, transaction as u8)));
                let image = |block: u64| Image {
                    block: Pblk(block),
                    bytes: vec![transaction as u8; 1024].into(),
                    seal: Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: None },
                    has_sum: false,
                    is_ready: true,
                    logged: Bytes::default(),
                    checksum: 0,
                    is_escaped: false,
                };
                checkpoint.add(blocks.into_iter().map(image).collect(), extant_base::Tid(transaction));
                assert!(checkpoint.runs.is_sorted_by(|before, run| before.len() > 2 * run.len()));
                if next(4) == 0 {
                    let n_last = checkpoint.last.len();
                    let written =
                        checkpoint.write_home(CheckpointScope::BeforeLast, &*device, &buffers).unwrap();
                    // Each block once, without the blocks that the last transaction has again.
                    assert_eq!(written, before.difference(&last).count() as u64);
                    before.clear();
                    checkpoint.release(CheckpointScope::BeforeLast, &buffers);
                    assert_eq!((checkpoint.runs.len(), checkpoint.last.len()), (0, n_last));
                }
            }
            let n_stale = checkpoint.runs.iter().flatten().filter(|newest| newest.is_stale).count();
            assert_eq!(checkpoint.n_stale, n_stale);
            let written = checkpoint.write_home(CheckpointScope::All, &*device, &buffers).unwrap();
            assert_eq!(written, before.union(&last).count() as u64);
            checkpoint.release(CheckpointScope::All, &buffers);
            assert_eq!(checkpoint.len(), 0);
            let mut home = vec![0; 1 << 20];
            device.read_at(0, &mut home).unwrap();
            for (block, bytes) in home.chunks(1024).enumerate() {
                let expected = model.get(&(block as u64)).copied().unwrap_or(0);
                assert!(bytes.iter().all(|byte| *byte == expected), "block {block}");
            }
        }
    }
}
