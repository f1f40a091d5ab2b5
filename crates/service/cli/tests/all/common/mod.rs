//! Shared parts of the tests: running the binary, writing tar archives, judging images.
//!
//! Each test file uses some of them.

#![allow(dead_code)]

pub(crate) mod image;
pub(crate) mod mounted;
pub(crate) mod schemas;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use extant_testkit::{DiffOptions, LoopMount, Manifest, diff};
use serde_json::Value;

/// Exit codes, as `extant --help` lists them.
pub(crate) const USAGE: i32 = 2;
pub(crate) const SOURCE: i32 = 3;
pub(crate) const TOO_SMALL: i32 = 5;
pub(crate) const EXISTS: i32 = 6;
pub(crate) const NO_SPACE: i32 = 7;

/// The result of a run of the binary: its exit code (or 128 plus the signal) and its output.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) line: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Asserts the exit code. Returns the error output.
    #[track_caller]
    pub(crate) fn code(&self, code: i32) -> &str {
        assert!(
            self.code == code,
            "`{}` ended with {}, not {code}\n{}\n{}",
            self.line,
            self.code,
            self.stdout,
            self.stderr
        );
        &self.stderr
    }

    /// Asserts success, and parses the JSON report.
    #[track_caller]
    pub(crate) fn report(&self) -> Value {
        self.code(0);
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("`{}`: {e}\n{}", self.line, self.stdout))
    }
}

/// The binary under test, without environment variables that change images.
pub(crate) fn extant() -> Command {
    let mut command = extant_testkit::command(env!("CARGO_BIN_EXE_extant"));
    for name in ["SOURCE_DATE_EPOCH", "CLICOLOR_FORCE", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a prepared command to its end.
pub(crate) fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    outcome_of(command, output)
}

fn outcome_of(command: &Command, output: Output) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if command.get_args().any(|arg| arg == "--json") {
        schemas::check(&format!("{command:?}"), &text(&output.stdout));
    }
    Outcome { line: format!("{command:?}"), code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Runs the binary with these arguments.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    outcome(extant().args(args))
}

/// Runs `extant build --json -o IMAGE ARGS...` and returns its outcome.
pub(crate) fn try_build<S: AsRef<OsStr>>(image: &Path, args: impl IntoIterator<Item = S>) -> Outcome {
    outcome(extant().args(["build", "--json", "--no-sync", "-o"]).arg(image).args(args))
}

/// Builds an image, asserts success, and returns the report.
#[track_caller]
pub(crate) fn build<S: AsRef<OsStr>>(image: &Path, args: impl IntoIterator<Item = S>) -> Value {
    try_build(image, args).report()
}

/// Builds an image from a tar archive that another thread writes into the binary's standard input.
pub(crate) fn build_from_stream<S: AsRef<OsStr>>(
    image: &Path,
    args: impl IntoIterator<Item = S>,
    write: impl FnOnce(&mut Tar<std::io::BufWriter<std::process::ChildStdin>>) + Send,
) -> Outcome {
    let mut command = extant();
    command.args(["build", "--json", "--no-sync", "--tar", "-", "-o"]).arg(image).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdin = child.stdin.take().expect("piped");
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut tar = Tar::new(std::io::BufWriter::with_capacity(1 << 20, stdin));
            write(&mut tar);
            tar.finish();
        });
        child.wait_with_output().expect("the binary's output")
    });
    outcome_of(&command, output)
}

/// Arguments of mixed kinds: `args!["--from", &path, "-b", "1024"]`.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$(std::ffi::OsString::from($arg)),*] };
}

/// Splits a string of arguments at blanks.
pub(crate) fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// Asserts that a directory contains exactly these names: no image, no temporary file of a failed build.
#[track_caller]
pub(crate) fn assert_names(dir: &Path, expected: &[&str]) {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, expected);
}

/// Asserts that a text contains another.
#[track_caller]
pub(crate) fn assert_has(text: &str, part: &str) {
    assert!(text.contains(part), "no {part:?} in:\n{text}");
}

/// Mounts an image with the kernel and asserts that it equals its source. Without root, prints a note and
/// does nothing.
#[track_caller]
pub(crate) fn assert_mounts_equal(image: &Path, source: &Manifest, options: &DiffOptions) {
    if !extant_testkit::is_root() {
        eprintln!("not root: {} is not mounted and compared", image.display());
        return;
    }
    let mount = LoopMount::read_only(image).unwrap_or_else(|error| panic!("{error}"));
    let lines = diff(source, &Manifest::of(mount.path()), options);
    assert!(lines.is_empty(), "{}:\n{}", image.display(), lines.join("\n"));
}

/// The output of `debugfs -R "stat PATH"`.
pub(crate) fn debugfs_stat(image: &Path, path: &str) -> String {
    extant_testkit::debugfs(image, &format!("stat \"{path}\""))
}

/// The contents of a small file of an image.
pub(crate) fn debugfs_cat(image: &Path, path: &str) -> String {
    extant_testkit::debugfs(image, &format!("cat \"{path}\""))
}

