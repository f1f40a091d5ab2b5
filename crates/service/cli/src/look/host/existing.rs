//! What a copy does with files that exist at its destination.
//!
//! Owns: which of two files stays, and the time of a source as a host's file system would store it. Does
//! **not** own: the same in an image (see `Attributes::storable_time`), and the replacement of a file.

use extant::Timestamp;

/// What a copy does with a name that exists at the destination. Existing directories are entered, unless
/// existing names are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// An error.
    Refuse,
    /// The new file takes the name.
    Replace,
    /// The old file stays.
    Keep,
    /// The file with the later modification time stays.
    Update,
}

impl Existing {
    /// Whether an existing file stays. `source` and `there`: modification times; that of the source as the
    /// destination would store it, else the same file would be copied again each time.
    pub(crate) fn stays(self, source: Timestamp, there: Timestamp) -> bool {
        match self {
            Self::Keep => true,
            Self::Update => there >= source,
            Self::Refuse | Self::Replace => false,
        }
    }
}

/// The latest second of file systems with 32 bits for it, such as ext3.
const LAST_SECOND_32: i64 = i32::MAX as i64;
/// Time zones differ from UTC by multiples of this.
const ZONE_SECONDS: i64 = 900;

/// A time as the file system of a host file would store it. `there`: the access, modification and change time
/// of the file. The system has no call for the resolution of a file system, so it is the largest power of ten
/// that divides the nanoseconds of all three: the change time is set by the system, and has no zeros at its
/// end where the file system stores all digits. FAT has even seconds, and days as access times.
pub(super) fn as_stored(time: Timestamp, there: [Timestamp; 3]) -> Timestamp {
    let is_whole = |unit: u32| there.iter().all(|time| time.nanos % unit == 0);
    let digits = (0..=9).rev().find(|digits| is_whole(10_u32.pow(*digits))).unwrap_or(0);
    let nanos = time.nanos - time.nanos % 10_u32.pow(digits);
    let is_fat =
        digits == 9 && there[0].seconds % ZONE_SECONDS == 0 && there.iter().all(|time| time.seconds % 2 == 0);
    let seconds = if is_fat { time.seconds - time.seconds.rem_euclid(2) } else { time.seconds };
    // A file has exactly this time where a later one was clamped.
    match seconds > LAST_SECOND_32 && there[1].seconds == LAST_SECOND_32 {
        true => Timestamp { seconds: LAST_SECOND_32, nanos: 0 },
        false => Timestamp { seconds, nanos },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    #[test]
    fn an_update_compares_with_the_time_that_the_destination_can_store() {
        let stays = |source: Timestamp, there: [Timestamp; 3]| {
            Existing::Update.stays(as_stored(source, there), there[1])
        };
        let source = time(1_700_000_001, 123_456_789);
        let now = time(1_800_000_001, 987_654_321);
        // Nanoseconds: a whole second of the destination is the file's time.
        assert!(stays(source, [source, source, now]));
        assert!(!stays(source, [now, time(1_700_000_001, 0), now]));
        assert!(!stays(source, [now, time(1_700_000_001, 123_456_788), now]));
        // Microseconds, and whole seconds.
        let there = [time(1, 0), time(1_700_000_001, 123_456_000), time(1_800_000_001, 987_654_000)];
        assert!(stays(source, there));
        let there = [time(1, 0), time(1_700_000_001, 0), time(1_800_000_001, 0)];
        assert!(stays(source, there));
        assert!(!stays(time(1_700_000_002, 0), there));
        // Even seconds are those of FAT only if the access time is a day.
        let mut there = [time(1_700_006_400, 0), time(1_700_000_000, 0), time(1_700_000_000, 0)];
        assert!(stays(source, there));
        assert!(!stays(time(1_700_000_002, 0), there));
        there[0].seconds += 2;
        assert!(!stays(source, there));
        // A clamped time.
        let there = [time(1, 0), time(LAST_SECOND_32, 0), time(1_800_000_001, 0)];
        assert!(stays(time(4_102_444_800, 5), there));
        assert!(!stays(time(4_102_444_800, 5), [there[0], time(LAST_SECOND_32 - 1, 0), there[2]]));
    }
}
