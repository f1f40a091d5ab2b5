//! `extant ls`, `tree`, `stat`, `cat`, `df`: their output equals that of the kernel and debugfs, and their
//! exit code reports problems.

use crate::common;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::image::Image;
use crate::common::{USAGE, assert_has, build, extant, run};
use extant_testkit::{LoopMount, Manifest, debugfs, not_root, scratch, trees};
use serde_json::Value;

const DAMAGED: i32 = 4;
const UNREADABLE: i32 = 8;
const NOT_FOUND: i32 = 9;

/// A small tree and an image of it.
struct Small {
    _scratch: tempfile::TempDir,
    dir: PathBuf,
    image: PathBuf,
}

fn small() -> Small {
    let scratch = scratch();
    let dir = scratch.path().to_owned();
    let tree = dir.join("tree");
    for name in ["etc/ssh", "usr/lib/x", "usr/share", "sp ace"] {
        std::fs::create_dir_all(tree.join(name)).unwrap();
    }
    for (name, content) in [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
        ("etc/.hidden", "h"),
        ("usr/lib/a.so", "aaa"),
        ("usr/lib/x/b.so", "bb"),
        ("usr/lib/x/b.so.1", "b"),
        ("sp ace/new\nline", "n"),
        ("[literal]", "brackets"),
    ] {
        std::fs::write(tree.join(name), content).unwrap();
    }
    std::os::unix::fs::symlink("usr/lib", tree.join("lib")).unwrap();
    std::os::unix::fs::symlink("../etc/passwd", tree.join("usr/up")).unwrap();
    let image = dir.join("a.img");
    let mut command = extant();
    command.env("SOURCE_DATE_EPOCH", "1700000000");
    command.args(["build", "--clamp-mtime", "--no-sync", "--owner", "0:0", "-o"]).arg(&image);
    common::outcome(command.arg("--from").arg(&tree)).code(0);
    Small { _scratch: scratch, dir, image }
}

impl Small {
    fn arg(&self, path: &str) -> OsString {
        let mut arg = self.image.clone().into_os_string();
        arg.push(":");
        arg.push(path);
        arg
    }

    #[track_caller]
    fn prints(&self, options: &[&str], path: &str) -> String {
        let mut args: Vec<OsString> = options.iter().map(OsString::from).collect();
        args.push(self.arg(path));
        let outcome = run(args);
        outcome.code(0);
        assert_eq!(outcome.stderr, "");
        outcome.stdout
    }

    #[track_caller]
    fn json(&self, options: &[&str], path: &str) -> Value {
        let text = self.prints(options, path);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
    }
}

#[test]
fn a_directory_is_listed_as_ls_does() {
    let small = small();
    assert_eq!(small.prints(&["ls"], "/"), "[literal]\netc\nlib\nlost+found\nsp\\ ace\nusr\n");
    assert_eq!(small.prints(&["ls", "-a"], "/etc"), ".hidden\ngroup\npasswd\nssh\n");
    assert_eq!(small.prints(&["ls", "-r"], "etc/"), "ssh\npasswd\ngroup\n");
    assert_eq!(small.prints(&["ls", "-S"], "/usr/lib/x"), "b.so\nb.so.1\n");
    assert_eq!(small.prints(&["ls", "-Sr"], "/usr/lib/x"), "b.so.1\nb.so\n");
    // A link on the command line stands for its directory, except with options that show the link itself.
    assert_eq!(small.prints(&["ls"], "/lib"), "a.so\nx\n");
    assert_has(&small.prints(&["ls", "-l"], "/lib"), " /lib -> usr/lib\n");
    assert_eq!(small.prints(&["ls", "-d"], "/etc"), "/etc\n");
    assert_eq!(small.prints(&["ls"], "/sp ace"), "new\\nline\n");
    assert_eq!(small.prints(&["ls", "-z"], "/sp ace"), "/sp ace/new\nline\0");
    let long = small.prints(&["ls", "-l"], "/usr/lib/a.so");
    assert_eq!(long, "-rw-r--r-- 1 0 0 3 2023-11-14T22:13:20Z /usr/lib/a.so\n");
    let all = small.prints(&["ls", "-R"], "/usr");
    let image = small.image.display();
    assert_eq!(
        all,
        format!(
            "{image}:/usr:\nlib\nshare\nup\n\n{image}:/usr/lib:\na.so\nx\n\n{image}:/usr/lib/x:\nb.so\nb.so.1\n\n{image}:/usr/share:\n"
        )
    );
}

