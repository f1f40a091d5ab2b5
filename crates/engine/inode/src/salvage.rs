//! Reads a damaged volume with the backups of group descriptors.
//!
//! Owns: the record of descriptors that were replaced by a backup or used despite a wrong checksum, and its
//! text for messages. Does **not** own: reading them (see [`Shared::descriptor`](crate::Shared::descriptor)).
//! Only for volumes that are open for reading.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use extant_base::{Group, Pblk};

/// Maximum number of groups recorded by number; the text says only "many more" for others.
const GROUPS_MAX: usize = 4096;
/// Maximum number of groups that a line names.
const NAMED_MAX: usize = 8;

/// The source of a descriptor whose first copy is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DescriptorSource {
    /// A backup.
    Backup,
    /// A copy with a wrong checksum, because no copy has a correct one.
    Unverified,
}

/// Which copies of descriptors to try first, and which damaged descriptors were found.
#[derive(Debug, Default)]
pub struct Salvage {
    /// Descriptor blocks to try first: those next to the backup superblock in use. First block, index of that
    /// descriptor block, and number of blocks.
    pub(crate) preferred: Option<(Pblk, u32, u32)>,
    backup: Mutex<BTreeSet<u32>>,
    unverified: Mutex<BTreeSet<u32>>,
}

impl Salvage {
    /// If the superblock in use is the backup in `group` of the geometry, the descriptors next to it are
    /// tried first.
    #[must_use]
    pub fn beside(geometry: &extant_ondisk::Geometry, group: Option<Group>) -> Self {
        let head = group.map(|group| geometry.group_head(group));
        let preferred = head.filter(|head| head.descriptors.1 > 0);
        let preferred =
            preferred.map(|head| (head.descriptors.0, head.first_descriptor_block, head.descriptors.1));
        Self { preferred, ..Self::default() }
    }

    pub(crate) fn note(&self, group: Group, source: DescriptorSource) {
        let set = match source {
            DescriptorSource::Backup => &self.backup,
            DescriptorSource::Unverified => &self.unverified,
        };
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        if set.len() < GROUPS_MAX {
            set.insert(group.0);
        }
    }

    /// One line of text for each kind of replacement so far; empty if no descriptor was damaged.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |set: &Mutex<BTreeSet<u32>>, done: &str| {
            let set = set.lock().unwrap_or_else(PoisonError::into_inner);
            let mut text = format!("group descriptors are damaged, {done}: group");
            for (at, group) in set.iter().take(NAMED_MAX).enumerate() {
                let _ = write!(text, "{} {group}", if at == 0 { "" } else { "," });
            }
            match set.len() {
                0 => return None,
                GROUPS_MAX => text.push_str(" and many more"),
                len if len > NAMED_MAX => {
                    let _ = write!(text, " and {} more", len - NAMED_MAX);
                }
                _ => {}
            }
            Some(text)
        };
        let backup = line(&self.backup, "their backups are used");
        let unverified = line(&self.unverified, "no backup is better, and they are used as they are");
        backup.into_iter().chain(unverified).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_first_groups_and_counts_the_others() {
        let salvage = Salvage::default();
        assert!(salvage.lines().is_empty());
        (0..10).for_each(|group| salvage.note(Group(group), DescriptorSource::Backup));
        salvage.note(Group(3), DescriptorSource::Backup);
        let lines = salvage.lines();
        let says =
            "group descriptors are damaged, their backups are used: group 0, 1, 2, 3, 4, 5, 6, 7 and 2 more";
        assert_eq!(lines, [says]);
    }
}
