//! The formats of `extant stat -c` and `--printf`: the directives of stat(1) for files and for file systems.
//!
//! ```text
//! "%-10n %04a %.3Y"  ->  field n, width 10, left; " "; field a, width 4, zeros; " "; field Y, precision 3
//! ```
//! Owns: parsing, and the text of each directive. Does **not** own: the values (see `extant::Stat` and
//! `extant::StatFs`).

use extant::{FileType, Stat, StatFs, Timestamp};
use extant_ondisk::superblock;

use crate::inspect::format::{escape, iso_time, mode_letters};
use crate::look::print::kind_words;

/// The widest field. A larger number in a format is a typing error.
const WIDTH_MAX: usize = 4096;
/// Digits of a fraction of a second.
const NANO_DIGITS: usize = 9;
/// The directives of files. `%h` is stored as `k`, because `h` and `L` are `%Hr` and `%Lr`.
const OF_FILES: &[u8] = b"aAbBCfFgGhikLnNorRstTuUwWxXyYzZ";
/// The directives of file systems.
const OF_FILE_SYSTEMS: &[u8] = b"abcdfilnsStT";

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Format(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
}

/// A directive: `%`, flags, width, precision, letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Field {
    /// `-`: spaces after the value.
    left: bool,
    /// `0`: zeros before a number.
    zeros: bool,
    /// `#`: a prefix, `0` or `0x`.
    prefix: bool,
    /// `+` or a space: what a signed number that is not negative has in the place of its minus sign.
    plus: Option<char>,
    width: usize,
    precision: Option<usize>,
    letter: u8,
}

/// A file to be shown.
pub(super) struct Shown<'a> {
    pub(super) stat: &'a Stat,
    /// The path, as it is to be printed.
    pub(super) path: &'a [u8],
    /// The target of a symbolic link.
    pub(super) target: Option<&'a [u8]>,
    /// The SELinux label.
    pub(super) context: Option<&'a [u8]>,
}

/// A file system to be shown.
pub(super) struct ShownSystem<'a> {
    pub(super) space: &'a StatFs,
    /// The path by which it was named, as it is to be printed.
    pub(super) path: &'a [u8],
}

/// What the directives of a format print.
pub(super) trait Values {
    /// The text of a directive.
    fn print(&self, field: Field) -> Vec<u8>;
}

impl Format {
    /// Parses the format of `-c`: a line for each file, without escapes.
    pub(super) fn lines(text: &[u8]) -> Result<Self, String> {
        let mut format = parse(text, false)?;
        format.push(Piece::Text(b"\n".to_vec()));
        Ok(Self(format))
    }

    /// Parses the format of `--printf`: with escapes, and without a newline of its own.
    pub(super) fn printf(text: &[u8]) -> Result<Self, String> {
        parse(text, true).map(Self)
    }

    /// Whether the format has a directive.
    pub(super) fn wants(&self, letter: u8) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Field(field) if field.letter == letter))
    }

    /// Why the format cannot show files, or file systems: the first directive that they do not have.
    pub(super) fn refused(&self, of_file_systems: bool) -> Option<String> {
        let (has, advice) = match of_file_systems {
            true => (OF_FILE_SYSTEMS, "leave -f out"),
            false => (OF_FILES, "add -f"),
        };
        self.0.iter().find_map(|piece| match piece {
            Piece::Field(field) if !has.contains(&field.letter) => {
                let word = match field.letter {
                    b'd' => return Some("%d is the device of a file, and an image has none".to_owned()),
                    b'h' => "Hr".to_owned(),
                    b'L' => "Lr".to_owned(),
                    b'k' => "h".to_owned(),
                    letter => char::from(letter).to_string(),
                };
                let kind = if of_file_systems { "files" } else { "file systems" };
                Some(format!("%{word} is a directive of {kind}; {advice}"))
            }
            _ => None,
        })
    }

    pub(super) fn print(&self, shown: &dyn Values) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Field(field) => out.extend(shown.print(*field)),
            }
        }
        out
    }
}

