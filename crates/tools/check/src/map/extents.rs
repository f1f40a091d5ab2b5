//! The walk over an extent tree.

use std::ops::ControlFlow;

use extant_base::le::{u16_at, u32_at};
use extant_base::{Lblk, Pblk};
use extant_ondisk::extent::{self, MAX_DEPTH};

use crate::image::Image;
use crate::map::{Entered, MapFault, MapRoot, MappedRun, Visit};
use crate::rules::map as rules;
use crate::{FindingPlace, Rule};

const HEADER: usize = 12;
const ENTRY: usize = 12;

pub(super) fn walk(
    image: &Image<'_>,
    root: &MapRoot,
    visitor: &mut dyn Visit,
    entered: &mut Entered,
) -> ControlFlow<()> {
    let mut tree = Tree { image, root, visitor, entered, next_lblk: 0 };
    let depth = u16_at(&root.i_block, 6);
    if let Err(says) = header_rules(&root.i_block, None) {
        tree.broken(&rules::HEADER, None, None, says);
        return ControlFlow::Continue(());
    }
    tree.entries(&root.i_block, None, depth, 1 << 32)
}

struct Tree<'w, 'i> {
    image: &'w Image<'i>,
    root: &'w MapRoot,
    visitor: &'w mut dyn Visit,
    entered: &'w mut Entered,
    /// The end of the last extent: the first logical block not yet passed.
    next_lblk: u64,
}

