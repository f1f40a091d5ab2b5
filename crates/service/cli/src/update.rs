//! `extant update`: changes an image in place, so that its tree is that of its sources.
//!
//! Owns: messages, progress, exit codes, also those of `extant build --like`. Does **not** own: the update
//! (see [`extant::update`]).

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Mutex;

use extant::build::BuildOptions;
use extant::diff::{Cause, DiffObserver, Problem, Which};
use extant::resize::ResizeFault;
use extant::update::{UpdateFault, UpdateObserver, UpdateReport, update};
use extant::{Error, Fault, OpenFault};
use serde_json::json;

use crate::build::{TreeArgs, cancelled_by_signals, list_problems};
use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::{count, escape};
use crate::look::progress::Progress;
use crate::look::{arg_failure, code_of, lock_failure, shown};
use crate::sandbox::{Needs, confine};
use crate::schema::tagged;
use crate::sizes::human;
use crate::voice::{self, say};

/// How many files that cannot be compared a message lists at most.
const PROBLEMS_SHOWN: usize = 50;

const HELP: &str = "\
The sources are read as by `extant build`, and compared with the image by name, metadata and bytes. Then \
what is only in the image is removed, what is missing is made, and of a file that changed only the \
changed blocks are written. What did not change keeps its blocks and its inode number. The file system \
itself stays as it is: size, features, UUID, label, /lost+found.

The changes go through the journal. After a power cut the file system is consistent, a file has its old \
content, its new content or a part of it, and the same command completes the update. `extant build \
--like IMG` makes a new image instead.

Exit codes: 0 done; 3 a source cannot be read: nothing was changed, or a part if the source changed \
meanwhile; 4 the image is damaged; 7 the image is full: `extant resize` makes it larger; 8 no ext4 image; \
10 in use.

Examples:
  extant update root.img --from rootfs/
  extant update 'disk.img#2' --oci layout:latest
  extant update --dry-run --json root.img --tar tree.tar | jq .modified";

/// Change an image in place, so that its tree is that of directories, tar files and OCI images.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct UpdateArgs {
    /// The image: IMG, IMG@OFFSET, IMG#PARTITION.
    #[arg(value_name = "IMG")]
    image: OsString,
    #[command(flatten)]
    tree: TreeArgs,
    /// Count what would be changed, and change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// Print nothing if all goes well.
    #[arg(short, long)]
    quiet: bool,
}

/// The progress of each step in turn.
#[derive(Default)]
pub(crate) struct Steps(Mutex<Option<Progress>>);

impl Steps {
    fn with(&self, report: impl FnOnce(&Progress)) {
        let step = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(progress) = &*step {
            report(progress);
        }
    }
}

impl DiffObserver for Steps {
    fn names(&self, count: u64) {
        self.with(|progress| progress.files(count));
    }

    fn bytes(&self, len: u64) {
        self.with(|progress| progress.bytes(len));
    }
}

impl UpdateObserver for Steps {
    fn step(&self, name: &'static str) {
        let mut step = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *step = None; // its line goes before the next one comes
        *step = Some(Progress::new(name));
    }

    fn read(&self, entries: u64) {
        self.with(|progress| progress.files(entries));
    }

    fn changed(&self, paths: u64) {
        self.with(|progress| progress.files(paths));
    }
}

/// Whether the report is about what was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Is,
    WouldBe,
}

pub(crate) fn run(args: &UpdateArgs) -> ExitCode {
    match updated(args) {
        Ok(code) => code,
        Err((code, why)) => exit::fail(code, &why),
    }
}

fn updated(args: &UpdateArgs) -> Result<ExitCode, (u8, String)> {
    args.tree.check_sources("update")?;
    let image = ImageArg::parse_whole(&args.image, "updated").map_err(arg_failure)?;
    args.tree.refuse_tolerance()?;
    let leave_out = vec![image.path.clone()];
    let options = BuildOptions { dry_run: args.dry_run, leave_out, ..args.tree.options()? };
    let cancel = cancelled_by_signals().map_err(|why| (exit::TARGET, why))?;
    let device = match args.dry_run {
        true => image.open_read_only().map_err(arg_failure)?,
        false => image.open_locked().map_err(lock_failure)?,
    };
    let name = image.to_string();
    let spool_dir = std::env::temp_dir();
    let writes = vec![spool_dir.clone()];
    let needs = Needs { writes, reads_everywhere: true, keeps_capabilities: true, ..Needs::default() };
    confine(&escape(name.as_bytes()), &needs);
    let steps = Steps::default();
    let done = update(device, &options, args.tree.sources(), &spool_dir, &steps, &cancel);
    drop(steps);
    let verb = if args.dry_run { Verb::WouldBe } else { Verb::Is };
    Ok(finish(&name, &name, verb, (args.json, args.quiet), done))
}

