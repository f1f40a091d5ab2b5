//! `extant rescue`: files from damaged or emptied images, and deleted files.
//!
//! Owns: arguments, patterns, what is printed. Does **not** own: finding anything (see the crate `rescue`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use extant::rescue::{
    Confidence, DirectorySink, FoundFile, Rescue, RescueFault, RescueObserver, RescueScope, RescueSink,
    TarSink,
};
use serde_json::json;

use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::{escape, iso_seconds};
use crate::look::glob::Glob;
use crate::look::print::JsonList;
use crate::look::progress::Progress;
use crate::look::{OpenArgs, Session, output};
use crate::sandbox::{Needs, directory_of};
use crate::times::parse_time;
use crate::voice::note;

const HELP: &str = "\
Nothing of the image is changed, and nothing in it needs to be intact: a lost superblock is replaced by a \
backup, lost group descriptors by backups or by the addresses that the layout implies, and inodes that no \
name leads to are found by a scan of the inode tables, as lost+found/#INODE.

--deleted looks for deleted files instead, in older copies of inode tables and directories that the \
journal still holds. A file can be found until the journal is overwritten, which takes minutes of work on \
the file system: unmount it at once. Bytes that were written again or discarded cannot be had.

Confidence of a file: high: everything that can be verified is right, and no block of a deleted file was \
allocated since; medium: nothing speaks against it; low: a part is known to be missing or overwritten. \
Each file is printed with the reason.

Examples:
  extant rescue broken.img                          list what can be had
  extant rescue broken.img --dir out
  extant rescue broken.img --tar out.tar '/srv/**'
  extant rescue 'disk.img#2' --deleted --since 2026-11-27T10:00 --confidence medium --dir out
  extant rescue broken.img --backup 32768 --json";

/// Get files out of a damaged or emptied image, or deleted files.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
#[command(group(clap::ArgGroup::new("to").args(["tar", "dir"])))]
pub(crate) struct RescueArgs {
    /// The image: IMG, IMG@OFFSET, IMG#PARTITION.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// Only files whose paths match one of these, as '/srv/**'.
    #[arg(value_name = "PATTERN")]
    patterns: Vec<OsString>,
    /// Write the files into a directory, which is made if it does not exist, and otherwise must be empty.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the files into a tar archive; - for standard output.
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Deleted files only.
    #[arg(short, long)]
    deleted: bool,
    /// Only files that were deleted at this time or later: 2026-11-27T10:00, @SECONDS.
    #[arg(long, value_name = "TIME", requires = "deleted", value_parser = parse_time)]
    since: Option<extant::Timestamp>,
    /// Only files of at least this confidence.
    #[arg(long, value_name = "LEVEL", default_value = "low", value_parser = ["low", "medium", "high"])]
    confidence: String,
    /// Use the backup superblock in this block.
    #[arg(short, long, value_name = "BLOCK")]
    backup: Option<u64>,
    /// Print a JSON list.
    #[arg(long)]
    json: bool,
}

/// The files so far.
struct Seen {
    patterns: Vec<Glob>,
    confidence: Confidence,
    progress: Progress,
    found: Mutex<Vec<FoundFile>>,
}

impl RescueObserver for Seen {
    fn wants(&self, found: &FoundFile) -> bool {
        let path = found.path.join(&b'/');
        let is_named = |glob: &Glob| {
            let rest =
                path.strip_prefix(glob.base.as_slice()).map(|rest| rest.strip_prefix(b"/").unwrap_or(rest));
            match glob.is_literal() {
                true => path == glob.base,
                false => rest.is_some_and(|rest| glob.matches(rest)),
            }
        };
        let is_match = self.patterns.is_empty() || self.patterns.iter().any(is_named);
        is_match && found.confidence >= self.confidence
    }

    fn found(&self, found: &FoundFile) {
        self.progress.file();
        if self.wants(found) {
            self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(found.clone());
        }
    }
}

/// Opens an image, confines the process, and prints what is wrong with the image's frame. `None` after
/// reporting a problem.
pub(crate) fn open(
    session: &mut Session,
    arg: &OsString,
    image: &ImageArg,
    backup: Option<u64>,
    needs: &Needs,
) -> Option<Rescue> {
    let name = escape(image.to_string().as_bytes());
    let device = image.open_read_only().map_err(|why| session.argument_error(why)).ok()?;
    session.confine(std::slice::from_ref(arg), needs);
    let opened = Rescue::open(device, backup);
    let rescue = opened
        .map_err(|why| session.problem(exit::UNREADABLE, format_args!("{name}: {}", text_of(&why))))
        .ok()?;
    for note in rescue.notes() {
        note!("{name}: {note}");
    }
    Some(rescue)
}

/// The message of a fault, with the remedy.
pub(crate) fn text_of(why: &RescueFault) -> String {
    let remedy = match why {
        RescueFault::NoSuperblock => {
            "; if the block size is known, --backup BLOCK tries the backup at a given block"
        }
        RescueFault::NoBackup(_) => "; without --backup the command searches for one",
        _ => "",
    };
    format!("{why}{remedy}")
}

