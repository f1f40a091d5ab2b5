//! Opening for writing, and closing.
//!
//! ```text
//! probe -> writable? free (mmp)? -> replay the log home -> (fast commits in one transaction, home)
//!       -> mark it clean -> probe again -> journal, allocator, inodes, quota files
//!       -> RECOVER into the superblock -> remaining orphans -> Volume
//! close: commit -> checkpoint -> log clean -> counts into the superblock, RECOVER out of it
//! ```
//!
//! A crash may interrupt any stage; the stage then runs again.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use extant_alloc::Alloc;
use extant_base::sync::CachePadded;
use extant_base::{BlockSize, Ino, Lblk, Pblk};
use extant_buffer::{Kind, Owner, Seal};
use extant_device::Device;
use extant_flush::Coordinator;
use extant_inode::{
    Change, DataPath, InodeCache, Inodes, OrphanFile, OrphanMode, Orphans, Overrides, Shared, Slot,
};
use extant_journal::{CommitReason, Journal, ReplayTarget, Work};
use extant_mapping::MapState;
use extant_memory::Budget;
use extant_ondisk::errors::ErrorLog;
use extant_ondisk::orphan_file::OrphanBlock;
use extant_ondisk::superblock::{self, STATE_CLEAN, STATE_ERRORS, Superblock};
use extant_ondisk::{Features, Geometry};
use parking_lot::Mutex;

use super::delete::Orphaned;
use super::discard::Discards;
use super::errors::Errors;
use super::writeback::{EXPIRE_MS, Flusher};
use super::xattrs::SharedXattrs;
use super::{COMMIT_INTERVAL, CommitClient, OnError, Writer};
use crate::fast_commit::{self, NameChanges};
use crate::mmp::MountGuard;
use crate::open::{PIECES_MAX, budget_of, device_blocks, log_of};
use crate::probe::{Probed, probe, probe_for_log};
use crate::problems::Problems;
use crate::{Fault, OpenFault, OpenOptions, Recovery, Volume, policy};

/// Options for writing.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// How orphans are tracked.
    pub orphans: OrphanMode,
    /// Also track what is deleted or truncated in one transaction: for comparing the modes.
    pub track_all_orphans: bool,
    /// Do not flush at commits: for measurements, and for devices that make writes durable at once.
    pub no_barriers: bool,
    /// Most blocks in a transaction. 0 stands for the smaller of the log's limit and an eighth of the budget,
    /// which counts as at least 512 blocks.
    pub transaction_max: u32,
    /// How file data gets from memory to the device.
    pub data: DataPath,
    /// File data stays in folios of one page on every path: for measuring what large folios save.
    pub small_folios: bool,
    /// How threads share flushes of the device's cache.
    pub flush: extant_flush::Settings,
    /// How long a synchronous change waits for others to share its commit.
    pub batching: extant_journal::Batching,
    /// The longest time between two commits, and before file data is written back; `None` stands for 5 and 30
    /// seconds.
    pub commit_interval: Option<Duration>,
    /// How cached extent status is evicted when memory is short.
    pub extents: extant_extent_status::Policy,
    /// Nothing runs in the background. A commit happens on request or when a transaction is full, in the
    /// thread that caused it. Writeback happens on request or when much is dirty, in the writing thread.
    pub no_committer: bool,
    /// Keep no journal even if the file system has one. A crash loses what is not synced, and the image may
    /// need a check.
    pub no_journal: bool,
    /// Discard freed blocks on the device once the freeing is durable.
    pub discard: bool,
    /// What to do on damage; `None` uses the superblock's setting.
    pub errors: Option<OnError>,
    /// The caller clears set-ID bits where necessary, as the kernel does before it sends a write to a FUSE
    /// server, and writing leaves them. Otherwise every write clears them, regardless of the user.
    pub keeps_set_id: bool,
    /// Changes of file data leave times alone: the caller keeps the times and sets them.
    pub keeps_times: bool,
    /// Give replaced file contents no early writeback (the kernel's `noauto_da_alloc`). Otherwise they are
    /// written back when the file is renamed over another, and when a file that was truncated to nothing is
    /// closed. A crash then leaves old contents or new ones, even for programs that do not sync.
    pub no_auto_da_alloc: bool,
    /// New inodes get their directory's group, and directories do not inherit the set-group-ID bit (the
    /// kernel's `grpid`). Otherwise only a directory with that bit passes on its group.
    pub dir_groups: bool,
    /// This is not a mount: the superblock's mount count and last mount time stay. A file system that was
    /// changed by a hundred commands does not become due for a check because of that.
    pub is_no_mount: bool,
    /// Leave reserved blocks (mke2fs -m) to privileged operations: those that run while their thread holds an
    /// [`Acting::as_root`](crate::Acting::as_root). Otherwise all operations act as root.
    pub keep_reserve: bool,
    /// The caller holds its own [`MountGuard`], on the device beneath the one given, which delays writes; see
    /// [`Volume::guard_with`].
    pub is_guarded: bool,
    /// For the crash lab.
    pub sabotage: extant_journal::Sabotage,
}

