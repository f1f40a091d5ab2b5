//! Maps of files: reading damaged ones as far as they make sense, writing them anew, and giving each file its
//! own copy of blocks that several claim.
//!
//! A damaged extent tree is read leniently: an entry that makes no sense is left out or cut, the others stay.
//! The map is then written anew from the runs that were found.

use std::collections::{HashMap, HashSet};

use extant_base::le::{put_u32, u16_at, u32_at};
use extant_base::{Ino, Lblk, Pblk};
use extant_check::Finding;
use extant_check::survey::Run;
use extant_device::DeviceFault;
use extant_ondisk::Features;
use extant_ondisk::extent::{self, Extent};
use extant_ondisk::indirect::{self, DataExtent};
use extant_ondisk::inode::{Inode, flags, inode_seed};

use crate::fs::Fs;

const HEADER: usize = 12;
const ENTRY: usize = 12;
/// Nodes that a lenient walk reads at most.
const NODES_MAX: usize = 1 << 20;

/// A map as far as it could be read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) runs: Vec<Run>,
    pub(crate) nodes: Vec<Pblk>,
    /// Parts that are left out: first logical block and reason.
    pub(crate) lost: Vec<String>,
}

impl Fs<'_, '_> {
    /// Takes the blocks of all damaged maps: the survey does not count them as used, and they stay where they
    /// are.
    pub(crate) fn occupy_damaged(&mut self, findings: &[Finding]) {
        let mut last = Ino(0);
        for finding in findings.iter().filter(|finding| finding.rule.code.starts_with("EX")) {
            let Some(ino) = finding.place.ino.filter(|ino| *ino != last) else { continue };
            last = ino;
            let Some(inode) = self.inode(ino) else { continue };
            if self.is_inline(&inode) || !matches!(inode.mode & 0xF000, 0x8000 | 0x4000 | 0xA000) {
                continue;
            }
            // Also what leads into metadata: the metadata may be what is wrong.
            for run in self.walk(ino, &inode).runs {
                self.space.occupy(self.notes, run.pblk, run.len.into());
            }
            let read = self.read_map(ino, &inode);
            for run in read.runs {
                self.space.occupy(self.notes, run.pblk, run.len.into());
            }
            for node in read.nodes {
                self.space.occupy(self.notes, node, 1);
            }
        }
    }

    /// Repairs the map of an inode.
    pub(crate) fn mend_map(&mut self, ino: Ino, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let Some(mut inode) = self.inode(ino) else { return Ok(()) };
        let Some(first) = findings.first() else { return Ok(()) };
        if findings.iter().all(|finding| finding.rule.code == "EX015") {
            return Ok(());
        }
        if ino == Ino::RESIZE {
            return Ok(()); // built anew by its own rule
        }
        let has_tree = inode.block.starts_with(&extent::MAGIC.to_le_bytes());
        if !inode.has_flag(flags::EXTENTS)
            && has_tree
            && u16_at(&inode.block, 4) == 4
            && u16_at(&inode.block, 6) <= extent::MAX_DEPTH
            && self.sb.features.has_incompat(Features::EXTENTS)
        {
            let _ = self.edit_inode(ino, |bytes| {
                let set = u32_at(bytes, 0x20) | flags::EXTENTS;
                put_u32(bytes, 0x20, set);
            });
            self.fixed(first, "Set the flag extents: i_block holds an extent tree.");
            return Ok(());
        }
        let mut read = self.read_map(ino, &inode);
        if inode.has_flag(flags::EXTENTS) && !has_tree && read.runs.is_empty() {
            // A block map without its flag is kept if it leads anywhere.
            let other = Inode { flags: inode.flags & !flags::EXTENTS, ..inode.clone() };
            let as_blocks = self.read_map(ino, &other);
            if !as_blocks.runs.is_empty() && as_blocks.lost.is_empty() {
                (inode, read) = (other, as_blocks);
                let flags = inode.flags;
                let _ = self.edit_inode(ino, |bytes| put_u32(bytes, 0x20, flags));
            }
        }
        let is_dir = inode.mode & 0xF000 == 0x4000;
        if is_dir {
            read.runs.iter_mut().for_each(|run| run.unwritten = false);
        }
        if findings.iter().any(|finding| finding.rule.code == "EX013") {
            self.align_clusters(&mut read);
        }
        let Some(()) = self.put_map(ino, &inode, &read.runs, &read.nodes) else { return Ok(()) };
        let loss = (!read.lost.is_empty()).then(|| {
            let shown: Vec<&str> = read.lost.iter().take(3).map(String::as_str).collect();
            let more = if read.lost.len() > 3 { ", ..." } else { "" };
            format!("inode {ino}: {}{more}", shown.join(", "))
        });
        let mut loss = loss;
        for finding in findings {
            self.fixed_with(finding, "Write the map anew from its sound parts.", loss.take());
        }
        Ok(())
    }

