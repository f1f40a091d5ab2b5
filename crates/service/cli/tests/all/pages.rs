//! Runs the console blocks of README and of all pages below docs/. The blocks of a page run in order in an
//! empty directory, as if they were pasted into bash. Each command exits with 0, or is followed by `echo $?`,
//! and prints what the page shows. A line `...` matches any lines.
//!
//! UUIDs, times in UTC, ranges of hashes and process ids equal all others of their kind, and runs of blanks
//! equal one blank. The directory of the test is `/` in the output. All other numbers are compared, also
//! sizes and counts.
//!
//! HTML comments are invisible to readers. A line that begins with one of these marks changes how blocks run:
//!
//! ```text
//! <!-- setup            commands before the next block, one per line as in a console block, without output
//! $ mkdir src
//! -->
//! <!-- any numbers -->  numbers of two or more digits in the output of the next block equal all others
//! <!-- needs: jq -->    the next block is skipped on a machine without this program; `root` and `namespaces`
//!                       (of ordinary users, with FUSE in them) are no programs
//! <!-- not run: WHY --> the next block does not run; NOT_RUN counts these blocks
//! ```
//!
//! A block with `extant mount` is skipped if there is no FUSE. `EXTANT_PAGE=docs/tour.md` runs one page.
//! `EXTANT_BLESS=1` writes the output into the pages, except where a page shows `...`. `EXTANT_PAUSE=1.1`
//! waits that many seconds before each command, as a slow machine does: it finds output that depends on the
//! clock.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Instant;

use extant_testkit::{command, is_root, scratch};

/// Ends the output of a command; its exit code follows.
const MARK: &str = "\u{1}end ";

/// Pages with blocks that do not run, and their number. It may only become smaller: make a block small enough
/// to run, or give it a setup.
const NOT_RUN: &[(&str, usize)] = &[("docs/c.md", 1), ("docs/lab.md", 2), ("docs/mount-admin.md", 1)];

/// A command, its line on the page, and the output that the page shows.
#[derive(Debug)]
struct Step {
    line: usize,
    command: String,
    shown: Vec<String>,
}

impl Step {
    /// Whether the next line of the page continues the command.
    fn is_open(&self) -> bool {
        let begun = self.command.split_once("<<'").and_then(|(_, rest)| rest.split_once('\''));
        let is_here_document = begun.is_some_and(|(end, _)| self.command.lines().last() != Some(end));
        is_here_document || self.command.ends_with('\\')
    }
}

/// What the marks before a block say.
#[derive(Debug, Default)]
struct Marks {
    has_any_numbers: bool,
    needs: Vec<String>,
    not_run: bool,
}

/// A console block, or the commands of a setup.
#[derive(Debug, Default)]
struct Block {
    marks: Marks,
    is_setup: bool,
    steps: Vec<Step>,
}

/// The blocks and setups of a page, in order.
///
/// # Panics
/// A mark has an unknown word, or is not before a block; a block does not begin with a command.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut marks = Marks::default();
    let mut end = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (end, line) {
            (None, "```console") => {
                end = Some("```");
                blocks.push(Block { marks: std::mem::take(&mut marks), ..Block::default() });
            }
            (None, "<!-- setup") => {
                end = Some("-->");
                blocks.push(Block { is_setup: true, marks: std::mem::take(&mut marks), ..Block::default() });
            }
            (None, line) => match line.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->")) {
                Some("any numbers") => marks.has_any_numbers = true,
                Some(mark) if mark.starts_with("not run: ") => marks.not_run = true,
                Some(mark) => {
                    // Other comments are for other readers.
                    let needs = mark.strip_prefix("needs: ").unwrap_or_default();
                    marks.needs.extend(needs.split_whitespace().map(str::to_owned));
                }
                None => {}
            },
            (Some(last), line) if line == last => end = None,
            (Some(_), line) => {
                let steps = &mut blocks.last_mut().expect("a block was begun").steps;
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (_, Some(step)) if step.is_open() => {
                        step.command += "\n";
                        step.command += line.strip_prefix("> ").unwrap_or(line);
                    }
                    (Some(command), _) => {
                        steps.push(Step { line: number, command: command.to_owned(), shown: Vec::new() });
                    }
                    (None, Some(step)) => step.shown.push(line.to_owned()),
                    (None, None) => panic!("line {number}: a block begins with a command"),
                }
            }
        }
    }
    blocks
}

