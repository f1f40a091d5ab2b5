//! An image, and commands on it that are written as text lines.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use extant_testkit::{LoopMount, e2fsck_clean, not_root, scratch};

use super::{Outcome, assert_has, extant, outcome, run};

/// An image with an empty file system, and commands on it.
pub(crate) struct Image {
    _scratch: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    pub(crate) fn new(options: &[&str]) -> Self {
        let scratch = scratch();
        let path = scratch.path().join("a.img");
        let mut command = extant();
        command.args(["mkfs", "--size", "32M", "--no-sync"]).args(options).arg(&path);
        outcome(&mut command).code(0);
        Self { _scratch: scratch, path }
    }

    /// Runs a command line; `:/path` stands for a path of the image.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        let image = self.path.to_str().unwrap();
        run(line.split(' ').map(|word| match word.strip_prefix(":/") {
            Some(path) => OsString::from(format!("{image}:/{path}")),
            None => OsString::from(word),
        }))
    }

    #[track_caller]
    pub(crate) fn done(&self, line: &str) -> String {
        let outcome = self.run(line);
        assert_eq!(outcome.code(0), "");
        outcome.stdout
    }

    /// Asserts the exit code and a part of the message, and that the image is unchanged, byte for byte.
    #[track_caller]
    pub(crate) fn refused(&self, line: &str, code: i32, part: &str) {
        let before = std::fs::read(&self.path).unwrap();
        assert_has(self.run(line).code(code), part);
        assert!(std::fs::read(&self.path).unwrap() == before, "{line}");
    }

    /// Runs `extant edit` with a script on standard input.
    pub(crate) fn script(&self, options: &[&str], script: &str) -> Outcome {
        let mut command = extant();
        command.arg("edit").args(options).arg(&self.path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Outcome {
            line: format!("edit {options:?}"),
            code: output.status.code().unwrap(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// The number of the journal's next transaction.
    pub(crate) fn sequence(&self) -> u64 {
        let field = extant_testkit::dumpe2fs(&self.path).field("Journal sequence").to_owned();
        u64::from_str_radix(field.trim().trim_start_matches("0x"), 16).unwrap()
    }

    /// Calls `look` with the image mounted by the kernel. Without root, prints a note and does nothing.
    pub(crate) fn mounted(&self, look: impl FnOnce(&Path)) {
        e2fsck_clean(&self.path);
        if not_root() {
            return eprintln!("not root: not mounted");
        }
        let mount = LoopMount::read_only(&self.path).unwrap_or_else(|error| panic!("{error}"));
        look(mount.path());
    }
}

pub(crate) fn kinds() -> [Image; 3] {
    [Image::new(&["-b", "4096"]), Image::new(&["-t", "ext2"]), Image::new(&["-t", "ext3", "-b", "1024"])]
}
