//! The addresses in group descriptors.
//!
//! ```text
//! inode table   backup | implied by the flex group | found by a scan | new and empty (a loss)
//! bitmaps       backup | implied by the flex group | a free block
//! ```
//!
//! Bitmaps are computed anew in a later round, so a bitmap at a new address loses nothing.

use extant_base::le::{u16_at, u32_at};
use extant_base::{Group, Ino, Pblk};
use extant_check::{Finding, FindingPlace, rules};
use extant_device::Device;
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::inode;
use extant_ondisk::{Features, Geometry};

use crate::fs::Fs;

/// Blocks that a scan for an inode table reads at most.
const SCAN_MAX: u64 = 1 << 18;
/// Blocks of a table that a scan looks at.
const SCORED_MAX: u32 = 64;

/// A bitmap of a group.
struct Bitmap {
    place: fn(&GroupDesc) -> u64,
    /// The flag of a group whose bitmap is not initialized.
    uninit: u16,
    /// The rules about its bits.
    codes: [&'static str; 4],
}

const BITMAPS: [Bitmap; 2] = [
    Bitmap {
        place: |desc| desc.block_bitmap,
        uninit: BLOCK_UNINIT,
        codes: ["BM001", "BM002", "BM005", "BM007"],
    },
    Bitmap {
        place: |desc| desc.inode_bitmap,
        uninit: INODE_UNINIT,
        codes: ["BM003", "BM004", "BM006", "BM008"],
    },
];

impl Fs<'_, '_> {
    /// Repairs the addresses or the checksum of a descriptor.
    pub(crate) fn mend_desc(&mut self, finding: &Finding) {
        let Some(group) = finding.place.group else { return };
        if finding.rule.code == "GD003" {
            // The group that the finding names may be the intact one of the two.
            let suspects: Vec<Group> = (0..self.geometry.groups)
                .map(Group)
                .filter(|other| *other == group || self.differs_from_backup(*other))
                .collect();
            let before = self.overlay.changes();
            for other in suspects.iter().copied().filter(|other| *other != group) {
                self.mend_places(other, finding);
            }
            if self.overlay.changes() != before {
                return;
            }
        }
        self.mend_places(group, finding);
    }

    fn differs_from_backup(&self, group: Group) -> bool {
        let (Some(stored), Some(backup)) = (self.stored_desc(group), self.backup_desc(group)) else {
            return false;
        };
        places(&stored) != places(&backup)
    }

