//! Runs the console blocks of README and of the tour in order in an empty directory. Each command exits with
//! 0, or is followed by `echo $?`, and prints what the page shows.
//!
//! Numbers of two or more digits, times and UUIDs equal all others of their kind, and runs of blanks equal
//! one blank. A line `...` matches any lines. Blocks that depend on the machine are skipped by name: the
//! block of the mount, if there is no FUSE.

use std::path::Path;
use std::process::Stdio;

use extant_testkit::{command, scratch};

/// Ends the output of a command; its exit code follows.
const MARK: &str = "\u{1}end ";

/// A command, its line on the page, and the output that the page shows.
struct Step {
    line: usize,
    command: String,
    shown: Vec<String>,
}

/// The console blocks of a page.
fn blocks(text: &str) -> Vec<Vec<Step>> {
    let mut blocks: Vec<Vec<Step>> = Vec::new();
    let mut within = false;
    for (number, line) in (1..).zip(text.lines()) {
        match (within, line) {
            (false, "```console") => {
                within = true;
                blocks.push(Vec::new());
            }
            (true, "```") => within = false,
            (true, line) => {
                let steps = blocks.last_mut().unwrap();
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => {
                        steps.push(Step { line: number, command: command.to_owned(), shown: Vec::new() });
                    }
                    (None, Some(step)) => step.shown.push(line.to_owned()),
                    (None, None) => panic!("line {number}: a block begins with a command"),
                }
            }
            _ => {}
        }
    }
    blocks
}

/// A line without the parts that differ between runs.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    for word in line.split_whitespace() {
        let is_uuid = word.len() == 36 && word.split('-').count() == 5;
        let is_time = word.len() == 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T';
        if !masked.is_empty() {
            masked.push(' ');
        }
        match () {
            () if is_uuid => masked.push_str("UUID"),
            () if is_time => masked.push_str("TIME"),
            () => masked.push_str(&without_numbers(word)),
        }
    }
    masked
}

/// Replaces numbers of two or more digits, with fractions, and ranges of hashes by `#`.
fn without_numbers(word: &str) -> String {
    let is_hashes = word.split("..").count() == 2
        && word.split("..").all(|hash| hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_hashes {
        return "#".to_owned();
    }
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
fn is_as_shown(shown: &[String], printed: &[&str]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [dots, rest @ ..] if dots == "..." => {
            (0..=printed.len()).any(|skipped| is_as_shown(rest, &printed[skipped..]))
        }
        [line, rest @ ..] => {
            printed.first().is_some_and(|first| masked(first) == masked(line))
                && is_as_shown(rest, &printed[1..])
        }
    }
}

/// Runs a block in a shell, as if it were pasted. Returns each command's output lines and exit code.
fn run(dir: &Path, steps: &[Step]) -> Vec<(Vec<String>, i32)> {
    let bin = Path::new(env!("CARGO_BIN_EXE_extant")).parent().unwrap();
    let mut shell = command("bash");
    let path =
        shell.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path).unwrap().to_owned();
    let mut first = bin.as_os_str().to_owned();
    first.push(":");
    first.push(path);
    let mut script = "exec 2>&1\n".to_owned();
    for step in steps {
        // The next command sees the same exit code as without the mark.
        script += &format!(
            "{}\n__code=$?; printf '\\n\\001end %d\\n' \"$__code\"; (exit \"$__code\")\n",
            step.command
        );
    }
    let output = shell
        .env("PATH", first)
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
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

#[test]
fn every_block_of_readme_does_what_it_shows() {
    assert_blocks_do("README.md", include_str!("../../../../../README.md"), 4);
}

#[test]
fn every_block_of_the_tour_does_what_it_shows() {
    assert_blocks_do("docs/tour.md", include_str!("../../../../../docs/tour.md"), 10);
}

#[test]
fn every_block_of_the_page_about_diff_does_what_it_shows() {
    assert_blocks_do("docs/diff.md", include_str!("../../../../../docs/diff.md"), 4);
}

#[test]
fn every_block_of_the_page_about_repairs_does_what_it_shows() {
    assert_blocks_do("docs/repair.md", include_str!("../../../../../docs/repair.md"), 1);
}

#[test]
fn every_block_of_the_page_about_rescue_does_what_it_shows() {
    assert_blocks_do("docs/rescue.md", include_str!("../../../../../docs/rescue.md"), 2);
}

#[test]
fn every_block_of_the_page_about_resize_does_what_it_shows() {
    assert_blocks_do("docs/resize.md", include_str!("../../../../../docs/resize.md"), 1);
}

#[test]
fn every_block_of_the_page_about_tune_does_what_it_shows() {
    assert_blocks_do("docs/tune.md", include_str!("../../../../../docs/tune.md"), 2);
}

#[test]
fn every_block_of_the_page_about_optimize_does_what_it_shows() {
    assert_blocks_do("docs/optimize.md", include_str!("../../../../../docs/optimize.md"), 1);
}

#[test]
fn every_block_of_the_page_about_update_does_what_it_shows() {
    assert_blocks_do("docs/update.md", include_str!("../../../../../docs/update.md"), 1);
}

fn assert_blocks_do(page: &str, text: &str, blocks_min: usize) {
    let dir = scratch();
    let mut faults = Vec::new();
    let blocks = blocks(text);
    assert!(blocks.len() >= blocks_min, "{} blocks", blocks.len());
    for steps in &blocks {
        if steps.iter().any(|step| step.command.starts_with("extant mount"))
            && !Path::new("/dev/fuse").exists()
        {
            println!("skipped: no /dev/fuse");
            continue;
        }
        let results = run(dir.path(), steps);
        assert_eq!(results.len(), steps.len(), "{page}:{}: a command swallowed the rest", steps[0].line);
        for (at, (step, (lines, code))) in steps.iter().zip(&results).enumerate() {
            let printed: Vec<&str> = lines.iter().map(String::as_str).collect();
            let is_shown = steps.get(at + 1).is_some_and(|next| next.command == "echo $?");
            if !is_as_shown(&step.shown, &printed) || (*code != 0 && !is_shown) {
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
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
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
    assert_eq!(masked("a 12  MiB, 1.5 s (0.0%)"), "a # MiB, # s (#%)");
    assert_eq!(masked("link count is 3, should be 1"), "link count is 3, should be 1");
    assert_eq!(masked("UUID 895c3e90-a126-4cd6-857f-26079091c319"), "UUID UUID");
    assert_eq!(masked("0 6 2026-11-26T05:11:20Z motd."), "0 6 TIME motd.");
    assert_eq!(masked("00000000..0e73b919 x"), "# x");
    let shown = ["a", "...", "b"].map(str::to_owned);
    assert!(is_as_shown(&shown, &["a", "x", "y", "b"]) && is_as_shown(&shown, &["a", "b"]));
    assert!(!is_as_shown(&shown, &["a", "b", "c"]));
}
