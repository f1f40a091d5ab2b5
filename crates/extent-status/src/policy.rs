//! How the cache chooses what to forget.
//!
//! | policy | holes kept by delayed writes | inodes | within an inode | aging | ends when |
//! |---|---|---|---|---|---|
//! | `baseline` | no | least recently used first, sorted when nothing else helps | the tree from its first entry | none | enough reclaimed |
//! | `es-cache` | yes | as baseline | as baseline | none | enough reclaimed |
//! | `es-slist` | yes | round robin | as baseline | none | enough reclaimed |
//! | `es-ilist` | yes | round robin | a list of what may go | none | enough reclaimed |
//! | `es-gc` | yes | round robin | the same in two lists | found once: the other list | enough reclaimed |
//! | `upstream` | yes | round robin, only those with something to give | the tree from where the last scan stopped | a second chance | enough **looked at** |
//! | `es-chunk` | yes | a queue of those with something cold, else of those with something warm | a queue of chunks | a bit of each entry, spared chunks | one inode had its turn: enough reclaimed, or two full chunks looked at |
//!
//! Work of one scan, with n inodes on the list, e entries of an inode and d delayed ones among them, k
//! reclaimed: baseline and es-cache O(n log n + sum of e), es-slist O(n + sum of k + d), es-ilist O(n + k),
//! es-gc O(n + k + moves), upstream O(n + nr), es-chunk O(1).
//!
//! Rules that the six share: inodes that were precached are left out in the first round, and taken only if it
//! gave nothing and something was left out; so are inodes whose lock is taken, and the caller's own. If all
//! gave nothing, the caller's own gives.
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014, and what Linux
//! merged later.

mod chunks;
mod lru;
mod round;

use std::sync::Arc;

use crate::ages::Ages;
use crate::cache::Shared;
use crate::fifo::Fifo;
use crate::inode::Body;
use crate::tree::Order;

/// How much a scan matters; to es-chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// What is new gets time to be found.
    Usual,
    /// The budget is spent, and scans gave nothing: what is new goes, too.
    Urgent,
}

/// How the cache chooses what to forget. See the table on this module's first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// As before the series.
    Baseline,
    /// Holes that delayed writes find are kept.
    EsCache,
    /// And inodes go round robin.
    EsSlist,
    /// And each inode lists what may go.
    EsIlist,
    /// And what was found goes last.
    EsGc,
    /// What was taken into the kernel instead of the last two.
    Upstream,
    /// Ours: whole chunks, by the bits of their entries.
    #[default]
    EsChunk,
}

impl Policy {
    /// All, in the order of their history.
    pub const ALL: [Self; 7] = [
        Self::Baseline,
        Self::EsCache,
        Self::EsSlist,
        Self::EsIlist,
        Self::EsGc,
        Self::Upstream,
        Self::EsChunk,
    ];

    /// As options spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::EsCache => "es-cache",
            Self::EsSlist => "es-slist",
            Self::EsIlist => "es-ilist",
            Self::EsGc => "es-gc",
            Self::Upstream => "upstream",
            Self::EsChunk => "es-chunk",
        }
    }

    /// By its spelling.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Whether a delayed write that finds a hole on disk keeps it.
    #[must_use]
    pub fn keeps_holes_of_delayed_writes(self) -> bool {
        self != Self::Baseline
    }

    /// Whether an inode is listed when it is first used and stays until it is dropped; else it is listed
    /// while it has something to give.
    pub(crate) fn lists_whoever_is_used(self) -> bool {
        !matches!(self, Self::Upstream | Self::EsChunk)
    }

    /// The most scans after one change while the cache is over its limit: the six policies get the whole
    /// excess at once.
    pub(crate) fn scans_in_a_row(self) -> u32 {
        if self == Self::EsChunk { 8 } else { 1 }
    }

    pub(crate) fn order(self) -> Order {
        match self {
            Self::EsIlist | Self::EsGc => Order::Lists(Box::<Fifo>::default()),
            Self::EsChunk => Order::Ages(Ages::default()),
            _ => Order::Plain,
        }
    }

    /// One scan.
    pub(crate) fn scan(self, shared: &Shared, nr: u32, own: Option<&Arc<Body>>, need: Need) -> Scan {
        match self {
            Self::Baseline | Self::EsCache => lru::scan(shared, nr, own),
            Self::EsSlist | Self::EsIlist | Self::EsGc | Self::Upstream => round::scan(self, shared, nr, own),
            Self::EsChunk => chunks::scan(shared, nr, need),
        }
    }
}

/// What one scan did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// Entries forgotten.
    pub reclaimed: u32,
    /// Entries looked at one by one; chunks that were looked at as a whole count one.
    pub scanned: u32,
    /// Inodes on the list that were looked at, sorted ones included.
    pub inodes: u32,
    /// Inodes left out.
    pub skipped: u32,
    /// Whether there was a second round.
    pub retried: bool,
}
