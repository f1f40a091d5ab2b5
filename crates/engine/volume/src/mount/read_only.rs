//! The read-only mount: the stages of a recovery, in memory.
//!
//! ```text
//! probe_to_read -> replay_in_memory -> engine: fast commits -> engine: sweep -> Volume
//!                  Overlay             ScratchOverlay          ScratchOverlay
//! ```
//!
//! Each stage takes a device and returns the device for the next one. A stage that fails leaves the device as
//! it was.

use std::sync::{Arc, OnceLock};

use extant_device::Device;
use extant_flush::Coordinator;
use extant_inode::{Inodes, Salvage, Shared};
use extant_journal::{FastCommitPlan, ScratchOverlay};
use extant_memory::Budget;
use extant_ondisk::superblock::Superblock;
use extant_ondisk::{Features, Geometry};

use super::locate::locate;
use super::probe::{Probed, Readable, probe_to_read};
use super::problems::Problems;
use super::scan::scan;
use super::sweep::{Swept, find, load_file, may_be_there, sweep};
use super::wake::{Ground, Purpose, wake};
use super::{OpenOptions, Recovery, fast_commit, replay};
use crate::{OnError, OpenFault, Volume, WriteOptions};

/// Bytes that a stage of a recovery in memory may change: the metadata of a truncation of 4 TiB.
const SCRATCH_BYTES_MAX: u64 = 256 << 20;

/// Opens for reading; see [`Volume::open_read_only`].
pub(crate) fn read_only(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Volume, OpenFault> {
    let found = probe_to_read(&*device, options.superblock, !options.no_recovery)?;
    let budget = options.budget();
    let Shown { device, found, recovery } = match options.no_recovery {
        true => Shown { device, found, recovery: Recovery::default() },
        false => recover_in_memory(device, found, options, &budget)?,
    };
    let inodes = inodes_to_read(&device, &found, &budget);
    let shared = inodes.shared();
    Ok(Volume {
        dir_format: extant_dir::Format::of(&shared.sb, &shared.geometry),
        inodes: Arc::new(inodes),
        recovery,
        note: found.note,
        damage: found.damage,
        statfs: OnceLock::new(),
        writer: None,
    })
}

/// A device as a recovery would leave it.
struct Shown {
    device: Arc<dyn Device>,
    found: Readable,
    recovery: Recovery,
}

/// Recovers in memory: the stages of `recover_home`, and the sweep. Writes nothing to the device.
fn recover_in_memory(
    device: Arc<dyn Device>,
    found: Readable,
    options: &OpenOptions,
    budget: &Arc<Budget>,
) -> Result<Shown, OpenFault> {
    let (mut shown, fast_commits) = replay_in_memory(device, found, options, budget)?;
    let mut problems = Problems::from(std::mem::take(&mut shown.recovery.problems));
    let may_have_orphans = may_be_there(&shown.found.probed.sb);
    if fast_commits.is_some() || may_have_orphans {
        let inodes = inodes_to_read(&shown.device, &shown.found, budget);
        let engine = EngineInMemory {
            sb: superblock_of_engine(&inodes, &mut problems),
            geometry: &shown.found.probed.geometry,
            budget,
        };
        if let Some(commits) = fast_commits {
            let applied = engine.run(&mut shown.device, Purpose::OneTransaction(None), |ground| {
                fast_commit::apply(ground, &commits, &mut problems)
            });
            if let Err(why) = applied {
                problems.push(format!("the fast commits are not shown: {why}"));
            }
        }
        if may_have_orphans {
            let inodes = inodes_to_read(&shown.device, &shown.found, budget);
            match sweep_in_memory(&engine, &mut shown.device, &inodes, &mut problems) {
                Ok(swept) => shown.recovery.truncated_orphans = swept.cut,
                Err(why) => problems.push(format!("the orphans are shown as they are: {why}")),
            }
        }
    }
    shown.recovery.problems = problems.into_lines();
    Ok(shown)
}

/// Locates, scans and replays the log if necessary, and probes again.
fn replay_in_memory(
    device: Arc<dyn Device>,
    mut found: Readable,
    options: &OpenOptions,
    budget: &Arc<Budget>,
) -> Result<(Shown, Option<FastCommitPlan>), OpenFault> {
    let features = found.probed.sb.features;
    // Backups do not record that the log needs replay, so the log itself is read.
    let may_need_replay = features.has_incompat(Features::RECOVER)
        || found.is_substitute && features.has_compat(Features::HAS_JOURNAL);
    if !may_need_replay {
        return Ok((Shown { device, found, recovery: Recovery::default() }, None));
    }
    let replay = || -> Result<_, OpenFault> {
        let Probed { sb, geometry } = &found.probed;
        let salvage = Some(Salvage::beside(geometry, found.backup));
        let log = locate(&device, (sb, geometry), options, budget, salvage)?;
        let scanned = scan(log, &*device, (sb, geometry))?;
        Ok((replay::in_memory(&scanned, &device)?, scanned.recovery(), scanned.plan.fast_commits))
    };
    let (device, recovery, fast_commits) = match replay() {
        Ok(replayed) => replayed,
        // The remains of a damaged image are shown without the log if necessary.
        Err(OpenFault::Journal(why)) if found.is_cut_off || found.is_substitute => {
            found.damage.push(format!("{why}; shown without the journal's replay"));
            (device, Recovery::default(), None)
        }
        Err(fault) => return Err(fault),
    };
    // The log may hold a newer superblock.
    let again = probe_to_read(&*device, options.superblock, false)?;
    for line in again.damage {
        if !found.damage.contains(&line) {
            found.damage.push(line);
        }
    }
    let found = Readable { damage: found.damage, note: found.note, ..again };
    Ok((Shown { device, found, recovery }, fast_commits))
}

/// Finishes truncations in memory.
fn sweep_in_memory(
    engine: &EngineInMemory<'_>,
    device: &mut Arc<dyn Device>,
    inodes: &Inodes,
    problems: &mut Problems,
) -> Result<Swept, String> {
    let has_file = engine.sb.features.has_compat(Features::ORPHAN_FILE);
    let file = if has_file { load_file(inodes).ok().flatten() } else { None };
    let tracked = find(inodes, file.as_ref());
    if let Some(why) = tracked.list_fault() {
        problems.push(format!("orphan list: {why}"));
    }
    let tracked = tracked.with_names(inodes);
    if tracked.is_empty() {
        return Ok(Swept::default());
    }
    engine.run(device, Purpose::Use, |ground| {
        let inodes = ground.inodes();
        let (writer, _) = wake(ground, inodes, file)?;
        let swept = sweep(&writer, &tracked);
        writer.journal.close().map_err(|aborted| OpenFault::Journal(aborted.cause))?;
        swept.lines().into_iter().for_each(|line| problems.push(line));
        Ok(swept)
    })
}

/// What the engine needs to run on a device in memory.
struct EngineInMemory<'a> {
    sb: Superblock,
    geometry: &'a Geometry,
    budget: &'a Arc<Budget>,
}

