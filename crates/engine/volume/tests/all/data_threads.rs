//! Threads read, write, truncate, punch, sync and remove the same files. Each word of a file contains its
//! file and offset, so that every read can be judged. Then e2fsck runs, and no reservation may be left.
//!
//! Environment: `EXTANT_SECONDS=600` runs longer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{Allocate, DataPath, Fault, New, OpenOptions, Refusal, SetAttr, Volume, WriteOptions};

const FILES: u64 = 5;
const THREADS: u64 = 8;
const SIZE_MAX: u64 = 2 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

fn name(file: u64) -> Vec<u8> {
    format!("file-{file}").into_bytes()
}

/// The words of a file from byte `pos` on.
fn words(file: u64, pos: u64, len: u64) -> Vec<u8> {
    (pos / 8..(pos + len) / 8).flat_map(|word| ((file + 1) << 48 | (word + 1)).to_le_bytes()).collect()
}

/// Checks that each word is zero, or the one that belongs at its offset.
fn judge(file: u64, pos: u64, found: &[u8]) {
    let expected = words(file, pos, found.len() as u64);
    for (at, (found, expected)) in found.chunks_exact(8).zip(expected.chunks_exact(8)).enumerate() {
        assert!(
            found == expected || found == [0; 8],
            "file {file} at {}: {found:x?}, not {expected:x?}",
            pos + 8 * at as u64
        );
    }
}

fn open(path: &Path, data: DataPath) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    let write = WriteOptions { data, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write, cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap()
}

fn may_be_gone<R>(done: Result<R, Fault>) -> Option<R> {
    match done {
        Ok(done) => Some(done),
        Err(fault)
            if [
                Refusal::NotFound,
                Refusal::Stale,
                Refusal::Exists,
                Refusal::NotSupported,
                Refusal::Invalid,
            ]
            .iter()
            .any(|refusal| fault.is(*refusal)) =>
        {
            None
        }
        Err(fault) => panic!("{fault}"),
    }
}

fn work(volume: &Volume, root: Ino, thread: u64, until: Instant, count: &AtomicU64) {
    let mut random = Random(thread * 77 + 1);
    let mut buf = vec![0; 256 << 10];
    while Instant::now() < until {
        count.fetch_add(1, Ordering::Relaxed);
        let file = random.below(FILES);
        let find = || {
            let found = volume.inode(root).and_then(|root| volume.names().lookup(&root, &name(file)));
            may_be_gone(found).map(|inode| inode.ino())
        };
        let Some(ino) = find() else {
            may_be_gone(volume.names().create(root, &name(file), &New::file(0o644)));
            continue;
        };
        // After removal another file may get its number: the inode is kept open if it is still this file's.
        if may_be_gone(volume.opened(ino)).is_none() {
            continue;
        }
        if find() != Some(ino) {
            may_be_gone(volume.released(ino));
            continue;
        }
        let pos = random.below(SIZE_MAX) & !7;
        let len_max = if random.below(4) == 0 { 256 << 10 } else { 8 << 10 };
        let len = 8 + (random.below(len_max) & !7);
        let fallocate = |mode| may_be_gone(volume.files().fallocate(ino, mode, pos, len));
        match random.below(20) {
            0..=6 => drop(may_be_gone(volume.files().write_at(ino, pos, &words(file, pos, len)))),
            7..=12 => {
                let buf = &mut buf[..len.min(256 << 10) as usize];
                if let Some(got) = may_be_gone(volume.files().read_at(ino, pos, buf)) {
                    judge(file, pos, &buf[..got]);
                }
            }
            13 => {
                let set = SetAttr { size: Some(pos), ..SetAttr::default() };
                may_be_gone(volume.attributes().set_attr(ino, &set));
            }
            14 => drop(may_be_gone(volume.files().fsync(ino))),
            15 => drop(may_be_gone(volume.files().fdatasync(ino))),
            16 => drop(fallocate(Allocate::Punch)),
            17 => drop(fallocate(Allocate::ZeroKeep)),
            18 => drop(fallocate(if random.below(2) == 0 { Allocate::Reserve } else { Allocate::Keep })),
            _ if random.below(8) == 0 => drop(may_be_gone(volume.names().unlink(root, &name(file)))),
            _ if random.below(20) == 0 => volume.sync().unwrap(),
            _ => {
                let _ = may_be_gone(volume.inode(ino).map(|inode| volume.attributes().stat(&inode)));
            }
        }
        volume.released(ino).unwrap();
    }
}

fn together(options: &[&str], data: DataPath, seconds: f64) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let args = ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0"].iter().chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "48M"]));
    let volume = open(&path, data);
    let free = volume.statfs().unwrap().blocks_free;
    let root = volume.root().unwrap().ino();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, count) = (&volume, &count);
            scope.spawn(move || work(volume, root, thread, until, count));
        }
    });
    volume.sync().unwrap();
    let files = (0..FILES).filter_map(|file| {
        let inode = volume.names().lookup(&volume.root().unwrap(), &name(file)).ok()?;
        volume.files().check_file(inode.ino()).unwrap_or_else(|why| panic!("file {file}: {why}"));
        let mut bytes = vec![0; inode.size() as usize];
        assert_eq!(volume.files().read_at(inode.ino(), 0, &mut bytes).unwrap(), bytes.len());
        judge(file, 0, &bytes);
        Some((file, bytes))
    });
    let files: Vec<_> = files.collect();
    println!("{} operations, {} files at the end", count.load(Ordering::Relaxed), files.len());
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    let volume = open(&path, data);
    for (file, expected) in &files {
        let inode = volume.names().lookup(&volume.root().unwrap(), &name(*file)).unwrap();
        let mut found = vec![0xEE; inode.size() as usize];
        assert_eq!(volume.files().read_at(inode.ino(), 0, &mut found).unwrap(), expected.len());
        assert!(found == *expected, "file {file} is the same after opening again");
        volume.names().unlink(root, &name(*file)).unwrap();
    }
    volume.sync().unwrap();
    let now = volume.statfs().unwrap();
    // The root directory may have got a block.
    assert!(
        now.blocks_free + 2 >= free && now.blocks_free <= free,
        "{} blocks free of {free}",
        now.blocks_free
    );
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn threads_share_files() {
    let seconds = std::env::var("EXTANT_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6.0);
    let kinds: [(&[&str], DataPath); 6] = [
        (&["-b", "4096"], DataPath::Iomap),
        (&["-b", "1024"], DataPath::Iomap),
        (&["-b", "4096"], DataPath::Ordered),
        (&["-b", "1024", "-O", "^extents,^64bit"], DataPath::Iomap),
        (&["-b", "1024", "-O", "bigalloc", "-C", "16384"], DataPath::Iomap),
        (&["-b", "4096", "-O", "^has_journal"], DataPath::Writeback),
    ];
    for (options, data) in kinds {
        println!("{options:?} {data:?}");
        together(options, data, seconds / kinds.len() as f64);
    }
}
