//! Writing fast commits: what gets one, what gets a full commit, and what recovery finds.
//!
//! The crash lab (`cargo xtask crash --fast`) cuts the power in runs with fast commits, with the kernel as a
//! judge.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::Device;
use extant_simdisk::{Image, SimDisk};
use extant_volume::{Allocate, New, OpenOptions, Rename, SetAttr, SetXattr, Volume, WriteOptions};

fn image(features: &str) -> Arc<SimDisk> {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, name, "16M"]);
    Arc::new(SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap())))
}

fn open(disk: &Arc<SimDisk>, no_fast_commits: bool) -> Volume {
    let write = WriteOptions { no_committer: true, no_fast_commits, ..WriteOptions::default() };
    let options = OpenOptions { write, ..OpenOptions::default() };
    let device: Arc<dyn Device> = Arc::<SimDisk>::clone(disk);
    Volume::open(device, &options).unwrap()
}

/// Fast commits and full commits that `operation` and an fsync of the inode that it returns make, on a volume
/// with a file `old` in the last full commit.
fn commits(operation: impl FnOnce(&Volume, Ino) -> Ino) -> (u64, u64) {
    let disk = image("fast_commit");
    let volume = open(&disk, false);
    let old = volume.names().create(Ino::ROOT, b"old", &New::file(0o600)).unwrap().ino();
    volume.files().write_at(old, 0, &[7; 20_000]).unwrap();
    volume.files().fsync(old).unwrap();
    let before = volume.counters().journal_stats().unwrap();
    assert_eq!(before.fast_commits, 0, "the mount itself needs a full commit");
    let ino = operation(&volume, old);
    volume.files().fsync(ino).unwrap();
    let after = volume.counters().journal_stats().unwrap();
    let cut = Arc::new(disk.cut_all_lost());
    drop(volume);
    // The tree after a power cut is the one that was synced, and it is sound.
    let again = open(&cut, false);
    assert_eq!(again.recovery().problems, Vec::<String>::new());
    again.close().unwrap();
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    write_image(&cut, &path);
    extant_testkit::run("e2fsck", ["-fn", path.to_str().unwrap()]);
    (after.fast_commits, after.commits - before.commits)
}

fn write_image(disk: &SimDisk, path: &Path) {
    let image = disk.image();
    let mut bytes = vec![0; image.size_bytes() as usize];
    image.read(0, &mut bytes);
    std::fs::write(path, bytes).unwrap();
}

const FAST: (u64, u64) = (1, 0);
const FULL: (u64, u64) = (0, 1);

#[test]
fn what_has_records_gets_a_fast_commit() {
    let file = New::file(0o644);
    let create = |volume: &Volume, name: &[u8]| volume.names().create(Ino::ROOT, name, &file).unwrap().ino();
    assert_eq!(commits(|volume, _| create(volume, b"new")), FAST, "create");
    let with_data = |volume: &Volume, _| {
        let ino = create(volume, b"new");
        volume.files().write_at(ino, 5000, &[1; 40_000]).unwrap();
        ino
    };
    assert_eq!(commits(with_data), FAST, "create and write");
    let append = |volume: &Volume, old| {
        volume.files().write_at(old, 20_000, &[1; 3000]).unwrap();
        old
    };
    assert_eq!(commits(append), FAST, "append");
    let reserve = |volume: &Volume, old| {
        volume.files().fallocate(old, Allocate::Reserve, 0, 100_000).unwrap();
        old
    };
    assert_eq!(commits(reserve), FAST, "fallocate");
    let grow = |volume: &Volume, old| {
        volume.attributes().set_attr(old, &SetAttr { size: Some(1 << 20), ..SetAttr::default() }).unwrap();
        old
    };
    assert_eq!(commits(grow), FAST, "a larger size");
    let chmod = |volume: &Volume, old| {
        volume.attributes().set_attr(old, &SetAttr { mode: Some(0o444), ..SetAttr::default() }).unwrap();
        old
    };
    assert_eq!(commits(chmod), FAST, "chmod");
    let link = |volume: &Volume, old| {
        volume.names().link(old, Ino::ROOT, b"second").unwrap();
        volume.names().unlink(Ino::ROOT, b"old").unwrap();
        old
    };
    assert_eq!(commits(link), FAST, "link and unlink");
    let unlink = |volume: &Volume, _| {
        volume.names().unlink(Ino::ROOT, b"old").unwrap();
        Ino::ROOT
    };
    assert_eq!(commits(unlink), FAST, "the last name");
    let replace = |volume: &Volume, _| {
        let ino = create(volume, b"new");
        volume.files().write_at(ino, 0, &[1; 3000]).unwrap();
        volume.files().fsync(ino).unwrap();
        volume.names().rename((Ino::ROOT, b"new"), (Ino::ROOT, b"old"), Rename::Replace).unwrap();
        Ino::ROOT
    };
    assert_eq!(commits(replace), (2, 0), "write a new file, fsync, rename it over the old one");
    let gone = |volume: &Volume, old| {
        create(volume, b"temporary");
        volume.names().unlink(Ino::ROOT, b"temporary").unwrap();
        volume.files().write_at(old, 20_000, &[1; 3000]).unwrap();
        old
    };
    assert_eq!(commits(gone), FAST, "a file that is already gone");
    let root = |_: &Volume, _| Ino::ROOT;
    assert_eq!(commits(root), (0, 0), "nothing");
}