    fn mend_places(&mut self, group: Group, finding: &Finding) {
        if !self.done.insert(group.0) {
            return;
        }
        let Some(mut desc) = self.stored_desc(group) else { return };
        if finding.rule.code == "GD001" {
            // Drivers that trust wrong flags would skip what is in use.
            desc.flags &= !(BLOCK_UNINIT | INODE_UNINIT);
            desc.itable_unused = 0;
        }
        let mut remedies = Vec::new();
        let mut loss = None;
        let known: Vec<GroupDesc> =
            self.backup_desc(group).into_iter().chain(self.implied_desc(group)).collect();
        // A backup that is sound in itself, where the primary is not.
        let backup = known.first().filter(|backup| {
            finding.rule.code != "GD001"
                && places(backup) != places(&desc)
                && ranges(&self.geometry, backup)
                    .iter()
                    .all(|(at, len)| self.is_free_of_others(group, *at, *len))
                && is_apart(&ranges(&self.geometry, backup))
                && self.table_score(group, backup.inode_table) >= self.table_score(group, desc.inode_table)
        });
        if let Some(backup) = backup {
            (desc.block_bitmap, desc.inode_bitmap, desc.inode_table) = places(backup);
            remedies.push("use the addresses that the backup or the layout gives");
        }
        // The table first: what overlaps it is moved away.
        let table_len = u64::from(self.geometry.itable_blocks());
        let own = match self.is_free_of_others(group, desc.inode_table, table_len) {
            true => self.table_score(group, desc.inode_table),
            false => -1,
        };
        let better = known
            .iter()
            .map(|known| known.inode_table)
            .filter(|at| *at != desc.inode_table && self.is_free_of_others(group, *at, table_len))
            .max_by_key(|at| self.table_score(group, *at))
            .filter(|at| self.table_score(group, *at) > own);
        if own < 0 || better.is_some() {
            let best = better;
            if let Some(table) = best.or_else(|| self.scan_for_table(group)) {
                desc.inode_table = table;
                remedies.push("use the inode table that the backup, the layout or a scan gives");
            } else if !self.is_free_of_others(group, desc.inode_table, table_len) {
                let Some(table) = self.new_table() else { return };
                desc.inode_table = table;
                let first = u64::from(group.0) * u64::from(self.geometry.inodes_per_group) + 1;
                let last = first + u64::from(self.geometry.inodes_per_group) - 1;
                loss = Some(format!("inodes {first} to {last}"));
                remedies.push("make a new, empty inode table");
            }
        }
        let apart = |at: u64, desc: &GroupDesc| at < desc.inode_table || at >= desc.inode_table + table_len;
        if !self.is_free_of_others(group, desc.block_bitmap, 1)
            || !apart(desc.block_bitmap, &desc)
            || (desc.block_bitmap == desc.inode_bitmap
                && known.iter().any(|known| known.block_bitmap != desc.block_bitmap))
        {
            let candidates = known.iter().map(|known| known.block_bitmap);
            let fits = |at: &u64| {
                self.is_free_of_others(group, *at, 1) && apart(*at, &desc) && *at != desc.block_bitmap
            };
            let at = candidates.filter(fits).find(|at| *at != desc.inode_bitmap);
            let Some(at) = at.or_else(|| self.new_bitmap(group).map(|block| block.0)) else { return };
            desc.block_bitmap = at;
            desc.flags &= !BLOCK_UNINIT;
            remedies.push("give the block bitmap another block");
        }
        if !self.is_free_of_others(group, desc.inode_bitmap, 1)
            || !apart(desc.inode_bitmap, &desc)
            || desc.inode_bitmap == desc.block_bitmap
        {
            let candidates = known.iter().map(|known| known.inode_bitmap);
            let fits = |at: &u64| self.is_free_of_others(group, *at, 1) && apart(*at, &desc);
            let at = candidates.filter(fits).find(|at| *at != desc.block_bitmap);
            let Some(at) = at.or_else(|| self.new_bitmap(group).map(|block| block.0)) else { return };
            desc.inode_bitmap = at;
            desc.flags &= !INODE_UNINIT;
            remedies.push("give the inode bitmap another block");
        }
        if remedies.is_empty() {
            remedies.push("store the right checksum");
        }
        if self.put_desc(group, &desc).is_some() {
            self.fixed_with(finding, capitalized(&remedies.join(", ")), loss);
        }
    }

    /// Looks at the inode table of each group, and repairs addresses that lead to something else.
    pub(crate) fn mend_tables(&mut self) {
        for group in (0..self.geometry.groups).map(Group) {
            let Some(desc) = self.notes.desc(group).filter(|_| self.notes.is_usable(group)).cloned() else {
                continue;
            };
            if desc.has_flag(INODE_UNINIT) {
                continue;
            }
            let own = self.table_score(group, desc.inode_table);
            // Group 0 has the root, which counts for 5.
            if own >= if group.0 == 0 { 5 } else { 0 } {
                continue;
            }
            let table_len = u64::from(self.geometry.itable_blocks());
            let known: Vec<GroupDesc> =
                self.backup_desc(group).into_iter().chain(self.implied_desc(group)).collect();
            let other = known.iter().map(|known| known.inode_table).find(|at| {
                *at != desc.inode_table
                    && self.is_free_of_others(group, *at, table_len)
                    && self.table_score(group, *at) > own.max(0)
            });
            let other = other.or_else(|| {
                self.scan_for_table(group)
                    .filter(|at| *at != desc.inode_table && self.table_score(group, *at) > own.max(4))
            });
            if let Some(table) = other
                && let Some(stored) = self.stored_desc(group)
                && self.put_desc(group, &GroupDesc { inode_table: table, ..stored }).is_some()
            {
                let says = format!("block {} holds no inode table of the group", desc.inode_table);
                let place = FindingPlace::group(group).in_block(Pblk(desc.inode_table));
                let remedy = "Use the inode table that the backup, the layout or a scan gives.";
                self.also(&rules::group::PLACE, place, says, remedy, None);
            }
        }
    }

