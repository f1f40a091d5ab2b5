//! Numbers as text, and text as HTML.

/// Three significant digits below 1000, and whole numbers with separators above: `0.0123`, `12.3`, `10,196`.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    let digits = match size {
        0.0 => 0,
        _ if size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ => (2 - size.log10().floor() as i32).clamp(2, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    if digits == 0 { separated(&text) } else { text }
}

/// A whole number with separators.
pub(crate) fn separated(whole: &str) -> String {
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |rest| ("-", rest));
    let mut text = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// With its sign: `+144`, `-26.3`.
pub(crate) fn percent(value: f64) -> String {
    let sign = if value >= 0.0 { "+" } else { "" };
    format!("{sign}{} %", number(value))
}

/// Bytes in GiB or MiB.
pub(crate) fn bytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes >= 1024.0 { format!("{:.1} GiB", mebibytes / 1024.0) } else { format!("{mebibytes:.0} MiB") }
}

/// Seconds as text.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 90.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{} s", number(seconds)),
    }
}

/// `one thing`, `2 things`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// Text as HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_separators() {
        let texts = [0.0, 0.0123, 1.234, 12.34, 123.4, 10_196.2, 10_400_000.0, -1234.0, f64::NAN].map(number);
        assert_eq!(texts, ["0", "0.0123", "1.23", "12.3", "123", "10,196", "10,400,000", "-1,234", "-"]);
        assert_eq!([144.0, -26.31].map(percent), ["+144 %", "-26.3 %"]);
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }
}
