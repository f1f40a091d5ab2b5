//! Errors in the middle of an operation.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_simdisk::{EIO, Faulty, Op, Rule};
use extant_volume::{Fault, New, OpenOptions, Refusal, Rename, Volume, WriteOptions};

type Disk = Arc<Faulty<FileDevice>>;

fn make(path: &Path, options: &[&str]) {
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024"].iter().chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "4M"]));
}

/// Without background work: only the test's operations run.
fn quiet() -> WriteOptions {
    WriteOptions { no_committer: true, keep_reserve: true, ..WriteOptions::default() }
}

fn open(path: &Path, write: WriteOptions) -> (Disk, Volume) {
    let disk = Arc::new(Faulty::new(FileDevice::open(path, true).unwrap()));
    let volume = Volume::open(disk.clone(), &OpenOptions { write, ..OpenOptions::default() }).unwrap();
    (disk, volume)
}

fn names(volume: &Volume, dir: Ino) -> Vec<String> {
    let mut names: Vec<String> = common::names(volume, &volume.inode(dir).unwrap())
        .into_iter()
        .map(|name| String::from_utf8(name).unwrap())
        .collect();
    names.sort();
    names
}

/// Creates a long symbolic link, which takes a block.
fn take_block(volume: &Volume, dir: Ino, name: &str) -> Result<(), Fault> {
    volume.names().create(dir, name.as_bytes(), &New::symlink(&[b'x'; 700])).map(drop)
}

/// Leaves one block that can be allocated.
fn fill_up(path: &Path) {
    let mut count = 0;
    // A growing directory keeps preallocated blocks until it is evicted: a second round finds them.
    for _ in 0..2 {
        let (_disk, volume) = open(path, quiet());
        let dir = match volume.names().lookup(&volume.root().unwrap(), b"fill") {
            Ok(dir) => dir.ino(),
            Err(_) => volume.names().create(Ino::ROOT, b"fill", &New::directory(0o755)).unwrap().ino(),
        };
        // A name whose leaf is full needs two blocks. Most of the others find room, and take the last block.
        let mut refused_in_a_row = 0;
        while refused_in_a_row < 64 {
            match take_block(&volume, dir, &format!("fill-{count}")) {
                Ok(()) => refused_in_a_row = 0,
                Err(fault) if fault.is(Refusal::NoSpace) => refused_in_a_row += 1,
                Err(fault) => panic!("{fault}"),
            }
            count += 1;
        }
        volume.close().unwrap();
    }
    let (_disk, volume) = open(path, quiet());
    let dir = volume.names().lookup(&volume.root().unwrap(), b"fill").unwrap().ino();
    assert_eq!(volume.statfs().unwrap().blocks_available, 0);
    volume.names().unlink(dir, b"fill-7").unwrap();
    volume.close().unwrap();
    let (_disk, volume) = open(path, quiet());
    assert_eq!(volume.statfs().unwrap().blocks_available, 1);
}

/// Two directories inside their inodes would have to move into blocks, but only one block is free: both names
/// stay unchanged. Regression: if the new name existed already, the second directory moved in the middle of
/// the operation.
#[test]
fn a_rename_between_inline_directories_is_refused_whole() {
    for how in [Rename::Replace, Rename::Exchange, Rename::Whiteout] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, &["-O", "inline_data", "-N", "8192"]);
        // Made by debugfs, because extant creates no inline directories.
        let script = "mkdir /one\nmkdir /two\nwrite /dev/null /one/a\nwrite /dev/null /two/b\n";
        let commands = scratch.path().join("commands");
        std::fs::write(&commands, script).unwrap();
        extant_testkit::run("debugfs", ["-w", "-f", commands.to_str().unwrap(), path.to_str().unwrap()]);
        fill_up(&path);
        let (_disk, volume) = open(&path, quiet());
        let dir = |name: &[u8]| volume.names().lookup(&volume.root().unwrap(), name).unwrap().ino();
        let (one, two) = (dir(b"one"), dir(b"two"));
        let to = if how == Rename::Exchange { &b"b"[..] } else { b"c" };
        let refused = volume.names().rename((one, b"a"), (two, to), how).unwrap_err();
        assert!(refused.is(Refusal::NoSpace), "{how:?}: {refused}");
        assert_eq!((names(&volume, one), names(&volume, two)), (vec!["a".to_owned()], vec!["b".to_owned()]));
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// A directory that moves out of its inode keeps all names, including those in the attribute.
#[test]
fn an_inline_directory_moves_with_all_its_names() {
    if extant_testkit::not_root() {
        return;
    }
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &["-O", "inline_data", "-I", "512"]);
    let mut expected: Vec<String> = (0..15).map(|i| format!("name-{i:02}")).collect();
    {
        // Made by the kernel, because debugfs does not use the attribute.
        let mount = extant_testkit::LoopMount::new(&path, "").unwrap();
        std::fs::create_dir(mount.path().join("dir")).unwrap();
        for (i, name) in expected.iter().enumerate() {
            let path = mount.path().join("dir").join(name);
            if i % 2 == 0 { std::fs::create_dir(path).unwrap() } else { std::fs::write(path, "").unwrap() }
        }
    }
    let (_disk, volume) = open(&path, quiet());
    let dir = volume.names().lookup(&volume.root().unwrap(), b"dir").unwrap();
    assert!(dir.has_flag(extant_ondisk::inode::flags::INLINE_DATA) && dir.size() > 60);
    let dir = dir.ino();
    volume.names().create(dir, b"zzz", &New::file(0o644)).unwrap();
    expected.push("zzz".to_owned());
    assert_eq!(names(&volume, dir), expected);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// The name is already removed when the bitmap turns out to be unreadable. Changes that cannot be undone must
