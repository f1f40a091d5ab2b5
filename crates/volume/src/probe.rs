//! From a device to a superblock that can be worked with.

use device::Device;
use ondisk::superblock::{self, STATE_CLEAN, Superblock};
use ondisk::{Features, Geometry};

use crate::{OpenFault, policy};

/// A superblock that passed, and the layout it tells.
pub(crate) struct Probed {
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
}

/// Reads and judges the superblock.
pub(crate) fn probe(device: &dyn Device) -> Result<Probed, OpenFault> {
    probe_with(device, false)
}

/// As [`probe`], but takes a superblock whose checksum is wrong for what it looks like, if there is a journal: it may hold the
/// whole one, which was being written home when power failed. Only to find the journal: probe again after its replay.
pub(crate) fn probe_for_log(device: &dyn Device) -> Result<Probed, OpenFault> {
    probe_with(device, true)
}

fn probe_with(device: &dyn Device, for_log: bool) -> Result<Probed, OpenFault> {
    if device.size_bytes() < superblock::OFFSET + superblock::SIZE as u64 {
        return Err(OpenFault::NotExt4(format!("the image has only {} bytes", device.size_bytes())));
    }
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let mut sb = Superblock::decode(&bytes).map_err(|fact| OpenFault::NotExt4(fact.to_string()))?;
    let unreadable = policy::unreadable(&sb.features);
    if sb.features.has_incompat(Features::JOURNAL_DEV) {
        let why = "this is an external journal: open the file system that it belongs to".to_owned();
        return Err(OpenFault::NotExt4(why));
    }
    if !unreadable.is_empty() {
        return Err(OpenFault::Unsupported(unreadable.join(", ")));
    }
    if sb.features.metadata_csum() {
        let damaged = |why: &str| Err(OpenFault::Damaged(format!("superblock: {why}")));
        if sb.checksum_type != 1 {
            return damaged("checksum_type is 1 (crc32c)");
        }
        let may_be_logged = for_log && sb.features.has_incompat(Features::RECOVER);
        if !sb.verify() {
            match whole_before(&sb) {
                // The log decides what happened last; it may be asked in either case.
                Some(before) => {
                    sb.features.incompat |= before.features.incompat & Features::RECOVER;
                    sb.features.ro_compat |= before.features.ro_compat & Features::ORPHAN_PRESENT;
                }
                None if may_be_logged => {}
                None => {
                    return damaged(
                        "its checksum is wrong (`extant inspect IMG super` shows it, and its backups may be whole)",
                    );
                }
            }
        }
    }
    if let Some(why) = policy::contradiction(&sb.features) {
        return Err(OpenFault::Damaged(format!("superblock: {why}")));
    }
    let geometry = Geometry::new(&sb).map_err(|fact| OpenFault::Damaged(fact.to_string()))?;
    let have = device.size_bytes() / geometry.block_size.bytes();
    if geometry.blocks > have {
        let why = format!("the image ends after {have} of the file system's {} blocks", geometry.blocks);
        return Err(OpenFault::Damaged(why));
    }
    let inodes = u64::from(geometry.groups) * u64::from(geometry.inodes_per_group);
    if inodes != u64::from(sb.inodes_count) {
        let why = format!("superblock: inodes_count is {}, but the groups have {inodes}", sb.inodes_count);
        return Err(OpenFault::Damaged(why));
    }
    Ok(Probed { sb, geometry })
}

/// A superblock that was torn between its two sectors when it was last written: opening and closing change only these bits in
/// its first half, and the checksum in its second.
const OPEN_BITS: [(u32, u32, u16); 3] =
    [(Features::RECOVER, 0, 0), (0, Features::ORPHAN_PRESENT, 0), (0, 0, STATE_CLEAN)];

/// The superblock that the stored checksum belongs to, if it differs in such bits only.
fn whole_before(sb: &Superblock) -> Option<Superblock> {
    (1..1 << OPEN_BITS.len()).find_map(|choice| {
        let mut before = sb.clone();
        for (at, (incompat, ro_compat, state)) in OPEN_BITS.into_iter().enumerate() {
            if choice >> at & 1 == 1 {
                before.features.incompat ^= incompat;
                before.features.ro_compat ^= ro_compat;
                before.state ^= state;
            }
        }
        before.verify().then_some(before)
    })
}