    /// A bitmap's address that leads into a file: the file keeps the block.
    pub(crate) fn mend_bitmap_addresses(&mut self, findings: &[Finding]) {
        let into_metadata: Vec<&Finding> =
            findings.iter().filter(|found| ["EX010", "XA003"].contains(&found.rule.code)).collect();
        if into_metadata.is_empty() {
            return;
        }
        let has_flags = self.has_csum() || self.sb.features.has_ro_compat(Features::GDT_CSUM);
        let wrong = |group: Group, codes: &[&str]| {
            findings.iter().any(|found| found.place.group == Some(group) && codes.contains(&found.rule.code))
        };
        'groups: for group in (0..self.geometry.groups).map(Group) {
            let Some(desc) = self.stored_desc(group).filter(|_| self.notes.is_usable(group)) else {
                continue;
            };
            let mut new = desc;
            for Bitmap { place, uninit, codes } in BITMAPS {
                let (at, is_wrong) = (place(&desc), wrong(group, &codes));
                let is_uninit = has_flags && desc.has_flag(uninit);
                if !is_wrong && !is_uninit || !self.is_in_a_file(&into_metadata, at) {
                    continue;
                }
                let is_other = |other: &u64| *other != at && self.is_free_of_others(group, *other, 1);
                let to = if is_wrong {
                    let known = self.backup_desc(group).or_else(|| self.implied_desc(group));
                    let known = known.as_ref().map(place).filter(is_other);
                    match known.or_else(|| self.new_bitmap(group).map(|block| block.0)) {
                        Some(to) => to,
                        None => continue 'groups,
                    }
                } else {
                    // A bitmap that is not initialized has no findings. If a backup has another place for it,
                    // which no file uses, it stays uninitialized there.
                    let rule = ChecksumRule::of(&self.sb);
                    let backup = self.backup_desc_if(group, |bytes| rule.verify(group.0, bytes));
                    let to = backup.as_ref().map(place).filter(is_other);
                    match to.filter(|to| !self.is_used(Pblk(*to))) {
                        Some(to) => to,
                        None => continue,
                    }
                };
                match uninit {
                    BLOCK_UNINIT => new.block_bitmap = to,
                    _ => new.inode_bitmap = to,
                }
                if is_wrong {
                    new.flags &= !uninit;
                }
            }
            if places(&new) != places(&desc) && self.put_desc(group, &new).is_some() {
                let says = "a bitmap is said to be in a block of a file, and holds no bitmap";
                let remedy = "Give the bitmap another block.";
                self.also(&rules::group::PLACE, FindingPlace::group(group), says, remedy, None);
            }
        }
    }

    /// Is the block that of a file, or of the file system?
    fn is_used(&self, block: Pblk) -> bool {
        let Some(group) = self.geometry.group_of(block) else { return true };
        let cluster = (block.0 - self.geometry.group_start(group).0) >> self.geometry.cluster_log;
        let used = self.notes.used_clusters(group);
        used.get(cluster as usize / 64).is_none_or(|word| word & 1 << (cluster % 64) != 0)
    }

    /// Does one of these findings lead to the block?
    fn is_in_a_file(&self, findings: &[&Finding], block: u64) -> bool {
        findings.iter().any(|found| {
            let Some(start) = found.place.block else { return false };
            if start.0 == block {
                return true;
            }
            let Some((ino, lblk)) = found.place.ino.zip(found.place.lblk) else { return false };
            let Some(inode) = self.inode(ino) else { return false };
            let runs = self.walk(ino, &inode).runs;
            let run = runs.iter().find(|run| run.lblk == lblk && run.pblk == start);
            run.is_some_and(|run| (start.0..start.0 + u64::from(run.len)).contains(&block))
        })
    }

