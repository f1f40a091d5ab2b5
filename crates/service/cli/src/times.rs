//! Parses times as people write them.
//!
//! ```text
//! @1700000000.25    seconds since 1970, with an optional fraction
//! 2024-05-06        midnight; 2024-05-06T07:08, 2024-05-06 07:08:09.5 are later that day
//! ...Z, ...+02:00   in UTC, or ahead of it; without either: UTC, so that a script does the same everywhere
//! ```
//!
//! Does **not** own: how times are printed (see `inspect::format`), local time.

use extant::Timestamp;

use crate::inspect::format::{SECONDS_PER_DAY, days_of_civil};

/// Parses a time.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, String> {
    let parsed = match text.strip_prefix('@') {
        Some(number) => parse_seconds(number),
        None => parse_iso(text),
    };
    parsed
        .ok_or_else(|| format!("\"{text}\" is no time; @1700000000, 2024-05-06 and 2024-05-06T07:08:09Z are"))
}

fn parse_seconds(number: &str) -> Option<Timestamp> {
    let (seconds, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_negative = seconds.starts_with('-');
    let mut seconds: i64 = seconds.parse().ok()?;
    let mut nanos = parse_fraction(fraction)?;
    if is_negative && nanos > 0 {
        // Nanoseconds count forward, even before 1970.
        seconds = seconds.checked_sub(1)?;
        nanos = 1_000_000_000 - nanos;
    }
    Some(Timestamp { seconds, nanos })
}

/// Parses the digits after the decimal point, at most nine, as nanoseconds.
fn parse_fraction(digits: &str) -> Option<u32> {
    let is_number = digits.len() <= 9 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{digits:0<9}").parse().ok()).flatten()
}

fn parse_iso(text: &str) -> Option<Timestamp> {
    let (date, rest) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(text[at + 1..].trim_start())),
        None => (text, None),
    };
    let mut parts = date.splitn(3, '-');
    let year = digits(parts.next()?, 4, 1..=9999)?;
    let month = digits(parts.next()?, 2, 1..=12)?;
    let day = digits(parts.next()?, 2, 1..=31)?;
    let days = days_of_civil(year, month, day)?;
    let Some(rest) = rest else { return of_day(days, "00:00", 0) };
    let zone = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    of_day(days, rest[..zone].trim_end(), parse_zone(&rest[zone..])?)
}

/// A time of day. `zone`: seconds by which the clock is ahead of UTC.
fn of_day(days: i64, clock: &str, zone: i64) -> Option<Timestamp> {
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.splitn(3, ':');
    let hour = digits(parts.next()?, 2, 0..=23)?;
    let minute = digits(parts.next()?, 2, 0..=59)?;
    // 60 is a leap second, which counts as the next second here.
    let second = parts.next().map_or(Some(0), |second| digits(second, 2, 0..=60))?;
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - zone;
    Some(Timestamp { seconds, nanos: parse_fraction(fraction)? })
}

/// Parses `Z`, `+02:00`, `-0530`, `+01` or nothing; returns seconds.
fn parse_zone(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first() {
        None => return Some(0),
        Some(b'Z' | b'z') => return (text.len() == 1).then_some(0),
        Some(b'+') => 1,
        Some(_) => -1,
    };
    let (hours, minutes) = match &text[1..] {
        hours if hours.len() == 2 => (hours, "00"),
        both => both.split_once(':').or_else(|| both.split_at_checked(2))?,
    };
    Some(sign * (digits(hours, 2, 0..=23)? * 3600 + digits(minutes, 2, 0..=59)? * 60))
}

/// Parses a number of exactly `len` digits within `limits`.
fn digits(text: &str, len: usize, limits: std::ops::RangeInclusive<i64>) -> Option<i64> {
    let is_number = text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().filter(|number| limits.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanos: u32) -> Result<Timestamp, String> {
        Ok(Timestamp { seconds, nanos })
    }

    #[test]
    fn seconds_since_1970_have_fractions() {
        assert_eq!(parse_time("@5"), time(5, 0));
        assert_eq!(parse_time("@5.25"), time(5, 250_000_000));
        assert_eq!(parse_time("@-1.5"), time(-2, 500_000_000));
    }

    #[test]
    fn dates_are_those_of_date() {
        // The expected times come from date(1).
        for text in [
            "1970-01-01",
            "2024-02-29T23:59:59Z",
            "2000-03-01 00:00",
            "1969-12-31T23:59:59.5Z",
            "2038-01-19T03:14:08+02:00",
            "2024-05-06T07:08:09-05:30",
            "2400-12-31T12:00:00+01",
            "1902-01-01T00:00:00Z",
        ] {
            let output = extant_testkit::command("date").args(["-u", "+%s %N", "-d", text]).output().unwrap();
            let output = String::from_utf8(output.stdout).unwrap();
            let (seconds, nanos) = output.trim().split_once(' ').unwrap();
            assert_eq!(parse_time(text), time(seconds.parse().unwrap(), nanos.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for wrong in [
            "",
            "5",
            "@",
            "@x",
            "@5.1234567890",
            "@5.x",
            "yesterday",
            "2024",
            "2024-5-6",
            "2024-13-01",
            "2023-02-29",
            "2024-05-06T",
            "2024-05-06T25:00",
            "2024-05-06T07",
            "2024-05-06T07:08:09X",
            "2024-05-06T07:08:09Zx",
            "2024-05-06T07:08:09+1",
            "2024-05-06T07:08:09+99:00",
            "2024-05-06T07:08:09.1234567891Z",
            "\u{e9}",
            "2024-05-06T\u{e9}",
            "2024-05-06T07:08+0\u{e9}",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
