//! Changes of a file while some of its bytes are being written to the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::Device;
use extant_simdisk::{Faulty, Image, Op, Rule, SimDisk};
use extant_volume::{
    Allocate, DataPath, New, OpenOptions, OrphanMode, Refusal, SetAttr, Volume, WriteOptions,
};

const LONG: Duration = Duration::from_millis(300);
const SHORT: Duration = Duration::from_millis(100);

fn open(disk: Arc<Faulty<SimDisk>>) -> Volume {
    open_with(disk, DataPath::Iomap)
}

fn open_with(disk: Arc<Faulty<SimDisk>>, data: DataPath) -> Volume {
    let write = WriteOptions { no_committer: true, data, ..WriteOptions::default() };
    Volume::open(disk, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn made(size: &str, data: DataPath) -> (Arc<Faulty<SimDisk>>, Volume) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", "-m", "0", name, size],
    );
    let disk = SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap()));
    let disk = Arc::new(Faulty::new(disk));
    (disk.clone(), open_with(disk, data))
}

fn bytes(volume: &Volume, ino: Ino) -> Vec<u8> {
    let inode = volume.inode(ino).unwrap();
    let mut bytes = vec![0xEE; inode.size() as usize];
    assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn set_size(volume: &Volume, ino: Ino, size: u64) {
    volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// A file is truncated inside a block whose newer bytes are in memory: in the end the device has them, and
/// zeros after them.
#[test]
fn a_truncate_within_a_block_does_not_bring_older_bytes_back() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 1024]).unwrap();
    volume.files().fsync(ino).unwrap();
    volume.files().write_at(ino, 0, &[2; 100]).unwrap();
    // The first write is the truncating thread's.
    disk.arm(Rule::delay(Op::Write, LONG));
    std::thread::scope(|scope| {
        scope.spawn(|| set_size(&volume, ino, 500));
        std::thread::sleep(SHORT);
        volume.files().fsync(ino).unwrap();
    });
    disk.disarm_all();
    volume.close().unwrap();
    let volume = open(disk);
    let expected: Vec<u8> = [[2; 100].as_slice(), &[1; 400]].concat();
    assert!(bytes(&volume, ino) == expected);
}

/// Freeing a block that went through the journal takes a revoke record, and a small log has room for few of
/// them.
#[test]
fn a_large_journaled_file_goes_through_a_small_log() {
    let (_disk, volume) = made("220M", DataPath::Journal);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let mut len: u64 = 190 << 20;
    while let Err(fault) = volume.files().fallocate(ino, Allocate::Reserve, 0, len) {
        assert!(fault.is(Refusal::NoSpace), "{fault}");
        len -= 1 << 20;
    }
    assert!(len > 160 << 20, "{len}");
    assert_eq!(volume.files().precache_extents(ino).unwrap(), 0, "its bytes are not kept by extents");
    volume.sync().unwrap();
    volume.names().unlink(Ino::ROOT, b"file").unwrap();
    volume.sync().unwrap();
    assert!(volume.statfs().unwrap().blocks_free > len >> 10);
    volume.close().unwrap();
}

/// An open file without a name may be truncated: it is still deleted at its last close, and after a power
/// cut.
#[test]
fn a_file_without_a_name_that_was_cut_is_deleted_all_the_same() {
    for orphans in [OrphanMode::File, OrphanMode::ListV3, OrphanMode::ListV0] {
        for size in [0, 2500, 9 << 10, 1 << 20] {
            let (disk, volume) = made("8M", DataPath::Iomap);
            volume.close().unwrap();
            let write = WriteOptions { no_committer: true, orphans, ..WriteOptions::default() };
            let options = OpenOptions { write, ..OpenOptions::default() };
            let volume = Volume::open(disk.clone(), &options).unwrap();
            let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
            volume.opened(ino).unwrap();
            for block in (0..10).step_by(2) {
                volume.files().write_at(ino, block << 10, &[7; 1024]).unwrap();
            }
            volume.files().fsync(ino).unwrap();
            volume.names().unlink(Ino::ROOT, b"file").unwrap();
            set_size(&volume, ino, size);
            set_size(&volume, ino, size);
            volume.sync().unwrap();
            let after = open(Arc::new(Faulty::new(disk.inner().cut_all_lost())));
            assert_eq!(after.recovery().deleted_orphans, 1, "{orphans:?}, {size}");
        }
    }
}

/// Bytes that were appended to a block during its write are not part of that write: the size on disk does not
/// include them.
#[test]
fn a_size_on_disk_is_no_larger_than_what_was_written() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 300]).unwrap();
    disk.arm(Rule::delay(Op::Write, LONG));
    std::thread::scope(|scope| {
        scope.spawn(|| volume.write_back_some(1024).unwrap());
        std::thread::sleep(SHORT);
        volume.files().append(ino, &[2; 300]).unwrap();
    });
    disk.disarm_all();
    // Commits the directory only.
    volume.files().fsync(Ino::ROOT).unwrap();
    let after = open(Arc::new(Faulty::new(disk.inner().cut_all_lost())));
    assert!(bytes(&after, ino) == [1; 300]);
    volume.files().fsync(ino).unwrap();
    let after = open(Arc::new(Faulty::new(disk.inner().cut_all_lost())));
    assert!(bytes(&after, ino) == [[1; 300], [2; 300]].concat());
}

