//! Shutdown: like a sudden power failure, except that the program continues.
//!
//! ```text
//!   Flush:    everything in memory, and the journal -.
//!   Journal:  the journal only ----------------------+-> aborted -> I/O in flight ends -> ShutDown
//!   Nothing:  ---------------------------------------'
//! ```
//!
//! For tests of the state after a crash, and for callers that must release a device at once. The next open
//! for writing recovers.
//!
//! Invariant: after it returned nothing more is written, not even a record of the shutdown; but closing lets
//! other hosts mount ([`MountGuard`](crate::MountGuard)).
//!
//! Source: kernel fs/ext4/ioctl.c (EXT4_IOC_SHUTDOWN), include/uapi/linux/ext4.h.

use std::sync::atomic::Ordering;

use super::Writer;
use crate::ops::errors::Operation;
use crate::{Admin, Fault};

/// What a shutdown makes durable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Everything (EXT4_GOING_FLAGS_DEFAULT).
    Flush,
    /// The journal: names, attributes, and file data as far as it was written back (LOGFLUSH).
    Journal,
    /// Nothing, like a power failure (NOLOGFLUSH).
    Nothing,
}

impl Admin<'_> {
    /// Shuts the volume down: from now on every operation fails with [`Fault::ShutDown`], reads included, and
    /// nothing is written. A second call does nothing. Closing the volume then succeeds and leaves the device
    /// as it is.
    ///
    /// # Errors
    /// The volume is open for reading; or what was to be made durable could not be, in which case it is shut
    /// down anyway.
    pub fn shut_down(self, how: Shutdown) -> Result<(), Fault> {
        let writer = self.volume.writer.as_ref().ok_or(Fault::Refused(crate::Refusal::ReadOnly))?;
        if writer.is_shut_down() {
            return Ok(());
        }
        let made_durable = match how {
            Shutdown::Flush => self.volume.sync(),
            Shutdown::Journal => {
                self.volume.noted(Operation::Shutdown, writer.journal.commit_all().map_err(Fault::from))
            }
            Shutdown::Nothing => Ok(()),
        };
        writer.shut_down();
        made_durable
    }

    /// Returns whether the volume was shut down.
    #[must_use]
    pub fn is_shut_down(self) -> bool {
        self.volume.writer.as_ref().is_some_and(|writer| writer.is_shut_down())
    }
}

impl Writer {
    pub(super) fn is_shut_down(&self) -> bool {
        self.keeper.errors.is_shut_down.load(Ordering::Acquire)
    }

    fn shut_down(&self) {
        // Set first, so that operations that fail because of the abort report the shutdown, and record no
        // error.
        self.keeper.errors.is_shut_down.store(true, Ordering::Release);
        self.journal.abort("the file system was shut down".to_owned());
        self.journal.wait_aborted();
        for data in self.flusher.files().dirty_nodes().iter().filter_map(|node| node.data()) {
            data.pages.wait_written(0..u64::MAX);
        }
    }
}
