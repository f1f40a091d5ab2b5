//! Images equal their sources: a tree with all unusual contents, in every block size and feature set that
//! `build` makes. e2fsck and the kernel are the judges: name by name, byte by byte, hole by hole. The same
//! tree makes the same bytes, regardless of the kind of source.

use crate::common;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{Tar, assert_has, assert_mounts_equal, build, extant, pack, superblock_field, words};
use extant_testkit::trees::{Limits, Random, adversarial_within};
use extant_testkit::{
    DiffOptions, Holes, Kind, LoopMount, Manifest, diff, e2fsck_clean, is_root, not_root, scratch,
};

/// Adjusts the source's manifest before the comparison, for properties that the format cannot store.
type Adjust = fn(&mut Manifest, &mut DiffOptions);

fn nothing(_: &mut Manifest, _: &mut DiffOptions) {}

/// Inodes of 128 bytes store whole seconds from 1901 to 2038; other times are replaced by the nearest one.
fn small_inode_times(source: &mut Manifest, options: &mut DiffOptions) {
    options.nanoseconds = false;
    for entry in source.entries.values_mut() {
        entry.mtime.seconds = entry.mtime.seconds.clamp(i32::MIN.into(), i32::MAX.into());
    }
}

fn clusters_of_64k(_: &mut Manifest, options: &mut DiffOptions) {
    options.holes = Holes::Stay { block_size: 65_536 };
}

/// Creates the tree once and builds it with each set of arguments.
fn every_case(limits: &Limits, cases: &[(&str, Adjust)]) {
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let made = adversarial_within(&tree, limits);
    if is_root() {
        assert_eq!(made.skipped, [""; 0], "the tree is complete");
    } else {
        // Unreadable files would rightly end the build.
        let _ = std::fs::remove_dir_all(tree.join("modes"));
    }
    let source = Manifest::of(&tree);
    let image = scratch.path().join("image");
    for (args, adjust) in cases {
        eprintln!("build {args}");
        let mut all = args!["--from", &tree].to_vec();
        all.extend(words(args));
        build(&image, &all);
        e2fsck_clean(&image);
        let (mut source, mut options) = (source.clone(), DiffOptions::default());
        adjust(&mut source, &mut options);
        assert_mounts_equal(&image, &source, &options);
        common::remove(&image);
    }
}

#[test]
fn trees_in_blocks_of_1_kib_equal_their_source() {
    // Block maps of 1 KiB blocks reach 16 GiB.
    let limits = Limits { sparse_bytes: 8 << 30, ..Limits::for_block_size(1024) };
    every_case(
        &limits,
        &[
            ("-b 1024", nothing),
            ("-b 1024 -t ext2", nothing),
            ("-b 1024 -t ext3", nothing),
            ("-b 1024 -O bigalloc -C 16384", |_, options| options.holes = Holes::Stay { block_size: 16_384 }),
            ("-b 1024 -O ^dir_index,^flex_bg", nothing),
            ("-b 1024 -O meta_bg,^resize_inode -g 1024", nothing),
            ("-b 1024 -g 512", nothing),
        ],
    );
}

#[test]
fn trees_in_blocks_of_2_kib_equal_their_source() {
    // Block maps of 2 KiB blocks reach 256 GiB.
    let limits = Limits { sparse_bytes: 200 << 30, ..Limits::for_block_size(2048) };
    every_case(&limits, &[("-b 2048", nothing), ("-b 2048 -t ext3", nothing)]);
}

#[test]
fn trees_in_blocks_of_4_kib_equal_their_source() {
    every_case(
        &Limits::for_block_size(4096),
        &[
            ("", nothing),
            ("-t ext2", nothing),
            ("-t ext3", nothing),
            ("-O bigalloc", clusters_of_64k),
            ("-O ^metadata_csum", nothing),
            ("-O ^metadata_csum,uninit_bg", nothing),
            ("-O meta_bg,^resize_inode", nothing),
            ("-O quota,project", nothing),
            ("-O quota -E quotatype=grpquota", nothing),
            ("-O quota,bigalloc,project -C 65536", clusters_of_64k),
        ],
    );
}

#[test]
fn trees_with_other_features_equal_their_source() {
    every_case(
        &Limits::for_block_size(4096),
        &[
            ("-O inline_data", nothing),
            ("-O ea_inode,quota", nothing),
            ("-O ^dir_index", nothing),
            ("-O ^flex_bg", nothing),
            ("-O ^has_journal", nothing),
            ("-O ^extent,^64bit", nothing),
            ("-O ^64bit,sparse_super2,mmp,large_dir,fast_commit", nothing),
            ("-O ^filetype,^resize_inode", nothing),
            ("-I 128", small_inode_times),
            ("-I 512", nothing),
            ("-I 4096 --size 512M", nothing),
            ("-G 4 -g 8192 --headroom 50", nothing),
        ],
    );
}

