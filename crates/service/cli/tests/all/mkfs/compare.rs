//! Compares two images: the output of dumpe2fs, and every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_testkit::{Dumpe2fs, debugfs, dumpe2fs, parse_dumpe2fs, run};
use rustix::fs::SeekFrom;

use crate::mkfs::sets::{Expected, Region};

/// Fields of dumpe2fs that count mke2fs's writes, or cover that count.
const FIELDS_IGNORED: [&str; 2] = ["Lifetime writes", "Checksum"];
/// The same fields in the bytes of a superblock: `s_kbytes_written`, `s_checksum`.
const SUPERBLOCK_IGNORED: [Range<u64>; 2] = [0x178..0x180, 0x3FC..0x400];
/// The checksum of an inode, in two halves.
const INODE_CHECKSUM: [Range<u64>; 2] = [0x7C..0x7E, 0x82..0x84];
/// Time, host and device of an MMP block, and its checksum.
const MMP_IGNORED: [Range<u64>; 2] = [0x08..0x70, 0x3FC..0x400];
/// Maximum number of differences to print.
const LINES_MAX: usize = 6;
/// With this many groups dumpe2fs takes seconds, and the comparison of bytes covers them.
const GROUPS_MANY: usize = 10_000;
const CHUNK: u64 = 1 << 20;

/// Byte ranges where a difference is allowed, without overlaps: start to end, and the index of the expected
/// difference if it is one.
#[derive(Default)]
struct Allowed(BTreeMap<u64, (u64, Option<usize>)>);

impl Allowed {
    fn add(&mut self, range: Range<u64>, expected: Option<usize>) {
        self.0.insert(range.start, (range.end, expected));
    }

    /// Whether a difference at this byte is allowed, and by which expected difference.
    fn find(&self, byte: u64) -> Option<Option<usize>> {
        let (_, &(end, expected)) = self.0.range(..=byte).next_back()?;
        (byte < end).then_some(expected)
    }
}

/// The differences found.
struct Findings<'f> {
    expected: &'f [&'f Expected],
    /// Which of the expected differences were found.
    found: Vec<bool>,
    /// The first unexpected differences.
    lines: Vec<String>,
    /// Number of further unexpected differences.
    more: usize,
}

impl Findings<'_> {
    fn unexpected(&mut self, line: impl FnOnce() -> String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line());
        } else {
            self.more += 1;
        }
    }

    /// Records a difference of a field of dumpe2fs, or of `group`.
    fn field(&mut self, label: &str, line: impl FnOnce() -> String) {
        match self.expected.iter().position(|expected| expected.fields.contains(&label)) {
            Some(index) => self.found[index] = true,
            None => self.unexpected(line),
        }
    }
}

/// Compares mke2fs's image with extant's. Everything except the expected differences must be equal, and each
/// expected difference must exist.
pub(crate) fn compare(theirs: &Path, ours: &Path, expected: &[&Expected]) -> Result<(), String> {
    let our_dump = dumpe2fs(ours);
    let their_dump = if our_dump.groups.len() > GROUPS_MANY {
        let mut header =
            parse_dumpe2fs(&String::from_utf8_lossy(&run("dumpe2fs", [Path::new("-h"), theirs]).stdout));
        header.groups.clone_from(&our_dump.groups);
        header
    } else {
        dumpe2fs(theirs)
    };
    let found = vec![false; expected.len()];
    let mut findings = Findings { expected, found, lines: Vec::new(), more: 0 };
    compare_fields(&their_dump, &our_dump, &mut findings);
    let places = Places { dump: &our_dump, images: [theirs, ours] };
    compare_bytes(theirs, ours, &places.allowed(expected), &mut findings);
    for (expected, _) in expected.iter().zip(findings.found).filter(|(_, found)| !found) {
        findings.lines.push(format!("the expected difference \"{}\" is not there", expected.name));
    }
    if findings.more > 0 {
        findings.lines.push(format!("and {} more", findings.more));
    }
    if findings.lines.is_empty() { Ok(()) } else { Err(findings.lines.join("\n")) }
}

fn compare_fields(theirs: &Dumpe2fs, ours: &Dumpe2fs, findings: &mut Findings<'_>) {
    let labels: BTreeSet<&String> = theirs.fields.keys().chain(ours.fields.keys()).collect();
    for label in labels.into_iter().filter(|label| !FIELDS_IGNORED.contains(&label.as_str())) {
        let (their, our) = (theirs.fields.get(label), ours.fields.get(label));
        if their != our {
            findings.field(label, || format!("{label}: mke2fs {their:?}, extant {our:?}"));
        }
    }
    if theirs.groups.len() != ours.groups.len() {
        findings.field("group", || {
            format!("mke2fs {} groups, extant {}", theirs.groups.len(), ours.groups.len())
        });
    }
    for (their, our) in theirs.groups.iter().zip(&ours.groups).filter(|(their, our)| their != our) {
        findings.field("group", || format!("mke2fs {their:?}\nextant {our:?}"));
    }
}