fn parse(text: &[u8], escapes: bool) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut plain = Vec::new();
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' if rest.first() == Some(&b'%') => {
                plain.push(b'%');
                rest = &rest[1..];
            }
            b'%' => {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                let (field, tail) = directive(rest)?;
                pieces.push(Piece::Field(field));
                rest = tail;
            }
            b'\\' if escapes => {
                let (byte, tail) = unescape(rest)?;
                plain.push(byte);
                rest = tail;
            }
            byte => plain.push(*byte),
        }
    }
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// Parses a directive after its `%`; returns the rest of the format, too.
fn directive(text: &[u8]) -> Result<(Field, &[u8]), String> {
    let mut field = Field::default();
    let mut at = 0;
    while let Some(flag) = text.get(at) {
        match flag {
            b'-' => field.left = true,
            b'0' => field.zeros = true,
            b'#' => field.prefix = true,
            b'+' => field.plus = Some('+'),
            b' ' => field.plus = field.plus.or(Some(' ')),
            // Groups of thousands: none, as in the C locale.
            b'\'' => {}
            _ => break,
        }
        at += 1;
    }
    let (width, after) = digits(text, at)?;
    field.width = width.unwrap_or(0);
    at = after;
    let mut is_bare_point = false;
    if text.get(at) == Some(&b'.') {
        let (precision, after) = digits(text, at + 1)?;
        is_bare_point = precision.is_none();
        field.precision = Some(precision.unwrap_or(0));
        at = after;
    }
    // `%Hr`, `%Lr`: the major and the minor number.
    let part = text.get(at).filter(|part| matches!(part, b'H' | b'L') && text.get(at + 1) == Some(&b'r'));
    if let Some(part) = part {
        field.letter = if *part == b'H' { b'h' } else { b'L' };
        return Ok((field, &text[at + 2..]));
    }
    let shown = String::from_utf8_lossy(&text[..text.len().min(at + 1)]);
    field.letter = match text.get(at) {
        Some(b'H' | b'L') | None => return Err(format!("%{shown} is no directive of stat(1)")),
        Some(b'h') => b'k',
        Some(b'D' | b'm') => {
            return Err(format!("%{shown} is of the device or mount of a file, and an image has none"));
        }
        Some(letter) if OF_FILES.contains(letter) && *letter != b'k' => *letter,
        Some(letter) if OF_FILE_SYSTEMS.contains(letter) => *letter,
        Some(_) => return Err(format!("%{shown} is no directive of stat(1)")),
    };
    if is_bare_point && b"WXYZ".contains(&field.letter) {
        field.precision = Some(NANO_DIGITS);
    }
    Ok((field, &text[at + 1..]))
}

/// The number at a place, and the place after it.
fn digits(text: &[u8], from: usize) -> Result<(Option<usize>, usize), String> {
    let len = text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let word = String::from_utf8_lossy(&text[from..from + len]);
    match word.parse::<usize>() {
        Ok(number) if number <= WIDTH_MAX => Ok((Some(number), from + len)),
        _ if len == 0 => Ok((None, from)),
        _ => Err(format!("a width of {word} is more than {WIDTH_MAX}")),
    }
}

/// Parses an escape after its backslash.
fn unescape(text: &[u8]) -> Result<(u8, &[u8]), String> {
    let number = |from: usize, len_max: usize, radix: u32| {
        let is_digit = |byte: &&u8| char::from(**byte).is_digit(radix);
        let len = text[from..].iter().take(len_max).take_while(is_digit).count();
        let digits = std::str::from_utf8(&text[from..from + len]).unwrap_or_default();
        // `\777` is cut to a byte, as in printf(1).
        let value = u32::from_str_radix(digits, radix).ok().map(|value| value as u8);
        (value, &text[from + len..])
    };
    let byte = match text.first() {
        Some(b'0'..=b'7') => {
            let (value, rest) = number(0, 3, 8);
            return Ok((value.unwrap_or(0), rest));
        }
        Some(b'x') => {
            let (value, rest) = number(1, 2, 16);
            return value.map(|value| (value, rest)).ok_or_else(|| "\\x needs digits".to_owned());
        }
        Some(b'a') => 0x07,
        Some(b'b') => 0x08,
        Some(b'e') => 0x1b,
        Some(b'f') => 0x0c,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'v') => 0x0b,
        Some(byte @ (b'\\' | b'"')) => *byte,
        Some(other) => return Err(format!("\\{} is no escape", char::from(*other).escape_default())),
        None => return Err("a backslash ends the format; \\\\ is one".to_owned()),
    };
    Ok((byte, &text[1..]))
}

