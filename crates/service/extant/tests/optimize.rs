//! Optimizing: fragmented files get contiguous blocks, listed files follow each other, data and attributes
//! stay, also after a power cut at any moment.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant::optimize::{OptimizeOptions, OptimizeReport};
use extant::{Device, FileDevice, FileSystem, OpenOptions};
use extant_check::Severity;
use extant_simdisk::{Image, SimDisk};

/// Cuts are tried at most at this many moments.
const MOMENTS: u64 = 60;
const LARGE: [(&str, usize); 3] = [("/large-1", 900_000), ("/large-2", 400_000), ("/large-3", 123_456)];

fn content(path: &str, len: usize) -> Vec<u8> {
    let seed = path.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    (0..len as u32).map(|at| (at.wrapping_mul(seed) >> 7) as u8).collect()
}

/// Files in the gaps between small files, which are removed afterwards.
fn fragmented(dir: &Path) -> Image {
    let path = dir.join("image");
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "8192", path.to_str().unwrap(), "12M"],
    );
    let fs = extant::open_writable(&path).unwrap();
    let volume = Arc::clone(fs.volume());
    let mut small = Vec::new();
    for number in 0.. {
        let name = format!("small-{number}");
        fs.write(format!("/{name}"), [1; 3000]).unwrap();
        small.push(name);
        volume.sync().unwrap();
        if fs.statfs().unwrap().blocks_available < 150 {
            break;
        }
    }
    for name in small.iter().step_by(2) {
        fs.remove_file(format!("/{name}")).unwrap();
    }
    volume.sync().unwrap();
    for (path, len) in LARGE {
        fs.write(path, content(path, len)).unwrap();
        volume.sync().unwrap();
    }
    for name in small.iter().skip(1).step_by(2) {
        fs.remove_file(format!("/{name}")).unwrap();
    }
    drop(volume);
    fs.close().unwrap();
    Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()
}

fn optimized(device: &Arc<dyn Device>, options: &OptimizeOptions) -> OptimizeReport {
    let fs = FileSystem::from_device_writable(Arc::clone(device), &OpenOptions::default()).unwrap();
    let report = fs.optimize(options, &|_, _| (), &AtomicBool::new(false)).unwrap();
    fs.close().unwrap();
    report
}

fn assert_sound(device: &Arc<dyn Device>, name: &str) {
    let report = extant_check::check(&**device, &extant_check::Options::default()).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|found| found.rule.severity >= Severity::Error).collect();
    assert!(bad.is_empty(), "{name}: {bad:?}");
    let fs = FileSystem::from_device(Arc::clone(device), &OpenOptions::default()).unwrap();
    for (path, len) in LARGE {
        assert!(fs.read(path).unwrap() == content(path, len), "{name}: {path}");
    }
}

/// The first byte of each file on the device.
fn places(device: &Arc<dyn Device>) -> Vec<u64> {
    let fs = FileSystem::from_device(Arc::clone(device), &OpenOptions::default()).unwrap();
    let place = |(path, _): &(&str, usize)| {
        let inode = fs.resolve(path, extant::Follow::Links).unwrap();
        let mut first = None;
        let mut each = |extent: extant::Extent| {
            first = Some(extent.physical);
            None
        };
        fs.volume().files().extents(&inode, 0, 1, &mut each).unwrap();
        first.unwrap()
    };
    LARGE.iter().map(place).collect()
}

#[test]
fn fragmented_files_become_contiguous_and_listed_ones_follow_each_other() {
    let dir = extant_testkit::scratch();
    let image = fragmented(dir.path());
    let disk = Arc::new(SimDisk::recording(image));
    let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
    let before = optimized(&device, &OptimizeOptions { dry_run: true, ..OptimizeOptions::default() });
    assert!(before.fragments_before > 50 && before.fragmented >= 2, "{before:?}");
    let report = optimized(&device, &OptimizeOptions::default());
    assert_eq!(
        (report.moved, report.fragments_before),
        (before.fragmented, before.fragments_before),
        "{report:?}"
    );
    assert!(report.fragments_after < 10, "{report:?}");
    assert_sound(&device, "whole");
    let again = optimized(&device, &OptimizeOptions::default());
    assert_eq!(again.fragments_before, report.fragments_after);

    let recording = disk.recorded().unwrap();
    let step = (recording.end() / MOMENTS).max(1);
    for at in (recording.start()..=recording.end()).step_by(step as usize) {
        let name = format!("cut at {at} of {}", recording.end());
        let device: Arc<dyn Device> = Arc::new(recording.cut(at, at));
        let fs = FileSystem::from_device_writable(Arc::clone(&device), &OpenOptions::default()).unwrap();
        fs.close().unwrap();
        assert_sound(&device, &name);
    }

    let order = ["/large-3", "/large-1", "/large-2"].map(|path| path.as_bytes().to_vec()).to_vec();
    let listed = optimized(&device, &OptimizeOptions { order: order.clone(), ..OptimizeOptions::default() });
    assert_eq!(listed.moved, 3, "{listed:?}");
    assert_sound(&device, "listed");

    // With enough contiguous space, the files of a list follow each other.
    let path = dir.path().join("large");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096", path.to_str().unwrap(), "64M"]);
    let fs = extant::open_writable(&path).unwrap();
    for (path, len) in LARGE {
        fs.write(path, content(path, len)).unwrap();
        fs.sync().unwrap();
    }
    fs.close().unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, true).unwrap());
    let listed = optimized(&device, &OptimizeOptions { order, ..OptimizeOptions::default() });
    assert_eq!(listed.moved, 3, "{listed:?}");
    assert_sound(&device, "in order");
    let places = places(&device);
    assert!(places[2] < places[0] && places[0] < places[1], "{places:?}");
}
