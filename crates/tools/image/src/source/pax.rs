//! PAX extended headers: records `LEN KEY=VALUE\n`, and the attributes that they give an entry.
//!
//! Owns: splitting records, PAX numbers and times, the encodings of extended attributes, and the merge of
//! global and local headers. Does **not** own: ustar headers, sparse maps within the file's data, or the
//! precedence of header and record (all in `tar`).
//!
//! | key | meaning |
//! |---|---|
//! | `path` `linkpath` `size` `uid` `gid` | the header's field of that name |
//! | `mtime` `atime` `ctime` `LIBARCHIVE.creationtime` | decimal times of any sign, rounded down to nanoseconds |
//! | `SCHILY.devmajor` `SCHILY.devminor` | device numbers (also with the prefix `SUN.`) |
//! | `SCHILY.xattr.NAME` | attribute with a raw value; GNU tar escapes `=` and `%` in NAME as `%3D`, `%25` |
//! | `LIBARCHIVE.xattr.NAME` | attribute; NAME with `%XX`, value in base64 |
//! | `RHT.security.selinux` | attribute `security.selinux`, with the terminating NUL that the kernel shows |
//! | `SCHILY.acl.access` `SCHILY.acl.default` | attributes `system.posix_acl_*`, converted by `acltext` |
//! | `GNU.sparse.*` | the three PAX sparse forms |
//!
//! All other keys are ignored, as POSIX requires. An empty value cancels the value of a global header.
//!
//! Invariants
//! 1. Allocations and loops are bounded by the bytes that are actually present.
//! 2. A malformed record with a known key is an error; it is never ignored silently.
//!
//! Source: POSIX.1-2017 pax, "pax Extended Header"; GNU tar manual, "Sparse Formats"; star(5); libarchive
//! tar(5).

use std::collections::BTreeMap;

use super::acltext;
use super::entry::{Time, Xattr};
use super::fault::{Rule, ShownPath};

/// Maximum size of a local extended header: large enough for a hundred attributes of 64 KiB.
pub(crate) const LOCAL_BYTES_MAX: u64 = 8 << 20;
/// Maximum total size of global headers. They are applied to every entry, so each entry costs time for them.
const GLOBAL_BYTES_MAX: usize = 64 << 10;
/// Maximum length of an extended attribute's value (the kernel's XATTR_SIZE_MAX).
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Maximum length of an extended attribute's name (the kernel's XATTR_NAME_MAX).
const XATTR_NAME_BYTES_MAX: usize = 255;
/// Maximum number of extended attributes of one entry; keeps the search for duplicates short.
const XATTRS_MAX: usize = 4096;
/// Maximum number of data runs of one sparse file.
pub(crate) const SPARSE_RUNS_MAX: usize = 4 << 20;

/// The values of the `GNU.sparse.*` records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SparseKeys {
    /// `GNU.sparse.major`
    pub(crate) major: Option<u64>,
    /// `GNU.sparse.minor`
    pub(crate) minor: Option<u64>,
    /// `GNU.sparse.size` (0.x) or `GNU.sparse.realsize` (1.0): the file's size including holes.
    pub(crate) real_size: Option<u64>,
    /// `GNU.sparse.name`: the entry's path. If it is set, `path` is an invented one.
    pub(crate) name: Option<Vec<u8>>,
    /// The numbers of `GNU.sparse.map` (0.1), or of the `offset` and `numbytes` records (0.0), in their
    /// order: offset, length, offset, length...
    pub(crate) map: Vec<u64>,
}

/// All values from extended headers for one entry; `None` if no header has the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link_path: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) mtime: Option<Time>,
    pub(crate) atime: Option<Time>,
    pub(crate) ctime: Option<Time>,
    pub(crate) crtime: Option<Time>,
    pub(crate) dev_major: Option<u32>,
    pub(crate) dev_minor: Option<u32>,
    /// In the order of the records. A name that occurs twice keeps its last value.
    pub(crate) xattrs: Vec<Xattr>,
    pub(crate) sparse: SparseKeys,
    /// `GNU.volume.offset`: not 0 in later volumes of a multi-volume archive.
    pub(crate) volume_offset: u64,
    /// Messages about attributes that were left out.
    pub(crate) left_out: Vec<String>,
}

