//! Output formats of single values: times, sizes, modes, names, checksums.
//!
//! Invariants
//! 1. A value in a derived form is printed with its raw number.
//! 2. Bytes from a disk are escaped: no control character of a name or label reaches the terminal.

use extant_ondisk::filetype::FileType;
use extant_ondisk::superblock::uuid_text;
use extant_ondisk::time::Timestamp;
use serde_json::{Value, json};

pub(crate) const SECONDS_PER_DAY: i64 = 86_400;

/// A time such as `2024-05-06T07:08:09Z`, in the proleptic Gregorian calendar, for any number of seconds.
pub(crate) fn iso_seconds(seconds: i64) -> String {
    let (date, time) = iso_parts(seconds);
    format!("{date}T{time}Z")
}

/// A time such as `2024-05-06T07:08:09.123456789Z`.
pub(crate) fn iso_time(time: Timestamp) -> String {
    let (date, clock) = iso_parts(time.seconds);
    format!("{date}T{clock}.{:09}Z", time.nanos)
}

fn iso_parts(seconds: i64) -> (String, String) {
    let (days, rest) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = civil(days);
    let time = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    (format!("{year:04}-{month:02}-{day:02}"), time)
}

/// Year, month and day of a day number; day 0 is 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years start in March, so that the leap day is the last day of a year; a 400-year era has 146,097 days.
    let since_march_0000 = days + 719_468;
    let (era, day_of_era) = (since_march_0000.div_euclid(146_097), since_march_0000.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The day number of a date; day 0 is 1970-01-01. `None` if the month has no such day.
pub(crate) fn days_of_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    let year_from_march = year - i64::from(month <= 2);
    let (era, year_of_era) = (year_from_march.div_euclid(400), year_from_march.rem_euclid(400));
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// An inode's time for JSON.
pub(crate) fn time_json(time: Timestamp) -> Value {
    json!({"iso": iso_time(time), "seconds": time.seconds, "nanos": time.nanos})
}

/// A time of the superblock: seconds since 1970; 0 means never.
pub(super) fn super_time(seconds: u64) -> (String, Value) {
    if seconds == 0 {
        return ("never (0)".to_owned(), Value::Null);
    }
    let iso = iso_seconds(i64::try_from(seconds).unwrap_or(0)); // 40 bits
    (iso.clone(), json!({"iso": iso, "seconds": seconds}))
}

/// A size such as `1.5 GiB`; in bytes below 1 KiB.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let exponent = (bytes.ilog2() / 10) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * exponent);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[exponent - 1])
}

/// A size such as `123456 bytes (120.5 KiB)`.
pub(super) fn bytes_and_human(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ => format!("{bytes} bytes ({})", human(bytes)),
    }
}

/// A mode in the format of ls, such as `-rwsr-xr-x`; `?` for an unknown file type.
pub(crate) fn mode_letters(mode: u16) -> String {
    let kind = match FileType::from_mode(mode) {
        FileType::Unknown => '?',
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Symlink => 'l',
    };
    let mut letters = String::from(kind);
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

/// Escapes a name in the format of `ls -b`: printable UTF-8 is unchanged, other bytes become C escapes and
/// octal.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                ' ' => text.push_str("\\ "),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                c if c.is_control() || is_invisible(c) => {
                    octal(c.encode_utf8(&mut [0; 4]).as_bytes(), &mut text)
                }
                c => text.push(c),
            }
        }
        octal(chunk.invalid(), &mut text);
    }
    text
}

/// Characters that are invisible and change the appearance of their neighbours: directions and separators.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}')
}

fn octal(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        text.push_str(&format!("\\{byte:03o}"));
    }
}

/// Bytes in quotes, escaped like a name but with plain spaces.
pub(crate) fn quote(bytes: &[u8]) -> String {
    format!("\"{}\"", escape(bytes).replace("\\ ", " ").replace('"', "\\\""))
}

/// A label or path of the superblock: quoted, or `(none)`.
pub(super) fn text_field(bytes: &[u8]) -> String {
    if bytes.is_empty() { "(none)".to_owned() } else { quote(bytes) }
}

/// Bytes for JSON: a string if they are UTF-8, else `{"bytes_hex": "…"}`.
pub(crate) fn json_bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({"bytes_hex": hex(bytes)}),
    }
}

/// Bytes in hex, such as `00ff`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A UUID as text and for JSON; `(none)` and null if it is all zero.
pub(super) fn uuid_fact(bytes: &[u8; 16]) -> (String, Value) {
    match *bytes == [0; 16] {
        true => ("(none)".to_owned(), Value::Null),
        false => (uuid_text(bytes), Value::from(uuid_text(bytes))),
    }
}

