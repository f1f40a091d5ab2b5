//! A copy of all metadata without file contents.
//!
//! Owns: which blocks are metadata. Does **not** own: how names are replaced (see
//! [`scramble`](crate::scramble)), the form of the output: it is a device.
//!
//! Without scrambling every block is as on the device, the journal included. With it, blocks are as after the
//! journal's replay, and the journal is empty: its copies have names in them.

use std::collections::BTreeSet;

use extant_base::{Group, Ino};
use extant_device::Device;
use extant_jbd2_format as jbd2;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::superblock::{self, Superblock};

use crate::ground::{Ground, is_live};
use crate::maps::Map;
use crate::scramble::Scrambler;
use crate::{RescueFault, RescueObserver, check_stop};

/// What a dump consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DumpReport {
    /// Blocks that were written; on a new output, blocks of zeros are holes.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Names that were replaced.
    pub names: u64,
    /// Names for which no replacement has a hash that fits the directory's index. Their directories have to
    /// be indexed again (`e2fsck -fD`).
    pub unordered: u64,
}

pub(crate) fn run(
    ground: &Ground,
    output: &dyn Device,
    scramble: bool,
    watch: &dyn RescueObserver,
) -> Result<DumpReport, RescueFault> {
    let scrambler = scramble.then(|| Scrambler::new(ground));
    let mut dump =
        Dump { ground, output, scrambler, written: BTreeSet::new(), report: DumpReport::default() };
    let journal = ground.journal_blocks().unwrap_or_default();
    for group in 0..ground.geometry.groups {
        check_stop(watch)?;
        dump.frame(group)?;
    }
    dump.journal(&journal)?;
    dump.plain(ground.sb.mmp_block)?;
    for group in 0..ground.geometry.groups {
        check_stop(watch)?;
        if !ground.is_unused(group) {
            dump.files(group, watch)?;
            dump.table(group)?;
        }
    }
    if let Some(scrambler) = &dump.scrambler {
        (dump.report.names, dump.report.unordered) = (scrambler.names, scrambler.unordered);
    }
    Ok(dump.report)
}

/// Whether the label is the mark. Otherwise (older versions did not set it, and it can be changed) scrambles
/// a copy of the root's names, and compares: replacements depend on positions alone, so those of a scrambled
/// dump are the same again, except where a name got longer than it was.
pub(crate) fn is_scrambled(ground: &Ground) -> bool {
    if ground.sb.volume_name == *MARK {
        return true;
    }
    let mut scrambler = Scrambler::new(ground);
    let Some((inode, mut bytes)) = ground.inode(Ino::ROOT) else { return false };
    if inode.has_flag(flags::INLINE_DATA) {
        scrambler.inode(Ino::ROOT, &mut bytes);
    } else {
        let map = ground.map(Ino::ROOT, &inode);
        scrambler.begin_directory(Ino::ROOT, &inode, &map);
        for run in &map.runs {
            for index in 0..run.len {
                if let Some(mut bytes) = ground.read_raw(run.pblk + index) {
                    scrambler.directory_block(run.lblk + index, &mut bytes);
                }
            }
        }
    }
    scrambler.same * 2 > scrambler.names
}

struct Dump<'a> {
    ground: &'a Ground,
    output: &'a dyn Device,
    scrambler: Option<Scrambler<'a>>,
    written: BTreeSet<u64>,
    report: DumpReport,
}

