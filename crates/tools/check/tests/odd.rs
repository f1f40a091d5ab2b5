//! Unusual images, compared with e2fsck: blocks that files share on purpose, no root directory, short
//! symbolic links in a block, sizes beyond any map, a truncated image, and formats other than ext4.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extant_check::{Options, Report};
use extant_device::{Device, FileDevice, MemDevice};

fn image(scratch: &Path, options: &[&str]) -> PathBuf {
    let path = scratch.join("image");
    let args = ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0"];
    extant_testkit::run("mke2fs", args.iter().chain(options).copied().chain([path.to_str().unwrap(), "8M"]));
    path
}

fn edit(path: &Path, request: &str) {
    extant_testkit::run("debugfs", ["-w", "-R", request, path.to_str().unwrap()]);
}

fn check(path: &Path) -> Report {
    extant_check::check(&FileDevice::open_read_only(path).unwrap(), &Options::default()).unwrap()
}

/// Is the image clean? Requires that e2fsck and the check agree.
#[track_caller]
fn verdict(path: &Path) -> bool {
    let judged = extant_testkit::command("e2fsck").arg("-fn").arg(path).output().unwrap();
    let report = check(path);
    assert_eq!(report.clean(), judged.status.success(), "{:?}\n{judged:?}", report.findings);
    report.clean()
}

/// System images of Android 10 and later store blocks of equal content once, and set the feature
/// shared_blocks.
#[test]
fn blocks_may_be_shared_with_the_feature() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-O", "^has_journal"]);
    let content = scratch.path().join("content");
    std::fs::write(&content, vec![7; 40960]).unwrap();
    for name in ["a", "b"] {
        edit(&path, &format!("write {} {name}", content.display()));
    }
    edit(&path, "copy_inode a b");
    assert!(!verdict(&path));
    edit(&path, "feature shared_blocks");
    let _ = extant_testkit::command("e2fsck").arg("-fy").arg(&path).output().unwrap(); // frees the blocks that b had
    assert!(verdict(&path));
}

/// The value of a large attribute in an inode of its own, and the attribute is removed by half.
#[test]
fn a_value_to_which_no_attribute_refers_is_damage() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024", "-I", "128", "-O", "ea_inode,^metadata_csum"]);
    let content = scratch.path().join("content");
    std::fs::write(&content, vec![b'v'; 1000]).unwrap();
    edit(&path, &format!("write {} file", content.display()));
    edit(&path, &format!("ea_set -f {} file user.large", content.display()));
    // It counts the value's blocks for the file.
    let _ = extant_testkit::command("e2fsck").arg("-fy").arg(&path).output().unwrap();
    assert!(verdict(&path));
    edit(&path, "set_inode_field file file_acl 0");
    assert!(!verdict(&path));
    let report = check(&path);
    assert!(report.findings.iter().any(|found| found.rule.code == "XA012"), "{:?}", report.findings);
}

/// An attribute of the same inode cannot be read: nothing is known of the value.
#[test]
fn a_value_is_not_unused_while_attributes_cannot_be_read() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-I", "256", "-O", "ea_inode,^metadata_csum,^has_journal"]);
    let content = scratch.path().join("content");
    std::fs::write(&content, vec![b'v'; 8000]).unwrap();
    edit(&path, &format!("write {} file", content.display()));
    edit(&path, "ea_set file user.strange x");
    edit(&path, &format!("ea_set -f {} file user.large", content.display()));
    let _ = extant_testkit::command("e2fsck").arg("-fy").arg(&path).output().unwrap();
    assert!(verdict(&path));
    let bytes = std::fs::read(&path).unwrap();
    let name = bytes.windows(7).position(|bytes| bytes == b"strange").unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0], name as u64 + 3).unwrap();
    let report = check(&path);
    let codes: Vec<&str> = report.findings.iter().map(|found| found.rule.code).collect();
    assert!(codes.contains(&"XA011") && !codes.contains(&"XA012"), "{:?}", report.findings);
}

#[test]
fn a_missing_root_directory_is_named() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[]);
    edit(&path, "clri <2>");
    assert!(!verdict(&path));
    let report = check(&path);
    assert!(report.findings.iter().any(|found| found.rule.code == "IN016"), "{:?}", report.findings);
}

