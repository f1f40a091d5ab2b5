//! The tree of an image as debugfs prints it: for images that this machine's kernel does not mount.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use crate::manifest::Content;
use crate::tools::{run, scratch};
use crate::{Entry, Kind, Manifest, Time};

/// The root's inode number.
const ROOT: u64 = 2;

/// Reads the tree with debugfs. The result is as [`Manifest::of`] on a mount, except: the content of files
/// has no holes (compare with [`Holes::Ignore`](crate::Holes::Ignore)), there are no extents, attributes with
/// control characters or a backslash in their names are missing, and ACLs and names of casefolded or
/// encrypted directories are as debugfs shows them.
///
/// # Panics
/// debugfs cannot read the image, or prints something in an unknown format.
#[must_use]
pub fn by_debugfs(image: &Path) -> Manifest {
    let paths = paths(image);
    let inodes: BTreeSet<u64> = paths.values().copied().collect();
    let dir = scratch();

    let stats = answers(image, inodes.iter().map(|ino| format!("stat <{ino}>")));
    let mut entries: BTreeMap<u64, Entry> =
        inodes.iter().copied().zip(&stats).map(|(ino, text)| (ino, entry(ino, text))).collect();

    // Contents, targets of slow symlinks, and attributes are requested only where they exist.
    let has_body = |entry: &Entry, text: &[u8]| match entry.kind {
        Kind::Regular => true,
        Kind::Symlink => fast_target(text).is_none(),
        _ => false,
    };
    let bodies: Vec<u64> = inodes
        .iter()
        .zip(&stats)
        .filter(|(ino, text)| has_body(&entries[ino], text))
        .map(|(ino, _)| *ino)
        .collect();
    let file_of = |ino: u64| dir.path().join(ino.to_string());
    let _ = answers(image, bodies.iter().map(|ino| format!("dump <{ino}> {}", file_of(*ino).display())));
    for ino in bodies {
        let entry = entries.get_mut(&ino).expect("an inode of the list");
        let file = file_of(ino);
        match entry.kind {
            Kind::Regular => entry.content = Some(Content::read(&file)),
            _ => {
                entry.target =
                    Some(std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
            }
        }
    }
    let names: Vec<(u64, String)> = inodes
        .iter()
        .zip(&stats)
        .flat_map(|(ino, text)| xattr_names(text).into_iter().map(|name| (*ino, name)))
        .collect();
    let values = answers(image, names.iter().map(|(ino, name)| format!("ea_get -x <{ino}> \"{name}\"")));
    for ((ino, name), text) in names.into_iter().zip(values) {
        let entry = entries.get_mut(&ino).expect("an inode of the list");
        entry.xattrs.insert(name.into_bytes(), hex_value(&text));
    }
    Manifest { entries: paths.into_iter().map(|(path, ino)| (path, entries[&ino].clone())).collect() }
}

/// Runs requests in one debugfs and returns the output of each.
fn answers(image: &Path, requests: impl Iterator<Item = String>) -> Vec<Vec<u8>> {
    let requests: Vec<String> = requests.collect();
    if requests.is_empty() {
        return Vec::new();
    }
    let dir = scratch();
    let script = dir.path().join("requests");
    let text = requests.join("\n") + "\n";
    std::fs::write(&script, text).unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    let output = run("debugfs", [OsStr::new("-f"), script.as_os_str(), image.as_os_str()]).stdout;
    // debugfs echoes each request before its answer: "debugfs: stat <2>\n".
    let mut rest = &output[..];
    let mut found: Vec<Vec<u8>> = Vec::new();
    for (i, request) in requests.iter().enumerate() {
        let echo = format!("debugfs: {request}\n");
        rest = rest.strip_prefix(echo.as_bytes()).unwrap_or_else(|| {
            panic!(
                "debugfs does not echo {request:?} but prints {:?}",
                String::from_utf8_lossy(&rest[..rest.len().min(200)])
            )
        });
        let next = requests.get(i + 1).map(|next| format!("debugfs: {next}\n"));
        let end = next.and_then(|next| find(rest, next.as_bytes())).unwrap_or(rest.len());
        found.push(rest[..end].to_vec());
        rest = &rest[end..];
    }
    found
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// All paths and their inodes, level by level.
fn paths(image: &Path) -> BTreeMap<Vec<u8>, u64> {
    let mut paths = BTreeMap::from([(Vec::new(), ROOT)]);
    let mut level: Vec<(Vec<u8>, u64)> = vec![(Vec::new(), ROOT)];
    while !level.is_empty() {
        let listings = answers(image, level.iter().map(|(_, ino)| format!("ls -p <{ino}>")));
        let mut next = Vec::new();
        for ((parent, _), listing) in level.iter().zip(listings) {
            for (name, ino, is_dir) in listed(&listing) {
                let mut path = parent.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                if is_dir {
                    next.push((path.clone(), ino));
                }
                paths.insert(path, ino);
            }
        }
        level = next;
    }
    paths
}

/// The names in the output of `ls -p`: lines of `/INODE/MODE/UID/GID/NAME/SIZE/`. A name may contain any byte
/// except a slash, so slashes separate the fields; lines do not.
fn listed(listing: &[u8]) -> Vec<(Vec<u8>, u64, bool)> {
    const FIELDS: usize = 7;
    let fields: Vec<&[u8]> = listing.split(|&byte| byte == b'/').collect();
    let mut found = Vec::new();
    for line in fields[1..].chunks_exact(FIELDS) {
        let [ino, mode, _, _, name, ..] = line else { unreachable!("chunks of 7") };
        if *name == b"." || *name == b".." {
            continue;
        }
        let ino = number(&String::from_utf8_lossy(ino), 10);
        // Removed entries are listed too, as inode 0.
        if ino == 0 {
            continue;
        }
        let is_dir = number(&String::from_utf8_lossy(mode), 8) & 0o170_000 == 0o040_000;
        found.push((name.to_vec(), ino, is_dir));
    }
    found
}

fn number(text: &str, radix: u32) -> u64 {
    u64::from_str_radix(text, radix).unwrap_or_else(|_| panic!("debugfs prints {text:?} for a number"))
}

/// The word after `label`.
fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.split_once(label)?.1.split_whitespace().next()
}

/// Parses the output of `stat`.
fn entry(ino: u64, text: &[u8]) -> Entry {
    let text = String::from_utf8_lossy(text);
    let text = text.as_ref();
    let want = |label: &str| {
        after(text, label).unwrap_or_else(|| panic!("debugfs stat <{ino}> prints no {label:?}: {text}"))
    };
    let kind =
        text.split_once("Type: ").and_then(|(_, rest)| rest.split_once("   ")).map(|(kind, _)| kind.trim());
    let kind = match kind {
        Some("regular") => Kind::Regular,
        Some("directory") => Kind::Directory,
        Some("symlink") => Kind::Symlink,
        Some("FIFO") => Kind::Fifo,
        Some("socket") => Kind::Socket,
        Some("character special") => Kind::CharDevice,
        Some("block special") => Kind::BlockDevice,
        other => panic!("debugfs stat <{ino}>: type {other:?}"),
    };
    let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
    // Ids are printed as signed numbers.
    let id = |label| {
        let text = want(label);
        let id = text.parse::<i64>().unwrap_or_else(|_| panic!("debugfs stat <{ino}>: {label} {text:?}"));
        (id & 0xFFFF_FFFF) as u32
    };
    Entry {
        kind,
        mode: (number(want("Mode:"), 8) & 0o7777) as u16,
        uid: id("User:"),
        gid: id("Group:"),
        size: number(want("Size:"), 10),
        nlink: id("Links:"),
        rdev: is_device.then(|| device(want("major/minor number:"))),
        mtime: time(want("mtime:")),
        atime: time(want("atime:")),
        ctime: time(want("ctime:")),
        btime: after(text, "crtime:").map(time),
        inode: (0, ino),
        xattrs: BTreeMap::new(),
        target: fast_target(text.as_bytes()),
        content: None,
        blocks: number(want("Blockcount:"), 10),
        extents: None,
    }
}

/// Parses `08:01` or `300:70000`: both forms are decimal.
fn device(text: &str) -> (u32, u32) {
    let (major, minor) = text.split_once(':').unwrap_or_else(|| panic!("device number {text:?}"));
    let part = |text| u32::try_from(number(text, 10)).expect("device numbers have 32 bits");
    (part(major), part(minor))
}

/// Parses `0x6b023fe3:97876f28` (seconds, and the extra field with nanoseconds in its upper 30 bits and the
/// epoch in its lower 2) or `0x6b023fe3`.
fn time(text: &str) -> Time {
    let (seconds, extra) = text.split_once(':').unwrap_or((text, "0"));
    let seconds = number(seconds.trim_start_matches("0x"), 16) as u32;
    let extra = number(extra, 16) as u32;
    // The low word is signed; the epoch adds multiples of 2^32 seconds.
    let seconds = i64::from(seconds.cast_signed()) + (i64::from(extra & 3) << 32);
    Time { seconds, nanoseconds: extra >> 2 }
}

/// The target of a symlink that is stored in the inode.
fn fast_target(text: &[u8]) -> Option<Vec<u8>> {
    let label = b"Fast link dest: \"";
    let start = find(text, label)? + label.len();
    let rest = &text[start..];
    let end = rest.iter().rposition(|&byte| byte == b'"')?;
    Some(rest[..end].to_vec())
}

/// The names in `stat`'s list of attributes that can be requested: `  user.a (6) = "q"`, or in hexadecimal if
/// not ASCII, `  75 73 65 72 2e c3 bc  (1) = "v"`. Names with control characters are escaped, and skipped
/// here.
fn xattr_names(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let Some((_, list)) = text.split_once("Extended attributes:\n") else { return Vec::new() };
    let lines = list.lines().map_while(|line| line.strip_prefix("  "));
    let shown = lines.filter_map(|line| line.split_once(" (")).map(|(shown, _)| shown);
    let names = shown.filter_map(|shown| match shown.strip_suffix(' ') {
        Some(hex) => String::from_utf8(hex.split(' ').map(|byte| number(byte, 16) as u8).collect()).ok(),
        None => Some(shown.to_owned()).filter(|name| !name.contains('\\')),
    });
    names.filter(|name| name != "system.data").collect()
}

/// Parses the bytes of `ea_get -x`: `user.bin (3) = 00 ff 10 `.
fn hex_value(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let Some((_, hex)) = text.split_once(" = ") else {
        assert!(text.trim_end().ends_with("(0)"), "debugfs ea_get -x prints {text:?}");
        return Vec::new();
    };
    hex.split_whitespace().map(|byte| number(byte, 16) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_line_breaks_are_one_name() {
        let listing = b"/12/040755/0/0/.//\n/2/040755/0/0/..//\n/13/100644/0/0/we\nird/5/\n/0/100644/0/0/gone/5/\n/14/040700/0/0/d//\n\n";
        assert_eq!(listed(listing), [(b"we\nird".to_vec(), 13, false), (b"d".to_vec(), 14, true)]);
    }

    #[test]
    fn names_of_attributes_are_plain_or_in_hexadecimal() {
        let text = b"Extended attributes:\n  user.a b (1) = \"(v)\"\n  75 2e c3 bc  (1) = 76 \n  u.\\n (1) = \"\"\nEXTENTS:\n";
        assert_eq!(xattr_names(text), ["user.a b", "u.\u{fc}"]);
    }

    #[test]
    fn times_have_an_epoch_and_nanoseconds() {
        assert_eq!(time("0xffffffff"), Time { seconds: -1, nanoseconds: 0 });
        assert_eq!(time("0x00000000:00000005"), Time { seconds: 1 << 32, nanoseconds: 1 });
    }
}
