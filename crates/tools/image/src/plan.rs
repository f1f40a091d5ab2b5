//! The plan of a whole image: the number of every inode and the blocks of every file, before a byte is
//! written.
//!
//! Owns the order on the device, and all numbers that follow from it. Does **not** own reading sources or
//! writing (see [`crate::write`]). It never reads the content of a file; it knows only the size and the
//! holes.
//!
//! Order on the device, after the group metadata that [`crate::layout`] placed:
//!
//! ```text
//! root, lost+found | resize inode | journal | quota | orphan file | directories | attributes | files in inode order
//! ```
//!
//! Invariants
//! 1. The plan depends only on the tree and the options: not on time, threads, or the order of reading.
//! 2. Allocation only moves forward, so files are contiguous except where group metadata is in between.
//! 3. Every block of the plan is taken in `layout.space` exactly once.

mod inodes;
mod special;

use std::collections::HashMap;

use extant_base::{Group, Ino, Pblk};
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::extent::Extent;
use extant_ondisk::filetype::FileType;
use extant_ondisk::htree::DxFormat;
use extant_ondisk::{Features, Geometry, Superblock};

use crate::dirpack::{DirPacker, DirPlan, hash_of};
use crate::layout::{Habits, Layout, NoRoom};
use crate::mapping::{FileMap, Mapper};
use crate::options::FormatOptions;
use crate::sizing::Sized;
use crate::space::BlockRun;
use crate::tree::{Content, NONE, ROOT, Sealed, Tree};
use crate::xattrs::{XattrPlan, XattrSpace};

pub use special::Special;

/// The block number of a node without blocks.
const NO_BLOCK: u64 = u64::MAX;
/// Tag of [`Plan::start_of`] values that are indexes into [`Plan::complex`].
const COMPLEX: u64 = 1 << 63;
/// Maximum number of hard links of an inode.
const LINKS_MAX: u32 = 65_000;

/// The style of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Every block is where mke2fs would put it: the journal in the middle, room after lonely bitmaps.
    LikeMke2fs,
    /// Only the journal is between the metadata and the files, so that an image can end directly after its
    /// last file.
    Packed,
}

/// The input of a plan.
#[derive(Debug)]
pub struct Input<'t> {
    /// The tree, with links counted.
    pub tree: &'t Tree,
    /// The order of its nodes and names.
    pub sealed: &'t Sealed,
    /// The node index of the root's lost+found, which gets inode 11.
    pub lost_found: u32,
    /// Options of the file system.
    pub options: &'t FormatOptions,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Seed of directory hashes; `sealed` is ordered by them.
    pub hash_seed: [u8; 16],
    /// Time of creation, seconds since 1970.
    pub time: u64,
    /// Style of the layout.
    pub style: Style,
    /// Whether unwritten blocks of the device read as zeros.
    pub fresh_device: bool,
}

/// Why planning failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanFault {
    /// The device has too few blocks or inodes for the tree.
    #[error("the tree does not fit")]
    Full,
    /// The metadata alone does not fit on the device.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// An entry of the tree cannot be stored in this file system.
    #[error("{path}: {why}")]
    Unfit {
        /// Its path.
        path: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// An option is invalid.
    #[error("{0}")]
    Choice(String),
}

