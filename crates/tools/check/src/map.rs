//! Block maps of files: extent trees and indirect maps, walked as far as they are valid.
//!
//! Owns: the two walks, and the rules about a map by itself. Does **not** own: other claims of a block, the
//! file's size and block count (see [`crate::pass1`]).
//!
//! Invariants
//! 1. A walk enters each block of a map once, so it ends whatever the pointers say.
//! 2. Every reported run lies inside the file system.

mod extents;
mod indirect;

use std::collections::HashSet;
use std::ops::ControlFlow;

use extant_base::{Ino, Lblk, Pblk};

use crate::image::Image;
use crate::{FindingPlace, Rule};

/// The root of a map.
#[derive(Debug, Clone)]
pub(crate) struct MapRoot {
    pub(crate) ino: Ino,
    pub(crate) i_block: [u8; 60],
    /// EXTENTS flag: an extent tree, else indirect blocks.
    pub(crate) extents: bool,
    /// Seed of the inode's checksums.
    pub(crate) seed: u32,
}

/// A run of blocks contiguous in the file and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedRun {
    pub(crate) lblk: Lblk,
    pub(crate) pblk: Pblk,
    pub(crate) len: u32,
    pub(crate) unwritten: bool,
}

/// A violation of a rule by a map.
#[derive(Debug)]
pub(crate) struct MapFault {
    pub(crate) rule: &'static Rule,
    /// The inode, the logical block, and the block of the map or the target block.
    pub(crate) place: FindingPlace,
    pub(crate) says: String,
}

/// Receives the parts of a map during a walk.
pub(crate) trait Visit {
    /// A block of the map itself. Returns `false` to skip it.
    fn node(&mut self, block: Pblk) -> bool;
    /// Data, in order of logical blocks.
    fn run(&mut self, run: MappedRun) -> ControlFlow<()>;
    /// A broken rule; the walk continues where it can.
    fn broken(&mut self, fault: MapFault);
}

/// Walks the whole map.
pub(crate) fn walk(image: &Image<'_>, root: &MapRoot, visitor: &mut dyn Visit) {
    let mut entered = Entered::default();
    let _ = if root.extents {
        extents::walk(image, root, visitor, &mut entered)
    } else {
        indirect::walk(image, root, visitor, &mut entered)
    };
}

/// The map blocks that a walk has entered.
#[derive(Debug, Default)]
struct Entered {
    few: Vec<u64>,
    many: HashSet<u64>,
}

impl Entered {
    /// Returns `false` if the block was entered before.
    fn enter(&mut self, block: Pblk) -> bool {
        const FEW: usize = 16;
        if self.few.contains(&block.0) {
            return false;
        }
        if self.few.len() < FEW {
            self.few.push(block.0);
            return true;
        }
        self.many.insert(block.0)
    }
}

/// The data runs of a file in logical order, without findings, which pass 1 made. Damaged subtrees and runs
/// outside the device are skipped. `None` from `each` ends the walk.
pub(crate) fn data_runs(image: &Image<'_>, root: &MapRoot, each: &mut dyn FnMut(MappedRun) -> Option<()>) {
    data_runs_where(image, root, &|_| true, each);
}

/// As [`data_runs`], without the subtrees whose map block `may_enter` refuses.
pub(crate) fn data_runs_where(
    image: &Image<'_>,
    root: &MapRoot,
    may_enter: &dyn Fn(Pblk) -> bool,
    each: &mut dyn FnMut(MappedRun) -> Option<()>,
) {
    struct Data<'f> {
        may_enter: &'f dyn Fn(Pblk) -> bool,
        each: &'f mut dyn FnMut(MappedRun) -> Option<()>,
    }
    impl Visit for Data<'_> {
        fn node(&mut self, block: Pblk) -> bool {
            (self.may_enter)(block)
        }
        fn run(&mut self, run: MappedRun) -> ControlFlow<()> {
            match (self.each)(run) {
                Some(()) => ControlFlow::Continue(()),
                None => ControlFlow::Break(()),
            }
        }
        fn broken(&mut self, _: MapFault) {}
    }
    walk(image, root, &mut Data { may_enter, each });
}
