//! What is known of files' blocks: looked at, learnt, forgotten.

use std::sync::Arc;

use base::{Ino, Lblk};
use device::{Device, MemDevice};
use volume::{Allocate, ExtentStatus, Fault, New, OpenOptions, Volume, WriteOptions};

fn made() -> Volume {
    let scratch = testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", name, "32M"]);
    let device = MemDevice::new(32 << 20);
    device.write_at(0, &std::fs::read(&path).unwrap()).unwrap();
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    Volume::open(Arc::new(device), &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

#[test]
fn a_map_is_learnt_and_forgotten() {
    let volume = made();
    let ino = volume.create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.write_at(ino, 0, &[7; 100 << 10]).unwrap();
    let delayed = volume.known_extents(ino).unwrap();
    assert!(delayed.iter().any(|entry| entry.status == ExtentStatus::Delayed), "{delayed:?}");
    // Nobody can read again what is only promised.
    volume.forget_extents(ino).unwrap();
    let status =
        |ino| volume.known_extents(ino).unwrap().iter().map(|entry| entry.status).collect::<Vec<_>>();
    assert_eq!(status(ino), [ExtentStatus::Delayed]);
    volume.fsync(ino).unwrap();
    for block in (10..90).step_by(4) {
        volume.fallocate(ino, Allocate::Punch, block << 10, 1 << 10).unwrap();
    }
    volume.forget_extents(ino).unwrap();
    assert!(volume.known_extents(ino).unwrap().is_empty());
    assert_eq!(volume.precache_extents(ino).unwrap(), 21);
    let known = volume.known_extents(ino).unwrap();
    // Each with the hole behind it, but the last.
    assert_eq!(known.len(), 41);
    assert_eq!((known[1].lblk, known[1].len, known[1].status), (Lblk(10), 1, ExtentStatus::Hole));
    let stats = volume.extent_stats().unwrap();
    assert!(stats.entries >= 41 && stats.bytes > 0, "{stats:?}");
    assert!(stats.es_shrinker_info().contains("objects"), "{}", stats.es_shrinker_info());
    volume.check_file(ino).unwrap();
    assert_eq!(volume.forget_extents(ino).unwrap(), 41);
}

#[test]
fn what_has_no_map_is_refused_or_empty() {
    let volume = made();
    assert!(matches!(volume.precache_extents(Ino::ROOT), Err(Fault::Refused(_))));
    let ino = volume.create(Ino::ROOT, b"empty", &New::file(0o644)).unwrap().ino();
    assert_eq!(volume.precache_extents(ino).unwrap(), 0);
    assert!(volume.known_extents(ino).unwrap().is_empty());
    assert_eq!(volume.forget_extents(ino).unwrap(), 0);
    assert!(volume.known_extents(Ino(4000)).is_err());
}
