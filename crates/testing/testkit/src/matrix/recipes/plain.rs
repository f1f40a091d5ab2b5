//! ext2, ext3 and ext4 at their block and inode sizes, with files of every kind.

use super::{Recipe, image};
use crate::matrix::Step;
use crate::matrix::work::{everything, everything_small, mixed};

const EVERYTHING: &[Step] = &[Step::Kernel("rw", everything)];
const MIXED: &[Step] = &[Step::Kernel("rw", mixed)];

#[rustfmt::skip]
pub(super) const RECIPES: &[Recipe] = &[
    image("ext2-1k", "32M", &["-t", "ext2", "-b", "1024", "-N", "8192"]).steps(EVERYTHING),
    image("ext2-2k", "32M", &["-t", "ext2", "-b", "2048"]).steps(MIXED),
    image("ext2-4k", "48M", &["-t", "ext2", "-b", "4096", "-N", "8192"]).steps(EVERYTHING),
    image("ext2-revision-0", "16M", &["-t", "ext2", "-b", "1024", "-r", "0"]).steps(MIXED),
    image("ext2-no-features", "16M", &["-t", "ext2", "-b", "1024", "-O", "none"]).steps(MIXED),
    image("ext3-1k", "32M", &["-t", "ext3", "-b", "1024", "-N", "8192"]).steps(EVERYTHING),
    image("ext3-4k", "48M", &["-t", "ext3", "-b", "4096", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-1k", "32M", &["-t", "ext4", "-b", "1024", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-2k", "32M", &["-t", "ext4", "-b", "2048", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-4k", "48M", &["-t", "ext4", "-b", "4096", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-inode-128", "48M", &["-t", "ext4", "-I", "128", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-inode-512", "48M", &["-t", "ext4", "-I", "512", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-inode-1024", "48M", &["-t", "ext4", "-I", "1024", "-N", "8192"]).steps(EVERYTHING),
    image("ext4-1k-inode-1024", "32M", &["-t", "ext4", "-b", "1024", "-I", "1024"]).steps(MIXED),
    image("ext4-4k-inode-4096", "48M", &["-t", "ext4", "-I", "4096", "-N", "1024"]).steps(MIXED),
    // Filled by mke2fs -d alone: root is not needed, and blocks may be larger than this machine's pages.
    image("ext4-by-mke2fs", "48M", &["-t", "ext4", "-N", "8192"]).source(everything_small),
    image("ext2-by-mke2fs", "48M", &["-t", "ext2", "-N", "8192"]).source(everything_small),
    image("ext4-empty", "8M", &["-t", "ext4"]),
    image("ext4-smallest", "256K", &["-t", "ext4", "-b", "1024"]),
    image("ext4-64k", "512M", &["-t", "ext4", "-b", "65536", "-N", "8192"]).source(everything_small).for_debugfs(),
    image("ext4-16k", "256M", &["-t", "ext4", "-b", "16384", "-N", "8192"]).source(everything_small).for_debugfs(),
    image("ext2-64k", "512M", &["-t", "ext2", "-b", "65536", "-N", "8192"]).source(everything_small).for_debugfs(),
];
