//! Shutting down: as if the machine lost power now, but for the program that goes on.
//!
//! ```text
//!   Flush:    all that is in memory, and the journal ---.
//!   Journal:  the journal only -------------------------+--> aborted -> what is on its way arrives -> every operation: ShutDown
//!   Nothing:  ------------------------------------------'
//! ```
//!
//! For tests of crashes, and for taking a device away at once. The next opening for writing recovers.
//!
//! Invariant: when it returned nothing more is written, not even that it happened; but closing lets others in
//! ([`MountGuard`](crate::MountGuard)).
//!
//! Source: kernel fs/ext4/ioctl.c (EXT4_IOC_SHUTDOWN), include/uapi/linux/ext4.h.

use std::sync::atomic::Ordering;

use super::Writer;
use crate::{Fault, Volume};

/// What is made durable before a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Everything (EXT4_GOING_FLAGS_DEFAULT).
    Flush,
    /// What the journal has: names and attributes, and bytes of files as far as they were written back
    /// (LOGFLUSH).
    Journal,
    /// Nothing: as a power cut (NOLOGFLUSH).
    Nothing,
}

impl Volume {
    /// Shuts the volume down: from now on every operation fails with [`Fault::ShutDown`], reading too, and
    /// nothing is written. A second time nothing happens. Closing it succeeds then, and leaves it as it is.
    ///
    /// # Errors
    /// It is open for reading; or what was to be made durable could not be: it is shut down all the same.
    pub fn shut_down(&self, how: Shutdown) -> Result<(), Fault> {
        let writer = self.writer.as_ref().ok_or(Fault::Refused(crate::Refusal::ReadOnly))?;
        if writer.is_shut_down() {
            return Ok(());
        }
        let made_durable = match how {
            Shutdown::Flush => self.sync(),
            Shutdown::Journal => self.noted(writer.journal.commit_all().map_err(Fault::from)),
            Shutdown::Nothing => Ok(()),
        };
        writer.shut_down();
        made_durable
    }

    /// Was it shut down?
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.is_shut_down())
    }
}

impl Writer {
    pub(super) fn is_shut_down(&self) -> bool {
        self.keeper.errors.is_shut_down.load(Ordering::Acquire)
    }

    fn shut_down(&self) {
        // First: operations that fail because of what follows find the cause, and note nothing.
        self.keeper.errors.is_shut_down.store(true, Ordering::Release);
        self.journal.abort("the file system was shut down".to_owned());
        self.journal.wait_aborted();
        for data in self.flusher.files().dirty_nodes().iter().filter_map(|node| node.data()) {
            data.pages.wait_written(0..u64::MAX);
        }
    }
}
