//! `extant tune`: each change gives the superblock that tune2fs gives, in all copies; e2fsck and the kernel
//! accept the result; what cannot be changed is refused and changes no byte.

use std::collections::BTreeMap;
use std::path::Path;

use extant_ondisk::Features;
use extant_ondisk::mmp::Mmp;
use extant_testkit::{LoopMount, e2fsck_clean, scratch};

use crate::common::image::Image;
use crate::common::mounted::{Mount, has_fuse_and_root};
use crate::common::{SOURCE, USAGE, assert_has, run};

const BUSY: i32 = 10;

/// Options of mke2fs, by a name: the checksums of an ext4 of today, of the years before, and none.
const KINDS: [(&str, &[&str]); 3] = [
    ("metadata_csum", &["-t", "ext4", "-O", "metadata_csum,metadata_csum_seed,^large_file", "-b", "1024"]),
    ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,^metadata_csum_seed,uninit_bg", "-b", "1024"]),
    ("ext2", &["-t", "ext2", "-I", "256", "-b", "4096", "-O", "sparse_super"]),
];

/// Command lines that mean the same to tune2fs and to us.
const SAME: &[&str] = &[
    "-L root",
    "-L 0123456789abcdef",
    "-L ''",
    "-U 01234567-89ab-cdef-0123-456789abcdef",
    "-U clear",
    "-m 0",
    "-m 1.5",
    "-m 50",
    "-r 17",
    "-u 1000",
    "-u 70000",
    "-g 33",
    "-e continue",
    "-e remount-ro",
    "-e panic",
    "-o acl",
    "-o ^acl,^user_xattr",
    "-o debug,bsdgroups,uid16,nobarrier,block_validity,discard,nodelalloc",
    "-o journal_data",
    "-o journal_data_ordered",
    "-o journal_data_writeback",
    "-E mount_opts=errors=panic",
    "-E stride=32",
    "-E stripe_width=128",
    "-E stride=16,stripe_width=64",
    "-E hash_alg=tea",
    "-E hash_alg=legacy",
    "-E test_fs",
    "-c 30",
    "-c 0",
    "-C 7",
    "-i 180d",
    "-i 2w",
    "-i 6m",
    "-i 0",
    "-M /srv",
    "-O large_file",
    "-O huge_file,dir_nlink",
    "-O stable_inodes",
    "-O dir_index",
    "-L x -m 2 -e panic -c 5 -C 4",
];

/// For file systems with extents or a journal only.
const SAME_EXT4: &[&str] =
    &["-O large_dir", "-O fast_commit", "-O ea_inode", "-O verity", "-O large_dir,fast_commit"];

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect()
}

