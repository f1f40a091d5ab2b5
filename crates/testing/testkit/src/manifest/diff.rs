//! The differences between a source tree and its image, as readable lines.

use std::collections::HashMap;
use std::ops::Range;

use super::{Content, Entry, Kind, Manifest, Time, show};

/// Maximum number of lines; a last line counts the omitted ones.
const LINES_MAX: usize = 200;

/// Link count of a directory above which ext4's `dir_nlink` stores 1: "not counted".
const DIR_NLINK_MAX: u32 = 64_999;

/// How the holes of files are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// Not compared.
    Ignore,
    /// A hole of the source must be a hole in the image, after rounding inwards to whole blocks of this size.
    /// The image may have more holes (blocks of zeros).
    Stay {
        /// The larger block size of the two sides, in bytes.
        block_size: u64,
    },
    /// Both sides have data in exactly the same blocks of this size.
    Same {
        /// The larger block size of the two sides, in bytes.
        block_size: u64,
    },
}

/// What is compared. The default compares everything that an image must keep, but not atime, ctime and btime.
/// [`exact`](Self::exact) compares two readings of one image.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// Ignore `lost+found` in the root, and its link to the root.
    pub ignore_lost_and_found: bool,
    /// Ignore owner, mode, times and attributes of the root itself.
    pub ignore_root: bool,
    /// Compare access times.
    pub atime: bool,
    /// Compare creation times.
    pub btime: bool,
    /// Compare all times with nanoseconds, otherwise in whole seconds.
    pub nanoseconds: bool,
    /// How holes are compared.
    pub holes: Holes,
    /// Compare what two readers of one image must agree on: inode numbers, ctime, used space, sizes of
    /// directories, stored link counts.
    pub same_image: bool,
    /// Compare extents, if both sides have them.
    pub extents: bool,
    /// Ignore mtime and ctime of directories. When Linux (6.18) replays a fast commit, it creates and removes
    /// names as a process does then, so that the directories get the time of the replay.
    pub ignore_directory_times: bool,
}

impl DiffOptions {
    /// Everything, for two readers of one image with blocks of `block_size` bytes.
    #[must_use]
    pub fn exact(block_size: u64) -> Self {
        Self {
            ignore_lost_and_found: false,
            ignore_root: false,
            atime: true,
            btime: true,
            nanoseconds: true,
            holes: Holes::Same { block_size },
            same_image: true,
            extents: true,
            ignore_directory_times: false,
        }
    }
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            ignore_lost_and_found: true,
            ignore_root: false,
            atime: false,
            btime: false,
            nanoseconds: true,
            holes: Holes::Stay { block_size: 4096 },
            same_image: false,
            extents: false,
            ignore_directory_times: false,
        }
    }
}

/// The differences between `source` and `image`, one per line; none if the image is faithful.
#[must_use]
pub fn diff(source: &Manifest, image: &Manifest, options: &DiffOptions) -> Vec<String> {
    let mut differ = Differ { options, lines: Vec::new(), left_out: 0 };
    let is_compared = |path: &[u8]| {
        !(options.ignore_lost_and_found && (path == b"lost+found" || path.starts_with(b"lost+found/")))
    };
    let leaders = (leaders(source), leaders(image));
    let directories = subdirectories(image);
    for (path, a) in source.entries.iter().filter(|(path, _)| is_compared(path)) {
        let Some(b) = image.entries.get(path) else {
            differ.line(path, "missing in the image".to_owned());
            continue;
        };
        let counted = directories.get(path.as_slice()).copied().unwrap_or(0) + 2;
        differ.entry(path, a, b, (source, image), counted);
        let (leader_a, leader_b) = (leaders.0[&a.inode], leaders.1[&b.inode]);
        if leader_a != leader_b {
            let text =
                |leader| if leader == path.as_slice() { "on its own".to_owned() } else { show(leader) };
            differ.line(
                path,
                format!("hard link: {} in the source, {} in the image", text(leader_a), text(leader_b)),
            );
        }
    }
    for path in image.entries.keys().filter(|path| is_compared(path)) {
        if !source.entries.contains_key(path) {
            differ.line(path, "only in the image".to_owned());
        }
    }
    if differ.left_out > 0 {
        differ.lines.push(format!("... and {} more", differ.left_out));
    }
    differ.lines
}

