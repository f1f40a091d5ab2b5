//! Options that mke2fs 1.47 refuses, drops or misreads, and extant follows: each is an intended difference.

use extant_testkit::{Dumpe2fs, dumpe2fs, e2fsck_clean, scratch};

use crate::mkfs::make;

/// A condition on a file system.
type Holds = fn(&Dumpe2fs) -> bool;

/// Arguments, and a condition on the resulting file system.
const CHOICES: &[(&str, Holds)] = &[
    // mke2fs never makes groups of clusters smaller, and fails, even if its own default needs only a few more
    // inodes than fit.
    ("-s 2G -O bigalloc -N 100000", |dump| dump.number("Inode count") >= 100_000),
    ("-s 2G -O bigalloc -i 4096", |dump| dump.number("Inode count") >= 1 << 19),
    ("-s 5767740K -b 2048 -O bigalloc", |dump| dump.number("Block count") > 2_883_500),
    // mke2fs 1.47.0 finds no blocks for an orphan file of a given size.
    ("-s 2G -E orphan_file_size=1M", |dump| dump.features().contains(&"orphan_file")),
    // mke2fs requires an explicit option to omit the resize inode where one is impossible.
    ("-s 2G -O ^sparse_super", |dump| !dump.features().contains(&"resize_inode")),
    ("-s 2G -O meta_bg", |dump| !dump.features().contains(&"resize_inode")),
    // mke2fs drops a requested journal below 2048 blocks.
    ("-s 1679K -b 1024 -J size=1", |dump| dump.features().contains(&"has_journal")),
    // The existing descriptors suffice for the maximum size; mke2fs interprets 0 reserved blocks as "not
    // given".
    ("-s 2G -E resize=1000000", |dump| !dump.fields.contains_key("Reserved GDT blocks")),
    // mke2fs finds no space for these.
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
