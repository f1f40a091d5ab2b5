//! Sealing: computes from a merged tree the order of inode numbers and of names in directories.
//!
//! Children have the order in which the kernel's readdir returns them: by hash if directories are indexed,
//! otherwise by name. Inodes are numbered in that order, so that `find`, `tar` and `cp` read the image's
//! inode tables and data sequentially.

use extant_ondisk::hash::{HashVersion, dirhash};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{NONE, ROOT, Tree};

/// Children in packing order, and nodes in the order of their numbers.
#[derive(Debug, Default)]
pub struct Sealed {
    /// Records of all directories; the records of each directory are contiguous.
    pub children: Vec<u32>,
    /// Per directory index: start and end index into `children`. The range of an unreachable directory is
    /// empty.
    pub child_ranges: Vec<(u32, u32)>,
    /// All reachable nodes except the root, each once: a directory's children in order, then the children of
    /// each subdirectory.
    pub order: Vec<u32>,
    /// Node indexes of the directories in the same order, beginning with the root.
    pub directories: Vec<u32>,
    /// Per directory index: the node of the parent directory.
    pub parents: Vec<u32>,
}

impl Sealed {
    /// A directory's records in packing order.
    #[must_use]
    pub fn children_of(&self, dir: u32) -> &[u32] {
        let (start, end) = self.child_ranges[dir as usize];
        &self.children[start as usize..end as usize]
    }
}

impl Tree {
    /// A digest of everything in the tree except file contents: paths, types, modes, owners, sizes, times,
    /// links, attributes, symlink targets. It does not depend on the order in which the tree was read.
    #[must_use]
    pub fn digest(&self) -> u128 {
        let mut sum: u128 = 0;
        let mut stack = vec![(ROOT, 0x9E37_79B9_7F4A_7C15_u64)];
        let set_digests: Vec<u64> = self.xattr_sets.iter().map(|set| digest_set(set)).collect();
        let mut linked: std::collections::HashMap<u32, u128> = std::collections::HashMap::new();
        let mut buffer = Vec::with_capacity(512);
        while let Some((node, path_hash)) = stack.pop() {
            self.describe(node, &set_digests, &mut buffer);
            let own = xxh3_128_with_seed(&buffer, path_hash);
            sum = sum.wrapping_add(own);
            let node = &self.nodes[node as usize];
            if !node.is_dir() {
                continue;
            }
            for record in self.children(node.content) {
                let record = &self.records[record as usize];
                let child_hash = xxh3_128_with_seed(self.name(record), path_hash);
                let child = record.node;
                // The names that share an inode are part of the tree: combine the names of each group.
                if self.nodes[child as usize].links > 1 && !self.nodes[child as usize].is_dir() {
                    let group = linked.entry(child).or_default();
                    *group = group.wrapping_add(child_hash);
                }
                stack.push((child, child_hash as u64));
            }
        }
        for group in linked.into_values() {
            sum = sum.wrapping_add(xxh3_128_with_seed(&group.to_le_bytes(), 1));
        }
        sum
    }

    fn describe(&self, index: u32, set_digests: &[u64], out: &mut Vec<u8>) {
        let node = &self.nodes[index as usize];
        out.clear();
        out.extend_from_slice(&node.mode.to_le_bytes());
        out.extend_from_slice(&node.uid.to_le_bytes());
        out.extend_from_slice(&node.gid.to_le_bytes());
        out.extend_from_slice(&node.mtime_seconds.to_le_bytes());
        out.extend_from_slice(&node.mtime_nanos.to_le_bytes());
        out.extend_from_slice(&set_digests[node.xattrs as usize].to_le_bytes());
        match node.file_type() {
            extant_ondisk::filetype::FileType::Directory => {}
            extant_ondisk::filetype::FileType::Symlink => out.extend_from_slice(self.symlink_target(node)),
            _ => out.extend_from_slice(&node.size.to_le_bytes()),
        }
        if node.times != NONE {
            let times = &self.times[node.times as usize];
            for time in [times.atime, times.ctime, times.crtime] {
                out.extend_from_slice(&time.seconds.to_le_bytes());
                out.extend_from_slice(&time.nanos.to_le_bytes());
            }
        }
    }

