//! The blocks of a file: runs of extent trees and of indirect block maps, in order.
//!
//! Owns: the loop that reads the nodes. Does **not** own: the rules of a node (see [`extant_ondisk::extent`]
//! and [`extant_ondisk::indirect`]), inline data.
//!
//! Invariants
//! 1. A walk reads at most as many nodes as the device has blocks, and reports at most as many blocks as the
//!    file system has. A file uses each block once, so a larger number is damage and ends the walk.
//! 2. A damaged node is recorded and skipped; the walk continues after it.

use std::ops::ControlFlow;
use std::rc::Rc;

use extant_base::{Lblk, Pblk};
use extant_ondisk::extent::{self, Entries, ExtentNode, Walker};
use extant_ondisk::filetype::FileType;
use extant_ondisk::indirect;
use extant_ondisk::inode::{Inode, flags};

use super::reader::{FoundInode, Reader};

/// Maximum number of runs kept for random access. A file with more is cut off, with a note.
const RUNS_MAX: usize = 1 << 21;

/// Blocks that are contiguous in the file and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MappedRun {
    pub(super) lblk: u64,
    pub(super) pblk: u64,
    pub(super) len: u64,
    pub(super) unwritten: bool,
}

/// A node of a file's tree, reported when the walk enters it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeFacts {
    /// Its block; `None` for the root in the inode.
    pub(super) block: Option<Pblk>,
    /// Levels above the node.
    pub(super) level: u16,
    /// Levels below the node: 0 for a leaf (of extents, or of data block numbers).
    pub(super) depth: u16,
    /// Entries in use.
    pub(super) used: usize,
    /// Maximum number of entries.
    pub(super) max: usize,
    /// First logical block that the node maps.
    pub(super) lblk: u64,
    /// Whether its checksum is right; `None` if it has none.
    pub(super) checksum_is_right: Option<bool>,
}

/// An event of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Node(NodeFacts),
    Run(MappedRun),
}

/// How an inode stores its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mapping {
    /// An extent tree.
    Extents,
    /// Direct and indirect block numbers.
    Indirect,
    /// In the inode itself (feature inline_data).
    Inline,
    /// A symbolic link's target in `i_block`.
    FastSymlink,
    /// No data: devices, fifos and sockets.
    Nothing,
}

impl Mapping {
    pub(super) fn of(inode: &Inode) -> Self {
        match FileType::from_mode(inode.mode) {
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => Self::Nothing,
            _ if inode.has_flag(flags::INLINE_DATA) => Self::Inline,
            _ if inode.has_flag(flags::EXTENTS) => Self::Extents,
            FileType::Symlink if inode.size < 60 => Self::FastSymlink,
            _ => Self::Indirect,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Extents => "extents",
            Self::Indirect => "indirect",
            Self::Inline => "inline",
            Self::FastSymlink => "fast symlink",
            Self::Nothing => "nothing",
        }
    }
}

/// Visits all nodes and runs of a file in logical order, until `each` breaks. Files without a map have no
/// events.
pub(super) fn walk(reader: &Reader<'_>, file: &FoundInode, each: &mut dyn FnMut(Event) -> ControlFlow<()>) {
    let mut budget = Budget { reader, file, nodes: 0, blocks: 0 };
    // The walk is over in each case: `each` broke, the budget ran out, or it is complete.
    let _ = match Mapping::of(&file.inode) {
        Mapping::Extents => walk_extents(&mut budget, each),
        Mapping::Indirect => walk_indirect(&mut budget, each),
        _ => ControlFlow::Continue(()),
    };
}

/// All runs of a file, for random access.
pub(super) fn runs(reader: &Reader<'_>, file: &FoundInode) -> Vec<MappedRun> {
    let mut runs = Vec::new();
    walk(reader, file, &mut |event| {
        if let Event::Run(run) = event {
            if runs.len() == RUNS_MAX {
                reader
                    .damage(format_args!("inode {}: only its first {RUNS_MAX} runs are looked at", file.ino));
                return ControlFlow::Break(());
            }
            runs.push(run);
        }
        ControlFlow::Continue(())
    });
    runs
}

/// The physical block of a logical one.
pub(super) fn find(runs: &[MappedRun], lblk: u64) -> Option<Pblk> {
    let run = runs.get(runs.partition_point(|run| run.lblk <= lblk).checked_sub(1)?)?;
    let within = lblk - run.lblk;
    (within < run.len).then(|| Pblk(run.pblk.saturating_add(within)))
}

