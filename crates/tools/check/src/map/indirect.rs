//! The walk over an indirect map.

use std::ops::ControlFlow;

use extant_base::{Ino, Lblk, Pblk};

use crate::image::Image;
use crate::map::{Entered, MapFault, MapRoot, MappedRun, Visit};
use crate::rules::map as rules;
use crate::{FindingPlace, Rule};

const DIRECT: u64 = 12;

pub(super) fn walk(
    image: &Image<'_>,
    root: &MapRoot,
    visitor: &mut dyn Visit,
    entered: &mut Entered,
) -> ControlFlow<()> {
    let mut map = Map { image, ino: root.ino, visitor, entered, open: None };
    let (slots, _) = root.i_block.as_chunks::<4>();
    let per_block = image.geometry.block_size.bytes() / 4;
    for (lblk, slot) in slots[..DIRECT as usize].iter().enumerate() {
        map.data(lblk as u64, u32::from_le_bytes(*slot))?;
    }
    let mut lblk = DIRECT;
    for (level, slot) in slots[DIRECT as usize..].iter().enumerate() {
        map.subtree(lblk, u32::from_le_bytes(*slot), level as u32)?;
        lblk += per_block.pow(level as u32 + 1);
    }
    map.flush()
}

struct Map<'w, 'i> {
    image: &'w Image<'i>,
    ino: Ino,
    visitor: &'w mut dyn Visit,
    entered: &'w mut Entered,
    /// The run that the next entry may extend.
    open: Option<MappedRun>,
}

impl Map<'_, '_> {
    fn flush(&mut self) -> ControlFlow<()> {
        self.open.take().map_or(ControlFlow::Continue(()), |run| self.visitor.run(run))
    }

    fn broken(&mut self, rule: &'static Rule, lblk: Option<Lblk>, block: Pblk, says: String) {
        let place = FindingPlace { ino: Some(self.ino), lblk, ..FindingPlace::block(block) };
        self.visitor.broken(MapFault { rule, place, says });
    }

    fn outside(&mut self, lblk: u64, block: Pblk) {
        let lblk = u32::try_from(lblk).ok().map(Lblk);
        let blocks = self.image.geometry.blocks;
        let says = format!("the map leads to block {block}, the file system has {blocks}");
        self.broken(&rules::OUTSIDE, lblk, block, says);
    }

    fn data(&mut self, lblk: u64, number: u32) -> ControlFlow<()> {
        if number == 0 {
            return ControlFlow::Continue(());
        }
        let pblk = Pblk(number.into());
        let Ok(lblk32) = u32::try_from(lblk) else { return ControlFlow::Break(()) };
        if !self.image.is_inside(pblk, 1) {
            self.outside(lblk, pblk);
            return ControlFlow::Continue(());
        }
        if let Some(run) = &mut self.open
            && u64::from(run.lblk.0) + u64::from(run.len) == lblk
            && run.pblk.0 + u64::from(run.len) == pblk.0
        {
            run.len += 1;
            return ControlFlow::Continue(());
        }
        self.flush()?;
        self.open = Some(MappedRun { lblk: Lblk(lblk32), pblk, len: 1, unwritten: false });
        ControlFlow::Continue(())
    }

    /// An indirect block with `level` levels of indirect blocks below it.
    fn subtree(&mut self, lblk: u64, number: u32, level: u32) -> ControlFlow<()> {
        if number == 0 {
            return ControlFlow::Continue(());
        }
        let block = Pblk(number.into());
        if !self.image.is_inside(block, 1) {
            self.outside(lblk, block);
            return ControlFlow::Continue(());
        }
        let at = u32::try_from(lblk).ok().map(Lblk);
        if !self.entered.enter(block) {
            let says = format!("the map leads to indirect block {block}, which it has used already");
            self.broken(&rules::LOOP, at, block, says);
            return ControlFlow::Continue(());
        }
        self.flush()?;
        if !self.visitor.node(block) {
            return ControlFlow::Continue(());
        }
        let bytes = match self.image.read_block(block) {
            Ok(bytes) => bytes,
            Err(fault) => {
                let says = fault.to_string();
                self.broken(&rules::UNREADABLE, at, block, says);
                return ControlFlow::Continue(());
            }
        };
        let (slots, _) = bytes.as_chunks::<4>();
        let per_slot = (slots.len() as u64).pow(level);
        for (i, slot) in slots.iter().enumerate() {
            let (lblk, number) = (lblk + i as u64 * per_slot, u32::from_le_bytes(*slot));
            match level {
                0 => self.data(lblk, number)?,
                _ => self.subtree(lblk, number, level - 1)?,
            }
        }
        ControlFlow::Continue(())
    }
}
