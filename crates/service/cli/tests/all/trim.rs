//! `extant trim`: free blocks no longer take space on the host, nothing else changes, and the message for
//! other targets explains the refusal.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::image::Image;
use crate::common::{USAGE, assert_has, run};
use extant_testkit::e2fsck_clean;

fn kept(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn what_is_free_takes_no_room_any_more() {
    let image = Image::new(&[]);
    let path = &image.path;
    // All blocks take space, as after long use.
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes).unwrap();
    let before = kept(path);
    let df = run(args!["df", "--json", path]).report();
    let free = df[0]["free_bytes"].as_u64().unwrap();

    let trimmed = run(args!["trim", "--json", path]).report();
    let reported = trimmed[0]["trimmed_bytes"].as_u64().unwrap();
    assert_eq!(reported, free);
    assert!(kept(path) + reported / 2 < before, "{} of {before}", kept(path));
    e2fsck_clean(path);

    let none = run(args!["trim", "--minimum", "1T", path]);
    none.code(0);
    assert_has(&none.stdout, "0 B (0 bytes) trimmed");
}

#[test]
fn paths_inside_and_what_is_no_image_are_refused() {
    let image = Image::new(&[]);
    let path = &image.path;
    let inside = format!("{}:/etc", path.display());
    let refused = run(args!["trim", inside]);
    assert_has(refused.code(USAGE), "leave :/etc out");
    run(args!["trim", "--minimum", "much", path]).code(USAGE);
}
