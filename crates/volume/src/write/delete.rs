//! Deleting inodes, at once or by steps; cutting files; what a crash left to do.

use std::sync::Arc;

use base::Ino;
use inode::{Change, Node, Slot, Values};
use ondisk::filetype::FileType;
use ondisk::time::Timestamp;

use super::{NAME_CREDITS, Writer};
use crate::Fault;

/// What became of the orphans that a crash left.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Orphaned {
    /// Files cut at their size.
    pub(crate) cut: u64,
    /// Inodes deleted.
    pub(crate) deleted: u64,
    /// Those that could not be, and stay.
    pub(crate) failed: u64,
}

/// Blocks that are freed in the transaction that took the last name.
const SHORT_EXTENTS: u16 = 4;

impl Writer {
    /// Can it be deleted within the credits of an operation on names?
    pub(super) fn is_short(&self, node: &Node) -> bool {
        // Whoever has a handle does not wait for what is on its way.
        if node.data().is_some_and(|data| !data.pages.is_clean()) {
            return false;
        }
        let values = node.values();
        let is_short =
            values.fields.file_acl == 0 && (values.fields.blocks == 0 || short_tree(&values.map()));
        drop(values);
        // What cannot be read is told by who deletes it.
        is_short && self.value_entries(node).is_ok_and(|entries| entries.is_empty())
    }

    /// Deletes an inode without links: what it has in blocks by as many transactions as it takes, then the inode.
    /// The caller holds its operation lock; it is an orphan.
    pub(super) fn delete(&self, node: &Arc<Node>) -> Result<(), Fault> {
        self.drop_data(node);
        self.release_values(node)?;
        self.cut_from(node, 0)?;
        self.run(NAME_CREDITS, |change| self.delete_now(change, node))
    }

    /// Deletes an inode within one transaction: it has few blocks left.
    pub(super) fn delete_now(&self, change: &Change<'_>, node: &Arc<Node>) -> Result<(), Fault> {
        // Asked before the attribute block goes: what i_blocks counts tells how a link is kept.
        let has_map = {
            let values = node.values();
            values.has_map(self.shared()) && values.fields.blocks != 0
        };
        self.release_xattrs(change, node)?;
        if has_map {
            while !change.cut(node, 0)? {}
        }
        self.keeper.orphans.remove(change.live, node, change.edit)?;
        let was_dir = {
            let mut values = change.live.edit(node, change.edit.transaction());
            self.end(&mut values, self.now());
            values.kind() == FileType::Directory
        };
        Ok(self.keeper.alloc.free_inode(change.edit, node.ino(), was_dir)?)
    }

    /// The values of an inode that was deleted.
    ///
    /// It stays in memory, dead, until the commit has written it, or its number is used again: the table still has it alive,
    /// and somebody with an old number in hand would find it there.
    pub(super) fn end(&self, values: &mut Values, now: Timestamp) {
        values.fields.links = 0;
        values.fields.dtime = now.seconds as u32;
        values.fields.size = 0;
        values.dir = None;
        values.drop_data();
    }

    /// Frees all blocks from logical block `from` on.
    pub(super) fn cut_from(&self, node: &Arc<Node>, from: u64) -> Result<(), Fault> {
        if !node.values().has_map(self.shared()) {
            return Ok(());
        }
        let credits = Change::cut_credits(self.shared());
        while !self.run(credits, |change| Ok(change.cut(node, from)?))? {}
        Ok(())
    }

    /// What a crash left: files to be cut at their size, inodes to be deleted.
    pub(super) fn clean_orphans(&self, listed: &[Ino], in_file: &[(Slot, Ino)]) -> Orphaned {
        let (mut cut, mut deleted, mut failed) = (0, 0, 0);
        let mut before = Ino(0);
        let mut nodes = Vec::new();
        for ino in listed {
            let Ok(node) = self.live().get_orphan(*ino) else { break };
            if self.shared().is_special(*ino) {
                break;
            }
            self.keeper.orphans.adopt_listed(&node, before);
            before = *ino;
            nodes.push(node);
        }
        for (slot, ino) in in_file {
            // Slots that lead to nothing are left out, and stay.
            let Ok(node) = self.live().get_orphan(*ino) else { continue };
            if self.shared().is_special(*ino) {
                continue;
            }
            self.keeper.orphans.adopt_slot(&node, *slot);
            nodes.push(node);
        }
        for node in nodes {
            let _operation = node.operation.write();
            let links = node.values().fields.links;
            let done = if links == 0 {
                deleted += 1;
                self.delete(&node)
            } else {
                cut += 1;
                self.finish_cut(&node)
            };
            // What cannot be finished stays tracked, for e2fsck.
            if let Err(fault) = &done {
                failed += 1;
                self.note(fault);
            }
        }
        Orphaned { cut, deleted, failed }
    }
}

/// Is the tree nothing but a root with few extents?
fn short_tree(map: &mapping::FileMap) -> bool {
    let entries = u16::from_le_bytes([map.i_block[2], map.i_block[3]]);
    map.extents && map.depth() == 0 && entries <= SHORT_EXTENTS
}
