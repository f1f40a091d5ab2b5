//! All events of a disk, from which the state after a cut at any event can be made later.

use std::fmt;
use std::ops::RangeInclusive;

use crate::image::Image;

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Bytes were written into the cache.
    Write,
    /// Zeros were written into the cache.
    Zero,
    /// Unspecified bytes were written into the cache.
    Discard,
    /// Bytes were written to the medium.
    WriteDurable,
    /// A flush ended.
    Flush,
}

impl EventKind {
    /// Whether it changes the cache, so that a cut may lose or keep it.
    #[must_use]
    pub fn is_cached(self) -> bool {
        matches!(self, Self::Write | Self::Zero | Self::Discard)
    }
}

/// An event of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            EventKind::Write => "write",
            EventKind::Zero => "zero",
            EventKind::Discard => "discard",
            EventKind::WriteDurable => "write durable",
            EventKind::Flush => return f.write_str("flush"),
        };
        write!(f, "{what} {} bytes at {}", self.len, self.offset)
    }
}

/// An event and what it wrote, in whole sectors.
#[derive(Clone)]
pub(crate) struct Logged {
    pub(crate) kind: EventKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) first_sector: u64,
    /// 0 for a flush.
    pub(crate) sectors: u64,
    /// The content that reads saw after it; it has the versions of the event's sectors.
    pub(crate) after: Image,
}

/// The medium at some moment.
#[derive(Clone)]
pub(crate) struct Mark {
    /// It is valid after this many events.
    pub(crate) after: u64,
    /// Flushes have moved events below this number to the medium.
    pub(crate) flushed: u64,
    pub(crate) durable: Image,
}

/// The events of a disk since [`start_recording`](crate::SimDisk::start_recording). It takes as much memory
/// as was written, in chunks of 4 KiB. Several threads may make cuts concurrently.
#[derive(Clone)]
pub struct Recording {
    /// Number of the first event in `log`.
    pub(crate) log_start: u64,
    pub(crate) log: Vec<Logged>,
    /// In order; the first is the start of the recording.
    pub(crate) marks: Vec<Mark>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recording(events {}..{})", self.start(), self.end())
    }
}

impl Recording {
    /// The first moment for a cut: the start of the recording.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.marks[0].after
    }

    /// The last moment for a cut: after the last event.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// All moments at which a cut can be made.
    #[must_use]
    pub fn moments(&self) -> RangeInclusive<u64> {
        self.start()..=self.end()
    }

    /// An event by its number, from [`start`](Self::start) to below [`end`](Self::end).
    #[must_use]
    pub fn event(&self, number: u64) -> Option<Event> {
        let entry = self.log.get(usize::try_from(number.checked_sub(self.log_start)?).ok()?)?;
        Some(Event { kind: entry.kind, offset: entry.offset, len: entry.len })
    }

    /// Number of writes in the cache at `at`.
    ///
    /// # Panics
    /// `at` is not one of the [`moments`](Self::moments).
    #[must_use]
    pub fn pending_writes(&self, at: u64) -> usize {
        let log = self.between(self.mark(at).flushed, at);
        log.iter().filter(|entry| entry.kind.is_cached()).count()
    }

    pub(crate) fn mark(&self, at: u64) -> &Mark {
        assert!(self.moments().contains(&at), "a cut at {at} of {self:?}");
        &self.marks[self.marks.partition_point(|mark| mark.after <= at) - 1]
    }

    pub(crate) fn between(&self, from: u64, to: u64) -> &[Logged] {
        &self.log[(from - self.log_start) as usize..(to - self.log_start) as usize]
    }
}
