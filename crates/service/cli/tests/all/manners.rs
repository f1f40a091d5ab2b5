//! Behaviour of the command line: answers to wrong commands, and closed outputs.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use crate::common::{extant, outcome, run};

/// The image could not be read.
const UNREADABLE: i32 = 8;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 9;
const NO_SPACE: i32 = 7;

/// A directory with a tree `s`, a file `f` and an image `r.img` of the tree.
fn place() -> tempfile::TempDir {
    let dir = extant_testkit::scratch();
    let path = dir.path();
    std::fs::create_dir_all(path.join("s/etc")).unwrap();
    std::fs::write(path.join("s/etc/motd"), "hello\n").unwrap();
    std::fs::write(path.join("f"), "x\n").unwrap();
    run_in(path, "build -q --no-sync -o r.img --from s --size 4M -O project", 0);
    dir
}

/// Runs a command line in a directory. Returns the error output.
#[track_caller]
fn run_in(dir: &Path, line: &str, code: i32) -> String {
    outcome(extant().current_dir(dir).args(line.split_whitespace())).code(code).to_owned()
}

/// Invalid commands, the exit code, and the message: finding, place, remedy.
const WRONG: &[(&str, i32, &str)] = &[
    // Commands that do not exist: a typo, or commands of other programs.
    ("foo", USAGE, r#"there is no command "foo""#),
    ("chekc r.img", USAGE, r#"there is no command "chekc"; did you mean check?"#),
    (
        "resize2fs r.img 20M",
        USAGE,
        "there is no command \"resize2fs\"; `extant resize IMG SIZE` changes the size of a file system that is \
         not mounted",
    ),
    (
        "fsck -y r.img",
        USAGE,
        "there is no command \"fsck\"; `extant check IMG` finds what is wrong, `extant check --repair IMG` \
         repairs it, and `extant undo` takes that back",
    ),
    (
        "label r.img root",
        USAGE,
        "there is no command \"label\"; label, UUID and features are chosen when a file system is made (`build` and `mkfs` \
         with -L, -U, -O), and shown by `extant inspect IMG super`; tune2fs changes them later",
    ),
    (
        "undelete r.img:/a",
        USAGE,
        "there is no command \"undelete\"; what was removed cannot be brought back here; copy the image before anything \
         writes to it, and try extundelete or photorec on the copy",
    ),
    ("xattr foo", USAGE, r#"xattr: there is no command "foo"; there are: get set remove list help"#),
    ("inspect r.img dirr", USAGE, r#"inspect: there is no command "dirr"; did you mean dir?"#),
    // Arguments in the wrong place.
    (
        "inspect super r.img",
        USAGE,
        "inspect super: one argument too many: r.img; the image comes first: extant inspect r.img super",
    ),
    (
        "build r2.img s",
        USAGE,
        "build: one argument too many: r2.img; -o names the image, and an option each source: extant build -o r2.img --from DIR",
    ),
    ("build -o r2.img s", USAGE, "build: one argument too many: s; a source is named by its kind: --from s"),
    (
        "build -o r2.img a.tar.gz",
        USAGE,
        "build: one argument too many: a.tar.gz; a source is named by its kind: --tar a.tar.gz",
    ),
    ("build --from s", USAGE, "build needs a name for the image: --output IMAGE"),
    ("build -o r2.img", USAGE, "build needs a source: --from DIR, --tar FILE or --oci LAYOUT"),
    ("build -o r2.img --frm s", USAGE, "build: there is no option --frm; did you mean --from?"),
    ("build -o r2.img --from", USAGE, "build: --from <DIR> needs a value"),
    (
        "export r.img -o x.tar",
        USAGE,
        "export: there is no option -o; --tar FILE writes an archive (- is standard output), --dir DIR fills a directory",
    ),
    ("export r.img x.tar", USAGE, "export: one argument too many: x.tar; say --tar x.tar"),
    ("export r.img", USAGE, "export: missing: <--tar <FILE>|--dir <DIR>>; --tar - is standard output"),
    (
        "check -a r.img",
        16,
        "check: there is no option -a; `extant check --repair -p IMG` repairs what loses nothing, -y repairs everything",
    ),
    ("check", 16, "check: missing: <IMAGE>"),
    (
        "cp f r.img",
        USAGE,
        "r.img: holds a file system, and a path in it needs a colon, like r.img:/ for its root; to replace the image itself, \
         remove it first",
    ),
    ("cp f g", USAGE, "none of the paths is in an image: IMG:/PATH is one, and IMG:/ the root of IMG"),
    (
        "cp r.img:/etc/motd",
        USAGE,
        "cp: <SOURCE> <DEST>... wants 2 arguments, and got 1; the last one says where to: a directory or a new name, `.` is \
         this directory",
    ),
    (
        "mv r.img:/etc/motd .",
        USAGE,
        ".: is in no image, and mv stays inside of one; `extant cp` copies into an image and out of one, and `rm` or \
         `extant rm` then removes what was copied",
    ),
    (
        "ln f r.img:/etc/f",
        USAGE,
        "f: is in no image, and hard links stay inside of one; `extant cp` copies into an image and out of one, and `rm` or \
         `extant rm` then removes what was copied",
    ),
    ("mkdir r.img", USAGE, "r.img: a path is missing, like r.img:/etc"),
    (
        "mount r.img",
        USAGE,
        "mount: missing: <DIR>; an image and a directory that is there: extant mount root.img mnt",
    ),
    ("completions", USAGE, "completions: missing: <SHELL>; a shell: bash, elvish, fish, powershell or zsh"),
    (
        "completions tcsh",
        USAGE,
        "completions: <SHELL> cannot be \"tcsh\"; it is one of: bash elvish fish powershell zsh",
    ),
    // Values.
    (
        "mkfs n.img -s 10",
        USAGE,
        "n.img: 0 blocks of 1024 bytes are too few: the metadata of the first group alone needs 2 (a size without a unit is in \
         bytes: 10M is 10 MiB)",
    ),
    ("mkfs n.img", USAGE, "a new image needs a size: --size 64M"),
    ("mkfs n.img 10Q", USAGE, r#"SIZE: unknown unit "q": use K, M, G, T or P"#),
    (
        "mkfs n.img 10M -b 3000",
        USAGE,
        r#"mkfs: --block-size <BYTES>: "3000": it is a power of two from 1024 to 65536"#,
    ),
    ("mkfs n.img 10M --size 10M", USAGE, "mkfs: [SIZE] and --size <SIZE> do not go together"),
    (
        "build -o r2.img --from s -s 10",
        5,
        "the image needs 53248 bytes, and 10 were given (a size without a unit is in bytes: 10M is 10 MiB)",
    ),
    (
        "touch -d yesterday r.img:/etc/motd",
        USAGE,
        r#"touch: --date <TIME>: "yesterday" is no time; @1700000000, 2024-05-06 and 2024-05-06T07:08:09Z are"#,
    ),
    (
        "chmod r.img:/etc/motd",
        USAGE,
        "chmod: <MODE>: \"r.img:/etc/motd\" is no mode: it is like 0644, u=rwx,go=rX or +x; the mode comes before the paths: \
         extant chmod 0644 IMG:/FILE",
    ),
    (
        "chown root r.img:/etc/motd",
        USAGE,
        r#"chown: <OWNER>: "root" is no number; the names of owners are in the image's own /etc/passwd"#,
    ),
    ("project x r.img:/etc", USAGE, r#"project: <ID>: "x" is not a whole number"#),
    (
        "truncate r.img:/etc/motd",
        USAGE,
        "truncate: missing: --size <SIZE>; like --size 4G, or --size 0 to empty a file",
    ),
    (
        "xattr set color red r.img:/etc/motd",
        USAGE,
        "r.img:/etc/motd: color: not possible here; names begin with user., trusted., security. or system.posix_acl_, and \
         user. is for files and directories",
    ),
    // Missing files: on the host, and in an image.
    ("inspect /nope", UNREADABLE, "/nope: there is no such file"),
    ("inspect r.img inode /nope", NOT_FOUND, r#"r.img: "/nope": no nope in directory inode 2"#),
    ("ls /nope", UNREADABLE, "/nope: there is no such file"),
    ("ls r.img:/nope", NOT_FOUND, "r.img:/nope: no such file or directory"),
    ("df /nope", UNREADABLE, "/nope: there is no such file"),
    ("cp nope f", UNREADABLE, "nope: there is no such file"),
    ("mkdir nope.img:/x", UNREADABLE, "nope.img: there is no such file"),
    (
        "mv r.img:/etc/motd r.img:/opt/motd",
        NOT_FOUND,
        "r.img:/etc/motd -> /opt/motd: no such file or directory; the directory above is not there, `extant mkdir -p` makes it",
    ),
    ("fallocate r.img:/etc/motd 0 1G", NO_SPACE, "r.img:/etc/motd: no space left in the file system"),
    ("build -o none/r2.img --from s", 1, "cannot write none/r2.img: No such file or directory"),
    ("mkfs r.img", 6, "r.img exists already: it holds data; use --force to replace it"),
];

#[test]
fn wrong_commands_are_answered_in_one_voice() {
    let dir = place();
    let image = std::fs::read(dir.path().join("r.img")).unwrap();
    let mut faults = Vec::new();
    for (line, code, message) in WRONG {
        let outcome = outcome(extant().current_dir(dir.path()).args(line.split_whitespace()));
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        // A usage error, and no other error, is followed by the usage and the help command.
        let is_usage = matches!(code, 2 | 16);
        let is_whole = match &lines[..] {
            [_, usage, help] => {
                is_usage && usage.starts_with("usage: extant ") && help.starts_with("help:  extant ")
            }
            [_] => !is_usage,
            _ => false,
        };
        let expected = format!("extant: {message}");
        if outcome.code != *code || lines.first() != Some(&expected.as_str()) || !is_whole {
            faults.push(format!(
                "$ extant {line}\n  expected {code}: {expected}\n  got {}: {}",
                outcome.code, outcome.stderr
            ));
        }
        assert_eq!(outcome.stdout, "", "{line}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(image == std::fs::read(dir.path().join("r.img")).unwrap(), "a wrong command changed the image");
}

#[test]
fn the_line_after_a_usage_error_is_that_of_the_command() {
    let dir = place();
    let said = run_in(dir.path(), "xattr get user.x", USAGE);
    let usage = "usage: extant xattr get [OPTIONS] <NAME> <IMG:PATH>...\nhelp:  extant xattr get --help\n";
    assert!(said.ends_with(usage), "{said}");
    // Errors in a script name the line, and have no usage.
    std::fs::write(dir.path().join("script"), "mkdir /a\nchmod\n").unwrap();
    let said = run_in(dir.path(), "edit r.img script", USAGE);
    assert_eq!(
        said,
        "extant: script:2: chmod: missing: <MODE>, <IMG:PATH>...\nextant: nothing of the script was done: r.img is as it was\n"
    );
}

#[test]
fn what_other_tools_take_is_taken() {
    // mkfs IMG SIZE as in mke2fs, chmod -x and touch -d as in coreutils, inspect without a view, a directory
    // for man pages.
    let dir = place();
    let len = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
    for (line, name, bytes) in [
        ("mkfs -q a.img 10M", "a.img", 10 << 20),
        ("mkfs -q b.img 2048", "b.img", 2 << 20),
        ("mkfs -q -b 4096 c.img 512", "c.img", 2 << 20),
        ("mkfs -q d.img 8192s", "d.img", 4 << 20),
    ] {
        run_in(dir.path(), line, 0);
        assert_eq!(len(name), bytes, "{line}");
    }
    let mode = || {
        let stat =
            outcome(extant().current_dir(dir.path()).args(["stat", "--json", "r.img:/etc/motd"])).report();
        (stat[0]["mode"].as_str().unwrap().to_owned(), stat[0]["mtime"]["iso"].as_str().unwrap().to_owned())
    };
    run_in(dir.path(), "chmod 0755 r.img:/etc/motd", 0);
    run_in(dir.path(), "chmod -x r.img:/etc/motd", 0);
    run_in(dir.path(), "touch -d 2024-05-06T07:08:09+02:00 r.img:/etc/motd", 0);
    assert_eq!(mode(), ("0644".to_owned(), "2024-05-06T05:08:09.000000000Z".to_owned()));
    run_in(dir.path(), "chmod -R -x r.img:/etc", 0);
    run_in(dir.path(), "man new/pages", 0);
    assert!(dir.path().join("new/pages/extant-build.1").exists());
    let shown = outcome(extant().current_dir(dir.path()).args(["inspect", "r.img"]));
    assert!(shown.code(0).is_empty() && shown.stdout.starts_with("superblock "), "{}", shown.stdout);
}

/// Command lines that succeed, for each command. A leading `$`: it prints nothing.
const RIGHT: &[&str] = &[
    "build --no-sync -f -o right2.img --from s",
    "build --no-sync -f --json -o right2.img --from s",
    "build --profile help",
    "mkfs --no-sync -F right.img --size 4M",
    "mkfs --no-sync -F right.img --size 4M --json",
    "inspect r.img",
    "inspect r.img dir / --json",
    "ls r.img",
    "ls -l --json r.img:/etc",
    "tree r.img",
    "tree --json r.img",
    "stat r.img:/etc/motd",
    "cat r.img:/etc/motd",
    "$cp f r.img:/etc/f",
    "$mkdir -p r.img:/a/b",
    "$put --from f r.img:/a/put",
    "$ln -sf f r.img:/a/link",
    "$mv r.img:/a/put r.img:/a/moved",
    "$chmod 0600 r.img:/a/moved",
    "$chown 1:1 r.img:/a/moved",
    "$project 7 r.img:/a",
    "$xattr set user.a b r.img:/a/moved",
    "xattr get user.a r.img:/a/moved",
    "xattr list r.img:/a/moved",
    "$truncate -s 1K r.img:/a/moved",
    "$fallocate r.img:/a/moved 0 8K",
    "$touch r.img:/a/touched",
    "$mkfifo r.img:/a/fifo",
    "$mknod r.img:/a/null c 1 3",
    "$rm r.img:/a/touched",
    "$edit r.img script",
    "export r.img --tar -",
    "diff r.img r.img",
    "diff --json r.img r.img",
    "df r.img",
    "df --json r.img",
    "check r.img",
    "check --json r.img",
    "check --rules",
    "rescue r.img",
    "rescue --deleted --json r.img",
    "dump -f -s r.img -o r.dump",
    "check --repair -n r.img",
    "check --repair -y --json r.img",
    "undo --help",
    "trim r.img",
    "optimize -n r.img",
    "tune -L root r.img",
    "resize -n r.img +1M",
    "resize r.img +1M",
    "update -n r.img --from s",
    "update r.img --from s",
    "mount --help",
    "umount --help",
    "status --help",
    "$install-helpers s",
    "doctor --help",
    "lab createmany -q -m test 100",
    "lab createmany --json -m test 100",
    "lab buffered --cases overwrite --sizes 4K --bytes 64K --rounds 1 --json",
    "lab buffered --cases overwrite --sizes 4K --bytes 64K --rounds 1",
    "lab io --size 64K",
    "lab io --rw read --size 64K --json",
    "completions bash",
    "completions zsh",
    "$man pages",
    "help",
    "help build",
    "--version",
];

/// The names of all commands, from the help.
fn commands() -> Vec<String> {
    let help = run(["--help"]).stdout;
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_command_handles_a_closed_output() {
    // `extant ... | head -1`: no panic, no message, and the exit code of the command's work.
    let dir = place();
    std::fs::write(dir.path().join("script"), "mkdir /from-script\n").unwrap();
    for name in commands() {
        let is_tried = RIGHT.iter().any(|line| line.trim_start_matches('$').split(' ').next() == Some(&name));
        assert!(is_tried, "no line of {name} is tried");
    }
    let helps = commands().into_iter().filter(|name| name != "help").map(|name| format!("{name} --help"));
    let lines = RIGHT.iter().map(|line| line.trim_start_matches('$').to_owned()).chain(helps);
    for line in lines {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = extant();
        command.current_dir(dir.path()).args(line.split_whitespace()).stdout(Stdio::from(writer));
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{line}");
    }
}

#[test]
fn an_output_that_is_full_is_reported() {
    // `extant ... > /dev/full`: one line, and the exit code for no space. Standard error may be full, too.
    let dir = place();
    std::fs::write(dir.path().join("script"), "mkdir /from-script\n").unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for line in RIGHT {
        let (line, prints) = line.strip_prefix('$').map_or((*line, true), |line| (line, false));
        let mut command = extant();
        command.current_dir(dir.path()).args(line.split_whitespace()).stdout(full());
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // check uses the exit codes of e2fsck.
        let code = match prints {
            true if line.starts_with("check") => UNREADABLE,
            true => NO_SPACE,
            false => 0,
        };
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert_eq!(said.lines().count(), usize::from(prints), "{line}: {said}");
    }
    for (line, code, _) in WRONG {
        let mut command = extant();
        let status =
            command.current_dir(dir.path()).args(line.split_whitespace()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(*code), "{line}");
    }
}

#[test]
fn a_reader_that_stops_early_gets_what_it_read() {
    let dir = place();
    let mut command = extant();
    command
        .current_dir(dir.path())
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 8];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"_extant(");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    // An input that ends early is a different case: put reads its input to the end.
    let mut command = extant();
    command.current_dir(dir.path()).args(["put", "r.img:/etc/issue"]).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"half").unwrap();
    assert!(child.wait().unwrap().success());
}

/// The names of the subcommands of a command.
fn commands_of(name: &str) -> Vec<String> {
    let help = run([name, "--help"]).stdout;
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn examples_fit_into_the_width_of_help() {
    // Help is wrapped at 100 columns, and a wrapped example is hard to read.
    let mut pages: Vec<Vec<String>> = commands().into_iter().map(|name| vec![name]).collect();
    for name in ["lab", "xattr"] {
        pages.extend(commands_of(name).into_iter().map(|nested| vec![name.to_owned(), nested]));
    }
    for page in pages.iter().filter(|page| page[0] != "help") {
        let help = run(page.iter().map(String::as_str).chain(["--help"])).stdout;
        let Some(examples) = help.split("\nExamples:\n").nth(1) else { continue };
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            assert!(
                line.starts_with("  ") && line.chars().count() <= 100,
                "{page:?}: a wrapped line: {line}"
            );
        }
    }
}
