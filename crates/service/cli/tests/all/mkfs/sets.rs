//! The parameter sets, and the intended differences from mke2fs.

/// A part of an image with an intended difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    /// These bytes of every copy of the superblock: from, to.
    Superblock(usize, usize),
    /// These bytes of an inode: inode number, from, to.
    Inode(u32, usize, usize),
    /// The blocks that this inode owns in one of the images.
    Blocks(u32),
    /// Group descriptors and bitmaps.
    Bitmaps,
    /// The MMP block's fields about its last reader.
    Mmp,
}

/// An intended difference from mke2fs.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// Why it is intended.
    pub(crate) reason: &'static str,
    /// Fields of dumpe2fs that differ; `group` stands for its output about groups.
    pub(crate) fields: &'static [&'static str],
    /// The regions in which the images differ.
    pub(crate) regions: &'static [Region],
}

/// A file system that is made twice.
#[derive(Debug)]
pub(crate) struct Set {
    /// Size, with a unit.
    pub(crate) size: &'static str,
    /// Arguments for both programs.
    pub(crate) args: &'static str,
    /// The allowed differences.
    pub(crate) expected: &'static [&'static Expected],
}

/// A whole inode.
const ALL: usize = 1 << 16;

/// MMP is in use: the block contains the name of the last machine that checked.
pub(crate) const MMP_NAMES: Expected = Expected {
    name: "MMP names",
    reason: "mke2fs writes the host, the path and the real time into the MMP block; extant leaves the names empty and takes \
             the time of creation, so that the same choices make the same bytes on any machine",
    fields: &["mmp_update_date", "mmp_update_time", "mmp_node_name", "mmp_device_name"],
    regions: &[Region::Mmp],
};
/// A log whose map needs blocks of its own.
pub(crate) const MAP_IN_LOG: Expected = Expected {
    name: "the journal's map among its blocks",
    reason: "mke2fs allocates indirect blocks, and the block of an extent tree that becomes deeper, when it gets to them, so \
             they stand between the blocks of the journal; extant keeps the log in one piece and its map in front of it or \
             behind it. The same blocks are taken, so dumpe2fs prints the same",
    fields: &[],
    regions: &[Region::Superblock(0x10C, 0x150), Region::Inode(8, 0, ALL), Region::Blocks(8)],
};
/// An orphan file without extents.
pub(crate) const MAP_IN_ORPHAN_FILE: Expected = Expected {
    name: "the orphan file's map among its blocks",
    reason: "without extents, the same holds for the indirect block of an orphan file",
    fields: &[],
    regions: &[Region::Inode(12, 0, ALL), Region::Blocks(12)],
};
/// Roots of extent trees with remains.
pub(crate) const STALE_ROOT: Expected = Expected {
    name: "remains in the root of the journal's extent tree",
    reason: "when its fifth extent makes a journal's tree deeper, mke2fs leaves the first ones in the inode behind the only \
             entry that counts; extant writes zeros there",
    fields: &[],
    regions: &[Region::Superblock(0x10C + 24, 0x10C + 60), Region::Inode(8, 0x28 + 24, ALL)],
};
/// Quota files of several blocks.
pub(crate) const QUOTA_PIECES: Expected = Expected {
    name: "order of a quota file's blocks",
    reason: "mke2fs allocates a quota file of small blocks in the order in which its tree is filled, which leaves the file in \
             pieces; extant writes it in one piece. The same blocks are taken",
    fields: &[],
    regions: &[Region::Inode(3, 0, ALL), Region::Blocks(3), Region::Inode(4, 0, ALL), Region::Blocks(4)],
};
/// Clusters of 1 KiB blocks.
pub(crate) const RESIZE_BIGALLOC_1K: Expected = Expected {
    name: "resize inode with 1 KiB blocks and bigalloc",
    reason: "the primary superblock is in block 1 of its group but backups are in block 0 of theirs, so reserved descriptor \
             blocks of backup groups lie one block lower; mke2fs's resize inode does not take that into account and names \
             one block behind the reserved ones. The kernel cannot resize such a file system in either case",
    fields: &[],
    regions: &[Region::Blocks(7)],
};
/// lost+found is inline at first, and not inline later.
pub(crate) const INLINE_LOST_FOUND: Expected = Expected {
    name: "lost+found with inline_data",
    reason: "mke2fs makes it inline and then moves it to blocks, which leaves an empty attribute area in the inode and a split \
             free entry in the first block; extant makes it in blocks right away",
    fields: &[],
    regions: &[Region::Inode(11, 0, ALL), Region::Blocks(11)],
};
/// fast_commit in a file system without a journal.
pub(crate) const FAST_COMMIT_ALONE: Expected = Expected {
    name: "fast_commit where there is no room for a journal",
    reason: "without a journal there is nothing that fast commits could be part of; mke2fs leaves the feature set",
    fields: &["Filesystem features"],
    regions: &[Region::Superblock(0x5C, 0x60)],
};
/// lost+found's inode is outside the first group.
pub(crate) const TINY_TABLES: Expected = Expected {
    name: "lost+found with fewer than 11 inodes per group",
    reason: "mke2fs puts its blocks into the group of its inode, extant next to the root directory as always, and leaves the \
             bitmap of the other group uninitialised",
    fields: &["group"],
    regions: &[
        Region::Bitmaps,
        Region::Inode(7, 0, ALL),
        Region::Blocks(7),
        Region::Inode(11, 0, ALL),
        Region::Blocks(11),
    ],
};
/// Free counts of 16 bits for large groups.
pub(crate) const NARROW_COUNTS: Expected = Expected {
    name: "the journal's group with bigalloc and without 64bit",
    reason: "a group's free blocks are counted in 16 bits without the 64bit feature; while mke2fs chooses a group for the \
             journal it counts blocks where clusters are meant, so that a group that is all free seems full. extant takes \
             the emptiest",
    fields: &["group"],
    regions: &[
        Region::Bitmaps,
        Region::Superblock(0x10C, 0x150),
        Region::Inode(8, 0, ALL),
        Region::Blocks(8),
    ],
};