/// not be committed.
#[test]
fn a_fault_in_the_middle_lets_nothing_be_committed() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &[]);
    let (_disk, volume) = open(&path, quiet());
    take_block(&volume, Ino::ROOT, "link").unwrap();
    volume.close().unwrap();

    let (disk, volume) = open(&path, quiet());
    volume.names().lookup(&volume.root().unwrap(), b"link").unwrap();
    disk.arm(Rule::fail(Op::Read, EIO).from_then_on());
    assert!(matches!(volume.names().unlink(Ino::ROOT, b"link"), Err(Fault::Device(_))));
    disk.disarm_all();
    let refused = volume.names().create(Ino::ROOT, b"more", &New::file(0o644)).unwrap_err();
    assert!(matches!(refused, Fault::Aborted(_)) && refused.errno() == 30, "{refused}");
    assert!(refused.to_string().contains("half-way"), "{refused}");
    assert!(volume.sync().is_err() && volume.close().is_err());

    let (_disk, volume) = open(&path, quiet());
    assert_eq!(names(&volume, Ino::ROOT), ["link", "lost+found"]);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// An operation that fails before its first change, or that undoes its changes, does not affect others.
#[test]
fn a_fault_before_the_first_change_is_the_operations_own() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &[]);
    let (_disk, volume) = open(&path, quiet());
    let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
    volume.names().create(dir, b"file", &New::file(0o644)).unwrap();
    volume.close().unwrap();

    let (disk, volume) = open(&path, quiet());
    volume.names().create(Ino::ROOT, b"warm", &New::file(0o644)).unwrap();
    volume.names().lookup(&volume.root().unwrap(), b"dir").unwrap();
    // The inode is allocated, then the directory's block cannot be read, and the inode is freed again.
    disk.arm(Rule::fail(Op::Read, EIO));
    assert!(matches!(volume.names().create(dir, b"new", &New::file(0o644)), Err(Fault::Device(_))));
    disk.arm(Rule::fail(Op::Read, EIO));
    assert!(matches!(volume.names().unlink(dir, b"file"), Err(Fault::Device(_))));
    volume.names().create(dir, b"new", &New::file(0o644)).unwrap();
    assert_eq!(names(&volume, dir), ["file", "new"]);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// A mistake of the caller: the count must not wrap around, which would keep the inode forever.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "released more often"))]
fn a_release_too_many_does_nothing() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &[]);
    let (_disk, volume) = open(&path, quiet());
    let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.released(file).unwrap();
    let free = volume.statfs().unwrap().inodes_free;
    volume.names().unlink(Ino::ROOT, b"file").unwrap();
    assert_eq!(volume.statfs().unwrap().inodes_free, free + 1);
}

#[test]
fn a_lost_write_is_reported_once_to_each_open_file() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &[]);
    let (disk, volume) = open(&path, quiet());
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.opened(ino).unwrap();
    // The first open comes before any of the file's bytes are in memory.
    let one = volume.files().sample_errors(ino).unwrap();
    volume.files().write_at(ino, 0, &[1; 5000]).unwrap();
    let other = volume.files().sample_errors(ino).unwrap();
    assert!(!volume.files().had_errors(ino));
    disk.arm(Rule::fail(Op::Write, EIO).times(1));
    assert!(!volume.write_back_some(u64::MAX).unwrap());
    assert!(volume.files().had_errors(ino));
    for cursor in [&one, &other] {
        assert!(matches!(volume.files().fsync_as(ino, cursor, false), Err(Fault::LostWrite)));
        volume.files().fsync_as(ino, cursor, true).unwrap();
    }
    // A later open does not report this error; callers without an open file share one report.
    let late = volume.files().sample_errors(ino).unwrap();
    volume.files().fsync_as(ino, &late, false).unwrap();
    assert!(matches!(volume.files().fsync(ino), Err(Fault::LostWrite)));
    volume.files().fdatasync(ino).unwrap();
    volume.released(ino).unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
