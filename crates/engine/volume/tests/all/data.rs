//! File data: random writes, truncates, reservations and holes are compared with a byte vector, also after
//! closing and reopening. e2fsck judges the image, and the kernel if the test runs as root.
//!
//! Environment: `EXTANT_OPS=100000` makes more operations, `EXTANT_SEED=7` sets another seed.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{Allocate, DataPath, Fault, New, OpenOptions, Refusal, SetAttr, Volume, WriteOptions};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// The settings of a run.
#[derive(Clone, Copy)]
struct How {
    threads: bool,
    data: DataPath,
}

const STEPS: How = How { threads: false, data: DataPath::Iomap };
const THREADS: How = How { threads: true, data: DataPath::Iomap };

const FILES: usize = 3;
const SIZE_MAX: u64 = 3 << 20;

fn open(path: &Path, how: How) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    let write = WriteOptions { no_committer: !how.threads, data: how.data, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write, cache_bytes: 16 << 20, ..OpenOptions::default() }).unwrap()
}

/// An offset that is likely to be a boundary of something.
fn place(random: &mut Random, size: u64) -> u64 {
    let near = match random.below(6) {
        0 => size,
        1 => random.below(64) << 12,
        2 => random.below(16) << 16,
        3 => 12 << random.below(8),
        4 => random.below(40) << 10,
        _ => return random.below(SIZE_MAX),
    };
    (near + random.below(5)).saturating_sub(2).min(SIZE_MAX - 1)
}

fn bytes_of(random: &mut Random, len: u64) -> Vec<u8> {
    let seed = random.below(1 << 30) as u8 | 1;
    (0..len).map(|at| seed.wrapping_add(at as u8) | 1).collect()
}

