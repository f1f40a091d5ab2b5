//! Inodes of a list get numbers in its order: in names, in attributes, in checksums.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;
use extant_device::{Device, DeviceFault, FileDevice};
use extant_resize::{ResizeFault, ResizeOptions, order_inodes};
use extant_simdisk::{Image, SimDisk};
use extant_testkit::{command, scratch};
use extant_volume::{Follow, OpenOptions, Volume};

use crate::cuts::{all_cuts, e2fsck, findings, recovered};
use crate::grow::check_clean;
use crate::inodes::{KINDS, Kind, image};
use crate::tree::tree_of;

/// The inodes of some files and directories, against the order in which they were made.
fn list(device: &Arc<dyn Device>) -> Vec<Ino> {
    let volume = Volume::open_read_only(Arc::clone(device), &OpenOptions::default()).unwrap();
    let mut paths = vec!["/".to_owned(), "/kept".to_owned(), "/kept/sparse".to_owned()];
    for i in (0..40).rev() {
        paths.extend((0..12).rev().map(|n| format!("/kept/{}/{i}/below/{n}", i % 4)));
        paths.extend(["/below", ""].map(|end| format!("/kept/{}/{i}{end}", i % 4)));
    }
    paths.iter().map(|path| volume.names().resolve(path.as_bytes(), Follow::Links).unwrap().ino()).collect()
}

fn order(device: &Arc<dyn Device>, list: &[Ino]) -> Result<u64, ResizeFault> {
    order_inodes(device, list, &ResizeOptions::default(), &AtomicBool::new(false))
}

/// The numbers follow each other afterwards, the tree is the same, and both checkers find nothing.
#[test]
fn inodes_of_a_list_follow_each_other() {
    let dir = scratch();
    let ext2 = Kind { name: "ext2", mke2fs: &["-t", "ext2"], tune2fs: &[] };
    for kind in KINDS.iter().chain([&ext2]) {
        let name = kind.name;
        let path = image(dir.path(), kind);
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
        let tree = tree_of(Arc::clone(&device)).unwrap();
        let before = list(&device);
        let moved = order(&device, &before).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let after = list(&device);
        // The root keeps its number; the other directories and files have hard links among them.
        let mut distinct = before.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(moved, distinct.len() as u64 - 1, "{name}");
        assert_eq!(after[0], Ino::ROOT, "{name}");
        let mut numbers: Vec<u32> = after[1..].iter().map(|ino| ino.0).collect();
        numbers.dedup();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{name}: {numbers:?}");
        assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
        check_clean(name, &path);
        let out = command("e2fsck").arg("-fn").arg(&path).output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stdout));
        assert_eq!(order(&device, &after).unwrap(), 0, "{name}: it is in order");
    }
}

#[test]
fn a_cut_while_inodes_are_ordered_loses_nothing() {
    let dir = scratch();
    for kind in KINDS.iter().filter(|kind| ["ext3", "inline"].contains(&kind.name)) {
        let path = image(dir.path(), kind);
        let disk =
            Arc::new(SimDisk::recording(Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()));
        let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
        let tree = tree_of(Arc::clone(&device)).unwrap();
        let moved = order(&device, &list(&device)).unwrap();
        assert!(moved > 500, "{moved}");
        let recording = disk.recorded().unwrap();
        for (cut, (at, seed)) in all_cuts(&recording, 20, 1).enumerate() {
            let name = format!("{} at {at} of {}", kind.name, recording.end());
            let device = recovered(recording.cut(at, seed)).unwrap_or_else(|why| panic!("{name}: {why}"));
            let mut found = findings(&*device);
            found.retain(|text| !text.starts_with("GD012") && !text.starts_with("SB017"));
            assert!(found.is_empty(), "{name}: {found:#?}");
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
            if cut % 6 == 0 {
                let (code, out) = e2fsck(&*device, &dir.path().join("cut"), "-fn");
                assert_eq!(code, 0, "{name}: {out}");
                order(&device, &list(&device)).unwrap_or_else(|fault| panic!("{name}: again: {fault}"));
                assert!(findings(&*device).is_empty(), "{name}: {:#?}", findings(&*device));
                assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}: again");
            }
        }
    }
}

