//! The file system's own files: journal, orphans, quota files, resize inode, the block of multiple-mount
//! protection.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::le::{put_u16, put_u32, u32_at};
use extant_base::{Group, Ino, Lblk, Pblk};
use extant_check::survey::Run;
use extant_check::{Finding, FindingPlace, rules};
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::{
    LogTid, MIN_JOURNAL_BLOCKS, Superblock as LogSuper, default_fast_commit_blocks, default_journal_blocks,
};
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::mmp::Mmp;
use extant_ondisk::orphan_file::{self, OrphanBlock};
use extant_ondisk::quota::{QuotaFile, QuotaKind};
use extant_ondisk::{Features, extent};
use extant_volume::{OpenOptions, Volume};

use crate::fs::Fs;
use crate::overlay::Overlay;

impl Fs<'_, '_> {
    /// Replays the log, and finishes the deletion of orphans.
    pub(crate) fn mend_log(
        &mut self,
        shared: &Arc<Overlay>,
        findings: &[&Finding],
        was_chosen: bool,
    ) -> Result<(), DeviceFault> {
        let has = |code: &str| findings.iter().any(|finding| finding.rule.code == code);
        let fast = has("JO024");
        if fast && self.replay_by_volume(shared) {
            for finding in findings {
                self.fixed(finding, "Replay the log and the fast commits.");
            }
            return Ok(());
        }
        if let Some(copies) = self.notes.replayed()? {
            for (home, bytes) in copies {
                self.write_block(home, &bytes)?;
            }
            self.reset_log(false)?;
            self.put_superblock(|sb| sb.features.incompat &= !Features::RECOVER)?;
            for finding in findings.iter().filter(|finding| finding.rule.code.starts_with("JO")) {
                let loss = match finding.rule.code {
                    "JO022" => Some("what the damaged part of the log holds".to_owned()),
                    "JO024" => Some("the changes of the fast commits".to_owned()),
                    _ => None,
                };
                self.fixed_with(finding, "Replay what is sound, and empty the log.", loss);
            }
            return Ok(());
        }
        for finding in findings {
            match finding.rule.code {
                "JO025" if self.restore_journal_map()? => {
                    self.fixed(finding, "Use the backup of the journal's map in the superblock.");
                }
                "JO025" => {
                    self.put_superblock(|sb| sb.features.incompat &= !Features::RECOVER)?;
                    self.reset_log(true)?;
                    let loss = Some("what the log holds".to_owned());
                    self.fixed_with(finding, "Write a new journal superblock.", loss);
                }
                "JO021" if was_chosen => {
                    self.put_superblock(|sb| sb.features.incompat |= Features::RECOVER)?;
                    self.fixed(finding, "Set the feature: the superblock was damaged.");
                }
                "JO021" => {
                    self.reset_log(false)?;
                    self.fixed(finding, finding.rule.repair);
                }
                _ => {}
            }
        }
        let orphans: Vec<&Finding> =
            findings.iter().copied().filter(|finding| finding.rule.code.starts_with("OR")).collect();
        if !orphans.is_empty() {
            self.finish_orphans()?;
            for finding in orphans {
                self.fixed(finding, "Delete and truncate these inodes, clear the list.");
            }
        }
        Ok(())
    }

    /// Lets the engine replay log and fast commits. Returns `false`, with all bytes as before, if it refuses.
    fn replay_by_volume(&mut self, shared: &Arc<Overlay>) -> bool {
        let before = shared.snapshot();
        let device: Arc<dyn Device> = Arc::<Overlay>::clone(shared);
        let opened = Volume::open(device, &OpenOptions::default()).map_err(drop);
        if opened.and_then(|volume| volume.close().map_err(drop)).is_ok() {
            return true;
        }
        shared.restore(before);
        false
    }