#[test]
fn a_listing_has_the_orders_and_times_of_ls() {
    let small = small();
    let touch = |path: &str, options: &[&str]| {
        let mut args: Vec<OsString> = vec!["touch".into()];
        args.extend(options.iter().map(OsString::from));
        args.push(small.arg(path));
        run(args).code(0);
    };
    touch("/usr/lib/x/b.so", &["-m", "-d", "@1000"]);
    touch("/usr/lib/x/b.so.1", &["-m", "-d", "@2000"]);
    touch("/usr/lib/x/b.so", &["-a", "-d", "@4000"]);
    touch("/usr/lib/x/b.so.1", &["-a", "-d", "@3000"]);
    let (small_first, large_first) = ("b.so.1\nb.so\n", "b.so\nb.so.1\n");
    for (options, expected) in [
        (&["-t"][..], small_first),
        (&["--sort=time", "-r"], large_first),
        (&["--sort", "size"], large_first),
        (&["--sort=name"], large_first),
        (&["--time=atime"], large_first),
        (&["--time=mtime", "--sort=time"], small_first),
        (&["-S", "--time=access"], large_first),
        (&["-u"], large_first),
        (&["-ut"], large_first),
        (&["-uS"], large_first),
    ] {
        let args = [&["ls"], options].concat();
        assert_eq!(small.prints(&args, "/usr/lib/x"), expected, "{options:?}");
    }
    let long = small.prints(&["ls", "-l", "--time=use"], "/usr/lib/x/b.so");
    assert_eq!(long, "-rw-r--r-- 1 0 0 2 1970-01-01T01:06:40Z /usr/lib/x/b.so\n");
    assert_eq!(small.prints(&["ls", "-lu"], "/usr/lib/x/b.so"), long);
    let by_change = small.prints(&["ls", "-lc"], "/usr/lib/x/b.so");
    assert_eq!(by_change, small.prints(&["ls", "-l", "--time=ctime"], "/usr/lib/x/b.so"));
    assert_ne!(by_change, small.prints(&["ls", "-l"], "/usr/lib/x/b.so"));
    assert_eq!(small.prints(&["ls", "-s"], "/usr/lib/x"), "    4 b.so\n    4 b.so.1\n");
    assert_eq!(small.prints(&["ls", "--size", "-h"], "/usr/lib/a.so"), " 4.0K /usr/lib/a.so\n");
    let long = small.prints(&["ls", "-ls"], "/usr/lib/a.so");
    assert_eq!(long, "4 -rw-r--r-- 1 0 0 3 2023-11-14T22:13:20Z /usr/lib/a.so\n");
}

