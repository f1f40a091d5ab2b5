//! Trees of unusual shape: very many names, very large and very fragmented files, and values at limits.
//!
//! The heavy ones are ignored by default; `cargo test --release -p extant-cli --test build_shapes --
//! --ignored` runs them (each a minute or less, up to 2 GB in /dev/shm).

use crate::common;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::common::{
    SOURCE, Tar, assert_has, assert_mounts_equal, build, build_from_stream, debugfs_stat, try_build,
};
use extant_testkit::trees::Random;
use extant_testkit::{
    DiffOptions, LoopMount, Manifest, debugfs, dumpe2fs, e2fsck_clean, is_root, run, scratch,
};

struct Bench {
    scratch: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let scratch = scratch();
        std::fs::create_dir(scratch.path().join("tree")).unwrap();
        Self { scratch }
    }

    fn tree(&self) -> PathBuf {
        self.scratch.path().join("tree")
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join("image")
    }

    /// Builds the tree, checks the image and compares it with the tree.
    fn build_and_compare(&self, args: &[&str]) -> serde_json::Value {
        let mut all = args!["--from", self.tree()].to_vec();
        all.extend(args.iter().map(std::ffi::OsString::from));
        let report = build(&self.image(), &all);
        e2fsck_clean(&self.image());
        assert_mounts_equal(&self.image(), &Manifest::of(&self.tree()), &DiffOptions::default());
        report
    }
}

/// Builds a directory of `count` names from a stream. The names are links to a few files (an inode has at
/// most 65,000).
fn many_names(count: usize, options: &[&str], name: impl Fn(usize) -> String + Sync) {
    const PER_FILE: usize = 50_000;
    let bench = Bench::new();
    let image = bench.image();
    let built = build_from_stream(&image, options, |tar| {
        for i in 0..count {
            let path = format!("many/{}", name(i));
            match i % PER_FILE {
                0 => tar.file(path, ""),
                _ => tar.link(path, format!("many/{}", name(i - i % PER_FILE))),
            };
        }
    });
    let report = built.report();
    assert_eq!(report["files"], count.div_ceil(PER_FILE));
    assert_eq!(report["extra_links"], count - count.div_ceil(PER_FILE));
    e2fsck_clean(&image);
    if !is_root() {
        eprintln!("not root: not mounted and compared");
        return;
    }
    let mount = LoopMount::read_only(&image).unwrap();
    let dir = mount.path().join("many");
    // The kernel lists each name once, and finds the same names by lookup, through the index.
    let mut seen = vec![false; count];
    let mut names: Vec<String> =
        std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), count);
    names.sort_unstable();
    let mut expected: Vec<String> = (0..count).map(&name).collect();
    expected.sort_unstable();
    assert!(names == expected, "the names differ");
    let random = &mut Random::new(count as u64);
    for _ in 0..20_000.min(count) {
        let i = random.below(count as u64) as usize;
        seen[i] = true;
        let metadata = std::fs::symlink_metadata(dir.join(name(i))).unwrap();
        let first = std::fs::symlink_metadata(dir.join(name(i - i % PER_FILE))).unwrap();
        assert_eq!(metadata.ino(), first.ino(), "{}", name(i));
        assert_eq!(metadata.nlink(), PER_FILE.min(count - (i - i % PER_FILE)) as u64);
        assert!(std::fs::symlink_metadata(dir.join(format!("{}-not", &name(i)[..4]))).is_err());
    }
}

#[test]
fn a_directory_of_200_000_names() {
    many_names(200_000, &[], |i| format!("name-{i}"));
}

#[test]
#[ignore = "heavy: half a minute; a_directory_of_200_000_names does the same with fewer"]
fn a_directory_of_2_000_000_names() {
    many_names(2_000_000, &[], |i| format!("a-name-of-some-length-{i:08}"));
}

