//! Inserts entries into the tree: replacement, implied parents, symlinks in parent paths, whiteouts.

use std::sync::Arc;

use extant_ondisk::filetype::FileType;

use super::{Dir, ExtraTimes, NONE, PayloadRecord, ROOT, Record, Tree, TreeNode, hash_name};
use crate::source::entry::{Entry, Kind, Metadata, Xattr};

/// Limit on symlinks in one parent path.
const SYMLINKS_MAX: u32 = 40;

/// Why an entry cannot be inserted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InsertFault {
    /// A parent of the entry exists and is not a directory.
    #[error("its parent \"{parent}\" is not a directory")]
    ParentNotDirectory {
        /// The parent's path.
        parent: String,
    },
    /// An entry that is not a directory would replace a directory.
    #[error("a {new} would take the place of a directory")]
    ReplacesDirectory {
        /// Type of the new entry.
        new: FileType,
    },
    /// The target of a hard link does not exist.
    #[error("it is a hard link to \"{target}\", which is not there")]
    LinkTargetMissing {
        /// The target's path.
        target: String,
    },
    /// The target of a hard link is a directory.
    #[error("it is a hard link to \"{target}\", which is a directory")]
    LinkToDirectory {
        /// The target's path.
        target: String,
    },
    /// A parent path has too many symlinks, or a loop of symlinks.
    #[error("its parent path goes through more than {SYMLINKS_MAX} symbolic links")]
    SymlinkLoop,
    /// A name has 0 bytes, more than 255 bytes, or a NUL or slash in it.
    #[error("a name of {len} bytes is needed for it; names have 1 to 255 bytes, and no NUL or slash")]
    BadName {
        /// Length of the name.
        len: usize,
    },
    /// The root has an entry `lost+found` that is not a directory; the file system needs that name.
    #[error("lost+found must be a directory in ext4")]
    LostFoundTaken,
    /// An entry would replace the root by something other than a directory.
    #[error("the root must be a directory")]
    RootNotDirectory,
    /// Names and symlink targets exceed 4 GiB, or the tree has too many entries.
    #[error(
        "the tree is too large: names and symbolic links exceed 4 GiB, or there are more than 4294967293 entries"
    )]
    TooLarge,
}

/// What an insertion replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Nothing: the name is new.
    New,
    /// An entry of an earlier source or layer.
    Replaced,
    /// An entry of the same source: the new one is a duplicate.
    Duplicate,
}

/// Merge rules that depend on the kind of source.
#[derive(Debug, Clone, Copy)]
pub struct MergeRules {
    /// Number of the source or layer, in ascending order.
    pub layer: u16,
    /// Whether a file of a later layer may replace a directory of an earlier one, as OCI requires.
    pub replace_directories: bool,
    /// Whether to keep the source's atime, ctime and crtime.
    pub keep_times: bool,
}

impl Tree {
    /// Inserts one entry of a source.
    ///
    /// # Errors
    /// See [`InsertFault`]. In that case only missing parents were added.
    pub fn insert(&mut self, entry: Entry, rules: MergeRules) -> Result<Placement, InsertFault> {
        let Entry { path, metadata, kind } = entry;
        if path.is_empty() {
            return match kind {
                Kind::Directory => {
                    self.set_metadata(ROOT, &metadata, rules);
                    Ok(Placement::New)
                }
                Kind::Opaque => {
                    self.remove_older_children(0, rules.layer);
                    Ok(Placement::New)
                }
                _ => Err(InsertFault::RootNotDirectory),
            };
        }
        match kind {
            Kind::Whiteout => {
                if let Some((dir, name)) = self.find_parent(&path)?
                    && let Some(record) = self.lookup(dir, &name)
                {
                    self.remove_if_older(record, rules.layer);
                }
                return Ok(Placement::New);
            }
            Kind::Opaque => {
                if let Some((dir, name)) = self.find_parent(&path)?
                    && let Some(record) = self.lookup(dir, &name)
                {
                    let node = &self.nodes[self.records[record as usize].node as usize];
                    if node.is_dir() {
                        self.remove_older_children(node.content, rules.layer);
                    }
                }
                return Ok(Placement::New);
            }
            _ => {}
        }
        if let Kind::HardLink(target) = &kind {
            let node = self.find_link_target(target)?;
            let TreeNode { record, archived, .. } = self.nodes[node as usize];
            if !archived {
                // The new name does not exist in the source that holds the content, and may outlive the names
                // that do.
                self.source_names.entry(node).or_insert(record);
            }
            let (dir, name) = self.make_parent(&path, &metadata, rules)?;
            return self.add_link(dir, &name, node, rules);
        }
        let (dir, name) = self.make_parent(&path, &metadata, rules)?;
        let node = self.node_of(&metadata, kind, rules)?;
        self.add_node(dir, &name, node, rules).map(|(_, placement)| placement)
    }

