//! Unfinished truncations after a crash, shown as finished: i_size is the new one already, but blocks past it
//! remain.
//!
//! Deleted files on the orphan list have no name. They are not visible, so nothing is done for them.
//!
//! Source: kernel Documentation/filesystems/ext4/orphan.rst.

use std::collections::HashSet;

use extant_base::{Ino, Lblk};
use extant_inode::{Inode, Inodes, Overrides};
use extant_mapping::{MapState, Mapped};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_ondisk::orphan_file::OrphanBlock;
use extant_ondisk::{Features, Superblock};

use crate::problems::Problems;

/// Most orphans that are read. More are damage.
const ORPHANS_MAX: usize = 1 << 20;

/// Returns whether there may be orphans.
pub(crate) fn may_be_there(sb: &Superblock) -> bool {
    sb.last_orphan != 0 || sb.features.has_ro_compat(Features::ORPHAN_PRESENT)
}

/// Truncates the maps of files on the orphan list or in the orphan file to their size. Returns the number of
/// files truncated.
pub(crate) fn finish_truncations(
    inodes: &Inodes,
    overrides: &mut Overrides,
    pieces_left: &mut usize,
    problems: &mut Problems,
) -> u64 {
    let mut truncated = 0;
    for ino in orphans(inodes, problems) {
        let Ok(inode) = inodes.get(ino) else { continue };
        match cut(&inode, inodes, overrides, pieces_left) {
            Ok(true) => truncated += 1,
            Ok(false) => {}
            Err(why) => problems.push(format!("orphan inode {ino}: {why}")),
        }
    }
    truncated
}

/// The inodes on the list, then those in the orphan file.
fn orphans(inodes: &Inodes, problems: &mut Problems) -> Vec<Ino> {
    let shared = inodes.shared();
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut next = shared.sb.last_orphan;
    while next != 0 && seen.insert(next) && seen.len() < ORPHANS_MAX {
        found.push(Ino(next));
        // Inodes without links cannot be loaded by number, so their link is read from the table.
        match inodes.orphan_link(Ino(next)) {
            Ok(link) => next = link,
            Err(fault) => {
                problems.push(format!("orphan list: {fault}"));
                break;
            }
        }
    }
    if !shared.sb.features.has_ro_compat(Features::ORPHAN_PRESENT) {
        return found;
    }
    let Ok(file) = inodes.get(Ino(shared.sb.orphan_file_inum)) else {
        problems.push("the orphan file cannot be read".to_owned());
        return found;
    };
    let bs = shared.geometry.block_size;
    let mut block = vec![0; bs.len()];
    for at in 0..(file.size() >> bs.log2()).min(extant_ondisk::orphan_file::MAX_BLOCKS) {
        let read = file.read_at(shared, at << bs.log2(), &mut block);
        match (read, OrphanBlock::decode(&block)) {
            (Ok(_), Ok(slots)) => {
                found.extend(slots.orphans().map(|(_, ino)| ino).filter(|ino| seen.insert(ino.0)))
            }
            _ => problems.push(format!("block {at} of the orphan file cannot be read")),
        }
    }
    found
}

/// Truncates one file's map to its size. Returns `false` if nothing was past it. Takes the pieces that it
/// reads from `pieces_left`.
fn cut(
    inode: &Inode,
    inodes: &Inodes,
    overrides: &mut Overrides,
    pieces_left: &mut usize,
) -> Result<bool, String> {
    let shared = inodes.shared();
    let content = matches!(inode.kind(), FileType::Regular | FileType::Directory);
    if !content || !inode.has_map(shared) {
        return Ok(false);
    }
    let bs = shared.geometry.block_size;
    let end = bs.blocks_for(inode.size());
    let mut kept: Vec<Mapped> = Vec::new();
    let (mut whole, mut blocks_cut) = (0usize, 0u64);
    let mut is_cut_short = false;
    let walked = inode.walk_map(shared, Lblk(0), 1 << 32, &mut |piece| {
        let Some(left) = pieces_left.checked_sub(1) else {
            is_cut_short = true;
            return None;
        };
        *pieces_left = left;
        whole += 1;
        let (from, len) = (u64::from(piece.lblk.0), u64::from(piece.len));
        let stays = end.saturating_sub(from).min(len);
        blocks_cut += len - stays;
        if stays > 0 && piece.state != MapState::Hole {
            kept.push(Mapped { len: stays as u32, ..piece });
        }
        Some(())
    });
    walked.map_err(|fault| fault.to_string())?;
    if is_cut_short {
        return Err("the maps of the orphans have too many pieces; shown as it stands".to_owned());
    }
    if blocks_cut == 0 {
        return Ok(false);
    }
    let mut fields = inode.fields().clone();
    let mut freed = blocks_cut;
    if inode.has_flag(flags::EXTENTS) {
        let nodes = |pieces| extant_ondisk::extent::TreeShape::for_extents(pieces, bs).blocks() as u64;
        freed += nodes(whole).saturating_sub(nodes(kept.len()));
    }
    let sectors = shared.sectors(&fields).saturating_sub(freed << (bs.log2() - 9));
    shared.set_sectors(&mut fields, sectors);
    let changed = overrides.entry(inode.ino()).or_default();
    let mut raw = match changed.raw.take() {
        Some(raw) => raw,
        None => inodes.stored(inode.ino()).map_err(|fault| fault.to_string())?,
    };
    fields.encode(&mut raw);
    changed.raw = Some(raw);
    changed.map = Some(kept);
    Ok(true)
}