/// The records of global headers; later headers override earlier ones. Only known keys are kept.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Globals {
    /// Merges one global header.
    pub(crate) fn merge(&mut self, header: &[u8]) -> Result<(), Rule> {
        for record in records(header) {
            let (key, value) = record?;
            if !is_understood(key) {
                continue;
            }
            if let Some(old) = self.records.remove(key) {
                self.bytes -= key.len() + old.len();
            }
            if value.is_empty() {
                continue;
            }
            self.bytes += key.len() + value.len();
            if self.bytes > GLOBAL_BYTES_MAX {
                return Err(Rule::damaged(format!(
                    "global extended headers hold more than {GLOBAL_BYTES_MAX} bytes"
                )));
            }
            self.records.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
}

impl Attributes {
    /// The values of `globals`, overridden by the local header `local`.
    pub(crate) fn of(globals: &Globals, local: &[u8]) -> Result<Self, Rule> {
        let mut attributes = Self::default();
        for (key, value) in &globals.records {
            attributes.apply(key, value)?;
        }
        for record in records(local) {
            let (key, value) = record?;
            attributes.apply(key, value)?;
        }
        Ok(attributes)
    }

    fn apply(&mut self, key: &[u8], value: &[u8]) -> Result<(), Rule> {
        match key {
            b"path" => self.path = text(key, value)?,
            b"linkpath" => self.link_path = text(key, value)?,
            b"size" => self.size = number(key, value)?,
            b"uid" => self.uid = small_number(key, value)?,
            b"gid" => self.gid = small_number(key, value)?,
            b"mtime" => self.mtime = time_of(key, value)?,
            b"atime" => self.atime = time_of(key, value)?,
            b"ctime" => self.ctime = time_of(key, value)?,
            b"LIBARCHIVE.creationtime" => self.crtime = time_of(key, value)?,
            b"SCHILY.devmajor" | b"SUN.devmajor" => self.dev_major = small_number(key, value)?,
            b"SCHILY.devminor" | b"SUN.devminor" => self.dev_minor = small_number(key, value)?,
            b"SCHILY.acl.access" => self.acl(b"system.posix_acl_access", value, false)?,
            b"SCHILY.acl.default" => self.acl(b"system.posix_acl_default", value, true)?,
            b"SCHILY.acl.ace" => {
                self.left_out.push("its NFSv4 ACL is left out: ext4 has POSIX ACLs only".into())
            }
            b"RHT.security.selinux" => self.selinux(value)?,
            b"GNU.volume.offset" => self.volume_offset = number(key, value)?.unwrap_or(0),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattr(gnu_unescaped(name), value.to_vec())?;
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    let value = base64(value).ok_or_else(|| bad_value(key, value))?;
                    self.xattr(percent_decoded(name), value)?;
                } else if let Some(what) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.apply(what, key, value)?;
                }
            }
        }
        Ok(())
    }

    fn acl(&mut self, name: &[u8], value: &[u8], is_default: bool) -> Result<(), Rule> {
        match acltext::to_xattr(value, is_default)? {
            Some(value) => self.xattr(name.to_vec(), value),
            None => {
                // It only repeats the permission bits, or cancels the value of a global header.
                self.xattrs.retain(|known| known.name != name);
                Ok(())
            }
        }
    }

    /// Adds the SELinux label. GNU tar writes it without the NUL that ends it in the kernel's attribute.
    fn selinux(&mut self, label: &[u8]) -> Result<(), Rule> {
        if label.is_empty() {
            return Ok(());
        }
        let mut value = label.to_vec();
        if value.last() != Some(&0) {
            value.push(0);
        }
        self.xattr(b"security.selinux".to_vec(), value)
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<(), Rule> {
        if name.contains(&0) || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Rule::damaged(format!(
                "the extended attribute name \"{}\" holds a NUL or more than {XATTR_NAME_BYTES_MAX} bytes",
                ShownPath(&name)
            )));
        }
        if value.len() > XATTR_BYTES_MAX {
            return Err(Rule::new(
                format!(
                    "the extended attribute \"{}\" has {} bytes, and Linux allows {XATTR_BYTES_MAX}",
                    ShownPath(&name),
                    value.len()
                ),
                "create the archive without this attribute",
            ));
        }
        let has_home = [&b"user."[..], b"security.", b"trusted."]
            .iter()
            .any(|prefix| name.starts_with(prefix) && name.len() > prefix.len())
            || matches!(&name[..], b"system.posix_acl_access" | b"system.posix_acl_default");
        if !has_home {
            self.left_out.push(format!(
                "its extended attribute \"{}\" is left out: ext4 stores user.*, trusted.*, security.* and POSIX ACLs",
                ShownPath(&name)
            ));
            return Ok(());
        }
        if let Some(known) = self.xattrs.iter_mut().find(|known| known.name == name) {
            known.value = value;
        } else if self.xattrs.len() == XATTRS_MAX {
            return Err(Rule::damaged(format!("an entry has more than {XATTRS_MAX} extended attributes")));
        } else {
            self.xattrs.push(Xattr { name, value });
        }
        Ok(())
    }
}

