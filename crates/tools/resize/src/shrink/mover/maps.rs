//! The maps of files while their blocks move: extent trees and block maps.
//!
//! Owns: walking the maps and changing their entries. Does **not** own: allocation, and when changes take
//! effect (see [`pending`](crate::shrink::pending)).
//!
//! Invariants
//! 1. After each change of a node the map is whole: a switch may follow at any time, except while the
//!    journal's own map changes.
//!
//! Source: kernel Documentation/filesystems/ext4/ifork.rst.

use extant_base::checksum::crc32c;
use extant_base::le::{put_u16, put_u32, u16_at, u32_at};
use extant_ondisk::Features;
use extant_ondisk::inode::flags;

use super::{FLAGS_AT, MAP, Mover};
use crate::fault::ResizeFault;
use crate::shrink::{BLOCKS_AT, BLOCKS_HIGH_AT};

const EXTENT_MAGIC: u16 = 0xF30A;
/// Bytes of a node's header and of each of its entries.
pub(super) const ENTRY: usize = 12;
/// Lengths above this mean an unwritten extent.
pub(super) const WRITTEN_MAX: u16 = 32768;
/// Number of direct block numbers.
const DIRECT: usize = 12;

/// Where a map's node is.
#[derive(Clone, Copy)]
pub(super) enum Node {
    /// In the inode.
    Root,
    /// In this block.
    Block(u64),
}

impl Mover<'_, '_> {
    /// The resize inode has one block of its own; the others are descriptor blocks.
    pub(super) fn resize_inode(&mut self, map: &[u8; 60]) -> Result<(), ResizeFault> {
        let at = 13 * 4;
        let block = u64::from(u32_at(map, at));
        if block >= self.change.space.limit {
            let place = self.change.move_block(block)?;
            self.change_inode(|bytes| put_u32(bytes, MAP.start + at, place as u32))?;
        }
        Ok(())
    }

    /// A node of an extent tree, with all below it.
    pub(super) fn extent_node(&mut self, bytes: &[u8], node: Node) -> Result<(), ResizeFault> {
        let ino = self.ino;
        let damaged = || ResizeFault::Damaged(format!("the extent tree of inode {}", ino.0));
        let (entries, max) = (u16_at(bytes, 2), u16_at(bytes, 4));
        let depth = u16_at(bytes, 6);
        let fits = ENTRY * (1 + usize::from(max)) <= bytes.len() && entries <= max;
        if u16_at(bytes, 0) != EXTENT_MAGIC || !fits || depth > 5 {
            return Err(damaged());
        }
        let mut slot = 0;
        while slot < usize::from(entries) {
            let at = ENTRY * (1 + slot);
            if depth > 0 {
                let child = u64::from(u32_at(bytes, at + 4)) | u64::from(u16_at(bytes, at + 8)) << 32;
                let below = self.map_block(child)?;
                if u16_at(&below, 6).checked_add(1) != Some(depth) || !self.verify_node(&below) {
                    return Err(damaged());
                }
                self.extent_node(&below, Node::Block(child))?;
                // The journal's map changes only with its inode.
                let is_copied = self.is_journal || !self.change.switcher.has_log();
                if child >= self.change.space.limit || is_copied && self.change.blocks.contains_key(&child) {
                    let place = self.change.move_block(child)?;
                    self.change_node(node, |bytes| {
                        put_u32(bytes, at + 4, place as u32);
                        put_u16(bytes, at + 8, (place >> 32) as u16);
                    })?;
                }
                slot += 1;
                self.change.commit_if_full()?;
                continue;
            }
            slot += 1;
            let raw = u16_at(bytes, at + 4);
            let len = if raw > WRITTEN_MAX { raw - WRITTEN_MAX } else { raw };
            let start = u64::from(u32_at(bytes, at + 8)) | u64::from(u16_at(bytes, at + 6)) << 32;
            if start + u64::from(len) <= self.change.space.limit && start < self.from || len == 0 {
                continue;
            }
            let end = u64::from(u32_at(bytes, at)) + u64::from(len);
            if start + u64::from(len) > self.change.fs.geometry.blocks || end > 1 << 32 {
                return Err(damaged());
            }
            if self.change.space.ratio == 1 {
                self.extent(node, at, raw, start, len)?;
            } else if self.extent_in_clusters(node, bytes, at)? {
                return Ok(());
            }
            // The node may have more entries now.
            if let Some(again) = self.grown(node, entries)? {
                return self.extent_node(&again, node);
            }
            self.change.commit_if_full()?;
        }
        Ok(())
    }

    /// The node's bytes if it has another number of entries now.
    fn grown(&mut self, node: Node, entries: u16) -> Result<Option<Vec<u8>>, ResizeFault> {
        let bytes = self.node(node)?;
        Ok((u16_at(&bytes, 2) != entries || u16_at(&bytes, 6) != 0).then_some(bytes))
    }

