//! The tree of a file system as a value, and the difference of two trees.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::op::{Bytes, Rdev, Time, short};

/// Type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

/// The object that a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelNode {
    /// Any number that the names of one object share, and other objects do not have. Only this is compared,
    /// not the number.
    pub ino: u64,
    /// Type.
    pub kind: Kind,
    /// Permission bits (07777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Bytes of a file, or length of a symlink's target; 0 for other objects, including directories.
    pub size: u64,
    /// Device number; 0:0 if it is no device.
    pub rdev: Rdev,
    /// Symlink target; empty if it is no symlink.
    pub target: Bytes,
    /// Keys are full names; ACLs are in the format of the system calls.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Access time; `None` if it is unknown and not compared.
    pub atime: Option<Time>,
    /// Modification time; `None` if it is unknown and not compared.
    pub mtime: Option<Time>,
}

/// All names of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    /// Keys are paths relative to the root, `b"a/b"`; the root is `b""`.
    pub nodes: BTreeMap<Vec<u8>, ModelNode>,
}

impl Tree {
    /// The first name of each object, in byte order.
    fn first_names(&self) -> BTreeMap<u64, &[u8]> {
        let mut names = BTreeMap::new();
        for (path, node) in &self.nodes {
            names.entry(node.ino).or_insert(path.as_slice());
        }
        names
    }
}

/// One line for each difference, such as `"a/b: mode: 0o644 != 0o600"`; none for equal trees.
///
/// A time is compared if both trees have it. Hard links are compared by which names lead to the same object.
#[must_use]
pub fn diff(left: &Tree, right: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    let (left_names, right_names) = (left.first_names(), right.first_names());
    for (path, node) in &left.nodes {
        let place = short(path);
        let Some(other) = right.nodes.get(path) else {
            lines.push(format!("{place}: {:?} only on the left", node.kind));
            continue;
        };
        let mut lines = Lines { place: &place, lines: &mut lines };
        lines.compare("kind", &node.kind, &other.kind);
        if node.mode != other.mode {
            lines.add("mode", &format!("{:#o} != {:#o}", node.mode, other.mode));
        }
        lines.compare("uid", &node.uid, &other.uid);
        lines.compare("gid", &node.gid, &other.gid);
        lines.compare("nlink", &node.nlink, &other.nlink);
        lines.compare("size", &node.size, &other.size);
        lines.compare("rdev", &node.rdev, &other.rdev);
        lines.compare("target", &node.target, &other.target);
        lines.xattrs(&node.xattrs, &other.xattrs);
        lines.time("atime", node.atime, other.atime);
        lines.time("mtime", node.mtime, other.mtime);
        let (first, other_first) = (left_names[&node.ino], right_names[&other.ino]);
        if first != other_first {
            lines.add("same object as", &format!("{} != {}", short(first), short(other_first)));
        }
    }
    for (path, node) in right.nodes.iter().filter(|(path, _)| !left.nodes.contains_key(*path)) {
        lines.push(format!("{}: {:?} only on the right", short(path), node.kind));
    }
    lines
}

/// Collects the lines for one name.
struct Lines<'a> {
    place: &'a str,
    lines: &'a mut Vec<String>,
}

impl Lines<'_> {
    fn add(&mut self, what: &str, text: &str) {
        self.lines.push(format!("{}: {what}: {text}", self.place));
    }

    fn compare<T: PartialEq + Debug>(&mut self, what: &str, left: &T, right: &T) {
        if left != right {
            self.add(what, &format!("{left:?} != {right:?}"));
        }
    }

    fn time(&mut self, what: &str, left: Option<Time>, right: Option<Time>) {
        if let (Some(left), Some(right)) = (left, right) {
            self.compare(what, &left, &right);
        }
    }

    fn xattrs(&mut self, left: &BTreeMap<Bytes, Bytes>, right: &BTreeMap<Bytes, Bytes>) {
        if left == right {
            return;
        }
        for name in left.keys().chain(right.keys().filter(|name| !left.contains_key(*name))) {
            let (value, other) = (left.get(name), right.get(name));
            if value == other {
                continue;
            }
            let text = |value: Option<&Bytes>| {
                value.map_or("none".to_owned(), |value| format!("{value:?}, {} bytes", value.0.len()))
            };
            self.add(&format!("xattr {}", short(&name.0)), &format!("{} != {}", text(value), text(other)));
        }
    }
}
