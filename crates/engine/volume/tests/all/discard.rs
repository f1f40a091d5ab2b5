//! Freed blocks are discarded when they can no longer come back, and not before.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::{Device, FileDevice, Window};
use extant_volume::{Fault, New, OpenOptions, Volume, WriteOptions};

const MIB: usize = 1 << 20;

fn open(device: Arc<dyn Device>, discard: bool) -> Volume {
    let write = WriteOptions { no_committer: true, discard, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn image(path: &Path, options: &[&str]) -> Arc<FileDevice> {
    let always = ["-q", "-F", "-t", "ext4", "-J", "size=4", "-E", "lazy_itable_init=0"];
    let name = path.to_str().unwrap();
    extant_testkit::run("mke2fs", always.iter().chain(options).copied().chain([name, "64M"]));
    Arc::new(FileDevice::open(path, true).unwrap())
}

/// Bytes that the host stores for the image.
fn kept(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

fn file(volume: &Volume, name: &[u8], byte: u8, len: usize) -> Ino {
    let ino = volume.names().create(Ino::ROOT, name, &New::file(0o644)).unwrap().ino();
    assert_eq!(volume.files().write_at(ino, 0, &vec![byte; len]).unwrap(), len);
    ino
}

fn clean(path: &Path) {
    extant_testkit::run("e2fsck", ["-fn", path.to_str().unwrap()]);
}

#[test]
fn freed_blocks_are_discarded_with_their_commit() {
    for options in
        [&["-b", "4096"][..], &["-b", "1024"], &["-O", "bigalloc", "-C", "65536"], &["-O", "^has_journal"]]
    {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let device = image(&path, options);
        let volume = open(device, true);
        let stays = file(&volume, b"stays", 7, 3 * MIB + 100);
        file(&volume, b"goes", 8, 8 * MIB);
        volume.sync().unwrap();
        let with_both = kept(&path);
        volume.names().unlink(Ino::ROOT, b"goes").unwrap();
        assert_eq!(volume.counters().discard_stats().unwrap().ranges, 0, "{options:?}");
        volume.sync().unwrap();
        assert!(
            volume.counters().discard_stats().unwrap().bytes >= 8 << 20,
            "{:?}",
            volume.counters().discard_stats()
        );
        assert!(kept(&path) <= with_both - (15 << 19), "{options:?}: {} of {with_both}", kept(&path));
        let inode = volume.inode(stays).unwrap();
        let mut bytes = vec![0; 3 * MIB + 100];
        assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
        assert!(bytes.iter().all(|byte| *byte == 7));
        volume.close().unwrap();
        clean(&path);
    }
}

#[test]
fn without_the_option_nothing_is_discarded() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let volume = open(image(&path, &[]), false);
    file(&volume, b"goes", 8, 8 * MIB);
    volume.sync().unwrap();
    volume.names().unlink(Ino::ROOT, b"goes").unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.counters().discard_stats(), Some(extant_volume::DiscardStats::default()));
}

#[test]
fn all_that_is_free_is_trimmed() {
    for options in [&["-b", "4096"][..], &["-b", "1024"], &["-O", "bigalloc", "-C", "65536"]] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let device = image(&path, options);
        let volume = open(device, false);
        file(&volume, b"stays", 7, 3 * MIB + 100);
        file(&volume, b"goes", 8, 8 * MIB);
        volume.sync().unwrap();
        let with_both = kept(&path);
        // Not committed yet: trim commits first.
        volume.names().unlink(Ino::ROOT, b"goes").unwrap();
        let free = volume.statfs().unwrap();
        let trimmed = volume.admin().trim(0).unwrap().unwrap();
        assert_eq!(trimmed, free.blocks_free * u64::from(free.block_size), "{options:?}");
        assert!(kept(&path) <= with_both - (15 << 19), "{options:?}: {} of {with_both}", kept(&path));
        // No run is that long.
        assert_eq!(volume.admin().trim(1 << 40).unwrap(), Some(0));
        let some = volume.admin().trim(1 << 20).unwrap().unwrap();
        assert!((1..=trimmed).contains(&some), "{some} of {trimmed}");
        volume.close().unwrap();
        clean(&path);
        let volume = Volume::open_read_only(image_again(&path), &OpenOptions::default()).unwrap();
        let root = volume.root().unwrap();
        let inode = volume.names().lookup(&root, b"stays").unwrap();
        let mut bytes = vec![0; 3 * MIB + 100];
        assert_eq!(volume.files().read(&inode, 0, &mut bytes).unwrap(), bytes.len());
        assert!(bytes.iter().all(|byte| *byte == 7));
        assert!(matches!(volume.admin().trim(0), Err(Fault::Refused(_))));
    }
}

fn image_again(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open_read_only(path).unwrap())
}

/// A device without discard.
struct Deaf(Arc<FileDevice>);

impl Device for Deaf {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), extant_device::DeviceFault> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), extant_device::DeviceFault> {
        self.0.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), extant_device::DeviceFault> {
        self.0.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), extant_device::DeviceFault> {
        self.0.flush()
    }
}

#[test]
fn a_device_without_discard_is_left_alone() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let volume = open(Arc::new(Deaf(image(&path, &[]))), true);
    file(&volume, b"goes", 8, MIB);
    volume.sync().unwrap();
    volume.names().unlink(Ino::ROOT, b"goes").unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.counters().discard_stats(), Some(extant_volume::DiscardStats::default()));
    assert_eq!(volume.admin().trim(0).unwrap(), None);
    volume.close().unwrap();
}

#[test]
fn a_window_is_discarded_where_it_lies() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("disk");
    std::fs::write(&path, vec![5; 65 * MIB]).unwrap();
    let inner = scratch.path().join("image");
    drop(image(&inner, &[]));
    let disk = FileDevice::open(&path, true).unwrap();
    disk.write_at(MIB as u64, &std::fs::read(&inner).unwrap()).unwrap();
    let window = Window::from_offset(disk, MIB as u64).unwrap();
    let volume = open(Arc::new(window), false);
    assert!(volume.admin().trim(0).unwrap().unwrap() > 40 << 20);
    volume.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..MIB].iter().all(|byte| *byte == 5));
    std::fs::write(&inner, &bytes[MIB..]).unwrap();
    clean(&inner);
}
