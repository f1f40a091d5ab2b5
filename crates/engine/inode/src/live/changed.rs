//! The lists of inodes that transactions change, and how the commit writes them into table blocks.
//!
//! ```text
//!   edit() --> | nodes: 17 18 3 ..          |   list of the running transaction, in parts by table block
//!              | encoded_blocks: [1..16] .. |   new table blocks whose inodes were all created in order:
//!              '----------------------------'   encoded by their creator, from its CPU cache, and
//!                   | freeze()                  with a checksum for the log
//!                   v
//!   commit:  write_frozen(): writes encoded_blocks, then encodes each inode of `nodes` into its block
//! ```
//!
//! Invariants
//! 1. All inodes of a table block are listed in the same part, each with a separate turn.
//! 2. An inode in an encoded block is not on the list; if it changes again, it is listed again. For each
//!    table block, inodes listed before the turns of its last encoded block are contained in that block or
//!    obsolete; inodes listed after them are newer.
//! 3. An inode in an encoded block stays in memory until that block is written, because of its `changed_in`.
//!    The encoded block holds no reference to it: dropping a million references would cost the commit as much
//!    as writing the inodes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::rank::{self, Mutex, MutexGuard};
use extant_base::{Ino, Pblk, Tid};
use extant_buffer::{BlockContents, Bytes, Edit, Kind, Owner, ReadFault, Seal};
use extant_ondisk::inode as layout;

use super::InodeCache;
use crate::node::{LiveInode, OrphanState, Values};
use crate::quota::Quota;

/// Number of parts of the list of changed inodes.
pub(super) const DIRTY_PARTS: usize = 64;

/// How many inodes ahead of the current one the commit prefetches.
const NODES_ASKED: usize = 32;

/// The seal of table blocks: each inode is sealed separately when it is written.
pub(super) const TABLE: Seal = Seal { owner: Owner { kind: Kind::InodeTable, ino: 0 }, seed: None };

/// The inodes that the running transaction changed.
#[derive(Default)]
pub(super) struct Dirty {
    /// Each with the turn in which it was listed.
    nodes: Vec<(Ino, u32, Arc<LiveInode>)>,
    /// Number of inodes listed so far, including those in `encoded_blocks`.
    turns: u32,
    /// In the order of their creation.
    encoded_blocks: Vec<EncodedBlock>,
    /// Table blocks that had no inode in use: they are filled from scratch, and not read.
    fresh: Vec<Pblk>,
    /// Blocks that were counted last, indexed by the last bits of their numbers.
    counted: [Pblk; 32],
}

impl Dirty {
    fn list(&mut self, node: &Arc<LiveInode>) {
        self.nodes.push((node.ino, self.turns, Arc::clone(node)));
        self.turns += 1;
    }

    /// If the `of_block` inodes listed before the last one are all inodes of one new table block, returns the
    /// block and their index in the list.
    fn full_new_block(&self, of_block: usize) -> Option<(Pblk, usize)> {
        let at = self.nodes.len().checked_sub(of_block + 1)?;
        let nodes = &self.nodes[at..at + of_block];
        let ((first, _, first_node), (.., last_node)) = (nodes.first()?, nodes.last()?);
        let block = first_node.table_block;
        let are_all = (first_node.place_at, last_node.table_block) == (0, block)
            && nodes.iter().zip(first.0..).all(|((ino, ..), expected)| ino.0 == expected);
        // The last element is usually the block of the last inode.
        let is_new = self.fresh.iter().rev().take(2).any(|new| *new == block);
        (are_all && is_new).then_some((block, at))
    }

