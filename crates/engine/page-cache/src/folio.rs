//! A folio: bytes of a file at a multiple of their size, and the state of each block of them.
//!
//! ```text
//! blocks      0 1 2 3 4 5 6 7
//! uptodate    . x x x x x . .      may be read
//! dirty       . . x x . . . .      newer than what the backing has
//! writing     . x x . . . . .      in flight in a run; block 2 was written again since
//! ```
//!
//! Invariants
//! 1. A block that is dirty or in writeback is uptodate.
//! 2. A folio that is `gone` from its file has no memory and no bits; a caller that finds one looks it up
//!    again.
//! 3. Shared bytes (of a run in flight to the device) never change: a writer takes memory of its own
//!    ([`State::own_bytes`]). So a writer never waits for the device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::bits::Bits;
use crate::order::PAGE_SHIFT;
use crate::pool::Memory;
use crate::{Order, Shared};

/// The file of a folio, as reclaim needs it.
pub(crate) trait Owner: Send + Sync {
    /// Removes a folio from the file and takes its memory, if it is clean and idle and no lock on the way is
    /// contended.
    fn evict(&self, folio: &Arc<Folio>) -> Option<Arc<Memory>>;
}

pub(crate) struct Folio {
    /// Its first page.
    pub(crate) page: u64,
    pub(crate) order: Order,
    pub(crate) owner: Weak<dyn Owner>,
    /// Read or written since the hand of the clock passed.
    pub(crate) is_referenced: AtomicBool,
    /// The folio's place in the clock: see `reclaim`.
    pub(crate) ring: usize,
    pub(crate) ring_at: AtomicUsize,
    pub(crate) state: RwLock<State>,
}

pub(crate) struct State {
    pub(crate) bytes: Option<Arc<Memory>>,
    pub(crate) uptodate: Bits,
    pub(crate) dirty: Bits,
    pub(crate) writing: Bits,
}

impl Folio {
    pub(crate) fn new(
        page: u64,
        memory: Memory,
        order: Order,
        block_shift: u32,
        owner: Weak<dyn Owner>,
        ring: usize,
    ) -> Self {
        let blocks = (order.bytes() >> block_shift) as u32;
        let state = State {
            bytes: Some(Arc::new(memory)),
            uptodate: Bits::new(blocks),
            dirty: Bits::new(blocks),
            writing: Bits::new(blocks),
        };
        Self {
            page,
            order,
            owner,
            is_referenced: AtomicBool::new(false),
            ring,
            ring_at: AtomicUsize::new(usize::MAX),
            state: RwLock::new(state),
        }
    }

    /// Its first byte in the file.
    pub(crate) fn pos(&self) -> u64 {
        self.page << PAGE_SHIFT
    }

    /// Its end in the file.
    pub(crate) fn end(&self) -> u64 {
        self.pos() + self.order.bytes()
    }

    /// Makes the clock's hand pass the folio once. Stores only a change: readers share the cache line.
    pub(crate) fn touch(&self) {
        if !self.is_referenced.load(Ordering::Relaxed) {
            self.is_referenced.store(true, Ordering::Relaxed);
        }
    }
}

impl State {
    pub(crate) fn is_gone(&self) -> bool {
        self.bytes.is_none()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().map_or(&[], |memory| memory)
    }

    /// The bytes, for changing. If a run holds them, the folio first gets memory of its own. All bytes are
    /// copied except those of `replaced`, which the caller is going to set.
    pub(crate) fn own_bytes(&mut self, shared: &Shared, order: Order, replaced: Range<usize>) -> &mut [u8] {
        let Some(bytes) = &mut self.bytes else { return &mut [] };
        if Arc::get_mut(bytes).is_none() {
            let mut own = shared.take_memory(order);
            own[..replaced.start].copy_from_slice(&bytes[..replaced.start]);
            own[replaced.end..].copy_from_slice(&bytes[replaced.end..]);
            shared.counts.copies_for_writers.add(1);
            *bytes = Arc::new(own);
        }
        Arc::get_mut(bytes).map_or(&mut [], |memory| memory)
    }

    /// Takes the memory and clears all bits: the folio is gone.
    pub(crate) fn take(&mut self) -> Option<Arc<Memory>> {
        debug_assert!(self.dirty.is_empty() && self.writing.is_empty());
        self.uptodate = Bits::new(0);
        self.bytes.take()
    }
}