impl Values for Shown<'_> {
    fn print(&self, field: Field) -> Vec<u8> {
        let stat = self.stat;
        let (major, minor) = stat.device;
        // As the kernel encodes st_rdev for user space.
        let device = rustix::fs::makedev(major, minor);
        match field.letter {
            b'a' => field.number(u64::from(stat.mode & 0o7777), 8),
            b'A' => field.text(mode_letters(stat.mode).as_bytes()),
            b'b' => field.number(stat.blocks_512, 10),
            b'B' => field.number(512, 10),
            b'C' => field.text(self.context.unwrap_or(b"?")),
            b'f' => field.number(stat.mode.into(), 16),
            b'F' => field.text(kind_words(stat).as_bytes()),
            b'u' | b'U' => field.number(stat.uid.into(), 10),
            b'g' | b'G' => field.number(stat.gid.into(), 10),
            b'i' => field.number(stat.ino.0.into(), 10),
            b'k' => field.number(stat.links.into(), 10),
            b'n' => field.text(self.path),
            b'N' => field.text(quoted(self).as_bytes()),
            b'o' => field.number(stat.block_size.into(), 10),
            b's' => field.signed("", &digits_of(stat.size, 10, field.precision)),
            b'r' => field.number(device, 10),
            b'R' => field.number(device, 16),
            b'h' | b't' => field.number(major.into(), if field.letter == b't' { 16 } else { 10 }),
            b'L' | b'T' => field.number(minor.into(), if field.letter == b'T' { 16 } else { 10 }),
            b'w' => field.text(stat.crtime.map_or("-".to_owned(), date).as_bytes()),
            b'x' => field.text(date(stat.atime).as_bytes()),
            b'y' => field.text(date(stat.mtime).as_bytes()),
            b'z' => field.text(date(stat.ctime).as_bytes()),
            b'W' => field.seconds(stat.crtime.unwrap_or(Timestamp { seconds: 0, nanos: 0 })),
            b'X' => field.seconds(stat.atime),
            b'Y' => field.seconds(stat.mtime),
            b'Z' => field.seconds(stat.ctime),
            // `refused` says so before.
            _ => Vec::new(),
        }
    }
}

impl Values for ShownSystem<'_> {
    fn print(&self, field: Field) -> Vec<u8> {
        let space = self.space;
        match field.letter {
            b'a' => field.number(space.blocks_available, 10),
            b'b' => field.number(space.blocks, 10),
            b'c' => field.number(space.inodes.into(), 10),
            b'd' => field.number(space.inodes_free.into(), 10),
            b'f' => field.number(space.blocks_free, 10),
            // stat(1) prints the lower half of f_fsid first.
            b'i' => field.number(space.fsid.rotate_left(32), 16),
            b'l' => field.number(space.name_max.into(), 10),
            b'n' => field.text(self.path),
            b's' | b'S' => field.number(space.block_size.into(), 10),
            b't' => field.number(superblock::MAGIC.into(), 16),
            b'T' => field.text(b"ext2/ext3"),
            // `refused` says so before.
            _ => Vec::new(),
        }
    }
}

impl Field {
    fn text(self, text: &[u8]) -> Vec<u8> {
        let text = &text[..text.len().min(self.precision.unwrap_or(usize::MAX))];
        let pad = vec![b' '; self.width.saturating_sub(text.len())];
        if self.left { [text, &pad].concat() } else { [&pad, text].concat() }
    }

    /// A number without a sign.
    fn number(self, value: u64, radix: u32) -> Vec<u8> {
        let digits = digits_of(value, radix, self.precision);
        let prefix = match radix {
            8 if self.prefix && !digits.starts_with('0') => "0",
            16 if self.prefix && value != 0 => "0x",
            _ => "",
        };
        self.padded(prefix, &digits)
    }

    /// A number with a sign: "-" or nothing.
    fn signed(self, minus: &str, digits: &str) -> Vec<u8> {
        let plus = self.plus.filter(|_| minus.is_empty()).map(String::from).unwrap_or_default();
        self.padded(&format!("{minus}{plus}"), digits)
    }