#[test]
fn a_format_has_the_directives_of_stat() {
    let small = small();
    let print = |format: &str, path: &str| small.prints(&["stat", "-c", format], path);
    assert_eq!(
        print("%n %a %A %s %u:%g %F", "/etc/group"),
        "/etc/group 644 -rw-r--r-- 10 0:0 regular file\n"
    );
    assert_eq!(print("%N", "/usr/up"), "/usr/up -> ../etc/passwd\n");
    assert_eq!(
        print("%Y %.2Y %y", "/etc/group"),
        "1700000000 1700000000.00 2023-11-14 22:13:20.000000000 +0000\n"
    );
    // The bytes of names, since this is no terminal.
    assert_eq!(small.prints(&["stat", "--printf", "%n\\0"], "/sp ace/*"), "/sp ace/new\nline\0");
    assert_eq!(small.prints(&["stat", "--format=%F"], "/"), "directory\n");
    // The same text as that of stat(1), in the kernel's mount.
    if extant_testkit::is_root() {
        let mount = LoopMount::read_only(&small.image).unwrap();
        let format =
            "%a %A %b %B %f %F %g %h %i %o %s %t %T %u %w %W %x %X %y %Y %z %Z %.3X [%6s] [%-6a] [%05h]";
        for path in ["etc/passwd", "usr/up", "usr/lib", "sp ace"] {
            let mut command = std::process::Command::new("stat");
            command.env("TZ", "UTC").env("LC_ALL", "C").args(["-c", format]).arg(mount.path().join(path));
            let theirs = String::from_utf8(command.output().unwrap().stdout).unwrap();
            assert_eq!(print(format, &format!("/{path}")), theirs, "{path}");
        }
        // Of the file system, and the lines of --terse: only the device number is another, and the path.
        let there = |options: &[&str]| {
            let mut command = std::process::Command::new("stat");
            command.args(options).arg(mount.path().join("etc/passwd"));
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let format = "%a %b %c %d %f %i %l %s %S %t %T";
        let ours = small.prints(&["stat", "-f", "-c", format], "/etc/passwd");
        assert_eq!(ours, there(&["-f", "-c", format]));
        for (options, device) in [(&["-t"][..], Some(7)), (&["-f", "-t"], None)] {
            let numbers = |line: String| {
                let mut words: Vec<String> = line.split_whitespace().skip(1).map(str::to_owned).collect();
                if let Some(at) = device {
                    words[at - 2] = String::new();
                }
                words
            };
            let ours = small.prints(&[&["stat"], options].concat(), "/etc/passwd");
            assert_eq!(numbers(ours), numbers(there(options)), "{options:?}");
        }
    }
    let text = small.prints(&["stat", "-f"], "/");
    assert!(text.contains("Type: ext2/ext3") && text.contains("available\nInodes: "), "{text}");
    let wrong = run(args!["stat", "-c", "%l", small.arg("/")]);
    assert!(wrong.code(2).contains("%l is a directive of file systems; add -f"));
}

/// Widths, flags and precisions of numbers and times, on a file that has the same size, mode and times. With
/// a precision, a width has room for the time: stat(1) 9.1 adds a space to a time that is wider.
#[test]
fn the_flags_of_a_format_are_those_of_stat() {
    let image = Image::new(&[]);
    let host = image.path.with_extension("host");
    let mut there = image.path.clone().into_os_string();
    there.push(":/host");
    for (time, bytes) in [("@1795909021.988776655", 1221), ("@-2.123456789", 0), ("@0.5", 7)] {
        std::fs::write(&host, vec![b'x'; bytes]).unwrap();
        let touch = || extant_testkit::run("touch", ["-d".as_ref(), time.as_ref(), host.as_os_str()]);
        touch();
        run(args!["cp", "-p", &host, &there]).code(0);
        // The copy was an access.
        touch();
        let mut format = String::new();
        for letter in ["s", "Y", "X", "a", "f", "h", "F"] {
            for flags in ["", "0", "-", "-0", "+", "+0", " ", " 0", "+ -", "'", "'0", "#", "#0"] {
                for size in ["", "1", "5", "14", "20", "30", "20.3", "20.0", ".1", ".12", "30.9", "30.12"] {
                    format += &format!("{flags}{size}{letter}=[%{flags}{size}{letter}]\n");
                }
            }
            format += &format!("[%.{letter}] [%20.{letter}] [%020.{letter}] [%-20.{letter}]\n");
        }
        let mut command = std::process::Command::new("stat");
        let output = command.env("LC_ALL", "C").args(["-c", &format]).arg(&host).output().unwrap();
        let theirs = String::from_utf8(output.stdout).unwrap();
        let ours = run(args!["stat", "-c", &format, &there]).stdout;
        for (ours, theirs) in ours.lines().zip(theirs.lines()) {
            assert_eq!(ours, theirs, "{time}");
        }
        assert_eq!(ours.lines().count(), theirs.lines().count());
    }
}

#[test]
fn df_has_the_types_of_blkid() {
    let dir = scratch();
    for kind in ["ext2", "ext3", "ext4"] {
        let image = dir.path().join(format!("{kind}.img"));
        run(args!["mkfs", "-q", "--no-sync", "-t", kind, "-s", "8M", &image]).code(0);
        let table = run(args!["df", "-T", &image]);
        table.code(0);
        assert_has(&table.stdout, "Type");
        assert_has(&table.stdout, &format!("{kind}.img {kind} "));
        let json: Value = serde_json::from_str(&run(args!["df", "--json", &image]).stdout).unwrap();
        assert_eq!(json[0]["type"], kind);
        let mut blkid = std::process::Command::new("blkid");
        if let Ok(said) = blkid.args(["-p", "-o", "value", "-s", "TYPE"]).arg(&image).output() {
            assert_eq!(String::from_utf8(said.stdout).unwrap().trim(), kind);
        }
    }
}

#[test]
fn patterns_find_names() {
    let small = small();
    assert_eq!(small.prints(&["ls", "-R"], "/usr/**/*.so"), "/usr/lib/a.so\n/usr/lib/x/b.so\n");
    assert_eq!(small.prints(&["ls", "-d"], "/{etc/pass*,usr/l?b}"), "/etc/passwd\n/usr/lib\n");
    // The literal prefix follows links, as in a shell.
    assert_eq!(small.prints(&["ls"], "/lib/*.so"), "/lib/a.so\n");
    // A name that exists literally is not treated as a pattern.
    assert_eq!(small.prints(&["cat"], "/[literal]"), "brackets");
    assert_eq!(small.prints(&["ls"], "/\\[lit*"), "/[literal]\n");
    assert_eq!(small.prints(&["cat"], "/etc/{group,passwd}").lines().count(), 2);
    let outcome = run([OsString::from("ls"), small.arg("/no*")]);
    assert_has(outcome.code(NOT_FOUND), "nothing matches");
    assert_has(run([OsString::from("ls"), small.arg("/a[")]).code(USAGE), "has no ]");
}

#[test]
fn a_tree_is_drawn() {
    let small = small();
    let tree = small.prints(&["tree"], "/usr");
    let image = small.image.display();
    let drawn = format!(
        "{image}:/usr\n├── lib\n│   ├── a.so\n│   └── x\n│       ├── b.so\n│       └── b.so.1\n├── share\n└── up -> ../etc/passwd\n"
    );
    assert_eq!(tree, format!("{drawn}\n3 directories, 4 files\n"));
    assert_has(
        &small.prints(&["tree", "-d", "-L", "1"], "/"),
        "\n├── etc\n├── lost+found\n├── sp\\ ace\n└── usr\n",
    );
    let json = small.json(&["tree", "--json"], "/");
    let names = |value: &Value| -> Vec<String> {
        let list = value["contents"].as_array().unwrap();
        list.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&json[0]), ["[literal]", "etc", "lib", "lost+found", "sp ace", "usr"]);
    let usr = &json[0]["contents"][5];
    assert_eq!(names(&usr["contents"][0]), ["a.so", "x"]);
    assert_eq!(usr["contents"][2]["target"], "../etc/passwd");
    assert_eq!(small.json(&["tree", "--json", "-L", "0"], "/usr")[0]["contents"], serde_json::json!([]));
    assert_eq!(
        small.json(&["tree", "--json", "-L", "1"], "/")[0]["contents"][1]["contents"],
        serde_json::json!([])
    );
}