impl EngineInMemory<'_> {
    /// Runs a stage on a scratch overlay of `device`. If it succeeds, `device` becomes the overlay; if not,
    /// its changes are dropped.
    fn run<T>(
        &self,
        device: &mut Arc<dyn Device>,
        purpose: Purpose,
        stage: impl FnOnce(Ground) -> Result<T, OpenFault>,
    ) -> Result<T, String> {
        let scratch =
            Arc::new(ScratchOverlay::new(Arc::clone(device), self.geometry.block_size, SCRATCH_BYTES_MAX));
        let write = WriteOptions {
            no_committer: true,
            no_barriers: true,
            // Damage is met where an orphan is damaged; the others can still be cleaned up.
            errors: Some(OnError::Continue),
            ..WriteOptions::default()
        };
        let base: Arc<dyn Device> = Arc::<ScratchOverlay>::clone(&scratch);
        let done = stage(Ground {
            device: Arc::new(Coordinator::new(base, write.flush)),
            sb: self.sb.clone(),
            geometry: self.geometry.clone(),
            log: None,
            write,
            budget: Arc::clone(self.budget),
            purpose,
            counts_free: false,
        });
        match done {
            Ok(done) => {
                *device = scratch.freeze();
                Ok(done)
            }
            Err(OpenFault::Journal(why) | OpenFault::Damaged(why)) => Err(why),
            Err(fault) => Err(fault.to_string()),
        }
    }
}

/// The superblock that the engine gets in memory. All space is free in its counts, so that the engine looks
/// for free space where it needs some, and need not read all descriptors. It lacks features whose structures
/// are not shown, so that they need not be sound: quota files, and an orphan file without orphans or with
/// damage.
fn superblock_of_engine(inodes: &Inodes, problems: &mut Problems) -> Superblock {
    let mut sb = inodes.shared().sb.clone();
    (sb.free_blocks_count, sb.free_inodes_count) = (sb.blocks_count, sb.inodes_count);
    sb.features.ro_compat &= !Features::QUOTA;
    let is_used = sb.features.has_ro_compat(Features::ORPHAN_PRESENT);
    let is_readable = is_used && load_file(inodes).is_ok();
    if is_used && !is_readable {
        problems.push("the orphan file cannot be read".to_owned());
    }
    if !is_readable {
        sb.features.compat &= !Features::ORPHAN_FILE;
    }
    sb
}

/// The inodes on a device, for reading: backups replace damaged group descriptors.
fn inodes_to_read(device: &Arc<dyn Device>, found: &Readable, budget: &Arc<Budget>) -> Inodes {
    let Probed { sb, geometry } = &found.probed;
    let mut shared = Shared::new(Arc::clone(device), sb.clone(), geometry.clone(), Arc::clone(budget));
    shared.salvage = Some(Salvage::beside(geometry, found.backup));
    Inodes::new(shared)
}