    /// Reads a map as far as it makes sense.
    pub(crate) fn read_map(&self, ino: Ino, inode: &Inode) -> Read {
        if !inode.has_flag(flags::EXTENTS) {
            let walked = self.walk(ino, inode);
            let mut read = Read { nodes: walked.nodes, ..Read::default() };
            for run in walked.runs {
                self.add_run(&mut read, run, inode);
            }
            if !self.is_whole(ino, inode) {
                read.lost.push("blocks behind addresses that make no sense".into());
            }
            return read;
        }
        let declared = u16_at(&inode.block, 6);
        let mut best: Option<(u64, Read)> = None;
        for depth in [declared, 0, 1, 2, 3] {
            if depth > extent::MAX_DEPTH {
                continue;
            }
            let mut tree =
                Lenient { fs: self, inode, read: Read::default(), entered: HashSet::new(), next: 0 };
            tree.node(&inode.block, depth, 1 << 32);
            let read = tree.read;
            let blocks: u64 = read.runs.iter().map(|run| u64::from(run.len)).sum();
            let is_better = best.as_ref().is_none_or(|(most, known)| {
                blocks > *most || blocks == *most && read.lost.len() < known.lost.len()
            });
            if is_better {
                let is_perfect = read.lost.is_empty() && depth == declared;
                best = Some((blocks, read));
                if is_perfect {
                    break;
                }
            }
        }
        best.map(|(_, read)| read).unwrap_or_default()
    }

    /// Does a block map lead to sound addresses only?
    fn is_whole(&self, ino: Ino, inode: &Inode) -> bool {
        let walked = self.walk(ino, inode);
        let count =
            |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().filter(|word| **word != [0; 4]).count() as u64;
        let mut pointers = count(&inode.block);
        for node in &walked.nodes {
            pointers += self.read_block(*node).map_or(0, |bytes| count(&bytes));
        }
        let found: u64 = walked.runs.iter().map(|run| u64::from(run.len)).sum();
        pointers == found + walked.nodes.len() as u64
    }

