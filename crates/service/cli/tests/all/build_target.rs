//! Targets besides a new file: a partition, an offset in a file, a device, standard output; and the effect of
//! rules.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{
    EXISTS, SOURCE, TOO_SMALL, USAGE, assert_has, assert_names, build, debugfs_stat, extant, outcome, run,
};
use extant_testkit::{e2fsck_clean, scratch};

struct Disk {
    scratch: tempfile::TempDir,
}

impl Disk {
    /// A tree, and a disk image of 64 MiB with partitions of 16 and 40 MiB, full of 0xAA.
    fn new() -> Option<Self> {
        let scratch = scratch();
        std::fs::create_dir(scratch.path().join("s")).unwrap();
        std::fs::write(scratch.path().join("s/a"), "hello\n").unwrap();
        let disk = scratch.path().join("d.img");
        std::fs::write(&disk, vec![0xAA; 64 << 20]).unwrap();
        let table = "label: gpt\nfirst-lba: 2048\nsize=16M\nsize=40M\n";
        let mut sfdisk = extant_testkit::command("sfdisk");
        sfdisk.arg("-q").arg("--wipe=never").arg(&disk).stdin(Stdio::piped());
        let Ok(mut child) = sfdisk.spawn() else {
            eprintln!("sfdisk is not installed: not tried");
            return None;
        };
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), table.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        Some(Self { scratch })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn arg(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Bytes of the disk between these offsets in MiB.
    fn bytes(&self, from: usize, to: usize) -> Vec<u8> {
        std::fs::read(self.path("d.img")).unwrap()[from << 20..to << 20].to_vec()
    }
}

/// README: IMG#N is partition N. Regression: `build -o 'disk.img#2'` made a file of that name, and later
/// commands read that file.
#[test]
fn an_image_goes_into_a_partition_and_nowhere_else() {
    let Some(disk) = Disk::new() else { return };
    let (target, tree) = (disk.arg("d.img#2"), disk.arg("s"));
    let before = (disk.bytes(0, 17), disk.bytes(57, 64));
    let refused = run(["build", "-q", "--from", &tree, "-o", &target]);
    assert_has(refused.code(EXISTS), "d.img#2 holds data: use --force");
    let built = run(["build", "--json", "--no-sync", "--force", "--from", &tree, "-o", &target]);
    assert_has(&built.stderr, "d.img#2: data is replaced");
    assert_eq!(built.report()["image_bytes"], 40 << 20, "all of the partition");
    assert!(before == (disk.bytes(0, 17), disk.bytes(57, 64)), "the table and what is around it stay");
    assert_names(disk.scratch.path(), &["d.img", "s"]);
    assert_eq!(run(["cat", &format!("{target}:/a")]).stdout, "hello\n");
    // The same bytes as in a separate file, regardless of the previous contents.
    build(&disk.path("alone.img"), args!["--from", &tree, "--size", "40M"]);
    assert!(disk.bytes(17, 57) == std::fs::read(disk.path("alone.img")).unwrap());
    e2fsck_clean(&disk.path("alone.img"));
    let again = run(["build", "-q", "--from", &tree, "-o", &target]);
    assert_has(again.code(EXISTS), "holds an ext2, ext3 or ext4 file system (UUID ");
    let large = run(["build", "-q", "-f", "--from", &tree, "-o", &target, "--size", "41M"]);
    assert_has(large.code(TOO_SMALL), "the image needs 42991616 bytes, and 41943040 were given");
    // mkfs does the same; the first partition ends where the second begins, even if it is named by its
    // offset.
    run(["mkfs", "-q", "--no-sync", "--force", &disk.arg("d.img@1M"), "-L", "first"]).code(0);
    assert_has(&run(["df", &disk.arg("d.img#1")]).stdout, "d.img#1");
    assert!(disk.bytes(17, 57) == std::fs::read(disk.path("alone.img")).unwrap(), "the second one stays");
    let refused = run(["mkfs", "-q", &disk.arg("d.img#1")]);
    assert_has(refused.code(EXISTS), "file system \"first\"");
    assert_names(disk.scratch.path(), &["alone.img", "d.img", "s"]);
}

#[test]
fn what_names_no_place_is_refused() {
    let Some(disk) = Disk::new() else { return };
    let tree = disk.arg("s");
    for (target, says) in [
        ("d.img#7", "there is no #7"),
        ("d.img#x", "wants the number of a partition"),
        ("d.img@65M", "no room at byte"),
        ("none.img#2", "there is no file"),
        ("none.img@1M", "there is no file"),
        ("none.img#2:/etc", "there is no file"),
        ("d.img:/etc", "is a path inside of an image"),
    ] {
        let refused = run(["build", "-q", "-f", "--from", &tree, "-o", &disk.arg(target)]);
        assert_has(refused.code(USAGE), says);
        assert_has(run(["mkfs", "-q", "-F", "-s", "8M", &disk.arg(target)]).code(USAGE), says);
    }
    let mut memory = extant();
    memory.current_dir(disk.scratch.path()).args(["mkfs", "-q", "-s", "8M", "mem:8M"]);
    assert_has(outcome(&mut memory).code(USAGE), "would be gone at once");
    assert_names(disk.scratch.path(), &["d.img", "s"]);
}

/// A pipe gets zeros for holes, a file gets holes; the report goes to standard error.
#[test]
fn an_image_goes_to_standard_output() {
    let scratch = scratch();
    let (tree, file) = (scratch.path().join("s"), scratch.path().join("o"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "hello\n").unwrap();
    build(&scratch.path().join("alone.img"), args!["--from", &tree, "--size", "24M"]);
    let alone = std::fs::read(scratch.path().join("alone.img")).unwrap();
    let mut command = extant();
    command.current_dir(scratch.path()).args(["build", "-o", "-", "--size", "24M", "--from", "s"]);
    let piped = command.output().unwrap();
    assert!(piped.status.success() && piped.stdout == alone);
    assert_has(&String::from_utf8_lossy(&piped.stderr), "standard output");
    command.stdout(std::fs::File::create(&file).unwrap());
    assert!(command.status().unwrap().success());
    assert!(std::fs::read(&file).unwrap() == alone);
    use std::os::unix::fs::MetadataExt;
    assert!(file.metadata().unwrap().blocks() * 512 < 16 << 20, "holes stay holes");
    assert_names(scratch.path(), &["alone.img", "o", "s"]);
    let mut mkfs = extant();
    mkfs.current_dir(scratch.path()).args(["mkfs", "-", "-q", "--size", "8M"]);
    assert_eq!(mkfs.output().unwrap().stdout.len(), 8 << 20);
    // Out of an image again.
    let image = scratch.path().join("alone.img").display().to_string();
    let mut cp = extant();
    cp.current_dir(scratch.path()).args(["cp", &format!("{image}:/a"), "-"]);
    let copied = outcome(&mut cp);
    copied.code(0);
    assert_eq!(copied.stdout, "hello\n");
    assert_names(scratch.path(), &["alone.img", "o", "s"]);
}

/// An image of the smallest size is grown on its target. Its new groups then have as many inodes as its first
/// group has now.
#[test]
fn images_that_are_grown_get_inodes_enough() {
    let scratch = scratch();
    let tree = scratch.path().join("s");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), vec![7; 2_000_000]).unwrap();
    let image = scratch.path().join("i.img");
    let grown = |options: &str, size: u64| -> (u64, u64) {
        let _ = std::fs::remove_file(&image);
        let mut all = args!["--from", &tree].to_vec();
        all.extend(common::words(options));
        let report = build(&image, &all);
        e2fsck_clean(&image);
        std::fs::File::options().write(true).open(&image).unwrap().set_len(size).unwrap();
        let mut resize = Command::new("resize2fs");
        assert!(resize.arg(&image).output().unwrap().status.success(), "{options}");
        let count = extant_testkit::dumpe2fs(&image).fields["Inode count"].parse().unwrap();
        (count, report["image_bytes"].as_u64().unwrap())
    };
    let (smallest, bytes) = grown("", 16 << 30);
    assert!(smallest >= 200_000 && bytes < 3_000_000, "{smallest} inodes, {bytes} bytes");
    assert!(grown("--headroom 50", 16 << 30).0 >= 200_000);
    let (more, with_more) = grown("--size +20M", 16 << 30);
    assert!(more >= 200_000 && (bytes + (20 << 20)..bytes + (22 << 20)).contains(&with_more), "{with_more}");
    let (fewest, least) = grown("-N 1", 1 << 30);
    assert!(fewest < 1000 && least < bytes, "-N counts as it is given: {fewest}");
    // As in mke2fs's file system of that size.
    let (planned, _) = grown("--grow-to 2G -J size=4", 2 << 30);
    assert_eq!(planned, (2 << 30) / 16_384);
    let _ = std::fs::remove_file(&image);
    let report = build(&image, args!["--from", &tree, "--grow-to", "1G"]);
    assert_eq!(report["has_journal"], true);
    let journal = extant_testkit::dumpe2fs(&image).fields["Total journal size"].clone();
    assert_eq!(journal, "32M", "that of 1 GiB");
}