/// The same from a directory: two million empty files, so two million inodes.
#[test]
#[ignore = "heavy: a minute, 2 GB"]
fn two_million_inodes() {
    let bench = Bench::new();
    let image = bench.image();
    let built = build_from_stream(&image, ["-I", "128"], |tar| {
        for i in 0..2_000_000 {
            tar.file(format!("many/{i}"), "");
        }
    });
    assert_eq!(built.report()["files"], 2_000_000);
    e2fsck_clean(&image);
    if is_root() {
        let mount = LoopMount::read_only(&image).unwrap();
        let mut inodes: Vec<u64> = std::fs::read_dir(mount.path().join("many"))
            .unwrap()
            .map(|entry| std::os::unix::fs::DirEntryExt::ino(&entry.unwrap()))
            .collect();
        inodes.sort_unstable();
        inodes.dedup();
        assert_eq!(inodes.len(), 2_000_000);
    }
}

/// Names of 255 bytes, three in a block of 1 KiB: more leaves than two levels of index can hold.
#[test]
fn names_of_255_bytes_in_small_blocks_need_large_dir() {
    let name = |i: usize| format!("{i:0>255}");
    many_names(40_000, &["-b", "1024"], name);
    many_names(50_000, &["-b", "1024", "-O", "large_dir"], name);
    let bench = Bench::new();
    let refused = build_from_stream(&bench.image(), ["-b", "1024"], |tar| {
        for i in 0..50_000 {
            tar.file(format!("many/{}", name(i)), "");
        }
    });
    let said = refused.code(SOURCE);
    assert_has(said, "/many: ");
    assert_has(said, "large_dir");
    common::assert_names(bench.scratch.path(), &["tree"]);
}

/// More subdirectories than a link count can represent: the link count is 1, "not counted".
#[test]
fn seventy_thousand_subdirectories_in_one() {
    let bench = Bench::new();
    let image = bench.image();
    let make = |tar: &mut Tar<_>| (0..70_000).for_each(|i| _ = tar.dir(format!("many/{i}")));
    build_from_stream(&image, ["-b", "1024"], make).code(0);
    e2fsck_clean(&image);
    assert_has(&debugfs_stat(&image, "/many"), "Links: 1 ");
    if is_root() {
        let mount = LoopMount::read_only(&image).unwrap();
        let many = mount.path().join("many");
        assert_eq!(std::fs::metadata(&many).unwrap().nlink(), 1);
        let names: BTreeSet<u32> = std::fs::read_dir(&many)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        assert!(names.into_iter().eq(0..70_000));
        assert_eq!(std::fs::metadata(many.join("69999")).unwrap().nlink(), 2);
    }
    common::remove(&image);
    let refused = build_from_stream(&image, ["-b", "1024", "-O", "^dir_nlink"], make);
    assert_has(refused.code(SOURCE), "dir_nlink");
}

#[test]
fn a_sparse_file_of_3_tib() {
    let bench = Bench::new();
    let file = std::fs::File::create(bench.tree().join("large")).unwrap();
    file.set_len(3 << 40).unwrap();
    for (i, offset) in [0, 4096, 1 << 32, (1 << 41) + 12_288, (3 << 40) - 1].into_iter().enumerate() {
        file.write_all_at(&[i as u8 + 1], offset).unwrap();
    }
    let report = bench.build_and_compare(&[]);
    assert_eq!(report["content_bytes"], 3u64 << 40);
    // The first two written blocks are one run.
    assert_eq!(report["data_bytes"], 5 * 4096);
    assert!(report["image_bytes"].as_u64().unwrap() < 1 << 20);
    for options in [&["-b", "1024"][..], &["-O", "bigalloc"], &["-t", "ext3", "-O", "huge_file"]] {
        let mut all = args!["--force", "--from", bench.tree()].to_vec();
        all.extend(options.iter().map(std::ffi::OsString::from));
        build(&bench.image(), &all);
        e2fsck_clean(&bench.image());
        let options = DiffOptions { holes: extant_testkit::Holes::Ignore, ..DiffOptions::default() };
        assert_mounts_equal(&bench.image(), &Manifest::of(&bench.tree()), &options);
    }
    // A file that the kernel would not open is refused: without huge_file, sectors are counted in 32 bits.
    for options in
        [&["-t", "ext3"][..], &["-t", "ext2"], &["-O", "^huge_file"], &["-t", "ext3", "-b", "1024"]]
    {
        let mut all = args!["--force", "--from", bench.tree()].to_vec();
        all.extend(options.iter().map(std::ffi::OsString::from));
        let refused = try_build(&bench.image(), &all);
        assert_has(refused.code(SOURCE), "/large: ");
    }
}

