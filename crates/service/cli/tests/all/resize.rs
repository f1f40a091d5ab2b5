//! `extant resize`: sizes, messages, JSON, partitions, and images that are refused.

use std::path::Path;

use crate::common::image::Image;
use crate::common::{USAGE, assert_has, run};
use extant_testkit::e2fsck_clean;

const TARGET: i32 = 1;
const TOO_SMALL: i32 = 5;
const NO_SPACE: i32 = 7;

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn an_image_grows_and_shrinks_with_its_file() {
    let image = Image::new(&[]);
    let path = &image.path;
    let before = len(path);
    let motd = run(args!["cat", format!("{}:/etc/motd", path.display())]).stdout;

    let planned = run(args!["resize", "--dry-run", "--json", path, "+64M"]).report();
    assert_eq!(planned["after"]["bytes"], before + (64 << 20));
    assert_eq!((planned["dry_run"].as_bool(), len(path)), (Some(true), before));

    let grown = run(args!["resize", path, "+64M"]);
    grown.code(0);
    assert_has(&grown.stdout, "MiB -> ");
    assert_eq!(len(path), before + (64 << 20));
    e2fsck_clean(path);
    let again = run(args!["resize", path, "max"]);
    again.code(0);
    assert_has(&again.stdout, "has this size already");

    let least = run(args!["resize", "--json", path, "min"]).report();
    assert_eq!(least["after"]["bytes"], len(path));
    assert!(len(path) < before + (64 << 20));
    e2fsck_clean(path);
    assert_eq!(run(args!["cat", format!("{}:/etc/motd", path.display())]).stdout, motd);

    let refused = run(args!["resize", path, "100K"]);
    assert_has(refused.code(TOO_SMALL), "the smallest size is");
    assert!(run(args!["resize", "-q", path, "+1M"]).stdout.is_empty());
}

/// The inode tables of 16 groups of 1 KiB blocks reach into the next group, which has no copy of the
/// superblock.
#[test]
fn inode_tables_may_reach_across_a_group() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", path.to_str().unwrap(), "256M"]);
    for size in ["300M", "1G", "280M"] {
        run(args!["resize", "-q", &path, size]).code(0);
        e2fsck_clean(&path);
    }
}

#[test]
fn sizes_and_places_that_make_no_sense_are_refused() {
    let image = Image::new(&[]);
    let path = &image.path;
    let inside = format!("{}:/etc", path.display());
    assert_has(run(args!["resize", inside, "1G"]).code(USAGE), "leave :/etc out");
    assert_has(run(args!["resize", path, "all"]).code(USAGE), "min, max");
    let refused = run(args!["resize", path, "7000P"]);
    assert!([TARGET, NO_SPACE].contains(&refused.code), "{}", refused.stderr);
    e2fsck_clean(path);
}
