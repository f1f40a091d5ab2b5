//! Appending to a file at its current end: for O_APPEND.

use extant_base::Ino;
use extant_ondisk::inode::flags;

use super::WriteAccess;
use super::views::DataEdits;
use crate::ops::errors::Operation;
use crate::{Fault, Files};

impl Files<'_> {
    /// Writes `bytes` after the last byte of a regular file. Returns the position and the number of bytes
    /// written, which is less than requested only if space ran out. Concurrent appends do not overlap.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn append(self, ino: Ino, bytes: &[u8]) -> Result<(u64, usize), Fault> {
        let writer = self.volume.writer()?;
        writer.flusher.throttle();
        let (pos, done, is_sync) = self.volume.noted(Operation::Append, writer.data().append(ino, bytes))?;
        if is_sync {
            self.fsync_range(ino, pos..pos + done as u64, None, false)?;
        }
        Ok((pos, done))
    }
}

impl DataEdits<'_> {
    fn append(self, ino: Ino, bytes: &[u8]) -> Result<(u64, usize, bool), Fault> {
        let node = self.writer.inode_to_change(ino)?;
        let _operation = self.writer.names().lock_node(&node)?;
        let pos = node.values().size();
        let done = self.write_locked(WriteAccess::Flags, &node, pos, bytes)?;
        let is_sync = node.values().has_flag(flags::SYNC);
        Ok((pos, done, is_sync))
    }
}