/// If the block with the end on disk cannot be written, bytes after it are still written.
#[test]
fn what_is_written_behind_a_block_that_fails_is_there() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 300]).unwrap();
    volume.files().fsync(ino).unwrap();
    volume.files().write_at(ino, 0, &[2; 10]).unwrap();
    disk.arm(Rule::delay(Op::Write, LONG).times(1));
    std::thread::scope(|scope| {
        scope.spawn(|| volume.write_back_some(1024).unwrap());
        std::thread::sleep(SHORT);
        volume.files().append(ino, &[3; 3000]).unwrap();
        // First all blocks except the one with the end on disk, which is being written; then that block,
        // which has newer bytes.
        disk.arm(Rule::fail(Op::Write, 5).nth(2).times(1));
        assert!(volume.write_back_some(1 << 20).unwrap());
    });
    disk.disarm_all();
    volume.files().fsync(ino).unwrap_err();
    volume.files().fsync(ino).unwrap();
    let after = open(Arc::new(Faulty::new(disk.inner().cut_all_lost())));
    let there = bytes(&after, ino);
    assert_eq!(there.len(), 3300);
    assert!(there[1024..].iter().all(|byte| *byte == 3));
}

/// fsync waits for bytes that were written before it, not for later ones, however fast they come.
#[test]
fn fsync_does_not_wait_for_later_writes() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 64 << 10]).unwrap();
    volume.files().fsync(ino).unwrap();
    disk.arm(Rule::delay(Op::Write, Duration::from_millis(2)));
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let too_long = Duration::from_secs(30);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < too_long {
                volume.files().write_at(ino, at % (64 << 10), &[2; 1024]).unwrap();
                at += 2048;
            }
        });
        for _ in 0..5 {
            volume.files().fsync(ino).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(begun.elapsed() < too_long);
}

/// An orphan list contains a free inode, or an inode twice: the bitmap decides.
#[test]
fn false_orphans_do_not_prevent_writing() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 300]).unwrap();
    volume.names().unlink(Ino::ROOT, b"file").unwrap();
    volume.close().unwrap();
    change_superblock(&disk, |sb| sb.last_orphan = ino.0);
    let volume = open(disk.clone());
    assert_eq!(volume.recovery().deleted_orphans, 0);
    assert!(volume.recovery().problems.iter().any(|problem| problem.contains("list of orphans")));
    let ino = volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 300]).unwrap();
    volume.close().unwrap();
    assert!(bytes(&open(disk), ino) == [1; 300]);
}

/// On a file system with errors, the owner of an orphan's blocks is unknown.
#[test]
fn orphans_of_a_damaged_file_system_are_left_for_e2fsck() {
    for has_errors in [false, true] {
        let (disk, volume) = made("8M", DataPath::Iomap);
        let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        volume.opened(ino).unwrap();
        volume.names().unlink(Ino::ROOT, b"file").unwrap();
        volume.sync().unwrap();
        let after = Arc::new(Faulty::new(disk.inner().cut_all_lost()));
        if has_errors {
            change_superblock(&after, |sb| sb.state |= extant_ondisk::superblock::STATE_ERRORS);
        }
        let volume = open(after);
        assert_eq!(volume.recovery().deleted_orphans, u64::from(!has_errors));
        let has_advice = volume.recovery().problems.iter().any(|problem| problem.contains("e2fsck -f"));
        assert_eq!(has_advice, has_errors);
    }
}

fn change_superblock(disk: &Faulty<SimDisk>, change: impl FnOnce(&mut extant_ondisk::Superblock)) {
    let mut bytes = [0; extant_ondisk::superblock::SIZE];
    disk.read_at(extant_ondisk::superblock::OFFSET, &mut bytes).unwrap();
    let mut sb = extant_ondisk::Superblock::decode(&bytes).unwrap();
    change(&mut sb);
    disk.write_durable_at(extant_ondisk::superblock::OFFSET, &sb.sealed()).unwrap();
}

/// An extent that fails loses only its own bytes: those after it are written in the same call.
#[test]
fn an_extent_that_fails_costs_its_own_bytes_only() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let other = volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap().ino();
    // Extents of one block each.
    for block in 0..8 {
        for ino in [ino, other] {
            volume.files().write_at(ino, block << 10, &[1; 1024]).unwrap();
            volume.files().fsync(ino).unwrap();
        }
    }
    volume.files().write_at(ino, 0, &[2; 8 << 10]).unwrap();
    disk.arm(Rule::fail(Op::Write, 5).times(1));
    volume.files().fsync(ino).unwrap_err();
    disk.disarm_all();
    volume.files().fsync(ino).unwrap();
    let after = open(Arc::new(Faulty::new(disk.inner().cut_all_lost())));
    assert!(bytes(&after, ino) == [[1; 1024].as_slice(), &[2; 7 << 10]].concat());
}