/// Prints the report or the fault, and returns the exit code. `old`: the image that was compared.
pub(crate) fn finish(
    name: &str,
    old: &str,
    verb: Verb,
    (json, quiet): (bool, bool),
    done: Result<UpdateReport, UpdateFault>,
) -> ExitCode {
    match done {
        Ok(report) => {
            report.warnings.iter().for_each(|warning| say!("warning: {warning}"));
            shown_report(name, verb, (json, quiet), &report)
        }
        Err(fault) => fail(old, json, &fault),
    }
}

fn shown_report(name: &str, verb: Verb, (json, quiet): (bool, bool), report: &UpdateReport) -> ExitCode {
    match () {
        () if json => {
            let value = json!({
                "image": name,
                "added": report.added,
                "deleted": report.deleted,
                "modified": report.modified,
                "names": report.names,
                "written_bytes": report.written_bytes,
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "warnings": report.warnings,
                "dry_run": verb == Verb::WouldBe,
            });
            voice::print(&format!("{:#}\n", tagged("update:1", value)), 0)
        }
        () if quiet => ExitCode::SUCCESS,
        () => voice::print(&text_of(name, verb, report), 0),
    }
}

fn text_of(name: &str, verb: Verb, report: &UpdateReport) -> String {
    let name = escape(name.as_bytes());
    let of = count(report.names, "name");
    let UpdateReport { added, deleted, modified, .. } = report;
    let verb = if verb == Verb::WouldBe { "would be " } else { "" };
    let mut text =
        format!("{name}: of {of}, {added} {verb}added, {deleted} {verb}deleted, {modified} {verb}modified");
    if verb.is_empty() {
        text += &format!("; {} of content written", human(report.written_bytes));
    }
    text += "\n";
    if report.bytes_after != report.bytes_before {
        text += &format!(
            "  its size grew from {} to {}\n",
            human(report.bytes_before),
            human(report.bytes_after)
        );
    }
    text
}

fn fail(name: &str, json: bool, fault: &UpdateFault) -> ExitCode {
    let code = match fault {
        UpdateFault::Build(fault) => crate::build::code_of(fault),
        UpdateFault::Image { .. } | UpdateFault::Open(OpenFault::NotExt4(_) | OpenFault::Overwritten(_)) => {
            exit::UNREADABLE
        }
        // The host has no space for the new image.
        UpdateFault::Open(OpenFault::Device(fault)) | UpdateFault::Resize(ResizeFault::Device(fault))
            if fault.os_error() == Some(28) =>
        {
            exit::NO_SPACE
        }
        UpdateFault::Change(Error::At { fault: Fault::Device(fault), .. })
            if fault.os_error() == Some(28) =>
        {
            exit::NO_SPACE
        }
        UpdateFault::Open(OpenFault::InUse(_)) => exit::BUSY,
        UpdateFault::Open(OpenFault::Damaged(_)) => exit::DAMAGED,
        UpdateFault::Open(_) => exit::UNREADABLE,
        UpdateFault::Source(_) => exit::SOURCE,
        UpdateFault::Unreadable(problems) => list_unreadable(name, problems),
        UpdateFault::Full(_) => exit::NO_SPACE,
        UpdateFault::Change(Error::At { fault, .. } | Error::Between { fault, .. }) => code_of(fault),
        UpdateFault::Smaller { .. } => exit::TOO_SMALL,
        UpdateFault::Change(_) | UpdateFault::Resize(_) => exit::TARGET,
        UpdateFault::Interrupted => exit::INTERRUPTED,
    };
    if let UpdateFault::Build(extant::build::BuildFault::Problems(problems)) = fault {
        list_problems(problems);
    }
    let message = match fault {
        UpdateFault::Full(Error::At { path, fault }) => {
            let place = shown(name, &[b"/", &path[..]].concat());
            format!("{place}: {fault}; `extant resize` makes the image larger")
        }
        UpdateFault::Change(Error::At { path, fault }) => {
            format!("{}: {fault}", shown(name, &[b"/", &path[..]].concat()))
        }
        UpdateFault::Build(fault) => crate::build::text_of(fault),
        other => format!("{}: {other}", escape(name.as_bytes())),
    };
    if json {
        // The exit code is that of the failure, even if its description cannot be printed.
        let value = tagged("error:1", json!({ "error": message, "exit_code": code }));
        voice::print(&format!("{value:#}\n"), code);
    }
    exit::fail(code, &message)
}

/// Prints what cannot be compared, and returns the exit code.
fn list_unreadable(name: &str, problems: &[Problem]) -> u8 {
    for Problem { path, cause, .. } in problems.iter().take(PROBLEMS_SHOWN) {
        match cause {
            Cause::Source(text) => say!("{text}"),
            Cause::Image(why) => say!("{}: {why}", shown(name, &[b"/", &path[..]].concat())),
        }
    }
    if problems.len() > PROBLEMS_SHOWN {
        say!("... and {} more", problems.len() - PROBLEMS_SHOWN);
    }
    if problems.iter().any(|problem| problem.side == Which::A) { exit::DAMAGED } else { exit::SOURCE }
}
