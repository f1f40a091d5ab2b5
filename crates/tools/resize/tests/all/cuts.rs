//! A power cut at any write: the file system is sound, nothing is lost, and another resize completes it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_check::Severity;
use extant_device::{Device, FileDevice};
use extant_ondisk::superblock::{self, Superblock};
use extant_resize::{Fixed, ResizeFault, ResizeOptions, Size, resize};
use extant_simdisk::{Image, SimDisk};
use extant_testkit::{command, run};
use extant_volume::{OpenOptions, Volume};

use crate::grow::fill;
use crate::tree::{Tree, tree_of};

struct Case {
    name: &'static str,
    mke2fs: &'static [&'static str],
    from: &'static str,
    to_mib: u64,
}

const JOURNALED: &[Case] = &[
    Case { name: "1k", mke2fs: &["-t", "ext4", "-b", "1024", "-J", "size=1"], from: "9M", to_mib: 60 },
    // The reserve for 3 more descriptor blocks is used, given back, and followed by meta block groups.
    Case {
        name: "reserve",
        mke2fs: &["-t", "ext4", "-b", "1024", "-J", "size=1", "-E", "resize=12000", "-g", "256", "-N", "200"],
        from: "6M",
        to_mib: 20,
    },
    Case {
        name: "bigalloc",
        mke2fs: &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-J", "size=1"],
        from: "9M",
        to_mib: 500,
    },
    Case {
        name: "uninit",
        mke2fs: &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit", "-J", "size=1"],
        from: "9M",
        to_mib: 60,
    },
    Case { name: "ext3", mke2fs: &["-t", "ext3", "-b", "1024", "-J", "size=1"], from: "9M", to_mib: 60 },
];

const UNJOURNALED: &[Case] = &[
    Case { name: "ext2", mke2fs: &["-t", "ext2", "-b", "1024"], from: "5M", to_mib: 40 },
    Case {
        name: "ext4",
        mke2fs: &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
        from: "5M",
        to_mib: 40,
    },
];

/// Cuts of one case are tried at most at so many moments of `end`; `EXTANT_MOMENTS` sets another number.
pub(crate) fn step(end: u64, moments: u64) -> usize {
    let given = std::env::var("EXTANT_MOMENTS").ok().and_then(|text| text.parse().ok());
    (end / given.unwrap_or(moments)).max(1) as usize
}

/// The cuts of one case: moments, and what a disk's cache keeps at each. `EXTANT_SEEDS` sets how often each
/// moment is cut, and [`step`] how many there are.
pub(crate) fn all_cuts(
    recording: &extant_simdisk::Recording,
    moments: u64,
    seeds: u64,
) -> impl Iterator<Item = (u64, u64)> {
    let given = std::env::var("EXTANT_SEEDS").ok().and_then(|text| text.parse().ok());
    let (start, end) = (recording.start(), recording.end());
    let at = (start..=end).step_by(step(end, moments));
    at.flat_map(move |at| (0..given.unwrap_or(seeds)).map(move |seed| (at, at + (seed << 32))))
}

fn image_of(case: &Case, dir: &Path) -> Image {
    let source = dir.join("source");
    if !source.exists() {
        fill(&source);
    }
    let path = dir.join("image");
    let _ = std::fs::remove_file(&path);
    let mut args: Vec<&str> = vec!["-q", "-F"];
    args.extend(case.mke2fs);
    args.extend(["-d", source.to_str().unwrap(), path.to_str().unwrap(), case.from]);
    run("mke2fs", args);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(case.to_mib << 20).unwrap();
    Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()
}

fn grow(device: &Arc<dyn Device>) -> Result<u64, ResizeFault> {
    let mut storage = Fixed(Arc::clone(device));
    let done = resize(&mut storage, Size::Max, &ResizeOptions::default(), &(), &AtomicBool::new(false))?;
    Ok(done.after.blocks)
}

