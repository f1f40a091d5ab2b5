//! What transactions change of inodes, and how that gets into their table blocks.
//!
//! ```text
//!   edit() --> | nodes: 17 18 3 ..      | list of the running transaction, in parts by table blocks
//!              | wholes: [1..16], ..    | a new table block whose inodes were all made one after the other: encoded by who made
//!              '------------------------'  them, who still has them in his processor's cache
//!                   | freeze()
//!   commit <--------'  write_frozen(): wholes as they are, then each inode of `nodes` into its block
//! ```
//!
//! Invariants
//! 1. All inodes of a table block are listed in one part, in the order of their changes.
//! 2. An inode that is in a whole is not listed, and may be changed and listed again. What was listed before the last whole of its
//!    block is in it or gone; what was listed after it is newer.
//! 3. An inode that a whole has stays in memory until that is written, by `changed_in`: the whole does not hold it, since letting a
//!    million inodes go would cost the commit as much as writing them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Ino, Pblk};
use buffer::{Bytes, Edit, Kind, Owner, ReadFault, Seal};
use ondisk::inode as layout;
use parking_lot::{Mutex, MutexGuard};

use super::{Live, Node, OrphanState, Values};
use crate::Quota;

/// Parts of the list of changed inodes.
pub(super) const DIRTY_PARTS: usize = 64;

/// How far ahead of the inode that is being written inodes are asked for.
const NODES_ASKED: usize = 32;

/// The seal of table blocks: inodes are sealed one by one as they are written.
pub(super) const TABLE: Seal = Seal { owner: Owner { kind: Kind::InodeTable, ino: 0 }, seed: None };

/// What the running transaction changed.
#[derive(Default)]
pub(super) struct Dirty {
    nodes: Vec<(Ino, Arc<Node>)>,
    /// In the order in which they were made.
    wholes: Vec<Whole>,
    /// Table blocks of which nothing was in use: they are made anew, and need not be read.
    fresh: Vec<Pblk>,
    /// Blocks that were counted last, by their numbers' last bits.
    counted: [Pblk; 32],
}

impl Dirty {
    /// A new table block, if so many inodes that were listed before the last one are all that it has; and where in the list they
    /// begin.
    fn whole_block(&self, of_block: usize) -> Option<(Pblk, usize)> {
        let at = self.nodes.len().checked_sub(of_block + 1)?;
        let nodes = &self.nodes[at..at + of_block];
        let ((first, first_node), (_, last_node)) = (nodes.first()?, nodes.last()?);
        let block = first_node.table_block;
        let are_all = (first_node.place_at, last_node.table_block) == (0, block)
            && nodes.iter().zip(first.0..).all(|((ino, _), expected)| ino.0 == expected);
        // The last is the one that the last inode is in, as a rule.
        let is_new = self.fresh.iter().rev().take(2).any(|new| *new == block);
        (are_all && is_new).then_some((block, at))
    }
}

/// A new table block with all its inodes.
struct Whole {
    block: Pblk,
    /// How many inodes were listed before it.
    at: u32,
    bytes: Bytes,
}

/// What is being committed.
#[derive(Default)]
pub(super) struct Frozen {
    transaction: u64,
    lists: Vec<Dirty>,
    /// Inodes that the next transaction changed before the commit came to them, as they were when it began.
    early: Vec<(Pblk, Encoded, Box<[u8]>)>,
}

/// What is to be done with an inode's encoded bytes.
struct Encoded {
    /// Where in its block.
    at: usize,
    /// Bytes that stay as they are there: fields that are newer than this program.
    kept: Range<usize>,
    /// Seed of its checksum, which covers those too.
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

/// An inode's values, for changing them: on the list of the running transaction.
pub struct Editing<'a> {
    values: MutexGuard<'a, Values>,
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

impl Live {
    /// Nothing else in the table block of this new inode is in use: the commit makes the block anew.
    pub fn fresh_block(&self, node: &Node) {
        self.dirty_part(node).lock().fresh.push(node.table_block);
    }

