//! The state of an open volume as numbers: what a person or a monitor looks at while it is in use.
//!
//! Owns: the selection, and its names, which are the keys of JSON (see `extant status --json`): they are
//! stable, and [`VERSION`] changes if the meaning of one does. Does **not** own: counting, which each crate
//! does by itself.
//!
//! Counters count from the moment when the volume was opened. Nothing here waits for a commit or for the
//! device.

use extant_journal::CommitReason;
use serde::{Deserialize, Serialize};

use crate::{StatFs, Volume};

/// Version of the names and their meanings. Names may be added without a new version.
pub const VERSION: u32 = 1;

/// The state of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Space and inodes; `None` if they could not be read.
    pub space: Option<SpaceStatus>,
    /// The caches' memory.
    pub memory: MemoryStatus,
    /// The cache of metadata blocks.
    pub metadata: MetadataStatus,
    /// What only volumes that are open for writing have.
    pub writing: Option<WritingStatus>,
}

/// What only volumes that are open for writing have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WritingStatus {
    /// Commits of transactions.
    pub commits: CommitStatus,
    /// The journal's log, and checkpoints.
    pub log: LogStatus,
    /// File data in memory.
    pub data: DataStatus,
    /// The extent-status cache.
    pub extent_status: ExtentStatusCache,
    /// Flushes of the device.
    pub flushes: FlushStatus,
    /// Inodes to be deleted or truncated after a crash.
    pub orphans: OrphanStatus,
    /// Damage that is recorded in the superblock, and whether writing has stopped.
    pub errors: ErrorStatus,
}

/// Space and inodes, as statfs(2) has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SpaceStatus {
    pub size_bytes: u64,
    pub free_bytes: u64,
    /// Without the blocks that are reserved for root.
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

impl SpaceStatus {
    fn of(all: &StatFs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(all.block_size.into());
        Self {
            size_bytes: bytes(all.blocks),
            free_bytes: bytes(all.blocks_free),
            available_bytes: bytes(all.blocks_available),
            inodes: all.inodes.into(),
            inodes_free: all.inodes_free.into(),
        }
    }
}

/// The memory budget of all caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MemoryStatus {
    pub limit_bytes: u64,
    /// Of all caches together.
    pub used_bytes: u64,
    /// Each cache, with the bytes that it reports.
    pub owners: Vec<MemoryOwner>,
}

/// One of the caches that share the budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MemoryOwner {
    pub name: String,
    pub bytes: u64,
}

/// The cache of metadata blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MetadataStatus {
    pub hits: u64,
    pub misses: u64,
    pub evicted: u64,
    pub blocks: u64,
}

/// Commits of transactions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CommitStatus {
    pub count: u64,
    /// The commit interval had passed.
    pub by_interval: u64,
    /// A caller waited: fsync, sync, O_SYNC.
    pub by_sync: u64,
    /// The transaction was full.
    pub by_full_transaction: u64,
    /// A caller needed space that the transaction had freed.
    pub by_lack_of_space: u64,
    /// Fast commits, which do not end a transaction and are not in `count`, and their blocks.
    pub fast: u64,
    pub fast_blocks: u64,
    /// Blocks logged by all commits, and by the last one.
    pub blocks: u64,
    pub blocks_last: u64,
    /// Time of all commits, of the longest and of the last one.
    pub time_ns: u64,
    pub time_max_ns: u64,
    pub time_last_ns: u64,
    /// The running transaction: its blocks, and milliseconds since the first one was changed.
    pub running_blocks: u64,
    pub running_age_ms: u64,
    /// Operations waited for a full transaction, or one that was being closed.
    pub start_waits: u64,
    /// Time during which no operation could start because a transaction was being closed.
    pub closing_ns: u64,
}

/// The journal's log, and checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LogStatus {
    /// 0 without a journal.
    pub size_blocks: u64,
    pub used_blocks: u64,
    pub checkpoints: u64,
    /// Blocks written to their home addresses by checkpoints.
    pub home_blocks: u64,
    /// Committed blocks that are not written home.
    pub pinned_blocks: u64,
    /// Commits that waited for a checkpoint because the log was full.
    pub full_waits: u64,
    /// Revoke records.
    pub revokes: u64,
}