/// Finds the addresses of structures in the images.
struct Places<'p> {
    dump: &'p Dumpe2fs,
    images: [&'p Path; 2],
}

impl Places<'_> {
    fn allowed(&self, expected: &[&Expected]) -> Allowed {
        let mut allowed = Allowed::default();
        for (index, expected) in expected.iter().enumerate() {
            for region in expected.regions {
                self.add_region(*region, index, &mut allowed);
            }
        }
        for superblock in self.superblocks() {
            for range in &SUPERBLOCK_IGNORED {
                allowed.add(superblock + range.start..superblock + range.end, None);
            }
        }
        allowed
    }

    fn add_region(&self, region: Region, index: usize, allowed: &mut Allowed) {
        let block_size = self.dump.number("Block size");
        let mut add = |range: Range<u64>| allowed.add(range, Some(index));
        let block = |block: u64| block * block_size..(block + 1) * block_size;
        match region {
            Region::Superblock(from, to) => {
                self.superblocks().for_each(|at| add(at + from as u64..at + to as u64));
            }
            Region::Inode(ino, from, to) => {
                let (at, size) = self.inode(ino);
                add(at + from as u64..at + size.min(to as u64));
                INODE_CHECKSUM.iter().filter(|range| from as u64 > range.end).for_each(|range| {
                    add(at + range.start..at + range.end);
                });
            }
            Region::Blocks(ino) => {
                for image in self.images {
                    let list = debugfs(image, &format!("blocks <{ino}>"));
                    list.split_whitespace()
                        .for_each(|number| add(block(number.parse().expect("a block number"))));
                }
            }
            Region::Bitmaps => {
                for group in &self.dump.groups {
                    add(block(group.block_bitmap));
                    add(block(group.inode_bitmap));
                    let (first, last) = group.group_descriptors.unwrap_or((1, 0));
                    (first..=last).for_each(|descriptors| add(block(descriptors)));
                }
            }
            Region::Mmp => {
                let at = self.dump.number("MMP block number") * block_size;
                MMP_IGNORED.iter().for_each(|range| add(at + range.start..at + range.end));
            }
        }
    }

    /// The first byte of each copy of the superblock.
    fn superblocks(&self) -> impl Iterator<Item = u64> {
        let block_size = self.dump.number("Block size");
        let copies = self.dump.groups.iter().skip(1).filter_map(|group| group.superblock);
        std::iter::once(1024).chain(copies.map(move |block| block * block_size))
    }

    /// The first byte of an inode, and its length in bytes.
    fn inode(&self, ino: u32) -> (u64, u64) {
        let (size, per_group) = (self.dump.number("Inode size"), self.dump.number("Inodes per group"));
        let index = u64::from(ino) - 1;
        let table = self.dump.groups[(index / per_group) as usize].inode_table.0;
        (table * self.dump.number("Block size") + index % per_group * size, size)
    }
}

fn compare_bytes(theirs: &Path, ours: &Path, allowed: &Allowed, findings: &mut Findings<'_>) {
    let [theirs, ours] = [theirs, ours].map(|path| File::open(path).expect("made before"));
    let mut runs = data_runs(&theirs);
    runs.extend(data_runs(&ours));
    runs.sort_by_key(|run| run.start);
    let (mut their_bytes, mut our_bytes) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    let mut done = 0;
    for run in runs {
        let mut at = run.start.max(done);
        while at < run.end {
            let len = CHUNK.min(run.end - at) as usize;
            read(&theirs, at, &mut their_bytes[..len]);
            read(&ours, at, &mut our_bytes[..len]);
            if their_bytes[..len] != our_bytes[..len] {
                judge_chunk(at, &their_bytes[..len], &our_bytes[..len], allowed, findings);
            }
            at += len as u64;
        }
        done = done.max(run.end);
    }
}

fn judge_chunk(start: u64, theirs: &[u8], ours: &[u8], allowed: &Allowed, findings: &mut Findings<'_>) {
    for (i, (their, our)) in theirs.iter().zip(ours).enumerate().filter(|(_, (their, our))| their != our) {
        let byte = start + i as u64;
        match allowed.find(byte) {
            Some(Some(index)) => findings.found[index] = true,
            Some(None) => {}
            None => {
                findings.unexpected(|| format!("byte {byte:#x}: mke2fs {their:#04x}, extant {our:#04x}"));
            }
        }
    }
}

/// The ranges of a file that are not holes.
fn data_runs(file: &File) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let mut at = 0;
    // The error is ENXIO: no more data.
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).expect("a file's end counts as a hole");
        runs.push(start..at);
    }
    runs
}

/// Reads bytes; past the end of the file they are zeros.
fn read(file: &File, at: u64, bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at + filled as u64).expect("a readable image") {
            0 => break,
            n => filled += n,
        }
    }
    bytes[filled..].fill(0);
}
