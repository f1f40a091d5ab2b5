//! Damage found while writing: what the superblock records about it, and which operations still work.

use crate::common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_simdisk::{EIO, Faulty, Op, Rule};
use extant_volume::{Fault, New, OnError, OpenOptions, Volume, WriteOptions};

/// Makes an image with a directory whose block is damaged. Returns the directory's number.
fn make(path: &Path, behaviour: &str) -> Ino {
    let name = path.to_str().unwrap();
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-e", behaviour, name, "4M"]);
    let volume = open(path, None);
    let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap();
    let mut place = 0;
    let mut keep = |extent: extant_volume::Extent| {
        place = extent.physical;
        None
    };
    volume.files().extents(&dir, 0, 1024, &mut keep).unwrap();
    volume.close().unwrap();
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(&[0xFF; 4], place + 40).unwrap();
    dir.ino()
}

fn open_on(device: Arc<dyn extant_device::Device>, errors: Option<OnError>) -> Volume {
    let write = WriteOptions { no_committer: true, errors, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn open(path: &Path, errors: Option<OnError>) -> Volume {
    open_on(Arc::new(FileDevice::open(path, true).unwrap()), errors)
}

fn new_file(volume: &Volume, dir: Ino, name: &str) -> Result<(), Fault> {
    volume.names().create(dir, name.as_bytes(), &New::file(0o644)).map(drop)
}

/// The rest of the line in `dumpe2fs -h` that starts with `words`.
fn superblock_field(path: &Path, words: &str) -> Option<String> {
    let output = extant_testkit::command("dumpe2fs").arg("-h").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(words));
    line.map(|rest| rest.trim_start_matches(':').trim().to_owned())
}

fn assert_noted(path: &Path, count: u32, ino: Option<Ino>, code: &str) {
    assert_eq!(superblock_field(path, "FS Error count"), Some(count.to_string()));
    assert!(superblock_field(path, "Filesystem state").unwrap().contains("with errors"));
    assert!(superblock_field(path, "Last error func").unwrap().contains("extant: "));
    assert_eq!(superblock_field(path, "Last error err"), Some(code.to_owned()));
    assert_eq!(superblock_field(path, "Last error inode #"), ino.map(|ino| ino.0.to_string()));
    assert!(superblock_field(path, "First error time").is_some());
    let checked = extant_testkit::command("e2fsck").arg("-n").arg(path).output().unwrap();
    let words = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(words.contains("with errors, check forced"), "{words}");
}

#[test]
fn continue_goes_on_and_remembers() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let dir = make(&path, "continue");
    let volume = open(&path, None);
    for _ in 0..2 {
        let fault = new_file(&volume, dir, "file").unwrap_err();
        assert!(matches!(fault, Fault::Corrupt(_)) && fault.errno() == 117, "{fault}");
    }
    // A caller's mistake is not damage.
    assert_eq!(new_file(&volume, Ino(8), "file").unwrap_err().errno(), 1);
    new_file(&volume, Ino::ROOT, "other").unwrap();
    volume.close().unwrap();
    assert_noted(&path, 2, Some(dir), "EFSCORRUPTED");

    // The record persists, and the count continues.
    let volume = open(&path, None);
    assert_eq!(volume.superblock().error_count, 2);
    assert!(volume.names().lookup(&volume.root().unwrap(), b"other").is_ok());
    assert!(volume.names().rmdir(Ino::ROOT, b"dir").is_err());
    volume.close().unwrap();
    assert_noted(&path, 3, Some(dir), "EFSCORRUPTED");
}