    /// Fills a number up to the width: with zeros between its prefix and its digits, or with spaces. As in
    /// printf(3), a number with a precision gets no zeros.
    fn padded(self, prefix: &str, digits: &str) -> Vec<u8> {
        let room = self.width.saturating_sub(prefix.len());
        let least = if self.zeros && !self.left && self.precision.is_none() { room } else { 0 };
        let text = format!("{prefix}{digits:0>least$}");
        Self { precision: None, ..self }.text(text.as_bytes())
    }

    /// Seconds since 1970, with as many digits of the fraction as the precision says.
    fn seconds(self, time: Timestamp) -> Vec<u8> {
        // The precision is that of the fraction: it does not turn off the flag `0`, as with other numbers.
        let field = Self { precision: None, ..self };
        let wanted = self.precision.unwrap_or(0);
        if wanted == 0 {
            let minus = if time.seconds < 0 { "-" } else { "" };
            return field.signed(minus, &time.seconds.unsigned_abs().to_string());
        }
        // The fraction counts forward from the second, also before 1970; a decimal fraction counts from zero.
        let total = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
        let minus = if total < 0 { "-" } else { "" };
        let (seconds, nanos) = (total.unsigned_abs() / 1_000_000_000, total.unsigned_abs() % 1_000_000_000);
        let fraction = format!("{nanos:09}");
        let shown = &fraction[..wanted.min(NANO_DIGITS)];
        field.signed(minus, &format!("{seconds}.{shown:0<wanted$}"))
    }
}

/// The digits of a number, at least as many as the precision says; none for 0 if that is 0, as in printf(3).
fn digits_of(value: u64, radix: u32, precision: Option<usize>) -> String {
    let digits = match radix {
        _ if value == 0 && precision == Some(0) => String::new(),
        8 => format!("{value:o}"),
        16 => format!("{value:x}"),
        _ => value.to_string(),
    };
    let least = precision.unwrap_or(0);
    format!("{digits:0>least$}")
}

/// The name escaped as by `ls -b`, and the target of a symbolic link.
fn quoted(shown: &Shown<'_>) -> String {
    let path = escape(shown.path);
    match shown.target {
        Some(target) if shown.stat.kind == FileType::Symlink => format!("{path} -> {}", escape(target)),
        _ => path,
    }
}

/// A time as stat(1) prints it, in UTC: `2025-04-18 22:47:34.000000000 +0000`.
fn date(time: Timestamp) -> String {
    iso_time(time).replace('T', " ").replace('Z', " +0000")
}

#[cfg(test)]
mod tests {
    use extant_base::Ino;

    use super::*;

    fn stat() -> Stat {
        let time = |seconds| Timestamp { seconds, nanos: 123_456_789 };
        Stat {
            ino: Ino(12),
            kind: FileType::Regular,
            mode: 0o100_644,
            uid: 1000,
            gid: 100,
            links: 2,
            size: 1234,
            blocks_512: 8,
            block_size: 4096,
            device: (0, 0),
            atime: time(1),
            mtime: time(1_700_000_000),
            ctime: time(-2),
            crtime: None,
            generation: 0,
            flags: 0,
            project: 0,
        }
    }

    fn shown(format: &str) -> String {
        let (stat, path) = (stat(), b"/a b");
        let shown = Shown { stat: &stat, path, target: None, context: None };
        String::from_utf8(Format::lines(format.as_bytes()).unwrap().print(&shown)).unwrap()
    }