/// The plan.
#[derive(Debug)]
pub struct Plan<'t> {
    /// The tree.
    pub tree: &'t Tree,
    /// The order of its nodes and names.
    pub sealed: &'t Sealed,
    /// The complete superblock.
    pub superblock: Superblock,
    /// Addresses of group metadata, and all taken blocks.
    pub layout: Layout,
    /// Inode number of each node; 0 for an unreachable node.
    pub ino_of: Vec<u32>,
    /// Nodes by inode number, beginning with [`Plan::first_tree_ino`].
    pub by_ino: Vec<u32>,
    /// The inode number of `by_ino[0]`.
    pub first_tree_ino: u32,
    start_of: Vec<u64>,
    complex: Vec<FileMap>,
    /// Plans of directories, by directory index.
    pub dirs: Vec<DirPlan>,
    /// Plan of attributes.
    pub xattrs: XattrPlan,
    /// The properties that the plan of attributes depends on.
    pub xattr_space: XattrSpace,
    xattr_block_of: HashMap<u32, u64>,
    /// Inodes that are not in the tree.
    pub specials: Vec<Special>,
    /// Blocks with fixed content: descriptors of special files, attribute blocks, tree nodes.
    pub blocks: Vec<(Pblk, Vec<u8>)>,
    /// Runs that must read as zeros (the journal after its first block).
    pub zero_runs: Vec<BlockRun>,
    /// Encodes the maps of files.
    pub mapper: Mapper,
    /// Packs directories.
    pub packer: DirPacker,
    /// Whether the device reads as zeros where nothing was written.
    pub fresh_device: bool,
    /// Whether the kernel zeroes unused inode tables later.
    pub lazy_tables: bool,
    /// Node index of lost+found.
    pub lost_found: u32,
    /// Number of times that inodes cannot store; the nearest time is stored instead.
    pub clamped_times: u64,
    /// Number of clusters with superblocks, descriptors, bitmaps and tables.
    metadata_clusters: u64,
    cursor: Cursor,
}

/// Allocates forward: block numbers are ascending, and blocks that were passed are not considered again.
#[derive(Debug, Default)]
struct Cursor {
    at: u64,
    gap: Gap,
}

#[derive(Debug, Default)]
struct Gap {
    start: u64,
    end: u64,
}

/// The requirements of a tree, computed before its size: blocks of directories, the plan of attributes.
#[derive(Debug, Clone)]
pub struct Needs {
    /// Plans of directories, by directory index.
    pub dirs: Vec<DirPlan>,
    /// Plan of attributes.
    pub xattrs: XattrPlan,
    /// The properties that it depends on.
    pub xattr_space: XattrSpace,
    /// Number of inodes needed, including reserved ones.
    pub inodes: u64,
    /// Minimum number of data blocks: directories, files, symlinks, attributes.
    pub blocks: u64,
}

/// The directory packer of a file system.
pub(crate) fn packer_of(sb: &Superblock, geometry: &Geometry) -> Result<DirPacker, PlanFault> {
    let hash = hash_of(sb).map_err(|broken| PlanFault::Choice(broken.to_string()))?;
    let indexed = sb.features.has_compat(Features::DIR_INDEX);
    Ok(DirPacker {
        format: DirFormat::new(geometry.block_size, &sb.features, geometry.inodes()),
        index: indexed.then(|| DxFormat::new(geometry.block_size, &sb.features)),
        hash,
        fs_seed: sb.fs_seed(),
    })
}

/// Minimum number of blocks of lost+found, as in mke2fs: 16 KiB, but at least two and at most twelve blocks.
/// With inline_data, mke2fs counts its first 60 bytes as a block.
fn lost_found_blocks(block_size: u64, features: &Features) -> u32 {
    (16_384 / block_size).clamp(2, 12) as u32 - u32::from(features.has_incompat(Features::INLINE_DATA))
}

impl Needs {
    /// Computes the requirements of a tree in a file system like `sized`, whose size does not matter.
    ///
    /// # Errors
    /// An entry of the tree cannot be stored at all.
    pub fn new(input: &Input<'_>, sized: &Sized) -> Result<Self, PlanFault> {
        let (tree, sealed) = (input.tree, input.sealed);
        let mut sb = sized.superblock.clone();
        identify(&mut sb, input);
        let geometry = &sized.geometry;
        let bs = geometry.block_size;
        let packer = packer_of(&sb, geometry)?;
        let mut dirs = vec![DirPlan::default(); tree.dirs.len()];
        let mut blocks = 0;
        let unit = |blocks: u64| blocks.next_multiple_of(geometry.cluster_ratio());
        for &node in &sealed.directories {
            let dir = tree.nodes[node as usize].content;
            let least =
                if node == input.lost_found { lost_found_blocks(bs.bytes(), &sb.features) } else { 1 };
            let names = sealed.children_of(dir).iter().map(|&r| tree.name(&tree.records[r as usize]));
            let plan = packer.plan(names, least).map_err(|e| unfit(tree, node, e.to_string()))?;
            dirs[dir as usize] = plan;
            blocks += unit(plan.blocks.into());
        }
        let mut users = vec![0; tree.xattr_sets.len()];
        for node in reachable(sealed) {
            users[tree.nodes[node as usize].xattrs as usize] += 1;
        }
        let xattr_space = XattrSpace::new(&sb.features, geometry.inode_size, bs, sb.fs_seed());
        let xattrs = XattrPlan::new(&tree.xattr_sets, &users, &xattr_space).map_err(|(set, fault)| {
            let node = reachable(sealed).find(|&n| tree.nodes[n as usize].xattrs == set).unwrap_or(ROOT);
            unfit(tree, node, fault.to_string())
        })?;
        blocks += unit(1) * xattrs.copies.iter().map(|&c| u64::from(c)).sum::<u64>();
        blocks += xattrs.large_values.iter().map(|v| unit(bs.blocks_for(v.bytes.len() as u64))).sum::<u64>();
        for node in sealed.order.iter().copied() {
            blocks += unit(data_blocks(tree, node, bs.bytes()));
        }
        // Inodes 1 to 10, orphan file, project quota, large values, and the tree except for the root (inode
        // 2).
        let inodes = 10 + 2 + xattrs.large_values.len() as u64 + sealed.order.len() as u64;
        Ok(Self { dirs, xattrs, xattr_space, inodes, blocks })
    }
}

