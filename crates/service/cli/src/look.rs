//! Shared by the commands that read or edit an image: opening images, finding the paths of the command line,
//! messages, exit codes.
//!
//! ```text
//! IMG:PATTERN ... -> Session::targets -> ExistingFile { fs, path, inode } -> ls tree stat cat cp export df
//!                         └ messages on standard error, the worst exit code
//! ```
//!
//! Owns: the open images, the problems reported about them, the exit code. Does **not** own: reading (see the
//! library `extant`), a command's output.
//!
//! Invariants
//! 1. Each image is opened once, for reading unless the session [writes](Session::writing). A dirty journal
//!    is reported once. The changes of a session are written at its end, or not at all.
//! 2. A problem is reported in one line and the command continues with the rest; the exit code is the worst
//!    one.
//! 3. Names are escaped before they reach the terminal. A pipe that its reader closes (`| head`) is no error.

mod absent;
pub(crate) mod glob;
pub(crate) mod host;
pub(crate) mod leave_out;
pub(crate) mod outside;
pub(crate) mod print;
pub(crate) mod progress;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use extant::walk::{Order, Problem, WalkFault};
use extant::{
    BySuperblock, DefaultOptions, Device, Fault, Features, FileSystem, FileType, Follow, InodeRef,
    MountGuard, OpenFault, OpenOptions, Refusal, WriteOptions,
};
use extant_base::Ino;

use crate::edit::staged::{HoldPolicy, Staged};
use crate::exit;
use crate::imagearg::{ArgError, ImageArg, LockError, by_number};
use crate::inspect::format::{count, escape};
use crate::manners::is_quiet;
use crate::sandbox::{self, Needs};
use crate::usage;
use crate::voice::{self, say};
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
    /// Read by a backup superblock: of block N, as mke2fs prints it and e2fsck -b takes it, or the first that
    /// is found. Without this a backup is used only where the primary is damaged.
    #[arg(long, value_name = "N|auto", help_heading = "Image", value_parser = backup)]
    backup: Option<BySuperblock>,
}

/// Parses `--backup`: a block number, or `auto`.
pub(crate) fn backup(text: &str) -> Result<BySuperblock, String> {
    match text {
        "auto" => Ok(BySuperblock::AnyBackup),
        number => number
            .parse()
            .map(BySuperblock::Backup)
            .map_err(|_| "a block number is wanted, like 32768, or `auto`".to_owned()),
    }
}

impl OpenArgs {
    /// Whether `--backup` is given, which is for reading only.
    pub(crate) fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// Whether the journal must not be replayed.
    pub(crate) fn is_without_recovery(&self) -> bool {
        self.no_recovery
    }

    /// Options with which the journal is replayed. `journal`: the external journal, if there is one.
    pub(crate) fn with_journal(journal: Option<PathBuf>) -> Self {
        Self { no_recovery: false, journal, backup: None }
    }
}

/// The part of the help about images and paths, shared by the commands.
pub(crate) const IMAGES_HELP: &str = "\
Images: IMG is a file or block device, IMG@OFFSET a file system inside of one, IMG#N its partition N.
Paths: behind a colon, from the root of the image; <13> is inode 13, <13>/PATH a path from there. Patterns: * ? [a-z] {a,b}, and ** for any number of directories; \
quote them for the shell. A path that exists as it is written is no pattern.";

/// One run of a command.
pub(crate) struct Session {
    args: OpenArgs,
    open: Vec<Open>,
    worst: u8,
    /// How a session that writes holds its writes back; `None` for one that reads.
    hold_policy: Option<HoldPolicy>,
    /// The image of all paths, if they come without one (in a script).
    pub(crate) image: Option<ImageArg>,
    /// The prefix of each message: the line of a script.
    pub(crate) context: String,
    /// The number of reported problems.
    pub(crate) problems: u64,
    /// A problem of the command line was reported.
    misused: bool,
    /// The images that were changed.
    changed: Vec<String>,
    /// Devices that were opened before the process was confined, by the names of their images.
    devices: HashMap<String, Result<Devices, (u8, String)>>,
    /// Arguments that named no image when the process was confined. Afterwards it cannot list directories to
    /// suggest another.
    refused: HashMap<OsString, (u8, String)>,
}

