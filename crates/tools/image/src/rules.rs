//! Rules by path: owners, modes, devices and links that the user specifies, instead of a source.
//!
//! Owns: the meaning of a rule, its application to a tree, and the text formats of tables: device tables of
//! genext2fs (makedevs, Buildroot) and mtree(5). Does **not** own: the syntax of single rules on the command
//! line, or the tree.
//!
//! ```text
//! # path         type mode uid gid major minor start inc count        /set type=file uid=0 gid=0
//! /dev           d    755  0   0   -     -     -     -   -            ./usr/bin/su mode=4755
//! /dev/console   c    600  0   0   5     1     -     -   -            ./dev/console type=char mode=0600 device=native,5,1
//! /dev/tty       c    666  0   0   4     0     0     1   4            ./lib type=link link=usr/lib
//! ```
//! Both formats work the same way: an entry that does not exist is created, except for a regular file,
//! because a table has no file contents. The entry then gets the mode and owner of the line.
//!
//! Invariants
//! 1. Rules are applied in order, after owners are mapped: their ids are those of the image.
//! 2. A rule that matches nothing is a fault, unless it is optional.
//! 3. Every fault names the line or the option.
//!
//! Source: genext2fs(8); the Buildroot manual, "Makedev syntax documentation"; mtree(5) of FreeBSD.

mod mtree;
mod table;

use std::fmt;

use extant_ondisk::filetype::FileType;

use crate::exclude::{ExcludeFault, Excludes};
use crate::source::entry::{Entry, Kind, Metadata, Time};
use crate::source::fault::ShownPath;
use crate::tree::{InsertFault, MergeRules, NONE, ROOT, Tree};

pub use mtree::parse as parse_mtree;
pub use table::parse as parse_device_table;

/// A rule that cannot be parsed or applied, with its location (a file and line, or an option) and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct RuleFault {
    /// `table.txt:3`, `--chown /srv=0:0`.
    pub place: String,
    /// The finding, and the remedy.
    pub why: String,
}

/// The paths that a rule applies to.
#[derive(Debug, Clone)]
pub enum Paths {
    /// One path, without a leading slash; empty for the root.
    One(Vec<u8>),
    /// A directory and everything below it.
    Tree(Vec<u8>),
    /// All paths that match a pattern.
    Matching(Excludes),
}

impl Paths {
    /// Parses the value of an option: a path from the root of the image, with the patterns of `--exclude`.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub fn parse(text: &[u8]) -> Result<Self, ExcludeFault> {
        let path = plain(text);
        if !path.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\')) {
            return Ok(Self::One(path));
        }
        Excludes::new([[b"/", path.as_slice()].concat()]).map(Self::Matching)
    }
}

/// A path without empty components and dots.
fn plain(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.collect::<Vec<_>>().join(&b'/')
}

/// The entry that a rule requires at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Make {
    /// Any existing entry.
    Nothing,
    /// An existing regular file.
    File,
    /// A directory, created if it does not exist.
    Directory,
    /// A device, which replaces anything except a directory.
    Device {
        /// Whether it is a block device; otherwise it is a character device.
        block: bool,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
}

type ModeOf = Box<dyn Fn(u16, bool) -> u16 + Send + Sync>;

/// A new mode.
pub enum Mode {
    /// Sets these twelve bits.
    Bits(u16),
    /// Computes the mode from the old one. The second argument is whether the file is a directory.
    Change(ModeOf),
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(bits) => write!(f, "{bits:o}"),
            Self::Change(_) => f.write_str("change"),
        }
    }
}

/// One rule. A field that is `None` changes nothing.
#[derive(Debug)]
pub struct Rule {
    /// Its location, for messages.
    pub place: String,
    /// The paths that it applies to.
    pub paths: Paths,
    /// The entry that it requires.
    pub make: Make,
    /// New mode.
    pub mode: Option<Mode>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New time of the last change.
    pub time: Option<Time>,
    /// Whether the rule may match nothing.
    pub optional: bool,
}

impl Rule {
    /// A rule without changes.
    #[must_use]
    pub fn new(place: impl Into<String>, paths: Paths) -> Self {
        Self {
            place: place.into(),
            paths,
            make: Make::Nothing,
            mode: None,
            uid: None,
            gid: None,
            time: None,
            optional: false,
        }
    }

    fn fault(&self, why: impl fmt::Display) -> RuleFault {
        RuleFault { place: self.place.clone(), why: why.to_string() }
    }
}

/// Applies rules in order. A new entry without a time in its rule gets the time of the newest file.
///
/// # Errors
/// The first rule that cannot be applied.
pub fn apply(tree: &mut Tree, rules: &[Rule]) -> Result<(), RuleFault> {
    if rules.is_empty() {
        return Ok(());
    }
    let live = tree.nodes.iter().filter(|node| node.links > 0);
    let newest = live.map(|node| node.mtime_seconds).max().unwrap_or(0);
    for rule in rules {
        let nodes = match &rule.paths {
            Paths::One(path) => match rule.make {
                Make::Nothing | Make::File => {
                    find(tree, path).map_err(|fault| rule.fault(fault))?.into_iter().collect()
                }
                _ => vec![made(tree, rule, path, newest).map_err(|fault| rule.fault(fault))?],
            },
            Paths::Tree(path) => match find(tree, path).map_err(|fault| rule.fault(fault))? {
                Some(top) => walk(tree, top, path, &mut |_| true),
                None => Vec::new(),
            },
            Paths::Matching(pattern) => walk(tree, ROOT, b"", &mut |path| pattern.is_excluded(path)),
        };
        if nodes.is_empty() && !rule.optional {
            return Err(
                rule.fault("nothing in the image has this path; rules are for what the sources brought")
            );
        }
        for index in nodes {
            apply_rule(tree, rule, index)?;
        }
    }
    Ok(())
}

