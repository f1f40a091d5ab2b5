//! Parses and prints sizes for people.

/// Parses `4096`, `512K`, `2M`, `10G`, `16T`, with an optional `iB` or `B`; units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let unitless = text.trim_end_matches("iB").trim_end_matches('B');
    let digits = unitless.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match unitless[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        unit => return Err(format!("unknown unit \"{unit}\": use K, M, G, T or P")),
    };
    if digits.starts_with(['+', '-']) {
        return Err(format!("\"{text}\" is relative, and a size is wanted, like 512M"));
    }
    let number: f64 = digits.parse().map_err(|_| format!("\"{text}\" is not a size like 512M or 1.5G"))?;
    let exact = digits.parse::<u64>().ok().and_then(|n| n.checked_shl(shift).filter(|b| b >> shift == n));
    match exact {
        Some(bytes) => Ok(bytes),
        None if number >= 0.0 && number * ((1u64 << shift) as f64) < u64::MAX as f64 => {
            Ok((number * (1u64 << shift) as f64) as u64)
        }
        None => Err(format!("\"{text}\" is too large")),
    }
}

/// A hint for a size that is too small for its use: its unit may be missing.
pub(crate) fn unit_hint(bytes: u64) -> String {
    match bytes {
        1..65_536 => format!(" (a size without a unit is in bytes: {bytes}M is {bytes} MiB)"),
        _ => String::new(),
    }
}

/// Prints `1234567` as `1.2 MiB`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("512K"), Ok(512 << 10));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("16TiB"), Ok(16 << 40));
        for bad in ["", "x", "5Q", "-1", "+20M", "99999999P"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(human(1_234_567), "1.2 MiB");
    }
}