/// An image, and its external journal.
type Devices = (Arc<dyn Device>, Option<Arc<dyn Device>>);

/// An image that was opened.
struct Open {
    name: String,
    /// `None` if it could not be opened.
    fs: Option<FileSystem>,
    staged: Option<Arc<Staged>>,
    /// The image and its lock, if it is open for writing.
    device: Option<Arc<dyn Device>>,
    /// Locks other machines out until all is written, if the file system has the feature `mmp`.
    guard: Option<MountGuard>,
}

/// A path of the command line that need not exist.
pub(crate) struct Named {
    /// The image as the command line spells it.
    pub(crate) image: String,
    pub(crate) fs: FileSystem,
    /// The path from the root, with a slash at its beginning. A slash at the end is kept.
    pub(crate) path: Vec<u8>,
}

impl Named {
    /// `IMG:/path`, for messages.
    pub(crate) fn shown(&self) -> String {
        shown(&self.image, &self.path)
    }
}

/// A file of the command line that exists.
pub(crate) struct ExistingFile {
    /// The image as the command line spells it.
    pub(crate) image: String,
    pub(crate) fs: FileSystem,
    /// The path from the root, with a slash at its beginning.
    pub(crate) path: Vec<u8>,
    pub(crate) inode: InodeRef,
}

impl ExistingFile {
    /// `IMG:/path`, for messages.
    pub(crate) fn shown(&self) -> String {
        shown(&self.image, &self.path)
    }

    /// The last component of the path; empty for the root. An inode named by its number has that as its name,
    /// unless it is a directory: that has no name, like the root.
    pub(crate) fn name(&self) -> &[u8] {
        if by_number(&self.path).is_some_and(|(_, rest)| rest.is_empty()) {
            let is_dir = self.inode.kind() == FileType::Directory;
            return if is_dir { b"" } else { &self.path[1..self.path.len() - 1] };
        }
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// `IMG:/path`, for messages.
pub(crate) fn shown(image: &str, path: &[u8]) -> String {
    format!("{}:{}", escape(image.as_bytes()), escape(path))
}

/// Appends a path to another: `/a` and `b/c` give `/a/b/c`. An empty second path gives the first.
pub(crate) fn below(path: &[u8], rest: &[u8]) -> Vec<u8> {
    match (path, rest) {
        (path, b"") => path.to_vec(),
        (b"/", rest) => [b"/", rest].concat(),
        (path, rest) => [path, b"/", rest].concat(),
    }
}

/// The rank of an exit code; a run exits with the code of the highest rank.
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
        Fault::Refused(refusal) => match refusal {
            Refusal::NeedsKey => exit::DAMAGED,
            Refusal::Exists => exit::EXISTS,
            Refusal::NoSpace | Refusal::NoInodes => exit::NO_SPACE,
            Refusal::ReadOnly
            | Refusal::NotPermitted
            | Refusal::TooManyNames
            | Refusal::TooLarge
            | Refusal::ValueTooLong
            | Refusal::Range
            | Refusal::Denied
            | Refusal::Busy
            | Refusal::NotSupported
            | Refusal::OtherProject => exit::TARGET,
            _ => exit::NOT_FOUND,
        },
        Fault::Corrupt(_) | Fault::Device(_) => exit::DAMAGED,
        Fault::NotFlushed(_) | Fault::LostWrite | Fault::Aborted(_) | Fault::Stopped(_) | Fault::ShutDown => {
            exit::TARGET
        }
    }
}

/// The exit code and message for an image argument that cannot be used.
pub(crate) fn arg_failure(why: ArgError) -> (u8, String) {
    match why {
        ArgError::Usage(why) => (exit::USAGE_CODE, why),
        ArgError::Unreadable(why) => (exit::UNREADABLE, why),
    }
}

/// As [`arg_failure`], for an image that cannot be opened for writing.
pub(crate) fn lock_failure(why: LockError) -> (u8, String) {
    match why {
        LockError::Arg(why) => arg_failure(why),
        LockError::Unwritable(why) => (exit::TARGET, why),
        LockError::Busy(why) => (exit::BUSY, why),
    }
}

