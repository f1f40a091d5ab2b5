//! Finds a usable superblock on a device.

use extant_base::Group;
use extant_device::{Device, DeviceFault, foreign};
use extant_ondisk::superblock::{self, STATE_CLEAN, Superblock};
use extant_ondisk::{Features, Geometry, backup};

use crate::{OpenFault, policy};

/// A superblock that passed the checks, and its layout.
pub(crate) struct Probed {
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
}

/// Which superblock to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BySuperblock {
    /// The primary one. If it is lost or damaged, and the device holds no other format, a backup.
    #[default]
    Primary,
    /// The first sound backup.
    AnyBackup,
    /// The backup in this block, as `mke2fs` prints it and `e2fsck -b` takes it. The block size is found by
    /// trying all.
    Backup(u64),
}

/// A superblock for reading, and the damage of the image.
pub(crate) struct Readable {
    pub(crate) probed: Probed,
    /// The group of the backup in use.
    pub(crate) backup: Option<Group>,
    /// The superblock in use is not the primary one.
    pub(crate) is_substitute: bool,
    /// The image ends before the file system does.
    pub(crate) is_cut_off: bool,
    /// Names the backup in use, if the caller asked for one.
    pub(crate) note: Option<String>,
    pub(crate) damage: Vec<String>,
}

/// Reads and checks the superblock.
pub(crate) fn probe(device: &dyn Device) -> Result<Probed, OpenFault> {
    whole(device, primary(device, false).map_err(|fault| without_any(device, fault))?)
}

/// As [`probe`], but if there is a journal accepts a superblock with a wrong checksum. The journal may hold
/// the sound one, which was being written home when power failed. Only for finding the journal: probe again
/// after its replay.
pub(crate) fn probe_for_log(device: &dyn Device) -> Result<Probed, OpenFault> {
    whole(device, primary(device, true).map_err(|fault| without_any(device, fault))?)
}

/// Finds the superblock for reading: damaged volumes are read as far as possible. `for_log` as for
/// [`probe_for_log`].
pub(crate) fn probe_to_read(
    device: &dyn Device,
    by: BySuperblock,
    for_log: bool,
) -> Result<Readable, OpenFault> {
    let mut note = None;
    let mut damage = Vec::new();
    let (probed, backup) = match by {
        BySuperblock::Primary => match primary(device, for_log) {
            Ok(probed) => (probed, None),
            Err(fault) => {
                damage.push(format!("the primary superblock cannot be used: {fault}"));
                let (probed, group, line) = by_backup_after(device, fault)?;
                damage.push(line);
                (probed, group)
            }
        },
        BySuperblock::AnyBackup => {
            let found = find_backup(device, &backup::offsets(device.size_bytes()));
            let (probed, group, line) = found
                .or_else(|| rebuilt(device))
                .ok_or_else(|| OpenFault::NotExt4("no backup superblock in the usual places".to_owned()))?;
            note = Some(line);
            (probed, group)
        }
        BySuperblock::Backup(block) => {
            let found = find_backup(device, &backup::offsets_of_block(block));
            let (probed, group, line) = found.ok_or_else(|| {
                OpenFault::NotExt4(format!(
                    "block {block} holds no sound backup superblock, whatever the block size"
                ))
            })?;
            note = Some(line);
            (probed, group)
        }
    };
    let have = device.size_bytes() / probed.geometry.block_size.bytes();
    let is_cut_off = probed.geometry.blocks > have;
    let is_substitute = backup.is_some() || note.is_some() || !damage.is_empty();
    if is_cut_off {
        damage.push(format!("{}; what lies beyond cannot be read", cut_off(have, &probed.geometry)));
    }
    Ok(Readable { probed, backup, is_substitute, is_cut_off, note, damage })
}

/// A superblock instead of the primary one, the group of the backup, and a description.
type Substitute = (Probed, Option<Group>, String);

/// A backup instead of a primary superblock that was refused. Not if the refusal is for its contents, or if
/// the device holds another format.
fn by_backup_after(device: &dyn Device, fault: OpenFault) -> Result<Substitute, OpenFault> {
    let is_lost = match &fault {
        OpenFault::NotExt4(_) | OpenFault::Damaged(_) => true,
        OpenFault::Device(fault) => !matches!(fault, DeviceFault::OutOfRange { .. }),
        _ => false,
    };
    if !is_lost || is_journal_device(device) {
        return Err(fault);
    }
    let found = find_backup(device, &backup::offsets(device.size_bytes()));
    match (found, foreign::identify(device)) {
        (None, None) => rebuilt(device).ok_or_else(|| without_any(device, fault)),
        (None, Some(_)) => Err(fault),
        // Another format was written over an old file system, of which backups remain for long.
        (Some(_), Some(_)) => Err(OpenFault::Overwritten(match fault {
            OpenFault::NotExt4(why) => why,
            other => other.to_string(),
        })),
        (Some(found), None) => Ok(found),
    }
}

