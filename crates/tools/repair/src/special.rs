//! The file system's own files and blocks: each is repaired by its module, and here the resize inode, the
//! block of multiple-mount protection, and the numbers by which the superblock names such files.

use std::collections::BTreeMap;

use extant_base::le::{put_u16, put_u32, u32_at};
use extant_base::{Group, Ino, Pblk};
use extant_check::survey::Noted;
use extant_check::{Finding, FindingPlace, rules};
use extant_device::DeviceFault;
use extant_jbd2_format::Superblock as LogSuper;
use extant_ondisk::Features;
use extant_ondisk::mmp::Mmp;
use extant_ondisk::orphan_file::OrphanBlock;

use crate::fs::Fs;
use crate::journal::Journal;
use crate::plan::Plan;
use crate::{orphans, quota};

/// Repairs the file system's own files.
pub(crate) struct Special<'r, 's> {
    pub(crate) fs: &'r mut Fs<'s>,
    pub(crate) plan: &'r mut Plan,
}

impl Special<'_, '_> {
    /// Repairs findings about the file system's own files.
    pub(crate) fn mend(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut quota: BTreeMap<u32, Vec<&Finding>> = BTreeMap::new();
        let mut log: Vec<&Finding> = Vec::new();
        let mut orphan_blocks: Vec<&Finding> = Vec::new();
        for finding in findings {
            match finding.rule.code {
                "SB019" => self.mend_mmp(finding)?,
                "SB021" => self.mend_resize_inode(finding)?,
                "QU001" | "QU003" | "QU004" | "QU005" => {
                    quota.entry(finding.place.ino.map_or(0, |ino| ino.0)).or_default().push(finding);
                }
                "OR010" | "OR016" | "OR017" => {
                    orphans::remove(self.fs)?;
                    let remedy = "Clear the feature; orphans are then kept on the list in the superblock.";
                    self.plan.fixed(finding, remedy);
                }
                "OR015" => {
                    self.fs.put_superblock(|sb| sb.features.ro_compat &= !Features::ORPHAN_PRESENT)?;
                    self.plan.fixed(finding, finding.rule.repair);
                }
                "OR011" | "OR012" | "OR013" | "OR014" => orphan_blocks.push(finding),
                code if code.starts_with("JO") => log.push(finding),
                _ => {}
            }
        }
        if !orphan_blocks.is_empty() {
            orphans::finish(self.fs)?;
            for finding in orphan_blocks {
                self.plan.fixed(finding, finding.rule.repair);
            }
        }
        for (ino, findings) in quota {
            if quota::write(self.fs, Ino(ino)).is_some() {
                for finding in findings {
                    let loss = match finding.rule.code {
                        "QU001" | "QU003" => Some("limits that cannot be read".to_owned()),
                        _ => None,
                    };
                    self.plan.fixed_with(finding, finding.rule.repair, loss);
                }
            }
        }
        Journal { fs: self.fs, plan: self.plan }.mend(&log)
    }

    fn mend_mmp(&mut self, finding: &Finding) -> Result<(), DeviceFault> {
        let mut block = Pblk(self.fs.sb.mmp_block);
        let fits = self.fs.notes.is_inside(block, 1) && !self.fs.notes.is_metadata(block, 1);
        if !fits {
            let Some(new) = self.fs.space.block(None) else { return Ok(()) };
            block = new;
            self.fs.put_superblock(|sb| sb.mmp_block = new.0)?;
        }
        let mut mmp = Mmp::clean(self.fs.now.into(), "", "", self.fs.sb.mmp_interval.max(5));
        if self.fs.has_csum() {
            mmp.seal(self.fs.sb.fs_seed());
        }
        let mut bytes = vec![0; self.fs.block_len()];
        bytes[..Mmp::LEN].copy_from_slice(&mmp.encode());
        self.fs.write_block(block, &bytes)?;
        self.plan.fixed(finding, finding.rule.repair);
        Ok(())
    }