impl SparseKeys {
    fn apply(&mut self, what: &[u8], key: &[u8], value: &[u8]) -> Result<(), Rule> {
        match what {
            b"major" => self.major = number(key, value)?,
            b"minor" => self.minor = number(key, value)?,
            b"size" | b"realsize" => self.real_size = number(key, value)?,
            b"name" => self.name = text(key, value)?,
            b"map" => {
                self.map.clear();
                for piece in value.split(|&b| b == b',').filter(|_| !value.is_empty()) {
                    self.map.push(decimal(piece).ok_or_else(|| bad_value(key, value))?);
                }
            }
            b"offset" | b"numbytes" => {
                // Pairs: an offset, then its length.
                if self.map.len() % 2 != usize::from(what == b"numbytes") {
                    return Err(Rule::damaged(
                        "GNU.sparse.offset and GNU.sparse.numbytes do not come in pairs",
                    ));
                }
                self.map.push(decimal(value).ok_or_else(|| bad_value(key, value))?);
            }
            _ => {}
        }
        if self.map.len() / 2 > SPARSE_RUNS_MAX {
            return Err(Rule::damaged(format!("a sparse file has more than {SPARSE_RUNS_MAX} data runs")));
        }
        Ok(())
    }
}

/// Whether this module handles `key`.
fn is_understood(key: &[u8]) -> bool {
    const KEYS: &[&[u8]] = &[
        b"path",
        b"linkpath",
        b"size",
        b"uid",
        b"gid",
        b"mtime",
        b"atime",
        b"ctime",
        b"LIBARCHIVE.creationtime",
    ];
    const PREFIXES: &[&[u8]] =
        &[b"SCHILY.", b"SUN.dev", b"LIBARCHIVE.xattr.", b"GNU.sparse.", b"GNU.volume.", b"RHT."];
    KEYS.contains(&key) || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// The records of one extended header: keys and values. Ends after the first malformed one.
pub(crate) fn records(header: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Rule>> {
    let mut rest = header;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = next_record(rest);
        rest = record.map_or(&[][..], |(_, _, rest)| rest);
        Some(record.map(|(key, value, _)| (key, value)).ok_or_else(|| {
            Rule::damaged("an extended header holds a record that is not \"LENGTH KEY=VALUE\" and a newline")
        }))
    })
}

/// Splits off one record, such as `"21 path=some/long/name\n"`. The length counts itself, the space and the
/// newline.
fn next_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    const LENGTH_DIGITS_MAX: usize = 20;
    let space = bytes.iter().take(LENGTH_DIGITS_MAX + 1).position(|&b| b == b' ')?;
    let len = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|&b| b == b'=')?;
    let (key, value) = (&body[..equals], &body[equals + 1..]);
    (!key.is_empty()).then_some((key, value, rest))
}

/// Parses ASCII digits: no sign, no blank, no empty text.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses a PAX time in seconds: `-1.5`, `1700000000.123456789`. Digits after the ninth are rounded down,
/// towards the past, so that no file becomes newer than it was.
pub(crate) fn decimal_time(text: &[u8]) -> Option<Time> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |&b| b == b'.');
    let whole = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (kept, finer) = fraction.split_at(fraction.len().min(9));
    let mut nanos = (0..9).fold(0u32, |n, i| n * 10 + kept.get(i).map_or(0, |digit| u32::from(digit - b'0')));
    if !negative {
        return Some(Time { seconds: whole, nanos });
    }
    // -1.5 is two seconds back and half a second forward.
    nanos += u32::from(finer.iter().any(|&digit| digit != b'0'));
    if nanos == 0 {
        return Some(Time { seconds: -whole, nanos: 0 });
    }
    Some(Time { seconds: (-whole).checked_sub(1)?, nanos: 1_000_000_000 - nanos })
}

