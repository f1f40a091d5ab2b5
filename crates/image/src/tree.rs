//! The tree to be built, merged from all sources, compact enough for millions of files (about 120 bytes
//! each).
//!
//! Owns names, metadata, the merge rules (later sources on top, whiteouts, opaque directories) and hard
//! links. Does **not** own inode numbers, places or bytes on disk (see [`crate::plan`]), nor reading sources
//! (see [`crate::source`]).
//!
//! Nodes are inodes, records are names. Both live in flat vectors and point to each other by index:
//!
//! ```text
//! Dir { first_child } -> Record { name, node, next } -> Record ...
//!                                   |
//!                                   v
//!                                 TreeNode { mode, size, ..., record: one of its names }
//! ```
//!
//! Invariants
//! 1. TreeNode 0 is the root directory; it has no record.
//! 2. A record is live when its `node` is not [`NONE`]; dead records stay in their directory's chain.
//! 3. No two live records of one directory have the same name.
//! 4. Only what is reachable from the root exists; whatever a replacement cut off is simply never visited.
//! 5. A directory has exactly one live record (the root none).

mod insert;
mod seal;

use std::fs::File;
use std::sync::Arc;

use extant_ondisk::filetype::FileType;
use hashbrown::{HashMap, HashTable};

use crate::source::entry::{DataRun, Time, Xattr};

pub use insert::{InsertFault, MergeRules, Placement};
pub use seal::Sealed;

/// "None" for indexes.
pub const NONE: u32 = u32::MAX;

/// The root directory's node.
pub const ROOT: u32 = 0;

/// One inode.
#[derive(Debug, Clone)]
pub struct TreeNode {
    /// Size of a file or symlink in bytes; device number (`major << 32 | minor`) of a device.
    pub size: u64,
    /// Last change of the content: seconds.
    pub mtime_seconds: i64,
    /// Last change of the content: nanoseconds.
    pub mtime_nanos: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// One of its names; [`NONE`] for the root.
    pub record: u32,
    /// Index into [`Tree::xattr_sets`]; 0 is the empty set.
    pub xattrs: u32,
    /// Index into [`Tree::times`], or [`NONE`]: the times that the source knows besides mtime.
    pub times: u32,
    /// By type: a directory's index in [`Tree::dirs`]; a symlink's target in [`Tree::names`]; a file's
    /// [`Content`].
    pub content: u32,
    /// A directory source's file with holes: index into [`Tree::sparse`]; else [`NONE`].
    pub sparse: u32,
    /// Links, counted when the tree is sealed.
    pub links: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Content comes from an archive (index into [`Tree::payloads`]), not from a directory source.
    pub archived: bool,
}

impl TreeNode {
    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode)
    }

    /// Is it a directory?
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }
}

/// One name in one directory.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Directory that holds it: index into [`Tree::dirs`].
    pub dir: u32,
    /// Where the name begins in [`Tree::names`].
    pub name_at: u32,
    /// The node; [`NONE`] when the record is dead.
    pub node: u32,
    /// Next record of the same directory.
    pub next: u32,
    /// The source or layer that touched it last.
    pub layer: u16,
    /// Length of the name, 1 to 255.
    pub name_len: u8,
}

/// A directory's children.
#[derive(Debug, Clone, Copy)]
pub struct Dir {
    /// Its node.
    pub node: u32,
    /// Newest record, the head of the chain.
    pub first_child: u32,
}

/// Where an archive's file has its bytes.
#[derive(Debug, Clone)]
pub struct PayloadRecord {
    /// Index into [`Tree::backings`].
    pub backing: u32,
    /// A dense file: where its bytes begin.
    pub offset: u64,
    /// A sparse file's runs.
    pub runs: Option<Box<[DataRun]>>,
}

/// Times besides mtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtraTimes {
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth.
    pub crtime: Time,
}

/// Where the bytes of a regular file come from.
#[derive(Debug, Clone, Copy)]
pub enum Content<'t> {
    /// A file of the directory source with this index, at the node's own path.
    Source(u32),
    /// A backing file.
    Archive(&'t PayloadRecord),
}

