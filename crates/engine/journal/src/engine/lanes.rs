//! Lanes: per-thread slots in which handles start and end without a lock, while the running transaction has
//! plenty of room.
//!
//! ```text
//! start   count it in the lane; is the transaction shut?   no  -> a handle     yes -> undo; slow path
//! end     uncount it; is the transaction shut?                                 yes -> wake the committer
//! seal    shut it; does any lane count a handle?                               yes -> wait
//! ```
//!
//! A starting thread is counted before it checks whether the transaction is shut. The committer shuts the
//! transaction before it checks the counts: one of the two sees the other. The same holds for a thread that
//! reserves credits under the lock: it reserves before it reads the lanes, and lanes read the reservation
//! after they are counted. This requires sequential consistency for all of these accesses.
//!
//! Invariants
//! 1. A lane has at most one handle, with at most [`CREDITS`]. All lanes together thus hold at most
//!    [`CREDITS`] for each lane ever used. A lane is marked as used before it checks for room, so the last
//!    thread to check knows all lanes that are open.
//! 2. While a lane counts a started handle, the running transaction does not change.
//! 3. A thread that enters a lane sees all writes of the threads that left it before: per-lane data
//!    (`extant_buffer::Edit::lane`) needs no lock.

use extant_base::Tid;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{CachePadded, thread_number};

/// Number of lanes. Schedule tests use few lanes and little room, so that they cover both paths.
#[cfg(not(feature = "shuttle"))]
const LANES: usize = 16;
#[cfg(feature = "shuttle")]
const LANES: usize = 2;

/// Blocks that a handle in a lane may request: enough for any operation on names.
#[cfg(not(feature = "shuttle"))]
pub(super) const CREDITS: u32 = 128;
#[cfg(feature = "shuttle")]
pub(super) const CREDITS: u32 = 2;

/// A lane's word: open handles in the low bits, handles started above them.
const OPEN: u64 = 0xFFFF;
const ENTER: u64 = OPEN + 2;

/// The handles started in each lane, at some point in time.
#[derive(Default)]
pub(super) struct Started([u64; LANES]);

/// The handles of the running transaction that were started without the lock.
pub(super) struct Lanes {
    lanes: [CachePadded<AtomicU64>; LANES],
    /// One bit for each lane ever used.
    used: CachePadded<AtomicU32>,
    /// No handle may start without the lock.
    is_shut: CachePadded<AtomicBool>,
    /// The running transaction, while it is not shut.
    number: AtomicU64,
    /// Credits granted under the lock; changed only under it.
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

    /// Starts a handle in this thread's lane if the lane is free, no transaction is being sealed, and
    /// `has_room` accepts the transaction and the credits that handles in lanes may use. Returns the lane and
    /// the transaction. `None`: start under the lock; the committer may have to be woken.
    pub(super) fn enter(&self, has_room: impl FnOnce(Tid, u32) -> bool) -> Option<(usize, Tid)> {
        let lane = thread_number() % LANES;
        let before = self.lanes[lane].fetch_add(ENTER, Ordering::SeqCst);
        if before & OPEN == 0 && !self.is_shut.load(Ordering::SeqCst) {
            // From here on the committer cannot shut this transaction before the handle ends: see the
            // module's documentation.
            let number = Tid(self.number.load(Ordering::SeqCst));
            if has_room(number, self.noted(lane) * CREDITS) {
                return Some((lane, number));
            }
        }
        self.lanes[lane].fetch_sub(ENTER, Ordering::SeqCst);
        None
    }

    /// Number of lanes ever used, including this one.
    #[inline]
    fn noted(&self, lane: usize) -> u32 {
        let mut used = self.used.load(Ordering::SeqCst);
        if used >> lane & 1 == 0 {
            used = self.used.fetch_or(1 << lane, Ordering::SeqCst) | 1 << lane;
        }
        used.count_ones()
    }

    /// Ends a handle of this lane. Returns whether the committer has to be woken.
    pub(super) fn leave(&self, lane: usize) -> bool {
        self.lanes[lane].fetch_sub(1, Ordering::SeqCst);
        self.is_shut.load(Ordering::SeqCst)
    }

    /// Open handles in lanes. Briefly includes starts that are about to be undone.
    pub(super) fn open(&self) -> u32 {
        self.lanes.iter().map(|lane| (lane.load(Ordering::SeqCst) & OPEN) as u32).sum()
    }

    /// Handles ever started in lanes.
    pub(super) fn started(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.load(Ordering::Relaxed) / (OPEN + 1)).sum()
    }

    /// Lanes in which handles were started since the last call, without the caller's own.
    pub(super) fn busy(&self, last: &mut Started) -> usize {
        let own = thread_number() % LANES;
        let lanes = self.lanes.iter().zip(&mut last.0).enumerate();
        let is_busy = |(lane, (now, last)): (usize, (&CachePadded<AtomicU64>, &mut u64))| {
            let started = now.load(Ordering::Relaxed) / (OPEN + 1);
            std::mem::replace(last, started) != started && lane != own
        };
        lanes.map(is_busy).filter(|is_busy| *is_busy).count()
    }

    /// From here on [`open`](Self::open) only falls, except for starts that are undone at once.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    /// Makes `number` the running transaction.
    pub(super) fn reopen(&self, number: Tid) {
        self.number.store(number.0, Ordering::SeqCst);
        self.is_shut.store(false, Ordering::SeqCst);
    }

    /// Credits that open handles may still use, of both kinds.
    pub(super) fn reserved(&self) -> u32 {
        self.granted() + self.open() * CREDITS
    }

    /// Credits granted under the lock.
    pub(super) fn granted(&self) -> u32 {
        self.reserved.load(Ordering::SeqCst)
    }

    /// Grants credits under the lock, before the check whether there are enough.
    pub(super) fn grant(&self, credits: u32) {
        self.reserved.fetch_add(credits, Ordering::SeqCst);
    }

    /// Takes granted credits back.
    pub(super) fn take_back(&self, credits: u32) {
        self.reserved.fetch_sub(credits, Ordering::SeqCst);
    }
}
