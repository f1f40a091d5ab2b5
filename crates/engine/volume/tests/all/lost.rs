//! Operations on file data during which the device fails: the state in memory, and later on the disk.

use std::path::Path;
use std::sync::Arc;

use crate::common::small;
use extant_base::Ino;
use extant_device::FileDevice;
use extant_simdisk::{EIO, Faulty, Op, Rule};
use extant_volume::{Allocate, Fault, New, OpenOptions, SetAttr, Volume, WriteOptions};

type Disk = Arc<Faulty<FileDevice>>;

fn open(path: &Path) -> (Disk, Volume) {
    let disk = Arc::new(Faulty::new(FileDevice::open(path, true).unwrap()));
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    let volume = Volume::open(disk.clone(), &OpenOptions { write, ..OpenOptions::default() }).unwrap();
    (disk, volume)
}

/// An image with blocks of 1 KiB and a file `f` of 5,500 bytes, closed again.
fn prepared(scratch: &Path) -> std::path::PathBuf {
    let path = small::image(scratch, &["-b", "1024"], &[]);
    let (_disk, volume) = open(&path);
    let file = volume.names().create(Ino::ROOT, b"f", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(file, 0, &[b'a'; 5500]).unwrap();
    volume.close().unwrap();
    path
}

fn resize(volume: &Volume, file: Ino, size: u64) -> Result<(), Fault> {
    volume.attributes().set_attr(file, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

fn bytes(volume: &Volume, file: Ino) -> Vec<u8> {
    let mut bytes = vec![0; volume.attributes().stat(&volume.inode(file).unwrap()).size as usize];
    assert_eq!(volume.files().read_at(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The disk must have what was acknowledged, and e2fsck must find nothing.
fn judge(path: &Path, expected: &[u8]) {
    let (_disk, volume) = open(path);
    let file = small::find(&volume, b"f");
    assert!(bytes(&volume, file) == expected, "{} bytes", expected.len());
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(path);
}

/// The block with the new end cannot be read: the file stays unchanged, in memory and on the disk, whatever
/// follows. Regression: memory had the new size, and a later fsync acknowledged it.
#[test]
fn a_cut_that_cannot_read_the_block_with_the_new_end_changes_nothing() {
    for is_mapped in [false, true] {
        for follow in 0..2 {
            let scratch = extant_testkit::scratch();
            let path = prepared(scratch.path());
            let (disk, volume) = open(&path);
            let file = small::find(&volume, b"f");
            let mut expected = vec![b'a'; 5500];
            if is_mapped {
                volume.files().fallocate(file, Allocate::Keep, 20 << 10, 4096).unwrap();
            } else {
                volume.files().write_at(file, 5400, &[b'b'; 50]).unwrap();
                expected[5400..5450].fill(b'b');
            }
            disk.arm(Rule::fail(Op::Read, EIO).from_then_on());
            let fault = resize(&volume, file, 2100).unwrap_err();
            disk.disarm_all();
            assert!(matches!(fault, Fault::Device(_)), "{fault}");
            assert!(bytes(&volume, file) == expected);
            volume.files().check_file(file).unwrap();
            volume.files().fsync(file).unwrap();
            if follow == 1 {
                volume.files().fallocate(file, Allocate::Reserve, 5000, 4000).unwrap();
                expected.resize(9000, 0);
            }
            volume.close().unwrap();
            judge(&path, &expected);
        }
    }
}

/// As above, for a file that should grow.
#[test]
fn growth_that_fails_changes_nothing() {
    let scratch = extant_testkit::scratch();
    let path = prepared(scratch.path());
    let (disk, volume) = open(&path);
    let file = small::find(&volume, b"f");
    disk.arm(Rule::fail(Op::Read, EIO).from_then_on());
    resize(&volume, file, 7000).unwrap_err();
    disk.disarm_all();
    assert!(bytes(&volume, file) == [b'a'; 5500]);
    volume.files().fsync(file).unwrap();
    volume.close().unwrap();
    judge(&path, &[b'a'; 5500]);
}

/// Neither zeros nor the old bytes can be written after the new end: the content there is unknown, so the
/// journal is aborted.
#[test]
fn zeros_that_cannot_be_written_end_the_journal() {
    let scratch = extant_testkit::scratch();
    let path = prepared(scratch.path());
    let (disk, volume) = open(&path);
    let file = small::find(&volume, b"f");
    disk.arm(Rule::new(Op::Write, extant_simdisk::Effect::FailAfter(EIO)).from_then_on());
    resize(&volume, file, 2100).unwrap_err();
    assert!(volume.aborted().is_some());
    assert_eq!(resize(&volume, file, 1).unwrap_err().errno(), 30);
    drop(volume);
    // Neither durable nor undone: as after a power cut in the middle.
    let (_disk, volume) = open(&path);
    let found = bytes(&volume, small::find(&volume, b"f"));
    assert!(found.len() == 5500 && found.iter().all(|byte| matches!(byte, 0 | b'a')));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// The device wrote the zeros and reports an error: the old bytes are restored.
#[test]
fn zeros_that_were_written_all_the_same_are_taken_back() {
    let scratch = extant_testkit::scratch();
    let path = prepared(scratch.path());
    let (disk, volume) = open(&path);
    let file = small::find(&volume, b"f");
    volume.files().fsync(file).unwrap();
    disk.arm(Rule::new(Op::Write, extant_simdisk::Effect::FailAfter(EIO)));
    resize(&volume, file, 2100).unwrap_err();
    assert!(volume.aborted().is_none() && bytes(&volume, file) == [b'a'; 5500]);
    volume.close().unwrap();
    judge(&path, &[b'a'; 5500]);
}

/// Appended bytes cannot be written back: fsync reports it, and from then on memory shows what the disk has.
/// Regression: the size stayed that of the lost bytes, the second fsync acknowledged it, and blocks reserved
/// there were after the end on the disk.
#[test]
fn bytes_that_are_reported_as_lost_leave_memory() {
    for follow in 0..3 {
        let scratch = extant_testkit::scratch();
        let path = prepared(scratch.path());
        let (disk, volume) = open(&path);
        let file = small::find(&volume, b"f");
        volume.files().write_at(file, 100 << 10, &[b'c'; 3000]).unwrap();
        volume.files().fsync(file).unwrap();
        volume.files().append(file, &[b'd'; 5000]).unwrap();
        volume.files().write_at(file, 10, b"new").unwrap();
        let mut expected = vec![0; (100 << 10) + 3000];
        expected[..5500].fill(b'a');
        expected[100 << 10..].fill(b'c');
        disk.arm(Rule::fail(Op::Write, EIO).from_then_on());
        match follow {
            // As the write-back thread does.
            2 => (0..4).for_each(|_| assert!(!volume.write_back_some(u64::MAX).unwrap())),
            _ => assert_eq!(volume.files().fsync(file).unwrap_err().errno(), 5),
        }
        disk.disarm_all();
        if follow == 2 {
            let fault = volume.sync().unwrap_err();
            assert!(matches!(fault, Fault::LostWrite), "{fault}");
            assert!(volume.files().fsync(file).is_err());
        }
        assert!(bytes(&volume, file) == expected, "{follow}");
        volume.files().fsync(file).unwrap();
        volume.sync().unwrap();
        if follow == 1 {
            volume.files().fallocate(file, Allocate::Reserve, expected.len() as u64 + 100, 1000).unwrap();
            expected.resize(expected.len() + 1100, 0);
        }
        volume.files().check_file(file).unwrap();
        volume.close().unwrap();
        judge(&path, &expected);
    }
}

/// The last name of an inode is removed, but its map cannot be read: the inode is deleted at the next open.
/// Regression: the operation reported a failure.
#[test]
fn a_name_is_gone_though_its_inode_cannot_be_deleted_yet() {
    let scratch = extant_testkit::scratch();
    let path = small::image(scratch.path(), &["-b", "1024"], &[]);
    let (_disk, volume) = open(&path);
    let file = volume.names().create(Ino::ROOT, b"many", &New::file(0o644)).unwrap().ino();
    let free = volume.statfs().unwrap().blocks_free;
    for piece in 0..200 {
        volume.files().write_at(file, piece * 2048, b"piece").unwrap();
        volume.files().fsync(file).unwrap();
    }
    volume.close().unwrap();

    let (disk, volume) = open(&path);
    let file = small::find(&volume, b"many");
    volume.opened(file).unwrap();
    volume.names().unlink(Ino::ROOT, b"many").unwrap();
    disk.arm(Rule::fail(Op::Read, EIO).from_then_on());
    volume.released(file).unwrap();
    disk.disarm_all();
    volume.close().unwrap();

    let (_disk, volume) = open(&path);
    assert_eq!(volume.recovery().deleted_orphans, 1);
    volume.sync().unwrap();
    assert_eq!(volume.statfs().unwrap().blocks_free, free);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
