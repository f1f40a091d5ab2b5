//! Absent blocks: changed without being read (see [`PendingChange`](crate::PendingChange)), and read later,
//! many together.
//!
//! ```text
//! change of a block that is not here --> slot without bytes --> READER, as soon as there are many
//!                                                          '--> a lookup, one block
//!                                                          '--> the commit, all that are left
//! ```
//!
//! The reader is a thread of the file system's owner ([`Buffers::run_reader`]). It reads while operations and
//! the previous commit go on, so a commit has few blocks left to read. Without it the commits read all of
//! them.
//!
//! Invariant: the bytes that were read become those of the slot only if it is still absent, with a last
//! change in the transaction that made it absent. Before that transaction is committed, nothing writes the
//! block's home; afterwards it is not absent, or absent by a later transaction.

use std::io::IoSliceMut;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{Condvar, Mutex};
use extant_base::{Pblk, Tid};

use crate::{Buffers, Bytes, Hint, ReadFault, unshared};

/// Blocks read together.
const BATCH: usize = 1024;

/// The reader starts to read when so many blocks wait.
const READER_MIN: usize = 64;

/// The blocks that the reader is to read.
#[derive(Default)]
pub(crate) struct Absent {
    list: Mutex<List>,
    changed: Condvar,
    /// A block was absent at some time.
    was_used: AtomicBool,
    /// Blocks are not made absent.
    pub(crate) is_off: AtomicBool,
}

#[derive(Default)]
struct List {
    /// With the transactions that made them absent.
    blocks: Vec<(u64, Tid)>,
    has_reader: bool,
    is_closing: bool,
}

impl Absent {
    /// A block became absent.
    pub(crate) fn add(&self, block: Pblk, transaction: Tid) {
        self.was_used.store(true, Ordering::Relaxed);
        let mut list = self.list.lock();
        if list.has_reader {
            list.blocks.push((block.0, transaction));
            if list.blocks.len() == READER_MIN {
                self.changed.notify_all();
            }
        }
    }

    /// Waits for blocks to read. `None` ends the reader.
    fn next(&self) -> Option<Vec<(u64, Tid)>> {
        let mut list = self.list.lock();
        while list.blocks.len() < READER_MIN && !list.is_closing {
            self.changed.wait(&mut list);
        }
        if list.is_closing { None } else { Some(std::mem::take(&mut list.blocks)) }
    }

    fn is_closing(&self) -> bool {
        self.list.lock().is_closing
    }
}

/// The reader. When it ends, even by a panic, the list gets no more blocks.
struct Reader<'a>(&'a Absent);

impl<'a> Reader<'a> {
    fn begin(absent: &'a Absent) -> Self {
        absent.list.lock().has_reader = true;
        Self(absent)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut list = self.0.list.lock();
        (list.has_reader, list.blocks) = (false, Vec::new());
    }
}

impl Buffers {
    /// Whether a block that is not in memory may be [patched](Self::patch_at). Otherwise it is read first.
    pub fn set_defers_reads(&self, defers: bool) {
        self.absent.is_off.store(!defers, Ordering::Relaxed);
    }

    /// Reads absent blocks until [`dismiss_reader`](Self::dismiss_reader): for a thread of its own.
    pub fn run_reader(&self) {
        let reader = Reader::begin(&self.absent);
        while let Some(mut blocks) = reader.0.next() {
            blocks.sort_unstable();
            for batch in blocks.chunks(BATCH) {
                if reader.0.is_closing() {
                    return;
                }
                self.read_for_reader(batch);
            }
        }
    }

