//! One 512-byte tar header in the formats v7, ustar, GNU and star.
//!
//! ```text
//! offset  len  field                 offset  len  field
//!      0  100  name                     257    6  magic: "ustar\0" POSIX, "ustar " GNU, else v7
//!    100    8  mode                     263    2  version
//!    108    8  uid                      265   64  user and group names (not used: an image has numbers)
//!    116    8  gid                      329    8  device major
//!    124   12  size                     337    8  device minor
//!    136   12  mtime                    345  155  POSIX: prefix of the name      (star: 131)
//!    148    8  checksum                 345   12  GNU: atime                     (star: 476)
//!    156    1  typeflag                 357   12  GNU: ctime                     (star: 488)
//!    157  100  link name                386   96  GNU: four sparse runs; 482: more follow; 483: 12 bytes real size
//! ```
//! Numbers are octal digits, or base-256 if the top bit of the first byte is set (0x80 positive, 0xff
//! negative).
//!
//! Source: POSIX.1-2017 pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format"; star(5).

use crate::source::entry::Time;
use crate::source::fault::{Rule, ShownPath};

/// Size of a header in bytes, and the unit of all other parts of an archive.
pub(super) const BLOCK: usize = 512;

/// One block of an archive.
pub(super) type Block = [u8; BLOCK];

/// The format of a header. It determines the meaning of the bytes from 257 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Before POSIX: the bytes have no meaning.
    V7,
    /// POSIX ustar, and pax, which extends it.
    Posix,
    /// GNU tar's own format, including oldgnu.
    Gnu,
    /// star: ustar with a shorter prefix and two times.
    Star,
}

/// A header with a valid checksum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header<'a> {
    block: &'a Block,
    /// The format of the header.
    pub(super) dialect: Dialect,
}

impl<'a> Header<'a> {
    /// Accepts a block as a header if its checksum is valid.
    pub(super) fn verified(block: &'a Block) -> Option<Self> {
        let stored = octal(&block[148..156])?;
        let all: u32 = block.iter().map(|&b| u32::from(b)).sum();
        let field: u32 = block[148..156].iter().map(|&b| u32::from(b)).sum();
        // The checksum field itself counts as eight blanks.
        let unsigned = u64::from(all - field + 8 * u32::from(b' '));
        if stored != unsigned {
            // Old tars summed signed bytes: each byte above 127 counts 256 less.
            let high = block[..148].iter().chain(&block[156..]).filter(|&&b| b > 127).count() as u64;
            if Some(stored) != unsigned.checked_sub(256 * high) {
                return None;
            }
        }
        let dialect = match &block[257..263] {
            b"ustar\0" if &block[508..512] == b"tar\0" => Dialect::Star,
            b"ustar\0" => Dialect::Posix,
            b"ustar " => Dialect::Gnu,
            _ => Dialect::V7,
        };
        Some(Self { block, dialect })
    }

    /// The type of entry.
    pub(super) fn typeflag(&self) -> u8 {
        self.block[156]
    }

    /// The name, including its prefix.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = self.text(0, 100);
        let prefix = match self.dialect {
            Dialect::Posix => self.text(345, 155),
            Dialect::Star => self.text(345, 131),
            Dialect::Gnu if self.has_docker_prefix() => self.text(345, 155),
            Dialect::V7 | Dialect::Gnu => &[],
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    /// Whether a GNU header has a prefix of the name in the place of GNU tar's times.
    ///
    /// Programs built with Go before 1.8 (Docker up to 17.05) wrote such headers. Go detects them by time
    /// fields that are not valid times, and an ASCII prefix. This code does the same, because the readers of
    /// those layers are built with Go.
    pub(super) fn has_docker_prefix(&self) -> bool {
        let is_time = |at: usize| {
            let field = &self.block[at..at + 12];
            match field[0] {
                0 => true,
                0x80.. => numeric(field).is_some(),
                _ => is_whole_octal(field),
            }
        };
        let prefix = self.text(345, 155);
        self.dialect == Dialect::Gnu
            && !(is_time(345) && is_time(357))
            && !prefix.is_empty()
            && prefix.is_ascii()
    }

    /// The target of a hard or symbolic link.
    pub(super) fn link_name(&self) -> &'a [u8] {
        self.text(157, 100)
    }

    /// Permission bits.
    pub(super) fn permissions(&self) -> Result<u16, Rule> {
        // In some archives the upper bits repeat the type. A negative mode has no meaning.
        Ok((self.number("mode", 100, 8)? & 0o7777) as u16)
    }

