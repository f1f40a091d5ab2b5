//! Chooses the superblock: the primary one, or a backup if the primary is damaged.
//!
//! ```text
//! primary sound ────────────────────────────────────────────────> primary
//! primary suspect (checksum, inode count) ── no backup differs ─> primary, with a note
//!                                         └─ a backup does ─────> that backup, with a note
//! primary no superblock, or impossible ───── a backup is sound ─> that backup, with a note
//!                                         └─ none ──────────────> the readable part of it, or nothing
//! ```
//!
//! Owns: the search for backups without the block size, and the list of damage. Does **not** own: everything
//! except the superblock (see [`super::reader`]).
//!
//! Source: kernel Documentation/filesystems/ext4/blockgroup.rst, super.rst.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use extant_base::Malformed;
use extant_device::{Device, DeviceFault, foreign};
use extant_ondisk::{Features, Geometry, Superblock, backup, superblock};

use super::InspectError;
use super::format::Checksum;

/// Lines of damage that are kept; further lines are only counted.
const LINES_MAX: usize = 1000;
/// With this much damage, walks end: the image is not a file system, or was made to waste time.
const FLOOD: u64 = 10_000;

/// Damage found so far.
#[derive(Debug, Default)]
pub(super) struct DamageLog {
    lines: RefCell<Vec<String>>,
    known: RefCell<HashSet<String>>,
    more: Cell<u64>,
}

impl DamageLog {
    /// Records damage, with its place. The same text is recorded once.
    pub(super) fn note(&self, damage: impl fmt::Display) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= LINES_MAX {
            self.more.set(self.more.get().saturating_add(1));
            return;
        }
        // Replaces control characters, so that a name cannot break the line.
        let line: String = damage.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        if self.known.borrow_mut().insert(line.clone()) {
            lines.push(line);
        }
    }

    /// Whether there is so much damage that walks must end.
    pub(super) fn is_flooded(&self) -> bool {
        self.more.get() >= FLOOD
    }

    /// The recorded lines in order, and the number of omitted ones.
    pub(super) fn into_lines(self) -> Vec<String> {
        let mut lines = self.lines.into_inner();
        match self.more.get() {
            0 => {}
            more if more >= FLOOD => lines.push(format!("{more} more, and then the walk was given up")),
            more => lines.push(format!("{more} more")),
        }
        lines
    }
}

/// Where the superblock in use was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// At byte 1024.
    Primary,
    /// In a backup group.
    Backup {
        /// The group number in the backup itself.
        group: u32,
        /// Byte offset on the device.
        offset: u64,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary, at byte 1024"),
            Self::Backup { group, offset } => write!(f, "BACKUP of group {group}, at byte {offset}"),
        }
    }
}

/// A device and the superblock found on it.
pub(super) struct Probe<'d> {
    pub(super) device: Box<dyn Device>,
    pub(super) damage: &'d DamageLog,
    pub(super) sb: Superblock,
    pub(super) origin: Origin,
    /// The geometry from the superblock; an error if its numbers are impossible, and for journal devices.
    pub(super) geometry: Result<Geometry, Malformed>,
}

