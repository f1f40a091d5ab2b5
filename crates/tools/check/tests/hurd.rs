//! GNU Hurd file systems: the translator block belongs to the inode, and fields that the Hurd uses
//! differently are ignored. Compared with e2fsck.

use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_check::{Options, Severity};
use extant_device::FileDevice;

fn errors(image: &Path) -> Vec<String> {
    let device = FileDevice::open(image, false).unwrap();
    let report = extant_check::check(&device, &Options::default()).unwrap();
    let errors = report.findings.iter().filter(|found| found.rule.severity >= Severity::Error);
    errors.map(|found| format!("{} {}", found.rule.code, found.says)).collect()
}

/// A translator in the inode table, outside the file system, in the directory's own block, in a free block,
/// and none.
#[test]
fn a_translators_block_belongs_to_its_inode() {
    for translator in ["3", "99999999", "own", "9000", "0"] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let place = path.to_str().unwrap();
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext2", "-b", "1024", "-o", "hurd", place, "16M"]);
        let write = |request: &str| drop(extant_testkit::run("debugfs", ["-w", "-R", request, place]));
        write("mkdir dir");
        let own = extant_testkit::debugfs(&path, "bmap dir 0");
        let block = if translator == "own" { own.trim() } else { translator };
        write(&format!("sif dir translator {block}"));
        // The value of i_blocks is defined by the Hurd alone.
        write("sif dir blocks 6");
        let says = extant_testkit::command("e2fsck").args(["-fn", place]).output().unwrap();
        let found = errors(&path);
        assert_eq!(says.status.success(), found.is_empty(), "translator {translator}: {found:?}, {says:?}");
        assert_eq!(found.is_empty(), translator == "0", "{found:?}");
    }
}

/// The Hurd's author field is Linux's checksum, its high mode bits are half of a Linux block number.
#[test]
fn the_hurds_fields_are_no_damage() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let place = path.to_str().unwrap();
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-o", "hurd", "-O", "^64bit", place, "16M"]);
    drop(extant_testkit::run("debugfs", ["-w", "-R", "mkdir dir", place]));
    let imap = extant_testkit::debugfs(&path, "imap dir");
    let (_, rest) = imap.split_once("located at block ").unwrap();
    let (block, offset) = rest.split_once(", offset 0x").unwrap();
    let at = block.parse::<u64>().unwrap() * extant_testkit::dumpe2fs(&path).number("Block size")
        + u64::from_str_radix(offset.trim(), 16).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0x12, 0x34], at + 0x76).unwrap();
    file.write_all_at(&[0x56, 0x78, 0x9A, 0xBC], at + 0x7C).unwrap();
    extant_testkit::e2fsck_clean(&path);
    assert_eq!(errors(&path), Vec::<String>::new());
}
