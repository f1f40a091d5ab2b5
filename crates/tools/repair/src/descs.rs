//! The addresses in group descriptors.
//!
//! ```text
//! inode table   backup | implied by the flex group | found by a scan | new and empty (a loss)
//! bitmaps       backup | implied by the flex group | a free block
//! ```
//!
//! Bitmaps are computed anew in a later round, so a bitmap at a new address loses nothing.
//!
//! Owns: which groups the round has repaired. Does **not** own: how well an address fits (see `addresses`).

mod addresses;

use std::collections::HashSet;

use extant_base::{Group, Pblk};
use extant_check::{Finding, FindingPlace, rules};
use extant_device::Device;
use extant_ondisk::Features;
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT};

use crate::fs::Fs;
use crate::plan::Plan;
use addresses::{Addresses, is_apart, is_in_a_file, is_used, places, ranges};

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

/// Repairs the descriptors of groups.
pub(crate) struct Descs<'r, 's> {
    fs: &'r mut Fs<'s>,
    plan: &'r mut Plan,
    /// Groups whose addresses are repaired: further findings about them are outdated.
    done: HashSet<Group>,
}

impl<'r, 's> Descs<'r, 's> {
    pub(crate) fn new(fs: &'r mut Fs<'s>, plan: &'r mut Plan) -> Self {
        Self { fs, plan, done: HashSet::new() }
    }

    fn addresses(&self, group: Group) -> Addresses<'_, 's> {
        Addresses { fs: self.fs, group }
    }

    /// Repairs findings about addresses, checksums and flags of descriptors.
    pub(crate) fn mend(&mut self, findings: &[&Finding]) {
        for finding in findings {
            let Some(group) = finding.place.group else { continue };
            match finding.rule.code {
                "GD003" => self.mend_overlap(group, finding),
                "GD001" | "GD002" => self.mend_places(group, finding),
                "GD004" | "GD014" => {
                    let Some(mut desc) = self.fs.stored_desc(group) else { continue };
                    clear_flags(&mut desc);
                    if self.fs.put_desc(group, &desc).is_some() {
                        self.plan.fixed(finding, finding.rule.repair);
                    }
                }
                _ => {}
            }
        }
    }

    /// Two groups have the same blocks: the group that the finding names may be the intact one of the two.
    fn mend_overlap(&mut self, group: Group, finding: &Finding) {
        let others = (0..self.fs.geometry.groups).map(Group).filter(|other| *other != group);
        let suspects: Vec<Group> =
            others.filter(|other| self.addresses(*other).differ_from_backup()).collect();
        let before = self.fs.overlay.changes();
        for other in suspects {
            self.mend_places(other, finding);
        }
        if self.fs.overlay.changes() == before {
            self.mend_places(group, finding);
        }
    }

