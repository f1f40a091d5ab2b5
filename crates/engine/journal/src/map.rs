//! The places of a log's blocks.
//!
//! ```text
//! in a file system  log block 0 = its superblock; runs of blocks, in any order on the device
//! own device        log block n = block n of the device; superblock in block 1 (2 if blocks have 1 KiB)
//! ```
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst. mke2fs and the kernel count the blocks of an
//! external log from the start of the device, not from its superblock: `s_first` is 2 (3) there, and
//! `s_maxlen` the size of the device.

use extant_base::{BlockSize, Pblk};

/// Log blocks that are contiguous on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogRun {
    /// First log block.
    pub log: u32,
    /// The place of that block on the device.
    pub start: Pblk,
    /// Length in blocks.
    pub len: u32,
}

/// Why a list of runs is not a valid map of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapFault {
    /// A log block has no place. An unwritten run counts as a hole, too: list written blocks only.
    #[error("log block {log} of {blocks} is not mapped")]
    Hole {
        /// The first such block.
        log: u32,
        /// Blocks that the log should have.
        blocks: u32,
    },
    /// Two runs claim the same log block.
    #[error("log block {log} is mapped twice")]
    Twice {
        /// The first such block.
        log: u32,
    },
    /// Two log blocks have the same place.
    #[error("two blocks of the log lie at block {block}")]
    Overlap {
        /// The first such place.
        block: Pblk,
    },
    /// A run ends past the end of the device.
    #[error("log block {log} lies at block {block}, outside of the {limit} blocks there are")]
    Outside {
        /// First log block of the run.
        log: u32,
        /// Its place.
        block: Pblk,
        /// Blocks of the device.
        limit: u64,
    },
}

/// The places of all blocks of a log: no hole, no overlap, all within the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogMap {
    /// Sorted by log block, without gaps.
    runs: Vec<LogRun>,
    /// The same runs sorted by place; empty for an external log, which no home can overlap.
    places: Vec<(Pblk, u32)>,
    blocks: u32,
    superblock: u32,
}

impl LogMap {
    /// The map of a log of `blocks` blocks inside a file system of `limit` blocks. The runs may come in any
    /// order; parts past the end of the log are ignored.
    ///
    /// # Errors
    /// The first rule that the runs break; see [`MapFault`].
    pub fn internal(
        runs: impl IntoIterator<Item = LogRun>,
        blocks: u32,
        limit: u64,
    ) -> Result<Self, MapFault> {
        let mut runs: Vec<LogRun> = runs.into_iter().filter(|run| run.len > 0 && run.log < blocks).collect();
        runs.sort_unstable_by_key(|run| run.log);
        let mut next = 0;
        for run in &mut runs {
            if run.log < next {
                return Err(MapFault::Twice { log: run.log });
            }
            if run.log > next {
                return Err(MapFault::Hole { log: next, blocks });
            }
            run.len = run.len.min(blocks - run.log);
            let end = run.start.checked_add(run.len.into());
            if end.is_none_or(|end| end.0 > limit) {
                return Err(MapFault::Outside { log: run.log, block: run.start, limit });
            }
            next += run.len;
        }
        if next < blocks {
            return Err(MapFault::Hole { log: next, blocks });
        }
        let mut places: Vec<(Pblk, u32)> = runs.iter().map(|run| (run.start, run.len)).collect();
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[0].0.0 + u64::from(pair[0].1) > pair[1].0.0) {
            return Err(MapFault::Overlap { block: pair[1].0 });
        }
        Ok(Self { runs, places, blocks, superblock: 0 })
    }

    /// The map of an external log of `blocks` blocks. Log blocks are the device's blocks. The log's
    /// superblock is log block 1, or 2 if blocks have 1 KiB: it follows the block with the ext4 superblock at
    /// byte 1024.
    #[must_use]
    pub fn external(blocks: u32, block_size: BlockSize) -> Self {
        let superblock = if block_size == BlockSize::MIN { 2 } else { 1 };
        let runs = vec![LogRun { log: 0, start: Pblk(0), len: blocks }];
        Self { runs, places: Vec::new(), blocks, superblock }
    }

    /// Blocks of the log, including superblock and fast-commit area.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The log block of the log's superblock.
    #[must_use]
    pub fn superblock(&self) -> u32 {
        self.superblock
    }

    /// Whether the log is on its own device.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.superblock != 0
    }

    /// The runs, sorted by log block.
    #[must_use]
    pub fn runs(&self) -> &[LogRun] {
        &self.runs
    }

    /// The place of a log block, and the number of blocks contiguous on the device from there.
    #[must_use]
    pub fn find(&self, log: u32) -> Option<(Pblk, u32)> {
        let run = self.runs.get(self.runs.partition_point(|run| run.log <= log).checked_sub(1)?)?;
        let within = log - run.log;
        let place = run.start.checked_add(within.into())?;
        (within < run.len).then(|| (place, run.len - within))
    }

    /// Whether the log occupies this block of the target. Always false for an external log.
    #[must_use]
    pub fn occupies(&self, block: Pblk) -> bool {
        let at = self.places.partition_point(|(start, _)| *start <= block);
        at.checked_sub(1)
            .and_then(|at| self.places.get(at))
            .is_some_and(|(start, len)| block.0 - start.0 < u64::from(*len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(log: u32, start: u64, len: u32) -> LogRun {
        LogRun { log, start: Pblk(start), len }
    }

    #[test]
    fn blocks_are_found_in_any_order_of_runs() {
        let map = LogMap::internal([run(10, 50, 100), run(0, 70_000, 10)], 100, 80_000).unwrap();
        assert_eq!(map.find(0), Some((Pblk(70_000), 10)));
        assert_eq!(map.find(12), Some((Pblk(52), 88)));
        assert_eq!(map.find(100), None, "mapped, but behind the log");
        assert_eq!(
            [49, 50, 139, 140, 70_009, 70_010].map(|block| map.occupies(Pblk(block))),
            [false, true, true, false, true, false]
        );
    }

    #[test]
    fn what_is_no_map_is_refused() {
        let refused = |runs: &[LogRun]| LogMap::internal(runs.iter().copied(), 20, 1000).unwrap_err();
        assert_eq!(refused(&[]), MapFault::Hole { log: 0, blocks: 20 });
        assert_eq!(refused(&[run(0, 5, 10)]), MapFault::Hole { log: 10, blocks: 20 });
        assert_eq!(refused(&[run(0, 5, 10), run(11, 30, 9)]), MapFault::Hole { log: 10, blocks: 20 });
        assert_eq!(refused(&[run(0, 5, 10), run(9, 30, 11)]), MapFault::Twice { log: 9 });
        assert_eq!(refused(&[run(0, 5, 10), run(10, 14, 10)]), MapFault::Overlap { block: Pblk(14) });
        let outside = MapFault::Outside { log: 0, block: Pblk(981), limit: 1000 };
        assert_eq!(refused(&[run(0, 981, 20)]), outside);
        assert!(matches!(refused(&[run(0, u64::MAX, 20)]), MapFault::Outside { .. }));
    }

    #[test]
    fn a_log_on_its_own_device_is_where_it_says() {
        let map = LogMap::external(5000, BlockSize::KIB4);
        assert_eq!((map.superblock(), map.find(7)), (1, Some((Pblk(7), 4993))));
        assert!(!map.occupies(Pblk(7)) && map.is_external());
        assert_eq!(LogMap::external(5000, BlockSize::MIN).superblock(), 2);
    }
}
