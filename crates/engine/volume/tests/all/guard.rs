//! Multiple-mount protection, between volumes of one machine.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{New, OpenFault, OpenOptions, Volume};

fn open(path: &Path) -> Result<Volume, OpenFault> {
    Volume::open(Arc::new(FileDevice::open(path, true).unwrap()), &OpenOptions::default())
}

fn make(path: &Path) {
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-O", "mmp", path.to_str().unwrap(), "32M"]);
}

// Each refused open takes eleven seconds: the protocol between machines does not allow less.

#[test]
fn a_second_writer_is_refused_and_a_later_one_is_let_in() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path);
    let first = open(&path).unwrap();
    first.names().create(Ino::ROOT, b"one", &New::file(0o644)).unwrap();
    let refused = open(&path).map(drop).unwrap_err();
    assert!(matches!(refused, OpenFault::InUse(_)), "{refused}");
    first.names().create(Ino::ROOT, b"two", &New::file(0o644)).unwrap();
    first.close().unwrap();
    // No other machine is active, so the next open does not wait.
    let begun = std::time::Instant::now();
    open(&path).unwrap().close().unwrap();
    assert!(begun.elapsed().as_secs() < 5);
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn the_kernels_mount_is_left_alone() {
    if extant_testkit::not_root() {
        return eprintln!("not root: nothing is mounted");
    }
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path);
    let mount = extant_testkit::LoopMount::new(&path, "noatime").unwrap();
    let refused = open(&path).map(drop).unwrap_err();
    assert!(matches!(refused, OpenFault::InUse(_)), "{refused}");
    drop(mount);
    let volume = open(&path).unwrap();
    let kernel = extant_testkit::LoopMount::new(&path, "noatime");
    assert!(kernel.is_err(), "and it leaves us alone");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
