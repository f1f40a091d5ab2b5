//! Numbers for people: at most four digits, and a unit.

/// 0 B, 1023 B, 1.5 KiB, 64.0 MiB.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// 850 ns, 12 µs, 3.1 ms, 2.0 s, 5 min, 3 h, 9 d.
pub(super) fn nanos(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0 => "0".to_owned(),
        1..1_000 => format!("{nanos} ns"),
        1_000..9_950 => format!("{:.1} µs", value / 1e3),
        9_950..999_500 => format!("{:.0} µs", value / 1e3),
        999_500..9_950_000 => format!("{:.1} ms", value / 1e6),
        9_950_000..999_500_000 => format!("{:.0} ms", value / 1e6),
        999_500_000..9_950_000_000 => format!("{:.1} s", value / 1e9),
        _ => long(nanos / 1_000_000_000),
    }
}

pub(super) fn millis(millis: u64) -> String {
    nanos(millis.saturating_mul(1_000_000))
}

fn long(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// 0, 0.03, 1.5, 120, 53k, 1.2M.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        ..0.005 => "0".to_owned(),
        ..0.995 => format!("{rate:.2}"),
        ..99.95 => format!("{rate:.1}"),
        ..99_999.5 => format!("{rate:.0}"),
        ..999_950.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.1}M", rate / 1e6),
    }
}

/// Part of a whole in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "0 %".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits_and_a_unit() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (64 << 20, "64.0 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
        ];
        for (value, text) in sizes {
            assert_eq!(bytes(value), text);
        }
        let times = [
            (0, "0"),
            (850, "850 ns"),
            (1_500, "1.5 µs"),
            (12_400, "12 µs"),
            (3_100_000, "3.1 ms"),
            (999_600, "1.0 ms"),
            (2_000_000_000, "2.0 s"),
            (60_000_000_000, "60 s"),
            (300_000_000_000, "5 min"),
            (u64::MAX, "213503 d"),
        ];
        for (value, text) in times {
            assert_eq!(nanos(value), text);
        }
        let rates = [
            (0.0, "0"),
            (0.03, "0.03"),
            (1.5, "1.5"),
            (120.0, "120"),
            (53_000.0, "53000"),
            (530_000.0, "530k"),
        ];
        for (value, text) in rates {
            assert_eq!(rate(value), text);
        }
        assert_eq!((percent(1, 3), percent(1, 0)), ("33.3 %".to_owned(), "0 %".to_owned()));
    }
}