impl Session {
    pub(crate) fn new(args: &OpenArgs) -> Self {
        Self {
            args: args.clone(),
            open: Vec::new(),
            worst: 0,
            hold_policy: None,
            image: None,
            context: String::new(),
            problems: 0,
            misused: false,
            changed: Vec::new(),
            devices: HashMap::new(),
            refused: HashMap::new(),
        }
    }

    /// A session that writes: it opens images for writing and locks them.
    pub(crate) fn writing(args: &OpenArgs, hold_policy: HoldPolicy) -> Self {
        Self { hold_policy: Some(hold_policy), ..Self::new(args) }
    }

    /// Reports a problem and records its exit code.
    pub(crate) fn problem(&mut self, code: u8, message: impl Display) {
        say!("{}{message}", self.context);
        self.problems += 1;
        // The lines of a script have no usage of their own.
        self.misused |= code == exit::USAGE_CODE && self.context.is_empty();
        self.remember(code);
    }

    /// Records an exit code whose message was already printed.
    pub(crate) fn remember(&mut self, code: u8) {
        if rank(code) > rank(self.worst) {
            self.worst = code;
        }
    }

    /// Reports a fault of a path.
    pub(crate) fn fault(&mut self, shown: impl Display, fault: &Fault) {
        let remedy = match fault {
            Fault::Refused(Refusal::IsDirectory) => "; `extant ls` lists it, `extant cp -r` copies it",
            Fault::Refused(Refusal::NotDirectory) => "; a file is on the way, `extant stat` shows it",
            _ => "",
        };
        self.problem(code_of(fault), format_args!("{shown}: {fault}{remedy}"));
    }

    /// Reports a fault of a walk from `target`.
    pub(crate) fn walk_fault(&mut self, target: &ExistingFile, fault: &WalkFault) {
        let code = match &fault.problem {
            // A directory entry without an inode is damage, not a mistake of the command line.
            Problem::Fault(Fault::Refused(_)) | Problem::SecondWay(_) | Problem::TooDeep => exit::DAMAGED,
            Problem::Fault(fault) => code_of(fault),
        };
        let path = below(&target.path, &fault.path);
        self.problem(code, format_args!("{}: {}", shown(&target.image, &path), fault.problem));
    }

    /// The file system of an image; `None` after reporting a problem.
    pub(crate) fn open(&mut self, image: &ImageArg) -> Option<FileSystem> {
        let name = image.to_string();
        if let Some(known) = self.open.iter().find(|known| known.name == name) {
            return known.fs.clone();
        }
        let opened = match self.hold_policy {
            None => self.open_new(image).map(|fs| (fs, None, None, None)),
            Some(hold_policy) => self.open_to_write(image, hold_policy),
        };
        let (fs, staged, guard, device) = match opened {
            Ok((fs, staged, guard, device)) => (Some(fs), staged, guard, device),
            Err((code, why)) => {
                self.problem(code, why);
                (None, None, None, None)
            }
        };
        if let Some(fs) = &fs {
            self.report_recovery(&name, fs);
            self.report_damage(&name, fs.volume().damage());
        }
        self.open.push(Open { name, fs: fs.clone(), staged, device, guard });
        fs
    }

    /// The device of an image that is open for writing. The image is locked until it is dropped.
    pub(crate) fn device(&self, image: &ImageArg) -> Option<Arc<dyn Device>> {
        let name = image.to_string();
        self.open.iter().find(|known| known.name == name).and_then(|known| known.device.clone())
    }

