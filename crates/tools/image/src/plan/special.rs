//! Inodes and blocks that are not in the tree: resize inode, MMP block, journal, quota files, orphan file,
//! large attribute values.
//!
//! Source: kernel Documentation/filesystems/ext4/blockgroup.rst, attributes.rst, special_inodes.rst,
//! journal.rst, orphan.rst.

use std::collections::BTreeMap;

use extant_base::{Group, Ino, Pblk};
use extant_ondisk::inode::{Inode, flags, inode_seed};
use extant_ondisk::mmp::Mmp;
use extant_ondisk::quota::{QuotaEntry, QuotaFile, QuotaKind};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{Features, orphan_file};

use super::{Cursor, Input, Plan, PlanFault, Style, reachable};
use crate::mapping::{FileMap, Mapper};
use crate::options::JournalSize;
use crate::source::entry::Time;
use crate::space::BlockRun;

const REGULAR_0600: u16 = 0o100_600;
const MMP_INTERVAL_SECONDS: u16 = 5;

/// An inode without a name in any directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Special {
    /// Its number.
    pub ino: Ino,
    /// Its fixed fields, including `i_block`.
    pub inode: Inode,
}

/// Lengths of the journal and of its fast-commit area, in blocks. `None` if there is no journal, or if the
/// device is too small for one.
fn journal_len(
    input: &Input<'_>,
    features: &Features,
    blocks: u64,
    bs: u64,
) -> Result<Option<(u32, u32)>, PlanFault> {
    if !features.has_compat(Features::HAS_JOURNAL) {
        return Ok(None);
    }
    // A journal does not grow with its file system, so it is sized for the final size.
    let blocks = blocks.max(input.options.grow_to_bytes.unwrap_or(0) / bs);
    let fast_commit = if features.has_compat(Features::FAST_COMMIT) {
        extant_jbd2_format::default_fast_commit_blocks(blocks).unwrap_or(0)
    } else {
        0
    };
    match input.options.journal_size {
        JournalSize::Auto => {
            Ok(extant_jbd2_format::default_journal_blocks(blocks).map(|len| (len, fast_commit)))
        }
        JournalSize::MiB(mib) => {
            let len = (u64::from(mib) << 20) / bs;
            let range = u64::from(extant_jbd2_format::MIN_JOURNAL_BLOCKS)
                ..=u64::from(extant_jbd2_format::MAX_JOURNAL_BLOCKS);
            if !range.contains(&len) {
                return Err(PlanFault::Choice(format!(
                    "a journal of {mib} MiB is {len} blocks; it must have {} to {}",
                    range.start(),
                    range.end()
                )));
            }
            Ok(Some((len as u32, fast_commit)))
        }
    }
}

