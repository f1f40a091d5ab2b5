//! Writeback errors, reported once to each open file.
//!
//! A failure is noted on the file. Each open file remembers the position up to which it reported errors:
//!
//! ```text
//! file    0 ----- error 1 ---- reported --- error 2
//! A open at 0:                  "1"                  "2"
//! B open at 0:                             "2"            one report, of the latest, for both
//! C opened before 1 was reported:          "1"            otherwise it is lost when the writer closes
//! D opened after:                          nothing of 1
//! ```
//!
//! Invariants
//! 1. An open file reports a failure that occurs while it is open on its next check, and only once.
//! 2. A failure that no open file has reported yet is reported by the next one opened.
//!
//! Source: the behaviour of the kernel's errseq_t, Documentation/core-api/errseq.rst.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why dirty blocks could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteError {
    /// The device failed.
    Io = 1,
    /// No space was left for them.
    NoSpace = 2,
    /// The owner's quota was exhausted.
    Quota = 3,
}

/// The position up to which an open file has reported errors.
#[derive(Debug, Default)]
pub struct ErrorCursor(AtomicU64);

/// A file's latest error, and the number of errors that were reported in between.
///
/// One word: the error in the low byte, a flag in bit 8 that it was reported, a count above.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(AtomicU64);

const SEEN: u64 = 1 << 8;
const COUNT_ONE: u64 = 1 << 9;

impl ErrorLog {
    /// Notes a failure.
    pub(crate) fn note(&self, error: WriteError) {
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            // The count grows only after a report, so it separates open files that have reported the error
            // from the others.
            let count = (old & !(COUNT_ONE - 1)).wrapping_add(if old & SEEN != 0 || old == 0 {
                COUNT_ONE
            } else {
                0
            });
            Some(count | error as u64)
        });
    }

    /// The start position of a new open file.
    pub(crate) fn sample(&self) -> ErrorCursor {
        let now = self.0.load(Ordering::Acquire);
        ErrorCursor(AtomicU64::new(if now & SEEN == 0 { 0 } else { now }))
    }

    /// Whether no error was ever noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Returns the error since `seen`, and moves `seen` to now.
    pub(crate) fn check_and_advance(&self, ErrorCursor(seen): &ErrorCursor) -> Option<WriteError> {
        let mut now = self.0.load(Ordering::Acquire);
        // Fast path: no lock and no store.
        if now == seen.load(Ordering::Acquire) {
            return None;
        }
        while now & SEEN == 0 {
            match self.0.compare_exchange(now, now | SEEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => now |= SEEN,
                Err(changed) => now = changed,
            }
        }
        // Of two threads that check one open file, one gets the error.
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
    fn every_open_file_gets_an_error_once() {
        let log = ErrorLog::default();
        let (a, b) = (log.sample(), log.sample());
        assert_eq!((log.check_and_advance(&a), log.check_and_advance(&b)), (None, None));
        log.note(WriteError::Io);
        assert_eq!(log.check_and_advance(&a), Some(WriteError::Io));
        assert_eq!(log.check_and_advance(&a), None);
        log.note(WriteError::NoSpace);
        assert_eq!(log.check_and_advance(&b), Some(WriteError::NoSpace), "the latest stands for both");
        assert_eq!(log.check_and_advance(&b), None);
        assert_eq!(log.check_and_advance(&a), Some(WriteError::NoSpace));
        assert_eq!(log.check_and_advance(&a), None);
    }

    #[test]
    fn the_same_error_again_is_reported_again() {
        let log = ErrorLog::default();
        let a = log.sample();
        for _ in 0..3 {
            log.note(WriteError::Io);
            log.note(WriteError::Io);
            assert_eq!(log.check_and_advance(&a), Some(WriteError::Io));
            assert_eq!(log.check_and_advance(&a), None);
        }
    }

    #[test]
    fn an_unreported_error_is_kept_for_the_next_open() {
        let log = ErrorLog::default();
        log.note(WriteError::Quota);
        let (late, later) = (log.sample(), log.sample());
        assert_eq!(log.check_and_advance(&late), Some(WriteError::Quota));
        let after = log.sample();
        assert_eq!(log.check_and_advance(&after), None, "opened after the error was reported");
        assert_eq!(log.check_and_advance(&later), Some(WriteError::Quota));
    }
}
