//! Bytes that could not be written back: they leave memory, so that it shows what the device has (INV-EN45).
//!
//! ```text
//!   a run fails -> error latched, range noted -> fsync, sync, or the next change of the file -> its bytes dropped, the size that of the disk
//! ```
//!
//! Else an fsync that succeeds later would acknowledge what the device never got, and what is done to the
//! file by its size in memory would not fit its size on disk.
//!
//! Does **not** own: where the error is reported (see `fsync`), which runs fail (see `writeback`).

use std::sync::Arc;

use extant_base::Lblk;
use extant_extent_status::END;
use extant_inode::LiveInode;

use super::Writer;

impl Writer {
    /// Drops from memory what could not be written back of a file, and with it a size that only those bytes
    /// gave it. The caller holds the operation lock alone.
    pub(super) fn drop_lost(&self, node: &Arc<LiveInode>) {
        let Some(data) = node.data().filter(|data| data.has_lost()) else { return };
        if self.journal.aborted().is_some() {
            return;
        }
        let files = self.inodes().files();
        let mut lost = files.take_lost(&data);
        // The size on disk follows the rest first. What fails of that is latched as well.
        let _ = self.flusher.flush_file(node, &data, 0..u64::MAX);
        lost.extend(files.take_lost(&data));
        let _fills = data.pages.stop_fills();
        lost.into_iter().for_each(|bytes| data.pages.discard(bytes));
        let size = node.values().fields.size;
        if size >= data.size() || !data.pages.is_clean() {
            return;
        }
        data.pages.truncate(size);
        let keep = self.shared().geometry.block_size.blocks_for(size);
        let _mapping = data.mapping.write();
        if let Ok(from) = u32::try_from(keep)
            && from < END
        {
            data.forget(self.shared(), &self.keeper.alloc, Lblk(from), END - from);
        }
        data.set_size(size);
    }

    /// As [`drop_lost`](Self::drop_lost), for callers that hold no lock.
    pub(super) fn lock_and_drop_lost(&self, node: &Arc<LiveInode>) {
        if node.data().is_some_and(|data| data.has_lost()) {
            let _operation = node.operation.write();
            self.drop_lost(node);
        }
    }
}