pub(crate) fn findings(device: &dyn Device) -> Vec<String> {
    let report = extant_check::check(device, &extant_check::Options::default()).unwrap();
    let bad = report.findings.iter().filter(|found| found.rule.severity >= Severity::Note);
    bad.map(|found| format!("{} {:?} {}", found.rule.code, found.place, found.says)).collect()
}

pub(crate) fn recovered(disk: SimDisk) -> Result<Arc<dyn Device>, String> {
    let device: Arc<dyn Device> = Arc::new(disk);
    let volume =
        Volume::open(Arc::clone(&device), &OpenOptions::default()).map_err(|fault| fault.to_string())?;
    volume.close().map_err(|fault| fault.to_string())?;
    Ok(device)
}

pub(crate) fn e2fsck(device: &dyn Device, path: &Path, arg: &str) -> (i32, String) {
    let _ = std::fs::remove_file(path);
    let file = std::fs::File::create(path).unwrap();
    file.set_len(device.size_bytes()).unwrap();
    drop(file);
    let to = FileDevice::open(path, true).unwrap();
    Image::read_from(device).unwrap().write_to(&to).unwrap();
    let out = command("e2fsck").arg(arg).arg(path).output().unwrap();
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&out.stdout).into_owned())
}

fn blocks(device: &dyn Device) -> u64 {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap().blocks_count
}

fn recorded(case: &Case, dir: &Path) -> (extant_simdisk::Recording, Tree, u64, u64) {
    let image = image_of(case, dir);
    let disk = Arc::new(SimDisk::recording(image));
    let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
    let tree = tree_of(Arc::clone(&device)).unwrap();
    let before = blocks(&*device);
    let after = grow(&device).unwrap_or_else(|fault| panic!("{}: {fault}", case.name));
    assert!(after > before);
    (disk.recorded().unwrap(), tree, before, after)
}

#[test]
fn a_cut_leaves_the_old_size_or_the_new_one() {
    let dir = extant_testkit::scratch();
    for case in JOURNALED {
        let (recording, tree, before, after) = recorded(case, dir.path());
        let (mut cuts, mut sizes) = (0, std::collections::BTreeSet::new());
        for (at, seed) in all_cuts(&recording, 60, 2) {
            let name = format!("{} at {at} of {}, seed {seed}", case.name, recording.end());
            let device = recovered(recording.cut(at, seed)).unwrap_or_else(|why| panic!("{name}: {why}"));
            sizes.insert(blocks(&*device));
            let found = findings(&*device);
            // The backups are written after the switch.
            let found: Vec<_> = found
                .iter()
                .filter(|text| !text.starts_with("GD012") && !text.starts_with("SB017"))
                .collect();
            assert!(found.is_empty(), "{name}: {found:#?}");
            if cuts % 16 == 0 {
                let (code, out) = e2fsck(&*device, &dir.path().join("cut"), "-fn");
                assert_eq!(code, 0, "{name}: {out}");
            }
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
            if cuts % 4 == 1 {
                let end = grow(&device).unwrap_or_else(|fault| panic!("{name}: again: {fault}"));
                assert_eq!(end, after, "{name}");
                let found = findings(&*device);
                assert!(found.is_empty(), "{name}: again: {found:#?}");
            }
            cuts += 1;
        }
        assert!(sizes.contains(&before) && sizes.contains(&after), "{sizes:?}");
        eprintln!("{}: {cuts} cuts, sizes {sizes:?}", case.name);
    }
}

