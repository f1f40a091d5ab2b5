//! Inode timestamps: a signed 32-bit word of seconds, and an extra word with 2 more bits of seconds and 30
//! bits of nanoseconds. Together they cover 1901-12-13 to 2446-05-10.
//!
//! Source: kernel Documentation/filesystems/ext4/inodes.rst, "Inode Timestamps".

/// A point in time as an inode stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC, from [`Timestamp::MIN_SECONDS`] to [`Timestamp::MAX_SECONDS`].
    pub seconds: i64,
    /// Nanoseconds; in a damaged inode possibly 10^9 or more.
    pub nanos: u32,
}

impl Timestamp {
    /// 1901-12-13 20:45:52 UTC.
    pub const MIN_SECONDS: i64 = i32::MIN as i64;
    /// 2446-05-10 22:38:55 UTC.
    pub const MAX_SECONDS: i64 = i32::MAX as i64 + (3 << 32);

    /// A time that an inode with 32 extra bytes can store; `None` if it is out of range.
    #[must_use]
    pub fn new(seconds: i64, nanos: u32) -> Option<Self> {
        ((Self::MIN_SECONDS..=Self::MAX_SECONDS).contains(&seconds) && nanos < 1_000_000_000)
            .then_some(Self { seconds, nanos })
    }

    /// The nearest time that an inode can store. `extra`: the inode has the extra words; else the range is
    /// whole seconds from 1901 to 2038.
    #[must_use]
    pub fn clamped(self, extra: bool) -> Self {
        let (max, keep_nanos) = if extra { (Self::MAX_SECONDS, true) } else { (i64::from(i32::MAX), false) };
        let seconds = self.seconds.clamp(Self::MIN_SECONDS, max);
        let nanos = if keep_nanos && seconds == self.seconds { self.nanos.min(999_999_999) } else { 0 };
        Self { seconds, nanos }
    }

    /// Decodes the two words on disk; `extra` is 0 if the inode has no space for it.
    #[must_use]
    pub fn from_disk(base: u32, extra: u32) -> Self {
        let seconds = i64::from(base as i32) + (i64::from(extra & 3) << 32);
        Self { seconds, nanos: extra >> 2 }
    }

    /// The word of seconds, for the disk.
    #[must_use]
    pub fn disk_base(self) -> u32 {
        self.seconds as u32
    }

    /// The extra word, for the disk. Its epoch bits count how many times 2^32 was subtracted from the seconds
    /// to fit them into a signed word.
    #[must_use]
    pub fn disk_extra(self) -> u32 {
        let epoch = ((self.seconds - i64::from(self.seconds as i32)) >> 32) as u32 & 3;
        epoch | self.nanos << 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_corners() {
        // The rows of the table in the kernel documentation: extra epoch bits, sign bit of the base word.
        for (seconds, base, epoch) in [
            (-1, 0xFFFF_FFFF, 0),
            (-0x8000_0000, 0x8000_0000, 0),
            (0x7FFF_FFFF, 0x7FFF_FFFF, 0),
            (0x8000_0000, 0x8000_0000, 1),
            (0xFFFF_FFFF, 0xFFFF_FFFF, 1),
            (0x1_0000_0000, 0, 1),
            (0x3_7FFF_FFFF, 0x7FFF_FFFF, 3),
        ] {
            let time = Timestamp::new(seconds, 5).unwrap();
            assert_eq!((time.disk_base(), time.disk_extra()), (base, epoch | 5 << 2), "{seconds}");
        }
        assert_eq!(Timestamp::new(0x3_8000_0000, 0), None);
        assert_eq!(
            Timestamp { seconds: 4_102_444_800, nanos: 7 }.clamped(false).seconds,
            i64::from(i32::MAX)
        );
    }

    proptest! {
        #[test]
        fn every_pair_of_words_survives(base in any::<u32>(), extra in any::<u32>()) {
            let time = Timestamp::from_disk(base, extra);
            prop_assert_eq!((time.disk_base(), time.disk_extra()), (base, extra));
        }
    }
}
