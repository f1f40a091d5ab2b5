//! Runs every test binary of the workspace, several at a time, and counts the tests that skip their work.
//!
//! `cargo test` runs one binary after the other. Most of them end with one long test that leaves the other
//! cores idle, or wait for a mount or a timer. This module runs as many binaries as the machine has cores,
//! each in its package's directory as cargo does. A binary prints one line, and the output of its tests that
//! failed. The end of the run prints this output again.
//!
//! A test that cannot work on this machine prints `skipped: REASON` and returns, which libtest counts as
//! passed. The summary lists these skips by reason. A reason that `xtask/skips.toml` does not list fails the
//! run, so that a test cannot stop working unnoticed.
//!
//! Cargo builds the binaries and runs the documentation tests.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::workspace;

/// A binary that takes longer hangs: the slowest takes a small part of this time on two cores.
const LIMIT: Duration = Duration::from_secs(1800);

/// `xtask/skips.toml`: the reasons for which a test may skip its work.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    /// A reason is allowed if it begins with one of these.
    reasons: Vec<String>,
}

/// Cargo's message about an artifact; other messages lack these fields.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

struct Binary {
    name: String,
    executable: PathBuf,
    dir: PathBuf,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Tests per reason for which they skipped their work. They count as passed as well.
    skipped: BTreeMap<String, Vec<String>>,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        for (reason, tests) in other.skipped {
            self.skipped.entry(reason).or_default().extend(tests);
        }
    }

    /// The table at the end of a run. Returns the reasons that are not allowed.
    fn report(&self, allowed: &[String]) -> Vec<String> {
        let skipped: usize = self.skipped.values().map(Vec::len).sum();
        println!("\n{:>6}  run\n{:>6}  failed", self.passed + self.failed, self.failed);
        println!("{:>6}  not run (#[ignore])\n{skipped:>6}  skipped their work:", self.ignored);
        let mut unknown = Vec::new();
        for (reason, tests) in &self.skipped {
            println!("{:>14}  {reason}", tests.len());
            if !allowed.iter().any(|prefix| reason.starts_with(prefix.as_str())) {
                unknown.push(format!("{reason}: {}", tests.join(", ")));
            }
        }
        unknown
    }
}

/// Builds and runs all tests, documentation tests last; `cargo` are the arguments of every cargo command that
/// builds.
pub(crate) fn run(cargo: &[&str]) -> Result<(), String> {
    let allowed: Allowed = workspace::read_toml("xtask/skips.toml")?;
    let binaries = build(cargo)?;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let queue = Mutex::new(VecDeque::from(binaries));
    let total = Mutex::new((Counts::default(), Vec::new(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let Some(binary) = queue.lock().expect("no test thread panics").pop_front() else {
                        break;
                    };
                    let begun = Instant::now();
                    let ran = run_one(&binary);
                    let seconds = begun.elapsed().as_secs_f64();
                    let mut total = total.lock().expect("no test thread panics");
                    total.2.push((seconds, binary.name.clone()));
                    match ran {
                        Ok(counts) => {
                            println!(
                                "ok      {:<50} {:4} passed in {seconds:.1} s",
                                binary.name, counts.passed
                            );
                            total.0.add(counts);
                        }
                        Err((counts, output)) => {
                            println!("{}\nFAILED  {} in {seconds:.1} s", failures(&output), binary.name);
                            total.0.add(Counts { failed: counts.failed.max(1), ..counts });
                            total.1.push((binary.name, output));
                        }
                    }
                }
            });
        }
    });
    let (mut counts, mut failed, mut times) = total.into_inner().expect("no test thread panics");
    times.sort_by(|one, other| other.0.total_cmp(&one.0));
    let slowest = times.iter().take(8).map(|(seconds, name)| format!("{name} {seconds:.0} s"));
    println!("the slowest: {}", slowest.collect::<Vec<_>>().join(", "));
    match documentation(cargo) {
        Ok(ran) => counts.add(ran),
        Err(output) => {
            failed.push(("documentation tests".to_owned(), output));
            counts.failed += 1;
        }
    }
    let unknown = counts.report(&allowed.reasons);
    if !failed.is_empty() {
        // Last, so that the end of a log says what is wrong.
        for (name, output) in &failed {
            println!("\n==== {name}\n{}", failures(output));
        }
        let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
        return Err(format!("tests failed in {}", names.join(", ")));
    }
    if !unknown.is_empty() {
        let list = unknown.join("\n  ");
        return Err(format!("tests skipped for reasons that xtask/skips.toml does not list:\n  {list}"));
    }
    Ok(())
}

/// The binaries that take longest. They run first: at the end, one of them would run alone.
const LONGEST: &[&str] = &["cli::all", "volume::all"];

