//! Numbers with a meaning: physical and logical blocks, inodes, groups, block sizes.
//!
//! A number of one kind never mixes with another: `Pblk(5) + Lblk(1)` does not compile.

use std::fmt;

/// A physical block number: counts file-system blocks from the start of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pblk(pub u64);

/// A logical block number: counts blocks from the start of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lblk(pub u32);

/// An inode number; the first is 1, and 0 means "none" on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ino(pub u32);

/// A block-group number; the first is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Group(pub u32);

/// A transaction of the engine, numbered in order from 1 while a volume is open; 0 is none. The log has
/// separate numbers, which wrap (`extant_jbd2_format::LogTid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tid(pub u64);

impl Tid {
    /// No transaction; before all others.
    pub const NONE: Tid = Tid(0);

    /// The transaction after this one.
    #[must_use]
    pub fn next(self) -> Tid {
        Tid(self.0 + 1)
    }

    /// The transaction before this one; [`NONE`](Self::NONE) before the first.
    #[must_use]
    pub fn before(self) -> Tid {
        Tid(self.0.saturating_sub(1))
    }

    /// The transaction's number modulo 2. Consecutive transactions differ, so two-element arrays can hold the
    /// data of both.
    #[must_use]
    pub fn parity(self) -> usize {
        (self.0 % 2) as usize
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Ino {
    /// The inode that owns the bad blocks.
    pub const BAD_BLOCKS: Ino = Ino(1);
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// The user quota file.
    pub const USER_QUOTA: Ino = Ino(3);
    /// The group quota file.
    pub const GROUP_QUOTA: Ino = Ino(4);
    /// The inode that owns the reserved group-descriptor blocks.
    pub const RESIZE: Ino = Ino(7);
    /// The internal journal.
    pub const JOURNAL: Ino = Ino(8);
    /// First inode that is not reserved, in every file system with dynamic inodes made by today's tools.
    pub const FIRST: Ino = Ino(11);
}

impl Pblk {
    /// The block `len` blocks after this one, or `None` on overflow.
    #[must_use]
    pub fn checked_add(self, len: u64) -> Option<Pblk> {
        self.0.checked_add(len).map(Pblk)
    }
}

macro_rules! display_number {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_number!(Pblk, Lblk, Ino, Group);

/// A block size: a power of two from 1 KiB to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize {
    log2: u8,
}

impl BlockSize {
    /// The smallest, 1 KiB.
    pub const MIN: BlockSize = BlockSize { log2: 10 };
    /// The most common size, 4 KiB.
    pub const KIB4: BlockSize = BlockSize { log2: 12 };
    /// The largest, 64 KiB.
    pub const MAX: BlockSize = BlockSize { log2: 16 };

    /// Converts a size in bytes; `None` unless it is a power of two from 1024 to 65536.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        (bytes.is_power_of_two() && (1024..=65536).contains(&bytes))
            .then(|| Self { log2: bytes.trailing_zeros() as u8 })
    }

    /// Converts the superblock's `s_log_block_size` (0 means 1 KiB); `None` above 6.
    #[must_use]
    pub fn from_log(log: u32) -> Option<Self> {
        (log <= 6).then(|| Self { log2: 10 + log as u8 })
    }

    /// The superblock's encoding of the size: 0 means 1 KiB.
    #[must_use]
    pub fn log(self) -> u32 {
        u32::from(self.log2) - 10
    }

    /// Base-2 logarithm of the size in bytes: 12 for 4 KiB.
    #[must_use]
    pub fn log2(self) -> u32 {
        u32::from(self.log2)
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        1 << self.log2
    }

    /// Size in bytes, as `usize`.
    #[must_use]
    pub fn len(self) -> usize {
        1 << self.log2
    }

    /// Always false. It exists because [`len`](Self::len) does.
    #[must_use]
    pub fn is_empty(self) -> bool {
        false
    }

    /// The number of blocks that `bytes` bytes need.
    #[must_use]
    pub fn blocks_for(self, bytes: u64) -> u64 {
        (bytes >> self.log2) + u64::from(bytes & (self.bytes() - 1) != 0)
    }

    /// Byte offset of a physical block; `None` past 2^64.
    #[must_use]
    pub fn offset_of(self, block: Pblk) -> Option<u64> {
        block.0.checked_mul(self.bytes())
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl fmt::Debug for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSize({})", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_from_1k_to_64k() {
        assert_eq!(BlockSize::from_bytes(4096), Some(BlockSize::KIB4));
        for bad in [0, 512, 1023, 3000, 131_072] {
            assert_eq!(BlockSize::from_bytes(bad), None);
        }
        assert_eq!(BlockSize::from_log(7), None);
        assert_eq!(BlockSize::KIB4.blocks_for(0), 0);
        assert_eq!(BlockSize::KIB4.blocks_for(1), 1);
        assert_eq!(BlockSize::KIB4.blocks_for(u64::MAX), 1 << 52);
    }
}