    /// Encodes a [complete block](Self::full_new_block) whose inodes begin at `at`. `take` encodes an inode
    /// into its bytes; if it returns true, the inode leaves the list. Other inodes stay on the list with their
    /// turns.
    fn encode_full_block(
        &mut self,
        (block, at): (Pblk, usize),
        of_block: usize,
        mut bytes: Bytes,
        take: impl Fn(&LiveInode, &mut [u8]) -> bool,
    ) {
        let Some((_, since, _)) = self.nodes.get(at) else { return };
        let since = *since;
        let size = bytes.len() / of_block;
        let mut places = bytes.make_mut().chunks_exact_mut(size);
        let behind = self.nodes.split_off(at + of_block);
        let all = self.nodes.split_off(at).into_iter();
        self.nodes.extend(all.filter(|(.., node)| !take(node, places.next().unwrap_or_default())));
        self.nodes.extend(behind);
        self.encoded_blocks.push(EncodedBlock { block, since, contents: BlockContents::new(bytes) });
    }

    /// Sorts the encoded blocks by block number and keeps the last one of each block. Sorts the listed inodes
    /// by number, older entries first.
    fn sort(&mut self) {
        self.encoded_blocks.reverse();
        self.encoded_blocks.sort_by_key(|encoded| encoded.block);
        self.encoded_blocks.dedup_by_key(|encoded| encoded.block);
        self.nodes.sort_by_key(|(ino, turn, _)| (*ino, *turn));
        self.fresh.sort_unstable();
        self.fresh.dedup();
    }
}

/// A new table block with all its inodes.
struct EncodedBlock {
    block: Pblk,
    /// The turn of its first inode; inodes of the block with smaller turns are older.
    since: u32,
    contents: BlockContents,
}

/// The inodes that the current commit writes.
#[derive(Default)]
pub(super) struct Frozen {
    transaction: Tid,
    lists: Vec<Dirty>,
    /// Inodes that the next transaction changed before the commit wrote them, in their state at the start of
    /// the commit.
    early: Vec<(Pblk, Encoded, Box<[u8]>)>,
}

/// How to copy an inode's encoded bytes into its block.
struct Encoded {
    /// Byte offset in the block.
    at: usize,
    /// Bytes of the block that stay unchanged: fields that are newer than this program.
    kept: Range<usize>,
    /// Seed of the checksum, which also covers the unchanged bytes.
    seed: Option<u32>,
}

impl Encoded {
    fn put(&self, raw: &[u8], block: &mut [u8]) {
        let Some(place) = block.get_mut(self.at..self.at + raw.len()) else { return };
        place[..self.kept.start].copy_from_slice(&raw[..self.kept.start]);
        place[self.kept.end..].copy_from_slice(&raw[self.kept.end..]);
        if let Some(seed) = self.seed {
            layout::seal(place, seed);
        }
    }
}

/// The locked values of an inode, for a change. The inode is on the list of the running transaction.
pub struct Editing<'a> {
    values: MutexGuard<'a, Values, { rank::VALUES }>,
}

/// Drops what the inode has no space for on disk, so that stat(2) returns the same before and after an
/// eviction.
impl Drop for Editing<'_> {
    #[inline]
    fn drop(&mut self) {
        if usize::from(self.values.fields.extra_isize) < layout::EXTRA_SIZE {
            self.values.fields.fit();
        }
    }
}

impl std::ops::Deref for Editing<'_> {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

impl std::ops::DerefMut for Editing<'_> {
    fn deref_mut(&mut self) -> &mut Values {
        &mut self.values
    }
}

impl InodeCache {
    /// Records that no other inode of this new inode's table block is in use: the commit fills the block from
    /// scratch.
    pub fn fresh_block(&self, node: &LiveInode) {
        self.dirty_part(node).lock().fresh.push(node.table_block);
    }

