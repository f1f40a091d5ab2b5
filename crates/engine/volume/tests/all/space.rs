//! The blocks of inodes: counting, truncating, freeing. e2fsck judges the images, and the kernel if the test
//! runs as root.

use std::os::unix::fs::FileExt;

use crate::common::small::{edit, find, image, open, sectors};
use extant_base::Ino;
use extant_volume::{New, Refusal, SetAttr, SetXattr};

/// An inode that counts its blocks in units of blocks: adding an attribute block counts it correctly, and
/// clears the flag, as the kernel does.
#[test]
fn a_count_in_blocks_is_understood_and_written_in_sectors() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "4096"], &["mkdir dir"]);
    edit(&path, "set_inode_field dir blocks 1");
    edit(&path, "set_inode_field dir flags 0xC0000");
    extant_testkit::e2fsck_clean(&path);
    let volume = open(&path);
    let dir = find(&volume, b"dir");
    assert_eq!(sectors(&volume, dir), 8);
    volume.attributes().set_xattr(dir, b"user.large", &[1; 1000], SetXattr::Any).unwrap();
    assert_eq!(sectors(&volume, dir), 16);
    assert_eq!(volume.inode(dir).unwrap().fields().flags & 0x40000, 0);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// Without huge_file the high half of the count has no meaning: it may hold any value, and counts are limited
/// to the low half.
#[test]
fn without_huge_file_a_count_has_32_bits() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "4096", "-O", "^huge_file"], &["mkdir dir", "mkdir full"]);
    edit(&path, "set_inode_field dir blocks_hi 3");
    edit(&path, "set_inode_field full blocks 0xFFFFFFFF");
    let volume = open(&path);
    let (dir, full) = (find(&volume, b"dir"), find(&volume, b"full"));
    assert_eq!(sectors(&volume, dir), 8);
    volume.attributes().set_xattr(dir, b"user.large", &[1; 1000], SetXattr::Any).unwrap();
    assert_eq!(sectors(&volume, dir), 16);
    assert_eq!(volume.inode(dir).unwrap().fields().blocks, 16);
    // The count is at its maximum: the operation is refused before it allocates.
    let refused = volume.attributes().set_xattr(full, b"user.large", &[1; 1000], SetXattr::Any).unwrap_err();
    assert!(refused.is(Refusal::TooLarge), "{refused}");
    let refused = (0..1000)
        .map(|i| {
            volume.names().create(full, format!("a-name-of-some-length-{i}").as_bytes(), &New::file(0o600))
        })
        .find_map(Result::err)
        .unwrap();
    assert!(refused.is(Refusal::NoSpace), "{refused}");
    assert_eq!(sectors(&volume, full), 0xFFFF_FFFF);
    volume.close().unwrap();
    edit(&path, "set_inode_field full blocks 8");
    extant_testkit::e2fsck_clean(&path);
}

/// Clusters that start with a hole in the file: a cluster is freed with its last mapped block, not before.
#[test]
fn clusters_with_holes_at_their_front_are_given_back() {
    const CLUSTER: u64 = 16 << 10;
    let scratch = extant_testkit::scratch();
    let source = scratch.path().join("source");
    // In KiB: 8..12 of cluster 0; 4..8 and 12..16 of cluster 1; all of cluster 2; 8..12 of cluster 4.
    let pieces = [(8, 4), (20, 4), (28, 4), (32, 16), (72, 4)];
    let file = std::fs::File::create(&source).unwrap();
    for (from, len) in pieces {
        file.write_all_at(&vec![7; len << 10], from << 10).unwrap();
    }
    let options = ["-b", "1024", "-O", "bigalloc", "-C", "16384", "-N", "256"];
    for (keep_kib, clusters) in
        [(76, 4), (72, 3), (50, 3), (30, 2), (28, 2), (24, 2), (20, 1), (10, 1), (8, 0), (0, 0)]
    {
        let path = image(scratch.path(), &options, &[]);
        let free = open(&path).statfs().unwrap().blocks_free;
        edit(&path, &format!("write {} file", source.display()));
        extant_testkit::e2fsck_clean(&path);
        let volume = open(&path);
        let file = find(&volume, b"file");
        assert_eq!(sectors(&volume, file), 4 * CLUSTER / 512);
        let set = SetAttr { size: Some(keep_kib << 10), ..SetAttr::default() };
        volume.attributes().set_attr(file, &set).unwrap();
        assert_eq!(sectors(&volume, file), clusters * CLUSTER / 512, "cut at {keep_kib} KiB");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let volume = open(&path);
        volume.names().unlink(Ino::ROOT, b"file").unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.statfs().unwrap().blocks_free, free);
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}