/// All reachable nodes, the root first.
fn reachable(sealed: &Sealed) -> impl Iterator<Item = u32> + '_ {
    std::iter::once(ROOT).chain(sealed.order.iter().copied())
}

fn unfit(tree: &Tree, node: u32, why: impl Into<String>) -> PlanFault {
    let path = tree.path(node);
    let path = format!("/{}", crate::source::fault::ShownPath(&path));
    PlanFault::Unfit { path, why: why.into() }
}

/// Data blocks of a file or symlink, excluding holes; 0 for other types.
fn data_blocks(tree: &Tree, node_index: u32, bs: u64) -> u64 {
    let node = &tree.nodes[node_index as usize];
    match node.file_type() {
        FileType::Symlink if node.size >= 60 => 1,
        FileType::Regular => match logical_runs(tree, node_index, bs, 1) {
            LogicalRuns::Dense(blocks) => blocks,
            LogicalRuns::Sparse(runs) => runs.iter().map(|&(_, len)| len).sum(),
        },
        _ => 0,
    }
}

/// The data of a file, in blocks.
pub(crate) enum LogicalRuns {
    /// This number of blocks, without holes.
    Dense(u64),
    /// These runs (first block, length).
    Sparse(Vec<(u64, u64)>),
}

/// The logical blocks of a regular file that contain data, rounded to units of `ratio` blocks, but not past
/// the end of the file.
pub(crate) fn logical_runs(tree: &Tree, node_index: u32, bs: u64, ratio: u64) -> LogicalRuns {
    let node = &tree.nodes[node_index as usize];
    let byte_runs: Vec<(u64, u64)> = match tree.content(node) {
        Content::Archive(payload) => match &payload.runs {
            None => return LogicalRuns::Dense(node.size.div_ceil(bs)),
            Some(runs) => runs.iter().map(|run| (run.file_offset, run.len)).collect(),
        },
        Content::Source(_) if node.sparse == NONE => return LogicalRuns::Dense(node.size.div_ceil(bs)),
        Content::Source(_) => tree.sparse[node.sparse as usize].to_vec(),
    };
    let unit = bs * ratio;
    let end_of_file = node.size.div_ceil(bs);
    let mut runs: Vec<(u64, u64)> = Vec::with_capacity(byte_runs.len());
    for (offset, len) in byte_runs {
        let first = offset / unit * ratio;
        let end = ((offset + len).div_ceil(unit) * ratio).min(end_of_file);
        match runs.last_mut() {
            Some(last) if last.0 + last.1 >= first => last.1 = last.1.max(end.saturating_sub(last.0)),
            _ if end > first => runs.push((first, end - first)),
            _ => {}
        }
    }
    LogicalRuns::Sparse(runs)
}