/// Longest orphan list. A longer one is a cycle or damage.
const ORPHANS_MAX: usize = 1 << 20;

/// Blocks that wait for their checkpoint take at most this part of the cache memory.
const PINNED_PART: usize = 4;
/// A transaction takes at most this part of the budget: its blocks stay in memory until they are in the log,
/// and blocks that the next transaction changes are in memory twice.
const TRANSACTION_PART: usize = 8;
/// A transaction may always have this many blocks: the smallest log has room for them.
const TRANSACTION_MIN: usize = 512;

/// Opens for writing; see [`Volume::open`].
pub(crate) fn read_write(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Volume, OpenFault> {
    let coordinator = Arc::new(Coordinator::new(device, options.write.flush));
    let device: Arc<dyn Device> = Arc::<Coordinator<_>>::clone(&coordinator);
    let probed = probe_for_log(&*device)?;
    refuse_unwritable(&probed.sb)?;
    // Dropped on every return path, which lets other hosts mount.
    let guard = match options.write.is_guarded {
        true => None,
        false => {
            let on_wait =
                |waiting: &crate::Waiting| options.waiting.iter().for_each(|notify| notify(waiting));
            MountGuard::claim_with(&device, &probed.sb, &probed.geometry, &on_wait)?
        }
    };
    let budget = budget_of(options);
    let (probed, recovery) = replay_home(&device, probed, options, &budget)?;
    let Probed { sb, geometry } = probed;
    // The log may have brought another superblock.
    refuse_unwritable(&sb)?;
    let has_log = sb.features.has_compat(Features::HAS_JOURNAL) && !options.write.no_journal;
    let log = has_log.then(|| log_of(&device, &sb, &geometry, options, &budget, None)).transpose()?;
    if let Some(log) = log.as_ref().filter(|_| !recovery.needed) {
        forget_old_log(log, &sb, &geometry)?;
    }
    // From here on the superblock says that the log is valid. Nothing in the log is valid before.
    announce(&*device, &sb, has_log, sb.features.has_compat(Features::ORPHAN_FILE))?;
    let Engine { mut writer, inodes, listed, in_file } =
        engine(&coordinator, &sb, &geometry, (log, in_journal(&sb, options, &budget)), options, &budget)?;
    let damaged = |fault: &dyn std::fmt::Display| OpenFault::Damaged(fault.to_string());
    if let Some(guard) = guard {
        writer.guard_with(&guard);
        writer.guard = Some(guard);
    }
    if !options.write.no_committer {
        *writer.committer.lock() = Some(spawn_committer(
            Arc::clone(&writer.journal),
            options.write.commit_interval.unwrap_or(COMMIT_INTERVAL),
        ));
        *writer.writeback.lock() = Some(super::writeback::spawn(&writer.flusher));
    }
    let has_errors = sb.state & STATE_ERRORS != 0;
    let done = match has_errors {
        // As the kernel: blocks of these orphans may also belong to other inodes.
        true => Orphaned::default(),
        false => writer.clean_orphans(&listed, &in_file),
    };
    // As the kernel: list entries that lead to no orphan are dropped.
    let last_orphan = writer.keeper.orphans.list_head();
    let noted = writer.change_superblock(|sb| {
        sb.last_orphan = last_orphan;
        if !options.write.is_no_mount {
            sb.mtime = seconds_now();
            sb.mnt_count = sb.mnt_count.saturating_add(1);
        }
    });
    noted.map_err(|fault| damaged(&fault))?;
    let mut recovery = Recovery { truncated_orphans: done.cut, deleted_orphans: done.deleted, ..recovery };
    if has_errors && !(listed.is_empty() && in_file.is_empty()) {
        recovery.problems.push(
            "the file system has errors: its orphans are kept; run `e2fsck -f` to repair it".to_owned(),
        );
    }
    if done.is_broken {
        recovery.problems.push(
            "the list of orphans leads to an inode that is none, and is cut there; run `e2fsck -f`"
                .to_owned(),
        );
    }
    if done.failed > 0 {
        let failed = done.failed;
        recovery
            .problems
            .push(format!("{failed} orphans could not be cleaned up, and stay; run `extant check`"));
    }
    Ok(Volume {
        dir_format: extant_dir::Format::of(&sb, &geometry),
        inodes,
        name_changes: NameChanges::default(),
        recovery,
        note: None,
        damage: Vec::new(),
        statfs: OnceLock::new(),
        writer: Some(writer),
    })
}

impl Volume {
    /// Stops writing when this guard is lost. The caller holds the guard (see [`WriteOptions::is_guarded`]).
    /// A guard notifies only the last volume that registered.
    pub fn guard_with(&self, guard: &MountGuard) {
        if let Some(writer) = &self.writer {
            writer.guard_with(guard);
        }
    }
}

impl Writer {
    fn guard_with(&self, guard: &MountGuard) {
        let (journal, keeper) = (Arc::downgrade(&self.journal), Arc::downgrade(&self.keeper));
        guard.when_lost(move |why| {
            if let (Some(journal), Some(keeper)) = (journal.upgrade(), keeper.upgrade()) {
                keeper.errors.is_lost.store(true, std::sync::atomic::Ordering::Release);
                journal.abort(why.to_owned());
            }
        });
    }
}

/// What an open volume needs for changes, and the orphans found on opening.
struct Engine {
    writer: Writer,
    inodes: Arc<Inodes>,
    listed: Vec<Ino>,
    in_file: Vec<(Slot, Ino)>,
}

fn in_journal(sb: &Superblock, options: &OpenOptions, budget: &Budget) -> extant_journal::Options {
    let block_size = sb.block_size().unwrap_or(BlockSize::MIN);
    let by_memory = (budget.limit() / TRANSACTION_PART / block_size.len()).max(TRANSACTION_MIN);
    let by_memory = u32::try_from(by_memory).unwrap_or(u32::MAX);
    let transaction_max = match options.write.transaction_max {
        0 => by_memory,
        asked => asked,
    };
    extant_journal::Options {
        is_wide: sb.features.has_incompat(Features::BIT64),
        has_checksums: sb.features.metadata_csum(),
        no_barriers: options.write.no_barriers,
        transaction_max,
        has_committer: !options.write.no_committer,
        // Without a committer nothing depends on time.
        batching: (!options.write.no_committer).then_some(options.write.batching),
        supersede: None,
        pinned_bytes_max: budget.limit() / PINNED_PART,
        sabotage: options.write.sabotage,
    }
}

fn engine(
    device: &Arc<Coordinator<Arc<dyn Device>>>,
    sb: &Superblock,
    geometry: &Geometry,
    (log, in_journal): (Option<extant_journal::Log>, extant_journal::Options),
    options: &OpenOptions,
    budget: &Arc<Budget>,
) -> Result<Engine, OpenFault> {
    let coordinator = Arc::clone(device);
    let device: Arc<dyn Device> = Arc::<Coordinator<_>>::clone(device);
    let has_log = log.is_some();
    let has_external_log = log.as_ref().is_some_and(|log| log.map().is_external());
    let data = match options.write.data {
        DataPath::Journal if log.is_none() => DataPath::Writeback,
        path => path,
    };
    let mut shared = Shared::new(Arc::clone(&device), sb.clone(), geometry.clone(), Arc::clone(budget));
    shared.journals_data = data == DataPath::Journal;
    shared.small_folios = options.write.small_folios;
    let inodes = Arc::new(Inodes::new(shared, Overrides::new()));
    let shared = Arc::clone(inodes.shared());
    let journal = Journal::open(Arc::clone(&shared.buffers), device, log, in_journal);
    let journal = Arc::new(journal.map_err(|fault| OpenFault::Journal(fault.to_string()))?);
    let damaged = |fault: &dyn std::fmt::Display| OpenFault::Damaged(fault.to_string());
    let privilege = match options.write.keep_reserve {
        true => extant_alloc::Privilege::User,
        false => extant_alloc::Privilege::Root,
    };
    let in_alloc = extant_alloc::Options {
        budget: Some(Arc::clone(budget)),
        privilege,
        ..extant_alloc::Options::default()
    };
    let alloc =
        Alloc::open(Arc::clone(&shared.buffers), sb, geometry, in_alloc).map_err(|fault| damaged(&fault))?;
    // As the kernel: the superblock's counts may be wrong, and delayed allocation reserves space by them.
    alloc.recount().map_err(|fault| damaged(&fault))?;
    let (superblock_block, superblock_at) = superblock_place(geometry);
    let orphan_file = sb.features.has_compat(Features::ORPHAN_FILE);
    let file = if orphan_file { Some(load_orphan_file(&inodes)?) } else { None };
    let in_file = file.as_ref().map(OrphanFile::used).unwrap_or_default();
    let listed = listed(&inodes, sb);
    let keeper = Arc::new(CommitClient {
        live: InodeCache::new(
            Arc::clone(&shared),
            (data, options.write.extents),
            options.write.sabotage.forget_orphans,
        ),
        alloc,
        orphans: Orphans::new(options.write.orphans, file, (superblock_block, superblock_at)),
        errors: Errors::new(sb, options.write.errors),
        index: extant_dir::Format::of(sb, geometry).index,
        superblock_at,
        discards: Discards::new(options.write.discard),
    });
    let client: Arc<dyn extant_journal::Client> = Arc::<CommitClient>::clone(&keeper);
    journal.set_client(client);
    keeper.live.count_quotas().map_err(|fault| damaged(&fault))?;
    let salt = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), sb.uuid);
    let flusher = Arc::new(Flusher {
        keeper: Arc::clone(&keeper),
        journal: Arc::clone(&journal),
        device: coordinator,
        has_log,
        has_external_log,
        no_barriers: options.write.no_barriers,
        has_thread: !options.write.no_committer,
        expire_ms: options.write.commit_interval.map_or(EXPIRE_MS, |interval| {
            u64::try_from(interval.as_millis()).map_or(EXPIRE_MS, |ms| ms.min(EXPIRE_MS))
        }),
        is_closing: AtomicBool::new(false),
        begun: Instant::now(),
        sabotage: options.write.sabotage,
    });
    let writer = Writer {
        keeper,
        journal,
        flusher,
        writeback: Mutex::new(None),
        inodes: Arc::clone(&inodes),
        xattrs: SharedXattrs::new(),
        renames: Mutex::new(()),
        // Far apart, because each step adds a large odd number.
        generations: std::array::from_fn(|at| {
            CachePadded(AtomicU64::new(salt ^ extant_base::salted::spread(at as u64)))
        }),
        dir_format: extant_dir::Format::of(sb, geometry),
        committer: Mutex::new(None),
        skip_short_orphans: !options.write.track_all_orphans,
        keeps_set_id: options.write.keeps_set_id,
        keeps_times: options.write.keeps_times,
        dir_groups: options.write.dir_groups,
        no_auto_da_alloc: options.write.no_auto_da_alloc,
        label: super::label::NewLabel::default(),
        reuse_freed: options.write.sabotage.reuse_freed,
        discard_early: options.write.sabotage.discard_early,
        guard: None,
    };
    inodes.set_live(Arc::clone(&writer.keeper) as Arc<dyn extant_inode::LiveOwner>);
    Ok(Engine { writer, inodes, listed, in_file })
}