    /// The bytes of a node, with pending changes.
    pub(super) fn node(&mut self, node: Node) -> Result<Vec<u8>, ResizeFault> {
        match node {
            Node::Root => Ok(self.change.inode_mut(self.ino)?[MAP].to_vec()),
            Node::Block(block) => self.change.current(block),
        }
    }

    /// Whether a node has room for another entry.
    pub(super) fn has_room(&mut self, node: Node) -> Result<bool, ResizeFault> {
        let bytes = self.node(node)?;
        Ok(u16_at(&bytes, 2) < u16_at(&bytes, 4))
    }

    /// Moves one extent. If no free run has its length, only the first part moves, and becomes an extent
    /// of its own.
    fn extent(&mut self, node: Node, at: usize, raw: u16, start: u64, len: u16) -> Result<(), ResizeFault> {
        let is_unwritten = raw > WRITTEN_MAX;
        let run = self.allocate(u64::from(len))?;
        let part = (run.end - run.start).min(u64::from(len)) as u16;
        if part < len && !self.has_room(node)? {
            self.change.clear(run)?;
            return match node {
                Node::Root => self.push_root_down(),
                Node::Block(_) => Err(ResizeFault::TooFragmented { ino: self.ino.0 }),
            };
        }
        let flag = if is_unwritten { WRITTEN_MAX } else { 0 };
        if part < len && start < self.change.space.limit {
            // There is no room for all of it: what is before the new end stays.
            self.change.clear(run)?;
            let kept = (self.change.space.limit - start) as u16;
            return self.change_node(node, |bytes| split(bytes, at, flag, (kept, len), start));
        }
        if !is_unwritten {
            self.copy(start, run.start, u64::from(part))?;
        }
        self.change.free(start..start + u64::from(part))?;
        self.change.moved.blocks += u64::from(part);
        let place = run.start;
        self.change_node(node, |bytes| {
            if part < len {
                split(bytes, at, flag, (part, len), start);
            }
            put_u16(bytes, at + 6, (place >> 32) as u16);
            put_u32(bytes, at + 8, place as u32);
        })
    }

    /// The root has no room for another extent: its extents go into a new block.
    pub(super) fn push_root_down(&mut self) -> Result<(), ResizeFault> {
        if self.change.fs.sb.features.has_ro_compat(Features::QUOTA) {
            // The file would have one block more, which its quota does not count.
            return Err(ResizeFault::TooFragmented { ino: self.ino.0 });
        }
        let bs = self.change.fs.geometry.block_size.len();
        let place = self.allocate(1)?.start;
        let root = self.node(Node::Root)?;
        let mut leaf = vec![0; bs];
        leaf[..60].copy_from_slice(&root);
        put_u16(&mut leaf, 4, ((bs - ENTRY) / ENTRY) as u16);
        self.seal_node(&mut leaf);
        // It must be there before the inode is: without a journal, the inode's block may come first.
        self.change.write(place, &leaf)?;
        // The block has a whole cluster, and the inode counts all of it.
        let ratio = self.change.space.ratio as u32;
        let sectors = (bs / 512) as u32 * ratio;
        self.change_inode(|bytes| {
            let map = &mut bytes[MAP];
            let first = u32_at(map, ENTRY);
            map[ENTRY..].fill(0);
            put_u16(map, 2, 1);
            put_u16(map, 6, 1);
            put_u32(map, ENTRY, first);
            put_u32(map, ENTRY + 4, place as u32);
            put_u16(map, ENTRY + 8, (place >> 32) as u16);
            let huge = u32_at(bytes, FLAGS_AT) & flags::HUGE_FILE != 0;
            let unit = if huge { ratio } else { sectors };
            let (low, carry) = u32_at(bytes, BLOCKS_AT).overflowing_add(unit);
            put_u32(bytes, BLOCKS_AT, low);
            let high = u16_at(bytes, BLOCKS_HIGH_AT);
            put_u16(bytes, BLOCKS_HIGH_AT, high.wrapping_add(carry.into()));
        })
    }

    fn seal_node(&self, bytes: &mut [u8]) {
        if self.change.fs.sb.features.metadata_csum() {
            let at = ENTRY * (1 + usize::from(u16_at(bytes, 4)));
            let sum = crc32c(self.seed, &bytes[..at]);
            put_u32(bytes, at, sum);
        }
    }

    /// A block of a map on the way down. A file has each of them once: a damaged map could have the same
    /// block in all slots of all levels, and the walk would take years.
    fn map_block(&mut self, block: u64) -> Result<Vec<u8>, ResizeFault> {
        if !self.seen.insert(block) {
            let why = format!("the map of inode {} has block {block} twice", self.ino.0);
            return Err(ResizeFault::Damaged(why));
        }
        self.change.current(block)
    }

