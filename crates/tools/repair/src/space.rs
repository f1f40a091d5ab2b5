//! Free clusters for new blocks, and free inodes: what no owner claims, by the survey's notes.
//!
//! Owns: what the round has taken. Does **not** own: bitmaps and counts, which a later round computes anew.
//!
//! Invariant: nothing is given out twice in a round, and nothing that the survey knows to be in use.

use std::collections::{HashMap, HashSet};

use extant_base::{Group, Ino, Lblk, Pblk};
use extant_check::survey::{Notes, Run};

use crate::runs;

/// The free clusters and inodes of one round.
pub(crate) struct Space<'s> {
    notes: Notes<'s, 's>,
    end: u64,
    /// The clusters in use, of the groups that were looked at.
    groups: HashMap<u32, Vec<u64>>,
    /// No group before this one has a free cluster.
    first: u32,
    inodes: HashSet<u32>,
}

impl<'s> Space<'s> {
    pub(crate) fn new(notes: Notes<'s, 's>, device_bytes: u64) -> Self {
        let geometry = notes.geometry();
        let end = geometry.blocks.min(device_bytes >> geometry.block_size.log2());
        Self { notes, end, groups: HashMap::new(), first: 0, inodes: HashSet::new() }
    }

    /// The end of what can hold blocks: of the file system and of the device.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Takes one cluster, in `goal`'s group if it has one, and returns its first block.
    pub(crate) fn block(&mut self, goal: Option<Pblk>) -> Option<Pblk> {
        if let Some(group) = goal.and_then(|goal| self.notes.geometry().group_of(goal))
            && group.0 > self.first
            && let Some(block) = self.in_group(group)
        {
            return Some(block);
        }
        while self.first < self.notes.geometry().groups {
            if let Some(block) = self.in_group(Group(self.first)) {
                return Some(block);
            }
            self.first += 1;
        }
        None
    }

    /// Takes the clusters of a run, so that nothing new goes there.
    pub(crate) fn occupy(&mut self, start: Pblk, len: u64) {
        let geometry = self.notes.geometry();
        let per_group = u64::from(geometry.clusters_per_group());
        let cluster =
            |block: u64| block.saturating_sub(geometry.first_data_block.into()) >> geometry.cluster_log;
        for number in cluster(start.0)..=cluster(start.0.saturating_add(len.max(1) - 1)) {
            let group = (number / per_group) as u32;
            if group >= geometry.groups {
                return;
            }
            let words = self.used(Group(group));
            let bit = number % per_group;
            if let Some(word) = words.get_mut(bit as usize / 64) {
                *word |= 1 << (bit % 64);
            }
        }
    }

    /// The clusters of a group that are in use or taken, as bits.
    fn used(&mut self, group: Group) -> &mut Vec<u64> {
        self.groups.entry(group.0).or_insert_with(|| self.notes.used_clusters(group))
    }

    /// Takes one cluster of a group, and returns its first block.
    pub(crate) fn in_group(&mut self, group: Group) -> Option<Pblk> {
        let (notes, geometry, end) = (self.notes, self.notes.geometry(), self.end);
        let words = self.used(group);
        let clusters = geometry.group_clusters(group);
        for (index, word) in words.iter_mut().enumerate() {
            if *word == u64::MAX {
                continue;
            }
            let bit = word.trailing_ones();
            let cluster = index as u64 * 64 + u64::from(bit);
            if cluster >= clusters.into() {
                return None;
            }
            *word |= 1 << bit;
            let block = Pblk(geometry.group_start(group).0 + (cluster << geometry.cluster_log));
            let fits = block.0 + geometry.cluster_ratio() <= end && block.0 != 0;
            if fits && !notes.is_metadata(block, 1) {
                return Some(block);
            }
        }
        None
    }

    /// Takes `len` free clusters in a row, with `within` in this group; returns the first block.
    pub(crate) fn run(&mut self, len: u64, within: Option<Group>) -> Option<Pblk> {
        let (geometry, end) = (self.notes.geometry(), self.end);
        let per_group = u64::from(geometry.clusters_per_group());
        let (mut start, mut have) = (0, 0);
        for group in within.map_or(0..geometry.groups, |group| group.0..group.0 + 1) {
            let words = self.used(Group(group));
            for cluster in 0..u64::from(geometry.group_clusters(Group(group))) {
                let number = u64::from(group) * per_group + cluster;
                let block = u64::from(geometry.first_data_block) + (number << geometry.cluster_log);
                let is_free = words[cluster as usize / 64] >> (cluster % 64) & 1 == 0 && block != 0;
                if !is_free || block + geometry.cluster_ratio() > end {
                    have = 0;
                    continue;
                }
                if have == 0 {
                    start = number;
                }
                have += 1;
                if have == len {
                    for number in start..start + len {
                        let words = self.used(Group((number / per_group) as u32));
                        let bit = number % per_group;
                        words[bit as usize / 64] |= 1 << (bit % 64);
                    }
                    let first = u64::from(geometry.first_data_block) + (start << geometry.cluster_log);
                    return Some(Pblk(first));
                }
            }
        }
        None
    }

    /// Takes blocks for a new file, in one piece if there is one.
    pub(crate) fn file(&mut self, blocks: u32) -> Option<Vec<Run>> {
        let ratio = self.notes.geometry().cluster_ratio();
        if let Some(pblk) = self.run(u64::from(blocks).div_ceil(ratio), None) {
            return Some(vec![Run { lblk: Lblk(0), pblk, len: blocks, unwritten: false }]);
        }
        let (mut runs, mut lblk) = (Vec::new(), 0);
        while lblk < blocks {
            let (pblk, len) = (self.block(None)?, (ratio as u32).min(blocks - lblk));
            runs::push(&mut runs, Run { lblk: Lblk(lblk), pblk, len, unwritten: false });
            lblk += len;
        }
        Some(runs)
    }

    /// Takes a free inode that files may use, one that the survey has read if possible.
    pub(crate) fn inode(&mut self) -> Option<Ino> {
        let notes = self.notes;
        let (sb, geometry) = (notes.superblock(), notes.geometry());
        let first = if sb.rev_level == 0 { Ino::FIRST.0 } else { sb.first_ino.max(Ino::FIRST.0) };
        let mut unread = None;
        for number in first..=geometry.inodes() {
            let ino = Ino(number);
            let (group, _) = geometry.inode_place(ino)?;
            if !notes.is_usable(group) || self.inodes.contains(&number) {
                continue;
            }
            match notes.noted(ino) {
                Some(note) if !note.used && !note.marked && !note.hidden => {
                    self.inodes.insert(number);
                    return Some(ino);
                }
                None => unread = unread.or(Some(ino)),
                Some(_) => {}
            }
        }
        let ino = unread?;
        self.inodes.insert(ino.0);
        Some(ino)
    }
}