/// The first path of each inode: two names are hard links if their leaders are equal.
fn leaders(manifest: &Manifest) -> HashMap<(u64, u64), &[u8]> {
    let mut leaders = HashMap::new();
    for (path, entry) in &manifest.entries {
        leaders.entry(entry.inode).or_insert(path.as_slice());
    }
    leaders
}

/// The number of subdirectories of each directory.
fn subdirectories(manifest: &Manifest) -> HashMap<&[u8], u32> {
    let mut counts = HashMap::new();
    for (path, _) in manifest.entries.iter().filter(|(path, e)| e.kind == Kind::Directory && !path.is_empty())
    {
        let parent = path.iter().rposition(|&byte| byte == b'/').map_or(&[][..], |slash| &path[..slash]);
        *counts.entry(parent).or_insert(0) += 1;
    }
    counts
}

/// Formats a value: quoted and escaped; a long one is shortened to its beginning.
fn shown(bytes: &[u8]) -> String {
    match bytes.get(..100) {
        Some(start) if bytes.len() > 100 => {
            format!("\"{}\"... ({} bytes)", start.escape_ascii(), bytes.len())
        }
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

struct Differ<'a> {
    options: &'a DiffOptions,
    lines: Vec<String>,
    left_out: usize,
}

impl Differ<'_> {
    fn line(&mut self, path: &[u8], text: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(format!("{}: {text}", show(path)));
        } else {
            self.left_out += 1;
        }
    }

    fn field<T: PartialEq>(&mut self, path: &[u8], what: &str, a: &T, b: &T, text: impl Fn(&T) -> String) {
        if a != b {
            self.line(path, format!("{what} is {} in the source, {} in the image", text(a), text(b)));
        }
    }

    fn time(&mut self, path: &[u8], what: &str, a: Time, b: Time) {
        let keep = |t: Time| if self.options.nanoseconds { t } else { Time { nanoseconds: 0, ..t } };
        self.field(path, what, &keep(a), &keep(b), Time::to_string);
    }

    fn entry(&mut self, path: &[u8], a: &Entry, b: &Entry, of: (&Manifest, &Manifest), counted: u32) {
        if a.kind != b.kind {
            return self.field(path, "type", &a.kind, &b.kind, |kind| format!("{kind:?}"));
        }
        if a.kind == Kind::Directory && !self.options.same_image {
            self.directory_links(path, a.nlink, b.nlink, of, counted);
        } else {
            self.field(path, "link count", &a.nlink, &b.nlink, u32::to_string);
        }
        if path.is_empty() && self.options.ignore_root {
            return;
        }
        self.field(path, "mode", &a.mode, &b.mode, |mode| format!("{mode:04o}"));
        self.field(path, "uid", &a.uid, &b.uid, u32::to_string);
        self.field(path, "gid", &a.gid, &b.gid, u32::to_string);
        self.field(path, "device", &a.rdev, &b.rdev, |rdev| format!("{rdev:?}"));
        let has_own_times = a.kind != Kind::Directory || !self.options.ignore_directory_times;
        if has_own_times {
            self.time(path, "mtime", a.mtime, b.mtime);
        }
        if self.options.atime {
            self.time(path, "atime", a.atime, b.atime);
        }
        match (self.options.btime, a.btime, b.btime) {
            (true, Some(a), Some(b)) => self.time(path, "btime", a, b),
            (true, Some(_), None) => self.line(path, "btime is not in the image".to_owned()),
            _ => {}
        }
        if self.options.same_image {
            self.field(path, "inode number", &a.inode.1, &b.inode.1, u64::to_string);
            self.field(path, "space used (512 bytes)", &a.blocks, &b.blocks, u64::to_string);
            if has_own_times {
                self.time(path, "ctime", a.ctime, b.ctime);
            }
        }
        if let (true, Some(a), Some(b)) = (self.options.extents, &a.extents, &b.extents) {
            let first = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i));
            if let Some(i) = first {
                self.field(path, &format!("extent {i}"), &a.get(i), &b.get(i), |extent| {
                    format!("{extent:?}")
                });
            }
        }
        if matches!(a.kind, Kind::Regular | Kind::Symlink) || self.options.same_image {
            self.field(path, "size", &a.size, &b.size, u64::to_string);
        }
        let bytes = |bytes: &Vec<u8>| shown(bytes);
        if let (Some(a), Some(b)) = (&a.target, &b.target) {
            self.field(path, "target", a, b, bytes);
        }
        for (name, value) in &a.xattrs {
            match b.xattrs.get(name) {
                Some(other) => {
                    self.field(path, &format!("xattr {}", name.escape_ascii()), value, other, bytes)
                }
                None => self.line(path, format!("xattr {} is not in the image", name.escape_ascii())),
            }
        }
        for name in b.xattrs.keys().filter(|name| !a.xattrs.contains_key(*name)) {
            self.line(path, format!("xattr {} is only in the image", name.escape_ascii()));
        }
        if let (Some(content_a), Some(content_b)) = (&a.content, &b.content) {
            self.content(path, a.size, content_a, content_b);
        }
    }

    /// Compares link counts of a directory. A count of 1 in the source means that its file system does not
    /// count (overlay, btrfs): then the image is compared with its own subdirectories. A count of 1 in the
    /// image means too many to count.
    fn directory_links(&mut self, path: &[u8], a: u32, b: u32, of: (&Manifest, &Manifest), counted: u32) {
        let lost_and_found = |manifest: &Manifest| {
            u32::from(
                path.is_empty()
                    && self.options.ignore_lost_and_found
                    && manifest.entries.contains_key(&b"lost+found"[..]),
            )
        };
        let (extra_a, extra_b) = (lost_and_found(of.0), lost_and_found(of.1));
        let expected = if a == 1 { counted } else { a - extra_a + extra_b };
        let is_uncounted = b == 1 && expected > DIR_NLINK_MAX;
        if b != expected && !is_uncounted {
            self.field(path, "link count", &expected, &b, u32::to_string);
        }
    }

    fn content(&mut self, path: &[u8], size: u64, a: &Content, b: &Content) {
        match (a, b) {
            (
                Content::Read { sha256: sha_a, data: data_a },
                Content::Read { sha256: sha_b, data: data_b },
            ) => {
                if sha_a != sha_b {
                    self.line(path, "content differs".to_owned());
                }
                match self.options.holes {
                    Holes::Ignore => {}
                    Holes::Stay { block_size } => {
                        let holes = holes(data_a, size, block_size);
                        if let Some((hole, data)) = first_overlap(&holes, data_b) {
                            self.line(
                                path,
                                format!("hole {hole:?} of the source has data {data:?} in the image"),
                            );
                        }
                    }
                    Holes::Same { block_size } => {
                        let (a, b) = (holes(data_a, size, block_size), holes(data_b, size, block_size));
                        self.field(path, "holes", &a, &b, |holes| format!("{holes:?}"));
                    }
                }
            }
            // Two readers of an encrypted file without its key.
            (Content::Unreadable(a), Content::Unreadable(b)) if a == b && self.options.same_image => {}
            (Content::Unreadable(error), _) => self.line(path, format!("source not readable: {error}")),
            (_, Content::Unreadable(error)) => self.line(path, format!("image not readable: {error}")),
        }
    }
}

