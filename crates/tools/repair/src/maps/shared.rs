//! Clusters that several files claim: one owner keeps them, each other one gets a copy.
//!
//! Owns: which file keeps which cluster. The file system's own files come first, then the lowest inode
//! number. What cannot move keeps its cluster before all files: attribute blocks, the block of multiple-mount
//! protection, and the list of the resize inode.

use std::collections::HashMap;

use extant_base::le::u32_at;
use extant_base::{Ino, Lblk, Pblk};
use extant_check::survey::Run;
use extant_check::{Finding, FindingPlace, rules};
use extant_ondisk::Features;

use super::{Map, copy_run};
use crate::fs::Fs;
use crate::plan::Plan;
use crate::runs;

/// What keeps a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The file system, or a structure that cannot move.
    Fixed,
    /// A block of the inode's map.
    Node(Ino),
    /// Data of the inode, at this logical cluster.
    Data(Ino, u64),
}

/// Gives each owner its own copy of the clusters that several claim.
pub(crate) struct Shared<'r, 's> {
    fs: &'r mut Fs<'s>,
    plan: &'r mut Plan,
    /// By number of the cluster; for those that several claim.
    owners: HashMap<u64, Owner>,
}

impl<'r, 's> Shared<'r, 's> {
    pub(crate) fn new(fs: &'r mut Fs<'s>, plan: &'r mut Plan) -> Self {
        Self { fs, plan, owners: HashMap::new() }
    }

    pub(crate) fn mend(mut self, findings: &[&Finding]) {
        let used = self.fs.noted().filter(|(_, note)| note.used);
        let mut files: Vec<(bool, Ino)> = used.map(|(ino, note)| (!note.hidden, ino)).collect();
        files.sort_unstable();
        // Attribute blocks have their address in their checksum.
        for (_, ino) in &files {
            let Some(inode) = self.fs.inode(*ino) else { continue };
            if inode.file_acl != 0 && self.is_shared(Pblk(inode.file_acl), 1) {
                self.keep(Pblk(inode.file_acl), Owner::Fixed);
            }
        }
        let mmp = Pblk(self.fs.sb.mmp_block);
        if self.fs.sb.features.has_incompat(Features::MMP) && self.fs.notes.is_inside(mmp, 1) {
            self.keep(mmp, Owner::Fixed);
        }
        let resize = self.fs.inode(Ino::RESIZE).map_or(0, |inode| u32_at(&inode.block, 13 * 4));
        if resize != 0 && self.is_shared(Pblk(resize.into()), 1) {
            self.keep(Pblk(resize.into()), Owner::Fixed);
        }
        for (_, ino) in files {
            self.own_copy(ino);
        }
        for finding in findings {
            self.plan.fixed(finding, "Give each owner a copy of its own.");
        }
    }

    fn is_shared(&self, block: Pblk, len: u64) -> bool {
        self.fs.notes.is_claimed_twice(block, len)
    }

    /// Sets the owner of a block's cluster; returns the one before.
    fn keep(&mut self, block: Pblk, owner: Owner) -> Option<Owner> {
        self.owners.insert(self.fs.cluster(block), owner)
    }

    fn own_copy(&mut self, ino: Ino) {
        let Some(inode) = self.fs.inode(ino) else { return };
        let kind = inode.mode & 0xF000;
        let mapped = matches!(kind, 0x8000 | 0x4000) || (kind == 0xA000 && inode.size >= 60);
        if !mapped || self.fs.is_inline(&inode) || ino == Ino::RESIZE {
            return;
        }
        let mut map = Map::read(self.fs, ino, &inode);
        if !map.runs.iter().any(|run| self.is_shared(run.pblk, run.len.into()))
            && !map.nodes.iter().any(|node| self.is_shared(*node, 1))
        {
            return;
        }
        let mut changed = false;
        for node in &map.nodes {
            if self.is_shared(*node, 1) {
                // Two owners of a node cannot both keep it.
                changed |= self.keep(*node, Owner::Node(ino)).is_some();
            }
        }
        let (mut own, mut lost) = (Vec::new(), 0u64);
        let ratio = self.fs.geometry.cluster_ratio();
        let end = self.fs.geometry.block_size.blocks_for(inode.size);
        for run in std::mem::take(&mut map.runs) {
            if !self.is_shared(run.pblk, run.len.into()) {
                runs::push(&mut own, run);
                continue;
            }
            for piece in by_cluster(run, ratio) {
                if !self.is_shared(piece.pblk, piece.len.into()) || self.may_keep(ino, piece) {
                    runs::push(&mut own, piece);
                    continue;
                }
                changed = true;
                // What follows the end of a file is not worth a copy.
                if u64::from(piece.lblk.0) >= end && kind == 0x8000 {
                    continue;
                }
                match copy_run(self.fs, piece) {
                    Some(copies) => copies.into_iter().for_each(|run| runs::push(&mut own, run)),
                    None => lost += u64::from(piece.len),
                }
            }
        }
        map.runs = own;
        if changed && map.put(self.fs, ino, &inode).is_some() && lost > 0 {
            let finding = format!("{lost} blocks of inode {ino} are claimed by another owner, too");
            let loss = Some(format!("inode {ino}: {lost} blocks, for which no space is left"));
            let place = FindingPlace::ino(ino);
            self.plan.also(&rules::map::SHARED, place, finding, "Make holes of them.", loss);
        }
    }

    /// Whether the inode keeps a part of a cluster that several claim: it does if no owner came before.
    fn may_keep(&mut self, ino: Ino, piece: Run) -> bool {
        let ratio = self.fs.geometry.cluster_ratio();
        let cluster = self.fs.cluster(piece.pblk);
        // With bigalloc, a cluster may hold metadata, too.
        let start = u64::from(self.fs.geometry.first_data_block) + cluster * ratio;
        if self.fs.notes.is_metadata(Pblk(start), ratio) {
            self.keep(piece.pblk, Owner::Fixed);
        }
        let own = Owner::Data(ino, u64::from(piece.lblk.0) / ratio);
        *self.owners.entry(cluster).or_insert(own) == own
    }
}

/// The parts of a run in the logical clusters of the file.
fn by_cluster(run: Run, ratio: u64) -> impl Iterator<Item = Run> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < run.len).then(|| {
            let (lblk, pblk) = (run.lblk.0 + at, Pblk(run.pblk.0 + u64::from(at)));
            let len = ((ratio - u64::from(lblk) % ratio) as u32).min(run.len - at);
            at += len;
            Run { lblk: Lblk(lblk), pblk, len, ..run }
        })
    })
}
