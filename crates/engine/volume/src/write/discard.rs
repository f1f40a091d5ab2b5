//! Discarding unused blocks: freed blocks at their commit, and all free blocks on request.
//!
//! ```text
//!   freed --> commit is durable --> discarded --> may be reused
//!               |                     '-- earlier: after a power failure the old file may lack its data
//!               '-- later: a discard could hit the new owner's data
//! ```
//!
//! No flush waits for a discard. A failed discard is not an error: the blocks are free in any case.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::{Pblk, Tid};
use extant_device::Device;
use extant_inode::Shared;

use super::CommitClient;
use crate::ops::errors::Operation;
use crate::{Admin, Counters, Fault};

/// What was discarded since the volume was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiscardStats {
    /// Number of ranges.
    pub ranges: u64,
    /// Their bytes in total.
    pub bytes: u64,
    /// Number of ranges that the device failed to discard.
    pub failed: u64,
}

/// Whether freed blocks are discarded, and counters.
#[derive(Debug, Default)]
pub(super) struct Discards {
    /// Requested, and the device supports it.
    is_on: AtomicBool,
    ranges: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl Discards {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on: AtomicBool::new(is_on), ..Self::default() }
    }

    /// Discards blocks. Returns whether the device supports that.
    fn discard(&self, shared: &Shared, first: Pblk, blocks: u32) -> bool {
        let block_size = shared.geometry.block_size.bytes();
        let (offset, len) = (first.0 * block_size, u64::from(blocks) * block_size);
        let add = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        match shared.device.discard_at(offset, len) {
            Ok(false) => return false,
            Ok(true) => {
                add(&self.ranges, 1);
                add(&self.bytes, len);
            }
            Err(_) => add(&self.failed, 1),
        }
        true
    }
}

impl CommitClient {
    /// Discards what transactions up to this one freed. They are durable, and the allocator does not reuse
    /// the blocks yet.
    pub(super) fn discard_freed(&self, transaction: Tid) {
        if !self.discards.is_on.load(Ordering::Relaxed) {
            return;
        }
        for (first, blocks) in self.alloc.freed_until(transaction) {
            if !self.discards.discard(self.shared(), first, blocks) {
                // A device does not start to support it later.
                self.discards.is_on.store(false, Ordering::Relaxed);
                return;
            }
        }
    }
}

impl Admin<'_> {
    /// Discards the free blocks, in runs of at least `min_bytes`. Returns the number of bytes, or `None` if
    /// the device does not support discards. A freed block does not count as free until that is durable, so
    /// this calls [`sync`](crate::Volume::sync) first.
    ///
    /// # Errors
    /// The volume is open for reading; as [`sync`](crate::Volume::sync); a group's bitmap cannot be read.
    pub fn trim(self, min_bytes: u64) -> Result<Option<u64>, Fault> {
        self.trim_range(0..u64::MAX, min_bytes)
    }

    /// As [`trim`](Self::trim), for free blocks in this range of the device's bytes.
    ///
    /// # Errors
    /// As [`trim`](Self::trim).
    pub fn trim_range(self, range: Range<u64>, min_bytes: u64) -> Result<Option<u64>, Fault> {
        let writer = self.volume.writer()?;
        self.volume.sync()?;
        // What was freed is free after a full commit only.
        writer.journal.commit_all()?;
        let keeper = &writer.keeper;
        let shared = keeper.shared();
        let bs = shared.geometry.block_size;
        let min_blocks = bs.blocks_for(min_bytes);
        let (from, to) = (bs.blocks_for(range.start), range.end >> bs.log2());
        let (mut bytes, mut can) = (0, true);
        for group in 0..shared.geometry.groups {
            let done = keeper.alloc.each_free(group, min_blocks, |first, blocks| -> Result<(), Fault> {
                let (start, end) = (first.0.max(from), (first.0 + u64::from(blocks)).min(to));
                let blocks = end.saturating_sub(start);
                if can && blocks >= min_blocks.max(1) {
                    can = keeper.discards.discard(shared, Pblk(start), blocks as u32);
                    bytes += blocks * bs.bytes();
                }
                Ok(())
            });
            self.volume.noted(Operation::Trim, done)?;
            if !can {
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }
}

impl Counters<'_> {
    /// Counters of discards; `None` if open for reading.
    #[must_use]
    pub fn discard_stats(self) -> Option<DiscardStats> {
        let discards = &self.volume.writer.as_ref()?.keeper.discards;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(DiscardStats {
            ranges: get(&discards.ranges),
            bytes: get(&discards.bytes),
            failed: get(&discards.failed),
        })
    }
}
