//! Files that are not a sound image: another format, half a download, a lost superblock, damaged directories.
//! Each command names the problem, reads what remains, and reports it by its exit code.

use crate::common;

use std::path::{Path, PathBuf};

use crate::common::{assert_has, run};
use extant_testkit::scratch;

const DAMAGED: i32 = 4;
const UNREADABLE: i32 = 8;
const NOT_FOUND: i32 = 9;

/// An image of 40 MiB with groups of 8 MiB that contains /hello and /d/inner.
fn image(dir: &Path) -> PathBuf {
    let (image, tree) = (dir.join("a.img"), dir.join("tree"));
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("hello"), "hello\n").unwrap();
    std::fs::write(tree.join("d/inner"), "inner\n").unwrap();
    extant_testkit::run("mke2fs", args!["-q", "-F", "-t", "ext4", "-b", "1024", "-d", &tree, &image, "40M"]);
    image
}

fn at(image: &Path, path: &str) -> String {
    format!("{}:{path}", image.display())
}

fn overwrite(image: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new().write(true).open(image).unwrap().write_all_at(bytes, offset).unwrap();
}

/// A directory, a VMDK image, a short gzip file: every command that opens an image names the format and the
/// remedy.
#[test]
fn what_is_no_ext4_is_named_by_every_command() {
    let scratch = scratch();
    let dir = scratch.path();
    let (vmdk, gzip, folder) = (dir.join("v"), dir.join("g"), dir.join("folder"));
    std::fs::write(&vmdk, [b"KDMV".as_slice(), &vec![0; 1 << 20]].concat()).unwrap();
    std::fs::write(&gzip, b"\x1f\x8b\x08\0").unwrap();
    std::fs::create_dir(&folder).unwrap();
    for (image, words) in [
        (&vmdk, ["VMDK", "qemu-img convert"]),
        (&gzip, ["gzip", "gzip -dc"]),
        (&folder, ["directory", "extant build --from"]),
    ] {
        let (root, out) = (at(image, "/"), dir.join("out"));
        for args in [
            args!["ls", &root].to_vec(),
            args!["ls", image].to_vec(),
            args!["tree", image].to_vec(),
            args!["stat", &root].to_vec(),
            args!["cat", at(image, "/a")].to_vec(),
            args!["df", image].to_vec(),
            args!["cp", "-r", &root, &out].to_vec(),
            args!["export", image, "--tar", &out].to_vec(),
            args!["inspect", image, "super"].to_vec(),
            args!["check", image].to_vec(),
            args!["rm", at(image, "/a")].to_vec(),
            args!["trim", image].to_vec(),
            args!["mount", image, dir].to_vec(),
        ] {
            let done = run(&args);
            assert_eq!(done.code, UNREADABLE, "{}: {}", done.line, done.stderr);
            let said = format!("{}{}", done.stdout, done.stderr);
            assert!(words.iter().all(|word| said.contains(word)), "{}: {said}", done.line);
        }
    }
}

/// Half a download: files before the end are complete; a note states where the image ends, and the exit code
/// is 4.
#[test]
fn an_image_that_ends_early_is_read_with_a_note() {
    let scratch = scratch();
    let image = image(scratch.path());
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(30 << 20).unwrap();
    let note = "the image ends after 30720 of the file system's 40960 blocks";
    let (tar, out) = (scratch.path().join("t"), scratch.path().join("out"));
    let cat = run(["cat", &at(&image, "/hello")]);
    assert_has(cat.code(DAMAGED), note);
    assert_eq!(cat.stdout, "hello\n");
    let ls = run(["ls", &at(&image, "/d")]);
    assert_has(ls.code(DAMAGED), note);
    assert_eq!(ls.stdout, "inner\n");
    assert_has(run(args!["export", &image, "--tar", &tar]).code(DAMAGED), note);
    assert_has(run(args!["cp", "-r", at(&image, "/"), &out]).code(DAMAGED), note);
    assert_eq!(std::fs::read(out.join("d/inner")).unwrap(), b"inner\n");
    run(args!["inspect", &image, "super"]).code(0);
    assert_has(run(args!["inspect", &image, "inode", "/hello"]).code(DAMAGED), "30720");
    let checked = run(args!["check", &image]);
    checked.code(DAMAGED);
    assert_has(&checked.stdout, "the device's size");
}

