//! Maps of files: a damaged one is read as far as it makes sense, and written anew from what was found.
//!
//! ```text
//! maps/read     lenient: an entry that makes no sense is left out or cut, the others stay
//! maps/shared   each file gets its own copy of blocks that several claim
//! ```
//!
//! Owns: the blocks of the map itself. Does **not** own: size and flags of the inode, except for the flag
//! that says which kind of map it has.

mod read;
mod shared;

use std::collections::HashSet;

use extant_base::le::{put_u32, u16_at};
use extant_base::{Ino, Lblk, Pblk};
use extant_check::Finding;
use extant_check::survey::Run;
use extant_ondisk::Features;
use extant_ondisk::extent::{self, Extent};
use extant_ondisk::indirect::{self, DataExtent};
use extant_ondisk::inode::{Inode, flags, inode_seed};

use crate::fs::Fs;
use crate::plan::Plan;
use crate::runs;

pub(crate) use shared::Shared;

/// A map: as far as it could be read, or as it is to be written.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) runs: Vec<Run>,
    /// Blocks of the map on the device.
    pub(crate) nodes: Vec<Pblk>,
    /// Parts that are left out: first logical block and reason.
    pub(crate) lost: Vec<String>,
}

impl Map {
    /// A map of these runs, without blocks of its own.
    pub(crate) fn of(runs: Vec<Run>) -> Self {
        Self { runs, ..Self::default() }
    }

    /// Moves runs that lie at another offset of their cluster than of the file's cluster.
    fn align_clusters(&mut self, fs: &mut Fs<'_>) {
        let ratio = fs.geometry.cluster_ratio();
        let first = u64::from(fs.geometry.first_data_block);
        let mut aligned = Vec::new();
        for run in std::mem::take(&mut self.runs) {
            if run.pblk.0.wrapping_sub(first) % ratio == u64::from(run.lblk.0) % ratio {
                aligned.push(run);
                continue;
            }
            match copy_run(fs, run) {
                Some(copies) => aligned.extend(copies),
                None => self.lost.push(format!("logical blocks from {} on: no space left", run.lblk)),
            }
        }
        self.runs = aligned;
    }

    /// Writes the map of an inode anew. Uses the blocks of the old map that no other owner claims, then free
    /// ones. `None` if there is no space.
    pub(crate) fn put(&self, fs: &mut Fs<'_>, ino: Ino, inode: &Inode) -> Option<()> {
        let bs = fs.geometry.block_size;
        let mut own = self.reusable(fs);
        let goal = self.runs.first().map(|run| run.pblk);
        let mut places = |fs: &mut Fs<'_>, count: u64| -> Option<Vec<Pblk>> {
            (0..count).map(|_| own.pop().or_else(|| fs.space.block(goal))).collect()
        };
        let i_block = if inode.has_flag(flags::EXTENTS) {
            let extents = self.extents();
            let shape = extent::TreeShape::for_extents(extents.len(), bs);
            let nodes = places(fs, shape.blocks() as u64)?;
            let seed = inode_seed(fs.sb.fs_seed(), ino, inode.generation);
            let (root, bytes) = extent::encode_tree(&extents, bs, &nodes, fs.has_csum().then_some(seed));
            for (block, bytes) in nodes.iter().zip(bytes) {
                fs.write_block(*block, &bytes).ok()?;
            }
            root
        } else {
            let lens = self.runs.iter().map(|run| (run.lblk, run.len));
            let nodes = places(fs, indirect::blocks_needed(bs, lens).ok()?)?;
            let data = self.runs.iter();
            let data = data.map(|run| DataExtent { lblk: run.lblk, pblk: run.pblk, len_blocks: run.len });
            let map = indirect::encode(bs, data, nodes.into_iter()).ok()?;
            for (block, bytes) in &map.blocks {
                fs.write_block(*block, bytes).ok()?;
            }
            map.i_block
        };
        fs.edit_inode(ino, |bytes| bytes[0x28..0x28 + 60].copy_from_slice(&i_block))
    }

    /// The blocks of the old map that a new one may have, the first one at the end.
    fn reusable(&self, fs: &Fs<'_>) -> Vec<Pblk> {
        let last = |run: &Run| Pblk(run.pblk.0 + u64::from(run.len) - 1);
        let data: HashSet<u64> = match fs.geometry.cluster_ratio() {
            1 => HashSet::new(),
            _ => self.runs.iter().flat_map(|run| fs.cluster(run.pblk)..=fs.cluster(last(run))).collect(),
        };
        let mut taken = HashSet::new();
        let is_own = |block: &Pblk| {
            !fs.notes.is_claimed_twice(*block, 1)
                && !fs.notes.is_metadata(*block, 1)
                && taken.insert(fs.cluster(*block))
                && !data.contains(&fs.cluster(*block))
        };
        let mut own: Vec<Pblk> = self.nodes.iter().copied().filter(is_own).collect();
        own.reverse();
        own
    }

    /// The runs as entries of an extent tree.
    fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for run in &self.runs {
            let mut at = 0;
            while at < run.len {
                let len = (run.len - at).min(Extent::len_max(run.unwritten));
                let (lblk, start) = (run.lblk.0 + at, run.pblk.0 + u64::from(at));
                let piece = Extent { lblk, len, start, unwritten: run.unwritten };
                match extents.last_mut().and_then(|last| Some((last.merged(&piece)?, last))) {
                    Some((merged, last)) => *last = merged,
                    None => extents.push(piece),
                }
                at += len;
            }
        }
        extents
    }
}

