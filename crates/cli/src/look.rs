//! What the commands that look into an image share: opening, finding what the command line names, messages, exit codes.
//!
//! ```text
//! IMG:PATTERN ... -> Session::targets -> Target { file system, path, inode } -> ls tree stat cat cp export df
//!                         └ messages on standard error, the worst exit code
//! ```
//!
//! Owns: which images are open, what was told about them, the exit code. Does **not** own: reading (see the library
//! `extant`), what a command prints.
//!
//! Invariants
//! 1. Images are opened for reading, each once; a journal that waits is told once.
//! 2. What cannot be had is told in one line and does not keep the rest from being done; the exit code is the worst one.
//! 3. Names reach the terminal escaped. A reader of the output that goes away (`| head`) is no error.

mod glob;
pub(crate) mod host;
pub(crate) mod outside;
pub(crate) mod print;
pub(crate) mod progress;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use extant::walk::{Order, Problem, WalkFault};
use extant::{Fault, Features, FileSystem, FileType, Follow, InodeRef, OpenFault, OpenOptions, Refusal};

use crate::exit;
use crate::imagearg::{ArgError, ImageArg};
use crate::inspect::format::{count, escape};
use glob::Glob;

/// Options of every command that opens an image for looking.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct OpenArgs {
    /// Do not look at the journal: show what stands in place, as the kernel's noload.
    #[arg(long, help_heading = "Image")]
    no_recovery: bool,
    /// The external journal, written as an image is (see below), for images that have one.
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    journal: Option<PathBuf>,
}

/// What is said of images and paths in every help.
pub(crate) const IMAGES_HELP: &str = "\
Images: IMG is a file or block device, IMG@OFFSET a file system inside of one, IMG#N its partition N.
Paths: behind a colon, from the root of the image. Patterns: * ? [a-z] {a,b}, and ** for any number of directories; \
quote them for the shell. A path that exists as it is written is no pattern.";

/// One run of a command.
pub(crate) struct Session {
    args: OpenArgs,
    open: Vec<(String, Option<FileSystem>)>,
    worst: u8,
}

/// Something that the command line names.
pub(crate) struct Target {
    /// The image as the command line has it.
    pub(crate) image: String,
    pub(crate) fs: FileSystem,
    /// Path from the root, with a slash at its beginning.
    pub(crate) path: Vec<u8>,
    pub(crate) inode: InodeRef,
}

impl Target {
    /// `IMG:/path`, for messages.
    pub(crate) fn shown(&self) -> String {
        shown(&self.image, &self.path)
    }

    /// The path's last part; empty for the root.
    pub(crate) fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// `IMG:/path`, for messages.
pub(crate) fn shown(image: &str, path: &[u8]) -> String {
    format!("{}:{}", escape(image.as_bytes()), escape(path))
}

/// A path below another: `/a` and `b/c` give `/a/b/c`; an empty one below gives the first.
pub(crate) fn below(path: &[u8], rest: &[u8]) -> Vec<u8> {
    match (path, rest) {
        (path, b"") => path.to_vec(),
        (b"/", rest) => [b"/", rest].concat(),
        (path, rest) => [path, b"/", rest].concat(),
    }
}

/// How bad an exit code is: the worst one of a run is its own.
fn rank(code: u8) -> u8 {
    match code {
        0 => 0,
        exit::NOT_FOUND => 1,
        exit::DAMAGED => 2,
        exit::UNREADABLE => 3,
        exit::USAGE_CODE => 4,
        exit::NO_SPACE => 6,
        _ => 5,
    }
}

/// The exit code of a fault.
pub(crate) fn code_of(fault: &Fault) -> u8 {
    match fault {
        Fault::Refused(Refusal::NeedsKey) => exit::DAMAGED,
        Fault::Refused(_) => exit::NOT_FOUND,
        Fault::Corrupt(_) | Fault::Device(_) => exit::DAMAGED,
    }
}

/// The exit code and the words for an image argument that cannot be used.
fn told(why: ArgError) -> (u8, String) {
    match why {
        ArgError::Usage(why) => (exit::USAGE_CODE, why),
        ArgError::Unreadable(why) => (exit::UNREADABLE, why),
    }
}

impl Session {
    pub(crate) fn new(args: &OpenArgs) -> Self {
        Self { args: args.clone(), open: Vec::new(), worst: 0 }
    }