/// A shrink moves blocks in many switches. Each cut leaves all files, and another shrink completes it.
#[test]
fn a_cut_of_a_shrink_loses_nothing() {
    let dir = extant_testkit::scratch();
    let kinds: [&[&str]; 5] = [
        // Bitmaps and inode tables move, too.
        crate::shrink::STRIDE,
        crate::shrink::BIGALLOC,
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file", "-J", "size=2"],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "2000", "-J", "size=1"],
    ];
    for mke2fs in kinds {
        let path = crate::shrink::image(dir.path(), mke2fs, "40M");
        let image = Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap();
        let disk = Arc::new(SimDisk::recording(image));
        let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
        let tree = tree_of(Arc::clone(&device)).unwrap();
        let before = blocks(&*device);
        let shrink = |device: &Arc<dyn Device>| {
            let mut storage = Fixed(Arc::clone(device));
            resize(&mut storage, Size::Min, &ResizeOptions::default(), &(), &AtomicBool::new(false))
        };
        let done = shrink(&device).unwrap();
        assert!(done.after.blocks < before);
        let recording = disk.recorded().unwrap();
        let mut cuts = 0;
        for (at, seed) in all_cuts(&recording, 30, 1) {
            let name = format!("{mke2fs:?} at {at} of {}", recording.end());
            let device = recovered(recording.cut(at, seed)).unwrap_or_else(|why| panic!("{name}: {why}"));
            let found = findings(&*device);
            let found: Vec<_> = found
                .iter()
                .filter(|text| !text.starts_with("GD012") && !text.starts_with("SB017"))
                .collect();
            assert!(found.is_empty(), "{name}: {found:#?}");
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
            if cuts % 4 == 0 {
                let (code, out) = e2fsck(&*device, &dir.path().join("cut"), "-fn");
                assert_eq!(code, 0, "{name}: {out}");
                let end = shrink(&device).unwrap_or_else(|fault| panic!("{name}: again: {fault}"));
                // The pieces of free space are others than without the cut.
                let most = done.after.blocks + done.after.blocks / 8;
                assert!(end.after.blocks <= most, "{name}: {end:?} {done:?}");
                assert!(findings(&*device).is_empty(), "{name}: {:#?}", findings(&*device));
                assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}: again");
            }
            cuts += 1;
        }
        eprintln!("{mke2fs:?}: {cuts} cuts, {} steps, {} moved", done.steps, done.moved);
    }
}

/// Without a journal, moves lose nothing either, once e2fsck has run.
#[test]
fn a_cut_of_a_shrink_without_a_journal_needs_a_check() {
    let dir = extant_testkit::scratch();
    let kinds: [&[&str]; 2] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc,^has_journal", "-C", "8192"],
    ];
    for mke2fs in kinds {
        let path = crate::shrink::image(dir.path(), mke2fs, "40M");
        let image = Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap();
        let disk = Arc::new(SimDisk::recording(image));
        let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
        let tree = tree_of(Arc::clone(&device)).unwrap();
        let mut storage = Fixed(Arc::clone(&device));
        resize(&mut storage, Size::Min, &ResizeOptions::default(), &(), &AtomicBool::new(false)).unwrap();
        let recording = disk.recorded().unwrap();
        let step = step(recording.end(), 12);
        for at in (recording.start()..=recording.end()).step_by(step) {
            let path = dir.path().join("cut");
            let (code, out) = e2fsck(&recording.cut(at, at), &path, "-fy");
            assert!(code <= 1, "{mke2fs:?} {at}: {code} {out}");
            let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{mke2fs:?} {at}");
            assert!(findings(&*device).is_empty(), "{mke2fs:?} {at}: {:#?} {out}", findings(&*device));
        }
    }
}

/// Without a journal nothing is lost, and e2fsck makes the file system clean. Then another resize completes.
#[test]
fn without_a_journal_a_cut_needs_a_check() {
    let dir = extant_testkit::scratch();
    for case in UNJOURNALED {
        let (recording, tree, _, after) = recorded(case, dir.path());
        let step = step(recording.end(), 20);
        for at in (recording.start()..=recording.end()).step_by(step) {
            let name = format!("{} at {at}", case.name);
            let path = dir.path().join("cut");
            let (code, out) = e2fsck(&recording.cut(at, at), &path, "-fy");
            assert!(code <= 1, "{name}: {code} {out}");
            let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
            assert_eq!(grow(&device).unwrap_or_else(|fault| panic!("{name}: {fault}")), after, "{name}");
            let found = findings(&*device);
            assert!(found.is_empty(), "{name}: {found:#?} {out}");
        }
    }
}