impl Plan<'_> {
    pub(super) fn place_specials(&mut self, input: &Input<'_>) -> Result<(), PlanFault> {
        let time = input.time;
        self.place_bad_blocks_inode(time);
        if self.superblock.features.has_compat(Features::RESIZE_INODE) {
            self.place_resize_inode(input)?;
        }
        if self.superblock.features.has_incompat(Features::MMP) {
            self.place_mmp(input)?;
        }
        self.place_journal(input)?;
        let mut next = Ino::FIRST.0 + 1;
        if self.superblock.features.has_ro_compat(Features::QUOTA) {
            self.place_quota_files(input, &mut next)?;
        }
        if self.superblock.features.has_compat(Features::ORPHAN_FILE) {
            self.place_orphan_file(input, Ino(next))?;
            next += 1;
        }
        self.first_tree_ino = next;
        self.cursor = Cursor::default();
        Ok(())
    }

    /// Takes the first free blocks from `from` on, and wraps around at the end of the device.
    fn take_blocks(&mut self, from: u64, len: u64) -> Result<Vec<BlockRun>, PlanFault> {
        let (start, end) = (u64::from(self.geometry().first_data_block), self.geometry().blocks);
        let len = len.next_multiple_of(self.geometry().cluster_ratio());
        let space = &mut self.layout.space;
        space
            .allocate(from, end, len)
            .or_else(|_| space.allocate(start, end, len))
            .map_err(|_| PlanFault::Full)
    }

    /// Makes a regular file of `size` bytes in newly taken blocks. Returns its inode, its block numbers in
    /// logical order, and the runs.
    fn special_file(
        &mut self,
        ino: Ino,
        size: u64,
        from: u64,
        time: u64,
    ) -> Result<(Inode, Vec<u64>, Vec<BlockRun>), PlanFault> {
        let blocks = self.geometry().block_size.blocks_for(size);
        let runs = self.take_blocks(from, blocks)?;
        let extents = Mapper::zip(&[(0, blocks)], &runs);
        // The tree is directly before the data if there is room, otherwise after it.
        let front = runs[0].start.saturating_sub(self.geometry().cluster_ratio());
        let nodes = (0..self.mapper.node_count(&extents))
            .map(|_| Ok(Pblk(self.take_blocks(front, 1)?[0].start)))
            .collect::<Result<Vec<_>, PlanFault>>()?;
        let map = FileMap { extents, nodes };
        let (block, node_bytes) = self.mapper.encode(&map, inode_seed(self.superblock.fs_seed(), ino, 0));
        let node_count = node_bytes.len() as u64;
        self.blocks.extend(node_bytes);
        let stamp = self.stamp(Time { seconds: time as i64, nanos: 0 });
        let inode = Inode {
            mode: REGULAR_0600,
            size,
            atime: stamp,
            ctime: stamp,
            mtime: stamp,
            crtime: stamp,
            links: 1,
            blocks: self.sectors(blocks, node_count),
            flags: if self.mapper.extents { flags::EXTENTS } else { 0 },
            block,
            extra_isize: self.superblock.want_extra_isize,
            ..Inode::default()
        };
        let numbers = runs.iter().flat_map(|run| run.start..run.end()).take(blocks as usize).collect();
        Ok((inode, numbers, runs))
    }

    /// There are no bad blocks: an inode without mode or blocks, only with its creation time.
    fn place_bad_blocks_inode(&mut self, time: u64) {
        let stamp = self.stamp(Time { seconds: time as i64, nanos: 0 });
        let inode = Inode { atime: stamp, ctime: stamp, mtime: stamp, ..Inode::default() };
        self.specials.push(Special { ino: Ino::BAD_BLOCKS, inode });
    }

    fn place_resize_inode(&mut self, input: &Input<'_>) -> Result<(), PlanFault> {
        let time = input.time;
        let geometry = self.geometry().clone();
        let bs = geometry.block_size.bytes();
        let per_block = bs / 4;
        let from = match input.style {
            // mke2fs searches from the end of the table that a lonely group would have.
            Style::LikeMke2fs => {
                let (_, descriptors) = geometry.group_head(Group(0)).descriptors;
                u64::from(geometry.first_data_block)
                    + u64::from(descriptors)
                    + u64::from(geometry.reserved_gdt_blocks)
                    + u64::from(geometry.itable_blocks())
                    + 2
            }
            Style::Packed => geometry.first_data_block.into(),
        };
        let dind = self.take_blocks(from, 1)?[0].start;
        let backups: Vec<u64> = (1..geometry.groups)
            .filter(|&g| geometry.has_super(Group(g)))
            .map(|g| geometry.group_head(Group(g)).reserved.0.0)
            .collect();
        let (first, reserved) = geometry.group_head(Group(0)).reserved;
        let mut dind_block = vec![0; bs as usize];
        let mut count = 1;
        for i in 0..u64::from(reserved) {
            let slot = ((u64::from(geometry.desc_blocks) + i) % per_block) as usize * 4;
            let primary = first.0 + i;
            dind_block[slot..slot + 4].copy_from_slice(&(primary as u32).to_le_bytes());
            let mut list = vec![0; bs as usize];
            for (place, backup) in list.chunks_exact_mut(4).zip(&backups) {
                place.copy_from_slice(&((backup + i) as u32).to_le_bytes());
            }
            self.blocks.push((Pblk(primary), list));
            count += 1 + backups.len() as u64;
        }
        self.blocks.push((Pblk(dind), dind_block));
        let stamp = self.stamp(Time { seconds: time as i64, nanos: 0 });
        let mut block = [0; 60];
        block[52..56].copy_from_slice(&(dind as u32).to_le_bytes());
        let inode = Inode {
            mode: REGULAR_0600,
            size: (per_block * per_block + per_block + 12) * bs,
            atime: stamp,
            ctime: stamp,
            mtime: stamp,
            crtime: stamp,
            links: 1,
            blocks: count * geometry.cluster_ratio() * (bs / 512),
            block,
            extra_isize: self.superblock.want_extra_isize,
            ..Inode::default()
        };
        self.specials.push(Special { ino: Ino::RESIZE, inode });
        Ok(())
    }

    fn place_mmp(&mut self, input: &Input<'_>) -> Result<(), PlanFault> {
        let from = self.geometry().first_data_block.into();
        let place = self.take_blocks(from, 1)?[0].start;
        let interval = input.options.mmp_interval.unwrap_or(MMP_INTERVAL_SECONDS);
        self.superblock.mmp_block = place;
        self.superblock.mmp_interval = interval;
        // No host and device names, so that the same options make the same bytes on every machine.
        let mut mmp = Mmp::clean(input.time, "", "", interval);
        if self.superblock.features.metadata_csum() {
            mmp.seal(self.superblock.fs_seed());
        }
        let mut block = vec![0; self.geometry().block_size.len()];
        block[..Mmp::LEN].copy_from_slice(&mmp.encode());
        self.blocks.push((Pblk(place), block));
        Ok(())
    }

    fn place_journal(&mut self, input: &Input<'_>) -> Result<(), PlanFault> {
        let geometry = self.geometry().clone();
        let bs = geometry.block_size;
        let features = self.superblock.features;
        let Some((len, fast_commit)) = journal_len(input, &features, geometry.blocks, bs.bytes())? else {
            // The device is too small for a journal, or none is wanted: features that need one are removed
            // too.
            self.superblock.features.compat &=
                !(Features::HAS_JOURNAL | Features::ORPHAN_FILE | Features::FAST_COMMIT);
            return Ok(());
        };
        let total = u64::from(len) + u64::from(fast_commit);
        let from = match input.style {
            // mke2fs also puts a journal without extents at the start of the file blocks.
            Style::LikeMke2fs if self.mapper.extents && !input.options.packed_metadata => self.middle(),
            _ => geometry.first_data_block.into(),
        };
        let size = total * bs.bytes();
        let (inode, numbers, runs) = self.special_file(Ino::JOURNAL, size, from, input.time)?;
        let mut journal = extant_jbd2_format::Superblock::fresh(bs, len, self.superblock.uuid);
        if fast_commit > 0 {
            journal = journal.with_fast_commit_area(fast_commit);
        }
        let mut first = vec![0; bs.len()];
        first[..extant_jbd2_format::Superblock::LEN].copy_from_slice(&journal.encode());
        self.blocks.push((Pblk(numbers[0]), first));
        self.zero_runs.extend(runs.iter().map(|run| {
            let skip = u64::from(run.start == numbers[0]);
            BlockRun { start: run.start + skip, len: run.len - skip }
        }));
        self.superblock.journal_inum = Ino::JOURNAL.0;
        self.superblock.jnl_backup_type = 1;
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| inode.block[i * 4 + k]));
        for i in 0..15 {
            self.superblock.jnl_blocks[i] = word(i);
        }
        self.superblock.jnl_blocks[15] = (size >> 32) as u32;
        self.superblock.jnl_blocks[16] = size as u32;
        self.specials.push(Special { ino: Ino::JOURNAL, inode });
        Ok(())
    }

    /// First block of the group with the most free clusters near the middle of the device.
    fn middle(&self) -> u64 {
        let geometry = self.geometry();
        let half = Pblk((geometry.blocks - u64::from(geometry.first_data_block)) / 2);
        let mut group = geometry.group_of(half).unwrap_or_default().0;
        let per_flex = geometry.groups_per_flex();
        let first = if geometry.flex_log > 0 && group > per_flex {
            // The tables may fill the first groups of a flex group.
            let flex_start = group & !(per_flex - 1);
            group = (flex_start..geometry.groups).find(|&g| self.layout.free_clusters(g) > 0).unwrap_or(0);
            group
        } else {
            group.saturating_sub(1)
        };
        let last = (group + 1).min(geometry.groups - 1);
        let mut best = first;
        for candidate in first..=last {
            if self.layout.free_clusters(candidate) > self.layout.free_clusters(best) {
                best = candidate;
            }
        }
        geometry.group_start(Group(best)).0
    }

    fn place_quota_files(&mut self, input: &Input<'_>, next: &mut u32) -> Result<(), PlanFault> {
        let types = input.options.quota_types;
        let project = self.superblock.features.has_ro_compat(Features::PROJECT);
        // The project feature requires its quota file, regardless of the other chosen types.
        let project = project || types.project == Some(true);
        for (kind, wanted) in
            [(QuotaKind::User, types.user), (QuotaKind::Group, types.group), (QuotaKind::Project, project)]
        {
            if !wanted {
                continue;
            }
            let ino = match kind {
                QuotaKind::User => Ino::USER_QUOTA,
                QuotaKind::Group => Ino::GROUP_QUOTA,
                QuotaKind::Project => {
                    *next += 1;
                    Ino(*next - 1)
                }
            };
            // The ids determine the size. The usage is filled in after everything is placed.
            let size = self.quota_file(kind, |_, _| QuotaEntry::default()).encode().len() as u64;
            let from = self.geometry().first_data_block.into();
            let (mut inode, _, _) = self.special_file(ino, size, from, input.time)?;
            inode.flags |= flags::IMMUTABLE;
            match kind {
                QuotaKind::User => self.superblock.usr_quota_inum = ino.0,
                QuotaKind::Group => self.superblock.grp_quota_inum = ino.0,
                QuotaKind::Project => self.superblock.prj_quota_inum = ino.0,
            }
            self.specials.push(Special { ino, inode });
        }
        Ok(())
    }

    /// A quota file with the usage of each id. `usage` returns the usage of one node.
    fn quota_file(&self, kind: QuotaKind, usage: impl Fn(&Self, u32) -> QuotaEntry) -> QuotaFile {
        let mut file = QuotaFile::new(kind);
        let mut entries: BTreeMap<u32, QuotaEntry> = BTreeMap::new();
        for node_index in reachable(self.sealed) {
            let node = &self.tree.nodes[node_index as usize];
            let id = match kind {
                QuotaKind::User => node.uid,
                QuotaKind::Group => node.gid,
                QuotaKind::Project => 0,
            };
            let own = usage(self, node_index);
            let entry = entries.entry(id).or_default();
            entry.space_bytes += own.space_bytes;
            entry.inodes += own.inodes;
        }
        file.entries = entries;
        file
    }

    fn place_orphan_file(&mut self, input: &Input<'_>, ino: Ino) -> Result<(), PlanFault> {
        let geometry = self.geometry();
        let bs = geometry.block_size;
        let ratio = geometry.cluster_ratio();
        let blocks = match input.options.orphan_file_bytes {
            // mke2fs rounds up to whole clusters. If a single cluster exceeds the kernel's limit, part of it
            // is used.
            None => orphan_file::default_blocks(geometry.blocks, ratio as u32).min(orphan_file::MAX_BLOCKS),
            Some(bytes) => {
                let blocks = bs.blocks_for(bytes).next_multiple_of(ratio);
                if !(1..=orphan_file::MAX_BLOCKS).contains(&blocks) {
                    let most = orphan_file::MAX_BLOCKS;
                    return Err(PlanFault::Choice(format!(
                        "an orphan file has 1 to {most} blocks, not {blocks}"
                    )));
                }
                blocks
            }
        };
        let from = geometry.first_data_block.into();
        let (inode, numbers, _) = self.special_file(ino, blocks * bs.bytes(), from, input.time)?;
        let seed = orphan_file::inode_seed(self.superblock.fs_seed(), ino, 0);
        for &number in &numbers {
            let mut block = orphan_file::encode(bs, &[]);
            if self.superblock.features.metadata_csum() {
                orphan_file::seal(seed, Pblk(number), &mut block);
            }
            self.blocks.push((Pblk(number), block));
        }
        self.superblock.orphan_file_inum = ino.0;
        self.specials.push(Special { ino, inode });
        Ok(())
    }

    /// Makes inodes for attribute values that do not fit into a block.
    pub(super) fn place_large_values(&mut self, inos: &[Ino]) -> Result<(), PlanFault> {
        for (i, &ino) in inos.iter().enumerate() {
            let value = self.xattrs.large_values[i].clone();
            let blocks = self.geometry().block_size.blocks_for(value.bytes.len() as u64);
            let runs = self.allocate(blocks)?;
            let extents = Mapper::zip(&[(0, blocks)], &runs);
            let nodes = self.allocate_nodes(&extents)?;
            let map = FileMap { extents, nodes };
            let (block, node_bytes) = self.mapper.encode(&map, inode_seed(self.superblock.fs_seed(), ino, 0));
            let node_count = node_bytes.len() as u64;
            self.blocks.extend(node_bytes);
            let bs = self.geometry().block_size.len();
            let numbers = runs.iter().flat_map(|run| run.start..run.end());
            for (chunk, number) in value.bytes.chunks(bs).zip(numbers) {
                let mut bytes = chunk.to_vec();
                bytes.resize(bs, 0);
                self.blocks.push((Pblk(number), bytes));
            }
            let inode = Inode {
                mode: REGULAR_0600,
                size: value.bytes.len() as u64,
                // An EA inode stores its checksum in atime, and its reference count in ctime (high half) and
                // version (low half).
                atime: Timestamp::from_disk(value.hash, 0),
                ctime: Timestamp::from_disk(0, 0),
                version: u64::from(value.references),
                links: 1,
                blocks: self.sectors(blocks, node_count),
                flags: flags::EA_INODE | if self.mapper.extents { flags::EXTENTS } else { 0 },
                block,
                extra_isize: self.superblock.want_extra_isize,
                ..Inode::default()
            };
            self.specials.push(Special { ino, inode });
        }
        Ok(())
    }

    /// Fills in the contents that depend on the placement of everything else.
    pub(super) fn finish_specials(&mut self) {
        for (kind, inum) in [
            (QuotaKind::User, self.superblock.usr_quota_inum),
            (QuotaKind::Group, self.superblock.grp_quota_inum),
            (QuotaKind::Project, self.superblock.prj_quota_inum),
        ] {
            if inum == 0 {
                continue;
            }
            let bytes = self.quota_file(kind, Self::quota_usage).encode();
            let inode = &self.specials.iter().find(|s| s.ino.0 == inum).expect("placed before").inode;
            let numbers = self.blocks_of_special(inode);
            let bs = self.geometry().block_size.len();
            for (chunk, number) in bytes.chunks(bs).zip(numbers) {
                let mut block = chunk.to_vec();
                block.resize(bs, 0);
                self.blocks.push((Pblk(number), block));
            }
        }
    }

    /// The usage that one node charges to its owners: its blocks, and the large attribute values that it
    /// refers to.
    fn quota_usage(&self, node: u32) -> QuotaEntry {
        let set = self.tree.nodes[node as usize].xattrs;
        QuotaEntry {
            space_bytes: self.sectors_of(node) * 512,
            inodes: 1 + self.xattrs.large_lengths(set).count() as u64,
            ..QuotaEntry::default()
        }
    }

    /// The blocks of a small special file, read back from its map.
    fn blocks_of_special(&self, inode: &Inode) -> Vec<u64> {
        let mut numbers = Vec::new();
        if self.mapper.extents {
            let mut walker = extant_ondisk::extent::Walker::new(&inode.block, None);
            loop {
                match walker.step() {
                    extant_ondisk::extent::Step::Extent(e) => {
                        numbers.extend(e.start..e.start + u64::from(e.len))
                    }
                    extant_ondisk::extent::Step::NeedBlock(wanted) => {
                        let found = self.blocks.iter().find(|(place, _)| *place == wanted);
                        walker.supply(found.map(|(_, bytes)| bytes.as_slice()));
                    }
                    _ => return numbers,
                }
            }
        }
        for lblk in 0..self.geometry().block_size.blocks_for(inode.size) {
            let mut step = extant_ondisk::indirect::lookup(
                &inode.block,
                self.geometry().block_size,
                extant_base::Lblk(lblk as u32),
            );
            while let extant_ondisk::indirect::Step::NeedBlock { block, then } = step {
                let found = self.blocks.iter().find(|(place, _)| *place == block);
                let bytes = found.map(|(_, bytes)| bytes.as_slice()).unwrap_or_default();
                step = then.resume(bytes).expect("made by this plan");
            }
            if let extant_ondisk::indirect::Step::Mapped { pblk, .. } = step {
                numbers.push(pblk.0);
            }
        }
        numbers
    }
}
