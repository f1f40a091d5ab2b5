//! The blocks of an inode's map, as a list.
//!
//! Owns: reading both forms of maps. Does **not** own: changing them (see `mover`).
//!
//! Invariants
//! 1. A damaged map ends with a fault, or with a list that is not longer than the file system.

use std::collections::HashSet;

use extant_base::Ino;
use extant_base::le::u32_at;
use extant_ondisk::extent::{Step, Walker};
use extant_ondisk::inode::{Inode, flags};

use super::Pending;
use crate::fault::ResizeFault;

/// A map's blocks.
#[derive(Default)]
pub(super) struct Map {
    /// Nodes of an extent tree, without the root.
    pub(super) nodes: Vec<u64>,
    /// Data, in order.
    pub(super) data: Vec<u64>,
}

impl Map {
    /// The blocks of a map; those of data only if they are wanted.
    pub(super) fn read(
        change: &Pending<'_>,
        ino: Ino,
        inode: &Inode,
        seed: u32,
        has_data: bool,
    ) -> Result<Self, ResizeFault> {
        let damaged = || ResizeFault::Damaged(format!("the map of inode {}", ino.0));
        let geometry = &change.fs.geometry;
        // A damaged map of a small directory is not larger than the file system.
        let most = inode.size.div_ceil(geometry.block_size.bytes()).min(geometry.blocks);
        let mut map = Self::default();
        if !inode.has_flag(flags::EXTENTS) {
            let mut seen = HashSet::new();
            for slot in 0..15 {
                let level = slot.max(11) - 11;
                let number = u32_at(&inode.block, slot * 4);
                map.add_numbers(change, number.into(), level, most, &mut seen)?;
            }
            return Ok(map);
        }
        let has_sums = change.fs.sb.features.metadata_csum();
        let mut walker = Walker::new(&inode.block, has_sums.then_some(seed));
        loop {
            match walker.step() {
                Step::NeedBlock(block) => {
                    map.nodes.push(block.0);
                    walker.supply(Some(&change.current(block.0)?));
                }
                Step::Extent(_) if !has_data => {}
                Step::Extent(found) => {
                    let past = most.saturating_sub(found.lblk.into()).min(found.len.into());
                    map.data.extend((0..past).map(|n| found.start + n));
                }
                Step::Damaged { .. } => return Err(damaged()),
                Step::Done => return Ok(map),
            }
        }
    }

    /// Adds a block of data, or what is below an indirect block.
    fn add_numbers(
        &mut self,
        change: &Pending<'_>,
        block: u64,
        level: usize,
        most: u64,
        seen: &mut HashSet<u64>,
    ) -> Result<(), ResizeFault> {
        if block == 0 || self.data.len() as u64 >= most {
            return Ok(());
        }
        if level == 0 {
            self.data.push(block);
            return Ok(());
        }
        if !seen.insert(block) {
            return Err(ResizeFault::Damaged(format!("a map has block {block} twice")));
        }
        for word in change.current(block)?.chunks_exact(4) {
            self.add_numbers(change, u32_at(word, 0).into(), level - 1, most, seen)?;
        }
        Ok(())
    }
}
