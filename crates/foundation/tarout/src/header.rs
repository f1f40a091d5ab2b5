//! The headers of one entry: values that ustar cannot store go into pax records before the ustar header.
//!
//! ```text
//! offset  len  field                 offset  len  field
//!      0  100  name                     156    1  typeflag
//!    100    8  mode                     157  100  link name
//!    108    8  uid                      257    8  "ustar\0" "00"
//!    116    8  gid                      329    8  device major
//!    124   12  size                     337    8  device minor
//!    136   12  mtime                    345  155  prefix: the part before the name and a /
//!    148    8  checksum
//! record  "LENGTH KEY=VALUE\n"; LENGTH counts all of it
//! ```
//! Numbers are octal. User and group names stay empty.

use crate::sparse::{self, digits, push_decimal};
use crate::{BLOCK_BYTES, Begun, Entry, Kind, TarFault, Time, acl, padding_bytes};

const NAME_BYTES: usize = 100;
const PREFIX_BYTES: usize = 155;
/// Owners and device numbers above this do not fit 7 octal digits.
const SMALL_MAX: u64 = 0o777_7777;
/// Sizes and times above this do not fit 11 octal digits.
const LARGE_MAX: u64 = 0o777_7777_7777;
/// Owner in the header if a record has the real one: the unprivileged user, so that a reader that ignores the
/// record does no harm.
const NOBODY: u64 = 65534;

