//! Deleting inodes, at once or in steps; truncating files.

use std::sync::Arc;

use extant_inode::{Change, LiveInode, Values};
use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;

use super::NAME_CREDITS;
use super::views::InodeLife;
use crate::Fault;

/// Extents that are freed in the transaction that removes the last name.
const SHORT_EXTENTS: u16 = 4;
/// Most blocks that are freed there if each takes a revoke record in the journal.
const JOURNALED_SHORT: u64 = 256;

impl InodeLife<'_> {
    /// Returns whether the inode can be deleted within the credits of an operation on names.
    pub(crate) fn is_short(self, node: &LiveInode) -> bool {
        // The holder of a handle must not wait for writeback in flight.
        if node.data().is_some_and(|data| !data.pages.is_clean()) {
            return false;
        }
        let is_short = {
            let values = node.values();
            // Each block that was journaled takes a revoke record when it is freed.
            let revoked = values
                .is_journaled(self.writer.shared())
                .then(|| self.writer.shared().sectors(&values.fields));
            let blocks = revoked.unwrap_or(0) >> (self.writer.shared().geometry.block_size.log2() - 9);
            values.fields.file_acl == 0
                && blocks <= JOURNALED_SHORT
                && (values.fields.blocks == 0 || short_tree(&values.map()))
        };
        // A read error is reported by the deletion in steps.
        is_short && self.writer.attributes().value_entries(node).is_ok_and(|entries| entries.is_empty())
    }

    /// Deletes an orphan: frees its blocks in as many transactions as necessary, then the inode. The caller
    /// holds its operation lock.
    pub(crate) fn delete(self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        self.writer.sizes().drop_data(node);
        self.writer.attributes().release_values(node)?;
        self.cut_from(node, 0)?;
        self.writer.run(NAME_CREDITS, |change| {
            self.delete_now(change, node)?;
            self.writer.keeper.fast.nothing(change);
            Ok(())
        })
    }

    /// As [`delete`](Self::delete), for an operation that has already removed the last name. If the inode
    /// cannot be deleted now, it stays an orphan as after a crash, and the next open of the volume deletes
    /// it.
    ///
    /// # Errors
    /// The journal was aborted: the name may exist again.
    pub(super) fn delete_unnamed(self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let Err(fault) = self.delete(node) else { return Ok(()) };
        if self.writer.journal.aborted().is_some() {
            return Err(fault);
        }
        self.writer.note(&fault);
        Ok(())
    }

    /// Deletes an inode that has few blocks left, within one transaction.
    pub(crate) fn delete_now(self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        // Read before the attribute block is freed, because i_blocks shows whether a symbolic link is stored
        // in the inode.
        let has_map = {
            let values = node.values();
            values.has_map(self.writer.shared()) && values.fields.blocks != 0
        };
        self.writer.attributes().release_xattrs(change, node)?;
        if has_map {
            while !change.cut(node, 0)? {}
        }
        self.writer.keeper.orphans.remove(change.live, node, change.edit)?;
        let was_dir = {
            let mut values = change.live.edit(node, change.edit.transaction());
            self.end(&mut values, self.writer.now());
            values.kind() == FileType::Directory
        };
        self.writer.keeper.fast.freed(change, node.ino());
        Ok(self.writer.keeper.alloc.free_inode(change.edit, node.ino(), was_dir)?)
    }

    /// Sets the values of a deleted inode.
    ///
    /// The inode stays in memory, marked as deleted, until the commit has written it or its number is reused.
    /// The inode table on disk still shows it live, and an operation with a stale inode number would find it
    /// there.
    pub(super) fn end(self, values: &mut Values, now: Timestamp) {
        values.fields.links = 0;
        // Smaller times would look like links of the orphan list.
        values.fields.dtime = (now.seconds as u32).max(self.writer.shared().sb.inodes_count);
        values.fields.size = 0;
        values.dir = None;
        values.drop_data();
    }

    /// Frees all blocks from logical block `from` to the end.
    pub(super) fn cut_from(self, node: &Arc<LiveInode>, from: u64) -> Result<(), Fault> {
        if !node.values().has_map(self.writer.shared()) {
            return Ok(());
        }
        let credits = Change::cut_credits(self.writer.shared());
        let cut = |change: &Change<'_>| {
            let is_done = change.cut(node, from)?;
            if node.values().fields.links == 0 {
                self.writer.keeper.fast.nothing(change);
            }
            Ok(is_done)
        };
        while !self.writer.run(credits, cut)? {}
        Ok(())
    }
}

/// Returns whether the map is an extent root with few extents.
fn short_tree(map: &extant_mapping::FileMap) -> bool {
    let entries = u16::from_le_bytes([map.i_block[2], map.i_block[3]]);
    map.extents && map.depth() == 0 && entries <= SHORT_EXTENTS
}
