//! `extant tune`: each change gives the superblock that tune2fs gives, in all copies; e2fsck and the kernel
//! accept the result; what cannot be changed is refused and changes no byte.

use std::collections::BTreeMap;
use std::path::Path;

use extant_testkit::{LoopMount, e2fsck_clean, scratch};

use crate::common::{USAGE, assert_has, run};

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