/// Names of the set bits; bits without a name as hex.
pub(crate) fn bit_names(word: u32, names: &[(u32, &'static str)]) -> Vec<String> {
    let mut found: Vec<String> =
        names.iter().filter(|(bit, _)| word & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    let rest = names.iter().fold(word, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        found.push(format!("{rest:#x}"));
    }
    found
}

/// Flags such as `extents index (0x81000)`; `(none)` for 0.
pub(super) fn flags_text(word: u32, names: &[(u32, &'static str)]) -> String {
    match word {
        0 => "(none)".to_owned(),
        _ => format!("{} ({word:#x})", bit_names(word, names).join(" ")),
    }
}

/// Flags for JSON: `{"names": […], "raw": n}`.
pub(crate) fn flags_json(word: u32, names: &[(u32, &'static str)]) -> Value {
    json!({"names": bit_names(word, names), "raw": word})
}

/// A stored checksum and the computed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksum {
    pub(super) stored: u32,
    pub(super) computed: u32,
}

impl Checksum {
    pub(super) fn is_right(self) -> bool {
        self.stored == self.computed
    }

    /// `ok (0x1234)`, or `WRONG (stored 0x1, computed 0x2)`.
    pub(super) fn text(self) -> String {
        match self.is_right() {
            true => format!("ok ({:#x})", self.stored),
            false => format!("WRONG (stored {:#x}, computed {:#x})", self.stored, self.computed),
        }
    }

    pub(super) fn json(self) -> Value {
        json!({"ok": self.is_right(), "stored": self.stored, "computed": self.computed})
    }
}

/// An optional checksum as text.
pub(super) fn checksum_text(checksum: Option<Checksum>) -> String {
    checksum.map_or("none (the file system has no such checksums)".to_owned(), Checksum::text)
}

/// An optional checksum for JSON.
pub(super) fn checksum_json(checksum: Option<Checksum>) -> Value {
    checksum.map_or(Value::Null, Checksum::json)
}

/// A range as `first..last`, both included; a single number for a length of one; `(none)` if it is empty.
pub(super) fn range_text(first: u64, len: u64) -> String {
    match len {
        0 => "(none)".to_owned(),
        1 => first.to_string(),
        _ => format!("{first}..{}", first.saturating_add(len - 1)),
    }
}

/// A count with its noun: `1 block`, `2 blocks`, `2 copies`.
pub(crate) fn count(number: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if number == 1 => format!("{number} {what}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {what}s"),
    }
}

/// `part` divided by `whole` in percent, with one decimal: `93.5%`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_from_1901_to_2446() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (Timestamp::MIN_SECONDS, "1901-12-13T20:45:52Z"),
            (Timestamp::MAX_SECONDS, "2446-05-10T22:38:55Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(iso_seconds(seconds), text);
        }
        assert_eq!(iso_time(Timestamp { seconds: 1, nanos: 5 }), "1970-01-01T00:00:01.000000005Z");
    }

    #[test]
    fn modes_look_like_those_of_ls() {
        assert_eq!(mode_letters(0o100_644), "-rw-r--r--");
        assert_eq!(mode_letters(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_letters(0o104_755), "-rwsr-xr-x");
        assert_eq!(mode_letters(0o102_644), "-rw-r-Sr--");
        assert_eq!(mode_letters(0o170_000), "?---------");
    }

    #[test]
    fn no_control_character_reaches_the_terminal() {
        assert_eq!(escape(b"a b\\\x1b[2J\xff\n"), "a\\ b\\\\\\033[2J\\377\\n");
        assert_eq!(escape("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
        assert_eq!(escape("\u{202e}x\u{9b}".as_bytes()), "\\342\\200\\256x\\302\\233");
        assert_eq!(quote(b"say \"x y\""), "\"say \\\"x y\\\"\"");
    }

    #[test]
    fn sizes_are_exact_and_readable() {
        assert_eq!(bytes_and_human(1000), "1000 bytes");
        assert_eq!(bytes_and_human(1536), "1536 bytes (1.5 KiB)");
        assert_eq!(human(u64::MAX), "15.9 EiB");
    }

    #[test]
    fn bits_without_a_name_are_shown() {
        assert_eq!(flags_text(0x5, &[(1, "one")]), "one 0x4 (0x5)");
        assert_eq!(flags_text(0, &[]), "(none)");
    }
}
