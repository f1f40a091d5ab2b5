//! When commits and checkpoints happen in a run, and what the run notes.

use std::fmt;
use std::ops::AddAssign;

use extant_fsmodel::{Rng, Tree};
use extant_volume::{OpenOptions, OrphanMode, Sabotage, WriteOptions};

/// When commits and checkpoints happen between operations, and how the volume writes.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Chooses the moments.
    pub seed: u64,
    /// Percentage of operations that are followed by a sync.
    pub syncs: u32,
    /// Percentage of operations that are followed by a checkpoint.
    pub checkpoints: u32,
    /// Percentage of commits and checkpoints that are interrupted by operations.
    pub meanwhile: u32,
    /// Percentage of operations after which memory runs short.
    pub reclaims: u32,
    /// Memory for caches, in bytes. 0 selects the default, which is more than a run can use.
    pub cache_bytes: usize,
    /// How orphans are tracked.
    pub orphans: OrphanMode,
    /// Whether to track orphans also within one transaction.
    pub track_all_orphans: bool,
    /// Maximum blocks of a transaction. 0 selects the maximum that the log allows.
    pub transaction_max: u32,
    /// Whether freed blocks are discarded.
    pub discard: bool,
    /// Planted defects.
    pub sabotage: Sabotage,
}

impl Schedule {
    /// A schedule for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Random, so that these choices are independent of others that depend on a run's number.
        let mut random = Rng::new(!seed);
        let cache_bytes = *random.pick(&[0, 0, 96 << 10, 256 << 10]);
        Self {
            seed,
            syncs: 30,
            checkpoints: 10,
            meanwhile: 60,
            reclaims: if cache_bytes > 0 { 15 } else { 0 },
            cache_bytes,
            orphans: *random.pick(&[OrphanMode::File, OrphanMode::ListV3, OrphanMode::ListV0]),
            track_all_orphans: random.one_in(2),
            transaction_max: 0,
            discard: random.one_in(2),
            sabotage: Sabotage::default(),
        }
    }

    /// The same schedule without operations in the middle of commits, and with plenty of memory.
    #[must_use]
    pub fn undisturbed(self) -> Self {
        Self { meanwhile: 0, reclaims: 0, cache_bytes: 0, ..self }
    }

    pub(crate) fn opening(&self) -> OpenOptions {
        let write = WriteOptions {
            orphans: self.orphans,
            track_all_orphans: self.track_all_orphans,
            transaction_max: self.transaction_max,
            no_committer: true,
            discard: self.discard,
            sabotage: self.sabotage,
            ..WriteOptions::default()
        };
        OpenOptions { write, cache_bytes: self.cache_bytes, ..OpenOptions::default() }
    }
}

/// The tree after an operation, and the disk's events around the operation.
pub(crate) struct Step {
    /// Number of disk events when it began. For an operation in the middle of a commit or checkpoint: when
    /// that ended.
    pub(crate) begun: u64,
    pub(crate) tree: Tree,
    /// Number of disk events when it was known to be durable; `None` without a later sync.
    pub(crate) synced: Option<u64>,
    /// It came in the middle of a commit or checkpoint.
    pub(crate) is_meanwhile: bool,
}

/// Counters of concurrency and memory pressure in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Operations in the middle of commits and checkpoints.
    pub meanwhile: u64,
    /// Times that memory ran short.
    pub reclaims: u64,
    /// Reads at an offset that was read before.
    pub read_again: u64,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { meanwhile, reclaims, read_again } = self;
        write!(
            f,
            "{meanwhile} operations in the middle of commits and checkpoints, memory ran short {reclaims} times, {read_again} \
             reads of what was read before"
        )
    }
}

impl AddAssign for Pressure {
    fn add_assign(&mut self, more: Self) {
        self.meanwhile += more.meanwhile;
        self.reclaims += more.reclaims;
        self.read_again += more.read_again;
    }
}
