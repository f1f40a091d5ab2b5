//! Structures that need a feature are written only if the superblock announces the feature: the table of
//! `write/announce.rs`, line by line. e2fsck judges the images; the expected features are those that the
//! kernel leaves after the same operations.

use std::path::Path;

use crate::common::small::{edit, find, image, open};
use extant_base::Ino;
use extant_device::FileDevice;
use extant_ondisk::Features;
use extant_ondisk::inode::flags;
use extant_volume::{Allocate, Fault, FileType, New, OpenOptions, Refusal, SetAttr, SetXattr, Volume};

const KIB: usize = 1024;

fn features(path: &Path) -> Vec<String> {
    extant_testkit::dumpe2fs(path).features().into_iter().map(str::to_owned).collect()
}

fn journal_features(path: &Path) -> String {
    let dump = extant_testkit::run("dumpe2fs", ["-h", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&dump.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Journal features:"));
    line.unwrap_or_default().trim().to_owned()
}

/// Creates structures of every kind.
fn write_all(volume: &Volume) {
    let root = Ino::ROOT;
    let dir = volume.names().create(root, b"dir", &New::directory(0o755)).unwrap().ino();
    for number in 0..400 {
        let name = format!("a name that takes its room {number}");
        volume.names().create(dir, name.as_bytes(), &New::file(0o644)).unwrap();
    }
    let file = volume.names().create(root, b"file", &New::file(0o644)).unwrap().ino();
    for piece in 0..40u64 {
        volume.files().write_at(file, piece * 9000, &[piece as u8; 5000]).unwrap();
    }
    volume.names().create(root, b"link", &New::symlink(&[b'x'; 500])).unwrap();
    let device = New { kind: FileType::CharDevice, device: (300, 70_000), ..New::file(0o600) };
    volume.names().create(root, b"device", &device).unwrap();
    for number in (0..400).step_by(3) {
        let name = format!("a name that takes its room {number}");
        volume.names().unlink(dir, name.as_bytes()).unwrap();
    }
    volume.sync().unwrap();
    volume.attributes().set_attr(file, &SetAttr { size: Some(70_000), ..SetAttr::default() }).unwrap();
    let full = volume.files().fallocate(file, Allocate::Reserve, 0, 300_000);
    assert!(matches!(full, Ok(()) | Err(Fault::Refused(Refusal::NotSupported))), "{full:?}");
}

/// For each feature of ext4 removed alone, and for older file system types: after all structures were written
/// e2fsck finds nothing, and only the features that the kernel would announce are set.
#[test]
fn every_structure_is_written_in_a_form_that_is_announced() {
    let lacking = [
        "^has_journal",
        "^ext_attr",
        "^dir_index",
        "^filetype",
        "^extent,^64bit",
        "^64bit",
        "^flex_bg",
        "^large_file",
        "^huge_file",
        "^dir_nlink",
        "^extra_isize",
        "^metadata_csum",
        "^metadata_csum,uninit_bg",
        "^resize_inode",
        "^sparse_super,^resize_inode",
        "^extent,^64bit,inline_data",
        "^dir_index,inline_data",
        "^metadata_csum,orphan_file",
    ];
    let ext4 = lacking.iter().map(|list| vec!["-t", "ext4", "-O", *list]);
    let old = [
        vec!["-t", "ext2", "-O", "none"],
        vec!["-t", "ext2", "-r", "0"],
        vec!["-t", "ext3"],
        vec!["-t", "ext2"],
    ];
    for options in ext4.chain(old) {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), &options, &[]);
        let before = features(&path);
        println!("{options:?}: {before:?}");
        let volume = open(&path);
        write_all(&volume);
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        assert_eq!(features(&path), before, "{options:?}");

        // An attribute sets ext_attr, wherever it is stored, and nothing else.
        let volume = open(&path);
        let file = find(&volume, b"file");
        volume.attributes().set_xattr(file, b"user.small", b"1", SetXattr::Any).unwrap();
        volume.attributes().set_xattr(file, b"user.large", &[7; 700], SetXattr::Any).unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let mut expected = before.clone();
        let has = |list: &[String], name: &str| list.iter().any(|found| found == name);
        let mut add = |name: &str| {
            if !has(&expected, name) {
                expected.push(name.to_owned());
            }
            expected.sort();
            expected.clone()
        };
        let sorted = |path: &Path| {
            let mut all: Vec<String> = features(path).into_iter().filter(|name| name != "(none)").collect();
            all.sort();
            all
        };
        let with_attributes: Vec<String> =
            add("ext_attr").into_iter().filter(|name| name != "(none)").collect();
        assert_eq!(sorted(&path), with_attributes, "{options:?}");

        // A size of 2 GiB sets large_file, with every operation that makes a file so large.
        let volume = open(&path);
        let file = find(&volume, b"file");
        volume.files().write_at(file, 3 << 30, b"far").unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let with_both: Vec<String> = add("large_file").into_iter().filter(|name| name != "(none)").collect();
        assert_eq!(sorted(&path), with_both, "{options:?}");
        assert_eq!(open_for_reading(&path).superblock().rev_level, 1);
    }
}