    /// Counts links, and sets the record of every reachable node to one of its live names. With several names
    /// it is the first by path, so that the order of reading does not matter. Must run before
    /// [`digest`](Self::digest) and [`order`](Self::order).
    pub fn count_links(&mut self) {
        for node in &mut self.nodes {
            node.links = 0;
        }
        self.nodes[ROOT as usize].links = 2;
        let mut stack = vec![0u32];
        let mut children = Vec::new();
        while let Some(dir) = stack.pop() {
            children.clear();
            children.extend(self.children(dir));
            let mut subdirectories = 0;
            for &record_index in &children {
                let record = self.records[record_index as usize];
                let node = &mut self.nodes[record.node as usize];
                if node.is_dir() {
                    node.links += 2;
                    subdirectories += 1;
                    stack.push(node.content);
                } else {
                    node.links += 1;
                }
                let (is_first, other) = (node.links == 1 || node.is_dir(), node.record);
                if is_first || self.comes_before(record_index, other) {
                    self.nodes[record.node as usize].record = record_index;
                }
            }
            let own = self.dirs[dir as usize].node;
            self.nodes[own as usize].links += subdirectories;
        }
    }

    /// Whether the path of record `one` sorts before that of `other`. The directories above must have their
    /// records set already.
    fn comes_before(&self, one: u32, other: u32) -> bool {
        let (one, other) = (&self.records[one as usize], &self.records[other as usize]);
        if one.dir == other.dir {
            return self.name(one) < self.name(other);
        }
        self.path_in(one.dir, self.name(one)) < self.path_in(other.dir, self.name(other))
    }

    /// Numbers attribute sets by content instead of by first use, and merges sets that have become equal.
    /// Must run after the last [`intern_xattrs`](Self::intern_xattrs).
    pub fn order_xattr_sets(&mut self) {
        let mut order: Vec<u32> = (0..self.xattr_sets.len() as u32).collect();
        order.sort_by(|&a, &b| self.xattr_sets[a as usize].cmp(&self.xattr_sets[b as usize]));
        let mut old_sets = std::mem::take(&mut self.xattr_sets);
        let mut new_ids = vec![0; old_sets.len()];
        for old in order {
            let set = std::mem::take(&mut old_sets[old as usize]);
            if self.xattr_sets.last() != Some(&set) {
                self.xattr_sets.push(set);
            }
            new_ids[old as usize] = self.xattr_sets.len() as u32 - 1;
        }
        for node in &mut self.nodes {
            node.xattrs = new_ids[node.xattrs as usize];
        }
        self.xattr_ids.clear();
    }

    /// Orders children and nodes. Children are ordered by hash if `hash` is set, otherwise by name.
    #[must_use]
    pub fn order(&self, hash: Option<(HashVersion, [u32; 4])>) -> Sealed {
        let mut sealed = Sealed {
            children: Vec::with_capacity(self.records.len()),
            child_ranges: vec![(0, 0); self.dirs.len()],
            order: Vec::with_capacity(self.nodes.len()),
            directories: Vec::with_capacity(self.dirs.len()),
            parents: vec![ROOT; self.dirs.len()],
        };
        let mut seen = vec![0u64; self.nodes.len().div_ceil(64)];
        let mut stack = vec![0u32];
        let mut keyed: Vec<(u64, u32)> = Vec::new();
        let mut subdirectories = Vec::new();
        while let Some(dir) = stack.pop() {
            let own_node = self.dirs[dir as usize].node;
            sealed.directories.push(own_node);
            keyed.clear();
            for record_index in self.children(dir) {
                let key = match hash {
                    None => 0,
                    Some((version, seed)) => {
                        let name = self.name(&self.records[record_index as usize]);
                        dirhash(version, &seed, name)
                            .map_or(0, |h| u64::from(h.hash) << 32 | u64::from(h.minor))
                    }
                };
                keyed.push((key, record_index));
            }
            keyed.sort_unstable_by(|a, b| {
                a.0.cmp(&b.0).then_with(|| {
                    self.name(&self.records[a.1 as usize]).cmp(self.name(&self.records[b.1 as usize]))
                })
            });
            let first = sealed.children.len() as u32;
            subdirectories.clear();
            for &(_, record_index) in &keyed {
                sealed.children.push(record_index);
                let node_index = self.records[record_index as usize].node;
                let (word, bit) = (node_index as usize / 64, 1u64 << (node_index % 64));
                if seen[word] & bit != 0 {
                    continue;
                }
                seen[word] |= bit;
                sealed.order.push(node_index);
                let node = &self.nodes[node_index as usize];
                if node.is_dir() {
                    sealed.parents[node.content as usize] = own_node;
                    subdirectories.push(node.content);
                }
            }
            sealed.child_ranges[dir as usize] = (first, sealed.children.len() as u32);
            stack.extend(subdirectories.iter().rev());
        }
        sealed
    }
}

fn digest_set(set: &[crate::source::entry::Xattr]) -> u64 {
    let mut bytes = Vec::new();
    for xattr in set {
        bytes.extend_from_slice(&(xattr.name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xattr.name);
        bytes.extend_from_slice(&(xattr.value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xattr.value);
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