/// The first bytes of a mapped file's contents, at most `len_max`. Holes and unwritten blocks read as zeros.
pub(super) fn content(reader: &Reader<'_>, file: &FoundInode, len_max: u64) -> Vec<u8> {
    let bs = reader.block_len();
    let len = file.inode.size.min(len_max);
    let blocks = len.div_ceil(bs);
    let mut bytes = vec![0; len as usize];
    walk(reader, file, &mut |event| {
        let Event::Run(run) = event else { return ControlFlow::Continue(()) };
        if run.lblk >= blocks {
            return ControlFlow::Break(());
        }
        for i in 0..run.len.min(blocks - run.lblk) {
            if run.unwritten {
                break;
            }
            let target = ((run.lblk + i) * bs) as usize;
            match reader.block(Pblk(run.pblk.saturating_add(i))) {
                Ok(block) => {
                    let part = block.len().min(bytes.len() - target);
                    bytes[target..target + part].copy_from_slice(&block[..part]);
                }
                Err(fault) => reader.damage(format_args!("inode {}: {fault}", file.ino)),
            }
        }
        ControlFlow::Continue(())
    });
    bytes
}

/// Enforces invariant 1.
struct Budget<'r, 'd> {
    reader: &'r Reader<'d>,
    file: &'r FoundInode,
    nodes: u64,
    blocks: u64,
}

impl Budget<'_, '_> {
    /// Reads a node's block. `None`: it could not be read; the damage is recorded.
    fn node(&mut self, block: Pblk) -> ControlFlow<(), Option<Rc<[u8]>>> {
        let ino = self.file.ino;
        self.nodes += 1;
        if self.nodes > self.reader.blocks_here() {
            self.reader
                .damage(format_args!("inode {ino}: its map has more nodes than the device has blocks"));
            return ControlFlow::Break(());
        }
        if self.reader.is_flooded() {
            return ControlFlow::Break(());
        }
        let read = self.reader.block(block);
        if let Err(fault) = &read {
            self.reader.damage(format_args!("inode {ino}: a node of its map: {fault}"));
        }
        ControlFlow::Continue(read.ok())
    }

