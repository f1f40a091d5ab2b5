//! Blocks of unwritten extents that are written and will be converted soon. Until then, zeroing must not
//! overwrite them.
//!
//! ```text
//!   write back    mark -> write to the device -> convert -> unmark     many at a time
//!   zero out      writes zeros between the marked blocks               alone: no write is in flight
//! ```
//!
//! Invariant: the data of a marked block is completely on the device, unless its write is in flight.

use std::ops::Range;

use extant_base::rank::{self, RwLock, RwLockWriteGuard};
use parking_lot::Mutex;

/// The blocks of a file that were written and not converted yet. See the module's first page.
#[derive(Debug, Default)]
pub struct Unconverted {
    /// Held shared during writes, exclusively while zeros are written around marked blocks.
    writing: RwLock<(), { rank::WRITING }>,
    blocks: Mutex<Vec<Range<u64>>>,
}

/// A mark that blocks will be converted; dropping it removes the mark.
#[derive(Debug)]
pub struct ConversionMark<'a> {
    of: &'a Unconverted,
    blocks: Range<u64>,
}

/// While this value exists, no write to unwritten blocks of the file is in flight.
#[derive(Debug)]
pub struct WritesStopped<'a> {
    of: &'a Unconverted,
    _writing: RwLockWriteGuard<'a, (), { rank::WRITING }>,
}

impl Unconverted {
    /// Marks blocks of an unwritten extent, and writes them with `write`. Dropping the result removes the
    /// mark, whether or not the blocks were converted.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn write<E>(
        &self,
        blocks: Range<u64>,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<ConversionMark<'_>, E> {
        let _writing = self.writing.read();
        self.blocks.lock().push(blocks.clone());
        // If the write fails, the mark is removed before other threads can see it.
        let mark = ConversionMark { of: self, blocks };
        write()?;
        Ok(mark)
    }

    /// Waits for writes in flight, and keeps others from starting.
    #[must_use]
    pub fn stop(&self) -> WritesStopped<'_> {
        WritesStopped { of: self, _writing: self.writing.write() }
    }
}

impl WritesStopped<'_> {
    /// The parts of a range of blocks that are not marked.
    #[must_use]
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut written = self.of.blocks.lock().clone();
        written.sort_unstable_by_key(|blocks| blocks.start);
        let (mut gaps, mut at) = (Vec::new(), range.start);
        for blocks in written {
            if at < blocks.start.min(range.end) {
                gaps.push(at..blocks.start.min(range.end));
            }
            at = at.max(blocks.end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

impl Drop for ConversionMark<'_> {
    fn drop(&mut self) {
        let mut blocks = self.of.blocks.lock();
        if let Some(at) = blocks.iter().position(|blocks| *blocks == self.blocks) {
            blocks.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_the_unwritten_blocks() {
        let file = Unconverted::default();
        let ok = || Ok::<_, ()>(());
        let one = file.write(10..20, ok).unwrap();
        let two = file.write(30..40, ok).unwrap();
        file.write(50..60, || Err(())).unwrap_err();
        let gaps =
            |range| file.stop().gaps(&range).iter().map(|gap| (gap.start, gap.end)).collect::<Vec<_>>();
        assert_eq!(gaps(0..50), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(gaps(15..35), [(20, 30)]);
        assert_eq!(gaps(10..20), []);
        drop(one);
        assert_eq!(gaps(5..32), [(5, 30)]);
        drop(two);
        assert_eq!(gaps(5..62), [(5, 62)]);
    }
}