    /// Adds a run without what lies outside or in metadata.
    fn add_run(&self, read: &mut Read, run: Run, inode: &Inode) {
        let is_sound = |len: u32| {
            self.notes.is_inside(run.pblk, len.into()) && !self.notes.is_metadata(run.pblk, len.into())
        };
        let mut len = run.len;
        if !is_sound(len) {
            let end = self.geometry.block_size.blocks_for(inode.size);
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
                read.lost.push(format!("logical blocks {from} to {to}"));
            }
        }
        if len > 0 {
            read.runs.push(Run { len, ..run });
        }
    }

    /// Moves runs that lie at another offset of their cluster than of the file's cluster.
    fn align_clusters(&mut self, read: &mut Read) {
        let ratio = self.geometry.cluster_ratio();
        let first = u64::from(self.geometry.first_data_block);
        let mut aligned = Vec::new();
        for run in std::mem::take(&mut read.runs) {
            if run.pblk.0.wrapping_sub(first) % ratio == u64::from(run.lblk.0) % ratio {
                aligned.push(run);
                continue;
            }
            match self.copy_run(run) {
                Some(copies) => aligned.extend(copies),
                None => read.lost.push(format!("logical blocks from {} on: no space left", run.lblk)),
            }
        }
        read.runs = aligned;
    }

    /// Copies the blocks of a run to free clusters. `None` without space.
    fn copy_run(&mut self, run: Run) -> Option<Vec<Run>> {
        let ratio = self.geometry.cluster_ratio();
        let mut copies: Vec<Run> = Vec::new();
        let mut at = 0u64;
        while at < run.len.into() {
            let lblk = u64::from(run.lblk.0) + at;
            let within = lblk % ratio;
            let len = (ratio - within).min(u64::from(run.len) - at);
            let cluster = self.new_block(Some(run.pblk))?;
            for i in 0..len {
                let bytes = self.read_block(Pblk(run.pblk.0 + at + i)).ok()?;
                self.write_block(Pblk(cluster.0 + within + i), &bytes).ok()?;
            }
            let pblk = Pblk(cluster.0 + within);
            let next = Run { lblk: Lblk(lblk as u32), pblk, len: len as u32, ..run };
            match copies.last_mut() {
                Some(last) if last.pblk.0 + u64::from(last.len) == pblk.0 => last.len += next.len,
                _ => copies.push(next),
            }
            at += len;
        }
        Some(copies)
    }

    /// Writes the map of an inode anew. Uses the blocks of the old map that no other owner claims, then free
    /// ones. `None` if there is no space.
    pub(crate) fn put_map(&mut self, ino: Ino, inode: &Inode, runs: &[Run], old: &[Pblk]) -> Option<()> {
        let bs = self.geometry.block_size;
        let mut taken = HashSet::new();
        let ratio = self.geometry.cluster_ratio();
        let first = u64::from(self.geometry.first_data_block);
        let cluster = |block: Pblk| (block.0 - first.min(block.0)) / ratio;
        let data: HashSet<u64> = match ratio {
            1 => HashSet::new(),
            _ => runs
                .iter()
                .flat_map(|run| cluster(run.pblk)..=cluster(Pblk(run.pblk.0 + u64::from(run.len) - 1)))
                .collect(),
        };
        let mut own: Vec<Pblk> = old
            .iter()
            .copied()
            .filter(|block| {
                !self.notes.is_claimed_twice(*block, 1)
                    && !self.notes.is_metadata(*block, 1)
                    && taken.insert(cluster(*block))
                    && !data.contains(&cluster(*block))
            })
            .collect();
        own.reverse();
        let goal = runs.first().map(|run| run.pblk);
        let mut places = |fs: &mut Self, count: u64| -> Option<Vec<Pblk>> {
            (0..count).map(|_| own.pop().or_else(|| fs.new_block(goal))).collect()
        };
        let i_block = if inode.has_flag(flags::EXTENTS) {
            let mut extents: Vec<Extent> = Vec::new();
            for run in runs {
                let mut at = 0;
                let most = Extent::len_max(run.unwritten);
                while at < run.len {
                    let len = (run.len - at).min(most);
                    let piece = Extent {
                        lblk: run.lblk.0 + at,
                        len,
                        start: run.pblk.0 + u64::from(at),
                        unwritten: run.unwritten,
                    };
                    match extents.last().and_then(|last| last.merged(&piece)) {
                        Some(merged) => *extents.last_mut()? = merged,
                        None => extents.push(piece),
                    }
                    at += len;
                }
            }
            let shape = extent::TreeShape::for_extents(extents.len(), bs);
            let nodes = places(self, shape.blocks() as u64)?;
            let seed = inode_seed(self.sb.fs_seed(), ino, inode.generation);
            let (root, bytes) = extent::encode_tree(&extents, bs, &nodes, self.has_csum().then_some(seed));
            for (block, bytes) in nodes.iter().zip(bytes) {
                self.write_block(*block, &bytes).ok()?;
            }
            root
        } else {
            let needed = indirect::blocks_needed(bs, runs.iter().map(|run| (run.lblk, run.len))).ok()?;
            let nodes = places(self, needed)?;
            let data =
                runs.iter().map(|run| DataExtent { lblk: run.lblk, pblk: run.pblk, len_blocks: run.len });
            let map = indirect::encode(bs, data, nodes.into_iter()).ok()?;
            for (block, bytes) in &map.blocks {
                self.write_block(*block, bytes).ok()?;
            }
            map.i_block
        };
        self.edit_inode(ino, |bytes| bytes[0x28..0x28 + 60].copy_from_slice(&i_block))
    }

    /// Gives each owner its own copy of the clusters that several claim. The first owner keeps them: the file
    /// system's own files come first, then the lowest inode number.
    pub(crate) fn mend_shared(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut owned: HashMap<u64, (u32, u64)> = HashMap::new();
        let mut owners = Vec::new();
        for group in (0..self.geometry.groups).map(extant_base::Group) {
            for (note, index) in self.notes.group(group).zip(1..) {
                let ino = Ino(group.0 * self.geometry.inodes_per_group + index);
                if note.used {
                    owners.push((!note.hidden, ino));
                }
            }
        }
        owners.sort_unstable();
        let ratio = self.geometry.cluster_ratio();
        let first = u64::from(self.geometry.first_data_block);
        let cluster = |block: Pblk| (block.0 - first.min(block.0)) / ratio;
        // Attribute blocks have their address in their checksum.
        for (_, ino) in &owners {
            let Some(inode) = self.inode(*ino) else { continue };
            if inode.file_acl != 0 && self.notes.is_claimed_twice(Pblk(inode.file_acl), 1) {
                owned.insert(cluster(Pblk(inode.file_acl)), (0, 0));
            }
        }
        let mmp = Pblk(self.sb.mmp_block);
        if self.sb.features.has_incompat(Features::MMP) && self.notes.is_inside(mmp, 1) {
            owned.insert(cluster(mmp), (0, 0));
        }
        let resize = self.inode(Ino::RESIZE).map_or(0, |inode| u32_at(&inode.block, 13 * 4));
        if resize != 0 && self.notes.is_claimed_twice(Pblk(resize.into()), 1) {
            owned.insert(cluster(Pblk(resize.into())), (0, 0));
        }
        for (_, ino) in owners {
            self.own_copy(ino, &mut owned)?;
        }
        for finding in findings {
            self.fixed(finding, "Give each owner a copy of its own.");
        }
        Ok(())
    }

    fn own_copy(&mut self, ino: Ino, owned: &mut HashMap<u64, (u32, u64)>) -> Result<(), DeviceFault> {
        let Some(inode) = self.inode(ino) else { return Ok(()) };
        let kind = inode.mode & 0xF000;
        let mapped = matches!(kind, 0x8000 | 0x4000) || (kind == 0xA000 && inode.size >= 60);
        if !mapped || self.is_inline(&inode) || ino == Ino::RESIZE {
            return Ok(());
        }
        let read = self.read_map(ino, &inode);
        let is_shared = |fs: &Self, block: Pblk, len: u64| fs.notes.is_claimed_twice(block, len);
        if !read.runs.iter().any(|run| is_shared(self, run.pblk, run.len.into()))
            && !read.nodes.iter().any(|node| is_shared(self, *node, 1))
        {
            return Ok(());
        }
        let ratio = self.geometry.cluster_ratio();
        let first = u64::from(self.geometry.first_data_block);
        let cluster = |block: Pblk| (block.0 - first.min(block.0)) / ratio;
        let end = self.geometry.block_size.blocks_for(inode.size);
        let mut changed = false;
        for node in &read.nodes {
            if is_shared(self, *node, 1) {
                // Two owners of a node cannot both keep it.
                changed |= owned.insert(cluster(*node), (ino.0, u64::MAX)).is_some();
            }
        }
        let mut runs: Vec<Run> = Vec::new();
        let mut push = |run: Run| match runs.last_mut() {
            Some(last)
                if last.lblk.0 + last.len == run.lblk.0
                    && last.pblk.0 + u64::from(last.len) == run.pblk.0
                    && last.unwritten == run.unwritten =>
            {
                last.len += run.len;
            }
            _ => runs.push(run),
        };
        let mut lost = 0u64;
        for run in &read.runs {
            if !is_shared(self, run.pblk, run.len.into()) {
                push(*run);
                continue;
            }
            let mut at = 0u32;
            while at < run.len {
                let (lblk, pblk) = (run.lblk.0 + at, Pblk(run.pblk.0 + u64::from(at)));
                let within = u64::from(lblk) % ratio;
                let len = ((ratio - within) as u32).min(run.len - at);
                let piece = Run { lblk: Lblk(lblk), pblk, len, unwritten: run.unwritten };
                at += len;
                if !is_shared(self, pblk, len.into()) {
                    push(piece);
                    continue;
                }
                let logical = u64::from(lblk) / ratio;
                // With bigalloc, a cluster may hold metadata, too.
                let start = Pblk(first + cluster(pblk) * ratio);
                if self.notes.is_metadata(start, ratio) {
                    owned.insert(cluster(pblk), (0, 0));
                }
                match owned.get(&cluster(pblk)) {
                    None => {
                        owned.insert(cluster(pblk), (ino.0, logical));
                        push(piece);
                    }
                    Some(known) if *known == (ino.0, logical) => push(piece),
                    Some(_) => {
                        changed = true;
                        // What follows the end of a file is not worth a copy.
                        if u64::from(lblk) >= end && kind == 0x8000 {
                            continue;
                        }
                        match self.copy_run(piece) {
                            Some(copies) => copies.into_iter().for_each(&mut push),
                            None => lost += u64::from(len),
                        }
                    }
                }
            }
        }
        if changed && self.put_map(ino, &inode, &runs, &read.nodes).is_some() && lost > 0 {
            let finding = format!("{lost} blocks of inode {ino} are claimed by another owner, too");
            let loss = Some(format!("inode {ino}: {lost} blocks, for which no space is left"));
            let place = extant_check::FindingPlace::ino(ino);
            self.also(&extant_check::rules::map::SHARED, place, finding, "Make holes of them.", loss);
        }
        Ok(())
    }
}

