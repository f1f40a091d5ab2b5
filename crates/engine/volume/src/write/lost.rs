//! Lost writes (INV-EN45): file data that could not be written back leaves memory, so that memory shows what
//! the device has.
//!
//! ```text
//!   a run fails -> error latched, range noted -> fsync, sync, or the file's next change
//!               -> its data is dropped, and the size becomes that on disk
//! ```
//!
//! Otherwise a later fsync that succeeds would acknowledge data that the device never got, and operations
//! that use the file's size in memory would not match its size on disk.
//!
//! Does **not** own: reporting the error (see `fsync`), deciding which runs failed (see `writeback`).

use std::sync::Arc;

use extant_base::Lblk;
use extant_extent_status::END;
use extant_inode::LiveInode;

use super::views::DataEdits;

impl DataEdits<'_> {
    /// Drops a file's lost data from memory, and a size that only that data caused. The caller holds the
    /// operation lock exclusively.
    pub(super) fn drop_lost(self, node: &Arc<LiveInode>) {
        let Some(data) = node.data().filter(|data| data.has_lost()) else { return };
        if self.writer.journal.aborted().is_some() {
            return;
        }
        let files = self.writer.inodes().files();
        let mut lost = files.take_lost(&data);
        // The rest is written first, because the size on disk follows it. Its failures are latched as well.
        let _ = self.writer.flusher.flush_file(node, &data, 0..u64::MAX);
        lost.extend(files.take_lost(&data));
        let _fills = data.pages.stop_fills();
        lost.into_iter().for_each(|bytes| data.pages.discard(bytes));
        let size = node.values().fields.size;
        if size >= data.size() || !data.pages.is_clean() {
            return;
        }
        data.pages.truncate(size);
        let keep = self.writer.shared().geometry.block_size.blocks_for(size);
        let _mapping = data.mapping.write();
        if let Ok(from) = u32::try_from(keep)
            && from < END
        {
            data.forget(self.writer.shared(), &self.writer.keeper.alloc, Lblk(from), END - from);
        }
        data.set_size(size);
    }

    /// As [`drop_lost`](Self::drop_lost), for callers that hold no lock.
    pub(super) fn lock_and_drop_lost(self, node: &Arc<LiveInode>) {
        if node.data().is_some_and(|data| data.has_lost()) {
            let _operation = node.operation.write();
            self.drop_lost(node);
        }
    }
}
