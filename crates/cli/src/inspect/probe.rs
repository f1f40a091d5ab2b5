//! Which superblock to believe: the primary one, or a backup where the primary is damaged.
//!
//! ```text
//! primary sound ────────────────────────────────────────────────> primary
//! primary suspect (checksum, inode count) ── no backup differs ─> primary, and say so
//!                                         └─ a backup does ─────> that backup, and say so
//! primary no superblock, or impossible ───── a backup is sound ─> that backup, and say so
//!                                         └─ none ──────────────> what can be read of the primary, or nothing
//! ```
//!
//! Owns: the search for backups without knowing the block size, and the list of damage. Does **not** own:
//! anything behind the superblock (see [`super::reader`]).
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

/// Lines of damage that are kept; more are only counted.
const LINES_MAX: usize = 1000;
/// So much damage that walks give up: what is left is no file system, or one that was made to waste time.
const FLOOD: u64 = 10_000;

/// Damage seen on the way.
#[derive(Debug, Default)]
pub(super) struct DamageLog {
    lines: RefCell<Vec<String>>,
    known: RefCell<HashSet<String>>,
    more: Cell<u64>,
}

impl DamageLog {
    /// Notes one damage, in words that say where it is. The same words are noted once.
    pub(super) fn note(&self, damage: impl fmt::Display) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= LINES_MAX {
            self.more.set(self.more.get().saturating_add(1));
            return;
        }
        // A line is a line, whatever a name in it holds.
        let line: String = damage.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        if self.known.borrow_mut().insert(line.clone()) {
            lines.push(line);
        }
    }

    /// Has so much been noted that a walk should end?
    pub(super) fn is_flooded(&self) -> bool {
        self.more.get() >= FLOOD
    }

    /// What was noted, in order, and how much was left out.
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
        /// The group that it says it stands in.
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

/// A device with a superblock that was found on it.
pub(super) struct Probe<'d> {
    pub(super) device: Box<dyn Device>,
    pub(super) damage: &'d DamageLog,
    pub(super) sb: Superblock,
    pub(super) origin: Origin,
    /// What follows from the superblock; an error where its numbers are impossible, and for journal devices.
    pub(super) geometry: Result<Geometry, Malformed>,
}

impl<'d> Probe<'d> {
    /// Finds the superblock to believe.
    ///
    /// # Errors
    /// [`InspectError::Unreadable`] when the device cannot be read, or holds no ext4 superblock in any usual
    /// place.
    pub(super) fn find(device: Box<dyn Device>, damage: &'d DamageLog) -> Result<Self, InspectError> {
        let primary = match read_super(&*device, superblock::OFFSET) {
            Ok(bytes) => Superblock::decode(&bytes).map_err(|fault| broken_rule(&fault)),
            // A device that ends before the superblock is no file system; one that fails to read may have
            // backups.
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
                        format!("the superblock {reason}; no backup superblock in the usual places")
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

    /// The superblock's checksum, with metadata_csum.
    pub(super) fn checksum(&self) -> Option<Checksum> {
        self.sb.features.metadata_csum().then(|| super_checksum(&self.sb))
    }

    /// Is this a journal device, with no file system of its own?
    pub(super) fn is_journal_device(&self) -> bool {
        self.sb.features.has_incompat(Features::JOURNAL_DEV)
    }
}

/// Why not to trust this superblock; `None` when nothing speaks against it.
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

/// What is wrong, where it is said already that it is the superblock.
fn broken_rule(fault: &Malformed) -> String {
    format!("{}, found {:#x}", fault.rule, fault.found)
}

fn super_checksum(sb: &Superblock) -> Checksum {
    let sealed = sb.sealed();
    let computed = sealed.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    Checksum { stored: sb.checksum, computed }
}

/// Do both describe the same file system with the same places? Free counts, times and states may differ.
fn same_layout(primary: &Superblock, backup: &Superblock) -> bool {
    let incompat = |sb: &Superblock| sb.features.incompat & !Features::RECOVER;
    Geometry::new(primary) == Geometry::new(backup)
        && incompat(primary) == incompat(backup)
        && primary.features.metadata_csum() == backup.features.metadata_csum()
        && primary.fs_seed() == backup.fs_seed()
}

/// The first sound backup in the places where mke2fs puts them.
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
