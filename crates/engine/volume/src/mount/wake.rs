//! Wakes the engine: inodes, allocator and journal over a device whose log was replayed.
//!
//! ```text
//! Ground -- inodes() --> Inodes (for reading) -- sweep::load_file --> OrphanFile
//!   '----------------------------- wake(inodes, orphan file) --> Writer
//! ```
//!
//! Owns: which limits and options each part gets. Does **not** own: threads (see `write`), and what the
//! volume is woken for: fast commits, a sweep, or use.
//!
//! Nothing is written here. For writing, a volume of any size is opened by reading its group descriptors
//! once.

use std::sync::Arc;

use extant_alloc::Alloc;
use extant_device::Device;
use extant_flush::Coordinator;
use extant_inode::{DataPath, Inodes, OrphanFile, Shared};
use extant_journal::{Journal, Log, Supersede};
use extant_memory::Budget;
use extant_ondisk::{Features, Geometry, Superblock};

use crate::OpenFault;
use crate::write::{CommitClient, FastCommits, LogKind, WriteOptions, Writer};

/// Blocks that wait for their checkpoint take at most this part of the cache memory.
const PINNED_PART: usize = 4;
/// A transaction takes at most this part of the budget: its blocks stay in memory until they are in the log,
/// and blocks that the next transaction changes are in memory twice.
const TRANSACTION_PART: usize = 8;
/// A transaction may always have this many blocks: the smallest log has room for them.
const TRANSACTION_MIN: usize = 512;

/// What the engine stands on.
pub(super) struct Ground {
    pub(super) device: Arc<Coordinator<Arc<dyn Device>>>,
    pub(super) sb: Superblock,
    pub(super) geometry: Geometry,
    /// Where commits go; without a log they go home.
    pub(super) log: Option<Log>,
    pub(super) write: WriteOptions,
    pub(super) budget: Arc<Budget>,
    /// What the engine is woken for.
    pub(super) purpose: Purpose,
    /// Count free space from all group descriptors, because the superblock's counts may be wrong. Without
    /// this only the descriptors of groups that change are read.
    pub(super) counts_free: bool,
}

/// What the engine is woken for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// Any number of transactions.
    Use,
    /// One transaction as large as the log can hold. In a log it takes the place of the fast commits there.
    OneTransaction(Option<Supersede>),
}

impl Ground {
    /// The inodes as they are on the device, for reading. [`wake`] makes them changeable.
    pub(super) fn inodes(&self) -> Inodes {
        let device = Arc::<Coordinator<_>>::clone(&self.device);
        let mut shared =
            Shared::new(device, self.sb.clone(), self.geometry.clone(), Arc::clone(&self.budget));
        shared.journals_data = self.data() == DataPath::Journal;
        shared.small_folios = self.write.small_folios;
        Inodes::new(shared)
    }

    /// How file data gets from memory to the device.
    fn data(&self) -> DataPath {
        match self.write.data {
            DataPath::Journal if self.log.is_none() => DataPath::Writeback,
            path => path,
        }
    }

    /// Whether fast commits are written.
    fn has_fast_commits(&self) -> bool {
        let is_external = self.log.as_ref().is_some_and(|log| log.map().is_external());
        matches!(self.purpose, Purpose::Use)
            && self.log.is_some()
            && !self.write.no_fast_commits
            && FastCommits::are_possible(&self.sb, self.data(), is_external)
    }

    fn in_journal(&self) -> extant_journal::Options {
        let by_memory = self.budget.limit() / TRANSACTION_PART / self.geometry.block_size.len();
        let by_memory = u32::try_from(by_memory.max(TRANSACTION_MIN)).unwrap_or(u32::MAX);
        let (transaction_max, supersede) = match (self.purpose, self.write.transaction_max) {
            // 0 stands for the log's limit.
            (Purpose::OneTransaction(supersede), _) => (0, supersede),
            (Purpose::Use, 0) => (by_memory, None),
            (Purpose::Use, asked) => (asked, None),
        };
        // One transaction: nothing commits before all changes are made.
        let has_committer = !self.write.no_committer && matches!(self.purpose, Purpose::Use);
        extant_journal::Options {
            is_wide: self.sb.features.has_incompat(Features::BIT64),
            has_checksums: self.sb.features.metadata_csum(),
            no_barriers: self.write.no_barriers,
            transaction_max,
            has_committer,
            // Without a committer nothing depends on time.
            batching: has_committer.then_some(self.write.batching),
            supersede,
            fast_commits: self.has_fast_commits(),
            pinned_bytes_max: self.budget.limit() / PINNED_PART,
            fixed_time: self.write.fixed_time.map(|time| u64::try_from(time.seconds).unwrap_or(0)),
            sabotage: self.write.sabotage,
        }
    }
}

/// Wakes the engine. `inodes` are those of the ground.
pub(super) fn wake(
    ground: Ground,
    inodes: Inodes,
    orphan_file: Option<OrphanFile>,
) -> Result<(Writer, Arc<Inodes>), OpenFault> {
    let (data, in_journal) = (ground.data(), ground.in_journal());
    let kind = LogKind {
        has_log: ground.log.is_some(),
        is_external: ground.log.as_ref().is_some_and(|log| log.map().is_external()),
    };
    let is_fast = in_journal.fast_commits;
    let inodes = Arc::new(inodes);
    let shared = inodes.shared();
    let home: Arc<dyn Device> = Arc::<Coordinator<_>>::clone(&ground.device);
    let journal = Journal::open(Arc::clone(&shared.buffers), home, ground.log, in_journal);
    let journal = Arc::new(journal.map_err(OpenFault::journal)?);
    let in_alloc = extant_alloc::Options {
        budget: Some(ground.budget),
        privilege: match ground.write.keep_reserve {
            true => extant_alloc::Privilege::User,
            false => extant_alloc::Privilege::Root,
        },
        ..extant_alloc::Options::default()
    };
    let alloc = Alloc::open(Arc::clone(&shared.buffers), &shared.sb, &shared.geometry, in_alloc)
        .map_err(OpenFault::damaged)?;
    // As the kernel: delayed allocation reserves space by the counts.
    if ground.counts_free {
        alloc.recount().map_err(OpenFault::damaged)?;
    }
    let keeper = Arc::new(CommitClient::new(shared, alloc, orphan_file, data, is_fast, &ground.write));
    journal.set_client(Arc::<CommitClient>::clone(&keeper));
    keeper.live.count_quotas().map_err(OpenFault::damaged)?;
    let writer = Writer::new(keeper, journal, Arc::clone(&inodes), ground.device, kind, &ground.write);
    Ok((writer, inodes))
}