/// A lenient walk over an extent tree.
struct Lenient<'w, 's, 'd> {
    fs: &'w Fs<'s, 'd>,
    inode: &'w Inode,
    read: Read,
    entered: HashSet<u64>,
    next: u64,
}

impl Lenient<'_, '_, '_> {
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
            self.read.lost.push(format!("what a node at logical block {} maps", self.next));
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
            self.read.lost.push(format!("the extent at logical block {lblk}"));
            return;
        }
        let fits = u64::from(len).min(end - lblk) as u32;
        let run = Run { lblk: Lblk(lblk as u32), pblk, len: fits, unwritten };
        self.next = lblk + u64::from(fits);
        self.fs.add_run(&mut self.read, run, self.inode);
    }

    fn index(&mut self, slot: &[u8], depth: u16, end: u64) {
        let child = Pblk(u64::from(u32_at(slot, 4)) | u64::from(u16_at(slot, 8)) << 32);
        let key = u32_at(slot, 0);
        let fs = self.fs;
        let sound = fs.notes.is_inside(child, 1) && !fs.notes.is_metadata(child, 1);
        if !sound || !self.entered.insert(child.0) || self.entered.len() > NODES_MAX {
            self.read.lost.push(format!("what an index entry at logical block {key} leads to"));
            return;
        }
        let Ok(bytes) = fs.read_block(child) else {
            self.read.lost.push(format!("what block {child} maps, which cannot be read"));
            return;
        };
        let is_node = u16_at(&bytes, 0) == extent::MAGIC;
        if !is_node && u16_at(&bytes, 6) != depth - 1 {
            self.read.lost.push(format!("what block {child} maps, which is no node"));
            return;
        }
        self.read.nodes.push(child);
        self.node(&bytes, depth - 1, end);
    }
}