#[test]
fn stat_says_what_debugfs_says() {
    let small = small();
    let stat = small.json(&["stat", "--json"], "/etc/passwd");
    let said = debugfs(&small.image, "stat /etc/passwd");
    let stat = &stat[0];
    assert_has(&said, &format!("Inode: {} ", stat["inode"]));
    assert_has(&said, &format!("Generation: {} ", stat["generation"]));
    assert_has(&said, &format!("Links: {} ", stat["links"]));
    assert_has(&said, &format!("Blockcount: {}\n", stat["blocks_512"]));
    assert_eq!((stat["type"].as_str(), stat["size"].as_u64()), (Some("regular"), Some(26)));
    assert_eq!((stat["extents"].as_u64(), stat["mode"].as_str()), (Some(1), Some("0644")));
    assert_eq!(stat["mtime"]["seconds"], 1_700_000_000);
    let text = small.prints(&["stat"], "/usr/up");
    assert_has(&text, "  File: /usr/up -> ../etc/passwd\n");
    assert_has(&text, "symbolic link\n");
    assert_has(&small.prints(&["stat", "-L"], "/usr/up"), "regular file\n");
    assert_has(&small.prints(&["stat"], "/etc/ssh"), "Modify: 2023-11-14T22:13:20.000000000Z\n");
}