/// A target of less than 60 bytes is stored in the inode, even with the EXTENTS flag.
#[test]
fn a_short_link_in_a_block_is_damage() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024"]);
    edit(&path, &format!("symlink link {}", "y".repeat(200)));
    assert!(verdict(&path));
    let block: u64 = extant_testkit::debugfs(&path, "bmap link 0").trim().parse().unwrap();
    edit(&path, "set_inode_field link size 30");
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0; 200], block * 1024 + 30).unwrap();
    assert!(!verdict(&path));
}

/// The kernel grows a file system online past its reserved descriptors by turning resize_inode into meta_bg:
/// the first descriptor blocks stay where they are (s_first_meta_bg), and inode 7 keeps its mode, size and
/// link count.
#[test]
fn a_file_system_that_outgrew_its_descriptors_is_sound() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024", "-O", "^resize_inode"]);
    edit(&path, "ssv first_meta_bg 1");
    edit(&path, "feature meta_bg");
    for field in ["mode 0100600", "links_count 1", "size 4299210752"] {
        edit(&path, &format!("set_inode_field <7> {field}"));
    }
    assert!(verdict(&path));
    edit(&path, "set_inode_field <7> blocks 2");
    assert!(!check(&path).clean());
}

/// Strict encoding: names of casefolded directories are valid UTF-8. Without the flag they may be any bytes.
#[test]
fn strict_casefolded_names_are_valid_utf8() {
    let scratch = extant_testkit::scratch();
    for (flags, is_sound) in [("encoding_flags=strict", false), ("encoding=utf8", true)] {
        let options = ["-b", "1024", "-O", "casefold,^metadata_csum", "-E", flags];
        let path = image(scratch.path(), &options);
        edit(&path, "mkdir d");
        edit(&path, "set_inode_field d flags 0x40080000");
        edit(&path, "mkdir d/abc");
        let block: u64 = extant_testkit::debugfs(&path, "bmap d 0").trim().parse().unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, block * 1024).unwrap();
        let at = bytes.windows(3).position(|name| name == b"abc").unwrap();
        file.write_all_at(b"a\xFFc", block * 1024 + at as u64).unwrap();
        assert_eq!(verdict(&path), is_sound);
        let named = check(&path).findings.iter().any(|found| found.rule.code == "DI023");
        assert_eq!(named, !is_sound);
    }
}

/// Inline files may be as large as a block map allows: mke2fs stores a file that is one hole inline.
#[test]
fn sizes_beyond_the_map_are_damage() {
    let indirect = (12 + 256 + 256 * 256 + 256 * 256 * 256) * 1024u64;
    for (options, size, is_sound) in [
        (&["-b", "1024"][..], u64::from(u32::MAX) << 10, true),
        (&["-b", "1024"], (u64::from(u32::MAX) + 1) << 10, false),
        (&["-b", "1024", "-O", "^extent,^64bit"], indirect, true),
        (&["-b", "1024", "-O", "^extent,^64bit"], indirect + 1, false),
        (&["-b", "1024", "-O", "inline_data"], indirect, true),
        (&["-b", "1024", "-O", "inline_data"], indirect + 1, false),
        (&["-b", "1024", "-O", "inline_data"], 944_892_805_123, false),
    ] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), options);
        let hello = scratch.path().join("hello");
        std::fs::write(&hello, "hello").unwrap();
        edit(&path, &format!("write {} hello", hello.display()));
        edit(&path, &format!("set_inode_field hello size {size}"));
        assert_eq!(verdict(&path), is_sound, "{options:?} {size}");
    }
}

/// In a truncated image, everything before the end is checked.
#[test]
fn an_image_that_ends_early_is_checked_as_far_as_it_goes() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024"]);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    let report = check(&path);
    assert!(report.opened);
    assert_eq!(report.exit_code(), 4);
    assert!(report.findings.iter().any(|found| found.says.contains("the device's size is 3145728")));
}

#[test]
fn what_is_another_format_is_named() {
    for (magic, name) in [(&b"QFI\xfb"[..], "qcow2"), (b"XFSB", "XFS"), (b"\x1f\x8b\x08", "gzip")] {
        for size in [64, 1 << 20] {
            let device = MemDevice::new(size);
            device.write_at(0, magic).unwrap();
            let report = extant_check::check(&device, &Options::default()).unwrap();
            assert_eq!(report.exit_code(), 8);
            assert!(report.findings[0].says.contains(name), "{:?}", report.findings);
        }
    }
}
