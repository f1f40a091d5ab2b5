//! What fsync and fdatasync promise is there when everything else in the device's cache is lost.

use std::sync::Arc;

use base::Ino;
use simdisk::{Image, SimDisk};
use volume::{Allocate, New, OpenOptions, SetAttr, Volume, WriteOptions};

fn open(disk: Arc<SimDisk>) -> Volume {
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    Volume::open(disk, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn made() -> (Arc<SimDisk>, Volume) {
    let scratch = testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", name, "8M"]);
    let disk = Arc::new(SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap())));
    (disk.clone(), open(disk))
}

/// Power fails now, with nothing kept that was not flushed: the file's bytes.
fn after_a_cut(disk: &SimDisk, name: &[u8]) -> Vec<u8> {
    let volume = open(Arc::new(disk.cut_all_lost()));
    let root = volume.root().unwrap();
    let inode = volume.lookup(&root, name).unwrap_or_else(|fault| panic!("the file is there: {fault}"));
    let mut bytes = vec![0xEE; inode.size() as usize];
    assert_eq!(volume.read(&inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn fdatasync_brings_a_size_that_was_set() {
    for size in [0, 1000, 3000, 9000] {
        let (disk, volume) = made();
        let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        assert_eq!(volume.write_at(ino, 0, &[7; 4000]).unwrap(), 4000);
        volume.fsync(ino).unwrap();
        volume.set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        volume.fdatasync(ino).unwrap();
        let mut expected = vec![7; 4000];
        expected.resize(size as usize, 0);
        assert!(after_a_cut(&disk, b"file") == expected, "{size}");
    }
}

#[test]
fn fdatasync_brings_what_was_done_before_there_was_anything_in_memory() {
    let (disk, volume) = made();
    let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    // Finds nothing to punch, in a file that no commit has yet.
    volume.fallocate(ino, Allocate::Punch, 0, 5000).unwrap();
    volume.fdatasync(ino).unwrap();
    assert!(after_a_cut(&disk, b"file").is_empty());
}

#[test]
fn a_size_stays_when_the_bytes_go_that_gave_it() {
    let (disk, volume) = made();
    let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    assert_eq!(volume.write_at(ino, 0, &[7; 5000]).unwrap(), 5000);
    volume.fallocate(ino, Allocate::Punch, 2048, 9000).unwrap();
    volume.fsync(ino).unwrap();
    let mut expected = vec![7; 2048];
    expected.resize(5000, 0);
    assert!(after_a_cut(&disk, b"file") == expected);
}