/// Applies a rule to a node.
fn apply_rule(tree: &mut Tree, rule: &Rule, index: u32) -> Result<(), RuleFault> {
    let is_dir = tree.nodes[index as usize].is_dir();
    let file_type = tree.nodes[index as usize].file_type();
    if rule.make == Make::File && file_type != FileType::Regular {
        let path = tree.path(index);
        return Err(rule.fault(format!("/{} is a {file_type}, no regular file", ShownPath(&path))));
    }
    let node = &mut tree.nodes[index as usize];
    let mode = match &rule.mode {
        // The mode of a symbolic link has no effect; it stays unchanged.
        _ if file_type == FileType::Symlink => None,
        Some(Mode::Bits(bits)) => Some(*bits),
        Some(Mode::Change(change)) => Some(change(node.mode & 0o7777, is_dir)),
        None => None,
    };
    if let Some(mode) = mode {
        node.mode = node.mode & !0o7777 | mode & 0o7777;
    }
    node.uid = rule.uid.unwrap_or(node.uid);
    node.gid = rule.gid.unwrap_or(node.gid);
    if let Some(time) = rule.time {
        (node.mtime_seconds, node.mtime_nanos) = (time.seconds, time.nanos);
    }
    Ok(())
}

/// The node at a path. Does not follow a symlink in the last component.
fn find(tree: &Tree, path: &[u8]) -> Result<Option<u32>, InsertFault> {
    if path.is_empty() {
        return Ok(Some(ROOT));
    }
    let Some((dir, name)) = tree.find_parent(path)? else { return Ok(None) };
    Ok(tree.lookup(dir, &name).map(|record| tree.records[record as usize].node))
}

/// The node at a path, created if it does not exist or is of another kind.
fn made(tree: &mut Tree, rule: &Rule, path: &[u8], newest: i64) -> Result<u32, InsertFault> {
    let (kind, mode) = match rule.make.clone() {
        Make::Directory | Make::Nothing | Make::File => (Kind::Directory, 0o755),
        Make::Device { block: true, major, minor } => (Kind::BlockDevice { major, minor }, 0o600),
        Make::Device { block: false, major, minor } => (Kind::CharDevice { major, minor }, 0o600),
        Make::Fifo => (Kind::Fifo, 0o600),
        Make::Socket => (Kind::Socket, 0o600),
        Make::Symlink(target) => (Kind::Symlink(target), 0o777),
    };
    if let Some(there) = find(tree, path)?
        && is_already(tree, there, &kind)
    {
        return Ok(there);
    }
    let metadata = Metadata {
        permissions: mode,
        uid: 0,
        gid: 0,
        mtime: rule.time.unwrap_or(Time { seconds: newest, nanos: 0 }),
        atime: None,
        ctime: None,
        crtime: None,
        xattrs: Vec::new(),
    };
    let rules = MergeRules { layer: u16::MAX, replace_directories: false, keep_times: false };
    tree.insert(Entry { path: path.to_vec(), metadata, kind }, rules)?;
    Ok(find(tree, path)?.unwrap_or(ROOT))
}

/// Whether a node already is what the rule requires. It then keeps the properties that the rule does not set.
fn is_already(tree: &Tree, node: u32, kind: &Kind) -> bool {
    let node = &tree.nodes[node as usize];
    let number = |major: u32, minor: u32| u64::from(major) << 32 | u64::from(minor);
    match (kind, node.file_type()) {
        (Kind::Directory, FileType::Directory)
        | (Kind::Fifo, FileType::Fifo)
        | (Kind::Socket, FileType::Socket) => true,
        (Kind::CharDevice { major, minor }, FileType::CharDevice)
        | (Kind::BlockDevice { major, minor }, FileType::BlockDevice) => node.size == number(*major, *minor),
        (Kind::Symlink(target), FileType::Symlink) => tree.symlink_target(node) == target,
        _ => false,
    }
}

/// All nodes from `top` down with a wanted path, each once.
fn walk(tree: &Tree, top: u32, path: &[u8], wanted: &mut dyn FnMut(&[u8]) -> bool) -> Vec<u32> {
    let mut found = Vec::new();
    if wanted(path) {
        found.push(top);
    }
    let mut open = Vec::new();
    if tree.nodes[top as usize].is_dir() {
        open.push((tree.nodes[top as usize].content, path.to_vec()));
    }
    while let Some((dir, path)) = open.pop() {
        for record in tree.children(dir) {
            let record = &tree.records[record as usize];
            debug_assert!(record.node != NONE);
            let mut child = path.clone();
            if !child.is_empty() {
                child.push(b'/');
            }
            child.extend_from_slice(tree.name(record));
            if wanted(&child) {
                found.push(record.node);
            }
            let node = &tree.nodes[record.node as usize];
            if node.is_dir() {
                open.push((node.content, child));
            }
        }
    }
    // Change a file with several names only once: a change of mode may depend on the old mode.
    found.sort_unstable();
    found.dedup();
    found
}