/// A line without the parts that differ between runs.
fn masked(line: &str, has_any_numbers: bool) -> String {
    let mut masked = String::new();
    let mut before = "";
    for word in line.split_whitespace() {
        let is_uuid = word.len() == 36 && word.split('-').count() == 5;
        let is_time = word.len() >= 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T';
        let is_hashes = word.split("..").count() == 2 && word.split("..").all(is_hash);
        if !masked.is_empty() {
            masked.push(' ');
        }
        match () {
            () if is_uuid => masked.push_str("UUID"),
            () if is_time => masked.push_str("TIME"),
            () if is_hashes => masked.push_str("HASHES"),
            () if before == "process" => masked.push_str("PROCESS"),
            () if has_any_numbers => masked.push_str(&without_numbers(word)),
            () => masked.push_str(word),
        }
        before = word;
    }
    masked
}

fn is_hash(word: &str) -> bool {
    word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Replaces numbers of two or more digits, with fractions, by `#`.
fn without_numbers(word: &str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let end =
            rest[at..].find(|c: char| !c.is_ascii_digit() && c != '.').map_or(rest.len(), |len| at + len);
        let number = rest[at..end].trim_end_matches('.');
        text.push_str(&rest[..at]);
        text.push_str(if number.len() > 1 { "#" } else { number });
        rest = &rest[at + number.len()..];
    }
    text + rest
}

/// Whether the output is what the page shows.
fn is_as_shown(shown: &[String], printed: &[&str], has_any_numbers: bool) -> bool {
    match shown {
        [] => printed.is_empty(),
        [dots, rest @ ..] if dots == "..." => {
            (0..=printed.len()).any(|skipped| is_as_shown(rest, &printed[skipped..], has_any_numbers))
        }
        [line, rest @ ..] => {
            printed
                .first()
                .is_some_and(|first| masked(first, has_any_numbers) == masked(line, has_any_numbers))
                && is_as_shown(rest, &printed[1..], has_any_numbers)
        }
    }
}

/// `PATH` with the tested binary first.
fn path() -> OsString {
    let bin = Path::new(env!("CARGO_BIN_EXE_extant")).parent().unwrap();
    let shell = command("bash");
    let path = shell.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path).unwrap();
    let mut first = bin.as_os_str().to_owned();
    first.push(":");
    first.push(path);
    first
}

fn is_there(need: &str) -> bool {
    match need {
        "root" => is_root(),
        "namespaces" => {
            let status = command("unshare").args(["-Urm", "test", "-w", "/dev/fuse"]).status();
            status.is_ok_and(|status| status.success())
        }
        program => std::env::split_paths(&path()).any(|dir| dir.join(program).exists()),
    }
}

/// Runs a block in a shell, as if it were pasted. Returns each command's output lines and exit code.
fn run(dir: &Path, steps: &[Step]) -> Vec<(Vec<String>, i32)> {
    let mut script = "exec 2>&1\n".to_owned();
    let pause = std::env::var("EXTANT_PAUSE").map_or_else(
        |_| String::new(),
        |seconds| format!("__code=$?; sleep {seconds}; (exit \"$__code\")\n"),
    );
    for step in steps {
        script += &pause;
        // The next command sees the same exit code as without the mark.
        script += &format!(
            "{}\n__code=$?; printf '\\n\\001end %d\\n' \"$__code\"; (exit \"$__code\")\n",
            step.command
        );
    }
    let output = command("bash")
        .env("PATH", path())
        .env_remove("SOURCE_DATE_EPOCH")
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let text = text.replace(dir.to_str().unwrap(), "");
    let mut results = Vec::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.strip_prefix(MARK) {
            Some(code) => {
                // The mark starts a new line.
                if lines.last().is_some_and(String::is_empty) {
                    lines.pop();
                }
                results.push((std::mem::take(&mut lines), code.parse().unwrap()));
            }
            None => lines.push(line.to_owned()),
        }
    }
    results
}