impl Dump<'_> {
    fn read(&self, block: u64) -> Option<Vec<u8>> {
        if self.scrambler.is_some() { self.ground.read(block) } else { self.ground.read_raw(block) }
    }

    fn put(&mut self, block: u64, bytes: &[u8]) -> Result<(), RescueFault> {
        let is_hole = self.output.is_fresh() && bytes.iter().all(|byte| *byte == 0);
        if is_hole || !self.written.insert(block) {
            return Ok(());
        }
        self.report.blocks += 1;
        self.report.bytes += bytes.len() as u64;
        let offset = block * self.ground.geometry.block_size.bytes();
        self.output.write_at(offset, bytes).map_err(RescueFault::Written)
    }

    /// A block without names. One that cannot be read is not written.
    fn plain(&mut self, block: u64) -> Result<(), RescueFault> {
        match self.read(block) {
            Some(bytes) if block != 0 => self.put(block, &bytes),
            _ => Ok(()),
        }
    }

    /// Superblock, descriptors and bitmaps of a group.
    fn frame(&mut self, group: u32) -> Result<(), RescueFault> {
        let head = self.ground.geometry.group_head(Group(group));
        if let Some(block) = head.superblock
            && let Some(mut bytes) = self.read(block.0)
        {
            if self.scrambler.is_some() {
                let at = if block.0 == 0 { superblock::OFFSET as usize } else { 0 };
                without_names(&mut bytes, at);
            }
            self.put(block.0, &bytes)?;
        }
        for (start, len) in [head.descriptors, head.reserved] {
            for block in start.0..start.0 + u64::from(len) {
                self.plain(block)?;
            }
        }
        let desc = self.ground.groups[group as usize];
        self.plain(desc.block_bitmap)?;
        self.plain(desc.inode_bitmap)
    }

    fn journal(&mut self, blocks: &[u64]) -> Result<(), RescueFault> {
        let Some((first, log)) = blocks.split_first() else { return Ok(()) };
        if self.scrambler.is_none() {
            self.plain(*first)?;
            return log.iter().try_for_each(|block| self.plain(*block));
        }
        let Some(mut bytes) = self.ground.read_raw(*first) else { return Ok(()) };
        if let Ok(mut sb) = jbd2::Superblock::decode(&bytes) {
            sb.start = 0;
            if sb.has_checksum() {
                sb.seal();
            }
            bytes[..jbd2::Superblock::LEN].copy_from_slice(&sb.encode());
        }
        self.put(*first, &bytes)
    }

    fn table(&mut self, group: u32) -> Result<(), RescueFault> {
        let geometry = &self.ground.geometry;
        let first = self.ground.groups[group as usize].inode_table;
        for index in 0..geometry.itable_blocks() {
            let block = first + u64::from(index);
            let Some(mut bytes) = self.read(block) else { continue };
            if let Some(scrambler) = &mut self.scrambler {
                let ino = group * geometry.inodes_per_group + index * geometry.inodes_per_block() + 1;
                for (slot, bytes) in bytes.chunks_exact_mut(geometry.inode_size).enumerate() {
                    scrambler.inode(Ino(ino + slot as u32), bytes);
                }
            }
            self.put(block, &bytes)?;
        }
        Ok(())
    }

    /// Blocks of the group's files that are metadata.
    fn files(&mut self, group: u32, watch: &dyn RescueObserver) -> Result<(), RescueFault> {
        let mut inodes = Vec::new();
        self.ground.for_inodes(group, &mut |ino, bytes| {
            // Also of an inode with a wrong checksum: a dump is made because something is wrong.
            if let Ok(inode) = Inode::decode_of(&self.ground.sb, bytes)
                && is_live(&inode)
            {
                inodes.push((ino, inode));
            }
        });
        for (ino, inode) in inodes {
            check_stop(watch)?;
            if inode.file_acl != 0
                && let Some(mut bytes) = self.read(inode.file_acl)
            {
                if let Some(scrambler) = &mut self.scrambler {
                    scrambler.attributes(inode.file_acl, &mut bytes);
                }
                self.put(inode.file_acl, &bytes)?;
            }
            let kind = FileType::from_mode(inode.mode);
            let is_mapped = !inode.has_flag(flags::INLINE_DATA)
                && (inode.has_flag(flags::EXTENTS) || inode.blocks > 0)
                && matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink);
            if !is_mapped {
                continue;
            }
            let map = self.ground.map(ino, &inode);
            for node in &map.nodes {
                self.plain(*node)?;
            }
            if ino.0 == self.ground.sb.journal_inum {
                continue;
            }
            self.contents(ino, &inode, kind, &map)?;
        }
        Ok(())
    }

    fn contents(&mut self, ino: Ino, inode: &Inode, kind: FileType, map: &Map) -> Result<(), RescueFault> {
        let sb = &self.ground.sb;
        let inner = [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum, sb.orphan_file_inum];
        let is_inner = inner.contains(&ino.0) || ino == Ino::RESIZE;
        let is_value = inode.has_flag(flags::EA_INODE);
        if kind == FileType::Regular && !is_inner && (!is_value || self.scrambler.is_some()) {
            return Ok(());
        }
        if let Some(scrambler) = &mut self.scrambler
            && kind == FileType::Directory
        {
            scrambler.begin_directory(ino, inode, map);
        }
        for run in map.runs.iter().filter(|run| !run.unwritten) {
            for index in 0..run.len {
                let block = run.pblk + index;
                let Some(mut bytes) = self.read(block) else { continue };
                if let Some(scrambler) = &mut self.scrambler {
                    match kind {
                        FileType::Directory => scrambler.directory_block(run.lblk + index, &mut bytes),
                        FileType::Symlink => scrambler.target(inode.size, &mut bytes),
                        _ => {}
                    }
                }
                self.put(block, &bytes)?;
            }
        }
        Ok(())
    }
}

/// The label of a scrambled dump.
const MARK: &[u8; 16] = b"extant scrambled";

/// Replaces the label by the mark, and removes last mount point, boot code, and the mark that the journal
/// must be replayed.
fn without_names(block: &mut [u8], at: usize) {
    block[..at].fill(0);
    let area = &mut block[at..at + superblock::SIZE];
    let Ok(mut sb) = Superblock::decode(area) else { return };
    (sb.volume_name, sb.last_mounted) = (*MARK, [0; 64]);
    sb.features.incompat &= !Features::RECOVER;
    area.copy_from_slice(&sb.sealed());
}
