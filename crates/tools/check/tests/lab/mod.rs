//! Images made by mke2fs and debugfs, with one damaged field each; the verdicts of e2fsck and of the check.
#![allow(dead_code, reason = "each test uses its part of the lab")]

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use extant_check::{Finding, Severity};
use extant_device::FileDevice;
use tempfile::TempDir;

/// Block size of all images here.
pub(crate) const BS: u64 = 1024;

/// A fixed hash seed; a later `-E` replaces it.
const SEED: &[&str] = &["-E", "hash_seed=01234567-89ab-cdef-0123-456789abcdef"];

/// An image in a directory of its own.
pub(crate) struct Image {
    dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// Made by mke2fs with these options, 32 MiB in blocks of 1 KiB, then changed by these debugfs commands.
    pub(crate) fn new(options: &[&str], commands: &[&str]) -> Self {
        let dir = extant_testkit::scratch();
        let path = dir.path().join("image");
        let fixed = ["-q", "-F", "-t", "ext4", "-b", "1024"];
        let place = path.to_str().unwrap();
        extant_testkit::run("mke2fs", fixed.iter().chain(SEED).chain(options).chain(&[place, "32M"]));
        let image = Self { dir, path };
        image.write(commands);
        image
    }

    /// Made by mke2fs from a directory tree that `fill` creates; e2fsck then packs its directories.
    pub(crate) fn from_tree(options: &[&str], fill: impl FnOnce(&Path)) -> Self {
        let dir = extant_testkit::scratch();
        let (tree, path) = (dir.path().join("tree"), dir.path().join("image"));
        std::fs::create_dir(&tree).unwrap();
        fill(&tree);
        let (tree, place) = (tree.to_str().unwrap(), path.to_str().unwrap());
        let fixed = ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "8000", "-d", tree];
        extant_testkit::run("mke2fs", fixed.iter().chain(SEED).chain(options).chain(&[place, "32M"]));
        let _ = extant_testkit::command("e2fsck").args(["-fyD", place]).output().unwrap();
        Self { dir, path }
    }

    /// Runs debugfs commands that change the image.
    pub(crate) fn write(&self, commands: &[&str]) {
        if commands.is_empty() {
            return;
        }
        let mut debugfs = extant_testkit::command("debugfs")
            .args(["-w", "-f", "-"])
            .arg(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        debugfs.stdin.take().unwrap().write_all(commands.join("\n").as_bytes()).unwrap();
        assert!(debugfs.wait().unwrap().success());
    }

    /// The blocks of a file, according to debugfs.
    pub(crate) fn blocks(&self, file: &str) -> Vec<u64> {
        let text = extant_testkit::debugfs(&self.path, &format!("blocks {file}"));
        text.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        std::fs::File::open(&self.path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub(crate) fn block(&self, block: u64) -> Vec<u8> {
        self.read(block * BS, BS as usize)
    }

    pub(crate) fn poke(&self, offset: u64, bytes: &[u8]) {
        let file = std::fs::File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    /// A copy to damage.
    pub(crate) fn copy(&self) -> Self {
        let dir = extant_testkit::scratch();
        let path = dir.path().join("image");
        std::fs::copy(&self.path, &path).unwrap();
        Self { dir, path }
    }

    /// Offset of the entry `name` within block `block`.
    pub(crate) fn entry(&self, block: u64, name: &[u8]) -> u64 {
        let bytes = self.block(block);
        let mut at = 0;
        while at < bytes.len() {
            let (rec_len, name_len) = (u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]), bytes[at + 6]);
            if &bytes[at + 8..at + 8 + usize::from(name_len)] == name {
                return block * BS + at as u64;
            }
            at += usize::from(rec_len);
        }
        panic!("no entry {name:?}");
    }

    /// What we find.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let device = FileDevice::open(&self.path, false).unwrap();
        extant_check::check(&device, &extant_check::Options::default()).unwrap().findings
    }

    /// `e2fsck -fn`: its exit code and what it said.
    pub(crate) fn e2fsck(&self) -> (i32, String) {
        let output = extant_testkit::command("e2fsck").arg("-fn").arg(&self.path).output().unwrap();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Nothing to find, for us and for e2fsck.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let (code, says) = self.e2fsck();
        assert_eq!(code, 0, "e2fsck: {says}");
        assert_eq!(self.findings(), [], "e2fsck finds nothing");
    }
}

pub(crate) fn codes(findings: &[Finding]) -> Vec<&'static str> {
    let mut codes: Vec<_> = findings.iter().map(|finding| finding.rule.code).collect();
    codes.dedup();
    codes
}

pub(crate) fn is_damaged(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.rule.severity >= Severity::Error)
}

/// Whose verdict is the stricter one, where they differ on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judges {
    Agree,
    /// e2fsck lets it pass.
    WeAlone,
    /// We only note it.
    E2fsckAlone,
}

/// One damage after the other, each on a copy of `image`: the codes that must be among ours, and both
/// verdicts.
pub(crate) struct Cases<'i> {
    image: &'i Image,
    failed: Vec<String>,
}

impl<'i> Cases<'i> {
    pub(crate) fn on(image: &'i Image) -> Self {
        image.assert_clean();
        Self { image, failed: Vec::new() }
    }

    pub(crate) fn poke(&mut self, what: &str, code: &str, offset: u64, bytes: &[u8]) {
        self.judge(what, code, Judges::Agree, |copy| copy.poke(offset, bytes));
    }

    pub(crate) fn debugfs(&mut self, what: &str, code: &str, commands: &[&str]) {
        self.judge(what, code, Judges::Agree, |copy| copy.write(commands));
    }

    /// `code` "": nothing worse than a note.
    pub(crate) fn judge(&mut self, what: &str, code: &str, judges: Judges, damage: impl FnOnce(&Image)) {
        let copy = self.image.copy();
        damage(&copy);
        let findings = copy.findings();
        let (exit, says) = copy.e2fsck();
        let found = codes(&findings);
        let ours = is_damaged(&findings);
        let verdicts = match judges {
            Judges::Agree => ours == (exit != 0),
            Judges::WeAlone => ours && exit == 0,
            Judges::E2fsckAlone => !ours && exit != 0,
        };
        let right_code = if code.is_empty() { !ours } else { found.contains(&code) };
        if !verdicts || !right_code {
            self.failed.push(format!(
                "{what}: wanted {code:?}, {judges:?}; found {found:?}, e2fsck {exit}\n  {findings:?}\n  {says}"
            ));
        }
    }
}

impl Drop for Cases<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.failed.is_empty(), "{}", self.failed.join("\n\n"));
        }
    }
}
