//! Judges the addresses in descriptors, and finds better ones: in backups, by the layout, by a scan.
//!
//! Does **not** own: what is stored in their place (see [`descs`](super)); nothing here writes.

use extant_base::le::{u16_at, u32_at};
use extant_base::{Group, Ino, Pblk};
use extant_check::Finding;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode;
use extant_ondisk::{Features, Geometry};

use crate::fs::Fs;

/// Blocks that a scan for an inode table reads at most.
const SCAN_MAX: u64 = 1 << 18;
/// Blocks of a table that a scan looks at.
const SCORED_MAX: u32 = 64;

/// The addresses that a group's descriptor may have.
#[derive(Clone, Copy)]
pub(super) struct Addresses<'f, 's> {
    pub(super) fs: &'f Fs<'s>,
    pub(super) group: Group,
}

impl Addresses<'_, '_> {
    /// Does the stored descriptor have other addresses than its backup?
    pub(super) fn differ_from_backup(self) -> bool {
        let (stored, backup) = (self.fs.stored_desc(self.group), self.backup(|_| true));
        stored.zip(backup).is_some_and(|(stored, backup)| places(&stored) != places(&backup))
    }

    /// The addresses of the backup, and those that the layout implies.
    pub(super) fn known(self) -> Vec<GroupDesc> {
        self.backup(|_| true).into_iter().chain(self.implied()).collect()
    }

    /// Are these blocks inside the file system, and outside of what other groups have?
    pub(super) fn is_free(self, at: u64, len: u64) -> bool {
        let flex = self.fs.sb.features.has_incompat(Features::FLEX_BG);
        let start = self.fs.geometry.group_start(self.group).0;
        let end = start + u64::from(self.fs.geometry.group_blocks(self.group));
        let inside = self.fs.notes.is_inside(Pblk(at), len)
            && (flex || (at >= start && at.saturating_add(len) <= end));
        let after = at.saturating_add(len);
        let apart = |other: u64, other_len: u64| after <= other || other.saturating_add(other_len) <= at;
        inside
            && (0..self.fs.geometry.groups).all(|other| {
                let head = self.fs.geometry.group_head(Group(other));
                let superblock = head.superblock.is_none_or(|block| apart(block.0, 1));
                let desc = self.fs.notes.desc(Group(other));
                let desc = desc.filter(|_| other != self.group.0 && self.fs.notes.is_usable(Group(other)));
                superblock
                    && apart(head.descriptors.0.0, head.descriptors.1.into())
                    && apart(head.reserved.0.0, head.reserved.1.into())
                    && desc.is_none_or(|desc| {
                        ranges(&self.fs.geometry, desc).iter().all(|(other, len)| apart(*other, *len))
                    })
            })
    }

    /// How well the first blocks of a table fit the inodes of the group: inodes that look right, less those
    /// that do not. 0 if all are empty.
    pub(super) fn table_score(self, table: u64) -> i64 {
        self.part_score(table, 0)
    }

    /// The score of one block of a table.
    fn part_score(self, table: u64, index: u32) -> i64 {
        let table = table.saturating_add(index.into());
        if !self.fs.notes.is_inside(Pblk(table), 1) {
            return -1;
        }
        let Ok(bytes) = self.fs.read_block(Pblk(table)) else { return -1 };
        let size = self.fs.geometry.inode_size;
        let first = self.group.0 * self.fs.geometry.inodes_per_group
            + 1
            + index * self.fs.geometry.inodes_per_block();
        let mut score = 0;
        for (raw, number) in bytes.chunks_exact(size).zip(first..) {
            if raw.iter().all(|byte| *byte == 0) {
                continue;
            }
            let ino = Ino(number);
            let is_right = if self.fs.sb.verifies_inodes() {
                inode::verify(raw, inode::inode_seed(self.fs.sb.fs_seed(), ino, u32_at(raw, 0x64)))
            } else {
                let kind = u16_at(raw, 0) & 0xF000;
                matches!(kind, 0 | 0x1000 | 0x2000 | 0x4000 | 0x6000 | 0x8000 | 0xA000 | 0xC000)
                    && u32_at(raw, 0x70) == 0
            };
            score += if is_right { 1 } else { -1 } + self.dir_score(ino, raw);
        }
        if self.group.0 == 0 && index == 0 && score == 0 { -1 } else { score }
    }

    /// Does a directory begin with its own number? 0 for what is no directory.
    fn dir_score(self, ino: Ino, raw: &[u8]) -> i64 {
        let Ok(inode) = inode::Inode::decode(raw) else { return 0 };
        if ino != Ino::ROOT && inode.mode & 0xF000 != 0x4000 {
            return 0;
        }
        if self.fs.is_inline(&inode) {
            return if ino == Ino::ROOT && u32_at(&inode.block, 0) == Ino::ROOT.0 { 4 } else { 0 };
        }
        let first = self.fs.walk(ino, &inode).runs.first().copied().filter(|run| run.lblk.0 == 0);
        let Some(bytes) = first.and_then(|run| self.fs.read_block(run.pblk).ok()) else { return 0 };
        let is_dot = bytes[6] == 1 && bytes[8] == b'.' && u16_at(&bytes, 4) == 12;
        match is_dot {
            true if u32_at(&bytes, 0) == ino.0 => 4,
            true => -4,
            false => 0,
        }
    }

