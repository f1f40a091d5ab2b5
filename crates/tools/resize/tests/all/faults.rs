//! A shrink of a damaged file system, and on a device that fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use extant_device::{Device, FileDevice};
use extant_ondisk::Geometry;
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::superblock::{self, Superblock};
use extant_resize::{Fixed, ImageFile, ResizeFault, ResizeObserver, ResizeOptions, Size, preview, resize};
use extant_simdisk::{Faulty, Image, Op, Rule, SimDisk};
use extant_testkit::{command, run};
use extant_volume::{Follow, OpenFault, OpenOptions, Volume};

use crate::cuts::{e2fsck, findings, recovered};
use crate::grow::grow as resize_to;
use crate::shrink::image;
use crate::tree::tree_of;

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
const EXT3: &[&str] = &["-t", "ext3", "-b", "1024", "-J", "size=1"];

fn shrink(device: &Arc<dyn Device>, size: Size) -> Result<u64, ResizeFault> {
    let mut storage = Fixed(Arc::clone(device));
    let done = resize(&mut storage, size, &ResizeOptions::default(), &(), &AtomicBool::new(false))?;
    Ok(done.after.blocks)
}

fn image_of(dir: &Path, mke2fs: &[&str]) -> Image {
    let path = image(dir, mke2fs, "40M");
    Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()
}

/// One write fails. The file system is then as after a cut: nothing is lost, and if there is anything left to
/// do, the superblock says so.
#[test]
fn a_write_that_fails_loses_nothing() {
    let dir = extant_testkit::scratch();
    for mke2fs in [EXT4, &["-t", "ext2", "-b", "1024"]] {
        let image = image_of(dir.path(), mke2fs);
        let first: Arc<dyn Device> = Arc::new(SimDisk::from_image(image.clone()));
        let tree = tree_of(Arc::clone(&first)).unwrap();
        let counted = Arc::new(Faulty::new(SimDisk::from_image(image.clone())));
        let device: Arc<dyn Device> = Arc::<Faulty<SimDisk>>::clone(&counted);
        let least = shrink(&device, Size::Min).unwrap();
        let writes = counted.counts().writes;
        let step = (writes / 45).max(1);
        let mut marked = 0;
        for nth in (1..=writes).step_by(step as usize) {
            let name = format!("{mke2fs:?}: write {nth} of {writes}");
            let faulty = Arc::new(Faulty::new(SimDisk::from_image(image.clone())));
            let rule = faulty.arm(Rule::fail(Op::Write, extant_simdisk::EIO).nth(nth));
            let device: Arc<dyn Device> = Arc::<Faulty<SimDisk>>::clone(&faulty);
            let fault = shrink(&device, Size::Min).expect_err(&name);
            assert_eq!(faulty.hits(rule), 1, "{name}");
            assert!(!matches!(fault, ResizeFault::Damaged(_)), "{name}: {fault}");
            let disk = SimDisk::from_image(faulty.inner().image());
            let device = match recovered(disk) {
                Ok(device) => device,
                Err(why) => panic!("{name}: {why}"),
            };
            let mut bytes = [0; superblock::SIZE];
            device.read_at(superblock::OFFSET, &mut bytes).unwrap();
            let state = Superblock::decode(&bytes).unwrap().state;
            let is_clean = state & superblock::STATE_CLEAN != 0;
            if mke2fs == EXT4 || is_clean {
                let found = findings(&*device);
                // The backups are written last; recovery records that a write has failed.
                let known = ["GD012", "SB017", "SB018"];
                let found: Vec<_> =
                    found.iter().filter(|text| !known.iter().any(|code| text.starts_with(code))).collect();
                assert!(found.is_empty(), "{name}: {fault}: {found:#?}");
            } else {
                marked += 1;
                let path = dir.path().join("failed");
                let (code, out) = e2fsck(&*device, &path, "-fy");
                assert!(code <= 1, "{name}: {code} {out}");
                let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, false).unwrap());
                assert_eq!(tree_of(device).unwrap(), tree, "{name}");
                continue;
            }
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
            if nth % 7 == 0 && state & superblock::STATE_ERRORS == 0 {
                assert!(shrink(&device, Size::Min).unwrap() <= least + least / 8, "{name}: again");
            }
        }
        eprintln!("{mke2fs:?}: {writes} writes, {marked} times a check was due");
    }
}