fn refuse_unwritable(sb: &Superblock) -> Result<(), OpenFault> {
    let names = policy::unwritable(sb);
    if !names.is_empty() {
        return Err(OpenFault::Unwritable(names.join(", ")));
    }
    Ok(())
}

/// Replays the log's contents and marks the log clean.
fn replay_home(
    device: &Arc<dyn Device>,
    probed: Probed,
    options: &OpenOptions,
    budget: &Arc<Budget>,
) -> Result<(Probed, Recovery), OpenFault> {
    let Probed { sb, geometry } = &probed;
    if !sb.features.has_incompat(Features::RECOVER) {
        return Ok((probed, Recovery::default()));
    }
    let failed = |fault: &dyn std::fmt::Display| OpenFault::Journal(fault.to_string());
    let log = log_of(device, sb, geometry, options, budget, None)?;
    let target = ReplayTarget {
        fs_blocks: device_blocks(&**device, geometry),
        block_size: geometry.block_size,
        journal_uuid: log.map().is_external().then_some(sb.journal_uuid),
    };
    let plan = extant_journal::scan(log.view(), &target).map_err(|fault| failed(&fault))?;
    if !plan.is_sound() {
        let first = plan.problems.iter().find(|problem| problem.is_loss());
        let first = first.map(ToString::to_string).unwrap_or_default();
        return Err(OpenFault::Journal(format!("{first}; run `e2fsck -f` first, on a copy")));
    }
    if plan.fast_commits.is_some() && sb.features.has_ro_compat(Features::QUOTA) {
        let why = "the journal holds fast commits, which do not say what quotas become: run `e2fsck -p`, which counts them";
        return Err(OpenFault::Journal(why.to_owned()));
    }
    extant_journal::replay(&log, &plan, &**device).map_err(|fault| failed(&fault))?;
    keep_errors(&**device, sb, plan.superblock.errno)?;
    let mut problems = Problems::from(plan.problems.iter().map(ToString::to_string).collect::<Vec<_>>());
    let recovery = Recovery {
        needed: true,
        transactions: plan.transactions.len() as u64,
        blocks: plan.homes.len() as u64,
        fast_commit_records: plan.fast_commits.as_ref().map_or(0, |commits| commits.records),
        ..Recovery::default()
    };
    match &plan.fast_commits {
        None => extant_journal::mark_clean(&log, &plan).map_err(|fault| failed(&fault))?,
        Some(commits) => {
            let supersede = extant_journal::Supersede { tid: commits.tid, head: plan.head };
            write_back(device, commits, (log, supersede), options, budget, &mut problems)?;
        }
    }
    Ok((probe(&**device)?, Recovery { problems: problems.into_lines(), ..recovery }))
}

