//! Inodes of a list get numbers in its order: in names, in attributes, in checksums.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_base::Ino;
use extant_device::{Device, FileDevice};
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
    paths.iter().map(|path| volume.resolve(path.as_bytes(), Follow::Links).unwrap().ino()).collect()
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

/// The unused rest of an inode table is cleared as far as the new numbers go, and not at once: a small
/// journal has no room for that.
#[test]
fn a_long_list_fits_a_small_journal() {
    let dir = scratch();
    let (tree, path) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir(&tree).unwrap();
    for number in 0..5000 {
        std::fs::write(tree.join(format!("{number:04}")), "").unwrap();
    }
    let (from, to) = (tree.to_str().unwrap(), path.to_str().unwrap());
    let options =
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "65536", "-J", "size=1", "-d", from, to, "64M"];
    extant_testkit::run("mke2fs", options);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
    let volume = Volume::open_read_only(Arc::clone(&device), &OpenOptions::default()).unwrap();
    let names = (0..5000).rev().map(|number| format!("/{number:04}"));
    let list: Vec<Ino> =
        names.map(|name| volume.resolve(name.as_bytes(), Follow::Links).unwrap().ino()).collect();
    drop(volume);
    assert_eq!(order(&device, &list).unwrap(), 5000);
    check_clean("a long list", &path);
}
