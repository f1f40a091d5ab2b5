//! Features and options of mke2fs and tune2fs, one by one.

use super::{Recipe, image};
use crate::matrix::Step;
use crate::matrix::work::{attributes, dirs, everything_small, files, mixed, special};

const MIXED: &[Step] = &[Step::Kernel("rw", mixed)];
const INDEXED: &[Step] = &[Step::Kernel("rw", dirs::indexed)];

#[rustfmt::skip]
pub(super) const RECIPES: &[Recipe] = &[
    // Features turned off, one by one.
    image("no-extents", "32M", &["-t", "ext4", "-O", "^extents,^64bit"]).steps(MIXED),
    image("no-dir-index", "16M", &["-t", "ext4", "-b", "1024", "-O", "^dir_index"]).steps(INDEXED),
    image("no-filetype", "16M", &["-t", "ext4", "-O", "^filetype"]).steps(MIXED),
    image("no-64bit", "16M", &["-t", "ext4", "-O", "^64bit"]).steps(MIXED),
    image("no-metadata-csum", "16M", &["-t", "ext4", "-O", "^metadata_csum,^metadata_csum_seed"]).steps(MIXED),
    image("no-csum-seed", "16M", &["-t", "ext4", "-O", "^metadata_csum_seed"]).steps(MIXED),
    image("no-flex-bg", "32M", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]).steps(MIXED),
    image("no-journal", "16M", &["-t", "ext4", "-O", "^has_journal"]).steps(MIXED),
    image("no-huge-file", "16M", &["-t", "ext4", "-O", "^huge_file"]).steps(MIXED),
    image("no-large-file", "16M", &["-t", "ext2", "-O", "^large_file"]).steps(MIXED),
    image("no-resize-inode", "16M", &["-t", "ext4", "-O", "^resize_inode"]).steps(MIXED),
    image("no-sparse-super", "48M", &["-t", "ext4", "-b", "1024", "-O", "^sparse_super,^resize_inode"]).steps(MIXED),
    image("no-extra-isize", "16M", &["-t", "ext4", "-O", "^extra_isize"]).steps(MIXED),
    image("no-dir-nlink", "16M", &["-t", "ext4", "-O", "^dir_nlink"]).steps(MIXED),
    image("no-orphan-file", "16M", &["-t", "ext4", "-O", "^orphan_file"]).steps(MIXED),
    image("no-ext-attr", "16M", &["-t", "ext2", "-O", "^ext_attr"]).steps(MIXED),

    // Checksums.
    image("uninit-bg", "48M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed,uninit_bg"])
        .steps(MIXED),
    image("uninit-bg-64bit-desc", "48M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed,uninit_bg,64bit"])
        .extended("desc_size=128").steps(MIXED),
    image("csum-seed-new-uuid", "32M", &["-t", "ext4", "-b", "1024"])
        .steps(&[Step::Kernel("rw", mixed), Step::Tune2fs(&["-U", "11111111-2222-4333-a444-555555555555"])]),
    image("csum-new-uuid", "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum_seed,^orphan_file"])
        .steps(&[Step::Kernel("rw", mixed), Step::E2fsck(&["-fy"]), Step::Tune2fs(&["-U", "11111111-2222-4333-a444-555555555555"])]),
    image("csum-added-later", "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed,^orphan_file"])
        .steps(&[Step::Kernel("rw", mixed), Step::E2fsck(&["-fyD"]), Step::Tune2fs(&["-O", "metadata_csum"])]),
    image("csum-removed-later", "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum_seed,^orphan_file"])
        .steps(&[Step::Kernel("rw", mixed), Step::E2fsck(&["-fy"]), Step::Tune2fs(&["-O", "^metadata_csum"])]),

    // The layout of group metadata.
    image("meta-bg", "64M", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]).steps(MIXED),
    image("meta-bg-32bit", "64M", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^64bit"]).steps(MIXED),
    image("meta-bg-many-groups", "160M", &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "meta_bg,^resize_inode"])
        .steps(MIXED),
    image("flex-bg-1", "64M", &["-t", "ext4", "-b", "1024", "-G", "1"]).steps(MIXED),
    image("flex-bg-256", "64M", &["-t", "ext4", "-b", "1024", "-G", "256"]).steps(MIXED),
    image("packed-meta-blocks", "64M", &["-t", "ext4", "-b", "1024", "-G", "16"]).extended("packed_meta_blocks=1")
        .steps(MIXED),
    image("sparse-super2", "64M", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"]).steps(MIXED),
    image("sparse-super2-one", "64M", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"])
        .extended("num_backup_sb=1").steps(MIXED),
    image("sparse-super2-none", "64M", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"])
        .extended("num_backup_sb=0").steps(MIXED),
    image("stride", "64M", &["-t", "ext4", "-b", "1024"]).extended("stride=16,stripe_width=64").steps(MIXED),
    image("reserved-gdt", "32M", &["-t", "ext4", "-b", "1024"]).extended("resize=4194304").steps(MIXED),
    image("small-groups", "32M", &["-t", "ext4", "-b", "1024", "-g", "512"]).steps(MIXED),
    image("last-group-cut", "33000K", &["-t", "ext4", "-b", "1024"]).steps(MIXED),
    image("tables-not-zeroed", "64M", &["-t", "ext4", "-b", "1024"]).extended("lazy_itable_init=1,lazy_journal_init=1")
        .steps(&[Step::Kernel("noinit_itable", mixed)]),
    image("grown", "16M", &["-t", "ext4", "-b", "1024"])
        .steps(&[Step::Kernel("rw", mixed), Step::E2fsck(&["-fy"]), Step::Resize2fs("90M"), Step::Kernel("rw", dirs::reuse)]),
    image("shrunk", "90M", &["-t", "ext4", "-b", "1024"])
        .steps(&[Step::Kernel("rw", mixed), Step::E2fsck(&["-fy"]), Step::Resize2fs("20M")]),
    image("bad-blocks", "16M", &["-t", "ext4", "-b", "1024"])
        .steps(&[Step::Kernel("rw", mixed), Step::Host("bad", || b"9000\n9001\n12345\n".to_vec()), Step::E2fsck(&["-fy", "-l", "{dir}/bad"])]),

    // Clusters.
    image("bigalloc-16k", "64M", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]).steps(MIXED),
    image("bigalloc-64k", "64M", &["-t", "ext4", "-O", "bigalloc", "-C", "65536"]).steps(&[Step::Kernel("rw", files::holes)]),
    image("bigalloc-1m", "256M", &["-t", "ext4", "-O", "bigalloc", "-C", "1048576", "-N", "512"]).steps(MIXED),
    image("bigalloc-1k-4k", "64M", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"])
        .steps(&[Step::Kernel("rw", files::fragmented)]),
    image("bigalloc-no-csum", "64M", &["-t", "ext4", "-O", "bigalloc,^metadata_csum,^metadata_csum_seed", "-C", "32768"]).steps(MIXED),

    // Contents of inodes and directories.
    image("large-dir", "32M", &["-t", "ext4", "-b", "1024", "-O", "large_dir"]).steps(INDEXED),
    image("inline-data", "32M", &["-t", "ext4", "-O", "inline_data"]).steps(&[Step::Kernel("rw", attributes::inline_data)]),
    image("inline-data-1k", "32M", &["-t", "ext4", "-b", "1024", "-O", "inline_data"])
        .steps(&[Step::Kernel("rw", attributes::inline_data)]),
    image("inline-data-inode-1024", "32M", &["-t", "ext4", "-I", "1024", "-O", "inline_data"])
        .steps(&[Step::Kernel("rw", attributes::inline_data)]),
    image("inline-data-no-csum", "32M", &["-t", "ext4", "-O", "inline_data,^metadata_csum,^metadata_csum_seed"])
        .steps(&[Step::Kernel("rw", attributes::inline_data)]),
    image("inline-data-by-mke2fs", "48M", &["-t", "ext4", "-O", "inline_data", "-N", "8192"]).source(everything_small),
    image("ea-inode", "64M", &["-t", "ext4", "-O", "ea_inode"]).steps(&[Step::Kernel("rw", attributes::in_inodes)]),
    image("ea-inode-1k", "64M", &["-t", "ext4", "-b", "1024", "-O", "ea_inode"])
        .steps(&[Step::Kernel("rw", attributes::in_inodes)]),
    image("ea-inode-inline-data", "64M", &["-t", "ext4", "-O", "ea_inode,inline_data"])
        .steps(&[Step::Kernel("rw", attributes::in_inodes)]),
    // i_blocks in blocks instead of 512-byte units: 40 blocks of 4 KiB. The kernel does this only for huge
    // files.
    image("huge-file", "16M", &["-t", "ext4"])
        .steps(&[Step::Kernel("rw", mixed), Step::Debugfs(&["sif files/of-163840 flags 0xc0000", "sif files/of-163840 blocks 40"])]),

    // Quotas and projects. This kernel may lack the quota format; then it mounts them read-only.
    image("quota", "32M", &["-t", "ext4"])
        .steps(&[Step::Kernel("rw", mixed), Step::Tune2fs(&["-O", "quota"])]),
    image("quota-by-mke2fs", "48M", &["-t", "ext4", "-O", "quota", "-N", "8192"]).source(everything_small).steps(&[Step::E2fsck(&["-fy"])]),
    image("quota-all-types", "32M", &["-t", "ext4", "-O", "project"])
        .extended("quotatype=usrquota:grpquota:prjquota")
        .source(everything_small_projects)
        .steps(&[
            Step::Debugfs(&["sif projects/a projid 5", "sif projects/b projid 70000", "sif projects flags 0x20080000", "sif projects projid 5"]),
            Step::Tune2fs(&["-O", "quota", "-Q", "usrquota,grpquota,prjquota"]),
        ]),
    image("project", "16M", &["-t", "ext4", "-O", "project"]).source(everything_small_projects)
        .steps(&[Step::Debugfs(&["sif projects/a projid 5", "sif projects/b projid 70000", "sif projects flags 0x20080000"])]),

    // Casefolding, encryption, fs-verity and multiple-mount protection.
    image("casefold", "32M", &["-t", "ext4", "-O", "casefold"]).extended("encoding=utf8").source(everything_small_projects)
        .steps(&[Step::Host("content", || b"content\n".to_vec()), Step::DebugfsBy(casefolded), Step::E2fsck(&["-fyD"])])
        .for_debugfs(),
    image("casefold-strict", "16M", &["-t", "ext4", "-O", "casefold"]).extended("encoding=utf8,encoding_flags=strict")
        .source(everything_small_projects)
        .steps(&[Step::Host("content", || b"content\n".to_vec()), Step::DebugfsBy(casefolded)])
        .for_debugfs(),
    image("encrypt-flag", "16M", &["-t", "ext4", "-O", "encrypt"]).steps(MIXED),
    image("encrypted-tree", "32M", &["-t", "ext4", "-O", "encrypt"]).steps(&[Step::Kernel("rw", special::encrypted)]),
    image("stable-inodes", "16M", &["-t", "ext4", "-O", "encrypt,stable_inodes"]).steps(MIXED),
    // A kernel without fs-verity does not open the file, nor does one with it: the descriptor is invalid.
    image("verity", "32M", &["-t", "ext4", "-O", "verity"])
        .steps(&[Step::Kernel("rw", special::before_verity), Step::Debugfs(&["sif verity flags 0x180000", "sif verity size 100000"])])
        .for_debugfs(),
    image("mmp", "16M", &["-t", "ext4", "-O", "mmp"]).extended("mmp_update_interval=1").steps(MIXED),

    // Journals.
    image("external-journal", "16M", &["-t", "ext4"]).journal(&["-b", "4096"]).steps(MIXED),
    image("external-journal-1k", "16M", &["-t", "ext4", "-b", "1024"]).journal(&["-b", "1024"]).steps(MIXED),
    image("journal-smallest", "16M", &["-t", "ext4", "-b", "1024", "-J", "size=1"]).steps(MIXED),
    image("journal-large", "192M", &["-t", "ext4", "-J", "size=64"]).steps(MIXED),
    image("journal-at-end", "64M", &["-t", "ext4", "-b", "1024", "-J", "location=40000"]).steps(MIXED),
    image("journal-removed", "16M", &["-t", "ext4", "-O", "^orphan_file"])
        .steps(&[Step::Kernel("rw", mixed), Step::Tune2fs(&["-O", "^has_journal"])]),
    image("journal-added", "32M", &["-t", "ext2"])
        .steps(&[Step::Kernel("rw", mixed), Step::Tune2fs(&["-j"]), Step::Kernel("rw", dirs::reuse)]),
    image("fast-commit", "32M", &["-t", "ext4", "-O", "fast_commit"]).steps(MIXED),
    image("orphan-file-large", "32M", &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]).extended("orphan_file_size=256")
        .steps(MIXED),

    // Upgrades from an older format.
    image("ext3-then-ext4", "64M", &["-t", "ext3", "-b", "1024"])
        .steps(&[Step::Kernel("rw", files::indirect), Step::Tune2fs(&["-O", "extents,uninit_bg,dir_index"]), Step::E2fsck(&["-fy"]), Step::Kernel("rw", dirs::reuse)]),
    image("inode-size-grown", "16M", &["-t", "ext3", "-b", "1024", "-I", "128", "-O", "^resize_inode"])
        .steps(&[Step::Kernel("rw", mixed), Step::E2fsck(&["-fy"]), Step::Tune2fs(&["-I", "256"])]),
    image("extents-by-e2fsck", "64M", &["-t", "ext4", "-b", "1024", "-O", "^extents,^64bit,^metadata_csum,^metadata_csum_seed"])
        .steps(&[Step::Kernel("rw", mixed), Step::Tune2fs(&["-O", "extents"]), Step::E2fsck(&["-fy", "-E", "bmap2extent"])]),

    // Hashes of directories: mke2fs's option selects the hash, a flag of the superblock makes it unsigned.
    image("hash-legacy", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Tune2fs(&["-E", "hash_alg=legacy"]), SIGNED, Step::Kernel("rw", dirs::indexed)]),
    image("hash-half-md4", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Tune2fs(&["-E", "hash_alg=half_md4"]), SIGNED, Step::Kernel("rw", dirs::indexed)]),
    image("hash-tea", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Tune2fs(&["-E", "hash_alg=tea"]), SIGNED, Step::Kernel("rw", dirs::indexed)]),
    image("hash-legacy-unsigned", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Tune2fs(&["-E", "hash_alg=legacy"]), UNSIGNED, Step::Kernel("rw", dirs::indexed)]),
    image("hash-half-md4-unsigned", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Tune2fs(&["-E", "hash_alg=half_md4"]), UNSIGNED, Step::Kernel("rw", dirs::indexed)]),
    image("hash-tea-unsigned", "16M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Tune2fs(&["-E", "hash_alg=tea"]), UNSIGNED, Step::Kernel("rw", dirs::indexed)]),
    image("hash-by-e2fsck", "16M", &["-t", "ext4", "-b", "1024", "-O", "^dir_index"])
        .steps(&[Step::Kernel("rw", dirs::indexed), Step::Tune2fs(&["-O", "dir_index"]), Step::E2fsck(&["-fyD"])]),
];

