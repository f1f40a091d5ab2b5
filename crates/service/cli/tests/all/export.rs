//! Extraction: `extant cp` and `extant export` lose nothing, and touch nothing outside the destination.

use crate::common;

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::{EXISTS, USAGE, assert_has, build, extant, outcome, run};
use extant_testkit::{DiffOptions, Holes, LoopMount, Manifest, diff, is_root, scratch, trees};

const TARGET: i32 = 1;
const DAMAGED: i32 = 4;
const NOT_FOUND: i32 = 9;

fn at(image: &Path, path: &str) -> OsString {
    let mut arg = image.as_os_str().to_owned();
    arg.push(":");
    arg.push(path);
    arg
}

/// The tree with all unusual contents, and an image of it.
fn awkward(scratch: &Path) -> (PathBuf, PathBuf) {
    let (tree, image) = (scratch.join("tree"), scratch.join("a.img"));
    std::fs::create_dir(&tree).unwrap();
    trees::adversarial(&tree);
    build(&image, args!["--from", &tree, "--times", "all"]);
    (tree, image)
}

fn root() -> bool {
    if !is_root() {
        println!("skipped: not root");
    }
    is_root()
}

#[track_caller]
fn assert_equal(source: &Manifest, copy: &Manifest, options: &DiffOptions) {
    let lines = diff(source, copy, options);
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Compares everything that `cp -a` from the kernel's mount would copy, including access times.
fn whole() -> DiffOptions {
    DiffOptions {
        ignore_lost_and_found: false,
        atime: true,
        holes: Holes::Stay { block_size: 4096 },
        ..DiffOptions::default()
    }
}

#[test]
fn everything_comes_out_as_the_kernel_shows_it() {
    if !root() {
        return;
    }
    let scratch = scratch();
    let (_, image) = awkward(scratch.path());
    let kernel = {
        let mount = LoopMount::read_only(&image).unwrap();
        Manifest::of(mount.path())
    };
    let out = scratch.path().join("cp");
    run([OsString::from("cp"), OsString::from("-a"), at(&image, "/"), out.clone().into()]).code(0);
    assert_equal(&kernel, &Manifest::of(&out), &whole());
    let out = scratch.path().join("dir");
    run(args!["export", &image, "--dir", &out]).code(0);
    assert_equal(&kernel, &Manifest::of(&out), &whole());
    // Into a directory that already has everything: the same result.
    run(args!["export", &image, "--force", "--dir", &out]).code(0);
    assert_equal(&kernel, &Manifest::of(&out), &whole());
}

#[test]
fn an_archive_holds_everything_for_gnu_tar() {
    if !root() {
        return;
    }
    let scratch = scratch();
    let (tree, image) = awkward(scratch.path());
    let archive = scratch.path().join("a.tar");
    run(args!["export", &image, "--tar", &archive]).code(0);
    let out = scratch.path().join("out");
    std::fs::create_dir(&out).unwrap();
    extant_testkit::run(
        "tar",
        args!["-C", &out, "-xpf", &archive, "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"],
    );
    let mut source = Manifest::of(&tree);
    // Archives contain no sockets.
    source.entries.retain(|_, entry| entry.kind != extant_testkit::Kind::Socket);
    let copy = Manifest::of(&out);
    assert_equal(&source, &copy, &DiffOptions { ignore_root: true, ..DiffOptions::default() });
}

#[test]
fn an_image_of_the_archive_is_the_same_image() {
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    trees::many(&tree, 3000, 7);
    std::fs::hard_link(tree.join("l1"), tree.join("l2")).unwrap_or_default();
    let first = scratch.path().join("first.img");
    build(&first, args!["--from", &tree]);
    let archive = scratch.path().join("a.tar");
    run(args!["export", &first, "--tar", &archive]).code(0);
    let second = scratch.path().join("second.img");
    build(&second, args!["--tar", &archive]);
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap());
    // A pipe gets the same bytes, regardless of the timing of threads.
    let piped = extant().args(["export", "--tar", "-"]).arg(&first).output().unwrap();
    assert!(piped.stdout == std::fs::read(&archive).unwrap());
}