    /// Tells a problem and remembers its code.
    pub(crate) fn problem(&mut self, code: u8, message: impl Display) {
        // Standard error is the last resort: where it is gone, the exit code still tells.
        let _ = writeln!(io::stderr(), "extant: {message}");
        self.remember(code);
    }

    /// Remembers a code whose message was told elsewhere.
    pub(crate) fn remember(&mut self, code: u8) {
        if rank(code) > rank(self.worst) {
            self.worst = code;
        }
    }

    /// Tells what is wrong with a path.
    pub(crate) fn fault(&mut self, shown: impl Display, fault: &Fault) {
        self.problem(code_of(fault), format_args!("{shown}: {fault}"));
    }

    /// Tells what a walk from `target` could not walk.
    pub(crate) fn walk_fault(&mut self, target: &Target, fault: &WalkFault) {
        let code = match &fault.problem {
            // An entry of a directory that leads nowhere is damage, not a mistake of the command line.
            Problem::Fault(Fault::Refused(_)) | Problem::SecondWay(_) | Problem::TooDeep => exit::DAMAGED,
            Problem::Fault(fault) => code_of(fault),
        };
        let path = below(&target.path, &fault.path);
        self.problem(code, format_args!("{}: {}", shown(&target.image, &path), fault.problem));
    }

    /// The file system of an image; `None` after telling why not.
    pub(crate) fn open(&mut self, image: &ImageArg) -> Option<FileSystem> {
        let name = image.to_string();
        if let Some((_, fs)) = self.open.iter().find(|(known, _)| *known == name) {
            return fs.clone();
        }
        let fs = match self.open_new(image) {
            Ok(fs) => Some(fs),
            Err((code, why)) => {
                self.problem(code, why);
                None
            }
        };
        if let Some(fs) = &fs {
            self.tell_recovery(&name, fs);
        }
        self.open.push((name, fs.clone()));
        fs
    }

    fn open_new(&self, image: &ImageArg) -> Result<FileSystem, (u8, String)> {
        let unreadable = |why: &dyn Display| {
            (exit::UNREADABLE, format!("{}: {why}", escape(image.to_string().as_bytes())))
        };
        let device = image.open_read_only().map_err(told)?;
        let journal_device = match &self.args.journal {
            None => None,
            Some(path) => {
                let opened = ImageArg::parse(path.as_os_str()).and_then(|journal| journal.open_read_only());
                let journal = |(code, why)| (code, format!("the journal: {why}"));
                Some(opened.map_err(told).map_err(journal)?)
            }
        };
        let options =
            OpenOptions { no_recovery: self.args.no_recovery, journal_device, ..OpenOptions::default() };
        FileSystem::from_device(device, &options).map_err(|why| match why {
            OpenFault::Journal(why) => unreadable(&format_args!(
                "{why}; --journal FILE names a journal elsewhere, --no-recovery shows what stands in place"
            )),
            other => unreadable(&other),
        })
    }

    fn tell_recovery(&mut self, name: &str, fs: &FileSystem) {
        let recovery = fs.volume().recovery();
        let mut lines = Vec::new();
        let waits = fs.volume().superblock().features.has_incompat(Features::RECOVER);
        if self.args.no_recovery && waits {
            lines.push("the journal waits for replay; shown without it".to_owned());
        } else if recovery.needed {
            let mut what = count(recovery.transactions, "transaction");
            if recovery.fast_commit_records > 0 {
                what = format!("{what} and {}", count(recovery.fast_commit_records, "fast-commit record"));
            }
            lines.push(format!("the journal holds {what} that were not replayed; shown as after replay"));
        }
        lines.extend(recovery.problems.iter().cloned());
        for line in lines {
            let _ = writeln!(io::stderr(), "extant: {}: note: {line}", escape(name.as_bytes()));
        }
    }

    /// What the command line names, patterns matched. What is not there is told.
    pub(crate) fn targets(&mut self, args: &[OsString], follow: Follow) -> Vec<Target> {
        let mut targets = Vec::new();
        for arg in args {
            self.add_targets(arg, follow, &mut targets);
        }
        targets
    }