/// Writes back the changes of fast commits on top of the replayed log, and marks the log clean.
fn write_back(
    device: &Arc<dyn Device>,
    commits: &extant_journal::FastCommitPlan,
    (log, supersede): (extant_journal::Log, extant_journal::Supersede),
    options: &OpenOptions,
    budget: &Arc<Budget>,
    problems: &mut Problems,
) -> Result<(), OpenFault> {
    let Probed { sb, geometry } = probe(&**device)?;
    refuse_unwritable(&sb)?;
    let (overrides, names) = {
        let shared = Shared::new(Arc::clone(device), sb.clone(), geometry.clone(), Arc::clone(budget));
        let inodes = Inodes::new(shared, Overrides::new());
        let format = extant_dir::Format::of(&sb, &geometry);
        fast_commit::apply(commits, &inodes, &format, &mut PIECES_MAX.clone(), problems)
    };
    let coordinator = Arc::new(Coordinator::new(Arc::clone(device), options.write.flush));
    let in_journal = extant_journal::Options {
        // No commit before all changes are made.
        has_committer: false,
        transaction_max: 0,
        supersede: Some(supersede),
        ..in_journal(&sb, options, budget)
    };
    let Engine { writer, listed, in_file, .. } =
        engine(&coordinator, &sb, &geometry, (Some(log), in_journal), options, budget)?;
    let orphans = listed.into_iter().chain(in_file.into_iter().map(|(_, ino)| ino)).collect();
    writer.write_back(&overrides, &names, &orphans).map_err(|fault| {
        let help = "mount the file system once with the kernel, or run `e2fsck -p`";
        OpenFault::Journal(format!("the journal's fast commits cannot be written back: {fault}; {help}"))
    })?;
    writer.journal.close().map_err(|fault| OpenFault::Journal(fault.to_string()))
}