/// Most kernels mount no blocks larger than a page. There, e2fsck and debugfs are the judges, and debugfs
/// restores neither hard links, special files nor attributes.
#[test]
fn trees_in_blocks_of_64_kib_equal_their_source() {
    let mountable = extant_testkit::kernel_mounts_block_size(65_536);
    // debugfs writes every byte of a hole.
    let sparse_bytes = if mountable { 1 << 40 } else { 4 << 20 };
    let limits = Limits { sparse_bytes, ..Limits::for_block_size(65_536) };
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    adversarial_within(&tree, &limits);
    if !is_root() {
        let _ = std::fs::remove_dir_all(tree.join("modes"));
    }
    let image = scratch.path().join("image");
    for more in ["", "-O bigalloc -C 1048576", "-O quota,project,^metadata_csum"] {
        let mut all = args!["-b", "65536", "--from", &tree].to_vec();
        all.extend(words(more));
        build(&image, &all);
        e2fsck_clean(&image);
        let holes = if more.contains("bigalloc") { 1 << 20 } else { 65_536 };
        let options = DiffOptions { holes: Holes::Stay { block_size: holes }, ..DiffOptions::default() };
        let mut source = Manifest::of(&tree);
        if mountable {
            assert_mounts_equal(&image, &source, &options);
        } else if is_root() {
            eprintln!("this kernel mounts no blocks of 64 KiB: content, modes, owners and times by debugfs");
            let copy = scratch.path().join("copy");
            std::fs::create_dir(&copy).unwrap();
            let said = extant_testkit::debugfs(&image, &format!("rdump / {}", copy.display()));
            assert!(!said.to_lowercase().contains("error"), "{said}");
            let mut copied = Manifest::of(&copy);
            for manifest in [&mut source, &mut copied] {
                manifest
                    .entries
                    .retain(|_, e| matches!(e.kind, Kind::Regular | Kind::Directory | Kind::Symlink));
                for (number, (path, entry)) in manifest.entries.iter_mut().enumerate() {
                    entry.xattrs.clear();
                    entry.inode = (0, number as u64);
                    if entry.kind != Kind::Directory {
                        entry.nlink = 1;
                    }
                    // debugfs sets no times of symlinks or of directories that it still fills, changes the
                    // owner after the mode, follows symlinks for both, and supports only times from 1970 to
                    // 2038.
                    entry.mode &= 0o777;
                    if entry.kind == Kind::Symlink {
                        (entry.uid, entry.gid) = (0, 0);
                    }
                    if entry.kind != Kind::Regular || path.starts_with(b"times/") {
                        entry.mtime.seconds = 0;
                    }
                }
            }
            let options =
                DiffOptions { holes: Holes::Ignore, nanoseconds: false, ignore_root: true, ..options };
            let lines = diff(&source, &copied, &options);
            assert!(lines.is_empty(), "{more}\n{}", lines.join("\n"));
            std::fs::remove_dir_all(&copy).unwrap();
        } else {
            eprintln!("not root: owners cannot be restored; judged by e2fsck alone");
        }
        common::remove(&image);
    }
}

#[test]
fn times_that_a_small_inode_cannot_hold_are_reported() {
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for (name, seconds) in [("2100", 4_102_444_800), ("1960", -315_619_200), ("2000", 946_684_800)] {
        set_times(&tree, name, seconds);
    }
    let image = scratch.path().join("image");
    let report = build(&image, args!["-I", "128", "--from", &tree]);
    e2fsck_clean(&image);
    let warnings: Vec<&str> =
        report["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    // A warning for the file, and one for lost+found, which has the time of the newest file.
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].starts_with("/2100: its time is ") && warnings[0].contains("1 files"),
        "{warnings:?}"
    );
    assert!(warnings[1].starts_with("2 times do not fit an inode of 128 bytes"), "{warnings:?}");
    assert_has(&common::debugfs_stat(&image, "/2100"), "mtime: 0x7fffffff");
    assert_has(&common::debugfs_stat(&image, "/2000"), "mtime: 0x386d4380");
}