    /// Adds `node` to a directory under `name`, or replaces the entry of that name. A directory that is
    /// replaced by a directory keeps its children. Returns the node's index.
    ///
    /// # Errors
    /// An entry that is not a directory would replace a directory and the rules forbid it, or the tree is
    /// full.
    pub fn add_node(
        &mut self,
        dir: u32,
        name: &[u8],
        mut node: TreeNode,
        rules: MergeRules,
    ) -> Result<(u32, Placement), InsertFault> {
        let old = self.lookup(dir, name);
        if let Some(record_index) = old {
            let record = self.records[record_index as usize];
            let existing = &self.nodes[record.node as usize];
            let placement =
                if record.layer == rules.layer { Placement::Duplicate } else { Placement::Replaced };
            if existing.is_dir() && node.is_dir() {
                node.content = existing.content;
                node.record = existing.record;
                self.nodes[record.node as usize] = node;
                self.records[record_index as usize].layer = rules.layer;
                // A directory that its children implied, or that an archive contains once per part, is not a
                // duplicate.
                let placement = if placement == Placement::Duplicate { Placement::New } else { placement };
                return Ok((record.node, placement));
            }
            self.refuse_over_directory(record, node.file_type(), rules)?;
            let index = self.push_node(node)?;
            self.records[record_index as usize].node = index;
            self.records[record_index as usize].layer = rules.layer;
            self.nodes[index as usize].record = record_index;
            return Ok((index, placement));
        }
        let index = self.push_node(node)?;
        let record = self.push_record(dir, name, index, rules.layer)?;
        self.nodes[index as usize].record = record;
        Ok((index, Placement::New))
    }

    /// Adds another name for a node.
    ///
    /// # Errors
    /// As [`add_node`](Self::add_node).
    pub fn add_link(
        &mut self,
        dir: u32,
        name: &[u8],
        node: u32,
        rules: MergeRules,
    ) -> Result<Placement, InsertFault> {
        if let Some(index) = self.lookup(dir, name) {
            let record = self.records[index as usize];
            self.refuse_over_directory(record, self.nodes[node as usize].file_type(), rules)?;
            let placement =
                if record.layer == rules.layer { Placement::Duplicate } else { Placement::Replaced };
            self.records[index as usize].node = node;
            self.records[index as usize].layer = rules.layer;
            return Ok(placement);
        }
        self.push_record(dir, name, node, rules.layer)?;
        Ok(Placement::New)
    }

    /// Returns the index of a set of attributes, adding the set if it is new. The order of attributes does
    /// not matter.
    pub fn intern_xattrs(&mut self, mut xattrs: Vec<Xattr>) -> u32 {
        xattrs.sort();
        if let Some(&id) = self.xattr_ids.get(&xattrs) {
            return id;
        }
        let id = self.xattr_sets.len() as u32;
        self.xattr_sets.push(xattrs.clone());
        self.xattr_ids.insert(xattrs, id);
        id
    }