    fn add_targets(&mut self, arg: &OsStr, follow: Follow, targets: &mut Vec<Target>) {
        let image = match ImageArg::parse(arg) {
            Ok(image) => image,
            Err(why) => {
                let (code, why) = told(why);
                return self.problem(code, why);
            }
        };
        let Some(fs) = self.open(&image) else { return };
        let name = image.to_string();
        let given = image.inner_path.as_deref().map_or(&b"/"[..], |path| path.as_os_str().as_bytes());
        // As for system calls, a slash at the end asks for the directory behind a link.
        let follow = if given.ends_with(b"/") { Follow::Links } else { follow };
        let path = normal(given);
        let (fault, pattern) = match fs.resolve(OsStr::from_bytes(&path), follow) {
            Ok(inode) => return targets.push(Target { image: name, fs, path, inode }),
            Err(error) => (error, glob::is_pattern(given)),
        };
        if !pattern {
            return self.library_error(&name, &path, fault);
        }
        let globs = match Glob::parse(given) {
            Ok(globs) => globs,
            Err(why) => {
                return self.problem(exit::USAGE_CODE, format_args!("{}: {why}", shown(&name, given)));
            }
        };
        let before = targets.len();
        for glob in globs {
            self.expand(&name, &fs, glob, follow, targets);
        }
        if targets.len() == before && self.worst == 0 {
            self.problem(exit::NOT_FOUND, format_args!("{}: nothing matches", shown(&name, given)));
        }
    }

    /// Adds what a pattern matches, in byte order.
    fn expand(&mut self, name: &str, fs: &FileSystem, glob: Glob, follow: Follow, targets: &mut Vec<Target>) {
        let base = if glob.base.is_empty() { b"/".to_vec() } else { glob.base.clone() };
        let base_follow = if glob.is_literal() { follow } else { Follow::Links };
        // Of alternatives, those that do not exist say nothing.
        let Ok(inode) = fs.resolve(OsStr::from_bytes(&base), base_follow) else { return };
        let root = Target { image: name.to_owned(), fs: fs.clone(), path: base, inode };
        if glob.is_literal() {
            targets.push(root);
            return;
        }
        if root.inode.kind() != FileType::Directory {
            return;
        }
        let glob = Arc::new(glob);
        let enter = Arc::clone(&glob);
        let mut walk = fs.walk_inode(Arc::clone(&root.inode)).order(Order::Names).inodes(false);
        if let Some(depth) = glob.depth() {
            walk = walk.depth_max(depth);
        }
        for entry in walk.enter_if(move |path| enter.could_match_below(path)) {
            match entry {
                Ok(entry) if entry.depth() > 0 && glob.matches(entry.path()) => match entry.inode() {
                    Ok(inode) => {
                        let path = below(&root.path, entry.path());
                        let inode = match follow {
                            Follow::Links if inode.kind() == FileType::Symlink => {
                                match fs.resolve(OsStr::from_bytes(&path), follow) {
                                    Ok(inode) => inode,
                                    Err(error) => {
                                        self.library_error(name, &path, error);
                                        continue;
                                    }
                                }
                            }
                            _ => inode,
                        };
                        targets.push(Target { image: name.to_owned(), fs: fs.clone(), path, inode });
                    }
                    Err(fault) => self.fault(shown(name, &below(&root.path, entry.path())), &fault),
                },
                Ok(_) => {}
                Err(fault) => self.walk_fault(&root, &fault),
            }
        }
    }

    fn library_error(&mut self, image: &str, path: &[u8], error: extant::Error) {
        match error {
            extant::Error::At { fault, .. } => self.fault(shown(image, path), &fault),
            other => self.problem(exit::UNREADABLE, other),
        }
    }

    /// The exit code after all output was written, or could not be.
    pub(crate) fn finish(mut self, printed: io::Result<()>) -> ExitCode {
        match printed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => {
                let code = if error.raw_os_error() == Some(28) { exit::NO_SPACE } else { exit::TARGET };
                self.problem(code, format_args!("cannot write the output: {error}"));
            }
            Ok(()) => {}
        }
        ExitCode::from(self.worst)
    }
}

/// Standard output, buffered.
pub(crate) fn output() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// A path with one slash at its beginning, none at its end, and no empty parts.
fn normal(path: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(path.len() + 1);
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        normal.push(b'/');
        normal.extend_from_slice(part);
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    normal
}

/// Is the file a terminal, block device, pipe or the like, which cannot be replaced by a new file?
pub(crate) fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}