/// All intended differences.
pub(crate) const EXPECTED: &[&Expected] = &[
    &MMP_NAMES,
    &MAP_IN_LOG,
    &MAP_IN_ORPHAN_FILE,
    &STALE_ROOT,
    &QUOTA_PIECES,
    &RESIZE_BIGALLOC_1K,
    &INLINE_LOST_FOUND,
    &FAST_COMMIT_ALONE,
    &TINY_TABLES,
    &NARROW_COUNTS,
];

/// The number of sets with expected differences.
pub(crate) fn with_differences() -> usize {
    SETS.iter().filter(|set| !set.expected.is_empty()).count()
}

const fn same(size: &'static str, args: &'static str) -> Set {
    Set { size, args, expected: &[] }
}

const fn differs(size: &'static str, args: &'static str, expected: &'static [&'static Expected]) -> Set {
    Set { size, args, expected }
}

/// The largest sets come first: they take longest.
pub(crate) const SETS: &[Set] = &[
    differs("4T", "-t ext4", &[&STALE_ROOT]),
    differs("8T", "-t ext4 -O bigalloc -C 1048576", &[&STALE_ROOT]),
    differs("1T", "-t ext4 -O meta_bg,^resize_inode", &[&MAP_IN_LOG]),
    // Defaults, by size.
    same("64M", "-t ext4"),
    same("100M", "-t ext4"),
    same("511M", "-t ext4"),
    same("512M", "-t ext4"),
    same("2G", "-t ext4"),
    same("10G", "-t ext4"),
    same("100G", "-t ext4"),
    // Block sizes.
    same("64M", "-t ext4 -b 1024"),
    same("300M", "-t ext4 -b 2048"),
    same("4G", "-t ext4 -b 8192"),
    same("4G", "-t ext4 -b 16384"),
    same("4G", "-t ext4 -b 32768"),
    same("1G", "-t ext4 -b 65536"),
    same("80896K", "-t ext4 -b 65536"),
    // Generations.
    same("2G", "-t ext2"),
    same("2G", "-t ext2 -O none"),
    same("2G", "-t ext2 -O ^dir_index,^resize_inode"),
    same("8M", "-t ext2 -b 1024"),
    same("131008K", "-t ext2 -b 65536 -O flex_bg,uninit_bg"),
    differs("2G", "-t ext3", &[&MAP_IN_LOG]),
    differs("10M", "-t ext3", &[&MAP_IN_LOG]),
    differs("131456K", "-t ext3 -b 65536", &[&MAP_IN_LOG]),
    differs("100M", "-t ext2 -J size=4", &[&MAP_IN_LOG]),
    differs("2G", "-t ext4 -O ^extents,^64bit,^flex_bg", &[&MAP_IN_LOG, &MAP_IN_ORPHAN_FILE]),
    // Clusters.
    same("2G", "-t ext4 -O bigalloc"),
    same("20G", "-t ext4 -O bigalloc -C 65536"),
    same("1G", "-t ext4 -O bigalloc -C 8192"),
    same("1G", "-t ext4 -O bigalloc -C 1048576"),
    same("300M", "-t ext4 -O bigalloc -b 2048 -C 32768"),
    same("2G", "-t ext4 -O bigalloc -g 16384"),
    same("2G", "-t ext4 -O bigalloc,sparse_super2"),
    same("2G", "-t ext4 -O bigalloc,meta_bg,^resize_inode"),
    differs("20G", "-t ext4 -O bigalloc,quota,project,mmp", &[&MMP_NAMES]),
    differs("1G", "-t ext4 -O bigalloc -b 1024 -C 16384", &[&RESIZE_BIGALLOC_1K]),
    differs("12G", "-t ext4 -O bigalloc,^64bit", &[&NARROW_COUNTS]),
    // Groups, and where their descriptors and backups are.
    same("20G", "-t ext4 -O meta_bg,^resize_inode"),
    same("100M", "-t ext4 -O meta_bg,^resize_inode"),
    same("2G", "-t ext4 -O ^flex_bg,meta_bg,^resize_inode"),
    same("2G", "-t ext4 -O sparse_super2"),
    same("100M", "-t ext4 -O sparse_super2"),
    same("2G", "-t ext4 -O sparse_super2 -E num_backup_sb=0"),
    same("2G", "-t ext4 -O sparse_super2 -E num_backup_sb=1"),
    same("2G", "-t ext4 -O sparse_super2 -E num_backup_sb=2"),
    same("20G", "-t ext4 -O sparse_super2,meta_bg,^resize_inode"),
    same("2G", "-t ext4 -O ^flex_bg"),
    same("100M", "-t ext4 -O ^flex_bg"),
    same("2G", "-t ext4 -O ^resize_inode"),
    same("2G", "-t ext4 -O ^sparse_super,^resize_inode"),
    same("2G", "-t ext4 -g 8192 -G 4"),
    same("2G", "-t ext4 -g 8192 -G 1"),
    same("10G", "-t ext4 -G 128"),
    same("2G", "-t ext4 -E resize=4000000"),
    same("2G", "-t ext4 -E resize=64G"),
    same("600M", "-t ext4 -E packed_meta_blocks=1"),
    same("20G", "-t ext4 -E packed_meta_blocks=1"),
    // 0 means "not given"; Buildroot always passes -N 0.
    same("512M", "-t ext4 -N 0 -g 0 -I 0 -J size=0"),
    // Checksums and widths.
    same("2G", "-t ext4 -O ^metadata_csum,^metadata_csum_seed,uninit_bg"),
    same("2G", "-t ext4 -O ^metadata_csum,^metadata_csum_seed,^64bit"),
    same("2G", "-t ext4 -O ^64bit"),
    same("2G", "-t ext4 -O ^metadata_csum_seed"),
    // Inodes.
    same("2G", "-t ext4 -N 500000 -I 512"),
    same("2G", "-t ext4 -N 16"),
    same("2G", "-t ext4 -N 5000000"),
    same("2G", "-t ext4 -i 1024 -b 1024"),
    same("34448K", "-t ext4 -b 4096 -i 2048"),
    same("2G", "-t ext4 -I 1024"),
    same("2G", "-t ext4 -I 128 -O ^extra_isize"),
    differs("133654K", "-t ext2 -b 1024 -i 1048576", &[&TINY_TABLES]),
    // Journals.
    same("2G", "-t ext4 -J size=128"),
    same("2G", "-t ext4 -J size=4"),
    same("2G", "-t ext4 -O fast_commit"),
    same("2G", "-t ext4 -O ^has_journal,^orphan_file"),
    same("2G", "-t ext4 -O ^orphan_file"),
    differs("14264K", "-t ext4 -O fast_commit -b 8192", &[&FAST_COMMIT_ALONE]),
    // Quota, MMP, and features that only set a bit.
    same("2G", "-t ext4 -O quota"),
    same("2G", "-t ext4 -O project"),
    same("2G", "-t ext4 -O quota,project"),
    same("2G", "-t ext4 -O quota,project -E quotatype=usrquota"),
    same("2G", "-t ext4 -O quota -E quotatype=grpquota:prjquota"),
    differs("349488K", "-t ext4 -O quota -b 1024", &[&QUOTA_PIECES]),
    differs("2G", "-t ext4 -O mmp", &[&MMP_NAMES]),
    differs("2G", "-t ext4 -O mmp -E mmp_update_interval=30", &[&MMP_NAMES]),
    differs("2G", "-t ext4 -O inline_data,ea_inode,large_dir", &[&INLINE_LOST_FOUND]),
    same("2G", "-t ext4 -O ea_inode,large_dir"),
    same("2G", "-t ext4 -O stable_inodes"),
    same("2G", "-t ext4 -O ^dir_index"),
    same("2G", "-t ext4 -O ^filetype"),
    same("2G", "-t ext4 -O ^ext_attr"),
    same("2G", "-t ext4 -O ^large_file,^huge_file,^dir_nlink"),
    // Values that the superblock only records.
    same("2G", "-t ext4 -i 1048576 -m 1 -L hello -M /some/where -e panic"),
    same("2G", "-t ext4 -m 0 -e remount-ro"),
    same("2G", "-t ext4 -m 0.5"),
    same("2G", "-t ext4 -m 50"),
    same("2G", "-t ext4 -E test_fs"),
    same("4100M", "-t ext4 -E stride=16,stripe_width=64"),
    same("524704K", "-t ext2 -b 8192 -E stride=16,stripe_width=64"),
    same("2G", "-t ext4 -E root_owner=1000:1001"),
    same("2G", "-t ext4 -E lazy_itable_init=0,lazy_journal_init=1,nodiscard"),
    // Usage types.
    same("2G", "-t ext4 -T news"),
    same("2G", "-t ext4 -T small"),
    same("2G", "-t ext4 -T floppy"),
    same("2G", "-t ext4 -T big"),
    same("2G", "-t ext4 -T huge"),
    same("100M", "-t ext4 -T default"),
    same("600M", "-t ext4 -T largefile"),
    same("600M", "-t ext4 -T largefile4"),
    // Sizes near limits: a page, the smallest journal, a group, a tail that is too small to keep.
    same("512K", "-t ext4"),
    same("1M", "-t ext4"),
    same("1500K", "-t ext2"),
    same("1500K", "-t ext4"),
    same("3M", "-t ext2"),
    same("2047K", "-t ext3 -b 1024"),
    same("2047K", "-t ext4 -b 1024"),
    same("2048K", "-t ext4 -b 1024"),
    same("8188K", "-t ext4 -b 4096"),
    same("8192K", "-t ext4 -b 4096"),
    same("8192K", "-t ext4 -b 1024"),
    same("8193K", "-t ext4 -b 1024"),
    same("8500K", "-t ext4 -b 1024"),
    same("9000K", "-t ext4 -b 1024"),
    same("16385K", "-t ext4 -b 1024"),
    same("131068K", "-t ext4 -b 4096"),
    same("128M", "-t ext4 -b 4096"),
    same("131076K", "-t ext4 -b 4096"),
    same("132M", "-t ext4 -b 4096"),
    same("135M", "-t ext4 -b 4096"),
    same("140M", "-t ext4 -b 4096"),
    same("129M", "-t ext4"),
];