#[test]
fn one_file_goes_to_the_named_destination() {
    let scratch = scratch();
    let dir = scratch.path();
    let tree = dir.join("tree");
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("d/a"), "content").unwrap();
    std::fs::set_permissions(tree.join("d/a"), PermissionsExt::from_mode(0o4711)).unwrap();
    symlink("a", tree.join("d/link")).unwrap();
    let image = dir.join("a.img");
    build(&image, args!["--from", &tree]);
    run([OsString::from("cp"), at(&image, "/d/link"), dir.join("new").into()]).code(0);
    assert_eq!(std::fs::read(dir.join("new")).unwrap(), b"content");
    let mode = |name: &str| dir.join(name).symlink_metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode("new") & 0o7000, 0, "set-uid only with -p");
    run([OsString::from("cp"), OsString::from("-p"), at(&image, "/d/a"), dir.into()]).code(0);
    assert_eq!(mode("a"), 0o4711);
    assert_has(run([OsString::from("cp"), at(&image, "/d"), dir.into()]).code(USAGE), "copy it with -r");
    run([OsString::from("cp"), OsString::from("-r"), at(&image, "/d"), dir.into()]).code(0);
    assert_eq!(std::fs::read_link(dir.join("d/link")).unwrap(), Path::new("a"));
    assert_has(run([OsString::from("cp"), at(&image, "/x"), dir.into()]).code(NOT_FOUND), "no such file");
    let two = [at(&image, "/d/a"), at(&image, "/d/link"), dir.join("no").into()];
    assert_has(run([OsString::from("cp")].into_iter().chain(two)).code(USAGE), "existing directory");
    // A single file as an archive.
    let listed =
        outcome(extant().arg("export").arg(at(&image, "/d/a")).arg("--tar").arg(dir.join("one.tar")));
    listed.code(0);
    let names = extant_testkit::run("tar", args!["-tf", dir.join("one.tar")]);
    assert_eq!(String::from_utf8_lossy(&names.stdout), "a\n");
}

#[test]
fn holes_stay_holes_and_links_stay_links() {
    let scratch = scratch();
    let dir = scratch.path();
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    let file = std::fs::File::create(tree.join("sparse")).unwrap();
    file.set_len(200 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 5000], 100 << 20).unwrap();
    std::fs::hard_link(tree.join("sparse"), tree.join("other")).unwrap();
    let image = dir.join("a.img");
    build(&image, args!["--from", &tree]);
    let out = dir.join("out");
    run([OsString::from("cp"), OsString::from("-r"), at(&image, "/"), out.clone().into()]).code(0);
    let metadata = out.join("sparse").metadata().unwrap();
    assert_eq!((metadata.len(), metadata.nlink()), (200 << 20, 2));
    assert!(metadata.blocks() < 100, "{} blocks", metadata.blocks());
    let options = DiffOptions { ignore_root: true, ..DiffOptions::default() };
    let mut source = Manifest::of(&tree);
    let copy = Manifest::of(&out);
    for (path, entry) in &mut source.entries {
        (entry.mtime, entry.mode) = (copy.entries[path].mtime, copy.entries[path].mode);
    }
    assert_equal(&source, &copy, &options);
    let full = dir.join("full");
    let args = ["cp", "--no-sparse"].map(OsString::from);
    run(args.into_iter().chain([at(&image, "/sparse"), full.clone().into()])).code(0);
    assert!(full.metadata().unwrap().blocks() >= 200 << 11);
}

/// A link in the destination that leads outside: an image must not be able to write through it.
#[test]
fn nothing_is_written_through_links_of_the_destination() {
    let scratch = scratch();
    let dir = scratch.path();
    let (tree, outside, out) = (dir.join("tree"), dir.join("outside"), dir.join("out"));
    std::fs::create_dir_all(tree.join("d/e")).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(tree.join("d/e/a"), "evil").unwrap();
    std::fs::write(tree.join("file"), "evil").unwrap();
    std::fs::write(tree.join("z"), "good").unwrap();
    std::fs::write(outside.join("file"), "good").unwrap();
    let image = dir.join("a.img");
    build(&image, args!["--from", &tree]);
    symlink(&outside, out.join("d")).unwrap();
    symlink(outside.join("file"), out.join("file")).unwrap();
    std::fs::hard_link(outside.join("file"), out.join("z")).unwrap();
    let outcome = run([OsString::from("cp"), OsString::from("-r"), at(&image, "/"), out.clone().into()]);
    assert_has(outcome.code(TARGET), "/d: there is something else than a directory");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"good");
    assert!(out.join("file").symlink_metadata().unwrap().is_file(), "the link itself was replaced");
    assert_eq!(outside.join("file").metadata().unwrap().nlink(), 1, "so was the other name");
}