fn identify(sb: &mut Superblock, input: &Input<'_>) {
    sb.uuid = input.uuid;
    sb.hash_seed = input.hash_seed;
    if sb.features.has_incompat(Features::CSUM_SEED) {
        sb.checksum_seed = extant_base::checksum::crc32c(!0, &sb.uuid);
    }
    sb.mkfs_time = input.time;
    // The time of an image is that of its newest file, which may be ahead of a clock. e2fsck reports a last
    // write in the future (on boards without a clock, on every boot). 0 means "not written since it was
    // made".
    sb.wtime = if input.style == Style::Packed { 0 } else { input.time };
    sb.lastcheck = input.time;
}

impl<'t> Plan<'t> {
    /// Plans the whole image for the size in `sized`.
    ///
    /// # Errors
    /// [`PlanFault::Full`] if it does not fit this size; other faults if it does not fit any size.
    pub fn new(input: &Input<'t>, sized: &Sized, needs: &Needs) -> Result<Self, PlanFault> {
        let mut superblock = sized.superblock.clone();
        identify(&mut superblock, input);
        let geometry = sized.geometry.clone();
        if u64::from(geometry.inodes()) < needs.inodes {
            return Err(PlanFault::Full);
        }
        let free =
            geometry.blocks.saturating_sub(u64::from(geometry.groups) * u64::from(geometry.itable_blocks()));
        if free < needs.blocks {
            return Err(PlanFault::Full);
        }
        let packer = packer_of(&superblock, &geometry)?;
        let mapper = Mapper {
            block_size: geometry.block_size,
            extents: superblock.features.has_incompat(Features::EXTENTS),
            csum: superblock.features.metadata_csum(),
        };
        let nodes = input.tree.nodes.len();
        // Without checksums of descriptors nothing records where the unused part of a table begins, so the
        // kernel reads the whole table.
        let features = &superblock.features;
        let can_be_lazy = features.metadata_csum() || features.has_ro_compat(Features::GDT_CSUM);
        let mut plan = Self {
            tree: input.tree,
            sealed: input.sealed,
            superblock,
            layout: Layout::new(
                geometry,
                Habits {
                    lonely_rows: input.style == Style::LikeMke2fs,
                    stride: input.options.stride.into(),
                    packed: input.options.packed_metadata,
                },
            )?,
            ino_of: vec![0; nodes],
            by_ino: Vec::with_capacity(input.sealed.order.len()),
            first_tree_ino: 12,
            start_of: vec![NO_BLOCK; nodes],
            complex: Vec::new(),
            dirs: needs.dirs.clone(),
            xattrs: needs.xattrs.clone(),
            xattr_space: needs.xattr_space,
            xattr_block_of: HashMap::new(),
            specials: Vec::new(),
            blocks: Vec::new(),
            zero_runs: Vec::new(),
            mapper,
            packer,
            fresh_device: input.fresh_device,
            lazy_tables: can_be_lazy && !input.fresh_device && input.options.lazy_itable_init.unwrap_or(true),
            lost_found: input.lost_found,
            clamped_times: 0,
            metadata_clusters: 0,
            cursor: Cursor::default(),
        };
        let groups = 0..plan.geometry().groups;
        let clusters: u64 = groups.clone().map(|g| u64::from(plan.geometry().group_clusters(Group(g)))).sum();
        let free: u64 = groups.map(|g| u64::from(plan.layout.free_clusters(g))).sum();
        plan.metadata_clusters = clusters - free + u64::from(plan.geometry().first_data_block);
        plan.place_directory(ROOT)?;
        plan.place_directory(input.lost_found)?;
        plan.mark_taken();
        plan.place_specials(input)?;
        plan.number_inodes(input);
        for i in 0..plan.sealed.directories.len() {
            let node = plan.sealed.directories[i];
            if node != ROOT && node != input.lost_found {
                plan.place_directory(node)?;
            }
        }
        plan.place_attributes()?;
        for i in 0..plan.by_ino.len() {
            plan.place_file(plan.by_ino[i])?;
        }
        plan.mark_taken();
        plan.check_links()?;
        plan.finish_specials();
        plan.count();
        Ok(plan)
    }