fn open_for_reading(path: &Path) -> Volume {
    Volume::open_read_only(
        std::sync::Arc::new(FileDevice::open_read_only(path).unwrap()),
        &OpenOptions::default(),
    )
    .unwrap()
}

/// Regression: every log got 64BIT and CSUM_V3 permanently, and programs that support neither could not use
/// it any more. The right column is what the kernel leaves.
#[test]
fn the_log_gets_what_the_file_system_calls_for() {
    for (options, expected) in [
        (&["-t", "ext3"][..], "journal_incompat_revoke"),
        (&["-O", "^64bit"], "journal_incompat_revoke journal_checksum_v3"),
        (&["-O", "^metadata_csum"], "journal_incompat_revoke journal_64bit"),
        (&["-O", "^64bit,^metadata_csum"], "journal_incompat_revoke"),
        (&[], "journal_incompat_revoke journal_64bit journal_checksum_v3"),
    ] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), options, &[]);
        let volume = open(&path);
        volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap();
        volume.close().unwrap();
        let without_revoke = expected.strip_prefix("journal_incompat_revoke").unwrap().trim();
        let found = journal_features(&path);
        assert_eq!(
            if found == "(none)" { "" } else { &found },
            without_revoke,
            "nothing was revoked: {options:?}"
        );
        let volume = open(&path);
        let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
        (0..300).for_each(|number| {
            volume.names().create(dir, format!("{number:0>200}").as_bytes(), &New::file(0o644)).unwrap();
        });
        volume.sync().unwrap();
        (0..300).for_each(|number| volume.names().unlink(dir, format!("{number:0>200}").as_bytes()).unwrap());
        volume.names().rmdir(Ino::ROOT, b"dir").unwrap();
        volume.close().unwrap();
        assert_eq!(journal_features(&path), expected, "{options:?}");
        extant_testkit::e2fsck_clean(&path);
    }
}

/// Regression: EA inodes had extent maps, whatever the features of the file system.
#[test]
fn a_value_in_an_inode_has_the_map_that_files_have() {
    for (options, has_extents) in [("ea_inode,^extent,^64bit", false), ("ea_inode", true)] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), &["-O", options], &[]);
        let volume = open(&path);
        let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        let value: Vec<u8> = (0..60 * KIB).map(|at| (at / 7) as u8).collect();
        volume.attributes().set_xattr(file, b"user.huge", &value, SetXattr::Any).unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let volume = open(&path);
        let kept = (12..40)
            .filter_map(|ino| volume.inode(Ino(ino)).ok())
            .find(|inode| inode.has_flag(flags::EA_INODE));
        assert_eq!(kept.unwrap().has_flag(flags::EXTENTS), has_extents);
        let held = volume.attributes().xattr(&volume.inode(file).unwrap(), b"user.huge").unwrap();
        assert_eq!(held, value);
        volume.attributes().remove_xattr(file, b"user.huge").unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// Without ea_inode, a value that does not fit is refused.
#[test]
fn without_the_feature_no_value_gets_an_inode() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[], &[]);
    let volume = open(&path);
    let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let refused = volume.attributes().set_xattr(file, b"user.huge", &[7; 9000], SetXattr::Any).unwrap_err();
    assert!(refused.is(Refusal::NoSpace), "{refused}");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// tune2fs removed dir_index: the index of an old directory does not include new names, so it must not be