fn bad_value(key: &[u8], value: &[u8]) -> Rule {
    let shown = &value[..value.len().min(100)];
    Rule::damaged(format!("the extended header's {} has the value \"{}\"", ShownPath(key), ShownPath(shown)))
}

fn text(key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Rule> {
    if value.contains(&0) {
        return Err(bad_value(key, value));
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

fn number(key: &[u8], value: &[u8]) -> Result<Option<u64>, Rule> {
    if value.is_empty() {
        return Ok(None);
    }
    decimal(value).map(Some).ok_or_else(|| bad_value(key, value))
}

fn small_number(key: &[u8], value: &[u8]) -> Result<Option<u32>, Rule> {
    number(key, value)?.map(|n| u32::try_from(n).map_err(|_| bad_value(key, value))).transpose()
}

fn time_of(key: &[u8], value: &[u8]) -> Result<Option<Time>, Rule> {
    if value.is_empty() {
        return Ok(None);
    }
    decimal_time(value).map(Some).ok_or_else(|| bad_value(key, value))
}

/// Reverses the escapes of GNU tar, which escapes exactly two characters in the keyword.
fn gnu_unescaped(name: &[u8]) -> Vec<u8> {
    unescaped(name, |hex| match hex {
        b"3D" => Some(b'='),
        b"25" => Some(b'%'),
        _ => None,
    })
}

/// Decodes `%XX` as in URLs. A `%` without two hexadecimal digits stays.
fn percent_decoded(name: &[u8]) -> Vec<u8> {
    unescaped(name, |hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok())
}

fn unescaped(name: &[u8], meaning: impl Fn(&[u8]) -> Option<u8>) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        match tail.get(..2).filter(|_| first == b'%').and_then(&meaning) {
            Some(letter) => {
                plain.push(letter);
                rest = &tail[2..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

/// Decodes Base64 with the standard alphabet. The padding is optional (libarchive omits it).
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|&&b| b == b'=').count();
    if padding > 2 {
        return None;
    }
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for quad in digits.chunks(4) {
        if quad.len() == 1 {
            return None;
        }
        let mut bits = 0u32;
        for i in 0..4 {
            let digit = match quad.get(i) {
                None => 0,
                Some(letter @ b'A'..=b'Z') => letter - b'A',
                Some(letter @ b'a'..=b'z') => letter - b'a' + 26,
                Some(letter @ b'0'..=b'9') => letter - b'0' + 52,
                Some(b'+') => 62,
                Some(b'/') => 63,
                Some(_) => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..quad.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One record with its correct length.
    fn record(key: &str, value: &[u8]) -> Vec<u8> {
        let body = key.len() + value.len() + 3;
        let mut len = body + 1;
        while len != body + len.to_string().len() {
            len = body + len.to_string().len();
        }
        let mut bytes = format!("{len} {key}=").into_bytes();
        bytes.extend_from_slice(value);
        bytes.push(b'\n');
        bytes
    }

    fn attributes(list: &[(&str, &[u8])]) -> Result<Attributes, Rule> {
        let header: Vec<u8> = list.iter().flat_map(|(key, value)| record(key, value)).collect();
        Attributes::of(&Globals::default(), &header)
    }

    #[test]
    fn times_keep_nanoseconds_and_round_towards_the_past() {
        let cases: &[(&str, i64, u32)] = &[
            ("0", 0, 0),
            ("1700000000.123456789", 1_700_000_000, 123_456_789),
            ("1.5", 1, 500_000_000),
            ("1.9999999999", 1, 999_999_999),
            ("-1.5", -2, 500_000_000),
            ("-1", -1, 0),
            ("-0.0000000001", -1, 999_999_999),
            ("-0.000000001", -1, 999_999_999),
            ("-1.9999999999", -2, 0),
            ("20000000000.1", 20_000_000_000, 100_000_000),
            ("5.", 5, 0),
        ];
        for &(text, seconds, nanos) in cases {
            assert_eq!(decimal_time(text.as_bytes()), Some(Time { seconds, nanos }), "{text}");
        }
        for bad in ["", "-", ".", "1.2.3", "1e9", "+1", "99999999999999999999", "1.-5", "--1", " 1"] {
            assert_eq!(decimal_time(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(decimal_time(b"-9223372036854775807.5").unwrap().seconds, i64::MIN);
    }

    #[test]
    fn records_may_hold_any_byte_in_their_value() {
        let all = attributes(&[("SCHILY.xattr.user.bin", b"a\0b\nc=d"), ("path", b"x=y\nz")]).unwrap();
        assert_eq!(all.xattrs, vec![Xattr { name: b"user.bin".into(), value: b"a\0b\nc=d".into() }]);
        assert_eq!(all.path.unwrap(), b"x=y\nz");
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        for bad in [
            &b"5 a=b"[..],
            b"99 path=x\n",
            b"0 path=x\n",
            b"1 path=x\n",
            b"9 path=xy\n",
            b"99999999999999999999999999 a=b\n",
            b"18446744073709551615 a=b\n",
            b"6 abc\n",
            b"5 =b\n",
            b"x a=b\n",
            b"\0\0\0\0",
            b"2 ",
            b"3 \n",
        ] {
            assert!(Attributes::of(&Globals::default(), bad).is_err(), "{}", ShownPath(bad));
        }
    }

    #[test]
    fn attribute_names_and_values_are_unescaped_as_their_writer_escaped_them() {
        let all = attributes(&[
            ("SCHILY.xattr.user.a%3Db%25c%41", b"1"),
            ("LIBARCHIVE.xattr.user.d%20e", b"AP8"),
            ("LIBARCHIVE.xattr.user.f", b"aGVsbG8="),
            ("RHT.security.selinux", b"system_u:object_r:etc_t:s0"),
        ])
        .unwrap();
        let pairs: Vec<(&[u8], &[u8])> = all.xattrs.iter().map(|x| (&x.name[..], &x.value[..])).collect();
        assert_eq!(
            pairs,
            [
                (&b"user.a=b%c%41"[..], &b"1"[..]),
                (b"user.d e", b"\x00\xff"),
                (b"user.f", b"hello"),
                (b"security.selinux", b"system_u:object_r:etc_t:s0\0"),
            ]
        );
    }

    #[test]
    fn attributes_without_a_home_in_ext4_are_left_out_with_a_word() {
        let all =
            attributes(&[("SCHILY.xattr.com.apple.quarantine", b"1"), ("SCHILY.xattr.system.data", b"2")])
                .unwrap();
        assert!(all.xattrs.is_empty());
        assert_eq!(all.left_out.len(), 2);
    }

    #[test]
    fn a_local_record_wins_over_a_global_one_and_an_empty_one_takes_it_back() {
        let mut globals = Globals::default();
        globals
            .merge(&[record("mtime", b"5"), record("uid", b"7"), record("comment", b"x")].concat())
            .unwrap();
        globals.merge(&record("gid", b"8")).unwrap();
        let local = [record("mtime", b"6"), record("uid", b"")].concat();
        let all = Attributes::of(&globals, &local).unwrap();
        assert_eq!((all.mtime.unwrap().seconds, all.uid, all.gid), (6, None, Some(8)));
        globals.merge(&record("gid", b"")).unwrap();
        assert_eq!(Attributes::of(&globals, &[]).unwrap().gid, None);
        assert!(globals.merge(&record("path", &vec![b'x'; 70_000])).is_err());
    }

    #[test]
    fn sparse_records_of_both_old_forms_give_the_same_map() {
        let old = attributes(&[
            ("GNU.sparse.offset", b"0"),
            ("GNU.sparse.numbytes", b"512"),
            ("GNU.sparse.offset", b"4096"),
            ("GNU.sparse.numbytes", b"0"),
        ]);
        let new = attributes(&[("GNU.sparse.map", b"0,512,4096,0")]);
        assert_eq!(old.unwrap().sparse.map, new.unwrap().sparse.map);
        assert!(attributes(&[("GNU.sparse.numbytes", b"1")]).is_err());
        assert!(attributes(&[("GNU.sparse.map", b"1,,2")]).is_err());
    }

    #[test]
    fn base64_is_strict() {
        assert_eq!(base64(b"").unwrap(), b"");
        assert_eq!(base64(b"aGVsbG8gdGhlcmU=").unwrap(), b"hello there");
        assert_eq!(base64(b"/+8").unwrap(), b"\xff\xef");
        for bad in [&b"a"[..], b"a===", b"ab c", b"abcde", b"a=bc"] {
            assert_eq!(base64(bad), None);
        }
    }
}
