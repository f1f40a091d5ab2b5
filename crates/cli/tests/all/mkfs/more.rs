//! What extant makes of choices that mke2fs 1.47 refuses, drops or misreads: each a meant difference.

use extant_testkit::{Dumpe2fs, dumpe2fs, e2fsck_clean, scratch};

use crate::mkfs::make;

/// What must be true of a file system.
type Holds = fn(&Dumpe2fs) -> bool;

/// Arguments, and what must be true of the file system that they make.
const CHOICES: &[(&str, Holds)] = &[
    // mke2fs never makes groups of clusters smaller, and fails: also when its own default needs a few inodes
    // more than fit.
    ("-s 2G -O bigalloc -N 100000", |dump| dump.number("Inode count") >= 100_000),
    ("-s 2G -O bigalloc -i 4096", |dump| dump.number("Inode count") >= 1 << 19),
    ("-s 5767740K -b 2048 -O bigalloc", |dump| dump.number("Block count") > 2_883_500),
    // mke2fs 1.47.0 does not find blocks for an orphan file of a chosen size.
    ("-s 2G -E orphan_file_size=1M", |dump| dump.features().contains(&"orphan_file")),
    // mke2fs wants to hear that there is no resize inode where there cannot be one.
    ("-s 2G -O ^sparse_super", |dump| !dump.features().contains(&"resize_inode")),
    ("-s 2G -O meta_bg", |dump| !dump.features().contains(&"resize_inode")),
    // mke2fs drops a journal that was asked for below 2048 blocks.
    ("-s 1679K -b 1024 -J size=1", |dump| dump.features().contains(&"has_journal")),
    // The descriptors there are suffice for the size to grow to; mke2fs reads 0 reserved blocks as "not
    // chosen".
    ("-s 2G -E resize=1000000", |dump| !dump.fields.contains_key("Reserved GDT blocks")),
    // mke2fs finds no room for these.
    ("-s 64K", |dump| dump.number("Block count") == 64),
    ("-s 656K -b 16384 -i 1024 -I 512 -G 8", |dump| dump.number("Block count") == 41),
];

#[test]
fn choices_that_mke2fs_does_not_follow_are_followed() {
    let dir = scratch();
    let image = dir.path().join("more.img");
    for (args, holds) in CHOICES {
        make(&image, &format!("-F -q --no-sync {args}"));
        e2fsck_clean(&image);
        let dump = dumpe2fs(&image);
        assert!(holds(&dump), "{args}: {:?}", dump.fields);
    }
}