/// Counts what an observer is notified of.
#[derive(Default)]
struct Moves(AtomicU64, AtomicU64);

impl ResizeObserver for Moves {
    fn moved(&self, blocks: u64, inodes: u64) {
        self.0.fetch_add(blocks, Ordering::Relaxed);
        self.1.fetch_add(inodes, Ordering::Relaxed);
    }
}

/// A resize that fails has no report. What its switches have moved is not lost with it.
#[test]
fn a_failed_shrink_says_what_it_has_moved() {
    let dir = extant_testkit::scratch();
    let image = image_of(dir.path(), EXT4);
    let run = |rule: Option<Rule>| {
        let faulty = Arc::new(Faulty::new(SimDisk::from_image(image.clone())));
        let moves = Moves::default();
        if let Some(rule) = rule {
            faulty.arm(rule);
        }
        let device: Arc<dyn Device> = Arc::<Faulty<SimDisk>>::clone(&faulty);
        let mut storage = Fixed(device);
        let options = ResizeOptions::default();
        let done = resize(&mut storage, Size::Min, &options, &moves, &AtomicBool::new(false));
        (done, (moves.0.into_inner(), moves.1.into_inner()), faulty.counts().writes)
    };
    let (done, all, writes) = run(None);
    let report = done.unwrap();
    assert_eq!((report.moved, report.moved_inodes), all);
    let mut last = 0;
    for nth in (1..writes).step_by((writes / 12).max(1) as usize) {
        let (done, moved, _) = run(Some(Rule::fail(Op::Write, extant_simdisk::EIO).nth(nth)));
        done.expect_err("a write failed");
        assert!(last <= moved.0 && moved.0 <= all.0, "{last} {moved:?} {all:?}");
        last = moved.0;
    }
    assert!(last > 0);
}

/// The parts of an image that these tests damage.
struct Parts {
    file: FileDevice,
    sb: Superblock,
    geometry: Geometry,
}

impl Parts {
    fn of(path: &Path) -> Self {
        let file = FileDevice::open(path, true).unwrap();
        let mut bytes = [0; superblock::SIZE];
        file.read_at(superblock::OFFSET, &mut bytes).unwrap();
        let sb = Superblock::decode(&bytes).unwrap();
        let geometry = Geometry::new(&sb).unwrap();
        Self { file, sb, geometry }
    }

    fn last(&self) -> u32 {
        self.geometry.groups - 1
    }

    fn desc_at(&self, group: u32) -> u64 {
        let (block, at) = self.geometry.descriptor_place(extant_base::Group(group));
        (block.0 << self.geometry.block_size.log2()) + at as u64
    }

    fn desc(&self, group: u32) -> GroupDesc {
        let mut bytes = vec![0; self.geometry.desc_size];
        self.file.read_at(self.desc_at(group), &mut bytes).unwrap();
        GroupDesc::decode(&bytes).unwrap()
    }

    fn change_desc(&self, group: u32, with: impl FnOnce(&mut GroupDesc)) {
        let mut bytes = vec![0; self.geometry.desc_size];
        self.file.read_at(self.desc_at(group), &mut bytes).unwrap();
        let mut desc = GroupDesc::decode(&bytes).unwrap();
        with(&mut desc);
        desc.encode(&mut bytes);
        ChecksumRule::of(&self.sb).seal(group, &mut bytes);
        self.file.write_at(self.desc_at(group), &bytes).unwrap();
    }