    /// The geometry of the layout.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.layout.geometry
    }

    /// The block after the last one that is taken.
    #[must_use]
    pub fn used_end(&self) -> u64 {
        let blocks = self.geometry().blocks;
        self.layout.space.taken_within(0, blocks).last().map_or(0, |run| run.end())
    }

    fn bs(&self) -> u64 {
        self.geometry().block_size.bytes()
    }

    fn number_inodes(&mut self, input: &Input<'_>) {
        let mut next = self.first_tree_ino + self.xattrs.large_values.len() as u32;
        self.first_tree_ino = next;
        self.ino_of[ROOT as usize] = Ino::ROOT.0;
        for &node in &self.sealed.order {
            if node == input.lost_found {
                self.ino_of[node as usize] = Ino::FIRST.0;
                continue;
            }
            self.ino_of[node as usize] = next;
            self.by_ino.push(node);
            next += 1;
        }
    }

    /// Takes the next `len` blocks, in whole clusters. Returns at least one run; runs are in ascending order.
    fn allocate(&mut self, len: u64) -> Result<Vec<BlockRun>, PlanFault> {
        let ratio = self.geometry().cluster_ratio();
        let mut left = len.next_multiple_of(ratio);
        let mut runs: Vec<BlockRun> = Vec::with_capacity(1);
        while left > 0 {
            if self.cursor.at >= self.cursor.gap.end {
                self.mark_taken();
                let from = self.cursor.gap.end;
                let gap = self.layout.space.gap_at(from, self.geometry().blocks).ok_or(PlanFault::Full)?;
                self.cursor = Cursor { at: gap.start, gap: Gap { start: gap.start, end: gap.end() } };
            }
            let part = left.min(self.cursor.gap.end - self.cursor.at);
            runs.push(BlockRun { start: self.cursor.at, len: part });
            self.cursor.at += part;
            left -= part;
        }
        Ok(runs)
    }

    /// Marks the blocks before the cursor as taken in the space, so that other allocations avoid them
    /// (INV-P3).
    fn mark_taken(&mut self) {
        let Cursor { at, gap } = &mut self.cursor;
        self.layout.space.take(gap.start, *at - gap.start);
        gap.start = *at;
    }

    fn place_directory(&mut self, node: u32) -> Result<(), PlanFault> {
        let blocks = u64::from(self.dirs[self.tree.nodes[node as usize].content as usize].blocks);
        self.place(node, LogicalRuns::Dense(blocks))
    }

    fn place_file(&mut self, node_index: u32) -> Result<(), PlanFault> {
        let node = &self.tree.nodes[node_index as usize];
        let logical = match node.file_type() {
            FileType::Symlink if node.size >= self.bs() => {
                let why = format!("a symbolic link of {} bytes does not fit a block", node.size);
                return Err(unfit(self.tree, node_index, why));
            }
            FileType::Symlink if node.size >= 60 => LogicalRuns::Dense(1),
            FileType::Regular => {
                let huge_file = self.superblock.features.has_ro_compat(Features::HUGE_FILE);
                let most = self.mapper.file_blocks_max(huge_file);
                if node.size.div_ceil(self.bs()) > most {
                    let mut why =
                        format!("{} bytes are more than a file of this file system can hold", node.size);
                    if !huge_file && node.size.div_ceil(self.bs()) <= self.mapper.file_blocks_max(true) {
                        why += " without the feature huge_file";
                    }
                    return Err(unfit(self.tree, node_index, why));
                }
                logical_runs(self.tree, node_index, self.bs(), self.geometry().cluster_ratio())
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = node.device();
                if extant_ondisk::inode::device_block(major, minor).is_none() {
                    let why = format!(
                        "device number {major}:{minor} is above the 4095:1048575 that an inode can hold"
                    );
                    return Err(unfit(self.tree, node_index, why));
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.place(node_index, logical)
    }

    /// Allocates the blocks of a node.
    fn place(&mut self, node: u32, logical: LogicalRuns) -> Result<(), PlanFault> {
        let dense = match logical {
            LogicalRuns::Dense(0) => return Ok(()),
            LogicalRuns::Dense(blocks) => [(0, blocks)].to_vec(),
            LogicalRuns::Sparse(runs) if runs.is_empty() => return Ok(()),
            LogicalRuns::Sparse(runs) => runs,
        };
        // A hole shifts the following data by whole clusters only (logical_runs rounds), so clusters are
        // never split.
        let blocks: u64 = dense.iter().map(|&(_, len)| len).sum();
        let runs = self.allocate(blocks)?;
        // A file that ends with a hole has fewer blocks than its size implies.
        let whole = dense == [(0, self.dense_blocks(node))];
        let simple = whole && runs.len() == 1 && self.mapper.is_simple(blocks);
        if simple {
            self.start_of[node as usize] = runs[0].start;
            return Ok(());
        }
        let extents = Mapper::zip(&dense, &runs);
        let nodes = self.allocate_nodes(&extents)?;
        self.start_of[node as usize] = COMPLEX | self.complex.len() as u64;
        self.complex.push(FileMap { extents, nodes });
        Ok(())
    }

    /// Allocates blocks for a file's tree, each in a cluster of its own.
    fn allocate_nodes(&mut self, extents: &[Extent]) -> Result<Vec<Pblk>, PlanFault> {
        (0..self.mapper.node_count(extents)).map(|_| Ok(Pblk(self.allocate(1)?[0].start))).collect()
    }

    fn place_attributes(&mut self) -> Result<(), PlanFault> {
        let large_inos: Vec<Ino> = (0..self.xattrs.large_values.len() as u32)
            .map(|i| Ino(self.first_tree_ino - self.xattrs.large_values.len() as u32 + i))
            .collect();
        self.place_large_values(&large_inos)?;
        let mut users: Vec<Vec<u32>> = vec![Vec::new(); self.xattrs.sets.len()];
        if self.xattrs.copies.iter().all(|&copies| copies == 0) {
            return Ok(());
        }
        for node in reachable(self.sealed) {
            let set = self.tree.nodes[node as usize].xattrs as usize;
            if self.xattrs.sets[set].needs_block() {
                users[set].push(node);
            }
        }
        for (set, users) in users.into_iter().enumerate() {
            for sharers in users.chunks(crate::xattrs::SHARERS_MAX as usize) {
                let place = Pblk(self.allocate(1)?[0].start);
                let refcount = sharers.len() as u32;
                let (space, seal) = (self.xattr_space, self.mapper.csum);
                let block = self.xattrs.encode_block(set as u32, refcount, place, &large_inos, &space, seal);
                self.blocks.push((place, block));
                self.xattr_block_of.extend(sharers.iter().map(|&node| (node, place.0)));
            }
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), PlanFault> {
        let many_subdirs = self.superblock.features.has_ro_compat(Features::DIR_NLINK);
        for node in reachable(self.sealed) {
            let links = self.tree.nodes[node as usize].links;
            let is_dir = self.tree.nodes[node as usize].is_dir();
            if links > LINKS_MAX && !is_dir {
                let why = format!("{links} hard links are more than the {LINKS_MAX} that ext4 allows");
                return Err(unfit(self.tree, node, why));
            }
            if links > LINKS_MAX && is_dir && !many_subdirs {
                let why = format!("{} subdirectories need the feature dir_nlink", links - 2);
                return Err(unfit(self.tree, node, why));
            }
        }
        Ok(())
    }

    /// The extents of a node's data; empty if it has none.
    #[must_use]
    pub fn extents_of(&self, node: u32) -> Vec<Extent> {
        match self.start_of[node as usize] {
            NO_BLOCK => Vec::new(),
            tagged if tagged & COMPLEX != 0 => self.complex[(tagged & !COMPLEX) as usize].extents.clone(),
            start => Mapper::zip(
                &[(0, self.dense_blocks(node))],
                &[BlockRun { start, len: self.dense_blocks(node) }],
            ),
        }
    }

    /// First block of a node whose data is contiguous from logical block 0 on; `None` for other nodes.
    #[must_use]
    pub fn simple_start(&self, node: u32) -> Option<u64> {
        let start = self.start_of[node as usize];
        (start & COMPLEX == 0).then_some(start)
    }

    /// Number of blocks of a node without holes.
    #[must_use]
    pub fn dense_blocks(&self, node_index: u32) -> u64 {
        let node = &self.tree.nodes[node_index as usize];
        match node.file_type() {
            FileType::Directory => self.dirs[node.content as usize].blocks.into(),
            FileType::Symlink => 1,
            _ => node.size.div_ceil(self.bs()),
        }
    }
}