    /// Searches for the inode table of a group.
    pub(super) fn scan_for_table(self) -> Option<u64> {
        let len = u64::from(self.fs.geometry.itable_blocks());
        let end = self.fs.space.end().min(SCAN_MAX);
        let mut best: Option<(i64, u64)> = None;
        for at in u64::from(self.fs.geometry.first_data_block) + 1..end.saturating_sub(len) {
            let score = self.table_score(at);
            if score <= 1 || !self.is_free(at, len) {
                continue;
            }
            // The log holds copies of single blocks of tables.
            let parts = self.fs.geometry.itable_blocks().min(SCORED_MAX);
            let score = score + (1..parts).map(|index| self.part_score(at, index)).sum::<i64>();
            if best.is_none_or(|(best, _)| score > best) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// The first backup of a descriptor whose bytes satisfy `is_right`.
    pub(super) fn backup(self, is_right: impl Fn(&[u8]) -> bool) -> Option<GroupDesc> {
        let (_, at) = self.fs.geometry.descriptor_place(self.group);
        self.fs.geometry.descriptor_backups(self.group).into_iter().find_map(|block| {
            let bytes = self.fs.read_block(block).ok()?;
            let bytes = bytes.get(at..at + self.fs.geometry.desc_size).filter(|bytes| is_right(bytes))?;
            let desc = GroupDesc::decode(bytes).ok()?;
            (desc.inode_table != 0).then_some(desc)
        })
    }

    /// The addresses that a neighbour implies: in a flex group, bitmaps and tables of consecutive groups are
    /// consecutive; without flex_bg, they have the same offset in their groups.
    pub(super) fn implied(self) -> Option<GroupDesc> {
        let per_flex = self.fs.geometry.groups_per_flex();
        let flex = self.fs.sb.features.has_incompat(Features::FLEX_BG) && per_flex > 1;
        let first = if flex { self.group.0 / per_flex * per_flex } else { 0 };
        let last = if flex {
            first.saturating_add(per_flex).min(self.fs.geometry.groups)
        } else {
            self.fs.geometry.groups
        };
        let table = u64::from(self.fs.geometry.itable_blocks());
        (first..last).filter(|other| *other != self.group.0).find_map(|other| {
            let known = self.fs.notes.desc(Group(other)).filter(|_| self.fs.notes.is_usable(Group(other)))?;
            if !flex && self.fs.geometry.has_super(Group(other)) != self.fs.geometry.has_super(self.group) {
                return None;
            }
            let shifted = |block: u64, step: u64| {
                (block + u64::from(self.group.0) * step).checked_sub(u64::from(other) * step)
            };
            let group_len = u64::from(self.fs.geometry.blocks_per_group);
            let (single, long) = if flex { (1, table) } else { (group_len, group_len) };
            Some(GroupDesc {
                block_bitmap: shifted(known.block_bitmap, single)?,
                inode_bitmap: shifted(known.inode_bitmap, single)?,
                inode_table: shifted(known.inode_table, long)?,
                ..GroupDesc::default()
            })
        })
    }
}

/// Is the block that of a file, or of the file system?
pub(super) fn is_used(fs: &Fs<'_>, block: Pblk) -> bool {
    let Some(group) = fs.geometry.group_of(block) else { return true };
    let cluster = (block.0 - fs.geometry.group_start(group).0) >> fs.geometry.cluster_log;
    let used = fs.notes.used_clusters(group);
    used.get(cluster as usize / 64).is_none_or(|word| word & 1 << (cluster % 64) != 0)
}

/// Does one of these findings lead to the block?
pub(super) fn is_in_a_file(fs: &Fs<'_>, findings: &[&Finding], block: u64) -> bool {
    findings.iter().any(|found| {
        let Some(start) = found.place.block else { return false };
        if start.0 == block {
            return true;
        }
        let Some((ino, lblk)) = found.place.ino.zip(found.place.lblk) else { return false };
        let Some(inode) = fs.inode(ino) else { return false };
        let runs = fs.walk(ino, &inode).runs;
        let run = runs.iter().find(|run| run.lblk == lblk && run.pblk == start);
        run.is_some_and(|run| (start.0..start.0 + u64::from(run.len)).contains(&block))
    })
}

/// The blocks of a group's bitmaps, and the first one of its inode table.
pub(super) fn places(desc: &GroupDesc) -> (u64, u64, u64) {
    (desc.block_bitmap, desc.inode_bitmap, desc.inode_table)
}

/// Do ranges not overlap?
pub(super) fn is_apart(ranges: &[(u64, u64)]) -> bool {
    ranges.iter().enumerate().all(|(i, (at, len))| {
        ranges[i + 1..].iter().all(|(other, other_len)| {
            at.saturating_add(*len) <= *other || other.saturating_add(*other_len) <= *at
        })
    })
}

/// First block and length of a group's bitmaps and inode table.
pub(super) fn ranges(geometry: &Geometry, desc: &GroupDesc) -> [(u64, u64); 3] {
    [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, geometry.itable_blocks().into())]
}
