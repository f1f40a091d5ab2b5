//! Runs every test binary of the workspace, several at the same time.
//!
//! `cargo test` runs one binary after the other, and most of them end with a test that leaves the other cores idle, or wait for a mount or
//! a timer. Here as many binaries run as the machine has cores, each in its package's directory as with cargo; a binary prints one line,
//! and its whole output if it failed. Does **not** own: building (cargo), documentation tests (cargo again).

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::workspace;

/// A binary that takes longer hangs: many times what the longest one takes on two cores.
const LIMIT: Duration = Duration::from_secs(1800);

/// What cargo says of a file that it made; other messages have none of these fields.
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

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Builds and runs all tests, documentation tests last; `cargo` are the arguments of every cargo command that builds.
pub(crate) fn run(cargo: &[&str]) -> Result<(), String> {
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
                            println!("{output}\nFAILED  {} in {seconds:.1} s", binary.name);
                            total.0.add(Counts { failed: counts.failed.max(1), ..counts });
                            total.1.push(binary.name);
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
            println!("{output}");
            failed.push("documentation tests".to_owned());
            counts.failed += 1;
        }
    }
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.ignored);
    if failed.is_empty() { Ok(()) } else { Err(format!("tests failed in {}", failed.join(", "))) }
}

/// The test binaries, in the order in which cargo finished them: the largest programs last, so that they are run first.
fn build(cargo: &[&str]) -> Result<Vec<Binary>, String> {
    let mut command = workspace::cargo();
    command.arg("test").args(cargo).args([
        "--workspace",
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
    binaries.reverse();
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

/// Runs a binary as cargo does. Its whole output comes back where it failed.
fn run_one(binary: &Binary) -> Result<Counts, (Counts, String)> {
    let failed =
        |error: std::io::Error| (Counts::default(), format!("{}: {error}", binary.executable.display()));
    let log = binary.executable.with_extension("log");
    let file = File::create(&log).map_err(failed)?;
    let mut child = Command::new(&binary.executable)
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
                // Best effort: that it hung is what counts.
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let output = read(&log);
    let counts = counts(&output);
    match status {
        Some(status) if status.success() => Ok(counts),
        Some(status) => Err((counts, format!("{output}\nended with {status}"))),
        None => Err((counts, format!("{output}\ndid not end within {} s, and was killed", LIMIT.as_secs()))),
    }
}

fn documentation(cargo: &[&str]) -> Result<Counts, String> {
    let mut command = workspace::cargo();
    command.arg("test").args(cargo).args(["--workspace", "--doc"]);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(counts(&text)) } else { Err(text) }
}

fn read(log: &Path) -> String {
    std::fs::read(log)
        .map_or_else(|error| error.to_string(), |text| String::from_utf8_lossy(&text).into_owned())
}

/// The sums of libtest's last lines: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn counts(output: &str) -> Counts {
    let mut counts = Counts::default();
    for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        let number = |what: &str| -> u64 {
            let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
            part.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
        };
        counts.add(Counts { passed: number("passed"), failed: number("failed"), ignored: number("ignored") });
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libtest_counts_is_read() {
        let text = "running 2 tests\ntest result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out\n\
            x\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(counts(text), Counts { passed: 13, failed: 2, ignored: 3 });
    }

    #[test]
    fn only_test_binaries_are_run() {
        let line = |reason: &str, test: bool| {
            format!(
                r#"{{"reason":"{reason}","manifest_path":"/w/crates/dir/Cargo.toml","target":{{"name":"names"}},"profile":{{"test":{test}}},"executable":"/t/names-1"}}"#
            )
        };
        assert_eq!(binary(&line("compiler-artifact", true)).unwrap().name, "dir::names");
        assert!(binary(&line("compiler-artifact", false)).is_none());
        assert!(binary(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
