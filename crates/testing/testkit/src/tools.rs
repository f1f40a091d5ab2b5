//! Runs external programs, which must succeed.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Whether this process runs as root (effective uid 0).
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The negation of [`is_root`], for a test that needs root. It prints the reason that `./test` counts.
#[must_use]
pub fn not_root() -> bool {
    if !is_root() {
        println!("skipped: not root");
    }
    !is_root()
}

/// A temporary directory for source trees and images, in `/dev/shm` if the machine has it: tmpfs is fast, and
/// keeps every time, attribute and hole.
///
/// # Panics
/// It cannot be created.
#[must_use]
pub fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let made = tempfile::Builder::new().prefix("extant-test-").tempdir_in(&parent);
    made.unwrap_or_else(|error| panic!("{}: {error}", parent.display()))
}

/// A command that finds system programs and prints untranslated output.
///
/// The `sbin` directories are added to `PATH`: Debian installs e2fsprogs there, outside of the `PATH` of
/// ordinary users. `LC_ALL=C` and `TZ=UTC` make outputs comparable.
///
/// The program is looked up here and not by `Command`, which would fork in that case: a fork copies the page
/// tables of the test process, 14 ms for 200 MB of images in memory. With a path, `Command` spawns in 1 ms.
#[must_use]
pub fn command(program: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| is_program(file));
    let mut command = Command::new(found.unwrap_or_else(|| program.into()));
    command.arg0(program);
    command.env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

fn is_program(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
}

/// Runs a program and returns its output.
///
/// # Panics
/// It cannot be started, or exits with another code than 0; the message has the command line and the output.
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
/// The exit code is not 0; the message has the output of e2fsck.
pub fn e2fsck_clean(image: &Path) {
    let mut command = command("e2fsck");
    command.arg("-fn").arg(image);
    let output = output_of(&mut command);
    assert!(output.status.code() == Some(0), "{}", story(&command, &output));
}

/// Runs one debugfs request, read-only, and returns its output without the version banner.
///
/// debugfs exits with 0 even if the request fails, so its error lines are part of the returned text.
///
/// # Panics
/// debugfs cannot be started, or cannot run on this image.
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

/// Whether this is the `debugfs 1.47.0 (5-Feb-2023)` line that e2fsprogs prints first.
fn is_banner(line: &str) -> bool {
    line.strip_prefix("debugfs ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Runs the command. Panics if it cannot be started.
pub(crate) fn output_of(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"))
}

/// The command line and its output, for the message of a failure. It omits the environment settings of
/// [`command`].
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
