//! Files without the EXTENTS flag: direct blocks, and trees of indirect blocks of one, two and three levels.

mod edit;

use std::ops::ControlFlow;

use extant_base::{Lblk, Pblk};
use extant_buffer::{Buffer, Buffers, Kind, Owner, ReadFault};
use extant_ondisk::indirect::{self, Step};

use crate::{FileMap, MapState, Mapped, PIECE_MAX, lies_inside, outside};

pub(crate) use edit::{insert, remove_step};

impl FileMap {
    /// An indirect block. It has no checksum, and any bytes are valid: its block numbers are checked when
    /// they are used.
    fn indirect(&self, buffers: &Buffers, block: Pblk) -> Result<Buffer, ReadFault> {
        buffers.get(block, Owner { kind: Kind::Indirect, ino: self.ino.0 }, |_| Ok(()))
    }
}

pub(crate) fn find(map: &FileMap, buffers: &Buffers, lblk: Lblk, len_max: u32) -> Result<Mapped, ReadFault> {
    let mut step = indirect::lookup(&map.i_block, buffers.block_size(), lblk);
    loop {
        step = match step {
            Step::NeedBlock { block, then } => {
                let bytes = map.indirect(buffers, block)?;
                let place = extant_base::CorruptAt::block(block);
                then.resume(&bytes).map_err(|fact| ReadFault::corrupt(place, fact))?
            }
            Step::Hole { len_blocks } => {
                return Ok(Mapped { lblk, len: len_blocks.clamp(1, len_max), state: MapState::Hole });
            }
            Step::Mapped { pblk, len_blocks } => {
                let len = len_blocks.clamp(1, len_max);
                // A run that leaves the file system is cut there; a lookup of its rest is an error.
                let inside = buffers.blocks().saturating_sub(pblk.0).min(len.into()) as u32;
                if !lies_inside(buffers, pblk, 1) {
                    return Err(outside(lblk.0, pblk));
                }
                return Ok(Mapped { lblk, len: inside, state: MapState::Written(pblk) });
            }
        }
    }
}

pub(crate) fn walk(
    map: &FileMap,
    buffers: &Buffers,
    from: Lblk,
    end: u64,
    each: &mut dyn FnMut(Mapped) -> Option<()>,
) -> Result<(), ReadFault> {
    let last = indirect::max_blocks(buffers.block_size());
    let mut at = u64::from(from.0);
    let mut pending: Option<Mapped> = None;
    // Past the end, only a piece that began before it is continued.
    while at < last && (at < end || pending.is_some_and(|before| before.end() == at)) {
        let found = find(map, buffers, Lblk(at as u32), u32::MAX)?;
        at += u64::from(found.len);
        let MapState::Written(start) = found.state else { continue };
        if let Some(before) = &mut pending {
            if follows(before, found.lblk, start) && before.len.saturating_add(found.len) <= PIECE_MAX {
                before.len += found.len;
                continue;
            }
            if each(*before).is_none() {
                return Ok(());
            }
        }
        pending = Some(found).filter(|found| u64::from(found.lblk.0) < end);
    }
    if let Some(last) = pending {
        let _ = each(last);
    }
    Ok(())
}

/// Whether `lblk` at `start` follows `before`, in the file and on the device.
fn follows(before: &Mapped, lblk: Lblk, start: Pblk) -> bool {
    let MapState::Written(before_start) = before.state else { return false };
    before.end() == u64::from(lblk.0) && before_start.checked_add(before.len.into()) == Some(start)
}

pub(crate) fn walk_nodes(
    map: &FileMap,
    buffers: &Buffers,
    each: &mut dyn FnMut(Pblk) -> Option<()>,
) -> Result<(), ReadFault> {
    let roots = map.i_block[48..].as_chunks::<4>().0;
    for (level, root) in roots.iter().enumerate() {
        let block = Pblk(u32::from_le_bytes(*root).into());
        if block.0 != 0 && nodes_from(map, buffers, block, level, each)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Calls `each` for `block` and the blocks below it; `level` is the number of levels below it, at most 2.
fn nodes_from(
    map: &FileMap,
    buffers: &Buffers,
    block: Pblk,
    level: usize,
    each: &mut dyn FnMut(Pblk) -> Option<()>,
) -> Result<ControlFlow<()>, ReadFault> {
    if !lies_inside(buffers, block, 1) {
        let fact =
            extant_base::Malformed::new("block map", "blocks must lie inside the file system", block.0);
        return Err(ReadFault::corrupt(extant_base::CorruptAt::block(block), fact));
    }
    if each(block).is_none() {
        return Ok(ControlFlow::Break(()));
    }
    if level > 0 {
        let bytes = map.indirect(buffers, block)?;
        for (_, child) in indirect::entries(&bytes) {
            if nodes_from(map, buffers, child, level - 1, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}
