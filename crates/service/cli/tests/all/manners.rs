//! Behaviour of the command line: answers to wrong commands, and closed outputs.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Outcome, extant, outcome, run};

/// The image could not be read.
const UNREADABLE: i32 = 8;
const USAGE: i32 = 2;
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

/// Wrong command lines, with their messages and exit codes. `EXTANT_BLESS=1` writes the file anew.
const WRONG: &str = include_str!("wrong.txt");

/// The command lines of [`WRONG`], in the order of the file.
fn wrong_lines() -> Vec<&'static str> {
    WRONG.lines().filter_map(|line| line.strip_prefix("$ extant ")).collect()
}

/// The entry of [`WRONG`] for a command line that was run in `dir`, which is `/` in it.
fn entry(dir: &Path, line: &str, outcome: &Outcome) -> String {
    let said = outcome.stderr.replace(dir.to_str().unwrap(), "");
    format!("$ extant {line}\n{said}exit code {}\n", outcome.code)
}

/// More files for wrong commands: an image that is cut off, one that is no image, a disk with one partition.
fn add_oddities(path: &Path) {
    run_in(path, "build -q --no-sync -o part.img --from s --size 4M", 0);
    let image = std::fs::read(path.join("r.img")).unwrap();
    std::fs::write(path.join("cut.img"), &image[..100 << 10]).unwrap();
    std::fs::write(path.join("tiny.img"), &image[..500]).unwrap();
    std::fs::write(path.join("text.img"), "no file system\n".repeat(4096)).unwrap();
    std::fs::write(path.join("old.tar"), "archive").unwrap();
    std::fs::write(path.join("script"), "mkdir /etc/opt\nmkdri /etc/opt/x\n").unwrap();
    std::fs::create_dir_all(path.join("full/dir")).unwrap();
    // An MBR: type 0x83, from sector 2048 on, 8192 sectors.
    let mut disk = vec![0; 1 << 20];
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&8192_u32.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    disk.extend(std::fs::read(path.join("part.img")).unwrap());
    std::fs::write(path.join("disk.img"), disk).unwrap();
}