/// The longest possible file of ext3: one more block is refused, and the kernel opens this file.
#[test]
fn the_longest_file_without_huge_file() {
    // Data and map of a file without holes have together at most 2^32 - 1 sectors of 512 bytes.
    let countable = u64::from(u32::MAX) / 8;
    let (block_size, longest) = (4096, countable - map_len(countable));
    let bench = Bench::new();
    let file = std::fs::File::create(bench.tree().join("large")).unwrap();
    file.set_len(longest * block_size).unwrap();
    file.write_all_at(b"the end", longest * block_size - 7).unwrap();
    bench.build_and_compare(&["-t", "ext3"]);
    file.set_len((longest + 1) * block_size).unwrap();
    let refused = try_build(&bench.image(), args!["--force", "-t", "ext3", "--from", bench.tree()]);
    assert_has(refused.code(SOURCE), "huge_file");
}

/// Number of map blocks of a file with that many blocks of 4 KiB: the first twelve need none, and then follow
/// trees of one, two and three levels with 1,024 entries per block.
fn map_len(blocks: u64) -> u64 {
    let third = blocks - 12 - 1024 - 1024 * 1024;
    1 + (1 + 1024) + (1 + third.div_ceil(1024 * 1024) + third.div_ceil(1024))
}

/// Far more data than the device could hold without holes, on a device of 300 GiB.
#[test]
fn an_image_of_300_gib_of_sparse_files() {
    let bench = Bench::new();
    let random = &mut Random::new(300);
    for i in 0..300 {
        let file = std::fs::File::create(bench.tree().join(format!("{i}"))).unwrap();
        file.set_len((1 << 30) + random.below(1 << 30)).unwrap();
        for _ in 0..20 {
            let len = 1 + random.below(20_000) as usize;
            file.write_all_at(&random.bytes(len), random.below(1 << 30)).unwrap();
        }
    }
    let report = bench.build_and_compare(&["--size", "300G"]);
    assert_eq!(report["image_bytes"], 300u64 << 30);
    assert!(report["content_bytes"].as_u64().unwrap() > 300 << 30);
    let metadata = std::fs::metadata(bench.image()).unwrap();
    assert_eq!(metadata.len(), 300 << 30);
    assert!(metadata.blocks() * 512 < 1 << 30, "{} blocks on disk", metadata.blocks());
    assert!(report["written_bytes"].as_u64().unwrap() < 1 << 30);
}

/// Every other page has data: so many extents that their tree has several levels.
fn scattered(extents: u64, block_size: &str) {
    let bench = Bench::new();
    let file = std::fs::File::create(bench.tree().join("scattered")).unwrap();
    file.set_len(extents * 8192).unwrap();
    let random = &mut Random::new(extents);
    let page = &mut random.bytes(4096);
    for i in 0..extents {
        page[..8].copy_from_slice(&i.to_le_bytes());
        file.write_all_at(page, i * 8192).unwrap();
    }
    let report = bench.build_and_compare(&["-b", block_size]);
    assert_eq!(report["data_bytes"], extents * 4096);
    assert_eq!(report["content_bytes"], extents * 8192);
}

#[test]
fn a_file_of_10_000_extents() {
    scattered(10_000, "1024");
    scattered(10_000, "4096");
}

#[test]
#[ignore = "heavy: 20 seconds, 900 MB"]
fn a_file_of_100_000_extents() {
    scattered(100_000, "1024");
}

