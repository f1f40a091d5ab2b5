//! Scans the log: what a replay will do. Writes nothing.

use extant_device::Device;
use extant_journal::{Log, ReplayPlan, ReplayTarget};
use extant_ondisk::{Features, Geometry, Superblock};

use crate::{OpenFault, Recovery};

/// A log, and what its replay does.
pub(super) struct Scanned {
    pub(super) log: Log,
    pub(super) plan: ReplayPlan,
}

/// Scans the log of the file system on `device`.
pub(super) fn scan(
    log: Log,
    device: &dyn Device,
    (sb, geometry): (&Superblock, &Geometry),
) -> Result<Scanned, OpenFault> {
    let target = target(&log, device, (sb, geometry));
    let plan = extant_journal::scan(log.view(), &target).map_err(OpenFault::journal)?;
    Ok(Scanned { log, plan })
}

/// Returns whether the log is marked as clean.
pub(super) fn is_clean(
    log: &Log,
    device: &dyn Device,
    (sb, geometry): (&Superblock, &Geometry),
) -> Result<bool, OpenFault> {
    let target = target(log, device, (sb, geometry));
    let found = extant_journal::read_superblock(log.view(), &target).map_err(OpenFault::journal)?;
    Ok(found.is_clean())
}

/// The log may write to all blocks of the device: it may have a superblock with more blocks than the one in
/// place.
fn target(log: &Log, device: &dyn Device, (sb, geometry): (&Superblock, &Geometry)) -> ReplayTarget {
    ReplayTarget {
        fs_blocks: device.size_bytes() >> geometry.block_size.log2(),
        block_size: geometry.block_size,
        journal_uuid: log.map().is_external().then_some(sb.journal_uuid),
    }
}

impl Scanned {
    /// What the caller of an open learns about the log.
    pub(super) fn recovery(&self) -> Recovery {
        let plan = &self.plan;
        Recovery {
            needed: !plan.is_empty(),
            transactions: plan.transactions.len() as u64,
            blocks: plan.homes.len() as u64,
            fast_commit_records: plan.fast_commits.as_ref().map_or(0, |commits| commits.records),
            problems: plan.problems.iter().map(ToString::to_string).collect(),
            ..Recovery::default()
        }
    }

    /// Refuses a replay that would lose committed changes, or leave quota files wrong. Only for writing: what
    /// is left can still be read.
    pub(super) fn refuse_loss(&self, sb: &Superblock) -> Result<(), OpenFault> {
        if let Some(first) = self.plan.problems.iter().find(|problem| problem.is_loss()) {
            return Err(OpenFault::Journal(format!("{first}; run `e2fsck -f` first, on a copy")));
        }
        if self.plan.fast_commits.is_some() && sb.features.has_ro_compat(Features::QUOTA) {
            let why = "the journal holds fast commits, which do not say what quotas become: run `e2fsck -p`, which counts them";
            return Err(OpenFault::Journal(why.to_owned()));
        }
        Ok(())
    }
}
