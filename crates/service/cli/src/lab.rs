//! `extant lab`: runs the studies, on a file system in memory, in an image, or on a mount.
//!
//! Does **not** own: any load or measurement (see the crate `lab`).

mod all;
mod buffered;
mod createmany;
mod fsync;
mod io;
mod large_dir;
mod orphans;
mod shrinker;

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use extant_image::options::{FeatureEdit, FormatOptions, JournalSize};
use extant_lab::LabFault;
use extant_lab::ground::Site;
use extant_volume::{OpenOptions, OrphanMode, WriteOptions};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit;
use crate::imagearg::{ImageArg, ImageAt};
use crate::manners::{draws_progress, is_quiet};
use crate::schema::tagged;
use crate::sizes::parse_size;
use crate::voice;

/// Measure the engine under loads that are hard for a file system, in process or on a mount.
#[derive(Debug, Args)]
#[command(after_help = "\
Each study makes a file system in memory, loads it, and prints a table, or JSON with --json. Some also load a directory of a \
mounted file system (--kernel DIR), in the same way, for comparison.

Examples:
  extant lab all --html report.html        all studies, with the figures of their postings: ten minutes
  extant lab createmany -m test 1000000    a million names in one directory: a few seconds
  extant lab fsync --devices hdd           what durability costs on a hard disk: half a minute
  extant lab buffered --bytes 64M          reads and writes through the cache
  extant lab createmany --help             the options of a study, and more examples")]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    study: Study,
}

#[derive(Debug, Subcommand)]
enum Study {
    /// All studies, with the tables of their postings beside ours: text, JSON, or a page with plots.
    All(Box<all::AllArgs>),
    /// Names: make and remove many of them in one directory, as fast as possible.
    Createmany(Box<createmany::CreatemanyArgs>),
    /// Reads and writes through the cache, beside the kernel and plain copies.
    Buffered(Box<buffered::BufferedArgs>),
    /// Reads and writes of files by concurrent jobs, as fio's engine psync makes them.
    Io(Box<io::IoArgs>),
    /// Orphans: how tracking them scales with writers, its modes side by side.
    Orphans(Box<orphans::OrphansArgs>),
    /// The load of the study of orphans, on any directory.
    OrphanStress(Box<orphans::StressArgs>),
    /// Durability: what fsync costs on disks of several kinds, and what sharing flushes saves.
    Fsync(Box<fsync::FsyncArgs>),
    /// A large directory: how the rate changes as it grows, and with its hash.
    LargeDir(Box<large_dir::LargeDirArgs>),
    /// The extent cache: seven policies of reclaim under three loads.
    Shrinker(Box<shrinker::ShrinkerArgs>),
}

pub(crate) fn run(args: &LabArgs) -> ExitCode {
    let done = match &args.study {
        Study::All(args) => all::run(args),
        Study::Createmany(args) => createmany::run(args),
        Study::Buffered(args) => buffered::run(args),
        Study::Io(args) => io::run(args),
        Study::Orphans(args) => orphans::run(args),
        Study::OrphanStress(args) => orphans::stress(args),
        Study::Fsync(args) => fsync::run(args),
        Study::LargeDir(args) => large_dir::run(args),
        Study::Shrinker(args) => shrinker::run(args),
    };
    match done {
        Ok(code) => code,
        Err(fault) => exit::fail(code_of(&fault), &fault),
    }
}

fn code_of(fault: &LabFault) -> u8 {
    match fault {
        LabFault::Usage(_) | LabFault::Make(_) => exit::USAGE_CODE,
        LabFault::Open(_) => exit::UNREADABLE,
        LabFault::Exists(_) => exit::EXISTS,
        LabFault::Failed(failed) if failed.errno == 28 => exit::NO_SPACE,
        LabFault::Failed(_) | LabFault::Close(_) | LabFault::Device(_) => exit::TARGET,
    }
}

/// The file system that is made for a study.
#[derive(Debug, Args)]
#[command(next_help_heading = "File system")]
struct GroundArgs {
    /// Features to add or (with ^) leave out, as mkfs names them.
    #[arg(long, value_name = "LIST")]
    features: Vec<String>,
    /// Block size in bytes.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Size of the journal in MiB.
    #[arg(long, value_name = "MIB")]
    journal_size: Option<u32>,
    /// Number of inodes; enough if not given.
    #[arg(long, value_name = "COUNT")]
    inodes: Option<u64>,
}

impl GroundArgs {
    fn options(&self) -> Result<FormatOptions, LabFault> {
        let mut features = Vec::new();
        for list in &self.features {
            let edits = FeatureEdit::parse_list(list);
            features.extend(edits.map_err(|word| usage(format!("no feature is called \"{word}\"")))?);
        }
        let block_size = self.block_size.map(|bytes| {
            let wrong = || usage("a block size is a power of two from 1024 to 65536".to_owned());
            extant_base::BlockSize::from_bytes(bytes).ok_or_else(wrong)
        });
        Ok(FormatOptions {
            features,
            block_size: block_size.transpose()?,
            journal_size: self.journal_size.map_or(JournalSize::Auto, JournalSize::MiB),
            inodes: self.inodes,
            ..FormatOptions::default()
        })
    }
}