/// Merges errors after a replay. The superblock in place may have later errors than the one in the log,
/// because an abort of the journal writes them in place. The abort itself is an error, too.
fn keep_errors(device: &dyn Device, before: &Superblock, journal_errno: i32) -> Result<(), OpenFault> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let Ok(found) = Superblock::decode(&bytes) else { return Ok(()) };
    let mut sb = found.clone();
    if before.verify() {
        let errors = ErrorLog::of(before);
        if errors.count > sb.error_count {
            errors.put(&mut sb);
        }
        sb.state |= before.state & STATE_ERRORS;
    }
    if journal_errno != 0 {
        sb.state |= STATE_ERRORS;
    }
    if sb == found || !found.verify() {
        return Ok(());
    }
    device.write_at(superblock::OFFSET, &sb.sealed())?;
    Ok(device.flush()?)
}

/// Marks a stale log clean. A log with contents that the superblock does not ask to replay is out of date,
/// and must not be replayed later.
fn forget_old_log(log: &extant_journal::Log, sb: &Superblock, geometry: &Geometry) -> Result<(), OpenFault> {
    let failed = |fault: &dyn std::fmt::Display| OpenFault::Journal(fault.to_string());
    let target = ReplayTarget {
        fs_blocks: geometry.blocks,
        block_size: geometry.block_size,
        journal_uuid: log.map().is_external().then_some(sb.journal_uuid),
    };
    let found = extant_journal::read_superblock(log.view(), &target).map_err(|fault| failed(&fault))?;
    if found.is_clean() {
        return Ok(());
    }
    let plan = extant_journal::scan(log.view(), &target).map_err(|fault| failed(&fault))?;
    extant_journal::mark_clean(log, &plan).map_err(|fault| failed(&fault))
}