/// used again.
#[test]
fn an_index_that_is_not_kept_up_is_taken_off() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024", "-O", "^metadata_csum"], &[]);
    let volume = open(&path);
    let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
    (0..100).for_each(|number| {
        volume.names().create(dir, format!("{number:0>50}").as_bytes(), &New::file(0o644)).unwrap();
    });
    assert!(volume.inode(dir).unwrap().has_flag(flags::INDEX));
    volume.close().unwrap();
    edit(&path, "feature -dir_index");
    let volume = open(&path);
    (100..200).for_each(|number| {
        volume.names().create(dir, format!("{number:0>50}").as_bytes(), &New::file(0o644)).unwrap();
    });
    assert!(!volume.inode(dir).unwrap().has_flag(flags::INDEX));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    edit(&path, "feature dir_index");
    let volume = open(&path);
    for number in 0..200 {
        find_in(&volume, dir, &format!("{number:0>50}"));
    }
}

fn find_in(volume: &Volume, dir: Ino, name: &str) -> Ino {
    volume.names().lookup(&volume.inode(dir).unwrap(), name.as_bytes()).unwrap().ino()
}

/// A directory may have more subdirectories than it can count only with dir_nlink and, as in the kernel, only
/// with an index.
#[test]
fn links_that_cannot_be_counted_need_a_feature_and_an_index() {
    for (options, is_indexed, is_refused) in
        [("dir_nlink", true, false), ("dir_nlink", false, true), ("^dir_nlink", true, true)]
    {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), &["-b", "1024", "-O", options], &[]);
        let volume = open(&path);
        let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
        let names = if is_indexed { 100 } else { 2 };
        (0..names).for_each(|number| {
            volume.names().create(dir, format!("{number:0>50}").as_bytes(), &New::file(0o644)).unwrap();
        });
        volume.close().unwrap();
        edit(&path, "sif dir links_count 65000");
        let volume = open(&path);
        let made = volume.names().create(dir, b"one more", &New::directory(0o755));
        match is_refused {
            true => assert!(made.unwrap_err().is(Refusal::TooManyNames)),
            false => assert_eq!(
                volume.attributes().stat(&volume.inode(dir).unwrap()).links,
                1,
                "{:?}",
                made.is_ok()
            ),
        }
        volume.close().unwrap();
    }
}

/// A block map cannot mark blocks as unwritten, and a 32-bit i_blocks cannot count files of many TiB.
#[test]
fn what_has_no_older_form_is_refused() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "4096", "-O", "^extent,^64bit,^huge_file"], &[]);
    let volume = open(&path);
    let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    assert!(
        volume.files().fallocate(file, Allocate::Reserve, 0, 4096).unwrap_err().is(Refusal::NotSupported)
    );
    let size = |size| volume.attributes().set_attr(file, &SetAttr { size: Some(size), ..SetAttr::default() });
    assert!(size(3 << 40).unwrap_err().is(Refusal::TooLarge));
    size(1 << 40).unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// A project needs the feature, and is not inherited without it.
#[test]
fn without_the_feature_there_are_no_projects() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[], &[]);
    let volume = open(&path);
    let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
    let set = SetAttr { project: Some(7), ..SetAttr::default() };
    assert!(volume.attributes().set_attr(dir, &set).unwrap_err().is(Refusal::NotSupported));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    assert!(!open_for_reading(&path).superblock().features.has_ro_compat(Features::PROJECT));
}

/// Regression: the error did not distinguish "no block" from "no inode", and removing large files only helps
/// against the first.
#[test]
fn that_no_inode_is_left_is_said_as_such() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-N", "16"], &[]);
    let volume = open(&path);
    let refused = (0..99).find_map(|number| {
        volume.names().create(Ino::ROOT, format!("{number}").as_bytes(), &New::file(0o644)).err()
    });
    let refused = refused.unwrap();
    assert!(
        refused.is(Refusal::NoInodes) && refused.errno() == 28 && refused.to_string().contains("inode"),
        "{refused}"
    );
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