/// Appends an entry's headers to `out`, up to its data. Their length is a multiple of 512. For a sparse file
/// they include the map.
///
/// Several threads may build members without the writer: this function, then the data, then [`padding_bytes`]
/// of zeros. The result goes to [`TarWriter::members`](crate::TarWriter::members).
///
/// # Errors
/// [`TarFault::Path`] and [`TarFault::Runs`]; `out` is unchanged then.
pub fn encode(entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<Begun, TarFault> {
    check_path(entry.path)?;
    let runs = match entry.kind {
        Kind::Socket => return Ok(Begun::Skipped),
        Kind::HardLink(b"") => {
            return Err(TarFault::Path { path: shown(entry.path), rule: "it is a link to nothing" });
        }
        Kind::HardLink(target) => {
            check_path(target)?;
            None
        }
        Kind::File { size_bytes, runs: Some(runs) } => match sparse::plan(runs, size_bytes) {
            Ok(plan) => plan.map(|plan| (plan, runs, size_bytes)),
            Err(run) => {
                let path = shown(entry.path);
                return Err(TarFault::Runs {
                    path,
                    offset_bytes: run.offset_bytes,
                    len_bytes: run.len_bytes,
                });
            }
        },
        _ => None,
    };
    let mut stored_path;
    let path = match entry.kind {
        Kind::Directory if entry.path.is_empty() => b"./",
        Kind::Directory => {
            stored_path = Vec::with_capacity(entry.path.len() + 1);
            stored_path.extend_from_slice(entry.path);
            stored_path.push(b'/');
            &stored_path[..]
        }
        _ if entry.path.is_empty() => {
            return Err(TarFault::Path { path: String::new(), rule: "only a directory can be the root" });
        }
        _ => entry.path,
    };
    let link = match entry.kind {
        Kind::Symlink(target) | Kind::HardLink(target) => target,
        _ => b"",
    };
    let size = match (&runs, entry.kind) {
        (Some((plan, ..)), _) => plan.map_bytes + plan.data_bytes,
        (None, Kind::File { size_bytes, .. }) => size_bytes,
        _ => 0,
    };

    // The records are written in place, after a header that is filled in once their length is known.
    let start = out.len();
    out.resize(start + BLOCK_BYTES, 0);
    let real_size = runs.as_ref().map(|(_, _, size_bytes)| *size_bytes);
    push_records(entry, path, link, size, real_size, out);
    let records_bytes = out.len() - start - BLOCK_BYTES;
    if records_bytes == 0 {
        out.truncate(start);
    } else {
        let fields = Fields { typeflag: b'x', mode: 0o644, size: records_bytes as u64, ..Fields::default() };
        fields.fill(&made_up_name(b"PaxHeaders/", entry.path), b"", &mut out[start..start + BLOCK_BYTES]);
        out.resize(out.len() + padding_bytes(records_bytes as u64), 0);
    }

    let (typeflag, (major, minor)) = match entry.kind {
        Kind::HardLink(_) => (b'1', (0, 0)),
        Kind::Symlink(_) => (b'2', (0, 0)),
        Kind::CharDevice { major, minor } => (b'3', (major, minor)),
        Kind::BlockDevice { major, minor } => (b'4', (major, minor)),
        Kind::Directory => (b'5', (0, 0)),
        Kind::Fifo => (b'6', (0, 0)),
        Kind::File { .. } | Kind::Socket => (b'0', (0, 0)),
    };
    let fields = Fields {
        typeflag,
        mode: u64::from(entry.mode & 0o7777),
        uid: fitting(entry.uid.into()).unwrap_or(NOBODY),
        gid: fitting(entry.gid.into()).unwrap_or(NOBODY),
        size: size.min(LARGE_MAX),
        mtime: u64::try_from(entry.mtime.seconds).unwrap_or(0).min(LARGE_MAX),
        device: Some((fitting(major.into()).unwrap_or(0), fitting(minor.into()).unwrap_or(0))),
    };
    let at = out.len();
    out.resize(at + BLOCK_BYTES, 0);
    if runs.is_some() {
        fields.fill(&made_up_name(b"GNUSparseFile.0/", entry.path), link, &mut out[at..]);
    } else {
        fields.fill(path, link, &mut out[at..]);
    }
    Ok(match runs {
        Some((plan, runs, size_bytes)) => {
            sparse::push_map(runs, size_bytes, out);
            Begun::Runs(plan.data_bytes)
        }
        None => Begun::Whole(size),
    })
}

/// The records for values that the header alone cannot store, in a fixed order.
fn push_records(
    entry: &Entry<'_>,
    path: &[u8],
    link: &[u8],
    size: u64,
    real_size: Option<u64>,
    out: &mut Vec<u8>,
) {
    let is_sparse = real_size.is_some();
    let path_record = is_sparse || needs_record(path, split(path).is_some());
    let link_record = needs_record(link, link.len() <= NAME_BYTES);
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    if (path_record && !is_text(path)) || (link_record && !is_text(link)) {
        push_record(b"hdrcharset", b"BINARY", out);
    }
    if path_record && !is_sparse {
        push_record(b"path", path, out);
    }
    if link_record {
        push_record(b"linkpath", link, out);
    }
    if size > LARGE_MAX {
        push_number(b"size", size, out);
    }
    for (key, id) in [(b"uid", entry.uid), (b"gid", entry.gid)] {
        if fitting(id.into()).is_none() {
            push_number(key, id.into(), out);
        }
    }
    let mtime = entry.mtime;
    if mtime.nanos != 0 || u64::try_from(mtime.seconds).map_or(true, |seconds| seconds > LARGE_MAX) {
        push_time(b"mtime", mtime, out);
    }
    let others =
        [(&b"atime"[..], entry.atime), (b"ctime", entry.ctime), (b"LIBARCHIVE.creationtime", entry.crtime)];
    for (key, time) in others {
        if let Some(time) = time {
            push_time(key, time, out);
        }
    }
    if let Kind::CharDevice { major, minor } | Kind::BlockDevice { major, minor } = entry.kind {
        for (key, number) in [(b"SCHILY.devmajor", major), (b"SCHILY.devminor", minor)] {
            if fitting(number.into()).is_none() {
                push_number(key, number.into(), out);
            }
        }
    }
    if let Some(real_size) = real_size {
        push_record(b"GNU.sparse.major", b"1", out);
        push_record(b"GNU.sparse.minor", b"0", out);
        push_record(b"GNU.sparse.name", path, out);
        push_number(b"GNU.sparse.realsize", real_size, out);
    }
    let mut key = Vec::new();
    for xattr in entry.xattrs {
        let text_key = match xattr.name {
            b"system.posix_acl_access" => Some(&b"SCHILY.acl.access"[..]),
            b"system.posix_acl_default" => Some(&b"SCHILY.acl.default"[..]),
            _ => None,
        };
        if let Some((text_key, text)) = text_key.zip(acl::to_text(xattr.value)) {
            push_record(text_key, &text, out);
        }
        key.clear();
        key.extend_from_slice(b"SCHILY.xattr.");
        for byte in xattr.name {
            match byte {
                b'=' => key.extend_from_slice(b"%3D"),
                b'%' => key.extend_from_slice(b"%25"),
                _ => key.push(*byte),
            }
        }
        push_record(&key, xattr.value, out);
    }
}

/// Whether a name needs a record: if the header cannot store it, or if it is UTF-8 but not ASCII. A name that
/// is not UTF-8 is better stored in the header, where readers use the bytes unchanged.
fn needs_record(name: &[u8], fits: bool) -> bool {
    !fits || (!name.is_ascii() && std::str::from_utf8(name).is_ok())
}

/// `"21 path=some/long/name\n"`: the length includes its own digits, the blank and the newline.
fn push_record(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let body = (key.len() + value.len() + 3) as u64;
    let mut len = body + digits(body);
    if digits(len) != digits(body) {
        len = body + digits(len);
    }
    push_decimal(len, out);
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn push_number(key: &[u8], number: u64, out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(20);
    push_decimal(number, &mut text);
    push_record(key, &text, out);
}

/// `-1.5` is 1.5 seconds before 1970: -2 seconds and 500,000,000 nanoseconds.
fn push_time(key: &[u8], time: Time, out: &mut Vec<u8>) {
    let nanos = time.nanos.min(999_999_999);
    let mut text = Vec::with_capacity(32);
    let (whole, fraction) = if time.seconds < 0 && nanos != 0 {
        ((time.seconds + 1).unsigned_abs(), 1_000_000_000 - nanos)
    } else {
        (time.seconds.unsigned_abs(), nanos)
    };
    if time.seconds < 0 {
        text.push(b'-');
    }
    push_decimal(whole, &mut text);
    if fraction != 0 {
        text.push(b'.');
        let mut rest = fraction;
        let mut unit = 100_000_000;
        while rest != 0 {
            text.push(b'0' + (rest / unit) as u8);
            rest %= unit;
            unit /= 10;
        }
    }
    push_record(key, &text, out);
}

/// The name of a pax or sparse header; readers that support pax never show it.
fn made_up_name(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let base = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let mut name = prefix.to_vec();
    name.extend_from_slice(if base.is_empty() { b"." } else { base });
    name.truncate(NAME_BYTES);
    name
}

/// The prefix and the name; `None` if they cannot store this path.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= NAME_BYTES {
        return Some((b"", path));
    }
    let first = path.len() - NAME_BYTES - 1;
    let slash = first + path[first..].iter().position(|byte| *byte == b'/')?;
    // A slash at the end belongs to the name.
    (slash > 0 && slash <= PREFIX_BYTES && slash + 1 < path.len())
        .then(|| (&path[..slash], &path[slash + 1..]))
}

