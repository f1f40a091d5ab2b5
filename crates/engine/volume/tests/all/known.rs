//! Cached extents of files: inspected, filled, dropped.

use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_device::{Device, MemDevice};
use extant_volume::{Allocate, ExtentStatus, Fault, New, OpenOptions, SetAttr, Volume, WriteOptions};

fn made() -> Volume {
    made_on().1
}

fn open(device: &Arc<MemDevice>) -> Volume {
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    Volume::open(device.clone(), &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn made_on() -> (Arc<MemDevice>, Volume) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", name, "32M"]);
    let device = Arc::new(MemDevice::new(32 << 20));
    device.write_at(0, &std::fs::read(&path).unwrap()).unwrap();
    let volume = open(&device);
    (device, volume)
}

#[test]
fn a_map_is_learnt_and_forgotten() {
    let volume = made();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[7; 100 << 10]).unwrap();
    let delayed = volume.files().known_extents(ino).unwrap();
    assert!(delayed.iter().any(|entry| entry.status == ExtentStatus::Delayed), "{delayed:?}");
    // Delayed extents exist only in memory, so they stay.
    volume.files().forget_extents(ino).unwrap();
    let status =
        |ino| volume.files().known_extents(ino).unwrap().iter().map(|entry| entry.status).collect::<Vec<_>>();
    assert_eq!(status(ino), [ExtentStatus::Delayed]);
    volume.files().fsync(ino).unwrap();
    for block in (10..90).step_by(4) {
        volume.files().fallocate(ino, Allocate::Punch, block << 10, 1 << 10).unwrap();
    }
    volume.files().forget_extents(ino).unwrap();
    assert!(volume.files().known_extents(ino).unwrap().is_empty());
    assert_eq!(volume.files().precache_extents(ino).unwrap(), 21);
    let known = volume.files().known_extents(ino).unwrap();
    // Each extent with the hole after it, except the last.
    assert_eq!(known.len(), 41);
    assert_eq!((known[1].lblk, known[1].len, known[1].status), (Lblk(10), 1, ExtentStatus::Hole));
    let stats = volume.counters().extent_stats().unwrap();
    assert!(stats.entries >= 41 && stats.bytes > 0, "{stats:?}");
    assert!(stats.es_shrinker_info().contains("objects"), "{}", stats.es_shrinker_info());
    volume.files().check_file(ino).unwrap();
    assert_eq!(volume.files().forget_extents(ino).unwrap(), 41);
}

/// A lookup of one block also caches its neighbours: its whole extent or hole, and everything in a leaf that
/// was read for it.
#[test]
fn one_question_teaches_what_lies_around() {
    let (device, volume) = made_on();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let many = volume.names().create(Ino::ROOT, b"many", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[7; 40 << 10]).unwrap();
    for block in 0..60 {
        volume.files().write_at(many, block << 12, &[7; 1 << 10]).unwrap();
    }
    volume.files().fsync(ino).unwrap();
    volume.files().fallocate(ino, Allocate::Punch, 10 << 10, 10 << 10).unwrap();
    let known = |volume: &Volume, ino| {
        let entries = volume.files().known_extents(ino).unwrap();
        entries.iter().map(|entry| (entry.lblk.0, entry.len, entry.status)).collect::<Vec<_>>()
    };
    let read = |volume: &Volume, ino, block: u64| {
        // A read alone caches no extents, so the file is written first.
        volume.files().write_at(ino, 500 << 10, &[7; 1 << 10]).unwrap();
        let inode = volume.inode(ino).unwrap();
        volume.files().read(&inode, block << 10, &mut [0; 1 << 10]).unwrap();
    };
    // The punched hole is cached.
    assert!(known(&volume, ino).contains(&(10, 10, ExtentStatus::Hole)), "{:?}", known(&volume, ino));
    volume.close().unwrap();
    for (block, entry) in [(25, (20, 20, ExtentStatus::Written)), (15, (10, 10, ExtentStatus::Hole))] {
        let volume = open(&device);
        read(&volume, ino, block);
        assert!(known(&volume, ino).contains(&entry), "{block}: {:?}", known(&volume, ino));
        volume.files().check_file(ino).unwrap();
    }
    let volume = open(&device);
    read(&volume, many, 100);
    let (learnt, holes): (Vec<_>, Vec<_>) =
        known(&volume, many).into_iter().partition(|entry| entry.2 == ExtentStatus::Written);
    assert_eq!(learnt.len(), 60);
    assert!(holes.len() >= 59, "{holes:?}");
    volume.files().check_file(many).unwrap();
}

/// The last page of the largest file extends beyond the largest block number.
#[test]
fn the_end_of_the_largest_file_is_punched() {
    let volume = made();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let largest = u64::from(u32::MAX) << 10;
    volume.attributes().set_attr(ino, &SetAttr { size: Some(largest - 512), ..SetAttr::default() }).unwrap();
    for (from, len) in [(largest - 980, 980), (largest - 5000, 5000), (0, largest)] {
        volume.files().fallocate(ino, Allocate::Punch, from, len).unwrap();
        volume.files().check_file(ino).unwrap();
    }
}

#[test]
fn what_has_no_map_is_refused_or_empty() {
    let volume = made();
    assert!(matches!(volume.files().precache_extents(Ino::ROOT), Err(Fault::Refused(_))));
    let ino = volume.names().create(Ino::ROOT, b"empty", &New::file(0o644)).unwrap().ino();
    assert_eq!(volume.files().precache_extents(ino).unwrap(), 0);
    assert!(volume.files().known_extents(ino).unwrap().is_empty());
    assert_eq!(volume.files().forget_extents(ino).unwrap(), 0);
    assert!(volume.files().known_extents(Ino(4000)).is_err());
}
