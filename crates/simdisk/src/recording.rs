//! All that happened to a disk, so that the state after a cut at any event can be made later.

use std::fmt;
use std::ops::RangeInclusive;

use crate::SimDisk;
use crate::cut::{Choice, Seeded, survivors};
use crate::image::Image;

/// What happened to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Bytes went into the cache.
    Write,
    /// Zeros went into the cache.
    Zero,
    /// Unspecified bytes went into the cache.
    Discard,
    /// Bytes went to the medium.
    WriteDurable,
    /// A flush ended.
    Flush,
}

impl EventKind {
    /// Does it change what is in the cache, to be lost or kept?
    #[must_use]
    pub fn is_cached(self) -> bool {
        matches!(self, Self::Write | Self::Zero | Self::Discard)
    }
}

/// One thing that happened to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What.
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

/// An event with what it wrote, in whole sectors.
#[derive(Clone)]
pub(crate) struct Logged {
    pub(crate) kind: EventKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) first_sector: u64,
    /// None for a flush.
    pub(crate) sectors: u64,
    /// What reads saw after it: its sectors' versions are there.
    pub(crate) after: Image,
}

/// The medium at some moment.
#[derive(Clone)]
pub(crate) struct Mark {
    /// Holds after this many events.
    pub(crate) after: u64,
    /// Events below this number are on the medium, by a flush.
    pub(crate) flushed: u64,
    pub(crate) durable: Image,
}

/// What happened to a disk since [`SimDisk::start_recording`]. Takes as much memory as was written, in chunks
/// of 4 KiB; cuts may be made by several threads at the same time.
#[derive(Clone)]
pub struct Recording {
    /// Number of the first event in `log`.
    pub(crate) log_start: u64,
    pub(crate) log: Vec<Logged>,
    /// In order; the first is where the recording began.
    pub(crate) marks: Vec<Mark>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recording(events {}..{})", self.start(), self.end())
    }
}

impl Recording {
    /// The first moment at which a cut can be made: where the recording began.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.marks[0].after
    }

    /// The last moment at which a cut can be made: after the last event.
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

    /// The disk after a power cut at `at`, with what survives chosen by `seed` (see [`Seeded`]).
    ///
    /// # Panics
    /// When `at` is none of the [`moments`](Self::moments).
    #[must_use]
    pub fn cut(&self, at: u64, seed: u64) -> SimDisk {
        let seeded = Seeded::new(seed);
        self.cut_with(at, &mut |sector| seeded.choose(sector))
    }

    /// The disk after a power cut at `at`, with what survives chosen by `choice`.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn cut_with(&self, at: u64, choice: &mut Choice<'_>) -> SimDisk {
        self.cut_between(at, at, choice)
    }

    /// The disk after a power cut while event `event` was under way, by `seed`. For a write into the cache
    /// and for a flush that is nothing that [`cut`](Self::cut) does not do; but a durable write may be torn
    /// or missing too.
    ///
    /// # Panics
    /// When there is no such event.
    #[must_use]
    pub fn cut_during(&self, event: u64, seed: u64) -> SimDisk {
        let seeded = Seeded::new(seed);
        self.cut_during_with(event, &mut |sector| seeded.choose(sector))
    }

    /// As [`cut_during`](Self::cut_during), chosen by `choice`.
    ///
    /// # Panics
    /// When there is no such event.
    #[must_use]
    pub fn cut_during_with(&self, event: u64, choice: &mut Choice<'_>) -> SimDisk {
        self.cut_between(event, event + 1, choice)
    }

    /// The disk after a power cut at `at` that lost everything in the cache.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn cut_all_lost(&self, at: u64) -> SimDisk {
        SimDisk::from_image(self.mark(at).durable.clone())
    }

    /// The disk after a power cut at `at` that lost nothing.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn cut_all_kept(&self, at: u64) -> SimDisk {
        self.cut_with(at, &mut |_| usize::MAX)
    }

    /// How many writes are in the cache at `at`.
    ///
    /// # Panics
    /// As [`cut`](Self::cut).
    #[must_use]
    pub fn pending_writes(&self, at: u64) -> usize {
        let log = self.between(self.mark(at).flushed, at);
        log.iter().filter(|entry| entry.kind.is_cached()).count()
    }

    /// The medium as it was after event `finished`, with survivors of what was begun before `begun`.
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
