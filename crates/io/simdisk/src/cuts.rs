//! Power cuts: of a disk now, and of a recorded disk at any moment.

use crate::SimDisk;
use crate::cut::{Choice, Seeded, survivors};
use crate::recording::Recording;

impl SimDisk {
    /// The disk after a power cut now; `choice` chooses what survives of the cache.
    #[must_use]
    pub fn cut(&self, choice: &mut Choice<'_>) -> SimDisk {
        let state = self.state();
        Self::from_image(survivors(&state.durable, state.pending(), state.flushed, false, choice))
    }

    /// The disk after a power cut now that loses everything in the cache.
    #[must_use]
    pub fn cut_all_lost(&self) -> SimDisk {
        Self::from_image(self.durable_image())
    }

    /// The disk after a power cut now that loses nothing.
    #[must_use]
    pub fn cut_all_kept(&self) -> SimDisk {
        Self::from_image(self.image())
    }

    /// The disk after a power cut now; `seed` chooses what survives (see [`Seeded`]).
    #[must_use]
    pub fn cut_random(&self, seed: u64) -> SimDisk {
        let seeded = Seeded::new(seed);
        self.cut(&mut |sector| seeded.choose(sector))
    }
}

impl Recording {
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

    /// The medium after event `finished`, with survivors of the events that began before `begun`.
    fn cut_between(&self, finished: u64, begun: u64, choice: &mut Choice<'_>) -> SimDisk {
        assert!(begun <= self.end(), "event {finished} of {self:?}");
        let mark = self.mark(finished);
        let log = self.between(mark.flushed, begun);
        SimDisk::from_image(survivors(&mark.durable, log, mark.flushed, begun > finished, choice))
    }
}
