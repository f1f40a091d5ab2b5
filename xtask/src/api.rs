//! `cargo xtask api`: compares the public interface of the crate `extant` with the listing in docs/api.
//!
//! `cargo public-api` makes the listing from rustdoc's JSON, which only a nightly toolchain writes. Items of
//! lower crates that the facade re-exports are listed by their names only.

use std::process::{Command, Stdio};

use crate::workspace;

const LISTING: &str = "docs/api/extant.txt";
const INSTALL: &str = "cargo install cargo-public-api --version 0.52.0 --locked --root target/tools";

/// `cargo xtask api [--bless]`
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let bless = match args {
        [] => false,
        ["--bless"] => true,
        _ => return Err("api: expected --bless or nothing".to_owned()),
    };
    let installed = workspace::target_dir().join("tools/bin/cargo-public-api");
    let program = if installed.exists() { installed } else { "cargo-public-api".into() };
    let has = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !has(Command::new(&program).args(["public-api", "--version"])) {
        println!("skipped: cargo-public-api is not installed ({INSTALL})");
        return Ok(());
    }
    if !has(Command::new("rustup").args(["run", "nightly", "rustc", "--version"])) {
        println!("skipped: there is no nightly Rust (rustup toolchain install nightly)");
        return Ok(());
    }
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).arg(&program).args(["public-api", "-p", "extant", "-sss"]);
    command.current_dir(workspace::root()).env("CARGO_TARGET_DIR", workspace::target_dir().join("api"));
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let now = String::from_utf8_lossy(&output.stdout);
    let path = workspace::root().join(LISTING);
    if bless {
        return std::fs::write(&path, now.as_bytes()).map_err(|error| format!("{LISTING}: {error}"));
    }
    let before = std::fs::read_to_string(&path).map_err(|error| format!("{LISTING}: {error}"))?;
    let differences = differences(&before, &now);
    match differences.as_slice() {
        [] => Ok(()),
        lines => Err(format!(
            "the public interface differs from {LISTING}; `cargo xtask api --bless` writes it there:\n{}",
            lines.join("\n")
        )),
    }
}

/// The lines that only one of the listings has, with `-` for the first one and `+` for the second.
fn differences(before: &str, now: &str) -> Vec<String> {
    let only = |mark: char, here: &str, there: &str| {
        let there: std::collections::BTreeSet<&str> = there.lines().collect();
        let lines = here.lines().filter(|line| !there.contains(line));
        lines.map(|line| format!("{mark}{line}")).collect::<Vec<_>>()
    };
    [only('-', before, now), only('+', now, before)].concat()
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_changed_lines_are_differences() {
        assert_eq!(super::differences("a\nb\nc\n", "a\nd\nc\n"), ["-b", "+d"]);
        assert!(super::differences("a\n", "a\n").is_empty());
    }
}