    /// Makes the log empty; `anew` replaces the journal superblock.
    fn reset_log(&mut self, anew: bool) -> Result<(), DeviceFault> {
        let Some(runs) = self.notes.journal_runs() else { return Ok(()) };
        let Some((first, _)) = runs.first() else { return Ok(()) };
        let blocks = runs.iter().fold(0u32, |sum, (_, len)| sum.saturating_add(*len));
        let mut bytes = self.read_block(*first)?;
        let known = LogSuper::decode(&bytes).ok().filter(|jsb| !anew && jsb.check().is_ok());
        let mut jsb = match known {
            Some(jsb) => jsb,
            None => self.new_log(blocks),
        };
        // No block that the log holds now may seem to continue the log.
        jsb.sequence = LogTid(jsb.sequence.0.wrapping_add(blocks).max(1));
        jsb.start = 0;
        jsb.head = 0;
        jsb.seal();
        bytes[..LogSuper::LEN].copy_from_slice(&jsb.encode());
        self.write_block(*first, &bytes)
    }

    /// A new journal superblock.
    fn new_log(&self, blocks: u32) -> LogSuper {
        let mut jsb = LogSuper::fresh(self.geometry.block_size, blocks, self.sb.uuid);
        if self.sb.features.has_compat(Features::FAST_COMMIT)
            && let Some(fast) = default_fast_commit_blocks(self.geometry.blocks)
            && blocks > MIN_JOURNAL_BLOCKS + fast
        {
            jsb.num_fc_blocks = fast;
        }
        jsb.sequence = LogTid(self.now.max(1));
        jsb
    }

    /// Deletes orphans without links, truncates the others, and empties list and file.
    fn finish_orphans(&mut self) -> Result<(), DeviceFault> {
        for ino in self.notes.orphans() {
            let Some(inode) = self.inode(ino) else { continue };
            if inode.links == 0 {
                self.free_inode(ino);
                continue;
            }
            let _ = self.edit_inode(ino, |bytes| put_u32(bytes, 0x14, 0));
            if inode.mode & 0xF000 != 0x8000 || self.is_inline(&inode) || inode.has_flag(flags::VERITY) {
                continue;
            }
            let read = self.read_map(ino, &inode);
            let end = self.geometry.block_size.blocks_for(inode.size);
            let kept: Vec<Run> = read
                .runs
                .iter()
                .filter(|run| u64::from(run.lblk.0) < end)
                .map(|run| Run { len: u64::from(run.len).min(end - u64::from(run.lblk.0)) as u32, ..*run })
                .collect();
            if kept != read.runs && read.lost.is_empty() {
                let _ = self.put_map(ino, &inode, &kept, &read.nodes);
            }
        }
        self.put_superblock(|sb| sb.last_orphan = 0)?;
        if self.sb.features.has_compat(Features::ORPHAN_FILE) {
            self.empty_orphan_file()?;
        }
        Ok(())
    }

    /// Writes empty blocks into the orphan file.
    pub(crate) fn empty_orphan_file(&mut self) -> Result<(), DeviceFault> {
        let ino = Ino(self.sb.orphan_file_inum);
        let Some(inode) = self.inode(ino) else { return Ok(()) };
        let seed = orphan_file::inode_seed(self.sb.fs_seed(), ino, inode.generation);
        let end = inode.size >> self.geometry.block_size.log2();
        for run in self.walk(ino, &inode).runs {
            for i in (0..run.len).filter(|i| u64::from(run.lblk.0 + i) < end.min(orphan_file::MAX_BLOCKS)) {
                let block = Pblk(run.pblk.0 + u64::from(i));
                let mut bytes = orphan_file::encode(self.geometry.block_size, &[]);
                if self.has_csum() {
                    orphan_file::seal(seed, block, &mut bytes);
                }
                self.write_block(block, &bytes)?;
            }
        }
        self.put_superblock(|sb| sb.features.ro_compat &= !Features::ORPHAN_PRESENT)
    }