/// The whole blocks of a file without data, as byte ranges. The last range ends at a block boundary.
fn holes(data: &[Range<u64>], size: u64, block_size: u64) -> Vec<Range<u64>> {
    let up = |offset: u64| offset.div_ceil(block_size).saturating_mul(block_size);
    let mut holes = Vec::new();
    let mut from = 0;
    for run in data {
        let to = run.start / block_size * block_size;
        if from < to {
            holes.push(from..to);
        }
        from = up(run.end);
    }
    if from < up(size) {
        holes.push(from..up(size));
    }
    holes
}

/// The first range of `a` that overlaps one of `b`; both are ascending.
fn first_overlap(a: &[Range<u64>], b: &[Range<u64>]) -> Option<(Range<u64>, Range<u64>)> {
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if x.start < y.end && y.start < x.end {
            return Some((x.clone(), y.clone()));
        }
        if x.end <= y.end { i += 1 } else { j += 1 }
    }
    None
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of runs, often of one")]
mod tests {
    use super::*;

    #[test]
    fn holes_are_whole_blocks_without_data() {
        assert_eq!(holes(&[], 5000, 4096), [0..8192]);
        assert_eq!(holes(&[0..1], 5000, 4096), [4096..8192]);
        assert_eq!(holes(&[5000..5001, 16_384..20_000], 20_000, 4096), [0..4096, 8192..16_384]);
        assert_eq!(holes(&[4096..8192], 65_536 * 2, 65_536), [65_536..131_072]);
        assert_eq!(holes(&[], 0, 4096), []);
    }

