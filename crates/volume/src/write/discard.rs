//! Discards: freed blocks at their commit, and all free blocks on request.
//!
//! ```text
//!   freed --> commit is durable --> discarded --> may be reused
//!               |                     '-- earlier, and a power cut would bring the old file back without its bytes
//!               '-- later than that, and a discard could hit the new owner's bytes
//! ```
//!
//! No flush waits for a discard, and a failed one is no error: the blocks are free all the same.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::Pblk;
use extant_device::Device;
use extant_inode::Shared;

use super::CommitClient;
use crate::{Fault, Volume};

/// What was discarded since the volume was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiscardStats {
    /// Ranges.
    pub ranges: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Ranges that the device refused.
    pub failed: u64,
}

/// Whether freed blocks are discarded, and what was.
#[derive(Debug, Default)]
pub(super) struct Discards {
    /// Asked for, and the device can.
    is_on: AtomicBool,
    ranges: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl Discards {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on: AtomicBool::new(is_on), ..Self::default() }
    }

    /// Discards blocks. Can the device do that?
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
    /// Discards what transactions up to this one freed. They are durable, and the blocks may not be reused
    /// before this returns.
    pub(super) fn discard_freed(&self, transaction: u64) {
        if !self.discards.is_on.load(Ordering::Relaxed) {
            return;
        }
        for (first, blocks) in self.alloc.freed_until(transaction) {
            if !self.discards.discard(self.shared(), first, blocks) {
                // It will not learn it.
                self.discards.is_on.store(false, Ordering::Relaxed);
                return;
            }
        }
    }
}

impl Volume {
    /// Discards all free blocks, in runs of at least `min_bytes`: returns the number of bytes. `None`: the
    /// device does not support it. Blocks freed by changes that are not durable yet do not count: this calls
    /// [`sync`](Self::sync) first.
    ///
    /// # Errors
    /// It is open for reading; as [`sync`](Self::sync); a group's bitmap cannot be read.
    pub fn trim(&self, min_bytes: u64) -> Result<Option<u64>, Fault> {
        self.trim_range(0..u64::MAX, min_bytes)
    }

    /// As [`trim`](Self::trim), of free blocks that lie in this range of the device's bytes.
    ///
    /// # Errors
    /// As [`trim`](Self::trim).
    pub fn trim_range(&self, range: Range<u64>, min_bytes: u64) -> Result<Option<u64>, Fault> {
        let writer = self.writer()?;
        self.sync()?;
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
            self.noted(done)?;
            if !can {
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }

    /// What was discarded; `None` when open for reading.
    #[must_use]
    pub fn discard_stats(&self) -> Option<DiscardStats> {
        let discards = &self.writer.as_ref()?.keeper.discards;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(DiscardStats {
            ranges: get(&discards.ranges),
            bytes: get(&discards.bytes),
            failed: get(&discards.failed),
        })
    }
}
