//! The guarantees of fsync and fdatasync, if everything else in the device's cache is lost.

use std::sync::Arc;
use std::time::Duration;

use extant_base::Ino;
use extant_device::{Clock, Device, MemDevice, Model, Modelled};
use extant_ondisk::inode::flags;
use extant_simdisk::{Image, SimDisk};
use extant_volume::{
    Allocate, Batching, DataPath, FlushMode, FlushSettings, New, OpenOptions, Rename, SetAttr, Volume,
    WriteOptions,
};

fn open(disk: Arc<SimDisk>) -> Volume {
    open_with(disk, WriteOptions::default())
}

fn open_with(disk: Arc<SimDisk>, write: WriteOptions) -> Volume {
    let write = WriteOptions { no_committer: true, ..write };
    Volume::open(disk, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn made() -> (Arc<SimDisk>, Volume) {
    made_with(WriteOptions::default())
}

fn made_with(write: WriteOptions) -> (Arc<SimDisk>, Volume) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", name, "8M"]);
    let disk = Arc::new(SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap())));
    (disk.clone(), open_with(disk, write))
}

/// The file's bytes after a power failure now that loses everything that was not flushed.
fn after_a_cut(disk: &SimDisk, name: &[u8]) -> Vec<u8> {
    let volume = open(Arc::new(disk.cut_all_lost()));
    let root = volume.root().unwrap();
    let inode =
        volume.names().lookup(&root, name).unwrap_or_else(|fault| panic!("the file is there: {fault}"));
    let mut bytes = vec![0xEE; inode.size() as usize];
    assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn fdatasync_brings_a_size_that_was_set() {
    for size in [0, 1000, 3000, 9000] {
        let (disk, volume) = made();
        let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        assert_eq!(volume.files().write_at(ino, 0, &[7; 4000]).unwrap(), 4000);
        volume.files().fsync(ino).unwrap();
        volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        volume.files().fdatasync(ino).unwrap();
        let mut expected = vec![7; 4000];
        expected.resize(size as usize, 0);
        assert!(after_a_cut(&disk, b"file") == expected, "{size}");
    }
}

/// For every flush mode, with a journal and without.
#[test]
fn bytes_that_replace_others_are_durable_in_every_mode() {
    for mode in FlushMode::ALL {
        for no_journal in [false, true] {
            let flush = FlushSettings { mode, ..FlushSettings::default() };
            let (disk, volume) = made_with(WriteOptions { flush, no_journal, ..WriteOptions::default() });
            let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
            volume.files().write_at(ino, 0, &[1; 4000]).unwrap();
            volume.sync().unwrap();
            for byte in 2..5u8 {
                volume.files().write_at(ino, 0, &[byte; 4000]).unwrap();
                volume.files().fdatasync(ino).unwrap();
                assert!(after_a_cut(&disk, b"file") == [byte; 4000], "{mode:?}, {no_journal}, {byte}");
            }
        }
    }
}

#[test]
fn fdatasync_brings_what_was_done_before_there_was_anything_in_memory() {
    let (disk, volume) = made();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    // The punch finds nothing to remove, in a file that is in no commit yet.
    volume.files().fallocate(ino, Allocate::Punch, 0, 5000).unwrap();
    volume.files().fdatasync(ino).unwrap();
    assert!(after_a_cut(&disk, b"file").is_empty());
}

#[test]
fn a_size_stays_when_the_bytes_go_that_gave_it() {
    let (disk, volume) = made();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    assert_eq!(volume.files().write_at(ino, 0, &[7; 5000]).unwrap(), 5000);
    volume.files().fallocate(ino, Allocate::Punch, 2048, 9000).unwrap();
    volume.files().fsync(ino).unwrap();
    let mut expected = vec![7; 2048];
    expected.resize(5000, 0);
    assert!(after_a_cut(&disk, b"file") == expected);
}

/// Programs replace a file without a sync: with auto_da_alloc a crash leaves the old bytes or the new ones,
/// without it possibly none.
#[test]
fn what_takes_the_place_of_other_bytes_is_there_when_its_name_is() {
    for no_auto_da_alloc in [false, true] {
        let expected = |len| if no_auto_da_alloc { vec![] } else { vec![2; len] };
        for path in [DataPath::Iomap, DataPath::Ordered] {
            let write = WriteOptions { no_auto_da_alloc, data: path, ..WriteOptions::default() };
            let (disk, volume) = made_with(write);
            let old = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
            volume.files().write_at(old, 0, &[1; 4000]).unwrap();
            volume.files().fsync(old).unwrap();
            let new = volume.names().create(Ino::ROOT, b"new", &New::file(0o644)).unwrap().ino();
            volume.files().write_at(new, 0, &[2; 5000]).unwrap();
            volume.names().rename((Ino::ROOT, b"new"), (Ino::ROOT, b"file"), Rename::Replace).unwrap();
            volume.files().fsync(Ino::ROOT).unwrap();
            let there = after_a_cut(&disk, b"file");
            assert!(
                there == expected(5000),
                "{path:?}, {no_auto_da_alloc}: {} bytes, {:?}",
                there.len(),
                there.first()
            );

            volume.opened(new).unwrap();
            volume.attributes().set_attr(new, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
            volume.files().write_at(new, 0, &[2; 3000]).unwrap();
            volume.released(new).unwrap();
            // Commits the rename.
            volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap();
            volume.files().fsync(Ino::ROOT).unwrap();
            let there = after_a_cut(&disk, b"file");
            assert!(
                there == expected(3000),
                "{path:?}, {no_auto_da_alloc}: {} bytes, {:?}",
                there.len(),
                there.first()
            );
        }
    }
}

#[test]
fn a_range_is_durable_and_the_rest_as_it_comes() {
    let (disk, volume) = made();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 9000]).unwrap();
    volume.files().fsync(ino).unwrap();
    volume.files().write_at(ino, 0, &[2; 1024]).unwrap();
    volume.files().write_at(ino, 4096, &[3; 1024]).unwrap();
    volume.files().fsync_range(ino, 4096..5120, None, true).unwrap();
    let there = after_a_cut(&disk, b"file");
    assert!(there[..1024] == [1; 1024] && there[4096..5120] == [3; 1024] && there.len() == 9000);
}