/// The superblock's block, as a commit writes it.
pub(super) const SUPERBLOCK: Seal = Seal { owner: Owner { kind: Kind::Superblock, ino: 0 }, seed: Some(0) };

/// The superblock's block, and its offset in that block.
pub(super) fn superblock_place(geometry: &Geometry) -> (Pblk, usize) {
    let bs = geometry.block_size.bytes();
    (Pblk(superblock::OFFSET / bs), (superblock::OFFSET % bs) as usize)
}

/// Marks the log as valid in the superblock, before the log holds anything. Changes bits only in the first
/// half of the superblock, so that a superblock torn in the middle is distinguishable from a damaged one (see
/// `probe`).
fn announce(device: &dyn Device, sb: &Superblock, has_log: bool, orphan_file: bool) -> Result<(), OpenFault> {
    let mut sb = sb.clone();
    if has_log {
        sb.features.incompat |= Features::RECOVER;
    } else {
        sb.state &= !STATE_CLEAN;
    }
    if orphan_file {
        sb.features.ro_compat |= Features::ORPHAN_PRESENT;
    }
    device.write_at(superblock::OFFSET, &sb.sealed())?;
    device.flush()?;
    Ok(())
}

pub(super) fn seconds_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The members of the orphan list, from its head.
fn listed(inodes: &Inodes, sb: &Superblock) -> Vec<Ino> {
    let mut found = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut next = sb.last_orphan;
    while next != 0 && seen.insert(next) && found.len() < ORPHANS_MAX {
        let Ok(link) = inodes.orphan_link(Ino(next)) else { break };
        found.push(Ino(next));
        next = link;
    }
    found
}

/// The orphan file's blocks.
fn load_orphan_file(inodes: &Inodes) -> Result<OrphanFile, OpenFault> {
    let shared = inodes.shared();
    let damaged = |why: String| OpenFault::Damaged(format!("orphan file: {why}"));
    let ino = Ino(shared.sb.orphan_file_inum);
    let inode = inodes.get(ino).map_err(|fault| damaged(fault.to_string()))?;
    let bs = shared.geometry.block_size;
    let count = inode.size() >> bs.log2();
    if count > extant_ondisk::orphan_file::MAX_BLOCKS {
        return Err(damaged(format!(
            "it has {count} blocks, more than {}",
            extant_ondisk::orphan_file::MAX_BLOCKS
        )));
    }
    let seed = shared
        .fs_seed
        .map(|seed| extant_ondisk::orphan_file::inode_seed(seed, ino, inode.fields().generation));
    let owner = extant_buffer::Owner { kind: extant_buffer::Kind::Orphans, ino: ino.0 };
    let mut blocks = Vec::new();
    for lblk in 0..count as u32 {
        let mapped = inode.map(shared, Lblk(lblk), 1).map_err(|fault| damaged(fault.to_string()))?;
        let MapState::Written(place) = mapped.state else {
            return Err(damaged(format!("block {lblk} is a hole")));
        };
        let verify = |bytes: &[u8]| {
            let block = OrphanBlock::decode(bytes)?;
            let is_right = seed.is_none_or(|seed| block.verify(seed, place));
            extant_base::Malformed::unless(
                is_right,
                "orphan file",
                "its checksum must match",
                block.stored_checksum(),
            )
        };
        let held = shared.buffers.get(place, owner, verify).map_err(|fault| damaged(fault.to_string()))?;
        let slots = extant_ondisk::orphan_file::slots_per_block(bs);
        let slots = held[..slots * 4]
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        blocks.push((place, slots.collect()));
    }
    Ok(OrphanFile::new(ino, seed, blocks))
}