/// Why a block is skipped on this machine.
fn why_skipped(block: &Block) -> Option<String> {
    let mounts = block.steps.iter().any(|step| step.command.contains("extant mount"));
    match block.marks.needs.iter().find(|program| !is_there(program)) {
        _ if mounts && !Path::new("/dev/fuse").exists() => Some("no /dev/fuse".to_owned()),
        Some(program) => Some(format!("no {program}")),
        None => None,
    }
}

/// Replaces the output that a page shows for each of these steps, which are in the order of the page.
fn bless(page: &str, steps: &[(&Step, Vec<String>)]) {
    let path = root().join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (step, printed) in steps.iter().rev() {
        // Lines are counted from 1, so this is the line after the command.
        let first = step.line - 1 + step.command.lines().count();
        lines.splice(first..first + step.shown.len(), printed.iter().cloned());
    }
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

/// Runs the blocks of a page. Returns what differs.
fn faults(page: &str, blocks: &[Block]) -> Vec<String> {
    let dir = scratch();
    let mut faults = Vec::new();
    let mut blessed = Vec::new();
    for block in blocks.iter().filter(|block| !block.marks.not_run) {
        if let Some(why) = why_skipped(block) {
            // The blocks after it may need what it makes.
            println!("{page}:{}: skipped, with the rest of the page: {why}", block.steps[0].line);
            break;
        }
        let results = run(dir.path(), &block.steps);
        if results.len() != block.steps.len() {
            faults.push(format!("{page}:{}: a command swallowed the rest: {results:?}", block.steps[0].line));
            continue;
        }
        for (at, (step, (lines, code))) in block.steps.iter().zip(&results).enumerate() {
            let printed: Vec<&str> = lines.iter().map(String::as_str).collect();
            let is_expected =
                block.is_setup || is_as_shown(&step.shown, &printed, block.marks.has_any_numbers);
            let is_code_shown = block.steps.get(at + 1).is_some_and(|next| next.command == "echo $?");
            let may_bless =
                std::env::var_os("EXTANT_BLESS").is_some() && !step.shown.contains(&"...".to_owned());
            if !is_expected && may_bless && (*code == 0 || is_code_shown) {
                blessed.push((step, lines.clone()));
            } else if !is_expected || (*code != 0 && !is_code_shown) {
                faults.push(format!(
                    "{page}:{}: $ {}\n(exit code {code}) printed:\n{}\nand the page shows:\n{}",
                    step.line,
                    step.command,
                    printed.join("\n"),
                    step.shown.join("\n")
                ));
            }
        }
    }
    if !blessed.is_empty() {
        bless(page, &blessed);
    }
    faults
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// README and all pages below docs/ with console blocks: path and blocks.
fn pages() -> Vec<(String, Vec<Block>)> {
    let root = root();
    let mut files = vec![root.join("README.md")];
    let mut dirs = vec![root.join("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => dirs.push(path),
                Some(extension) if extension == "md" => files.push(path),
                _ => {}
            }
        }
    }
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (name, blocks(&std::fs::read_to_string(path).unwrap()))
    };
    let mut pages: Vec<_> = files.iter().map(read).filter(|(_, blocks)| !blocks.is_empty()).collect();
    pages.sort_by(|(a, _), (b, _)| a.cmp(b));
    pages
}

