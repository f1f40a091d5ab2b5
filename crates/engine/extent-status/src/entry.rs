//! The status of a run of a file's blocks.
//!
//! ```text
//! Entry    first block, length, status, first physical block, referenced        a value, for callers
//! Packed   | lblk: u32 | len: u32 | status: 2 bits . pblk: 59 bits |            16 bytes, in the tree
//! ```
//!
//! Whether an entry is referenced is kept in its chunk, so that a reader can set it without changing the
//! entry.

use std::fmt;

use extant_base::{Lblk, Pblk};

/// The block after the last one that a file can have: blocks are numbered from 0 to `END - 1`.
pub const END: u32 = u32::MAX;

/// Bits of a physical block number.
const PBLK_BITS: u32 = 59;
/// The physical block of an entry without one.
const NO_PBLK: u64 = (1 << PBLK_BITS) - 1;
const STATUS_SHIFT: u32 = 60;

/// The status of a run of blocks: exactly one of the four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Data on disk.
    Written,
    /// Allocated; reads as zeros.
    Unwritten,
    /// Not allocated yet; space is reserved. Must not be evicted.
    Delayed,
    /// Not allocated and not reserved: known to read as zeros.
    Hole,
}

impl Status {
    /// Whether blocks with this status are allocated on disk.
    #[must_use]
    pub fn is_mapped(self) -> bool {
        matches!(self, Self::Written | Self::Unwritten)
    }

    /// The letter of the status in dumps and events.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Written => 'W',
            Self::Unwritten => 'U',
            Self::Delayed => 'D',
            Self::Hole => 'H',
        }
    }
}

/// A run of blocks with one status.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its first block.
    pub lblk: Lblk,
    /// Length in blocks; at least 1, and `lblk + len` is at most [`END`].
    pub len: u32,
    /// Their status.
    pub status: Status,
    /// The first physical block if [`Status::is_mapped`], else 0.
    pub pblk: Pblk,
}

impl Entry {
    /// An entry with blocks on disk.
    #[must_use]
    pub fn mapped(lblk: u32, len: u32, pblk: u64, status: Status) -> Self {
        Self { lblk: Lblk(lblk), len, status, pblk: Pblk(pblk) }
    }

    /// A hole: blocks that are not on disk.
    #[must_use]
    pub fn hole(lblk: u32, len: u32) -> Self {
        Self { lblk: Lblk(lblk), len, status: Status::Hole, pblk: Pblk(0) }
    }

    /// The block after its last one.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.lblk.0 + self.len
    }

    /// Whether `lblk` is one of its blocks.
    #[must_use]
    pub fn contains(&self, lblk: u32) -> bool {
        self.lblk.0 <= lblk && lblk < self.end()
    }

    /// The part of it for `from..to`, which must lie inside it.
    #[must_use]
    pub fn part(&self, from: u32, to: u32) -> Self {
        debug_assert!(self.lblk.0 <= from && from < to && to <= self.end());
        let ahead = u64::from(from - self.lblk.0);
        let pblk = if self.status.is_mapped() { Pblk(self.pblk.0 + ahead) } else { Pblk(0) };
        Self { lblk: Lblk(from), len: to - from, pblk, ..*self }
    }

    /// Whether both give the same status to the blocks that they share.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let shift = |entry: &Self| entry.pblk.0.wrapping_sub(u64::from(entry.lblk.0));
        self.status == other.status && (!self.status.is_mapped() || shift(self) == shift(other))
    }

    /// Whether `next`, which begins where this one ends, can be merged with it.
    #[must_use]
    pub fn can_merge(&self, next: &Self) -> bool {
        self.end() == next.lblk.0 && self.agrees_with(next)
    }

    /// Whether it is valid in a tree: not empty, within the block numbers.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        // The end of the last block is END, the largest number.
        self.len > 0
            && self.lblk.0.checked_add(self.len).is_some()
            && (!self.status.is_mapped() || self.pblk.0 + u64::from(self.len) < NO_PBLK)
    }
}

impl fmt::Debug for Entry {
    /// `10+5 W 1000`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{} {}", self.lblk, self.len, self.status.letter())?;
        if self.status.is_mapped() { write!(f, " {}", self.pblk) } else { Ok(()) }
    }
}

/// An entry as the tree stores it.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    pub(crate) lblk: u32,
    pub(crate) len: u32,
    word: u64,
}

impl Packed {
    pub(crate) fn of(entry: &Entry) -> Self {
        let pblk = if entry.status.is_mapped() { entry.pblk.0 } else { NO_PBLK };
        Self { lblk: entry.lblk.0, len: entry.len, word: (entry.status as u64) << STATUS_SHIFT | pblk }
    }

    pub(crate) fn end(&self) -> u32 {
        self.lblk + self.len
    }

    pub(crate) fn status(&self) -> Status {
        match self.word >> STATUS_SHIFT {
            0 => Status::Written,
            1 => Status::Unwritten,
            2 => Status::Delayed,
            _ => Status::Hole,
        }
    }

    pub(crate) fn is_delayed(&self) -> bool {
        self.word >> STATUS_SHIFT == Status::Delayed as u64
    }

    pub(crate) fn entry(&self) -> Entry {
        let status = self.status();
        let pblk = if status.is_mapped() { self.word & NO_PBLK } else { 0 };
        Entry { lblk: Lblk(self.lblk), len: self.len, status, pblk: Pblk(pblk) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_everything_in_16_bytes() {
        assert_eq!(size_of::<Packed>(), 16);
        for status in [Status::Written, Status::Unwritten] {
            let entry = Entry::mapped(7, END - 7, (1 << 48) + 5, status);
            assert_eq!(Packed::of(&entry).entry(), entry);
        }
        for status in [Status::Delayed, Status::Hole] {
            let entry = Entry { status, ..Entry::hole(0, 1) };
            let packed = Packed::of(&entry);
            assert_eq!((packed.entry(), packed.is_delayed()), (entry, status == Status::Delayed));
        }
    }

    #[test]
    fn merging_needs_neighbours_of_one_kind_and_one_run_on_disk() {
        let first = Entry::mapped(0, 4, 100, Status::Written);
        assert!(first.can_merge(&Entry::mapped(4, 1, 104, Status::Written)));
        assert!(!first.can_merge(&Entry::mapped(4, 1, 105, Status::Written)));
        assert!(!first.can_merge(&Entry::mapped(4, 1, 104, Status::Unwritten)));
        assert!(!first.can_merge(&Entry::mapped(5, 1, 105, Status::Written)));
        assert!(Entry::hole(0, 4).can_merge(&Entry::hole(4, 9)));
        assert!(!Entry::hole(0, 0).is_sound() && !Entry::hole(1, END).is_sound());
        assert_eq!(format!("{first:?} {:?}", Entry::hole(3, 2)), "0+4 W 100 3+2 H");
    }
}