    /// Are these blocks inside the file system, and outside of what other groups have?
    fn is_free_of_others(&self, group: Group, at: u64, len: u64) -> bool {
        let flex = self.sb.features.has_incompat(Features::FLEX_BG);
        let start = self.geometry.group_start(group).0;
        let end = start + u64::from(self.geometry.group_blocks(group));
        let inside =
            self.notes.is_inside(Pblk(at), len) && (flex || (at >= start && at.saturating_add(len) <= end));
        let after = at.saturating_add(len);
        let apart = |other: u64, other_len: u64| after <= other || other.saturating_add(other_len) <= at;
        inside
            && (0..self.geometry.groups).all(|other| {
                let head = self.geometry.group_head(Group(other));
                let superblock = head.superblock.is_none_or(|block| apart(block.0, 1));
                let desc = self.notes.desc(Group(other));
                let desc = desc.filter(|_| other != group.0 && self.notes.is_usable(Group(other)));
                superblock
                    && apart(head.descriptors.0.0, head.descriptors.1.into())
                    && apart(head.reserved.0.0, head.reserved.1.into())
                    && desc.is_none_or(|desc| {
                        ranges(&self.geometry, desc).iter().all(|(other, len)| apart(*other, *len))
                    })
            })
    }

    /// How well the first blocks of a table fit the inodes of the group: inodes that look right, less those
    /// that do not. 0 if all are empty.
    fn table_score(&self, group: Group, table: u64) -> i64 {
        self.part_score(group, table, 0)
    }

    /// The score of one block of a table.
    fn part_score(&self, group: Group, table: u64, index: u32) -> i64 {
        let table = table.saturating_add(index.into());
        if !self.notes.is_inside(Pblk(table), 1) {
            return -1;
        }
        let Ok(bytes) = self.read_block(Pblk(table)) else { return -1 };
        let size = self.geometry.inode_size;
        let first = group.0 * self.geometry.inodes_per_group + 1 + index * self.geometry.inodes_per_block();
        let mut score = 0;
        for (raw, number) in bytes.chunks_exact(size).zip(first..) {
            if raw.iter().all(|byte| *byte == 0) {
                continue;
            }
            let ino = Ino(number);
            let is_right = if self.sb.verifies_inodes() {
                inode::verify(raw, inode::inode_seed(self.sb.fs_seed(), ino, u32_at(raw, 0x64)))
            } else {
                let kind = u16_at(raw, 0) & 0xF000;
                matches!(kind, 0 | 0x1000 | 0x2000 | 0x4000 | 0x6000 | 0x8000 | 0xA000 | 0xC000)
                    && u32_at(raw, 0x70) == 0
            };
            score += if is_right { 1 } else { -1 } + self.dir_score(ino, raw);
        }
        if group.0 == 0 && index == 0 && score == 0 { -1 } else { score }
    }

    /// Does a directory begin with its own number? 0 for what is no directory.
    fn dir_score(&self, ino: Ino, raw: &[u8]) -> i64 {
        let Ok(inode) = inode::Inode::decode(raw) else { return 0 };
        if ino != Ino::ROOT && inode.mode & 0xF000 != 0x4000 {
            return 0;
        }
        if self.is_inline(&inode) {
            return if ino == Ino::ROOT && u32_at(&inode.block, 0) == Ino::ROOT.0 { 4 } else { 0 };
        }
        let first = self.walk(ino, &inode).runs.first().copied().filter(|run| run.lblk.0 == 0);
        let Some(bytes) = first.and_then(|run| self.read_block(run.pblk).ok()) else { return 0 };
        let is_dot = bytes[6] == 1 && bytes[8] == b'.' && u16_at(&bytes, 4) == 12;
        match is_dot {
            true if u32_at(&bytes, 0) == ino.0 => 4,
            true => -4,
            false => 0,
        }
    }

