//! Errors of writing back, told once to everybody who has the file open.
//!
//! A failure is noted on the file, where nobody waits for it. Each open file remembers up to where it was told:
//!
//! ```text
//! file    0 ----- error 1 ----- told ----- error 2
//! A open at 0:                  "1"                  "2"
//! B open at 0:                             "2"            one report, of the latest, for both
//! C opened before anybody was told of 1:   "1"            or it would be lost with the one who wrote
//! D opened after:                          nothing of 1
//! ```
//!
//! Invariants
//! 1. An open file hears of a failure that came while it was open, at the next time it asks, and hears of it once.
//! 2. A failure that nobody has heard of yet is heard by who opens the file next.
//!
//! Source: the behaviour of the kernel's errseq_t, Documentation/core-api/errseq.rst.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why dirty blocks could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteError {
    /// The device failed.
    Io = 1,
    /// There was no space for them.
    NoSpace = 2,
    /// The owner's quota was spent.
    Quota = 3,
}

/// Up to where somebody who has a file open was told of its errors.
#[derive(Debug, Default)]
pub struct Told(AtomicU64);

/// A file's latest error, and how many there were that somebody was told of in between.
///
/// One word: the error in the low byte, whether anybody was told in bit 8, a count above.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(AtomicU64);

const TOLD: u64 = 1 << 8;
const COUNT_ONE: u64 = 1 << 9;

impl ErrorLog {
    /// Notes a failure.
    pub(crate) fn note(&self, error: WriteError) {
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            // Counting only what was told keeps those apart who were told from those who were not.
            let count = (old & !(COUNT_ONE - 1)).wrapping_add(if old & TOLD != 0 || old == 0 {
                COUNT_ONE
            } else {
                0
            });
            Some(count | error as u64)
        });
    }

    /// Where an open file that is new begins.
    pub(crate) fn sample(&self) -> Told {
        let now = self.0.load(Ordering::Acquire);
        Told(AtomicU64::new(if now & TOLD == 0 { 0 } else { now }))
    }

    /// Was there ever one?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// What came since `seen`, which it sets to now.
    pub(crate) fn tell(&self, Told(seen): &Told) -> Option<WriteError> {
        let mut now = self.0.load(Ordering::Acquire);
        // The first look is for the usual case: no lock and no store.
        if now == seen.load(Ordering::Acquire) {
            return None;
        }
        while now & TOLD == 0 {
            match self.0.compare_exchange(now, now | TOLD, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => now |= TOLD,
                Err(changed) => now = changed,
            }
        }
        // Of two threads that ask on one open file, one is told.
        if seen.swap(now, Ordering::AcqRel) == now {
            return None;
        }
        match now as u8 {
            1 => Some(WriteError::Io),
            2 => Some(WriteError::NoSpace),
            3 => Some(WriteError::Quota),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_told_once() {
        let log = ErrorLog::default();
        let (a, b) = (log.sample(), log.sample());
        assert_eq!((log.tell(&a), log.tell(&b)), (None, None));
        log.note(WriteError::Io);
        assert_eq!(log.tell(&a), Some(WriteError::Io));
        assert_eq!(log.tell(&a), None);
        log.note(WriteError::NoSpace);
        assert_eq!(log.tell(&b), Some(WriteError::NoSpace), "the latest stands for both");
        assert_eq!(log.tell(&b), None);
        assert_eq!(log.tell(&a), Some(WriteError::NoSpace));
        assert_eq!(log.tell(&a), None);
    }

    #[test]
    fn the_same_error_again_is_told_again() {
        let log = ErrorLog::default();
        let a = log.sample();
        for _ in 0..3 {
            log.note(WriteError::Io);
            log.note(WriteError::Io);
            assert_eq!(log.tell(&a), Some(WriteError::Io));
            assert_eq!(log.tell(&a), None);
        }
    }

    #[test]
    fn what_nobody_was_told_waits_for_the_next_who_opens() {
        let log = ErrorLog::default();
        log.note(WriteError::Quota);
        let (late, later) = (log.sample(), log.sample());
        assert_eq!(log.tell(&late), Some(WriteError::Quota));
        let after = log.sample();
        assert_eq!(log.tell(&after), None, "opened after somebody was told");
        assert_eq!(log.tell(&later), Some(WriteError::Quota));
    }
}
