//! Races between two steps of writeback.

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

fn take(data: &FileData, range: Range<u64>) -> WritebackRun {
    match data.pages.take_run(range, u64::MAX, u64::MAX) {
        Take::Run(run) => run,
        Take::Busy | Take::Clean => panic!("all of it is dirty"),
    }
}

/// A run allocates blocks for all of a delayed extent. If its extent status is evicted before another run of
/// the same extent queries it, the blocks must not be taken for a hole.
#[test]
fn what_another_run_gave_blocks_to_is_found_though_it_is_forgotten() {
    let (_device, volume) = made();
    let ino = volume.names().create(extant_base::Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[7; 200 << 10]).unwrap();
    let writer = volume.writer.as_ref().unwrap();
    let node = writer.inodes().get(ino).unwrap();
    let data = node.data().unwrap();
    let (first, second) = (take(&data, 0..100 << 10), take(&data, 100 << 10..200 << 10));
    let delayed = data.entry_to_change(writer.shared(), &node, Lblk(100), u32::MAX).unwrap();
    assert_eq!(delayed.status, Status::Delayed);
    writer.flusher.write_back(&node, first).unwrap();
    data.known.clear();
    let want = NewBlockOptions { unwritten: true, promised: true };
    let entry = writer.flusher.allocate(&node, &data, &delayed, 100, want).unwrap();
    assert_eq!((entry.lblk.0, entry.len, entry.status), (100, 100, Status::Unwritten));
    writer.flusher.write_back(&node, second).unwrap();
    volume.files().check_file(ino).unwrap();
    let mut bytes = vec![0; 200 << 10];
    volume.files().read_direct(ino, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    volume.close().unwrap();
}

/// Data after the block in which a file ends on disk is written back while that block is in flight. The map
/// has the later data as written once the size may grow past it, and not before. Otherwise e2fsck would find
/// blocks past the end after a power failure.
#[test]
fn blocks_count_as_written_when_the_size_can_cover_them() {
    let (device, volume) = made();
    let ino = volume.names().create(extant_base::Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[7; 300]).unwrap();
    volume.files().fsync(ino).unwrap();
    volume.files().append(ino, &[8; 9000]).unwrap();
    let writer = volume.writer.as_ref().unwrap();
    let node = writer.inodes().get(ino).unwrap();
    let data = node.data().unwrap();
    let (end, behind) = (take(&data, 0..1024), take(&data, 1024..u64::MAX >> 1));
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| writer.flusher.write_back(&node, behind));
        std::thread::sleep(Duration::from_millis(200));
        writer.journal.commit_all().unwrap();
        assert!(!behind.is_finished());
        // The device after a power failure. Unflushed writes do not matter here.
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
        cut.files().extents(&inode, 1, u64::MAX, &mut look).unwrap();
        assert!(!is_written_behind);
        writer.flusher.write_back(&node, end).unwrap();
        behind.join().unwrap().unwrap();
    });
    assert_eq!(node.values().fields.size, 9300);
    volume.files().check_file(ino).unwrap();
    volume.close().unwrap();
}