/// The merged tree.
#[derive(Debug, Default)]
pub struct Tree {
    /// All nodes; [`ROOT`] first.
    pub nodes: Vec<TreeNode>,
    /// All names.
    pub records: Vec<Record>,
    /// All directories.
    pub dirs: Vec<Dir>,
    /// Bytes of names and symlink targets.
    pub names: Vec<u8>,
    /// Distinct sets of extended attributes, each sorted by name; the first is empty.
    pub xattr_sets: Vec<Vec<Xattr>>,
    /// Contents from archives.
    pub payloads: Vec<PayloadRecord>,
    /// Files that hold archive contents.
    pub backings: Vec<Arc<File>>,
    /// Data runs (offset, length) of sparse files of directory sources.
    pub sparse: Vec<Box<[(u64, u64)]>>,
    /// Times besides mtime, where the source's are kept.
    pub times: Vec<ExtraTimes>,
    /// Files of directory sources that another source gave a further name: the name by which they can be
    /// opened.
    source_names: HashMap<u32, u32>,
    index: HashTable<u32>,
    xattr_ids: HashMap<Vec<Xattr>, u32>,
}

impl Tree {
    /// A tree with a bare root directory (mode 755, owner 0:0, time 0).
    #[must_use]
    pub fn new() -> Self {
        let mut tree = Self { xattr_sets: vec![Vec::new()], ..Self::default() };
        tree.xattr_ids.insert(Vec::new(), 0);
        tree.dirs.push(Dir { node: ROOT, first_child: NONE });
        tree.nodes.push(TreeNode {
            size: 0,
            mtime_seconds: 0,
            mtime_nanos: 0,
            uid: 0,
            gid: 0,
            record: NONE,
            xattrs: 0,
            times: NONE,
            content: 0,
            sparse: NONE,
            links: 2,
            mode: FileType::Directory.mode_bits() | 0o755,
            archived: false,
        });
        tree
    }

    /// A record's name.
    #[must_use]
    pub fn name(&self, record: &Record) -> &[u8] {
        let at = record.name_at as usize;
        &self.names[at..at + usize::from(record.name_len)]
    }

    /// A symlink's target.
    #[must_use]
    pub fn symlink_target(&self, node: &TreeNode) -> &[u8] {
        let at = node.content as usize;
        &self.names[at..at + node.size as usize]
    }

    /// Where a regular file's bytes come from.
    #[must_use]
    pub fn content(&self, node: &TreeNode) -> Content<'_> {
        if node.archived {
            Content::Archive(&self.payloads[node.content as usize])
        } else {
            Content::Source(node.content)
        }
    }

    /// A node's path below the root, components joined by `/`; empty for the root.
    #[must_use]
    pub fn path(&self, node: u32) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = self.nodes[node as usize].record;
        while at != NONE {
            let record = &self.records[at as usize];
            parts.push(self.name(record));
            at = self.nodes[self.dirs[record.dir as usize].node as usize].record;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// The name by which a file of a directory source can be opened there: not one that a later source gave
    /// it.
    #[must_use]
    pub fn source_record(&self, node: u32) -> &Record {
        let own = self.nodes[node as usize].record;
        &self.records[*self.source_names.get(&node).unwrap_or(&own) as usize]
    }

    /// The path of a name that is or would be in a directory.
    #[must_use]
    pub fn path_in(&self, dir: u32, name: &[u8]) -> Vec<u8> {
        let mut path = self.path(self.dirs[dir as usize].node);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Live records of a directory, newest first.
    pub fn children(&self, dir: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.dirs[dir as usize].first_child;
        std::iter::from_fn(move || {
            while at != NONE {
                let here = at;
                let record = &self.records[here as usize];
                at = record.next;
                if record.node != NONE {
                    return Some(here);
                }
            }
            None
        })
    }

    /// The live record of `name` in a directory.
    #[must_use]
    pub fn lookup(&self, dir: u32, name: &[u8]) -> Option<u32> {
        self.index
            .find(hash_name(dir, name), |&i| {
                let record = &self.records[i as usize];
                record.dir == dir && self.name(record) == name
            })
            .copied()
            .filter(|&i| self.records[i as usize].node != NONE)
    }
}

fn hash_name(dir: u32, name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name, u64::from(dir))
}