/// The names in a directory of an image, sorted, without "." and "..".
pub(crate) fn debugfs_names(image: &Path, path: &str) -> Vec<String> {
    let listing = extant_testkit::debugfs(image, &format!("ls -p \"{path}\""));
    let names =
        listing.lines().filter_map(|line| line.split('/').nth(5)).filter(|name| !matches!(*name, "." | ".."));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// A field of `dumpe2fs -h`, by its label.
pub(crate) fn superblock_field(image: &Path, label: &str) -> String {
    extant_testkit::dumpe2fs(image).field(label).to_owned()
}

/// The default mtime of all entries of [`Tar`]: 2020-01-01.
pub(crate) const TAR_TIME: i64 = 1_577_836_800;

/// A tar archive being written, with exactly the headers that a test needs.
pub(crate) struct Tar<W: Write> {
    out: W,
    /// Owner of the following entries.
    pub(crate) owner: (u32, u32),
    /// pax records of the next entry.
    records: Vec<u8>,
}

impl Tar<Vec<u8>> {
    /// An archive in memory.
    pub(crate) fn in_memory() -> Self {
        Self::new(Vec::new())
    }

    /// The complete archive with its end mark.
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.out.extend_from_slice(&[0; 1024]);
        self.out
    }

    /// Writes the complete archive to a file and returns its path.
    pub(crate) fn save(self, path: impl Into<PathBuf>) -> PathBuf {
        let path = path.into();
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

impl<W: Write> Tar<W> {
    /// An archive written to `out`.
    pub(crate) fn new(out: W) -> Self {
        Self { out, owner: (0, 0), records: Vec::new() }
    }

    /// Writes the end mark. Ignores a closed reader: its exit code shows that.
    pub(crate) fn finish(&mut self) {
        let _ = self.out.write_all(&[0; 1024]).and_then(|()| self.out.flush());
    }

    /// Adds a pax record to the next entry.
    pub(crate) fn pax(&mut self, key: &str, value: impl AsRef<[u8]>) -> &mut Self {
        let body = [b" ", key.as_bytes(), b"=", value.as_ref(), b"\n"].concat();
        // The length counts its own digits.
        let mut len = body.len() + 1;
        while len != body.len() + len.to_string().len() {
            len = body.len() + len.to_string().len();
        }
        self.records.extend_from_slice(len.to_string().as_bytes());
        self.records.extend_from_slice(&body);
        self
    }

    /// Adds a member: its type byte, mode, name, link name and contents.
    pub(crate) fn member(
        &mut self,
        kind: u8,
        mode: u32,
        name: &[u8],
        link: &[u8],
        content: &[u8],
    ) -> &mut Self {
        if name.len() > 100 {
            self.pax("path", name);
        }
        if link.len() > 100 {
            self.pax("linkpath", link);
        }
        for (key, id) in [("uid", self.owner.0), ("gid", self.owner.1)] {
            if id > 0o7_777_777 {
                self.pax(key, id.to_string());
            }
        }
        if !self.records.is_empty() {
            let records = std::mem::take(&mut self.records);
            self.block(b'x', 0o644, b"pax", b"", &records);
        }
        self.block(kind, mode, name, link, content)
    }

    fn block(&mut self, kind: u8, mode: u32, name: &[u8], link: &[u8], content: &[u8]) -> &mut Self {
        let mut header = [0u8; 512];
        let (name, link) = (&name[..name.len().min(100)], &link[..link.len().min(100)]);
        header[..name.len()].copy_from_slice(name);
        header[157..157 + link.len()].copy_from_slice(link);
        let mut field = |at: usize, len: usize, value: u64| {
            header[at..at + len].copy_from_slice(format!("{value:0width$o}\0", width = len - 1).as_bytes());
        };
        field(100, 8, mode.into());
        field(108, 8, (self.owner.0 & 0o7_777_777).into());
        field(116, 8, (self.owner.1 & 0o7_777_777).into());
        field(124, 12, content.len() as u64);
        field(136, 12, TAR_TIME as u64);
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let padding = content.len().next_multiple_of(512) - content.len();
        let parts = [&header[..], content, &[0; 512][..padding]];
        for part in parts {
            // The reader may have refused the archive and ended; the test checks its message.
            let _ = self.out.write_all(part);
        }
        self
    }

    pub(crate) fn file(&mut self, name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> &mut Self {
        self.member(b'0', 0o644, name.as_ref(), b"", content.as_ref())
    }

    pub(crate) fn dir(&mut self, name: impl AsRef<[u8]>) -> &mut Self {
        self.member(b'5', 0o755, name.as_ref(), b"", b"")
    }

    pub(crate) fn symlink(&mut self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> &mut Self {
        self.member(b'2', 0o777, name.as_ref(), target.as_ref(), b"")
    }

    pub(crate) fn link(&mut self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> &mut Self {
        self.member(b'1', 0o644, name.as_ref(), target.as_ref(), b"")
    }
}

/// Removes a file; panics on an error.
pub(crate) fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Compresses bytes in the format of this extension: `gz`, `zst`, `xz`.
pub(crate) fn pack(extension: &str, bytes: &[u8]) -> Vec<u8> {
    match extension {
        "gz" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        "zst" => zstd::encode_all(bytes, 1).unwrap(),
        "xz" => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        other => panic!("no packer for {other}"),
    }
}