/// The first sound backup at these offsets that gives a readable file system, with a description.
fn find_backup(device: &dyn Device, offsets: &[u64]) -> Option<Substitute> {
    offsets.iter().find_map(|&offset| {
        let mut bytes = [0; superblock::SIZE];
        device.read_at(offset, &mut bytes).ok()?;
        let sb = Superblock::decode(&bytes).ok()?;
        let group = backup::group_at(&sb, offset)?;
        let probed = judge(sb, false).ok()?;
        let block = offset / probed.geometry.block_size.bytes();
        let line =
            format!("read by the backup superblock in block {block} (group {group}), which may be older");
        Some((probed, Some(group), line))
    })
}

/// As [`find_backup`], if no copy exists.
fn rebuilt(device: &dyn Device) -> Option<Substitute> {
    let (sb, geometry) = super::rebuild::rebuild(device)?;
    let line = "there is no backup superblock; read by the group descriptors and the root directory, without checksums";
    Some((Probed { sb, geometry }, None, line.to_owned()))
}

fn is_journal_device(device: &dyn Device) -> bool {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).is_ok()
        && Superblock::decode(&bytes).is_ok_and(|sb| sb.features.has_incompat(Features::JOURNAL_DEV))
}

fn cut_off(have: u64, geometry: &Geometry) -> String {
    format!("the image ends after {have} of the file system's {} blocks", geometry.blocks)
}

/// Refuses an image that ends before its file system does.
fn whole(device: &dyn Device, probed: Probed) -> Result<Probed, OpenFault> {
    let have = device.size_bytes() / probed.geometry.block_size.bytes();
    if probed.geometry.blocks > have {
        return Err(OpenFault::Damaged(cut_off(have, &probed.geometry)));
    }
    Ok(probed)
}

/// Reads and checks the primary superblock. The device may be shorter than its file system.
fn primary(device: &dyn Device, for_log: bool) -> Result<Probed, OpenFault> {
    let not_ext4 = |why: String| match foreign::identify(device) {
        Some(found) => OpenFault::NotExt4(found.to_string()),
        None => OpenFault::NotExt4(why),
    };
    if device.size_bytes() < superblock::OFFSET + superblock::SIZE as u64 {
        return Err(not_ext4(format!(
            "the image has only {} bytes; was it copied or downloaded as a whole?",
            device.size_bytes()
        )));
    }
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let sb = Superblock::decode(&bytes).map_err(|fact| {
        not_ext4(format!(
            "the superblock's magic is {:#06x}, expected {:#06X}",
            fact.found,
            superblock::MAGIC
        ))
    })?;
    judge(sb, for_log)
}

/// Adds the remedy to the fault of a device without a superblock, and without another format.
fn without_any(device: &dyn Device, fault: OpenFault) -> OpenFault {
    let mut bytes = [0; superblock::SIZE];
    let is_without =
        device.read_at(superblock::OFFSET, &mut bytes).is_ok() && Superblock::decode(&bytes).is_err();
    match fault {
        OpenFault::NotExt4(why) if is_without && foreign::identify(device).is_none() => {
            OpenFault::NotExt4(format!("{why}; `extant rescue` finds what is left of a damaged file system"))
        }
        fault => fault,
    }
}

/// Checks that a file system can be read with this superblock.
fn judge(mut sb: Superblock, for_log: bool) -> Result<Probed, OpenFault> {
    if sb.features.has_incompat(Features::JOURNAL_DEV) {
        let why = "this is an external journal: open the file system that it belongs to".to_owned();
        return Err(OpenFault::NotExt4(why));
    }
    let damaged = |why: &str| Err(OpenFault::Damaged(format!("superblock: {why}")));
    // The checksum comes first: the features of a damaged superblock mean nothing.
    let is_known_kind = sb.checksum_type == 1;
    if sb.features.metadata_csum() && is_known_kind && !sb.verify() {
        let may_be_logged = for_log && sb.features.has_incompat(Features::RECOVER);
        match whole_before(&sb) {
            // The log has the latest state, and may be read in either case.
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
    let unreadable = policy::unreadable(&sb.features);
    if !unreadable.is_empty() {
        return Err(OpenFault::Unsupported(unreadable.join(", ")));
    }
    if sb.features.metadata_csum() && !is_known_kind {
        return damaged("checksum_type is 1 (crc32c)");
    }
    if let Some(why) = policy::contradiction(&sb.features) {
        return Err(OpenFault::Damaged(format!("superblock: {why}")));
    }
    let geometry = Geometry::new(&sb).map_err(|fact| OpenFault::Damaged(fact.to_string()))?;
    let inodes = u64::from(geometry.groups) * u64::from(geometry.inodes_per_group);
    if inodes != u64::from(sb.inodes_count) {
        let why = format!("superblock: inodes_count is {}, but the groups have {inodes}", sb.inodes_count);
        return Err(OpenFault::Damaged(why));
    }
    Ok(Probed { sb, geometry })
}

/// Bits that opening and closing change in the superblock's first sector. They change only these and the
/// checksum in its second sector, so a superblock torn between the sectors differs only in them.
const OPEN_BITS: [(u32, u32, u16); 3] =
    [(Features::RECOVER, 0, 0), (0, Features::ORPHAN_PRESENT, 0), (0, 0, STATE_CLEAN)];

/// The superblock to which the stored checksum belongs, if it differs only in such bits.
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
