//! `cargo xtask nightly`: the checks that are too long for `./test`, within a time budget.
//!
//! It prints the seed first, and a failure prints the command that repeats it. A part that fails does not
//! stop the others.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{api, book, fsx, package, programs, wasi, workspace};

/// A part of the run.
type Part<'p> = &'p dyn Fn() -> Result<(), String>;

/// `cargo xtask nightly [--seed S] [--seconds N]`
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs() / 86400);
    let mut seconds = 3600;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let value = rest.next().and_then(|value| value.parse::<u64>().ok());
        match (*arg, value) {
            ("--seed", Some(value)) => seed = value,
            ("--seconds", Some(value)) => seconds = value,
            _ => return Err(format!("nightly: {arg}: expected --seed S or --seconds N")),
        }
    }
    println!("nightly: seed {seed}, {seconds} seconds");
    let (seed, share) = (seed.to_string(), (seconds / 7).to_string());
    // Programs that take a count instead of a time run again with the next seeds until their share of the
    // time is used.
    let until_over = |part: fn(&[&str]) -> Result<(), String>, args: &[&str]| {
        let begun = Instant::now();
        let mut number: u64 = seed.parse().unwrap_or(1);
        while begun.elapsed() < Duration::from_secs(seconds / 7) {
            let text = number.to_string();
            part(&[args, &["--seed", &text]].concat())?;
            number += 1;
        }
        Ok(())
    };
    let parts: [(&str, Part<'_>); 14] = [
        ("licenses and sources of dependencies", &deny),
        ("the oldest Rust", &oldest_rust),
        ("packages", &package::run),
        ("book", &book::run),
        ("the public interface", &|| api::run(&[])),
        ("the library for WASI", &wasi::check),
        ("heavy tests", &heavy_tests),
        ("fuzz", &|| programs::fuzz(&["--seed", &seed, "--seconds", &share])),
        ("fuzz --changes", &|| programs::fuzz(&["--changes", "--seed", &seed, "--seconds", &share])),
        ("requests of a fake kernel", &|| fake_kernel(&seed, &share)),
        ("crash", &|| until_over(programs::crash, &["--cuts", "5000"])),
        ("crash --data", &|| until_over(programs::crash, &["--data", "--cuts", "2000"])),
        ("crash --crowded", &|| until_over(programs::crash, &["--crowded", "--cuts", "3000"])),
        ("fsx", &|| fsx::run(&["--seed", &seed, "--seconds", &share])),
    ];
    let mut failed = Vec::new();
    for (name, part) in parts {
        println!("nightly: {name} ...");
        let begun = Instant::now();
        match part() {
            Ok(()) => println!("nightly: {name} passed in {:.0} s", begun.elapsed().as_secs_f64()),
            Err(error) => {
                println!("nightly: {name} FAILED: {error}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("nightly: failed: {}", failed.join(", "))) }
}

/// The tests that `./test` does not run, and those that it runs at reduced size.
fn heavy_tests() -> Result<(), String> {
    let mut full = workspace::cargo_of_tests();
    full.args(["test", "--profile", "ci", "-p", "extant-volume", "--test", "all"]);
    workspace::succeed(
        full.env("EXTANT_CAPTURES", "90").env("EXTANT_SECONDS", "30").env("EXTANT_CUTS", "600"),
    )?;
    let mut matrix = workspace::cargo_of_tests();
    matrix.args(["test", "--profile", "ci", "-p", "extant-cli", "--test", "all", "matrix"]);
    workspace::succeed(matrix.env("EXTANT_MATRIX", ""))?;
    let mut pages = workspace::cargo_of_tests();
    pages.args(["test", "--profile", "ci", "-p", "extant-cli", "--test", "all", "pages::every"]);
    workspace::succeed(pages.env("EXTANT_PAUSE", "1.1"))?;
    let mut command = workspace::cargo_of_tests();
    command.args(["test", "--profile", "ci", "--workspace", "--tests", "--no-fail-fast", "--", "--ignored"]);
    workspace::succeed(&mut command)
}

/// Random requests to the mount's server, in every 10 seconds from the next seed and on a new image.
fn fake_kernel(seed: &str, seconds: &str) -> Result<(), String> {
    let mut command = workspace::cargo_of_tests();
    command.args(["test", "--profile", "ci", "-p", "extant-fuse", "--test", "fake_kernel"]);
    workspace::succeed(command.env("FAKE_KERNEL_SEED", seed).env("FAKE_KERNEL_SECONDS", seconds))
}

/// Builds with the oldest Rust that Cargo.toml declares, if rustup has it.
fn oldest_rust() -> Result<(), String> {
    let text =
        std::fs::read_to_string(workspace::root().join("Cargo.toml")).map_err(|error| error.to_string())?;
    let version = text.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = version.ok_or("Cargo.toml has no rust-version")?;
    if !works(Command::new("rustup").args(["run", version, "cargo", "--version"])) {
        println!("skipped: Rust {version} is not installed (rustup toolchain install {version})");
        return Ok(());
    }
    let mut command = Command::new("rustup");
    command.args(["run", version, "cargo", "check", "--workspace", "--all-targets", "--locked"]);
    workspace::succeed(command.current_dir(workspace::root()).env("CARGO_TARGET_DIR", "target/oldest"))
}

fn deny() -> Result<(), String> {
    if !works(Command::new("cargo").args(["deny", "--version"])) {
        println!("skipped: cargo-deny is not installed (cargo install cargo-deny --locked)");
        return Ok(());
    }
    let mut command = workspace::cargo();
    workspace::succeed(command.args(["deny", "check", "licenses", "bans", "sources"]))
}

fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