fn read_all(volume: &Volume, ino: Ino) -> Vec<u8> {
    let inode = volume.inode(ino).unwrap();
    let mut bytes = vec![0xEE; inode.size() as usize];
    assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn compare(volume: &Volume, inos: &[Ino], model: &[Vec<u8>], what: &str) {
    for (file, (ino, expected)) in inos.iter().zip(model).enumerate() {
        let found = read_all(volume, *ino);
        assert_eq!(found.len(), expected.len(), "{what}: size of file {file}");
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert!(differs.is_none(), "{what}: file {file} differs at {differs:?} of {}", expected.len());
    }
}

fn random_bytes(options: &[&str], how: How) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let args = ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0"].iter().chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "64M"]));
    let mut random = Random(number("EXTANT_SEED", 1));
    let mut volume = open(&path, how);
    let root = volume.root().unwrap().ino();
    let inos: Vec<Ino> = (0..FILES)
        .map(|n| volume.names().create(root, &[b'a' + n as u8], &New::file(0o644)).unwrap().ino())
        .collect();
    let mut model = vec![Vec::new(); FILES];
    for n in 0..number("EXTANT_OPS", 600) {
        let file = random.below(FILES as u64) as usize;
        let (ino, bytes) = (inos[file], &mut model[file]);
        let size = bytes.len() as u64;
        let pos = place(&mut random, size);
        let len = 1 + match random.below(3) {
            0 => random.below(9000),
            1 => random.below(300_000),
            _ => place(&mut random, size).saturating_sub(pos),
        };
        let kind = random.below(16);
        // Direct I/O uses whole blocks, for every block size.
        let (pos, len) = if kind == 5 { (pos & !0xFFFF, len.next_multiple_of(1 << 14)) } else { (pos, len) };
        let len = len.min(SIZE_MAX - pos).max(1);
        let end = (pos + len) as usize;
        let what = format!("op {n}: kind {kind} file {file} of {size}: {pos}+{len}");
        if std::env::var_os("EXTANT_TELL").is_some() {
            println!("{what}");
        }
        let fallocate = |mode| match volume.files().fallocate(ino, mode, pos, len) {
            Ok(()) => true,
            Err(fault) if fault.is(Refusal::NotSupported) => false,
            Err(fault) => panic!("{what}: {mode:?}: {fault}"),
        };
        match kind {
            0..=5 => {
                let new = bytes_of(&mut random, len);
                let written = match kind {
                    5 => volume.files().write_direct(ino, pos, &new),
                    _ => volume.files().write_at(ino, pos, &new),
                };
                assert_eq!(written.unwrap(), new.len(), "{what}");
                bytes.resize(bytes.len().max(end), 0);
                bytes[pos as usize..end].copy_from_slice(&new);
            }
            6 => {
                let set = SetAttr { size: Some(pos), ..SetAttr::default() };
                volume.attributes().set_attr(ino, &set).unwrap();
                bytes.resize(pos as usize, 0);
            }
            7 => volume.files().fsync(ino).unwrap(),
            8 => volume.files().fdatasync(ino).unwrap(),
            9 => {
                if fallocate(Allocate::Punch) && (pos as usize) < bytes.len() {
                    let end = end.min(bytes.len());
                    bytes[pos as usize..end].fill(0);
                }
            }
            10 => {
                if fallocate(Allocate::Reserve) {
                    bytes.resize(bytes.len().max(end), 0);
                }
            }
            11 => {
                fallocate(Allocate::Keep);
            }
            12 => {
                let mode = if random.below(2) == 0 { Allocate::Zero } else { Allocate::WriteZeroes };
                if fallocate(mode) {
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[pos as usize..end].fill(0);
                }
            }
            13 => {
                if fallocate(Allocate::ZeroKeep) && (pos as usize) < bytes.len() {
                    let end = end.min(bytes.len());
                    bytes[pos as usize..end].fill(0);
                }
            }
            14 if random.below(2) == 0 => {
                let (pos, len) = (pos & !0xFFFF, (len / 4 + 1).next_multiple_of(1 << 16));
                let end = (pos + len) as usize;
                let fits = |mode, may: bool| match volume.files().fallocate(ino, mode, pos, len) {
                    Ok(()) => true,
                    Err(fault) if fault.is(Refusal::NotSupported) => false,
                    Err(fault) => {
                        assert!(!may && fault.is(Refusal::Invalid), "{what}: {mode:?}: {fault}");
                        false
                    }
                };
                if random.below(2) == 0 {
                    if fits(Allocate::Collapse, end < bytes.len()) {
                        bytes.drain(pos as usize..end);
                    }
                } else if size + len < SIZE_MAX && fits(Allocate::Insert, pos < size) {
                    let behind = bytes.split_off(pos as usize);
                    bytes.resize(end, 0);
                    bytes.extend(behind);
                }
            }
            14 => {
                let mut found = vec![0xEE; len as usize];
                let read = match random.below(2) {
                    0 => volume.files().read(&volume.inode(ino).unwrap(), pos, &mut found).unwrap(),
                    _ => volume.files().read_direct(ino, pos, &mut found).unwrap(),
                };
                let expected = bytes.get(pos as usize..end.min(bytes.len())).unwrap_or_default();
                assert!(found[..read] == *expected, "{what}: read");
            }
            _ if random.below(12) == 0 => {
                volume.close().unwrap();
                extant_testkit::e2fsck_clean(&path);
                volume = open(&path, how);
            }
            _ => compare(&volume, &inos, &model, &what),
        }
        if !how.threads {
            volume.files().check_file(ino).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }
    compare(&volume, &inos, &model, "at the end");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    if extant_testkit::kernel_mounts_kind_of(&path) {
        let mount = extant_testkit::LoopMount::read_only(&path).unwrap();
        for (file, expected) in model.iter().enumerate() {
            let found = std::fs::read(mount.path().join(((b'a' + file as u8) as char).to_string())).unwrap();
            assert!(found == *expected, "the kernel reads file {file} as it is");
        }
    }
    // Every reservation was used or released.
    let volume = open(&path, how);
    for (n, ino) in inos.iter().enumerate() {
        assert!(volume.files().write_at(*ino, SIZE_MAX, &[1; 100_000]).unwrap() == 100_000);
        volume.names().unlink(root, &[b'a' + n as u8]).unwrap();
    }
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn blocks_of_4k() {
    random_bytes(&["-b", "4096"], STEPS);
    random_bytes(&["-b", "4096"], THREADS);
}

#[test]
fn blocks_of_1k() {
    random_bytes(&["-b", "1024"], STEPS);
}

#[test]
fn block_by_block() {
    random_bytes(&["-b", "4096"], How { data: DataPath::Ordered, ..STEPS });
    random_bytes(&["-b", "1024"], How { data: DataPath::Ordered, ..THREADS });
    random_bytes(&["-b", "4096"], How { data: DataPath::Writeback, ..THREADS });
    random_bytes(&["-b", "4096", "-O", "bigalloc", "-C", "65536"], How { data: DataPath::Ordered, ..STEPS });
}

#[test]
fn through_the_journal() {
    let journal = How { data: DataPath::Journal, ..STEPS };
    random_bytes(&["-b", "4096"], journal);
    random_bytes(&["-b", "1024"], How { threads: true, ..journal });
    random_bytes(&["-b", "4096", "-O", "^extents,^64bit"], journal);
    random_bytes(&["-b", "4096", "-O", "bigalloc", "-C", "65536"], journal);
}

/// Files with data journaling support reserving, punching and moving of blocks like other files: with the
/// mount option and with the file's own flag.
#[test]
fn journaled_files_take_each_mode() {
    for by_flag in [false, true] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        extant_testkit::run(
            "mke2fs",
            ["-q", "-F", "-t", "ext4", "-b", "4096", path.to_str().unwrap(), "16M"],
        );
        let volume = open(&path, STEPS);
        let ino =
            volume.names().create(volume.root().unwrap().ino(), b"file", &New::file(0o644)).unwrap().ino();
        volume.close().unwrap();
        if by_flag {
            extant_testkit::run(
                "debugfs",
                ["-w", "-R", "set_inode_field /file flags 0x84000", path.to_str().unwrap()],
            );
        }
        let volume =
            open(&path, How { data: if by_flag { DataPath::Iomap } else { DataPath::Journal }, ..STEPS });
        volume.files().write_at(ino, 0, &[7; 65536]).unwrap();
        let mut model = vec![7; 65536];
        let modes = [
            (Allocate::Reserve, 100, 70_000),
            (Allocate::Keep, 80_000, 40_000),
            (Allocate::Punch, 5000, 9000),
            (Allocate::ZeroKeep, 20_000, 10_000),
            (Allocate::Zero, 60_000, 20_000),
            (Allocate::WriteZeroes, 33_000, 90_000),
            (Allocate::Collapse, 8192, 4096),
            (Allocate::Insert, 4096, 8192),
        ];
        for (mode, pos, len) in modes {
            volume.files().fallocate(ino, mode, pos, len).unwrap_or_else(|fault| panic!("{mode:?}: {fault}"));
            let (pos, end) = (pos as usize, (pos + len) as usize);
            match mode {
                Allocate::Collapse => drop(model.drain(pos..end)),
                Allocate::Insert => drop(model.splice(pos..pos, vec![0; end - pos])),
                Allocate::Keep | Allocate::Unshare => {}
                mode => {
                    model.resize(model.len().max(end), 0);
                    if mode != Allocate::Reserve {
                        model[pos..end].fill(0);
                    }
                }
            }
            compare(&volume, &[ino], std::slice::from_ref(&model), &format!("{mode:?}, by flag: {by_flag}"));
        }
        let unaligned = volume.files().fallocate(ino, Allocate::Collapse, 100, 4096);
        assert!(matches!(unaligned, Err(Fault::Refused(Refusal::Invalid))), "{unaligned:?}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

#[test]
fn clusters() {
    random_bytes(&["-b", "4096", "-O", "bigalloc", "-C", "65536"], STEPS);
    random_bytes(&["-b", "1024", "-O", "bigalloc", "-C", "4096"], THREADS);
}

/// A block that is truncated and written again before a commit stays allocated with its cluster: it must
/// still be logged.
#[test]
fn clusters_through_the_journal() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let clusters = ["-b", "4096", "-O", "bigalloc", "-C", "65536"];
    let args = ["-q", "-F", "-t", "ext4"].into_iter().chain(clusters);
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "64M"]));
    let how = How { data: DataPath::Journal, ..STEPS };
    let volume = open(&path, how);
    let ino = volume.names().create(volume.root().unwrap().ino(), b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 5 * 4096]).unwrap();
    volume.attributes().set_attr(ino, &SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    volume.files().write_at(ino, 8192, &[2; 4096]).unwrap();
    volume.close().unwrap();
    let volume = open(&path, how);
    let expected = [[1; 4096], [0; 4096], [2; 4096]].concat();
    compare(&volume, &[ino], &[expected], "after closing");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn maps_of_indirect_blocks() {
    random_bytes(&["-b", "1024", "-O", "^extents,^64bit"], STEPS);
    random_bytes(&["-b", "4096", "-O", "^extents,^64bit"], THREADS);
}

#[test]
fn files_inside_inodes() {
    random_bytes(&["-b", "4096", "-O", "inline_data"], STEPS);
}

#[test]
fn without_a_journal() {
    random_bytes(&["-b", "4096", "-O", "^has_journal"], THREADS);
}

/// A write without enough room reports it, writes what fits, and leaves no reservation.
#[test]
fn no_space() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096", path.to_str().unwrap(), "16M"]);
    let volume = open(&path, STEPS);
    let root = volume.root().unwrap().ino();
    let ino = volume.names().create(root, b"file", &New::file(0o644)).unwrap().ino();
    let bytes = vec![7; 40 << 20];
    let written = volume.files().write_at(ino, 100, &bytes).unwrap();
    assert!((4 << 20..16 << 20).contains(&written), "{written} bytes of a 16 MiB image");
    let refused = volume.files().write_at(ino, 20 << 20, &[1; 5000]);
    assert!(matches!(refused, Err(Fault::Refused(Refusal::NoSpace))), "{refused:?}");
    volume.files().fsync(ino).unwrap();
    assert_eq!(volume.inode(ino).unwrap().size(), 100 + written as u64);
    volume.attributes().set_attr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    let again = volume.files().write_at(ino, 100, &bytes).unwrap();
    assert!(again + (64 << 10) >= written, "{again} bytes where there was room for {written}");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// Small files are stored in their inodes if the file system supports it, and grow out of them.
#[test]
fn new_small_files_take_no_block() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let args = ["-q", "-F", "-t", "ext4", "-O", "inline_data", path.to_str().unwrap(), "16M"];
    extant_testkit::run("mke2fs", args);
    let volume = open(&path, STEPS);
    let root = volume.root().unwrap().ino();
    let free = |volume: &Volume| volume.statfs().unwrap().blocks_free;
    let before = free(&volume);
    let ino = volume.names().create(root, b"file", &New::file(0o644)).unwrap().ino();
    for (pos, len) in [(0, 10), (50, 30), (70, 50)] {
        assert_eq!(volume.files().write_at(ino, pos, &vec![1; len]).unwrap(), len);
        assert!(volume.inode(ino).unwrap().is_inline(), "{len} bytes at {pos}");
    }
    volume.sync().unwrap();
    assert_eq!(free(&volume), before);
    let expected = [vec![1; 10], vec![0; 40], vec![1; 70]].concat();
    assert_eq!(read_all(&volume, ino), expected);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    let volume = open(&path, STEPS);
    assert_eq!(read_all(&volume, ino), expected);
    assert_eq!(volume.files().write_at(ino, 120, &[2; 200]).unwrap(), 200);
    assert_eq!(read_all(&volume, ino), [expected, vec![2; 200]].concat());
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    let volume = open(&path, STEPS);
    assert!(!volume.inode(ino).unwrap().is_inline() && free(&volume) == before - 1);
}

