//! The part of an inode that lists and scans reference, and its state.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use extant_base::Ino;
use extant_base::rank::{self, RwLock};

use crate::chunk::{Age, NONE, allocated};
use crate::tree::{Order, Tree};

/// The part of an inode that lists and scans reference.
pub(crate) struct Body {
    pub(crate) ino: Ino,
    /// Node number in the ring; under the ring's lock.
    pub(crate) place: AtomicU32,
    /// Tick of the last use; for the LRU policies.
    pub(crate) touched: AtomicU64,
    /// Mirrors of the state after the last change, for readers without the lock.
    pub(crate) entries: AtomicU32,
    pub(crate) reclaimable: AtomicU32,
    pub(crate) precached: AtomicBool,
    pub(crate) state: RwLock<State, { rank::EXTENT_STATUS }>,
}

pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) seq: u64,
    /// Where the last scan stopped; for the policy upstream.
    pub(crate) cursor: u32,
    /// The list of the ring that it is on; for the policies that list inodes with reclaimable entries.
    pub(crate) listed: Age,
    /// Bytes as last counted.
    pub(crate) bytes: usize,
    #[expect(clippy::box_collection, reason = "one word where there are none")]
    pub(crate) pending: Option<Box<BTreeSet<u32>>>,
}

impl Body {
    pub(crate) fn new(ino: Ino, order: Order) -> Self {
        let state =
            State { tree: Tree::new(order), seq: 0, cursor: 0, listed: Age::None, bytes: 0, pending: None };
        Self {
            ino,
            place: AtomicU32::new(NONE),
            touched: AtomicU64::new(0),
            entries: AtomicU32::new(0),
            reclaimable: AtomicU32::new(0),
            precached: AtomicBool::new(false),
            state: RwLock::new(state),
        }
    }

    pub(crate) fn is(&self, other: &Body) -> bool {
        std::ptr::eq(self, other)
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.place.load(Relaxed) != NONE
    }

    /// Bytes of an inode without entries.
    pub(crate) fn bytes() -> usize {
        allocated(size_of::<Self>() + 2 * size_of::<usize>())
    }
}