    /// Counts a run and checks its address. Records an impossible address; the walk still continues.
    fn run(&mut self, run: &MappedRun) -> ControlFlow<()> {
        let (ino, total) = (self.file.ino, self.reader.geometry().blocks);
        self.blocks = self.blocks.saturating_add(run.len);
        if self.blocks > total {
            self.reader.damage(format_args!("inode {ino}: maps more blocks than the file system has"));
            return ControlFlow::Break(());
        }
        let inside = run.pblk.checked_add(run.len).is_some_and(|end| end <= total);
        if !inside || run.pblk < u64::from(self.reader.geometry().first_data_block) {
            self.reader.damage(format_args!(
                "inode {ino}: logical block {} lies at block {}, outside the file system",
                run.lblk, run.pblk
            ));
        }
        if self.reader.is_flooded() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn node_facts(node: &ExtentNode, level: u16, block: Option<Pblk>) -> NodeFacts {
    let (used, lblk) = match &node.entries {
        Entries::Leaf(extents) => (extents.len(), extents.first().map_or(0, |first| first.lblk)),
        Entries::Inner(indexes) => (indexes.len(), indexes.first().map_or(0, |first| first.lblk)),
    };
    NodeFacts {
        block,
        level,
        depth: node.depth,
        used,
        max: node.max.into(),
        lblk: lblk.into(),
        checksum_is_right: None,
    }
}

fn walk_extents(
    budget: &mut Budget<'_, '_>,
    each: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let (reader, file) = (budget.reader, budget.file);
    let seed = reader.has_csum().then(|| reader.inode_seed(file.ino, &file.inode));
    let mut walker = Walker::new(&file.inode.block, seed);
    let root = ExtentNode::decode(&file.inode.block).ok();
    if let Some(root) = &root {
        each(Event::Node(node_facts(root, 0, None)))?;
    }
    let levels = root.map_or(0, |root| root.depth);
    loop {
        match walker.step() {
            extent::Step::NeedBlock(block) => {
                let bytes = budget.node(block)?;
                if let Some(bytes) = &bytes
                    && let Ok(node) = ExtentNode::decode(bytes)
                {
                    let mut facts = node_facts(&node, levels.saturating_sub(node.depth), Some(block));
                    facts.checksum_is_right = seed.map(|seed| extent::verify(bytes, seed));
                    each(Event::Node(facts))?;
                }
                walker.supply(bytes.as_deref());
            }
            extent::Step::Extent(extent) => {
                let run = MappedRun {
                    lblk: extent.lblk.into(),
                    pblk: extent.start,
                    len: extent.len.into(),
                    unwritten: extent.unwritten,
                };
                budget.run(&run)?;
                each(Event::Run(run))?;
            }
            extent::Step::Damaged { block, fault } => {
                let place = block.map_or("in the inode".to_owned(), |block| format!("in block {block}"));
                reader.damage(format_args!("inode {}: extent node {place}: {fault}", file.ino));
            }
            extent::Step::Done => return ControlFlow::Continue(()),
        }
    }
}

/// An indirect block and its bytes, if it could be read.
type Visited = (Pblk, Option<Rc<[u8]>>);

fn walk_indirect(
    budget: &mut Budget<'_, '_>,
    each: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let block_size = budget.reader.geometry().block_size;
    let end = indirect::max_blocks(block_size);
    // The blocks on the path to the last result, by the number of levels below them: the next lookup usually
    // needs the same.
    let mut path: [Option<Visited>; 3] = [None, None, None];
    let mut pending: Option<MappedRun> = None;
    let mut at = 0;
    while at < end {
        let mut step = indirect::lookup(&budget.file.inode.block, block_size, Lblk(at as u32)); // end is below 2^32
        let mut levels = 0;
        let len = loop {
            match step {
                indirect::Step::Hole { len_blocks } => break len_blocks,
                indirect::Step::Mapped { pblk, len_blocks } => {
                    let run = MappedRun { lblk: at, pblk: pblk.0, len: len_blocks.into(), unwritten: false };
                    pending = match pending.take() {
                        Some(mut before) if follows(&before, &run) => {
                            before.len += run.len;
                            Some(before)
                        }
                        before => {
                            emit_run(budget, each, before)?;
                            Some(run)
                        }
                    };
                    break len_blocks;
                }
                indirect::Step::NeedBlock { block, then } => {
                    let depth = then.level().min(2) as usize;
                    if path[depth].as_ref().is_none_or(|(known, _)| *known != block) {
                        emit_run(budget, each, pending.take())?;
                        let bytes = budget.node(block)?;
                        if let Some(bytes) = &bytes {
                            each(Event::Node(NodeFacts {
                                block: Some(block),
                                level: levels + 1,
                                depth: depth as u16,
                                used: indirect::entries(bytes).count(),
                                max: bytes.len() / 4,
                                lblk: at,
                                checksum_is_right: None,
                            }))?;
                        }
                        path[depth] = Some((block, bytes));
                    }
                    levels += 1;
                    let known = path[depth].as_ref().and_then(|(_, bytes)| bytes.clone());
                    step = match known.map(|bytes| then.resume(&bytes)) {
                        Some(Ok(next)) => next,
                        // Everything below an unreadable block is unknown; continue after it.
                        Some(Err(_)) | None => break below(block_size.bytes(), at, depth),
                    };
                }
            }
        };
        at += u64::from(len.max(1));
    }
    emit_run(budget, each, pending)
}

/// Number of blocks from logical block `at` to the end of the range of the indirect block above it that has
/// `depth` levels below it.
fn below(block_bytes: u64, at: u64, depth: usize) -> u32 {
    let fan_out = block_bytes / 4;
    let mut index = at.saturating_sub(12);
    for levels in 1..3 {
        let tree = fan_out.pow(levels);
        if index < tree {
            break;
        }
        index -= tree;
    }
    let reach = fan_out.pow(depth as u32 + 1); // at most 2^42
    u32::try_from(reach - index % reach).unwrap_or(u32::MAX)
}

fn follows(before: &MappedRun, run: &MappedRun) -> bool {
    before.lblk + before.len == run.lblk && before.pblk + before.len == run.pblk
}

fn emit_run(
    budget: &mut Budget<'_, '_>,
    each: &mut dyn FnMut(Event) -> ControlFlow<()>,
    run: Option<MappedRun>,
) -> ControlFlow<()> {
    let Some(run) = run else { return ControlFlow::Continue(()) };
    budget.run(&run)?;
    each(Event::Run(run))
}
