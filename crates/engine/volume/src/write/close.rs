//! Closing: everything home, the log empty, the superblock clean.
//!
//! ```text
//! dismiss the threads -> write dirty data back -> commit -> counts into the superblock -> checkpoint
//!                     -> the log is clean -> RECOVER out of the superblock
//! ```
//!
//! Power may fail at any moment: until the last write the next open replays the log.

use extant_base::Ino;
use extant_inode::Shared;
use extant_journal::CommitReason;
use extant_ondisk::Features;
use extant_ondisk::superblock::{self, STATE_CLEAN, Superblock};

use super::{Writer, seconds_now};
use crate::{Fault, Volume};

impl Volume {
    /// Writes everything home and closes. Dropping a volume without this is like a power failure: what was
    /// synced is safe.
    ///
    /// # Errors
    /// The device failed, now or before: what was synced is still in the log. [`Fault::LostWrite`]: the
    /// volume is closed, but earlier writeback of some file failed, and that was not reported yet.
    pub fn close(mut self) -> Result<(), Fault> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.dismiss();
        if writer.is_shut_down() {
            return Ok(());
        }
        let closed = writer.close(self.inodes.shared());
        if let Err(fault) = &closed {
            writer.note(fault);
        }
        closed
    }
}

impl Writer {
    fn close(&self, shared: &Shared) -> Result<(), Fault> {
        let written = self.flusher.flush_all();
        self.journal.commit_all_for(CommitReason::Close)?;
        written?;
        // Lost writes that no fsync and no sync has reported.
        let is_lost = !self.flusher.files().lost_nodes().is_empty();
        let usage = self.keeper.alloc.usage();
        let now = self.fixed_time.map_or_else(seconds_now, |time| u64::try_from(time.seconds).unwrap_or(0));
        self.change_superblock(|sb| {
            sb.free_blocks_count = usage.blocks_free;
            sb.free_inodes_count = u32::try_from(usage.inodes_free).unwrap_or(u32::MAX);
            sb.wtime = now;
        })?;
        self.journal.close()?;
        self.conclude(shared)?;
        if is_lost { Err(Fault::LostWrite) } else { Ok(()) }
    }

    /// Marks the log as not valid in the superblock, after everything is home. As the first write of a mount,
    /// it changes bits only in the first half of the superblock (see `mount/declare.rs`).
    fn conclude(&self, shared: &Shared) -> Result<(), Fault> {
        let mut bytes = [0; superblock::SIZE];
        shared.device.read_at(superblock::OFFSET, &mut bytes).map_err(Fault::Device)?;
        let mut sb = Superblock::decode(&bytes).map_err(|fact| Fault::corrupt(Ino(0), fact))?;
        sb.features.incompat &= !Features::RECOVER;
        if self.keeper.orphans.is_empty() {
            sb.features.ro_compat &= !Features::ORPHAN_PRESENT;
        }
        sb.state |= shared.sb.state & STATE_CLEAN;
        shared.device.write_at(superblock::OFFSET, &sb.sealed()).map_err(Fault::Device)?;
        shared.device.flush().map_err(Fault::Device)
    }
}
