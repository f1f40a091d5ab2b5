//! Names that contain a number: printf's formats for one integer.
//!
//! ```text
//! FORMAT   text, with at most one  % [-] [0] [+] [width] [.precision] [h|l|ll|z|j] (d|i|u|x|X|o)
//!          %% is a percent sign
//! ```
//! Without a `%` the number is appended, as with `%ld`.

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFormat {
    before: Vec<u8>,
    after: Vec<u8>,
    number: Number,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Number {
    left: bool,
    zeros: bool,
    plus: bool,
    width: usize,
    digits_min: usize,
    has_precision: bool,
    base: Base,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Base {
    #[default]
    Decimal,
    Octal,
    Lower,
    Upper,
}

/// Maximum length of a name, and of a number in it.
const WIDTH_MAX: usize = 255;
/// Maximum number of digits, in octal.
const DIGITS: usize = 22;

impl NameFormat {
    /// Parses a format.
    ///
    /// # Errors
    /// A conversion that is not for one integer, or a second conversion; as a message.
    pub fn parse(format: &str) -> Result<Self, String> {
        let mut before = Vec::new();
        let mut after = Vec::new();
        let mut number = None;
        let mut rest = format.bytes().peekable();
        while let Some(byte) = rest.next() {
            let text = if number.is_some() { &mut after } else { &mut before };
            if byte != b'%' {
                text.push(byte);
                continue;
            }
            if rest.peek() == Some(&b'%') {
                rest.next();
                text.push(b'%');
                continue;
            }
            if number.is_some() {
                return Err(format!("\"{format}\" has more than one number"));
            }
            number = Some(Number::parse(&mut rest).ok_or_else(|| {
                format!("\"{format}\": after % comes a number's conversion, as in %ld or %08x; %% is a percent sign")
            })?);
        }
        // A format with only "%%" has no number, so the number is appended.
        Ok(Self { before, after, number: number.unwrap_or_default() })
    }

    /// Replaces the contents of `name` by the name for a number.
    pub fn write(&self, number: i64, name: &mut Vec<u8>) {
        name.clear();
        name.extend_from_slice(&self.before);
        self.number.write(number, name);
        name.extend_from_slice(&self.after);
    }
}

impl Number {
    fn parse(rest: &mut std::iter::Peekable<std::str::Bytes<'_>>) -> Option<Self> {
        let mut number = Self::default();
        while let Some(flag) = rest.next_if(|byte| matches!(byte, b'-' | b'0' | b'+')) {
            match flag {
                b'-' => number.left = true,
                b'0' => number.zeros = true,
                _ => number.plus = true,
            }
        }
        number.width = digits(rest)?;
        if rest.next_if_eq(&b'.').is_some() {
            number.has_precision = true;
            number.digits_min = digits(rest)?;
        }
        while rest.next_if(|byte| matches!(byte, b'h' | b'l' | b'z' | b'j' | b't' | b'q')).is_some() {}
        number.base = match rest.next()? {
            b'd' | b'i' | b'u' => Base::Decimal,
            b'o' => Base::Octal,
            b'x' => Base::Lower,
            b'X' => Base::Upper,
            _ => return None,
        };
        Some(number)
    }

    fn write(&self, value: i64, name: &mut Vec<u8>) {
        let mut digits = [0_u8; DIGITS];
        let at = match self.base {
            Base::Decimal => put::<10>(value.unsigned_abs(), b"0123456789", &mut digits),
            Base::Octal => put::<8>(value.cast_unsigned(), b"01234567", &mut digits),
            Base::Lower => put::<16>(value.cast_unsigned(), b"0123456789abcdef", &mut digits),
            Base::Upper => put::<16>(value.cast_unsigned(), b"0123456789ABCDEF", &mut digits),
        };
        let digits = &digits[at..];
        if *self == Self::default() && value >= 0 {
            name.extend_from_slice(digits);
            return;
        }
        let len = digits.len();
        let sign: &[u8] = match self.base {
            Base::Decimal if value < 0 => b"-",
            Base::Decimal if self.plus => b"+",
            _ => b"",
        };
        let mut zeros = self.digits_min.saturating_sub(len);
        let mut spaces = self.width.saturating_sub(len + zeros + sign.len());
        if self.zeros && !self.left && !self.has_precision {
            zeros += std::mem::take(&mut spaces);
        }
        let fill = |name: &mut Vec<u8>, byte: u8, count: usize| name.resize(name.len() + count, byte);
        if !self.left {
            fill(name, b' ', spaces);
        }
        name.extend_from_slice(sign);
        fill(name, b'0', zeros);
        name.extend_from_slice(digits);
        if self.left {
            fill(name, b' ', spaces);
        }
    }
}

/// Writes the digits of a number to the end of `digits`, and returns their start.
///
/// Written by hand: the formatting machinery would take a tenth of the cost of a name.
fn put<const BASE: u64>(mut number: u64, names: &[u8], digits: &mut [u8; DIGITS]) -> usize {
    let mut at = DIGITS;
    loop {
        at -= 1;
        digits[at] = names[(number % BASE) as usize];
        number /= BASE;
        if number == 0 {
            return at;
        }
    }
}

fn digits(rest: &mut std::iter::Peekable<std::str::Bytes<'_>>) -> Option<usize> {
    let mut number = 0;
    while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
        number = number * 10 + usize::from(digit - b'0');
        if number > WIDTH_MAX {
            return None;
        }
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_printf_does() {
        for (format, number, name) in [
            ("test", 7, "test7"),
            ("f%ld", 7, "f7"),
            ("f%06d.txt", 42, "f000042.txt"),
            ("%-4d|", 42, "42  |"),
            ("%4d|", 42, "  42|"),
            ("%.3d", -4, "-004"),
            ("%06d", -42, "-00042"),
            ("%+d", 5, "+5"),
            ("%lx-%%", 255, "ff-%"),
            ("%08X", 0xBEEF, "0000BEEF"),
            ("%o", 8, "10"),
            ("%x", -1, "ffffffffffffffff"),
            ("a%%b", 3, "a%b3"),
        ] {
            let mut out = b"left from before".to_vec();
            NameFormat::parse(format).unwrap().write(number, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), name, "{format}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for format in ["%s", "%d%d", "%", "%ld%", "%999d", "%n", "%*d"] {
            assert!(NameFormat::parse(format).is_err(), "{format}");
        }
    }
}
