//! In-memory data for changes of a directory: decoded index blocks, and the names of leaves.
//!
//! ```text
//! index:    block -> keys and children [0 5, 0x4000 1, 0x9002 7, ..]     a lookup reads no index block
//! leaves:   block -> names, room, location                               an insert reads no leaf
//! ```
//!
//! All data can be rebuilt from the blocks. If the index and the notes of leaves exceed their common limit,
//! all notes are dropped, and then the nodes.

use std::fmt;

use super::index::Index;
use super::leaf_cache::{LeafCache, Limits};
use super::leaves::Leaves;
use super::stats::Stats;

/// Default memory limit in bytes.
const LIMIT_BYTES: usize = 64 << 20;

/// A directory's memory for changes: see [`super::Editor::new`].
pub struct DirCache {
    pub(super) index: Index,
    pub(super) leaves: Leaves,
    pub(super) stats: Stats,
}

impl Default for DirCache {
    fn default() -> Self {
        Self::new(LIMIT_BYTES)
    }
}

impl DirCache {
    /// An empty cache, limited to about `limit_bytes` and 64 bytes for each block of the directory.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let limits = Limits { bytes: limit_bytes, filter_bytes: 0, noted_blocks: usize::MAX };
        Self { index: Index::default(), leaves: Leaves::new(limits), stats: Stats::default() }
    }

    /// Adds `bytes` bytes of memory for filters. For a cache that is empty.
    #[must_use]
    pub fn with_filters(mut self, bytes: usize) -> Self {
        let limits = Limits { filter_bytes: bytes, ..self.leaves.cache.limits() };
        self.leaves.cache = LeafCache::new(limits);
        self
    }

    /// Limits notes to directories of at most so many blocks. Notes take twice the memory of filters, and are
    /// of little use while a leaf itself is not in memory. For a cache that is empty.
    #[must_use]
    pub fn with_notes_up_to(mut self, blocks: usize) -> Self {
        let limits = Limits { noted_blocks: blocks, ..self.leaves.cache.limits() };
        self.leaves.cache = LeafCache::new(limits);
        self
    }

    /// Whether leaves without notes or filters may get them. When memory is short, it is better to keep the
    /// data of some leaves of each directory than to replace it constantly.
    pub fn set_may_grow(&mut self, may_grow: bool) {
        self.leaves.cache.set_may_grow(may_grow);
    }

    /// The last value of [`set_may_grow`](Self::set_may_grow).
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.leaves.cache.may_grow()
    }

    /// Drops all data except statistics. Always correct; required after blocks were changed by other means.
    pub fn clear(&mut self) {
        self.index.clear();
        self.leaves.clear();
    }

    /// Statistics since the cache was created.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Memory in use, in bytes (approximate).
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.index.held_bytes() + self.leaves.held_bytes()
    }
}

impl fmt::Debug for DirCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, noted) = (self.index.len(), self.leaves.cache.noted());
        write!(f, "DirCache: {nodes} nodes, {noted} leaves, {} bytes", self.held_bytes())
    }
}