    fn open_to_write(&self, image: &ImageArg, hold_policy: HoldPolicy) -> Result<Writable, (u8, String)> {
        let failed =
            |code, why: &dyn Display| (code, format!("{}: {why}", escape(image.to_string().as_bytes())));
        let device = image.open_locked().map_err(lock_failure)?;
        let journal_device = match &self.args.journal {
            None => None,
            Some(path) => {
                let opened = ImageArg::parse(path.as_os_str())
                    .map_err(LockError::Arg)
                    .and_then(|journal| journal.open_locked());
                let journal = |(code, why)| (code, format!("the journal: {why}"));
                Some(opened.map_err(lock_failure).map_err(journal)?)
            }
        };
        let not_opened = |why| match why {
            OpenFault::Unwritable(_) => failed(exit::TARGET, &why),
            OpenFault::InUse(_) => failed(exit::BUSY, &why),
            OpenFault::Journal(_) => failed(exit::UNREADABLE, &why_journal(&why)),
            OpenFault::Overwritten(_) => {
                failed(exit::UNREADABLE, &format_args!("{why} (`--backup auto` reads by it)"))
            }
            other => failed(exit::UNREADABLE, &other),
        };
        let say = crate::waiting::say(escape(image.to_string().as_bytes()));
        let guard = MountGuard::claim(&device, &say).map_err(not_opened)?;
        // Writes to an external journal must not overtake the writes that are held back, so none are held
        // back then.
        let staged = match (&journal_device, hold_policy) {
            (_, HoldPolicy::Nothing) | (Some(_), HoldPolicy::UntilFull) => None,
            (None, hold_policy) => Some(Arc::new(Staged::new(device.clone(), hold_policy))),
            (Some(_), HoldPolicy::All) => {
                let why = "with an external journal, changes are written as they come; --keep-going says that this is meant";
                return Err(failed(exit::USAGE_CODE, &why));
            }
        };
        let target: Arc<dyn Device> = match &staged {
            Some(staged) => Arc::<Staged>::clone(staged),
            None => Arc::clone(&device),
        };
        // One commit at the end, and none before.
        let asked = DefaultOptions::of_device(&*target);
        let write =
            WriteOptions { no_committer: true, is_guarded: true, is_no_mount: true, ..asked.write_options() };
        let options = OpenOptions { journal_device, write, ..OpenOptions::default() };
        let opened = FileSystem::from_device_writable(target, &options).map_err(not_opened)?;
        if let Some(guard) = &guard {
            opened.volume().guard_with(guard);
        }
        Ok((opened, staged, guard, Some(device)))
    }

    /// Opens the images of the command line, and confines the process before their contents are looked at.
    /// `needs`: what the command opens afterwards.
    pub(crate) fn confine(&mut self, args: &[OsString], needs: &Needs) {
        let mut images = Vec::new();
        for arg in args {
            match ImageArg::parse(arg) {
                Ok(image) => images.push(image),
                // It is reported in its place.
                Err(why) => {
                    self.refused.insert(arg.clone(), arg_failure(why));
                }
            }
        }
        for image in &images {
            let name = image.to_string();
            if !self.devices.contains_key(&name) {
                let opened = self.open_devices(image);
                self.devices.insert(name, opened);
            }
        }
        let names: Vec<String> = images.iter().map(|image| escape(image.to_string().as_bytes())).collect();
        sandbox::confine(&names.join(", "), needs);
    }

    fn open_devices(&self, image: &ImageArg) -> Result<Devices, (u8, String)> {
        let device = image.open_read_only().map_err(arg_failure)?;
        let journal_device = match &self.args.journal {
            None => None,
            Some(path) => {
                let opened = ImageArg::parse(path.as_os_str()).and_then(|journal| journal.open_read_only());
                let journal = |(code, why)| (code, format!("the journal: {why}"));
                Some(opened.map_err(arg_failure).map_err(journal)?)
            }
        };
        Ok((device, journal_device))
    }

    fn open_new(&mut self, image: &ImageArg) -> Result<FileSystem, (u8, String)> {
        let unreadable = |why: &dyn Display| {
            (exit::UNREADABLE, format!("{}: {why}", escape(image.to_string().as_bytes())))
        };
        let opened = self.devices.remove(&image.to_string());
        let (device, journal_device) = opened.unwrap_or_else(|| self.open_devices(image))?;
        let options = OpenOptions {
            no_recovery: self.args.no_recovery,
            journal_device,
            superblock: self.args.backup.unwrap_or_default(),
            ..OpenOptions::default()
        };
        FileSystem::from_device(device, &options).map_err(|why| match why {
            OpenFault::Journal(why) => unreadable(&format_args!(
                "{why}; --journal FILE names a journal elsewhere, --no-recovery shows what stands in place"
            )),
            other => unreadable(&other),
        })
    }

