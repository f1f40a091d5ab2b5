//! Valid file systems of every kind, made by real tools and the real kernel: no findings.

use std::path::Path;

use extant_check::{Options, Report, Severity};
use extant_device::FileDevice;
use extant_testkit::matrix;

fn check(image: &Path) -> Report {
    let device =
        FileDevice::open(image, false).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    extant_check::check(&device, &Options::default())
        .unwrap_or_else(|fault| panic!("{}: {fault}", image.display()))
}

/// The findings as text, a line each.
fn text(report: &Report, least: Severity) -> String {
    // JO017: resize2fs, tune2fs and e2fsck move or grow the journal without updating the superblock's copy of
    // its map.
    let findings =
        report.findings.iter().filter(|found| found.rule.severity >= least && found.rule.code != "JO017");
    findings.map(|f| format!("  {} {:?} {}\n", f.rule.code, f.place, f.says)).collect()
}

/// Every image of the matrix. Images that a crash left are checked in the state after their journal's replay;
/// orphans, which the kernel processes at mount, are not damage.
#[test]
fn images_of_mke2fs_and_the_kernel_have_no_findings() {
    let dir = extant_testkit::scratch();
    let mut bad = String::new();
    let mut checked = 0;
    for recipe in matrix::recipes() {
        if recipe.needs() == matrix::Needs::Root && !extant_testkit::is_root() {
            println!("skipped: not root: {}", recipe.name);
            continue;
        }
        let outcome = matrix::build_all(std::slice::from_ref(&recipe), dir.path(), 1).remove(0);
        let built = match outcome.built {
            Ok(built) => built,
            Err(says) => {
                println!("skipped: this kernel does not make {}: {says}", recipe.name);
                continue;
            }
        };
        let report = check(&built.image);
        checked += 1;
        // Only an unmount updates the counts in the superblock.
        let least = if recipe.is_dirty() { Severity::Error } else { Severity::Note };
        let findings = text(&report, least);
        if !findings.is_empty() {
            bad += &format!("{}:\n{findings}", recipe.name);
        }
        built.delete();
    }
    assert!(bad.is_empty(), "{bad}");
    eprintln!("{checked} images");
    // Most recipes mount their image, or read files that only root can read.
    let expected = if extant_testkit::is_root() { 10 } else { 2 };
    assert!(checked >= expected, "only {checked} images could be made");
}

#[test]
fn any_number_of_threads_reports_the_same() {
    let dir = extant_testkit::scratch();
    let image = dir.path().join("t.img");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", image.to_str().unwrap(), "64M"]);
    // Damage in every group: bitmaps and the inode table of the first.
    let mut bytes = std::fs::read(&image).unwrap();
    for at in (200 << 10..600 << 10).step_by(1000) {
        bytes[at] ^= 0x55;
    }
    std::fs::write(&image, bytes).unwrap();
    let device = FileDevice::open(&image, false).unwrap();
    let with = |threads| {
        let options = Options { threads: std::num::NonZero::new(threads), ..Options::default() };
        extant_check::check(&device, &options).unwrap().findings
    };
    let one = with(1);
    assert!(!one.is_empty());
    assert_eq!(one, with(7));
}

/// Cancelled before the first pass, and by another thread in the middle.
#[test]
fn a_cancelled_check_gives_no_report() {
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Cancel<'a>(&'a AtomicBool);

    impl extant_check::Progress for Cancel<'_> {
        fn step(&self, _: &'static str, _: u64, _: u64) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let dir = extant_testkit::scratch();
    let image = dir.path().join("c.img");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "64M"]);
    let device = FileDevice::open(&image, false).unwrap();
    for before in [true, false] {
        let cancel = AtomicBool::new(before);
        let progress = Cancel(&cancel);
        let options = Options { cancel: Some(&cancel), progress: Some(&progress), ..Options::default() };
        let checked = extant_check::check(&device, &options);
        assert!(matches!(checked, Err(extant_check::CheckFault::Cancelled)), "{before}: {checked:?}");
    }
}
