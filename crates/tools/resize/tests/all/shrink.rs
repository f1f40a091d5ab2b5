//! Images shrink with everything in them, to given sizes and to the smallest one, and grow again.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_resize::{ResizeFault, Size};
use extant_testkit::{command, debugfs, run};
use extant_volume::{Allocate, Follow, New, OpenOptions, Volume};

use crate::grow::{check_clean, grow as resize_to};
use crate::tree::tree_of;

const KINDS: &[(&str, &[&str], &str)] = &[
    ("ext4_1k", &["-t", "ext4", "-b", "1024"], "40M"),
    ("ext4_4k", &["-t", "ext4", "-b", "4096"], "160M"),
    ("ext2_1k", &["-t", "ext2", "-b", "1024"], "40M"),
    ("ext3_1k", &["-t", "ext3", "-b", "1024"], "40M"),
    ("no_flex", &["-t", "ext4", "-O", "^flex_bg", "-b", "1024"], "40M"),
    ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit", "-b", "1024"], "40M"),
    ("orphan_file", &["-t", "ext4", "-O", "orphan_file", "-b", "1024"], "40M"),
    ("quota", &["-t", "ext4", "-O", "quota", "-b", "1024"], "40M"),
    ("meta_bg", &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024"], "40M"),
    ("no_reserve", &["-t", "ext4", "-O", "^resize_inode", "-b", "1024"], "40M"),
    ("ea_inode", &["-t", "ext4", "-O", "ea_inode", "-b", "1024"], "40M"),
    ("large_desc", &["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "2000"], "60M"),
    ("stride", STRIDE, "60M"),
    ("bigalloc", BIGALLOC, "60M"),
    ("bigalloc_4k", &["-t", "ext4", "-O", "bigalloc,quota", "-C", "65536", "-b", "4096"], "300M"),
    (
        "bigalloc_groups",
        &[
            "-t",
            "ext4",
            "-O",
            "bigalloc,^resize_inode",
            "-C",
            "4096",
            "-b",
            "1024",
            "-g",
            "1024",
            "-N",
            "8000",
        ],
        "60M",
    ),
    ("bigalloc_ext2", &["-t", "ext4", "-O", "bigalloc,^has_journal", "-C", "8192", "-b", "1024"], "60M"),
];

/// Metadata shares clusters.
pub(crate) const BIGALLOC: &[&str] = &[
    "-t", "ext4", "-O", "bigalloc", "-C", "16384", "-b", "1024", "-g", "1024", "-N", "4000", "-J", "size=1",
];

/// Bitmaps and inode tables are far behind the beginnings of their groups.
pub(crate) const STRIDE: &[&str] =
    &["-t", "ext4", "-O", "^flex_bg", "-b", "1024", "-g", "2048", "-N", "2000", "-E", "stride=384"];

/// Files of all sizes, and things with blocks of their own.
fn fill(dir: &Path) {
    removed(&dir.join("first"));
    kept(dir);
    removed(&dir.join("last"));
}

/// Files that are removed later: those that mke2fs writes first leave room at the beginning.
fn removed(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    for i in 0..30u32 {
        std::fs::write(dir.join(i.to_string()), vec![i as u8; 200_000]).unwrap();
    }
}

fn kept(dir: &Path) {
    std::fs::create_dir_all(dir.join("kept/sub")).unwrap();
    std::fs::write(dir.join("kept/large"), (0..3_000_000).map(|at| (at / 1000) as u8).collect::<Vec<_>>())
        .unwrap();
    for i in 0..90u32 {
        let bytes: Vec<u8> = (0..i * 1500).map(|at| (at / 7 + i) as u8).collect();
        std::fs::write(dir.join(format!("kept/{i}")), bytes).unwrap();
    }
    for i in 0..700u32 {
        std::fs::write(dir.join(format!("kept/sub/a-rather-long-name-{i}")), "").unwrap();
    }
    std::os::unix::fs::symlink("x".repeat(300), dir.join("kept/long-link")).unwrap();
    std::os::unix::fs::symlink("short", dir.join("kept/short-link")).unwrap();
    std::fs::hard_link(dir.join("kept/7"), dir.join("kept/sub/hard")).unwrap();
    for i in 40..50 {
        let path = dir.join(format!("kept/{i}"));
        let value = format!("user.big=0x{}", "ab".repeat(600 + i % 2));
        let (name, value) = value.split_once('=').unwrap();
        let _ = command("setfattr").args(["-n", name, "-v", value]).arg(&path).output();
    }
    use std::os::unix::fs::FileExt;
    let sparse = std::fs::File::create(dir.join("kept/sparse")).unwrap();
    for at in 0..40 {
        sparse.write_at(b"data", at * 300_000).unwrap();
    }
}

/// Makes an image whose files are far from its beginning.
pub(crate) fn image(dir: &Path, mke2fs: &[&str], size: &str) -> std::path::PathBuf {
    let source = dir.join("tree");
    if !source.exists() {
        fill(&source);
    }
    let image = dir.join("shrink.img");
    let _ = std::fs::remove_file(&image);
    let mut args: Vec<&str> = vec!["-q", "-F"];
    args.extend(mke2fs);
    args.extend(["-d", source.to_str().unwrap(), image.to_str().unwrap(), size]);
    run("mke2fs", args);
    command("e2fsck").arg("-fy").arg(&image).output().unwrap();
    let device = Arc::new(FileDevice::open(&image, true).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    for dir in [b"/first".as_slice(), b"/last"] {
        let dir = volume.names().resolve(dir, Follow::Links).unwrap();
        for i in 0..30 {
            volume.names().unlink(dir.ino(), i.to_string().as_bytes()).unwrap();
        }
    }
    let root = volume.root().unwrap().ino();
    let sb = volume.superblock();
    // Others keep the layout that mke2fs has made.
    let has_clusters = sb.log_cluster_size > sb.log_block_size;
    for (name, len) in [(&b"patchy"[..], 120u64), (b"sparse", 900)].into_iter().filter(|_| has_clusters) {
        patchy(&volume, root, name, len);
    }
    volume.close().unwrap();
    // It makes extent trees lower.
    command("e2fsck").arg("-fy").arg(&image).output().unwrap();
    image
}

/// A file with written and unwritten extents of one block and of a few: with bigalloc they share clusters.
fn patchy(volume: &Volume, dir: Ino, name: &[u8], len_blocks: u64) {
    let file = volume.names().create(dir, name, &New::file(0o644)).unwrap();
    let block = 1024u64 << volume.superblock().log_block_size;
    volume.files().fallocate(file.ino(), Allocate::Reserve, 0, len_blocks * block).unwrap();
    for n in (0..len_blocks).filter(|n| n % 7 == 1 || n % 32 > 25) {
        volume.files().write_at(file.ino(), n * block, &vec![(n % 250) as u8 + 1; block as usize]).unwrap();
    }
    // Beyond what is allocated: one block in each cluster, and some at its end.
    for n in 0..20 {
        let at = (len_blocks + n * 16 + n % 16) * block;
        volume.files().write_at(file.ino(), at, &vec![(n % 250) as u8 + 1; block as usize]).unwrap();
    }
}

/// The new end is before bitmaps and tables of the last group, in one size after the other.
#[test]
fn bitmaps_and_tables_of_the_last_group_move() {
    let dir = extant_testkit::scratch();
    for (features, seldom) in [("metadata_csum", 1), ("^metadata_csum,uninit_bg", 4)] {
        let mut mke2fs = STRIDE.to_vec();
        mke2fs.extend(["-O", features]);
        let image = image(dir.path(), &mke2fs, "60M");
        let tree = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
        let mut size = 58 << 20;
        while size > 40 << 20 {
            let name = format!("{features} to {size}");
            resize_to(&image, Size::Bytes(size)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            check_clean(&name, &image);
            size -= seldom * (300 << 10);
        }
        let out = command("e2fsck").arg("-fn").arg(&image).output().unwrap();
        assert!(out.status.success(), "{features}: {}", String::from_utf8_lossy(&out.stdout));
        let now = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
        assert_eq!(now, tree, "{features}");
    }
}

/// The new end is in the middle of files whose extents share clusters, and of metadata that shares clusters.
#[test]
fn clusters_move_as_a_whole() {
    let dir = extant_testkit::scratch();
    let kinds: [&[&str]; 3] = [
        BIGALLOC,
        &["-t", "ext4", "-O", "bigalloc,^has_journal", "-C", "8192", "-b", "1024"],
        // Bitmaps and tables are far behind the beginnings of their groups.
        &[
            "-t",
            "ext4",
            "-O",
            "bigalloc,^flex_bg",
            "-C",
            "4096",
            "-b",
            "1024",
            "-g",
            "512",
            "-N",
            "2000",
            "-E",
            "stride=384",
        ],
    ];
    for mke2fs in kinds {
        let image = image(dir.path(), mke2fs, "60M");
        let tree = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
        let (mut size, mut moved) = (60 << 20, 0);
        let least = loop {
            size -= 531 << 10;
            let name = format!("{mke2fs:?} to {size}");
            match resize_to(&image, Size::Bytes(size)) {
                Ok(report) => moved += report.moved,
                Err(ResizeFault::TooSmall { least, .. }) => break least,
                // Files are in the way: see docs/resize.md.
                Err(ResizeFault::NoRun { .. }) => {}
                Err(fault) => panic!("{name}: {fault}"),
            }
            check_clean(&name, &image);
            let now = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
            assert_eq!(now, tree, "{name}");
        };
        let out = command("e2fsck").arg("-fn").arg(&image).output().unwrap();
        assert!(out.status.success(), "{mke2fs:?}: {}", String::from_utf8_lossy(&out.stdout));
        assert!(moved > 0);
        eprintln!("{mke2fs:?}: the least is {least}, {moved} moved");
    }
}

/// The new end is in an extent that shares its first cluster with the extents before it, and the leaf has no
/// room for another entry: the extent cannot be split at the new end. So all extents that share the cluster
/// move, although they are before the new end.
#[test]
fn a_full_leaf_moves_the_chain_that_crosses_the_new_end() {
    const CLUSTER: u64 = 16;
    let dir = extant_testkit::scratch();
    let path = dir.path().join("full.img");
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384", "-J", "size=1"];
    run("mke2fs", args.into_iter().chain([path.to_str().unwrap(), "32M"]));
    let volume = Volume::open(Arc::new(FileDevice::open(&path, true).unwrap()), &OpenOptions::default());
    let volume = volume.unwrap();
    let root = volume.root().unwrap().ino();
    // It makes the next file begin late, and then leaves room before it.
    let first = volume.names().create(root, b"first", &New::file(0o644)).unwrap();
    volume.files().fallocate(first.ino(), Allocate::Reserve, 0, 8 << 20).unwrap();
    // Extents of one block each up to block 82, then two: 84, as many as a leaf of 1 KiB holds.
    let file = volume.names().create(root, b"file", &New::file(0o644)).unwrap();
    volume.files().fallocate(file.ino(), Allocate::Reserve, 0, 1100 << 10).unwrap();
    for n in (1..82).step_by(2).chain([1099]) {
        volume.files().write_at(file.ino(), n << 10, &[n as u8 + 1; 1024]).unwrap();
    }
    volume.names().unlink(root, b"first").unwrap();
    volume.close().unwrap();
    let entries = debugfs(&path, "dump_extents -l /file");
    assert_eq!(entries.lines().filter(|line| line.contains("/ 84 ")).count(), 84, "{entries}");
    let block =
        |n: u64| debugfs(&path, &format!("bmap /file {n}")).split_whitespace().next().unwrap().parse();
    let before: Vec<u64> = [0, 79, 80].map(|n| block(n).unwrap()).to_vec();
    let tree = tree_of(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap();
    let end = (before[0] + 500) / CLUSTER * CLUSTER;

    resize_to(&path, Size::Bytes(end << 10)).unwrap();
    check_clean("a full leaf", &path);
    let out = command("e2fsck").arg("-fn").arg(&path).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(tree_of(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap(), tree);
    let after: Vec<u64> = [0, 79, 80].map(|n| block(n).unwrap()).to_vec();
    assert_eq!(after[..2], before[..2], "what shares no cluster stays");
    assert!(after[2] != before[2] && before[2] < end, "what shares a cluster moves: {before:?} {after:?}");
}

/// Block maps do not move in clusters. The refusal comes before the first move.
#[test]
fn a_block_map_of_bigalloc_is_refused_before_anything_moves() {
    let dir = extant_testkit::scratch();
    let image = image(dir.path(), &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-b", "1024"], "60M");
    let out = command("debugfs").args(["-w", "-R", "sif /patchy flags 0"]).arg(&image).output().unwrap();
    assert!(out.status.success());
    // Free space and tables of all groups.
    let runs = |image: &Path| {
        let stats = debugfs(image, "stats");
        stats.split_once("Group ").map(|(_, groups)| groups.to_owned()).unwrap()
    };
    let before = runs(&image);
    let fault = resize_to(&image, Size::Bytes(30 << 20)).unwrap_err().to_string();
    assert!(fault.contains("a file with a block map"), "{fault}");
    assert_eq!(runs(&image), before, "nothing moves");
}

#[test]
fn every_kind_shrinks_to_its_least_and_grows_again() {
    let dir = extant_testkit::scratch();
    for (name, mke2fs, size) in KINDS {
        let begun = std::time::Instant::now();
        let image = image(dir.path(), mke2fs, size);
        let tree = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
        let full = std::fs::metadata(&image).unwrap().len();
        for wanted in
            [Size::Bytes(full / 10 * 8), Size::Bytes(full / 2), Size::Min, Size::Bytes(full / 3 * 4)]
        {
            let name = format!("{name} to {wanted:?}");
            let report = resize_to(&image, wanted).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert_eq!(std::fs::metadata(&image).unwrap().len(), report.after.bytes(), "{name}");
            let out = command("e2fsck").arg("-fn").arg(&image).output().unwrap();
            assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stdout));
            check_clean(&name, &image);
            let now = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
            assert_eq!(now, tree, "{name}");
            if wanted == Size::Min && !extant_testkit::not_root() {
                let view = extant_testkit::walk::KernelView::open(&image, None);
                view.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            if wanted == Size::Min {
                let again = resize_to(&image, Size::Min).unwrap();
                assert_eq!(again.after.blocks, report.after.blocks, "{name}: the least is the least");
            }
            eprintln!("{name}: {} blocks, {} moved", report.after.blocks, report.moved);
        }
        eprintln!("{name}: {:?}", begun.elapsed());
    }
}

#[test]
fn too_small_a_size_is_refused_with_the_least_one() {
    let dir = extant_testkit::scratch();
    let image = image(dir.path(), &["-t", "ext4", "-b", "1024"], "40M");
    let before = std::fs::read(&image).unwrap();
    let Err(ResizeFault::TooSmall { least, .. }) = resize_to(&image, Size::Bytes(3 << 20)) else {
        panic!("3 MiB are enough");
    };
    assert!(matches!(resize_to(&image, Size::Bytes(least - 1024)), Err(ResizeFault::TooSmall { .. })));
    assert_eq!(std::fs::read(&image).unwrap().len(), before.len());
}
