//! File systems made for other operating systems: the meaning of some fields depends on `s_creator_os`.
//! e2fsck judges the results.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::small::{edit, find, image, open};
use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{New, OpenFault, OpenOptions, SetAttr, SetXattr, Volume};

/// Byte offset of an inode in the image.
fn place(path: &Path, name: &str) -> u64 {
    let imap = extant_testkit::debugfs(path, &format!("imap {name}"));
    let (_, rest) = imap.split_once("located at block ").unwrap();
    let (block, rest) = rest.split_once(", offset 0x").unwrap();
    let offset = u64::from_str_radix(rest.trim(), 16).unwrap();
    block.parse::<u64>().unwrap() * extant_testkit::dumpe2fs(path).number("Block size") + offset
}

fn bytes_of(path: &Path, at: u64) -> [u8; 128] {
    let mut bytes = [0; 128];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

fn change(volume: &Volume) {
    let dir = volume.names().create(Ino::ROOT, b"made", &New::directory(0o755)).unwrap().ino();
    volume.names().create(dir, b"in it", &New::file(0o644)).unwrap();
    let old = find(volume, b"old");
    volume.names().create(old, b"new", &New::file(0o644)).unwrap();
    volume.attributes().set_attr(old, &SetAttr { uid: Some(70_000), ..SetAttr::default() }).unwrap();
    volume.attributes().set_xattr(old, b"user.large", &[7; 600], SetXattr::Any).unwrap();
    volume.names().unlink(old, b"new").unwrap();
}

/// Regression: the first change of a directory wrote a version into the field where the Hurd stores a
/// translator's block. e2fsck then wanted to clone or delete.
#[test]
fn what_the_hurd_keeps_in_an_inode_stays() {
    for options in [&["-t", "ext2", "-o", "hurd"][..], &["-t", "ext4", "-o", "hurd", "-O", "^64bit"]] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), options, &["mkdir old"]);
        let at = place(&path, "/old");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        // High bits of the mode, and the author.
        file.write_all_at(&[0x12, 0x34], at + 0x76).unwrap();
        file.write_all_at(&[0x56, 0x78, 0x9A, 0xBC], at + 0x7C).unwrap();
        let before = bytes_of(&path, at);
        let volume = open(&path);
        change(&volume);
        volume.close().unwrap();
        let after = bytes_of(&path, at);
        for kept in [0x24..0x28, 0x76..0x78, 0x7C..0x80] {
            assert_eq!(after[kept.clone()], before[kept.clone()], "{kept:?} of {options:?}");
        }
        assert_eq!(bytes_of(&path, place(&path, "/"))[0x24..0x28], [0; 4], "the root's translator");
        let volume = open(&path);
        let old = volume.inode(find(&volume, b"old")).unwrap();
        assert_eq!(volume.attributes().stat(&old).uid, 70_000);
        assert_eq!(volume.attributes().xattr(&old, b"user.large").unwrap(), [7; 600]);
        // A translator's block belongs to a file system of the Hurd. Linux ignores it, and so does extant.
        volume.close().unwrap();
        file.write_all_at(&before[0x76..0x78], at + 0x76).unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// The Hurd's inodes have no room for the fields of these features, and the kernel refuses them.
#[test]
fn what_the_hurd_cannot_have_is_refused() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-t", "ext4", "-o", "hurd"], &[]);
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    match Volume::open(device, &OpenOptions::default()) {
        Err(OpenFault::Unwritable(why)) => assert!(why.contains("64bit on the GNU Hurd"), "{why}"),
        _ => panic!("it was opened, or refused for another reason"),
    }
}

/// The kernel neither verifies nor writes checksums of inodes if another system made the file system; e2fsck
/// requires them.
#[test]
fn other_systems_inodes_need_no_checksum_and_get_one() {
    for os in ["freebsd", "lites", "linux"] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), &["-t", "ext4", "-o", os], &["mkdir old"]);
        let at = place(&path, "/old");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let sum = bytes_of(&path, at)[0x7C];
        file.write_all_at(&[!sum], at + 0x7C).unwrap();
        let volume = open(&path);
        let root = volume.root().unwrap();
        if os == "linux" {
            assert!(volume.names().lookup(&root, b"old").is_err());
            continue;
        }
        change(&volume);
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// Without 64bit the high half of the attribute block's number is ignored.
#[test]
fn half_a_block_number_counts_with_its_feature_only() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-t", "ext2"], &["mkdir old"]);
    let at = place(&path, "/old");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[9, 9], at + 0x76).unwrap();
    let volume = open(&path);
    change(&volume);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    edit(&path, "stat /old");
}
