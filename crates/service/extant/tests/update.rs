//! Power cuts in an update: the file system is sound, what does not change is there, and the same update
//! completes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant::build::{BuildOptions, SizeChoice, Source, build};
use extant::diff::{DiffOptions, Side, compare};
use extant::update::{UpdateReport, update};
use extant::{Device, FileDevice, FileSystem, OpenOptions};
use extant_check::Severity;
use extant_simdisk::{Image, SimDisk};

/// Cuts are tried at most at this many moments.
const MOMENTS: u64 = 60;

fn updated(device: &Arc<dyn Device>, tree: &Path) -> UpdateReport {
    let sources = vec![Source::Dir(tree.to_owned())];
    let (options, cancel) = (BuildOptions::default(), AtomicBool::new(false));
    update(Arc::clone(device), &options, sources, tree.parent().unwrap(), &(), &cancel).unwrap()
}

fn assert_sound(device: &dyn Device, name: &str) {
    let report = extant_check::check(device, &extant_check::Options::default()).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|found| found.rule.severity >= Severity::Error).collect();
    assert!(bad.is_empty(), "{name}: {bad:?}");
}

/// Whether the tree of the image is that of the directory.
fn assert_equal(device: &Arc<dyn Device>, tree: &Path, name: &str) {
    let fs = FileSystem::from_device(Arc::clone(device), &OpenOptions::default()).unwrap();
    let (image, cancel) = (Side::image(fs).unwrap(), AtomicBool::new(false));
    let sources = vec![Source::Dir(tree.to_owned())];
    let options = BuildOptions::default();
    let side = Side::sources(&options, sources, tree.parent().unwrap(), &cancel, &|_| {}).unwrap();
    let diff = compare(&image, &side, &DiffOptions::default(), &(), &cancel);
    assert!(diff.is_empty() && diff.problems.is_empty(), "{name}: {:?}", diff.changes);
}

#[test]
fn an_update_that_was_cut_is_completed_by_the_same_one() {
    let dir = extant_testkit::scratch();
    let tree = dir.path().join("tree");
    for part in ["kept", "changed", "gone/deep", "full"] {
        std::fs::create_dir_all(tree.join(part)).unwrap();
    }
    for number in 0..20usize {
        let bytes = vec![number as u8 + 1; number * 3000];
        for part in ["kept", "changed", "gone/deep"] {
            std::fs::write(tree.join(part).join(number.to_string()), &bytes).unwrap();
        }
    }
    std::fs::hard_link(tree.join("kept/7"), tree.join("kept/also")).unwrap();
    let path = dir.path().join("image");
    let options = BuildOptions { size: SizeChoice::Bytes(16 << 20), ..BuildOptions::default() };
    build(&options, vec![Source::Dir(tree.clone())], &path).unwrap();

    std::fs::remove_dir_all(tree.join("gone")).unwrap();
    std::fs::remove_file(tree.join("kept/also")).unwrap();
    for number in 0..20usize {
        let file = tree.join("changed").join(number.to_string());
        std::fs::write(&file, vec![0xA0 + number as u8; 60_000 - number * 2500]).unwrap();
        std::fs::write(tree.join("full").join(format!("a new file {number}")), vec![7; number * 900])
            .unwrap();
    }
    std::fs::hard_link(tree.join("changed/3"), tree.join("full/link")).unwrap();

    let disk =
        Arc::new(SimDisk::recording(Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()));
    let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
    let report = updated(&device, &tree);
    assert!(report.added > 20 && report.deleted > 20 && report.modified > 20, "{report:?}");
    assert_sound(&*device, "whole");
    assert_equal(&device, &tree, "whole");

    let recording = disk.recorded().unwrap();
    let step = (recording.end() / MOMENTS).max(1);
    for at in (recording.start()..=recording.end()).step_by(step as usize) {
        for seed in 0..2 {
            let name = format!("cut at {at} of {}, seed {seed}", recording.end());
            let device: Arc<dyn Device> = Arc::new(recording.cut(at, seed));
            let fs = FileSystem::from_device_writable(Arc::clone(&device), &OpenOptions::default()).unwrap();
            for number in 0..20usize {
                let kept = fs.read(format!("/kept/{number}")).unwrap();
                assert!(kept == vec![number as u8 + 1; number * 3000], "{name}: kept/{number}");
            }
            fs.close().unwrap();
            assert_sound(&*device, &name);
            updated(&device, &tree);
            assert_sound(&*device, &name);
            assert_equal(&device, &tree, &name);
        }
    }
}