    /// Repairs inode numbers in the superblock that lead to a file of a user.
    pub(crate) fn mend_numbers(&mut self, findings: &[Finding]) -> Result<(), DeviceFault> {
        let about = |ino: u32, codes: &[&str]| {
            findings.iter().any(|found| {
                found.place.ino == Some(Ino(ino)) && (codes.is_empty() || codes.contains(&found.rule.code))
            })
        };
        let journal = self.sb.journal_inum;
        if self.sb.features.has_compat(Features::HAS_JOURNAL)
            && journal != 0
            && journal != Ino::JOURNAL.0
            && about(journal, &["JO001", "JO010", "IN021"])
            && self.begins_with(Ino::JOURNAL, &|bytes| LogSuper::decode(bytes).is_ok())
        {
            self.put_superblock(|sb| sb.journal_inum = Ino::JOURNAL.0)?;
            let says = format!("the superblock names inode {journal} as journal, the journal is inode 8");
            self.also(&rules::journal::INODE, FindingPlace::ino(Ino(journal)), says, "Store 8.", None);
        }
        let first = self.sb.first_ino;
        if (Ino::FIRST.0..first).any(|ino| about(ino, &["IN015"])) {
            self.put_superblock(|sb| sb.first_ino = Ino::FIRST.0)?;
            let says = format!("first_ino is {first}, but inodes from {} on are in use", Ino::FIRST);
            self.also(&rules::superblock::FIRST_INO, FindingPlace::default(), says, "Store 11.", None);
        }
        let orphans = self.sb.orphan_file_inum;
        let is_orphans = |bytes: &[u8]| OrphanBlock::decode(bytes).is_ok();
        if self.sb.features.has_compat(Features::ORPHAN_FILE)
            && about(orphans, &["OR010", "OR011"])
            && !self.begins_with(Ino(orphans), &is_orphans)
            && let Some(found) = self.unnamed(&is_orphans)
        {
            self.put_superblock(|sb| sb.orphan_file_inum = found.0)?;
            let says = format!("the superblock names inode {orphans} as orphan file, it is inode {found}");
            let place = FindingPlace::ino(Ino(orphans));
            self.also(&rules::orphan::FILE_INODE, place, says, format!("Store {found}."), None);
        }
        let project = self.sb.prj_quota_inum;
        if project != 0 && about(project, &["QU001", "QU003"]) && about(project, &["IN015"]) {
            self.put_superblock(|sb| sb.prj_quota_inum = 0)?;
            let says = format!("inode {project} is no quota file");
            let place = FindingPlace::ino(Ino(project));
            let loss = Some("the limits of projects".to_owned());
            self.also(&rules::quota::INODE, place, says, "Store 0: projects are not counted.", loss);
        }
        Ok(())
    }

    /// Does the first block of a regular file look as it should?
    pub(crate) fn begins_with(&self, ino: Ino, test: &dyn Fn(&[u8]) -> bool) -> bool {
        let inode = self.inode(ino).filter(|inode| inode.mode & 0xF000 == 0x8000 && inode.links != 0);
        let first = inode.and_then(|inode| self.walk(ino, &inode).runs.first().copied());
        first.is_some_and(|run| run.lblk.0 == 0 && self.read_block(run.pblk).is_ok_and(|bytes| test(&bytes)))
    }

    /// The first regular file without a name whose first block looks so.
    fn unnamed(&self, test: &dyn Fn(&[u8]) -> bool) -> Option<Ino> {
        for group in (0..self.geometry.groups).map(Group) {
            for (note, index) in self.notes.group(group).zip(1..) {
                let ino = Ino(group.0 * self.geometry.inodes_per_group + index);
                let may = note.used && note.kind == 1 && self.notes.names(ino) == 0;
                if may && self.begins_with(ino, test) {
                    return Some(ino);
                }
            }
        }
        None
    }

