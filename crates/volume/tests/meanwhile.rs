//! What happens to a file while some of its bytes are on their way to the device.

use std::sync::Arc;
use std::time::Duration;

use base::Ino;
use simdisk::{Faulty, Image, Op, Rule, SimDisk};
use volume::{Allocate, DataPath, New, OpenOptions, OrphanMode, Refusal, SetAttr, Volume, WriteOptions};

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
    let scratch = testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", "-m", "0", name, size]);
    let disk = SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap()));
    let disk = Arc::new(Faulty::new(disk));
    (disk.clone(), open_with(disk, data))
}

fn bytes(volume: &Volume, ino: Ino) -> Vec<u8> {
    let inode = volume.inode(ino).unwrap();
    let mut bytes = vec![0xEE; inode.size() as usize];
    assert_eq!(volume.read(&inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn set_size(volume: &Volume, ino: Ino, size: u64) {
    volume.set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// A file is cut inside a block whose newer bytes are in memory: they, and zeros behind them, are on the device in the end.
#[test]
fn who_cuts_a_block_does_not_bring_older_bytes_back() {
    let (disk, volume) = made("8M", DataPath::Iomap);
    let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.write_at(ino, 0, &[1; 1024]).unwrap();
    volume.fsync(ino).unwrap();
    volume.write_at(ino, 0, &[2; 100]).unwrap();
    // The first write is that of who cuts.
    disk.arm(Rule::delay(Op::Write, LONG));
    std::thread::scope(|scope| {
        scope.spawn(|| set_size(&volume, ino, 500));
        std::thread::sleep(SHORT);
        volume.fsync(ino).unwrap();
    });
    disk.disarm_all();
    volume.close().unwrap();
    let volume = open(disk);
    let expected: Vec<u8> = [[2; 100].as_slice(), &[1; 400]].concat();
    assert!(bytes(&volume, ino) == expected);
}

/// Each block that went through the journal takes a record there when it is freed, and a small log has room for few of them.
#[test]
fn a_large_journaled_file_goes_through_a_small_log() {
    let (_disk, volume) = made("220M", DataPath::Journal);
    let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let mut len: u64 = 190 << 20;
    while let Err(fault) = volume.fallocate(ino, Allocate::Reserve, 0, len) {
        assert!(fault.is(Refusal::NoSpace), "{fault}");
        len -= 1 << 20;
    }
    assert!(len > 160 << 20, "{len}");
    assert_eq!(volume.precache_extents(ino).unwrap(), 0, "its bytes are not kept by extents");
    volume.sync().unwrap();
    volume.unlink(Ino::ROOT, b"file").unwrap();
    volume.sync().unwrap();
    assert!(volume.statfs().unwrap().blocks_free > len >> 10);
    volume.close().unwrap();
}

/// Who has it open may cut it: it is deleted when that ends, by a power cut too.
#[test]
fn a_file_without_a_name_that_was_cut_is_deleted_all_the_same() {
    for orphans in [OrphanMode::File, OrphanMode::ListV3, OrphanMode::ListV0] {
        for size in [0, 2500, 9 << 10, 1 << 20] {
            let (disk, volume) = made("8M", DataPath::Iomap);
            volume.close().unwrap();
            let write = WriteOptions { no_committer: true, orphans, ..WriteOptions::default() };
            let options = OpenOptions { write, ..OpenOptions::default() };
            let volume = Volume::open(disk.clone(), &options).unwrap();
            let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
            volume.opened(ino).unwrap();
            for block in (0..10).step_by(2) {
                volume.write_at(ino, block << 10, &[7; 1024]).unwrap();
            }
            volume.fsync(ino).unwrap();
            volume.unlink(Ino::ROOT, b"file").unwrap();
            set_size(&volume, ino, size);
            set_size(&volume, ino, size);
            volume.sync().unwrap();
            let after = open(Arc::new(Faulty::new(disk.inner().cut_all_lost())));
            assert_eq!(after.recovery().deleted_orphans, 1, "{orphans:?}, {size}");
        }
    }
}