    #[test]
    fn an_overlap_is_found_wherever_it_is() {
        assert_eq!(first_overlap(&[0..10, 20..30], &[10..20, 30..40]), None);
        assert_eq!(first_overlap(&[0..10, 20..30], &[10..12, 29..30]), Some((20..30, 29..30)));
        assert_eq!(first_overlap(&[0..100], &[]), None);
    }

    #[test]
    fn every_kind_of_difference_has_its_line() {
        let source = tempfile::tempdir().unwrap();
        let image = tempfile::tempdir().unwrap();
        for dir in [&source, &image] {
            std::fs::write(dir.path().join("same"), "1").unwrap();
            std::fs::write(dir.path().join("content"), dir.path().to_string_lossy().as_bytes()).unwrap();
            std::fs::create_dir(dir.path().join("sub")).unwrap();
        }
        std::fs::write(source.path().join("gone"), "1").unwrap();
        std::fs::hard_link(source.path().join("gone"), source.path().join("linked")).unwrap();
        std::fs::write(image.path().join("linked"), "1").unwrap();
        std::fs::create_dir(image.path().join("new")).unwrap();
        std::fs::create_dir(image.path().join("lost+found")).unwrap();
        std::os::unix::fs::symlink("a", source.path().join("link")).unwrap();
        std::os::unix::fs::symlink("b", image.path().join("link")).unwrap();

        let mut manifests = (Manifest::of(source.path()), Manifest::of(image.path()));
        for manifest in [&mut manifests.0, &mut manifests.1] {
            for entry in manifest.entries.values_mut() {
                entry.mtime = Time { seconds: 0, nanoseconds: 0 };
            }
        }
        let lines = diff(&manifests.0, &manifests.1, &DiffOptions::default());
        // The root has one more directory, "new". The link of lost+found is expected, so it is on both sides.
        let expected = [
            "the root: link count is 4 in the source, 5 in the image",
            "\"content\": content differs",
            "\"gone\": missing in the image",
            "\"link\": target is \"a\" in the source, \"b\" in the image",
            "\"linked\": link count is 2 in the source, 1 in the image",
            "\"linked\": hard link: \"gone\" in the source, on its own in the image",
            "\"new\": only in the image",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_directory_with_too_many_subdirectories_counts_as_one() {
        let options = DiffOptions::default();
        let mut differ = Differ { options: &options, lines: Vec::new(), left_out: 0 };
        let empty = Manifest::default();
        differ.directory_links(b"many", 70_002, 1, (&empty, &empty), 70_002);
        differ.directory_links(b"uncounted", 1, 5, (&empty, &empty), 5);
        assert_eq!(differ.lines, Vec::<String>::new());
        differ.directory_links(b"few", 5, 1, (&empty, &empty), 5);
        assert_eq!(differ.lines.len(), 1);
    }
}
