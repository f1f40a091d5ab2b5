//! What happens between two steps of writing back.

use extant_device::MemDevice;
use extant_page_cache::Take;

use super::*;
use crate::{New, OpenOptions, WriteOptions};

fn made() -> (Arc<MemDevice>, Volume) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", path.to_str().unwrap(), "16M"]);
    let device = Arc::new(MemDevice::new(16 << 20));
    extant_device::Device::write_at(&*device, 0, &std::fs::read(&path).unwrap()).unwrap();
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    let options = OpenOptions { write, ..OpenOptions::default() };
    (device.clone(), Volume::open(device, &options).unwrap())
}

fn take(data: &FileData, range: Range<u64>) -> Run {
    match data.pages.take_run(range, u64::MAX, u64::MAX) {
        Take::Run(run) => run,
        Take::Busy | Take::Clean => panic!("all of it is dirty"),
    }
}

/// A run gives blocks to all of a delayed extent; what is known of that may be forgotten, memory is short,
/// before another run of the same extent asks: its blocks are no hole.
#[test]
fn what_another_run_gave_blocks_to_is_found_though_it_is_forgotten() {
    let (_device, volume) = made();
    let ino = volume.create(extant_base::Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.write_at(ino, 0, &[7; 200 << 10]).unwrap();
    let writer = volume.writer.as_ref().unwrap();
    let node = writer.inodes().get(ino).unwrap();
    let data = node.data().unwrap();
    let (first, second) = (take(&data, 0..100 << 10), take(&data, 100 << 10..200 << 10));
    let delayed = data.entry_to_change(writer.shared(), &node, Lblk(100), u32::MAX).unwrap();
    assert_eq!(delayed.status, Status::Delayed);
    writer.flusher.write_back(&node, first).unwrap();
    data.known.clear();
    let want = Want { unwritten: true, promised: true };
    let entry = writer.flusher.allocate(&node, &data, &delayed, 100, want).unwrap();
    assert_eq!((entry.lblk.0, entry.len, entry.status), (100, 100, Status::Unwritten));
    writer.flusher.write_back(&node, second).unwrap();
    volume.check_file(ino).unwrap();
    let mut bytes = vec![0; 200 << 10];
    volume.read_direct(ino, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    volume.close().unwrap();
}

/// Bytes after the block that a file ends in on disk arrive while that block is on its way: its map has them
/// as written when the size may go past it, and not before. If power failed in between, e2fsck would find
/// blocks behind the end.
#[test]
fn blocks_count_as_written_when_the_size_can_cover_them() {
    let (device, volume) = made();
    let ino = volume.create(extant_base::Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.write_at(ino, 0, &[7; 300]).unwrap();
    volume.fsync(ino).unwrap();
    volume.append(ino, &[8; 9000]).unwrap();
    let writer = volume.writer.as_ref().unwrap();
    let node = writer.inodes().get(ino).unwrap();
    let data = node.data().unwrap();
    let (end, behind) = (take(&data, 0..1024), take(&data, 1024..u64::MAX >> 1));
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| writer.flusher.write_back(&node, behind));
        std::thread::sleep(Duration::from_millis(200));
        writer.journal.commit_all().unwrap();
        assert!(!behind.is_finished());
        // As a power cut leaves it: what is not flushed does not matter.
        let cut = MemDevice::new(16 << 20);
        let mut bytes = vec![0; 16 << 20];
        extant_device::Device::read_at(&*device, 0, &mut bytes).unwrap();
        extant_device::Device::write_at(&cut, 0, &bytes).unwrap();
        let cut = Volume::open_read_only(Arc::new(cut), &OpenOptions::default()).unwrap();
        let inode = cut.inode(ino).unwrap();
        assert_eq!(inode.size(), 300);
        let mut is_written_behind = false;
        let mut look = |extent: crate::Extent| {
            is_written_behind |= extent.offset + extent.len > 1024 && !extent.unwritten;
            Some(())
        };
        cut.extents(&inode, 1, u64::MAX, &mut look).unwrap();
        assert!(!is_written_behind);
        writer.flusher.write_back(&node, end).unwrap();
        behind.join().unwrap().unwrap();
    });
    assert_eq!(node.values().fields.size, 9300);
    volume.check_file(ino).unwrap();
    volume.close().unwrap();
}
