//! A transaction: the blocks it changed, and the blocks it revoked.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_base::sync::{CachePadded, Mutex};
use extant_base::{Pblk, Tid};
use extant_buffer::{Hint, Seal};

/// One transaction, from its first handle until it is sealed.
pub(super) struct Transaction {
    /// Counted from 1; it never wraps, unlike the transaction IDs in the log.
    pub(super) number: Tid,
    /// Number of blocks; several revoke records count as one block. Shared, so that it can be read without
    /// the transaction.
    len: Arc<CachePadded<AtomicU32>>,
    /// When its first block joined.
    begun: OnceLock<Instant>,
    changes: CachePadded<Mutex<Changes>>,
}

#[derive(Default)]
struct Changes {
    /// In the order of their first change; each once, unless it was revoked in between.
    blocks: Vec<(Pblk, Hint, Seal)>,
    revokes: HashSet<Pblk>,
}

impl Transaction {
    /// `len` is no longer used by another transaction. `expected`: the number of blocks to reserve memory
    /// for.
    pub(super) fn new(number: Tid, len: &Arc<CachePadded<AtomicU32>>, expected: u32) -> Self {
        len.store(0, Ordering::Relaxed);
        let changes = Changes { blocks: Vec::with_capacity(expected as usize), ..Changes::default() };
        Self {
            number,
            len: Arc::clone(len),
            begun: OnceLock::new(),
            changes: CachePadded(Mutex::new(changes)),
        }
    }

    /// Number of blocks; several revoke records count as one block.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether nothing was changed and no room is reserved.
    pub(super) fn is_untouched(&self, reserved: u32) -> bool {
        self.len() == 0 && reserved == 0
    }

    pub(super) fn join(&self, block: Pblk, seal: Seal, hint: Hint) {
        self.grow();
        self.changes.lock().blocks.push((block, hint, seal));
    }

    fn grow(&self) {
        if self.len.fetch_add(1, Ordering::Relaxed) == 0 {
            self.begun.get_or_init(Instant::now);
        }
    }

    /// How long ago its first block joined.
    pub(super) fn age(&self) -> Duration {
        self.begun.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    // INV-EN4: without the record a replay would write an old copy over the block's next use.
    pub(super) fn revoke(&self, block: Pblk) {
        let mut changes = self.changes.lock();
        if changes.revokes.insert(block) && changes.revokes.len() % REVOKES_PER_CREDIT == 1 {
            self.grow();
        }
    }

    pub(super) fn revokes(&self) -> Vec<Pblk> {
        let mut revokes: Vec<Pblk> = self.changes.lock().revokes.iter().copied().collect();
        revokes.sort_unstable();
        revokes
    }

    /// The blocks that joined so far, with their place in the cache.
    pub(super) fn blocks(&self) -> Vec<(Pblk, Hint, Seal)> {
        self.changes.lock().blocks.clone()
    }

    /// The blocks to log, with their place in the cache, in any order. A block that was freed and reused may
    /// occur twice.
    pub(super) fn take_blocks(&self) -> Vec<(Pblk, Hint, Seal)> {
        let mut changes = self.changes.lock();
        let Changes { blocks, revokes } = &mut *changes;
        let mut blocks = std::mem::take(blocks);
        blocks.retain(|(block, ..)| !revokes.contains(block));
        blocks
    }
}

/// The minimum number of revoke records in a block of 1 KiB.
const REVOKES_PER_CREDIT: usize = 120;