    /// Locks the values of an inode for a change by `transaction`; the caller has a handle of it.
    pub fn edit<'a>(&self, node: &'a Arc<LiveInode>, transaction: Tid) -> Editing<'a> {
        let mut values = node.values.lock();
        values.changed_in = transaction;
        values.snapshot = None;
        if values.listed_in != transaction {
            if values.listed_in != Tid::NONE {
                self.write_early(node, &values);
            }
            values.listed_in = transaction;
            let part = self.dirty_part(node);
            let mut dirty = part.lock();
            // Inodes that are created one after the other share blocks. Counting a block twice does no harm.
            let counted = &mut dirty.counted[(node.table_block.0 % 32) as usize];
            let is_counted = *counted == node.table_block;
            *counted = node.table_block;
            dirty.list(node);
            drop(dirty);
            if !is_counted {
                self.dirty_blocks.fetch_add(1, Ordering::Relaxed);
                self.encode_full_block(part, transaction);
            }
            if let Some(quota) = self.quota() {
                quota.touch_owners_of(&self.shared, node, &values);
            }
        }
        Editing { values }
    }

    /// The part of the list for an inode. Inodes of one table block, and of blocks close to it, are in the
    /// same part.
    fn dirty_part(&self, node: &LiveInode) -> &Mutex<Dirty, { rank::CHANGED_INODES }> {
        &self.dirty[(extant_base::salted::spread(node.table_block.0 >> 6) % DIRTY_PARTS as u64) as usize]
    }

    /// Called when a thread that creates inodes continues in another table block. If the last listed inodes
    /// fill a new block, encodes them now: they are in this CPU's cache, and there are more CPUs than
    /// committers.
    fn encode_full_block(&self, part: &Mutex<Dirty, { rank::CHANGED_INODES }>, transaction: Tid) {
        // Quotas are counted from the list.
        if self.forget_orphans || self.quota().is_some() {
            return;
        }
        let (size, block_size) = (self.shared.geometry.inode_size, self.shared.geometry.block_size.len());
        let of_block = block_size / size;
        if part.lock().full_new_block(of_block).is_none() {
            return;
        }
        // Allocated without the lock, because the allocation may cause page faults.
        let bytes = Bytes::zeroed(block_size);
        let mut dirty = part.lock();
        let Some(whole) = dirty.full_new_block(of_block) else { return };
        dirty.encode_full_block(whole, of_block, bytes, |node, place| {
            // Only try_lock: in the lock order, an inode's values come before the list.
            let values = node.values.try_lock().filter(|values| values.listed_in == transaction);
            let Some(mut values) = values else { return false };
            values.listed_in = Tid::NONE;
            if let Some(seed) = self.encode(node, &values, place).seed {
                layout::seal(place, seed);
            }
            true
        });
    }

    /// Upper bound of the number of blocks that [`freeze`](Self::freeze) and
    /// [`write_frozen`](Self::write_frozen) change.
    #[must_use]
    pub fn dirty_blocks(&self) -> u32 {
        self.dirty_blocks.load(Ordering::Relaxed) + self.quota().map_or(0, Quota::blocks_to_come)
    }

    /// Ends the list of the running transaction, of which only this handle is open. Later changes belong to
    /// the next transaction. Writes the quota usage of the listed inodes into the quota files.
    ///
    /// # Errors
    /// A block of a quota file cannot be read.
    pub fn freeze(&self, edit: &dyn Edit) -> Result<(), ReadFault> {
        let lists: Vec<Dirty> = self.dirty.iter().map(|part| std::mem::take(&mut *part.lock())).collect();
        self.dirty_blocks.store(0, Ordering::Relaxed);
        let counted = self.quota().map_or(Ok(()), |quota| {
            for (.., node) in lists.iter().flat_map(|list| &list.nodes) {
                quota.update_charge(&self.shared, node, &mut node.values.lock());
            }
            quota.write(&self.shared, edit)
        });
        *self.frozen.lock() = Frozen { transaction: edit.transaction(), lists, early: Vec::new() };
        counted
    }

    /// Writes the inodes of the frozen list into their table blocks, while the next transaction runs. Nothing
    /// else changes these blocks.
    ///
    /// # Errors
    /// A table block cannot be read.
    pub fn write_frozen(&self, edit: &dyn Edit) -> Result<(), ReadFault> {
        let (transaction, lists) = {
            let mut frozen = self.frozen.lock();
            (frozen.transaction, std::mem::take(&mut frozen.lists))
        };
        lists.into_iter().try_for_each(|list| self.write_list(list, transaction, edit))?;
        // This has all inodes that write_list skipped: they were added here before their values were
        // unlocked.
        let early = std::mem::take(&mut self.frozen.lock().early);
        for (block, encoded, raw) in early {
            edit.change(block, TABLE, &mut |block| encoded.put(&raw, block))?;
        }
        self.table.written(transaction);
        Ok(())
    }

    fn write_list(&self, mut list: Dirty, transaction: Tid, edit: &dyn Edit) -> Result<(), ReadFault> {
        list.sort();
        let Dirty { nodes, encoded_blocks, fresh, .. } = list;
        let mut made = vec![false; fresh.len()];
        let mut encoded_since = Vec::with_capacity(encoded_blocks.len());
        for EncodedBlock { block, since, contents } in encoded_blocks {
            encoded_since.push((block, since));
            if let Ok(which) = fresh.binary_search(&block) {
                made[which] = true;
            }
            edit.put(block, TABLE, contents);
        }
        let size = self.shared.geometry.inode_size;
        let mut images: Vec<u8> = Vec::new();
        let mut encoded: Vec<Encoded> = Vec::new();
        let mut passed = 0;
        for of_block in nodes.chunk_by(|(.., one), (.., other)| one.table_block == other.table_block) {
            // Other threads created them on other CPUs, long ago, so they are not in this CPU's cache.
            let soon = nodes.iter().skip(passed + NODES_ASKED).take(of_block.len());
            soon.for_each(|(.., node)| extant_buffer::prefetch_object(&**node));
            passed += of_block.len();
            let block = of_block[0].2.table_block;
            let whole = encoded_since.binary_search_by_key(&block, |(block, _)| *block);
            let since = whole.map_or(0, |which| encoded_since[which].1);
            // Encoded before the block is locked: a holder of an inode's values may wait for blocks.
            images.resize(of_block.len() * size, 0);
            encoded.clear();
            for (_, turn, node) in of_block {
                let mut values = node.values.lock();
                if values.listed_in != transaction {
                    continue;
                }
                values.listed_in = Tid::NONE;
                let is_forgotten = self.forget_orphans && values.fields.links == 0;
                if *turn < since || is_forgotten && node.orphan() != OrphanState::None {
                    continue;
                }
                let at = encoded.len() * size;
                encoded.push(self.encode(node, &values, &mut images[at..at + size]));
            }
            let mut put = |block: &mut [u8]| {
                for (encoded, raw) in encoded.iter().zip(images.chunks_exact(size)) {
                    encoded.put(raw, block);
                }
            };
            match fresh.binary_search(&block) {
                // Filled together with its inodes: there are many blocks, and an earlier one would not stay
                // in the CPU cache.
                Ok(which) if !std::mem::replace(&mut made[which], true) => edit.fresh(block, TABLE, &mut put),
                _ => edit.change(block, TABLE, &mut put)?,
            }
        }
        for (block, _) in fresh.iter().zip(&made).filter(|(_, made)| !**made) {
            edit.fresh(*block, TABLE, &mut |_| {});
        }
        Ok(())
    }

    /// Keeps the state of an inode at the start of the current commit, which has not written it yet.
    #[cold]
    fn write_early(&self, node: &LiveInode, values: &Values) {
        let mut raw = vec![0; self.shared.geometry.inode_size].into_boxed_slice();
        let encoded = self.encode(node, values, &mut raw);
        self.frozen.lock().early.push((node.table_block, encoded, raw));
    }

    /// The bytes of the inode in the inode table, as a commit would write them now, without its checksum.
    #[must_use]
    pub fn encoded(&self, node: &LiveInode) -> Vec<u8> {
        let mut raw = vec![0; self.shared.geometry.inode_size];
        let _ = self.encode(node, &node.values(), &mut raw);
        raw
    }

    fn encode(&self, node: &LiveInode, values: &Values, raw: &mut [u8]) -> Encoded {
        let (fields, body) = (&values.fields, values.body());
        fields.encode(raw);
        let size = raw.len();
        let from = if size > layout::BASE_SIZE { fields.xattr_offset().min(size) } else { size };
        let behind = &mut raw[from..];
        let len = body.len().min(behind.len());
        behind[..len].copy_from_slice(&body[..len]);
        behind[len..].fill(0);
        let known = from.min(layout::BASE_SIZE + layout::EXTRA_SIZE);
        let seed = values.seed().filter(|_| self.shared.sb.seals_inodes());
        Encoded { at: node.place_at as usize, kept: known..from, seed }
    }
}

