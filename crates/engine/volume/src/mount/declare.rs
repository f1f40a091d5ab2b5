//! What the superblock says about the mount: that the log is in use, and since when. And what it must not
//! say: features that writing does not maintain.
//!
//! ```text
//! open:   RECOVER, ORPHAN_PRESENT, not clean      before the log holds anything
//!         s_mtime, s_mnt_count, s_last_orphan     after the sweep, in a transaction
//! close:  neither of the bits, clean              after the log was emptied (see `write/close.rs`)
//! ```
//!
//! The first and the last write change bits only in the first half of the superblock, so that a superblock
//! torn in the middle is distinguishable from a damaged one (see [`probe`](super::probe)).

use extant_device::Device;
use extant_ondisk::Features;
use extant_ondisk::superblock::{self, STATE_CLEAN, Superblock};

use crate::write::{Writer, seconds_now};
use crate::{OpenFault, policy};

/// Refuses features that writing does not maintain.
pub(super) fn refuse_unwritable(sb: &Superblock) -> Result<(), OpenFault> {
    let names = policy::unwritable(sb);
    if !names.is_empty() {
        return Err(OpenFault::Unwritable(names.join(", ")));
    }
    Ok(())
}

/// Marks the log as valid in the superblock, before the log holds anything.
pub(super) fn announce(device: &dyn Device, sb: &Superblock, has_log: bool) -> Result<(), OpenFault> {
    let mut sb = sb.clone();
    if has_log {
        sb.features.incompat |= Features::RECOVER;
    } else {
        sb.state &= !STATE_CLEAN;
    }
    if sb.features.has_compat(Features::ORPHAN_FILE) {
        sb.features.ro_compat |= Features::ORPHAN_PRESENT;
    }
    device.write_at(superblock::OFFSET, &sb.sealed())?;
    device.flush()?;
    Ok(())
}

/// Records the mount. As the kernel, it also drops list entries that lead to no orphan.
pub(super) fn record_mount(writer: &Writer, is_no_mount: bool) -> Result<(), OpenFault> {
    let last_orphan = writer.keeper.orphans.list_head();
    let noted = writer.change_superblock(|sb| {
        sb.last_orphan = last_orphan;
        if !is_no_mount {
            sb.mtime = seconds_now();
            sb.mnt_count = sb.mnt_count.saturating_add(1);
        }
    });
    noted.map_err(OpenFault::damaged)
}