    /// The values of an inode, to be changed by `transaction`, of which the caller has a handle.
    pub fn edit<'a>(&self, node: &'a Arc<Node>, transaction: u64) -> Editing<'a> {
        let mut values = node.values.lock();
        values.changed_in = transaction;
        values.snapshot = None;
        if values.listed_in != transaction {
            if values.listed_in != 0 {
                self.write_early(node, &values);
            }
            values.listed_in = transaction;
            let part = self.dirty_part(node);
            let mut dirty = part.lock();
            // Inodes that are made one after the other share blocks; counting some blocks twice does no harm.
            let counted = &mut dirty.counted[(node.table_block.0 % 32) as usize];
            let is_counted = *counted == node.table_block;
            *counted = node.table_block;
            dirty.nodes.push((node.ino, Arc::clone(node)));
            drop(dirty);
            if !is_counted {
                self.dirty_blocks.fetch_add(1, Ordering::Relaxed);
                self.make_whole(part, transaction);
            }
            if let Some(quota) = self.quota() {
                quota.touch_owners_of(&self.shared, node, &values);
            }
        }
        Editing { values }
    }

    /// Where a changed inode is listed: those of a table block, and of blocks close to it, together.
    fn dirty_part(&self, node: &Node) -> &Mutex<Dirty> {
        &self.dirty[(base::salted::spread(node.table_block.0 >> 6) % DIRTY_PARTS as u64) as usize]
    }

    /// Whoever made inodes goes on to another table block: if the last ones listed before it are all that a new block has, they are
    /// encoded now. He has them in his processor's cache, and there are more processors than commits.
    fn make_whole(&self, part: &Mutex<Dirty>, transaction: u64) {
        // What inodes cost is counted by the list.
        if self.forget_orphans || self.quota().is_some() {
            return;
        }
        let (size, block_size) = (self.shared.geometry.inode_size, self.shared.geometry.block_size.len());
        let of_block = block_size / size;
        if part.lock().whole_block(of_block).is_none() {
            return;
        }
        // Without the lock: its memory may be new to the system, too.
        let mut bytes = Bytes::zeroed(block_size);
        let mut dirty = part.lock();
        let Some((block, at)) = dirty.whole_block(of_block) else { return };
        let Dirty { nodes, wholes, .. } = &mut *dirty;
        let mut left = nodes.split_off(at + of_block);
        let mut places = bytes.make_mut().chunks_exact_mut(size);
        for (ino, node) in nodes.split_off(at) {
            let place = places.next().unwrap_or_default();
            // Tried only: an inode's values come before the list.
            match node.values.try_lock().filter(|values| values.listed_in == transaction) {
                Some(mut values) => {
                    values.listed_in = 0;
                    if let Some(seed) = self.encode(&node, &values, place).seed {
                        layout::seal(place, seed);
                    }
                }
                None => nodes.push((ino, Arc::clone(&node))),
            }
        }
        nodes.append(&mut left);
        wholes.push(Whole { block, at: at as u32, bytes });
    }

    /// Blocks that [`freeze`](Self::freeze) and [`write_frozen`](Self::write_frozen) would touch, at most.
    #[must_use]
    pub fn dirty_blocks(&self) -> u32 {
        self.dirty_blocks.load(Ordering::Relaxed) + self.quota().map_or(0, Quota::blocks_to_come)
    }

    /// Ends the list of the running transaction, of which no handle is open any more but this: what is changed from here on
    /// belongs to the next one. What the inodes of the list cost goes into the quota files.
    ///
    /// # Errors
    /// A block of a quota file cannot be read.
    pub fn freeze(&self, edit: &dyn Edit) -> Result<(), ReadFault> {
        let lists: Vec<Dirty> = self.dirty.iter().map(|part| std::mem::take(&mut *part.lock())).collect();
        self.dirty_blocks.store(0, Ordering::Relaxed);
        let counted = self.quota().map_or(Ok(()), |quota| {
            for (_, node) in lists.iter().flat_map(|list| &list.nodes) {
                quota.settle(&self.shared, node, &mut node.values.lock());
            }
            quota.write(&self.shared, edit)
        });
        *self.frozen.lock() = Frozen { transaction: edit.transaction(), lists, early: Vec::new() };
        counted
    }

    /// Writes the inodes of the frozen list into their table blocks, while the next transaction runs: nothing else changes these
    /// blocks.
    ///
    /// # Errors
    /// A table block cannot be read.
    pub fn write_frozen(&self, edit: &dyn Edit) -> Result<(), ReadFault> {
        let (transaction, lists) = {
            let mut frozen = self.frozen.lock();
            (frozen.transaction, std::mem::take(&mut frozen.lists))
        };
        lists.into_iter().try_for_each(|list| self.write_list(list, transaction, edit))?;
        // All that were passed over are in here: they were put in before their values could be looked at.
        let early = std::mem::take(&mut self.frozen.lock().early);
        for (block, encoded, raw) in early {
            edit.change(block, TABLE, &mut |block| encoded.put(&raw, block))?;
        }
        self.table.written(transaction);
        Ok(())
    }

    fn write_list(&self, list: Dirty, transaction: u64, edit: &dyn Edit) -> Result<(), ReadFault> {
        let Dirty { nodes, mut wholes, mut fresh, .. } = list;
        fresh.sort_unstable();
        fresh.dedup();
        let mut made = vec![false; fresh.len()];
        // Of one block the last.
        wholes.reverse();
        wholes.sort_by_key(|whole| whole.block);
        wholes.dedup_by_key(|whole| whole.block);
        let mut whole_at = Vec::with_capacity(wholes.len());
        for Whole { block, at, bytes } in wholes {
            whole_at.push((block, at));
            if let Ok(which) = fresh.binary_search(&block) {
                made[which] = true;
            }
            edit.put(block, TABLE, bytes);
        }
        let mut nodes: Vec<(Ino, u32, Arc<Node>)> =
            nodes.into_iter().zip(0..).map(|((ino, node), at)| (ino, at, node)).collect();
        // Of one number the older inode first.
        nodes.sort_by_key(|(ino, at, _)| (*ino, *at));
        let size = self.shared.geometry.inode_size;
        let mut images: Vec<u8> = Vec::new();
        let mut encoded: Vec<Encoded> = Vec::new();
        let mut passed = 0;
        for of_block in nodes.chunk_by(|(.., one), (.., other)| one.table_block == other.table_block) {
            // Threads made them, on other processors, and long ago.
            let soon = nodes.iter().skip(passed + NODES_ASKED).take(of_block.len());
            soon.for_each(|(.., node)| buffer::ask_for_whole(&**node));
            passed += of_block.len();
            let block = of_block[0].2.table_block;
            let whole = whole_at.binary_search_by_key(&block, |(block, _)| *block);
            let from = whole.map_or(0, |which| whole_at[which].1);
            // Encoded before the block is locked: whoever holds an inode's values may wait for blocks.
            images.resize(of_block.len() * size, 0);
            encoded.clear();
            for (_, at, node) in of_block {
                let mut values = node.values.lock();
                if values.listed_in != transaction {
                    continue;
                }
                values.listed_in = 0;
                let is_forgotten = self.forget_orphans && values.fields.links == 0;
                if *at < from || is_forgotten && node.orphan() != OrphanState::None {
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
                // Made with its inodes, not before: there are many, and they would not stay in the processor's cache.
                Ok(which) if !std::mem::replace(&mut made[which], true) => edit.fresh(block, TABLE, &mut put),
                _ => edit.change(block, TABLE, &mut put)?,
            }
        }
        for (block, _) in fresh.iter().zip(&made).filter(|(_, made)| !**made) {
            edit.fresh(*block, TABLE, &mut |_| {});
        }
        Ok(())
    }

    /// Keeps an inode as it was when the commit under way began, which has not come to it yet.
    #[cold]
    fn write_early(&self, node: &Node, values: &Values) {
        let mut raw = vec![0; self.shared.geometry.inode_size].into_boxed_slice();
        let encoded = self.encode(node, values, &mut raw);
        self.frozen.lock().early.push((node.table_block, encoded, raw));
    }

    fn encode(&self, node: &Node, values: &Values, raw: &mut [u8]) -> Encoded {
        let (fields, body) = (&values.fields, values.body());
        fields.encode(raw);
        let size = raw.len();
        let from = if size > layout::BASE_SIZE { fields.xattr_offset().min(size) } else { size };
        let behind = &mut raw[from..];
        let len = body.len().min(behind.len());
        behind[..len].copy_from_slice(&body[..len]);
        behind[len..].fill(0);
        let known = from.min(layout::BASE_SIZE + layout::EXTRA_SIZE);
        Encoded { at: node.place_at as usize, kept: known..from, seed: values.seed }
    }
}
