//! How flushes are coordinated.

use std::time::Duration;

/// How threads share flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Not at all: each makes its own.
    None,
    /// Rounds, whose leader waits a little for others.
    Seed,
    /// Rounds without delay: callers while one is in flight share the next.
    Merge,
    /// As merge, and nothing is flushed for what a flush has covered already.
    #[default]
    Epoch,
    /// By a commit of the journal, even of an empty one: the first design of the linux-ext4 series of 2010.
    /// It needs a journal; here it is as [`None`](Self::None).
    EmptyTxn,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::None, Self::Seed, Self::Merge, Self::Epoch, Self::EmptyTxn];
    /// Those that need no journal.
    pub const OF_DEVICE: [Self; 4] = [Self::None, Self::Seed, Self::Merge, Self::Epoch];

    /// As it is spelled.
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

    /// By its spelling.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// How long the leader of a round waits ([`Mode::Seed`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Delay {
    /// As long as a flush takes.
    Full,
    /// Until the last round ended that long ago.
    #[default]
    Aged,
    /// Not at all.
    None,
}

impl Delay {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Aged, Self::None];

    /// As it is spelled.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Aged => "aged",
            Self::None => "none",
        }
    }

    /// By its spelling.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|delay| delay.name() == name)
    }
}

/// All choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How threads share flushes.
    pub mode: Mode,
    /// How long a leader waits.
    pub delay: Delay,
    /// Waits are at least this long.
    pub delay_min: Duration,
    /// Waits are at most this long.
    pub delay_max: Duration,
    /// If the device flushes faster than this on average, every thread flushes by itself ([`Mode::Seed`]).
    pub bypass_below: Duration,
    /// A mistake on purpose, for the crash lab: rounds are joined while their flush is in flight, too.
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
