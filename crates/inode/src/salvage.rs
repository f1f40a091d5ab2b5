//! Reading a damaged volume: group descriptors by their backups.
//!
//! Owns: which descriptors were replaced or believed in spite of a wrong checksum, and the words for it. Does
//! **not** own: reading them (see [`Shared::descriptor`](crate::Shared::descriptor)). For volumes that are
//! open for reading only.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use extant_base::{Group, Pblk};

/// Groups that are kept by number; of more it is said that there are more.
const GROUPS_MAX: usize = 4096;
/// Groups that a line names.
const NAMED_MAX: usize = 8;

/// How a descriptor was had that could not be read as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a backup.
    Backup,
    /// With a wrong checksum, since no copy has a right one.
    Unverified,
}

/// What is to be done about damaged descriptors, and was.
#[derive(Debug, Default)]
pub struct Salvage {
    /// Blocks of descriptors that are asked first: those beside the backup superblock in use, and the number
    /// of the first.
    pub(crate) preferred: Option<(Pblk, u32, u32)>,
    backup: Mutex<BTreeSet<u32>>,
    unverified: Mutex<BTreeSet<u32>>,
}

impl Salvage {
    /// Where the superblock in use is a backup, the descriptors beside it come first: those of `group` of the
    /// geometry.
    #[must_use]
    pub fn beside(geometry: &extant_ondisk::Geometry, group: Option<Group>) -> Self {
        let head = group.map(|group| geometry.group_head(group));
        let preferred = head.filter(|head| head.descriptors.1 > 0);
        let preferred =
            preferred.map(|head| (head.descriptors.0, head.first_descriptor_block, head.descriptors.1));
        Self { preferred, ..Self::default() }
    }

    pub(crate) fn note(&self, group: Group, way: Way) {
        let set = match way {
            Way::Backup => &self.backup,
            Way::Unverified => &self.unverified,
        };
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        if set.len() < GROUPS_MAX {
            set.insert(group.0);
        }
    }

    /// What was done so far, in words; nothing where nothing was damaged.
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
        (0..10).for_each(|group| salvage.note(Group(group), Way::Backup));
        salvage.note(Group(3), Way::Backup);
        let lines = salvage.lines();
        let says =
            "group descriptors are damaged, their backups are used: group 0, 1, 2, 3, 4, 5, 6, 7 and 2 more";
        assert_eq!(lines, [says]);
    }
}