#[test]
fn remount_ro_writes_nothing_more() {
    if extant_testkit::not_root() {
        return;
    }
    for (behaviour, chosen) in [("remount-ro", None), ("continue", Some(OnError::ReadOnly))] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let dir = make(&path, behaviour);
        let volume = open(&path, chosen);
        new_file(&volume, Ino::ROOT, "synced").unwrap();
        volume.sync().unwrap();
        new_file(&volume, Ino::ROOT, "not-synced").unwrap();
        assert_eq!(new_file(&volume, dir, "file").unwrap_err().errno(), 117);
        // Recorded at once, not only at close.
        assert_noted(&path, 1, Some(dir), "EFSCORRUPTED");
        let refused = new_file(&volume, Ino::ROOT, "more").unwrap_err();
        assert_eq!(refused.errno(), 30, "{refused}");
        assert!(refused.to_string().contains("directory"), "the first cause: {refused}");
        assert!(volume.names().lookup(&volume.root().unwrap(), b"synced").is_ok());
        assert_eq!(volume.close().unwrap_err().errno(), 30);

        // The kernel replays the same log and keeps the record (except for the code, which it takes from the
        // log); e2fsck repairs it.
        let copy = scratch.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        let mount = extant_testkit::LoopMount::new(&copy, "errors=continue").unwrap();
        assert!(mount.path().join("synced").exists() && !mount.path().join("not-synced").exists());
        drop(mount);
        assert_eq!(superblock_field(&copy, "FS Error count").as_deref(), Some("1"));
        assert_eq!(superblock_field(&copy, "Last error inode #"), Some(dir.0.to_string()));
        let repaired = extant_testkit::command("e2fsck").arg("-fy").arg(&copy).output().unwrap();
        assert_eq!(repaired.status.code(), Some(1));
        assert_eq!(superblock_field(&copy, "FS Error count"), None);
        extant_testkit::e2fsck_clean(&copy);

        // The log has an older superblock.
        let volume = open(&path, Some(OnError::Continue));
        let names = common::names(&volume, &volume.root().unwrap());
        assert!(names.contains(&b"synced".to_vec()) && !names.contains(&b"not-synced".to_vec()));
        volume.close().unwrap();
        assert_noted(&path, 1, Some(dir), "EFSCORRUPTED");
        let log = extant_testkit::command("dumpe2fs").arg("-h").arg(&path).output().unwrap();
        assert!(!String::from_utf8_lossy(&log.stdout).contains("Journal errno"), "the abort is dealt with");
    }
}

#[test]
fn panic_refuses_everything() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let dir = make(&path, "panic");
    let volume = open(&path, None);
    let root = volume.root().unwrap();
    assert_eq!(new_file(&volume, dir, "file").unwrap_err().errno(), 117);
    assert_eq!(new_file(&volume, Ino::ROOT, "file").unwrap_err().errno(), 5);
    assert!(matches!(volume.root(), Err(Fault::Stopped(_))));
    assert!(matches!(volume.names().lookup(&root, b"dir"), Err(Fault::Stopped(_))));
    assert!(matches!(volume.attributes().xattrs(&root), Err(Fault::Stopped(_))));
    assert!(volume.close().is_err());
    assert_noted(&path, 1, Some(dir), "EFSCORRUPTED");
}

/// With every setting, an error in the middle of an operation aborts the journal, and the abort is recorded,
/// too.
#[test]
fn the_end_of_the_journal_is_noted() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, "continue");
    let volume = open(&path, None);
    volume.names().create(Ino::ROOT, b"link", &New::symlink(&[b'x'; 700])).unwrap();
    volume.close().unwrap();
    let disk = Arc::new(Faulty::new(FileDevice::open(&path, true).unwrap()));
    let volume = open_on(disk.clone(), None);
    volume.names().lookup(&volume.root().unwrap(), b"link").unwrap();
    disk.arm(Rule::fail(Op::Read, EIO).times(2));
    assert!(matches!(volume.names().unlink(Ino::ROOT, b"link"), Err(Fault::Device(_))));
    assert_eq!(new_file(&volume, Ino::ROOT, "more").unwrap_err().errno(), 30);
    drop(volume);
    assert_noted(&path, 1, None, "EIO");
}