/// Owners, modes and devices that no source has: genext2fs's tables, mtree, and options for single paths, in
/// their order.
#[test]
fn rules_make_and_change_what_they_name() {
    let scratch = scratch();
    let tree = scratch.path().join("s");
    for dir in ["usr/bin", "srv/www"] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for file in ["usr/bin/su", "srv/www/index", "srv/www/page"] {
        std::fs::write(tree.join(file), "x").unwrap();
    }
    std::os::unix::fs::symlink("usr/bin", tree.join("bin")).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(scratch.path().join(name), text).unwrap();
        scratch.path().join(name)
    };
    let table = write(
        "table",
        "# name type mode uid gid major minor start inc count\n/dev d 755 0 0 - - - - -\n/dev/console c 600 0 5 5 1 - - -\n\
         /dev/tty c 666 0 0 4 0 0 1 3\n/bin/su f 4755 0 0 - - - - -\n/srv r -1 33 34 - - - - -\n",
    );
    let mtree = write(
        "spec",
        "#mtree\n/set uid=0 gid=0\n./run type=dir mode=0755\n./run/lock type=link link=../tmp\n./usr/bin/su uid=7 time=1700000000.5\n",
    );
    let image = scratch.path().join("i.img");
    build(
        &image,
        args![
            "--from",
            &tree,
            "--owner",
            "1:1",
            "-D",
            &table,
            "--mtree",
            &mtree,
            "--mknod",
            "/dev/sda=b:8:0,0660,0:6",
            "--chmod",
            "/srv/www/*=go-rwx",
            "--chown",
            "/srv/www/page=9:",
            "--mknod",
            "/run/fifo=p"
        ],
    );
    e2fsck_clean(&image);
    let has = |path: &str, parts: &[&str]| {
        let stat = debugfs_stat(&image, path);
        parts.iter().for_each(|part| assert_has(&stat, part));
    };
    has("/dev/console", &["Type: character special", "Mode:  0600", "Group:     5", "05:01"]);
    has("/dev/tty2", &["Mode:  0666", "04:02"]);
    has("/dev/sda", &["Type: block special", "Mode:  0660", "Group:     6", "08:00"]);
    has("/usr/bin/su", &["Mode:  04755", "User:     7", "mtime: 0x6553f100:00000014"]);
    has("/srv", &["User:    33", "Group:    34", "Mode:  0755"]);
    has("/srv/www/index", &["User:    33", "Mode:  0600"]);
    has("/srv/www/page", &["User:     9", "Group:    34", "Mode:  0600"]);
    has("/run/lock", &["Fast link dest: \"../tmp\"", "User:     0"]);
    has("/run/fifo", &["Type: FIFO"]);
    has("/usr/bin", &["User:     1"]);
    let refused = |options: &str, code: i32, says: &str| {
        let mut all = args!["--from", &tree].to_vec();
        all.extend(common::words(options));
        assert_has(common::try_build(&scratch.path().join("no.img"), all).code(code), says);
    };
    refused("--chown /nothing=0:0", SOURCE, "--chown /nothing=0:0: nothing in the image has this path");
    refused("--chown /srv=root:0", USAGE, "names mean different ids");
    refused("--chmod /srv", USAGE, "it is PATH=WHAT");
    refused("--mknod /srv=p", SOURCE, "would take the place of a directory");
    refused("--mknod /x=c:5", USAGE, "is not c:MAJOR:MINOR");
    let bad = write("bad", "/dev d 755\n/x c 600 0 0\n");
    refused(&format!("-D {}", bad.display()), USAGE, "bad:2: a device needs a major and a minor number");
}