/// `s_flags`: whether hashes treat bytes of names as signed (1) or unsigned (2).
const SIGNED: Step = Step::Debugfs(&["ssv flags 1"]);
const UNSIGNED: Step = Step::Debugfs(&["ssv flags 2"]);

/// A little of everything that `mke2fs -d` copies, and a directory `projects`.
fn everything_small_projects(root: &std::path::Path) {
    let projects = root.join("projects");
    std::fs::create_dir(&projects).expect("an empty directory");
    for (name, len) in [("a", 5000), ("b", 50_000), ("c", 10)] {
        std::fs::write(projects.join(name), vec![b'p'; len]).expect("room");
    }
    for i in 0..100 {
        std::fs::write(root.join(format!("file {i}")), format!("{i}\n")).expect("room");
    }
}

/// A casefolded directory with names that fold, one with too many names for a block, and one below the first.
fn casefolded() -> Vec<String> {
    // EXT4_CASEFOLD_FL and EXT4_EXTENTS_FL.
    const FLAGS: &str = "0x40080000";
    let mut requests: Vec<String> = Vec::new();
    for dir in ["few", "many", "few/below"] {
        requests.push(format!("mkdir {dir}"));
        requests.push(format!("sif {dir} flags {FLAGS}"));
    }
    for name in ["UPPER", "lower", "MiXeD", "\u{c9}COLE", "Stra\u{df}e", "\u{130}stanbul"] {
        requests.push(format!("write {{dir}}/content few/{name}"));
        requests.push(format!("write {{dir}}/content few/below/{name}-below"));
    }
    for i in 0..400 {
        requests.push(format!(
            "write {{dir}}/content many/Entry-{i}-\u{c4}\u{d6}\u{dc}-of-a-directory-with-an-INDEX"
        ));
    }
    requests
}