    /// Changes a bit in a bitmap's block.
    fn flip(&self, block: u64, bit: u32) {
        let at = (block << self.geometry.block_size.log2()) + u64::from(bit / 8);
        let mut byte = [0];
        self.file.read_at(at, &mut byte).unwrap();
        byte[0] ^= 1 << (bit % 8);
        self.file.write_at(at, &byte).unwrap();
    }
}

/// A size without the last group, and without moves.
const LESS: Size = Size::Bytes(30 << 20);

/// A shrink refuses the image, and has not changed a block of a file.
fn is_refused(name: &str, path: &Path, sizes: &[Size]) {
    for size in sizes.iter().copied() {
        let length = std::fs::metadata(path).unwrap().len();
        let before = tree_of(Arc::new(FileDevice::open(path, false).unwrap())).unwrap();
        match resize_to(path, size) {
            Err(ResizeFault::Damaged(_)) => {}
            other => panic!("{name}: {size:?}: {other:?}"),
        }
        assert_eq!(std::fs::metadata(path).unwrap().len(), length, "{name}");
        let after = tree_of(Arc::new(FileDevice::open(path, false).unwrap())).unwrap();
        assert_eq!(before, after, "{name}");
    }
}

#[test]
fn a_damaged_inode_bitmap_is_refused() {
    let dir = extant_testkit::scratch();
    for mke2fs in [EXT4, EXT3] {
        // An inode in use that the bitmap has as free: its blocks would not move.
        let path = image(dir.path(), mke2fs, "40M");
        let parts = Parts::of(&path);
        let bitmap = parts.desc(0).inode_bitmap;
        parts.flip(bitmap, 60);
        is_refused(&format!("{mke2fs:?}: an inode in use"), &path, &[Size::Min, LESS]);
    }
    // An inode in use in a group that goes, of which the descriptor does not know.
    let path = image(dir.path(), EXT3, "40M");
    let parts = Parts::of(&path);
    let last = parts.desc(parts.last());
    assert_eq!(last.free_inodes, parts.geometry.inodes_per_group);
    parts.flip(last.inode_bitmap, 5);
    is_refused("the last group", &path, &[Size::Min, LESS]);
}

#[test]
fn a_damaged_block_bitmap_is_refused() {
    let dir = extant_testkit::scratch();
    // The inode table of group 0 is free, and a copy would overwrite it. The count of the group is right.
    let path = image(dir.path(), EXT3, "40M");
    let parts = Parts::of(&path);
    let desc = parts.desc(0);
    parts.flip(desc.block_bitmap, (desc.inode_table + 2 - 1) as u32);
    parts.change_desc(0, |desc| desc.free_clusters += 1);
    is_refused("metadata is free", &path, &[Size::Min]);
    // A bit is wrong, and the count is not.
    let path = image(dir.path(), EXT3, "40M");
    let parts = Parts::of(&path);
    parts.flip(parts.desc(1).block_bitmap, 4000);
    is_refused("the count", &path, &[Size::Min]);
    // Blocks of a group that goes are in use, and no file has them.
    let path = image(dir.path(), EXT3, "40M");
    let parts = Parts::of(&path);
    let last = parts.last();
    parts.flip(parts.desc(last).block_bitmap, 4000);
    parts.change_desc(last, |desc| {
        desc.free_clusters = desc.free_clusters.wrapping_sub(1);
    });
    is_refused("no file has it", &path, &[Size::Min, LESS]);
}