    /// Builds the resize inode anew.
    fn mend_resize_inode(&mut self, finding: &Finding) -> Result<(), DeviceFault> {
        let geometry = self.fs.geometry.clone();
        let known = self.fs.inode(Ino::RESIZE).map(|inode| Pblk(u32_at(&inode.block, 13 * 4).into()));
        let fits = |block: &Pblk| {
            self.fs.notes.is_inside(*block, 1)
                && !self.fs.notes.is_metadata(*block, 1)
                && !self.fs.notes.is_claimed_twice(*block, 1)
        };
        let map = match known.filter(fits) {
            Some(block) => Some(block),
            None => self.fs.space.block(None).filter(|block| u32::try_from(block.0).is_ok()),
        };
        let Some(map) = map else { return Ok(()) };
        let per_block = geometry.block_size.len() / 4;
        let head = geometry.group_head(Group(0)).reserved;
        let mut slots = vec![0; geometry.block_size.len()];
        for index in 0..head.1 {
            let slot = (geometry.desc_blocks + index) as usize % per_block;
            let row = head.0.0 + u64::from(index);
            put_u32(&mut slots, slot * 4, row as u32);
            let mut list = vec![0; geometry.block_size.len()];
            let backups = (1..geometry.groups).filter(|group| geometry.has_super(Group(*group)));
            for (slot, group) in backups.take(per_block).enumerate() {
                let block = row + u64::from(group) * u64::from(geometry.blocks_per_group);
                put_u32(&mut list, slot * 4, block as u32);
            }
            self.fs.write_block(Pblk(row), &list)?;
        }
        self.fs.write_block(map, &slots)?;
        let per_block = per_block as u64;
        let size = (12 + per_block + per_block * per_block) * geometry.block_size.bytes();
        let now = self.fs.now;
        let extra = self.fs.geometry.inode_size.saturating_sub(128).min(32) as u16;
        let copies = (0..geometry.groups).filter(|group| geometry.has_super(Group(*group))).count() as u64;
        let blocks =
            (1 + copies * u64::from(head.1)) << (geometry.block_size.log2() + geometry.cluster_log - 9);
        let _ = self.fs.edit_inode(Ino::RESIZE, |bytes| {
            let generation = u32_at(bytes, 0x64);
            bytes.fill(0);
            put_u16(bytes, 0, 0x8000 | 0o600);
            for at in [8, 0xC, 0x10] {
                put_u32(bytes, at, now);
            }
            put_u16(bytes, 0x1A, 1);
            put_u32(bytes, 0x1C, blocks as u32);
            put_u32(bytes, 0x28 + 13 * 4, map.0 as u32);
            put_u32(bytes, 0x64, generation);
            if bytes.len() > 128 {
                put_u16(bytes, 0x80, extra);
            }
        });
        self.fs.put_size(Ino::RESIZE, size);
        self.plan.fixed(finding, finding.rule.repair);
        Ok(())
    }

    /// Repairs inode numbers in the superblock that lead to a file of a user.
    pub(crate) fn mend_numbers(&mut self, findings: &[Finding]) -> Result<(), DeviceFault> {
        let about = |ino: u32, codes: &[&str]| {
            findings.iter().any(|found| {
                found.place.ino == Some(Ino(ino)) && (codes.is_empty() || codes.contains(&found.rule.code))
            })
        };
        let journal = self.fs.sb.journal_inum;
        if self.fs.sb.features.has_compat(Features::HAS_JOURNAL)
            && journal != 0
            && journal != Ino::JOURNAL.0
            && about(journal, &["JO001", "JO010", "IN021"])
            && self.fs.begins_with(Ino::JOURNAL, &|bytes| LogSuper::decode(bytes).is_ok())
        {
            self.fs.put_superblock(|sb| sb.journal_inum = Ino::JOURNAL.0)?;
            let says = format!("the superblock names inode {journal} as journal, the journal is inode 8");
            self.plan.also(&rules::journal::INODE, FindingPlace::ino(Ino(journal)), says, "Store 8.", None);
        }
        let first = self.fs.sb.first_ino;
        if (Ino::FIRST.0..first).any(|ino| about(ino, &["IN015"])) {
            self.fs.put_superblock(|sb| sb.first_ino = Ino::FIRST.0)?;
            let says = format!("first_ino is {first}, but inodes from {} on are in use", Ino::FIRST);
            self.plan.also(&rules::superblock::FIRST_INO, FindingPlace::default(), says, "Store 11.", None);
        }
        let orphans = self.fs.sb.orphan_file_inum;
        let is_orphans = |bytes: &[u8]| OrphanBlock::decode(bytes).is_ok();
        if self.fs.sb.features.has_compat(Features::ORPHAN_FILE)
            && about(orphans, &["OR010", "OR011"])
            && !self.fs.begins_with(Ino(orphans), &is_orphans)
            && let Some(found) = self.unnamed(&is_orphans)
        {
            self.fs.put_superblock(|sb| sb.orphan_file_inum = found.0)?;
            let says = format!("the superblock names inode {orphans} as orphan file, it is inode {found}");
            let place = FindingPlace::ino(Ino(orphans));
            self.plan.also(&rules::orphan::FILE_INODE, place, says, format!("Store {found}."), None);
        }
        let project = self.fs.sb.prj_quota_inum;
        if project != 0 && about(project, &["QU001", "QU003"]) && about(project, &["IN015"]) {
            self.fs.put_superblock(|sb| sb.prj_quota_inum = 0)?;
            let says = format!("inode {project} is no quota file");
            let place = FindingPlace::ino(Ino(project));
            let loss = Some("the limits of projects".to_owned());
            self.plan.also(&rules::quota::INODE, place, says, "Store 0: projects are not counted.", loss);
        }
        Ok(())
    }

    /// The first regular file without a name whose first block looks so.
    fn unnamed(&self, test: &dyn Fn(&[u8]) -> bool) -> Option<Ino> {
        let may = |(ino, note): &(Ino, Noted)| {
            note.used && note.kind == 1 && self.fs.notes.names(*ino) == 0 && self.fs.begins_with(*ino, test)
        };
        self.fs.noted().find(may).map(|(ino, _)| ino)
    }
}
