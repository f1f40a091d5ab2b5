//! Reads damaged maps leniently.
//!
//! A run keeps its longest beginning that is inside of the file system and outside of its metadata. The depth
//! of an extent tree may be damaged, too: the depth that leads to the most blocks is used.

use std::collections::HashSet;

use extant_base::le::{u16_at, u32_at};
use extant_base::{Ino, Lblk, Pblk};
use extant_check::survey::{Run, Walked};
use extant_ondisk::extent;
use extant_ondisk::inode::{Inode, flags};

use super::Map;
use crate::fs::Fs;
use crate::runs;

const HEADER: usize = 12;
const ENTRY: usize = 12;
/// Nodes that a lenient walk reads at most.
const NODES_MAX: usize = 1 << 20;

impl Map {
    /// Reads a map as far as it makes sense.
    pub(crate) fn read(fs: &Fs<'_>, ino: Ino, inode: &Inode) -> Self {
        if !inode.has_flag(flags::EXTENTS) {
            return Self::read_block_map(fs, inode, fs.walk(ino, inode));
        }
        let declared = u16_at(&inode.block, 6);
        let mut best: Option<(u64, Self)> = None;
        for depth in [declared, 0, 1, 2, 3] {
            if depth > extent::MAX_DEPTH {
                continue;
            }
            let mut tree = Lenient::new(fs, inode);
            tree.node(&inode.block, depth, 1 << 32);
            let map = tree.map;
            let blocks = runs::blocks(&map.runs);
            let is_better = best.as_ref().is_none_or(|(most, known)| {
                blocks > *most || blocks == *most && map.lost.len() < known.lost.len()
            });
            if is_better {
                let is_perfect = map.lost.is_empty() && depth == declared;
                best = Some((blocks, map));
                if is_perfect {
                    break;
                }
            }
        }
        best.map(|(_, map)| map).unwrap_or_default()
    }

    fn read_block_map(fs: &Fs<'_>, inode: &Inode, walked: Walked) -> Self {
        let is_whole = is_whole(fs, inode, &walked);
        let mut found = Lenient::new(fs, inode);
        found.map.nodes = walked.nodes;
        for run in walked.runs {
            found.run(run);
        }
        if !is_whole {
            found.map.lost.push("blocks behind addresses that make no sense".into());
        }
        found.map
    }
}

/// Does a block map lead to sound addresses only?
fn is_whole(fs: &Fs<'_>, inode: &Inode, walked: &Walked) -> bool {
    let count = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().filter(|word| **word != [0; 4]).count() as u64;
    let mut pointers = count(&inode.block);
    for node in &walked.nodes {
        pointers += fs.read_block(*node).map_or(0, |bytes| count(&bytes));
    }
    pointers == runs::blocks(&walked.runs) + walked.nodes.len() as u64
}

/// A lenient walk over a map.
struct Lenient<'w, 's> {
    fs: &'w Fs<'s>,
    inode: &'w Inode,
    map: Map,
    /// The nodes of an extent tree that the walk was in.
    entered: HashSet<u64>,
    /// The first logical block that the next extent may have.
    next: u64,
}

impl<'w, 's> Lenient<'w, 's> {
    fn new(fs: &'w Fs<'s>, inode: &'w Inode) -> Self {
        Self { fs, inode, map: Map::default(), entered: HashSet::new(), next: 0 }
    }

    /// Walks the entries of a node that may map logical blocks below `end`.
    fn node(&mut self, bytes: &[u8], depth: u16, end: u64) {
        let room = (bytes.len() - HEADER) / ENTRY;
        let declared = usize::from(u16_at(bytes, 2));
        let is_header = u16_at(bytes, 0) == extent::MAGIC;
        let slot = |i: usize| &bytes[HEADER + i * ENTRY..HEADER + (i + 1) * ENTRY];
        // A damaged count: entries go on as long as they ascend and lead anywhere.
        let plausible = |i: usize| {
            let key = u64::from(u32_at(slot(i), 0));
            let ascends = i == 0 || key > u64::from(u32_at(slot(i - 1), 0));
            ascends && slot(i)[4..] != [0; 8] && self.leads_inside(slot(i), depth)
        };
        let count = if is_header && declared <= room && (declared > 0 || depth == 0) {
            declared
        } else {
            (0..room).take_while(|i| plausible(*i)).count()
        };
        if !is_header && count == 0 {
            self.map.lost.push(format!("what a node at logical block {} maps", self.next));
            return;
        }
        for i in 0..count {
            let key = u64::from(u32_at(slot(i), 0));
            let next = (i + 1..count).map(|i| u64::from(u32_at(slot(i), 0))).find(|next| *next > key);
            let end = next.unwrap_or(end).min(end);
            if depth == 0 {
                self.extent(slot(i), end);
            } else {
                self.index(slot(i), depth, end);
            }
        }
    }