    /// Repairs findings about the file system's own files.
    pub(crate) fn mend_special(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
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
                "OR010" | "OR016" | "OR017" => self.drop_orphan_file(finding)?,
                "OR015" => {
                    self.put_superblock(|sb| sb.features.ro_compat &= !Features::ORPHAN_PRESENT)?;
                    self.fixed(finding, finding.rule.repair);
                }
                "OR011" | "OR012" | "OR013" | "OR014" => orphan_blocks.push(finding),
                code if code.starts_with("JO") => log.push(finding),
                _ => {}
            }
        }
        if !orphan_blocks.is_empty() {
            self.finish_orphans()?;
            for finding in orphan_blocks {
                self.fixed(finding, finding.rule.repair);
            }
        }
        for (ino, findings) in quota {
            if self.write_quota(Ino(ino)).is_some() {
                for finding in findings {
                    let loss = match finding.rule.code {
                        "QU001" | "QU003" => Some("limits that cannot be read".to_owned()),
                        _ => None,
                    };
                    self.fixed_with(finding, finding.rule.repair, loss);
                }
            }
        }
        self.mend_journal(&log)
    }

    fn mend_mmp(&mut self, finding: &Finding) -> Result<(), DeviceFault> {
        let mut block = Pblk(self.sb.mmp_block);
        let fits = self.notes.is_inside(block, 1) && !self.notes.is_metadata(block, 1);
        if !fits {
            let Some(new) = self.new_block(None) else { return Ok(()) };
            block = new;
            self.put_superblock(|sb| sb.mmp_block = new.0)?;
        }
        let mut mmp = Mmp::clean(self.now.into(), "", "", self.sb.mmp_interval.max(5));
        if self.has_csum() {
            mmp.seal(self.sb.fs_seed());
        }
        let mut bytes = vec![0; self.block_len()];
        bytes[..Mmp::LEN].copy_from_slice(&mmp.encode());
        self.write_block(block, &bytes)?;
        self.fixed(finding, finding.rule.repair);
        Ok(())
    }

    /// Builds the resize inode anew.
    fn mend_resize_inode(&mut self, finding: &Finding) -> Result<(), DeviceFault> {
        let geometry = self.geometry.clone();
        let known = self.inode(Ino::RESIZE).map(|inode| Pblk(u32_at(&inode.block, 13 * 4).into()));
        let fits = |block: &Pblk| {
            self.notes.is_inside(*block, 1)
                && !self.notes.is_metadata(*block, 1)
                && !self.notes.is_claimed_twice(*block, 1)
        };
        let map = match known.filter(fits) {
            Some(block) => Some(block),
            None => self.new_block(None).filter(|block| u32::try_from(block.0).is_ok()),
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
            self.write_block(Pblk(row), &list)?;
        }
        self.write_block(map, &slots)?;
        let per_block = per_block as u64;
        let size = (12 + per_block + per_block * per_block) * geometry.block_size.bytes();
        let now = self.now;
        let extra = self.geometry.inode_size.saturating_sub(128).min(32) as u16;
        let copies = (0..geometry.groups).filter(|group| geometry.has_super(Group(*group))).count() as u64;
        let blocks =
            (1 + copies * u64::from(head.1)) << (geometry.block_size.log2() + geometry.cluster_log - 9);
        let _ = self.edit_inode(Ino::RESIZE, |bytes| {
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
        self.put_size(Ino::RESIZE, size);
        self.fixed(finding, finding.rule.repair);
        Ok(())
    }

    fn drop_orphan_file(&mut self, finding: &Finding) -> Result<(), DeviceFault> {
        let ino = Ino(self.sb.orphan_file_inum);
        let is_file = self.begins_with(ino, &|bytes| OrphanBlock::decode(bytes).is_ok());
        let is_free_to_go = ino.0 >= self.first_ino() && self.notes.names(ino) == 0 && is_file;
        self.put_superblock(|sb| {
            sb.orphan_file_inum = 0;
            sb.features.compat &= !Features::ORPHAN_FILE;
            sb.features.ro_compat &= !Features::ORPHAN_PRESENT;
        })?;
        if is_free_to_go || self.inode(ino).is_some_and(|inode| inode.links == 0 && ino.0 >= self.first_ino())
        {
            self.free_inode(ino);
        }
        self.fixed(finding, "Clear the feature; orphans are then kept on the list in the superblock.");
        Ok(())
    }

    /// Writes a quota file from the limits that can be read and the usage counted.
    fn write_quota(&mut self, ino: Ino) -> Option<()> {
        let kind = match ino.0 {
            number if number == self.sb.usr_quota_inum => QuotaKind::User,
            number if number == self.sb.grp_quota_inum => QuotaKind::Group,
            number if number == self.sb.prj_quota_inum => QuotaKind::Project,
            _ => return None,
        };
        let bs = self.geometry.block_size;
        let inode = self.inode(ino).filter(|inode| inode.mode & 0xF000 == 0x8000 && inode.links != 0);
        let is_new = inode.is_none();
        let with_extents = self.sb.features.has_incompat(Features::EXTENTS);
        let inode = inode.unwrap_or_else(|| Inode {
            flags: flags::IMMUTABLE | flags::NOATIME | if with_extents { flags::EXTENTS } else { 0 },
            ..Inode::default()
        });
        let read = if is_new { Default::default() } else { self.read_map(ino, &inode) };
        let mut bytes = Vec::new();
        for run in &read.runs {
            bytes.resize(((u64::from(run.lblk.0) << bs.log2()) as usize).min(512 << 20), 0);
            for i in 0..run.len {
                bytes.extend_from_slice(&self.read_block(Pblk(run.pblk.0 + u64::from(i))).ok()?);
            }
        }
        bytes.truncate(inode.size as usize);
        let mut file = QuotaFile::decode(kind, &bytes).unwrap_or_else(|_| QuotaFile::new(kind));
        let usage = self.notes.usage(kind);
        for (id, entry) in &mut file.entries {
            let used = usage.get(id).copied().unwrap_or_default();
            (entry.space_bytes, entry.inodes) = (used.bytes, used.inodes);
        }
        for (id, used) in &usage {
            let entry = file.entries.entry(*id).or_default();
            (entry.space_bytes, entry.inodes) = (used.bytes, used.inodes);
        }
        let content = file.encode();
        let needed = content.len().div_ceil(bs.len()) as u32;
        let ratio = self.geometry.cluster_ratio();
        let mut runs: Vec<Run> = Vec::new();
        let mut have = 0;
        for run in &read.runs {
            if run.lblk.0 != have || have >= needed || self.notes.is_claimed_twice(run.pblk, run.len.into()) {
                break;
            }
            let len = run.len.min(needed - have);
            runs.push(Run { len, unwritten: false, ..*run });
            have += len;
        }
        while have < needed {
            let within = u64::from(have) % ratio;
            let pblk = match runs.last().filter(|_| within != 0) {
                Some(last) => Pblk(last.pblk.0 + u64::from(last.len)),
                None => self.new_block(runs.last().map(|run| run.pblk))?,
            };
            match runs.last_mut() {
                Some(last) if last.pblk.0 + u64::from(last.len) == pblk.0 => last.len += 1,
                _ => runs.push(Run { lblk: Lblk(have), pblk, len: 1, unwritten: false }),
            }
            have += 1;
        }
        let mut padded = content.clone();
        padded.resize(needed as usize * bs.len(), 0);
        let mut blocks = padded.chunks_exact(bs.len());
        for run in &runs {
            for i in 0..run.len {
                self.write_block(Pblk(run.pblk.0 + u64::from(i)), blocks.next()?).ok()?;
            }
        }
        if is_new {
            self.empty_file(ino, inode.flags)?;
        }
        if runs != read.runs || is_new {
            let inode = self.inode(ino)?;
            self.put_map(ino, &inode, &runs, &read.nodes)?;
        }
        self.put_size(ino, content.len() as u64);
        Some(())
    }

    /// Repairs findings about the journal at rest.
    fn mend_journal(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        // Where the inode's map leads to no journal, the superblock's may.
        if let Some(finding) = findings.iter().find(|finding| finding.rule.code == "JO010")
            && self.restore_journal_map()?
        {
            self.fixed(finding, "Use the backup of the journal's map in the superblock.");
            return Ok(());
        }
        for finding in findings {
            let before = self.overlay.changes();
            match finding.rule.code {
                "JO001" => {
                    let remedy = self.restore_or_make_journal()?;
                    self.fixed(finding, remedy);
                    return Ok(());
                }
                "JO002" => {
                    self.put_superblock(|sb| sb.features.incompat &= !Features::RECOVER)?;
                    self.fixed(finding, finding.rule.repair);
                }
                "JO003" => {
                    self.put_superblock(|sb| sb.journal_uuid = [0; 16])?;
                    self.fixed(finding, finding.rule.repair);
                }
                "JO017" => {
                    let Some(inode) = self.inode(Ino(self.sb.journal_inum)) else { continue };
                    self.put_superblock(|sb| {
                        sb.jnl_backup_type = 1;
                        for (word, bytes) in sb.jnl_blocks.iter_mut().zip(inode.block.as_chunks::<4>().0) {
                            *word = u32::from_le_bytes(*bytes);
                        }
                        sb.jnl_blocks[15] = (inode.size >> 32) as u32;
                        sb.jnl_blocks[16] = inode.size as u32;
                    })?;
                    self.fixed(finding, finding.rule.repair);
                }
                _ => {
                    let remedy = self.mend_log_superblock(finding.rule.code)?;
                    if self.overlay.changes() != before {
                        self.fixed(finding, remedy);
                    }
                }
            }
        }
        Ok(())
    }

    fn mend_log_superblock(&mut self, code: &str) -> Result<&'static str, DeviceFault> {
        let Some(runs) = self.notes.journal_runs() else { return Ok("") };
        let Some((first, _)) = runs.first() else { return Ok("") };
        let blocks = runs.iter().fold(0u32, |sum, (_, len)| sum.saturating_add(*len));
        let mut bytes = self.read_block(*first)?;
        let known = LogSuper::decode(&bytes).ok();
        let (mut jsb, remedy) = match (code, known) {
            ("JO011", Some(jsb)) if jsb.check().is_ok() => (jsb, "Store the right checksum."),
            ("JO013", Some(jsb)) => {
                (LogSuper { total_blocks: blocks, ..jsb }, "Set the number to the journal's blocks.")
            }
            ("JO014", Some(jsb)) => (LogSuper { nr_users: 1, ..jsb }, "Store 1."),
            ("JO016", Some(jsb)) => (LogSuper { errno: 0, ..jsb }, "Clear the number."),
            _ => (self.new_log(blocks), "Write a new journal superblock."),
        };
        jsb.seal();
        if remedy.starts_with("Write") {
            bytes.fill(0);
        }
        bytes[..LogSuper::LEN].copy_from_slice(&jsb.encode());
        self.write_block(*first, &bytes)?;
        Ok(remedy)
    }

    /// Restores the journal's map from the superblock's backup, else makes a new journal, else clears the
    /// feature.
    fn restore_or_make_journal(&mut self) -> Result<&'static str, DeviceFault> {
        if self.restore_journal_map()? {
            return Ok("Use the backup of the journal's map in the superblock.");
        }
        if self.make_journal(None).is_some() {
            return Ok("Make a new journal.");
        }
        self.put_superblock(|sb| {
            sb.features.compat &= !(Features::HAS_JOURNAL | Features::FAST_COMMIT);
            sb.features.incompat &= !Features::RECOVER;
            sb.journal_inum = 0;
        })?;
        self.free_inode(Ino::JOURNAL);
        Ok("Clear the feature: there is no space for a new journal.")
    }

    /// Gives inode 8 the journal's map that the superblock keeps. Returns `false` if there is none, or if the
    /// inode has it.
    fn restore_journal_map(&mut self) -> Result<bool, DeviceFault> {
        let ino = Ino::JOURNAL;
        let Some((i_block, size)) = self.notes.journal_backup() else { return Ok(false) };
        let same = self.inode(ino).is_some_and(|inode| {
            inode.block == i_block && inode.size == size && inode.mode & 0xF000 == 0x8000 && inode.links != 0
        });
        if same && self.sb.journal_inum == ino.0 {
            return Ok(false);
        }
        let extents = i_block.starts_with(&extent::MAGIC.to_le_bytes());
        self.put_superblock(|sb| sb.journal_inum = ino.0)?;
        let _ = self.edit_inode(ino, |bytes| {
            put_u16(bytes, 0, 0x8000 | 0o600);
            put_u16(bytes, 0x1A, 1);
            let old = u32_at(bytes, 0x20) & !(flags::EXTENTS | flags::INLINE_DATA);
            put_u32(bytes, 0x20, if extents { old | flags::EXTENTS } else { old });
            bytes[0x28..0x28 + 60].copy_from_slice(&i_block);
        });
        self.put_size(ino, size);
        Ok(true)
    }

    /// Free blocks for a new file, in one piece if there is one.
    fn new_runs(&mut self, blocks: u32) -> Option<Vec<Run>> {
        let end = self.end();
        let clusters = u64::from(blocks).div_ceil(self.geometry.cluster_ratio());
        if let Some(start) = self.space.run(self.notes, end, clusters) {
            return Some(vec![Run { lblk: Lblk(0), pblk: start, len: blocks, unwritten: false }]);
        }
        let mut runs: Vec<Run> = Vec::new();
        let ratio = self.geometry.cluster_ratio() as u32;
        let mut lblk = 0;
        while lblk < blocks {
            let pblk = self.new_block(None)?;
            let len = ratio.min(blocks - lblk);
            match runs.last_mut() {
                Some(last) if last.pblk.0 + u64::from(last.len) == pblk.0 => last.len += len,
                _ => runs.push(Run { lblk: Lblk(lblk), pblk, len, unwritten: false }),
            }
            lblk += len;
        }
        Some(runs)
    }

    /// Makes a new, empty orphan file in a free inode.
    pub(crate) fn make_orphan_file(&mut self) -> Option<()> {
        let ratio = self.geometry.cluster_ratio() as u32;
        let blocks = orphan_file::default_blocks(self.geometry.blocks, ratio).min(orphan_file::MAX_BLOCKS);
        let runs = self.new_runs(u32::try_from(blocks).ok()?)?;
        let ino = self.new_inode()?;
        let with_extents = self.sb.features.has_incompat(Features::EXTENTS);
        self.empty_file(ino, if with_extents { flags::EXTENTS } else { 0 })?;
        let inode = self.inode(ino)?;
        self.put_map(ino, &inode, &runs, &[])?;
        self.put_size(ino, blocks << self.geometry.block_size.log2());
        self.put_superblock(|sb| {
            sb.orphan_file_inum = ino.0;
            sb.features.compat |= Features::ORPHAN_FILE;
        })
        .ok()?;
        self.empty_orphan_file().ok()
    }

    /// Makes a new, empty journal in inode 8, of the default size if `blocks` is `None`.
    pub(crate) fn make_journal(&mut self, blocks: Option<u32>) -> Option<()> {
        let ino = Ino::JOURNAL;
        let default = || default_journal_blocks(self.geometry.blocks).unwrap_or(MIN_JOURNAL_BLOCKS);
        let blocks = blocks.unwrap_or_else(default);
        let runs = self.new_runs(blocks)?;
        let with_extents = self.sb.features.has_incompat(Features::EXTENTS);
        self.empty_file(ino, if with_extents { flags::EXTENTS } else { 0 })?;
        let inode = self.inode(ino)?;
        self.put_map(ino, &inode, &runs, &[])?;
        self.put_size(ino, u64::from(blocks) << self.geometry.block_size.log2());
        let jsb = self.new_log(blocks);
        let mut bytes = vec![0; self.block_len()];
        bytes[..LogSuper::LEN].copy_from_slice(&jsb.encode());
        self.write_block(runs.first()?.pblk, &bytes).ok()?;
        let inode = self.inode(ino)?;
        self.put_superblock(|sb| {
            sb.journal_inum = ino.0;
            sb.journal_uuid = [0; 16];
            sb.features.incompat &= !Features::RECOVER;
            sb.jnl_backup_type = 1;
            for (word, bytes) in sb.jnl_blocks.iter_mut().zip(inode.block.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            sb.jnl_blocks[15] = (inode.size >> 32) as u32;
            sb.jnl_blocks[16] = inode.size as u32;
        })
        .ok()
    }

    /// Makes an empty regular file of root in an inode that was free.
    pub(crate) fn empty_file(&mut self, ino: Ino, flags: u32) -> Option<()> {
        let room = self.geometry.inode_size.saturating_sub(128).min(32) as u16;
        let now = self.now;
        self.edit_inode(ino, |bytes| {
            bytes.fill(0);
            put_u16(bytes, 0, 0x8000 | 0o600);
            for at in [8, 0xC, 0x10] {
                put_u32(bytes, at, now);
            }
            put_u16(bytes, 0x1A, 1);
            put_u32(bytes, 0x20, flags);
            if bytes.len() > 128 {
                put_u16(bytes, 0x80, room);
            }
        })
    }
}
