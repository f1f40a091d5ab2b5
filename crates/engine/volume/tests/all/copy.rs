//! Copies inside the engine: the bytes of a read and a write, holes that stay holes, the kernel's refusals;
//! concurrent appends.
//!
//! Environment: `EXTANT_OPS=100000` makes more operations, `EXTANT_SEED=7` sets another seed.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_ondisk::inode::flags;
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

fn open(path: &Path, data: DataPath) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    let write = WriteOptions { data, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

/// Runs `test` on a new file system.
fn on_volume(options: &[&str], data: DataPath, test: impl FnOnce(&Volume)) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let args = ["-q", "-F", "-t", "ext4"].iter().chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "64M"]));
    let volume = open(&path, data);
    test(&volume);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

fn create(volume: &Volume, name: &[u8]) -> Ino {
    volume.names().create(volume.root().unwrap().ino(), name, &New::file(0o644)).unwrap().ino()
}

fn read_all(volume: &Volume, ino: Ino) -> Vec<u8> {
    let inode = volume.inode(ino).unwrap();
    let mut bytes = vec![0xEE; inode.size() as usize];
    assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn blocks_of(volume: &Volume, ino: Ino) -> u64 {
    volume.sync().unwrap();
    volume.attributes().stat(&volume.inode(ino).unwrap()).blocks_512
}

fn set_size(volume: &Volume, ino: Ino, size: u64) {
    volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

fn refusal<T: std::fmt::Debug>(done: Result<T, Fault>) -> Refusal {
    match done {
        Err(Fault::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Copies files with data, holes and reserved blocks to each other and within themselves, and compares them
/// with byte vectors.
fn random_copies(options: &[&str], data: DataPath) {
    const FILES: usize = 3;
    const SIZE_MAX: u64 = 2 << 20;
    on_volume(options, data, |volume| {
        let mut random = Random(number("EXTANT_SEED", 1));
        let inos: Vec<Ino> = (0..FILES).map(|n| create(volume, &[b'a' + n as u8])).collect();
        let mut model = vec![Vec::new(); FILES];
        for n in 0..number("EXTANT_OPS", 400) {
            let (file, other) = (random.below(FILES as u64) as usize, random.below(FILES as u64) as usize);
            let mut place = || match random.below(3) {
                0 => random.below(64) << 12,
                1 => random.below(SIZE_MAX),
                _ => (random.below(128) << 14) + random.below(5000),
            };
            let (pos, to, len) = (place(), place(), place() / 2 + 1);
            let end = (pos + len) as usize;
            let what = format!("op {n}: file {file} at {pos}, file {other} at {to}: {len}");
            match random.below(8) {
                0 => {
                    let new = vec![random.below(255) as u8 | 1; len.min(20_000) as usize];
                    assert_eq!(volume.files().write_at(inos[file], pos, &new).unwrap(), new.len(), "{what}");
                    let end = pos as usize + new.len();
                    let bytes = &mut model[file];
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[pos as usize..end].copy_from_slice(&new);
                }
                1 => {
                    set_size(volume, inos[file], pos);
                    model[file].resize(pos as usize, 0);
                }
                2 => match volume.files().fallocate(inos[file], Allocate::Reserve, pos, len) {
                    Ok(()) => {
                        let size = model[file].len().max(end);
                        model[file].resize(size, 0);
                    }
                    Err(fault) => assert!(fault.is(Refusal::NotSupported), "{what}: {fault}"),
                },
                3 if random.below(4) == 0 => volume.sync().unwrap(),
                _ => {
                    let left = (model[file].len() as u64).saturating_sub(pos).min(len);
                    let copied = volume.files().copy_range((inos[file], pos), (inos[other], to), len);
                    if file == other && pos < to + left && to < pos + left {
                        assert_eq!(refusal(copied), Refusal::Invalid, "{what}");
                        continue;
                    }
                    assert_eq!(copied.unwrap(), left, "{what}");
                    if left > 0 {
                        let part = model[file][pos as usize..(pos + left) as usize].to_vec();
                        let (to, end) = (to as usize, (to + left) as usize);
                        let bytes = &mut model[other];
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[to..end].copy_from_slice(&part);
                    }
                }
            }
            let found = read_all(volume, inos[other]);
            assert!(found == model[other], "{what}: {} bytes, expected {}", found.len(), model[other].len());
        }
        for (ino, expected) in inos.iter().zip(&model) {
            assert!(read_all(volume, *ino) == *expected, "at the end");
        }
    });
}

#[test]
fn copies_are_reads_and_writes() {
    random_copies(&["-b", "4096"], DataPath::Iomap);
    random_copies(&["-b", "1024"], DataPath::Iomap);
    random_copies(&["-b", "4096", "-O", "bigalloc", "-C", "65536"], DataPath::Iomap);
    random_copies(&["-b", "1024", "-O", "^extents,^64bit"], DataPath::Ordered);
    random_copies(&["-b", "4096"], DataPath::Journal);
    random_copies(&["-b", "4096", "-O", "inline_data", "-I", "256"], DataPath::Iomap);
}

#[test]
fn holes_take_no_blocks() {
    on_volume(&["-b", "4096"], DataPath::Iomap, |volume| {
        let (from, to) = (create(volume, b"from"), create(volume, b"to"));
        for pos in [0, 40 << 20, 8 << 30] {
            volume.files().write_at(from, pos, b"here").unwrap();
        }
        set_size(volume, from, 16 << 30);
        assert_eq!(volume.files().copy_range((from, 0), (to, 0), u64::MAX).unwrap(), 16 << 30);
        assert_eq!(volume.inode(to).unwrap().size(), 16 << 30);
        assert_eq!(blocks_of(volume, to), blocks_of(volume, from));
        let mut found = [0xEE; 8];
        volume.files().read_at(to, 8 << 30, &mut found).unwrap();
        assert_eq!(found, *b"here\0\0\0\0");
        // A copied hole overwrites data with zeros, and leaves reserved blocks without data as they are.
        let full = create(volume, b"full");
        volume.files().write_at(full, 0, &[7; 8192]).unwrap();
        volume.files().fallocate(full, Allocate::Reserve, 8192, 8192).unwrap();
        assert_eq!(volume.files().copy_range((from, 4096), (full, 4096), 12_288).unwrap(), 12_288);
        assert_eq!(read_all(volume, full), [vec![7; 4096], vec![0; 12_288]].concat());
    });
}

#[test]
fn the_rules_of_copying_are_the_kernels() {
    on_volume(&["-b", "4096"], DataPath::Iomap, |volume| {
        let (from, to) = (create(volume, b"from"), create(volume, b"to"));
        volume.files().write_at(from, 0, &[1; 10_000]).unwrap();
        let root = volume.root().unwrap().ino();
        let copy = |from, to, len| volume.files().copy_range(from, to, len);
        // Short at the end of the source, nothing after it, and nothing for a length of 0.
        assert_eq!(copy((from, 9000), (to, 5), 4000).unwrap(), 1000);
        assert_eq!(copy((from, 10_000), (to, 0), 1).unwrap(), 0);
        assert_eq!(copy((from, 0), (from, 0), 0).unwrap(), 0);
        assert_eq!(volume.inode(to).unwrap().size(), 1005);
        // Within one file: overlapping ranges are refused, as far as the file goes.
        assert_eq!(refusal(copy((from, 0), (from, 5000), 5001)), Refusal::Invalid);
        assert_eq!(refusal(copy((from, 5000), (from, 1), 5001)), Refusal::Invalid);
        assert_eq!(copy((from, 5000), (from, 10_000), 1 << 40).unwrap(), 5000);
        // A write clears set-id bits, and so does a copy, also of a hole.
        for from_at in [0, 1 << 20] {
            set_size(volume, from, 2 << 20);
            volume.attributes().set_attr(to, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
            copy((from, from_at), (to, 0), 4096).unwrap();
            assert_eq!(volume.inode(to).unwrap().fields().mode & 0o7777, 0o755, "from {from_at}");
        }
        // Refused sources and targets.
        assert_eq!(refusal(copy((root, 0), (to, 0), 10)), Refusal::IsDirectory);
        assert_eq!(refusal(copy((from, 0), (root, 0), 10)), Refusal::IsDirectory);
        assert_eq!(refusal(copy((from, 0), (to, u64::MAX - 5), 10)), Refusal::TooLarge);
        for (flag, expected) in [(flags::IMMUTABLE, 1), (flags::APPEND, 1)] {
            let plain = volume.inode(to).unwrap().fields().flags;
            let set = |flags| {
                volume.attributes().set_attr(to, &SetAttr { flags: Some(flags), ..SetAttr::default() })
            };
            set(plain | flag).unwrap();
            assert_eq!(refusal(copy((from, 0), (to, 0), 10)).errno(), expected);
            set(plain).unwrap();
        }
    });
}

/// Concurrent copies in both directions: the locks have one order, whichever file is the source.
#[test]
fn copies_against_each_other_end() {
    on_volume(&["-b", "4096"], DataPath::Iomap, |volume| {
        let (one, two) = (create(volume, b"one"), create(volume, b"two"));
        for ino in [one, two] {
            volume.files().write_at(ino, 0, &vec![5; 3 << 20]).unwrap();
        }
        std::thread::scope(|scope| {
            for (from, to) in [(one, two), (two, one), (one, one)] {
                scope.spawn(move || {
                    for round in 0..20 {
                        let at = (round % 3) << 20;
                        volume.files().copy_range((from, at), (to, 4 << 20), 1 << 20).unwrap();
                    }
                });
            }
        });
        assert!(read_all(volume, two)[4 << 20..].iter().all(|byte| *byte == 5));
    });
}

#[test]
fn appends_of_many_do_not_meet() {
    on_volume(&["-b", "4096"], DataPath::Iomap, |volume| {
        let ino = create(volume, b"log");
        std::thread::scope(|scope| {
            for writer in 1..=4u8 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let (pos, done) = volume.files().append(ino, &[writer; 100]).unwrap();
                        assert_eq!((pos % 100, done), (0, 100));
                    }
                });
            }
        });
        let log = read_all(volume, ino);
        assert_eq!(log.len(), 80_000);
        assert!(log.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
    });
}