/// Cancels a change when it has written so much.
struct Cancelling {
    device: Arc<dyn Device>,
    flushes_left: std::sync::atomic::AtomicI64,
    cancel: AtomicBool,
}

impl Device for Cancelling {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.device.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        if self.flushes_left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.cancel.store(true, Ordering::Relaxed);
        }
        self.device.flush()
    }
}

/// A change that stops says how many inodes have another number.
#[test]
fn an_order_that_stops_counts_what_has_changed() {
    let dir = scratch();
    let mut counts = Vec::new();
    for flushes in (5..40).step_by(10) {
        let (device, path, before) = long_list(dir.path());
        let tree = tree_of(Arc::clone(&device)).unwrap();
        let cancelling = Arc::new(Cancelling {
            device: Arc::clone(&device),
            flushes_left: flushes.into(),
            cancel: AtomicBool::new(false),
        });
        let through: Arc<dyn Device> = Arc::<Cancelling>::clone(&cancelling);
        let stopped = order_inodes(&through, &before, &ResizeOptions::default(), &cancelling.cancel);
        let counted = match stopped {
            Err(ResizeFault::InPart { moved_inodes, source }) => {
                assert!(matches!(*source, ResizeFault::Interrupted), "{source}");
                moved_inodes
            }
            Err(ResizeFault::Interrupted) => 0,
            Ok(_) => break,
            Err(other) => panic!("{flushes}: {other}"),
        };
        let mut changed: Vec<(Ino, Ino)> =
            before.iter().copied().zip(numbers(&device)).filter(|(old, new)| old != new).collect();
        changed.sort_unstable();
        assert_eq!(changed.len() as u64, counted, "{flushes}");
        assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{flushes}");
        check_clean("stopped", &path);
        counts.push(counted);
    }
    assert!(counts.iter().any(|count| *count > 0), "{counts:?}");
}

#[test]
fn inodes_of_a_file_system_that_keeps_them_stay() {
    let dir = scratch();
    let path = image(dir.path(), &KINDS[0]);
    extant_testkit::run("tune2fs", ["-O", "stable_inodes", path.to_str().unwrap()]);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
    let before = list(&device);
    let Err(ResizeFault::FixedInodes(why)) = order(&device, &before) else { panic!("not refused") };
    assert!(why.contains("stable_inodes"), "{why}");
    assert_eq!(list(&device), before);
}

/// The numbers of the files of [`long_list`].
fn numbers(device: &Arc<dyn Device>) -> Vec<Ino> {
    let volume = Volume::open_read_only(Arc::clone(device), &OpenOptions::default()).unwrap();
    let names = (0..5000).rev().map(|number| format!("/{number:04}"));
    names.map(|name| volume.names().resolve(name.as_bytes(), Follow::Links).unwrap().ino()).collect()
}

/// An image with many files and a small journal.
fn long_list(dir: &Path) -> (Arc<dyn Device>, PathBuf, Vec<Ino>) {
    let (tree, path) = (dir.join("tree"), dir.join("image"));
    if !tree.exists() {
        std::fs::create_dir(&tree).unwrap();
        (0..5000).for_each(|number| std::fs::write(tree.join(format!("{number:04}")), "").unwrap());
    }
    let _ = std::fs::remove_file(&path);
    let (from, to) = (tree.to_str().unwrap(), path.to_str().unwrap());
    let options =
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "65536", "-J", "size=1", "-d", from, to, "64M"];
    extant_testkit::run("mke2fs", options);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
    let list = numbers(&device);
    (device, path, list)
}

/// The unused rest of an inode table is cleared as far as the new numbers go, and not at once: a small
/// journal has no room for that.
#[test]
fn a_long_list_fits_a_small_journal() {
    let dir = scratch();
    let (device, path, list) = long_list(dir.path());
    assert_eq!(order(&device, &list).unwrap(), 5000);
    check_clean("a long list", &path);
}
