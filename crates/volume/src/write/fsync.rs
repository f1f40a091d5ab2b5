//! Making things durable: a file, or all of it.
//!
//! ```text
//!   fsync:  its dirty bytes to the device -> errors of writing back? -> the last transaction that changed it: commit, or wait
//!           -> covered by that commit's flush? else a flush that threads share (or, for comparison, a commit of nothing)
//! ```
//!
//! Invariants
//! 1. When it returns, what had been written before it was called is durable: bytes, map and size.
//! 2. An error of writing back is told once.
//! 3. A flush that was issued before the file's bytes were on the device counts for nothing: a commit that was under way already
//!    may have flushed before.
//!
//! Source: spec 05 section 2.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use base::Ino;
use flush::{Mark, Mode, Stream};
use inode::Node;
use page_cache::WriteError;

use super::Writer;
use crate::{Fault, Refusal, Volume};

impl Volume {
    /// Makes everything that was done durable.
    ///
    /// # Errors
    /// The device refused, now or before.
    pub fn sync(&self) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.noted(writer.sync())
    }

    /// Makes a file durable: its bytes, and what else was done to it. Of a directory and others, their last transaction and all
    /// before.
    ///
    /// # Errors
    /// The device refused, now or when bytes were written back before; [`Refusal::NoSpace`] where these found no blocks; no such inode.
    pub fn fsync(&self, ino: Ino) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.noted(writer.make_durable(ino, false))
    }

    /// As [`fsync`](Self::fsync), but of the inode only what it takes to read the bytes: size and map.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    pub fn fdatasync(&self, ino: Ino) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.noted(writer.make_durable(ino, true))
    }

    /// What was counted of flushes that threads share; `None` when open for reading.
    #[must_use]
    pub fn flush_counts(&self) -> Option<flush::FlushCounts> {
        self.writer.as_ref().map(|writer| writer.flusher.device.counts())
    }
}

impl Writer {
    fn sync(&self) -> Result<(), Fault> {
        let written = self.flusher.flush_all();
        let mark = self.flusher.device.mark();
        self.journal.commit_all()?;
        written?;
        self.cover(mark, false)
    }

    fn make_durable(&self, ino: Ino, data_only: bool) -> Result<(), Fault> {
        let node = self.live().get_orphan(ino)?;
        let mut mapped_in = None;
        if let Some(data) = node.data() {
            let written = self.flusher.flush_file(&node, &data, 0..u64::MAX);
            if let Some(error) = data.pages.take_error() {
                return Err(written.err().unwrap_or_else(|| told(error)));
            }
            written?;
            mapped_in = Some(data.mapped_in());
        }
        let mark = self.flusher.device.mark();
        let transaction = self.transaction_of(&node, mapped_in.filter(|_| data_only));
        // Its commit is still to come, with a flush of its own.
        let will_flush = self.journal.running() <= transaction || self.flusher.sabotage.trust_any_commit;
        self.journal.commit(transaction)?;
        self.cover(mark, will_flush)
    }

    /// The last transaction that changed what is to be durable.
    fn transaction_of(&self, node: &Arc<Node>, mapped_in: Option<u64>) -> u64 {
        match mapped_in.unwrap_or_else(|| node.values().changed_in) {
            // Not since it was loaded: maybe by a transaction that is being committed now.
            0 => self.journal.running() - 1,
            transaction => transaction,
        }
    }

    /// Flushes the device, unless a flush that was issued since `mark` did. `will_flush`: a commit did since.
    fn cover(&self, mark: Mark, will_flush: bool) -> Result<(), Fault> {
        let device = &self.flusher.device;
        let is_covered =
            will_flush && !self.flusher.has_external_log && device.settings().mode != Mode::Epoch;
        if self.flusher.no_barriers || is_covered {
            return Ok(());
        }
        if device.settings().mode == Mode::EmptyTxn {
            return Ok(self.journal.commit(self.journal.running())?);
        }
        let stream = BuildHasherDefault::<DefaultHasher>::default().hash_one(std::thread::current().id());
        match device.flush_since(mark, Stream(stream)) {
            Ok(_) => Ok(()),
            Err(failed) => Err(Fault::NotFlushed(failed)),
        }
    }
}

fn told(error: WriteError) -> Fault {
    match error {
        WriteError::NoSpace | WriteError::Quota => Refusal::NoSpace.into(),
        WriteError::Io => Fault::LostWrite,
    }
}