#[test]
fn what_is_there_is_not_overwritten_unasked() {
    let scratch = scratch();
    let dir = scratch.path();
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "new").unwrap();
    let image = dir.join("a.img");
    build(&image, args!["--from", &tree]);
    let archive = dir.join("x.tar");
    std::fs::write(&archive, "old").unwrap();
    assert_has(run(args!["export", &image, "--tar", &archive]).code(EXISTS), "--force");
    assert_eq!(std::fs::read(&archive).unwrap(), b"old");
    run(args!["export", &image, "--tar", &archive, "--force"]).code(0);
    assert!(std::fs::metadata(&archive).unwrap().len() >= 10240);
    let out = dir.join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("a"), "old").unwrap();
    assert_has(run(args!["export", &image, "--dir", &out]).code(EXISTS), "not empty");
    assert_eq!(std::fs::read(out.join("a")).unwrap(), b"old");
    run(args!["export", &image, "--dir", &out, "--force"]).code(0);
    assert_eq!(std::fs::read(out.join("a")).unwrap(), b"new");
    run(args!["export", &image]).code(USAGE);
    run(args!["export", &image, "--dir", dir.join("no/such/dir")]).code(TARGET);
    common::assert_names(dir, &["a.img", "out", "tree", "x.tar"]);
}

#[test]
fn a_full_disk_ends_the_copy_with_its_code() {
    if !root() {
        return;
    }
    let scratch = scratch();
    let dir = scratch.path();
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    trees::many(&tree, 4000, 3);
    let image = dir.join("a.img");
    build(&image, args!["--from", &tree]);
    let small = dir.join("small");
    std::fs::create_dir(&small).unwrap();
    extant_testkit::run("mount", args!["-t", "tmpfs", "-o", "size=2M", "none", &small]);
    let dir_outcome = run(args!["export", &image, "--dir", small.join("out")]);
    let tar_outcome = run(args!["export", &image, "--tar", small.join("a.tar")]);
    extant_testkit::run("umount", args![&small]);
    assert_eq!(dir_outcome.code(common::NO_SPACE).lines().count(), 1, "{}", dir_outcome.stderr);
    assert_has(tar_outcome.code(common::NO_SPACE), "No space left");
}

/// The first name of a file may have no place in the destination; the other names must not wait for it.
#[test]
fn a_further_name_is_made_where_the_first_has_no_place() {
    let scratch = scratch();
    let dir = scratch.path();
    let tree = dir.join("tree");
    for name in ["a", "b", "c"] {
        std::fs::create_dir_all(tree.join(name)).unwrap();
    }
    std::fs::write(tree.join("a/f"), "content").unwrap();
    std::fs::write(tree.join("a/large"), vec![7; 1 << 20]).unwrap();
    symlink("target", tree.join("a/link")).unwrap();
    for name in ["f", "large", "link"] {
        for other in ["b", "c"] {
            std::fs::hard_link(tree.join("a").join(name), tree.join(other).join(name)).unwrap();
        }
    }
    let image = dir.join("a.img");
    build(&image, args!["--from", &tree]);
    // One of these is the first name of the walk.
    for blocked in ["a", "b", "c"] {
        let out = dir.join(format!("out-{blocked}"));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join(blocked), "in the way").unwrap();
        let outcome = run([OsString::from("cp"), OsString::from("-a"), at(&image, "/"), out.clone().into()]);
        assert_has(outcome.code(TARGET), "something else than a directory");
        let others: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != blocked).collect();
        for name in &others {
            assert_eq!(std::fs::read(out.join(name).join("f")).unwrap(), b"content");
            assert_eq!(std::fs::read(out.join(name).join("large")).unwrap(), vec![7; 1 << 20]);
            assert_eq!(std::fs::read_link(out.join(name).join("link")).unwrap(), Path::new("target"));
        }
        for file in ["f", "large", "link"] {
            let links = out.join(others[0]).join(file).symlink_metadata().unwrap().nlink();
            assert_eq!(links, 2, "{file} without {blocked}");
        }
    }
}

