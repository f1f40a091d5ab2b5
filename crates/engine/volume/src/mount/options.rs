//! Options for opening, and what recovery found.

use std::sync::Arc;

use extant_device::Device;
use extant_memory::Budget;

use super::probe::BySuperblock;

/// Default size of the caches in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Options for opening.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Ignore the journal: show what is in place, as the kernel's noload.
    pub no_recovery: bool,
    /// Which superblock to use; for reading only.
    pub superblock: BySuperblock,
    /// The device of the external journal, for file systems that have one.
    pub journal_device: Option<Arc<dyn Device>>,
    /// Bytes of memory for caches; 0 stands for the default of 64 MiB.
    pub cache_bytes: usize,
    /// Called while opening for writing waits to find out whether another machine writes the file system.
    pub waiting: Option<Arc<crate::OnWait<'static>>>,
    /// Options for writing.
    pub write: crate::WriteOptions,
}

impl OpenOptions {
    pub(super) fn budget(&self) -> Arc<Budget> {
        Budget::new(if self.cache_bytes == 0 { CACHE_BYTES } else { self.cache_bytes })
    }
}

/// What recovery found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The log needed a replay.
    pub needed: bool,
    /// Transactions that the replay applies.
    pub transactions: u64,
    /// Blocks that the replay writes home.
    pub blocks: u64,
    /// Fast-commit records applied after that.
    pub fast_commit_records: u64,
    /// Files whose unfinished truncation was finished. Opening for reading shows it as finished.
    pub truncated_orphans: u64,
    /// Inodes without names that were deleted. Only opening for writing deletes them.
    pub deleted_orphans: u64,
    /// Problems with the log, as text; at most 1000 lines, and one that counts the others.
    pub problems: Vec<String>,
}