#[cfg(test)]
mod tests {
    use extant_mapping::FileMap;

    use super::*;

    const OF_BLOCK: u32 = 4;

    /// Creates an inode; its table block holds four, and numbers are 1-based.
    fn node(block: u32, index: u32) -> Arc<LiveInode> {
        let ino = Ino(block * OF_BLOCK + index + 1);
        let map = FileMap { ino, i_block: FileMap::EMPTY, extents: true, seed: None };
        let values = Values::new(layout::Inode::default(), Vec::new(), map);
        Arc::new(LiveInode::new(ino, (Pblk(u64::from(block)), index as usize * 256), values))
    }

    impl Dirty {
        fn try_whole(&mut self, left: Option<Ino>) -> bool {
            let Some(whole) = self.full_new_block(OF_BLOCK as usize) else { return false };
            let take = |node: &LiveInode, place: &mut [u8]| {
                place[0] = node.ino.0 as u8;
                Some(node.ino) != left
            };
            self.encode_full_block(whole, OF_BLOCK as usize, Bytes::zeroed(1024), take);
            true
        }

        /// Inodes that are written over the encoded block.
        fn newer(&self, block: u32) -> Vec<u32> {
            let since = self
                .encoded_blocks
                .iter()
                .find(|encoded| encoded.block.0 == block.into())
                .map_or(0, |encoded| encoded.since);
            let of_block = self.nodes.iter().filter(|(.., node)| node.table_block.0 == block.into());
            of_block
                .filter(|(_, turn, _)| *turn >= since)
                .map(|(ino, ..)| ino.0 - block * OF_BLOCK - 1)
                .collect()
        }
    }