    fn mend_places(&mut self, group: Group, finding: &Finding) {
        if !self.done.insert(group) {
            return;
        }
        let Some(mut desc) = self.fs.stored_desc(group) else { return };
        if finding.rule.code == "GD001" {
            clear_flags(&mut desc);
        }
        let mut remedies = Vec::new();
        let mut loss = None;
        let of = self.addresses(group);
        let known: Vec<GroupDesc> = of.known();
        // A backup that is sound in itself, where the primary is not.
        let backup = known.first().filter(|backup| {
            let blocks = ranges(&self.fs.geometry, backup);
            finding.rule.code != "GD001"
                && places(backup) != places(&desc)
                && blocks.iter().all(|(at, len)| of.is_free(*at, *len))
                && is_apart(&blocks)
                && of.table_score(backup.inode_table) >= of.table_score(desc.inode_table)
        });
        if let Some(backup) = backup {
            (desc.block_bitmap, desc.inode_bitmap, desc.inode_table) = places(backup);
            remedies.push("use the addresses that the backup or the layout gives");
        }
        // The table first: what overlaps it is moved away.
        let table_len = u64::from(self.fs.geometry.itable_blocks());
        let is_free = of.is_free(desc.inode_table, table_len);
        let own = if is_free { of.table_score(desc.inode_table) } else { -1 };
        let better = known
            .iter()
            .map(|known| known.inode_table)
            .filter(|at| *at != desc.inode_table && of.is_free(*at, table_len))
            .max_by_key(|at| of.table_score(*at))
            .filter(|at| of.table_score(*at) > own);
        if own < 0 || better.is_some() {
            if let Some(table) = better.or_else(|| of.scan_for_table()) {
                desc.inode_table = table;
                remedies.push("use the inode table that the backup, the layout or a scan gives");
            } else if !is_free {
                let Some(table) = self.new_table() else { return };
                desc.inode_table = table;
                let first = u64::from(group.0) * u64::from(self.fs.geometry.inodes_per_group) + 1;
                let last = first + u64::from(self.fs.geometry.inodes_per_group) - 1;
                loss = Some(format!("inodes {first} to {last}"));
                remedies.push("make a new, empty inode table");
            }
        }
        let table = desc.inode_table..desc.inode_table + table_len;
        let fits = |of: Addresses<'_, '_>, at: u64| of.is_free(at, 1) && !table.contains(&at);
        if !fits(self.addresses(group), desc.block_bitmap)
            || (desc.block_bitmap == desc.inode_bitmap
                && known.iter().any(|known| known.block_bitmap != desc.block_bitmap))
        {
            let of = self.addresses(group);
            let mut candidates = known.iter().map(|known| known.block_bitmap);
            let at =
                candidates.find(|at| fits(of, *at) && *at != desc.block_bitmap && *at != desc.inode_bitmap);
            let Some(at) = at.or_else(|| self.new_bitmap(group)) else { return };
            desc.block_bitmap = at;
            desc.flags &= !BLOCK_UNINIT;
            remedies.push("give the block bitmap another block");
        }
        if !fits(self.addresses(group), desc.inode_bitmap) || desc.inode_bitmap == desc.block_bitmap {
            let of = self.addresses(group);
            let mut candidates = known.iter().map(|known| known.inode_bitmap);
            let at = candidates.find(|at| fits(of, *at) && *at != desc.block_bitmap);
            let Some(at) = at.or_else(|| self.new_bitmap(group)) else { return };
            desc.inode_bitmap = at;
            desc.flags &= !INODE_UNINIT;
            remedies.push("give the inode bitmap another block");
        }
        if remedies.is_empty() {
            remedies.push("store the right checksum");
        }
        if self.fs.put_desc(group, &desc).is_some() {
            self.plan.fixed_with(finding, capitalized(&remedies.join(", ")), loss);
        }
    }

