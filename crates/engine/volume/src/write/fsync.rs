//! Making a file, or the whole volume, durable.
//!
//! ```text
//!   fsync:  dirty data to the device -> writeback errors?
//!           -> fast commit (see `fast`), or else commit (or await) its last transaction
//!           -> covered by that commit's flush? else a shared flush (for comparison: an empty commit)
//! ```
//!
//! Invariants
//! 1. When it returns, everything written before the call is durable: data, map and size.
//! 2. A writeback error is reported once to each open file ([`ErrorCursor`]), and once to callers that pass
//!    none.
//! 3. A flush issued before the file's data was on the device does not count: a commit that was already
//!    running may have flushed too early.
//!
//! Source: the linux-ext4 series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

use extant_base::{Ino, Tid};
use extant_flush::{Mark, Mode, Stream};
use extant_inode::LiveInode;
use extant_journal::{Bug, FastCommit};
use extant_ondisk::filetype::FileType;
use extant_page_cache::WriteError;

use super::Writer;
use super::views::DataEdits;
use crate::ops::errors::Operation;
use crate::{Counters, Fault, Files, Refusal, Volume};

/// How far writeback errors of a file were reported. Each open file has its own.
#[derive(Debug, Default)]
pub struct ErrorCursor(extant_page_cache::ErrorCursor);

/// The part of a file to make durable.
struct SyncRange<'a> {
    range: Range<u64>,
    data_only: bool,
    cursor: Option<&'a ErrorCursor>,
}

impl SyncRange<'_> {
    const ALL: Self = SyncRange { range: 0..u64::MAX, data_only: false, cursor: None };
}

impl Files<'_> {
    /// To be called when a file is opened. The result covers errors from now on, and earlier ones that no
    /// caller has seen.
    ///
    /// # Errors
    /// No such inode; the device failed.
    pub fn sample_errors(self, ino: Ino) -> Result<ErrorCursor, Fault> {
        let Some(writer) = &self.volume.writer else { return Ok(ErrorCursor::default()) };
        let data = writer.inodes().get_unlinked(ino)?.data();
        Ok(data.map_or_else(ErrorCursor::default, |data| ErrorCursor(data.pages.sample_errors())))
    }

    /// As [`fsync`](Self::fsync), or [`fdatasync`](Self::fdatasync) if `data_only`, for one open file.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync). Earlier failures are reported once per open file.
    pub fn fsync_as(self, ino: Ino, cursor: &ErrorCursor, data_only: bool) -> Result<(), Fault> {
        self.fsync_part(ino, &SyncRange { data_only, cursor: Some(cursor), ..SyncRange::ALL })
    }

    /// As [`fsync_as`](Self::fsync_as), for a range of bytes: what O_SYNC, or O_DSYNC if `data_only`, needs
    /// after each write.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    pub fn fsync_range(
        self,
        ino: Ino,
        range: Range<u64>,
        cursor: Option<&ErrorCursor>,
        data_only: bool,
    ) -> Result<(), Fault> {
        self.fsync_part(ino, &SyncRange { range, data_only, cursor })
    }

    /// Returns whether writeback of the file has failed since the file came into memory.
    #[must_use]
    pub fn had_errors(self, ino: Ino) -> bool {
        let node = self.volume.writer.as_ref().and_then(|writer| writer.inodes().get_unlinked(ino).ok());
        node.and_then(|node| node.data()).is_some_and(|data| data.pages.had_errors())
    }

    fn fsync_part(self, ino: Ino, sync: &SyncRange<'_>) -> Result<(), Fault> {
        let Some(writer) = &self.volume.writer else { return Ok(()) };
        self.volume.check_going()?;
        self.volume.noted(Operation::Fsync, writer.data().make_durable(ino, sync))
    }

    /// Makes a file durable: its data and all its other changes. For a directory and other types: its last
    /// transaction and all before.
    ///
    /// # Errors
    /// The device failed, now or in earlier writeback; [`Refusal::NoSpace`] if writeback found no blocks; no
    /// such inode.
    pub fn fsync(self, ino: Ino) -> Result<(), Fault> {
        self.fsync_part(ino, &SyncRange::ALL)
    }

    /// As [`fsync`](Self::fsync), but of the inode only what is needed to read the data: size and map.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    pub fn fdatasync(self, ino: Ino) -> Result<(), Fault> {
        self.fsync_part(ino, &SyncRange { data_only: true, ..SyncRange::ALL })
    }
}

impl Volume {
    /// Makes all previous changes durable.
    ///
    /// # Errors
    /// The device failed, now or before. [`Fault::LostWrite`] if earlier writeback of some file failed and
    /// that was not reported yet: the rest is durable.
    pub fn sync(&self) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.check_going()?;
        self.noted(Operation::Sync, writer.sync())
    }
}