/// The fields that dumpe2fs shows of a superblock, without those that each write changes.
fn fields(image: &Path, backup: Option<&str>, block_size: &str) -> BTreeMap<String, String> {
    let mut args = vec!["-h".to_owned()];
    if let Some(backup) = backup {
        args.extend([
            "-o".to_owned(),
            format!("superblock={backup}"),
            "-o".to_owned(),
            format!("blocksize={block_size}"),
        ]);
    }
    args.push(image.to_str().unwrap().to_owned());
    let output = extant_testkit::run("dumpe2fs", &args);
    let text = String::from_utf8_lossy(&output.stdout);
    const VOLATILE: [&str; 6] =
        ["Last write time", "Checksum", "Lifetime writes", "Journal", "Filesystem state", "Last mount time"];
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.filter(|(name, _)| !VOLATILE.iter().any(|skip| name.starts_with(skip)));
    lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// The journal waits for a replay, and another machine may have the image: the conversion reports its wait. A
/// block of multiple-mount protection that cannot be used is an error of the source.
#[test]
fn a_conversion_reports_its_wait_for_another_machine() {
    let image = Image::new(&["-O", "mmp"]);
    image.change_superblock(|sb| sb.features.incompat |= Features::RECOVER);
    image.change_mmp(|mmp| mmp.sequence = 1000);
    let path = image.path.to_str().unwrap();
    image.waits("tune -O quota IMG", "waiting 22 s");
    let list = image.path.with_extension("list");
    std::fs::write(&list, "/lost+found\n").unwrap();
    image.waits(&format!("optimize -I --order {} IMG", list.display()), "waiting 22 s");
    image.change_mmp(|mmp| mmp.sequence = Mmp::SEQ_FSCK);
    image.refused(&format!("tune -O quota {path}"), BUSY, "e2fsck is checking it");
    image.change_mmp(|mmp| mmp.sequence = u32::MAX);
    image.refused(&format!("tune -O quota {path}"), SOURCE, "multiple-mount protection");
}

#[test]
fn each_change_is_that_of_tune2fs() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    for (kind, options) in KINDS {
        let (base, theirs, ours) = (at("base"), at("theirs"), at("ours"));
        let args = ["-q", "-F"].iter().chain(options).map(std::ffi::OsStr::new);
        extant_testkit::run("mke2fs", args.chain([base.as_os_str(), "40M".as_ref()]));
        let block_size = if kind == "ext2" { "4096" } else { "1024" };
        let backup = if kind == "ext2" { None } else { Some("8193") };
        let more = if kind == "ext2" { &[][..] } else { SAME_EXT4 };
        for line in SAME.iter().chain(more) {
            if kind == "ext2" && line.contains("fast_commit") {
                continue;
            }
            std::fs::copy(&base, &theirs).unwrap();
            std::fs::copy(&base, &ours).unwrap();
            // tune2fs asks for a recent check before it changes some parameters, and reads its answer.
            let status =
                extant_testkit::command("tune2fs").args(words(line)).arg("-f").arg(&theirs).output().unwrap();
            if !status.status.success() {
                // A change that this version does not know, such as a feature.
                panic!("{kind}: tune2fs {line}: {}", String::from_utf8_lossy(&status.stderr));
            }
            run(["tune".to_owned()]
                .into_iter()
                .chain(words(line))
                .map(Into::into)
                .chain([ours.clone().into_os_string()]))
            .code(0);
            assert_eq!(fields(&ours, None, block_size), fields(&theirs, None, block_size), "{kind}: {line}");
            if let Some(backup) = backup {
                let copy = fields(&ours, Some(backup), block_size);
                let primary = fields(&ours, None, block_size);
                for name in
                    ["Filesystem UUID", "Filesystem volume name", "Filesystem features", "Errors behavior"]
                {
                    assert_eq!(copy[name], primary[name], "{kind}: {line}: the backup's {name}");
                }
            }
            e2fsck_clean(&ours);
        }
    }
}

/// With metadata_csum and no stored seed, tune2fs computes all checksums anew; here the seed is stored.
#[test]
fn a_new_uuid_keeps_all_checksums() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    let options = ["-q", "-F", "-t", "ext4", "-O", "metadata_csum,^metadata_csum_seed"];
    extant_testkit::run(
        "mke2fs",
        options.iter().map(std::ffi::OsStr::new).chain([image.as_os_str(), "40M".as_ref()]),
    );
    let report = run(args!["tune", "--json", "-U", "random", &image]).report();
    assert_has(&report["notes"][0].to_string(), "metadata_csum_seed was turned on");
    assert_eq!(report["changes"][0]["field"], "UUID");
    e2fsck_clean(&image);
    run(args!["check", &image]).code(0);
    if extant_testkit::is_root() {
        LoopMount::new(&image, "rw").unwrap();
    } else {
        println!("skipped: not root");
    }
}