#[test]
fn a_descriptor_with_impossible_numbers_is_refused() {
    let dir = extant_testkit::scratch();
    type Change = fn(&mut GroupDesc);
    let changes: [(&str, Change); 6] = [
        ("block 0", |desc| desc.block_bitmap = 0),
        ("another group", |desc| desc.inode_bitmap = 3),
        ("after the end", |desc| desc.inode_table = 1 << 30),
        ("in the head", |desc| desc.block_bitmap = 1),
        ("free blocks", |desc| desc.free_clusters = 60_000),
        ("free inodes", |desc| desc.free_inodes = 60_000),
    ];
    for (name, change) in changes {
        let path = image(dir.path(), EXT3, "40M");
        let parts = Parts::of(&path);
        parts.change_desc(parts.last(), change);
        drop(parts);
        match resize_to(&path, Size::Bytes(20 << 20)) {
            Err(ResizeFault::Damaged(_) | ResizeFault::Open(OpenFault::Damaged(_))) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Without checksums of descriptors, their flags have no meaning.
#[test]
fn flags_without_checksums_are_not_obeyed() {
    let dir = extant_testkit::scratch();
    let path = image(dir.path(), EXT3, "40M");
    let tree = tree_of(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap();
    let parts = Parts::of(&path);
    for group in 0..parts.geometry.groups {
        parts.change_desc(group, |desc| {
            desc.flags = BLOCK_UNINIT | INODE_UNINIT;
            desc.itable_unused = 10_000;
        });
    }
    drop(parts);
    resize_to(&path, Size::Min).unwrap();
    assert_eq!(tree_of(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap(), tree);
    let out = command("e2fsck").arg("-fn").arg(&path).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn a_file_system_that_is_not_clean_is_refused() {
    let dir = extant_testkit::scratch();
    let path = image(dir.path(), EXT4, "40M");
    run("debugfs", ["-w", "-R", "ssv state 0", path.to_str().unwrap()]);
    for size in [Size::Min, Size::Bytes(50 << 20)] {
        assert!(matches!(resize_to(&path, size), Err(ResizeFault::NotClean(_))));
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, false).unwrap());
        assert!(matches!(preview(&device, size, false), Err(ResizeFault::NotClean(_))));
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 40 << 20);
}

#[test]
fn a_preview_says_what_a_resize_would() {
    let dir = extant_testkit::scratch();
    let path = image(dir.path(), EXT4, "40M");
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, false).unwrap());
    assert!(preview(&device, Size::Bytes(50 << 20), false).is_ok());
    let fault = preview(&device, Size::Bytes(50 << 20), true);
    assert!(matches!(fault, Err(ResizeFault::DeviceTooSmall { .. })), "{fault:?}");
    let none: Arc<dyn Device> = Arc::new(SimDisk::new(8 << 20));
    let fault = preview(&none, Size::Max, false);
    assert!(matches!(fault, Err(ResizeFault::Open(OpenFault::NotExt4(_)))), "{fault:?}");
}

/// Asks to stop at the third report.
struct Stop(AtomicBool, AtomicU32);

impl ResizeObserver for Stop {
    fn progress(&self, _: &'static str, _: u64, _: u64) {
        if self.1.fetch_add(1, Ordering::Relaxed) == 2 {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_shrink_stops_when_asked_and_bytes_after_the_file_system_stay() {
    let dir = extant_testkit::scratch();
    let path = image(dir.path(), EXT4, "40M");
    let tree = tree_of(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap();
    let file = Arc::new(FileDevice::open_locked(&path).unwrap());
    // Less than a block of something else.
    file.set_len((40 << 20) + 100).unwrap();
    let mut storage = ImageFile::new(Arc::clone(&file), 0);
    let stop = Stop(AtomicBool::new(false), AtomicU32::new(0));
    let fault = resize(&mut storage, Size::Min, &ResizeOptions::default(), &stop, &stop.0);
    assert!(matches!(fault, Err(ResizeFault::Interrupted)), "{fault:?}");
    assert!(findings(&*file).is_empty());
    let done = resize(&mut storage, Size::Min, &ResizeOptions::default(), &(), &AtomicBool::new(false));
    assert!(done.unwrap().after.bytes() < 40 << 20);
    drop(storage);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (40 << 20) + 100);
    drop(file);
    assert_eq!(tree_of(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap(), tree);
}

/// Free space of single blocks, so that files get more extents than their inodes hold. A cut at any event
/// loses none of them.
#[test]
fn without_a_journal_extent_trees_stay_whole() {
    let dir = extant_testkit::scratch();
    let source = dir.path().join("pieces");
    std::fs::create_dir_all(source.join("a")).unwrap();
    for i in 0..400u32 {
        std::fs::write(source.join(format!("a/{i:03}")), vec![i as u8; 1000]).unwrap();
    }
    std::fs::create_dir_all(source.join("b")).unwrap();
    for i in 0..6u32 {
        let bytes: Vec<u8> = (0..20_000).map(|at| (at / 50 + i) as u8).collect();
        std::fs::write(source.join(format!("b/{i}")), bytes).unwrap();
    }
    let path = dir.path().join("pieces.img");
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "1000", "-d"];
    run("mke2fs", args.into_iter().chain([source.to_str().unwrap(), path.to_str().unwrap(), "10M"]));
    let volume = Volume::open(Arc::new(FileDevice::open(&path, true).unwrap()), &OpenOptions::default());
    let volume = volume.unwrap();
    let a = volume.names().resolve(b"/a", Follow::Links).unwrap();
    for i in (0..400).step_by(2) {
        volume.names().unlink(a.ino(), format!("{i:03}").as_bytes()).unwrap();
    }
    volume.close().unwrap();
    let image = Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap();
    let disk = Arc::new(SimDisk::recording(image));
    let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
    let tree = tree_of(Arc::clone(&device)).unwrap();
    shrink(&device, Size::Min).unwrap();
    let recording = disk.recorded().unwrap();
    for at in recording.start()..=recording.end() {
        let cut = dir.path().join("cut");
        let (code, out) = e2fsck(&recording.cut(at, at), &cut, "-fy");
        assert!(code <= 1, "{at}: {code} {out}");
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&cut, true).unwrap());
        assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{at}: {out}");
        assert!(findings(&*device).is_empty(), "{at}: {:#?} {out}", findings(&*device));
    }
    eprintln!("{} events", recording.end());
}

/// Maps of damaged files are refused: a tree whose node has a wrong checksum, and an indirect block that
/// leads to itself.
#[test]
fn a_damaged_map_is_refused() {
    let dir = extant_testkit::scratch();
    let map_of = |path: &Path, file: &str| -> u64 {
        let out = command("debugfs").args(["-R", &format!("stat {file}")]).arg(path).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let (_, after) = text.split_once("(ETB0):").or_else(|| text.split_once("(IND):")).unwrap();
        after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    // Blocks that are apart give the sparse file more extents than its inode holds.
    let path = image(dir.path(), EXT4, "40M");
    let block = map_of(&path, "/kept/sparse");
    let parts = Parts::of(&path);
    parts.flip(block, 8 * 1000);
    drop(parts);
    assert!(matches!(resize_to(&path, Size::Min), Err(ResizeFault::Damaged(_))));

    let path = image(dir.path(), EXT3, "40M");
    let block = map_of(&path, "/kept/large");
    let parts = Parts::of(&path);
    // The inode's double indirect block, too, is now this one, whose numbers lead to itself.
    let number = u32::try_from(block).unwrap().to_le_bytes();
    parts.file.write_at(block * 1024, &number.repeat(256)).unwrap();
    drop(parts);
    run("debugfs", ["-w", "-R", &format!("sif /kept/large block[DIND] {block}"), path.to_str().unwrap()]);
    assert!(matches!(resize_to(&path, Size::Min), Err(ResizeFault::Damaged(_))));

    // A resize inode without its block of reserved blocks, or with another one.
    for block in [0, 5000] {
        let path = image(dir.path(), EXT3, "40M");
        run("debugfs", ["-w", "-R", &format!("sif <7> block[DIND] {block}"), path.to_str().unwrap()]);
        let fault = resize_to(&path, Size::Bytes(20 << 20));
        assert!(matches!(fault, Err(ResizeFault::Damaged(_))), "{block}: {fault:?}");
    }
}