/// An image with a directory `enc` with the encryption flag: its names may be any bytes.
fn encrypted(dir: &Path) -> PathBuf {
    let (tree, image) = (dir.join("tree"), dir.join("enc.img"));
    std::fs::create_dir_all(tree.join("enc/subXdirectory")).unwrap();
    std::fs::create_dir_all(tree.join("plain")).unwrap();
    extant_testkit::run("mkfifo", args![tree.join("enc/a0fifo")]);
    std::fs::hard_link(tree.join("enc/a0fifo"), tree.join("enc/a1fifo")).unwrap();
    std::fs::write(tree.join("enc/secret"), "secret").unwrap();
    std::fs::hard_link(tree.join("enc/secret"), tree.join("enc/secret2")).unwrap();
    std::fs::write(tree.join("plain/%"), "p").unwrap();
    let features = ["-q", "-t", "ext4", "-O", "encrypt,^metadata_csum", "-d"].map(OsString::from);
    let end = [tree.into_os_string(), image.clone().into_os_string(), "8M".into()];
    extant_testkit::run("mke2fs", features.into_iter().chain(end));
    for (path, flags) in [("enc", "0x80800"), ("enc/secret", "0x80800")] {
        extant_testkit::run("debugfs", args!["-w", "-R", format!("sif /{path} flags {flags}"), &image]);
    }
    let mut bytes = std::fs::read(&image).unwrap();
    for (plain, cipher) in [(&b"subXdirectory"[..], &b"sub/directory"[..]), (b"a0fifo", b"a\0fifo")] {
        let mut found = 0;
        for at in 0..bytes.len() - plain.len() {
            if bytes[at..].starts_with(plain) {
                bytes[at..at + plain.len()].copy_from_slice(cipher);
                found += 1;
            }
        }
        assert!(found > 0, "{plain:?} is not in the image");
    }
    std::fs::write(&image, bytes).unwrap();
    image
}

#[test]
fn names_of_encrypted_directories_are_spelled() {
    let scratch = scratch();
    let dir = scratch.path();
    let image = encrypted(dir);
    let out = dir.join("out");
    let copied = run([OsString::from("cp"), OsString::from("-r"), at(&image, "/"), out.clone().into()]);
    assert_has(copied.code(DAMAGED), "key");
    assert!(out.join("enc/sub%2Fdirectory").is_dir());
    assert!(out.join("plain/%").is_file());
    // A further name is a link to the spelled first name.
    let fifos = ["enc/a%00fifo", "enc/a1fifo"].map(|name| out.join(name).symlink_metadata().unwrap());
    assert_eq!((fifos[0].ino(), fifos[0].nlink()), (fifos[1].ino(), 2));
    assert!(!out.join("enc/secret").exists() && !out.join("enc/secret2").exists());

    let archive = dir.join("x.tar");
    let exported = run(args!["export", &image, "--tar", &archive]);
    assert_has(exported.code(DAMAGED), "left out like the file's first name");
    let listed = extant_testkit::run("tar", args!["-tf", &archive]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in ["enc/sub%2Fdirectory/", "enc/a%00fifo", "enc/a1fifo", "plain/%"] {
        assert!(listed.lines().any(|line| line == name), "{name}:\n{listed}");
    }
    assert!(!listed.contains("secret"), "{listed}");
    // Every link finds its target.
    let unpacked = dir.join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    extant_testkit::run("tar", args!["-xf", &archive, "-C", &unpacked]);
    assert_eq!(unpacked.join("enc/a1fifo").symlink_metadata().unwrap().nlink(), 2);
}

/// An untrusted image as root: dangerous parts can be omitted, by name, from archives and directories.
#[test]
fn devices_set_id_bits_and_attributes_can_be_left_out() {
    let scratch = scratch();
    let dir = scratch.path();
    let image = dir.join("a.img");
    extant_testkit::run("mke2fs", args!["-q", "-F", "-t", "ext4", &image, "8M"]);
    let file = dir.join("file");
    std::fs::write(&file, "x").unwrap();
    for request in [
        &format!("write {} su", file.display()),
        "set_inode_field su mode 0106755",
        "ea_set su security.capability 0123456789012345678901",
        "ea_set su user.kept yes",
        "mknod disk b 8 0",
    ] {
        extant_testkit::run("debugfs", args!["-w", "-R", request, &image]);
    }
    let listed = |options: &[&str]| {
        let tar = dir.join("t.tar");
        let mut command = common::extant();
        command.args(["export", "--force", "--tar"]).arg(&tar).arg(&image).args(options);
        common::outcome(&mut command).code(0);
        let list = extant_testkit::command("tar")
            .args(["--xattrs", "--xattrs-include=*", "-tvvf"])
            .arg(&tar)
            .output()
            .unwrap();
        String::from_utf8(list.stdout).unwrap()
    };
    let all = listed(&[]);
    assert!(
        all.contains("-rwsr-sr-x") && all.contains("8,0") && all.contains("security.capability"),
        "{all}"
    );
    let some = listed(&["--no-devices", "--no-setid"]);
    assert!(some.contains("-rwxr-xr-x") && !some.contains("8,0") && !some.contains("capability"), "{some}");
    assert!(some.contains("user.kept"), "{some}");
    assert!(!listed(&["--no-xattrs=security.*"]).contains("security."));
    assert!(!listed(&["--no-xattrs"]).contains("user.kept"));
    let out = dir.join("out");
    let mut command = common::extant();
    command.args(["export", "--no-devices", "--no-setid", "--dir"]).arg(&out).arg(&image);
    common::outcome(&mut command).code(0);
    assert!(!out.join("disk").exists());
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(out.join("su")).unwrap().permissions().mode() & 0o7777, 0o755);
}