/// The size on disk stays below a block that is not written back. So the block with the old end is written
/// back together with the range.
#[test]
fn a_range_behind_the_end_is_durable_with_what_lies_before_it() {
    for by_flag in [false, true] {
        let (disk, volume) = made();
        let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        volume.files().write_at(ino, 0, &[1; 100]).unwrap();
        volume.files().fsync(ino).unwrap();
        if by_flag {
            let asked = flags::EXTENTS | flags::SYNC;
            volume.attributes().set_attr(ino, &SetAttr { flags: Some(asked), ..SetAttr::default() }).unwrap();
        }
        volume.files().write_at(ino, 8192, &[2; 4096]).unwrap();
        if !by_flag {
            volume.files().fsync_range(ino, 8192..12288, None, true).unwrap();
        }
        let there = after_a_cut(&disk, b"file");
        assert_eq!(there.len(), 12288, "by a flag: {by_flag}");
        assert!(there[..100] == [1; 100] && there[100..8192] == [0; 8092] && there[8192..] == [2; 4096]);
    }
}

/// With `chattr +D` or `+S` on a directory, changes of its names are durable when the call returns.
#[test]
fn names_of_a_directory_that_asks_for_it_are_durable_at_once() {
    let is_there = |disk: &SimDisk, name: &[u8]| {
        let volume = open(Arc::new(disk.cut_all_lost()));
        let dir = volume.names().lookup(&volume.root().unwrap(), b"dir").unwrap();
        volume.names().lookup(&dir, name).is_ok()
    };
    for asked in [0, flags::DIRSYNC, flags::SYNC] {
        let (disk, volume) = made();
        let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
        volume
            .attributes()
            .set_attr(dir, &SetAttr { flags: Some(flags::EXTENTS | asked), ..SetAttr::default() })
            .unwrap();
        volume.sync().unwrap();
        let lasts = asked != 0;
        let file = volume.names().create(dir, b"file", &New::file(0o644)).unwrap().ino();
        assert_eq!(is_there(&disk, b"file"), lasts, "{asked:x}: created");
        volume.names().create(dir, b"sub", &New::directory(0o755)).unwrap();
        assert_eq!(is_there(&disk, b"sub"), lasts, "{asked:x}: a directory");
        volume.names().link(file, dir, b"link").unwrap();
        assert_eq!(is_there(&disk, b"link"), lasts, "{asked:x}: linked");
        volume.names().rename((dir, b"file"), (Ino::ROOT, b"file"), Rename::Replace).unwrap();
        assert!(!is_there(&disk, b"file"), "{asked:x}: moved out, or never there");
        volume.names().rename((Ino::ROOT, b"file"), (dir, b"back"), Rename::Replace).unwrap();
        assert_eq!(is_there(&disk, b"back"), lasts, "{asked:x}: moved in");
        volume.sync().unwrap();
        volume.names().unlink(dir, b"link").unwrap();
        assert_eq!(!is_there(&disk, b"link"), lasts, "{asked:x}: removed");
        volume.names().rmdir(dir, b"sub").unwrap();
        assert_eq!(!is_there(&disk, b"sub"), lasts, "{asked:x}: a directory removed");
        // Changes elsewhere do not wait for a commit.
        let before = volume.counters().journal_stats().unwrap().commits;
        volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap();
        assert_eq!(volume.counters().journal_stats().unwrap().commits, before);
    }
}