/// An extent has at most 32,768 blocks (128 MiB); a longer file has several, directly after each other.
#[test]
fn a_file_of_300_mib_lies_in_one_piece() {
    let bench = Bench::new();
    let mut file = std::fs::File::create(bench.tree().join("large")).unwrap();
    let chunk = Random::new(7).bytes(1 << 20);
    for _ in 0..300 {
        file.write_all(&chunk).unwrap();
    }
    file.write_all(b"and a bit").unwrap();
    bench.build_and_compare(&[]);
    let blocks: Vec<u64> =
        debugfs(&bench.image(), "blocks /large").split_whitespace().flat_map(str::parse).collect();
    assert_eq!(blocks.len(), 300 * 256 + 1);
    let breaks = blocks.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    // Group metadata may lie between them: copies of superblock and descriptors at the start of groups 1 and
    // 3.
    assert!(breaks <= 3, "{breaks} breaks");
    let extents = debugfs(&bench.image(), "dump_extents -l /large");
    assert!(extents.lines().count() <= 1 + 6, "{extents}");
}

#[test]
fn as_many_hard_links_as_an_inode_can_have() {
    let bench = Bench::new();
    let image = bench.image();
    let make = |count: u32| {
        move |tar: &mut Tar<_>| {
            tar.file("first", "many names");
            (1..count).for_each(|i| _ = tar.link(format!("links/{i}"), "first"));
        }
    };
    build_from_stream(&image, ["-b", "4096"], make(65_000)).code(0);
    e2fsck_clean(&image);
    assert_has(&debugfs_stat(&image, "/first"), "Links: 65000 ");
    common::remove(&image);
    let refused = build_from_stream(&image, ["-b", "4096"], make(65_001));
    assert_has(refused.code(SOURCE), "65001 hard links are more than the 65000 that ext4 allows");
    common::assert_names(bench.scratch.path(), &["tree"]);
}

