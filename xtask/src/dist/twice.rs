//! `cargo xtask dist --twice`: a second build, and the comparison of its files with those of the first.
//!
//! The second build has a copy of the sources in another directory, and another build directory, home of
//! cargo, umask, time zone and locale. What it has in common with the first are the programs of this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::compile::cargo_home;
use super::{Dist, done, read};

/// The second build, while it runs.
pub(super) struct Second {
    room: tempfile::TempDir,
    child: Child,
}

impl Second {
    pub(super) fn start(first: &Dist<'_>) -> Result<Self, String> {
        let room = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
        let root = room.path().join("another-place/of-the-sources");
        copy_sources(&first.root, &root)?;
        // The same packages of the registry under another name.
        let home = cargo_home();
        let second_home = room.path().join("cargo-home");
        let entries = fs::read_dir(&home).map_err(|error| format!("{}: {error}", home.display()))?;
        fs::create_dir(&second_home).map_err(|error| format!("{}: {error}", second_home.display()))?;
        for entry in entries.flatten() {
            symlink(entry.path(), second_home.join(entry.file_name())).map_err(|error| error.to_string())?;
        }
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077 && exec \"$0\" \"$@\""]).arg(this).arg("dist");
        command.args(["--profile", first.profile]).arg("--of").arg(&root);
        command.arg("--into").arg(room.path().join("made"));
        command.env("CARGO_HOME", &second_home).env("SOURCE_DATE_EPOCH", &first.time);
        command.envs([("TZ", "Pacific/Kiritimati"), ("LC_ALL", "C")]);
        let child = command.spawn().map_err(|error| format!("the second build: {error}"))?;
        Ok(Self { room, child })
    }

    /// Waits for the end of the build. Fails if one of its files differs from the one of the first build.
    pub(super) fn compare(mut self, first: &Dist<'_>) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| format!("the second build: {error}"))?;
        if !status.success() {
            return Err(format!("the second build: {status}"));
        }
        let out = self.room.path().join("made/artifacts");
        let all = names(&first.out)?;
        if all != names(&out)? {
            return Err(format!("dist --twice: other files: {all:?}, {:?}", names(&out)?));
        }
        let mut different = Vec::new();
        for name in &all {
            if read(&first.out.join(name))? != read(&out.join(name))? {
                different.push(name.display().to_string());
            }
        }
        if different.is_empty() {
            println!("dist --twice: {} files, the same bytes", all.len());
            return Ok(());
        }
        // For `diffoscope`, or `cmp` of the unpacked files.
        let kept = self.room.keep();
        Err(format!("dist --twice: not the same bytes: {}; see {}", different.join(", "), kept.display()))
    }
}

fn names(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.file_name().into()).collect();
    names.sort();
    Ok(names)
}

/// Copies the files that git tracks or would add; without git, all files except build output.
pub(super) fn copy_sources(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    let list = "git ls-files -z --cached --others --exclude-standard 2>/dev/null || \
                find . -path ./target -prune -o -path ./out -prune -o ! -type d -print0";
    let script = format!("({list}) | tar --null --ignore-failed-read -cf - -T - | tar -xf - -C \"$0\"");
    done(Command::new("sh").args(["-c", &script]).arg(to).current_dir(from))
}