/// The name of an archive selects its compression. Unsupported compressions are refused, and so is -o, with a
/// hint.
#[test]
fn an_archive_is_compressed_as_its_name_says() {
    let scratch = scratch();
    let dir = scratch.path();
    let image = dir.join("a.img");
    extant_testkit::run("mke2fs", args!["-q", "-F", "-t", "ext4", &image, "8M"]);
    let plain = dir.join("a.tar");
    common::run(args!["export", &image, "--tar", &plain]).code(0);
    for (name, program) in [("a.tar.gz", "gzip"), ("a.tgz", "gzip"), ("a.tar.zst", "zstd"), ("a.txz", "xz")] {
        let packed = dir.join(name);
        common::run(args!["export", &image, "--tar", &packed]).code(0);
        let unpacked = extant_testkit::run(program, args!["-dc", &packed]).stdout;
        assert_eq!(unpacked, std::fs::read(&plain).unwrap(), "{name}");
    }
    let refused = common::run(args!["export", &image, "--tar", dir.join("a.tar.bz2")]);
    assert!(refused.code(common::USAGE).contains("| bzip2 >"), "{}", refused.stderr);
    let refused = common::run(args!["export", &image, "-o", "x.tar"]);
    assert!(refused.code(common::USAGE).contains("--tar FILE writes an archive"), "{}", refused.stderr);
}

/// An image with inodes of 128 bytes stores whole seconds until 2038. A second `cp -u` copies nothing, in
/// both directions.
#[test]
fn an_update_of_times_that_are_not_stored_copies_once() {
    let scratch = scratch();
    let (tree, image) = (scratch.path().join("tree"), scratch.path().join("a.img"));
    std::fs::create_dir(&tree).unwrap();
    run(args!["mkfs", "-q", "-I", "128", "-s", "8M", &image]).code(0);
    for (name, time) in [("nanos", "@1700000000.987654321"), ("late", "@4102444800.5"), ("old", "@-5.5")] {
        std::fs::write(tree.join(name), name).unwrap();
        outcome(std::process::Command::new("touch").args(["-d", time]).arg(tree.join(name))).code(0);
    }
    let copied = |from: OsString, to: OsString| {
        let copy = run(args!["cp", "-r", "-p", "-u", "-v", "-T", from, to]);
        copy.code(0);
        copy.stdout.lines().count()
    };
    let copy_in = || copied(tree.clone().into(), at(&image, "/"));
    assert_eq!(copy_in(), 3);
    assert_eq!(copy_in(), 0);
    // The next second is later, in a file that has all digits too.
    outcome(std::process::Command::new("touch").args(["-d", "@1700000001"]).arg(tree.join("nanos"))).code(0);
    assert_eq!(copy_in(), 1);
    assert_eq!(copy_in(), 0);
    let out = scratch.path().join("out");
    let copy_out = || copied(at(&image, "/"), out.clone().into());
    let first = copy_out();
    assert!(first >= 3, "{first}");
    assert_eq!(copy_out(), 0);
    if extant_testkit::is_root() {
        // The host's file system stores less than the image.
        let (small, large) = (scratch.path().join("small.img"), scratch.path().join("large.img"));
        run(args!["mkfs", "-q", "-I", "128", "-s", "8M", &small]).code(0);
        build(&large, args!["--from", &tree]);
        let mount = extant_testkit::LoopMount::new(&small, "rw").unwrap();
        let copy_out = || copied(at(&large, "/"), mount.path().join("d").into());
        let first = copy_out();
        assert!(first >= 3, "{first}");
        assert_eq!(copy_out(), 0);
    }
}