/// Threads that create names with immediate durability share commits: each waits a little for the others.
#[test]
fn an_urgent_commit_request_lets_others_in() {
    let commits = |batching: Batching| {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", path.to_str().unwrap(), "16M"]);
        let memory = MemDevice::new(16 << 20);
        memory.write_at(0, &std::fs::read(&path).unwrap()).unwrap();
        let slow = Modelled::new(memory, Model::flush_of(Duration::from_millis(3)), Clock::Real);
        let write = WriteOptions { batching, ..WriteOptions::default() };
        let volume = Volume::open(Arc::new(slow), &OpenOptions { write, ..OpenOptions::default() }).unwrap();
        let dirs: Vec<Ino> = (0..2u8)
            .map(|n| {
                let dir =
                    volume.names().create(Ino::ROOT, &[b'a' + n], &New::directory(0o755)).unwrap().ino();
                let asked = Some(flags::EXTENTS | flags::DIRSYNC);
                volume.attributes().set_attr(dir, &SetAttr { flags: asked, ..SetAttr::default() }).unwrap();
                dir
            })
            .collect();
        volume.sync().unwrap();
        let before = volume.counters().journal_stats().unwrap();
        std::thread::scope(|scope| {
            for dir in &dirs {
                let volume = &volume;
                scope.spawn(move || {
                    for n in 0..20u8 {
                        volume.names().create(*dir, &[b'a' + n], &New::file(0o644)).unwrap();
                    }
                });
            }
        });
        let after = volume.counters().journal_stats().unwrap();
        volume.close().unwrap();
        (after.commits - before.commits, after.batch_waits)
    };
    // The number of saved commits depends on the machine's load: the study measures it (`lab fsync`).
    assert_eq!(commits(Batching { max: Duration::ZERO, ..Batching::default() }).1, 0);
    let (shared, waits) = commits(Batching::default());
    assert!(waits > 0 && shared <= 40, "{shared} commits with {waits} waits");
}

/// A shell truncates a file, closes one of its descriptors, and writes to another: the last close counts,
/// whichever descriptor it is.
#[test]
fn what_replaces_bytes_is_there_once_it_is_closed() {
    for no_auto_da_alloc in [false, true] {
        let (disk, volume) = made_with(WriteOptions { no_auto_da_alloc, ..WriteOptions::default() });
        assert_eq!(volume.asks_for_closing(), !no_auto_da_alloc);
        let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        volume.files().write_at(ino, 0, &[1; 4000]).unwrap();
        volume.files().fsync(ino).unwrap();
        volume.attributes().set_attr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        volume.closing(ino);
        volume.files().write_at(ino, 0, &[2; 3000]).unwrap();
        volume.closing(ino);
        volume.files().write_at(ino, 3000, &[2; 3000]).unwrap();
        volume.closing(ino);
        let other = volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap().ino();
        volume.files().fsync(other).unwrap();
        let expected = if no_auto_da_alloc { vec![] } else { vec![2; 6000] };
        assert!(after_a_cut(&disk, b"file") == expected, "{no_auto_da_alloc}");
    }
}

/// A nearly full file system delays no allocation: each write gets its blocks at once. The exception is an
/// end that an earlier write left in the middle of a block: it is still dirty. A commit of another file
/// comes, and power fails. No file may have blocks after its end.
#[test]
fn a_nearly_full_file_system_is_sound_after_a_cut() {
    for (block, features, data) in [
        ("4096", "extents", DataPath::Iomap),
        ("1024", "extents", DataPath::Iomap),
        ("4096", "extents", DataPath::Ordered),
        ("1024", "extents", DataPath::Ordered),
        ("4096", "^extents,^64bit", DataPath::Iomap),
        ("1024", "^extents,^64bit", DataPath::Iomap),
    ] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let name = path.to_str().unwrap();
        let options = ["-q", "-F", "-t", "ext4", "-b", block, "-O", features, name, "10M"];
        extant_testkit::run("mke2fs", options);
        let disk = Arc::new(SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap())));
        let write = WriteOptions { data, ..WriteOptions::default() };
        let volume = open_with(disk.clone(), write);
        let create = |name: &[u8]| volume.names().create(Ino::ROOT, name, &New::file(0o644)).unwrap().ino();
        let (f, o, filler, g) = (create(b"f"), create(b"o"), create(b"filler"), create(b"g"));
        volume.files().write_at(f, 0, &[1; 304_096]).unwrap();
        volume.files().fsync(f).unwrap();
        let free = || {
            let stat = volume.statfs().unwrap();
            stat.blocks_available * u64::from(stat.block_size)
        };
        while free() > 1_000_000 {
            volume.files().append(filler, &vec![2; (free() - 1_000_000).min(1 << 16) as usize]).unwrap();
        }
        volume.sync().unwrap();
        volume.files().write_at(o, 0, &[3; 400_000]).unwrap();
        for _ in 0..9 {
            volume.files().append(f, &[4; 100_000]).unwrap();
        }
        volume.files().write_at(g, 0, &[5; 100]).unwrap();
        volume.files().fsync(g).unwrap();

        let after = Arc::new(disk.cut_all_lost());
        open_with(after.clone(), write).close().unwrap();
        let mut bytes = vec![0; after.size_bytes() as usize];
        after.read_at(0, &mut bytes).unwrap();
        std::fs::write(&path, bytes).unwrap();
        println!("{block}, {features}, {data:?}");
        extant_testkit::e2fsck_clean(&path);
    }
}