impl Counters<'_> {
    /// Counters of shared flushes; `None` if open for reading.
    #[must_use]
    pub fn flush_counts(self) -> Option<extant_flush::FlushCounts> {
        self.volume.writer.as_ref().map(|writer| writer.flusher.device.counts())
    }
}

impl Writer {
    fn sync(&self) -> Result<(), Fault> {
        let written = self.flusher.flush_all();
        let lost = self.flusher.files().lost_nodes();
        lost.iter().for_each(|node| self.data().lock_and_drop_lost(node));
        // The background writeback thread may have lost them.
        let written = if lost.is_empty() { written } else { written.and(Err(Fault::LostWrite)) };
        let mark = self.flusher.device.mark();
        let fast_flush = self.journal.fast_flushes();
        let is_covered = match self.journal.commit_fast(self.journal.running(), true)? {
            FastCommit::Durable(flush) => flush >= fast_flush,
            FastCommit::Refused => {
                self.journal.commit_all()?;
                false
            }
        };
        written?;
        if is_covered { Ok(()) } else { self.data().cover(mark, Ino::ROOT, false) }
    }
}

impl DataEdits<'_> {
    fn make_durable(self, ino: Ino, sync: &SyncRange<'_>) -> Result<(), Fault> {
        let node = self.writer.inodes().get_unlinked(ino)?;
        let mut mapped_in = None;
        if let Some(data) = node.data() {
            let written = self.writer.flusher.flush_file(&node, &data, sync.range.clone());
            let error = match sync.cursor {
                Some(ErrorCursor(cursor)) => data.pages.take_error_of(cursor),
                None => data.pages.take_error(),
            };
            self.lock_and_drop_lost(&node);
            if let Some(error) = error {
                return Err(written.err().unwrap_or_else(|| fault_of(error)));
            }
            written?;
            mapped_in = Some(data.mapped_in());
        }
        let mark = self.writer.flusher.device.mark();
        let fast_flush = self.writer.journal.fast_flushes();
        let transaction = self.transaction_of(&node, mapped_in.filter(|_| sync.data_only));
        let has_data = {
            let values = node.values();
            values.kind() == FileType::Regular && (values.data().is_some() || values.fields.blocks > 0)
        };
        if let FastCommit::Durable(flush) = self.writer.journal.commit_fast(transaction, has_data)? {
            return if has_data && flush < fast_flush { self.cover(mark, ino, false) } else { Ok(()) };
        }
        // The commit has not begun its flush yet, so that flush covers the data.
        let will_flush = self.writer.journal.running() <= transaction
            || self.writer.flusher.sabotage.has(Bug::TrustAnyCommit);
        self.writer.journal.commit(transaction)?;
        self.cover(mark, ino, will_flush)
    }

    /// The last transaction that changed what is to be made durable.
    fn transaction_of(self, node: &Arc<LiveInode>, mapped_in: Option<Tid>) -> Tid {
        match mapped_in.unwrap_or_else(|| node.values().changed_in) {
            // Not changed since it was loaded. An earlier change may be in the transaction that is being
            // committed now.
            Tid::NONE => self.writer.journal.running().before(),
            transaction => transaction,
        }
    }

    /// Flushes the device, unless a flush issued since `mark` has covered it. `ino` is the inode to make
    /// durable; `will_flush` says that a commit has flushed since.
    fn cover(self, mark: Mark, ino: Ino, will_flush: bool) -> Result<(), Fault> {
        let device = &self.writer.flusher.device;
        let is_same_device =
            !self.writer.flusher.has_external_log || self.writer.flusher.sabotage.has(Bug::TrustLogFlush);
        let is_covered = will_flush && is_same_device && device.settings().mode != Mode::Epoch;
        if self.writer.flusher.no_barriers || is_covered {
            return Ok(());
        }
        // Without a log, an empty commit flushes nothing. With an external log it does not flush this device.
        if device.settings().mode == Mode::EmptyTxn && self.writer.flusher.has_log && is_same_device {
            return Ok(self
                .writer
                .journal
                .commit_with_others(self.writer.journal.running(), ino.0.into())?);
        }
        let stream = BuildHasherDefault::<DefaultHasher>::default().hash_one(std::thread::current().id());
        match device.flush_since(mark, Stream(stream)) {
            Ok(_) => Ok(()),
            Err(failed) => Err(Fault::NotFlushed(failed)),
        }
    }
}

fn fault_of(error: WriteError) -> Fault {
    match error {
        WriteError::NoSpace | WriteError::Quota => Refusal::NoSpace.into(),
        WriteError::Io => Fault::LostWrite,
    }
}