#[test]
fn existing_files_stay_as_in_cp() {
    let scratch = scratch();
    let (tree, image, out) =
        (scratch.path().join("tree"), scratch.path().join("a.img"), scratch.path().join("out"));
    std::fs::create_dir_all(tree.join("d")).unwrap();
    for name in ["d/a", "d/b"] {
        std::fs::write(tree.join(name), "image").unwrap();
        outcome(std::process::Command::new("touch").args(["-d", "@1000"]).arg(tree.join(name))).code(0);
    }
    std::fs::hard_link(tree.join("d/b"), tree.join("d/c")).unwrap();
    build(&image, args!["--from", &tree, "--size", "+4M"]);
    let fill = || {
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir_all(out.join("d")).unwrap();
        for (name, time) in [("d/a", "@2000"), ("d/b", "@500")] {
            std::fs::write(out.join(name), "host").unwrap();
            outcome(std::process::Command::new("touch").args(["-d", time]).arg(out.join(name))).code(0);
        }
    };
    let content = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    // Each name of a file that exists stays; a further name that does not exist is copied.
    fill();
    run(args!["cp", "-r", "-n", at(&image, "/d"), &out]).code(0);
    assert_eq!(["d/a", "d/b", "d/c"].map(content), ["host", "host", "image"]);
    fill();
    run(args!["cp", "-r", "--update", at(&image, "/d"), &out]).code(0);
    assert_eq!(["d/a", "d/b", "d/c"].map(content), ["host", "image", "image"]);
    // -t names the directory first, and -T the new name of a directory that exists.
    fill();
    run(args!["cp", "-t", &out, at(&image, "/d/a"), at(&image, "/d/c")]).code(0);
    assert_eq!(["a", "c"].map(content), ["image", "image"]);
    run(args!["cp", "-r", "-T", at(&image, "/d"), out.join("d")]).code(0);
    assert_eq!(["d/a", "d/c"].map(content), ["image", "image"]);
    assert!(!out.join("d/d").exists());
    assert_has(run(args!["cp", "-T", at(&image, "/d/a"), out.join("d")]).code(TARGET), "d/a: ");
    // The same into the image.
    let inside = |name: &str| run(args!["cat", at(&image, name)]).stdout;
    fill();
    run(args!["cp", "-r", "-u", out.join("d"), at(&image, "/")]).code(0);
    assert_eq!(["/d/a", "/d/b"].map(inside), ["host", "image"]);
    run(args!["cp", "-r", "-n", out.join("d"), at(&image, "/")]).code(0);
    assert_eq!(["/d/a", "/d/b"].map(inside), ["host", "image"]);
    run(args!["cp", "-r", "-T", out.join("d"), at(&image, "/d")]).code(0);
    assert_eq!(["/d/a", "/d/b"].map(inside), ["host", "host"]);
    run(args!["mkdir", at(&image, "/e")]).code(0);
    run(args!["cp", "-t", at(&image, "/e"), out.join("d/a"), out.join("d/b")]).code(0);
    assert_eq!(["/e/a", "/e/b"].map(inside), ["host", "host"]);
    assert_has(run(args!["cp", "-T", out.join("d/a"), at(&image, "/e")]).code(NOT_FOUND), "directory");
    run(args!["check", &image]).code(0);
}
