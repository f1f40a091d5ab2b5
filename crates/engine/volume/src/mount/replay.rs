//! Replays the log: its blocks home, or shown at home by a device in memory.
//!
//! A power cut at any moment is harmless. The log needs the same replay until it is marked clean, and that is
//! written last, after the fast commits were applied.

use std::sync::Arc;

use extant_device::Device;
use extant_journal::{Log, Overlay};
use extant_ondisk::Geometry;
use extant_ondisk::errors::ErrorLog;
use extant_ondisk::superblock::{self, STATE_ERRORS, Superblock};

use super::scan::{Scanned, is_clean, scan};
use crate::OpenFault;

/// The device as it is after the replay, which writes nothing: the homes are read from the log.
pub(super) fn in_memory(scanned: &Scanned, device: &Arc<dyn Device>) -> Result<Arc<dyn Device>, OpenFault> {
    let Scanned { log, plan } = scanned;
    if plan.homes.is_empty() {
        return Ok(Arc::clone(device));
    }
    let overlay = Overlay::builder(Arc::clone(device), log.block_size()).replay(log, plan);
    Ok(Arc::new(overlay.map_err(OpenFault::journal)?.build()))
}

/// Copies the log's blocks home, durably. `before` is the superblock in place.
pub(super) fn home(scanned: &Scanned, device: &dyn Device, before: &Superblock) -> Result<(), OpenFault> {
    extant_journal::replay(&scanned.log, &scanned.plan, device).map_err(OpenFault::journal)?;
    keep_errors(device, before, scanned.plan.superblock.errno)
}

/// Marks the replayed log clean.
pub(super) fn mark_clean(scanned: &Scanned) -> Result<(), OpenFault> {
    extant_journal::mark_clean(&scanned.log, &scanned.plan).map_err(OpenFault::journal)
}

/// Marks a stale log clean. A log with contents that the superblock does not ask to replay is out of date,
/// and must not be replayed later.
pub(super) fn forget_stale(
    log: &Log,
    device: &dyn Device,
    (sb, geometry): (&Superblock, &Geometry),
) -> Result<(), OpenFault> {
    if is_clean(log, device, (sb, geometry))? {
        return Ok(());
    }
    mark_clean(&scan(log.clone(), device, (sb, geometry))?)
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
