//! Write-back into a file system that is full to its last block, or that cannot read its bitmaps. e2fsck
//! judges the images.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_simdisk::{EIO, Faulty, Op, Rule};
use extant_volume::{Allocate, DataPath, New, OpenOptions, Refusal, Volume, WriteOptions};

const BLOCK: u64 = 1024;

fn make(path: &Path, size: &str) {
    make_with(path, size, &[]);
}

fn make_with(path: &Path, size: &str, more: &[&str]) {
    let options = ["-q", "-F", "-t", "ext4", "-b", "1024", "-m", "0", "-N", "128", "-J", "size=1"];
    let more = more.iter().copied().chain([path.to_str().unwrap(), size]);
    extant_testkit::run("mke2fs", options.into_iter().chain(more));
}

/// Opens without background work: only the test's operations run.
fn open(path: &Path, data: DataPath) -> (Arc<Faulty<FileDevice>>, Volume) {
    let disk = Arc::new(Faulty::new(FileDevice::open(path, true).unwrap()));
    let write = WriteOptions { no_committer: true, data, ..WriteOptions::default() };
    let volume = Volume::open(disk.clone(), &OpenOptions { write, ..OpenOptions::default() }).unwrap();
    (disk, volume)
}

/// Gives the file all blocks except the pool that is reserved for maps. Returns their number.
fn take_all(volume: &Volume, ino: Ino) -> u64 {
    let (mut blocks, mut step) = (0, 1 << 14);
    while step > 0 {
        match volume.files().fallocate(ino, Allocate::Reserve, blocks * BLOCK, step * BLOCK) {
            Ok(()) => blocks += step,
            Err(fault) => {
                assert!(fault.is(Refusal::NoSpace), "{fault}");
                // A part of it may fit, and is requested again.
                step /= 2;
            }
        }
    }
    blocks
}

/// The test writes every second block of the file, from the end to the front, which makes half-full leaves of
/// the map: more leaves than the pool has blocks. Ranges that cannot be split any more are written with zeros
/// around them.
#[test]
fn what_was_written_is_converted_though_no_block_is_left_for_the_map() {
    for data in [DataPath::Iomap, DataPath::Ordered] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, "12M");
        let (_disk, volume) = open(&path, data);
        let root = volume.root().unwrap().ino();
        let ino = volume.names().create(root, b"file", &New::file(0o600)).unwrap().ino();
        let blocks = take_all(&volume, ino);
        assert!(blocks > 8000, "{blocks} blocks");
        let byte = |block: u64| (block % 251) as u8 + 1;
        for block in (0..blocks).rev().step_by(2) {
            volume.files().write_at(ino, block * BLOCK, &[byte(block); BLOCK as usize]).unwrap();
            volume.write_back_some(BLOCK).unwrap();
        }
        volume.files().fsync(ino).unwrap();
        // No block was left for another leaf, and zeros were written.
        assert!(volume.statfs().unwrap().blocks_free <= 2);
        let mut longest = 0;
        let inode = volume.inode(ino).unwrap();
        volume
            .files()
            .extents(&inode, 0, u64::MAX, &mut |extent| {
                longest = longest.max(if extent.unwritten { 0 } else { extent.len });
                Some(())
            })
            .unwrap();
        assert!(longest > BLOCK, "{data:?}: the pool was enough, so this shows nothing");
        volume.files().check_file(ino).unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);

        let volume = common::open(&path, None);
        let inode = volume.inode(ino).unwrap();
        let mut bytes = vec![0xEE; (blocks * BLOCK) as usize];
        assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
        for (block, bytes) in (0..).zip(bytes.chunks(BLOCK as usize)) {
            let expected = if (blocks - 1 - block).is_multiple_of(2) { byte(block) } else { 0 };
            assert!(bytes.iter().all(|found| *found == expected), "{data:?}: block {block} of {blocks}");
        }
    }
}

/// If the zeros around a run cannot be written, only the run's bytes are lost: the change has not started
/// yet.
#[test]
fn zeros_that_cannot_be_written_do_not_end_the_journal() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, "12M");
    let (disk, volume) = open(&path, DataPath::Iomap);
    let root = volume.root().unwrap().ino();
    let ino = volume.names().create(root, b"file", &New::file(0o600)).unwrap().ino();
    let other = volume.names().create(root, b"other", &New::file(0o600)).unwrap().ino();
    let blocks = take_all(&volume, ino);
    let mut failed = false;
    for block in (0..blocks).rev().step_by(2) {
        volume.files().write_at(ino, block * BLOCK, &[7; BLOCK as usize]).unwrap();
        // The first write is that of the bytes.
        let rule = disk.arm(Rule::fail(Op::Write, EIO).nth(2).from_then_on());
        let _ = volume.write_back_some(BLOCK);
        failed = disk.hits(rule) > 0;
        disk.disarm_all();
        if failed {
            break;
        }
    }
    assert!(failed, "the pool was enough, so this shows nothing");
    assert!(volume.statfs().unwrap().blocks_free <= 2);
    assert!(volume.files().fsync(ino).is_err());
    volume
        .attributes()
        .set_attr(other, &extant_volume::SetAttr { mode: Some(0o644), ..Default::default() })
        .unwrap();
    volume.files().fsync(other).unwrap();
    volume.files().check_file(ino).unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// The bitmaps cannot be read: the bytes are lost, fsync reports that, and their reservation is released.
#[test]
fn what_cannot_be_written_back_promises_nothing() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, "12M");
    let (disk, volume) = open(&path, DataPath::Iomap);
    let root = volume.root().unwrap().ino();
    let ino = volume.names().create(root, b"file", &New::file(0o600)).unwrap().ino();
    volume.sync().unwrap();
    let free = volume.statfs().unwrap().blocks_available;
    volume.files().write_at(ino, 0, &[7; 100 * BLOCK as usize]).unwrap();
    assert_eq!(volume.statfs().unwrap().blocks_available, free - 100);
    disk.arm(Rule::fail(Op::Read, EIO).from_then_on());
    volume.files().fsync(ino).unwrap_err();
    assert_eq!(volume.statfs().unwrap().blocks_available, free);
    disk.disarm_all();
}

/// Names inside a directory's inode can be removed although no block is free.
#[test]
fn names_inside_the_inode_go_where_no_block_is_left() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make_with(&path, "12M", &["-I", "256", "-O", "inline_data"]);
    let (_disk, volume) = open(&path, DataPath::Iomap);
    let root = volume.root().unwrap().ino();
    let dir = volume.names().create(root, b"dir", &New::directory(0o755)).unwrap().ino();
    let inner = volume.names().create(dir, b"inner", &New::directory(0o755)).unwrap().ino();
    volume.names().create(inner, b"file", &New::file(0o600)).unwrap();
    let ino = volume.names().create(root, b"file", &New::file(0o600)).unwrap().ino();
    take_all(&volume, ino);
    volume.names().unlink(inner, b"file").unwrap();
    volume.names().rmdir(dir, b"inner").unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