#[test]
fn a_dry_run_and_a_refusal_change_no_byte() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    run(args!["mkfs", "--size", "16M", "--no-sync", &image]).code(0);
    let before = std::fs::read(&image).unwrap();
    let shown = run(args!["tune", "--dry-run", "-L", "root", "-m", "0", &image]);
    shown.code(0);
    assert_has(&shown.stdout, "label: \"\" -> root");
    assert_has(&shown.stdout, "reserved blocks:");
    for (line, part) in [
        ("-L 0123456789abcdefg", "label: 17 bytes; there is room for 16"),
        ("-m 51", "it is 0 to 50"),
        ("-r 999999999", "at most half of all blocks"),
        ("-O bigalloc", "outside the superblock"),
        ("-O nonsense", "no feature is called"),
        ("-O ^extent", "outside the superblock"),
        ("-o nonsense", "no option is called"),
        ("-E nonsense=1", "no such option"),
        ("-U nonsense", "not a UUID"),
    ] {
        let refused = run(["tune".to_owned()]
            .into_iter()
            .chain(words(line))
            .map(Into::into)
            .chain([image.clone().into_os_string()]));
        assert_has(refused.code(USAGE), part);
    }
    assert_has(run(args!["tune", &image]).code(USAGE), "no parameter to change");
    assert!(std::fs::read(&image).unwrap() == before, "a refusal changed the image");
    let nothing = run(args!["tune", "-e", "continue", &image]);
    nothing.code(0);
    assert_has(&nothing.stdout, "nothing to change");
}

/// A tree with a large directory, links and attributes; `mke2fs` options by a name.
fn converted_images(at: &dyn Fn(&str) -> std::path::PathBuf) -> Vec<(&'static str, std::path::PathBuf)> {
    const KINDS: [(&str, &[&str]); 6] = [
        ("csum-1k", &["-t", "ext4", "-O", "metadata_csum,metadata_csum_seed", "-b", "1024"]),
        ("uninit-4k", &["-t", "ext4", "-O", "^metadata_csum,^metadata_csum_seed,uninit_bg", "-b", "4096"]),
        ("bigalloc", &["-t", "ext4", "-O", "^metadata_csum,bigalloc", "-C", "16384"]),
        ("ext3-1k", &["-t", "ext3", "-b", "1024"]),
        ("ext2-128", &["-t", "ext2", "-I", "128", "-b", "1024", "-O", "dir_index"]),
        ("wide-inodes", &["-t", "ext4", "-I", "128", "-O", "^metadata_csum,uninit_bg,^64bit", "-b", "1024"]),
    ];
    let tree = at("tree");
    std::fs::create_dir_all(tree.join("large/deep")).unwrap();
    for number in 0..700 {
        let name = tree.join("large").join(format!("a file with a long name, number {number}"));
        std::fs::write(name, vec![number as u8; number % 40 * 300]).unwrap();
    }
    std::fs::write(tree.join("big"), vec![7; 3 << 20]).unwrap();
    std::fs::hard_link(tree.join("big"), tree.join("large/deep/link")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), tree.join("symlink")).unwrap();
    let make = |(kind, options): (&'static str, &[&str])| {
        let image = at(kind);
        let args = ["-q", "-F", "-d"].iter().map(std::ffi::OsStr::new).chain([tree.as_os_str()]);
        let args = args.chain(options.iter().map(std::ffi::OsStr::new));
        extant_testkit::run("mke2fs", args.chain([image.as_os_str(), "96M".as_ref()]));
        (kind, image)
    };
    KINDS.into_iter().map(make).collect()
}

