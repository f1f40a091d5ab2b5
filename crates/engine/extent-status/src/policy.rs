//! Reclaim policies: how the cache chooses what to evict.
//!
//! | policy | holes (1) | inodes | within an inode | aging | stops after |
//! |---|---|---|---|---|---|
//! | `baseline` | no | LRU, sorted if nothing else helps | tree from its start | none | enough reclaimed |
//! | `es-cache` | yes | as baseline | as baseline | none | enough reclaimed |
//! | `es-slist` | yes | round robin | as baseline | none | enough reclaimed |
//! | `es-ilist` | yes | round robin | list of reclaimable entries | none | enough reclaimed |
//! | `es-gc` | yes | round robin | two such lists | found once: the other list | enough reclaimed |
//! | `upstream` | yes | round robin (2) | tree from the last stop | second chance | enough **examined** |
//! | `es-chunk` | yes | cold queue, else warm queue | queue of chunks | bit per entry, spared chunks | (3) |
//!
//! (1) Whether delayed writes cache the holes that they find. (2) Only inodes with reclaimable entries. (3)
//! One inode had its turn: enough reclaimed, or two full chunks examined.
//!
//! Work of one scan, with n inodes on the list, e entries of an inode of which d are delayed, and k
//! reclaimed: baseline and es-cache O(n log n + sum of e), es-slist O(n + sum of k + d), es-ilist O(n + k),
//! es-gc O(n + k + moves), upstream O(n + nr), es-chunk O(1).
//!
//! All policies but es-chunk share these rules. The first round skips precached inodes, inodes with a
//! contended lock, and the caller's own. The second round runs only if the first one reclaimed nothing and
//! skipped an inode; it includes precached inodes. If all of that reclaims nothing, the caller's own inode is
//! reclaimed from.
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014, and what Linux
//! merged later.

use crate::fifo::Fifo;
use crate::tree::{Ages, Order};

/// How the cache chooses what to evict. See the table in the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// The state before the series.
    Baseline,
    /// Caches the holes that delayed writes find.
    EsCache,
    /// Also visits inodes round robin.
    EsSlist,
    /// Also lists the reclaimable entries of each inode.
    EsIlist,
    /// Also reclaims entries last that were found again.
    EsGc,
    /// Merged into the kernel in place of the last two.
    Upstream,
    /// The default: reclaims chunk by chunk, by bits of the entries.
    #[default]
    EsChunk,
}

impl Policy {
    /// All policies, in historical order.
    pub const ALL: [Self; 7] = [
        Self::Baseline,
        Self::EsCache,
        Self::EsSlist,
        Self::EsIlist,
        Self::EsGc,
        Self::Upstream,
        Self::EsChunk,
    ];

    /// The name, as in options.
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

    /// Parses a name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Whether a delayed write that finds a hole on disk keeps it.
    #[must_use]
    pub fn keeps_holes_of_delayed_writes(self) -> bool {
        self != Self::Baseline
    }

    /// Whether an inode is listed at its first use and stays until it is dropped; otherwise it is listed
    /// while it has reclaimable entries.
    pub(crate) fn lists_inodes_at_first_use(self) -> bool {
        !matches!(self, Self::Upstream | Self::EsChunk)
    }

    /// Maximum number of scans after one change while the limit is exceeded. Only es-chunk splits the excess;
    /// the other policies get all of it in one scan.
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
}
