//! What all else stands on: superblock, descriptors, the journal's copies, and reading through them.
//!
//! Invariants
//! 1. Reading shows blocks as after the journal's replay.
//! 2. A descriptor is used if it is plausible and its checksum matches; else its backups; else the addresses
//!    that the layout implies, if inodes are there.

use std::collections::HashMap;
use std::sync::Arc;

use extant_base::{Group, Ino, Pblk};
use extant_device::Device;
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::group_desc::{ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::inode::{self, Inode};
use extant_ondisk::superblock::{self, Superblock};
use extant_ondisk::{Features, Geometry, backup};

use crate::RescueFault;
use crate::history::History;
use crate::maps::{self, Map};

/// Notes of one kind that are kept; a damaged table would give one for each group.
const NOTES_MAX: usize = 20;

/// What is left of a file system's frame.
pub(crate) struct Ground {
    device: Arc<dyn Device>,
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) groups: Vec<GroupDesc>,
    pub(crate) history: History,
    pub(crate) notes: Vec<String>,
    /// First block of an inode table to its group.
    pub(crate) tables: HashMap<u64, u32>,
}

impl Ground {
    pub(crate) fn open(device: Arc<dyn Device>, wanted: Option<u64>) -> Result<Self, RescueFault> {
        let mut notes = Vec::new();
        let (sb, geometry) = superblock_of(&*device, wanted, &mut notes)?;
        let mut ground = Self {
            device,
            sb,
            geometry,
            groups: Vec::new(),
            history: History::default(),
            notes,
            tables: HashMap::new(),
        };
        ground.read_descriptors();
        ground.read_history();
        if ground.history.copies.keys().next().is_some() {
            // Again, as after the replay.
            ground.read_descriptors();
        }
        let tables = ground.groups.iter().zip(0..).map(|(desc, group)| (desc.inode_table, group));
        ground.tables = tables.collect();
        Ok(ground)
    }

