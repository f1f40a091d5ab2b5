//! `extant diff`: every kind of difference, between images, directories and archives; layers that make the
//! second side of the first; exit codes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use extant_testkit::{command, is_root, scratch, trees};
use serde_json::Value;

use crate::build_oci::Layout;
use crate::common::{EXISTS, SOURCE, Tar, USAGE, assert_has, build, extant, outcome, pack, run};

const DIFFERENT: i32 = 1;
const DAMAGED: i32 = 4;
const UNREADABLE: i32 = 8;
const NOT_FOUND: i32 = 9;

/// Runs a script in a directory.
#[track_caller]
fn shell(dir: &Path, script: &str) {
    let status = command("bash").args(["-euc", script]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Runs `extant diff ARGS...` in a directory, and returns its output.
#[track_caller]
fn diff(dir: &Path, args: &str, code: i32) -> String {
    let outcome = outcome(extant().current_dir(dir).arg("diff").args(args.split_whitespace()));
    outcome.code(code);
    outcome.stdout
}

/// The output in lines, without the blanks that align it.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn json(dir: &Path, args: &str, code: i32) -> Value {
    serde_json::from_str(&diff(dir, &format!("--json {args}"), code)).unwrap()
}

fn changes(dir: &Path, args: &str) -> Vec<Value> {
    json(dir, args, DIFFERENT)["changes"].as_array().unwrap().clone()
}

/// A directory `a` with files whose times are all the same.
fn tree() -> tempfile::TempDir {
    let scratch = scratch();
    shell(
        scratch.path(),
        "mkdir -p a/d/e a/old a/empty
         echo hello > a/file; echo hello > a/d/inner; ln a/file a/d/link; ln -s file a/to
         head -c 3000000 /dev/zero | tr '\\0' x > a/large
         echo 1 > a/old/one; echo 2 > a/old/two; echo e > a/d/e/deep; mkfifo a/pipe
         setfattr -n user.k -v 1 a/d/inner
         find a -exec touch -h -d 2024-05-06T07:08:09Z {} +",
    );
    scratch
}

/// Copies `a` to `b`, and changes the copy. Times that a script does not set stay.
fn changed(dir: &Path, script: &str) {
    shell(
        dir,
        &format!(
            "rm -rf b; cp -a a b; cd b; {script}
             find . -newermt 2024-06-01 -exec touch -h -d 2024-05-06T07:08:09Z {{}} +"
        ),
    );
}

#[test]
fn each_difference_is_named() {
    let scratch = tree();
    let dir = scratch.path();
    for (script, expected) in [
        ("true", ""),
        ("chmod 640 file", "M d/link | mode 0644 -> 0640\nM file | mode 0644 -> 0640"),
        ("chmod 1711 d", "M d | mode 0755 -> 1711"),
        (
            "touch -d 2024-05-06T07:08:10Z d/inner",
            "M d/inner | mtime 2024-05-06T07:08:09Z -> 2024-05-06T07:08:10Z",
        ),
        (
            "touch -d 2024-05-06T07:08:09.5Z d/inner",
            "M d/inner | mtime 2024-05-06T07:08:09.000000000Z -> 2024-05-06T07:08:09.500000000Z",
        ),
        ("echo hello, > d/inner", "M d/inner | size 6 -> 7"),
        ("echo hellO > d/inner", "M d/inner | content from byte 4"),
        (
            "printf y | dd of=large bs=1 seek=2700001 conv=notrunc status=none",
            "M large | content from byte 2700001",
        ),
        ("ln -sf other to", "M to | target file -> other"),
        ("setfattr -n user.k -v 2 d/inner", "M d/inner | xattr user.k"),
        ("setfattr -n user.l -v 2 d", "M d | xattr +user.l"),
        ("setfattr -x user.k d/inner", "M d/inner | xattr -user.k"),
        ("rm d/link", "D d/link | file, 6 bytes\nM file | links 2 -> 1"),
        ("ln file x", "M d/link | links 2 -> 3\nM file | links 2 -> 3\nA x | file, 6 bytes"),
        ("rm d/link; cp -p file d/link", "M d/link | links 2 -> 1\nM file | links 2 -> 1"),
        (
            "rm d/link; cp -p file d/link; rm d/inner; ln d/link d/inner",
            "M d/inner | xattr -user.k, links 1 -> 2\nM d/link | hard links of other names\n\
             M file | links 2 -> 1",
        ),
        ("rm pipe; echo x > pipe", "T pipe | fifo -> file, 2 bytes"),
        (
            "rm -r old; ln -s d old",
            "T old | directory -> symlink\nD old/one | file, 2 bytes\nD old/two | file, 2 bytes",
        ),
        ("rm to; mkdir to; echo n > to/n", "T to | symlink -> directory\nA to/n | file, 2 bytes"),
        (
            "mkdir -p new/sub; echo n > new/sub/n",
            "A new | directory\nA new/sub | directory\nA new/sub/n | file, 2 bytes",
        ),
        ("rm -r d/e", "D d/e | directory\nD d/e/deep | file, 2 bytes"),
    ] {
        changed(dir, script);
        let mut found = lines(&diff(dir, "a b", i32::from(!expected.is_empty())));
        let summary = found.pop().unwrap();
        assert_eq!(found.join("\n"), expected, "{script}");
        match found.len() {
            0 => assert_eq!(summary, "no differences in 14 names"),
            1 => assert_has(&summary, "differs: 1 "),
            many => assert_has(&summary, &format!("{many} of ")),
        }
    }
    if is_root() {
        changed(dir, "chown 3:4 d/inner; mknod null c 1 3");
        assert_eq!(
            lines(&diff(dir, "a b", DIFFERENT)),
            [
                "M d/inner | owner 0:0 -> 3:4",
                "A null | char-device 1:3",
                "2 of 15 names differ: 1 added, 1 modified"
            ]
        );
        shell(dir, "mknod a/null c 1 3; touch -r a/file a/null a");
        changed(dir, "rm null; mknod null c 1 5");
        assert_eq!(lines(&diff(dir, "a b", DIFFERENT))[0], "M null | device 1:3 -> 1:5");
    }
}

/// The same tree as a directory, as images of several layouts, and as archives.
#[test]
fn sides_of_all_kinds_compare() {
    let scratch = tree();
    let dir = scratch.path();
    shell(dir, "tar -cf a.tar --format=pax --xattrs -C a .");
    for (image, options) in [("a.img", &[][..]), ("ext2.img", &["-b", "1024", "-O", "^extent,inline_data"])] {
        let mut args = args!["--from", dir.join("a"), "--headroom", "10"].to_vec();
        args.extend(options.iter().map(OsString::from));
        build(&dir.join(image), args);
    }
    run(args!["export", dir.join("a.img"), "--tar", dir.join("exported.tar.zst")]).code(0);
    std::fs::write(dir.join("packed"), pack("gz", &std::fs::read(dir.join("a.tar")).unwrap())).unwrap();
    shell(dir, "truncate -s 1M disk; cat a.img >> disk");
    // The archive of an image has its lost+found.
    for image in ["a.img", "ext2.img", "disk@1M"] {
        assert_has(&diff(dir, &format!("{image} exported.tar.zst"), 0), "no differences in 15 names");
    }
    let sides = ["a", "a.img", "ext2.img", "disk@1M", "a.tar", "packed", "a.img:/"];
    for a in sides {
        for b in sides {
            assert_has(&diff(dir, &format!("{a} {b}"), 0), "no differences");
        }
    }
    assert_has(&diff(dir, "a.img:/d a/d", 0), "no differences in 5 names");
    let mut piped = extant();
    piped
        .current_dir(dir)
        .args(["diff", "-", "a.img"])
        .stdin(std::fs::File::open(dir.join("a.tar")).unwrap());
    outcome(&mut piped).code(0);

    changed(dir, "echo hellO > d/inner; rm old/one; ln file new");
    let expected = lines(&diff(dir, "a b", DIFFERENT));
    shell(dir, "tar -cf b.tar --format=pax --xattrs -C b .");
    build(&dir.join("b.img"), args!["--from", dir.join("b")]);
    for a in sides {
        for b in ["b", "b.img", "b.tar"] {
            let found = lines(&diff(dir, &format!("{a} {b}"), DIFFERENT));
            assert_eq!(found[..found.len() - 1], expected[..expected.len() - 1], "{a} {b}");
        }
    }
}

/// A copy of an image is compared by its maps and its inode tables; the result is that of directories.
#[test]
fn a_changed_copy_of_an_image_differs_where_it_was_changed() {
    let scratch = scratch();
    let dir = scratch.path();
    shell(
        dir,
        "mkdir a; cd a
         for d in $(seq 40); do mkdir $d; for f in $(seq 40); do echo $d $f > $d/$f; done; done
         head -c 5000000 /dev/urandom > large; truncate -s 1G sparse; echo x >> sparse",
    );
    for features in ["^has_journal", "metadata_csum"] {
        let (a, b) = (dir.join("a.img"), dir.join("b.img"));
        let options = args!["--from", dir.join("a"), "--size", "24M", "-O", features, "--force"];
        build(&a, options);
        std::fs::copy(&a, &b).unwrap();
        assert_has(&diff(dir, "a.img b.img", 0), "no differences in 1644 names");
        assert_has(&diff(dir, "a.img a.img", 0), "no differences in 1644 names");
        let script = "chmod 600 /7/7\nrm /8/8\nmkdir /9/new\nxattr set user.a b /10/10\n";
        let mut edit = extant();
        edit.current_dir(dir).args(["edit", "b.img"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = edit.spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let expected = [
            "M 10/10 | xattr +user.a",
            "M 7/7 | mode 0644 -> 0600",
            "M 8 | mtime",
            "D 8/8 | file",
            "M 9 | mtime",
            "A 9/new | directory",
        ];
        for threads in [1, 2, 7] {
            let found = lines(&diff(dir, &format!("-j {threads} a.img b.img"), DIFFERENT));
            assert_eq!(found.len(), expected.len() + 1);
            for (line, start) in found.iter().zip(expected) {
                assert!(line.starts_with(start), "{line} | {start}");
            }
            assert_eq!(changes(dir, "b.img a.img").len(), expected.len());
        }
        flip(dir, "b.img", b"12 13\n");
        let found = lines(&diff(dir, "a.img b.img", DIFFERENT));
        assert!(found.contains(&"M 12/13 | content from byte 0".to_owned()), "{found:?}");
        run(args!["export", &b, "--dir", dir.join("b")]).code(0);
        let as_directories = lines(&diff(dir, "a.img b", DIFFERENT));
        let has_line = |line: &String| as_directories.contains(line);
        assert!(found.iter().filter(|line| !line.contains(" names ")).all(has_line), "{as_directories:?}");
        shell(dir, "rm -r b");
    }
}

/// A journal that waits for replay is replayed in memory, on both sides; the image stays as it is.
#[test]
fn an_image_is_compared_as_after_its_replay() {
    let scratch = tree();
    let dir = scratch.path();
    let image = dir.join("a.img");
    build(&image, args!["--from", dir.join("a"), "--size", "32M"]);
    std::fs::copy(&image, dir.join("b.img")).unwrap();
    let fs = extant::open_writable(&image).unwrap();
    fs.set_mode("/file", 0o600).unwrap();
    fs.create_dir("/new", 0o755).unwrap();
    fs.sync().unwrap();
    drop(fs); // No close: as after a power cut.
    let before = std::fs::read(&image).unwrap();
    for sides in ["b.img a.img", "a a.img"] {
        let found = outcome(extant().current_dir(dir).arg("diff").args(sides.split(' ')));
        assert_has(found.code(DIFFERENT), "the journal holds 1 transaction");
        assert_has(&found.stdout, "mode 0644 -> 0600");
        assert_has(&found.stdout, "A new");
    }
    assert_has(&diff(dir, "a.img a.img", 0), "no differences in 16 names");
    assert!(diff(dir, "--no-recovery b.img a.img", 0).contains("no differences"));
    assert!(std::fs::read(&image).unwrap() == before);
}

/// Changes the first byte of a text in a file.
fn flip(dir: &Path, file: &str, text: &[u8]) {
    let path = dir.join(file);
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
}

#[test]
fn what_is_ignored_does_not_count() {
    let scratch = tree();
    let dir = scratch.path();
    for (script, what) in [
        ("touch -d 2024-05-07T07:08:09Z file", "times"),
        ("touch -d 2024-05-06T07:08:09.5Z file", "nanoseconds"),
        ("chmod 600 file", "modes"),
        ("setfattr -n user.a -v b file", "xattrs"),
        ("rm d/link; cp -p file d/link", "links"),
    ] {
        changed(dir, script);
        diff(dir, "a b", DIFFERENT);
        diff(dir, &format!("--ignore {what} a b"), 0);
        diff(dir, "--ignore times,nanoseconds,owners,modes,links,xattrs a b", 0);
    }
    if is_root() {
        changed(dir, "chown 1:2 file");
        diff(dir, "--ignore times,modes a b", DIFFERENT);
        diff(dir, "--ignore owners a b", 0);
    }
    assert_eq!(diff(dir, "-q a b", DIFFERENT), "");
}

#[test]
fn holes_count_on_request() {
    let scratch = scratch();
    let dir = scratch.path();
    shell(
        dir,
        "mkdir a; head -c 1000000 /dev/urandom > a/f; truncate -s 3M a/f; echo end >> a/f
         truncate -s 1M a/empty
         cp -a --sparse=never a b; touch -r a b",
    );
    build(&dir.join("a.img"), args!["--from", dir.join("a")]);
    build(&dir.join("b.img"), args!["--from", dir.join("b"), "-b", "1024"]);
    run(args!["export", dir.join("a.img"), "--tar", dir.join("a.tar")]).code(0);
    for (a, b) in [("a", "b"), ("a.img", "b.img"), ("a.tar", "b.img"), ("a", "b.img")] {
        diff(dir, &format!("{a} {b}"), 0);
        let found = lines(&diff(dir, &format!("--holes {a} {b}"), DIFFERENT));
        assert_eq!(found[..2], ["M empty | holes", "M f | holes"], "{a} {b}");
    }
    for (a, b) in [("a", "a.img"), ("a.img", "a.tar"), ("b", "b.img"), ("b.img", "b.img")] {
        diff(dir, &format!("--holes {a} {b}"), 0);
    }
    // Zeros that one side does not store are equal to zeros; other bytes are not.
    shell(dir, "printf x | dd of=b/f bs=1 seek=2000000 conv=notrunc status=none; touch -r a/f b/f");
    assert_eq!(lines(&diff(dir, "a.img b", DIFFERENT))[0], "M f | content from byte 2000000");
}

#[test]
fn names_of_any_bytes_are_shown_on_one_line() {
    let scratch = scratch();
    let dir = scratch.path();
    for name in [&b"new\nline"[..], b"caf\xe9", b"sp ace"] {
        let name = std::ffi::OsStr::from_bytes(name);
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::create_dir_all(dir.join("b")).unwrap();
        std::fs::write(dir.join("b").join(name), "x").unwrap();
    }
    shell(dir, "touch -r a b");
    let found = lines(&diff(dir, "a b", DIFFERENT));
    assert_eq!(
        found[..3],
        ["A caf\\351 | file, 1 byte", "A new\\nline | file, 1 byte", "A sp\\ ace | file, 1 byte"]
    );
    let found = changes(dir, "a b");
    assert_eq!(found[0]["path"]["bytes_hex"], "636166e9");
    assert_eq!(found[1]["path"], "new\nline");
    // And through a layer.
    run(args!["diff", dir.join("a"), dir.join("b"), "--layer", dir.join("l.tar")]).code(DIFFERENT);
    assert_layer_makes(dir, "a", "b", "l.tar");
}

/// Builds A with the layer on top, and B. They are the same image, byte for byte.
#[track_caller]
fn assert_layer_makes(dir: &Path, a: &str, b: &str, layer: &str) {
    let mut layout = Layout::new();
    let descriptor = layout.plain_layer(&std::fs::read(dir.join(layer)).unwrap());
    layout.add(None, &[descriptor]);
    let (made, wanted) = (dir.join("made.img"), dir.join("wanted.img"));
    let from = |side: &str| -> [OsString; 2] {
        let option = if side.ends_with(".tar") { "--tar" } else { "--from" };
        [option.into(), dir.join(side).into()]
    };
    let [option, side] = from(a);
    build(&made, args![option, side, "--oci", layout.dir(), "--size", "96M", "--force"]);
    let [option, side] = from(b);
    build(&wanted, args![option, side, "--size", "96M", "--force"]);
    let printed = diff(dir, "made.img wanted.img --holes", 0);
    assert_has(&printed, "no differences");
    let status = command("cmp").arg(&made).arg(&wanted).status().unwrap();
    assert!(status.success(), "the layer makes another image");
}

/// The members of a layer: names in order.
fn members(dir: &Path, layer: &str) -> Vec<String> {
    let output = command("tar").arg("-tf").arg(dir.join(layer)).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_layer_makes_the_second_side_of_the_first() {
    let scratch = tree();
    let dir = scratch.path();
    for (script, expected) in [
        ("true", &[][..]),
        ("chmod 600 d/inner", &["d/", "d/inner"]),
        ("rm d/inner", &["d/", "d/.wh.inner"]),
        ("rm -r d/e", &["d/", "d/.wh.e"]),
        // No name of the directory stays.
        ("rm old/*", &["old/", "old/.wh..wh..opq"]),
        ("rm -r old/*; echo n > old/three", &["old/", "old/.wh..wh..opq", "old/three"]),
        // The directory and its contents are replaced.
        ("rm -r old; echo f > old", &["old"]),
        ("rm to; mkdir to; echo n > to/n", &["to/", "to/n"]),
        // A link less needs no content; another content takes all names.
        ("rm d/link", &["d/", "d/.wh.link"]),
        ("echo other > file", &["d/", "d/link", "file"]),
        ("rm d/link; cp -p file d/link", &["d/", "d/link", "file"]),
        ("mkdir -p new/sub; ln file new/sub/l", &["d/", "d/link", "file", "new/", "new/sub/", "new/sub/l"]),
        ("chmod 700 .", &["./"]),
    ] {
        changed(dir, script);
        let code = i32::from(!expected.is_empty());
        diff(dir, "a b --layer l.tar -f", code);
        assert_eq!(members(dir, "l.tar"), expected, "{script}");
        assert_layer_makes(dir, "a", "b", "l.tar");
    }
}

/// All names are replaced: the root itself is opaque.
#[test]
fn a_layer_replaces_everything() {
    let scratch = tree();
    let dir = scratch.path();
    shell(dir, "mkdir b; echo only > b/only; touch -r a b");
    diff(dir, "a b --layer l.tar", DIFFERENT);
    assert_eq!(members(dir, "l.tar"), [".wh..wh..opq", "only"]);
    assert_layer_makes(dir, "a", "b", "l.tar");
    diff(dir, "b a --layer l.tar -f", DIFFERENT);
    assert_layer_makes(dir, "b", "a", "l.tar");
}

/// The layer of every kind of side has the same bytes, also compressed, and with any number of threads.
#[test]
fn layers_of_unusual_trees_are_the_same_from_all_sides() {
    let scratch = scratch();
    let dir = scratch.path();
    std::fs::create_dir(dir.join("a")).unwrap();
    trees::adversarial(&dir.join("a"));
    shell(
        dir,
        "find a -type s -delete; cp -a a b; cd b
         i=0
         find . -mindepth 2 -print0 | LC_ALL=C sort -z | while IFS= read -r -d '' f; do
             i=$((i + 1))
             case $((i % 97)) in
                 3) rm -rf \"$f\" ;;
                 5) [ -f \"$f\" ] && [ ! -L \"$f\" ] && [ $(stat -c %s \"$f\") -lt 100000 ] &&
                     echo more >> \"$f\" ;;
                 7) [ -e \"$f\" ] && chmod 711 \"$f\" ;;
                 11) [ -e \"$f\" ] && { rm -rf \"$f\"; mkdir \"$f\"; echo n > \"$f/n\"; } ;;
                 13) [ -e \"$f\" ] && { rm -rf \"$f\"; ln -s target \"$f\"; } ;;
                 17) [ -f \"$f\" ] && ln \"$f\" \"$f+\" ;;
             esac || true
         done",
    );
    build(&dir.join("a.img"), args!["--from", dir.join("a")]);
    build(&dir.join("b.img"), args!["--from", dir.join("b")]);
    run(args!["export", dir.join("b.img"), "--tar", dir.join("b.tar"), "--times", "mtime"]).code(0);
    diff(dir, "a b --layer one.tar -q", DIFFERENT);
    assert_layer_makes(dir, "a", "b", "one.tar");
    let one = std::fs::read(dir.join("one.tar")).unwrap();
    for sides in ["a.img b.img", "a b.img -j1", "a.img b", "a.img b.tar -j5"] {
        diff(dir, &format!("{sides} --layer two.tar -f -q"), DIFFERENT);
        assert!(std::fs::read(dir.join("two.tar")).unwrap() == one, "{sides}");
    }
    diff(dir, "a b --layer two.tar.gz -q", DIFFERENT);
    shell(dir, "gzip -dc two.tar.gz | cmp - one.tar");
    shell(dir, &format!("{} diff a b --layer - | cmp - one.tar", env!("CARGO_BIN_EXE_extant")));
    diff(dir, "b a --layer back.tar -q", DIFFERENT);
    assert_layer_makes(dir, "b", "a", "back.tar");
}

#[test]
fn names_that_mean_a_removal_are_refused() {
    let scratch = tree();
    let dir = scratch.path();
    changed(dir, "echo x > d/.wh.x");
    let refused = outcome(extant().current_dir(dir).args(["diff", "a", "b", "--layer", "l.tar"]));
    assert_has(refused.code(SOURCE), "d/.wh.x: a layer cannot hold this name");
    assert!(!dir.join("l.tar").exists());
}

#[test]
fn exit_codes_and_messages() {
    let scratch = tree();
    let dir = scratch.path();
    build(&dir.join("a.img"), args!["--from", dir.join("a"), "--headroom", "5"]);
    std::fs::write(dir.join("zeros"), vec![0; 1 << 20]).unwrap();
    std::fs::write(dir.join("l.tar"), "").unwrap();
    let mut cut = Tar::in_memory();
    cut.file("x", vec![1; 5000]);
    let cut = cut.bytes();
    std::fs::write(dir.join("cut.tar"), &cut[..2000]).unwrap();
    for (args, code, part) in [
        ("a nothing", UNREADABLE, "nothing: there is no such file"),
        ("a zeros", UNREADABLE, "zeros: "),
        ("a a.img:/nothing", NOT_FOUND, "a.img:/nothing: no such file"),
        ("a a.img:/file", NOT_FOUND, "a.img:/file: not a directory"),
        ("a", USAGE, "<B>"),
        ("a a --ignore colours", USAGE, "colours"),
        ("- -", USAGE, "standard input can be one side only"),
        ("a a --layer - --json", USAGE, "give the layer a file"),
        ("a a --layer x.tar.bz2", USAGE, "bzip2"),
        ("a a --layer l.tar", EXISTS, "l.tar exists already; use --force"),
        ("a a --layer no/such/l.tar", DIFFERENT, "cannot write no/such/l.tar"),
        ("a cut.tar", SOURCE, "cut.tar: "),
    ] {
        let found = outcome(extant().current_dir(dir).arg("diff").args(args.split_whitespace()));
        assert_has(found.code(code), part);
    }
    diff(dir, "a a.img --layer l.tar -f", 0);
    assert!(members(dir, "l.tar").is_empty());
    let report = json(dir, "a a.img", 0);
    assert_eq!(report["equal"], true);
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
}

/// A damaged directory is reported, and the rest is compared. There is no layer then.
#[test]
fn a_damaged_image_is_compared_as_far_as_it_can_be_read() {
    let scratch = tree();
    let dir = scratch.path();
    let (a, b) = (dir.join("a.img"), dir.join("b.img"));
    build(&a, args!["--from", dir.join("a"), "-O", "metadata_csum"]);
    std::fs::copy(&a, &b).unwrap();
    flip(dir, "b.img", b"deep");
    for sides in ["a.img b.img", "b.img a.img", "a b.img"] {
        let found =
            outcome(extant().current_dir(dir).arg("diff").args(sides.split(' ')).args(["--layer", "l.tar"]));
        assert_has(found.code(DAMAGED), "b.img:/d/e");
        assert_has(&found.stderr, "no layer is written");
        assert!(!dir.join("l.tar").exists());
    }
}

/// Files without a key: equal bytes are equal, and other bytes cannot be compared.
#[test]
fn encrypted_files_are_compared_by_their_stored_bytes() {
    let scratch = scratch();
    let dir = scratch.path();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/rules/encrypted-tree.img.zst");
    let bytes = zstd::decode_all(std::fs::File::open(packed).unwrap()).unwrap();
    std::fs::write(dir.join("a.img"), &bytes).unwrap();
    std::fs::write(dir.join("b.img"), &bytes).unwrap();
    assert_has(&diff(dir, "a.img b.img", 0), "no differences");
    let fs = extant::open(dir.join("a.img")).unwrap();
    let is_file = |entry: &extant::walk::Entry| entry.kind() == extant::FileType::Regular;
    let file = fs.walk("/secret").unwrap().into_iter().flatten().find(is_file).unwrap();
    let mut place = 0;
    let mut take = |extent: extant::Extent| {
        place = extent.physical;
        None
    };
    fs.volume().files().extents(&file.inode().unwrap(), 0, 1, &mut take).unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(dir.join("b.img")).unwrap();
    image.write_all_at(&[bytes[place as usize] ^ 1], place).unwrap();
    let found = outcome(extant().current_dir(dir).args(["diff", "a.img", "b.img"]));
    assert_has(found.code(DAMAGED), "the content is encrypted");
    assert_has(&found.stdout, "no differences in 351 names, 1 part not compared");
}
