//! Contents that are difficult with any features.

use super::{Recipe, image};
use crate::matrix::Step;
use crate::matrix::work::{attributes, dirs, files, special};

#[rustfmt::skip]
pub(super) const RECIPES: &[Recipe] = &[
    image("metadata", "16M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", special::metadata)]),
    image("metadata-inode-128", "16M", &["-t", "ext4", "-I", "128"]).steps(&[Step::Kernel("rw", special::metadata)]),
    image("metadata-ext2-1k", "16M", &["-t", "ext2", "-b", "1024"]).steps(&[Step::Kernel("rw", special::metadata)]),
    image("names", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", dirs::strange_names)]),
    image("xattrs-4k", "16M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", attributes::attributes)]),
    image("xattrs-1k", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", attributes::attributes)]),
    image("xattrs-inode-128", "16M", &["-t", "ext4", "-I", "128"]).steps(&[Step::Kernel("rw", attributes::attributes)]),
    image("xattrs-inode-1024", "16M", &["-t", "ext4", "-I", "1024"]).steps(&[Step::Kernel("rw", attributes::attributes)]),
    image("xattrs-no-csum", "16M", &["-t", "ext3"]).steps(&[Step::Kernel("rw", attributes::attributes)]),
    image("holes-4k", "64M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", files::holes)]),
    image("holes-1k", "32M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", files::holes)]),
    image("holes-ext3", "32M", &["-t", "ext3", "-b", "1024"]).steps(&[Step::Kernel("rw", files::holes)]),
    image("fragmented-4k", "64M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", files::fragmented)]),
    image("fragmented-1k", "32M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", files::fragmented)]),
    image("fragmented-ext2", "32M", &["-t", "ext2", "-b", "1024"]).steps(&[Step::Kernel("rw", files::fragmented)]),
    image("extents-depth-2", "64M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", files::depth_two)]),
    image("extents-depth-3", "64M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", files::depth_three)]),
    image("indirect-1k", "32M", &["-t", "ext2", "-b", "1024"]).steps(&[Step::Kernel("rw", files::indirect)]),
    image("indirect-2k", "32M", &["-t", "ext3", "-b", "2048"]).steps(&[Step::Kernel("rw", files::indirect)]),
    image("indirect-4k", "64M", &["-t", "ext4", "-O", "^extents,^64bit"]).steps(&[Step::Kernel("rw", files::indirect)]),
    image("large-offsets", "16M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", files::large_offsets)]),
    image("large-offsets-1k", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", files::large_offsets)]),
    image("htree-1k", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", dirs::indexed)]),
    image("htree-1k-no-csum", "16M", &["-t", "ext3", "-b", "1024"]).steps(&[Step::Kernel("rw", dirs::indexed)]),
    image("htree-4k", "32M", &["-t", "ext4"]).steps(&[Step::Kernel("rw", dirs::many)]),
    image("htree-three-levels", "64M", &["-t", "ext4", "-b", "1024", "-O", "large_dir"]).steps(&[Step::Kernel("rw", dirs::three_levels)]),
    image("htree-packed", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", dirs::indexed), Step::E2fsck(&["-fyD"])]),
    image("deletions", "32M", &["-t", "ext4", "-b", "1024", "-N", "12000"]).steps(&[Step::Kernel("rw", dirs::deletions)]),
    image("deletions-ext2", "32M", &["-t", "ext2", "-b", "1024", "-N", "12000", "-O", "^dir_index"]).steps(&[Step::Kernel("rw", dirs::deletions)]),
    image("subdirectories-65010", "128M", &["-t", "ext4", "-b", "1024", "-I", "128", "-N", "66000"]).steps(&[Step::Kernel("rw", dirs::subdirectories)]),
    image("hard-links-64000", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", dirs::hard_links)]),
    image("reuse", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Kernel("rw", dirs::reuse)]),
];
