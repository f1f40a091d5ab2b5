//! Opening a volume: each stage consumes the value of the one before.
//!
//! ```text
//! probe -> Probed -> log_of -> Log -> scan -> ReplayPlan -> Overlay -> probe again -> fast commits, orphans
//!       -> Volume
//! ```

use std::sync::{Arc, OnceLock};

use extant_base::{Group, Ino, Lblk};
use extant_device::{Device, DeviceFault};
use extant_inode::{Inodes, Overrides, Salvage, Shared};
use extant_journal::{FastCommitPlan, Log, LogMap, LogRun, Overlay, ReplayPlan, ReplayTarget};
use extant_mapping::MapState;
use extant_memory::Budget;
use extant_ondisk::{Features, Geometry, Superblock};

use crate::fast_commit::{self, NameChanges};
use crate::probe::{BySuperblock, Probed, Readable, probe_to_read};
use crate::problems::Problems;
use crate::{Volume, orphans};

/// Default size of the caches in bytes.
const CACHE_BYTES: usize = 64 << 20;
/// Most runs of a journal's map. More fragmentation counts as damage.
const LOG_RUNS_MAX: usize = 1 << 20;
/// Most map pieces that recovery reads and keeps in memory, for all inodes of one open together.
pub(crate) const PIECES_MAX: usize = 1 << 22;

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

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenFault {
    /// No superblock of ext2, ext3 or ext4.
    #[error("no ext2, ext3 or ext4 file system here: {0}")]
    NotExt4(String),
    /// Features that cannot be read.
    #[error("the file system has features that extant cannot read: {0}")]
    Unsupported(String),
    /// Features that cannot be maintained while writing.
    #[error("the file system has features that extant cannot write: {0}; it can be opened for reading")]
    Unwritable(String),
    /// Another process or host has it open for writing.
    #[error("the file system is in use: {0}")]
    InUse(String),
    /// An impossible layout or other damage.
    #[error("the file system is damaged: {0}")]
    Damaged(String),
    /// The journal cannot be used.
    #[error("{0} (the state before the journal's replay can be read by opening without recovery)")]
    Journal(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
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
    /// Files with an unfinished truncation, shown as finished.
    pub truncated_orphans: u64,
    /// Inodes without names that were deleted. Only opening for writing deletes them.
    pub deleted_orphans: u64,
    /// Problems with the log, as text; at most 1000 lines, and one that counts the others.
    pub problems: Vec<String>,
}

/// The device as it looks after replay, and the fast commits to apply to it.
struct Replayed {
    device: Arc<dyn Device>,
    fast_commits: Option<FastCommitPlan>,
    recovery: Recovery,
}

/// Opens for reading; see [`Volume::open_read_only`].
pub(crate) fn read_only(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Volume, OpenFault> {
    let found = probe_to_read(&*device, options.superblock, !options.no_recovery)?;
    let Readable { probed, backup, is_substitute, is_cut_off, note, mut damage } = found;
    let budget = budget_of(options);
    // Backups do not record that the log needs replay, so the log itself is read.
    let may_wait = probed.sb.features.has_incompat(Features::RECOVER)
        || is_substitute && probed.sb.features.has_compat(Features::HAS_JOURNAL);
    let mut replayed = Replayed::nothing(Arc::clone(&device));
    if may_wait && !options.no_recovery {
        match replay(device, (&probed, backup), options, &budget) {
            Ok(done) => replayed = done,
            // The remains of a damaged image are shown without the log if necessary.
            Err(OpenFault::Journal(why)) if is_cut_off || is_substitute => {
                damage.push(format!("{why}; shown without the journal's replay"));
            }
            Err(fault) => return Err(fault),
        }
    }
    // The log may hold a newer superblock.
    let (Probed { sb, geometry }, backup) = match may_wait && !options.no_recovery {
        true => {
            let again = probe_to_read(&*replayed.device, options.superblock, false)?;
            let known = std::mem::take(&mut damage);
            damage = again.damage.into_iter().filter(|line| !known.contains(line)).collect();
            damage.splice(0..0, known);
            (again.probed, again.backup)
        }
        false => (probed, backup),
    };
    let dir_format = extant_dir::Format::of(&sb, &geometry);
    let open = |overrides: Overrides| {
        let mut shared =
            Shared::new(Arc::clone(&replayed.device), sb.clone(), geometry.clone(), Arc::clone(&budget));
        shared.salvage = Some(Salvage::beside(&geometry, backup));
        Inodes::new(shared, overrides)
    };
    let mut inodes = open(Overrides::new());
    let mut name_changes = NameChanges::default();
    let mut overrides = Overrides::new();
    let mut pieces_left = PIECES_MAX;
    let mut problems = Problems::from(std::mem::take(&mut replayed.recovery.problems));
    if let Some(plan) = &replayed.fast_commits {
        (overrides, name_changes) =
            fast_commit::apply(plan, &inodes, &dir_format, &mut pieces_left, &mut problems);
        inodes = open(overrides.clone());
    }
    if !options.no_recovery && orphans::may_be_there(&sb) {
        let truncated = orphans::finish_truncations(&inodes, &mut overrides, &mut pieces_left, &mut problems);
        replayed.recovery.truncated_orphans = truncated;
        if truncated > 0 {
            inodes = open(overrides);
        }
    }
    let recovery = Recovery { problems: problems.into_lines(), ..replayed.recovery };
    Ok(Volume {
        inodes: Arc::new(inodes),
        dir_format,
        name_changes,
        recovery,
        note,
        damage,
        statfs: OnceLock::new(),
        writer: None,
    })
}

impl Replayed {
    /// Nothing was replayed.
    fn nothing(device: Arc<dyn Device>) -> Self {
        Self { device, fast_commits: None, recovery: Recovery::default() }
    }
}

pub(crate) fn budget_of(options: &OpenOptions) -> Arc<Budget> {
    Budget::new(if options.cache_bytes == 0 { CACHE_BYTES } else { options.cache_bytes })
}

/// Scans the log and overlays its contents on the device.
fn replay(
    device: Arc<dyn Device>,
    (probed, backup): (&Probed, Option<Group>),
    options: &OpenOptions,
    budget: &Arc<Budget>,
) -> Result<Replayed, OpenFault> {
    let (sb, geometry) = (&probed.sb, &probed.geometry);
    let block_size = geometry.block_size;
    let failed = |fault: &dyn std::fmt::Display| OpenFault::Journal(fault.to_string());
    let salvage = Some(Salvage::beside(geometry, backup));
    let log = log_of(&device, sb, geometry, options, budget, salvage)?;
    let target = ReplayTarget {
        fs_blocks: device_blocks(&*device, geometry),
        block_size,
        journal_uuid: log.map().is_external().then_some(sb.journal_uuid),
    };
    let plan: ReplayPlan = extant_journal::scan(log.view(), &target).map_err(|fault| failed(&fault))?;
    let recovery = Recovery {
        needed: !plan.is_empty(),
        transactions: plan.transactions.len() as u64,
        blocks: plan.homes.len() as u64,
        fast_commit_records: plan.fast_commits.as_ref().map_or(0, |commits| commits.records),
        truncated_orphans: 0,
        deleted_orphans: 0,
        problems: plan.problems.iter().map(ToString::to_string).collect(),
    };
    if plan.homes.is_empty() {
        return Ok(Replayed { device, fast_commits: plan.fast_commits, recovery });
    }
    let overlay = Overlay::builder(device, block_size).replay(&log, &plan).map_err(|fault| failed(&fault))?;
    Ok(Replayed { device: Arc::new(overlay.build()), fast_commits: plan.fast_commits, recovery })
}

/// The log of a file system that is not open, for programs that write transactions of their own; `None` if it
/// has no journal.
///
/// # Errors
/// The journal's inode or its map is damaged, the journal is on another device that `options` lacks, or a
/// device failed.
pub fn log_on(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    options: &OpenOptions,
) -> Result<Option<Log>, OpenFault> {
    if !sb.features.has_compat(Features::HAS_JOURNAL) {
        return Ok(None);
    }
    let geometry = Geometry::new(sb).map_err(|fact| OpenFault::Damaged(fact.to_string()))?;
    log_of(device, sb, &geometry, options, &budget_of(options), None).map(Some)
}

/// The log: in the journal's inode, or on its own device.
pub(crate) fn log_of(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    geometry: &Geometry,
    options: &OpenOptions,
    budget: &Arc<Budget>,
    salvage: Option<Salvage>,
) -> Result<Log, OpenFault> {
    let refuse = |why: String| Err(OpenFault::Journal(why));
    let bs = geometry.block_size;
    if sb.journal_inum == 0 {
        let Some(external) = &options.journal_device else {
            return refuse(
                "the file system's journal is on a device of its own, which is needed to recover or write it: name that device"
                    .to_owned(),
            );
        };
        let blocks = u32::try_from(external.size_bytes() / bs.bytes()).unwrap_or(u32::MAX);
        return Ok(Log::new(Arc::clone(external), LogMap::external(blocks, bs), bs));
    }
    let mut shared = Shared::new(Arc::clone(device), sb.clone(), geometry.clone(), Arc::clone(budget));
    shared.salvage = salvage;
    let inodes = Inodes::new(shared, Overrides::new());
    let ino = Ino(sb.journal_inum);
    let inode = match inodes.get(ino) {
        Ok(inode) => inode,
        Err(fault) => return refuse(format!("the journal cannot be read: {fault}")),
    };
    let blocks = u32::try_from(inode.size() >> bs.log2()).unwrap_or(u32::MAX);
    let mut runs = Vec::new();
    let walked = inode.walk_map(inodes.shared(), Lblk(0), blocks.into(), &mut |piece| {
        // An unwritten extent is a hole of the log, whatever the device has there.
        if let MapState::Written(start) = piece.state {
            runs.push(LogRun { log: piece.lblk.0, start, len: piece.len });
        }
        (runs.len() < LOG_RUNS_MAX).then_some(())
    });
    if let Err(fault) = walked {
        return refuse(format!("the journal's map cannot be read: {fault}"));
    }
    match LogMap::internal(runs, blocks, geometry.blocks) {
        Ok(map) => Ok(Log::new(Arc::clone(device), map, bs)),
        Err(fault) => refuse(format!("the journal's map is damaged: {fault}")),
    }
}

/// Blocks that a log may write to: those of the device. The log may have a superblock with more blocks than
/// the one in place.
pub(crate) fn device_blocks(device: &dyn Device, geometry: &Geometry) -> u64 {
    device.size_bytes() >> geometry.block_size.log2()
}