    /// Reports tolerated damage of the image as a whole.
    fn report_damage(&mut self, name: &str, lines: &[String]) {
        for line in lines {
            self.problem(exit::DAMAGED, format_args!("{}: note: {line}", escape(name.as_bytes())));
        }
    }

    fn report_recovery(&mut self, name: &str, fs: &FileSystem) {
        let recovery = fs.volume().recovery();
        let mut lines = Vec::new();
        lines.extend(fs.volume().note().map(str::to_owned));
        let waits = fs.volume().superblock().features.has_incompat(Features::RECOVER);
        if self.hold_policy.is_some() {
            if recovery.needed {
                let what = count(recovery.transactions, "transaction");
                lines
                    .push(format!("the journal held {what} that were not replayed; they are replayed first"));
            }
        } else if self.args.no_recovery && waits {
            lines.push("the journal waits for replay; shown without it".to_owned());
        } else if recovery.needed {
            let mut what = count(recovery.transactions, "transaction");
            if recovery.fast_commit_records > 0 {
                what = format!("{what} and {}", count(recovery.fast_commit_records, "fast-commit record"));
            }
            lines.push(format!("the journal holds {what} that were not replayed; shown as after replay"));
        }
        lines.extend(recovery.problems.iter().cloned());
        for line in lines.iter().filter(|_| !is_quiet()) {
            say!("{}: note: {line}", escape(name.as_bytes()));
        }
    }

    /// The targets of the command line, with patterns expanded. Missing files are reported.
    pub(crate) fn targets(&mut self, args: &[OsString], follow: Follow) -> Vec<ExistingFile> {
        let mut targets = Vec::new();
        for arg in args {
            self.add_targets(arg, follow, &mut targets);
        }
        targets
    }

    /// The image of an argument, with the path inside, and its opened file system. Problems are reported.
    fn image_of(&mut self, arg: &OsStr) -> Option<(ImageArg, FileSystem)> {
        if let Some((code, why)) = self.refused.remove(arg) {
            self.problem(code, why);
            return None;
        }
        let parsed = match &self.image {
            Some(image) => Ok(ImageArg { inner_path: Some(PathBuf::from(arg)), ..image.clone() }),
            None => ImageArg::parse(arg),
        };
        match parsed {
            Ok(image) => self.open(&image).map(|fs| (image, fs)),
            Err(why) => {
                self.argument_error(why);
                None
            }
        }
    }

    /// The image of an argument that must not name a path inside; `None` after reporting a problem. `what`:
    /// what is done to the whole file system, for the message.
    pub(crate) fn whole_image(&mut self, arg: &OsStr, what: &str) -> Option<ImageArg> {
        ImageArg::parse_whole(arg, what).map_err(|error| self.argument_error(error)).ok()
    }

    /// The remedy for a path that is not in an image that is open.
    pub(crate) fn absent_inside(&self, image: &str, path: &[u8]) -> Option<String> {
        let open = self.open.iter().find(|open| open.name == image)?;
        Some(absent::remedy(image, open.fs.as_ref()?, path))
    }

    /// Reports a problem of an image argument.
    pub(crate) fn argument_error(&mut self, why: ArgError) {
        let (code, why) = arg_failure(why);
        self.problem(code, why);
    }

    /// A path taken literally, which need not exist; `None` after reporting a problem.
    pub(crate) fn named(&mut self, arg: &OsStr) -> Option<Named> {
        let (image, fs) = self.image_of(arg)?;
        let Some(given) = image.inner_path.as_deref().map(|path| path.as_os_str().as_bytes()) else {
            let why = "a path is missing, like";
            let arg = escape(arg.as_bytes());
            self.problem(exit::USAGE_CODE, format_args!("{arg}: {why} {arg}:/etc"));
            return None;
        };
        let mut path = normal(given);
        if given.ends_with(b"/") && path != b"/" {
            path.push(b'/');
        }
        Some(Named { image: image.to_string(), fs, path })
    }

