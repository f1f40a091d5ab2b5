//! The block of multiple-mount protection, and the claim on a file system while its image is written.
//!
//! Owns: when the file system counts as in use, and what the block is after a write. Does **not** own: the
//! protocol (see [`MountGuard`]).

use std::ops::Range;

use extant_device::{Device, DeviceFault};
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_ondisk::{Features, Superblock, superblock};
use extant_volume::{MountGuard, OpenFault};

use crate::RepairFault;
use crate::overlay::Overlay;

/// Plans a clean block of multiple-mount protection where the plan has another one, for instance that of a
/// dump. A write leaves a clean block, and the undo file records what is written.
pub(crate) fn release_planned(overlay: &Overlay) -> Result<(), DeviceFault> {
    let Some((sb, at)) = mmp_place(overlay)? else { return Ok(()) };
    if overlay.changed()?.is_empty() || at.saturating_add(Mmp::LEN as u64) > overlay.size_bytes() {
        return Ok(());
    }
    let mut bytes = [0; Mmp::LEN];
    overlay.read_at(at, &mut bytes)?;
    let Some(mut mmp) = Mmp::decode(&bytes).ok().filter(|mmp| mmp.state() != MmpState::Clean) else {
        return Ok(());
    };
    mmp.sequence = Mmp::SEQ_CLEAN;
    if sb.features.metadata_csum() {
        mmp.seal(sb.fs_seed());
    }
    overlay.write_at(at, &mmp.encode())
}

/// The bytes of the block of multiple-mount protection, if the device has all of them.
pub(crate) fn mmp_range(device: &dyn Device) -> Result<Option<Range<u64>>, DeviceFault> {
    let range = mmp_place(device)?.map(|(_, at)| at..at.saturating_add(Mmp::LEN as u64));
    Ok(range.filter(|range| range.end <= device.size_bytes()))
}

/// The parts of `range` before and after `kept`.
pub(crate) fn around(range: &Range<u64>, kept: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (before, after) = (kept.start.clamp(range.start, range.end), kept.end.clamp(range.start, range.end));
    [range.start..before, after..range.end].into_iter().filter(|part| !part.is_empty())
}

/// The superblock, and the byte offset of the block of multiple-mount protection. `None`: the file system has
/// no such protection, or its superblock cannot be decoded.
fn mmp_place(device: &dyn Device) -> Result<Option<(Superblock, u64)>, DeviceFault> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let sb = Superblock::decode(&bytes).ok().filter(|sb| sb.features.has_incompat(Features::MMP));
    Ok(sb.and_then(|sb| {
        let at = sb.mmp_block.checked_mul(sb.block_size().ok()?.bytes())?;
        Some((sb, at))
    }))
}

/// The block of multiple-mount protection, read past the caches of this machine.
pub(crate) fn mmp_of(device: &dyn Device) -> Option<Mmp> {
    let (_, at) = mmp_place(device).ok()??;
    device.forget_cached(at, Mmp::LEN as u64);
    let mut block = vec![0; Mmp::LEN];
    device.read_at(at, &mut block).ok()?;
    Mmp::decode(&block).ok()
}

/// Does another machine write the block of multiple-mount protection? Waits for two of its intervals where
/// the block says so.
pub(crate) fn is_in_use(device: &dyn Device) -> bool {
    let read = || mmp_of(device).filter(|mmp| mmp.state() != MmpState::Clean);
    let Some(first) = read() else { return false };
    let seconds = 2 * u64::from(first.check_interval.clamp(1, 300)) + 1;
    std::thread::sleep(std::time::Duration::from_secs(seconds));
    read().is_some_and(|second| second.sequence != first.sequence)
}

/// The claim on a file system with multiple-mount protection while a repair is written or undone.
pub(crate) struct Guarded {
    guard: MountGuard,
    /// The block after the release, if it is not a clean one of this program.
    after: Option<[u8; Mmp::LEN]>,
}

impl Guarded {
    /// Claims the file system as the image has it now. `None`: it has no such protection, or the plan puts
    /// the block in another place, or replaces a damaged block. No driver mounts a file system with a damaged
    /// block, and a driver that has it mounted writes the block again within seconds, where the checks of the
    /// plan see it. That is also true of a block that only the damaged superblock disagrees with.
    ///
    /// # Errors
    /// Another machine uses the file system. The block is damaged, and the plan leaves it so.
    pub(crate) fn claim(overlay: &Overlay, was_checked: bool) -> Result<Option<Self>, RepairFault> {
        let base = overlay.base();
        let now = mmp_range(&**base)?;
        let Some(range) = mmp_range(overlay)?.filter(|range| now.as_ref() == Some(range)) else {
            return Ok(None);
        };
        let mut planned = [0; Mmp::LEN];
        overlay.read_at(range.start, &mut planned)?;
        // The plan was made while the block was that of an e2fsck, and replaces it.
        let is_over_check = was_checked && is_clean(&planned);
        match MountGuard::claim_to_repair(base, overlay, is_over_check, &|_| {}) {
            Ok(guard) => Ok(guard.map(|guard| Self { guard, after: is_clean(&planned).then_some(planned) })),
            Err(OpenFault::InUse(_)) => Err(RepairFault::InUse),
            Err(OpenFault::Device(fault)) => Err(fault.into()),
            Err(fault) => {
                let mut stored = [0; Mmp::LEN];
                base.read_at(range.start, &mut stored)?;
                // It may be damaged by the stored superblock only, which has the seed of its checksum.
                match stored == planned && !is_sound(overlay, &planned)? {
                    true => Err(RepairFault::Protection(fault.to_string())),
                    false => Ok(None),
                }
            }
        }
    }

    /// A claim, and the block after its release if that is not a clean one of this program.
    pub(crate) fn new(guard: MountGuard, after: Option<[u8; Mmp::LEN]>) -> Self {
        Self { guard, after }
    }

    /// Why the file system must not be written any more.
    pub(crate) fn lost(&self) -> Option<String> {
        self.guard.lost()
    }

    /// The bytes that the guard writes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.guard.offset()..self.guard.offset() + Mmp::LEN as u64
    }

    /// Releases the file system.
    ///
    /// # Errors
    /// Another machine has opened it, or the block cannot be written.
    pub(crate) fn release(self) -> Result<(), String> {
        self.guard.release_as(self.after)
    }
}

/// Whether the superblock of `device` agrees with this block of multiple-mount protection.
fn is_sound(device: &dyn Device, block: &[u8]) -> Result<bool, DeviceFault> {
    let Some((sb, _)) = mmp_place(device)? else { return Ok(true) };
    let seed = sb.features.metadata_csum().then(|| sb.fs_seed());
    Ok(Mmp::decode(block).is_ok_and(|mmp| seed.is_none_or(|seed| mmp.verify(seed))))
}

/// Whether a block of multiple-mount protection is that of a file system that is not in use.
pub(crate) fn is_clean(block: &[u8]) -> bool {
    Mmp::decode(block).is_ok_and(|mmp| mmp.state() == MmpState::Clean)
}
