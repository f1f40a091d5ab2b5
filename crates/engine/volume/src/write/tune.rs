//! Changes of superblock fields by an offline tool: the superblock and its backups, in one transaction.
//!
//! The volume goes on with the values that it had when it was opened; close and open it again to use the new
//! ones.

use extant_base::{Group, Pblk};
use extant_buffer::{Kind, Owner, Seal};
use extant_ondisk::group_desc::ChecksumRule;
use extant_ondisk::superblock::{self, Superblock};
use extant_ondisk::{Features, Geometry};

use crate::ops::errors::Operation;
use crate::{Admin, Fault, Refusal};

/// Backups, whose contents are sealed before they are stored.
const BACKUP: Seal = Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: None };
const DESCRIPTORS: Seal = Seal { owner: Owner { kind: Kind::Descriptors, ino: 0 }, seed: None };

impl Admin<'_> {
    /// Changes the superblock and all its backups by `with`, in one transaction, and makes it durable: after
    /// a crash all of them have the old values or all have the new ones. (Without a journal they are written
    /// one after the other.)
    ///
    /// `with` may be called several times, and must leave the layout alone: sizes, counts, and features that
    /// say how blocks are stored. A change of the UUID recomputes the descriptors' checksums where they
    /// depend on it (`uninit_bg` without `metadata_csum`). Other checksums depend on [`Superblock::fs_seed`],
    /// which must stay the same.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if `with` changes the seed or the layout; [`Refusal::NoSpace`] if the journal is
    /// too small for all backups; the device failed.
    pub fn tune(self, with: &dyn Fn(&mut Superblock)) -> Result<(), Fault> {
        self.change_superblocks(with, self.uuid())
    }

    /// As [`tune`](Self::tune), for backups that have this UUID now.
    pub(super) fn change_superblocks(
        self,
        with: &dyn Fn(&mut Superblock),
        known_uuid: [u8; 16],
    ) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        let geometry = &writer.shared().geometry;
        let before = self.volume.superblock();
        let mut after = before.clone();
        with(&mut after);
        let keeps_seed = !before.features.metadata_csum() || before.fs_seed() == after.fs_seed();
        let keeps_layout = before.features.metadata_csum() == after.features.metadata_csum()
            && before.blocks_count == after.blocks_count
            && before.inodes_count == after.inodes_count
            && before.inode_size == after.inode_size
            && before.log_block_size == after.log_block_size;
        if !keeps_seed || !keeps_layout {
            return Err(Refusal::Invalid.into());
        }
        let backups: Vec<Group> =
            (1..geometry.groups).map(Group).filter(|group| geometry.has_super(*group)).collect();
        let depends_on_uuid = before.features.has_ro_compat(Features::GDT_CSUM)
            && !before.features.metadata_csum()
            && before.uuid != after.uuid;
        let step = geometry.descs_per_block() as usize;
        let tables: Vec<Group> = match depends_on_uuid {
            true => (0..geometry.groups).step_by(step).map(Group).collect(),
            false => Vec::new(),
        };
        let copies: usize = tables.iter().map(|first| descriptor_copies(geometry, *first).count()).sum();
        let credits = u32::try_from(1 + backups.len() + copies).map_err(|_| Refusal::NoSpace)?;
        if credits > writer.journal.credits_max() {
            return Err(Refusal::NoSpace.into());
        }
        if depends_on_uuid {
            // Descriptors in memory that wait for a commit would be stored with the old checksum.
            self.volume.sync()?;
            writer.journal.commit_all()?;
        }
        let changed = writer.run(credits, |change| {
            writer.keeper.edit_superblock(change, with)?;
            for group in &backups {
                change.edit.change(geometry.group_start(*group), BACKUP, &mut |bytes| {
                    let Some(place) = bytes.get_mut(..superblock::SIZE) else { return };
                    // A backup that is no superblock of this file system is left to `check`.
                    let Ok(mut backup) = Superblock::decode(place) else { return };
                    if backup.blocks_count == before.blocks_count && backup.uuid == known_uuid {
                        with(&mut backup);
                        place.copy_from_slice(&backup.sealed());
                    }
                })?;
            }
            let rule = ChecksumRule::of(&after);
            for first in &tables {
                for block in descriptor_copies(geometry, *first) {
                    change.edit.change(block, DESCRIPTORS, &mut |bytes| {
                        for (group, bytes) in
                            (first.0..geometry.groups).zip(bytes.chunks_exact_mut(geometry.desc_size))
                        {
                            rule.seal(group, bytes);
                        }
                    })?;
                }
            }
            Ok(())
        });
        self.volume.noted(Operation::Tune, changed)?;
        self.volume.sync()
    }
}

/// The block with the descriptors from group `first` on, and all its backups.
fn descriptor_copies(geometry: &Geometry, first: Group) -> impl Iterator<Item = Pblk> {
    let (home, _) = geometry.descriptor_place(first);
    let index = first.0 / geometry.descs_per_block();
    let is_classic = index < geometry.classic_desc_blocks();
    let classic = (1..if is_classic { geometry.groups } else { 1 }).filter_map(move |group| {
        let head = geometry.group_head(Group(group));
        let at = index.checked_sub(head.first_descriptor_block).filter(|at| *at < head.descriptors.1)?;
        Some(Pblk(head.descriptors.0.0 + u64::from(at)))
    });
    let in_meta_group = if is_classic { Vec::new() } else { geometry.descriptor_backups(first) };
    std::iter::once(home).chain(classic).chain(in_meta_group)
}