/// More owners than fit into one block of a quota file. e2fsck recounts the usage of each.
#[test]
fn three_hundred_owners_with_quota() {
    let bench = Bench::new();
    let mut tar = Tar::in_memory();
    let random = &mut Random::new(300);
    for i in 0..300u32 {
        // Nearby and distant IDs, up to the maximum of a tar header.
        tar.owner = (i * 7 % 300 * (1 + i % 3 * 6000), 1 + i % 40 * 50_000);
        for j in 0..i % 4 + 1 {
            let len = random.below(9000) as usize;
            tar.file(format!("{i}-{j}"), random.bytes(len));
        }
        tar.dir(format!("dir-{i}"));
    }
    let tar = tar.save(bench.scratch.path().join("x.tar"));
    for options in ["quota", "quota,project", "quota,project,bigalloc", "quota,^extent,^64bit"] {
        for block_size in ["1024", "4096"] {
            build(&bench.image(), args!["-O", options, "-b", block_size, "--tar", &tar]);
            e2fsck_clean(&bench.image());
            common::remove(&bench.image());
        }
    }
    // The judge works: 4 KiB too many in one entry are reported.
    build(&bench.image(), args!["-O", "quota", "--tar", &tar]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(bench.image()).unwrap();
    let listing = debugfs(&bench.image(), "blocks <3>");
    let mut units = listing.split_whitespace().flat_map(str::parse).flat_map(units_of_1k);
    let entries = units.find(|&at| {
        // A block of entries: link pointers of 0, the count of entries (at most 14), zeros; then the first
        // entry, with its space at byte 64.
        let mut head = [0; 16];
        file.read_exact_at(&mut head, at).unwrap();
        head[..8] == [0; 8] && (1..15).contains(&head[8]) && head[9..] == [0; 7]
    });
    let space_at = entries.expect("a block of entries") + 64;
    let mut space = [0; 8];
    file.read_exact_at(&mut space, space_at).unwrap();
    file.write_all_at(&(u64::from_le_bytes(space) + 4096).to_le_bytes(), space_at).unwrap();
    let judged = extant_testkit::command("e2fsck").arg("-fn").arg(bench.image()).output().unwrap();
    assert_eq!(judged.status.code(), Some(4), "{}", String::from_utf8_lossy(&judged.stderr));
}

/// Byte offsets of the four quota blocks in a file-system block of 4 KiB.
fn units_of_1k(block: u64) -> [u64; 4] {
    [0, 1, 2, 3].map(|unit| block * 4096 + unit * 1024)
}

/// At most 1,024 inodes share a block of attributes.
#[test]
fn five_thousand_files_share_their_attributes() {
    let bench = Bench::new();
    let value = Random::new(5).bytes(2000);
    let mut tar = Tar::in_memory();
    for i in 0..5000 {
        tar.pax("SCHILY.xattr.user.shared", &value).file(format!("{i}"), "");
    }
    let tar = tar.save(bench.scratch.path().join("x.tar"));
    for features in ["^quota", "quota", "^metadata_csum", "bigalloc,quota"] {
        let report = build(&bench.image(), args!["-O", features, "--tar", &tar]);
        e2fsck_clean(&bench.image());
        assert_eq!(report["xattr_sets"], 1);
        let blocks: BTreeSet<String> = (0..5000)
            .step_by(100)
            .map(|i| {
                let stat = debugfs_stat(&bench.image(), &format!("/{i}"));
                let at = stat.find("File ACL: ").unwrap() + 10;
                stat[at..].split_whitespace().next().unwrap().to_owned()
            })
            .collect();
        assert_eq!(blocks.len(), 5, "{blocks:?}");
        assert!(!blocks.contains("0"));
        if is_root() {
            let mount = LoopMount::read_only(&bench.image()).unwrap();
            let copy = Manifest::of(mount.path());
            let wrong = (0..5000).filter(|i| {
                let entry = &copy.entries[format!("{i}").as_bytes()];
                entry.xattrs.get(&b"user.shared"[..]) != Some(&value)
            });
            assert_eq!(wrong.count(), 0);
        }
        common::remove(&bench.image());
    }
}

/// Clusters of two blocks, and clusters larger than the longest extent.
#[test]
fn clusters_of_unusual_size() {
    let bench = Bench::new();
    std::fs::write(bench.tree().join("small"), "x").unwrap();
    let large = Random::new(9).bytes(70 << 20);
    std::fs::write(bench.tree().join("large"), large).unwrap();
    let holes = std::fs::File::create(bench.tree().join("holes")).unwrap();
    holes.set_len(200 << 20).unwrap();
    holes.write_all_at(b"middle", 100 << 20).unwrap();
    for (block_size, cluster) in [("1024", "2048"), ("1024", "64M"), ("4096", "8192"), ("4096", "1M")] {
        let args = ["-O", "bigalloc,quota", "-b", block_size, "-C", cluster, "--force"];
        let mut all = args!["--from", bench.tree()].to_vec();
        all.extend(args.iter().map(std::ffi::OsString::from));
        build(&bench.image(), &all);
        e2fsck_clean(&bench.image());
        if is_root() {
            let options = DiffOptions { holes: extant_testkit::Holes::Ignore, ..DiffOptions::default() };
            assert_mounts_equal(&bench.image(), &Manifest::of(&bench.tree()), &options);
        }
    }
}

/// A large tree of small files, compared file by file.
#[test]
fn forty_thousand_small_files() {
    let bench = Bench::new();
    extant_testkit::trees::many(&bench.tree(), 40_000, 1);
    bench.build_and_compare(&[]);
    let dump = dumpe2fs(&bench.image());
    assert!(dump.number("Free blocks") * 50 < dump.number("Block count"), "an image of auto size is full");
}

/// A tree that exists on every Debian system, twice: as a directory and as a tar archive of it.
#[test]
#[ignore = "heavy: depends on the machine's /usr/share"]
fn usr_share_is_the_same_from_a_directory_and_from_a_tar() {
    let bench = Bench::new();
    let source = Path::new("/usr/share");
    build(&bench.image(), args!["--from", source]);
    e2fsck_clean(&bench.image());
    assert_mounts_equal(&bench.image(), &Manifest::of(source), &DiffOptions::default());
    let tar = bench.scratch.path().join("x.tar");
    let mut args =
        args!["--format=posix", "--xattrs", "--xattrs-include=*", "--acls", "--sparse", "-cf", &tar].to_vec();
    args.extend(args!["-C", source, "."]);
    run("tar", args);
    let second = bench.scratch.path().join("second");
    build(&second, args!["--tar", &tar]);
    run("cmp", [&bench.image(), &second]);
    let refused = try_build(&second, args!["--tar", &tar]);
    refused.code(common::EXISTS);
}