    /// Looks at the inode table of each group, and repairs addresses that lead to something else.
    pub(crate) fn mend_tables(&mut self) {
        for group in (0..self.fs.geometry.groups).map(Group) {
            let Some(desc) = self.fs.notes.desc(group).filter(|_| self.fs.notes.is_usable(group)).cloned()
            else {
                continue;
            };
            if desc.has_flag(INODE_UNINIT) {
                continue;
            }
            let of = self.addresses(group);
            let own = of.table_score(desc.inode_table);
            // Group 0 has the root, which counts for 5.
            if own >= if group.0 == 0 { 5 } else { 0 } {
                continue;
            }
            let table_len = u64::from(self.fs.geometry.itable_blocks());
            let is_better = |at: &u64, least: i64| *at != desc.inode_table && of.table_score(*at) > least;
            let mut known = of.known().into_iter().map(|known| known.inode_table);
            let other = known
                .find(|at| of.is_free(*at, table_len) && is_better(at, own.max(0)))
                .or_else(|| of.scan_for_table().filter(|at| is_better(at, own.max(4))));
            if let Some(table) = other
                && let Some(stored) = self.fs.stored_desc(group)
                && self.fs.put_desc(group, &GroupDesc { inode_table: table, ..stored }).is_some()
            {
                let says = format!("block {} holds no inode table of the group", desc.inode_table);
                let place = FindingPlace::group(group).in_block(Pblk(desc.inode_table));
                let remedy = "Use the inode table that the backup, the layout or a scan gives.";
                self.plan.also(&rules::group::PLACE, place, says, remedy, None);
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
        let has_flags = self.fs.has_csum() || self.fs.sb.features.has_ro_compat(Features::GDT_CSUM);
        let wrong = |group: Group, codes: &[&str]| {
            findings.iter().any(|found| found.place.group == Some(group) && codes.contains(&found.rule.code))
        };
        'groups: for group in (0..self.fs.geometry.groups).map(Group) {
            let Some(desc) = self.fs.stored_desc(group).filter(|_| self.fs.notes.is_usable(group)) else {
                continue;
            };
            let mut new = desc;
            for Bitmap { place, uninit, codes } in BITMAPS {
                let (at, is_wrong) = (place(&desc), wrong(group, &codes));
                let is_uninit = has_flags && desc.has_flag(uninit);
                if !is_wrong && !is_uninit || !is_in_a_file(self.fs, &into_metadata, at) {
                    continue;
                }
                let of = self.addresses(group);
                let is_other = |other: &u64| *other != at && of.is_free(*other, 1);
                let to = if is_wrong {
                    let known = of.known().first().map(place).filter(is_other);
                    match known.or_else(|| self.new_bitmap(group)) {
                        Some(to) => to,
                        None => continue 'groups,
                    }
                } else {
                    // A bitmap that is not initialized has no findings. If a backup has another place for it,
                    // which no file uses, it stays uninitialized there.
                    let rule = ChecksumRule::of(&self.fs.sb);
                    let backup = of.backup(|bytes| rule.verify(group.0, bytes));
                    let to = backup.as_ref().map(place).filter(is_other);
                    match to.filter(|to| !is_used(self.fs, Pblk(*to))) {
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
            if places(&new) != places(&desc) && self.fs.put_desc(group, &new).is_some() {
                let says = "a bitmap is said to be in a block of a file, and holds no bitmap";
                let remedy = "Give the bitmap another block.";
                self.plan.also(&rules::group::PLACE, FindingPlace::group(group), says, remedy, None);
            }
        }
    }

    /// A new block for a bitmap of a group: without flex_bg, inside the group. While a group cannot be read,
    /// its files' blocks seem free; a block of zeros is taken then, and what it holds is not changed.
    fn new_bitmap(&mut self, group: Group) -> Option<u64> {
        const TRIES: u32 = 4096;
        let fs = &mut *self.fs;
        let all_read = (0..fs.geometry.groups).all(|group| fs.notes.is_usable(Group(group)));
        for _ in 0..TRIES {
            let block = match fs.sb.features.has_incompat(Features::FLEX_BG) {
                true => fs.space.block(None),
                false => fs.space.in_group(group),
            }?;
            if all_read || fs.read_block(block).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
                return Some(block.0);
            }
        }
        None
    }

    /// An empty inode table in free blocks.
    fn new_table(&mut self) -> Option<u64> {
        let len = u64::from(self.fs.geometry.itable_blocks());
        let start = self.fs.space.run(len.div_ceil(self.fs.geometry.cluster_ratio()), None)?;
        let bs = self.fs.geometry.block_size.bytes();
        self.fs.overlay.zero_at(start.0 * bs, len * bs).ok()?;
        Some(start.0)
    }
}

/// Drivers that trust wrong flags would skip what is in use.
fn clear_flags(desc: &mut GroupDesc) {
    desc.flags &= !(BLOCK_UNINIT | INODE_UNINIT);
    desc.itable_unused = 0;
}

/// A remedy as a sentence.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}