    /// An empty node of the given type with an entry's metadata.
    pub fn bare_node(&mut self, metadata: &Metadata, file_type: FileType, rules: MergeRules) -> TreeNode {
        let mut times = NONE;
        let known = metadata.atime.or(metadata.ctime).or(metadata.crtime).is_some();
        if rules.keep_times && known {
            times = self.times.len() as u32;
            self.times.push(ExtraTimes {
                atime: metadata.atime.unwrap_or(metadata.mtime),
                ctime: metadata.ctime.unwrap_or(metadata.mtime),
                crtime: metadata.crtime.unwrap_or(metadata.mtime),
            });
        }
        let xattrs = if metadata.xattrs.is_empty() { 0 } else { self.intern_xattrs(metadata.xattrs.clone()) };
        TreeNode {
            size: 0,
            mtime_seconds: metadata.mtime.seconds,
            mtime_nanos: metadata.mtime.nanos,
            uid: metadata.uid,
            gid: metadata.gid,
            record: NONE,
            xattrs,
            times,
            content: NONE,
            sparse: NONE,
            links: 0,
            mode: file_type.mode_bits() | (metadata.permissions & 0o7777),
            archived: false,
        }
    }

    /// Replaces a directory's metadata and keeps its children.
    pub fn set_metadata(&mut self, node: u32, metadata: &Metadata, rules: MergeRules) {
        let mut new = self.bare_node(metadata, FileType::Directory, rules);
        let old = &self.nodes[node as usize];
        (new.record, new.content, new.links) = (old.record, old.content, old.links);
        self.nodes[node as usize] = new;
    }

    /// Stores a symlink's target in the tree.
    ///
    /// # Errors
    /// The names exceed 4 GiB.
    pub fn set_symlink_target(&mut self, node: &mut TreeNode, target: &[u8]) -> Result<(), InsertFault> {
        node.content = self.push_bytes(target)?;
        node.size = target.len() as u64;
        Ok(())
    }

    fn node_of(
        &mut self,
        metadata: &Metadata,
        kind: Kind,
        rules: MergeRules,
    ) -> Result<TreeNode, InsertFault> {
        let file_type = match &kind {
            Kind::Directory => FileType::Directory,
            Kind::File { .. } => FileType::Regular,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::CharDevice { .. } => FileType::CharDevice,
            Kind::BlockDevice { .. } => FileType::BlockDevice,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::HardLink(_) | Kind::Whiteout | Kind::Opaque => unreachable!("handled by the caller"),
        };
        let mut node = self.bare_node(metadata, file_type, rules);
        match kind {
            Kind::File { size, payload } => {
                node.size = size;
                node.archived = true;
                let backing = self.backing_index(&payload.backing);
                let dense = match payload.runs.as_slice() {
                    [] => size == 0,
                    [run] => run.file_offset == 0 && run.len == size,
                    _ => false,
                };
                let offset = payload.runs.first().map_or(0, |run| run.backing_offset);
                let runs = (!dense).then(|| payload.runs.into_boxed_slice());
                node.content = self.payloads.len() as u32;
                self.payloads.push(PayloadRecord { backing, offset, runs });
            }
            Kind::Symlink(target) => self.set_symlink_target(&mut node, &target)?,
            Kind::CharDevice { major, minor } | Kind::BlockDevice { major, minor } => {
                node.size = u64::from(major) << 32 | u64::from(minor);
            }
            _ => {}
        }
        Ok(node)
    }

    fn backing_index(&mut self, backing: &Arc<std::fs::File>) -> u32 {
        // Usually the newest backing, because sources are read one after another.
        let found = self.backings.iter().rposition(|known| Arc::ptr_eq(known, backing));
        found.unwrap_or_else(|| {
            self.backings.push(Arc::clone(backing));
            self.backings.len() - 1
        }) as u32
    }

