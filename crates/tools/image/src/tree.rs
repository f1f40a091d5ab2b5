//! The tree of the image, merged from all sources. It is compact enough for millions of files: about 120
//! bytes each.
//!
//! Owns names, metadata, the merge rules (later sources over earlier ones, whiteouts, opaque directories) and
//! hard links. Does **not** own inode numbers, block addresses or bytes on disk (see [`crate::plan`]), or the
//! reading of sources (see [`crate::source`]).
//!
//! Nodes are inodes, and records are names. Both are stored in flat vectors and refer to each other by index:
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
//! 2. A record is live if its `node` is not [`NONE`]. Dead records stay in their directory's chain.
//! 3. No two live records of a directory have the same name.
//! 4. The tree consists of what is reachable from the root. Nodes that a replacement cut off are never
//!    visited.
//! 5. A directory has exactly one live record, except the root, which has none.

mod insert;
mod seal;

use std::fs::File;
use std::sync::Arc;

use extant_ondisk::filetype::FileType;
use hashbrown::{HashMap, HashTable};

use crate::source::entry::{DataRun, Time, Xattr};

pub use insert::{InsertFault, MergeRules, Placement};
pub use seal::Sealed;

/// The index that means "none".
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
    /// The record of one of its names; [`NONE`] for the root.
    pub record: u32,
    /// Index into [`Tree::xattr_sets`]; 0 is the empty set.
    pub xattrs: u32,
    /// Index into [`Tree::times`], or [`NONE`]: the times besides mtime, if the source records them.
    pub times: u32,
    /// Depends on the type. Directory: index into [`Tree::dirs`]. Symlink: offset of the target in
    /// [`Tree::names`]. File: its [`Content`].
    pub content: u32,
    /// Index into [`Tree::sparse`] for a file with holes from a directory source; otherwise [`NONE`].
    pub sparse: u32,
    /// Number of links, counted when the tree is sealed.
    pub links: u32,
    /// Type and permissions.
    pub mode: u16,
    /// The content comes from an archive (index into [`Tree::payloads`]) instead of a directory source.
    pub archived: bool,
}

impl TreeNode {
    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode)
    }

    /// Major and minor number of a device; (0, 0) of other files.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        match self.file_type() {
            FileType::CharDevice | FileType::BlockDevice => ((self.size >> 32) as u32, self.size as u32),
            _ => (0, 0),
        }
    }

    /// Last change of the content.
    #[must_use]
    pub fn mtime(&self) -> Time {
        Time { seconds: self.mtime_seconds, nanos: self.mtime_nanos }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }
}

/// One name in a directory.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// The directory: index into [`Tree::dirs`].
    pub dir: u32,
    /// Offset of the name in [`Tree::names`].
    pub name_at: u32,
    /// The node; [`NONE`] if the record is dead.
    pub node: u32,
    /// Next record of the same directory.
    pub next: u32,
    /// The source or layer that changed it last.
    pub layer: u16,
    /// Length of the name in bytes, 1 to 255.
    pub name_len: u8,
}

/// A directory and the chain of its children.
#[derive(Debug, Clone, Copy)]
pub struct Dir {
    /// The directory's node.
    pub node: u32,
    /// The newest record, which is the head of the chain.
    pub first_child: u32,
}

/// Location of the bytes of a file from an archive.
#[derive(Debug, Clone)]
pub struct PayloadRecord {
    /// Index into [`Tree::backings`].
    pub backing: u32,
    /// Offset of the first byte; only for a file without holes.
    pub offset: u64,
    /// Data runs of a file with holes.
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

/// The source of a regular file's bytes.
#[derive(Debug, Clone, Copy)]
pub enum Content<'t> {
    /// The directory source with this index; the file is at the node's own path.
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
    /// Distinct sets of extended attributes, each sorted by name. The first set is empty.
    pub xattr_sets: Vec<Vec<Xattr>>,
    /// Locations of contents from archives.
    pub payloads: Vec<PayloadRecord>,
    /// Files that contain the contents of archives.
    pub backings: Vec<Arc<File>>,
    /// Data runs (offset, length) of files with holes from directory sources.
    pub sparse: Vec<Box<[(u64, u64)]>>,
    /// Times besides mtime, if the source's times are kept.
    pub times: Vec<ExtraTimes>,
    /// For files of directory sources that got an additional name from another source: the name that opens
    /// them in their own source.
    source_names: HashMap<u32, u32>,
    index: HashTable<u32>,
    xattr_ids: HashMap<Vec<Xattr>, u32>,
}

impl Tree {
    /// A tree with only a root directory (mode 755, owner 0:0, time 0).
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

    /// The times of a node besides mtime. They equal it if the source's times are not kept.
    #[must_use]
    pub fn times_of(&self, node: &TreeNode) -> ExtraTimes {
        let mtime = node.mtime();
        match node.times {
            NONE => ExtraTimes { atime: mtime, ctime: mtime, crtime: mtime },
            times => self.times[times as usize],
        }
    }

    /// The source of a regular file's bytes.
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

    /// The name that opens a file of a directory source in that source. It is never a name from a later
    /// source.
    #[must_use]
    pub fn source_record(&self, node: u32) -> &Record {
        let own = self.nodes[node as usize].record;
        &self.records[*self.source_names.get(&node).unwrap_or(&own) as usize]
    }

    /// The path of a name in a directory, whether or not the name exists.
    #[must_use]
    pub fn path_in(&self, dir: u32, name: &[u8]) -> Vec<u8> {
        let mut path = self.path(self.dirs[dir as usize].node);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// The live records of a directory, newest first.
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

    /// The live record of `name` in a directory, if there is one.
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