    fn leads_inside(&self, slot: &[u8], depth: u16) -> bool {
        let block = match depth {
            0 => u64::from(u16_at(slot, 6)) << 32 | u64::from(u32_at(slot, 8)),
            _ => u64::from(u32_at(slot, 4)) | u64::from(u16_at(slot, 8)) << 32,
        };
        self.fs.notes.is_inside(Pblk(block), 1) && !self.fs.notes.is_metadata(Pblk(block), 1)
    }

    fn extent(&mut self, slot: &[u8], end: u64) {
        let (lblk, raw_len) = (u64::from(u32_at(slot, 0)), u32::from(u16_at(slot, 4)));
        let pblk = Pblk(u64::from(u16_at(slot, 6)) << 32 | u64::from(u32_at(slot, 8)));
        let unwritten = raw_len > extent::MAX_WRITTEN_LEN;
        let len = if unwritten { raw_len - extent::MAX_WRITTEN_LEN } else { raw_len };
        // No file has the last block that a number could name.
        let end = end.min(u32::MAX.into());
        if len == 0 || lblk < self.next || lblk >= end {
            self.map.lost.push(format!("the extent at logical block {lblk}"));
            return;
        }
        let fits = u64::from(len).min(end - lblk) as u32;
        let run = Run { lblk: Lblk(lblk as u32), pblk, len: fits, unwritten };
        self.next = lblk + u64::from(fits);
        self.run(run);
    }

    fn index(&mut self, slot: &[u8], depth: u16, end: u64) {
        let child = Pblk(u64::from(u32_at(slot, 4)) | u64::from(u16_at(slot, 8)) << 32);
        let key = u32_at(slot, 0);
        let fs = self.fs;
        let sound = fs.notes.is_inside(child, 1) && !fs.notes.is_metadata(child, 1);
        if !sound || !self.entered.insert(child.0) || self.entered.len() > NODES_MAX {
            self.map.lost.push(format!("what an index entry at logical block {key} leads to"));
            return;
        }
        let Ok(bytes) = fs.read_block(child) else {
            self.map.lost.push(format!("what block {child} maps, which cannot be read"));
            return;
        };
        let is_node = u16_at(&bytes, 0) == extent::MAGIC;
        if !is_node && u16_at(&bytes, 6) != depth - 1 {
            self.map.lost.push(format!("what block {child} maps, which is no node"));
            return;
        }
        self.map.nodes.push(child);
        self.node(&bytes, depth - 1, end);
    }

    /// Adds a run without what lies outside or in metadata.
    fn run(&mut self, run: Run) {
        let notes = self.fs.notes;
        let is_sound =
            |len: u32| notes.is_inside(run.pblk, len.into()) && !notes.is_metadata(run.pblk, len.into());
        let mut len = run.len;
        if !is_sound(len) {
            let end = self.fs.geometry.block_size.blocks_for(self.inode.size);
            let to_end = end.saturating_sub(run.lblk.0.into()).min(u64::from(len)) as u32;
            if to_end > 0 && is_sound(to_end) {
                len = to_end;
            } else {
                // The longest sound beginning.
                let (mut low, mut high) = (0, len);
                while low < high {
                    let middle = low + (high - low).div_ceil(2);
                    if is_sound(middle) { low = middle } else { high = middle - 1 }
                }
                len = low;
                let (from, to) = (run.lblk.0 + len, run.lblk.0 + run.len - 1);
                self.map.lost.push(format!("logical blocks {from} to {to}"));
            }
        }
        if len > 0 {
            self.map.runs.push(Run { len, ..run });
        }
    }
}