/// The primary superblock is lost: commands read with a backup, and print a note. Writing is refused.
#[test]
fn a_lost_superblock_is_got_over_by_a_backup() {
    let scratch = scratch();
    let image = image(scratch.path());
    let by_choice = run(["cat", "--backup", "24577", &at(&image, "/hello")]);
    assert_has(by_choice.code(0), "read by the backup superblock in block 24577 (group 3)");
    overwrite(&image, 1024, &[0; 2048]);
    for args in [
        args!["cat", at(&image, "/hello")].to_vec(),
        args!["cat", "--backup", "auto", at(&image, "/hello")].to_vec(),
    ] {
        let done = run(&args);
        assert_eq!(done.stdout, "hello\n", "{}", done.stderr);
        assert_has(&done.stderr, "read by the backup superblock in block 8193");
    }
    run(["cat", &at(&image, "/hello")]).code(DAMAGED);
    run(["rm", &at(&image, "/hello")]).code(UNREADABLE);
    let wrong = run(["ls", "--backup", "8192", &at(&image, "/")]);
    assert_has(wrong.code(UNREADABLE), "block 8192 holds no sound backup");
    assert_has(run(["ls", "--backup", "x", "a"]).code(common::USAGE), "auto");
}

/// The root directory is lost: the remaining files are accessible by inode number, as lost+found would name
/// them.
#[test]
fn files_are_reached_by_the_numbers_of_their_inodes() {
    let scratch = scratch();
    let image = image(scratch.path());
    let number = |path: &str| {
        let stat = run(["stat", "--json", &at(&image, path)]);
        stat.report()[0]["inode"].as_u64().unwrap()
    };
    let (file, dir) = (number("/hello"), number("/d"));
    let out = scratch.path().join("out");
    assert_eq!(run(["cat", &at(&image, &format!("<{file}>"))]).stdout, "hello\n");
    assert_eq!(run(["cat", &at(&image, &format!("<{dir}>/inner"))]).stdout, "inner\n");
    assert_eq!(run(["cat", &at(&image, "<2>/d/inner")]).stdout, "inner\n");
    run(args!["cp", "-r", at(&image, "<2>"), &out]).code(0);
    assert_eq!(std::fs::read(out.join("d/inner")).unwrap(), b"inner\n");
    extant_testkit::run("debugfs", args!["-w", "-R", "clri <2>", &image]);
    run(["ls", &at(&image, "/")]).code(NOT_FOUND);
    run(args!["cp", at(&image, &format!("<{file}>")), &out]).code(0);
    assert_eq!(std::fs::read(out.join(file.to_string())).unwrap(), b"hello\n");
    run(args!["cp", "-r", at(&image, &format!("<{dir}>")), out.join("d2")]).code(0);
    assert_eq!(std::fs::read(out.join("d2/inner")).unwrap(), b"inner\n");
    run(["cat", &at(&image, "<5000>")]).code(NOT_FOUND);
    run(["cat", &at(&image, "<99999999>")]).code(NOT_FOUND);
}

/// A flipped bit in a descriptor: every file is read as before, one note describes the repair, and the exit
/// code is 4.
#[test]
fn damaged_descriptors_are_noted_once() {
    let scratch = scratch();
    let image = image(scratch.path());
    overwrite(&image, 2048 + 12, &[0xEE, 0xEE]);
    let done = run(["cat", &at(&image, "/hello"), &at(&image, "/d/inner")]);
    assert_has(done.code(DAMAGED), "their backups are used: group 0");
    assert_eq!(done.stdout, "hello\ninner\n");
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
}