/// The test binaries, in the order in which they are to run.
fn build(cargo: &[&str]) -> Result<Vec<Binary>, String> {
    let mut command = workspace::cargo_of_tests();
    // Without examples: clippy checks them, and each would be linked with most crates.
    command.arg("test").args(cargo).args([
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut binaries: Vec<Binary> = text.lines().filter_map(binary).collect();
    binaries.sort_by_key(|binary| !LONGEST.contains(&binary.name.as_str()));
    if binaries.is_empty() { Err(format!("{command:?} built no test")) } else { Ok(binaries) }
}

fn binary(line: &str) -> Option<Binary> {
    let message: Message = serde_json::from_str(line).ok()?;
    let is_test = message.reason == "compiler-artifact" && message.profile?.test;
    let dir = message.manifest_path?.parent()?.to_owned();
    let package = dir.file_name()?.to_string_lossy().into_owned();
    let name = format!("{package}::{}", message.target?.name);
    message.executable.filter(|_| is_test).map(|executable| Binary { name, executable, dir })
}

/// Runs a binary as cargo does. Returns its whole output if it failed.
fn run_one(binary: &Binary) -> Result<Counts, (Counts, String)> {
    let failed =
        |error: std::io::Error| (Counts::default(), format!("{}: {error}", binary.executable.display()));
    let log = binary.executable.with_extension("log");
    let file = File::create(&log).map_err(failed)?;
    let mut child = Command::new(&binary.executable)
        .arg("--show-output")
        .current_dir(&binary.dir)
        .env("CARGO_MANIFEST_DIR", &binary.dir)
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(failed)?)
        .stderr(file)
        .spawn()
        .map_err(failed)?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break Some(status),
            None if begun.elapsed() > LIMIT => {
                // Errors here do not matter: the hang is reported.
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let output = read(&log);
    let counts = counts(&output, &binary.name);
    match status {
        Some(status) if status.success() => Ok(counts),
        Some(status) => Err((counts, format!("{output}\nended with {status}"))),
        None => Err((counts, format!("{output}\ndid not end within {} s, and was killed", LIMIT.as_secs()))),
    }
}

fn documentation(cargo: &[&str]) -> Result<Counts, String> {
    let mut command = workspace::cargo_of_tests();
    command.arg("test").args(cargo).args(["--workspace", "--doc"]);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(counts(&text, "documentation")) } else { Err(text) }
}

fn read(log: &Path) -> String {
    std::fs::read(log)
        .map_or_else(|error| error.to_string(), |text| String::from_utf8_lossy(&text).into_owned())
}

/// What libtest prints about the tests that failed, to the end of the output. A binary that was killed has no
/// such part; then the whole output.
fn failures(output: &str) -> &str {
    let Some(start) = output.find("\nfailures:\n\n---- ") else { return output };
    &output[start..]
}

/// Sums libtest's result lines (`test result: ok. 3 passed; 0 failed; 1 ignored; ...`) and collects the
/// skips: with `--show-output` each test's output follows the line `---- NAME stdout ----`.
fn counts(output: &str, binary: &str) -> Counts {
    let mut counts = Counts::default();
    let mut test = binary.to_owned();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            test = format!("{binary}::{name}");
        } else if let Some(reason) = line.strip_prefix("skipped: ") {
            let tests = counts.skipped.entry(reason.to_owned()).or_default();
            if !tests.contains(&test) {
                tests.push(test.clone());
            }
        } else if let Some(line) = line.strip_prefix("test result: ") {
            let number = |what: &str| -> u64 {
                let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
                part.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
            };
            counts.passed += number("passed");
            counts.failed += number("failed");
            counts.ignored += number("ignored");
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let text = "running 2 tests\n---- a::b stdout ----\nskipped: not root\nskipped: not root\n\n\
            ---- c stdout ----\nskipped: not root\n\
            test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out\n\
            x\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let counts = counts(text, "dir::names");
        assert_eq!((counts.passed, counts.failed, counts.ignored), (13, 2, 3));
        assert_eq!(counts.skipped["not root"], ["dir::names::a::b", "dir::names::c"]);
        assert!(counts.report(&["not ".to_owned()]).is_empty());
        assert_eq!(counts.report(&[]), ["not root: dir::names::a::b, dir::names::c"]);
    }

    #[test]
    fn the_output_of_failed_tests_is_found() {
        let ran = "running 2 tests\n\nsuccesses:\n\n---- a stdout ----\nfine\n";
        let bad = "\nfailures:\n\n---- b stdout ----\npanicked\n\nfailures:\n    b\n";
        assert_eq!(failures(&format!("{ran}{bad}")), bad);
        assert_eq!(failures(ran), ran);
    }

    #[test]
    fn only_test_binaries_are_run() {
        let line = |reason: &str, test: bool| {
            format!(
                r#"{{"reason":"{reason}","manifest_path":"/w/crates/engine/dir/Cargo.toml","target":{{"name":"names"}},"profile":{{"test":{test}}},"executable":"/t/names-1"}}"#
            )
        };
        assert_eq!(binary(&line("compiler-artifact", true)).unwrap().name, "dir::names");
        assert!(binary(&line("compiler-artifact", false)).is_none());
        assert!(binary(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