/// Blocks count as used from their reservation on, as in statfs(2) on the kernel's ext4: write-back changes
/// nothing.
#[test]
fn what_is_promised_is_not_free() {
    for args in [&["-b", "4096"][..], &["-b", "1024", "-O", "bigalloc", "-C", "8192"]] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        extant_testkit::run(
            "mke2fs",
            [&["-q", "-F", "-t", "ext4"], args, &[path.to_str().unwrap(), "16M"]].concat(),
        );
        let volume = open(&path, STEPS);
        let root = volume.root().unwrap().ino();
        let ino = volume.names().create(root, b"file", &New::file(0o644)).unwrap().ino();
        volume.sync().unwrap();
        let free = || {
            let space = volume.statfs().unwrap();
            (space.blocks_free * u64::from(space.block_size), space.blocks_free - space.blocks_available)
        };
        let before = free();
        assert_eq!(volume.files().write_at(ino, 0, &vec![1; 1 << 20]).unwrap(), 1 << 20);
        let written = (before.0 - (1 << 20), before.1);
        assert_eq!(free(), written, "promised, {args:?}");
        volume.sync().unwrap();
        assert_eq!(free(), written, "written back, {args:?}");
        assert_eq!(volume.files().write_at(ino, 1 << 20, &vec![1; 1 << 20]).unwrap(), 1 << 20);
        volume.attributes().set_attr(ino, &SetAttr { size: Some(1 << 20), ..SetAttr::default() }).unwrap();
        assert_eq!(free(), written, "given up, {args:?}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// Data of a direct write is on the device when the call returns, and a direct read finds data that was in
/// the cache.
#[test]
fn direct_writes_need_no_writing_back() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096", path.to_str().unwrap(), "16M"]);
    let volume = open(&path, STEPS);
    let root = volume.root().unwrap().ino();
    let ino = volume.names().create(root, b"file", &New::file(0o644)).unwrap().ino();
    let mut expected = vec![1; 256 << 10];
    assert_eq!(volume.files().write_at(ino, 0, &expected).unwrap(), expected.len());
    let mut found = vec![0; 256 << 10];
    assert_eq!(volume.files().read_direct(ino, 0, &mut found).unwrap(), expected.len());
    assert_eq!(found, expected);
    volume.sync().unwrap();
    assert_eq!(volume.files().write_direct(ino, 64 << 10, &[7; 64 << 10]).unwrap(), 64 << 10);
    expected[64 << 10..128 << 10].fill(7);
    // As after a power failure, except for the device's own cache.
    drop(volume);
    let volume = open(&path, STEPS);
    assert_eq!(read_all(&volume, ino), expected);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