    /// One block is begun, another one is completed meanwhile, then the first one too; then an inode of the
    /// second changes.
    #[test]
    fn what_is_listed_after_a_whole_is_newer_whatever_was_taken_off_the_list() {
        let mut dirty = Dirty { fresh: vec![Pblk(7), Pblk(9)], ..Dirty::default() };
        (0..2).for_each(|index| dirty.list(&node(7, index)));
        (0..OF_BLOCK).for_each(|index| dirty.list(&node(9, index)));
        assert!(!dirty.try_whole(None), "none is behind them");
        // A previous inode with the same number is older.
        dirty.list(&node(7, 2));
        assert!(dirty.try_whole(Some(Ino(9 * OF_BLOCK + 4))));
        assert_eq!((dirty.nodes.len(), dirty.newer(9)), (4, vec![3]));
        dirty.nodes.retain(|(ino, ..)| ino.0 <= 8 * OF_BLOCK);
        dirty.list(&node(7, 3));
        dirty.list(&node(9, 2));
        assert!(dirty.try_whole(None));
        dirty.list(&node(7, 1));
        dirty.sort();
        assert_eq!((dirty.newer(9), dirty.newer(7)), (vec![2], vec![1]));
        assert_eq!(
            dirty.encoded_blocks.iter().map(|encoded| encoded.contents.bytes()[512]).collect::<Vec<u8>>(),
            [31, 39]
        );
    }

    #[test]
    fn what_was_listed_before_the_last_whole_of_its_block_is_older() {
        let mut dirty = Dirty { fresh: vec![Pblk(7), Pblk(8)], ..Dirty::default() };
        for _ in 0..2 {
            dirty.list(&node(7, 2));
            (0..OF_BLOCK).for_each(|index| dirty.list(&node(7, index)));
            dirty.list(&node(8, 0));
            assert!(dirty.try_whole(None));
        }
        assert_eq!(dirty.encoded_blocks.len(), 2);
        dirty.list(&node(7, 0));
        dirty.sort();
        assert_eq!((dirty.encoded_blocks.len(), dirty.newer(7)), (1, vec![0]));
    }
}