pub(crate) fn run(args: &RescueArgs) -> ExitCode {
    let mut session = Session::new(&OpenArgs::with_journal(None));
    let Some(image) = session.whole_image(&args.image, "searched") else { return session.finish(Ok(())) };
    let mut patterns = Vec::new();
    for pattern in &args.patterns {
        let text = pattern.as_bytes();
        match Glob::parse(text.strip_prefix(b"/").unwrap_or(text)) {
            Ok(globs) => patterns.extend(globs),
            Err(why) => {
                session.problem(exit::USAGE_CODE, format_args!("{}: {why}", pattern.display()));
                return session.finish(Ok(()));
            }
        }
    }
    let writes = match (&args.tar, &args.dir) {
        (Some(file), _) if file.as_os_str() != "-" => vec![directory_of(file)],
        (_, Some(dir)) if dir.exists() => vec![dir.clone()],
        (_, Some(dir)) => vec![directory_of(dir)],
        _ => Vec::new(),
    };
    let needs = Needs { writes, keeps_capabilities: true, ..Needs::default() };
    let name = escape(image.to_string().as_bytes());
    let Some(rescue) = open(&mut session, &args.image, &image, args.backup, &needs) else {
        return session.finish(Ok(()));
    };
    let confidence = match args.confidence.as_str() {
        "high" => Confidence::High,
        "medium" => Confidence::Medium,
        _ => Confidence::Low,
    };
    let seen = Seen { patterns, confidence, progress: Progress::new("searching"), found: Mutex::default() };
    let since = args.since.map(|time| u32::try_from(time.seconds.max(0)).unwrap_or(u32::MAX));
    let wanted = RescueScope { deleted: args.deleted, since };
    if let Err(why) = write(args, &rescue, wanted, &seen) {
        let code = match &why {
            RescueFault::Output(_, error) if error.kind() == io::ErrorKind::StorageFull => exit::NO_SPACE,
            RescueFault::Output(_, error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                exit::EXISTS
            }
            _ => exit::TARGET,
        };
        session.problem(code, why);
        if code == exit::EXISTS {
            // Nothing was searched.
            return session.finish(Ok(()));
        }
    }
    let found = seen.found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if found.is_empty() && !args.patterns.is_empty() {
        session.problem(exit::NOT_FOUND, format_args!("{name}: no file matches"));
    }
    if !args.deleted && found.iter().any(|found| found.confidence == Confidence::Low) {
        session.remember(exit::DAMAGED);
    }
    let to_stdout = args.tar.as_ref().is_some_and(|file| file.as_os_str() == "-");
    let printed = if to_stdout {
        Ok(())
    } else {
        let mut out = output();
        print(args, &found, &mut out).and_then(|()| out.flush())
    };
    session.finish(printed)
}

fn write(args: &RescueArgs, rescue: &Rescue, wanted: RescueScope, seen: &Seen) -> Result<(), RescueFault> {
    let named = |path: &Path, error| RescueFault::Output(path.display().to_string(), error);
    match (&args.tar, &args.dir) {
        (Some(file), _) if file.as_os_str() == "-" => {
            let out = io::stdout();
            if out.is_terminal() {
                let why = "an archive makes no sense on a terminal; pipe it to a program, or give a file";
                return Err(named(file, io::Error::other(why)));
            }
            to_tar(rescue, wanted, seen, out.lock())
        }
        (Some(file), _) => {
            let out = File::create_new(file).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    named(file, io::Error::new(error.kind(), "it exists; remove it, or name another file"))
                }
                _ => named(file, error),
            })?;
            to_tar(rescue, wanted, seen, out)
        }
        (None, Some(dir)) => {
            match std::fs::create_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(named(dir, error)),
                _ => {}
            }
            let mut sink = DirectorySink::new(dir)?;
            rescue.run(wanted, &mut sink, seen)?;
            let refused = sink.finish()?;
            if refused > 0 {
                note!("{refused} owners, devices or attributes could not be set; root can set them");
            }
            Ok(())
        }
        (None, None) => rescue.run(wanted, &mut () as &mut dyn RescueSink, seen),
    }
}

fn to_tar(rescue: &Rescue, wanted: RescueScope, seen: &Seen, out: impl Write) -> Result<(), RescueFault> {
    let mut sink = TarSink::new(BufWriter::with_capacity(1 << 20, out));
    rescue.run(wanted, &mut sink, seen)?;
    let mut out = sink.finish()?;
    out.flush().map_err(|error| RescueFault::Output("archive".to_owned(), error))
}

fn print(args: &RescueArgs, found: &[FoundFile], out: &mut dyn Write) -> io::Result<()> {
    if args.json {
        let mut list = JsonList::new(out, "rescue:1");
        for found in found {
            list.item(&json!({
                "path": String::from_utf8_lossy(&found.shown()),
                "inode": found.ino.0,
                "type": found.kind.to_string(),
                "size": found.size,
                "mtime": found.mtime,
                "deleted": found.deleted,
                "confidence": found.confidence.name(),
                "reason": found.reason,
            }))?;
        }
        return list.finish();
    }
    for found in found {
        let path = escape(&found.shown());
        let confidence = found.confidence.name();
        let deleted = match (args.deleted, found.deleted) {
            (false, _) => String::new(),
            (true, Some(time)) => format!("  deleted {}", iso_seconds(time.into())),
            (true, None) => "  deleted, time unknown   ".to_owned(),
        };
        let reason = match found.confidence {
            Confidence::High => String::new(),
            _ => format!("  ({})", found.reason),
        };
        writeln!(out, "{confidence:6}  {:>12}{deleted}  {path}{reason}", found.size)?;
    }
    let count = |confidence| found.iter().filter(|found| found.confidence == confidence).count();
    let [high, medium, low] = [Confidence::High, Confidence::Medium, Confidence::Low].map(count);
    writeln!(out, "{} files: {high} of high confidence, {medium} of medium, {low} of low", found.len())
}