/// Creates a file with this mtime and atime. With an empty name, sets the times of the directory itself.
fn set_times(dir: &Path, name: &str, seconds: i64) {
    let path = dir.join(name);
    if !name.is_empty() {
        std::fs::write(&path, name).unwrap();
    }
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

/// With `--times all` the image has the source's access, change and birth times. Otherwise, all times are the
/// source's mtime.
#[test]
fn all_times_are_kept_on_demand() {
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    adversarial_within(&tree, &Limits::default());
    if not_root() {
        return;
    }
    let image = scratch.path().join("image");
    // Build before stat: reading a symlink changes its access time.
    build(&image, args!["--times", "all", "--from", &tree]);
    e2fsck_clean(&image);
    let mut source = Manifest::of(&tree);
    for entry in source.entries.values_mut().filter(|entry| entry.kind == Kind::Symlink) {
        entry.atime = entry.mtime;
        entry.atime.seconds += 1;
    }
    let mount = LoopMount::read_only(&image).unwrap();
    let copy = Manifest::of(mount.path());
    let options = DiffOptions { atime: true, btime: true, ..DiffOptions::default() };
    let mut lines = diff(&source, &copy, &options);
    // ext4 cannot represent the second after its last one.
    lines.retain(|line| !line.starts_with("\"times/2446-last\": atime"));
    assert_eq!(lines, [""; 0]);
    for (path, entry) in &source.entries {
        assert_eq!(entry.ctime, copy.entries[path].ctime, "ctime of {}", path.escape_ascii());
    }
    drop(mount);
    let stat = common::debugfs_stat(&image, "/times/2100");
    assert_has(&stat, "mtime: 0xf4865700:");
    assert_has(&stat, "atime: 0xf4865701:");
    assert_has(&stat, "crtime: 0x");
    common::remove(&image);

    build(&image, args!["--from", &tree]);
    let mount = LoopMount::read_only(&image).unwrap();
    for (path, entry) in Manifest::of(mount.path()).entries {
        let all = [entry.atime, entry.ctime, entry.btime.unwrap()];
        assert_eq!(all, [entry.mtime; 3], "{}", path.escape_ascii());
    }
}

/// Values that do not fit into a block have their own inodes. Equal values share one, and quota counts them.
#[test]
fn large_attributes_need_the_feature_ea_inode() {
    let scratch = scratch();
    let (large, other) = (Random::new(1).bytes(20 << 10), Random::new(2).bytes(60_000));
    let mut tar = Tar::in_memory();
    tar.owner = (1000, 100);
    for (name, value) in [("a", &large), ("b", &large), ("c", &other)] {
        tar.pax("SCHILY.xattr.user.large", value).pax("SCHILY.xattr.user.small", "s").file(name, name);
    }
    tar.pax("SCHILY.xattr.user.one", &large).pax("SCHILY.xattr.user.two", &other).dir("d");
    let tar = tar.save(scratch.path().join("x.tar"));
    let image = scratch.path().join("image");
    for features in ["ea_inode", "ea_inode,quota", "ea_inode,^metadata_csum", "ea_inode,bigalloc,quota"] {
        for block_size in ["1024", "4096"] {
            build(&image, args!["-O", features, "-b", block_size, "--tar", &tar]);
            e2fsck_clean(&image);
            if is_root() {
                let mount = LoopMount::read_only(&image).unwrap();
                let copy = Manifest::of(mount.path());
                let value =
                    |path: &str, name: &str| copy.entries[path.as_bytes()].xattrs[name.as_bytes()].clone();
                assert!(value("a", "user.large") == large && value("b", "user.large") == large);
                assert!(value("c", "user.large") == other && value("c", "user.small") == b"s");
                assert!(value("d", "user.one") == large && value("d", "user.two") == other);
            }
            common::remove(&image);
        }
    }
    let refused = common::try_build(&image, args!["--tar", &tar]);
    assert_has(refused.code(common::SOURCE), "add the feature ea_inode");
    common::assert_names(scratch.path(), &["x.tar"]);
}

/// One tree from all kinds of source: a directory, a copy of it, and tar archives in any order and
/// compression.
#[test]
fn the_same_tree_makes_the_same_bytes() {
    if not_root() {
        return;
    }
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    adversarial_within(&tree, &Limits::default());
    // tar does not archive sockets, and stores two links of a fifo as two fifos.
    common::remove(&tree.join("special/socket"));
    common::remove(&tree.join("special/fifo-linked"));
    renumber_acls(&tree);
    let first = scratch.path().join("first");
    build(&first, args!["-j1", "--from", &tree]);
    e2fsck_clean(&first);
    let expected = std::fs::read(&first).unwrap();
    let image = scratch.path().join("image");
    let same = |what: &str| {
        let found = std::fs::read(&image).unwrap();
        assert_eq!(found.len(), expected.len(), "length of the image {what}");
        let at = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(at, None, "first byte that differs in the image {what}");
        common::remove(&image);
    };

    for threads in ["-j2", "-j7"] {
        build(&image, args![threads, "--from", &tree]);
        same(&format!("with {threads}"));
    }
    let elsewhere = scratch.path().join("quite/another/place");
    std::fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    extant_testkit::run("cp", ["-a".as_ref(), "--".as_ref(), tree.as_os_str(), elsewhere.as_os_str()]);
    build(&image, args!["--from", &elsewhere]);
    same("of a copy");
    let mut command = extant();
    command.current_dir(&elsewhere).args(["build", "--from", ".", "-o"]).arg(&image);
    common::outcome(&mut command).code(0);
    same("of a relative path");

    let tar = scratch.path().join("x.tar");
    for (order, options) in
        [("sorted", &["--sort=name"][..]), ("as listed", &[]), ("backwards", &["--no-recursion"])]
    {
        let mut command = extant_testkit::command("tar");
        command.args([
            "--format=posix",
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
            "--sparse",
            "--numeric-owner",
        ]);
        command.args(options).arg("-cf").arg(&tar).arg("-C").arg(&tree);
        if order == "backwards" {
            // Children come before their directories, and the last of several links comes first.
            let list = backwards(&tree);
            std::fs::write(scratch.path().join("list"), list).unwrap();
            command.args(["--null", "--verbatim-files-from", "-T"]).arg(scratch.path().join("list"));
        } else {
            command.arg(".");
        }
        common::outcome(&mut command).code(0);
        build(&image, args!["--tar", &tar]);
        same(&format!("of a tar archive, {order}"));
    }
    let bytes = std::fs::read(&tar).unwrap();
    for packing in ["gz", "zst", "xz"] {
        let packed = scratch.path().join(format!("x.tar.{packing}"));
        std::fs::write(&packed, pack(packing, &bytes)).unwrap();
        build(&image, args!["--tar", &packed]);
        same(&format!("of a tar archive packed by {packing}"));
        let mut command = extant();
        command.args(["build", "--tar", "-", "-o"]).arg(&image);
        command.stdin(std::fs::File::open(&packed).unwrap());
        common::outcome(&mut command).code(0);
        same(&format!("of standard input packed by {packing}"));
    }
    let mut command = extant();
    command.args(["build", "--tar", "-", "-o"]).arg(&image).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &bytes).unwrap();
    assert!(child.wait().unwrap().success());
    same("of a pipe");
}

