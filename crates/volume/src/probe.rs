//! From a device to a superblock that can be worked with.

use device::Device;
use ondisk::superblock::{self, Superblock};
use ondisk::{Features, Geometry};

use crate::{OpenFault, policy};

/// A superblock that passed, and the layout it tells.
pub(crate) struct Probed {
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
}

/// Reads and judges the superblock.
pub(crate) fn probe(device: &dyn Device) -> Result<Probed, OpenFault> {
    if device.size_bytes() < superblock::OFFSET + superblock::SIZE as u64 {
        return Err(OpenFault::NotExt4(format!("the image has only {} bytes", device.size_bytes())));
    }
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let sb = Superblock::decode(&bytes).map_err(|fact| OpenFault::NotExt4(fact.to_string()))?;
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
        if !sb.verify() {
            return damaged(
                "its checksum is wrong (`extant inspect IMG super` shows it, and its backups may be whole)",
            );
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