/// Features that need structures: turned on and off one after the other, each result is clean for both
/// checkers, has the same tree, the features that tune2fs gives, and the kernel mounts it.
#[test]
fn conversions_make_and_remove_structures() {
    const CHANGES: &[(&str, &[&str])] = &[
        (
            "csum-1k",
            &["-O orphan_file", "-O quota,project", "-J size=8", "-O ^orphan_file,^quota", "-O ^has_journal"],
        ),
        ("csum-1k", &["-O ^has_journal", "-j", "-O quota", "-O ^quota", "-O project,quota"]),
        ("uninit-4k", &["-O metadata_csum", "-O orphan_file,quota", "-O ^has_journal,^orphan_file"]),
        ("uninit-4k", &["-O ^has_journal", "-O metadata_csum", "-J size=16"]),
        ("bigalloc", &["-O metadata_csum,quota", "-O orphan_file", "-J size=8"]),
        ("ext3-1k", &["-O metadata_csum", "-O ^has_journal", "-O has_journal,quota", "-O orphan_file"]),
        ("ext2-128", &["-j", "-O metadata_csum", "-O quota", "-O ^has_journal"]),
        ("csum-1k", &["-O ^metadata_csum", "-O metadata_csum", "-O ^64bit", "-O 64bit", "-I 512"]),
        ("csum-1k", &["-O orphan_file", "-O ^metadata_csum,^64bit", "-O metadata_csum,64bit"]),
        ("uninit-4k", &["-O ^64bit", "-I 1024", "-O 64bit,metadata_csum"]),
        ("bigalloc", &["-I 512", "-O ^64bit,metadata_csum", "-O ^metadata_csum,64bit"]),
        ("ext3-1k", &["-O 64bit", "-O flex_bg -I 512", "-O metadata_csum", "-O ^metadata_csum"]),
        ("ext2-128", &["-O flex_bg -I 256", "-O 64bit,project", "-j"]),
        ("wide-inodes", &["-I 256", "-O metadata_csum,64bit", "-I 512"]),
    ];
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    let images = converted_images(&at);
    for (kind, lines) in CHANGES {
        let base = &images.iter().find(|(known, _)| known == kind).unwrap().1;
        let image = at("ours");
        std::fs::copy(base, &image).unwrap();
        for line in *lines {
            let name = format!("{kind}: {line}");
            let done = run(["tune".to_owned()]
                .into_iter()
                .chain(words(line))
                .map(Into::into)
                .chain([image.clone().into_os_string()]));
            done.code(0);
            assert_has(&done.stdout, " -> ");
            e2fsck_clean(&image);
            run(args!["check", &image]).code(0);
            run(args!["diff", base, &image]).code(0);
            assert!(!at("ours.tune-undo").exists(), "{name}");
            if extant_testkit::is_root() {
                // A kernel without CONFIG_QUOTA does not mount these for writing.
                let made = extant_testkit::dumpe2fs(&image);
                if !["quota", "project"].iter().any(|feature| made.features().contains(feature)) {
                    LoopMount::new(&image, "rw").unwrap_or_else(|why| panic!("{name}: {why:?}"));
                    e2fsck_clean(&image);
                }
            } else {
                println!("skipped: not root");
            }
        }
    }
}

#[test]
fn a_conversion_that_is_refused_changes_no_byte() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    let image = at("image");
    run(args!["mkfs", "--size", "32M", "--no-sync", "-O", "orphan_file", &image]).code(0);
    let before = std::fs::read(&image).unwrap();
    for (line, part) in [
        ("-O ^has_journal", "orphan_file needs a journal"),
        ("-I 128", "inodes do not become smaller"),
        ("-I 300", "a power of two"),
        ("-O ^flex_bg", "flex_bg cannot be turned off"),
        ("-J size=1000", "not enough free blocks or inodes for the journal"),
        ("-J size=0", "a journal of 0 MiB"),
        ("-J size=8,location=100", "extant chooses the blocks of the journal"),
    ] {
        let refused = run(["tune".to_owned()]
            .into_iter()
            .chain(words(line))
            .map(Into::into)
            .chain([image.clone().into_os_string()]));
        assert_has(refused.code(USAGE), part);
    }
    let shown = run(args!["tune", "-n", "-O", "quota", &image]);
    assert_has(&shown.stdout, "user quota inode: 0 -> 3");
    assert!(std::fs::read(&image).unwrap() == before, "a refusal or a dry run changed the image");
    // Values in inodes of their own have a checksum with the seed.
    let image = at("values");
    run(args!["mkfs", "--size", "32M", "--no-sync", "-O", "ea_inode", &image]).code(0);
    run(args!["tune", "-U", "random", &image]).code(0);
    assert_has(run(args!["tune", "-O", "^metadata_csum", &image]).code(USAGE), "the UUID has changed since");
    let image = at("unsealed");
    run(args!["mkfs", "--size", "32M", "--no-sync", "-O", "ea_inode,^metadata_csum", &image]).code(0);
    assert_has(run(args!["tune", "-U", "random", &image]).code(USAGE), "turn metadata_csum on");
}

