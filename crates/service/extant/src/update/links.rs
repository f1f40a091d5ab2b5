//! Which inode a file with several names keeps.
//!
//! A file of the sources with several names needs one inode for all of them. It is the first inode that one
//! of the names has in the image, if it has the right type and no other file takes it.

use std::collections::{BTreeMap, HashMap, HashSet};

use extant_base::Ino;
use extant_image::tree::{NONE, ROOT, Tree};
use extant_ondisk::filetype::FileType;
use extant_volume::{Fault, Follow, InodeRef, Refusal, Volume};

use crate::diff::{Change, Difference, Node, Status};

/// The inode at a path in the image, if there is one. No directory in such a path is a symbolic link.
pub(super) fn find(volume: &Volume, path: &[u8]) -> Result<Option<InodeRef>, Fault> {
    match volume.names().resolve(&[b"/", path].concat(), Follow::NotTheLast) {
        Ok(inode) => Ok(Some(inode)),
        Err(fault) if fault.is(Refusal::NotFound) || fault.is(Refusal::NotDirectory) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The node at a path in the tree.
pub(super) fn node_at(tree: &Tree, path: &[u8]) -> Option<u32> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).try_fold(ROOT, |node, part| {
        let node = &tree.nodes[node as usize];
        let record = tree.lookup(node.is_dir().then_some(node.content)?, part)?;
        Some(tree.records[record as usize].node)
    })
}

/// The files whose names change, and their inodes.
#[derive(Default)]
pub(super) struct Links {
    /// By node: the inode, once it has one.
    inodes: HashMap<u32, Option<Ino>>,
    /// The node that keeps an inode.
    takers: HashMap<Ino, u32>,
    /// Files whose content is complete.
    begun: HashSet<u32>,
}

impl Links {
    /// Chooses the inodes of all files with several names that have a changed one.
    pub(super) fn of(volume: &Volume, tree: &Tree, changes: &[Change]) -> Self {
        let mut links = Self::default();
        // In the order of the first changed path, so that the choice does not depend on the order of reading.
        let mut names: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        let mut order = Vec::new();
        for change in changes {
            let Some(Node::Tree(node)) = change.node else { continue };
            let of = &tree.nodes[node as usize];
            let is_split = change.differences.iter().any(|what| matches!(what, Difference::Links { .. }));
            let is_concerned = of.links > 1 && change.status != Status::Modified
                || is_split
                || of.links > 1 && !change.differences.is_empty();
            if !of.is_dir() && is_concerned && names.insert(node, Vec::new()).is_none() {
                order.push(node);
            }
        }
        if order.is_empty() {
            return links;
        }
        for record in tree.records.iter().filter(|record| record.node != NONE) {
            if let Some(paths) = names.get_mut(&record.node) {
                let path = tree.path_in(record.dir, tree.name(record));
                // A removed directory still has its records.
                if node_at(tree, &path) == Some(record.node) {
                    paths.push(path);
                }
            }
        }
        for node in order {
            let mut paths = names.remove(&node).unwrap_or_default();
            paths.sort_by(|one, other| crate::diff::path_order(one, other));
            let found = paths.iter().find_map(|path| links.candidate(volume, tree, node, path));
            if let Some(ino) = found {
                links.takers.insert(ino, node);
            }
            links.inodes.insert(node, found);
        }
        links
    }

    /// The inode at this path, if the node can keep it.
    fn candidate(&self, volume: &Volume, tree: &Tree, node: u32, path: &[u8]) -> Option<Ino> {
        let of = &tree.nodes[node as usize];
        let inode = find(volume, path).ok()??;
        let is_fit = inode.kind() == of.file_type()
            && match of.file_type() {
                FileType::Symlink => {
                    volume.files().read_link(&inode).is_ok_and(|target| target == tree.symlink_target(of))
                }
                _ => volume.attributes().stat(&inode).device == of.device(),
            };
        (is_fit && !self.takers.contains_key(&inode.ino())).then(|| inode.ino())
    }

    /// The inode of a file whose names change: `Some(None)` if it must be made. `None` for other files.
    pub(super) fn inode_of(&self, node: u32) -> Option<Option<Ino>> {
        self.inodes.get(&node).copied()
    }

    /// Whether another file keeps this inode.
    pub(super) fn is_taken(&self, ino: Option<Ino>, node: u32) -> bool {
        ino.and_then(|ino| self.takers.get(&ino)).is_some_and(|taker| *taker != node)
    }

    /// Records the new inode of a file.
    pub(super) fn made(&mut self, node: u32, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&node) {
            *inode = Some(ino);
            self.takers.insert(ino, node);
            self.begun.insert(node);
        }
    }

    /// Whether the content of this file is still to be written. True once for a file with several names.
    pub(super) fn begins(&mut self, node: u32) -> bool {
        !self.inodes.contains_key(&node) || self.begun.insert(node)
    }
}
