//! Images that are mounted or written by another program: reading commands report this with the place,
//! writing commands leave them unchanged and exit with code 10.
//!
//! Needs /dev/fuse, and root for loop devices. Without them, tests print a note and pass.

use crate::common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::common::mounted::{Mount, empty_image, has_fuse, has_fuse_and_root};
use crate::common::{Outcome, extant, outcome};
use extant_testkit::LoopMount;

const BUSY: i32 = 10;
/// check: the image cannot be read.
const OPERATIONAL: i32 = 8;

fn run(words: &[&str], image: &Path) -> Outcome {
    let mut command = extant();
    for word in words {
        command.arg(word.replace("IMG", image.to_str().unwrap()));
    }
    outcome(&mut command)
}

/// Runs every command that makes or changes an image on an image in use.
#[track_caller]
fn writers_are_refused(dir: &Path, image: &Path, says: &str) {
    let source = dir.join("source");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("a"), b"a").unwrap();
    let source = source.to_str().unwrap();
    let other = dir.join("other.img");
    run(&["mkfs", "-q", "--force", "--size", "8M", other.to_str().unwrap()], image).code(0);
    let before = std::fs::metadata(image).unwrap();
    for words in [
        &["build", "-q", "--force", "-o", "IMG", "--from", source][..],
        &["mkfs", "-q", "--force", "--size", "8M", "IMG"],
        &["export", other.to_str().unwrap(), "--force", "--tar", "IMG"],
        &["diff", other.to_str().unwrap(), source, "--force", "--layer", "IMG"],
        &["mkdir", "IMG:/new"],
        &["trim", "IMG"],
        &["resize", "IMG", "+1M"],
        &["mount", "IMG", source, "-o", "rw"],
    ] {
        let refused = run(words, image);
        assert!(refused.code(BUSY).contains(says), "{words:?}: {}", refused.stderr);
    }
    let after = std::fs::metadata(image).unwrap();
    assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
}

#[track_caller]
fn readers_say_where(image: &Path, on: &Path) {
    let on = on.to_str().unwrap();
    for words in [
        &["ls", "IMG"][..],
        &["df", "IMG"],
        &["stat", "IMG:/"],
        &["tree", "IMG"],
        &["inspect", "IMG", "super"],
        &["export", "IMG", "--tar", "/dev/null"],
        &["diff", "IMG", "IMG"],
    ] {
        let read = run(words, image);
        let said = read.code(0);
        assert!(said.contains("is mounted on") && said.contains(on), "{words:?}: {said}");
    }
    let refused = run(&["check", "IMG"], image);
    let said = refused.code(OPERATIONAL);
    assert!(said.contains("is mounted on") && said.contains(on) && said.contains("--mounted"), "{said}");
    let anyway = run(&["check", "--mounted", "IMG"], image);
    assert!(!anyway.stdout.contains("clean") && anyway.code != OPERATIONAL, "{}", anyway.stdout);
}

#[test]
fn a_mount_of_extant_for_writing_is_seen_by_every_command() {
    if !has_fuse() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    readers_say_where(&image, mount.path());
    writers_are_refused(dir.path(), &image, "in use");
    mount.unmount();
    assert_eq!(run(&["ls", "IMG"], &image).code(0), "");
    assert!(run(&["check", "IMG"], &image).stdout.contains("clean"));
}

#[test]
fn a_read_only_mount_keeps_writers_away_and_readers_need_no_word() {
    if !has_fuse() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "ro"]);
    assert_eq!(run(&["ls", "IMG"], &image).code(0), "");
    run(&["check", "IMG"], &image).code(0);
    writers_are_refused(dir.path(), &image, "in use");
    // A second reader may mount it, too.
    let second = Mount::new(&image, &["-o", "ro"]);
    second.unmount();
    mount.unmount();
    run(&["mkdir", "IMG:/new"], &image).code(0);
}

#[test]
fn a_mount_of_the_kernel_is_seen_through_its_loop_device() {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = LoopMount::new(&image, "rw").unwrap();
    readers_say_where(&image, mount.path());
    writers_are_refused(dir.path(), &image, "/dev/loop");
    drop(mount);
    let mount = LoopMount::new(&image, "ro").unwrap();
    assert_eq!(run(&["ls", "IMG"], &image).code(0), "");
    writers_are_refused(dir.path(), &image, "/dev/loop");
    drop(mount);
}

#[test]
fn a_server_that_was_killed_uses_nothing_any_more() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let server = mount.server();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    common::mounted::wait_until("the server ends", || common::mounted::has_ended(server));
    assert!(!run(&["ls", "IMG"], &image).code(0).contains("mounted"), "nothing serves it");
    run(&["mkdir", "IMG:/new"], &image).code(0);
}

#[test]
fn an_image_that_is_replaced_keeps_its_mode_and_the_link_to_it() {
    let dir = extant_testkit::scratch();
    let (image, link): (PathBuf, PathBuf) = (dir.path().join("a.img"), dir.path().join("link"));
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    run(&["mkfs", "-q", "--size", "8M", "IMG"], &image).code(0);
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("a.img", &link).unwrap();
    let source = source.to_str().unwrap();
    for words in [
        &["build", "-q", "--force", "-o", "IMG", "--from", source][..],
        &["mkfs", "-q", "--force", "--size", "8M", "IMG"],
    ] {
        run(words, &link).code(0);
        assert_eq!(std::fs::metadata(&image).unwrap().mode() & 0o7777, 0o600, "{words:?}");
        assert!(link.is_symlink() && !image.is_symlink(), "{words:?}");
    }
}