    /// Owner.
    pub(super) fn uid(&self) -> Result<u32, Rule> {
        self.small_number("uid", 108)
    }

    /// Group.
    pub(super) fn gid(&self) -> Result<u32, Rule> {
        self.small_number("gid", 116)
    }

    /// Number of content bytes that follow.
    pub(super) fn size(&self) -> Result<u64, Rule> {
        self.unsigned("size", 124, 12)
    }

    /// Time of the last change.
    pub(super) fn mtime(&self) -> Result<Time, Rule> {
        Ok(Time { seconds: self.number("mtime", 136, 12)?, nanos: 0 })
    }

    /// Times of last access and status change, in the fields of GNU tar (incremental) and star.
    ///
    /// Other writers use these bytes differently, so a field that is not a number counts as no time.
    pub(super) fn atime_and_ctime(&self) -> (Option<Time>, Option<Time>) {
        let (atime_at, ctime_at) = match self.dialect {
            Dialect::Gnu if self.has_docker_prefix() => return (None, None),
            Dialect::Gnu => (345, 357),
            Dialect::Star => (476, 488),
            Dialect::V7 | Dialect::Posix => return (None, None),
        };
        let time = |at: usize| {
            let field = &self.block[at..at + 12];
            (field[0] != 0).then(|| numeric(field)).flatten().map(|seconds| Time { seconds, nanos: 0 })
        };
        (time(atime_at), time(ctime_at))
    }

    /// Major half of the device number.
    pub(super) fn dev_major(&self) -> Result<u32, Rule> {
        self.small_number("devmajor", 329)
    }

    /// Minor half of the device number.
    pub(super) fn dev_minor(&self) -> Result<u32, Rule> {
        self.small_number("devminor", 337)
    }

    /// Old GNU sparse format: the (offset, length) pairs in the header, whether extension blocks follow, and
    /// the real size.
    pub(super) fn old_sparse(&self) -> Result<(Vec<u64>, bool, u64), Rule> {
        let mut map = Vec::new();
        sparse_pairs(&self.block[386..482], &mut map)?;
        Ok((map, self.block[482] != 0, self.unsigned("sparse size", 483, 12)?))
    }

    fn text(&self, at: usize, len: usize) -> &'a [u8] {
        let field = &self.block[at..at + len];
        &field[..field.iter().position(|&b| b == 0).unwrap_or(len)]
    }

    fn number(&self, name: &str, at: usize, len: usize) -> Result<i64, Rule> {
        let field = &self.block[at..at + len];
        numeric(field)
            .ok_or_else(|| Rule::damaged(format!("the header's {name} field is \"{}\"", ShownPath(field))))
    }

    fn unsigned(&self, name: &str, at: usize, len: usize) -> Result<u64, Rule> {
        let value = self.number(name, at, len)?;
        u64::try_from(value).map_err(|_| Rule::damaged(format!("the header's {name} field is {value}")))
    }

    fn small_number(&self, name: &str, at: usize) -> Result<u32, Rule> {
        let value = self.number(name, at, 8)?;
        u32::try_from(value).map_err(|_| Rule::damaged(format!("the header's {name} field is {value}")))
    }
}

/// Adds the pairs of an old GNU sparse extension block to `map`. Returns whether another block follows.
pub(super) fn old_sparse_extension(block: &Block, map: &mut Vec<u64>) -> Result<bool, Rule> {
    sparse_pairs(&block[..504], map)?;
    Ok(block[504] != 0)
}

/// Parses pairs of 12-byte numbers up to the first empty one.
fn sparse_pairs(bytes: &[u8], map: &mut Vec<u64>) -> Result<(), Rule> {
    for pair in bytes.chunks_exact(24) {
        if pair[0] == 0 {
            break;
        }
        for field in [&pair[..12], &pair[12..]] {
            let value = numeric(field).and_then(|value| u64::try_from(value).ok());
            map.push(value.ok_or_else(|| {
                Rule::damaged(format!("the sparse map holds the number \"{}\"", ShownPath(field)))
            })?);
        }
    }
    Ok(())
}

/// Parses a number field: octal or base-256. An empty field is 0.
fn numeric(field: &[u8]) -> Option<i64> {
    match field.first()? {
        first @ 0x80.. => base256(*first, &field[1..]),
        _ => octal(field).and_then(|value| i64::try_from(value).ok()),
    }
}