    /// A block as it is on the device.
    pub(crate) fn read_raw(&self, block: u64) -> Option<Vec<u8>> {
        if block >= self.geometry.blocks {
            return None;
        }
        let mut bytes = vec![0; self.geometry.block_size.len()];
        let offset = self.geometry.block_size.offset_of(Pblk(block))?;
        self.device.read_at(offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// A block as after the journal's replay.
    pub(crate) fn read(&self, block: u64) -> Option<Vec<u8>> {
        match self.history.to_replay(block) {
            Some(copy) => copy.read(&|at| self.read_raw(at)),
            None => self.read_raw(block),
        }
    }

    /// A block as it was after a transaction, as far as the journal has a copy of it, and else as it is now.
    pub(crate) fn read_as_of(&self, block: u64, age: i64) -> Option<Vec<u8>> {
        match self.history.as_of(block, age) {
            Some(copy) => copy.read(&|at| self.read_raw(at)),
            None => self.read(block),
        }
    }

    /// Contiguous blocks of data, for large reads. `None` where the device fails.
    pub(crate) fn read_data(&self, block: u64, bytes: &mut [u8]) -> Option<()> {
        let offset = self.geometry.block_size.offset_of(Pblk(block))?;
        self.device.read_at(offset, bytes).ok()
    }

    /// The layout of directory blocks.
    pub(crate) fn dir_format(&self) -> DirFormat {
        DirFormat::new(self.geometry.block_size, &self.sb.features, self.sb.inodes_count)
    }

    /// The seed of an inode's checksums.
    pub(crate) fn seed(&self, ino: Ino, inode: &Inode) -> Option<u32> {
        self.sb.features.metadata_csum().then(|| inode::inode_seed(self.sb.fs_seed(), ino, inode.generation))
    }

    /// Block and offset of an inode.
    pub(crate) fn place(&self, ino: Ino) -> Option<(u64, usize)> {
        let (group, index) = self.geometry.inode_place(ino)?;
        let desc = self.groups.get(group.0 as usize)?;
        let per_block = self.geometry.inodes_per_block();
        let at = (index % per_block) as usize * self.geometry.inode_size;
        Some((desc.inode_table + u64::from(index / per_block), at))
    }

    /// An inode with its bytes, if it is in use and sound.
    pub(crate) fn inode(&self, ino: Ino) -> Option<(Inode, Vec<u8>)> {
        let (block, at) = self.place(ino)?;
        let bytes = self.read(block)?;
        let bytes = bytes.get(at..at + self.geometry.inode_size)?;
        let inode = self.decode(ino, bytes)?;
        is_live(&inode).then(|| (inode, bytes.to_vec()))
    }

    /// Decodes an inode. `None` if its checksum does not match or it cannot be one.
    pub(crate) fn decode(&self, ino: Ino, bytes: &[u8]) -> Option<Inode> {
        let inode = Inode::decode_of(&self.sb, bytes).ok()?;
        if self.sb.features.metadata_csum() {
            let seed = inode::inode_seed(self.sb.fs_seed(), ino, inode.generation);
            return inode::verify(bytes, seed).then_some(inode);
        }
        Some(inode)
    }

    /// The map of an inode as it is now.
    pub(crate) fn map(&self, ino: Ino, inode: &Inode) -> Map {
        maps::map(&self.geometry, inode, self.seed(ino, inode), &|block| self.read(block))
    }

    /// The map of an inode as it was after a transaction.
    pub(crate) fn map_as_of(&self, ino: Ino, inode: &Inode, age: i64) -> Map {
        let read = |block| self.read_as_of(block, age);
        maps::map(&self.geometry, inode, self.seed(ino, inode), &read)
    }

    /// Calls `each` for all inodes in a group's table, with their bytes.
    pub(crate) fn for_inodes(&self, group: u32, each: &mut dyn FnMut(Ino, &[u8])) {
        let desc = &self.groups[group as usize];
        let size = self.geometry.inode_size;
        for index in 0..self.geometry.itable_blocks() {
            let Some(block) = self.read(desc.inode_table + u64::from(index)) else { continue };
            if block.iter().all(|byte| *byte == 0) {
                continue;
            }
            for (slot, bytes) in block.chunks_exact(size).enumerate() {
                let within = index * self.geometry.inodes_per_block() + slot as u32;
                if within < self.geometry.inodes_per_group {
                    each(Ino(group * self.geometry.inodes_per_group + within + 1), bytes);
                }
            }
        }
    }

    /// Whether a group's table was never used.
    pub(crate) fn is_unused(&self, group: u32) -> bool {
        self.groups[group as usize].has_flag(INODE_UNINIT)
    }

    fn note(&mut self, text: String) {
        match self.notes.len() {
            len if len < NOTES_MAX => self.notes.push(text),
            NOTES_MAX => self.notes.push("more of this kind".to_owned()),
            _ => {}
        }
    }

    fn read_descriptors(&mut self) {
        let rule = ChecksumRule::of(&self.sb);
        let mut lost = Vec::new();
        let mut groups = Vec::new();
        let mut kept: Option<(u64, Option<Vec<u8>>)> = None;
        for group in 0..self.geometry.groups {
            let (block, at) = self.geometry.descriptor_place(Group(group));
            if kept.as_ref().is_none_or(|(of, _)| *of != block.0) {
                kept = Some((block.0, self.read(block.0)));
            }
            let bytes = kept.as_ref().and_then(|(_, bytes)| bytes.as_deref());
            let sound = bytes.and_then(|bytes| self.sound_descriptor(&rule, group, bytes, at));
            groups.push(sound.unwrap_or_else(|| {
                lost.push(group);
                GroupDesc::default()
            }));
        }
        self.groups = groups;
        let mut by_backup = 0;
        let mut by_layout = Vec::new();
        for group in lost {
            let (_, at) = self.geometry.descriptor_place(Group(group));
            let backups = self.geometry.descriptor_backups(Group(group));
            let backup = backups
                .iter()
                .find_map(|block| self.sound_descriptor(&rule, group, &self.read_raw(block.0)?, at));
            // A backup's counts and flags are those of when it was written.
            match backup {
                Some(desc) => {
                    self.groups[group as usize] = GroupDesc { flags: 0, ..desc };
                    by_backup += 1;
                }
                None => by_layout.push(group),
            }
        }
        for group in &by_layout {
            self.groups[*group as usize] = self.by_layout(*group);
        }
        self.notes.retain(|note| !note.starts_with("group descriptors:"));
        if by_backup > 0 || !by_layout.is_empty() {
            let text = format!(
                "group descriptors: {by_backup} damaged ones are taken from backups, {} are computed from \
                 the layout",
                by_layout.len()
            );
            self.note(text);
        }
    }

    fn sound_descriptor(
        &self,
        rule: &ChecksumRule,
        group: u32,
        bytes: &[u8],
        at: usize,
    ) -> Option<GroupDesc> {
        let bytes = bytes.get(at..at + self.geometry.desc_size)?;
        let desc = GroupDesc::decode(bytes).ok()?;
        (rule.verify(group, bytes) && self.is_plausible(&desc)).then_some(desc)
    }

    fn is_plausible(&self, desc: &GroupDesc) -> bool {
        let first = u64::from(self.geometry.first_data_block);
        let inside = |block: u64, len: u64| {
            block > first && block.checked_add(len).is_some_and(|end| end <= self.geometry.blocks)
        };
        inside(desc.block_bitmap, 1)
            && inside(desc.inode_bitmap, 1)
            && inside(desc.inode_table, self.geometry.itable_blocks().into())
    }

    /// The addresses of a group whose descriptor and backups are lost: those that fit the groups beside it,
    /// or those of a new file system, whichever has inodes.
    fn by_layout(&self, group: u32) -> GroupDesc {
        let flex = self.geometry.groups_per_flex().max(1);
        let first = group - group % flex;
        let index = u64::from(group - first);
        let table = u64::from(self.geometry.itable_blocks());
        let head = self.geometry.group_head(Group(first));
        let ends = [head.descriptors, head.reserved].map(|(start, len)| start.0 + u64::from(len));
        let start = head.superblock.map_or(self.geometry.group_start(Group(first)).0, |at| at.0 + 1);
        let start = ends.into_iter().fold(start, u64::max);
        let members = u64::from(flex.min(self.geometry.groups - first));
        let with = |count: u64| GroupDesc {
            block_bitmap: start + index,
            inode_bitmap: start + count + index,
            inode_table: start + 2 * count + index * table,
            ..GroupDesc::default()
        };
        let mut candidates = Vec::new();
        let beside =
            (first..first + members as u32).find(|other| self.groups[*other as usize].inode_table != 0);
        if let Some(other) = beside {
            let (of, steps) = (&self.groups[other as usize], i64::from(group) - i64::from(other));
            let moved = |from: u64, by: i64| from.saturating_add_signed(steps * by);
            candidates.push(GroupDesc {
                block_bitmap: moved(of.block_bitmap, 1),
                inode_bitmap: moved(of.inode_bitmap, 1),
                inode_table: moved(of.inode_table, table.cast_signed()),
                ..GroupDesc::default()
            });
        }
        candidates.extend([with(u64::from(flex)), with(members)]);
        let best = candidates.into_iter().filter(|desc| self.is_plausible(desc));
        // Of equal ones the first.
        let best = best.rev().max_by_key(|desc| self.inodes_at(group, desc.inode_table));
        best.unwrap_or_default()
    }

    /// How many inodes there are at the start of a table, as far as can be seen.
    fn inodes_at(&self, group: u32, table: u64) -> usize {
        let Some(block) = self.read(table) else { return 0 };
        let first = group * self.geometry.inodes_per_group + 1;
        let inodes = block.chunks_exact(self.geometry.inode_size).zip(first..);
        let is_inode = |(bytes, ino): (&[u8], u32)| {
            let is_empty = bytes.iter().all(|byte| *byte == 0);
            let decoded = if is_empty { None } else { self.decode(Ino(ino), bytes) };
            decoded.is_some_and(|inode| inode.mode == 0 || is_live(&inode))
        };
        inodes.filter(|of| is_inode(*of)).count()
    }

    fn read_history(&mut self) {
        if !self.sb.features.has_compat(Features::HAS_JOURNAL) || self.sb.journal_inum == 0 {
            return;
        }
        match self.journal_blocks().and_then(|blocks| History::read(&blocks, &|at| self.read_raw(at))) {
            Ok(history) => self.history = history,
            Err(why) => self.note(format!("journal: {why}; its copies of metadata are not used")),
        }
    }

    /// The journal's blocks, by its inode, or by the copy of its map in the superblock.
    pub(crate) fn journal_blocks(&self) -> Result<Vec<u64>, String> {
        let ino = Ino(self.sb.journal_inum);
        let by_inode = self.inode(ino).map(|(inode, _)| inode);
        let inode = by_inode.unwrap_or_else(|| {
            let mut block = [0; 60];
            for (slot, word) in self.sb.jnl_blocks[..15].iter().enumerate() {
                block[slot * 4..slot * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
            let is_extents = block[..2] == [0x0A, 0xF3];
            let flags = if is_extents { inode::flags::EXTENTS } else { 0 };
            let size = u64::from(self.sb.jnl_blocks[15]) << 32 | u64::from(self.sb.jnl_blocks[16]);
            Inode { mode: 0o100_600, links: 1, size, block, flags, ..Inode::default() }
        });
        let read = |block| self.read_raw(block);
        // Its nodes have the seed of its inode, whose generation may be lost.
        let map = maps::map(&self.geometry, &inode, None, &read);
        let mut blocks = Vec::new();
        for run in &map.runs {
            if run.lblk != blocks.len() as u64 || blocks.len() > 1 << 24 {
                return Err("its map is damaged".to_owned());
            }
            blocks.extend(run.pblk..run.pblk + run.len);
        }
        if blocks.is_empty() { Err("its inode is lost".to_owned()) } else { Ok(blocks) }
    }
}

/// Whether an inode has names, as far as it says itself.
pub(crate) fn is_live(inode: &Inode) -> bool {
    inode.links > 0 && inode.mode != 0 && inode.dtime == 0
}

fn superblock_of(
    device: &dyn Device,
    wanted: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<(Superblock, Geometry), RescueFault> {
    let at = |offset: u64| -> Option<(Superblock, Geometry)> {
        let mut bytes = [0; superblock::SIZE];
        device.read_at(offset, &mut bytes).ok()?;
        let sb = Superblock::decode(&bytes).ok()?;
        let geometry = Geometry::new(&sb).ok()?;
        Some((sb, geometry))
    };
    let is_backup = |offset: u64| at(offset).filter(|(sb, _)| backup::group_at(sb, offset).is_some());
    if let Some(block) = wanted {
        let offsets = backup::offsets_of_block(block);
        return offsets.into_iter().find_map(is_backup).ok_or(RescueFault::NoBackup(block));
    }
    let primary = at(superblock::OFFSET);
    if let Some(sound) = primary.clone().filter(|(sb, _)| sb.verify()) {
        return Ok(sound);
    }
    for offset in backup::offsets(device.size_bytes()) {
        if let Some(found) = is_backup(offset) {
            notes.push(format!("superblock: the primary is damaged; the backup at byte {offset} is used"));
            return Ok(found);
        }
    }
    let (sb, geometry) = primary.ok_or(RescueFault::NoSuperblock)?;
    notes.push("superblock: its checksum does not match, and there is no backup; it is used".to_owned());
    Ok((sb, geometry))
}
