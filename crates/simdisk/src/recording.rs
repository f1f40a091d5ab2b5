//! All events of a disk, from which the state after a cut at any event can be made later.

use std::fmt;
use std::ops::RangeInclusive;

use crate::SimDisk;
use crate::cut::{Choice, Seeded, survivors};
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

/// The events of a disk since [`SimDisk::start_recording`]. It takes as much memory as was written, in chunks
/// of 4 KiB. Several threads may make cuts concurrently.
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

    /// The disk after a power cut at `at`; `seed` chooses what survives (see [`Seeded`]).
    ///
    /// # Panics
    /// `at` is not one of the [`moments`](Self::moments).
    #[must_use]
    pub fn cut(&self, at: u64, seed: u64) -> SimDisk {
        let seeded = Seeded::new(seed);
        self.cut_with(at, &mut |sector| seeded.choose(sector))
    }

    /// The disk after a power cut at `at`; `choice` chooses what survives.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn cut_with(&self, at: u64, choice: &mut Choice<'_>) -> SimDisk {
        self.cut_between(at, at, choice)
    }

    /// The disk after a power cut during event `event`; `seed` chooses what survives. For a write into the
    /// cache and for a flush, [`cut`](Self::cut) can give the same states. A durable write may also be torn
    /// or missing.
    ///
    /// # Panics
    /// There is no such event.
    #[must_use]
    pub fn cut_during(&self, event: u64, seed: u64) -> SimDisk {
        let seeded = Seeded::new(seed);
        self.cut_during_with(event, &mut |sector| seeded.choose(sector))
    }

    /// As [`cut_during`](Self::cut_during); `choice` chooses what survives.
    ///
    /// # Panics
    /// There is no such event.
    #[must_use]
    pub fn cut_during_with(&self, event: u64, choice: &mut Choice<'_>) -> SimDisk {
        self.cut_between(event, event + 1, choice)
    }

    /// The disk after a power cut at `at` that loses everything in the cache.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn cut_all_lost(&self, at: u64) -> SimDisk {
        SimDisk::from_image(self.mark(at).durable.clone())
    }

    /// The disk after a power cut at `at` that loses nothing.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn cut_all_kept(&self, at: u64) -> SimDisk {
        self.cut_with(at, &mut |_| usize::MAX)
    }

    /// Number of writes in the cache at `at`.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn pending_writes(&self, at: u64) -> usize {
        let log = self.between(self.mark(at).flushed, at);
        log.iter().filter(|entry| entry.kind.is_cached()).count()
    }

    /// The medium after event `finished`, with survivors of the events that began before `begun`.
    fn cut_between(&self, finished: u64, begun: u64, choice: &mut Choice<'_>) -> SimDisk {
        assert!(begun <= self.end(), "event {finished} of {self:?}");
        let mark = self.mark(finished);
        let log = self.between(mark.flushed, begun);
        survivors(&mark.durable, log, mark.flushed, begun > finished, choice)
    }

    fn mark(&self, at: u64) -> &Mark {
        assert!(self.moments().contains(&at), "a cut at {at} of {self:?}");
        &self.marks[self.marks.partition_point(|mark| mark.after <= at) - 1]
    }

    fn between(&self, from: u64, to: u64) -> &[Logged] {
        &self.log[(from - self.log_start) as usize..(to - self.log_start) as usize]
    }
}
