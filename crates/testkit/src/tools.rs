//! Running other people's programs and insisting that they succeed.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Does this process run as root (effective uid 0)?
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As [`is_root`] negated, for a test that cannot work without: prints the reason that `./test` counts.
#[must_use]
pub fn not_root() -> bool {
    if !is_root() {
        println!("skipped: not root");
    }
    !is_root()
}

/// A temporary directory for source trees and images, in memory where the machine has `/dev/shm`: fast, and a
/// tmpfs holds every time, attribute and hole.
///
/// # Panics
/// When none can be made.
#[must_use]
pub fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let made = tempfile::Builder::new().prefix("extant-test-").tempdir_in(&parent);
    made.unwrap_or_else(|error| panic!("{}: {error}", parent.display()))
}

/// A command that finds system programs and speaks plainly.
///
/// `PATH` gains the `sbin` directories, where Debian keeps e2fsprogs out of sight of ordinary users;
/// `LC_ALL=C` and `TZ=UTC` make outputs comparable.
#[must_use]
pub fn command(program: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    let mut command = Command::new(program);
    command.env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

/// Runs a program and returns its output.
///
/// # Panics
/// When it cannot be started or exits with anything but 0; the message holds the command line and all it
/// printed.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Output {
    let mut command = command(program);
    command.args(args);
    let output = output_of(&mut command);
    assert!(output.status.success(), "{}", story(&command, &output));
    output
}

/// Checks an image with `e2fsck -fn` (full check, read-only).
///
/// # Panics
/// Unless the exit code is 0, with everything that e2fsck printed.
pub fn e2fsck_clean(image: &Path) {
    let mut command = command("e2fsck");
    command.arg("-fn").arg(image);
    let output = output_of(&mut command);
    assert!(output.status.code() == Some(0), "{}", story(&command, &output));
}

/// Runs one debugfs request, read-only, and returns what it printed; the version banner is left out.
///
/// debugfs exits with 0 even when the request fails, so its error lines are part of the text returned.
///
/// # Panics
/// When debugfs cannot be started or cannot be run on this image.
#[must_use]
pub fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", [OsStr::new("-R"), OsStr::new(request), image.as_os_str()]);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in String::from_utf8_lossy(&output.stderr).lines().filter(|line| !is_banner(line)) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Is this the `debugfs 1.47.0 (5-Feb-2023)` line that e2fsprogs prints first?
fn is_banner(line: &str) -> bool {
    line.strip_prefix("debugfs ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Runs it, panics when it cannot be started.
pub(crate) fn output_of(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"))
}

/// The command line and everything it printed, for a failure's message. Our own environment settings are left
/// out.
pub(crate) fn story(command: &Command, output: &Output) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    format!(
        "`{line}` ended with {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
