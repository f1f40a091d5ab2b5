//! Refusals of mkfs: their messages and exit codes, and that they change nothing.

use std::fs;

use extant_testkit::scratch;

use crate::mkfs::{extant_mkfs, make, output};

/// Arguments (without the image), exit code, and a part of the message.
const REFUSALS: &[(&str, i32, &str)] = &[
    ("", 2, "--size"),
    ("-s 1G -O casefold", 2, "casefold cannot be made: case-insensitive names need full Unicode tables"),
    ("-s 1G -O encrypt", 2, "encrypt cannot be made: encrypted directories need keys"),
    ("-s 1G -O verity", 2, "verity cannot be made"),
    ("-s 1G -O journal_dev", 2, "external journals are not made yet"),
    ("-s 1G -O extents_and_more", 2, "no feature is called \"extents_and_more\"; known are:"),
    ("-s 1G -O ^extent,64bit", 2, "64bit needs extent"),
    ("-s 1G -O bigalloc,^extent", 2, "bigalloc needs extent"),
    ("-s 1G -O meta_bg,resize_inode", 2, "resize_inode and meta_bg exclude each other"),
    ("-s 1G -O ^metadata_csum,metadata_csum_seed", 2, "metadata_csum_seed needs metadata_csum"),
    ("-s 1G -O ^has_journal,orphan_file", 2, "orphan_file needs has_journal"),
    ("-s 1G -O ^has_journal -J size=8", 2, "a journal size needs has_journal"),
    ("-s 1G -C 65536", 2, "a cluster size needs the bigalloc feature"),
    ("-s 1G -O bigalloc -C 5000", 2, "a power of two above the block size"),
    ("-s 1G -b 3000", 2, "a power of two from 1024 to 65536"),
    ("-s 1G -b 512", 2, "a power of two from 1024 to 65536"),
    ("-s 1G -b 131072", 2, "a power of two from 1024 to 65536"),
    ("-s 1G -I 100", 2, "a power of two from 128 to 4096"),
    ("-s 1G -b 1024 -I 2048", 2, "a power of two from 128 to 1024"),
    ("-s 1G -I 128 -O project", 2, "the project feature needs at least 256"),
    ("-s 1G -i 0", 2, "from 1024 to 64 MiB"),
    ("-s 1G -g 100", 2, "a multiple of 8 from 256 to 32768"),
    ("-s 1G -G 12", 2, "a power of two"),
    ("-s 1G -G 8 -O ^flex_bg", 2, "only be chosen with flex_bg"),
    ("-s 1G -m 51", 2, "a number from 0 to 50"),
    ("-s 1G -L seventeen-letters", 2, "17 bytes are more than 16"),
    ("-s 1G -U 1234", 2, "is not a UUID"),
    ("-s 1G -e never", 2, "remount-ro"),
    ("-s 1G -t ext5", 2, "ext2, ext3 or ext4"),
    ("-s 1G -T cinema", 2, "floppy, small, default"),
    ("-s 1G -J size=1", 2, "a journal of 1 MiB is 256 blocks; it must have 1024 to 10240000"),
    ("-s 1G -J size=4000", 2, "does not fit"),
    ("-s 1G -J device=/dev/sdz1", 2, "makes an external journal"),
    ("-s 1G -E resize=1000", 2, "the size to grow to is 1000"),
    ("-s 1G -E orphan_file_size=1T", 2, "an orphan file has 1 to"),
    ("-s 1G -E num_backup_sb=1", 2, "only be chosen with sparse_super2"),
    ("-s 1G -E cylinders=7", 2, "-E cylinders is not known"),
    ("-s 100M -N 5000000", 2, "5000000 inodes are more than"),
    ("-s 16K", 2, "does not fit into 16384 bytes"),
    ("-s 0", 2, "too few"),
    ("-s 64T -O ^64bit", 2, "without the 64bit feature"),
];

#[test]
fn a_refusal_says_why_and_leaves_no_file() {
    let dir = scratch();
    let image = dir.path().join("refused.img");
    for (args, code, message) in REFUSALS {
        let refused = output(extant_mkfs(&image).args(args.split_whitespace()));
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(*code), "{args}: {errors}");
        assert!(errors.contains(message), "{args}: \"{message}\" is not in: {errors}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{args} leaves something behind");
    }
}

#[test]
fn an_existing_file_is_not_overwritten_without_force() {
    let dir = scratch();
    let image = dir.path().join("precious");
    fs::write(&image, b"years of work").unwrap();
    for args in ["-s 64M", ""] {
        let refused = output(extant_mkfs(&image).args(args.split_whitespace()));
        assert_eq!(refused.status.code(), Some(6), "{args}");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(errors.contains("--force"), "{errors}");
        assert_eq!(fs::read(&image).unwrap(), b"years of work");
    }
    make(&image, "-F -s 64M -q");
    extant_testkit::e2fsck_clean(&image);
    // A file of zeros, as truncate makes it, has no data: it needs no --force, and its size is used.
    fs::remove_file(&image).unwrap();
    fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
    make(&image, "-q");
    extant_testkit::e2fsck_clean(&image);
    assert_eq!(extant_testkit::dumpe2fs(&image).number("Block count"), 48 << 10);
}

#[test]
fn a_target_that_cannot_be_written_is_exit_code_1() {
    let dir = scratch();
    let refused = output(extant_mkfs(&dir.path().join("no/such/dir/a.img")).args(["-s", "64M"]));
    assert_eq!(refused.status.code(), Some(1), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn a_dry_run_reports_everything_and_writes_nothing() {
    let dir = scratch();
    let image = dir.path().join("dry.img");
    let text = make(&image, "-n --json -s 16T -O bigalloc -C 1M");
    let report: serde_json::Value = serde_json::from_str(&text).expect("--json prints JSON");
    assert_eq!((report["dry_run"].as_bool(), report["written_bytes"].as_u64()), (Some(true), Some(0)));
    assert_eq!(report["blocks"], 4_u64 << 30);
    assert!(!image.exists());
    fs::write(&image, b"years of work").unwrap();
    let text = make(&image, "-n -s 64M");
    assert!(text.contains("would have") && text.contains("65536 blocks of 1024 bytes in 8 groups"), "{text}");
    assert_eq!(fs::read(&image).unwrap(), b"years of work");
}