    /// The targets of an argument, with patterns expanded. If there are none, the result is empty and nothing
    /// is reported.
    pub(crate) fn targets_if_there(&mut self, arg: &OsStr, follow: Follow) -> Vec<ExistingFile> {
        let mut targets = Vec::new();
        self.find_targets(arg, follow, false, &mut targets);
        targets
    }

    fn add_targets(&mut self, arg: &OsStr, follow: Follow, targets: &mut Vec<ExistingFile>) {
        self.find_targets(arg, follow, true, targets);
    }

    fn find_targets(
        &mut self,
        arg: &OsStr,
        follow: Follow,
        is_wanted: bool,
        targets: &mut Vec<ExistingFile>,
    ) {
        let Some((image, fs)) = self.image_of(arg) else { return };
        let name = image.to_string();
        let given = image.inner_path.as_deref().map_or(&b"/"[..], |path| path.as_os_str().as_bytes());
        // As in system calls, a slash at the end follows a link to its directory.
        let follow = if given.ends_with(b"/") { Follow::Links } else { follow };
        if let Some((number, rest)) = by_number(given).filter(|_| self.hold_policy.is_none()) {
            let volume = fs.volume();
            let found =
                volume.inode(Ino(number)).and_then(|from| volume.names().resolve_at(from, rest, follow));
            match found {
                Ok(inode) => targets.push(ExistingFile { image: name, path: given.to_vec(), inode, fs }),
                Err(fault) => self.fault(shown(&name, given), &fault),
            }
            return;
        }
        let path = normal(given);
        let (fault, pattern) = match fs.resolve(OsStr::from_bytes(&path), follow) {
            Ok(inode) => return targets.push(ExistingFile { image: name, fs, path, inode }),
            Err(error) => (error, glob::is_pattern(given)),
        };
        let is_absent = fault.is(Refusal::NotFound);
        if !pattern {
            if is_wanted && is_absent {
                let remedy = absent::remedy(&name, &fs, &path);
                self.problem(
                    exit::NOT_FOUND,
                    format_args!("{}: {}; {remedy}", shown(&name, &path), Refusal::NotFound),
                );
            } else if is_wanted || !is_absent {
                self.library_error(&name, &path, fault);
            }
            return;
        }
        let globs = match Glob::parse(given) {
            Ok(globs) => globs,
            Err(why) => {
                return self.problem(exit::USAGE_CODE, format_args!("{}: {why}", shown(&name, given)));
            }
        };
        let (before, problems) = (targets.len(), self.problems);
        for glob in globs {
            self.expand(&name, &fs, glob, follow, targets);
        }
        if targets.len() == before && is_wanted && self.problems == problems {
            let remedy = format_args!("`extant ls -R {}:/` lists all paths", escape(name.as_bytes()));
            self.problem(exit::NOT_FOUND, format_args!("{}: nothing matches; {remedy}", shown(&name, given)));
        }
    }

