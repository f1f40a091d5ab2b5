//! Settings of flush coordination.

use std::time::Duration;

/// How threads share flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// They do not: each request makes its own flush.
    None,
    /// In rounds; the leader waits a little for others.
    Seed,
    /// In rounds without a delay: requests during a flush share the next one.
    Merge,
    /// As `Merge`, and a request that an earlier flush covers makes none.
    #[default]
    Epoch,
    /// By a commit of the journal, even an empty one: the first design of the linux-ext4 series of 2010. It
    /// needs a journal; here it behaves as [`None`](Self::None).
    EmptyTxn,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 5] = [Self::None, Self::Seed, Self::Merge, Self::Epoch, Self::EmptyTxn];
    /// The modes that need no journal.
    pub const OF_DEVICE: [Self; 4] = [Self::None, Self::Seed, Self::Merge, Self::Epoch];

    /// The mode's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Seed => "seed",
            Self::Merge => "merge",
            Self::Epoch => "epoch",
            Self::EmptyTxn => "empty-txn",
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// How long the leader of a round waits ([`Mode::Seed`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Delay {
    /// For the duration of a flush.
    Full,
    /// Until one flush duration has passed since the last round ended.
    #[default]
    Aged,
    /// No wait.
    None,
}

impl Delay {
    /// All delays.
    pub const ALL: [Self; 3] = [Self::Full, Self::Aged, Self::None];

    /// The delay's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Aged => "aged",
            Self::None => "none",
        }
    }

    /// The delay with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|delay| delay.name() == name)
    }
}

/// All settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How threads share flushes.
    pub mode: Mode,
    /// How long a leader waits.
    pub delay: Delay,
    /// The minimum wait.
    pub delay_min: Duration,
    /// The maximum wait.
    pub delay_max: Duration,
    /// If the average flush of the device is faster than this, each request makes its own flush
    /// ([`Mode::Seed`]).
    pub bypass_below: Duration,
    /// A deliberate mistake for the crash lab: requests also join rounds in flight.
    pub join_in_flight: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            delay: Delay::default(),
            delay_min: Duration::ZERO,
            delay_max: Duration::from_millis(15),
            bypass_below: Duration::from_millis(2),
            join_in_flight: false,
        }
    }
}