    /// Searches for the inode table of a group.
    fn scan_for_table(&self, group: Group) -> Option<u64> {
        let len = u64::from(self.geometry.itable_blocks());
        let end = self.end().min(SCAN_MAX);
        let mut best: Option<(i64, u64)> = None;
        for at in u64::from(self.geometry.first_data_block) + 1..end.saturating_sub(len) {
            let score = self.table_score(group, at);
            if score <= 1 || !self.is_free_of_others(group, at, len) {
                continue;
            }
            // The log holds copies of single blocks of tables.
            let parts = self.geometry.itable_blocks().min(SCORED_MAX);
            let score = score + (1..parts).map(|index| self.part_score(group, at, index)).sum::<i64>();
            if best.is_none_or(|(best, _)| score > best) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// The first backup of a descriptor.
    fn backup_desc(&self, group: Group) -> Option<GroupDesc> {
        self.backup_desc_if(group, |_| true)
    }

    /// The first backup of a descriptor whose bytes satisfy `is_right`.
    fn backup_desc_if(&self, group: Group, is_right: impl Fn(&[u8]) -> bool) -> Option<GroupDesc> {
        let (_, at) = self.geometry.descriptor_place(group);
        self.geometry.descriptor_backups(group).into_iter().find_map(|block| {
            let bytes = self.read_block(block).ok()?;
            let bytes = bytes.get(at..at + self.geometry.desc_size).filter(|bytes| is_right(bytes))?;
            let desc = GroupDesc::decode(bytes).ok()?;
            (desc.inode_table != 0).then_some(desc)
        })
    }

    /// The addresses that a neighbour implies: in a flex group, bitmaps and tables of consecutive groups are
    /// consecutive; without flex_bg, they have the same offset in their groups.
    fn implied_desc(&self, group: Group) -> Option<GroupDesc> {
        let per_flex = self.geometry.groups_per_flex();
        let flex = self.sb.features.has_incompat(Features::FLEX_BG) && per_flex > 1;
        let first = if flex { group.0 / per_flex * per_flex } else { 0 };
        let last = if flex {
            first.saturating_add(per_flex).min(self.geometry.groups)
        } else {
            self.geometry.groups
        };
        let table = u64::from(self.geometry.itable_blocks());
        (first..last).filter(|other| *other != group.0).find_map(|other| {
            let known = self.notes.desc(Group(other)).filter(|_| self.notes.is_usable(Group(other)))?;
            if !flex && self.geometry.has_super(Group(other)) != self.geometry.has_super(group) {
                return None;
            }
            let shifted = |block: u64, step: u64| {
                (block + u64::from(group.0) * step).checked_sub(u64::from(other) * step)
            };
            let group_len = u64::from(self.geometry.blocks_per_group);
            let (single, long) = if flex { (1, table) } else { (group_len, group_len) };
            Some(GroupDesc {
                block_bitmap: shifted(known.block_bitmap, single)?,
                inode_bitmap: shifted(known.inode_bitmap, single)?,
                inode_table: shifted(known.inode_table, long)?,
                ..GroupDesc::default()
            })
        })
    }

    /// An empty inode table in free blocks.
    fn new_table(&mut self) -> Option<u64> {
        let end = self.end();
        let len = u64::from(self.geometry.itable_blocks());
        let start = self.space.run(self.notes, end, len.div_ceil(self.geometry.cluster_ratio()))?;
        let bs = self.geometry.block_size.bytes();
        self.overlay.zero_at(start.0 * bs, len * bs).ok()?;
        Some(start.0)
    }
}

fn places(desc: &GroupDesc) -> (u64, u64, u64) {
    (desc.block_bitmap, desc.inode_bitmap, desc.inode_table)
}

/// Do ranges not overlap?
fn is_apart(ranges: &[(u64, u64)]) -> bool {
    ranges.iter().enumerate().all(|(i, (at, len))| {
        ranges[i + 1..].iter().all(|(other, other_len)| {
            at.saturating_add(*len) <= *other || other.saturating_add(*other_len) <= *at
        })
    })
}

/// First block and length of a group's bitmaps and inode table.
fn ranges(geometry: &Geometry, desc: &GroupDesc) -> [(u64, u64); 3] {
    [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, geometry.itable_blocks().into())]
}

/// A remedy as a sentence.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}