/// Changes all ACLs to users and groups without names on any machine: tar before 1.35 always writes names.
fn renumber_acls(tree: &Path) {
    for (path, entry) in Manifest::of(tree).entries {
        for (name, mut value) in
            entry.xattrs.into_iter().filter(|(name, _)| name.starts_with(b"system.posix_acl_"))
        {
            for (number, entry) in value[4..].chunks_exact_mut(8).enumerate() {
                if entry[4..] != [0xFF; 4] {
                    entry[4..].copy_from_slice(&(3_000_000 + number as u32).to_le_bytes());
                }
            }
            let path = tree.join(std::ffi::OsStr::from_bytes(&path));
            rustix::fs::lsetxattr(path, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
        }
    }
}

/// All relative paths below a root, in reverse order, each with its terminating zero.
fn backwards(root: &Path) -> Vec<u8> {
    let manifest = Manifest::of(root);
    let paths = manifest.entries.keys().rev();
    paths
        .flat_map(|path| [if path.is_empty() { b".".as_slice() } else { b"./" }, path, b"\0"].concat())
        .collect()
}

/// Regression: a file with an mtime a few seconds in the future (umoci rounds times up) counted for the image's
/// time stamp only after the clock had reached that time: the same tree made two images. A time in the future
/// causes a warning, and changes nothing else.
#[test]
fn a_time_ahead_of_the_clock_counts_like_any_other() {
    use std::time::{Duration, SystemTime};
    let dir = scratch();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let ahead = SystemTime::now() + Duration::from_secs(3);
    let file = std::fs::File::create(tree.join("a")).unwrap();
    file.set_modified(ahead).unwrap();
    let built = |name: &str| {
        let report = build(&dir.path().join(name), args!["--from", &tree]);
        (std::fs::read(dir.path().join(name)).unwrap(), report["warnings"].to_string())
    };
    let (before, warned) = built("before");
    common::assert_has(&warned, "/a: its time is ");
    while SystemTime::now() <= ahead + Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (after, warned) = built("after");
    assert!(before == after && warned == "[]", "{warned}");
    // e2fsck does not complain about a distant year.
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800)).unwrap();
    built("later");
    extant_testkit::e2fsck_clean(&dir.path().join("later"));
}

