//! What happens between two steps of writing back.

use device::MemDevice;
use page_cache::Take;

use super::*;
use crate::{New, OpenOptions, WriteOptions};

/// A run gives blocks to all of a delayed extent; what is known of that may be forgotten, memory is short, before another run of the same
/// extent asks: its blocks are no hole.
#[test]
fn what_another_run_gave_blocks_to_is_found_though_it_is_forgotten() {
    let scratch = testkit::scratch();
    let path = scratch.path().join("image");
    testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", path.to_str().unwrap(), "16M"]);
    let device = Arc::new(MemDevice::new(16 << 20));
    device::Device::write_at(&*device, 0, &std::fs::read(&path).unwrap()).unwrap();
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    let volume = Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap();
    let ino = volume.create(base::Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.write_at(ino, 0, &[7; 200 << 10]).unwrap();
    let writer = volume.writer.as_ref().unwrap();
    let node = writer.live().get(ino).unwrap();
    let data = node.data().unwrap();
    let take = |range: Range<u64>| match data.pages.take_run(range, u64::MAX, u64::MAX) {
        Take::Run(run) => run,
        Take::Busy | Take::Clean => panic!("all of it is dirty"),
    };
    let (first, second) = (take(0..100 << 10), take(100 << 10..200 << 10));
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
