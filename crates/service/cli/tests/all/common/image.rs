//! An image, and commands on it that are written as text lines.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use extant_ondisk::Superblock;
use extant_ondisk::mmp::Mmp;
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

    /// Changes the superblock.
    pub(crate) fn change_superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut bytes = std::fs::read(&self.path).unwrap();
        let mut sb = Superblock::decode(&bytes[1024..2048]).unwrap();
        change(&mut sb);
        bytes[1024..2048].copy_from_slice(&sb.sealed());
        std::fs::write(&self.path, bytes).unwrap();
    }

    /// Changes the block of multiple-mount protection.
    pub(crate) fn change_mmp(&self, change: impl FnOnce(&mut Mmp)) {
        let mut bytes = std::fs::read(&self.path).unwrap();
        let sb = Superblock::decode(&bytes[1024..2048]).unwrap();
        let at = (sb.mmp_block << (10 + sb.log_block_size)) as usize;
        let mut mmp = Mmp::decode(&bytes[at..]).unwrap();
        change(&mut mmp);
        mmp.seal(sb.fs_seed());
        bytes[at..at + Mmp::LEN].copy_from_slice(&mmp.encode());
        std::fs::write(&self.path, bytes).unwrap();
    }

    /// Asserts that a command reports at once how long it will wait for another machine, and ends it.
    pub(crate) fn waits(&self, line: &str, part: &str) {
        let begun = Instant::now();
        let image = self.path.to_str().unwrap();
        let mut waiting = extant()
            .args(line.replace("IMG", image).split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut said).unwrap();
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        assert!(said.contains(part) && begun.elapsed().as_secs() < 5, "{line}: {said}");
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