/// Parses octal digits after blanks and NULs; ignores everything after the NUL or blank that ends them.
fn octal(field: &[u8]) -> Option<u64> {
    let start = field.iter().position(|&b| b != b' ' && b != 0).unwrap_or(field.len());
    let digits = field[start..].iter().take_while(|&&b| b != b' ' && b != 0);
    digits.copied().try_fold(0u64, |value, digit| {
        let digit = matches!(digit, b'0'..=b'7').then(|| u64::from(digit - b'0'))?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

/// Whether the field has only octal digits up to the first NUL, ignoring blanks and NULs around them.
fn is_whole_octal(field: &[u8]) -> bool {
    let start = field.iter().position(|&b| b != b' ' && b != 0).unwrap_or(field.len());
    let rest = &field[start..];
    let text = &rest[..rest.iter().position(|&b| b == 0).unwrap_or(rest.len())];
    text.trim_ascii_end().iter().all(|digit| matches!(digit, b'0'..=b'7'))
}

/// Two's complement, big-endian. The top bit of the first byte marks the format; the next bit is the sign.
fn base256(first: u8, rest: &[u8]) -> Option<i64> {
    let negative = first & 0x40 != 0;
    let first = if negative { first } else { first & 0x3f };
    // The first byte is sign-extended: 0xff stays -1, 0x80 becomes 0.
    let mut value = i64::from(first as i8);
    for &byte in rest {
        value = value.checked_mul(256)?.checked_add(i64::from(byte))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_fields_take_blanks_and_nuls_around_digits() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"77777777", Some(0o77_777_777)),
            (b"12\0rubb", Some(0o12)),
            (b"0000648\0", None),
            (b"-1\0\0\0\0\0\0", None),
        ] {
            assert_eq!(octal(field), value, "{field:?}");
        }
    }

    /// moby issue 34092: archives of Docker up to 17.05 have GNU's magic, and a prefix of the name in the
    /// place of GNU tar's times. As in Go, a prefix that is a valid time counts as a time.
    #[test]
    fn a_prefix_in_the_place_of_times_is_read_as_docker_reads_it() {
        let path = |magic: &[u8], prefix: &[u8]| {
            let mut block = [0u8; BLOCK];
            block[..4].copy_from_slice(b"name");
            block[257..257 + magic.len()].copy_from_slice(magic);
            block[345..345 + prefix.len()].copy_from_slice(prefix);
            let sum: u32 = block.iter().map(|&b| u32::from(b)).sum::<u32>() + 256;
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            let header = Header::verified(&block).unwrap();
            let times = header.atime_and_ctime().0.is_some();
            (String::from_utf8_lossy(&header.path()).into_owned(), times)
        };
        let gnu = b"ustar  \0";
        assert_eq!(path(gnu, b"app/etc"), ("app/etc/name".into(), false));
        assert_eq!(path(gnu, b"0123 x/y"), ("0123 x/y/name".into(), false));
        assert_eq!(path(gnu, b"14524770400\x0014524770400\x00"), ("name".into(), true));
        assert_eq!(path(gnu, b"017"), ("name".into(), true));
        assert_eq!(path(gnu, b""), ("name".into(), false));
        assert_eq!(path(gnu, b"caf\xc3\xa9/x"), ("name".into(), false));
        assert_eq!(path(b"ustar\x0000", b"app/etc"), ("app/etc/name".into(), false));
    }

    #[test]
    fn base256_has_signs_and_refuses_what_does_not_fit() {
        assert_eq!(numeric(b"\x80\0\0\0\0\0\0\x05"), Some(5));
        assert_eq!(numeric(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(numeric(b"\x80\0\0\0\x01\0\0\0\0\0\0\0"), Some(1 << 56));
        assert_eq!(numeric(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX));
        assert_eq!(numeric(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None);
        assert_eq!(numeric(b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(numeric(b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0"), Some(i64::MIN));
    }

    #[test]
    fn both_kinds_of_checksum_are_accepted_and_no_other() {
        let mut block = [0u8; BLOCK];
        block[..5].copy_from_slice(b"caf\xc3\xa9");
        let unsigned: u32 = block.iter().map(|&b| u32::from(b)).sum::<u32>() + 256;
        for sum in [unsigned, unsigned - 512] {
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            assert!(Header::verified(&block).is_some());
        }
        block[148..156].copy_from_slice(format!("{:06o}\0 ", unsigned + 1).as_bytes());
        assert!(Header::verified(&block).is_none());
        assert!(Header::verified(&[0; BLOCK]).is_none());
    }
}