fn spawn_committer(journal: Arc<Journal>, interval: Duration) -> std::thread::JoinHandle<()> {
    let commits = move || {
        while let Some(work) = journal.wait_for_work(interval) {
            let done = match work {
                Work::Commit(transaction) => journal.commit_for(transaction, CommitReason::Full),
                Work::CommitAll => journal.commit_all_for(CommitReason::Interval),
                Work::Checkpoint => journal.make_room(),
            };
            // The failure is latched; the next writer gets it.
            if done.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("extant-commit".to_owned()).spawn(commits).expect("a thread can be made")
}

impl Volume {
    /// Opens for reading and writing: replays a pending log first, and cleans up orphans.
    ///
    /// # Errors
    /// The device holds no ext4 file system, a feature cannot be written (it may be readable), the log cannot
    /// be replayed, or the device failed.
    pub fn open(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self, OpenFault> {
        read_write(device, options)
    }

    /// Writes everything home and closes. Dropping a volume without this is like a power failure: what was
    /// synced is safe.
    ///
    /// # Errors
    /// The device failed, now or before: what was synced is still in the log. [`Fault::LostWrite`]: the
    /// volume is closed, but earlier writeback of some file failed, and that was not reported yet.
    pub fn close(mut self) -> Result<(), Fault> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.dismiss();
        if writer.is_shut_down() {
            return Ok(());
        }
        let closed = writer.close(self.inodes.shared());
        if let Err(fault) = &closed {
            writer.note(fault);
        }
        closed
    }
}

impl Writer {
    fn close(&self, shared: &Shared) -> Result<(), Fault> {
        let written = self.flusher.flush_all();
        self.journal.commit_all_for(CommitReason::Close)?;
        written?;
        // Lost writes that no fsync and no sync has reported.
        let is_lost = !self.flusher.files().lost_nodes().is_empty();
        let usage = self.keeper.alloc.usage();
        self.change_superblock(|sb| {
            sb.free_blocks_count = usage.blocks_free;
            sb.free_inodes_count = u32::try_from(usage.inodes_free).unwrap_or(u32::MAX);
            sb.wtime = seconds_now();
        })?;
        self.journal.close()?;
        self.conclude(shared)?;
        if is_lost { Err(Fault::LostWrite) } else { Ok(()) }
    }

    fn dismiss(&self) {
        if let Some(writeback) = self.writeback.lock().take() {
            self.flusher.dismiss();
            let _ = writeback.join();
        }
        if let Some(committer) = self.committer.lock().take() {
            self.journal.dismiss_committer();
            let _ = committer.join();
        }
    }

    /// Changes the superblock in its own transaction.
    fn change_superblock(&self, with: impl Fn(&mut Superblock)) -> Result<(), Fault> {
        self.run(1, |change| self.keeper.edit_superblock(change, &with))
    }

    /// Marks the log as not valid in the superblock. Again changes bits only in its first half.
    fn conclude(&self, shared: &Shared) -> Result<(), Fault> {
        let mut bytes = [0; superblock::SIZE];
        shared.device.read_at(superblock::OFFSET, &mut bytes).map_err(Fault::Device)?;
        let mut sb = Superblock::decode(&bytes).map_err(|fact| Fault::corrupt(Ino(0), fact))?;
        sb.features.incompat &= !Features::RECOVER;
        if self.keeper.orphans.is_empty() {
            sb.features.ro_compat &= !Features::ORPHAN_PRESENT;
        }
        sb.state |= shared.sb.state & STATE_CLEAN;
        shared.device.write_at(superblock::OFFSET, &sb.sealed()).map_err(Fault::Device)?;
        shared.device.flush().map_err(Fault::Device)
    }
}

impl CommitClient {
    /// Changes the superblock.
    pub(super) fn edit_superblock(
        &self,
        change: &Change<'_>,
        with: &dyn Fn(&mut Superblock),
    ) -> Result<(), Fault> {
        let (block, at) = superblock_place(&self.shared().geometry);
        let mut decoded = Ok(());
        change.edit.change(block, SUPERBLOCK, &mut |bytes| {
            let place = bytes.get_mut(at..at + superblock::SIZE).unwrap_or_default();
            decoded = Superblock::decode(place).map(|mut sb| {
                with(&mut sb);
                place.copy_from_slice(&sb.encode());
            });
        })?;
        decoded.map_err(|fact| Fault::corrupt(Ino(0), fact))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.dismiss();
    }
}