#[test]
fn what_has_no_records_gets_a_full_commit() {
    let file = New::file(0o644);
    let mkdir =
        |volume: &Volume, _| volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
    assert_eq!(commits(mkdir), FULL, "mkdir");
    let symlink = |volume: &Volume, old| {
        volume.names().create(Ino::ROOT, b"link", &New::symlink(b"old")).unwrap();
        old
    };
    assert_eq!(commits(|volume, old| (symlink(volume, old), Ino::ROOT).1), FULL, "symlink");
    let xattr = |volume: &Volume, old| {
        volume.attributes().set_xattr(old, b"user.a", b"value", SetXattr::Any).unwrap();
        old
    };
    assert_eq!(commits(xattr), FULL, "an attribute");
    let shrink = |volume: &Volume, old| {
        volume.attributes().set_attr(old, &SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
        old
    };
    assert_eq!(commits(shrink), FULL, "a smaller size");
    let punch = |volume: &Volume, old| {
        volume.files().fallocate(old, Allocate::Punch, 2048, 4096).unwrap();
        old
    };
    assert_eq!(commits(punch), FULL, "a hole");
    let many = |volume: &Volume, _| {
        let names = (0..80).map(|n| format!("a-long-name-of-a-file-{n:04}"));
        names.fold(Ino::ROOT, |_, name| {
            volume.names().create(Ino::ROOT, name.as_bytes(), &file).unwrap().ino()
        })
    };
    assert_eq!(commits(many), FULL, "a directory that grows");
    let pack = |volume: &Volume, _| {
        let small = |at: u32| format!("{at:04}").into_bytes();
        for at in 0..72 {
            volume.names().create(Ino::ROOT, &small(at), &file).unwrap();
        }
        for at in (0..72).step_by(3) {
            volume.names().unlink(Ino::ROOT, &small(at)).unwrap();
        }
        volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap();
        volume.sync().unwrap();
        // No hole has room, but all of them together: the kernel's replay would make a block more.
        let size = volume.root().unwrap().size();
        let ino = volume.names().create(Ino::ROOT, &[b'x'; 200], &file).unwrap().ino();
        assert_eq!(volume.root().unwrap().size(), size);
        ino
    };
    // The sync makes one commit, too.
    assert_eq!(commits(pack), (0, 2), "a directory that is packed");
    let mixed = |volume: &Volume, old| {
        mkdir(volume, old);
        volume.files().write_at(old, 20_000, &[1; 3000]).unwrap();
        old
    };
    assert_eq!(commits(mixed), FULL, "one operation without records");
    let again = |volume: &Volume, old: Ino| {
        volume.names().unlink(Ino::ROOT, b"old").unwrap();
        let new = volume.names().create(Ino::ROOT, b"new", &file).unwrap().ino();
        assert_eq!(new, old, "the number is used again");
        new
    };
    assert_eq!(commits(again), FULL, "a number that is used again");
}

#[test]
fn more_changes_than_are_tracked_get_a_full_commit() {
    let disk = image("fast_commit");
    let volume = open(&disk, false);
    let top = volume.names().create(Ino::ROOT, b"top", &New::directory(0o755)).unwrap().ino();
    let names: Vec<Vec<u8>> = (0..1100_u32).map(|at| format!("{at:05}").into_bytes()).collect();
    let files: Vec<Ino> =
        names.iter().map(|name| volume.names().create(top, name, &New::file(0o600)).unwrap().ino()).collect();
    volume.sync().unwrap();
    let before = volume.counters().journal_stats().unwrap();
    let chmod = |files: &[Ino]| {
        for ino in files {
            volume.attributes().set_attr(*ino, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).unwrap();
        }
        volume.files().fsync(files[0]).unwrap();
        let after = volume.counters().journal_stats().unwrap();
        (after.fast_commits - before.fast_commits, after.commits - before.commits)
    };
    assert_eq!(chmod(&files[..20]), FAST);
    assert_eq!(chmod(&files), (1, 1));
}

#[test]
fn a_full_commit_ends_the_fast_ones_and_the_area() {
    let disk = image("fast_commit");
    let volume = open(&disk, false);
    let file = volume.names().create(Ino::ROOT, b"log", &New::file(0o600)).unwrap().ino();
    volume.files().fsync(file).unwrap();
    // Each append is a fast commit of a block or two, until the area of 16 blocks is full.
    for at in 0..100 {
        volume.files().write_at(file, at * 512, &[at as u8; 512]).unwrap();
        volume.files().fsync(file).unwrap();
    }
    let stats = volume.counters().journal_stats().unwrap();
    assert_eq!(stats.fast_commits + stats.commits, 101);
    assert!(stats.fast_commits > 80 && stats.commits > 5, "{stats:?}");
    let cut = Arc::new(disk.cut_all_lost());
    drop(volume);
    let again = open(&cut, false);
    assert!(again.recovery().fast_commit_records > 0);
    let mut bytes = vec![0; 51_200];
    assert_eq!(again.files().read(&again.inode(file).unwrap(), 0, &mut bytes).unwrap(), 51_200);
    assert!(bytes.chunks(512).zip(0..).all(|(chunk, at)| chunk.iter().all(|byte| *byte == at as u8)));
    again.close().unwrap();
}

#[test]
fn without_the_feature_or_with_the_option_there_are_none() {
    for (features, no_fast_commits) in
        [("^fast_commit", false), ("fast_commit", true), ("fast_commit,bigalloc", false)]
    {
        let disk = image(features);
        let volume = open(&disk, no_fast_commits);
        for at in 0..3 {
            let file = volume.names().create(Ino::ROOT, &[b'a' + at], &New::file(0o600)).unwrap().ino();
            volume.files().fsync(file).unwrap();
        }
        let stats = volume.counters().journal_stats().unwrap();
        assert_eq!((stats.fast_commits, stats.commits), (0, 3), "{features}");
        volume.close().unwrap();
    }
}

#[test]
fn a_clean_image_has_no_area_in_use() {
    let disk = image("fast_commit");
    for _ in 0..2 {
        let volume = open(&disk, false);
        let file = volume.names().create(Ino::ROOT, b"new", &New::file(0o600)).unwrap().ino();
        volume.files().fsync(file).unwrap();
        volume.files().write_at(file, 0, b"x").unwrap();
        volume.files().fsync(file).unwrap();
        assert_eq!(volume.counters().journal_stats().unwrap().fast_commits, 1);
        volume.names().unlink(Ino::ROOT, b"new").unwrap();
        volume.close().unwrap();
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        write_image(&disk, &path);
        let said = extant_testkit::run("dumpe2fs", ["-h", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let journal = said.lines().find(|line| line.starts_with("Journal features:")).unwrap().to_owned();
        assert!(!journal.contains("journal_fast_commit"), "{journal}");
        extant_testkit::run("e2fsck", ["-fn", path.to_str().unwrap()]);
    }
}
