//! Orphans: inodes without a name that are to be deleted, or files that are to be truncated. They are on a
//! list that begins in the superblock, or in the slots of the orphan file.
//!
//! Owns: the list, the orphan file, and the end of its inodes. Does **not** own: findings about them.

use extant_base::le::put_u32;
use extant_base::{Ino, Pblk};
use extant_device::DeviceFault;
use extant_ondisk::Features;
use extant_ondisk::inode::flags;
use extant_ondisk::orphan_file::{self, OrphanBlock};

use crate::fs::Fs;
use crate::maps::{self, Map};
use crate::runs;

/// Deletes orphans without links, truncates the others, and empties list and file.
pub(crate) fn finish(fs: &mut Fs<'_>) -> Result<(), DeviceFault> {
    for ino in fs.notes.orphans() {
        let Some(inode) = fs.inode(ino) else { continue };
        if inode.links == 0 {
            fs.free_inode(ino);
            continue;
        }
        let _ = fs.edit_inode(ino, |bytes| put_u32(bytes, 0x14, 0));
        if inode.mode & 0xF000 != 0x8000 || fs.is_inline(&inode) || inode.has_flag(flags::VERITY) {
            continue;
        }
        let mut map = Map::read(fs, ino, &inode);
        let kept = runs::before(&map.runs, fs.geometry.block_size.blocks_for(inode.size));
        if kept != map.runs && map.lost.is_empty() {
            map.runs = kept;
            let _ = map.put(fs, ino, &inode);
        }
    }
    fs.put_superblock(|sb| sb.last_orphan = 0)?;
    if fs.sb.features.has_compat(Features::ORPHAN_FILE) {
        empty(fs)?;
    }
    Ok(())
}

/// Writes empty blocks into the orphan file.
pub(crate) fn empty(fs: &mut Fs<'_>) -> Result<(), DeviceFault> {
    let ino = Ino(fs.sb.orphan_file_inum);
    let Some(inode) = fs.inode(ino) else { return Ok(()) };
    let seed = orphan_file::inode_seed(fs.sb.fs_seed(), ino, inode.generation);
    let end = inode.size >> fs.geometry.block_size.log2();
    for run in fs.walk(ino, &inode).runs {
        for i in (0..run.len).filter(|i| u64::from(run.lblk.0 + i) < end.min(orphan_file::MAX_BLOCKS)) {
            let block = Pblk(run.pblk.0 + u64::from(i));
            let mut bytes = orphan_file::encode(fs.geometry.block_size, &[]);
            if fs.has_csum() {
                orphan_file::seal(seed, block, &mut bytes);
            }
            fs.write_block(block, &bytes)?;
        }
    }
    fs.put_superblock(|sb| sb.features.ro_compat &= !Features::ORPHAN_PRESENT)
}

/// Removes an orphan file that cannot be used.
pub(crate) fn remove(fs: &mut Fs<'_>) -> Result<(), DeviceFault> {
    let ino = Ino(fs.sb.orphan_file_inum);
    let is_file = fs.begins_with(ino, &|bytes| OrphanBlock::decode(bytes).is_ok());
    let is_free_to_go = ino.0 >= fs.first_ino() && fs.notes.names(ino) == 0 && is_file;
    fs.put_superblock(|sb| {
        sb.orphan_file_inum = 0;
        sb.features.compat &= !Features::ORPHAN_FILE;
        sb.features.ro_compat &= !Features::ORPHAN_PRESENT;
    })?;
    if is_free_to_go || fs.inode(ino).is_some_and(|inode| inode.links == 0 && ino.0 >= fs.first_ino()) {
        fs.free_inode(ino);
    }
    Ok(())
}

/// Makes a new, empty orphan file in a free inode.
pub(crate) fn make(fs: &mut Fs<'_>) -> Option<()> {
    let ratio = fs.geometry.cluster_ratio() as u32;
    let blocks = orphan_file::default_blocks(fs.geometry.blocks, ratio).min(orphan_file::MAX_BLOCKS);
    let runs = fs.space.file(u32::try_from(blocks).ok()?)?;
    let ino = fs.new_inode()?;
    maps::make_file(fs, ino, 0, runs, blocks << fs.geometry.block_size.log2())?;
    fs.put_superblock(|sb| {
        sb.orphan_file_inum = ino.0;
        sb.features.compat |= Features::ORPHAN_FILE;
    })
    .ok()?;
    empty(fs).ok()
}