/// `extant edit` creates the same as the tables, without a rebuild.
#[test]
fn devices_and_pipes_are_made_in_an_image() {
    let scratch = scratch();
    let image = scratch.path().join("i.img");
    let name = image.display().to_string();
    run(["mkfs", "-q", "--no-sync", "-s", "16M", &name]).code(0);
    let script: &Path = &scratch.path().join("script");
    std::fs::write(script, "mkdir /dev\nmknod -m 0600 /dev/console c 5 1\nmkfifo /pipe\nmknod /sock s\n")
        .unwrap();
    run(["edit", &name, &script.display().to_string()]).code(0);
    run(["mknod", &format!("{name}:/dev/sda"), "b", "8", "0"]).code(0);
    e2fsck_clean(&image);
    assert_has(&debugfs_stat(&image, "/dev/console"), "05:01");
    assert_has(&debugfs_stat(&image, "/dev/sda"), "Type: block special    Mode:  0644");
    assert_has(&debugfs_stat(&image, "/pipe"), "Type: FIFO    Mode:  0644");
    assert_has(run(["mknod", &format!("{name}:/x"), "c"]).code(USAGE), "<MAJOR>");
    assert_has(run(["mknod", &format!("{name}:/x"), "p", "1", "2"]).code(USAGE), "only devices have numbers");
    assert_has(run(["mknod", &format!("{name}:/pipe"), "p"]).code(EXISTS), "`extant rm` removes what has it");
}

/// An image of the smallest size has no free space: the error message explains how to get some.
#[test]
fn a_full_image_says_what_makes_room() {
    let scratch = scratch();
    let (tree, image) = (scratch.path().join("s"), scratch.path().join("i.img"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "1").unwrap();
    build(&image, args!["--from", &tree]);
    std::fs::write(scratch.path().join("large"), vec![1; 1 << 20]).unwrap();
    let large = scratch.path().join("large").display().to_string();
    let target = format!("{}:/large", image.display());
    assert_has(run(["put", "--from", &large, &target]).code(common::NO_SPACE), "--headroom");
    assert_has(run(["cp", &large, &target]).code(common::NO_SPACE), "--headroom");
}
