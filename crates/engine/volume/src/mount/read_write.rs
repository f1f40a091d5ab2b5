//! The read-write mount: the stages of a recovery, on the device.

use std::sync::{Arc, OnceLock};

use extant_device::Device;
use extant_flush::Coordinator;
use extant_journal::Supersede;
use extant_memory::Budget;
use extant_ondisk::Features;
use extant_ondisk::superblock::STATE_ERRORS;

use super::declare::{announce, record_mount, refuse_unwritable};
use super::locate::locate;
use super::probe::{Probed, probe, probe_for_log};
use super::problems::Problems;
use super::scan::scan;
use super::sweep::{Swept, find, load_file, sweep};
use super::wake::{Ground, Purpose, wake};
use super::{OpenOptions, Recovery, fast_commit, replay};
use crate::{MountGuard, OpenFault, Volume, WriteOptions};

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
    let budget = options.budget();
    let (Probed { sb, geometry }, mut recovery) = recover_home(&coordinator, probed, options, &budget)?;
    // The log may have brought another superblock.
    refuse_unwritable(&sb)?;
    let has_log = sb.features.has_compat(Features::HAS_JOURNAL) && !options.write.no_journal;
    let log = has_log.then(|| locate(&device, (&sb, &geometry), options, &budget, None)).transpose()?;
    if let Some(log) = log.as_ref().filter(|_| !recovery.needed) {
        replay::forget_stale(log, &*device, (&sb, &geometry))?;
    }
    // From here on the superblock says that the log is valid. Nothing in the log is valid before.
    announce(&*device, &sb, has_log)?;
    let has_errors = sb.state & STATE_ERRORS != 0;
    let ground = Ground {
        device: coordinator,
        sb,
        geometry,
        log,
        write: options.write,
        budget,
        purpose: Purpose::Use,
        counts_free: true,
    };
    let inodes = ground.inodes();
    let orphan_file = load_file(&inodes)?;
    let tracked = find(&inodes, orphan_file.as_ref());
    let (mut writer, inodes) = wake(ground, inodes, orphan_file)?;
    if let Some(guard) = guard {
        writer.hold(guard);
    }
    writer.start_threads(&options.write);
    let swept = match has_errors {
        // As the kernel: blocks of these orphans may also belong to other inodes.
        true => Swept::default(),
        false => sweep(&writer, &tracked),
    };
    record_mount(&writer, options.write.is_no_mount)?;
    (recovery.truncated_orphans, recovery.deleted_orphans) = (swept.cut, swept.deleted);
    if has_errors && !tracked.is_empty() {
        recovery.problems.push(
            "the file system has errors: its orphans are kept; run `e2fsck -f` to repair it".to_owned(),
        );
    }
    recovery.problems.extend(swept.lines());
    Ok(Volume {
        dir_format: extant_dir::Format::of(&inodes.shared().sb, &inodes.shared().geometry),
        inodes,
        recovery,
        note: None,
        damage: Vec::new(),
        statfs: OnceLock::new(),
        writer: Some(writer),
    })
}

/// Recovers on the device, except for the sweep: replays the log, applies its fast commits, marks it clean.
fn recover_home(
    coordinator: &Arc<Coordinator<Arc<dyn Device>>>,
    probed: Probed,
    options: &OpenOptions,
    budget: &Arc<Budget>,
) -> Result<(Probed, Recovery), OpenFault> {
    let device: Arc<dyn Device> = Arc::<Coordinator<_>>::clone(coordinator);
    let Probed { sb, geometry } = &probed;
    if !sb.features.has_incompat(Features::RECOVER) {
        return Ok((probed, Recovery::default()));
    }
    let log = locate(&device, (sb, geometry), options, budget, None)?;
    let scanned = scan(log, &*device, (sb, geometry))?;
    scanned.refuse_loss(sb)?;
    replay::home(&scanned, &*device, sb)?;
    let mut recovery = Recovery { needed: true, ..scanned.recovery() };
    let mut problems = Problems::from(std::mem::take(&mut recovery.problems));
    match &scanned.plan.fast_commits {
        None => replay::mark_clean(&scanned)?,
        Some(commits) => {
            let Probed { sb, geometry } = probe(&*device)?;
            refuse_unwritable(&sb)?;
            let supersede = Supersede { tid: commits.tid, head: scanned.plan.head };
            let ground = Ground {
                device: Arc::clone(coordinator),
                sb,
                geometry,
                log: Some(scanned.log.clone()),
                write: WriteOptions { no_committer: true, ..options.write },
                budget: Arc::clone(budget),
                purpose: Purpose::OneTransaction(Some(supersede)),
                counts_free: true,
            };
            fast_commit::apply(ground, commits, &mut problems)?;
        }
    }
    recovery.problems = problems.into_lines();
    Ok((probe(&*device)?, recovery))
}