    /// Adds the matches of a pattern, in byte order.
    fn expand(
        &mut self,
        name: &str,
        fs: &FileSystem,
        glob: Glob,
        follow: Follow,
        targets: &mut Vec<ExistingFile>,
    ) {
        let base = if glob.base.is_empty() { b"/".to_vec() } else { glob.base.clone() };
        let base_follow = if glob.is_literal() { follow } else { Follow::Links };
        // Alternatives that do not exist are not reported.
        let Ok(inode) = fs.resolve(OsStr::from_bytes(&base), base_follow) else { return };
        let root = ExistingFile { image: name.to_owned(), fs: fs.clone(), path: base, inode };
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
                        targets.push(ExistingFile { image: name.to_owned(), fs: fs.clone(), path, inode });
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

    /// Records that an image was changed.
    pub(crate) fn did(&mut self, image: &str) {
        if !self.changed.iter().any(|known| known == image) {
            self.changed.push(image.to_owned());
        }
    }

    /// Writes the changes, in one commit for each image. Unchanged images are not written.
    pub(crate) fn commit(&mut self) {
        for Open { name, fs, staged, guard, .. } in std::mem::take(&mut self.open) {
            let Some(fs) = fs else { continue };
            let recovery = fs.volume().recovery();
            let is_changed = recovery.needed || recovery.deleted_orphans > 0 || self.changed.contains(&name);
            // A refused operation may have written blocks with their old contents.
            if !is_changed && staged.as_ref().is_some_and(|staged| staged.is_held()) {
                continue;
            }
            let closed = fs.close().map_err(|error| match error.fault() {
                Some(fault) => fault.to_string(),
                None => error.to_string(),
            });
            let is_ours = guard.as_ref().and_then(MountGuard::lost).map_or(Ok(()), Err);
            let image = escape(name.as_bytes());
            let closed = closed.and(is_ours);
            if let (Err(why), Some(staged)) = (&closed, staged.as_ref().filter(|staged| staged.is_held())) {
                let why = staged.full().unwrap_or_else(|| format!("{why}; nothing was changed"));
                self.problem(exit::TARGET, format_args!("{image}: {why}"));
                continue;
            }
            let written = closed.and_then(|()| match &staged {
                Some(staged) => staged.write_out().map_err(|fault| fault.to_string()),
                None => Ok(()),
            });
            if let Err(why) = written {
                self.problem(
                    exit::TARGET,
                    format_args!("{image}: {why}; not all changes are written, run `extant check {image}`"),
                );
            }
        }
    }

    /// Discards the changes. Nothing was written to images whose changes are held back.
    pub(crate) fn discard(&mut self) {
        for Open { name, staged, .. } in std::mem::take(&mut self.open) {
            if let Some(why) = staged.and_then(|staged| staged.full()) {
                self.context.clear();
                self.problem(exit::TARGET, format_args!("{}: {why}", escape(name.as_bytes())));
            }
        }
    }

    /// Discards the changes of images to which nothing was written yet. An image that already has a part of
    /// its changes gets the rest.
    pub(crate) fn discard_held(&mut self) {
        self.open.retain(|open| open.staged.as_ref().is_none_or(|staged| !staged.is_held()));
    }

    /// Returns the exit code, after all output was written or failed. A session that writes commits first.
    pub(crate) fn finish(self, printed: io::Result<()>) -> ExitCode {
        self.finish_with(printed, 0)
    }

    /// As [`finish`](Self::finish), with another exit code than 0 for a run without problems.
    pub(crate) fn finish_with(mut self, printed: io::Result<()>, done: u8) -> ExitCode {
        if self.hold_policy.is_some() {
            self.commit();
        }
        self.context.clear();
        for Open { name, fs, .. } in std::mem::take(&mut self.open) {
            let salvaged = fs.map(|fs| fs.volume().salvaged());
            self.report_damage(&name, &salvaged.unwrap_or_default());
        }
        if let Some(code) = voice::output_code(printed.and_then(|()| voice::listed())) {
            self.remember(code);
        }
        if self.misused {
            usage::say_usage();
        }
        ExitCode::from(if self.worst == 0 { done } else { self.worst })
    }
}

/// The message about a journal that cannot be read.
fn why_journal(why: &OpenFault) -> String {
    let OpenFault::Journal(why) = why else { return why.to_string() };
    format!("{why}; --journal FILE names a journal elsewhere")
}

/// An image opened for writing, the writes held back, the guard against other machines, and the device.
type Writable = (FileSystem, Option<Arc<Staged>>, Option<MountGuard>, Option<Arc<dyn Device>>);

/// Standard output, buffered.
pub(crate) fn output() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// Standard output for the report of what a command did; nothing with `--quiet`, except JSON.
pub(crate) fn report_output(is_json: bool) -> Box<dyn io::Write> {
    if is_quiet() && !is_json { Box::new(io::sink()) } else { Box::new(output()) }
}

/// Normalizes a path: one slash at its beginning, none at its end, no empty components.
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

/// Whether the file is a terminal, block device, pipe or the like, which a new file cannot replace.
pub(crate) fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}
