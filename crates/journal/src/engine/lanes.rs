//! Handles that come and go without a lock, as long as the running transaction has much room.
//!
//! ```text
//! start   lane counts it; is it shut?   no  -> a handle           yes -> taken back; then as under the lock
//! end     lane counts it off; is it shut?                         yes -> wakes the committer
//! seal    shuts it; does any lane count one?                      yes -> waits
//! ```
//!
//! A starting handle is counted before it checks whether the transaction is closed, and the committer closes
//! it before it reads the counts: one of the two sees the other. The same holds for a request for room under
//! the lock: it takes the lock before it reads the lanes, and the lanes check it after they are counted. All
//! of these accesses are sequentially consistent for that reason.
//!
//! Invariants
//! 1. A lane has at most one handle, with at most [`CREDITS`]; so all lanes together have at most that much
//!    for each lane ever used. A lane is marked as used before it checks for room, so the last reader knows
//!    of all open lanes.
//! 2. While a lane counts a handle that was started, the running transaction is the same.
//! 3. A thread that enters a lane sees all writes of the threads that left it: per-lane data elsewhere
//!    (`extant_buffer::Edit::lane`) needs no lock.

use extant_base::Tid;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{CachePadded, thread_number};

/// Threads that have a lane of their own. In schedules few, and little room: so that both ways are taken.
#[cfg(not(feature = "shuttle"))]
const LANES: usize = 16;
#[cfg(feature = "shuttle")]
const LANES: usize = 2;

/// Blocks that a handle in a lane may ask for: enough for any operation on names.
#[cfg(not(feature = "shuttle"))]
pub(super) const CREDITS: u32 = 128;
#[cfg(feature = "shuttle")]
pub(super) const CREDITS: u32 = 2;

/// A lane's word: how many are open in the low bits, how many were started above.
const OPEN: u64 = 0xFFFF;
const ENTER: u64 = OPEN + 2;

/// Handles that were started in each lane, at some moment.
#[derive(Default)]
pub(super) struct Started([u64; LANES]);

/// The handles of the running transaction.
pub(super) struct Lanes {
    lanes: [CachePadded<AtomicU64>; LANES],
    /// A bit for each lane that was ever used.
    used: CachePadded<AtomicU32>,
    /// No handle is to be started without the lock.
    is_shut: CachePadded<AtomicBool>,
    /// The running transaction, while it is not shut.
    number: AtomicU64,
    /// Credits that were given under the lock. Changed under it.
    reserved: CachePadded<AtomicU32>,
}

impl Lanes {
    pub(super) fn new(number: Tid) -> Self {
        Self {
            lanes: Default::default(),
            used: CachePadded::default(),
            is_shut: CachePadded::default(),
            number: AtomicU64::new(number.0),
            reserved: CachePadded::default(),
        }
    }

    /// Starts a handle in this thread's lane, if the lane is free, the transaction is not being sealed, and
    /// `has_room` accepts a transaction and the credits of handles in lanes that may join it. Returns the
    /// lane and the transaction. `None`: start under the lock; the committer may have to be woken.
    pub(super) fn enter(&self, has_room: impl FnOnce(Tid, u32) -> bool) -> Option<(usize, Tid)> {
        let lane = thread_number() % LANES;
        let before = self.lanes[lane].fetch_add(ENTER, Ordering::SeqCst);
        if before & OPEN == 0 && !self.is_shut.load(Ordering::SeqCst) {
            // It stays this one, and not shut behind our back: see above.
            let number = Tid(self.number.load(Ordering::SeqCst));
            if has_room(number, self.noted(lane) * CREDITS) {
                return Some((lane, number));
            }
        }
        self.lanes[lane].fetch_sub(ENTER, Ordering::SeqCst);
        None
    }

    /// Lanes that were ever used, this one too.
    #[inline]
    fn noted(&self, lane: usize) -> u32 {
        let mut used = self.used.load(Ordering::SeqCst);
        if used >> lane & 1 == 0 {
            used = self.used.fetch_or(1 << lane, Ordering::SeqCst) | 1 << lane;
        }
        used.count_ones()
    }

    /// Ends a handle of this lane. Must the committer be woken?
    pub(super) fn leave(&self, lane: usize) -> bool {
        self.lanes[lane].fetch_sub(1, Ordering::SeqCst);
        self.is_shut.load(Ordering::SeqCst)
    }

    /// Handles in lanes; for a moment also those that will not be.
    pub(super) fn open(&self) -> u32 {
        self.lanes.iter().map(|lane| (lane.load(Ordering::SeqCst) & OPEN) as u32).sum()
    }

    /// Handles that were ever started in lanes.
    pub(super) fn started(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.load(Ordering::Relaxed) / (OPEN + 1)).sum()
    }

    /// Lanes in which handles were started since this was asked the last time, but for the caller's own.
    pub(super) fn busy(&self, last: &mut Started) -> usize {
        let own = thread_number() % LANES;
        let lanes = self.lanes.iter().zip(&mut last.0).enumerate();
        let is_busy = |(lane, (now, last)): (usize, (&CachePadded<AtomicU64>, &mut u64))| {
            let started = now.load(Ordering::Relaxed) / (OPEN + 1);
            std::mem::replace(last, started) != started && lane != own
        };
        lanes.map(is_busy).filter(|is_busy| *is_busy).count()
    }

    /// From here on [`open`](Self::open) only falls, but for those that are taken back at once.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    /// This is the running transaction now.
    pub(super) fn reopen(&self, number: Tid) {
        self.number.store(number.0, Ordering::SeqCst);
        self.is_shut.store(false, Ordering::SeqCst);
    }

    /// Credits that open handles may still use, of both kinds.
    pub(super) fn reserved(&self) -> u32 {
        self.given() + self.open() * CREDITS
    }

    /// Credits that were given under the lock.
    pub(super) fn given(&self) -> u32 {
        self.reserved.load(Ordering::SeqCst)
    }

    /// Gives credits under the lock, before it is known if there are so many.
    pub(super) fn give(&self, credits: u32) {
        self.reserved.fetch_add(credits, Ordering::SeqCst);
    }

    /// Takes them back.
    pub(super) fn take_back(&self, credits: u32) {
        self.reserved.fetch_sub(credits, Ordering::SeqCst);
    }
}