#[test]
fn every_name_and_inode_equals_the_kernels() {
    if not_root() {
        return;
    }
    let scratch = scratch();
    let (tree, image) = (scratch.path().join("tree"), scratch.path().join("a.img"));
    std::fs::create_dir(&tree).unwrap();
    trees::adversarial(&tree);
    build(&image, args!["--from", &tree, "--times", "all"]);
    let mount = LoopMount::read_only(&image).unwrap();
    let kernel = Manifest::of(mount.path());
    // All names, unescaped.
    let output = extant().args(["ls", "-Raz"]).arg(&image).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let ours: BTreeSet<&[u8]> =
        output.stdout.split(|byte| *byte == 0).filter_map(|path| path.strip_prefix(b"/")).collect();
    let theirs: BTreeSet<&[u8]> =
        kernel.entries.keys().map(Vec::as_slice).filter(|path| !path.is_empty()).collect();
    assert!(ours == theirs, "{:?}", ours.symmetric_difference(&theirs).next());
    // All fields of stat.
    let listed = run(args!["ls", "-Ra", "--json", &image]).report();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), theirs.len());
    for entry in listed {
        let path = bytes(&entry["path"]);
        let theirs = &kernel.entries[&path[1..]];
        let time =
            |key: &str| (entry[key]["seconds"].as_i64().unwrap(), entry[key]["nanos"].as_u64().unwrap());
        let kernels = |time: extant_testkit::Time| (time.seconds, u64::from(time.nanoseconds));
        let shown = String::from_utf8_lossy(&path);
        assert_eq!(entry["inode"].as_u64(), Some(theirs.inode.1), "{shown}");
        assert_eq!(entry["size"].as_u64(), Some(theirs.size), "{shown}");
        assert_eq!(entry["blocks_512"].as_u64(), Some(theirs.blocks), "{shown}");
        assert_eq!(entry["mode"].as_str(), Some(format!("{:04o}", theirs.mode).as_str()), "{shown}");
        assert_eq!(entry["uid"].as_u64(), Some(theirs.uid.into()), "{shown}");
        assert_eq!(entry["gid"].as_u64(), Some(theirs.gid.into()), "{shown}");
        assert_eq!(entry["links"].as_u64(), Some(theirs.nlink.into()), "{shown}");
        assert_eq!(time("mtime"), kernels(theirs.mtime), "{shown}");
        assert_eq!(time("ctime"), kernels(theirs.ctime), "{shown}");
        assert_eq!(theirs.target, entry.get("target").map(bytes), "{shown}");
    }
}

/// Decodes bytes from their JSON form.
fn bytes(value: &Value) -> Vec<u8> {
    match value.as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => {
            let hex = value["bytes_hex"].as_str().unwrap();
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        }
    }
}

#[test]
fn df_says_what_the_kernel_says() {
    if not_root() {
        return;
    }
    let scratch = scratch();
    let image = scratch.path().join("a.img");
    run(args!["mkfs", &image, "--size", "64M"]).code(0);
    let df = run(args!["df", "--json", &image]).report();
    let mount = LoopMount::read_only(&image).unwrap();
    let kernel = rustix::fs::statvfs(mount.path()).unwrap();
    assert_eq!(df[0]["size_bytes"].as_u64(), Some(kernel.f_blocks * kernel.f_frsize));
    assert_eq!(df[0]["free_bytes"].as_u64(), Some(kernel.f_bfree * kernel.f_frsize));
    assert_eq!(df[0]["available_bytes"].as_u64(), Some(kernel.f_bavail * kernel.f_frsize));
    assert_eq!(df[0]["inodes"].as_u64(), Some(kernel.f_files));
    assert_eq!(df[0]["inodes_free"].as_u64(), Some(kernel.f_ffree));
    let text = run(args!["df", "-h", &image]);
    text.code(0);
    assert_has(&text.stdout, "Size Used Avail Use%\n");
    let text = run(args!["df", "-i", &image]);
    assert_has(&text.stdout, &format!(" {} ", kernel.f_files));
}

#[test]
fn what_is_wrong_is_in_the_exit_code() {
    let small = small();
    for command in ["ls", "cat", "stat", "tree"] {
        let outcome = run([OsString::from(command), small.arg("/nothing")]);
        assert_has(outcome.code(NOT_FOUND), "/nothing: no such file or directory");
    }
    assert_has(run([OsString::from("cat"), small.arg("/etc")]).code(NOT_FOUND), "is a directory");
    assert_has(run([OsString::from("ls"), small.arg("/etc/passwd/x")]).code(NOT_FOUND), "not a directory");
    assert_has(run(["ls", "no-such-image"]).code(UNREADABLE), "no such file");
    let noise = small.dir.join("noise");
    std::fs::write(&noise, vec![7; 100_000]).unwrap();
    assert_has(run(args!["ls", &noise]).code(UNREADABLE), "noise");
    run(args!["ls"]).code(USAGE);
    // A missing file does not hide the others.
    let outcome = run([OsString::from("cat"), small.arg("/nothing"), small.arg("/etc/group")]);
    outcome.code(NOT_FOUND);
    assert_eq!(outcome.stdout, "root:x:0:\n");
}

