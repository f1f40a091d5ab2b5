//! Deleting inodes, at once or by steps; cutting files; what a crash left to do.

use std::collections::HashSet;
use std::sync::Arc;

use extant_base::Ino;
use extant_inode::{Change, LiveInode, Slot, Values};
use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;

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
    /// The list leads to what is no orphan: what follows there is not known.
    pub(crate) is_broken: bool,
}

/// Extents whose blocks are freed in the transaction that took the last name.
const SHORT_EXTENTS: u16 = 4;
/// Blocks of them at most, where each takes a record in the journal.
const JOURNALED_SHORT: u64 = 256;

impl Writer {
    /// Can it be deleted within the credits of an operation on names?
    pub(super) fn is_short(&self, node: &LiveInode) -> bool {
        // A thread with a handle does not wait for runs in flight.
        if node.data().is_some_and(|data| !data.pages.is_clean()) {
            return false;
        }
        let is_short = {
            let values = node.values();
            // Each block that went through the journal takes a record there when it is freed.
            let revoked = values.is_journaled(self.shared()).then(|| self.shared().sectors(&values.fields));
            let blocks = revoked.unwrap_or(0) >> (self.shared().geometry.block_size.log2() - 9);
            values.fields.file_acl == 0
                && blocks <= JOURNALED_SHORT
                && (values.fields.blocks == 0 || short_tree(&values.map()))
        };
        // The deletion reports what cannot be read.
        is_short && self.value_entries(node).is_ok_and(|entries| entries.is_empty())
    }

    /// Deletes an inode without links: what it has in blocks by as many transactions as it takes, then the
    /// inode. The caller holds its operation lock; it is an orphan.
    pub(super) fn delete(&self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        self.drop_data(node);
        self.release_values(node)?;
        self.cut_from(node, 0)?;
        self.run(NAME_CREDITS, |change| self.delete_now(change, node))
    }

    /// As [`delete`](Self::delete), for an operation that was to take a name away, and has: what of the inode
    /// cannot be deleted now stays an orphan, as after a crash, and the next opening of the volume deletes
    /// it.
    ///
    /// # Errors
    /// The journal was aborted: the name may be there again.
    pub(super) fn delete_unnamed(&self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let Err(fault) = self.delete(node) else { return Ok(()) };
        if self.journal.aborted().is_some() {
            return Err(fault);
        }
        self.note(&fault);
        Ok(())
    }

    /// Deletes an inode within one transaction: it has few blocks left.
    pub(super) fn delete_now(&self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        // Read before the attribute block goes: i_blocks decides how a link's target is stored.
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
    /// It stays in memory, dead, until the commit has written it, or its number is used again: the table on
    /// disk still has it live, and a thread with an old number would find it there.
    pub(super) fn end(&self, values: &mut Values, now: Timestamp) {
        values.fields.links = 0;
        values.fields.dtime = now.seconds as u32;
        values.fields.size = 0;
        values.dir = None;
        values.drop_data();
    }

    /// Frees all blocks from logical block `from` on.
    pub(super) fn cut_from(&self, node: &Arc<LiveInode>, from: u64) -> Result<(), Fault> {
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
        let mut seen = HashSet::new();
        // Not an inode that is free, or listed twice: it would be freed again.
        let mut usable = |ino: Ino| {
            let is_used = !self.shared().is_special(ino)
                && self.keeper.alloc.is_inode_used(ino).is_ok_and(|is_used| is_used);
            self.inodes().get_unlinked(ino).ok().filter(|_| is_used && seen.insert(ino))
        };
        // Behind one that is none the list cannot be followed.
        let mut nodes: Vec<_> = listed.iter().map_while(|ino| usable(*ino)).collect();
        let next = nodes.last().map_or(self.shared().sb.last_orphan, |last| last.values().fields.dtime);
        let is_broken = next != 0;
        self.keeper.orphans.adopt_listed(&nodes);
        for (slot, ino) in in_file {
            // Slots that lead to nothing are left out, and stay.
            let Some(node) = usable(*ino) else { continue };
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
        Orphaned { cut, deleted, failed, is_broken }
    }
}

/// Is the tree nothing but a root with few extents?
fn short_tree(map: &extant_mapping::FileMap) -> bool {
    let entries = u16::from_le_bytes([map.i_block[2], map.i_block[3]]);
    map.extents && map.depth() == 0 && entries <= SHORT_EXTENTS
}