/// Verifies a node's header; `depth` is the depth that its parent implies.
fn header_rules(bytes: &[u8], depth: Option<u16>) -> Result<(), String> {
    let (magic, count, max, own_depth) =
        (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
    let room = ((bytes.len() - HEADER) / ENTRY) as u16;
    if magic != extent::MAGIC {
        return Err(format!("an extent node's magic is {magic:#06x}, should be {:#06x}", extent::MAGIC));
    }
    // A node may leave room for up to two entries unused, for a checksum.
    if max > room || max + 2 < room {
        return Err(format!(
            "an extent node says that it has room for {max} entries, there is room for {room}"
        ));
    }
    if count > max {
        return Err(format!("an extent node has {count} entries and room for {max}"));
    }
    match depth {
        Some(depth) if own_depth != depth => {
            Err(format!("an extent node's depth is {own_depth}, should be {depth}"))
        }
        None if own_depth > MAX_DEPTH => {
            Err(format!("an extent tree's depth is {own_depth}, at most {MAX_DEPTH} are possible"))
        }
        _ => Ok(()),
    }
}

impl Tree<'_, '_> {
    fn broken(&mut self, rule: &'static Rule, lblk: Option<u64>, block: Option<Pblk>, says: String) {
        let lblk = lblk.and_then(|lblk| u32::try_from(lblk).ok()).map(Lblk);
        let place = FindingPlace { ino: Some(self.root.ino), lblk, block, ..FindingPlace::default() };
        self.visitor.broken(MapFault { rule, place, says });
    }

    /// Walks the entries of a node with a valid header; `end` is the end of the logical range that it may
    /// map.
    fn entries(&mut self, bytes: &[u8], at: Option<Pblk>, depth: u16, end: u64) -> ControlFlow<()> {
        let count = usize::from(u16_at(bytes, 2));
        if depth > 0 && count == 0 {
            self.broken(&rules::EMPTY_INDEX, None, at, "an inner extent node has no entries".into());
        }
        let slots = &bytes[HEADER..HEADER + count * ENTRY];
        for (i, slot) in slots.chunks_exact(ENTRY).enumerate() {
            let next = slots.get((i + 1) * ENTRY..).filter(|rest| !rest.is_empty());
            if depth == 0 {
                self.extent(slot, at, end)?;
            } else {
                let end = next.map_or(end, |next| u64::from(u32_at(next, 0)));
                self.index(slot, at, depth, end)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn extent(&mut self, slot: &[u8], at: Option<Pblk>, end: u64) -> ControlFlow<()> {
        let (lblk, raw_len) = (u64::from(u32_at(slot, 0)), u32::from(u16_at(slot, 4)));
        let pblk = Pblk(u64::from(u16_at(slot, 6)) << 32 | u64::from(u32_at(slot, 8)));
        let unwritten = raw_len > extent::MAX_WRITTEN_LEN;
        let len = if unwritten { raw_len - extent::MAX_WRITTEN_LEN } else { raw_len };
        if len == 0 {
            self.broken(&rules::EMPTY_EXTENT, Some(lblk), at, format!("the extent at {lblk} has no blocks"));
            return ControlFlow::Continue(());
        }
        if lblk < self.next_lblk {
            let says = format!("the extent at {lblk} follows one that ends at {}", self.next_lblk);
            self.broken(&rules::ORDER, Some(lblk), at, says);
            return ControlFlow::Continue(());
        }
        let behind = lblk + u64::from(len);
        if behind > end {
            let says = format!("the extent at {lblk} ends at {behind}, its node may map blocks below {end}");
            self.broken(&rules::ORDER, Some(lblk), at, says);
            return ControlFlow::Continue(());
        }
        self.next_lblk = behind;
        if !self.image.is_inside(pblk, len.into()) {
            let blocks = self.image.geometry.blocks;
            let says =
                format!("the extent at {lblk} leads to blocks {pblk}+{len}, the file system has {blocks}");
            self.broken(&rules::OUTSIDE, Some(lblk), Some(pblk), says);
            return ControlFlow::Continue(());
        }
        self.visitor.run(MappedRun { lblk: Lblk(lblk as u32), pblk, len, unwritten })
    }

    fn index(&mut self, slot: &[u8], at: Option<Pblk>, depth: u16, end: u64) -> ControlFlow<()> {
        let lblk = u64::from(u32_at(slot, 0));
        let child = Pblk(u64::from(u32_at(slot, 4)) | u64::from(u16_at(slot, 8)) << 32);
        if lblk < self.next_lblk || lblk >= end {
            let says = format!("the index entry at {lblk} is out of order");
            self.broken(&rules::ORDER, Some(lblk), at, says);
            return ControlFlow::Continue(());
        }
        if !self.image.is_inside(child, 1) {
            let says =
                format!("the index entry at {lblk} leads to block {child}, outside of the file system");
            self.broken(&rules::OUTSIDE, Some(lblk), Some(child), says);
            return ControlFlow::Continue(());
        }
        if !self.entered.enter(child) {
            let says =
                format!("the index entry at {lblk} leads to block {child}, which the tree has used already");
            self.broken(&rules::LOOP, Some(lblk), Some(child), says);
            return ControlFlow::Continue(());
        }
        if !self.visitor.node(child) {
            return ControlFlow::Continue(());
        }
        let bytes = match self.image.read_block(child) {
            Ok(bytes) => bytes,
            Err(fault) => {
                self.broken(&rules::UNREADABLE, Some(lblk), Some(child), fault.to_string());
                return ControlFlow::Continue(());
            }
        };
        let header = header_rules(&bytes, Some(depth - 1));
        let fits = !self.image.has_csum() || extent::verify(&bytes, self.root.seed);
        if let Err(says) = header {
            self.broken(&rules::HEADER, Some(lblk), Some(child), says);
            return ControlFlow::Continue(());
        }
        if !fits {
            let says = "the checksum of an extent node does not fit".into();
            self.broken(&rules::CHECKSUM, Some(lblk), Some(child), says);
        }
        let first = u64::from(u32_at(&bytes, HEADER));
        if u16_at(&bytes, 2) > 0 && first != lblk {
            let says = format!("the index entry says {lblk}, its node begins at {first}");
            self.broken(&rules::KEY, Some(lblk), Some(child), says);
            if first < lblk {
                return ControlFlow::Continue(());
            }
        }
        self.entries(&bytes, Some(child), depth - 1, end)
    }
}