#[test]
fn damage_is_reported_and_the_rest_is_shown() {
    let small = small();
    extant_testkit::run("debugfs", args!["-w", "-R", "clri /etc/group", &small.image]);
    let outcome = run([OsString::from("ls"), OsString::from("-l"), small.arg("/etc")]);
    assert_has(outcome.code(DAMAGED), "group");
    assert_has(&outcome.stdout, "passwd\n");
    let outcome = run([OsString::from("ls"), OsString::from("-R"), OsString::from("--json"), small.arg("/")]);
    outcome.code(DAMAGED);
    serde_json::from_str::<Value>(&outcome.stdout).unwrap();
    let outcome = run([OsString::from("tree"), OsString::from("--json"), small.arg("/")]);
    outcome.code(DAMAGED);
    serde_json::from_str::<Value>(&outcome.stdout).unwrap();
}

/// An image with an entry for its root in a directory below it is a cycle; walks must end.
#[test]
fn a_directory_that_contains_itself_is_entered_once() {
    let small = small();
    extant_testkit::run("debugfs", args!["-w", "-R", "link / /etc/loop", &small.image]);
    // A file in the JSON of ls has a path and a name.
    for (command, times) in
        [(&["ls", "-R"][..], 1), (&["tree"], 1), (&["ls", "-R", "--json"], 2), (&["tree", "--json"], 1)]
    {
        let mut args: Vec<OsString> = command.iter().map(OsString::from).collect();
        args.push(small.arg("/"));
        let outcome = run(args);
        assert_has(outcome.code(DAMAGED), "/etc/loop");
        assert_eq!(outcome.stdout.matches("b.so.1").count(), times, "{command:?}");
    }
    let outcome = run([OsString::from("ls"), small.arg("/**/b.so")]);
    outcome.code(DAMAGED);
    assert_eq!(outcome.stdout, "/usr/lib/x/b.so\n");
}

#[test]
fn a_pending_journal_is_shown_as_replayed_and_reported_once() {
    let scratch = scratch();
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), vec![b'a'; 4096]).unwrap();
    let image = scratch.path().join("a.img");
    build(&image, args!["--from", &tree, "--size", "64M"]);
    let blocks = debugfs(&image, "blocks /a");
    let after = scratch.path().join("after");
    std::fs::write(&after, vec![b'b'; 4096]).unwrap();
    let script = scratch.path().join("script");
    std::fs::write(&script, format!("jo\njw -b {} {}\njc\n", blocks.trim(), after.display())).unwrap();
    extant_testkit::run("debugfs", args!["-w", "-f", &script, &image]);
    let before = std::fs::read(&image).unwrap();
    let mut path = image.clone().into_os_string();
    path.push(":/a");
    let outcome = run([OsString::from("cat"), path.clone(), path.clone()]);
    outcome.code(0);
    assert_eq!(outcome.stdout, "b".repeat(2 * 4096));
    assert_eq!(
        outcome.stderr.matches("the journal holds 1 transaction that").count(),
        1,
        "{}",
        outcome.stderr
    );
    let outcome = run([OsString::from("cat"), OsString::from("--no-recovery"), path]);
    assert_eq!(outcome.stdout, "a".repeat(4096));
    assert_has(&outcome.stderr, "shown without it");
    assert!(std::fs::read(&image).unwrap() == before, "looking writes nothing");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let small = small();
    for args in [&["ls", "-R"][..], &["tree"], &["export", "--tar", "-"]] {
        let mut child = extant()
            .args(args)
            .arg(&small.image)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr)),
            (Some(0), "".into()),
            "{args:?}"
        );
    }
}

#[test]
fn help_teaches() {
    for command in ["ls", "tree", "stat", "cat", "cp", "export", "df"] {
        let outcome = run([command, "--help"]);
        outcome.code(0);
        assert_has(&outcome.stdout, "Examples:\n");
        assert_has(&outcome.stdout, &format!("extant {command} "));
    }
}
