//! Small images that demand much memory or time: the findings when a limit is reached.

mod lab;

use std::num::NonZero;

use extant_check::{Options, Report};
use extant_device::FileDevice;
use lab::{Image, codes};

fn check(image: &Image, threads: usize) -> Report {
    let device = FileDevice::open(&image.path, false).unwrap();
    extant_check::check(&device, &Options { threads: NonZero::new(threads), ..Options::default() }).unwrap()
}

fn says(report: &Report, code: &str) -> Vec<String> {
    let findings = report.findings.iter().filter(|finding| finding.rule.code == code);
    findings.map(|finding| finding.says.clone()).collect()
}

#[test]
fn a_sparse_file_of_tiny_groups_is_refused() {
    let image = Image::new(&["-O", "^metadata_csum,^has_journal,^orphan_file,^resize_inode"], &[]);
    const BLOCKS: u32 = 1 << 28;
    for (at, number) in [(0x00, BLOCKS), (0x04, BLOCKS), (0x20, 8), (0x24, 8), (0x28, 8)] {
        image.poke(1024 + at, &number.to_le_bytes());
    }
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    file.set_len(u64::from(BLOCKS) * lab::BS).unwrap();
    let report = check(&image, 2);
    assert!(!report.opened);
    let says = says(&report, "SB003");
    assert!(says.len() == 1 && says[0].contains("groups can be checked"), "{says:?}");
}

/// The smallest groups that mke2fs makes.
#[test]
fn many_small_groups_are_checked() {
    let image =
        Image::new(&["-g", "256", "-N", "1024", "-O", "^resize_inode,^has_journal,^orphan_file"], &[]);
    assert!(check(&image, 2).opened);
}

#[test]
fn thousands_of_claims_of_the_same_blocks_end() {
    let image = Image::new(&["-O", "^metadata_csum,^has_journal,^orphan_file"], &[]);
    let dir = extant_testkit::scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 8 << 20]).unwrap();
    let mut commands = vec![format!("write {} a", file.display())];
    commands.extend((100..200).map(|ino| format!("copy_inode a <{ino}>")));
    image.write(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let reports = [1, 2].map(|threads| check(&image, threads).findings);
    assert_eq!(reports[0], reports[1]);
    let codes = codes(&reports[0]);
    assert!(codes.contains(&"EX011") && codes.contains(&"EX015"), "{codes:?}");
}

#[test]
fn a_value_with_a_hole_is_reported() {
    let dir = extant_testkit::scratch();
    let value = dir.path().join("value");
    std::fs::write(&value, vec![b'v'; 1024]).unwrap();
    let image = Image::new(
        &["-O", "ea_inode,^extent,^64bit,^metadata_csum,^has_journal,^orphan_file"],
        &["mkdir d", &format!("ea_set -f {} d user.v", value.display())],
    );
    // debugfs does not count the value's blocks in i_blocks.
    let _ = extant_testkit::command("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    image.assert_clean();
    image.write(&["sif <13> block[0] 0"]);
    assert_ne!(image.e2fsck().0, 0);
    let report = check(&image, 2);
    let says = says(&report, "XA007");
    assert!(
        says.iter().any(|says| says.contains("block 0 of its value is not mapped")),
        "{:?}",
        report.findings
    );
}
