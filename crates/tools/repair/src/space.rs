//! Free clusters for new blocks: what no owner claims, by the survey's notes.

use std::collections::{HashMap, HashSet};

use extant_base::{Group, Ino, Pblk};
use extant_check::survey::Notes;

/// The free clusters and inodes of one round.
#[derive(Default)]
pub(crate) struct Space {
    groups: HashMap<u32, Vec<u64>>,
    /// No group before this one has a free cluster.
    first: u32,
    inodes: HashSet<u32>,
}

impl Space {
    /// Takes one cluster, near `goal`'s group first, and returns its first block.
    pub(crate) fn block(&mut self, notes: Notes<'_, '_>, limit: u64, goal: Option<Pblk>) -> Option<Pblk> {
        if let Some(group) = goal.and_then(|goal| notes.geometry().group_of(goal))
            && group.0 > self.first
            && let Some(block) = self.in_group(notes, group, limit)
        {
            return Some(block);
        }
        while self.first < notes.geometry().groups {
            if let Some(block) = self.in_group(notes, Group(self.first), limit) {
                return Some(block);
            }
            self.first += 1;
        }
        None
    }

    /// Takes the clusters of a run, so that nothing new goes there.
    pub(crate) fn occupy(&mut self, notes: Notes<'_, '_>, start: Pblk, len: u64) {
        let geometry = notes.geometry();
        let per_group = u64::from(geometry.clusters_per_group());
        let cluster =
            |block: u64| block.saturating_sub(geometry.first_data_block.into()) >> geometry.cluster_log;
        for number in cluster(start.0)..=cluster(start.0.saturating_add(len.max(1) - 1)) {
            let group = (number / per_group) as u32;
            if group >= geometry.groups {
                return;
            }
            let words = self.groups.entry(group).or_insert_with(|| notes.used_clusters(Group(group)));
            let bit = number % per_group;
            if let Some(word) = words.get_mut(bit as usize / 64) {
                *word |= 1 << (bit % 64);
            }
        }
    }

    pub(crate) fn in_group(&mut self, notes: Notes<'_, '_>, group: Group, limit: u64) -> Option<Pblk> {
        let geometry = notes.geometry();
        let words = self.groups.entry(group.0).or_insert_with(|| notes.used_clusters(group));
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
            let fits = block.0 + geometry.cluster_ratio() <= limit && block.0 != 0;
            if fits && !notes.is_metadata(block, 1) {
                return Some(block);
            }
        }
        None
    }

    /// Takes a run of `len` free clusters for `len` blocks each in a row; returns its first block.
    pub(crate) fn run(&mut self, notes: Notes<'_, '_>, limit: u64, len: u64) -> Option<Pblk> {
        self.run_in(notes, limit, len, None)
    }

    /// As [`run`](Self::run); with `within`, in this group.
    pub(crate) fn run_in(
        &mut self,
        notes: Notes<'_, '_>,
        limit: u64,
        len: u64,
        within: Option<Group>,
    ) -> Option<Pblk> {
        let geometry = notes.geometry();
        let per_group = u64::from(geometry.clusters_per_group());
        let (mut start, mut have) = (0, 0);
        for group in within.map_or(0..geometry.groups, |group| group.0..group.0 + 1) {
            let words = self.groups.entry(group).or_insert_with(|| notes.used_clusters(Group(group)));
            for cluster in 0..u64::from(geometry.group_clusters(Group(group))) {
                let number = u64::from(group) * per_group + cluster;
                let block = u64::from(geometry.first_data_block) + (number << geometry.cluster_log);
                let is_free = words[cluster as usize / 64] >> (cluster % 64) & 1 == 0 && block != 0;
                if !is_free || block + geometry.cluster_ratio() > limit {
                    have = 0;
                    continue;
                }
                if have == 0 {
                    start = number;
                }
                have += 1;
                if have == len {
                    for number in start..start + len {
                        let group = (number / per_group) as u32;
                        let words =
                            self.groups.entry(group).or_insert_with(|| notes.used_clusters(Group(group)));
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

    /// Takes a free inode that files may use, one that the survey has read if possible.
    pub(crate) fn inode(&mut self, notes: Notes<'_, '_>) -> Option<Ino> {
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