/// File data in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct DataStatus {
    pub dirty_bytes: u64,
    /// On the way to the device.
    pub writing_bytes: u64,
    /// Milliseconds since the oldest dirty byte was written; `None` without dirty bytes.
    pub oldest_dirty_ms: Option<u64>,
    pub files_dirty: u64,
    pub read_hit_bytes: u64,
    pub read_miss_bytes: u64,
    pub readahead_bytes: u64,
    pub written_bytes: u64,
    pub folios_evicted: u64,
    /// Writers that waited for write-back, and for how long.
    pub throttled: u64,
    pub throttled_ns: u64,
}

/// The extent-status cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ExtentStatusCache {
    pub entries: u64,
    pub reclaimable: u64,
    pub bytes: u64,
    pub hits: u64,
    pub misses: u64,
    /// Runs of the shrinker, and the entries that they examined and reclaimed.
    pub shrinker_runs: u64,
    pub scanned: u64,
    pub reclaimed: u64,
    pub shrinker_time_max_ns: u64,
}

/// Flushes of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FlushStatus {
    /// fsync calls that needed a flush.
    pub requests: u64,
    /// Flushes made for them.
    pub issued: u64,
    /// Requests that shared the flush of another one.
    pub joined: u64,
    /// Requests that an earlier flush covered.
    pub covered: u64,
    /// Flushes by commits and checkpoints.
    pub by_journal: u64,
    /// Time that requests waited for others to join, in all.
    pub delay_ns: u64,
    /// The device's flushes: moving average and maximum; `None` before the first, or if the device does not
    /// measure them.
    pub average_ns: Option<u64>,
    pub max_ns: Option<u64>,
}

/// Inodes to be deleted or truncated after a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct OrphanStatus {
    /// As the mount option `orphans=`.
    pub mode: String,
    pub count: u64,
}

/// Damage that is recorded in the superblock, and whether writing has stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ErrorStatus {
    /// Errors since the last check of the file system, by any driver.
    pub recorded: u64,
    /// Files with data that could not be written back, and that no fsync has reported yet.
    pub files_lost: u64,
    /// Why nothing is written any more.
    pub aborted: Option<String>,
}

impl Volume {
    /// The state of the volume as numbers.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = self.inodes.shared();
        let owners = shared.budget.shrinkers();
        let owner = |name: &str, bytes: usize| MemoryOwner { name: name.to_owned(), bytes: bytes as u64 };
        let metadata = self.counters().metadata_stats();
        Status {
            space: self.statfs().ok().as_ref().map(SpaceStatus::of),
            memory: MemoryStatus {
                limit_bytes: shared.budget.limit() as u64,
                used_bytes: shared.budget.used() as u64,
                owners: owners.iter().map(|cache| owner(cache.name(), cache.cached_bytes())).collect(),
            },
            metadata: MetadataStatus {
                hits: metadata.hits,
                misses: metadata.misses,
                evicted: metadata.evicted,
                blocks: metadata.blocks as u64,
            },
            writing: self.writer.as_ref().map(crate::write::Writer::status),
        }
    }
}

impl CommitStatus {
    pub(crate) fn of(stats: &extant_journal::Stats) -> Self {
        let count = |reason: CommitReason| stats.commits_for[reason as usize];
        Self {
            count: stats.commits,
            by_interval: count(CommitReason::Interval),
            by_sync: count(CommitReason::Sync),
            by_full_transaction: count(CommitReason::Full),
            by_lack_of_space: count(CommitReason::NoSpace),
            fast: stats.fast_commits,
            fast_blocks: stats.fast_blocks,
            blocks: stats.logged_blocks,
            blocks_last: stats.logged_blocks_last,
            time_ns: stats.commit_nanos,
            time_max_ns: stats.commit_nanos_max,
            time_last_ns: stats.commit_nanos_last,
            running_blocks: stats.running_blocks,
            running_age_ms: stats.running_age_ms,
            start_waits: stats.start_waits,
            closing_ns: stats.sealing_nanos,
        }
    }
}

impl LogStatus {
    pub(crate) fn of(stats: &extant_journal::Stats) -> Self {
        Self {
            size_blocks: stats.log_size_blocks,
            used_blocks: stats.log_used_blocks,
            checkpoints: stats.checkpoints,
            home_blocks: stats.home_blocks,
            pinned_blocks: stats.pinned_blocks,
            full_waits: stats.full_log_waits,
            revokes: stats.revokes,
        }
    }
}