/// How the engine works.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
struct EngineArgs {
    /// Memory for caches.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache: Option<u64>,
    /// Do not flush the device at commits.
    #[arg(long)]
    no_barriers: bool,
    /// Read a leaf of a directory before each insertion, even if it is not in memory
    #[arg(long)]
    read_leaves_first: bool,
    /// Keep no journal though the file system has one.
    #[arg(long)]
    no_journal: bool,
    /// Blocks of a transaction at most.
    #[arg(long, value_name = "BLOCKS", default_value_t = 0, hide_default_value = true)]
    transaction_max: u32,
}

impl EngineArgs {
    fn options(&self) -> OpenOptions {
        let write = WriteOptions {
            orphans: OrphanMode::default(),
            no_barriers: self.no_barriers,
            read_leaves_first: self.read_leaves_first,
            no_journal: self.no_journal,
            transaction_max: self.transaction_max,
            ..WriteOptions::default()
        };
        let cache_bytes = self.cache.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        OpenOptions { cache_bytes, write, ..OpenOptions::default() }
    }
}

/// The place where a study makes its file systems, memory or a new file, and their size if it is given.
fn site(image: Option<&OsStr>) -> Result<(Site, Option<u64>), LabFault> {
    let Some(arg) = image else { return Ok((Site::Memory, None)) };
    let path = Path::new(arg);
    if path.symlink_metadata().is_ok() {
        return Err(LabFault::Exists(format!(
            "{} is there already, and this study makes new file systems: remove it, or name another one",
            path.display()
        )));
    }
    if !arg.as_encoded_bytes().starts_with(b"mem:") {
        return Ok((Site::File(path.to_owned()), None));
    }
    match ImageArg::parse(arg).map_err(createmany::refused)?.at {
        ImageAt::Memory(size) => Ok((Site::Memory, Some(size))),
        _ => Err(usage(format!("{}: it is mem:SIZE, or a file's name", path.display()))),
    }
}

fn usage(why: String) -> LabFault {
    LabFault::Usage(why)
}

/// Prints a report as JSON or text. Returns 0, or the exit code of an output failure.
fn print(schema: &str, report: &impl serde::Serialize, text: &dyn std::fmt::Display, json: bool) -> ExitCode {
    let text = match json {
        true => format!("{}\n", serde_json::to_string_pretty(&tagged(schema, report)).unwrap_or_default()),
        false => text.to_string(),
    };
    voice::print(&text, 0)
}

/// Shows a progress bar on a terminal, and prints the lines of the protocol if `lines` is set. If standard
/// error is no terminal, prints a line there every ten seconds.
struct Shown {
    bar: ProgressBar,
    lines: bool,
    notes: Option<Mutex<Notes>>,
}

/// Progress as lines of text.
struct Notes {
    what: String,
    done: u64,
    total: Option<u64>,
    /// The time of the last line.
    last: Instant,
}

/// The time between two lines.
const NOTES_EVERY: Duration = Duration::from_secs(10);

impl Shown {
    fn new(bar: bool, lines: bool) -> Self {
        let is_terminal = draws_progress();
        let notes = Notes { what: String::new(), done: 0, total: None, last: Instant::now() };
        let notes = (bar && !is_terminal && !is_quiet()).then(|| Mutex::new(notes));
        let bar = match bar && is_terminal {
            true => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5)),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{msg:16} {wide_bar} {percent:3}% {per_sec:>16}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, lines, notes }
    }

    fn note(&self, change: impl FnOnce(&mut Notes)) {
        let Some(notes) = &self.notes else { return };
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut notes);
        if notes.last.elapsed() >= NOTES_EVERY {
            notes.last = Instant::now();
            let total = notes.total.map_or(String::new(), |total| format!(" of {total}"));
            let _ = writeln!(std::io::stderr().lock(), "{}: {}{total}", notes.what, notes.done);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl extant_lab::Watch for Shown {
    fn advance(&self, objects: u64) {
        self.bar.inc(objects);
        self.note(|notes| notes.done += objects);
    }

    fn line(&self, text: &str) {
        if self.lines {
            let _ = writeln!(std::io::stdout().lock(), "{text}");
        }
    }

    fn part(&self, what: &str, total: Option<u64>) {
        self.bar.reset();
        self.bar.set_message(what.to_owned());
        self.bar.set_length(total.unwrap_or(1));
        self.note(|notes| (notes.what, notes.done, notes.total) = (what.to_owned(), 0, total));
    }
}
