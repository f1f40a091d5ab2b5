//! Converts nodes of the tree to inodes, and computes the counts of the superblock.

use extant_base::{Ino, Pblk};
use extant_ondisk::Features;
use extant_ondisk::extent::Extent;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, device_block, flags, inode_seed};
use extant_ondisk::time::Timestamp;

use super::{COMPLEX, LINKS_MAX, NO_BLOCK, Plan, reachable};
use crate::source::entry::Time;
use crate::tree::{ExtraTimes, NONE};

impl Plan<'_> {
    /// `i_blocks` for `blocks` contiguous data blocks and `nodes` tree nodes: whole clusters, in 512-byte
    /// units.
    pub(super) fn sectors(&self, blocks: u64, nodes: u64) -> u64 {
        let ratio = self.geometry().cluster_ratio();
        (blocks.next_multiple_of(ratio) + nodes * ratio) * (self.geometry().block_size.bytes() / 512)
    }

    /// The `i_blocks` count of a node in 512-byte units: data, tree, attribute block, large attribute values.
    #[must_use]
    pub fn sectors_of(&self, node: u32) -> u64 {
        let xattr_blocks = u64::from(self.xattr_block_of.contains_key(&node));
        let set = self.tree.nodes[node as usize].xattrs;
        let large: u64 = self
            .xattrs
            .large_lengths(set)
            .map(|len| self.sectors(self.geometry().block_size.blocks_for(len), 0))
            .sum();
        let data = match self.start_of[node as usize] {
            NO_BLOCK => self.sectors(0, xattr_blocks),
            tagged if tagged & COMPLEX != 0 => {
                let map = &self.complex[(tagged & !COMPLEX) as usize];
                self.sectors(self.blocks_in_clusters(&map.extents), map.nodes.len() as u64 + xattr_blocks)
            }
            _ => self.sectors(self.dense_blocks(node), xattr_blocks),
        };
        data + large
    }

    /// Blocks of all clusters that these extents touch. Two extents may be in one cluster: no extent is
    /// longer than 32,768 blocks, but clusters can be.
    fn blocks_in_clusters(&self, extents: &[Extent]) -> u64 {
        let ratio = self.geometry().cluster_ratio();
        let (mut clusters, mut newest) = (0, None);
        for extent in extents {
            let (first, last) = (extent.start / ratio, (extent.start + u64::from(extent.len) - 1) / ratio);
            clusters += last - first + 1 - u64::from(newest == Some(first));
            newest = Some(last);
        }
        clusters * ratio
    }

    /// Converts a node to an inode. Also returns the blocks of its tree, if it needs any besides the inode.
    #[must_use]
    pub fn inode_of(&self, node_index: u32) -> (Inode, Vec<(Pblk, Vec<u8>)>) {
        let node = &self.tree.nodes[node_index as usize];
        let ino = Ino(self.ino_of[node_index as usize]);
        let mut tree_blocks = Vec::new();
        let mut inode_flags = 0;
        let mut block = [0; 60];
        let mut size = node.size;
        let start = self.start_of[node_index as usize];
        let mapped = match node.file_type() {
            FileType::Regular => true,
            FileType::Directory => {
                let plan = self.dirs[node.content as usize];
                size = u64::from(plan.blocks) * self.geometry().block_size.bytes();
                if plan.indexed {
                    inode_flags |= flags::INDEX;
                }
                true
            }
            FileType::Symlink if node.size < 60 => {
                block[..node.size as usize].copy_from_slice(self.tree.symlink_target(node));
                false
            }
            FileType::Symlink => true,
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = node.device();
                block = device_block(major, minor).unwrap_or([0; 60]);
                size = 0;
                false
            }
            _ => false,
        };
        if mapped {
            if self.mapper.extents {
                inode_flags |= flags::EXTENTS;
            }
            (block, tree_blocks) = match start {
                NO_BLOCK => (self.mapper.encode_simple(0, 0), Vec::new()),
                tagged if tagged & COMPLEX != 0 => {
                    let map = &self.complex[(tagged & !COMPLEX) as usize];
                    self.mapper.encode(map, inode_seed(self.superblock.fs_seed(), ino, 0))
                }
                start => (self.mapper.encode_simple(start, self.dense_blocks(node_index)), Vec::new()),
            };
        }
        let mtime = node.mtime();
        let ExtraTimes { atime, ctime, crtime } = self.tree.times_of(node);
        let links = if node.is_dir() && node.links > LINKS_MAX { 1 } else { node.links as u16 };
        let sectors = self.sectors_of(node_index);
        let mut blocks = sectors;
        if sectors >= 1 << 48 {
            inode_flags |= flags::HUGE_FILE;
            blocks = sectors / (self.geometry().block_size.bytes() / 512);
        }
        let inode = Inode {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            size,
            atime: self.stamp(atime),
            ctime: self.stamp(ctime),
            mtime: self.stamp(mtime),
            crtime: self.stamp(crtime),
            links,
            blocks,
            flags: inode_flags,
            block,
            file_acl: self.xattr_block_of.get(&node_index).copied().unwrap_or(0),
            extra_isize: self.superblock.want_extra_isize,
            ..Inode::default()
        };
        (inode, tree_blocks)
    }

    /// The nearest time that an inode of this file system can store.
    pub(super) fn stamp(&self, time: Time) -> Timestamp {
        let extra = self.superblock.want_extra_isize >= 32;
        Timestamp { seconds: time.seconds, nanos: time.nanos }.clamped(extra)
    }

    /// Highest inode number in use.
    #[must_use]
    pub fn last_ino(&self) -> u32 {
        (self.first_tree_ino + self.by_ino.len() as u32).max(12) - 1
    }

    /// Number of directories per group, by their inodes.
    #[must_use]
    pub fn directories_per_group(&self) -> Vec<u32> {
        let mut counts = vec![0; self.geometry().groups as usize];
        for &node in &self.sealed.directories {
            let ino = self.ino_of[node as usize];
            counts[((ino - 1) / self.geometry().inodes_per_group) as usize] += 1;
        }
        counts
    }

    /// Sets the counts of the superblock, and the feature bits that depend on the tree.
    pub(super) fn count(&mut self) {
        let geometry = self.geometry().clone();
        let ratio = geometry.cluster_ratio();
        let free_clusters: u64 = (0..geometry.groups).map(|g| u64::from(self.layout.free_clusters(g))).sum();
        self.superblock.free_blocks_count = free_clusters * ratio;
        self.superblock.inodes_count = geometry.inodes();
        self.superblock.free_inodes_count = geometry.inodes() - self.last_ino();
        self.superblock.blocks_count = geometry.blocks;
        let metadata = self.metadata_clusters;
        let journal: u64 = self.zero_runs.iter().map(|run| run.len).sum::<u64>();
        let journal = if journal > 0 { (journal + 1).div_ceil(ratio) } else { 0 };
        self.superblock.overhead_clusters = u32::try_from(metadata + journal).unwrap_or(u32::MAX);
        // The resize inode alone exceeds 2 GiB, because of its double indirect block.
        let mut large = self.specials.iter().any(|special| special.inode.size >= 1 << 31);
        let mut clamped = 0;
        for node_index in reachable(self.sealed) {
            let node = &self.tree.nodes[node_index as usize];
            large |= node.file_type() == FileType::Regular && node.size >= 1 << 31;
            let mut times = vec![Time { seconds: node.mtime_seconds, nanos: node.mtime_nanos }];
            if node.times != NONE {
                let extra = &self.tree.times[node.times as usize];
                times.extend([extra.atime, extra.ctime, extra.crtime]);
            }
            clamped += times.iter().filter(|&&time| self.stamp(time).seconds != time.seconds).count() as u64;
        }
        if large {
            self.superblock.features.ro_compat |= Features::LARGE_FILE;
        }
        self.clamped_times = clamped;
    }
}