fn fitting(number: u64) -> Option<u64> {
    (number <= SMALL_MAX).then_some(number)
}

/// The numbers of a header; each fits its field.
#[derive(Default)]
struct Fields {
    typeflag: u8,
    mode: u64,
    uid: u64,
    gid: u64,
    size: u64,
    mtime: u64,
    device: Option<(u64, u64)>,
}

impl Fields {
    /// Fills a block of zeros. Names that do not fit are cut: a record has them.
    fn fill(&self, path: &[u8], link: &[u8], block: &mut [u8]) {
        let (prefix, name) = split(path).unwrap_or((b"", &path[..path.len().min(NAME_BYTES)]));
        let link = &link[..link.len().min(NAME_BYTES)];
        block[..name.len()].copy_from_slice(name);
        octal(self.mode, &mut block[100..107]);
        octal(self.uid, &mut block[108..115]);
        octal(self.gid, &mut block[116..123]);
        octal(self.size, &mut block[124..135]);
        octal(self.mtime, &mut block[136..147]);
        block[156] = self.typeflag;
        block[157..157 + link.len()].copy_from_slice(link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        if let Some((major, minor)) = self.device {
            octal(major, &mut block[329..336]);
            octal(minor, &mut block[337..344]);
        }
        block[345..345 + prefix.len()].copy_from_slice(prefix);
        // The checksum's own field counts as eight blanks.
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        octal(sum, &mut block[148..154]);
        block[154] = 0;
    }
}

/// Fills a field with octal digits.
fn octal(mut number: u64, field: &mut [u8]) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (number & 7) as u8;
        number >>= 3;
    }
}