#[test]
fn every_console_block_does_what_its_page_shows() {
    let mut pages = pages();
    if let Some(only) = std::env::var_os("EXTANT_PAGE") {
        pages.retain(|(name, _)| OsString::from(name) == only);
    }
    assert!(!pages.is_empty(), "no such page");
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let left = Mutex::new(pages);
    let faults_of_all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some((name, blocks)) = left.lock().unwrap().pop() else { break };
                    let begun = Instant::now();
                    let found = faults(&name, &blocks);
                    println!("{name}: {} blocks, {:.1} s", blocks.len(), begun.elapsed().as_secs_f64());
                    faults_of_all.lock().unwrap().extend(found);
                }
            });
        }
    });
    let faults = faults_of_all.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

#[test]
fn blocks_that_do_not_run_become_fewer() {
    let not_run = |blocks: &[Block]| blocks.iter().filter(|block| block.marks.not_run).count();
    let found: Vec<_> = pages().into_iter().map(|(name, blocks)| (name, not_run(&blocks))).collect();
    for (name, count) in &found {
        let listed = NOT_RUN.iter().find(|(page, _)| page == name).map_or(0, |(_, count)| *count);
        assert_eq!(*count, listed, "{name}: blocks with `not run`, and their number in NOT_RUN");
    }
    for (page, _) in NOT_RUN {
        assert!(found.iter().any(|(name, _)| name == page), "NOT_RUN: {page} has no console blocks");
    }
}

#[test]
fn the_version_of_rust_is_the_one_that_is_needed() {
    let readme = include_str!("../../../../../README.md");
    let manifest = include_str!("../../../../../Cargo.toml");
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")).unwrap();
    let wanted = wanted.trim_end_matches('"');
    assert!(
        readme.contains(&format!("(https://rustup.rs) {wanted} or later")),
        "README names another Rust than {wanted}"
    );
}

#[test]
fn masks_keep_what_matters() {
    assert_eq!(masked("a 12  MiB, 1.5 s (0.0%)", true), "a # MiB, # s (#%)");
    assert_eq!(masked("a 12  MiB, 1.5 s (0.0%)", false), "a 12 MiB, 1.5 s (0.0%)");
    assert_eq!(masked("link count is 3, should be 1", true), "link count is 3, should be 1");
    assert_eq!(masked("UUID 895c3e90-a126-4cd6-857f-26079091c319", false), "UUID UUID");
    assert_eq!(masked("0 6 2026-11-26T05:11:20Z motd.", false), "0 6 TIME motd.");
    assert_eq!(masked("2026-11-26T05:11:20.000000000Z", false), "TIME");
    assert_eq!(masked("00000000..0e73b919 x", false), "HASHES x");
    assert_eq!(masked("by process 4711 (extant)", false), "by process PROCESS (extant)");
    let shown = ["a", "...", "b"].map(str::to_owned);
    assert!(is_as_shown(&shown, &["a", "x", "y", "b"], false) && is_as_shown(&shown, &["a", "b"], false));
    assert!(!is_as_shown(&shown, &["a", "b", "c"], false));
}

#[test]
fn marks_and_long_commands_are_parsed() {
    let page = "<!-- setup\n$ mkdir a\n-->\n\n<!-- any numbers -->\n<!-- needs: jq tar -->\n```console\n\
                $ extant edit r.img <<'END'\n> mkdir /a\n> END\nout\n$ echo \\\n    b\nb\n```\n\
                <!-- not run: needs root -->\n```console\n$ c\n```\n";
    let [setup, block, not_run] = &blocks(page)[..] else { panic!("{:?}", blocks(page)) };
    assert!(setup.is_setup && setup.steps[0].command == "mkdir a");
    assert!(block.marks.has_any_numbers && block.marks.needs == ["jq", "tar"] && !block.is_setup);
    assert_eq!(block.steps[0].command, "extant edit r.img <<'END'\nmkdir /a\nEND");
    assert_eq!(block.steps[0].shown, ["out"]);
    assert_eq!(block.steps[1].command, "echo \\\n    b");
    assert!(not_run.marks.not_run);
}