    /// Whether a node's checksum is right, and where it must be.
    fn verify_node(&self, bytes: &[u8]) -> bool {
        let at = ENTRY * (1 + usize::from(u16_at(bytes, 4)));
        let has_room = at + 4 <= bytes.len();
        !self.change.fs.sb.features.metadata_csum()
            || has_room && crc32c(self.seed, &bytes[..at]) == u32_at(bytes, at)
    }

    /// Changes a node of an extent tree.
    pub(super) fn change_node(
        &mut self,
        node: Node,
        with: impl FnOnce(&mut [u8]),
    ) -> Result<(), ResizeFault> {
        match node {
            Node::Root => self.change_inode(|bytes| with(&mut bytes[MAP])),
            Node::Block(block) => {
                let mut bytes = self.change.current(block)?;
                with(&mut bytes);
                self.seal_node(&mut bytes);
                self.change.blocks.insert(block, bytes);
                Ok(())
            }
        }
    }

    /// The numbers of a block map.
    pub(super) fn block_map(&mut self, map: &[u8; 60]) -> Result<(), ResizeFault> {
        let mut words: Vec<u32> = (0..15).map(|at| u32_at(map, at * 4)).collect();
        let before = words.clone();
        let mut moved = self.numbers(&mut words[..DIRECT]);
        for level in 1..=3 {
            let at = DIRECT + level - 1;
            moved = moved.and_then(|()| self.indirect(&mut words, at, level));
        }
        // Also after a fault: what has moved has moved.
        if words != before {
            self.change_inode(|bytes| {
                for (at, word) in words.iter().enumerate() {
                    put_u32(bytes, MAP.start + at * 4, *word);
                }
            })?;
        }
        moved?;
        self.change.commit_if_full()
    }

    /// An indirect block and what is below it. Its parent's number is changed in `words`.
    fn indirect(&mut self, words: &mut [u32], at: usize, level: usize) -> Result<(), ResizeFault> {
        let number = u64::from(words[at]);
        if number == 0 {
            return Ok(());
        }
        let bytes = self.map_block(number)?;
        let mut below: Vec<u32> = bytes.chunks_exact(4).map(|word| u32_at(word, 0)).collect();
        let before = below.clone();
        let moved = match level {
            1 => self.numbers(&mut below),
            _ => (0..below.len()).try_for_each(|at| self.indirect(&mut below, at, level - 1)),
        };
        if below != before {
            let bytes: Vec<u8> = below.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.change.blocks.insert(number, bytes);
        }
        moved?;
        if number >= self.change.space.limit || self.is_journal && self.change.blocks.contains_key(&number) {
            words[at] = self.change.move_block(number)? as u32;
        }
        Ok(())
    }

    /// Moves the data blocks of a list of numbers, runs of neighbours together.
    fn numbers(&mut self, words: &mut [u32]) -> Result<(), ResizeFault> {
        let mut at = 0;
        while at < words.len() {
            let start = words[at];
            if u64::from(start) < self.change.space.limit {
                at += 1;
                continue;
            }
            let follows =
                |n: usize| words.get(at + n).is_some_and(|word| *word == start.wrapping_add(n as u32));
            let len = (1..).take_while(|n| follows(*n)).count() as u64 + 1;
            if u64::from(start) + len > self.change.fs.geometry.blocks {
                let why = format!("the map of inode {} has blocks that do not exist", self.ino.0);
                return Err(ResizeFault::Damaged(why));
            }
            let run = self.allocate(len)?;
            let part = (run.end - run.start).min(len);
            self.copy(start.into(), run.start, part)?;
            self.change.free(u64::from(start)..u64::from(start) + part)?;
            self.change.moved.blocks += part;
            for n in 0..part {
                words[at + n as usize] = (run.start + n) as u32;
            }
            at += part as usize;
        }
        Ok(())
    }
}

/// Makes two extents of the one at byte `at` of a node: the first has `first` of its `len` blocks. `flag`
/// marks them as unwritten.
pub(super) fn split(bytes: &mut [u8], at: usize, flag: u16, (first, len): (u16, u16), start: u64) {
    let entries = u16_at(bytes, 2);
    let end = ENTRY * (1 + usize::from(entries));
    bytes.copy_within(at..end, at + ENTRY);
    put_u16(bytes, 2, entries + 1);
    put_u16(bytes, at + 4, first + flag);
    let (rest, rest_start) = (at + ENTRY, start + u64::from(first));
    let lblk = u32_at(bytes, rest);
    put_u32(bytes, rest, lblk + u32::from(first));
    put_u16(bytes, rest + 4, (len - first) + flag);
    put_u16(bytes, rest + 6, (rest_start >> 32) as u16);
    put_u32(bytes, rest + 8, rest_start as u32);
}