impl<'d> Probe<'d> {
    /// Finds the superblock to use.
    ///
    /// # Errors
    /// [`InspectError::Unreadable`] if the device cannot be read, or has no ext4 superblock in any usual
    /// place.
    pub(super) fn find(device: Box<dyn Device>, damage: &'d DamageLog) -> Result<Self, InspectError> {
        let primary = match read_super(&*device, superblock::OFFSET) {
            Ok(bytes) => Superblock::decode(&bytes).map_err(|fault| broken_rule(&fault)),
            // A device that ends before the superblock has no file system; a device with a read error may
            // have backups.
            Err(fault @ DeviceFault::OutOfRange { .. }) => {
                return Err(InspectError::Unreadable(match foreign::identify(&*device) {
                    Some(found) => found.to_string(),
                    None => format!("too small to be an ext4 file system: {fault}"),
                }));
            }
            Err(fault) => Err(fault.to_string()),
        };
        let suspicion = match &primary {
            Ok(sb) => suspicion(sb),
            Err(reason) => Some(reason.clone()),
        };
        let Some(reason) = suspicion else {
            let sb = primary.map_err(InspectError::Unreadable)?;
            return Ok(Self::new(device, damage, sb, Origin::Primary));
        };
        let backup = find_backup(&*device);
        let (sb, origin) = match (primary, backup) {
            (Ok(primary), Some((backup, _))) if same_layout(&primary, &backup) => (primary, Origin::Primary),
            (_, Some((backup, offset))) => {
                let group = u32::from(backup.block_group_nr);
                (backup, Origin::Backup { group, offset })
            }
            (Ok(primary), None) => (primary, Origin::Primary),
            (Err(reason), None) => {
                let why = match foreign::identify(&*device) {
                    Some(found) => found.to_string(),
                    None => {
                        format!(
                            "the superblock {reason}, and there is no backup superblock in the usual places; \
                             `extant rescue` finds what is left of a damaged file system"
                        )
                    }
                };
                return Err(InspectError::Unreadable(format!("no ext4 file system: {why}")));
            }
        };
        damage.note(match origin {
            Origin::Primary => format!("superblock: {reason}"),
            Origin::Backup { group, offset } => {
                format!("superblock: {reason}; the backup of group {group} at byte {offset} is used instead")
            }
        });
        Ok(Self::new(device, damage, sb, origin))
    }

    fn new(device: Box<dyn Device>, damage: &'d DamageLog, sb: Superblock, origin: Origin) -> Self {
        let geometry = Geometry::new(&sb);
        Self { device, damage, sb, origin, geometry }
    }

    /// The superblock's checksum; `None` without metadata_csum.
    pub(super) fn checksum(&self) -> Option<Checksum> {
        self.sb.features.metadata_csum().then(|| super_checksum(&self.sb))
    }

    /// Whether this is a journal device, without a file system of its own.
    pub(super) fn is_journal_device(&self) -> bool {
        self.sb.features.has_incompat(Features::JOURNAL_DEV)
    }
}

/// Why not to trust this superblock; `None` if it looks sound.
fn suspicion(sb: &Superblock) -> Option<String> {
    if sb.features.has_incompat(Features::JOURNAL_DEV) {
        return (!sb.verify()).then(|| format!("checksum {}", super_checksum(sb).text()));
    }
    let geometry = match Geometry::new(sb) {
        Ok(geometry) => geometry,
        Err(fault) => return Some(broken_rule(&fault)),
    };
    if !sb.verify() {
        return Some(format!("checksum {}", super_checksum(sb).text()));
    }
    (sb.inodes_count != geometry.inodes()).then(|| {
        format!(
            "counts {} inodes, but {} groups of {} make {}",
            sb.inodes_count,
            geometry.groups,
            geometry.inodes_per_group,
            geometry.inodes()
        )
    })
}

/// The broken rule without its place, for messages that already name the superblock.
fn broken_rule(fault: &Malformed) -> String {
    format!("{}, found {:#x}", fault.rule, fault.found)
}

fn super_checksum(sb: &Superblock) -> Checksum {
    let sealed = sb.sealed();
    let computed = sealed.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    Checksum { stored: sb.checksum, computed }
}

/// Whether both describe the same file system with the same layout. Free counts, times and states may differ.
fn same_layout(primary: &Superblock, backup: &Superblock) -> bool {
    let incompat = |sb: &Superblock| sb.features.incompat & !Features::RECOVER;
    Geometry::new(primary) == Geometry::new(backup)
        && incompat(primary) == incompat(backup)
        && primary.features.metadata_csum() == backup.features.metadata_csum()
        && primary.fs_seed() == backup.fs_seed()
}

/// The first sound backup in the places where mke2fs writes them.
fn find_backup(device: &dyn Device) -> Option<(Superblock, u64)> {
    backup::offsets(device.size_bytes()).into_iter().find_map(|offset| {
        let sb = Superblock::decode(&read_super(device, offset).ok()?).ok()?;
        backup::group_at(&sb, offset)?;
        Some((sb, offset))
    })
}

fn read_super(device: &dyn Device, offset: u64) -> Result<[u8; superblock::SIZE], DeviceFault> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(offset, &mut bytes)?;
    Ok(bytes)
}