    fn refuse_over_directory(
        &self,
        record: Record,
        new: FileType,
        rules: MergeRules,
    ) -> Result<(), InsertFault> {
        let over_directory = self.nodes[record.node as usize].is_dir();
        let same_layer = record.layer == rules.layer;
        if over_directory && (same_layer || !rules.replace_directories) {
            return Err(InsertFault::ReplacesDirectory { new });
        }
        Ok(())
    }

    fn push_node(&mut self, mut node: TreeNode) -> Result<u32, InsertFault> {
        let index =
            u32::try_from(self.nodes.len()).ok().filter(|&i| i < NONE - 2).ok_or(InsertFault::TooLarge)?;
        if node.is_dir() && node.content == NONE {
            node.content = self.dirs.len() as u32;
            self.dirs.push(Dir { node: index, first_child: NONE });
        }
        self.nodes.push(node);
        Ok(index)
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Result<u32, InsertFault> {
        let at = u32::try_from(self.names.len()).map_err(|_| InsertFault::TooLarge)?;
        self.names.extend_from_slice(bytes);
        Ok(at)
    }

    fn push_record(&mut self, dir: u32, name: &[u8], node: u32, layer: u16) -> Result<u32, InsertFault> {
        // Sources check their names. But the target of a symlink can imply a parent, and targets are
        // unchecked.
        if !(1..=255).contains(&name.len()) || name.contains(&b'/') || name.contains(&0) {
            return Err(InsertFault::BadName { len: name.len() });
        }
        let name_at = self.push_bytes(name)?;
        let index =
            u32::try_from(self.records.len()).ok().filter(|&i| i < NONE).ok_or(InsertFault::TooLarge)?;
        let next = self.dirs[dir as usize].first_child;
        self.records.push(Record { dir, name_at, node, next, layer, name_len: name.len() as u8 });
        self.dirs[dir as usize].first_child = index;
        let (records, names) = (&self.records, &self.names);
        let name_of = |i: u32| {
            let record = &records[i as usize];
            let at = record.name_at as usize;
            (record.dir, &names[at..at + usize::from(record.name_len)])
        };
        let hash = hash_name(dir, name);
        // Replace a dead record of the same name, so that a lookup finds the live one.
        match self.index.find_entry(hash, |&i| name_of(i) == (dir, name)) {
            Ok(mut slot) => *slot.get_mut() = index,
            Err(absent) => {
                absent.into_table().insert_unique(hash, index, |&i| {
                    let (dir, name) = name_of(i);
                    hash_name(dir, name)
                });
            }
        }
        Ok(index)
    }

    fn remove_older_children(&mut self, dir: u32, layer: u16) {
        // Uses a stack in memory: an archive may be nested deeper than a thread's stack allows.
        let mut directories = vec![dir];
        while let Some(dir) = directories.pop() {
            let children: Vec<u32> = self.children(dir).collect();
            directories
                .extend(children.into_iter().filter_map(|record| self.remove_record_if_older(record, layer)));
        }
    }

    /// Removes an entry of an earlier layer. An entry that this layer changed stays, but loses its older
    /// children.
    fn remove_if_older(&mut self, record: u32, layer: u16) {
        if let Some(dir) = self.remove_record_if_older(record, layer) {
            self.remove_older_children(dir, layer);
        }
    }

    /// Removes a name that an earlier layer added. Otherwise, if it is a directory, returns the directory, so
    /// that the caller can check its children.
    fn remove_record_if_older(&mut self, record: u32, layer: u16) -> Option<u32> {
        if self.records[record as usize].layer != layer {
            self.records[record as usize].node = NONE;
            return None;
        }
        let node = &self.nodes[self.records[record as usize].node as usize];
        node.is_dir().then_some(node.content)
    }

    /// The directory and last name of `path`. Creates nothing; returns `None` if a parent does not exist.
    pub(crate) fn find_parent(&self, path: &[u8]) -> Result<Option<(u32, Vec<u8>)>, InsertFault> {
        let (parents, name) = split_last(path);
        let mut walk = ParentWalk::new(parents);
        while let Some(part) = walk.next_part() {
            let Some(record) = self.lookup(walk.dir(), &part) else { return Ok(None) };
            walk.enter(self, record)?;
        }
        Ok(Some((walk.dir(), name.to_vec())))
    }

    /// The directory and last name of `path`. Creates missing parents (mode 755, owner 0:0, the entry's
    /// time).
    fn make_parent(
        &mut self,
        path: &[u8],
        metadata: &Metadata,
        rules: MergeRules,
    ) -> Result<(u32, Vec<u8>), InsertFault> {
        let (parents, name) = split_last(path);
        let mut walk = ParentWalk::new(parents);
        while let Some(part) = walk.next_part() {
            let record = match self.lookup(walk.dir(), &part) {
                Some(record) => {
                    self.records[record as usize].layer = rules.layer;
                    record
                }
                None => {
                    let implied = Metadata {
                        permissions: 0o755,
                        uid: 0,
                        gid: 0,
                        mtime: metadata.mtime,
                        atime: None,
                        ctime: None,
                        crtime: None,
                        xattrs: Vec::new(),
                    };
                    let node = self.bare_node(&implied, FileType::Directory, rules);
                    let (index, _) = self.add_node(walk.dir(), &part, node, rules)?;
                    self.nodes[index as usize].record
                }
            };
            walk.enter(self, record)?;
        }
        Ok((walk.dir(), name.to_vec()))
    }

    fn find_link_target(&self, target: &[u8]) -> Result<u32, InsertFault> {
        let shown = || String::from_utf8_lossy(target).into_owned();
        let record = match self.find_parent(target)? {
            Some((dir, name)) => self.lookup(dir, &name),
            None => None,
        };
        let record = record.ok_or_else(|| InsertFault::LinkTargetMissing { target: shown() })?;
        let node = self.records[record as usize].node;
        if self.nodes[node as usize].is_dir() {
            return Err(InsertFault::LinkToDirectory { target: shown() });
        }
        Ok(node)
    }
}

fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Walks the parents of a path from the root. Follows symlinks within the tree, never out of it.
struct ParentWalk {
    /// Directories from the root to the current one.
    path: Vec<u32>,
    /// Remaining parts, in reverse order.
    todo: Vec<Vec<u8>>,
    symlinks: u32,
}

impl ParentWalk {
    fn new(parents: &[u8]) -> Self {
        let mut walk = Self { path: vec![0], todo: Vec::new(), symlinks: 0 };
        walk.push_parts(parents);
        walk
    }