/// Takes the blocks of all damaged maps: the survey does not count them as used, and they stay where they
/// are.
pub(crate) fn occupy_damaged(fs: &mut Fs<'_>, findings: &[Finding]) {
    let mut last = Ino(0);
    for finding in findings.iter().filter(|finding| finding.rule.code.starts_with("EX")) {
        let Some(ino) = finding.place.ino.filter(|ino| *ino != last) else { continue };
        last = ino;
        let Some(inode) = fs.inode(ino) else { continue };
        if fs.is_inline(&inode) || !matches!(inode.mode & 0xF000, 0x8000 | 0x4000 | 0xA000) {
            continue;
        }
        // Also what leads into metadata: the metadata may be what is wrong.
        for run in fs.walk(ino, &inode).runs {
            fs.space.occupy(run.pblk, run.len.into());
        }
        let read = Map::read(fs, ino, &inode);
        for run in read.runs {
            fs.space.occupy(run.pblk, run.len.into());
        }
        for node in read.nodes {
            fs.space.occupy(node, 1);
        }
    }
}

/// Repairs the map of an inode.
pub(crate) fn mend(fs: &mut Fs<'_>, plan: &mut Plan, ino: Ino, findings: &[&Finding]) {
    let Some(mut inode) = fs.inode(ino) else { return };
    let Some(first) = findings.first() else { return };
    if findings.iter().all(|finding| finding.rule.code == "EX015") {
        return;
    }
    if ino == Ino::RESIZE {
        return; // built anew by its own rule
    }
    let has_tree = inode.block.starts_with(&extent::MAGIC.to_le_bytes());
    if !inode.has_flag(flags::EXTENTS)
        && has_tree
        && u16_at(&inode.block, 4) == 4
        && u16_at(&inode.block, 6) <= extent::MAX_DEPTH
        && fs.sb.features.has_incompat(Features::EXTENTS)
    {
        fs.set_flags(ino, flags::EXTENTS, 0);
        plan.fixed(first, "Set the flag extents: i_block holds an extent tree.");
        return;
    }
    let mut read = Map::read(fs, ino, &inode);
    if inode.has_flag(flags::EXTENTS) && !has_tree && read.runs.is_empty() {
        // A block map without its flag is kept if it leads anywhere.
        let other = Inode { flags: inode.flags & !flags::EXTENTS, ..inode.clone() };
        let as_blocks = Map::read(fs, ino, &other);
        if !as_blocks.runs.is_empty() && as_blocks.lost.is_empty() {
            (inode, read) = (other, as_blocks);
            let flags = inode.flags;
            let _ = fs.edit_inode(ino, |bytes| put_u32(bytes, 0x20, flags));
        }
    }
    let is_dir = inode.mode & 0xF000 == 0x4000;
    if is_dir {
        read.runs.iter_mut().for_each(|run| run.unwritten = false);
    }
    if findings.iter().any(|finding| finding.rule.code == "EX013") {
        read.align_clusters(fs);
    }
    if read.put(fs, ino, &inode).is_none() {
        return;
    }
    let loss = (!read.lost.is_empty()).then(|| {
        let shown: Vec<&str> = read.lost.iter().take(3).map(String::as_str).collect();
        let more = if read.lost.len() > 3 { ", ..." } else { "" };
        format!("inode {ino}: {}{more}", shown.join(", "))
    });
    let mut loss = loss;
    for finding in findings {
        plan.fixed_with(finding, "Write the map anew from its sound parts.", loss.take());
    }
}

/// Copies the blocks of a run to free clusters. `None` without space.
fn copy_run(fs: &mut Fs<'_>, run: Run) -> Option<Vec<Run>> {
    let ratio = fs.geometry.cluster_ratio();
    let mut copies: Vec<Run> = Vec::new();
    let mut at = 0u64;
    while at < run.len.into() {
        let lblk = u64::from(run.lblk.0) + at;
        let within = lblk % ratio;
        let len = (ratio - within).min(u64::from(run.len) - at);
        let cluster = fs.space.block(Some(run.pblk))?;
        for i in 0..len {
            let bytes = fs.read_block(Pblk(run.pblk.0 + at + i)).ok()?;
            fs.write_block(Pblk(cluster.0 + within + i), &bytes).ok()?;
        }
        let pblk = Pblk(cluster.0 + within);
        let next = Run { lblk: Lblk(lblk as u32), pblk, len: len as u32, ..run };
        runs::push(&mut copies, next);
        at += len;
    }
    Some(copies)
}

/// Makes an inode that was free a regular file of root with these blocks.
pub(crate) fn make_file(fs: &mut Fs<'_>, ino: Ino, more: u32, runs: Vec<Run>, size: u64) -> Option<()> {
    let with_extents = fs.sb.features.has_incompat(Features::EXTENTS);
    fs.empty_file(ino, more | if with_extents { flags::EXTENTS } else { 0 })?;
    let inode = fs.inode(ino)?;
    Map::of(runs).put(fs, ino, &inode)?;
    fs.put_size(ino, size);
    Some(())
}