fn check_path(path: &[u8]) -> Result<(), TarFault> {
    if path.is_empty() {
        return Ok(());
    }
    let rule = if path.contains(&0) {
        "it holds a NUL"
    } else {
        let odd = path.split(|byte| *byte == b'/').find(|part| matches!(*part, b"" | b"." | b".."));
        match odd {
            None => return Ok(()),
            Some(b"..") => "it holds \"..\"",
            Some(b".") => "it holds \".\"",
            Some(_) => "it begins or ends with /, or holds two in a row",
        }
    };
    Err(TarFault::Path { path: shown(path), rule })
}

fn shown(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataRun, Xattr};

    const TIME: Time = Time { seconds: 1000, nanos: 0 };

    fn file(path: &[u8], size_bytes: u64) -> Entry<'_> {
        Entry { mode: 0o644, ..Entry::new(path, Kind::File { size_bytes, runs: None }, TIME) }
    }

    /// The records before the header without their lengths, as text; empty if there are none.
    fn records(entry: &Entry<'_>) -> String {
        let mut out = Vec::new();
        encode(entry, &mut out).unwrap();
        assert_eq!(out.len() % BLOCK_BYTES, 0);
        let mut rest = if out[156] == b'x' { &out[512..] } else { &[] };
        let mut text = String::new();
        while let Some(blank) = rest.iter().position(|byte| *byte == b' ').filter(|_| rest[0] != 0) {
            let len: usize = std::str::from_utf8(&rest[..blank]).unwrap().parse().unwrap();
            text += &String::from_utf8_lossy(&rest[blank + 1..len]);
            rest = &rest[len..];
        }
        text
    }

    #[test]
    fn what_a_header_can_say_needs_no_record() {
        let mut out = Vec::new();
        assert_eq!(encode(&file(b"etc/motd", 5), &mut out).unwrap(), Begun::Whole(5));
        assert_eq!(out.len(), BLOCK_BYTES);
        let field = |at: usize, len: usize| String::from_utf8_lossy(&out[at..at + len]).into_owned();
        assert_eq!(field(0, 9), "etc/motd\0");
        assert_eq!(field(100, 24), "0000644\x000000000\x000000000\0");
        assert_eq!(field(124, 24), "00000000005\x0000000001750\0");
        assert_eq!(field(156, 1) + &field(257, 8), "0ustar\x0000");
        let sum: u64 = out[..148].iter().chain(&out[156..]).map(|byte| u64::from(*byte)).sum();
        assert_eq!(field(148, 8), format!("{:06o}\0 ", sum + 256));
    }

    #[test]
    fn lengths_of_records_count_themselves() {
        for len in 1..1200 {
            let mut out = Vec::new();
            push_record(b"k", &vec![b'v'; len], &mut out);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.split(' ').next().unwrap(), text.len().to_string());
        }
    }

    #[test]
    fn times_are_decimals_that_count_back_before_1970() {
        for (seconds, nanos, text) in [
            (0, 1, "mtime=0.000000001\n"),
            (1_700_000_000, 120_000_000, "mtime=1700000000.12\n"),
            (-1, 0, "mtime=-1\n"),
            (-2, 500_000_000, "mtime=-1.5\n"),
            (-1, 999_999_999, "mtime=-0.000000001\n"),
            (i64::MIN, 0, "mtime=-9223372036854775808\n"),
            (1 << 33, 0, "mtime=8589934592\n"),
            ((1 << 33) - 1, 0, ""),
        ] {
            let mtime = Time { seconds, nanos };
            assert_eq!(records(&Entry { mtime, ..file(b"a", 0) }), text);
        }
    }

    #[test]
    fn numbers_beyond_octal_go_into_records() {
        assert_eq!(records(&file(b"a", (8 << 30) - 1)), "");
        assert_eq!(records(&file(b"a", 8 << 30)), "size=8589934592\n");
        let big = Entry { uid: 2_097_152, gid: 2_097_151, ..file(b"a", 0) };
        assert_eq!(records(&big), "uid=2097152\n");
    }

    #[test]
    fn names_go_where_readers_take_them_as_they_are() {
        let long = format!("{}/{}", "d".repeat(150), "n".repeat(99));
        assert_eq!(records(&file(long.as_bytes(), 0)), "");
        let too_long = "n".repeat(101);
        assert_eq!(records(&file(too_long.as_bytes(), 0)), format!("path={too_long}\n"));
        assert_eq!(records(&file("\u{e4}".as_bytes(), 0)), "path=\u{e4}\n");
        assert_eq!(records(&file(b"\xff", 0)), "");
        let odd = [&b"\xff"[..], &[b'n'; 100]].concat();
        assert!(records(&file(&odd, 0)).starts_with("hdrcharset=BINARY\npath="));
        let link = Entry { kind: Kind::Symlink("\u{e4}".as_bytes()), ..file(b"a", 0) };
        assert_eq!(records(&link), "linkpath=\u{e4}\n");
    }

    #[test]
    fn every_path_that_splits_joins_again() {
        for len in 1..300 {
            for step in [1, 2, 3, 50, 99, 100, 101] {
                let path: Vec<u8> =
                    (1..=len).map(|i| if i % (step + 1) == 0 { b'/' } else { b'x' }).collect();
                if let Some((prefix, name)) = split(&path) {
                    assert!(prefix.len() <= PREFIX_BYTES && name.len() <= NAME_BYTES && !name.is_empty());
                    let joined =
                        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() };
                    assert_eq!(joined, path);
                }
            }
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused_and_leave_nothing_behind() {
        for path in [&b"/etc"[..], b"a/../b", b"..", b"./a", b"a//b", b"a/", b"a\0b", b""] {
            let mut out = vec![7];
            assert!(matches!(encode(&file(path, 0), &mut out), Err(TarFault::Path { .. })), "{path:?}");
            let link = Entry { kind: Kind::HardLink(path), ..file(b"a", 0) };
            assert!(matches!(encode(&link, &mut out), Err(TarFault::Path { .. })), "{path:?}");
            assert_eq!(out, [7]);
        }
    }

    #[test]
    fn sockets_are_skipped_and_runs_are_checked() {
        let mut out = Vec::new();
        let socket = Entry { kind: Kind::Socket, ..file(b"s", 0) };
        assert_eq!(encode(&socket, &mut out).unwrap(), Begun::Skipped);
        let runs = [DataRun { offset_bytes: 5, len_bytes: 6 }];
        let broken = Entry { kind: Kind::File { size_bytes: 10, runs: Some(&runs) }, ..file(b"s", 0) };
        assert!(matches!(encode(&broken, &mut out), Err(TarFault::Runs { offset_bytes: 5, .. })));
        assert!(out.is_empty());
    }

    #[test]
    fn attributes_keep_their_bytes_and_acls_have_both_forms() {
        let acl = [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255];
        let xattrs = [
            Xattr { name: b"user.a=b%", value: b"x\ny" },
            Xattr { name: b"system.posix_acl_access", value: &acl },
        ];
        let text = records(&Entry { xattrs: &xattrs, ..file(b"a", 0) });
        assert!(text.starts_with("SCHILY.xattr.user.a%3Db%25=x\ny\nSCHILY.acl.access=user::rw-\n"), "{text}");
        assert!(text.contains("SCHILY.xattr.system.posix_acl_access=\u{2}"), "{text}");
    }
}
