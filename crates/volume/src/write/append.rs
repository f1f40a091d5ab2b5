//! Writing to the end of a file, wherever that is by then: what O_APPEND is for a system call.

use extant_base::Ino;
use extant_ondisk::inode::flags;

use super::{Permit, Writer};
use crate::{Fault, Volume};

impl Volume {
    /// Writes `bytes` after the last byte of a regular file. Returns where they begin, and how many; fewer
    /// only without space for more. Concurrent appends do not overlap.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn append(&self, ino: Ino, bytes: &[u8]) -> Result<(u64, usize), Fault> {
        let writer = self.writer()?;
        writer.flusher.throttle();
        let (pos, done, is_sync) = self.noted(writer.append(ino, bytes))?;
        if is_sync {
            self.fsync_range(ino, pos..pos + done as u64, None, false)?;
        }
        Ok((pos, done))
    }
}

impl Writer {
    fn append(&self, ino: Ino, bytes: &[u8]) -> Result<(u64, usize, bool), Fault> {
        let node = self.inode_to_change(ino)?;
        let _operation = self.lock_node(&node)?;
        let pos = node.values().size();
        let done = self.write_locked(Permit::Flags, &node, pos, bytes)?;
        let is_sync = node.values().has_flag(flags::SYNC);
        Ok((pos, done, is_sync))
    }
}