    #[test]
    fn directives_are_those_of_stat() {
        for (format, text) in [
            ("%n", "/a b\n"),
            ("%N", "/a\\ b\n"),
            ("%a %A %f %F", "644 -rw-r--r-- 81a4 regular file\n"),
            ("%s %b %B %o", "1234 8 512 4096\n"),
            ("%u:%g %U:%G", "1000:100 1000:100\n"),
            ("%h %i %C", "2 12 ?\n"),
            ("%t,%T %Hr,%Lr %r", "0,0 0,0 0\n"),
            ("%y", "2023-11-14 22:13:20.123456789 +0000\n"),
            ("%w %W", "- 0\n"),
            ("%Y %.3Y %.Y", "1700000000 1700000000.123 1700000000.123456789\n"),
            // -2 s and 0.123456789 s.
            ("%Z %.3Z", "-2 -1.876\n"),
            ("[%012Y] [%-012Y] [%018.3Y]", "[001700000000] [1700000000  ] [00001700000000.123]\n"),
            ("[%06Z] [%010.3Z] [%+06Z]", "[-00002] [-00001.876] [-00002]\n"),
            (
                "[%+s] [% s] [%'s] [%+ 8s] [%+08s] [%+i]",
                "[+1234] [ 1234] [1234] [   +1234] [+0001234] [12]\n",
            ),
            (
                "[%.s] [%08.6s] [%.a] [%#.5a] [%#08a] [%.0U]",
                "[1234] [  001234] [644] [00644] [00000644] [1000]\n",
            ),
            ("100%% \\n", "100% \\n\n"),
            ("[%6s] [%-6s] [%06s] [%04a] [%#a] [%.2n]", "[  1234] [1234  ] [001234] [0644] [0644] [/a]\n"),
        ] {
            assert_eq!(shown(format), text, "{format}");
        }
    }

    #[test]
    fn printf_has_escapes_and_no_newline() {
        let stat = stat();
        let shown = Shown { stat: &stat, path: b"/", target: None, context: None };
        let print = |format: &str| Format::printf(format.as_bytes()).unwrap().print(&shown);
        assert_eq!(print("%n\\t%s\\n\\0\\x41\\101\\\\"), b"/\t1234\n\0AA\\");
        assert_eq!(Format::printf(b"\\q").unwrap_err(), "\\q is no escape");
        assert!(Format::printf(b"\\").is_err());
        assert!(Format::printf(b"\\x").is_err());
    }

    #[test]
    fn other_directives_are_refused() {
        let why = |format: &str| Format::lines(format.as_bytes()).unwrap_err();
        assert_eq!(why("%q"), "%q is no directive of stat(1)");
        assert_eq!(why("%5"), "%5 is no directive of stat(1)");
        assert_eq!(why("a%"), "% is no directive of stat(1)");
        assert_eq!(why("%Hd"), "%H is no directive of stat(1)");
        assert!(why("%D").contains("an image has none"));
        assert!(why("%99999s").contains("more than 4096"));
    }

    #[test]
    fn file_systems_have_directives_of_their_own() {
        let space = StatFs {
            block_size: 4096,
            blocks: 1000,
            blocks_free: 600,
            blocks_available: 550,
            inodes: 256,
            inodes_free: 245,
            name_max: 255,
            fsid: 0xab,
        };
        let shown = ShownSystem { space: &space, path: b"/" };
        let format = Format::printf(b"%n %i %l %t %T %s %S %b %f %a %c [%06d]").unwrap();
        assert_eq!(format.refused(true), None);
        let text = format.print(&shown);
        assert_eq!(text, b"/ ab00000000 255 ef53 ext2/ext3 4096 4096 1000 600 550 256 [000245]");
        let refused = |format: &str, of_file_systems| {
            Format::lines(format.as_bytes()).unwrap().refused(of_file_systems).unwrap_or_default()
        };
        assert!(refused("%d", false).contains("an image has none"));
        assert_eq!(refused("%l", false), "%l is a directive of file systems; add -f");
        for word in ["Hr", "Lr", "h", "A", "y"] {
            let why = format!("%{word} is a directive of files; leave -f out");
            assert_eq!(refused(&format!("%n %{word}"), true), why);
            assert_eq!(refused(&format!("%n %{word}"), false), "");
        }
    }

    #[test]
    fn any_bytes_parse_or_are_refused() {
        let stat = stat();
        let shown = Shown { stat: &stat, path: b"/", target: None, context: None };
        let bytes = b"%%%\\.0-9#+' HLrsxnY\xff";
        for number in 0..bytes.len().pow(4) {
            let at = |place: u32| bytes[number / bytes.len().pow(place) % bytes.len()];
            let text = [b'%', at(0), at(1), at(2), at(3)];
            for format in [Format::lines(&text), Format::printf(&text[1..])].into_iter().flatten() {
                format.print(&shown);
            }
        }
    }
}
