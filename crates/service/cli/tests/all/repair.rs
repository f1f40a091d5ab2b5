//! `extant check --repair` and `extant undo`: the plan first, then the repair, then back byte for byte.

use std::path::{Path, PathBuf};

use extant_testkit::{command, e2fsck_clean, scratch};

use crate::common::{assert_has, run};

/// An image whose `/one` has a wrong link count and whose `/two` has lost its name.
fn damaged(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("one"), b"one").unwrap();
    std::fs::write(source.join("two"), b"two").unwrap();
    let image = dir.join("bad.img");
    let made =
        command("mke2fs").args(["-q", "-F", "-t", "ext4", "-d"]).arg(&source).arg(&image).arg("16M").output();
    assert!(made.unwrap().status.success());
    for request in ["set_inode_field /one links_count 3", "unlink /two"] {
        debugfs(&image, request);
    }
    image
}

fn debugfs(image: &Path, request: &str) {
    let out = command("debugfs").args(["-w", "-R", request]).arg(image).output().unwrap();
    assert!(out.status.success(), "{request}");
}

#[test]
fn a_repair_is_planned_written_and_undone() {
    let dir = scratch();
    let image = damaged(dir.path());
    let name = image.to_str().unwrap();
    let before = std::fs::read(&image).unwrap();
    for args in [&["-n"][..], &["--plan"], &["-n", "--json"], &[]] {
        let shown = run(["check", "--repair"].into_iter().chain(args.iter().copied()).chain([name]));
        assert_eq!(shown.code, 4, "{shown:?}");
        assert_has(&shown.stdout, "DI053");
    }
    assert_eq!(std::fs::read(&image).unwrap(), before, "a plan changes nothing");
    assert!(!dir.path().join("bad.img.undo").exists());
    let done = run(["check", "--repair", "-y", name]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_has(&done.stdout, "the link count is 3, should be 1");
    assert_has(&done.stdout, "Give it a name in lost+found.");
    assert_has(&done.stdout, "`extant undo ");
    e2fsck_clean(&image);
    assert_eq!(run(["check", "-q", name]).code, 0);
    let found = run(["cat".to_owned(), format!("{name}:/lost+found/#13")]);
    assert_eq!(found.stdout, "two", "{found:?}");
    let again = run(["check", "--repair", "-y", name]);
    assert_eq!(again.code, 0, "{again:?}");
    assert_has(&again.stdout, "nothing to repair");
    let undo = dir.path().join("bad.img.undo");
    let undone = run(["undo", name, undo.to_str().unwrap()]);
    assert_eq!(undone.code, 0, "{undone:?}");
    assert!(std::fs::read(&image).unwrap() == before, "undone byte for byte");
    assert_eq!(run(["undo", name, undo.to_str().unwrap()]).code, 3, "undone already");
    // The old undo file stays, the next one has another name.
    assert_eq!(run(["check", "--repair", "-p", name]).code, 0, "the image is marked clean");
    assert_eq!(run(["check", "--repair", "-p", "-f", name]).code, 1);
    assert!(dir.path().join("bad.img.undo2").exists());
}

#[test]
fn what_would_lose_content_needs_yes() {
    let dir = scratch();
    let image = damaged(dir.path());
    let name = image.to_str().unwrap();
    debugfs(&image, "set_inode_field /one mode 0");
    debugfs(&image, "set_inode_field /one block[0] 0");
    let before = std::fs::read(&image).unwrap();
    let refused = run(["check", "--repair", "-p", "-f", name]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert_has(&refused.stdout, "Lost: ");
    assert!(std::fs::read(&image).unwrap() == before);
    let done = run(["check", "--repair", "-y", "--undo", "none", "--json", name]);
    assert_eq!(done.code, 1, "{done:?}");
    let report: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&report["written"], &report["undo"]), (&true.into(), &serde_json::Value::Null));
    e2fsck_clean(&image);
}

#[test]
fn a_backup_superblock_is_used() {
    let dir = scratch();
    let image = dir.path().join("image");
    let made =
        command("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "1024"]).arg(&image).arg("20M").output();
    assert!(made.unwrap().status.success());
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[1024..2048].fill(0);
    std::fs::write(&image, &bytes).unwrap();
    let name = image.to_str().unwrap();
    for args in [&["-n", "-b", "8193"][..], &["-y"]] {
        let done = run(["check", "--repair"].into_iter().chain(args.iter().copied()).chain([name]));
        assert!([1, 4].contains(&done.code), "{done:?}");
        assert_has(&done.stdout, "SB002");
    }
    e2fsck_clean(&image);
}
