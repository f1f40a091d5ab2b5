//! Sealing: from a merged tree to the order in which inodes are numbered and names are packed.
//!
//! Children are ordered the way the kernel's readdir will return them (by hash where directories are indexed,
//! else by name), and inodes are numbered in that order, so that `find`, `tar` and `cp` over the image read
//! inode tables and data from front to back.

use extant_ondisk::hash::{HashVersion, dirhash};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{NONE, ROOT, Tree};

/// Children in packing order, and nodes in numbering order.
#[derive(Debug, Default)]
pub struct Sealed {
    /// Records of all directories, each directory's in a row.
    pub children: Vec<u32>,
    /// Per directory index: first and end index into `children`. Unreachable directories are empty.
    pub child_ranges: Vec<(u32, u32)>,
    /// All reachable nodes but the root, each once: a directory's children in order, then each child
    /// directory's.
    pub order: Vec<u32>,
    /// Directories in the same order, the root first (node indexes).
    pub directories: Vec<u32>,
    /// Per directory index: node of the parent directory.
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
    /// A digest of everything in the tree but the contents of files: paths, types, modes, owners, sizes,
    /// times, links, attributes, symlink targets. The same tree has the same digest, in whatever order it was
    /// read.
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
                // Which names share an inode is part of the tree: fold each group's names together.
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

    /// Counts links and lets every reachable node point to a live name of its own, the first by path where it
    /// has several: in which order they were read must not show. Comes before [`digest`](Self::digest) and
    /// [`order`](Self::order).
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

    /// Is the path of one record before that of another? The directories above must have their own records
    /// already.
    fn comes_before(&self, one: u32, other: u32) -> bool {
        let (one, other) = (&self.records[one as usize], &self.records[other as usize]);
        if one.dir == other.dir {
            return self.name(one) < self.name(other);
        }
        self.path_in(one.dir, self.name(one)) < self.path_in(other.dir, self.name(other))
    }

    /// Numbers attribute sets by their content instead of by the order in which they were met, and joins
    /// those that have become equal. Comes after the last [`intern_xattrs`](Self::intern_xattrs).
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

    /// Orders children and nodes. With a hash, children come in hash order, else by name.
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