/// Label and UUID of a mount of extant and of the kernel; other parameters need the image.
#[test]
fn label_and_uuid_of_a_mount_change() {
    const FIRST: &str = "11111111-2222-3333-4444-555555555555";
    const SECOND: &str = "99999999-2222-3333-4444-555555555555";
    if !has_fuse_and_root() {
        return;
    }
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    let options = ["-q", "-F", "-t", "ext4", "-b", "1024", "-U", FIRST, "-O"];
    let named = |image: &Path, label: &str, uuid: &str, seed: bool| {
        let fields = fields(image, None, "1024");
        assert_eq!((&*fields["Filesystem volume name"], &*fields["Filesystem UUID"]), (label, uuid));
        assert_eq!(fields["Filesystem features"].contains("metadata_csum_seed"), seed, "{fields:?}");
        e2fsck_clean(image);
    };
    // Without the seed, extant stores it; the kernel would refuse the UUID.
    for (kind, features) in [("ours", "metadata_csum,^metadata_csum_seed"), ("theirs", "metadata_csum_seed")]
    {
        let image = at(kind);
        let args = options.iter().copied().chain([features, image.to_str().unwrap(), "40M"]);
        extant_testkit::run("mke2fs", args);
        let ours = (kind == "ours").then(|| Mount::new(&image, &[]));
        let theirs = (kind == "theirs").then(|| LoopMount::new(&image, "rw").unwrap());
        let dir = match (&ours, &theirs) {
            (Some(mounted), _) => mounted.path(),
            (_, Some(mount)) => mount.path(),
            _ => unreachable!(),
        };
        std::fs::write(dir.join("before"), "1").unwrap();
        let done = run(args!["tune", "-L", "named", "-U", SECOND, dir]);
        done.code(0);
        assert_has(&done.stdout, "label: \"\" -> named");
        assert_has(&done.stdout, &format!("UUID: {FIRST} -> {SECOND}"));
        assert_eq!(
            done.stderr.contains("metadata_csum_seed was turned on"),
            kind == "ours",
            "{}",
            done.stderr
        );
        std::fs::write(dir.join("after"), "2").unwrap();
        // The backups follow each change of one mount.
        run(args!["tune", "-U", FIRST, dir]).code(0);
        run(args!["tune", "-U", SECOND, dir]).code(0);
        let shown = run(args!["tune", "-n", "-U", FIRST, dir]);
        assert_has(&shown.stdout, &format!("UUID: {SECOND} -> {FIRST}"));
        assert_has(run(args!["tune", "-m", "0", dir]).code(USAGE), "only -L and -U change");
        assert_has(run(args!["tune", "-L", "12345678901234567", dir]).code(1), "it is too long");
        // Unlike a drop, this waits for the end of the server.
        ours.iter().for_each(Mount::unmount);
        drop((ours, theirs));
        named(&image, "named", SECOND, true);
        let copy = fields(&image, Some("8193"), "1024");
        assert_eq!(copy["Filesystem UUID"], SECOND, "{kind}");
        run(args!["check", &image]).code(0);
    }
    // The checksums of descriptors depend on the UUID.
    let image = at("uninit");
    let args = options.iter().copied().chain(["^metadata_csum,uninit_bg", image.to_str().unwrap(), "40M"]);
    extant_testkit::run("mke2fs", args);
    let mounted = Mount::new(&image, &[]);
    // The label has changed when the UUID is refused, and the report shows it.
    let refused = run(args!["tune", "-L", "other", "-U", SECOND, mounted.path()]);
    assert_has(refused.code(1), "checksums");
    assert_has(&refused.stdout, "label: \"\" -> other");
    assert!(!refused.stdout.contains("UUID"), "{}", refused.stdout);
    mounted.unmount();
    named(&image, "other", FIRST, false);
}
