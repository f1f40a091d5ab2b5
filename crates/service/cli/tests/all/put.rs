//! `extant put`, `fallocate` and `cp` into an image: the kernel reads what they write, e2fsck finds no
//! errors, and a failure in the middle leaves the image unchanged.

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use crate::common::image::{Image, kinds};
use crate::common::{NO_SPACE, Outcome, SOURCE, USAGE, assert_has, extant, run};
use extant_testkit::{DiffOptions, LoopMount, Manifest, diff, e2fsck_clean, is_root, scratch};

const NOT_FOUND: i32 = 9;
const BUSY: i32 = 10;

/// Runs `extant put` with these bytes on standard input; `:/path` stands for a path of the image.
fn put(image: &Image, line: &str, bytes: &[u8]) -> Outcome {
    let mut command = extant();
    command.arg("put");
    for word in line.split(' ') {
        match word.strip_prefix(":/") {
            Some(path) => command.arg(format!("{}:/{path}", image.path.display())),
            None => command.arg(word),
        };
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A refused command reads nothing.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome {
        line: format!("put {line}"),
        code: output.status.code().unwrap(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

fn numbers(to: u32) -> Vec<u8> {
    (0..to).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

#[test]
fn bytes_are_put_appended_and_replaced() {
    for image in kinds() {
        let large = numbers(400_000);
        image.done("mkdir :/d");
        assert_eq!(put(&image, ":/d/name", b"box7\n").code(0), "");
        put(&image, ":/d/large", &large).code(0);
        put(&image, "-m 4750 :/d/mode", b"x").code(0);
        put(&image, ":/d/none", b"").code(0);
        image.done("chown 7:8 :/d/name");
        image.done("ln :/d/name :/d/other");
        image.done("ln -s d/name :/link");
        put(&image, "--append :/link", b"more\n").code(0);
        put(&image, ":/d/mode", b"").code(0);
        image.mounted(|root| {
            let read = |path: &str| std::fs::read(root.join(path)).unwrap();
            let stat = |path: &str| std::fs::metadata(root.join(path)).unwrap();
            assert_eq!(read("d/other"), b"box7\nmore\n");
            assert!(read("d/large") == large);
            assert_eq!((read("d/none"), read("d/mode")), (vec![], vec![]));
            assert_eq!((stat("d/name").uid(), stat("d/name").gid(), stat("d/name").nlink()), (7, 8, 2));
            assert_eq!((stat("d/name").mode() & 0o7777, stat("d/none").mode() & 0o7777), (0o644, 0o644));
        });
        // One commit is one transaction, or two if it must wait for freed blocks.
        put(&image, ":/d/large", b"short").code(0);
        assert_eq!(image.done("cat :/d/large"), "short");
        image.mounted(|_| ());

        let before = std::fs::read(&image.path).unwrap();
        assert_has(put(&image, ":/no/file", b"x").code(NOT_FOUND), "`mkdir -p` makes it");
        assert_has(put(&image, ":/d", b"x").code(NOT_FOUND), "is a directory");
        assert_has(
            put(&image, "--from /nonexistent :/d/name", b"").code(SOURCE),
            "/nonexistent: there is no such file; `ls /` lists",
        );
        assert_has(put(&image, "--from / :/d/name", b"").code(SOURCE), "Is a directory");
        assert_has(put(&image, ":/d/name -m u+q", b"").code(USAGE), "is no mode");
        // A file that does not fit leaves the old contents.
        assert_has(put(&image, ":/d/name", &vec![b'x'; 40 << 20]).code(NO_SPACE), "/d/name: ");
        assert_has(put(&image, ":/d/new", &vec![b'x'; 40 << 20]).code(NO_SPACE), "/d/new: ");
        assert!(std::fs::read(&image.path).unwrap() == before);
    }
}

#[test]
fn an_image_in_use_is_left_alone() {
    let image = Image::new(&[]);
    let locked = std::fs::File::options().read(true).write(true).open(&image.path).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_has(put(&image, ":/f", b"x").code(BUSY), "in use");
    assert_has(image.run("cp /etc/hostname :/").code(BUSY), "in use");
}

#[test]
fn ranges_are_reserved_punched_zeroed_collapsed_and_inserted() {
    let image = Image::new(&["-b", "4096"]);
    let mut bytes = numbers(40_000);
    bytes.resize(200_000, b'.');
    put(&image, ":/f", &bytes).code(0);
    image.done("fallocate --punch :/f 5000 50K");
    bytes[5000..5000 + 51_200].fill(0);
    image.done("fallocate --zero :/f 100000 10000");
    bytes[100_000..110_000].fill(0);
    image.done("fallocate --collapse :/f 8K 8K");
    bytes.drain(8192..16384);
    image.done("fallocate --insert :/f 4K 12K");
    bytes.splice(4096..4096, vec![0; 12288]);
    image.done("fallocate --keep-size :/f 1M 1M");
    image.done("touch :/r");
    image.done("fallocate :/r 0 1M");
    image.mounted(|root| {
        let there = std::fs::read(root.join("f")).unwrap();
        assert!(there == bytes, "{} {}", there.len(), bytes.len());
        let reserved = std::fs::metadata(root.join("r")).unwrap();
        assert_eq!((reserved.len(), reserved.blocks()), (1 << 20, 2048));
        assert!(std::fs::metadata(root.join("f")).unwrap().blocks() >= 2048);
    });
    image.refused("fallocate --collapse :/f 1 4096", NOT_FOUND, "whole blocks");
    image.refused("fallocate :/f 0 0", NOT_FOUND, "at least 1");
    image.refused("fallocate :/none 0 1", NOT_FOUND, "no such file");
    image.refused("fallocate --punch --zero :/f 0 1", USAGE, "do not go together");
    assert_eq!(image.run("fallocate :/r 0 1G").code, NO_SPACE);
    e2fsck_clean(&image.path);
    let old = Image::new(&["-t", "ext3"]);
    put(&old, ":/f", &bytes).code(0);
    old.refused("fallocate :/f 0 1M", 1, "can only be --punch'ed");
    old.done("fallocate --punch :/f 0 100K");
    old.mounted(|root| {
        assert!(std::fs::read(root.join("f")).unwrap()[..102_400].iter().all(|byte| *byte == 0))
    });
}

/// Creates a tree with all file types and properties that a copy must preserve.
fn make_tree(root: &Path) {
    let script = r#"
set -e
mkdir -p dir/sub/deep empty
seq 5000 > dir/numbers; head -c 3000000 /dev/urandom > dir/random; : > dir/none
ln dir/numbers dir/sub/again; ln -s ../dir/none dir/link; ln -s /nowhere dir/dangling
truncate -s 5M dir/sparse; printf x | dd of=dir/sparse bs=1 seek=3000000 conv=notrunc status=none
mkfifo dir/fifo; chmod 4751 dir/random; chmod 1777 empty; chmod 600 dir/none
touch -d '2001-02-03 04:05:06.789' dir/numbers dir/sub; touch -h -d '1999-01-01' dir/link
setfattr -n user.small -v value dir/none
for i in $(seq 300); do echo $i > dir/sub/deep/file-$i; done
if [ $(id -u) = 0 ]; then chown 12:34 dir/none; chown -h 5:6 dir/link; mknod dir/null c 1 3; setfattr -n trusted.t -v x dir; fi
touch -d '2005-05-05' dir/sub/deep dir empty .
"#;
    let script = format!("cd {}; {script}", root.display());
    extant_testkit::run("bash", ["-c", &script]);
}

#[test]
fn trees_are_copied_in_and_out_again_alike() {
    for image in kinds() {
        let source = scratch();
        make_tree(source.path());
        let shown = source.path().display();
        image.done("mkdir :/in :/plain");
        image.done(&format!("cp -a {shown}/. :/in"));
        image.done(&format!("cp -r {shown}/dir :/plain"));
        image.done(&format!("cp {shown}/dir/numbers {shown}/dir/link :/plain"));
        e2fsck_clean(&image.path);
        if !is_root() {
            continue;
        }
        let mount = LoopMount::new(&image.path, "ro,noatime").unwrap();
        let options = DiffOptions {
            ignore_root: true,
            atime: false,
            btime: false,
            extents: false,
            same_image: false,
            ..DiffOptions::exact(4096)
        };
        let lines = diff(&Manifest::of(source.path()), &Manifest::of(&mount.path().join("in")), &options);
        assert!(lines.is_empty(), "{}", lines.join("\n"));
        let plain = |path: &str| mount.path().join("plain").join(path);
        let random = std::fs::metadata(plain("dir/random")).unwrap();
        assert_eq!((random.mode() & 0o7777, random.uid()), (0o751 & !0o022, 0));
        assert_eq!(std::fs::metadata(plain("dir/numbers")).unwrap().nlink(), 2);
        assert_eq!(std::fs::metadata(plain("numbers")).unwrap().nlink(), 1);
        assert!(std::fs::symlink_metadata(plain("link")).unwrap().is_file(), "followed without -r");
        assert!(std::fs::symlink_metadata(plain("dir/fifo")).unwrap().file_type().is_fifo());
    }
}

#[test]
fn what_is_there_is_replaced_when_the_new_one_is_whole() {
    let image = Image::new(&[]);
    let source = scratch();
    let at = |name: &str| source.path().join(name);
    std::fs::write(at("one"), numbers(1000)).unwrap();
    std::fs::write(at("two"), numbers(2000)).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    std::fs::write(at("dir/one"), "new").unwrap();
    let shown = source.path().display();
    image.done("mkdir -p :/dir/kept");
    image.done(&format!("cp {shown}/one :/file"));
    image.done("ln :/file :/same");
    image.done(&format!("cp {shown}/one :/dir/"));
    image.done(&format!("cp {shown}/two :/file"));
    image.done(&format!("cp -r {shown}/dir :/"));
    image.mounted(|root| {
        assert!(std::fs::read(root.join("file")).unwrap() == numbers(2000));
        assert!(std::fs::read(root.join("same")).unwrap() == numbers(1000), "another file");
        assert_eq!(std::fs::read(root.join("dir/one")).unwrap(), b"new");
        assert!(root.join("dir/kept").is_dir());
    });
    image.refused(&format!("cp {shown}/dir :/"), USAGE, "copy it with -r");
    image.refused(&format!("cp {shown}/one {shown}/two :/file"), USAGE, "existing directory");
    image.refused(&format!("cp {shown}/one :/no/dir"), NOT_FOUND, "mkdir -p");
    image.refused(&format!("cp {shown}/none :/"), SOURCE, "No such file");
    image.refused("cp :/file :/other", USAGE, "copy it out first");
    image.refused(&format!("cp --no-recovery {shown}/one :/x"), USAGE, "--no-recovery");
    // A file that does not fit is not created, and does not replace an old one; a file that fits is copied.
    std::fs::write(at("large"), vec![b'x'; 40 << 20]).unwrap();
    let outcome = image.run(&format!("cp {shown}/one {shown}/large :/dir"));
    assert_has(outcome.code(NO_SPACE), "/dir/large: ");
    let outcome = image.run(&format!("cp {shown}/large :/file"));
    assert_has(outcome.code(NO_SPACE), "/file: ");
    // The same for unreadable files.
    std::fs::write(at("secret"), "s").unwrap();
    image.mounted(|root| {
        assert!(std::fs::read(root.join("file")).unwrap() == numbers(2000));
        let mut names: Vec<_> =
            std::fs::read_dir(root.join("dir")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kept", "one"]);
    });
}

#[test]
fn scripts_put_and_reserve_as_a_whole_or_not_at_all() {
    let image = Image::new(&[]);
    let source = scratch();
    let file = source.path().join("with blank");
    std::fs::write(&file, numbers(50_000)).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let script = format!(
        "mkdir /etc\nput --from '{0}' -m 600 /etc/f\nput --append --from '{0}' /etc/f\nfallocate --punch /etc/f 0 4096\n",
        file.display()
    );
    assert_eq!(image.script(&[], &script).code(0), "");
    image.mounted(|root| {
        let mut expected = [numbers(50_000), numbers(50_000)].concat();
        expected[..4096].fill(0);
        assert!(std::fs::read(root.join("etc/f")).unwrap() == expected);
        assert_eq!(std::fs::metadata(root.join("etc/f")).unwrap().mode() & 0o7777, 0o600);
    });
    let before = std::fs::read(&image.path).unwrap();
    for (line, code, part) in [
        ("put /etc/g", USAGE, "put --from FILE PATH"),
        ("put --from /nonexistent /etc/g", SOURCE, "there is no such file"),
        ("rm /none", NOT_FOUND, "no such file"),
    ] {
        let script = format!("put --from '{}' /etc/f\ntruncate -s 3 /etc/f\n{line}\n", file.display());
        let outcome = image.script(&[], &script);
        assert_has(outcome.code(code), part);
        assert_has(&outcome.stderr, "line 3: ");
        assert!(std::fs::read(&image.path).unwrap() == before, "{line}");
    }
    assert_eq!(image.script(&["-n"], "truncate -s 0 /etc/f\n").code, 0);
    assert!(std::fs::read(&image.path).unwrap() == before);
    assert_eq!(run(["put"]).code, USAGE);
}