    fn read_for_reader(&self, batch: &[(u64, Tid)]) {
        let is_absent =
            |(block, tid): &&(u64, Tid)| self.shards.of(Pblk(*block)).is_absent_by(Pblk(*block), *tid);
        // Lookups and the commit may have been faster.
        let batch: Vec<(u64, Tid)> = batch.iter().filter(is_absent).copied().collect();
        if batch.is_empty() {
            return;
        }
        let numbers: Vec<u64> = batch.iter().map(|(block, _)| *block).collect();
        // A fault shows again when the commit reads the block.
        let Ok(bytes) = self.read_many(&numbers) else { return };
        let mut filled = 0;
        for (&(block, transaction), bytes) in batch.iter().zip(bytes) {
            let mut shard = self.shards.of(Pblk(block));
            if shard.is_absent_by(Pblk(block), transaction) {
                shard.fill(Pblk(block), bytes);
                filled += 1;
            }
        }
        self.deferred_reads.fetch_add(filled, Ordering::Relaxed);
    }

    /// Ends [`run_reader`](Self::run_reader), also if it starts later.
    pub fn dismiss_reader(&self) {
        self.absent.list.lock().is_closing = true;
        self.absent.changed.notify_all();
    }

    /// Reads the absent ones of these blocks of the running transaction, before it is closed: for the thread
    /// that commits it. If a read fails, taking the blocks will report it.
    pub fn read_ahead<T: Copy>(&self, blocks: impl FnOnce() -> Vec<(Pblk, Hint, T)>, transaction: Tid) {
        if self.absent.was_used.load(Ordering::Relaxed) {
            let blocks = blocks();
            let (wanted, shards) = self.shards.sorted(blocks.iter().map(|all| (all.0, *all)));
            let groups = shards.map(|(shard, group)| (shard, &wanted[group]));
            let _ = self.read_absent(groups, transaction);
        }
    }

    /// Reads the absent ones of the blocks that a commit takes. `groups`: shards, and their blocks.
    pub(crate) fn read_absent<'w, T: 'w>(
        &self,
        groups: impl Iterator<Item = (usize, &'w [(Pblk, Hint, T)])>,
        transaction: Tid,
    ) -> Result<(), ReadFault> {
        if !self.absent.was_used.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut absent: Vec<u64> = Vec::new();
        for (shard_at, blocks) in groups {
            let shard = self.shards.at(shard_at);
            if shard.has_absent() {
                let to_read =
                    blocks.iter().filter(|(block, hint, _)| shard.is_to_read(*block, *hint, transaction));
                absent.extend(to_read.map(|(block, ..)| block.0));
            }
        }
        absent.sort_unstable();
        absent.dedup();
        for batch in absent.chunks(BATCH) {
            // Until the commit has taken them, they are not written home: the device has their last version.
            for (block, bytes) in batch.iter().zip(self.read_many(batch)?) {
                self.shards.of(Pblk(*block)).fill(Pblk(*block), bytes);
            }
        }
        self.deferred_reads.fetch_add(absent.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads blocks, all together. Their numbers are in ascending order.
    fn read_many(&self, numbers: &[u64]) -> Result<Vec<Bytes>, ReadFault> {
        let mut bytes: Vec<Bytes> = numbers.iter().map(|_| Bytes::zeroed(self.block_size().len())).collect();
        let mut slices: Vec<_> = bytes.iter_mut().map(|bytes| IoSliceMut::new(unshared(bytes))).collect();
        let mut parts = Vec::new();
        let (mut rest, mut numbers) = (&mut slices[..], numbers);
        while let Some(first) = numbers.first() {
            let run = numbers.iter().zip(*first..).take_while(|(block, next)| *block == next).count();
            let (now, later) = rest.split_at_mut(run);
            parts.push((self.offset_of(Pblk(*first))?, now));
            (rest, numbers) = (later, &numbers[run..]);
        }
        // The device may be a file, whose reads follow each other; the kernel can read ahead meanwhile.
        for (offset, slices) in &parts {
            self.device.prefetch(*offset, (slices.len() * self.block_size().len()) as u64);
        }
        self.device.read_many_at(&mut parts)?;
        drop(slices);
        Ok(bytes)
    }
}