    fn push_parts(&mut self, path: &[u8]) {
        let parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
        self.todo.extend(parts.map(<[u8]>::to_vec).rev());
    }

    fn dir(&self) -> u32 {
        *self.path.last().unwrap_or(&0)
    }

    fn next_part(&mut self) -> Option<Vec<u8>> {
        loop {
            let part = self.todo.pop()?;
            if part != b".." {
                return Some(part);
            }
            if self.path.len() > 1 {
                self.path.pop();
            }
        }
    }

    /// Enters the directory that the last part named, or follows the symlink's target.
    fn enter(&mut self, tree: &Tree, record: u32) -> Result<(), InsertFault> {
        let node_index = tree.records[record as usize].node;
        let node = &tree.nodes[node_index as usize];
        match node.file_type() {
            FileType::Directory => self.path.push(node.content),
            FileType::Symlink => {
                self.symlinks += 1;
                if self.symlinks > SYMLINKS_MAX {
                    return Err(InsertFault::SymlinkLoop);
                }
                let target = tree.symlink_target(node);
                if target.starts_with(b"/") {
                    self.path.truncate(1);
                }
                self.push_parts(target);
            }
            _ => {
                let parent = String::from_utf8_lossy(&tree.path(node_index)).into_owned();
                return Err(InsertFault::ParentNotDirectory { parent });
            }
        }
        Ok(())
    }
}