/// SOURCE_DATE_EPOCH is the image's time stamp; with --clamp-mtime no time in the image is later.
#[test]
fn source_date_epoch_is_honoured() {
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    set_times(&tree, "old", 900_000_000);
    set_times(&tree, "new", 1_700_000_000);
    set_times(&tree, "", 1_600_000_000);
    let build_at = |name: &str, epoch: Option<&str>, more: &[&str]| -> PathBuf {
        let image = scratch.path().join(name);
        let mut command = extant();
        command.args(["build", "--from"]).arg(&tree).arg("-o").arg(&image).args(more);
        if let Some(epoch) = epoch {
            command.env("SOURCE_DATE_EPOCH", epoch);
        }
        common::outcome(&mut command).code(0);
        e2fsck_clean(&image);
        image
    };
    let created = |image: &Path| superblock_field(image, "Filesystem created");
    // Without it: the newest file of the tree.
    assert_eq!(created(&build_at("none", None, &[])), "Tue Nov 14 22:13:20 2023");
    let (one, two) = (build_at("one", Some("1234567890"), &[]), build_at("two", Some("1234567890"), &[]));
    assert_eq!(created(&one), "Fri Feb 13 23:31:30 2009");
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
    assert_has(&common::debugfs_stat(&one, "/new"), "mtime: 0x6553f100"); // Not clamped without the option.
    let clamped = build_at("clamped", Some("1234567890"), &["--clamp-mtime"]);
    assert_has(&common::debugfs_stat(&clamped, "/new"), "mtime: 0x499602d2");
    assert_has(&common::debugfs_stat(&clamped, "/old"), "mtime: 0x35a4e900");
    let refused =
        common::run(args!["build", "--clamp-mtime", "--from", &tree, "-o", scratch.path().join("x")]);
    assert_has(refused.code(common::USAGE), "SOURCE_DATE_EPOCH");
}

/// Sources on top of each other, and the effect of an archive's entries on files of a directory before it.
#[test]
fn later_sources_lie_on_top() {
    let scratch = scratch();
    let base = scratch.path().join("base");
    for dir in ["etc", "usr/bin"] {
        std::fs::create_dir_all(base.join(dir)).unwrap();
    }
    std::fs::write(base.join("etc/hosts"), "base").unwrap();
    std::fs::write(base.join("etc/only"), "only in the base").unwrap();
    std::fs::write(base.join("usr/bin/tool"), vec![b't'; 3 << 20]).unwrap();
    std::fs::write(base.join("usr/bin/gone"), "its first name goes").unwrap();
    std::os::unix::fs::symlink("usr/bin", base.join("bin")).unwrap();
    let over = scratch.path().join("over");
    std::fs::create_dir_all(over.join("etc")).unwrap();
    std::fs::write(over.join("etc/hosts"), "over").unwrap();
    let mut tar = Tar::in_memory();
    tar.link("links/hosts", "etc/hosts").link("links/tool", "./bin/tool").link("links/gone", "usr/bin/gone");
    tar.file("usr/bin/gone", "another file of that name").file("bin/new", "through a symlink");
    let tar = tar.save(scratch.path().join("x.tar"));
    let image = scratch.path().join("image");
    build(&image, args!["--from", &base, "--from", &over, "--tar", &tar]);
    e2fsck_clean(&image);
    for (path, content) in [
        ("/etc/hosts", "over"),
        ("/etc/only", "only in the base"),
        ("/links/hosts", "over"),
        ("/links/gone", "its first name goes"),
        ("/usr/bin/gone", "another file of that name"),
        ("/usr/bin/new", "through a symlink"),
    ] {
        assert_eq!(common::debugfs_cat(&image, path), content, "{path}");
    }
    assert_eq!(common::debugfs_cat(&image, "/links/tool").len(), 3 << 20);
    assert_has(&common::debugfs_stat(&image, "/usr/bin/tool"), "Links: 2");
    // The order on the command line decides, not the kind of source.
    common::remove(&image);
    build(&image, args!["--tar", &tar_of_hosts(scratch.path()), "--from", &base]);
    assert_eq!(common::debugfs_cat(&image, "/etc/hosts"), "base");
    common::remove(&image);
    build(&image, args!["--from", &base, "--tar", &tar_of_hosts(scratch.path())]);
    assert_eq!(common::debugfs_cat(&image, "/etc/hosts"), "tar");
}

fn tar_of_hosts(dir: &Path) -> PathBuf {
    let mut tar = Tar::in_memory();
    tar.file("etc/hosts", "tar");
    tar.save(dir.join("hosts.tar"))
}