#[test]
fn wrong_commands_are_answered_in_one_voice() {
    let dir = place();
    add_oddities(dir.path());
    let image = std::fs::read(dir.path().join("r.img")).unwrap();
    let (mut faults, mut found) = (Vec::new(), String::new());
    let is_update = std::env::var_os("EXTANT_BLESS").is_some();
    for block in WRONG.split("\n\n") {
        let Some(line) = block.lines().find_map(|line| line.strip_prefix("$ extant ")) else {
            found.push_str(&format!("{}\n\n", block.trim_end()));
            continue;
        };
        let outcome = outcome(extant().current_dir(dir.path()).args(line.split_whitespace()));
        let entry = entry(dir.path(), line, &outcome);
        if entry.trim_end() != block.trim_end() && !is_update {
            faults.push(format!("{entry}\nis to be\n\n{block}\n"));
        }
        found.push_str(&format!("{entry}\n"));
        faults.extend(why_not_whole(line, &outcome));
        assert_eq!(outcome.stdout, "", "{line}");
    }
    if is_update {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/wrong.txt");
        std::fs::write(path, format!("{}\n", found.trim_end())).unwrap();
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(image == std::fs::read(dir.path().join("r.img")).unwrap(), "a wrong command changed the image");
}

/// What a message lacks of finding, place, remedy, and the lines after a usage error.
fn why_not_whole(line: &str, outcome: &Outcome) -> Option<String> {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_usage = lines.iter().any(|line| line.starts_with("usage: extant "));
    // `check` has another exit code for usage errors. A script does not show the usage of the command line.
    let is_usage_code = matches!(outcome.code, USAGE | 16) && words[0] != "edit";
    let message = lines.first().and_then(|first| first.strip_prefix("extant: ")).unwrap_or_default();
    let files = |word: &str| word.split([':', '#', '@']).next().unwrap_or_default().to_owned();
    let place = words.iter().any(|word| message.contains(&files(word)));
    let has_remedy =
        is_usage || ["; ", ": say ", " (`", "did you mean"].iter().any(|part| message.contains(part));
    let what = match () {
        () if message.is_empty() => "no message",
        () if is_usage && !lines.last()?.starts_with("help:  extant ") => "no help command after the usage",
        () if is_usage != is_usage_code => "the usage is for usage errors",
        () if !place => "no place",
        () if !has_remedy => "no remedy",
        () => return None,
    };
    Some(format!("$ extant {line}\n{}  has {what}", outcome.stderr))
}

#[test]
fn every_command_has_a_wrong_line() {
    let lines = wrong_lines();
    assert!(lines.len() >= 100, "{}", lines.len());
    for name in commands().iter().filter(|name| *name != "help") {
        assert!(lines.iter().any(|line| line.split(' ').next() == Some(name)), "no wrong line of {name}");
    }
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
    // The letters of e2fsck -fn, and long options of ls, df, fallocate, getfattr and tar.
    for line in [
        "check -fn r.img",
        "ls -A --human-readable r.img:/etc",
        "ls --zero r.img:/etc",
        "df --human-readable r.img",
        "fallocate --zero-range r.img:/etc/motd 0 4K",
        "xattr set user.a b r.img:/etc/motd",
        "xattr get --only-values user.a r.img:/etc/motd",
        "build -q --no-sync --xattrs-exclude user.* -o without.img --from s",
    ] {
        run_in(dir.path(), line, 0);
    }
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
    "dump -f -Q r.img -o r.qcow2",
    "restore -n r.qcow2 r.img",
    "restore --json r.qcow2 r.img",
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
    add_oddities(dir.path());
    for block in WRONG.split("\n\n") {
        let Some(line) = block.lines().find_map(|line| line.strip_prefix("$ extant ")) else { continue };
        let mut command = extant();
        let status =
            command.current_dir(dir.path()).args(line.split_whitespace()).stderr(full()).status().unwrap();
        let code = block.lines().find_map(|line| line.strip_prefix("exit code "));
        assert_eq!(status.code().map(|code| code.to_string()).as_deref(), code, "{line}");
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

/// Commands whose output is only a report of what they did.
const REPORTING: &[&str] =
    &["build", "mkfs", "update", "trim", "tune", "resize", "optimize", "dump", "restore", "undo"];

#[test]
fn every_command_is_quiet_verbose_and_colored() {
    // -q: no notes, and no report; -v: what it took. JSON stays JSON. No colors in a pipe, but with
    // `--color always`.
    let (dir, second) = (place(), place());
    for dir in [&dir, &second] {
        std::fs::write(dir.path().join("script"), "mkdir /from-script\n").unwrap();
    }
    let lines = RIGHT.iter().map(|line| line.trim_start_matches('$'));
    for line in lines.filter(|line| !line.contains("help") && !line.starts_with('-')) {
        let with = |dir: &tempfile::TempDir, options: &str| {
            let words = options.split_whitespace().chain(line.split_whitespace());
            outcome(extant().current_dir(dir.path()).args(words))
        };
        let is_json = line.contains("--json");
        let is_report = REPORTING.iter().any(|name| line.starts_with(name)) && !is_json;
        let quiet = with(&dir, "-q");
        assert_eq!(quiet.code(0), "", "{line}");
        assert!(!is_report || quiet.stdout.is_empty(), "{line}: {}", quiet.stdout);
        let verbose = with(&second, "-v --color never");
        let last = verbose.code(0).lines().last().unwrap_or_default();
        let is_cost = last.contains(" s of CPU, ") && last.starts_with("extant: ");
        // -q wins over -v.
        assert_eq!(is_cost, !line.contains(" -q"), "{line}: {last}");
        for outcome in [quiet, verbose] {
            assert!(!outcome.stdout.contains('\u{1b}') && !outcome.stderr.contains('\u{1b}'), "{line}");
            if is_json {
                // One value, or a line each.
                let mut values = serde_json::Deserializer::from_str(&outcome.stdout).into_iter::<Value>();
                assert!(values.all(|value| value.is_ok()), "{line}");
            }
        }
    }
    for name in commands().iter().filter(|name| *name != "help") {
        let help = run(["--color", "always", name, "--help"]).stdout;
        assert!(help.contains('\u{1b}') && help.contains("--color"), "{name}");
        assert!(help.contains("--quiet") && help.contains("--verbose"), "{name}");
        let plain = outcome(extant().env("NO_COLOR", "1").args([name, "--help"]));
        assert!(!plain.stdout.contains('\u{1b}'), "{name}");
    }
    std::fs::write(dir.path().join("text.img"), "no file system\n".repeat(4096)).unwrap();
    let check = |color: &str| {
        let words = format!("check --color {color} text.img");
        outcome(extant().current_dir(dir.path()).args(words.split_whitespace())).stdout
    };
    assert!(check("always").starts_with("SB001 \u{1b}[31mfatal\u{1b}[0m: "), "{}", check("always"));
    assert!(check("auto").starts_with("SB001 fatal: "), "{}", check("auto"));
}

#[test]
fn cp_and_rm_list_their_files() {
    // cp -v and rm -v: a line for each file, on standard output; -q wins.
    let dir = place();
    let listed = |line: &str| {
        let outcome = outcome(extant().current_dir(dir.path()).args(line.split_whitespace()));
        let cost = outcome.code(0);
        assert!(
            cost.is_empty() || (cost.lines().count() == 1 && cost.contains(" s of CPU, ")),
            "{line}: {cost}"
        );
        let mut lines: Vec<_> = outcome.stdout.lines().map(str::to_owned).collect();
        if !line.contains("r.img:/copy") {
            // Several threads copy out of an image.
            lines.sort();
        }
        lines.join("|")
    };
    std::fs::create_dir(dir.path().join("out")).unwrap();
    let copied = "r.img:/etc -> out/etc|r.img:/etc/motd -> out/etc/motd";
    for line in ["cp -rv r.img:/etc out", "-v cp -r r.img:/etc out"] {
        assert_eq!(listed(line), copied, "{line}");
        std::fs::remove_dir_all(dir.path().join("out/etc")).unwrap();
    }
    assert_eq!(listed("cp -v r.img:/etc/motd out/new"), "r.img:/etc/motd -> out/new");
    std::fs::create_dir(dir.path().join("out/etc")).unwrap();
    // A directory that was there is not listed, nor is the root, which has no name.
    assert_eq!(listed("cp -rv r.img:/etc out"), "r.img:/etc/motd -> out/etc/motd");
    assert_eq!(
        listed("cp -rv r.img:/ new"),
        "r.img:/etc -> new/etc|r.img:/etc/motd -> new/etc/motd|r.img:/lost+found -> new/lost+found"
    );
    assert_eq!(
        listed("cp -rv s r.img:/copy"),
        "s -> r.img:/copy|s/etc -> r.img:/copy/etc|s/etc/motd -> r.img:/copy/etc/motd"
    );
    assert_eq!(listed("cp -rvq s r.img:/other"), "");
    assert_eq!(
        listed("rm -rv r.img:/copy"),
        "removed r.img:/copy/etc/motd|removed directory r.img:/copy/etc|removed directory r.img:/copy"
    );
    assert_eq!(listed("rm -v r.img:/other/etc/motd"), "removed r.img:/other/etc/motd");
    assert_eq!(listed("rm -dv r.img:/other/etc"), "removed directory r.img:/other/etc");
    assert_eq!(listed("rm -rq -v r.img:/other"), "");
    // A line of a script has the option, and `edit` has it for all lines.
    for (script, options) in [("cp -v f /f\nrm -v /f\n", ""), ("cp f /f\nrm /f\n", "-v ")] {
        std::fs::write(dir.path().join("script"), script).unwrap();
        let lines = listed(&format!("edit {options}r.img script"));
        assert_eq!(lines, "f -> r.img:/f|removed r.img:/f");
    }
    // A full output has its own exit code, and the files are copied.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = extant();
    command.current_dir(dir.path()).args(["cp", "-v", "f", "r.img:/f"]).stdout(full).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(NO_SPACE), "{said}");
    assert!(said.starts_with("extant: cannot write the output: No space left"), "{said}");
    run_in(dir.path(), "cat r.img:/f", 0);
}

#[test]
fn progress_is_drawn_on_a_terminal_only() {
    // script(1) gives the command a terminal. A bar begins with the sequence that clears its line.
    const CLEAR: &str = "\u{1b}[2K";
    let dir = place();
    let on_terminal = |options: &str| {
        let line = format!("{} {options} build -f -o t.img --from s", env!("CARGO_BIN_EXE_extant"));
        let mut command = extant_testkit::command("script");
        outcome(command.args(["-qec", &line, "/dev/null"]).env("TERM", "screen").current_dir(dir.path()))
    };
    let drawn = on_terminal("");
    assert!(drawn.code(0).is_empty() && drawn.stdout.contains(CLEAR), "{drawn:?}");
    let quiet = on_terminal("-q");
    assert_eq!((quiet.code, quiet.stdout.as_str()), (0, ""));
    let piped = outcome(extant().current_dir(dir.path()).args(["build", "-f", "-o", "t.img", "--from", "s"]));
    assert!(piped.code(0).is_empty() && !piped.stdout.contains(CLEAR), "{piped:?}");
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
