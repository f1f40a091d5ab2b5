//! The size of a new journal, by mke2fs's rule.

/// The minimum number of blocks of a journal's log; jbd2 refuses fewer.
pub const MIN_JOURNAL_BLOCKS: u32 = 1024;

/// The maximum number of blocks that mke2fs accepts for a journal.
pub const MAX_JOURNAL_BLOCKS: u32 = 10_240_000;

/// Exclusive upper bound of the file system's size in blocks, and the size of its journal.
const TABLE: [(u64, u32); 7] = [
    (32 << 10, 1 << 10),
    (256 << 10, 4 << 10),
    (512 << 10, 8 << 10),
    (4 << 20, 16 << 10),
    (8 << 20, 32 << 10),
    (16 << 20, 64 << 10),
    (32 << 20, 128 << 10),
];

/// Number of journal blocks that mke2fs allocates for a file system of `fs_blocks` blocks, without the
/// fast-commit area. `None` below 2048 blocks: mke2fs then makes no journal.
#[must_use]
pub fn default_journal_blocks(fs_blocks: u64) -> Option<u32> {
    if fs_blocks < 2048 {
        return None;
    }
    Some(TABLE.iter().find(|(below, _)| fs_blocks < *below).map_or(256 << 10, |(_, blocks)| *blocks))
}

/// Number of blocks of the fast-commit area that mke2fs adds to the journal of a file system of `fs_blocks`
/// blocks when the `fast_commit` feature is on.
///
/// It is 1/64 of the *default* journal, even if the user requested another journal size.
#[must_use]
pub fn default_fast_commit_blocks(fs_blocks: u64) -> Option<u32> {
    default_journal_blocks(fs_blocks).map(|blocks| blocks / 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_grows_in_steps_with_the_file_system() {
        for (fs_blocks, journal) in [
            (2047, None),
            (2048, Some(1024)),
            (32 * 1024 - 1, Some(1024)),
            (32 * 1024, Some(4096)),
            (256 * 1024, Some(8192)),
            (512 * 1024, Some(16_384)),
            (4 << 20, Some(32_768)),
            (8 << 20, Some(65_536)),
            (16 << 20, Some(131_072)),
            (32 << 20, Some(262_144)),
            (u64::MAX, Some(262_144)),
        ] {
            assert_eq!(default_journal_blocks(fs_blocks), journal, "{fs_blocks} blocks");
        }
        assert_eq!(default_fast_commit_blocks(65_536), Some(64));
    }
}
